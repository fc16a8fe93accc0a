/*
 * Records, segments and checksums of cache files in the database.
 *
 * cfile_save() is a group commit per file: one thread at a time encodes the present state under cf->mu and commits it without,
 * so states reach the database in order; those who come meanwhile wait for the next round. What a crash leaves:
 * bits that are missing (chunks are fetched again), never bits without bytes; a clean chunk is dirty before its bytes change,
 * a dirty chunk's bits are committed before the write returns.
 *
 * The limit of a truncated file is kept as a small value beside the record: bytes beyond it must not come back from the
 * source even if the inode record was not yet written.
 */
#include "base/crash.h"
#include "cache_file.h"
#include "cache_space.h"
#include "cache_sums.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void limit_name(uint64_t vid, char ret[40])
{
    (void)snprintf(ret, 40, "cache/limit/%016" PRIx64, vid);
}

/* Puts all that is unsaved into b; the caller holds cf->mu. */
static void encode_unsaved_locked(struct cfile *cf, struct meta_batch *b)
{
    char name[40];
    struct meta_cached rec;
    uint64_t n_segments = cf->unsaved.n_words * 64;
    for (uint64_t i = chunkset_next_set(&cf->unsaved, 0, n_segments); i < n_segments;
         i = chunkset_next_set(&cf->unsaved, i + 1, n_segments)) {
        struct meta_segment seg;
        chunks_encode_segment(&cf->present, &cf->dirty_chunks, (uint32_t)i, &seg);
        meta_segment_put(b, cf->vid, (uint32_t)i, &seg);
    }
    for (guint i = 0; i < cf->unsaved_crcs->len; i++) {
        const struct chunk_crc *cc = &g_array_index(cf->unsaved_crcs, struct chunk_crc, i);
        if (cc->remove)
            meta_chunk_crc_del(b, cf->vid, cc->chunk);
        else
            meta_chunk_crc_put(b, cf->vid, cc->chunk, cc->crc);
    }
    if (cf->limit_unsaved) {
        limit_name(cf->vid, name);
        meta_value_put_u64(b, name, cf->limit);
    }
    space_entry_record(cf->c, cf->entry, &rec);
    meta_cached_put(b, &rec);
    chunkset_clear(&cf->unsaved);
    g_array_set_size(cf->unsaved_crcs, 0);
    cf->limit_unsaved = cf->record_unsaved = false;
}

/* One round of saving; cf->mu is released during the commit. */
static void save_round_locked(struct cfile *cf) REQUIRES(cf->mu)
{
    uint64_t gen = cf->save_want;
    bool sync = cf->save_sync;
    struct meta_batch *b = meta_batch_new(cf->c->meta);
    cf->saving = true;
    cf->save_sync = false;
    encode_unsaved_locked(cf, b);
    mutex_unlock(&cf->mu);
    int r = meta_commit(b, sync);
    meta_batch_free(b);
    mutex_lock(&cf->mu);
    if (r < 0)
        cf->record_unsaved = true; /* the database takes nothing more: whoever asks whether all is saved meets that */
    cf->saving = false;
    cf->save_done = gen;
    cf->save_err = r;
    cond_broadcast(&cf->changed);
}

static int save_locked(struct cfile *cf) REQUIRES(cf->mu)
{
    uint64_t want = ++cf->save_want;
    while (cf->save_done < want) {
        if (cf->saving)
            cond_wait(&cf->changed, &cf->mu);
        else
            save_round_locked(cf);
    }
    return cf->save_err;
}

int cfile_save(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    int r = save_locked(cf);
    mutex_unlock(&cf->mu);
    return r;
}

int cfile_save_synced(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    cf->save_sync = true;
    int r = save_locked(cf);
    mutex_unlock(&cf->mu);
    return r;
}

int cfile_save_if_needed(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    int r = 0;
    if (cf->saving || cf->unsaved.n_set || cf->unsaved_crcs->len || cf->limit_unsaved || cf->record_unsaved)
        r = save_locked(cf);
    mutex_unlock(&cf->mu);
    return r;
}

