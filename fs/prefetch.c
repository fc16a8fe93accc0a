/*
 * See prefetch.h. What is known of directories is under one lock, held for arithmetic only. An open that calls for more queues one job, which picks the
 * files; each file is then begun by a job of its own. Directories are forgotten, the least lately used first, beyond DIRS_MAX or REMEMBERED_MAX.
 */
#include "prefetch.h"

#include "content.h"
#include "prefetch_order.h"
#include "tree.h"

#define THREADS        4u
#define DIRS_MAX       1024u
#define REMEMBERED_MAX (1u << 18) /* opens, of all directories */

struct dir {
    uint64_t ino;
    struct order *order; /* owned */
    GList link;          /* in prefetch.lru */
};

struct prefetch {
    struct workq *q; /* immutable */
    uint64_t max_bytes;
    struct mutex mu; /* PREFETCH */
    /* guarded by mu */
    GHashTable *dirs; /* &ino -> struct dir */
    GQueue lru;       /* head: least lately used */
    struct order_counts counts, told;
};

int prefetch_open(struct fs *fs)
{
    if (fs->cfg->prefetch == SWITCH_OFF)
        return 0;
    struct cache_usage u;
    cache_usage(fs->cache, &u);
    struct prefetch *p = g_new0(struct prefetch, 1);
    int r = workq_new("prefetch", THREADS, &p->q);
    if (r < 0) {
        g_free(p);
        return r;
    }
    p->max_bytes = u.limit_bytes / PREFETCH_SHARE;
    mutex_init(&p->mu, LOCK_PREFETCH);
    p->dirs = g_hash_table_new(g_int64_hash, g_int64_equal);
    g_queue_init(&p->lru);
    fs->prefetch = p;
    return 0;
}

static void forget_dir_locked(struct prefetch *p, struct dir *d) REQUIRES(p->mu)
{
    g_queue_unlink(&p->lru, &d->link);
    g_hash_table_remove(p->dirs, &d->ino);
    order_free(d->order);
    g_free(d);
}

void prefetch_close(struct fs *fs)
{
    struct prefetch *p = fs->prefetch;
    if (!p)
        return;
    workq_free(p->q); /* its jobs do nothing any more: the daemon is stopping */
    mutex_lock(&p->mu);
    while (p->lru.head)
        forget_dir_locked(p, p->lru.head->data);
    mutex_unlock(&p->mu);
    g_hash_table_unref(p->dirs);
    mutex_fini(&p->mu);
    g_free(p);
    fs->prefetch = NULL;
}

static struct dir *dir_locked(struct prefetch *p, uint64_t ino) REQUIRES(p->mu)
{
    struct dir *d = g_hash_table_lookup(p->dirs, &ino);
    if (d) {
        g_queue_unlink(&p->lru, &d->link);
    } else {
        d = g_new0(struct dir, 1);
        d->ino = ino;
        d->order = order_new(&p->counts);
        d->link.data = d;
        g_hash_table_insert(p->dirs, &d->ino, d);
    }
    g_queue_push_tail_link(&p->lru, &d->link);
    while (p->lru.length > 1 && (p->lru.length > DIRS_MAX || p->counts.remembered > REMEMBERED_MAX))
        forget_dir_locked(p, p->lru.head->data);
    return d;
}

/* ---- one file ---- */

struct file_job {
    struct fs *fs;
    uint64_t ino;
};

static void file_run(void *arg)
{
    struct file_job *job = arg;
    INODE_REF in = NULL;
    struct cfile *cf = NULL;
    if (!atomic_load(&job->fs->stopping) && inode_get(job->fs, job->ino, &in) == 0 && content_use(in, &cf) == 0) {
        cache_file_prefetch(cf, 0, cache_file_size(cf));
        content_unuse(in, cf);
    }
    g_free(job);
}

/* Bytes to fetch of a file, 0: it is not for us. */
static uint64_t bytes_wanted(struct fs *fs, uint64_t ino)
{
    INODE_REF in = NULL;
    struct meta_cached c;
    if (inode_get(fs, ino, &in) < 0)
        return 0;
    mutex_lock(&in->mu);
    bool ours = S_ISREG(in->rec.mode) && in->rec.content == CONTENT_CLEAN && in->rec.base_key &&
                in->rec.size <= MIN(fs->cfg->open_fill, fs->prefetch->max_bytes);
    uint64_t vid = in->rec.vid, size = in->rec.size;
    mutex_unlock(&in->mu);
    if (!ours || (vid && meta_cached_get(fs->meta, vid, &c) == 0 && (c.flags & CACHED_COMPLETE)))
        return 0;
    return size;
}

