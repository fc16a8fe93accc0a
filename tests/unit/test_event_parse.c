/* Event notifications of different senders: keys as they encode them, envelopes, what is refused; secrets and who is let in. */
#include "fs/event_auth.h"
#include "fs/event_parse.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static struct event_list list;

static int parse(const char *text)
{
    event_list_clear(&list);
    return event_parse(text, strlen(text), &list);
}

static const struct event_record *record(unsigned i)
{
    ck_assert_uint_lt(i, list.records->len);
    return list.records->pdata[i];
}

static char *event(const char *source, const char *name, const char *key, const char *etag)
{
    return g_strdup_printf(
        "{\"Records\":[{\"eventSource\":\"%s\",\"eventName\":\"%s\",\"s3\":{\"bucket\":{\"name\":\"lake\"},"
        "\"object\":{\"key\":\"%s\",\"size\":3,\"eTag\":\"%s\"}}}]}",
        source, name, key, etag);
}

START_TEST(keys_are_read_as_their_sender_writes_them)
{
    static const struct {
        const char *source, *key, *first, *second;
    } cases[] = {
        {"aws:s3", "red+flower.jpg", "red flower.jpg", NULL},
        {"aws:s3", "a%2Bb%25/c", "a+b%/c", NULL},
        {"aws:s3", "%E6%97%A5", "\xe6\x97\xa5", NULL},
        {"aws:s3", "broken%2", "broken%2", NULL},
        {"aws:s3", "nul%00", "nul%00", NULL},
        {"minio:s3", "a%2Fb", "a/b", NULL},
        {"ceph:s3", "plain/key", "plain/key", NULL},
        {"ceph:s3", "a+b", "a+b", "a b"},
        {"ceph:s3", "100%25", "100%25", "100%"},
        {"ceph:s3", "100%", "100%", NULL},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = event(cases[i].source, "ObjectCreated:Put", cases[i].key, "x");
        ck_assert_int_eq(parse(text), 0);
        ck_assert_str_eq(record(0)->keys[0], cases[i].first);
        ck_assert_pstr_eq(record(0)->keys[1], cases[i].second);
        ck_assert_str_eq(record(0)->bucket, "lake");
    }
}
END_TEST

START_TEST(kinds_of_events_are_told_apart)
{
    static const struct {
        const char *name;
        int created; /* -1: changes no name */
        bool tag;
    } cases[] = {
        {"ObjectCreated:Put", 1, true},
        {"s3:ObjectCreated:CompleteMultipartUpload", 1, true},
        {"ObjectRestore:Completed", 1, false},
        {"ObjectRemoved:Delete", 0, false},
        {"s3:ObjectRemoved:DeleteMarkerCreated", 0, false},
        {"LifecycleExpiration:Delete", 0, false},
        {"ObjectTagging:Put", -1, false},
        {"ObjectAcl:Put", -1, false},
        {"", -1, false},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = event("ceph:s3", cases[i].name, "k", "\\\"abc\\\"");
        ck_assert_int_eq(parse(text), 0);
        ck_assert_uint_eq(list.records->len, cases[i].created >= 0);
        ck_assert_uint_eq(list.n_others, cases[i].created < 0);
        if (cases[i].created < 0)
            continue;
        ck_assert_int_eq(record(0)->created, cases[i].created);
        ck_assert_str_eq(record(0)->etag.s, cases[i].tag ? "abc" : "");
    }
}
END_TEST

