/*
 * What will be read next: recognises sequential, scanning and strided readers of one file, several at a time, and says what to fetch ahead; whether the whole
 * file is worth having; and how far ahead to be on this connection. Pure arithmetic; the caller locks. Random readers get nothing.
 *
 * Each reader found is a stream with the offset it is expected to read next. A sequential stream's window is as large as what it
 * has read in one go, at least 1 MiB and at most the ceiling: a reader who stops has had at most as much again fetched for nothing. A scan (a mapping walked upwards: large reads with gaps no longer than themselves) becomes sequential after a few steps. A stride that came
 * twice is followed two steps ahead.
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
    unsigned hops;        /* evidence of a scan */
    uint64_t run;         /* bytes read since it is sequential */
};

struct readahead {
    struct ra_stream streams[RA_STREAMS];
    uint64_t clock;
    uint64_t longest_run; /* bytes that one sequential stream has read */
    bool whole_by_name;   /* readahead_whole_by_name() */
    bool past_header;
    bool told_all;
};

struct ra_advice {
    bool sequential;
    uint64_t off, len; /* fetch this ahead; len 0: nothing */
};

/* Notes a read of [off, off+len) in a file of `size` bytes. ceiling: largest window. */
struct ra_advice readahead_note(struct readahead *ra, uint64_t off, uint64_t len, uint64_t size, uint64_t ceiling);
/* Whether the name is one of a format whose readers take the whole file (weights, arrays, tar shards). Parquet is none: footer, then a few columns. */
bool readahead_whole_by_name(const char *name);
/* True once: the rest of the file is worth having, because a sequential reader had a good part of it, or because of its name and more than a header was read. */
bool readahead_take_all(struct readahead *ra, uint64_t size);

/* How fast GETs of one file are; zeroed: unknown. */
struct ra_speed {
    uint64_t latency_ns;  /* until the first byte, smoothed */
    uint64_t bytes_per_s; /* of one GET from there on, smoothed */
    unsigned brake;       /* the window is halved this often: the store asked to slow down */
    unsigned clean;       /* GETs since then */
};

/* slowed: the store asked to slow down meanwhile. */
void ra_speed_note(struct ra_speed *sp, uint64_t latency_ns, uint64_t transfer_ns, uint64_t bytes, bool slowed);
/* The window that keeps `parallel` GETs going, each long enough (get_bytes at most) to make up for its latency; never above limit. */
uint64_t ra_speed_window(const struct ra_speed *sp, unsigned parallel, uint64_t get_bytes, uint64_t limit);
