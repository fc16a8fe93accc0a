/* Keys that the store refuses, or that cannot be had: which calls wait, and what those that do not are told. */
#include "drv_s3_fixture.h"

static int get_k(void)
{
    g_autoptr(GString) out = g_string_new(NULL);
    return objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL);
}

START_TEST(expired_token_is_tried_once_more_and_then_told)
{
    http_stub_reply(stub, 400, "", ERROR_XML("ExpiredToken"));
    http_stub_reply(stub, 400, "", ERROR_XML("ExpiredToken"));
    ck_assert_int_eq(get_k(), -EKEYEXPIRED);
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
}
END_TEST

/* As of one that was made a moment ago, where the store's servers hear of it one by one. */
START_TEST(key_that_the_store_does_not_know_yet_is_waited_for)
{
    http_stub_reply(stub, 403, "", ERROR_XML("InvalidAccessKeyId"));
    http_stub_reply(stub, 403, "", ERROR_XML("InvalidAccessKeyId"));
    ck_assert_int_eq(get_k(), -EACCES); /* but not where none ever worked */
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "x");
    ck_assert_int_eq(get_k(), 0);
    for (int i = 0; i < 4; i++)
        http_stub_reply(stub, 403, "", ERROR_XML("InvalidAccessKeyId"));
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "x");
    ck_assert_int_eq(get_k(), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 8);
}
END_TEST

START_TEST(key_that_worked_for_the_process_before_is_waited_for)
{
    g_autofree char *resume = objstore_resume(st), *msg = NULL;
    struct objstore_config cfg = {.source = "s3://bucket/pre", .resume = resume, .op_timeout_ns = 60 * NS_PER_S};
    ck_assert_ptr_nonnull(resume);
    objstore_close(st);
    ck_assert_int_eq(objstore_open(&cfg, &st, &msg), 0);
    for (int i = 0; i < 4; i++)
        http_stub_reply(stub, 403, "", ERROR_XML("InvalidAccessKeyId"));
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "x");
    ck_assert_int_eq(get_k(), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 5);
}
END_TEST

static gpointer get_in_thread(gpointer arg)
{
    return GINT_TO_POINTER(get_k());
}

START_TEST(key_that_the_store_knows_no_more_is_refused_in_the_end)
{
    objstore_close(st);
    open_with_timeout(60 * NS_PER_S);
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "x");
    ck_assert_int_eq(get_k(), 0);
    http_stub_always(stub, 403, "", ERROR_XML("InvalidAccessKeyId"), strlen(ERROR_XML("InvalidAccessKeyId")));
    GThread *t = g_thread_new("get", get_in_thread, NULL);
    for (int i = 0; i < 2000 && http_stub_n_requests(stub) < 4; i++)
        g_usleep(10000);
    ck_assert_uint_ge(http_stub_n_requests(stub), 4);
    clock_fake_advance(60 * NS_PER_S);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(t)), -EACCES);
}
END_TEST

START_TEST(token_that_worked_before_it_expired_is_waited_for)
{
    struct obj_info info = {0};
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "x");
    ck_assert_int_eq(get_k(), 0);
    for (int i = 0; i < 4; i++)
        http_stub_reply(stub, 400, "", ERROR_XML("ExpiredToken"));
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "x");
    ck_assert_int_eq(get_k(), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 6);
    http_stub_reply(stub, 400, "", ""); /* to a HEAD there is no more to say */
    for (int i = 0; i < 2; i++) {
        http_stub_reply(stub, 400, "", "");
        http_stub_reply(stub, 400, "", ERROR_XML("ExpiredToken")); /* to a LIST there is */
    }
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 1\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 12);
    obj_info_clear(&info);
}
END_TEST