START_TEST(envelopes_are_opened)
{
    ck_assert_int_eq(
        parse("{\"Type\":\"Notification\",\"Message\":\"{\\\"Records\\\":[{\\\"eventSource\\\":\\\"aws:s3\\\","
              "\\\"eventName\\\":\\\"ObjectCreated:Put\\\",\\\"s3\\\":{\\\"bucket\\\":{\\\"name\\\":\\\"b\\\"},"
              "\\\"object\\\":{\\\"key\\\":\\\"k+1\\\"}}}]}\"}"),
        0);
    ck_assert_str_eq(record(0)->keys[0], "k 1");
    ck_assert_int_eq(parse("{\"Type\":\"SubscriptionConfirmation\",\"SubscribeURL\":\"https://x/y\"}"), 0);
    ck_assert_str_eq(list.subscribe_url, "https://x/y");
    ck_assert_int_eq(parse("{\"detail-type\":\"Object Deleted\",\"source\":\"aws.s3\",\"detail\":{\"bucket\":"
                           "{\"name\":\"b\"},\"object\":{\"key\":\"a+b\"}}}"),
                     0);
    ck_assert(!record(0)->created);
    ck_assert_str_eq(record(0)->keys[0], "a+b");
    ck_assert_int_eq(parse("{\"Service\":\"Amazon S3\",\"Event\":\"s3:TestEvent\"}"), 0);
    ck_assert_uint_eq(list.n_others, 1);
    ck_assert_int_eq(parse("{\"Records\":[]}"), 0);
}
END_TEST

START_TEST(what_is_no_event_is_refused_as_a_whole)
{
    static const char *const bad[] = {
        "",
        "x",
        "[]",
        "{}",
        "null",
        "{\"Records\":{}}",
        "{\"Records\":[1]}",
        "{\"Records\":[{\"eventName\":\"ObjectCreated:Put\"}]}",
        "{\"Records\":[{\"eventName\":7}]}",
        "{\"Records\":[{\"eventName\":\"ObjectCreated:Put\",\"s3\":{\"bucket\":{\"name\":\"b\"},\"object\":{}}}]}",
        "{\"Type\":\"Notification\",\"Message\":\"not json\"}",
        "{\"Type\":\"Notification\"}",
        "{\"detail-type\":\"Object Created\",\"detail\":{}}",
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++)
        ck_assert_msg(parse(bad[i]) == -EBADMSG && !list.records, "'%s'", bad[i]);
}
END_TEST

START_TEST(of_a_key_that_json_cannot_carry_the_directory_is_known)
{
    g_autofree char *text = event("ceph:s3", "ObjectCreated:Put", "a/b/x\xffy/z", "");
    ck_assert_int_eq(parse(text), 0);
    ck_assert(record(0)->vague);
    ck_assert_str_eq(record(0)->keys[0], "a/b/");
    g_autofree char *top = event("ceph:s3", "ObjectCreated:Put", "\xff", "");
    ck_assert_int_eq(parse(top), 0);
    ck_assert_str_eq(record(0)->keys[0], "");
}
END_TEST

/* ---- secrets ---- */

#define SECRET "0123456789abcdef-one"
#define OTHER  "fedcba9876543210-two"

static char *dir, *path, *msg;

static void setup(void)
{
    dir = g_dir_make_tmp("sluice-unit-XXXXXX", NULL);
    path = g_build_filename(dir, "secret", NULL);
}

static void teardown(void)
{
    event_list_clear(&list);
    (void)g_remove(path); /* what is left in $TMPDIR hurts no other test */
    (void)g_rmdir(dir);
    g_clear_pointer(&dir, g_free);
    g_clear_pointer(&path, g_free);
    g_clear_pointer(&msg, g_free);
}

static void put(const char *text, int mode)
{
    ck_assert(g_file_set_contents(path, text, -1, NULL));
    ck_assert_int_eq(g_chmod(path, mode), 0);
}

