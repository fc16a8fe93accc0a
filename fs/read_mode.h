/*
 * Whether the kernel reads a large file that is not complete here through its page cache, or by direct I/O; io_mode.c asks at the first open.
 *
 * Direct I/O copies each byte once less, and leaves no pages that the next open, by passthrough, has to drop. But each read() is a message then, so it is for
 * readers by large blocks. How a directory's large files are read is learned from those who read them: by the sizes of direct reads, and by what /proc
 * tells of a reading thread (bytes and calls), where it may be asked. A directory not known yet gets direct I/O for a file of up to READ_GUESS_BYTES that is
 * absent, so that one wrong guess costs seconds. Formats that are read by mmap stay in the page cache.
 *
 * A file that is mapped all the same is read through the page cache, whatever its handle says. Handles of either kind may be mixed, but not with passthrough.
 */
#pragma once
#include "meta.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct inode;
struct handle;

#define READ_BLOCK_BYTES (64u << 10) /* from here on direct I/O wins */
#define READ_GUESS_BYTES (1ull << 30)

enum read_habit { READ_UNKNOWN, READ_BLOCKS, READ_PIECES };

/* What a thread has read by read(2) and its like. */
struct read_task {
    int tid; /* 0: nothing known */
    uint64_t bytes, calls;
};

/* Of a handle that reads a large file while it is absent. */
struct read_watch {
    /* immutable once the kernel knows the handle */
    bool on, direct;
    _Atomic uint64_t bytes, reads; /* asked of us through the handle */
    /* guarded by inode.mu */
    struct read_task first; /* as of first_bytes */
    uint64_t first_bytes;
};

/* The first handle of a file that is not complete here, for reading. With the content gate held. */
bool read_mode_wants_direct(struct inode *in);
void read_mode_opened(struct handle *h, bool direct);
/* A READ by thread tid was answered with `bytes`. */
void read_mode_note(struct handle *h, int tid, size_t bytes);
void read_mode_released(struct handle *h);

/* ---- for tests ---- */

/* By the mean size of reads. Too few: unknown. */
enum read_habit read_habit_of_sizes(uint64_t bytes, uint64_t reads);
/* From what a thread read between two looks, while we gave it `bytes`. ended: it is in no read() of ours any more, so what was not read by calls was read by mapping. */
enum read_habit read_habit_of_task(const struct read_task *then, const struct read_task *now, uint64_t bytes,
                                   bool ended);
bool read_task_look(int tid, struct read_task *ret);
