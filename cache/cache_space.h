/*
 * Private to cache/: what the cache takes on disk, who may take more, and the evictor. All functions take space.mu themselves.
 */
#pragma once
#include "base/clock.h"
#include "cache_internal.h"

void space_init(struct cache *c); /* before the tiers */
void space_fini(struct cache *c);
int space_tier_init(struct cache_tier *t) MUST_CHECK; /* limits from the configuration and the file system */
void space_tier_fini(struct cache_tier *t);
int space_start(struct cache *c) MUST_CHECK; /* the evictors */
void space_stop(struct cache *c);

/* New entry, or NULL lookup. Entries of claimed vids stay in place. */
struct cache_entry *space_entry_add(struct cache_tier *t, uint64_t vid, uint64_t ino, uint32_t flags, uint64_t weight);
struct cache_entry *space_entry_find(struct cache *c, uint64_t vid);
/* Its file is on another tier now, and takes so many bytes there. */
void space_entry_move(struct cache *c, struct cache_entry *e, struct cache_tier *to, uint64_t bytes);
/* As known from the index; in ascending order of last_use. */
void space_entry_restore(struct cache_tier *t, const struct meta_cached *rec);
/* The entry's file is gone. remember: keep a ghost for the replacement. */
void space_entry_remove(struct cache *c, struct cache_entry *e, bool remember);
void space_entry_set_open(struct cache *c, struct cache_entry *e, bool open);
/* Returns the flags as they were. */
uint32_t space_entry_flags(struct cache *c, struct cache_entry *e, uint32_t set, uint32_t clear);
void space_entry_record(struct cache *c, const struct cache_entry *e, struct meta_cached *ret);
void space_entry_account(struct cache *c, struct cache_entry *e, uint64_t bytes, uint64_t size);
/* Whether the record differs from the one in the database; the caller saves it now. */
bool space_entry_take_stale(struct cache *c, struct cache_entry *e);
/* Whether the file has no holes to speak of. */
bool space_entry_is_full(struct cache *c, const struct cache_entry *e, uint64_t size);
void space_entry_use(struct cache *c, struct cache_entry *e, bool opened);
/* Closed, if it is whole, clean, where it is to be and as it is recorded. */
bool space_entry_rest(struct cache *c, struct cache_entry *e);
/* Open again, and used, if the kernel has had it and its disk is used. */
bool space_entry_wake(struct cache *c, struct cache_entry *e);

enum space_use { SPACE_WRITE, SPACE_FETCH };
/* Promises `bytes` of room. A write waits as long as there is progress (-ENOSPC after op_timeout without); a fetch only until the evictor gave up. */
int space_reserve(struct cache_tier *t, uint64_t bytes, enum space_use use) MUST_CHECK;
void space_release(struct cache_tier *t, uint64_t bytes);
/* How much is free there is asked of the file system. */
void space_look_at_disk(struct cache_tier *t);
/* What a tier's evictor, which alone calls it, does whenever it wakes, and every SPACE_LOOK_NS while it is busy with something else. waited_for: nothing is dropped unless somebody waits. */
void space_tend(struct cache_tier *t, bool waited_for);
#define SPACE_LOOK_NS (50 * NS_PER_MS) /* between two looks while somebody waits */
/* Drops one closed, clean, unpinned file: bytes freed, 0 when there is none. */
uint64_t space_evict_one(struct cache_tier *t);
/* Drops vid, which is closed and clean, and pinned or not as it says: -EBUSY, -ENOENT. */
int space_evict_vid(struct cache *c, uint64_t vid, bool pinned, uint64_t *ret_bytes) MUST_CHECK;
/* Would `more` bytes be above that part of the limit, or below what has to stay free? */
bool space_over_locked(const struct cache_tier *t, uint64_t more, unsigned percent);
/* Drops vid: -EBUSY, -ENOENT. */
int space_evict(struct cache *c, uint64_t vid) MUST_CHECK;
/* What may still come before the tier holds `percent` of its limit. */
uint64_t space_tier_room_locked(const struct cache_tier *t, unsigned percent);
/* Every record, for the order of use (at the end of a run). */
int space_save_index(struct cache *c) MUST_CHECK;

/* ---- cache_yield.c ---- */

/* Pinned, and may go if it has to. */
bool space_yields(const struct cache_entry *e);
/* The last resort of a writer. True: something is gone. */
bool space_evict_pinned(struct cache_tier *t, uint64_t want);

/* ---- cache_removed.c ---- */

void removed_init(struct cache *c);
void removed_fini(struct cache *c);
int removed_start(struct cache *c) MUST_CHECK;
void removed_stop(struct cache *c); /* nothing is removed any more; settles what was. Half-started allowed */
/* A data file of the tier went. */
void removed_mark(struct cache_tier *t, uint64_t vid);
/* The same, and its DYING record goes when the disk knows. */
void removed_add(struct cache_tier *t, uint64_t vid);
