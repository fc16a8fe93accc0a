/*
 * The worker: fs_open() plus the kernel's side, whose connection the supervisor made (supervise.h). The thread that calls fs_work() waits for the end of the loop
 * that serves requests; a second one waits for signals and the supervisor's end, because a stop must first release what waits for the store, or the
 * loop would wait for it.
 */
#include "daemon.h"

#include "base/cleanup.h"
#include "beat.h"
#include "channel.h"
#include "core.h"
#include "ctl.h"
#include "ctl_verbs.h"
#include "durable.h"
#include "events.h"
#include "fuse_loop.h"
#include "http.h"
#include "links.h"
#include "op.h"
#include "unmount.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define READ_AHEAD_KB "1024"
#define ARENAS_MIN    2 /* of the allocator */
#define ARENAS_MAX    8
#define GOING_AWAY    "the mount is being taken away"

struct daemon {
    struct fs *fs;
    struct session *session;
    struct fuse_loop *loop;
    struct beat *beat;
    int channel; /* to the supervisor; borrowed */
    int listen_fd, signal_fd;
    pthread_t signals;
    bool have_signals;
    struct ctl *ctl;
    struct http_server *_Atomic http; /* set once; verbs may ask for it before */
    struct events *events;

    struct mutex mu;
    /* guarded by mu */
    struct cond answered_cond;
    bool asking, answered; /* for an upgrade */
    bool handover;
    bool ending;   /* nobody listens to the supervisor any more */
    char *refusal; /* owned; NULL: none */
};

static void say(void *ctx, const char *line)
{
    struct daemon *d = ctx;
    if (channel_send(d->channel, CHANNEL_PROGRESS, line) < 0)
        log_debug("mount", "nobody hears: %s", line);
}

/* ---- signals ---- */

static void wake(int sig)
{
}

/* Whoever asked for an upgrade goes on. refusal NULL: it is granted. */
static void answer_locked(struct daemon *d, const char *refusal) REQUIRES(d->mu)
{
    mutex_assert_held(&d->mu);
    d->answered = true;
    g_free(d->refusal);
    d->refusal = g_strdup(refusal);
    cond_broadcast(&d->answered_cond);
}

static void orphaned(struct daemon *d)
{
    log_warn("mount", "the supervisor is gone: this process serves the mount to its end, and nobody will after it");
    atomic_store(&d->fs->supervisor_pid, 0);
    mutex_lock(&d->mu);
    answer_locked(d, "the supervisor is gone");
    mutex_unlock(&d->mu);
}

/* True: this process is to end, another program goes on. */
static bool take_answer(struct daemon *d)
{
    struct channel_message m;
    if (channel_receive(d->channel, false, &m) < 0)
        return false;
    channel_message_close(&m);
    mutex_lock(&d->mu);
    bool handover = d->handover = m.kind == CHANNEL_HANDOVER;
    answer_locked(d, handover ? NULL : m.text);
    mutex_unlock(&d->mu);
    return handover;
}

/* The supervisor's answers are not read any more: who waits for one would wait for ever, and the end for them. */
static void end_answers(struct daemon *d)
{
    mutex_lock(&d->mu);
    d->ending = true;
    if (!d->handover)
        answer_locked(d, GOING_AWAY);
    mutex_unlock(&d->mu);
}

/* 0: nothing that ends us. */
static uint32_t take_signal(struct daemon *d)
{
    struct signalfd_siginfo info;
    if (read(d->signal_fd, &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGHUP)
        return 0; /* a terminal that goes away is not a reason to unmount */
    return info.ssi_signo;
}

static void *signal_thread(void *arg)
{
    struct daemon *d = arg;
    struct pollfd p[] = {{.fd = d->signal_fd, .events = POLLIN}, {.fd = d->channel, .events = POLLIN}};
    uint32_t sig = 0;
    bool handover = false;
    while (sig == 0 && !handover) {
        if (poll(p, G_N_ELEMENTS(p), -1) < 0)
            continue;
        handover = p[1].revents & POLLIN && take_answer(d);
        if (p[1].revents & POLLHUP) {
            orphaned(d);
            p[1].fd = -1;
        }
        if (p[0].revents && !handover)
            sig = take_signal(d);
    }
    if (handover)
        log_notice("mount", "making room for another program");
    else if (sig != SIGUSR2)
        log_notice("mount", "stopping on signal %u", sig);
    if (!handover) /* else what waits for the store may still get it */
        fs_interrupt(d->fs);
    end_answers(d);
    fuse_loop_stop(d->loop);
    return NULL;
}

/* Before any thread is made, those of libraries included: a signal must find only the thread that waits for it. SIGUSR1 is for threads that wait for requests. */
static void block_signals(void)
{
    struct sigaction sa = {.sa_handler = wake};
    sigaction(SIGUSR1, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, SIGUSR1);
    sigdelset(&set, SIGSEGV);
    sigdelset(&set, SIGBUS);
    sigdelset(&set, SIGABRT);
    sigdelset(&set, SIGFPE);
    sigdelset(&set, SIGILL);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static int start_signals(struct daemon *d)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR2);
    int r = d->signal_fd = RET_ERRNO(signalfd(-1, &set, SFD_CLOEXEC));
    if (r >= 0)
        r = thread_start(&d->signals, "signals", signal_thread, d);
    d->have_signals = r == 0;
    return r;
}