int index_save_entry(struct cache *c, const struct cache_entry *e)
{
    struct meta_cached rec;
    space_entry_record(c, e, &rec);
    struct meta_batch *b = meta_batch_new(c->meta);
    meta_cached_put(b, &rec);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

/* The limit stored by an earlier truncate, if there is one. */
static int load_limit(struct cfile *cf)
{
    char name[40];
    uint64_t limit = 0;
    limit_name(cf->vid, name);
    int r = meta_value_get_u64(cf->c->meta, name, &limit);
    if (r == 0)
        cf->limit = MIN(cf->limit, limit);
    return r == -ENOENT ? 0 : r;
}

/*
 * A clean file's object has all of it, as its inode says (`whole`): a lower limit is from before it was published. Of the chunk that this lies in the rest
 * may not have been asked for, so it is fetched anew, as are those beyond that have no bits: also where the kernel had the file, since nothing was here if it had been moved before.
 */
static void outgrow_limit(struct cfile *cf, uint64_t whole)
{
    uint64_t old = cf->limit;
    if (cf->dirty || old >= whole)
        return;
    if (old % META_CHUNK_BYTES)
        chunkset_unset(&cf->present, chunk_of(old), 1);
    cf->limit = whole;
    cf->limit_unsaved = true;
    cfile_touch_segments_locked(cf, chunk_of(old), chunks_for(whole));
}

/*
 * Of a chunk that was fetched the checksum tells whether a power loss left its bytes. One without was written here and published since; in a file that was being changed then (`changed`)
 * its dirty bit may be lost though the change is on the disk, so it counts as changed. Checksums are of what came from the source: beyond its limit there is nothing to compare.
 */
static void suspect_chunks(struct cfile *cf, uint64_t n_chunks, bool changed)
{
    uint32_t crc;
    for (uint64_t i = 0; i < n_chunks && chunk_start(i) < cf->limit; i++) {
        if (!chunkset_get(&cf->present, i) || chunkset_get(&cf->dirty_chunks, i))
            continue;
        if (changed && meta_chunk_crc_get(cf->c->meta, cf->vid, i, &crc) == -ENOENT) {
            chunkset_set(&cf->dirty_chunks, i, 1);
            cfile_touch_segments_locked(cf, i, i + 1);
        } else {
            chunkset_set(&cf->verify, i, 1);
        }
    }
}

/* The dirty bits, which go into the database with the record, say it from now on. */
static void end_doubt(struct cfile *cf)
{
    if (space_entry_flags(cf->c, cf->entry, 0, CACHED_DOUBT) & CACHED_DOUBT)
        cf->record_unsaved = true;
}

int index_load_segments(struct cfile *cf)
{
    uint64_t n_chunks = chunks_for(cf->size), whole = cf->limit;
    uint32_t flags = space_entry_flags(cf->c, cf->entry, 0, 0);
    cf->segmented = flags & CACHED_SEGMENTS;
    cf->dirty = cf->synced = flags & CACHED_DIRTY; /* perhaps */
    cf->n_came = 1;                                /* perhaps */
    cf->all_present = !cf->segmented;
    cf->dirty_unknown = cf->all_present && cf->dirty;
    int r = load_limit(cf);
    if (r < 0)
        return r;
    if (!cf->segmented) { /* what is dirty is dirty as a whole */
        end_doubt(cf);
        return 0;
    }
    for (uint64_t i = 0; i * META_SEGMENT_CHUNKS < n_chunks; i++) {
        struct meta_segment seg;
        r = meta_segment_get(cf->c->meta, cf->vid, (uint32_t)i, &seg);
        if (r == -ENOENT)
            continue;
        if (r < 0)
            return r;
        chunks_decode_segment(&seg, (uint32_t)i, &cf->present, &cf->dirty_chunks);
    }
    /* A truncate that was cut off by a crash may have left bits past the end. */
    chunkset_unset(&cf->present, n_chunks, UINT64_MAX / 2);
    chunkset_unset(&cf->dirty_chunks, n_chunks, UINT64_MAX / 2);
    outgrow_limit(cf, whole);
    /* What was whole when it was closed had been compared, and what the kernel has is not taken away any more. */
    cf->unchecked = !(flags & (CACHED_COMPLETE | CACHED_WRITTEN | CACHED_GIVEN)) && cfile_may_check_locked(cf);
    if (flags & CACHED_SUSPECT)
        suspect_chunks(cf, n_chunks, cf->dirty && (flags & CACHED_DOUBT));
    end_doubt(cf);
    return 0;
}

void index_batch_forget(struct meta_batch *b, uint64_t vid)
{
    char name[40];
    limit_name(vid, name);
    meta_value_del(b, name);
    cache_sums_del(b, vid);
    meta_cached_del(b, vid);
}

/* Unpublished, now or before: what brings it back says so of itself. */
static bool may_have_intent(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    const struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    bool may = !e || cached_unchecked(e->flags);
    mutex_unlock(&c->space.mu);
    return may;
}

bool index_is_dying(struct cache *c, uint64_t vid)
{
    struct meta_cached rec;
    return meta_cached_get(c->meta, vid, &rec) == 0 && (rec.flags & CACHED_DYING);
}

int index_end_removal(struct cache_tier *t, uint64_t vid)
{
    if (t->kind == TIER_DISK && tier_state(t) != TIER_OK)
        return 0; /* DYING, until it can be removed */
    int r = tier_data_unlink(t, vid);
    CRASH_POINT(evict_unlinked);
    if (r < 0)
        return r;
    if (t->kind == TIER_DISK && may_have_intent(t->c, vid)) {
        removed_add(t, vid);
        return 0;
    }
    struct meta_batch *b = meta_batch_new(t->c->meta);
    meta_cached_del(b, vid);
    r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

int index_remove(struct cache_tier *t, uint64_t vid, bool sync)
{
    struct meta_cached dying = {.vid = vid, .flags = CACHED_DYING, .tier = t->number};
    struct meta_batch *b = meta_batch_new(t->c->meta);
    index_batch_forget(b, vid);
    meta_cached_put(b, &dying);
    int r = meta_commit(b, sync);
    meta_batch_free(b);
    CRASH_POINT(evict_dying);
    return r < 0 ? r : index_end_removal(t, vid);
}

int index_reset(struct cache *c, const struct cache_entry *e, bool sync)
{
    struct meta_cached rec;
    space_entry_record(c, e, &rec);
    struct meta_batch *b = meta_batch_new(c->meta);
    index_batch_forget(b, e->vid);
    meta_cached_put(b, &rec);
    int r = meta_commit(b, sync);
    meta_batch_free(b);
    return r;
}
