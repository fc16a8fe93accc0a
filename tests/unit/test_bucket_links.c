/* Bucket links of a struct fs without a kernel: adding, policies, order, removing, and what a restart finds. Options of links. */
#include "../../fs/conflict.h"
#include "../../fs/content.h"
#include "../../fs/link_options.h"
#include "../../fs/links.h"
#include "../../fs/op.h"
#include "../../fs/publish.h"
#include "../../fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static char *other(const char *name, const char *key)
{
    return g_build_filename(fx.dir, name, key, NULL);
}

static void object(const char *name, const char *key, const char *text)
{
    g_autofree char *path = other(name, key);
    g_autofree char *dir = g_path_get_dirname(path);
    ck_assert_int_eq(g_mkdir_with_parents(dir, 0700), 0);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
}

static bool holds(const char *name, const char *key, const char *text)
{
    g_autofree char *path = other(name, key), *have = NULL;
    return g_file_get_contents(path, &have, NULL, NULL) && g_str_equal(have, text);
}

static char *last_msg;

/* options: "name=value,..." */
static json_t *options_of(const char *text)
{
    json_t *o = json_object();
    g_auto(GStrv) list = g_strsplit(text, ";", -1);
    for (unsigned i = 0; list[i]; i++) {
        g_auto(GStrv) pair = g_strsplit(list[i], "=", 2);
        if (*list[i])
            json_object_set_new(o, pair[0], pair[1] ? json_string(pair[1]) : json_null());
    }
    return o;
}

static int add(const char *name, const char *dir, const char *options)
{
    g_autofree char *path = other(name, ""), *source = g_strdup_printf("file://%s/%s", fx.dir, name);
    (void)g_mkdir_with_parents(path, 0700); /* may be there */
    json_t *o = options_of(options);
    g_clear_pointer(&last_msg, g_free);
    int r = links_add(fx.fs, source, dir, o, &last_msg);
    json_decref(o);
    return r;
}

static int set(const char *dir, const char *options)
{
    json_t *o = options_of(options);
    g_clear_pointer(&last_msg, g_free);
    int r = links_set(fx.fs, dir, o, &last_msg);
    json_decref(o);
    return r;
}

static int rm(const char *dir)
{
    g_clear_pointer(&last_msg, g_free);
    return links_remove(fx.fs, dir, NULL, NULL, &last_msg);
}

static int lookup(const char *path)
{
    INODE_REF in = NULL;
    return tree_resolve(fx.fs, path, &in);
}

static uint64_t ino_of(const char *path)
{
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, path, &in), 0);
    return in->ino;
}

static void publish_all(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
}

static int rename_path(const char *from_dir, const char *from, const char *to_dir, const char *to)
{
    return tree_rename(fx.fs, ino_of(from_dir), from, ino_of(to_dir), to, 0);
}

static void start(void)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void restart(void)
{
    fs_fixture_close(&fx);
    start();
}

START_TEST(a_link_shows_another_store_and_takes_what_is_written)
{
    fs_fixture_object(&fx, "top", "1", 1);
    object("one", "d/x", "of one");
    start();
    ck_assert_int_eq(add("one", "sub", ""), 0);
    ck_assert_ptr_null(last_msg);
    ck_assert_int_eq(lookup("sub/d/x"), 0);
    ck_assert_int_eq(lookup("top"), 0);
    ck_assert_int_eq(lookup("sub/top"), -ENOENT);
    fs_fixture_write(&fx, "sub/d/new", "news", 4);
    fs_fixture_write(&fx, "own", "mine", 4);
    publish_all();
    ck_assert(holds("one", "d/new", "news"));
    ck_assert(fs_fixture_object_exists(&fx, "own"));
    ck_assert(!fs_fixture_object_exists(&fx, "sub") && !fs_fixture_object_exists(&fx, "sub/d/new"));
    restart();
    ck_assert_int_eq(lookup("sub/d/new"), 0);
    fs_fixture_write(&fx, "sub/again", "2", 1);
    publish_all();
    ck_assert(holds("one", "again", "2"));
}
END_TEST

