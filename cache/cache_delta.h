/*
 * Delta upload: a part of which an earlier object holds the same bytes at the same place is copied inside the store instead of being sent.
 *
 * Of each object that was uploaded in parts its owner is told what the parts hold (made), and is asked for objects that may share parts with a new one
 * (bases) before the first part of that is stored. Whether a part is the same is told by its SHA-256, taken when it is about to be sent: bytes are compared wherever
 * the earlier version's own bytes are by now, and the driver signs the request with it, so that it costs nothing extra there.
 *
 * A copied part is held by the new upload from then on: the source may change or go, no journal record keeps it. It is made under the source's etag, and counts only
 * if the store says afterwards that it holds those bytes (the part's etag, where that is an MD5) or, where etags of parts are no sums, that the source is still that object. Else the part is sent.
 */
#pragma once
#include "cache.h"

#define DELTA_MIN_PARTS 8u /* smaller objects are not remembered */

/* What is known of one part of an object; zeros: not known. */
struct cache_delta_part {
    uint8_t sha256[OBJ_DIGEST_BYTES];
    uint8_t md5[16]; /* that the part's etag was, or seemed to be: in some stores it is no sum */
};

/* An object and what its parts hold. Immutable, counted. */
struct cache_delta_base {
    char *key; /* owned */
    struct etag etag;
    uint64_t size;
    uint64_t part_bytes; /* of the first part: with upload_layout.h this tells all */
    GBytes *parts;       /* owned: an array of struct cache_delta_part */
};
/* Takes over a reference of parts. */
struct cache_delta_base *cache_delta_base_new(const char *key, const struct etag *etag, uint64_t size,
                                              uint64_t part_bytes, GBytes *parts);
struct cache_delta_base *cache_delta_base_ref(struct cache_delta_base *b);
void cache_delta_base_unref(struct cache_delta_base *b); /* NULL allowed */
size_t cache_delta_n_parts(const struct cache_delta_base *b);

/* Called on threads that upload or publish, without locks; they may read and write the database. */
struct cache_delta_ops {
    /* Appends objects that what becomes `key` may share parts with, the likeliest first. */
    void (*bases)(void *ctx, const char *key, uint64_t part_bytes, GPtrArray *out);
    /* The object is not there any more, or is another one. */
    void (*gone)(void *ctx, const struct cache_delta_base *base);
    /* An object was made and verified; saved_bytes of it were copied from bases. */
    void (*made)(void *ctx, const struct cache_delta_base *object, uint64_t saved_bytes);
};
/* Before anything is uploaded; without it all is sent, and no sums are taken. */
void cache_set_delta(struct cache *c, const struct cache_delta_ops *ops, void *ctx);
