/*
 * Accounting and the evictor.
 *
 * What counts is what files take on disk (st_blocks), plus what writes and fetches in progress were promised. The free space of the file system
 * is looked at once a second and whenever somebody waits; in between it is corrected by our own growth.
 *
 * The evictor thread keeps between the high and the low water mark. Order: closed clean files as the policy says, then chunks of
 * clean files in use. Dirty and pinned files and dirty chunks are never touched. When nothing is left it says so (gave_up_gen), which ends the
 * wait of fetches; writers go on waiting for dirty data to become clean.
 */
#include "cache_space.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "cache_file.h"

#include <assert.h>
#include <sys/statvfs.h>

#define HIGH_WATER_PERCENT 99u
#define LOW_WATER_PERCENT  97u
#define CORRELATED_USES    16u /* uses this close together count as one */
#define BUSY_TRIES         5u
#define BUSY_WAIT_US       4000u
#define TICK_NS            NS_PER_S

static uint64_t percent_of(uint64_t n, unsigned percent)
{
    return n / 100 * percent + n % 100 * percent / 100;
}

static void publish_metrics_locked(struct cache_space *s)
{
    metric_set(M_cache_bytes, (int64_t)s->used_bytes);
    metric_set(M_pinned_bytes, (int64_t)s->pinned_bytes);
    metric_set(M_dirty_bytes, (int64_t)s->dirty_bytes);
}

static bool entry_held(const struct cache_entry *e)
{
    return e->open || (e->flags & (CACHED_DIRTY | CACHED_PINNED));
}

/* Takes e out of (sign -1) or into (sign 1) the sums. */
static void charge_locked(struct cache_space *s, const struct cache_entry *e, bool add)
{
    uint64_t n = add ? e->bytes : 0 - e->bytes;
    s->used_bytes += n;
    if (e->flags & CACHED_DIRTY)
        s->dirty_bytes += n;
    if (e->flags & CACHED_PINNED)
        s->pinned_bytes += n;
}

static void room_made_locked(struct cache_space *s)
{
    s->freed_gen++;
    cond_broadcast(&s->changed);
    cond_signal(&s->kick);
}

static void look_at_disk(struct cache *c)
{
    struct statvfs v;
    if (fstatvfs(c->dir_fd, &v) < 0)
        return; /* the last value stays; a broken disk shows in the writes */
    mutex_lock(&c->space.mu);
    c->space.fs_free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    mutex_unlock(&c->space.mu);
}

int space_init(struct cache *c)
{
    struct cache_space *s = &c->space;
    struct statvfs v;
    int r = RET_ERRNO(fstatvfs(c->dir_fd, &v));
    if (r < 0)
        return r;
    uint64_t total = (uint64_t)v.f_blocks * v.f_frsize;
    mutex_init(&s->mu, LOCK_CACHE_SPACE);
    cond_init(&s->changed);
    cond_init(&s->kick);
    s->entries = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    s->limit_bytes = c->cfg.size_bytes ? c->cfg.size_bytes : percent_of(total, c->cfg.size_percent);
    s->free_limit_bytes = c->cfg.free_bytes ? c->cfg.free_bytes : percent_of(total, c->cfg.free_percent);
    s->fs_free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    policy_init(&s->policy, s->limit_bytes);
    metric_set(M_cache_limit_bytes, (int64_t)s->limit_bytes);
    return 0;
}

void space_fini(struct cache *c)
{
    struct cache_space *s = &c->space;
    if (!s->entries)
        return;
    policy_fini(&s->policy);
    g_hash_table_unref(s->entries);
    s->entries = NULL;
    cond_fini(&s->kick);
    cond_fini(&s->changed);
    mutex_fini(&s->mu);
}

uint64_t space_limit(struct cache *c)
{
    return c->space.limit_bytes;
}

/* ---- entries ---- */

struct cache_entry *space_entry_add(struct cache *c, uint64_t vid, uint64_t ino, uint32_t flags, uint64_t weight)
{
    struct cache_space *s = &c->space;
    struct cache_entry *e = g_new0(struct cache_entry, 1);
    e->vid = e->item.id = vid;
    e->ino = ino;
    e->flags = flags;
    mutex_lock(&s->mu);
    assert(!g_hash_table_contains(s->entries, &vid));
    g_hash_table_insert(s->entries, &e->vid, e);
    e->last_use = ++s->use_clock;
    policy_insert(&s->policy, &e->item, weight);
    policy_set_held(&s->policy, &e->item, entry_held(e));
    mutex_unlock(&s->mu);
    return e;
}

struct cache_entry *space_entry_find(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    mutex_unlock(&c->space.mu);
    return e;
}

