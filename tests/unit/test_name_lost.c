/* Files whose name went to what the store has, while the kernel, which was not told yet, still finds them by it. Without FUSE: the tests do what the operations do. */
#include "fs/content.h"
#include "fs/event_apply.h"
#include "fs/op.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdio.h>
#include <sys/stat.h>

static struct fs_fixture fx;
static const struct etag no_tag;

/* Nothing is seen by listings once a directory was listed. */
static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void remove_at(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

static int look(const char *key, bool created)
{
    return event_look(fx.fs, key, &no_tag, created);
}

/* For its readers it goes on; an acknowledged change of it would be lost. _i: by a listing or by an event, replaced or removed. */
START_TEST(file_that_lost_its_name_to_others_is_not_changed_by_it)
{
    bool removed = _i & 1, listed = _i & 2;
    struct stat st = {.st_mode = 0600};
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_object(&fx, "d/other", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(content_open(in, false, false), 0);
    if (removed)
        remove_at("d/f");
    else
        fs_fixture_object(&fx, "d/f", "22", 2);
    if (listed)
        ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    else
        ck_assert_int_eq(look("d/f", !removed), EVENT_APPLIED);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), in->ino);
    ck_assert_int_eq(content_open(in, true, false), -ESTALE);
    ck_assert_int_eq(content_open(in, true, true), -ESTALE);
    ck_assert_int_eq(attr_set_size(in, NULL, &(struct fuse_ctx){0}, 0), -ESTALE);
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), -ESTALE);
    ck_assert_uint_eq(in->n_open, 1);
    ck_assert_uint_eq(in->n_writers, 0);
    ck_assert_int_eq(content_open(in, false, false), 0);
    content_release(in, false);
    content_release(in, false);
}
END_TEST

START_TEST(file_that_a_program_removed_is_changed_by_who_has_it_open)
{
    struct stat st = {.st_mode = 0600};
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_object(&fx, "d/g", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(content_open(in, false, false), 0);
    if (_i == 0)
        ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "f"), 0);
    else
        ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "g", dir->ino, "f", 0), 0);
    ck_assert_uint_eq(in->rec.nlink, 0);
    ck_assert_int_eq(content_open(in, true, false), 0); /* by its descriptor */
    ck_assert_int_eq(attr_set_size(in, NULL, &(struct fuse_ctx){0}, 0), 0);
    content_release(in, true);
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), 0);
    content_release(in, false);
}
END_TEST

/* Who takes over knows it too; a name that it gets makes it a file like any other. */
START_TEST(file_that_lost_its_name_to_others_stays_known_as_that)
{
    struct inode *named = NULL;
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(content_open(in, false, false), 0);
    fs_fixture_object(&fx, "d/f", "22", 2);
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    struct meta_inode rec = {0};
    ck_assert_int_eq(meta_inode_get(fx.fs->meta, in->ino, &rec), 0);
    ck_assert_uint_ne(rec.flags & INODE_NAME_LOST, 0);
    meta_inode_clear(&rec);
    ck_assert_int_eq(tree_link(fx.fs, in->ino, dir->ino, "again", &named), 0);
    inode_put(named);
    ck_assert_int_eq(content_open(in, true, false), 0);
    content_release(in, true);
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "again"), 0);
    ck_assert_int_eq(content_open(in, true, false), 0);
    content_release(in, true);
    content_release(in, false);
}
END_TEST

START_TEST(file_that_has_another_name_still_is_changed)
{
    struct inode *named = NULL;
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(tree_link(fx.fs, in->ino, dir->ino, "g", &named), 0);
    inode_put(named);
    fs_fixture_object(&fx, "d/f", "22", 2);
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    ck_assert_uint_eq(in->rec.nlink, 1);
    ck_assert_int_eq(content_open(in, true, false), 0);
    content_release(in, true);
}
END_TEST

/* He was not there yet when somebody looked. */
START_TEST(name_stays_for_a_writer_who_comes_before_it_goes)
{
    struct meta_dentry d = {0};
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(content_open(in, true, false), 0);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&fx.fs->ns);
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, dir->ino, "f", &d), 0);
    ck_assert_int_eq(tree_lose_name(fx.fs, b, &d), 1);
    publish_apply(fx.fs, false);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
    meta_dentry_clear(&d);
    ck_assert_uint_eq(in->rec.nlink, 1);
    ck_assert(in->passed_over);
    ck_assert_int_eq(content_open(in, true, false), 0);
    content_release(in, true);
    content_release(in, true);
}
END_TEST

START_TEST(name_that_could_not_be_taken_away_is_as_before)
{
    struct meta_dentry d = {0};
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&fx.fs->ns);
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, dir->ino, "f", &d), 0);
    ck_assert_int_eq(tree_lose_name(fx.fs, b, &d), 0);
    publish_apply(fx.fs, false);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
    meta_dentry_clear(&d);
    ck_assert_int_eq(content_open(in, true, false), 0);
    content_release(in, true);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("name_lost");
    TCase *tc = tcase_create("name_lost");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, file_that_lost_its_name_to_others_is_not_changed_by_it, 0, 4);
    tcase_add_loop_test(tc, file_that_a_program_removed_is_changed_by_who_has_it_open, 0, 2);
    tcase_add_test(tc, file_that_lost_its_name_to_others_stays_known_as_that);
    tcase_add_test(tc, file_that_has_another_name_still_is_changed);
    tcase_add_test(tc, name_stays_for_a_writer_who_comes_before_it_goes);
    tcase_add_test(tc, name_that_could_not_be_taken_away_is_as_before);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
