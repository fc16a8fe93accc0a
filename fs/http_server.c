/* Metrics server on libmicrohttpd: one thread of its own, 16 connections, 10 s idle timeout; the only user of that library. */
#include "base/metric.h"
#include "fs/http.h"

#include <arpa/inet.h>
#include <glib.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONNECTIONS 16
#define IDLE_S          10
#define CONNECTION_MEM  (16 * 1024)

struct http_server { /* immutable after http_start */
    struct MHD_Daemon *mhd;
    void (*refresh)(void *ctx);
    void *ctx; /* borrowed */
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

static enum MHD_Result on_request(void *arg, struct MHD_Connection *conn, const char *url, const char *method,
                                  const char *version, const char *body, size_t *body_len, void **state)
{
    static int seen; /* its address marks a request whose header is complete; never written */
    struct http_server *srv = arg;
    if (!*state) {
        *state = &seen;
        return MHD_YES;
    }
    if (*body_len) { /* drop what a client sends along */
        *body_len = 0;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return reply(conn, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain", g_string_new("only GET and HEAD\n"));
    if (strcmp(url, "/healthz") == 0)
        return reply(conn, MHD_HTTP_OK, "text/plain", g_string_new("ok\n"));
    if (strcmp(url, "/metrics") != 0)
        return reply(conn, MHD_HTTP_NOT_FOUND, "text/plain", g_string_new("/metrics and /healthz are here\n"));
    if (srv->refresh)
        srv->refresh(srv->ctx);
    GString *out = g_string_new(NULL);
    metric_expose(out);
    return reply(conn, MHD_HTTP_OK, "text/plain; version=0.0.4", out);
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
    srv->mhd =
        MHD_start_daemon(flags, 0, NULL, NULL, on_request, srv, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&addr,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEM, MHD_OPTION_END);
    if (!srv->mhd) {
        r = errno ? -errno : -EADDRINUSE;
        *ret_msg = g_strdup_printf("http '%s': cannot listen there: %s", addr_port, err_text(r));
        g_free(srv);
        return r;
    }
    *ret = srv;
    return 0;
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
