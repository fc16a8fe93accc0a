/*
 * Syncs: everything below a directory is listed, many directories at a time, while the mount serves. What a listing finds is applied as any other (tree_list_now()): the difference
 * only, local changes win, and a directory in which nothing changed costs neither a write nor a word to the kernel.
 *
 * When such directories were listed is kept once for all of them: the time of the last sync of each top directory ("sync/done/INO"). sync_listed_ns() takes it for every directory
 * below that was listed at all, but for those that the sync could not list. (One that was moved below it from elsewhere while the sync ran may count as listed by it: its names
 * are then as old as they were, for one --metadata-ttl more.)
 *
 * A directory that could not be listed is remembered and named by `status` until it is listed: what was known of it is served, and where nothing was, a look into it lists it again and
 * fails as that does, never as "empty" or "not there".
 *
 * A sync that a kill cut off goes on in the next worker, and at the next mount within a day: it leaves out what was listed since it began. Memory: an entry of the
 * stack for each directory of a page and level, and a number for each unchanged directory, SYNC_VISITED at most.
 */
#pragma once
#include "fs.h"

#define SYNC_PARALLEL     16u
#define SYNC_PARALLEL_MAX 64u

enum sync_state { SYNC_RUNNING, SYNC_DONE, SYNC_FAILED, SYNC_STOPPED };

struct sync_req {
    const char *path;  /* relative to the mount, "" = root; symlinks are followed */
    bool incremental;  /* leaves out what was listed within --metadata-ttl */
    bool background;   /* goes on when nobody watches */
    bool any;          /* a sync that runs will do, whenever it began */
    int64_t asked_ns;  /* wall clock: what was listed before does not count; 0: now */
    unsigned parallel; /* directories at a time; 0: SYNC_PARALLEL */
};

struct sync_progress {
    uint64_t names;   /* rows that the store gave */
    uint64_t dirs;    /* directories listed */
    uint64_t changed; /* of them with a difference */
    uint64_t skipped; /* left out: listed lately */
    uint64_t errors;  /* directories that could not be listed */
    uint64_t elapsed_ns;
    int64_t began_ns; /* wall clock */
    bool incremental;
    bool waits; /* it has not begun: another one of the directory runs */
    int err;    /* why it ended early, 0 */
};

struct sync_job;

/* Loads what the last run left. Before threads that list. */
int sync_open(struct fs *fs) MUST_CHECK;
/* Goes on with what was cut off, and does what --sync says of the mount and of its links. */
void sync_begin(struct fs *fs);
/* Ends all, to be gone on with. NULL fs->sync allowed. */
void sync_close(struct fs *fs);
void sync_fini(struct fs *fs);

/* Starts a sync, *ret has a reference for the caller. While another one of that directory runs, it waits for that to end, or joins one that does; only where that began since it was asked for, or `any` will
 * do, it joins that. -ENOTDIR, -ECANCELED when the daemon stops, else as a look-up. */
int sync_start(struct fs *fs, const struct sync_req *req, struct sync_job **ret) MUST_CHECK;
void sync_job_unref(struct sync_job *job); /* NULL allowed */
/* Who started or joined it without `background` waits no longer: when nobody is left who does, and nobody who said `background`, no further directory is begun. It is not gone on with. */
void sync_leave(struct sync_job *job);
/* Waits until it has ended or the deadline (monotonic) has passed. True: it has ended. */
bool sync_wait(struct sync_job *job, uint64_t deadline_ns);
enum sync_state sync_progress_get(struct sync_job *job, struct sync_progress *ret);
const char *sync_state_name(enum sync_state state);
uint64_t sync_id(const struct sync_job *job);
const char *sync_path(const struct sync_job *job);
/* All that are known, running or not long ended: references, oldest first. */
GPtrArray *sync_list(struct fs *fs);

/* ---- what is kept (sync_kept.c) ---- */

/* When the names of dir were listed last, wall clock; of use where INODE_DIR_LISTED is set. No lock held. */
int64_t sync_listed_ns(struct fs *fs, struct inode *dir);
/* The directory was listed: it is no longer one that could not be. Cheap. No lock held. */
void sync_forgive(struct fs *fs, uint64_t ino);
/* Directories that could not be listed, in no order; root: 0 or those found by a sync of that directory. Not the ones of a sync that goes on behind the first SYNC_FAILED_MAX. */
void sync_failed_each(struct fs *fs, uint64_t root, void (*fn)(void *ctx, const char *path, int err), void *ctx);
/* When the last sync of the directory began that came to its end, 0: none did. */
int64_t sync_done_ns(struct fs *fs, uint64_t ino);
uint64_t sync_root(const struct sync_job *job);
