/*
 * Private to cache/: the places that local files live in.
 *
 * A tier is a folder on a disk, the memory file system, or "nowhere". The first disk also holds database, lock and journal. A further disk carries a file
 * `tier` with the database's uuid and the number that records know it by, so that it is recognised under any path and in any order; a folder without it is a new
 * disk. The memory tier is a tmpfs that nobody else can see: it goes with the process, whatever ends it, unless it was handed to the next one (memory_fd). Files that no tier takes (all disks
 * bypassed) are opened nowhere: nothing can be kept of them, so they are read past the cache and cannot be written.
 *
 * Placement: a new local file goes to the disk that is filled to the smallest share of its limit, among those that may keep it whole and have room for it. Clean files go to memory when they were
 * pinned there and there is room beside other pins, or while there is room without dropping anything, up to 1/8 of it each. Dirty data never goes to memory.
 */
#pragma once
#include "cache_internal.h"

enum tier_kind { TIER_DISK, TIER_MEMORY, TIER_NOWHERE };
enum tier_state { TIER_OK, TIER_BYPASSED, TIER_MISSING };

#define TIER_NUMBER_FIRST   0u
#define TIER_NUMBER_MEMORY  0x10000u /* of records whose file goes with the process */
#define TIER_NUMBER_NOWHERE 0x10001u

#define TIER_VALUE_PATH "cache/tier/" /* number -> path of a further disk when it was last seen */

#define TIER_ID_FILE "tier"
/* The id that a further disk's folder carries: uuid of the database, owned, and number. -ENOENT: none; -EEXIST: it makes no sense. */
int tier_read(const char *dir, char **ret_uuid, uint32_t *ret_number) MUST_CHECK;
/* The number, -EEXIST: of another database than uuid. */
int tier_read_id(const char *dir, const char *uuid, uint32_t *ret_number) MUST_CHECK;
/* Writes it, durably (cache_disks.c). */
int tier_write(const char *dir, const char *uuid, uint32_t number) MUST_CHECK;
/* The database knows, durably, where the disk of that number is. */
int tier_note_path(struct meta *m, uint32_t number, const char *dir) MUST_CHECK;

#define TIER_FOLDERS 256u /* data/00 ... data/ff */

enum tier_leases {
    LEASES_UNTRIED, /* or they could not be */
    LEASES_NONE,
    LEASES_THERE,
};

struct cache_tier {
    /* immutable after tiers_open */
    struct cache *c;
    enum tier_kind kind;
    uint32_t number; /* in records */
    char *dir;       /* owned; what it is called */
    int dir_fd;      /* -1: missing, nowhere */
    int lock_fd;     /* of a further disk */
    uint64_t limit_bytes, free_limit_bytes;
    uint64_t whole_bytes; /* larger files are never kept whole */
    bool large_pages;     /* tier_large_page() */
    /* atomic */
    int leases;              /* enum tier_leases */
    int state;               /* enum tier_state */
    int bad;                 /* -errno of an operation that failed, until it was looked at */
    int probe_bad;           /* -errno of the last probe */
    bool doubted;            /* no disk could take its place when an operation failed: the next probe tells */
    uint64_t probe_since_ns; /* start of the probe in progress, 0 none */
    uint64_t good_since_ns;  /* first of the good probes in a row, 0: the last one failed */
    unsigned n_good;         /* of them */
    unsigned n_away;         /* grows before it is noted that the tier is away */
    bool asked, lost;        /* bypassed: whether all was written was asked, and was not */
    /* owned by the prober */
    pthread_t prober;
    bool prober_running;
    int probe_fd;
    /* guarded by space.mu */
    struct cond kick; /* the evictor has work */
    struct policy policy;
    uint64_t used_bytes, dirty_bytes, pinned_bytes, kept_bytes;
    uint64_t reserved_bytes; /* promised to writes and fetches in progress */
    uint64_t waiting_bytes;  /* asked for by those that wait */
    unsigned waiting_writers;
    uint64_t waiting_write_bytes;       /* theirs, of waiting_bytes */
    uint64_t pins_yield_until_ns;       /* to them */
    uint64_t stuck_since_ns, stuck_gen; /* they wait, and freed_gen is the same, since then; 0: not looked at yet */
    uint64_t fs_free_bytes;             /* statvfs, as of the last look */
    uint64_t fs_free_files; /* so many more can be made, as of then; UINT64_MAX: the file system sets no limit */
    uint64_t keep_files;    /* of them are left: the database and others need some */
    uint64_t freed_gen;     /* grows whenever room was made */
    uint64_t gave_up_gen;   /* grows whenever the evictor found nothing to drop */
    bool sweep;             /* the evictor looks for files that are not its any more */
    bool failed;            /* it was bypassed for an I/O error, and not looked through since */
    int evictor_tid;        /* 0: it has not begun */
    uint8_t unsynced[TIER_FOLDERS]; /* something was removed there, which may not be on the disk */
    /* owned by the evictor */
    uint64_t next_tick_ns; /* of its looks once a second */
    /* owned by who starts and stops */
    pthread_t evictor;
    bool evictor_running;
};

