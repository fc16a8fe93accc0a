/*
 * Requests that are asked twice are carried out once.
 *
 * What a worker took from the kernel and did not answer before it died is sent again to the next one. Most requests may be made twice with the same outcome; one
 * that makes, removes or renames something may not: it would find its own work and say EEXIST or ENOENT. Such a request adds a record of itself to the batch of the
 * change, so that both are there or neither; asked again it is answered from the record.
 *
 * A record is kept by worker and thread: a thread takes no request before it has answered the last, so its next record may take the place. Those of a worker before
 * go when all that was sent again is answered, those of a mount before at the start.
 */
#pragma once
#include "fs.h"

void replay_init(struct fs *fs);
void replay_fini(struct fs *fs);
/* Reads what workers before left. Before the first request. */
int fs_replay_open(struct fs *fs) MUST_CHECK;
/* The request that this thread serves is done when the batch is committed; ino: what it made, 0 nothing. By others than requests: nothing. */
void replay_note(struct fs *fs, struct meta_batch *b, uint64_t ino);
/* Whether the request that this thread serves was carried out, and what it made. */
bool replay_find(struct fs *fs, uint64_t *ret_ino);
/* Whether a request of a worker before made this inode, and may come again. */
bool replay_made(struct fs *fs, uint64_t ino);
/* Once a second: removes records that nobody will ask for. */
void replay_expire(struct fs *fs);
