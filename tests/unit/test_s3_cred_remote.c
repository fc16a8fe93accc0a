/*
 * Credentials from services (STS, container, instance metadata) and their renewal.
 */
#include "base/clock.h"
#include "s3_cred_int.h"
#include "tests/support/checks.h"
#include "tests/support/cred_fixture.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECRET CRED_SECRET
#define MINUTE (60 * NS_PER_S)

/* ---- STS ---- */

START_TEST(web_identity_reads_its_token_file_each_time)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_sts);
    fake_service_env(&sv, "AWS_ENDPOINT_URL_STS", "");
    g_autofree char *token = cred_path("token");
    cred_put("token", 0600, "CANARY.one\n");
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token, 1);
    setenv("AWS_ROLE_SESSION_NAME", "me@here", 1);
    struct s3_cred *c = cred_open_ok();
    ck_assert_uint_eq(fake_service_requests(&sv), 0);
    cred_expect_keys(c, "AKSTS1", "CANARYsts");
    cred_expect_origin("web identity");
    ck_assert(fake_service_saw(&sv, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15"));
    ck_assert(fake_service_saw(&sv, "&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr"));
    ck_assert(fake_service_saw(&sv, "&RoleSessionName=me%40here"));
    ck_assert(fake_service_saw(&sv, "&WebIdentityToken=CANARY.one"));
    ck_assert(!fake_service_saw(&sv, "authorization:"));
    cred_put("token", 0600, "CANARY.two");
    clock_fake_advance(56 * MINUTE);
    cred_await_keys(c, "AKSTS2", "CANARYsts");
    ck_assert(fake_service_saw(&sv, "&WebIdentityToken=CANARY.two"));
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(sts_over_plain_http_to_elsewhere_is_refused)
{
    g_autofree char *token = cred_path("token");
    cred_put("token", 0600, "CANARY.one\n");
    setenv("AWS_ROLE_ARN", "arn", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token, 1);
    setenv("AWS_ENDPOINT_URL_STS", "http://sts.invalid", 1);
    struct s3_cred *c = cred_open_ok();
    cred_expect_error(c, -EACCES, "not https");
    s3_cred_close(c);
}
END_TEST

START_TEST(role_is_assumed_with_the_source_profiles_keys)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_sts);
    fake_service_env(&sv, "AWS_ENDPOINT_URL_STS", "/");
    cred_put("credentials", 0600,
             "[base]\naws_access_key_id = AKBASE\naws_secret_access_key = " SECRET "\naws_session_token = CANARYb\n");
    cred_put(
        "config", 0600,
        "[profile r]\nrole_arn = arn:r\nsource_profile = base\nexternal_id = ex\nduration_seconds = 1800\nregion = eu-north-1\n");
    setenv("AWS_PROFILE", "r", 1);
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKSTS1", "CANARYsts");
    ck_assert(fake_service_saw(&sv, "Action=AssumeRole&"));
    ck_assert(fake_service_saw(&sv, "&ExternalId=ex"));
    ck_assert(fake_service_saw(&sv, "&DurationSeconds=1800"));
    ck_assert(fake_service_saw(&sv, "Credential=AKBASE/"));
    ck_assert(fake_service_saw(&sv, "/eu-north-1/sts/aws4_request"));
    ck_assert(fake_service_saw(&sv, "x-amz-security-token: CANARYb"));
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

/* A node whose clock was never set: the store's requests repair that by themselves, and so do those to STS. */
START_TEST(role_is_assumed_by_the_clock_of_sts)
{
    static const int64_t ahead_s[] = {-7200, 7200};
    for (size_t i = 0; i < G_N_ELEMENTS(ahead_s); i++) {
        struct fake_service sv;
        fake_service_start(&sv, fake_reply_sts);
        sv.ahead_s = ahead_s[i];
        fake_service_env(&sv, "AWS_ENDPOINT_URL_STS", "/");
        cred_put("credentials", 0600, "[base]\naws_access_key_id = AKBASE\naws_secret_access_key = " SECRET "\n");
        cred_put("config", 0600, "[default]\nrole_arn = arn:r\nsource_profile = base\n");
        struct s3_cred *c = cred_open_ok();
        cred_expect_keys(c, "AKSTS2", "CANARYsts"); /* the second request */
        clock_fake_advance(54 * MINUTE);
        cred_expect_keys(c, "AKSTS2", "CANARYsts");
        ck_assert_uint_eq(fake_service_requests(&sv), 2);
        clock_fake_advance(2 * MINUTE);
        cred_await_keys(c, "AKSTS4", "CANARYsts");
        fake_service_fail(&sv, 403);
        clock_fake_advance(61 * MINUTE);
        cred_expect_error(c, -EKEYEXPIRED, "differ by");
        s3_cred_close(c);
        fake_service_stop(&sv);
    }
}
END_TEST

START_TEST(sts_that_cannot_reach_the_identity_provider_is_waited_for)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_sts);
    fake_service_env(&sv, "AWS_ENDPOINT_URL_STS", "");
    g_autofree char *token = cred_path("token");
    cred_put("token", 0600, "CANARY.one\n");
    setenv("AWS_ROLE_ARN", "arn", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token, 1);
    struct s3_cred *c = cred_open_ok();
    fake_service_fail_with(&sv, 400, "<R><Error><Code>IDPCommunicationError</Code></Error></R>");
    cred_expect_none(c, "400 IDPCommunicationError");
    fake_service_fail_with(&sv, 400, "<R><Error><Code>InvalidIdentityToken</Code></Error></R>");
    clock_fake_advance(5 * NS_PER_S);
    cred_expect_error(c, -EACCES, "400 InvalidIdentityToken");
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(role_from_the_environments_keys)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_sts);
    fake_service_env(&sv, "AWS_ENDPOINT_URL_STS", "");
    cred_put("config", 0600, "[profile r]\nrole_arn = arn:r\ncredential_source = Environment\n");
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    cred_cfg.profile = "r";
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKSTS1", "CANARYsts");
    ck_assert(fake_service_saw(&sv, "Credential=AKENV/"));
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(circle_of_source_profiles_is_refused)
{
    cred_put("config", 0600,
             "[profile a]\nrole_arn = x\nsource_profile = b\n[profile b]\nrole_arn = y\nsource_profile = a\n");
    cred_cfg.profile = "a";
    struct s3_cred *c = cred_open_ok();
    cred_expect_error(c, -EACCES, "circle");
    s3_cred_close(c);
}
END_TEST

