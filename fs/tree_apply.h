/* What a listing says, applied to the names of one directory. What it does not show: tree_drop.h. Private to tree_list.c, tree_drop.c, tree_lookup.c and conflict.c. */
#pragma once
#include "tree.h"

/* One row kept beyond the listing's callback. */
struct list_row {
    char *name;   /* without a directory's '/' */
    char *object; /* owned; the name of the object where it has another one (shadow.h), else NULL */
    bool is_dir, has_info, archived;
    bool vanished;                                               /* a HEAD did not find it any more */
    enum { ROW_NOT_LOOKED, ROW_NEW, ROW_SAME, ROW_KNOWN } match; /* tree_match_rows() */
    bool shadows; /* a directory; an object of the same name stands beside it */
    uint64_t size;
    int64_t mtime_ns;
    int64_t settled_ns;   /* mtime_ns of a listing, old enough to tell versions apart, else 0 */
    struct etag etag;     /* bare, or when has_info that of info */
    struct obj_info info; /* when has_info */
    uint64_t stamp;       /* for the record of the name: listings begun before it know less; 0 of a listing */
    const char *told;     /* borrowed; key that an event said was made, of the row or below it; NULL: none */
};
void list_row_free(struct list_row *row); /* NULL allowed */

/* Names that can be shown: not empty, not "." or "..", no '/' inside. */
bool tree_name_ok(const char *name, size_t len);

/* Does the row need a HEAD before its type can be told, or before it is known whether it is another version? */
bool tree_row_wants_head(struct fs *fs, uint64_t dir, const struct list_row *row);

/* Asks for the object: fills the row's info, etag and size, or says that it vanished. An object that may not be asked for, or a link's target that may not be read, is no
 * error, and the row stays without info. */
int tree_head_row(struct fs *fs, const char *key, struct list_row *row) MUST_CHECK;

/* Attributes from an object's metadata, where they were not known. */
void tree_fill_posix(struct fs *fs, struct meta_inode *rec, const struct obj_info *info);
/* The row becomes a name of dir with a new inode; there is none of that name. keep_flags: of enum inode_flag, for the inode. */
int tree_insert_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint32_t keep_flags,
                    uint64_t stamp) REQUIRES(fs->ns);
/* Looks the rows (struct list_row) up among the names of dir, many at once: what is new, and what is there as it is shown. Valid as long as ns is held. */
int tree_match_rows(struct fs *fs, uint64_t dir, const GPtrArray *rows) REQUIRES(fs->ns);
/* Where rows are put: what is the same for all of them. */
struct tree_place {
    uint64_t dir;
    const char *prefix; /* tree_dir_prefix() of it */
    uint32_t pins;      /* pin_inherited() of it */
    uint64_t stamp;
};
int tree_apply_row_at(struct fs *fs, struct meta_batch *b, const struct tree_place *at, const struct list_row *row)
    REQUIRES(fs->ns);
/* A row of which there is no name becomes one, unless it is of something that we are about to delete. */
int tree_insert_new(struct fs *fs, struct meta_batch *b, const struct tree_place *at, const struct list_row *row)
    REQUIRES(fs->ns) MUST_CHECK;
/* Applies one row to dir as of a listing begun at `stamp`: new names appear, changed ones get a new inode, local changes win. Under ns.
 * A directory that was removed gets none. 1: nothing was done, a directory of that name stands there. */
int tree_apply_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint64_t stamp)
    REQUIRES(fs->ns);
/* Local content, a journal record, a local-only node, or a file that is open for writing: the name is not the store's to change. differs: the store has something else for it, or
 * nothing, which has to be looked at again when the last writer is gone. */
bool tree_name_is_local(const struct meta_dentry *d, struct inode *in, bool differs);
