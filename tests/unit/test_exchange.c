/* Names that change places while their files are published, over a lake in a folder, without FUSE. */
#include "fs/content.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fx.cfg.order = ORDER_NONE;
    fs_fixture_object(&fx, "d/g", "B", 1);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static uint64_t dir_of(const char *path, const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    g_autofree char *dir = slash ? g_strndup(path, (gsize)(slash - path)) : g_strdup("");
    INODE_REF in = fs_fixture_inode(&fx, dir);
    *ret_name = slash ? slash + 1 : path;
    return in->ino;
}

static void exchange(const char *a, const char *b)
{
    const char *n1, *n2;
    uint64_t p1 = dir_of(a, &n1), p2 = dir_of(b, &n2);
    ck_assert_int_eq(tree_rename(fx.fs, p1, n1, p2, n2, RENAME_EXCHANGE), 0);
}

static void drop(const char *path)
{
    const char *name;
    uint64_t dir = dir_of(path, &name);
    ck_assert_int_eq(tree_unlink(fx.fs, dir, name), 0);
}

static bool is_there(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    inode_put(r == 0 ? in : NULL);
    return r == 0;
}

/* The object that the name takes along, NULL: it has none elsewhere. Owned. */
static char *taken_along(const char *path)
{
    const char *name;
    struct meta_dentry d = {0};
    uint64_t dir = dir_of(path, &name);
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, dir, name, &d), 0);
    char *key = g_steal_pointer(&d.ukey);
    meta_dentry_clear(&d);
    return key;
}

static void assert_names(const char *dir, unsigned n)
{
    g_autoptr(GPtrArray) names = NULL;
    INODE_REF in = fs_fixture_inode(&fx, dir);
    ck_assert_int_eq(meta_dentry_list(fx.fs->meta, in->ino, &names), 0);
    ck_assert_uint_eq(names->len, n);
}

static void assert_one_name(const char *path)
{
    g_autoptr(GPtrArray) names = NULL;
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(meta_link_list(fx.fs->meta, in->ino, &names), 0);
    ck_assert_uint_eq(names->len, 1);
}

static void assert_object(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *have = NULL;
    ck_assert_msg(g_file_get_contents(path, &have, NULL, NULL), "no object %s", key);
    ck_assert_str_eq(have, want);
}

/*
 * The object made at the old place belongs to the file that went on, and who stands there is told so. When they change back, that must not put him there once more, beside
 * the one who came: he would be found at the place he left when he is published, and be made a name there again.
 */
START_TEST(names_that_change_back_while_one_is_published_have_one_place_each)
{
    const char *there = "d/g", *here = "f";
    fault("op=put,nth=1,action=delay:300ms;op=put,nth=2,count=1000000,action=error:-EIO");
    fs_fixture_write(&fx, here, "A", 1);
    while (!publish_has_note(fx.fs, here))
        g_usleep(1000);
    g_usleep(50000); /* it is being sent */
    exchange(here, there);
    while (publish_has_note(fx.fs, here))
        g_usleep(1000);
    g_autofree char *object = taken_along(there);
    ck_assert_ptr_nonnull(object);
    ck_assert_str_eq(object, here);
    if (_i == 0)
        exchange(here, there);
    else
        exchange(there, here);
    assert_names("", 2);
    assert_names("d", 1);
    assert_one_name(here);
    assert_one_name(there);
    drop(here);
    assert_names("", 1);
    fault("op=get,nth=1000000,action=error:-EIO");
    all_published();
    assert_object(there, "B");
    ck_assert(!fs_fixture_object_exists(&fx, here));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert(!is_there(here));
    assert_one_name(there);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("exchange");
    TCase *t = tcase_create("exchange");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, names_that_change_back_while_one_is_published_have_one_place_each, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
