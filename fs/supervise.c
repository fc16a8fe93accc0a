/*
 * See supervise.h. No GLib main loop, no threads, no lock: one poll() over signals, the channel and the worker's pidfd.
 *
 * A worker that dies before the mount was served once is a failed start; later deaths bring a new worker, at once and then more and more slowly. After
 * DEATHS_MAX of them in a row, none of which served for cfg->settle_ns, the connection is closed: the mount is dead, as without a supervisor, and says so.
 */
#define FUSE_USE_VERSION 317
#include "supervise.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "channel.h"
#include "ctl.h"
#include "ctl_proto.h"
#include "notifier.h"
#include "objstore.h"
#include "program.h"
#include "session.h"

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEATHS_MAX       5u
#define HANDOVER_NS      (5 * NS_PER_S)   /* for requests to come to their end; the rest is done again */
#define TRIAL_NS         (10 * NS_PER_S)  /* for another program to serve */
#define BEAT_LOOKS       10u              /* looks for a sign of life, evenly over cfg->watchdog_ns */
#define START_LOOKS      (4 * BEAT_LOOKS) /* before it serves: its disk alone may take that long */
#define DEADLINE_LOOK_MS 100
#define NOTIFIER_NS      NS_PER_S /* for a worker that takes the mount away, and the notifier before, to say so */
#define DELAY_NS         (300 * NS_PER_MS) /* before the second worker in a row, twice that before the third, ... */

struct supervisor {
    const struct config *cfg;
    int ready_fd;
    int exe_fd, config_fd, session_fd, signal_fd;
    int memory_fd;           /* of the cache's memory tier; -1: none yet */
    struct fuse_session *se; /* NULL: not mounted */
    int listen_fd;
    pid_t notifier; /* 0: none */
    int notify_fd, notifier_pidfd;
    uint64_t notifier_gone_ns; /* it ended, though nobody told it to; 0: it did not */
    struct session *session;
    bool served;   /* a worker has served */
    bool stopping; /* somebody wants the mount to go */
    unsigned deaths;
    char *failure;             /* what the last worker said */
    int next_fd;               /* the program that is to take over, -1 none */
    bool handing_over, trying; /* the worker is to make room for it; it has not served yet */
    uint64_t deadline_ns;      /* of either, 0 none */

    /* the worker */
    pid_t pid; /* 0: none */
    int pidfd, channel;
    bool ready, ending;
    uint64_t ready_ns;
    uint64_t sign; /* of life, as of the last look, and looks since that found no other */
    unsigned n_silent;
};

/* ---- what all workers share ---- */

static int make_memfd(const char *name, const char *bytes, size_t len)
{
    CLEANUP_FD int fd = RET_ERRNO(memfd_create(name, MFD_CLOEXEC));
    if (fd >= 0 && len > 0 && write(fd, bytes, len) != (ssize_t)len)
        return -errno;
    return steal_fd(&fd);
}

static int make_session_memory(struct supervisor *s)
{
    int r = s->session_fd = make_memfd("sluice-session", NULL, 0);
    return r < 0 ? r : session_map(s->session_fd, true, &s->session);
}

static int catch_signals(struct supervisor *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -errno;
    return s->signal_fd = RET_ERRNO(signalfd(-1, &set, SFD_CLOEXEC));
}

static int prepare(struct supervisor *s)
{
    g_autoptr(GString) text = g_string_new(NULL);
    config_save(s->cfg, text);
    int r = s->exe_fd = RET_ERRNO(open("/proc/self/exe", O_PATH | O_CLOEXEC));
    if (r >= 0)
        r = s->config_fd = make_memfd("sluice-options", text->str, text->len);
    if (r >= 0)
        r = make_session_memory(s);
    if (r >= 0)
        r = catch_signals(s);
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none); /* as the worker */
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    objstore_forget_env();
    return r < 0 ? r : RET_ERRNO(chdir("/"));
}

/* ---- the mount ---- */

