/*
 * Sets of chunks as plain bitmaps of 64-bit words. A file of 1 TiB needs 2 MiB for one set; sets grow only as far as bits are set.
 * The on-disk form (meta_segment) is bytes, least significant bit first, so that it does not depend on the machine.
 */
#include "cache_chunks.h"

#include <string.h>

#define WORD_BITS 64u

static void set_grow(struct chunkset *s, uint64_t n_chunks)
{
    uint64_t need = (n_chunks + WORD_BITS - 1) / WORD_BITS;
    if (need <= s->n_words)
        return;
    uint64_t n = MAX(need, s->n_words * 2);
    s->words = g_renew(uint64_t, s->words, n);
    memset(s->words + s->n_words, 0, (n - s->n_words) * sizeof *s->words);
    s->n_words = n;
}

/* Bits of word w that lie in [first, end). */
static uint64_t word_mask(uint64_t w, uint64_t first, uint64_t end)
{
    uint64_t lo = w * WORD_BITS, mask = ~0ull;
    if (first > lo)
        mask &= ~0ull << (first - lo);
    if (end < lo + WORD_BITS)
        mask &= ~(~0ull << (end - lo));
    return mask;
}

void chunkset_clear(struct chunkset *s)
{
    g_free(s->words);
    memset(s, 0, sizeof *s);
}

bool chunkset_get(const struct chunkset *s, uint64_t chunk)
{
    uint64_t w = chunk / WORD_BITS;
    return w < s->n_words && (s->words[w] >> (chunk % WORD_BITS) & 1);
}

void chunkset_set(struct chunkset *s, uint64_t first, uint64_t n)
{
    if (n == 0)
        return;
    uint64_t end = first + n;
    set_grow(s, end);
    for (uint64_t w = first / WORD_BITS; w * WORD_BITS < end; w++) {
        uint64_t add = word_mask(w, first, end) & ~s->words[w];
        s->words[w] |= add;
        s->n_set += (uint64_t)__builtin_popcountll(add);
    }
}

void chunkset_unset(struct chunkset *s, uint64_t first, uint64_t n)
{
    uint64_t cap = s->n_words * WORD_BITS;
    uint64_t end = n > cap || first + n > cap ? cap : first + n;
    if (first >= end)
        return;
    for (uint64_t w = first / WORD_BITS; w * WORD_BITS < end; w++) {
        uint64_t gone = word_mask(w, first, end) & s->words[w];
        s->words[w] &= ~gone;
        s->n_set -= (uint64_t)__builtin_popcountll(gone);
    }
}

bool chunkset_any(const struct chunkset *s, uint64_t first, uint64_t n)
{
    return chunkset_next_set(s, first, first + n) < first + n;
}

uint64_t chunkset_count(const struct chunkset *s, uint64_t first, uint64_t n)
{
    uint64_t end = MIN(first + n, s->n_words * WORD_BITS), sum = 0;
    if (first >= end)
        return 0;
    for (uint64_t w = first / WORD_BITS; w * WORD_BITS < end; w++)
        sum += (uint64_t)__builtin_popcountll(s->words[w] & word_mask(w, first, end));
    return sum;
}

static uint64_t next_bit(const struct chunkset *s, uint64_t from, uint64_t end, uint64_t invert)
{
    uint64_t cap = MIN(end, s->n_words * WORD_BITS);
    if (from >= cap)
        return end;
    for (uint64_t w = from / WORD_BITS; w * WORD_BITS < cap; w++) {
        uint64_t bits = (s->words[w] ^ invert) & word_mask(w, from, cap);
        if (bits)
            return w * WORD_BITS + (uint64_t)__builtin_ctzll(bits);
    }
    return end;
}

uint64_t chunkset_next_set(const struct chunkset *s, uint64_t from, uint64_t end)
{
    return next_bit(s, from, end, 0);
}

uint64_t chunkset_next_unset(const struct chunkset *s, uint64_t from, uint64_t end)
{
    uint64_t cap = s->n_words * WORD_BITS;
    if (from >= cap)
        return MIN(from, end);
    uint64_t found = next_bit(s, from, MIN(end, cap), ~0ull);
    return found; /* == cap when the tail is all set: the first bit never stored, unset */
}

uint32_t chunk_segment(uint64_t chunk)
{
    return (uint32_t)(chunk / META_SEGMENT_CHUNKS);
}

static void encode_bits(const struct chunkset *s, uint32_t segment, uint8_t *bytes)
{
    uint64_t base = (uint64_t)segment * (META_SEGMENT_CHUNKS / WORD_BITS);
    for (unsigned w = 0; w < META_SEGMENT_CHUNKS / WORD_BITS; w++) {
        uint64_t v = base + w < s->n_words ? s->words[base + w] : 0;
        for (unsigned b = 0; b < 8; b++)
            bytes[w * 8 + b] = (uint8_t)(v >> (8 * b));
    }
}

/* By words: most are empty, and a file is opened more often than its chunks come. */
static void decode_bits(const uint8_t *bytes, uint32_t segment, struct chunkset *s)
{
    uint64_t base = (uint64_t)segment * META_SEGMENT_CHUNKS;
    chunkset_unset(s, base, META_SEGMENT_CHUNKS);
    for (unsigned w = 0; w < META_SEGMENT_CHUNKS / WORD_BITS; w++) {
        uint64_t v;
        memcpy(&v, bytes + w * sizeof(v), sizeof(v));
        v = GUINT64_FROM_LE(v);
        while (v) {
            unsigned first = (unsigned)__builtin_ctzll(v);
            uint64_t run = v >> first;
            unsigned n = run == ~0ull ? WORD_BITS : (unsigned)__builtin_ctzll(~run);
            chunkset_set(s, base + w * WORD_BITS + first, n);
            v &= ~(((n == WORD_BITS ? 0 : 1ull << n) - 1) << first);
        }
    }
}

void chunks_encode_segment(const struct chunkset *present, const struct chunkset *dirty, uint32_t segment,
                           struct meta_segment *ret)
{
    encode_bits(present, segment, ret->present);
    encode_bits(dirty, segment, ret->dirty);
}

void chunks_decode_segment(const struct meta_segment *seg, uint32_t segment, struct chunkset *present,
                           struct chunkset *dirty)
{
    decode_bits(seg->present, segment, present);
    decode_bits(seg->dirty, segment, dirty);
}
