/* Directories with many names that went elsewhere, over a lake in a folder: how they go here, and what is there meanwhile. */
#include "fs/event_apply.h"
#include "fs/ns_undo.h"
#include "fs/publish.h"
#include "fs/tree_drop.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>

#define N_FILES 1500u /* in p/ds, and as many below p/ds/sub */
#define N_NAMES (2 * N_FILES + 21)

static struct fs_fixture fx;
static struct tree_drop drop;
static const char no_fault[] = "op=get,nth=1000000,action=error:-EIO";
static struct tree_shown nothing; /* a listing without a name */

static void shell(const char *script)
{
    g_autofree char *cmd = g_strdup_printf("cd '%s' && %s", fx.lake, script);
    ck_assert_int_eq(system(cmd), 0);
}

static int refresh(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return tree_refresh(fx.fs, in, true);
}

static uint64_t ino_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->ino;
}

static bool exists(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    ck_assert(r == 0 || r == -ENOENT);
    inode_put(in);
    return r == 0;
}

static int count_one(void *ctx, const struct meta_dentry *d)
{
    ++*(unsigned *)ctx;
    return 0;
}

/* In the database: nothing is listed. */
static unsigned count_names(uint64_t dir)
{
    unsigned n = 0;
    ck_assert_int_eq(meta_dentry_each(fx.fs->meta, dir, 0, count_one, &n), 0);
    return n;
}

static bool is_to_be_listed(uint64_t ino)
{
    INODE_REF in = NULL;
    ck_assert_int_eq(inode_get(fx.fs, ino, &in), 0);
    mutex_lock(&in->mu);
    bool listed = in->rec.listed_ns != 0;
    mutex_unlock(&in->mu);
    return !listed;
}

/* p/ds was listed with all it holds, and is removed elsewhere. */
static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    fx.cfg.fault = g_strdup(no_fault);
    fs_fixture_object(&fx, "p/stays", "data", 4);
    g_autofree char *make =
        g_strdup_printf("mkdir -p p/ds/sub && cd p/ds && seq -f 'f%%.0f' %u | xargs touch && cd sub "
                        "&& seq -f 'd%%.0f' 20 | xargs mkdir && seq %u | "
                        "awk '{print \"d\" $1 %% 20 + 1 \"/f\" $1}' | xargs touch",
                        N_FILES, N_FILES);
    shell(make);
    fs_fixture_open(&fx);
    INODE_REF p = fs_fixture_inode(&fx, "p");
    ck_assert_int_eq(tree_refresh_all(fx.fs, p, true, NULL, NULL), 0);
    ck_assert_uint_eq(count_names(ino_of("p/ds")), N_FILES + 1);
    nothing = (struct tree_shown){nameset_new(), g_hash_table_new(g_str_hash, g_str_equal)};
}

static void teardown(void)
{
    nameset_free(nothing.seen);
    g_hash_table_unref(nothing.waiting);
    fs_fixture_fini(&fx);
}

static void begin_drop(void)
{
    shell("rm -r p/ds");
    tree_drop_init(&drop, meta_last_seq(fx.fs->meta), meta_next_ino(fx.fs->meta));
}

/* One batch; by name, or with all of the directory. */
static int drop_some(uint64_t dir, const char *name)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    bool dropped = false;
    mutex_lock(&fx.fs->ns);
    int r =
        name ? tree_drop_gone(fx.fs, b, &drop, dir, name, &dropped) : tree_drop_unseen(fx.fs, b, &drop, dir, &nothing);
    ck_assert_int_ge(r, 0);
    ck_assert_uint_le(fx.fs->undo ? fx.fs->undo->len : 0, 300);
    ck_assert_int_eq(meta_commit(b, false), 0);
    publish_apply(fx.fs, true);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
    ck_assert(!name || dropped == (r == 0));
    return r;
}

/* Batch after batch, with ds to be listed anew in between. */
static unsigned drop_all(uint64_t dir, const char *name, uint64_t ds)
{
    unsigned n = 1;
    for (; drop_some(dir, name) > 0; n++)
        ck_assert(is_to_be_listed(ds));
    return n;
}

START_TEST(large_directory_goes_in_small_batches)
{
    const char *name = _i ? "ds" : NULL;
    uint64_t p = ino_of("p"), ds = ino_of("p/ds"), sub = ino_of("p/ds/sub");
    begin_drop();
    unsigned n = drop_all(p, name, ds);
    ck_assert_uint_ge(n, N_NAMES / 300);
    ck_assert_uint_le(n, N_NAMES / 150);
    ck_assert_uint_eq(count_names(ds) + count_names(sub), 0);
    ck_assert_uint_eq(count_names(p), name ? 1 : 0); /* "stays" was not shown either */
    tree_drop_fini(&drop);
}
END_TEST

