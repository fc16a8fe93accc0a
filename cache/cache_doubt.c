/*
 * Doubt in what a disk holds.
 *
 * A disk that was reset, or taken away and mounted again, lost what had not been written to it, in the same boot: the bits of chunks that were fetched say "present" and the file has holes or old
 * bytes there. So before a disk that was bypassed is used again, and at a start that finds it noted (cache/away/N), all its files get CACHED_SUSPECT: chunks are compared with their checksums
 * before their first use.
 *
 * What was written here has no checksum, and once the kernel told of an error, the next sync works. Unpublished files that were not on the disk before get CACHED_FAILED: they are kept, and not
 * published. But only if bytes were lost: the file system is asked (syncfs() on a descriptor that was open before tells of any write that failed since). A start has no such descriptor: it goes by
 * the note, which says "failed" unless the process before was told that all was written.
 *
 * Not possible: the kernel reads a file that it has (passthrough) without asking us. So that one is compared when it is given back, or opened anew.
 */
#include "cache_doubt.h"

#include "base/log.h"
#include "cache_file.h"
#include "cache_space.h"

static bool is_vouched_for(struct cache *c, uint64_t ino, uint64_t vid)
{
    return c->cfg.synced && c->cfg.synced(c->cfg.dropped_ctx, ino, vid);
}

static void say(const struct cache_tier *t, uint64_t ino)
{
    log_err("cache",
            "unpublished content may not have reached the cache disk before that failed, it is kept and not published "
            "ino=%" G_GUINT64_FORMAT " disk='%s'",
            ino, t->dir);
}

uint32_t doubt_flags(struct cache *c, const struct meta_cached *rec, bool booted)
{
    bool dirty = (rec->flags & CACHED_DIRTY) && !(rec->flags & CACHED_DYING);
    const struct cache_tier *t = tier_by_number(c, rec->tier);
    uint32_t flags = booted ? CACHED_SUSPECT | (rec->flags & CACHED_DIRTY ? CACHED_DOUBT : 0) : 0;
    if (!t || t->kind != TIER_DISK || tier_state(t) != TIER_OK || !t->sweep)
        return flags;
    flags |= CACHED_SUSPECT;
    if (t->failed && dirty && !(rec->flags & CACHED_FAILED) && !is_vouched_for(c, rec->ino, rec->vid)) {
        say(t, rec->ino);
        flags |= CACHED_FAILED;
    }
    return flags;
}

struct unsure {
    uint64_t vid, ino;
};

/* Marks what is clean, and lists what is not. */
static GArray *suspect_entries(struct cache_tier *t)
{
    GArray *dirty = g_array_new(FALSE, FALSE, sizeof(struct unsure));
    GHashTableIter it;
    struct cache_entry *e;
    mutex_lock(&t->c->space.mu);
    g_hash_table_iter_init(&it, t->c->space.entries);
    while (g_hash_table_iter_next(&it, NULL, (void **)&e)) {
        struct unsure u = {e->vid, e->ino};
        if (entry_tier(e) != t)
            continue;
        e->flags |= CACHED_SUSPECT;
        e->stale = true; /* nor does it wake (cache_rest.c) */
        if (e->flags & CACHED_DIRTY)
            g_array_append_val(dirty, u);
    }
    mutex_unlock(&t->c->space.mu);
    return dirty;
}

static bool fail_entry(struct cache_tier *t, uint64_t vid)
{
    mutex_lock(&t->c->space.mu);
    struct cache_entry *e = g_hash_table_lookup(t->c->space.entries, &vid);
    bool is = e && entry_tier(e) == t && (e->flags & CACHED_DIRTY);
    if (is) {
        e->flags |= CACHED_FAILED;
        e->stale = true;
    }
    mutex_unlock(&t->c->space.mu);
    return is;
}

void doubt_tier(struct cache_tier *t, bool lost)
{
    g_autoptr(GArray) dirty = suspect_entries(t);
    for (guint i = 0; lost && i < dirty->len; i++) {
        const struct unsure *u = &g_array_index(dirty, struct unsure, i);
        if (!is_vouched_for(t->c, u->ino, u->vid) && fail_entry(t, u->vid))
            say(t, u->ino);
    }
    g_autoptr(GPtrArray) files = cache_open_files(t);
    for (guint i = 0; i < files->len; i++)
        doubt_open(files->pdata[i]);
}

/* Of a file all of which was written here no chunk has a checksum. */
static void suspect_locked(struct cfile *cf) REQUIRES(cf->mu)
{
    uint64_t end = cf->segmented ? chunks_for(cf->limit) : 0;
    for (uint64_t i = chunkset_next_set(&cf->present, 0, end); i < end; i = chunkset_next_set(&cf->present, i + 1, end))
        if (!chunkset_get(&cf->dirty_chunks, i) && !chunkset_get(&cf->busy, i))
            chunkset_set(&cf->verify, i, 1);
}

void doubt_open(struct cfile *cf)
{
    int r = cfile_save_if_needed(cf); /* checksums are read from the database */
    if (r < 0)
        log_warn("cache", "the record of a file could not be saved vid=%" G_GUINT64_FORMAT " r=%s", cf->vid,
                 err_name(r));
    mutex_lock(&cf->mu);
    cf->in_doubt = cf->pass != CACHE_PASS_OFF;
    if (!cf->in_doubt)
        suspect_locked(cf);
    mutex_unlock(&cf->mu);
}

void doubt_given_back_locked(struct cfile *cf)
{
    if (cf->in_doubt)
        suspect_locked(cf);
    cf->in_doubt = false;
}
