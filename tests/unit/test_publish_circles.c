/* Files whose publishing would wait for itself: nothing waits for ever. */
#include "order_fixture.h"

/* The delete of g/x has to go before g comes, and must not wait for what waits for that. */
static void make_circle_with_a_delete(void)
{
    fs_fixture_object(&fx, "g/x", "1", 1);
    close_file("a.tmp");
    drop("g/x");
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "g"), 0);
    close_file("g");
    move("a.tmp", "a");
}

START_TEST(delete_goes_before_a_file_that_came_after_it)
{
    make_circle_with_a_delete();
    open_again();
    assert_order("-g/x g a");
}
END_TEST

START_TEST(delete_goes_before_a_directory_that_came_after_it)
{
    fs_fixture_object(&fx, "d/latest", "1", 1);
    close_file("d/x.new");
    drop("d/latest");
    close_file("d/latest/f");
    move("d/x.new", "d/x");
    open_again();
    assert_order("-d/latest d/latest/f d/x");
}
END_TEST

#define MANY 70

/* Each takes the name of the next, which is being moved; the last one takes that of a file which is below the first and was closed before. */
START_TEST(circle_of_many_is_broken)
{
    g_autoptr(GString) want = g_string_new("d0/p");
    fs_fixture_object(&fx, "d0/s/x", "0", 1);
    for (int i = 1; i <= MANY; i++) {
        g_autofree char *key = g_strdup_printf("d%d/p", i);
        fs_fixture_object(&fx, key, "0", 1);
        g_string_append_printf(want, " %s", key);
    }
    g_string_append(want, " d0/s/x");
    close_file("d0/s/n");
    for (int i = 1; i <= MANY; i++) {
        g_autofree char *from = g_strdup_printf("d%d/p", i), *to = g_strdup_printf("d%d/p", i - 1);
        move(from, to);
    }
    g_autofree char *last = g_strdup_printf("d%d/p", MANY);
    move("d0/s/x", last);
    move("d0/s/n", "d0/s/x");
    assert_waits("d0/p", "d0/s/x");
    assert_order(want->str);
}
END_TEST

/* As if it had been published. */
static void be_done_locked(struct publisher *p, struct op *o) REQUIRES(p->mu)
{
    queue_remove_locked(p, o);
    queue_untake_locked(p, o);
    pubop_free(o);
}

/* There may be something else to do at all times. */
START_TEST(circle_is_broken_while_others_are_published)
{
    make_circle_with_a_delete();
    for (int i = 0; i < 600; i++) {
        g_autofree char *key = g_strdup_printf("p/%d", i);
        close_file(key);
    }
    struct publisher *p = fx.fs->pub;
    uint64_t wake = 0;
    bool shown = false;
    mutex_lock(&p->mu);
    for (int i = 0; i < 300; i++) {
        struct op *o = queue_pick_locked(p, &wake);
        ck_assert_ptr_nonnull(o);
        shown |= g_str_equal(o->key, "g");
        be_done_locked(p, o);
    }
    mutex_unlock(&p->mu);
    ck_assert(shown);
}
END_TEST

/* Nobody loses by it then: M waits on for what takes the name of what is sent from here. */
START_TEST(circle_that_is_to_be_untangled_is_left_to_that)
{
    fs_fixture_object(&fx, "d/s/p", "1", 1);
    for (int i = 0; i < 300; i++) {
        g_autofree char *key = g_strdup_printf("p/%d", i);
        close_file(key);
    }
    close_file("d/s/tmp");
    close_file("d/M");
    move("d/s/p", "d/q");
    move("d/s/tmp", "d/s/p");
    move("d/q", "d/q2");
    struct publisher *p = fx.fs->pub;
    uint64_t wake = 0;
    bool other = false;
    mutex_lock(&p->mu);
    while (!other) {
        struct op *o = queue_pick_locked(p, &wake);
        ck_assert_ptr_nonnull(o);
        other = !g_str_has_prefix(o->key, "p/");
        ck_assert_str_ne(o->key, "d/M");
        if (other)
            queue_untake_locked(p, o);
        else
            be_done_locked(p, o);
    }
    mutex_unlock(&p->mu);
}
END_TEST

