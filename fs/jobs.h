/*
 * Work that goes on behind the file system's back: warm-ups and pin rules. Hangs off fs->jobs; private to warm.c, pin.c, pin_fetch.c and jobs.c.
 *
 * jobs_open() after cache, tree and publisher are up; jobs_close() after objstore_shutdown(), or it waits for what is being fetched.
 */
#pragma once
#include "fs.h"

struct warm;

struct jobs {
    struct mutex mu; /* CTL; never held together with a warm-up's own, which is of the same class */
    /* guarded by mu */
    struct cond idle;
    GPtrArray *warms;          /* struct warm, a reference each: running and the last finished ones, oldest first */
    uint64_t last_id, left_id; /* left_id: the last one of before */
    unsigned live;             /* warm-ups that have threads, and the thread that waits to fetch again */
    bool resumed;              /* warm_jobs_resume() is done */
    bool closing;
    GHashTable *pin_paths; /* paths whose pin rules have to be looked at */
    bool pin_all;          /* too many of them, or nobody knows: look at all rules */
    bool pin_queued;       /* a look is on its way */
    bool pin_looking;      /* somebody looks at rules; idle tells when not */
    GHashTable *fetching;  /* paths that warm-ups of pin_fetch() are on */
    GHashTable *to_fetch;  /* paths that wait for the end of one of these */
    unsigned n_fetches;
    GHashTable *failed;     /* path -> struct pin_retry of pin_fetch.c: what could not be fetched */
    bool waits_to_retry;    /* a thread does */
    _Atomic bool pin_named; /* `sluice pin --latest` made a rule */
    /* immutable after jobs_open */
    struct workq *pin_q; /* one thread */
};

int jobs_open(struct fs *fs) MUST_CHECK;
/* Stops everything and waits for it; what is noted from now on is ignored. NULL fs->jobs allowed. */
void jobs_close(struct fs *fs);
/* Once no thread is left that could note something. NULL fs->jobs allowed. */
void jobs_fini(struct fs *fs);
