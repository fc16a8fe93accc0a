/* Copies inside the store, over a lake in a folder, without FUSE: what the destination is, whatever becomes of source, upload and daemon. */
#include "fs/content.h"
#include "fs/copy.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define PART (64u << 10)
#define SIZE (20u * PART + 777u)

static struct fs_fixture fx;
static char *source_bytes;

static char *bytes(unsigned seed)
{
    char *b = g_malloc(SIZE);
    for (unsigned i = 0; i < SIZE; i++)
        b[i] = (char)(((i + seed) * 2654435761u) >> 13);
    return b;
}

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.part_size = PART;
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    source_bytes = bytes(0);
    fs_fixture_object(&fx, "dir/src", source_bytes, SIZE);
}

static void setup_open(void)
{
    setup();
    fs_fixture_open(&fx);
}

static void setup_unordered(void)
{
    setup();
    fs_fixture_object(&fx, "other-one", "x", 1);
    fx.cfg.order = ORDER_NONE;
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    g_free(source_bytes);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static struct inode *create(const char *name)
{
    struct node_spec spec = {
        .parent = META_ROOT_INO, .name = name, .mode = S_IFREG | 0644, .who = {fx.fs->uid, fx.fs->gid}};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    return in;
}

/* As the operation's handler does it, but where that would copy through the cache: there this ends. Bytes copied. */
static uint64_t copy_in(struct inode *from, struct inode *to, uint64_t off)
{
    for (;;) {
        ck_assert_int_eq(content_begin_change(to), 0);
        int64_t n = copy_in_store(from, to, off, 7 * PART + 5);
        ck_assert_int_ge(n, 0);
        if (n == 0)
            return off;
        off += (uint64_t)n;
        mutex_lock(&to->mu);
        to->rec.size = off;
        to->changed = true;
        mutex_unlock(&to->mu);
    }
}

static void write_in(struct inode *to, uint64_t off, const char *data, size_t len)
{
    ck_assert_int_eq(content_begin_change(to), 0);
    fs_fixture_pwrite(to, data, len, off);
}

static void close_file(struct inode *in)
{
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(in);
}

static struct inode *open_source(const char *path)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, false, false), 0);
    return in;
}

/* cp dir/src NAME, all of it in the store. */
static void copy_file(const char *name)
{
    struct inode *from = open_source("dir/src"), *to = create(name);
    ck_assert_uint_eq(copy_in(from, to, 0), SIZE);
    close_file(to);
    content_release(from, false);
    inode_put(from);
}

static int wait_all(void)
{
    return publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL);
}

static void publish_all(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(wait_all(), 0);
}

/* Until a delete that nothing keeps back, and that was asked for last, was carried out. */
static void await_a_delete(void)
{
    inode_put(fs_fixture_inode(&fx, "other-one"));
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "other-one"), 0);
    for (unsigned i = 0; i < 10000 && fs_fixture_object_exists(&fx, "other-one"); i++)
        g_usleep(1000);
    ck_assert(!fs_fixture_object_exists(&fx, "other-one"));
}

static void assert_object(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    gsize n = 0;
    ck_assert(g_file_get_contents(path, &data, &n, NULL));
    ck_assert_uint_eq(n, SIZE);
    ck_assert_int_eq(memcmp(data, want, SIZE), 0);
}

