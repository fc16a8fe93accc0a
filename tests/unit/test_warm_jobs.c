/* Warm-ups as a scheduler uses them: shares, lists, limits, time, counts, and jobs that outlive their worker. */
#include "fs/jobs.h"
#include "fs/warm_job.h"
#include "fs/warm_list.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <unistd.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void make_lake(unsigned dirs, unsigned files, size_t size)
{
    g_autofree char *data = g_malloc(size);
    memset(data, 'x', size);
    for (unsigned d = 0; d < dirs; d++)
        for (unsigned f = 0; f < files; f++) {
            g_autofree char *key = g_strdup_printf("set/dir%u/file%u", d, f);
            fs_fixture_object(&fx, key, data, size);
        }
}

static struct warm_list *list_of(const char *const *paths)
{
    struct warm_list *l = NULL;
    ck_assert_int_eq(warm_list_new(fx.cache_dir, &l), 0);
    for (unsigned i = 0; paths[i]; i++)
        ck_assert_int_eq(warm_list_add(l, paths[i]), 0);
    ck_assert_int_eq(warm_list_close(l), 0);
    return l;
}

static struct warm *start(const struct warm_req *req)
{
    struct warm *w = NULL;
    ck_assert_int_eq(warm_start(fx.fs, req, &w), 0);
    return w;
}

static struct warm *start_kept(const char *path)
{
    struct warm_req req = {
        .list = list_of((const char *const[]){path, NULL}), .parallel = 2, .background = true, .keep = true};
    return start(&req);
}

static enum warm_state finish(struct warm *w, struct warm_progress *ret)
{
    while (!warm_wait(w, clock_mono_ns() + NS_PER_S)) {
        struct warm_event e;
        while (warm_event_pop(w, &e))
            g_free(e.path);
    }
    return warm_progress_get(w, ret);
}

static enum warm_state run(const struct warm_req *req, struct warm_progress *ret)
{
    struct warm *w = start(req);
    enum warm_state state = finish(w, ret);
    warm_unref(w);
    return state;
}

static struct warm *find(uint64_t id)
{
    g_autoptr(GPtrArray) list = warm_list_jobs(fx.fs);
    for (unsigned i = 0; i < list->len; i++)
        if (warm_id(list->pdata[i]) == id)
            return warm_ref(list->pdata[i]);
    return NULL;
}

static bool has_list(uint64_t id)
{
    g_autofree char *path = g_strdup_printf("%s/jobs/%u", fx.cache_dir, (unsigned)id);
    return access(path, F_OK) == 0;
}

/* ---- shares ---- */

START_TEST(shares_are_the_same_for_ever)
{
    static const struct {
        const char *path;
        unsigned of_4, of_1000;
    } rows[] = {
        {"a", 3, 927},
        {"set/dir0/file0", 2, 730},
        {"set/dir0/file1", 1, 295},
        {"dataset/shard-000042.tar", 1, 316},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        ck_assert_uint_eq(warm_share(rows[i].path, 1), 0);
        ck_assert_uint_eq(warm_share(rows[i].path, 4), rows[i].of_4);
        ck_assert_uint_eq(warm_share(rows[i].path, 1000), rows[i].of_1000);
    }
}
END_TEST

START_TEST(shares_are_of_about_one_size)
{
    unsigned n[8] = {0};
    for (unsigned i = 0; i < 8000; i++) {
        g_autofree char *path = g_strdup_printf("shard-%06u.tar", i);
        n[warm_share(path, 8)]++;
    }
    for (unsigned i = 0; i < 8; i++)
        ck_assert_msg(n[i] > 850 && n[i] < 1150, "share %u has %u of 8000", i, n[i]);
}
END_TEST

START_TEST(nodes_split_a_tree_without_rest_or_overlap)
{
    const char *paths[] = {"set", NULL};
    make_lake(3, 20, 10);
    fs_fixture_open(&fx);
    uint64_t files = 0;
    for (unsigned node = 0; node < 3; node++) {
        struct warm_req req = {.paths = paths, .node = node, .n_nodes = 3};
        struct warm_progress p;
        ck_assert_int_eq(run(&req, &p), WARM_DONE);
        ck_assert_uint_gt(p.files_total, 0);
        ck_assert_uint_eq(p.files_fetched, p.files_total); /* none of them was another node's */
        files += p.files_total;
    }
    ck_assert_uint_eq(files, 60);
    struct warm_progress p;
    ck_assert_int_eq(run(&(struct warm_req){.paths = paths}, &p), WARM_DONE);
    ck_assert_uint_eq(p.files_cached, 60);
}
END_TEST