/* ---- container, instance ---- */

START_TEST(container_uri_with_token_file)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_json);
    fake_service_env(&sv, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "/v1/credentials?x=1");
    g_autofree char *token = cred_path("token");
    cred_put("token", 0600, "CANARYauth1\n");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token, 1);
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    ck_assert(fake_service_saw(&sv, "GET /v1/credentials?x=1 "));
    ck_assert(fake_service_saw(&sv, "authorization: CANARYauth1\r\n"));
    cred_put("token", 0600, "CANARYauth2\n");
    clock_fake_advance(56 * MINUTE);
    cred_await_keys(c, "AKJSON2", "CANARYtoken");
    ck_assert(fake_service_saw(&sv, "authorization: CANARYauth2\r\n"));
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(container_token_from_the_environment)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_json);
    fake_service_env(&sv, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "/");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic CANARY", 1);
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    ck_assert(fake_service_saw(&sv, "authorization: Basic CANARY\r\n"));
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

static const struct {
    const char *url;
    bool link_local;
    int r;
} urls[] = {
    {"https://anywhere.example/x", false, 0},
    {"http://anywhere.example/x", false, -EACCES},
    {"http://localhost:80/x", false, 0},
    {"http://127.9.9.9/x", false, 0},
    {"http://[::1]:80/x", false, 0},
    {"http://169.254.170.2/x", true, 0},
    {"http://169.254.170.2/x", false, -EACCES},
    {"http://169.254.170.23/x", true, 0},
    {"http://[fd00:ec2::23]/x", true, 0},
    {"http://[fd00:ec2:0:0::23]/x", true, 0},
    {"http://[fd00:ec2::24]/x", true, -EACCES},
    {"http://169.254.169.254/x", true, -EACCES},
    {"http://127.0.0.1@evil.example/x", true, -EACCES},
    {"http://evil.example\\@127.0.0.1/x", true, -EACCES},
    {"http://127.0.0.1.evil.example/x", true, -EACCES},
    {"ftp://127.0.0.1/x", true, -EACCES},
    {"/x", true, -EACCES},
};

START_TEST(plain_http_only_to_near_hosts)
{
    ck_assert_msg(cred_url_allowed(urls[_i].url, urls[_i].link_local, false) == urls[_i].r, "%s", urls[_i].url);
}
END_TEST

START_TEST(container_uri_elsewhere_is_refused)
{
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://10.0.0.1/x", 1);
    struct s3_cred *c = cred_open_ok();
    cred_expect_error(c, -EACCES, "must be https");
    s3_cred_close(c);
}
END_TEST

