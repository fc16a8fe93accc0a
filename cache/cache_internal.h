/*
 * Private to cache/: the structures behind cache.h and the hooks between local files and uploads.
 *
 * Chunk states of one cfile, all under cf->mu:
 *
 *   absent  --claim by a fetch-->  busy  --bytes in the file-->  present (clean)  --write-->  present + dirty
 *      ^                            |                                |
 *      +------- fetch failed -------+          <-- punched, corrupt -+
 *
 * Rules that keep concurrent users of one file apart:
 *  1. Only the owner of a busy chunk writes to it: the fetch it belongs to, or a writer that covers it wholly.
 *  2. Reads and writes of present chunks run inside a `struct cfile_io` on cf->ios; whoever takes presence away
 *     (punch, corrupt chunk) first makes sure that no io overlaps.
 *  3. A fetch writes to the file only between fetch->writing = true and false, both set under mu after it looked at
 *     fetch->cut_bytes; truncate sets cf->resizing, lowers cut_bytes and waits until nobody is writing and no io is left.
 *  4. A chunk at or beyond the source's limit is present by definition: the local file has zeros there.
 *  5. Database order: presence is written to meta after the bytes are in the file, and taken from it before they leave or change.
 *     Only one thread at a time saves a cfile's segments and index record (cf->saving), so that an older state never follows a newer one.
 *
 * Locks: table.mu (CACHE_TABLE) > cf->mu (CACHE_FILE) > fetch.mu (CACHE_FETCH) > health.mu (CACHE_HEALTH) > space.mu (CACHE_SPACE), in this order;
 * none is held over disk, database or store calls.
 */
#pragma once
#include "base/sync.h"
#include "cache.h"
#include "cache_chunks.h"
#include "cache_policy.h"
#include "cache_readahead.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Flags in meta_cached.flags that only the cache knows. */
#define CACHED_SEGMENTS 0x100u  /* presence is in segments; without it everything is present */
#define CACHED_DYING    0x200u  /* being removed: the file is unlinked, then the record */
#define CACHED_SUSPECT  0x400u  /* fetched in an earlier boot, or before its disk failed: verify checksums before use */
#define CACHED_MEMORY   0x1000u /* pinned, and wanted in the memory tier */
#define CACHED_DOUBT    0x8000u /* was being changed in an earlier boot: a dirty bit may be lost */
#define CACHED_FAILED   0x4000u /* a sync failed, or its disk: bytes may be gone that nobody misses */
#define CACHED_WRITTEN  0x2000u /* was changed here: chunks without a checksum */
#define CACHED_GIVEN    0x800u  /* the kernel had the file, a program may have it mapped for ever: no byte of it goes */

/* No checksum finds a loss of power for some of its chunks: what takes them away is synced in the database before they go. */
static inline bool cached_unchecked(uint32_t flags)
{
    return !(flags & CACHED_SEGMENTS) || (flags & CACHED_WRITTEN);
}

#define INTENT_NAME "user.sluice.intent" /* xattr of a data file that holds unpublished bytes */

struct cache_tier;
struct upload;
struct upload_pool;
struct fetch;

/* One local data file, open or not. Owned by space.entries. All but vid and ino guarded by space.mu. */
struct cache_entry {
    uint64_t vid, ino;
    struct cache_tier *tier; /* entry_tier(); changed by who has the vid claimed, or moves the open file */
    uint64_t bytes;          /* on disk */
    uint64_t last_use, use_gap;
    uint32_t flags; /* CACHED_* */
    bool open;      /* a cfile exists */
    bool stale;     /* record differs from the one in meta */
    struct policy_item item;
};

/* Who watches the disks: cache_health.c. */
struct cache_health {
    struct mutex mu; /* CACHE_HEALTH */
    struct cond kick;
    /* guarded by mu */
    bool stop;
    bool news; /* an operation failed */
    /* owned by who starts and stops */
    pthread_t watch;
    bool running;
};

/* What all tiers share; sums, limits and order of eviction are each tier's own (cache_tier.h). */
struct cache_space {
    struct mutex mu;     /* CACHE_SPACE */
    struct cond changed; /* space was freed, dirty data became clean, or an evictor gave up */
    /* guarded by mu */
    GHashTable *entries; /* &entry->vid -> struct cache_entry, owned */
    uint64_t use_clock;  /* grows with each use */
    bool stop, hold;     /* hold: nothing is dropped yet */
};

