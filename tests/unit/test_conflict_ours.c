/* Objects that carry a token of ours but that others put where they stand: copies of what we published. */
#include "cache_scan.h"
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

/* Meanwhile the file was where a rule keeps files here. */
START_TEST(older_version_put_back_while_the_file_was_not_in_the_store_is_a_conflict)
{
    fx.cfg.rule = g_strdup("*.tmp=local-only");
    begin_with_first();
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "f", META_ROOT_INO, "f.tmp", 0), 0);
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    end_write(begin_write("f.tmp", "second"));
    fault("op=put,key=f,action=delay:500ms");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "f.tmp", META_ROOT_INO, "f", 0), 0);
    put_back("kept", "f");
    EVENTUALLY(n_conflicts() == 1);
    assert_object("f", "first");
}
END_TEST

/* A second daemon on a copy of the cache folder, as nodes have that were made of one image: it knows what the first one knew. The first one has ended, or goes on where it was. */
static void start_clone(struct fs_fixture *clone, bool first_goes_on)
{
    fs_fixture_init(clone);
    g_autofree char *cmd = g_strdup_printf("cp -a '%s' '%s'", fx.cache_dir, clone->cache_dir);
    if (!first_goes_on)
        fs_fixture_close(&fx);
    ck_assert_int_eq(system(cmd), 0);
    if (!first_goes_on)
        start();
    g_free(clone->cfg.source);
    clone->cfg.source = g_strdup(fx.cfg.source);
    clone->cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    fs_fixture_open(clone);
    fs_fixture_start(clone);
}

