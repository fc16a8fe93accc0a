/* Listings, and waiting for them with a limit. Private to tree*.c, but for what events and links ask. */
#pragma once
#include "tree.h"

/* ---- tree_list.c ---- */

/* How many listings have ended so far. */
uint64_t tree_list_ended(struct fs *fs);
/*
 * Joins or starts the listing of a directory, and waits until it is done, or for wait_ns (UINT64_MAX: as long as it gets on), or until it has other than *pages (NULL: whatever it has), which is noted there.
 * Its result, 1: other pages, -EINPROGRESS or -EINTR. -EALREADY: nothing is started, since more listings than *ended (NULL: any) have ended, perhaps this one, so that the caller should look again.
 */
int tree_list_join(struct fs *fs, uint64_t ino, const uint64_t *ended, uint64_t wait_ns, uint64_t *pages) MUST_CHECK;
/* Starts the listing of a directory, unless that or a few others are under way, or more than `ended` have ended: then it is for the next look to ask again. Waits for nothing. */
void tree_list_behind(struct fs *fs, uint64_t ino, uint64_t ended);
/* The same for a store that is silent, whatever others are listed: as few of its directories. */
void tree_list_seek(struct fs *fs, uint64_t ino, uint64_t point);
/* With list_mu: did a listing of the store of that directory (links_point_of()) end well since then, or get on? */
bool tree_list_heard_locked(struct fs *fs, uint64_t point, uint64_t since_ns);
/* With list_mu: is a listing of the directory under way, for which the store was asked? */
bool tree_list_asks_locked(struct fs *fs, uint64_t ino);
/* Names that the listing under way has shown, or that came since it began, have ids from the one returned on; UINT64_MAX: there is none. They are as of *ret_as_of_ns (wall clock; may be NULL). */
uint64_t tree_list_shows_from(struct fs *fs, struct inode *dir, int64_t *ret_as_of_ns);
/* Is a listing of the directory under way? It may not show what changed since it began. */
bool tree_list_running(struct fs *fs, uint64_t dir);

struct listing;
struct tree_given;
/* A listing of the directory that is under way from now on, and that the caller sees to the end of, by one of the next two; NULL: there is one. */
struct listing *tree_list_claim(struct fs *fs, uint64_t ino);
/* Takes what is given of it; NULL: asks the store. In this thread. */
void tree_list_run(struct listing *l, const struct tree_given *given);
/* Nothing was given of it: it is run behind if somebody waits for it, else never was. */
void tree_list_leave(struct listing *l);

/* ---- tree_fresh.c ---- */

/* Are dir's names all known, and as of less than the metadata TTL ago? */
bool tree_is_fresh(struct fs *fs, struct inode *dir);
/* The metadata TTL of a directory that was listed longer ago than that, but not so long that it has to be waited for at any rate (list_load.h); 0: it was not. */
uint64_t tree_late_ttl(struct fs *fs, struct inode *dir);
/* Was it looked into since it was listed, and will that be out of date soon, or is? */
bool tree_is_due(struct fs *fs, struct inode *dir);
/* As tree_refresh(), but gives up waiting after wait_ns with -EINPROGRESS; the listing goes on. UINT64_MAX: when it got on no more for --op-timeout. */
int tree_refresh_within(struct fs *fs, struct inode *dir, bool force, uint64_t wait_ns) MUST_CHECK;
/* Does the store that the directory's keys are in not answer now? */
bool tree_is_offline(struct fs *fs, struct inode *dir);
/*
 * The kernel looks a name up again by itself when it could not be looked up: a program that waited once for all the time there is would wait twice. So who comes right
 * after a failure that took long gets the same one: -ETIMEDOUT, else 0.
 */
int tree_list_worn(struct inode *dir);
/* Such a failure, if it took long. */
void tree_list_note_worn(struct inode *dir);
