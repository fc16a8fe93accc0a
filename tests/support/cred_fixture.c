/*
 * What the credential tests share: a private folder with a debug log, and fake services on loopback. See cred_fixture.h.
 */
#include "cred_fixture.h"

#include "base/clock.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Tests run one by one, each in a process of its own or after the teardown of the one before. */
struct objstore_config cred_cfg;
static char *dir;

/* ---- a fake service ---- */

static int64_t service_now_s(const struct fake_service *sv)
{
    return clock_wall_ns() / (int64_t)NS_PER_S + sv->ahead_s;
}

/* Signed by another clock. */
static bool signed_late(const struct fake_service *sv, const char *req)
{
    const char *at = strcasestr(req, "X-Amz-Date: ");
    g_autofree char *text = g_strndup(at != NULL ? at + strlen("X-Amz-Date: ") : "", strlen("20260101T000000Z"));
    g_autoptr(GDateTime) t = g_date_time_new_from_iso8601(text, NULL);
    return t != NULL && ABS(g_date_time_to_unix(t) - service_now_s(sv)) > 900;
}

static void service_answer(struct fake_service *sv, int fd)
{
    char req[8192];
    size_t len = 0;
    for (;;) {
        ssize_t n = read(fd, req + len, sizeof(req) - 1 - len);
        if (n <= 0)
            return;
        len += (size_t)n;
        req[len] = '\0';
        char *end = strstr(req, "\r\n\r\n");
        if (end == NULL)
            continue;
        char *cl = strcasestr(req, "content-length:");
        size_t body = cl != NULL ? strtoul(cl + 15, NULL, 10) : 0;
        if (len >= (size_t)(end + 4 - req) + body)
            break;
    }
    struct pollfd client = {.fd = fd, .events = POLLRDHUP};
    if (sv->delay_ms && poll(&client, 1, (int)sv->delay_ms) > 0)
        return; /* it has given up */
    pthread_mutex_lock(&sv->mu);
    sv->n_requests++;
    memcpy(sv->last, req, len + 1);
    unsigned fail = sv->fail != 0 ? sv->fail : sv->ahead_s != 0 && signed_late(sv, req) ? 403 : 0;
    g_autofree char *body = fail != 0 ? g_strdup(sv->fail_body) : sv->reply(sv, req);
    unsigned status = fail != 0 ? fail : body == NULL ? 404 : 200;
    g_autoptr(GDateTime) now = g_date_time_new_from_unix_utc(service_now_s(sv));
    g_autofree char *date = g_date_time_format(now, "%a, %d %b %Y %H:%M:%S GMT");
    pthread_mutex_unlock(&sv->mu);
    dprintf(fd, "HTTP/1.1 %u X\r\nDate: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status, date,
            body != NULL ? strlen(body) : 0, body != NULL ? body : "");
}

static void *service_main(void *arg)
{
    struct fake_service *sv = arg;
    for (;;) {
        int fd = accept(sv->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        service_answer(sv, fd);
        close(fd);
    }
}

void fake_service_start(struct fake_service *sv, char *(*reply)(struct fake_service *, const char *))
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t alen = sizeof(a);
    memset(sv, 0, sizeof(*sv));
    sv->reply = reply;
    sv->lifetime_s = 3600;
    sv->fail_body = "no";
    pthread_mutex_init(&sv->mu, NULL);
    sv->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(sv->fd, (struct sockaddr *)&a, alen), 0);
    ck_assert_int_eq(listen(sv->fd, 64), 0);
    getsockname(sv->fd, (struct sockaddr *)&a, &alen);
    sv->port = ntohs(a.sin_port);
    ck_assert_int_eq(pthread_create(&sv->thread, NULL, service_main, sv), 0);
}

void fake_service_stop(struct fake_service *sv)
{
    shutdown(sv->fd, SHUT_RDWR);
    pthread_join(sv->thread, NULL);
    close(sv->fd);
}

unsigned fake_service_requests(struct fake_service *sv)
{
    pthread_mutex_lock(&sv->mu);
    unsigned n = sv->n_requests;
    pthread_mutex_unlock(&sv->mu);
    return n;
}

void fake_service_fail_with(struct fake_service *sv, unsigned status, const char *body)
{
    pthread_mutex_lock(&sv->mu);
    sv->fail = status;
    sv->fail_body = body;
    pthread_mutex_unlock(&sv->mu);
}

void fake_service_fail(struct fake_service *sv, unsigned status)
{
    fake_service_fail_with(sv, status, "no");
}

bool fake_service_saw(struct fake_service *sv, const char *part)
{
    pthread_mutex_lock(&sv->mu);
    bool saw = strcasestr(sv->last, part) != NULL;
    pthread_mutex_unlock(&sv->mu);
    return saw;
}

