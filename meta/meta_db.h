/*
 * The key-value store below meta: open, get, scan, batches of RocksDB, with keys of meta_key.h. Private to meta/.
 *
 * Every GString argument is taken over and freed, also on failure, so that a caller is one line:
 *   meta_db_put(b, meta_key1(TAG_INODE, in->ino, NULL), meta_enc_inode(in));
 *
 * Any thread. No lock is held while a callback runs.
 */
#pragma once
#include "base/sync.h"
#include "meta.h"
#include "meta_key.h"

#include <stdatomic.h>

struct meta_db;

/* ---- space kept back (meta_space.c) ---- */

struct meta_space {
    char *path;               /* owned */
    int fd;                   /* -1: none */
    bool kept;                /* ours to remove */
    _Atomic bool busy;        /* somebody looks */
    _Atomic uint64_t next_ns; /* no look before */
    /* owned by who looks */
    uint64_t want_bytes; /* 0: only given back, not made */
    bool low;            /* some of it was given back */
};
/* Takes over what a kill left there. */
void meta_space_open(struct meta_space *s, const char *file);
void meta_space_keep(struct meta_space *s, uint64_t most);
/* Before a commit: gives back what the disk lacks, or makes it whole again. */
void meta_space_look(struct meta_space *s);
/* Whether need bytes are free, and can be written. */
int meta_space_try(const struct meta_space *s, uint64_t need) MUST_CHECK;
void meta_space_close(struct meta_space *s);

/* Cuts off what a power loss left of an unsynced end of the last log in dir. While the database is open, here or elsewhere, nothing is done. */
void meta_wal_mend(const char *dir);

struct meta_ids {
    uint64_t next, limit;
    bool refilling;
};

struct meta {
    /* immutable after meta_open */
    struct meta_db *db; /* owned */
    char *path;         /* owned; its folder */
    char uuid[33];
    char opening[9];
    struct mutex mu;
    /* guarded by mu */
    struct meta_ids ino, seq;
    struct cond refilled;
    _Atomic uint64_t last_seq; /* atomic */
    struct meta_space space;
};

/* A value as the store holds it. */
struct meta_val {
    void *pin; /* owned */
    const char *data;
    size_t len;
};
void meta_val_clear(struct meta_val *v);
#define META_VAL __attribute__((cleanup(meta_val_clear))) struct meta_val

/* Opens or creates the database in folder path. *ret_msg on failure only. */
int meta_db_open(const char *path, struct meta_db **ret_db, char **ret_msg) MUST_CHECK;
void meta_db_close(struct meta_db *db); /* NULL allowed */
int meta_db_sync(struct meta_db *db) MUST_CHECK;
uint64_t meta_db_written(const struct meta_db *db);
int meta_db_sync_from(struct meta_db *db, uint64_t written) MUST_CHECK;
bool meta_db_failed(const struct meta_db *db);
void meta_db_set_failed(struct meta_db *db);
bool meta_db_is_stuck(const struct meta_db *db);
bool meta_db_is_stuck_by_read(const struct meta_db *db);

int meta_db_get(struct meta_db *db, GString *key, struct meta_val *ret) MUST_CHECK;
typedef int meta_scan_fn(void *ctx, const struct meta_key *key, const void *val, size_t len);
/* Every record whose key begins with prefix ("": every record) and is not below from (NULL: all), ascending. Non-zero from fn stops and is returned. */
int meta_db_scan(struct meta_db *db, GString *prefix, GString *from, meta_scan_fn *fn, void *ctx) MUST_CHECK;
/* Reads records of one kind, each as meta_db_get() does: for many whose keys ascend and are near each other at a sixth of its cost. One thread. */
struct meta_db_reader;
struct meta_db_reader *meta_db_reader_new(struct meta_db *db, enum meta_tag tag);
void meta_db_reader_free(struct meta_db_reader *rd); /* NULL allowed */
/* The value is the reader's until it is asked for the next one. */
int meta_db_read(struct meta_db_reader *rd, GString *key, struct meta_val *ret) MUST_CHECK;
/* 1 when a key begins with prefix, 0 when none does. */
int meta_db_any(struct meta_db *db, GString *prefix) MUST_CHECK;

struct meta_batch *meta_db_batch_new(struct meta *m);
struct meta *meta_db_batch_owner(struct meta_batch *b);
void meta_db_put(struct meta_batch *b, GString *key, GString *val);
void meta_db_del(struct meta_batch *b, GString *key);
/* Removes all that begins with prefix: what is committed and what this batch put before. */
void meta_db_del_prefix(struct meta_batch *b, GString *prefix);

int meta_inode_decode(uint64_t ino, const struct meta_val *v, struct meta_inode *ret) MUST_CHECK;
int meta_dentry_decode(uint64_t parent, const char *name, const struct meta_val *v, struct meta_dentry *ret) MUST_CHECK;
/* Logs the record that could not be decoded; returns r. */
int meta_db_bad(GString *key, int r);
