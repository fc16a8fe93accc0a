/* Inodes that have no name and are still there: values "orphan/INO". */
#pragma once
#include "meta.h"

/* How its last name went, as far as that matters: another file was renamed over it, and is perhaps not on the disk yet; or the kernel did not ask for it, and may not have been told. */
struct meta_replaced {
    uint64_t by; /* the other file's inode; 0: none, and of `was` directory and name are set, or nothing is */
    struct meta_dentry
        was; /* its name as it was; ukey is set where there is an object, also if that is the path's own */
};
void meta_replaced_clear(struct meta_replaced *rep);

/* rep NULL: it was removed, or what came is on the disk. */
void meta_orphan_put(struct meta_batch *b, uint64_t ino, const struct meta_replaced *rep);
/* The kernel, which did not ask for it, knows that name perhaps. */
void meta_orphan_put_lost(struct meta_batch *b, uint64_t ino, uint64_t parent, const char *name);
void meta_orphan_del(struct meta_batch *b, uint64_t ino);
/* -ENOENT: it has a name, or is gone. */
int meta_orphan_get(struct meta *m, uint64_t ino, struct meta_replaced *ret) MUST_CHECK;
/* All of them but those that cannot be decoded, which are named in the log and stay; non-zero from fn stops and is returned. rep is fn's only during the call. */
int meta_orphan_each(struct meta *m, int (*fn)(void *ctx, uint64_t ino, const struct meta_replaced *rep), void *ctx)
    MUST_CHECK;
