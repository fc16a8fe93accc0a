/*
 * Private to cache/: fetches of absent chunks. A fetch owns its chunks (busy) from fetch_start_locked() until they are present or it ended.
 * While it is only queued, chunks may be carved out of it again.
 */
#pragma once
#include "cache_internal.h"

/* Bytes of a GET between the network and the file: cache_arrive.c. Owned by the worker. */
struct arrival {
    uint8_t *buf;      /* owned; NULL outside a transfer */
    size_t room, len;  /* of buf; bytes in it */
    uint64_t next;     /* offset of the byte that comes next */
    uint64_t since_ns; /* when the first byte in buf came */
    uint64_t first_ns; /* when the first byte of all came; 0: none did */
    uint32_t crc;      /* of the chunk that the next byte to be written belongs to, so far */
};

struct fetch {
    /* immutable */
    struct cfile *cf;     /* holds a reference while queued or running */
    GList link;           /* in the queue; guarded by fetch.mu */
    enum fetch_prio prio; /* immutable */
    int behind;           /* atomic: nobody waits for it, nor did */
    unsigned n_waiting;   /* atomic: reads and writes that wait for a chunk of it now; changed under cf->mu */
    /* guarded by cf->mu */
    GList cf_link;
    unsigned refs;
    uint64_t first, end; /* chunks */
    uint64_t limit;      /* of the source, when it began */
    uint64_t cut_bytes;  /* bytes from here on are not wanted */
    uint64_t done_bytes; /* in the file up to here */
    uint64_t src_gen, move_gen;
    bool running, writing, finished;
    bool local_failure; /* the disk or the space, not the store */
    int err;
    struct arrival arrival; /* owned by the worker */
};

/* ---- arrival ---- */

/* For the len bytes from off of one GET, len > 0. arrival_end() also after a failure. */
int arrival_begin(struct arrival *a, uint64_t off, uint64_t len) MUST_CHECK;
void arrival_end(struct arrival *a);
/* Sink of objstore_get; ctx is the fetch. */
int fetch_on_body(void *ctx, uint64_t off, const void *buf, size_t len) MUST_CHECK;
/* Writes what came and is not in the file yet: at the end of the GET, also of one that failed. 0 or -errno; -ECANCELED: the rest is not wanted. */
int fetch_flush(struct fetch *f) MUST_CHECK;

/* ---- queue ---- */

int fetch_pool_start(struct cache *c) MUST_CHECK;
/* Drops what is queued, waits for what runs. */
void fetch_pool_stop(struct cache *c);

/* Queues fetches of every absent chunk in [first, end) that nobody owns, in pieces of get_bytes, read-ahead in as many as there are downloads. Returns chunks queued. */
uint64_t fetch_start_locked(struct cfile *cf, uint64_t first, uint64_t end, enum fetch_prio prio);
/* The same, also for chunks that are queued with a lower priority. */
uint64_t fetch_want_locked(struct cfile *cf, uint64_t first, uint64_t end, enum fetch_prio prio);
/* The fetch that owns chunk, NULL if none. */
struct fetch *fetch_find_locked(struct cfile *cf, uint64_t chunk);
/* Takes chunks back from fetches that have not begun. */
void fetch_carve_locked(struct cfile *cf, uint64_t first, uint64_t end);
/* Chunks from `first` on are no more wanted: carves queued fetches, shortens running ones. No running one may be writing. */
void fetch_cut_locked(struct cfile *cf, uint64_t first);
/* Whether any writes to the local file now. */
bool fetch_writing_locked(const struct cfile *cf);
void fetch_unref_locked(struct fetch *f);

/*
 * Waits until `chunk` is readable, fetching it (and what else is absent of [chunk, end)) if nobody does. cf->mu is released while waiting.
 * 0: readable now, or something changed: look again. -errno of the fetch; *ret_local: the local disk or space failed, the store may still be read directly.
 */
int fetch_wait_locked(struct cfile *cf, uint64_t chunk, uint64_t end, enum fetch_prio prio, bool *ret_local)
    REQUIRES(cf->mu);
/* Straight from the store into buf, nothing is kept. Failed because the source was replaced meanwhile: cf->src_gen grew, look again. */
int fetch_direct(struct cfile *cf, void *buf, size_t len, uint64_t off) MUST_CHECK;