enum fetch_prio { FETCH_URGENT, FETCH_AHEAD, FETCH_FILL, N_FETCH_PRIOS };

struct cache_fetch {
    struct mutex mu; /* CACHE_FETCH */
    struct cond work;
    /* guarded by mu */
    GQueue queue[N_FETCH_PRIOS]; /* struct fetch, through fetch->link */
    unsigned n_behind;           /* running for nobody who waits */
    bool stop;
    pthread_t *threads;
    unsigned n_threads;
    unsigned n_max;    /* immutable: threads wanted */
    uint64_t progress; /* atomic: grows with bytes that came and fetches that brought all */
};

/* Files that the kernel writes: cache_follow.c. */
struct cache_follow {
    struct mutex mu; /* CACHE_FOLLOW */
    /* guarded by mu */
    GHashTable *files; /* struct cfile (a reference) -> struct followed, owned */
    bool stop;
    uint64_t bytes_per_s; /* growth of all, smoothed */
    /* immutable after start */
    int inotify_fd, wake_fd;
    pthread_t thread;
    bool running;
};

struct cache_table {
    struct mutex mu; /* CACHE_TABLE */
    struct cond changed;
    /* guarded by mu */
    GHashTable *files;   /* &cf->vid -> struct cfile, borrowed */
    GHashTable *busy;    /* vids being opened, closed or evicted: wait for `changed` */
    GHashTable *resting; /* &cf->vid -> struct cfile, owned: cache_rest.c */
    GQueue rest_order;   /* of them, through rest; closed first, first */
};

struct cache {
    /* immutable after cache_open */
    struct cache_config cfg; /* without the folders: the tiers know them */
    bool broken;             /* not wholly opened: the index is not known */
    GPtrArray *tiers;        /* struct cache_tier, owned; [0] is the first disk */
    struct meta *meta;       /* borrowed */
    struct objstore *store;  /* borrowed */
    cache_newer_fn *newer;   /* cache_on_stale(), may be NULL */
    void *newer_ctx;
    const struct cache_delta_ops *delta; /* cache_set_delta(), may be NULL */
    void *delta_ctx;
    unsigned delta_made;         /* atomic: objects that its owner was told of */
    struct mutex upload_records; /* UPLOAD_POOL: records of uploads are compared and removed, or replaced, under it */
    struct upload_pool *uploads; /* owned by the upload code: set by upload_pool_start, cleared by upload_pool_free */

    struct cache_table table;
    struct cache_fetch fetch;
    struct cache_follow follow;
    struct cache_space space;
    struct cache_removed *removed; /* cache_removed.c */
    struct cache_health health;
};

/* A read or write of present chunks in progress; lives on the stack of its thread. */
struct cfile_io {
    uint64_t first, end; /* chunks */
    struct cfile_io *next;
};

struct cfile {
    /* immutable after open */
    struct cache *c;
    uint64_t vid, ino;
    struct cache_entry *entry; /* borrowed: entries of open files are not removed */

    int fd; /* atomic, set under mu; cfile_fd(). For reading: a lease needs that none of ours is open for writing. -1: not opened since it rested */

    unsigned refs;  /* atomic; looked up and dropped under c->table.mu, so 0 is final */
    unsigned own;   /* atomic, dropped under c->table.mu: how many of refs are of cfile_own_ref() */
    bool forgotten; /* guarded by c->table.mu: remove with the last reference */
    GList rest;     /* guarded by c->table.mu: place in table.rest_order */

