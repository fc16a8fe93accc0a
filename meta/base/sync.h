/*
 * Ranked, owner-checked locks on pthreads (so TSan sees them).
 *
 * Every lock belongs to a class of locks.def; classes are listed there in acquisition order. A thread that
 * takes a lock of a class at or below one it already holds aborts (always on: the check is a thread-local bit mask).
 * Two locks of one class are taken never: a function that needs two copies what it needs from the first and drops it.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__clang__)
#define TSA(x) __attribute__((x))
#else
#define TSA(x)
#endif
#define CAPABILITY    TSA(capability("mutex"))
#define REQUIRES(...) TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...)  TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...)  TSA(release_capability(__VA_ARGS__))
#define NO_TSA        TSA(no_thread_safety_analysis)

enum lock_class {
#define LOCK_CLASS(name) LOCK_##name,
#include "base/locks.def"
#undef LOCK_CLASS
    N_LOCK_CLASSES
};

struct CAPABILITY mutex {
    pthread_mutex_t m;
    pthread_t owner; /* valid while held */
    bool held;
    enum lock_class cls;
};

struct cond {
    pthread_cond_t c;
};

void mutex_init(struct mutex *mu, enum lock_class cls);
void mutex_fini(struct mutex *mu);
void mutex_lock(struct mutex *mu) ACQUIRE(mu);
void mutex_unlock(struct mutex *mu) RELEASE(mu);
/* Aborts unless the calling thread holds mu. First line of every _locked function. */
void mutex_assert_held(const struct mutex *mu);
/* Aborts if the calling thread holds any ranked lock: called before network, sync writes and replies. */
void mutex_assert_none_held(void);

void cond_init(struct cond *c); /* waits on CLOCK_MONOTONIC */
void cond_fini(struct cond *c);
void cond_wait(struct cond *c, struct mutex *mu) REQUIRES(mu);
/* Waits until clock_mono_ns() >= deadline_ns. Returns false when the deadline passed. */
bool cond_wait_until(struct cond *c, struct mutex *mu, uint64_t deadline_ns) REQUIRES(mu);
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);

/* Starts a joinable thread (it may detach itself) with a name (<= 15 bytes) and all signals blocked. 0 or -errno. */
int thread_start(pthread_t *ret_thread, const char *name, void *(*fn)(void *), void *arg);
