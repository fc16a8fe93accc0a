/* Content that came by ranges and is compared with its ETag as a whole; and what ETags tell. */
#include "base/log.h"
#include "cache_file.h"
#include "cache_fixture.h"
#include "objstore_driver.h"

#include <limits.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

#define SIZE  (3 * MIB + 4321)
#define WRONG (2 * MIB + 7) /* the byte that harmed GETs bring another of */

static struct fixture fx;
static const struct objstore_driver *inner;
static struct objstore_driver spy;
static int n_wrong;      /* so many GETs of that byte are harmed */
static bool always_same; /* by the same other byte */
static bool ours;        /* the object carries a token */
static bool encrypted;   /* by now, so that its ETag is another thing */

struct harmed_sink {
    obj_sink_fn *sink;
    void *ctx;
};

static int harm(void *ctx, uint64_t off, const void *buf, size_t len)
{
    static uint8_t mask;
    const struct harmed_sink *s = ctx;
    if (WRONG < off || WRONG >= off + len || __atomic_fetch_sub(&n_wrong, 1, __ATOMIC_SEQ_CST) <= 0)
        return s->sink(s->ctx, off, buf, len);
    g_autofree uint8_t *other = g_memdup2(buf, len);
    other[WRONG - off] ^= always_same ? 1 : ++mask;
    return s->sink(s->ctx, off, other, len);
}

/* The file store's own ETags are no sums, so its conditions are left out. */
static int harmed_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                      obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    struct harmed_sink s = {sink, ctx};
    (void)if_match;
    return inner->get(st, key, off, len, NULL, harm, &s, ret_info);
}

static struct etag told;

static int head(struct objstore *st, const char *key, struct obj_info *ret_info)
{
    int r = inner->head(st, key, ret_info);
    ret_info->etag = told;
    g_strlcpy(ret_info->token, ours ? "token" : "", sizeof ret_info->token);
    ret_info->encrypted = encrypted;
    return r;
}

static atomic_uint n_told;

static void count_wrong(void *ctx, uint64_t ino)
{
    ck_assert_ptr_eq(ctx, &fx);
    ck_assert_uint_eq(ino, 7);
    mutex_assert_none_held();
    n_told++;
}

static void setup(void)
{
    fixture_init(&fx, 256 * MIB);
    inner = fx.store->drv;
    spy = *inner;
    spy.get = harmed_get;
    spy.head = head;
    fx.store->drv = &spy;
    fx.store->limits.summed_bytes = 32 * MIB;
    objstore_set_caps(fx.store, CAP_ETAG_IS_MD5);
    n_wrong = 0;
    always_same = ours = encrypted = false;
    (void)log_open("/dev/null", LOG_LEVEL_ERR);
}

static void teardown(void)
{
    fixture_fini(&fx);
    log_close();
}

static void md5_of_pattern(uint64_t off, uint64_t len, unsigned char ret[16])
{
    g_autofree uint8_t *buf = g_malloc(len);
    pattern(buf, len, off, 1);
    ck_assert_int_eq(EVP_Digest(buf, len, ret, NULL, EVP_md5(), NULL), 1);
}

static struct etag etag_of(const unsigned char md[16], const char *tail)
{
    struct etag etag = {""};
    for (size_t i = 0; i < 16; i++)
        g_snprintf(etag.s + 2 * i, 3, "%02x", md[i]);
    g_strlcat(etag.s, tail, sizeof etag.s);
    return etag;
}

static struct cache_source put_summed(uint64_t size)
{
    unsigned char md[16];
    struct cache_source src = put_object(&fx, "a", size, 1);
    md5_of_pattern(0, size, md);
    src.etag = told = etag_of(md, "");
    return src;
}

