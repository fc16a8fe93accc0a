/* Small directories that are out of date are listed again together, over a lake in a folder, without FUSE. */
#include "fs/links.h"
#include "fs/sync.h"
#include "fs/tree.h"
#include "fs/tree_list.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_DIRS  20u
#define N_FILES 20u

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void object(const char *dir, unsigned d, const char *name)
{
    g_autofree char *key = g_strdup_printf("%s/dir%02u/%s", dir, d, name);
    fs_fixture_object(&fx, key, "x", 1);
}

static void make_dir(const char *dir, unsigned d, unsigned files)
{
    for (unsigned f = 0; f < files; f++) {
        g_autofree char *name = g_strdup_printf("file%u", f);
        object(dir, d, name);
    }
}

static void remove_at(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

/* Somebody looks for a name in it once it was listed, however long that took. */
static void look_into(unsigned d)
{
    g_autofree char *path = g_strdup_printf("set/dir%02u", d);
    INODE_REF dir = fs_fixture_inode(&fx, path);
    struct inode *in = NULL;
    ck_assert_int_eq(tree_refresh(fx.fs, dir, false), 0);
    while (tree_list_running(fx.fs, dir->ino)) /* served meanwhile as it was */
        g_usleep(1000);
    int r = tree_lookup_in(fx.fs, dir, "file0", &in);
    ck_assert(r == 0 || r == -ENOENT);
    inode_put(r == 0 ? in : NULL);
}

/* Waits until it is not being listed. */
static bool is_fresh(unsigned d)
{
    g_autofree char *path = g_strdup_printf("set/dir%02u", d);
    struct inode *set = fs_fixture_inode(&fx, "set"), *in = NULL;
    g_autofree char *name = g_path_get_basename(path);
    struct meta_dentry dentry = {0};
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, set->ino, name, &dentry), 0);
    ck_assert_int_eq(inode_get(fx.fs, dentry.ino, &in), 0);
    while (tree_list_running(fx.fs, in->ino)) /* what comes along is put behind */
        g_usleep(1000);
    bool fresh = sync_listed_ns(fx.fs, in) >= atomic_load(&fx.fs->doubt_ns); /* is not a look into it */
    meta_dentry_clear(&dentry);
    inode_put(in);
    inode_put(set);
    return fresh;
}

static int64_t listed_at(unsigned d)
{
    ck_assert(is_fresh(d));
    g_autofree char *path = g_strdup_printf("set/dir%02u", d);
    INODE_REF in = fs_fixture_inode(&fx, path);
    return sync_listed_ns(fx.fs, in);
}

/* The kernel knows the directories, as it does those that it looks into. */
static void hold(unsigned n)
{
    for (unsigned d = 0; d < n; d++) {
        g_autofree char *path = g_strdup_printf("set/dir%02u", d);
        INODE_REF in = fs_fixture_inode(&fx, path);
        inode_kernel_ref(in);
    }
}

static void expire(void)
{
    g_usleep(2000); /* listings of now are not older */
    atomic_store(&fx.fs->doubt_ns, clock_wall_ns());
    (void)fs_fixture_ino(&fx, "set/nothing"); /* lists those above */
}

/* LIST requests of a look into it. */
static int64_t cost_of(unsigned d)
{
    int64_t before = metric_get(M_requests_list);
    look_into(d);
    return metric_get(M_requests_list) - before;
}

static void open_lake(void)
{
    for (unsigned d = 0; d < N_DIRS; d++)
        make_dir("set", d, N_FILES);
    fs_fixture_open(&fx);
    hold(N_DIRS);
    for (unsigned d = 0; d < N_DIRS; d++)
        look_into(d);
}

/* ---- what comes along ---- */

START_TEST(one_request_lists_the_directories_behind_it_too)
{
    open_lake();
    uint64_t same = fs_fixture_ino(&fx, "set/dir03/file3"), rewritten = fs_fixture_ino(&fx, "set/dir05/file5");
    object("set", 4, "new");
    remove_at("set/dir06/file6");
    fs_fixture_object(&fx, "set/dir05/file5", "longer", 6);
    expire();
    (void)fs_fixture_ino(&fx, "set/dir00/file0");
    int64_t before = metric_get(M_requests_list);
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert(is_fresh(d));
    ck_assert_uint_eq(fs_fixture_ino(&fx, "set/dir03/file3"), same);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir05/file5"), rewritten);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir04/new"), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "set/dir06/file6"), 0);
    ck_assert_int_eq(metric_get(M_requests_list), before);
}
END_TEST

