/* What the cache fetches of its own accord, and that nobody who waits has to wait for it. */
#include "cache_fixture.h"

#define SIZE (64 * MIB)

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 256 * MIB);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

static void read_range(struct cfile *cf, uint64_t off, uint64_t end, uint64_t step)
{
    g_autofree uint8_t *buf = g_malloc(step);
    for (; off < end; off += step) {
        ck_assert_int_eq(cache_file_read(cf, buf, step, off), (ssize_t)step);
        assert_pattern(buf, step, off, 1);
    }
}

START_TEST(reader_of_a_good_part_gets_the_whole_file)
{
    struct cache_source src = put_object(&fx, "log", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    int64_t before = metric_get(M_downloaded_bytes);
    read_range(cf, 0, SIZE / 4 + MIB, 128 * KIB);
    EVENTUALLY(cache_file_complete(cf));
    EVENTUALLY(metric_get(M_downloaded_bytes) - before >= (int64_t)SIZE); /* counted when a GET ends */
    ck_assert_int_eq(metric_get(M_downloaded_bytes) - before, SIZE);
    cache_file_unref(cf);
}
END_TEST

START_TEST(reader_of_a_small_part_does_not)
{
    struct cache_source src = put_object(&fx, "log", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    read_range(cf, 0, SIZE / 8, 128 * KIB);
    g_usleep(200000);
    ck_assert_uint_le(cache_file_present_bytes(cf), SIZE / 8 + fx.cfg.readahead_bytes);
    cache_file_unref(cf);
}
END_TEST

START_TEST(file_larger_than_half_the_cache_is_not_filled)
{
    uint64_t size = 160 * MIB;
    struct cache_source src = put_object(&fx, "m.safetensors", size, 1);
    struct cfile *cf = open_object(&fx, 50, &src, size);
    read_range(cf, 0, 80 * MIB, MIB);
    g_usleep(200000);
    ck_assert_uint_le(cache_file_present_bytes(cf), 80 * MIB + fx.cfg.readahead_bytes);
    cache_file_unref(cf);
}
END_TEST

START_TEST(weights_are_filled_once_more_than_the_header_is_read)
{
    struct cache_source src = put_object(&fx, "m/model.safetensors", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    int64_t before = metric_get(M_downloaded_bytes);
    read_range(cf, 0, 2 * MIB, MIB);
    g_usleep(200000);
    ck_assert_uint_le(cache_file_present_bytes(cf), 8 * MIB);
    read_range(cf, 40 * MIB, 41 * MIB, MIB);
    read_range(cf, 20 * MIB, 21 * MIB, MIB);
    EVENTUALLY(cache_file_complete(cf));
    EVENTUALLY(metric_get(M_downloaded_bytes) - before >= (int64_t)SIZE); /* counted when a GET ends */
    ck_assert_int_eq(metric_get(M_downloaded_bytes) - before, SIZE);
    cache_file_unref(cf);
}
END_TEST

START_TEST(fill_leaves_a_download_to_readers)
{
    struct cache_source big = put_object(&fx, "big", SIZE, 1), other = put_object(&fx, "other", MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &big, SIZE), *cf2 = open_object(&fx, 51, &other, MIB);
    fault(&fx, "op=get,nth=1,count=3,action=delay:3s"); /* those of the fill, if it does not take all four */
    ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    g_usleep(300000); /* the fill has begun what it may */
    read_range(cf2, 0, MIB, MIB);
    ck_assert_uint_eq(cache_file_present_bytes(cf), 0);
    fault(&fx, "");
    EVENTUALLY(cache_file_complete(cf));
    cache_file_unref(cf);
    cache_file_unref(cf2);
}
END_TEST

START_TEST(reader_inside_a_queued_fill_reads_ahead)
{
    uint64_t size = 120 * MIB;
    struct cache_source src = put_object(&fx, "a", size, 1);
    struct cfile *cf = open_object(&fx, 50, &src, size);
    fault(&fx, "op=get,action=delay:20ms");
    int64_t before = metric_get(M_requests_get);
    ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    read_range(cf, 90 * MIB, 106 * MIB, 128 * KIB);
    EVENTUALLY(cache_file_complete(cf));
    /* One GET a MiB and what was carved at the edges; without read-ahead one GET for each read. */
    ck_assert_int_le(metric_get(M_requests_get) - before, size / MIB + 12);
    cache_file_unref(cf);
}
END_TEST

START_TEST(waiting_in_the_queue_is_no_lack_of_progress)
{
    struct cache_source big = put_object(&fx, "big", SIZE, 1), other = put_object(&fx, "other", MIB, 1);
    fixture_stop(&fx);
    fx.cfg.op_timeout_ns = 3 * NS_PER_S; /* twice that without anything does not happen on a busy machine */
    fixture_start(&fx);
    struct cfile *cf = open_object(&fx, 50, &big, SIZE), *cf2 = open_object(&fx, 51, &other, MIB);
    fault(&fx, "op=get,action=delay:400ms"); /* eight seconds and more for all of the first file */
    ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    ck_assert_int_eq(cache_file_fill(cf2, false, true, NULL, NULL), 0);
    ck_assert(cache_file_complete(cf2));
    cache_file_unref(cf);
    cache_file_unref(cf2);
}
END_TEST

START_TEST(file_forgotten_while_its_fetches_are_queued_goes_at_the_stop)
{
    struct cache_source big = put_object(&fx, "big", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &big, SIZE);
    struct meta_upload rec = {.vid = 50, .key = g_strdup("big"), .upload_id = g_strdup("1"), .part_bytes = MIB};
    struct meta_batch *b = meta_batch_new(fx.meta);
    meta_upload_put(b, &rec);
    meta_upload_clear(&rec);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    fault(&fx, "op=get,action=delay:200ms");
    ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    cache_forget(fx.cache, 50);
    cache_file_unref(cf); /* only the fetches have it now */
    fixture_restart(&fx);
    struct cache_usage u;
    cache_usage(fx.cache, &u);
    ck_assert_uint_eq(u.files, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_ahead");
    TCase *tc = tcase_create("ahead");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, reader_of_a_good_part_gets_the_whole_file);
    tcase_add_test(tc, reader_of_a_small_part_does_not);
    tcase_add_test(tc, file_larger_than_half_the_cache_is_not_filled);
    tcase_add_test(tc, weights_are_filled_once_more_than_the_header_is_read);
    tcase_add_test(tc, fill_leaves_a_download_to_readers);
    tcase_add_test(tc, reader_inside_a_queued_fill_reads_ahead);
    tcase_add_test(tc, waiting_in_the_queue_is_no_lack_of_progress);
    tcase_add_test(tc, file_forgotten_while_its_fetches_are_queued_goes_at_the_stop);
    suite_add_tcase(suite, tc);
    SRunner *sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
