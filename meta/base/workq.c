/* Thread pool: two FIFO queues (urgent first) under one lock; stop drains, then joins. */
#include "base/workq.h"

#include "base/sync.h"

#include <glib.h>

struct item {
    workq_fn *fn;
    void *arg;
};

struct workq {
    struct mutex mu;
    /* guarded by mu */
    struct cond ready;
    GQueue urgent, normal; /* struct item, owned */
    unsigned n_running;
    bool stopping;
    /* owned by who started the queue */
    pthread_t *threads;
    unsigned n_threads;
};

static struct item *next_locked(struct workq *q) REQUIRES(q->mu)
{
    struct item *it = g_queue_pop_head(&q->urgent);
    return it ? it : g_queue_pop_head(&q->normal);
}

static void *worker(void *arg)
{
    struct workq *q = arg;
    mutex_lock(&q->mu);
    for (;;) {
        struct item *it = next_locked(q);
        if (!it && q->stopping)
            break;
        if (!it) {
            cond_wait(&q->ready, &q->mu);
            continue;
        }
        q->n_running++;
        mutex_unlock(&q->mu);
        it->fn(it->arg);
        g_free(it);
        mutex_lock(&q->mu);
        q->n_running--;
    }
    mutex_unlock(&q->mu);
    return NULL;
}

int workq_new(const char *name, unsigned n_threads, struct workq **ret_q)
{
    struct workq *q = g_new0(struct workq, 1);
    mutex_init(&q->mu, LOCK_WORKQ);
    cond_init(&q->ready);
    g_queue_init(&q->urgent);
    g_queue_init(&q->normal);
    q->threads = g_new0(pthread_t, n_threads);
    for (unsigned i = 0; i < n_threads; i++) {
        g_autofree char *label = g_strdup_printf("%.10s-%u", name, i);
        int r = thread_start(&q->threads[i], label, worker, q);
        if (r < 0) {
            workq_free(q);
            return r;
        }
        q->n_threads++;
    }
    *ret_q = q;
    return 0;
}

bool workq_push(struct workq *q, bool urgent, workq_fn *fn, void *arg)
{
    mutex_lock(&q->mu);
    bool ok = !q->stopping;
    if (ok) {
        struct item *it = g_new(struct item, 1);
        *it = (struct item){fn, arg};
        g_queue_push_tail(urgent ? &q->urgent : &q->normal, it);
        cond_signal(&q->ready);
    }
    mutex_unlock(&q->mu);
    return ok;
}

unsigned workq_load(struct workq *q)
{
    mutex_lock(&q->mu);
    unsigned n = g_queue_get_length(&q->urgent) + g_queue_get_length(&q->normal) + q->n_running;
    mutex_unlock(&q->mu);
    return n;
}

void workq_stop(struct workq *q)
{
    mutex_lock(&q->mu);
    q->stopping = true;
    cond_broadcast(&q->ready);
    mutex_unlock(&q->mu);
    for (unsigned i = 0; i < q->n_threads; i++)
        pthread_join(q->threads[i], NULL);
    q->n_threads = 0;
}

void workq_free(struct workq *q)
{
    if (!q)
        return;
    workq_stop(q);
    cond_fini(&q->ready);
    mutex_fini(&q->mu);
    g_free(q->threads);
    g_free(q);
}