static void remove_object(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

static int collect_upload(void *ctx, const char *key, const char *upload_id)
{
    g_ptr_array_add(ctx, g_strdup(key));
    g_ptr_array_add(ctx, g_strdup(upload_id));
    return 0;
}

/* Key and id of each upload in the store, one after the other. */
static GPtrArray *uploads(void)
{
    GPtrArray *a = g_ptr_array_new_with_free_func(g_free);
    ck_assert_int_eq(objstore_mpu_list(fx.fs->store, "", collect_upload, a), 0);
    return a;
}

static void abort_uploads(void)
{
    g_autoptr(GPtrArray) a = uploads();
    for (unsigned i = 0; i < a->len; i += 2) {
        int r = objstore_mpu_abort(fx.fs->store, a->pdata[i], a->pdata[i + 1]);
        ck_assert(r == 0 || r == -ENOENT); /* one that was dropped is aborted behind */
    }
}

START_TEST(nothing_is_downloaded_or_uploaded)
{
    int64_t down = metric_get(M_downloaded_bytes), up = metric_get(M_uploaded_bytes),
            in_store = metric_get(M_copied_bytes);
    copy_file("dst");
    publish_all();
    ck_assert_int_eq(metric_get(M_downloaded_bytes), down);
    ck_assert_int_eq(metric_get(M_uploaded_bytes), up);
    ck_assert_int_ge(metric_get(M_copied_bytes) - in_store, SIZE); /* the fault driver counts too */
    assert_object("dst", source_bytes);
    INODE_REF in = fs_fixture_inode(&fx, "dst");
    ck_assert(!content_is_dirty(in));
}
END_TEST

START_TEST(copy_is_read_from_the_source_until_it_is_published)
{
    g_autofree char *got = g_malloc(SIZE);
    copy_file("dst");
    struct inode *in = open_source("dst");
    ck_assert_uint_eq(cache_file_present_bytes(in->cf), 0);
    ck_assert_int_eq(cache_file_read(in->cf, got, SIZE, 0), SIZE);
    ck_assert_int_eq(memcmp(got, source_bytes, SIZE), 0);
    content_release(in, false);
    inode_put(in);
}
END_TEST

START_TEST(source_replaced_by_others_right_after)
{
    g_autofree char *other = bytes(99);
    copy_file("dst");
    fs_fixture_object(&fx, "dir/src", other, SIZE);
    publish_all();
    assert_object("dst", source_bytes);
}
END_TEST

START_TEST(source_removed_by_others_and_daemon_restarted)
{
    copy_file("dst");
    fs_fixture_close(&fx);
    remove_object("dir/src");
    fs_fixture_open(&fx);
    int64_t in_store = metric_get(M_copied_bytes);
    publish_all();
    assert_object("dst", source_bytes);
    ck_assert_int_eq(metric_get(M_copied_bytes), in_store);
}
END_TEST

START_TEST(copy_without_source_and_upload_is_parked)
{
    struct publish_counts left;
    copy_file("dst");
    remove_object("dir/src");
    abort_uploads();
    fs_fixture_start(&fx);
    ck_assert_int_eq(wait_all(), -EIO);
    publish_count(fx.fs->pub, "dst", &left);
    ck_assert_uint_eq(left.parked, 1);
    ck_assert(!fs_fixture_object_exists(&fx, "dst"));
}
END_TEST

START_TEST(lost_upload_is_made_again_from_the_source)
{
    copy_file("dst");
    abort_uploads();
    publish_all();
    assert_object("dst", source_bytes);
}
END_TEST

/* Renamed, it has to be copied again: under the new name, from a source that has been removed here. */
START_TEST(own_delete_of_the_source_waits_for_the_copy)
{
    copy_file("dst");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "dst", META_ROOT_INO, "other", 0), 0);
    INODE_REF dir = fs_fixture_inode(&fx, "dir");
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "src"), 0);
    fault("op=part-copy,action=delay:20ms");
    publish_all();
    assert_object("other", source_bytes);
    ck_assert(!fs_fixture_object_exists(&fx, "dst"));
    ck_assert(!fs_fixture_object_exists(&fx, "dir/src"));
}
END_TEST

/* Renamed before it is closed: until then nothing but the journal keeps the source. */
START_TEST(own_delete_of_the_source_waits_for_a_copy_that_was_renamed_open)
{
    struct inode *from = open_source("dir/src"), *to = create("dst");
    ck_assert_uint_eq(copy_in(from, to, 0), SIZE);
    content_release(from, false);
    inode_put(from);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "dst", META_ROOT_INO, "other", 0), 0);
    INODE_REF dir = fs_fixture_inode(&fx, "dir");
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "src"), 0);
    fs_fixture_start(&fx);
    await_a_delete();
    ck_assert(fs_fixture_object_exists(&fx, "dir/src"));
    close_file(to);
    ck_assert_int_eq(wait_all(), 0);
    assert_object("other", source_bytes);
    ck_assert(!fs_fixture_object_exists(&fx, "dir/src"));
}
END_TEST

START_TEST(own_overwrite_of_the_source_waits_for_the_copy_after_a_restart_too)
{
    g_autofree char *other = bytes(99);
    copy_file("dst");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "dst", META_ROOT_INO, "other", 0), 0);
    struct inode *in = fs_fixture_inode(&fx, "dir/src");
    ck_assert_int_eq(content_open(in, true, true), 0);
    write_in(in, 0, other, SIZE);
    close_file(in);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fault("op=part-copy,action=delay:20ms");
    publish_all();
    assert_object("other", source_bytes);
    assert_object("dir/src", other);
}
END_TEST

