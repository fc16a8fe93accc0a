/* The tree of names over a lake in a folder, without FUSE: what listings make of it, what a refused change leaves behind. */
#include "fs/content.h"
#include "fs/op.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static void put_meta(const char *key, const char *body, const struct obj_meta *meta)
{
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    ck_assert_int_eq(objstore_put(fx.fs->store, key, body, strlen(body), meta, &any, NULL), 0);
}

static void put_link(const char *key, const char *target)
{
    put_meta(key, "", &(struct obj_meta){.symlink = target});
}

static void remove_at(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

static int refresh(const char *dir)
{
    INODE_REF in = fs_fixture_inode(&fx, dir);
    return tree_refresh(fx.fs, in, true);
}

/* S_IFMT bits, 0: no such name. */
static unsigned type_of(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    if (r == -ENOENT)
        return 0;
    ck_assert_int_eq(r, 0);
    unsigned type = in->rec.mode & S_IFMT;
    inode_put(in);
    return type;
}

static int make(const char *dir, const char *name, uint32_t mode)
{
    INODE_REF above = fs_fixture_inode(&fx, dir);
    INODE_REF in = NULL;
    struct node_spec spec = {.parent = above->ino, .name = name, .mode = mode, .who = {fx.fs->uid, fx.fs->gid}};
    return tree_create(fx.fs, &spec, false, &in);
}

static int move(const char *dir1, const char *name1, const char *dir2, const char *name2)
{
    INODE_REF a = fs_fixture_inode(&fx, dir1);
    INODE_REF b = fs_fixture_inode(&fx, dir2);
    return tree_rename(fx.fs, a->ino, name1, b->ino, name2, 0);
}

static void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

/* ---- listings ---- */

START_TEST(link_whose_head_fails_does_not_become_a_file)
{
    struct inode *in = NULL;
    fs_fixture_open(&fx);
    put_link("d/l", "target");
    fault("op=head,action=error:-EIO");
    ck_assert_int_eq(tree_resolve(fx.fs, "d/l", &in), -EIO);
    fault("op=head,action=error:-ECANCELED");
    ck_assert_int_lt(tree_resolve(fx.fs, "d/l", &in), 0);
    fault("op=head,nth=1000000,action=error:-EIO");
    ck_assert_uint_eq(type_of("d/l"), S_IFLNK);
}
END_TEST

START_TEST(object_that_vanishes_before_its_head_is_no_name)
{
    fs_fixture_open(&fx);
    put_link("d/l", "target");
    put_link("d/m", "target");
    fault("op=head,nth=1,count=1,action=error:-ENOENT");
    ck_assert_int_eq(refresh("d"), 0);
    ck_assert_int_eq(!!type_of("d/l") + !!type_of("d/m"), 1);
    ck_assert_int_eq(refresh("d"), 0);
    ck_assert_int_eq(!!type_of("d/l") + !!type_of("d/m"), 2);
}
END_TEST

START_TEST(object_that_may_not_be_asked_for_is_a_file_until_it_may)
{
    fs_fixture_open(&fx);
    put_link("d/l", "target");
    fault("op=head,action=error:-EACCES");
    ck_assert_uint_eq(type_of("d/l"), S_IFREG);
    fault("op=head,nth=1000000,action=error:-EIO");
    ck_assert_int_eq(refresh("d"), 0);
    ck_assert_uint_eq(type_of("d/l"), S_IFLNK);
}
END_TEST

static void set_age(const char *key, unsigned seconds)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    struct timespec t = {.tv_sec = clock_wall_ns() / (int64_t)NS_PER_S - seconds};
    struct timespec both[2] = {t, t};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, both, 0), 0);
}

START_TEST(empty_object_is_asked_for_again_when_it_is_young_or_changed)
{
    fs_fixture_open(&fx);
    put_link("d/l", "target");
    ck_assert_uint_eq(type_of("d/l"), S_IFLNK);
    fault("op=head,action=error:-EIO");
    ck_assert_int_eq(refresh("d"), -EIO);
    fault("op=head,nth=1000000,action=error:-EIO");
    set_age("d/l", 3600);
    ck_assert_int_eq(refresh("d"), 0);
    fault("op=head,action=error:-EIO");
    ck_assert_int_eq(refresh("d"), 0);
    set_age("d/l", 1800);
    ck_assert_int_eq(refresh("d"), -EIO);
    ck_assert_uint_eq(type_of("d/l"), S_IFLNK);
}
END_TEST

