/* See cache_lost.h. */
#include "cache_lost.h"

#include "base/log.h"
#include "cache_scan.h"
#include "cache_space.h"
#include "cache_tier.h"

struct gone {
    uint64_t vid, ino;
};

static int by_ino(const void *a, const void *b)
{
    const struct gone *x = a, *y = b;
    return x->ino < y->ino ? -1 : x->ino > y->ino;
}

static GArray *dirty_of(struct cache_tier *t)
{
    GArray *list = g_array_new(FALSE, FALSE, sizeof(struct gone));
    GHashTableIter it;
    struct cache_entry *e;
    mutex_lock(&t->c->space.mu);
    g_hash_table_iter_init(&it, t->c->space.entries);
    while (g_hash_table_iter_next(&it, NULL, (void **)&e)) {
        struct gone g = {e->vid, e->ino};
        if (entry_tier(e) == t && (e->flags & CACHED_DIRTY))
            g_array_append_val(list, g);
    }
    mutex_unlock(&t->c->space.mu);
    g_array_sort(list, by_ino);
    return list;
}

static int on_file(void *ctx, const struct cache_scanned *file)
{
    return 1; /* one is enough */
}

static bool is_empty(const struct cache_tier *t)
{
    int r = cache_scan_files(t->dir, on_file, NULL);
    if (r < 0)
        log_warn("cache", "a cache disk could not be looked through path='%s' r=%s", t->dir, err_name(r));
    return r == 0;
}

int cache_emptied_each(struct cache *c, int (*fn)(void *ctx, uint64_t vid, uint64_t ino, const char *path), void *ctx)
{
    int r = 0;
    for (guint i = 0; r == 0 && i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        if (t->kind != TIER_DISK || tier_state(t) != TIER_OK)
            continue;
        g_autoptr(GArray) list = dirty_of(t);
        if (list->len == 0 || !is_empty(t))
            continue;
        for (guint k = 0; r == 0 && k < list->len; k++) {
            const struct gone *g = &g_array_index(list, struct gone, k);
            r = fn(ctx, g->vid, g->ino, t->dir);
        }
    }
    return r;
}

void cache_note_gone(struct cache *c, uint64_t vid)
{
    struct cache_entry *e = space_entry_find(c, vid);
    if (e)
        space_entry_account(c, e, 0, 0);
}
