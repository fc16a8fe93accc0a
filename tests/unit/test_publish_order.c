/* What waits for what when closed files are changed again before they are published; over a lake in a folder, without FUSE. */
#include "base/patience.h"
#include "fs/conflict.h"
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <jansson.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fs_fixture fx;

static int n_synced_unseen; /* atomic: syncs of data files while the lake has no object f */

/* Takes the place of the C library's for the whole program. */
int fdatasync(int fd)
{
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd);
    g_autofree char *path = g_file_read_link(link, NULL), *data = g_build_filename(fx.cache_dir, "data/", NULL);
    if (path && g_str_has_prefix(path, data) && !fs_fixture_object_exists(&fx, "f"))
        g_atomic_int_inc(&n_synced_unseen);
    return (int)syscall(SYS_fdatasync, fd);
}

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx); /* nothing is published before the start */
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void publish_all(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static struct inode *begin_write(const char *path, const char *text)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(cache_file_write(in->cf, text, 1, 0), 1);
    return in;
}

static void end_write(struct inode *in)
{
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(in);
}

static void write_again(const char *path, const char *text)
{
    end_write(begin_write(path, text));
}

/* The key of what the file waits for. Owned. */
static char *blocker(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    struct meta_dentry d = {0};
    json_t *told = json_object();
    ck_assert_int_eq(meta_link_first(fx.fs->meta, in->ino, &d), 0);
    publish_describe(fx.fs->pub, d.op_seq, told);
    char *key = g_strdup(json_string_value(json_object_get(told, "blocked_by")));
    json_decref(told);
    meta_dentry_clear(&d);
    return key;
}

static void assert_waits(const char *path, const char *want)
{
    g_autofree char *got = blocker(path);
    ck_assert_str_eq(got ? got : "(nothing)", want ? want : "(nothing)");
}

static void assert_object(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    ck_assert(g_file_get_contents(path, &data, NULL, NULL));
    ck_assert_str_eq(data, want);
}

START_TEST(what_waited_for_a_closed_file_waits_for_what_is_made_of_it)
{
    fs_fixture_write(&fx, "step_1/shard", "1", 1);
    fs_fixture_write(&fx, "latest", "1", 1);
    assert_waits("latest", "step_1/shard");
    struct inode *in = begin_write("step_1/shard", "2");
    assert_waits("latest", "step_1/shard");
    ck_assert_int_eq(content_flush(in, false), 0);
    assert_waits("latest", "step_1/shard");
    end_write(in);
    assert_waits("latest", "step_1/shard");
    assert_waits("step_1/shard", NULL);
    write_again("step_1/shard", "3");
    assert_waits("latest", "step_1/shard");
    publish_all();
    assert_object("step_1/shard", "3");
    assert_object("latest", "1");
}
END_TEST

/* Closed, pointed to, closed again, and only then lost to somebody else: what points to the first version waits for what took its place. */
START_TEST(what_waited_for_a_version_before_ours_waits_for_ours)
{
    uint64_t id = 0;
    fs_fixture_object(&fx, "d/shard", "base", 4);
    write_again("d/shard", "1");
    fs_fixture_write(&fx, "latest", "1", 1);
    write_again("d/shard", "2");
    fs_fixture_object(&fx, "d/shard", "theirs", 6);
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 1000 && conflict_count(fx.fs->meta, "") == 0; i++)
        usleep(10000);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx); /* nothing is published meanwhile */
    ck_assert_int_eq(conflict_find(fx.fs->meta, "d/shard", &id), 0);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id), 0);
    assert_waits("latest", "d/shard");
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    assert_waits("latest", "d/shard");
    publish_all();
    assert_object("d/shard", "2ase");
    assert_object("latest", "1");
}
END_TEST

START_TEST(marker_written_again_waits_for_what_it_points_to_now)
{
    fs_fixture_write(&fx, "run/latest", "1", 1);
    fs_fixture_write(&fx, "log", "1", 1);
    assert_waits("log", "run/latest");
    fs_fixture_write(&fx, "run/step_2/shard", "2", 1);
    write_again("run/latest", "2");
    assert_waits("log", "run/latest");
    assert_waits("run/latest", "run/step_2/shard");
    assert_waits("run/step_2/shard", NULL);
    publish_all();
    assert_object("run/latest", "2");
}
END_TEST