START_TEST(directory_is_listed_by_one_request_whatever_comes_along)
{
    open_lake();
    expire();
    ck_assert_int_eq(cost_of(0), 1);
    for (unsigned d = 1; d < N_DIRS; d++)
        ck_assert_int_eq(cost_of(d), 0);
}
END_TEST

START_TEST(what_nobody_looked_into_is_passed_over)
{
    open_lake();
    expire();
    look_into(0);
    expire();
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert(!is_fresh(d));
    (void)fs_fixture_ino(&fx, "set/dir00/file0"); /* nobody asked for the others since */
    ck_assert(is_fresh(0));
    for (unsigned d = 1; d < N_DIRS; d++)
        ck_assert_int_eq(is_fresh(d), false);
    ck_assert_int_eq(cost_of(7), 1);
    expire();
    (void)fs_fixture_ino(&fx, "set/dir00/file0");
    for (unsigned d = 1; d < N_DIRS; d++)
        ck_assert_int_eq(is_fresh(d), d == 7);
}
END_TEST

START_TEST(what_is_fresh_is_passed_over)
{
    open_lake();
    expire();
    (void)fs_fixture_ino(&fx, "set/dir10/file0");
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert_int_eq(is_fresh(d), d >= 10);
    int64_t before = metric_get(M_list_refreshes);
    ck_assert_int_eq(cost_of(0), 1);
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert(is_fresh(d));
    ck_assert_int_eq(metric_get(M_list_refreshes) - before, 10); /* of those that were not */
}
END_TEST

START_TEST(no_more_come_along_than_a_page_shows)
{
    for (unsigned d = 0; d < 6; d++)
        make_dir("set", d, 250);
    fs_fixture_open(&fx);
    hold(6);
    for (unsigned d = 0; d < 6; d++)
        look_into(d);
    expire();
    ck_assert_int_eq(cost_of(0), 1);
    for (unsigned d = 0; d < 6; d++)
        ck_assert_int_eq(is_fresh(d), d < 3);
}
END_TEST

static void make_wide_lake(void)
{
    for (unsigned d = 0; d < N_DIRS; d++)
        make_dir("set", d, 100);
    fs_fixture_open(&fx);
    hold(N_DIRS);
    for (unsigned d = 0; d < N_DIRS; d++)
        look_into(d);
}

START_TEST(pages_begin_where_they_began_last)
{
    make_wide_lake();
    expire();
    ck_assert_int_eq(cost_of(5), 1);
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert_int_eq(is_fresh(d), d >= 5 && d < 14);
    for (unsigned d = 5; d < 14; d++)
        look_into(d);
    expire();
    ck_assert_int_eq(cost_of(13), 1);
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert_int_eq(is_fresh(d), d >= 5 && d < 14);
}
END_TEST

START_TEST(page_that_does_not_reach_so_far_any_more_begins_at_the_directory)
{
    make_wide_lake();
    expire();
    look_into(5); /* with those up to 13 */
    make_dir("set", 6, 350);
    for (unsigned d = 5; d < 14; d++)
        look_into(d);
    expire();
    look_into(12); /* the page from 5 on ends before, so by itself */
    ck_assert(is_fresh(5) && is_fresh(6) && is_fresh(11) && is_fresh(12) && !is_fresh(13));
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir06/file349"), 0);
    for (unsigned d = 0; d < N_DIRS; d++)
        look_into(d);
    expire();
    ck_assert_int_eq(cost_of(11), 1); /* those from 5 to there are more than a page */
    ck_assert(is_fresh(11) && is_fresh(12) && !is_fresh(10) && !is_fresh(5));
}
END_TEST

/* ---- what changed meanwhile ---- */

START_TEST(directory_that_grew_is_listed_by_itself_and_whole)
{
    open_lake();
    make_dir("set", 1, 1500);
    expire();
    look_into(0);
    ck_assert(is_fresh(0) && !is_fresh(1) && !is_fresh(2));
    expire();
    ck_assert_int_eq(cost_of(2), 1); /* not once more behind it */
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir01/file1499"), 0);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir19/file0"), 0);
    make_dir("set", 3, 1500);
    expire();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir03/file1499"), 0); /* the one that is asked for */
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir03/file0"), 0);
}
END_TEST

