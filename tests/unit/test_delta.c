/* Parts shared with earlier objects: what is copied, what is sent, whatever becomes of the earlier object. */
#include "../../s3/objstore_driver.h"
#include "cache_delta.h"
#include "publish_fixture.h"

#define N_PARTS 16u
#define SIZE    (N_PARTS * PART - 1000)

/* What an owner of the cache keeps of objects. */
static struct {
    GPtrArray *objects; /* struct cache_delta_base, the newest last */
    unsigned n_gone;
    uint64_t saved_bytes; /* of the last one */
    uint64_t ask_us;      /* how long it takes to ask for them */
} known;

static void bases(void *ctx, const char *key, uint64_t part_bytes, GPtrArray *out)
{
    (void)ctx;
    (void)key;
    ck_assert_uint_eq(part_bytes, PART);
    g_usleep(known.ask_us);
    for (guint i = known.objects->len; i-- > 0;)
        g_ptr_array_add(out, cache_delta_base_ref(known.objects->pdata[i]));
}

static void gone(void *ctx, const struct cache_delta_base *base)
{
    (void)ctx;
    (void)base;
    known.n_gone++;
}

static void made(void *ctx, const struct cache_delta_base *object, uint64_t saved_bytes)
{
    (void)ctx;
    GBytes *parts = g_bytes_ref(object->parts);
    g_ptr_array_add(known.objects,
                    cache_delta_base_new(object->key, &object->etag, object->size, object->part_bytes, parts));
    known.saved_bytes = saved_bytes;
}

static const struct cache_delta_ops ops = {bases, gone, made};

static void unref(void *base)
{
    cache_delta_base_unref(base);
}

static void setup_delta(void)
{
    setup();
    known.objects = g_ptr_array_new_with_free_func(unref);
    known.n_gone = 0;
    known.ask_us = 0;
    cache_set_delta(rig.c, &ops, NULL);
}

static void teardown_delta(void)
{
    teardown();
    g_ptr_array_unref(known.objects);
}

static const struct cache_delta_base *newest(void)
{
    ck_assert_uint_gt(known.objects->len, 0);
    return known.objects->pdata[known.objects->len - 1];
}

static unsigned n_known_parts(const struct cache_delta_base *b)
{
    static const struct cache_delta_part none;
    const struct cache_delta_part *parts = g_bytes_get_data(b->parts, NULL);
    unsigned n = 0;
    for (size_t i = 0; i < cache_delta_n_parts(b); i++)
        n += memcmp(parts[i].sha256, none.sha256, sizeof(none.sha256)) != 0;
    return n;
}

/* A published object of that many bytes; its cache file is of no use any more. */
static void published(const char *key, uint64_t size, uint32_t seed)
{
    struct cfile *cf = new_file(size, seed);
    ck_assert_int_eq(publish(cf, key), 0);
    cache_file_unref(cf);
}

/* A file that has what that object has, but for the part. */
static struct cfile *changed_file(unsigned part)
{
    struct cfile *cf = new_file(SIZE, 1);
    write_at(cf, part * PART + 5, 10, 2);
    return cf;
}

struct moved {
    int64_t sent, saved;
};

static struct moved moved(void)
{
    return (struct moved){metric_get(M_uploaded_bytes), metric_get(M_saved_bytes)};
}

static void assert_moved(struct moved before, uint64_t sent, uint64_t saved)
{
    struct moved now = moved();
    ck_assert_int_eq(now.sent - before.sent, (int64_t)sent);
    ck_assert_int_eq(now.saved - before.saved, (int64_t)saved);
}

START_TEST(only_changed_parts_are_sent)
{
    published("a", SIZE, 1);
    ck_assert_uint_eq(known.saved_bytes, 0);
    struct moved before = moved();
    struct cfile *cf = changed_file(3);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, PART, SIZE - PART);
    ck_assert_uint_eq(known.saved_bytes, SIZE - PART);
    assert_published(cf, "b");
    ck_assert_str_eq(newest()->key, "b");
    ck_assert_uint_eq(n_known_parts(newest()), N_PARTS);
    cache_file_unref(cf);
}
END_TEST

