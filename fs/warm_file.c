/* Warm-up of one file: fetched, looked at, or dropped. Runs in a worker with nothing locked. */
#include "content.h"
#include "no_open.h"
#include "pin.h"
#include "tree.h"
#include "warm_internal.h"

#define BUSY_TRIES   20
#define BUSY_WAIT_US 10000

static void on_bytes(void *ctx, uint64_t bytes)
{
    struct item *it = ctx;
    atomic_fetch_add(&it->arrived, bytes);
    atomic_fetch_add(&it->w->bytes_done, bytes);
}

struct file_facts {
    uint64_t vid, size;
    enum cache_pin pin;
};

static struct file_facts facts_of(struct inode *in)
{
    mutex_lock(&in->mu);
    struct file_facts f = {in->rec.vid, in->rec.size, pin_of(&in->rec)};
    mutex_unlock(&in->mu);
    return f;
}

/* Known to be here without opening it. */
static bool is_complete(struct fs *fs, uint64_t vid)
{
    struct meta_cached c;
    return vid && meta_cached_get(fs->meta, vid, &c) == 0 && (c.flags & CACHED_COMPLETE);
}

static int fetch_inode(struct item *it, struct inode *in)
{
    struct fs *fs = it->w->fs;
    struct file_facts f = facts_of(in);
    if (is_complete(fs, f.vid))
        return 0;
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r < 0)
        return r;
    if (f.pin != PIN_NONE)
        r = cache_pin(fs->cache, cache_file_vid(cf), f.pin);
    if (r == 0 && !cache_file_complete(cf))
        r = cache_file_fill(cf, false, true, on_bytes, it);
    content_unuse(in, cf);
    return r;
}

/* The object changed since its directory was listed: looks again, so that the new version is fetched. */
static int relist_path(struct fs *fs, const char *path, struct inode **in)
{
    g_autofree char *dir_path = g_path_get_dirname(path);
    INODE_REF dir = NULL;
    int r = tree_resolve(fs, dir_path, &dir);
    if (r == 0)
        r = tree_refresh(fs, dir, true);
    struct inode *again = NULL;
    if (r == 0)
        r = tree_resolve(fs, path, &again);
    if (r < 0)
        return r;
    inode_put(*in);
    *in = again;
    return 0;
}

static int fetch_file(struct item *it, struct inode **in)
{
    int r = fetch_inode(it, *in);
    if (r == -ESTALE) {
        r = relist_path(it->w->fs, it->path, in);
        if (r == 0)
            r = inode_is_dir(*in) ? -EISDIR : fetch_inode(it, *in);
    }
    if (r < 0)
        return r;
    /* what was here before counts as done */
    atomic_fetch_add(&it->w->bytes_done, facts_of(*in).size - atomic_load(&it->arrived));
    return 0;
}

static uint64_t present_bytes(struct inode *in, const struct file_facts *f)
{
    struct meta_cached c;
    if (!f->vid || meta_cached_get(in->fs->meta, f->vid, &c) < 0)
        return 0;
    if (c.flags & CACHED_COMPLETE)
        return f->size;
    struct cfile *cf = NULL;
    if (content_use(in, &cf) < 0)
        return 0;
    uint64_t n = cache_file_present_bytes(cf);
    content_unuse(in, cf);
    return MIN(n, f->size);
}

static int check_file(struct item *it, struct inode *in)
{
    struct file_facts f = facts_of(in);
    struct warm_event *e = g_new0(struct warm_event, 1);
    *e = (struct warm_event){.path = g_strdup(it->path), .cached_bytes = present_bytes(in, &f), .size = f.size};
    atomic_fetch_add(&it->w->bytes_done, e->cached_bytes);
    warm_push_event(it->w, e);
    return 0;
}

/* Neither open, unpublished nor pinned: what keeps its cache file will let go of it soon. */
static bool is_idle(struct inode *in)
{
    mutex_lock(&in->mu);
    bool idle =
        in->n_open == 0 && in->n_cf_users == 0 && in->rec.content == CONTENT_CLEAN && !(in->rec.flags & INODE_PINNED);
    mutex_unlock(&in->mu);
    return idle;
}

/* 1: dropped, 0: nothing was here. */
static int evict_file(struct item *it, struct inode *in)
{
    struct fs *fs = it->w->fs;
    struct file_facts f = facts_of(in);
    struct meta_cached c;
    if (!f.vid || meta_cached_get(fs->meta, f.vid, &c) < 0)
        return 0;
    no_open_drop(fs, in->ino);
    int r = cache_evict(fs->cache, f.vid);
    for (unsigned i = 0; r == -EBUSY && i < BUSY_TRIES && is_idle(in); i++) {
        g_usleep(BUSY_WAIT_US); /* a fetch that has just ended still holds it */
        r = cache_evict(fs->cache, f.vid);
    }
    if (r < 0)
        return r == -ENOENT ? 0 : r; /* only its removal from a disk that is not used is left */
    atomic_fetch_add(&it->w->bytes_done, c.bytes);
    return 1;
}

void warm_do_item(struct warm *w, struct item *it)
{
    struct inode *in = NULL;
    int r = inode_get(w->fs, it->ino, &in);
    if (r == -ENOENT) { /* removed since the walk saw it */
        mutex_lock(&w->mu);
        w->fed_files--;
        mutex_unlock(&w->mu);
        return;
    }
    bool counts = true;
    if (r == 0 && w->mode == WARM_FETCH) {
        r = fetch_file(it, &in);
    } else if (r == 0 && w->mode == WARM_CHECK) {
        r = check_file(it, in);
    } else if (r == 0) {
        r = evict_file(it, in);
        counts = r == 1;
    }
    uint64_t size = in ? facts_of(in).size : 0;
    inode_put(in);
    if (r < 0 && !(r == -ECANCELED && warm_stopped(w)))
        warm_push_error(w, it->path, r);
    mutex_lock(&w->mu);
    w->seen_bytes += size;
    w->files_done += r >= 0 && counts;
    mutex_unlock(&w->mu);
}
