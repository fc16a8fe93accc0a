/* For which newer names rules of `sluice pin --latest` let older ones go. Over a lake in a folder, without FUSE. */
#include "pin_fixture.h"

START_TEST(rule_lets_an_older_one_go_when_the_newer_one_is_in_the_store)
{
    fx.cfg.fault = g_strdup("op=put,nth=1000000,action=error:-EIO"); /* none yet */
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, NULL), 0);
    write_step(1);
    settle_published();
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=put,action=error:-EIO"), 0);
    write_step(2);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, NULL), 0);
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=put,nth=1000000,action=error:-EIO"), 0);
    settle_published();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
}
END_TEST

START_TEST(rule_of_an_earlier_start_lets_go_when_something_is_published)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, NULL), 0);
    write_step(1);
    settle_published();
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    write_step(2);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    fs_fixture_start(&fx);
    settle_published();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
}
END_TEST

START_TEST(rule_lets_nothing_go_for_an_empty_directory)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK, NULL), 0);
    fs_fixture_write(&fx, "ckpt/step_1/rank0", "a", 1);
    settle_published();
    fs_fixture_write(&fx, "ckpt/step_2/rank0", "b", 1);
    INODE_REF dir = fs_fixture_inode(&fx, "ckpt/step_2");
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "rank0"), 0);
    settle_published();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_1/rank0"));
    fs_fixture_write(&fx, "ckpt/step_2/rank0", "c", 1);
    settle_published();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_2/rank0"));
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step_1/rank0"));
}
END_TEST

/* Or one rule would fetch all of them. */
START_TEST(rule_counts_directories_of_which_only_the_name_is_known)
{
    put_aged("ckpt/step_1/x", 300);
    put_aged("ckpt/step_2/deep/x", 200);
    put_aged("ckpt/step_3/deep/x", 100);
    fs_fixture_open(&fx);
    list_again("ckpt");
    list_again("ckpt/step_2");
    list_again("ckpt/step_3");
    g_autoptr(GPtrArray) pinned = g_ptr_array_new_with_free_func(g_free);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK, pinned), 0);
    ck_assert_uint_eq(pinned->len, 1);
    settle();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pin_safe");
    TCase *tc = tcase_create("pin_safe");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, rule_lets_an_older_one_go_when_the_newer_one_is_in_the_store);
    tcase_add_test(tc, rule_of_an_earlier_start_lets_go_when_something_is_published);
    tcase_add_test(tc, rule_lets_nothing_go_for_an_empty_directory);
    tcase_add_test(tc, rule_counts_directories_of_which_only_the_name_is_known);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
