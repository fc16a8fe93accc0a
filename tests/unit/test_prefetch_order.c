/* Which files are fetched ahead of whom. A directory of FILES files is simulated: what is asked for is here from then on. */
#include "prefetch_order.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define FILES 4000u
#define BYTES 100u

static struct order *o;
static struct order_counts counts;
static bool here[FILES], asked[FILES];
static unsigned n_asked, largest, n_ends; /* the last one: how often order_ends() told */
static struct order_beyond beyond;        /* that */

static void setup(void)
{
    memset(&counts, 0, sizeof counts);
    memset(here, 0, sizeof here);
    memset(asked, 0, sizeof asked);
    n_asked = largest = n_ends = 0;
    o = order_new(&counts);
}

static void teardown(void)
{
    order_free(o);
    ck_assert_uint_eq(counts.waiting_files, 0);
    ck_assert_uint_eq(counts.waiting_bytes, 0);
    ck_assert_uint_eq(counts.remembered, 0);
    ck_assert_uint_eq(counts.used_bytes, counts.used_files * BYTES);
    ck_assert_uint_eq(counts.wasted_bytes, counts.wasted_files * BYTES);
}

static uint64_t ino_of(unsigned i)
{
    return 100000 + 2 * i;
}
static uint64_t id_of(unsigned i)
{
    return 5000 + 2 * i;
}

static void answer(const struct order_next *next, bool arrive)
{
    struct order_item items[ORDER_WINDOW_MAX];
    unsigned n = 0;
    ck_assert_uint_le(next->want, ORDER_WINDOW_MAX);
    largest = MAX(largest, next->want);
    if (next->line == ORDER_LEARNED)
        n = order_learned(o, next->from, items, next->want);
    for (unsigned i = 0; next->line == ORDER_LISTED && i < FILES && n < next->want; i++)
        if (id_of(i) > next->from)
            items[n++] = (struct order_item){.ino = ino_of(i), .place = id_of(i)};
    for (unsigned i = 0; i < n; i++)
        items[i].bytes = here[(items[i].ino - 100000) / 2] ? 0 : BYTES;
    ck_assert(order_asked(o, next, items, n, false));
    n_ends += order_ends(o, next, n, &beyond);
    for (unsigned i = 0; i < n; i++) {
        unsigned file = (unsigned)(items[i].ino - 100000) / 2;
        if (!items[i].bytes)
            continue;
        ck_assert_msg(!asked[file], "%u asked for twice", file);
        asked[file] = true;
        here[file] = arrive;
        n_asked++;
    }
}

/* Opens file i: it had to wait unless it is here. fast: what is fetched ahead has arrived when its turn comes. */
static void open_file(unsigned i, bool fast)
{
    struct order_next next;
    bool more = order_note(o, ino_of(i), id_of(i), !here[i], &next);
    here[i] = true;
    if (more)
        answer(&next, fast);
}

START_TEST(one_or_two_opens_begin_nothing)
{
    open_file(7, true);
    open_file(8, true);
    ck_assert_uint_eq(n_asked, 0);
    open_file(9, true);
    ck_assert_uint_eq(n_asked, ORDER_WINDOW);
    ck_assert(asked[10] && asked[13] && !asked[14]);
}
END_TEST

START_TEST(every_file_of_a_pass_is_asked_for_once_and_used)
{
    for (unsigned i = 0; i < FILES; i++)
        open_file(i, true);
    ck_assert_uint_eq(n_asked, FILES - 3);
    ck_assert_uint_eq(counts.used_files, FILES - 3);
    ck_assert_uint_eq(counts.wasted_files, 0);
}
END_TEST

START_TEST(window_stays_small_while_files_come_in_time)
{
    for (unsigned i = 0; i < 500; i++)
        open_file(i, true);
    ck_assert_uint_le(largest, ORDER_WINDOW);
}
END_TEST

START_TEST(window_doubles_while_the_reader_has_to_wait)
{
    for (unsigned i = 0; i < 3000; i++)
        open_file(i, false);
    ck_assert_uint_ge(largest, 256);
    ck_assert_uint_le(counts.waiting_files, ORDER_WINDOW_MAX);
}
END_TEST

START_TEST(files_of_one_window_that_come_late_double_it_once)
{
    for (unsigned i = 0; i < 12; i++)
        open_file(i, false);
    ck_assert_uint_le(largest, 4 * ORDER_WINDOW);
    ck_assert_uint_ge(n_asked, 12 - 3);
}
END_TEST

START_TEST(warm_files_are_not_looked_at_again_and_again)
{
    memset(here, 1, sizeof here);
    unsigned asks = 0;
    struct order_next next;
    for (unsigned i = 0; i < FILES; i++)
        asks += order_note(o, ino_of(i), id_of(i), false, &next);
    ck_assert_uint_eq(asks, 0);
}
END_TEST

START_TEST(random_opens_fetch_next_to_nothing)
{
    srand(1);
    for (unsigned i = 0; i < FILES; i++)
        open_file((unsigned)rand() % FILES, true);
    ck_assert_uint_le(n_asked, FILES / 20);
}
END_TEST

