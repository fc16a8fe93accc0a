/*
 * Accounting and the evictor.
 *
 * What counts is what files take on disk (st_blocks), plus what writes and fetches in progress were promised, for each tier. The free space of the file system
 * is looked at once a second and whenever somebody waits; in between it is corrected by our own growth. So is how many files it can still make: where these run
 * short before the bytes do, files are dropped as well, but nobody waits for it.
 *
 * Each tier's evictor thread (a disk that hangs stops only its own) keeps between the high and the low water mark. Order: closed clean files as the policy says, then chunks of
 * clean files in use. Dirty files and dirty chunks are never touched. When nothing is left it says so (gave_up_gen), which ends the
 * wait of fetches; writers go on waiting for dirty data to become clean. Pinned files stay, but for what cache_yield.c says.
 */
#include "cache_space.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/patience.h"
#include "cache_file.h"
#include "cache_tier.h"

#include <assert.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define HIGH_WATER_PERCENT 99u
#define LOW_WATER_PERCENT  97u
#define KEEP_FILES         1024u /* or 1 % of what the file system can have, if that is more; at most an eighth */
#define CORRELATED_USES    16u   /* uses this close together count as one */
#define LOW_FILES_PERCENT  110u
#define BUSY_TRIES         5u
#define BUSY_WAIT_US       4000u
#define OWN_WAIT_NS        (2 * NS_PER_S) /* for work of the cache's own: what a busy machine makes of some microseconds */
#define TICK_NS            NS_PER_S
#define SWEEP_AGAIN_NS     (60 * NS_PER_S) /* files of another tier that were in use when a disk came back */

static uint64_t percent_of(uint64_t n, unsigned percent)
{
    return n / 100 * percent + n % 100 * percent / 100;
}

/* Tiers that are there. */
static struct cache_usage sum_locked(struct cache *c)
{
    struct cache_usage u = {.files = g_hash_table_size(c->space.entries)};
    for (guint i = 0; i < c->tiers->len; i++) {
        const struct cache_tier *t = c->tiers->pdata[i];
        u.used_bytes += t->used_bytes;
        u.dirty_bytes += t->dirty_bytes;
        u.pinned_bytes += t->pinned_bytes;
        u.kept_bytes += t->kept_bytes;
        u.limit_bytes += t->limit_bytes;
        u.free_bytes += t->kind == TIER_DISK ? t->fs_free_bytes : 0;
    }
    return u;
}

uint64_t cache_dirty_bytes_of(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    const struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    uint64_t n = e && (e->flags & CACHED_DIRTY) ? e->bytes : 0;
    mutex_unlock(&c->space.mu);
    return n;
}

static void publish_metrics_locked(struct cache *c)
{
    struct cache_usage u = sum_locked(c);
    metric_set(M_cache_bytes, (int64_t)u.used_bytes);
    metric_set(M_pinned_bytes, (int64_t)u.pinned_bytes);
    metric_set(M_dirty_bytes, (int64_t)u.dirty_bytes);
}

static bool entry_held(const struct cache_entry *e)
{
    return e->open || (e->flags & (CACHED_DIRTY | CACHED_PINNED));
}

/* Takes e out of (sign -1) or into (sign 1) the sums. */
static void charge_locked(const struct cache_entry *e, bool add)
{
    struct cache_tier *t = e->tier;
    uint64_t n = add ? e->bytes : 0 - e->bytes;
    t->used_bytes += n;
    if (e->flags & CACHED_DIRTY)
        t->dirty_bytes += n;
    if (e->flags & CACHED_PINNED)
        t->pinned_bytes += n;
    if (e->flags & (CACHED_DIRTY | CACHED_PINNED))
        t->kept_bytes += n;
}

static void room_made_locked(struct cache_tier *t)
{
    t->freed_gen++;
    cond_broadcast(&t->c->space.changed);
    cond_signal(&t->kick);
}

static void take_free(struct cache_tier *t, const struct statvfs *v)
{
    t->fs_free_bytes = (uint64_t)v->f_bavail * v->f_frsize;
    t->fs_free_files = v->f_files ? v->f_favail : UINT64_MAX;
    t->keep_files = MIN(MAX(v->f_files / 100, KEEP_FILES), v->f_files / 8);
}

/* percent: of those that are to be left. */
static bool short_of_files_locked(const struct cache_tier *t, unsigned percent)
{
    return t->fs_free_files < percent_of(t->keep_files, percent);
}

