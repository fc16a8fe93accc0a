/* Private to sync*.c. */
#pragma once
#include "sync.h"

#define SYNC_VISITED    4096u /* numbers of unchanged directories in one value */
#define SYNC_FAILED_MAX 1000u /* more of them end a sync */
#define SYNC_RESUME_NS  (86400 * (int64_t)NS_PER_S)

struct sync {
    /* immutable after sync_open */
    struct fs *fs;
    struct mutex mu; /* CTL; never held together with a job's */
    /* guarded by mu */
    struct cond idle;
    GPtrArray *jobs; /* struct sync_job, a reference each */
    uint64_t last_id;
    unsigned live; /* jobs that have threads, or wait to begin */
    bool closing, clock_runs;
    pthread_t clock;
    GPtrArray *due;  /* struct due of sync_clock.c */
    GArray *cut_off; /* struct sync_run, from sync_open() to sync_begin() */

    struct mutex kept_mu; /* LISTING */
    /* guarded by kept_mu */
    GHashTable *done;   /* &ino -> int64_t: when the last sync of it began */
    GHashTable *failed; /* &ino -> struct sync_failure */

    /* atomic */
    _Atomic uint64_t version; /* grows with `done`; 0: it is empty */
    _Atomic unsigned n_failed;
};

/* A sync under way, as it is kept. */
struct sync_run {
    uint64_t ino; /* of its top directory */
    int64_t began_ns;
    unsigned parallel;
    unsigned resumed; /* times it was gone on with */
    bool incremental;
    bool watched;    /* not in the background: it ends when nobody waits for it */
    GArray *visited; /* owned: uint64_t, ascending: directories without a change that were listed */
    unsigned n_values;
};

struct sync_job {
    /* immutable after sync_start */
    struct fs *fs;
    uint64_t id;
    char *path;             /* owned */
    struct worker *workers; /* owned; run.parallel of them */

    /* guarded by mu of struct sync */
    bool queued; /* begins when the one before it has ended */
    bool over;   /* the next one of its directory may begin */

    struct mutex mu; /* CTL */
    /* guarded by mu until it has begun, immutable from then on */
    struct sync_run run; /* visited: what is not to be listed again */
    struct cond changed;
    /* guarded by mu */
    GArray *stack;   /* struct work */
    GArray *visited; /* uint64_t: listed, and not written */
    unsigned active, threads, n_values, fails_in_row;
    unsigned small_in_row; /* directories of few names, listed one by one */
    unsigned watchers;
    bool background, stop, begun;
    bool adopted; /* in the background only because the worker ended whose clients waited for it */
    uint64_t began_mono_ns;
    enum sync_state state;
    uint64_t dirs, changed_dirs, skipped, errors, ended_ns;
    int64_t oldest_ns; /* when the directory was listed that was left out and is oldest */
    int err;

    atomic_uint refs;
};

struct sync_failure {
    uint64_t ino, root;
    int err;
    char *path; /* owned */
};

/* ---- sync.c ---- */

/* With a reference for the caller; takes over run->visited. */
struct sync_job *sync_job_new(struct fs *fs, const struct sync_run *run, const char *path);
struct sync_job *sync_job_ref(struct sync_job *job);
/* Is it to list, from now on? False: it is to stop, and has the state of one that was stopped. Only sync_job_launch() asks, and tests. */
bool sync_job_begin(struct sync_job *job);
/* It begins, unless it is to stop: then it ends. It was counted in `live`. */
void sync_job_launch(struct sync_job *job);

/* ---- sync_group.c ---- */

struct tree_given;
struct sync_member {
    uint64_t ino;
    char *name; /* owned */
};
struct sync_group {
    uint64_t parent;
    /* Is given what was listed of a directory; -errno ends the listing. */
    int (*apply)(void *ctx, uint64_t ino, const struct tree_given *given);
    void *ctx;
    uint32_t max_keys; /* 0: all that it takes; else asks for no more */
    bool claimed;      /* listings of all members are under way: tree_list_claim() */
};
GArray *sync_group_new(void); /* of struct sync_member */
/* Does a listing of parent without a delimiter show what is in its directories? Of a link it shows nothing but its directory, as if that were empty. */
/* Not one whose keys lie elsewhere in the store's order than its path in that of names (drv_names.c). */
bool sync_group_takes(struct fs *fs, const char *name);
bool sync_group_fits(struct fs *fs, uint64_t parent);
/* Lists directories of one parent together. members, at least one, are sorted; those from *ret_done on were not listed: some may be large, or lie too far apart. */
int sync_group_list(struct fs *fs, const struct sync_group *g, GArray *members, guint *ret_done) MUST_CHECK;

/* Ends the sync of this directory, if one runs, and waits a while until it has ended. No lock held. */
void sync_cancel(struct fs *fs, const char *path);

/* ---- sync_clock.c ---- */

void sync_clock_init(struct sync *s);
/* Does what --sync says of the mount and of its links, from here on. No lock held. */
void sync_clock_begin(struct sync *s);
/* A sync of the directory is to begin every so often, counted from when the last one began, in place of what was to; 0: one now. No lock held; the store is not asked. */
void sync_clock_set(struct sync *s, const char *path, uint64_t ino, uint64_t every_ns);
/* After s->closing was set. */
void sync_clock_join(struct sync *s);
void sync_clock_fini(struct sync *s);

/* ---- sync_kept.c ---- */

int sync_kept_load(struct sync *s) MUST_CHECK;
void sync_kept_init(struct sync *s);
void sync_kept_fini(struct sync *s);

/* The run is under way from now on. */
int sync_run_put(struct sync *s, const struct sync_run *run) MUST_CHECK;
/* Directories (uint64_t) of it that were listed and not written; the value's number. */
int sync_run_visited(struct sync *s, uint64_t root, unsigned number, const GArray *inos) MUST_CHECK;
/* It is no longer under way. at_ns: all below root was listed then or later, but for failures; 0: was not. */
int sync_run_end(struct sync *s, const struct sync_run *run, int64_t at_ns) MUST_CHECK;
/* False: there are too many. */
bool sync_fail(struct sync *s, uint64_t root, uint64_t ino, int err);
