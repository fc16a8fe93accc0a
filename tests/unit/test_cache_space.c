/* What survives restarts and crashes, what is dropped for space, and what never is. */
#include "cache/cache_file.h"
#include "cache/cache_scan.h"
#include "cache_fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define SIZE        (5 * MIB + 12345)
#define CACHE_BYTES (32 * MIB)

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, CACHE_BYTES);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

static ssize_t try_write(struct cfile *cf, uint64_t off, uint64_t len, uint32_t seed)
{
    g_autofree uint8_t *buf = g_malloc(len);
    pattern(buf, len, off, seed);
    return cache_file_write(cf, buf, len, off);
}

static struct cache_usage usage(void)
{
    struct cache_usage u;
    cache_usage(fx.cache, &u);
    return u;
}

static char *data_file(uint64_t vid)
{
    return g_strdup_printf("%s/data/%02x/%016lx", fx.dir, (unsigned)(vid & 0xff), (unsigned long)vid);
}

START_TEST(second_instance_is_refused)
{
    int fd;
    char *msg = NULL;
    ck_assert_int_eq(cache_dir_prepare(fx.dir, &fd, &msg), -EBUSY);
    ck_assert_ptr_nonnull(msg);
    g_free(msg);
}
END_TEST

START_TEST(folder_open_to_others_is_refused)
{
    int fd;
    char *msg = NULL;
    g_autofree char *dir = g_build_filename(fx.root, "open", NULL);
    ck_assert_int_eq(g_mkdir(dir, 0755), 0);
    ck_assert_int_eq(chmod(dir, 0755), 0);
    ck_assert_int_eq(cache_dir_prepare(dir, &fd, &msg), -EACCES);
    g_free(msg);
}
END_TEST

START_TEST(restart_keeps_presence)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, 2 * MIB, 1);
    cache_file_unref(cf);
    fixture_restart(&fx);
    fault(&fx, "op=get,action=error:-EIO");
    cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, 2 * MIB, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(restart_keeps_dirty_marks_and_ranges)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(try_write(cf, MIB, 1000, 2), 1000);
    cache_file_unref(cf);
    fixture_restart(&fx);
    ck_assert_uint_gt(usage().dirty_bytes, 0);
    ck_assert_int_eq(cache_evict(fx.cache, 50), -EBUSY);
    cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, MIB, 1000, 2);
    assert_reads(cf, MIB + 1000, 100000, 1);
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    ck_assert_uint_eq(usage().dirty_bytes, 0);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_evict(fx.cache, 50), 0);
    ck_assert_int_eq(cache_evict(fx.cache, 50), -ENOENT);
    ck_assert_uint_eq(usage().used_bytes, 0);
}
END_TEST

static void *evict_one(void *vid)
{
    return GINT_TO_POINTER(cache_evict(fx.cache, *(uint64_t *)vid));
}

/* As by the evictor, which a busy machine keeps from letting go. */
START_TEST(file_that_is_only_looked_at_is_dropped)
{
    uint64_t vid = 50;
    pthread_t thread;
    void *r;
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, vid, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    GPtrArray *looks = cache_open_files(fx.cache->tiers->pdata[0]);
    ck_assert_uint_eq(looks->len, 1);
    ck_assert_int_eq(cache_evict(fx.cache, vid), -EBUSY); /* it is used as well */
    cache_file_unref(cf);
    ck_assert_int_eq(pthread_create(&thread, NULL, evict_one, &vid), 0);
    g_usleep(200000); /* more than it waits for users */
    g_ptr_array_unref(looks);
    ck_assert_int_eq(pthread_join(thread, &r), 0);
    ck_assert_int_eq(GPOINTER_TO_INT(r), 0);
}
END_TEST

/* Nobody waits for it any more: read-ahead, or a read that was answered when its bytes were there. */
START_TEST(file_that_only_a_download_has_is_dropped)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, 1000, 1);
    fault(&fx, "op=get,action=delay:200ms");
    cache_file_prefetch(cf, SIZE - MIB, MIB);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_evict(fx.cache, 50), 0);
    ck_assert_int_eq(cache_evict(fx.cache, 50), -ENOENT);
}
END_TEST

