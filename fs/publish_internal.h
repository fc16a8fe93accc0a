/* The publisher's inside: ops in memory, their order, and the pieces that carry them out. */
#pragma once
#include "content.h"
#include "publish.h"
#include "publish_note.h"
#include "publish_place.h"
#include "tree.h"

/* All pending ops at a directory or below it: what an op there has to wait for. */
struct dirnode {
    char *prefix;       /* "" or "a/b/", owned */
    GSequence *here;    /* struct op that become visible here, by turn */
    GSequence *again;   /* those of them whose place is before their turn, by place */
    GSequence *below;   /* struct op that become visible below, by place */
    GSequence *dels;    /* deletes */
    GSequence *refused; /* those that cannot be carried out: in the order they keep nobody */
    GSequence *sources; /* ops elsewhere that still copy from a key below */
};

/* When something was deleted upstream. */
struct recent {
    uint64_t stamp, at_ns;
};

/* Who lets an op go that stands at an earlier place than its seq, as they would wait for each other: then it is seen at its seq. */
enum late {
    LATE_NOT,
    LATE_OWN, /* those that it waits for itself */
    LATE_ALL, /* all but deletes; of these, one that a name beside it waits for */
};

struct order_link {
    struct dirnode *node;
    GSequenceIter *iter;
};

struct op {
    /* immutable */
    struct publisher *p;
    uint64_t ino;  /* OP_SYNC */
    uint32_t type; /* OP_SYNC: S_IFMT bits */
    char *key;     /* OP_SYNC: path key when the op was made ('/' at the end for directories); OP_DELETE: the key */
    char *source;  /* key that a rename still has to copy from, NULL */
    struct etag source_etag;
    bool based;   /* absent bytes of it come from the file's base, wherever that is, not from an object of its own */
    bool copying; /* when it was made, a writer had bytes of the base copied into the file in the store */
    enum publish_why why;
    enum order_mode order;
    uint64_t keep_ino; /* OP_DELETE */
    uint64_t bytes;

    /* guarded by the publisher's mu */
    struct meta_op rec;
    char *base;            /* that, if another key's: it must stay until this op is done; NULL: its own or none */
    bool running, dropped; /* dropped: no longer in the journal; freed by who runs it */
    bool staged;           /* parts are stored, waits for its turn */
    bool at_gate;          /* it runs for a program that waits, and waits for its turn */
    bool settle;           /* a conflict: whether it can be set aside is to be looked at */
    bool untangle; /* what it copies from is waited for by what it waits for: the content is to be sent from here */
    bool leaving; /* that is being done: who runs it changes its record no more, as ops made anew may have those seqs */
    bool hasty, whole; /* that cannot be done: it does not wait for its turn; taken by publish_closed_now() */
    bool refused;      /* a delete that cannot be carried out; it is tried again all the same */
    bool kept_out;     /* a delete: at its last try who has the file open had to keep the object */
    bool given_up; /* taken for a program that waits no longer (publish_now.c): nor does who runs it wait for others */
    uint32_t content; /* enum content_state of the inode */
    bool closed;      /* the content was closed, though it may be open again: the op stays in the order */
    uint64_t place;   /* in the order, for those above and for deletes: its seq, or the place of the op it succeeds */
    uint64_t turn;    /* among those of its own directory: its seq, or that of the close, if it was renamed since */
    enum late late;
    bool past_deletes; /* it does not wait for deletes that wait for it */
    uint64_t not_before_ns, refused_since_ns,
        n_taken;     /* the first of the refusals in a row; versions that the store had taken at the last */
    size_t link_len; /* of the directory of the link that key is in, with its '/': the order ends there; 0: none */
    bool lazy;       /* not_before_ns only gives what would make the op needless time to come */
    unsigned failures, n_refusals; /* n_refusals: those in a row between which the store took others */
    int last_err;
    GSequenceIter *all_iter;
    GArray *links;              /* struct order_link; empty while the op takes no part in the order */
    GArray *source_links;       /* struct order_link: above its source */
    uint64_t progress_bytes;    /* atomic enough: written by the worker, read for display */
    char *late_src, *late_what; /* of who runs it: what it sends (publish_late.h) */
};

struct publisher {
    struct fs *fs;
    pthread_t *threads;
    unsigned n_threads;
    pthread_t sums;
    bool sums_running;
    uint64_t sums_delay_ns;

