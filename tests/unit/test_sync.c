/* Syncs over a lake in a folder, without FUSE: what is listed, what is written, what is kept of those that failed or were cut off. */
#include "fs/publish.h"
#include "fs/sync_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
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

static void make_lake(unsigned dirs, unsigned files)
{
    for (unsigned d = 0; d < dirs; d++)
        for (unsigned f = 0; f < files; f++) {
            g_autofree char *key = g_strdup_printf("set/dir%u/file%u", d, f);
            fs_fixture_object(&fx, key, "x", 1);
        }
}

static void remove_at(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

static enum sync_state sync_as(const struct sync_req *req, struct sync_progress *ret)
{
    struct sync_job *job = NULL;
    ck_assert_int_eq(sync_start(fx.fs, req, &job), 0);
    ck_assert(sync_wait(job, clock_mono_ns() + 60 * NS_PER_S));
    enum sync_state state = sync_progress_get(job, ret);
    sync_job_unref(job);
    return state;
}

static enum sync_state sync_all(struct sync_progress *ret)
{
    return sync_as(&(struct sync_req){.path = "", .parallel = 4}, ret);
}

/* LIST requests that a piece of work costs. */
static int64_t lists_since(int64_t before)
{
    return metric_get(M_requests_list) - before;
}

/* -errno, or the type of what is there. */
static int look(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    if (r == 0)
        r = (int)(in->rec.mode & S_IFMT);
    inode_put(in);
    return r;
}

static int count_one(void *ctx, const struct meta_dentry *d)
{
    ++*(unsigned *)ctx;
    return 0;
}

static unsigned names_in(const char *path)
{
    unsigned n = 0;
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(meta_dentry_each(fx.fs->meta, in->ino, 0, count_one, &n), 0);
    return n;
}

/* ---- full ---- */

START_TEST(everything_is_known_afterwards_without_a_request)
{
    struct sync_progress p;
    make_lake(30, 20);
    fs_fixture_object(&fx, "set/deep/er/and/deeper/file", "x", 1);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 1 + 1 + 30 + 4);
    ck_assert_uint_eq(p.errors, 0);
    ck_assert_uint_ge(p.names, 600);
    int64_t before = metric_get(M_requests_list) + metric_get(M_requests_head);
    for (unsigned d = 0; d < 30; d++) {
        g_autofree char *dir = g_strdup_printf("set/dir%u", d);
        INODE_REF in = fs_fixture_inode(&fx, dir);
        ck_assert_int_eq(tree_refresh(fx.fs, in, false), 0);
        ck_assert_uint_eq(names_in(dir), 20);
    }
    ck_assert_int_eq(look("set/deep/er/and/deeper/file"), S_IFREG);
    ck_assert_int_eq(look("set/dir1/nothing"), -ENOENT);
    ck_assert_int_eq(metric_get(M_requests_list) + metric_get(M_requests_head) - before, 0);
}
END_TEST

START_TEST(part_of_the_tree_alone_is_listed)
{
    struct sync_progress p;
    make_lake(3, 2);
    fs_fixture_object(&fx, "other/sub/file", "x", 1);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "set/dir1"}, &p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 1);
    struct sync_job *job = NULL;
    ck_assert_int_eq(sync_start(fx.fs, &(struct sync_req){.path = "set/dir1/file0"}, &job), -ENOTDIR);
    ck_assert_int_eq(sync_start(fx.fs, &(struct sync_req){.path = "nowhere"}, &job), -ENOENT);
}
END_TEST

/* ---- differences ---- */

START_TEST(unchanged_directories_are_not_written)
{
    struct sync_progress p;
    make_lake(20, 5);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    uint64_t before = meta_written(fx.fs->meta);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 22);
    ck_assert_uint_eq(p.changed, 0);
    ck_assert_uint_eq(meta_written(fx.fs->meta) - before, 2); /* its begin and its end */
}
END_TEST

