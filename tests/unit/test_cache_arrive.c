/* How long bytes that came from the store are gathered before they are written. */
#include "cache/cache_fetch.h"
#include "cache/cache_file.h"
#include "cache_fixture.h"

#include <pthread.h>

#define PIECE ((size_t)META_CHUNK_BYTES)
#define SIZE  (4 * MIB)

static struct fixture fx;
static struct cfile *cf;

static void setup(void)
{
    fixture_init(&fx, 64 * MIB);
    struct cache_source src = put_object(&fx, "a", SIZE, 3);
    cf = open_object(&fx, 300, &src, SIZE);
}

static void teardown(void)
{
    cache_file_unref(cf);
    fixture_fini(&fx);
}

/* A piece comes when the first one that is gathered has been here for that long. */
static void piece(struct fetch *f, uint64_t age_ns)
{
    g_autofree uint8_t *buf = g_malloc(PIECE);
    uint64_t off = f->arrival.next;
    pattern(buf, PIECE, off, 3);
    if (f->arrival.len)
        f->arrival.since_ns = clock_mono_ns() - age_ns;
    ck_assert_int_eq(fetch_on_body(f, off, buf, PIECE), 0);
}

START_TEST(pieces_are_gathered_for_as_long_as_nobody_waits)
{
    struct fetch f = {.cf = cf, .prio = FETCH_AHEAD, .end = SIZE / PIECE, .cut_bytes = SIZE, .move_gen = cf->move_gen};
    ck_assert_int_eq(arrival_begin(&f.arrival, 0, SIZE), 0);
    piece(&f, 0);
    piece(&f, 10 * NS_PER_MS);
    ck_assert_uint_eq(f.done_bytes, 0);
    f.n_waiting = 1;
    piece(&f, 10 * NS_PER_MS);
    ck_assert_uint_eq(f.done_bytes, 3 * PIECE);
    f.n_waiting = 0;
    piece(&f, 0);
    piece(&f, 200 * NS_PER_MS);
    ck_assert_uint_eq(f.done_bytes, 5 * PIECE);
    while (f.arrival.next < MIB)
        piece(&f, 0);
    ck_assert_uint_eq(f.done_bytes, MIB); /* aligned, so that the page cache has it in large folios */
    arrival_end(&f.arrival);
}
END_TEST

static void *read_first(void *arg)
{
    uint8_t buf[100];
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof(buf), 0), sizeof(buf));
    assert_pattern(buf, sizeof(buf), 0, 3);
    return NULL;
}

static unsigned n_waiting(void)
{
    mutex_lock(&cf->mu);
    const struct fetch *f = fetch_find_locked(cf, 0);
    unsigned n = f ? __atomic_load_n(&f->n_waiting, __ATOMIC_RELAXED) : 0;
    mutex_unlock(&cf->mu);
    return n;
}

static void *fill_all(void *arg)
{
    ck_assert_int_eq(cache_file_fill(cf, false, true, NULL, NULL), 0);
    return NULL;
}

/* Readers; who has the whole file made complete is in no hurry. */
START_TEST(readers_that_wait_are_counted)
{
    pthread_t one, other, filler;
    fault(&fx, "op=get,action=delay:60s");
    ck_assert_int_eq(pthread_create(&one, NULL, read_first, NULL), 0);
    ck_assert_int_eq(pthread_create(&other, NULL, read_first, NULL), 0);
    ck_assert_int_eq(pthread_create(&filler, NULL, fill_all, NULL), 0);
    EVENTUALLY(n_waiting() == 2);
    mutex_lock(&cf->mu);
    struct fetch *f = fetch_find_locked(cf, 0);
    ck_assert_ptr_nonnull(f);
    f->refs++;
    mutex_unlock(&cf->mu);
    fault(&fx, "");
    ck_assert_int_eq(pthread_join(one, NULL), 0);
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    ck_assert_int_eq(pthread_join(filler, NULL), 0);
    mutex_lock(&cf->mu);
    ck_assert_uint_eq(__atomic_load_n(&f->n_waiting, __ATOMIC_RELAXED), 0);
    fetch_unref_locked(f);
    mutex_unlock(&cf->mu);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache_arrive");
    TCase *t = tcase_create("arrive");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, pieces_are_gathered_for_as_long_as_nobody_waits);
    tcase_add_test(t, readers_that_wait_are_counted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
