/*
 * Publishing against a directory store behind the fault driver: what becomes visible, what is sent again, what survives a restart.
 * Parts are 64 KiB, the smallest the directory store takes.
 */
#include "base/clock.h"
#include "base/metric.h"
#include "cache.h"
#include "upload.h"

#include <check.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART (64ull << 10)
#define INO  77

static struct {
    char *root, *dir, *objects;
    int lock_fd;
    struct objstore *st;
    struct meta *m;
    struct cache *c;
    unsigned max_uploads;
} rig;

static void start(void)
{
    char *msg = NULL;
    bool fresh;
    struct cache_config cfg = {
        .dir = rig.dir,
        .size_bytes = 4ull << 30,
        .free_bytes = 1,
        .max_downloads = 2,
        .max_uploads = rig.max_uploads,
        .part_bytes = PART,
        .get_bytes = 1 << 20,
        .readahead_bytes = 1 << 20,
        .op_timeout_ns = 5 * NS_PER_S,
    };
    ck_assert_int_eq(cache_dir_prepare(rig.dir, &rig.lock_fd, &msg), 0);
    ck_assert_int_eq(meta_open(rig.dir, "test", &rig.m, &fresh, &msg), 0);
    ck_assert_int_eq(cache_open(&cfg, rig.m, rig.st, &rig.c), 0);
}

static void stop(void)
{
    cache_close(rig.c);
    meta_close(rig.m);
    close(rig.lock_fd);
}

static void setup(void)
{
    char *msg = NULL;
    struct objstore *inner = NULL;
    rig.max_uploads = 4;
    rig.root = g_dir_make_tmp("sluice-publish-XXXXXX", NULL);
    rig.dir = g_build_filename(rig.root, "cache", NULL);
    rig.objects = g_build_filename(rig.root, "objects", NULL);
    ck_assert_int_eq(g_mkdir(rig.objects, 0700), 0);
    g_autofree char *source = g_strconcat("file://", rig.objects, NULL);
    struct objstore_config sc = {.source = source, .op_timeout_ns = 2 * NS_PER_S, .max_connections = 16};
    ck_assert_int_eq(objstore_open(&sc, &inner, &msg), 0);
    ck_assert_int_eq(objstore_fault_wrap(inner, "", &rig.st), 0);
    start();
}

static void teardown(void)
{
    stop();
    objstore_close(rig.st);
    g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", rig.root);
    ck_assert_int_eq(system(cmd), 0);
    g_free(rig.objects);
    g_free(rig.dir);
    g_free(rig.root);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(rig.st, rules), 0);
}

static void fill(uint8_t *buf, uint64_t len, uint64_t off, uint32_t seed)
{
    for (uint64_t i = 0; i < len; i++)
        buf[i] = (uint8_t)(((off + i) * 2654435761u + seed * 1000003u) >> 13);
}

static void write_at(struct cfile *cf, uint64_t off, uint64_t len, uint32_t seed)
{
    g_autofree uint8_t *buf = g_malloc(len + 1);
    fill(buf, len, off, seed);
    if (len)
        ck_assert_int_eq(cache_file_write(cf, buf, len, off), (ssize_t)len);
}

/* In steps of a part, as a writer does. */
static void write_through(struct cfile *cf, uint64_t len, uint32_t seed)
{
    for (uint64_t off = 0; off < len; off += PART)
        write_at(cf, off, MIN(PART, len - off), seed);
}

static struct cfile *new_file(uint64_t len, uint32_t seed)
{
    struct cfile *cf = NULL;
    ck_assert_int_eq(cache_file_new(rig.c, INO, &cf), 0);
    write_at(cf, 0, len, seed);
    return cf;
}

static int collect(void *ctx, uint64_t off, const void *buf, size_t len)
{
    (void)off;
    g_byte_array_append(ctx, buf, (guint)len);
    return 0;
}

