/* Listing with a limit on the wait. Private to tree_list.c and tree_lookup.c. */
#pragma once
#include "tree.h"

/* As tree_refresh(), but gives up waiting after wait_ns with -EINPROGRESS; the listing goes on. UINT64_MAX: when it got on no more for --op-timeout. */
int tree_refresh_within(struct fs *fs, struct inode *dir, bool force, uint64_t wait_ns) MUST_CHECK;
/* Does the store that the directory's keys are in not answer now? */
bool tree_is_offline(struct fs *fs, struct inode *dir);
/* Is the name of that id one that the listing under way has shown, or that came since it began? */
bool tree_list_shows(struct fs *fs, struct inode *dir, uint64_t id);
/* Is a listing of the directory under way? It may not show what changed since it began. */
bool tree_list_running(struct fs *fs, uint64_t dir);
/*
 * The kernel looks a name up again by itself when it could not be looked up: a program that waited once for all the time there is would wait twice. So who comes right
 * after a failure that took long gets the same one: -ETIMEDOUT, else 0.
 */
int tree_list_worn(struct inode *dir);
/* Such a failure, if it took long. */
void tree_list_note_worn(struct inode *dir);
