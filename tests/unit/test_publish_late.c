/* Deletes and copies that got no reply, and may be carried out by the store later; over a lake in a folder, without FUSE. */
#include "base/metric.h"
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>

#define REST_NS (3600 * NS_PER_S)

static struct fs_fixture fx;
static uint32_t caps; /* of the store, if not 0 */

static void setup(void)
{
    caps = 0;
    fs_fixture_init(&fx);
    fx.cfg.late_requests_ns = REST_NS;
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static void put(const char *path, const char *text)
{
    fs_fixture_write(&fx, path, text, strlen(text));
}

static void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void put_again(const char *path, const char *text)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, text, strlen(text), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

/* With the first change the store is asked for its capabilities. */
static void start(void)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    put("first", "1");
    all_published();
    if (caps)
        objstore_set_caps_of(fx.fs->store, "n", caps);
}

static void restart(void)
{
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void drop(const char *name)
{
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, name), 0);
}

static void move(const char *from, const char *to)
{
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, from, META_ROOT_INO, to, 0), 0);
}

static char *object(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    char *text = NULL;
    return g_file_get_contents(path, &text, NULL, NULL) ? text : NULL;
}

static void assert_object(const char *key, const char *want)
{
    g_autofree char *text = object(key);
    ck_assert_pstr_eq(text, want);
}

/* Others are published meanwhile: twice, so that what could run before had its chance. */
static void assert_rests(const char *key, const char *want)
{
    static unsigned n;
    for (unsigned i = 0; i < 2; i++) {
        g_autofree char *other = g_strdup_printf("other-%u/x", n++);
        put(other, "x");
        ck_assert_int_eq(publish_wait(fx.fs->pub, other, clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
        g_usleep(100000);
    }
    assert_object(key, want);
}

static void assert_told(const char *name)
{
    struct meta_dentry d = {0};
    json_t *told = json_object();
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, META_ROOT_INO, name, &d), 0);
    publish_describe(fx.fs->pub, d.op_seq, told);
    json_int_t rests_s = json_integer_value(json_object_get(told, "rests_s"));
    ck_assert(rests_s > 0 && rests_s <= (json_int_t)(REST_NS / NS_PER_S));
    json_decref(told);
    meta_dentry_clear(&d);
}

static void time_passes(void)
{
    clock_fake_advance(REST_NS + NS_PER_S);
    put("waker/x", "x"); /* threads wait by the real clock */
}

static bool is_noted(const char *key)
{
    GBytes *value = NULL;
    g_autofree char *name = g_strconcat("late/", key, NULL);
    if (meta_value_get(fx.fs->meta, name, &value) < 0)
        return false;
    g_bytes_unref(value);
    return true;
}

/* The object n is there, and its delete got no reply once. */
static void delete_without_reply(void)
{
    start();
    put("n", "1");
    all_published();
    fault("op=delete,key=n,nth=1,action=late:-EIO");
    drop("n");
    all_published();
    assert_object("n", NULL);
}

/* The object b is a copy of a, and the first try got no reply. */
static void copy_without_reply(void)
{
    start();
    put("a", "1");
    all_published();
    fault("op=copy,key=b,nth=1,action=late:-EIO");
    move("a", "b");
    all_published();
    assert_object("b", "1");
}

START_TEST(name_is_published_again_when_a_lost_delete_cannot_come_any_more)
{
    delete_without_reply();
    put("n", "2");
    assert_rests("n", NULL);
    assert_told("n");
    if (_i) {
        restart();
        assert_rests("n", NULL);
    }
    time_passes();
    all_published();
    assert_object("n", "2");
    ck_assert(!is_noted("n"));
}
END_TEST

START_TEST(copy_is_replaced_when_a_lost_one_cannot_come_any_more)
{
    copy_without_reply();
    put_again("b", "2");
    assert_rests("b", "1");
    if (_i) {
        restart();
        assert_rests("b", "1");
    }
    time_passes();
    all_published();
    assert_object("b", "2");
    ck_assert(!is_noted("b"));
}
END_TEST

START_TEST(copy_is_deleted_when_a_lost_one_cannot_come_any_more)
{
    copy_without_reply();
    drop("b");
    assert_rests("b", "1");
    time_passes();
    all_published();
    assert_object("b", NULL);
}
END_TEST

/* As after a kill: nothing in memory says that the request was sent. */
START_TEST(name_rests_after_a_start_when_a_delete_had_been_sent)
{
    start();
    put("n", "1");
    all_published();
    fault("op=delete,key=n,action=error:-EIO");
    drop("n");
    while (!is_noted("n"))
        g_usleep(1000);
    restart();
    while (fs_fixture_object_exists(&fx, "n"))
        g_usleep(1000);
    put("n", "2");
    assert_rests("n", NULL);
    time_passes();
    all_published();
    assert_object("n", "2");
    ck_assert(!is_noted("n"));
}
END_TEST

