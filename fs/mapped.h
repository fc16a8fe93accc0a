/*
 * Files that no handle writes any more but a shared writable mapping of the cache file may: a mapping outlives its close, and its stores are told to nobody.
 * They stay CLOSING, block nothing, and are looked at once a second; when the last mapping is gone they are sealed. Until then a snapshot is
 * published every 5 minutes.
 *
 * Files that a close left CLOSING while another descriptor is open are looked at too: once the kernel has written on, they are OPEN again and block nothing; nor do they after 10 s.
 * And so are those that were closed, which others wait for, and then changed before they were published: after 10 s a snapshot is published, if what was closed is all still there.
 */
#pragma once
#include "fs.h"

void mapped_init(struct fs *fs);
int mapped_start(struct fs *fs) MUST_CHECK;
void mapped_stop(struct fs *fs); /* what is still watched stays CLOSING: the next start seals it */
void mapped_fini(struct fs *fs);
/* With the content gate held; no effect if it is watched. */
int mapped_add(struct inode *in) MUST_CHECK;
/* A close was flushed, or what was closed and is not published yet is changed: somebody has it open. */
void mapped_flushed(struct inode *in);
/* It is closed for good, with the content gate: from here on a removal of it waits for no look. */
void mapped_sealed(struct inode *in);
/* A close was flushed, with the content gate: one that blocked nothing any more may be closed for good now. */
void mapped_closed(struct inode *in);
unsigned mapped_count(struct fs *fs);
