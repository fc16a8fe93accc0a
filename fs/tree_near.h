/* Directories that are listed again together with the one that is asked for. Private to tree*.c. */
#pragma once
#include "tree.h"

struct listing;

/* Lists dir, and directories behind it in its parent that are out of date too, by one request, and runs l, which is dir's. False: that was not to be had, l is to be run. */
bool tree_near_list(struct fs *fs, struct inode *dir, struct listing *l) MUST_CHECK;
