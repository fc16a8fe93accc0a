/*
 * Warm-up: fetches everything below some paths into the cache, many files at a time. Also checks what is here, and evicts.
 *
 * A warm-up runs in threads of its own; whoever started it watches it, or forgets it (background) and asks later by its id.
 * What is present is not fetched, so one that was stopped goes on where it was when it is asked for again.
 * Memory is bounded whatever the size of the tree: names are read page by page, at most WARM_QUEUE files wait.
 */
#pragma once
#include "fs.h"

#define WARM_QUEUE 4096

enum warm_mode { WARM_FETCH, WARM_CHECK, WARM_EVICT };
enum warm_state { WARM_RUNNING, WARM_DONE, WARM_FAILED, WARM_STOPPED };

struct warm_req {
    const char *const *paths; /* relative to the mount, NULL-terminated; copied; symlinks are followed */
    enum warm_mode mode;
    unsigned parallel; /* files at a time; 0: 8 */
    bool background;   /* nobody takes events: they are only counted */
};

/* Totals grow while the tree is walked (counting); once done they are exact. evict: bytes_done are the bytes freed, files_done the files dropped. */
struct warm_progress {
    uint64_t files_done, files_total, bytes_done, bytes_total, errors;
    bool counting;
};

/* One line for the watcher: a file that failed (err != 0), or with WARM_CHECK what of a file is here. */
struct warm_event {
    char *path; /* owned */
    int err;
    uint64_t cached_bytes, size;
};

struct warm;

/* Starts; *ret has a reference for the caller. -ECANCELED when the daemon stops. */
int warm_start(struct fs *fs, const struct warm_req *req, struct warm **ret) MUST_CHECK;
struct warm *warm_ref(struct warm *w);
void warm_unref(struct warm *w); /* NULL allowed */
/* No further file is begun; those being fetched are finished behind. */
void warm_stop(struct warm *w);
uint64_t warm_id(const struct warm *w);
bool warm_is_background(const struct warm *w);
enum warm_state warm_progress_get(struct warm *w, struct warm_progress *ret);
/* "running", "done", "failed" (some files), "stopped". */
const char *warm_state_name(enum warm_state state);
/* Waits until it has ended, an event is there, or the deadline (monotonic) has passed. True when it has ended. */
bool warm_wait(struct warm *w, uint64_t deadline_ns);
/* Takes the oldest event: true, and the caller frees event.path. */
bool warm_event_pop(struct warm *w, struct warm_event *ret);

/* All that are known, running or not long finished: references, oldest first. */
GPtrArray *warm_list(struct fs *fs);
