/*
 * See fuse_loop.h.
 *
 * Threads read the connection, and there is always one more reading until READERS_MAX are at work; more than IDLE_MAX that wait for a request leave.
 * A thread that waits in read() is told to stop by SIGUSR1, again and again because the signal may come before the read does.
 */
#include "fuse_loop.h"

#include "request.h"

#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READERS_MAX  256u
#define IDLE_MAX     16u
#define KNOCK_NS     (10 * NS_PER_MS)
#define BUFFER_BYTES (FS_MAX_WRITE + 4096u)
/* Bytes of a WRITE before its data: these are to lie at the end of a page, so that the data begins with one. */
#define WRITE_HEAD (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
#define PAGE       4096u
/*
 * What they lie in. Each page is touched before the kernel writes to it: were it to be made first while we are being killed, the program would get EIO for its
 * request instead of the next worker's answer.
 */
#define BUFFER_PAGES (PAGE + (BUFFER_BYTES + PAGE - 1) / PAGE * PAGE)
#define NO_UNIQUE    0x7ffffffffffe0ull /* no request has it: the kernel drops the reply */
#define NOTIFY_SEND  7                  /* FUSE_NOTIFY_RESEND, newer than the system's header */

_Static_assert(READERS_MAX <= SESSION_BUSY, "each thread has its place in the session");

struct reader {
    struct fuse_loop *loop;
    struct sess_busy *busy; /* in the session */
    char *pages, *buf;
    pthread_t thread;
    /* guarded by loop.mu */
    bool used, reading;
    bool resent; /* what it serves was sent again */
    bool behind; /* what it reads may be older than the first request that was not */
};

struct fuse_loop {
    /* immutable after fuse_loop_new */
    struct fuse_session *se;
    struct session *session;
    atomic_bool *caught_up;

    struct mutex mu;
    /* guarded by mu */
    struct cond changed; /* stop, or a thread has left */
    struct reader readers[READERS_MAX];
    unsigned n_threads, n_idle;
    bool seen_new; /* the kernel sends what it sends again before all else */
    bool stop;
    int error;
};

struct fuse_loop *fuse_loop_new(struct fuse_session *se, struct session *session, atomic_bool *caught_up)
{
    struct fuse_loop *l = g_new0(struct fuse_loop, 1);
    l->se = se;
    l->session = session;
    l->caught_up = caught_up;
    mutex_init(&l->mu, LOCK_FUSE_LOOP);
    cond_init(&l->changed);
    return l;
}

void fuse_loop_free(struct fuse_loop *l)
{
    if (!l)
        return;
    cond_fini(&l->changed);
    mutex_fini(&l->mu);
    g_free(l);
}

/* ---- INIT ---- */