START_TEST(directory_that_became_a_file_elsewhere_is_a_file)
{
    fs_fixture_object(&fx, "a/b/x", "data", 4);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(type_of("a/b/x"), S_IFREG);
    remove_at("a/b/x");
    remove_at("a/b");
    remove_at("a");
    fs_fixture_object(&fx, "a", "file now", 8);
    ck_assert_int_eq(refresh(""), 0);
    ck_assert_uint_eq(type_of("a"), S_IFREG);
    INODE_REF in = fs_fixture_inode(&fx, "a");
    ck_assert_uint_eq(in->rec.size, 8);
}
END_TEST

START_TEST(directory_with_something_new_below_stays_over_a_file)
{
    fs_fixture_object(&fx, "a/x", "data", 4);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(type_of("a/x"), S_IFREG);
    fs_fixture_write(&fx, "a/new", "mine", 4);
    remove_at("a/x");
    remove_at("a");
    fs_fixture_object(&fx, "a", "file now", 8);
    ck_assert_int_eq(refresh(""), 0);
    ck_assert_uint_eq(type_of("a"), S_IFDIR);
    ck_assert_uint_eq(type_of("a/new"), S_IFREG);
}
END_TEST

/* ---- attributes ---- */

static void *want_posix(void *arg)
{
    INODE_REF root = fs_fixture_inode(&fx, "");
    tree_want_posix(fx.fs, arg, root);
    return NULL;
}

static bool was_asked(struct inode *in)
{
    mutex_lock(&in->mu);
    bool asked = in->posix_asked_ns != 0;
    mutex_unlock(&in->mu);
    return asked;
}