START_TEST(directory_with_directories_does_not_hide_what_comes_behind)
{
    open_lake();
    for (unsigned f = 0; f < 1500; f++) {
        g_autofree char *name = g_strdup_printf("deep/%u", f);
        object("set", 2, name);
    }
    expire();
    look_into(1);
    ck_assert(is_fresh(1) && !is_fresh(3));
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir02/deep/1499"), 0);
    expire();
    int64_t before = metric_get(M_requests_list);
    (void)fs_fixture_ino(&fx, "set/dir02/file0"); /* known to lead down: by itself */
    ck_assert_int_eq(metric_get(M_requests_list) - before, 1);
    ck_assert(is_fresh(2) && !is_fresh(3));
    ck_assert_uint_ne(fs_fixture_ino(&fx, "set/dir03/file0"), 0);
}
END_TEST

START_TEST(what_was_written_here_stays)
{
    open_lake();
    fs_fixture_write(&fx, "set/dir05/mine", "1", 1);
    uint64_t mine = fs_fixture_ino(&fx, "set/dir05/mine");
    expire();
    look_into(0);
    ck_assert(is_fresh(5));
    ck_assert_uint_eq(fs_fixture_ino(&fx, "set/dir05/mine"), mine);
}
END_TEST

START_TEST(directory_beside_in_the_order_of_keys_is_no_harm)
{
    fs_fixture_object(&fx, "set/a/one", "1", 1);
    fs_fixture_object(&fx, "set/a-b/two", "1", 1); /* as keys before those of a, as names behind it */
    fs_fixture_object(&fx, "set/ab/three", "1", 1);
    fs_fixture_open(&fx);
    static const char *const dirs[] = {"set/a", "set/a-b", "set/ab"}, *const names[] = {"set/a/one", "set/a-b/two",
                                                                                        "set/ab/three"};
    uint64_t inos[3];
    for (unsigned i = 0; i < 3; i++) {
        INODE_REF in = fs_fixture_inode(&fx, dirs[i]);
        inode_kernel_ref(in);
        inos[i] = fs_fixture_ino(&fx, names[i]);
        ck_assert_uint_eq(fs_fixture_ino(&fx, names[i]), inos[i]);
    }
    expire();
    int64_t before = metric_get(M_requests_list);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(fs_fixture_ino(&fx, names[i]), inos[i]);
    ck_assert_int_eq(metric_get(M_requests_list) - before, 2); /* a with ab, a-b */
}
END_TEST

START_TEST(directory_of_a_link_does_not_come_along)
{
    g_autofree char *source = g_strdup_printf("file://%s/two", fx.dir), *msg = NULL;
    g_autofree char *path = g_build_filename(fx.dir, "two", NULL), *file = g_build_filename(path, "theirs", NULL);
    ck_assert_int_eq(g_mkdir_with_parents(path, 0700), 0);
    ck_assert(g_file_set_contents(file, "1", 1, NULL));
    open_lake();
    json_t *options = json_object();
    ck_assert_msg(links_add(fx.fs, source, "set/dir01-link", options, &msg) == 0, "%s", msg);
    json_decref(options);
    INODE_REF point = fs_fixture_inode(&fx, "set/dir01-link");
    inode_kernel_ref(point);
    uint64_t theirs = fs_fixture_ino(&fx, "set/dir01-link/theirs");
    ck_assert_uint_ne(theirs, 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "set/dir01-link/theirs"), theirs);
    expire();
    look_into(1);
    ck_assert(is_fresh(1) && !is_fresh(2)); /* by itself */
    ck_assert_uint_eq(fs_fixture_ino(&fx, "set/dir01-link/theirs"), theirs);
}
END_TEST

/* All keys of "dir00-aug/" come before the first one of "dir00/". */
START_TEST(directory_whose_name_goes_on_is_not_in_the_way)
{
    for (unsigned f = 0; f < 1500; f++) {
        g_autofree char *key = g_strdup_printf("set/dir00-aug/%u", f);
        fs_fixture_object(&fx, key, "x", 1);
    }
    open_lake();
    expire();
    ck_assert_int_eq(cost_of(0), 1);
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert(is_fresh(d));
}
END_TEST

