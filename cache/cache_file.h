/*
 * Private to cache/: what the parts of one cache file ask of each other. Functions ending in _locked need cf->mu; all others take
 * no lock from the caller and may block on disk, database or store.
 */
#pragma once
#include "cache_internal.h"
#include "cache_tier.h"

/* ---- cache_file.c ---- */

/* Present by its bit, by the file's mark, or because it lies beyond the source's limit. */
static inline bool cfile_present_locked(const struct cfile *cf, uint64_t chunk)
{
    return cf->all_present || chunk_start(chunk) >= cf->limit || chunkset_get(&cf->present, chunk);
}
/* Present and trusted. */
static inline bool cfile_readable_locked(const struct cfile *cf, uint64_t chunk)
{
    return cfile_present_locked(cf, chunk) && !chunkset_get(&cf->verify, chunk);
}
bool cfile_complete_locked(const struct cfile *cf);
void cfile_io_begin_locked(struct cfile *cf, struct cfile_io *io, uint64_t first, uint64_t end);
void cfile_io_end_locked(struct cfile *cf, struct cfile_io *io);
bool cfile_io_overlaps_locked(const struct cfile *cf, uint64_t first, uint64_t end);
/* Marks chunks dirty (and present); their checksums go. Returns true when something has to be saved. */
bool cfile_mark_dirty_locked(struct cfile *cf, uint64_t first, uint64_t end);
/* Notes that the segments holding these chunks must be written. */
void cfile_touch_segments_locked(struct cfile *cf, uint64_t first, uint64_t end);
/* The file's mark, which is in the database before the first change of a clean file; after a fetch of all of it where what came before was wrong. */
int cfile_mark_dirty(struct cfile *cf) MUST_CHECK;
/* Charges what the file takes on disk now. */
void cfile_account(struct cfile *cf);
/* Larger than half of its disk's share: never kept whole. */
static inline bool cfile_windowed_locked(const struct cfile *cf)
{
    return cf->size > cfile_tier(cf)->whole_bytes;
}
/* Nobody else knows it. */
void cfile_free(struct cfile *cf);
/* A reference for work of the cache's own that ends by itself, which is no use of the file: cache_evict() waits for its end. */
struct cfile *cfile_own_ref(struct cfile *cf);
void cfile_own_unref(struct cfile *cf);
/* Own reference to every open file of the tier, for a look at it. No other's: whoever lets go last closes the file, and is held up by its disk. */
GPtrArray *cache_open_files(struct cache_tier *t);

/* Exclusive use of a vid for opening, closing, eviction. Waits for the one who has it. Returns the open cfile with a reference instead when there is one. */
struct cfile *table_claim(struct cache *c, uint64_t vid);
/* The same without the file: false if it is open. */
bool table_claim_unused(struct cache *c, uint64_t vid);
void table_release(struct cache *c, uint64_t vid);
/* Waits while the cache alone has the file open. */
void table_wait_own(struct cache *c, uint64_t vid, uint64_t deadline_ns);

/* ---- cache_rest.c: files that rest ---- */

void rest_init(struct cache *c);
void rest_fini(struct cache *c); /* frees them */
/* The file that rests under vid leaves the table, or NULL; the caller's to free. With table.mu held. */
struct cfile *rest_take_locked(struct cache *c, uint64_t vid);
/* The last reference to cf is gone: whether it can rest as it is, without a look at disk or database. With table.mu held. */
bool rest_again_locked(struct cfile *cf);
/* Everything was saved that a close saves: whether it can rest, with its descriptors closed. vid is claimed, no lock held. */
bool rest_prepare(struct cfile *cf);
/* cf, of which either of the two was said, rests. Returns the one that makes room, to be freed. With table.mu held. */
struct cfile *rest_enter_locked(struct cfile *cf);
/* The descriptor for reading, opened if it has none; -errno. */
int cfile_fd(struct cfile *cf) MUST_CHECK;

/* ---- cache_pass.c: descriptors for writing, passthrough ---- */

/* A descriptor to write with; closed by the last put while the kernel writes the file (its lease needs that), else with the file. */
int cfile_wfd_get(struct cfile *cf) MUST_CHECK;
void cfile_wfd_put(struct cfile *cf);
/* A passthrough writer changes the size behind our back. */
void cfile_refresh_size(struct cfile *cf);

/* ---- cache_follow.c: growth of files that the kernel writes ---- */

int follow_start(struct cache *c) MUST_CHECK;
void follow_stop(struct cache *c); /* half-started allowed */
/* From now on, or no longer. */
void follow_add(struct cfile *cf);
void follow_remove(struct cfile *cf);
uint64_t follow_rate(struct cache *c); /* bytes a second */

/* ---- cache_index.c: records and segments in the database ---- */

