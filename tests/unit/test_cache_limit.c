/* The limit of a file's source: as far as its object goes, no less once it was published again, and no more once it was cut. */
#include "cache/cache_file.h"
#include "cache_fixture.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define OLD  100000ull /* ends in the middle of chunk 1 */
#define SIZE 300000ull
#define VID  50

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 64 * MIB);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

/* ---- what begins while a file is cut ---- */

static struct cfile *_Atomic wanted; /* somebody wants all of it while it is cut, once */

/* Takes the place of the C library's for the whole program. */
int ftruncate(int fd, off_t size)
{
    struct cfile *cf = atomic_exchange(&wanted, NULL);
    if (cf) {
        ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0); /* it is only begun */
        g_usleep(100000);
    }
    return (int)syscall(SYS_ftruncate, fd, size);
}

/* 0: and nothing of the object is left; 1: its beginning is. */
START_TEST(fetch_that_begins_while_a_file_is_cut_ends_where_it_ends)
{
    uint64_t size = _i == 0 ? 0 : 1000;
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    struct stat st;
    fault(&fx, "op=get,action=delay:300ms");
    atomic_store(&wanted, cf);
    ck_assert_int_eq(cache_file_truncate(cf, size), 0);
    ck_assert_ptr_null(atomic_load(&wanted));
    g_usleep(700000);
    ck_assert_int_eq(fstat(cache_file_fd(cf), &st), 0);
    ck_assert_int_eq(st.st_size, (off_t)size);
    ck_assert_int_eq(cache_file_truncate(cf, SIZE), 0);
    g_autofree char *bytes = g_malloc0(SIZE), *zeros = g_malloc0(SIZE);
    ck_assert_int_eq(cache_file_read(cf, bytes, SIZE - size, size), (ssize_t)(SIZE - size));
    ck_assert_mem_eq(bytes, zeros, SIZE - size);
    fault(&fx, "");
    if (size)
        assert_reads(cf, 0, size, 1);
    cache_file_unref(cf);
}
END_TEST

/* Read whole, then written to its new end from `from` on. */
static struct cfile *appended(uint64_t from)
{
    struct cache_source src = put_object(&fx, "a", OLD, 1);
    struct cfile *cf = open_object(&fx, VID, &src, OLD);
    assert_reads(cf, 0, OLD, 1);
    if (from < OLD)
        ck_assert_int_eq(cache_file_truncate(cf, from), 0);
    write_pattern(cf, from, SIZE - from, 1);
    return cf;
}

/* As publishing does it. */
static struct cache_source publish(struct cfile *cf)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    cache_file_rebase(cf, "a", &src.etag);
    ck_assert_int_eq(cache_file_set_published(cf, &src), 0);
    return src;
}

/* Whatever of it is taken away comes again. */
static void assert_whole(struct cfile *cf)
{
    ck_assert_uint_eq(cache_file_limit(cf), SIZE);
    assert_reads(cf, 0, SIZE, 1);
    ck_assert_uint_gt(cfile_punch(cf, SIZE), 4 * CHUNK);
    assert_reads(cf, 0, SIZE, 1);
}

/* 0: longer; 1: cut shorter before. */
START_TEST(what_was_added_comes_from_the_object_once_it_is_published)
{
    struct cfile *cf = appended(_i == 0 ? OLD : OLD - 30000);
    (void)publish(cf);
    assert_whole(cf);
    cache_file_unref(cf);
}
END_TEST

START_TEST(and_after_a_restart)
{
    struct cfile *cf = appended(_i == 0 ? OLD : OLD - 30000);
    struct cache_source src = publish(cf);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, VID, &src, SIZE);
    assert_whole(cf);
    cache_file_unref(cf);
}
END_TEST

/* The inode's record says that it is published, the cache's does not yet. */
START_TEST(and_when_a_start_ends_the_publishing)
{
    cache_file_unref(appended(_i == 0 ? OLD : OLD - 30000));
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    fixture_restart(&fx);
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    ck_assert_int_eq(cache_file_set_published(cf, &src), 0);
    assert_whole(cf);
    cache_file_unref(cf);
}
END_TEST

static void zero_local(uint64_t off, uint64_t len)
{
    g_autofree char *path = g_strdup_printf("%s/data/%02x/%016x", fx.dir, VID, VID);
    g_autofree char *zeros = g_malloc0(len);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, zeros, len, (off_t)off), (ssize_t)len);
    ck_assert_int_eq(close(fd), 0);
}

/* A record says of a published file that its object is shorter; of the chunk where it would end that much was fetched, perhaps. */
START_TEST(a_limit_that_was_left_behind_is_not_believed)
{
    struct cfile *cf = appended(OLD);
    struct cache_source src = publish(cf);
    cache_file_unref(cf);
    fixture_stop(&fx);
    fixture_start_meta(&fx);
    struct meta_batch *b = meta_batch_new(fx.meta);
    meta_value_put_u64(b, "cache/limit/0000000000000032", OLD);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    zero_local(OLD, 2 * CHUNK - OLD);
    fixture_start_cache(&fx);
    cf = open_object(&fx, VID, &src, SIZE);
    assert_whole(cf);
    cache_file_unref(cf);
}
END_TEST

/* As an earlier version left a file that went to another disk, where its first two chunks came, and that it then took for whole. */
START_TEST(nor_where_the_kernel_had_the_file)
{
    struct cfile *cf = appended(OLD);
    struct cache_source src = publish(cf);
    struct chunkset present = {0}, dirty = {0};
    struct meta_segment seg;
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), 0);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    cache_file_unref(cf);
    fixture_stop(&fx);
    fixture_start_meta(&fx);
    struct meta_batch *b = meta_batch_new(fx.meta);
    chunkset_set(&present, 0, 2);
    chunks_encode_segment(&present, &dirty, 0, &seg);
    chunkset_clear(&present);
    meta_segment_put(b, VID, 0, &seg);
    meta_value_put_u64(b, "cache/limit/0000000000000032", OLD);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    zero_local(OLD, SIZE - OLD);
    fixture_start_cache(&fx);
    cf = open_object(&fx, VID, &src, SIZE);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), -EAGAIN);
    assert_reads(cf, 0, SIZE, 1);
    ck_assert_uint_eq(cfile_punch(cf, SIZE), 0); /* it may be mapped */
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), 0);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_clean_file_keeps_its_limit_when_its_object_moves)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    assert_reads(cf, 0, CHUNK, 1);
    src = put_object(&fx, "b", SIZE, 1);
    cache_file_rebase(cf, "b", &src.etag);
    ck_assert_int_eq(cache_file_set_source(cf, &src), 0);
    ck_assert_uint_eq(cache_file_limit(cf), SIZE);
    ck_assert(!cache_file_complete(cf));
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache_limit");
    TCase *t = tcase_create("limit");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, what_was_added_comes_from_the_object_once_it_is_published, 0, 2);
    tcase_add_loop_test(t, and_after_a_restart, 0, 2);
    tcase_add_loop_test(t, and_when_a_start_ends_the_publishing, 0, 2);
    tcase_add_loop_test(t, fetch_that_begins_while_a_file_is_cut_ends_where_it_ends, 0, 2);
    tcase_add_test(t, a_limit_that_was_left_behind_is_not_believed);
    tcase_add_test(t, nor_where_the_kernel_had_the_file);
    tcase_add_test(t, a_clean_file_keeps_its_limit_when_its_object_moves);
    suite_add_tcase(s, t);
    return run_suite(s);
}
