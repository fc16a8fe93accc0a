/*
 * The local copy: one sparse file per content version under CACHE_DIR/data, what of it is present, what is dirty, space and eviction, fetching from and publishing to the object store.
 *
 * A cfile is one cache file in memory: reference counted, shared by all users of the same vid. Its local file's size is always the logical size. Bytes are in chunks of META_CHUNK_BYTES: absent (to be fetched from the source object), present, or dirty (changed here).
 * Presence survives restarts (meta segments); a chunk becomes present in the database only after its bytes are in the file.
 *
 * Callers (fs) own names, inodes and states; the cache knows vids and store keys. Calls block on disk and store unless they say otherwise; none may be made with a ranked lock held. Errors: those of objstore.h for fetches, -ENOSPC, -EIO of the local disk.
 */
#pragma once
#include "base/err.h"
#include "meta.h"
#include "objstore.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cache;
struct cfile;

struct cache_config {
    const char *dir;              /* the first disk, prepared */
    const char *const *more_dirs; /* NULL-terminated further disks, or NULL; prepared here */
    uint64_t memory_bytes;        /* of the memory tier; 0: none */
    int memory_fd;                /* the one of a process before, with its files; 0: a new one */
    uint64_t size_bytes;          /* limit of each disk; 0: size_percent of its file system */
    unsigned size_percent;
    uint64_t free_bytes; /* stop at this little free space; 0: free_percent */
    unsigned free_percent;
    unsigned max_downloads, max_uploads; /* parallel requests */
    uint64_t part_bytes;                 /* first part size of multipart uploads; doubles every 1,000 parts */
    uint64_t get_bytes;                  /* one ranged GET of a sequential reader, 8 MiB */
    uint64_t readahead_bytes;            /* ceiling of the read-ahead window */
    uint64_t op_timeout_ns;
    /* None of these is called with a lock held; all may be NULL. Asked before content is dropped to make room; false: it counts as unpublished from now on. */
    bool (*may_drop)(void *ctx, uint64_t ino, uint64_t vid);
    bool (*synced)(void *ctx, uint64_t ino, uint64_t vid); /* all that is unpublished of it was brought to the disk */
    /* dropped: the local file of ino is about to be removed: whatever keeps its bytes on the disk is to be let go. wrong: bytes that were read of it were, and are here no more. */
    void (*dropped)(void *ctx, uint64_t ino), (*wrong)(void *ctx, uint64_t ino);
    void *dropped_ctx; /* also of may_drop, synced */
    /* The disk at path is not used any more, and holds the unpublished bytes of ino. */
    void (*lost)(void *ctx, uint64_t ino, const char *path);
    void *lost_ctx;
    /* A disk silent for slow_ns is bypassed, if there is another one, and used again when it answered for probation_ns (0: 5 s, 60 s); probed every probe_ns (0: 1 s). */
    uint64_t slow_ns, probation_ns, probe_ns;
    bool hold; /* nothing is dropped before cache_release_hold(): the kernel may have files that nobody opened yet */
    bool disk_faults; /* tests: a disk fails while its file `fault` says "eio", hangs while it says "hang" */
};

/* Checks DIR (made 0700 if missing; refused when group or others have access, or not ours), takes its instance lock (-EBUSY with a message when another daemon has it). Call
 * before meta_open on the same folder. *ret_msg: line for the user on failure. */
int cache_dir_prepare(const char *dir, int *ret_lock_fd, char **ret_msg) MUST_CHECK;

/* Of several cache folders the one with the database, or the symlink that leads to it, comes first, in whatever order they are given; if none has it, the one that is bound to a store. -EEXIST with a message when there are two. */
int cache_dirs_sort(char **dirs, char **ret_msg) MUST_CHECK;

/* Starts the threads. Loads the index; no scan of the folders. A further disk that cannot be used is gone on without when it was part of this cache before. *ret_msg: as above. */
int cache_open(const struct cache_config *cfg, struct meta *m, struct objstore *st, struct cache **ret_cache,
               char **ret_msg) MUST_CHECK;
