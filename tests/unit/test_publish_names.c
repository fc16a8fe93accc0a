/* A file in the place of a directory and the other way round: what leaves the store and what comes there; over a lake in a folder, which cannot hold both, without FUSE. */
#include "base/clock.h"
#include "cache.h"
#include "fs/content.h"
#include "fs/links.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <jansson.h>
#include <stdio.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.op_timeout_ns = 15 * NS_PER_S;                            /* who waits for nothing is told in time */
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* changed later */
    fs_fixture_open(&fx);                                            /* nothing is published before the start */
    fs_fixture_object(&fx, "f", "file", 4);
    fs_fixture_object(&fx, "d/x", "below", 5);
    fs_fixture_object(&fx, "d/y", "beside", 6);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void publish_all(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void make_dir(const char *name)
{
    struct node_spec spec = {
        .parent = META_ROOT_INO, .name = name, .mode = S_IFDIR | 0755, .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
}

/* Of a path: its directory and last component. */
static uint64_t parent_of(const char *path, const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    g_autofree char *dir = slash ? g_strndup(path, (gsize)(slash - path)) : g_strdup("");
    INODE_REF in = fs_fixture_inode(&fx, dir);
    *ret_name = slash ? slash + 1 : path;
    return in->ino;
}

static void move(const char *from, const char *to, unsigned flags)
{
    const char *n1, *n2;
    uint64_t p1 = parent_of(from, &n1), p2 = parent_of(to, &n2);
    ck_assert_int_eq(tree_rename(fx.fs, p1, n1, p2, n2, flags), 0);
}

static void drop(const char *path)
{
    const char *name;
    inode_put(fs_fixture_inode(&fx, path)); /* known, as after a lookup */
    uint64_t dir = parent_of(path, &name);
    ck_assert_int_eq(tree_unlink(fx.fs, dir, name), 0);
}

static void drop_dir(const char *path)
{
    const char *name;
    uint64_t dir = parent_of(path, &name);
    ck_assert_int_eq(tree_rmdir(fx.fs, dir, name), 0);
}

static void assert_object(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *have = NULL;
    ck_assert_msg(g_file_get_contents(path, &have, NULL, NULL), "no object %s", key);
    ck_assert_str_eq(have, want);
}

static bool object_is(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *have = NULL;
    return g_file_get_contents(path, &have, NULL, NULL) && g_str_equal(have, want);
}

static void make_file(const char *path)
{
    fs_fixture_write(&fx, path, "new", 3);
}

static void move_directory_away(void)
{
    make_dir("to");
    move("d", "to/d", 0);
    make_file("d");
}

static void assert_directory_away(void)
{
    assert_object("to/d/x", "below");
    assert_object("to/d/y", "beside");
    assert_object("d", "new");
}

START_TEST(file_comes_after_the_directory_moved_away)
{
    move_directory_away();
    fs_fixture_start(&fx);
    publish_all();
    assert_directory_away();
}
END_TEST

/* It waits for the file that waits for what was below the directory. */
START_TEST(what_is_closed_after_that_file_does_not_keep_it)
{
    move_directory_away();
    make_file("later");
    fs_fixture_start(&fx);
    publish_all();
    assert_directory_away();
    assert_object("later", "new");
}
END_TEST

START_TEST(file_comes_after_the_marker_moved_away)
{
    fs_fixture_start(&fx);
    make_dir("empty");
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "empty"));
    make_dir("to");
    move("empty", "to/empty", 0);
    make_file("empty");
    publish_all();
    assert_object("empty", "new");
    ck_assert(fs_fixture_object_exists(&fx, "to/empty"));
}
END_TEST

