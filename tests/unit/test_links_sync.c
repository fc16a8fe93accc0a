/* Syncs and bucket links, without a kernel: a sync leaves links alone, and their own --sync is carried out. */
#include "fs/links.h"
#include "fs/sync.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define N_DIRS 60u

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
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

/* An object of the store that a link to `name` shows. */
static void object(const char *name, const char *key)
{
    g_autofree char *path = g_build_filename(fx.dir, name, key, NULL), *dir = g_path_get_dirname(path);
    ck_assert_int_eq(g_mkdir_with_parents(dir, 0700), 0);
    ck_assert(g_file_set_contents(path, "1", 1, NULL));
}

static void link_to(const char *name, const char *dir, const char *sync)
{
    g_autofree char *source = g_strdup_printf("file://%s/%s", fx.dir, name), *msg = NULL;
    json_t *options = json_object();
    if (sync)
        json_object_set_new(options, "sync", json_string(sync));
    ck_assert_msg(links_add(fx.fs, source, dir, options, &msg) == 0, "%s", msg);
    json_decref(options);
}

static void set_sync(const char *dir, const char *sync)
{
    g_autofree char *msg = NULL;
    json_t *options = json_object();
    json_object_set_new(options, "sync", sync ? json_string(sync) : json_null());
    ck_assert_msg(links_set(fx.fs, dir, options, &msg) == 0, "%s", msg);
    json_decref(options);
}

static bool is_there(const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx.fs, path, &in);
    inode_put(r == 0 ? in : NULL);
    ck_assert(r == 0 || r == -ENOENT);
    return r == 0;
}

/* As the database knows it, nothing is asked for. */
static bool is_known(const char *dir, const char *name)
{
    struct meta_dentry d = {0};
    INODE_REF in = fs_fixture_inode(&fx, dir);
    int r = meta_dentry_get(fx.fs->meta, in->ino, name, &d);
    meta_dentry_clear(&d);
    return r == 0;
}

static void sync_all(bool incremental)
{
    struct sync_job *job = NULL;
    struct sync_progress p;
    const struct sync_req req = {.path = "", .parallel = 1, .incremental = incremental};
    ck_assert_int_eq(sync_start(fx.fs, &req, &job), 0);
    ck_assert(sync_wait(job, clock_mono_ns() + 60 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(job, &p), SYNC_DONE);
    ck_assert_uint_eq(p.errors, 0);
    sync_job_unref(job);
}

/* ---- links among what is synced ---- */

static void make_empty(const char *dir)
{
    g_autofree char *path = g_build_filename(fx.lake, dir, NULL);
    ck_assert_int_eq(g_mkdir_with_parents(path, 0700), 0);
}

START_TEST(sync_of_many_directories_leaves_links_among_them_alone)
{
    static const char *const links[] = {"d10-link", "d45-link", "zz-last"};
    for (unsigned i = 0; i < N_DIRS; i++) {
        g_autofree char *key = g_strdup_printf("d%02u/x", i);
        fs_fixture_object(&fx, key, "1", 1);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(links); i++)
        make_empty(links[i]);
    object("other", "y");
    object("other", "sub/z");
    start();
    for (unsigned i = 0; i < G_N_ELEMENTS(links); i++)
        link_to("other", links[i], NULL);
    for (unsigned pass = 0; pass < 3; pass++) {
        sync_all(pass == 2);
        for (unsigned i = 0; i < G_N_ELEMENTS(links); i++) {
            g_autofree char *sub = g_strconcat(links[i], "/sub", NULL);
            ck_assert_msg(is_known(links[i], "y"), "%s pass %u", links[i], pass);
            ck_assert_msg(is_known(sub, "z"), "%s pass %u", links[i], pass);
        }
        ck_assert(is_known("d59", "x"));
    }
}
END_TEST

START_TEST(sync_of_a_mount_of_links_only_lists_them)
{
    object("other", "y");
    g_clear_pointer(&fx.cfg.source, g_free);
    start();
    for (unsigned i = 0; i < N_DIRS; i++) {
        g_autofree char *dir = g_strdup_printf("a/l%02u", i);
        link_to("other", dir, NULL);
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        sync_all(false);
        for (unsigned i = 0; i < N_DIRS; i++) {
            g_autofree char *dir = g_strdup_printf("a/l%02u", i);
            ck_assert_msg(is_known(dir, "y"), "%s pass %u", dir, pass);
        }
    }
}
END_TEST

/* ---- what links say of themselves ---- */

static void await_known(const char *dir, const char *name)
{
    while (!is_known(dir, name))
        g_usleep(2000);
}

/* Of one that began since then. One that is cut off goes on after a restart, and leaves out what it has listed. */
static void await_end(const char *path, int64_t since_ns)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    while (sync_done_ns(fx.fs, in->ino) < since_ns)
        g_usleep(2000);
}

static unsigned syncs_of(const char *path)
{
    g_autoptr(GPtrArray) jobs = sync_list(fx.fs);
    unsigned n = 0;
    for (guint i = 0; i < jobs->len; i++)
        n += g_str_equal(sync_path(jobs->pdata[i]), path);
    return n;
}

START_TEST(link_is_listed_wholly_when_it_is_added_or_set_so)
{
    object("one", "deep/er/x");
    object("two", "deep/er/x");
    start();
    link_to("one", "a", "full");
    link_to("two", "b", NULL);
    await_known("a/deep/er", "x");
    ck_assert_uint_eq(syncs_of("b"), 0);
    set_sync("b", "full");
    while (syncs_of("b") == 0)
        g_usleep(2000);
    await_known("b/deep/er", "x");
}
END_TEST

