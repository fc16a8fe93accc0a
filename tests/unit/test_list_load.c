/* When the store lists too slowly for the TTL, over made-up times; and what a look into a directory waits for then, over a lake in a folder, without FUSE. */
#include "fs/list_load.h"
#include "fs/tree.h"
#include "fs/tree_list.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>

#define N_DIRS 12u
#define TTL_NS (10 * NS_PER_S)
#define LATE_S 60u

/* ---- the level ---- */

/* For so long each period lists `dirs` directories, one after the other. The time then. */
static uint64_t list_for(struct list_load *load, uint64_t now, uint64_t seconds, unsigned dirs, uint64_t took,
                         uint64_t ttl)
{
    uint64_t end = now + seconds * NS_PER_S;
    while (now < end) {
        uint64_t began = now;
        for (unsigned d = 0; d < dirs; d++) {
            now += took;
            list_load_add(load, now, took, ttl);
        }
        now = MAX(now, began + ttl + took);
    }
    return now;
}

START_TEST(few_directories_are_never_too_many)
{
    static const uint64_t ttls[] = {NS_PER_S / 5, NS_PER_S, 4 * NS_PER_S, 60 * NS_PER_S};
    for (unsigned t = 0; t < G_N_ELEMENTS(ttls); t++)
        for (uint64_t took = NS_PER_MS; took < 100 * NS_PER_S; took *= 3)
            for (unsigned dirs = 1; dirs <= 2; dirs++) {
                struct list_load load = {0};
                uint64_t now = list_for(&load, NS_PER_S, 600, dirs, took, ttls[t]);
                ck_assert_uint_eq(list_load_late_ns(&load, now), 0);
            }
}
END_TEST

START_TEST(quick_store_keeps_up_with_many)
{
    struct list_load load = {0};
    uint64_t now = list_for(&load, 1, 600, 200, 2 * NS_PER_MS, NS_PER_S);
    ck_assert_uint_eq(list_load_late_ns(&load, now), 0);
}
END_TEST

START_TEST(burst_is_waited_for)
{
    struct list_load load = {0};
    for (unsigned i = 0; i < 20; i++)
        list_load_add(&load, NS_PER_S, 100 * NS_PER_MS, 60 * NS_PER_S);
    ck_assert_uint_eq(list_load_late_ns(&load, NS_PER_S), 0);
    list_load_add(&load, NS_PER_S, 100 * NS_PER_MS, 60 * NS_PER_S);
    ck_assert_uint_eq(list_load_late_ns(&load, NS_PER_S), NS_PER_S);
}
END_TEST

START_TEST(slow_store_does_not_keep_up_with_many_and_it_ends)
{
    struct list_load load = {0};
    uint64_t now = list_for(&load, 1, 30, 200, 40 * NS_PER_MS, NS_PER_S);
    ck_assert_uint_gt(list_load_late_ns(&load, now), LATE_S / 2 * NS_PER_S);
    now = list_for(&load, now, 600, 200, 40 * NS_PER_MS, NS_PER_S);
    ck_assert_uint_le(list_load_late_ns(&load, now), LATE_S * NS_PER_S); /* whatever there is */
    ck_assert_uint_gt(list_load_late_ns(&load, now + 6 * NS_PER_S), 0);
    ck_assert_uint_eq(list_load_late_ns(&load, now + 12 * NS_PER_S), 0);
    ck_assert_uint_eq(list_load_late_ns(&load, now + 3600 * NS_PER_S), 0);
}
END_TEST

/* ---- what a look waits for ---- */

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.metadata_ttl_ns = TTL_NS;
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void object(unsigned d, const char *name)
{
    g_autofree char *key = g_strdup_printf("set/dir%02u/%s", d, name);
    fs_fixture_object(&fx, key, "x", 1);
}

static struct inode *dir_of(unsigned d)
{
    g_autofree char *path = g_strdup_printf("set/dir%02u", d);
    return fs_fixture_inode(&fx, path);
}

static bool has(struct inode *dir, const char *name)
{
    struct inode *in = NULL;
    int r = tree_lookup_in(fx.fs, dir, name, &in);
    ck_assert(r == 0 || r == -ENOENT);
    inode_put(r == 0 ? in : NULL);
    return r == 0;
}

static void settle(struct inode *dir)
{
    while (tree_list_running(fx.fs, dir->ino))
        g_usleep(1000);
}

static struct inode *dirs[N_DIRS];

/* Each directory is listed by itself, since there is one below. */
static void open_lake(void)
{
    for (unsigned d = 0; d < N_DIRS; d++) {
        object(d, "known");
        object(d, "below/name");
    }
    fs_fixture_open(&fx);
    for (unsigned d = 0; d < N_DIRS; d++) {
        dirs[d] = dir_of(d);
        ck_assert(has(dirs[d], "known"));
        settle(dirs[d]);
    }
}

static void close_lake(void)
{
    for (unsigned d = 0; d < N_DIRS; d++) {
        settle(dirs[d]);
        inode_put(dirs[d]);
    }
}

