/* Files that a rule keeps here, over a lake in a folder, without FUSE. */
#include "fs/content.h"
#include "fs/local.h"
#include "fs/publish.h"
#include "fs/recover.h"
#include "fs/rules.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct fs_fixture fx;

static void rule(const char *text)
{
    g_free(fx.cfg.rule);
    fx.cfg.rule = g_strdup(text);
}

static void setup(void)
{
    fs_fixture_init(&fx);
    rule("tmp/**=local-only");
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void open_again(const char *text)
{
    fs_fixture_close(&fx);
    rule(text);
    fs_fixture_open(&fx);
}

static uint64_t ops(const char *path)
{
    struct publish_counts c;
    publish_count(fx.fs->pub, path, &c);
    return c.ops;
}

static void publish_all(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 30 * NS_PER_S, NULL, NULL), 0);
}

static uint64_t n_local(void)
{
    struct local_counts c;
    local_count(fx.fs, &c);
    return c.files;
}

static int move(const char *from_dir, const char *from, const char *to_dir, const char *to)
{
    INODE_REF a = fs_fixture_inode(&fx, from_dir);
    INODE_REF b = fs_fixture_inode(&fx, to_dir);
    return tree_rename(fx.fs, a->ino, from, b->ino, to, 0);
}

static uint32_t content_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->rec.content;
}

static bool is_there(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    if (r == 0)
        inode_put(in);
    return r == 0;
}

START_TEST(local_file_has_no_journal_record)
{
    fs_fixture_write(&fx, "tmp/a/b", "1", 1);
    fs_fixture_write(&fx, "x", "1", 1);
    ck_assert_uint_eq(ops("tmp"), 0);
    ck_assert_uint_eq(ops("x"), 1);
    ck_assert_int_eq(content_of("tmp/a/b"), CONTENT_SEALED);
    ck_assert_uint_eq(n_local(), 1);
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "x"));
    ck_assert(!fs_fixture_object_exists(&fx, "tmp"));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert_int_eq(content_of("tmp/a/b"), CONTENT_SEALED);
    ck_assert_uint_eq(n_local(), 1);
}
END_TEST

START_TEST(start_without_the_rule_publishes_with_it_drops)
{
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    open_again(NULL);
    ck_assert_uint_eq(ops("tmp/a"), 1);
    fs_fixture_write(&fx, "tmp/b", "1", 1);
    open_again("tmp/**=local-only");
    ck_assert_uint_eq(ops("tmp"), 0);
    ck_assert_uint_eq(n_local(), 2);
    open_again(NULL);
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "tmp/a"));
    ck_assert(fs_fixture_object_exists(&fx, "tmp/b"));
    ck_assert_int_eq(content_of("tmp/a"), CONTENT_CLEAN);
}
END_TEST

START_TEST(published_file_renamed_in_leaves_the_store_and_keeps_its_bytes)
{
    fs_fixture_object(&fx, "out/a", "12345", 5);
    fs_fixture_write(&fx, "tmp/x", "1", 1);
    ck_assert_int_eq(move("out", "a", "tmp", "a"), 0);
    ck_assert_int_eq(content_of("tmp/a"), CONTENT_SEALED);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "tmp/a"), 5);
    publish_all();
    ck_assert(!fs_fixture_object_exists(&fx, "out/a"));
    ck_assert(!fs_fixture_object_exists(&fx, "tmp/a"));
    ck_assert_uint_eq(n_local(), 2);
    INODE_REF in = fs_fixture_inode(&fx, "tmp/a");
    ck_assert_ptr_null(in->rec.base_key);
}
END_TEST

START_TEST(rename_over_an_object_removes_it)
{
    fs_fixture_object(&fx, "tmp/a", "theirs", 6);
    fs_fixture_write(&fx, "tmp/new", "ours", 4);
    ck_assert_int_eq(move("tmp", "new", "tmp", "a"), 0);
    publish_all();
    ck_assert(!fs_fixture_object_exists(&fx, "tmp/a"));
    ck_assert_uint_eq(fs_fixture_cached(&fx, "tmp/a"), 4);
}
END_TEST