    struct mutex mu; /* class PUBLISH */
    /* guarded by mu */
    struct cond work; /* something may be runnable: one worker looks at a time */
    struct cond sums_work;
    GQueue sums_due;  /* closed files, by when their checksums are due */
    struct cond done; /* an op ended, came or changed: for those who wait for others */
    bool stopping;
    unsigned n_now;           /* threads that publish for a program (publish_now.c) */
    GHashTable *probing;      /* directories of links, "" of none: somebody is finding out what that store can do */
    char *probe_wanted;       /* a key of the one of which a thread should, owned; NULL: none */
    GHashTable *link_runs;    /* directory of a link -> number of its ops that run, where there are any */
    GSequence *all;           /* every op by seq */
    GHashTable *by_seq;       /* &rec.seq -> op */
    GHashTable *by_ino;       /* ino -> GPtrArray of op */
    GHashTable *by_key;       /* key -> OP_SYNC op */
    GHashTable *tombs;        /* key -> OP_DELETE op */
    GHashTable *sources;      /* key -> op that copies from it */
    GHashTable *bases;        /* key -> GPtrArray of ops with that base */
    GHashTable *running_keys; /* key -> op */
    GHashTable *running_inos; /* &ino -> op: two names of one file, or a renamed one, are not published at once */
    GHashTable *dirs;         /* prefix -> dirnode */
    GHashTable *recent;       /* key or prefix deleted lately -> struct recent */
    struct late_keys *late;   /* keys that rest (publish_late.h) */
    GHashTable *taken;        /* directory of a link, "" of none -> number of versions that this store took so far */
    uint64_t rest_until_ns;   /* nothing was found to run: no look before, unless what waits changed; 0: none */
    uint64_t recent_pruned_ns, n_picks; /* n_picks: looks for an op so far */
    uint64_t looked_to, circles_to;     /* seqs behind which the next look for an op, a circle, goes on */
    uint64_t look_wake_ns; /* when the first timed op may run of those seen since looks began anew; 0: none */
    bool look_again;       /* one of those may run now */

    /* guarded by fs->ns */
    GPtrArray *pending;       /* struct change, applied or forgotten by publish_apply() */
    GHashTable *pending_dels; /* key -> that which adds a delete of it; borrowed */
};

/* Is it the record of a loser that was set aside? It only keeps its place in the order. */
static inline bool pubop_aside(const struct op *o)
{
    return o->rec.kind == OP_SYNC && o->rec.parent == META_ASIDE_INO;
}

/* Is its file being copied in the store by who has it open? It is waited for: bringing all of it here would take longer. */
static inline bool pubop_copying(const struct op *o)
{
    return o->base && o->copying && o->content == CONTENT_OPEN;
}

/* ---- publish_queue.c: the structure; all with mu held ---- */

struct op *pubop_new(struct publisher *p);
void pubop_free(struct op *o);
/* An op came, went or changed. */
void queue_wake_locked(struct publisher *p) REQUIRES(p->mu);
void queue_init(struct publisher *p);
void queue_fini(struct publisher *p);
void queue_insert_locked(struct publisher *p, struct op *o) REQUIRES(p->mu);
/* Takes the op out; frees it unless it is running (then its runner does). */
void queue_remove_locked(struct publisher *p, struct op *o) REQUIRES(p->mu);
/* The content of the op's inode moved to that (enum content_state): puts the op into, or takes it out of, the order that others wait for. */
void queue_set_content_locked(struct publisher *p, struct op *o, uint32_t content) REQUIRES(p->mu);
/* The delete cannot be carried out, or can again: others do not wait for it, but for one whose name theirs cannot stand beside (objstore_limits.one_name). */
void queue_set_refused_locked(struct publisher *p, struct op *o, bool refused) REQUIRES(p->mu);
/* Did another delete of its key come while this one was tried, which, or the name that took it over, does all that is left to do? */
bool queue_delete_replaced_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
/* The base of the op's file is at that key, NULL: there is none. Before the op is inserted. */
void pubop_set_base(struct op *o, const char *key);
/* From now on it is there for the ops of all names of the file: those that need it keep that object. */
void queue_rebase_locked(struct publisher *p, uint64_t ino, const char *base) REQUIRES(p->mu);
/* The content of old was changed again, or replaced, or is no more to be deleted: what waited for old, of a file if it was closed, waits for next. Before next is inserted. */
void queue_succeed_locked(struct publisher *p, const struct op *old, struct op *next) REQUIRES(p->mu);
/* The content that old has to bring is the same, and next brings it: it keeps its place and, unless its name came into its directory just now, its turn. Before next is inserted. */
void queue_keep_place_locked(struct publisher *p, const struct op *old, struct op *next, bool came) REQUIRES(p->mu);
/* May the op's visible step happen now? */
bool queue_eligible_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
/* What it waits for: an op or NULL. */
struct op *queue_blocker_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
/* Of that: what the order says, and what it waits for whatever its place there. */
struct op *queue_order_blocker_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
struct op *queue_keeper_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
/* Did nothing that a later close would have to wait for come after it? */
bool queue_is_last_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
/* Could it run but for the order? *wake, 0: none, becomes the time of a timed one that is earlier. */
bool pubop_wants_run(const struct op *o, uint64_t now, uint64_t *wake);
/* NULL: it is empty. */
struct op *queue_first(GSequence *seq);
/* Length of the directory part of a key, with its '/'; 0: that is the root. */
size_t queue_dir_len(const char *key);
/* Does o wait for src only because that copies from what o would overwrite or delete? */
bool queue_waits_for_copy_locked(struct publisher *p, const struct op *o, const struct op *src) REQUIRES(p->mu);
/* Is the op's key or file being worked on? */
bool queue_busy_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
/* Is what stands at key being changed, moved or deleted, or about to be? */
bool queue_key_busy_locked(struct publisher *p, const char *key) REQUIRES(p->mu);
/* Marks the op, which is not busy, as running by the caller; queue_untake_locked() ends that. */
void queue_take_locked(struct publisher *p, struct op *o) REQUIRES(p->mu);
/* Where the ops (p->all) go on that came after that one, which need not be there any more. */
GSequenceIter *queue_after_locked(struct publisher *p, uint64_t seq) REQUIRES(p->mu);
void queue_untake_locked(struct publisher *p, struct op *o) REQUIRES(p->mu);
/* Is anything below the prefix still to be deleted or moved away? */
bool queue_prefix_leaving_locked(struct publisher *p, const char *prefix) REQUIRES(p->mu);

