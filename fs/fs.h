/*
 * The daemon's core: everything hangs off struct fs. Private to fs/.
 *
 * Two rules keep records consistent:
 *  1. Inode and name records are changed in the database only under fs->ns (class NAMESPACE), one unsynced commit per change. So a batch that
 *     was built from records read under ns cannot overwrite somebody else's newer record.
 *  2. struct inode.rec is the newest state of a record while the inode is in memory. It is changed under ns AND inode.mu, so holding either is enough to
 *     read it. Size and mtime of a file that is open for writing live in the cache file until a flush stores them; they and INODE_MTIME_SET change under inode.mu alone.
 * Long work (disk, store) is done with neither held: changes of a file's content state take the inode's content gate (content.h), which is a sleeping
 * lock and may be held across disk I/O, never across the store.
 */
#pragma once
#define FUSE_USE_VERSION 317
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/sync.h"
#include "base/workq.h"
#include "cache.h"
#include "config.h"
#include "io_state.h"
#include "list_state.h"
#include "meta.h"
#include "notify.h"
#include "objstore.h"
#include "read_mode.h"
#include "session.h"

#include <fuse_lowlevel.h>
#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct publisher;
struct durable;
struct jobs;
struct prefetch;
struct sync;
struct daemon;
struct events;

#define FS_NAME_MAX  255
#define FS_MAX_WRITE (1u << 20) /* bytes of a READ or WRITE */

struct inode {
    /* immutable after inode_get */
    struct fs *fs;
    uint64_t ino;

    struct mutex mu;
    /* guarded by mu */
    struct cond changed_cond; /* content gate freed */
    bool loaded, gone;        /* loaded: set atomically; gone: no record in the database */
    struct meta_inode rec;    /* see rule 2 */
    char *name;               /* directories: own name (owned), NULL for the root */
    struct cfile *cf;         /* owned reference while n_open > 0 or somebody works on the content */
    unsigned n_open, n_writers, n_cf_users;
    bool gate_held, intent_late; /* content gate; content_write_intent() left it for later */
    pthread_t gate_owner;        /* valid while gate_held */
    bool expiring;               /* being removed because its ttl has ended: not to be opened (local.h) */
    bool passed_over;   /* open for writing while the store had, perhaps, something else for a name, or nothing */
    bool copying;       /* open, and a writer has bytes of another object copied into it in the store (copy.h) */
    bool changed;       /* bytes were written since the last snapshot was begun */
    uint64_t n_changes; /* writes through us, and looks that found the kernel's */
    uint64_t flushed_changes, sealed_changes; /* n_changes as of the last flush or seal stored; as of the last seal */
    uint64_t synced_changes;                  /* n_changes + 1 as of the last fdatasync, 0 none */
    struct io_state io;
    bool flushed_watched, again_said, rewriters; /* in mapped.flushed; non-appenders opened it since the seal */
    bool orphan; /* the last close for writing was the end of a program by a signal, and no close (orphan.h) */
    bool mapped, snapping;      /* no handle writes any more, but a mapping may (mapped.h); a snapshot is on its way */
    struct list_state list;     /* directories */
    int64_t seen_ns;            /* directories: when they were listed, where the record does not tell (sync.h) */
    uint64_t seen_version;      /* directories: which of the syncs done were looked at for that */
    uint64_t list_worn_ns;      /* directories: when somebody waited in vain for one for all the time there is */
    uint64_t largest_closed;    /* directories: size of the largest file closed in it, as far as memory reaches back */
    enum read_habit read_habit; /* directories: of its large files, as far as memory reaches back */
    uint64_t dir_seen, dir_fresh;                      /* directories: op_dir.c */
    uint64_t mapped_at_ns, flushed_at_ns, again_at_ns; /* since when; the last close; in mapped.flushed */
    uint64_t snap_gen; /* content generation that may be published as a snapshot, 0 none: the next write begins one */
    struct io_mark snap_mark;     /* of that snapshot, 0 while it is not recorded */
    int64_t posix_asked_ns;       /* last HEAD for metadata */
    uint64_t place_dir, place_id; /* directory and id of the name it was found by last, 0 unknown */
    const struct rule_set *rules; /* what applies to it as of rules_as_of, which is fs.renames + 1 (rules_live.c) */
    uint64_t rules_as_of;         /* 0: not known */
    bool undo_noted;              /* guarded by fs.ns: it is in fs.undo */
    atomic_bool doubt_waits;      /* notify_names() of it has not begun yet */

