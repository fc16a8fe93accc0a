/* What may stand at a key that a name takes: deletes of which nobody knows whether they were carried out, markers, over a lake in a folder, without FUSE. */
#include "fs/conflict.h"
#include "fs/content.h"
#include "fs/op.h"
#include "fs/publish_internal.h"
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
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
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

/* A try to publish there was cut off, and nobody knows how far it got. */
static void note(const char *key)
{
    static const char text[] = "upload\n0123.1.\n";
    g_autofree char *name = g_strconcat("note/", key, NULL);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, name, text, strlen(text));
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

static void put_marker(const char *key)
{
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    struct etag etag;
    ck_assert_int_eq(objstore_put(fx.fs->store, key, "", 0, &(struct obj_meta){.token = "somebody.1.1"}, &any, &etag),
                     0);
}

static void assert_object(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    gsize n = 0;
    ck_assert(g_file_get_contents(path, &data, &n, NULL));
    ck_assert_str_eq(data, want);
}

static int make(const char *name, uint32_t mode)
{
    INODE_REF in = NULL;
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = mode, .who = {fx.fs->uid, fx.fs->gid}};
    spec.target = S_ISLNK(mode) ? "target" : NULL;
    return tree_create(fx.fs, &spec, false, &in);
}

static int move(const char *name, const char *to)
{
    return tree_rename(fx.fs, META_ROOT_INO, name, META_ROOT_INO, to, 0);
}

static bool is_there(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    inode_put(r == 0 ? in : NULL);
    return r == 0;
}

static void await_gone(const char *key)
{
    for (unsigned i = 0; i < 5000 && fs_fixture_object_exists(&fx, key); i++)
        g_usleep(1000);
    ck_assert(!fs_fixture_object_exists(&fx, key));
}

/* 0: a new file; 1: another file is moved there; 2: a link. */
START_TEST(name_in_the_place_of_a_delete_whose_answer_was_lost_is_no_conflict)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "f", "1", 1);
    fs_fixture_write(&fx, "g", "2", 1);
    all_published();
    fault("op=delete,action=lost:-EIO");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    await_gone("f");
    g_usleep(50000); /* it has failed and is to be tried again */
    if (_i == 0)
        fs_fixture_write(&fx, "f", "2", 1);
    else if (_i == 1)
        ck_assert_int_eq(move("g", "f"), 0);
    else
        ck_assert_int_eq(make("f", S_IFLNK | 0777), 0);
    fault("op=get,nth=1000000,action=error:-EIO");
    all_published();
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
    ck_assert(fs_fixture_object_exists(&fx, "f"));
    if (_i < 2)
        assert_object("f", "2");
    ck_assert(_i == 1 ? !fs_fixture_object_exists(&fx, "g") : fs_fixture_object_exists(&fx, "g"));
}
END_TEST

static void link_to(const char *from, const char *dir, const char *name)
{
    INODE_REF in = NULL;
    INODE_REF at = NULL;
    INODE_REF made = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, from, &in), 0);
    ck_assert_int_eq(tree_resolve(fx.fs, dir, &at), 0);
    ck_assert_int_eq(tree_link(fx.fs, in->ino, at->ino, name, &made), 0);
}

/* As programs do that replace a file as a whole. */
static void save(const char *dir, const char *name, const char *data)
{
    INODE_REF at = NULL;
    g_autofree char *tmp = g_strconcat(name, ".tmp", NULL), *path = g_build_filename(dir, tmp, NULL);
    fs_fixture_write(&fx, path, data, strlen(data));
    ck_assert_int_eq(tree_resolve(fx.fs, dir, &at), 0);
    ck_assert_int_eq(tree_rename(fx.fs, at->ino, tmp, at->ino, name, 0), 0);
}

/* Both names that are in the store go to other files before the third was copied: from the second, when the first is gone. */
START_TEST(name_is_copied_from_what_the_file_rests_on_now)
{
    fs_fixture_object(&fx, "da/a", "1", 1);
    fs_fixture_object(&fx, "db/x", "x", 1);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    ck_assert(is_there("da/a") && is_there("db/x"));
    link_to("da/a", "db", "b");
    all_published();
    fault("op=copy,action=error:-EIO");
    link_to("da/a", "", "c");
    g_usleep(30000);
    save(_i ? "db" : "da", _i ? "b" : "a", "2");
    g_usleep(100000);
    save(_i ? "da" : "db", _i ? "a" : "b", "3");
    g_usleep(100000);
    fault("op=get,nth=1000000,action=error:-EIO");
    all_published();
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
    assert_object("c", "1");
}
END_TEST

