/*
 * Size, holes, and waiting for whole files: truncate, growth by bytes of the source, fallocate, seek, fill, prefetch.
 *
 * A truncate has the file for itself as far as the disk goes: cf->resizing keeps new reads, writes and fetch writes out, those running are
 * waited for (disk time only: a fetch that waits for the store is shortened instead). The file is cut first, then limit and bits are saved: a crash between leaves
 * bits past the end, which opening ignores. Growth goes the other way round: a limit past the end is ignored too.
 */
#include "base/crash.h"
#include "base/log.h"
#include "cache_fetch.h"
#include "cache_file.h"
#include "cache_place.h"
#include "cache_space.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK_TRIES 3  /* of content that does not fit its ETag */
#define FILL_ROUNDS 16 /* others may take chunks away meanwhile */

static void resize_begin_locked(struct cfile *cf) REQUIRES(cf->mu)
{
    while (cf->resizing)
        cond_wait(&cf->changed, &cf->mu);
    cf->resizing = true;
    while (cf->ios || fetch_writing_locked(cf))
        cond_wait(&cf->changed, &cf->mu);
}

static void resize_end_locked(struct cfile *cf)
{
    cf->resizing = false;
    cond_broadcast(&cf->changed);
}

/* State after the file was cut to `size`. The chunk of the new end, if it was absent, is fetched anew up to the new limit. */
static void shrink_locked(struct cfile *cf, uint64_t size)
{
    uint64_t keep = chunks_for(size), n = chunks_for(cf->size) - MIN(keep, chunks_for(cf->size));
    if (size < cf->limit) {
        cf->limit = size;
        cf->limit_unsaved = cf->segmented;
    }
    chunkset_unset(&cf->present, keep, n);
    chunkset_unset(&cf->dirty_chunks, keep, n);
    chunkset_unset(&cf->verify, keep, n);
    cfile_touch_segments_locked(cf, keep, keep + n);
}

/* The chunk that holds the end changes its content when bytes go or zeros come. */
static void mark_edge_locked(struct cfile *cf, uint64_t end)
{
    uint64_t edge = chunk_of(end);
    if (end % META_CHUNK_BYTES && chunk_start(edge) < cf->size && (cf->all_present || chunkset_get(&cf->present, edge)))
        (void)cfile_mark_dirty_locked(cf, edge, edge + 1);
}

static int ftruncate_local(struct cfile *cf, uint64_t size)
{
    int r = cfile_wfd_get(cf);
    if (r >= 0) {
        r = RET_ERRNO(ftruncate(r, (off_t)size));
        cfile_wfd_put(cf);
    }
    return r;
}

static int fallocate_local(struct cfile *cf, int mode, uint64_t off, uint64_t len)
{
    int r = cfile_wfd_get(cf);
    if (r >= 0) {
        r = RET_ERRNO(fallocate(r, mode, (off_t)off, (off_t)len));
        cfile_wfd_put(cf);
    }
    return r;
}

static int truncate_marked(struct cfile *cf, uint64_t size)
{
    mutex_lock(&cf->mu);
    resize_begin_locked(cf);
    uint64_t old = cf->size;
    cfile_verify_edge_locked(cf, MIN(size, old));
    if (size < old)
        fetch_cut_locked(cf, chunk_of(size));
    mutex_unlock(&cf->mu);
    int r = ftruncate_local(cf, size);
    CRASH_POINT(truncate_cut);
    mutex_lock(&cf->mu);
    if (r == 0) {
        if (size < old) {
            fetch_cut_locked(cf, chunk_of(size)); /* once more: by what began meanwhile with the limit of before */
            shrink_locked(cf, size);
        }
        mark_edge_locked(cf, MIN(size, old));
        cf->size = size;
        cf->stamp++;
        if (size == 0 && (space_entry_flags(cf->c, cf->entry, 0, CACHED_FAILED) & CACHED_FAILED))
            cf->record_unsaved = true; /* or a kill brings it back for the content that comes */
    }
    resize_end_locked(cf);
    mutex_unlock(&cf->mu);
    if (r < 0)
        return r;
    upload_note_write(cf, MIN(size, old), 0);
    cfile_account(cf);
    return cfile_save_if_needed(cf);
}

