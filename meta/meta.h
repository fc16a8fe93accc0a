/*
 * What is known: inodes, names, the journal of unfinished work, upload progress, presence of cached chunks, options. RocksDB
 * behind one header. meta_key.c is the only encoder of keys and values, FORMAT.md their description.
 *
 * Reads see every committed batch. Writes go into a batch; meta_commit() applies it atomically. A batch that returned from commit survives kill -9; with sync it
 * survives power loss too. Callers serialise read-modify-write of a record themselves (fs holds NAMESPACE or the INODE lock). All functions may be called from any
 * thread; commit(sync=true) and meta_sync() wait for the disk: no ranked lock may be held.
 *
 * Strings in returned records are owned by the record: release with the record's _clear().
 * Missing records: -ENOENT. Undecodable: -EBADMSG (logged with the key). Database failure: -EIO (-ENOSPC: disk full), and meta_failed() stays true;
 * after a commit or sync that failed every later one fails too, until the next start.
 */
#pragma once
#include "base/err.h"
#include "types.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Format of the whole database: raised when an older program could misread it. */
#define META_FORMAT 1u

#define META_ROOT_INO 1ull
#define META_ASIDE_INO                                                                                                 \
    0ull /* no directory: parent of the names of losers, which are no names of the tree (fs/conflict.h) */

struct meta;
struct meta_batch;

/* Creates or opens DIR/meta, a folder or a symlink to one. identity binds the folder to its link: another one is refused with -EEXIST and a message; a second process with -EBUSY.
 * WAL recovery tolerates a torn tail and refuses corruption (-EBADMSG). *ret_msg: a line for the user on failure (owned by caller). *ret_fresh: the database was made new. */
int meta_open(const char *dir, const char *identity, struct meta **ret_meta, bool *ret_fresh, char **ret_msg)
    MUST_CHECK;
/* Keeps back disk space in DIR/reserve (where DIR/meta is a symlink: in TARGET.reserve) until it is closed, out of which commits go on when the disk is full: 2 % of the file system, at least 256 MiB, at most
 * 1 GiB, an eighth of it, and `most` bytes. Made when there is room, now or with a later commit. Before other threads commit. */
void meta_keep_space(struct meta *m, uint64_t most);
void meta_close(struct meta *m);                                 /* NULL allowed; flushes the WAL */
int meta_sync(struct meta *m) MUST_CHECK;                        /* everything committed so far survives power loss */
uint64_t meta_written(const struct meta *m);                     /* batches committed so far */
int meta_sync_from(struct meta *m, uint64_t written) MUST_CHECK; /* meta_sync() unless those survive already */
bool meta_failed(const struct meta *m);
bool meta_is_stuck(const struct meta *m); /* the disk refused a write or a read for one: this process writes no more */
/* If it is: by a read, which meta_try_disk() does not try and which may fail in each process. */
bool meta_is_stuck_by_read(const struct meta *m);
int meta_try_disk(struct meta *m) MUST_CHECK; /* 0: the disk would take what opening the database writes */
/* 32 hex digits, made when the database was: names this cache in version tokens. */
const char *meta_uuid(const struct meta *m);
/* 8 hex digits of this opening alone, which a copy of the folder does not share. */
const char *meta_opening(const struct meta *m);

/* Unique for ever, never 0, never a value returned before (also across crashes): counters are reserved in blocks of 1024. */
uint64_t meta_next_ino(struct meta *m); /* > META_ROOT_INO; also ids of cache files and of dentries */
uint64_t meta_next_seq(struct meta *m); /* journal order, also "stamp" of changes; monotonic */
uint64_t meta_last_seq(const struct meta *m);
/* From now on numbers are above these (a database rebuilt from what stands beside the data). Call before any thread takes numbers. */
void meta_reserve(struct meta *m, uint64_t ino, uint64_t seq);

struct meta_batch *meta_batch_new(struct meta *m);
void meta_batch_free(struct meta_batch *b); /* NULL allowed; forgets what was not committed */
/* Applies and empties the batch. */
int meta_commit(struct meta_batch *b, bool sync) MUST_CHECK;

/* ---- inodes ---- */

