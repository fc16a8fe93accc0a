/* Patterns of reads and what is fetched ahead of them. */
#include "cache_readahead.h"
#include "tests/support/checks.h"

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

/* Large reads walking upwards with irregular gaps; returns what was fetched ahead. */
static uint64_t walk_upwards(struct readahead *ra, uint64_t gap_max, unsigned n)
{
    uint64_t off = 0, ahead = 0;
    srand(9);
    for (unsigned i = 0; i < n; i++) {
        ahead += readahead_note(ra, off, 512 * KIB, SIZE, CEILING).len;
        off += 512 * KIB +
               4 * KIB *
                   (33 + (uint64_t)rand() % (gap_max / (4 * KIB) - 33)); /* beyond what a sequential reader may skip */
    }
    return ahead;
}

START_TEST(mapping_walked_upwards_with_gaps_is_followed)
{
    struct readahead ra = {0};
    ck_assert_uint_ge(walk_upwards(&ra, 512 * KIB, 40), 16 * MIB);
}
END_TEST

START_TEST(wide_gaps_are_not_fetched)
{
    struct readahead ra = {0};
    ck_assert_uint_le(walk_upwards(&ra, 64 * MIB, 40), 2 * MIB);
}
END_TEST

START_TEST(random_large_reads_get_little)
{
    struct readahead ra = {0};
    uint64_t ahead = 0, read = 0;
    srand(4);
    for (unsigned i = 0; i < 1000; i++, read += MIB)
        ahead += readahead_note(&ra, (uint64_t)rand() % (SIZE / MIB) * MIB, MIB, SIZE, CEILING).len;
    ck_assert_uint_le(ahead, read / 2);
}
END_TEST

START_TEST(formats_read_whole_are_known_by_name)
{
    static const char *const whole[] = {
        "m/model-00001-of-00002.safetensors", "a.tar", "x.pt", "y.ckpt", "z.gguf", "tokens.bin", "w.npy"};
    static const char *const parts[] = {"t.parquet", "a.h5", "tar", "x.ptx", "dir.tar/x", "log.txt"};
    for (unsigned i = 0; i < G_N_ELEMENTS(whole); i++)
        ck_assert_msg(readahead_whole_by_name(whole[i]), "%s", whole[i]);
    for (unsigned i = 0; i < G_N_ELEMENTS(parts); i++)
        ck_assert_msg(!readahead_whole_by_name(parts[i]), "%s", parts[i]);
}
END_TEST

START_TEST(header_alone_does_not_take_the_whole_file)
{
    struct readahead ra = {.whole_by_name = true};
    (void)readahead_note(&ra, 0, MIB, SIZE, CEILING);
    (void)readahead_note(&ra, MIB, MIB, SIZE, CEILING);
    ck_assert(!readahead_take_all(&ra, SIZE));
    (void)readahead_note(&ra, SIZE / 2, 64 * KIB, SIZE, CEILING);
    ck_assert(readahead_take_all(&ra, SIZE));
    ck_assert_msg(!readahead_take_all(&ra, SIZE), "said once");
}
END_TEST

START_TEST(sequential_reader_of_a_good_part_takes_the_whole_file)
{
    struct readahead small = {0}, large = {0}, random = {0};
    uint64_t at_small = 0, at_large = 0;
    for (uint64_t off = 0; off < 64 * MIB && !at_small; off += MIB) {
        (void)readahead_note(&small, off, MIB, 64 * MIB, CEILING);
        at_small = readahead_take_all(&small, 64 * MIB) ? off : 0;
    }
    for (uint64_t off = 0; off < SIZE && !at_large; off += MIB) {
        (void)readahead_note(&large, off, MIB, SIZE, CEILING);
        at_large = readahead_take_all(&large, SIZE) ? off : 0;
    }
    ck_assert_uint_ge(at_small, 15 * MIB);
    ck_assert_uint_le(at_small, 18 * MIB);
    ck_assert_uint_ge(at_large, 63 * MIB);
    ck_assert_uint_le(at_large, 66 * MIB);
    srand(6);
    for (unsigned i = 0; i < 1000; i++) {
        (void)readahead_note(&random, (uint64_t)rand() % (SIZE / (64 * KIB)) * 64 * KIB, 64 * KIB, SIZE, CEILING);
        ck_assert(!readahead_take_all(&random, SIZE));
    }
}
END_TEST

START_TEST(window_follows_latency_and_bandwidth)
{
    struct ra_speed near = {0}, far = {0}, unknown = {0};
    for (unsigned i = 0; i < 8; i++) {
        ra_speed_note(&near, 1000000, 4000000, 8 * MIB, false);   /* 1 ms, 2 GB/s */
        ra_speed_note(&far, 100000000, 80000000, 8 * MIB, false); /* 100 ms, 100 MB/s */
    }
    ck_assert_uint_eq(ra_speed_window(&unknown, 16, 8 * MIB, 512 * MIB), 128 * MIB);
    ck_assert_uint_eq(ra_speed_window(&far, 16, 8 * MIB, 512 * MIB),
                      128 * MIB); /* every download busy with the largest GET */
    ck_assert_uint_eq(ra_speed_window(&far, 4, 8 * MIB, 512 * MIB), 32 * MIB);
    ck_assert_uint_eq(ra_speed_window(&far, 16, 8 * MIB, 64 * MIB), 64 * MIB);
    struct ra_speed lan = {.latency_ns = 1000000, .bytes_per_s = 200 * MIB};
    ck_assert_uint_lt(ra_speed_window(&lan, 16, 8 * MIB, 512 * MIB), 32 * MIB);
    ck_assert_uint_eq(ra_speed_window(&lan, 16, 8 * MIB, 0), 0);
}
END_TEST

START_TEST(window_shrinks_when_the_store_asks_to_slow_down)
{
    struct ra_speed sp = {.latency_ns = 30000000, .bytes_per_s = 100 * MIB};
    uint64_t full = ra_speed_window(&sp, 16, 8 * MIB, 64 * MIB), least = full;
    for (unsigned i = 0; i < 20; i++) {
        ra_speed_note(&sp, 900000000, 900000000, 8 * MIB, true);
        uint64_t now = ra_speed_window(&sp, 16, 8 * MIB, 64 * MIB);
        ck_assert_uint_le(now, least);
        least = now;
    }
    ck_assert_uint_eq(least, RA_FIRST_BYTES);
    for (unsigned i = 0; i < 100; i++)
        ra_speed_note(&sp, 30000000, 80000000, 8 * MIB, false);
    ck_assert_uint_eq(ra_speed_window(&sp, 16, 8 * MIB, 64 * MIB), full);
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
    tcase_add_test(tc, mapping_walked_upwards_with_gaps_is_followed);
    tcase_add_test(tc, wide_gaps_are_not_fetched);
    tcase_add_test(tc, random_large_reads_get_little);
    tcase_add_test(tc, formats_read_whole_are_known_by_name);
    tcase_add_test(tc, header_alone_does_not_take_the_whole_file);
    tcase_add_test(tc, sequential_reader_of_a_good_part_takes_the_whole_file);
    tcase_add_test(tc, window_follows_latency_and_bandwidth);
    tcase_add_test(tc, window_shrinks_when_the_store_asks_to_slow_down);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