    struct mutex mu;     /* CACHE_FILE */
    struct cond changed; /* any chunk, io, fetch or resizing state changed */
    /* guarded by mu */
    uint64_t size;
    uint64_t stamp;    /* grows with every change of content */
    unsigned changing; /* changes of content in progress: from before the first byte until uploads have been told */
    char *src_key;     /* owned, NULL: no source */
    struct etag src_etag;
    uint64_t limit;                 /* of the source, <= size; 0 without source */
    uint64_t src_gen;               /* grows when the source is replaced */
    bool all_present;               /* presence is not tracked: everything is here */
    bool dirty_unknown;             /* dirty bits were lost over a restart: take all for dirty */
    bool dirty;                     /* the file's mark */
    bool synced;                    /* since it became dirty, so what is here may count as on the disk */
    uint64_t n_came, n_came_synced; /* chunks that came from the source, and how many of them the last sync was after */
    bool segmented;                 /* presence and dirty bits go to meta segments */
    enum cache_pass pass;           /* the kernel has the file: no chunk may be punched */
    bool as_closed;                 /* no byte changed since it began to rest the last time */
    int wfd;                        /* for writing, opened when needed; -1 none */
    unsigned n_wfd;                 /* users of wfd */
    uint64_t followed;              /* passthrough: size that uploads know of */
    bool preallocated;              /* passthrough: the size says nothing about what was written */
    struct chunkset present, dirty_chunks, busy, verify;
    struct cfile_io *ios;
    GQueue fetches;    /* struct fetch of this file, queued or running */
    uint64_t progress; /* bytes that came for fetches so far; atomic */
    struct {
        uint64_t at_ns, progress;
        int err;                           /* 0: none yet */
    } worn;                                /* the last read that failed late, and progress then */
    uint64_t fill_until_ns, fill_progress; /* cache_file_write_mapped() tries so long, from progress; 0: never yet */
    bool unchecked; /* all of it may be here, but was not compared with the source's ETag (cache_check.c) */
    bool checking;  /* somebody compares */
    unsigned n_bad, cut_bad, n_cuts; /* how often in a row it was other bytes; as it was before a cut; cuts under way */
    char bad_md5[33];                /* and their sum; owned by who checks */
    bool resizing, moving;           /* moving: to another tier (cache_place.h) */
    uint64_t move_gen;               /* grows when its chunks were left behind */
    GQueue arrived;                  /* chunk numbers of a windowed file in order of arrival: what is punched first */
    struct readahead ra;
    struct ra_speed speed;
    struct chunkset unsaved;                              /* segments (not chunks) whose bits differ from meta */
    GArray *unsaved_crcs;                                 /* struct chunk_crc to store with the segments */
    bool limit_unsaved, record_unsaved, saving, in_doubt; /* the last: its disk failed (cache_doubt.c) */
    bool save_sync;                                       /* the next save is to be on the disk */
    uint64_t save_want, save_done;                        /* generations of saves */
    int save_err;                                         /* of the save that ended at save_done */

    struct upload *upload; /* guarded by mu, owned by the upload code */
};

/* ---- hooks that uploads use ---- */

/* Grows with every change of content. */
uint64_t cfile_change_stamp(struct cfile *cf);
/* 1 if any chunk in the range may differ from the source (dirty, or beyond the source's limit), 0 if none. */
int cfile_range_dirty(struct cfile *cf, uint64_t off, uint64_t len);
/* pread of the range after fetching what is absent; no read-ahead, no notion of use. Bytes read (short only at the end) or -errno. */
ssize_t cfile_read_local(struct cfile *cf, void *buf, size_t len, uint64_t off) MUST_CHECK;
/* Copy of the present source; false when there is none. *ret_key is the caller's to g_free. */
bool cfile_source(struct cfile *cf, char **ret_key, struct etag *ret_etag, uint64_t *ret_limit);
/* Whether the file of vid exists here and holds unpublished bytes. */
bool cache_vid_is_dirty(struct cache *c, uint64_t vid);

/* Around every change of content, from before the first byte until after upload_note_write(). */
void cfile_change_begin(struct cfile *cf);
void cfile_change_end(struct cfile *cf);

/* ---- hooks that uploads provide ---- */

/* Content of [off, off+len) changed (len 0: the size); called after the bytes are in the file, no lock held. Cheap without an upload. */
void upload_note_write(struct cfile *cf, uint64_t off, uint64_t len);
/* An open file's content will never be published: what is queued is not sent. No lock held. */
void upload_cfile_forgotten(struct cfile *cf);
/* The last reference is gone, so nothing is in flight: frees cf->upload. No lock held. */
void upload_cfile_free(struct cfile *cf);
/* The content will never be published, or is: an upload recorded for it is aborted behind. No lock held. */
void upload_not_needed(struct cache *c, uint64_t vid);
int upload_pool_start(struct cache *c) MUST_CHECK;
void upload_pool_stop(struct cache *c); /* half-started allowed */
void upload_pool_free(struct cache *c); /* when no thread is left that lets go of files */