static int mount_at(struct supervisor *s, char *options, char **ret_msg)
{
    static const struct fuse_lowlevel_ops no_ops;
    const char *mountpoint = s->cfg->mountpoint;
    char *argv[] = {(char[]){"sluice"}, (char[]){"-o"}, options, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    s->se = fuse_session_new(&args, &no_ops, sizeof(no_ops), NULL);
    fuse_opt_free_args(&args);
    if (!s->se) {
        *ret_msg = g_strdup("libfuse refused the mount options");
        return -EINVAL;
    }
    if (fuse_session_mount(s->se, mountpoint) == 0)
        return 0;
    *ret_msg = g_strdup_printf("cannot mount on %s: is /dev/fuse there, and are you root or is fusermount3 installed?",
                               mountpoint);
    fuse_session_destroy(s->se);
    s->se = NULL;
    return -EPERM;
}

static bool is_connected(const struct supervisor *s)
{
    struct pollfd p = {.fd = s->se ? fuse_session_fd(s->se) : -1};
    return s->se && !(poll(&p, 1, 0) == 1 && (p.revents & POLLERR));
}

static int begin_listen(struct supervisor *s, char **ret_msg)
{
    int r = s->listen_fd < 0 ? ctl_listen(s->cfg->mountpoint, &s->listen_fd) : 0;
    if (r < 0)
        *ret_msg = g_strdup_printf("cannot open the control socket for %s: %s", s->cfg->mountpoint, err_text(r));
    return r;
}

/* The socket first: who sees the mount may ask it something at once. */
static int connect_mount(struct supervisor *s, char *options, char **ret_msg)
{
    if (s->notify_fd >= 0)
        return 0;
    int r = begin_listen(s, ret_msg);
    if (r == 0 && !s->se)
        r = mount_at(s, options, ret_msg);
    if (r < 0)
        return r;
    r = notifier_start(fuse_session_fd(s->se), &s->notifier, &s->notify_fd);
    if (r < 0) {
        *ret_msg = g_strdup_printf("cannot start a process: %s", err_text(r));
        return r;
    }
    s->notifier_pidfd = RET_ERRNO((int)syscall(SYS_pidfd_open, s->notifier, 0)); /* < 0: its end is not noticed */
    g_autofree char *failed = ctl_failed_path_of(s->cfg->mountpoint, geteuid());
    (void)unlink(failed); /* of a mount before this one, if at all */
    return 0;
}

/* Ends all waits of the kernel for an answer. */
static void abort_connection(const struct supervisor *s)
{
    char path[64];
    struct statx st; /* asks for nothing that the kernel would have to ask a worker */
    if (statx(AT_FDCWD, s->cfg->mountpoint, AT_STATX_DONT_SYNC | AT_SYMLINK_NOFOLLOW, 0, &st) < 0)
        return;
    g_snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", st.stx_dev_minor);
    CLEANUP_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "1", 1) != 1)
        log_err("mount", "programs in the mount may hang: cannot write %s", path);
}

static void forget_notifier(struct supervisor *s)
{
    s->notifier = 0;
    s->notifier_gone_ns = 0;
    (void)close(s->notify_fd);
    if (s->notifier_pidfd >= 0)
        (void)close(s->notifier_pidfd);
    s->notify_fd = s->notifier_pidfd = -1;
}

static void end_notifier(struct supervisor *s)
{
    if (s->notifier <= 0)
        return;
    if (notifier_end(s->notifier) < 0) {
        abort_connection(s); /* that lets it go */
        (void)waitpid(s->notifier, NULL, WNOHANG);
    }
    forget_notifier(s);
}

/* The mount goes away with its connection, and so does the control socket. */
static void disconnect(struct supervisor *s, bool unmount)
{
    end_notifier(s);
    if (s->listen_fd >= 0) {
        ctl_unlisten(s->cfg->mountpoint);
        (void)close(s->listen_fd);
        s->listen_fd = -1;
    }
    if (!s->se)
        return;
    if (unmount)
        fuse_session_unmount(s->se);
    fuse_session_destroy(s->se); /* closes the connection */
    s->se = NULL;
}

/* ---- starting a worker ---- */

