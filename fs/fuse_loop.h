/*
 * Takes requests from the kernel and hands them to libfuse, each in a thread of its own as far as there are any to be had.
 *
 * libfuse's own loop would do for one worker. Ours also greets a connection that a former worker left (INIT comes once in a connection's life, so its bytes
 * are kept in the session), makes the kernel send again what that one took and did not answer, and notes in the session what each thread is at.
 *
 *     loop = fuse_loop_new(se, session, op_timeout_ns, &caught_up);
 *     r = fuse_loop_greet(loop);           -- op_init() ran; the kernel may be asked and told things
 *     r = fuse_loop_start(loop);           -- requests are served
 *     r = fuse_loop_join(loop);            -- until fuse_loop_stop() or the end of the connection
 *     fuse_loop_free(loop);
 */
#pragma once
#include "fs.h"

struct fuse_loop;

/* All are borrowed until fuse_loop_free(); se has its descriptor when fuse_loop_greet() is called. caught_up becomes true when all that the kernel sent again
 * has been answered. */
struct fuse_loop *fuse_loop_new(struct fuse_session *se, struct session *session, uint64_t op_timeout_ns,
                                atomic_bool *caught_up);
void fuse_loop_free(struct fuse_loop *loop); /* NULL allowed; no thread of it is left */
/* Exchanges INIT, or does as if. -ENODEV: the connection is gone. */
int fuse_loop_greet(struct fuse_loop *loop) MUST_CHECK;
int fuse_loop_start(struct fuse_loop *loop) MUST_CHECK;
/* Returns when no thread is left: 0, or the error that the connection ended with. */
int fuse_loop_join(struct fuse_loop *loop) MUST_CHECK;
/* No more requests are taken; those being handled go on to their end. Any thread, any time, returns at once. */
void fuse_loop_stop(struct fuse_loop *loop);