/* The evictor looks at open files once a second and may still have this one. */
static int open_lost(uint64_t vid, const struct cache_source *src)
{
    struct cfile *cf;
    int r = cache_file_open(fx.cache, vid, 7, SIZE, src, &cf);
    if (r == 0)
        cache_file_unref(cf);
    return r;
}

/* The same: opened from the disk, where it is not whole. */
static struct cfile *open_from_disk(uint64_t vid, const struct cache_source *src)
{
    struct cfile *cf;
    while (cache_file_complete(cf = open_object(&fx, vid, src, SIZE))) {
        cache_file_unref(cf);
        g_usleep(1000);
    }
    return cf;
}

START_TEST(missing_data_file_is_fetched_again_or_reported)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
    g_autofree char *path = data_file(50);
    ck_assert_int_eq(unlink(path), 0);
    cf = open_from_disk(50, &src);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
    ck_assert_int_eq(truncate(path, 100), 0); /* and one of the wrong size */
    cf = open_from_disk(50, &src);
    assert_reads(cf, 0, SIZE, 1);
    ck_assert_int_eq(try_write(cf, 0, 10, 2), 10);
    cache_file_unref(cf);
    ck_assert_int_eq(unlink(path), 0);
    EVENTUALLY(open_lost(50, &src) == -ENODATA);
}
END_TEST

START_TEST(after_another_boot_bad_chunks_are_fetched_again)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
    g_autofree char *path = data_file(50);
    int fd = open(path, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "garbage", 7, (off_t)(3 * CHUNK + 5)), 7);
    close(fd);
    fixture_stop(&fx);
    fixture_start_in_another_boot(&fx);
    int64_t corrupt = metric_get(M_corrupt_chunks), gets = metric_get(M_requests_get);
    cf = open_object(&fx, 50, &src, SIZE);
    ck_assert(!cache_file_complete(cf));
    assert_reads(cf, 0, SIZE, 1);
    ck_assert(cache_file_complete(cf));
    ck_assert_int_eq(metric_get(M_corrupt_chunks) - corrupt, 1);
    ck_assert_int_eq(metric_get(M_requests_get) - gets, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(published_file_the_disk_cannot_read_is_fetched_again)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(try_write(cf, 0, MIB, 3), MIB);
    struct cache_source src = put_object(&fx, "mine", MIB, 3);
    g_autofree char *path = data_file(cache_file_vid(cf));
    int bad = open(path, O_WRONLY | O_CLOEXEC), good = fcntl(cf->fd, F_DUPFD_CLOEXEC, 0);
    ck_assert_int_eq(dup2(bad, cf->fd), cf->fd); /* reading fails from now on */
    g_autofree uint8_t *buf = g_malloc(MIB);
    ck_assert_int_eq(cache_file_read(cf, buf, MIB, 0), -EIO); /* nobody else has it */
    ck_assert_int_eq(cache_file_set_source(cf, &src), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    assert_reads(cf, 0, MIB, 3);
    ck_assert_int_eq(dup2(good, cf->fd), cf->fd);
    assert_reads(cf, 0, MIB, 3);
    ck_assert(cache_file_complete(cf));
    close(bad);
    close(good);
    cache_file_unref(cf);
}
END_TEST

START_TEST(changed_chunk_does_not_keep_an_unreadable_neighbour_from_being_fetched)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, 8 * CHUNK, 1);
    ck_assert_int_eq(try_write(cf, CHUNK, CHUNK, 2), CHUNK);
    g_autofree char *path = data_file(50);
    ck_assert_int_eq(truncate(path, 5 * CHUNK), 0); /* what the disk has lost */
    g_autofree uint8_t *buf = g_malloc(8 * CHUNK);
    ck_assert_int_eq(cache_file_read(cf, buf, 8 * CHUNK, 0), 8 * CHUNK);
    assert_pattern(buf, CHUNK, 0, 1);
    assert_pattern(buf + CHUNK, CHUNK, CHUNK, 2);
    assert_pattern(buf + 2 * CHUNK, 6 * CHUNK, 2 * CHUNK, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(start_goes_on_when_a_dropped_file_cannot_be_removed)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
    g_autofree char *path = data_file(50);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0); /* no unlink() removes that */
    cache_forget(fx.cache, 50);
    fixture_restart(&fx);
    ck_assert_uint_eq(usage().files, 0);
    ck_assert_int_eq(rmdir(path), 0);
    fixture_restart(&fx);
    struct meta_cached rec;
    EVENTUALLY(meta_cached_get(fx.meta, 50, &rec) == -ENOENT);
}
END_TEST