/* The name comes while the delete is being sent, which is not carried out, and need not wait for it. */
START_TEST(name_takes_over_a_delete_that_was_just_being_sent)
{
    fx.cfg.order = ORDER_NONE;
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "f", "1", 1);
    all_published();
    fault("op=delete,action=delay:300ms|error:-EIO");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    g_usleep(100000);
    fs_fixture_write(&fx, "f", "2", 1);
    all_published();
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
    assert_object("f", "2");
}
END_TEST

/* Its listing tells of it, nothing else: it was put elsewhere. 0: made anew in its place; 1: another directory is moved there; 2: moved over it. */
START_TEST(marker_known_from_a_listing_goes_with_its_directory)
{
    fs_fixture_open(&fx);
    put_marker("d/");
    ck_assert(is_there("d"));
    if (_i > 0)
        ck_assert_int_eq(make("e", S_IFDIR | 0755), 0);
    if (_i < 2)
        ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "d"), 0);
    ck_assert_int_eq(_i == 0 ? make("d", S_IFDIR | 0755) : move("e", "d"), 0);
    fs_fixture_write(&fx, "d/f", "1", 1);
    INODE_REF d = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(tree_unlink(fx.fs, d->ino, "f"), 0);
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "d"), 0);
    fs_fixture_start(&fx);
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "d"));
    INODE_REF root = fs_fixture_inode(&fx, "");
    ck_assert_int_eq(tree_refresh(fx.fs, root, true), 0);
    ck_assert(!is_there("d"));
}
END_TEST

/* A run that was killed had put it, or was about to put it again. */
START_TEST(marker_that_may_be_there_goes_with_its_directory)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(make("d", S_IFDIR | 0755), 0);
    put_marker("d/");
    note("d/");
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "d"), 0);
    fs_fixture_start(&fx);
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "d"));
    ck_assert(!publish_has_note(fx.fs, "d/"));
}
END_TEST

/* It was listed, so its token is not known; its object has new attributes, of which nobody has recorded the etag. */
START_TEST(file_whose_new_attributes_were_not_recorded_can_be_moved)
{
    struct stat st = {.st_mode = 0600};
    fs_fixture_object(&fx, "f", "1", 1);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    struct obj_info info = {0};
    fault("op=copy,nth=1,action=lost:-EIO;op=copy,nth=2,count=3,action=error:-EIO");
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), 0);
    for (unsigned i = 0; i < 3000 && info.posix.mode == 0; i++) {
        g_usleep(10000);
        obj_info_clear(&info);
        ck_assert_int_eq(objstore_head(fx.fs->store, "f", &info), 0);
    }
    ck_assert_uint_ne(info.posix.mode, 0);
    obj_info_clear(&info);
    ck_assert_int_eq(move("f", "g"), 0);
    fault("op=get,nth=1000000,action=error:-EIO");
    all_published();
    assert_object("g", "1");
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
}
END_TEST

/* The store gave no answer to the copy, which had new attributes; then somebody else put the version there that it was to be made of. */
START_TEST(copy_by_others_is_not_taken_for_one_with_new_attributes)
{
    struct stat st = {.st_mode = 0600};
    struct obj_info info = {0};
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "f", "1", 1);
    all_published();
    ck_assert_int_eq(objstore_head(fx.fs->store, "f", &info), 0);
    const struct obj_meta theirs = {.posix = info.posix, .token = info.token};
    INODE_REF in = fs_fixture_inode(&fx, "f");
    fault("op=copy,action=error:-EIO");
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), 0);
    ck_assert_int_eq(move("f", "g"), 0);
    EVENTUALLY(publish_has_note(fx.fs, "g"));
    ck_assert_int_eq(objstore_put(fx.fs->store, "g", "1", 1, &theirs, &any, NULL), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "g"), 0);
    all_published();
    ck_assert(fs_fixture_object_exists(&fx, "g"));
    obj_info_clear(&info);
}
END_TEST

static void await_running(const char *key)
{
    struct publisher *p = fx.fs->pub;
    bool on = false;
    for (unsigned i = 0; i < 5000 && !on; i++) {
        g_usleep(1000);
        mutex_lock(&p->mu);
        on = g_hash_table_contains(p->running_keys, key);
        mutex_unlock(&p->mu);
    }
    ck_assert(on);
}

