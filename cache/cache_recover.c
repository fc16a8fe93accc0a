/*
 * What is known after a start: the index is loaded, half-finished removals are ended, and chunks fetched before the
 * machine went down are verified before their first use. Nothing here reads a disk's data folder but for records of nothing; a file that is missing or of the
 * wrong size is noticed when it is opened (cache_place.c). Memory that a process before handed on is looked through: what its records do not know takes room
 * that nobody counts, and would until the end of the mount.
 *
 * After a power loss the file system may have lost data of chunks whose bits the database kept, so a change of the boot id marks every
 * record CACHED_SUSPECT once; the mark goes when all chunks of the file were verified. So does a disk that is noted to have been away, for its own records (cache_doubt.c). Only of what was being changed then, CACHED_DOUBT, a dirty bit may be lost: that a clean file is
 * dirty is on the disk before its first byte changes.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/metric.h"
#include "cache_doubt.h"
#include "cache_file.h"
#include "cache_space.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BOOT_VALUE "cache/boot"
#define BATCH_ROWS 1000u

static int on_record(void *ctx, const struct meta_cached *rec)
{
    g_array_append_val((GArray *)ctx, *rec);
    return 0;
}

static int by_use(const void *a, const void *b)
{
    const struct meta_cached *x = a, *y = b;
    return x->last_use < y->last_use ? -1 : x->last_use > y->last_use;
}

static bool booted_since(struct cache *c)
{
    GBytes *value = NULL;
    const char *boot = clock_boot_id();
    if (meta_value_get(c->meta, BOOT_VALUE, &value) < 0)
        return true;
    bool same = g_bytes_get_size(value) == strlen(boot) && boot[0] &&
                memcmp(g_bytes_get_data(value, NULL), boot, strlen(boot)) == 0;
    g_bytes_unref(value);
    return !same;
}

/* Marks records suspect, then notes the boot; a crash between the two only does it again. Nor does the note of a disk that failed go before. */
static int mark_suspect(struct cache *c, GArray *recs)
{
    int r = 0;
    unsigned n = 0;
    bool booted = booted_since(c);
    /* The first disk holds the database, which may have lost as much as the data. */
    bool old = booted || tier_by_number(c, TIER_NUMBER_FIRST)->failed;
    struct meta_batch *b = meta_batch_new(c->meta);
    for (guint i = 0; r == 0 && i < recs->len; i++) {
        struct meta_cached *rec = &g_array_index(recs, struct meta_cached, i);
        uint32_t more = doubt_flags(c, rec, old) & ~rec->flags;
        if (!more)
            continue;
        rec->flags |= more;
        meta_cached_put(b, rec);
        if (++n % BATCH_ROWS == 0)
            r = meta_commit(b, false);
    }
    if (r == 0 && (booted || n)) {
        const char *boot = clock_boot_id();
        meta_value_put(b, BOOT_VALUE, boot, strlen(boot));
        r = meta_commit(b, true);
    }
    meta_batch_free(b);
    return r;
}

/* The tier of a record; NULL: its file is gone and may be. Unpublished files keep their record, wherever they are. */
static struct cache_tier *home_of(struct cache *c, const struct meta_cached *rec)
{
    bool dirty = (rec->flags & CACHED_DIRTY) && !(rec->flags & CACHED_DYING);
    bool memory = rec->tier == TIER_NUMBER_MEMORY, kept = memory && c->cfg.memory_bytes && c->cfg.memory_fd > 0;
    if ((memory && !kept) || rec->tier == TIER_NUMBER_NOWHERE)
        return dirty ? tier_by_number(c, TIER_NUMBER_NOWHERE) : NULL;
    struct cache_tier *t = tier_by_number(c, rec->tier);
    return t || !dirty ? t : tier_missing(c, rec->tier);
}

/* Of a file that is not here. A disk that comes back with it is looked through; away: numbers noted so far. */
static int drop_record(struct cache *c, struct meta_batch *b, const struct meta_cached *rec, GHashTable *away)
{
    index_batch_forget(b, rec->vid);
    bool disk = rec->tier < TIER_NUMBER_MEMORY;
    return disk && g_hash_table_add(away, GUINT_TO_POINTER(rec->tier)) ? tier_note_away(c, rec->tier, false) : 0;
}

/* The record of a file that is to be fetched is made before the file: is this one all that a kill in between left? One that has bytes was looked at since. */
static bool never_made(struct cache_tier *t, const struct meta_cached *rec)
{
    if (rec->bytes > 0 || (rec->flags & (CACHED_DIRTY | CACHED_DYING)) || tier_state(t) != TIER_OK)
        return false;
    CLEANUP_FD int fd = tier_data_open(t, rec->vid, O_RDONLY);
    return fd == -ENOENT;
}

/* One file that cannot be removed is no reason to do without the cache: its record stays, the next start tries again. */
static void end_removal(struct cache_tier *t, uint64_t vid)
{
    int r = index_end_removal(t, vid);
    if (r < 0)
        log_warn("cache", "a dropped cache file could not be removed vid=%" PRIu64 " r=%s", vid, err_name(r));
}

