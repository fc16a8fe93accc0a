/* Closed files that are only here, and a machine that is restarted. Without FUSE; a close of the fixture leaves on the disk what a kill would. */
#include "fs/content.h"
#include "fs/durable.h"
#include "fs/local.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.rule = g_strdup("tmp/**=local-only");
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void restart(void)
{
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
}

/* Written in a boot that will be another one. */
static struct inode *begin(const char *name)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    mutex_lock(&fx.fs->ns);
    mutex_lock(&in->mu);
    g_strlcpy(in->rec.boot_id, "another boot", sizeof(in->rec.boot_id));
    mutex_unlock(&in->mu);
    mutex_unlock(&fx.fs->ns);
    return in;
}

static uint32_t content_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    mutex_lock(&in->mu);
    uint32_t content = in->rec.content;
    mutex_unlock(&in->mu);
    return content;
}

static bool is_synced(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    mutex_lock(&in->mu);
    bool synced = in->rec.flags & INODE_DATA_SYNCED;
    mutex_unlock(&in->mu);
    return synced;
}

/* 0: closed and let go, 1: closed only, 2: still open. */
START_TEST(end_in_order_leaves_nothing_to_a_reboot)
{
    struct inode *in = begin("f");
    if (_i == 2)
        ck_assert_int_eq(content_store(in), 0);
    if (_i < 2)
        ck_assert_int_eq(content_flush(in, false), 0);
    if (_i == 0)
        content_release(in, true);
    ck_assert_int_eq(durable_all(fx.fs, true, NULL, NULL), 0);
    restart();
    ck_assert_uint_eq(content_of("f"), _i == 2 ? CONTENT_OPEN : CONTENT_SEALED);
}
END_TEST

/* The mount may stay: somebody uses it. */
START_TEST(before_the_end_only_what_was_closed_is_synced)
{
    struct inode *sealed = begin("sealed"), *closing = begin("closing"), *open = begin("open");
    ck_assert_int_eq(content_flush(sealed, false), 0);
    content_release(sealed, true);
    ck_assert_int_eq(content_flush(closing, false), 0);
    ck_assert_int_eq(content_store(open), 0);
    ck_assert_int_eq(durable_all(fx.fs, false, NULL, NULL), 0);
    ck_assert(is_synced("sealed") && !is_synced("closing") && !is_synced("open"));
}
END_TEST

START_TEST(closed_file_that_stays_here_gets_to_the_disk_by_itself)
{
    durable_set_delay(fx.fs, 0);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    EVENTUALLY(is_synced("tmp/a"));
    ck_assert_uint_eq(content_of("tmp/a"), CONTENT_SEALED);
}
END_TEST

START_TEST(file_closed_before_a_kill_gets_to_the_disk_after_it)
{
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    restart();
    ck_assert(!is_synced("tmp/a"));
    durable_set_delay(fx.fs, 0);
    fs_fixture_start(&fx);
    EVENTUALLY(is_synced("tmp/a"));
}
END_TEST

START_TEST(file_that_stays_here_and_was_lost_with_the_power_is_counted)
{
    struct local_counts c;
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    fs_fixture_write(&fx, "tmp/b", "1", 1);
    INODE_REF in = fs_fixture_inode(&fx, "tmp/a");
    ck_assert_int_eq(content_open(in, true, false), 0);
    mutex_lock(&fx.fs->ns);
    mutex_lock(&in->mu);
    g_strlcpy(in->rec.boot_id, "another boot", sizeof(in->rec.boot_id));
    mutex_unlock(&in->mu);
    mutex_unlock(&fx.fs->ns);
    ck_assert_int_eq(content_store(in), 0);
    content_release(in, true);
    inode_put(g_steal_pointer(&in));
    restart();
    ck_assert_uint_eq(content_of("tmp/a"), CONTENT_QUARANTINED);
    local_count(fx.fs, &c);
    ck_assert_uint_eq(c.files, 2);
    ck_assert_uint_eq(c.quarantined, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("durable");
    TCase *t = tcase_create("durable");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, end_in_order_leaves_nothing_to_a_reboot, 0, 3);
    tcase_add_test(t, before_the_end_only_what_was_closed_is_synced);
    tcase_add_test(t, closed_file_that_stays_here_gets_to_the_disk_by_itself);
    tcase_add_test(t, file_closed_before_a_kill_gets_to_the_disk_after_it);
    tcase_add_test(t, file_that_stays_here_and_was_lost_with_the_power_is_counted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
