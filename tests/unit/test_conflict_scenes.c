/* Lost races in odd company: a second one at the same name, directories, renamed files, open handles, and what others do to the object meanwhile. */
#include "conflict_fixture.h"

/* "f" was changed here from "base" to `ours` and elsewhere to `winner` (NULL: removed), which came first. */
static void lose_again(const char *path, const char *ours, const char *winner)
{
    uint64_t n = n_conflicts();
    struct inode *in = begin_write(path, ours);
    if (winner)
        theirs(path, winner);
    else
        remove_object(path);
    end_write(in);
    EVENTUALLY(n_conflicts() == n + 1);
}

static void lose(const char *path, const char *winner)
{
    assert_path(path, "base");
    lose_again(path, "ours", winner);
}

static void lose_f(const char *winner)
{
    theirs("f", "base");
    start();
    lose("f", winner);
}

static void reopen(void)
{
    fs_fixture_close(&fx);
    start();
}

/* The one that came first. */
static int take_first(void *ctx, const struct conflict *c)
{
    uint64_t *id = ctx;
    *id = *id ? *id : c->id;
    return 0;
}

START_TEST(two_conflicts_at_one_path_are_decided_one_by_one)
{
    lose_f("theirs");
    int skipped = 0;
    EVENTUALLY(skipped == 1 || (skipped = publish_skip(fx.fs->pub, "f")) == 1); /* else the second waits for it */
    lose_again("f", "ours, again", "theirs, again");
    uint64_t id = 0, first = 0;
    ck_assert_int_eq(conflict_find(fx.fs->meta, "f", &id), -ENOTUNIQ);
    ck_assert_int_eq(conflict_each(fx.fs->meta, take_first, &first), 0);
    if (_i)
        reopen();
    assert_path("f", "theirs, again");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, first), 0);
    assert_path("f", "ours");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), -EEXIST); /* that waits for this decision */
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id_at("f")), 0);
    all_published();
    assert_object("f", "ours");
    assert_path("f", "ours");
    ck_assert_uint_eq(n_conflicts(), 0);
}
END_TEST

START_TEST(renamed_file_that_lost_gets_another_name)
{
    theirs("a", "ours");
    theirs("b", "base");
    start();
    assert_path("a", "ours");
    assert_path("b", "base");
    theirs("b", "theirs");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a", META_ROOT_INO, "b", 0), 0);
    EVENTUALLY(n_conflicts() == 1);
    if (_i == 0) {
        ck_assert_int_eq(conflict_save_as(fx.fs, id_at("b"), "c"), 0);
        assert_path("c", "ours");
    } else {
        ck_assert_int_eq(conflict_keep_theirs(fx.fs, id_at("b")), 0);
    }
    all_published();
    if (_i == 0)
        assert_object("c", "ours");
    assert_object("b", "theirs");
    assert_path("b", "theirs");
    assert_path("a", "(none)");
    ck_assert(!fs_fixture_object_exists(&fx, "a"));
}
END_TEST

/* It has the very etag that the loser was made from. */
START_TEST(what_came_back_elsewhere_is_theirs)
{
    lose_f("theirs");
    theirs("f", "base");
    uint64_t id = id_at("f");
    if (_i == 0)
        ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), 0);
    else
        ck_assert_int_eq(conflict_save_as(fx.fs, id, "g"), 0);
    all_published();
    assert_object("f", "base");
    if (_i)
        assert_object("g", "ours");
    INODE_REF root = NULL;
    ck_assert_int_eq(inode_get(fx.fs, META_ROOT_INO, &root), 0);
    ck_assert_int_eq(tree_refresh(fx.fs, root, true), 0);
    assert_path("f", "base");
}
END_TEST

START_TEST(nothing_is_made_up_where_theirs_was_removed_too)
{
    lose_f("theirs");
    remove_object("f");
    uint64_t id = id_at("f");
    if (_i == 0)
        ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), 0);
    else
        ck_assert_int_eq(conflict_keep_mine(fx.fs, id), 0);
    all_published();
    if (_i)
        assert_object("f", "ours");
    else
        ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert_uint_eq(n_conflicts(), 0);
}
END_TEST

START_TEST(theirs_was_removed_here_and_the_delete_waits)
{
    lose_f("theirs");
    fault("op=delete,key=f,action=error:-EIO");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    assert_path("f", "(none)");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), 0);
    fault("");
    assert_path("f", "ours");
    all_published();
    assert_object("f", "ours");
}
END_TEST

