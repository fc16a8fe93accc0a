/*
 * LIRS with byte weights. Lists are GQueues with links inside the items, so moves allocate nothing.
 *
 * Invariants after every call: the tail of the recency list is a hot item or the list is empty; hot_bytes <= hot_max unless a single
 * item is heavier; an item is in `cold` exactly when it is resident, cold and not held; ghosts are on the recency list.
 */
#include "cache_policy.h"

#include <assert.h>
#include <string.h>

#define HOT_PERCENT      90u
#define GHOST_CAPACITIES 4u /* ghosts remember this many times the capacity */
#define PROMOTE_FACTOR   4u /* how much shorter the reuse distance must be */
#define GHOSTS_MAX       (1u << 20)

static struct policy_item *tail_item(const GQueue *q)
{
    return q->tail ? q->tail->data : NULL;
}

static bool on_recency(const struct policy_item *item)
{
    return item->recency.data != NULL;
}

static void recency_remove(struct policy *p, struct policy_item *item)
{
    g_queue_unlink(&p->recency, &item->recency);
    item->recency.data = NULL;
}

static void recency_to_head(struct policy *p, struct policy_item *item)
{
    if (on_recency(item))
        g_queue_unlink(&p->recency, &item->recency);
    item->recency.data = item;
    g_queue_push_head_link(&p->recency, &item->recency);
}

static void cold_remove(struct policy *p, struct policy_item *item)
{
    if (!item->queue.data)
        return;
    g_queue_unlink(&p->cold, &item->queue);
    item->queue.data = NULL;
}

static void cold_append(struct policy *p, struct policy_item *item)
{
    cold_remove(p, item);
    if (item->held || item->hot)
        return;
    item->queue.data = item;
    g_queue_push_tail_link(&p->cold, &item->queue);
}

static void ghost_free(struct policy *p, struct policy_item *ghost)
{
    if (on_recency(ghost))
        recency_remove(p, ghost);
    g_queue_unlink(&p->ghosts, &ghost->queue);
    p->ghost_bytes -= ghost->weight;
    g_hash_table_remove(p->ghost_by_id, &ghost->id); /* frees it */
}

/* Items below the oldest hot one have a longer reuse distance than any hot item: forget their recency. */
static void prune(struct policy *p)
{
    struct policy_item *item;
    while ((item = tail_item(&p->recency)) && !item->hot) {
        if (item->resident)
            recency_remove(p, item);
        else
            ghost_free(p, item);
    }
}

static void make_cold(struct policy *p, struct policy_item *item)
{
    assert(item->hot);
    item->hot = false;
    p->hot_bytes -= item->weight;
    cold_append(p, item);
}

static void enforce_hot(struct policy *p)
{
    prune(p);
    while (p->hot_bytes > p->hot_max && p->recency.tail) {
        struct policy_item *item = tail_item(&p->recency);
        make_cold(p, item);
        prune(p); /* takes item itself off the list */
    }
}

static void make_hot(struct policy *p, struct policy_item *item)
{
    cold_remove(p, item);
    item->hot = true;
    p->hot_bytes += item->weight;
}

static void bound_ghosts(struct policy *p)
{
    while (p->ghosts.head && (p->ghost_bytes > GHOST_CAPACITIES * p->capacity || p->ghosts.length > GHOSTS_MAX))
        ghost_free(p, p->ghosts.head->data);
}

/* Whether a cold file or ghost, last used at last_use, should be hot now that it is used again. */
static bool deserves_hot(const struct policy *p, uint64_t weight, uint64_t last_use)
{
    const struct policy_item *oldest = tail_item(&p->recency);
    if (weight > p->hot_max)
        return false;
    if (p->hot_bytes + weight <= p->hot_max || !oldest)
        return true;
    return (p->clock - last_use) * PROMOTE_FACTOR < p->clock - oldest->last_use;
}

/* The cold part must hold at least one file of the sizes that come; it shrinks slowly when smaller ones follow. */
static void leave_room(struct policy *p, uint64_t weight)
{
    uint64_t most = p->capacity / 100 * HOT_PERCENT;
    uint64_t want = weight <= p->capacity / 2 ? MIN(most, p->capacity - weight) : most;
    if (want < p->hot_max)
        p->hot_max = want;
    else
        p->hot_max += (want - p->hot_max) / 64;
    enforce_hot(p);
}

