/*
 * The end of inodes without a name: record and content go once nobody can use them, which is when memory does not hold the inode and the kernel does not know it.
 *
 * Lookups of what this worker made known to the kernel are counted (inode.c). What a worker before made known is not: that one may also have read the FORGET and have died
 * before it was carried out. Nobody but the kernel knows then, so it is asked, by a thread of its own.
 */
#pragma once
#include "fs.h"

/* Neither kernel nor memory knows it any more. */
void reap_inode(struct fs *fs, uint64_t ino);
/* The same of one that was kept because it had been replaced, if nobody uses it. */
void reap_settled(struct fs *fs, uint64_t ino);
/* The same if the kernel says so; else it stays awaited. */
void reap_if_forgotten(struct fs *fs, uint64_t ino);
/* Asks for all that are awaited: once the kernel's connection is there, and when nothing that was sent again can name them any more. */
void reap_awaited(struct fs *fs);

/* ---- inode.c ---- */

/*
 * Awaited are inodes without a name that the kernel may know from a worker before: what is not in memory from the takeover on, all others when they leave memory. That ends with a
 * FORGET, or with the kernel's word that it does not know the inode; if memory got hold of it meanwhile it begins again when it leaves.
 */
void inode_await_forget(struct fs *fs, uint64_t ino);
bool inode_is_awaited(struct fs *fs, uint64_t ino);
/* The kernel does not know it. True: it is to be reaped. */
bool inode_end_await(struct fs *fs, uint64_t ino);
/* uint64_t each. Owned. */
GArray *inode_list_awaited(struct fs *fs);
