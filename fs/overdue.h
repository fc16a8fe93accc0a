/*
 * The alarm over closed files that do not get into the store: as long as they are not there, the cache disk holds the only copy. One that has waited for
 * --overdue is named in the log, once an hour, and by `sluice status`.
 */
#pragma once
#include "fs.h"

struct overdue {
    int64_t age_s;  /* since the close, or a rename after it; 0: no file has waited for so long */
    char *path;     /* owned; of the one that waits longest */
    uint32_t state; /* of its journal record, enum op_state */
    int err;        /* what the last try came to, 0 */
};
/* What is open for writing, in the store already but for its name or attributes, or quarantined does not count. */
void overdue_find(struct fs *fs, struct overdue *ret);
void overdue_clear(struct overdue *o);
/* Has the log say it when it is time to. For the thread that looks at mapped files, which calls it every second. */
void overdue_watch(struct fs *fs);
