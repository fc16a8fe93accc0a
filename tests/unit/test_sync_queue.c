/* Who gets which sync while one is about to begin, to end, or to be gone on with. Over a lake in a folder, without FUSE. */
#include "fs/sync_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

static struct fs_fixture fx;
static const struct sync_req whole = {.path = "", .parallel = 1};

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    fs_fixture_object(&fx, "a/x", "1", 1);
    fs_fixture_object(&fx, "b/x", "1", 1);
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

/* One of the whole mount that was put among the others, and is not launched yet. */
static struct sync_job *put(int64_t began_ns)
{
    struct sync *s = fx.fs->sync;
    const struct sync_run run = {.ino = META_ROOT_INO,
                                 .began_ns = began_ns,
                                 .parallel = 1,
                                 .visited = g_array_new(FALSE, FALSE, sizeof(uint64_t))};
    struct sync_job *job = sync_job_new(fx.fs, &run, "");
    mutex_lock(&s->mu);
    job->id = ++s->last_id;
    s->live++;
    g_ptr_array_add(s->jobs, sync_job_ref(job));
    mutex_unlock(&s->mu);
    return job;
}

static struct sync_job *ask(const struct sync_req *req)
{
    struct sync_job *job = NULL;
    ck_assert_int_eq(sync_start(fx.fs, req, &job), 0);
    return job;
}

/* Lets the reference go. */
static enum sync_state end_of(struct sync_job *job, struct sync_progress *ret)
{
    ck_assert(sync_wait(job, clock_mono_ns() + 20 * NS_PER_S));
    enum sync_state state = sync_progress_get(job, ret);
    sync_job_unref(job);
    return state;
}

START_TEST(sync_that_is_about_to_end_without_having_begun_is_not_joined)
{
    struct sync_progress p;
    struct sync_job *left = put(0);
    left->watchers = 1;
    sync_leave(left);
    ck_assert(!sync_job_begin(left));
    struct sync_job *job = ask(&whole);
    ck_assert_ptr_ne(job, left);
    sync_job_launch(left);
    ck_assert_int_eq(end_of(left, &p), SYNC_STOPPED);
    ck_assert_int_eq(end_of(job, &p), SYNC_DONE);
    ck_assert_uint_eq(p.dirs, 3);
}
END_TEST

START_TEST(sync_that_goes_on_does_not_list_anew_for_who_asks_before_it_is_launched)
{
    struct sync_progress p;
    int64_t began_ns = clock_wall_ns() - NS_PER_S;
    const struct sync_req again = {.path = "", .asked_ns = began_ns};
    struct sync_job *first = put(began_ns), *joined = ask(&again);
    ck_assert_ptr_eq(joined, first);
    sync_job_unref(joined);
    struct sync_job *next = ask(&whole);
    ck_assert_ptr_ne(next, first);
    sync_job_launch(first);
    ck_assert_int_eq(end_of(first, &p), SYNC_DONE);
    ck_assert_int_eq(p.began_ns, began_ns);
    ck_assert_int_eq(end_of(next, &p), SYNC_DONE);
    ck_assert_int_gt(p.began_ns, began_ns);
    ck_assert_uint_eq(p.dirs, 3);
}
END_TEST

/* ---- what was cut off ---- */

static void keep_run(const char *path, unsigned resumed)
{
    INODE_REF dir = fs_fixture_inode(&fx, path);
    const struct sync_run run = {
        .ino = dir->ino, .began_ns = clock_wall_ns(), .parallel = 1, .resumed = resumed, .watched = false};
    ck_assert_int_eq(sync_run_put(fx.fs->sync, &run), 0);
}

static int count(void *ctx, const char *name, const void *value, size_t len)
{
    ++*(unsigned *)ctx;
    return 0;
}

static unsigned n_kept(void)
{
    unsigned n = 0;
    ck_assert_int_eq(meta_value_each(fx.fs->meta, "sync/run/", count, &n), 0);
    return n;
}

static gpointer go_on(gpointer arg)
{
    sync_begin(fx.fs);
    return NULL;
}

static gpointer put_other(gpointer arg)
{
    return put(0);
}

static unsigned syncs_of(const char *path)
{
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    unsigned n = 0;
    for (guint i = 0; i < jobs->len; i++)
        n += g_str_equal(sync_path(jobs->pdata[i]), path);
    return n;
}

/* The first one kept is dropped as too old, which is seen; the second is then held at the look-up of its path. */
START_TEST(cut_off_sync_goes_on_though_others_are_asked_for_meanwhile)
{
    struct sync_progress p;
    keep_run("a", 100);
    keep_run("b", 0);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(n_kept(), 2);
    mutex_lock(&fx.fs->ns);
    GThread *thread = g_thread_new("go-on", go_on, NULL);
    EVENTUALLY(n_kept() == 1);
    g_usleep(50000); /* a shorter one would test less, and find nothing wrong */
    struct sync_job *other = g_thread_join(g_thread_new("put", put_other, NULL));
    mutex_unlock(&fx.fs->ns);
    (void)g_thread_join(thread);
    ck_assert_uint_eq(syncs_of("b"), 1);
    sync_job_launch(other);
    ck_assert_int_eq(end_of(other, &p), SYNC_DONE);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("sync_queue");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, sync_that_is_about_to_end_without_having_begun_is_not_joined);
    tcase_add_test(tc, sync_that_goes_on_does_not_list_anew_for_who_asks_before_it_is_launched);
    tcase_add_test(tc, cut_off_sync_goes_on_though_others_are_asked_for_meanwhile);
    Suite *s = suite_create("sync_queue");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