    /* guarded by the inode table's lock */
    unsigned refs;
    uint64_t nlookup;
    GList idle; /* place in fs.idle while only lookups of the kernel keep it; data NULL: not in it */
};

/* Opened for reading, by whom and when; 0: not worth a copy in the store. */
#define COPY_GUESSES 64
struct lately_opened {
    int tid;
    uint64_t at_ns;
};

/* Files that mappings may write; see mapped.h. */
struct mapped {
    struct mutex mu; /* MAPPED */
    struct cond wake;
    /* guarded by mu */
    GPtrArray *files;
    GHashTable *flushed; /* set of struct inode, a reference each */
    bool stop;
    /* owned by the composition root */
    struct workq *snapshots;
    pthread_t thread;
    bool running;
    /* owned by the thread: when the next looks at ttls (local.h) and at what is overdue are due, and when that was said, 0 never */
    uint64_t local_look_ns, overdue_look_ns, overdue_said_ns;
};

/* Requests of workers before that were carried out; see replay.h. */
struct replay {
    GHashTable *done, *made; /* unique -> ino, and &ino of those that were made; immutable after fs_replay_open */
    atomic_bool caught_up;   /* all that was sent again has been answered */
    atomic_bool forgotten;
};

/* Files held open for reads without OPEN; see no_open.h. */
struct no_open {
    struct mutex mu; /* NO_OPEN */
    /* guarded by mu */
    GHashTable *files; /* &ino -> struct held */
    GQueue idle;       /* those without a reader, through idle; least lately read first */
    uint64_t bytes;    /* sizes of all */
};

struct fs {
    /* immutable after fs_open */
    const struct config *cfg;
    struct meta *meta;
    struct objstore *store;
    struct cache *cache;
    char *cache_dir, *mountpoint;
    char **more_dirs; /* further cache disks, or NULL */
    struct publisher *pub;
    struct links *links;       /* links_open() */
    struct jobs *jobs;         /* jobs_open() */
    struct prefetch *prefetch; /* prefetch_open(), NULL: off */
    struct sync *sync;         /* sync_open() */
    struct durable *durable;
    struct workq *list_q, *head_q; /* listings; HEADs that they wait for */
    struct workq *notify_q;        /* kernel notifications: one thread, never inside a handler */
    struct notes notes;
    struct workq *ask_q;    /* questions to the kernel: one thread */
    struct workq *reap_q;   /* the end of what was removed: one thread, which waits for the disk */
    struct workq *settle_q; /* replaced.h */
    GPtrArray *hold_globs;  /* of GPatternSpec-like strings */
    struct rules *rules;    /* rules.h */
    int64_t started_ns;
    unsigned uid, gid;
    int lock_fd; /* the cache folder's instance lock, -1 none */
    struct session *session;
    bool own_session;

    struct mutex ns;
    /* guarded by ns */
    uint64_t ns_changes, ns_listed; /* of names so far; of these, names that listings added */
    GArray *undo;                   /* ns_undo.c */

    struct mutex table_mu;
    /* guarded by table_mu */
    GHashTable *inodes;      /* &ino -> struct inode */
    GQueue idle;             /* struct inode, through idle; least lately used first */
    struct lookups *lookups; /* what is kept of inodes that the kernel knows and memory does not hold (inode.c) */
    GHashTable *unforgotten; /* &ino of those that are awaited (reap.h) */

    struct mutex handle_mu;
    /* guarded by handle_mu */
    GPtrArray *handles;                               /* number of the slot -> struct handle, NULL where free */
    GArray *free_handles;                             /* uint32_t */
    struct lately_opened lately_opened[COPY_GUESSES]; /* copy.h */
    GArray *unsure;                                   /* attach.h */
    uint64_t unsure_until_ns;

    struct mutex io_mu;
    /* guarded by io_mu */
    GQueue io_idle; /* struct io_state, through idle; least lately used first */
    unsigned n_backing_ids;
    GArray *free_files;    /* uint32_t: numbers of free slots */
    GPtrArray *left_files; /* struct sess_file whose ids are to be closed */