/* M waits for it on. */
START_TEST(circle_that_is_being_untangled_is_left_to_that)
{
    fs_fixture_object(&fx, "d/s/p", "1", 1);
    move("d/s/p", "d/q");
    close_file("d/s/p");
    close_file("d/M");
    close_again("d/s/p");
    move("d/q", "d/q2");
    struct publisher *p = fx.fs->pub;
    uint64_t wake = 0;
    mutex_lock(&p->mu);
    struct op *o = queue_pick_locked(p, &wake);
    ck_assert_ptr_nonnull(o);
    ck_assert_str_eq(o->key, "d/q2");
    ck_assert(o->untangle);
    if (_i == 1) { /* it failed, and is tried again later */
        queue_untake_locked(p, o);
        o->failures = 1;
        o->not_before_ns = clock_mono_ns() + 600 * NS_PER_S;
    }
    const struct op *next = queue_pick_locked(p, &wake);
    ck_assert_msg(!next, "%s", next ? next->key : "");
    if (_i == 0)
        queue_untake_locked(p, o);
    mutex_unlock(&p->mu);
}
END_TEST

/* It would have been brought here when its turn comes, which is when that of the one it keeps has come. */
START_TEST(what_is_to_be_untangled_and_lost_its_bytes_needs_a_decision)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_object(&fx, "d/x", "2", 1);
    move("d/f", "f");
    move("d/x", "d/f");
    close_again("f");
    close_file("other"); /* or all that its disk held is lost */
    assert_waits("d/f", "f");
    INODE_REF in = fs_fixture_inode(&fx, "f");
    g_autofree char *path = g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir,
                                            (unsigned)(in->rec.vid & 0xff), in->rec.vid);
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    ck_assert_int_eq(unlink(path), 0);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 10 * NS_PER_S, NULL, NULL), -EIO);
}
END_TEST

/* It is not untangled: what was lost to another node's version is set aside once it is closed, and who left it open is no more. 0: it is no conflict. */
START_TEST(conflict_that_a_killed_writer_left_open_needs_a_decision)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_object(&fx, "d/x", "2", 1);
    move("d/f", "f");
    move("d/x", "d/f");
    INODE_REF in = begin_write("f");
    assert_waits("d/f", "f");
    struct publisher *p = fx.fs->pub;
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->by_key, "f");
    ck_assert_ptr_nonnull(o);
    o->rec.state = _i ? OPS_CONFLICT : o->rec.state;
    meta_op_put(b, &o->rec);
    mutex_unlock(&p->mu);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    content_abandon(in, true);
    inode_put(g_steal_pointer(&in));
    open_again();
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "d/f", clock_mono_ns() + 5 * NS_PER_S, NULL, NULL), _i ? -EIO : 0);
}
END_TEST

/* ---- at random ---- */

static bool exists(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    inode_put(r == 0 ? in : NULL);
    return r == 0;
}

static char *random_path(GRand *rng)
{
    static const char *const dirs[] = {"", "a/", "a/s/", "b/", "b/s/"};
    static const char *const names[] = {"0", "1", "2", "3.tmp", "4.tmp"};
    return g_strconcat(dirs[g_rand_int_range(rng, 0, 5)], names[g_rand_int_range(rng, 0, 5)], NULL);
}

static bool is_dir(const char *path)
{
    INODE_REF in = NULL;
    return tree_resolve(fx.fs, path, &in) == 0 && inode_is_dir(in);
}

/* The directory of the path is one, whatever it was. */
static void make_dir_of(const char *path)
{
    static const char *const dirs[] = {"a/s", "b/s"};
    for (unsigned i = 0; i < G_N_ELEMENTS(dirs); i++) {
        if (!g_str_has_prefix(path, dirs[i]) || is_dir(dirs[i]))
            continue;
        if (exists(dirs[i]))
            drop(dirs[i]);
        g_autofree char *first = g_strconcat(dirs[i], "/0", NULL);
        close_file(first);
    }
}

