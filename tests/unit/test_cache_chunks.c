/* Chunk sets against a plain array of booleans, and their form in segments. */
#include "cache_chunks.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>

#define N 9000u

START_TEST(set_behaves_like_an_array_of_booleans)
{
    struct chunkset s = {0};
    g_autofree bool *model = g_new0(bool, N);
    srand(7);
    for (unsigned round = 0; round < 400; round++) {
        uint64_t first = (uint64_t)rand() % N, n = (uint64_t)rand() % (N - first) / (round % 2 ? 1 : 50);
        bool on = rand() % 2;
        if (on)
            chunkset_set(&s, first, n);
        else
            chunkset_unset(&s, first, n);
        for (uint64_t i = first; i < first + n; i++)
            model[i] = on;
        uint64_t a = (uint64_t)rand() % N, b = a + (uint64_t)rand() % (N - a), count = 0, set = b, unset = b, all = 0;
        for (uint64_t i = b; i-- > a;) {
            count += model[i];
            if (model[i])
                set = i;
            else
                unset = i;
        }
        for (uint64_t i = 0; i < N; i++)
            all += model[i];
        ck_assert_uint_eq(chunkset_count(&s, a, b - a), count);
        ck_assert_uint_eq(chunkset_next_set(&s, a, b), set);
        ck_assert_uint_eq(chunkset_next_unset(&s, a, b), unset);
        ck_assert_uint_eq(chunkset_any(&s, a, b - a), count > 0);
        ck_assert_uint_eq(s.n_set, all);
        ck_assert_uint_eq(chunkset_get(&s, a), model[a]);
    }
    chunkset_clear(&s);
}
END_TEST

START_TEST(unset_far_beyond_the_end_is_harmless)
{
    struct chunkset s = {0};
    chunkset_set(&s, 3, 2);
    chunkset_unset(&s, 4, UINT64_MAX / 2);
    ck_assert(chunkset_get(&s, 3));
    ck_assert(!chunkset_get(&s, 4));
    ck_assert_uint_eq(chunkset_next_unset(&s, 3, 1000), 4);
    chunkset_clear(&s);
}
END_TEST

START_TEST(segments_round_trip)
{
    struct chunkset present = {0}, dirty = {0}, p2 = {0}, d2 = {0};
    struct meta_segment seg;
    srand(9);
    for (unsigned i = 0; i < 300; i++) {
        chunkset_set(&present, (uint64_t)rand() % (3 * META_SEGMENT_CHUNKS), 1);
        chunkset_set(&dirty, (uint64_t)rand() % (3 * META_SEGMENT_CHUNKS), 1);
    }
    for (uint64_t at = 0; at < 3 * META_SEGMENT_CHUNKS;
         at += 311) /* runs within words, over their edges, of whole ones */
        chunkset_set(&dirty, at, at % 200);
    chunkset_set(&p2, META_SEGMENT_CHUNKS, 100); /* decoding replaces what was there */
    for (uint32_t i = 0; i < 3; i++) {
        chunks_encode_segment(&present, &dirty, i, &seg);
        chunks_decode_segment(&seg, i, &p2, &d2);
    }
    for (uint64_t i = 0; i < 3 * META_SEGMENT_CHUNKS; i++) {
        ck_assert_uint_eq(chunkset_get(&present, i), chunkset_get(&p2, i));
        ck_assert_uint_eq(chunkset_get(&dirty, i), chunkset_get(&d2, i));
    }
    ck_assert_uint_eq(chunkset_count(&dirty, 0, UINT64_MAX / 2), chunkset_count(&d2, 0, UINT64_MAX / 2));
    chunkset_clear(&present);
    chunkset_clear(&dirty);
    chunkset_clear(&p2);
    chunkset_clear(&d2);
}
END_TEST

START_TEST(segment_bits_are_bytes_with_the_lowest_first)
{
    struct chunkset present = {0}, dirty = {0};
    struct meta_segment seg;
    chunkset_set(&present, META_SEGMENT_CHUNKS + 9, 1);
    chunks_encode_segment(&present, &dirty, 1, &seg);
    ck_assert_uint_eq(seg.present[1], 2);
    ck_assert_uint_eq(seg.present[0], 0);
    ck_assert_uint_eq(seg.dirty[1], 0);
    chunkset_clear(&present);
}
END_TEST

START_TEST(chunk_counts_round_up)
{
    ck_assert_uint_eq(chunks_for(0), 0);
    ck_assert_uint_eq(chunks_for(1), 1);
    ck_assert_uint_eq(chunks_for(META_CHUNK_BYTES), 1);
    ck_assert_uint_eq(chunks_for(META_CHUNK_BYTES + 1), 2);
    ck_assert_uint_eq(chunk_of(META_CHUNK_BYTES - 1), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_chunks");
    TCase *tc = tcase_create("chunks");
    tcase_add_test(tc, set_behaves_like_an_array_of_booleans);
    tcase_add_test(tc, unset_far_beyond_the_end_is_harmless);
    tcase_add_test(tc, segments_round_trip);
    tcase_add_test(tc, segment_bits_are_bytes_with_the_lowest_first);
    tcase_add_test(tc, chunk_counts_round_up);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