START_TEST(what_would_be_hidden_is_in_the_way)
{
    fs_fixture_object(&fx, "full/x", "1", 1);
    fs_fixture_object(&fx, "file", "1", 1);
    start();
    ck_assert_int_eq(add("one", "full", ""), -ENOTEMPTY);
    ck_assert(strstr(last_msg, "full"));
    ck_assert_int_eq(add("one", "file", ""), -ENOTDIR);
    ck_assert_int_eq(add("one", "", ""), -EINVAL);
    ck_assert_int_eq(add("one", "a/../b", ""), -EINVAL);
    ck_assert_int_eq(add("one", "deep/er", ""), 0);
    ck_assert_int_eq(add("one", "deep/er", ""), -EEXIST);
    ck_assert_int_eq(add("two", "deep", ""), -EEXIST);
    ck_assert_int_eq(add("two", "deep/er/est", ""), -EEXIST);
    ck_assert_int_eq(lookup("full/x"), 0);
}
END_TEST

START_TEST(the_same_objects_twice_are_warned_of)
{
    start();
    ck_assert_int_eq(add("lake/part", "a", ""), 0);
    ck_assert(last_msg && strstr(last_msg, "the mount itself"));
    ck_assert_int_eq(add("one", "b", ""), 0);
    ck_assert_ptr_null(last_msg);
    ck_assert_int_eq(add("one/below", "c", ""), 0);
    ck_assert(last_msg && strstr(last_msg, "'b'"));
    ck_assert_int_eq(add("onet", "d", ""), 0);
    ck_assert_ptr_null(last_msg);
}
END_TEST

START_TEST(names_do_not_cross_links)
{
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(add("two", "d/b", ""), 0);
    fs_fixture_write(&fx, "a/x", "1", 1);
    fs_fixture_write(&fx, "x", "1", 1);
    ck_assert_int_eq(rename_path("a", "x", "d/b", "x"), -EXDEV);
    ck_assert_int_eq(rename_path("a", "x", "", "y"), -EXDEV);
    ck_assert_int_eq(rename_path("", "x", "a", "y"), -EXDEV);
    ck_assert_int_eq(rename_path("a", "x", "a", "y"), 0);
    ck_assert_int_eq(rename_path("", "a", "", "e"), -EBUSY);
    ck_assert_int_eq(rename_path("", "d", "", "e"), -EBUSY);
    ck_assert_int_eq(rename_path("", "x", "", "a"), -EBUSY);
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "a"), -EBUSY);
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "d"), -ENOTEMPTY);
    publish_all();
    ck_assert(holds("one", "y", "1") && !holds("one", "x", "1"));
}
END_TEST

START_TEST(policies_are_those_of_the_link)
{
    struct link_policy p;
    start();
    ck_assert_int_eq(add("one", "a", "read-only=true;metadata-ttl=5s;conflict=overwrite"), 0);
    ck_assert_int_eq(add("two", "b", "immutable=true"), 0);
    links_policy(fx.fs, "a/x", &p);
    ck_assert(p.in_link && p.read_only && p.conflict == CONFLICT_OVERWRITE && p.metadata_ttl_ns == 5 * NS_PER_S);
    links_policy(fx.fs, "ab", &p);
    ck_assert(!p.in_link && !p.read_only && p.conflict == CONFLICT_KEEP);
    links_policy(fx.fs, "b/x/y", &p);
    ck_assert(p.immutable && p.read_only && p.metadata_ttl_ns > 3600 * NS_PER_S);
    ck_assert_int_eq(links_may_change(fx.fs, ino_of("a")), -EROFS);
    ck_assert_int_eq(links_may_change(fx.fs, META_ROOT_INO), 0);
    ck_assert_int_eq(set("a", "read-only=false;conflict"), 0);
    ck_assert_int_eq(links_may_change(fx.fs, ino_of("a")), 0);
    links_policy(fx.fs, "a/x", &p);
    ck_assert(p.conflict == CONFLICT_KEEP && p.metadata_ttl_ns == 5 * NS_PER_S);
    ck_assert_int_eq(set("a", "colour=red"), -EINVAL);
    ck_assert_ptr_nonnull(strstr(last_msg, "colour"));
    ck_assert_int_eq(set("nothing", "read-only=true"), -ENOENT);
    restart();
    links_policy(fx.fs, "a/x", &p);
    ck_assert(!p.read_only && p.metadata_ttl_ns == 5 * NS_PER_S);
}
END_TEST

