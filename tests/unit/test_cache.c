/* Reading, fetching and changing cache files against a file store with faults. */
#include "base/crc32c.h"
#include "cache_file.h"
#include "cache_fixture.h"
#include "objstore_driver.h"

#include <fcntl.h>
#include <pthread.h>

#define SIZE (5 * MIB + 12345)

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 256 * MIB);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

START_TEST(random_reads_equal_the_source)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    srand(5);
    for (unsigned i = 0; i < 200; i++) {
        uint64_t off = (uint64_t)rand() % SIZE, len = 1 + (uint64_t)rand() % (300 * KIB);
        assert_reads(cf, off, MIN(len, SIZE - off), 1);
    }
    cache_file_unref(cf);
}
END_TEST

START_TEST(read_past_eof_returns_short)
{
    struct cache_source src = put_object(&fx, "a", 100, 1);
    struct cfile *cf = open_object(&fx, 50, &src, 100);
    uint8_t buf[200];
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof buf, 40), 60);
    assert_pattern(buf, 60, 40, 1);
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof buf, 100), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(second_read_needs_no_request)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    ck_assert(cache_file_complete(cf));
    ck_assert_uint_eq(cache_file_present_bytes(cf), SIZE);
    int64_t before = metric_get(M_requests_get);
    assert_reads(cf, 0, SIZE, 1);
    ck_assert_int_eq(metric_get(M_requests_get), before);
    cache_file_unref(cf);
}
END_TEST

static void *read_chunk_main(void *arg)
{
    assert_reads(arg, 0, CHUNK, 1);
    return NULL;
}

START_TEST(many_readers_of_one_chunk_cost_one_get)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    pthread_t threads[16];
    fault(&fx, "op=get,action=delay:100ms");
    int64_t before = metric_get(M_requests_get);
    for (unsigned i = 0; i < 16; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_chunk_main, cf), 0);
    for (unsigned i = 0; i < 16; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_le(metric_get(M_requests_get) - before, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(random_small_reads_fetch_at_most_four_times_what_they_want)
{
    uint64_t size = 64 * MIB;
    struct cache_source src = put_object(&fx, "a", size, 1);
    struct cfile *cf = open_object(&fx, 50, &src, size);
    srand(11);
    for (unsigned i = 0; i < 100; i++)
        assert_reads(cf, ((uint64_t)rand() * 4099) % (size - 64 * KIB), 64 * KIB, 1);
    ck_assert_uint_le(cache_file_present_bytes(cf), 4 * 100 * 64 * KIB);
    cache_file_unref(cf);
}
END_TEST

#define WHOLE (9 * CHUNK + 777)

static const struct objstore_driver *spied;
static int n_gets, n_gets_of_parts;

static int spy_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                   obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    (void)__atomic_add_fetch(&n_gets, 1, __ATOMIC_SEQ_CST);
    if (off || len != WHOLE)
        (void)__atomic_add_fetch(&n_gets_of_parts, 1, __ATOMIC_SEQ_CST);
    return spied->get(st, key, off, len, if_match, sink, ctx, ret_info);
}

START_TEST(objects_that_are_checked_as_a_whole_are_asked_for_as_a_whole)
{
    static struct objstore_driver spy;
    struct cache_source src = put_object(&fx, "a", WHOLE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, WHOLE);
    spied = fx.store->drv;
    spy = *spied;
    spy.get = spy_get;
    fx.store->drv = &spy;
    fx.store->limits.checked_bytes = WHOLE;
    assert_reads(cf, 5 * CHUNK + 7, 10, 1);
    EVENTUALLY(cache_file_complete(cf)); /* who reads is answered when its chunk is there */
    ck_assert_int_eq(n_gets, 1);
    cache_file_unref(cf);
    cf = open_object(&fx, 51, &src, WHOLE); /* what is changed here leaves two pieces to fetch */
    write_pattern(cf, 3 * CHUNK, CHUNK, 2);
    assert_reads(cf, 0, 3 * CHUNK, 1);
    assert_reads(cf, 3 * CHUNK, CHUNK, 2);
    assert_reads(cf, 4 * CHUNK, WHOLE - 4 * CHUNK, 1);
    ck_assert_int_eq(n_gets, 3);
    fx.store->limits.checked_bytes = WHOLE - 1;
    struct cfile *larger = open_object(&fx, 52, &src, WHOLE);
    ck_assert_int_eq(n_gets_of_parts, 0);
    assert_reads(larger, 5 * CHUNK + 7, 10, 1);
    ck_assert_int_ge(n_gets_of_parts, 1);
    cache_file_unref(larger);
    cache_file_unref(cf);
}
END_TEST

START_TEST(sequential_reads_use_large_gets)
{
    uint64_t size = 16 * MIB;
    struct cache_source src = put_object(&fx, "a", size, 1);
    struct cfile *cf = open_object(&fx, 50, &src, size);
    int64_t before = metric_get(M_requests_get);
    for (uint64_t off = 0; off < size; off += 128 * KIB)
        assert_reads(cf, off, 128 * KIB, 1);
    ck_assert_int_le(metric_get(M_requests_get) - before, 48);
    cache_file_unref(cf);
}
END_TEST

START_TEST(fill_completes_the_file_and_tells_progress)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_seek(cf, 5, SEEK_DATA), 5);
    ck_assert_int_eq(cache_file_seek(cf, 5, SEEK_HOLE), SIZE);
    ck_assert_int_eq(cache_file_seek(cf, SIZE, SEEK_DATA), -ENXIO);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(cache_file_complete(cf));
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(background_fill_goes_on_without_the_caller)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    EVENTUALLY(cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

START_TEST(reader_overtakes_a_queued_fill)
{
    struct cache_source src = put_object(&fx, "a", 40 * MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &src, 40 * MIB);
    fault(&fx, "op=get,action=delay:1s");
    ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    uint64_t start = clock_mono_ns();
    assert_reads(cf, 39 * MIB, 4096, 1);
    ck_assert_uint_lt(clock_mono_ns() - start, 8 * NS_PER_S); /* ten rounds of a second without overtaking */
    fault(&fx, "");
    cache_forget(fx.cache, 50);
    cache_file_unref(cf);
}
END_TEST

START_TEST(write_into_absent_chunks_keeps_both)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    write_pattern(cf, 100000, 200000, 2);
    assert_reads(cf, 0, 100000, 1);
    assert_reads(cf, 100000, 200000, 2);
    assert_reads(cf, 300000, SIZE - 300000, 1);
    cache_file_unref(cf);
}
END_TEST