void policy_init(struct policy *p, uint64_t capacity)
{
    memset(p, 0, sizeof *p);
    p->ghost_by_id = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    policy_set_capacity(p, capacity);
}

void policy_fini(struct policy *p)
{
    while (p->ghosts.head)
        ghost_free(p, p->ghosts.head->data);
    if (p->ghost_by_id)
        g_hash_table_unref(p->ghost_by_id);
    p->ghost_by_id = NULL;
}

void policy_set_capacity(struct policy *p, uint64_t capacity)
{
    p->capacity = capacity;
    p->hot_max = capacity / 100 * HOT_PERCENT;
    enforce_hot(p);
    bound_ghosts(p);
}

void policy_insert(struct policy *p, struct policy_item *item, uint64_t weight)
{
    struct policy_item *ghost = g_hash_table_lookup(p->ghost_by_id, &item->id);
    leave_room(p, weight);
    ghost = ghost ? g_hash_table_lookup(p->ghost_by_id, &item->id) : NULL; /* making room may have forgotten it */
    p->clock++;
    item->weight = weight;
    item->resident = true;
    bool hot = ghost ? deserves_hot(p, weight, ghost->last_use) : p->hot_bytes + weight <= p->hot_max;
    item->proven = ghost && hot;
    if (ghost)
        ghost_free(p, ghost);
    item->last_use = p->clock;
    recency_to_head(p, item);
    if (hot)
        make_hot(p, item);
    else
        cold_append(p, item);
    enforce_hot(p);
}

void policy_restore(struct policy *p, struct policy_item *item, uint64_t weight, bool hot)
{
    item->weight = weight;
    item->resident = true;
    item->last_use = ++p->clock;
    recency_to_head(p, item);
    item->proven = hot;
    if (hot && p->hot_bytes + weight <= p->hot_max)
        make_hot(p, item);
    else
        cold_append(p, item);
    prune(p);
}

void policy_use(struct policy *p, struct policy_item *item)
{
    bool reused = on_recency(item);
    p->clock++;
    bool hot = reused && deserves_hot(p, item->weight, item->last_use);
    item->last_use = p->clock;
    item->proven |= reused;
    recency_to_head(p, item);
    if (!item->hot) {
        if (hot)
            make_hot(p, item);
        else
            cold_append(p, item);
    }
    enforce_hot(p);
}

void policy_set_weight(struct policy *p, struct policy_item *item, uint64_t weight)
{
    if (item->hot)
        p->hot_bytes += weight - item->weight;
    item->weight = weight;
    /* A file that grew past the hot part goes itself rather than push out those that proved their use. */
    if (item->hot && p->hot_bytes > p->hot_max && (!item->proven || weight > p->hot_max))
        make_cold(p, item);
    enforce_hot(p);
}

void policy_set_held(struct policy *p, struct policy_item *item, bool held)
{
    if (item->held == held)
        return;
    item->held = held;
    if (held)
        cold_remove(p, item);
    else
        cold_append(p, item);
}

struct policy_item *policy_victim(struct policy *p)
{
    if (p->cold.head)
        return p->cold.head->data;
    for (GList *l = p->recency.tail; l; l = l->prev) {
        struct policy_item *item = l->data;
        if (item->resident && !item->held)
            return item;
    }
    return NULL;
}

static void leave_ghost(struct policy *p, struct policy_item *item)
{
    struct policy_item *ghost = g_new0(struct policy_item, 1);
    ghost->id = item->id;
    ghost->weight = item->weight;
    ghost->last_use = item->last_use;
    ghost->recency.data = ghost;
    ghost->queue.data = ghost;
    g_queue_insert_before_link(&p->recency, &item->recency, &ghost->recency);
    g_queue_push_tail_link(&p->ghosts, &ghost->queue);
    p->ghost_bytes += ghost->weight;
    g_hash_table_insert(p->ghost_by_id, &ghost->id, ghost);
}

void policy_remove(struct policy *p, struct policy_item *item, bool remember)
{
    cold_remove(p, item);
    if (item->hot)
        p->hot_bytes -= item->weight;
    if (on_recency(item)) {
        if (remember)
            leave_ghost(p, item);
        recency_remove(p, item);
    }
    item->hot = item->resident = false;
    prune(p);
    bound_ghosts(p);
}
