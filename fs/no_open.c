/* See no_open.h. Held files are in a table, those without a reader also in a queue; whoever takes one out of both lets it go, without the lock. */
#include "no_open.h"

#include "content.h"
#include "prefetch.h"

#define NO_OPEN_FILES 1024u
#define CACHE_SHARE   4u /* held files cannot be evicted: they may take 1/4 of the cache */

struct held {
    /* immutable */
    uint64_t ino, size;
    struct inode *in; /* owned reference */
    struct cfile *cf; /* owned, by content_use() */
    /* guarded by no_open.mu */
    unsigned users;
    GList idle; /* place in no_open.idle; data NULL: not in it */
};

void no_open_init(struct fs *fs)
{
    mutex_init(&fs->no_open.mu, LOCK_NO_OPEN);
    fs->no_open.files = g_hash_table_new(g_int64_hash, g_int64_equal);
    g_queue_init(&fs->no_open.idle);
}

static void let_go(struct held *h)
{
    if (!h)
        return;
    content_unuse(h->in, h->cf);
    inode_put(h->in);
    g_free(h);
}

/* The file leaves the table; the caller lets it go. */
static struct held *take_idle_locked(struct no_open *no, struct held *h) REQUIRES(no->mu)
{
    g_queue_unlink(&no->idle, &h->idle);
    g_hash_table_remove(no->files, &h->ino);
    no->bytes -= h->size;
    return h;
}

void no_open_fini(struct fs *fs)
{
    struct no_open *no = &fs->no_open;
    mutex_lock(&no->mu);
    while (no->idle.head) {
        struct held *h = take_idle_locked(no, no->idle.head->data);
        mutex_unlock(&no->mu);
        let_go(h);
        mutex_lock(&no->mu);
    }
    mutex_unlock(&no->mu);
    g_hash_table_unref(no->files);
    mutex_fini(&no->mu);
}

bool no_open_files(struct fs *fs)
{
    return fs->cfg->immutable && (atomic_load(&fs->fuse_caps) & FUSE_CAP_NO_OPEN_SUPPORT);
}

bool no_open_dirs(struct fs *fs)
{
    return fs->cfg->immutable && (atomic_load(&fs->fuse_caps) & FUSE_CAP_NO_OPENDIR_SUPPORT);
}

/* Opens the cache file for the table. */
static int hold_new(struct fs *fs, uint64_t ino, struct held **ret)
{
    struct inode *in = NULL;
    struct cfile *cf = NULL;
    int r = inode_get(fs, ino, &in);
    if (r == 0)
        r = S_ISREG(in->rec.mode) ? content_use(in, &cf) : -EISDIR;
    if (r < 0) {
        inode_put(in);
        return r == -ENOENT ? -ESTALE : r;
    }
    prefetch_note(in, cf);
    struct held *h = g_new0(struct held, 1);
    *h = (struct held){.ino = ino, .size = cache_file_size(cf), .in = in, .cf = cf, .users = 1};
    if (h->size <= fs->cfg->open_fill && !cache_file_complete(cf) && cache_file_fill(cf, true, false, NULL, NULL) < 0)
        log_debug("io", "a small file is not fetched whole ino=%" G_GUINT64_FORMAT, ino);
    *ret = h;
    return 0;
}

static struct held *use_locked(struct no_open *no, uint64_t ino) REQUIRES(no->mu)
{
    struct held *h = g_hash_table_lookup(no->files, &ino);
    if (h && h->users++ == 0) {
        g_queue_unlink(&no->idle, &h->idle);
        h->idle.data = NULL;
    }
    return h;
}

static int acquire(struct fs *fs, uint64_t ino, struct held **ret)
{
    struct no_open *no = &fs->no_open;
    struct held *fresh = NULL;
    mutex_lock(&no->mu);
    *ret = use_locked(no, ino);
    mutex_unlock(&no->mu);
    if (*ret)
        return 0;
    int r = hold_new(fs, ino, &fresh);
    if (r < 0)
        return r;
    mutex_lock(&no->mu);
    *ret = use_locked(no, ino);
    if (!*ret) {
        *ret = g_steal_pointer(&fresh);
        g_hash_table_insert(no->files, &(*ret)->ino, *ret);
        no->bytes += (*ret)->size;
    }
    mutex_unlock(&no->mu);
    let_go(fresh); /* somebody was quicker */
    return 0;
}

static void release(struct fs *fs, struct held *h)
{
    struct no_open *no = &fs->no_open;
    struct cache_usage u;
    cache_usage(fs->cache, &u);
    mutex_lock(&no->mu);
    if (--h->users == 0) {
        h->idle.data = h;
        g_queue_push_tail_link(&no->idle, &h->idle);
    }
    while (no->idle.head && (g_hash_table_size(no->files) > NO_OPEN_FILES || no->bytes > u.limit_bytes / CACHE_SHARE)) {
        struct held *oldest = take_idle_locked(no, no->idle.head->data);
        mutex_unlock(&no->mu);
        let_go(oldest);
        mutex_lock(&no->mu);
    }
    mutex_unlock(&no->mu);
}

ssize_t no_open_read(struct fs *fs, uint64_t ino, void *buf, size_t len, uint64_t off)
{
    struct held *h;
    int r = acquire(fs, ino, &h);
    if (r < 0)
        return r;
    if (off == 0)
        cache_file_touch(h->cf); /* as near to a use of the file as can be told */
    ssize_t n = cache_file_read(h->cf, buf, len, off);
    release(fs, h);
    return n;
}

void no_open_drop(struct fs *fs, uint64_t ino)
{
    struct no_open *no = &fs->no_open;
    mutex_lock(&no->mu);
    struct held *h = g_hash_table_lookup(no->files, &ino);
    h = h && h->users == 0 ? take_idle_locked(no, h) : NULL;
    mutex_unlock(&no->mu);
    let_go(h);
}
