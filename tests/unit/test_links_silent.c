/* Links whose stores take requests and never answer: other links are changed as ever, and the end of the daemon does not wait for them. */
#include "base/patience.h"
#include "fs/links.h"
#include "fs_fixture.h"
#include "http_stub.h"
#include "tests/support/checks.h"

#include <glib/gstdio.h>
#include <string.h>

#define SOON_NS      (20 * NS_PER_S)
#define N_UNANSWERED 100

static struct fs_fixture fx;
static struct http_stub *stub;

/* s3://one at a and s3://two at b, both silent, and a directory at c. */
static void setup(void)
{
    fs_fixture_init(&fx);
    stub = http_stub_new();
    for (unsigned i = 0; i < N_UNANSWERED; i++)
        http_stub_hang(stub);
    g_autofree char *dir = g_build_filename(fx.dir, "three", NULL);
    ck_assert_int_eq(g_mkdir(dir, 0700), 0);
    const char *url = http_stub_url(stub);
    g_autofree char *text = g_strdup_printf("s3://one a endpoint-url=%s no-sign-request force-path-style\n"
                                            "s3://two b endpoint-url=%s no-sign-request force-path-style\n"
                                            "file://%s/three c\n",
                                            url, url, fx.dir);
    fx.cfg.links = g_build_filename(fx.dir, "links.txt", NULL);
    ck_assert(g_file_set_contents(fx.cfg.links, text, -1, NULL));
    fx.cfg.op_timeout_ns = 60 * NS_PER_S;
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    http_stub_free(stub);
}

static bool is_asked(const char *bucket)
{
    g_autofree char *list = g_strdup_printf("GET /%s", bucket);
    for (unsigned i = 0; i < http_stub_n_requests(stub); i++)
        if (g_str_has_prefix(http_stub_request(stub, i), list))
            return true;
    return false;
}

/* A program asks for something below, and does not wait for long. */
static void degrade(const char *key)
{
    struct obj_info info = {0};
    struct patience p;
    patience_begin(&p, 0, clock_mono_ns(), NS_PER_S);
    ck_assert_int_eq(objstore_head(fx.fs->store, key, &info), -ETIMEDOUT);
    patience_end();
}

static int add(const char *source, const char *dir, const char *endpoint)
{
    g_autofree char *msg = NULL;
    json_t *o = json_object();
    if (endpoint)
        json_object_update_new(o, json_pack("{s:s, s:s, s:s}", "endpoint-url", endpoint, "no-sign-request", "true",
                                            "force-path-style", "true"));
    int r = links_add(fx.fs, source, dir, o, &msg);
    json_decref(o);
    return r;
}

static int set(const char *dir, const char *name, const char *value)
{
    g_autofree char *msg = NULL;
    json_t *o = json_pack("{s:s}", name, value);
    int r = links_set(fx.fs, dir, o, &msg);
    json_decref(o);
    return r;
}

static int rm(const char *dir)
{
    g_autofree char *msg = NULL;
    return links_remove(fx.fs, dir, NULL, NULL, &msg);
}

static void assert_others_are_changed(void)
{
    g_autofree char *source = g_strdup_printf("file://%s/three", fx.dir);
    uint64_t began_ns = clock_mono_ns();
    ck_assert_int_eq(set("c", "metadata-ttl", "5s"), 0);
    ck_assert_int_eq(rm("c"), 0);
    ck_assert_int_eq(add(source, "c", NULL), 0);
    ck_assert_uint_lt(clock_mono_ns() - began_ns, SOON_NS);
}

START_TEST(links_that_are_tried_again_hold_up_no_change_of_another)
{
    degrade("a/x");
    degrade("b/x");
    EVENTUALLY(is_asked("one") || is_asked("two"));
    assert_others_are_changed();
    EVENTUALLY(is_asked("one") && is_asked("two")); /* nor one another */
    uint64_t began_ns = clock_mono_ns();
    ck_assert_int_eq(rm("a"), 0);
    ck_assert_uint_lt(clock_mono_ns() - began_ns, SOON_NS);
}
END_TEST

static gpointer add_silent(gpointer arg)
{
    return GINT_TO_POINTER(add("s3://one", "d", http_stub_url(stub)));
}

static gpointer set_silent(gpointer arg)
{
    return GINT_TO_POINTER(set("a", "region", "other"));
}

static gpointer remove_a(gpointer arg)
{
    return GINT_TO_POINTER(rm("a"));
}

static void assert_ends(GThread *thread, int want)
{
    uint64_t began_ns = clock_mono_ns();
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(thread)), want);
    ck_assert_uint_lt(clock_mono_ns() - began_ns, SOON_NS);
}

START_TEST(store_that_is_asked_for_a_new_link_holds_up_nothing)
{
    GThread *thread = g_thread_new("add", add_silent, NULL);
    EVENTUALLY(is_asked("one"));
    assert_others_are_changed();
    fs_interrupt(fx.fs);
    assert_ends(thread, -ECANCELED);
}
END_TEST

START_TEST(store_that_is_asked_for_other_options_holds_up_its_link_only)
{
    GThread *thread = g_thread_new("set", set_silent, NULL);
    EVENTUALLY(is_asked("one"));
    GThread *remover = g_thread_new("rm", remove_a, NULL); /* of the link that is being changed: it waits */
    assert_others_are_changed();
    fs_interrupt(fx.fs);
    assert_ends(thread, -ECANCELED);
    assert_ends(remover, -ECANCELED);
}
END_TEST

START_TEST(store_that_was_replaced_while_it_was_asked_does_not_hold_up_the_end)
{
    const char *empty = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    degrade("a/x");
    EVENTUALLY(is_asked("one"));
    http_stub_skip(stub);
    http_stub_always(stub, 200, "", empty, strlen(empty)); /* but for the request that it keeps silent about */
    ck_assert_int_eq(set("a", "region", "other"), 0);
    uint64_t began_ns = clock_mono_ns();
    fs_fixture_close(&fx);
    ck_assert_uint_lt(clock_mono_ns() - began_ns, SOON_NS);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("links_silent");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 200);
    tcase_add_test(tc, links_that_are_tried_again_hold_up_no_change_of_another);
    tcase_add_test(tc, store_that_is_asked_for_a_new_link_holds_up_nothing);
    tcase_add_test(tc, store_that_is_asked_for_other_options_holds_up_its_link_only);
    tcase_add_test(tc, store_that_was_replaced_while_it_was_asked_does_not_hold_up_the_end);
    Suite *s = suite_create("links_silent");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