/* Between the copy and the look at it: theirs is not taken for ours, and what ours was made from stays. */
START_TEST(copy_that_somebody_replaces_at_once_is_a_conflict)
{
    int64_t conflicts = metric_get(M_conflicts_total);
    move("f", "g", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=head,action=delay:1s"), 0);
    fs_fixture_start(&fx);
    uint64_t deadline = clock_mono_ns() + 20 * NS_PER_S;
    while (!fs_fixture_object_exists(&fx, "g") && clock_mono_ns() < deadline)
        g_usleep(1000);
    fs_fixture_object(&fx, "g", "them", 4);
    while (metric_get(M_conflicts_total) == conflicts && fs_fixture_object_exists(&fx, "f") &&
           clock_mono_ns() < deadline)
        g_usleep(1000);
    ck_assert_int_eq(metric_get(M_conflicts_total), conflicts + 1);
    assert_object("f", "file");
    assert_object("g", "them");
}
END_TEST

START_TEST(files_come_after_the_file_of_their_directory_s_name_moved_away)
{
    move("f", "t", 0);
    make_file("f/a");
    fs_fixture_start(&fx);
    publish_all();
    assert_object("f/a", "new");
    assert_object("t", "file");
}
END_TEST

START_TEST(file_goes_below_its_own_name)
{
    move("f", "t", 0);
    make_dir("f");
    move("t", "f/t", 0);
    fs_fixture_start(&fx);
    publish_all();
    assert_object("f/t", "file");
}
END_TEST

START_TEST(file_takes_the_name_of_its_directory)
{
    move("d/x", "t", 0);
    drop("d/y");
    drop_dir("d");
    move("t", "d", 0);
    fs_fixture_start(&fx);
    publish_all();
    assert_object("d", "below");
}
END_TEST

START_TEST(file_and_directory_change_places)
{
    move("f", "d", RENAME_EXCHANGE);
    fs_fixture_start(&fx);
    publish_all();
    assert_object("d", "file");
    assert_object("f/x", "below");
    assert_object("f/y", "beside");
}
END_TEST

START_TEST(file_and_directory_change_places_by_a_third_name)
{
    move("f", "t", 0);
    move("d", "f", 0);
    move("t", "d", 0);
    make_file("later");
    fs_fixture_start(&fx);
    publish_all();
    assert_object("d", "file");
    assert_object("f/x", "below");
    assert_object("f/y", "beside");
}
END_TEST

static bool waits_at_gate(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    mutex_lock(&fx.fs->pub->mu);
    GPtrArray *a = g_hash_table_lookup(fx.fs->pub->by_ino, &in->ino);
    bool waits = a && ((struct op *)a->pdata[0])->at_gate;
    mutex_unlock(&fx.fs->pub->mu);
    return waits;
}

/* As fsync with --fsync remote does. */
static void *publish_one(void *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return GINT_TO_POINTER(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S));
}

/* Somebody waits for each of these; nothing else gets on before all do. */
static void publish_at_once(const char *const *paths)
{
    GThread *threads[4] = {0};
    for (unsigned i = 0; paths[i]; i++)
        threads[i] = g_thread_new("now", publish_one, (void *)(uintptr_t)paths[i]);
    for (unsigned i = 0; paths[i]; i++)
        while (!waits_at_gate(paths[i]))
            g_usleep(1000);
    fs_fixture_start(&fx);
    for (unsigned i = 0; paths[i]; i++)
        ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(threads[i])), 0);
}

START_TEST(who_waits_for_a_file_that_went_below_its_own_name_sees_it_there)
{
    move("f", "t", 0);
    make_dir("f");
    move("t", "f/t", 0);
    publish_at_once((const char *const[]){"f/t", NULL});
    assert_object("f/t", "file");
    publish_all();
}
END_TEST

START_TEST(those_who_wait_for_files_that_changed_places_see_them_there)
{
    move("d/x", "t", 0);
    move("d/y", "d/x", 0);
    move("t", "d/y", 0);
    publish_at_once((const char *const[]){"d/x", "d/y", NULL});
    assert_object("d/x", "beside");
    assert_object("d/y", "below");
    publish_all();
}
END_TEST