/* What a kill leaves when the bytes are there and the write has not returned. */
static ssize_t bits_before_bytes(struct cfile *cf, const void *arg, uint64_t off, uint64_t len)
{
    struct meta_segment seg;
    uint32_t crc;
    uint64_t chunk = off / CHUNK;
    ck_assert_int_eq(meta_segment_get(fx.meta, 50, 0, &seg), 0);
    ck_assert(seg.dirty[chunk / 8] >> chunk % 8 & 1);
    ck_assert_int_eq(meta_chunk_crc_get(fx.meta, 50, chunk, &crc), -ENOENT);
    return (ssize_t)len;
}

START_TEST(clean_chunk_is_dirty_before_it_changes)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, MIB, 1);
    write_pattern(cf, 0, 10, 2); /* the file is marked */
    ck_assert_int_eq(cfile_modify(cf, 3 * CHUNK + 5, 10, false, bits_before_bytes, NULL), 10);
    cache_file_unref(cf);
}
END_TEST

/* Of a chunk that is not here. Nobody tries a second time what the kernel writes out of a map. */
START_TEST(what_was_mapped_is_written_though_gets_fail_for_a_while)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    const uint64_t page = 4096, at = 4 * CHUNK - page;
    g_autofree uint8_t *buf = g_malloc(2 * page);
    pattern(buf, 2 * page, at, 2);
    fault(&fx, "op=get,nth=1,count=3,action=error:-EIO;op=get,nth=5,count=1,action=short:1000");
    ck_assert_int_eq(cache_file_write_mapped(cf, buf, 2 * page, at), 2 * page);
    fault(&fx, "op=get,action=error:-EIO");
    uint64_t began = clock_mono_ns();
    ck_assert_int_eq(cache_file_write_mapped(cf, buf, page, 10 * CHUNK), -EIO);
    ck_assert_uint_ge(clock_mono_ns() - began, 2 * NS_PER_S); /* op_timeout */
    fault(&fx, "op=get,nth=1,count=1,action=error:-EIO");     /* a second try would succeed: each page has one now */
    ssize_t next = cache_file_write_mapped(cf, buf, page, 12 * CHUNK);
    if (clock_mono_ns() - began < 4 * NS_PER_S)
        ck_assert_int_eq(next, -EIO);
    while (clock_mono_ns() - began < 9 * NS_PER_S / 2) /* another outage */
        g_usleep(10000);
    fault(&fx, "op=get,nth=1,count=2,action=error:-EIO");
    ck_assert_int_eq(cache_file_write_mapped(cf, buf, page, 14 * CHUNK), page);
    fault(&fx, "op=get,action=error:-EACCES");
    ck_assert_int_eq(cache_file_write_mapped(cf, buf, page, 10 * CHUNK), -EACCES);
    fault(&fx, "");
    assert_reads(cf, 0, at, 1);
    assert_reads(cf, at, 2 * page, 2);
    assert_reads(cf, at + 2 * page, 14 * CHUNK - at - 2 * page, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(covering_write_needs_no_request)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    int64_t before = metric_get(M_requests_get);
    write_pattern(cf, CHUNK, 4 * CHUNK, 2);
    write_pattern(cf, SIZE - SIZE % CHUNK, SIZE % CHUNK, 2); /* the last, short chunk */
    ck_assert_int_eq(metric_get(M_requests_get), before);
    assert_reads(cf, CHUNK, 4 * CHUNK, 2);
    cache_file_unref(cf);
}
END_TEST

