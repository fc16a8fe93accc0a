/* See beat.h. The locks are taken and given back one by one: a thread that hangs with one of them stops the beat. */
#include "beat.h"

#include "publish.h"

#define BEAT_NS NS_PER_S
#define READ_AGAIN_NS                                                                                                  \
    (600 * NS_PER_S) /* what failed may fail in the next process too, which the one after it would have to wait for */

struct beat {
    struct fs *fs;            /* borrowed */
    uint64_t may_end_ns;      /* not counted as one of those that die again and again */
    uint64_t may_end_read_ns; /* because of a read that failed */
    bool said;                /* owned by the thread */
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

/*
 * After a write, or a read for one, that failed the database takes no more from this process (meta_db.c). So once the disk takes writes again another process has to open it. Not
 * before it would be followed by others without end: one that cannot open it is given up after a few. Whether the disk lets that be read nobody knows before somebody needs it again:
 * so after a read the next process comes every ten minutes at most.
 */
static void look_at_database(struct beat *b)
{
    struct fs *fs = b->fs;
    bool stuck = meta_is_stuck(fs->meta), read = stuck && meta_is_stuck_by_read(fs->meta);
    uint64_t now = clock_mono_ns();
    if (!stuck || atomic_load(&fs->supervisor_pid) == 0 || now < b->may_end_ns)
        return;
    int r = meta_try_disk(fs->meta);
    if (r == 0 && (!read || now >= b->may_end_read_ns))
        fs_start_anew(fs, read ? "the database could not be read, and is opened again"
                               : "the database could not be written, and its disk takes writes again");
    if (!b->said && r == 0)
        log_err("mount", "the database cannot be read: nothing can be changed until it is opened again wait_s=%u",
                (unsigned)((b->may_end_read_ns - now) / NS_PER_S));
    else if (!b->said)
        log_err("mount", "the database cannot be %s: nothing can be changed until its disk takes writes r=%s",
                read ? "read" : "written", err_name(r));
    b->said = true;
}

void beat_works(struct fs *fs)
{
    atomic_store(&fs->session->head->beat_ns, clock_mono_ns());
}

static void *beat_main(void *arg)
{
    struct beat *b = arg;
    bool stop = false;
    while (!stop) {
        look_round(b->fs);
        look_at_database(b);
        beat_works(b->fs);
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
    uint64_t now = clock_mono_ns();
    b->may_end_ns = now + fs->cfg->settle_ns + BEAT_NS;
    b->may_end_read_ns = MAX(b->may_end_ns, now + READ_AGAIN_NS);
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
