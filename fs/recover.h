/* What a start has to set right before it serves: files that were open, removed while open, or written in a boot that ended badly. */
#pragma once
#include "fs.h"

/* Needs meta and cache; before publish_open(). At a takeover only what does not depend on what is open, which attach.h sees to. */
int fs_recover(struct fs *fs) MUST_CHECK;

/* Calls fn for the inodes that are unfinished: content OPEN or CLOSING; without a name. */
int recover_open_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t ino)) MUST_CHECK;
int recover_orphan_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t ino)) MUST_CHECK;

/* Is there a file at or below path ("" = all) that was open when a daemon or connection ended, and that nobody has closed since (content_is_unclosed())?
 * ret_path (may be NULL) gets its path, owned. */
bool recover_find_unclosed(struct fs *fs, const char *path, char **ret_path);