/* The child: never returns. Only what is safe after a fork. A stop waits until the worker, which blocks it too, looks for it: it is to end the mount, not to die of it. */
static void become_worker(const struct supervisor *s, int channel)
{
    char fds[64];
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    (void)sigprocmask(SIG_SETMASK, &stops, NULL);
    const int keep[] = {channel, s->config_fd, s->session_fd, s->memory_fd};
    for (unsigned i = 0; i < G_N_ELEMENTS(keep); i++)
        (void)fcntl(keep[i], F_SETFD, 0); /* fails where there is none */
    (void)snprintf(fds, sizeof(fds), "%d,%d,%d,%d", keep[0], keep[1], keep[2], keep[3]);
    char *source = s->cfg->source ? s->cfg->source : (char[]){"links"}; /* for process lists */
    char *argv[] = {(char[]){"sluice"}, (char[]){"--worker"}, fds, source, s->cfg->mountpoint, NULL};
    objstore_recall_env();
    program_exec(s->trying ? s->next_fd : s->exe_fd, argv);
    static const char said[] = "xthe program cannot be run again";
    (void)!write(channel, said, sizeof(said) - 1);
    _exit(1);
}

static int start_worker(struct supervisor *s)
{
    int ends[2];
    int r = channel_pair(ends);
    if (r < 0)
        return r;
    g_clear_pointer(&s->failure, g_free);
    s->ready = s->ending = false;
    s->n_silent = 0;
    pid_t pid = RET_ERRNO(fork());
    if (pid == 0)
        become_worker(s, ends[1]);
    (void)close(ends[1]);
    int pidfd = pid < 0 ? pid : RET_ERRNO((int)syscall(SYS_pidfd_open, pid, 0));
    if (pidfd < 0) {
        (void)close(ends[0]);
        if (pid > 0 && kill(pid, SIGKILL) == 0)
            (void)waitpid(pid, NULL, 0);
        return pidfd;
    }
    s->pid = pid;
    s->pidfd = pidfd;
    s->channel = ends[0];
    return 0;
}

/* ---- what it says ---- */

static void say(const struct supervisor *s, const char *line)
{
    if (s->ready_fd >= 0)
        dprintf(s->ready_fd, "%s\n", line);
}

static void answer_connect(struct supervisor *s, char *options)
{
    g_autofree char *msg = NULL;
    int r = connect_mount(s, options, &msg);
    const int fds[CHANNEL_FDS] = {s->se ? fuse_session_fd(s->se) : -1, s->listen_fd, s->notify_fd};
    if (r == 0)
        r = channel_send_fds(s->channel, CHANNEL_CONNECTION, fds, CHANNEL_FDS);
    else
        r = channel_send(s->channel, CHANNEL_REFUSED, msg);
    if (r < 0)
        log_debug("mount", "the worker is gone already r=%s", err_name(r));
}

/* The worker ends for good, and takes the time that it takes. */
static void forget_next_program(struct supervisor *s)
{
    s->handing_over = s->trying = false;
    s->deadline_ns = 0;
    if (s->next_fd >= 0)
        (void)close(s->next_fd);
    s->next_fd = -1;
}

static void answer_upgrade(struct supervisor *s, const char *path)
{
    g_autofree char *msg = NULL;
    bool over = s->ending || s->stopping;
    const char *why = over ? "the mount is being taken away" : "an upgrade is on its way";
    int r = over || s->handing_over || s->trying ? -EBUSY : program_open(path, &s->next_fd, &msg);
    if (r < 0) {
        r = channel_send(s->channel, CHANNEL_REFUSED, msg ? msg : why);
    } else {
        s->handing_over = true;
        s->deadline_ns = clock_mono_ns() + HANDOVER_NS;
        r = channel_send(s->channel, CHANNEL_HANDOVER, "");
    }
    if (r < 0)
        log_debug("mount", "the worker is gone already r=%s", err_name(r));
}

static void keep_next_program(struct supervisor *s)
{
    (void)close(s->exe_fd);
    s->exe_fd = s->next_fd;
    s->next_fd = -1;
    s->trying = false;
    s->deadline_ns = 0;
    log_notice("mount", "another program serves from here on pid=%d", (int)s->pid);
}