static void no_faults(void)
{
    fault("op=get,nth=1000000,action=error:-EIO");
}

static void make_and_remove(const char *name)
{
    fs_fixture_write(&fx, name, "1", 1);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, name), 0);
}

/* A file that may have been published was removed, and once more while that was being looked at; meanwhile somebody else put one. */
START_TEST(object_of_others_outlives_two_deletes_of_its_name)
{
    fs_fixture_open(&fx);
    note("f");
    make_and_remove("f");
    fault("op=head,key=f,action=delay:600s");
    fs_fixture_start(&fx);
    await_running("f");
    make_and_remove("f");
    fs_fixture_object(&fx, "f", "theirs", 6);
    no_faults();
    all_published();
    assert_object("f", "theirs");
    ck_assert(!publish_has_note(fx.fs, "f"));
}
END_TEST

/* Both deletes are older than the name that took over the second, and the first one has failed. */
START_TEST(name_outlives_two_deletes_before_it)
{
    fx.cfg.order = ORDER_NONE;
    fs_fixture_open(&fx);
    note("f");
    make_and_remove("f");
    fault("op=head,key=f,nth=1,action=delay:600s|error:-EIO");
    fs_fixture_start(&fx);
    await_running("f");
    make_and_remove("f");
    fs_fixture_write(&fx, "f", "2", 1);
    no_faults();
    all_published();
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
    assert_object("f", "2");
}
END_TEST

/* What the first of them knew of the object the second, or the name that takes it over, knows too. */
START_TEST(object_known_to_the_first_of_two_deletes_goes)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "f", "1", 1);
    all_published();
    note("f");
    fault("op=delete,key=f,nth=1,action=delay:600s|error:-EIO");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    await_running("f");
    make_and_remove("f");
    if (_i > 0)
        fs_fixture_write(&fx, "f", "2", 1);
    no_faults();
    all_published();
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
    ck_assert(fs_fixture_object_exists(&fx, "f") == (_i > 0));
    if (_i > 0)
        assert_object("f", "2");
}
END_TEST

/* The first one was given up before it got to see the store. */
START_TEST(object_that_was_noted_goes_with_the_second_of_two_deletes)
{
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    fs_fixture_open(&fx);
    note("f");
    make_and_remove("f");
    ck_assert_int_eq(objstore_put(fx.fs->store, "f", "1", 1, &(struct obj_meta){.token = "0123.1.1"}, &any, NULL), 0);
    fault("op=head,key=f,action=delay:600s|error:-EIO");
    fs_fixture_start(&fx);
    await_running("f");
    make_and_remove("f");
    fault("op=head,key=f,nth=1,count=3,action=error:-EIO");
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
}
END_TEST

static void put_op(struct meta_op *op)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    op->seq = meta_next_seq(fx.fs->meta);
    meta_op_put(b, op);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

/* Killed while the first of two deletes was being sent; the directory is made anew, and its marker, which takes no part in the order, comes first. */
START_TEST(marker_outlives_two_deletes_before_it)
{
    char key[] = "d/";
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "g", "1", 1);
    note("d/");
    for (unsigned i = 0; i < 2; i++)
        put_op(&(struct meta_op){.kind = OP_DELETE, .key = key});
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert_int_eq(make("d", S_IFDIR | 0755), 0);
    fault("op=put,key=g,action=error:-EIO");
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 100 && !fs_fixture_object_exists(&fx, "d"); i++)
        ck_assert_int_eq(publish_wait(fx.fs->pub, "d", clock_mono_ns() + 200 * NS_PER_MS, NULL, NULL), -ETIMEDOUT);
    ck_assert(fs_fixture_object_exists(&fx, "d"));
    no_faults();
    all_published();
    ck_assert(fs_fixture_object_exists(&fx, "d"));
}
END_TEST

/* The store did what it was asked, and when it was asked again, because its answer was lost, refused: its own object stood there. 0: a file was moved; 1: a link; 2: one was moved; 3: a file to where
 * another one was. */
