/*
 * Requests to the daemon of a mount. A silence longer than the caller allows, a closed line or a missing daemon each end in one clear line. Where the worker ended
 * before it had answered the next one is asked, if that is safe (ctl_again.h).
 */
#include "tools/ctl_client.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "fs/ctl_proto.h"
#include "tools/cmd.h"
#include "tools/ctl_again.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_REPLY_LINE (64u << 20)
#define SEND_BYTES     (64u << 10)
#define QUIET_AGAIN_S  60                     /* the next worker has to come first */
#define GOING_S        5                      /* how long a worker may take to end */
#define LATE_S         10                     /* how long after its time limit an answer is still waited for */
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

static pid_t owner_of(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    int r = RET_ERRNO(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len));
    return r < 0 ? r : who.pid;
}

pid_t ctl_daemon_pid(const struct mount_point *mp)
{
    CLEANUP_FD int fd = dial(mp);
    return fd < 0 ? fd : owner_of(fd);
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

/* Appends what comes next to buf. 0 at the end of the stream, -ETIMEDOUT at the deadline. */
static ssize_t receive(int fd, GString *buf, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char chunk[8192];
    for (;;) {
        uint64_t now = clock_mono_ns();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        int r = RET_ERRNO(poll(&p, 1, (int)MIN((deadline_ns - now) / NS_PER_MS + 1, 1000000)));
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

/* A request on its way. */
struct ask {
    const struct mount_point *mp;
    json_t *req; /* owned */
    FILE *list;  /* borrowed; NULL: none */
    unsigned quiet_s;
    ctl_line_fn *fn;
    void *ctx;
    struct again again;
};

enum { ASK_DONE, ASK_BROKEN }; /* the exit code is known; the worker ended before it had answered */

/* The last line. */
static int take_done(const struct ask *a, const json_t *line, int *ret_exit)
{
    const char *message = json_string_value(json_object_get(line, "message"));
    const json_t *code = json_object_get(line, "exit");
    *ret_exit = json_is_integer(code) ? (int)json_integer_value(code) : EXIT_FAILED;
    if (*ret_exit != EXIT_DONE && json_is_true(json_object_get(line, "again")) && again_is_safe(&a->again))
        return ASK_BROKEN;
    if (*ret_exit != EXIT_DONE && message)
        complain("%s", message);
    return ASK_DONE;
}

/* Handles one line. True when it was the last; *ret and *ret_exit are set then. */
static bool take_line(struct ask *a, const char *text, size_t len, int *ret, int *ret_exit)
{
    json_t *line = json_loadb(text, len, 0, NULL);
    if (!line) {
        complain("the daemon sent a line that is not JSON");
        *ret_exit = EXIT_FAILED;
        *ret = ASK_DONE;
        return true;
    }
    const char *event = json_string_value(json_object_get(line, "event"));
    bool done = g_strcmp0(event, "done") == 0;
    if (done)
        *ret = take_done(a, line, ret_exit);
    else if (a->fn && again_is_new(&a->again, line))
        a->fn(a->ctx, line);
    json_decref(line);
    return done;
}

static int complain_of_silence(const struct ask *a, unsigned quiet_s)
{
    uint64_t deadline_ns = a->again.deadline_ns;
    bool late = deadline_ns && clock_mono_ns() >= deadline_ns;
    if (late)
        complain("time ran out, and the daemon of %s does not answer", a->mp->path);
    else
        complain("the daemon of %s has not answered for %u s", a->mp->path, quiet_s);
    return late ? EXIT_TIME : EXIT_FAILED;
}

static int read_replies(struct ask *a, int fd, int *ret_exit)
{
    g_autoptr(GString) buf = g_string_new(NULL);
    unsigned quiet_s = a->again.n_asked ? MAX(a->quiet_s, QUIET_AGAIN_S) : a->quiet_s;
    uint64_t last_ns = a->again.deadline_ns ? a->again.deadline_ns + LATE_S * NS_PER_S : UINT64_MAX;
    for (;;) {
        ssize_t n = receive(fd, buf, MIN(clock_mono_ns() + quiet_s * NS_PER_S, last_ns));
        if (n == -ETIMEDOUT) {
            *ret_exit = complain_of_silence(a, quiet_s);
            return ASK_DONE;
        }
        if (n <= 0)
            return ASK_BROKEN;
        if (buf->len > MAX_REPLY_LINE) {
            complain("the daemon of %s sent a line of more than %u bytes", a->mp->path, MAX_REPLY_LINE);
            *ret_exit = EXIT_FAILED;
            return ASK_DONE;
        }
        const char *start = buf->str, *end;
        int r;
        while ((end = memchr(start, '\n', (size_t)(buf->str + buf->len - start)))) {
            if (take_line(a, start, (size_t)(end - start), &r, ret_exit))
                return r;
            start = end + 1;
        }
        g_string_erase(buf, 0, start - buf->str);
    }
}

/* Whoever served it has just gone: is it being unmounted, or does it become a dead mount? */
static bool is_unmounted(const char *path)
{
    for (uint64_t end = clock_mono_ns() + GOING_S * NS_PER_S; mount_exists(path) && clock_mono_ns() < end;) {
        if (mount_is_dead(path))
            return false;
        g_usleep(50000);
    }
    return !mount_exists(path);
}

/* Nobody is there. The first time that is told as it is; later the mount was there a moment ago. */
static int no_daemon(const struct ask *a, int err)
{
    bool nobody = err == -ECONNREFUSED || err == -ENOENT;
    if (a->again.n_asked == 0 || !nobody || !is_unmounted(a->mp->path)) {
        ctl_complain_no_daemon(a->mp, err);
        return EXIT_FAILED;
    }
    if (again_gone_is_done(&a->again))
        return EXIT_DONE;
    complain("%s was unmounted before this was done", a->mp->path);
    return EXIT_FAILED;
}

/* Each path as a JSON string on a line, then an empty line. */
static int send_list(int fd, FILE *list)
{
    g_autoptr(GString) out = g_string_new(NULL);
    char *path = NULL;
    size_t room = 0;
    int r = 0;
    rewind(list);
    while (r == 0 && getdelim(&path, &room, '\0', list) >= 0) {
        json_t *name = json_string(path);
        char *text = json_dumps(name, JSON_ENCODE_ANY);
        g_string_append_printf(out, "%s\n", text ? text : "\"\"");
        free(text);
        json_decref(name);
        if (out->len < SEND_BYTES)
            continue;
        r = send_all(fd, out->str, out->len);
        g_string_truncate(out, 0);
    }
    free(path);
    g_string_append_c(out, '\n');
    return r == 0 && ferror(list) ? -EIO : r == 0 ? send_all(fd, out->str, out->len) : r;
}

/* Does another mount have the name by now? */
static bool is_other_mount(struct ask *a, int fd)
{
    pid_t owner = owner_of(fd);
    if (a->again.n_asked == 0)
        a->again.owner = owner;
    return a->again.owner != owner;
}

static int ask_once(struct ask *a, int *ret_exit)
{
    char *text = json_dumps(a->req, JSON_COMPACT);
    if (!text) {
        complain("a path is not valid UTF-8 and cannot be asked for by name");
        *ret_exit = EXIT_FAILED;
        return ASK_DONE;
    }
    g_autofree char *line = g_strconcat(text, "\n", NULL);
    free(text);
    CLEANUP_FD int fd = dial(a->mp);
    if (fd < 0) {
        *ret_exit = no_daemon(a, fd);
        return ASK_DONE;
    }
    if (is_other_mount(a, fd)) {
        *ret_exit = no_daemon(a, -ENOENT);
        return ASK_DONE;
    }
    int r = send_all(fd, line, strlen(line));
    if (r == 0 && a->list) {
        r = send_list(fd, a->list);
        r = r == -EPIPE ? 0 : r; /* it may have said why it does not want it */
    }
    if (r == -EPIPE || r == -ECONNRESET)
        return ASK_BROKEN;
    if (r < 0) {
        ctl_complain_no_daemon(a->mp, r);
        *ret_exit = EXIT_FAILED;
        return ASK_DONE;
    }
    return read_replies(a, fd, ret_exit);
}

/* What was counted so far comes once more. */
static void tell_again(const struct ask *a)
{
    json_t *line = json_pack("{s:s}", "event", "again");
    if (a->fn)
        a->fn(a->ctx, line);
    json_decref(line);
}

static int ask(struct ask *a)
{
    int code = EXIT_FAILED;
    while (ask_once(a, &code) == ASK_BROKEN) {
        switch (again_next(&a->again, a->req)) {
        case AGAIN_ASK:
            tell_again(a);
            break;
        case AGAIN_NOT:
            if (a->again.n_asked > 0 && is_unmounted(a->mp->path))
                return no_daemon(a, -ENOENT);
            complain("the daemon of %s ended before it was done%s", a->mp->path, again_hint(&a->again));
            return EXIT_FAILED;
        case AGAIN_TIME:
            complain("time ran out with work left");
            return EXIT_TIME;
        }
    }
    return code;
}

int ctl_request_list(const struct mount_point *mp, json_t *req, FILE *list, unsigned quiet_s, ctl_line_fn *fn,
                     void *ctx)
{
    struct ask a = {.mp = mp, .req = req, .list = list, .quiet_s = quiet_s, .fn = fn, .ctx = ctx};
    again_init(&a.again, req);
    int code = ask(&a);
    again_clear(&a.again);
    json_decref(req);
    return code;
}

int ctl_request(const struct mount_point *mp, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx)
{
    return ctl_request_list(mp, req, NULL, quiet_s, fn, ctx);
}

int exit_worse(int a, int b)
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
    b->code = exit_worse(b->code, ctl_request(&b->mount, req, b->quiet_s, b->fn, b->ctx));
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

bool ctl_put_text(json_t *o, const char *name, const char *text, const char *what)
{
    if (json_object_set_new(o, name, json_string(text)) == 0)
        return true;
    complain("%s: not valid UTF-8, cannot be asked for", what);
    return false;
}

bool ctl_put_path(json_t *req, const char *path, const char *word)
{
    if (json_object_set_new(req, "paths", json_pack("[s]", path)) == 0)
        return true;
    complain("%s: not valid UTF-8, cannot be asked for by name", word);
    return false;
}

int ctl_request_paths(char **paths, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx)
{
    struct batch b = {.req = req, .quiet_s = quiet_s, .fn = fn, .ctx = ctx, .paths = json_array(), .code = EXIT_DONE};
    for (char **p = paths; *p; p++) {
        struct mount_point mp;
        if (!mount_find(*p, &mp)) {
            b.code = exit_worse(b.code, EXIT_FAILED);
            continue;
        }
        if (b.mount.path) {
            b.code = exit_worse(b.code, batch_add(&b, *p, &mp));
            mount_point_clear(&mp);
        } else {
            b.mount = mp;
            b.code = exit_worse(b.code, batch_add(&b, *p, &b.mount));
        }
    }
    send_batch(&b);
    json_decref(b.paths);
    json_decref(req);
    mount_point_clear(&b.mount);
    return b.code;
}