START_TEST(message_says_why_there_are_no_credentials)
{
    g_autofree char *msg = NULL;
    g_autofree char *path = g_strdup_printf("%s/sluice-config-%d", g_get_tmp_dir(), (int)getpid());
    const char *text = "[default]\ncredential_process = /bin/false\n";
    objstore_close(st);
    ck_assert(g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_NONE, 0600, NULL));
    setenv("AWS_CONFIG_FILE", path, 1);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    open_with_timeout(5 * NS_PER_S);
    ck_assert_int_eq(objstore_check(st, &msg), -EACCES);
    ck_assert_msg(strstr(msg, "credential_process /bin/false exited with 1") != NULL, "%s", msg);
    ck_assert_uint_eq(http_stub_n_requests(stub), 0);
    (void)unlink(path);
    unsetenv("AWS_CONFIG_FILE");
}
END_TEST

#define KEYS_JSON                                                                                                      \
    "{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"s\",\"Token\":\"t\",\"Expiration\":\"2999-01-01T00:00:00Z\"}"

/* Its keys come from the stub as well. */
static void open_container(uint64_t op_timeout_ns)
{
    g_autofree char *url = g_strconcat(http_stub_url(stub), "/keys", NULL);
    objstore_close(st);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url, 1);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    open_with_timeout(op_timeout_ns);
}

START_TEST(keys_that_cannot_be_had_now_are_waited_for)
{
    struct obj_info info = {0};
    open_container(20 * NS_PER_S);
    g_autofree char *resume = objstore_resume(st);
    ck_assert_ptr_nonnull(strstr(resume, "container"));
    http_stub_reply(stub, 503, "", "");
    http_stub_reply(stub, 200, "", KEYS_JSON);
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert(asked(0, "GET /keys ") && asked(1, "GET /keys ") && asked(2, "HEAD /bucket/pre/k "));
    obj_info_clear(&info);
    unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
}
END_TEST

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        for (int i = 0; i < 2000 && !(condition); i++)                                                                 \
            g_usleep(10000);                                                                                           \
        ck_assert_msg(condition, "waited in vain: %s", #condition);                                                    \
    } while (0)

START_TEST(store_is_offline_while_its_keys_are_waited_for)
{
    open_container(600 * NS_PER_S);
    http_stub_always(stub, 503, "", "", 0);
    GThread *t = g_thread_new("head", head_in_thread, NULL);
    AWAIT(http_stub_n_requests(stub) > 0);
    clock_fake_advance(11 * NS_PER_S);
    AWAIT(objstore_offline_since_ns(st) != 0); /* before the call is over */
    http_stub_reply(stub, 200, "", KEYS_JSON);
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 4\r\n", "");
    clock_fake_advance(5 * NS_PER_S);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(t)), 0);
    ck_assert_int_eq(objstore_offline_since_ns(st), 0);
    unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
}
END_TEST

START_TEST(store_whose_keys_did_not_come_is_offline)
{
    struct obj_info info = {0};
    open_container(NS_PER_S);
    http_stub_always(stub, 503, "", "", 0);
    ck_assert_int_eq(objstore_head(st, "k", &info), -ETIMEDOUT);
    ck_assert_int_ne(objstore_offline_since_ns(st), 0);
    unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_s3_keys");
    TCase *t = add_case(s, "keys");
    tcase_add_test(t, expired_token_is_tried_once_more_and_then_told);
    tcase_add_test(t, key_that_the_store_does_not_know_yet_is_waited_for);
    tcase_add_test(t, key_that_worked_for_the_process_before_is_waited_for);
    tcase_add_test(t, key_that_the_store_knows_no_more_is_refused_in_the_end);
    tcase_add_test(t, token_that_worked_before_it_expired_is_waited_for);
    tcase_add_test(t, message_says_why_there_are_no_credentials);
    tcase_add_test(t, keys_that_cannot_be_had_now_are_waited_for);
    tcase_add_test(t, store_is_offline_while_its_keys_are_waited_for);
    tcase_add_test(t, store_whose_keys_did_not_come_is_offline);
    return run_suite(s);
}
