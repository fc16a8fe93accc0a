/* Patterns of reads and what is fetched ahead of them. */
#include "cache_readahead.h"

#include <check.h>
#include <glib.h>
#include <stdlib.h>

#define KIB     1024ull
#define MIB     (1024ull * KIB)
#define SIZE    (4096 * MIB)
#define CEILING (64 * MIB)

START_TEST(sequential_window_grows_to_the_ceiling)
{
    struct readahead ra = {0};
    uint64_t largest = 0, ahead = 0;
    for (uint64_t off = 0; off < 512 * MIB; off += 128 * KIB) {
        struct ra_advice a = readahead_note(&ra, off, 128 * KIB, SIZE, CEILING);
        if (a.len) {
            if (ahead)
                ck_assert_uint_eq(a.off, ahead); /* no gap, nothing twice */
            ahead = a.off + a.len;
        }
        largest = MAX(largest, ahead > off ? ahead - off : 0);
    }
    ck_assert_uint_ge(largest, CEILING / 2);
    ck_assert_uint_le(largest, CEILING + MIB);
}
END_TEST

START_TEST(first_window_is_one_mebibyte)
{
    struct readahead ra = {0};
    (void)readahead_note(&ra, 0, 128 * KIB, SIZE, CEILING);
    struct ra_advice a = readahead_note(&ra, 128 * KIB, 128 * KIB, SIZE, CEILING);
    ck_assert(a.sequential);
    ck_assert_uint_eq(a.off, 256 * KIB);
    ck_assert_uint_eq(a.len, RA_FIRST_BYTES);
}
END_TEST

START_TEST(nothing_is_fetched_past_the_end)
{
    struct readahead ra = {0};
    (void)readahead_note(&ra, 0, 128 * KIB, 300 * KIB, CEILING);
    struct ra_advice a = readahead_note(&ra, 128 * KIB, 128 * KIB, 300 * KIB, CEILING);
    ck_assert_uint_eq(a.off + a.len, 300 * KIB);
}
END_TEST

START_TEST(random_reads_get_little)
{
    struct readahead ra = {0};
    uint64_t ahead = 0;
    srand(3);
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t off = (uint64_t)rand() % (64 * MIB / (64 * KIB)) * 64 * KIB;
        ahead += readahead_note(&ra, off, 64 * KIB, 64 * MIB, CEILING).len;
    }
    ck_assert_uint_le(ahead, 1000 * 64 * KIB); /* at most what was read itself */
}
END_TEST

START_TEST(interleaved_sequential_readers_are_all_recognised)
{
    struct readahead ra = {0};
    unsigned sequential[8] = {0};
    for (unsigned round = 0; round < 16; round++) {
        for (unsigned reader = 0; reader < 8; reader++) {
            uint64_t off = reader * 500 * MIB + round * 128 * KIB;
            sequential[reader] += readahead_note(&ra, off, 128 * KIB, SIZE, CEILING).sequential;
        }
    }
    for (unsigned reader = 0; reader < 8; reader++)
        ck_assert_uint_ge(sequential[reader], 14);
}
END_TEST

START_TEST(swapped_neighbours_do_not_break_a_stream)
{
    struct readahead ra = {0};
    static const unsigned order[] = {0, 1, 2, 4, 3, 5, 7, 6, 8, 9};
    unsigned sequential = 0;
    for (unsigned i = 0; i < G_N_ELEMENTS(order); i++)
        sequential += readahead_note(&ra, order[i] * 128 * KIB, 128 * KIB, SIZE, CEILING).sequential;
    ck_assert_uint_ge(sequential, 8);
}
END_TEST

START_TEST(strided_reads_are_followed_two_steps_ahead)
{
    struct readahead ra = {0};
    struct ra_advice a = {0};
    for (unsigned i = 0; i < 6; i++)
        a = readahead_note(&ra, i * 10 * MIB, 64 * KIB, SIZE, CEILING);
    ck_assert(!a.sequential);
    ck_assert_uint_eq(a.off, 70 * MIB);
    ck_assert_uint_eq(a.len, 64 * KIB);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_readahead");
    TCase *tc = tcase_create("readahead");
    tcase_add_test(tc, sequential_window_grows_to_the_ceiling);
    tcase_add_test(tc, first_window_is_one_mebibyte);
    tcase_add_test(tc, nothing_is_fetched_past_the_end);
    tcase_add_test(tc, random_reads_get_little);
    tcase_add_test(tc, interleaved_sequential_readers_are_all_recognised);
    tcase_add_test(tc, swapped_neighbours_do_not_break_a_stream);
    tcase_add_test(tc, strided_reads_are_followed_two_steps_ahead);
    suite_add_tcase(suite, tc);
    SRunner *sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
