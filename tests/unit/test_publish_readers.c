/* Files that somebody still reads when the object they rest on is replaced or deleted, over a lake in a folder, without FUSE. */
#include "base/metric.h"
#include "cache/cache_file.h"
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

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
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S; /* listings see no more once a directory was listed */
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

/* The file has another name, so nothing is fetched for its reader. 0: the name stays free, 1: a new file takes over the delete, which failed. */
START_TEST(name_of_a_file_that_has_another_one_goes_though_it_is_read)
{
    struct inode *file = fs_fixture_inode(&fx, "big"), *other = NULL;
    ck_assert_int_eq(tree_link(fx.fs, file->ino, META_ROOT_INO, "other", &other), 0);
    inode_put(other);
    inode_put(file);
    all_published();
    assert_object("other", model, SIZE);
    struct inode *in = open_reader("big");
    if (_i == 1)
        fault("op=delete,action=delay:300ms|error:-EIO");
    drop("big");
    while (_i == 1 && !is_worked_on("big"))
        g_usleep(1000);
    if (_i == 1)
        fs_fixture_write(&fx, "big", "new", 3);
    all_published();
    ck_assert(!cache_file_complete(in->cf));
    if (_i == 0)
        ck_assert(!fs_fixture_object_exists(&fx, "big"));
    else
        assert_object("big", "new", 3);
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

/* However full the cache is. 0: it is removed; 1: it was whole here before; 2: another one is renamed over it. */
START_TEST(what_was_kept_for_a_reader_stays_until_he_is_done)
{
    struct inode *in = open_reader("big");
    if (_i == 1)
        ck_assert_int_eq(cache_file_fill(in->cf, true, true, NULL, NULL), 0);
    if (_i == 2)
        fs_fixture_write(&fx, "other", "new", 3);
    if (_i == 2)
        ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "other", META_ROOT_INO, "big", 0), 0);
    else
        drop("big");
    all_published();
    ck_assert_int_eq(fs_fixture_object_exists(&fx, "big"), _i == 2);
    (void)cfile_punch(in->cf, SIZE);
    ck_assert_ptr_null(in->rec.base_key); /* nor does the next worker think that it could be fetched */
    assert_reads(in);
}
END_TEST

START_TEST(a_file_with_another_name_goes_on_with_its_object)
{
    INODE_REF link = NULL;
    INODE_REF big = fs_fixture_inode(&fx, "big");
    ck_assert_int_eq(tree_link(fx.fs, big->ino, META_ROOT_INO, "second", &link), 0);
    all_published();
    struct inode *in = open_reader("big");
    drop("big");
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "big"));
    ck_assert(cache_file_has_source(in->cf));
    ck_assert_str_eq(in->rec.base_key, "second");
    (void)cfile_punch(in->cf, SIZE);
    assert_reads(in);
}
END_TEST

START_TEST(what_a_writer_adds_comes_from_the_new_object_for_who_reads_meanwhile)
{
    struct inode *in = open_reader("big"), *w = fs_fixture_inode(&fx, "big");
    ck_assert_int_eq(content_open(w, true, false), 0);
    ck_assert_int_eq(content_begin_change(w), 0);
    fs_fixture_pwrite(w, "more", 4, SIZE);
    content_release(w, true);
    inode_put(w);
    all_published();
    EVENTUALLY(cache_file_limit(in->cf) == SIZE + 4);
    ck_assert_uint_eq(in->rec.base_limit, SIZE + 4);
    assert_reads(in);
}
END_TEST

/* As fsync does with --fsync remote: it is no error of this file, and has an end. */
START_TEST(who_waits_for_what_replaces_it_waits_for_the_readers_of_that)
{
    struct inode *in = open_reader("big");
    fault("op=get,action=error:-EIO");
    drop("big");
    fs_fixture_write(&fx, "big", "new", 3);
    INODE_REF now = fs_fixture_inode(&fx, "big");
    ck_assert_int_eq(publish_now(fx.fs, now, clock_mono_ns() + 30 * NS_PER_S), 0);
    assert_object("big", "new", 3);
    content_release(in, false);
    inode_put(in);
}
END_TEST

static void *publish_big(void *ret)
{
    INODE_REF now = fs_fixture_inode(&fx, "big");
    *(int *)ret = publish_now(fx.fs, now, clock_mono_ns() + 3600 * NS_PER_S);
    g_atomic_int_set((int *)ret + 1, 1);
    return NULL;
}

/* As a store of files is where another file system is mounted. */
START_TEST(who_waits_for_a_store_that_is_busy_is_told_so)
{
    int ret[2] = {0, 0};
    fs_fixture_write(&fx, "first", "1", 1);
    all_published(); /* what the store can do is known */
    fault("op=put,action=error:-EBUSY");
    fs_fixture_write(&fx, "big", "new", 3);
    GThread *other = g_thread_new("now", publish_big, ret);
    for (unsigned i = 0; i < 400 && !g_atomic_int_get(&ret[1]); i++) {
        clock_fake_advance(NS_PER_S);
        g_usleep(50000);
    }
    ck_assert_int_eq(g_atomic_int_get(&ret[1]), 1);
    g_thread_join(other);
    ck_assert_int_eq(ret[0], -EBUSY);
    fault("");
}
END_TEST