void cache_file_cut_begin(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    cf->n_cuts++;
    mutex_unlock(&cf->mu);
}

void cache_file_cut_end(struct cfile *cf, bool ok)
{
    mutex_lock(&cf->mu);
    cf->n_cuts--;
    if (ok) {
        cf->cut_bad = 0;
        cf->n_bad = cf->unchecked ? cf->n_bad : 0;
    }
    bool written = cf->dirty_chunks.n_set > 0 || cf->dirty_unknown;
    unsigned bad = cf->n_cuts == 0 && !written ? cf->cut_bad : 0;
    mutex_unlock(&cf->mu);
    if (bad == 0)
        return;
    if (cache_file_set_dirty(cf, false) < 0) /* who writes now has to see it come right first */
        log_warn("cache", "cache file could not be marked clean vid=%lu", (unsigned long)cf->vid);
    mutex_lock(&cf->mu);
    cf->unchecked = true;
    cf->n_bad = bad;
    cf->cut_bad = 0;
    mutex_unlock(&cf->mu);
}

static int truncate_whole(struct cfile *cf)
{
    cache_file_cut_begin(cf);
    int r = cfile_mark_dirty(cf);
    if (r == 0) {
        cfile_change_begin(cf);
        r = truncate_marked(cf, 0);
        cfile_change_end(cf);
    }
    cache_file_cut_end(cf, r == 0);
    return r;
}

int cache_file_truncate(struct cfile *cf, uint64_t size)
{
    if (size > INT64_MAX)
        return -EFBIG;
    cfile_refresh_size(cf);
    if (size == 0)
        return truncate_whole(cf);
    int r = cfile_mark_dirty(cf);
    if (r == 0)
        r = cfile_sync_came(cf); /* the chunk that holds the end */
    if (r < 0)
        return r;
    cfile_change_begin(cf);
    r = truncate_marked(cf, size);
    cfile_change_end(cf);
    return r;
}

/* ---- growth by bytes of the source ---- */

int cfile_begin_source(struct cfile *cf, const struct cache_source *src)
{
    mutex_lock(&cf->mu);
    bool empty = cf->size == 0 && !cf->src_key && cf->pass == CACHE_PASS_OFF;
    if (empty) {
        cf->src_key = g_strdup(src->key);
        cf->src_etag = src->etag;
        cf->src_gen++;
        cf->limit = 0;
        cf->all_present = cf->dirty_unknown = false;
        cf->segmented = true;
        chunkset_clear(&cf->present);
        chunkset_clear(&cf->dirty_chunks);
        cf->limit_unsaved = cf->record_unsaved = true;
        (void)space_entry_flags(cf->c, cf->entry, CACHED_SEGMENTS, CACHED_COMPLETE);
    }
    mutex_unlock(&cf->mu);
    return empty ? cfile_save_if_needed(cf) : -EINVAL;
}

static void set_limit_locked(struct cfile *cf, uint64_t limit)
{
    cf->limit = limit;
    cf->limit_unsaved = true;
}

int cfile_grow_source(struct cfile *cf, uint64_t off, uint64_t end)
{
    mutex_lock(&cf->mu);
    resize_begin_locked(cf);
    bool ends_here = cf->src_key && cf->size == off && cf->limit == off && !cf->all_present;
    if (ends_here)
        set_limit_locked(cf, end);
    mutex_unlock(&cf->mu);
    int r = ends_here ? cfile_save_if_needed(cf) : -EINVAL;
    if (r == 0)
        r = ftruncate_local(cf, end);
    mutex_lock(&cf->mu);
    if (r == 0) {
        cf->size = end;
        cf->stamp++;
    } else if (ends_here) {
        set_limit_locked(cf, off);
    }
    resize_end_locked(cf);
    mutex_unlock(&cf->mu);
    return r;
}

bool cache_copy_continues(struct cfile *cf, const struct cache_source *src, uint64_t size)
{
    mutex_lock(&cf->mu);
    bool same = cf->src_key && g_str_equal(cf->src_key, src->key) && etag_equal(&cf->src_etag, &src->etag);
    bool ends_here = cf->size == size && cf->limit == size && !cf->all_present;
    mutex_unlock(&cf->mu);
    return same && ends_here;
}