START_TEST(same_key_written_over)
{
    published("a", SIZE, 1);
    struct moved before = moved();
    struct cfile *cf = changed_file(0);
    struct publish_req req = request("a");
    struct publish_result res = {0};
    req.cond = (struct obj_cond){.kind = OBJ_COND_ETAG, .etag = newest()->etag};
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    assert_moved(before, PART, SIZE - PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(parts_are_copied_while_the_file_is_written)
{
    const struct obj_meta meta = {.token = "token-1"};
    struct cfile *cf = NULL;
    published("a", SIZE, 1);
    struct moved before = moved();
    ck_assert_int_eq(cache_file_new(rig.c, INO, &cf), 0);
    cache_stream_begin(cf, "b", &meta);
    write_through(cf, SIZE, 1);
    EVENTUALLY(cache_uploaded_bytes(cf) == (N_PARTS - 2) * PART);
    assert_moved(before, 0, (N_PARTS - 2) * PART);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, 0, SIZE);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(predecessor_that_was_still_on_its_way)
{
    const struct obj_meta meta = {.token = "token-1"};
    struct cfile *cf = NULL;
    struct moved before = moved();
    ck_assert_int_eq(cache_file_new(rig.c, INO, &cf), 0);
    cache_stream_begin(cf, "b", &meta);
    write_at(cf, 0, 6 * PART, 1);
    EVENTUALLY(cache_uploaded_bytes(cf) == 5 * PART);
    published("a", SIZE, 1);
    known.ask_us = 50000; /* parts go on while the first of them asks */
    write_at(cf, 6 * PART, SIZE - 6 * PART, 1);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, SIZE + 5 * PART, SIZE - 5 * PART);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(end_of_a_shorter_object_is_no_part_of_a_longer_one)
{
    published("a", SIZE, 1);
    struct moved before = moved();
    struct cfile *cf = new_file(SIZE + 2 * PART, 1);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, 3 * PART - 1000, (N_PARTS - 1) * PART);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(each_part_comes_from_the_object_that_has_it)
{
    published("a", SIZE, 1);
    published("b", SIZE, 2);
    struct moved before = moved();
    struct cfile *cf = new_file(SIZE, 1);
    write_at(cf, 4 * PART, 3 * PART, 2);
    ck_assert_int_eq(publish(cf, "c"), 0);
    assert_moved(before, 0, SIZE);
    assert_published(cf, "c");
    cache_file_unref(cf);
}
END_TEST

/* What others do to the source before, and what makes it fail later. */
static const char *const gone_how[] = {"removed", "replaced", "op=head,nth=1,action=error:-ENOENT"};

START_TEST(source_that_is_gone_is_sent)
{
    published("a", SIZE, 1);
    if (_i == 0)
        ck_assert_int_eq(objstore_delete(rig.st, "a", NULL), 0);
    else if (_i == 1)
        ck_assert_int_eq(objstore_put(rig.st, "a", "other", 5, NULL, NULL, NULL), 0);
    else
        fault(gone_how[_i]); /* it went while the first part was copied: that copy does not count */
    struct moved before = moved();
    struct cfile *cf = changed_file(3);
    ck_assert_int_eq(publish(cf, "b"), 0);
    struct moved now = moved();
    ck_assert_int_eq(now.sent - before.sent + now.saved - before.saved, SIZE);
    ck_assert_int_ge(now.sent - before.sent, (int64_t)PART);
    ck_assert(_i == 2 || now.saved == before.saved);
    ck_assert_uint_eq(known.n_gone, 1);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(source_replaced_in_the_middle)
{
    const struct obj_meta meta = {.token = "token-1"};
    struct cfile *cf = NULL;
    published("a", SIZE, 1);
    struct moved before = moved();
    ck_assert_int_eq(cache_file_new(rig.c, INO, &cf), 0);
    cache_stream_begin(cf, "b", &meta);
    write_at(cf, 0, 6 * PART, 1);
    EVENTUALLY(cache_uploaded_bytes(cf) == 5 * PART);
    ck_assert_int_eq(objstore_put(rig.st, "a", "other", 5, NULL, NULL, NULL), 0);
    write_at(cf, 6 * PART, SIZE - 6 * PART, 1);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, SIZE - 5 * PART + strlen("other"), 5 * PART);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(failing_copies_are_given_up_at_once)
{
    rig.max_uploads = 1;
    stop();
    start();
    cache_set_delta(rig.c, &ops, NULL);
    published("a", SIZE, 1);
    published("a2", SIZE, 1);
    fault("op=part-copy,action=lost:-EIO");
    struct moved before = moved();
    int64_t requests = metric_get(M_requests_multipart);
    struct cfile *cf = changed_file(3);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, SIZE, 0);
    ck_assert_uint_eq(known.n_gone, 0);
    ck_assert_int_eq(metric_get(M_requests_multipart) - requests, N_PARTS + 3); /* create, one copy, complete */
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(store_without_part_copy_is_sent_all)
{
    published("a", SIZE, 1);
    objstore_set_caps(rig.st, objstore_caps(rig.st) & ~(uint32_t)CAP_PART_COPY);
    struct moved before = moved();
    struct cfile *cf = changed_file(3);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, SIZE, 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(small_objects_are_not_remembered)
{
    published("a", (DELTA_MIN_PARTS - 1) * PART, 1);
    ck_assert_uint_eq(known.objects->len, 0);
    published("b", (DELTA_MIN_PARTS - 1) * PART + 1, 1);
    ck_assert_uint_eq(known.objects->len, 1);
}
END_TEST

static int publish_but_for_the_gate(struct cfile *cf, const char *key)
{
    unsigned n = 0;
    struct publish_req req = request(key);
    struct publish_result res;
    req.gate = refuse;
    req.ctx = &n;
    return cache_publish(cf, &req, &res);
}

START_TEST(copied_part_that_is_written_again_is_sent)
{
    published("a", SIZE, 1);
    struct moved before = moved();
    struct cfile *cf = new_file(SIZE, 1);
    ck_assert_int_eq(publish_but_for_the_gate(cf, "b"), -EINPROGRESS);
    assert_moved(before, 0, SIZE);
    write_at(cf, 5 * PART + 1, 1, 7);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, PART, SIZE);
    ck_assert_uint_eq(known.saved_bytes, SIZE - PART);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(copied_parts_and_sums_survive_a_restart)
{
    struct cfile *again = NULL;
    struct cache_source none = {.key = NULL};
    published("a", SIZE, 1);
    struct cfile *cf = changed_file(3);
    uint64_t vid = cache_file_vid(cf);
    ck_assert_int_eq(publish_but_for_the_gate(cf, "b"), -EINPROGRESS);
    cache_file_unref(cf);
    stop();
    start();
    cache_set_delta(rig.c, &ops, NULL);
    struct moved before = moved();
    ck_assert_int_eq(objstore_delete(rig.st, "a", NULL), 0);
    known.saved_bytes = 0;
    ck_assert_int_eq(cache_file_open(rig.c, vid, INO, SIZE, &none, &again), 0);
    ck_assert_int_eq(publish(again, "b"), 0);
    assert_moved(before, 0, 0);
    ck_assert_uint_eq(known.saved_bytes, SIZE - PART);
    assert_published(again, "b");
    ck_assert_str_eq(newest()->key, "b");
    ck_assert_uint_eq(n_known_parts(newest()), N_PARTS);
    cache_file_unref(again);
}
END_TEST

START_TEST(upload_that_was_lost_begins_anew_with_copies)
{
    published("a", SIZE, 1);
    struct cfile *cf = changed_file(3);
    ck_assert_int_eq(publish_but_for_the_gate(cf, "b"), -EINPROGRESS);
    struct meta_upload rec;
    ck_assert_int_eq(meta_upload_get(rig.m, cache_file_vid(cf), &rec), 0);
    ck_assert_int_eq(objstore_mpu_abort(rig.st, rec.key, rec.upload_id), 0);
    meta_upload_clear(&rec);
    struct moved before = moved();
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_moved(before, PART, SIZE - PART);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

START_TEST(parts_of_an_edited_object_stay_known)
{
    struct publish_req req = request("a");
    struct publish_result res = {0};
    struct cfile *cf = new_file(SIZE, 1);
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    struct cache_source src = {.key = "a", .etag = res.etag, .limit = SIZE};
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    ck_assert_int_eq(cache_file_set_source(cf, &src), 0);
    write_at(cf, 9 * PART, 10, 5);
    req.copy_unchanged = true;
    req.cond = (struct obj_cond){.kind = OBJ_COND_ETAG, .etag = res.etag};
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    ck_assert_uint_eq(n_known_parts(newest()), N_PARTS);
    struct moved before = moved();
    struct cfile *next = new_file(SIZE, 1);
    write_at(next, 9 * PART, 10, 5);
    ck_assert_int_eq(publish(next, "b"), 0);
    assert_moved(before, 0, SIZE);
    assert_published(next, "b");
    cache_file_unref(next);
    cache_file_unref(cf);
}
END_TEST

/* ---- etags of parts that have the form of an MD5 ---- */

/* SUM: what is sent has its MD5, as in most stores, and a copy too; BAD_COPY: but what was copied is other bytes; ODD: each has one of its own (encryption with a key of the user's). */
enum etags { ETAGS_SUM, ETAGS_BAD_COPY, ETAGS_ODD };
static struct {
    struct objstore_driver drv;
    const struct objstore_driver *inner;
    enum etags how;
    GHashTable *known;  /* shown -> inner */
    pthread_mutex_t mu; /* thread sanitizer knows it, unlike those of glib */
    int n_looks;        /* atomic */
    bool is_gone;       /* the next look finds nothing; atomic */
} shown = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void show(struct obj_part *part, const void *bytes, size_t len)
{
    g_autofree char *md5 = g_compute_checksum_for_data(G_CHECKSUM_MD5, bytes, len);
    pthread_mutex_lock(&shown.mu);
    g_hash_table_insert(shown.known, g_strdup(md5), g_strdup(part->etag.s));
    pthread_mutex_unlock(&shown.mu);
    g_strlcpy(part->etag.s, md5, sizeof(part->etag.s));
}

static int part_sent(struct objstore *st, const char *key, const char *id, const void *buf, struct obj_part *part)
{
    int r = shown.inner->mpu_part(st, key, id, buf, part);
    if (r == 0 && shown.how == ETAGS_ODD)
        show(part, part->etag.s, strlen(part->etag.s));
    else if (r == 0)
        show(part, buf, part->size);
    return r;
}

static int part_copied(struct objstore *st, const char *key, const char *id, const char *src, const struct etag *etag,
                       uint64_t off, struct obj_part *part)
{
    int r = shown.inner->mpu_part_copy(st, key, id, src, etag, off, part);
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    if (r == 0 && shown.how == ETAGS_SUM) {
        ck_assert_int_eq(shown.inner->get(st, src, off, part->size, etag, collect, bytes, NULL), 0);
        show(part, bytes->data, bytes->len);
    } else if (r == 0) {
        show(part, part->etag.s, strlen(part->etag.s));
    }
    return r;
}

static int completed(struct objstore *st, const char *key, const char *id, const struct obj_part *parts, size_t n,
                     const char *token, const struct obj_cond *cond, struct etag *ret_etag)
{
    g_autofree struct obj_part *own = g_memdup2(parts, n * sizeof(*parts));
    for (size_t i = 0; i < n; i++)
        g_strlcpy(own[i].etag.s, g_hash_table_lookup(shown.known, parts[i].etag.s), sizeof(own[i].etag.s));
    return shown.inner->mpu_complete(st, key, id, own, n, token, cond, ret_etag);
}

static int looked(struct objstore *st, const char *key, struct obj_info *ret_info)
{
    (void)__atomic_add_fetch(&shown.n_looks, 1, __ATOMIC_RELAXED);
    if (__atomic_exchange_n(&shown.is_gone, false, __ATOMIC_RELAXED))
        return -ENOENT;
    return shown.inner->head(st, key, ret_info);
}

static void show_etags(enum etags how)
{
    shown.how = how;
    shown.inner = rig.st->drv;
    shown.known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    shown.drv = *rig.st->drv;
    shown.drv.mpu_part = part_sent;
    shown.drv.mpu_part_copy = part_copied;
    shown.drv.mpu_complete = completed;
    shown.drv.head = looked;
    rig.st->drv = &shown.drv;
    objstore_set_caps(rig.st, objstore_caps(rig.st) | CAP_ETAG_IS_MD5);
}

static void teardown_shown(void)
{
    teardown_delta();
    g_hash_table_unref(shown.known);
}

/* How often the store was asked for an object, for `b` after it was made and for what its parts were copied from. */
static int looks_for_next(struct moved *ret_before)
{
    published("a", SIZE, 1);
    *ret_before = moved();
    shown.n_looks = 0;
    struct cfile *cf = changed_file(3);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_published(cf, "b");
    cache_file_unref(cf);
    return shown.n_looks;
}

START_TEST(etag_that_is_the_sum_of_a_copy_is_enough)
{
    struct moved before;
    show_etags(ETAGS_SUM);
    ck_assert_int_eq(looks_for_next(&before), 1);
    assert_moved(before, PART, SIZE - PART);
}
END_TEST

START_TEST(copy_of_which_the_sum_is_another_is_not_used)
{
    struct moved before;
    show_etags(ETAGS_BAD_COPY);
    ck_assert_int_eq(looks_for_next(&before), 1);
    assert_moved(before, SIZE, 0);
}
END_TEST

/* The etag of a PUT was an MD5 when the store was probed; those of parts look so and are none. */
START_TEST(etags_that_are_no_sums_do_not_speak_against_a_copy)
{
    struct moved before;
    show_etags(ETAGS_ODD);
    ck_assert_int_eq(looks_for_next(&before), N_PARTS);
    assert_moved(before, PART, SIZE - PART);
    struct cfile *cf = changed_file(3); /* the next one, of what was copied itself */
    before = moved();
    ck_assert_int_eq(publish(cf, "c"), 0);
    assert_moved(before, 0, SIZE);
    assert_published(cf, "c");
    cache_file_unref(cf);
}
END_TEST

/* 0: another object stands there when it is looked at; 1: nothing does. */
START_TEST(copies_without_a_sum_need_their_source)
{
    struct moved before;
    show_etags(ETAGS_ODD);
    published("a", SIZE, 1);
    before = moved();
    struct cfile *cf = changed_file(3);
    if (_i == 0)
        ck_assert_int_eq(objstore_put(rig.st, "a", "other", 5, NULL, NULL, NULL), 0);
    else
        shown.is_gone = true;
    ck_assert_int_eq(publish(cf, "b"), 0);
    ck_assert_int_ge(moved().sent - before.sent, (int64_t)PART);
    ck_assert_uint_eq(known.n_gone, 1);
    assert_published(cf, "b");
    cache_file_unref(cf);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("delta");
    TCase *tc = tcase_create("delta");
    tcase_add_checked_fixture(tc, setup_delta, teardown_delta);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, only_changed_parts_are_sent);
    tcase_add_test(tc, same_key_written_over);
    tcase_add_test(tc, parts_are_copied_while_the_file_is_written);
    tcase_add_test(tc, predecessor_that_was_still_on_its_way);
    tcase_add_test(tc, end_of_a_shorter_object_is_no_part_of_a_longer_one);
    tcase_add_test(tc, each_part_comes_from_the_object_that_has_it);
    tcase_add_loop_test(tc, source_that_is_gone_is_sent, 0, G_N_ELEMENTS(gone_how));
    tcase_add_test(tc, source_replaced_in_the_middle);
    tcase_add_test(tc, failing_copies_are_given_up_at_once);
    tcase_add_test(tc, store_without_part_copy_is_sent_all);
    tcase_add_test(tc, small_objects_are_not_remembered);
    tcase_add_test(tc, copied_part_that_is_written_again_is_sent);
    tcase_add_test(tc, copied_parts_and_sums_survive_a_restart);
    tcase_add_test(tc, upload_that_was_lost_begins_anew_with_copies);
    tcase_add_test(tc, parts_of_an_edited_object_stay_known);
    tc = tcase_create("etags");
    tcase_add_checked_fixture(tc, setup_delta, teardown_shown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, etag_that_is_the_sum_of_a_copy_is_enough);
    tcase_add_test(tc, copy_of_which_the_sum_is_another_is_not_used);
    tcase_add_test(tc, etags_that_are_no_sums_do_not_speak_against_a_copy);
    tcase_add_loop_test(tc, copies_without_a_sum_need_their_source, 0, 2);
    return run_suite(s);
}