static int create(const char *dir, const char *name, uint32_t type)
{
    INODE_REF in = NULL;
    struct node_spec spec = {.parent = ino_of(dir), .name = name, .mode = type | 0755};
    return tree_create(fx.fs, &spec, false, &in);
}

START_TEST(what_a_link_does_not_show_cannot_be_made)
{
    object("one", "keep.bin", "1");
    object("one", "drop.txt", "1");
    object("one", "d/keep.bin", "1");
    object("one", "skip/keep.bin", "1");
    start();
    ck_assert_int_eq(add("one", "a", "include=*.bin;exclude=skip/**"), 0);
    ck_assert_int_eq(lookup("a/keep.bin"), 0);
    ck_assert_int_eq(lookup("a/d/keep.bin"), 0);
    ck_assert_int_eq(lookup("a/drop.txt"), -ENOENT);
    ck_assert_int_eq(lookup("a/skip"), -ENOENT);
    ck_assert_int_eq(create("a", "new.txt", S_IFREG), -EACCES);
    ck_assert_int_eq(create("a", "skip", S_IFDIR), -EACCES);
    ck_assert_int_eq(create("a", "other", S_IFDIR), 0);
    ck_assert_int_eq(create("a", "new.bin", S_IFREG), 0);
    ck_assert_int_eq(rename_path("a", "new.bin", "a", "new.txt"), -EACCES);
    ck_assert_int_eq(set("a", "include;exclude"), 0);
    ck_assert_int_eq(lookup("a/drop.txt"), 0);
    ck_assert_int_eq(lookup("a/skip/keep.bin"), 0);
}
END_TEST

START_TEST(a_link_goes_with_its_names_but_not_with_its_objects)
{
    object("one", "d/x", "1");
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(lookup("a/d/x"), 0);
    fs_fixture_write(&fx, "a/new", "2", 1);
    publish_all();
    ck_assert_int_eq(rm("nothing"), -ENOENT);
    ck_assert_int_eq(rm("a"), 0);
    ck_assert_int_eq(lookup("a"), -ENOENT);
    ck_assert(holds("one", "d/x", "1") && holds("one", "new", "2"));
    restart();
    ck_assert_int_eq(lookup("a"), -ENOENT);
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(lookup("a/new"), 0);
}
END_TEST

START_TEST(a_link_with_work_left_stays)
{
    fs_fixture_open(&fx); /* nothing is published */
    ck_assert_int_eq(add("one", "a", ""), 0);
    fs_fixture_write(&fx, "a/x", "1", 1);
    ck_assert_int_eq(rm("a"), -EBUSY);
    ck_assert_ptr_nonnull(strstr(last_msg, "--drain"));
    ck_assert_int_eq(links_may_change(fx.fs, ino_of("a")), 0);
    fs_fixture_start(&fx);
    publish_all();
    ck_assert_int_eq(rm("a"), 0);
    ck_assert(holds("one", "x", "1"));
}
END_TEST

/* The file at path was changed here, but first its object by somebody else. The number of the conflict. */
static uint64_t lose(const char *path, const char *store, const char *key)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    uint64_t id = 0;
    ck_assert_int_eq(content_open(in, true, true), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "ours", 4, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    object(store, key, "theirs, longer");
    content_release(in, true);
    EVENTUALLY(conflict_find(fx.fs->meta, path, &id) == 0);
    return id;
}

/* Once the publisher has let go of it. */
static void skip(const char *path)
{
    int n = 0;
    for (unsigned tries = 0; n == 0 && tries < 2000; tries++) {
        n = publish_skip(fx.fs->pub, path);
        g_usleep(n == 0 ? 10000 : 0);
    }
    ck_assert_int_eq(n, 1);
}

/* What was skipped is no work any more, but would go to whichever bucket is at its path when somebody decides for it. */
START_TEST(a_link_with_a_conflict_stays)
{
    object("one", "f", "base");
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    uint64_t id = lose("a/f", "one", "f");
    skip("a");
    publish_all();
    ck_assert_int_eq(rm("a"), -EBUSY);
    ck_assert_ptr_nonnull(strstr(last_msg, "sluice conflicts"));
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), 0);
    ck_assert_int_eq(rm("a"), 0);
    ck_assert(holds("one", "f", "theirs, longer"));
}
END_TEST

