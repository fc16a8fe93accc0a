/* Requests to the daemon of a mount. A silence longer than the caller allows, a closed line or a missing daemon each end in one clear line. */
#include "tools/ctl_client.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "fs/ctl_proto.h"
#include "tools/cmd.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_REPLY_LINE (64u << 20)
#define PATHS_BUDGET   (CTL_MAX_LINE * 3 / 4) /* what paths may take of a request, JSON escapes counted */

void print_json(const json_t *line)
{
    (void)json_dumpf(line, stdout, JSON_COMPACT); /* a closed pipe ends us by SIGPIPE */
    putchar('\n');
    fflush(stdout);
}

bool print_if_error(const json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    if (g_strcmp0(event, "error") != 0)
        return false;
    const char *path = json_string_value(json_object_get(line, "path"));
    const char *error = json_string_value(json_object_get(line, "error"));
    complain("%s%s%s", path ? path : "", path ? ": " : "", error ? error : "failed");
    return true;
}

static int dial(const struct mount_point *mp)
{
    g_autofree char *path = ctl_socket_path_of(mp->path, mp->uid);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (g_strlcpy(addr.sun_path, path, sizeof addr.sun_path) >= sizeof addr.sun_path)
        return -ENAMETOOLONG;
    CLEANUP_FD int fd = RET_ERRNO(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return fd;
    const struct timeval wait = {.tv_sec = 10};
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait,
                     sizeof wait); /* bounds connect and send; cannot fail on a socket */
    int r = RET_ERRNO(connect(fd, (struct sockaddr *)&addr, sizeof addr));
    return r < 0 ? r : steal_fd(&fd);
}

char *ctl_why_dead(const struct mount_point *mp)
{
    g_autofree char *path = ctl_failed_path_of(mp->path, mp->uid);
    g_autofree char *text = NULL;
    return g_file_get_contents(path, &text, NULL, NULL) ? g_strdup_printf(" (%s)", text) : g_strdup("");
}

void ctl_complain_no_daemon(const struct mount_point *mp, int err)
{
    bool nobody = err == -ECONNREFUSED || err == -ENOENT;
    g_autofree char *why = ctl_why_dead(mp);
    if (nobody && mount_is_dead(mp->path))
        complain("the daemon of %s is not running%s; 'sluice umount %s' clears the dead mount, local data is kept",
                 mp->path, why, mp->path);
    else if (nobody)
        complain("the daemon of %s runs but does not listen here: XDG_RUNTIME_DIR was another when it was mounted",
                 mp->path);
    else if (err == -EACCES || err == -EPERM)
        complain("%s was mounted by user %u: only that user and root may ask its daemon", mp->path, (unsigned)mp->uid);
    else
        complain("no connection to the daemon of %s: %s", mp->path, err_text(err));
}

pid_t ctl_daemon_pid(const struct mount_point *mp)
{
    CLEANUP_FD int fd = dial(mp);
    struct ucred who;
    socklen_t len = sizeof who;
    if (fd < 0)
        return fd;
    int r = RET_ERRNO(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len));
    return r < 0 ? r : who.pid;
}

static int send_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = RET_ERRNO(send(fd, text, len, MSG_NOSIGNAL));
        if (n < 0 && n != -EINTR)
            return (int)n;
        if (n > 0) {
            text += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

/* Appends what comes next to buf. 0 at the end of the stream, -ETIMEDOUT after quiet_s. */
static ssize_t receive(int fd, GString *buf, unsigned quiet_s)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char chunk[8192];
    uint64_t deadline = clock_mono_ns() + quiet_s * NS_PER_S;
    for (;;) {
        uint64_t now = clock_mono_ns();
        if (now >= deadline)
            return -ETIMEDOUT;
        int r = RET_ERRNO(poll(&p, 1, (int)MIN((deadline - now) / NS_PER_MS + 1, 1000000)));
        if (r < 0 && r != -EINTR)
            return r;
        if (r <= 0)
            continue;
        ssize_t n = RET_ERRNO(recv(fd, chunk, sizeof chunk, 0));
        if (n > 0)
            g_string_append_len(buf, chunk, n);
        if (n != -EINTR)
            return n;
    }
}

/* Handles one line. True when it was the last; *ret_exit is set then. */
static bool take_line(const char *text, size_t len, ctl_line_fn *fn, void *ctx, int *ret_exit)
{
    json_t *line = json_loadb(text, len, 0, NULL);
    if (!line) {
        complain("the daemon sent a line that is not JSON");
        *ret_exit = EXIT_FAILED;
        return true;
    }
    const char *event = json_string_value(json_object_get(line, "event"));
    bool done = g_strcmp0(event, "done") == 0;
    if (done) {
        const char *message = json_string_value(json_object_get(line, "message"));
        const json_t *code = json_object_get(line, "exit");
        *ret_exit = json_is_integer(code) ? (int)json_integer_value(code) : EXIT_FAILED;
        if (*ret_exit != EXIT_DONE && message)
            complain("%s", message);
    } else if (fn) {
        fn(ctx, line);
    }
    json_decref(line);
    return done;
}

