/* copy_file_range inside the store: large objects, or what a file still shares with one, are copied without coming here. */
#pragma once
#include "fs.h"

/*
 * Copies up to len bytes at off of `from` to the same place of `to`, which is open for writing, changed (content_begin_change) and ends there. Bytes
 * copied: the store holds them when this returns. 0: not possible here, the caller copies them itself. May block on the store.
 *
 * Possible when `from` is a clean file of more than two parts, all of which is one object, that nothing of ours is about to change, and `to` was empty at the
 * start and got all it holds from there. The kernel must not write `to` by itself: it would find no bytes there, and we would not learn of its own.
 */
int64_t copy_in_store(struct inode *from, struct inode *to, uint64_t off, uint64_t len);

/*
 * Programs that copy open the source, then make the destination at once (cp, shutil). copy_note_open() remembers what a thread opened for reading;
 * copy_is_likely() says whether a file which that thread makes now is likely to be a copy that copy_in_store() could make, and so is not to be given to the kernel.
 * Wrong guesses cost speed only.
 */
void copy_note_open(struct inode *from, int tid);
bool copy_is_likely(struct fs *fs, int tid);
