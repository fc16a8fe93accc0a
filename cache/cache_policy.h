/*
 * Which file to drop: replacement that a scan does not disturb (LIRS at file granularity, weights in bytes). Pure; the caller locks.
 *
 * Files are "hot" (used again within a short distance; they hold most of the cache) or "cold" (the rest, dropped first, oldest first). The recency
 * list holds hot files, cold ones and ghosts (dropped files that are remembered) newer than the oldest hot file; a cold
 * file or ghost that is used while it is on it has a shorter reuse distance than the oldest hot file and takes its place.
 * So a cyclic pass over more than fits keeps the hot part and gets hits on it, a one-time scan only passes through the cold part,
 * and a new working set becomes hot with its second use.
 */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct policy_item {
    uint64_t id;
    uint64_t weight;
    bool resident, hot, held; /* held: dirty, pinned or in use: not to be chosen */
    GList recency;            /* link in policy.recency, data == item when on it */
    GList queue;              /* link in policy.cold or policy.ghosts */
};

struct policy {
    uint64_t capacity; /* bytes */
    uint64_t hot_max;  /* share of the capacity for hot files */
    uint64_t hot_bytes;
    uint64_t ghost_bytes;
    GQueue recency;          /* head: newest */
    GQueue cold;             /* resident, cold, not held; head: first to go */
    GQueue ghosts;           /* head: oldest */
    GHashTable *ghost_by_id; /* &item->id -> struct policy_item, owned by the policy */
};

void policy_init(struct policy *p, uint64_t capacity);
void policy_fini(struct policy *p);
void policy_set_capacity(struct policy *p, uint64_t capacity);
/* A file has come into the cache (its ghost, if there is one, counts as use). item is the caller's, zeroed but for id; it must stay in place until policy_remove. */
void policy_insert(struct policy *p, struct policy_item *item, uint64_t weight);
/* As known from an earlier run; call in ascending order of last use. */
void policy_restore(struct policy *p, struct policy_item *item, uint64_t weight, bool hot);
void policy_use(struct policy *p, struct policy_item *item);
void policy_set_weight(struct policy *p, struct policy_item *item, uint64_t weight);
void policy_set_held(struct policy *p, struct policy_item *item, bool held);
/* The next to drop, NULL when all are held. Does not remove it. */
struct policy_item *policy_victim(struct policy *p);
/* item leaves the cache; remember: keep a ghost of it. */
void policy_remove(struct policy *p, struct policy_item *item, bool remember);