/* ---- the next files ---- */

struct next_job {
    struct fs *fs;
    uint64_t dir;
    struct order_next next;
    unsigned n;
    struct order_item items[]; /* next.want of them */
};

static int take_name(void *ctx, const struct meta_dentry *d)
{
    struct next_job *job = ctx;
    if (S_ISREG(d->type))
        job->items[job->n++] = (struct order_item){.ino = d->ino, .place = d->id};
    return job->n >= job->next.want;
}

/* Cuts the list where the bytes that wait would be too many; true when it did. */
static bool weigh_items(struct next_job *job)
{
    struct prefetch *p = job->fs->prefetch;
    mutex_lock(&p->mu);
    uint64_t waiting = p->counts.waiting_bytes;
    mutex_unlock(&p->mu);
    for (unsigned i = 0; i < job->n; i++) {
        job->items[i].bytes = bytes_wanted(job->fs, job->items[i].ino);
        waiting += job->items[i].bytes;
        if (waiting > p->max_bytes) {
            job->n = i;
            return true;
        }
    }
    return false;
}

static void fetch_items(struct next_job *job)
{
    for (unsigned i = 0; i < job->n; i++) {
        if (!job->items[i].bytes)
            continue;
        metric_inc(M_prefetched_files);
        metric_add(M_prefetched_bytes, (int64_t)job->items[i].bytes);
        struct file_job *file = g_new(struct file_job, 1);
        *file = (struct file_job){job->fs, job->items[i].ino};
        if (!workq_push(job->fs->prefetch->q, false, file_run, file))
            g_free(file);
    }
}

/* ---- the next directory ---- */

static struct next_job *job_new(struct fs *fs, uint64_t dir, const struct order_next *next)
{
    struct next_job *job = g_malloc0(sizeof(*job) + next->want * sizeof(job->items[0]));
    *job = (struct next_job){.fs = fs, .dir = dir, .next = *next};
    return job;
}

static int take_dir(void *ctx, const struct meta_dentry *d)
{
    if (!S_ISDIR(d->type))
        return 0;
    *(uint64_t *)ctx = d->ino;
    return 1;
}

/* The one that comes after it in the listing of its parent, 0: none. */
static uint64_t next_dir(struct fs *fs, uint64_t dir)
{
    struct meta_dentry d = {0};
    uint64_t next = 0;
    int r = meta_link_first(fs->meta, dir, &d);
    if (r == 0)
        r = meta_dentry_each(fs->meta, d.parent, d.id, take_dir, &next);
    if (r < 0 && r != -ENOENT) /* the root has no name */
        log_debug("prefetch", "names cannot be read dir=%" G_GUINT64_FORMAT " r=%s", dir, err_name(r));
    meta_dentry_clear(&d);
    return next;
}

/* Its first names are known; of a directory that was never listed, by its first listing, which is not begun on a guess: it may have millions. */
static bool names_known(struct fs *fs, uint64_t dir, bool sure)
{
    INODE_REF in = NULL;
    uint64_t pages = 0;
    return inode_get(fs, dir, &in) == 0 && (sure || tree_is_listed(in)) && tree_list_follow(fs, in, &pages) >= 0;
}

static void invite(struct prefetch *p, uint64_t next, uint64_t dir)
{
    mutex_lock(&p->mu);
    order_invite(dir_locked(p, next)->order);
    (void)dir_locked(p, dir);
    mutex_unlock(&p->mu);
}

