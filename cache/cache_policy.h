/*
 * Which file to drop: replacement that a scan does not disturb (LIRS at file granularity, weights in bytes). Pure; the caller locks.
 *
 * Files are "hot" (used again within a short distance; they hold most of the cache) or "cold" (the rest, dropped first, oldest first). The recency
 * list holds hot files, cold ones and ghosts (dropped files that are remembered) newer than the oldest hot file; a cold
 * file or ghost that is used while it is on it has a shorter reuse distance than the oldest hot file and may take its place.
 * It has to be shorter by a factor, or files that are used equally often in changing order (shuffled epochs) would push each other out.
 * So a cyclic or shuffled pass over more than fits keeps the hot part and gets hits on it, a one-time scan only passes through the cold part,
 * and a new working set becomes hot after a few uses.
 */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct policy_item {
    uint64_t id;
    uint64_t weight;
    uint64_t last_use; /* policy.clock */
    bool resident, hot;
    bool held;     /* dirty, pinned or in use: not to be chosen */
    bool proven;   /* hot because it was used again, not because there was room */
    GList recency; /* link in policy.recency, data == item when on it */
    GList queue;   /* link in policy.cold or policy.ghosts */
};

struct policy {
    uint64_t capacity; /* bytes */
    uint64_t clock;    /* uses so far */
    uint64_t hot_max;  /* for hot files: most of the capacity, but room for a cold file must be left */
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
