/*
 * The threads that carry parts to the store, shared by all sessions, and the one budget for part buffers.
 *
 * Sessions with work stand in a ring; a worker takes one part of the first and puts the session behind the others, so that many writers
 * share the uplink evenly however long their queues are. Queues hold part numbers only: bytes are read when a worker
 * has the memory, so a slow store holds back nothing but itself.
 *
 * Memory: max_uploads x part_bytes, given out in the order of asking. A part larger than that (they double every 1,000 parts) gets it
 * when nobody else has any.
 *
 * A worker that carries a file's last part lets go of the file, and may close it.
 *
 * Threads upload-N: started by upload_pool_start, end in upload_pool_stop; they block on store, disk and database. Other threads may let go of files, and so
 * ask for aborts, until upload_pool_free: nobody carries those out any more, the next start does.
 */
#include "base/log.h"
#include "upload.h"

struct upload_pool {
    /* immutable after start */
    struct cache *c;
    pthread_t *threads;
    unsigned n_threads;
    uint64_t budget_bytes;

    struct mutex mu;  /* UPLOAD_POOL */
    struct cond work; /* ready or aborts filled, stop */
    struct cond room; /* memory came back or the turn changed, stop */
    /* guarded by mu */
    GQueue ready;    /* struct upload, borrowed: they have active parts */
    GQueue aborts;   /* struct meta_upload, owned */
    unsigned n_idle; /* workers that wait for either */
    bool stop;
    uint64_t used_bytes, peak_bytes;
    uint64_t next_ticket, turn;
};

static void abort_free(struct meta_upload *rec)
{
    meta_upload_clear(rec);
    g_free(rec);
}

static void run_abort(struct upload_pool *pool, struct meta_upload *rec)
{
    int r = upload_abort_recorded(pool->c, rec);
    if (r < 0)
        log_debug("upload", "abort left for the next start key='%s' r=%s", rec->key, err_name(r));
    abort_free(rec);
}

static void *worker(void *arg)
{
    struct upload_pool *pool = arg;
    mutex_lock(&pool->mu);
    for (;;) {
        struct meta_upload *rec = NULL;
        struct upload *u = NULL;
        uint32_t i = 0;
        pool->n_idle++;
        while (!pool->stop && g_queue_is_empty(&pool->ready) && g_queue_is_empty(&pool->aborts))
            cond_wait(&pool->work, &pool->mu);
        pool->n_idle--;
        if (pool->stop)
            break;
        u = g_queue_pop_head(&pool->ready);
        if (u) {
            i = GPOINTER_TO_UINT(g_queue_pop_head(&u->todo)) - 1;
            u->ready = !g_queue_is_empty(&u->todo);
            if (u->ready)
                g_queue_push_tail(&pool->ready, u);
        } else {
            rec = g_queue_pop_head(&pool->aborts);
        }
        mutex_unlock(&pool->mu);
        if (u)
            upload_part_run(u, i);
        else
            run_abort(pool, rec);
        mutex_lock(&pool->mu);
    }
    mutex_unlock(&pool->mu);
    return NULL;
}

int upload_pool_start(struct cache *c)
{
    struct upload_pool *pool = g_new0(struct upload_pool, 1);
    unsigned n = MAX(c->cfg.max_uploads, 1);
    struct upload_layout l;
    upload_layout_init(&l, c->cfg.part_bytes, objstore_limits(c->store));
    pool->c = c;
    pool->budget_bytes = n * l.part_bytes;
    pool->threads = g_new0(pthread_t, n);
    mutex_init(&pool->mu, LOCK_UPLOAD_POOL);
    cond_init(&pool->work);
    cond_init(&pool->room);
    c->uploads = pool;
    for (; pool->n_threads < n; pool->n_threads++) {
        char name[16];
        g_snprintf(name, sizeof name, "upload-%u", pool->n_threads);
        int r = thread_start(&pool->threads[pool->n_threads], name, worker, pool);
        if (r < 0) {
            upload_pool_stop(c);
            return r;
        }
    }
    return 0;
}

/* What no worker has begun is taken back; its files go with it. Workers have ended. */
static void drop_queued(struct upload_pool *pool)
{
    struct upload *u;
    while ((u = g_queue_peek_head(&pool->ready)) != NULL) {
        struct cfile *cf = cache_file_ref(u->cf);
        mutex_lock(&u->mu);
        u->streaming = false;
        upload_cancel_locked(u);
        mutex_unlock(&u->mu);
        cache_file_unref(cf);
    }
}