START_TEST(instance_metadata_v2)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_imds);
    unsetenv("AWS_EC2_METADATA_DISABLED");
    fake_service_env(&sv, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "/");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKJSON3", "CANARYtoken");
    cred_expect_origin("instance metadata");
    ck_assert_uint_eq(fake_service_requests(&sv), 3);
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(silent_instance_metadata_is_given_up_after_a_second)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_imds);
    sv.delay_ms = 60000;
    unsetenv("AWS_EC2_METADATA_DISABLED");
    fake_service_env(&sv, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "");
    uint64_t start_ns = clock_mono_ns();
    g_autofree char *msg = cred_open_fails();
    ck_assert_uint_lt(clock_mono_ns() - start_ns, 20 * NS_PER_S);
    ck_assert_ptr_nonnull(strstr(msg, "instance metadata at"));
    fake_service_stop(&sv);
}
END_TEST

START_TEST(metadata_service_that_is_only_busy_is_chosen)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_imds);
    fake_service_fail(&sv, 503);
    unsetenv("AWS_EC2_METADATA_DISABLED");
    fake_service_env(&sv, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "");
    struct s3_cred *c = cred_open_ok();
    fake_service_fail(&sv, 0);
    clock_fake_advance(2 * NS_PER_S);
    cred_expect_keys(c, "AKJSON4", "CANARYtoken");
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(metadata_service_that_goes_away_is_told)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_imds);
    unsetenv("AWS_EC2_METADATA_DISABLED");
    fake_service_env(&sv, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKJSON3", "CANARYtoken");
    ck_assert_uint_eq(cred_n_warnings(), 0);
    fake_service_fail(&sv, 404);
    clock_fake_advance(56 * MINUTE);
    cred_expect_keys(c, "AKJSON3", "CANARYtoken");
    cred_await_why(c, "404");
    cred_await_warnings(1);
    int64_t n = metric_get(M_credential_refreshes);
    clock_fake_advance(5 * MINUTE);
    cred_expect_none(c, "404");
    cred_await_renewals(c, n, 1);
    cred_await_warnings(1); /* nothing new */
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(resumed_instance_metadata_is_waited_for)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_imds);
    unsetenv("AWS_EC2_METADATA_DISABLED");
    fake_service_env(&sv, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "");
    struct s3_cred *c = cred_open_ok();
    g_autofree char *choice = s3_cred_choice(c);
    s3_cred_close(c);
    fake_service_fail(&sv, 404);
    g_free(cred_open_fails());
    unsigned n = fake_service_requests(&sv);
    cred_cfg.resume = choice;
    c = cred_open_ok();
    ck_assert_uint_eq(fake_service_requests(&sv), n);
    cred_expect_none(c, "404");
    cred_await_warnings(1);
    fake_service_fail(&sv, 0);
    clock_fake_advance(2 * NS_PER_S);
    cred_expect_keys(c, NULL, "CANARYtoken");
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

/* Whether it is not there or only slow nobody can tell; where it gave keys before it is waited for. */
START_TEST(metadata_service_of_a_profile_is_waited_for)
{
    static struct fake_service imds, sts; /* too large for the stack */
    fake_service_start(&imds, fake_reply_imds);
    fake_service_start(&sts, fake_reply_sts);
    unsetenv("AWS_EC2_METADATA_DISABLED");
    fake_service_env(&imds, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "");
    fake_service_env(&sts, "AWS_ENDPOINT_URL_STS", "");
    cred_put("config", 0600, "[default]\nrole_arn = arn:r\ncredential_source = Ec2InstanceMetadata\n");
    struct s3_cred *c = cred_open_ok();
    g_autofree char *choice = s3_cred_choice(c);
    fake_service_fail(&imds, 404);
    cred_expect_error(c, -EACCES, "404"); /* it never gave any */
    fake_service_fail(&imds, 0);
    clock_fake_advance(60 * NS_PER_S);
    cred_expect_keys(c, "AKSTS1", "CANARYsts");
    fake_service_fail(&imds, 404);
    clock_fake_advance(61 * MINUTE);
    cred_expect_none(c, "404");
    s3_cred_close(c);
    cred_cfg.resume = choice;
    c = cred_open_ok();
    cred_expect_none(c, "404");
    fake_service_fail(&imds, 0);
    clock_fake_advance(5 * NS_PER_S);
    cred_expect_keys(c, NULL, "CANARYsts");
    s3_cred_close(c);
    fake_service_stop(&imds);
    fake_service_stop(&sts);
}
END_TEST

/* ---- refresh ---- */

static struct s3_cred *open_container(struct fake_service *sv)
{
    fake_service_start(sv, fake_reply_json);
    fake_service_env(sv, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "/");
    return cred_open_ok();
}

