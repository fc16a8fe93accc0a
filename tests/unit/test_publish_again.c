/* Publishing again: edits of published objects, restarts, changes meanwhile, many files at once. */
#include "publish_fixture.h"

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
    fault(_i == 0 ? "op=part-copy,nth=1,count=100,action=error:-EINVAL"
                  : "op=part-copy,nth=1,count=100,action=error:-EREMOTEIO");
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

START_TEST(part_replaced_in_the_store_is_sent_again)
{
    struct meta_upload rec;
    struct obj_part part = {.number = 3, .size = PART};
    struct cfile *cf = stored_then_restarted(8 * PART);
    g_autofree uint8_t *other = g_malloc0(PART);
    ck_assert_int_eq(meta_upload_get(rig.m, cache_file_vid(cf), &rec), 0);
    ck_assert_int_eq(objstore_mpu_part(rig.st, rec.key, rec.upload_id, other, &part), 0);
    meta_upload_clear(&rec);
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

struct earlier {
    uint64_t vid; /* 0 once it has ended */
    uint8_t bytes[8 * PART];
};

/* The store ends an earlier Complete just before ours comes: its object has our token and size, and other bytes. */
static int end_earlier_complete(void *ctx)
{
    struct earlier *e = ctx;
    struct obj_meta meta = {.token = "token-1"};
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    struct meta_upload rec;
    if (!e->vid)
        return 0;
    ck_assert_int_eq(meta_upload_get(rig.m, e->vid, &rec), 0);
    e->vid = 0;
    ck_assert_int_eq(objstore_put(rig.st, "a", e->bytes, sizeof(e->bytes), &meta, &any, NULL), 0);
    ck_assert_int_eq(objstore_mpu_abort(rig.st, "a", rec.upload_id), 0);
    meta_upload_clear(&rec);
    return 0;
}

/*
 * The change comes in the same run (0), after a restart (1), or is sent, without the object being made, by a try before (2, 3). The store ends the earlier Complete before
 * the last try looks (2), or just before its own.
 */
START_TEST(object_of_a_complete_before_the_change_is_not_taken_for_the_file)
{
    g_autofree struct earlier *e = g_new0(struct earlier, 1);
    struct cfile *cf = new_file(sizeof(e->bytes), 1);
    struct publish_req req = request("a");
    struct publish_result res;
    uint64_t vid = e->vid = cache_file_vid(cf);
    ck_assert_int_eq(cache_file_read(cf, e->bytes, sizeof(e->bytes), 0), (ssize_t)sizeof(e->bytes));
    fault("op=complete,count=2,action=error:-EIO");
    ck_assert_int_eq(publish(cf, "a"), -EIO);
    if (_i) {
        cache_file_unref(cf);
        cf = reopen(vid, sizeof(e->bytes));
    }
    write_at(cf, 0, 10, 2);
    if (_i >= 2) {
        ck_assert_int_eq(publish(cf, "a"), -EIO);
        cache_file_unref(cf);
        cf = reopen(vid, sizeof(e->bytes));
    }
    fault("");
    if (_i == 2)
        ck_assert_int_eq(end_earlier_complete(e), 0);
    req.gate = end_earlier_complete;
    req.ctx = e;
    ck_assert_int_eq(cache_publish(cf, &req, &res), -ESTALE);
    cache_file_unref(cf);
}
END_TEST

/* Parts that were sent before any Complete do not count as a change after one. */
START_TEST(lost_reply_of_the_first_complete_is_settled_by_the_token_after_a_restart)
{
    struct cfile *cf = stored_then_restarted(8 * PART);
    write_at(cf, 0, 10, 2);
    fault("op=complete,nth=1,action=lost:-ENOENT");
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

static int record_another(void *ctx)
{
    char key[] = "a", id[] = "another";
    struct meta_upload rec = {.vid = *(uint64_t *)ctx, .key = key, .upload_id = id, .part_bytes = PART};
    struct meta_batch *b = meta_batch_new(rig.m);
    meta_upload_put(b, &rec);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    return 0;
}

START_TEST(end_of_an_upload_forgets_no_other)
{
    struct cfile *cf = new_file(8 * PART, 1);
    uint64_t vid = cache_file_vid(cf);
    struct publish_req req = request("a");
    struct publish_result res;
    req.gate = record_another;
    req.ctx = &vid;
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    ck_assert(has_record(vid));
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
    fault("op=abort,action=delay:60s");
    uint64_t asked = clock_mono_ns();
    cache_abort_stale_uploads(rig.c);
    ck_assert_uint_lt(clock_mono_ns() - asked, 20 * NS_PER_S); /* a start does not wait for the store */
    fault("");
    EVENTUALLY(!has_record(vid));
    ck_assert_uint_eq(n_uploads(), 2);
    ck_assert_int_eq(objstore_mpu_abort(rig.st, "b", other), 0);
    g_free(other);
}
END_TEST

/* Killed when the object had its name, and the store still had the upload. */
START_TEST(upload_left_of_what_is_published_is_aborted)
{
    struct cfile *cf = stored_then_restarted(8 * PART);
    struct cache_source src = {.key = "a", .limit = 8 * PART};
    uint64_t vid = cache_file_vid(cf);
    ck_assert(has_record(vid) && n_uploads() == 1);
    ck_assert_int_eq(cache_file_set_published(cf, &src), 0);
    EVENTUALLY(!has_record(vid) && n_uploads() == 0);
    cache_file_unref(cf);
}
END_TEST

static int take_id(void *ctx, const char *key, const char *upload_id)
{
    *(char **)ctx = g_strdup(upload_id);
    return 1;
}

static int lose_upload_at_gate(void *ctx)
{
    unsigned *n = ctx;
    char *id = NULL;
    if (++*n > 1)
        return -EAGAIN; /* meanwhile it is not to become visible any more */
    ck_assert_int_eq(objstore_mpu_list(rig.st, "", take_id, &id), 1);
    ck_assert_int_eq(objstore_mpu_abort(rig.st, "a", id), 0);
    g_free(id);
    return 0;
}

START_TEST(gate_is_asked_again_when_all_is_sent_again)
{
    struct cfile *cf = new_file(3 * PART, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    unsigned n = 0;
    req.gate = lose_upload_at_gate;
    req.ctx = &n;
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EAGAIN);
    ck_assert_uint_eq(n, 2);
    ck_assert_ptr_null(object("a"));
    cache_file_unref(cf);
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

static int grow_at_gate(void *ctx)
{
    if (++*(unsigned *)ctx > 1)
        return -ECANCELED; /* of what it is now nothing is to become visible */
    write_at(gate_file, PART, 1, 1);
    return 0;
}

START_TEST(gate_is_asked_again_when_the_file_grew_meanwhile)
{
    gate_file = new_file(100, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    unsigned n = 0;
    req.snapshot = true;
    req.gate = grow_at_gate;
    req.ctx = &n;
    ck_assert_int_eq(cache_publish(gate_file, &req, &res), -ECANCELED);
    ck_assert_uint_eq(n, 2);
    ck_assert(!visible("a"));
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

START_TEST(nothing_is_published_in_the_middle_of_a_write)
{
    struct cfile *cf = new_file(_i % 2 ? 8 * PART : 100, 1);
    struct publish_req req = request("a");
    struct publish_result res;
    req.snapshot = _i >= 2;
    cfile_change_begin(cf);
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EAGAIN);
    ck_assert(!visible("a"));
    cfile_change_end(cf);
    ck_assert_int_eq(cache_publish(cf, &req, &res), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
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
    /* fewer where a round takes long: for a large one the writer has to pause at the right time */
    for (uint64_t k = 0, began = clock_mono_ns(); k < 8 && (!n_done || clock_mono_ns() - began < 15 * NS_PER_S); k++) {
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

static void add_edits(Suite *s)
{
    TCase *tc = add_case(s, "edits");
    tcase_add_test(tc, small_edit_copies_the_rest_in_the_store);
    tcase_add_loop_test(tc, failing_part_copy_falls_back_to_sending, 0, 2);
    tcase_add_loop_test(tc, absent_bytes_are_fetched_for_parts_that_changed, 0, 2);
    tcase_add_test(tc, edit_after_refused_gate_uses_copied_parts_once);
}

static void add_life(Suite *s)
{
    TCase *tc = add_case(s, "restart");
    tcase_add_test(tc, parts_are_not_sent_again_after_restart);
    tcase_add_test(tc, part_changed_over_restart_is_sent_again);
    tcase_add_test(tc, part_replaced_in_the_store_is_sent_again);
    tcase_add_test(tc, complete_whose_reply_was_lost_is_settled_after_restart);
    tcase_add_test(tc, completed_version_is_not_taken_for_a_newer_one);
    tcase_add_loop_test(tc, object_of_a_complete_before_the_change_is_not_taken_for_the_file, 0, 4);
    tcase_add_test(tc, lost_reply_of_the_first_complete_is_settled_by_the_token_after_a_restart);
    tcase_add_test(tc, end_of_an_upload_forgets_no_other);
    tcase_add_test(tc, upload_under_another_key_is_aborted_after_restart);
    tcase_add_test(tc, only_our_stale_uploads_are_aborted);
    tcase_add_test(tc, upload_left_of_what_is_published_is_aborted);
    tcase_add_test(tc, gate_is_asked_again_when_all_is_sent_again);
    tc = add_case(s, "changes");
    tcase_add_loop_test(tc, change_during_publish_is_eagain_and_shows_nothing, 0, 2);
    tcase_add_loop_test(tc, nothing_is_published_in_the_middle_of_a_write, 0, 4);
    tcase_add_test(tc, gate_is_asked_again_when_the_file_grew_meanwhile);
    tcase_add_test(tc, snapshot_keeps_the_state_from_before_the_gate);
    tcase_add_loop_test(tc, snapshot_under_a_writer_holds_one_state, 0, 2);
    tc = add_case(s, "many");
    tcase_add_test(tc, sixteen_writers_stay_within_the_budget);
    tcase_add_test(tc, a_late_small_session_does_not_wait_for_a_long_one);
}

int main(void)
{
    Suite *s = suite_create("publish_again");
    add_edits(s);
    add_life(s);
    return run_suite(s);
}
