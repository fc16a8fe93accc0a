/*
 * Giving back clean chunks of a file that is in use: the window of a file too large to be kept, and the last resort under pressure.
 *
 * Order: presence is taken from memory (no reader begins), then from the database (for good where no checksum would find the hole), then the bytes go. Chunks with a read or write in progress, dirty ones
 * and those beyond the source's limit stay. Never done to a pinned file, unless it is too large to be kept whole, nor to a file whose descriptor the kernel has: punch_hole() is the only place and asserts it.
 */
#include "base/crash.h"
#include "base/log.h"
#include "base/metric.h"
#include "cache_fetch.h"
#include "cache_file.h"
#include "cache_space.h"

#include <assert.h>
#include <fcntl.h>

#define RUNS_MAX     64u
#define WINDOW_SHARE 4u /* a windowed file keeps 1/4 of the cache */

struct punch {
    struct chunk_run runs[RUNS_MAX];
    struct cfile_io ios[RUNS_MAX];
    unsigned n;
    uint64_t chunks;
};

static int punch_hole(struct cfile *cf, const struct chunk_run *run)
{
    assert(cf->pass == CACHE_PASS_OFF);
    int r = cfile_wfd_get(cf);
    if (r >= 0) {
        r = RET_ERRNO(fallocate(r, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk_start(run->first),
                                (off_t)chunk_start(run->n)));
        cfile_wfd_put(cf);
    }
    return r;
}

static bool may_punch_locked(const struct cfile *cf, uint64_t chunk)
{
    return chunkset_get(&cf->present, chunk) && chunk_start(chunk) < cf->limit &&
           !chunkset_get(&cf->dirty_chunks, chunk) && !chunkset_get(&cf->busy, chunk) &&
           !cfile_io_overlaps_locked(cf, chunk, chunk + 1);
}

/* Takes the chunk out of use and adds it to the plan; false when the plan is full. */
static bool plan_locked(struct cfile *cf, struct punch *p, uint64_t chunk)
{
    struct chunk_run *last = p->n ? &p->runs[p->n - 1] : NULL;
    if (last && last->first + last->n == chunk)
        last->n++;
    else if (p->n < RUNS_MAX)
        p->runs[p->n++] = (struct chunk_run){.first = chunk, .n = 1};
    else
        return false;
    chunkset_unset(&cf->present, chunk, 1);
    chunkset_unset(&cf->verify, chunk, 1);
    chunkset_set(&cf->busy, chunk, 1);
    cfile_touch_segments_locked(cf, chunk, chunk + 1);
    p->chunks++;
    return true;
}

bool cfile_track_presence_locked(struct cfile *cf)
{
    if (!cf->all_present)
        return true;
    if (cf->dirty)
        return false; /* which chunks are clean is not known */
    chunkset_set(&cf->present, 0, chunks_for(cf->size));
    cf->all_present = false;
    cf->segmented = cf->limit_unsaved = true;
    (void)space_entry_flags(cf->c, cf->entry, CACHED_SEGMENTS | CACHED_WRITTEN, CACHED_COMPLETE);
    cfile_touch_segments_locked(cf, 0, chunks_for(cf->size));
    return true;
}

static void choose_locked(struct cfile *cf, struct punch *p, uint64_t want_chunks)
{
    while (p->chunks < want_chunks && cf->arrived.head) {
        uint64_t chunk = GPOINTER_TO_SIZE(g_queue_peek_head(&cf->arrived));
        if (may_punch_locked(cf, chunk) && !plan_locked(cf, p, chunk))
            return;
        (void)g_queue_pop_head(&cf->arrived);
    }
    uint64_t end = chunks_for(cf->limit);
    for (uint64_t i = chunkset_next_set(&cf->present, 0, end); i < end && p->chunks < want_chunks;
         i = chunkset_next_set(&cf->present, i + 1, end)) {
        if (may_punch_locked(cf, i) && !plan_locked(cf, p, i))
            return;
    }
}

/* One batch. Returns bytes freed. */
static uint64_t punch_batch(struct cfile *cf, uint64_t want)
{
    g_autofree struct punch *p = g_new0(struct punch, 1);
    mutex_lock(&cf->mu);
    uint32_t flags = space_entry_flags(cf->c, cf->entry, 0, 0);
    bool given = cf->pass != CACHE_PASS_OFF || (flags & CACHED_GIVEN);
    bool kept = (flags & CACHED_PINNED) && !cfile_windowed_locked(cf);
    if (given || kept || cf->resizing || !cf->src_key || cf->limit == 0 || !cfile_track_presence_locked(cf)) {
        mutex_unlock(&cf->mu);
        return 0;
    }
    choose_locked(cf, p, chunks_for(want));
    for (unsigned i = 0; i < p->n; i++)
        cfile_io_begin_locked(cf, &p->ios[i], p->runs[i].first, p->runs[i].first + p->runs[i].n);
    mutex_unlock(&cf->mu);
    if (p->n == 0)
        return 0;
    bool sync = cached_unchecked(space_entry_flags(cf->c, cf->entry, 0, 0));
    int r = sync ? cfile_save_synced(cf) : cfile_save(cf);
    CRASH_POINT(punch_recorded);
    uint64_t freed = 0;
    for (unsigned i = 0; r == 0 && i < p->n; i++) {
        r = punch_hole(cf, &p->runs[i]);
        if (r == 0)
            freed += p->runs[i].n * META_CHUNK_BYTES;
    }
    CRASH_POINT(punch_done);
    mutex_lock(&cf->mu);
    for (unsigned i = 0; i < p->n; i++) {
        chunkset_unset(&cf->busy, p->runs[i].first, p->runs[i].n);
        cfile_io_end_locked(cf, &p->ios[i]);
    }
    mutex_unlock(&cf->mu);
    if (r < 0)
        log_warn("cache", "cannot free chunks vid=%lu r=%s", (unsigned long)cf->vid, err_name(r));
    metric_add(M_evicted_bytes, (int64_t)freed);
    return freed;
}

uint64_t cfile_punch(struct cfile *cf, uint64_t want)
{
    uint64_t freed = 0;
    while (freed < want) {
        uint64_t n = punch_batch(cf, want - freed);
        if (n == 0)
            break;
        freed += n;
    }
    if (freed)
        cfile_account(cf);
    return freed;
}

void cfile_punch_window(struct cfile *cf, uint64_t len)
{
    struct meta_cached rec;
    mutex_lock(&cf->mu);
    bool windowed = cfile_windowed_locked(cf);
    mutex_unlock(&cf->mu);
    if (!windowed)
        return;
    uint64_t window = cfile_tier(cf)->limit_bytes / WINDOW_SHARE;
    space_entry_record(cf->c, cf->entry, &rec);
    if (rec.bytes + len > window)
        (void)cfile_punch(cf, rec.bytes + len - window);
}
