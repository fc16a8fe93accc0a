/*
 * What the kernel keeps of a file beyond this process, for io_mode.c: backing ids, by which it knows a registered cache file, and the file's slot in the session's
 * memory (session.h), which tells the next worker of id, mode and writing. A file that is in none of these states has no slot.
 *
 * A file keeps its id after the last release, because to register again costs a system call; the id goes when the inode is forgotten, the cache file
 * is dropped, or IDS_MAX others were used since. An id goes only while no handle uses it: its slot says CLOSING before the kernel is told.
 */
#pragma once
#include "fs.h"

void backing_init(struct fs *fs); /* session known */
void backing_fini(struct fs *fs);

/* The id of the inode's cache file, kept or new; -errno. */
int backing_use(struct inode *in) MUST_CHECK;
/* No handle uses it, and the kernel does not write. */
void backing_unuse(struct inode *in);
/* The slot says what in->io says. */
void backing_save_locked(struct inode *in) REQUIRES(in->mu);
/* Takeover: the slot is the inode's; it goes, with its id, when the kernel can be told. */
void backing_adopt(struct inode *in, struct sess_file *slot);
void backing_leave(struct fs *fs, struct sess_file *slot);
/* Tells it, also of ids that are in no slot. */
void backing_close_left(struct fs *fs);
/* The inode leaves memory. */
void backing_forget(struct inode *in);
/* The cache file of ino is being dropped. */
void backing_drop(struct fs *fs, uint64_t ino);
