/*
 * Control socket server.
 *
 * Threads: one "ctl" thread accepts; each client has a detached "ctl-client" thread that reads one request line, runs its verb and
 * writes the last line. A client is trusted only if the kernel says it is root or the daemon's own user. What a client can cost is
 * bounded: CTL_MAX_CLIENTS threads, CTL_MAX_WAITING of them in verbs that wait, CTL_MAX_LINE bytes of request, 10 s for each piece of it to come, 30 s to take a line.
 *
 * `mu` guards the list of clients only; no lock is held while reading, writing or inside a verb. ctl_stop() shuts the
 * receiving half of every client, which is what ctl_gone() looks at, so a verb can still write its last lines.
 */
#include "fs/ctl.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/sync.h"
#include "fs/ctl_proto.h"

#include <assert.h>
#include <glib.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define REQUEST_TIMEOUT_S 10
#define SEND_TIMEOUT_S    30

struct ctl {
    /* immutable after ctl_start */
    struct fs *fs; /* borrowed */
    const struct ctl_verb *verbs;
    int listen_fd, wake_fd;
    pthread_t thread;
    struct mutex mu;
    struct cond idle;
    /* guarded by mu */
    GList *clients;     /* struct ctl_client, each owned by its thread */
    unsigned n_waiting; /* of them run a verb that waits */
    bool stopping;
};

struct ctl_client { /* owned by its thread; fd is valid while it is in ctl->clients */
    struct ctl *ctl;
    int fd;
    bool broken; /* a line could not be sent */
    char in[8192];
    size_t in_from, in_end; /* what of `in` came and was not read yet */
    char *message;
};

/* ---- lines out ---- */

int ctl_emit(struct ctl_client *client, json_t *line)
{
    if (!line)
        return -EINVAL;
    mutex_assert_none_held();
    g_autoptr(GString) out = g_string_new(NULL);
    char *text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    if (!text)
        return -EINVAL;
    g_string_append(out, text);
    g_string_append_c(out, '\n');
    free(text);
    for (size_t done = 0; done < out->len && !client->broken;) {
        ssize_t n = RET_ERRNO(send(client->fd, out->str + done, out->len - done, MSG_NOSIGNAL));
        if (n > 0)
            done += (size_t)n;
        else if (n != -EINTR)
            client->broken = true;
    }
    return client->broken ? -EPIPE : 0;
}

void ctl_fail(struct ctl_client *client, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_free(client->message);
    client->message = g_strdup_vprintf(fmt, ap);
    va_end(ap);
}

bool ctl_gone(struct ctl_client *client)
{
    char byte;
    if (client->broken)
        return true;
    ssize_t n = RET_ERRNO(recv(client->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT));
    return n == 0 || (n < 0 && n != -EAGAIN && n != -EINTR);
}

bool ctl_is_stopping(struct ctl_client *client)
{
    mutex_lock(&client->ctl->mu);
    bool stopping = client->ctl->stopping;
    mutex_unlock(&client->ctl->mu);
    return stopping;
}

static void emit_done(struct ctl_client *client, int code)
{
    bool cut_off = code == CTL_AGAIN || (code == 1 && ctl_is_stopping(client));
    code = code == CTL_AGAIN ? 1 : code;
    json_t *line = json_pack("{s:s,s:i}", "event", "done", "exit", code);
    if (cut_off)
        json_object_set_new(line, "again", json_true());
    if (code != 0) {
        const char *text = client->message ? client->message
                           : code == 3     ? "time ran out with work left"
                           : cut_off       ? "the daemon ended before it was done"
                                           : "failed";
        json_t *message = json_string(text);
        json_object_set_new(line, "message", message ? message : json_string("failed"));
    }
    (void)ctl_emit(client, line); /* the client may have left; nobody else wants the line */
}

/* ---- one client ---- */

static int peer_allowed(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    int r = RET_ERRNO(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len));
    if (r < 0)
        return r;
    return who.uid == 0 || who.uid == geteuid() ? 0 : -EACCES;
}

