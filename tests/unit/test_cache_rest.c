/* Files that the kernel keeps while they rest: opened again without a look at disk or database, unless somebody else wanted them meanwhile. */
#include "cache_fixture.h"

#include <pthread.h>

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

#define VID 50

/* Whole, read by the kernel once, and closed. */
static struct cache_source read_and_closed(void)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), 0);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    cache_file_unref(cf);
    return src;
}

/* Whoever fetched it may let go of it a little later. */
static struct cfile *reopen(const struct cache_source *src)
{
    struct cfile *cf = NULL;
    for (unsigned i = 0; i < 100 && !cf; i++) {
        cf = cache_file_reopen(fx.cache, VID, SIZE, src);
        if (!cf)
            g_usleep(10000);
    }
    return cf;
}

static bool rest(struct cfile *cf)
{
    for (unsigned i = 0; i < 100; i++) {
        if (cache_file_rest(cf))
            return true;
        g_usleep(10000);
    }
    return false;
}

/* Of cache files: the database opens and closes its own whenever it likes. */
static unsigned count_descriptors(void)
{
    g_autofree char *data = g_strdup_printf("%s/data/", fx.dir);
    g_autoptr(GDir) dir = g_dir_open("/proc/self/fd", 0, NULL);
    unsigned n = 0;
    for (const char *name; (name = g_dir_read_name(dir));) {
        g_autofree char *link = g_strdup_printf("/proc/self/fd/%s", name);
        g_autofree char *path = g_file_read_link(link, NULL);
        n += path && g_str_has_prefix(path, data);
    }
    return n;
}

static bool reads_well(struct cfile *cf)
{
    uint8_t buf[100], want[100];
    pattern(want, sizeof(want), MIB, 1);
    return cache_file_read(cf, buf, sizeof(buf), MIB) == sizeof(buf) && memcmp(buf, want, sizeof(buf)) == 0;
}

START_TEST(file_that_the_kernel_keeps_is_opened_again_without_a_look_at_it)
{
    unsigned before = count_descriptors();
    struct cache_source src = read_and_closed(), other = put_object(&fx, "other", SIZE, 1);
    struct cfile *held = open_object(&fx, VID + 1, &other, SIZE);
    ck_assert_uint_eq(count_descriptors(), before + 1);
    cache_file_unref(held);
    EVENTUALLY(count_descriptors() == before);
    g_autofree char *path = g_strdup_printf("%s/data/%02x/%016x", fx.dir, VID, VID);
    struct cfile *cf = reopen(&src);
    ck_assert_ptr_nonnull(cf);
    ck_assert(cache_file_complete(cf));
    ck_assert_uint_eq(cache_file_size(cf), SIZE);
    ck_assert_uint_eq(count_descriptors(), before);
    ck_assert_int_eq(cache_evict(fx.cache, VID), -EBUSY);
    ck_assert(rest(cf));
    ck_assert_int_eq(unlink(path), 0);
    cf = reopen(&src);
    ck_assert_ptr_nonnull(cf);
    ck_assert(rest(cf));
    ck_assert_int_eq(cache_evict(fx.cache, VID), 0);
    ck_assert_ptr_null(cache_file_reopen(fx.cache, VID, SIZE, &src));
}
END_TEST

START_TEST(only_what_is_as_it_was_is_opened_again)
{
    struct cache_source src = read_and_closed(), other = src;
    struct cfile *cf = reopen(&src);
    ck_assert(rest(cf));
    g_strlcpy(other.etag.s, "\"other\"", sizeof(other.etag.s));
    ck_assert_ptr_null(cache_file_reopen(fx.cache, VID, SIZE, &other));
    other = src;
    other.key = "b";
    ck_assert_ptr_null(cache_file_reopen(fx.cache, VID, SIZE, &other));
    other = src;
    other.limit--;
    ck_assert_ptr_null(cache_file_reopen(fx.cache, VID, SIZE, &other));
    ck_assert_ptr_null(cache_file_reopen(fx.cache, VID, SIZE - 1, &src));
    cf = cache_file_reopen(fx.cache, VID, SIZE, &src);
    ck_assert_ptr_nonnull(cf);
    struct cfile *same = open_object(&fx, VID, &src, SIZE);
    ck_assert_ptr_eq(cf, same);
    ck_assert(!cache_file_rest(cf)); /* somebody else has it */
    ck_assert(reads_well(same));
    cache_file_unref(same);
    ck_assert(!cache_file_rest(cf)); /* that took a descriptor */
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    cache_file_unref(cf);
    cf = reopen(&src);
    ck_assert_ptr_nonnull(cf);
    ck_assert(rest(cf));
}
END_TEST