static int read_all(struct cfile *cf, uint64_t len, uint64_t off)
{
    g_autofree uint8_t *buf = g_malloc(len);
    ssize_t n = cache_file_read(cf, buf, len, off);
    if (n < 0)
        return (int)n;
    ck_assert_int_eq(n, (ssize_t)len);
    assert_pattern(buf, len, off, 1);
    return 0;
}

START_TEST(byte_changed_on_the_way_is_not_in_a_complete_file)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    int64_t bad = metric_get(M_corrupt_chunks);
    if (_i) /* before a probe */
        objstore_set_caps(fx.store, 0);
    n_wrong = 2;
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(cache_file_complete(cf));
    ck_assert_int_le(n_wrong, 0);
    ck_assert_int_gt(metric_get(M_corrupt_chunks), bad);
    ck_assert_int_eq(read_all(cf, SIZE, 0), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(file_that_always_comes_wrong_is_never_complete_and_cannot_be_read)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    n_wrong = INT_MAX;
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), -EIO);
    ck_assert(!cache_file_complete(cf));
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), -EAGAIN);
    ck_assert_int_eq(read_all(cf, 10, 0), -EIO);
    n_wrong = 0;
    ck_assert_int_eq(read_all(cf, SIZE, 0), 0);
    ck_assert(cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

START_TEST(file_that_nobody_waits_for_is_compared_behind)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    n_wrong = 1;
    ck_assert_int_eq(cache_file_fill(cf, false, false, NULL, NULL), 0);
    EVENTUALLY(cfile_doubts(cf) == 1);
    ck_assert(!cache_file_complete(cf));
    ck_assert_int_eq(read_all(cf, 10, WRONG), 0);
    ck_assert(cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

/* Before the next read of it is answered: the kernel keeps the pages that were read. */
START_TEST(who_keeps_what_was_read_is_told_that_it_was_wrong)
{
    struct cache_source src = put_summed(SIZE);
    fixture_stop(&fx);
    fx.cfg.wrong = count_wrong;
    fx.cfg.dropped_ctx = &fx;
    fixture_start(&fx);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint8_t byte;
    n_told = 0;
    n_wrong = 1;
    ck_assert_int_eq(cache_file_read(cf, &byte, 1, WRONG), 1);
    ck_assert_uint_eq(n_told, 0);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert_uint_eq(n_told, 1);
    ck_assert_int_eq(read_all(cf, SIZE, 0), 0);
    ck_assert_uint_eq(n_told, 1);
    cache_file_unref(cf);
}
END_TEST

START_TEST(what_was_fetched_before_a_restart_is_compared_after_it)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint8_t byte;
    n_wrong = 1;
    ck_assert_int_eq(cache_file_read(cf, &byte, 1, WRONG), 1);
    ck_assert_int_eq(n_wrong, 0);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert_int_eq(read_all(cf, SIZE, 0), 0);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_msg(cache_file_complete(cf), "a compared file is complete at once");
    cache_file_unref(cf);
}
END_TEST

/* The same bytes twice: the ETag is none of theirs. That is learned once, then no file is fetched twice for it. */
START_TEST(etag_that_is_no_sum_costs_one_file_a_second_fetch)
{
    struct cache_source src = put_summed(SIZE);
    memset(src.etag.s, 'a', 32);
    told = src.etag;
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    int64_t bytes = metric_get(M_corrupt_chunks), chunks = chunks_for(SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(cache_file_complete(cf));
    ck_assert_int_eq(metric_get(M_corrupt_chunks) - bytes, chunks);
    cache_file_unref(cf);
    cf = open_object(&fx, 51, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(cache_file_complete(cf));
    ck_assert_int_eq(metric_get(M_corrupt_chunks) - bytes, chunks);
    cache_file_unref(cf);
}
END_TEST

START_TEST(same_wrong_bytes_of_an_object_of_ours_are_refused)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    n_wrong = INT_MAX;
    always_same = ours = true;
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), -EIO);
    ck_assert(!cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

START_TEST(object_of_ours_that_somebody_encrypted_is_read)
{
    struct cache_source src = put_summed(SIZE);
    memset(src.etag.s, 'a', 32);
    told = src.etag;
    ours = encrypted = true;
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

START_TEST(changed_file_is_not_compared)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint8_t byte = 1;
    n_wrong = 1;
    ck_assert_int_eq(cache_file_read(cf, &byte, 1, 0), 1);
    ck_assert_int_eq(cache_file_write(cf, &byte, 1, 0), 1);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert(cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

/* 0: it is written, 1: it is cut. */
START_TEST(file_that_came_wrong_is_not_changed_before_it_comes_right)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint8_t byte = 1;
    n_wrong = INT_MAX;
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), -EIO);
    ck_assert_int_eq(_i ? cache_file_truncate(cf, WRONG + 1) : cache_file_write(cf, &byte, 1, SIZE), -EIO);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), -EAGAIN);
    ck_assert_int_eq(read_all(cf, 10, WRONG), -EIO);
    n_wrong = 0;
    ck_assert_int_eq(_i ? cache_file_truncate(cf, WRONG + 1) : cache_file_write(cf, &byte, 1, SIZE), _i ? 0 : 1);
    ck_assert_int_eq(read_all(cf, _i ? WRONG + 1 : SIZE, 0), 0);
    cache_file_unref(cf);
}
END_TEST