/* The other process of the next test: opens the object again, writes, is killed. */
static const char *child_root, *child_etag;

START_TEST(write_and_die)
{
    struct cache_source src = {.key = "a", .limit = SIZE};
    (void)g_strlcpy(src.etag.s, child_etag, sizeof src.etag.s);
    fixture_attach(&fx, g_strdup(child_root), CACHE_BYTES);
    fixture_start(&fx);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    for (uint64_t off = 0; off < 2 * MIB; off += 100000)
        ck_assert_int_eq(try_write(cf, off, 50000, 2), 50000);
    (void)kill(getpid(), SIGKILL);
}
END_TEST

static int run_child(char **argv)
{
    Suite *suite = suite_create("child");
    TCase *tc = tcase_create("child");
    child_root = argv[1];
    child_etag = argv[2];
    tcase_add_test(tc, write_and_die);
    suite_add_tcase(suite, tc);
    SRunner *sr = srunner_create(suite);
    srunner_set_fork_status(sr, CK_NOFORK);
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 1; /* it should have died */
}

START_TEST(kill_keeps_written_bytes)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    int status;
    fixture_stop(&fx);
    pid_t pid = fork();
    if (pid == 0) { /* a new program: threads and the database are not carried over a fork */
        (void)execl("/proc/self/exe", "test_cache_space", fx.root, src.etag.s, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    fixture_start(&fx);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    for (uint64_t off = 0; off < 2 * MIB; off += 100000) {
        assert_reads(cf, off, 50000, 2);
        assert_reads(cf, off + 50000, 50000, 1);
    }
    cache_file_unref(cf);
}
END_TEST

START_TEST(space_comes_from_clean_files_only)
{
    struct cfile *dirty, *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &dirty), 0);
    ck_assert_int_eq(try_write(dirty, 0, 4 * MIB, 5), 4 * MIB);
    struct cache_source pinned = put_object(&fx, "pinned", 4 * MIB, 6);
    cf = open_object(&fx, 60, &pinned, 4 * MIB);
    assert_reads(cf, 0, 4 * MIB, 6);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_pin(fx.cache, 60, PIN_DISK), 0);
    EVENTUALLY(usage().pinned_bytes >=
               4 * MIB); /* a GET is accounted for when it has ended, a reader does not wait for that */
    for (uint64_t i = 0; i < 20; i++) {
        g_autofree char *key = g_strdup_printf("k%u", (unsigned)i);
        struct cache_source src = put_object(&fx, key, 4 * MIB, 10 + (uint32_t)i);
        cf = open_object(&fx, 100000 + i, &src, 4 * MIB);
        assert_reads(cf, 0, 4 * MIB, 10 + (uint32_t)i);
        cache_file_unref(cf);
        ck_assert_uint_le(usage().used_bytes, 32 * MIB);
    }
    ck_assert_int_gt(metric_get(M_evicted_files), 10);
    assert_reads(dirty, 0, 4 * MIB, 5);
    fault(&fx, "op=get,action=error:-EIO");
    cf = open_object(&fx, 60, &pinned, 4 * MIB);
    assert_reads(cf, 0, 4 * MIB, 6);
    cache_file_unref(cf);
    cache_file_unref(dirty);
}
END_TEST

START_TEST(nothing_is_dropped_before_the_hold_is_released)
{
    for (uint64_t vid = 50; vid < 53; vid++) {
        struct cache_source src = put_object(&fx, "a", MIB, 1);
        struct cfile *cf = open_object(&fx, vid, &src, MIB);
        ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
        cache_file_unref(cf);
    }
    fx.cfg.size_bytes = 2 * MIB;
    fx.cfg.hold = true;
    fixture_restart(&fx);
    int64_t before = metric_get(M_evicted_files);
    g_usleep(200000);
    ck_assert_int_eq(metric_get(M_evicted_files), before);
    cache_release_hold(fx.cache);
    for (unsigned i = 0; i < 1000 && metric_get(M_evicted_files) == before; i++)
        g_usleep(10000);
    ck_assert_int_gt(metric_get(M_evicted_files), before);
}
END_TEST