/* What was done to it since it was closed. */
static void change(int how)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    if (how == 0)
        ck_assert_int_eq(cache_pin(fx.cache, VID, PIN_DISK), 0);
    if (how == 1)
        cache_forget(fx.cache, VID);
    if (how < 2)
        return;
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    if (how == 2)
        ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    cache_file_unref(cf); /* 3: nothing, but it was not given to the kernel again */
}

START_TEST(what_anybody_else_does_with_it_ends_the_rest)
{
    struct cache_source src = read_and_closed();
    ck_assert(rest(reopen(&src)));
    change(_i);
    struct cfile *cf = cache_file_reopen(fx.cache, VID, SIZE, &src);
    ck_assert(!cf || _i == 3);
    if (cf)
        ck_assert(rest(cf));
    if (_i == 0)
        ck_assert_int_eq(cache_evict(fx.cache, VID), -EBUSY);
}
END_TEST

START_TEST(file_that_the_kernel_never_had_is_opened_the_long_way)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 1);
    struct cfile *cf = open_object(&fx, VID, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    cache_file_unref(cf);
    g_usleep(100000);
    ck_assert_ptr_null(cache_file_reopen(fx.cache, VID, SIZE, &src));
}
END_TEST

struct crowd {
    struct cache_source src;
    unsigned n;
};

static void *keeps(void *arg)
{
    struct crowd *c = arg;
    for (unsigned i = 0; i < c->n; i++) {
        struct cfile *cf = cache_file_reopen(fx.cache, VID, SIZE, &c->src);
        if (cf && !cache_file_rest(cf)) {
            ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
            cache_file_unref(cf);
        }
    }
    return NULL;
}

static void *reads(void *arg)
{
    struct crowd *c = arg;
    for (unsigned i = 0; i < c->n; i++) {
        struct cfile *cf = open_object(&fx, VID, &c->src, SIZE);
        ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
        ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), 0);
        ck_assert(reads_well(cf));
        cache_file_unref(cf);
    }
    return NULL;
}

static void *evicts(void *arg)
{
    struct crowd *c = arg;
    for (unsigned i = 0; i < c->n / 8; i++) {
        int r = cache_evict(fx.cache, VID);
        ck_assert(r == 0 || r == -EBUSY || r == -ENOENT);
    }
    return NULL;
}

START_TEST(readers_and_the_evictor_at_once)
{
    void *(*const work[])(void *) = {keeps, keeps, reads, evicts};
    pthread_t t[G_N_ELEMENTS(work)];
    struct crowd c = {.src = read_and_closed(), .n = 400};
    for (unsigned i = 0; i < G_N_ELEMENTS(work); i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, work[i], &c), 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(work); i++)
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
    struct cfile *cf = open_object(&fx, VID, &c.src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(reads_well(cf));
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_rest");
    TCase *tc = tcase_create("rest");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, file_that_the_kernel_keeps_is_opened_again_without_a_look_at_it);
    tcase_add_test(tc, only_what_is_as_it_was_is_opened_again);
    tcase_add_loop_test(tc, what_anybody_else_does_with_it_ends_the_rest, 0, 4);
    tcase_add_test(tc, file_that_the_kernel_never_had_is_opened_the_long_way);
    tcase_add_test(tc, readers_and_the_evictor_at_once);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
