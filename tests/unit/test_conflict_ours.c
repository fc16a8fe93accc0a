/* Objects that carry a token of ours but that others put where they stand: copies of what we published. */
#include "conflict_fixture.h"

/* As another node does, with the token. */
static void put_back(const char *from, const char *key)
{
    struct etag etag;
    ck_assert_int_eq(objstore_copy(fx.fs->store, from, NULL, key, NULL, NULL, &etag), 0);
}

/* A file of ours, published as "a", loses "b" to a rename; then another node copies its version there. */
static void lose_rename_to_a_copy(void)
{
    theirs("b", "base");
    start();
    fs_fixture_write(&fx, "a", "ours", 4);
    all_published();
    assert_path("b", "base");
    theirs("b", "theirs");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a", META_ROOT_INO, "b", 0), 0);
    EVENTUALLY(n_conflicts() == 1);
    assert_path("b", "theirs");
    put_back("a", "b");
}

START_TEST(what_a_lost_rename_would_have_made_is_not_removed_as_ours)
{
    lose_rename_to_a_copy();
    uint64_t id = id_at("b");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "b"), 0);
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), 0); /* or it would be waited for */
    all_published();
    ck_assert(fs_fixture_object_exists(&fx, "b"));
    assert_object("b", "ours");
}
END_TEST

START_TEST(what_a_lost_rename_would_have_made_is_not_replaced_as_ours)
{
    lose_rename_to_a_copy();
    uint64_t id = id_at("b");
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), 0); /* what is closed later waits for that */
    end_write(begin_write("b", "edited"));
    EVENTUALLY(n_conflicts() == 1);
    ck_assert_uint_gt(id_at("b"), id);
    assert_object("b", "ours");
}
END_TEST

/* Somebody keeps the first version of "f". */
static void begin_with_first(void)
{
    start();
    fs_fixture_write(&fx, "f", "first", 5);
    all_published();
    put_back("f", "kept");
}

START_TEST(keep_mine_meets_an_older_version_of_ours_as_a_new_conflict)
{
    begin_with_first();
    struct inode *in = begin_write("f", "ours");
    theirs("f", "theirs");
    end_write(in);
    EVENTUALLY(n_conflicts() == 1);
    fault("op=put,action=delay:500ms");
    uint64_t id = id_at("f");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id), 0);
    put_back("kept", "f");
    EVENTUALLY(n_conflicts() == 1);
    ck_assert_uint_gt(id_at("f"), id);
    assert_object("f", "first");
}
END_TEST

static uint64_t recorded_gen(const char *name)
{
    struct meta_dentry d = {0};
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, META_ROOT_INO, name, &d), 0);
    meta_dentry_clear(&d);
    return d.pub_gen;
}

/* Of a version of ours nobody got to know that it was published; the next one finds that out, and then another one again. */
START_TEST(older_version_put_back_over_one_that_was_not_recorded_is_a_conflict)
{
    begin_with_first();
    ck_assert_uint_ne(recorded_gen("f"), 0);
    fault("op=put,key=f,nth=1,action=lost:-EIO;op=put,key=f,nth=2,action=delay:1s");
    end_write(begin_write("f", "second"));
    g_autofree char *path = g_build_filename(fx.lake, "f", NULL);
    struct stat st = {0};
    EVENTUALLY(stat(path, &st) == 0 && st.st_size == 6);
    end_write(begin_write("f", "third"));
    EVENTUALLY(recorded_gen("f") == 0);
    put_back("kept", "f");
    EVENTUALLY(n_conflicts() == 1);
    assert_object("f", "first");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("conflict_ours");
    TCase *tc = tcase_create("put back");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, what_a_lost_rename_would_have_made_is_not_removed_as_ours);
    tcase_add_test(tc, what_a_lost_rename_would_have_made_is_not_replaced_as_ours);
    tcase_add_test(tc, keep_mine_meets_an_older_version_of_ours_as_a_new_conflict);
    tcase_add_test(tc, older_version_put_back_over_one_that_was_not_recorded_is_a_conflict);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