/* ---- publish_pick.c ---- */

/* The next op to run, marked running; NULL with *ret_wake_ns (0: nothing timed) when there is none. A long look that found none is not repeated at once because something else came. */
struct op *queue_pick_locked(struct publisher *p, uint64_t *ret_wake_ns) REQUIRES(p->mu);

/* publish_recent.c: the object at key was just removed from the store. */
void queue_note_deleted_locked(struct publisher *p, const char *key) REQUIRES(p->mu);

/* ---- publish.c ---- */

/* What becomes of a lost race there. */
enum conflict_mode pubop_conflict(const struct op *o);
/* The op that the batch now being built gave to the name; NULL: none, or something was queued since. Under ns. */
struct op *publish_added(struct fs *fs, const struct meta_dentry *d);
/* publish_moved.c: is the name, which had the op old, new in its directory: renamed from another one, from where its content was held, or to a key whose object is still to be
 * moved away? Not what a directory's rename took along. */
bool moved_came_locked(struct publisher *p, const struct op *old, const struct meta_dentry *d, const char *key)
    REQUIRES(p->mu);

/* ---- publish_run.c ---- */

/* Carries the op out; it is marked running by this thread. snapshot: writers may be active. deadline 0: none (the gate does not wait). */
int pubop_run(struct op *o, bool snapshot, uint64_t deadline_ns);
/* publish_finish.c: clears running, records failure or success, frees a dropped op. */
void pubop_finish(struct op *o, int r);

/* publish_refused.c: the store took what the op brings; notes how a try failed, true: it is the key that the store does not want. */
void pubop_note_taken(struct op *o);
bool pubop_is_unwanted(struct op *o, int r);

/* ---- publish_stale.c: another object stands where a file's was ---- */

/* For cache_on_stale(): as note_newer(). Of what is somebody else's the name is brought up to date. Asks the store; no lock is held. */
int publish_stale(void *fs, uint64_t vid, uint64_t ino, const char *key, struct etag *ret_etag) MUST_CHECK;

/* ---- publish_done.c ---- */

/* What the store holds after an op. */
struct outcome {
    const char *key;
    struct etag etag;
    uint64_t size;
    char token[TOKEN_MAX + 1];
    uint64_t vid, gen;   /* content the object holds; 0 for markers and links */
    bool content, meta;  /* content / metadata of the name are now upstream */
    int64_t ctime_ns;    /* of the inode when the metadata was read */
    struct io_mark mark; /* of the local file, for a snapshot */
};
/* Records it: name, inode, journal, in one batch; also when the name was renamed, removed or written meanwhile. */
int pubop_record(struct op *o, const struct meta_dentry *before, struct inode *in, const struct outcome *out)
    MUST_CHECK;
/* The name no longer needs its object at another key, which is disowned: the content is here and sent from here. */
int pubop_let_go(struct op *o, const struct meta_dentry *before) MUST_CHECK;
/* The op's journal record is removed: nothing to do upstream (any more). */
int pubop_forget(struct op *o) MUST_CHECK;
/* State and error are stored and the order follows. */
void pubop_park(struct op *o, enum op_state state, int err);
