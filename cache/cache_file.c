/*
 * Cache files in memory: opening, sharing, source, marks.
 *
 * One cfile per vid: table.files holds those in use, table.busy the vids that somebody is opening, closing or evicting; whoever wants one of
 * these waits for its end (table_claim). So no disk or database call happens under a lock and no two threads ever work on one vid's file and records.
 *
 * References: cache_file_ref needs one already; the last one goes under table.mu, so a lookup never revives a dying file.
 */
#include "cache_file.h"

#include "base/cleanup.h"
#include "base/crash.h"
#include "base/log.h"
#include "cache_fetch.h"
#include "cache_place.h"
#include "cache_space.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* ---- table ---- */

/* The open file, without a reference, or NULL once nobody else has the vid, which is the caller's then; what rested under it is to be freed. */
static struct cfile *claim_locked(struct cache *c, uint64_t vid, struct cfile **ret_rested) REQUIRES(c->table.mu)
{
    struct cfile *cf;
    while (!(cf = g_hash_table_lookup(c->table.files, &vid)) && g_hash_table_contains(c->table.busy, &vid))
        cond_wait(&c->table.changed, &c->table.mu);
    if (cf)
        return cf;
    *ret_rested = rest_take_locked(c, vid);
    g_hash_table_add(c->table.busy, g_memdup2(&vid, sizeof vid));
    return NULL;
}

struct cfile *table_claim(struct cache *c, uint64_t vid)
{
    struct cfile *rested = NULL;
    mutex_lock(&c->table.mu);
    struct cfile *cf = claim_locked(c, vid, &rested);
    if (cf)
        cache_file_ref(cf);
    mutex_unlock(&c->table.mu);
    cfile_free(rested);
    return cf;
}

bool table_claim_unused(struct cache *c, uint64_t vid)
{
    struct cfile *rested = NULL;
    mutex_lock(&c->table.mu);
    bool claimed = !claim_locked(c, vid, &rested);
    mutex_unlock(&c->table.mu);
    cfile_free(rested);
    return claimed;
}

void table_wait_own(struct cache *c, uint64_t vid, uint64_t deadline_ns)
{
    struct cache_table *t = &c->table;
    const struct cfile *cf;
    bool in_time = true;
    mutex_lock(&t->mu);
    while (in_time && (cf = g_hash_table_lookup(t->files, &vid)) &&
           __atomic_load_n(&cf->refs, __ATOMIC_RELAXED) <= __atomic_load_n(&cf->own, __ATOMIC_RELAXED))
        in_time = cond_wait_until(&t->changed, &t->mu, deadline_ns);
    mutex_unlock(&t->mu);
}

static void release_locked(struct cache *c, uint64_t vid) REQUIRES(c->table.mu)
{
    g_hash_table_remove(c->table.busy, &vid);
    cond_broadcast(&c->table.changed);
}

void table_release(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->table.mu);
    release_locked(c, vid);
    mutex_unlock(&c->table.mu);
}

/* ---- state helpers ---- */

void cfile_io_begin_locked(struct cfile *cf, struct cfile_io *io, uint64_t first, uint64_t end)
{
    *io = (struct cfile_io){.first = first, .end = end, .next = cf->ios};
    cf->ios = io;
}

void cfile_io_end_locked(struct cfile *cf, struct cfile_io *io)
{
    struct cfile_io **p = &cf->ios;
    while (*p != io)
        p = &(*p)->next;
    *p = io->next;
    cond_broadcast(&cf->changed);
}

bool cfile_io_overlaps_locked(const struct cfile *cf, uint64_t first, uint64_t end)
{
    for (const struct cfile_io *io = cf->ios; io; io = io->next) {
        if (io->first < end && first < io->end)
            return true;
    }
    return false;
}

void cfile_touch_segments_locked(struct cfile *cf, uint64_t first, uint64_t end)
{
    if (!cf->segmented || first >= end)
        return;
    uint64_t a = chunk_segment(first), b = chunk_segment(end - 1);
    chunkset_set(&cf->unsaved, a, b - a + 1);
}

static void drop_crc_locked(struct cfile *cf, uint64_t chunk)
{
    struct chunk_crc cc = {.chunk = chunk, .remove = true};
    g_array_append_val(cf->unsaved_crcs, cc);
}