static GByteArray *object(const char *key)
{
    GByteArray *out = g_byte_array_new();
    int r = objstore_get(rig.st, key, 0, 0, NULL, collect, out, NULL);
    if (r == 0)
        return out;
    ck_assert_int_eq(r, -ENOENT);
    g_byte_array_unref(out);
    return NULL;
}

static bool visible(const char *key)
{
    GByteArray *o = object(key);
    if (o)
        g_byte_array_unref(o);
    return o != NULL;
}

/* The object is what the file is. */
static void assert_published(struct cfile *cf, const char *key)
{
    GByteArray *o = object(key);
    uint64_t size = cache_file_size(cf);
    ck_assert_ptr_nonnull(o);
    ck_assert_uint_eq(o->len, size);
    g_autofree uint8_t *want = g_malloc(size + 1);
    if (size)
        ck_assert_int_eq(cache_file_read(cf, want, size, 0), (ssize_t)size);
    ck_assert_int_eq(memcmp(want, o->data ? o->data : want, size), 0);
    g_byte_array_unref(o);
}

static struct publish_req request(const char *key)
{
    return (struct publish_req){.key = key, .meta = {.token = "token-1"}, .cond = {.kind = OBJ_COND_ABSENT}};
}

static int publish(struct cfile *cf, const char *key)
{
    struct publish_req req = request(key);
    struct publish_result res = {0};
    int r = cache_publish(cf, &req, &res);
    if (r == 0) {
        ck_assert_uint_eq(res.size, cache_file_size(cf));
        ck_assert(etag_is_set(&res.etag));
        ck_assert_str_eq(res.token, "token-1");
    }
    return r;
}

static int count_upload(void *ctx, const char *key, const char *upload_id)
{
    (void)key;
    (void)upload_id;
    (*(unsigned *)ctx)++;
    return 0;
}

static unsigned n_uploads(void)
{
    unsigned n = 0;
    ck_assert_int_eq(objstore_mpu_list(rig.st, "", count_upload, &n), 0);
    return n;
}

static bool has_record(uint64_t vid)
{
    struct meta_upload rec;
    if (meta_upload_get(rig.m, vid, &rec) < 0)
        return false;
    meta_upload_clear(&rec);
    return true;
}