/* What a delete that is queued waits for. */
static void assert_delete_waits(const char *key, const char *want)
{
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->tombs, key);
    ck_assert_ptr_nonnull(o);
    struct op *b = queue_blocker_locked(p, o);
    g_autofree char *got = g_strdup(b ? b->key : "(nothing)");
    mutex_unlock(&p->mu);
    ck_assert_str_eq(got, want ? want : "(nothing)");
}

static void unlink_file(const char *dir, const char *name)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_ptr_nonnull(in); /* referenced while its name goes */
    INODE_REF parent = fs_fixture_inode(&fx, dir);
    ck_assert_int_eq(tree_unlink(fx.fs, parent->ino, name), 0);
}

static void open_again(void)
{
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
}

/* Whoever reads the store must find what the marker there names. */
START_TEST(delete_waits_for_the_marker_however_often_that_is_replaced)
{
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    fs_fixture_object(&fx, "run/latest", "1", 1);
    fs_fixture_write(&fx, "run/step_2/shard", "2", 1);
    write_again("run/latest", "2");
    struct inode *run = fs_fixture_inode(&fx, "run");
    unlink_file("run/step_1", "shard");
    fs_fixture_write(&fx, "run/step_3/shard", "3", 1);
    fs_fixture_write(&fx, "run/new", "3", 1);
    ck_assert_int_eq(tree_rename(fx.fs, run->ino, "new", run->ino, "latest", 0), 0);
    unlink_file("run/step_2", "shard");
    assert_delete_waits("run/step_1/shard", "run/latest");
    assert_waits("run/latest", "run/step_3/shard");
    inode_put(run);
    publish_all();
    assert_object("run/latest", "3");
    ck_assert(!fs_fixture_object_exists(&fx, "run/step_1/shard"));
}
END_TEST

/* Where everything waits for each other something has to give way, but never a delete. */
START_TEST(delete_waits_for_the_marker_also_where_others_wait_in_a_circle)
{
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    fs_fixture_object(&fx, "run/latest", "1", 1);
    write_again("run/latest", "2");
    fs_fixture_write(&fx, "run/note", "2", 1); /* waits for the marker, which will wait for it */
    unlink_file("run/step_1", "shard");
    fs_fixture_write(&fx, "run/log", "2", 1); /* waits for the delete, which waits for the marker */
    write_again("run/latest", "3");
    mutex_lock(&fx.fs->pub->mu);
    uint64_t wake = 0;
    g_autoptr(GString) order = g_string_new(NULL);
    for (struct op *o; (o = queue_pick_locked(fx.fs->pub, &wake)); queue_remove_locked(fx.fs->pub, o)) {
        g_string_append_printf(order, "%s ", o->key);
        queue_untake_locked(fx.fs->pub, o);
    }
    ck_assert_str_eq(order->str, "run/note run/log run/latest run/step_1/shard ");
    mutex_unlock(&fx.fs->pub->mu);
}
END_TEST

START_TEST(order_is_the_same_after_the_next_start)
{
    fs_fixture_write(&fx, "step_1/shard", "1", 1);
    fs_fixture_write(&fx, "other", "1", 1);
    fs_fixture_write(&fx, "latest", "1", 1);
    write_again("step_1/shard", "2");
    assert_waits("latest", "step_1/shard");
    open_again();
    assert_waits("latest", "step_1/shard");
    assert_waits("other", "step_1/shard");
    assert_waits("step_1/shard", NULL);
}
END_TEST

START_TEST(closed_file_that_is_changed_again_is_waited_for_after_the_next_start)
{
    fs_fixture_write(&fx, "step_1/shard", "1", 1);
    fs_fixture_write(&fx, "latest", "1", 1);
    struct inode *in = begin_write("step_1/shard", "2");
    assert_waits("latest", "step_1/shard");
    content_abandon(in, true); /* as a kill: nobody closes it */
    inode_put(in);
    open_again();
    assert_waits("latest", "step_1/shard");
    write_again("step_1/shard", "3");
    publish_all();
    assert_object("step_1/shard", "3");
}
END_TEST

START_TEST(files_of_one_directory_changed_in_turn_do_not_wait_for_ever)
{
    fs_fixture_write(&fx, "a", "1", 1);
    fs_fixture_write(&fx, "b", "1", 1);
    fs_fixture_write(&fx, "c", "1", 1);
    write_again("b", "2");
    write_again("a", "2");
    write_again("c", "2");
    write_again("a", "3");
    publish_all();
    assert_object("a", "3");
    assert_object("b", "2");
    assert_object("c", "2");
}
END_TEST

