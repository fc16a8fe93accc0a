/*
 * The thread that takes checksums of what is closed and not yet in the store (cache_sums.h), so that bytes the disk changes meanwhile are found
 * before they are published: behind an outage, a held name, a blocker, a daemon that is not running.
 *
 * A file's turn comes sums_delay_ns after its seal. What was published by then, which is nearly all while the store answers, costs nothing; what is being uploaded is looked
 * at again later. Its bytes are then mostly still in memory.
 */
#include "publish_sums.h"

#include "cache_sums.h"
#include "publish_internal.h"

struct due {
    uint64_t ino, at_ns;
};

void sums_note_locked(struct publisher *p, uint64_t ino)
{
    struct due *d = g_new(struct due, 1);
    *d = (struct due){ino, clock_mono_ns() + p->sums_delay_ns};
    g_queue_push_tail(&p->sums_due, d);
    if (g_queue_get_length(&p->sums_due) == 1)
        cond_signal(&p->sums_work);
}

/* Has the file a version to be published, and does nobody work on it? *ret_later: somebody does. */
static bool waits_locked(struct publisher *p, uint64_t ino, bool *ret_later) NO_TSA /* under mu */
{
    GPtrArray *a = g_hash_table_lookup(p->by_ino, &ino);
    bool busy = g_hash_table_contains(p->running_inos, &ino);
    for (unsigned i = 0; a && i < a->len; i++) {
        const struct op *o = a->pdata[i];
        if (o->content != CONTENT_SEALED || !S_ISREG(o->type))
            continue;
        *ret_later = busy;
        return !busy;
    }
    return false;
}

static bool sealed_version(struct inode *in, uint64_t *ret_vid, uint64_t *ret_gen)
{
    mutex_lock(&in->mu);
    bool sealed = in->rec.content == CONTENT_SEALED && in->rec.vid && !in->gone;
    *ret_vid = in->rec.vid;
    *ret_gen = in->rec.gen;
    mutex_unlock(&in->mu);
    return sealed;
}

static bool go_on(void *ctx)
{
    struct publisher *p = ctx;
    mutex_lock(&p->mu);
    bool go = !p->stopping;
    mutex_unlock(&p->mu);
    return go;
}

static int read_and_store(struct publisher *p, struct inode *in, struct cfile *cf, uint64_t vid, uint64_t gen)
{
    struct fs *fs = p->fs;
    g_autoptr(GBytes) sums = NULL;
    uint64_t vid_now, gen_now;
    int r = cache_sums_read(cf, gen, go_on, p, &sums);
    if (r < 0)
        return r;
    /* Every writer makes it another version before his first byte: of this one there was none. */
    if (!sealed_version(in, &vid_now, &gen_now) || vid_now != vid || gen_now != gen)
        return -EAGAIN;
    struct meta_batch *b = meta_batch_new(fs->meta);
    cache_sums_put(b, vid, sums);
    r = meta_commit(b, false);
    meta_batch_free(b);
    if (r == 0)
        metric_inc(M_sealed_sums);
    return r;
}

int sums_make(struct publisher *p, uint64_t ino)
{
    INODE_REF in = NULL;
    struct cfile *cf = NULL;
    uint64_t vid, gen;
    if (inode_get(p->fs, ino, &in) < 0 || !sealed_version(in, &vid, &gen))
        return 0;
    g_autoptr(GBytes) have = cache_sums_load(p->fs->meta, vid, gen);
    if (have)
        return 0;
    int r = content_use(in, &cf);
    if (r < 0)
        return r;
    r = read_and_store(p, in, cf, vid, gen);
    content_unuse(in, cf);
    return r;
}

/* The next one whose time has come, 0 when p is stopping. */
static uint64_t next_due_locked(struct publisher *p) NO_TSA /* under mu */
{
    while (!p->stopping) {
        struct due *d = g_queue_peek_head(&p->sums_due);
        if (!d) {
            cond_wait(&p->sums_work, &p->mu);
            continue;
        }
        if (clock_mono_ns() < d->at_ns) {
            (void)cond_wait_until(&p->sums_work, &p->mu, d->at_ns);
            continue;
        }
        uint64_t ino = d->ino;
        bool later = false;
        g_free(g_queue_pop_head(&p->sums_due));
        if (waits_locked(p, ino, &later))
            return ino;
        if (later)
            sums_note_locked(p, ino);
    }
    return 0;
}

void *sums_thread(void *arg)
{
    struct publisher *p = arg;
    uint64_t ino;
    mutex_lock(&p->mu);
    while ((ino = next_due_locked(p))) {
        mutex_unlock(&p->mu);
        int r = sums_make(p, ino);
        if (r < 0 && r != -EAGAIN && r != -ECANCELED)
            log_warn("publish", "an unpublished file could not be summed ino=%" G_GUINT64_FORMAT " r=%s", ino,
                     err_name(r));
        mutex_lock(&p->mu);
    }
    mutex_unlock(&p->mu);
    return NULL;
}
