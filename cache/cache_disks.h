/*
 * DIR/disks of the first folder: which further disks there are, for when the database is lost, which knows them as well (cache/tier/N). Text, a line for each:
 *
 *     UUID[,UUID...] NUMBER PATH
 *
 * Each disk carries an id (DIR/tier): the uuid of its database and its number. It is one of these UUIDs, whatever was broken off: a uuid stands here before it is written there, and goes when the
 * disk's unpublished files are in that database. A disk with other UUIDs than the database's is a lost one: that database does not know what it holds. PATH: where it was last seen, with %XX for
 * what is not plain. Lines may be added and removed by hand while nobody uses the cache.
 *
 * For who holds the first folder's instance lock.
 */
#pragma once
#include "base/err.h"
#include "meta.h"

#include <glib.h>

struct cache_disk {
    GPtrArray *uuids; /* of char, the newest last */
    uint32_t number;  /* 0: a line that cannot be read */
    char *path;       /* ... and this is it */
};

/* Array of struct cache_disk, empty if there is no such file: then 1. Owned. */
int cache_disks_load(const char *first, GPtrArray **ret) MUST_CHECK;
/* What the database knows stands in the file from here on, last. */
int cache_disks_save(struct meta *m, const char *first) MUST_CHECK;
/* The same for one disk, before its id and the database say so. */
int cache_disks_note(const char *first, const char *uuid, uint32_t number, const char *path) MUST_CHECK;
/* A number that no disk has; one that was begun at this path and came no further has it already. */
int cache_disks_number(struct meta *m, const char *first, const char *path, uint32_t *ret) MUST_CHECK;

/* Lost disks. m NULL: all are. Array of struct cache_disk, owned. */
int cache_disks_lost(struct meta *m, const char *first, GPtrArray **ret) MUST_CHECK;
/* Where it is: one of the given folders (NULL: none), or its path. NULL: it is not there. Owned. */
char *cache_disk_find(const struct cache_disk *d, const char *const *given);
/* The database knows it from here on, last, and its id says so. Not yet what it holds: whoever has seen to that calls the second. *ret_msg: why it cannot be. */
int cache_disk_adopt(struct meta *m, const char *first, const struct cache_disk *d, const char *dir, char **ret_msg)
    MUST_CHECK;
int cache_disk_adopted(struct meta *m, const char *first, uint32_t number) MUST_CHECK;