static bool refused(const char *key)
{
    mutex_lock(&fx.fs->pub->mu);
    const struct op *o = g_hash_table_lookup(fx.fs->pub->tombs, key);
    bool yes = o && o->refused;
    mutex_unlock(&fx.fs->pub->mu);
    return yes;
}

static void await_refusal(const char *key)
{
    while (!refused(key))
        g_usleep(10000);
}

/* What is told of a path that waits. Owned. */
static json_t *told(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    struct meta_dentry d = {0};
    json_t *o = json_object();
    ck_assert_int_eq(meta_link_first(fx.fs->meta, in->ino, &d), 0);
    publish_describe(fx.fs->pub, d.op_seq, o);
    meta_dentry_clear(&d);
    return o;
}

static void refuse_deletes(bool refuse)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, refuse ? "op=delete,action=error:-EACCES" : ""), 0);
}

static int wait_for(const char *path)
{
    return publish_wait(fx.fs->pub, path, clock_mono_ns() + 20 * NS_PER_S, NULL, NULL);
}

/* Nobody sees less of it than before, so nobody is kept from what is new. */
START_TEST(delete_that_is_refused_keeps_nobody_else)
{
    refuse_deletes(true);
    drop("d/x");
    fs_fixture_start(&fx);
    await_refusal("d/x");
    make_file("d/z");
    make_file("later");
    ck_assert_int_eq(wait_for("d/z"), 0);
    ck_assert_int_eq(wait_for("later"), 0);
    assert_object("d/z", "new");
    assert_object("later", "new");
    ck_assert(publish_key_deleted(fx.fs->pub, "d/x", 0)); /* listings do not bring it back */
    ck_assert(publish_key_deleted(fx.fs->pub, "d/", 0));
    refuse_deletes(false);
    publish_all();
    ck_assert(!fs_fixture_object_exists(&fx, "d/x"));
}
END_TEST

/* Nothing can come of it before somebody decides: the wait ends. What else is left below the path is waited for first. */
START_TEST(wait_ends_when_only_refused_deletes_are_left)
{
    int err = 0;
    refuse_deletes(true);
    drop("d/x");
    fs_fixture_start(&fx);
    make_file("d/z");
    uint64_t began_ns = clock_mono_ns();
    ck_assert_int_eq(wait_for("d"), -EIO);
    ck_assert_uint_lt(clock_mono_ns() - began_ns, 15 * NS_PER_S);
    assert_object("d/z", "new");
    g_autofree char *key = publish_find_refused(fx.fs->pub, "d", &err);
    ck_assert_str_eq(key, "d/x");
    ck_assert_int_eq(err, -EACCES);
    ck_assert_int_gt(publish_retry(fx.fs->pub, "d/x"), 0);
    ck_assert(!refused("d/x"));
    await_refusal("d/x");
    ck_assert_int_eq(publish_skip(fx.fs->pub, "d/x"), 1);
    ck_assert_int_eq(wait_for("d"), 0);
    ck_assert(fs_fixture_object_exists(&fx, "d/x"));
}
END_TEST

/* A folder takes no file beside the other one: that is told, and goes on once it is let. */
START_TEST(file_that_cannot_stand_beside_what_is_not_deleted_tells_why_it_waits)
{
    refuse_deletes(true);
    drop("f");
    drop("d/x");
    drop("d/y");
    drop_dir("d");
    make_file("d");
    make_file("f/a");
    fs_fixture_start(&fx);
    await_refusal("f");
    await_refusal("d/x");
    json_t *below = told("f/a"), *above = told("d");
    ck_assert_str_eq(json_string_value(json_object_get(below, "blocked_by")), "f");
    ck_assert_ptr_nonnull(json_string_value(json_object_get(below, "blocked_by_error")));
    ck_assert(g_str_has_prefix(json_string_value(json_object_get(above, "blocked_by")), "d/"));
    json_decref(below);
    json_decref(above);
    refuse_deletes(false);
    publish_all();
    assert_object("f/a", "new");
    assert_object("d", "new");
}
END_TEST

