/* Files that the kernel writes: their size and their bytes when it is done. */
#include "cache/cache_file.h"
#include "cache_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/syscall.h>

static struct fixture fx;
static int late_fd;        /* written to when the follower lets go of a file */
static int n_waits, rests; /* atomic: of the follower; does it wait for a write, however long? */

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

/* So does this one, whom of all threads here only the follower calls with two descriptors. */
int poll(struct pollfd *fds, nfds_t n, int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    bool follower = n == 2;
    if (follower) {
        __atomic_add_fetch(&n_waits, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&rests, ms < 0, __ATOMIC_RELAXED);
    }
    int r = (int)syscall(SYS_ppoll, fds, n, ms < 0 ? NULL : &t, NULL, 0);
    if (follower)
        __atomic_store_n(&rests, 0, __ATOMIC_RELAXED);
    return r;
}

static bool follower_rests(void)
{
    return __atomic_load_n(&rests, __ATOMIC_RELAXED) != 0;
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

/* As on a full disk. A file that a worker before gave is watched all the same. */
START_TEST(leases_that_could_not_be_tried_are_tried_again)
{
    struct cfile *cf;
    fixture_stop(&fx);
    g_autofree char *in_the_way = g_build_filename(fx.dir, "lease", NULL);
    ck_assert_int_eq(g_mkdir(in_the_way, 0700), 0);
    fixture_start(&fx);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert(!cache_file_shows_writers(cf));
    int fd = open_passed(cf);
    ck_assert(cache_file_has_writers(cf));
    close(fd);
    ck_assert(!cache_file_has_writers(cf));
    ck_assert_int_eq(g_rmdir(in_the_way), 0);
    ck_assert(cache_file_shows_writers(cf));
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
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

static uint64_t followed_to(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    uint64_t size = cf->followed;
    mutex_unlock(&cf->mu);
    return size;
}

START_TEST(growth_is_followed_by_who_rests_between_writes)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    int fd = open_passed(cf);
    for (uint64_t size = MIB; size <= 3 * MIB; size += MIB) {
        put_pattern(fd, MIB, size - MIB, 1);
        EVENTUALLY(followed_to(cf) == size);
        EVENTUALLY(follower_rests());
        int n = __atomic_load_n(&n_waits, __ATOMIC_RELAXED);
        g_usleep(100000);
        ck_assert_int_eq(__atomic_load_n(&n_waits, __ATOMIC_RELAXED), n); /* nobody looks at what nobody writes */
    }
    close(fd);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    cache_file_unref(cf);
}
END_TEST

/* _i: 0 a seek, 1 a preallocation. */
START_TEST(a_size_that_runs_ahead_of_the_bytes_is_not_followed)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    int fd = open_passed(cf);
    if (_i == 1)
        ck_assert_int_eq(cache_file_fallocate(cf, 0, 0, 8 * MIB), 0);
    put_pattern(fd, MIB, 7 * MIB, 1);
    EVENTUALLY(__atomic_load_n(&n_waits, __ATOMIC_RELAXED) > 1 && follower_rests());
    ck_assert_uint_eq(followed_to(cf), 0); /* what lies behind was not written yet: to send it would be in vain */
    close(fd);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    ck_assert_uint_eq(cache_file_size(cf), 8 * MIB);
    cache_file_unref(cf);
}
END_TEST

struct appender {
    int fd, stop;
};

static void *append(void *arg)
{
    struct appender *a = arg;
    g_autofree uint8_t *buf = g_malloc0(MIB);
    for (uint64_t off = 0; !__atomic_load_n(&a->stop, __ATOMIC_RELAXED) && off < 512 * MIB; off += MIB) {
        if (pwrite(a->fd, buf, MIB, (off_t)off) != (ssize_t)MIB)
            break;
        g_usleep(2000);
    }
    return NULL;
}

START_TEST(a_fast_writer_leaves_no_room_for_another_past_us)
{
    struct cfile *cf, *other;
    struct appender a = {0};
    pthread_t t;
    fixture_stop(&fx);
    fx.cfg.size_bytes = 1024 * MIB; /* a minute at 20 MB a second is more, all that is written here is not */
    fixture_start(&fx);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(cache_file_new(fx.cache, 10, &other), 0);
    ck_assert(cache_file_has_room(other, MIB));
    a.fd = open_passed(cf);
    ck_assert_int_eq(pthread_create(&t, NULL, append, &a), 0);
    EVENTUALLY(!cache_file_has_room(other, MIB));
    __atomic_store_n(&a.stop, 1, __ATOMIC_RELAXED);
    (void)pthread_join(t, NULL);
    EVENTUALLY(cache_file_has_room(other, MIB)); /* it has stopped */
    close(a.fd);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    cache_file_unref(cf);
    cache_file_unref(other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_pass");
    TCase *tc = tcase_create("pass");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_size_is_the_one_at_the_end_of_writing);
    tcase_add_test(tc, leases_that_could_not_be_tried_are_tried_again);
    tcase_add_test(tc, growth_is_followed_by_who_rests_between_writes);
    tcase_add_loop_test(tc, a_size_that_runs_ahead_of_the_bytes_is_not_followed, 0, 2);
    tcase_add_test(tc, a_fast_writer_leaves_no_room_for_another_past_us);
    tcase_add_loop_test(tc, what_the_kernel_wrote_over_fetched_bytes_is_good_after_another_boot, 0, 2);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