/* ---- counts ---- */

START_TEST(counts_tell_what_was_here_what_came_and_what_failed)
{
    const char *first[] = {"set/dir0/file0", "set/dir0/file1", NULL}, *all[] = {"set", "nowhere", NULL};
    struct warm_progress p;
    make_lake(1, 10, 1000);
    fs_fixture_open(&fx);
    ck_assert_int_eq(run(&(struct warm_req){.paths = first}, &p), WARM_DONE);
    ck_assert_uint_eq(p.files_fetched, 2);
    g_autofree char *object = g_build_filename(fx.lake, "set/dir0/file7", NULL);
    ck_assert_int_eq(unlink(object), 0);
    ck_assert_int_eq(run(&(struct warm_req){.paths = all}, &p), WARM_FAILED);
    ck_assert_uint_eq(p.files_total, 10);
    ck_assert_uint_eq(p.files_cached, 2);
    ck_assert_uint_eq(p.files_fetched, 7);
    ck_assert_uint_eq(p.files_failed, 1);
    ck_assert_uint_eq(p.files_done, 9);
    ck_assert_uint_eq(p.bytes_total, 10000);
    ck_assert_uint_eq(p.bytes_cached, 2000);
    ck_assert_uint_eq(p.bytes_fetched, 7000);
    ck_assert_uint_eq(p.bytes_failed, 1000);
    ck_assert_uint_eq(p.bytes_done, 9000);
    ck_assert_uint_eq(p.missing, 2); /* the name that was asked for, and the object */
    ck_assert_uint_eq(p.errors, 2);
}
END_TEST

START_TEST(check_tells_only_what_is_not_here)
{
    const char *one[] = {"set/dir0/file0", NULL}, *all[] = {"set", NULL};
    struct warm_progress p;
    make_lake(1, 3, 100);
    fs_fixture_open(&fx);
    ck_assert_int_eq(run(&(struct warm_req){.paths = one}, &p), WARM_DONE);
    struct warm *w = start(&(struct warm_req){.paths = all, .mode = WARM_CHECK});
    while (!warm_wait(w, clock_mono_ns() + NS_PER_S))
        if (warm_progress_get(w, &p) != WARM_RUNNING || p.files_done == 3)
            break;
    struct warm_event e;
    unsigned n = 0;
    for (; n < 2; n++) {
        while (!warm_event_pop(w, &e))
            (void)warm_wait(w, clock_mono_ns() + NS_PER_S);
        ck_assert_str_ne(e.path, "set/dir0/file0");
        ck_assert_uint_eq(e.cached_bytes, 0);
        g_free(e.path);
    }
    ck_assert_int_eq(finish(w, &p), WARM_DONE);
    ck_assert(!warm_event_pop(w, &e));
    ck_assert_uint_eq(p.files_cached, 1);
    ck_assert_uint_eq(p.files_total, 3);
    warm_unref(w);
}
END_TEST

/* ---- lists ---- */

START_TEST(a_list_is_as_long_as_it_likes)
{
    struct warm_list *l = NULL;
    struct warm_progress p;
    make_lake(1, 40, 10);
    fs_fixture_open(&fx);
    ck_assert_int_eq(warm_list_new(fx.cache_dir, &l), 0);
    for (unsigned i = 0; i < 3000; i++) {
        g_autofree char *path = g_strdup_printf("set/dir0/file%u", i % 50); /* ten of fifty are not there */
        ck_assert_int_eq(warm_list_add(l, path), 0);
    }
    ck_assert_uint_eq(warm_list_count(l), 3000);
    ck_assert_int_eq(warm_list_close(l), 0);
    ck_assert_int_eq(run(&(struct warm_req){.list = l, .background = true}, &p), WARM_FAILED);
    ck_assert_uint_eq(p.files_total, 2400);
    ck_assert_uint_eq(p.files_fetched + p.files_cached, 2400);
    ck_assert_uint_eq(p.missing, 600);
}
END_TEST