START_TEST(a_conflict_below_a_directory_is_in_the_way_of_a_link)
{
    fs_fixture_object(&fx, "d/f", "base", 4);
    start();
    uint64_t id = lose("d/f", "lake", "d/f");
    skip("d");
    ck_assert_int_eq(tree_unlink(fx.fs, ino_of("d"), "f"), 0);
    publish_all();
    ck_assert_int_eq(add("one", "d", ""), -EBUSY);
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), 0);
    ck_assert_int_eq(add("one", "d", ""), 0);
}
END_TEST

START_TEST(a_conflict_goes_only_where_it_may_be_written)
{
    object("one", "f", "base");
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(add("two", "b", "read-only=true"), 0);
    uint64_t id = lose("a/f", "one", "f");
    ck_assert_int_eq(conflict_save_as(fx.fs, id, "b/x"), -EROFS);
    ck_assert_int_eq(conflict_save_as(fx.fs, id, ".stats"), -EPERM);
    ck_assert_int_eq(set("a", "read-only=true"), 0);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id), -EROFS);
    ck_assert_int_eq(set("a", "read-only"), 0);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id), 0);
    publish_all();
    ck_assert(holds("one", "f", "ours") && !holds("two", "x", "ours"));
}
END_TEST

static const char *state_of(const char *dir)
{
    static char state[32];
    json_t *list = links_describe(fx.fs, dir, false);
    g_strlcpy(state, json_string_value(json_object_get(json_array_get(list, 0), "state")), sizeof(state));
    json_decref(list);
    return state;
}

START_TEST(a_bucket_that_is_gone_leaves_the_others_alone)
{
    object("one", "x", "1");
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(add("two", "b", ""), 0);
    ck_assert_int_eq(lookup("a/x"), 0);
    g_autofree char *from = other("one", NULL), *to = other("away", NULL);
    fs_fixture_close(&fx);
    ck_assert_int_eq(g_rename(from, to), 0);
    start();
    ck_assert_str_eq(state_of("a"), "degraded");
    ck_assert_str_eq(state_of("b"), "ok");
    ck_assert_int_eq(lookup("a"), 0);
    ck_assert_int_eq(lookup("a/x"), 0);
    ck_assert_int_eq(create("a", "late", S_IFREG), 0);
    fs_fixture_write(&fx, "b/y", "2", 1);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "b", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    ck_assert(holds("two", "y", "2"));
    ck_assert_int_eq(rm("a"), -EBUSY);
    ck_assert_int_eq(g_rename(to, from), 0);
    publish_all(); /* it is tried again */
    ck_assert(holds("one", "late", ""));
    ck_assert_str_eq(state_of("a"), "ok");
}
END_TEST

START_TEST(no_link_leads_into_the_mount_or_to_the_cache)
{
    const char *const wrong[] = {"mnt", "mnt/d", "alias/d", "lake/../mnt", "", "cache", "cache/data"};
    g_autofree char *alias = other("alias", ""), *one = other("one", "");
    fs_fixture_open(&fx);
    ck_assert_int_eq(symlink("mnt", alias), 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(wrong); i++) {
        ck_assert_msg(add(wrong[i], "a", "") == -EINVAL, "%s", wrong[i]);
        ck_assert_msg(strstr(last_msg, "lies in") != NULL, "%s: %s", wrong[i], last_msg);
    }
    ck_assert_int_eq(lookup("a"), -ENOENT);
    ck_assert_int_eq(g_unlink(alias) | g_mkdir(one, 0700) | symlink("one", alias), 0);
    ck_assert_int_eq(add("alias", "a", ""), 0);
    ck_assert_int_eq(g_unlink(alias) | symlink("mnt", alias), 0); /* what is there from before is not opened */
    restart();
    ck_assert_str_eq(state_of("a"), "degraded");
}
END_TEST

