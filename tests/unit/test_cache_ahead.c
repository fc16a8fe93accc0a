/* What the cache fetches of its own accord, and that nobody who waits has to wait for it. */
#include "../../s3/objstore_driver.h"
#include "cache/cache_file.h"
#include "cache_fixture.h"

#include <pthread.h>

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

/* _i: 0 fill, 1 prefetch. */
START_TEST(fill_leaves_a_download_to_readers)
{
    struct cache_source big = put_object(&fx, "big", SIZE, 1), other = put_object(&fx, "other", MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &big, SIZE), *cf2 = open_object(&fx, 51, &other, MIB);
    fault(&fx, "op=get,nth=1,count=3,action=delay:3s"); /* those of the fill, if it does not take all four */
    if (_i == 0)
        ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    else
        cache_file_prefetch(cf, 0, SIZE);
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

/* ---- turns at the store ---- */

static struct objstore_driver spy;
static const struct objstore_driver *spied;
static int n_behind, n_first,
    gate; /* atomic; while the gate is 1 a GET that began behind waits until somebody waits for it */

static int spy_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                   obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    (void)__atomic_add_fetch(objstore_is_behind() ? &n_behind : &n_first, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&gate, __ATOMIC_ACQUIRE) && objstore_is_behind())
        g_usleep(1000);
    __atomic_store_n(&gate, 0, __ATOMIC_RELEASE);
    return spied->get(st, key, off, len, if_match, sink, ctx, ret_info);
}

static void spy_on_store(void)
{
    spied = fx.store->drv;
    spy = *spied;
    spy.get = spy_get;
    fx.store->drv = &spy;
    n_behind = n_first = gate = 0;
}

static int seen(const int *n)
{
    return __atomic_load_n(n, __ATOMIC_ACQUIRE);
}

START_TEST(gets_that_nobody_waits_for_let_others_go_first)
{
    struct cache_source src = put_object(&fx, "log", 8 * MIB, 1), other = put_object(&fx, "other", MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &src, 8 * MIB), *cf2 = open_object(&fx, 51, &other, MIB);
    spy_on_store();
    cache_file_prefetch(cf, 0, 8 * MIB);
    EVENTUALLY(cache_file_complete(cf));
    ck_assert_int_gt(seen(&n_behind), 0);
    ck_assert_int_eq(seen(&n_first), 0);
    int before = seen(&n_behind);
    read_range(cf2, 0, MIB, MIB);
    ck_assert_int_gt(seen(&n_first), 0);
    ck_assert_int_eq(seen(&n_behind), before);
    fx.store->drv = spied;
    cache_file_unref(cf);
    cache_file_unref(cf2);
}
END_TEST

START_TEST(a_get_is_first_from_when_somebody_waits_for_it)
{
    struct cache_source src = put_object(&fx, "log", MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &src, MIB);
    spy_on_store();
    gate = 1;
    cache_file_prefetch(cf, 0, MIB);
    EVENTUALLY(seen(&n_behind) == 1);
    read_range(cf, 0, MIB, MIB);
    ck_assert_int_eq(seen(&n_first), 0); /* it was that GET */
    fx.store->drv = spied;
    cache_file_unref(cf);
}
END_TEST

/* ---- patterns ---- */

START_TEST(strided_reader_finds_his_next_two_steps_here)
{
    struct cache_source src = put_object(&fx, "columns", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint64_t step = 5 * MIB, off = 0;
    for (unsigned i = 0; i < 5; i++, off += step)
        read_range(cf, off, off + CHUNK, CHUNK);
    EVENTUALLY(cache_file_present_bytes(cf) == 7 * CHUNK);
    int64_t gets = metric_get(M_requests_get);
    fault(&fx, "op=get,action=error:-EIO");
    read_range(cf, off, off + CHUNK, CHUNK); /* the one after it is fetched behind, in vain */
    fault(&fx, "");
    ck_assert_int_le(metric_get(M_requests_get) - gets, 1);
    cache_file_unref(cf);
}
END_TEST

static struct ra_speed speed_of(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    struct ra_speed speed = cf->speed;
    mutex_unlock(&cf->mu);
    return speed;
}

START_TEST(gets_tell_how_far_ahead_to_be)
{
    struct cache_source src = put_object(&fx, "log", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    fault(&fx, "op=get,action=delay:30ms");
    read_range(cf, 0, MIB, MIB);
    EVENTUALLY(speed_of(cf).latency_ns > 0); /* noted when the GET ends, after its bytes are here */
    struct ra_speed speed = speed_of(cf);
    ck_assert_uint_ge(speed.latency_ns, 30 * NS_PER_MS);
    ck_assert_uint_gt(speed.bytes_per_s, MIB);
    cache_file_unref(cf);
}
END_TEST

static int slow_downs_end;

/* As if the store asked for less while each GET runs. */
static void *slow_down(void *arg)
{
    while (!__atomic_load_n(&slow_downs_end, __ATOMIC_RELAXED)) {
        metric_inc(M_store_slowdowns);
        g_usleep(500);
    }
    return arg;
}

START_TEST(less_is_fetched_ahead_of_a_store_that_asks_to_slow_down)
{
    struct cache_source src = put_object(&fx, "log", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    pthread_t t;
    __atomic_store_n(&slow_downs_end, 0, __ATOMIC_RELAXED);
    ck_assert_int_eq(pthread_create(&t, NULL, slow_down, NULL), 0);
    fault(&fx, "op=get,action=delay:5ms");
    read_range(cf, 0, 12 * MIB, 128 * KIB);
    g_usleep(200000);
    __atomic_store_n(&slow_downs_end, 1, __ATOMIC_RELAXED);
    (void)pthread_join(t, NULL);
    uint64_t ahead = cache_file_present_bytes(cf) - 12 * MIB;
    ck_assert_uint_le(ahead, RA_FIRST_BYTES);
    cache_file_unref(cf);
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
    tcase_add_loop_test(tc, fill_leaves_a_download_to_readers, 0, 2);
    tcase_add_test(tc, reader_inside_a_queued_fill_reads_ahead);
    tcase_add_test(tc, waiting_in_the_queue_is_no_lack_of_progress);
    tcase_add_test(tc, file_forgotten_while_its_fetches_are_queued_goes_at_the_stop);
    tcase_add_test(tc, gets_that_nobody_waits_for_let_others_go_first);
    tcase_add_test(tc, a_get_is_first_from_when_somebody_waits_for_it);
    tcase_add_test(tc, strided_reader_finds_his_next_two_steps_here);
    tcase_add_test(tc, gets_tell_how_far_ahead_to_be);
    tcase_add_test(tc, less_is_fetched_ahead_of_a_store_that_asks_to_slow_down);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
