/* Where in the mount a key of a bucket is: below its own prefix, below the directories of bucket links, at several places or nowhere. */
#pragma once
#include "fs.h"

struct event_places;

/* As links are now. Freed by the caller; no lock is kept. Any thread; LINKS is taken. */
struct event_places *event_places_new(struct fs *fs);
void event_places_free(struct event_places *p); /* NULL allowed */

typedef void event_place_fn(void *ctx, const char *path);
/*
 * Calls fn with each path of the mount that the key (with its prefix, any bytes) stands for: one in the mount's own bucket unless a link hides it, and one below each link whose bucket
 * and prefix fit. Endpoints are not told apart, as events do not name them. vague: the key is a directory ("a/", "" all) below which something is, perhaps above a prefix; the path may be
 * "" then. False: none. Any thread; LINKS is taken.
 */
bool event_places_each(const struct event_places *p, const char *bucket, const char *key, bool vague,
                       event_place_fn *fn, void *ctx);
