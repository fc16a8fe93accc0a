/* What must be on the disk before something that a power loss does not take back: the first byte of a change, an object that appears or goes. */
#include "fs/content.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"

#include <check.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fs_fixture fx;

/* ---- how much of the database's log is on the disk; what happens to the lake ---- */

static GMutex mu;
static gsize synced;       /* bytes of the log */
static unsigned n_visible; /* objects that appeared or went */
static bool behind;        /* one did while the log was not synced to its end */

static gsize log_size(void)
{
    g_autofree char *dir = g_build_filename(fx.cache_dir, "meta", NULL);
    g_autoptr(GDir) d = g_dir_open(dir, 0, NULL);
    struct stat st = {0};
    for (const char *name; d && (name = g_dir_read_name(d));) {
        g_autofree char *path = g_build_filename(dir, name, NULL);
        if (g_str_has_suffix(name, ".log") && stat(path, &st) == 0 && st.st_size > 0)
            return (gsize)st.st_size;
    }
    return 0;
}

static bool log_is_synced(void)
{
    g_mutex_lock(&mu);
    bool yes = synced == log_size();
    g_mutex_unlock(&mu);
    return yes;
}

/* These take the place of the C library's for the whole program. */
int fdatasync(int fd)
{
    struct stat st;
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd), *path = g_file_read_link(link, NULL);
    if (path && g_str_has_suffix(path, ".log") && fstat(fd, &st) == 0) {
        g_mutex_lock(&mu);
        synced = (gsize)st.st_size;
        g_mutex_unlock(&mu);
    }
    return (int)syscall(SYS_fdatasync, fd);
}

static void note_visible(const char *key)
{
    if (!fx.cache_dir || key[0] == '.')
        return;
    bool bad = !log_is_synced();
    g_mutex_lock(&mu);
    n_visible++;
    behind |= bad;
    g_mutex_unlock(&mu);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    note_visible(to);
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int unlinkat(int fd, const char *name, int flags)
{
    if (g_str_has_prefix(name, "object"))
        note_visible(name);
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    n_visible = 0;
    behind = false;
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void publish_all(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void close_changed(struct inode *in)
{
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

/* Else the old record would call the new bytes, or some of them, the object's. */
START_TEST(change_of_a_published_file_is_known_on_the_disk_first)
{
    fs_fixture_write(&fx, "object", "text", 4);
    publish_all();
    INODE_REF in = fs_fixture_inode(&fx, "object");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert(log_is_synced());
    close_changed(in);
}
END_TEST

/* Else the old record would have them published. */
START_TEST(change_of_a_synced_file_is_known_on_the_disk_first)
{
    fs_fixture_close(&fx); /* its publisher */
    fs_fixture_open(&fx);
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "object", .mode = S_IFREG | 0644};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    ck_assert_int_eq(content_sync(in), 0);
    close_changed(in);
    ck_assert(!log_is_synced());
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert(log_is_synced());
    close_changed(in);
}
END_TEST

START_TEST(new_file_waits_for_no_disk)
{
    gsize before = synced;
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "object.tmp", .mode = S_IFREG | 0644};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    close_changed(in);
    ck_assert_int_eq(content_open(in, true, true), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    close_changed(in);
    ck_assert_uint_eq(synced, before);
}
END_TEST

START_TEST(journal_is_on_the_disk_before_objects_appear_or_go)
{
    fs_fixture_write(&fx, "object", "text", 4);
    publish_all();
    ck_assert_uint_eq(n_visible, 1);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "object", META_ROOT_INO, "object2", 0), 0); /* copied, deleted */
    publish_all();
    ck_assert_uint_eq(n_visible, 3);
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "object3", .mode = S_IFLNK | 0777, .target = "object"};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    publish_all();
    ck_assert_uint_eq(n_visible, 4);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "object2"), 0);
    publish_all();
    ck_assert_uint_eq(n_visible, 5);
    ck_assert(!behind);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("power");
    TCase *t = tcase_create("order");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, change_of_a_published_file_is_known_on_the_disk_first);
    tcase_add_test(t, change_of_a_synced_file_is_known_on_the_disk_first);
    tcase_add_test(t, new_file_waits_for_no_disk);
    tcase_add_test(t, journal_is_on_the_disk_before_objects_appear_or_go);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
