/* What a start has to set right before it serves: files that were open, removed while open, or written in a boot that ended badly. */
#pragma once
#include "fs.h"

/* Needs meta and cache; before publish_open(). At a takeover only what does not depend on what is open, which attach.h sees to. */
int fs_recover(struct fs *fs) MUST_CHECK;

/* For a start, before the publisher reads the journal: a closed file's names get the record that they lack, as after a snapshot that was published before the end and used it up. err: 0, or why they are parked. */
int recover_journal_names(struct fs *fs, struct meta_batch *b, uint64_t ino, int err) MUST_CHECK;
/* The same for one name of it. */
int recover_journal_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, int err) MUST_CHECK;
/* The machine went down, and nobody had told the disk to keep its bytes. */
bool recover_lost_with_power(const struct meta_inode *rec);

/* Calls fn for the inodes that are unfinished: content OPEN or CLOSING; without a name. */
int recover_open_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t ino)) MUST_CHECK;
int recover_orphan_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t ino)) MUST_CHECK;

/* Is there a file at or below path ("" = all) that was open when a daemon or connection ended, and that nobody has closed since (content_is_unclosed())?
 * ret_path (may be NULL) gets its path, owned. */
bool recover_find_unclosed(struct fs *fs, const char *path, char **ret_path);