START_TEST(what_leaves_is_published)
{
    fs_fixture_write(&fx, "tmp/d/a", "1", 1);
    fs_fixture_write(&fx, "tmp/b", "22", 2);
    fs_fixture_write(&fx, "out/x", "1", 1);
    ck_assert_int_eq(move("tmp", "d", "out", "d"), 0);
    ck_assert_int_eq(move("tmp", "b", "out", "b"), 0);
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "out/d/a"));
    ck_assert(fs_fixture_object_exists(&fx, "out/b"));
    ck_assert_uint_eq(n_local(), 0);
}
END_TEST

START_TEST(directories_and_links_do_not_cross)
{
    struct inode *in = NULL;
    fs_fixture_write(&fx, "out/d/a", "1", 1);
    fs_fixture_write(&fx, "tmp/x", "1", 1);
    INODE_REF a = fs_fixture_inode(&fx, "out/d/a");
    INODE_REF x = fs_fixture_inode(&fx, "tmp/x");
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    INODE_REF out = fs_fixture_inode(&fx, "out");
    ck_assert_int_eq(move("out", "d", "tmp", "d"), -EXDEV);
    ck_assert_int_eq(tree_link(fx.fs, a->ino, tmp->ino, "a", &in), -EXDEV);
    ck_assert_int_eq(tree_link(fx.fs, x->ino, out->ino, "x", &in), -EXDEV);
    ck_assert_int_eq(tree_link(fx.fs, x->ino, tmp->ino, "y", &in), 0);
    inode_put(in);
    ck_assert_int_eq(move("tmp", "x", "out", "x"), -EXDEV); /* of two names */
    ck_assert_int_eq(tree_link(fx.fs, a->ino, out->ino, "b", &in), 0);
    inode_put(in);
    ck_assert_int_eq(move("out", "b", "tmp", "b"), -EXDEV);
    fs_fixture_write(&fx, "out/single", "1", 1);
    ck_assert_int_eq(tree_rename(fx.fs, tmp->ino, "y", out->ino, "single", RENAME_EXCHANGE), -EXDEV);
    ck_assert_int_eq(tree_rename(fx.fs, out->ino, "d", tmp->ino, "y", RENAME_EXCHANGE), -EXDEV);
}
END_TEST

static void link_to(const char *path, const char *dir, const char *name)
{
    struct inode *in = NULL;
    INODE_REF a = fs_fixture_inode(&fx, path);
    INODE_REF to = fs_fixture_inode(&fx, dir);
    ck_assert_int_eq(tree_link(fx.fs, a->ino, to->ino, name, &in), 0);
    inode_put(in);
}

static int exchange(const char *dir1, const char *name1, const char *dir2, const char *name2)
{
    INODE_REF a = fs_fixture_inode(&fx, dir1);
    INODE_REF b = fs_fixture_inode(&fx, dir2);
    return tree_rename(fx.fs, a->ino, name1, b->ino, name2, RENAME_EXCHANGE);
}

static bool object_is(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *have = NULL;
    return g_file_get_contents(path, &have, NULL, NULL) && g_str_equal(have, want);
}

START_TEST(directory_leaves_with_all_names_of_its_files_or_not_at_all)
{
    fs_fixture_write(&fx, "tmp/d/a", "1", 1);
    fs_fixture_write(&fx, "tmp/d/e/b", "22", 2);
    fs_fixture_write(&fx, "out/x", "1", 1);
    link_to("tmp/d/a", "tmp", "stays");
    link_to("tmp/d/e/b", "tmp/d", "goes");
    ck_assert_int_eq(move("tmp", "d", "out", "d"), -EXDEV);
    ck_assert_uint_eq(ops("tmp"), 0);
    ck_assert_uint_eq(n_local(), 2);
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    ck_assert_int_eq(tree_unlink(fx.fs, tmp->ino, "stays"), 0);
    ck_assert_int_eq(move("tmp", "d", "out", "d"), 0);
    publish_all();
    ck_assert(object_is("out/d/a", "1"));
    ck_assert(object_is("out/d/goes", "22"));
    ck_assert(object_is("out/d/e/b", "22"));
    ck_assert_int_eq(content_of("out/d/goes"), CONTENT_CLEAN);
    ck_assert_uint_eq(n_local(), 0);
}
END_TEST

