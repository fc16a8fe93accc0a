/*
 * Opens for reading, and their releases, that are answered from memory: of a whole, clean file that the kernel has had before and keeps (its backing id is idle, its
 * cache file rests), or has open. Nothing is asked of disk or database and nothing is waited for, so whoever reads requests from the kernel does it in passing (fuse_loop.c).
 *
 * They do what content_open() and io_mode_enter(), io_mode_leave() and content_release() do, all in one hold of the inode's lock while nobody has the content gate.
 * False: nothing was done, and it is for those.
 *
 * What keeps the evictor, a tier that fails, an unlink or a change from a file on its way out of or into rest: the cache file is awake before the id is taken into use, and the id is idle before the
 * cache file rests. So whoever ends the rest of a cache file finds the id idle and has it closed (io_mode_dropped()), and whoever takes an id has a cache file that is not dropped.
 */
#pragma once
#include "fs.h"

bool kept_open(struct inode *in, struct fuse_file_info *fi) MUST_CHECK;
bool kept_release(struct inode *in) MUST_CHECK;