bool cfile_mark_dirty_locked(struct cfile *cf, uint64_t first, uint64_t end)
{
    bool news = false;
    if (!cf->segmented) {
        chunkset_set(&cf->dirty_chunks, first, end - first);
        return false;
    }
    for (uint64_t i = first; i < end; i++) {
        if (chunkset_get(&cf->dirty_chunks, i))
            continue;
        drop_crc_locked(cf, i);
        chunkset_set(&cf->dirty_chunks, i, 1);
        chunkset_set(&cf->present, i, 1);
        chunkset_unset(&cf->verify, i, 1);
        cfile_touch_segments_locked(cf, i, i + 1);
        news = true;
    }
    return news;
}

void cfile_account(struct cfile *cf)
{
    struct stat st;
    int fd = __atomic_load_n(&cf->fd, __ATOMIC_ACQUIRE);
    if (fd >= 0 && fstat(fd, &st) == 0) /* without one it rested, and nothing was written since */
        space_entry_account(cf->c, cf->entry, (uint64_t)st.st_blocks * 512, (uint64_t)st.st_size);
}

/* ---- opening ---- */

void cfile_free(struct cfile *cf)
{
    if (!cf)
        return;
    chunkset_clear(&cf->present);
    chunkset_clear(&cf->dirty_chunks);
    chunkset_clear(&cf->busy);
    chunkset_clear(&cf->verify);
    chunkset_clear(&cf->unsaved);
    g_queue_clear(&cf->arrived);
    if (cf->unsaved_crcs)
        g_array_unref(cf->unsaved_crcs);
    if (cf->fd >= 0)
        (void)close(cf->fd);
    if (cf->wfd >= 0)
        (void)close(cf->wfd);
    g_free(cf->src_key);
    cond_fini(&cf->changed);
    mutex_fini(&cf->mu);
    g_free(cf);
}

static struct cfile *cfile_alloc(struct cache *c, struct cache_entry *e, int fd, uint64_t size)
{
    struct cfile *cf = g_new0(struct cfile, 1);
    cf->c = c;
    cf->vid = e->vid;
    cf->ino = e->ino;
    cf->fd = fd;
    cf->wfd = -1;
    cf->entry = e;
    cf->refs = 1;
    cf->size = size;
    cf->stamp = 1;
    mutex_init(&cf->mu, LOCK_CACHE_FILE);
    cond_init(&cf->changed);
    cf->unsaved_crcs = g_array_new(FALSE, FALSE, sizeof(struct chunk_crc));
    return cf;
}

/* Into the table; the claim of vid ends. */
static void publish_in_table(struct cfile *cf)
{
    struct cache *c = cf->c;
    space_entry_set_open(c, cf->entry, true);
    mutex_lock(&c->table.mu);
    g_hash_table_insert(c->table.files, &cf->vid, cf);
    release_locked(c, cf->vid);
    mutex_unlock(&c->table.mu);
}

int cache_file_new(struct cache *c, uint64_t ino, struct cfile **ret)
{
    uint64_t vid = meta_next_ino(c->meta);
    struct cache_tier *t = tier_choose(c, 0, TIER_WANT_DISK);
    if (t->kind != TIER_DISK) {
        log_err("cache", "no cache disk can be used: a new file is refused");
        return -EIO;
    }
    if (table_claim(c, vid))
        return -EEXIST; /* cannot be: ids are unique for ever */
    struct cache_entry *e = space_entry_add(t, vid, ino, CACHED_DIRTY | CACHED_COMPLETE | CACHED_WRITTEN, 0);
    int fd = -1;
    int r = index_save_entry(c, e);
    CRASH_POINT(cache_recorded);
    if (r == 0)
        r = fd = tier_data_open(t, vid, O_RDONLY | O_CREAT | O_EXCL);
    CRASH_POINT(cache_made);
    if (r < 0) {
        tier_note_io(t, r);
        if (index_remove(t, vid, false) < 0)
            log_debug("cache", "index record of a file that could not be made stays vid=%" G_GUINT64_FORMAT, vid);
        space_entry_remove(c, e, false);
        table_release(c, vid);
        return r;
    }
    struct cfile *cf = cfile_alloc(c, e, fd, 0);
    cf->all_present = cf->dirty = true;
    publish_in_table(cf);
    *ret = cf;
    return 0;
}