void fake_service_env(struct fake_service *sv, const char *name, const char *path)
{
    g_autofree char *url = g_strdup_printf("http://127.0.0.1:%u%s", sv->port, path);
    setenv(name, url, 1);
}

static char *expiration(struct fake_service *sv)
{
    g_autoptr(GDateTime) t = g_date_time_new_from_unix_utc(service_now_s(sv) + sv->lifetime_s);
    return g_date_time_format(t, "%Y-%m-%dT%H:%M:%SZ");
}

char *fake_reply_json(struct fake_service *sv, const char *request)
{
    g_autofree char *exp = expiration(sv);
    return g_strdup_printf("{\"Code\":\"Success\",\"AccessKeyId\":\"AKJSON%u\",\"SecretAccessKey\":\"" CRED_SECRET
                           "\",\"Token\":\"CANARYtoken\",\"Expiration\":\"%s\"}",
                           sv->n_requests, exp);
}

char *fake_reply_imds(struct fake_service *sv, const char *request)
{
    if (g_str_has_prefix(request, "PUT /latest/api/token "))
        return strcasestr(request, "x-aws-ec2-metadata-token-ttl-seconds: ") != NULL ? g_strdup("CANARYimds") : NULL;
    if (strcasestr(request, "x-aws-ec2-metadata-token: CANARYimds") == NULL)
        return NULL;
    if (g_str_has_prefix(request, "GET /latest/meta-data/iam/security-credentials/ "))
        return g_strdup("the-role\n");
    return g_str_has_prefix(request, "GET /latest/meta-data/iam/security-credentials/the-role ")
               ? fake_reply_json(sv, request)
               : NULL;
}

char *fake_reply_sts(struct fake_service *sv, const char *request)
{
    g_autofree char *exp = expiration(sv);
    return g_strdup_printf(
        "<?xml version=\"1.0\"?><R xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><X><Credentials>"
        "<AccessKeyId>AKSTS%u</AccessKeyId><SecretAccessKey>" CRED_SECRET "</SecretAccessKey>"
        "<SessionToken>CANARYsts</SessionToken><Expiration>%s</Expiration></Credentials></X></R>",
        sv->n_requests, exp);
}

/* ---- helpers ---- */

char *cred_path(const char *name)
{
    return g_build_filename(dir, name, NULL);
}

void cred_put(const char *name, mode_t mode, const char *text)
{
    g_autofree char *path = cred_path(name);
    unlink(path); /* a new inode: what tools that rewrite the file do */
    ck_assert(g_file_set_contents(path, text, -1, NULL));
    ck_assert_int_eq(chmod(path, mode), 0);
}

char *cred_log_text(void)
{
    g_autofree char *path = cred_path("log");
    char *text = NULL;
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    return text;
}

void cred_expect_origin(const char *origin)
{
    g_autofree char *text = cred_log_text();
    g_autofree char *part = g_strdup_printf("source chosen origin='%s'", origin);
    ck_assert_msg(strstr(text, part) != NULL, "%s", text);
}

unsigned cred_n_warnings(void)
{
    g_autofree char *text = cred_log_text();
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, "credentials cannot be renewed")) != NULL; p++)
        n++;
    return n;
}

