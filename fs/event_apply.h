/*
 * What an event makes of a name. The event itself is believed only in this: that somebody may have changed what stands at the key. The store is asked (a HEAD, or for
 * a directory a LIST of one key) and what it says goes the way of a row of a listing (tree_apply.h): new names appear, changed ones get a new inode, those that are
 * gone go, and what is local and not published wins. So forged, repeated and late events cost a request at most, or what
 * --on-create means is fetched though it is old.
 * Nothing is asked where the answer is known: the object has the etag that the name has (our own publishes, above all), and where nobody has looked: names of directories that were
 * never listed are found when they are, or when --on-create fetches what was made there, which asks for the path as anybody does.
 */
#pragma once
#include "fs.h"

enum event_result {
    EVENT_KNOWN,   /* the name is of this very object, or it is ours to publish or remove */
    EVENT_UNSEEN,  /* nobody has looked into that directory yet; what --on-create wants of it is fetched behind */
    EVENT_NOTHING, /* the store does not have what the event told of, or has what we have; or the key can be no name */
    EVENT_APPLIED, /* names changed; the kernel is told */
    EVENT_BUSY,    /* we are changing that very name upstream: ask again */
};

/* Looks at the name of a key (path in the mount; a directory's ends in '/'). etag: of the object as the event tells, may be empty. created: it may be there, else it was removed.
 * -errno: the store did not say. Asks the store; no lock may be held. */
int event_look(struct fs *fs, const char *key, const struct etag *etag, bool created) MUST_CHECK;

/* Has the directory of the key listed again before its names are believed again, or the nearest one above it that is known. False: it is being listed now, ask again. */
bool event_doubt_dir(struct fs *fs, const char *key);