void fs_request_stop(struct fs *fs)
{
    kill(getpid(), SIGTERM);
}

_Noreturn void fs_start_anew(struct fs *fs, const char *why)
{
    if (channel_send(fs->daemon->channel, CHANNEL_FAILED, why) < 0)
        log_debug("mount", "nobody hears: %s", why);
    _exit(1);
}

int fs_request_upgrade(struct fs *fs, const char *program, char **ret_msg)
{
    struct daemon *d = fs->daemon;
    mutex_lock(&d->mu);
    const char *why = d->ending && !d->handover  ? GOING_AWAY
                      : d->handover || d->asking ? "an upgrade is on its way"
                                                 : NULL;
    if (!why) {
        d->answered = false;
        d->asking = true;
    }
    mutex_unlock(&d->mu);
    if (why) {
        *ret_msg = g_strdup(why);
        return -EBUSY;
    }
    int r = channel_send(d->channel, CHANNEL_UPGRADE, program);
    mutex_lock(&d->mu);
    while (r == 0 && !d->answered)
        cond_wait(&d->answered_cond, &d->mu);
    d->asking = false;
    if (r < 0 || d->refusal) {
        *ret_msg = g_strdup(r < 0 ? "the supervisor is gone" : d->refusal);
        r = -EPERM;
    }
    mutex_unlock(&d->mu);
    return r;
}

/* ---- mount ---- */