void cred_setup(void)
{
    g_auto(GStrv) names = g_listenv();
    for (size_t i = 0; names[i] != NULL; i++) {
        if (g_str_has_prefix(names[i], "AWS_"))
            unsetenv(names[i]);
    }
    dir = g_dir_make_tmp("sluice-cred-XXXXXX", NULL);
    ck_assert_ptr_nonnull(dir);
    g_autofree char *credentials = cred_path("credentials"), *config = cred_path("config"), *log = cred_path("log");
    setenv("AWS_SHARED_CREDENTIALS_FILE", credentials, 1);
    setenv("AWS_CONFIG_FILE", config, 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    memset(&cred_cfg, 0, sizeof(cred_cfg));
    cred_cfg.source = "s3://bucket";
    ck_assert_int_eq(log_open(log, LOG_LEVEL_DEBUG), 0);
}

void cred_teardown(void)
{
    log_close();
    g_autofree char *text = cred_log_text();
    ck_assert_msg(strstr(text, "CANARY") == NULL, "a secret is in the log:\n%s", text);
    for (const char *const *n = (const char *const[]){"credentials", "config", "log", "token", "script", NULL};
         *n != NULL; n++) {
        g_autofree char *path = cred_path(*n);
        unlink(path);
    }
    rmdir(dir);
    g_clear_pointer(&dir, g_free);
}

struct s3_cred *cred_open_ok(void)
{
    struct s3_cred *c = NULL;
    g_autofree char *msg = NULL;
    int r = s3_cred_open(&cred_cfg, &c, &msg);
    ck_assert_msg(r == 0, "open: %d %s", r, msg);
    return c;
}

char *cred_open_fails(void)
{
    struct s3_cred *c = NULL;
    char *msg = NULL;
    ck_assert_int_eq(s3_cred_open(&cred_cfg, &c, &msg), -EACCES);
    ck_assert_ptr_null(c);
    ck_assert_ptr_nonnull(msg);
    ck_assert_ptr_null(strstr(msg, "CANARY"));
    return msg;
}

static void compare(struct s3_keys *k, const char *access_key, const char *token)
{
    if (access_key != NULL)
        ck_assert_str_eq(k->access_key, access_key);
    ck_assert_str_eq(k->secret_key, CRED_SECRET);
    ck_assert_pstr_eq(k->session_token, token);
    ck_assert(!k->anonymous);
    s3_keys_clear(k);
    ck_assert_ptr_null(k->session_token);
    ck_assert_str_eq(k->secret_key, "");
}

static int get(struct s3_cred *c, struct s3_keys *k)
{
    return s3_cred_get(c, clock_mono_ns() + CRED_PATIENCE_NS, k);
}

void cred_expect_keys(struct s3_cred *c, const char *access_key, const char *token)
{
    struct s3_keys k = {0};
    int r = get(c, &k);
    g_autofree char *why = s3_cred_error(c);
    ck_assert_msg(r == 0, "get: %d %s", r, why);
    compare(&k, access_key, token);
}

void cred_await_keys(struct s3_cred *c, const char *access_key, const char *token)
{
    uint64_t end_ns = clock_mono_ns() + CRED_PATIENCE_NS;
    struct s3_keys k = {0};
    ck_assert_int_eq(get(c, &k), 0);
    while (strcmp(k.access_key, access_key) != 0 && clock_mono_ns() < end_ns) {
        s3_keys_clear(&k);
        g_usleep(5000);
        ck_assert_int_eq(get(c, &k), 0);
    }
    compare(&k, access_key, token);
}

void cred_expect_error(struct s3_cred *c, int error, const char *part_of_why)
{
    struct s3_keys k = {0};
    ck_assert_int_eq(get(c, &k), error);
    g_autofree char *why = s3_cred_error(c);
    ck_assert_ptr_nonnull(why);
    ck_assert_msg(strstr(why, part_of_why) != NULL, "'%s' is not in '%s'", part_of_why, why);
    ck_assert_ptr_null(strstr(why, "CANARY"));
}

static bool why_is(struct s3_cred *c, const char *part_of_why)
{
    g_autofree char *why = s3_cred_error(c);
    ck_assert(why == NULL || strstr(why, "CANARY") == NULL);
    return why != NULL && strstr(why, part_of_why) != NULL;
}

void cred_expect_none(struct s3_cred *c, const char *part_of_why)
{
    uint64_t end_ns = clock_mono_ns() + CRED_PATIENCE_NS;
    struct s3_keys k = {0};
    do {
        ck_assert_uint_lt(clock_mono_ns(), end_ns);
        ck_assert_int_eq(s3_cred_get(c, clock_mono_ns() + 50 * NS_PER_MS, &k), -ETIMEDOUT);
    } while (!why_is(c, part_of_why));
}

unsigned cred_n_threads(void)
{
    unsigned n = 0;
    GDir *tasks = g_dir_open("/proc/self/task", 0, NULL);
    for (const char *name; (name = g_dir_read_name(tasks)) != NULL;) {
        g_autofree char *path = g_strdup_printf("/proc/self/task/%s/comm", name);
        g_autofree char *comm = NULL;
        n += g_file_get_contents(path, &comm, NULL, NULL) && strcmp(comm, "cred\n") == 0;
    }
    g_dir_close(tasks);
    return n;
}

void cred_await_idle(void)
{
    CRED_AWAIT(cred_n_threads() == 0);
}

static void ask(struct s3_cred *c)
{
    struct s3_keys k = {0};
    if (s3_cred_get(c, clock_mono_ns(), &k) == 0)
        s3_keys_clear(&k);
}

void cred_await_why(struct s3_cred *c, const char *part_of_why)
{
    CRED_AWAIT((ask(c), why_is(c, part_of_why)));
}

void cred_await_renewals(struct s3_cred *c, int64_t since, int64_t n)
{
    CRED_AWAIT((ask(c), metric_get(M_credential_refreshes) >= since + n));
}

void cred_await_warnings(unsigned n)
{
    CRED_AWAIT(cred_n_warnings() >= n);
    ck_assert_uint_eq(cred_n_warnings(), n);
}

void *cred_get_thread(void *arg)
{
    struct s3_keys k = {0};
    int r = get(arg, &k);
    s3_keys_clear(&k);
    return GINT_TO_POINTER(r);
}