/* 0: there is something in client->in. */
static int receive(struct ctl_client *client)
{
    while (client->in_from == client->in_end) {
        ssize_t n = RET_ERRNO(recv(client->fd, client->in, sizeof client->in, 0));
        if (n == 0)
            return -ECONNRESET;
        if (n < 0 && n != -EINTR)
            return n == -EAGAIN ? -ETIMEDOUT : (int)n;
        client->in_from = 0;
        client->in_end = n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int ctl_read(struct ctl_client *client, GString *ret_line)
{
    g_string_truncate(ret_line, 0);
    while (ret_line->len <= CTL_MAX_LINE) {
        int r = receive(client);
        if (r < 0)
            return r;
        const char *from = client->in + client->in_from;
        size_t len = client->in_end - client->in_from;
        const char *end = memchr(from, '\n', len);
        size_t n = end ? (size_t)(end - from) : len;
        g_string_append_len(ret_line, from, (gssize)n);
        client->in_from += n + (end != NULL);
        if (end)
            return ret_line->len <= CTL_MAX_LINE ? 0 : -EMSGSIZE;
    }
    return -EMSGSIZE;
}

static bool begin_wait(struct ctl *ctl)
{
    mutex_lock(&ctl->mu);
    bool room = ctl->n_waiting < CTL_MAX_WAITING;
    ctl->n_waiting += room;
    mutex_unlock(&ctl->mu);
    return room;
}

static void end_wait(struct ctl *ctl)
{
    mutex_lock(&ctl->mu);
    ctl->n_waiting--;
    mutex_unlock(&ctl->mu);
}

static int run_verb(struct ctl_client *client, const struct ctl_verb *v, const json_t *req)
{
    struct ctl *ctl = client->ctl;
    if (v->waits && !begin_wait(ctl)) {
        ctl_fail(client, "too many commands wait at once, try again");
        return 1;
    }
    int code = v->fn(ctl->fs, client, req);
    if (v->waits)
        end_wait(ctl);
    return code;
}

static int run_request(struct ctl_client *client, const char *text, size_t len)
{
    json_error_t err;
    json_t *req = json_loadb(text, len, JSON_REJECT_DUPLICATES, &err);
    const char *name = json_string_value(json_object_get(req, "verb"));
    int code = 1;
    if (!req) {
        ctl_fail(client, "the request is not JSON: %s", err.text);
    } else if (!name) {
        ctl_fail(client, "the request has no verb");
    } else {
        const struct ctl_verb *v = client->ctl->verbs;
        while (v->name && strcmp(v->name, name) != 0)
            v++;
        if (v->name)
            code = run_verb(client, v, req);
        else
            ctl_fail(client, "the daemon does not know '%s'; it may be older than this command", name);
    }
    json_decref(req);
    return code;
}

static void serve(struct ctl_client *client)
{
    g_autoptr(GString) line = g_string_new(NULL);
    int r = peer_allowed(client->fd);
    if (r < 0) {
        ctl_fail(client, "only root and the user who mounted may ask");
    } else {
        r = ctl_read(client, line);
        if (r == -EMSGSIZE)
            ctl_fail(client, "the request is longer than %u bytes", CTL_MAX_LINE);
        else if (r < 0)
            ctl_fail(client, "the request did not arrive: %s", err_text(r));
    }
    emit_done(client, r < 0 ? 1 : run_request(client, line->str, line->len));
}

static void client_leave(struct ctl_client *client)
{
    struct ctl *ctl = client->ctl;
    mutex_lock(&ctl->mu);
    ctl->clients = g_list_remove(ctl->clients, client);
    (void)close(client->fd); /* under mu: ctl_stop() must not shut a number that was given to somebody else */
    g_free(client->message);
    g_free(client);
    if (!ctl->clients)
        cond_broadcast(&ctl->idle);
    mutex_unlock(&ctl->mu);
}

static void *client_main(void *arg)
{
    (void)pthread_detach(pthread_self()); /* ctl_stop() waits for the list, not for threads */
    serve(arg);
    client_leave(arg);
    return NULL;
}

/* ---- listening ---- */

static void refuse(int fd)
{
    static const char line[] = "{\"event\":\"done\",\"exit\":1,\"message\":\"too many commands at once, try again\"}\n";
    (void)send(fd, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* best effort: the close says it too */
}

static void set_timeouts(int fd)
{
    const struct timeval in = {.tv_sec = REQUEST_TIMEOUT_S}, out = {.tv_sec = SEND_TIMEOUT_S};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &in, sizeof in); /* cannot fail on a socket */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &out, sizeof out);
}

static void accept_one(struct ctl *ctl)
{
    CLEANUP_FD int fd = accept4(ctl->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    set_timeouts(fd);
    mutex_lock(&ctl->mu);
    bool room = !ctl->stopping && g_list_length(ctl->clients) < CTL_MAX_CLIENTS;
    struct ctl_client *client = NULL;
    if (room) {
        client = g_new0(struct ctl_client, 1);
        client->ctl = ctl;
        client->fd = steal_fd(&fd);
        ctl->clients = g_list_prepend(ctl->clients, client);
    }
    mutex_unlock(&ctl->mu);
    if (!room) {
        refuse(fd);
        return;
    }
    pthread_t thread;
    int r = thread_start(&thread, "ctl-client", client_main, client);
    if (r < 0) {
        log_warn("ctl", "no thread for a client r=%s", err_name(r));
        client_leave(client);
    }
}

static void *accept_main(void *arg)
{
    struct ctl *ctl = arg;
    for (;;) {
        struct pollfd fds[2] = {{.fd = ctl->listen_fd, .events = POLLIN}, {.fd = ctl->wake_fd, .events = POLLIN}};
        int r = RET_ERRNO(poll(fds, 2, -1));
        if (r < 0 && r != -EINTR)
            log_err("ctl", "control socket lost r=%s", err_name(r));
        if ((r < 0 && r != -EINTR) || (r > 0 && fds[1].revents))
            return NULL;
        if (r > 0 && fds[0].revents)
            accept_one(ctl);
    }
}

/* Makes the socket's folder, private to this user. */
static int make_rundir(const char *path)
{
    g_autofree char *dir = g_path_get_dirname(path);
    if (g_mkdir_with_parents(dir, 0700) < 0)
        return -errno;
    struct stat st;
    int r = RET_ERRNO(lstat(dir, &st));
    if (r < 0)
        return r;
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022)) {
        log_err("ctl", "folder of control sockets is not this user's alone dir='%s'", dir);
        return -EACCES;
    }
    return 0;
}

