/* Requests to hosts that are not there: by a resolver that does not answer, and what ends a connection whose host is no more. */
#include "../../s3/http.h"
#include "tests/support/checks.h"

#include <check.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_S 20 /* much longer than any request here takes */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cv = PTHREAD_COND_INITIALIZER;
/* guarded by mu */
static unsigned n_asked, n_answered;
static bool answering;

/* Until it is true, or WAIT_S are over. */
static bool wait_for(bool (*is)(void))
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    int r = 0;
    while (!is() && r == 0)
        r = pthread_cond_timedwait(&cv, &mu, &until);
    return is();
}

static bool is_answering(void)
{
    return answering;
}

static bool is_asked(void)
{
    return n_asked > 0;
}

static bool is_quiet(void)
{
    return n_answered == n_asked;
}

/* The resolver: this program's own, which libcurl finds before the C library's. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    pthread_mutex_lock(&mu);
    n_asked++;
    pthread_cond_broadcast(&cv);
    (void)wait_for(is_answering);
    n_answered++;
    pthread_cond_broadcast(&cv);
    pthread_mutex_unlock(&mu);
    return EAI_AGAIN;
}

static int keep_idle_s, keep_every_s; /* of the last socket */

/* And before the C library's here as well. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    if (level == IPPROTO_TCP && name == TCP_KEEPIDLE)
        keep_idle_s = *(const int *)value;
    if (level == IPPROTO_TCP && name == TCP_KEEPINTVL)
        keep_every_s = *(const int *)value;
    return (int)syscall(SYS_setsockopt, fd, level, name, value, len);
}

static struct http_pool *pool;

static void setup(void)
{
    const struct http_pool_config cfg = {.max_connections = 1};
    n_asked = n_answered = 0;
    answering = false;
    ck_assert_int_eq(http_pool_new(&cfg, &pool), 0);
}

static void teardown(void)
{
    pthread_mutex_lock(&mu);
    answering = true;
    pthread_cond_broadcast(&cv);
    ck_assert(wait_for(is_quiet));
    pthread_mutex_unlock(&mu);
    http_pool_free(pool);
}

static unsigned answered(void)
{
    pthread_mutex_lock(&mu);
    unsigned n = n_answered;
    pthread_mutex_unlock(&mu);
    return n;
}

static void *request(void *arg)
{
    const struct http_request req = {
        .method = "GET", .url = "http://never.test/", .connect_timeout_ms = *(uint32_t *)arg, .no_proxy = true};
    struct http_response resp = {0};
    int r = http_perform(pool, &req, &resp);
    http_response_clear(&resp);
    return GINT_TO_POINTER(r);
}

START_TEST(shutdown_does_not_wait_for_the_resolver)
{
    uint32_t timeout_ms = WAIT_S * 10000;
    pthread_t t;
    void *r = NULL;
    ck_assert_int_eq(pthread_create(&t, NULL, request, &timeout_ms), 0);
    pthread_mutex_lock(&mu);
    ck_assert(wait_for(is_asked));
    pthread_mutex_unlock(&mu);
    http_pool_shutdown(pool);
    pthread_join(t, &r);
    ck_assert_int_eq(GPOINTER_TO_INT(r), -ECANCELED);
    ck_assert_uint_eq(answered(), 0);
}
END_TEST

START_TEST(time_limit_does_not_wait_for_the_resolver)
{
    uint32_t timeout_ms = 200;
    ck_assert_int_lt(GPOINTER_TO_INT(request(&timeout_ms)), 0);
    ck_assert_uint_eq(answered(), 0);
}
END_TEST

/* However long a silence is allowed: a copy of some GiB takes minutes without a word. */
START_TEST(host_that_is_no_more_is_noticed_in_two_minutes)
{
    const struct http_request req = {
        .method = "GET", .url = "http://127.0.0.1:1/", .low_speed_s = 1280, .no_proxy = true};
    struct http_response resp = {0};
    ck_assert_int_lt(http_perform(pool, &req, &resp), 0);
    http_response_clear(&resp);
    ck_assert_int_gt(keep_idle_s, 0);
    ck_assert_int_gt(keep_every_s, 0);
    ck_assert_int_le(keep_idle_s + 9 * keep_every_s, 120);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http");
    TCase *tc = tcase_create("http");
    tcase_set_timeout(tc, 3 * WAIT_S);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, shutdown_does_not_wait_for_the_resolver);
    tcase_add_test(tc, time_limit_does_not_wait_for_the_resolver);
    tcase_add_test(tc, host_that_is_no_more_is_noticed_in_two_minutes);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