    struct mapped mapped;
    struct no_open no_open;
    struct replay replay;
    struct mutex created_mu; /* ON_CREATE */
    GHashTable *created;     /* guarded by it: keys that appeared and are to be warmed; NULL: no look is on its way */
    GPtrArray *attached;     /* struct inode, a reference each: taken over, not settled yet */

    struct mutex list_mu;
    /* guarded by list_mu */
    struct cond list_done;
    GHashTable *listings, *silent,
        *heard; /* &ino -> struct listing; directory of a link, or the root -> since when, or when it was heard (tree_fresh.c) */
    struct list_load list_load;
    unsigned n_stale_looks; /* under way (publish_stale.c) */

    struct daemon *daemon;           /* set once, before the threads that use it; NULL in unit tests */
    atomic_int notify_fd;            /* as se: to the notifier */
    struct fuse_session *_Atomic se; /* set once; jobs of a takeover run before. NULL in unit tests */

    /* atomic */
    atomic_bool stopping, probed;
    atomic_bool removed_open;              /* some file was open while it had no name */
    _Atomic uint64_t renames, resettle_ns; /* so far; when what failed is settled again, or 0 (replaced.h) */
    atomic_uint n_given;                   /* listings of many directories at once that are under way */
    _Atomic int64_t doubt_ns;              /* wall clock: listings of before are not fresh any more (events.h) */
    _Atomic int supervisor_pid;            /* 0: none */
    _Atomic uint64_t fuse_caps;            /* FUSE_CAP_ bits in use, set by INIT */
    _Atomic(const char *) io_refused;      /* why files are not passed through, NULL: they are */
};

/* ---- inode.c ---- */

void inode_table_init(struct fs *fs);
void inode_table_fini(struct fs *fs);
/* The inode with one more reference; -ENOENT when there is no such record. */
int inode_get(struct fs *fs, uint64_t ino, struct inode **ret) MUST_CHECK;
/* The same for one of many, whose records rd reads; NULL: of one. */
int inode_get_by(struct fs *fs, struct meta_near *rd, uint64_t ino, struct inode **ret) MUST_CHECK;
/* With one more reference, or NULL: not in memory. */
struct inode *inode_find(struct fs *fs, uint64_t ino);
struct inode *inode_ref(struct inode *in);
void inode_put(struct inode *in); /* NULL allowed */
static inline void inode_put_p(struct inode **in)
{
    inode_put(*in);
}
#define INODE_REF __attribute__((cleanup(inode_put_p))) struct inode *
/* Kernel reference: entry replies add one, FORGET takes n. Those of workers before are not counted: reap.h. */
void inode_kernel_ref(struct inode *in);
void inode_kernel_forget(struct fs *fs, uint64_t ino, uint64_t n);
/* Adds one, with the attributes, without loading the inode, if it is not in memory and need not be: published files only. Else false, and none is added. */
bool inode_kernel_ref_unloaded(struct fs *fs, struct meta_near *rd, uint64_t ino, struct stat *ret) MUST_CHECK;
/* Remembers by which name it was found. */
void inode_set_place(struct inode *in, const struct meta_dentry *d);
/* False: the kernel does not have it. */
bool inode_kernel_may_know(struct fs *fs, uint64_t ino);
/* Attributes for the kernel; asks the cache file for size and mtime of a file open for writing. */
void inode_stat(struct inode *in, struct stat *ret);
static inline bool inode_is_dir(const struct inode *in)
{
    return S_ISDIR(in->rec.mode);
}

/* ---- daemon.c ---- */

/* Ends the session: the mount goes away, fs_work() tears down and returns. Any thread, returns at once. */
void fs_request_stop(struct fs *fs);
/* Ends this process so that the supervisor starts another one, which takes over; why: a line for the log. */
_Noreturn void fs_start_anew(struct fs *fs, const char *why);
/* Lets another program file (absolute path) take over: 0 when it was found fit, and this process is about to end. With a line for the user otherwise. */
int fs_request_upgrade(struct fs *fs, const char *program, char **ret_msg) MUST_CHECK;
