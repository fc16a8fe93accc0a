/*
 * Credentials from what the machine itself has: environment, shared files, credential_process.
 */
#include "base/clock.h"
#include "s3_cred_int.h"
#include "tests/support/checks.h"
#include "tests/support/cred_fixture.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET CRED_SECRET

/* ---- environment ---- */

START_TEST(environment_goes_before_files)
{
    cred_put("credentials", 0600, "[default]\naws_access_key_id = AKFILE\naws_secret_access_key = " SECRET "\n");
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    setenv("AWS_SESSION_TOKEN", "CANARYtok", 1);
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKENV", "CANARYtok");
    cred_expect_origin("environment");
    s3_cred_close(c);
}
END_TEST

START_TEST(profile_by_option_goes_before_environment)
{
    cred_put("credentials", 0600, "[p]\naws_access_key_id = AKFILE\naws_secret_access_key = " SECRET "\n");
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    cred_cfg.profile = "p";
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKFILE", NULL);
    cred_expect_origin("profile p");
    s3_cred_close(c);
}
END_TEST

START_TEST(half_an_environment_is_refused)
{
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "AWS_SECRET_ACCESS_KEY is not set"));
}
END_TEST

START_TEST(key_with_a_line_break_is_refused)
{
    setenv("AWS_ACCESS_KEY_ID", "AK\r\nX-Evil: 1", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "control character"));
}
END_TEST

START_TEST(no_sign_request_is_anonymous)
{
    cred_cfg.no_sign_request = true;
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    struct s3_cred *c = cred_open_ok();
    struct s3_keys k = {0};
    ck_assert_int_eq(s3_cred_get(c, 0, &k), 0);
    ck_assert(k.anonymous);
    ck_assert_str_eq(k.access_key, "");
    s3_keys_clear(&k);
    s3_cred_close(c);
}
END_TEST

START_TEST(nothing_found_names_what_was_looked_at)
{
    g_autofree char *msg = cred_open_fails();
    const char *const parts[] = {"AWS_ACCESS_KEY_ID is not set",
                                 "AWS_WEB_IDENTITY_TOKEN_FILE",
                                 "profile 'default'",
                                 "/credentials",
                                 "/config",
                                 "AWS_CONTAINER",
                                 "AWS_EC2_METADATA_DISABLED",
                                 "--profile",
                                 "--no-sign-request"};
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++)
        ck_assert_msg(strstr(msg, parts[i]) != NULL, "'%s' is not in '%s'", parts[i], msg);
}
END_TEST

/* ---- files ---- */

START_TEST(region_and_endpoints_come_from_the_profile)
{
    cred_put(
        "config", 0600,
        "# comment\n[profile \"a b\"]\nregion = eu-north-1 ; comment\nservices = near\nendpoint_url = http://all.example\n"
        "aws_access_key_id=AKCONF\n aws_secret_access_key = " SECRET "\n"
        "[services near]\ns3 =\n  endpoint_url = http://s3.example:9000\ndynamodb =\n  endpoint_url = http://other.example\n");
    cred_cfg.profile = "a b";
    struct s3_cred *c = cred_open_ok();
    ck_assert_str_eq(s3_cred_region(c), "eu-north-1");
    ck_assert_str_eq(s3_cred_endpoint(c), "http://s3.example:9000");
    s3_cred_close(c);
    setenv("AWS_REGION", "eu-west-9", 1);
    setenv("AWS_ENDPOINT_URL", "http://env.example", 1);
    c = cred_open_ok();
    ck_assert_str_eq(s3_cred_region(c), "eu-west-9");
    ck_assert_str_eq(s3_cred_endpoint(c), "http://env.example");
    s3_cred_close(c);
    setenv("AWS_ENDPOINT_URL_S3", "http://env3.example", 1);
    cred_cfg.region = "opt-1";
    c = cred_open_ok();
    ck_assert_str_eq(s3_cred_region(c), "opt-1");
    ck_assert_str_eq(s3_cred_endpoint(c), "http://env3.example");
    cred_expect_keys(c, "AKCONF", NULL);
    s3_cred_close(c);
}
END_TEST

START_TEST(default_region_is_us_east_1_and_endpoint_none)
{
    cred_cfg.no_sign_request = true;
    struct s3_cred *c = cred_open_ok();
    ck_assert_str_eq(s3_cred_region(c), "us-east-1");
    ck_assert_ptr_null(s3_cred_endpoint(c));
    s3_cred_close(c);
}
END_TEST

START_TEST(named_profile_that_is_missing_is_an_error)
{
    cred_put("credentials", 0600, "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n");
    setenv("AWS_PROFILE", "nope", 1);
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "profile 'nope' is neither in"));
}
END_TEST

