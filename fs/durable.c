/* See durable.h. A sync is that of an upload that begins (publish_run.c): without the content gate, so a writer who comes meanwhile waits for nothing. */
#include "durable.h"

#include "content.h"

#define LOOK_NS  NS_PER_S /* between two turns of the thread: one sync of the journal each */
#define TICK_NS  (250 * NS_PER_MS)
#define PARALLEL 8u /* syncs at once of a stop: the file system writes its own journal once for several */

struct durable {
    pthread_t thread;
    bool running; /* owned by who starts and stops */

    struct mutex mu; /* class DURABLE */
    struct cond work;
    /* guarded by mu */
    GQueue due; /* struct due, by time */
    uint64_t delay_ns;
    bool stop;
};

struct due {
    uint64_t ino, at_ns;
};

void durable_init(struct fs *fs)
{
    struct durable *d = fs->durable = g_new0(struct durable, 1);
    d->delay_ns = DURABLE_DELAY_NS;
    mutex_init(&d->mu, LOCK_DURABLE);
    cond_init(&d->work);
    g_queue_init(&d->due);
}

void durable_fini(struct fs *fs)
{
    struct durable *d = fs->durable;
    g_queue_clear_full(&d->due, g_free);
    cond_fini(&d->work);
    mutex_fini(&d->mu);
    g_free(d);
}

void durable_set_delay(struct fs *fs, uint64_t delay_ns)
{
    struct durable *d = fs->durable;
    mutex_lock(&d->mu);
    d->delay_ns = delay_ns;
    for (GList *l = d->due.head; l; l = l->next) {
        struct due *e = l->data;
        e->at_ns = MIN(e->at_ns, clock_mono_ns() + delay_ns);
    }
    cond_signal(&d->work);
    mutex_unlock(&d->mu);
}

void durable_note(struct fs *fs, uint64_t ino)
{
    struct durable *d = fs->durable;
    struct due *e = g_new(struct due, 1);
    mutex_lock(&d->mu);
    *e = (struct due){ino, clock_mono_ns() + d->delay_ns};
    g_queue_push_tail(&d->due, e);
    if (g_queue_get_length(&d->due) == 1)
        cond_signal(&d->work);
    mutex_unlock(&d->mu);
}

/* ---- one file ---- */

/* ended: whatever its writers did not close or not let go of stays as it is, so it is worth as much as what was closed. Not what a mapping may go on writing. */
static bool is_owed(struct inode *in, bool ended)
{
    mutex_lock(&in->mu);
    uint32_t content = in->rec.content;
    bool closed = content == CONTENT_SEALED || (ended && content == CONTENT_CLOSING && !in->mapped);
    bool owed = (closed && !(in->rec.flags & INODE_DATA_SYNCED)) || (ended && content == CONTENT_OPEN);
    owed = owed && S_ISREG(in->rec.mode) && in->rec.vid && !in->gone && in->rec.nlink > 0;
    mutex_unlock(&in->mu);
    return owed;
}

int durable_sync(struct inode *in)
{
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r == 0) {
        r = content_sync_bytes(in);
        content_unuse(in, cf);
    }
    if (r < 0)
        log_warn("content", "a file could not be brought to the disk ino=%" G_GUINT64_FORMAT " r=%s", in->ino,
                 err_name(r));
    return r;
}

/* 1: it is on the disk now, 0: nothing was to do. */
static int sync_one(struct fs *fs, uint64_t ino, bool ended)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, ino, &in);
    if (r < 0 || !is_owed(in, ended))
        return r == -ENOENT ? 0 : r;
    r = durable_sync(in);
    return r < 0 ? r : 1;
}

/* ---- the thread ---- */

static uint64_t take_due_locked(struct durable *d) REQUIRES(d->mu)
{
    struct due *e = d->stop ? NULL : g_queue_peek_head(&d->due);
    if (!e || e->at_ns > clock_mono_ns())
        return 0;
    uint64_t ino = e->ino;
    g_free(g_queue_pop_head(&d->due));
    return ino;
}

/* All whose time has come; then the journal, once. */
static void take_turn(struct fs *fs)
{
    struct durable *d = fs->durable;
    unsigned n_synced = 0;
    for (uint64_t ino = 1; ino;) {
        mutex_lock(&d->mu);
        ino = take_due_locked(d);
        mutex_unlock(&d->mu);
        n_synced += ino && sync_one(fs, ino, false) > 0;
    }
    int r = n_synced ? meta_sync(fs->meta) : 0;
    if (r < 0)
        log_warn("content", "the journal could not be written to the disk r=%s", err_name(r));
}

