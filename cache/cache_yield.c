/*
 * Pinned files that give way to a writer for whom no room came for PINS_HOLD_NS: pins that leave no room for what is to be pinned next, the checkpoint being saved,
 * would end the program that saves it. Never dirty ones, and never for a fetch. The evictor's thread.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "cache_space.h"
#include "cache_tier.h"

#define PINS_HOLD_NS  (5 * NS_PER_S)  /* so long, or half of a writer's time, uploads may make room before pins do */
#define PINS_YIELD_NS (60 * NS_PER_S) /* after one gave way the next ones do so at once */

bool space_yields(const struct cache_entry *e)
{
    return !e->open && (e->flags & CACHED_PINNED) && !(e->flags & CACHED_DIRTY);
}

struct victim {
    uint64_t last_use, vid;
};

static int by_use(const void *a, const void *b)
{
    const struct victim *x = a, *y = b;
    return x->last_use < y->last_use ? -1 : x->last_use > y->last_use;
}

/* Pinned files that may go, those used least lately first. One look at all entries, so not one for each of many small files. */
static GArray *pinned_victims_locked(struct cache_tier *t)
{
    GArray *list = g_array_new(FALSE, FALSE, sizeof(struct victim));
    GHashTableIter it;
    struct cache_entry *e;
    g_hash_table_iter_init(&it, t->c->space.entries);
    while (g_hash_table_iter_next(&it, NULL, (void **)&e)) {
        struct victim v = {e->last_use, e->vid};
        if (e->tier == t && space_yields(e))
            g_array_append_val(list, v);
    }
    g_array_sort(list, by_use);
    return list;
}

static uint64_t hold_ns(const struct cache_tier *t)
{
    return MIN(PINS_HOLD_NS, t->c->cfg.op_timeout_ns / 2);
}

/* Have writers waited long enough for room that nothing else makes? */
static bool pins_yield_locked(struct cache_tier *t)
{
    uint64_t now = clock_mono_ns(), hold = hold_ns(t);
    if (t->stuck_since_ns == 0 || t->stuck_gen != t->freed_gen)
        t->stuck_since_ns = now;
    t->stuck_gen = t->freed_gen;
    return t->waiting_writers > 0 && space_over_locked(t, t->waiting_write_bytes, 100) &&
           (now < t->pins_yield_until_ns || now - t->stuck_since_ns >= hold);
}

bool space_evict_pinned(struct cache_tier *t, uint64_t want)
{
    struct cache_space *s = &t->c->space;
    uint64_t freed = 0, bytes = 0;
    unsigned n = 0;
    mutex_lock(&s->mu);
    g_autoptr(GArray) list = pins_yield_locked(t) ? pinned_victims_locked(t) : NULL;
    want = MIN(want, t->waiting_write_bytes); /* not what fetches wait for beside them */
    mutex_unlock(&s->mu);
    for (unsigned i = 0; list && i < list->len && freed < want; i++) {
        if (space_evict_vid(t->c, g_array_index(list, struct victim, i).vid, true, &bytes) < 0)
            continue;
        freed += MAX(bytes, 1);
        n++;
    }
    if (n == 0)
        return false;
    mutex_lock(&s->mu);
    t->pins_yield_until_ns = clock_mono_ns() + PINS_YIELD_NS;
    mutex_unlock(&s->mu);
    metric_add(M_evicted_pins, n);
    log_warn("cache",
             "pinned files were dropped: a write found no room, as all that is here is pinned or unpublished. Give the "
             "cache more room (--cache-size), or pin less files=%u bytes=%lu",
             n, (unsigned long)freed);
    return true;
}

bool cache_pins_yield(struct cache *c)
{
    bool yes = false;
    mutex_lock(&c->space.mu);
    for (unsigned i = 0; i < c->tiers->len; i++)
        yes |= clock_mono_ns() < ((const struct cache_tier *)c->tiers->pdata[i])->pins_yield_until_ns;
    mutex_unlock(&c->space.mu);
    return yes;
}

bool cache_write_is_stuck(struct cache *c)
{
    bool stuck = false;
    mutex_lock(&c->space.mu);
    uint64_t now = clock_mono_ns();
    for (unsigned i = 0; i < c->tiers->len; i++) {
        const struct cache_tier *t = c->tiers->pdata[i];
        bool waits = t->waiting_writers > 0 && space_over_locked(t, t->waiting_write_bytes, 100);
        stuck |= waits && t->stuck_since_ns && t->stuck_gen == t->freed_gen && now - t->stuck_since_ns >= hold_ns(t);
    }
    mutex_unlock(&c->space.mu);
    return stuck;
}