void cache_release_hold(struct cache *c);
/* The memory tier, which lives as long as somebody has this open: for memory_fd of the next process. Borrowed, -1: there is none. */
int cache_memory_fd(struct cache *c);
/* Ends waits for room with -ECANCELED, now and from now on: a stop does not wait for dirty data to be published. No room is made any more. */
void cache_interrupt(struct cache *c);
/* Quiet: may_drop, synced, dropped and lost are called no more; what else the cache does goes on. Close: stops threads, writes the index; all cfiles must have been released. NULL allowed. */
void cache_quiet(struct cache *c), cache_close(struct cache *c);

/* ---- files ---- */

/* Never dropped; PIN_MEMORY: and in the memory tier as long as it is clean and there is room beside other pins. */
enum cache_pin { PIN_NONE, PIN_DISK, PIN_MEMORY };

/* Where absent chunks come from. */
struct cache_source {
    const char *key;    /* NULL: no source, everything is local */
    struct etag etag;   /* fetched with If-Match: a changed object gives -ESTALE */
    uint64_t limit;     /* only bytes [0, limit) of the object count; beyond it absent chunks read as zeros */
    enum cache_pin pin; /* how a local file that has to be made is kept */
};

/* A new empty file with no source. *ret holds one reference. */
int cache_file_new(struct cache *c, uint64_t ino, struct cfile **ret) MUST_CHECK;
/* The cfile of vid, 0 for "make one": opened, or made sparse and wholly absent when the local file is not there and src->key is set.
 * size is the logical size a new local file gets (an existing one keeps its own). -ENODATA: the local file is gone and there is no source (dirty data lost). */
int cache_file_open(struct cache *c, uint64_t vid, uint64_t ino, uint64_t size, const struct cache_source *src,
                    struct cfile **ret) MUST_CHECK;
/*
 * For files that the kernel keeps between two opens; from memory, so ranked locks may be held. reopen: the cfile of vid with one reference, given to the kernel for reading as it was before it was
 * closed: if it is in memory still, not in the memory tier, nobody has it open, and it is whole, clean, of that size and source, and recorded so; else NULL, and it is to be opened. Its local file is
 * not looked at. rest: takes it back from the kernel and lets go of the caller's reference; false, and nothing is done, if others have one or there is something to save. */
struct cfile *cache_file_reopen(struct cache *c, uint64_t vid, uint64_t size, const struct cache_source *src);
bool cache_file_rest(struct cfile *cf) MUST_CHECK;
struct cfile *cache_file_ref(struct cfile *cf);
void cache_file_unref(struct cfile *cf); /* NULL allowed */
uint64_t cache_file_vid(const struct cfile *cf);
/* Borrowed descriptor of the local file, open for reading; -errno: it was not opened yet (cache_file_reopen()), and cannot be. */
int cache_file_fd(struct cfile *cf);
/* The source after a rename carried out upstream, or after publishing (key = the published object); NULL key = none, -EINVAL unless all of the file is here. Of a
 * dirty file it is made from what is here, and what lay beyond the old limit belongs to it; chunks that the source did not give before lose their checksums: they have been synced. */
int cache_file_set_source(struct cfile *cf, const struct cache_source *src) MUST_CHECK;
/* Absent bytes are fetched from another object from now on, made from this file, perhaps changed since. The limit stays. Nothing without a source. */
void cache_file_rebase(struct cfile *cf, const char *key, const struct etag *etag);
/* Asked, no lock held and before readers are told, when key has another etag than expected, or is gone: 0 and that if it is made from this file and cache_file_rebase() was not told. Set before bytes are read. */
typedef int cache_newer_fn(void *ctx, uint64_t vid, uint64_t ino, const char *key, struct etag *ret_etag);
void cache_on_stale(struct cache *c, cache_newer_fn *fn, void *ctx);