/* Opens all disks of the configuration and the memory tier. *ret_msg: line for the user on failure. */
int tiers_open(struct cache *c, char **ret_msg) MUST_CHECK;
GPtrArray *tiers_new(void);
/* The tier that records call number; NULL when it is not there. */
struct cache_tier *tier_by_number(struct cache *c, uint32_t number);
/* The same for one that is not there but holds unpublished bytes: MISSING, under the path it was last seen at. */
struct cache_tier *tier_missing(struct cache *c, uint32_t number);

/* The outcome of an operation on the tier's files: an I/O error takes it out of use, the last disk only if a probe fails too. No lock held. */
void tier_note_io(struct cache_tier *t, ssize_t r);
/* Tests: -EIO when the tier is to fail, waits while it is to hang. And whether its fault begins with these words. */
int tier_fault(struct cache_tier *t);
bool tier_fault_is(const struct cache_tier *t, const char *what);
/* Whether a lease on one of its files tells that nobody can write it (cache_pass.c). Tries one, again if it could not. */
bool tier_has_leases(struct cache_tier *t);
/* Probes of the disks, and who draws the conclusions (cache_health.c). */
int health_start(struct cache *c) MUST_CHECK;
void health_stop(struct cache *c); /* half-started allowed */
/* In the database: files of the tier may be elsewhere before it is used again. failed: and what was not synced may be gone; that stays until tier_note_whole(). */
int tier_note_away(struct cache *c, uint32_t number, bool failed) MUST_CHECK;
int tier_note_whole(struct cache_tier *t) MUST_CHECK; /* all was written */
/* Removes data files that are not the tier's any more, saves what doubt_tier() did to those that are, then forgets that it was away, unless it is again. False: some are in use, to be looked at again. */
bool tier_sweep(struct cache_tier *t);

enum tier_want { TIER_WANT_DISK, TIER_WANT_ANY, TIER_WANT_MEMORY };
/* Where a new local file of size bytes goes; "nowhere" when no disk is to be used. */
struct cache_tier *tier_choose(struct cache *c, uint64_t size, enum tier_want want);

static inline enum tier_state tier_state(const struct cache_tier *t)
{
    return (enum tier_state)__atomic_load_n(&t->state, __ATOMIC_ACQUIRE);
}
static inline struct cache_tier *entry_tier(const struct cache_entry *e)
{
    return __atomic_load_n(&e->tier, __ATOMIC_ACQUIRE);
}
static inline struct cache_tier *cfile_tier(const struct cfile *cf)
{
    return entry_tier(cf->entry);
}

/* Opens or makes the data file of vid. -ENOENT: not there; -EIO: the tier is missing. */
int tier_data_open(struct cache_tier *t, uint64_t vid, int flags) MUST_CHECK;
/* Bytes at off are about to be written, TIER_LARGE_PAGE of them: in the memory tier they get one page, if the system has such (reads of it cost a third less). off: a multiple. */
#define TIER_LARGE_PAGE (2u << 20)
void tier_large_page(const struct cache_tier *t, int fd, off_t off);
/* Removes it; none there is fine. On a tier that is not to be used it stays, to be swept when the tier is back. */
int tier_data_unlink(struct cache_tier *t, uint64_t vid) MUST_CHECK;
