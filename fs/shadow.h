/*
 * --shadow SUFFIX: object `a` beside a directory `a` is shown as `aSUFFIX`, for reading.
 *
 * The name's inode reads from the object, which is not the one at the name's own path: so it is never written, renamed, linked or removed here (-EPERM), and goes with the listing
 * that does not show directory or object any more. An object that has the name `aSUFFIX` itself wins: the other one stays hidden, and is counted, as without the option.
 */
#pragma once
#include "nameset.h"
#include "tree_apply.h"

/* What a finished listing of a directory has of objects beside directories. */
struct shadow_listing {
    uint64_t dir;
    const char *prefix;
    uint64_t stamp;
    GHashTable *objects;  /* name -> struct list_row, see struct tree_shown */
    struct nameset *seen; /* all that was shown, with had_names or not; gets the names that are shown instead */
};

/* Is a name with that suffix perhaps one of these? */
bool shadow_is_name(struct fs *fs, const char *name);
/* The file that the directory of the row takes the place of, as a row, if the same listing (seen) showed it; NULL. Owned by the caller. */
struct list_row *shadow_replaced(struct fs *fs, uint64_t dir, const struct list_row *row, const struct nameset *seen)
    REQUIRES(fs->ns);
/* Shows them, or counts. Before names that were not seen are dropped. -EAGAIN: the directory was moved; *ret_changed: names came or went. */
int shadow_show(struct fs *fs, const struct shadow_listing *l, bool *ret_changed) MUST_CHECK;
/* -EPERM: it is such a file. */
int shadow_check_change(struct inode *in);
