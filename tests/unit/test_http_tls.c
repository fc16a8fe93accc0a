/* The web server by TLS, over real connections: who is served, which files are used, who can hold it up. */
#include "base/clock.h"
#include "fs/http.h"
#include "fs/http_tls.h"
#include "tests/support/checks.h"
#include "tests/support/tls_fixture.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define N_MUTE 6

enum { CERT, KEY, CA, N_PATHS };

static struct http_server *srv;
static char *msg, *dir, *paths[N_PATHS];
static struct pair ca, other_ca, server, friend;
static unsigned n_taken, n_refused;
static size_t last_len;

static void setup(void)
{
    static const char *const names[] = {"cert.pem", "key.pem", "ca.pem"};
    n_taken = n_refused = 0;
    dir = g_dir_make_tmp("sluice-unit-XXXXXX", NULL);
    for (unsigned i = 0; i < N_PATHS; i++)
        paths[i] = g_build_filename(dir, names[i], NULL);
    ca = pair_make(&(struct pair_wish){.name = "ca", .is_ca = TRUE});
    other_ca = pair_make(&(struct pair_wish){.name = "other ca", .is_ca = TRUE});
    server = pair_make(&(struct pair_wish){.name = "first"});
    friend = pair_make(&(struct pair_wish){.name = "friend", .issuer = &ca});
    pair_write(&server, paths[CERT], paths[KEY]);
    pair_write(&ca, paths[CA], NULL);
}

static void teardown(void)
{
    http_stop(srv);
    srv = NULL;
    pair_free(&ca);
    pair_free(&other_ca);
    pair_free(&server);
    pair_free(&friend);
    for (unsigned i = 0; i < N_PATHS; i++) {
        (void)g_remove(paths[i]); /* what is left in $TMPDIR hurts no other test */
        g_free(paths[i]);
    }
    (void)g_rmdir(dir);
    g_clear_pointer(&dir, g_free);
    g_clear_pointer(&msg, g_free);
}

static void start(bool with_ca, bool later, unsigned idle_s)
{
    const struct http_setup s = {.addr_port = ":0",
                                 .tls = {paths[CERT], paths[KEY], with_ca ? paths[CA] : NULL},
                                 .tls_later = later,
                                 .idle_s = idle_s};
    ck_assert_msg(http_start(&s, &srv, &msg) == 0, "%s", msg);
}

static unsigned status_of(const char *answer)
{
    ck_assert_msg(g_str_has_prefix(answer, "HTTP/1.1 "), "'%s'", answer);
    return (unsigned)atoi(answer + strlen("HTTP/1.1 "));
}

static unsigned ask(struct client *c, const char *what)
{
    g_autofree char *request = g_strdup_printf("%s HTTP/1.1\r\nHost: x\r\n\r\n", what);
    g_autofree char *answer = client_ask(c, request, strlen(request));
    return status_of(answer);
}

/* On a connection of its own. */
static unsigned ask_as(const struct pair *own, const char *what)
{
    struct client c;
    client_open(&c, http_port(srv), own, NULL);
    unsigned status = ask(&c, what);
    client_close(&c);
    return status;
}

static unsigned post_as(const struct pair *own, const char *head, size_t len)
{
    struct client c;
    GString *request = g_string_new(NULL);
    g_string_printf(request, "POST /events HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n", head, len);
    for (size_t i = 0; i < len; i++)
        g_string_append_c(request, (char)('a' + i % 26));
    client_open(&c, http_port(srv), own, NULL);
    g_autofree char *answer = client_ask(&c, request->str, request->len);
    client_close(&c);
    g_string_free(request, TRUE);
    return status_of(answer);
}

static char *served_name(void)
{
    struct client c;
    client_open(&c, http_port(srv), NULL, NULL);
    char *name = c.handshake == 0 ? client_saw(&c) : g_strdup("none");
    client_close(&c);
    return name;
}

static unsigned admit_all(void *ctx, const char *authorization, const char *token)
{
    return 0;
}