static int listen_at(const char *path, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (g_strlcpy(addr.sun_path, path, sizeof addr.sun_path) >= sizeof addr.sun_path)
        return -ENAMETOOLONG;
    CLEANUP_FD int fd = RET_ERRNO(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CLEANUP_FD int try = RET_ERRNO(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd < 0 || try < 0)
        return fd < 0 ? fd : try;
    if (connect(try, (struct sockaddr *)&addr, sizeof addr) == 0)
        return -EBUSY;
    if (unlink(path) < 0 && errno != ENOENT) /* left by a daemon that was killed */
        return -errno;
    int r = RET_ERRNO(bind(fd, (struct sockaddr *)&addr, sizeof addr));
    if (r == 0)
        r = RET_ERRNO(chmod(path, 0600));
    if (r == 0)
        r = RET_ERRNO(listen(fd, CTL_MAX_CLIENTS));
    if (r < 0)
        return r;
    *ret_fd = steal_fd(&fd);
    return 0;
}

int ctl_listen(const char *mountpoint, int *ret_fd)
{
    assert(mountpoint[0] == '/');
    g_autofree char *path = ctl_socket_path(mountpoint);
    int r = make_rundir(path);
    return r < 0 ? r : listen_at(path, ret_fd);
}

void ctl_unlisten(const char *mountpoint)
{
    g_autofree char *path = ctl_socket_path(mountpoint);
    (void)unlink(path); /* somebody may have cleaned up */
}

static void ctl_free(struct ctl *ctl)
{
    (void)close(ctl->listen_fd);
    if (ctl->wake_fd >= 0)
        (void)close(ctl->wake_fd);
    cond_fini(&ctl->idle);
    mutex_fini(&ctl->mu);
    g_free(ctl);
}

int ctl_start(struct fs *fs, int listen_fd, const struct ctl_verb *verbs, struct ctl **ret)
{
    struct ctl *ctl = g_new0(struct ctl, 1);
    *ctl = (struct ctl){.fs = fs, .verbs = verbs, .listen_fd = listen_fd, .wake_fd = -1};
    mutex_init(&ctl->mu, LOCK_CTL);
    cond_init(&ctl->idle);
    int r = ctl->wake_fd = RET_ERRNO(eventfd(0, EFD_CLOEXEC));
    if (r >= 0)
        r = thread_start(&ctl->thread, "ctl", accept_main, ctl);
    if (r < 0) {
        ctl_free(ctl);
        return r;
    }
    *ret = ctl;
    return 0;
}

void ctl_stop(struct ctl *ctl)
{
    if (!ctl)
        return;
    const uint64_t one = 1;
    (void)!write(ctl->wake_fd, &one, sizeof one); /* an eventfd takes eight bytes */
    (void)pthread_join(ctl->thread, NULL);
    mutex_lock(&ctl->mu);
    ctl->stopping = true;
    for (GList *l = ctl->clients; l; l = l->next)
        (void)shutdown(((struct ctl_client *)l->data)->fd, SHUT_RD);
    while (ctl->clients)
        cond_wait(&ctl->idle, &ctl->mu);
    mutex_unlock(&ctl->mu);
    ctl_free(ctl);
}