static int open_claimed(struct cache *c, uint64_t vid, uint64_t ino, uint64_t size, const struct cache_source *src,
                        struct cfile **ret)
{
    CLEANUP_FD int fd = -1;
    struct cache_entry *e = NULL;
    struct stat st;
    int r = place_open(c, vid, ino, size, src, &fd, &e);
    if (r == 0)
        r = RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return r;
    struct cfile *cf = cfile_alloc(c, e, steal_fd(&fd), (uint64_t)st.st_size);
    if (src && src->key) {
        cf->src_key = g_strdup(src->key);
        cf->src_etag = src->etag;
        cf->limit = MIN(src->limit, cf->size);
        cf->ra.whole_by_name = readahead_whole_by_name(src->key);
    }
    r = index_load_segments(cf);
    if (r < 0) {
        cfile_free(cf);
        return r;
    }
    cfile_account(cf);
    *ret = cf;
    return 0;
}

int cache_file_open(struct cache *c, uint64_t vid, uint64_t ino, uint64_t size, const struct cache_source *src,
                    struct cfile **ret)
{
    if (vid == 0)
        vid = meta_next_ino(c->meta);
    struct cfile *cf = table_claim(c, vid);
    if (!cf) {
        int r = open_claimed(c, vid, ino, size, src, &cf);
        if (r < 0) {
            table_release(c, vid);
            return r;
        }
        publish_in_table(cf);
    }
    space_entry_use(c, cf->entry, true);
    *ret = cf;
    return 0;
}

struct cfile *cache_file_ref(struct cfile *cf)
{
    unsigned before = __atomic_fetch_add(&cf->refs, 1, __ATOMIC_RELAXED);
    assert(before > 0);
    return cf;
}

/* vid is claimed, nobody else knows cf. True: it may rest, else it is to be freed. */
static bool close_claimed(struct cfile *cf, bool forgotten)
{
    struct cache *c = cf->c;
    bool nowhere = cfile_tier(cf)->kind == TIER_NOWHERE, rests = false;
    int r;
    upload_cfile_free(cf);
    if (forgotten || nowhere) {
        r = index_remove(cfile_tier(cf), cf->vid, false);
        space_entry_remove(c, cf->entry, false);
    } else {
        cfile_account(cf);
        bool complete = cache_file_complete(cf);
        (void)space_entry_flags(c, cf->entry, complete ? CACHED_COMPLETE : 0, complete ? 0 : CACHED_COMPLETE);
        r = space_entry_take_stale(c, cf->entry) ? cfile_save(cf) : cfile_save_if_needed(cf);
        rests = r == 0 && rest_prepare(cf);
    }
    if (!forgotten && !rests && !nowhere) {
        space_entry_set_open(c, cf->entry, false);
        place_settle(c, cf->entry);
    }
    if (r < 0)
        log_warn("cache", "cannot update the record of a cache file vid=%lu r=%s", (unsigned long)cf->vid, err_name(r));
    return rests;
}

/* The last reference to cf is gone; its vid is claimed, until the end. */
static void end_last(struct cfile *cf, bool forgotten)
{
    struct cache *c = cf->c;
    uint64_t vid = cf->vid;
    bool rests = close_claimed(cf, forgotten);
    mutex_lock(&c->table.mu);
    struct cfile *old = rests ? rest_enter_locked(cf) : cf;
    release_locked(c, vid);
    mutex_unlock(&c->table.mu);
    cfile_free(old);
}

/* own: the reference is one of cf->own. */
static void unref(struct cfile *cf, bool own)
{
    struct cache *c = cf->c;
    uint64_t vid = cf->vid;
    mutex_lock(&c->table.mu);
    __atomic_fetch_sub(&cf->own, own, __ATOMIC_RELAXED);
    bool last = __atomic_sub_fetch(&cf->refs, 1, __ATOMIC_ACQ_REL) == 0, rests = last && rest_again_locked(cf);
    bool forgotten = cf->forgotten;
    if (last)
        g_hash_table_remove(c->table.files, &vid);
    if (last && !rests)
        g_hash_table_add(c->table.busy, g_memdup2(&vid, sizeof vid));
    struct cfile *old = rests ? rest_enter_locked(cf) : NULL;
    if (own)
        cond_broadcast(&c->table.changed);
    mutex_unlock(&c->table.mu);
    if (last && !rests)
        end_last(cf, forgotten);
    cfile_free(old);
}