/* ---- fallocate ---- */

static ssize_t do_fallocate(struct cfile *cf, const void *arg, uint64_t off, uint64_t len)
{
    int r = fallocate_local(cf, *(const int *)arg, off, len);
    return r < 0 ? r : (ssize_t)len;
}

/* Disk space without change of content. */
static int allocate(struct cfile *cf, uint64_t off, uint64_t len)
{
    struct cfile_io io;
    mutex_lock(&cf->mu);
    while (cf->resizing)
        cond_wait(&cf->changed, &cf->mu);
    cfile_io_begin_locked(cf, &io, chunk_of(off), chunks_for(off + len));
    mutex_unlock(&cf->mu);
    int r = fallocate_local(cf, FALLOC_FL_KEEP_SIZE, off, len);
    mutex_lock(&cf->mu);
    cfile_io_end_locked(cf, &io);
    mutex_unlock(&cf->mu);
    return r;
}

static int zero_range(struct cfile *cf, int mode, uint64_t off, uint64_t len)
{
    bool grow = !(mode & FALLOC_FL_KEEP_SIZE);
    uint64_t size = cache_file_size(cf);
    if (!grow)
        len = off < size ? MIN(len, size - off) : 0;
    if (len == 0)
        return 0;
    cfile_change_begin(cf);
    ssize_t n = cfile_modify(cf, off, len, grow, do_fallocate, &mode);
    upload_note_write(cf, off, len);
    cfile_change_end(cf);
    return n < 0 ? (int)n : 0;
}

int cache_file_fallocate(struct cfile *cf, int mode, uint64_t off, uint64_t len)
{
    bool zero = mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) || mode == FALLOC_FL_ZERO_RANGE ||
                mode == (FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE);
    if (!zero && mode != 0 && mode != FALLOC_FL_KEEP_SIZE)
        return -EOPNOTSUPP;
    if (len == 0 || off + len < off || off + len > INT64_MAX)
        return len ? -EFBIG : -EINVAL;
    int r = place_for_writing(cf); /* before room is asked of its tier */
    if (r < 0)
        return r;
    cfile_refresh_size(cf);
    mutex_lock(&cf->mu);
    cf->preallocated = true;
    mutex_unlock(&cf->mu);
    uint64_t need = mode & FALLOC_FL_PUNCH_HOLE ? 0 : len;
    struct cache_tier *t = cfile_tier(cf);
    r = space_reserve(t, need, SPACE_WRITE);
    if (r < 0)
        return r;
    if (zero)
        r = zero_range(cf, mode, off, len);
    else
        r = allocate(cf, off, len);
    if (r == 0 && mode == 0 && off + len > cache_file_size(cf))
        r = cache_file_truncate(cf, off + len);
    cfile_account(cf);
    space_release(t, need);
    return r;
}

int64_t cache_file_seek(struct cfile *cf, uint64_t off, int whence)
{
    uint64_t size = cache_file_size(cf);
    if (off >= size)
        return -ENXIO;
    if (cache_file_complete(cf)) {
        int fd = cfile_fd(cf);
        int64_t at = fd < 0 ? fd : RET_ERRNO(lseek(fd, (off_t)off, whence));
        if (cache_file_complete(cf)) /* still: it did not begin anew on another disk meanwhile */
            return at;
    }
    return whence == SEEK_DATA ? (int64_t)off : (int64_t)size;
}

/* ---- fetching ahead ---- */

struct fill {
    void (*progress)(void *ctx, uint64_t bytes);
    void *ctx;
    uint64_t told; /* present bytes as of the last call */
};

static void tell(struct cfile *cf, struct fill *fl)
{
    uint64_t now = cache_file_present_bytes(cf);
    if (fl->progress && now > fl->told)
        fl->progress(fl->ctx, now - fl->told);
    fl->told = MAX(now, fl->told);
}