START_TEST(broken_file_is_refused_with_its_line)
{
    cred_put("credentials", 0600, "[default]\naws_access_key_id = AK\nCANARY without equals sign\n");
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "line 3"));
}
END_TEST

START_TEST(profile_with_sso_says_what_to_do)
{
    cred_put("config", 0600, "[default]\nsso_session = x\n");
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "export-credentials"));
}
END_TEST

START_TEST(file_that_anybody_may_write_is_refused)
{
    cred_put("credentials", 0606, "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n");
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "chmod 600"));
}
END_TEST

#define RUN "[default]\ncredential_process = /bin/true\n"

START_TEST(process_in_a_file_that_others_may_write_is_refused)
{
    g_autofree char *path = cred_path("config");
    cred_put("config", 0620, RUN);
    g_autofree char *by_group = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(by_group, "holds a credential_process and other users may write it"));
    cred_put("config", 0644, RUN);
    s3_cred_close(cred_open_ok());
    if (geteuid() != 0)
        return; /* only root can give files away */
    ck_assert_int_eq(chown(path, 12345, 0), 0);
    g_autofree char *by_owner = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(by_owner, "holds a credential_process"));
}
END_TEST

START_TEST(file_with_keys_that_is_open_to_others_is_refused)
{
    static const mode_t modes[] = {0604, 0644, 0620, 0660, 0444};
    g_autofree char *path = cred_path("credentials");
    cred_put("config", 0644, "[default]\nregion = eu-north-1\n"); /* no keys in there */
    for (size_t i = 0; i < G_N_ELEMENTS(modes); i++) {
        cred_put("credentials", modes[i], "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n");
        g_autofree char *msg = cred_open_fails();
        ck_assert_ptr_nonnull(strstr(msg, "holds keys and is open to other users"));
        ck_assert_ptr_null(strstr(msg, SECRET));
    }
    ck_assert_int_eq(chmod(path, 0600), 0);
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AK", NULL);
    s3_cred_close(c);
    if (geteuid() != 0)
        return; /* only root can give files away */
    ck_assert_int_eq(chown(path, 12345, 0), 0);
    g_autofree char *by_owner = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(by_owner, "open to other users"));
}
END_TEST

/* Kubernetes mounts a secret so: root's, for the group of the pod. */
START_TEST(file_with_keys_may_be_open_to_a_group_that_root_chose)
{
    static const struct {
        uid_t uid;
        gid_t gid;
        mode_t mode;
        bool fits;
    } rows[] = {{0, 12345, 0440, true},  {0, 0, 0640, true},          {0, 12345, 0444, false},
                {0, 12345, 0460, false}, {12345, 12345, 0440, false}, {12345, 0, 0440, false}};
    g_autofree char *path = cred_path("credentials");
    if (geteuid() != 0)
        return; /* only root can give files away */
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        cred_put("credentials", rows[i].mode,
                 "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n");
        ck_assert_int_eq(chown(path, rows[i].uid, rows[i].gid), 0);
        if (rows[i].fits) {
            s3_cred_close(cred_open_ok());
            continue;
        }
        g_autofree char *msg = cred_open_fails();
        ck_assert_ptr_nonnull(strstr(msg, "open to other users"));
    }
}
END_TEST

/* A user's own file that his umask left open to his group. */
START_TEST(file_with_keys_of_a_user_is_his_alone)
{
    cred_put("credentials", 0640, "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n");
    g_autofree char *path = cred_path("credentials");
    if (geteuid() == 0)
        ck_assert_int_eq(chown(path, 12345, 12345), 0);
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "open to other users"));
}
END_TEST

START_TEST(keys_taken_out_of_the_environment_still_serve)
{
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    setenv("AWS_SESSION_TOKEN", "CANARYt", 1);
    const char *secret = getenv("AWS_SECRET_ACCESS_KEY");
    struct s3_cred *c = cred_open_ok();
    s3_cred_forget_env();
    ck_assert_int_eq(secret[0], 0);
    ck_assert_str_eq(getenv("AWS_SESSION_TOKEN"), "");
    cred_expect_keys(c, "AKENV", "CANARYt");
    clock_fake_advance(10 * NS_PER_S);
    s3_cred_invalidate(c);
    cred_expect_keys(c, "AKENV", "CANARYt");
    s3_cred_close(c);
    c = cred_open_ok(); /* so do they for a store that is opened later */
    cred_expect_keys(c, "AKENV", "CANARYt");
    s3_cred_close(c);
    unsetenv("AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_SESSION_TOKEN");
    g_autofree char *msg = cred_open_fails(); /* who takes them away means it */
    ck_assert_ptr_nonnull(strstr(msg, "AWS_SECRET_ACCESS_KEY"));
}
END_TEST

