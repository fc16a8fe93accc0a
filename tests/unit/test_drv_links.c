/* Several stores as one: which store a key is in, what listings show, copies between stores, and changes of the set while calls run. */
#include "../../s3/objstore_links.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct objstore *st;
static char *dir;

static struct objstore *open_dir(const char *name)
{
    struct objstore *s = NULL;
    g_autofree char *msg = NULL;
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_autofree char *source = g_strconcat("file://", path, NULL);
    ck_assert_int_eq(g_mkdir_with_parents(path, 0700), 0);
    struct objstore_config cfg = {.source = source};
    ck_assert_int_eq(objstore_open(&cfg, &s, &msg), 0);
    return s;
}

static void setup(void)
{
    dir = g_dir_make_tmp("sluice-drv-links-XXXXXX", NULL);
    st = objstore_links_wrap(open_dir("root"), "links", "links");
}

static void setup_rootless(void)
{
    dir = g_dir_make_tmp("sluice-drv-links-XXXXXX", NULL);
    st = objstore_links_wrap(NULL, "links", "links");
}

static void teardown(void)
{
    g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", dir);
    objstore_close(st);
    ck_assert_int_eq(system(cmd), 0);
    g_free(dir);
}

static void put(const char *key, const char *text)
{
    ck_assert_int_eq(objstore_put(st, key, text, strlen(text), NULL, NULL, NULL), 0);
}

static bool is_file(const char *path, const char *text)
{
    g_autofree char *full = g_build_filename(dir, path, NULL);
    g_autofree char *have = NULL;
    return g_file_get_contents(full, &have, NULL, NULL) && g_str_equal(have, text);
}

static int append(void *ctx, uint64_t off, const void *buf, size_t len)
{
    g_string_append_len(ctx, buf, (gssize)len);
    return 0;
}

static void assert_content(const char *key, const char *text)
{
    g_autoptr(GString) have = g_string_new(NULL);
    ck_assert_int_eq(objstore_get(st, key, 0, 0, NULL, append, have, NULL), 0);
    ck_assert_str_eq(have->str, text);
}

static int collect(void *ctx, const struct obj_entry *e)
{
    g_string_append_printf(ctx, "%s%.*s", ((GString *)ctx)->len ? " " : "", (int)e->name_len, e->name);
    return 0;
}

static void assert_list(const char *prefix, bool delimiter, const char *after, uint32_t max, const char *want)
{
    g_autoptr(GString) have = g_string_new(NULL);
    struct obj_list_req req = {.prefix = prefix, .delimiter = delimiter, .start_after = after, .max_keys = max};
    ck_assert_int_eq(objstore_list(st, &req, collect, have, NULL), 0);
    ck_assert_str_eq(have->str, want);
}

static int head(const char *key)
{
    struct obj_info info = {0};
    int r = objstore_head(st, key, &info);
    obj_info_clear(&info);
    return r;
}

START_TEST(keys_go_to_the_store_of_their_link)
{
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    ck_assert_int_eq(objstore_links_add(st, "a/deep", open_dir("two")), 0);
    put("x", "root");
    put("sub/x", "one");
    put("a/deep/b/x", "two");
    put("subway", "root too");
    put("a/deeper/x", "root as well");
    ck_assert(is_file("root/x", "root") && is_file("one/x", "one") && is_file("two/b/x", "two"));
    ck_assert(is_file("root/subway", "root too") && is_file("root/a/deeper/x", "root as well"));
    assert_content("sub/x", "one");
    assert_content("a/deep/b/x", "two");
    ck_assert_int_eq(objstore_delete(st, "sub/x", NULL), 0);
    ck_assert_int_eq(head("sub/x"), -ENOENT);
    ck_assert_int_eq(head("x"), 0);
}
END_TEST

START_TEST(the_directory_of_a_link_is_no_object)
{
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    ck_assert_int_eq(head("sub/"), -ENOENT);
    ck_assert_int_eq(objstore_put(st, "sub/", "", 0, NULL, NULL, NULL), -EINVAL);
    ck_assert_int_eq(objstore_delete(st, "sub/", NULL), -EINVAL);
    char *id = NULL;
    ck_assert_int_eq(objstore_mpu_create(st, "sub/", NULL, &id), -EINVAL);
}
END_TEST

