/* Bucket links that go: with many names, and although the daemon ends meanwhile. */
#include "../../fs/links.h"
#include "../../fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void start(void)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void restart(void)
{
    fs_fixture_close(&fx);
    start();
}

static void object(const char *name, const char *key, const char *text)
{
    g_autofree char *path = g_build_filename(fx.dir, name, key, NULL), *dir = g_path_get_dirname(path);
    ck_assert_int_eq(g_mkdir_with_parents(dir, 0700), 0);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
}

static bool holds(const char *name, const char *key, const char *text)
{
    g_autofree char *path = g_build_filename(fx.dir, name, key, NULL), *have = NULL;
    return g_file_get_contents(path, &have, NULL, NULL) && g_str_equal(have, text);
}

static int add(const char *name, const char *dir)
{
    g_autofree char *path = g_build_filename(fx.dir, name, NULL), *source = g_strconcat("file://", path, NULL);
    g_autofree char *msg = NULL;
    (void)g_mkdir_with_parents(path, 0700); /* may be there */
    json_t *o = json_object();
    int r = links_add(fx.fs, source, dir, o, &msg);
    json_decref(o);
    return r;
}

static int set_ttl(const char *dir)
{
    g_autofree char *msg = NULL;
    json_t *o = json_pack("{s:s}", "metadata-ttl", "1s");
    int r = links_set(fx.fs, dir, o, &msg);
    json_decref(o);
    return r;
}

static int rm(const char *dir)
{
    g_autofree char *msg = NULL;
    return links_remove(fx.fs, dir, NULL, NULL, &msg);
}

static int lookup(const char *path)
{
    INODE_REF in = NULL;
    return tree_resolve(fx.fs, path, &in);
}

static uint64_t ino_of(const char *path)
{
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, path, &in), 0);
    return in->ino;
}

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
    ck_assert_int_eq(add("one", "a"), 0);
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
    ck_assert_int_eq(add("two", "a"), 0); /* which is not going */
    restart();
    ck_assert_int_eq(set_ttl("a"), 0); /* when the thread has had its look */
    ck_assert(is_linked("a"));
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
    ck_assert_int_eq(add("one", "a"), 0);
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
    Suite *s = suite_create("links_remove");
    TCase *t = tcase_create("links");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 90);
    tcase_add_test(t, a_removal_that_was_cut_off_goes_on);
    tcase_add_test(t, a_link_goes_with_a_thousand_names);
    suite_add_tcase(s, t);
    return run_suite(s);
}
