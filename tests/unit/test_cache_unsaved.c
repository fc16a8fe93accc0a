/* Marks of a cache file that are not in the database yet, or never will be. */
#include "cache/cache_file.h"
#include "cache_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#define SIZE (2 * MIB + 12345)

static struct fixture fx;

static void setup(void)
{
    fixture_init(&fx, 64 * MIB);
}

static void teardown(void)
{
    fixture_fini(&fx);
}

/* Whole, and marked as changed; no byte of it is. */
static struct cfile *open_marked(const struct cache_source *src)
{
    struct cfile *cf = open_object(&fx, 50, src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    return cf;
}

/* A write of it fails, though the disk takes all again afterwards. */
static void break_database(void)
{
    struct rlimit old, tight;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    g_autofree char *big = g_strnfill(20000, 'x');
    struct meta_batch *b = meta_batch_new(fx.meta);
    meta_value_put(b, "big", big, strlen(big));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
    ck_assert_int_eq(meta_commit(b, false), -EIO);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    meta_batch_free(b);
}

static char first_byte_on_disk(void)
{
    char byte = 0;
    int fd = tier_data_open(tier_by_number(fx.cache, TIER_NUMBER_FIRST), 50, O_RDONLY);
    ck_assert_int_eq(pread(fd, &byte, 1, 0), 1);
    (void)close(fd);
    return byte;
}

static void mark_first_chunk(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    ck_assert(cfile_mark_dirty_locked(cf, 0, 1));
    mutex_unlock(&cf->mu);
}

START_TEST(no_write_follows_a_mark_that_could_not_be_saved)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_marked(&src);
    char before = first_byte_on_disk();
    break_database();
    ck_assert_int_eq(cache_file_write(cf, "x", 1, 0), -EIO);
    ck_assert_int_eq(cache_file_write(cf, "y", 1, 0), -EIO); /* the same chunk: dirty here, clean in the database */
    ck_assert_int_eq(first_byte_on_disk(), before);
    cache_file_unref(cf);
}
END_TEST

/* Marks of a writer are saved by whoever saves first. */
START_TEST(what_another_could_not_save_is_not_saved)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_marked(&src);
    break_database();
    mark_first_chunk(cf);
    ck_assert_int_eq(cfile_save(cf), -EIO);
    ck_assert_int_eq(cfile_save_if_needed(cf), -EIO);
    cache_file_unref(cf);
}
END_TEST

static void *write_first(void *arg)
{
    ck_assert_int_eq(cache_file_write(arg, "x", 1, 0), 1);
    return NULL;
}

static uint64_t saves_wanted(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    uint64_t n = cf->save_want;
    mutex_unlock(&cf->mu);
    return n;
}

START_TEST(a_write_waits_for_the_mark_that_another_saves)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_marked(&src);
    pthread_t thread;
    char before = first_byte_on_disk();
    ck_assert_int_ne(before, 'x');
    EVENTUALLY(cfile_save_if_needed(cf) == 0);
    mark_first_chunk(cf);
    ck_assert_int_eq(cfile_save(cf), 0);
    mutex_lock(&cf->mu);
    cf->saving = true; /* as if the commit still ran */
    mutex_unlock(&cf->mu);
    uint64_t wanted = saves_wanted(cf);
    ck_assert_int_eq(pthread_create(&thread, NULL, write_first, cf), 0);
    EVENTUALLY(saves_wanted(cf) > wanted);
    ck_assert_int_eq(first_byte_on_disk(), before);
    mutex_lock(&cf->mu);
    cf->saving = false;
    cond_broadcast(&cf->changed);
    mutex_unlock(&cf->mu);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(first_byte_on_disk(), 'x');
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache_unsaved");
    TCase *tc = tcase_create("unsaved");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, no_write_follows_a_mark_that_could_not_be_saved);
    tcase_add_test(tc, what_another_could_not_save_is_not_saved);
    tcase_add_test(tc, a_write_waits_for_the_mark_that_another_saves);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