START_TEST(files_change_places_across_the_rule)
{
    fs_fixture_object(&fx, "out/a", "theirs", 6);
    fs_fixture_write(&fx, "tmp/b", "ours", 4);
    ck_assert_int_eq(exchange("out", "a", "tmp", "b"), 0);
    publish_all();
    ck_assert(object_is("out/a", "ours"));
    ck_assert(!fs_fixture_object_exists(&fx, "tmp/b"));
    ck_assert_uint_eq(fs_fixture_cached(&fx, "tmp/b"), 6);
    ck_assert_int_eq(content_of("out/a"), CONTENT_CLEAN);
    ck_assert_int_eq(content_of("tmp/b"), CONTENT_SEALED);
    ck_assert_uint_eq(n_local(), 1);
}
END_TEST

/* Neither file is brought here, nor owed to the store, for an exchange that is refused. */
START_TEST(exchange_across_the_rule_that_cannot_be_changes_nothing)
{
    fs_fixture_object(&fx, "out/a", "theirs", 6);
    fs_fixture_object(&fx, "out/d/x", "theirs", 6);
    fs_fixture_write(&fx, "tmp/b", "ours", 4);
    fs_fixture_write(&fx, "tmp/e/y", "ours", 4);
    fs_fixture_write(&fx, "tmp/one", "ours", 4);
    link_to("tmp/b", "tmp", "b2");
    link_to("tmp/e/y", "tmp", "y2");
    ck_assert_int_eq(exchange("out", "a", "tmp", "b"), -EXDEV); /* of two names */
    ck_assert_int_eq(exchange("tmp", "b", "out", "a"), -EXDEV);
    ck_assert_int_eq(exchange("out", "d", "tmp", "e"), -EXDEV);
    ck_assert_int_eq(exchange("out", "d", "tmp", "one"), -EXDEV); /* a directory that would come */
    ck_assert_int_eq(exchange("tmp", "e", "out", "a"), -EXDEV);   /* a name of y would stay */
    ck_assert_uint_eq(ops(""), 0);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "out/a") + fs_fixture_cached(&fx, "out/d/x"), 0);
    ck_assert_int_eq(content_of("out/a"), CONTENT_CLEAN);
    ck_assert_uint_eq(n_local(), 3);
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    ck_assert_int_eq(tree_unlink(fx.fs, tmp->ino, "y2"), 0);
    ck_assert_int_eq(exchange("tmp", "e", "out", "a"), 0);
    publish_all();
    ck_assert(object_is("out/a/y", "ours"));
    ck_assert_uint_eq(fs_fixture_cached(&fx, "tmp/e"), 6);
}
END_TEST

START_TEST(linked_file_that_cannot_come_is_not_fetched)
{
    fs_fixture_object(&fx, "out/a", "theirs", 6);
    fs_fixture_write(&fx, "tmp/x", "1", 1);
    link_to("out/a", "out", "b");
    publish_all();
    ck_assert_int_eq(move("out", "a", "tmp", "a"), -EXDEV);
    ck_assert_uint_eq(ops(""), 0);
    ck_assert_int_eq(content_of("out/a"), CONTENT_CLEAN);
}
END_TEST

/* ---- what shows a directory to others ---- */

static bool has_marker(const char *dir)
{
    g_autofree char *key = g_strconcat(dir, "/", NULL);
    struct obj_info info = {0};
    int r = objstore_head(fx.fs->store, key, &info);
    obj_info_clear(&info);
    ck_assert(r == 0 || r == -ENOENT);
    return r == 0;
}