START_TEST(the_first_problems_are_kept)
{
    make_lake(1, 1, 10);
    fs_fixture_open(&fx);
    struct warm_list *l = NULL;
    ck_assert_int_eq(warm_list_new(fx.cache_dir, &l), 0);
    for (unsigned i = 0; i < 50; i++) {
        g_autofree char *path = g_strdup_printf("none%u", i);
        ck_assert_int_eq(warm_list_add(l, path), 0);
    }
    ck_assert_int_eq(warm_list_close(l), 0);
    struct warm *w = start(&(struct warm_req){.list = l, .background = true, .keep = true});
    struct warm_progress p;
    ck_assert_int_eq(finish(w, &p), WARM_FAILED);
    g_autoptr(GPtrArray) problems = warm_problems(w);
    ck_assert_uint_eq(problems->len, WARM_PROBLEMS);
    ck_assert(g_str_has_prefix(problems->pdata[0], "none0: "));
    ck_assert_uint_eq(p.missing, 50);
    warm_unref(w);
}
END_TEST

START_TEST(lists_that_a_kill_left_are_removed)
{
    fs_fixture_open(&fx);
    struct warm_list *left = NULL, *kept = NULL;
    ck_assert_int_eq(warm_list_new(fx.cache_dir, &left), 0);
    ck_assert_int_eq(warm_list_new(fx.cache_dir, &kept), 0);
    ck_assert_int_eq(warm_list_close(kept), 0);
    ck_assert_int_eq(warm_list_keep(kept, 7), 0);
    warm_list_free(kept);
    warm_list_tidy(fx.cache_dir, 7);
    ck_assert(has_list(7));
    warm_list_tidy(fx.cache_dir, 6);
    ck_assert(!has_list(7));
    g_autofree char *dir = g_build_filename(fx.cache_dir, "jobs", NULL);
    g_autoptr(GDir) d = g_dir_open(dir, 0, NULL);
    ck_assert_ptr_null(g_dir_read_name(d));
    warm_list_free(left);
}
END_TEST

/* ---- time and limit ---- */

START_TEST(a_job_past_its_time_ends_with_work_left)
{
    const char *paths[] = {"set", NULL};
    struct warm_progress p;
    make_lake(1, 200, 10);
    fx.cfg.fault = g_strdup("op=get,action=delay:50ms");
    fs_fixture_open(&fx);
    struct warm_req req = {
        .paths = paths, .parallel = 1, .background = true, .until_ns = clock_wall_ns() + 300 * (int64_t)NS_PER_MS};
    ck_assert_int_eq(run(&req, &p), WARM_TIMEOUT);
    ck_assert_uint_lt(p.files_done, 200);
    ck_assert_uint_eq(p.errors, 0);
}
END_TEST

/* The first piece is paid for after some days, so the second never begins. */
START_TEST(a_limit_holds_the_next_piece_back_and_a_stop_does_not_wait_for_it)
{
    const char *paths[] = {"set", NULL};
    struct warm_progress p = {0};
    make_lake(1, 5, 3000000);
    fs_fixture_open(&fx);
    struct warm *w = start(&(struct warm_req){.paths = paths, .parallel = 1, .background = true, .limit_bps = 1});
    while (p.bytes_done == 0) {
        g_usleep(1000);
        (void)warm_progress_get(w, &p);
    }
    g_usleep(100 * 1000);
    ck_assert_int_eq(warm_progress_get(w, &p), WARM_RUNNING);
    ck_assert_uint_le(p.bytes_done, 256u << 10);
    warm_stop(w);
    ck_assert_int_eq(finish(w, &p), WARM_STOPPED);
    ck_assert_uint_eq(p.files_done, 0);
    ck_assert_uint_eq(p.errors, 0);
    warm_unref(w);
}
END_TEST

START_TEST(a_limited_job_fetches_all_of_a_large_file)
{
    const char *paths[] = {"set", NULL};
    struct warm_progress p;
    make_lake(1, 1, 5000001);
    fs_fixture_open(&fx);
    ck_assert_int_eq(run(&(struct warm_req){.paths = paths, .limit_bps = 1u << 30}, &p), WARM_DONE);
    ck_assert_uint_eq(p.bytes_fetched, 5000001);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/file0"), 5000001);
}
END_TEST

