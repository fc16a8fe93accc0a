/* Unpublished files whose bytes change, or go, on the cache disk between their close and their publishing. */
#include "base/metric.h"
#include "cache/cache_sums.h"
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/publish_sums.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB   (1u << 20)
#define LARGE (12 * MIB + 12345) /* three parts */

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.part_size = 5 * MIB;
    fs_fixture_open(&fx);
    (void)log_open("/dev/null", LOG_LEVEL_ERR);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    log_close();
}

static char *bytes(size_t len)
{
    char *data = g_malloc(len + 1);
    for (size_t i = 0; i < len; i++)
        data[i] = (char)('a' + (i * 2654435761u >> 7) % 26);
    data[len] = '\0';
    return data;
}

static void make_sums(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(sums_make(fx.fs->pub, in->ino), 0);
    g_autoptr(GBytes) sums = cache_sums_load(fx.fs->meta, in->rec.vid, in->rec.gen);
    ck_assert_ptr_nonnull(sums);
}

static uint32_t state_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    mutex_lock(&in->mu);
    uint32_t state = in->rec.content;
    mutex_unlock(&in->mu);
    return state;
}

static void wait_for(const char *path, uint32_t state)
{
    for (unsigned i = 0; i < 4000 && state_of(path) != state; i++)
        g_usleep(5000);
    ck_assert_uint_eq(state_of(path), state);
}

static char *data_path(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return g_strdup_printf("%s/data/%02x/%016" PRIx64, fx.cache_dir, (unsigned)(in->rec.vid & 0xff), in->rec.vid);
}

static void flip(const char *file, off_t at)
{
    char c;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &c, 1, at), 1);
    c = (char)(c ^ 4);
    ck_assert_int_eq(pwrite(fd, &c, 1, at), 1);
    ck_assert_int_eq(close(fd), 0);
}

static void restart(void)
{
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void assert_object(const char *key, const char *want, size_t len)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    gsize n = 0;
    ck_assert(g_file_get_contents(path, &data, &n, NULL));
    ck_assert_uint_eq(n, len);
    ck_assert(memcmp(data, want, len) == 0);
}

START_TEST(byte_changed_on_the_disk_after_the_close_is_not_published)
{
    size_t len = _i == 0 ? 1000 : LARGE;
    off_t at = _i == 0 ? 7 : _i == 1 ? 6 * MIB : LARGE - 1;
    g_autofree char *data = bytes(len);
    fs_fixture_write(&fx, "x", data, len);
    make_sums("x");
    g_autofree char *file = data_path("x");
    flip(file, at);
    int64_t before = metric_get(M_quarantined_files);
    restart();
    wait_for("x", CONTENT_QUARANTINED);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert_int_eq(metric_get(M_quarantined_files), before + 1); /* counted once it is recorded */
    restart();                                                     /* stays so, and the bytes stay */
    ck_assert_int_eq(publish_retry(fx.fs->pub, ""), 1);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert(!fs_fixture_object_exists(&fx, "x"));
    ck_assert_int_eq(access(file, F_OK), 0);
}
END_TEST

START_TEST(unchanged_file_is_published_and_needs_its_sums_no_more)
{
    g_autofree char *data = bytes(LARGE);
    fs_fixture_write(&fx, "x", data, LARGE);
    make_sums("x");
    restart();
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    assert_object("x", data, LARGE);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    g_autoptr(GBytes) sums = cache_sums_load(fx.fs->meta, in->rec.vid, in->rec.gen);
    ck_assert_ptr_null(sums);
}
END_TEST

START_TEST(file_written_again_is_not_compared_with_what_it_was)
{
    g_autofree char *data = bytes(LARGE);
    fs_fixture_write(&fx, "x", data, LARGE);
    make_sums("x");
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "ZZZ", 3, 5 * MIB);
    memcpy(data + 5 * MIB, "ZZZ", 3);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    assert_object("x", data, LARGE);
}
END_TEST

/* Of a file that is partly in the store only what was changed here has sums. */
START_TEST(changed_chunk_of_a_partly_cached_file_is_compared)
{
    g_autofree char *data = bytes(LARGE);
    fs_fixture_object(&fx, "x", data, LARGE);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "ZZZ", 3, 5 * MIB);
    memcpy(data + 5 * MIB, "ZZZ", 3);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    make_sums("x");
    ck_assert_uint_lt(fs_fixture_cached(&fx, "x"), LARGE);
    g_autofree char *file = data_path("x");
    inode_put(g_steal_pointer(&in));
    if (_i)
        flip(file, 5 * MIB + 1);
    restart();
    wait_for("x", _i ? CONTENT_QUARANTINED : CONTENT_CLEAN);
    g_autofree char *old = bytes(LARGE);
    if (_i)
        memcpy(data + 5 * MIB, old + 5 * MIB, 3);
    assert_object("x", data, LARGE);
}
END_TEST

START_TEST(file_shortened_or_removed_on_the_disk_is_quarantined)
{
    fs_fixture_write(&fx, "d/beside", "hello", 5); /* or the whole disk would seem to be lost */
    fs_fixture_write(&fx, "x", "hello", 5);
    g_autofree char *file = data_path("x");
    fs_fixture_close(&fx);
    ck_assert_int_eq(_i ? unlink(file) : truncate(file, 4), 0);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    wait_for("x", CONTENT_QUARANTINED);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert(!fs_fixture_object_exists(&fx, "x"));
}
END_TEST

START_TEST(sums_are_taken_of_what_is_not_published_soon)
{
    int64_t before = metric_get(M_sealed_sums);
    fx.fs->pub->sums_delay_ns = 100 * NS_PER_MS;
    fs_fixture_write(&fx, "x.tmp", "hello", 5); /* held */
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 4000 && metric_get(M_sealed_sums) == before; i++)
        g_usleep(5000);
    ck_assert_int_eq(metric_get(M_sealed_sums), before + 1);
    INODE_REF in = fs_fixture_inode(&fx, "x.tmp");
    g_autoptr(GBytes) sums = cache_sums_load(fx.fs->meta, in->rec.vid, in->rec.gen);
    ck_assert_ptr_nonnull(sums);
}
END_TEST

START_TEST(file_of_an_earlier_run_gets_its_sums_too)
{
    fs_fixture_write(&fx, "x.tmp", "hello", 5);
    fs_fixture_close(&fx);
    int64_t before = metric_get(M_sealed_sums);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(g_queue_get_length(&fx.fs->pub->sums_due), 1);
    ((uint64_t *)g_queue_peek_head(&fx.fs->pub->sums_due))[1] = 0; /* due */
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 4000 && metric_get(M_sealed_sums) == before; i++)
        g_usleep(5000);
    ck_assert_int_eq(metric_get(M_sealed_sums), before + 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sums");
    TCase *t = tcase_create("sums");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, byte_changed_on_the_disk_after_the_close_is_not_published, 0, 3);
    tcase_add_test(t, unchanged_file_is_published_and_needs_its_sums_no_more);
    tcase_add_test(t, file_written_again_is_not_compared_with_what_it_was);
    tcase_add_loop_test(t, changed_chunk_of_a_partly_cached_file_is_compared, 0, 2);
    tcase_add_loop_test(t, file_shortened_or_removed_on_the_disk_is_quarantined, 0, 2);
    tcase_add_test(t, sums_are_taken_of_what_is_not_published_soon);
    tcase_add_test(t, file_of_an_earlier_run_gets_its_sums_too);
    suite_add_tcase(s, t);
    return run_suite(s);
}