/* The file that is overwritten is so large that its journal record does for the next close too. */
START_TEST(own_overwrite_of_the_source_waits_for_a_copy_over_a_large_file)
{
    g_autofree char *other = bytes(99);
    struct inode *to = create("dst");
    ck_assert_int_eq(content_truncate(to, 40u << 20), 0);
    close_file(to);
    struct inode *from = open_source("dir/src");
    to = fs_fixture_inode(&fx, "dst");
    ck_assert_int_eq(content_open(to, true, true), 0);
    ck_assert_uint_eq(copy_in(from, to, 0), SIZE);
    close_file(to);
    content_release(from, false);
    ck_assert_int_eq(content_open(from, true, true), 0);
    write_in(from, 0, other, SIZE);
    close_file(from);
    abort_uploads();
    fault("op=part-copy,action=delay:20ms");
    publish_all();
    assert_object("dst", source_bytes);
    assert_object("dir/src", other);
}
END_TEST

/* Before its close; what is here of it are holes. */
START_TEST(copy_is_not_taken_for_whole_without_the_database)
{
    struct inode *from = open_source("dir/src"), *to = create("dst");
    ck_assert_int_eq(content_begin_change(to), 0);
    if (_i)
        fault("op=part-copy,action=error:-EOPNOTSUPP");
    ck_assert_int_eq(copy_in_store(from, to, 0, 7 * PART + 5) > 0, _i == 0);
    fs_fixture_close(&fx);
    g_autofree char *meta = g_build_filename(fx.cache_dir, "meta", NULL),
                    *away = g_build_filename(fx.dir, "away", NULL);
    ck_assert_int_eq(rename(meta, away), 0);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "dst");
    ck_assert_uint_eq(in->rec.content, _i == 0 ? CONTENT_QUARANTINED : CONTENT_OPEN);
}
END_TEST

START_TEST(rest_goes_another_way_where_a_part_fails)
{
    struct inode *from = open_source("dir/src"), *to = create("dst");
    fault("op=part-copy,nth=9,count=1000,action=error:-EIO");
    uint64_t n = copy_in(from, to, 0);
    ck_assert_uint_ge(n, 7 * PART); /* the first call's */
    ck_assert_uint_lt(n, SIZE);
    ck_assert_uint_eq(n % PART, 0);
    ck_assert_uint_eq(cache_file_size(to->cf), n);
    write_in(to, n, source_bytes + n, SIZE - n);
    close_file(to);
    content_release(from, false);
    inode_put(from);
    remove_object("dir/src");
    publish_all();
    assert_object("dst", source_bytes);
}
END_TEST

START_TEST(file_is_an_ordinary_one_where_nothing_could_be_copied)
{
    struct inode *from = open_source("dir/src"), *to = create("dst");
    fault("op=part-copy,action=error:-EOPNOTSUPP");
    ck_assert_uint_eq(copy_in(from, to, 0), 0);
    ck_assert_ptr_null(to->rec.base_key);
    write_in(to, 0, source_bytes, SIZE);
    while (cache_uploaded_bytes(to->cf) == 0) /* it streams */
        g_usleep(1000);
    close_file(to);
    content_release(from, false);
    inode_put(from);
    publish_all();
    assert_object("dst", source_bytes);
}
END_TEST

START_TEST(changes_of_the_copy_are_published)
{
    g_autofree char *model = g_memdup2(source_bytes, SIZE);
    struct inode *from = open_source("dir/src"), *to = create("dst");
    ck_assert_uint_eq(copy_in(from, to, 0), SIZE);
    memcpy(model + 5 * PART + 100, "changed", 7);
    write_in(to, 5 * PART + 100, "changed", 7);
    close_file(to);
    struct inode *again = fs_fixture_inode(&fx, "dst");
    ck_assert_int_eq(content_open(again, true, false), 0);
    ck_assert_int_eq(content_truncate(again, 12 * PART + 9), 0);
    ck_assert_int_eq(content_truncate(again, SIZE), 0);
    memset(model + 12 * PART + 9, 0, SIZE - 12 * PART - 9);
    close_file(again);
    content_release(from, false);
    inode_put(from);
    publish_all();
    assert_object("dst", model);
}
END_TEST

START_TEST(parts_of_one_source_are_not_taken_for_those_of_another)
{
    g_autofree char *other = bytes(99);
    fs_fixture_object(&fx, "dir/other", other, SIZE);
    copy_file("dst");
    struct inode *first = open_source("dir/src"), *second = open_source("dir/other"),
                 *to = fs_fixture_inode(&fx, "dst");
    ck_assert_int_eq(content_open(to, true, true), 0);
    ck_assert_uint_eq(copy_in(first, to, 0), SIZE);
    ck_assert_int_eq(content_truncate(to, 0), 0);
    ck_assert_uint_eq(copy_in(second, to, 0), SIZE);
    close_file(to);
    content_release(first, false);
    content_release(second, false);
    inode_put(first);
    inode_put(second);
    publish_all();
    assert_object("dst", other);
}
END_TEST