/* Reads up to len bytes at off, fetching what is absent (parallel ranged GETs, one per range however many readers); short only at the end of file. Sequential readers get read-ahead. Interrupted never; fails after op_timeout without progress (-ETIMEDOUT). */
ssize_t cache_file_read(struct cfile *cf, void *buf, size_t len, uint64_t off) MUST_CHECK;
/* Writes all of buf (chunks only partly overwritten are fetched first). Held back while the cache is full of dirty data, -ENOSPC after op_timeout. Marks chunks dirty. */
ssize_t cache_file_write(struct cfile *cf, const void *buf, size_t len, uint64_t off) MUST_CHECK;
/* The same of what a program changed by a map: who writes that out tries nothing again, and takes a short count for all. So a store that fails is asked for the rest of a chunk for op_timeout, in which nothing of the file comes. An error may come after bytes were written. */
ssize_t cache_file_write_mapped(struct cfile *cf, const void *buf, size_t len, uint64_t off) MUST_CHECK;
/* Sets the size; what lies beyond a smaller size is gone, also from the source (its limit shrinks). */
int cache_file_truncate(struct cfile *cf, uint64_t size) MUST_CHECK;
/* Around marks and the cut of a file to nothing: wrong bytes that came are no matter, as none of them is left; ok: or they are again, since it could not be cut. */
void cache_file_cut_begin(struct cfile *cf);
void cache_file_cut_end(struct cfile *cf, bool ok);
/* mode as fallocate(2): 0, KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE[|KEEP_SIZE]; else -EOPNOTSUPP. */
int cache_file_fallocate(struct cfile *cf, int mode, uint64_t off, uint64_t len) MUST_CHECK;
/* SEEK_DATA or SEEK_HOLE; while incomplete everything before the end is data. -ENXIO past the end. */
int64_t cache_file_seek(struct cfile *cf, uint64_t off, int whence);
/* fdatasync of the local file. After a failure the file is suspect: every later sync fails with -EIO, after a restart too, until it is made empty. */
int cache_file_sync(struct cfile *cf) MUST_CHECK;
/* Begins it by pieces, with rests until *hurry (atomic) is set: half of the disk's time is left to others. cache_file_sync() follows and tells what failed. */
void cache_file_write_out(struct cfile *cf, const int *hurry);
uint64_t cache_file_size(struct cfile *cf);
bool cache_file_has_source(struct cfile *cf);
uint64_t cache_file_limit(struct cfile *cf); /* the source's, to be stored in the inode */
uint64_t cache_file_present_bytes(struct cfile *cf);
bool cache_file_complete(struct cfile *cf);
/* Fetches all that is absent. urgent: before read-ahead and other fills. wait false: returns at once and goes on behind. progress (may be NULL; only with wait) is called with bytes newly present. 0 with wait: all of it is here. -EFBIG: the file is larger than half of the cache and is not kept whole; -ENOSPC: others take its chunks away as fast as they come. */
int cache_file_fill(struct cfile *cf, bool urgent, bool wait, void (*progress)(void *ctx, uint64_t bytes), void *ctx)
    MUST_CHECK;
/* The same with wait for what is absent of [off, off + len), in whole chunks; what a file's last bytes bring with them is checked by cache_file_fill(). */
int cache_file_fill_range(struct cfile *cf, uint64_t off, uint64_t len, void (*progress)(void *ctx, uint64_t bytes),
                          void *ctx) MUST_CHECK;
void cache_file_prefetch(struct cfile *cf, uint64_t off, uint64_t len); /* [off, off+len) behind, no wait */

