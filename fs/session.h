/*
 * What outlives the process that serves a mount: shared memory that its supervisor holds, so that the next worker knows what the kernel has open.
 *
 * One worker at a time writes it; a reader (the supervisor) only looks at beat_ns and busy. A slot's state is written last when it is filled and first when it is
 * given up, so a kill at any point leaves slots that say what is known. Zero bytes are a valid, empty session; pages exist only where something was
 * written. Any change of the layout or of what a field means needs another SESSION_FORMAT: a worker of another format cannot take over. Only what lies between the fields may
 * become one, if what workers that do not know it leave there says nothing.
 */
#pragma once
#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SESSION_FORMAT   2u
#define SESSION_HANDLES  (1u << 20)
#define SESSION_FILES    (SESSION_HANDLES + (1u << 17)) /* those open, and those that only keep a backing id */
#define SESSION_INIT_MAX 512u
#define SESSION_BUSY     512u

enum slot_state { SLOT_FREE, SLOT_OPENING, SLOT_OPEN, SLOT_RELEASING };

/* One handle of the kernel. */
struct sess_handle {
    _Atomic uint32_t state; /* enum slot_state */
    uint32_t gen;           /* part of the fh: a new one each time the slot is filled */
    uint64_t unique;        /* of the request that opens (OPENING) or releases (RELEASING) it */
    uint64_t ino;
    uint64_t id_limit; /* directories: see handle.h */
    int32_t tid;       /* who opened it */
    uint8_t writable, dir, virt;
    _Atomic uint8_t wrote, fresh;
    uint8_t direct; /* by direct I/O; 0 where it is not known */
    /* gen: its last close was the end of a program by a signal (orphan.h). Workers before this field was there leave another number. */
    _Atomic uint32_t left;
};

enum file_state { FILE_FREE, FILE_USED, FILE_CLOSING };

/* One inode that has handles, or a backing id that the kernel knows. */
struct sess_file {
    _Atomic uint32_t state; /* enum file_state; CLOSING: the backing id may be closed already */
    int32_t backing_id;     /* 0 none */
    uint64_t ino, backing_vid, seen_size;
    int64_t seen_mtime_ns;
    uint8_t mode, kernel_writes; /* enum io_mode, bool */
    uint8_t kept;                /* bool: unchanged since open, whatever "open/INO" says it was made from holds */
    /* head.generation of the worker that says: since its last seal it was opened to append only. Of any worker but the one just before, as who does not know this field leaves it: nothing is known. */
    uint32_t appended;
};

/* A thread of the worker: what it does, and since when; since_ns 0: nothing. */
struct sess_busy {
    uint32_t opcode;
    uint64_t unique, since_ns;
};

struct sess_head {
    uint32_t format;
    uint32_t generation;                     /* of the worker: 1, 2, ... */
    _Atomic uint32_t started;                /* a worker came up: what is in the slots is to be taken over */
    _Atomic uint32_t n_handles, n_files;     /* slots beyond were never used */
    _Atomic int32_t id_low;                  /* backing ids up to this one were all closed or are in a slot */
    uint64_t ino_limit;                      /* the kernel may know inodes below it from workers before this one */
    uint64_t want_ext;                       /* what INIT agreed on */
    uint32_t max_write, init_len;            /* init_len 0: no INIT yet */
    uint8_t init[SESSION_INIT_MAX];          /* its bytes as the kernel sent them */
    _Atomic uint64_t beat_ns;                /* the worker's last sign of life, CLOCK_MONOTONIC */
    _Atomic uint64_t notes_said, notes_sent; /* of notify.h; not the same: some were lost with a worker */
    struct sess_busy busy[SESSION_BUSY];
};

struct session {
    struct sess_head *head;
    struct sess_handle *handles; /* SESSION_HANDLES */
    struct sess_file *files;     /* SESSION_FILES */
    bool takeover;
};

/*
 * create: memfd (its size is set here) becomes an empty session; who only holds the memory for others does this. Otherwise one worker more begins to
 * use it. memfd -1: private memory with its first worker, for a daemon without a supervisor and for tests. The fd stays the caller's and may be closed.
 * -EPROTO: of another format.
 */
int session_map(int memfd, bool create, struct session **ret) MUST_CHECK;
void session_unmap(struct session *s); /* NULL allowed */
/* Whether a worker before this one came up. Does not change while it is mapped. */
bool session_is_takeover(const struct session *s);
/* This worker has recovered what was there before and is about to give its first answer: its successors take over. */
void session_started(struct session *s);
