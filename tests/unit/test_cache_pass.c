/* Files that the kernel writes: their size and their bytes when it is done. */
#include "cache_fixture.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/syscall.h>

static struct fixture fx;
static int late_fd; /* written to when the follower lets go of a file */

static void setup(void)
{
    late_fd = -1;
    fixture_init(&fx, 64 * MIB);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

static void put_pattern(int fd, uint64_t len, uint64_t off, uint32_t seed)
{
    g_autofree uint8_t *buf = g_malloc(len);
    pattern(buf, len, off, seed);
    ck_assert_int_eq(pwrite(fd, buf, len, (off_t)off), (ssize_t)len);
}

/* Takes the place of the C library's. */
int inotify_rm_watch(int fd, int wd)
{
    int to = late_fd;
    late_fd = -1;
    if (to >= 0)
        put_pattern(to, MIB, 0, 1);
    return (int)syscall(SYS_inotify_rm_watch, fd, wd);
}

/* As the kernel opens it for a program. */
static int open_passed(struct cfile *cf)
{
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", cache_file_fd(cf));
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_WRITE), 0);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    return fd;
}

START_TEST(the_size_is_the_one_at_the_end_of_writing)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    int fd = open_passed(cf);
    late_fd = fd;
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    bool late = late_fd < 0; /* else there is no inotify here */
    late_fd = -1;
    ck_assert_uint_eq(cache_file_size(cf), late ? MIB : 0);
    close(fd);
    cache_file_unref(cf);
}
END_TEST

#define SIZE (2 * MIB + 12345)

/* _i: 1 over what was there, 0 from nothing. */
START_TEST(what_the_kernel_wrote_over_fetched_bytes_is_good_after_another_boot)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    if (_i == 0)
        ck_assert_int_eq(cache_file_truncate(cf, 0), 0);
    ck_assert_int_eq(cache_file_set_source(cf, NULL), 0);
    int fd = open_passed(cf);
    put_pattern(fd, SIZE, 0, 2);
    close(fd);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    ck_assert_int_eq(cache_file_sync(cf), 0);
    src = put_object(&fx, "a", SIZE, 2);
    ck_assert_int_eq(cache_file_set_source(cf, &src), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    cache_file_unref(cf);
    fixture_stop(&fx);
    fixture_start_in_another_boot(&fx);
    int64_t corrupt = metric_get(M_corrupt_chunks);
    cf = open_object(&fx, 50, &src, SIZE);
    g_autofree uint8_t *buf = g_malloc(SIZE);
    ck_assert_int_eq(cache_file_read(cf, buf, SIZE, 0), SIZE);
    assert_pattern(buf, SIZE, 0, 2);
    ck_assert_int_eq(metric_get(M_corrupt_chunks), corrupt);
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_pass");
    TCase *tc = tcase_create("pass");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_size_is_the_one_at_the_end_of_writing);
    tcase_add_loop_test(tc, what_the_kernel_wrote_over_fetched_bytes_is_good_after_another_boot, 0, 2);
    suite_add_tcase(suite, tc);
    SRunner *sr = srunner_create(suite);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