/* Its endpoint is not looked up elsewhere: neither the keys of the environment nor an unsigned request go to AWS instead. */
START_TEST(refused_file_leaves_no_other_endpoint)
{
    cred_put("credentials", 0644, "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n");
    cred_put("config", 0600, "[default]\nendpoint_url = https://own.example\nregion = own-1\n");
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    for (int i = 0; i < 2; i++) {
        cred_cfg.no_sign_request = i == 1;
        g_autofree char *msg = cred_open_fails();
        ck_assert_ptr_nonnull(strstr(msg, "open to other users"));
    }
    cred_cfg.no_sign_request = false;
    setenv("AWS_REGION", "r-1", 1);
    g_free(cred_open_fails());
    setenv("AWS_ENDPOINT_URL_S3", "https://env.example", 1);
    struct s3_cred *c = cred_open_ok();
    ck_assert_str_eq(s3_cred_endpoint(c), "https://env.example");
    cred_expect_keys(c, "AKENV", NULL);
    s3_cred_close(c);
    unsetenv("AWS_REGION");
    g_free(cred_open_fails());
    setenv("AWS_REGION", "r-1", 1);
    setenv("AWS_ROLE_ARN", "arn", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/none", 1);
    g_free(cred_open_fails());
    setenv("AWS_ENDPOINT_URL_STS", "https://sts.example", 1);
    s3_cred_close(cred_open_ok());
}
END_TEST

/* A container that runs as another user than its image's HOME is of. */
START_TEST(files_in_a_home_out_of_reach_are_none)
{
    g_autofree char *home = cred_path("");
    g_autofree char *config = cred_path("config");
    if (geteuid() != 0)
        return; /* only root can become another user */
    setenv("HOME", home, 1);
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    unsetenv("AWS_SHARED_CREDENTIALS_FILE");
    unsetenv("AWS_CONFIG_FILE");
    ck_assert_int_eq(seteuid(12345), 0);
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKENV", NULL);
    s3_cred_close(c);
    setenv("AWS_CONFIG_FILE", config, 1);
    g_autofree char *msg = cred_open_fails();
    ck_assert_ptr_nonnull(strstr(msg, "cannot be read"));
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0); /* or nobody can look for leaks at the end */
}
END_TEST

START_TEST(refused_file_may_name_no_endpoint_that_is_ignored)
{
    cred_put("credentials", 0644, "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n");
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    cred_cfg.region = "r-1";
    struct s3_cred *c = cred_open_ok();
    ck_assert_ptr_null(s3_cred_endpoint(c));
    s3_cred_close(c);
}
END_TEST

/* A process that goes on with a mount is not ended by a file that a script spoilt meanwhile. */
START_TEST(resumed_profile_waits_for_its_file)
{
    static const char keys[] = "[default]\naws_access_key_id = AK\naws_secret_access_key = " SECRET "\n";
    cred_put("credentials", 0600, keys);
    cred_put("config", 0600, "[default]\nendpoint_url = https://own.example\nregion = own-1\nca_bundle = /some/ca\n");
    struct s3_cred *c = cred_open_ok();
    g_autofree char *choice = s3_cred_choice(c);
    s3_cred_close(c);
    ck_assert_ptr_null(strstr(choice, "CANARY"));
    cred_put("credentials", 0644, keys);
    cred_put("config", 0600, "");
    g_free(cred_open_fails());
    cred_cfg.resume = choice;
    c = cred_open_ok();
    ck_assert_str_eq(s3_cred_endpoint(c), "https://own.example");
    ck_assert_str_eq(s3_cred_region(c), "own-1");
    ck_assert_str_eq(s3_cred_ca_bundle(c), "/some/ca");
    cred_expect_error(c, -EKEYEXPIRED, "open to other users");
    ck_assert_uint_eq(cred_n_warnings(), 1);
    for (int i = 0; i < 6; i++) { /* pauses become longer */
        clock_fake_advance(60 * NS_PER_S);
        cred_expect_error(c, -EKEYEXPIRED, "open to other users");
    }
    g_autofree char *path = cred_path("credentials");
    ck_assert_int_eq(chmod(path, 0600), 0);
    clock_fake_advance(2 * NS_PER_S);
    cred_expect_keys(c, "AK", NULL); /* but for a file that is mended */
    g_autofree char *again = s3_cred_choice(c);
    ck_assert_str_eq(again, choice);
    s3_cred_close(c);
}
END_TEST

