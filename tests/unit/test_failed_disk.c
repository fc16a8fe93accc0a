/* Unpublished files of a cache disk that failed, and is there again at the next start: what had not been written to it is gone, though nothing in the files says so. */
#include "base/cleanup.h"
#include "fs/content.h"
#include "fs/durable.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 4u
#define SIZE  200000u

static struct fs_fixture fx;
static char *second; /* folder of the disk that fails */

static void setup(void)
{
    fs_fixture_init(&fx);
    second = g_build_filename(fx.dir, "second", NULL);
    g_free(fx.cfg.cache_dir);
    fx.cfg.cache_dir = g_strconcat(fx.cache_dir, ":", second, NULL);
    fx.cfg.disk_faults = true;
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    g_clear_pointer(&second, g_free);
}

static void disk_fault(const char *what)
{
    g_autofree char *path = g_build_filename(second, "fault", NULL);
    if (what)
        ck_assert(g_file_set_contents(path, what, -1, NULL));
    else
        ck_assert_int_eq(unlink(path), 0);
}

static void on_tier(void *ctx, const struct cache_tier_info *t)
{
    *(bool *)ctx |= strcmp(t->path, second) == 0 && strcmp(t->state, "bypassed") == 0;
}

static bool is_bypassed(void)
{
    bool is = false;
    cache_tiers_each(fx.fs->cache, on_tier, &is);
    return is;
}

/* Its path there; NULL: it is on the other disk. */
static char *file_on_second(const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, name);
    g_autofree char *path =
        g_strdup_printf("%s/data/%02x/%016" PRIx64, second, (unsigned)(in->rec.vid & 0xff), in->rec.vid);
    return g_file_test(path, G_FILE_TEST_EXISTS) ? g_steal_pointer(&path) : NULL;
}

/* Each in a directory of its own: what is held back holds back what was closed after it beside it. */
static void write_files(char kind, bool synced)
{
    g_autofree char *data = g_strnfill(SIZE, kind);
    for (unsigned i = 0; i < FILES; i++) {
        g_autofree char *name = g_strdup_printf("%c%u/f", kind, i);
        fs_fixture_write(&fx, name, data, SIZE);
        INODE_REF in = fs_fixture_inode(&fx, name);
        if (synced)
            ck_assert_int_eq(durable_sync(in), 0);
    }
}

static bool is_published(const char *name)
{
    g_autofree char *path = g_build_filename(fx.lake, name, NULL), *data = NULL;
    g_autofree char *want = g_strnfill(SIZE, name[0]);
    gsize n = 0;
    bool there = g_file_get_contents(path, &data, &n, NULL);
    bool same = there && n == SIZE && memcmp(data, want, SIZE) == 0;
    ck_assert(!there || same);
    return there;
}

static void lose(const char *path)
{
    CLEANUP_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 65536, 65536), 0);
}

/* lost: name -> path. */
static void fail_and_start_again(GHashTable *lost)
{
    disk_fault("eio");
    EVENTUALLY(is_bypassed());
    fs_fixture_close(&fx);
    GHashTableIter it;
    void *path;
    g_hash_table_iter_init(&it, lost);
    while (g_hash_table_iter_next(&it, NULL, &path))
        lose(path);
    disk_fault(NULL);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

START_TEST(only_what_may_be_lost_is_kept_back)
{
    g_autoptr(GHashTable) lost = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    write_files('s', true);
    write_files('u', false);
    for (unsigned i = 0; i < FILES; i++) {
        g_autofree char *name = g_strdup_printf("u%u/f", i), *path = file_on_second(name);
        if (path)
            g_hash_table_insert(lost, g_steal_pointer(&name), g_steal_pointer(&path));
    }
    unsigned n = g_hash_table_size(lost);
    ck_assert(n > 0 && n < FILES);
    fail_and_start_again(lost);
    for (unsigned i = 0; i < FILES; i++) {
        g_autofree char *synced = g_strdup_printf("s%u/f", i), *name = g_strdup_printf("u%u/f", i);
        EVENTUALLY(is_published(synced));
        EVENTUALLY(g_hash_table_contains(lost, name) || is_published(name));
    }
    ck_assert_int_lt(publish_wait(fx.fs->pub, "", clock_mono_ns() + NS_PER_S, NULL, NULL), 0);
    for (unsigned i = 0; i < FILES; i++) {
        g_autofree char *name = g_strdup_printf("u%u/f", i);
        ck_assert_int_eq(is_published(name), !g_hash_table_contains(lost, name));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("failed_disk");
    TCase *t = tcase_create("start");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, only_what_may_be_lost_is_kept_back);
    suite_add_tcase(s, t);
    return run_suite(s);
}
