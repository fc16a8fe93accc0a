/*
 * Fetching: one GET for a chunk however many want it, a pool of max_downloads workers, three priorities.
 *
 * A fetch owns its chunks (cf->busy) from when it is queued. What arrives is written and present soon (cache_arrive.c), so readers of
 * the first chunk do not wait for the last. Presence goes to the database when the GET has ended, readers do not wait for that. Readers who find
 * a chunk owned by a queued fetch of lower priority carve it out and queue it as urgent, so they never wait for what is only wanted ahead. One that runs
 * already is told that somebody waits now: it may be waiting for its turn at a store that asked for less (objstore_behind()).
 *
 * Concurrency: the rules are in cache_internal.h. A waiter keeps the fetch by a reference and reads its error from it. A fetch that fails because the
 * source was replaced meanwhile (renamed upstream, published) is no error: the waiter looks again.
 *
 * Objects that the store's driver can check only as a whole are asked for as a whole, whatever is wanted of them.
 */
#include "cache_fetch.h"

#include "base/clock.h"
#include "base/crash.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/patience.h"
#include "cache_file.h"
#include "cache_space.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

/* ---- queue ---- */

static void queue_push(struct cache *c, struct fetch *f)
{
    mutex_lock(&c->fetch.mu);
    f->link.data = f;
    g_queue_push_tail_link(&c->fetch.queue[f->prio], &f->link);
    cond_signal(&c->fetch.work);
    mutex_unlock(&c->fetch.mu);
}

/* ---- making and changing fetches ---- */

static void start_one_locked(struct cfile *cf, uint64_t first, uint64_t end, enum fetch_prio prio)
{
    struct fetch *f = g_new0(struct fetch, 1);
    f->cf = cfile_own_ref(cf);
    f->refs = 1; /* of the queue, then of the worker */
    f->prio = prio;
    f->behind = prio != FETCH_URGENT;
    f->first = first;
    f->end = end;
    f->src_gen = cf->src_gen;
    f->cf_link.data = f;
    g_queue_push_tail_link(&cf->fetches, &f->cf_link);
    chunkset_set(&cf->busy, first, end - first);
    queue_push(cf->c, f);
}

static bool is_asked_whole(const struct cache *c, const char *key, uint64_t limit)
{
    return limit <= objstore_limits_of(c->store, key ? key : "").checked_bytes;
}

static void widen_locked(const struct cfile *cf, uint64_t *first, uint64_t *end)
{
    if (!is_asked_whole(cf->c, cf->src_key, cf->limit))
        return;
    *first = 0;
    *end = chunks_for(cf->limit);
}

/* End of the run of chunks from `from` that are absent and free. */
static uint64_t absent_run_locked(const struct cfile *cf, uint64_t from, uint64_t end)
{
    uint64_t i = from;
    while (i < end && !cfile_present_locked(cf, i) && !chunkset_get(&cf->busy, i))
        i++;
    return i;
}

/* Read-ahead, which comes in halves of the window, is shared out among all downloads: one GET alone does not fill a link. Other fetches are as large as they may be. */
static uint64_t piece_chunks_locked(const struct cfile *cf, uint64_t chunks, enum fetch_prio prio)
{
    uint64_t most = MAX(cf->c->cfg.get_bytes / META_CHUNK_BYTES, 1);
    uint64_t share = MAX(2 * chunks / MAX(cf->c->cfg.max_downloads, 1), RA_FIRST_BYTES / META_CHUNK_BYTES);
    return prio == FETCH_AHEAD && !is_asked_whole(cf->c, cf->src_key, cf->limit) ? MIN(share, most) : most;
}

uint64_t fetch_start_locked(struct cfile *cf, uint64_t first, uint64_t end, enum fetch_prio prio)
{
    mutex_assert_held(&cf->mu);
    end = MIN(end, chunks_for(cf->limit));
    if (first < end)
        widen_locked(cf, &first, &end);
    uint64_t piece = piece_chunks_locked(cf, end - MIN(first, end), prio), n = 0;
    for (uint64_t i = first; i < end;) {
        uint64_t stop = absent_run_locked(cf, i, MIN(end, i + piece));
        if (stop > i) {
            start_one_locked(cf, i, stop, prio);
            n += stop - i;
            i = stop;
        } else {
            i++;
        }
    }
    return n;
}