/* Content of a regular file as far as this cache is concerned. */
enum content_state {
    CONTENT_CLEAN,       /* equals the object it came from or was published to */
    CONTENT_OPEN,        /* changed, writer still open */
    CONTENT_CLOSING,     /* changed, a writer's close was journalled, last release not yet seen */
    CONTENT_SEALED,      /* changed, no writer: may be published */
    CONTENT_QUARANTINED, /* changed, but its bytes cannot be trusted (power loss, truncated cache file): never published */
};

enum inode_flag {
    INODE_MODE_KNOWN = 1 << 0,  /* mode, uid, gid were set here or came from metadata: a listing does not reset them */
    INODE_MTIME_KNOWN = 1 << 1, /* mtime was set here or came from metadata */
    INODE_HEADED = 1 << 2,      /* user metadata of this version was seen (HEAD or GET) */
    INODE_DIR_POSIX = 1 << 3,   /* directory: some object in it carries posix metadata, so the others are asked too */
    INODE_DIR_LISTED = 1 << 4,  /* directory: listed completely at listed_ns */
    INODE_DIR_LOCAL = 1 << 5,   /* directory: made here, nothing upstream yet: never listed */
    INODE_PINNED = 1 << 6,
    INODE_MTIME_SET = 1 << 7,  /* mtime was set explicitly (utimens): it goes into object metadata */
    INODE_LOCAL_ONLY = 1 << 8, /* fifo, socket: never upstream */
    INODE_ORPHAN = 1 << 9,     /* nlink 0, kept as long as the kernel knows it (fs/reap.h) */
    INODE_DATA_SYNCED =
        1 << 10, /* fdatasync ran after the last write; of OPEN content: since, writes may have come after it */
    INODE_DIR_HIDDEN = 1 << 11, /* directory: the listing held keys that cannot be shown as names */
    INODE_ARCHIVED = 1 << 12,   /* the listing showed a storage class that has to be restored before it can be read */
    INODE_SET_ASIDE = 1 << 13,  /* some of its names are in META_ASIDE_INO */
    INODE_PIN_MEMORY = 1 << 14, /* pinned, and wanted in the memory tier */
    INODE_OWNER_UNKNOWN = 1 << 15, /* of what INODE_MODE_KNOWN tells only the mode is known */
    INODE_PIN_RULE = 1 << 16,      /* pinned by a rule, which may unpin it; what was pinned by name it may not */
    INODE_NAME_LOST = 1 << 17, /* its last name went by what the store has, not by a program: not changed any more */
    INODE_SHADOW = 1 << 18,    /* its name is DENTRY_SHADOW */
};
#define INODE_PIN_FLAGS ((uint32_t)(INODE_PINNED | INODE_PIN_MEMORY | INODE_PIN_RULE))

struct meta_inode {
    uint64_t ino;
    uint32_t mode, uid, gid, nlink, rdev;
    uint32_t flags; /* enum inode_flag */
    uint64_t size;
    int64_t mtime_ns, ctime_ns;
    /* regular files */
    uint64_t vid;        /* cache file id, 0: none made yet */
    uint64_t gen;        /* content generation: grows with the first change after each seal */
    uint32_t content;    /* enum content_state */
    uint64_t base_limit; /* bytes [0, base_limit) of absent chunks come from the base object */
    char *base_key;      /* owned: where the base object is now; NULL: no base, everything is local */
    struct etag base_etag;
    int64_t dirty_since_ns; /* wall clock of the first unpublished change, 0 if clean */
    char boot_id[40];       /* boot in which the last change was made, "" if clean */
    char *target;           /* of symlinks; owned */
    /* directories */
    uint64_t parent;
    int64_t listed_ns; /* wall clock of the last complete listing */
};
void meta_inode_clear(struct meta_inode *in);
void meta_inode_copy(struct meta_inode *dst, const struct meta_inode *src); /* deep; dst uninitialised */
int meta_inode_get(struct meta *m, uint64_t ino, struct meta_inode *ret) MUST_CHECK;
void meta_inode_put(struct meta_batch *b, const struct meta_inode *in);
/* Removes the record and its xattrs. */
void meta_inode_del(struct meta_batch *b, uint64_t ino);
/* Every inode, ascending; non-zero from fn stops and is returned. The record is fn's only during the call. */
int meta_inode_each(struct meta *m, int (*fn)(void *ctx, const struct meta_inode *in), void *ctx) MUST_CHECK;

