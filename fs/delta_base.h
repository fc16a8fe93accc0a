/* Which objects are likely to be earlier versions of a file, by their names alone. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* How two keys that are equal but for the numbers in them are related. */
struct delta_kin {
    unsigned n_differ; /* numbers that are not the same; 0: the same key */
    unsigned first;    /* which one is the first of those */
    bool in_name;      /* one of them is in the last component */
};
/* False: they are not equal but for their numbers. */
bool delta_kin(const char *key, const char *other, struct delta_kin *ret);

struct delta_name {
    const char *key; /* borrowed */
    uint64_t stamp;  /* the later the larger */
};
/*
 * Chooses at most `max` of n objects that may share parts with what becomes `key`, the likeliest first: ret gets their indexes. The same key (written over), then
 * `step_100/model.pt` for `step_200/model.pt`, `ckpt_100.pt` for `ckpt_200.pt`: those with fewest other numbers first, with others in their directories before others in their
 * names, the newest first. Of those that differ in the same number no more than two: which of `step_100_rank_5.pt` and `step_200_rank_4.pt` came before
 * `step_200_rank_5.pt` is left to their parts.
 */
unsigned delta_choose(const char *key, const struct delta_name *names, unsigned n, unsigned *ret, unsigned max);