static void note_ready(struct supervisor *s)
{
    if (s->trying)
        keep_next_program(s);
    s->ready = true;
    s->ready_ns = clock_mono_ns();
    if (!s->served)
        say(s, "ok");
    s->served = true;
}

/* One message. False when there is none. */
static bool take_message(struct supervisor *s)
{
    struct channel_message m;
    if (channel_receive(s->channel, false, &m) < 0)
        return false;
    switch (m.kind) {
    case CHANNEL_PROGRESS:
        say(s, m.text);
        break;
    case CHANNEL_CONNECT:
        answer_connect(s, m.text);
        break;
    case CHANNEL_MEMORY:
        if (s->memory_fd >= 0)
            (void)close(s->memory_fd);
        s->memory_fd = m.fds[0];
        m.fds[0] = -1;
        break;
    case CHANNEL_STORE: /* a text that was cut counts as none */
        if (!g_setenv(CHANNEL_STORE_ENV, m.text, true))
            log_err("mount", "the next worker will not know how the store is reached");
        break;
    case CHANNEL_READY:
        note_ready(s);
        break;
    case CHANNEL_ENDING:
        s->ending = true;
        forget_next_program(s);
        disconnect(s, true);
        break;
    case CHANNEL_FAILED:
        g_free(s->failure);
        s->failure = g_strdup(m.text);
        break;
    case CHANNEL_UPGRADE:
        answer_upgrade(s, m.text);
        break;
    case CHANNEL_CONNECTION:
    case CHANNEL_HANDOVER:
    case CHANNEL_REFUSED:
        log_err("mount", "the worker said what only we say");
        break;
    }
    channel_message_close(&m);
    return true;
}

/* ---- its end ---- */

static char *describe_end(const struct supervisor *s, int status)
{
    const char *log = s->cfg->log_file;
    g_autofree char *where = g_strdup_printf(" while it started%s%s", log ? "; see " : "", log ? log : "");
    const char *more = s->ready ? "" : where;
    if (s->failure)
        return g_strdup(s->failure);
    if (WIFSIGNALED(status))
        return g_strdup_printf("the daemon was ended by signal %d%s", WTERMSIG(status), more);
    return g_strdup_printf("the daemon ended%s", more);
}

static void reap(struct supervisor *s, int *ret_status)
{
    while (take_message(s))
        ;
    while (waitpid(s->pid, ret_status, 0) < 0 && errno == EINTR)
        ;
    (void)close(s->channel);
    (void)close(s->pidfd);
    s->pid = 0;
    s->channel = s->pidfd = -1;
}

