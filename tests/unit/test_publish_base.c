/* Names of one file that rest on the object of another of its names, which may go on to other files meanwhile; over a lake in a folder, without FUSE. */
#include "fs/conflict.h"
#include "fs/content.h"
#include "fs/op.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define PART (64u << 10)
#define SIZE (40u * PART)

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.part_size = PART;
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    fx.cfg.hold_delay_ns = 3600 * NS_PER_S;
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fs_fixture_object(&fx, "db/x", "x", 1);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    log_close();
}

static void open_with(const char *key, const char *data, size_t len)
{
    fs_fixture_object(&fx, key, data, len);
    fs_fixture_open(&fx); /* nothing is published before the start */
    inode_put(fs_fixture_inode(&fx, key));
    inode_put(fs_fixture_inode(&fx, "db/x"));
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
}

static void assert_object(const char *key, const char *want, size_t len)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    gsize n = 0;
    ck_assert_msg(g_file_get_contents(path, &data, &n, NULL), "no object %s", key);
    ck_assert_uint_eq(n, len);
    ck_assert_int_eq(memcmp(data, want, len), 0);
}

static void assert_text(const char *key, const char *want)
{
    assert_object(key, want, strlen(want));
}

static uint64_t ino_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->ino;
}

static void link_to(const char *from, const char *dir, const char *name)
{
    INODE_REF made = NULL;
    ck_assert_int_eq(tree_link(fx.fs, ino_of(from), ino_of(dir), name, &made), 0);
}

static int move_over(const char *dir, const char *from, const char *to)
{
    return tree_rename(fx.fs, ino_of(dir), from, ino_of(dir), to, 0);
}

/* As programs do that replace a file as a whole. */
static void save(const char *dir, const char *name, const char *data)
{
    g_autofree char *path = g_build_filename(dir, "new.tmp", NULL); /* held: not published under this name */
    fs_fixture_write(&fx, path, data, strlen(data));
    ck_assert_int_eq(move_over(dir, "new.tmp", name), 0);
}

/* The object that what is queued for key rests on, "": none at another key. NULL: nothing is queued. Owned. */
static char *base_of(const char *key)
{
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    const struct op *o = g_hash_table_lookup(p->by_key, key);
    char *base = o ? g_strdup(o->base ? o->base : "") : NULL;
    mutex_unlock(&p->mu);
    return base;
}

static void assert_rests(const char *key, const char *want)
{
    g_autofree char *base = base_of(key);
    ck_assert_ptr_nonnull(base);
    ck_assert_str_eq(base, want);
}

static void await_done(const char *key)
{
    g_autofree char *base = base_of(key);
    for (unsigned i = 0; i < 10000 && base; i++) {
        g_usleep(1000);
        g_free(base);
        base = base_of(key);
    }
    ck_assert_ptr_null(base);
}

/* The key of what the name, which is queued, waits for. */
static void assert_waits(const char *path, const char *want)
{
    struct meta_dentry d = {0};
    json_t *told = json_object();
    ck_assert_int_eq(meta_link_first(fx.fs->meta, ino_of(path), &d), 0);
    publish_describe(fx.fs->pub, d.op_seq, told);
    const char *got = json_string_value(json_object_get(told, "blocked_by"));
    ck_assert_str_eq(got ? got : "(nothing)", want);
    json_decref(told);
    meta_dentry_clear(&d);
}

/* Two names were made together. The first was copied: what the file rests on is that copy, also for the second, which waits. */
START_TEST(name_is_copied_from_a_name_that_was_copied_before)
{
    open_with("da/a", "1", 1);
    link_to("da/a", "db", "b");
    link_to("da/a", "", "c");
    assert_rests("c", "da/a");
    fault("op=copy,key=c,action=error:-EIO");
    fs_fixture_start(&fx);
    await_done("db/b");
    save("da", "a", "2");
    await_done("da/a"); /* nothing rests on that one any more */
    save("db", "b", "3");
    assert_waits("db/b", "c");
    fault("");
    all_published();
    assert_text("da/a", "2");
    assert_text("db/b", "3");
    assert_text("c", "1");
}
END_TEST

