/*
 * Where objects that are named by URL are shown: below the source of a mount, or of one of its links.
 *
 *   char *path = warm_sources_find(&ws, "s3://bucket/key", NULL);
 *
 * Mounts and links are asked for when the first URL is looked up, and not again. Single-threaded.
 */
#pragma once
#include "tools/ctl_client.h"

struct warm_sources {
    GPtrArray *all; /* owned, of struct warm_source: the mounts' own and their links'; NULL: not asked for yet */
    char *silent;   /* owned: a mount whose links are not known, its daemon was not reached; NULL: none */
};

void warm_sources_clear(struct warm_sources *ws);
/* The path that shows the object, by the source that is the longest part of url. mount: the only one to look at, and always the same; NULL: all. NULL: none shows it. Owned by the caller. */
char *warm_sources_find(struct warm_sources *ws, const char *url, const struct mount_point *mount);
