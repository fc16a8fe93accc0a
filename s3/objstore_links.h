/*
 * Several stores as one: a root store, and other stores for the keys below some directories of it ("links").
 *
 * A key `dir/x` below the directory of a link is the key `x` of that link's store; every other key is the root's. What the root holds below a
 * link's directory is hidden. Listings of the directories above show the link's directory, whatever the root holds; those without
 * delimiter show it as an empty object `dir/` and nothing of what it holds. Copies from one store to another: -EXDEV. The directories
 * themselves (`dir/`) are no objects: they are not found, and cannot be written (-EINVAL).
 *
 * The set changes at any time: calls under way end on the store they began with, which is closed after the last of them. Any thread.
 */
#pragma once
#include "objstore.h"

/* root, which is taken over, may be NULL: then there are only links, and other keys are not there and cannot be written (-EROFS); source and
 * identity are then those two. */
struct objstore *objstore_links_wrap(struct objstore *root, const char *source, const char *identity);
/* dir "a/b". store is taken over, also on failure; NULL: it cannot be reached, calls give -EIO. -EEXIST: dir is that of a link, or above or below it. */
int objstore_links_add(struct objstore *st, const char *dir, struct objstore *store) MUST_CHECK;
/* Another store for a link, as above. -ENOENT: no such link. */
int objstore_links_replace(struct objstore *st, const char *dir, struct objstore *store) MUST_CHECK;
int objstore_links_remove(struct objstore *st, const char *dir);

struct objstore_link_health {
    bool open;        /* it has a store */
    int err;          /* of the last call that told something of the store, 0: it answered */
    int64_t since_ns; /* wall clock: since when it does not, 0 */
};
/* -ENOENT: no such link. */
int objstore_links_health(struct objstore *st, const char *dir, struct objstore_link_health *ret) MUST_CHECK;
/* objstore_check() of one link. -EIO: it has no store. */
int objstore_links_check(struct objstore *st, const char *dir, char **ret_msg);
