/* Warm-up, check and evict over a lake in a folder, without FUSE. */
#include "fs/content.h"
#include "fs/pin.h"
#include "fs/warm.h"
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

static struct warm *start(enum warm_mode mode, const char *path, bool background)
{
    struct warm *w = NULL;
    const char *paths[] = {path, NULL};
    struct warm_req req = {.paths = paths, .mode = mode, .parallel = 4, .background = background};
    ck_assert_int_eq(warm_start(fx.fs, &req, &w), 0);
    return w;
}

/* Waits for the end, counting events. */
static enum warm_state finish(struct warm *w, struct warm_progress *ret, unsigned *ret_events)
{
    unsigned n = 0;
    uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
    for (bool ended = false; !ended;) {
        ck_assert_uint_lt(clock_mono_ns(), deadline);
        ended = warm_wait(w, clock_mono_ns() + NS_PER_S);
        struct warm_event e;
        while (warm_event_pop(w, &e)) {
            n++;
            g_free(e.path);
        }
    }
    if (ret_events)
        *ret_events = n;
    return warm_progress_get(w, ret);
}

static struct warm_progress run(enum warm_mode mode, const char *path, enum warm_state want)
{
    struct warm *w = start(mode, path, false);
    struct warm_progress p;
    ck_assert_str_eq(warm_state_name(finish(w, &p, NULL)), warm_state_name(want));
    warm_unref(w);
    return p;
}

START_TEST(warm_up_fetches_all_files_below_a_directory_and_counts_exactly)
{
    make_lake(7, 9, 1000);
    fs_fixture_object(&fx, "other/file", "x", 1);
    fs_fixture_open(&fx);
    struct warm_progress p = run(WARM_FETCH, "set", WARM_DONE);
    ck_assert_uint_eq(p.files_total, 63);
    ck_assert_uint_eq(p.files_done, 63);
    ck_assert_uint_eq(p.bytes_total, 63000);
    ck_assert_uint_eq(p.bytes_done, 63000);
    ck_assert_uint_eq(p.errors, 0);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir6/file8"), 1000);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "other/file"), 0);
}
END_TEST

START_TEST(what_is_here_is_not_fetched_again)
{
    make_lake(2, 5, 70000);
    fs_fixture_open(&fx);
    int64_t before = metric_get(M_downloaded_bytes);
    (void)run(WARM_FETCH, "set/dir0", WARM_DONE);
    while (metric_get(M_downloaded_bytes) - before < 5 * 70000) /* counted after the reader was woken */
        g_usleep(1000);
    before = metric_get(M_downloaded_bytes);
    struct warm_progress p = run(WARM_FETCH, "set", WARM_DONE);
    ck_assert_uint_eq(p.bytes_done, 10 * 70000);
    g_usleep(50 * 1000);
    ck_assert_int_eq(metric_get(M_downloaded_bytes) - before, 5 * 70000);
    before = metric_get(M_requests_get);
    p = run(WARM_FETCH, "set", WARM_DONE);
    ck_assert_int_eq(metric_get(M_requests_get), before);
    ck_assert_uint_eq(p.bytes_done, 10 * 70000);
}
END_TEST

START_TEST(presence_survives_a_restart)
{
    make_lake(1, 4, 70000);
    fs_fixture_open(&fx);
    (void)run(WARM_FETCH, "", WARM_DONE);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    int64_t before = metric_get(M_requests_get);
    (void)run(WARM_FETCH, "", WARM_DONE);
    ck_assert_int_eq(metric_get(M_requests_get), before);
}
END_TEST

START_TEST(one_file_may_be_named)
{
    make_lake(1, 3, 10);
    fs_fixture_open(&fx);
    struct warm_progress p = run(WARM_FETCH, "set/dir0/file1", WARM_DONE);
    ck_assert_uint_eq(p.files_done, 1);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/file1"), 10);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/file2"), 0);
}
END_TEST

START_TEST(missing_path_is_an_error_event)
{
    fs_fixture_open(&fx);
    struct warm *w = start(WARM_FETCH, "nowhere", false);
    struct warm_progress p;
    unsigned events;
    ck_assert_int_eq(finish(w, &p, &events), WARM_FAILED);
    ck_assert_uint_eq(events, 1);
    ck_assert_uint_eq(p.errors, 1);
    warm_unref(w);
}
END_TEST