/* Waits for what goes on behind. */
#define EVENTUALLY(cond)                                                                                               \
    do {                                                                                                               \
        for (unsigned tries_ = 0; !(cond) && tries_ < 500; tries_++)                                                   \
            g_usleep(10000);                                                                                           \
        ck_assert_msg(cond, "never came true: " #cond);                                                                \
    } while (0)

/* ---- plain ---- */

static const uint64_t sizes[] = {0, 1, 5000, PART - 1, PART, PART + 1, 2 * PART, 7 * PART + 12345};

START_TEST(any_size_arrives_whole)
{
    struct cfile *cf = new_file(sizes[_i], 3);
    ck_assert_int_eq(publish(cf, "dir/a"), 0);
    assert_published(cf, "dir/a");
    ck_assert_uint_eq(n_uploads(), 0);
    ck_assert(!has_record(cache_file_vid(cf)));
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_condition_that_fails_is_estale_and_changes_nothing)
{
    struct cfile *a = new_file(sizes[_i], 1), *b = new_file(sizes[_i], 2);
    ck_assert_int_eq(publish(a, "a"), 0);
    ck_assert_int_eq(publish(b, "a"), -ESTALE);
    assert_published(a, "a");
    cache_file_unref(a);
    cache_file_unref(b);
    EVENTUALLY(true);
}
END_TEST

static void add_up(void *ctx, uint64_t bytes)
{
    uint64_t *last = ctx;
    ck_assert_uint_ge(bytes, *last);
    *last = bytes;
}

START_TEST(progress_grows_to_the_size)
{
    uint64_t last = 0;
    struct cfile *cf = new_file(6 * PART + 1, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    req.progress = add_up;
    req.ctx = &last;
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    ck_assert_uint_eq(last, 6 * PART + 1);
    cache_file_unref(cf);
}
END_TEST

/* ---- streaming ---- */

static struct cfile *streamed(const char *key, unsigned n_parts)
{
    struct obj_meta meta = {.token = "token-1"};
    struct cfile *cf = new_file(0, 0);
    cache_stream_begin(cf, key, &meta);
    write_through(cf, n_parts * PART, 1);
    return cf;
}

START_TEST(parts_are_stored_before_publish_and_invisible)
{
    int64_t before = metric_get(M_parts_streamed);
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(metric_get(M_parts_streamed) - before == 7);
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 7 * PART);
    ck_assert(!visible("a"));
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_file_of_two_parts_creates_no_upload)
{
    int64_t before = metric_get(M_requests_multipart);
    struct cfile *cf = streamed("a", 2);
    g_usleep(50000);
    ck_assert_int_eq(metric_get(M_requests_multipart), before);
    cache_file_unref(cf);
}
END_TEST

START_TEST(rewritten_header_is_sent_again_alone)
{
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    int64_t resent = metric_get(M_parts_resent), sent = metric_get(M_uploaded_bytes);
    write_at(cf, 0, 100, 9);
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 6 * PART);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_parts_resent) - resent, 1);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, 2 * (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(same_bytes_written_again_are_not_sent)
{
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    int64_t sent = metric_get(M_uploaded_bytes);
    write_at(cf, 0, 3 * PART, 1);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(writers_out_of_order_are_streamed_when_gaps_close)
{
    struct obj_meta meta = {.token = "token-1"};
    struct cfile *cf = new_file(0, 0);
    cache_stream_begin(cf, "a", &meta);
    static const unsigned order[] = {3, 1, 5, 7, 2, 6, 4};
    for (unsigned i = 0; i < G_N_ELEMENTS(order); i++)
        write_at(cf, order[i] * PART, PART, 1);
    g_usleep(30000);
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 0);
    write_at(cf, 0, PART, 1);
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(wrong_prediction_aborts_and_sends_from_the_cache)
{
    int64_t wrong = metric_get(M_wrong_key_predictions);
    struct cfile *cf = streamed("guess", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    ck_assert_int_eq(publish(cf, "real"), 0);
    ck_assert_int_eq(metric_get(M_wrong_key_predictions) - wrong, 1);
    assert_published(cf, "real");
    ck_assert(!visible("guess"));
    ck_assert_uint_eq(n_uploads(), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(truncated_stream_is_published_small)
{
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) > 0);
    ck_assert_int_eq(cache_file_truncate(cf, 10), 0);
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    ck_assert_uint_eq(n_uploads(), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(shrunk_and_grown_again_has_zeros)
{
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    ck_assert_int_eq(cache_file_truncate(cf, 3 * PART + 5), 0);
    ck_assert_int_eq(cache_file_truncate(cf, 6 * PART), 0);
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(aborted_stream_leaves_nothing)
{
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) > 0);
    cache_stream_abort(cf);
    ck_assert_uint_eq(n_uploads(), 0);
    ck_assert(!has_record(cache_file_vid(cf)));
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(forgotten_file_takes_its_upload_along)
{
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) > 0);
    cache_forget(rig.c, cache_file_vid(cf));
    cache_file_unref(cf);
    EVENTUALLY(n_uploads() == 0);
}
END_TEST

START_TEST(failing_stream_is_made_up_for_by_publish)
{
    fault("op=part,nth=2,count=3,action=error:-EIO");
    struct cfile *cf = streamed("a", 12);
    g_usleep(50000);
    fault("");
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

/* ---- gate, failures ---- */

static int refuse(void *ctx)
{
    (*(unsigned *)ctx)++;
    return -EINPROGRESS;
}

START_TEST(refusing_gate_shows_nothing_and_keeps_the_parts)
{
    unsigned n = 0;
    struct cfile *cf = new_file(8 * PART, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    req.gate = refuse;
    req.ctx = &n;
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EINPROGRESS);
    ck_assert_uint_eq(n, 1);
    ck_assert(!visible("a"));
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 8 * PART);
    int64_t sent = metric_get(M_uploaded_bytes), multi = metric_get(M_requests_multipart);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes), sent);
    ck_assert_int_eq(metric_get(M_requests_multipart) - multi, 1);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(refusing_gate_holds_small_files_too)
{
    unsigned n = 0;
    struct cfile *cf = new_file(100, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    req.gate = refuse;
    req.ctx = &n;
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EINPROGRESS);
    ck_assert(!visible("a"));
    ck_assert_int_eq(publish(cf, "a"), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(part_that_fails_five_times_costs_only_itself)
{
    struct cfile *cf = new_file(8 * PART, 1);
    int64_t sent = metric_get(M_uploaded_bytes);
    fault("op=part,nth=3,count=5,action=error:-EIO");
    int r = -EIO, tries = 0;
    for (; r == -EIO && tries < 6; tries++) {
        ck_assert(!visible("a"));
        r = publish(cf, "a");
    }
    ck_assert_int_eq(r, 0);
    ck_assert_int_gt(tries, 1);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, 8 * (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

static const char *const complete_faults[] = {
    "op=complete,nth=1,action=error:-EIO",
    "op=complete,nth=1,action=lost:-EIO",
    "op=head,nth=1,action=error:-EIO",
};

START_TEST(failed_complete_is_tried_again_without_sending)
{
    struct cfile *cf = new_file(8 * PART, 1);
    fault(complete_faults[_i]);
    ck_assert_int_eq(publish(cf, "a"), -EIO);
    int64_t sent = metric_get(M_uploaded_bytes);
    struct publish_req req = request("a");
    struct publish_result res;
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes), sent);
    ck_assert_str_eq(res.token, "token-1");
    assert_published(cf, "a");
    ck_assert(!has_record(cache_file_vid(cf)));
    cache_file_unref(cf);
}
END_TEST

START_TEST(lost_upload_is_begun_anew)
{
    struct cfile *cf = new_file(8 * PART, 1);
    fault(_i == 0 ? "op=part,nth=4,count=1,action=error:-ENOENT" : "op=complete,nth=1,count=1,action=error:-ENOENT");
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    ck_assert_uint_eq(n_uploads(), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(upload_lost_for_ever_is_an_error)
{
    struct cfile *cf = new_file(8 * PART, 1);
    fault("op=part,nth=1,count=1000,action=error:-ENOENT");
    ck_assert_int_eq(publish(cf, "a"), -EIO);
    ck_assert(!visible("a"));
    cache_file_unref(cf);
}
END_TEST

START_TEST(corruption_on_the_wire_is_repaired)
{
    struct cfile *cf = new_file(8 * PART, 1);
    fault("op=part,nth=4,count=1,action=corrupt:5");
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(lasting_corruption_is_not_published)
{
    struct cfile *cf = new_file(8 * PART, 1);
    fault("op=part,nth=4,count=100,action=corrupt:5");
    ck_assert_int_eq(publish(cf, "a"), -EBADMSG);
    ck_assert(!visible("a"));
    fault("");
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

/* ---- edits ---- */

static struct cfile *published(const char *key, uint64_t size, struct etag *ret_etag)
{
    struct publish_req req = request(key);
    struct publish_result res;
    struct cfile *cf = new_file(size, 1);
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    struct cache_source src = {.key = key, .etag = res.etag, .limit = size};
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    ck_assert_int_eq(cache_file_set_source(cf, &src), 0);
    *ret_etag = res.etag;
    return cf;
}

static int publish_edit(struct cfile *cf, const char *key, const struct etag *etag)
{
    struct publish_req req = request(key);
    struct publish_result res;
    req.copy_unchanged = true;
    req.meta.token = "token-2";
    req.cond = (struct obj_cond){.kind = OBJ_COND_ETAG, .etag = *etag};
    int r = cache_publish(cf, &req, &res);
    if (r < 0)
        return r;
    ck_assert_str_eq(res.token, "token-2");
    struct cache_source src = {.key = key, .etag = res.etag, .limit = res.size};
    return cache_file_set_source(cf, &src);
}

START_TEST(small_edit_copies_the_rest_in_the_store)
{
    struct etag etag;
    struct cfile *cf = published("a", 64 * PART, &etag);
    int64_t sent = metric_get(M_uploaded_bytes), copied = metric_get(M_parts_copied);
    write_at(cf, 20 * PART + 100, PART, 2);
    ck_assert_int_eq(publish_edit(cf, "a", &etag), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, 2 * (int64_t)PART);
    ck_assert_int_eq(metric_get(M_parts_copied) - copied, 62);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(failing_part_copy_falls_back_to_sending)
{
    struct etag etag;
    struct cfile *cf = published("a", 16 * PART, &etag);
    write_at(cf, 3 * PART, 10, 2);
    fault("op=part-copy,nth=1,count=100,action=error:-EINVAL");
    ck_assert_int_eq(publish_edit(cf, "a", &etag), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(absent_bytes_are_fetched_for_parts_that_changed)
{
    struct etag etag;
    struct cfile *cf = published("a", 16 * PART, &etag), *again = NULL;
    uint64_t size = 16 * PART;
    cache_file_unref(cf);
    struct cache_source src = {.key = "a", .etag = etag, .limit = size};
    ck_assert_int_eq(cache_file_open(rig.c, 0, INO, size, &src, &again), 0);
    ck_assert_uint_eq(cache_file_present_bytes(again), 0);
    write_at(again, 5 * PART + 10, 100, 2);
    ck_assert_int_eq(cache_file_truncate(again, size + 100), 0);
    ck_assert_int_eq(_i == 0 ? publish_edit(again, "a", &etag) : publish(again, "b"), 0);
    assert_published(again, _i == 0 ? "a" : "b");
    cache_file_unref(again);
}
END_TEST

START_TEST(edit_after_refused_gate_uses_copied_parts_once)
{
    unsigned n = 0;
    struct etag etag;
    struct cfile *cf = published("a", 16 * PART, &etag);
    struct publish_req req = request("a");
    struct publish_result res;
    req.copy_unchanged = true;
    req.cond = (struct obj_cond){.kind = OBJ_COND_ETAG, .etag = etag};
    req.gate = refuse;
    req.ctx = &n;
    write_at(cf, 3 * PART, 10, 2);
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EINPROGRESS);
    write_at(cf, 9 * PART, 10, 2);
    int64_t copied = metric_get(M_parts_copied), sent = metric_get(M_uploaded_bytes);
    req.gate = NULL;
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    ck_assert_int_eq(metric_get(M_parts_copied), copied);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

/* ---- restart ---- */

static struct cfile *reopen(uint64_t vid, uint64_t size)
{
    struct cfile *cf = NULL;
    struct cache_source none = {.key = NULL};
    stop();
    start();
    ck_assert_int_eq(cache_file_open(rig.c, vid, INO, size, &none, &cf), 0);
    return cf;
}

static struct cfile *stored_then_restarted(uint64_t size)
{
    unsigned n = 0;
    struct cfile *cf = new_file(size, 1);
    uint64_t vid = cache_file_vid(cf);
    struct publish_req req = request("a");
    struct publish_result res;
    req.gate = refuse;
    req.ctx = &n;
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EINPROGRESS);
    cache_file_unref(cf);
    return reopen(vid, size);
}

START_TEST(parts_are_not_sent_again_after_restart)
{
    struct cfile *cf = stored_then_restarted(8 * PART + 7);
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes), sent);
    assert_published(cf, "a");
    ck_assert(!has_record(cache_file_vid(cf)));
    cache_file_unref(cf);
}
END_TEST

START_TEST(part_changed_over_restart_is_sent_again)
{
    struct cfile *cf = stored_then_restarted(8 * PART);
    write_at(cf, 4 * PART + 1, 100, 5);
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

START_TEST(complete_whose_reply_was_lost_is_settled_after_restart)
{
    struct cfile *cf = new_file(8 * PART, 1);
    uint64_t vid = cache_file_vid(cf);
    fault("op=complete,nth=1,action=lost:-EIO");
    ck_assert_int_eq(publish(cf, "a"), -EIO);
    cache_file_unref(cf);
    cf = reopen(vid, 8 * PART);
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes), sent);
    assert_published(cf, "a");
    ck_assert(!has_record(vid));
    cache_file_unref(cf);
}
END_TEST

START_TEST(completed_version_is_not_taken_for_a_newer_one)
{
    struct cfile *cf = new_file(8 * PART, 1);
    uint64_t vid = cache_file_vid(cf);
    fault("op=complete,nth=1,action=lost:-EIO");
    ck_assert_int_eq(publish(cf, "a"), -EIO);
    write_at(cf, 0, 10, 2);
    cache_file_unref(cf);
    cf = reopen(vid, 8 * PART);
    ck_assert_int_eq(publish(cf, "a"), -ESTALE);
    cache_file_unref(cf);
}
END_TEST

START_TEST(upload_under_another_key_is_aborted_after_restart)
{
    struct cfile *cf = stored_then_restarted(8 * PART);
    ck_assert_int_eq(publish(cf, "b"), 0);
    assert_published(cf, "b");
    ck_assert_uint_eq(n_uploads(), 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(only_our_stale_uploads_are_aborted)
{
    char *other = NULL;
    struct obj_meta meta = {.token = "somebody"};
    struct cfile *keep = stored_then_restarted(8 * PART);
    cache_file_unref(keep);
    struct cfile *cf = new_file(8 * PART, 2);
    unsigned n = 0;
    struct publish_req req = request("b");
    struct publish_result res;
    req.gate = refuse;
    req.ctx = &n;
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EINPROGRESS);
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    uint64_t vid = cache_file_vid(cf);
    cache_file_unref(cf);
    ck_assert_int_eq(objstore_mpu_create(rig.st, "b", &meta, &other), 0);
    stop();
    start();
    ck_assert_uint_eq(n_uploads(), 3);
    cache_abort_stale_uploads(rig.c);
    ck_assert_uint_eq(n_uploads(), 2);
    ck_assert(!has_record(vid));
    ck_assert_int_eq(objstore_mpu_abort(rig.st, "b", other), 0);
    g_free(other);
}
END_TEST

/* ---- changes meanwhile ---- */

static struct cfile *gate_file;
static int change_at_gate(void *ctx)
{
    write_at(gate_file, 5, 1, *(uint32_t *)ctx);
    return 0;
}

START_TEST(change_during_publish_is_eagain_and_shows_nothing)
{
    uint32_t seed = 11;
    gate_file = new_file(_i == 0 ? 8 * PART : 100, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    req.gate = change_at_gate;
    req.ctx = &seed;
    ck_assert_int_eq(cache_publish(gate_file, &req, &res), -EAGAIN);
    ck_assert(!visible("a"));
    ck_assert_int_eq(publish(gate_file, "a"), 0);
    assert_published(gate_file, "a");
    cache_file_unref(gate_file);
}
END_TEST

START_TEST(snapshot_keeps_the_state_from_before_the_gate)
{
    uint32_t seed = 11;
    gate_file = new_file(8 * PART, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    req.snapshot = true;
    req.gate = change_at_gate;
    req.ctx = &seed;
    ck_assert_int_eq(cache_publish(gate_file, &req, &res), 0);
    GByteArray *o = object("a");
    g_autofree uint8_t *want = g_malloc(8 * PART);
    fill(want, 8 * PART, 0, 1);
    ck_assert_uint_eq(o->len, 8 * PART);
    ck_assert_int_eq(memcmp(o->data, want, o->len), 0);
    g_byte_array_unref(o);
    cache_file_unref(gate_file);
}
END_TEST

struct counter {
    struct cfile *cf;
    uint64_t size;
    int stop; /* atomic */
};

static void *count_up(void *arg)
{
    struct counter *w = arg;
    g_autofree uint8_t *buf = g_malloc(w->size);
    for (uint8_t v = 2; !__atomic_load_n(&w->stop, __ATOMIC_RELAXED); v++) {
        memset(buf, v, w->size);
        ck_assert_int_eq(cache_file_write(w->cf, buf, w->size, 0), (ssize_t)w->size);
        g_usleep(v % 8 == 0 ? 100000 : 500);
    }
    return NULL;
}

START_TEST(snapshot_under_a_writer_holds_one_state)
{
    struct counter w = {.size = _i == 0 ? 16 * PART : 1000};
    pthread_t t;
    struct obj_meta meta = {.token = "token-1"};
    w.cf = new_file(0, 0);
    cache_stream_begin(w.cf, "k", &meta);
    g_autofree uint8_t *buf = g_malloc(w.size);
    memset(buf, 1, w.size);
    ck_assert_int_eq(cache_file_write(w.cf, buf, w.size, 0), (ssize_t)w.size);
    ck_assert_int_eq(pthread_create(&t, NULL, count_up, &w), 0);
    unsigned n_done = 0;
    for (int k = 0; k < 8; k++) {
        struct publish_req req = request("k");
        struct publish_result res;
        req.cond.kind = OBJ_COND_NONE;
        req.snapshot = true;
        int r = cache_publish(w.cf, &req, &res);
        ck_assert_msg(r == 0 || r == -EAGAIN, "r=%d", r);
        if (r < 0)
            continue;
        n_done++;
        GByteArray *o = object("k");
        ck_assert_uint_eq(o->len, w.size);
        for (guint i = 1; i < o->len; i++)
            ck_assert_msg(o->data[i] == o->data[0], "byte %u of a mixed snapshot", i);
        g_byte_array_unref(o);
    }
    __atomic_store_n(&w.stop, 1, __ATOMIC_RELAXED);
    (void)pthread_join(t, NULL);
    ck_assert_uint_gt(n_done, 0);
    cache_file_unref(w.cf);
}
END_TEST

/* ---- many at once ---- */

struct one {
    struct cfile *cf;
    char key[16];
    int r;
};

static void *publish_one(void *arg)
{
    struct one *o = arg;
    struct publish_req req = request(o->key);
    struct publish_result res;
    o->r = cache_publish(o->cf, &req, &res);
    return NULL;
}

START_TEST(sixteen_writers_stay_within_the_budget)
{
    struct one w[16];
    pthread_t t[16];
    fault("op=part,action=delay:2ms");
    for (unsigned i = 0; i < 16; i++) {
        w[i].cf = new_file((i % 4 == 3 ? 1 : 12) * PART, i);
        g_snprintf(w[i].key, sizeof w[i].key, "k%u", i);
        ck_assert_int_eq(pthread_create(&t[i], NULL, publish_one, &w[i]), 0);
    }
    for (unsigned i = 0; i < 16; i++)
        (void)pthread_join(t[i], NULL);
    for (unsigned i = 0; i < 16; i++) {
        ck_assert_int_eq(w[i].r, 0);
        assert_published(w[i].cf, w[i].key);
        cache_file_unref(w[i].cf);
    }
    uint64_t budget = upload_pool_budget_bytes(rig.c->uploads), peak = upload_pool_peak_bytes(rig.c->uploads);
    ck_assert_uint_eq(budget, 4 * PART);
    ck_assert_uint_le(peak, budget);
    ck_assert_uint_ge(peak, 2 * PART);
}
END_TEST

START_TEST(a_late_small_session_does_not_wait_for_a_long_one)
{
    struct one a = {.key = "long"}, b = {.key = "short"};
    pthread_t t;
    fault("op=part,action=delay:20ms");
    a.cf = new_file(200 * PART, 1);
    b.cf = new_file(4 * PART, 2);
    ck_assert_int_eq(pthread_create(&t, NULL, publish_one, &a), 0);
    EVENTUALLY(cache_uploaded_bytes(a.cf) > 4 * PART);
    publish_one(&b);
    ck_assert_int_eq(b.r, 0);
    ck_assert_uint_lt(cache_uploaded_bytes(a.cf), 100 * PART);
    ck_assert(!visible("long"));
    (void)pthread_join(t, NULL);
    ck_assert_int_eq(a.r, 0);
    cache_file_unref(a.cf);
    cache_file_unref(b.cf);
}
END_TEST

static TCase *add_case(Suite *s, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    return tc;
}

static void add_plain(Suite *s)
{
    TCase *tc = add_case(s, "plain");
    tcase_add_loop_test(tc, any_size_arrives_whole, 0, G_N_ELEMENTS(sizes));
    tcase_add_loop_test(tc, a_condition_that_fails_is_estale_and_changes_nothing, 2, G_N_ELEMENTS(sizes));
    tcase_add_test(tc, progress_grows_to_the_size);
    tc = add_case(s, "stream");
    tcase_add_test(tc, parts_are_stored_before_publish_and_invisible);
    tcase_add_test(tc, a_file_of_two_parts_creates_no_upload);
    tcase_add_test(tc, rewritten_header_is_sent_again_alone);
    tcase_add_test(tc, same_bytes_written_again_are_not_sent);
    tcase_add_test(tc, writers_out_of_order_are_streamed_when_gaps_close);
    tcase_add_test(tc, wrong_prediction_aborts_and_sends_from_the_cache);
    tcase_add_test(tc, truncated_stream_is_published_small);
    tcase_add_test(tc, shrunk_and_grown_again_has_zeros);
    tcase_add_test(tc, aborted_stream_leaves_nothing);
    tcase_add_test(tc, forgotten_file_takes_its_upload_along);
    tcase_add_test(tc, failing_stream_is_made_up_for_by_publish);
}

static void add_failures(Suite *s)
{
    TCase *tc = add_case(s, "failures");
    tcase_add_test(tc, refusing_gate_shows_nothing_and_keeps_the_parts);
    tcase_add_test(tc, refusing_gate_holds_small_files_too);
    tcase_add_test(tc, part_that_fails_five_times_costs_only_itself);
    tcase_add_loop_test(tc, failed_complete_is_tried_again_without_sending, 0, G_N_ELEMENTS(complete_faults));
    tcase_add_loop_test(tc, lost_upload_is_begun_anew, 0, 2);
    tcase_add_test(tc, upload_lost_for_ever_is_an_error);
    tcase_add_test(tc, corruption_on_the_wire_is_repaired);
    tcase_add_test(tc, lasting_corruption_is_not_published);
    tc = add_case(s, "edits");
    tcase_add_test(tc, small_edit_copies_the_rest_in_the_store);
    tcase_add_test(tc, failing_part_copy_falls_back_to_sending);
    tcase_add_loop_test(tc, absent_bytes_are_fetched_for_parts_that_changed, 0, 2);
    tcase_add_test(tc, edit_after_refused_gate_uses_copied_parts_once);
}

static void add_life(Suite *s)
{
    TCase *tc = add_case(s, "restart");
    tcase_add_test(tc, parts_are_not_sent_again_after_restart);
    tcase_add_test(tc, part_changed_over_restart_is_sent_again);
    tcase_add_test(tc, complete_whose_reply_was_lost_is_settled_after_restart);
    tcase_add_test(tc, completed_version_is_not_taken_for_a_newer_one);
    tcase_add_test(tc, upload_under_another_key_is_aborted_after_restart);
    tcase_add_test(tc, only_our_stale_uploads_are_aborted);
    tc = add_case(s, "changes");
    tcase_add_loop_test(tc, change_during_publish_is_eagain_and_shows_nothing, 0, 2);
    tcase_add_test(tc, snapshot_keeps_the_state_from_before_the_gate);
    tcase_add_loop_test(tc, snapshot_under_a_writer_holds_one_state, 0, 2);
    tc = add_case(s, "many");
    tcase_add_test(tc, sixteen_writers_stay_within_the_budget);
    tcase_add_test(tc, a_late_small_session_does_not_wait_for_a_long_one);
}

int main(void)
{
    Suite *s = suite_create("publish");
    add_plain(s);
    add_failures(s);
    add_life(s);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
