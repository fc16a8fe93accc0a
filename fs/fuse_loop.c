/*
 * See fuse_loop.h.
 *
 * Threads read the connection, and there is always one more that has a place to read until READERS_MAX are at work. There are as many places as processors: the kernel wakes another of
 * those that wait in read() for each request, so more of them would only have each run with cold caches, one after the other. What is answered from memory (is_prompt()) is handled by who read it,
 * without waking anybody to read on; an operation that finds that it has to wait for something says so first, by request_waits(), and gives its place away. Threads without a place
 * wait for one; more than IDLE_MAX of them leave. A thread that waits in read() is told to stop by SIGUSR1, again and again because the signal may come before the read does.
 *
 * Requests that may wait for the store take at most WAITERS_MAX of the threads; what comes beyond that is kept, and taken up by the next of them that is done. So there is always
 * a thread for what is answered at once, and for INTERRUPT, which makes waiting requests end. One that is kept ends as one that a thread waits for does (patience.h): the thread
 * in fuse_loop_join() looks at the programs of those that the kernel sent an INTERRUPT for, again and again because it sends one for the first signal only.
 *
 * Only a thread in read() and one that handles a large WRITE need a large buffer: other requests are moved to a small one of the thread's own.
 */
#include "fuse_loop.h"

#include "base/patience.h"
#include "request.h"

#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READERS_MAX  SESSION_BUSY
#define WAITERS_MAX  (READERS_MAX - 16)
#define KEPT_MAX     (64u << 20) /* bytes of requests without a thread; more than that take the last threads after all */
#define IDLE_MAX     16u
#define FREE_MAX     32u            /* large buffers */
#define GRACE_NS     (2 * NS_PER_S) /* beyond --op-timeout: whoever works for a request is to say first what is wrong */
#define KNOCK_NS     (10 * NS_PER_MS)
#define LOOK_NS      NS_PER_S /* between two looks at the programs of requests that are kept */
#define BUFFER_BYTES (FS_MAX_WRITE + 4096u)
/* Bytes of a WRITE before its data: these are to lie at the end of a page, so that the data begins with one. */
#define WRITE_HEAD (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in))
#define PAGE       4096u
/*
 * What they lie in. Each page is touched before the kernel writes to it: were it to be made first while we are being killed, the program would get EIO for its
 * request instead of the next worker's answer.
 */
#define BUFFER_PAGES (PAGE + (BUFFER_BYTES + PAGE - 1) / PAGE * PAGE)
#define SMALL_PAGES  (3 * PAGE)
#define SMALL_BYTES  (SMALL_PAGES - PAGE + WRITE_HEAD)
#define NO_UNIQUE    0x7ffffffffffe0ull /* no request has it: the kernel drops the reply */
#define NOTIFY_SEND  7                  /* FUSE_NOTIFY_RESEND, newer than the system's header */

struct large { /* a buffer to read to */
    char *pages, *buf;
};

/* A request that has no thread yet. */
struct kept {
    uint64_t read_ns;
    size_t len;
    struct large at;
    bool asked; /* the kernel told of a signal */
};

struct reader {
    struct fuse_loop *loop;
    struct sess_busy *busy; /* in the session */
    struct large large;     /* while it reads, or handles what is large; its own then */
    char *small;            /* its own, for other requests */
    char *msg;              /* the request it handles, and who owns that if it was kept */
    size_t msg_len;
    char *kept_pages;
    struct patience patience;
    pthread_t thread;
    /* guarded by loop.mu */
    bool used, reading;
    bool place;      /* one of n_places */
    bool waits;      /* its request is one of n_waiters */
    uint64_t unique; /* of its request, 0: none */
    bool resent;     /* what it serves was sent again */
    bool behind;     /* what it reads may be older than the first request that was not */
};

struct fuse_loop {
    /* immutable after fuse_loop_new */
    struct fuse_session *se;
    struct session *session;
    uint64_t limit_ns; /* for a request, without progress */
    unsigned places_max;
    atomic_bool *caught_up;

    struct mutex mu;
    /* guarded by mu */
    struct cond changed; /* stop, or a thread has left */
    struct cond turn;    /* stop, or a place is free and nobody reads */
    struct reader readers[READERS_MAX];
    unsigned n_threads, n_waiters;
    unsigned n_places; /* of threads that read, or are about to */
    unsigned n_idle;   /* wait for a place */
    GQueue kept;       /* struct kept */
    uint64_t kept_bytes;
    bool asked;            /* for one of them; not looked at yet */
    GPtrArray *free_pages; /* of large buffers that nobody uses */
    bool seen_new;         /* the kernel sends what it sends again before all else */
    bool stop;
    int error;
};