START_TEST(who_knows_a_secret_is_let_in)
{
    struct event_auth *auth = NULL;
    put(SECRET "\n\n" OTHER "\n", 0600);
    ck_assert_int_eq(event_auth_open(path, &auth, &msg), 0);
    g_autofree char *basic = g_base64_encode((const guchar *)"user:" SECRET, strlen("user:" SECRET));
    g_autofree char *right = g_strconcat("Basic ", basic, NULL);
    ck_assert_int_eq(event_auth_check(auth, right, NULL), EVENT_ADMITTED);
    ck_assert_int_eq(event_auth_check(auth, "Bearer " SECRET, NULL), EVENT_ADMITTED);
    ck_assert_int_eq(event_auth_check(auth, "bearer " OTHER, NULL), EVENT_ADMITTED);
    ck_assert_int_eq(event_auth_check(auth, NULL, OTHER), EVENT_ADMITTED);
    ck_assert_int_eq(event_auth_check(auth, NULL, NULL), EVENT_UNNAMED);
    static const char *const wrong[] = {
        "",      SECRET,           "Bearer",         "Bearer ",          "Bearer " SECRET "x",
        "Basic", "Basic dXNlcg==", "Basic \xff\xff", "Digest username=x"};
    for (unsigned i = 0; i < G_N_ELEMENTS(wrong); i++)
        ck_assert_msg(event_auth_check(auth, wrong[i], NULL) == EVENT_REFUSED, "'%s'", wrong[i]);
    ck_assert_int_eq(event_auth_check(auth, NULL, ""), EVENT_REFUSED);
    event_auth_close(auth);
}
END_TEST

START_TEST(new_secrets_count_without_a_restart)
{
    struct event_auth *auth = NULL;
    put(SECRET "\n", 0600);
    ck_assert_int_eq(event_auth_open(path, &auth, &msg), 0);
    put(OTHER OTHER "\n", 0600);
    ck_assert_int_eq(event_auth_check(auth, NULL, OTHER OTHER), EVENT_ADMITTED);
    ck_assert_int_eq(event_auth_check(auth, NULL, SECRET), EVENT_REFUSED);
    put("short\n", 0600);
    ck_assert_int_eq(event_auth_check(auth, NULL, OTHER OTHER), EVENT_ADMITTED);
    event_auth_close(auth);
}
END_TEST

START_TEST(secrets_that_could_not_be_read_are_tried_again)
{
    struct event_auth *auth = NULL;
    struct rlimit limit, none;
    put(SECRET "\n", 0600);
    ck_assert_int_eq(event_auth_open(path, &auth, &msg), 0);
    put(OTHER OTHER "\n", 0600);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){0, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(event_auth_check(auth, NULL, SECRET), EVENT_ADMITTED);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(event_auth_check(auth, NULL, OTHER OTHER), EVENT_ADMITTED);
    ck_assert_int_eq(event_auth_check(auth, NULL, SECRET), EVENT_REFUSED);
    event_auth_close(auth);
}
END_TEST

START_TEST(unfit_files_of_secrets_are_refused_with_a_line)
{
    static const struct {
        const char *text;
        int mode;
    } bad[] = {
        {"", 0600}, {"short\n", 0600}, {SECRET "\n", 0644}, {SECRET "\n", 0620}, {"with a blank inside\n", 0600}};
    struct event_auth *auth = NULL;
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        put(bad[i].text, bad[i].mode);
        ck_assert_int_eq(event_auth_open(path, &auth, &msg), -EINVAL);
        ck_assert_ptr_nonnull(strstr(msg, path));
        g_clear_pointer(&msg, g_free);
    }
    ck_assert_int_eq(event_auth_open("/nowhere", &auth, &msg), -EINVAL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("event_parse");
    TCase *tc = tcase_create("event_parse");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, keys_are_read_as_their_sender_writes_them);
    tcase_add_test(tc, kinds_of_events_are_told_apart);
    tcase_add_test(tc, envelopes_are_opened);
    tcase_add_test(tc, what_is_no_event_is_refused_as_a_whole);
    tcase_add_test(tc, of_a_key_that_json_cannot_carry_the_directory_is_known);
    tcase_add_test(tc, who_knows_a_secret_is_let_in);
    tcase_add_test(tc, new_secrets_count_without_a_restart);
    tcase_add_test(tc, secrets_that_could_not_be_read_are_tried_again);
    tcase_add_test(tc, unfit_files_of_secrets_are_refused_with_a_line);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
