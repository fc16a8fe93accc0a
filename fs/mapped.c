/*
 * See mapped.h. One thread looks at all; a watched file has a reference to its inode and uses its cache file. Snapshots, which wait for the store, are made by others.
 */
#include "mapped.h"

#include "attach.h"
#include "content.h"
#include "io_mode.h"
#include "local.h"
#include "overdue.h"
#include "publish.h"
#include "replaced.h"
#include "replay.h"
#include "tree.h"

#define LOOK_NS     NS_PER_S
#define LATE_NS     (100 * NS_PER_MS) /* while the kernel may only be late to let go of a file */
#define SNAPSHOT_NS (300 * NS_PER_S)
#define AGAIN_NS                                                                                                       \
    (10 *                                                                                                              \
     NS_PER_S) /* what was closed later waits for a file that is open for so long at most, if it can be published so */
#define SNAPSHOTS 4u /* at a time */

struct mapped_file {
    struct inode *in; /* owned reference */
    struct cfile *cf; /* owned use */
    uint64_t snapshot_at_ns;
};

void mapped_init(struct fs *fs)
{
    struct mapped *m = &fs->mapped;
    mutex_init(&m->mu, LOCK_MAPPED);
    cond_init(&m->wake);
    m->files = g_ptr_array_new();
    m->flushed = g_hash_table_new(NULL, NULL);
}

void mapped_fini(struct fs *fs)
{
    g_ptr_array_unref(fs->mapped.files);
    g_hash_table_unref(fs->mapped.flushed);
    cond_fini(&fs->mapped.wake);
    mutex_fini(&fs->mapped.mu);
}

static void let_go(struct mapped_file *f)
{
    content_unuse(f->in, f->cf);
    inode_put(f->in);
    g_free(f);
}

int mapped_add(struct inode *in)
{
    struct mapped *m = &in->fs->mapped;
    struct cfile *cf = NULL;
    mutex_lock(&in->mu);
    bool known = in->mapped;
    in->mapped = true;
    if (!known)
        in->mapped_at_ns = clock_mono_ns();
    mutex_unlock(&in->mu);
    if (known)
        return 0;
    int r = content_use(in, &cf);
    if (r < 0) {
        mutex_lock(&in->mu);
        in->mapped = false;
        mutex_unlock(&in->mu);
        return r;
    }
    struct mapped_file *f = g_new(struct mapped_file, 1);
    *f = (struct mapped_file){inode_ref(in), cf, clock_mono_ns() + SNAPSHOT_NS};
    log_info("content", "closed, but a mapping can still write to it ino=%" G_GUINT64_FORMAT, in->ino);
    mutex_lock(&m->mu);
    g_ptr_array_add(m->files, f);
    cond_signal(&m->wake);
    mutex_unlock(&m->mu);
    return 0;
}

void mapped_flushed(struct inode *in)
{
    struct mapped *m = &in->fs->mapped;
    mutex_lock(&in->mu);
    bool dirty = in->rec.content == CONTENT_CLOSING || in->rec.content == CONTENT_OPEN;
    bool news = dirty && in->rec.nlink > 0 && !in->flushed_watched;
    in->flushed_watched |= news;
    if (news) {
        in->again_at_ns = clock_mono_ns();
        in->flushed_at_ns = in->flushed_at_ns ? in->flushed_at_ns : in->again_at_ns; /* by a worker before */
        in->again_said = false;
    }
    mutex_unlock(&in->mu);
    if (!news)
        return;
    inode_ref(in);
    mutex_lock(&m->mu);
    (void)g_hash_table_add(m->flushed, in);
    mutex_unlock(&m->mu);
}

void mapped_sealed(struct inode *in)
{
    struct mapped *m = &in->fs->mapped;
    mutex_lock(&in->mu);
    mutex_lock(&m->mu);
    bool ours = g_hash_table_remove(
        m->flushed, in); /* else nobody watches it, or the thread that is looking at it sees that it is sealed */
    mutex_unlock(&m->mu);
    in->flushed_watched &= !ours;
    mutex_unlock(&in->mu);
    if (ours)
        inode_put(in);
}

void mapped_closed(struct inode *in)
{
    mutex_lock(&in->mu);
    bool closing = in->rec.content == CONTENT_CLOSING;
    in->flushed_at_ns = clock_mono_ns();
    mutex_unlock(&in->mu);
    if (closing)
        publish_content_state(in->fs, in->ino, CONTENT_CLOSING);
}