/* 0: with an option of another version; 1: damaged. */
START_TEST(a_link_that_cannot_be_read_is_no_directory_of_the_mount)
{
    object("one", "x", "1");
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(lookup("a/x"), 0);
    g_autofree char *unknown = g_strdup_printf(
        "{\"source\":\"file://%s/one\",\"options\":{\"colour\":\"red\",\"read-only\":\"false\"}}", fx.dir);
    const char *record = _i == 0 ? unknown : "{";
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, "link/a", record, strlen(record));
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    restart();
    struct obj_info info = {0};
    ck_assert_str_eq(state_of("a"), "degraded");
    ck_assert_int_eq(lookup("a/x"), 0);
    ck_assert_int_eq(objstore_head(fx.fs->store, "a/x", &info), -EIO);
    ck_assert_int_eq(links_may_change(fx.fs, ino_of("a")), -EROFS);
    ck_assert_int_eq(add("two", "b", ""), 0); /* the copy beside the database is written again */
    ck_assert_int_eq(set("a", "read-only=false"), _i == 0 ? -EINVAL : -EBADMSG);
    ck_assert_ptr_nonnull(strstr(last_msg, _i == 0 ? "colour" : "damaged"));
    fs_fixture_close(&fx);
    g_autofree char *lost = g_strdup_printf("rm -rf '%s/meta'", fx.cache_dir);
    ck_assert_int_eq(system(lost), 0);
    start();
    ck_assert_str_eq(state_of("a"), "degraded");
    ck_assert_int_eq(links_may_change(fx.fs, ino_of("a")), -EROFS);
    if (_i == 1) {
        ck_assert_int_eq(rm("a"), 0);
        return;
    }
    ck_assert_int_eq(set("a", "colour"), 0);
    ck_assert_str_eq(state_of("a"), "ok");
    fs_fixture_write(&fx, "a/new", "2", 1);
    publish_all();
    ck_assert(holds("one", "new", "2"));
    restart();
    ck_assert_str_eq(state_of("a"), "ok");
}
END_TEST

static char *links_file(const char *text)
{
    char *path = other("links.txt", NULL);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
    return path;
}

