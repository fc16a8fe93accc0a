/*
 * Lost disks (cache_disks.h): further disks of this cache that its database does not know, as a lost one did. Whoever opens the database, a mount or fsck, takes over those that are there, before
 * anything looks at files; what lies unpublished on them is then brought back as from the first folder (rebuild.h). One that is not there stays lost, and is named each time, until it is there.
 */
#pragma once
#include "meta.h"

#include <glib.h>

struct adopt {
    struct meta *m;           /* NULL: there is no database, with dry only */
    const char *first;        /* cache folder; its instance lock is held */
    const char *const *given; /* further folders of --cache-dir, NULL */
    bool dry;                 /* nothing is changed */
    /* One lost disk. why: what keeps it from being taken over, with the next step; NULL: nothing, and unless dry it was. */
    void (*tell)(void *ctx, const char *path, const char *why);
    void *ctx;
    GArray *taken; /* uint32_t, numbers of those that were taken over */
};

void adopt_init(struct adopt *a);
void adopt_fini(struct adopt *a);
/* A disk of --cache-dir that cannot be taken over, but for one that is not there, is an error. *ret_msg: line for the user. */
int adopt_disks(struct adopt *a, char **ret_msg) MUST_CHECK;
/* What is on the disks that were taken over is in the database: they are lost no more. */
int adopt_end(const struct adopt *a) MUST_CHECK;
