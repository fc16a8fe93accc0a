/* Part boundaries: doubling, limits, index and offset as inverses. */
#include "tests/support/checks.h"
#include "upload_layout.h"

#include <check.h>
#include <stdlib.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static const struct objstore_limits s3_limits = {
    .part_min_bytes = 5 * MIB,
    .part_max_bytes = 5 * GIB,
    .object_max_bytes = 48ull << 40,
    .parts_max = 10000,
};

START_TEST(parts_double_every_thousand)
{
    struct upload_layout l;
    upload_layout_init(&l, 8 * MIB, &s3_limits);
    ck_assert_uint_eq(upload_part_bytes(&l, 0), 8 * MIB);
    ck_assert_uint_eq(upload_part_bytes(&l, 999), 8 * MIB);
    ck_assert_uint_eq(upload_part_bytes(&l, 1000), 16 * MIB);
    ck_assert_uint_eq(upload_part_bytes(&l, 9999), 4 * GIB);
    ck_assert_uint_eq(upload_part_offset(&l, 0), 0);
    ck_assert_uint_eq(upload_part_offset(&l, 1000), 8000 * MIB);
    ck_assert_uint_eq(upload_part_offset(&l, 1001), 8016 * MIB);
}
END_TEST

START_TEST(offset_and_index_are_inverse)
{
    struct upload_layout l;
    upload_layout_init(&l, 8 * MIB, &s3_limits);
    for (uint32_t i = 0; i < 10000; i++) {
        uint64_t off = upload_part_offset(&l, i);
        ck_assert_uint_eq(upload_part_of(&l, off), i);
        ck_assert_uint_eq(upload_part_of(&l, off + upload_part_bytes(&l, i) - 1), i);
        ck_assert_uint_eq(upload_part_offset(&l, i + 1), off + upload_part_bytes(&l, i));
    }
}
END_TEST

START_TEST(part_size_stays_within_limits)
{
    struct upload_layout l;
    upload_layout_init(&l, 1 * MIB, &s3_limits);
    ck_assert_uint_eq(l.part_bytes, 5 * MIB);
    upload_layout_init(&l, 64 * GIB, &s3_limits);
    ck_assert_uint_eq(l.part_bytes, 5 * GIB);
    upload_layout_init(&l, 64 * MIB, &s3_limits);
    ck_assert_uint_eq(upload_part_bytes(&l, 6999), 4 * GIB);
    ck_assert_uint_eq(upload_part_bytes(&l, 7000), 5 * GIB);
    ck_assert_uint_eq(upload_part_bytes(&l, 9999), 5 * GIB);
}
END_TEST

START_TEST(last_part_is_what_is_left)
{
    struct upload_layout l;
    uint32_t n = 0;
    upload_layout_init(&l, 8 * MIB, &s3_limits);
    ck_assert_int_eq(upload_n_parts(&l, 8 * MIB, &n), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(upload_n_parts(&l, 8 * MIB + 1, &n), 0);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(upload_part_len(&l, 0, 8 * MIB + 1), 8 * MIB);
    ck_assert_uint_eq(upload_part_len(&l, 1, 8 * MIB + 1), 1);
    ck_assert_uint_eq(upload_part_len(&l, 2, 8 * MIB + 1), 0);
    ck_assert_int_eq(upload_n_parts(&l, 0, &n), 0);
    ck_assert_uint_eq(n, 1);
}
END_TEST

START_TEST(too_large_is_refused)
{
    struct upload_layout l;
    struct objstore_limits few = s3_limits;
    uint32_t n = 77;
    few.parts_max = 3;
    upload_layout_init(&l, 8 * MIB, &few);
    ck_assert_int_eq(upload_n_parts(&l, 24 * MIB, &n), 0);
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(upload_n_parts(&l, 24 * MIB + 1, &n), -EFBIG);
    ck_assert_uint_eq(n, 3);
    ck_assert_uint_eq(upload_part_of(&l, 24 * MIB), 3);
    upload_layout_init(&l, 8 * MIB, &s3_limits);
    ck_assert_int_eq(upload_n_parts(&l, INT64_MAX, &n), -EFBIG);
    few = s3_limits;
    few.object_max_bytes = 16 * MIB;
    upload_layout_init(&l, 8 * MIB, &few);
    ck_assert_int_eq(upload_n_parts(&l, 16 * MIB + 1, &n), -EFBIG);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("upload_layout");
    TCase *tc = tcase_create("layout");
    tcase_add_test(tc, parts_double_every_thousand);
    tcase_add_test(tc, offset_and_index_are_inverse);
    tcase_add_test(tc, part_size_stays_within_limits);
    tcase_add_test(tc, last_part_is_what_is_left);
    tcase_add_test(tc, too_large_is_refused);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
