/* See beat.h. The locks are taken and given back one by one: a thread that hangs with one of them stops the beat. */
#include "beat.h"

#include "publish.h"

#define BEAT_NS NS_PER_S

struct beat {
    struct fs *fs; /* borrowed */
    pthread_t thread;
    struct mutex mu;
    /* guarded by mu */
    struct cond wake;
    bool stop;
};

static void touch(struct mutex *mu)
{
    mutex_lock(mu);
    mutex_unlock(mu);
}

static void look_round(struct fs *fs)
{
    struct meta_inode rec = {0};
    touch(&fs->ns);
    touch(&fs->table_mu);
    touch(&fs->handle_mu);
    touch(&fs->io_mu);
    touch(&fs->list_mu);
    publish_touch(fs->pub);
    int r = meta_inode_get(fs->meta, META_ROOT_INO, &rec);
    if (r < 0) /* another worker would fare no better: it is an answer */
        log_debug("mount", "the root cannot be read r=%s", err_name(r));
    meta_inode_clear(&rec);
}

static void *beat_main(void *arg)
{
    struct beat *b = arg;
    bool stop = false;
    while (!stop) {
        look_round(b->fs);
        atomic_store(&b->fs->session->head->beat_ns, clock_mono_ns());
        uint64_t next = clock_mono_ns() + BEAT_NS;
        mutex_lock(&b->mu);
        while (!b->stop && cond_wait_until(&b->wake, &b->mu, next))
            ;
        stop = b->stop;
        mutex_unlock(&b->mu);
    }
    return NULL;
}

static void beat_free(struct beat *b)
{
    cond_fini(&b->wake);
    mutex_fini(&b->mu);
    g_free(b);
}

int beat_start(struct fs *fs, struct beat **ret)
{
    struct beat *b = g_new0(struct beat, 1);
    b->fs = fs;
    mutex_init(&b->mu, LOCK_FUSE_LOOP);
    cond_init(&b->wake);
    int r = thread_start(&b->thread, "beat", beat_main, b);
    if (r < 0)
        beat_free(b);
    else
        *ret = b;
    return r;
}

void beat_stop(struct beat *b)
{
    if (!b)
        return;
    mutex_lock(&b->mu);
    b->stop = true;
    cond_broadcast(&b->wake);
    mutex_unlock(&b->mu);
    (void)pthread_join(b->thread, NULL);
    beat_free(b);
}