START_TEST(difference_alone_is_applied)
{
    struct sync_progress p;
    make_lake(10, 5);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    INODE_REF same = fs_fixture_inode(&fx, "set/dir3/file1");
    INODE_REF old = fs_fixture_inode(&fx, "set/dir3/file2");
    fs_fixture_object(&fx, "set/dir3/new", "x", 1);
    fs_fixture_object(&fx, "set/dir3/file2", "changed", 7);
    remove_at("set/dir3/file3");
    remove_at("set/dir4/file0");
    fs_fixture_object(&fx, "set/added/below/file", "x", 1);
    ck_assert_int_eq(look("set/dir3/new"), -ENOENT); /* its TTL has not passed */
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    ck_assert_uint_eq(p.changed, 5); /* set, dir3, dir4, added, below */
    ck_assert_int_eq(look("set/dir3/new"), S_IFREG);
    ck_assert_int_eq(look("set/dir3/file3"), -ENOENT);
    ck_assert_int_eq(look("set/dir4/file0"), -ENOENT);
    ck_assert_int_eq(look("set/added/below/file"), S_IFREG);
    INODE_REF same_now = fs_fixture_inode(&fx, "set/dir3/file1");
    INODE_REF changed = fs_fixture_inode(&fx, "set/dir3/file2");
    ck_assert_uint_eq(same_now->ino, same->ino);
    ck_assert_uint_ne(changed->ino, old->ino);
    ck_assert_uint_eq(changed->rec.size, 7);
}
END_TEST

START_TEST(what_was_written_here_stays)
{
    struct sync_progress p;
    make_lake(2, 2);
    fs_fixture_open(&fx); /* nothing is published: fs_start() was not called */
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    fs_fixture_write(&fx, "set/dir0/mine", "local", 5);
    INODE_REF dir = fs_fixture_inode(&fx, "set/dir0");
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "file1"), 0);
    fs_fixture_write(&fx, "here/only/mine", "local", 5);
    fs_fixture_object(&fx, "set/dir0/mine", "theirs!", 7);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    INODE_REF mine = fs_fixture_inode(&fx, "set/dir0/mine");
    ck_assert_uint_eq(mine->rec.size, 5);
    ck_assert_int_eq(look("set/dir0/file1"), -ENOENT);
    ck_assert_int_eq(look("here/only/mine"), S_IFREG);
}
END_TEST

START_TEST(incremental_leaves_out_what_was_listed_lately)
{
    struct sync_progress p;
    make_lake(5, 2);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "set/dir1");
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "", .incremental = true}, &p), SYNC_DONE);
    ck_assert_uint_eq(p.skipped, 3); /* root, set, dir1 */
    ck_assert_uint_eq(p.dirs, 4);
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "", .incremental = true}, &p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 0);
}
END_TEST

/* ---- many small directories ---- */

static int64_t listed_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return sync_listed_ns(fx.fs, in);
}

START_TEST(small_directories_are_listed_many_at_a_time)
{
    struct sync_progress p;
    make_lake(120, 3);
    fs_fixture_object(&fx, "set/dir5-beside", "x", 1);
    fs_fixture_object(&fx, "set/dir50/sub/deep", "x", 1);
    fs_fixture_open(&fx);
    int64_t before = metric_get(M_requests_list);
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "", .parallel = 2}, &p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 123);
    ck_assert_uint_eq(p.errors, 0);
    ck_assert_int_lt(lists_since(before),
                     50 + 2); /* a page of directories is taken up before any of it was seen to be small */
    for (unsigned d = 0; d < 120; d++) {
        g_autofree char *dir = g_strdup_printf("set/dir%u", d);
        ck_assert_uint_eq(names_in(dir), d == 50 ? 4 : 3);
        ck_assert_int_gt(listed_of(dir), 0);
    }
    ck_assert_int_eq(look("set/dir50/sub/deep"), S_IFREG);
    ck_assert_int_eq(look("set/dir5-beside"), S_IFREG);
    remove_at("set/dir119/file0");
    remove_at("set/dir118/file0");
    remove_at("set/dir118/file1");
    remove_at("set/dir118/file2");
    remove_at("set/dir118");
    fs_fixture_object(&fx, "set/dir117/new", "x", 1);
    uint64_t written = meta_written(fx.fs->meta);
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "set", .parallel = 2}, &p), SYNC_DONE);
    ck_assert_uint_eq(p.changed, 3); /* set, dir117, dir119 */
    ck_assert_uint_lt(meta_written(fx.fs->meta) - written, 12);
    ck_assert_int_eq(look("set/dir119/file0"), -ENOENT);
    ck_assert_int_eq(look("set/dir118"), -ENOENT);
    ck_assert_int_eq(look("set/dir117/new"), S_IFREG);
}
END_TEST