static void overload(void)
{
    mutex_lock(&fx.fs->list_mu);
    for (unsigned i = 0; i < 1000; i++)
        list_load_add(&fx.fs->list_load, clock_mono_ns(), NS_PER_S, 3600 * NS_PER_S);
    mutex_unlock(&fx.fs->list_mu);
    ck_assert_uint_gt(tree_names_late_ns(fx.fs), LATE_S / 2 * NS_PER_S);
}

static uint64_t level(void)
{
    mutex_lock(&fx.fs->list_mu);
    uint64_t ns = fx.fs->list_load.level_ns;
    mutex_unlock(&fx.fs->list_mu);
    return ns;
}

/* The load is that of before. */
static void age(uint64_t seconds)
{
    clock_fake_advance(seconds * NS_PER_S);
    mutex_lock(&fx.fs->list_mu);
    fx.fs->list_load.as_of_ns = clock_mono_ns();
    mutex_unlock(&fx.fs->list_mu);
}

static void slow_lists(void)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=delay:300ms"), 0);
}

/* So that looks at what is under way come in time. */
static void very_slow_lists(void)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=delay:3s"), 0);
}

START_TEST(known_names_serve_while_they_are_listed)
{
    open_lake();
    object(3, "new");
    age(11);
    overload();
    very_slow_lists();
    ck_assert(has(dirs[3], "known"));
    ck_assert(tree_list_running(fx.fs, dirs[3]->ino));
    ck_assert(!has(dirs[3], "new"));
    settle(dirs[3]);
    ck_assert(has(dirs[3], "new"));
    close_lake();
}
END_TEST

START_TEST(few_are_listed_behind_at_a_time)
{
    open_lake();
    age(11);
    overload();
    very_slow_lists();
    int64_t before = metric_get(M_list_refreshes);
    for (unsigned d = 0; d < N_DIRS; d++)
        ck_assert(has(dirs[d], "known"));
    unsigned running = 0;
    for (unsigned d = 0; d < N_DIRS; d++)
        running += tree_list_running(fx.fs, dirs[d]->ino);
    ck_assert_uint_ge(running, 1);
    ck_assert_uint_le(running, 4);
    close_lake();
    ck_assert_int_le(metric_get(M_list_refreshes) - before, 4); /* nobody asked again */
}
END_TEST

START_TEST(nothing_is_late_while_the_store_keeps_up)
{
    open_lake();
    object(3, "new");
    age(11);
    ck_assert(has(dirs[3], "new"));
    close_lake();
}
END_TEST

START_TEST(names_are_never_later_than_that)
{
    open_lake();
    object(3, "new");
    object(4, "new");
    age(LATE_S - 5);
    overload();
    slow_lists();
    ck_assert(!has(dirs[3], "new"));
    age(6);
    overload();
    ck_assert(has(dirs[4], "new"));
    close_lake();
}
END_TEST

START_TEST(who_asks_for_names_as_of_now_waits)
{
    open_lake();
    object(3, "new");
    object(4, "new");
    age(11);
    overload();
    slow_lists();
    ck_assert_int_eq(tree_refresh(fx.fs, dirs[3], false), 0);
    ck_assert(has(dirs[3], "new"));
    ck_assert_int_eq(tree_refresh(fx.fs, dirs[4], true), 0);
    ck_assert(has(dirs[4], "new"));
    close_lake();
}
END_TEST

START_TEST(paths_that_commands_name_are_as_of_now)
{
    open_lake();
    object(3, "new");
    age(11);
    overload();
    slow_lists();
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, "set/dir03/new", &in), 0);
    close_lake();
}
END_TEST

START_TEST(doubted_listings_are_waited_for)
{
    open_lake();
    object(3, "new");
    age(11);
    overload();
    atomic_store(&fx.fs->doubt_ns, clock_wall_ns());
    slow_lists();
    ck_assert(has(dirs[3], "new"));
    close_lake();
}
END_TEST

START_TEST(first_listing_is_waited_for)
{
    fs_fixture_object(&fx, "other/known", "x", 1);
    open_lake();
    overload();
    INODE_REF other = fs_fixture_inode(&fx, "other");
    ck_assert(has(other, "known"));
    close_lake();
}
END_TEST

START_TEST(without_a_ttl_each_look_waits)
{
    fx.cfg.metadata_ttl_ns = 0;
    open_lake();
    object(3, "new");
    overload();
    slow_lists();
    ck_assert(has(dirs[3], "new"));
    close_lake();
}
END_TEST

/* Of a listing that was there before this mount. */
START_TEST(immutable_names_are_as_of_the_mount)
{
    open_lake();
    close_lake();
    fs_fixture_close(&fx);
    object(3, "new");
    fx.cfg.immutable = true;
    fs_fixture_open(&fx);
    mutex_lock(&fx.fs->list_mu);
    for (unsigned i = 0; i < 1000; i++)
        list_load_add(&fx.fs->list_load, clock_mono_ns(), NS_PER_S, 3600 * NS_PER_S);
    mutex_unlock(&fx.fs->list_mu);
    ck_assert_uint_eq(tree_names_late_ns(fx.fs), 0);
    INODE_REF dir = dir_of(3);
    ck_assert(has(dir, "new"));
}
END_TEST

