/* What is kept of inodes that only the kernel knows: the number itself, and little beside it. */
#include "lookups.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib.h>
#include <malloc.h>
#include <stdlib.h>

#define MANY 1000000u

static struct lookups *l;

static void setup(void)
{
    l = lookups_new();
}

static void teardown(void)
{
    lookups_free(l);
}

START_TEST(each_number_has_its_own)
{
    static const uint64_t inos[] = {1, 255, 256, 257, 511, 512, 1ull << 32, (1ull << 62) + 5};
    for (unsigned i = 0; i < G_N_ELEMENTS(inos); i++)
        lookups_set(l, inos[i], i + 2);
    for (unsigned i = 0; i < G_N_ELEMENTS(inos); i++)
        ck_assert_uint_eq(lookups_get(l, inos[i]), i + 2);
    ck_assert_uint_eq(lookups_get(l, 2), 0);
    ck_assert_uint_eq(lookups_get(l, 1000), 0);
    lookups_set(l, 256, 0);
    lookups_set(l, 1000, 0);
    ck_assert_uint_eq(lookups_get(l, 256), 0);
    ck_assert_uint_eq(lookups_get(l, 257), 5);
}
END_TEST

START_TEST(many_lookups_of_one_are_all_counted)
{
    static const uint64_t counts[] = {254, 255, 256, 100000, 1ull << 40, 255, 254, 3};
    lookups_set(l, 71, 9);
    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++) {
        lookups_set(l, 70, counts[i]);
        ck_assert_uint_eq(lookups_get(l, 70), counts[i]);
        ck_assert_uint_eq(lookups_get(l, 71), 9);
    }
    lookups_set(l, 70, 1000);
    lookups_set(l, 70, 0);
    ck_assert_uint_eq(lookups_get(l, 70), 0);
    lookups_set(l, 70, 255);
    ck_assert_uint_eq(lookups_get(l, 70), 255);
}
END_TEST

static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2(); /* of a sanitizer's allocator: zeros */
    return m.uordblks + m.hblkhd;
}

/* Files of one listing: every other number. */
START_TEST(a_million_take_a_few_bytes_each)
{
    size_t before = heap_bytes();
    for (uint64_t i = 0; i < MANY; i++)
        lookups_set(l, 5000000 + 2 * i, 2);
    ck_assert_uint_le(heap_bytes(), before + 4 * MANY);
    for (uint64_t i = 0; i < MANY / 10; i++)
        lookups_set(l, 5000000 + 2 * i, 1000);
    for (uint64_t i = 0; i < MANY; i++)
        lookups_set(l, 5000000 + 2 * i, 0);
    ck_assert_uint_le(heap_bytes(), before + MANY / 4);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("lookups");
    TCase *tc = tcase_create("lookups");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_number_has_its_own);
    tcase_add_test(tc, many_lookups_of_one_are_all_counted);
    tcase_add_test(tc, a_million_take_a_few_bytes_each);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