/* ---- jobs ---- */

START_TEST(a_job_goes_on_with_the_next_worker)
{
    make_lake(4, 50, 1000);
    fx.cfg.fault = g_strdup("op=get,action=delay:20ms");
    fs_fixture_open(&fx);
    struct warm *w = start_kept("set");
    uint64_t id = warm_id(w);
    struct warm_progress p = {0}, again;
    while (p.files_done < 5) {
        g_usleep(1000);
        (void)warm_progress_get(w, &p);
    }
    warm_unref(w);
    fs_fixture_close(&fx);
    ck_assert(has_list(id));
    g_clear_pointer(&fx.cfg.fault, g_free);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    w = find(id);
    ck_assert_ptr_nonnull(w);
    ck_assert_uint_eq(warm_resumed(w), 1);
    ck_assert_int_eq(finish(w, &p), WARM_DONE);
    warm_unref(w);
    ck_assert_uint_eq(p.files_total, 200);
    ck_assert_uint_ge(p.files_cached, 5);
    ck_assert_uint_eq(p.files_cached + p.files_fetched, 200);
    fs_fixture_close(&fx);
    ck_assert(!has_list(id));
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    w = find(id);
    ck_assert_ptr_nonnull(w);
    ck_assert_int_eq(warm_progress_get(w, &again), WARM_DONE);
    ck_assert_int_eq(memcmp(&p, &again, sizeof(p)), 0);
    warm_unref(w);
    w = start_kept("set");
    ck_assert_uint_gt(warm_id(w), id);
    ck_assert_int_eq(finish(w, &p), WARM_DONE);
    ck_assert_uint_eq(p.files_cached, 200);
    warm_unref(w);
}
END_TEST

/* As a power loss leaves it. It is no job with nothing to do, which would be done. */
START_TEST(a_job_whose_list_was_cut_does_not_go_on)
{
    make_lake(1, 100, 1000);
    fx.cfg.fault = g_strdup("op=get,action=delay:20ms");
    fs_fixture_open(&fx);
    struct warm *w = start_kept("set");
    uint64_t id = warm_id(w);
    warm_unref(w);
    fs_fixture_close(&fx);
    g_autofree char *path = g_strdup_printf("%s/jobs/%u", fx.cache_dir, (unsigned)id);
    ck_assert_int_eq(truncate(path, 0), 0);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    w = find(id);
    ck_assert_ptr_null(w);
    ck_assert(!has_list(id));
}
END_TEST

START_TEST(a_job_that_was_stopped_stays_so)
{
    make_lake(1, 100, 1000);
    fx.cfg.fault = g_strdup("op=get,action=delay:20ms");
    fs_fixture_open(&fx);
    struct warm *w = start_kept("set");
    uint64_t id = warm_id(w);
    struct warm_progress p;
    warm_cancel(w);
    ck_assert_int_eq(finish(w, &p), WARM_STOPPED);
    warm_unref(w);
    fs_fixture_close(&fx);
    ck_assert(!has_list(id));
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    w = find(id);
    ck_assert_ptr_nonnull(w);
    ck_assert_int_eq(warm_progress_get(w, &p), WARM_STOPPED);
    warm_unref(w);
}
END_TEST

START_TEST(a_job_that_no_worker_survives_is_left)
{
    make_lake(1, 100, 1000);
    fx.cfg.fault = g_strdup("op=get,action=delay:200ms");
    fs_fixture_open(&fx);
    struct warm *w = start_kept("set");
    uint64_t id = warm_id(w);
    struct warm_progress p;
    warm_unref(w);
    for (unsigned i = 1; i <= 5; i++) {
        fs_fixture_close(&fx);
        fs_fixture_open(&fx);
        fs_fixture_start(&fx);
        w = find(id);
        ck_assert_ptr_nonnull(w);
        ck_assert_int_eq(warm_progress_get(w, &p), i < 4 ? WARM_RUNNING : WARM_STOPPED);
        ck_assert_uint_eq(warm_resumed(w), i < 4 ? i : 0);
        warm_unref(w);
    }
    ck_assert(!has_list(id));
}
END_TEST

