/* See patience.h. */
#include "base/patience.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_NS (100 * NS_PER_MS)
#define WORN_NS  (2 * NS_PER_S)
#define LOOK_NS  NS_PER_S /* at programs whose signals the kernel does not tell of: reads ahead, direct ones */

static _Thread_local struct patience *current;

void patience_begin(struct patience *p, int tid, uint64_t began_ns, uint64_t limit_ns)
{
    *p = (struct patience){.limit_ns = limit_ns,
                           .began_ns = began_ns,
                           .until_ns = limit_ns ? began_ns + limit_ns : UINT64_MAX,
                           .looked_ns = began_ns,
                           .tid = tid};
    current = p;
}

void patience_end(void)
{
    current = NULL;
}

struct patience *patience_set(struct patience *p)
{
    struct patience *before = current;
    current = p;
    return before;
}

void patience_ask(struct patience *p)
{
    __atomic_store_n(&p->asked, 1, __ATOMIC_RELAXED); /* a flag: no data hangs on it */
}

/* ---- signals ---- */

#define BIT(sig) (1ull << ((sig)-1))

enum patience_signal patience_signal_of(uint64_t pending, uint64_t blocked, uint64_t ignored, uint64_t caught)
{
    const uint64_t harmless = BIT(SIGCHLD) | BIT(SIGURG) | BIT(SIGWINCH) | BIT(SIGCONT) | BIT(SIGSTOP) | BIT(SIGTSTP) |
                              BIT(SIGTTIN) | BIT(SIGTTOU);
    const uint64_t meant = BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGHUP) | BIT(SIGQUIT);
    if (pending & BIT(SIGKILL)) /* the kernel sends it to every thread of a process that ends */
        return PATIENCE_DIES;
    pending &= ~blocked & ~ignored;
    return pending & ~(caught | harmless) ? PATIENCE_DIES : pending & meant ? PATIENCE_STOPS : PATIENCE_NONE;
}

/* False: it cannot be looked at. */
static bool read_signals(int tid, uint64_t sets[5])
{
    static const char *const names[] = {"SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:"};
    char path[64], line[256];
    unsigned n = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", tid);
    FILE *f = tid > 0 ? fopen(path, "re") : NULL;
    if (!f)
        return false;
    while (n < 5 && fgets(line, sizeof(line), f)) {
        size_t len = strlen(names[n]);
        if (strncmp(line, names[n], len) == 0)
            sets[n++] = strtoull(line + len, NULL, 16);
    }
    (void)fclose(f); /* only read */
    return n == 5;
}

/* As far as we are told: a page fault cannot be interrupted, only fail with SIGBUS. */
static bool is_in_fault(int tid)
{
    char path[64], word[32];
    (void)snprintf(path, sizeof(path), "/proc/%d/syscall", tid);
    FILE *f = fopen(path, "re");
    bool outside = f && fscanf(f, "%31s", word) == 1 && strcmp(word, "-1") == 0;
    if (f)
        (void)fclose(f); /* only read */
    return outside;
}

/* A program that cannot be seen (of another pid namespace) gives up by whatever signal. */
static bool gave_up(int tid, bool asked)
{
    uint64_t s[5];
    if (!read_signals(tid, s))
        return asked;
    enum patience_signal what = patience_signal_of(s[0] | s[1], s[2], s[3], s[4]);
    return what == PATIENCE_DIES || (what == PATIENCE_STOPS && !is_in_fault(tid));
}

bool patience_of_task_is_over(int tid)
{
    return gave_up(tid, true);
}

/* ---- waiting ---- */

int patience_over(void)
{
    struct patience *p = current;
    if (!p || p->over)
        return p ? p->over : 0;
    uint64_t now = clock_mono_ns();
    bool asked = __atomic_load_n(&p->asked, __ATOMIC_RELAXED);
    if (p->stop && __atomic_load_n(p->stop, __ATOMIC_RELAXED))
        p->over = -EINTR;
    else if (now >= p->looked_ns + (asked ? SLICE_NS : LOOK_NS)) {
        p->looked_ns = now;
        p->over = gave_up(p->tid, asked) ? -EINTR : 0;
    }
    if (!p->over && now >= p->until_ns)
        p->over = -ETIMEDOUT;
    return p->over;
}

void patience_renew(void)
{
    struct patience *p = current;
    if (p && p->limit_ns)
        p->until_ns = clock_mono_ns() + p->limit_ns;
    if (p && p->over == -ETIMEDOUT)
        p->over = 0;
}

static uint64_t n_progress;

void patience_progress(void)
{
    (void)__atomic_add_fetch(&n_progress, 1, __ATOMIC_RELAXED);
    patience_renew();
}

uint64_t patience_progress_count(void)
{
    return __atomic_load_n(&n_progress, __ATOMIC_RELAXED);
}

bool patience_worn(void)
{
    uint64_t half_ns = current ? current->limit_ns / 2 : 0;
    return half_ns && clock_mono_ns() - current->began_ns > (half_ns < WORN_NS ? half_ns : WORN_NS);
}

int patience_wait(struct cond *c, struct mutex *mu, uint64_t deadline_ns)
{
    if (!current && deadline_ns == UINT64_MAX) {
        cond_wait(c, mu);
        return 0;
    }
    uint64_t now = clock_mono_ns();
    if (now >= deadline_ns)
        return -ETIMEDOUT;
    uint64_t slice = now + SLICE_NS;
    (void)cond_wait_until(c, mu, current && slice < deadline_ns ? slice : deadline_ns);
    if (!current)
        return 0;
    mutex_unlock(mu);
    int r = patience_over();
    mutex_lock(mu);
    return r;
}