START_TEST(many_that_may_not_run_yet_hide_nothing)
{
    fs_fixture_close(&fx);
    fx.cfg.order = ORDER_NONE;
    fs_fixture_open(&fx);
    for (unsigned i = 0; i < 1001; i++) {
        g_autofree char *name = g_strdup_printf("%u.tmp", i); /* held */
        fs_fixture_write(&fx, name, "1", 1);
    }
    fs_fixture_write(&fx, "last", "1", 1);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "last", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    assert_object("last", "1");
}
END_TEST

/* The directory's first file is held, and a thousand others wait for it. */
static void block_a_thousand(const char *dir)
{
    for (unsigned i = 0; i < 1100; i++) {
        g_autofree char *path = g_strdup_printf(i ? "%s/%u" : "%s/%u.tmp", dir, i);
        fs_fixture_write(&fx, path, "1", 1);
    }
}

static void await_published(const char *path)
{
    ck_assert_msg(publish_wait(fx.fs->pub, path, clock_mono_ns() + 20 * NS_PER_S, NULL, NULL) == 0, "%s", path);
}

static void change_attributes(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    fs_fixture_change_attributes(&fx, in->ino);
}

static bool is_staged(const char *key)
{
    mutex_lock(&fx.fs->pub->mu);
    const struct op *o = g_hash_table_lookup(fx.fs->pub->by_key, key);
    bool staged = o && o->staged;
    mutex_unlock(&fx.fs->pub->mu);
    return staged;
}

/* Be it a file, a delete, attributes or a marker; parts are sent meanwhile too. */
START_TEST(a_thousand_that_wait_hide_nothing)
{
    static const size_t size = 3 * 64 << 10;
    g_autofree char *big = g_malloc0(size);
    INODE_REF in = NULL;
    fs_fixture_close(&fx);
    fx.cfg.part_size = 64 << 10;
    fx.cfg.rule = g_strdup("free/**=order=none");
    fs_fixture_object(&fx, "free/x", "1", 1);
    fs_fixture_object(&fx, "free/y", "1", 1);
    fs_fixture_open(&fx);
    block_a_thousand("a");
    fs_fixture_write(&fx, "free/first.tmp", "1", 1);
    fs_fixture_write(&fx, "free/new", "1", 1);
    unlink_file("free", "x");
    change_attributes("free/y");
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "e", .mode = S_IFDIR | 0755};
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    fs_fixture_write(&fx, "a/big", big, size);
    fs_fixture_start(&fx);
    await_published("free/new");
    await_published("free/x");
    await_published("free/y");
    await_published("e");
    for (unsigned i = 0; i < 2000 && !is_staged("a/big"); i++)
        g_usleep(10000);
    ck_assert(is_staged("a/big"));
    ck_assert(!fs_fixture_object_exists(&fx, "free/x"));
    ck_assert(fs_fixture_object_exists(&fx, "free/new"));
}
END_TEST

START_TEST(a_thousand_that_wait_hide_no_circle)
{
    block_a_thousand("a");
    fs_fixture_write(&fx, "c/a", "1", 1);
    fs_fixture_write(&fx, "c/b", "1", 1);
    write_again("c/a", "2");
    write_again("c/b", "2");
    write_again("c/a", "3");
    fs_fixture_start(&fx);
    await_published("c");
    assert_object("c/a", "3");
    assert_object("c/b", "2");
}
END_TEST

/* What the publisher would run next, not marked so; NULL: nothing. */
static struct op *next_op(uint64_t *ret_wake_ns)
{
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    struct op *o = queue_pick_locked(p, ret_wake_ns);
    if (o)
        queue_untake_locked(p, o);
    mutex_unlock(&p->mu);
    return o;
}

static uint64_t rests_until(void)
{
    mutex_lock(&fx.fs->pub->mu);
    uint64_t until = fx.fs->pub->rest_until_ns;
    mutex_unlock(&fx.fs->pub->mu);
    return until;
}

static void set_rest(uint64_t until_ns)
{
    mutex_lock(&fx.fs->pub->mu);
    fx.fs->pub->rest_until_ns = until_ns;
    mutex_unlock(&fx.fs->pub->mu);
}

static void put_off(struct op *o, void *until_ns)
{
    if (o->not_before_ns)
        o->not_before_ns = *(uint64_t *)until_ns;
}