static void take_signal(struct supervisor *s)
{
    struct signalfd_siginfo info;
    if (read(s->signal_fd, &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGHUP)
        return; /* a terminal that goes away is not a reason to unmount */
    s->stopping = true;
    if (s->pid > 0)
        (void)kill(s->pid, SIGTERM);
}

/* Waits, but not when told to stop. */
static void pause_before_next(struct supervisor *s)
{
    uint64_t until = clock_mono_ns() + (s->deaths - 1) * DELAY_NS, now;
    while (!s->stopping && (now = clock_mono_ns()) < until) {
        struct pollfd p = {.fd = s->signal_fd, .events = POLLIN};
        if (poll(&p, 1, (int)((until - now) / NS_PER_MS) + 1) == 1)
            take_signal(s);
    }
}

/* The mount stays behind, dead: those who use it learn of it, and `sluice umount` clears it and says why. */
static void give_up(struct supervisor *s, const char *why)
{
    g_autofree char *path = ctl_failed_path_of(s->cfg->mountpoint, geteuid());
    if (!g_file_set_contents(path, why, -1, NULL))
        log_debug("mount", "nobody will find out from %s", path);
    disconnect(s, false);
}

/* The worker made room for the next program, or that one did not come to serve. */
static int start_other_program(struct supervisor *s, const char *why)
{
    s->trying = s->handing_over;
    s->handing_over = false;
    s->deadline_ns = s->trying ? clock_mono_ns() + TRIAL_NS : 0;
    if (!s->trying) {
        log_err("mount", "the other program does not serve, the one before it goes on: %s", why);
        (void)close(s->next_fd);
        s->next_fd = -1;
    }
    return start_worker(s);
}

/* The mount is to go or gone, and the worker made room for another program, or that did not come to serve: what is left to do before, one of ours does. */
static int start_last(struct supervisor *s)
{
    forget_next_program(s);
    int r = start_worker(s);
    if (r == 0)
        (void)kill(s->pid, SIGTERM);
    return r;
}

/* As replace_worker(). */
static int start_next(struct supervisor *s, const char *why, char **ret_msg)
{
    int r = -EIO;
    while (r < 0 && ++s->deaths <= DEATHS_MAX) {
        log_err("mount", "%s; another one takes over deaths=%u", why, s->deaths);
        pause_before_next(s);
        r = s->stopping ? 1 : start_worker(s);
        why = "no process could be started";
    }
    if (r < 0) {
        *ret_msg = g_strdup_printf("%s; the mount is given up after %u daemons in a row", why, s->deaths);
        give_up(s, *ret_msg);
    }
    return r;
}

/* A worker has ended. 0: another one runs; 1: all is over and well; else -errno. */
static int replace_worker(struct supervisor *s, char **ret_msg)
{
    int status = 0;
    reap(s, &status);
    bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if ((s->handing_over || s->trying) && !s->ending && (s->stopping || !is_connected(s)))
        return start_last(s);
    if (well && (s->ending || s->stopping || !is_connected(s)))
        return 1;
    g_autofree char *why = describe_end(s, status);
    if (!s->served || s->ending || s->stopping || !is_connected(s)) {
        *ret_msg = g_steal_pointer(&why);
        return -EIO;
    }
    if ((s->handing_over || s->trying) && start_other_program(s, why) == 0)
        return 0;
    if (s->ready && clock_mono_ns() - s->ready_ns >= s->cfg->settle_ns)
        s->deaths = 0;
    return start_next(s, why, ret_msg);
}

/* ---- its life ---- */

static void log_busy(const struct supervisor *s)
{
    uint64_t now = clock_mono_ns();
    for (unsigned i = 0; i < SESSION_BUSY; i++) {
        struct sess_busy busy = s->session->head->busy[i];
        uint64_t ms = now > busy.since_ns ? (now - busy.since_ns) / NS_PER_MS : 0;
        if (busy.since_ns)
            log_err("mount", "busy opcode=%u unique=%" G_GUINT64_FORMAT " ms=%" G_GUINT64_FORMAT, busy.opcode,
                    busy.unique, ms);
    }
}

/* Adds a number of /proc/PID/FILE, so many words behind `after`. False: it cannot be read. */
static bool add_count(pid_t pid, const char *file, const char *after, unsigned skip, uint64_t *sum)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/%s", (int)pid, file), *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return false;
    const char *at = strstr(text, after);
    at = at ? at + strlen(after) : NULL;
    for (; at && skip > 0; skip--)
        at = (at = strchr(at, ' ')) ? at + 1 : NULL;
    *sum += at ? strtoull(at, NULL, 10) : 0;
    return at;
}

/* Changes while a worker that does not serve yet does something: CPU time of all its threads, and how often the first one, which does the most, had to wait for a disk, say. */
static uint64_t work_done(pid_t pid)
{
    enum { UTIME = 11, STIME = 12 }; /* words of "stat", 0 is the first behind the name */
    uint64_t n = 0;
    bool known = add_count(pid, "stat", ") ", UTIME, &n) && add_count(pid, "stat", ") ", STIME, &n) &&
                 add_count(pid, "status", "\nvoluntary_ctxt_switches:\t", 0, &n);
    return known ? n : clock_mono_ns();
}

