/*
 * The log of a recording: a header, then records one behind the other. It is mapped by every process that takes part (the recorded daemon, the program that drives
 * it), and each appends under the lock in the header, which it holds from before a change until the change is logged: so the log's order is the order of the changes.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define POWER_MAGIC UINT64_C(0x31676f6c72776f70)

struct power_head {
    uint64_t magic;
    uint64_t used;     /* bytes, header included */
    uint64_t overflow; /* records that found no room: the recording is worth nothing */
    pthread_mutex_t mu;
};

#define POWER_HEAD_BYTES 4096u

enum power_kind {
    POWER_NOTE = 1,  /* a: text of the driving program */
    POWER_CREATE,    /* a: path, ino */
    POWER_MKDIR,     /* a: path */
    POWER_WRITE,     /* ino, off, data */
    POWER_TRUNCATE,  /* ino, off: size */
    POWER_PUNCH,     /* ino, off, len */
    POWER_RENAME,    /* a: from, b: to, len: flags */
    POWER_UNLINK,    /* a: path */
    POWER_RMDIR,     /* a: path */
    POWER_LINK,      /* a: path, b: new path */
    POWER_SETXATTR,  /* ino, a: name, data */
    POWER_DELXATTR,  /* ino, a: name */
    POWER_FSYNC,     /* a: path (of a directory), else ino */
    POWER_FDATASYNC, /* ino */
    POWER_UTIMES,    /* ino, off: mtime in ns */
    POWER_SNAPSHOT,  /* ino, data: what the file holds, written by others */
    POWER_STRANGE,   /* a: a change that this recorder cannot log */
};

struct power_rec {
    uint32_t bytes; /* with padding to 8 */
    uint32_t kind;
    uint32_t a_len, b_len, data_len, pad;
    uint64_t ino, off, len;
    uint64_t when; /* wall clock, ns */
    /* a, b, data follow */
};

/* ---- for the driving program ---- */

void power_create(const char *path, uint64_t size);
void power_note(const char *text);
/* What of a file was written past the recorded program. */
void power_snapshot(const char *path);

/* ---- for the wrappers ---- */

#define POWER_PATH_BYTES 4096

struct power_state {
    struct power_head *head;
    uint64_t size;
    const char *roots[2]; /* cache, lake */
    const char *boot;
    bool passed; /* the kernel writes into files as well: each sync is of what it finds there */
};
extern struct power_state power;

struct power_entry {
    enum power_kind kind;
    const char *a, *b;
    const void *data;
    size_t data_len;
    uint64_t ino, off, len;
};

/* Around a change and its record; errno stays. Files of nobody's need none. */
void power_lock(void);
void power_unlock(void);
void power_append(const struct power_entry *e);
void power_strange(const char *what);
void power_append_snapshot(int fd, const struct stat *st);

bool power_below(const char *path, const char *root);
bool power_fd_path(int fd, char out[POWER_PATH_BYTES]);
bool power_path_at(int dirfd, const char *name, char out[POWER_PATH_BYTES]);
/* Is it below one of the roots? */
bool power_path_ours(int dirfd, const char *name, char out[POWER_PATH_BYTES]);
/* A file or directory of ours. Removed ones count: "(deleted)" only follows the name. */
bool power_fd_ours(int fd, struct stat *st, char out[POWER_PATH_BYTES]);