/* Threads that can run at once. */
static unsigned processors(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return (unsigned)CLAMP(n, 1, (int)IDLE_MAX);
}

struct fuse_loop *fuse_loop_new(struct fuse_session *se, struct session *session, uint64_t op_timeout_ns,
                                atomic_bool *caught_up)
{
    struct fuse_loop *l = g_new0(struct fuse_loop, 1);
    l->se = se;
    l->session = session;
    l->limit_ns = op_timeout_ns + GRACE_NS;
    l->places_max = processors();
    l->caught_up = caught_up;
    l->free_pages = g_ptr_array_new_with_free_func(free);
    g_queue_init(&l->kept);
    mutex_init(&l->mu, LOCK_FUSE_LOOP);
    cond_init(&l->changed);
    cond_init(&l->turn);
    return l;
}

void fuse_loop_free(struct fuse_loop *l)
{
    if (!l)
        return;
    for (struct kept *k;
         (k = g_queue_pop_head(&l->kept));) { /* the kernel asks the next worker, or ends the connection */
        free(k->at.pages);
        g_free(k);
    }
    g_ptr_array_unref(l->free_pages);
    cond_fini(&l->turn);
    cond_fini(&l->changed);
    mutex_fini(&l->mu);
    g_free(l);
}

/* ---- buffers ---- */

static int large_new(struct large *ret)
{
    char *pages = aligned_alloc(PAGE, BUFFER_PAGES);
    if (!pages)
        return -ENOMEM;
    memset(pages, 0, BUFFER_PAGES);
    *ret = (struct large){pages, pages + PAGE - WRITE_HEAD};
    return 0;
}

/* NULL if none is free. */
static void large_take_locked(struct fuse_loop *l, struct large *ret) REQUIRES(l->mu)
{
    mutex_assert_held(&l->mu);
    char *pages = l->free_pages->len ? g_ptr_array_steal_index_fast(l->free_pages, l->free_pages->len - 1) : NULL;
    *ret = (struct large){pages, pages ? pages + PAGE - WRITE_HEAD : NULL};
}