START_TEST(writers_get_enospc_after_the_timeout)
{
    struct cfile *cf;
    int64_t stalls = metric_get(M_write_stalls);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(try_write(cf, 0, 30 * MIB, 5), 30 * MIB);
    uint64_t start = clock_mono_ns();
    ck_assert_int_eq(try_write(cf, 30 * MIB, 4 * MIB, 5), -ENOSPC);
    ck_assert_uint_ge(clock_mono_ns() - start, fx.cfg.op_timeout_ns);
    ck_assert_int_eq(metric_get(M_write_stalls) - stalls, 1);
    ck_assert_int_eq(try_write(cf, MIB, MIB, 5), MIB); /* over what is there already */
    assert_reads(cf, 0, 30 * MIB, 5);
    cache_file_unref(cf);
}
END_TEST

START_TEST(stalled_writer_goes_on_when_dirty_data_became_clean)
{
    struct cfile *published, *cf;
    pthread_t t;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &published), 0);
    ck_assert_int_eq(try_write(published, 0, 20 * MIB, 5), 20 * MIB);
    struct cache_source src = put_object(&fx, "p", 20 * MIB, 5);
    ck_assert_int_eq(cache_file_set_source(published, &src), 0);
    ck_assert_int_eq(cache_file_new(fx.cache, 10, &cf), 0);
    ck_assert_int_eq(pthread_create(&t, NULL, clean_later, published), 0);
    uint64_t start = clock_mono_ns();
    ck_assert_int_eq(try_write(cf, 0, 20 * MIB, 6), 20 * MIB);
    ck_assert_uint_lt(clock_mono_ns() - start, fx.cfg.op_timeout_ns);
    pthread_join(t, NULL);
    assert_reads(cf, 0, 20 * MIB, 6);
    cache_file_unref(cf);
}
END_TEST

START_TEST(write_that_needs_a_fetch_waits_for_room_as_any_other)
{
    struct cfile *published, *cf;
    pthread_t t;
    uint64_t size = CACHE_BYTES - 96 * KIB; /* room for the write, none for the fetch */
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &published), 0);
    ck_assert_int_eq(try_write(published, 0, size, 5), size);
    struct cache_source src = put_object(&fx, "p", size, 5), other = put_object(&fx, "a", SIZE, 1);
    ck_assert_int_eq(cache_file_set_source(published, &src), 0);
    cf = open_object(&fx, 50, &other, SIZE);
    ck_assert_int_eq(pthread_create(&t, NULL, clean_later, published), 0);
    ck_assert_int_eq(try_write(cf, 100, 10, 6), 10);
    pthread_join(t, NULL);
    assert_reads(cf, 110, 1000, 1);
    assert_reads(cf, 100, 10, 6);
    cache_file_unref(cf);
}
END_TEST

static void *interrupt_later(void *arg)
{
    g_usleep(200000);
    cache_interrupt(arg);
    return NULL;
}

/* atomic: the sweep of a disk waits before each further file */
static int sweep_looked, sweep_may_look = INT_MAX;