START_TEST(random_opens_in_a_small_directory_fetch_little)
{
    srand(2);
    for (unsigned i = 0; i < 300; i++)
        open_file((unsigned)rand() % 400, true);
    ck_assert_uint_le(n_asked, 30);
}
END_TEST

START_TEST(readers_side_by_side_are_all_followed)
{
    for (unsigned i = 0; i < 400; i++)
        for (unsigned worker = 0; worker < 8; worker++)
            open_file(worker * 500 + i, true);
    ck_assert_uint_ge(counts.used_files, 8 * 390);
}
END_TEST

START_TEST(last_pass_is_followed_in_its_order)
{
    static unsigned order[FILES];
    for (unsigned i = 0; i < FILES; i++)
        order[i] = i * 1237 % FILES; /* every file once, no two neighbours */
    for (unsigned i = 0; i < FILES; i++)
        open_file(order[i], true);
    ck_assert_uint_eq(n_asked, 0);
    memset(here, 0, sizeof here); /* the cache was too small */
    for (unsigned i = 0; i < FILES; i++)
        open_file(order[i], true);
    ck_assert_uint_ge(counts.used_files, FILES - ORDER_STEPS - 2 * ORDER_WINDOW);
    ck_assert_uint_le(counts.wasted_files, ORDER_WINDOW);
}
END_TEST

START_TEST(what_is_passed_over_counts_as_wasted_and_ends_it)
{
    for (unsigned i = 0; i < 300; i++)
        open_file(i, false);
    ck_assert_uint_ge(largest, 64);
    ck_assert_uint_eq(counts.wasted_files, 0);
    for (unsigned i = 300; i < 1500; i += 10) /* nine of ten are passed over */
        open_file(i, true);
    ck_assert_uint_ge(counts.wasted_files, 50);
    unsigned before = n_asked;
    for (unsigned i = 1500; i < 3990; i += 10)
        open_file(i, true);
    ck_assert_uint_eq(n_asked, before);
}
END_TEST

START_TEST(a_broken_order_is_not_followed_on)
{
    for (unsigned i = 0; i < 100; i++)
        open_file(i, true);
    unsigned before = n_asked;
    srand(5);
    for (unsigned i = 0; i < 2000; i++)
        open_file(1000 + (unsigned)rand() % 3000, true);
    ck_assert_uint_le(n_asked - before, 150);
    ck_assert_uint_ge(counts.wasted_files, 1); /* what waited for the first reader is given up */
}
END_TEST

START_TEST(opened_again_at_once_is_no_new_pass)
{
    for (unsigned i = 0; i < 1000; i++) {
        open_file(i, true);
        open_file(i, true);
    }
    ck_assert_uint_eq(counts.remembered, 1000);
    ck_assert_uint_ge(counts.used_files, 990);
}
END_TEST

START_TEST(answer_to_a_reader_that_is_gone_is_refused)
{
    struct order_next next;
    struct order_item item = {.ino = ino_of(3), .place = id_of(3), .bytes = BYTES};
    open_file(0, true);
    open_file(1, true);
    ck_assert(order_note(o, ino_of(2), id_of(2), true, &next));
    order_give_up(o);
    ck_assert(!order_asked(o, &next, &item, 1, false));
    ck_assert_uint_eq(counts.waiting_files, 0);
}
END_TEST

START_TEST(no_room_at_the_moment_is_asked_again)
{
    struct order_next next;
    open_file(0, true);
    open_file(1, true);
    ck_assert(order_note(o, ino_of(2), id_of(2), true, &next));
    ck_assert(order_asked(o, &next, NULL, 0, true));
    ck_assert(order_note(o, ino_of(3), id_of(3), false, &next));
    ck_assert(order_asked(o, &next, NULL, 0, false)); /* the end */
    ck_assert(!order_note(o, ino_of(4), id_of(4), false, &next));
}
END_TEST

START_TEST(opened_while_the_files_were_picked_is_not_fetched_ahead)
{
    struct order_next next, more;
    struct order_item items[ORDER_WINDOW];
    open_file(0, true);
    open_file(1, true);
    ck_assert(order_note(o, ino_of(2), id_of(2), true, &next));
    for (unsigned i = 0; i < ORDER_WINDOW; i++)
        items[i] = (struct order_item){.ino = ino_of(3 + i), .place = id_of(3 + i), .bytes = BYTES};
    ck_assert(!order_note(o, ino_of(3), id_of(3), true, &more));
    ck_assert(order_asked(o, &next, items, ORDER_WINDOW, false));
    ck_assert_uint_eq(items[0].bytes, 0);
    ck_assert_uint_eq(items[1].bytes, BYTES);
    for (unsigned i = 4; i < 200; i++)
        open_file(i, true);
    ck_assert_uint_eq(counts.wasted_files, 0);
}
END_TEST