START_TEST(choice_goes_through_its_text)
{
    static const char *const wrong[] = {"", "{", "[]", "{\"source\":\"profile\"}",
                                        "{\"source\":\"x\",\"region\":\"r\"}"};
    struct cred_choice none = {0};
    for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++)
        ck_assert_int_eq(cred_choice_parse(wrong[i], &none), -EBADMSG);
    ck_assert_ptr_null(none.region);
    for (int i = 0; i < N_CRED_SOURCES; i++) {
        struct cred_choice ch = {.source = (enum cred_source)i,
                                 .region = (char[]){"r"},
                                 .sts_endpoint = i ? (char[]){"https://s \"x\""} : NULL};
        struct cred_choice back = {0};
        g_autofree char *text = cred_choice_format(&ch);
        ck_assert_int_eq(cred_choice_parse(text, &back), 0);
        ck_assert_int_eq(back.source, ch.source);
        ck_assert_str_eq(back.region, "r");
        ck_assert_pstr_eq(back.sts_endpoint, ch.sts_endpoint);
        ck_assert_ptr_null(back.endpoint);
        cred_choice_clear(&back);
    }
}
END_TEST

START_TEST(rotated_file_is_read_again)
{
    cred_put("credentials", 0600, "[default]\naws_access_key_id = AK1\naws_secret_access_key = " SECRET "\n");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AK1", NULL);
    cred_put("credentials", 0600,
             "[default]\naws_access_key_id = AK2\naws_secret_access_key = " SECRET "\naws_session_token = T\n");
    clock_fake_advance(2 * NS_PER_S);
    cred_await_keys(c, "AK2", "T");
    s3_cred_close(c);
}
END_TEST

START_TEST(rotation_to_a_broken_file_keeps_the_old_keys)
{
    cred_put("credentials", 0600, "[default]\naws_access_key_id = AK1\naws_secret_access_key = " SECRET "\n");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AK1", NULL);
    cred_put("credentials", 0600, "[default]\naws_access_key_id = AK2\n");
    clock_fake_advance(2 * NS_PER_S);
    cred_expect_keys(c, "AK1", NULL);
    cred_await_why(c, "without aws_secret_access_key");
    cred_await_warnings(1);
    int64_t n = metric_get(M_credential_refreshes);
    clock_fake_advance(2 * NS_PER_S);
    cred_expect_keys(c, "AK1", NULL);
    cred_await_renewals(c, n, 1);
    cred_await_idle();
    cred_put("credentials", 0606, "[default]\n");
    clock_fake_advance(4 * NS_PER_S);
    cred_expect_keys(c, "AK1", NULL);
    cred_await_why(c, "may be written by anybody");
    cred_await_warnings(2); /* nothing new was none */
    cred_await_idle();
    cred_put("credentials", 0600, "[default]\naws_access_key_id = AK3\naws_secret_access_key = " SECRET "\n");
    clock_fake_advance(8 * NS_PER_S);
    cred_await_keys(c, "AK3", NULL);
    s3_cred_close(c);
    ck_assert_uint_eq(cred_n_warnings(), 2);
}
END_TEST

/* ---- credential_process ---- */

static void put_script(const char *text)
{
    g_autofree char *path = cred_path("script");
    g_autofree char *config = g_strdup_printf("[default]\ncredential_process = \"%s\" 'one two' three\n", path);
    cred_put("script", 0700, text);
    cred_put("config", 0600, config);
}

START_TEST(credential_process_gives_keys)
{
    put_script("#!/bin/sh\nread x && exit 9\n[ \"$1/$2/$#\" = 'one two/three/2' ] || exit 8\necho CANARYnoise >&2\n"
               "echo '{\"Version\":1,\"AccessKeyId\":\"AKPROC\",\"SecretAccessKey\":\"" SECRET
               "\",\"SessionToken\":\"CANARYp\",\"Expiration\":\"2999-01-01T00:00:00Z\"}'\n");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKPROC", "CANARYp");
    struct s3_keys k = {0};
    ck_assert_int_eq(s3_cred_get(c, 0, &k), 0);
    ck_assert_int_gt(k.expires_ns, clock_wall_ns());
    s3_keys_clear(&k);
    s3_cred_close(c);
}
END_TEST