static void settle(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 30 * NS_PER_S, NULL, NULL), 0);
}

START_TEST(directory_of_local_files_only_is_shown_by_a_marker)
{
    open_again("*.loc=local-only");
    fs_fixture_write(&fx, "d/e/x.loc", "1", 1);
    fs_fixture_write(&fx, "f/x.loc", "1", 1);
    fs_fixture_write(&fx, "f/y", "1", 1);
    INODE_REF fifos = NULL;
    struct node_spec dir = {.parent = META_ROOT_INO, .name = "fifos", .mode = S_IFDIR | 0755};
    ck_assert_int_eq(tree_create(fx.fs, &dir, false, &fifos), 0);
    INODE_REF fifo = NULL;
    struct node_spec node = {.parent = fifos->ino, .name = "p", .mode = S_IFIFO | 0644};
    ck_assert_int_eq(tree_create(fx.fs, &node, false, &fifo), 0);
    publish_all();
    ck_assert(has_marker("d/e"));
    ck_assert(has_marker("fifos"));
    ck_assert(!has_marker("d")); /* d/e/ shows it */
    ck_assert(!has_marker("f"));
}
END_TEST

START_TEST(directory_that_keeps_local_files_only_gets_a_marker)
{
    open_again("*.loc=local-only");
    for (char dir[] = "a"; dir[0] <= 'e'; dir[0]++) {
        g_autofree char *local = g_strconcat(dir, "/x.loc", NULL), *other = g_strconcat(dir, "/y", NULL);
        fs_fixture_write(&fx, local, "1", 1);
        fs_fixture_write(&fx, other, "1", 1);
    }
    publish_all();
    INODE_REF a = fs_fixture_inode(&fx, "a");
    ck_assert_int_eq(tree_unlink(fx.fs, a->ino, "y"), 0);
    ck_assert_int_eq(move("b", "y", "a", "new.loc"), 0);
    ck_assert_int_eq(move("c", "y", "c", "y.loc"), 0);
    ck_assert_int_eq(move("d", "x.loc", "e", "x.loc"), 0);
    settle();
    ck_assert(has_marker("a"));
    ck_assert(has_marker("b"));
    ck_assert(has_marker("c"));
    ck_assert(!has_marker("d"));
    ck_assert(!has_marker("e"));
}
END_TEST

START_TEST(directory_stays_shown_when_a_rule_comes_to_keep_its_files)
{
    fs_fixture_write(&fx, "d/x.tmp", "1", 1); /* held: the directory's marker is found needless before */
    fs_fixture_write(&fx, "d/y.tmp", "1", 1);
    fs_fixture_start(&fx);
    ck_assert_int_lt(publish_wait(fx.fs->pub, "", clock_mono_ns() + NS_PER_S, NULL, NULL), 0);
    ck_assert_uint_eq(ops(""), 2);
    open_again("*.tmp=local-only");
    publish_all();
    ck_assert(has_marker("d"));
    ck_assert_uint_eq(n_local(), 2);
}
END_TEST

START_TEST(removed_local_file_leaves_nothing)
{
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    ck_assert_int_eq(tree_unlink(fx.fs, tmp->ino, "a"), 0);
    ck_assert_uint_eq(n_local(), 0);
    ck_assert_uint_eq(ops(""), 0);
}
END_TEST