START_TEST(queue_is_not_looked_through_for_each_file_that_waits)
{
    enum { N = 300 };
    uint64_t wake = 0, later = clock_mono_ns() + 3600 * NS_PER_S;
    for (unsigned i = 0; i < N; i++) {
        g_autofree char *path = g_strdup_printf("a/f%03u", i);
        fs_fixture_write(&fx, path, "text", 4);
    }
    g_sequence_foreach(fx.fs->pub->all, (GFunc)put_off, &later); /* the marker, however long this took */
    struct op *first = next_op(&wake);
    ck_assert_ptr_nonnull(first);
    ck_assert_str_eq(first->key, "a/f000");
    ck_assert_uint_eq(rests_until(), 0);
    first->not_before_ns = clock_mono_ns() + 3600 * NS_PER_S; /* the store does not answer: all others wait for it */
    uint64_t began = clock_mono_ns();
    ck_assert_ptr_null(next_op(&wake));
    ck_assert_uint_ge(rests_until(), began + (N - 1) * 20000);
    uint64_t until = clock_mono_ns() + 600 * NS_PER_S;
    set_rest(until);
    fs_fixture_write(&fx, "a/g", "text", 4);
    ck_assert_uint_eq(rests_until(), until);
    ck_assert_ptr_null(next_op(&wake));
    ck_assert_uint_eq(wake, until);
    fs_fixture_write(&fx, "b/f", "text", 4); /* waits for nobody */
    ck_assert_uint_eq(rests_until(), 0);
    struct op *other = next_op(&wake);
    ck_assert_ptr_nonnull(other);
    ck_assert_str_eq(other->key, "b/f");
    other->not_before_ns = first->not_before_ns;
    set_rest(until);
    mutex_lock(&fx.fs->ns); /* the first one goes: those behind it may run */
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    struct meta_dentry d = {.op_seq = first->rec.seq};
    publish_drop_name(fx.fs, b, &d);
    publish_apply(fx.fs, true);
    meta_batch_free(b);
    mutex_unlock(&fx.fs->ns);
    ck_assert_uint_eq(rests_until(), 0);
    struct op *second = next_op(&wake);
    ck_assert_ptr_nonnull(second);
    ck_assert_str_eq(second->key, "a/f001");
}
END_TEST

/* When all was looked at the next look comes with the first timed one, wherever in the queue that is. */
START_TEST(looks_through_a_long_queue_end)
{
    uint64_t wake = 0, at = clock_mono_ns() + 3600 * NS_PER_S, later = at + 1;
    block_a_thousand("c");
    fs_fixture_write(&fx, "b/e.tmp", "1", 1);
    fs_fixture_write(&fx, "b/f", "1", 1);
    block_a_thousand("a");
    g_sequence_foreach(fx.fs->pub->all, (GFunc)put_off, &later);
    struct op *timed = g_hash_table_lookup(fx.fs->pub->by_key, "b/f");
    timed->not_before_ns = at;
    unsigned looks = 0;
    do {
        set_rest(0);
        ck_assert_ptr_null(next_op(&wake));
    } while (wake != at && ++looks < 10);
    ck_assert_uint_eq(wake, at);
    ck_assert_uint_ge(looks, 1);
    set_rest(0);
    ck_assert_ptr_null(next_op(&wake));
    ck_assert_uint_eq(wake, rests_until()); /* anew */
}
END_TEST

/* Whose files may wait for each other. */
static void order_by_mount(void)
{
    fs_fixture_close(&fx);
    fx.cfg.order = ORDER_MOUNT;
    fs_fixture_open(&fx);
}

/* As after the store was away while all was written again. Others need the queue meanwhile: a thousand are seen to at a time, and each time that many. */
START_TEST(large_circle_is_undone_by_few_looks)
{
    enum { N = 1500 };
    uint64_t wake = 0, later = clock_mono_ns() + 3600 * NS_PER_S;
    order_by_mount();
    for (unsigned i = 0; i < 2 * N; i++) {
        g_autofree char *path = g_strdup_printf("a/%u", i % N);
        if (i < N)
            fs_fixture_write(&fx, path, "1", 1);
        else
            write_again(path, "2");
    }
    g_sequence_foreach(fx.fs->pub->all, (GFunc)put_off, &later); /* the marker, however long this took */
    ck_assert_ptr_null(next_op(&wake));
    ck_assert_uint_eq(wake, rests_until());
    set_rest(0);
    struct op *o = next_op(&wake);
    ck_assert_ptr_nonnull(o);
    ck_assert_str_eq(o->key, "a/0");
}
END_TEST