START_TEST(listings_show_links_and_hide_what_is_below_them)
{
    put("a", "1");
    put("m/x", "1");
    put("sub/hidden", "1");
    put("z", "1");
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    ck_assert_int_eq(objstore_links_add(st, "m/in", open_dir("two")), 0);
    ck_assert_int_eq(objstore_links_add(st, "new/er", open_dir("three")), 0);
    put("sub/y", "1");
    put("m/in/k", "1");
    assert_list("", true, NULL, 0, "a m/ new/ sub/ z");
    assert_list("m/", true, NULL, 0, "in/ x");
    assert_list("new/", true, NULL, 0, "er/");
    assert_list("sub/", true, NULL, 0, "y");
    assert_list("m/in/", true, NULL, 0, "k");
    assert_list("", true, "m", 0, "m/ new/ sub/ z");
    assert_list("", true, "m/", 0, "new/ sub/ z");
    assert_list("", true, NULL, 3, "a m/ new/");
    assert_list("", false, NULL, 0, "a m/in/ m/x new/er/ sub/ z");
    assert_list("new/", false, NULL, 1, "er/");
    assert_list("sub/", true, "sub/x", 0, "y");
    assert_list("sub/", true, "a", 0, "y");
    assert_list("sub/", true, "z", 0, "");
    ck_assert_int_eq(objstore_links_remove(st, "sub"), 0);
    assert_list("sub/", true, NULL, 0, "hidden");
}
END_TEST

static int stop_at_second(void *ctx, const struct obj_entry *e)
{
    return ++*(unsigned *)ctx == 2 ? 7 : 0;
}

START_TEST(a_listing_ends_where_its_reader_says)
{
    unsigned n = 0;
    bool truncated = false;
    struct obj_list_req req = {.prefix = "", .delimiter = true};
    put("a", "1");
    put("z", "1");
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    ck_assert_int_eq(objstore_list(st, &req, stop_at_second, &n, NULL), 7);
    ck_assert_uint_eq(n, 2);
    req.max_keys = 2;
    n = 10;
    ck_assert_int_eq(objstore_list(st, &req, stop_at_second, &n, &truncated), 0);
    ck_assert_uint_eq(n, 12);
    ck_assert(truncated);
}
END_TEST