void cache_file_unref(struct cfile *cf)
{
    if (cf)
        unref(cf, false);
}

/* own first: who waits sees more of them rather than another's use. */
struct cfile *cfile_own_ref(struct cfile *cf)
{
    __atomic_fetch_add(&cf->own, 1, __ATOMIC_RELAXED);
    return cache_file_ref(cf);
}

void cfile_own_unref(struct cfile *cf)
{
    unref(cf, true);
}

static void end_look(void *cf)
{
    cfile_own_unref(cf);
}

GPtrArray *cache_open_files(struct cache_tier *t)
{
    struct cache *c = t->c;
    GPtrArray *files = g_ptr_array_new_with_free_func(end_look);
    GHashTableIter it;
    void *cf;
    mutex_lock(&c->table.mu);
    g_hash_table_iter_init(&it, c->table.files);
    while (g_hash_table_iter_next(&it, NULL, &cf))
        if (cfile_tier(cf) == t)
            g_ptr_array_add(files, cfile_own_ref(cf));
    mutex_unlock(&c->table.mu);
    return files;
}

/* ---- source and marks ---- */

/*
 * The content of the source changed to what is here: what lay beyond the old limit is here and belongs to it now. Checksums may be left there of what was fetched
 * before a truncate, or before the kernel wrote.
 */
static void adopt_new_content_locked(struct cfile *cf, uint64_t new_limit)
{
    uint64_t n_chunks = chunks_for(cf->size), old = cf->limit, edge = chunk_of(old);
    if (!cf->all_present) {
        uint64_t first = chunks_for(old);
        for (uint64_t i = first; i < n_chunks; i++)
            drop_crc_locked(cf, i);
        if (first < n_chunks) {
            chunkset_set(&cf->present, first, n_chunks - first);
            cfile_touch_segments_locked(cf, first, n_chunks);
        }
        if (old % META_CHUNK_BYTES && !chunkset_get(&cf->present, edge)) {
            new_limit = MIN(new_limit, old); /* zeros after it are not in the local file's bits */
        } else if (old % META_CHUNK_BYTES && old != new_limit) {
            drop_crc_locked(cf, edge);
        }
    }
    cf->limit = MIN(new_limit, cf->size);
    cf->limit_unsaved = cf->segmented;
}

int cache_file_set_source(struct cfile *cf, const struct cache_source *src)
{
    const char *key = src ? src->key : NULL;
    cfile_refresh_size(cf);
    mutex_lock(&cf->mu);
    if (!key && !cfile_complete_locked(cf)) { /* the evictor may have taken some of it a moment ago */
        mutex_unlock(&cf->mu);
        return -EINVAL;
    }
    /* Of a dirty file it is another object, made from what is here, though cache_file_rebase() may have told of its etag already. */
    bool same = !cf->dirty && cf->src_key && key && etag_is_set(&src->etag) && etag_equal(&src->etag, &cf->src_etag);
    if (same)
        cf->limit = MIN(cf->limit, src->limit);
    else if (key)
        adopt_new_content_locked(cf, src->limit);
    else
        cf->limit = 0;
    g_free(cf->src_key);
    cf->src_key = g_strdup(key);
    cf->src_etag = key ? src->etag : (struct etag){""};
    cf->src_gen++;
    if (!key && !cf->all_present)
        cfile_touch_segments_locked(cf, 0, chunks_for(cf->size));
    cond_broadcast(&cf->changed);
    mutex_unlock(&cf->mu);
    return cfile_save_if_needed(cf);
}

void cache_file_rebase(struct cfile *cf, const char *key, const struct etag *etag)
{
    mutex_lock(&cf->mu);
    if (cf->src_key && !(g_str_equal(cf->src_key, key) && etag_equal(&cf->src_etag, etag))) {
        g_free(cf->src_key);
        cf->src_key = g_strdup(key);
        cf->src_etag = *etag;
        cf->src_gen++;
        cond_broadcast(&cf->changed);
    }
    mutex_unlock(&cf->mu);
}

