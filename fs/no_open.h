/*
 * Files without OPEN (--immutable): the kernel is told that it may open by itself, and then sends neither OPEN, FLUSH nor RELEASE, keeps pages and listings, and reads by
 * inode. So the cache files read lately are held open here, at most NO_OPEN_FILES of them and a quarter of the cache; the least lately read is let go first.
 * Nobody knows whether a file is still open: one that was let go or evicted is opened, and fetched, again by the next READ.
 */
#pragma once
#include "fs.h"

void no_open_init(struct fs *fs);
/* Lets go of everything; no request is left. */
void no_open_fini(struct fs *fs);

/* Whether the mount works so: asked for, and the kernel can do it. */
bool no_open_files(struct fs *fs);
bool no_open_dirs(struct fs *fs);

/* As cache_file_read(); a small file is fetched whole at its first read. -ESTALE: there is no such file any more. */
ssize_t no_open_read(struct fs *fs, uint64_t ino, void *buf, size_t len, uint64_t off) MUST_CHECK;
/* Lets go of one file, unless it is being read. */
void no_open_drop(struct fs *fs, uint64_t ino);
