/* A directory's rename on its way to the store: what is copied side by side, what comes last, and that a start in between changes nothing of it. */
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "objstore_driver.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx); /* nothing is published before the start */
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

/* Written so many seconds ago. */
static void object(const char *key, const char *text, unsigned age)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    struct timespec t = {.tv_sec = clock_wall_ns() / (int64_t)NS_PER_S - age};
    struct timespec both[2] = {t, t};
    fs_fixture_object(&fx, key, text, strlen(text));
    ck_assert_int_eq(utimensat(AT_FDCWD, path, both, 0), 0);
}

static int move(const char *name, const char *to)
{
    return tree_rename(fx.fs, META_ROOT_INO, name, META_ROOT_INO, to, 0);
}

/* The key of what the file waits for. Owned; NULL: nothing. */
static char *blocker(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    struct meta_dentry d = {0};
    json_t *told = json_object();
    ck_assert_int_eq(meta_link_first(fx.fs->meta, in->ino, &d), 0);
    ck_assert_uint_ne(d.op_seq, 0);
    publish_describe(fx.fs->pub, d.op_seq, told);
    char *key = g_strdup(json_string_value(json_object_get(told, "blocked_by")));
    json_decref(told);
    meta_dentry_clear(&d);
    return key;
}

static bool waits(const char *path)
{
    g_autofree char *key = blocker(path);
    return key != NULL;
}

static void publish_all(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
}

static void check_order(void)
{
    ck_assert(!waits("to/a"));
    ck_assert(!waits("to/b"));
    ck_assert(!waits("to/sub/x"));
    ck_assert(waits("to/sub/last"));
    ck_assert(waits("to/0marker"));
}

START_TEST(copies_do_not_wait_for_each_other_and_the_newest_file_comes_last)
{
    object("d/a", "a", 50);
    object("d/0marker", "m", 10);
    object("d/b", "b", 40);
    object("d/sub/last", "l", 20);
    object("d/sub/x", "x", 30);
    ck_assert_int_eq(move("d", "to"), 0);
    check_order();
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    check_order();
    publish_all();
    static const char *const names[] = {"a", "0marker", "b", "sub/last", "sub/x"};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *old = g_strconcat("d/", names[i], NULL), *new = g_strconcat("to/", names[i], NULL);
        ck_assert(fs_fixture_object_exists(&fx, new));
        ck_assert(!fs_fixture_object_exists(&fx, old));
    }
}
END_TEST

START_TEST(what_is_closed_later_waits_for_all_that_was_moved)
{
    object("d/a", "a", 50);
    object("d/b", "b", 40);
    object("d/c", "c", 30);
    ck_assert_int_eq(move("d", "to"), 0);
    fs_fixture_write(&fx, "to/latest", "1", 1);
    fs_fixture_write(&fx, "top", "1", 1);
    ck_assert(!waits("to/a"));
    ck_assert(waits("to/latest"));
    ck_assert(waits("top"));
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "to/latest"));
}
END_TEST

START_TEST(what_is_moved_waits_for_what_was_closed_there_before)
{
    object("d/a", "a", 50);
    object("d/b", "b", 40);
    fs_fixture_write(&fx, "d/new", "1", 1);
    ck_assert_int_eq(move("d", "to"), 0);
    ck_assert(!waits("to/a"));
    ck_assert(!waits("to/b"));
    ck_assert(waits("to/new"));
    fs_fixture_write(&fx, "to/more", "1", 1);
    ck_assert_int_eq(move("to", "there"), 0);
    publish_all();
    static const char *const names[] = {"a", "b", "new", "more"};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *key = g_strconcat("there/", names[i], NULL);
        ck_assert(fs_fixture_object_exists(&fx, key));
    }
    ck_assert(!fs_fixture_object_exists(&fx, "d/a"));
    ck_assert(!fs_fixture_object_exists(&fx, "to/a"));
}
END_TEST

/* Or the rename of a tree that takes longer than --watchdog would be ended, and begun anew, for ever. */
START_TEST(each_name_that_is_moved_is_a_sign_of_life)
{
    object("d/a", "a", 50);
    object("d/sub/x", "x", 30);
    struct sess_head *head = fx.fs->session->head;
    atomic_store(&head->beat_ns, 0);
    ck_assert_int_eq(move("d/", "to"), -ENOENT);
    ck_assert_uint_eq(atomic_load(&head->beat_ns), 0);
    ck_assert_int_eq(move("d", "to"), 0);
    ck_assert_uint_ne(atomic_load(&head->beat_ns), 0);
}
END_TEST

