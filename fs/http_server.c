/* Metrics server on libmicrohttpd: one thread of its own, 128 connections, 10 s idle timeout; the only user of that library. */
#include "base/metric.h"
#include "fs/http.h"

#include <arpa/inet.h>
#include <glib.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONNECTIONS 128 /* a gateway sends from many threads at once */
#define IDLE_S          10
#define CONNECTION_MEM  (16 * 1024)
#define DROP_TIMES      16u /* so much more than may be sent is read and dropped, beyond the connection is closed */

struct http_server { /* immutable after http_start */
    struct MHD_Daemon *mhd;
    void (*refresh)(void *ctx);
    void *ctx;             /* borrowed */
    struct http_post post; /* valid once has_post is set */
    atomic_bool has_post;
};

/* A POST whose body is on its way. */
struct sent {
    unsigned
        refused; /* the status of the answer, which a client sees only once it has sent its body; 0: it is let in */
    size_t len;
    GString *body;
};

static enum MHD_Result reply(struct MHD_Connection *conn, unsigned status, const char *type, GString *body)
{
    size_t len = body->len;
    char *text = g_string_free(body, FALSE);
    struct MHD_Response *resp = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_COPY);
    g_free(text);
    if (!resp)
        return MHD_NO;
    (void)MHD_add_response_header(resp, MHD_HTTP_HEADER_CONTENT_TYPE,
                                  type); /* without it the body still reads as text */
    enum MHD_Result r = MHD_queue_response(conn, status, resp);
    MHD_destroy_response(resp);
    return r;
}

static enum MHD_Result reply_text(struct MHD_Connection *conn, unsigned status, const char *text)
{
    return reply(conn, status, "text/plain", g_string_new(text));
}

/* ---- POST ---- */

static const char *status_text(unsigned status)
{
    switch (status) {
    case HTTP_OK:
        return "ok\n";
    case HTTP_BAD_REQUEST:
        return "not a list of S3 events\n";
    case HTTP_UNAUTHORIZED:
        return "a secret is needed\n";
    case HTTP_FORBIDDEN:
        return "not the secret\n";
    case HTTP_TOO_LARGE:
        return "too long\n";
    default:
        return "refused\n";
    }
}