/* One whose parts can be sent is found each time, and changes go on. */
START_TEST(parts_that_are_sent_hide_nothing_that_comes_behind_a_thousand)
{
    uint64_t wake = 0, later = clock_mono_ns() + 3600 * NS_PER_S;
    fs_fixture_close(&fx);
    fx.cfg.rule = g_strdup("free/**=order=none");
    fs_fixture_open(&fx);
    block_a_thousand("a");
    fs_fixture_write(&fx, "free/first.tmp", "1", 1);
    g_sequence_foreach(fx.fs->pub->all, (GFunc)put_off, &later); /* the marker, however long this takes */
    struct op *large = g_hash_table_lookup(fx.fs->pub->by_key, "a/5");
    large->bytes = 1 << 30;
    while (fx.fs->pub->looked_to != UINT64_MAX)
        ck_assert_ptr_eq(next_op(&wake), large);
    fs_fixture_write(&fx, "free/new", "1", 1);
    struct op *o = large;
    for (unsigned looks = 0; o == large && looks < 10; looks++)
        o = next_op(&wake);
    ck_assert_str_eq(o->key, "free/new");
}
END_TEST

/* Until there is something to run, or no other look is to come: NULL then. */
static struct op *look_on(void)
{
    struct op *o = NULL;
    uint64_t wake = 0;
    do {
        set_rest(0);
        o = next_op(&wake);
    } while (!o && wake == rests_until());
    return o;
}

static void set_content(struct op *o, uint32_t content)
{
    mutex_lock(&fx.fs->pub->mu);
    queue_set_content_locked(fx.fs->pub, o, content);
    mutex_unlock(&fx.fs->pub->mu);
}

/* Though it has to wait for others then, and the looks that are to come begin behind it. */
START_TEST(what_is_closed_after_it_was_passed_by_is_looked_at_again)
{
    uint64_t wake = 0, later = clock_mono_ns() + 3600 * NS_PER_S;
    block_a_thousand("a");
    block_a_thousand("b");
    g_sequence_foreach(fx.fs->pub->all, (GFunc)put_off, &later);
    struct op *o = g_hash_table_lookup(fx.fs->pub->by_key, "a/1050");
    o->bytes = 1 << 30; /* parts of it can be sent */
    set_content(o, CONTENT_OPEN);
    ck_assert_ptr_null(look_on());
    set_rest(0);
    ck_assert_ptr_null(next_op(&wake));
    ck_assert_uint_gt(fx.fs->pub->looked_to, o->rec.seq);
    ck_assert_uint_ne(fx.fs->pub->looked_to, UINT64_MAX);
    set_content(o, CONTENT_SEALED);
    ck_assert_ptr_eq(look_on(), o);
}
END_TEST

START_TEST(what_a_circle_kept_is_looked_at_again)
{
    uint64_t wake = 0, later = clock_mono_ns() + 3600 * NS_PER_S;
    order_by_mount();
    fs_fixture_write(&fx, "c/a", "1", 1);
    fs_fixture_write(&fx, "c/b", "1", 1);
    ((struct op *)g_hash_table_lookup(fx.fs->pub->by_key, "c/a"))->not_before_ns = later;
    ((struct op *)g_hash_table_lookup(fx.fs->pub->by_key, "c/b"))->not_before_ns = later;
    ck_assert_ptr_null(look_on());
    write_again("c/a", "2");
    write_again("c/b", "2");
    struct publisher *p = fx.fs->pub;
    set_rest(0);
    mutex_lock(&p->mu);
    ck_assert_uint_eq(p->looked_to, UINT64_MAX);
    struct op *o = queue_pick_locked(p, &wake);
    ck_assert_ptr_nonnull(o);
    ck_assert(p->look_again);
    queue_untake_locked(p, o);
    mutex_unlock(&p->mu);
}
END_TEST

