/*
 * Bytes of a GET on their way into the local file.
 *
 * The network delivers small pieces. They are gathered and written by GATHER_BYTES, aligned, because the page cache then holds them in large folios, which
 * are read several times faster than small ones (and mapped with a sixteenth of the faults), and because each write costs locks and wakes the readers. Who waits
 * for a chunk waits at most GATHER_NS longer for that while bytes keep coming; where nobody does, GATHER_IDLE_NS. A GET's end writes what is left, so a short GET is
 * not delayed at all. When a connection stalls, what is gathered is written when it goes on, is resumed or given up; for how long to wait for more it has counted since it came.
 *
 * Concurrency: buffer and checksum are the worker's; what the file and cf get is decided anew under cf->mu at each flush (cut_bytes, move_gen), so bytes that
 * nobody wants any more are dropped however long they were gathered.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/metric.h"
#include "cache_fetch.h"
#include "cache_file.h"
#include "cache_space.h"

#include <string.h>
#include <unistd.h>

#define GATHER_BYTES   (1u << 20)
#define GATHER_NS      (3 * NS_PER_MS)
#define GATHER_IDLE_NS (100 * NS_PER_MS)
#define GATHER_CHUNKS  (GATHER_BYTES / META_CHUNK_BYTES)

int arrival_begin(struct arrival *a, uint64_t off, uint64_t len)
{
    *a = (struct arrival){.room = MIN(len, GATHER_BYTES), .next = off};
    a->buf = g_try_malloc(a->room);
    return a->buf ? 0 : -ENOMEM;
}

void arrival_end(struct arrival *a)
{
    g_free(a->buf);
    a->buf = NULL;
}

/* Checksums of the chunks that buf completes; what is left over goes to a->crc. The chunks end at META_CHUNK_BYTES or at `cut`. Returns how many. */
static size_t sum_chunks(struct arrival *a, uint64_t off, uint64_t len, uint64_t cut,
                         struct chunk_crc ret[static GATHER_CHUNKS + 1])
{
    size_t n_done = 0;
    for (uint64_t pos = off; pos < off + len;) {
        uint64_t chunk = chunk_of(pos), whole = MIN(chunk_start(chunk + 1), cut);
        uint64_t n = MIN(whole, off + len) - pos;
        a->crc = crc32c(a->crc, a->buf + (pos - off), n);
        pos += n;
        if (pos < whole)
            break;
        ret[n_done++] = (struct chunk_crc){.chunk = chunk, .crc = a->crc};
        a->crc = 0;
    }
    return n_done;
}

static void note_arrival_locked(struct cfile *cf, const struct chunk_crc *crcs, size_t n)
{
    if (n) {
        uint64_t first = crcs[0].chunk;
        g_array_append_vals(cf->unsaved_crcs, crcs, (guint)n);
        chunkset_set(&cf->present, first, n);
        cf->n_came += n;
        cf->unchecked = cf->unchecked || cfile_may_check_locked(cf);
        chunkset_unset(&cf->busy, first, n);
        cfile_touch_segments_locked(cf, first, first + n);
        bool windowed = cfile_windowed_locked(cf);
        for (size_t i = 0; windowed && i < n; i++)
            g_queue_push_tail(&cf->arrived, GSIZE_TO_POINTER(crcs[i].chunk));
    }
}

static int write_all(int fd, const uint8_t *buf, size_t len, uint64_t off)
{
    while (len) {
        ssize_t n = RET_ERRNO(pwrite(fd, buf, len, (off_t)off));
        if (n == -EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? (int)n : -EIO;
        buf += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static int write_to_file(struct cfile *cf, const uint8_t *buf, size_t len, uint64_t off)
{
    struct cache_tier *t = cfile_tier(cf);
    int r = cfile_wfd_get(cf);
    if (r >= 0) {
        r = tier_fault(t) ? -EIO : write_all(r, buf, len, off);
        cfile_wfd_put(cf);
    }
    tier_note_io(t, r);
    return r;
}

int fetch_flush(struct fetch *f)
{
    struct cfile *cf = f->cf;
    struct arrival *a = &f->arrival;
    struct chunk_crc crcs[GATHER_CHUNKS + 1];
    if (a->len == 0)
        return 0;
    uint64_t off = a->next - a->len;
    mutex_lock(&cf->mu);
    while (cf->resizing)
        cond_wait(&cf->changed, &cf->mu);
    uint64_t cut = f->cut_bytes, n = off >= cut ? 0 : MIN(a->len, cut - off);
    f->writing = n > 0; /* cut_bytes stays until this is false again */
    mutex_unlock(&cf->mu);
    bool all = n == a->len;
    a->len = 0;
    if (n == 0)
        return -ECANCELED;
    int r = write_to_file(cf, a->buf, n, off);
    size_t n_crcs = r == 0 ? sum_chunks(a, off, n, cut, crcs) : 0;
    mutex_lock(&cf->mu);
    f->writing = false;
    if (r == 0 && f->move_gen != cf->move_gen)
        r = -EIO; /* the bytes are in a file that was left behind */
    if (r < 0) {
        f->local_failure = true;
    } else {
        f->done_bytes = off + n;
        note_arrival_locked(cf, crcs, n_crcs);
    }
    cond_broadcast(&cf->changed);
    mutex_unlock(&cf->mu);
    if (r == 0 && f->prio != FETCH_URGENT)
        metric_add(M_readahead_bytes, (int64_t)n);
    return r < 0 ? r : all ? 0 : -ECANCELED;
}

/* Whether what is gathered must not wait for more. */
static bool is_due(const struct fetch *f)
{
    const struct arrival *a = &f->arrival;
    uint64_t limit = __atomic_load_n(&f->n_waiting, __ATOMIC_RELAXED) ? GATHER_NS : GATHER_IDLE_NS;
    return a->len == a->room || a->next % GATHER_BYTES == 0 || clock_mono_ns() - a->since_ns >= limit;
}

int fetch_on_body(void *ctx, uint64_t off, const void *buf, size_t len)
{
    struct fetch *f = ctx;
    struct arrival *a = &f->arrival;
    const uint8_t *from = buf;
    int r = 0;
    if (off != a->next)
        return -EBADMSG;
    if (!a->first_ns)
        a->first_ns = clock_mono_ns();
    /* Now, not when they are written: who waits has waited since the last byte. */
    (void)__atomic_add_fetch(&f->cf->progress, len, __ATOMIC_RELAXED);
    (void)__atomic_add_fetch(&f->cf->c->fetch.progress, len, __ATOMIC_RELAXED);
    while (r == 0 && len) {
        size_t n = MIN(MIN(len, a->room - a->len), GATHER_BYTES - a->next % GATHER_BYTES);
        if (a->len == 0)
            a->since_ns = clock_mono_ns();
        memcpy(a->buf + a->len, from, n);
        a->len += n;
        a->next += n;
        from += n;
        len -= n;
        if (is_due(f))
            r = fetch_flush(f);
    }
    return r;
}