START_TEST(large_directory_among_small_ones_is_listed_by_itself)
{
    struct sync_progress p;
    make_lake(60, 1);
    for (unsigned f = 0; f < 4100; f++) {
        g_autofree char *key = g_strdup_printf("set/dir59/large%u", f);
        fs_fixture_object(&fx, key, "x", 1);
    }
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "", .parallel = 2}, &p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 62);
    ck_assert_uint_eq(names_in("set/dir59"), 4101);
    ck_assert_uint_eq(names_in("set/dir58"), 1);
}
END_TEST

START_TEST(failure_of_a_common_listing_is_one_of_each_directory)
{
    struct sync_progress p;
    make_lake(80, 1);
    fs_fixture_open(&fx);
    ck_assert_int_eq(look("set"), S_IFDIR);
    fault("op=list,nth=36,count=1,action=error:-EIO"); /* of a group, when root, set and the first page were listed */
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "", .parallel = 1}, &p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 82);
    fault("op=list,nth=4,count=1000000,action=error:-EIO");
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "set", .parallel = 1}, &p), SYNC_FAILED);
    ck_assert_uint_ge(p.errors, 70);
    ck_assert_int_eq(look("set/dir79/file0"), S_IFREG);
}
END_TEST

/* ---- how old a listing is ---- */

START_TEST(time_of_a_sync_counts_for_all_below_also_in_the_next_run)
{
    struct sync_progress p;
    make_lake(3, 2);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    int64_t before = clock_wall_ns();
    ck_assert_int_eq(sync_all(&p), SYNC_DONE); /* writes no directory */
    ck_assert_int_ge(listed_of("set/dir1"), before);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert_int_ge(listed_of("set/dir1"), before);
    ck_assert_int_ge(listed_of(""), before);
    INODE_REF in = fs_fixture_inode(&fx, "set/dir1");
    ck_assert_int_lt(in->rec.listed_ns, before);
    int64_t lists = metric_get(M_requests_list);
    ck_assert_int_eq(tree_refresh(fx.fs, in, false), 0);
    ck_assert_int_eq(lists_since(lists), 0);
}
END_TEST

/* ---- failures ---- */

struct named {
    unsigned n;
    char *path;
    int err;
};

static void take_failed(void *ctx, const char *path, int err)
{
    struct named *f = ctx;
    f->n++;
    g_free(f->path);
    f->path = g_strdup(path);
    f->err = err;
}

static struct named failures(void)
{
    struct named f = {0};
    sync_failed_each(fx.fs, 0, take_failed, &f);
    return f;
}

START_TEST(directory_that_cannot_be_listed_is_named_and_never_empty)
{
    struct sync_progress p;
    make_lake(3, 2);
    fs_fixture_object(&fx, "bad/file", "x", 1);
    fs_fixture_open(&fx);
    ck_assert_int_eq(look("bad"), S_IFDIR); /* the root is listed */
    fault("op=list,nth=1,count=1000,action=error:-EIO");
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "bad"}, &p), SYNC_FAILED);
    ck_assert_uint_eq(p.errors, 1);
    struct named f = failures();
    ck_assert_uint_eq(f.n, 1);
    ck_assert_str_eq(f.path, "bad");
    ck_assert_int_eq(f.err, -EIO);
    ck_assert_int_eq(look("bad/file"), -EIO);
    ck_assert_int_eq(look("bad/nothing"), -EIO);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    g_free(f.path);
    f = failures();
    ck_assert_uint_eq(f.n, 1);
    ck_assert_str_eq(f.path, "bad");
    ck_assert_int_eq(look("bad/file"), S_IFREG); /* it answers again: looking into it lists it */
    g_free(f.path);
    f = failures();
    ck_assert_uint_eq(f.n, 0);
    g_free(f.path);
}
END_TEST