START_TEST(own_object_at_a_new_key_is_no_conflict)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "f", "1", 1);
    ck_assert_int_eq(make("l", S_IFLNK | 0777), 0);
    if (_i == 3)
        fs_fixture_write(&fx, "g", "2", 1);
    all_published();
    bool file = _i == 0 || _i == 3;
    fault(file ? "op=copy,key=g,nth=1,action=lost:-ESTALE" : "op=put,key=g,nth=1,action=lost:-ESTALE");
    ck_assert_int_eq(_i == 1 ? make("g", S_IFLNK | 0777) : move(file ? "f" : "l", "g"), 0);
    all_published();
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
    if (file)
        assert_object("g", "1");
    ck_assert(fs_fixture_object_exists(&fx, "g"));
    ck_assert(fs_fixture_object_exists(&fx, "f") == !file);
    ck_assert(fs_fixture_object_exists(&fx, "l") == (_i != 2));
}
END_TEST

/* What nobody answered for is known when it is to be copied again, and somebody else has changed what it is copied from. */
START_TEST(source_changed_after_the_copy_is_a_conflict)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "f", "1", 1);
    all_published();
    fault("op=copy,nth=1,action=lost:-EIO;op=copy,nth=2,action=delay:600s");
    ck_assert_int_eq(move("f", "g"), 0);
    for (unsigned i = 0; i < 5000 && !fs_fixture_object_exists(&fx, "g"); i++)
        g_usleep(1000);
    fs_fixture_object(&fx, "f", "theirs", 6);
    no_faults();
    for (unsigned i = 0; i < 5000 && conflict_count(fx.fs->meta, "") == 0; i++)
        g_usleep(1000);
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 1);
    assert_object("f", "theirs");
    assert_object("g", "1");
}
END_TEST

/* Its record tells of no object, and no try was cut off. */
START_TEST(delete_of_what_nothing_is_known_of_leaves_it)
{
    fs_fixture_open(&fx);
    struct fs *fs = fx.fs;
    fs_fixture_object(&fx, "f", "theirs", 6);
    fs_fixture_start(&fx);
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    publish_delete(fs, b, "f", &(struct etag){0}, 0);
    int r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    ck_assert_int_eq(r, 0);
    all_published();
    assert_object("f", "theirs");
}
END_TEST

/* Nothing will ever be published there that would replace it. 0: the file was moved away, 1: its first upload was under way when it was removed. */
START_TEST(object_goes_though_a_fifo_takes_its_path)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "first", "1", 1); /* the store is probed */
    all_published();
    if (_i == 1)
        fault("op=head,action=delay:500ms");
    fs_fixture_write(&fx, "f", "1", 1);
    if (_i == 0) {
        all_published();
        fault("op=copy,action=delay:500ms");
        ck_assert_int_eq(move("f", "g"), 0);
    } else {
        while (!fs_fixture_object_exists(&fx, "f"))
            g_usleep(1000);
        ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    }
    ck_assert_int_eq(make("f", S_IFIFO | 0600), 0);
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert(is_there("f"));
    if (_i == 0)
        assert_object("g", "1");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_place");
    TCase *t = tcase_create("place");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, name_in_the_place_of_a_delete_whose_answer_was_lost_is_no_conflict, 0, 3);
    tcase_add_loop_test(t, name_is_copied_from_what_the_file_rests_on_now, 0, 2);
    tcase_add_test(t, name_takes_over_a_delete_that_was_just_being_sent);
    tcase_add_loop_test(t, marker_known_from_a_listing_goes_with_its_directory, 0, 3);
    tcase_add_test(t, marker_that_may_be_there_goes_with_its_directory);
    tcase_add_test(t, file_whose_new_attributes_were_not_recorded_can_be_moved);
    tcase_add_test(t, copy_by_others_is_not_taken_for_one_with_new_attributes);
    tcase_add_test(t, object_of_others_outlives_two_deletes_of_its_name);
    tcase_add_test(t, name_outlives_two_deletes_before_it);
    tcase_add_loop_test(t, object_known_to_the_first_of_two_deletes_goes, 0, 2);
    tcase_add_test(t, object_that_was_noted_goes_with_the_second_of_two_deletes);
    tcase_add_test(t, marker_outlives_two_deletes_before_it);
    tcase_add_loop_test(t, own_object_at_a_new_key_is_no_conflict, 0, 4);
    tcase_add_test(t, source_changed_after_the_copy_is_a_conflict);
    tcase_add_test(t, delete_of_what_nothing_is_known_of_leaves_it);
    tcase_add_loop_test(t, object_goes_though_a_fifo_takes_its_path, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