static unsigned admit_secret(void *ctx, const char *authorization, const char *token)
{
    return g_strcmp0(authorization, "Bearer yes") == 0 ? 0 : HTTP_UNAUTHORIZED;
}

static unsigned take(void *ctx, const char *body, size_t len)
{
    n_taken++;
    last_len = len;
    return HTTP_OK;
}

static void on_refused(void *ctx, unsigned status)
{
    n_refused++;
}

/* Waits until the other end closes; what it says before (that it will) is dropped. */
static void await_end(int fd)
{
    char buf[64];
    while (recv(fd, buf, sizeof(buf), 0) > 0)
        ;
    close(fd);
}

/* ---- who is served ---- */

START_TEST(without_a_client_ca_everybody_is_served)
{
    start(false, false, 0);
    ck_assert_uint_eq(ask_as(NULL, "GET /healthz"), 200);
    ck_assert_uint_eq(ask_as(NULL, "GET /metrics"), 200);
    ck_assert_uint_eq(ask_as(&friend, "GET /metrics"), 200);
    ck_assert_uint_eq(ask_as(NULL, "GET /nothing"), 404);
    g_autofree char *name = served_name();
    ck_assert_str_eq(name, "first");
    ck_assert_ptr_null(http_trouble(srv));
}
END_TEST

START_TEST(a_client_ca_is_demanded_of_all_but_healthz)
{
    const struct http_post p = {"/events", 1000, admit_all, take, on_refused, NULL};
    start(true, false, 0);
    http_take_post(srv, &p);
    ck_assert_uint_eq(ask_as(NULL, "GET /healthz"), 200);
    ck_assert_uint_eq(ask_as(NULL, "GET /metrics"), 403);
    ck_assert_uint_eq(ask_as(NULL, "GET /nothing"), 403);
    ck_assert_uint_eq(ask_as(NULL, "GET /healthz/../metrics"), 403);
    ck_assert_uint_eq(post_as(NULL, "", 10), 403);
    ck_assert_uint_eq(n_refused, 1);
    ck_assert_uint_eq(n_taken, 0);
    ck_assert_uint_eq(ask_as(&friend, "GET /healthz"), 200);
    ck_assert_uint_eq(ask_as(&friend, "GET /metrics"), 200);
    ck_assert_uint_eq(post_as(&friend, "", 10), 200);
    ck_assert_uint_eq(n_taken, 1);
}
END_TEST

START_TEST(other_client_certificates_are_refused)
{
    const struct pair_wish bad[] = {
        {.name = "friend", .issuer = &other_ca},
        {.name = "friend"},
        {.name = "early", .issuer = &ca, .from_s = 3600},
        {.name = "late", .issuer = &ca, .from_s = -7200, .to_s = -3600},
        {.name = "server", .issuer = &ca, .purpose = GNUTLS_KP_TLS_WWW_SERVER},
        {.name = "of a client", .issuer = &friend},
    };
    start(true, false, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct pair stranger = pair_make(&bad[i]);
        ck_assert_msg(ask_as(&stranger, "GET /metrics") == 403, "%u", i);
        ck_assert_uint_eq(ask_as(&stranger, "GET /healthz"), 200);
        pair_free(&stranger);
    }
    struct pair good =
        pair_make(&(struct pair_wish){.name = "good", .issuer = &ca, .purpose = GNUTLS_KP_TLS_WWW_CLIENT});
    ck_assert_uint_eq(ask_as(&good, "GET /metrics"), 200);
    pair_free(&good);
}
END_TEST

START_TEST(certificate_and_secret_are_both_demanded)
{
    const struct http_post p = {"/events", 1000, admit_secret, take, on_refused, NULL};
    start(true, false, 0);
    http_take_post(srv, &p);
    ck_assert_uint_eq(post_as(NULL, "Authorization: Bearer yes\r\n", 10), 403);
    ck_assert_uint_eq(post_as(&friend, "", 10), 401);
    ck_assert_uint_eq(n_taken, 0);
    ck_assert_uint_eq(post_as(&friend, "Authorization: Bearer yes\r\n", 10), 200);
    ck_assert_uint_eq(n_taken, 1);
}
END_TEST

