/*
 * What the kernel keeps of a file beyond this process, for io_mode.c: backing ids, by which it knows a registered cache file, and the file's slot in the session's
 * memory (session.h), which tells the next worker of id, mode and writing. A file that is in none of these states has no slot.
 *
 * A file keeps its id after the last release, because to register again costs a system call; the id goes when the inode is forgotten, the cache file
 * is dropped, or as many others as --backing-ids allows were used since. An id goes only while no handle uses it: its slot says CLOSING before the kernel is told.
 */
#pragma once
#include "fs.h"

void backing_init(struct fs *fs); /* session known */
void backing_fini(struct fs *fs);

/* The id of the inode's cache file, kept or new; -errno. */
int backing_use(struct inode *in) MUST_CHECK;
/* Whether the kernel keeps the cache file vid, which no handle uses: what it holds is not looked at again. */
bool backing_is_kept(struct inode *in, uint64_t vid);
/* The kept id is in use from now on, and the slot says what in->io says. 0: it went meanwhile. */
int backing_take_kept_locked(struct inode *in, uint64_t vid) REQUIRES(in->mu) MUST_CHECK;
/* The id that handles of the cache file vid use; 0: none, or it stands for another one. */
int backing_in_use_locked(struct inode *in, uint64_t vid) REQUIRES(in->mu) MUST_CHECK;
/* backing_unuse() and backing_save_locked() in one. */
void backing_keep_locked(struct inode *in) REQUIRES(in->mu);
/* No handle uses it, and the kernel does not write. */
void backing_unuse(struct inode *in);
/* The slot says what in->io says. */
void backing_save_locked(struct inode *in) REQUIRES(in->mu);
/* What was sealed last is about to change in other ways than by growing, as its slot tells from here on: in->rewriters. */
void backing_rewrite_locked(struct inode *in) REQUIRES(in->mu);
/* Takeover: the slot is the inode's; it goes, with its id, when the kernel can be told. Until then it says what it said: this worker
 * may fail to start, and one that fares better with the file come after it. */
void backing_adopt(struct inode *in, struct sess_file *slot);
void backing_leave(struct fs *fs, struct sess_file *slot);
/* The kernel can be told: finds out whether it takes files at all, before anybody asks; tells it what was left, also of ids that are in no slot. */
void backing_start(struct fs *fs);
/* The inode leaves memory. When the whole of it is being taken down its slot stays, with its id: only the end of the connection ends what programs have. */
void backing_forget(struct inode *in);
/* The cache file of ino is being dropped. */
void backing_drop(struct fs *fs, uint64_t ino);