/* ---- replaced or removed elsewhere ---- */

static int read_fails(struct inode *in)
{
    char byte;
    return (int)cache_file_read(in->cf, &byte, 1, SIZE - 1);
}

static void object_is(const char *data, size_t len)
{
    fs_fixture_object(&fx, "big", data, len);
}

/* However lately the directory was listed; and who has it open keeps what he opened. */
START_TEST(who_opens_again_finds_what_replaced_it)
{
    struct inode *in = open_reader("big");
    int64_t lists = metric_get(M_list_refreshes);
    uint64_t ino = in->ino;
    object_is("newer", 5);
    ck_assert_int_eq(read_fails(in), -ESTALE);
    INODE_REF now = fs_fixture_inode(&fx, "big");
    ck_assert_uint_ne(now->ino, ino);
    ck_assert_uint_eq(now->rec.size, 5);
    char got[5];
    ck_assert_int_eq(content_open(now, false, false), 0);
    ck_assert_int_eq(cache_file_read(now->cf, got, sizeof got, 0), sizeof got);
    ck_assert_int_eq(memcmp(got, "newer", sizeof got), 0);
    content_release(now, false);
    ck_assert_int_eq(read_fails(in), -ESTALE);
    ck_assert_int_eq(metric_get(M_list_refreshes), lists);
    content_release(in, false);
    inode_put(in);
}
END_TEST

START_TEST(who_opens_again_finds_that_it_was_removed)
{
    struct inode *in = open_reader("big"), *now = NULL;
    g_autofree char *path = g_build_filename(fx.lake, "big", NULL);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_lt(read_fails(in), 0);
    ck_assert_int_eq(tree_resolve(fx.fs, "big", &now), -ENOENT);
    content_release(in, false);
    inode_put(in);
}
END_TEST

/* Of what was written here since publishing sees to it; where nothing is looked at again, nobody. */
START_TEST(name_stays_with_what_was_written_here_and_on_an_immutable_mount)
{
    struct inode *in = fs_fixture_inode(&fx, "big");
    uint64_t ino = in->ino;
    ck_assert_int_eq(content_open(in, _i == 0, false), 0);
    if (_i == 0)
        ck_assert_int_eq(content_begin_change(in), 0);
    fx.cfg.immutable = _i == 1;
    object_is("newer", 5);
    ck_assert_int_eq(read_fails(in), -ESTALE);
    INODE_REF now = fs_fixture_inode(&fx, "big");
    ck_assert_uint_eq(now->ino, ino);
    content_release(in, _i == 0);
    inode_put(in);
}
END_TEST

static atomic_bool look_ended;

static gpointer look(gpointer arg)
{
    struct fs *fs = arg;
    g_usleep(300000); /* by now it is being closed */
    atomic_store(&look_ended, true);
    mutex_lock(&fs->list_mu);
    fs->n_stale_looks--;
    cond_broadcast(&fs->list_done);
    mutex_unlock(&fs->list_mu);
    return NULL;
}

/* It works on what is taken down. */
START_TEST(close_waits_for_who_looks_at_what_was_replaced)
{
    mutex_lock(&fx.fs->list_mu);
    fx.fs->n_stale_looks++;
    mutex_unlock(&fx.fs->list_mu);
    GThread *t = g_thread_new("look", look, fx.fs);
    fs_fixture_close(&fx);
    ck_assert(atomic_load(&look_ended));
    (void)g_thread_join(t);
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
    tcase_add_loop_test(t, name_of_a_file_that_has_another_one_goes_though_it_is_read, 0, 2);
    tcase_add_test(t, what_cannot_be_read_is_replaced_all_the_same);
    tcase_add_loop_test(t, what_was_kept_for_a_reader_stays_until_he_is_done, 0, 3);
    tcase_add_test(t, a_file_with_another_name_goes_on_with_its_object);
    tcase_add_test(t, what_a_writer_adds_comes_from_the_new_object_for_who_reads_meanwhile);
    tcase_add_test(t, who_waits_for_what_replaces_it_waits_for_the_readers_of_that);
    tcase_add_test(t, who_waits_for_a_store_that_is_busy_is_told_so);
    tcase_add_test(t, who_opens_again_finds_what_replaced_it);
    tcase_add_test(t, who_opens_again_finds_that_it_was_removed);
    tcase_add_loop_test(t, name_stays_with_what_was_written_here_and_on_an_immutable_mount, 0, 2);
    tcase_add_test(t, close_waits_for_who_looks_at_what_was_replaced);
    suite_add_tcase(s, t);
    return run_suite(s);
}