/* Keys must not end up in a core file, nor be read by another process of the same user. */
static void protect_process(void)
{
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/*
 * What one thread takes another gives back: blocks of the database's cache, inodes. Each arena of the allocator keeps what became free in it, so with one for each thread a find
 * over a million names left 290 MiB, 190 with two. Threads keep small pieces of their own, and seldom meet; for a machine of many processors it is one for four.
 */
static void limit_arenas(void)
{
    (void)mallopt(M_ARENA_MAX, (int)CLAMP(g_get_num_processors() / 4, ARENAS_MIN, ARENAS_MAX));
}

static char *mount_options(struct fs *fs)
{
    g_autoptr(GString) name = g_string_new(objstore_source(fs->store));
    g_string_replace(name, "\\", "\\\\", 0); /* first: it also begins what libfuse reads as the number of a byte */
    g_string_replace(name, ",", "\\,", 0);
    return g_strdup_printf("default_permissions,nosuid,nodev,subtype=sluice,fsname=%s%s%s%s", name->str,
                           fs->cfg->allow_other ? ",allow_other" : "", fs->cfg->read_only ? ",ro" : "",
                           fs->cfg->noexec ? ",noexec" : "");
}

static int make_session(struct daemon *d, char *options, char **ret_msg)
{
    struct fs *fs = d->fs;
    char *argv[] = {(char[]){"sluice"}, (char[]){"-o"}, options, fs->cfg->debug_fuse ? (char[]){"-d"} : NULL, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(fs->cfg->debug_fuse ? 4 : 3, argv);
    fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
    fuse_opt_free_args(&args);
    if (!fs->se) {
        *ret_msg = g_strdup("libfuse refused the mount options");
        return -EINVAL;
    }
    d->loop = fuse_loop_new(fs->se, d->session, fs->cfg->op_timeout_ns, &fs->replay.caught_up);
    return 0;
}

/* The kernel's connection and the control socket, from the supervisor. */
static int ask_for_connection(struct daemon *d, const char *options, char **ret_msg)
{
    struct channel_message m;
    int r = channel_send(d->channel, CHANNEL_CONNECT, options);
    if (r == 0)
        r = channel_receive(d->channel, true, &m);
    if (r < 0)
        return r;
    if (m.kind != CHANNEL_CONNECTION || m.fds[0] < 0 || m.fds[1] < 0 || m.fds[2] < 0) {
        *ret_msg = g_strdup(m.text);
        channel_message_close(&m);
        return -EPERM;
    }
    char path[32];
    g_snprintf(path, sizeof(path), "/dev/fd/%d", m.fds[0]);
    d->listen_fd = m.fds[1];
    d->fs->notify_fd = m.fds[2];
    return fuse_session_mount(d->fs->se, path) == 0 ? 0 : -EBADF;
}

/* Reads that are not passed through to the cache disk are limited by the kernel's read-ahead, 128 KiB unless told otherwise. */
static void set_read_ahead(struct fs *fs)
{
    char path[96];
    struct statx st; /* that asks for nothing, so that the kernel need not ask us */
    if (statx(AT_FDCWD, fs->mountpoint, AT_STATX_DONT_SYNC | AT_SYMLINK_NOFOLLOW, 0, &st) < 0)
        return;
    g_snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", st.stx_dev_major, st.stx_dev_minor);
    FILE *f = fopen(path, "we");
    bool set = f && fputs(READ_AHEAD_KB, f) >= 0;
    if ((f && fclose(f) != 0) || !set) /* what is buffered is written by the close */
        log_debug("mount", "read-ahead stays at the kernel's default: %s", path);
}

static void refresh(void *ctx)
{
    fs_refresh_gauges(ctx);
}

static int start_events(struct daemon *d, char **ret_msg)
{
    const struct config *cfg = d->fs->cfg;
    bool by_certificate = cfg->http_client_ca && !cfg->immutable;
    if (!cfg->events_secret_file && !by_certificate)
        return 0;
    int r = events_open(d->fs, cfg->events_secret_file, &d->events, ret_msg);
    if (r < 0)
        return r;
    const struct http_post post = events_post(d->events);
    http_take_post(d->http, &post);
    return 0;
}

static int start_http(struct daemon *d, char **ret_msg)
{
    const struct config *cfg = d->fs->cfg;
    bool takeover = session_is_takeover(d->session);
    const struct http_setup setup = {.addr_port = cfg->http,
                                     .refresh = refresh,
                                     .ctx = d->fs,
                                     .tls = {cfg->http_cert, cfg->http_key, cfg->http_client_ca},
                                     .tls_later = takeover};
    if (!cfg->http)
        return 0;
    struct http_server *http = NULL;
    int r = http_start(&setup, &http, ret_msg);
    const char *lost = "metrics are";
    if (r == 0) {
        atomic_store(&d->http, http);
        lost = "events are";
        r = start_events(d, ret_msg);
    }
    if (r == 0 || !takeover)
        return r;
    log_err("mount", "%s not served any more: %s", lost, *ret_msg); /* programs in the mount need none */
    g_clear_pointer(ret_msg, g_free);
    return 0;
}

char *daemon_http_trouble(const struct fs *fs)
{
    struct http_server *http = fs->daemon ? atomic_load(&fs->daemon->http) : NULL;
    return http ? http_trouble(http) : NULL;
}

static int start_services(struct daemon *d, char **ret_msg)
{
    int r = ctl_start(d->fs, steal_fd(&d->listen_fd), ctl_verbs, &d->ctl);
    if (r == 0)
        r = start_http(d, ret_msg);
    return r == 0 ? fs_start(d->fs) : r;
}

/* From the first answer on the next worker must find what programs have open. */
static void hand_down(struct daemon *d)
{
    int memory_fd = cache_memory_fd(d->fs->cache);
    if (memory_fd >= 0 && channel_send_fds(d->channel, CHANNEL_MEMORY, &memory_fd, 1) < 0)
        log_debug("mount", "nobody keeps the memory tier");
    g_autofree char *resume = objstore_resume(d->fs->store);
    if (resume && channel_send(d->channel, CHANNEL_STORE, resume) < 0)
        log_debug("mount", "nobody tells the next worker of the store");
    session_started(d->session);
}

static void report_ready(struct daemon *d)
{
    struct fs *fs = d->fs;
    set_read_ahead(fs);
    log_notice("mount", "%s source='%s' at='%s' cache='%s'", session_is_takeover(d->session) ? "taken over" : "mounted",
               objstore_source(fs->store), fs->mountpoint, fs->cache_dir);
    if (channel_send(d->channel, CHANNEL_READY, "") < 0)
        log_debug("mount", "the supervisor is gone already");
}

static int serve(struct daemon *d, char **ret_msg)
{
    g_autofree char *options = mount_options(d->fs);
    int r = make_session(d, options, ret_msg);
    if (r == 0)
        r = ask_for_connection(d, options, ret_msg);
    if (r == 0)
        r = fuse_loop_greet(d->loop);
    if (r ==
        0) /* not before: a signal that waits already ends the loop, and the channel is this thread's from here on */
        r = start_signals(d);
    if (r == 0)
        r = start_services(d, ret_msg);
    if (r == 0)
        r = beat_start(d->fs, &d->beat);
    if (r == 0) {
        hand_down(d);
        r = fuse_loop_start(d->loop);
    }
    if (r == -ENODEV && session_is_takeover(d->session))
        return 0; /* unmounted while nobody served */
    if (r < 0)
        return r;
    links_serve(d->fs);
    report_ready(d);
    int ended = fuse_loop_join(d->loop);
    if (ended < 0)
        log_warn("mount", "the kernel connection ended with %s", err_name(ended));
    return 0;
}

/* Lets go of the connection, so that nobody waits for us, and has the mount taken away: by the supervisor, or without one by ourselves. */
static void leave_mount(struct daemon *d)
{
    int fd = fuse_session_fd(d->fs->se);
    struct pollfd p = {.fd = fd};
    bool gone = poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
    CLEANUP_FD int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)dup3(null, fd, O_CLOEXEC);             /* backing ids may still be on their way to it */
    (void)shutdown(d->fs->notify_fd, SHUT_RDWR); /* the notifier ends, which has the connection too */
    if (channel_send(d->channel, CHANNEL_ENDING, "") == 0)
        return;
    ctl_unlisten(d->fs->mountpoint);
    if (!gone && fs_unmount(d->fs->mountpoint, true) < 0)
        log_err("mount", "the mount cannot be taken away: sluice umount %s", d->fs->mountpoint);
}

/* A stop that came when this process had begun to make room: the supervisor has another one carry it out. */
static void pass_stop_on(struct daemon *d)
{
    sigset_t set;
    pid_t supervisor = atomic_load(&d->fs->supervisor_pid);
    bool stop = sigpending(&set) == 0 && (sigismember(&set, SIGTERM) || sigismember(&set, SIGINT));
    if (stop && supervisor > 0)
        (void)kill(supervisor, SIGTERM);
}

/* The end of a worker that another one follows: programs keep what they have open, so nothing of it is taken down. */
static _Noreturn void make_room(struct daemon *d)
{
    ctl_stop(d->ctl); /* commands get their last lines */
    int r = meta_sync(d->fs->meta);
    if (r < 0)
        log_warn("mount", "the journal could not be written to the disk r=%s", err_name(r));
    pass_stop_on(d);
    _exit(0);
}

static void stop(struct daemon *d, bool served)
{
    struct fs *fs = d->fs;
    fs_interrupt(fs);
    if (served)
        leave_mount(d);
    if (d->have_signals) {
        pthread_kill(d->signals, SIGUSR2);
        pthread_join(d->signals, NULL);
    }
    ctl_stop(d->ctl);
    http_stop(d->http);
    events_close(d->events);
    beat_stop(d->beat);
    if (served && durable_all(fs, true, NULL, NULL) < 0)
        log_err("mount", "not all unpublished bytes are on the cache disk: a power loss may take them");
    struct fuse_session *se = fs->se;
    int notify_fd = fs->notify_fd;
    fs_close(fs);
    if (notify_fd >= 0)
        close(notify_fd);
    fuse_loop_free(d->loop);
    if (se)
        fuse_session_destroy(se);
}

static int open_and_serve(struct daemon *d, const struct config *cfg, int memory_fd, char **ret_msg)
{
    const struct fs_setup setup = {.cfg = cfg,
                                   .session = d->session,
                                   .memory_fd = MAX(memory_fd, 0),
                                   .resume = getenv(CHANNEL_STORE_ENV),
                                   .say = say,
                                   .ctx = d};
    int r = fs_open(&setup, &d->fs, ret_msg);
    if (r < 0)
        return r;
    atomic_store(&d->fs->supervisor_pid, getppid());
    d->fs->daemon = d;
    r = serve(d, ret_msg);
    if (r == 0 && d->handover)
        make_room(d);
    stop(d, r == 0);
    return r;
}

int fs_work(const struct config *cfg, const struct worker_fds *fds, char **ret_msg)
{
    struct daemon d = {.channel = fds->channel, .listen_fd = -1, .signal_fd = -1};
    protect_process();
    objstore_forget_env();
    limit_arenas();
    umask(077);
    block_signals();
    mutex_init(&d.mu, LOCK_FUSE_LOOP);
    cond_init(&d.answered_cond);
    int r = session_map(fds->session, false, &d.session);
    if (r == 0)
        r = open_and_serve(&d, cfg, fds->memory, ret_msg);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("cannot serve %s: %s", cfg->mountpoint, err_text(r));
    if (r < 0 && channel_send(fds->channel, CHANNEL_FAILED, *ret_msg) < 0)
        log_err("mount", "ended: %s", *ret_msg);
    session_unmap(d.session);
    if (d.listen_fd >= 0)
        close(d.listen_fd);
    if (d.signal_fd >= 0)
        close(d.signal_fd);
    g_free(d.refusal);
    cond_fini(&d.answered_cond);
    mutex_fini(&d.mu);
    if (r == 0)
        log_notice("mount", "unmounted");
    return r;
}