/* ---- names ---- */

enum dentry_flag {
    DENTRY_UPSTREAM = 1 << 0,   /* an object for this name exists upstream, at ukey, with uetag */
    DENTRY_DEST_KNOWN = 1 << 1, /* dest_etag says what is at the path's own key when ukey is another ("" = nothing) */
    DENTRY_META_DIRTY = 1 << 2, /* mode, owner or mtime changed since published */
    DENTRY_HIDDEN_OBJ = 1 << 3, /* directory that shadows an object of the same name */
    DENTRY_IMPLICIT = 1 << 4,   /* directory without a marker object */
    DENTRY_ARCHIVED = 1 << 5,   /* INODE_ARCHIVED is set: not in databases of before */
    DENTRY_SHADOW = 1 << 6,     /* shows an object that has the name of a directory (fs/shadow.h), at base_key */
    DENTRY_LINK = 1 << 16,      /* directory of a bucket link (fs/links.h): no object is its own */
};

struct meta_dentry {
    uint64_t parent;
    char *name;  /* owned, any byte but NUL and '/' */
    uint64_t id; /* cookie: readdir order and offset; stable while the name lives */
    uint64_t ino;
    uint32_t type;     /* S_IFMT bits */
    uint32_t flags;    /* enum dentry_flag */
    uint64_t stamp;    /* meta_next_seq() at the last local change: listings begun before it are ignored */
    uint64_t op_seq;   /* journal record that will bring upstream in line, 0: none */
    char *ukey;        /* owned: object's key if not the path's own (rename not yet carried out), else NULL */
    struct etag uetag; /* etag of the object at ukey or path */
    uint64_t usize;
    struct etag dest_etag;     /* see DENTRY_DEST_KNOWN */
    uint64_t pub_vid, pub_gen; /* content version that the object holds, 0: somebody else's */
    char token[TOKEN_MAX + 1]; /* of the published version, or of the last one that was, "" if not ours */
    int64_t umtime_ns;         /* empty objects: Last-Modified in the listing that uetag was checked for, 0: none */
};
void meta_dentry_clear(struct meta_dentry *d);
void meta_dentry_copy(struct meta_dentry *dst, const struct meta_dentry *src); /* deep; dst uninitialised */
int meta_dentry_get(struct meta *m, uint64_t parent, const char *name, struct meta_dentry *ret) MUST_CHECK;
/* Writes the record and both its indexes (by id, by inode). id 0 is given a new one; d->id is updated. */
void meta_dentry_put(struct meta_batch *b, struct meta_dentry *d);
/* Removes record and indexes: parent, name, id and ino must be those stored. */
void meta_dentry_del(struct meta_batch *b, const struct meta_dentry *d);
/* Names of a directory with id > after, ascending id. */
int meta_dentry_each(struct meta *m, uint64_t parent, uint64_t after, int (*fn)(void *ctx, const struct meta_dentry *d),
                     void *ctx) MUST_CHECK;
/* Names of a directory from `from` on, in byte order; non-zero from fn stops and is returned. */
int meta_name_each(struct meta *m, uint64_t parent, const char *from, int (*fn)(void *ctx, const struct meta_dentry *d),
                   void *ctx) MUST_CHECK;
/* Names of an inode (hard links); order not defined. */
int meta_link_each(struct meta *m, uint64_t ino, int (*fn)(void *ctx, const struct meta_dentry *d), void *ctx)
    MUST_CHECK;
/* Copies (struct meta_dentry) of all names of a directory, ascending id, or of an inode; the array owns them. */
int meta_dentry_list(struct meta *m, uint64_t parent, GPtrArray **ret) MUST_CHECK;
int meta_link_list(struct meta *m, uint64_t ino, GPtrArray **ret) MUST_CHECK;
/* An array like theirs, for callers that choose what goes in; meta_dentry_collect() copies one in. */
GPtrArray *meta_dentry_array(void);
void meta_dentry_collect(GPtrArray *a, const struct meta_dentry *d);
/* Any one name of an inode. -ENOENT: it has none. */
int meta_link_first(struct meta *m, uint64_t ino, struct meta_dentry *ret) MUST_CHECK;
/* 1 if the directory has at least one name, 0 if not. */
int meta_dir_has_entries(struct meta *m, uint64_t parent) MUST_CHECK;

