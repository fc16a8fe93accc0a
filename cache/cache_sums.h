/*
 * Checksums of unpublished content that nobody writes any more, for the time until it is in the store: what the disk changes meanwhile is not published.
 *
 * Bytes written here have no checksum until then, and may go on changing without us seeing each write. So the caller reads them once they are sealed,
 * and stores the sums when he knows that no writer came meanwhile. `version` is the caller's: sums count for the version they were made of only.
 */
#pragma once
#include "base/err.h"
#include "base/sync.h"
#include "cache.h"

/* What publish_result.sum would be of the bytes that are here now; nobody writes them. 0: not known. */
uint32_t cache_published_sum(struct cfile *cf);
/* Sums of all bytes that only this file has: the rest is in its source. go: whether to go on, asked between blocks. -ECANCELED: it said no; -EAGAIN: the file
 * changed meanwhile. */
int cache_sums_read(struct cfile *cf, uint64_t version, bool (*go)(void *ctx), void *ctx, GBytes **ret) MUST_CHECK;
void cache_sums_put(struct meta_batch *b, uint64_t vid, GBytes *sums);
void cache_sums_del(struct meta_batch *b, uint64_t vid);
/* The sums of this version, NULL if there are none. */
GBytes *cache_sums_load(struct meta *m, uint64_t vid, uint64_t version);
/* Compares what the file holds in [off, off + len). -EBADMSG: other bytes than when it was sealed, *ret_off says where. */
int cache_sums_check(GBytes *sums, const void *buf, uint64_t off, uint64_t len, uint64_t *ret_off) MUST_CHECK;
/* The same for all of a data file in a folder that no cache uses. 1: there are sums, and it holds these bytes; 0: there are none; -EBADMSG. */
int cache_sums_check_file(struct meta *m, const char *dir, uint64_t vid, uint64_t version, uint64_t *ret_off)
    MUST_CHECK;
