/*
 * Pieces of `sluice bench`: wrong bytes are seen, threads make each call once, and errors and interruptions end a job.
 */
#include "base/clock.h"
#include "tests/support/checks.h"
#include "tools/bench.h"

#include <check.h>
#include <glib.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES (BENCH_BLOCK + 3 * BENCH_PAGE + 1234)

/* The file as the benchmark writes it, in blocks of a MiB. */
static uint8_t *file_of(const struct bench_data *d, uint64_t file)
{
    uint8_t *copy = bench_data_copy(d), *bytes = g_malloc(FILE_BYTES);
    for (uint64_t off = 0; off < FILE_BYTES; off += BENCH_BLOCK) {
        uint64_t len = MIN(BENCH_BLOCK, FILE_BYTES - off);
        bench_data_stamp(d, copy, file, off, len);
        memcpy(bytes + off, copy, len);
    }
    g_free(copy);
    return bytes;
}

START_TEST(bytes_are_those_of_their_file_and_place)
{
    struct bench_data d;
    ck_assert_int_eq(bench_data_init(&d), 0);
    g_autofree uint8_t *bytes = file_of(&d, 7);
    for (int all = 0; all < 2; all++) {
        ck_assert_int_eq(bench_data_check(&d, bytes, 7, 0, FILE_BYTES, all), 0);
        ck_assert_int_eq(bench_data_check(&d, bytes + BENCH_PAGE, 7, BENCH_PAGE, 2 * BENCH_PAGE, all), 0);
        ck_assert_int_eq(bench_data_check(&d, bytes, 8, 0, BENCH_PAGE, all), -EBADMSG);
        ck_assert_int_eq(bench_data_check(&d, bytes, 7, BENCH_BLOCK, BENCH_PAGE, all), -EBADMSG);
        ck_assert_int_eq(bench_data_check(&d, bytes + BENCH_PAGE, 7, 0, BENCH_PAGE, all), -EBADMSG);
    }
    g_free(d.block);
}
END_TEST

START_TEST(a_changed_byte_is_seen)
{
    struct bench_data d;
    ck_assert_int_eq(bench_data_init(&d), 0);
    g_autofree uint8_t *bytes = file_of(&d, 0);
    bytes[FILE_BYTES - 1] ^= 1; /* in the short page at the end */
    ck_assert_int_eq(bench_data_check(&d, bytes, 0, 0, FILE_BYTES, false), 0);
    ck_assert_int_eq(bench_data_check(&d, bytes, 0, 0, FILE_BYTES, true), -EBADMSG);
    bytes[BENCH_BLOCK + BENCH_PAGE] ^= 1;
    ck_assert_int_eq(bench_data_check(&d, bytes, 0, 0, FILE_BYTES, false), -EBADMSG);
    g_free(d.block);
}
END_TEST

#define N_CALLS   1000
#define N_THREADS 4

struct calls {
    atomic_uint n_made[N_CALLS];
    uint64_t fails_at;
    bool interrupt;
};

static int call(void *ctx, unsigned thread, uint64_t i)
{
    struct calls *c = ctx;
    if (c->interrupt)
        (void)usleep(1000); /* N_CALLS of them outlast the interruption */
    ck_assert_uint_lt(thread, N_THREADS);
    atomic_fetch_add(&c->n_made[i], 1);
    return i == c->fails_at ? -ENOSPC : 0;
}

static bool watch(void *ctx, uint64_t n_done)
{
    struct calls *c = ctx;
    return c->interrupt;
}

static int run(struct calls *c, struct bench_row *row)
{
    const struct bench_job job = {
        .name = "calls", .call = call, .watch = watch, .ctx = c, .n_calls = N_CALLS, .threads = N_THREADS};
    return bench_run(&job, row);
}

START_TEST(each_call_is_made_once)
{
    struct calls c = {.fails_at = N_CALLS};
    struct bench_row row = {0};
    ck_assert_int_eq(run(&c, &row), 0);
    for (unsigned i = 0; i < N_CALLS; i++)
        ck_assert_uint_eq(atomic_load(&c.n_made[i]), 1);
    ck_assert_str_eq(row.op, "calls");
    ck_assert_uint_eq(row.threads, N_THREADS);
    ck_assert_uint_eq(row.n_ops, N_CALLS);
    ck_assert_uint_le(row.p50_ns, row.p99_ns);
    ck_assert_uint_le(row.p99_ns, row.elapsed_ns);
}
END_TEST

START_TEST(a_failed_call_and_an_interruption_end_the_job)
{
    struct calls failing = {.fails_at = 10}, interrupted = {.fails_at = N_CALLS, .interrupt = true};
    struct bench_row row = {0};
    ck_assert_int_eq(run(&failing, &row), -ENOSPC);
    ck_assert_int_eq(run(&interrupted, &row), -EINTR);
    ck_assert_uint_eq(atomic_load(&interrupted.n_made[N_CALLS - 1]), 0);
    ck_assert_uint_eq(row.n_ops, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("bench");
    TCase *tc = tcase_create("core");
    tcase_add_test(tc, bytes_are_those_of_their_file_and_place);
    tcase_add_test(tc, a_changed_byte_is_seen);
    tcase_add_test(tc, each_call_is_made_once);
    tcase_add_test(tc, a_failed_call_and_an_interruption_end_the_job);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