bool cfile_source(struct cfile *cf, char **ret_key, struct etag *ret_etag, uint64_t *ret_limit)
{
    mutex_lock(&cf->mu);
    bool has = cf->src_key != NULL;
    if (has) {
        *ret_key = g_strdup(cf->src_key);
        *ret_etag = cf->src_etag;
        *ret_limit = cf->limit;
    }
    mutex_unlock(&cf->mu);
    return has;
}

bool cache_file_is_dirty(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    bool dirty = cf->dirty;
    mutex_unlock(&cf->mu);
    return dirty;
}

int cache_file_set_dirty(struct cfile *cf, bool dirty)
{
    int r = dirty ? place_for_writing(cf) : 0;
    if (r < 0)
        return r;
    mutex_lock(&cf->mu);
    while (cf->moving)
        cond_wait(&cf->changed, &cf->mu);
    if (dirty && cfile_tier(cf)->kind != TIER_DISK) /* its disk failed a moment ago */
        r = -EIO;
    else if (dirty && cf->unchecked && cf->n_bad && cf->n_cuts == 0)
        r = -EAGAIN;
    if (r < 0) {
        mutex_unlock(&cf->mu);
        return r;
    }
    cf->synced = cf->synced && cf->dirty && dirty;
    if (dirty && !cf->dirty && cf->src_key) /* what stays clean can be copied in the store */
        (void)cfile_track_presence_locked(cf);
    cf->dirty = dirty;
    if (dirty && cf->unchecked && cf->n_bad)
        cf->cut_bad = cf->n_bad;
    if (dirty) /* what is changed here is nobody else's content any more */
        cf->unchecked = false;
    if (!dirty) {
        uint64_t n = cf->dirty_chunks.n_words * 64;
        for (uint64_t i = chunkset_next_set(&cf->dirty_chunks, 0, n); i < n;
             i = chunkset_next_set(&cf->dirty_chunks, i + 1, n))
            cfile_touch_segments_locked(cf, i, i + 1);
        chunkset_clear(&cf->dirty_chunks);
        cf->dirty_unknown = false;
    }
    uint32_t old =
        space_entry_flags(cf->c, cf->entry, dirty ? CACHED_DIRTY | CACHED_WRITTEN : 0, dirty ? 0 : CACHED_DIRTY);
    if (!(old & CACHED_DIRTY) != !dirty)
        cf->record_unsaved = true;
    mutex_unlock(&cf->mu);
    return cfile_save_if_needed(cf);
}

int cfile_mark_dirty(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    bool marked = cf->dirty;
    mutex_unlock(&cf->mu);
    int r = marked ? 0 : cache_file_set_dirty(cf, true);
    while (r == -EAGAIN) {
        r = cache_file_fill(cf, true, true, NULL, NULL);
        if (r == 0)
            r = cache_file_set_dirty(cf, true);
    }
    return r;
}

int cache_file_set_intent(struct cfile *cf, const char *text)
{
    int fd = cfile_fd(cf);
    if (fd < 0)
        return fd;
    if (text)
        return RET_ERRNO(fsetxattr(fd, INTENT_NAME, text, strlen(text), 0));
    int r = RET_ERRNO(fremovexattr(fd, INTENT_NAME));
    return r == -ENODATA ? 0 : r;
}

int cache_file_set_published(struct cfile *cf, const struct cache_source *src)
{
    int r = cache_file_set_source(cf, src);
    if (r == 0)
        r = cache_file_set_intent(cf, NULL);
    if (r == 0)
        r = cache_file_set_dirty(cf, false);
    if (r == 0)
        upload_not_needed(cf->c, cf->vid); /* of a run that was cut off between its object's name and its end */
    return r;
}

void cache_file_touch(struct cfile *cf)
{
    space_entry_use(cf->c, cf->entry, false);
}

int cache_pin(struct cache *c, uint64_t vid, enum cache_pin pin)
{
    uint32_t set = place_pin_flags(pin), clear = (CACHED_PINNED | CACHED_MEMORY) & ~set;
    struct cfile *cf = table_claim(c, vid);
    struct cache_entry *e = cf ? cf->entry : space_entry_find(c, vid);
    int r = e ? 0 : -ENOENT;
    if (e)
        (void)space_entry_flags(c, e, set, clear);
    if (cf) {
        r = cfile_save(cf);
        cache_file_unref(cf);
        return r;
    }
    if (e) {
        r = index_save_entry(c, e);
        place_settle(c, e);
    }
    table_release(c, vid);
    return r;
}