struct fetch *fetch_find_locked(struct cfile *cf, uint64_t chunk)
{
    mutex_assert_held(&cf->mu);
    for (GList *l = cf->fetches.head; l; l = l->next) {
        struct fetch *f = l->data;
        if (chunk >= f->first && chunk < f->end)
            return f;
    }
    return NULL;
}

/* Only out of fetches that are less urgent than this, an enum fetch_prio or -1 for all. Looks no further than where the last chunk's owner was found. */
static void carve_below_locked(struct cfile *cf, uint64_t first, uint64_t end, int prio)
{
    mutex_assert_held(&cf->mu);
    uint64_t owned = chunkset_count(&cf->busy, first, end - first);
    bool carved = false;
    for (GList *l = cf->fetches.head, *next; l && owned; l = next) {
        struct fetch *f = l->data;
        next = l->next;
        uint64_t a = MAX(first, f->first), b = MIN(end, f->end);
        if (a >= b)
            continue;
        owned -= chunkset_count(&cf->busy, a, b - a);
        if (f->running || (int)f->prio <= prio)
            continue;
        uint64_t old_end = f->end;
        carved = true;
        chunkset_unset(&cf->busy, a, b - a);
        if (a == f->first) {
            f->first = b;
        } else {
            f->end = a;
            if (b < old_end) {
                chunkset_unset(&cf->busy, b, old_end - b);
                start_one_locked(cf, b, old_end, f->prio);
            }
        }
    }
    if (carved)
        cond_broadcast(&cf->changed);
}

void fetch_carve_locked(struct cfile *cf, uint64_t first, uint64_t end)
{
    carve_below_locked(cf, first, end, -1);
}

uint64_t fetch_want_locked(struct cfile *cf, uint64_t first, uint64_t end, enum fetch_prio prio)
{
    if (first < end) {
        widen_locked(cf, &first, &end);
        carve_below_locked(cf, first, end, (int)prio);
    }
    return fetch_start_locked(cf, first, end, prio);
}

void fetch_cut_locked(struct cfile *cf, uint64_t first)
{
    fetch_carve_locked(cf, first, UINT64_MAX / 2);
    for (GList *l = cf->fetches.head; l; l = l->next) {
        struct fetch *f = l->data;
        if (!f->running || f->end <= first)
            continue;
        assert(!f->writing);
        uint64_t from = MAX(f->first, first);
        /* What it has already made present is not busy; unsetting that is harmless. */
        chunkset_unset(&cf->busy, from, f->end - from);
        f->end = from;
        f->cut_bytes = MIN(f->cut_bytes, chunk_start(first));
    }
}

bool fetch_writing_locked(const struct cfile *cf)
{
    for (const GList *l = cf->fetches.head; l; l = l->next) {
        if (((const struct fetch *)l->data)->writing)
            return true;
    }
    return false;
}

void fetch_unref_locked(struct fetch *f)
{
    assert(f->refs > 0);
    if (--f->refs == 0)
        g_free(f);
}

/* ---- the worker ---- */

static void note_speed(struct fetch *f, uint64_t began_ns, uint64_t len, bool slowed)
{
    uint64_t now = clock_mono_ns(), first = f->arrival.first_ns ? f->arrival.first_ns : now;
    mutex_lock(&f->cf->mu);
    ra_speed_note(&f->cf->speed, first - began_ns, now - first, len, slowed);
    mutex_unlock(&f->cf->mu);
}

/* What keeps bytes from the file without a word from the store: whoever waits may ask the store himself. */
static int fail_locally(struct fetch *f, int r)
{
    mutex_lock(&f->cf->mu);
    f->local_failure = r == -ENOSPC || r == -ENOMEM;
    mutex_unlock(&f->cf->mu);
    return r;
}

/* What a sink wants of a whole object. */
struct window {
    uint64_t off, end;
    obj_sink_fn *sink;
    void *ctx;
};

static int on_whole_body(void *ctx, uint64_t off, const void *buf, size_t len)
{
    const struct window *w = ctx;
    uint64_t a = MAX(off, w->off), b = MIN(off + len, w->end);
    return a < b ? w->sink(w->ctx, a, (const uint8_t *)buf + (a - off), b - a) : 0;
}

