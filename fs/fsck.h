/* `sluice fsck`: a cache folder that no daemon uses, its database against its files and against the bucket. What is checked is told in fsck.c. */
#pragma once
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct fsck_options {
    const char *cache_dir;
    bool repair;
    bool offline; /* the bucket is not asked */
    bool json;    /* lines are JSON objects: "event" is "finding" or "remark" */
    FILE *out;    /* a line for each finding and remark */
    /* May be NULL. total 0: not known. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

struct fsck_result {
    unsigned findings; /* things that are wrong */
    unsigned left;     /* ... and were not repaired */
    bool bucket_asked; /* and those of all links. false: offline, or one did not answer (which is said) */
};

/* -errno with a message (owned by the caller): the check could not be made or was broken off. */
int fs_fsck(const struct fsck_options *o, struct fsck_result *ret, char **ret_msg) MUST_CHECK;