START_TEST(truncate_down_and_up_reads_zeros)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_truncate(cf, MIB + 100), 0);
    ck_assert_uint_eq(cache_file_limit(cf), MIB + 100);
    ck_assert_int_eq(cache_file_truncate(cf, 3 * MIB), 0);
    ck_assert_uint_eq(cache_file_size(cf), 3 * MIB);
    assert_reads(cf, 0, MIB + 100, 1);
    assert_zeros(cf, MIB + 100, 2 * MIB - 100);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 50, &src, SIZE); /* the inode's old limit must not bring bytes back */
    ck_assert_uint_eq(cache_file_size(cf), 3 * MIB);
    assert_zeros(cf, MIB + 100, 2 * MIB - 100);
    cache_file_unref(cf);
}
END_TEST

START_TEST(truncate_during_a_slow_fetch_does_not_wait_for_it)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    fault(&fx, "op=get,action=delay:60s");
    cache_file_prefetch(cf, 0, SIZE);
    g_usleep(100000);
    uint64_t start = clock_mono_ns();
    ck_assert_int_eq(cache_file_truncate(cf, 1000), 0);
    ck_assert_int_eq(cache_file_truncate(cf, MIB), 0);
    ck_assert_uint_lt(clock_mono_ns() - start, 20 * NS_PER_S);
    fault(&fx, "");
    assert_reads(cf, 0, 1000, 1);
    assert_zeros(cf, 1000, MIB - 1000);
    cache_file_unref(cf);
}
END_TEST

START_TEST(new_file_is_local_and_grows)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    write_pattern(cf, 10 * MIB, 1000, 3);
    ck_assert_uint_eq(cache_file_size(cf), 10 * MIB + 1000);
    assert_zeros(cf, 0, 1000);
    assert_reads(cf, 10 * MIB, 1000, 3);
    ck_assert(cache_file_complete(cf));
    ck_assert_int_eq(cache_file_sync(cf), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(fallocate_zeroes_and_grows)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_fallocate(cf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1000, MIB), 0);
    assert_reads(cf, 0, 1000, 1);
    assert_zeros(cf, 1000, MIB);
    assert_reads(cf, 1000 + MIB, 1000, 1);
    ck_assert_int_eq(cache_file_fallocate(cf, 0, SIZE, 1000), 0);
    ck_assert_uint_eq(cache_file_size(cf), SIZE + 1000);
    assert_zeros(cf, SIZE, 1000);
    ck_assert_int_eq(cache_file_fallocate(cf, FALLOC_FL_COLLAPSE_RANGE, 0, CHUNK), -EOPNOTSUPP);
    cache_file_unref(cf);
}
END_TEST

