/*
 * Reading and writing.
 *
 * A read takes runs of readable chunks with pread and waits for fetches in between. A write first makes its range its own: chunks it covers wholly are
 * claimed without a fetch, chunks it changes in part are fetched first; those that are clean are dirty in the database before the first byte goes in. Then the bytes
 * go in, and the bits of chunks that were absent into the database, before it returns.
 *
 * When the local disk fails or has no room for fetched chunks, reads are served straight from the store; clean chunks that cannot be
 * read back are dropped and fetched again. Only changed bytes that the disk lost are an error.
 */
#include "base/clock.h"
#include "base/crash.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/patience.h"
#include "cache_fetch.h"
#include "cache_file.h"
#include "cache_space.h"

#include <assert.h>
#include <inttypes.h>
#include <unistd.h>

#define MAX_TRIES         16    /* for one chunk, before it is read past the cache */
#define FILL_PAUSE_US     20000 /* between tries of cache_file_write_mapped(), doubled from one to the next */
#define FILL_PAUSE_MAX_US 1000000
#define WORN_NS           NS_PER_S /* how long a late failure is the answer for the whole file */

/* ---- reading ---- */

struct reader {
    struct cfile *cf;
    uint8_t *buf;
    uint64_t off, pos, end;
    unsigned tries;
    uint64_t missed;
    bool user;    /* for a program, whose wait is bounded */
    bool careful; /* the disk failed in a longer run: chunk by chunk, to see which it was */
};