int recover_index(struct cache *c)
{
    g_autoptr(GArray) recs = g_array_new(FALSE, FALSE, sizeof(struct meta_cached));
    int r = meta_cached_each(c->meta, on_record, recs);
    if (r < 0)
        return r;
    r = mark_suspect(c, recs);
    if (r < 0)
        return r;
    if (recs->len)
        qsort(recs->data, recs->len, sizeof(struct meta_cached), by_use);
    struct meta_batch *b = meta_batch_new(c->meta);
    g_autoptr(GHashTable) away = g_hash_table_new(NULL, NULL);
    for (guint i = 0; r == 0 && i < recs->len; i++) {
        const struct meta_cached *rec = &g_array_index(recs, struct meta_cached, i);
        struct cache_tier *t = home_of(c, rec);
        if (t && never_made(t, rec))
            index_batch_forget(b, rec->vid);
        else if (t && !(rec->flags & CACHED_DYING))
            space_entry_restore(t, rec);
        else if (t)
            end_removal(t, rec->vid);
        else
            r = drop_record(c, b, rec, away);
        if (r == 0 && i % BATCH_ROWS == BATCH_ROWS - 1)
            r = meta_commit(b, false);
    }
    if (r == 0)
        r = meta_commit(b, true); /* before files of the dropped ones are made anew */
    CRASH_POINT(recover_index);
    meta_batch_free(b);
    return r;
}

/* Files of one folder that no record puts there. Their number. */
static unsigned sweep_folder(struct cache_tier *t, unsigned number)
{
    char name[16];
    unsigned n = 0;
    (void)snprintf(name, sizeof name, "data/%02x", number);
    int fd = openat(t->dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d && fd >= 0)
        (void)close(fd);
    for (struct dirent *f; d && (f = readdir(d));) {
        char *end;
        uint64_t vid = strtoull(f->d_name, &end, 16);
        struct cache_entry *e = space_entry_find(t->c, vid);
        bool ours = e && entry_tier(e) == t;
        if (f->d_name[0] != '.' && *end == '\0' && !ours)
            n += tier_data_unlink(t, vid) == 0;
    }
    if (d)
        closedir(d);
    return n;
}

void recover_memory(struct cache *c)
{
    struct cache_tier *t = tier_by_number(c, TIER_NUMBER_MEMORY);
    unsigned n = 0;
    if (!t || c->cfg.memory_fd <= 0)
        return;
    for (unsigned i = 0; i < 256; i++)
        n += sweep_folder(t, i);
    if (n == 0)
        return;
    log_notice("cache", "unfinished copies in memory were removed n=%u", n);
    space_look_at_disk(t);
}

static int by_ino(const void *a, const void *b)
{
    const struct meta_cached *x = a, *y = b;
    return x->ino < y->ino ? -1 : x->ino > y->ino;
}

int cache_dirty_each(struct cache *c, int (*fn)(void *ctx, uint64_t vid, uint64_t ino), void *ctx)
{
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(struct meta_cached));
    GHashTableIter it;
    struct cache_entry *e;
    mutex_lock(&c->space.mu);
    g_hash_table_iter_init(&it, c->space.entries);
    while (g_hash_table_iter_next(&it, NULL, (void **)&e)) {
        struct meta_cached rec = {.vid = e->vid, .ino = e->ino};
        if (e->flags & CACHED_DIRTY)
            g_array_append_val(list, rec);
    }
    mutex_unlock(&c->space.mu);
    g_array_sort(list, by_ino);
    int r = 0;
    for (guint i = 0; r == 0 && i < list->len; i++) {
        const struct meta_cached *rec = &g_array_index(list, struct meta_cached, i);
        r = fn(ctx, rec->vid, rec->ino);
    }
    return r;
}

/* The stored checksum against the bytes in the file: 1 good (or none stored: written here, synced before it was published, and taken away only by a synced commit), 0 bad. */
static int chunk_is_good(struct cfile *cf, uint64_t chunk, size_t len)
{
    uint32_t want;
    int r = meta_chunk_crc_get(cf->c->meta, cf->vid, chunk, &want);
    if (r == -ENOENT)
        return 1;
    if (r < 0)
        return 0;
    g_autofree uint8_t *buf = g_malloc(META_CHUNK_BYTES);
    size_t got = 0;
    int fd = cfile_fd(cf);
    while (got < len) {
        ssize_t n = fd < 0 ? fd : RET_ERRNO(pread(fd, buf + got, len - got, (off_t)(chunk_start(chunk) + got)));
        if (n <= 0)
            return 0;
        got += (size_t)n;
    }
    return crc32c(0, buf, len) == want;
}

void cfile_verify_chunk_locked(struct cfile *cf, uint64_t chunk) REQUIRES(cf->mu)
{
    struct cfile_io io;
    uint64_t start = chunk_start(chunk);
    size_t len = (size_t)(MIN(start + META_CHUNK_BYTES, cf->limit) - start);
    chunkset_set(&cf->busy, chunk, 1);
    cfile_io_begin_locked(cf, &io, chunk, chunk + 1);
    mutex_unlock(&cf->mu);
    bool good = chunk_is_good(cf, chunk, len);
    mutex_lock(&cf->mu);
    chunkset_unset(&cf->busy, chunk, 1);
    chunkset_unset(&cf->verify, chunk, 1);
    if (!good) {
        metric_inc(M_corrupt_chunks);
        log_debug("cache", "chunk does not match its checksum, fetching again vid=%" PRIu64 " chunk=%" PRIu64, cf->vid,
                  chunk);
        chunkset_unset(&cf->present, chunk, 1);
        cfile_touch_segments_locked(cf, chunk, chunk + 1);
    }
    if (cf->verify.n_set == 0) {
        (void)space_entry_flags(cf->c, cf->entry, 0, CACHED_SUSPECT);
        cf->record_unsaved = true;
    }
    cfile_io_end_locked(cf, &io);
}

void cfile_verify_edge_locked(struct cfile *cf, uint64_t end) REQUIRES(cf->mu)
{
    uint64_t edge = chunk_of(end);
    while (end % META_CHUNK_BYTES && chunkset_get(&cf->verify, edge)) {
        if (chunkset_get(&cf->busy, edge)) /* who reads it compares it just now */
            cond_wait(&cf->changed, &cf->mu);
        else
            cfile_verify_chunk_locked(cf, edge);
    }
}
