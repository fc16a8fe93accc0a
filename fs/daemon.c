/*
 * The daemon: fs_open() plus the kernel's side. The thread that calls fs_run() runs libfuse's loop; a second one waits for signals, because a stop must first release
 * what waits for the store, or the loop would wait for it; a third reports that the mount answers.
 */
#include "daemon.h"

#include "core.h"
#include "ctl.h"
#include "ctl_verbs.h"
#include "http.h"
#include "op.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define FUSE_THREADS_MAX 256
#define READ_AHEAD_KB    "1024"

struct daemon {
    struct fs *fs;
    int ready_fd;
    pthread_t loop, signals, ready;
    bool have_signals, have_ready;
    int ready_r; /* set by the ready thread: 0, or why the mount does not answer */
    struct ctl *ctl;
    struct http_server *http;
};

static void say(void *ctx, const char *line)
{
    struct daemon *d = ctx;
    if (d->ready_fd >= 0)
        dprintf(d->ready_fd, "%s\n", line);
}

/* ---- signals ---- */

static void wake(int sig)
{
}

static void *signal_thread(void *arg)
{
    struct daemon *d = arg;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR2);
    int sig = 0;
    while (sigwait(&set, &sig) == 0 && sig == SIGHUP)
        ; /* a terminal that goes away is not a reason to unmount */
    if (sig != SIGUSR2)
        log_notice("mount", "stopping on signal %d", sig);
    fs_interrupt(d->fs);
    fuse_session_exit(d->fs->se);
    pthread_kill(d->loop, SIGUSR1); /* the loop waits on a semaphore that only a signal interrupts */
    return NULL;
}

/* Before any thread is made, those of libraries included: a signal must find only the thread that waits for it. */
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
    d->loop = pthread_self();
    int r = thread_start(&d->signals, "signals", signal_thread, d);
    d->have_signals = r == 0;
    return r;
}

void fs_request_stop(struct fs *fs)
{
    kill(getpid(), SIGTERM);
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

static char *mount_options(struct fs *fs)
{
    g_auto(GStrv) parts = g_strsplit(objstore_source(fs->store), ",", -1);
    g_autofree char *name = g_strjoinv("\\,", parts);
    return g_strdup_printf("default_permissions,nosuid,nodev,subtype=sluice,fsname=%s%s%s%s", name,
                           fs->cfg->allow_other ? ",allow_other" : "", fs->cfg->read_only ? ",ro" : "",
                           fs->cfg->noexec ? ",noexec" : "");
}

static int make_session(struct daemon *d, char **ret_msg)
{
    struct fs *fs = d->fs;
    g_autofree char *opts = mount_options(fs);
    char *argv[] = {(char[]){"sluice"}, (char[]){"-o"}, opts, fs->cfg->debug_fuse ? (char[]){"-d"} : NULL, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(fs->cfg->debug_fuse ? 4 : 3, argv);
    fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
    if (fs->se)
        return 0;
    *ret_msg = g_strdup("libfuse refused the mount options");
    return -EINVAL;
}

static int mount_session(struct daemon *d, char **ret_msg)
{
    struct fs *fs = d->fs;
    if (fuse_session_mount(fs->se, fs->mountpoint) != 0) {
        *ret_msg = g_strdup_printf(
            "cannot mount on %s: is /dev/fuse there, and are you root or is fusermount3 installed?", fs->mountpoint);
        return -EPERM;
    }
    return 0;
}

/* Reads that are not passed through to the cache disk are limited by the kernel's read-ahead, 128 KiB unless told otherwise. */
static void set_read_ahead(const struct stat *st)
{
    char path[96];
    g_snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(st->st_dev), minor(st->st_dev));
    FILE *f = fopen(path, "we");
    bool set = f && fputs(READ_AHEAD_KB, f) >= 0;
    if ((f && fclose(f) != 0) || !set) /* what is buffered is written by the close */
        log_debug("mount", "read-ahead stays at the kernel's default: %s", path);
}

static void *ready_thread(void *arg)
{
    struct daemon *d = arg;
    struct stat st;
    int r = RET_ERRNO(stat(d->fs->mountpoint, &st)); /* answered by our own loop */
    if (r == 0) {
        set_read_ahead(&st);
        say(d, "ok");
        log_notice("mount", "mounted source='%s' at='%s' cache='%s'", objstore_source(d->fs->store), d->fs->mountpoint,
                   d->fs->cache_dir);
    } else if (!atomic_load(&d->fs->stopping)) {
        d->ready_r = r;
        fs_request_stop(d->fs);
    }
    return NULL;
}

static void refresh(void *ctx)
{
    fs_refresh_gauges(ctx);
}

static int start_services(struct daemon *d, char **ret_msg)
{
    struct fs *fs = d->fs;
    int r = ctl_start(fs, fs->mountpoint, ctl_verbs, &d->ctl);
    if (r < 0) {
        *ret_msg = g_strdup_printf("cannot open the control socket for %s: %s", fs->mountpoint, err_text(r));
        return r;
    }
    if (fs->cfg->http)
        r = http_start(fs->cfg->http, refresh, fs, &d->http, ret_msg);
    if (r == 0)
        r = fs_start(fs);
    if (r == 0) {
        r = thread_start(&d->ready, "ready", ready_thread, d);
        d->have_ready = r == 0;
    }
    return r;
}

static int serve(struct daemon *d, char **ret_msg)
{
    int r = make_session(d, ret_msg);
    if (r == 0) /* not before: a signal that waits already ends the session */
        r = start_signals(d);
    if (r == 0)
        r = mount_session(d, ret_msg);
    if (r == 0)
        r = start_services(d, ret_msg);
    if (r < 0)
        return r;
    struct fuse_loop_config *cfg = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(cfg, FUSE_THREADS_MAX);
    fuse_loop_cfg_set_idle_threads(cfg, 16);
    int ended = fuse_session_loop_mt(d->fs->se, cfg);
    fuse_loop_cfg_destroy(cfg);
    if (ended < 0)
        log_warn("mount", "the kernel connection ended with %s", err_name(ended));
    return 0;
}

static void stop(struct daemon *d)
{
    struct fs *fs = d->fs;
    fs_interrupt(fs);
    if (fs->se)
        fuse_session_unmount(fs->se);
    if (d->have_ready)
        pthread_join(d->ready, NULL);
    if (d->have_signals) {
        pthread_kill(d->signals, SIGUSR2);
        pthread_join(d->signals, NULL);
    }
    ctl_stop(d->ctl);
    http_stop(d->http);
    struct fuse_session *se = fs->se;
    fs_close(fs);
    if (se)
        fuse_session_destroy(se);
}

int fs_run(struct config *cfg, int ready_fd, char **ret_msg)
{
    struct daemon d = {.ready_fd = ready_fd};
    protect_process();
    umask(077);
    block_signals();
    const struct fs_setup setup = {.cfg = cfg, .say = say, .ctx = &d};
    int r = fs_open(&setup, &d.fs, ret_msg);
    if (r < 0)
        return r;
    r = serve(&d, ret_msg);
    stop(&d);
    if (r == 0)
        r = d.ready_r;
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("cannot serve %s: %s", cfg->mountpoint, err_text(r));
    log_notice("mount", "unmounted");
    return r;
}