unsigned mapped_count(struct fs *fs)
{
    mutex_lock(&fs->mapped.mu);
    unsigned n = fs->mapped.files->len;
    mutex_unlock(&fs->mapped.mu);
    return n;
}

/* -EAGAIN: no, somebody has it open for writing again, or it has no name any more. It may have waited behind other snapshots for long. */
static int flush_unwritten(struct inode *in)
{
    content_gate_enter(in);
    mutex_lock(&in->mu);
    bool only_mapped = in->io.kernel_writes && in->n_writers == 0 && in->rec.nlink > 0;
    mutex_unlock(&in->mu);
    int r = only_mapped ? content_flush_gated(in, false) : -EAGAIN;
    content_gate_leave(in);
    return r;
}

static void end_snapshot(struct inode *in)
{
    mutex_lock(&in->mu);
    in->snapping = false;
    mutex_unlock(&in->mu);
    inode_put(in);
}

static void take_snapshot(void *arg)
{
    struct inode *in = arg;
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r == 0)
        r = flush_unwritten(in);
    bool left_out = r == -EAGAIN;
    if (r == 0)
        r = publish_now(in->fs, in, clock_mono_ns() + in->fs->cfg->op_timeout_ns);
    if (r < 0 && !left_out)
        log_warn("content",
                 "no snapshot of a mapped file was published, the next one is tried in 5 minutes ino=%" G_GUINT64_FORMAT
                 " r=%s",
                 in->ino, err_name(r));
    if (cf)
        content_unuse(in, cf);
    end_snapshot(in);
}

/* Unless the one before is still on its way. */
static void begin_snapshot(struct inode *in, void (*take)(void *arg))
{
    mutex_lock(&in->mu);
    bool begins = !in->snapping;
    in->snapping = true;
    mutex_unlock(&in->mu);
    if (begins && !workq_push(in->fs->mapped.snapshots, false, take, inode_ref(in)))
        inode_put(in); /* stopping */
}

/* True when there is nothing left to watch: sealed, or somebody has it open for writing again and will seal it. */
static bool look(struct mapped_file *f)
{
    struct inode *in = f->in;
    int r = content_seal(in);
    if (r < 0)
        log_warn("content", "a file whose mapping ended could not be sealed ino=%" G_GUINT64_FORMAT " r=%s", in->ino,
                 err_name(r));
    mutex_lock(&in->mu);
    bool done = !in->io.kernel_writes || in->n_writers > 0;
    bool named = in->rec.nlink > 0;
    if (done)
        in->mapped = false;
    mutex_unlock(&in->mu);
    uint64_t now = clock_mono_ns();
    if (done) /* a snapshot may have looked at a conflict, and left it for now */
        publish_writers_gone(in->fs, in->ino);
    if (done || !named || now < f->snapshot_at_ns)
        return done;
    f->snapshot_at_ns = now + SNAPSHOT_NS;
    begin_snapshot(in, take_snapshot);
    return false;
}

static void take_closed(void *arg)
{
    struct inode *in = arg;
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r == 0) {
        log_info(
            "content",
            "a file that was closed is open again, others wait for it: it is published as it is ino=%" G_GUINT64_FORMAT,
            in->ino);
        r = publish_closed_now(in->fs, in, clock_mono_ns() + in->fs->cfg->op_timeout_ns);
        content_unuse(in, cf);
    }
    if (r < 0)
        log_debug("content", "no snapshot of what was closed yet ino=%" G_GUINT64_FORMAT " r=%s", in->ino, err_name(r));
    end_snapshot(in);
}

/* Once: what was closed is gone, what is to come instead only its close tells. */
static void say_kept(struct inode *in)
{
    g_autofree char *path = NULL;
    mutex_lock(&in->mu);
    bool said = in->again_said;
    in->again_said = true;
    mutex_unlock(&in->mu);
    if (!said && tree_path_of(in->fs, in->ino, &path) == 0)
        log_warn(
            "content",
            "closed and then opened again and overwritten before it was published: what was closed after it waits until it is closed, or for `sluice publish --skip` path='%s'",
            path);
}

/* What a look at a file that is open finds. */
struct found {
    bool open;    /* somebody has it open for writing */
    bool closing; /* and nothing was written since somebody else closed it */
    bool news;    /* something was, past us */
    bool idle;    /* that close is long ago */
    bool late;    /* the beginning of the watch is */
};