static void file_came_locked(struct cache_tier *t)
{
    if (t->fs_free_files != UINT64_MAX && t->fs_free_files > 0)
        t->fs_free_files--;
    if (short_of_files_locked(t, 100))
        cond_signal(&t->kick);
}

static void file_went_locked(struct cache_tier *t)
{
    if (t->fs_free_files != UINT64_MAX)
        t->fs_free_files++;
}

void space_look_at_disk(struct cache_tier *t)
{
    struct statvfs v;
    if (fstatvfs(t->dir_fd, &v) < 0)
        return; /* the last value stays; a broken disk shows in the writes */
    mutex_lock(&t->c->space.mu);
    take_free(t, &v);
    mutex_unlock(&t->c->space.mu);
}

void space_init(struct cache *c)
{
    struct cache_space *s = &c->space;
    mutex_init(&s->mu, LOCK_CACHE_SPACE);
    cond_init(&s->changed);
    s->entries = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    s->hold = c->cfg.hold;
}

void space_fini(struct cache *c)
{
    struct cache_space *s = &c->space;
    g_hash_table_unref(s->entries);
    cond_fini(&s->changed);
    mutex_fini(&s->mu);
}

int space_tier_init(struct cache_tier *t)
{
    const struct cache_config *cfg = &t->c->cfg;
    struct statvfs v = {0};
    cond_init(&t->kick);
    policy_init(&t->policy, 0);
    int r = t->dir_fd >= 0 ? RET_ERRNO(fstatvfs(t->dir_fd, &v)) : 0;
    if (r < 0)
        return r;
    uint64_t total = (uint64_t)v.f_blocks * v.f_frsize;
    if (t->kind == TIER_DISK && t->dir_fd >= 0) {
        t->limit_bytes = cfg->size_bytes ? cfg->size_bytes : percent_of(total, cfg->size_percent);
        t->free_limit_bytes = cfg->free_bytes ? cfg->free_bytes : percent_of(total, cfg->free_percent);
        t->whole_bytes = t->limit_bytes / 2;
    } else {
        t->limit_bytes = t->kind == TIER_MEMORY ? cfg->memory_bytes : 0;
        t->whole_bytes = t->kind == TIER_MEMORY ? t->limit_bytes : UINT64_MAX;
    }
    take_free(t, &v);
    policy_set_capacity(&t->policy, t->limit_bytes);
    return 0;
}

void space_tier_fini(struct cache_tier *t)
{
    policy_fini(&t->policy);
    cond_fini(&t->kick);
}

/* ---- entries ---- */

struct cache_entry *space_entry_add(struct cache_tier *t, uint64_t vid, uint64_t ino, uint32_t flags, uint64_t weight)
{
    struct cache_space *s = &t->c->space;
    struct cache_entry *e = g_new0(struct cache_entry, 1);
    e->vid = e->item.id = vid;
    e->ino = ino;
    e->flags = flags;
    e->tier = t;
    mutex_lock(&s->mu);
    assert(!g_hash_table_contains(s->entries, &vid));
    g_hash_table_insert(s->entries, &e->vid, e);
    e->last_use = ++s->use_clock;
    policy_insert(&t->policy, &e->item, weight);
    policy_set_held(&t->policy, &e->item, entry_held(e));
    file_came_locked(t);
    mutex_unlock(&s->mu);
    return e;
}

void space_entry_move(struct cache *c, struct cache_entry *e, struct cache_tier *to, uint64_t bytes)
{
    mutex_lock(&c->space.mu);
    struct cache_tier *from = e->tier;
    uint64_t weight = e->item.weight;
    charge_locked(e, false);
    from->fs_free_bytes += e->bytes;
    policy_remove(&from->policy, &e->item, false);
    __atomic_store_n(&e->tier, to, __ATOMIC_RELEASE);
    e->bytes = bytes;
    e->stale = true;
    memset(&e->item, 0, sizeof e->item);
    e->item.id = e->vid;
    charge_locked(e, true);
    policy_insert(&to->policy, &e->item, weight);
    policy_set_held(&to->policy, &e->item, entry_held(e));
    publish_metrics_locked(c);
    file_came_locked(to);
    file_went_locked(from);
    room_made_locked(from);
    mutex_unlock(&c->space.mu);
}

struct cache_entry *space_entry_find(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    mutex_unlock(&c->space.mu);
    return e;
}