/* Dirty files are never evicted; pinned ones only, when nothing else can go, for a write that would fail. New files begin dirty, opened ones as they were marked. Marks survive restarts. Marking clean clears dirty chunk bits. */
int cache_file_set_dirty(struct cfile *cf, bool dirty) MUST_CHECK; /* -EAGAIN: wrong bytes came, fill it first */
bool cache_file_is_dirty(struct cfile *cf);
/* All of it is in the object src: that gives what is absent from now on, the intent goes, the file is clean, an upload that was left of it is aborted behind. */
int cache_file_set_published(struct cfile *cf, const struct cache_source *src) MUST_CHECK;
int cache_pin(struct cache *c, uint64_t vid, enum cache_pin pin);
/* Writers that found no room took that of pinned files a moment ago: what is pinned is not to be fetched just now. Or wait for long, and there is nothing that could make any. */
bool cache_pins_yield(struct cache *c), cache_write_is_stuck(struct cache *c);
/* What a file that is marked dirty takes on its disk; 0: none is marked so. From memory. */
uint64_t cache_dirty_bytes_of(struct cache *c, uint64_t vid);
/* Text kept in the local file's user.sluice.intent xattr, so that dirty data is found again without the database. NULL removes it. */
int cache_file_set_intent(struct cfile *cf, const char *text) MUST_CHECK;
void cache_file_touch(struct cfile *cf); /* a reader or writer came: the eviction order's notion of use; cheap */

/* Calls fn for every file that is marked dirty, also of disks that are not there, by inode. Non-zero from fn stops and is returned. */
int cache_dirty_each(struct cache *c, int (*fn)(void *ctx, uint64_t vid, uint64_t ino), void *ctx) MUST_CHECK;
/* Drops the local copy now: -EBUSY if dirty, pinned or in use. */
int cache_evict(struct cache *c, uint64_t vid) MUST_CHECK;
/* Were bytes of the file written here, so that no checksum tells when a power loss took them? What takes such a file away is on the disk before it goes. False of one that is not known. */
bool cache_is_unchecked(struct cache *c, uint64_t vid);
/* The content is of no use any more (unlinked, superseded): removed when the last reference goes, dirty or not. */
void cache_forget(struct cache *c, uint64_t vid);
/* The same if it is not there, or empty. Before others use the cache. */
void cache_forget_empty(struct cache *c, uint64_t vid);

/* ---- passthrough: the kernel reads or writes the local file itself ---- */

enum cache_pass { CACHE_PASS_OFF, CACHE_PASS_READ, CACHE_PASS_WRITE };
/*
 * Given to the kernel, or taken back. Only complete files are given (else -EAGAIN); from then on no chunk of the local file is ever punched. WRITE needs a file without
 * source: its size is asked of the file, its growth is followed and streamed (cache_stream_begin), every part is compared again by whoever publishes. The end of
 * WRITE counts as a change of content. */
int cache_file_set_passthrough(struct cfile *cf, enum cache_pass pass) MUST_CHECK;
/* Whether the local file is in the memory tier: while the kernel has it there, changes get -ETXTBSY. */
bool cache_file_in_memory(struct cfile *cf);
bool cache_file_has_writers(struct cfile *cf);   /* a writable mapping included, of a file given for writing */
bool cache_file_shows_writers(struct cfile *cf); /* by the above; false: it is not to be given for writing */
/* Whether a writer whom nobody holds back may be let loose: room for expect_bytes, or for a minute at the present rate, beyond all limits. */
bool cache_file_has_room(struct cfile *cf, uint64_t expect_bytes);
bool cache_file_can_come(struct cfile *cf, uint64_t bytes); /* is there room for it, once clean files are dropped? */

struct cache_usage {
    uint64_t limit_bytes, used_bytes, dirty_bytes, pinned_bytes, free_bytes; /* of all tiers; free: of the disks */
    uint64_t kept_bytes;                                                     /* dirty or pinned */
    uint64_t files;
};
void cache_usage(struct cache *c, struct cache_usage *ret); /* from memory, never blocks on disk or store */

/* One place of local files: a disk, or memory. */
struct cache_tier_info {
    const char *path;  /* "memory": the memory tier */
    const char *state; /* "ok", "bypassed", "missing" */
    uint64_t limit_bytes, used_bytes, dirty_bytes;
    bool in_memory, leases; /* without them files are not given for writing */
};
void cache_tiers_each(struct cache *c, void (*fn)(void *ctx, const struct cache_tier_info *info), void *ctx);
/* Unpublished files whose disk is bypassed or missing. At most max are told. */
void cache_lost_each(struct cache *c, unsigned max, void (*fn)(void *ctx, uint64_t ino, const char *path), void *ctx);

