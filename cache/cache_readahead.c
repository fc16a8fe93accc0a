/*
 * Pattern recognition by a small table of streams, the least recently matched one replaced.
 *
 * The kernel sends the reads of one sequential reader in pieces and may swap neighbours, so a stream already known to be sequential accepts a read
 * a little before or after the expected place. Before it is known the tolerance is small, otherwise random reads of a small file would look like streams.
 */
#include "cache_readahead.h"

#include <string.h>

#define MIB           (1ull << 20)
#define NS_IN_S       1000000000ull
#define SCAN_BYTES    (128u << 10) /* reads of a scan are page cache read-ahead: at least this long */
#define SCAN_HOPS     4u
#define SCAN_LATELY   4u        /* other readers' reads in between */
#define HEADER_BYTES  (4 * MIB) /* reading no further may be a look at the index, the kernel's read-ahead included */
#define GOOD_PART     (64 * MIB)
#define LATENCY_SHARE 4u /* a GET's transfer is to take this many times its latency */
#define BRAKE_MAX     6u
#define BRAKE_OFF     8u /* clean GETs that take one halving back */
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

/* A large read a little behind the last one of a stream: a mapping is walked upwards, leaving things out. */
static struct ra_stream *find_scan(struct readahead *ra, uint64_t off, uint64_t len)
{
    for (unsigned i = 0; len >= SCAN_BYTES && i < RA_STREAMS; i++) {
        struct ra_stream *s = &ra->streams[i];
        if (s->used && s->used + SCAN_LATELY >= ra->clock && off > s->next && off - s->next <= len)
            return s;
    }
    return NULL;
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
    s->window = min_u64(s->run > RA_FIRST_BYTES ? s->run : RA_FIRST_BYTES, ceiling);
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

static void note_run(struct readahead *ra, struct ra_stream *s, uint64_t len)
{
    s->run += len;
    ra->longest_run = ra->longest_run > s->run ? ra->longest_run : s->run;
}

struct ra_advice readahead_note(struct readahead *ra, uint64_t off, uint64_t len, uint64_t size, uint64_t ceiling)
{
    struct ra_advice none = {0};
    bool exact;
    ra->clock++;
    struct ra_stream *s = find_sequential(ra, off, &exact);
    if (off >= HEADER_BYTES)
        ra->past_header = true;
    if (s) {
        s->used = ra->clock;
        if (off + len <= s->next)
            return (struct ra_advice){.sequential = s->window > 0}; /* the same place again: no step ahead */
        s->score += exact ? SEQUENTIAL_AT : 1;
        if (s->window || s->score >= SEQUENTIAL_AT) {
            note_run(ra, s, len);
            return advance_sequential(s, off, len, size, ceiling);
        }
        s->next = off + len > s->next ? off + len : s->next;
        return none;
    }
    struct ra_stream *scan = find_scan(ra, off, len);
    if (scan && (scan->window || ++scan->hops >= SCAN_HOPS)) {
        scan->used = ra->clock;
        note_run(ra, scan, len);
        return advance_sequential(scan, off, len, size, ceiling);
    }
    struct ra_stream *before = find_strided(ra, off);
    uint64_t stride = before ? before->stride : 0;
    unsigned hops = scan ? scan->hops : 0;
    unsigned strides = before ? before->strides + 1 : 0;
    if (before)
        before->stride = 0; /* the new stream carries it on; the old one may still go on sequentially */
    s = new_stream(ra, off, len);
    s->used = ra->clock;
    s->hops = hops;
    if (!stride)
        return none;
    s->stride = stride;
    s->strides = strides;
    return advance_strided(s, off, len, size);
}

/* ---- the whole file ---- */

bool readahead_whole_by_name(const char *name)
{
    static const char *const suffixes[] = {".safetensors", ".pt",   ".pth", ".bin", ".ckpt",
                                           ".gguf",        ".onnx", ".npy", ".tar"};
    const char *dot = strrchr(name, '.');
    for (unsigned i = 0; dot && i < sizeof suffixes / sizeof *suffixes; i++) {
        if (strcmp(dot, suffixes[i]) == 0)
            return true;
    }
    return false;
}

bool readahead_take_all(struct readahead *ra, uint64_t size)
{
    bool by_name = ra->whole_by_name && ra->past_header;
    bool much = ra->longest_run > size / 4 || ra->longest_run >= GOOD_PART;
    if (ra->told_all || !(by_name || much))
        return false;
    ra->told_all = true;
    return true;
}

/* ---- speed ---- */

static uint64_t smooth(uint64_t old, uint64_t sample)
{
    return old ? (3 * old + sample) / 4 : sample;
}

void ra_speed_note(struct ra_speed *sp, uint64_t latency_ns, uint64_t transfer_ns, uint64_t bytes, bool slowed)
{
    if (slowed) { /* its times tell of waiting, not of the connection */
        sp->brake = sp->brake < BRAKE_MAX ? sp->brake + 1 : BRAKE_MAX;
        sp->clean = 0;
        return;
    }
    if (sp->brake && ++sp->clean >= BRAKE_OFF) {
        sp->brake--;
        sp->clean = 0;
    }
    if (bytes < SCAN_BYTES || bytes > UINT64_MAX / NS_IN_S)
        return; /* too short to tell a speed */
    sp->latency_ns = smooth(sp->latency_ns, latency_ns + 1);
    sp->bytes_per_s = smooth(sp->bytes_per_s, bytes * NS_IN_S / (transfer_ns + 1));
}

uint64_t ra_speed_window(const struct ra_speed *sp, unsigned parallel, uint64_t get_bytes, uint64_t limit)
{
    uint64_t piece = get_bytes;
    if (sp->latency_ns) {
        double share = (double)sp->latency_ns / (double)NS_IN_S * (double)sp->bytes_per_s * LATENCY_SHARE;
        piece = share >= (double)get_bytes ? get_bytes : min_u64((uint64_t)share + MIB, get_bytes);
    }
    uint64_t window = min_u64(piece * parallel, limit) >> sp->brake;
    return window > RA_FIRST_BYTES ? window : min_u64(RA_FIRST_BYTES, limit);
}