/* Gives w what it wants of a source with `limit` bytes. */
static int get_range(struct cache *c, const char *key, const struct etag *etag, uint64_t limit, struct window *w)
{
    const struct etag *match = etag_is_set(etag) ? etag : NULL;
    return is_asked_whole(c, key, limit)
               ? objstore_get(c->store, key, 0, limit, match, on_whole_body, w, NULL)
               : objstore_get(c->store, key, w->off, w->end - w->off, match, w->sink, w->ctx, NULL);
}

static int get_into_file(struct fetch *f, const char *key, const struct etag *etag, uint64_t start, uint64_t len)
{
    uint64_t began = clock_mono_ns();
    int64_t slowdowns = metric_get(M_store_slowdowns);
    int r = arrival_begin(&f->arrival, start, len);
    if (r < 0)
        return fail_locally(f, r);
    struct window w = {start, start + len, fetch_on_body, f};
    objstore_behind(&f->behind);
    r = get_range(f->cf->c, key, etag, f->limit, &w);
    objstore_behind(NULL);
    if (r == 0)
        note_speed(f, began, len, metric_get(M_store_slowdowns) != slowdowns);
    int end_r = fetch_flush(f);
    return r < 0 ? r : end_r;
}

/* The GET, with room for it. No lock held. */
static int transfer(struct fetch *f, const char *key, const struct etag *etag, uint64_t start, uint64_t len)
{
    struct cfile *cf = f->cf;
    cfile_punch_window(cf, len);
    struct cache_tier *t = cfile_tier(cf);
    int r = space_reserve(t, len, SPACE_FETCH);
    if (r < 0)
        return fail_locally(f, r);
    r = get_into_file(f, key, etag, start, len);
    arrival_end(&f->arrival);
    cfile_account(cf);
    space_release(t, len);
    return r;
}

static void finish_locked(struct cfile *cf, struct fetch *f, int r)
{
    uint64_t next = f->done_bytes >= f->cut_bytes ? chunks_for(f->done_bytes) : chunk_of(f->done_bytes);
    if (f->done_bytes >= f->cut_bytes)
        r = 0; /* all that is still wanted is here */
    else if (r == 0)
        r = -EBADMSG; /* the object is shorter than its listing said */
    next = MAX(next, f->first);
    if (next < f->end)
        chunkset_unset(&cf->busy, next, f->end - next);
    f->err = r;
    f->running = false;
    f->finished = true;
    if (r == 0)
        (void)__atomic_add_fetch(&cf->c->fetch.progress, 1, __ATOMIC_RELAXED);
    g_queue_unlink(&cf->fetches, &f->cf_link);
    cond_broadcast(&cf->changed);
}

void cache_on_stale(struct cache *c, cache_newer_fn *fn, void *ctx)
{
    c->newer_ctx = ctx;
    c->newer = fn;
}

/* Those who wait try again when the source is another one now. */
static void look_for_newer(struct cfile *cf, const char *key, const struct etag *etag)
{
    struct cache *c = cf->c;
    struct etag now;
    if (c->newer && c->newer(c->newer_ctx, cf->vid, cf->ino, key, &now) == 0 && !etag_equal(&now, etag))
        cache_file_rebase(cf, key, &now);
}

static void run_fetch(struct fetch *f)
{
    struct cfile *cf = f->cf;
    g_autofree char *key = NULL;
    struct etag etag;
    mutex_lock(&cf->mu);
    uint64_t start = chunk_start(f->first);
    f->running = true;
    f->cut_bytes = f->first < f->end ? MIN(chunk_start(f->end), cf->limit) : start;
    f->done_bytes = start;
    f->limit = cf->limit;
    f->src_gen = cf->src_gen;
    f->move_gen = cf->move_gen;
    key = g_strdup(cf->src_key);
    etag = cf->src_etag;
    uint64_t len = f->cut_bytes > start ? f->cut_bytes - start : 0;
    mutex_unlock(&cf->mu);
    int r = 0;
    if (len)
        r = key ? transfer(f, key, &etag, start, len) : -EIO;
    if (r == -ESTALE || r == -ENOENT)
        look_for_newer(cf, key, &etag);
    mutex_lock(&cf->mu);
    finish_locked(cf, f, r);
    mutex_unlock(&cf->mu);
    CRASH_POINT(fetch_bytes);
    if (cfile_check(cf) < 0) /* what is wrong is absent now, if it was not before: whoever wants it sees to it */
        log_debug("cache", "a file is not whole yet vid=%lu", (unsigned long)cf->vid);
    r = cfile_save_if_needed(cf);
    CRASH_POINT(fetch_saved);
    if (r < 0)
        log_warn("cache", "cannot record fetched chunks vid=%lu r=%s", (unsigned long)cf->vid, err_name(r));
}

