/*
 * Taking over a mount whose worker died: what the session's memory says is open is open again, before the first request is read.
 *
 * Handles that were being released are released. Those that were being opened count as open, because nobody knows whether the kernel was told; the request, if it was
 * not answered, is sent again and then replaces them (attach_replaces()). Where neither that nor any request for the handle comes within 10 s, its opener is
 * taken to be gone, and the file to be closed, until such a request comes after all.
 */
#pragma once
#include "fs.h"

struct handle;

void attach_init(struct fs *fs);
void attach_fini(struct fs *fs);
/* Needs the cache, held (cache.h), and comes before anything that opens or moves cache files. Files that cannot be opened lose their handles. */
int fs_attach(struct fs *fs) MUST_CHECK;
/* Needs the publisher: brings the records of those files up to date, seals what is closed. */
int fs_attach_settle(struct fs *fs) MUST_CHECK;

/* A request that came again is about to be answered: the handle that it made at first goes, another one stands for it or none. */
void attach_replaces(struct fs *fs, uint64_t unique);
/* Whether a worker before had come so far with a request that it made a handle: all that comes before that was done. Until attach_replaces(). */
bool attach_was_opening(struct fs *fs, uint64_t unique);
/* A request for a handle came, so the kernel has it. */
void attach_confirm(struct fs *fs, struct handle *h);
/* Once a second. */
void attach_expire(struct fs *fs);