START_TEST(time_of_a_sync_does_not_count_for_what_it_could_not_list)
{
    struct sync_progress p;
    make_lake(1, 2);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    int64_t before = clock_wall_ns();
    fault("op=list,nth=3,count=1,action=error:-EIO"); /* root, set, dir0 */
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "", .parallel = 1}, &p), SYNC_FAILED);
    ck_assert_uint_eq(p.errors, 1);
    ck_assert_int_lt(listed_of("set/dir0"), before);
    ck_assert_int_ge(listed_of("set"), before);
    ck_assert_int_eq(look("set/dir0/file1"), S_IFREG); /* what is known is served */
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    ck_assert_int_ge(listed_of("set/dir0"), before);
    struct named f = failures();
    ck_assert_uint_eq(f.n, 0);
}
END_TEST

/* ---- cut off ---- */

START_TEST(sync_that_was_cut_off_goes_on_without_listing_again)
{
    struct sync_progress p;
    make_lake(6, 2);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    INODE_REF dir = fs_fixture_inode(&fx, "set/dir2");
    g_autoptr(GArray) visited = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(visited, dir->ino);
    struct sync_run run = {.ino = META_ROOT_INO, .began_ns = clock_wall_ns(), .parallel = 2};
    ck_assert_int_eq(sync_run_put(fx.fs->sync, &run), 0);
    ck_assert_int_eq(sync_run_visited(fx.fs->sync, run.ino, 0, visited), 0);
    fs_fixture_object(&fx, "set/dir2/unseen", "x", 1);
    fs_fixture_object(&fx, "set/dir3/seen", "x", 1);
    inode_put(g_steal_pointer(&dir));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    ck_assert_uint_eq(jobs->len, 1);
    ck_assert(sync_wait(jobs->pdata[0], clock_mono_ns() + 60 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(jobs->pdata[0], &p), SYNC_DONE);
    ck_assert_uint_eq(p.skipped, 1);
    ck_assert_uint_eq(p.dirs, 7);
    ck_assert_int_eq(look("set/dir3/seen"), S_IFREG);
    ck_assert_int_eq(look("set/dir2/unseen"), -ENOENT);
    ck_assert_int_eq(sync_done_ns(fx.fs, META_ROOT_INO), run.began_ns);
    GString *dump = g_string_new(NULL);
    ck_assert_int_eq(meta_dump(fx.fs->meta, dump), 0);
    ck_assert_ptr_null(strstr(dump->str, "sync/run"));
    ck_assert_ptr_null(strstr(dump->str, "sync/visited"));
    g_string_free(dump, TRUE);
}
END_TEST

START_TEST(nothing_is_kept_of_directories_that_are_gone)
{
    struct sync_progress p;
    make_lake(2, 1);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_as(&(struct sync_req){.path = "set/dir0", .parallel = 1}, &p), SYNC_DONE);
    INODE_REF dir = fs_fixture_inode(&fx, "set/dir0");
    uint64_t ino = dir->ino;
    inode_put(g_steal_pointer(&dir));
    ck_assert_int_ne(sync_done_ns(fx.fs, ino), 0);
    remove_at("set/dir0/file0");
    remove_at("set/dir0");
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    ck_assert_int_eq(look("set/dir0"), -ENOENT);
    fs_fixture_close(&fx); /* what has no name is reaped */
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    ck_assert_int_eq(sync_done_ns(fx.fs, ino), 0);
    ck_assert_int_ne(sync_done_ns(fx.fs, META_ROOT_INO), 0);
}
END_TEST