START_TEST(directory_at_the_path_stays)
{
    lose_f(NULL);
    theirs("f/x", "theirs");
    INODE_REF root = NULL;
    ck_assert_int_eq(inode_get(fx.fs, META_ROOT_INO, &root), 0);
    ck_assert_int_eq(tree_refresh(fx.fs, root, true), 0);
    assert_path("f/x", "theirs");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), -EISDIR);
    ck_assert_uint_eq(n_conflicts(), 1);
    ck_assert_int_eq(conflict_save_as(fx.fs, id_at("f"), "f/ours"), 0);
    all_published();
    assert_object("f/ours", "ours");
    assert_object("f/x", "theirs");
}
END_TEST

START_TEST(its_directory_was_renamed_or_is_gone)
{
    fs_fixture_object(&fx, "d/f", "base", 4);
    start();
    lose("d/f", "theirs");
    uint64_t id = id_at("d/f");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "d", META_ROOT_INO, "e", 0), 0);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id), -ENOENT);
    if (_i == 0)
        reopen();
    ck_assert_int_eq(conflict_save_as(fx.fs, id, "e/f"), -EEXIST);
    ck_assert_int_eq(conflict_save_as(fx.fs, id, "e/ours"), 0);
    all_published();
    assert_object("e/ours", "ours");
    assert_object("e/f", "theirs");
    ck_assert_uint_eq(n_conflicts(), 0);
}
END_TEST

START_TEST(who_reads_ours_goes_on_when_it_is_dropped)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    char buf[16] = "";
    ck_assert_int_eq(content_open(in, false, false), 0);
    theirs("f", "theirs");
    content_release(in, true);
    EVENTUALLY(n_conflicts() == 1);
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id_at("f")), 0);
    ck_assert_int_eq(cache_file_read(in->cf, buf, 15, 0), 4);
    ck_assert_str_eq(buf, "ours");
    content_release(in, false);
    inode_put(in);
    all_published();
    assert_object("f", "theirs");
}
END_TEST

START_TEST(who_writes_ours_late_is_published_when_it_was_kept)
{
    theirs("f", "base");
    start();
    INODE_REF in = fs_fixture_inode(&fx, "f");
    lose("f", "theirs");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "OURS", 4, 0);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), 0);
    assert_path("f", "OURS");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    all_published();
    assert_object("f", "OURS");
}
END_TEST

START_TEST(link_that_lost_is_kept)
{
    start();
    fs_fixture_write(&fx, "first", "1", 1); /* the store is probed, the root listed */
    all_published();
    theirs("l", "a file");
    struct node_spec spec = {.parent = META_ROOT_INO,
                             .name = "l",
                             .mode = S_IFLNK | 0777,
                             .target = "first",
                             .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    EVENTUALLY(n_conflicts() == 1);
    assert_path("l", "a file");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("l")), 0);
    all_published();
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(fx.fs->store, "l", &info), 0);
    ck_assert_str_eq(info.symlink, "first");
    obj_info_clear(&info);
}
END_TEST

static void link_loser(uint64_t id, const char *name)
{
    struct meta_dentry d = {0};
    INODE_REF in = NULL;
    ck_assert_int_eq(conflict_name(fx.fs->meta, id, &d), 0);
    ck_assert_int_eq(tree_link(fx.fs, d.ino, META_ROOT_INO, name, &in), 0);
    meta_dentry_clear(&d);
}

/* As when it was killed between the two steps of save-as: both are there, and either decision ends it. */
START_TEST(file_that_has_its_other_name_already_is_kept_by_it)
{
    lose_f("theirs");
    uint64_t id = id_at("f");
    link_loser(id, "g");
    if (_i & 1)
        reopen();
    ck_assert_int_eq(_i & 2 ? conflict_keep_mine(fx.fs, id) : conflict_keep_theirs(fx.fs, id), 0);
    all_published();
    assert_object("g", "ours");
    assert_object("f", _i & 2 ? "ours" : "theirs");
    ck_assert_uint_eq(n_conflicts(), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("conflict_scenes");
    TCase *tc = tcase_create("conflict_scenes");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, two_conflicts_at_one_path_are_decided_one_by_one, 0, 2);
    tcase_add_loop_test(tc, renamed_file_that_lost_gets_another_name, 0, 2);
    tcase_add_loop_test(tc, what_came_back_elsewhere_is_theirs, 0, 2);
    tcase_add_loop_test(tc, nothing_is_made_up_where_theirs_was_removed_too, 0, 2);
    tcase_add_test(tc, theirs_was_removed_here_and_the_delete_waits);
    tcase_add_test(tc, directory_at_the_path_stays);
    tcase_add_loop_test(tc, its_directory_was_renamed_or_is_gone, 0, 2);
    tcase_add_test(tc, who_reads_ours_goes_on_when_it_is_dropped);
    tcase_add_test(tc, who_writes_ours_late_is_published_when_it_was_kept);
    tcase_add_test(tc, link_that_lost_is_kept);
    tcase_add_loop_test(tc, file_that_has_its_other_name_already_is_kept_by_it, 0, 4);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