/* A name whose own key holds the bytes, as that of another name which is to be moved, needs no other object until it was moved. */
START_TEST(name_in_the_place_of_another_one_rests_on_that_where_it_went)
{
    open_with("da/a", "1", 1);
    ck_assert_int_eq(tree_rename(fx.fs, ino_of("da"), "a", ino_of("db"), "z", 0), 0);
    link_to("db/z", "da", "a");
    assert_rests("da/a", "");
    fault("op=copy,key=da/a,action=error:-EIO");
    fs_fixture_start(&fx);
    await_done("db/z");
    assert_rests("da/a", "db/z");
    save("db", "z", "2");
    assert_waits("db/z", "da/a");
    fault("");
    all_published();
    assert_text("da/a", "1");
    assert_text("db/z", "2");
}
END_TEST

static char *bytes(void)
{
    char *b = g_malloc(SIZE);
    for (unsigned i = 0; i < SIZE; i++)
        b[i] = (char)((i * 2654435761u) >> 13);
    return b;
}

static void change(const char *path, char *model)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "changed", 7, 5 * PART);
    memcpy(model + 5 * PART, "changed", 7);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

/* Bytes that were never here came from the name's own object; since another name was published they come from that one's. */
START_TEST(changed_file_rests_on_the_name_that_was_published_first)
{
    g_autofree char *model = bytes();
    fs_fixture_object(&fx, "da/y", "y", 1);
    fx.cfg.hold_delay_ns = NS_PER_MS;
    open_with("db/b", model, SIZE);
    fs_fixture_start(&fx);
    link_to("db/b", "da", "a.tmp");
    all_published();
    fx.cfg.hold_delay_ns = 15 * NS_PER_S; /* from here on it comes after the other one */
    change("db/b", model);
    await_done("db/b");
    assert_rests("da/a.tmp", "db/b");
    save("db", "b", "2");
    all_published();
    assert_object("da/a.tmp", model, SIZE);
    assert_text("db/b", "2");
}
END_TEST

/* Its record says that it was published, its cache file was not told yet: what it was added to is of the object as well, and stays here. */
START_TEST(what_was_added_to_and_published_stays_here)
{
    g_autofree char *model = bytes();
    const uint64_t end = SIZE - META_CHUNK_BYTES / 2; /* within a chunk; others of the file were never here */
    open_with("da/a", model, end);
    INODE_REF in = fs_fixture_inode(&fx, "da/a");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_truncate(in, end - 4), 0); /* from here on its limit is in the database */
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "new+more", 8, end - 4);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    mutex_lock(&in->mu);
    ck_assert_int_eq(in->rec.content, CONTENT_SEALED);
    in->rec.content = CONTENT_CLEAN;
    in->rec.base_limit = end + 4;
    mutex_unlock(&in->mu);
    ck_assert_int_eq(content_open(in, false, false), 0);
    ck_assert_uint_eq(cache_file_limit(in->cf), end + 4);
    ck_assert(!cache_file_is_dirty(in->cf));
    content_release(in, false);
}
END_TEST

/* Only its attributes are to be sent, to the object that it has. */
START_TEST(name_that_has_its_object_rests_on_no_other)
{
    struct stat st = {.st_mode = 0600};
    open_with("da/a", "1", 1);
    fs_fixture_start(&fx);
    link_to("da/a", "db", "b");
    all_published();
    INODE_REF in = fs_fixture_inode(&fx, "da/a");
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), 0);
    assert_rests("da/a", "");
    link_to("da/a", "", "c");
    await_done("c");
    assert_rests("da/a", "");
}
END_TEST