/* Who was cut off asks anew before it is gone on with, and is cut off as well. */
START_TEST(what_an_earlier_sync_listed_does_not_count_for_a_later_one)
{
    struct sync_progress p;
    make_lake(6, 2);
    fs_fixture_open(&fx);
    ck_assert_int_eq(sync_all(&p), SYNC_DONE);
    INODE_REF dir = fs_fixture_inode(&fx, "set/dir2");
    g_autoptr(GArray) visited = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(visited, dir->ino);
    struct sync_run run = {.ino = META_ROOT_INO, .began_ns = clock_wall_ns(), .parallel = 2};
    ck_assert_int_eq(sync_run_put(fx.fs->sync, &run), 0);
    ck_assert_int_eq(sync_run_visited(fx.fs->sync, run.ino, 1, visited), 0);
    run.began_ns = clock_wall_ns();
    ck_assert_int_eq(sync_run_put(fx.fs->sync, &run), 0);
    fs_fixture_object(&fx, "set/dir2/seen", "x", 1);
    inode_put(g_steal_pointer(&dir));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    ck_assert_uint_eq(jobs->len, 1);
    ck_assert(sync_wait(jobs->pdata[0], clock_mono_ns() + 60 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(jobs->pdata[0], &p), SYNC_DONE);
    ck_assert_uint_eq(p.skipped, 0);
    ck_assert_int_eq(look("set/dir2/seen"), S_IFREG);
}
END_TEST

START_TEST(closing_cuts_a_sync_off_and_the_next_start_ends_it)
{
    struct sync_job *job = NULL;
    struct sync_progress p;
    make_lake(40, 2);
    fs_fixture_open(&fx);
    fault("op=list,action=delay:20ms");
    ck_assert_int_eq(sync_start(fx.fs, &(struct sync_req){.path = "", .parallel = 1, .background = true}, &job), 0);
    do
        g_usleep(1000);
    while (sync_progress_get(job, &p) == SYNC_RUNNING && p.dirs < 5);
    uint64_t done = p.dirs;
    sync_job_unref(job);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    ck_assert_uint_eq(jobs->len, 1);
    ck_assert(sync_wait(jobs->pdata[0], clock_mono_ns() + 60 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(jobs->pdata[0], &p), SYNC_DONE);
    ck_assert_uint_ge(p.skipped, done);
    ck_assert_uint_eq(p.skipped + p.dirs, 42);
    ck_assert_uint_eq(names_in("set/dir39"), 2);
}
END_TEST

/* ---- several of one directory ---- */

static struct sync_job *begin(const struct sync_req *req)
{
    struct sync_job *job = NULL;
    ck_assert_int_eq(sync_start(fx.fs, req, &job), 0);
    return job;
}

static const struct sync_req whole = {.path = "", .parallel = 1};

static struct sync_progress progress_of(struct sync_job *job)
{
    struct sync_progress p;
    (void)sync_progress_get(job, &p);
    return p;
}

/* One that has listed the root, and is held in the next listing. */
static struct sync_job *begin_held(const struct sync_req *req)
{
    fault("op=list,nth=2,action=delay:3600s");
    struct sync_job *job = begin(req);
    EVENTUALLY(progress_of(job).dirs == 1);
    return job;
}

static void let_go(void)
{
    fault("op=get,nth=1000000,action=error:-EIO");
}

static enum sync_state end_of(struct sync_job *job)
{
    struct sync_progress p;
    ck_assert(sync_wait(job, clock_mono_ns() + 60 * NS_PER_S));
    enum sync_state state = sync_progress_get(job, &p);
    sync_job_unref(job);
    return state;
}

START_TEST(sync_finds_what_came_while_another_one_ran)
{
    make_lake(3, 2);
    fs_fixture_open(&fx);
    struct sync_job *first = begin_held(&whole);
    fs_fixture_object(&fx, "late", "x", 1);
    struct sync_job *second = begin(&whole), *third = begin(&whole);
    ck_assert_ptr_ne(second, first);
    ck_assert_ptr_eq(third, second); /* which has not begun */
    ck_assert(progress_of(second).waits && !progress_of(first).waits);
    let_go();
    ck_assert_int_eq(end_of(first), SYNC_DONE);
    ck_assert_int_eq(end_of(second), SYNC_DONE);
    ck_assert_int_eq(look("late"), S_IFREG);
    ck_assert_uint_eq(progress_of(third).dirs, 5);
    ck_assert(!progress_of(third).waits);
    sync_job_unref(third);
}
END_TEST

START_TEST(sync_that_lists_as_much_is_joined)
{
    make_lake(3, 2);
    fs_fixture_open(&fx);
    struct sync_job *first = begin_held(&whole);
    int64_t began_ns = progress_of(first).began_ns;
    const struct sync_req lately = {.path = "", .incremental = true}, any = {.path = "", .any = true},
                          again = {.path = "", .asked_ns = began_ns}, before = {.path = "", .asked_ns = began_ns - 1};
    struct sync_job *joined[] = {begin(&lately), begin(&any), begin(&again), begin(&before)};
    for (unsigned i = 0; i < G_N_ELEMENTS(joined); i++) {
        ck_assert_ptr_eq(joined[i], first);
        sync_job_unref(joined[i]);
    }
    let_go();
    ck_assert_int_eq(end_of(first), SYNC_DONE);
}
END_TEST

START_TEST(full_sync_is_not_satisfied_by_an_incremental_one)
{
    struct sync_progress p;
    make_lake(3, 2);
    fs_fixture_open(&fx);
    const struct sync_req lately = {.path = "", .incremental = true, .parallel = 1};
    struct sync_job *first = begin_held(&lately), *second = begin(&lately);
    ck_assert_ptr_ne(second, first);
    ck_assert(progress_of(second).incremental);
    struct sync_job *full = begin(&whole);
    ck_assert_ptr_eq(full, second); /* and is made one */
    let_go();
    ck_assert_int_eq(end_of(first), SYNC_DONE);
    ck_assert_int_eq(end_of(second), SYNC_DONE);
    p = progress_of(full);
    ck_assert(!p.incremental);
    ck_assert_uint_eq(p.skipped, 0);
    ck_assert_uint_eq(p.dirs, 5);
    sync_job_unref(full);
}
END_TEST

START_TEST(who_leaves_stops_it_unless_others_wait)
{
    make_lake(3, 2);
    fs_fixture_open(&fx);
    struct sync_job *first = begin_held(&whole);
    const struct sync_req again = {.path = "", .asked_ns = progress_of(first).began_ns};
    struct sync_job *other = begin(&again), *next = begin(&whole), *left = begin(&whole);
    ck_assert_ptr_eq(other, first);
    sync_leave(first);
    sync_leave(next);
    ck_assert_ptr_eq(begin(&again), first);
    sync_leave(first);
    sync_leave(other);
    sync_job_unref(other);
    sync_job_unref(other);
    let_go();
    ck_assert_int_eq(end_of(first), SYNC_STOPPED);
    ck_assert_int_ne(end_of(next), SYNC_STOPPED);
    ck_assert_int_eq(sync_progress_get(left, &(struct sync_progress){0}), SYNC_DONE);
    sync_job_unref(left);
}
END_TEST

START_TEST(sync_that_nobody_waits_for_any_more_does_not_begin)
{
    make_lake(3, 2);
    fs_fixture_open(&fx);
    struct sync_job *first = begin_held(&whole), *next = begin(&whole);
    sync_leave(next);
    struct sync_job *again = begin(&whole); /* before its turn has come: it begins after all */
    ck_assert_ptr_eq(again, next);
    sync_leave(again);
    sync_job_unref(again);
    let_go();
    ck_assert_int_eq(end_of(first), SYNC_DONE);
    ck_assert(sync_wait(next, clock_mono_ns() + 20 * NS_PER_S));
    ck_assert_uint_eq(progress_of(next).dirs, 0);
    ck_assert_int_eq(end_of(next), SYNC_STOPPED);
    ck_assert_int_eq(end_of(begin(&whole)), SYNC_DONE);
}
END_TEST

START_TEST(closing_ends_those_that_wait_as_well)
{
    make_lake(3, 2);
    fs_fixture_open(&fx);
    struct sync_job *first = begin_held(&whole), *next = begin(&whole);
    fs_fixture_close(&fx);
    ck_assert_int_eq(sync_progress_get(first, &(struct sync_progress){0}), SYNC_STOPPED);
    ck_assert_int_eq(sync_progress_get(next, &(struct sync_progress){0}), SYNC_STOPPED);
    sync_job_unref(first);
    sync_job_unref(next);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx); /* what was cut off is gone on with */
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    ck_assert_uint_eq(jobs->len, 1);
    ck_assert(sync_wait(jobs->pdata[0], clock_mono_ns() + 20 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(jobs->pdata[0], &(struct sync_progress){0}), SYNC_DONE);
}
END_TEST

/* The client asks the next worker, and then has enough. */
START_TEST(who_was_cut_off_can_still_leave)
{
    make_lake(3, 2);
    fs_fixture_open(&fx);
    struct sync_job *first = begin_held(&whole);
    const struct sync_req again = {.path = "", .asked_ns = progress_of(first).began_ns};
    sync_job_unref(first);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fault("op=list,action=delay:3600s");
    fs_fixture_start(&fx);
    struct sync_job *job = begin(&again);
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    ck_assert_uint_eq(jobs->len, 1);
    ck_assert_ptr_eq(jobs->pdata[0], job);
    sync_leave(job);
    let_go();
    ck_assert_int_eq(end_of(job), SYNC_STOPPED);
}
END_TEST

START_TEST(option_lists_all_at_the_start)
{
    struct sync_progress p;
    make_lake(4, 2);
    g_free(fx.cfg.sync);
    fx.cfg.sync = g_strdup("full");
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    ck_assert_uint_eq(jobs->len, 1);
    ck_assert(sync_wait(jobs->pdata[0], clock_mono_ns() + 60 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(jobs->pdata[0], &p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 6);
}
END_TEST

START_TEST(option_lists_again_and_again)
{
    make_lake(1, 1);
    g_free(fx.cfg.sync);
    fx.cfg.sync = g_strdup("1s");
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    int64_t first = 0;
    while (!(first = sync_done_ns(fx.fs, META_ROOT_INO)))
        g_usleep(5000);
    fs_fixture_object(&fx, "set/dir0/later", "x", 1);
    while (look("set/dir0/later") != S_IFREG)
        g_usleep(5000);
    ck_assert_int_ge(sync_done_ns(fx.fs, META_ROOT_INO), first);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("sync");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, everything_is_known_afterwards_without_a_request);
    tcase_add_test(tc, part_of_the_tree_alone_is_listed);
    tcase_add_test(tc, unchanged_directories_are_not_written);
    tcase_add_test(tc, difference_alone_is_applied);
    tcase_add_test(tc, what_was_written_here_stays);
    tcase_add_test(tc, incremental_leaves_out_what_was_listed_lately);
    tcase_add_test(tc, small_directories_are_listed_many_at_a_time);
    tcase_add_test(tc, large_directory_among_small_ones_is_listed_by_itself);
    tcase_add_test(tc, failure_of_a_common_listing_is_one_of_each_directory);
    tcase_add_test(tc, time_of_a_sync_counts_for_all_below_also_in_the_next_run);
    tcase_add_test(tc, directory_that_cannot_be_listed_is_named_and_never_empty);
    tcase_add_test(tc, time_of_a_sync_does_not_count_for_what_it_could_not_list);
    tcase_add_test(tc, sync_that_was_cut_off_goes_on_without_listing_again);
    tcase_add_test(tc, what_an_earlier_sync_listed_does_not_count_for_a_later_one);
    tcase_add_test(tc, nothing_is_kept_of_directories_that_are_gone);
    tcase_add_test(tc, closing_cuts_a_sync_off_and_the_next_start_ends_it);
    tcase_add_test(tc, sync_finds_what_came_while_another_one_ran);
    tcase_add_test(tc, sync_that_lists_as_much_is_joined);
    tcase_add_test(tc, full_sync_is_not_satisfied_by_an_incremental_one);
    tcase_add_test(tc, who_leaves_stops_it_unless_others_wait);
    tcase_add_test(tc, sync_that_nobody_waits_for_any_more_does_not_begin);
    tcase_add_test(tc, closing_ends_those_that_wait_as_well);
    tcase_add_test(tc, who_was_cut_off_can_still_leave);
    tcase_add_test(tc, option_lists_all_at_the_start);
    tcase_add_test(tc, option_lists_again_and_again);
    Suite *s = suite_create("sync");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
