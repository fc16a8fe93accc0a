/*
 * Uploading behind the write front of a file that is still being written.
 *
 * upload_note_write follows the front: the end of what was written without a gap. Writes ahead of it are remembered as spans
 * (parallel writers that fill a file out of order) and join when the gap closes; with more than UPLOAD_SPANS_MAX of them the rest
 * waits for publishing. Part k is queued when the front is a whole part past its end, so a writer that
 * goes back a little within its buffer costs nothing; the first queued part creates the multipart upload, hence files up to two parts never do. Parts
 * written again become stale and are sent again by publishing only: a header that is rewritten ten times is sent once.
 *
 * A stream begins with one part. Each that is stored as fast as the fastest so far lets one more be sent beside it: the time goes into waiting, as with a
 * store far away. Parts that take longer for being more share what is full already, the link, the store or this machine: they would all end late, none
 * of a file written in a second would be stored when it is closed, and reading and summing them would keep the writer from its CPU. Then only
 * every WIDEN_SLOWLY-th adds one, so that a long stream comes to use all that there is. One more is read and summed meanwhile
 * while most workers have nothing to do: it is sent at once when its turn comes.
 *
 * After a failure the stream rests for a few seconds and begins again at the first part that is not stored. An upload that the store
 * lost (-ENOENT) is left to publishing.
 *
 * upload_note_write runs on writers' threads with no lock held and only queues; sending is the pool's.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "upload.h"

#include <string.h>

#define WIDEN_SLOWLY 8u

static void span_remove(struct upload *u, uint32_t k)
{
    memmove(&u->ahead[k], &u->ahead[k + 1], (u->n_ahead - k - 1) * sizeof u->ahead[0]);
    u->n_ahead--;
}

static void span_add(struct upload *u, uint64_t start, uint64_t end)
{
    uint32_t k = 0;
    while (k < u->n_ahead && u->ahead[k].end < start)
        k++;
    while (k < u->n_ahead && u->ahead[k].start <= end) {
        start = MIN(start, u->ahead[k].start);
        end = MAX(end, u->ahead[k].end);
        span_remove(u, k);
    }
    if (u->n_ahead == UPLOAD_SPANS_MAX) { /* forgetting only delays: publishing sends what the stream did not */
        if (k == u->n_ahead)
            return;
        u->n_ahead--;
    }
    memmove(&u->ahead[k + 1], &u->ahead[k], (u->n_ahead - k) * sizeof u->ahead[0]);
    u->ahead[k] = (struct upload_span){start, end};
    u->n_ahead++;
}

void upload_stream_note_locked(struct upload *u, uint64_t off, uint64_t len)
{
    mutex_assert_held(&u->mu);
    if (len == 0) { /* the size became off */
        u->front = MIN(u->front, off);
        while (u->n_ahead > 0 && u->ahead[u->n_ahead - 1].end > off)
            u->n_ahead--;
        return;
    }
    if (off > u->front) {
        span_add(u, off, off + len);
        return;
    }
    u->front = MAX(u->front, off + len);
    while (u->n_ahead > 0 && u->ahead[0].start <= u->front) {
        u->front = MAX(u->front, u->ahead[0].end);
        span_remove(u, 0);
    }
}

static uint32_t may_be_active_locked(struct upload *u) REQUIRES(u->mu)
{
    uint32_t window = u->window_8ths / WIDEN_SLOWLY;
    bool ahead = u->upload_id && u->n_active == window && upload_pool_is_idle(u->pool);
    return ahead ? window + 1 : window;
}

void upload_stream_advance_locked(struct upload *u)
{
    mutex_assert_held(&u->mu);
    if (!u->streaming || u->publishing || clock_mono_ns() < u->retry_at_ns || u->err == -ENOENT)
        return;
    if (u->front <= 2 * u->layout.part_bytes)
        return;
    g_assert(u->window_8ths >= WIDEN_SLOWLY);
    for (; u->next_part < u->layout.parts_max; u->next_part++) {
        uint64_t end = upload_part_offset(&u->layout, u->next_part) + upload_part_bytes(&u->layout, u->next_part);
        if (end + upload_part_bytes(&u->layout, u->next_part) > u->front || u->n_active >= may_be_active_locked(u))
            return;
        if (upload_part_locked(u, u->next_part)->state == PART_NONE)
            upload_queue_part_locked(u, u->next_part);
        if (!u->upload_id && u->n_active > 0) { /* one worker creates it, the others have better things to do */
            u->next_part++;
            return;
        }
    }
}

void upload_stream_enter(struct upload *u)
{
    mutex_lock(&u->mu);
    while (u->streaming && u->n_sending >= u->window_8ths / WIDEN_SLOWLY)
        cond_wait(&u->changed, &u->mu);
    u->n_sending++;
    upload_stream_advance_locked(u);
    mutex_unlock(&u->mu);
}

void upload_stream_leave(struct upload *u)
{
    mutex_lock(&u->mu);
    g_assert(u->n_sending > 0);
    u->n_sending--;
    cond_broadcast(&u->changed);
    mutex_unlock(&u->mu);
}

void upload_stream_widen_locked(struct upload *u, uint64_t took_ns)
{
    mutex_assert_held(&u->mu);
    u->fastest_ns = MIN(u->fastest_ns, took_ns);
    u->window_8ths += took_ns <= u->fastest_ns + u->fastest_ns / 2 ? WIDEN_SLOWLY : 1;
    u->window_8ths = MIN(u->window_8ths, UPLOAD_PARTS_MAX * WIDEN_SLOWLY);
}

void upload_note_write(struct cfile *cf, uint64_t off, uint64_t len)
{
    struct upload *u = upload_of(cf);
    if (!u)
        return;
    mutex_lock(&u->mu);
    upload_mark_written_locked(u, off, len == 0 ? UINT64_MAX : off + len);
    if (u->streaming) {
        upload_stream_note_locked(u, off, len);
        upload_stream_advance_locked(u);
    }
    mutex_unlock(&u->mu);
}

void cache_stream_begin(struct cfile *cf, const char *key, const struct obj_meta *meta)
{
    g_autofree char *src = NULL;
    struct etag etag;
    uint64_t limit;
    if (cfile_source(cf, &src, &etag, &limit))
        return;
    struct upload *u = upload_ensure(cf);
    uint64_t size = cache_file_size(cf);
    mutex_lock(&u->mu);
    if (!u->streaming && !u->publishing && !u->dropping && !u->upload_id && !u->creating && u->n_active == 0) {
        g_free(u->key);
        u->key = g_strdup(key);
        u->posix = meta->posix;
        g_strlcpy(u->token, meta->token ? meta->token : "", sizeof u->token);
        u->streaming = true;
        u->abort_wanted = false;
        u->err = 0;
        u->front = size;
        u->n_ahead = 0;
        u->next_part = 0;
        u->window_8ths = WIDEN_SLOWLY;
        u->fastest_ns = UINT64_MAX;
        upload_stream_advance_locked(u);
    }
    mutex_unlock(&u->mu);
}

void cache_stream_abort(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    if (!u)
        return;
    mutex_lock(&u->mu);
    if (!upload_begin_drop_locked(u)) { /* it gives up at its next step and aborts */
        u->abort_wanted = true;
        mutex_unlock(&u->mu);
        return;
    }
    upload_give_up_locked(u);
    mutex_unlock(&u->mu);
    upload_end_drop(u);
}