void space_entry_restore(struct cache *c, const struct meta_cached *rec)
{
    struct cache_space *s = &c->space;
    struct cache_entry *e = g_new0(struct cache_entry, 1);
    e->vid = e->item.id = rec->vid;
    e->ino = rec->ino;
    e->flags = rec->flags;
    e->bytes = rec->bytes;
    e->last_use = rec->last_use;
    e->use_gap = rec->use_gap;
    mutex_lock(&s->mu);
    g_hash_table_replace(s->entries, &e->vid, e);
    s->use_clock = MAX(s->use_clock, rec->last_use);
    charge_locked(s, e, true);
    policy_restore(&s->policy, &e->item, rec->bytes, rec->flags & CACHED_HOT);
    policy_set_held(&s->policy, &e->item, entry_held(e));
    publish_metrics_locked(s);
    mutex_unlock(&s->mu);
}

void space_entry_remove(struct cache *c, struct cache_entry *e, bool remember)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    charge_locked(s, e, false);
    s->fs_free_bytes += e->bytes;
    policy_remove(&s->policy, &e->item, remember);
    g_hash_table_remove(s->entries, &e->vid);
    publish_metrics_locked(s);
    room_made_locked(s);
    mutex_unlock(&s->mu);
}

void space_entry_set_open(struct cache *c, struct cache_entry *e, bool open)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    e->open = open;
    policy_set_held(&s->policy, &e->item, entry_held(e));
    if (!open && s->waiting_bytes)
        cond_signal(&s->kick);
    mutex_unlock(&s->mu);
}

uint32_t space_entry_flags(struct cache *c, struct cache_entry *e, uint32_t set, uint32_t clear)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    uint32_t old = e->flags, now = (old | set) & ~clear;
    if (now != old) {
        charge_locked(s, e, false);
        e->flags = now;
        charge_locked(s, e, true);
        e->stale = true;
        policy_set_held(&s->policy, &e->item, entry_held(e));
        publish_metrics_locked(s);
        if ((old & ~now) & (CACHED_DIRTY | CACHED_PINNED))
            room_made_locked(s); /* can be dropped now */
    }
    mutex_unlock(&s->mu);
    return old;
}

void space_entry_record(struct cache *c, const struct cache_entry *e, struct meta_cached *ret)
{
    mutex_lock(&c->space.mu);
    *ret = (struct meta_cached){.vid = e->vid,
                                .ino = e->ino,
                                .bytes = e->bytes,
                                .last_use = e->last_use,
                                .use_gap = e->use_gap,
                                .flags = (e->flags & ~CACHED_HOT) | (e->item.hot ? CACHED_HOT : 0)};
    mutex_unlock(&c->space.mu);
}

void space_entry_account(struct cache *c, struct cache_entry *e, uint64_t bytes, uint64_t size)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    if (e->bytes != bytes) {
        bool shrunk = bytes < e->bytes;
        uint64_t grown = shrunk ? 0 : bytes - e->bytes;
        charge_locked(s, e, false);
        s->fs_free_bytes -= MIN(grown, s->fs_free_bytes);
        e->bytes = bytes;
        e->stale = true;
        charge_locked(s, e, true);
        publish_metrics_locked(s);
        if (shrunk)
            room_made_locked(s);
    }
    /* What it weighs is what it will take when whole, unless it is never kept whole. */
    policy_set_weight(&s->policy, &e->item, size > s->limit_bytes / 2 ? bytes : MAX(size, bytes));
    mutex_unlock(&s->mu);
}

void space_entry_use(struct cache *c, struct cache_entry *e, bool opened)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    uint64_t near = MIN(CORRELATED_USES, g_hash_table_size(s->entries) / 8);
    uint64_t gap = s->use_clock - e->last_use;
    if (gap > near || (opened && gap > 0)) {
        e->use_gap = gap;
        e->last_use = ++s->use_clock;
        if (gap > near)
            policy_use(&s->policy, &e->item);
    }
    mutex_unlock(&s->mu);
}

bool space_entry_take_stale(struct cache *c, struct cache_entry *e)
{
    mutex_lock(&c->space.mu);
    bool stale = e->stale;
    e->stale = false;
    mutex_unlock(&c->space.mu);
    return stale;
}

bool space_entry_is_full(struct cache *c, const struct cache_entry *e, uint64_t size)
{
    mutex_lock(&c->space.mu);
    bool full = e->bytes + META_CHUNK_BYTES >= size;
    mutex_unlock(&c->space.mu);
    return full;
}

