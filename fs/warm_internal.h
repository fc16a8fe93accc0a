/*
 * Private to warm*.c: one warm-up, its queue, and what the files that serve it ask of each other.
 *
 * w->mu is held for the queue and the counts only. Bytes arrive from within the cache, which may hold locks of its own, so those
 * counters are atomic.
 */
#pragma once
#include "jobs.h"
#include "warm.h"

struct warm {
    /* immutable after warm_start */
    struct fs *fs;
    uint64_t id;
    enum warm_mode mode;
    bool background;
    char **paths; /* owned */

    struct mutex mu; /* CTL */
    struct cond changed;
    /* guarded by mu */
    unsigned threads;
    GQueue items;  /* struct item: files to do */
    GQueue hints;  /* uint64_t *: directories to list */
    GQueue events; /* struct warm_event */
    bool counted, fed, stop;
    uint64_t counted_files, counted_bytes, fed_files;
    uint64_t files_done, seen_bytes, errors;

    /* atomic */
    atomic_uint refs;
    atomic_int state; /* enum warm_state; set under mu */
    _Atomic uint64_t bytes_done;
};

struct item {
    uint64_t ino;
    char *path; /* owned */
    struct warm *w;
    _Atomic uint64_t arrived; /* bytes counted for this file so far */
};

/* ---- warm.c ---- */

bool warm_stopped(struct warm *w);
/* Takes over e. Waits while the watcher is behind; in the background nobody watches. */
void warm_push_event(struct warm *w, struct warm_event *e);
void warm_push_error(struct warm *w, const char *path, int err);
/* Queues a file; waits while the queue is full. -ECANCELED when the warm-up was stopped. */
int warm_feed(struct warm *w, uint64_t ino, const char *path) MUST_CHECK;

/* ---- warm_file.c ---- */

/* Does one file and counts it. */
void warm_do_item(struct warm *w, struct item *it);

/* ---- warm_walk.c ---- */

/* Walks all paths: to count (feed false), or to feed the queue. */
void warm_walk_paths(struct warm *w, bool feed);
/* Sees that the directory's names are known. */
int warm_refresh_dir(struct warm *w, uint64_t ino) MUST_CHECK;
