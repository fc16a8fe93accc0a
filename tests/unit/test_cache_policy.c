/* Hit rates of the replacement on simulated traces. */
#include "cache_policy.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>

#define CAPACITY 1000u
#define WEIGHT   10u /* 100 files fit */

struct sim {
    struct policy p;
    GHashTable *resident; /* id -> item */
    uint64_t used;
};

static void sim_init(struct sim *s)
{
    policy_init(&s->p, CAPACITY);
    s->resident = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    s->used = 0;
}

static void sim_fini(struct sim *s)
{
    GHashTableIter it;
    void *item;
    g_hash_table_iter_init(&it, s->resident);
    while (g_hash_table_iter_next(&it, NULL, &item))
        policy_remove(&s->p, item, false);
    ck_assert_uint_eq(s->p.hot_bytes, 0);
    ck_assert_uint_eq(s->p.cold.length, 0);
    policy_fini(&s->p);
    g_hash_table_unref(s->resident);
}

static void make_room(struct sim *s, uint64_t weight)
{
    while (s->used + weight > CAPACITY) {
        struct policy_item *v = policy_victim(&s->p);
        ck_assert_ptr_nonnull(v);
        ck_assert(!v->held);
        s->used -= v->weight;
        policy_remove(&s->p, v, true);
        g_hash_table_remove(s->resident, &v->id);
    }
}

/* One use of file id; true when it was there. */
static bool sim_use(struct sim *s, uint64_t id, uint64_t weight)
{
    struct policy_item *item = g_hash_table_lookup(s->resident, &id);
    if (item) {
        policy_use(&s->p, item);
        return true;
    }
    make_room(s, weight);
    item = g_new0(struct policy_item, 1);
    item->id = id;
    g_hash_table_insert(s->resident, &item->id, item);
    policy_insert(&s->p, item, weight);
    s->used += weight;
    ck_assert_uint_le(s->p.hot_bytes, s->p.hot_max);
    return false;
}

static unsigned pass(struct sim *s, uint64_t first, unsigned n)
{
    unsigned hits = 0;
    for (unsigned i = 0; i < n; i++)
        hits += sim_use(s, first + i, WEIGHT);
    return hits;
}

START_TEST(cyclic_pass_over_twice_the_cache_keeps_forty_percent)
{
    struct sim s;
    sim_init(&s);
    pass(&s, 1, 200);
    for (unsigned epoch = 0; epoch < 5; epoch++)
        ck_assert_uint_ge(pass(&s, 1, 200), 80);
    sim_fini(&s);
}
END_TEST

START_TEST(shuffled_epochs_over_twice_the_cache_keep_forty_percent)
{
    struct sim s;
    uint64_t ids[200];
    unsigned hits = 0;
    sim_init(&s);
    srand(1);
    for (unsigned i = 0; i < 200; i++)
        ids[i] = i + 1;
    for (unsigned epoch = 0; epoch < 6; epoch++) {
        for (unsigned i = 199; i > 0; i--) {
            unsigned j = (unsigned)rand() % (i + 1);
            uint64_t t = ids[i];
            ids[i] = ids[j];
            ids[j] = t;
        }
        for (unsigned i = 0; i < 200; i++)
            hits += sim_use(&s, ids[i], WEIGHT) && epoch > 0;
    }
    ck_assert_uint_ge(hits, 5 * 80);
    sim_fini(&s);
}
END_TEST

START_TEST(one_time_scan_does_not_flush_the_hot_set)
{
    struct sim s;
    sim_init(&s);
    for (unsigned i = 0; i < 4; i++)
        pass(&s, 1, 80);
    pass(&s, 1000, 5000);
    ck_assert_uint_ge(pass(&s, 1, 80), 75);
    sim_fini(&s);
}
END_TEST

