/* Publishing: what becomes visible, what the stream sends ahead, what failures of the store cost. */
#include "../../s3/objstore_driver.h"
#include "cache_file.h"
#include "publish_fixture.h"

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

/* By somebody else, while we have it open: no size of ours says so. */
START_TEST(file_that_was_cut_off_on_the_disk_is_given_up)
{
    char data[32];
    struct cfile *cf = new_file(sizes[_i], 3);
    cache_data_path(cache_file_vid(cf), data);
    g_autofree char *path = g_build_filename(rig.dir, data, NULL);
    ck_assert_int_eq(truncate(path, (off_t)(sizes[_i] / 2)), 0);
    ck_assert_int_eq(publish(cf, "a"), -EUCLEAN);
    ck_assert(!visible("a"));
    cache_file_unref(cf);
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

/* With several stores the layout of parts does not know the one that a key is in. */
START_TEST(file_larger_than_what_its_store_takes_is_refused_before_it_is_sent)
{
    struct obj_meta meta = {.token = "token-1"};
    struct cfile *cf = new_file(0, 0);
    cache_stream_begin(cf, "a", &meta); /* makes the layout */
    write_at(cf, 0, PART + 1, 1);
    int64_t sent = metric_get(M_uploaded_bytes);
    rig.st->limits.object_max_bytes = PART;
    ck_assert_int_eq(publish(cf, "a"), -EFBIG);
    ck_assert_int_eq(metric_get(M_uploaded_bytes), sent);
    ck_assert_uint_eq(n_uploads(), 0);
    rig.st->limits.object_max_bytes = PART + 1;
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
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
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    ck_assert(!visible("a"));
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - sent, (int64_t)PART);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

static uint32_t n_active(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    mutex_lock(&u->mu);
    uint32_t n = u->n_active;
    mutex_unlock(&u->mu);
    return n;
}

static uint32_t n_on_their_way(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    mutex_lock(&u->mu);
    uint32_t n = u->n_sending;
    mutex_unlock(&u->mu);
    return n;
}

/* How many parts may be. */
static uint32_t window_of(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    mutex_lock(&u->mu);
    uint32_t n = u->window_8ths / 8;
    mutex_unlock(&u->mu);
    return n;
}

START_TEST(a_stream_begins_with_one_part_and_widens_while_that_costs_no_time)
{
    fault("op=part,action=delay:1s");
    struct cfile *cf = streamed("a", 12);
    EVENTUALLY(n_on_their_way(cf) > 0);
    g_usleep(50000);
    ck_assert_uint_eq(n_on_their_way(cf), 1);
    EVENTUALLY(cache_uploaded_bytes(cf) >= PART);
    EVENTUALLY(n_on_their_way(cf) == 2);
    EVENTUALLY(cache_uploaded_bytes(cf) >= 3 * PART);
    EVENTUALLY(n_on_their_way(cf) == 4);
    fault("");
    EVENTUALLY(cache_uploaded_bytes(cf) == 11 * PART);
    cache_file_unref(cf);
}
END_TEST

/* It is sent at once when the one before it is stored, and when the stream ends. */
START_TEST(a_stream_reads_one_part_ahead_of_those_it_sends)
{
    fault("op=part,action=delay:2s");
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(n_on_their_way(cf) == 1 && n_active(cf) == 2);
    g_usleep(50000);
    ck_assert_uint_eq(n_on_their_way(cf), 1);
    ck_assert_uint_eq(n_active(cf), 2);
    fault("");
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    ck_assert_uint_eq(n_on_their_way(cf), 0);
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    cache_file_unref(cf);
}
END_TEST

/* What other files have to send needs a worker too. */
START_TEST(streams_read_ahead_while_half_of_the_workers_are_idle)
{
    fault("op=part,action=delay:2s");
    struct cfile *first = streamed("a", 8);
    EVENTUALLY(n_on_their_way(first) == 1 && n_active(first) == 2);
    struct cfile *second = streamed("b", 8);
    EVENTUALLY(n_on_their_way(second) == 1);
    g_usleep(50000);
    ck_assert_uint_eq(n_active(second), 1);
    fault("");
    EVENTUALLY(cache_uploaded_bytes(first) == 7 * PART && cache_uploaded_bytes(second) == 7 * PART);
    cache_file_unref(first);
    cache_file_unref(second);
}
END_TEST

START_TEST(a_stream_widens_slowly_where_parts_take_longer_for_being_more)
{
    struct cfile *cf = streamed("a", 3);
    EVENTUALLY(cache_uploaded_bytes(cf) == 2 * PART);
    uint32_t before = window_of(cf);
    fault("op=part,action=delay:600ms");
    for (unsigned n = 3; n < 5; n++) {
        write_at(cf, n * PART, PART, 1);
        EVENTUALLY(cache_uploaded_bytes(cf) == n * PART);
    }
    ck_assert_uint_eq(window_of(cf), before);
    fault("op=part,action=delay:20ms");
    for (unsigned n = 5; n < 20; n++)
        write_at(cf, n * PART, PART, 1);
    EVENTUALLY(cache_uploaded_bytes(cf) == 19 * PART);
    ck_assert_uint_gt(window_of(cf), before);
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_stream_goes_on_after_a_part_that_failed)
{
    fault("op=part,count=3,action=error:-EACCES");
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(n_on_their_way(cf) == 0);
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 0);
    fault("");
    clock_fake_advance(5 * NS_PER_S);
    write_at(cf, 8 * PART, PART, 1);
    EVENTUALLY(cache_uploaded_bytes(cf) == 8 * PART);
    ck_assert_uint_ge(window_of(cf), 1);
    ck_assert_int_eq(publish(cf, "a"), 0);
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

static gpointer publish_in_thread(gpointer arg)
{
    return GINT_TO_POINTER(publish(arg, "a"));
}

static int part_state(struct cfile *cf, uint32_t i)
{
    struct upload *u = upload_of(cf);
    mutex_lock(&u->mu);
    int state = upload_part_locked(u, i)->state;
    mutex_unlock(&u->mu);
    return state;
}

START_TEST(stored_parts_are_compared_behind_what_is_to_be_sent)
{
    stop();
    rig.max_uploads = 1;
    start();
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    write_at(cf, 0, 7 * PART, 1);
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 0);
    fault("op=part,action=delay:1s");
    GThread *t = g_thread_new("publish", publish_in_thread, cf);
    EVENTUALLY(part_state(cf, 7) >= PART_SENDING);
    ck_assert_int_eq(part_state(cf, 7), PART_SENDING);
    ck_assert_uint_eq(cache_uploaded_bytes(cf), 0);
    fault("");
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(t)), 0);
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