int space_save_index(struct cache *c)
{
    GHashTableIter it;
    void *e;
    int r = 0;
    unsigned n = 0;
    struct meta_batch *b = meta_batch_new(c->meta);
    g_hash_table_iter_init(&it, c->space.entries); /* all threads have ended */
    while (r == 0 && g_hash_table_iter_next(&it, NULL, &e)) {
        struct meta_cached rec;
        space_entry_record(c, e, &rec);
        meta_cached_put(b, &rec);
        if (++n % 1000 == 0)
            r = meta_commit(b, false);
    }
    if (r == 0)
        r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

/* ---- reservation ---- */

static bool over_locked(const struct cache_space *s, uint64_t more, unsigned percent)
{
    uint64_t limit = percent_of(s->limit_bytes, percent);
    return s->used_bytes + s->reserved_bytes + more > limit ||
           s->fs_free_bytes < s->free_limit_bytes + s->reserved_bytes + more;
}

static int wait_for_room_locked(struct cache *c, uint64_t bytes, enum space_use use) NO_TSA
{
    struct cache_space *s = &c->space;
    uint64_t gave_up = s->gave_up_gen, freed = s->freed_gen;
    uint64_t deadline = clock_mono_ns() + c->cfg.op_timeout_ns;
    cond_signal(&s->kick);
    while (over_locked(s, bytes, 100)) {
        if (s->stop)
            return -ECANCELED;
        if (use == SPACE_FETCH && s->gave_up_gen > gave_up + 1)
            return -ENOSPC; /* a whole look of the evictor that began after we came found nothing */
        if (!cond_wait_until(&s->changed, &s->mu, deadline) && freed == s->freed_gen)
            return -ENOSPC;
        if (freed != s->freed_gen) {
            freed = s->freed_gen;
            deadline = clock_mono_ns() + c->cfg.op_timeout_ns;
        }
    }
    return 0;
}

int space_reserve(struct cache *c, uint64_t bytes, enum space_use use)
{
    struct cache_space *s = &c->space;
    int r = 0;
    if (bytes == 0)
        return 0;
    mutex_lock(&s->mu);
    if (bytes > s->limit_bytes || bytes > s->fs_free_bytes + s->used_bytes) {
        r = -ENOSPC; /* never: nothing needs to be dropped for it */
    } else if (over_locked(s, bytes, 100)) {
        if (use == SPACE_WRITE)
            metric_inc(M_write_stalls);
        s->waiting_bytes += bytes;
        r = wait_for_room_locked(c, bytes, use);
        s->waiting_bytes -= bytes;
    }
    if (r == 0)
        s->reserved_bytes += bytes;
    if (over_locked(s, 0, HIGH_WATER_PERCENT))
        cond_signal(&s->kick);
    mutex_unlock(&s->mu);
    return r;
}

void space_release(struct cache *c, uint64_t bytes)
{
    struct cache_space *s = &c->space;
    if (bytes == 0)
        return;
    mutex_lock(&s->mu);
    assert(s->reserved_bytes >= bytes);
    s->reserved_bytes -= bytes;
    if (s->waiting_bytes)
        cond_broadcast(&s->changed);
    mutex_unlock(&s->mu);
}

/* ---- eviction ---- */

/* vid is claimed. Checks, removes, remembers. */
static int evict_claimed(struct cache *c, uint64_t vid, uint64_t *ret_bytes)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    struct cache_entry *e = g_hash_table_lookup(s->entries, &vid);
    bool held = e && entry_held(e);
    uint64_t bytes = e ? e->bytes : 0;
    mutex_unlock(&s->mu);
    if (!e)
        return -ENOENT;
    if (held)
        return -EBUSY;
    if (c->cfg.dropped)
        c->cfg.dropped(c->cfg.dropped_ctx, e->ino);
    int r = index_remove(c, vid);
    if (r < 0)
        return r;
    space_entry_remove(c, e, true);
    metric_inc(M_evicted_files);
    metric_add(M_evicted_bytes, (int64_t)bytes);
    *ret_bytes = bytes;
    return 0;
}

static int evict_vid(struct cache *c, uint64_t vid, uint64_t *ret_bytes)
{
    struct cfile *cf = table_claim(c, vid);
    if (cf) {
        cache_file_unref(cf);
        return -EBUSY;
    }
    int r = evict_claimed(c, vid, ret_bytes);
    table_release(c, vid);
    return r;
}

/* Dirty or pinned: no use waiting. */
static bool vid_is_kept(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    bool kept = e && (e->flags & (CACHED_DIRTY | CACHED_PINNED));
    mutex_unlock(&c->space.mu);
    return kept;
}