/* As whoever puts a good one in its place does; whether or not the disk takes that. */
START_TEST(file_that_came_wrong_can_be_cut_to_nothing)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    uint8_t byte = 1;
    n_wrong = INT_MAX;
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), -EIO);
    if (_i) {
        cache_file_cut_begin(cf);
        ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
        cache_file_cut_end(cf, false);
        ck_assert_int_eq(cache_file_read(cf, &byte, 1, WRONG), -EIO);
        ck_assert_int_eq(cache_file_write(cf, &byte, 1, SIZE), -EIO);
        ck_assert(!cache_file_complete(cf));
    }
    ck_assert_int_eq(cache_file_truncate(cf, 0), 0);
    ck_assert_int_eq(cache_file_set_source(cf, NULL), 0);
    ck_assert_int_eq(cache_file_write(cf, &byte, 1, 0), 1);
    ck_assert_int_eq(cache_file_read(cf, &byte, 1, 0), 1);
    ck_assert_uint_eq(byte, 1);
    cache_file_unref(cf);
}
END_TEST

/* The limit on a process' files stands for a disk that does not take the new size. */
START_TEST(file_that_came_wrong_is_not_read_after_it_could_not_be_cut)
{
    struct cache_source src = put_summed(SIZE);
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    struct rlimit before, small;
    uint8_t byte;
    n_wrong = INT_MAX;
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), -EIO);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 2 * SIZE;
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_lt(cache_file_truncate(cf, 3 * SIZE), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_int_eq(cache_file_read(cf, &byte, 1, WRONG), -EIO);
    cache_file_unref(cf);
}
END_TEST

START_TEST(files_of_other_sizes_are_not_compared)
{
    struct cache_source src = put_summed(SIZE);
    n_wrong = 1;
    fx.store->limits.summed_bytes = SIZE - 1;
    struct cfile *cf = open_object(&fx, 50, &src, SIZE);
    ck_assert_int_eq(cache_file_fill(cf, true, true, NULL, NULL), 0);
    ck_assert_int_eq(n_wrong, 0);
    ck_assert(cache_file_complete(cf));
    cache_file_unref(cf);
}
END_TEST

/* ---- ETags ---- */

static int read_pattern(void *ctx, uint64_t off, void *buf, size_t len)
{
    (void)ctx;
    pattern(buf, len, off, 1);
    return 0;
}