static void put_record(const char *name, const char *text)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, name, text, strlen(text));
    meta_value_put_u64(b, "warmup-last", 4);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

static int count_record(void *ctx, const char *name, const void *value, size_t len)
{
    ++*(unsigned *)ctx;
    return 0;
}

START_TEST(records_that_cannot_be_read_are_dropped)
{
    fs_fixture_open(&fx);
    put_record("warmup/0000000000000001", "no JSON");
    put_record("warmup/0000000000000002", "{\"state\":\"running\",\"mode\":\"burn\"}");
    put_record("warmup/0000000000000003", "{\"state\":\"running\",\"mode\":\"fetch\",\"parallel\":1}"); /* no list */
    put_record("warmup/0000000000000004", "{\"state\":\"running\",\"mode\":\"fetch\",\"node\":3,\"nodes\":2}");
    put_record("warmup/x", "{\"state\":\"done\",\"mode\":\"fetch\"}");
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    unsigned n = 0;
    ck_assert_int_eq(meta_value_each(fx.fs->meta, "warmup/", count_record, &n), 0);
    ck_assert_uint_le(n, 1); /* that without a number has no name to be forgotten by */
    g_autoptr(GPtrArray) list = warm_list_jobs(fx.fs);
    ck_assert_uint_eq(list->len, 0);
}
END_TEST

/* Their clients' threads are in no order. */
START_TEST(job_stored_before_one_with_a_lower_number_is_known_to_the_next_worker)
{
    make_lake(1, 2, 10);
    fx.cfg.fault = g_strdup("op=get,action=delay:60s");
    fs_fixture_open(&fx);
    warm_unref(start_kept("set"));
    warm_unref(start_kept("set"));
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put_u64(b, "warmup-last", 1);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    struct warm *w = find(2);
    ck_assert_ptr_nonnull(w);
    ck_assert(has_list(2));
    warm_unref(w);
    w = start_kept("set");
    ck_assert_uint_eq(warm_id(w), 3);
    warm_unref(w);
}
END_TEST

START_TEST(old_jobs_are_forgotten_with_their_records)
{
    make_lake(1, 1, 10);
    fs_fixture_open(&fx);
    for (unsigned i = 0; i < 40; i++) {
        struct warm *w = start_kept("set");
        struct warm_progress p;
        ck_assert_int_eq(finish(w, &p), WARM_DONE);
        warm_unref(w);
    }
    fs_fixture_close(&fx); /* what ended is recorded now */
    fs_fixture_open(&fx);
    unsigned n = 0;
    ck_assert_int_eq(meta_value_each(fx.fs->meta, "warmup/", count_record, &n), 0);
    ck_assert_uint_ge(n, 32);
    ck_assert_uint_le(n, 33);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("warm_jobs");
    TCase *tc = tcase_create("warm_jobs");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, shares_are_the_same_for_ever);
    tcase_add_test(tc, shares_are_of_about_one_size);
    tcase_add_test(tc, nodes_split_a_tree_without_rest_or_overlap);
    tcase_add_test(tc, counts_tell_what_was_here_what_came_and_what_failed);
    tcase_add_test(tc, check_tells_only_what_is_not_here);
    tcase_add_test(tc, a_list_is_as_long_as_it_likes);
    tcase_add_test(tc, the_first_problems_are_kept);
    tcase_add_test(tc, lists_that_a_kill_left_are_removed);
    tcase_add_test(tc, a_job_past_its_time_ends_with_work_left);
    tcase_add_test(tc, a_limit_holds_the_next_piece_back_and_a_stop_does_not_wait_for_it);
    tcase_add_test(tc, a_limited_job_fetches_all_of_a_large_file);
    tcase_add_test(tc, a_job_goes_on_with_the_next_worker);
    tcase_add_test(tc, a_job_whose_list_was_cut_does_not_go_on);
    tcase_add_test(tc, a_job_that_was_stopped_stays_so);
    tcase_add_test(tc, a_job_that_no_worker_survives_is_left);
    tcase_add_test(tc, records_that_cannot_be_read_are_dropped);
    tcase_add_test(tc, job_stored_before_one_with_a_lower_number_is_known_to_the_next_worker);
    tcase_add_test(tc, old_jobs_are_forgotten_with_their_records);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
