/*
 * `sluice umount [--drain[=DURATION]] DIR`: returns when the mount is gone and its daemon has ended, so that the next mount can
 * start at once. The daemon's pid comes from its socket and is held as a pidfd, so a reused number never misleads us.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/progress.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STOP_QUIET_S 300 /* the daemon tells of bytes on their way to its disk, but not of its database */
#define END_WAIT_S   60

static int clear_dead(const struct mount_point *mp)
{
    int r = mount_clear_dead(mp->path);
    if (r < 0) {
        complain("cannot unmount %s: %s", mp->path, err_text(r));
        return EXIT_FAILED;
    }
    g_autofree char *why = ctl_why_dead(mp);
    complain(
        "the daemon of %s was not running%s; the dead mount is cleared, unpublished data goes on at the next mount",
        mp->path, why);
    return EXIT_DONE;
}

static int wait_for_end(const struct mount_point *mp, int pidfd)
{
    uint64_t deadline = clock_mono_ns() + END_WAIT_S * NS_PER_S;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    while (clock_mono_ns() < deadline) {
        bool ended = pidfd < 0 ? ctl_daemon_pid(mp) < 0 : poll(&p, 1, 100) == 1;
        if (ended && !mount_exists(mp->path))
            return EXIT_DONE;
        g_usleep(20000);
    }
    complain("%s: the daemon %s after %d s", mp->path, mount_exists(mp->path) ? "still holds the mount" : "still runs",
             END_WAIT_S);
    return EXIT_FAILED;
}

/* No connection to the daemon. */
static int stop_unreachable(const struct mount_point *mp, int err, bool drain)
{
    if (!mount_is_dead(mp->path)) {
        ctl_complain_no_daemon(mp, err);
        return EXIT_FAILED;
    }
    if (!drain)
        return clear_dead(mp);
    complain("the daemon of %s is not running, so nothing is published; without --drain the dead mount is cleared, and "
             "what is left goes on at the next mount",
             mp->path);
    return EXIT_FAILED;
}

static int stop(const struct mount_point *mp, struct progress *p, bool drain, uint64_t drain_s)
{
    int code = EXIT_DONE;
    pid_t pid = ctl_daemon_pid(mp);
    if (pid < 0)
        return stop_unreachable(mp, pid, drain);
    CLEANUP_FD int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (drain) {
        code = ctl_request(mp, json_pack("{s:s,s:I}", "verb", "drain", "timeout_s", (json_int_t)drain_s), 60,
                           progress_on_line, p);
        progress_break(p);
    }
    if (code != EXIT_DONE) {
        complain("%s stays mounted; without --drain, what is left goes on at the next mount", mp->path);
        return code;
    }
    progress_restart(p, "to the cache disk");
    code = ctl_request(mp, json_pack("{s:s}", "verb", "stop"), STOP_QUIET_S, progress_on_line, p);
    progress_break(p);
    return code == EXIT_DONE ? wait_for_end(mp, pidfd) : code;
}

int cmd_umount(int argc, char **argv)
{
    struct args a;
    struct progress p;
    struct mount_point mp;
    uint64_t drain_s;
    int code;
    if (!args_parse(&a, argc, argv, 1, 1, &code))
        return code;
    if (!args_seconds(&a, "drain", &drain_s) || !progress_init(&p, &a, "publish")) {
        code = EXIT_USAGE;
    } else if (!mount_find(a.words->pdata[0], &mp)) {
        code = EXIT_FAILED;
    } else {
        g_autofree char *path = path_canonical(a.words->pdata[0]);
        if (strcmp(path, mp.path) != 0) { /* a folder in it, or the other end of a bind mount */
            complain("'%s' is not a mount point; the mount is %s", (char *)a.words->pdata[0], mp.path);
            code = EXIT_USAGE;
        } else {
            code = stop(&mp, &p, args_has(&a, "drain"), drain_s);
        }
        mount_point_clear(&mp);
    }
    args_clear(&a);
    return code;
}