/* A name that no journal record moves would show twice after the next listing, and removing one would take the other's bytes. */
START_TEST(object_that_others_put_leaves_the_store_when_it_is_renamed_where_a_rule_keeps_it)
{
    fs_fixture_object(&fx, "tmp/a", "12345", 5);
    fs_fixture_object(&fx, "tmp/d/b", "12345", 5);
    ck_assert_int_eq(move("tmp", "d", "tmp", "e"), -EXDEV);
    ck_assert_int_eq(move("tmp", "a", "tmp", "c"), 0);
    ck_assert_int_eq(content_of("tmp/c"), CONTENT_SEALED);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "tmp/c"), 5);
    publish_all();
    ck_assert(!fs_fixture_object_exists(&fx, "tmp/a"));
    ck_assert(!fs_fixture_object_exists(&fx, "tmp/c"));
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    ck_assert_int_eq(tree_refresh(fx.fs, tmp, true), 0);
    ck_assert(!is_there("tmp/a"));
    INODE_REF in = fs_fixture_inode(&fx, "tmp/c");
    ck_assert_ptr_null(in->rec.base_key);
}
END_TEST

START_TEST(marker_of_a_directory_renamed_where_a_rule_keeps_it_goes)
{
    struct etag etag;
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    ck_assert_int_eq(objstore_put(fx.fs->store, "tmp/d/b/", "", 0, &(struct obj_meta){0}, &any, &etag), 0);
    INODE_REF d = fs_fixture_inode(&fx, "tmp/d/b");
    ck_assert_int_eq(tree_refresh(fx.fs, d, true), 0);
    ck_assert_int_eq(move("tmp", "d", "tmp", "e"), 0);
    ck_assert(is_there("tmp/e/b"));
    publish_all();
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    ck_assert_int_eq(tree_refresh(fx.fs, tmp, true), 0);
    ck_assert(!is_there("tmp/d"));
}
END_TEST

START_TEST(object_that_others_put_gets_no_second_name_where_a_rule_keeps_it)
{
    struct inode *in = NULL;
    fs_fixture_object(&fx, "tmp/a", "12345", 5);
    INODE_REF a = fs_fixture_inode(&fx, "tmp/a");
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    ck_assert_int_eq(tree_link(fx.fs, a->ino, tmp->ino, "b", &in), -EXDEV); /* its bytes would go with the first name */
}
END_TEST

/* A copy made in the store before there was the rule. */
START_TEST(file_that_rests_on_another_object_is_published_before_that_goes)
{
    struct obj_info info = {0};
    open_again(NULL);
    fs_fixture_object(&fx, "out/a", "12345", 5);
    fs_fixture_write(&fx, "tmp/c", "1", 1);
    ck_assert_int_eq(objstore_head(fx.fs->store, "out/a", &info), 0);
    INODE_REF in = fs_fixture_inode(&fx, "tmp/c");
    const struct cache_source src = {.key = "out/a", .etag = info.etag, .limit = 1};
    ck_assert_int_eq(content_set_base(in, &src), 0);
    obj_info_clear(&info);
    inode_put(g_steal_pointer(&in));
    open_again("tmp/**=local-only");
    ck_assert_uint_eq(ops("tmp/c"), 1);
    INODE_REF out = fs_fixture_inode(&fx, "out");
    ck_assert(is_there("out/a"));
    ck_assert_int_eq(tree_unlink(fx.fs, out->ino, "a"), 0);
    INODE_REF again = fs_fixture_inode(&fx, "tmp/c");
    ck_assert_int_eq(content_open(again, true, false), 0);
    fs_fixture_pwrite(again, "2", 1, 0);
    ck_assert_int_eq(content_flush(again, false), 0);
    content_release(again, true);
    ck_assert_uint_eq(ops("tmp/c"), 1);
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "tmp/c"));
    ck_assert(!fs_fixture_object_exists(&fx, "out/a"));
}
END_TEST

static void expire(void)
{
    fx.fs->mapped.local_look_ns = 0;
    local_expire(fx.fs);
}

/* As if its last close had been so long ago. */
static void make_older(const char *path, uint64_t ns)
{
    char name[32], text[32];
    INODE_REF in = fs_fixture_inode(&fx, path);
    g_snprintf(name, sizeof(name), LOCAL_VALUE_PREFIX "%016" G_GINT64_MODIFIER "x", in->ino);
    g_snprintf(text, sizeof(text), "%" G_GINT64_FORMAT, clock_wall_ns() - (int64_t)ns);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, name, text, strlen(text));
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