START_TEST(listing_drops_a_large_directory_with_all_it_held)
{
    uint64_t p = ino_of("p"), ds = ino_of("p/ds"), sub = ino_of("p/ds/sub");
    shell("rm -r p/ds");
    ck_assert_int_eq(refresh("p"), 0);
    ck_assert_uint_eq(count_names(p), 1);
    ck_assert_uint_eq(count_names(ds) + count_names(sub), 0);
    ck_assert(exists("p/stays") && !exists("p/ds"));
}
END_TEST

START_TEST(directory_that_went_in_part_is_listed_again_after_a_restart)
{
    uint64_t p = ino_of("p"), ds = ino_of("p/ds");
    begin_drop();
    ck_assert_int_eq(drop_some(p, "ds"), 1);
    tree_drop_fini(&drop);
    ck_assert_uint_gt(count_names(ds), 0);
    ck_assert_uint_lt(count_names(ds), N_FILES);
    fs_fixture_close(&fx);
    fs_fixture_object(&fx, "p/ds/f1", "again", 5);
    fs_fixture_open(&fx);
    ck_assert(exists("p/ds/f1") && !exists("p/ds/f2"));
    ck_assert_uint_eq(count_names(ds), 1);
}
END_TEST

/* A name is made here, shown by a listing that began later, or moved, with the small id that it has, to where the drop has been, unlisted. */
START_TEST(what_comes_between_two_batches_stays)
{
    static const char *const paths[] = {"p/ds/sub/own", "p/ds/sub/own", "p/ds/own"};
    uint64_t p = ino_of("p"), ds = ino_of("p/ds"), sub = ino_of("p/ds/sub");
    begin_drop();
    ck_assert_int_eq(drop_some(p, "ds"), 1);
    if (_i == 0) {
        INODE_REF in = NULL;
        struct node_spec spec = {.parent = sub, .name = "own", .mode = S_IFREG | 0644, .who = {fx.fs->uid, fx.fs->gid}};
        ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    } else if (_i == 1) {
        fs_fixture_object(&fx, "p/ds/sub/own", "theirs", 6);
        ck_assert_int_eq(refresh("p/ds"), 0);
        ck_assert_int_eq(refresh("p/ds/sub"), 0);
    } else {
        ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=error:-EIO"), 0);
        ck_assert_int_eq(tree_rename(fx.fs, p, "stays", ds, "own", 0), 0);
        ck_assert_uint_gt(count_names(ds), 1000);
        ck_assert_int_eq(objstore_fault_set(fx.fs->store, no_fault), 0);
    }
    while (drop_some(p, NULL) > 0)
        ;
    tree_drop_fini(&drop);
    ck_assert_uint_eq(count_names(p), 1);
    ck_assert_uint_eq(count_names(ds), 1);
    ck_assert_uint_eq(count_names(sub), _i < 2);
    ck_assert(exists(paths[_i]));
}
END_TEST

START_TEST(what_is_local_keeps_its_directories_and_nothing_else)
{
    uint64_t p = ino_of("p"), ds = ino_of("p/ds"), sub = ino_of("p/ds/sub");
    fs_fixture_write(&fx, "p/ds/sub/d7/own", "mine", 4);
    shell("rm -r p/ds");
    ck_assert_int_eq(refresh("p"), 0);
    ck_assert_uint_eq(count_names(p), 2);
    ck_assert_uint_eq(count_names(ds), 1);
    ck_assert_uint_eq(count_names(sub), 1);
    ck_assert_uint_eq(count_names(ino_of("p/ds/sub/d7")), 1);
}
END_TEST

/* About as deep as a key can lead. */
START_TEST(deep_directory_goes_with_all_it_held)
{
    shell("cd p && for i in $(seq 500); do mkdir x && cd x; done && touch f");
    INODE_REF p = fs_fixture_inode(&fx, "p");
    ck_assert_int_eq(tree_refresh_all(fx.fs, p, true, NULL, NULL), 0);
    uint64_t x = ino_of("p/x");
    ck_assert_uint_eq(count_names(x), 1);
    shell("rm -r p/x p/stays");
    ck_assert_int_eq(refresh("p"), 0);
    ck_assert(!exists("p/x") && !exists("p/stays"));
    ck_assert_uint_eq(count_names(x), 0);
    ck_assert(!is_to_be_listed(p->ino));
}
END_TEST

