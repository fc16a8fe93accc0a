/* Building and taking down struct fs without the FUSE part (the daemon adds that; tests use it as it is). */
#pragma once
#include "fs.h"

/* Opens store, cache folder, database, cache, publisher and jobs for cfg; recovers what the last run left. No requests are served and nothing is published yet.
 * On failure *ret_msg is a line for the user (owned by the caller). say (may be NULL) is told what takes time. */
int fs_open(const struct config *cfg, void (*say)(void *ctx, const char *line), void *ctx, struct fs **ret,
            char **ret_msg) MUST_CHECK;
/* Starts publishing. */
int fs_start(struct fs *fs) MUST_CHECK;
/* Makes everything that waits for the store or for others return soon. Any thread, more than once. */
void fs_interrupt(struct fs *fs);
/* Stops threads, writes what is to be kept, frees. NULL allowed. */
void fs_close(struct fs *fs);