START_TEST(broken_get_is_an_error_and_heals)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint8_t buf[100];
    fault(&fx, "op=get,action=error:-EIO");
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof buf, 0), -EIO);
    fault(&fx, "op=get,action=short:1000");
    ck_assert_int_lt(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(!cache_file_complete(cf));
    fault(&fx, "");
    /* Other GETs of the first fill may be failing still. */
    EVENTUALLY(cache_file_fill(cf, true, true, NULL, NULL) == 0);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(what_came_before_a_get_broke_off_is_kept)
{
    struct cache_source src = put_object(&fx, "a", MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &src, MIB);
    fault(&fx, "op=get,nth=1,action=short:300000;op=get,nth=2,count=99,action=error:-EIO");
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), -EIO);
    ck_assert_uint_eq(cache_file_present_bytes(cf), 4 * CHUNK);
    fault(&fx, "op=get,action=error:-EIO");
    assert_reads(cf, 0, 4 * CHUNK, 1);
    cache_file_unref(cf);
    fixture_restart(&fx);
    for (uint64_t i = 0; i < 5; i++) {
        uint8_t want[CHUNK / 16];
        uint32_t stored, sum = 0;
        int r = meta_chunk_crc_get(fx.meta, 50, i, &stored);
        ck_assert_int_eq(r, i < 4 ? 0 : -ENOENT);
        for (uint64_t at = i * CHUNK; i < 4 && at < (i + 1) * CHUNK; at += sizeof want) {
            pattern(want, sizeof want, at, 1);
            sum = crc32c(sum, want, sizeof want);
        }
        ck_assert(i == 4 || sum == stored);
    }
}
END_TEST

START_TEST(changed_object_is_estale)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint8_t buf[100];
    (void)put_object(&fx, "a", SIZE, 2);
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof buf, 0), -ESTALE);
    cache_file_unref(cf);
}
END_TEST

START_TEST(shorter_object_than_said_is_an_error)
{
    struct cache_source src = put_object(&fx, "a", MIB, 1);
    src.limit = 2 * MIB;
    struct cfile *cf = open_object(&fx, 50, &src, 2 * MIB);
    uint8_t buf[100];
    ck_assert_int_lt(cache_file_read(cf, buf, sizeof buf, 2 * MIB - 100), 0);
    assert_reads(cf, 0, MIB, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(source_may_move_while_absent)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1), moved = put_object(&fx, "b", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, 100, 1);
    ck_assert_int_eq(objstore_delete(fx.store, "a", &(struct obj_cond){.kind = OBJ_COND_NONE}), 0);
    ck_assert_int_eq(cache_file_set_source(cf, &moved), 0);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(forgotten_file_goes_with_its_last_reference)
{
    struct cfile *cf, *again;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    write_pattern(cf, 0, MIB, 3);
    uint64_t vid = cache_file_vid(cf);
    cache_forget(fx.cache, vid);
    assert_reads(cf, 0, MIB, 3);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_file_open(fx.cache, vid, 9, MIB, NULL, &again), -ENODATA);
    struct cache_usage u;
    cache_usage(fx.cache, &u);
    ck_assert_uint_eq(u.files, 0);
    ck_assert_uint_eq(u.used_bytes, 0);
}
END_TEST

/* ---- many threads against a model ---- */

#define MODEL_SIZE (4 * MIB)
struct worker {
    struct cfile *cf;
    unsigned id, seed;
};

/* Each writer owns every fourth 10,000-byte block and writes its own bytes there; readers see the source's or the writer's, never anything else. */
static void *model_writer(void *arg)
{
    struct worker *w = arg;
    for (unsigned i = 0; i < 150; i++) {
        uint64_t block = (uint64_t)rand_r(&w->seed) % (MODEL_SIZE / 10000) / 4 * 4 + w->id;
        if ((block + 1) * 10000 <= MODEL_SIZE)
            write_pattern(w->cf, block * 10000, 10000, 100 + w->id);
    }
    return NULL;
}