/* A directory becomes a file, a file goes. */
static void make_file_of(const char *dir)
{
    if (!is_dir(dir)) {
        drop(dir);
        return;
    }
    static const char *const names[] = {"0", "1", "2", "3", "4", "3.tmp", "4.tmp"};
    const char *name;
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *path = g_strconcat(dir, "/", names[i], NULL);
        if (exists(path))
            drop(path);
    }
    uint64_t parent = dir_of(dir, &name);
    ck_assert_int_eq(tree_rmdir(fx.fs, parent, name), 0);
    close_file(dir);
}

static void do_anything(GRand *rng)
{
    g_autofree char *x = random_path(rng), *y = random_path(rng);
    int what = g_rand_int_range(rng, 0, 11);
    if (what < 10) {
        make_dir_of(what == 9 ? "a/s" : x);
        make_dir_of(what == 9 ? "b/s" : y);
    }
    if (what == 10) {
        const char *dir = g_rand_boolean(rng) ? "a/s" : "b/s";
        if (exists(dir))
            make_file_of(dir);
    } else if (what == 9) {
        bool below = g_rand_boolean(rng);
        exchange(below ? "a/s" : "a", below ? "b/s" : "b");
    } else if (what <= 3 || !exists(x)) {
        if (exists(x))
            close_again(x);
        else
            close_file(x);
    } else if (what <= 6) {
        move(x, y);
    } else if (what == 7 && exists(y)) {
        exchange(x, y);
    } else {
        drop(x);
    }
}

/* Anything but what waits for a later time. */
static bool is_left(const struct op *o)
{
    return o->not_before_ns <= clock_mono_ns();
}

START_TEST(nothing_waits_for_itself_for_ever)
{
    if (_i % 2)
        set_order(ORDER_MOUNT);
    for (int i = 0; i < 25; i++) {
        g_autofree char *key = g_strdup_printf("%s/%d", i % 2 ? "a/s" : "b/s", i % 5);
        if (!fs_fixture_object_exists(&fx, key))
            fs_fixture_object(&fx, key, "0", 1);
    }
    fs_fixture_object(&fx, "a/5", "0", 1);
    fs_fixture_object(&fx, "b/5", "0", 1);
    GRand *rng = g_rand_new_with_seed((guint32)_i);
    for (int i = 0; i < 60; i++)
        do_anything(rng);
    g_rand_free(rng);
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        struct op *o = g_sequence_get(it);
        if (o->rec.state == OPS_HELD)
            o->not_before_ns = 0; /* its time has come */
    }
    uint64_t wake = 0;
    for (struct op *o; (o = queue_pick_locked(p, &wake)); queue_remove_locked(p, o))
        queue_untake_locked(p, o);
    for (it = g_sequence_get_begin_iter(p->all); !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        const struct op *o = g_sequence_get(it);
        const struct op *b = queue_blocker_locked(p, o);
        ck_assert_msg(!is_left(o), "%s waits for %s", o->key, b ? b->key : "(nothing)");
    }
    mutex_unlock(&p->mu);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_circles");
    TCase *tc = tcase_create("circles");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, delete_goes_before_a_file_that_came_after_it);
    tcase_add_test(tc, delete_goes_before_a_directory_that_came_after_it);
    tcase_add_test(tc, circle_of_many_is_broken);
    tcase_add_test(tc, circle_is_broken_while_others_are_published);
    tcase_add_test(tc, circle_that_is_to_be_untangled_is_left_to_that);
    tcase_add_loop_test(tc, circle_that_is_being_untangled_is_left_to_that, 0, 2);
    tcase_add_test(tc, what_is_to_be_untangled_and_lost_its_bytes_needs_a_decision);
    tcase_add_loop_test(tc, conflict_that_a_killed_writer_left_open_needs_a_decision, 0, 2);
    TCase *at_random = tcase_create("at_random");
    tcase_add_checked_fixture(at_random, setup, teardown);
    tcase_set_timeout(at_random, 60);
    tcase_add_loop_test(at_random, nothing_waits_for_itself_for_ever, 0, 40);
    suite_add_tcase(s, tc);
    suite_add_tcase(s, at_random);
    return run_suite(s);
}
