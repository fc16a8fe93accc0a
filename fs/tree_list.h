/* Listing with a limit on the wait. Private to tree_list.c and tree_lookup.c. */
#pragma once
#include "tree.h"

/* As tree_refresh(), but gives up waiting after wait_ns with -EINPROGRESS; the listing goes on. */
int tree_refresh_within(struct fs *fs, struct inode *dir, bool force, uint64_t wait_ns) MUST_CHECK;
