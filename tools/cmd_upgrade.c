/*
 * `sluice upgrade [--program FILE] DIR`: the supervisor of the mount starts FILE in the place of the program that serves. Returns when that one serves, or with
 * failure when the supervisor went back to the one before.
 */
#include "base/cleanup.h"
#include "base/err.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK_QUIET_S  15 /* the new program is asked what it is first */
#define STATUS_QUIET_S 60 /* nobody answers until the next one serves */
#define END_WAIT_MS    20000

struct server {
    char *program, *version; /* owned */
    pid_t pid;
};

static void server_clear(struct server *s)
{
    g_free(s->program);
    g_free(s->version);
    *s = (struct server){0};
}

static void take_status(void *ctx, const json_t *line)
{
    struct server *s = ctx;
    if (!json_object_get(line, "pid"))
        return;
    server_clear(s);
    s->program = g_strdup(json_string_value(json_object_get(line, "program")));
    s->version = g_strdup(json_string_value(json_object_get(line, "version")));
    s->pid = (pid_t)json_integer_value(json_object_get(line, "pid"));
}

static int ask_status(const struct mount_point *mp, struct server *s)
{
    return ctl_request(mp, json_pack("{s:s}", "verb", "status"), STATUS_QUIET_S, take_status, s);
}

static int upgrade(const struct mount_point *mp, const char *program)
{
    struct server s = {0};
    int code = ask_status(mp, &s);
    pid_t old = s.pid;
    CLEANUP_FD int pidfd = code == EXIT_DONE ? (int)syscall(SYS_pidfd_open, old, 0) : -1;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (code == EXIT_DONE)
        code =
            ctl_request(mp, json_pack("{s:s,s:s}", "verb", "upgrade", "program", program), CHECK_QUIET_S, NULL, NULL);
    if (code == EXIT_DONE)
        (void)poll(&p, 1, END_WAIT_MS); /* while the old one may still answer */
    if (code == EXIT_DONE)
        code = ask_status(mp, &s);
    if (code == EXIT_DONE && (s.pid == old || g_strcmp0(s.program, program) != 0)) {
        complain("%s did not come to serve %s, %s goes on; see its log", program, mp->path, s.program);
        code = EXIT_FAILED;
    }
    if (code == EXIT_DONE)
        printf("%s is served by %s (version %s, pid %d)\n", mp->path, s.program, s.version, (int)s.pid);
    server_clear(&s);
    return code;
}

int cmd_upgrade(int argc, char **argv)
{
    struct args a;
    struct mount_point mp;
    int code;
    if (!args_parse(&a, argc, argv, 1, 1, &code))
        return code;
    const char *given = args_get(&a, "program");
    char *program = realpath(given ? given : "/proc/self/exe", NULL);
    if (!program) {
        complain("%s: %s", given ? given : "this program", err_text(errno));
        code = EXIT_USAGE;
    } else if (!mount_find(a.words->pdata[0], &mp)) {
        code = EXIT_FAILED;
    } else {
        code = upgrade(&mp, program);
        mount_point_clear(&mp);
    }
    free(program);
    args_clear(&a);
    return code;
}