/* One call takes all of them; nothing is called skipped that the database did not forget. */
START_TEST(skip_takes_all_and_tells_when_the_database_fails)
{
    refuse_deletes(true);
    drop("d/x");
    drop("d/y");
    fs_fixture_start(&fx);
    await_refusal("d/x");
    await_refusal("d/y");
    ck_assert_int_eq(publish_skip(fx.fs->pub, "elsewhere"), 0);
    if (_i)
        fs_fixture_break_database(&fx);
    int n = publish_skip(fx.fs->pub, "d");
    ck_assert(_i ? n < 0 : n == 2);
}
END_TEST

static void read_whole(const char *path)
{
    struct cfile *cf = NULL;
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    content_unuse(in, cf);
}

static void link_to(const char *from, const char *to)
{
    INODE_REF in = fs_fixture_inode(&fx, from);
    INODE_REF made = NULL;
    ck_assert_int_eq(tree_link(fx.fs, in->ino, META_ROOT_INO, to, &made), 0);
}

/* 0: renamed, 1: one more name. */
static void take_over(int how, const char *from, const char *to)
{
    if (how == 0)
        move(from, to, 0);
    else
        link_to(from, to);
}

static void remove_object(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

/* Somebody else removes the object before it is copied: what is here of it is sent, in its turn. */
START_TEST(name_whose_object_is_removed_elsewhere_is_sent_from_here)
{
    int64_t conflicts = metric_get(M_conflicts_total);
    read_whole("f");
    take_over(_i, "f", "g");
    make_file("later");
    remove_object("f");
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=put,key=g,action=error:-EIO"), 0);
    int64_t failures = metric_get(M_publish_failures);
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 10000 && metric_get(M_publish_failures) == failures; i++)
        g_usleep(1000);
    ck_assert(!fs_fixture_object_exists(&fx, "later"));
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    publish_all();
    assert_object("g", "file");
    assert_object("later", "new");
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert_int_eq(metric_get(M_conflicts_total), conflicts);
}
END_TEST

/* Nothing of it is here: who waits is told, and may go on without it. */
START_TEST(name_whose_only_bytes_are_removed_elsewhere_can_be_skipped)
{
    inode_put(fs_fixture_inode(&fx, "f"));
    take_over(_i, "f", "g");
    make_file("later");
    remove_object("f");
    fs_fixture_start(&fx);
    ck_assert_int_eq(wait_for(""), -EIO);
    json_t *o = told("g");
    ck_assert_str_eq(json_string_value(json_object_get(o, "upload_state")), "parked");
    json_decref(o);
    ck_assert_int_eq(publish_skip(fx.fs->pub, "g"), 1);
    publish_all();
    assert_object("later", "new");
}
END_TEST

START_TEST(copy_that_no_store_can_make_is_not_tried_for_ever)
{
    move("f", "g", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=copy,action=error:-EXDEV"), 0);
    fs_fixture_start(&fx);
    ck_assert_int_eq(wait_for(""), -EIO);
    json_t *o = told("g");
    ck_assert_str_eq(json_string_value(json_object_get(o, "upload_state")), "parked");
    json_decref(o);
}
END_TEST

static bool is_parked(const char *path)
{
    json_t *o = told(path);
    bool parked = g_strcmp0(json_string_value(json_object_get(o, "upload_state")), "parked") == 0;
    json_decref(o);
    return parked;
}

/* How often the op that is to bring it failed; *ret_wait_ns: until it is tried again. */
static unsigned failures_of(const char *key, uint64_t *ret_wait_ns)
{
    mutex_lock(&fx.fs->pub->mu);
    const struct op *o = g_hash_table_lookup(fx.fs->pub->by_key, key);
    unsigned n = o ? o->failures : 0;
    uint64_t now = clock_mono_ns(), at = o ? o->not_before_ns : 0;
    mutex_unlock(&fx.fs->pub->mu);
    if (ret_wait_ns)
        *ret_wait_ns = at > now ? at - now : 0;
    return n;
}

/* The next try of the op, which fails. */
static void fail_again(const char *key)
{
    uint64_t wait_ns;
    unsigned n = failures_of(key, &wait_ns);
    clock_fake_advance(wait_ns);
    EVENTUALLY(failures_of(key, NULL) > n);
}

/* Something else comes to that directory, and is taken. */
static void send_another(const char *dir, unsigned i)
{
    g_autofree char *path = g_strdup_printf("%s/other%u", dir, i);
    make_file(path);
    ck_assert_int_eq(wait_for(path), 0);
}

#define LONG_NS (600 * NS_PER_S)

static void retry_is_taken(void)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    ck_assert_int_eq(publish_retry(fx.fs->pub, "g"), 1);
    publish_all();
    assert_object("g", "file");
}