static ssize_t pread_all(int fd, uint8_t *buf, size_t len, uint64_t off)
{
    size_t got = 0;
    while (got < len) {
        ssize_t n = RET_ERRNO(pread(fd, buf + got, len - got, (off_t)(off + got)));
        if (n == -EINTR)
            continue;
        if (n < 0)
            return n;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

/* The disk cannot give back the chunk: a clean one goes, to be fetched again. 0, or -EIO when it was changed here. */
static int drop_unreadable_locked(struct cfile *cf, uint64_t chunk)
{
    if (!cf->src_key || chunk_start(chunk) >= cf->limit || !cfile_track_presence_locked(cf) ||
        chunkset_get(&cf->dirty_chunks, chunk))
        return -EIO;
    if (cfile_io_overlaps_locked(cf, chunk, chunk + 1))
        return 0; /* others are still reading: they or the next try will drop it */
    chunkset_unset(&cf->present, chunk, 1);
    cfile_touch_segments_locked(cf, chunk, chunk + 1);
    return 0;
}

/* Reads the run of readable chunks at rd->pos. cf->mu is released meanwhile. */
static int read_run_locked(struct reader *rd, uint64_t run_end) NO_TSA
{
    struct cfile *cf = rd->cf;
    struct cfile_io io;
    struct cache_tier *t = cfile_tier(cf);
    uint64_t n = MIN(rd->end, chunk_start(run_end)) - rd->pos, moves = cf->move_gen;
    cfile_io_begin_locked(cf, &io, chunk_of(rd->pos), run_end);
    mutex_unlock(&cf->mu);
    int fd = cfile_fd(cf);
    ssize_t got = tier_fault(t) ? -EIO : fd < 0 ? fd : pread_all(fd, rd->buf + (rd->pos - rd->off), n, rd->pos);
    tier_note_io(t, got);
    mutex_lock(&cf->mu);
    cfile_io_end_locked(cf, &io);
    if (moves != cf->move_gen)
        return 0; /* read from the file of before, or from the empty one after it: look again */
    if (got == (ssize_t)n) {
        rd->pos += n;
        rd->tries = 0;
        return 0;
    }
    if (got >= 0 && cf->all_present) { /* shortened by a passthrough writer: this is the end */
        rd->pos += (uint64_t)got;
        rd->end = rd->pos;
        return 0;
    }
    log_debug("cache", "cannot read back chunks vid=%" PRIu64 " r=%zd", cf->vid, got);
    rd->careful = true;
    if (run_end > chunk_of(rd->pos) + 1)
        return 0;
    rd->tries = MAX_TRIES; /* past the cache this time: whoever comes next sees whether the disk takes it again */
    return drop_unreadable_locked(cf, chunk_of(rd->pos));
}

/* From rd->pos to the next readable chunk straight from the store. cf->mu is released meanwhile. */
static int read_past_cache_locked(struct reader *rd) NO_TSA
{
    struct cfile *cf = rd->cf;
    uint64_t stop = chunk_of(rd->pos) + 1, last = chunks_for(rd->end);
    while (stop < last && !cfile_present_locked(cf, stop))
        stop++;
    uint64_t n = MIN(rd->end, chunk_start(stop)) - rd->pos, gen = cf->src_gen;
    mutex_unlock(&cf->mu);
    int r = fetch_direct(cf, rd->buf + (rd->pos - rd->off), n, rd->pos);
    mutex_lock(&cf->mu);
    bool lost = r == -ESTALE || r == -ENOENT || r == -EIO; /* -EIO: it has no source any more, and is whole */
    if (lost && gen != cf->src_gen)
        return 0; /* from what it was, not from what it is: look again */
    if (r < 0)
        return r;
    rd->pos += n;
    rd->missed += n;
    rd->tries = 0;
    return 0;
}

/*
 * The kernel reads a page again by itself when a read ahead of it failed. A program that waited once for all the time there is would wait twice: so who comes right after a
 * failure that took long gets the same one, unless bytes have come meanwhile.
 */
static int worn_locked(const struct reader *rd)
{
    const struct cfile *cf = rd->cf;
    bool still = cf->worn.progress == __atomic_load_n(&cf->progress, __ATOMIC_RELAXED);
    bool holds = rd->user && cf->worn.err && still && clock_mono_ns() - cf->worn.at_ns < WORN_NS;
    return holds ? cf->worn.err : 0;
}

static void note_worn_locked(struct cfile *cf, int r)
{
    if (r == -EINTR || !patience_worn())
        return;
    cf->worn.at_ns = clock_mono_ns();
    cf->worn.progress = __atomic_load_n(&cf->progress, __ATOMIC_RELAXED);
    cf->worn.err = r;
}

static int read_miss_locked(struct reader *rd) NO_TSA
{
    struct cfile *cf = rd->cf;
    uint64_t chunk = chunk_of(rd->pos);
    bool local;
    if (worn_locked(rd) < 0)
        return worn_locked(rd);
    if (++rd->tries > MAX_TRIES && cf->src_key && !chunkset_get(&cf->busy, chunk))
        return read_past_cache_locked(rd);
    rd->missed += MIN(rd->end, chunk_start(chunk + 1)) - rd->pos;
    int r = fetch_wait_locked(cf, chunk, chunks_for(rd->end), FETCH_URGENT, &local);
    if (r < 0 && local)
        return read_past_cache_locked(rd);
    return r;
}

/* The rest of the file behind all others' wishes, from the reader on. */
static void fill_behind_locked(struct cfile *cf, uint64_t from)
{
    if (cfile_windowed_locked(cf))
        return;
    (void)fetch_start_locked(cf, chunk_of(from), chunks_for(cf->limit), FETCH_FILL);
    (void)fetch_start_locked(cf, 0, chunk_of(from), FETCH_FILL);
}

/* Queues what the reader wants and will want. One GET covers both when it is sequential. */
static void want_ahead_locked(struct reader *rd, const struct ra_advice *a)
{
    struct cfile *cf = rd->cf;
    if (a->len == 0)
        return;
    uint64_t first = chunk_of(rd->pos), want_end = chunks_for(rd->end), ahead_end = chunks_for(a->off + a->len);
    uint64_t piece = MAX(cf->c->cfg.get_bytes / META_CHUNK_BYTES, 1);
    while (first < want_end && cfile_present_locked(cf, first))
        first++;
    if (a->sequential && first < want_end)
        (void)fetch_want_locked(cf, first, MAX(want_end, MIN(ahead_end, first + piece)), FETCH_URGENT);
    (void)fetch_want_locked(cf, MAX(chunk_of(a->off), want_end), ahead_end, FETCH_AHEAD);
}

static void read_ahead_locked(struct reader *rd)
{
    struct cfile *cf = rd->cf;
    const struct cache_config *cfg = &cf->c->cfg;
    uint64_t limit = MIN(cfg->readahead_bytes, cfile_tier(cf)->limit_bytes / 16);
    uint64_t ceiling = ra_speed_window(&cf->speed, MAX(cfg->max_downloads, 1), cfg->get_bytes, limit);
    struct ra_advice a = readahead_note(&cf->ra, rd->pos, rd->end - rd->pos, cf->size, ceiling);
    if (cf->all_present)
        return;
    want_ahead_locked(rd, &a);
    if (limit > 0 && readahead_take_all(&cf->ra, cf->size))
        fill_behind_locked(cf, rd->end);
}

static ssize_t read_range(struct cfile *cf, void *buf, size_t len, uint64_t off, bool user)
{
    struct reader rd = {.cf = cf, .buf = buf, .off = off, .pos = off, .user = user};
    int r = 0;
    if (off + len < off)
        return -EINVAL;
    if (cfile_doubts(cf))
        r = cache_file_fill(cf, true, true, NULL, NULL);
    if (r < 0)
        return r;
    cfile_refresh_size(cf);
    mutex_lock(&cf->mu);
    rd.end = MIN(off + len, cf->size);
    if (user && off < rd.end)
        read_ahead_locked(&rd);
    while (r == 0) {
        while (cf->resizing)
            cond_wait(&cf->changed, &cf->mu);
        rd.end = MIN(rd.end, cf->size);
        if (rd.pos >= rd.end)
            break;
        uint64_t i = chunk_of(rd.pos), last = rd.careful ? i + 1 : chunks_for(rd.end);
        while (i < last && cfile_readable_locked(cf, i))
            i++;
        r = i > chunk_of(rd.pos) ? read_run_locked(&rd, i) : read_miss_locked(&rd);
    }
    if (r < 0)
        note_worn_locked(cf, r);
    mutex_unlock(&cf->mu);
    if (r < 0)
        return r;
    if (user) {
        uint64_t missed = MIN(rd.missed, rd.pos - off);
        metric_add(M_miss_bytes, (int64_t)missed);
        metric_add(M_hit_bytes, (int64_t)(rd.pos - off - missed));
    }
    return (ssize_t)(rd.pos - off);
}

ssize_t cache_file_read(struct cfile *cf, void *buf, size_t len, uint64_t off)
{
    return read_range(cf, buf, len, off, true);
}

ssize_t cfile_read_local(struct cfile *cf, void *buf, size_t len, uint64_t off)
{
    return read_range(cf, buf, len, off, false);
}

/* ---- changing ---- */

/* Whether [off, end) covers all of the chunk that could come from the source. */
static bool covers_locked(const struct cfile *cf, uint64_t chunk, uint64_t off, uint64_t end)
{
    return off <= chunk_start(chunk) && end >= MIN(chunk_start(chunk + 1), cf->limit);
}

/* A write must have the chunk in the file, so unlike a read it waits until there is room for it. cf->mu is released meanwhile. */
static int wait_for_chunk_room_locked(struct cfile *cf) NO_TSA
{
    mutex_unlock(&cf->mu);
    struct cache_tier *t = cfile_tier(cf);
    int r = space_reserve(t, META_CHUNK_BYTES, SPACE_WRITE);
    if (r == 0)
        space_release(t, META_CHUNK_BYTES);
    mutex_lock(&cf->mu);
    return r;
}

/* One step towards owning the chunk: 0 it may be claimed, 1 look again from the start, -errno. *tries counts fetches that found no room. */
static int prepare_chunk_locked(struct cfile *cf, uint64_t chunk, uint64_t off, uint64_t end, unsigned *tries)
    REQUIRES(cf->mu)
{
    bool covered = covers_locked(cf, chunk, off, end), local = false;
    if (chunkset_get(&cf->busy, chunk)) {
        struct fetch *f = fetch_find_locked(cf, chunk);
        if (f && covered && !f->running) {
            fetch_carve_locked(cf, chunk, chunk + 1);
            return 1;
        }
    } else if (cfile_readable_locked(cf, chunk) || covered) {
        return 0;
    }
    int r = fetch_wait_locked(cf, chunk, chunk + 1, FETCH_URGENT, &local);
    if (r == -ENOSPC && local && !covered && ++*tries < MAX_TRIES)
        r = wait_for_chunk_room_locked(cf);
    return r < 0 && (!covered || patience_over() < 0) ? r : 1;
}

/* Ends with the range claimed: absent chunks busy, an io over all of it. */
static int claim_range_locked(struct cfile *cf, struct cfile_io *io, uint64_t off, uint64_t end) REQUIRES(cf->mu)
{
    uint64_t first = chunk_of(off), stop = chunks_for(end);
    unsigned tries = 0;
again:
    while (cf->resizing)
        cond_wait(&cf->changed, &cf->mu);
    for (uint64_t i = first; i < stop; i++) {
        int r = prepare_chunk_locked(cf, i, off, end, &tries);
        if (r < 0)
            return r;
        if (r > 0 || cf->resizing)
            goto again;
    }
    for (uint64_t i = first; i < stop; i++) {
        chunkset_unset(&cf->verify, i, 1);
        if (!cfile_present_locked(cf, i))
            chunkset_set(&cf->busy, i, 1);
    }
    cfile_io_begin_locked(cf, io, first, stop);
    return 0;
}

/* A write that the disk cut short: the bytes in an absent chunk that is not covered now cannot be kept. */
static ssize_t usable_part_locked(const struct cfile *cf, uint64_t off, ssize_t n)
{
    uint64_t end = off + (uint64_t)n, last = chunk_of(end - 1);
    if (cfile_present_locked(cf, last) || covers_locked(cf, last, off, end))
        return n;
    return chunk_start(last) > off ? (ssize_t)(chunk_start(last) - off) : -ENOSPC;
}

/* Gives the range back: what was done becomes present and dirty. */
static void settle_range_locked(struct cfile *cf, uint64_t off, uint64_t end, uint64_t done_end)
{
    for (uint64_t i = chunk_of(off); i < chunks_for(end); i++) {
        bool absent = !cfile_present_locked(cf, i);
        if (absent)
            chunkset_unset(&cf->busy, i, 1);
        bool touched = chunk_start(i) < done_end;
        if (touched && (!absent || covers_locked(cf, i, off, done_end)))
            (void)cfile_mark_dirty_locked(cf, i, i + 1);
    }
}

/*
 * Clean chunks of the range are dirty in the database before they change: what is cut off in between must not be taken for the source's bytes. One that is dirty already may be so
 * here alone: who marked it still saves, or could not.
 */
static int mark_clean_chunks(struct cfile *cf, const struct cfile_io *io)
{
    mutex_lock(&cf->mu);
    bool any = false;
    for (uint64_t i = io->first; i < MIN(io->end, chunks_for(cf->limit)); i++) {
        if (!chunkset_get(&cf->present, i))
            continue;
        (void)cfile_mark_dirty_locked(cf, i, i + 1);
        any = true;
    }
    mutex_unlock(&cf->mu);
    return any ? cfile_save_if_needed(cf) : 0;
}

/* The chunk of the old end gets zeros after it: it differs from what was fetched. */
static void note_growth_locked(struct cfile *cf, uint64_t end) REQUIRES(cf->mu)
{
    if (end <= cf->size)
        return;
    cfile_verify_edge_locked(cf, cf->size);
    uint64_t edge = chunk_of(cf->size);
    if (end <= cf->size) /* another write was quicker */
        return;
    if (cf->size % META_CHUNK_BYTES && cfile_present_locked(cf, edge))
        (void)cfile_mark_dirty_locked(cf, edge, edge + 1);
    cf->size = end;
}

static bool is_clean_locked(const struct cfile *cf, uint64_t chunk)
{
    return chunkset_get(&cf->present, chunk) && !chunkset_get(&cf->dirty_chunks, chunk);
}

/* What the write shares a chunk with, the last one of before among them, is on the disk first. */
static int sync_shared(struct cfile *cf, const struct cfile_io *io, bool grows)
{
    mutex_lock(&cf->mu);
    bool any = grows && cf->size % META_CHUNK_BYTES && is_clean_locked(cf, chunk_of(cf->size));
    for (uint64_t i = io->first; cf->segmented && !any && i < MIN(io->end, chunks_for(cf->limit)); i++)
        any = is_clean_locked(cf, i);
    mutex_unlock(&cf->mu);
    return any && cf->segmented ? cfile_sync_came(cf) : 0;
}

/* Chunks of the source that were absent are all new now: until that is on the disk a power loss is to leave those of the source. */
static int sync_covering(struct cfile *cf, const struct cfile_io *io)
{
    mutex_lock(&cf->mu);
    uint64_t n = 0;
    for (uint64_t i = io->first; cf->segmented && i < MIN(io->end, chunks_for(cf->limit)); i++)
        n += !chunkset_get(&cf->present, i);
    cf->n_came += n;
    mutex_unlock(&cf->mu);
    return n ? cfile_sync_came(cf) : 0;
}

ssize_t cfile_modify(struct cfile *cf, uint64_t off, uint64_t len, bool grow, cfile_modify_fn *fn, const void *arg)
{
    struct cfile_io io;
    int r = cfile_mark_dirty(cf);
    if (r < 0)
        return r;
    mutex_lock(&cf->mu);
    r = claim_range_locked(cf, &io, off, off + len);
    if (r < 0) {
        mutex_unlock(&cf->mu);
        return r;
    }
    bool grows = grow && off + len > cf->size;
    mutex_unlock(&cf->mu);
    r = sync_shared(cf, &io, grows);
    if (r == 0)
        r = mark_clean_chunks(cf, &io);
    CRASH_POINT(write_marked);
    ssize_t n = r < 0 ? r : fn(cf, arg, off, len);
    CRASH_POINT(write_bytes);
    int synced = n > 0 ? sync_covering(cf, &io) : 0; /* it is written all the same */
    mutex_lock(&cf->mu);
    if (n > 0 && (uint64_t)n < len)
        n = usable_part_locked(cf, off, n);
    uint64_t done_end = off + (n > 0 ? (uint64_t)n : 0);
    settle_range_locked(cf, off, off + len, done_end);
    if (n > 0) {
        cf->stamp++;
        if (grow)
            note_growth_locked(cf, done_end);
    }
    cfile_io_end_locked(cf, &io);
    mutex_unlock(&cf->mu);
    r = cfile_save_if_needed(cf);
    return synced < 0 ? synced : r < 0 ? r : n;
}

uint64_t cfile_space_needed(struct cfile *cf, uint64_t off, uint64_t len)
{
    mutex_lock(&cf->mu);
    uint64_t size = cf->size, end = off + len, need = 0;
    uint64_t first = chunk_of(off), n = chunks_for(end) - first;
    if (!cf->all_present)
        need = (n - chunkset_count(&cf->present, first, n)) * META_CHUNK_BYTES;
    else if (end > size)
        need = end - MAX(off, size);
    mutex_unlock(&cf->mu);
    if (need == 0 && !space_entry_is_full(cf->c, cf->entry, size))
        need = len; /* a file with holes: the bytes may be new */
    return need;
}

static ssize_t do_pwrite(struct cfile *cf, const void *arg, uint64_t off, uint64_t len)
{
    const uint8_t *buf = arg;
    uint64_t done = 0;
    ssize_t n = 0;
    struct cache_tier *t = cfile_tier(cf);
    int fd = cfile_wfd_get(cf);
    if (fd < 0)
        return fd;
    while (done < len) {
        n = tier_fault(t) ? -EIO : RET_ERRNO(pwrite(fd, buf + done, len - done, (off_t)(off + done)));
        if (n == -EINTR)
            continue;
        if (n <= 0)
            break;
        done += (uint64_t)n;
    }
    cfile_wfd_put(cf);
    tier_note_io(t, n);
    return done ? (ssize_t)done : n < 0 ? n : -EIO;
}

ssize_t cache_file_write(struct cfile *cf, const void *buf, size_t len, uint64_t off)
{
    if (len == 0)
        return 0;
    if (off + len < off || off + len > INT64_MAX)
        return -EFBIG;
    cfile_refresh_size(cf);
    uint64_t need = cfile_space_needed(cf, off, len);
    int r = cfile_mark_dirty(cf); /* before room is asked of its tier: it may have to leave memory */
    if (r < 0)
        return r;
    struct cache_tier *t = cfile_tier(cf);
    r = space_reserve(t, need, SPACE_WRITE);
    if (r < 0)
        return r;
    cfile_change_begin(cf);
    ssize_t n = cfile_modify(cf, off, len, true, do_pwrite, buf);
    cfile_account(cf);
    space_release(t, need);
    upload_note_write(cf, off, n > 0 ? (uint64_t)n : len); /* a failure may come after bytes were changed */
    cfile_change_end(cf);
    return n;
}

/* Says that of the store; -ETIMEDOUT may be the end of a wait that others began. */
static bool may_pass(ssize_t n)
{
    return n == -EIO || n == -EBADMSG || n == -ETIMEDOUT || n == -EREMOTEIO || n == -EKEYEXPIRED;
}

/* The store could not give the rest of a chunk, and nothing is wrong here. */
static bool is_fill_failure(struct cfile *cf, ssize_t n, uint64_t off, uint64_t len)
{
    struct cache_tier *t = cfile_tier(cf);
    if (!may_pass(n) || t->kind == TIER_NOWHERE || __atomic_load_n(&t->bad, __ATOMIC_ACQUIRE))
        return false;
    mutex_lock(&cf->mu);
    bool lacks = false;
    for (uint64_t i = chunk_of(off); cf->src_key && !lacks && i < chunks_for(off + len); i++)
        lacks = !cfile_present_locked(cf, i) && !covers_locked(cf, i, off, off + len);
    mutex_unlock(&cf->mu);
    return lacks;
}

/*
 * For op_timeout, of the file and not of one page: it may have thousands, and the kernel keeps few such requests at a time, for all files. Once that is over they fail at once for as
 * long, or until something comes; what fails later is another outage.
 */
static bool may_fill_still(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    uint64_t now = clock_mono_ns(), progress = __atomic_load_n(&cf->progress, __ATOMIC_RELAXED);
    uint64_t limit = cf->c->cfg.op_timeout_ns;
    if (cf->fill_until_ns == 0 || cf->fill_progress != progress || now >= cf->fill_until_ns + limit) {
        cf->fill_until_ns = now + limit;
        cf->fill_progress = progress;
    }
    bool may = now < cf->fill_until_ns;
    mutex_unlock(&cf->mu);
    return may;
}

ssize_t cache_file_write_mapped(struct cfile *cf, const void *buf, size_t len, uint64_t off)
{
    uint64_t until = clock_mono_ns() + cf->c->cfg.op_timeout_ns, pause_us = FILL_PAUSE_US;
    const uint8_t *bytes = buf;
    size_t done = 0;
    while (done < len) {
        ssize_t n = cache_file_write(cf, bytes + done, len - done, off + done);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (!is_fill_failure(cf, n, off + done, len - done) || !may_fill_still(cf) || patience_over() < 0 ||
            clock_mono_ns() >= until)
            return n < 0 ? n : -EIO;
        g_usleep(pause_us);
        pause_us = MIN(2 * pause_us, FILL_PAUSE_MAX_US);
    }
    return (ssize_t)len;
}