/* Both come from the metadata of f, of which the listing knows nothing; meanwhile `set` of st is set here. */
static void ask_and_set(const struct stat *st, int set)
{
    struct obj_meta meta = {.posix = {.fields = POSIX_MODE | POSIX_MTIME, .mode = S_IFREG | 0640, .mtime_ns = 77}};
    pthread_t thread;
    fs_fixture_open(&fx);
    put_meta("f", "data", &meta);
    put_meta("empty", "", &meta); /* so that the others are asked for */
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_uint_eq(in->rec.flags & (INODE_HEADED | INODE_MODE_KNOWN), 0);
    fault("op=head,action=delay:300ms");
    ck_assert_int_eq(pthread_create(&thread, NULL, want_posix, in), 0);
    while (!was_asked(in))
        g_usleep(1000);
    ck_assert_int_eq(attr_store(in, st, set), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(in->rec.mode & 07777, set & FUSE_SET_ATTR_MODE ? 0600 : 0640);
    ck_assert_int_eq(in->rec.mtime_ns, set & FUSE_SET_ATTR_MTIME ? 5 : 77);
}

START_TEST(mode_set_while_the_store_is_asked_stays)
{
    ask_and_set(&(struct stat){.st_mode = 0600}, FUSE_SET_ATTR_MODE);
}
END_TEST

START_TEST(time_set_while_the_store_is_asked_stays)
{
    ask_and_set(&(struct stat){.st_mtim = {0, 5}}, FUSE_SET_ATTR_MTIME);
}
END_TEST

START_TEST(owner_and_modes_of_this_mount_hold_for_what_is_known_already)
{
    struct stat st;
    fs_fixture_object(&fx, "d/f", "data", 4);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(type_of("d/f"), S_IFREG);
    ck_assert_int_eq(make("d", "own", S_IFDIR | 0700), 0);
    fs_fixture_close(&fx);
    fx.cfg.uid += 5;
    fx.cfg.gid += 6;
    fx.cfg.file_mode = 0604;
    fx.cfg.dir_mode = 0705;
    fs_fixture_open(&fx);
    static const char *const paths[] = {"", "d", "d/f"};
    for (unsigned i = 0; i < G_N_ELEMENTS(paths); i++) {
        INODE_REF in = fs_fixture_inode(&fx, paths[i]);
        inode_stat(in, &st);
        ck_assert_uint_eq(st.st_uid, fx.cfg.uid);
        ck_assert_uint_eq(st.st_gid, fx.cfg.gid);
        ck_assert_uint_eq(st.st_mode & 07777, i < 2 ? 0705 : 0604);
    }
    INODE_REF own = fs_fixture_inode(&fx, "d/own");
    inode_stat(own, &st);
    ck_assert_uint_eq(st.st_uid, fx.cfg.uid - 5);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
}
END_TEST

START_TEST(owner_of_this_mount_holds_where_the_metadata_told_only_the_mode)
{
    struct stat st;
    struct obj_meta meta = {.posix = {.fields = POSIX_MODE | POSIX_UID, .mode = S_IFREG | 0640, .uid = 4711}};
    fs_fixture_open(&fx);
    put_meta("f", "", &meta);
    ck_assert_uint_eq(type_of("f"), S_IFREG);
    fs_fixture_close(&fx);
    fx.cfg.uid += 5;
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    inode_stat(in, &st);
    ck_assert_uint_eq(st.st_uid, fx.cfg.uid);
    ck_assert_uint_eq(st.st_mode & 07777, 0640);
}
END_TEST

/* ---- renames ---- */

START_TEST(rename_refused_for_a_long_key_leaves_the_target)
{
    char part[226];
    memset(part, 'p', sizeof(part) - 1);
    part[sizeof(part) - 1] = '\0';
    g_autofree char *deep = g_strdup("");
    fs_fixture_open(&fx);
    for (unsigned i = 0; i < 4; i++) {
        ck_assert_int_eq(make(deep, part, S_IFDIR | 0755), 0);
        g_autofree char *up = g_steal_pointer(&deep);
        deep = *up ? g_strconcat(up, "/", part, NULL) : g_strdup(part);
    }
    ck_assert_int_eq(make("", "a", S_IFDIR | 0755), 0);
    ck_assert_int_eq(make("a", "sub", S_IFDIR | 0755), 0);
    ck_assert_int_eq(make("a/sub", part, S_IFREG | 0644), 0);
    ck_assert_int_eq(make(deep, "b", S_IFDIR | 0755), 0);
    g_autofree char *b = g_strconcat(deep, "/b", NULL);
    INODE_REF in = fs_fixture_inode(&fx, b);
    ck_assert_int_eq(move("", "a", deep, "b"), -ENAMETOOLONG);
    ck_assert_uint_eq(in->rec.nlink, 1);
    ck_assert_uint_eq(in->rec.flags & INODE_ORPHAN, 0);
    ck_assert_int_eq(make(b, "new", S_IFREG | 0644), 0);
    g_autofree char *kept = g_strconcat("a/sub/", part, NULL);
    ck_assert_uint_eq(type_of(kept), S_IFREG);
}
END_TEST

START_TEST(edit_of_a_renamed_file_is_found_by_its_new_name_without_the_database)
{
    fs_fixture_object(&fx, "f", "base", 4);
    fs_fixture_open(&fx);
    struct inode *in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(cache_file_write(in->cf, "ours", 4, 0), 4);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(in);
    ck_assert_int_eq(move("", "f", "", "g"), 0);
    fs_fixture_close(&fx);
    g_autofree char *rm = g_strdup_printf("rm -rf '%s/meta'", fx.cache_dir);
    ck_assert_int_eq(system(rm), 0);
    fs_fixture_open(&fx);
    INODE_REF f = fs_fixture_inode(&fx, "f");
    INODE_REF g = fs_fixture_inode(&fx, "g");
    ck_assert(!content_is_dirty(f));
    ck_assert(content_is_dirty(g));
}
END_TEST

START_TEST(fifo_moved_to_a_removed_name_leaves_its_delete_alone)
{
    fs_fixture_object(&fx, "f", "data", 4);
    fs_fixture_object(&fx, "d/f", "data", 4);
    fs_fixture_open(&fx);
    INODE_REF d = fs_fixture_inode(&fx, "d");
    ck_assert_uint_eq(type_of("d/f"), S_IFREG);
    ck_assert_int_eq(make("", "p", S_IFIFO | 0600), 0);
    ck_assert_int_eq(make("", "e", S_IFDIR | 0755), 0);
    ck_assert_int_eq(make("e", "f", S_IFIFO | 0600), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, d->ino, "f"), 0);
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "d"), 0);
    ck_assert_int_eq(move("", "p", "", "f"), 0);
    ck_assert_int_eq(move("", "e", "", "d"), 0);
    fs_fixture_start(&fx);
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert(!fs_fixture_object_exists(&fx, "d/f"));
    ck_assert_uint_eq(type_of("d/f"), S_IFIFO);
}
END_TEST