static unsigned n_lost;

static void take_lost(struct fs *fs, uint64_t parent, const char *name)
{
    n_lost += g_str_equal(name, "b"); /* others go behind */
}

START_TEST(ttl_counts_from_the_last_close_and_spares_what_is_open)
{
    open_again("tmp/**=local-only,ttl=1h");
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    fs_fixture_write(&fx, "tmp/b", "1", 1);
    expire();
    ck_assert(is_there("tmp/a"));
    make_older("tmp/a", 3601 * NS_PER_S);
    make_older("tmp/b", 3601 * NS_PER_S);
    INODE_REF b = fs_fixture_inode(&fx, "tmp/b");
    ck_assert_int_eq(content_open(b, false, false), 0);
    expire();
    ck_assert(!is_there("tmp/a"));
    ck_assert(is_there("tmp/b"));
    content_release(b, false); /* a reader's close counts */
    expire();
    ck_assert(is_there("tmp/b"));
    make_older("tmp/b", 3601 * NS_PER_S);
    expire();
    ck_assert(!is_there("tmp/b"));
    ck_assert_int_eq(content_open(b, false, false), -ESTALE);
    n_lost = 0;
    ck_assert_int_eq(tree_lost_each(fx.fs, take_lost), 0); /* as long as it is in use: the kernel is to hear of it */
    ck_assert_uint_eq(n_lost, 1);
}
END_TEST

/* As if the clock had been set forward by ns since the last look. */
static void set_forward(int64_t ns, const char *boot_id)
{
    g_autofree char *text = g_strdup_printf("%" G_GINT64_FORMAT "\n%s", clock_wall_ahead_ns() - ns, boot_id);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, "local-clock", text, strlen(text));
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

/* 0: while it is mounted; 1: before it is mounted again. */
START_TEST(clock_set_forward_makes_no_file_older)
{
    open_again("tmp/**=local-only,ttl=1h");
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    expire();
    make_older("tmp/a", 3601 * NS_PER_S);
    set_forward(3601 * (int64_t)NS_PER_S, clock_boot_id());
    if (_i == 1)
        open_again("tmp/**=local-only,ttl=1h");
    expire();
    expire();
    ck_assert(is_there("tmp/a"));
    make_older("tmp/a", 3601 * NS_PER_S);
    set_forward(-3600 * (int64_t)NS_PER_S, clock_boot_id());
    expire();
    ck_assert(!is_there("tmp/a"));
}
END_TEST

START_TEST(clock_of_another_boot_tells_nothing)
{
    open_again("tmp/**=local-only,ttl=1h");
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    make_older("tmp/a", 3601 * NS_PER_S);
    set_forward(3601 * (int64_t)NS_PER_S, "another");
    expire();
    ck_assert(!is_there("tmp/a"));
}
END_TEST

START_TEST(file_about_to_be_removed_for_its_age_gets_no_other_name)
{
    struct inode *in = NULL;
    open_again("tmp/**=local-only,ttl=1h");
    fs_fixture_write(&fx, "tmp/a", "1", 1);
    INODE_REF a = fs_fixture_inode(&fx, "tmp/a");
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    a->expiring = true;
    ck_assert_int_eq(tree_link(fx.fs, a->ino, tmp->ino, "b", &in), -ESTALE);
    a->expiring = false;
    ck_assert_int_eq(tree_link(fx.fs, a->ino, tmp->ino, "b", &in), 0);
    inode_put(in);
    make_older("tmp/a", 3601 * NS_PER_S);
    expire(); /* it is spared, and can be opened */
    ck_assert(is_there("tmp/a") && is_there("tmp/b"));
    ck_assert_int_eq(content_open(a, false, false), 0);
    content_release(a, false);
}
END_TEST