START_TEST(new_working_set_takes_over)
{
    struct sim s;
    sim_init(&s);
    for (unsigned i = 0; i < 5; i++)
        pass(&s, 1, 80);
    for (unsigned i = 0; i < 8; i++)
        pass(&s, 1000, 80);
    ck_assert_uint_ge(pass(&s, 1000, 80), 75);
    sim_fini(&s);
}
END_TEST

START_TEST(few_large_files_keep_some_of_a_cycle)
{
    struct sim s;
    unsigned hits = 0;
    sim_init(&s);
    for (unsigned i = 0; i < 60; i++)
        hits += sim_use(&s, 1 + i % 6, 300); /* 3 of 6 fit */
    ck_assert_uint_ge(hits, 15);
    sim_fini(&s);
}
END_TEST

START_TEST(held_files_are_never_chosen)
{
    struct sim s;
    sim_init(&s);
    pass(&s, 1, 100);
    for (uint64_t id = 1; id <= 50; id++)
        policy_set_held(&s.p, g_hash_table_lookup(s.resident, &id), true);
    pass(&s, 1000, 500);
    for (uint64_t id = 1; id <= 50; id++) {
        struct policy_item *item = g_hash_table_lookup(s.resident, &id);
        ck_assert_ptr_nonnull(item);
        policy_set_held(&s.p, item, false);
    }
    sim_fini(&s);
}
END_TEST

START_TEST(nothing_to_choose_when_all_are_held)
{
    struct sim s;
    sim_init(&s);
    pass(&s, 1, 100);
    for (uint64_t id = 1; id <= 100; id++)
        policy_set_held(&s.p, g_hash_table_lookup(s.resident, &id), true);
    ck_assert_ptr_null(policy_victim(&s.p));
    sim_fini(&s);
}
END_TEST

START_TEST(growing_newcomer_does_not_push_out_proven_files)
{
    struct sim s;
    struct policy_item grows = {.id = 5000};
    sim_init(&s);
    for (unsigned i = 0; i < 3; i++)
        pass(&s, 1, 50);
    policy_insert(&s.p, &grows, 0);
    for (uint64_t w = 0; w <= 800; w += 50)
        policy_set_weight(&s.p, &grows, w);
    for (uint64_t id = 1; id <= 50; id++)
        ck_assert(((struct policy_item *)g_hash_table_lookup(s.resident, &id))->hot);
    ck_assert(!grows.hot);
    policy_remove(&s.p, &grows, false);
    sim_fini(&s);
}
END_TEST

START_TEST(order_survives_a_restart)
{
    struct policy p;
    struct policy_item items[3] = {{.id = 1}, {.id = 2}, {.id = 3}};
    policy_init(&p, CAPACITY);
    policy_restore(&p, &items[0], 100, true);
    policy_restore(&p, &items[1], 100, false);
    policy_restore(&p, &items[2], 100, false);
    ck_assert_uint_eq(policy_victim(&p)->id, 2);
    policy_remove(&p, &items[1], true);
    ck_assert_uint_eq(policy_victim(&p)->id, 3);
    policy_remove(&p, &items[2], true);
    ck_assert_uint_eq(policy_victim(&p)->id, 1);
    policy_remove(&p, &items[0], true);
    policy_fini(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_policy");
    TCase *tc = tcase_create("policy");
    tcase_add_test(tc, cyclic_pass_over_twice_the_cache_keeps_forty_percent);
    tcase_add_test(tc, shuffled_epochs_over_twice_the_cache_keep_forty_percent);
    tcase_add_test(tc, one_time_scan_does_not_flush_the_hot_set);
    tcase_add_test(tc, new_working_set_takes_over);
    tcase_add_test(tc, few_large_files_keep_some_of_a_cycle);
    tcase_add_test(tc, held_files_are_never_chosen);
    tcase_add_test(tc, nothing_to_choose_when_all_are_held);
    tcase_add_test(tc, growing_newcomer_does_not_push_out_proven_files);
    tcase_add_test(tc, order_survives_a_restart);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
