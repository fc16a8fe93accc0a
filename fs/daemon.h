/* The worker: builds everything bottom-up, serves one mount, tears down in reverse. */
#pragma once
#include "config.h"

/* Serves the mount that cfg describes until it is unmounted or told to stop, for the supervisor at the other end of the channel, which holds the session's memory
 * (session.h). What fails is told there too. Returns 0 after a clean unmount, else -errno with a line for the user in *ret_msg (owned by the caller). */
struct worker_fds {               /* borrowed */
    int channel, session, memory; /* memory tier of the worker before, -1: none */
};
int fs_work(const struct config *cfg, const struct worker_fds *fds, char **ret_msg) MUST_CHECK;

struct fs;
/* What is wrong with its web server that somebody should mend (http_trouble()), NULL: nothing. Owned by the caller; any thread. */
char *daemon_http_trouble(const struct fs *fs);
