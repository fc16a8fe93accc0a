/* What a power loss leaves: the data files as they are, the database as it was when it was last synced. */
#include "cache/cache_internal.h"
#include "cache_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define SIZE (6 * MIB + 12345)

static struct fixture fx;

/* ---- how much of the database's log is on the disk ---- */

static GMutex synced_mu;
static GHashTable *synced; /* name -> bytes */
static int failing_fd;     /* atomic; cannot be synced, 0 none */

static char *path_of(int fd)
{
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd);
    return g_file_read_link(link, NULL);
}

/* Takes the place of the C library's for the whole program, the database included. */
int fdatasync(int fd)
{
    struct stat st;
    g_autofree char *path = path_of(fd);
    if (fd == g_atomic_int_get(&failing_fd)) {
        errno = EIO;
        return -1;
    }
    if (path && g_str_has_suffix(path, ".log") && fstat(fd, &st) == 0) {
        g_mutex_lock(&synced_mu);
        g_hash_table_insert(synced, g_path_get_basename(path), GSIZE_TO_POINTER((gsize)st.st_size));
        g_mutex_unlock(&synced_mu);
    }
    return (int)syscall(SYS_fdatasync, fd);
}

static int written_out, write_out_error, hurry_after; /* pieces; errno of each, 0 none; so many, 0: for all of them */
static int hurry;

int sync_file_range(int fd, off_t off, off_t len, unsigned flags)
{
    if (!(flags & SYNC_FILE_RANGE_WAIT_AFTER)) /* the database's */
        return (int)syscall(SYS_sync_file_range, fd, off, len, flags);
    ck_assert_int_eq(off, written_out * len);
    if (++written_out == hurry_after)
        __atomic_store_n(&hurry, 1, __ATOMIC_RELAXED);
    errno = write_out_error;
    return write_out_error ? -1 : (int)syscall(SYS_sync_file_range, fd, off, len, flags);
}

static void setup(void)
{
    written_out = write_out_error = hurry_after = hurry = 0;
    synced = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    fixture_init(&fx, 16 * MIB);
}

static void teardown(void)
{
    fixture_fini(&fx);
    g_hash_table_unref(synced);
}

/* ---- the machine goes down and comes up ---- */

static void shell(char *cmd)
{
    ck_assert_int_eq(system(cmd), 0);
    g_free(cmd);
}

static void drop_unsynced(const char *meta)
{
    g_autoptr(GDir) d = g_dir_open(meta, 0, NULL);
    ck_assert_ptr_nonnull(d);
    for (const char *name; (name = g_dir_read_name(d));) {
        g_autofree char *path = g_build_filename(meta, name, NULL);
        if (!g_str_has_suffix(name, ".log"))
            continue;
        g_mutex_lock(&synced_mu);
        gsize kept = GPOINTER_TO_SIZE(g_hash_table_lookup(synced, name));
        g_mutex_unlock(&synced_mu);
        ck_assert_int_eq(truncate(path, (off_t)kept), 0);
    }
}

/* Now; open and other are the cfiles that are open, or NULL. */
static void power_loss(struct cfile *open, struct cfile *other)
{
    g_autofree char *meta = g_build_filename(fx.dir, "meta", NULL), *copy = g_build_filename(fx.root, "copy", NULL);
    shell(g_strdup_printf("cp -a '%s' '%s'", meta, copy));
    drop_unsynced(copy);
    cache_file_unref(open);
    cache_file_unref(other);
    fixture_stop(&fx);
    shell(g_strdup_printf("rm -rf '%s' && mv '%s' '%s'", meta, copy, meta));
    fixture_start_in_another_boot(&fx);
}

/* ---- the tests ---- */

/* What it holds, all of seed, is published as "a", and the database on the disk knows. */
static struct cache_source publish(struct cfile *cf, uint32_t seed)
{
    ck_assert_int_eq(cache_file_sync(cf), 0);
    struct cache_source src = put_object(&fx, "a", SIZE, seed);
    ck_assert_int_eq(cache_file_set_source(cf, &src), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    ck_assert_int_eq(meta_sync(fx.meta), 0);
    return src;
}

static struct cfile *written(void)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 7, &cf), 0);
    write_pattern(cf, 0, SIZE, 1);
    return cf;
}

