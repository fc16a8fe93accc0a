/*
 * What will be read next: recognises sequential and strided readers of one file, several at a time, and says what to fetch ahead.
 * Pure arithmetic on offsets; the caller locks. Random readers get nothing.
 *
 * Each reader found is a stream with the offset it is expected to read next. A sequential stream's window doubles from 1 MiB
 * to the ceiling while it goes on; a stride that came twice is followed two steps ahead.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define RA_STREAMS     16
#define RA_FIRST_BYTES (1u << 20)

struct ra_stream {
    uint64_t start, next; /* last read [start, next) */
    uint64_t stride;      /* distance between the last two starts, 0 unknown */
    uint64_t window;      /* bytes fetched ahead, 0: not yet sequential */
    uint64_t ahead;       /* fetched ahead up to here */
    uint64_t used;        /* clock of the last match */
    unsigned strides;     /* how often the stride came */
    unsigned score;       /* evidence of sequential reading */
};

struct readahead {
    struct ra_stream streams[RA_STREAMS];
    uint64_t clock;
};

struct ra_advice {
    bool sequential;
    uint64_t off, len; /* fetch this ahead; len 0: nothing */
};

/* Notes a read of [off, off+len) in a file of `size` bytes. ceiling: largest window. */
struct ra_advice readahead_note(struct readahead *ra, uint64_t off, uint64_t len, uint64_t size, uint64_t ceiling);
