/* What a listing says, applied to the names of one directory. Private to tree_list.c, tree_lookup.c and conflict.c. */
#pragma once
#include "tree.h"

/* One row kept beyond the listing's callback. */
struct list_row {
    char *name; /* without a directory's '/' */
    bool is_dir, has_info, archived;
    bool vanished; /* a HEAD did not find it any more */
    bool shadows;  /* a directory; an object of the same name stands beside it */
    uint64_t size;
    int64_t mtime_ns;
    int64_t settled_ns;   /* mtime_ns of a listing, old enough to tell versions apart, else 0 */
    struct etag etag;     /* bare, or when has_info that of info */
    struct obj_info info; /* when has_info */
};
void list_row_free(struct list_row *row); /* NULL allowed */

/* Names that can be shown: not empty, not "." or "..", no '/' inside. */
bool tree_name_ok(const char *name, size_t len);

/* Does the row need a HEAD before its type can be told, or before it is known whether it is another version? */
bool tree_row_wants_head(struct fs *fs, uint64_t dir, const struct list_row *row);

/* Attributes from an object's metadata, where they were not known. */
void tree_fill_posix(struct fs *fs, struct meta_inode *rec, const struct obj_info *info);
/* The row becomes a name of dir with a new inode; there is none of that name. keep_flags: of enum inode_flag, for the inode. */
int tree_insert_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint32_t keep_flags,
                    uint64_t stamp) REQUIRES(fs->ns);
/* Applies one row to dir as of a listing begun at `stamp`: new names appear, changed ones get a new inode, local changes win. Under ns.
 * 1: nothing was done, a directory of that name stands there. */
int tree_apply_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint64_t stamp)
    REQUIRES(fs->ns);
/* Names of dir, of ids below first_id, that a complete listing begun at `stamp` did not show go away, unless something local keeps them. seen: "name" of objects, "name/" of what
 * showed as a directory; the value is NULL or the row that was not applied because a directory stands there: it becomes the name once that is gone. */
int tree_drop_unseen(struct fs *fs, struct meta_batch *b, uint64_t dir, GHashTable *seen, uint64_t stamp,
                     uint64_t first_id) REQUIRES(fs->ns);