START_TEST(end_of_the_directory_is_told_once)
{
    for (unsigned i = 0; i < FILES - ORDER_WINDOW - 1; i++)
        open_file(i, true);
    ck_assert_uint_eq(n_ends, 0);
    for (unsigned i = FILES - ORDER_WINDOW - 1; i < FILES; i++)
        open_file(i, true);
    ck_assert_uint_eq(n_ends, 1);
    ck_assert_uint_ge(beyond.want, 1);
    ck_assert(!beyond.sure);
    ck_assert_uint_eq(beyond.window, ORDER_WINDOW);
}
END_TEST

START_TEST(first_window_is_small_whatever_the_reader_had)
{
    for (unsigned i = 0; i < FILES; i++)
        open_file(i, false);
    ck_assert_uint_ge(largest, 8 * ORDER_WINDOW);
    ck_assert_uint_eq(n_ends, 1);
    ck_assert_uint_eq(beyond.window, ORDER_WINDOW);
}
END_TEST

#define FIRST 40u

static bool expect_reader(unsigned n, unsigned with_window)
{
    struct order_item items[FIRST];
    for (unsigned i = 0; i < n; i++)
        items[i] = (struct order_item){.ino = ino_of(i), .place = id_of(i), .bytes = BYTES};
    if (!order_expect(o, items, n, with_window))
        return false;
    memset(here, 1, n);
    return true;
}

START_TEST(expected_reader_waits_for_nothing_and_goes_on_with_its_window)
{
    ck_assert(expect_reader(FIRST, 2 * FIRST));
    ck_assert_uint_eq(counts.waiting_files, FIRST);
    open_file(0, true);
    ck_assert_uint_eq(n_asked, FIRST + 1);
    for (unsigned i = 1; i < FILES; i++)
        open_file(i, true);
    ck_assert_uint_eq(n_asked, FILES - FIRST);
    ck_assert_uint_eq(counts.used_files, FILES);
    ck_assert_uint_eq(counts.wasted_files, 0);
    ck_assert_uint_eq(n_ends, 1);
    ck_assert_uint_eq(beyond.window, 2 * FIRST);
}
END_TEST

START_TEST(reader_that_was_invited_is_sure_to_go_on)
{
    open_file(5, true);
    order_invite(o); /* not that one: it is here already */
    open_file(6, true);
    open_file(2000, true);
    ck_assert_uint_eq(n_asked, 0);
    open_file(2001, true);
    ck_assert_uint_eq(n_asked, ORDER_WINDOW); /* one open earlier than others */
    open_file(1000, true);
    open_file(1001, true);
    ck_assert_uint_eq(n_asked, ORDER_WINDOW); /* only one was invited */
    for (unsigned i = 2002; i < FILES; i++)
        open_file(i, false);
    ck_assert_uint_eq(n_ends, 1);
    ck_assert(beyond.sure);
    ck_assert_uint_gt(beyond.window, ORDER_WINDOW);
}
END_TEST

START_TEST(reader_is_expected_once)
{
    ck_assert(expect_reader(FIRST, FIRST));
    ck_assert(!expect_reader(FIRST, FIRST));
    ck_assert_uint_eq(counts.waiting_files, FIRST);
    open_file(0, true);
    ck_assert(expect_reader(FIRST, FIRST)); /* another one */
    ck_assert_uint_eq(counts.used_files, 1);
    order_give_up(o);
    ck_assert_uint_eq(counts.wasted_files, counts.waiting_files + n_asked + FIRST - 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("prefetch_order");
    TCase *tc = tcase_create("order");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, one_or_two_opens_begin_nothing);
    tcase_add_test(tc, every_file_of_a_pass_is_asked_for_once_and_used);
    tcase_add_test(tc, window_stays_small_while_files_come_in_time);
    tcase_add_test(tc, window_doubles_while_the_reader_has_to_wait);
    tcase_add_test(tc, files_of_one_window_that_come_late_double_it_once);
    tcase_add_test(tc, warm_files_are_not_looked_at_again_and_again);
    tcase_add_test(tc, random_opens_fetch_next_to_nothing);
    tcase_add_test(tc, random_opens_in_a_small_directory_fetch_little);
    tcase_add_test(tc, readers_side_by_side_are_all_followed);
    tcase_add_test(tc, last_pass_is_followed_in_its_order);
    tcase_add_test(tc, what_is_passed_over_counts_as_wasted_and_ends_it);
    tcase_add_test(tc, a_broken_order_is_not_followed_on);
    tcase_add_test(tc, opened_again_at_once_is_no_new_pass);
    tcase_add_test(tc, answer_to_a_reader_that_is_gone_is_refused);
    tcase_add_test(tc, no_room_at_the_moment_is_asked_again);
    tcase_add_test(tc, opened_while_the_files_were_picked_is_not_fetched_ahead);
    tcase_add_test(tc, end_of_the_directory_is_told_once);
    tcase_add_test(tc, first_window_is_small_whatever_the_reader_had);
    tcase_add_test(tc, expected_reader_waits_for_nothing_and_goes_on_with_its_window);
    tcase_add_test(tc, reader_that_was_invited_is_sure_to_go_on);
    tcase_add_test(tc, reader_is_expected_once);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
