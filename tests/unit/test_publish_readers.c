/* Files that somebody still reads when the object they rest on is replaced or deleted, over a lake in a folder, without FUSE. */
#include "base/metric.h"
#include "cache.h"
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE (2u << 20)

static struct fs_fixture fx;
static char *model;

static void setup(void)
{
    model = g_malloc(SIZE);
    for (unsigned i = 0; i < SIZE; i++)
        model[i] = (char)((i * 2654435761u) >> 13);
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fx.cfg.order = ORDER_NONE;
    fs_fixture_object(&fx, "big", model, SIZE);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    g_free(model);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void await_failures(int64_t more_than)
{
    while (metric_get(M_publish_failures) <= more_than)
        g_usleep(1000);
}

static bool is_worked_on(const char *key)
{
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    bool on = g_hash_table_contains(p->running_keys, key);
    mutex_unlock(&p->mu);
    return on;
}

static void assert_object(const char *key, const char *want, size_t len)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    gsize n = 0;
    ck_assert(g_file_get_contents(path, &data, &n, NULL));
    ck_assert_uint_eq(n, len);
    ck_assert_int_eq(memcmp(data, want, len), 0);
}

static struct inode *open_reader(const char *path)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, false, false), 0);
    ck_assert(!cache_file_complete(in->cf));
    return in;
}

/* Of all that it had when it was opened; then it is closed. */
static void assert_reads(struct inode *in)
{
    g_autofree char *got = g_malloc(SIZE);
    ck_assert_int_eq(cache_file_read(in->cf, got, SIZE, 0), SIZE);
    ck_assert_int_eq(memcmp(got, model, SIZE), 0);
    content_release(in, false);
    inode_put(in);
}

static void drop(const char *name)
{
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, name), 0);
}

/* 0: a new file is written there; 1: another one is renamed over it; 2: that one is in the store already, and is copied; 3: a link. */
START_TEST(reader_keeps_what_is_replaced)
{
    if (_i == 1 || _i == 2)
        fs_fixture_write(&fx, "other", "new", 3);
    if (_i == 2)
        all_published();
    struct inode *in = open_reader("big"), *link = NULL;
    int64_t failures = metric_get(M_publish_failures);
    fault("op=get,action=error:-EIO"); /* what is begun to be fetched at once is not to be had */
    if (_i == 0 || _i == 3)
        drop("big");
    if (_i == 0)
        fs_fixture_write(&fx, "big", "new", 3);
    else if (_i < 3)
        ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "other", META_ROOT_INO, "big", 0), 0);
    struct node_spec spec = {
        .parent = META_ROOT_INO, .name = "big", .mode = S_IFLNK | 0777, .target = "t", .who = {fx.fs->uid, fx.fs->gid}};
    if (_i == 3)
        ck_assert_int_eq(tree_create(fx.fs, &spec, false, &link), 0);
    inode_put(link);
    await_failures(failures);
    assert_object("big", model, SIZE);
    fault("op=get,nth=1000000,action=error:-EIO");
    all_published();
    assert_object("big", "new", _i == 3 ? 0 : 3);
    assert_reads(in);
}
END_TEST

/* The name comes while the delete fetches for the reader: it takes the delete over, and with it what that had to see to. */
START_TEST(reader_keeps_what_a_delete_would_have_kept_for_him)
{
    struct inode *in = open_reader("big");
    int64_t failures = metric_get(M_publish_failures);
    fault("op=get,action=delay:300ms|error:-EIO");
    drop("big");
    while (!is_worked_on("big"))
        g_usleep(1000);
    fs_fixture_write(&fx, "big", "new", 3);
    await_failures(failures + 1);
    assert_object("big", model, SIZE);
    fault("op=get,nth=1000000,action=error:-EIO");
    all_published();
    assert_object("big", "new", 3);
    assert_reads(in);
}
END_TEST

/* What took the place of the removed file goes as well before it was published. 0: it is removed, 1: it is renamed. */
START_TEST(reader_keeps_what_a_name_in_its_place_leaves)
{
    struct inode *in = open_reader("big");
    fault("op=get,action=error:-EIO");
    fs_fixture_write(&fx, "other", "new", 3);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "other", META_ROOT_INO, "big", 0), 0);
    if (_i == 0)
        drop("big");
    else
        ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "big", META_ROOT_INO, "moved", 0), 0);
    int64_t failures = metric_get(M_publish_failures);
    while (metric_get(M_publish_failures) <= failures + 1 && fs_fixture_object_exists(&fx, "big"))
        g_usleep(1000);
    assert_object("big", model, SIZE);
    fault("op=get,nth=1000000,action=error:-EIO");
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "big"));
    assert_reads(in);
}
END_TEST

/* Nobody sees the removed file any more but him: others are not kept waiting for ever. */
START_TEST(what_cannot_be_read_is_replaced_all_the_same)
{
    struct inode *in = open_reader("big");
    fault("op=get,action=error:-EACCES");
    drop("big");
    fs_fixture_write(&fx, "big", "new", 3);
    all_published();
    assert_object("big", "new", 3);
    content_release(in, false);
    inode_put(in);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_readers");
    TCase *t = tcase_create("readers");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, reader_keeps_what_is_replaced, 0, 4);
    tcase_add_test(t, reader_keeps_what_a_delete_would_have_kept_for_him);
    tcase_add_loop_test(t, reader_keeps_what_a_name_in_its_place_leaves, 0, 2);
    tcase_add_test(t, what_cannot_be_read_is_replaced_all_the_same);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
