/*
 * Workers on one session's memory, without FUSE: each but the last is a child that opens a struct fs, does what operations do, and kills itself.
 *
 *   tcase_add_checked_fixture(tc, takeover_setup, takeover_teardown);
 *   takeover_run(work, false);       -- a worker that does this and dies
 *   takeover_open(false);            -- the next one: fx.fs
 */
#pragma once
#include "fs/handle.h"
#include "fs_fixture.h"

extern struct fs_fixture fx;

/* Of the test and its workers. */
struct takeover_shared {
    uint64_t fh, ino, vid, gen; /* of the handle that was made last; gen: whatever a test notes */
    int last_id;                /* given by the kernel, 1 is the first */
    bool closed[16];
    bool release; /* for the next worker */
};
extern struct takeover_shared *shared;

void takeover_setup(void);
void takeover_teardown(void);
/* passes: the kernel can read and write by itself. */
void takeover_open(bool passes);
void takeover_run(void (*work)(void), bool passes);
/* Begins to use the session's memory as a worker does. */
int takeover_map(struct session **ret) MUST_CHECK;
/* For takeover_run(): comes up, and that is all. */
void takeover_nothing(void);

/* ---- what operations do ---- */

/* CREATE, but for the handle: one reference, counted as open for writing. */
struct inode *takeover_make(const char *name);
/* The file is counted as open already. Takes the caller's reference. The kernel was not told yet. */
struct handle *takeover_new_handle(struct inode *in, bool writes, struct fuse_file_info *fi);
struct handle *takeover_create(const char *name);
/* By fi->flags, which also gets what the kernel is told. */
struct handle *takeover_open_file(const char *name, struct fuse_file_info *fi);
void takeover_write(struct handle *h, const char *text, uint64_t off);
void takeover_flush(struct handle *h);
void takeover_release(struct handle *h);

/* ---- what is there then ---- */

struct handle *takeover_handle(uint64_t fh);
uint32_t takeover_content(const char *name);
/* Publishes everything. */
void takeover_wait(void);
void takeover_assert_object(const char *key, const char *text);