START_TEST(fifo_moved_over_a_file_or_exchanged_with_it_removes_the_object)
{
    fs_fixture_object(&fx, "f", "data", 4);
    fs_fixture_object(&fx, "x", "data", 4);
    fs_fixture_open(&fx);
    ck_assert_int_eq(make("", "p", S_IFIFO | 0600), 0);
    ck_assert_int_eq(make("", "q", S_IFIFO | 0600), 0);
    ck_assert_int_eq(move("", "p", "", "f"), 0);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "q", META_ROOT_INO, "x", RENAME_EXCHANGE), 0);
    fs_fixture_start(&fx);
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert(!fs_fixture_object_exists(&fx, "x"));
    ck_assert(fs_fixture_object_exists(&fx, "q"));
    ck_assert_uint_eq(type_of("x"), S_IFIFO);
}
END_TEST

/* ---- directories that lose their last name ---- */

START_TEST(marker_of_an_emptied_directory_is_journalled_with_what_empties_it)
{
    fs_fixture_object(&fx, "d/f", "data", 4);
    fs_fixture_object(&fx, "e/f", "data", 4);
    fs_fixture_object(&fx, "two/f", "data", 4);
    fs_fixture_object(&fx, "two/g", "data", 4);
    fs_fixture_open(&fx);
    INODE_REF d = fs_fixture_inode(&fx, "d");
    INODE_REF two = fs_fixture_inode(&fx, "two");
    ck_assert_uint_eq(type_of("d/f"), S_IFREG);
    ck_assert_uint_eq(type_of("e/f"), S_IFREG);
    ck_assert_uint_eq(type_of("two/f"), S_IFREG);
    struct publish_counts n;
    ck_assert_int_eq(tree_unlink(fx.fs, d->ino, "f"), 0);
    publish_count(fx.fs->pub, "d", &n);
    ck_assert_uint_eq(n.ops, 2);
    ck_assert_int_eq(move("e", "f", "two", "h"), 0);
    publish_count(fx.fs->pub, "e", &n);
    ck_assert_uint_eq(n.ops, 1);
    ck_assert_int_eq(move("two", "f", "two", "g"), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, two->ino, "h"), 0);
    fs_fixture_start(&fx);
    all_published();
    ck_assert(fs_fixture_object_exists(&fx, "d") && fs_fixture_object_exists(&fx, "e"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tree");
    TCase *t = tcase_create("tree");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, link_whose_head_fails_does_not_become_a_file);
    tcase_add_test(t, object_that_vanishes_before_its_head_is_no_name);
    tcase_add_test(t, object_that_may_not_be_asked_for_is_a_file_until_it_may);
    tcase_add_test(t, empty_object_is_asked_for_again_when_it_is_young_or_changed);
    tcase_add_test(t, directory_that_became_a_file_elsewhere_is_a_file);
    tcase_add_test(t, directory_with_something_new_below_stays_over_a_file);
    tcase_add_test(t, mode_set_while_the_store_is_asked_stays);
    tcase_add_test(t, time_set_while_the_store_is_asked_stays);
    tcase_add_test(t, owner_and_modes_of_this_mount_hold_for_what_is_known_already);
    tcase_add_test(t, owner_of_this_mount_holds_where_the_metadata_told_only_the_mode);
    tcase_add_test(t, rename_refused_for_a_long_key_leaves_the_target);
    tcase_add_test(t, edit_of_a_renamed_file_is_found_by_its_new_name_without_the_database);
    tcase_add_test(t, fifo_moved_to_a_removed_name_leaves_its_delete_alone);
    tcase_add_test(t, fifo_moved_over_a_file_or_exchanged_with_it_removes_the_object);
    tcase_add_test(t, marker_of_an_emptied_directory_is_journalled_with_what_empties_it);
    suite_add_tcase(s, t);
    return run_suite(s);
}