static void *model_reader(void *arg)
{
    struct worker *w = arg;
    g_autofree uint8_t *buf = g_malloc(10000), *src = g_malloc(10000), *own = g_malloc(10000);
    for (unsigned i = 0; i < 150; i++) {
        uint64_t block = (uint64_t)rand_r(&w->seed) % (MODEL_SIZE / 10000), off = block * 10000;
        ck_assert_int_eq(cache_file_read(w->cf, buf, 10000, off), 10000);
        pattern(src, 10000, off, 1);
        pattern(own, 10000, off, 100 + (uint32_t)(block % 4));
        for (unsigned k = 0; k < 10000; k++)
            ck_assert_msg(buf[k] == src[k] || buf[k] == own[k], "foreign byte at %u of block %u", k, (unsigned)block);
    }
    return NULL;
}

static void *model_truncater(void *arg)
{
    struct worker *w = arg;
    for (unsigned i = 0; i < 40; i++) {
        ck_assert_int_eq(cache_file_truncate(w->cf, MODEL_SIZE + (uint64_t)rand_r(&w->seed) % MIB), 0);
        g_usleep(500);
    }
    return NULL;
}

START_TEST(readers_writers_and_truncate_agree_with_a_model)
{
    struct cache_source src = put_object(&fx, "a", MODEL_SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, MODEL_SIZE);
    struct worker w[9];
    pthread_t threads[9];
    fault(&fx, "op=get,prob=0.3,action=delay:2ms");
    for (unsigned i = 0; i < 9; i++) {
        w[i] = (struct worker){.cf = cf, .id = i % 4, .seed = i + 1};
        ck_assert_int_eq(pthread_create(&threads[i], NULL,
                                        i < 4   ? model_writer
                                        : i < 8 ? model_reader
                                                : model_truncater,
                                        &w[i]),
                         0);
    }
    for (unsigned i = 0; i < 9; i++)
        pthread_join(threads[i], NULL);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 50, &src, MODEL_SIZE);
    w[4] = (struct worker){.cf = cf, .seed = 77};
    (void)model_reader(&w[4]);
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache");
    TCase *tc = tcase_create("io");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, random_reads_equal_the_source);
    tcase_add_test(tc, read_past_eof_returns_short);
    tcase_add_test(tc, second_read_needs_no_request);
    tcase_add_test(tc, many_readers_of_one_chunk_cost_one_get);
    tcase_add_test(tc, random_small_reads_fetch_at_most_four_times_what_they_want);
    tcase_add_test(tc, objects_that_are_checked_as_a_whole_are_asked_for_as_a_whole);
    tcase_add_test(tc, sequential_reads_use_large_gets);
    tcase_add_test(tc, fill_completes_the_file_and_tells_progress);
    tcase_add_test(tc, background_fill_goes_on_without_the_caller);
    tcase_add_test(tc, reader_overtakes_a_queued_fill);
    tcase_add_test(tc, write_into_absent_chunks_keeps_both);
    tcase_add_test(tc, clean_chunk_is_dirty_before_it_changes);
    tcase_add_test(tc, covering_write_needs_no_request);
    tcase_add_test(tc, what_was_mapped_is_written_though_gets_fail_for_a_while);
    tcase_add_test(tc, truncate_down_and_up_reads_zeros);
    tcase_add_test(tc, truncate_during_a_slow_fetch_does_not_wait_for_it);
    tcase_add_test(tc, new_file_is_local_and_grows);
    tcase_add_test(tc, fallocate_zeroes_and_grows);
    tcase_add_test(tc, broken_get_is_an_error_and_heals);
    tcase_add_test(tc, what_came_before_a_get_broke_off_is_kept);
    tcase_add_test(tc, changed_object_is_estale);
    tcase_add_test(tc, shorter_object_than_said_is_an_error);
    tcase_add_test(tc, source_may_move_while_absent);
    tcase_add_test(tc, forgotten_file_goes_with_its_last_reference);
    tcase_add_test(tc, readers_writers_and_truncate_agree_with_a_model);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