/* The name that it is copied from cannot be taken by another file, as the database does not store that. */
START_TEST(copy_rests_where_the_database_says)
{
    (void)log_open("/dev/null", LOG_LEVEL_ERR);
    open_with("da/a", "1", 1);
    fs_fixture_start(&fx);
    link_to("da/a", "db", "b");
    all_published();
    fs_fixture_write(&fx, "db/new", "2", 1);
    all_published();
    fault("op=copy,action=error:-EIO");
    link_to("da/a", "", "c");
    assert_rests("c", "db/b");
    fs_fixture_break_database(&fx);
    ck_assert_int_lt(move_over("db", "new", "b"), 0);
    assert_rests("c", "db/b");
}
END_TEST

static struct inode *open_changed(const char *path, char *model)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "changed", 7, 5 * PART);
    memcpy(model + 5 * PART, "changed", 7);
    return in;
}

/* What its writer did not touch is in the object of its old name only. Another file takes that, and does not wait for the writer. */
START_TEST(file_that_is_being_written_rests_on_the_name_that_it_was_linked_from)
{
    g_autofree char *model = bytes();
    open_with("da/a", model, SIZE);
    fs_fixture_start(&fx);
    struct inode *in = open_changed("da/a", model);
    link_to("da/a", "db", "b");
    assert_rests("db/b", "da/a");
    save("da", "a", "2");
    ck_assert_int_eq(publish_wait(fx.fs->pub, "da", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    assert_rests("db/b", "");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(in);
    all_published();
    assert_object("db/b", model, SIZE);
    assert_text("da/a", "2");
}
END_TEST

/* The daemon ended before its writer closed it and before the delete was sent, which waits for nobody to close it. */
START_TEST(file_that_was_being_written_rests_on_the_name_that_it_was_linked_from)
{
    g_autofree char *model = bytes();
    open_with("da/a", model, SIZE);
    struct inode *in = open_changed("da/a", model);
    link_to("da/a", "db", "b");
    ck_assert_int_eq(move_over("db", "b", "c"), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, ino_of("da"), "a"), 0);
    content_abandon(in, true);
    inode_put(in);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    assert_rests("db/c", "da/a");
    fault("op=get,count=5,action=error:-EIO"); /* tried again for a while */
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "da", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(!fs_fixture_object_exists(&fx, "da/a"));
    assert_rests("db/c", "");
    ck_assert(!fs_fixture_object_exists(&fx, "db/c"));
    change("db/c", model);
    all_published();
    assert_object("db/c", model, SIZE);
}
END_TEST

/* It goes on being written, by somebody who does not say when he is done, in the directory of others. */
START_TEST(file_that_is_being_written_is_not_closed_when_its_bytes_are_brought_here)
{
    g_autofree char *model = bytes();
    open_with("da/a", model, SIZE);
    fs_fixture_start(&fx);
    struct inode *in = open_changed("da/a", model);
    link_to("da/a", "da", "b");
    save("da", "a", "2");
    save("da", "later", "3");
    for (unsigned i = 0; i < 2000 && !fs_fixture_object_exists(&fx, "da/later"); i++)
        g_usleep(10000);
    assert_text("da/later", "3");
    assert_text("da/a", "2");
    ck_assert_uint_eq(in->rec.content, CONTENT_OPEN);
    ck_assert(!fs_fixture_object_exists(&fx, "da/b"));
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(in);
    all_published();
    assert_object("da/b", model, SIZE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_base");
    TCase *t = tcase_create("base");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, name_is_copied_from_a_name_that_was_copied_before);
    tcase_add_test(t, name_in_the_place_of_another_one_rests_on_that_where_it_went);
    tcase_add_test(t, changed_file_rests_on_the_name_that_was_published_first);
    tcase_add_test(t, what_was_added_to_and_published_stays_here);
    tcase_add_test(t, name_that_has_its_object_rests_on_no_other);
    tcase_add_test(t, copy_rests_where_the_database_says);
    tcase_add_test(t, file_that_is_being_written_rests_on_the_name_that_it_was_linked_from);
    tcase_add_test(t, file_that_was_being_written_rests_on_the_name_that_it_was_linked_from);
    tcase_add_test(t, file_that_is_being_written_is_not_closed_when_its_bytes_are_brought_here);
    suite_add_tcase(s, t);
    return run_suite(s);
}