/* Chunks [first, end) as far as the source has them. */
static int fetch_and_wait(struct cfile *cf, uint64_t first, uint64_t end, enum fetch_prio prio, struct fill *fl)
{
    int r = 0;
    mutex_lock(&cf->mu);
    (void)fetch_start_locked(cf, first, MIN(end, chunks_for(cf->limit)), prio);
    mutex_unlock(&cf->mu);
    for (uint64_t i = first; r == 0; i++) {
        bool local, waited = false;
        mutex_lock(&cf->mu);
        bool more = i < MIN(end, chunks_for(cf->limit));
        while (more && r == 0 && !cfile_readable_locked(cf, i)) {
            r = fetch_wait_locked(cf, i, i + 1, prio, &local);
            waited = true;
        }
        mutex_unlock(&cf->mu);
        if (waited)
            tell(cf, fl);
        if (!more)
            break;
    }
    tell(cf, fl); /* what came without a wait */
    return r;
}

/* One pass over all chunks. -EAGAIN: what came was wrong, or others took away what was here before the end. */
static int fill_once(struct cfile *cf, enum fetch_prio prio, struct fill *fl)
{
    int r = fetch_and_wait(cf, 0, UINT64_MAX, prio, fl);
    if (r == 0)
        r = cfile_check(cf);
    return r == 0 && !cache_file_complete(cf) ? -EAGAIN : r;
}

/* Chunks that were taken away are fetched again while each pass leaves more of the file here than the one before; else it competes for room that is not there. */
static int fill_and_wait(struct cfile *cf, enum fetch_prio prio, struct fill *fl)
{
    unsigned first = cfile_doubts(cf), before = first;
    uint64_t most = 0;
    for (unsigned i = 0; i < FILL_ROUNDS; i++) {
        int r = fill_once(cf, prio, fl);
        if (r != -EAGAIN)
            return r;
        unsigned doubts = cfile_doubts(cf);
        if (doubts >= first + CHECK_TRIES)
            return -EIO; /* wrong bytes, again and again */
        uint64_t here = cache_file_present_bytes(cf);
        if (doubts == before && here <= most)
            return -ENOSPC;
        most = doubts == before ? here : 0;
        before = doubts;
    }
    return -ENOSPC;
}

int cache_file_fill(struct cfile *cf, bool urgent, bool wait, void (*progress)(void *ctx, uint64_t bytes), void *ctx)
{
    enum fetch_prio prio = urgent ? FETCH_URGENT : FETCH_FILL;
    struct fill fl = {.progress = progress, .ctx = ctx, .told = cache_file_present_bytes(cf)};
    mutex_lock(&cf->mu);
    bool windowed = cfile_windowed_locked(cf);
    if (!windowed && cf->src_key) {
        if (urgent)
            fetch_carve_locked(cf, 0, chunks_for(cf->limit)); /* what was queued for later is wanted now */
        (void)fetch_start_locked(cf, 0, chunks_for(cf->limit), prio);
    }
    mutex_unlock(&cf->mu);
    if (!wait)
        return 0;
    tell(cf, &fl); /* it may have come since it was asked for */
    if (cache_file_complete(cf))
        return 0;
    return windowed ? -EFBIG : fill_and_wait(cf, prio, &fl);
}

int cache_file_fill_range(struct cfile *cf, uint64_t off, uint64_t len, void (*progress)(void *ctx, uint64_t bytes),
                          void *ctx)
{
    struct fill fl = {.progress = progress, .ctx = ctx, .told = cache_file_present_bytes(cf)};
    mutex_lock(&cf->mu);
    bool windowed = cfile_windowed_locked(cf);
    mutex_unlock(&cf->mu);
    return windowed ? -EFBIG : fetch_and_wait(cf, chunk_of(off), chunks_for(off + len), FETCH_FILL, &fl);
}

void cache_file_prefetch(struct cfile *cf, uint64_t off, uint64_t len)
{
    mutex_lock(&cf->mu);
    if (len && off < cf->size) {
        uint64_t most = cfile_windowed_locked(cf) ? cfile_tier(cf)->limit_bytes / 16 : UINT64_MAX;
        len = MIN(MIN(len, cf->size - off), most);
        (void)fetch_start_locked(cf, chunk_of(off), chunks_for(off + len), FETCH_AHEAD);
    }
    mutex_unlock(&cf->mu);
}