/* _i: what looks into it: a look, a listing whatever its age, an event, one that asks for the name by itself. */
START_TEST(removed_directory_in_use_gets_no_names_of_its_old_path)
{
    INODE_REF ds = fs_fixture_inode(&fx, "p/ds");
    INODE_REF in = NULL;
    uint64_t offline_ns = 0;
    struct tree_tally tally = {0};
    const struct etag no_tag = {0};
    shell("rm -r p/ds");
    ck_assert_int_eq(refresh("p"), 0);
    ck_assert_uint_eq(ds->rec.nlink, 0);
    fs_fixture_object(&fx, "p/ds/f1", "theirs", 6);
    if (_i == 0) {
        ck_assert_int_eq(tree_lookup(fx.fs, ds->ino, "f1", &in), -ENOENT);
        ck_assert_int_eq(tree_refresh(fx.fs, ds, true), 0);
        ck_assert_int_eq(tree_refresh_sure(fx.fs, ds, &offline_ns), -ENOENT);
    } else if (_i == 1) {
        ck_assert_int_eq(tree_list_now(fx.fs, ds, 0, NULL, &tally), -ENOENT);
    } else if (_i == 2) {
        ck_assert_int_ge(event_look(fx.fs, "p/ds/f1", &no_tag, true), 0);
        ck_assert(exists("p/ds/f1"));
    } else {
        struct list_row row = {.name = (char[]){"f1"}, .size = 6};
        struct meta_batch *b = meta_batch_new(fx.fs->meta);
        mutex_lock(&fx.fs->ns);
        ck_assert_int_eq(tree_apply_row(fx.fs, b, ds->ino, &row, meta_last_seq(fx.fs->meta)), 0);
        ck_assert_int_eq(meta_commit(b, false), 0);
        publish_apply(fx.fs, true);
        mutex_unlock(&fx.fs->ns);
        meta_batch_free(b);
    }
    ck_assert_uint_eq(count_names(ds->ino), 0);
}
END_TEST

/* Of one length, one with the lowest bit of its first byte set: "0x" and "1x". */
START_TEST(names_of_two_kinds_are_not_taken_for_each_other)
{
    static const char *const tails[] = {"", "x", "1234567", "12345678", "0011.object"};
    for (unsigned i = 0; i < G_N_ELEMENTS(tails); i++) {
        g_autofree char *even = g_strconcat("0", tails[i], NULL), *odd = g_strconcat("1", tails[i], NULL);
        nameset_clear(nothing.seen);
        nameset_add(nothing.seen, odd, strlen(odd), true);
        ck_assert(nameset_has(nothing.seen, odd, strlen(odd), true));
        ck_assert(!nameset_has(nothing.seen, even, strlen(even), false));
        ck_assert(!nameset_has(nothing.seen, odd, strlen(odd), false));
    }
}
END_TEST

START_TEST(file_that_went_is_not_kept_by_a_directory_of_a_like_name)
{
    shell("mkdir p/1run; echo x > p/1run/f; echo x > p/0run");
    INODE_REF p = fs_fixture_inode(&fx, "p");
    ck_assert_int_eq(tree_refresh(fx.fs, p, true), 0);
    ck_assert(exists("p/0run") && exists("p/1run"));
    shell("rm p/0run");
    ck_assert_int_eq(tree_refresh(fx.fs, p, true), 0);
    ck_assert(!exists("p/0run"));
    ck_assert(exists("p/1run"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("vanish");
    TCase *t = tcase_create("vanish");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, large_directory_goes_in_small_batches, 0, 2);
    tcase_add_test(t, listing_drops_a_large_directory_with_all_it_held);
    tcase_add_test(t, directory_that_went_in_part_is_listed_again_after_a_restart);
    tcase_add_loop_test(t, what_comes_between_two_batches_stays, 0, 3);
    tcase_add_test(t, what_is_local_keeps_its_directories_and_nothing_else);
    tcase_add_test(t, names_of_two_kinds_are_not_taken_for_each_other);
    tcase_add_test(t, file_that_went_is_not_kept_by_a_directory_of_a_like_name);
    tcase_add_test(t, deep_directory_goes_with_all_it_held);
    tcase_add_loop_test(t, removed_directory_in_use_gets_no_names_of_its_old_path, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