/* Reads the records of many inodes and names, each as meta_inode_get() and meta_dentry_get() do. Where each lies close behind the one before it, inodes by number, names by directory and
 * name, and nothing is committed meanwhile, that costs what a scan does. One thread, and not for long: it holds on to the database as of its last read. */
struct meta_near;
struct meta_near *meta_near_new(struct meta *m);
void meta_near_free(struct meta_near *n); /* NULL allowed */
int meta_near_inode(struct meta_near *n, uint64_t ino, struct meta_inode *ret) MUST_CHECK;
int meta_near_dentry(struct meta_near *n, uint64_t parent, const char *name, struct meta_dentry *ret) MUST_CHECK;

/* ---- extended attributes ---- */

int meta_xattr_get(struct meta *m, uint64_t ino, const char *name, GBytes **ret_value) MUST_CHECK;
void meta_xattr_put(struct meta_batch *b, uint64_t ino, const char *name, const void *value, size_t len);
void meta_xattr_del(struct meta_batch *b, uint64_t ino, const char *name);
int meta_xattr_each(struct meta *m, uint64_t ino, int (*fn)(void *ctx, const char *name, size_t value_len), void *ctx)
    MUST_CHECK;

/* ---- journal: work that upstream still needs ---- */

enum op_kind {
    OP_SYNC = 1,   /* make upstream equal to the name (parent, name): content, place, metadata, or directory marker */
    OP_DELETE = 2, /* delete key if it still has etag */
};
enum op_state {
    OPS_QUEUED,
    OPS_HELD,     /* name matches --hold */
    OPS_PARKED,   /* failed for good (err): needs publish --retry or --skip */
    OPS_CONFLICT, /* somebody else's object is there */
};
struct meta_op {
    uint64_t seq; /* order: the later of close and last rename */
    uint32_t kind, state;
    int32_t err;        /* errno that parked it, 0 */
    uint64_t parent;    /* OP_SYNC; OP_DELETE: inode whose bytes are to be here first if it is open, 0 none */
    char *name;         /* owned; OP_SYNC */
    char *key;          /* owned; OP_DELETE */
    struct etag etag;   /* OP_DELETE: what may be deleted, "" = what note/KEY says is ours, or an empty marker */
    int64_t created_ns; /* wall clock */
    uint64_t place;     /* OP_SYNC: where who waits for it sees it; 0: as seq, and only once its content is closed */
    uint64_t wave;      /* OP_SYNC with a place: it waits for what came before this, not before seq; 0: for that */
    uint64_t turn;      /* OP_SYNC with a place: where it stands in its own directory; 0: as wave, or as seq */
    bool unclosed;      /* OP_SYNC with a place: that counts only once its content is closed */
};
void meta_op_clear(struct meta_op *op);
void meta_op_put(struct meta_batch *b, const struct meta_op *op);
void meta_op_del(struct meta_batch *b, uint64_t seq);
int meta_op_get(struct meta *m, uint64_t seq, struct meta_op *ret) MUST_CHECK; /* -ENOENT */
int meta_op_each(struct meta *m, int (*fn)(void *ctx, const struct meta_op *op), void *ctx)
    MUST_CHECK; /* ascending seq */

/* ---- upload progress: multipart uploads of a cache file ---- */

struct meta_upload {
    uint64_t vid;
    char *key;       /* owned */
    char *upload_id; /* owned */
    uint64_t part_bytes;
    uint64_t gen; /* of the content when it was begun */
};
void meta_upload_clear(struct meta_upload *u);
int meta_upload_get(struct meta *m, uint64_t vid, struct meta_upload *ret) MUST_CHECK;
void meta_upload_put(struct meta_batch *b, const struct meta_upload *u);
/* Removes the record and its parts. */
void meta_upload_del(struct meta_batch *b, uint64_t vid);
int meta_upload_each(struct meta *m, int (*fn)(void *ctx, const struct meta_upload *u), void *ctx) MUST_CHECK;
struct meta_part {
    uint64_t vid;
    uint32_t number;
    uint64_t size;
    uint32_t crc32c; /* of the bytes sent */
    struct etag etag;
    uint8_t sha256[32]; /* of its bytes; zeros: not known */
};
void meta_part_put(struct meta_batch *b, const struct meta_part *p);
void meta_part_del(struct meta_batch *b, uint64_t vid, uint32_t number);
int meta_part_each(struct meta *m, uint64_t vid, int (*fn)(void *ctx, const struct meta_part *p), void *ctx) MUST_CHECK;

