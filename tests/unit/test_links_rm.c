/* Links that are removed with many names, and after a daemon that ended meanwhile. */
#include "links_fixture.h"

#include <jansson.h>

static bool is_linked(const char *dir)
{
    json_t *list = links_describe(fx.fs, dir, false);
    bool is = json_array_size(list) > 0;
    json_decref(list);
    return is;
}

/* As by the end of the daemon; nobody asks again. */
START_TEST(a_removal_that_was_cut_off_goes_on)
{
    object("one", "d/x", "1");
    object("one", "y", "2");
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(lookup("a/d/x"), 0);
    ck_assert_int_eq(lookup("a/y"), 0);
    atomic_store(&fx.fs->stopping, true);
    ck_assert_int_eq(rm("a"), -ECANCELED);
    restart();
    for (unsigned i = 0; i < 6000 && is_linked("a"); i++)
        g_usleep(10000);
    ck_assert(!is_linked("a"));
    ck_assert_int_eq(lookup("a"), -ENOENT);
    ck_assert(holds("one", "d/x", "1") && holds("one", "y", "2"));
    restart();
    ck_assert(!is_linked("a"));
    ck_assert_int_eq(add("two", "a", ""), 0); /* which is not going */
    restart();
    ck_assert_int_eq(set("a", "metadata-ttl=1s"), 0); /* when the thread has had its look */
    ck_assert(is_linked("a"));
}
END_TEST

static void cut_off_removal(void)
{
    object("one", "x", "1");
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(lookup("a/x"), 0);
    atomic_store(&fx.fs->stopping, true);
    ck_assert_int_eq(rm("a"), -ECANCELED);
    fs_fixture_close(&fx);
}

/* Else nobody served while the start waited for its end. */
START_TEST(a_removal_goes_on_when_the_mount_is_served)
{
    cut_off_removal();
    fs_fixture_open_unserved(&fx);
    fs_fixture_start(&fx);
    ck_assert(is_linked("a"));
    links_serve(fx.fs);
    for (unsigned i = 0; i < 6000 && is_linked("a"); i++)
        g_usleep(10000);
    ck_assert(!is_linked("a"));
}
END_TEST

/* What is written there would go to the mount's own bucket. */
START_TEST(a_link_that_the_file_lists_is_not_removed_any_more)
{
    cut_off_removal();
    g_autofree char *text = g_strdup_printf("file://%s/one a metadata-ttl=1s\n", fx.dir);
    fx.cfg.links = other("links.conf", NULL);
    ck_assert(g_file_set_contents(fx.cfg.links, text, -1, NULL));
    for (unsigned i = 0; i < 2; i++) {
        start();
        ck_assert_int_eq(set("a", "metadata-ttl=2s"), 0); /* when the thread has had its look */
        ck_assert_int_eq(links_may_name(fx.fs, "a/new", false), 0);
        fs_fixture_write(&fx, "a/new", "new", 3);
        publish_all();
        ck_assert(holds("one", "new", "new") && !fs_fixture_object_exists(&fx, "a/new"));
        ck_assert_int_eq(tree_unlink(fx.fs, ino_of("a"), "new"), 0);
        fs_fixture_close(&fx);
    }
}
END_TEST

/* NULL: as it was written once. */
static void put_going(const char *value)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    if (value)
        meta_value_put(b, "link-going/a", value, strlen(value));
    else
        meta_value_put_u64(b, "link-going/a", 1);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

/* An older program ended a removal, which it knew nothing of, and made another link there. */
START_TEST(a_link_made_where_one_was_being_removed_stays)
{
    static const char *const left[] = {"1 file:/elsewhere/", NULL};
    start();
    put_going("1 file:/elsewhere/");
    ck_assert_int_eq(add("one", "a", ""), 0);
    GBytes *value = NULL;
    ck_assert_int_eq(meta_value_get(fx.fs->meta, "link-going/a", &value), -ENOENT);
    for (unsigned i = 0; i < G_N_ELEMENTS(left); i++) {
        put_going(left[i]);
        fs_fixture_close(&fx);
        fs_fixture_open_unserved(&fx);
        ck_assert_int_eq(links_may_name(fx.fs, "a/x", false), 0);
    }
}
END_TEST

/* More than are taken at once, in a directory and in one below. */
START_TEST(a_link_goes_with_a_thousand_names)
{
    g_autoptr(GArray) inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    for (unsigned i = 0; i < 2400; i++) {
        g_autofree char *key = g_strdup_printf(i % 2 ? "d/%u" : "d/e/%u", i);
        object("one", key, "1");
    }
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    for (unsigned i = 0; i < 2400; i += 7) {
        g_autofree char *path = g_strdup_printf(i % 2 ? "a/d/%u" : "a/d/e/%u", i);
        uint64_t ino = ino_of(path);
        g_array_append_val(inos, ino);
    }
    ck_assert_int_eq(rm("a"), 0);
    ck_assert_int_eq(lookup("a"), -ENOENT);
    for (guint i = 0; i < inos->len; i++) {
        struct meta_dentry d = {0};
        ck_assert_int_eq(meta_link_first(fx.fs->meta, g_array_index(inos, uint64_t, i), &d), -ENOENT);
    }
    ck_assert(holds("one", "d/1", "1") && holds("one", "d/e/2398", "1"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("links_rm");
    TCase *t = tcase_create("links_rm");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_removal_that_was_cut_off_goes_on);
    tcase_add_test(t, a_removal_goes_on_when_the_mount_is_served);
    tcase_add_test(t, a_link_that_the_file_lists_is_not_removed_any_more);
    tcase_add_test(t, a_link_made_where_one_was_being_removed_stays);
    tcase_add_test(t, a_link_goes_with_a_thousand_names);
    suite_add_tcase(s, t);
    int status = run_suite(s);
    g_free(last_msg);
    return status;
}