START_TEST(file_that_fails_is_named_and_the_others_are_fetched)
{
    make_lake(1, 8, 100);
    fs_fixture_open(&fx);
    inode_put(fs_fixture_inode(&fx, "set/dir0/file3")); /* listed now */
    g_autofree char *object = g_build_filename(fx.lake, "set/dir0/file3", NULL);
    ck_assert_int_eq(unlink(object), 0); /* after it was listed */
    struct warm *w = start(WARM_FETCH, "set", false);
    struct warm_progress p;
    unsigned events;
    ck_assert_int_eq(finish(w, &p, &events), WARM_FAILED);
    ck_assert_uint_eq(events, 1);
    ck_assert_uint_eq(p.files_done, 7);
    ck_assert_uint_eq(p.files_total, 8);
    warm_unref(w);
}
END_TEST

/* What is known of names is out of date from now on, and each listing does this. */
static void doubt(const char *fault)
{
    atomic_store(&fx.fs->doubt_ns, clock_wall_ns());
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, fault), 0);
}

START_TEST(names_that_a_slow_listing_shows_are_fetched_too)
{
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO");
    fs_fixture_object(&fx, "old", "1", 1);
    fs_fixture_open(&fx);
    inode_put(fs_fixture_inode(&fx, "old"));
    fs_fixture_object(&fx, "new", "2", 1);
    doubt("op=list,action=delay:3s");
    struct warm_progress p = run(WARM_CHECK, "", WARM_DONE);
    ck_assert_uint_eq(p.files_total, 2);
    p = run(WARM_FETCH, "", WARM_DONE);
    ck_assert_uint_eq(p.files_done, 2);
}
END_TEST

START_TEST(refused_listing_is_an_error_and_what_is_known_is_fetched)
{
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO");
    fs_fixture_object(&fx, "old", "1", 1);
    fs_fixture_open(&fx);
    inode_put(fs_fixture_inode(&fx, "old"));
    doubt("op=list,action=error:-EACCES");
    struct warm_progress p = run(WARM_FETCH, "", WARM_FAILED);
    ck_assert_uint_eq(p.errors, 1);
    ck_assert_uint_eq(p.files_done, 1);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "old"), 1);
    p = run(WARM_CHECK, "", WARM_FAILED);
    ck_assert_uint_eq(p.files_cached, 1);
}
END_TEST

START_TEST(changed_object_is_listed_again_and_fetched)
{
    make_lake(1, 1, 100);
    fs_fixture_open(&fx);
    inode_put(fs_fixture_inode(&fx, "set/dir0/file0"));
    fs_fixture_object(&fx, "set/dir0/file0", "shorter", 7);
    (void)run(WARM_FETCH, "set", WARM_DONE);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/file0"), 7);
}
END_TEST

START_TEST(check_says_what_is_here_and_fetches_nothing)
{
    make_lake(1, 3, 100);
    fs_fixture_open(&fx);
    (void)run(WARM_FETCH, "set/dir0/file0", WARM_DONE);
    int64_t before = metric_get(M_requests_get);
    struct warm *w = start(WARM_CHECK, "set", false);
    struct warm_progress p;
    unsigned events;
    ck_assert_int_eq(finish(w, &p, &events), WARM_DONE);
    ck_assert_uint_eq(events, 2); /* those that are not here */
    ck_assert_uint_eq(p.bytes_done, 100);
    ck_assert_uint_eq(p.bytes_total, 300);
    ck_assert_int_eq(metric_get(M_requests_get), before);
    warm_unref(w);
}
END_TEST

START_TEST(evict_drops_clean_files)
{
    make_lake(1, 3, 100);
    fs_fixture_open(&fx);
    (void)run(WARM_FETCH, "set", WARM_DONE);
    struct warm_progress p = run(WARM_EVICT, "set", WARM_DONE);
    ck_assert_uint_eq(p.files_done, 3);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/file0"), 0);
    p = run(WARM_EVICT, "set", WARM_DONE);
    ck_assert_uint_eq(p.files_done, 0);
}
END_TEST

START_TEST(evict_waits_for_who_has_just_published_or_fetched_the_file)
{
    make_lake(1, 1, 100);
    fs_fixture_open(&fx);
    (void)run(WARM_FETCH, "set", WARM_DONE);
    INODE_REF in = fs_fixture_inode(&fx, "set/dir0/file0");
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    struct warm *w = start(WARM_EVICT, "set", false);
    g_usleep(300000);
    content_unuse(in, cf);
    struct warm_progress p;
    ck_assert_str_eq(warm_state_name(finish(w, &p, NULL)), warm_state_name(WARM_DONE));
    ck_assert_uint_eq(p.files_done, 1);
    warm_unref(w);
}
END_TEST

