/*
 * HTTP stub; see http_stub.h. The lock covers script and log; sockets belong to their threads, and free() ends them by
 * shutting the sockets down.
 */
#include "http_stub.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum reply_kind { REPLY_FULL, REPLY_CUT, REPLY_DROP, REPLY_HANG };

struct reply {
    enum reply_kind kind;
    char *head;
    char *body;
    size_t cut;
    unsigned late_s;
};

struct http_stub {
    int fd;
    char url[64];
    GThread *acceptor;
    pthread_mutex_t mu; /* not GLib's: thread checkers know these */
    pthread_cond_t cv;
    GQueue script;        /* struct reply */
    struct reply *always; /* owned; NULL: 418 */
    GPtrArray *requests;  /* char */
    GPtrArray *threads;   /* GThread */
    GArray *sockets;      /* int, -1 once closed */
    bool stopping;
};

struct conn {
    struct http_stub *stub;
    int fd;
    guint index;
};

static void reply_free(struct reply *r)
{
    if (!r)
        return;
    g_free(r->head);
    g_free(r->body);
    g_free(r);
}

static bool read_head(int fd, GString *in)
{
    char buf[4096];
    while (!strstr(in->str, "\r\n\r\n")) {
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n <= 0)
            return false;
        g_string_append_len(in, buf, n);
    }
    return true;
}

/* Takes the body off the connection; what follows stays in `in`. */
static bool skip_body(int fd, GString *in)
{
    char buf[8192];
    size_t head = (size_t)(strstr(in->str, "\r\n\r\n") - in->str) + 4;
    const char *line = strcasestr(in->str, "\r\ncontent-length:");
    size_t want = line ? strtoull(line + 17, NULL, 10) : 0;
    size_t have = in->len - head;
    g_string_truncate(in, 0);
    while (have < want) {
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    return true;
}

static bool send_all(int fd, const char *buf, size_t len)
{
    while (len) {
        ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        buf += n;
        len -= (size_t)n;
    }
    return true;
}

static struct reply *reply_beyond(const struct reply *always)
{
    struct reply *r = g_new0(struct reply, 1);
    if (always)
        *r = *always;
    r->head = g_strdup(always ? always->head : "HTTP/1.1 418 Beyond the script\r\nContent-Length: 0\r\n\r\n");
    r->body = g_strdup(always ? always->body : "");
    return r;
}

static struct reply *next_reply(struct http_stub *stub, const char *request)
{
    pthread_mutex_lock(&stub->mu);
    g_ptr_array_add(stub->requests, g_strdup(request));
    struct reply *r = g_queue_pop_head(&stub->script);
    if (!r)
        r = reply_beyond(stub->always);
    pthread_cond_broadcast(&stub->cv);
    pthread_mutex_unlock(&stub->mu);
    return r;
}

/* Or for so many seconds. */
static void wait_for_end(struct http_stub *stub, unsigned seconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until); /* the clock exists */
    until.tv_sec += seconds;
    pthread_mutex_lock(&stub->mu);
    while (seconds && !stub->stopping && pthread_cond_timedwait(&stub->cv, &stub->mu, &until) == 0)
        ;
    pthread_mutex_unlock(&stub->mu);
}

/* Head and so much of the body at once: who sees the head sees what lies behind its Content-Length too. */
static bool send_reply(int fd, const struct reply *r, size_t n_body)
{
    g_autoptr(GString) all = g_string_new(r->head);
    g_string_append_len(all, r->body, (gssize)n_body);
    return send_all(fd, all->str, all->len);
}

static bool answer(struct conn *c, const struct reply *r, bool is_head)
{
    size_t n = strlen(r->body);
    wait_for_end(c->stub, r->late_s);
    switch (r->kind) {
    case REPLY_FULL:
        return send_reply(c->fd, r, is_head ? 0 : n);
    case REPLY_CUT:
        (void)send_reply(c->fd, r, MIN(n, r->cut));
        return false;
    case REPLY_DROP:
        return false;
    case REPLY_HANG:
        pthread_mutex_lock(&c->stub->mu);
        while (!c->stub->stopping)
            pthread_cond_wait(&c->stub->cv, &c->stub->mu);
        pthread_mutex_unlock(&c->stub->mu);
        return false;
    }
    return false;
}

static gpointer serve(gpointer arg)
{
    struct conn *c = arg;
    GString *in = g_string_new(NULL);
    bool go = true;
    while (go && read_head(c->fd, in)) {
        char *end = strstr(in->str, "\r\n\r\n");
        g_autofree char *request = g_strndup(in->str, (gsize)(end - in->str));
        go = skip_body(c->fd, in);
        if (!go)
            break;
        struct reply *r = next_reply(c->stub, request);
        go = answer(c, r, g_str_has_prefix(request, "HEAD "));
        reply_free(r);
    }
    g_string_free(in, TRUE);
    pthread_mutex_lock(&c->stub->mu);
    g_array_index(c->stub->sockets, int, c->index) = -1;
    pthread_mutex_unlock(&c->stub->mu);
    close(c->fd);
    g_free(c);
    return NULL;
}