/* As Ceph does names that are no text. Not at once: who sees to it has some time. */
START_TEST(name_that_the_store_alone_refuses_is_parked)
{
    move("f", "g", 0);
    ck_assert_int_eq(
        objstore_fault_set(fx.fs->store, _i ? "op=copy,action=error:-EREMOTEIO" : "op=copy,action=error:-EACCES"), 0);
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 9; i++) {
        fail_again("g");
        send_another("d", i);
    }
    ck_assert(!is_parked("g"));
    clock_fake_advance(LONG_NS);
    EVENTUALLY(is_parked("g"));
    ck_assert_int_eq(publish_retry(fx.fs->pub, "g"), 1); /* it has all of its tries again */
    for (unsigned i = 0; i < 4; i++) {
        fail_again("g");
        send_another("d", 10 + i);
    }
    retry_is_taken();
}
END_TEST

/* 0: that was between the first two refusals; 1: it is the store of a link. */
START_TEST(name_is_tried_on_where_the_store_took_others_once_or_elsewhere)
{
    g_autofree char *msg = NULL, *path = g_build_filename(fx.dir, "three", NULL);
    g_autofree char *source = g_strdup_printf("file://%s", path);
    json_t *none = json_object();
    fs_fixture_start(&fx);
    ck_assert_int_eq(g_mkdir(path, 0700), 0);
    ck_assert_int_eq(links_add(fx.fs, source, "l", none, &msg), 0);
    json_decref(none);
    send_another("d", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=copy,action=error:-EACCES"), 0);
    move("f", "g", 0);
    for (unsigned i = 0; i < 14; i++) {
        fail_again("g");
        if (_i || i == 0)
            send_another(_i ? "l" : "d", i + 1);
    }
    clock_fake_advance(LONG_NS);
    fail_again("g");
    ck_assert(!is_parked("g"));
    retry_is_taken();
}
END_TEST

START_TEST(name_is_tried_on_where_the_store_refuses_all)
{
    int64_t before = metric_get(M_publish_failures);
    move("f", "g", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=copy,action=error:-EACCES;op=put,action=error:-EACCES"), 0);
    make_file("d/other");
    fs_fixture_start(&fx);
    while (metric_get(M_publish_failures) - before < 40) {
        clock_fake_advance(10 * NS_PER_S);
        g_usleep(10000);
    }
    ck_assert(!is_parked("g") && !is_parked("d/other"));
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    clock_fake_advance(60 * NS_PER_S);
    publish_all();
    assert_object("g", "file");
    assert_object("d/other", "new");
}
END_TEST

/* The store was asked for the copy, and did not find something else: the upload that makes a large one, say. */
START_TEST(copy_that_fails_while_its_source_is_there_is_tried_again)
{
    move("f", "g", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=copy,nth=1,count=2,action=error:-ENOENT"), 0);
    fs_fixture_start(&fx);
    int64_t up = metric_get(M_uploaded_bytes);
    publish_all();
    assert_object("g", "file");
    ck_assert_int_eq(metric_get(M_uploaded_bytes), up);
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
}
END_TEST

/* Until somebody restores it in the store, unless all of it is here. */
START_TEST(copy_of_an_archived_object_waits_for_a_decision)
{
    if (_i)
        read_whole("f");
    else
        inode_put(fs_fixture_inode(&fx, "f"));
    move("f", "g", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=copy,action=error:-ENOMEDIUM;op=get,action=error:-ENOMEDIUM"),
                     0);
    fs_fixture_start(&fx);
    ck_assert_int_eq(wait_for(""), _i ? 0 : -EIO);
    if (_i == 0) {
        json_t *o = told("g");
        ck_assert_str_eq(json_string_value(json_object_get(o, "error")), objstore_err_text(-ENOMEDIUM));
        json_decref(o);
        ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0); /* restored */
        ck_assert_int_eq(publish_retry(fx.fs->pub, "g"), 1);
        publish_all();
    }
    assert_object("g", "file");
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
}
END_TEST

/* The name that was not sent is removed, or replaced, while its op is on its way or waits for another try. */
START_TEST(file_is_clean_once_its_last_unsent_name_goes)
{
    static const char *const faults[] = {"op=put,key=h,action=error:-EIO;op=copy,key=h,action=error:-EIO",
                                         "op=put,key=h,action=delay:3600s;op=copy,key=h,action=delay:3600s"};
    make_file("p");
    link_to("p", "h");
    make_file("other");
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, faults[_i % 2]), 0);
    fs_fixture_start(&fx);
    EVENTUALLY(object_is("p", "new"));
    INODE_REF in = fs_fixture_inode(&fx, "p");
    ck_assert(content_is_dirty(in));
    if (_i < 2)
        drop("h");
    else
        move("other", "h", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    publish_all();
    EVENTUALLY(!content_is_dirty(in));
    assert_object("p", "new");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_names");
    TCase *tc = tcase_create("publish_names");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, file_comes_after_the_directory_moved_away);
    tcase_add_test(tc, what_is_closed_after_that_file_does_not_keep_it);
    tcase_add_test(tc, file_comes_after_the_marker_moved_away);
    tcase_add_test(tc, copy_that_somebody_replaces_at_once_is_a_conflict);
    tcase_add_test(tc, files_come_after_the_file_of_their_directory_s_name_moved_away);
    tcase_add_test(tc, file_goes_below_its_own_name);
    tcase_add_test(tc, file_takes_the_name_of_its_directory);
    tcase_add_test(tc, file_and_directory_change_places);
    tcase_add_test(tc, file_and_directory_change_places_by_a_third_name);
    tcase_add_test(tc, who_waits_for_a_file_that_went_below_its_own_name_sees_it_there);
    tcase_add_test(tc, those_who_wait_for_files_that_changed_places_see_them_there);
    tcase_add_test(tc, delete_that_is_refused_keeps_nobody_else);
    tcase_add_test(tc, wait_ends_when_only_refused_deletes_are_left);
    tcase_add_loop_test(tc, skip_takes_all_and_tells_when_the_database_fails, 0, 2);
    tcase_add_test(tc, file_that_cannot_stand_beside_what_is_not_deleted_tells_why_it_waits);
    tcase_add_loop_test(tc, name_whose_object_is_removed_elsewhere_is_sent_from_here, 0, 2);
    tcase_add_loop_test(tc, name_whose_only_bytes_are_removed_elsewhere_can_be_skipped, 0, 2);
    tcase_add_test(tc, copy_that_no_store_can_make_is_not_tried_for_ever);
    tcase_add_loop_test(tc, name_that_the_store_alone_refuses_is_parked, 0, 2);
    tcase_add_loop_test(tc, name_is_tried_on_where_the_store_took_others_once_or_elsewhere, 0, 2);
    tcase_add_test(tc, name_is_tried_on_where_the_store_refuses_all);
    tcase_add_test(tc, copy_that_fails_while_its_source_is_there_is_tried_again);
    tcase_add_loop_test(tc, copy_of_an_archived_object_waits_for_a_decision, 0, 2);
    tcase_add_loop_test(tc, file_is_clean_once_its_last_unsent_name_goes, 0, 4);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
