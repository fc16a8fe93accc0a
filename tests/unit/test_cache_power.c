/* What a power loss leaves: the data files as they are, the database as it was when it was last synced. */
#include "cache/cache_file.h"
#include "cache_fixture.h"
#include "cache_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define SIZE (6 * MIB + 12345)

static struct fixture fx;

/* ---- how much of the database's log is on the disk ---- */

static pthread_mutex_t synced_mu = PTHREAD_MUTEX_INITIALIZER; /* TSan does not see GLib's */
static GHashTable *synced;                                    /* name -> bytes */
static int failing_fd;                                        /* atomic; cannot be synced, 0 none */
static char *on_disk; /* what the disk has of a data file, as of its last sync; NULL: all that was written to any */

static char *path_of(int fd)
{
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd);
    return g_file_read_link(link, NULL);
}

static void shell(char *cmd)
{
    ck_assert_int_eq(system(cmd), 0);
    g_free(cmd);
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
        pthread_mutex_lock(&synced_mu);
        g_hash_table_insert(synced, g_path_get_basename(path), GSIZE_TO_POINTER((gsize)st.st_size));
        pthread_mutex_unlock(&synced_mu);
    }
    if (on_disk && path && strstr(path, "/data/"))
        shell(g_strdup_printf("cp --sparse=always '%s' '%s'", path, on_disk));
    return (int)syscall(SYS_fdatasync, fd);
}

static char *
    undone; /* what a power loss brings back: data files removed from folders that were not synced since; under synced_mu */
static _Thread_local bool waits_for_no_disk;

int unlinkat(int fd, const char *name, int flags)
{
    pthread_mutex_lock(&synced_mu);
    if (undone && g_str_has_prefix(name, "data/") && faccessat(fd, name, F_OK, 0) == 0) {
        g_autofree char *path = g_build_filename(undone, name, NULL);
        (void)unlink(path); /* an older one */
        ck_assert_int_eq(linkat(fd, name, AT_FDCWD, path, 0), 0);
    }
    int r = (int)syscall(SYS_unlinkat, fd, name, flags), err = errno;
    pthread_mutex_unlock(&synced_mu);
    errno = err;
    return r;
}

static void forget_removals(const char *folder)
{
    g_autofree char *path = g_strconcat(undone, folder, NULL);
    g_autoptr(GDir) d = g_dir_open(path, 0, NULL);
    ck_assert_ptr_nonnull(d);
    for (const char *name; (name = g_dir_read_name(d));) {
        g_autofree char *file = g_build_filename(path, name, NULL);
        ck_assert_int_eq(unlink(file), 0);
    }
}

int fsync(int fd)
{
    g_autofree char *path = path_of(fd);
    const char *folder = path ? strstr(path, "/data/") : NULL;
    ck_assert(!waits_for_no_disk);
    pthread_mutex_lock(&synced_mu);
    int r = (int)syscall(SYS_fsync, fd);
    if (undone && folder && strlen(folder) == strlen("/data/xx"))
        forget_removals(folder);
    pthread_mutex_unlock(&synced_mu);
    return r;
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
    g_autofree char *lost = g_build_filename(fx.root, "undone", NULL);
    for (unsigned i = 0; i < 256; i++) {
        g_autofree char *folder = g_strdup_printf("%s/data/%02x", lost, i);
        ck_assert_int_eq(g_mkdir_with_parents(folder, 0700), 0);
    }
    pthread_mutex_lock(&synced_mu);
    undone = g_steal_pointer(&lost);
    pthread_mutex_unlock(&synced_mu);
}

/* From here on a removal is for good at once. */
static void end_undone(void)
{
    pthread_mutex_lock(&synced_mu);
    g_clear_pointer(&undone, g_free);
    pthread_mutex_unlock(&synced_mu);
}

static void teardown(void)
{
    end_undone();
    fixture_fini(&fx);
    g_hash_table_unref(synced);
}

/* ---- the machine goes down and comes up ---- */

