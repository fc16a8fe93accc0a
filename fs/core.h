/* Building and taking down struct fs without the FUSE part (the daemon adds that; tests use it as it is). */
#pragma once
#include "fs.h"

struct fs_setup {
    const struct config *cfg;
    struct session *session;                  /* NULL: memory of its own, which nobody takes over */
    int memory_fd;                            /* cache_memory_fd() of the worker before; 0: none */
    const char *resume;                       /* objstore_resume() of the worker before, for a takeover; may be NULL */
    void (*say)(void *ctx, const char *line); /* is told what takes time; may be NULL */
    void *ctx;
};
/* Opens store, cache folder, database, cache, publisher and jobs; recovers what the last run left, or takes over what the worker before it had open. No requests are served and
 * nothing is published yet. cfg and session are borrowed until fs_close(). On failure *ret_msg is a line for the user (owned by the caller). */
int fs_open(const struct fs_setup *setup, struct fs **ret, char **ret_msg) MUST_CHECK;
/* Starts publishing, and tells the kernel, by fs->se, what is not used any more. */
int fs_start(struct fs *fs) MUST_CHECK;
/* Makes everything that waits for the store or for others return soon. Any thread, more than once. */
void fs_interrupt(struct fs *fs);
/* Stops threads, writes what is to be kept, frees. NULL allowed. */
void fs_close(struct fs *fs);