START_TEST(a_certificate_counts_until_it_expires_on_an_open_connection_too)
{
    struct client c;
    struct pair brief = pair_make(&(struct pair_wish){.name = "brief", .issuer = &ca, .to_s = 3600});
    start(true, false, 0);
    client_open(&c, http_port(srv), &brief, NULL);
    ck_assert_uint_eq(ask(&c, "GET /metrics"), 200);
    tls_time_advance(3000);
    ck_assert_uint_eq(ask(&c, "GET /metrics"), 200);
    tls_time_advance(3000);
    ck_assert_uint_eq(ask(&c, "GET /metrics"), 403);
    ck_assert_uint_eq(ask(&c, "GET /healthz"), 200);
    client_close(&c);
    pair_free(&brief);
}
END_TEST

START_TEST(versions_before_1_2_and_plain_http_are_refused)
{
    static const struct {
        const char *priorities;
        bool served;
    } cases[] = {{"NORMAL:-VERS-ALL:+VERS-TLS1.3", true},
                 {"NORMAL:-VERS-ALL:+VERS-TLS1.2", true},
                 {"NORMAL:-VERS-ALL:+VERS-TLS1.1:+VERS-TLS1.0:%COMPAT", false}};
    start(true, false, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct client c;
        client_open(&c, http_port(srv), &friend, cases[i].priorities);
        ck_assert_msg((c.handshake == 0) == cases[i].served, "%u: %s", i, gnutls_strerror(c.handshake));
        if (cases[i].served)
            ck_assert_uint_eq(ask(&c, "GET /metrics"), 200);
        client_close(&c);
    }
    static const char plain[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd = client_connect(http_port(srv));
    ck_assert_int_eq(send(fd, plain, strlen(plain), MSG_NOSIGNAL), strlen(plain));
    await_end(fd);
}
END_TEST

START_TEST(large_bodies_come_through)
{
    const size_t len = 700 * 1000;
    const struct http_post p = {"/events", len, admit_all, take, on_refused, NULL};
    start(true, false, 0);
    http_take_post(srv, &p);
    ck_assert_uint_eq(post_as(&friend, "", len), 200);
    ck_assert_uint_eq(last_len, len);
    ck_assert_uint_eq(post_as(&friend, "", len + 1), 413);
    ck_assert_uint_eq(post_as(NULL, "", len), 403);
    ck_assert_uint_eq(n_taken, 1);
}
END_TEST

/* ---- the files ---- */

static void look_again(void)
{
    clock_fake_advance(NS_PER_S);
}

START_TEST(renewed_files_count_without_a_restart)
{
    struct client kept;
    struct pair second = pair_make(&(struct pair_wish){.name = "second"});
    struct pair third = pair_make(&(struct pair_wish){.name = "third"});
    start(true, false, 0);
    client_open(&kept, http_port(srv), &friend, NULL);
    ck_assert_uint_eq(ask(&kept, "GET /metrics"), 200);
    pair_write(&second, paths[CERT], paths[KEY]);
    look_again();
    g_autofree char *renewed = served_name();
    ck_assert_str_eq(renewed, "second");
    ck_assert_uint_eq(ask(&kept, "GET /metrics"), 200);

    pair_write(&third, paths[CERT], NULL);
    look_again();
    g_autofree char *old = served_name();
    ck_assert_str_eq(old, "second");
    g_autofree char *trouble = http_trouble(srv);
    ck_assert_ptr_nonnull(trouble);
    ck_assert_msg(strstr(trouble, paths[KEY]) && strstr(trouble, "still"), "%s", trouble);
    pair_write(&third, NULL, paths[KEY]);
    look_again();
    g_autofree char *mended = served_name();
    ck_assert_str_eq(mended, "third");
    ck_assert_ptr_null(http_trouble(srv));

    pair_write(&other_ca, paths[CA], NULL);
    look_again();
    ck_assert_uint_eq(ask(&kept, "GET /metrics"), 403);
    ck_assert_uint_eq(ask_as(&friend, "GET /metrics"), 403);
    client_close(&kept);
    pair_free(&second);
    pair_free(&third);
}
END_TEST

START_TEST(files_that_are_gone_leave_those_of_before)
{
    start(false, false, 0);
    ck_assert_int_eq(g_remove(paths[KEY]), 0);
    look_again();
    g_autofree char *name = served_name();
    ck_assert_str_eq(name, "first");
    g_autofree char *trouble = http_trouble(srv);
    ck_assert_msg(trouble && strstr(trouble, paths[KEY]), "%s", trouble);
}
END_TEST

START_TEST(later_files_are_waited_for_and_nobody_is_served_before)
{
    ck_assert_int_eq(g_remove(paths[CERT]), 0);
    start(true, true, 0);
    g_autofree char *none = served_name();
    ck_assert_str_eq(none, "none");
    g_autofree char *trouble = http_trouble(srv);
    ck_assert_msg(trouble && strstr(trouble, paths[CERT]), "%s", trouble);
    pair_write(&server, paths[CERT], NULL);
    look_again();
    ck_assert_uint_eq(ask_as(NULL, "GET /healthz"), 200);
    ck_assert_uint_eq(ask_as(NULL, "GET /metrics"), 403);
    ck_assert_uint_eq(ask_as(&friend, "GET /metrics"), 200);
    ck_assert_ptr_null(http_trouble(srv));
}
END_TEST

/* The files may be fine: they are read again though none of them changes. */
START_TEST(files_that_could_not_be_read_are_tried_again)
{
    const struct http_tls_files files = {paths[CERT], paths[KEY], paths[CA]};
    struct http_tls *tls = NULL;
    struct rlimit limit, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){0, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(http_tls_open(&files, true, &tls, &msg), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (unsigned i = 0; i < 2; i++) {
        g_autofree char *trouble = http_tls_trouble(tls);
        ck_assert_msg(trouble && strstr(trouble, paths[CERT]), "%s", trouble);
        look_again();
        ck_assert_ptr_null(http_tls_begin(tls, NULL));
        ck_assert_ptr_null(http_tls_trouble(tls));
        pair_write(&server, paths[CERT], paths[KEY]);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
        look_again();
        ck_assert_ptr_null(http_tls_begin(tls, NULL));
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    }
    http_tls_close(tls);
}
END_TEST

static void write_locked_key(void)
{
    gnutls_datum_t pem = {NULL, 0};
    unsigned char buf[4096];
    size_t size = sizeof(buf);
    ck_assert_int_eq(gnutls_x509_privkey_export_pkcs8(server.key, GNUTLS_X509_FMT_PEM, "word",
                                                      GNUTLS_PKCS_PBES2_AES_256, buf, &size),
                     0);
    pem = (gnutls_datum_t){buf, (unsigned)size};
    ck_assert(g_file_set_contents(paths[KEY], (const char *)pem.data, (gssize)pem.size, NULL));
    ck_assert_int_eq(g_chmod(paths[KEY], 0600), 0);
}

/* Makes file `which` unfit in way `how`; false: there is no such way. */
static bool spoil(unsigned which, unsigned how)
{
    static const char *const texts[] = {"", "no certificate\n",
                                        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"};
    if (how < G_N_ELEMENTS(texts)) {
        ck_assert(g_file_set_contents(paths[which], texts[how], -1, NULL));
        return g_chmod(paths[which], 0600) == 0;
    }
    if (how == G_N_ELEMENTS(texts))
        return g_remove(paths[which]) == 0;
    if (how == G_N_ELEMENTS(texts) + 1)
        return g_chmod(paths[which], which == KEY ? 0644 : 0666) == 0;
    if (which == KEY && how == G_N_ELEMENTS(texts) + 2) {
        write_locked_key();
        return true;
    }
    if (which == KEY && how == G_N_ELEMENTS(texts) + 3) {
        pair_write(&friend, NULL, paths[KEY]);
        return true;
    }
    if (which == CA && how == G_N_ELEMENTS(texts) + 2)
        return g_chmod(paths[CA], 0664) == 0 && (geteuid() != 0 || chown(paths[CA], 0, 1234) == 0);
    if (which == CA && how == G_N_ELEMENTS(texts) + 3 && geteuid() == 0)
        return chown(paths[CA], 1234, 0) == 0;
    return false;
}

START_TEST(unfit_files_are_refused_with_a_line)
{
    static const char *const options[] = {"http-cert '", "http-key '", "http-client-ca '"};
    for (unsigned which = 0; which < N_PATHS; which++)
        for (unsigned how = 0; spoil(which, how); how++) {
            const struct http_setup s = {.addr_port = ":0", .tls = {paths[CERT], paths[KEY], paths[CA]}};
            ck_assert_msg(http_start(&s, &srv, &msg) == -EINVAL, "%u %u", which, how);
            ck_assert_msg(g_str_has_prefix(msg, options[which]) && strstr(msg, paths[which]), "%s", msg);
            g_clear_pointer(&msg, g_free);
            pair_write(&server, paths[CERT], paths[KEY]);
            pair_write(&ca, paths[CA], NULL);
        }
}
END_TEST

/* ---- who says nothing ---- */

START_TEST(mute_clients_hold_up_nobody_and_are_closed)
{
    static const unsigned char begun[] = {22, 3, 1, 2, 0, 1, 0, 1};
    int fds[N_MUTE];
    start(true, false, 1);
    for (unsigned i = 0; i < N_MUTE; i++) {
        fds[i] = client_connect(http_port(srv));
        if (i % 2)
            ck_assert_int_eq(send(fds[i], begun, sizeof(begun), MSG_NOSIGNAL), sizeof(begun));
    }
    ck_assert_uint_eq(ask_as(&friend, "GET /metrics"), 200);
    ck_assert_uint_eq(ask_as(NULL, "GET /healthz"), 200);
    for (unsigned i = 0; i < N_MUTE; i++)
        await_end(fds[i]);
}
END_TEST

START_TEST(mute_clients_do_not_hold_up_the_end)
{
    int fds[N_MUTE];
    start(true, false, 3600);
    for (unsigned i = 0; i < N_MUTE; i++)
        fds[i] = client_connect(http_port(srv));
    ck_assert_uint_eq(ask_as(NULL, "GET /healthz"), 200);
    http_stop(srv);
    srv = NULL;
    for (unsigned i = 0; i < N_MUTE; i++)
        await_end(fds[i]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_tls");
    TCase *tc = tcase_create("http_tls");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, without_a_client_ca_everybody_is_served);
    tcase_add_test(tc, a_client_ca_is_demanded_of_all_but_healthz);
    tcase_add_test(tc, other_client_certificates_are_refused);
    tcase_add_test(tc, certificate_and_secret_are_both_demanded);
    tcase_add_test(tc, a_certificate_counts_until_it_expires_on_an_open_connection_too);
    tcase_add_test(tc, versions_before_1_2_and_plain_http_are_refused);
    tcase_add_test(tc, large_bodies_come_through);
    tcase_add_test(tc, renewed_files_count_without_a_restart);
    tcase_add_test(tc, files_that_are_gone_leave_those_of_before);
    tcase_add_test(tc, later_files_are_waited_for_and_nobody_is_served_before);
    tcase_add_test(tc, files_that_could_not_be_read_are_tried_again);
    tcase_add_test(tc, unfit_files_are_refused_with_a_line);
    tcase_add_test(tc, mute_clients_hold_up_nobody_and_are_closed);
    tcase_add_test(tc, mute_clients_do_not_hold_up_the_end);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