/* ---- presence of cached chunks ---- */

#define META_CHUNK_BYTES    65536u
#define META_SEGMENT_CHUNKS 4096u /* one segment = 256 MiB of file */
/* One segment of a cache file: which chunks are here, which were changed here, checksum of each clean one. */
struct meta_segment {
    uint8_t present[META_SEGMENT_CHUNKS / 8];
    uint8_t dirty[META_SEGMENT_CHUNKS / 8];
};
int meta_segment_get(struct meta *m, uint64_t vid, uint32_t segment, struct meta_segment *ret) MUST_CHECK;
void meta_segment_put(struct meta_batch *b, uint64_t vid, uint32_t segment, const struct meta_segment *s);
/* CRC32C of one chunk as fetched (chunk number counted in the file). */
int meta_chunk_crc_get(struct meta *m, uint64_t vid, uint64_t chunk, uint32_t *ret_crc) MUST_CHECK;
void meta_chunk_crc_put(struct meta_batch *b, uint64_t vid, uint64_t chunk, uint32_t crc);
void meta_chunk_crc_del(struct meta_batch *b, uint64_t vid, uint64_t chunk);

/* The cache index: one record per cache file. */
struct meta_cached {
    uint64_t vid, ino;
    uint64_t bytes;    /* allocated on disk when last written */
    uint64_t last_use; /* order of use, for eviction */
    uint64_t use_gap;  /* distance between the last two uses, 0: used once */
    uint32_t flags;
    uint32_t tier; /* which of the cache's disks, as numbered by the cache; 0: the first */
};
#define CACHED_COMPLETE 1u /* every chunk is present */
#define CACHED_HOT      2u
#define CACHED_PINNED   4u
#define CACHED_DIRTY    8u
void meta_cached_put(struct meta_batch *b, const struct meta_cached *c);
/* Removes the index record, all segments and checksums of the file. */
void meta_cached_del(struct meta_batch *b, uint64_t vid);
int meta_cached_get(struct meta *m, uint64_t vid, struct meta_cached *ret) MUST_CHECK;
int meta_cached_each(struct meta *m, int (*fn)(void *ctx, const struct meta_cached *c), void *ctx) MUST_CHECK;

/* ---- requests of the kernel that were carried out (fs/replay.h) ---- */

struct meta_reply {
    uint64_t generation, place; /* a record for each pair: of the worker, and of its thread */
    uint64_t unique;            /* the request, as the kernel numbers it */
    uint64_t ino;               /* what it made, 0: nothing */
};
void meta_reply_put(struct meta_batch *b, const struct meta_reply *reply);
void meta_reply_del(struct meta_batch *b, uint64_t generation, uint64_t place);
int meta_reply_each(struct meta *m, int (*fn)(void *ctx, const struct meta_reply *reply), void *ctx) MUST_CHECK;

/* ---- small named values: capabilities, pin rules, options of the last mount ---- */

int meta_value_get(struct meta *m, const char *name, GBytes **ret_value) MUST_CHECK;
void meta_value_put(struct meta_batch *b, const char *name, const void *value, size_t len);
void meta_value_del(struct meta_batch *b, const char *name);
/* The same for a value that is a number. -EBADMSG: it is none. */
int meta_value_get_u64(struct meta *m, const char *name, uint64_t *ret_value) MUST_CHECK;
void meta_value_put_u64(struct meta_batch *b, const char *name, uint64_t value);
int meta_value_each(struct meta *m, const char *name_prefix,
                    int (*fn)(void *ctx, const char *name, const void *value, size_t len), void *ctx) MUST_CHECK;

/* ---- tests and debug ---- */
/* Every record as text, one a line, sorted by key. */
int meta_dump(struct meta *m, GString *out) MUST_CHECK;