static void find_flushed(struct inode *in, struct found *ret)
{
    uint64_t now = clock_mono_ns();
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    uint32_t state = in->rec.content;
    ret->open = in->n_writers > 0 && in->rec.nlink > 0 && (state == CONTENT_CLOSING || state == CONTENT_OPEN);
    ret->closing = ret->open && state == CONTENT_CLOSING;
    ret->news = ret->closing && in->io.kernel_writes && in->n_changes != in->flushed_changes;
    ret->idle = now - in->flushed_at_ns >= AGAIN_NS;
    ret->late = now - in->again_at_ns >= AGAIN_NS;
    mutex_unlock(&in->mu);
}

/* True when there is nothing left to watch: written on, closed, sealed, or nobody waits for it. */
static bool look_flushed(struct inode *in)
{
    struct found f;
    bool due = false;
    content_gate_enter(in); /* other closes, the last one among them, come wholly before or after */
    find_flushed(in, &f);
    int r = f.news ? content_begin_change_gated(in) : 0;
    if (f.closing && !f.news && f.idle)
        publish_let_go(in->fs, in->ino);
    bool keeps = f.open && publish_keeps_others(in->fs, in->ino, &due);
    bool done = !keeps && (!f.closing || f.news || f.idle);
    mutex_lock(&in->mu);
    in->flushed_watched = !done;
    mutex_unlock(&in->mu);
    content_gate_leave(in);
    if (r < 0)
        log_warn("content", "a file that is still being written blocks others ino=%" G_GUINT64_FORMAT " r=%s", in->ino,
                 err_name(r));
    if (due && f.late && content_keeps_closed(in))
        begin_snapshot(in, take_closed);
    else if (due && f.late)
        say_kept(in);
    return done;
}

static void look_at_flushed(struct mapped *m)
{
    GHashTableIter it;
    void *in;
    mutex_lock(&m->mu);
    GHashTable *list = g_steal_pointer(&m->flushed);
    m->flushed = g_hash_table_new(NULL, NULL);
    mutex_unlock(&m->mu);
    g_hash_table_iter_init(&it, list);
    while (g_hash_table_iter_next(&it, &in, NULL)) {
        if (look_flushed(in)) {
            inode_put(in);
            continue;
        }
        mutex_lock(&m->mu);
        (void)g_hash_table_add(m->flushed, in);
        mutex_unlock(&m->mu);
    }
    g_hash_table_unref(list);
}

static void *mapped_main(void *arg)
{
    struct fs *fs = arg;
    struct mapped *m = &fs->mapped;
    mutex_lock(&m->mu);
    while (!m->stop) {
        (void)cond_wait_until(&m->wake, &m->mu, clock_mono_ns() + (m->files->len ? LATE_NS : LOOK_NS));
        mutex_unlock(&m->mu);
        look_at_flushed(m);
        attach_expire(fs);
        replay_expire(fs);
        local_expire(fs);
        overdue_watch(fs);
        replaced_make_room(fs);
        mutex_lock(&m->mu);
        for (unsigned i = 0; i < m->files->len && !m->stop;) {
            struct mapped_file *f = m->files->pdata[i]; /* only this thread removes */
            mutex_unlock(&m->mu);
            bool done = look(f);
            mutex_lock(&m->mu);
            if (done)
                g_ptr_array_remove_index(m->files, i);
            else
                i++;
            mutex_unlock(&m->mu);
            if (done)
                let_go(f);
            mutex_lock(&m->mu);
        }
    }
    mutex_unlock(&m->mu);
    return NULL;
}

int mapped_start(struct fs *fs)
{
    int r = workq_new("snapshot", SNAPSHOTS, &fs->mapped.snapshots);
    if (r < 0)
        return r;
    r = thread_start(&fs->mapped.thread, "mapped", mapped_main, fs);
    fs->mapped.running = r == 0;
    return r;
}

void mapped_stop(struct fs *fs)
{
    struct mapped *m = &fs->mapped;
    mutex_lock(&m->mu);
    m->stop = true;
    cond_broadcast(&m->wake);
    mutex_unlock(&m->mu);
    if (m->running)
        (void)pthread_join(m->thread, NULL);
    m->running = false;
    workq_free(g_steal_pointer(&m->snapshots));
    for (unsigned i = 0; i < m->files->len; i++)
        let_go(m->files->pdata[i]);
    g_ptr_array_set_size(m->files, 0);
    GHashTableIter it;
    void *in;
    g_hash_table_iter_init(&it, m->flushed);
    while (g_hash_table_iter_next(&it, &in, NULL))
        inode_put(in);
    g_hash_table_remove_all(m->flushed);
}
