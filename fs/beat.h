/* The worker's sign of life for its supervisor, which ends a worker that shows none for too long (supervise.h). */
#pragma once
#include "fs.h"

struct beat;

/* A thread writes the time into the session's memory every second, each time after it got what every request needs: the locks that all share, and the database. */
int beat_start(struct fs *fs, struct beat **ret) MUST_CHECK;
void beat_stop(struct beat *b); /* NULL allowed */
/* Said with each step by who has a lock of all for as long as a tree is large: it works, and another worker would have to begin anew. */
void beat_works(struct fs *fs);