/* The reader of this directory is expected in the next one: files of it are fetched. */
static void go_beyond(struct fs *fs, uint64_t dir, const struct order_beyond *beyond)
{
    struct prefetch *p = fs->prefetch;
    uint64_t next = next_dir(fs, dir);
    if (!next)
        return;
    if (!names_known(fs, next, beyond->sure)) {
        invite(p, next, dir);
        return;
    }
    struct next_job *job = job_new(fs, next, &(struct order_next){.line = ORDER_LISTED, .want = beyond->want});
    bool ok = meta_dentry_each(fs->meta, next, 0, take_name, job) >= 0;
    (void)weigh_items(job);
    mutex_lock(&p->mu);
    ok = ok && job->n && order_expect(dir_locked(p, next)->order, job->items, job->n, beyond->window);
    (void)dir_locked(p, dir); /* where the reader is keeps what waits for it longer */
    mutex_unlock(&p->mu);
    if (ok)
        fetch_items(job);
    g_free(job);
}

/* ---- what an open calls for ---- */

/* The directory that was not read for longest and still has files waiting makes room: it is read again when it is. */
static void give_up_oldest_locked(struct prefetch *p) REQUIRES(p->mu)
{
    uint64_t before = p->counts.waiting_bytes;
    for (GList *l = p->lru.head; l != p->lru.tail && p->counts.waiting_bytes == before; l = l->next)
        order_give_up(((struct dir *)l->data)->order);
}

static void next_run(void *arg)
{
    struct next_job *job = arg;
    struct prefetch *p = job->fs->prefetch;
    int r = 0;
    if (!atomic_load(&job->fs->stopping) && job->next.line == ORDER_LISTED)
        r = meta_dentry_each(job->fs->meta, job->dir, job->next.from, take_name, job);
    if (r < 0)
        log_debug("prefetch", "names cannot be read dir=%" G_GUINT64_FORMAT " r=%s", job->dir, err_name(r));
    bool full = weigh_items(job);
    mutex_lock(&p->mu);
    struct dir *d = g_hash_table_lookup(p->dirs, &job->dir);
    bool wanted = d && order_asked(d->order, &job->next, job->items, job->n, full);
    struct order_beyond beyond;
    bool ends = wanted && !full && r >= 0 && order_ends(d->order, &job->next, job->n, &beyond);
    if (full)
        give_up_oldest_locked(p);
    mutex_unlock(&p->mu);
    if (wanted)
        fetch_items(job);
    if (ends && !atomic_load(&job->fs->stopping))
        go_beyond(job->fs, job->dir, &beyond);
    g_free(job);
}

/* ---- opens ---- */

static void tell_counts_locked(struct prefetch *p) REQUIRES(p->mu)
{
    metric_add(M_prefetch_used_files, (int64_t)(p->counts.used_files - p->told.used_files));
    metric_add(M_prefetch_used_bytes, (int64_t)(p->counts.used_bytes - p->told.used_bytes));
    metric_add(M_prefetch_wasted_files, (int64_t)(p->counts.wasted_files - p->told.wasted_files));
    metric_add(M_prefetch_wasted_bytes, (int64_t)(p->counts.wasted_bytes - p->told.wasted_bytes));
    p->told = p->counts;
}

/* Where the file was found by last; the kernel may know it without a look-up since it is in memory, and then any name will do. */
static uint64_t place_of(struct inode *in, uint64_t *ret_id)
{
    struct meta_dentry d = {0};
    mutex_lock(&in->mu);
    uint64_t dir = in->place_dir;
    *ret_id = in->place_id;
    mutex_unlock(&in->mu);
    if (dir || meta_link_first(in->fs->meta, in->ino, &d) < 0)
        return dir;
    inode_set_place(in, &d);
    dir = d.parent;
    *ret_id = d.id;
    meta_dentry_clear(&d);
    return dir;
}

void prefetch_note(struct inode *in, struct cfile *cf)
{
    struct fs *fs = in->fs;
    struct prefetch *p = fs->prefetch;
    struct next_job *job = NULL;
    struct order_next next;
    if (!p || cache_file_size(cf) > fs->cfg->open_fill)
        return;
    bool here = cache_file_complete(cf);
    uint64_t id, dir = place_of(in, &id);
    if (!dir)
        return;
    mutex_lock(&p->mu);
    struct dir *d = dir_locked(p, dir);
    if (order_note(d->order, in->ino, id, !here, &next)) {
        job = job_new(fs, dir, &next);
        if (next.line == ORDER_LEARNED)
            job->n = order_learned(d->order, next.from, job->items, next.want);
    }
    tell_counts_locked(p);
    mutex_unlock(&p->mu);
    if (job && !workq_push(p->q, true, next_run, job))
        g_free(job);
}
