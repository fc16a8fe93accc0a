/*
 * Warm-up: fetches everything below some paths into the cache, many files at a time. Also checks what is here, and evicts.
 *
 * A warm-up runs in threads of its own; whoever started it watches it, or forgets it (background) and asks later by its id.
 * What is present is not fetched, so one that was stopped goes on where it was when it is asked for again.
 * Memory is bounded whatever the size of the tree or the list: names are read page by page, also while a first listing comes, at most WARM_QUEUE files wait.
 *
 * A kept one is in the database (warm_job.h): the next worker, or the next mount, goes on with it under the same id.
 */
#pragma once
#include "fs.h"

#define WARM_QUEUE     4096
#define WARM_NODES_MAX 65536

enum warm_mode { WARM_FETCH, WARM_CHECK, WARM_EVICT };
enum warm_state { WARM_RUNNING, WARM_DONE, WARM_FAILED, WARM_STOPPED, WARM_TIMEOUT };

struct warm;
struct warm_list;

struct warm_req {
    const char *const *paths; /* relative to the mount, NULL-terminated or NULL; copied; symlinks are followed */
    struct warm_list *list;   /* further ones, after those; taken over, also on failure; NULL: none */
    enum warm_mode mode;
    unsigned parallel; /* files at a time; 0: 8 */
    unsigned node,
        n_nodes;        /* only the share number `node` of n_nodes: by warm_share() of a file's path; n_nodes 0: all */
    uint64_t limit_bps; /* bytes fetched a second; 0: no limit */
    int64_t until_ns;   /* wall clock: begins no further file; 0: none */
    bool background;    /* nobody takes events: they are only counted, the first WARM_PROBLEMS kept */
    bool keep;          /* in the database; needs a list, which is kept too, and no paths */
    bool for_pins;      /* below a path that is pinned only what is pinned too; see pin_fetch() */
    /* once it has ended, if it was started; on one of its threads, no lock held; NULL: none. w is borrowed */
    void (*ended)(void *ctx, struct warm *w);
    void *ended_ctx;
};
#define WARM_PROBLEMS 20

/*
 * Totals grow while the tree is walked (counting); once done or failed they are exact, and of a fetch these hold:
 *   files_total = files_cached + files_fetched + files_failed, files_done = files_cached + files_fetched
 *   bytes_total = bytes_cached + bytes_fetched + bytes_failed, bytes_done = bytes_cached + bytes_fetched
 * cached: was here before. Bytes of a file that failed count as failed where they are absent. check: files_done are those looked at, files_cached those
 * wholly here, bytes_done = bytes_cached. evict: bytes_done are the bytes freed, files_done the files dropped.
 * errors: of files and of names that were asked for; missing: those of them that are not there.
 * dropped: of a fetch that is done, files that were here and made room for others before its end, and their absent bytes. It counts as failed.
 */
struct warm_progress {
    uint64_t files_done, files_total, bytes_done, bytes_total, errors;
    uint64_t files_cached, files_fetched, files_failed;
    uint64_t bytes_cached, bytes_fetched, bytes_failed;
    uint64_t missing;
    uint64_t files_dropped, bytes_dropped;
    bool counting;
};

/* One line for the watcher: a file that failed (err != 0), with WARM_CHECK one that is not wholly here, or a warning. */
struct warm_event {
    char *path; /* owned */
    int err;
    uint64_t cached_bytes, size;
    char *warning; /* owned; NULL: none */
};

/* Starts; *ret has a reference for the caller. -ECANCELED when the daemon stops; kept ones: errors of the database. */
int warm_start(struct fs *fs, const struct warm_req *req, struct warm **ret) MUST_CHECK;
struct warm *warm_ref(struct warm *w);
void warm_unref(struct warm *w); /* NULL allowed */
/* No further file is begun; those being fetched are finished behind. A kept one goes on with the next worker. */
void warm_stop(struct warm *w);
/* The same for good: a kept one is stopped in the database too. */
void warm_cancel(struct warm *w);
uint64_t warm_id(const struct warm *w);
/* Ordered as a job of its own; others have somebody who waits, or are pins'. */
bool warm_is_kept(const struct warm *w);
/* Started again by so many workers after the first. */
unsigned warm_resumed(const struct warm *w);
enum warm_state warm_progress_get(struct warm *w, struct warm_progress *ret);
/* "running", "done", "failed" (some files), "stopped", "timeout". */
const char *warm_state_name(enum warm_state state);
/* What went wrong first: "PATH: why", at most WARM_PROBLEMS, owned by the array. */
GPtrArray *warm_problems(struct warm *w);
/* Waits until it has ended, an event is there, or the deadline (monotonic) has passed. True when it has ended. */
bool warm_wait(struct warm *w, uint64_t deadline_ns);
/* Takes the oldest event: true, and the caller frees event.path and event.warning. */
bool warm_event_pop(struct warm *w, struct warm_event *ret);

/* All that are known, running or not long finished: references, oldest first. */
GPtrArray *warm_list_jobs(struct fs *fs);

/* Which of n shares (0 .. n - 1) the file at this path of the mount belongs to. The same everywhere and for ever: nodes agree without asking each other. */
unsigned warm_share(const char *path, unsigned n);