/* What a listing that began before shows of it is wrong. */
START_TEST(delete_of_a_moment_ago_is_remembered)
{
    static const char *const keys[] = {"a", "d/b"};
    uint64_t before = meta_last_seq(fx.fs->meta);
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    queue_note_deleted_locked(p, "old");
    for (unsigned i = 0; i < G_N_ELEMENTS(keys); i++) {
        clock_fake_advance(400 * NS_PER_S);
        queue_note_deleted_locked(p, keys[i]);
    }
    mutex_unlock(&p->mu);
    ck_assert(publish_key_deleted(p, "a", before));
    ck_assert(publish_key_deleted(p, "d/b", before));
    ck_assert(publish_key_deleted(p, "d/", before));
    ck_assert(!publish_key_deleted(p, "old", before));
}
END_TEST

/* `publish --skip` of a loser that `conflicts keep-mine` is bringing back. */
START_TEST(op_given_up_too_late_leaves_the_record_to_its_successor)
{
    fs_fixture_write(&fx, "f", "1", 1);
    struct inode *in = fs_fixture_inode(&fx, "f");
    struct fs *fs = fx.fs;
    struct meta_dentry d = {0};
    struct meta_batch *b = meta_batch_new(fs->meta);
    ck_assert_int_eq(meta_link_first(fs->meta, in->ino, &d), 0);
    mutex_lock(&fs->pub->mu);
    struct op *o = g_hash_table_lookup(fs->pub->by_seq, &d.op_seq);
    queue_take_locked(fs->pub, o);
    mutex_unlock(&fs->pub->mu);
    mutex_lock(&fs->ns);
    publish_again(fs, b, &d);
    meta_dentry_put(b, &d);
    ck_assert_int_eq(meta_commit(b, false), 0);
    publish_apply(fs, true);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    meta_dentry_clear(&d);
    int r = pubop_forget(o);
    pubop_finish(o, r);
    ck_assert_int_eq(r, 0);
    inode_put(in);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    publish_all();
    assert_object("f", "1");
}
END_TEST

START_TEST(file_that_was_only_flushed_blocks_nobody_while_it_is_written)
{
    fs_fixture_write(&fx, "first", "1", 1);
    struct node_spec spec = {
        .parent = META_ROOT_INO, .name = "log", .mode = S_IFREG | 0644, .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_write(&fx, "latest", "1", 1);
    assert_waits("latest", "first");
    ck_assert_int_eq(content_flush(in, false), 0);
    assert_waits("latest", "first");
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "latest", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    content_release(in, true);
}
END_TEST

static bool is_put_off(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    struct meta_dentry d = {0};
    ck_assert_int_eq(meta_link_first(fx.fs->meta, in->ino, &d), 0);
    mutex_lock(&fx.fs->pub->mu);
    const struct op *o = g_hash_table_lookup(fx.fs->pub->by_seq, &d.op_seq);
    ck_assert_ptr_nonnull(o);
    bool put_off = o->not_before_ns > clock_mono_ns();
    mutex_unlock(&fx.fs->pub->mu);
    meta_dentry_clear(&d);
    return put_off;
}

START_TEST(marker_of_an_empty_directory_is_not_put_off_when_somebody_waits)
{
    INODE_REF root = fs_fixture_inode(&fx, "");
    static const char *const names[] = {"a", "b"};
    for (unsigned i = 0; i < 2; i++) {
        INODE_REF in = NULL;
        struct node_spec spec = {.parent = root->ino, .name = names[i], .mode = S_IFDIR | 0755};
        ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
        ck_assert(is_put_off(names[i]));
    }
    ck_assert_int_eq(publish_wait(fx.fs->pub, "a", 1, NULL, NULL), -ETIMEDOUT);
    ck_assert(!is_put_off("a"));
    ck_assert(is_put_off("b"));
}
END_TEST

START_TEST(bytes_are_on_the_disk_before_they_are_visible)
{
    static const size_t sizes[] = {5, 5 * 64 << 10};
    fs_fixture_close(&fx);
    fx.cfg.part_size = 64 << 10;
    fs_fixture_open(&fx);
    g_autofree char *text = g_malloc0(sizes[_i]);
    g_atomic_int_set(&n_synced_unseen, 0);
    fs_fixture_write(&fx, "f", text, sizes[_i]);
    ck_assert_int_eq(g_atomic_int_get(&n_synced_unseen), 0);
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "f"));
    ck_assert_int_ge(g_atomic_int_get(&n_synced_unseen), 1);
}
END_TEST

