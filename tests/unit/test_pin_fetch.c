/* How much is held in memory of what pins want to have here. Over a lake in a folder, without FUSE. */
#include "fs/jobs.h"
#include "fs/pin.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static guint size_of(GHashTable *of_jobs)
{
    mutex_lock(&fx.fs->jobs->mu);
    guint n = g_hash_table_size(of_jobs);
    mutex_unlock(&fx.fs->jobs->mu);
    return n;
}

START_TEST(what_a_listing_finds_in_a_large_directory_is_not_held_in_memory)
{
    const unsigned n_files = 200;
    fx.cfg.fault = g_strdup("op=head,nth=1000000,action=error:-EIO"); /* none yet */
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    for (unsigned i = 0; i < n_files; i++) {
        g_autofree char *key = g_strdup_printf("d/f%u", i);
        fs_fixture_object(&fx, key, "1", 1);
    }
    fault("op=get,action=delay:3600s");
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    EVENTUALLY(size_of(fx.fs->jobs->fetching) > 0);
    EVENTUALLY(workq_load(fx.fs->jobs->pin_q) == 0);
    ck_assert_uint_lt(size_of(fx.fs->jobs->fetching), 30);
    ck_assert_uint_lt(size_of(fx.fs->jobs->to_fetch), 30);
    fault("op=head,nth=1000000,action=error:-EIO");
    EVENTUALLY(fs_fixture_cached(&fx, "d/f0") == 1);
    EVENTUALLY(fs_fixture_cached(&fx, "d/f199") == 1);
}
END_TEST

START_TEST(paths_to_fetch_are_taken_in_batches)
{
    const unsigned batch = 65536, n_paths = batch + 10;
    g_autoptr(GPtrArray) paths = g_ptr_array_new_with_free_func(g_free);
    fx.cfg.fault = g_strdup("op=list,action=delay:3600s");
    fs_fixture_open(&fx);
    for (unsigned i = 0; i < n_paths; i++)
        g_ptr_array_add(paths, g_strdup_printf("f%u", i));
    g_ptr_array_add(paths, NULL);
    pin_fetch(fx.fs, (const char *const *)paths->pdata);
    ck_assert_uint_eq(size_of(fx.fs->jobs->fetching), batch);
    ck_assert_uint_eq(size_of(fx.fs->jobs->to_fetch), n_paths - batch);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("pin_fetch");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 100);
    tcase_add_test(tc, what_a_listing_finds_in_a_large_directory_is_not_held_in_memory);
    tcase_add_test(tc, paths_to_fetch_are_taken_in_batches);
    Suite *s = suite_create("pin_fetch");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