/* The source's new version waits for the copy, and the copy, closed again later, for everything earlier in its directory. */
START_TEST(source_and_copy_that_wait_for_each_other_are_untangled)
{
    g_autofree char *other = bytes(99), *model = g_memdup2(source_bytes, SIZE);
    fs_fixture_object(&fx, "near", source_bytes, SIZE);
    struct inode *near = open_source("near"), *to = create("dst");
    ck_assert_uint_eq(copy_in(near, to, 0), SIZE);
    close_file(to);
    content_release(near, false);
    ck_assert_int_eq(content_open(near, true, true), 0);
    write_in(near, 0, other, SIZE);
    close_file(near);
    to = fs_fixture_inode(&fx, "dst");
    ck_assert_int_eq(content_open(to, true, false), 0);
    write_in(to, 3 * PART + 7, "later", 5);
    memcpy(model + 3 * PART + 7, "later", 5);
    close_file(to);
    publish_all();
    assert_object("near", other);
    assert_object("dst", model);
}
END_TEST

START_TEST(removed_copy_leaves_no_upload)
{
    copy_file("dst");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "dst"), 0);
    publish_all();
    for (unsigned tries = 0; tries < 500; tries++) {
        g_autoptr(GPtrArray) a = uploads();
        if (a->len == 0)
            break;
        g_usleep(10000);
    }
    g_autoptr(GPtrArray) a = uploads();
    ck_assert_uint_eq(a->len, 0);
    ck_assert(!fs_fixture_object_exists(&fx, "dst"));
    ck_assert(fs_fixture_object_exists(&fx, "dir/src"));
}
END_TEST

START_TEST(what_is_not_one_clean_object_is_not_copied_in_the_store)
{
    fs_fixture_object(&fx, "small", source_bytes, 2 * PART);
    struct inode *from = open_source("dir/src"), *small = open_source("small"), *to = create("dst");
    ck_assert_uint_eq(copy_in(small, to, 0), 0);
    ck_assert_int_eq(content_begin_change(to), 0);
    ck_assert_int_eq(copy_in_store(from, to, PART, PART), 0); /* the file does not end there */
    ck_assert_int_eq(copy_in_store(from, to, 0, PART - 1), 0);
    write_in(to, 0, source_bytes, PART);
    ck_assert_int_eq(copy_in_store(from, to, PART, 3 * PART), 0); /* it holds bytes of its own */
    struct inode *dirty = fs_fixture_inode(&fx, "dir/src"), *last = create("last");
    ck_assert_int_eq(content_open(dirty, true, false), 0);
    write_in(dirty, 0, "x", 1);
    ck_assert_uint_eq(copy_in(from, last, 0), 0);
    close_file(dirty);
    close_file(last);
    close_file(to);
    content_release(small, false);
    content_release(from, false);
    inode_put(small);
    inode_put(from);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("copy");
    TCase *tc = tcase_create("copies");
    tcase_add_checked_fixture(tc, setup_open, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, nothing_is_downloaded_or_uploaded);
    tcase_add_test(tc, copy_is_read_from_the_source_until_it_is_published);
    tcase_add_test(tc, source_replaced_by_others_right_after);
    tcase_add_test(tc, source_removed_by_others_and_daemon_restarted);
    tcase_add_test(tc, copy_without_source_and_upload_is_parked);
    tcase_add_test(tc, lost_upload_is_made_again_from_the_source);
    tcase_add_loop_test(tc, copy_is_not_taken_for_whole_without_the_database, 0, 2);
    tcase_add_test(tc, rest_goes_another_way_where_a_part_fails);
    tcase_add_test(tc, file_is_an_ordinary_one_where_nothing_could_be_copied);
    tcase_add_test(tc, changes_of_the_copy_are_published);
    tcase_add_test(tc, parts_of_one_source_are_not_taken_for_those_of_another);
    tcase_add_test(tc, source_and_copy_that_wait_for_each_other_are_untangled);
    tcase_add_test(tc, removed_copy_leaves_no_upload);
    tcase_add_test(tc, what_is_not_one_clean_object_is_not_copied_in_the_store);
    suite_add_tcase(s, tc);
    tc = tcase_create("unordered");
    tcase_add_checked_fixture(tc, setup_unordered, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, own_delete_of_the_source_waits_for_the_copy);
    tcase_add_test(tc, own_delete_of_the_source_waits_for_a_copy_that_was_renamed_open);
    tcase_add_test(tc, own_overwrite_of_the_source_waits_for_the_copy_after_a_restart_too);
    tcase_add_test(tc, own_overwrite_of_the_source_waits_for_a_copy_over_a_large_file);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
