/* Chunks whose bytes a power loss may have taken, while their file is changed: they are compared before they count as changed here. */
#include "cache/cache_file.h"
#include "cache_fixture.h"

#include <fcntl.h>

#define SIZE 200000ull /* ends in chunk 3 */
#define VID  50

static struct fixture fx;
static struct cache_source src;

static void setup(void)
{
    fixture_init(&fx, 64 * MIB);
    src = put_object(&fx, "a", SIZE, 1);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

static void zero_local(uint64_t off, uint64_t len)
{
    g_autofree char *path = g_strdup_printf("%s/data/%02x/%016x", fx.dir, VID, VID);
    g_autofree char *zeros = g_malloc0(len);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, zeros, len, (off_t)off), (ssize_t)len);
    ck_assert_int_eq(close(fd), 0);
}

/* Fetched whole, then the machine went down, and with it what [off, off + len) held. */
static struct cfile *after_power_loss(uint64_t off, uint64_t len)
{
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
    fixture_stop(&fx);
    if (len)
        zero_local(off, len);
    fixture_start_in_another_boot(&fx);
    return open_object(&fx, VID, &src, SIZE);
}

static void cut_to(struct cfile *cf, uint64_t size)
{
    ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    ck_assert_int_eq(cache_file_truncate(cf, size), 0);
}

/* The first thing that happens to the file: 0: it is made longer; 1: shorter; 2: something is written beyond its end. What the rest of it is then; closes it. */
static void change(struct cfile *cf, int how)
{
    uint64_t end = how == 1 ? 150000 : SIZE;
    if (how == 2)
        ck_assert_int_eq(cache_file_write(cf, "news", 4, 400000), 4);
    else
        cut_to(cf, how == 1 ? end : 300000);
    assert_reads(cf, 0, end, 1);
    if (how == 1)
        cut_to(cf, 300000);
    assert_zeros(cf, end, 300000 - end);
    cache_file_unref(cf);
}

START_TEST(the_chunk_of_the_end_is_compared_before_it_counts_as_changed)
{
    change(after_power_loss(_i == 1 ? 2 * CHUNK : 3 * CHUNK, 1000), _i);
}
END_TEST

/* And is not fetched again if it is right. */
START_TEST(the_store_is_not_asked_for_what_is_here)
{
    struct cfile *cf = after_power_loss(0, 0);
    fault(&fx, "op=get,action=error:-EIO");
    change(cf, _i);
}
END_TEST

/* Chunk 1 was written here and published, then its file was changed again: the mark of the file survived, that of the chunk did not. */
START_TEST(what_may_have_been_changed_since_it_was_published_is_sent)
{
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    g_autofree uint8_t *buf = g_malloc(CHUNK);
    assert_reads(cf, 0, SIZE, 1);
    pattern(buf, CHUNK, CHUNK, 1);
    ck_assert_int_eq(cache_file_write(cf, buf, CHUNK, CHUNK), (ssize_t)CHUNK);
    ck_assert_int_eq(cache_file_set_published(cf, &src), 0);
    if (_i == 1)
        ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    cache_file_unref(cf);
    fixture_stop(&fx);
    fixture_start_in_another_boot(&fx);
    for (unsigned i = 0; i < 2; i++) { /* and says so itself from then on */
        cf = open_object(&fx, VID, &src, SIZE);
        ck_assert_int_eq(cfile_range_dirty(cf, CHUNK, CHUNK), _i == 1);
        ck_assert_int_eq(cfile_range_dirty(cf, 0, CHUNK), 0);
        assert_reads(cf, 0, SIZE, 1);
        cache_file_unref(cf);
        fixture_restart(&fx);
    }
}
END_TEST

/* Made here, or changed here and published again: 0: before the machine went down; 1, 2: after that, when it had been closed meanwhile. Its vid. */
static uint64_t published_around_a_power_loss(int how)
{
    struct cfile *cf;
    g_autofree uint8_t *buf = g_malloc(SIZE);
    pattern(buf, SIZE, 0, 1);
    if (how < 2)
        ck_assert_int_eq(cache_file_new(fx.cache, 7, &cf), 0);
    else
        cf = open_object(&fx, VID, &src, SIZE);
    uint64_t vid = cache_file_vid(cf);
    if (how == 2)
        assert_reads(cf, 0, SIZE, 1);
    ck_assert_int_eq(cache_file_write(cf, buf, SIZE, 0), (ssize_t)SIZE);
    if (how != 1)
        ck_assert_int_eq(cache_file_set_published(cf, &src), 0);
    if (how == 2)
        ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    cache_file_unref(cf);
    fixture_stop(&fx);
    fixture_start_in_another_boot(&fx);
    cf = open_object(&fx, vid, how == 1 ? NULL : &src, SIZE);
    if (how)
        ck_assert_int_eq(cache_file_set_published(cf, &src), 0);
    cache_file_unref(cf);
    return vid;
}

/* What is added is sent with the chunk that it begins in. */
START_TEST(what_was_published_is_not_sent_with_a_later_change)
{
    uint64_t vid = published_around_a_power_loss(_i);
    struct cfile *cf = open_object(&fx, vid, &src, SIZE);
    ck_assert_int_eq(cache_file_write(cf, "news", 4, SIZE), 4);
    for (unsigned i = 0; i < 2; i++) {
        cache_file_unref(cf);
        fixture_restart(&fx);
        cf = open_object(&fx, vid, &src, SIZE + 4);
        ck_assert(!cfile_range_dirty(cf, 0, 3 * CHUNK));
        ck_assert(cfile_range_dirty(cf, 3 * CHUNK, SIZE - 3 * CHUNK));
    }
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache_suspect");
    TCase *t = tcase_create("suspect");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, the_chunk_of_the_end_is_compared_before_it_counts_as_changed, 0, 3);
    tcase_add_loop_test(t, the_store_is_not_asked_for_what_is_here, 0, 3);
    tcase_add_loop_test(t, what_may_have_been_changed_since_it_was_published_is_sent, 0, 2);
    tcase_add_loop_test(t, what_was_published_is_not_sent_with_a_later_change, 0, 3);
    suite_add_tcase(s, t);
    return run_suite(s);
}
