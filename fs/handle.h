/*
 * Open files and directories. The kernel's fh is the number of a slot in the session's memory (session.h) and the generation of its use, never a pointer, so
 * that the next worker finds what it stands for, and a request that comes late for a slot used again finds nothing.
 *
 * A slot is OPENING from before anything is done for the open until its reply is written, RELEASING from before anything is undone until the reply to that.
 */
#pragma once
#include "fs.h"

struct handle {
    /* immutable after handle_new */
    struct inode *in; /* owned reference; NULL for virtual files, and where the file could not be taken over */
    struct sess_handle *slot;
    uint64_t fh;
    unsigned news; /* io_mode_news() at the open */
    char *text;    /* virtual files */
    bool adopted;  /* of a worker before */
    struct read_watch watch;
    /* guarded by in->mu */
    bool given_up; /* counts as no writer, until a request for it comes (attach.h) */
};

void handle_table_init(struct fs *fs);
void handle_table_fini(struct fs *fs);
/* Fills a free slot with ino, tid, writable, dir, virt and fresh of `what`. in (NULL for virtual files): the handle takes a reference. -ENFILE: too many are open. */
int handle_new(struct fs *fs, struct inode *in, const struct sess_handle *what, struct handle **ret) MUST_CHECK;
/* By a request: NULL for an fh that is not open. Valid until handle_free of it, which the kernel sends last. */
struct handle *handle_get(struct fs *fs, uint64_t fh);
/* The same, not by a request for it. */
struct handle *handle_find(struct fs *fs, uint64_t fh);
/* The kernel was told; it may have released it again. */
void handle_opened(struct fs *fs, uint64_t fh);
void handle_releasing(struct fs *fs, uint64_t fh);
void handle_free(struct fs *fs, uint64_t fh);

/*
 * What programs have open, through whatever mount of it they see it: the kernel's own count knows neither bind mounts nor other mount namespaces. One that is being
 * released is open no more. UNSURE: no more than what the worker before was about to open, which settles by itself (attach.h).
 */
enum handles_held { HANDLES_NONE, HANDLES_UNSURE, HANDLES_OPEN };
/* ret_ino and ret_tid of who opened it (0: not known), of one that is open. */
enum handles_held handle_held(struct fs *fs, uint64_t *ret_ino, int32_t *ret_tid);

/* Handles, still without inodes, for all slots that the worker before left in use. */
void handle_table_adopt(struct fs *fs);
