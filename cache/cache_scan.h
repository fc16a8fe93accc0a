/* The data files of a cache folder without an open cache: for `sluice fsck` and for what brings unpublished files back. */
#pragma once
#include "base/err.h"
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
/* The same facts of one data file: -ENOENT when it is not there. path may be NULL afterwards. Here as everywhere below, what the data folder's file system
 * says is never -EBADMSG: that is a damaged database. */
int cache_scan_file(const char *dir, uint64_t vid, struct cache_scanned *ret) MUST_CHECK;
/* Folder of a tier that records call number, cache in `first` not open. -ENOENT: none, its files went with the process; -ENODEV: it is not there. *ret_dir: the caller's. */
int cache_scan_tier(struct meta *m, const char *first, uint32_t number, char **ret_dir) MUST_CHECK;
/* Calls fn for every tier whose folder is there, the first one included. */
int cache_scan_tiers(struct meta *m, const char *first, int (*fn)(void *ctx, const char *dir, uint32_t number),
                     void *ctx) MUST_CHECK;
/* The data file on the first disk that has it, for a vid without a record. -ENOENT: none has; -ENODEV: none that is there has, and *ret_dir is one that is not. *ret_dir: the caller's. */
int cache_scan_find(struct meta *m, const char *first, uint64_t vid, struct cache_scanned *ret, char **ret_dir)
    MUST_CHECK;
/* Whether it has the same bytes in both folders: 1, 0, or -errno. */
int cache_scan_same(const char *dir, const char *other, uint64_t vid) MUST_CHECK;
/* It is being removed: what is still there of the file goes at the next start. */
bool cache_scan_is_dying(const struct meta_cached *rec);
/* It gets that vid, of which the folder has no data file yet: else -EEXIST. */
int cache_scan_renumber(const char *dir, uint64_t vid, uint64_t to) MUST_CHECK;
/* Whether the file carries an intent: 1, 0, or -errno (-EOPNOTSUPP: this file system keeps none). */
int cache_scan_has_intent(const char *dir, uint64_t vid) MUST_CHECK;
int cache_scan_set_intent(const char *dir, uint64_t vid, const char *text) MUST_CHECK;
/* For `fsck --repair`, of a data file that no record knows: removes it, or puts it into DIR/rescued/, where it stays until somebody takes it away. *ret_to: its path, owned. */
int cache_scan_remove(const char *dir, uint64_t vid) MUST_CHECK;
int cache_scan_rescue(const char *dir, uint64_t vid, char **ret_to) MUST_CHECK;
/* The record of an upload goes, its token with it; that token into ret (TOKEN_MAX + 1 bytes), "": none. */
void cache_scan_forget_upload(struct meta_batch *b, uint64_t vid);
int cache_scan_upload_token(struct meta *m, uint64_t vid, char *ret) MUST_CHECK;
