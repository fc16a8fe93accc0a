/*
 * Names that the store does not have any more, and what they held, go away: a batch of some hundreds at a time, between which others get the namespace.
 *
 *   struct tree_drop t;
 *   tree_drop_init(&t, stamp, first_id);       as of before the store was asked
 *   do {
 *       mutex_lock(&fs->ns);
 *       r = tree_drop_gone(fs, b, &t, ...);    or tree_drop_unseen()
 *       ... meta_commit(b), publish_apply() ...
 *       mutex_unlock(&fs->ns);
 *   } while (r > 0);
 *   tree_drop_fini(&t);
 *
 * The names in a directory go first, the directory when it is empty. Until then it counts as one that is to be listed again: whoever looks into it is told what the store
 * says, and who ends the process in between leaves what the next listing drops. Private to tree_list.c and event_apply.c.
 */
#pragma once
#include "nameset.h"
#include "tree_apply.h"

/* How far it has come. */
struct tree_drop {
    uint64_t stamp, first_id; /* names changed here since, and names of ids from this one on, stay */
    uint64_t after;           /* tree_drop_unseen(): names up to this id are done */
    /* tree_drop.c's */
    GArray *levels; /* struct level: the directories on the way to where it is */
    unsigned names_left, looks_left;
};
void tree_drop_init(struct tree_drop *t, uint64_t stamp, uint64_t first_id);
void tree_drop_fini(struct tree_drop *t);
/* Between two batches, with nothing held: whoever waits for the namespace gets it, which is not a matter of course where it is taken again at once. */
void tree_drop_pause(void);

/* What a complete listing showed of a directory. */
struct tree_shown {
    struct nameset *seen; /* objects, and (kind true) directories */
    GHashTable *
        waiting; /* name -> struct list_row that was not applied because a directory stands there: it becomes the name once that is gone */
};
/* Names of dir that were not shown go away, unless something local keeps them. 1: there is more to do, in another batch. */
int tree_drop_unseen(struct fs *fs, struct meta_batch *b, struct tree_drop *t, uint64_t dir,
                     const struct tree_shown *shown) REQUIRES(fs->ns) MUST_CHECK;
/* The store has nothing of that name, nor below: it goes away, unless something local keeps it or is newer. 1: there is more to do, in another batch. */
int tree_drop_gone(struct fs *fs, struct meta_batch *b, struct tree_drop *t, uint64_t dir, const char *name,
                   bool *ret_dropped) REQUIRES(fs->ns) MUST_CHECK;