/* A few workers are left to those who wait: a GET that runs is not interrupted. */
static bool may_run_locked(const struct cache_fetch *q, enum fetch_prio prio)
{
    return prio == FETCH_URGENT || q->stop || q->n_behind < MAX(q->n_max - MAX(q->n_max / 8, 1), 1);
}

static struct fetch *queue_pop(struct cache_fetch *q)
{
    struct fetch *f = NULL;
    mutex_lock(&q->mu);
    for (;;) {
        GList *l = NULL;
        for (unsigned p = 0; !l && p < N_FETCH_PRIOS; p++)
            l = may_run_locked(q, p) ? g_queue_pop_head_link(&q->queue[p]) : NULL;
        if (l) {
            f = l->data;
            q->n_behind += f->prio != FETCH_URGENT;
            break;
        }
        if (q->stop)
            break;
        cond_wait(&q->work, &q->mu);
    }
    mutex_unlock(&q->mu);
    return f;
}

static void *worker_main(void *arg)
{
    struct cache *c = arg;
    struct fetch *f;
    while ((f = queue_pop(&c->fetch))) {
        struct cfile *cf = f->cf;
        mutex_lock(&c->fetch.mu);
        bool stop = c->fetch.stop;
        mutex_unlock(&c->fetch.mu);
        if (stop) {
            mutex_lock(&cf->mu);
            fetch_carve_locked(cf, f->first, f->end);
            f->done_bytes = 0;
            f->cut_bytes = UINT64_MAX;
            finish_locked(cf, f, -ECANCELED);
            mutex_unlock(&cf->mu);
        } else {
            run_fetch(f);
        }
        mutex_lock(&c->fetch.mu);
        c->fetch.n_behind -= f->prio != FETCH_URGENT;
        mutex_unlock(&c->fetch.mu);
        mutex_lock(&cf->mu);
        fetch_unref_locked(f);
        mutex_unlock(&cf->mu);
        cfile_own_unref(cf);
    }
    return NULL;
}

int fetch_pool_start(struct cache *c)
{
    struct cache_fetch *q = &c->fetch;
    unsigned n = MAX(c->cfg.max_downloads, 1);
    q->threads = g_new0(pthread_t, n);
    q->n_max = n;
    for (q->n_threads = 0; q->n_threads < n; q->n_threads++) {
        int r = thread_start(&q->threads[q->n_threads], "fetch", worker_main, c);
        if (r < 0)
            return r;
    }
    return 0;
}

void fetch_pool_stop(struct cache *c)
{
    struct cache_fetch *q = &c->fetch;
    mutex_lock(&q->mu);
    q->stop = true;
    cond_broadcast(&q->work);
    mutex_unlock(&q->mu);
    for (unsigned i = 0; i < q->n_threads; i++)
        (void)pthread_join(q->threads[i], NULL);
    g_free(q->threads);
    q->threads = NULL;
    q->n_threads = 0;
}

/* ---- waiting ---- */

struct got_on { /* as of the last look */
    uint64_t file, all;
};

/* Whether waiting for f is not in vain: bytes of the file came, or while f is queued whatever any fetch achieved. */
static bool gets_on_locked(const struct cfile *cf, const struct fetch *f, struct got_on *seen)
{
    struct got_on now = {__atomic_load_n(&cf->progress, __ATOMIC_RELAXED),
                         __atomic_load_n(&cf->c->fetch.progress, __ATOMIC_RELAXED)};
    bool yes = now.file != seen->file || (!f->running && now.all != seen->all);
    *seen = now;
    return yes;
}