/* Takes the place of the C library's. */
int lstat(const char *path, struct stat *st)
{
    if (strstr(path, "/data/")) {
        int n = g_atomic_int_add(&sweep_looked, 1);
        while (n >= g_atomic_int_get(&sweep_may_look))
            g_usleep(1000);
    }
    return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

static void *write_much(void *arg)
{
    ck_assert_int_eq(try_write(arg, 0, 8 * MIB, 6), 8 * MIB);
    return NULL;
}

static uint64_t waiting_bytes(struct cache_tier *t)
{
    mutex_lock(&fx.cache->space.mu);
    uint64_t n = t->waiting_bytes;
    mutex_unlock(&fx.cache->space.mu);
    return n;
}

START_TEST(room_is_made_while_a_disk_is_looked_through)
{
    struct cache_tier *t = tier_by_number(fx.cache, TIER_NUMBER_FIRST);
    struct cfile *cf;
    pthread_t thread;
    for (uint64_t vid = 50; vid < 57; vid++) {
        struct cache_source src = put_object(&fx, "a", 4 * MIB, 1);
        cf = open_object(&fx, vid, &src, 4 * MIB);
        ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
        cache_file_unref(cf);
    }
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    g_atomic_int_set(&sweep_looked, 0);
    g_atomic_int_set(&sweep_may_look, 0);
    mutex_lock(&fx.cache->space.mu);
    t->sweep = true;
    cond_signal(&t->kick);
    mutex_unlock(&fx.cache->space.mu);
    EVENTUALLY(g_atomic_int_get(&sweep_looked) == 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, write_much, cf), 0);
    EVENTUALLY(waiting_bytes(t) > 0);
    g_atomic_int_set(&sweep_may_look, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_le(g_atomic_int_get(&sweep_looked), 2);
    g_atomic_int_set(&sweep_may_look, INT_MAX);
    cache_file_unref(cf);
}
END_TEST

START_TEST(interrupt_ends_the_wait_of_a_writer)
{
    struct cfile *cf;
    pthread_t t;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(try_write(cf, 0, 30 * MIB, 5), 30 * MIB);
    ck_assert_int_eq(pthread_create(&t, NULL, interrupt_later, fx.cache), 0);
    uint64_t began = clock_mono_ns();
    ck_assert_int_eq(try_write(cf, 30 * MIB, 4 * MIB, 5), -ECANCELED);
    ck_assert_uint_lt(clock_mono_ns() - began, fx.cfg.op_timeout_ns / 2);
    pthread_join(t, NULL);
    cache_file_unref(cf);
}
END_TEST

START_TEST(reads_work_while_dirty_data_fills_the_cache)
{
    struct cfile *cf, *other;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(try_write(cf, 0, 32 * MIB - 64 * KIB, 5), 32 * MIB - 64 * KIB);
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    other = open_object(&fx, 50, &src, SIZE);
    assert_reads(other, 0, SIZE, 1);
    ck_assert_uint_le(usage().used_bytes, 32 * MIB);
    cache_file_unref(other);
    cache_file_unref(cf);
}
END_TEST

START_TEST(file_larger_than_half_the_cache_keeps_a_window)
{
    uint64_t size = 48 * MIB;
    struct cache_source small = put_object(&fx, "small", 8 * MIB, 2), src = put_object(&fx, "big", size, 1);
    struct cfile *cf = open_object(&fx, 49, &small, 8 * MIB);
    assert_reads(cf, 0, 8 * MIB, 2);
    cache_file_unref(cf);
    cf = open_object(&fx, 50, &src, size);
    for (uint64_t off = 0; off < size; off += 256 * KIB)
        assert_reads(cf, off, 256 * KIB, 1);
    ck_assert_int_eq(cache_file_fill(cf, false, true, NULL, NULL), -EFBIG);
    ck_assert_uint_le(usage().used_bytes, 20 * MIB); /* 8 MiB window, the small file, what is in flight */
    assert_reads(cf, 0, 100000, 1);
    cache_file_unref(cf);
    fault(&fx, "op=get,action=error:-EIO");
    cf = open_object(&fx, 49, &small, 8 * MIB); /* was not pushed out */
    assert_reads(cf, 0, 8 * MIB, 2);
    cache_file_unref(cf);
}
END_TEST

/* On a file system of its own, whose free space nobody else changes. */
START_TEST(scarce_free_space_takes_no_more_from_open_files_than_needed)
{
    struct cache_source src = put_object(&fx, "a", 40 * MIB, 1);
    fixture_stop(&fx);
    ck_assert_int_eq(mount("none", fx.dir, "tmpfs", 0, "size=256m,mode=0700"), 0);
    fx.cfg.size_bytes = 1024 * MIB;
    fixture_start(&fx);
    struct cfile *cf = open_object(&fx, 50, &src, 40 * MIB), *other;
    assert_reads(cf, 0, 40 * MIB, 1);
    struct cache_tier *t = cfile_tier(cf);
    mutex_lock(&fx.cache->space.mu);
    t->free_limit_bytes = t->fs_free_bytes - MIB;
    mutex_unlock(&fx.cache->space.mu);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &other), 0);
    ck_assert_int_eq(try_write(other, 0, 8 * MIB, 2), 8 * MIB);
    uint64_t left = cache_file_present_bytes(cf);
    ck_assert_uint_le(left, 34 * MIB);
    ck_assert_uint_ge(left, 16 * MIB);
    cache_file_unref(cf);
    cache_file_unref(other);
    fixture_stop(&fx);
    ck_assert_int_eq(umount(fx.dir), 0);
    fixture_start(&fx);
}
END_TEST