START_TEST(name_taken_again_while_its_delete_runs_rests_too)
{
    start();
    put("n", "1");
    all_published();
    fault("op=delete,key=n,nth=1,action=delay:300ms|late:-EIO");
    drop("n");
    while (!is_noted("n"))
        g_usleep(1000);
    put("n", "2");
    g_usleep(400000);
    assert_rests("n", NULL); /* the delete went on */
    time_passes();
    all_published();
    assert_object("n", "2");
}
END_TEST

/* The store says nothing for longer than that: when it goes on, it may carry out both requests, in any order. */
START_TEST(rest_begins_when_the_store_answers_again)
{
    start();
    put("n", "1");
    all_published();
    g_free(fx.cfg.fault);
    fx.cfg.fault =
        g_strdup("op=delete,key=n,action=late:-EIO;op=head,key=n,action=error:-EIO;op=put,key=n,action=error:-EIO");
    fault(fx.cfg.fault);
    drop("n");
    while (!is_noted("n"))
        g_usleep(1000);
    g_usleep(100000);
    put("n", "2");
    if (_i)
        restart();
    clock_fake_advance(REST_NS + NS_PER_S);
    put("waker/w", "x");
    g_usleep(200000); /* who wants to go asks, in vain */
    fault("op=get,nth=1000000,action=error:-EIO");
    clock_fake_advance(300 * NS_PER_S); /* it is tried again */
    put("waker/y", "x");
    assert_rests("n", "1");
    time_passes();
    all_published();
    assert_object("n", "2");
    ck_assert(!is_noted("n"));
}
END_TEST

/* They rest at one time, though each waits for the one before it. */
START_TEST(names_that_wait_for_each_other_rest_together_after_a_start)
{
    static const char *const names[] = {"n1", "n2", "n3"};
    start();
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        put(names[i], "1");
    all_published();
    g_free(fx.cfg.fault);
    fx.cfg.fault = g_strdup("op=delete,action=late:-EIO");
    fault(fx.cfg.fault);
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        drop(names[i]);
        while (!is_noted(names[i]))
            g_usleep(1000);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        put(names[i], "2");
    restart();
    assert_rests("n1", "1");
    fault("op=get,nth=1000000,action=error:-EIO");
    time_passes();
    all_published();
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        assert_object(names[i], "2");
}
END_TEST

/* The loss and the outcome come in one run: what is recorded with the outcome says it. */
START_TEST(name_rests_after_a_start_when_only_a_first_try_got_no_reply)
{
    start();
    put("n", "1");
    all_published();
    fault("op=delete,key=n,nth=1,action=late:0");
    drop("n");
    all_published();
    assert_object("n", NULL);
    restart();
    put("n", "2");
    assert_rests("n", NULL);
    time_passes();
    all_published();
    assert_object("n", "2");
}
END_TEST

START_TEST(delete_may_follow_a_lost_delete)
{
    delete_without_reply();
    put("n", "2");
    assert_rests("n", NULL);
    drop("n");
    all_published();
    assert_object("n", NULL);
}
END_TEST

START_TEST(nothing_rests_where_no_reply_was_lost_or_that_is_not_asked_for)
{
    fx.cfg.late_requests_ns = _i ? 0 : REST_NS;
    start();
    put("n", "1");
    all_published();
    fault(_i ? "op=delete,nth=1,action=late:-EIO" : "op=delete,nth=1,action=error:-EIO");
    drop("n");
    all_published();
    put("n", "2");
    all_published();
    assert_object("n", "2");
    ck_assert(!is_noted("n"));
}
END_TEST

/* It would bring what stands there by then. */
START_TEST(source_of_a_lost_copy_rests_too_unless_the_store_compares_it)
{
    caps = CAP_PUT_IF_NONE_MATCH | CAP_PUT_IF_MATCH | CAP_PART_COPY | (_i ? CAP_COPY_IF_MATCH : 0);
    copy_without_reply();
    put("a", "2");
    if (_i == 0) {
        assert_rests("a", NULL);
        time_passes();
    }
    all_published();
    assert_object("a", "2");
    assert_object("b", "1");
    ck_assert(!is_noted("a"));
}
END_TEST