int cache_evict(struct cache *c, uint64_t vid)
{
    return space_evict(c, vid);
}

void cache_forget(struct cache *c, uint64_t vid)
{
    struct cfile *cf = table_claim(c, vid);
    if (cf) {
        mutex_lock(&c->table.mu);
        cf->forgotten = true;
        mutex_unlock(&c->table.mu);
        mutex_lock(&cf->mu);
        fetch_carve_locked(cf, 0, UINT64_MAX / 2);
        mutex_unlock(&cf->mu);
        upload_cfile_forgotten(cf);
        cache_file_unref(cf);
        return;
    }
    struct cache_entry *e = space_entry_find(c, vid);
    int r = e ? index_remove(entry_tier(e), vid, false) : 0;
    if (r < 0)
        log_warn("cache", "cannot remove a cache file vid=%lu r=%s", (unsigned long)vid, err_name(r));
    if (e)
        space_entry_remove(c, e, false);
    table_release(c, vid);
    upload_not_needed(c, vid);
}

bool cache_is_unchecked(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    const struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    bool unchecked = e && cached_unchecked(e->flags);
    mutex_unlock(&c->space.mu);
    return unchecked;
}

void cache_forget_empty(struct cache *c, uint64_t vid)
{
    struct stat st;
    struct cache_entry *e = space_entry_find(c, vid);
    CLEANUP_FD int fd = e ? tier_data_open(entry_tier(e), vid, O_RDONLY) : -EIO;
    if (fd == -ENOENT || (fd >= 0 && fstat(fd, &st) == 0 && st.st_size == 0))
        cache_forget(c, vid);
}

/* ---- what is known of a file ---- */

uint64_t cache_file_vid(const struct cfile *cf)
{
    return cf->vid;
}

int cache_file_fd(struct cfile *cf)
{
    return cfile_fd(cf);
}

uint64_t cache_file_size(struct cfile *cf)
{
    cfile_refresh_size(cf);
    mutex_lock(&cf->mu);
    uint64_t size = cf->size;
    mutex_unlock(&cf->mu);
    return size;
}

bool cache_file_has_source(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    bool has = cf->src_key != NULL;
    mutex_unlock(&cf->mu);
    return has;
}

uint64_t cache_file_limit(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    uint64_t limit = cf->limit;
    mutex_unlock(&cf->mu);
    return limit;
}

uint64_t cache_file_present_bytes(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    uint64_t size = cf->size, bytes = size;
    if (!cf->all_present) {
        uint64_t source_chunks = chunks_for(cf->limit);
        uint64_t absent = source_chunks - chunkset_count(&cf->present, 0, source_chunks);
        bytes -= MIN(absent * META_CHUNK_BYTES, bytes);
    }
    mutex_unlock(&cf->mu);
    return bytes;
}

bool cfile_complete_locked(const struct cfile *cf)
{
    uint64_t n = chunks_for(cf->limit);
    return !cf->unchecked && cf->verify.n_set == 0 && (cf->all_present || chunkset_next_unset(&cf->present, 0, n) >= n);
}

bool cache_file_complete(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    bool complete = cfile_complete_locked(cf);
    mutex_unlock(&cf->mu);
    return complete;
}

void cfile_change_begin(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    cf->changing++;
    mutex_unlock(&cf->mu);
}

void cfile_change_end(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    cf->changing--;
    cond_broadcast(&cf->changed);
    mutex_unlock(&cf->mu);
}

uint64_t cfile_change_stamp(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    uint64_t stamp = cf->stamp;
    mutex_unlock(&cf->mu);
    return stamp;
}

int cfile_range_dirty(struct cfile *cf, uint64_t off, uint64_t len)
{
    mutex_lock(&cf->mu);
    uint64_t first = chunk_of(off), n = chunks_for(off + len) - first;
    bool dirty = !cf->src_key || cf->dirty_unknown || off + len > cf->limit ||
                 (len && chunkset_any(&cf->dirty_chunks, first, n));
    mutex_unlock(&cf->mu);
    return dirty;
}
