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

int main(void)
{
    TCase *tc = tcase_create("sync_queue");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, sync_that_is_about_to_end_without_having_begun_is_not_joined);
    tcase_add_test(tc, sync_that_goes_on_does_not_list_anew_for_who_asks_before_it_is_launched);
    Suite *s = suite_create("sync_queue");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
