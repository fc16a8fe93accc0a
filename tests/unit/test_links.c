/* Names of one file, each an object of its own: from which of them the file's bytes come. Over a lake in a folder, without FUSE. */
#include "cache.h"
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"

#include <check.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup("op=copy,nth=1,action=delay:300ms");
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void publish_all(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void make_link(const char *path, const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    INODE_REF linked = NULL;
    ck_assert_int_eq(tree_link(fx.fs, in->ino, META_ROOT_INO, name, &linked), 0);
}

static void write_file(const char *path, char with)
{
    g_autofree char *data = g_strnfill(300000, with);
    fs_fixture_write(&fx, path, data, 300000);
}

static void evict(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    uint64_t vid = in->rec.vid;
    if (vid)
        ck_assert_int_eq(cache_evict(fx.fs->cache, vid), 0);
}

static void assert_reads(const char *path, char want)
{
    struct cfile *cf = NULL;
    char buf[1000];
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof(buf), 200000), (ssize_t)sizeof(buf));
    ck_assert_int_eq(buf[0], want);
    ck_assert_int_eq(buf[999], want);
    content_unuse(in, cf);
}

/* Its absent bytes are in the object of the name that was published last. */
static char *base_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return g_strdup(in->rec.base_key);
}

static void check_other_name_after(bool renamed_over)
{
    write_file("a", 'x');
    make_link("a", "b");
    fs_fixture_start(&fx);
    publish_all();
    g_autofree char *gone = base_of("a");
    const char *left = strcmp(gone, "a") == 0 ? "b" : "a";
    if (renamed_over) {
        write_file("other", 'y');
        ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "other", META_ROOT_INO, gone, 0), 0);
    } else {
        ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, gone), 0);
    }
    publish_all();
    evict(left);
    assert_reads(left, 'x');
    make_link(left, "c");
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "c"));
}

START_TEST(other_name_is_read_from_its_own_object_when_the_first_is_removed)
{
    check_other_name_after(false);
}
END_TEST

START_TEST(other_name_is_read_from_its_own_object_when_the_first_is_renamed_over)
{
    check_other_name_after(true);
}
END_TEST

/* What is to be copied must not be overwritten, in whatever directory the two names are. */
START_TEST(object_of_a_linked_file_stays_until_the_link_is_published)
{
    g_autofree char *data = g_strnfill(300000, 'x');
    fs_fixture_object(&fx, "dir/a", data, 300000);
    make_link("dir/a", "b");
    INODE_REF dir = fs_fixture_inode(&fx, "dir");
    write_file("dir/new", 'y');
    ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "new", dir->ino, "a", 0), 0);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "dir/a", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    publish_all();
    struct publish_counts n;
    publish_count(fx.fs->pub, "", &n);
    ck_assert_uint_eq(n.conflicts, 0);
    evict("b");
    assert_reads("b", 'x');
    assert_reads("dir/a", 'y');
}
END_TEST

int main(void)
{
    Suite *s = suite_create("links");
    TCase *tc = tcase_create("links");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, other_name_is_read_from_its_own_object_when_the_first_is_removed);
    tcase_add_test(tc, other_name_is_read_from_its_own_object_when_the_first_is_renamed_over);
    tcase_add_test(tc, object_of_a_linked_file_stays_until_the_link_is_published);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