START_TEST(bytes_get_to_the_disk_though_the_store_does_not_answer)
{
    static const size_t size = 5 * 64 << 10;
    fs_fixture_close(&fx);
    fx.cfg.part_size = 64 << 10;
    fx.cfg.fault = g_strdup("op=part,action=error:-EIO");
    fs_fixture_open(&fx);
    g_autofree char *text = g_malloc0(size);
    g_atomic_int_set(&n_synced_unseen, 0);
    fs_fixture_write(&fx, "f", text, size);
    fs_fixture_start(&fx);
    for (int i = 0; i < 2000 && g_atomic_int_get(&n_synced_unseen) == 0; i++)
        g_usleep(10000);
    ck_assert_int_ge(g_atomic_int_get(&n_synced_unseen), 1);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    bool synced = false;
    for (int i = 0; i < 2000 && !synced; i++) {
        g_usleep(10000);
        mutex_lock(&in->mu);
        synced = in->rec.flags & INODE_DATA_SYNCED;
        mutex_unlock(&in->mu);
    }
    ck_assert(synced && !fs_fixture_object_exists(&fx, "f"));
}
END_TEST

static void *stop_soon(void *stop)
{
    g_usleep(300000);
    __atomic_store_n((int *)stop, 1, __ATOMIC_RELAXED);
    return NULL;
}

static unsigned threads_now(void)
{
    mutex_lock(&fx.fs->pub->mu);
    unsigned n = fx.fs->pub->n_now;
    mutex_unlock(&fx.fs->pub->mu);
    return n;
}

/* A program that was interrupted while its file waited for a held one. */
START_TEST(thread_ends_with_the_program_that_it_waited_for)
{
    int stop = 0;
    struct patience patience;
    fs_fixture_write(&fx, "held.tmp", "1", 1);
    fs_fixture_write(&fx, "f", "2", 1);
    fs_fixture_start(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    GThread *other = g_thread_new("stop", stop_soon, &stop);
    patience_begin(&patience, 0, clock_mono_ns(), 0);
    patience.stop = &stop;
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 600 * NS_PER_S), -EINTR);
    patience_end();
    g_thread_join(other);
    for (unsigned tries = 0; threads_now() > 0; tries++) {
        ck_assert_uint_lt(tries, 1000);
        g_usleep(10000);
    }
    ck_assert_int_gt(publish_retry(fx.fs->pub, ""), 0); /* others go on with it */
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_order");
    TCase *tc = tcase_create("order");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, what_waited_for_a_closed_file_waits_for_what_is_made_of_it);
    tcase_add_test(tc, what_waited_for_a_version_before_ours_waits_for_ours);
    tcase_add_test(tc, marker_written_again_waits_for_what_it_points_to_now);
    tcase_add_test(tc, delete_waits_for_the_marker_however_often_that_is_replaced);
    tcase_add_test(tc, delete_waits_for_the_marker_also_where_others_wait_in_a_circle);
    tcase_add_test(tc, order_is_the_same_after_the_next_start);
    tcase_add_test(tc, closed_file_that_is_changed_again_is_waited_for_after_the_next_start);
    tcase_add_test(tc, files_of_one_directory_changed_in_turn_do_not_wait_for_ever);
    tcase_add_test(tc, many_that_may_not_run_yet_hide_nothing);
    tcase_add_test(tc, a_thousand_that_wait_hide_nothing);
    tcase_add_test(tc, a_thousand_that_wait_hide_no_circle);
    tcase_add_test(tc, looks_through_a_long_queue_end);
    tcase_add_test(tc, large_circle_is_undone_by_few_looks);
    tcase_add_test(tc, parts_that_are_sent_hide_nothing_that_comes_behind_a_thousand);
    tcase_add_test(tc, what_is_closed_after_it_was_passed_by_is_looked_at_again);
    tcase_add_test(tc, what_a_circle_kept_is_looked_at_again);
    tcase_add_test(tc, queue_is_not_looked_through_for_each_file_that_waits);
    tcase_add_test(tc, delete_of_a_moment_ago_is_remembered);
    tcase_add_test(tc, op_given_up_too_late_leaves_the_record_to_its_successor);
    tcase_add_test(tc, file_that_was_only_flushed_blocks_nobody_while_it_is_written);
    tcase_add_test(tc, marker_of_an_empty_directory_is_not_put_off_when_somebody_waits);
    tcase_add_test(tc, bytes_get_to_the_disk_though_the_store_does_not_answer);
    tcase_add_loop_test(tc, bytes_are_on_the_disk_before_they_are_visible, 0, 2);
    tcase_add_test(tc, thread_ends_with_the_program_that_it_waited_for);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
