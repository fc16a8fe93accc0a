/* Metrics server over real connections: pages, methods, addresses that are refused. */
#include "base/metric.h"
#include "fs/http.h"
#include "tests/support/checks.h"

#include <arpa/inet.h>
#include <check.h>
#include <glib.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct http_server *srv;
static char *msg;
static int n_refreshed;

static void refresh(void *ctx)
{
    n_refreshed++;
    metric_set(M_dirty_files, *(int *)ctx);
}

/* From the last-th address of this machine. */
static int connect_from(unsigned last)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK - 1 + last)}};
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(srv)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval wait = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

static char *fetch_from(unsigned last, const char *request)
{
    int fd = connect_from(last);
    ck_assert_int_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    GString *s = g_string_new(NULL);
    char buf[4096];
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        g_string_append_len(s, buf, n);
    close(fd);
    return g_string_free(s, FALSE);
}

static char *fetch(const char *request)
{
    return fetch_from(1, request);
}

static int dirty = 7;

static void setup(void)
{
    n_refreshed = 0;
    const struct http_setup setup_ = {.addr_port = ":0", .refresh = refresh, .ctx = &dirty};
    ck_assert_int_eq(http_start(&setup_, &srv, &msg), 0);
}

static void teardown(void)
{
    http_stop(srv);
}

START_TEST(metrics_are_refreshed_and_exposed)
{
    g_autofree char *a = fetch("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_msg(g_str_has_prefix(a, "HTTP/1.1 200"), "%s", a);
    ck_assert_ptr_nonnull(strstr(a, "text/plain; version=0.0.4"));
    ck_assert_ptr_nonnull(strstr(a, "\nsluice_dirty_files 7\n"));
    ck_assert_int_eq(n_refreshed, 1);
}
END_TEST

START_TEST(one_address_keeps_nobody_else_out)
{
    enum { N = 140 };
    int mute[N];
    const struct http_setup patient = {.addr_port = ":0", .ctx = &dirty, .idle_s = 3600};
    http_stop(srv);
    ck_assert_int_eq(http_start(&patient, &srv, &msg), 0);
    for (unsigned i = 0; i < N; i++)
        mute[i] = connect_from(1);
    g_autofree char *a = fetch_from(2, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_msg(g_str_has_prefix(a, "HTTP/1.1 200"), "%s", a);
    for (unsigned i = 0; i < N; i++)
        close(mute[i]);
}
END_TEST

START_TEST(healthz_answers_without_refresh)
{
    g_autofree char *a = fetch("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(a, "\r\n\r\nok\n"));
    ck_assert_int_eq(n_refreshed, 0);
}
END_TEST

START_TEST(other_pages_and_methods_are_refused)
{
    g_autofree char *a = fetch("GET /../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_msg(g_str_has_prefix(a, "HTTP/1.1 404"), "%s", a);
    g_autofree char *b =
        fetch("POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc");
    ck_assert_msg(g_str_has_prefix(b, "HTTP/1.1 405"), "%s", b);
}
END_TEST

/* ---- POST ---- */

static unsigned n_taken, n_refused, last_refused;
static size_t last_len;

static unsigned admit(void *ctx, const char *authorization, const char *token)
{
    if (g_strcmp0(authorization, "Bearer yes") == 0 || g_strcmp0(token, "y s") == 0)
        return 0;
    return authorization ? HTTP_FORBIDDEN : HTTP_UNAUTHORIZED;
}

static unsigned take(void *ctx, const char *body, size_t len)
{
    n_taken++;
    last_len = len;
    return len && body[0] == '!' ? HTTP_BAD_REQUEST : HTTP_OK;
}

static void on_refused(void *ctx, unsigned status)
{
    n_refused++;
    last_refused = status;
}

static unsigned post(const char *where, const char *head, const char *body)
{
    g_autofree char *request =
        g_strdup_printf("POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n%s", where, head, body);
    g_autofree char *a = fetch(request);
    ck_assert_msg(g_str_has_prefix(a, "HTTP/1.1 "), "%s", a);
    return (unsigned)atoi(a + strlen("HTTP/1.1 "));
}

START_TEST(posts_are_taken_from_who_is_let_in)
{
    const struct http_post p = {"/events", 10, admit, take, on_refused, NULL};
    ck_assert_uint_eq(post("/events", "Authorization: Bearer yes\r\nContent-Length: 2\r\n", "ab"), 405);
    http_take_post(srv, &p);
    ck_assert_uint_eq(post("/events", "Authorization: Bearer yes\r\nContent-Length: 2\r\n", "ab"), 200);
    ck_assert_uint_eq(post("/events?token=y+s", "Content-Length: 10\r\n", "0123456789"), 200);
    ck_assert_uint_eq(last_len, 10);
    ck_assert_uint_eq(post("/events", "Authorization: Bearer yes\r\nContent-Length: 1\r\n", "!"), 400);
    ck_assert_uint_eq(n_taken, 3);
    ck_assert_uint_eq(n_refused, 0);
    ck_assert_uint_eq(post("/events", "Content-Length: 2\r\n", "ab"), 401);
    ck_assert_uint_eq(post("/events", "Authorization: Bearer no\r\nContent-Length: 2\r\n", "ab"), 403);
    ck_assert_uint_eq(post("/events?token=y+s", "Content-Length: 11\r\n", "01234567890"), 413);
    ck_assert_uint_eq(post("/events?token=y+s", "Content-Length: 1000000000000\r\n", ""), 413);
    ck_assert_uint_eq(post("/events?token=y+s", "Transfer-Encoding: chunked\r\n", "b\r\n01234567890\r\n0\r\n\r\n"),
                      413);
    ck_assert_uint_eq(n_refused, 5);
    ck_assert_uint_eq(last_refused, 413);
    ck_assert_uint_eq(n_taken, 3);
    ck_assert_uint_eq(post("/metrics", "Content-Length: 2\r\n", "ab"), 405);
    g_autofree char *got = fetch("GET /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_msg(g_str_has_prefix(got, "HTTP/1.1 405"), "%s", got);
}
END_TEST

START_TEST(wrong_addresses_are_refused_with_a_line)
{
    static const char *const bad[] = {
        "",        "x",      "127.0.0.1", "127.0.0.1:", ":70000", "*:9100", "example.org:80",
        "[::1:80", "[x]:80", "1.2.3:80",  ":-1"};
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct http_server *s = NULL;
        char *m = NULL;
        ck_assert_msg(http_start(&(struct http_setup){.addr_port = bad[i]}, &s, &m) == -EINVAL, "'%s'", bad[i]);
        ck_assert_ptr_nonnull(m);
        g_free(m);
    }
}
END_TEST

START_TEST(port_in_use_is_said)
{
    g_autofree char *addr = g_strdup_printf("127.0.0.1:%u", http_port(srv));
    struct http_server *s = NULL;
    ck_assert_int_eq(http_start(&(struct http_setup){.addr_port = addr}, &s, &msg), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(msg, addr));
    g_clear_pointer(&msg, g_free);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_server");
    TCase *tc = tcase_create("http_server");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, metrics_are_refreshed_and_exposed);
    tcase_add_test(tc, one_address_keeps_nobody_else_out);
    tcase_add_test(tc, healthz_answers_without_refresh);
    tcase_add_test(tc, other_pages_and_methods_are_refused);
    tcase_add_test(tc, posts_are_taken_from_who_is_let_in);
    tcase_add_test(tc, wrong_addresses_are_refused_with_a_line);
    tcase_add_test(tc, port_in_use_is_said);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
