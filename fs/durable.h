/*
 * Closed files that are only here: their bytes are brought to the disk, and their records say so (INODE_DATA_SYNCED), whatever keeps them from the store: a rule, a held name, the order, an outage. A
 * start after a power loss would quarantine them else.
 *
 * A thread takes each file some seconds after its seal, so that a power loss takes only what was written just before. What was published by then, or synced by its
 * upload, costs it a look at the record. An orderly stop does not wait for it: durable_all() brings what is left to the disk at once, so that no reboot loses anything.
 */
#pragma once
#include "fs.h"

#define DURABLE_DELAY_NS (10 * NS_PER_S)

void durable_init(struct fs *fs);
int durable_start(struct fs *fs) MUST_CHECK;
void durable_stop(struct fs *fs); /* before the inodes go; what is noted from now on is left to the next start */
void durable_fini(struct fs *fs);
/* Instead of DURABLE_DELAY_NS; those that wait do so for no longer. */
void durable_set_delay(struct fs *fs, uint64_t delay_ns);

/* Its content is SEALED, and perhaps not on the disk. NAMESPACE and INODE may be held. */
void durable_note(struct fs *fs, uint64_t ino);

/* Its bytes now; the journal is the caller's to sync. */
int durable_sync(struct inode *in) MUST_CHECK;

/* What is left to do. */
struct durable_left {
    uint64_t files, bytes;
};
/* Called about 4 times a second, no lock held. Not 0: enough. */
typedef int durable_tick_fn(void *ctx, const struct durable_left *left);
/*
 * All closed files now, several at a time; ended: the mount is gone, so those that somebody had open too, which are kept as they are. The journal is the caller's to sync.
 * -ECANCELED when tick (may be NULL) had enough; else the first error, after all others were tried.
 */
int durable_all(struct fs *fs, bool ended, durable_tick_fn *tick, void *ctx) MUST_CHECK;
