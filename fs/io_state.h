/* What of an inode tells how the kernel does I/O on it (io_mode.h, backing.h). Part of fs.h. */
#pragma once
#include "meta.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

enum io_mode { IO_NONE, IO_CACHED, IO_PASSTHROUGH };
/* A clean file's origin, to be taken up again if a writer leaves it unchanged. */
struct io_kept {
    char *key; /* owned */
    struct etag etag;
    uint64_t limit, gen;
    int64_t ctime_ns; /* attributes set since are to be published */
};
void io_kept_free(struct io_kept *kept); /* NULL allowed */
/* By what a file that the kernel writes is known to be unchanged; mtime_ns 0: by nothing. A write() sets the time before it copies its bytes: one that was under way then shows in sum only. */
struct io_mark {
    uint64_t size;
    int64_t mtime_ns;
    bool beside_writers; /* only where the bytes have this sum, too */
    uint32_t sum;        /* cache_published_sum() */
};
struct io_state {
    /* guarded by inode.mu */
    enum io_mode mode;
    unsigned n_handles, n_writers; /* open in the kernel */
    unsigned n_direct, n_past;     /* those of them by direct I/O, and those of these that write */
    bool kernel_writes;            /* handles or mappings may write past us */
    unsigned n_news;               /* looks that found it written */
    bool direct;                   /* the only handle since then does direct I/O (read_mode.h) */
    bool was_passed;               /* the kernel's page cache may be older than the file at the next open */
    uint64_t seen_size;            /* of the cache file, as of the last look */
    int64_t seen_mtime_ns;
    struct io_kept *kept; /* owned: what was put away for a writer who has written nothing yet */
    /* guarded by fs.io_mu */
    int backing_id;         /* 0 none */
    uint64_t backing_vid;   /* local file it stands for */
    GList idle;             /* place in fs.io_idle while no handle uses the id; data NULL: not in it */
    struct sess_file *slot; /* NULL: the kernel keeps nothing of it */
};
