/*
 * Losers: local versions of names whose object was changed elsewhere first.
 *
 *   publish meets another object at its key -> journal record in state OPS_CONFLICT; the name goes on showing ours while writers have it open
 *   last writer gone, store answers         -> set aside: name, journal record and inode move to (META_ASIDE_INO, "ID"), the path shows the object upstream
 *   keep-mine, keep-theirs, save-as         -> the record is gone
 *
 * The loser's name record keeps all that it was (object it came from, id, journal record), so it counts as a name of its inode: nothing of it is evicted or
 * reaped. Its journal record stays OPS_CONFLICT, keeps its place in the order and so holds back what was closed later, until the conflict is resolved or
 * `publish --skip` removes it. Value "conflict/ID" (meta/FORMAT.md) remembers the path.
 */
#pragma once
#include "fs.h"

struct op;

#define CONFLICT_VALUE_PREFIX "conflict/"

struct conflict {
    uint64_t id; /* small, never used twice */
    int64_t lost_ns;
    struct etag base, winner; /* what ours was made from, what stood there instead; "" nothing */
    char *path;               /* owned; of the name when it lost */
};
void conflict_clear(struct conflict *c);
/* -ENOENT: no such conflict. */
int conflict_get(struct meta *m, uint64_t id, struct conflict *ret) MUST_CHECK;
/* Each, in order of age; the record is fn's only during the call, non-zero from it stops and is returned. */
int conflict_each(struct meta *m, int (*fn)(void *ctx, const struct conflict *c), void *ctx) MUST_CHECK;
/* Removes the record alone (fsck). */
void conflict_del(struct meta_batch *b, uint64_t id);
/* The id of the one conflict at path. -ENOENT: none; -ENOTUNIQ: several. */
int conflict_find(struct meta *m, const char *path, uint64_t *ret_id) MUST_CHECK;
/* Those at or below path ("" all). */
uint64_t conflict_count(struct meta *m, const char *path);
/* The loser's name record. -ENOENT: there is none (any more). */
int conflict_name(struct meta *m, uint64_t id, struct meta_dentry *ret) MUST_CHECK;
/* Path of a name in META_ASIDE_INO. Owned by the caller. */
char *conflict_path(struct meta *m, const char *name);
/* Names of the inode that are set aside. */
unsigned conflict_links(struct meta *m, uint64_t ino);

/* Carries on with a conflict whose writers may be gone: sets the loser aside, or leaves it for the last writer's release. Run by the publisher with o taken. */
int conflict_settle(struct op *o) MUST_CHECK;

/* Ours is published over what stands there now, and the path shows it. -EEXIST: unpublished content, -EBUSY: a writer stands at the path;
 * -ESTALE, -ENOENT: what of it is not here was replaced in the store, or its folder is gone; -EUCLEAN: its bytes cannot be trusted; -EROFS: the mount, or the link, is read-only. */
int conflict_keep_mine(struct fs *fs, uint64_t id) MUST_CHECK;
/* Ours is dropped for good. */
int conflict_keep_theirs(struct fs *fs, uint64_t id) MUST_CHECK;
/* Ours becomes a new file. -EEXIST: there is something at new_path; -EROFS as above; -EPERM: the name of a virtual file. */
int conflict_save_as(struct fs *fs, uint64_t id, const char *new_path) MUST_CHECK;