void space_entry_restore(struct cache_tier *t, const struct meta_cached *rec)
{
    struct cache_space *s = &t->c->space;
    struct cache_entry *e = g_new0(struct cache_entry, 1);
    e->vid = e->item.id = rec->vid;
    e->ino = rec->ino;
    e->flags = rec->flags;
    e->tier = t;
    e->bytes = rec->bytes;
    e->last_use = rec->last_use;
    e->use_gap = rec->use_gap;
    mutex_lock(&s->mu);
    g_hash_table_replace(s->entries, &e->vid, e);
    s->use_clock = MAX(s->use_clock, rec->last_use);
    charge_locked(e, true);
    policy_restore(&t->policy, &e->item, rec->bytes, rec->flags & CACHED_HOT);
    policy_set_held(&t->policy, &e->item, entry_held(e));
    publish_metrics_locked(t->c);
    mutex_unlock(&s->mu);
}

void space_entry_remove(struct cache *c, struct cache_entry *e, bool remember)
{
    mutex_lock(&c->space.mu);
    struct cache_tier *t = e->tier;
    charge_locked(e, false);
    t->fs_free_bytes += e->bytes;
    policy_remove(&t->policy, &e->item, remember);
    g_hash_table_remove(c->space.entries, &e->vid);
    publish_metrics_locked(c);
    file_went_locked(t);
    room_made_locked(t);
    mutex_unlock(&c->space.mu);
}

static void set_open_locked(struct cache_entry *e, bool open)
{
    e->open = open;
    policy_set_held(&e->tier->policy, &e->item, entry_held(e));
    if (!open && e->tier->waiting_bytes)
        cond_signal(&e->tier->kick);
}

void space_entry_set_open(struct cache *c, struct cache_entry *e, bool open)
{
    mutex_lock(&c->space.mu);
    set_open_locked(e, open);
    mutex_unlock(&c->space.mu);
}

static bool may_rest_locked(const struct cache_entry *e)
{
    bool there = e->tier->kind == TIER_MEMORY || (e->tier->kind == TIER_DISK && !(e->flags & CACHED_MEMORY));
    return there && tier_state(e->tier) == TIER_OK && !e->stale && (e->flags & CACHED_COMPLETE) &&
           !(e->flags & (CACHED_DIRTY | CACHED_FAILED));
}

bool space_entry_rest(struct cache *c, struct cache_entry *e)
{
    mutex_lock(&c->space.mu);
    bool rests = may_rest_locked(e);
    if (rests)
        set_open_locked(e, false);
    mutex_unlock(&c->space.mu);
    return rests;
}

uint32_t space_entry_flags(struct cache *c, struct cache_entry *e, uint32_t set, uint32_t clear)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    uint32_t old = e->flags, now = (old | set) & ~clear;
    if (now != old) {
        charge_locked(e, false);
        e->flags = now;
        charge_locked(e, true);
        e->stale = true;
        policy_set_held(&e->tier->policy, &e->item, entry_held(e));
        publish_metrics_locked(c);
        if ((old & ~now) & (CACHED_DIRTY | CACHED_PINNED))
            room_made_locked(e->tier); /* can be dropped now */
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
                                .tier = e->tier->number,
                                .flags = (e->flags & ~CACHED_HOT) | (e->item.hot ? CACHED_HOT : 0)};
    mutex_unlock(&c->space.mu);
}

void space_entry_account(struct cache *c, struct cache_entry *e, uint64_t bytes, uint64_t size)
{
    mutex_lock(&c->space.mu);
    struct cache_tier *t = e->tier;
    if (e->bytes != bytes) {
        bool shrunk = bytes < e->bytes;
        uint64_t before = t->fs_free_bytes + e->bytes;
        charge_locked(e, false);
        t->fs_free_bytes = before - MIN(bytes, before);
        e->bytes = bytes;
        e->stale = true;
        charge_locked(e, true);
        publish_metrics_locked(c);
        if (shrunk)
            room_made_locked(t);
    }
    /* What it weighs is what it will take when whole, unless it is never kept whole. */
    policy_set_weight(&t->policy, &e->item, size > t->whole_bytes ? bytes : MAX(size, bytes));
    mutex_unlock(&c->space.mu);
}

