/* Syncs and bucket links, without a kernel: a sync leaves links alone. */
#include "fs/links.h"
#include "fs/sync.h"
#include "fs/tree.h"
#include "fs_fixture.h"

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

int main(void)
{
    TCase *tc = tcase_create("links_sync");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, sync_of_many_directories_leaves_links_among_them_alone);
    tcase_add_test(tc, sync_of_a_mount_of_links_only_lists_them);
    Suite *s = suite_create("links_sync");
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