/* Unless the store makes what should be there: a late one would bring back what was removed since. */
START_TEST(write_over_a_known_version_needs_no_rest_where_the_store_compares_it)
{
    caps = CAP_PUT_IF_NONE_MATCH | CAP_PUT_IF_MATCH | CAP_COMPLETE_CONDITIONS | (_i ? CAP_IF_MATCH_ABSENT : 0);
    start();
    put("n", "1");
    all_published();
    fault("op=put,key=n,action=error:-EIO");
    put_again("n", "2");
    EVENTUALLY(publish_has_note(fx.fs, "n"));
    ck_assert(is_noted("n") == (_i == 1));
    fault("");
    clock_fake_advance(10 * NS_PER_S); /* it is tried again */
    put("waker/z", "x");
    all_published();
    assert_object("n", "2");
    ck_assert(!is_noted("n"));
}
END_TEST

static void change_mode(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&in->mu);
    in->rec.mode ^= 0100;
    in->rec.ctime_ns++;
    meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    fs_fixture_change_attributes(&fx, in->ino);
}

START_TEST(new_attributes_wait_for_a_lost_copy_with_the_old_ones)
{
    start();
    put("n", "1");
    all_published();
    fault("op=copy,key=n,action=late:-EIO");
    change_mode("n");
    clock_fake_advance(10 * NS_PER_S); /* attributes are not sent at once */
    put("waker/y", "x");
    while (!is_noted("n"))
        g_usleep(1000);
    g_usleep(100000);
    change_mode("n");
    fault("op=get,nth=1000000,action=error:-EIO");
    int64_t n = metric_get(M_requests_copy);
    clock_fake_advance(10 * NS_PER_S);
    assert_rests("n", "1");
    assert_told("n");
    ck_assert_int_eq(metric_get(M_requests_copy), n);
    time_passes();
    all_published();
    ck_assert(!is_noted("n"));
}
END_TEST

/* 1: nothing came of it that is known of. */
START_TEST(object_is_not_deleted_while_a_lost_write_could_make_it_again)
{
    start();
    fault(_i ? "op=put,key=n,action=late:-EIO" : "op=put,key=n,nth=1,action=late:-EIO");
    put("n", "1");
    while (_i ? !is_noted("n") : !fs_fixture_object_exists(&fx, "n"))
        g_usleep(1000);
    g_usleep(100000);
    drop("n");
    assert_rests("n", _i ? NULL : "1");
    ck_assert(is_noted("n"));
    time_passes();
    all_published();
    assert_object("n", NULL);
    ck_assert(!is_noted("n"));
}
END_TEST

START_TEST(what_a_program_waits_for_rests_as_long_as_it_has_to)
{
    fx.cfg.late_requests_ns = 3 * NS_PER_S;
    fx.cfg.op_timeout_ns = NS_PER_S;
    delete_without_reply();
    put("n", "2");
    INODE_REF in = fs_fixture_inode(&fx, "n");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + NS_PER_S), 0);
    assert_object("n", "2");
}
END_TEST

START_TEST(records_of_long_ago_go_with_the_next_start)
{
    delete_without_reply();
    ck_assert(is_noted("n"));
    restart(); /* from now on it says until when, and no later start changes that */
    time_passes();
    restart();
    ck_assert(is_noted("n")); /* clocks are set */
    clock_fake_advance(24 * REST_NS);
    restart();
    ck_assert(!is_noted("n"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_late");
    TCase *tc = tcase_create("late");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, name_is_published_again_when_a_lost_delete_cannot_come_any_more, 0, 2);
    tcase_add_loop_test(tc, write_over_a_known_version_needs_no_rest_where_the_store_compares_it, 0, 2);
    tcase_add_loop_test(tc, copy_is_replaced_when_a_lost_one_cannot_come_any_more, 0, 2);
    tcase_add_test(tc, copy_is_deleted_when_a_lost_one_cannot_come_any_more);
    tcase_add_test(tc, name_rests_after_a_start_when_a_delete_had_been_sent);
    tcase_add_test(tc, name_taken_again_while_its_delete_runs_rests_too);
    tcase_add_loop_test(tc, rest_begins_when_the_store_answers_again, 0, 2);
    tcase_add_test(tc, names_that_wait_for_each_other_rest_together_after_a_start);
    tcase_add_test(tc, name_rests_after_a_start_when_only_a_first_try_got_no_reply);
    tcase_add_test(tc, delete_may_follow_a_lost_delete);
    tcase_add_loop_test(tc, nothing_rests_where_no_reply_was_lost_or_that_is_not_asked_for, 0, 2);
    tcase_add_loop_test(tc, source_of_a_lost_copy_rests_too_unless_the_store_compares_it, 0, 2);
    tcase_add_test(tc, new_attributes_wait_for_a_lost_copy_with_the_old_ones);
    tcase_add_loop_test(tc, object_is_not_deleted_while_a_lost_write_could_make_it_again, 0, 2);
    tcase_add_test(tc, what_a_program_waits_for_rests_as_long_as_it_has_to);
    tcase_add_test(tc, records_of_long_ago_go_with_the_next_start);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
