/*
 * Arithmetic of chunks: which chunks a byte range touches, sets of chunks, and their form in meta segments. Pure; the caller locks.
 *
 * A set grows as bits are set; bits never set are 0.
 */
#pragma once
#include "meta.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct chunkset {
    uint64_t *words; /* owned */
    uint64_t n_words;
    uint64_t n_set;
};

struct chunk_run {
    uint64_t first, n;
};

struct chunk_crc {
    uint64_t chunk;
    uint32_t crc;
    bool remove; /* the chunk was changed: its stored checksum goes */
};

static inline uint64_t chunk_of(uint64_t off)
{
    return off / META_CHUNK_BYTES;
}
static inline uint64_t chunk_start(uint64_t chunk)
{
    return chunk * META_CHUNK_BYTES;
}
/* The number of chunks of a file of `size` bytes; also the first chunk that begins at or after `size`. */
static inline uint64_t chunks_for(uint64_t size)
{
    return size / META_CHUNK_BYTES + (size % META_CHUNK_BYTES != 0);
}

void chunkset_clear(struct chunkset *s); /* frees; the set is empty and usable */
bool chunkset_get(const struct chunkset *s, uint64_t chunk);
void chunkset_set(struct chunkset *s, uint64_t first, uint64_t n);
void chunkset_unset(struct chunkset *s, uint64_t first, uint64_t n);
/* Any bit of the range set. */
bool chunkset_any(const struct chunkset *s, uint64_t first, uint64_t n);
/* Bits set in the range. */
uint64_t chunkset_count(const struct chunkset *s, uint64_t first, uint64_t n);
/* First chunk in [from, end) that is set (or unset); end when there is none. */
uint64_t chunkset_next_set(const struct chunkset *s, uint64_t from, uint64_t end);
uint64_t chunkset_next_unset(const struct chunkset *s, uint64_t from, uint64_t end);

/* Segment number of a chunk, and the conversion of one segment. */
uint32_t chunk_segment(uint64_t chunk);
void chunks_encode_segment(const struct chunkset *present, const struct chunkset *dirty, uint32_t segment,
                           struct meta_segment *ret);
void chunks_decode_segment(const struct meta_segment *seg, uint32_t segment, struct chunkset *present,
                           struct chunkset *dirty);
