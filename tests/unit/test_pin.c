/* Pins and pin rules over a lake in a folder, without FUSE. */
#include "fs/jobs.h"
#include "fs/pin.h"
#include "fs/tree.h"
#include "fs/warm.h"
#include "fs_fixture.h"

#include <check.h>
#include <stdlib.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

/* Lets rules noted so far be looked at and what they fetch arrive. */
static void settle(void)
{
    uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
    while (workq_load(fx.fs->jobs->pin_q) > 0) {
        ck_assert_uint_lt(clock_mono_ns(), deadline);
        g_usleep(1000);
    }
    g_autoptr(GPtrArray) list = warm_list(fx.fs);
    for (unsigned i = 0; i < list->len; i++)
        while (!warm_wait(list->pdata[i], clock_mono_ns() + NS_PER_S))
            ck_assert_uint_lt(clock_mono_ns(), deadline);
}

static void write_step(unsigned step)
{
    g_autofree char *path = g_strdup_printf("ckpt/step%u.pt", step);
    fs_fixture_write(&fx, path, path, strlen(path));
    g_usleep(2000); /* a later mtime than the one before */
}

START_TEST(pinned_directory_pins_everything_below)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_object(&fx, "d/e/b", "2", 1);
    fs_fixture_object(&fx, "f", "3", 1);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(tree_refresh_all(fx.fs, dir, false), 0);
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    ck_assert(fs_fixture_pinned(&fx, "d"));
    ck_assert(fs_fixture_pinned(&fx, "d/a"));
    ck_assert(fs_fixture_pinned(&fx, "d/e/b"));
    ck_assert(!fs_fixture_pinned(&fx, "f"));
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_NONE), 0);
    ck_assert(!fs_fixture_pinned(&fx, "d/e/b"));
}
END_TEST

START_TEST(pin_survives_a_restart)
{
    fs_fixture_object(&fx, "a", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "a");
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_DISK), 0);
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert(fs_fixture_pinned(&fx, "a"));
}
END_TEST

START_TEST(fetched_file_of_a_pinned_inode_counts_as_pinned_bytes)
{
    fs_fixture_object(&fx, "a", "12345", 5);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "a");
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_DISK), 0);
    pin_fetch(fx.fs, (const char *const[]){"a", NULL});
    settle();
    struct cache_usage u = {0};
    for (unsigned i = 0; i < 2000 && u.pinned_bytes == 0; i++) { /* charged after the reader was woken */
        g_usleep(1000);
        cache_usage(fx.fs->cache, &u);
    }
    ck_assert_uint_gt(u.pinned_bytes, 0);
    ck_assert_int_eq(cache_evict(fx.fs->cache, in->rec.vid), -EBUSY);
}
END_TEST

START_TEST(rule_pins_the_newest_and_unpins_the_others)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 2, PIN_DISK), 0);
    for (unsigned i = 1; i <= 4; i++) {
        write_step(i);
        settle();
        g_autofree char *path = g_strdup_printf("ckpt/step%u.pt", i);
        ck_assert_msg(fs_fixture_pinned(&fx, path), "%s", path);
    }
    fs_fixture_write(&fx, "ckpt/latest", "x", 1);
    settle();
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step3.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step4.pt"));
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/latest"));
}
END_TEST

START_TEST(rule_applies_to_a_file_renamed_into_place)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK), 0);
    fs_fixture_write(&fx, "ckpt/step1.pt.tmp", "x", 1);
    INODE_REF dir = fs_fixture_inode(&fx, "ckpt");
    ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "step1.pt.tmp", dir->ino, "step1.pt", 0), 0);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
}
END_TEST

START_TEST(rule_fetches_what_is_absent)
{
    fs_fixture_object(&fx, "ckpt/step1.pt", "1", 1);
    g_usleep(2000);
    fs_fixture_object(&fx, "ckpt/step2.pt", "22", 2);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "ckpt");
    ck_assert_int_eq(tree_refresh(fx.fs, dir, false), 0);
    g_autoptr(GPtrArray) pinned = g_ptr_array_new_with_free_func(g_free);
    ck_assert_int_eq(pin_rule_apply(fx.fs, "ckpt/*.pt", 1, PIN_DISK, pinned), 0);
    settle();
    ck_assert_uint_eq(pinned->len, 1);
    ck_assert_str_eq(pinned->pdata[0], "ckpt/step2.pt");
    ck_assert_uint_eq(fs_fixture_cached(&fx, "ckpt/step2.pt"), 2);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "ckpt/step1.pt"), 0);
}
END_TEST

START_TEST(rule_over_directories_pins_what_is_in_them)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK), 0);
    fs_fixture_write(&fx, "ckpt/step_1/rank0", "a", 1);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_1/rank0"));
    g_usleep(2000);
    fs_fixture_write(&fx, "ckpt/step_2/rank0", "b", 1);
    settle();
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step_1/rank0"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_2/rank0"));
}
END_TEST

START_TEST(rule_that_is_removed_unpins_its_files)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 3, PIN_DISK), 0);
    write_step(1);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 0, PIN_DISK), 0);
    ck_assert_int_eq(pin_rule_apply(fx.fs, "ckpt/*.pt", 0, PIN_DISK, NULL), 0);
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 0, PIN_DISK), -ENOENT);
}
END_TEST

START_TEST(rule_with_wildcards_in_the_folder_is_refused)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "run*/x.pt", 1, PIN_DISK), -EINVAL);
    ck_assert_int_eq(pin_rule_set(fx.fs, "run/", 1, PIN_DISK), -EINVAL);
}
END_TEST

START_TEST(file_that_appears_in_a_pinned_directory_is_pinned)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    fs_fixture_write(&fx, "d/new", "2", 1);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "d/new"));
}
END_TEST

START_TEST(only_the_last_component_makes_a_glob)
{
    ck_assert(pin_is_glob("a/*.pt"));
    ck_assert(pin_is_glob("step?"));
    ck_assert(!pin_is_glob("a/b.pt"));
    ck_assert(!pin_is_glob("a*/b.pt"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pin");
    TCase *tc = tcase_create("pin");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, pinned_directory_pins_everything_below);
    tcase_add_test(tc, pin_survives_a_restart);
    tcase_add_test(tc, fetched_file_of_a_pinned_inode_counts_as_pinned_bytes);
    tcase_add_test(tc, rule_pins_the_newest_and_unpins_the_others);
    tcase_add_test(tc, rule_applies_to_a_file_renamed_into_place);
    tcase_add_test(tc, rule_fetches_what_is_absent);
    tcase_add_test(tc, rule_over_directories_pins_what_is_in_them);
    tcase_add_test(tc, rule_that_is_removed_unpins_its_files);
    tcase_add_test(tc, rule_with_wildcards_in_the_folder_is_refused);
    tcase_add_test(tc, file_that_appears_in_a_pinned_directory_is_pinned);
    tcase_add_test(tc, only_the_last_component_makes_a_glob);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
