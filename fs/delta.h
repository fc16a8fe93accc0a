/*
 * Large objects published here, whose parts later versions may copy (cache/cache_delta.h): kept in the database, the newest DELTA_OBJECTS_MAX of them.
 *
 * They are hints: a record that is lost, or tells of an object that is not there any more, costs bytes sent, nothing else. So they are written after
 * what they tell of was recorded, in a batch of their own, and nothing waits for them.
 */
#pragma once
#include "fs.h"

#define DELTA_OBJECTS_MAX 512u
#define DELTA_BYTES_MAX   (32u << 20) /* of all their records of parts */

/* Before anything is published: --delta on. */
void delta_start(struct fs *fs);
/* The object src was copied to dst, or over itself: the bytes are the same under another etag. */
void delta_moved(struct fs *fs, const char *src, const struct etag *src_etag, const char *dst,
                 const struct etag *dst_etag);
/* How many bytes of this object were not sent when it was published; 0 also where nothing is known of it. */
uint64_t delta_saved_bytes(struct fs *fs, const char *key, const struct etag *etag);