/* Waits for f to bring chunk; f is ours by a reference. */
static int wait_for_fetch_locked(struct cfile *cf, struct fetch *f, uint64_t chunk, enum fetch_prio prio,
                                 bool *ret_local) REQUIRES(cf->mu)
{
    uint64_t limit = 2 * cf->c->cfg.op_timeout_ns, deadline = clock_mono_ns() + limit;
    struct got_on seen;
    int r = 0;
    f->refs++;
    (void)__atomic_add_fetch(&f->n_waiting, prio == FETCH_URGENT, __ATOMIC_RELAXED);
    if (prio == FETCH_URGENT) /* it runs already, perhaps without its turn at the store */
        __atomic_store_n(&f->behind, 0, __ATOMIC_RELAXED);
    (void)gets_on_locked(cf, f, &seen);
    while (r == 0 && !f->finished && chunk >= f->first && chunk < f->end && !cfile_readable_locked(cf, chunk)) {
        r = patience_wait(&cf->changed, &cf->mu, deadline); /* the fetch goes on behind */
        if (!gets_on_locked(cf, f, &seen))
            continue;
        deadline = clock_mono_ns() + limit;
        patience_renew();
        r = r == -ETIMEDOUT ? 0 : r;
    }
    if (cfile_readable_locked(cf, chunk))
        r = 0;
    if (f->finished && f->err < 0 && f->src_gen == cf->src_gen && !cfile_readable_locked(cf, chunk)) {
        r = f->err;
        *ret_local = f->local_failure;
    }
    (void)__atomic_sub_fetch(&f->n_waiting, prio == FETCH_URGENT, __ATOMIC_RELAXED);
    fetch_unref_locked(f);
    return r;
}

int fetch_wait_locked(struct cfile *cf, uint64_t chunk, uint64_t end, enum fetch_prio prio, bool *ret_local)
    REQUIRES(cf->mu)
{
    mutex_assert_held(&cf->mu);
    *ret_local = false;
    if (cfile_present_locked(cf, chunk)) {
        if (!chunkset_get(&cf->verify, chunk))
            return 0;
        if (chunkset_get(&cf->busy, chunk))
            return patience_wait(&cf->changed, &cf->mu, UINT64_MAX);
        cfile_verify_chunk_locked(cf, chunk);
        return 0;
    }
    if (!cf->src_key)
        return -EIO;
    struct fetch *f = fetch_find_locked(cf, chunk);
    if (f && !f->running && prio < f->prio) {
        uint64_t first = chunk;
        end = MAX(end, chunk + 1);
        widen_locked(cf, &first, &end);
        fetch_carve_locked(cf, first, end);
        f = NULL;
    }
    if (!f && chunkset_get(&cf->busy, chunk))
        return patience_wait(&cf->changed, &cf->mu, UINT64_MAX); /* a writer or the punch owns it */
    if (!f) {
        fetch_start_locked(cf, chunk, MAX(end, chunk + 1), prio);
        f = fetch_find_locked(cf, chunk);
    }
    return f ? wait_for_fetch_locked(cf, f, chunk, prio, ret_local) : 0;
}

/* ---- without the local file ---- */

struct direct {
    uint8_t *buf;
    uint64_t off, len, got;
};

static int on_direct_body(void *ctx, uint64_t off, const void *buf, size_t len)
{
    struct direct *d = ctx;
    if (off < d->off || off - d->off > d->len || len > d->len - (off - d->off))
        return -EBADMSG;
    memcpy(d->buf + (off - d->off), buf, len);
    d->got += len;
    return 0;
}

int fetch_direct(struct cfile *cf, void *buf, size_t len, uint64_t off)
{
    g_autofree char *key = NULL;
    struct etag etag;
    uint64_t limit;
    if (!cfile_source(cf, &key, &etag, &limit))
        return -EIO;
    struct direct d = {.buf = buf, .off = off, .len = off < limit ? MIN(len, limit - off) : 0};
    memset(buf, 0, len);
    if (d.len == 0)
        return 0;
    struct window w = {off, off + d.len, on_direct_body, &d};
    int r = get_range(cf->c, key, &etag, limit, &w);
    if (r == -ESTALE || r == -ENOENT)
        look_for_newer(cf, key, &etag);
    return r < 0 ? r : d.got < d.len ? -EBADMSG : 0;
}
