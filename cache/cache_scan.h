/* The data files of a cache folder without an open cache: for `sluice fsck` and for what brings unpublished files back. */
#pragma once
#include "base/sync.h"
#include "meta.h"

/* Calls fn for every local data file that carries an intent: path relative to dir, vid, size, text. */
int cache_scan_intents(const char *dir,
                       int (*fn)(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text), void *ctx)
    MUST_CHECK;

/* Calls fn for every local data file: path relative to dir. Non-zero from fn stops and is returned. */
struct cache_scanned {
    const char *path;
    uint64_t vid, size, disk_bytes;
};
int cache_scan_files(const char *dir, int (*fn)(void *ctx, const struct cache_scanned *file), void *ctx) MUST_CHECK;
/* The same facts of one data file: -ENOENT when it is not there. path may be NULL afterwards. */
int cache_scan_file(const char *dir, uint64_t vid, struct cache_scanned *ret) MUST_CHECK;
/* Folder of a tier that records call number, cache in `first` not open. -ENOENT: none, its files went with the process; -ENODEV: it is not there. *ret_dir: the caller's. */
int cache_scan_tier(struct meta *m, const char *first, uint32_t number, char **ret_dir) MUST_CHECK;
/* Calls fn for every tier whose folder is there, the first one included. */
int cache_scan_tiers(struct meta *m, const char *first, int (*fn)(void *ctx, const char *dir, uint32_t number),
                     void *ctx) MUST_CHECK;
/* Removes a data file that no record knows (fsck --repair). */
int cache_scan_remove(const char *dir, uint64_t vid) MUST_CHECK;