static void use_locked(struct cache_space *s, struct cache_entry *e, bool opened)
{
    uint64_t near = MIN(CORRELATED_USES, g_hash_table_size(s->entries) / 8);
    uint64_t gap = s->use_clock - e->last_use;
    if (gap > near || (opened && gap > 0)) {
        e->use_gap = gap;
        e->last_use = ++s->use_clock;
        if (gap > near)
            policy_use(&e->tier->policy, &e->item);
    }
}

void space_entry_use(struct cache *c, struct cache_entry *e, bool opened)
{
    mutex_lock(&c->space.mu);
    use_locked(&c->space, e, opened);
    mutex_unlock(&c->space.mu);
}

bool space_entry_wake(struct cache *c, struct cache_entry *e)
{
    mutex_lock(&c->space.mu);
    bool wakes = may_rest_locked(e) && e->tier->kind == TIER_DISK && (e->flags & CACHED_GIVEN);
    if (wakes) {
        set_open_locked(e, true);
        use_locked(&c->space, e, true);
    }
    mutex_unlock(&c->space.mu);
    return wakes;
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

bool space_over_locked(const struct cache_tier *t, uint64_t more, unsigned percent)
{
    uint64_t limit = percent_of(t->limit_bytes, percent);
    return t->used_bytes + t->reserved_bytes + more > limit ||
           t->fs_free_bytes < t->free_limit_bytes + t->reserved_bytes + more;
}

uint64_t space_tier_room_locked(const struct cache_tier *t, unsigned percent)
{
    uint64_t limit = percent_of(t->limit_bytes, percent), used = t->used_bytes + t->reserved_bytes;
    uint64_t kept = t->free_limit_bytes + t->reserved_bytes;
    return MIN(limit - MIN(used, limit), t->fs_free_bytes - MIN(kept, t->fs_free_bytes));
}

static int wait_for_room_locked(struct cache_tier *t, uint64_t bytes, enum space_use use) NO_TSA
{
    struct cache_space *s = &t->c->space;
    uint64_t gave_up = t->gave_up_gen, freed = t->freed_gen;
    uint64_t deadline = clock_mono_ns() + t->c->cfg.op_timeout_ns;
    if (gettid() == t->evictor_tid)
        return -ENOSPC; /* nobody else makes room: it would wait for itself */
    cond_signal(&t->kick);
    while (space_over_locked(t, bytes, 100)) {
        if (s->stop)
            return -ECANCELED;
        if (use == SPACE_FETCH && (t->gave_up_gen > gave_up + 1 || tier_state(t) != TIER_OK || s->hold))
            return -ENOSPC; /* a whole look of the evictor that began after we came found nothing */
        int r = patience_wait(&s->changed, &s->mu, deadline);
        if (r == -EINTR) /* whatever was freed meanwhile */
            return r;
        if (r < 0 && freed == t->freed_gen)
            return -ENOSPC;
        if (freed != t->freed_gen) {
            freed = t->freed_gen;
            deadline = clock_mono_ns() + t->c->cfg.op_timeout_ns;
            patience_renew();
        }
    }
    return 0;
}

int space_reserve(struct cache_tier *t, uint64_t bytes, enum space_use use)
{
    struct cache_space *s = &t->c->space;
    int r = 0;
    if (bytes == 0)
        return 0;
    mutex_lock(&s->mu);
    if (bytes > t->limit_bytes || bytes > t->fs_free_bytes + t->used_bytes) {
        r = -ENOSPC; /* never: nothing needs to be dropped for it */
    } else if (space_over_locked(t, bytes, 100)) {
        if (use == SPACE_WRITE)
            metric_inc(M_write_stalls);
        t->waiting_bytes += bytes;
        t->waiting_write_bytes += use == SPACE_WRITE ? bytes : 0;
        if (use == SPACE_WRITE && t->waiting_writers++ == 0)
            t->stuck_since_ns = 0;
        r = wait_for_room_locked(t, bytes, use);
        t->waiting_bytes -= bytes;
        t->waiting_write_bytes -= use == SPACE_WRITE ? bytes : 0;
        t->waiting_writers -= use == SPACE_WRITE;
    }
    if (r == 0)
        t->reserved_bytes += bytes;
    if (space_over_locked(t, 0, HIGH_WATER_PERCENT))
        cond_signal(&t->kick);
    mutex_unlock(&s->mu);
    return r;
}

void space_release(struct cache_tier *t, uint64_t bytes)
{
    struct cache_space *s = &t->c->space;
    if (bytes == 0)
        return;
    mutex_lock(&s->mu);
    assert(t->reserved_bytes >= bytes);
    t->reserved_bytes -= bytes;
    if (t->waiting_bytes)
        cond_broadcast(&s->changed);
    mutex_unlock(&s->mu);
}

/* ---- eviction ---- */

/* vid is claimed. Checks, removes, remembers. */
static int evict_claimed(struct cache *c, uint64_t vid, bool pinned, uint64_t *ret_bytes)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    struct cache_entry *e = g_hash_table_lookup(s->entries, &vid);
    bool held = e && (pinned ? !space_yields(e) : entry_held(e)), sync = e && cached_unchecked(e->flags);
    uint64_t bytes = e ? e->bytes : 0;
    struct cache_tier *t = e ? e->tier : NULL;
    mutex_unlock(&s->mu);
    if (!e)
        return -ENOENT;
    if (held)
        return -EBUSY;
    if (c->cfg.may_drop && !c->cfg.may_drop(c->cfg.dropped_ctx, e->ino, vid)) {
        (void)space_entry_flags(c, e, CACHED_DIRTY, 0);
        return -EBUSY;
    }
    if (c->cfg.dropped)
        c->cfg.dropped(c->cfg.dropped_ctx, e->ino);
    int r = index_remove(t, vid, sync);
    if (r < 0)
        return r;
    space_entry_remove(c, e, true);
    metric_inc(M_evicted_files);
    metric_add(M_evicted_bytes, (int64_t)bytes);
    *ret_bytes = bytes;
    return 0;
}