static void replace_in(struct fs_fixture *at, const char *path, const char *text)
{
    INODE_REF in = fs_fixture_inode(at, path);
    ck_assert_int_eq(content_open(in, true, true), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, text, strlen(text), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

static uint64_t generation_of(struct fs_fixture *at, const char *path)
{
    INODE_REF in = fs_fixture_inode(at, path);
    return in->rec.gen;
}

/* Both change the file that was there before, and make a new one of one name; 1: the first one was never stopped. */
START_TEST(version_of_a_node_with_a_copy_of_the_cache_folder_is_theirs)
{
    struct fs_fixture clone;
    start();
    fs_fixture_write(&fx, "f", "base", 4);
    all_published();
    start_clone(&clone, _i == 1);
    ck_assert_uint_ne(fs_fixture_ino(&clone, "f"), 0); /* as it is up to here */
    replace_in(&fx, "f", "ours");
    fs_fixture_write(&fx, "g", "ours", 4);
    all_published();
    replace_in(&clone, "f", "them");
    ck_assert_uint_eq(generation_of(&clone, "f"), generation_of(&fx, "f"));
    EVENTUALLY(conflict_count(clone.fs->meta, "") == 1);
    ck_assert_int_eq(conflict_keep_theirs(clone.fs, 1), 0);
    fs_fixture_write(&clone, "g", "them", 4);
    EVENTUALLY(conflict_count(clone.fs->meta, "") == 1);
    assert_object("f", "ours");
    assert_object("g", "ours");
    fs_fixture_fini(&clone);
}
END_TEST

static bool noted(const char *key, const char *text)
{
    GBytes *value = NULL;
    g_autofree char *name = g_strconcat("note/", key, NULL);
    if (meta_value_get(fx.fs->meta, name, &value) < 0)
        return false;
    g_autofree char *note = g_strndup(g_bytes_get_data(value, NULL), g_bytes_get_size(value));
    g_bytes_unref(value);
    return strstr(note, text) != NULL;
}

static void close_with(const char *fault)
{
    fs_fixture_close(&fx);
    g_free(fx.cfg.fault);
    fx.cfg.fault = g_strdup(fault);
}

/* What stands at "f" as from a request of a run before, whose token ended in that. */
static void put_as_of(const char *opening, uint64_t gen_added)
{
    INODE_REF in = fs_fixture_inode(&fx, "f");
    g_autofree char *token = g_strdup_printf("%s.%" G_GINT64_MODIFIER "x.%" G_GINT64_MODIFIER "x.%s",
                                             meta_uuid(fx.fs->meta), in->rec.vid, in->rec.gen + gen_added, opening);
    const struct obj_meta meta = {.token = token};
    const struct obj_cond any = {.kind = OBJ_COND_NONE};
    ck_assert_int_eq(objstore_put(fx.fs->store, "x", "ours", 4, &meta, &any, NULL), 0);
    put_back("x", "f");
}

static bool stands_by(const char *key, const char *opening)
{
    struct obj_info info = {0};
    bool by = objstore_head(fx.fs->store, key, &info) == 0 && g_str_has_suffix(info.token, opening);
    obj_info_clear(&info);
    return by;
}

/* The store was asked to make it by a run that was killed, and carries that out while another run, that asked as well, is there. 1: a node with a copy of the folder was that run, which went on
 * to a version that we had not begun. */
START_TEST(version_that_an_earlier_run_asked_for_is_ours)
{
    start();
    fs_fixture_write(&fx, "f", "base", 4);
    all_published();
    fault("op=put,key=f,action=error:-EIO");
    replace_in(&fx, "f", "ours");
    g_autofree char *opening = g_strdup(meta_opening(fx.fs->meta));
    EVENTUALLY(noted("f", opening));
    close_with("op=put,key=f,action=error:-EIO");
    start();
    EVENTUALLY(noted("f", meta_opening(fx.fs->meta)));
    put_as_of(opening, (uint64_t)_i * 2);
    fault("");
    (void)publish_retry(fx.fs->pub, "");
    if (_i == 1) {
        EVENTUALLY(n_conflicts() == 1);
        return;
    }
    all_published();
    ck_assert_uint_eq(n_conflicts(), 0);
    ck_assert_msg(stands_by("f", opening), "published once more");
}
END_TEST

/* It comes between the look of the next run and its own: of two alike one is enough. */
START_TEST(version_of_an_earlier_run_that_comes_late_is_not_made_again)
{
    start();
    fs_fixture_write(&fx, "f", "base", 4);
    all_published();
    fault("op=put,key=f,action=error:-EIO");
    replace_in(&fx, "f", "ours");
    g_autofree char *opening = g_strdup(meta_opening(fx.fs->meta));
    EVENTUALLY(noted("f", opening));
    close_with("op=put,key=f,nth=1,action=delay:600s");
    start();
    EVENTUALLY(noted("f", meta_opening(fx.fs->meta)));
    put_as_of(opening, 0);
    fault("");
    all_published();
    ck_assert_uint_eq(n_conflicts(), 0);
    ck_assert_msg(stands_by("f", opening), "published once more");
}
END_TEST

/* Its parts keep the token that they were begun with. It was made, nobody got to know, and then the file was changed. */
START_TEST(upload_that_an_earlier_run_began_is_ours)
{
    enum { PART = 64 << 10, SIZE = 16 * PART };
    g_autofree char *big = g_strnfill(SIZE, 'b');
    fx.cfg.part_size = PART;
    g_free(fx.cfg.fault);
    fx.cfg.fault = g_strdup("op=part,nth=6,count=100000,action=error:-EIO");
    start();
    g_autofree char *opening = g_strdup(meta_opening(fx.fs->meta));
    fs_fixture_write(&fx, "first", "1", 1);
    fs_fixture_write(&fx, "f", big, SIZE);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    char begun[TOKEN_MAX + 1] = "";
    EVENTUALLY(cache_scan_upload_token(fx.fs->meta, in->rec.vid, begun) == 0 && *begun);
    g_clear_pointer(&in, inode_put);
    ck_assert(!publish_has_note(fx.fs, "f"));
    close_with("op=complete,key=f,nth=1,action=lost:-EIO;op=complete,key=f,nth=2,action=delay:600s");
    start();
    EVENTUALLY(stands_by("f", opening));
    replace_in(&fx, "f", "edited");
    all_published();
    ck_assert_uint_eq(n_conflicts(), 0);
    assert_object("f", "edited");
}
END_TEST

/* It was made, and nobody got to know. */
START_TEST(version_that_an_earlier_run_made_is_recorded_by_the_next)
{
    start();
    fs_fixture_write(&fx, "f", "base", 4);
    all_published();
    fault("op=put,key=f,nth=1,action=lost:-EIO;op=put,key=f,nth=2,action=delay:600s");
    replace_in(&fx, "f", "longer");
    g_autofree char *path = g_build_filename(fx.lake, "f", NULL);
    struct stat st = {0};
    EVENTUALLY(stat(path, &st) == 0 && st.st_size == 6);
    ck_assert(noted("f", meta_opening(fx.fs->meta)));
    close_with("op=put,key=f,action=error:-EIO");
    start();
    all_published();
    ck_assert_uint_eq(n_conflicts(), 0);
    assert_object("f", "longer");
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
    tcase_add_test(tc, older_version_put_back_while_the_file_was_not_in_the_store_is_a_conflict);
    tcase_add_loop_test(tc, version_that_an_earlier_run_asked_for_is_ours, 0, 2);
    tcase_add_test(tc, version_of_an_earlier_run_that_comes_late_is_not_made_again);
    tcase_add_test(tc, version_that_an_earlier_run_made_is_recorded_by_the_next);
    tcase_add_test(tc, upload_that_an_earlier_run_began_is_ours);
    tcase_add_loop_test(tc, version_of_a_node_with_a_copy_of_the_cache_folder_is_theirs, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
