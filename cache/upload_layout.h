/*
 * Part boundaries of multipart uploads: a pure function of offset, first part size and the store's limits, never of the file's size
 * or of speed, so that a streamed, a resumed and an edited file all agree. Parts double every 1,000: 8 MiB reach 8 TiB in 10,000 parts.
 *
 * Parts are counted from 0 here; the store counts from 1.
 */
#pragma once
#include "base/err.h"
#include "objstore.h"

#include <stdint.h>

#define UPLOAD_PARTS_PER_SIZE 1000u
#define UPLOAD_PARTS_MAX      10000u

struct upload_layout {
    uint64_t part_bytes; /* of the first parts, within the store's limits */
    uint64_t part_max_bytes;
    uint64_t object_max_bytes;
    uint32_t parts_max;
};

void upload_layout_init(struct upload_layout *l, uint64_t part_bytes, const struct objstore_limits *limits);
/* Full length of part i. */
uint64_t upload_part_bytes(const struct upload_layout *l, uint32_t i);
uint64_t upload_part_offset(const struct upload_layout *l, uint32_t i);
/* The part that holds byte off; parts_max when off lies beyond the last part. */
uint32_t upload_part_of(const struct upload_layout *l, uint64_t off);
/* Length of part i in a file of size bytes; 0 when it lies wholly behind the end. */
uint64_t upload_part_len(const struct upload_layout *l, uint32_t i, uint64_t size);
/* -EFBIG when no set of parts holds size bytes. At least 1. */
int upload_n_parts(const struct upload_layout *l, uint64_t size, uint32_t *ret_n) MUST_CHECK;