/* The file is dropped, made anew for its object, and the machine goes down before the database is synced again. */
static void drop_and_lose(uint64_t vid, const struct cache_source *src)
{
    ck_assert_int_eq(cache_evict(fx.cache, vid), 0);
    power_loss(open_object(&fx, vid, src, SIZE), NULL);
    struct cfile *cf = open_object(&fx, vid, src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}

START_TEST(a_file_made_anew_is_not_taken_for_the_one_that_was_written)
{
    struct cfile *cf = written();
    uint64_t vid = cache_file_vid(cf);
    struct cache_source src = publish(cf, 1);
    cache_file_unref(cf);
    drop_and_lose(vid, &src);
}
END_TEST

START_TEST(nor_are_chunks_that_were_changed_in_a_fetched_file)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 2);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    assert_reads(cf, 0, SIZE, 2);
    write_pattern(cf, 0, SIZE, 1);
    src = publish(cf, 1);
    cache_file_unref(cf);
    drop_and_lose(50, &src);
}
END_TEST

START_TEST(a_file_of_another_size_is_made_anew_as_well)
{
    struct cfile *cf = written();
    uint64_t vid = cache_file_vid(cf);
    struct cache_source src = publish(cf, 1);
    cache_file_unref(cf);
    cf = open_object(&fx, vid, &src, SIZE + 1);
    cache_file_unref(cf);
    power_loss(open_object(&fx, vid, &src, SIZE), NULL);
    cf = open_object(&fx, vid, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(holes_made_for_others_are_fetched_again)
{
    struct cfile *cf = written(), *other;
    uint64_t vid = cache_file_vid(cf);
    struct cache_source src = publish(cf, 1);
    ck_assert_int_eq(cache_file_new(fx.cache, 8, &other), 0);
    write_pattern(other, 0, 14 * MIB, 3);
    ck_assert(!cache_file_complete(cf));
    power_loss(cf, other);
    cf = open_object(&fx, vid, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_failed_sync_is_not_forgotten)
{
    struct cfile *cf = written();
    uint64_t vid = cache_file_vid(cf);
    g_atomic_int_set(&failing_fd, cache_file_fd(cf));
    ck_assert_int_eq(cache_file_sync(cf), -EIO);
    g_atomic_int_set(&failing_fd, 0); /* what could not be written is thrown away, and the next sync works */
    ck_assert_int_eq(cache_file_sync(cf), -EIO);
    for (unsigned i = 0; i < 2; i++) {
        cache_file_unref(cf);
        if (i == 1)
            fixture_restart(&fx);
        ck_assert_int_eq(cache_file_open(fx.cache, vid, 7, SIZE, NULL, &cf), 0);
        ck_assert_int_eq(cache_file_sync(cf), -EIO);
    }
    struct meta_cached rec;
    ck_assert_int_eq(meta_cached_get(fx.meta, vid, &rec), 0);
    ck_assert(rec.flags & CACHED_FAILED);
    ck_assert_int_eq(cache_file_truncate(cf, 0), 0);
    ck_assert_int_eq(cache_file_sync(cf), 0);
    ck_assert_int_eq(meta_cached_get(fx.meta, vid, &rec), 0); /* what a kill leaves */
    ck_assert(!(rec.flags & CACHED_FAILED));
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_sync_for_which_nobody_waits_goes_by_pieces)
{
    static const struct {
        int hurry_after, error, pieces, result;
    } cases[] = {{0, 0, 3, 0}, {2, 0, 2, 0}, {0, EIO, 1, -EIO}, {0, ENOSPC, 1, -EIO}, {0, EINVAL, 1, 0}};
    struct cfile *cf = NULL;
    hurry_after = cases[_i].hurry_after;
    write_out_error = cases[_i].error;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    ck_assert_int_eq(cache_file_truncate(cf, 2 * 8 * MIB + 1), 0);
    cache_file_write_out(cf, &hurry);
    ck_assert_int_eq(written_out, cases[_i].pieces);
    ck_assert_int_eq(cache_file_sync(cf), cases[_i].result);
    written_out = 0;
    hurry = 1;
    cache_file_write_out(cf, &hurry);
    ck_assert_int_eq(written_out, 0);
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_power");
    TCase *tc = tcase_create("power");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_file_made_anew_is_not_taken_for_the_one_that_was_written);
    tcase_add_test(tc, nor_are_chunks_that_were_changed_in_a_fetched_file);
    tcase_add_test(tc, a_file_of_another_size_is_made_anew_as_well);
    tcase_add_test(tc, holes_made_for_others_are_fetched_again);
    tcase_add_test(tc, a_failed_sync_is_not_forgotten);
    tcase_add_loop_test(tc, a_sync_for_which_nobody_waits_goes_by_pieces, 0, 5);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