START_TEST(copies_stay_in_one_store)
{
    struct etag etag = {0};
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    ck_assert_int_eq(objstore_links_add(st, "two", open_dir("two")), 0);
    ck_assert_int_eq(objstore_put(st, "sub/x", "1", 1, NULL, NULL, &etag), 0);
    ck_assert_int_eq(objstore_copy(st, "sub/x", &etag, "sub/y", NULL, NULL, NULL), 0);
    ck_assert_int_eq(objstore_copy(st, "sub/x", &etag, "y", NULL, NULL, NULL), -EXDEV);
    ck_assert_int_eq(objstore_copy(st, "sub/x", &etag, "two/y", NULL, NULL, NULL), -EXDEV);
    ck_assert(is_file("one/y", "1"));
    g_autofree char *id = NULL;
    struct obj_part part = {.number = 1, .size = 1};
    ck_assert_int_eq(objstore_mpu_create(st, "two/y", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part_copy(st, "two/y", id, "sub/x", &etag, 0, &part), -EXDEV);
    ck_assert_int_eq(objstore_mpu_abort(st, "two/y", id), 0);
}
END_TEST

static int collect_upload(void *ctx, const char *key, const char *id)
{
    g_string_append_printf(ctx, "%s ", key);
    return 0;
}

START_TEST(uploads_of_all_stores_are_listed)
{
    g_autofree char *a = NULL, *b = NULL;
    g_autoptr(GString) keys = g_string_new(NULL);
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    ck_assert_int_eq(objstore_mpu_create(st, "x", NULL, &a), 0);
    ck_assert_int_eq(objstore_mpu_create(st, "sub/y", NULL, &b), 0);
    ck_assert_int_eq(objstore_mpu_list(st, "", collect_upload, keys), 0);
    ck_assert_str_eq(keys->str, "x sub/y ");
    g_string_truncate(keys, 0);
    ck_assert_int_eq(objstore_mpu_list(st, "sub/", collect_upload, keys), 0);
    ck_assert_str_eq(keys->str, "sub/y ");
    ck_assert_int_eq(objstore_mpu_abort(st, "x", a), 0);
    ck_assert_int_eq(objstore_mpu_abort(st, "sub/y", b), 0);
}
END_TEST

START_TEST(a_store_that_lists_no_uploads_leaves_the_others_alone)
{
    g_autofree char *id = NULL;
    g_autoptr(GString) keys = g_string_new(NULL);
    struct objstore *faulty = NULL;
    ck_assert_int_eq(objstore_fault_wrap(open_dir("one"), "op=uploads,action=error:-EIO", &faulty), 0);
    ck_assert_int_eq(objstore_links_add(st, "bad", faulty), 0);
    ck_assert_int_eq(objstore_links_add(st, "good", open_dir("two")), 0);
    ck_assert_int_eq(objstore_mpu_create(st, "good/y", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_list(st, "", collect_upload, keys), -EIO);
    ck_assert_str_eq(keys->str, "good/y ");
    ck_assert_int_eq(objstore_mpu_abort(st, "good/y", id), 0);
}
END_TEST

START_TEST(links_do_not_lie_in_one_another)
{
    ck_assert_int_eq(objstore_links_add(st, "a/b", open_dir("one")), 0);
    ck_assert_int_eq(objstore_links_add(st, "a/b", open_dir("two")), -EEXIST);
    ck_assert_int_eq(objstore_links_add(st, "a", open_dir("two")), -EEXIST);
    ck_assert_int_eq(objstore_links_add(st, "a/b/c", open_dir("two")), -EEXIST);
    ck_assert_int_eq(objstore_links_add(st, "a/bc", open_dir("two")), 0);
    ck_assert_int_eq(objstore_links_remove(st, "a"), -ENOENT);
    ck_assert_int_eq(objstore_links_replace(st, "c", open_dir("two")), -ENOENT);
}
END_TEST

START_TEST(one_link_that_fails_leaves_the_others_alone)
{
    struct objstore_link_health h;
    struct objstore *faulty = NULL;
    ck_assert_int_eq(objstore_fault_wrap(open_dir("one"), "op=head,action=error:-EIO", &faulty), 0);
    ck_assert_int_eq(objstore_links_add(st, "bad", faulty), 0);
    ck_assert_int_eq(objstore_links_add(st, "good", open_dir("two")), 0);
    ck_assert_int_eq(objstore_links_add(st, "gone", NULL), 0);
    put("good/x", "1");
    put("bad/x", "1");
    ck_assert_int_eq(head("bad/x"), -EIO);
    ck_assert_int_eq(head("gone/x"), -EIO);
    ck_assert_int_eq(objstore_put(st, "gone/x", "", 0, NULL, NULL, NULL), -EIO);
    struct obj_list_req req = {.prefix = "gone/", .delimiter = true};
    ck_assert_int_eq(objstore_list(st, &req, collect, NULL, NULL), -EIO);
    ck_assert_int_eq(head("good/x"), 0);
    ck_assert_int_eq(objstore_links_health(st, "bad", &h), 0);
    ck_assert(h.open && h.err == -EIO && h.since_ns > 0);
    ck_assert_int_eq(objstore_links_health(st, "good", &h), 0);
    ck_assert(h.open && h.err == 0 && h.since_ns == 0);
    ck_assert_int_eq(objstore_links_health(st, "gone", &h), 0);
    ck_assert(!h.open && h.err == -EIO);
    struct objstore_at at;
    objstore_at(st, "gone/x", &at);
    ck_assert(at.offline_since_ns != 0);
    objstore_at(st, "good/x", &at);
    ck_assert(at.offline_since_ns == 0 && (at.caps & CAP_PUT_IF_MATCH));
    ck_assert_int_eq(objstore_links_replace(st, "gone", open_dir("three")), 0);
    put("gone/x", "3");
    ck_assert_int_eq(objstore_fault_set(faulty, ""), 0);
    ck_assert_int_eq(head("bad/x"), 0);
    ck_assert_int_eq(objstore_links_health(st, "bad", &h), 0);
    ck_assert_int_eq(h.err, 0);
}
END_TEST

START_TEST(capabilities_belong_to_the_store_of_the_key)
{
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    objstore_set_caps_of(st, "sub/x", CAP_PART_COPY);
    ck_assert_uint_eq(objstore_caps_of(st, "sub/y"), CAP_PART_COPY);
    ck_assert(objstore_caps_of(st, "y") & CAP_PUT_IF_MATCH);
    uint32_t caps = 0;
    ck_assert_int_eq(objstore_probe(st, "sub/.probe/", &caps), 0);
    ck_assert_uint_eq(objstore_caps_of(st, "sub/y"), caps);
    ck_assert_uint_eq(objstore_limits_of(st, "sub/y").key_max_bytes, 1024 + strlen("sub/"));
}
END_TEST

START_TEST(without_a_root_there_are_only_links)
{
    ck_assert_int_eq(objstore_links_add(st, "a/b", open_dir("one")), 0);
    put("a/b/x", "1");
    assert_list("", true, NULL, 0, "a/");
    assert_list("a/", true, NULL, 0, "b/");
    assert_list("other/", true, NULL, 0, "");
    ck_assert_int_eq(head("x"), -ENOENT);
    ck_assert_int_eq(objstore_put(st, "x", "", 0, NULL, NULL, NULL), -EROFS);
    ck_assert_str_eq(objstore_identity(st), "links");
    char *msg = NULL;
    ck_assert_int_eq(objstore_check(st, &msg), 0);
    struct objstore_at at;
    objstore_at(st, "x",
                &at); /* what is said to be offline is listed in the background, and shown as it was meanwhile */
    ck_assert_int_eq(at.offline_since_ns, 0);
    ck_assert_int_eq(objstore_links_remove(st, "a/b"), 0);
    assert_list("", true, NULL, 0, "");
}
END_TEST

struct slow {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool inside, go;
};

static int wait_inside(void *ctx, const struct obj_entry *e)
{
    struct slow *s = ctx;
    pthread_mutex_lock(&s->mu);
    s->inside = true;
    pthread_cond_broadcast(&s->cv);
    while (!s->go)
        pthread_cond_wait(&s->cv, &s->mu);
    pthread_mutex_unlock(&s->mu);
    return 0;
}

static void *list_slowly(void *ctx)
{
    struct obj_list_req req = {.prefix = "sub/", .delimiter = true};
    return GINT_TO_POINTER(objstore_list(st, &req, wait_inside, ctx, NULL));
}

/* A sanitizer tells if the store were closed under the call. */
START_TEST(a_call_under_way_keeps_its_store)
{
    struct slow s = {.mu = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER};
    pthread_t t;
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    put("sub/x", "1");
    ck_assert_int_eq(pthread_create(&t, NULL, list_slowly, &s), 0);
    pthread_mutex_lock(&s.mu);
    while (!s.inside)
        pthread_cond_wait(&s.cv, &s.mu);
    pthread_mutex_unlock(&s.mu);
    ck_assert_int_eq(objstore_links_replace(st, "sub", open_dir("two")), 0);
    ck_assert_int_eq(head("sub/x"), -ENOENT);
    ck_assert_int_eq(objstore_links_remove(st, "sub"), 0);
    pthread_mutex_lock(&s.mu);
    s.go = true;
    pthread_cond_broadcast(&s.cv);
    pthread_mutex_unlock(&s.mu);
    void *result;
    ck_assert_int_eq(pthread_join(t, &result), 0);
    ck_assert_int_eq(GPOINTER_TO_INT(result), 0);
}
END_TEST

/* A store that refuses each change without a look at the disk. */
static struct objstore *open_nothing(void)
{
    return objstore_links_wrap(NULL, "nothing", "nothing");
}

static void *replace_until(void *stop)
{
    while (!atomic_load((atomic_bool *)stop))
        ck_assert_int_eq(objstore_links_replace(st, "sub", open_nothing()), 0);
    return NULL;
}

/* It would be said to lead from one store to another, which nobody tries again. */
START_TEST(a_copy_finds_one_store_though_it_is_replaced)
{
    pthread_t t[4];
    atomic_bool stop = false;
    struct etag etag = {.s = "\"1\""};
    ck_assert_int_eq(objstore_links_add(st, "sub", open_nothing()), 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(t); i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, replace_until, &stop), 0);
    unsigned n_other = 0;
    for (unsigned i = 0; i < 400000; i++)
        n_other += objstore_copy(st, "sub/x", &etag, "sub/y", NULL, NULL, NULL) != -EROFS;
    atomic_store(&stop, true);
    for (unsigned i = 0; i < G_N_ELEMENTS(t); i++)
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    ck_assert_uint_eq(n_other, 0);
}
END_TEST

START_TEST(after_shutdown_calls_end)
{
    ck_assert_int_eq(objstore_links_add(st, "sub", open_dir("one")), 0);
    put("sub/x", "1");
    objstore_shutdown(st);
    g_autoptr(GString) have = g_string_new(NULL);
    ck_assert_int_eq(objstore_get(st, "sub/x", 0, 0, NULL, append, have, NULL), -ECANCELED);
    ck_assert_int_eq(objstore_links_add(st, "late", open_dir("two")), 0);
    ck_assert_int_eq(objstore_links_remove(st, "late"), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_links");
    TCase *t = tcase_create("links"), *n = tcase_create("rootless");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, keys_go_to_the_store_of_their_link);
    tcase_add_test(t, the_directory_of_a_link_is_no_object);
    tcase_add_test(t, listings_show_links_and_hide_what_is_below_them);
    tcase_add_test(t, a_listing_ends_where_its_reader_says);
    tcase_add_test(t, copies_stay_in_one_store);
    tcase_add_test(t, uploads_of_all_stores_are_listed);
    tcase_add_test(t, a_store_that_lists_no_uploads_leaves_the_others_alone);
    tcase_add_test(t, links_do_not_lie_in_one_another);
    tcase_add_test(t, one_link_that_fails_leaves_the_others_alone);
    tcase_add_test(t, capabilities_belong_to_the_store_of_the_key);
    tcase_add_test(t, a_call_under_way_keeps_its_store);
    tcase_add_test(t, a_copy_finds_one_store_though_it_is_replaced);
    tcase_add_test(t, after_shutdown_calls_end);
    tcase_add_checked_fixture(n, setup_rootless, teardown);
    tcase_add_test(n, without_a_root_there_are_only_links);
    suite_add_tcase(s, t);
    suite_add_tcase(s, n);
    return run_suite(s);
}