START_TEST(link_is_listed_wholly_at_each_mount)
{
    object("one", "x");
    start();
    link_to("one", "a", "full");
    await_end("a", 1);
    ck_assert(is_known("a", "x"));
    object("one", "late");
    int64_t again_ns = clock_wall_ns();
    restart();
    await_end("a", again_ns);
    ck_assert(is_known("a", "late"));
    set_sync("a", NULL);
    object("one", "later");
    restart();
    ck_assert_uint_eq(syncs_of("a"), 0);
}
END_TEST

START_TEST(link_is_listed_again_and_again)
{
    object("one", "x");
    start();
    link_to("one", "a", "schedule=1s");
    await_known("a", "x"); /* which nobody listed: at once */
    object("one", "late");
    await_known("a", "late");
    restart();
    object("one", "later");
    await_known("a", "later");
    set_sync("a", "lazy");
    unsigned n = syncs_of("a");
    g_usleep(1500000);
    ck_assert_uint_le(syncs_of("a"), n + 1); /* one may have been about to begin */
}
END_TEST

START_TEST(mount_without_a_source_syncs_its_links)
{
    object("one", "x");
    object("two", "x");
    g_clear_pointer(&fx.cfg.source, g_free);
    start();
    link_to("one", "a/b", "schedule=1s");
    link_to("two", "c", "full");
    await_known("a/b", "x");
    await_known("c", "x");
    object("one", "late");
    await_known("a/b", "late");
}
END_TEST

/* Names that a listing under way brings back are taken away again; a sync of it ends, one of all goes on. */
START_TEST(link_that_is_being_listed_can_be_removed)
{
    for (unsigned i = 0; i < 300; i++) {
        g_autofree char *key = g_strdup_printf("d%03u/sub/x", i);
        object("one", key);
    }
    start();
    for (unsigned i = 0; i < 10; i++) {
        g_autofree char *msg = NULL;
        struct sync_job *job = NULL;
        const struct sync_req req = {.path = _i == 0 ? "a" : "", .background = true};
        link_to("one", "a", "schedule=1h");
        ck_assert_int_eq(sync_start(fx.fs, &req, &job), 0);
        g_usleep(i * 5000);
        ck_assert_msg(links_remove(fx.fs, "a", NULL, NULL, &msg) == 0, "%u: %s", i, msg);
        ck_assert(!is_there("a"));
        ck_assert(sync_wait(job, clock_mono_ns() + 60 * NS_PER_S));
        sync_job_unref(job);
    }
}
END_TEST

START_TEST(sync_of_a_link_that_does_not_answer_ends_soon)
{
    struct sync_job *job = NULL;
    struct sync_progress p;
    const unsigned n_dirs = 200;
    for (unsigned i = 0; i < n_dirs; i++) {
        g_autofree char *key = g_strdup_printf("d%03u/x", i);
        object("one", key);
    }
    start();
    link_to("one", "a", NULL);
    sync_all(false);
    fs_fixture_silence_link(&fx, "a", NS_PER_S / 5);
    ck_assert_int_eq(sync_start(fx.fs, &(struct sync_req){.path = "a"}, &job), 0);
    ck_assert(sync_wait(job, clock_mono_ns() + 50 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(job, &p), SYNC_FAILED);
    ck_assert_int_ne(p.err, 0);
    ck_assert_uint_lt(p.errors, n_dirs / 2);
    sync_job_unref(job);
}
END_TEST

START_TEST(removed_link_is_not_synced_any_more)
{
    object("one", "x");
    start();
    link_to("one", "a", "schedule=1s");
    await_known("a", "x");
    g_autofree char *msg = NULL;
    ck_assert_msg(links_remove(fx.fs, "a", NULL, NULL, &msg) == 0, "%s", msg);
    fs_fixture_write(&fx, "a/own", "1", 1); /* another directory */
    unsigned n = syncs_of("a");
    g_usleep(1300000);
    ck_assert_uint_eq(syncs_of("a"), n);
}
END_TEST

START_TEST(link_that_never_changes_is_not_listed_again)
{
    g_autofree char *source = g_strdup_printf("file://%s/one", fx.dir), *msg = NULL;
    object("one", "x");
    start();
    json_t *options = json_pack("{s:s, s:s}", "sync", "schedule=1h", "immutable", "true");
    ck_assert_int_eq(links_add(fx.fs, source, "a", options, &msg), -EINVAL);
    ck_assert_ptr_nonnull(strstr(msg, "sync"));
    json_decref(options);
    link_to("one", "a", "schedule=1h");
    options = json_pack("{s:s}", "immutable", "true");
    g_clear_pointer(&msg, g_free);
    ck_assert_int_eq(links_set(fx.fs, "a", options, &msg), -EINVAL);
    json_decref(options);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("links_sync");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, sync_of_many_directories_leaves_links_among_them_alone);
    tcase_add_test(tc, sync_of_a_mount_of_links_only_lists_them);
    tcase_add_test(tc, link_is_listed_wholly_when_it_is_added_or_set_so);
    tcase_add_test(tc, link_is_listed_wholly_at_each_mount);
    tcase_add_test(tc, link_is_listed_again_and_again);
    tcase_add_test(tc, mount_without_a_source_syncs_its_links);
    tcase_add_loop_test(tc, link_that_is_being_listed_can_be_removed, 0, 2);
    tcase_add_test(tc, sync_of_a_link_that_does_not_answer_ends_soon);
    tcase_add_test(tc, removed_link_is_not_synced_any_more);
    tcase_add_test(tc, link_that_never_changes_is_not_listed_again);
    Suite *s = suite_create("links_sync");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