static void drop_unsynced(const char *meta)
{
    g_autoptr(GDir) d = g_dir_open(meta, 0, NULL);
    ck_assert_ptr_nonnull(d);
    for (const char *name; (name = g_dir_read_name(d));) {
        g_autofree char *path = g_build_filename(meta, name, NULL);
        if (!g_str_has_suffix(name, ".log"))
            continue;
        pthread_mutex_lock(&synced_mu);
        gsize kept = GPOINTER_TO_SIZE(g_hash_table_lookup(synced, name));
        pthread_mutex_unlock(&synced_mu);
        ck_assert_int_eq(truncate(path, (off_t)kept), 0);
    }
}

/* Now; open and other are the cfiles that are open, or NULL. */
static void power_loss(struct cfile *open, struct cfile *other)
{
    g_autofree char *meta = g_build_filename(fx.dir, "meta", NULL), *copy = g_build_filename(fx.root, "copy", NULL);
    shell(g_strdup_printf("cp -a '%s' '%s'", meta, copy));
    drop_unsynced(copy);
    pthread_mutex_lock(&synced_mu);
    g_autofree char *back = g_steal_pointer(&undone);
    pthread_mutex_unlock(&synced_mu);
    cache_file_unref(open);
    cache_file_unref(other);
    fixture_stop(&fx);
    shell(g_strdup_printf("rm -rf '%s' && mv '%s' '%s'", meta, copy, meta));
    if (on_disk) { /* the size is there, bytes are not */
        shell(g_strdup_printf("f=$(ls '%s'/data/*/*) && truncate -r \"$f\" '%s' && cat '%s' >\"$f\"", fx.dir, on_disk,
                              on_disk));
        g_clear_pointer(&on_disk, g_free);
    }
    if (back)
        shell(g_strdup_printf("cp -an '%s/data' '%s/'", back, fx.dir));
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

static bool is_recorded(uint64_t vid)
{
    struct meta_cached rec;
    return meta_cached_get(fx.meta, vid, &rec) == 0;
}

static bool is_there(uint64_t vid)
{
    struct cache_scanned file;
    return cache_scan_file(fx.dir, vid, &file) == 0;
}

/* Whoever looks for unpublished files that no record knows would bring it back. Right after it was removed, or when its record is gone. 0, 1: of a file that is not published; 2: of one that was,
 * and is dropped to make room. */
START_TEST(what_was_removed_does_not_come_back)
{
    struct cfile *cf = written();
    uint64_t vid = cache_file_vid(cf);
    ck_assert_int_eq(cache_file_set_intent(cf, "somebody's"), 0);
    if (_i == 2)
        (void)publish(cf, 1);
    ck_assert_int_eq(cache_file_sync(cf), 0);
    cache_file_unref(cf);
    waits_for_no_disk = true;
    if (_i == 2)
        ck_assert_int_eq(cache_evict(fx.cache, vid), 0);
    else
        cache_forget(fx.cache, vid);
    waits_for_no_disk = false;
    ck_assert(!is_there(vid));
    if (_i > 0)
        EVENTUALLY(!is_recorded(vid));
    ck_assert_int_eq(meta_sync(fx.meta), 0);
    power_loss(NULL, NULL);
    ck_assert(!is_there(vid));
    EVENTUALLY(!is_recorded(vid));
}
END_TEST

/* Though nothing is there to be removed, nobody synced its removal. */
START_TEST(what_a_process_before_removed_does_not_come_back)
{
    struct cfile *cf = written();
    uint64_t vid = cache_file_vid(cf);
    struct meta_cached dying = {.vid = vid, .flags = CACHED_DYING};
    ck_assert_int_eq(cache_file_sync(cf), 0);
    cache_file_unref(cf);
    fixture_stop(&fx);
    char name[32];
    int fd = open(fx.dir, O_PATH);
    cache_data_path(vid, name);
    ck_assert_int_eq(unlinkat(fd, name, 0), 0);
    (void)close(fd);
    fixture_start_meta(&fx);
    struct meta_batch *b = meta_batch_new(fx.meta);
    meta_cached_put(b, &dying);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    fixture_start_cache(&fx);
    EVENTUALLY(!is_recorded(vid));
    ck_assert_int_eq(meta_sync(fx.meta), 0);
    power_loss(NULL, NULL);
    ck_assert(!is_there(vid));
}
END_TEST

/* Its record is not that of the file which was removed. */
START_TEST(what_is_made_anew_stays)
{
    struct cfile *cf = written();
    uint64_t vid = cache_file_vid(cf);
    struct cache_source src = publish(cf, 1);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_evict(fx.cache, vid), 0);
    cf = open_object(&fx, vid, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    if (_i == 1) /* closed */
        cache_file_unref(cf);
    struct cfile *other = written();
    uint64_t next = cache_file_vid(other);
    cache_file_unref(other);
    cache_forget(fx.cache, next); /* its record goes with, or after, what would be that of the first one */
    EVENTUALLY(!is_recorded(next));
    ck_assert(is_recorded(vid) && is_there(vid));
    if (_i == 0)
        cache_file_unref(cf);
}
END_TEST

/* What is in memory goes with the power. Its file went from the disk when that it is published was known there, or it would be missed. */
START_TEST(a_published_file_that_moved_to_memory_is_not_missed)
{
    fixture_stop(&fx);
    fx.cfg.memory_bytes = 64 * MIB;
    fixture_start(&fx);
    end_undone();
    struct cfile *cf = written();
    uint64_t vid = cache_file_vid(cf);
    ck_assert_int_eq(cache_file_sync(cf), 0);
    ck_assert_int_eq(meta_sync(fx.meta), 0);
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    ck_assert_int_eq(cache_file_set_source(cf, &src), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_pin(fx.cache, vid, PIN_MEMORY), 0);
    ck_assert(!is_there(vid));
    power_loss(NULL, NULL);
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

/* A change of a file that counts as on the disk: beside it, over all of a chunk, after the end and by a cut. */
START_TEST(what_the_source_had_is_not_lost_by_a_later_change)
{
    static const uint64_t sizes[] = {SIZE, SIZE, SIZE + 1, SIZE - 5};
    const uint64_t at = 3 * MIB, tail = SIZE - 1000;
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, 9, &src, SIZE);
    on_disk = g_build_filename(fx.root, "on-disk", NULL);
    write_pattern(cf, 10, 1000, 2);
    ck_assert_int_eq(cache_file_sync(cf), 0);
    assert_reads(cf, tail, 1000, 1);
    if (_i == 0)
        write_pattern(cf, at + 5, 1, 3);
    else if (_i == 1)
        write_pattern(cf, at, CHUNK, 3);
    else if (_i == 2)
        write_pattern(cf, SIZE, 1, 3);
    else
        ck_assert_int_eq(cache_file_truncate(cf, SIZE - 5), 0);
    ck_assert_int_eq(meta_sync(fx.meta), 0);
    power_loss(cf, NULL);
    cf = open_object(&fx, 9, &src, sizes[_i]);
    assert_reads(cf, 10, 1000, 2);
    assert_reads(cf, at + 6, 1000, _i == 1 ? 3 : 1);
    assert_reads(cf, tail, 995, 1);
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
    tcase_add_loop_test(tc, what_was_removed_does_not_come_back, 0, 3);
    tcase_add_test(tc, what_a_process_before_removed_does_not_come_back);
    tcase_add_loop_test(tc, what_is_made_anew_stays, 0, 2);
    tcase_add_test(tc, a_published_file_that_moved_to_memory_is_not_missed);
    tcase_add_test(tc, a_failed_sync_is_not_forgotten);
    tcase_add_loop_test(tc, what_the_source_had_is_not_lost_by_a_later_change, 0, 4);
    tcase_add_loop_test(tc, a_sync_for_which_nobody_waits_goes_by_pieces, 0, 5);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