START_TEST(a_link_of_a_file_is_there_before_its_bucket_answers)
{
    g_autofree char *text =
        g_strdup_printf("file://%s/late a/b\n"
                        "s3://bucket c endpoint-url=http://127.0.0.1:1 no-sign-request\nftp://host/x d\n",
                        fx.dir);
    fx.cfg.links = links_file(text);
    fx.cfg.op_timeout_ns = NS_PER_S;
    start();
    ck_assert_str_eq(state_of("a/b"), "degraded");
    ck_assert_int_eq(lookup("a/b"), 0);
    ck_assert_int_eq(lookup("c"), 0);
    ck_assert_int_eq(lookup("d"), -ENOENT);
    ck_assert_int_eq(create("a/b", "x", S_IFREG), 0);
    restart();
    ck_assert_str_eq(state_of("a/b"), "degraded");
    g_autofree char *late = other("late", NULL);
    ck_assert_int_eq(g_mkdir(late, 0700), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "a", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    ck_assert(holds("late", "x", "") && !fs_fixture_object_exists(&fx, "a"));
    json_t *list = links_describe(fx.fs, "a/b", true);
    const char *endpoint = json_string_value(json_object_get(json_array_get(list, 0), "endpoint"));
    ck_assert_ptr_nonnull(strstr(endpoint, "/late")); /* where it leads is known from now on */
    json_decref(list);
    restart();
    ck_assert_str_eq(state_of("a/b"), "ok");
}
END_TEST

START_TEST(a_link_of_a_file_is_there_though_the_mounts_own_store_fails)
{
    uint64_t ino = 0;
    object("one", "x", "1");
    start();
    fs_fixture_close(&fx);
    g_autofree char *text = g_strdup_printf("file://%s/one a\n", fx.dir);
    fx.cfg.links = links_file(text);
    fx.cfg.fault = g_strdup("op=any,action=error:-EIO");
    start();
    ck_assert_int_eq(links_tree_find(fx.fs, "a", &ino), 0);
    ck_assert_str_eq(state_of("a"), "ok");
    INODE_REF in = NULL;
    struct node_spec spec = {.parent = ino, .name = "y", .mode = S_IFREG | 0644};
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "a", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    ck_assert(holds("one", "y", ""));
}
END_TEST

START_TEST(a_file_of_links_that_cannot_be_read_fails_the_mount)
{
    char *msg = NULL;
    const struct fs_setup how = {.cfg = &fx.cfg};
    fx.cfg.links = other("nothing.txt", NULL);
    ck_assert_int_eq(fs_open(&how, &fx.fs, &msg), -EIO);
    ck_assert(strstr(msg, "links") && strstr(msg, "nothing.txt"));
    ck_assert_ptr_null(fx.fs);
    g_free(msg);
}
END_TEST

START_TEST(a_file_lists_links)
{
    g_autofree char *text = g_strdup_printf("# links\n\nfile://%s/one a read-only metadata-ttl=7s\n"
                                            "file://%s/lake/sub b\nfile://%s/two 'c d'\n",
                                            fx.dir, fx.dir, fx.dir);
    struct link_policy p;
    object("one", "x", "1");
    object("two", "y", "1");
    fs_fixture_object(&fx, "b/in the way", "1", 1);
    fx.cfg.links = links_file(text);
    start();
    ck_assert_int_eq(lookup("a/x"), 0);
    ck_assert_int_eq(lookup("c d/y"), 0);
    ck_assert_int_eq(lookup("b/in the way"), 0);
    links_policy(fx.fs, "a/x", &p);
    ck_assert(p.read_only && p.metadata_ttl_ns == 7 * NS_PER_S);
    g_autofree char *less = g_strdup_printf("file://%s/one a\n", fx.dir);
    g_free(links_file(less));
    restart();
    links_policy(fx.fs, "a/x", &p);
    ck_assert(!p.read_only);
    ck_assert_int_eq(lookup("c d/y"), 0);
}
END_TEST

START_TEST(a_mount_without_a_source_has_links_only)
{
    object("one", "x", "1");
    g_clear_pointer(&fx.cfg.source, g_free);
    start();
    ck_assert_int_eq(links_may_change(fx.fs, META_ROOT_INO), -EROFS);
    ck_assert_int_eq(lookup("x"), -ENOENT);
    ck_assert_int_eq(add("one", "a/b", ""), 0);
    ck_assert_int_eq(lookup("a/b/x"), 0);
    ck_assert_int_eq(links_may_change(fx.fs, ino_of("a")), -EROFS);
    ck_assert_int_eq(links_may_change(fx.fs, ino_of("a/b")), 0);
    fs_fixture_write(&fx, "a/b/y", "2", 1);
    publish_all();
    ck_assert(holds("one", "y", "2"));
    restart();
    ck_assert_int_eq(lookup("a/b/y"), 0);
    ck_assert_int_eq(rm("a/b"), 0);
    ck_assert_int_eq(lookup("a/b"), -ENOENT);
}
END_TEST

/* What is brought back goes to the bucket that it was written for. */
START_TEST(a_lost_database_does_not_mix_buckets_up)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(add("one", "a/b", ""), 0);
    fs_fixture_write(&fx, "a/b/d/x", "1", 1);
    fs_fixture_write(&fx, "y", "2", 1);
    fs_fixture_close(&fx);
    g_autofree char *lost = g_strdup_printf("rm -rf '%s/meta'", fx.cache_dir);
    ck_assert_int_eq(system(lost), 0);
    start();
    publish_all();
    ck_assert(holds("one", "d/x", "1") && fs_fixture_object_exists(&fx, "y"));
    ck_assert(!fs_fixture_object_exists(&fx, "a"));
    ck_assert_int_eq(lookup("a/b/d/x"), 0);
    ck_assert_int_eq(rm("a/b"), 0);
}
END_TEST

