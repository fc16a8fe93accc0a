/*
 * Publishing one file at once, for a program that waits for it.
 *
 * The work is done by a thread of its own, so that a program that waits no longer (killed, or nothing got on) leaves it to finish what it sends: that is not sent again, and nothing is cut off
 * between an upload and its record. It waits for nothing any more then: what else is to be done is left to the publisher's threads.
 */
#include "base/patience.h"
#include "publish_internal.h"

#define BUSY_MIN_NS (250 * NS_PER_MS)
#define BUSY_MAX                                                                                                       \
    8 /* times: more than the readers of what is replaced are waited for, and the store may always say that it is busy */

struct now {
    struct publisher *p;
    struct inode *in;           /* owned reference */
    uint64_t limit_ns;          /* without progress */
    uint64_t deadline_ns, seen; /* owned by the thread */
    unsigned n_busy;            /* the same: times that something else was in the way */
    /* guarded by the publisher's mu */
    unsigned refs; /* the thread's and the waiter's */
    struct op *o;  /* being carried out */
    bool given_up; /* nobody waits */
    bool whole;    /* publish_closed_now(); immutable */
    bool done;
    int result;
};

/* The time is up. Did anything get on meanwhile? Then there is as much again. */
static bool got_on(struct now *n)
{
    uint64_t now = patience_progress_count();
    if (now == n->seen)
        return false;
    n->seen = now;
    n->deadline_ns = clock_mono_ns() + n->limit_ns;
    return true;
}

/* The file it replaces is read and could not be brought here. That is tried some times (place_spare_readers()), each after a longer while: 1 after that, -EBUSY after too many. */
static int wait_for_readers(struct now *n)
{
    struct publisher *p = n->p;
    uint64_t until = clock_mono_ns() + (BUSY_MIN_NS << MIN(n->n_busy, 4u));
    if (n->n_busy++ >= BUSY_MAX)
        return -EBUSY;
    if (until > n->deadline_ns && !got_on(n))
        return -ETIMEDOUT;
    mutex_lock(&p->mu);
    while (!p->stopping && !n->given_up && cond_wait_until(&p->done, &p->mu, until))
        ;
    bool stopping = p->stopping;
    mutex_unlock(&p->mu);
    return stopping ? -ECANCELED : 1;
}

/* One step: 1 to go on, else what came of it. */
static int step(struct now *n)
{
    struct publisher *p = n->p;
    struct op *o = NULL, *busy = NULL;
    bool lost = false;
    mutex_lock(&p->mu);
    if (n->given_up) {
        mutex_unlock(&p->mu);
        return -EINTR;
    }
    GPtrArray *a = g_hash_table_lookup(p->by_ino, &n->in->ino);
    for (unsigned i = 0; a && i < a->len && !o; i++) {
        struct op *c = a->pdata[i];
        if (pubop_aside(c))
            lost = true;
        else if (n->whole && c->rec.state != OPS_QUEUED)
            continue;
        else if (queue_busy_locked(p, c))
            busy = c;
        else
            o = c;
    }
    if (!o && !busy) {
        mutex_unlock(&p->mu);
        return lost ? -ESTALE : 0;
    }
    if (!o) {
        bool in_time = cond_wait_until(&p->done, &p->mu, n->deadline_ns);
        bool stopping = p->stopping;
        mutex_unlock(&p->mu);
        return stopping ? -ECANCELED : in_time || got_on(n) ? 1 : -ETIMEDOUT;
    }
    queue_take_locked(p, o);
    o->whole = n->whole;
    n->o = o;
    mutex_unlock(&p->mu);
    int r = pubop_run(o, true, n->deadline_ns);
    mutex_lock(&p->mu);
    n->o = NULL;
    mutex_unlock(&p->mu);
    pubop_finish(o, r);
    if (r == -EBUSY)
        return wait_for_readers(n);
    if (r < 0 && r != -EAGAIN)
        return r;
    return r == -EAGAIN && clock_mono_ns() >= n->deadline_ns && !got_on(n) ? -ETIMEDOUT
                                                                           : 1; /* writers that never pause */
}