/* Counts looks instead of time: a machine or a supervisor that was stopped for a while says nothing about the worker. One that comes up for the first time may wait for the store. */
static void look_at_beat(struct supervisor *s)
{
    bool looks = s->pid > 0 && !s->ending && (s->served || s->stopping);
    uint64_t sign = !looks ? 0 : s->ready ? atomic_load(&s->session->head->beat_ns) : work_done(s->pid);
    s->n_silent = looks && sign == s->sign ? s->n_silent + 1 : 0;
    s->sign = sign;
    if (s->n_silent != (s->ready ? BEAT_LOOKS : START_LOOKS))
        return; /* once is enough: a process that its disk does not let go ends when that does */
    log_err("mount", "the daemon shows no sign of life%s pid=%d; it is ended", s->ready ? "" : " while it starts",
            (int)s->pid);
    log_busy(s);
    (void)kill(s->pid, SIGKILL);
}

/* Without it no change is told to the kernel any more. Another one comes with another worker, which finds that not all was told (notify_take_over()). */
static void replace_notifier(struct supervisor *s)
{
    if (s->ending || s->stopping || !is_connected(s))
        return;
    log_err("mount", "who tells the kernel of changes has ended; the daemon is replaced pid=%d", (int)s->pid);
    (void)waitpid(s->notifier, NULL, WNOHANG);
    forget_notifier(s);
    if (s->pid > 0)
        (void)kill(s->pid, SIGKILL);
    (void)atomic_fetch_add(&s->session->head->notes_said, 1); /* what it had not handed on yet */
}

/* ---- the whole ---- */

static int watch(struct supervisor *s, char **ret_msg)
{
    uint64_t look_ns = s->cfg->watchdog_ns / BEAT_LOOKS, next_look_ns = 0;
    int r = 0, look_ms = look_ns ? MAX((int)(look_ns / NS_PER_MS), 100) : -1;
    while (r == 0) {
        struct pollfd p[] = {{.fd = s->signal_fd, .events = POLLIN},
                             {.fd = s->channel, .events = POLLIN},
                             {.fd = s->pidfd, .events = POLLIN},
                             {.fd = s->notifier_gone_ns ? -1 : s->notifier_pidfd, .events = POLLIN}};
        bool due = s->deadline_ns || s->notifier_gone_ns;
        if (poll(p, G_N_ELEMENTS(p), due ? DEADLINE_LOOK_MS : look_ms) < 0)
            continue;
        if (s->deadline_ns && clock_mono_ns() >= s->deadline_ns) {
            s->deadline_ns = 0;
            (void)kill(s->pid, SIGKILL);
        }
        if (look_ns && clock_mono_ns() >= next_look_ns) {
            look_at_beat(s);
            next_look_ns = clock_mono_ns() + look_ns;
        }
        if (p[3].revents)
            s->notifier_gone_ns = clock_mono_ns();
        if (s->notifier_gone_ns && clock_mono_ns() - s->notifier_gone_ns >= NOTIFIER_NS)
            replace_notifier(s);
        if (p[0].revents)
            take_signal(s);
        if (p[1].revents & POLLIN)
            (void)take_message(s);
        else if (p[1].revents) /* what its end means tells the pidfd */
            (void)poll(&p[2], 1, DEADLINE_LOOK_MS);
        if (p[2].revents)
            r = replace_worker(s, ret_msg);
    }
    return r < 0 ? r : 0;
}

int supervise(const struct config *cfg, int ready_fd, char **ret_msg)
{
    struct supervisor s = {.cfg = cfg,
                           .ready_fd = ready_fd,
                           .exe_fd = -1,
                           .config_fd = -1,
                           .session_fd = -1,
                           .signal_fd = -1,
                           .memory_fd = -1,
                           .next_fd = -1,
                           .listen_fd = -1,
                           .notify_fd = -1,
                           .notifier_pidfd = -1,
                           .pidfd = -1,
                           .channel = -1};
    int r = prepare(&s);
    if (r == 0)
        r = start_worker(&s);
    if (r == 0)
        r = watch(&s, ret_msg);
    disconnect(&s, true);
    const int fds[] = {s.memory_fd, s.next_fd, s.exe_fd, s.config_fd, s.session_fd, s.signal_fd};
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    session_unmap(s.session);
    g_free(s.failure);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("cannot serve %s: %s", cfg->mountpoint, err_text(r));
    return r;
}
