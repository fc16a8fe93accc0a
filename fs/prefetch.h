/*
 * Small files ahead of a reader that opens the files of a directory one after another, in the order of the listing or of its last pass (prefetch_order.h): their
 * siblings are fetched whole in the background, and where they come to an end, the first files of the next directory. Only files that an open would fetch whole (--open-fill), at most PREFETCH_SHARE of the cache waiting to be used, behind
 * everybody who waits for bytes. An open never waits for any of this.
 */
#pragma once
#include "fs.h"

#define PREFETCH_SHARE 16u

int prefetch_open(struct fs *fs) MUST_CHECK;
/* Before the inode table goes. NULL allowed as fs->prefetch. */
void prefetch_close(struct fs *fs);

/* A reader opens the file; its bytes are not waited for yet. Cheap. */
void prefetch_note(struct inode *in, struct cfile *cf);
