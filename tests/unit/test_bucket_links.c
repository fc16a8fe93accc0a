/* Bucket links of a struct fs without a kernel: adding, policies, order, removing, and what a restart finds. Options of links. */
#include "../../fs/content.h"
#include "../../fs/link_options.h"
#include "../../fs/links.h"
#include "../../fs/publish.h"
#include "../../fs/tree.h"
#include "fs_fixture.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>

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

START_TEST(a_file_lists_links)
{
    g_autofree char *path = other("links.txt", NULL);
    g_autofree char *text = g_strdup_printf("# links\n\nfile://%s/one a read-only metadata-ttl=7s\n"
                                            "file://%s/missing b\nfile://%s/two 'c d'\n",
                                            fx.dir, fx.dir, fx.dir);
    struct link_policy p;
    object("one", "x", "1");
    object("two", "y", "1");
    ck_assert(g_file_set_contents(path, text, -1, NULL));
    fx.cfg.links = g_strdup(path);
    start();
    ck_assert_int_eq(lookup("a/x"), 0);
    ck_assert_int_eq(lookup("c d/y"), 0);
    ck_assert_int_eq(lookup("b"), -ENOENT);
    links_policy(fx.fs, "a/x", &p);
    ck_assert(p.read_only && p.metadata_ttl_ns == 7 * NS_PER_S);
    g_autofree char *less = g_strdup_printf("file://%s/one a\n", fx.dir);
    ck_assert(g_file_set_contents(path, less, -1, NULL));
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
    tcase_add_test(t, a_bucket_that_is_gone_leaves_the_others_alone);
    tcase_add_test(t, a_file_lists_links);
    tcase_add_test(t, a_mount_without_a_source_has_links_only);
    tcase_add_test(t, a_lost_database_does_not_mix_buckets_up);
    tcase_add_test(t, one_link_does_not_wait_for_another);
    tcase_add_test(p, options_are_checked);
    suite_add_tcase(s, t);
    suite_add_tcase(s, p);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    g_free(last_msg);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
