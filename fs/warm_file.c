/* Warm-up of one file: fetched, looked at, or dropped. Runs in a worker with nothing locked. */
#include "content.h"
#include "no_open.h"
#include "pin.h"
#include "tree.h"
#include "warm_internal.h"

#define BUSY_NS      (5 * NS_PER_S) /* for a file that is about to be let go; one try may wait for two of them */
#define BUSY_WAIT_US 10000
#define PIECE_MIN                                                                                                      \
    (256u << 10) /* of a fetch with a limit: a quarter of what it lets through in a second, within these */
#define PIECE_MAX (8u << 20)

static void on_bytes(void *ctx, uint64_t bytes)
{
    struct item *it = ctx;
    atomic_fetch_add(&it->arrived, bytes);
    atomic_fetch_add(&it->w->bytes_fetched, bytes);
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

/* With a limit a piece after the other, each paid for before the next begins. */
static int fill_pieces(struct item *it, struct cfile *cf)
{
    struct warm *w = it->w;
    uint64_t size = cache_file_size(cf), piece = CLAMP(w->limit_bps / 4, PIECE_MIN, PIECE_MAX);
    piece -= piece % META_CHUNK_BYTES;
    int r = 0;
    for (uint64_t off = 0; r == 0 && off < size && !cache_file_complete(cf); off += piece) {
        if (!warm_may_fetch(w))
            return -ECANCELED;
        uint64_t before = atomic_load(&it->arrived);
        r = cache_file_fill_range(cf, off, piece, on_bytes, it);
        warm_pay(w, atomic_load(&it->arrived) - before);
    }
    return r;
}

static int fill(struct item *it, struct cfile *cf)
{
    int r = it->w->limit_bps ? fill_pieces(it, cf) : 0;
    return r < 0 ? r : cache_file_fill(cf, false, true, on_bytes, it);
}

static int fetch_inode(struct item *it, struct inode *in)
{
    struct fs *fs = it->w->fs;
    struct file_facts f = facts_of(in);
    if (is_complete(fs, f.vid))
        return 0;
    if (it->w->for_pins && cache_pins_yield(fs->cache))
        return -ENOSPC; /* it would take the room that was just made for a writer; it is tried again later */
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r < 0)
        return r;
    if (f.pin != PIN_NONE)
        r = cache_pin(fs->cache, cache_file_vid(cf), f.pin);
    if (r == 0 && !cache_file_complete(cf))
        r = fill(it, cf);
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

/* Where the bytes of a file stand in the counts once it was dealt with: of `have` that are here, those that arrived for it were fetched. */
static void settle(struct item *it, uint64_t size, uint64_t have, int r)
{
    struct warm *w = it->w;
    uint64_t arrived = atomic_load(&it->arrived), fetched = MIN(arrived, have);
    bool failed = r < 0 && !(r == -ECANCELED && warm_stopped(w)); /* what a stop cut off is left, not failed */
    atomic_fetch_add(&w->bytes_done, have - arrived); /* may be less: those of a version that was replaced */
    atomic_fetch_add(&w->bytes_fetched, fetched - arrived);
    mutex_lock(&w->mu);
    struct warm_progress *sum = &w->sum;
    sum->bytes_total += size;
    sum->bytes_cached += have - fetched;
    sum->bytes_failed += failed ? size - have : 0;
    sum->files_failed += failed;
    sum->files_fetched += r == 0 && arrived > 0;
    sum->files_cached += r == 0 && arrived == 0;
    sum->files_done += r == 0;
    mutex_unlock(&w->mu);
}

void warm_look_at(struct warm *w, uint64_t ino, struct warm_look *look)
{
    struct meta_cached c = {0};
    INODE_REF in = NULL;
    if (inode_get(w->fs, ino, &in) < 0)
        return; /* gone meanwhile */
    struct file_facts f = facts_of(in);
    uint64_t here = present_bytes(in, &f);
    bool held = f.vid && meta_cached_get(w->fs->meta, f.vid, &c) == 0 && (c.flags & (CACHED_PINNED | CACHED_DIRTY));
    look->files_absent += here < f.size;
    look->bytes_absent += f.size - here;
    look->bytes_unpinned += held ? f.size - here : f.size;
}

static int fetch_file(struct item *it, struct inode **in)
{
    int r = fetch_inode(it, *in);
    if (r == -ESTALE) {
        r = relist_path(it->w->fs, it->path, in);
        if (r == 0)
            r = inode_is_dir(*in) ? -EISDIR : fetch_inode(it, *in);
    }
    struct file_facts f = facts_of(*in);
    settle(it, f.size, r == 0 ? f.size : present_bytes(*in, &f), r);
    return r;
}

/* The sums of a file that was looked at, or dropped. */
static void count(struct warm *w, bool done, uint64_t size, uint64_t cached)
{
    mutex_lock(&w->mu);
    w->sum.files_done += done;
    w->sum.bytes_total += size;
    w->sum.files_cached += w->mode == WARM_CHECK && cached >= size;
    w->sum.bytes_cached += cached;
    mutex_unlock(&w->mu);
}

/* Only what is not wholly here is told of. */
static int check_file(struct item *it, struct inode *in)
{
    struct file_facts f = facts_of(in);
    uint64_t cached = present_bytes(in, &f);
    atomic_fetch_add(&it->w->bytes_done, cached);
    count(it->w, true, f.size, cached);
    if (cached >= f.size)
        return 0;
    struct warm_event *e = g_new0(struct warm_event, 1);
    *e = (struct warm_event){.path = g_strdup(it->path), .cached_bytes = cached, .size = f.size};
    warm_push_event(it->w, e);
    return 0;
}

/* Neither open, unpublished nor pinned: what keeps its cache file, who has just published it or fetched from it, will let go of it soon. */
static bool is_idle(struct inode *in)
{
    mutex_lock(&in->mu);
    bool idle = in->n_open == 0 && in->rec.content == CONTENT_CLEAN && !(in->rec.flags & INODE_PINNED);
    mutex_unlock(&in->mu);
    return idle;
}

/* 1: dropped, 0: nothing was here. */
static int drop_file(struct item *it, struct inode *in)
{
    struct fs *fs = it->w->fs;
    struct file_facts f = facts_of(in);
    struct meta_cached c;
    if (!f.vid || meta_cached_get(fs->meta, f.vid, &c) < 0)
        return 0;
    no_open_drop(fs, in->ino);
    uint64_t until = clock_mono_ns() + BUSY_NS;
    int r = cache_evict(fs->cache, f.vid);
    while (r == -EBUSY && clock_mono_ns() < until && is_idle(in) && !warm_stopped(it->w)) {
        g_usleep(BUSY_WAIT_US);
        r = cache_evict(fs->cache, f.vid);
    }
    if (r < 0)
        return r == -ENOENT ? 0 : r; /* only its removal from a disk that is not used is left */
    atomic_fetch_add(&it->w->bytes_done, c.bytes);
    return 1;
}

static int evict_file(struct item *it, struct inode *in)
{
    int r = drop_file(it, in);
    count(it->w, r == 1, facts_of(in).size, 0);
    return MIN(r, 0);
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
    if (r < 0 && w->mode == WARM_FETCH)
        settle(it, 0, 0, r);
    else if (r == 0 && w->mode == WARM_FETCH)
        r = fetch_file(it, &in);
    else if (r == 0)
        r = w->mode == WARM_CHECK ? check_file(it, in) : evict_file(it, in);
    inode_put(in);
    if (r < 0 && !(r == -ECANCELED && warm_stopped(w)))
        warm_push_error(w, it->path, r);
}
