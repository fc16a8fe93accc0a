/*
 * Private to warm*.c: one warm-up, its queue, and what the files that serve it ask of each other.
 *
 * w->mu is held for the queue and the counts only. Bytes arrive from within the cache, which may hold locks of its own, so those
 * counters are atomic.
 */
#pragma once
#include "jobs.h"
#include "warm.h"
#include "warm_list.h"

struct warm {
    /* immutable after warm_start */
    struct fs *fs;
    uint64_t id;
    enum warm_mode mode;
    bool background, keep, for_pins;
    unsigned node, n_nodes, parallel;
    uint64_t limit_bps, until_mono_ns; /* 0: none */
    int64_t until_ns;
    unsigned resumed;       /* workers that had this job before */
    unsigned hasty;         /* the last of them in a row that had it for less than a minute */
    int64_t begun_ns;       /* wall clock */
    int64_t evicted_bytes;  /* by the cache before it began */
    char **paths;           /* owned */
    struct warm_list *list; /* owned, NULL: none */
    void (*ended)(void *ctx, struct warm *w);
    void *ended_ctx;

    struct mutex mu; /* CTL */
    struct cond changed;
    /* guarded by mu */
    unsigned threads;
    GQueue items;  /* struct item: files to do */
    GQueue hints;  /* uint64_t *: directories to list */
    GQueue events; /* struct warm_event */
    bool counted, fed, stop, cancelled, timed_out;
    uint64_t counted_files, counted_bytes, fed_files;
    struct warm_progress
        sum; /* files that were done; bytes_done and bytes_fetched stand below, bytes_total: of files looked at */
    uint64_t paid_until_ns; /* the limit: what was fetched so far is paid for then */
    GPtrArray *problems;    /* char *, owned */

    /* atomic */
    atomic_uint refs;
    atomic_int state; /* enum warm_state; set under mu */
    _Atomic uint64_t bytes_done, bytes_fetched;
};

struct item {
    uint64_t ino;
    char *path; /* owned */
    struct warm *w;
    _Atomic uint64_t arrived; /* bytes counted for this file so far */
};

/* What a look at all that was asked for finds. */
struct warm_look {
    uint64_t files_absent, bytes_absent; /* not wholly here; their absent bytes */
    uint64_t bytes_unpinned;             /* to be here beside what nothing pushes out */
};

/* ---- warm.c ---- */

bool warm_stopped(struct warm *w);
/* Without threads: one that ended in a worker before, with its counts. */
void warm_restore(struct fs *fs, uint64_t id, enum warm_state state, const struct warm_progress *sum,
                  GPtrArray *problems);
/* As warm_start() of a kept one, under the id it has. */
int warm_restart(struct fs *fs, const struct warm_req *req, uint64_t id, unsigned resumed, unsigned hasty) MUST_CHECK;
/* Waits until the limit lets bytes be fetched. False: stopped. */
bool warm_may_fetch(struct warm *w);
/* That many were fetched. */
void warm_pay(struct warm *w, uint64_t bytes);
/* Takes over e. Waits while the watcher is behind; in the background nobody watches. */
void warm_push_event(struct warm *w, struct warm_event *e);
void warm_push_error(struct warm *w, const char *path, int err);
/* Takes over text. */
void warm_push_warning(struct warm *w, char *text);
/* Queues a file; waits while the queue is full. -ECANCELED when the warm-up was stopped. */
int warm_feed(struct warm *w, uint64_t ino, const char *path) MUST_CHECK;

/* ---- warm_file.c ---- */

/* Does one file and counts it. */
void warm_do_item(struct warm *w, struct item *it);
/* A file is looked at, nothing is done. */
void warm_look_at(struct warm *w, uint64_t ino, struct warm_look *look);

/* ---- warm_walk.c ---- */

/* Walks all paths: to count (feed false), or to feed the queue. */
void warm_walk_paths(struct warm *w, bool feed);
/* Walks what is known by now of all paths. */
void warm_walk_look(struct warm *w, struct warm_look *ret);

/* Sees that the directory's names are known, of one never listed before the first ones. */
int warm_list_ahead(struct warm *w, uint64_t ino) MUST_CHECK;

/* ---- warm_room.c ---- */

/* A fetch has counted: is there room for all of it? */
void warm_warn_of_room(struct warm *w);
/* A fetch has done all files: what the cache dropped of them meanwhile is counted, and said. */
void warm_count_dropped(struct warm *w);
