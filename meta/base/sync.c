/*
 * Ranked locks: a thread-local bit mask of held classes is compared before each lock. Checks are always on: a wrong order that
 * does not deadlock today will on a customer's machine.
 */
#include "base/sync.h"

#include "base/clock.h"

#include <errno.h>
#include <glib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

_Static_assert(N_LOCK_CLASSES <= 64, "one bit per lock class");

static _Thread_local uint64_t held_classes;

static const char *const class_names[] = {
#define LOCK_CLASS(name) #name,
#include "base/locks.def"
#undef LOCK_CLASS
};

static _Noreturn void lock_bug(const char *what, enum lock_class cls)
{
    fprintf(stderr, "bug: lock %s: %s; held:", class_names[cls], what);
    for (unsigned i = 0; i < N_LOCK_CLASSES; i++)
        if (held_classes & (1ull << i))
            fprintf(stderr, " %s", class_names[i]);
    fputc('\n', stderr);
    abort();
}

void mutex_init(struct mutex *mu, enum lock_class cls)
{
    pthread_mutex_init(&mu->m, NULL);
    mu->held = false;
    mu->cls = cls;
}

void mutex_fini(struct mutex *mu)
{
    pthread_mutex_destroy(&mu->m);
}

static void mark_held(struct mutex *mu)
{
    mu->owner = pthread_self();
    mu->held = true;
    held_classes |= 1ull << mu->cls;
}

static void mark_free(struct mutex *mu)
{
    mu->held = false;
    held_classes &= ~(1ull << mu->cls);
}

void mutex_lock(struct mutex *mu) NO_TSA
{
    if (held_classes >> mu->cls)
        lock_bug("taken out of order", mu->cls);
    pthread_mutex_lock(&mu->m);
    mark_held(mu);
}

void mutex_unlock(struct mutex *mu) NO_TSA
{
    mutex_assert_held(mu);
    mark_free(mu);
    pthread_mutex_unlock(&mu->m);
}

void mutex_assert_held(const struct mutex *mu)
{
    if (!(held_classes & (1ull << mu->cls)) || !mu->held || !pthread_equal(mu->owner, pthread_self()))
        lock_bug("not held by this thread", mu->cls);
}

void mutex_assert_none_held(void)
{
    if (held_classes)
        lock_bug("held where none may be", (enum lock_class)__builtin_ctzll(held_classes));
}

void cond_init(struct cond *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->c, &attr);
    pthread_condattr_destroy(&attr);
}

void cond_fini(struct cond *c)
{
    pthread_cond_destroy(&c->c);
}

void cond_wait(struct cond *c, struct mutex *mu) NO_TSA
{
    mutex_assert_held(mu);
    mark_free(mu);
    pthread_cond_wait(&c->c, &mu->m);
    mark_held(mu);
}

/* A slice of a wait while the fake clock is in use: it may be advanced without waking anybody. */
#define FAKE_SLICE_NS (50 * NS_PER_MS)

bool cond_wait_until(struct cond *c, struct mutex *mu, uint64_t deadline_ns) NO_TSA
{
    mutex_assert_held(mu);
    uint64_t now = clock_mono_ns();
    if (now >= deadline_ns)
        return false;
    uint64_t wake = deadline_ns;
    if (clock_fake_offset_ns() && wake - now > FAKE_SLICE_NS)
        wake = now + FAKE_SLICE_NS;
    wake = clock_mono_to_real_ns(wake);
    struct timespec t = {.tv_sec = (time_t)(wake / NS_PER_S), .tv_nsec = (long)(wake % NS_PER_S)};
    mark_free(mu);
    pthread_cond_timedwait(&c->c, &mu->m, &t);
    mark_held(mu);
    return clock_mono_ns() < deadline_ns;
}

void cond_signal(struct cond *c)
{
    pthread_cond_signal(&c->c);
}

void cond_broadcast(struct cond *c)
{
    pthread_cond_broadcast(&c->c);
}

struct thread_begin {
    void *(*fn)(void *);
    void *arg;
    char name[16];
};

/* The thread names itself: one that detaches itself may be gone before its creator could. */
static void *thread_main(void *p)
{
    struct thread_begin begin = *(struct thread_begin *)p;
    g_free(p);
    (void)pthread_setname_np(pthread_self(), begin.name); /* a thread without its name works as well */
    return begin.fn(begin.arg);
}

int thread_start(pthread_t *ret_thread, const char *name, void *(*fn)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGABRT);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    struct thread_begin *begin = g_new(struct thread_begin, 1);
    *begin = (struct thread_begin){.fn = fn, .arg = arg};
    g_strlcpy(begin->name, name, sizeof(begin->name));
    pthread_t t;
    int r = pthread_create(&t, NULL, thread_main, begin);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r != 0) {
        g_free(begin);
        return -r;
    }
    *ret_thread = t;
    return 0;
}