static void large_put_locked(struct fuse_loop *l, struct large *b) REQUIRES(l->mu)
{
    mutex_assert_held(&l->mu);
    if (b->pages && l->free_pages->len < FREE_MAX)
        g_ptr_array_add(l->free_pages, b->pages);
    else
        free(b->pages);
    *b = (struct large){0};
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

/* ---- kinds of requests ---- */

/* Handled between two reads, by whoever read it. */
static bool is_note(uint32_t opcode)
{
    return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_INTERRUPT;
}

/* Answered from memory. */
static bool is_quick(uint32_t opcode)
{
    return is_note(opcode) || opcode == FUSE_STATFS || opcode == FUSE_GETATTR || opcode == FUSE_RELEASEDIR;
}

/* No program waits for it, and it is to be carried out whatever becomes of the one that caused it. */
static bool is_patient(uint32_t opcode)
{
    return is_quick(opcode) || opcode == FUSE_RELEASE;
}

/* Answered from memory as a rule; where it is not, request_waits() comes first. */
static bool is_prompt(uint32_t opcode)
{
    return is_note(opcode) || opcode == FUSE_OPEN || opcode == FUSE_RELEASE;
}

/* ---- one thread ---- */

static int reader_start_locked(struct fuse_loop *l) REQUIRES(l->mu);

static void stop_locked(struct fuse_loop *l, int error) REQUIRES(l->mu)
{
    if (!l->stop)
        l->error = error;
    l->stop = true;
    cond_broadcast(&l->changed);
    cond_broadcast(&l->turn);
}

/* Its thread is about to do what may take long: somebody else is to read. */
static void leave_place_locked(struct fuse_loop *l, struct reader *t) REQUIRES(l->mu)
{
    mutex_assert_held(&l->mu);
    if (!t->place)
        return;
    t->place = false;
    if (t->msg != t->large.buf)
        large_put_locked(l, &t->large);
    if (--l->n_places > 0 || l->stop)
        return;
    if (l->n_idle > 0)
        cond_signal(&l->turn);
    else if (l->n_threads < READERS_MAX)
        (void)reader_start_locked(l); /* without it the next request waits */
}

static void on_wait(void *reader)
{
    struct reader *t = reader;
    if (!t->place) /* its own thread gives it away, nobody else */
        return;
    mutex_lock(&t->loop->mu);
    leave_place_locked(t->loop, t);
    mutex_unlock(&t->loop->mu);
}

/* False when the thread is to leave. */
static bool begin_read(struct reader *t) EXCLUDES(t->loop->mu)
{
    struct fuse_loop *l = t->loop;
    mutex_lock(&l->mu);
    if (!t->large.pages)
        large_take_locked(l, &t->large);
    mutex_unlock(&l->mu);
    int r = t->large.pages ? 0 : large_new(&t->large);
    mutex_lock(&l->mu);
    if (r < 0)
        stop_locked(l, r);
    t->reading = !l->stop;
    bool go_on = t->reading;
    mutex_unlock(&l->mu);
    return go_on;
}

static bool keeps_resent_locked(const struct fuse_loop *l)
{
    for (const GList *k = l->kept.head; k; k = k->next) {
        const struct fuse_in_header *in = (const void *)((const struct kept *)k->data)->at.buf;
        if (request_resent(in->unique))
            return true;
    }
    return false;
}

/* A request was read, of which nothing is known yet but that it came: has all that was sent again been answered? */
static void look_behind_locked(struct fuse_loop *l, struct reader *t, const struct fuse_in_header *in) REQUIRES(l->mu)
{
    t->behind = false;
    t->resent = request_resent(in->unique);
    if (!t->resent && !is_note(in->opcode) && !l->seen_new) {
        l->seen_new = true;
        for (unsigned i = 0; i < READERS_MAX; i++)
            l->readers[i].behind = l->readers[i].used && l->readers[i].reading;
    }
    bool all = l->seen_new && !keeps_resent_locked(l);
    for (unsigned i = 0; all && i < READERS_MAX; i++)
        all = !l->readers[i].used || !(l->readers[i].behind || l->readers[i].resent);
    if (all)
        atomic_store(l->caught_up, true);
}

/* The request at buf is this thread's. */
static void take_on_locked(struct fuse_loop *l, struct reader *t, char *buf, size_t len, uint64_t read_ns)
    REQUIRES(l->mu)
{
    mutex_assert_held(&l->mu);
    const struct fuse_in_header *in = (const void *)buf;
    t->msg = buf;
    t->msg_len = len;
    t->unique = in->unique;
    t->resent = request_resent(in->unique);
    t->waits = !is_quick(in->opcode);
    l->n_waiters += t->waits;
    patience_begin(&t->patience, (int)in->pid, read_ns, l->limit_ns);
    if (is_patient(in->opcode))
        patience_end();
}

/* What a request takes while it is kept: only the data of a large WRITE has to begin with a page. */
static size_t kept_size(size_t len)
{
    return sizeof(struct kept) + (len <= PAGE ? len : PAGE + (len + PAGE - 1) / PAGE * PAGE);
}

static bool kept_alloc(size_t len, struct large *ret)
{
    char *pages = len <= PAGE ? malloc(len) : aligned_alloc(PAGE, kept_size(len) - sizeof(struct kept));
    *ret = (struct large){pages, pages && len > PAGE ? pages + PAGE - WRITE_HEAD : pages};
    return pages;
}

/* True: kept for later. */
static bool keep_locked(struct fuse_loop *l, const char *buf, size_t len) REQUIRES(l->mu)
{
    mutex_assert_held(&l->mu);
    const struct fuse_in_header *in = (const void *)buf;
    if (is_quick(in->opcode) || l->n_waiters < WAITERS_MAX || l->kept_bytes + kept_size(len) > KEPT_MAX)
        return false;
    struct large at;
    if (!kept_alloc(len, &at))
        return false;
    struct kept *k = g_new(struct kept, 1);
    *k = (struct kept){.read_ns = clock_mono_ns(), .len = len, .at = at};
    memcpy(k->at.buf, buf, len);
    l->kept_bytes += kept_size(len);
    g_queue_push_tail(&l->kept, k);
    return true;
}

/* A request was read: to be handled by this thread, unless it is kept. */
static bool accept_locked(struct fuse_loop *l, struct reader *t, size_t n) REQUIRES(l->mu)
{
    mutex_assert_held(&l->mu);
    const struct fuse_in_header *in = (const void *)t->large.buf;
    if (!atomic_load(l->caught_up))
        look_behind_locked(l, t, in);
    t->resent = false;
    if (keep_locked(l, t->large.buf, n))
        return false;
    bool prompt = is_prompt(in->opcode);
    char *buf = t->large.buf;
    if (n <= SMALL_BYTES) {
        buf = t->small + PAGE - WRITE_HEAD;
        memcpy(buf, t->large.buf, n);
    }
    take_on_locked(l, t, buf, n, clock_mono_ns());
    if (!prompt)
        leave_place_locked(l, t);
    return true;
}

/* What read() returned. True: a request to handle, with somebody else left to read the next. */
static bool end_read(struct reader *t, ssize_t n) EXCLUDES(t->loop->mu)
{
    struct fuse_loop *l = t->loop;
    mutex_lock(&l->mu);
    t->reading = false;
    if (n == -ENODEV || n == -ECONNABORTED)
        stop_locked(l, 0);
    else if (n < 0 && n != -EINTR && n != -EAGAIN && n != -ENOENT) /* ENOENT: the request was taken back */
        stop_locked(l, (int)n);
    bool have = n > 0 && accept_locked(l, t, (size_t)n);
    mutex_unlock(&l->mu);
    return have;
}

/* The request is answered. True: one that was kept is next. */
static bool next_kept(struct reader *t) EXCLUDES(t->loop->mu)
{
    struct fuse_loop *l = t->loop;
    patience_end();
    mutex_lock(&l->mu);
    bool waited = t->waits;
    l->n_waiters -= waited;
    t->waits = t->resent = false;
    t->unique = 0;
    free(t->kept_pages);
    t->kept_pages = NULL;
    struct kept *k = waited && !l->stop ? g_queue_pop_head(&l->kept) : NULL;
    if (k) {
        l->kept_bytes -= kept_size(k->len);
        t->kept_pages = k->at.pages;
        take_on_locked(l, t, k->at.buf, k->len, k->read_ns);
        leave_place_locked(l, t);
        if (k->asked)
            patience_ask(&t->patience);
        g_free(k);
    }
    mutex_unlock(&l->mu);
    return k != NULL;
}

static void wait_for_place_locked(struct fuse_loop *l, struct reader *t) REQUIRES(l->mu)
{
    l->n_idle++;
    while (!l->stop && l->n_places >= l->places_max)
        cond_wait(&l->turn, &l->mu);
    l->n_idle--;
    l->n_places++;
    t->place = true;
}

/* False: too many wait for a place already, this one has left. */
static bool end_work(struct reader *t) EXCLUDES(t->loop->mu)
{
    struct fuse_loop *l = t->loop;
    if (t->place)
        return true;
    mutex_lock(&l->mu);
    bool leave = l->n_places >= l->places_max && l->n_idle >= IDLE_MAX && !l->stop;
    if (leave) {
        (void)pthread_detach(pthread_self()); /* fuse_loop_join() will not know it any more */
        l->n_threads--;
        free(t->small);
        free(t->large.pages);
        t->used = false;
    } else {
        wait_for_place_locked(l, t);
    }
    mutex_unlock(&l->mu);
    return !leave;
}

/* ---- INTERRUPT ---- */

static void answer(struct fuse_loop *l, uint64_t unique, int error)
{
    const struct fuse_out_header out = {.len = sizeof(out), .error = error, .unique = unique};
    ssize_t n = write(fuse_session_fd(l->se), &out, sizeof(out));
    if (n < 0)
        log_debug("fuse", "an answer found nobody unique=%" G_GUINT64_FORMAT, unique);
}

static int of_unique(const void *kept, const void *unique)
{
    const struct fuse_in_header *in = (const void *)((const struct kept *)kept)->at.buf;
    return in->unique != *(const uint64_t *)unique;
}

/* Whether the request that the program waits for is known here. */
static bool interrupt_locked(struct fuse_loop *l, uint64_t unique) REQUIRES(l->mu)
{
    mutex_assert_held(&l->mu);
    for (unsigned i = 0; i < READERS_MAX; i++) {
        struct reader *t = &l->readers[i];
        if (t->used && t->unique == unique) {
            patience_ask(&t->patience);
            return true;
        }
    }
    GList *link = g_queue_find_custom(&l->kept, &unique, of_unique);
    if (!link)
        return false;
    ((struct kept *)link->data)->asked = l->asked = true;
    cond_broadcast(&l->changed);
    return true;
}

static void interrupt(struct fuse_loop *l, const char *msg, size_t len)
{
    const struct fuse_in_header *in = (const void *)msg;
    const struct fuse_interrupt_in *arg = (const void *)(msg + sizeof(*in));
    if (len < sizeof(*in) + sizeof(*arg))
        return;
    mutex_lock(&l->mu);
    bool known = interrupt_locked(l, arg->unique);
    mutex_unlock(&l->mu);
    if (!known) /* answered, or between read() and taking on: the kernel sends this again if it still waits */
        answer(l, in->unique, -EAGAIN);
}

/* ---- programs of requests that are kept ---- */

struct asker {
    uint64_t unique;
    int tid;
};

/* A close has to be carried out, and what was sent again may have been. */
static GArray *askers_locked(struct fuse_loop *l) REQUIRES(l->mu)
{
    GArray *list = g_array_new(FALSE, FALSE, sizeof(struct asker));
    for (const GList *link = l->kept.head; link; link = link->next) {
        const struct kept *k = link->data;
        const struct fuse_in_header *in = (const void *)k->at.buf;
        const struct asker a = {in->unique, (int)in->pid};
        if (k->asked && in->opcode != FUSE_FLUSH && !is_patient(in->opcode) && !request_resent(in->unique))
            g_array_append_val(list, a);
    }
    return list;
}

/* False: a thread has taken it on. */
static bool drop_kept(struct fuse_loop *l, uint64_t unique) EXCLUDES(l->mu)
{
    mutex_lock(&l->mu);
    GList *link = g_queue_find_custom(&l->kept, &unique, of_unique);
    if (link) {
        struct kept *k = link->data;
        g_queue_delete_link(&l->kept, link);
        l->kept_bytes -= kept_size(k->len);
        free(k->at.pages);
        g_free(k);
    }
    mutex_unlock(&l->mu);
    return link;
}

/* Ends what is kept, and so not begun, for programs that do not wait any more. */
static void look_at_kept(struct fuse_loop *l) EXCLUDES(l->mu)
{
    mutex_lock(&l->mu);
    l->asked = false;
    g_autoptr(GArray) list = askers_locked(l);
    mutex_unlock(&l->mu);
    for (unsigned i = 0; i < list->len; i++) {
        const struct asker *a = &g_array_index(list, struct asker, i);
        if (patience_of_task_is_over(a->tid) && drop_kept(l, a->unique))
            answer(l, a->unique, -EINTR);
    }
}

/* ---- the thread ---- */

static void handle(struct reader *t)
{
    const struct fuse_in_header *in = (const void *)t->msg;
    if (in->opcode == FUSE_INTERRUPT) {
        interrupt(t->loop, t->msg, t->msg_len);
        return;
    }
    t->busy->opcode = in->opcode;
    t->busy->unique = in->unique;
    t->busy->since_ns = clock_mono_ns();
    request_begin(in->unique, (unsigned)(t - t->loop->readers));
    request_on_wait(on_wait, t);
    fuse_session_process_buf(t->loop->se, &(struct fuse_buf){.mem = t->msg, .size = t->msg_len});
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
    while (begin_read(t)) {
        ssize_t n = RET_ERRNO(read(fuse_session_fd(l->se), t->large.buf, BUFFER_BYTES));
        const struct fuse_in_header *in = (const void *)t->large.buf;
        if (n >= 0 && n < (ssize_t)sizeof(*in))
            n = -EIO;
        if (!end_read(t, n))
            continue;
        do
            handle(t);
        while (next_kept(t));
        if (!end_work(t))
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
    t->small = aligned_alloc(PAGE, SMALL_PAGES);
    if (!t->small)
        return -ENOMEM;
    t->busy->since_ns = 0;
    int r = thread_start(&t->thread, "fuse", reader_main, t);
    if (r < 0) {
        free(t->small);
        return r;
    }
    t->used = t->place = true;
    l->n_threads++;
    l->n_places++;
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
    while (!l->stop) {
        uint64_t next = clock_mono_ns() + LOOK_NS;
        while (!l->stop && !l->asked && cond_wait_until(&l->changed, &l->mu, next))
            ; /* a thread has left */
        mutex_unlock(&l->mu);
        look_at_kept(l);
        mutex_lock(&l->mu);
    }
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
            free(t->small);
            free(t->large.pages);
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