/* tmp/open, whose writer went without a close. */
static void make_unclosed(void)
{
    fs_fixture_write(&fx, "tmp/x", "1", 1);
    INODE_REF tmp = fs_fixture_inode(&fx, "tmp");
    struct node_spec spec = {.parent = tmp->ino, .name = "open", .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    content_abandon(in, true);
    ck_assert(content_is_unclosed(in));
    inode_put(in);
}

START_TEST(unclosed_local_file_is_nobodys_business)
{
    make_unclosed();
    ck_assert(!recover_find_unclosed(fx.fs, "", NULL));
    ck_assert_uint_eq(n_local(), 2);
}
END_TEST

START_TEST(ttl_of_what_was_open_when_the_daemon_ended_counts_from_the_next_start)
{
    open_again("tmp/**=local-only,ttl=1h");
    make_unclosed();
    make_older("tmp/open", 3601 * NS_PER_S);
    make_older("tmp/x", 3601 * NS_PER_S);
    open_again("tmp/**=local-only,ttl=1h");
    expire();
    ck_assert(is_there("tmp/open"));
    ck_assert(!is_there("tmp/x"));
    make_older("tmp/open", 3601 * NS_PER_S);
    expire();
    ck_assert(!is_there("tmp/open"));
}
END_TEST

/* What is kept here replaces nothing in the store. */
START_TEST(object_that_was_to_move_goes_though_its_old_path_is_kept_here)
{
    fs_fixture_object(&fx, "a", "theirs", 6);
    inode_put(fs_fixture_inode(&fx, "a"));
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a", META_ROOT_INO, "b", 0), 0);
    open_again("/a=local-only");
    fs_fixture_write(&fx, "a", "here", 4);
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "b"));
    ck_assert(!fs_fixture_object_exists(&fx, "a"));
    ck_assert_uint_eq(n_local(), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("local");
    TCase *tc = tcase_create("local");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, local_file_has_no_journal_record);
    tcase_add_test(tc, start_without_the_rule_publishes_with_it_drops);
    tcase_add_test(tc, published_file_renamed_in_leaves_the_store_and_keeps_its_bytes);
    tcase_add_test(tc, rename_over_an_object_removes_it);
    tcase_add_test(tc, what_leaves_is_published);
    tcase_add_test(tc, directories_and_links_do_not_cross);
    tcase_add_test(tc, directory_leaves_with_all_names_of_its_files_or_not_at_all);
    tcase_add_test(tc, files_change_places_across_the_rule);
    tcase_add_test(tc, exchange_across_the_rule_that_cannot_be_changes_nothing);
    tcase_add_test(tc, linked_file_that_cannot_come_is_not_fetched);
    tcase_add_test(tc, directory_of_local_files_only_is_shown_by_a_marker);
    tcase_add_test(tc, directory_that_keeps_local_files_only_gets_a_marker);
    tcase_add_test(tc, directory_stays_shown_when_a_rule_comes_to_keep_its_files);
    tcase_add_test(tc, removed_local_file_leaves_nothing);
    tcase_add_test(tc, object_that_others_put_leaves_the_store_when_it_is_renamed_where_a_rule_keeps_it);
    tcase_add_test(tc, marker_of_a_directory_renamed_where_a_rule_keeps_it_goes);
    tcase_add_test(tc, object_that_others_put_gets_no_second_name_where_a_rule_keeps_it);
    tcase_add_test(tc, ttl_counts_from_the_last_close_and_spares_what_is_open);
    tcase_add_test(tc, file_that_rests_on_another_object_is_published_before_that_goes);
    tcase_add_test(tc, file_about_to_be_removed_for_its_age_gets_no_other_name);
    tcase_add_test(tc, unclosed_local_file_is_nobodys_business);
    tcase_add_loop_test(tc, clock_set_forward_makes_no_file_older, 0, 2);
    tcase_add_test(tc, clock_of_another_boot_tells_nothing);
    tcase_add_test(tc, ttl_of_what_was_open_when_the_daemon_ended_counts_from_the_next_start);
    tcase_add_test(tc, object_that_was_to_move_goes_though_its_old_path_is_kept_here);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
