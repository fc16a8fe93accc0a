/* Open files and directories. The kernel's fh is an index into the table, never a pointer. */
#pragma once
#include "fs.h"

struct handle {
    /* immutable after handle_new */
    struct inode *in; /* owned reference; NULL for virtual files */
    bool writable;
    int opener_tid;
    unsigned news; /* io_mode_news() at the open */
    /* atomic */
    atomic_bool wrote; /* a WRITE since open */
    atomic_bool fresh; /* made or truncated by this open */
    /* directories, owned by the request that reads (the kernel serialises them per handle) */
    uint64_t id_limit; /* names made after the scan began are not shown: a scan that makes names ends */
    /* virtual files */
    char *text;
};

void handle_table_init(struct fs *fs);
void handle_table_fini(struct fs *fs);
/* Takes over the reference to in. Returns the fh. */
uint64_t handle_new(struct fs *fs, struct inode *in, struct handle **ret);
/* NULL for an fh that is not open. Valid until handle_free of it, which the kernel sends last. */
struct handle *handle_get(struct fs *fs, uint64_t fh);
void handle_free(struct fs *fs, uint64_t fh);
