/*
 * A process that hands notifications of the worker to the kernel, because the kernel may make whoever does that wait for a lock whose holder waits for an answer of the
 * worker: such a wait cannot be ended by a signal, and a worker that cannot be ended cannot be replaced. Only who asks a question waits for this process, and not in the kernel.
 */
#pragma once
#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Forks it: the caller has no other thread. *ret_fd takes notifications; it ends with the last copy of that. */
int notifier_start(int fuse_fd, pid_t *ret_pid, int *ret_fd) MUST_CHECK;
/* Ends it. -ETIMEDOUT: the kernel does not let it go. */
int notifier_end(pid_t pid) MUST_CHECK;

/* What the kernel knows of a name, or (name NULL) of an inode's attributes and pages, is out of date. */
int notifier_send(int fd, uint64_t ino, const char *name) MUST_CHECK;
/* It may be, and is to be asked for anew: the name by its next user, whom it serves until then; of an inode (name NULL) the attributes, while pages stay. The kernel must know
 * FUSE_EXPIRE_ONLY: else this of a name is notifier_send(), which cuts directories off from whoever works in them. */
int notifier_send_doubt(int fd, uint64_t ino, const char *name) MUST_CHECK;
/* What comes back for a question. */
struct notifier_answer {
    uint64_t number, ino;
    int32_t r; /* of the kernel: 0, or -ENOENT: it does not know the inode */
};

/*
 * Whether the kernel knows an inode: 1 or 0. One thread at a time. Waits for as long as the kernel makes the notifier wait: -ECANCELED once *stop is set, -EPIPE when the
 * notifier is gone, else what the kernel said.
 */
int notifier_ask(int fd, uint64_t ino, const atomic_bool *stop) MUST_CHECK;