/* Whether the kernel has ended the connection: unmounted, or aborted. */
static bool is_gone(int fd)
{
    struct pollfd p = {.fd = fd};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

static int read_init(struct fuse_loop *l, char *buf, size_t size)
{
    struct sess_head *head = l->session->head;
    ssize_t n;
    do
        n = RET_ERRNO(read(fuse_session_fd(l->se), buf, size));
    while (n == -EINTR);
    if (n < 0)
        return (int)n;
    const struct fuse_in_header *in = (const void *)buf;
    if (n < (ssize_t)sizeof(*in) || in->opcode != FUSE_INIT || n > (ssize_t)sizeof(head->init))
        return -EPROTO;
    memcpy(head->init, buf, (size_t)n);
    head->init_len = (uint32_t)n;
    return 0;
}

int fuse_loop_greet(struct fuse_loop *l)
{
    const struct sess_head *head = l->session->head;
    g_autofree char *buf = g_malloc(BUFFER_BYTES);
    int r = session_is_takeover(l->session) ? 0 : read_init(l, buf, BUFFER_BYTES);
    if (r < 0)
        return r;
    memcpy(buf, head->init, head->init_len);
    if (session_is_takeover(l->session))
        ((struct fuse_in_header *)(void *)buf)->unique = NO_UNIQUE;
    fuse_session_process_buf(l->se, &(struct fuse_buf){.mem = buf, .size = head->init_len});
    return fuse_session_exited(l->se) ? -EPROTO : 0;
}

/* ---- one thread ---- */

static int reader_start_locked(struct fuse_loop *l) REQUIRES(l->mu);

/* False when the thread is to leave. */
static bool begin_read(struct reader *t) EXCLUDES(t->loop->mu)
{
    mutex_lock(&t->loop->mu);
    bool go_on = !t->loop->stop;
    t->reading = go_on;
    mutex_unlock(&t->loop->mu);
    return go_on;
}

static void stop_locked(struct fuse_loop *l, int error) REQUIRES(l->mu)
{
    if (!l->stop)
        l->error = error;
    l->stop = true;
    cond_broadcast(&l->changed);
}

/* A request was read, of which nothing is known yet but that it came: has all that was sent again been answered? */
static void look_behind_locked(struct fuse_loop *l, struct reader *t, const struct fuse_in_header *in) REQUIRES(l->mu)
{
    bool queued = in->opcode != FUSE_FORGET && in->opcode != FUSE_BATCH_FORGET && in->opcode != FUSE_INTERRUPT;
    t->behind = false;
    t->resent = request_resent(in->unique);
    if (!t->resent && queued && !l->seen_new) {
        l->seen_new = true;
        for (unsigned i = 0; i < READERS_MAX; i++)
            l->readers[i].behind = l->readers[i].used && l->readers[i].reading;
    }
    bool all = l->seen_new;
    for (unsigned i = 0; all && i < READERS_MAX; i++)
        all = !l->readers[i].used || !(l->readers[i].behind || l->readers[i].resent);
    if (all)
        atomic_store(l->caught_up, true);
}

/* What read() returned. True: a request to handle, with somebody else left to read the next. */
static bool end_read(struct reader *t, ssize_t n, bool is_forget) EXCLUDES(t->loop->mu)
{
    struct fuse_loop *l = t->loop;
    mutex_lock(&l->mu);
    t->reading = false;
    if (n > 0 && !atomic_load(l->caught_up))
        look_behind_locked(l, t, (const void *)t->buf);
    if (n == -ENODEV || n == -ECONNABORTED)
        stop_locked(l, 0);
    else if (n < 0 && n != -EINTR && n != -EAGAIN && n != -ENOENT) /* ENOENT: the request was taken back */
        stop_locked(l, (int)n);
    if (n > 0 && !is_forget && --l->n_idle == 0 && l->n_threads < READERS_MAX && !l->stop)
        (void)reader_start_locked(l); /* without it the next request waits */
    mutex_unlock(&l->mu);
    return n > 0;
}

/* False: too many wait for requests already, this one has left. */
static bool end_work(struct reader *t, bool is_forget) EXCLUDES(t->loop->mu)
{
    struct fuse_loop *l = t->loop;
    mutex_lock(&l->mu);
    t->resent = false;
    l->n_idle += !is_forget;
    bool leave = l->n_idle > IDLE_MAX && !l->stop;
    if (leave) {
        (void)pthread_detach(pthread_self()); /* fuse_loop_join() will not know it any more */
        l->n_idle--;
        l->n_threads--;
        free(t->pages);
        t->used = false;
    }
    mutex_unlock(&l->mu);
    return !leave;
}

static void handle(struct reader *t, size_t n)
{
    const struct fuse_in_header *in = (const void *)t->buf;
    t->busy->opcode = in->opcode;
    t->busy->unique = in->unique;
    t->busy->since_ns = clock_mono_ns();
    request_begin(in->unique, (unsigned)(t - t->loop->readers));
    fuse_session_process_buf(t->loop->se, &(struct fuse_buf){.mem = t->buf, .size = n});
    request_end();
    t->busy->since_ns = 0;
}

static void *reader_main(void *arg)
{
    struct reader *t = arg;
    struct fuse_loop *l = t->loop;
    sigset_t knock;
    sigemptyset(&knock);
    sigaddset(&knock, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &knock, NULL);
    memset(t->pages, 0, BUFFER_PAGES);
    while (begin_read(t)) {
        ssize_t n = RET_ERRNO(read(fuse_session_fd(l->se), t->buf, BUFFER_BYTES));
        const struct fuse_in_header *in = (const void *)t->buf;
        if (n >= 0 && n < (ssize_t)sizeof(*in))
            n = -EIO;
        bool is_forget = n > 0 && (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET);
        if (!end_read(t, n, is_forget))
            continue;
        handle(t, (size_t)n);
        if (!end_work(t, is_forget))
            return NULL;
    }
    mutex_lock(&l->mu);
    l->n_threads--;
    cond_broadcast(&l->changed);
    mutex_unlock(&l->mu);
    return NULL;
}

static int reader_start_locked(struct fuse_loop *l)
{
    mutex_assert_held(&l->mu);
    unsigned i = 0;
    while (l->readers[i].used)
        i++;
    struct reader *t = &l->readers[i];
    *t = (struct reader){.loop = l, .busy = &l->session->head->busy[i]};
    t->pages = aligned_alloc(PAGE, BUFFER_PAGES);
    if (!t->pages)
        return -ENOMEM;
    t->buf = t->pages + PAGE - WRITE_HEAD;
    t->busy->since_ns = 0;
    int r = thread_start(&t->thread, "fuse", reader_main, t);
    if (r < 0) {
        free(t->pages);
        return r;
    }
    t->used = true;
    l->n_threads++;
    l->n_idle++;
    return 0;
}

/* ---- all ---- */

/* What a former worker took from the kernel and did not answer comes again, marked as such. */
static int ask_again(struct fuse_loop *l)
{
    const struct fuse_out_header out = {.len = sizeof(out), .error = NOTIFY_SEND};
    int fd = fuse_session_fd(l->se);
    ssize_t n = RET_ERRNO(write(fd, &out, sizeof(out)));
    if (n < 0 && is_gone(fd))
        return -ENODEV;
    return n < 0 ? (int)n : 0;
}

int fuse_loop_start(struct fuse_loop *l)
{
    int r = session_is_takeover(l->session) ? ask_again(l) : 0;
    mutex_lock(&l->mu);
    if (r == 0 && !l->stop)
        r = reader_start_locked(l);
    mutex_unlock(&l->mu);
    return r;
}

static void knock_locked(struct fuse_loop *l) REQUIRES(l->mu)
{
    for (unsigned i = 0; i < READERS_MAX; i++)
        if (l->readers[i].used && l->readers[i].reading)
            (void)pthread_kill(l->readers[i].thread, SIGUSR1);
}

int fuse_loop_join(struct fuse_loop *l)
{
    mutex_lock(&l->mu);
    while (!l->stop)
        cond_wait(&l->changed, &l->mu);
    while (l->n_threads > 0) {
        knock_locked(l);
        (void)cond_wait_until(&l->changed, &l->mu, clock_mono_ns() + KNOCK_NS);
    }
    int r = l->error;
    mutex_unlock(&l->mu);
    for (unsigned i = 0; i < READERS_MAX; i++) {
        struct reader *t = &l->readers[i];
        if (t->used) {
            (void)pthread_join(t->thread, NULL); /* it is past its last line */
            free(t->pages);
        }
    }
    return r;
}

void fuse_loop_stop(struct fuse_loop *l)
{
    mutex_lock(&l->mu);
    stop_locked(l, 0);
    mutex_unlock(&l->mu);
}