static gpointer accept_loop(gpointer arg)
{
    struct http_stub *stub = arg;
    for (;;) {
        int fd = accept(stub->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1},
                         sizeof(int)); /* else pieces of a reply are 40 ms apart */
        pthread_mutex_lock(&stub->mu);
        struct conn *c = g_new0(struct conn, 1);
        *c = (struct conn){.stub = stub, .fd = fd, .index = stub->sockets->len};
        g_array_append_val(stub->sockets, fd);
        g_ptr_array_add(stub->threads, g_thread_new("stub", serve, c));
        pthread_mutex_unlock(&stub->mu);
    }
}

struct http_stub *http_stub_new(void)
{
    struct http_stub *stub = g_new0(struct http_stub, 1);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    stub->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (stub->fd < 0 || bind(stub->fd, (struct sockaddr *)(void *)&addr, len) < 0 || listen(stub->fd, 64) < 0 ||
        getsockname(stub->fd, (struct sockaddr *)(void *)&addr, &len) < 0)
        g_error("http stub: %s", g_strerror(errno));
    g_snprintf(stub->url, sizeof stub->url, "http://127.0.0.1:%u", ntohs(addr.sin_port));
    pthread_mutex_init(&stub->mu, NULL);
    pthread_cond_init(&stub->cv, NULL);
    g_queue_init(&stub->script);
    stub->requests = g_ptr_array_new_with_free_func(g_free);
    stub->threads = g_ptr_array_new();
    stub->sockets = g_array_new(FALSE, FALSE, sizeof(int));
    stub->acceptor = g_thread_new("stub", accept_loop, stub);
    return stub;
}

void http_stub_skip(struct http_stub *stub)
{
    pthread_mutex_lock(&stub->mu);
    for (struct reply *r; (r = g_queue_pop_head(&stub->script)) != NULL;)
        reply_free(r);
    pthread_mutex_unlock(&stub->mu);
}

void http_stub_free(struct http_stub *stub)
{
    shutdown(stub->fd, SHUT_RDWR);
    g_thread_join(stub->acceptor);
    close(stub->fd);
    pthread_mutex_lock(&stub->mu);
    stub->stopping = true;
    for (guint i = 0; i < stub->sockets->len; i++) {
        int fd = g_array_index(stub->sockets, int, i);
        if (fd >= 0)
            shutdown(fd, SHUT_RDWR);
    }
    pthread_cond_broadcast(&stub->cv);
    pthread_mutex_unlock(&stub->mu);
    for (guint i = 0; i < stub->threads->len; i++)
        g_thread_join(stub->threads->pdata[i]);
    http_stub_skip(stub);
    reply_free(stub->always);
    g_ptr_array_free(stub->threads, TRUE);
    g_ptr_array_free(stub->requests, TRUE);
    g_array_free(stub->sockets, TRUE);
    pthread_mutex_destroy(&stub->mu);
    pthread_cond_destroy(&stub->cv);
    g_free(stub);
}

const char *http_stub_url(const struct http_stub *stub)
{
    return stub->url;
}

static void script_add(struct http_stub *stub, struct reply *r)
{
    pthread_mutex_lock(&stub->mu);
    g_queue_push_tail(&stub->script, r);
    pthread_mutex_unlock(&stub->mu);
}

static struct reply *reply_new(enum reply_kind kind, int status, const char *headers, const char *body)
{
    struct reply *r = g_new0(struct reply, 1);
    g_autofree char *length = g_strdup_printf("Content-Length: %zu\r\n", strlen(body));
    r->kind = kind;
    r->head = g_strdup_printf("HTTP/1.1 %d Scripted\r\n%s%s\r\n", status,
                              strcasestr(headers, "content-length:") || status == 204 ? "" : length, headers);
    r->body = g_strdup(body);
    return r;
}

void http_stub_reply(struct http_stub *stub, int status, const char *headers, const char *body)
{
    script_add(stub, reply_new(REPLY_FULL, status, headers, body));
}

void http_stub_reply_late(struct http_stub *stub, unsigned seconds, int status, const char *headers, const char *body)
{
    struct reply *r = reply_new(REPLY_FULL, status, headers, body);
    r->late_s = seconds;
    script_add(stub, r);
}

void http_stub_reply_cut(struct http_stub *stub, int status, const char *headers, const char *body, size_t n)
{
    struct reply *r = reply_new(REPLY_CUT, status, headers, body);
    r->cut = n;
    script_add(stub, r);
}

void http_stub_always(struct http_stub *stub, int status, const char *headers, const char *body, size_t n)
{
    struct reply *r = reply_new(n < strlen(body) ? REPLY_CUT : REPLY_FULL, status, headers, body);
    r->cut = n;
    pthread_mutex_lock(&stub->mu);
    struct reply *before = stub->always;
    stub->always = r;
    pthread_mutex_unlock(&stub->mu);
    reply_free(before);
}

void http_stub_drop(struct http_stub *stub)
{
    script_add(stub, reply_new(REPLY_DROP, 0, "", ""));
}

void http_stub_hang(struct http_stub *stub)
{
    script_add(stub, reply_new(REPLY_HANG, 0, "", ""));
}

unsigned http_stub_n_requests(struct http_stub *stub)
{
    pthread_mutex_lock(&stub->mu);
    unsigned n = stub->requests->len;
    pthread_mutex_unlock(&stub->mu);
    return n;
}

const char *http_stub_request(struct http_stub *stub, unsigned i)
{
    pthread_mutex_lock(&stub->mu);
    const char *s = i < stub->requests->len ? stub->requests->pdata[i] : NULL;
    pthread_mutex_unlock(&stub->mu);
    return s;
}