START_TEST(keys_are_renewed_five_minutes_before_they_expire)
{
    struct fake_service sv;
    struct s3_cred *c = open_container(&sv);
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    clock_fake_advance(54 * MINUTE);
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    ck_assert_uint_eq(fake_service_requests(&sv), 1);
    clock_fake_advance(MINUTE + NS_PER_S);
    cred_await_keys(c, "AKJSON2", "CANARYtoken");
    ck_assert_uint_eq(fake_service_requests(&sv), 2);
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(failed_renewal_keeps_the_old_keys_until_they_expire)
{
    struct fake_service sv;
    struct s3_cred *c = open_container(&sv);
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    fake_service_fail(&sv, 500);
    clock_fake_advance(56 * MINUTE);
    uint64_t from_ns = clock_mono_ns();
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    cred_await_why(c, "500");
    cred_expect_keys(c, "AKJSON1", "CANARYtoken"); /* in the pause: no second request */
    unsigned n = fake_service_requests(&sv);
    ck_assert(n == 2 || clock_mono_ns() >= from_ns + NS_PER_S);
    clock_fake_advance(5 * MINUTE);
    cred_expect_none(c, "500");
    fake_service_fail(&sv, 403);
    clock_fake_advance(5 * NS_PER_S);
    cred_expect_error(c, -EKEYEXPIRED, "403"); /* that is an answer, and no outage */
    fake_service_fail(&sv, 0);
    clock_fake_advance(60 * NS_PER_S);
    cred_expect_keys(c, NULL, "CANARYtoken");
    g_autofree char *none = s3_cred_error(c);
    ck_assert_ptr_null(none);
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(callers_at_one_time_cause_one_refresh)
{
    struct fake_service sv;
    struct s3_cred *c = open_container(&sv);
    sv.delay_ms = 200;
    pthread_t t[8];
    for (size_t i = 0; i < G_N_ELEMENTS(t); i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, cred_get_thread, c), 0);
    for (size_t i = 0; i < G_N_ELEMENTS(t); i++) {
        void *r;
        pthread_join(t[i], &r);
        ck_assert_int_eq(GPOINTER_TO_INT(r), 0);
    }
    ck_assert_uint_eq(fake_service_requests(&sv), 1);
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(invalidate_asks_the_source_again_but_not_right_after_a_renewal)
{
    struct fake_service sv;
    struct s3_cred *c = open_container(&sv);
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    clock_fake_advance(3 * NS_PER_S);
    s3_cred_invalidate(c);
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    clock_fake_advance(6 * NS_PER_S);
    s3_cred_invalidate(c);
    cred_expect_keys(c, "AKJSON2", "CANARYtoken");
    clock_fake_advance(6 * NS_PER_S);
    fake_service_fail(&sv, 500);
    s3_cred_invalidate(c);
    cred_expect_keys(c, "AKJSON2", "CANARYtoken"); /* nothing better to be had */
    ck_assert_uint_eq(fake_service_requests(&sv), 3);
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(short_lived_keys_are_renewed_halfway)
{
    struct fake_service sv;
    struct s3_cred *c = open_container(&sv);
    sv.lifetime_s = 120;
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    clock_fake_advance(50 * NS_PER_S);
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    clock_fake_advance(15 * NS_PER_S);
    cred_await_keys(c, "AKJSON2", "CANARYtoken");
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        web_identity_reads_its_token_file_each_time,
        sts_over_plain_http_to_elsewhere_is_refused,
        role_is_assumed_with_the_source_profiles_keys,
        role_is_assumed_by_the_clock_of_sts,
        sts_that_cannot_reach_the_identity_provider_is_waited_for,
        role_from_the_environments_keys,
        circle_of_source_profiles_is_refused,
        container_uri_with_token_file,
        container_token_from_the_environment,
        container_uri_elsewhere_is_refused,
        instance_metadata_v2,
        silent_instance_metadata_is_given_up_after_a_second,
        metadata_service_that_is_only_busy_is_chosen,
        metadata_service_that_goes_away_is_told,
        resumed_instance_metadata_is_waited_for,
        metadata_service_of_a_profile_is_waited_for,
        keys_are_renewed_five_minutes_before_they_expire,
        failed_renewal_keeps_the_old_keys_until_they_expire,
        callers_at_one_time_cause_one_refresh,
        invalidate_asks_the_source_again_but_not_right_after_a_renewal,
        short_lived_keys_are_renewed_halfway,
    };
    Suite *s = suite_create("s3_cred_remote");
    TCase *tc = tcase_create("s3_cred_remote");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, cred_setup, cred_teardown);
    for (size_t i = 0; i < G_N_ELEMENTS(tests); i++)
        tcase_add_test(tc, tests[i]);
    tcase_add_loop_test(tc, plain_http_only_to_near_hosts, 0, G_N_ELEMENTS(urls));
    suite_add_tcase(s, tc);
    return run_suite(s);
}