/* There is room for millions of bytes, but not for a file more. */
START_TEST(a_disk_that_can_make_few_files_is_kept_from_running_out_of_them)
{
    struct cache_source src = put_object(&fx, "a", 1, 1);
    struct statvfs v;
    fixture_stop(&fx);
    ck_assert_int_eq(mount("none", fx.dir, "tmpfs", 0, "size=256m,nr_inodes=800,mode=0700"), 0);
    fixture_start(&fx);
    for (unsigned i = 0; i < 1000; i++) {
        struct cfile *cf = open_object(&fx, 1000 + i, &src, 1);
        assert_reads(cf, 0, 1, 1);
        cache_file_unref(cf);
        if (i % 20 == 0)
            EVENTUALLY(statvfs(fx.dir, &v) == 0 && v.f_favail >= 80);
    }
    ck_assert_uint_ge(usage().files, 200); /* and no more of them go than must */
    fixture_stop(&fx);
    ck_assert_int_eq(umount(fx.dir), 0);
    fixture_start(&fx);
}
END_TEST

START_TEST(punched_chunks_are_fetched_again_after_restart)
{
    uint64_t size = 48 * MIB;
    struct cache_source src = put_object(&fx, "big", size, 1);
    struct cfile *cf = open_object(&fx, 50, &src, size);
    for (uint64_t off = 0; off < size; off += MIB)
        assert_reads(cf, off, MIB, 1);
    ck_assert_int_eq(try_write(cf, 5 * MIB, 3000, 2), 3000);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 50, &src, size);
    assert_reads(cf, 0, 5 * MIB, 1);
    assert_reads(cf, 5 * MIB, 3000, 2);
    assert_reads(cf, 30 * MIB, 18 * MIB, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(cyclic_epochs_over_twice_the_cache_hit_forty_percent)
{
    struct cache_source src[64];
    char keys[64][8];
    int64_t hits = 0, total = 0;
    for (unsigned i = 0; i < 64; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "f%u", i);
        src[i] = put_object(&fx, keys[i], MIB, i);
    }
    for (unsigned epoch = 0; epoch < 4; epoch++) {
        for (unsigned i = 0; i < 64; i++) {
            int64_t before = metric_get(M_requests_get);
            struct cfile *cf = open_object(&fx, 200000 + i, &src[i], MIB);
            cache_file_touch(cf);
            assert_reads(cf, 0, MIB, i);
            cache_file_unref(cf);
            hits += epoch > 0 && metric_get(M_requests_get) == before;
            total += epoch > 0;
        }
    }
    ck_assert_int_ge(hits * 100, total * 40);
}
END_TEST

static int on_intent(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text)
{
    ck_assert_str_eq(text, "key=a");
    ck_assert_uint_eq(size, 10);
    ck_assert_ptr_nonnull(strstr(path, "data/"));
    *(uint64_t *)ctx = vid;
    return 0;
}

START_TEST(intents_are_found_without_the_database)
{
    struct cfile *cf;
    uint64_t found = 0;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(try_write(cf, 0, 10, 1), 10);
    ck_assert_int_eq(cache_file_set_intent(cf, "key=a"), 0);
    ck_assert_int_eq(cache_scan_intents(fx.dir, on_intent, &found), 0);
    ck_assert_uint_eq(found, cache_file_vid(cf));
    ck_assert_int_eq(cache_file_set_intent(cf, NULL), 0);
    found = 0;
    ck_assert_int_eq(cache_scan_intents(fx.dir, on_intent, &found), 0);
    ck_assert_uint_eq(found, 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(passthrough_growth_is_seen_and_never_punched)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_WRITE), 0);
    g_autofree uint8_t *buf = g_malloc(MIB);
    pattern(buf, MIB, 0, 4);
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", cache_file_fd(cf));
    int fd = open(path, O_RDWR | O_CLOEXEC); /* as the kernel does for a program */
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, buf, MIB, 0), MIB);
    ck_assert_uint_eq(cache_file_size(cf), MIB);
    assert_reads(cf, 0, MIB, 4);
    EVENTUALLY(usage().used_bytes >= MIB);
    ck_assert_int_eq(try_write(cf, MIB, 10, 5),
                     10); /* our own writing leaves nothing behind that looks like a writer */
    ck_assert(cache_file_has_writers(cf));
    void *map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    close(fd);
    ck_assert(cache_file_has_writers(cf)); /* the mapping outlived the close */
    munmap(map, MIB);
    ck_assert(!cache_file_has_writers(cf));
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    ck_assert_uint_eq(cache_file_size(cf), MIB + 10);
    cache_file_unref(cf);
}
END_TEST