/* Writes the record, changed segments and checksums; returns when the state at the call (or a later one) is committed. */
int cfile_save(struct cfile *cf) MUST_CHECK;
/* The same, and a power loss does not take it back. */
int cfile_save_synced(struct cfile *cf) MUST_CHECK;
int cfile_save_if_needed(struct cfile *cf) MUST_CHECK;
/* Before chunks that came from the source are dirty in the database: they are on the disk, where the file may count as that. */
int cfile_sync_came(struct cfile *cf) MUST_CHECK;
int index_save_entry(struct cache *c, const struct cache_entry *e) MUST_CHECK;
/* Fills present, dirty and verify sets and the limit of a cfile being opened. */
int index_load_segments(struct cfile *cf) MUST_CHECK;
/* Record, segments, local file: removed so that a crash between leaves nothing behind for ever; the record of a file that may have an intent goes later (cache_removed.c). sync: the vid may be opened again, and nothing but the record would
 * tell its new, empty file from the old one. */
int index_remove(struct cache_tier *t, uint64_t vid, bool sync) MUST_CHECK;
bool index_is_dying(struct cache *c, uint64_t vid);                   /* it is being removed, or was to be */
int index_end_removal(struct cache_tier *t, uint64_t vid) MUST_CHECK; /* of one that is DYING */
/* Adds the removal of all that is recorded of vid to b. */
void index_batch_forget(struct meta_batch *b, uint64_t vid);
/* Forgets segments and checksums of vid, keeps none of its content. sync: as for index_remove(). */
int index_reset(struct cache *c, const struct cache_entry *e, bool sync) MUST_CHECK;

/* ---- cache.c ---- */

/* data/00 ... data/ff */
int cache_make_folders(int dir_fd) MUST_CHECK;

/* ---- cache_scan.c ---- */

/* "data/3f/00000000000a123f" */
void cache_data_path(uint64_t vid, char ret[32]);

/* ---- cache_recover.c ---- */

int recover_index(struct cache *c) MUST_CHECK;
/* After it: files that a kill in the middle of a move left in the memory that was handed on go. */
void recover_memory(struct cache *c);
/* Compares a chunk that is marked `verify` with its checksum; a bad one becomes absent. cf->mu is released meanwhile. */
void cfile_verify_chunk_locked(struct cfile *cf, uint64_t chunk) REQUIRES(cf->mu);
/* The same, if it is marked, of the chunk that `end` lies in: what changes there makes it dirty, and nobody compares it then. With resizing set or an io begun. */
void cfile_verify_edge_locked(struct cfile *cf, uint64_t end) REQUIRES(cf->mu);

/* ---- cache_check.c ---- */

/* Whether content that came from the source by ranges is to be compared when all of it is here. */
bool cfile_may_check_locked(const struct cfile *cf);
/* Compares it if it is all here and nobody has. 0: nothing is left to compare; -EAGAIN: something is absent, or what came was wrong and is absent now; -errno of
 * the local disk. */
int cfile_check(struct cfile *cf) MUST_CHECK;
/* How often what came was wrong. Once it was, nothing of it is read before all of it was compared. */
unsigned cfile_doubts(struct cfile *cf);

/* ---- cache_resize.c ---- */

/* An empty file without source gets one, of which it holds nothing yet. -EINVAL: it is not empty. */
int cfile_begin_source(struct cfile *cf, const struct cache_source *src) MUST_CHECK;
/* A file that ends at off, as its source's limit does, ends at `end` from now on and gets what is between from the source. -EINVAL: it does not end there. */
int cfile_grow_source(struct cfile *cf, uint64_t off, uint64_t end) MUST_CHECK;

/* ---- cache_io.c ---- */

/* What a modification does to the file once its range is ours: returns bytes done or -errno. */
typedef ssize_t cfile_modify_fn(struct cfile *cf, const void *arg, uint64_t off, uint64_t len);
/* Makes [off, off+len) ours, runs fn, marks what it did; grow: the size follows. Space must have been reserved. */
ssize_t cfile_modify(struct cfile *cf, uint64_t off, uint64_t len, bool grow, cfile_modify_fn *fn, const void *arg)
    MUST_CHECK;
/* Bytes of new disk space a write to the range may need at most. */
uint64_t cfile_space_needed(struct cfile *cf, uint64_t off, uint64_t len);

/* ---- cache_punch.c ---- */

/* What of a wholly present file is here and what is dirty is tracked, and kept over restarts, from now on. False: it is dirty already. */
bool cfile_track_presence_locked(struct cfile *cf);
/* Frees at least `want` bytes of clean chunks if it can; oldest arrivals first. Returns bytes freed. */
uint64_t cfile_punch(struct cfile *cf, uint64_t want);
/* Makes room for `len` more bytes of a windowed file inside its window. */
void cfile_punch_window(struct cfile *cf, uint64_t len);