/* Some senders give their password only when they are asked for it. */
static enum MHD_Result answer(struct MHD_Connection *conn, unsigned status)
{
    const char *text = status_text(status);
    struct MHD_Response *resp =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    if (!resp)
        return MHD_NO;
    if (status == HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(resp, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Basic realm=\"sluice\"");
    enum MHD_Result r = MHD_queue_response(conn, status, resp);
    MHD_destroy_response(resp);
    return r;
}

static enum MHD_Result refuse(struct http_server *srv, struct MHD_Connection *conn, unsigned status)
{
    srv->post.refused(srv->post.ctx, status);
    return answer(conn, status);
}

static enum MHD_Result post_begin(struct http_server *srv, struct MHD_Connection *conn, void **state)
{
    const char *length = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *who = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *token = MHD_lookup_connection_value(conn, MHD_GET_ARGUMENT_KIND, "token");
    uint64_t announced = length ? g_ascii_strtoull(length, NULL, 10) : 0;
    unsigned refused = srv->post.admit(srv->post.ctx, who, token);
    if (refused == 0 && announced > srv->post.body_max)
        refused = HTTP_TOO_LARGE;
    if (refused && announced > DROP_TIMES * (uint64_t)srv->post.body_max)
        return refuse(srv, conn, refused);
    struct sent *sent = g_new0(struct sent, 1);
    sent->refused = refused;
    sent->body = g_string_new(NULL);
    *state = sent;
    return MHD_YES;
}

static enum MHD_Result post_go_on(struct http_server *srv, struct MHD_Connection *conn, struct sent *sent,
                                  const char *body, size_t *body_len)
{
    if (*body_len == 0)
        return sent->refused ? refuse(srv, conn, sent->refused)
                             : answer(conn, srv->post.take(srv->post.ctx, sent->body->str, sent->body->len));
    sent->len += *body_len;
    if (!sent->refused && sent->len > srv->post.body_max)
        sent->refused = HTTP_TOO_LARGE;
    if (sent->len > DROP_TIMES * srv->post.body_max)
        return MHD_NO;
    if (!sent->refused)
        g_string_append_len(sent->body, body, (gssize)*body_len);
    *body_len = 0;
    return MHD_YES;
}

static const char header_seen; /* its address marks another request whose header is complete */

static void on_end(void *arg, struct MHD_Connection *conn, void **state, enum MHD_RequestTerminationCode why)
{
    struct sent *sent = *state;
    if (!sent || *state == &header_seen)
        return;
    g_string_free(sent->body, TRUE);
    g_free(sent);
    *state = NULL;
}

/* ---- pages ---- */

static bool is_post(const struct http_server *srv, const char *url, const char *method)
{
    return atomic_load(&srv->has_post) && strcmp(method, MHD_HTTP_METHOD_POST) == 0 && strcmp(url, srv->post.path) == 0;
}

static enum MHD_Result page(struct http_server *srv, struct MHD_Connection *conn, const char *url, const char *method)
{
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return reply_text(conn, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    if (atomic_load(&srv->has_post) && strcmp(url, srv->post.path) == 0)
        return reply_text(conn, MHD_HTTP_METHOD_NOT_ALLOWED, "only POST\n");
    if (strcmp(url, "/healthz") == 0)
        return reply_text(conn, MHD_HTTP_OK, "ok\n");
    if (strcmp(url, "/metrics") != 0)
        return reply_text(conn, MHD_HTTP_NOT_FOUND, "/metrics and /healthz are here\n");
    if (srv->refresh)
        srv->refresh(srv->ctx);
    GString *out = g_string_new(NULL);
    metric_expose(out);
    return reply(conn, MHD_HTTP_OK, "text/plain; version=0.0.4", out);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *conn, const char *url, const char *method,
                                  const char *version, const char *body, size_t *body_len, void **state)
{
    struct http_server *srv = arg;
    bool post = is_post(srv, url, method);
    if (!*state && post)
        return post_begin(srv, conn, state);
    if (!*state) {
        *state = (void *)(uintptr_t)&header_seen;
        return MHD_YES;
    }
    if (post && *state != &header_seen)
        return post_go_on(srv, conn, *state, body, body_len);
    if (*body_len) { /* drop what a client sends along */
        *body_len = 0;
        return MHD_YES;
    }
    return page(srv, conn, url, method);
}

static int bad_address(const char *text, const char *why, char **ret_msg)
{
    *ret_msg = g_strdup_printf("http '%s': %s", text, why);
    return -EINVAL;
}

static int parse_port(const char *text, uint16_t *ret_port)
{
    char *end;
    unsigned long port = strtoul(text, &end, 10);
    if (!g_ascii_isdigit(*text) || *end || port > 65535)
        return -EINVAL;
    *ret_port = (uint16_t)port;
    return 0;
}

static int parse_addr_port(const char *text, struct sockaddr_storage *ret_addr, char **ret_msg)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    uint16_t port;
    const char *colon = strrchr(text, ':');
    g_autofree char *host = colon ? g_strndup(text, (size_t)(colon - text)) : g_strdup("");
    size_t len = strlen(host);
    if (parse_port(colon ? colon + 1 : text, &port) < 0)
        return bad_address(text, "not [ADDR:]PORT with a port from 0 to 65535", ret_msg);
    if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
        g_autofree char *inner = g_strndup(host + 1, len - 2);
        v6.sin6_port = htons(port);
        if (inet_pton(AF_INET6, inner, &v6.sin6_addr) != 1)
            return bad_address(text, "not an IPv6 address in brackets", ret_msg);
        *ret_addr = (struct sockaddr_storage){0};
        memcpy(ret_addr, &v6, sizeof v6);
        return 0;
    }
    const char *numeric = len == 0 || strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    v4.sin_port = htons(port);
    if (inet_pton(AF_INET, numeric, &v4.sin_addr) != 1)
        return bad_address(text, "the address must be numeric; write 0.0.0.0:PORT to serve every interface", ret_msg);
    *ret_addr = (struct sockaddr_storage){0};
    memcpy(ret_addr, &v4, sizeof v4);
    return 0;
}

int http_start(const char *addr_port, void (*refresh)(void *ctx), void *ctx, struct http_server **ret, char **ret_msg)
{
    struct sockaddr_storage addr;
    int r = parse_addr_port(addr_port, &addr, ret_msg);
    if (r < 0)
        return r;
    struct http_server *srv = g_new0(struct http_server, 1);
    srv->refresh = refresh;
    srv->ctx = ctx;
    unsigned flags = MHD_USE_AUTO_INTERNAL_THREAD | (addr.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    errno = 0;
    srv->mhd = MHD_start_daemon(flags, 0, NULL, NULL, on_request, srv, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&addr,
                                MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                                (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEM,
                                MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_END);
    if (!srv->mhd) {
        r = errno ? -errno : -EADDRINUSE;
        *ret_msg = g_strdup_printf("http '%s': cannot listen there: %s", addr_port, err_text(r));
        g_free(srv);
        return r;
    }
    *ret = srv;
    return 0;
}

void http_take_post(struct http_server *srv, const struct http_post *post)
{
    srv->post = *post;
    atomic_store(&srv->has_post, true);
}

void http_stop(struct http_server *srv)
{
    if (!srv)
        return;
    MHD_stop_daemon(srv->mhd);
    g_free(srv);
}

unsigned http_port(const struct http_server *srv)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(srv->mhd, MHD_DAEMON_INFO_BIND_PORT);
    return info ? info->port : 0;
}
