/*
 * How long a program waits for the thread that serves its request. Whatever that thread waits for, in any layer, it stops waiting when the program is being killed or was
 * interrupted, and when nothing has got on for too long.
 *
 * A thread that serves a request has one struct patience, from patience_begin() to patience_end(); what it calls neither passes it on nor names it. Threads that serve nobody
 * have none: for them patience_over() is always 0, and patience_wait() waits as it is told.
 *
 * A signal alone does not end a wait: programs that handle SIGALRM, SIGCHLD or SIGURG expect a file system to go on. What does: SIGKILL, a signal that would end the program, and
 * SIGINT, SIGTERM, SIGHUP, SIGQUIT with a handler (but not in a page fault, which could only fail). The kernel tells of the first signal only, and of none while it reads ahead or
 * reads directly: so a waiting thread looks again and again.
 */
#pragma once
#include "base/sync.h"

struct patience {
    uint64_t limit_ns; /* without progress */
    uint64_t began_ns, until_ns, looked_ns;
    int tid;         /* of the program's thread, 0: not known */
    int over;        /* what patience_over() said, once it did */
    int asked;       /* atomic: the kernel told of a signal */
    const int *stop; /* NULL, or atomic: not 0 is as good as a signal; set after patience_begin() */
};

/* p stays the caller's; began_ns: when the program asked. limit_ns 0: no limit. */
void patience_begin(struct patience *p, int tid, uint64_t began_ns, uint64_t limit_ns);
void patience_end(void);
/* For work that others depend on as well: patience_set(NULL), and afterwards what that returned. */
struct patience *patience_set(struct patience *p);
/* The kernel tells of a signal for the program. Any thread, while p exists. */
void patience_ask(struct patience *p);
/* What to answer now: -EINTR, -ETIMEDOUT, 0: go on. May read /proc, so with no lock held that others wait for long. */
int patience_over(void);
/* The same of a program for whose request there is no thread yet, and whom the kernel told of a signal for: whether it waits no longer. Reads /proc. */
bool patience_of_task_is_over(int tid);
/* Something got on: the time counts from now. */
void patience_renew(void);
/* Bytes went to or came from the store: that as well, and the count, which is all threads', grows. */
void patience_progress(void);
uint64_t patience_progress_count(void);
/* Whether the program has waited for long, 2 s or half of its time: what fails now is likely to fail as late again. */
bool patience_worn(void);
/*
 * One round of a wait in a loop; mu is given back meanwhile. 0: look again; -ETIMEDOUT also when deadline_ns (UINT64_MAX: none) has passed. Wakes up by itself for threads that serve a request,
 * so a condition need not be signalled when the program gives up.
 */
int patience_wait(struct cond *c, struct mutex *mu, uint64_t deadline_ns) REQUIRES(mu);

enum patience_signal {
    PATIENCE_NONE,
    PATIENCE_STOPS, /* one that it handles, and that is sent to make it stop */
    PATIENCE_DIES
};
/* What the signal sets of a thread (as in /proc/TID/status) mean for it. */
enum patience_signal patience_signal_of(uint64_t pending, uint64_t blocked, uint64_t ignored, uint64_t caught);