static struct etag multipart_etag(uint64_t size, uint64_t part)
{
    unsigned char md[100 * 16], all[16];
    char tail[16];
    size_t n = 0;
    for (uint64_t off = 0; off < size; off += part)
        md5_of_pattern(off, MIN(part, size - off), md + 16 * n++);
    ck_assert_int_eq(EVP_Digest(md, 16 * n, all, NULL, EVP_md5(), NULL), 1);
    g_snprintf(tail, sizeof tail, "-%zu", n);
    return etag_of(all, tail);
}

START_TEST(etag_of_usual_parts_is_compared)
{
    static const struct {
        uint64_t size, part;
        int want;
    } rows[] = {
        {20 * MIB + 1, 8 * MIB, OBJ_SUM_FITS},
        {20 * MIB + 1, 16 * MIB, OBJ_SUM_FITS},
        {20 * MIB + 1, 15 * MIB, OBJ_SUM_FITS},
        {6 * MIB, 5 * MIB, OBJ_SUM_FITS},
        {3 * MIB, 5 * MIB, OBJ_SUM_FITS},
        {20 * MIB + 1, 11 * MIB, OBJ_SUM_DIFFERS}, /* as two parts of a usual size would differ */
        {20 * MIB + 1, 1 * MIB, OBJ_SUM_NONE},
    };
    char md5[33];
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct etag etag = multipart_etag(rows[i].size, rows[i].part);
        ck_assert(objstore_etag_is_sum(&etag));
        ck_assert_msg(objstore_sum(&etag, rows[i].size, read_pattern, NULL, md5) == rows[i].want, "row %zu", i);
        ck_assert_int_eq(md5[0] == '\0', rows[i].want == OBJ_SUM_NONE);
        etag.s[3] = etag.s[3] == '0' ? '1' : '0';
        ck_assert_int_ne(objstore_sum(&etag, rows[i].size, read_pattern, NULL, md5), OBJ_SUM_FITS);
    }
}
END_TEST

START_TEST(other_etags_tell_nothing)
{
    static const char *const tags[] = {"",
                                       "a",
                                       "0123456789abcdef0123456789abcde",
                                       "0123456789ABCDEF0123456789ABCDEF",
                                       "0123456789abcdef0123456789abcdef-",
                                       "0123456789abcdef0123456789abcdef-2x",
                                       "0123456789abcdef0123456789abcdef-99999"};
    for (size_t i = 0; i < G_N_ELEMENTS(tags); i++) {
        struct etag etag;
        g_strlcpy(etag.s, tags[i], sizeof etag.s);
        ck_assert_msg(!objstore_etag_is_sum(&etag), "%s", tags[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cache_check");
    TCase *tc = tcase_create("whole");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, byte_changed_on_the_way_is_not_in_a_complete_file, 0, 2);
    tcase_add_test(tc, file_that_always_comes_wrong_is_never_complete_and_cannot_be_read);
    tcase_add_test(tc, file_that_nobody_waits_for_is_compared_behind);
    tcase_add_test(tc, who_keeps_what_was_read_is_told_that_it_was_wrong);
    tcase_add_test(tc, what_was_fetched_before_a_restart_is_compared_after_it);
    tcase_add_test(tc, etag_that_is_no_sum_costs_one_file_a_second_fetch);
    tcase_add_test(tc, same_wrong_bytes_of_an_object_of_ours_are_refused);
    tcase_add_test(tc, object_of_ours_that_somebody_encrypted_is_read);
    tcase_add_test(tc, changed_file_is_not_compared);
    tcase_add_loop_test(tc, file_that_came_wrong_is_not_changed_before_it_comes_right, 0, 2);
    tcase_add_loop_test(tc, file_that_came_wrong_can_be_cut_to_nothing, 0, 2);
    tcase_add_test(tc, file_that_came_wrong_is_not_read_after_it_could_not_be_cut);
    tcase_add_test(tc, files_of_other_sizes_are_not_compared);
    tcase_add_test(tc, etag_of_usual_parts_is_compared);
    tcase_add_test(tc, other_etags_tell_nothing);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
