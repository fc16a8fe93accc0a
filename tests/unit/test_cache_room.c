/* What makes room and what does not: pinned files, and files that are being filled. */
#include "base/metric.h"
#include "cache/cache_file.h"
#include "cache/cache_space.h"
#include "cache_fixture.h"

#include <pthread.h>

#define CACHE_BYTES (32 * MIB)

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, CACHE_BYTES);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

static ssize_t try_write(struct cfile *cf, uint64_t off, uint64_t len)
{
    g_autofree uint8_t *buf = g_malloc(len);
    pattern(buf, len, off, 5);
    return cache_file_write(cf, buf, len, off);
}

/* Whole, closed and pinned. */
static void keep(uint64_t vid, uint64_t size)
{
    struct cache_source src = put_object(&fx, "a", size, 1);
    src.pin = PIN_DISK;
    struct cfile *cf = open_object(&fx, vid, &src, size);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    cache_file_unref(cf);
}

static bool is_here(uint64_t vid)
{
    return space_entry_find(fx.cache, vid) != NULL;
}

/* ---- chunks of files in use ---- */

START_TEST(pinned_file_in_use_loses_no_chunk)
{
    struct cache_source src = put_object(&fx, "a", 8 * MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &src, 8 * MIB);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert_int_eq(cache_pin(fx.cache, 50, PIN_DISK), 0);
    ck_assert_uint_eq(cfile_punch(cf, MIB), 0);
    ck_assert(cache_file_complete(cf));
    ck_assert_int_eq(cache_pin(fx.cache, 50, PIN_NONE), 0);
    ck_assert_uint_ge(cfile_punch(cf, MIB), MIB);
    cache_file_unref(cf);
}
END_TEST

START_TEST(pinned_file_that_is_never_whole_keeps_a_window_only)
{
    uint64_t size = CACHE_BYTES;
    g_autofree uint8_t *buf = g_malloc(4 * MIB);
    struct cache_source src = put_object(&fx, "a", size, 1);
    src.pin = PIN_DISK;
    struct cfile *cf = open_object(&fx, 50, &src, size);
    ck_assert_int_eq(cache_file_read(cf, buf, 4 * MIB, 0), 4 * MIB);
    ck_assert_uint_ge(cfile_punch(cf, MIB), MIB);
    cache_file_unref(cf);
}
END_TEST

struct thief {
    struct cfile *cf;
    unsigned left; /* chunks are taken away so often */
    uint64_t bytes;
};

static void steal(void *ctx, uint64_t bytes)
{
    struct thief *t = ctx;
    if (t->left > 0) {
        t->left--;
        (void)cfile_punch(t->cf, t->bytes); /* of what came first */
    }
}

START_TEST(filled_file_is_whole_though_chunks_were_taken_away_meanwhile)
{
    struct cache_source src = put_object(&fx, "a", 8 * MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &src, 8 * MIB);
    struct thief t = {cf, 1, CHUNK}; /* when the last chunk came */
    ck_assert_int_eq(cache_file_fill_range(cf, 0, 8 * MIB - CHUNK, NULL, NULL), 0);
    ck_assert_int_eq(cache_file_fill(cf, false, true, steal, &t), 0);
    ck_assert_uint_eq(t.left, 0);
    ck_assert(cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

START_TEST(file_whose_chunks_go_as_fast_as_they_come_is_not_said_to_be_filled)
{
    struct cache_source src = put_object(&fx, "a", 8 * MIB, 1);
    struct cfile *cf = open_object(&fx, 50, &src, 8 * MIB);
    struct thief t = {cf, 1, 8 * MIB};
    ck_assert_int_eq(cache_file_fill_range(cf, 0, 8 * MIB - CHUNK, NULL, NULL), 0);
    fault(&fx, "op=get,action=delay:3s"); /* the fill waits for it */
    ck_assert_int_eq(cache_file_fill(cf, false, true, steal, &t), -ENOSPC);
    ck_assert(!cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

/* ---- pins and writers ---- */

START_TEST(write_without_room_takes_that_of_the_pinned_file_used_least_lately)
{
    struct cfile *cf, *dirty;
    int64_t before = metric_get(M_evicted_pins);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &dirty), 0);
    uint64_t dirty_vid = cache_file_vid(dirty);
    ck_assert_int_eq(try_write(dirty, 0, MIB), MIB);
    ck_assert_int_eq(cache_pin(fx.cache, dirty_vid, PIN_DISK), 0);
    cache_file_unref(dirty);
    keep(50, 10 * MIB);
    keep(51, 10 * MIB);
    keep(50, 10 * MIB);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(try_write(cf, 0, 18 * MIB), 18 * MIB);
    ck_assert(is_here(50) && !is_here(51) && is_here(dirty_vid));
    EVENTUALLY(cache_pins_yield(fx.cache));
    EVENTUALLY(metric_get(M_evicted_pins) == before + 1);         /* it is counted after the write has its room */
    ck_assert_int_eq(try_write(cf, 18 * MIB, 16 * MIB), -ENOSPC); /* what is not published stays whatever happens */
    ck_assert(is_here(dirty_vid));
    cache_file_unref(cf);
}
END_TEST

START_TEST(pins_stay_where_uploads_make_room)
{
    struct cfile *published, *cf;
    pthread_t t;
    int64_t before = metric_get(M_evicted_pins);
    fx.cache->cfg.op_timeout_ns = 20 * NS_PER_S; /* of it depends how long pins stay */
    keep(50, 10 * MIB);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &published), 0);
    ck_assert_int_eq(try_write(published, 0, 16 * MIB), 16 * MIB);
    struct cache_source src = put_object(&fx, "p", 16 * MIB, 5);
    ck_assert_int_eq(cache_file_set_source(published, &src), 0);
    ck_assert_int_eq(cache_file_new(fx.cache, 10, &cf), 0);
    ck_assert_int_eq(pthread_create(&t, NULL, clean_later, published), 0);
    ck_assert_int_eq(try_write(cf, 0, 12 * MIB), 12 * MIB);
    pthread_join(t, NULL);
    ck_assert(is_here(50));
    ck_assert_int_eq(metric_get(M_evicted_pins), before);
    ck_assert(!cache_pins_yield(fx.cache));
    cache_file_unref(cf);
}
END_TEST

