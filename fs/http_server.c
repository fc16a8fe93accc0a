/* Metrics server on libmicrohttpd: one thread of its own, 128 connections, 10 s idle timeout; the only user of that library. */
#include "base/log.h"
#include "base/metric.h"
#include "fs/http.h"

#include <arpa/inet.h>
#include <glib.h>
#include <linux/tcp.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONNECTIONS 128                   /* a gateway sends from many threads at once */
#define OF_ONE_ADDRESS  (MAX_CONNECTIONS / 2) /* all events may come from one gateway, but it keeps nobody else out */
#define IDLE_S          10
#define CONNECTION_MEM  (16 * 1024)
#define DROP_TIMES      16u /* so much more than may be sent is read and dropped, beyond the connection is closed */

struct http_server { /* immutable after http_start */
    struct MHD_Daemon *mhd;
    struct http_tls *tls; /* NULL: plain http */
    void (*refresh)(void *ctx);
    void *ctx;             /* borrowed */
    struct http_post post; /* valid once has_post is set */
    atomic_bool has_post;
};

/* A connection by TLS. */
struct tls_link {
    struct http_tls_set *set;
    bool asked; /* a request came */
};

/* A refusal. */
struct verdict {
    unsigned status; /* 0: let in */
    const char *text;
};

/* A POST whose body is on its way. */
struct sent {
    struct verdict refused; /* the answer, which a client sees only once it has sent its body */
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

/* ---- TLS: who is at the other end ---- */

static void *session_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    return info ? info->tls_session : NULL;
}

static void name_of(struct MHD_Connection *conn, char *buf, size_t size)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *addr = info ? info->client_addr : NULL;
    socklen_t len = addr && addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (!addr || getnameinfo(addr, len, buf, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0)
        g_strlcpy(buf, "?", size);
}

/* Something looks whether the port is open, and says nothing. */
static bool was_silent(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct tcp_info tcp = {0};
    socklen_t len = sizeof(tcp);
    return info && getsockopt(info->connect_fd, IPPROTO_TCP, TCP_INFO, &tcp, &len) == 0 && tcp.tcpi_bytes_received == 0;
}

/* The library may have freed the session when a connection's end is told. */
static void on_connection(void *arg, struct MHD_Connection *conn, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *srv = arg;
    struct tls_link *link = *state;
    char from[64];
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        link = *state = g_new0(struct tls_link, 1);
        link->set = http_tls_begin(srv->tls, session_of(conn));
        return;
    }
    if (!link->asked && !was_silent(conn)) {
        name_of(conn, from, sizeof(from));
        log_info(
            "http",
            "a connection ended without a request: plain http, no TLS version in common, or no trust in the certificate from=%s",
            from);
    }
    http_tls_end(link->set);
    g_free(link);
    *state = NULL;
}

static void note_request(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct tls_link *link = info ? info->socket_context : NULL;
    if (link)
        link->asked = true;
}