/* ---- which listings count ---- */

START_TEST(only_listings_of_names_out_of_date_count)
{
    open_lake();
    ck_assert_uint_eq(level(), 0); /* first ones */
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=delay:20ms"), 0);
    ck_assert_int_eq(tree_refresh(fx.fs, dirs[3], true), 0); /* is not out of date */
    settle(dirs[3]);
    ck_assert_uint_eq(level(), 0);
    age(11);
    ck_assert(has(dirs[3], "known"));
    settle(dirs[3]);
    while (level() == 0)
        g_usleep(1000);
    ck_assert_uint_ge(level(), 20 * NS_PER_MS);
    close_lake();
}
END_TEST

START_TEST(failed_listings_do_not_count)
{
    open_lake();
    age(11);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=delay:20ms|error:-EIO"), 0);
    for (unsigned d = 0; d < N_DIRS; d++) {
        ck_assert(has(dirs[d], "known"));
        settle(dirs[d]);
    }
    g_usleep(20000);
    ck_assert_uint_eq(level(), 0);
    close_lake();
}
END_TEST

/* ---- a store that does not answer ---- */

static unsigned in_vain(void)
{
    mutex_lock(&fx.fs->list_mu);
    unsigned n = fx.fs->list_load.n_in_vain;
    mutex_unlock(&fx.fs->list_mu);
    return n;
}

static unsigned n_jobs(void)
{
    mutex_lock(&fx.fs->list_mu);
    unsigned n = fx.fs->list_load.n_jobs;
    mutex_unlock(&fx.fs->list_mu);
    return n;
}

START_TEST(silent_store_is_waited_for_once)
{
    open_lake();
    object(3, "new");
    age(11);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=delay:3600s"), 0);
    for (unsigned i = 0; i < 3 * N_DIRS; i++)
        ck_assert(has(dirs[i % N_DIRS], "known"));
    ck_assert_uint_eq(in_vain(), 1);
    ck_assert_uint_le(n_jobs(), 5);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
    for (unsigned d = 0; d < N_DIRS; d++)
        settle(dirs[d]);
    ck_assert(has(dirs[3], "new"));
    age(11);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=delay:3600s"), 0);
    ck_assert(has(dirs[5], "known")); /* it answered in between */
    ck_assert_uint_eq(in_vain(), 2);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
    close_lake();
}
END_TEST

static void *look(void *dir)
{
    ck_assert(has(dir, "known"));
    return NULL;
}

START_TEST(store_that_lists_other_directories_is_not_silent)
{
    open_lake();
    object(3, "new");
    age(11);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,nth=1,action=delay:3600s"), 0);
    GThread *thread = g_thread_new("look", look, dirs[5]);
    EVENTUALLY(tree_list_running(fx.fs, dirs[5]->ino));
    ck_assert_int_eq(tree_refresh(fx.fs, dirs[1], true), 0);
    (void)g_thread_join(thread);
    ck_assert_uint_eq(in_vain(), 1);
    ck_assert(has(dirs[3], "new"));
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    close_lake();
}
END_TEST

START_TEST(without_a_ttl_each_look_waits_for_a_silent_store)
{
    fx.cfg.metadata_ttl_ns = 0;
    open_lake();
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=delay:3600s"), 0);
    ck_assert(has(dirs[3], "known"));
    ck_assert(has(dirs[5], "known"));
    ck_assert_uint_eq(in_vain(), 2);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    close_lake();
}
END_TEST

int main(void)
{
    TCase *level_tc = tcase_create("level"), *tc = tcase_create("serve");
    tcase_add_test(level_tc, few_directories_are_never_too_many);
    tcase_add_test(level_tc, quick_store_keeps_up_with_many);
    tcase_add_test(level_tc, burst_is_waited_for);
    tcase_add_test(level_tc, slow_store_does_not_keep_up_with_many_and_it_ends);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, known_names_serve_while_they_are_listed);
    tcase_add_test(tc, few_are_listed_behind_at_a_time);
    tcase_add_test(tc, nothing_is_late_while_the_store_keeps_up);
    tcase_add_test(tc, names_are_never_later_than_that);
    tcase_add_test(tc, who_asks_for_names_as_of_now_waits);
    tcase_add_test(tc, paths_that_commands_name_are_as_of_now);
    tcase_add_test(tc, doubted_listings_are_waited_for);
    tcase_add_test(tc, first_listing_is_waited_for);
    tcase_add_test(tc, without_a_ttl_each_look_waits);
    tcase_add_test(tc, immutable_names_are_as_of_the_mount);
    tcase_add_test(tc, only_listings_of_names_out_of_date_count);
    tcase_add_test(tc, failed_listings_do_not_count);
    tcase_add_test(tc, silent_store_is_waited_for_once);
    tcase_add_test(tc, store_that_lists_other_directories_is_not_silent);
    tcase_add_test(tc, without_a_ttl_each_look_waits_for_a_silent_store);
    Suite *s = suite_create("list_load");
    suite_add_tcase(s, level_tc);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