/* ---- publishing ---- */

/*
 * Begins to upload parts of a file that is being written, behind its write front, to `key`: the multipart upload is created once the file is longer than
 * two parts, so small files cost nothing. Parts that are written again later are noticed and sent again. The key is a prediction: publishing under another one
 * aborts the upload (counted) and sends from the local file. No effect if one is already going or the file has a source. meta and its token are fixed now.
 */
void cache_stream_begin(struct cfile *cf, const char *key, const struct obj_meta *meta);
/* Aborts what cache_stream_begin began (file removed, or its name will not be published). */
void cache_stream_abort(struct cfile *cf);

/*
 * A copy made inside the store. begin: cf, which is empty and has no source, gets src, and an upload to `key`, a prediction as above. extend: cf, which holds
 * only what came from src so far and ends at off, grows by the bytes [off, off+len) of src; `last` says that the object ends there. What was added is held by the
 * upload when the call returns, and absent here. Bytes added, which may be fewer than asked for, or -errno, and then none; -EOPNOTSUPP: not at this place, not
 * with this store. Nobody may write to cf meanwhile.
 */
int cache_copy_begin(struct cfile *cf, const struct cache_source *src, const char *key, const struct obj_meta *meta)
    MUST_CHECK;
int64_t cache_copy_extend(struct cfile *cf, uint64_t off, uint64_t len, bool last) MUST_CHECK;
/* Whether cf holds nothing but the first `size` bytes of the object, so that extend may go on there. */
bool cache_copy_continues(struct cfile *cf, const struct cache_source *src, uint64_t size);

struct publish_req {
    const char *key;
    struct obj_meta meta; /* token set by the caller */
    size_t version_len;   /* bytes of the token that name the version, the rest says who made it; 0: all */
    struct obj_cond cond; /* what must hold at key */
    bool snapshot;        /* writers may still be active: repeat until one state of the file has been stored */
    GBytes *sums;        /* borrowed, may be NULL: what was sealed (cache_sums.h); -EUCLEAN: the file has other bytes */
    bool copy_unchanged; /* parts without dirty chunks may be copied in the store from the file's source */
    /* Called when all is stored and only the visible step is left (PUT of a small file, Complete). May block. 0: go; anything else is returned and nothing becomes visible; stored parts are kept for the next try. last_look: the same of a small file, whose bytes are read after the gate, once they are; it does not block. */
    int (*gate)(void *ctx), (*last_look)(void *ctx);  /* the second may be NULL */
    void (*progress)(void *ctx, uint64_t bytes_done); /* may be NULL */
    void *ctx;
};
struct publish_result {
    struct etag etag;
    uint64_t size;
    uint32_t sum;              /* of what was sent: cache_published_sum() of those bytes; 0: not known */
    char token[TOKEN_MAX + 1]; /* the one the object carries (a streamed upload keeps the token it began with) */
    struct posix_attr posix;   /* as the object carries them: the same holds for these */
};
/*
 * Makes the object `key` hold the file's present content and verifies it (checksums or etag of what was sent, then HEAD: size, etag, token).
 * Uploads parts in parallel (shared pool of max_uploads), resumes a multipart upload known from an earlier run after comparing checksums. -EAGAIN: the file changed meanwhile (not snapshot); -ESTALE: cond did not hold; -EBADMSG: the store holds other bytes than were sent; -ENODATA: absent bytes were to come from an object at another key that is gone or changed. The file must not be unreferenced meanwhile; several publishes of one cfile must not run at the same time.
 */
int cache_publish(struct cfile *cf, const struct publish_req *req, struct publish_result *ret) MUST_CHECK;
/* Bytes of this file that are stored in the upload now running, 0 when none. */
uint64_t cache_uploaded_bytes(struct cfile *cf);
/* Multipart uploads of ours that no cache file needs any more are aborted, behind: no wait for the store (called once after start). */
void cache_abort_stale_uploads(struct cache *c);
