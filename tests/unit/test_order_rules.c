/* The order of publishing that a rule says for its paths, over a lake in a folder, without FUSE. */
#include "order_fixture.h"

/* What is held back, ever so long, shows who waits. */
START_TEST(order_is_what_the_rule_of_a_path_says)
{
    fs_fixture_close(&fx);
    fx.cfg.order = _i == 0 ? ORDER_NONE : ORDER_MOUNT;
    fx.cfg.rule = g_strdup("all/**=order=mount\nnear/**=order=ancestor\nfree/**=order=none");
    fs_fixture_open(&fx);
    close_file("near/deep/first.tmp");
    close_file("near/second");
    close_file("near/apart/third");
    close_file("all/fourth");
    close_file("free/fifth");
    close_file("sixth");
    assert_waits("near/second", "near/deep/first.tmp");
    assert_waits("near/apart/third", "(nothing)");
    assert_waits("all/fourth", "near/deep/first.tmp");
    assert_waits("free/fifth", "(nothing)");
    assert_waits("sixth", _i == 0 ? "(nothing)" : "near/deep/first.tmp");
    fs_fixture_start(&fx);
    EVENTUALLY(fs_fixture_object_exists(&fx, "near/apart/third"));
    EVENTUALLY(fs_fixture_object_exists(&fx, "free/fifth"));
    ck_assert(!fs_fixture_object_exists(&fx, "near/second"));
    ck_assert(!fs_fixture_object_exists(&fx, "all/fourth"));
    move("near/deep/first.tmp", "near/deep/first");
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(fs_fixture_object_exists(&fx, "near/second"));
    ck_assert(fs_fixture_object_exists(&fx, "all/fourth"));
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("order_rules");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, order_is_what_the_rule_of_a_path_says, 0, 2);
    Suite *s = suite_create("order_rules");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