static struct verdict judge_peer(struct http_server *srv, struct MHD_Connection *conn)
{
    g_autofree char *why = NULL;
    char from[64];
    enum http_tls_peer peer = srv->tls ? http_tls_check_peer(srv->tls, session_of(conn), &why) : HTTP_TLS_ADMITTED;
    if (peer == HTTP_TLS_ADMITTED)
        return (struct verdict){0};
    name_of(conn, from, sizeof(from));
    log_warn("http", "a request was refused: %s%s from=%s",
             peer == HTTP_TLS_UNNAMED ? "without a client certificate" : "client certificate: ", why ? why : "", from);
    return (struct verdict){HTTP_FORBIDDEN, peer == HTTP_TLS_UNNAMED ? "a client certificate is needed\n"
                                                                     : "not a client certificate that is valid here\n"};
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
static enum MHD_Result answer(struct MHD_Connection *conn, struct verdict v)
{
    const char *text = v.text;
    struct MHD_Response *resp =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    if (!resp)
        return MHD_NO;
    if (v.status == HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(resp, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Basic realm=\"sluice\"");
    enum MHD_Result r = MHD_queue_response(conn, v.status, resp);
    MHD_destroy_response(resp);
    return r;
}

static struct verdict verdict_of(unsigned status)
{
    return (struct verdict){status, status_text(status)};
}

static enum MHD_Result refuse(struct http_server *srv, struct MHD_Connection *conn, struct verdict v)
{
    srv->post.refused(srv->post.ctx, v.status);
    return answer(conn, v);
}

static enum MHD_Result post_begin(struct http_server *srv, struct MHD_Connection *conn, void **state)
{
    const char *length = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *who = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *token = MHD_lookup_connection_value(conn, MHD_GET_ARGUMENT_KIND, "token");
    uint64_t announced = length ? g_ascii_strtoull(length, NULL, 10) : 0;
    struct verdict refused = judge_peer(srv, conn);
    if (refused.status == 0)
        refused = verdict_of(srv->post.admit(srv->post.ctx, who, token));
    if (refused.status == 0 && announced > srv->post.body_max)
        refused = verdict_of(HTTP_TOO_LARGE);
    if (refused.status && announced > DROP_TIMES * (uint64_t)srv->post.body_max)
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
        return sent->refused.status
                   ? refuse(srv, conn, sent->refused)
                   : answer(conn, verdict_of(srv->post.take(srv->post.ctx, sent->body->str, sent->body->len)));
    sent->len += *body_len;
    if (!sent->refused.status && sent->len > srv->post.body_max)
        sent->refused = verdict_of(HTTP_TOO_LARGE);
    if (sent->len > DROP_TIMES * srv->post.body_max)
        return MHD_NO;
    if (!sent->refused.status)
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
    struct verdict refused = strcmp(url, "/healthz") == 0 ? (struct verdict){0} : judge_peer(srv, conn);
    if (refused.status)
        return answer(conn, refused);
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
    if (!*state)
        note_request(conn);
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

/* ---- life ---- */

static int open_tls(const struct http_setup *setup, struct http_tls **ret, char **ret_msg)
{
    if (!setup->tls.cert)
        return 0;
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES ||
        MHD_is_feature_supported(MHD_FEATURE_HTTPS_CERT_CALLBACK) != MHD_YES) {
        *ret_msg = g_strdup_printf("http-cert '%s': libmicrohttpd was built without TLS here", setup->tls.cert);
        return -ENOTSUP;
    }
    return http_tls_open(&setup->tls, setup->tls_later, ret, ret_msg);
}

static struct MHD_Daemon *listen_at(struct http_server *srv, const struct sockaddr_storage *addr, unsigned idle_s)
{
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)HTTP_TLS_PRIORITIES},
        {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)http_tls_no_certificate},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, srv},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem *more = srv->tls ? tls : &tls[G_N_ELEMENTS(tls) - 1];
    unsigned flags =
        MHD_USE_AUTO_INTERNAL_THREAD | (addr->ss_family == AF_INET6 ? MHD_USE_IPv6 : 0) | (srv->tls ? MHD_USE_TLS : 0);
    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, srv, MHD_OPTION_SOCK_ADDR, (const struct sockaddr *)addr,
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                            (unsigned)OF_ONE_ADDRESS, MHD_OPTION_CONNECTION_TIMEOUT, idle_s ? idle_s : (unsigned)IDLE_S,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEM, MHD_OPTION_NOTIFY_COMPLETED,
                            on_end, NULL, MHD_OPTION_ARRAY, more, MHD_OPTION_END);
}

int http_start(const struct http_setup *setup, struct http_server **ret, char **ret_msg)
{
    struct sockaddr_storage addr;
    struct http_tls *tls = NULL;
    int r = parse_addr_port(setup->addr_port, &addr, ret_msg);
    if (r == 0)
        r = open_tls(setup, &tls, ret_msg);
    if (r < 0)
        return r;
    struct http_server *srv = g_new0(struct http_server, 1);
    srv->refresh = setup->refresh;
    srv->ctx = setup->ctx;
    srv->tls = tls;
    errno = 0;
    srv->mhd = listen_at(srv, &addr, setup->idle_s);
    if (!srv->mhd) {
        r = errno ? -errno : -EADDRINUSE;
        *ret_msg = g_strdup_printf("http '%s': cannot listen there: %s", setup->addr_port, err_text(r));
        http_tls_close(tls);
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
    http_tls_close(srv->tls);
    g_free(srv);
}

char *http_trouble(struct http_server *srv)
{
    return srv->tls ? http_tls_trouble(srv->tls) : NULL;
}

unsigned http_port(const struct http_server *srv)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(srv->mhd, MHD_DAEMON_INFO_BIND_PORT);
    return info ? info->port : 0;
}