struct churn {
    unsigned seed;
    struct cache_source *src;
};

static void *churn_main(void *arg)
{
    struct churn *ch = arg;
    for (unsigned i = 0; i < 60; i++) {
        unsigned k = (unsigned)rand_r(&ch->seed) % 24;
        struct cfile *cf = open_object(&fx, 300000 + k, &ch->src[k], 3 * MIB);
        uint64_t off = (uint64_t)rand_r(&ch->seed) % (2 * MIB);
        assert_reads(cf, off, MIB, k);
        cache_file_unref(cf);
        if (rand_r(&ch->seed) % 8 == 0) {
            int r = cache_evict(fx.cache, 300000 + k);
            ck_assert(r == 0 || r == -EBUSY || r == -ENOENT);
        }
    }
    return NULL;
}

START_TEST(readers_survive_constant_eviction)
{
    struct cache_source src[24];
    char keys[24][8];
    pthread_t threads[6];
    struct churn ch[6];
    for (unsigned i = 0; i < 24; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "f%u", i);
        src[i] = put_object(&fx, keys[i], 3 * MIB, i);
    }
    for (unsigned i = 0; i < 6; i++) {
        ch[i] = (struct churn){.seed = i + 1, .src = src};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, churn_main, &ch[i]), 0);
    }
    for (unsigned i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_le(usage().used_bytes, 32 * MIB);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3)
        return run_child(argv);
    Suite *suite = suite_create("cache_space");
    TCase *tc = tcase_create("space");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, second_instance_is_refused);
    tcase_add_test(tc, folder_open_to_others_is_refused);
    tcase_add_test(tc, restart_keeps_presence);
    tcase_add_test(tc, restart_keeps_dirty_marks_and_ranges);
    tcase_add_test(tc, file_that_is_only_looked_at_is_dropped);
    tcase_add_test(tc, file_that_only_a_download_has_is_dropped);
    tcase_add_test(tc, missing_data_file_is_fetched_again_or_reported);
    tcase_add_test(tc, after_another_boot_bad_chunks_are_fetched_again);
    tcase_add_test(tc, published_file_the_disk_cannot_read_is_fetched_again);
    tcase_add_test(tc, changed_chunk_does_not_keep_an_unreadable_neighbour_from_being_fetched);
    tcase_add_test(tc, start_goes_on_when_a_dropped_file_cannot_be_removed);
    tcase_add_test(tc, kill_keeps_written_bytes);
    tcase_add_test(tc, space_comes_from_clean_files_only);
    tcase_add_test(tc, nothing_is_dropped_before_the_hold_is_released);
    tcase_add_test(tc, writers_get_enospc_after_the_timeout);
    tcase_add_test(tc, stalled_writer_goes_on_when_dirty_data_became_clean);
    tcase_add_test(tc, write_that_needs_a_fetch_waits_for_room_as_any_other);
    tcase_add_test(tc, room_is_made_while_a_disk_is_looked_through);
    tcase_add_test(tc, interrupt_ends_the_wait_of_a_writer);
    tcase_add_test(tc, reads_work_while_dirty_data_fills_the_cache);
    tcase_add_test(tc, file_larger_than_half_the_cache_keeps_a_window);
    tcase_add_test(tc, punched_chunks_are_fetched_again_after_restart);
    if (geteuid() == 0) { /* a file system is mounted */
        tcase_add_test(tc, a_disk_that_can_make_few_files_is_kept_from_running_out_of_them);
        tcase_add_test(tc, scarce_free_space_takes_no_more_from_open_files_than_needed);
    }
    tcase_add_test(tc, cyclic_epochs_over_twice_the_cache_hit_forty_percent);
    tcase_add_test(tc, intents_are_found_without_the_database);
    tcase_add_test(tc, passthrough_growth_is_seen_and_never_punched);
    tcase_add_test(tc, readers_survive_constant_eviction);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