static void run(struct now *n)
{
    int r = 1;
    while (r > 0)
        r = step(n);
    n->result = r;
}

static void unref_locked(struct now *n)
{
    if (--n->refs == 0)
        g_free(n);
}

static void *now_main(void *arg)
{
    struct now *n = arg;
    struct publisher *p = n->p;
    (void)pthread_detach(pthread_self()); /* publish_stop() waits for n_now */
    run(n);
    inode_put(n->in);
    mutex_lock(&p->mu);
    n->done = true;
    p->n_now--;
    unref_locked(n);
    cond_broadcast(&p->done);
    mutex_unlock(&p->mu);
    return NULL;
}

/* The program's side. What any upload achieves counts as progress: they share the way to the store. */
static int await(struct now *n)
{
    struct publisher *p = n->p;
    uint64_t seen = patience_progress_count();
    int r = 0;
    mutex_lock(&p->mu);
    while (r == 0 && !n->done) {
        r = patience_wait(&p->done, &p->mu, UINT64_MAX);
        uint64_t now = patience_progress_count();
        if (now == seen)
            continue;
        seen = now;
        patience_renew();
        r = r == -ETIMEDOUT ? 0 : r;
    }
    r = n->done ? n->result : r;
    if (!n->done) {
        n->given_up = true;
        if (n->o)
            n->o->given_up = true;
        cond_broadcast(&p->done);
    }
    unref_locked(n);
    mutex_unlock(&p->mu);
    return r;
}

static int publish_so(struct fs *fs, struct inode *in, uint64_t deadline_ns, bool whole)
{
    struct publisher *p = fs->pub;
    pthread_t thread;
    struct now *n = g_new(struct now, 1);
    uint64_t now = clock_mono_ns();
    *n = (struct now){.p = p,
                      .in = inode_ref(in),
                      .limit_ns = deadline_ns > now ? deadline_ns - now : 0,
                      .deadline_ns = deadline_ns,
                      .seen = patience_progress_count(),
                      .whole = whole,
                      .refs = 2};
    mutex_lock(&p->mu);
    bool stopping = p->stopping;
    p->n_now += !stopping;
    mutex_unlock(&p->mu);
    int r = stopping ? -ECANCELED : thread_start(&thread, "publish-now", now_main, n);
    if (r == 0)
        return await(n);
    inode_put(n->in);
    g_free(n);
    if (stopping)
        return r;
    mutex_lock(&p->mu);
    p->n_now--;
    cond_broadcast(&p->done);
    mutex_unlock(&p->mu);
    return r;
}

int publish_now(struct fs *fs, struct inode *in, uint64_t deadline_ns)
{
    return publish_so(fs, in, deadline_ns, false);
}

int publish_closed_now(struct fs *fs, struct inode *in, uint64_t deadline_ns)
{
    return publish_so(fs, in, deadline_ns, true);
}

bool publish_keeps_others(struct fs *fs, uint64_t ino, bool *ret_due)
{
    struct publisher *p = fs->pub;
    bool keeps = false;
    *ret_due = false;
    mutex_lock(&p->mu);
    const GPtrArray *a = g_hash_table_lookup(p->by_ino, &ino);
    for (unsigned i = 0; a && i < a->len; i++) {
        const struct op *o = a->pdata[i];
        bool waited_for = o->closed && o->links->len > 0 && o->rec.state == OPS_QUEUED;
        keeps |= waited_for;
        *ret_due |= waited_for && !queue_busy_locked(p, o) && o->not_before_ns <= clock_mono_ns() &&
                    queue_eligible_locked(p, o);
    }
    mutex_unlock(&p->mu);
    return keeps;
}

void publish_let_go(struct fs *fs, uint64_t ino)
{
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    const GPtrArray *a = g_hash_table_lookup(p->by_ino, &ino);
    for (unsigned i = 0; a && i < a->len; i++)
        queue_set_content_locked(p, a->pdata[i], CONTENT_OPEN); /* what was closed stays in the order */
    mutex_unlock(&p->mu);
}