/* Also while pins give way to writers at once. */
START_TEST(fetch_without_room_leaves_pins_alone)
{
    struct cfile *cf, *written;
    int64_t before = metric_get(M_evicted_pins);
    keep(50, 10 * MIB);
    keep(51, 10 * MIB);
    keep(53, 10 * MIB);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &written), 0);
    ck_assert_int_eq(try_write(written, 0, 8 * MIB), 8 * MIB);
    ck_assert(!is_here(50) && is_here(51) && is_here(53));
    EVENTUALLY(metric_get(M_evicted_pins) == before + 1); /* it is counted after the write has its room */
    struct cache_source src = put_object(&fx, "b", 8 * MIB, 2);
    src.pin = PIN_DISK; /* else its own chunks made room for its next ones */
    cf = open_object(&fx, 52, &src, 8 * MIB);
    ck_assert_int_lt(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(is_here(51) && is_here(53));
    ck_assert_int_eq(metric_get(M_evicted_pins), before + 1);
    cache_file_unref(cf);
    cache_file_unref(written);
}
END_TEST

struct replaced {
    struct cfile *cf;
    struct cache_source now;
    bool told; /* it is asked for; else it is told of it beside */
};

static int on_stale(void *ctx, uint64_t vid, uint64_t ino, const char *key, struct etag *ret_etag)
{
    const struct replaced *rp = ctx;
    if (!rp->told)
        cache_file_rebase(rp->cf, rp->now.key, &rp->now.etag);
    *ret_etag = rp->now.etag;
    return rp->told ? 0 : -ENOENT;
}

/* 0: a newer version of the file took the object's place; 1: it was renamed meanwhile; 2: somebody else replaced it. */
START_TEST(what_there_is_no_room_for_is_read_from_where_it_is_now)
{
    uint8_t buf[1000];
    fixture_stop(&fx);
    fx.cfg.size_bytes = KIB; /* nothing is kept */
    fixture_start(&fx);
    struct cache_source src = put_object(&fx, "a", MIB, 1);
    struct replaced rp = {.told = _i == 0};
    struct cfile *cf = open_object(&fx, 50, &src, MIB);
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof buf, 0), sizeof buf);
    assert_pattern(buf, sizeof buf, 0, 1);
    rp.now = put_object(&fx, _i == 1 ? "b" : "a", MIB, 2);
    rp.cf = cf;
    if (_i == 1)
        ck_assert_int_eq(objstore_delete(fx.store, "a", &(struct obj_cond){.kind = OBJ_COND_NONE}), 0);
    if (_i < 2)
        cache_on_stale(fx.cache, on_stale, &rp);
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof buf, 5000), _i < 2 ? (int)sizeof buf : -ESTALE);
    if (_i < 2)
        assert_pattern(buf, sizeof buf, 5000, 2);
    cache_file_unref(cf);
}
END_TEST

static void *read_some(void *arg)
{
    uint8_t buf[1000];
    ck_assert_int_eq(cache_file_read(arg, buf, sizeof buf, 5000), sizeof buf);
    assert_pattern(buf, sizeof buf, 5000, 2);
    return NULL;
}

START_TEST(a_failed_read_of_what_it_was_is_made_of_what_it_is)
{
    pthread_t t;
    fixture_stop(&fx);
    fx.cfg.size_bytes = KIB; /* nothing is kept */
    fixture_start(&fx);
    struct cache_source src = put_object(&fx, "a", MIB, 1), now = put_object(&fx, "b", MIB, 2);
    struct cfile *cf = open_object(&fx, 50, &src, MIB);
    fault(&fx, "op=get,key=a,action=delay:60s|error:-EIO");
    ck_assert_int_eq(pthread_create(&t, NULL, read_some, cf), 0);
    g_usleep(200000);
    cache_file_rebase(cf, now.key, &now.etag);
    fault(&fx, ""); /* the delay ends */
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache_room");
    TCase *t = tcase_create("room");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, pinned_file_in_use_loses_no_chunk);
    tcase_add_test(t, pinned_file_that_is_never_whole_keeps_a_window_only);
    tcase_add_test(t, filled_file_is_whole_though_chunks_were_taken_away_meanwhile);
    tcase_add_test(t, file_whose_chunks_go_as_fast_as_they_come_is_not_said_to_be_filled);
    tcase_add_test(t, write_without_room_takes_that_of_the_pinned_file_used_least_lately);
    tcase_add_test(t, pins_stay_where_uploads_make_room);
    tcase_add_test(t, fetch_without_room_leaves_pins_alone);
    tcase_add_loop_test(t, what_there_is_no_room_for_is_read_from_where_it_is_now, 0, 3);
    tcase_add_test(t, a_failed_read_of_what_it_was_is_made_of_what_it_is);
    suite_add_tcase(s, t);
    return run_suite(s);
}
