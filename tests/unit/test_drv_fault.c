/* Rules of the fault driver: which calls they hit, and what those meet. */
#include "objstore_fixture.h"
#include "tests/support/checks.h"

#include <pthread.h>

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(st, rules), 0);
}

START_TEST(fault_hits_the_nth_calls_only)
{
    struct obj_info info = {0};
    setup(DRIVER_FAULT);
    put("k", "v");
    fault("op=head,nth=2,count=2,action=error:-EIO");
    const int want[] = {0, -EIO, -EIO, 0};
    for (size_t i = 0; i < G_N_ELEMENTS(want); i++)
        ck_assert_int_eq(objstore_head(st, "k", &info), want[i]);
    assert_content("k", "v");
    teardown();
}
END_TEST

START_TEST(fault_hits_calls_for_its_key_only)
{
    struct obj_info info = {0};
    setup(DRIVER_FAULT);
    put("k", "v");
    put("l", "v");
    fault("op=head,key=l,nth=2,action=error:-EIO;op=copy,key=l,action=error:-EPERM");
    const char *const keys[] = {"l", "k", "l", "l"};
    const int want[] = {0, 0, -EIO, 0};
    for (size_t i = 0; i < G_N_ELEMENTS(want); i++)
        ck_assert_int_eq(objstore_head(st, keys[i], &info), want[i]);
    ck_assert_int_eq(objstore_copy(st, "l", NULL, "m", NULL, NULL, NULL), 0);
    ck_assert_int_eq(objstore_copy(st, "k", NULL, "l", NULL, NULL, NULL), -EPERM);
    teardown();
}
END_TEST

START_TEST(fault_short_and_corrupt_change_what_a_get_gives)
{
    g_autoptr(GString) out = g_string_new(NULL);
    setup(DRIVER_FAULT);
    put("k", "0123456789");
    fault("op=get,nth=1,action=short:4;op=get,nth=2,action=corrupt:1");
    ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL), -EIO);
    ck_assert_str_eq(out->str, "0123");
    assert_content("k", "0023456789");
    assert_content("k", "0123456789");
    teardown();
}
END_TEST

START_TEST(fault_lost_reply_leaves_the_object)
{
    setup(DRIVER_FAULT);
    fault("op=put,action=lost:-EIO,nth=1");
    ck_assert_int_eq(objstore_put(st, "k", "v", 1, NULL, NULL, NULL), -EIO);
    assert_content("k", "v");
    teardown();
}
END_TEST

START_TEST(fault_delay_waits)
{
    struct obj_info info = {0};
    setup(DRIVER_FAULT);
    put("k", "v");
    fault("op=any,action=delay:60ms");
    uint64_t from = clock_mono_ns();
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert_uint_ge(clock_mono_ns() - from, 60 * NS_PER_MS);
    fault("");
    teardown();
}
END_TEST

static void *clear_rules(void *arg)
{
    (void)arg;
    g_usleep(50000);
    fault("");
    return NULL;
}

START_TEST(fault_delay_ends_with_its_rules)
{
    struct obj_info info = {0};
    pthread_t t;
    setup(DRIVER_FAULT);
    put("k", "v");
    fault("op=head,action=delay:300s|error:-EIO");
    ck_assert_int_eq(pthread_create(&t, NULL, clear_rules, NULL), 0);
    ck_assert_int_eq(objstore_head(st, "k", &info), -EIO);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    teardown();
}
END_TEST

START_TEST(fault_refuses_rules_it_cannot_read)
{
    const char *bad[] = {
        "op=fly,action=error:-EIO", "action=error:EWHAT", "prob=2", "nth", "action=delay:5", "x=1", "key=k,prob=2"};
    setup(DRIVER_FAULT);
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
        ck_assert_int_eq(objstore_fault_set(st, bad[i]), -EINVAL);
    teardown();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_fault");
    TCase *t = tcase_create("rules");
    tcase_add_test(t, fault_hits_the_nth_calls_only);
    tcase_add_test(t, fault_hits_calls_for_its_key_only);
    tcase_add_test(t, fault_short_and_corrupt_change_what_a_get_gives);
    tcase_add_test(t, fault_lost_reply_leaves_the_object);
    tcase_add_test(t, fault_delay_waits);
    tcase_add_test(t, fault_delay_ends_with_its_rules);
    tcase_add_test(t, fault_refuses_rules_it_cannot_read);
    suite_add_tcase(s, t);
    return run_suite(s);
}