int space_evict_vid(struct cache *c, uint64_t vid, bool pinned, uint64_t *ret_bytes)
{
    if (!table_claim_unused(c, vid))
        return -EBUSY;
    int r = evict_claimed(c, vid, pinned, ret_bytes);
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

/* The evictor looks at open files once a second, a download that was waited for ends a little later: that is not use. */
static int evict_unused(struct cache *c, uint64_t vid, uint64_t deadline_ns)
{
    uint64_t bytes;
    if (!vid_is_kept(c, vid))
        table_wait_own(c, vid, deadline_ns);
    return space_evict_vid(c, vid, false, &bytes);
}

int space_evict(struct cache *c, uint64_t vid)
{
    uint64_t deadline_ns = clock_mono_ns() + OWN_WAIT_NS;
    int r = evict_unused(c, vid, deadline_ns);
    for (unsigned i = 0; r == -EBUSY && i < BUSY_TRIES && !vid_is_kept(c, vid); i++) {
        g_usleep(BUSY_WAIT_US);
        r = evict_unused(c, vid, deadline_ns);
    }
    return r;
}

uint64_t space_evict_one(struct cache_tier *t)
{
    struct cache_space *s = &t->c->space;
    for (unsigned tries = 0; tries < 8; tries++) {
        uint64_t bytes = 0;
        mutex_lock(&s->mu);
        struct policy_item *item = policy_victim(&t->policy);
        uint64_t vid = item ? item->id : 0;
        mutex_unlock(&s->mu);
        if (!item)
            return 0;
        int r = space_evict_vid(t->c, vid, false, &bytes);
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
static uint64_t punch_some(struct cache_tier *t, uint64_t want)
{
    uint64_t freed = 0;
    g_autoptr(GPtrArray) files = cache_open_files(t);
    for (guint i = 0; i < files->len && freed < want; i++)
        freed += cfile_tier(files->pdata[i]) == t ? cfile_punch(files->pdata[i], want - freed) : 0; /* still */
    return freed;
}

/* Passthrough writers grow their files behind our back. */
static void account_open_files(struct cache_tier *t)
{
    g_autoptr(GPtrArray) files = cache_open_files(t);
    for (guint i = 0; i < files->len; i++)
        cfile_account(files->pdata[i]);
}

/* What those that wait lack, below the limit or free on the disk, whichever is more. */
static uint64_t lacking_locked(const struct cache_tier *t)
{
    uint64_t held = t->used_bytes + t->reserved_bytes + t->waiting_bytes;
    uint64_t kept = t->free_limit_bytes + t->reserved_bytes + t->waiting_bytes;
    uint64_t over = held - MIN(held, t->limit_bytes), missing = kept - MIN(kept, t->fs_free_bytes);
    return MAX(MAX(over, missing), META_CHUNK_BYTES);
}

static void reclaim(struct cache_tier *t)
{
    struct cache_space *s = &t->c->space;
    for (;;) {
        mutex_lock(&s->mu);
        bool more = !s->stop && (space_over_locked(t, t->waiting_bytes, LOW_WATER_PERCENT) ||
                                 short_of_files_locked(t, LOW_FILES_PERCENT));
        bool hard = t->waiting_bytes && space_over_locked(t, t->waiting_bytes, 100);
        uint64_t want = lacking_locked(t);
        mutex_unlock(&s->mu);
        if (!more || space_evict_one(t) > 0) {
            if (!more)
                return;
            continue;
        }
        if (hard && (punch_some(t, want) > 0 || space_evict_pinned(t, want)))
            continue;
        mutex_lock(&s->mu);
        t->gave_up_gen++;
        cond_broadcast(&s->changed);
        mutex_unlock(&s->mu);
        return;
    }
}

void space_tend(struct cache_tier *t, bool waited_for)
{
    struct cache_space *s = &t->c->space;
    uint64_t now = clock_mono_ns();
    mutex_lock(&s->mu);
    bool ok = tier_state(t) == TIER_OK, tick = now >= t->next_tick_ns;
    bool over =
        !waited_for && (space_over_locked(t, t->waiting_bytes, HIGH_WATER_PERCENT) || short_of_files_locked(t, 100));
    bool work = ok && !s->hold && (over || t->waiting_bytes);
    mutex_unlock(&s->mu);
    if (ok && (work || tick)) {
        space_look_at_disk(t);
        t->next_tick_ns = now + TICK_NS;
    }
    if (work)
        reclaim(t);
    else if (ok && tick)
        account_open_files(t);
}

static void *evictor_main(void *arg)
{
    struct cache_tier *t = arg;
    struct cache_space *s = &t->c->space;
    uint64_t next_sweep = 0;
    mutex_lock(&s->mu);
    t->evictor_tid = gettid();
    while (!s->stop) {
        bool sweep = t->sweep && tier_state(t) == TIER_OK && clock_mono_ns() >= next_sweep;
        t->sweep &= !sweep;
        mutex_unlock(&s->mu);
        if (sweep && !tier_sweep(t)) {
            next_sweep = clock_mono_ns() + SWEEP_AGAIN_NS;
            mutex_lock(&s->mu);
            t->sweep = true;
            mutex_unlock(&s->mu);
        }
        space_tend(t, false);
        mutex_lock(&s->mu);
        if (!s->stop)
            (void)cond_wait_until(&t->kick, &s->mu, clock_mono_ns() + (t->waiting_bytes ? SPACE_LOOK_NS : TICK_NS));
    }
    mutex_unlock(&s->mu);
    return NULL;
}

int space_start(struct cache *c)
{
    int r = 0;
    metric_set(M_cache_limit_bytes, 0);
    for (guint i = 0; r == 0 && i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        if (t->dir_fd < 0)
            continue;
        metric_add(M_cache_limit_bytes, (int64_t)t->limit_bytes);
        r = thread_start(&t->evictor, "evictor", evictor_main, t);
        t->evictor_running = r == 0;
    }
    return r;
}

void cache_release_hold(struct cache *c)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    s->hold = false;
    for (guint i = 0; i < c->tiers->len; i++)
        cond_broadcast(&((struct cache_tier *)c->tiers->pdata[i])->kick);
    mutex_unlock(&s->mu);
}

void cache_interrupt(struct cache *c)
{
    struct cache_space *s = &c->space;
    mutex_lock(&s->mu);
    s->stop = true;
    for (guint i = 0; i < c->tiers->len; i++)
        cond_broadcast(&((struct cache_tier *)c->tiers->pdata[i])->kick);
    cond_broadcast(&s->changed);
    mutex_unlock(&s->mu);
}

void space_stop(struct cache *c)
{
    cache_interrupt(c);
    for (guint i = 0; i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        if (t->evictor_running)
            (void)pthread_join(t->evictor, NULL);
        t->evictor_running = false;
    }
}

void cache_usage(struct cache *c, struct cache_usage *ret)
{
    mutex_lock(&c->space.mu);
    *ret = sum_locked(c);
    mutex_unlock(&c->space.mu);
}

bool cache_vid_is_dirty(struct cache *c, uint64_t vid)
{
    mutex_lock(&c->space.mu);
    struct cache_entry *e = g_hash_table_lookup(c->space.entries, &vid);
    bool dirty = e && (e->flags & CACHED_DIRTY);
    mutex_unlock(&c->space.mu);
    return dirty;
}