static bool is_creating(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    mutex_lock(&u->mu);
    bool creating = u->creating;
    mutex_unlock(&u->mu);
    return creating;
}

/* An upload that the store has made, and whose id does not come here, would stay for ever. */
START_TEST(upload_that_is_being_created_is_aborted_when_it_is_there)
{
    int64_t before = metric_get(M_requests_multipart);
    fault("op=create,nth=1,action=delay:500ms");
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(is_creating(cf));
    cache_stream_abort(cf);
    ck_assert_int_ge(metric_get(M_requests_multipart) - before, 2);
    ck_assert_uint_eq(n_uploads(), 0);
    cache_file_unref(cf);
}
END_TEST

static gpointer abort_in_thread(gpointer cf)
{
    cache_stream_abort(cf);
    return NULL;
}

static bool is_dropping(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    mutex_lock(&u->mu);
    bool dropping = u->dropping;
    mutex_unlock(&u->mu);
    return dropping;
}

/* As when the last name goes and the last writer closes just when the publisher has begun. */
START_TEST(nothing_is_begun_while_a_stream_is_aborted)
{
    struct cfile *cf = streamed("a", 8);
    EVENTUALLY(cache_uploaded_bytes(cf) == 7 * PART);
    fault("op=abort,nth=1,action=delay:1s");
    GThread *t = g_thread_new("abort", abort_in_thread, cf);
    EVENTUALLY(is_dropping(cf));
    ck_assert_int_eq(publish(cf, "a"), -EAGAIN);
    g_thread_join(t);
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    ck_assert_uint_eq(n_uploads(), 0);
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

START_TEST(forgotten_closed_file_takes_its_upload_along)
{
    struct cfile *cf = streamed("a", 8);
    uint64_t vid = cache_file_vid(cf);
    EVENTUALLY(cache_uploaded_bytes(cf) > 0);
    cache_file_unref(cf);
    ck_assert_uint_eq(n_uploads(), 1);
    ck_assert(has_record(vid));
    cache_forget(rig.c, vid);
    EVENTUALLY(n_uploads() == 0);
    EVENTUALLY(!has_record(vid));
}
END_TEST

START_TEST(letting_go_of_a_file_does_not_wait_for_its_parts)
{
    fault("op=part,action=delay:60s");
    struct cfile *cf = streamed("a", 12), *again = NULL;
    uint64_t vid = cache_file_vid(cf), size = 12 * PART;
    g_usleep(50000);
    uint64_t began = clock_mono_ns();
    cache_file_unref(cf);
    ck_assert_int_eq(cache_file_open(rig.c, vid, INO, size, NULL, &again), 0);
    ck_assert_uint_lt(clock_mono_ns() - began, 20 * NS_PER_S);
    fault("");
    EVENTUALLY(cache_uploaded_bytes(again) == 11 * PART); /* and they go on */
    ck_assert_int_eq(publish(again, "a"), 0);
    assert_published(again, "a");
    cache_file_unref(again);
}
END_TEST

START_TEST(stop_drops_parts_that_wait)
{
    fault("op=part,action=delay:1s");
    struct cfile *cf = streamed("a", 200), *again = NULL;
    uint64_t vid = cache_file_vid(cf), size = 200 * PART;
    cache_file_unref(cf);
    uint64_t began = clock_mono_ns();
    stop();
    ck_assert_uint_lt(clock_mono_ns() - began, 20 * NS_PER_S); /* fifty rounds of a second */
    fault("");
    start();
    ck_assert_int_eq(cache_file_open(rig.c, vid, INO, size, NULL, &again), 0);
    ck_assert_int_eq(publish(again, "a"), 0);
    assert_published(again, "a");
    ck_assert_uint_eq(n_uploads(), 0);
    cache_file_unref(again);
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

START_TEST(put_whose_reply_was_lost_is_recognised)
{
    struct cfile *cf = new_file(1000, 1), *other = new_file(1000, 2);
    fault("op=put,nth=1,action=lost:-EIO");
    ck_assert_int_eq(publish(cf, "a"), -EIO);
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(publish(cf, "a"), 0);
    ck_assert_int_eq(metric_get(M_uploaded_bytes), sent);
    assert_published(cf, "a");
    ck_assert_int_eq(publish(other, "a"), -ESTALE); /* same token and size, other bytes */
    cache_file_unref(cf);
    cache_file_unref(other);
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

START_TEST(part_replaced_before_complete_is_sent_again)
{
    unsigned n = 0;
    struct meta_upload rec;
    struct publish_req req = request("a");
    struct publish_result res;
    struct obj_part late = {.number = 3, .size = PART};
    g_autofree uint8_t *old = g_malloc0(PART);
    struct cfile *cf = new_file(8 * PART, 1);
    req.gate = refuse;
    req.ctx = &n;
    ck_assert_int_eq(cache_publish(cf, &req, &res), -EINPROGRESS);
    ck_assert_int_eq(meta_upload_get(rig.m, cache_file_vid(cf), &rec), 0);
    ck_assert_int_eq(objstore_mpu_part(rig.st, "a", rec.upload_id, old, &late),
                     0); /* a request that was under way for long */
    meta_upload_clear(&rec);
    ck_assert_int_eq(publish(cf, "a"), 0);
    assert_published(cf, "a");
    ck_assert_uint_eq(n_uploads(), 0);
    cache_file_unref(cf);
}
END_TEST

static void add_plain(Suite *s)
{
    TCase *tc = add_case(s, "plain");
    tcase_add_loop_test(tc, any_size_arrives_whole, 0, G_N_ELEMENTS(sizes));
    tcase_add_loop_test(tc, file_that_was_cut_off_on_the_disk_is_given_up, 1, G_N_ELEMENTS(sizes));
    tcase_add_loop_test(tc, a_condition_that_fails_is_estale_and_changes_nothing, 2, G_N_ELEMENTS(sizes));
    tcase_add_test(tc, progress_grows_to_the_size);
    tcase_add_test(tc, file_larger_than_what_its_store_takes_is_refused_before_it_is_sent);
    tc = add_case(s, "stream");
    tcase_add_test(tc, parts_are_stored_before_publish_and_invisible);
    tcase_add_test(tc, a_stream_begins_with_one_part_and_widens_while_that_costs_no_time);
    tcase_add_test(tc, a_stream_reads_one_part_ahead_of_those_it_sends);
    tcase_add_test(tc, streams_read_ahead_while_half_of_the_workers_are_idle);
    tcase_add_test(tc, a_stream_widens_slowly_where_parts_take_longer_for_being_more);
    tcase_add_test(tc, a_stream_goes_on_after_a_part_that_failed);
    tcase_add_test(tc, a_file_of_two_parts_creates_no_upload);
    tcase_add_test(tc, rewritten_header_is_sent_again_alone);
    tcase_add_test(tc, stored_parts_are_compared_behind_what_is_to_be_sent);
    tcase_add_test(tc, same_bytes_written_again_are_not_sent);
    tcase_add_test(tc, writers_out_of_order_are_streamed_when_gaps_close);
    tcase_add_test(tc, wrong_prediction_aborts_and_sends_from_the_cache);
    tcase_add_test(tc, truncated_stream_is_published_small);
    tcase_add_test(tc, shrunk_and_grown_again_has_zeros);
    tcase_add_test(tc, aborted_stream_leaves_nothing);
    tcase_add_test(tc, upload_that_is_being_created_is_aborted_when_it_is_there);
    tcase_add_test(tc, nothing_is_begun_while_a_stream_is_aborted);
    tcase_add_test(tc, forgotten_file_takes_its_upload_along);
    tcase_add_test(tc, forgotten_closed_file_takes_its_upload_along);
    tcase_add_test(tc, letting_go_of_a_file_does_not_wait_for_its_parts);
    tcase_add_test(tc, stop_drops_parts_that_wait);
    tcase_add_test(tc, failing_stream_is_made_up_for_by_publish);
}

static void add_failures(Suite *s)
{
    TCase *tc = add_case(s, "failures");
    tcase_add_test(tc, refusing_gate_shows_nothing_and_keeps_the_parts);
    tcase_add_test(tc, refusing_gate_holds_small_files_too);
    tcase_add_test(tc, part_that_fails_five_times_costs_only_itself);
    tcase_add_loop_test(tc, failed_complete_is_tried_again_without_sending, 0, G_N_ELEMENTS(complete_faults));
    tcase_add_test(tc, put_whose_reply_was_lost_is_recognised);
    tcase_add_loop_test(tc, lost_upload_is_begun_anew, 0, 2);
    tcase_add_test(tc, upload_lost_for_ever_is_an_error);
    tcase_add_test(tc, corruption_on_the_wire_is_repaired);
    tcase_add_test(tc, lasting_corruption_is_not_published);
    tcase_add_test(tc, part_replaced_before_complete_is_sent_again);
}

int main(void)
{
    Suite *s = suite_create("publish");
    add_plain(s);
    add_failures(s);
    return run_suite(s);
}