static bool is_local(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->rec.flags & INODE_DIR_LOCAL;
}

/* Or nobody would ever see there what others put into it. */
START_TEST(directory_that_got_one_from_the_store_is_listed_like_others)
{
    g_autofree char *marker = g_build_filename(fx.lake, "d", NULL);
    ck_assert_int_eq(mkdir(marker, 0755), 0);
    inode_put(fs_fixture_inode(&fx, "d"));
    struct inode *in = NULL;
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "made", .mode = S_IFDIR | 0755};
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    INODE_REF made = in;
    ck_assert(is_local("made"));
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "d", made->ino, "d", 0), 0);
    publish_all();
    ck_assert(!is_local("made/d"));
    ck_assert(!is_local("made"));
}
END_TEST

/* ---- keys that cannot be shown as names ---- */

static const struct objstore_driver *inner;
static struct objstore_driver spy;

static int one_more(obj_list_fn *fn, void *ctx, const char *name, bool is_prefix)
{
    struct obj_entry e = {.name = name, .name_len = strlen(name), .is_prefix = is_prefix, .size = 1};
    return fn(ctx, &e);
}

/* There are "d//x" and "k/sub//x". */
static int list_more(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx,
                     bool *ret_truncated)
{
    bool in_dir = g_str_equal(req->prefix, "d/") || g_str_equal(req->prefix, "k/sub/");
    int r = inner->list(st, req, fn, ctx, ret_truncated);
    if (r == 0 && in_dir)
        r = one_more(fn, ctx, "/", true);
    else if (r == 0 && g_str_equal(req->prefix, ""))
        r = one_more(fn, ctx, "d/", true);
    else if (r == 0 && g_str_equal(req->prefix, "k/"))
        r = one_more(fn, ctx, "sub/", true);
    return r;
}

static bool is_here(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    ck_assert(r == 0 || r == -ENOENT);
    if (r == 0)
        inode_put(in);
    return r == 0;
}

START_TEST(directory_that_only_hidden_keys_show_is_not_lost)
{
    struct obj_info info = {0};
    object("k/shown", "1", 10);
    inner = fx.fs->store->drv;
    spy = *inner;
    spy.list = list_more;
    fx.fs->store->drv = &spy;
    INODE_REF root = NULL;
    ck_assert_int_eq(inode_get(fx.fs, META_ROOT_INO, &root), 0);
    ck_assert(is_here("d") && is_here("k/sub"));
    fs_fixture_start(&fx);
    ck_assert_int_eq(move("d", "e"), 0);
    ck_assert_int_eq(move("k", "l"), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert_int_eq(objstore_head(fx.fs->store, "e/", &info), 0);
    obj_info_clear(&info);
    ck_assert_int_eq(objstore_head(fx.fs->store, "l/sub/", &info), 0);
    obj_info_clear(&info);
    ck_assert_int_eq(tree_refresh_all(fx.fs, root, true, NULL, NULL), 0);
    ck_assert(is_here("e") && is_here("l/sub") && is_here("l/shown"));
    ck_assert(is_here("d"));
    INODE_REF d = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(tree_refresh(fx.fs, d, true), 0);
    ck_assert_str_eq(d->list.hidden[0], "d//");
    ck_assert_ptr_null(d->list.hidden[1]);
    ck_assert_int_eq(move("d", "f"), 0);
    ck_assert_ptr_null(d->list.hidden); /* those stay where they were */
    fx.fs->store->drv = inner;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("moved_dirs");
    TCase *tc = tcase_create("moved_dirs");
    tcase_set_timeout(tc, 90);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, directory_that_only_hidden_keys_show_is_not_lost);
    tcase_add_test(tc, copies_do_not_wait_for_each_other_and_the_newest_file_comes_last);
    tcase_add_test(tc, what_is_closed_later_waits_for_all_that_was_moved);
    tcase_add_test(tc, directory_that_got_one_from_the_store_is_listed_like_others);
    tcase_add_test(tc, each_name_that_is_moved_is_a_sign_of_life);
    tcase_add_test(tc, what_is_moved_waits_for_what_was_closed_there_before);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