START_TEST(evict_keeps_pinned_and_unpublished_files_and_says_so)
{
    make_lake(1, 2, 100);
    fs_fixture_open(&fx);
    (void)run(WARM_FETCH, "set", WARM_DONE);
    fs_fixture_write(&fx, "set/dir0/mine", "unpublished", 11);
    INODE_REF in = fs_fixture_inode(&fx, "set/dir0/file0");
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_DISK), 0);
    struct warm_progress p = run(WARM_EVICT, "set", WARM_FAILED);
    ck_assert_uint_eq(p.errors, 2);
    ck_assert_uint_eq(p.files_done, 1);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/file0"), 100);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/mine"), 11);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "set/dir0/file1"), 0);
}
END_TEST

START_TEST(stopped_warm_up_ends_and_can_be_continued)
{
    make_lake(4, 50, 1000);
    fx.cfg.fault = g_strdup("op=get,action=delay:20ms");
    fs_fixture_open(&fx);
    struct warm *w = start(WARM_FETCH, "set", true);
    struct warm_progress p = {0};
    while (p.files_done < 5) {
        g_usleep(1000);
        (void)warm_progress_get(w, &p);
    }
    warm_stop(w);
    ck_assert_int_eq(finish(w, &p, NULL), WARM_STOPPED);
    ck_assert_uint_lt(p.files_done, 200);
    warm_unref(w);
    p = run(WARM_FETCH, "set", WARM_DONE);
    ck_assert_uint_eq(p.bytes_done, 200000);
}
END_TEST

START_TEST(closing_the_file_system_ends_background_warm_ups)
{
    make_lake(4, 50, 1000);
    fx.cfg.fault = g_strdup("op=get,action=delay:50ms");
    fs_fixture_open(&fx);
    struct warm *w = start(WARM_FETCH, "set", true);
    warm_unref(w);
    uint64_t before = clock_mono_ns();
    fs_fixture_close(&fx);
    ck_assert_uint_lt(clock_mono_ns() - before, 5 * NS_PER_S);
}
END_TEST

START_TEST(more_files_than_the_queue_holds_are_all_done)
{
    make_lake(3, 1700, 1);
    fs_fixture_open(&fx);
    struct warm_progress p = run(WARM_CHECK, "", WARM_DONE);
    ck_assert_uint_eq(p.files_total, 5100);
    ck_assert_uint_eq(p.files_done, 5100);
}
END_TEST

START_TEST(finished_jobs_are_remembered_for_a_while)
{
    fs_fixture_open(&fx);
    for (unsigned i = 0; i < 40; i++)
        (void)run(WARM_CHECK, "", WARM_DONE);
    g_autoptr(GPtrArray) list = warm_list_jobs(fx.fs);
    ck_assert_uint_eq(list->len, 32);
    ck_assert_uint_eq(warm_id(list->pdata[31]), 40);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("warm");
    TCase *tc = tcase_create("warm");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, warm_up_fetches_all_files_below_a_directory_and_counts_exactly);
    tcase_add_test(tc, what_is_here_is_not_fetched_again);
    tcase_add_test(tc, presence_survives_a_restart);
    tcase_add_test(tc, one_file_may_be_named);
    tcase_add_test(tc, missing_path_is_an_error_event);
    tcase_add_test(tc, file_that_fails_is_named_and_the_others_are_fetched);
    tcase_add_test(tc, names_that_a_slow_listing_shows_are_fetched_too);
    tcase_add_test(tc, refused_listing_is_an_error_and_what_is_known_is_fetched);
    tcase_add_test(tc, changed_object_is_listed_again_and_fetched);
    tcase_add_test(tc, check_says_what_is_here_and_fetches_nothing);
    tcase_add_test(tc, evict_drops_clean_files);
    tcase_add_test(tc, evict_waits_for_who_has_just_published_or_fetched_the_file);
    tcase_add_test(tc, evict_keeps_pinned_and_unpublished_files_and_says_so);
    tcase_add_test(tc, stopped_warm_up_ends_and_can_be_continued);
    tcase_add_test(tc, closing_the_file_system_ends_background_warm_ups);
    tcase_add_test(tc, more_files_than_the_queue_holds_are_all_done);
    tcase_add_test(tc, finished_jobs_are_remembered_for_a_while);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