void upload_pool_stop(struct cache *c)
{
    struct upload_pool *pool = c->uploads;
    if (!pool)
        return;
    mutex_lock(&pool->mu);
    pool->stop = true;
    cond_broadcast(&pool->work);
    cond_broadcast(&pool->room);
    mutex_unlock(&pool->mu);
    for (unsigned i = 0; i < pool->n_threads; i++)
        (void)pthread_join(pool->threads[i], NULL); /* joinable and ours */
    pool->n_threads = 0;
    drop_queued(pool);
    g_assert(g_queue_is_empty(&pool->ready) && pool->used_bytes == 0);
}

void upload_pool_free(struct cache *c)
{
    struct upload_pool *pool = c->uploads;
    if (!pool)
        return;
    for (struct meta_upload *rec; (rec = g_queue_pop_head(&pool->aborts)) != NULL;)
        abort_free(rec);
    cond_fini(&pool->room);
    cond_fini(&pool->work);
    mutex_fini(&pool->mu);
    g_free(pool->threads);
    g_free(pool);
    c->uploads = NULL;
}

void upload_pool_push(struct upload *u, uint32_t i)
{
    struct upload_pool *pool = u->pool;
    mutex_lock(&pool->mu);
    g_queue_push_tail(&u->todo, GUINT_TO_POINTER(i + 1));
    if (!u->ready)
        g_queue_push_tail(&pool->ready, u);
    u->ready = true;
    cond_signal(&pool->work);
    mutex_unlock(&pool->mu);
}

void upload_pool_take_back(struct upload *u, GArray *out)
{
    struct upload_pool *pool = u->pool;
    mutex_lock(&pool->mu);
    for (void *p; (p = g_queue_pop_head(&u->todo)) != NULL;) {
        uint32_t i = GPOINTER_TO_UINT(p) - 1;
        g_array_append_val(out, i);
    }
    if (u->ready)
        g_queue_remove(&pool->ready, u);
    u->ready = false;
    mutex_unlock(&pool->mu);
}

void upload_pool_abort_later(struct upload_pool *pool, struct meta_upload *rec)
{
    struct meta_upload *own = g_new(struct meta_upload, 1);
    *own = *rec;
    *rec = (struct meta_upload){0};
    mutex_lock(&pool->mu);
    g_queue_push_tail(&pool->aborts, own);
    cond_signal(&pool->work);
    mutex_unlock(&pool->mu);
}

bool upload_pool_is_idle(struct upload_pool *pool)
{
    mutex_lock(&pool->mu);
    bool idle = pool->n_idle > g_queue_get_length(&pool->ready) + pool->n_threads / 2;
    mutex_unlock(&pool->mu);
    return idle;
}

static bool room_locked(const struct upload_pool *pool, size_t n)
{
    return pool->used_bytes == 0 || pool->used_bytes + n <= pool->budget_bytes;
}

void *upload_buf_get(struct upload_pool *pool, size_t n)
{
    mutex_lock(&pool->mu);
    uint64_t ticket = pool->next_ticket++;
    while (!pool->stop && (pool->turn != ticket || !room_locked(pool, n)))
        cond_wait(&pool->room, &pool->mu);
    bool stop = pool->stop;
    if (!stop) {
        pool->turn++;
        pool->used_bytes += n;
        pool->peak_bytes = MAX(pool->peak_bytes, pool->used_bytes);
        cond_broadcast(&pool->room);
    }
    mutex_unlock(&pool->mu);
    if (stop)
        return NULL;
    void *buf = g_try_malloc(MAX(n, 1));
    if (!buf)
        upload_buf_put(pool, NULL, n);
    return buf;
}

void upload_buf_put(struct upload_pool *pool, void *buf, size_t n)
{
    g_free(buf);
    mutex_lock(&pool->mu);
    g_assert(pool->used_bytes >= n);
    pool->used_bytes -= n;
    cond_broadcast(&pool->room);
    mutex_unlock(&pool->mu);
}

uint64_t upload_pool_peak_bytes(struct upload_pool *pool)
{
    mutex_lock(&pool->mu);
    uint64_t n = pool->peak_bytes;
    mutex_unlock(&pool->mu);
    return n;
}

uint64_t upload_pool_budget_bytes(struct upload_pool *pool)
{
    return pool->budget_bytes;
}
