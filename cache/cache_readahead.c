/*
 * Pattern recognition by a small table of streams, the least recently matched one replaced.
 *
 * The kernel sends the reads of one sequential reader in pieces and may swap neighbours, so a stream already known to be sequential accepts a read
 * a little before or after the expected place. Before it is known the tolerance is small, otherwise random reads of a small file would look like streams.
 */
#include "cache_readahead.h"

#include <string.h>

#define KNOWN_SLACK   (1u << 20)
#define UNKNOWN_SLACK (128u << 10)
#define SEQUENTIAL_AT 2 /* score */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static struct ra_stream *find_sequential(struct readahead *ra, uint64_t off, bool *ret_exact)
{
    struct ra_stream *near = NULL;
    for (unsigned i = 0; i < RA_STREAMS; i++) {
        struct ra_stream *s = &ra->streams[i];
        if (s->used == 0)
            continue;
        if (s->next == off) {
            *ret_exact = true;
            return s;
        }
        bool close = s->window ? off <= s->next + KNOWN_SLACK && off + KNOWN_SLACK >= s->next
                               : off >= s->start && off <= s->next + UNKNOWN_SLACK;
        if (close)
            near = s;
    }
    *ret_exact = false;
    return near;
}

static struct ra_stream *find_strided(struct readahead *ra, uint64_t off)
{
    for (unsigned i = 0; i < RA_STREAMS; i++) {
        struct ra_stream *s = &ra->streams[i];
        if (s->used && s->stride && s->start + s->stride == off)
            return s;
    }
    return NULL;
}

/* A stream for a read that fits no other; its stride is guessed from the read before it. */
static struct ra_stream *new_stream(struct readahead *ra, uint64_t off, uint64_t len)
{
    struct ra_stream *oldest = &ra->streams[0], *latest = NULL;
    for (unsigned i = 0; i < RA_STREAMS; i++) {
        struct ra_stream *s = &ra->streams[i];
        if (s->used < oldest->used)
            oldest = s;
        if (s->used && (!latest || s->used > latest->used))
            latest = s;
    }
    uint64_t stride = latest && off > latest->start ? off - latest->start : 0;
    memset(oldest, 0, sizeof *oldest);
    oldest->start = off;
    oldest->next = off + len;
    oldest->stride = stride;
    return oldest;
}

static struct ra_advice advance_sequential(struct ra_stream *s, uint64_t off, uint64_t len, uint64_t size,
                                           uint64_t ceiling)
{
    struct ra_advice a = {.sequential = true};
    if (off > s->start)
        s->start = off;
    if (off + len > s->next)
        s->next = off + len;
    s->window = min_u64(s->window ? s->window * 2 : RA_FIRST_BYTES, ceiling);
    if (s->ahead < s->next)
        s->ahead = s->next;
    uint64_t target = min_u64(size, s->next + s->window);
    /* In halves of the window, so that each GET is large. */
    if (target > s->ahead && (target - s->ahead >= s->window / 2 || target == size)) {
        a.off = s->ahead;
        a.len = target - s->ahead;
        s->ahead = target;
    }
    return a;
}

static struct ra_advice advance_strided(struct ra_stream *s, uint64_t off, uint64_t len, uint64_t size)
{
    struct ra_advice a = {0};
    uint64_t want = off + 2 * s->stride;
    if (s->strides >= 2 && want < size) {
        a.off = want;
        a.len = min_u64(len, size - want);
    }
    return a;
}

struct ra_advice readahead_note(struct readahead *ra, uint64_t off, uint64_t len, uint64_t size, uint64_t ceiling)
{
    struct ra_advice none = {0};
    bool exact;
    ra->clock++;
    struct ra_stream *s = find_sequential(ra, off, &exact);
    if (s) {
        s->used = ra->clock;
        if (off + len <= s->next)
            return (struct ra_advice){.sequential = s->window > 0}; /* the same place again: no step ahead */
        s->score += exact ? SEQUENTIAL_AT : 1;
        if (s->window || s->score >= SEQUENTIAL_AT)
            return advance_sequential(s, off, len, size, ceiling);
        s->next = off + len > s->next ? off + len : s->next;
        return none;
    }
    struct ra_stream *before = find_strided(ra, off);
    uint64_t stride = before ? before->stride : 0;
    unsigned strides = before ? before->strides + 1 : 0;
    if (before)
        before->stride = 0; /* the new stream carries it on; the old one may still go on sequentially */
    s = new_stream(ra, off, len);
    s->used = ra->clock;
    if (!stride)
        return none;
    s->stride = stride;
    s->strides = strides;
    return advance_strided(s, off, len, size);
}