static void *durable_main(void *arg)
{
    struct fs *fs = arg;
    struct durable *d = fs->durable;
    mutex_lock(&d->mu);
    while (!d->stop) {
        const struct due *e = g_queue_peek_head(&d->due);
        if (!e) {
            cond_wait(&d->work, &d->mu);
            continue;
        }
        (void)cond_wait_until(&d->work, &d->mu, MAX(e->at_ns, clock_mono_ns() + LOOK_NS));
        mutex_unlock(&d->mu);
        take_turn(fs);
        mutex_lock(&d->mu);
    }
    mutex_unlock(&d->mu);
    return NULL;
}

int durable_start(struct fs *fs)
{
    struct durable *d = fs->durable;
    int r = thread_start(&d->thread, "durable", durable_main, fs);
    d->running = r == 0;
    return r;
}

void durable_stop(struct fs *fs)
{
    struct durable *d = fs->durable;
    mutex_lock(&d->mu);
    d->stop = true;
    cond_broadcast(&d->work);
    mutex_unlock(&d->mu);
    if (d->running)
        (void)pthread_join(d->thread, NULL);
    d->running = false;
}

/* ---- a stop ---- */

struct sweep {
    struct fs *fs;
    bool ended;
    GArray *items;    /* struct item */
    GHashTable *lost; /* &ino of files whose disk is not used: it may not answer either */
    /* atomic */
    _Atomic uint64_t files, bytes; /* left */
    atomic_int err;                /* the first */
    atomic_bool enough;
};

struct item {
    struct sweep *s;
    uint64_t ino, bytes;
};

static void take_lost(void *ctx, uint64_t ino, const char *path)
{
    g_hash_table_add(ctx, g_memdup2(&ino, sizeof ino));
}

static int take_dirty(void *ctx, uint64_t vid, uint64_t ino)
{
    struct sweep *s = ctx;
    if (g_hash_table_contains(s->lost, &ino))
        return 0;
    struct item it = {s, ino, cache_dirty_bytes_of(s->fs->cache, vid)};
    g_array_append_val(s->items, it);
    atomic_fetch_add(&s->files, 1);
    atomic_fetch_add(&s->bytes, it.bytes);
    return 0;
}

static void run_item(void *arg)
{
    const struct item *it = arg;
    struct sweep *s = it->s;
    int none = 0, r = atomic_load(&s->enough) ? 0 : sync_one(s->fs, it->ino, s->ended);
    if (r < 0)
        (void)atomic_compare_exchange_strong(&s->err, &none, r);
    atomic_fetch_sub(&s->bytes, it->bytes);
    atomic_fetch_sub(&s->files, 1);
}

static int run_all(struct sweep *s, durable_tick_fn *tick, void *ctx)
{
    struct workq *q = NULL;
    int r = workq_new("durable", PARALLEL, &q);
    for (unsigned i = 0; r == 0 && i < s->items->len; i++)
        (void)workq_push(q, false, run_item, &g_array_index(s->items, struct item, i)); /* nobody stops it before us */
    uint64_t next_ns = clock_mono_ns() + TICK_NS;
    while (r == 0 && tick && workq_load(q) > 0 && !atomic_load(&s->enough)) {
        g_usleep(2000);
        if (clock_mono_ns() < next_ns)
            continue;
        next_ns = clock_mono_ns() + TICK_NS;
        struct durable_left left = {atomic_load(&s->files), atomic_load(&s->bytes)};
        if (tick(ctx, &left) != 0)
            atomic_store(&s->enough, true);
    }
    workq_free(q);
    return r < 0 ? r : atomic_load(&s->enough) ? -ECANCELED : atomic_load(&s->err);
}

int durable_all(struct fs *fs, bool ended, durable_tick_fn *tick, void *ctx)
{
    g_autoptr(GArray) items = g_array_new(FALSE, FALSE, sizeof(struct item));
    g_autoptr(GHashTable) lost = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    struct sweep s = {.fs = fs, .ended = ended, .items = items, .lost = lost};
    cache_lost_each(fs->cache, UINT_MAX, take_lost, lost);
    int r = cache_dirty_each(fs->cache, take_dirty, &s);
    return r < 0 || items->len == 0 ? r : run_all(&s, tick, ctx);
}