/* Order holds inside of a link only: what one waits for does not hold up another. */
START_TEST(one_link_does_not_wait_for_another)
{
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(add("two", "b", ""), 0);
    fs_fixture_write(&fx, "b/old", "1", 1);
    publish_all();
    fx.cfg.order = ORDER_MOUNT;
    fs_fixture_write(&fx, "a/held.tmp", "1", 1); /* earlier, and not published for minutes */
    fs_fixture_write(&fx, "b/y", "2", 1);
    ck_assert_int_eq(tree_unlink(fx.fs, ino_of("b"), "old"), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "b", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    ck_assert(holds("two", "y", "2") && !holds("two", "old", "1"));
    ck_assert(!holds("one", "held.tmp", "1"));
}
END_TEST

static int link_path(struct inode *in, const char *dir, const char *name)
{
    INODE_REF made = NULL;
    return tree_link(fx.fs, in->ino, ino_of(dir), name, &made);
}

/* As the next worker finds it. */
static void forget_place(struct inode *in)
{
    mutex_lock(&in->mu);
    in->place_dir = in->place_id = 0;
    mutex_unlock(&in->mu);
}

START_TEST(a_file_without_a_name_stays_in_its_link)
{
    INODE_REF made = NULL;
    g_clear_pointer(&fx.cfg.source, g_free);
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    ck_assert_int_eq(add("two", "b", ""), 0);
    struct node_spec spec = {.parent = ino_of("a"), .mode = S_IFREG | 0600};
    ck_assert_int_eq(tree_tmpfile(fx.fs, &spec, &made), 0);
    ck_assert_uint_eq(links_point_of(fx.fs, made->ino), ino_of("a"));
    fs_fixture_write(&fx, "a/d/x", "1", 1);
    INODE_REF in = fs_fixture_inode(&fx, "a/d/x");
    INODE_REF sub = fs_fixture_inode(&fx, "a/d");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, sub->ino, "x"), 0);
    ck_assert_int_eq(tree_rmdir(fx.fs, ino_of("a"), "d"), 0);
    inode_put(g_steal_pointer(&sub));
    forget_place(in);
    ck_assert_int_eq(links_may_change(fx.fs, in->ino), 0);
    ck_assert_int_eq(link_path(in, "b", "y"), -EXDEV);
    ck_assert_int_eq(link_path(in, "a", "y"), 0);
    ck_assert_int_eq(link_path(made, "a", "z"), 0);
    ck_assert_uint_eq(in->rec.parent, 0);
    content_release(in, true);
    publish_all();
    ck_assert(holds("one", "y", "1") && holds("one", "z", ""));
}
END_TEST

static bool is_gone(uint64_t ino)
{
    INODE_REF in = NULL;
    return inode_get(fx.fs, ino, &in) == -ENOENT;
}

START_TEST(a_file_stays_in_its_link_when_the_directory_it_came_from_goes)
{
    start();
    ck_assert_int_eq(add("one", "a", ""), 0);
    fs_fixture_write(&fx, "a/d/x", "1", 1);
    fs_fixture_write(&fx, "a/d/y", "2", 1);
    INODE_REF in = fs_fixture_inode(&fx, "a/d/x");
    ck_assert_int_eq(rename_path("a/d", "x", "a", "x"), 0);
    ck_assert_int_eq(rename_path("a/d", "y", "a", "y"), 0);
    uint64_t d = ino_of("a/d");
    ck_assert_int_eq(tree_rmdir(fx.fs, ino_of("a"), "d"), 0);
    EVENTUALLY(is_gone(d));
    ck_assert_uint_eq(in->place_dir, d);
    ck_assert_uint_eq(links_point_of(fx.fs, in->ino), ino_of("a"));
    ck_assert_int_eq(link_path(in, "", "y"), -EXDEV);
    ck_assert_int_eq(link_path(in, "a", "z"), 0);
    publish_all();
    ck_assert(holds("one", "z", "1") && !fs_fixture_object_exists(&fx, "y"));
}
END_TEST

/* 0: the mount's own store takes larger objects than a link's; 1: it is the other way round. */
START_TEST(a_file_is_as_large_as_its_own_store_takes_it)
{
    const uint64_t large = 6ull << 40;
    fx.cfg.links = links_file("s3://bucket a endpoint-url=http://127.0.0.1:1 no-sign-request\n");
    fx.cfg.op_timeout_ns = NS_PER_S;
    if (_i == 1)
        g_clear_pointer(&fx.cfg.source, g_free);
    start();
    ck_assert_int_eq(add("one", "b", ""), 0);
    ck_assert_int_eq(create("a", "x", S_IFREG), 0);
    ck_assert_int_eq(create("b", "x", S_IFREG), 0);
    INODE_REF a = fs_fixture_inode(&fx, "a");
    INODE_REF b = fs_fixture_inode(&fx, "b/x");
    INODE_REF x = NULL;
    INODE_REF nameless = NULL;
    struct node_spec spec = {.parent = a->ino, .mode = S_IFREG | 0600};
    struct meta_dentry d = {0};
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, a->ino, "x", &d), 0); /* a look-up would ask the store */
    ck_assert_int_eq(inode_get(fx.fs, d.ino, &x), 0);
    meta_dentry_clear(&d);
    ck_assert_int_eq(tree_tmpfile(fx.fs, &spec, &nameless), 0);
    ck_assert_int_eq(attr_check_size(x, 5ull << 40), 0);
    ck_assert_int_eq(attr_check_size(x, large), -EFBIG);
    ck_assert_int_eq(attr_check_size(nameless, large), -EFBIG);
    ck_assert_int_eq(attr_check_size(b, large), 0);
}
END_TEST