static int read_replies(const struct mount_point *mp, int fd, unsigned quiet_s, ctl_line_fn *fn, void *ctx)
{
    g_autoptr(GString) buf = g_string_new(NULL);
    int code = EXIT_FAILED;
    for (;;) {
        ssize_t n = receive(fd, buf, quiet_s);
        if (n == -ETIMEDOUT) {
            complain("the daemon of %s has not answered for %u s", mp->path, quiet_s);
            return EXIT_FAILED;
        }
        if (n <= 0 || buf->len > MAX_REPLY_LINE) {
            complain("the daemon of %s broke off before it was done", mp->path);
            return EXIT_FAILED;
        }
        const char *start = buf->str, *end;
        while ((end = memchr(start, '\n', (size_t)(buf->str + buf->len - start)))) {
            if (take_line(start, (size_t)(end - start), fn, ctx, &code))
                return code;
            start = end + 1;
        }
        g_string_erase(buf, 0, start - buf->str);
    }
}

int ctl_request(const struct mount_point *mp, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx)
{
    char *text = json_dumps(req, JSON_COMPACT);
    json_decref(req);
    if (!text) {
        complain("a path is not valid UTF-8 and cannot be asked for by name");
        return EXIT_FAILED;
    }
    g_autofree char *line = g_strconcat(text, "\n", NULL);
    free(text);
    CLEANUP_FD int fd = dial(mp);
    if (fd < 0) {
        ctl_complain_no_daemon(mp, fd);
        return EXIT_FAILED;
    }
    int r = send_all(fd, line, strlen(line));
    if (r < 0) {
        ctl_complain_no_daemon(mp, r);
        return EXIT_FAILED;
    }
    return read_replies(mp, fd, quiet_s, fn, ctx);
}

/* Worst of two exit codes: a failure beats wrong usage, that beats running out of time. */
static int worse(int a, int b)
{
    static const int order[] = {EXIT_FAILED, EXIT_USAGE, EXIT_TIME};
    for (unsigned i = 0; i < G_N_ELEMENTS(order); i++)
        if (a == order[i] || b == order[i])
            return order[i];
    return a == EXIT_DONE ? b : a;
}

/* Paths of one mount on their way to its daemon. */
struct batch {
    const json_t *req;
    unsigned quiet_s;
    ctl_line_fn *fn;
    void *ctx;
    struct mount_point mount; /* of the first path */
    json_t *paths;
    size_t used;
    int code; /* the worst so far */
};

static void send_batch(struct batch *b)
{
    if (json_array_size(b->paths) == 0)
        return;
    json_t *req = json_deep_copy(b->req);
    json_object_set_new(req, "paths", b->paths);
    b->code = worse(b->code, ctl_request(&b->mount, req, b->quiet_s, b->fn, b->ctx));
    b->paths = json_array();
    b->used = 0;
}

/* One more path of the mount. Exit code; complains. */
static int batch_add(struct batch *b, const char *path, const struct mount_point *mp)
{
    if (strcmp(b->mount.path, mp->path) != 0) {
        complain("'%s' lies in %s, other paths in %s: one mount at a time", path, mp->path, b->mount.path);
        return EXIT_USAGE;
    }
    json_t *name = json_string(mp->relative);
    if (!name) {
        complain("%s: not valid UTF-8, cannot be asked for by name", path);
        return EXIT_FAILED;
    }
    size_t cost = 6 * strlen(mp->relative) + 3; /* at worst every byte is \u00xx */
    if (b->used + cost > PATHS_BUDGET)
        send_batch(b);
    b->used += cost;
    json_array_append_new(b->paths, name);
    return EXIT_DONE;
}

int ctl_request_paths(char **paths, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx)
{
    struct batch b = {.req = req, .quiet_s = quiet_s, .fn = fn, .ctx = ctx, .paths = json_array(), .code = EXIT_DONE};
    for (char **p = paths; *p; p++) {
        struct mount_point mp;
        if (!mount_find(*p, &mp)) {
            b.code = worse(b.code, EXIT_FAILED);
            continue;
        }
        if (b.mount.path) {
            b.code = worse(b.code, batch_add(&b, *p, &mp));
            mount_point_clear(&mp);
        } else {
            b.mount = mp;
            b.code = worse(b.code, batch_add(&b, *p, &b.mount));
        }
    }
    send_batch(&b);
    json_decref(b.paths);
    json_decref(req);
    mount_point_clear(&b.mount);
    return b.code;
}