/* What a link leaves out comes along all the same where nothing is asked for with a delimiter. */
START_TEST(directory_with_directories_that_are_left_out_is_listed_by_itself)
{
    g_autofree char *source = g_strdup_printf("file://%s/two", fx.dir), *msg = NULL;
    g_autofree char *path = g_build_filename(fx.dir, "two", NULL);
    static const char *const dirs[] = {"ln/a", "ln/b"}, *const names[] = {"ln/a/one", "ln/b/one"};
    for (unsigned i = 0; i < 2; i++) {
        g_autofree char *down = g_build_filename(path, dirs[i] + 3, "aside", NULL);
        g_autofree char *one = g_build_filename(path, names[i] + 3, NULL);
        ck_assert_int_eq(g_mkdir_with_parents(down, 0700), 0);
        ck_assert(g_file_set_contents(one, "1", 1, NULL));
        for (unsigned f = 0; f < 1500; f++) {
            g_autofree char *name = g_strdup_printf("%s/%u", down, f);
            ck_assert(g_file_set_contents(name, "1", 1, NULL));
        }
    }
    fs_fixture_open(&fx);
    json_t *options = json_pack("{s:s}", "exclude", "a/aside/**,b/aside/**");
    ck_assert_msg(links_add(fx.fs, source, "ln", options, &msg) == 0, "%s", msg);
    json_decref(options);
    for (unsigned i = 0; i < 2; i++) {
        INODE_REF in = fs_fixture_inode(&fx, dirs[i]);
        inode_kernel_ref(in);
        ck_assert_uint_ne(fs_fixture_ino(&fx, names[i]), 0);
        ck_assert_uint_ne(fs_fixture_ino(&fx, names[i]), 0);
    }
    expire();
    (void)fs_fixture_ino(&fx, "ln/nothing");
    int64_t before = metric_get(M_requests_list);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_uint_ne(fs_fixture_ino(&fx, names[i]), 0);
    ck_assert_int_eq(metric_get(M_requests_list) - before, 2);
}
END_TEST

/* They are all as of before the one request, whenever they were taken out of it. */
START_TEST(listed_together_they_are_of_one_age)
{
    open_lake();
    expire();
    look_into(0);
    int64_t at = listed_at(0);
    for (unsigned d = 1; d < N_DIRS; d++)
        ck_assert_int_eq(listed_at(d), at);
}
END_TEST

static gpointer look_in_thread(gpointer arg)
{
    (void)fs_fixture_ino(&fx, "set/dir00/file0");
    return NULL;
}

/* What is told of others meanwhile is believed. */
START_TEST(other_directories_are_not_being_listed)
{
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    open_lake();
    INODE_REF set = fs_fixture_inode(&fx, "set");
    INODE_REF first = fs_fixture_inode(&fx, "set/dir00");
    INODE_REF last = fs_fixture_inode(&fx, "set/dir19");
    expire();
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,nth=1,action=delay:1s"), 0);
    GThread *t = g_thread_new("look", look_in_thread, NULL);
    while (!tree_list_running(fx.fs, first->ino))
        g_usleep(1000);
    g_usleep(100000); /* and the others are claimed */
    ck_assert(tree_list_running(fx.fs, last->ino));
    ck_assert(!tree_list_running(fx.fs, set->ino));
    (void)g_thread_join(t);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("near");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, one_request_lists_the_directories_behind_it_too);
    tcase_add_test(tc, directory_is_listed_by_one_request_whatever_comes_along);
    tcase_add_test(tc, what_nobody_looked_into_is_passed_over);
    tcase_add_test(tc, what_is_fresh_is_passed_over);
    tcase_add_test(tc, no_more_come_along_than_a_page_shows);
    tcase_add_test(tc, pages_begin_where_they_began_last);
    tcase_add_test(tc, page_that_does_not_reach_so_far_any_more_begins_at_the_directory);
    tcase_add_test(tc, directory_that_grew_is_listed_by_itself_and_whole);
    tcase_add_test(tc, directory_with_directories_does_not_hide_what_comes_behind);
    tcase_add_test(tc, what_was_written_here_stays);
    tcase_add_test(tc, directory_beside_in_the_order_of_keys_is_no_harm);
    tcase_add_test(tc, directory_of_a_link_does_not_come_along);
    tcase_add_test(tc, directory_whose_name_goes_on_is_not_in_the_way);
    tcase_add_test(tc, directory_with_directories_that_are_left_out_is_listed_by_itself);
    tcase_add_test(tc, listed_together_they_are_of_one_age);
    tcase_add_test(tc, other_directories_are_not_being_listed);
    Suite *s = suite_create("near");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
