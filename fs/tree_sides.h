/* Renames from, to and across what a local-only rule keeps here (local.h). */
#pragma once
#include "fs.h"

/* Does the name have to leave the store for its new path? What others put where a rule keeps files does, too: no journal record would move it there. */
bool tree_leaves_store(struct fs *fs, const struct meta_dentry *d, const char *old_key, const char *new_key);
/* May src go to p2/n2, and with exchange dst to where src is? A file may come, with content that was brought here, or go; all below a directory may only go; neither without its other
 * names. -EXDEV: no. */
int tree_check_sides(struct fs *fs, const struct meta_dentry *src, uint64_t p2, const char *n2,
                     const struct meta_dentry *exchanged) REQUIRES(fs->ns);