int space_evict(struct cache *c, uint64_t vid)
{
    uint64_t bytes;
    int r = evict_vid(c, vid, &bytes);
    /* The evictor looks at open files once a second: that is not use. */
    for (unsigned i = 0; r == -EBUSY && i < BUSY_TRIES && !vid_is_kept(c, vid); i++) {
        g_usleep(BUSY_WAIT_US);
        r = evict_vid(c, vid, &bytes);
    }
    return r;
}

uint64_t space_evict_one(struct cache *c)
{
    struct cache_space *s = &c->space;
    for (unsigned tries = 0; tries < 8; tries++) {
        uint64_t bytes = 0;
        mutex_lock(&s->mu);
        struct policy_item *item = policy_victim(&s->policy);
        uint64_t vid = item ? item->id : 0;
        mutex_unlock(&s->mu);
        if (!item)
            return 0;
        int r = evict_vid(c, vid, &bytes);
        if (r == 0)
            return MAX(bytes, 1);
        if (r != -EBUSY && r != -ENOENT) {
            log_warn("cache", "cannot drop a cache file vid=%lu r=%s", (unsigned long)vid, err_name(r));
            return 0;
        }
    }
    return 0;
}

/* Chunks of clean files in use: the last resort. */
static uint64_t punch_some(struct cache *c, uint64_t want)
{
    uint64_t freed = 0;
    g_autoptr(GPtrArray) files = cache_open_files(c);
    for (guint i = 0; i < files->len && freed < want; i++)
        freed += cfile_punch(files->pdata[i], want - freed);
    return freed;
}

/* Passthrough writers grow their files behind our back. */
static void account_open_files(struct cache *c)
{
    g_autoptr(GPtrArray) files = cache_open_files(c);
    for (guint i = 0; i < files->len; i++)
        cfile_account(files->pdata[i]);
}

static void reclaim(struct cache *c)
{
    struct cache_space *s = &c->space;
    for (;;) {
        mutex_lock(&s->mu);
        bool more = !s->stop && over_locked(s, s->waiting_bytes, LOW_WATER_PERCENT);
        bool hard = s->waiting_bytes && over_locked(s, s->waiting_bytes, 100);
        uint64_t want = s->used_bytes + s->reserved_bytes + s->waiting_bytes;
        want = want > s->limit_bytes ? want - s->limit_bytes : META_CHUNK_BYTES;
        mutex_unlock(&s->mu);
        if (!more || space_evict_one(c) > 0) {
            if (!more)
                return;
            continue;
        }
        if (hard && punch_some(c, want) > 0)
            continue;
        mutex_lock(&s->mu);
        s->gave_up_gen++;
        cond_broadcast(&s->changed);
        mutex_unlock(&s->mu);
        return;
    }
}

static void *evictor_main(void *arg)
{
    struct cache *c = arg;
    struct cache_space *s = &c->space;
    uint64_t next_tick = 0;
    mutex_lock(&s->mu);
    while (!s->stop) {
        bool work = over_locked(s, s->waiting_bytes, HIGH_WATER_PERCENT) || s->waiting_bytes;
        mutex_unlock(&s->mu);
        if (work || clock_mono_ns() >= next_tick) {
            look_at_disk(c);
            next_tick = clock_mono_ns() + TICK_NS;
        }
        if (work)
            reclaim(c);
        else
            account_open_files(c);
        mutex_lock(&s->mu);
        if (!s->stop)
            (void)cond_wait_until(&s->kick, &s->mu, clock_mono_ns() + (s->waiting_bytes ? TICK_NS / 20 : TICK_NS));
    }
    mutex_unlock(&s->mu);
    return NULL;
}

int space_start(struct cache *c)
{
    int r = thread_start(&c->space.evictor, "evictor", evictor_main, c);
    c->space.evictor_running = r == 0;
    return r;
}

void cache_interrupt(struct cache *c)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    s->stop = true;
    cond_broadcast(&s->kick);
    cond_broadcast(&s->changed);
    mutex_unlock(&s->mu);
}

void space_stop(struct cache *c)
{
    if (!c->space.evictor_running)
        return;
    cache_interrupt(c);
    (void)pthread_join(c->space.evictor, NULL);
    c->space.evictor_running = false;
}

void cache_usage(struct cache *c, struct cache_usage *ret)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    *ret = (struct cache_usage){.limit_bytes = s->limit_bytes,
                                .used_bytes = s->used_bytes,
                                .dirty_bytes = s->dirty_bytes,
                                .pinned_bytes = s->pinned_bytes,
                                .free_bytes = s->fs_free_bytes,
                                .files = g_hash_table_size(s->entries)};
    mutex_unlock(&s->mu);
}

bool cache_vid_is_dirty(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    bool dirty = e && (e->flags & CACHED_DIRTY);
    mutex_unlock(&c->space.mu);
    return dirty;
}
