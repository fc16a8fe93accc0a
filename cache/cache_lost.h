/* Disks that came back empty: they are there, the index says that unpublished files are on them, and no data file is. For the start, before others use the cache. */
#pragma once
#include "cache.h"

/* Calls fn for each file of them that is marked dirty, by inode within a disk; path: of the disk. A disk that holds any data file is not empty, and one that cannot be read is not said to be.
 * Non-zero from fn stops and is returned. From memory where nothing is marked dirty. */
int cache_emptied_each(struct cache *c, int (*fn)(void *ctx, uint64_t vid, uint64_t ino, const char *path), void *ctx)
    MUST_CHECK;
/* Its data file is gone for good: it takes no room any more. The record stays dirty, so that nothing is fetched in its place. */
void cache_note_gone(struct cache *c, uint64_t vid);
