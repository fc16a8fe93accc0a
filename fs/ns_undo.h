/*
 * Records in memory follow the database: what a batch says of inodes is true in memory from when the batch is built, so that what is built on it
 * later in the same batch sees it. A batch that is refused must leave no trace of that. Noted inodes stay in memory until then: whoever
 * needs one meanwhile, for the same batch perhaps, would load what it was before.
 *
 *   mutex_lock(&in->mu);
 *   ns_undo_note_locked(in);           before the first change of in->rec
 *   in->rec.nlink++; ...
 *   r = meta_commit(b, false);
 *   publish_apply(fs, r == 0);         or ns_undo_end(), before ns is given back
 */
#pragma once
#include "fs.h"

/* Under ns: in->rec is put back as it is now when the batch that is being built is refused. */
void ns_undo_note_locked(struct inode *in) REQUIRES(in->mu);
void ns_undo_end(struct fs *fs, bool committed) REQUIRES(fs->ns);