static const struct {
    const char *options, *word; /* NULL: fine */
} rows[] = {
    {"", NULL},
    {"endpoint-url=https://host;region=x;profile=p;sync=schedule=5m;include=*.a,*.b", NULL},
    {"endpoint-url=ftp://host", "endpoint-url"},
    {"endpoint-url=https://key:secret@host", "keys"},
    {"sync=sometimes", "sync"},
    {"sync=schedule=soon", "sync"},
    {"sync=schedule=0s", "sync"},
    {"conflict=maybe", "conflict"},
    {"read-only=perhaps", "read-only"},
    {"metadata-ttl=x", "metadata-ttl"},
    {"upload-limit=-1", "upload-limit"},
    {"include=a,,b", "include"},
    {"policy=best", "policy"},
    {"immutable=true;metadata-ttl=1s", "immutable"},
    {"no-sign-request=true;profile=p", "no-sign-request"},
    {"ca-bundle=here.pem", "ca-bundle"},
};

START_TEST(options_are_checked)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct link_options o = {0};
        g_autofree char *msg = NULL;
        json_t *json = options_of(rows[i].options);
        int r = link_options_parse(json, &o, &msg);
        ck_assert_msg(r == (rows[i].word ? -EINVAL : 0), "%s: %d %s", rows[i].options, r, msg ? msg : "");
        if (rows[i].word)
            ck_assert_msg(strstr(msg, rows[i].word) && !strstr(msg, "secret"), "%s", msg);
        if (r == 0)
            link_options_clear(&o);
        json_decref(json);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("bucket_links");
    TCase *t = tcase_create("links"), *p = tcase_create("options");
    tcase_set_timeout(t, 100);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_link_shows_another_store_and_takes_what_is_written);
    tcase_add_test(t, what_would_be_hidden_is_in_the_way);
    tcase_add_test(t, the_same_objects_twice_are_warned_of);
    tcase_add_test(t, names_do_not_cross_links);
    tcase_add_test(t, policies_are_those_of_the_link);
    tcase_add_test(t, what_a_link_does_not_show_cannot_be_made);
    tcase_add_test(t, a_link_goes_with_its_names_but_not_with_its_objects);
    tcase_add_test(t, a_link_with_work_left_stays);
    tcase_add_test(t, a_link_with_a_conflict_stays);
    tcase_add_test(t, a_conflict_below_a_directory_is_in_the_way_of_a_link);
    tcase_add_test(t, a_conflict_goes_only_where_it_may_be_written);
    tcase_add_loop_test(t, a_link_that_cannot_be_read_is_no_directory_of_the_mount, 0, 2);
    tcase_add_test(t, a_link_of_a_file_is_there_before_its_bucket_answers);
    tcase_add_test(t, a_link_of_a_file_is_there_though_the_mounts_own_store_fails);
    tcase_add_test(t, a_file_of_links_that_cannot_be_read_fails_the_mount);
    tcase_add_test(t, no_link_leads_into_the_mount_or_to_the_cache);
    tcase_add_test(t, a_bucket_that_is_gone_leaves_the_others_alone);
    tcase_add_test(t, a_file_lists_links);
    tcase_add_test(t, a_mount_without_a_source_has_links_only);
    tcase_add_test(t, a_lost_database_does_not_mix_buckets_up);
    tcase_add_test(t, one_link_does_not_wait_for_another);
    tcase_add_test(t, a_file_without_a_name_stays_in_its_link);
    tcase_add_test(t, a_file_stays_in_its_link_when_the_directory_it_came_from_goes);
    tcase_add_loop_test(t, a_file_is_as_large_as_its_own_store_takes_it, 0, 2);
    tcase_add_test(p, options_are_checked);
    suite_add_tcase(s, t);
    suite_add_tcase(s, p);
    int status = run_suite(s);
    g_free(last_msg);
    return status;
}
