/* Private to links*.c. */
#pragma once
#include "links.h"
#include "objstore_links.h"

#include <string.h>

#define IMMUTABLE_TTL_NS (365ull * 86400 * NS_PER_S)

struct link { /* all guarded by mu of the set, and changed by who changes it only */
    char *dir;
    size_t len;              /* of dir */
    char *source, *identity; /* identity NULL: its store could never be opened yet */
    json_t *options;         /* NULL: the record is damaged */
    struct link_options o;
    uint64_t ino;    /* of the directory, 0: not known yet */
    char *error;     /* why it has no store, NULL: it has one */
    bool unreadable; /* its record: it gets a store when its options are set to what is known here */
    bool probed;     /* its capabilities are known */
    bool tried;      /* its store, which does not answer, is being asked again */
    bool asking;     /* a store is asked that it may get: it stays, and nobody else changes it */
    bool going;      /* being removed: nothing is changed below any more */
};
void link_free(void *link); /* NULL allowed */

struct links {
    struct mutex mu; /* LINKS */
    /* guarded by mu */
    struct cond changed, wake;
    bool
        changing; /* somebody adds, changes or removes one; may wait for the mount's own store meanwhile, but for none of a link */
    bool served; /* nobody waits for the start any more */
    bool stop;
    GPtrArray *all;   /* struct link; who changes may read it without mu */
    GPtrArray *asked; /* struct objstore that no link has yet; borrowed from who asks */
    links_sync_fn *on_sync;
    /* atomic */
    _Atomic unsigned n;
    struct workq *ask_q; /* owned by the thread `links` while that runs; NULL: nothing was asked again yet */
    /* owned by the composition root */
    pthread_t thread;
    bool running;
    char *file; /* what --links lists, until that is added */
};

/* The link whose directory is dir, or NULL. */
struct link *links_at_locked(struct links *ls, const char *dir) REQUIRES(ls->mu);
/* False: the daemon stops. */
bool links_begin_change(struct links *ls) MUST_CHECK;
void links_end_change(struct links *ls);
/* -EINVAL, with the reason in *ret_msg: the source is a directory in or above the mount, or holds the cache or lies in it. Asks nothing of the mount. */
int links_check_apart(const struct fs *fs, const char *source, char **ret_msg) MUST_CHECK;
/* Once more the one that changes, after links_end_change(), also when the daemon stops. */
void links_go_on_changing(struct links *ls);
/* objstore_check() of a store that no link has: for as long as that takes, so not by the one that changes. Ends when the daemon stops. */
int links_ask_store(struct links *ls, struct objstore *st, char **ret_msg) MUST_CHECK;
/* The thread `links`; arg: struct fs. */
void *links_retry_thread(void *arg);
/* Opens the store of one that has none, if it can be opened now; the caller is the one that changes. */
void links_reopen(struct fs *fs, struct link *l);
/* l->identity: of the store that it was so far, or NULL. */
int link_open_store(struct fs *fs, const struct link *l, struct objstore **ret, char **ret_msg) MUST_CHECK;
/* Text of a record; identity may be NULL. NULL: something in it is not UTF-8. Owned by the caller. */
char *link_record(const char *source, const char *identity, json_t *options);
int link_save(struct fs *fs, const char *dir, const char *record) MUST_CHECK;
/* Writes DIR/links, after a change. */
void links_save_copy(struct fs *fs);
/* That the link is being removed, for the next worker, which goes on with it; links_tree_remove() ends it, and so does a link that is made there. The caller is the one that changes. */
int links_tree_set_going(struct fs *fs, const struct link *l, bool going) MUST_CHECK;
bool links_tree_is_going(struct fs *fs, const struct link *l);
/* The caller is the one that changes. */
void links_tell_sync(struct fs *fs, const struct link *l, enum links_sync_when when);
