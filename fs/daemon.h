/* The worker: builds everything bottom-up, serves one mount, tears down in reverse. */
#pragma once
#include "config.h"

/* Serves the mount that cfg describes until it is unmounted or told to stop, for the supervisor at the other end of the channel, which holds the session's memory
 * (session.h). What fails is told there too. Returns 0 after a clean unmount, else -errno with a line for the user in *ret_msg (owned by the caller). */
struct worker_fds {               /* borrowed */
    int channel, session, memory; /* memory tier of the worker before, -1: none */
};
int fs_work(const struct config *cfg, const struct worker_fds *fds, char **ret_msg) MUST_CHECK;

/* Checks a cache folder that no daemon uses: database against files; repair rebuilds intents of dirty files from their xattrs. Findings go to out, one a line,
 * and so does the name of each file and change that is not in the store yet.
 * Returns the number of findings left, or -errno with a message. */
int fs_fsck(const char *cache_dir, bool repair, FILE *out, char **ret_msg) MUST_CHECK;