/* As a tool that assumes a role with the keys it finds there. */
START_TEST(credential_process_has_the_environments_keys)
{
    put_script("#!/bin/sh\n[ \"$AWS_ACCESS_KEY_ID/$AWS_SECRET_ACCESS_KEY/$AWS_SESSION_TOKEN\" = 'AKENV/" SECRET
               "/CANARYt' ] || exit 7\n[ -z \"${AWS_CONTAINER_AUTHORIZATION_TOKEN+x}\" ] || exit 8\n"
               "echo '{\"Version\":1,\"AccessKeyId\":\"AKPROC\",\"SecretAccessKey\":\"" SECRET
               "\",\"Expiration\":\"2999-01-01T00:00:00Z\"}'\n");
    setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    setenv("AWS_SESSION_TOKEN", "CANARYt", 1);
    cred_cfg.profile = "default";
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKPROC", NULL);
    s3_cred_forget_env();
    clock_fake_advance(10 * NS_PER_S);
    s3_cred_invalidate(c);
    cred_expect_keys(c, "AKPROC", NULL);
    g_autofree char *why = s3_cred_error(c);
    ck_assert_msg(why == NULL, "%s", why);
    ck_assert_str_eq(getenv("AWS_SECRET_ACCESS_KEY"), "");
    s3_cred_close(c);
}
END_TEST

START_TEST(failing_credential_process_is_named_with_its_status)
{
    put_script("#!/bin/sh\necho CANARY\nexit 3\n");
    struct s3_cred *c = cred_open_ok();
    cred_expect_error(c, -EACCES, "exited with 3");
    s3_cred_close(c);
}
END_TEST

START_TEST(output_of_another_version_is_refused)
{
    put_script("#!/bin/sh\necho '{\"Version\":2,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"" SECRET "\"}'\n");
    struct s3_cred *c = cred_open_ok();
    cred_expect_error(c, -EACCES, "\"Version\": 1");
    s3_cred_close(c);
}
END_TEST

START_TEST(keys_that_have_expired_already_are_refused)
{
    put_script("#!/bin/sh\necho '{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"" SECRET
               "\",\"Expiration\":\"2001-01-01T00:00:00Z\"}'\n");
    struct s3_cred *c = cred_open_ok();
    cred_expect_error(c, -EKEYEXPIRED, "expired already");
    s3_cred_close(c);
}
END_TEST

START_TEST(shutdown_ends_a_hanging_process)
{
    put_script("#!/bin/sh\nsleep 50\n");
    struct s3_cred *c = cred_open_ok();
    pthread_t a, b;
    void *ra, *rb;
    ck_assert_int_eq(pthread_create(&a, NULL, cred_get_thread, c), 0);
    ck_assert_int_eq(pthread_create(&b, NULL, cred_get_thread, c), 0);
    usleep(200000);
    uint64_t start_ns = clock_mono_ns();
    s3_cred_shutdown(c);
    pthread_join(a, &ra);
    pthread_join(b, &rb);
    ck_assert_int_eq(GPOINTER_TO_INT(ra), -ECANCELED);
    ck_assert_int_eq(GPOINTER_TO_INT(rb), -ECANCELED);
    ck_assert_uint_lt(clock_mono_ns() - start_ns, 20 * NS_PER_S);
    s3_cred_close(c);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        environment_goes_before_files,
        profile_by_option_goes_before_environment,
        half_an_environment_is_refused,
        key_with_a_line_break_is_refused,
        no_sign_request_is_anonymous,
        nothing_found_names_what_was_looked_at,
        region_and_endpoints_come_from_the_profile,
        default_region_is_us_east_1_and_endpoint_none,
        named_profile_that_is_missing_is_an_error,
        broken_file_is_refused_with_its_line,
        profile_with_sso_says_what_to_do,
        file_that_anybody_may_write_is_refused,
        process_in_a_file_that_others_may_write_is_refused,
        file_with_keys_that_is_open_to_others_is_refused,
        file_with_keys_may_be_open_to_a_group_that_root_chose,
        file_with_keys_of_a_user_is_his_alone,
        keys_taken_out_of_the_environment_still_serve,
        refused_file_leaves_no_other_endpoint,
        files_in_a_home_out_of_reach_are_none,
        refused_file_may_name_no_endpoint_that_is_ignored,
        resumed_profile_waits_for_its_file,
        choice_goes_through_its_text,
        rotated_file_is_read_again,
        rotation_to_a_broken_file_keeps_the_old_keys,
        credential_process_gives_keys,
        credential_process_has_the_environments_keys,
        failing_credential_process_is_named_with_its_status,
        output_of_another_version_is_refused,
        keys_that_have_expired_already_are_refused,
        shutdown_ends_a_hanging_process,
    };
    Suite *s = suite_create("s3_cred");
    TCase *tc = tcase_create("s3_cred");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, cred_setup, cred_teardown);
    for (size_t i = 0; i < G_N_ELEMENTS(tests); i++)
        tcase_add_test(tc, tests[i]);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
