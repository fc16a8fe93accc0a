/*
 * Does the store list all the time, and names that are looked into are out of date nevertheless? Then more directories are in use than it can list within each TTL, and whoever waited for each
 * listing would do little else: names that are somewhat older serve, and are listed again behind (tree_serve()).
 *
 * A level: each listing of names that were out of date a short time only raises it by what it took (of several side by side, each by its share), and it falls by half of the time that passes. So it
 * stays low while there are such listings for less than half of the time, and goes back within seconds once that is so. A listing counts for a quarter of its directory's TTL at most, and for a second:
 * two directories cannot raise it by themselves, however slowly they are listed and however often looked into, since each is listed once in a TTL.
 *
 * Pure: neither lock nor clock. All times are monotonic ns.
 */
#pragma once
#include <stdint.h>

/* Names that are older have to be listed first: people wait for changes that long anyway where no TTL is given. So nothing is late where the TTL is as long. */
#define LIST_LOAD_AGE_MAX_NS (60 * UINT64_C(1000000000))

struct list_load {
    uint64_t level_ns, as_of_ns;
    /* counted by tree_list.c */
    unsigned n_jobs, n_running; /* listings that are queued or run; of these, those that run */
    uint64_t n_ended;           /* so far */
    unsigned n_in_vain;         /* looks into known directories that waited for nothing (tree_fresh.c) */
};

/* A directory of that TTL was listed again, which took so long. ttl_ns 0: it does not count. */
void list_load_add(struct list_load *load, uint64_t now_ns, uint64_t took_ns, uint64_t ttl_ns);
/* How much older than the TTL names may be that serve while they are listed again, if they are not older than LIST_LOAD_AGE_MAX_NS; 0: the store keeps up. */
uint64_t list_load_late_ns(const struct list_load *load, uint64_t now_ns);
