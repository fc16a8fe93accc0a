/*
 * The walk of a warm-up: once to count, once to feed the queue. Depth first, a page of names at a time, so that a directory of a million names
 * or a tree of a million directories costs a page of memory for each level.
 */
#include "tree.h"
#include "warm_internal.h"

#define PAGE_NAMES 256
#define MAX_DEPTH  512
#define MAX_HINTS  (4 * PAGE_NAMES)

struct walk {
    struct warm *w;
    bool feed;
};

struct page_name {
    uint64_t id, ino;
    uint32_t type;
    char *name;
};

static void page_name_free(void *p)
{
    struct page_name *n = p;
    g_free(n->name);
    g_free(n);
}

static int take_name(void *ctx, const struct meta_dentry *d)
{
    GPtrArray *page = ctx;
    struct page_name *n = g_new(struct page_name, 1);
    *n = (struct page_name){d->id, d->ino, d->type, g_strdup(d->name)};
    g_ptr_array_add(page, n);
    return page->len >= PAGE_NAMES;
}

static int visit_file(struct walk *k, uint64_t ino, const char *path)
{
    struct warm *w = k->w;
    if (k->feed)
        return warm_feed(w, ino, path);
    struct meta_inode rec;
    if (meta_inode_get(w->fs->meta, ino, &rec) < 0)
        return 0; /* gone meanwhile */
    uint64_t size = rec.size;
    meta_inode_clear(&rec);
    mutex_lock(&w->mu);
    w->counted_files++;
    w->counted_bytes += size;
    mutex_unlock(&w->mu);
    return 0;
}

/* Lets the workers list the directories of a page, before the walk comes to them one by one. */
static void hint_dirs(struct warm *w, GPtrArray *page)
{
    if (w->mode == WARM_EVICT || w->fs->cfg->metadata_ttl_ns == 0)
        return;
    mutex_lock(&w->mu);
    for (unsigned i = 0; i < page->len && g_queue_get_length(&w->hints) < MAX_HINTS; i++) {
        const struct page_name *n = page->pdata[i];
        if (S_ISDIR(n->type))
            g_queue_push_tail(&w->hints, g_memdup2(&n->ino, sizeof(n->ino)));
    }
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
}

static int walk_dir(struct walk *k, uint64_t ino, const char *path, unsigned depth);

static int walk_page(struct walk *k, GPtrArray *page, const char *path, unsigned depth)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < page->len; i++) {
        const struct page_name *n = page->pdata[i];
        g_autofree char *below = *path ? g_strconcat(path, "/", n->name, NULL) : g_strdup(n->name);
        if (S_ISDIR(n->type))
            r = walk_dir(k, n->ino, below, depth + 1);
        else if (S_ISREG(n->type))
            r = visit_file(k, n->ino, below);
    }
    return r;
}

int warm_refresh_dir(struct warm *w, uint64_t ino)
{
    if (w->mode == WARM_EVICT)
        return 0; /* what was never listed is not here either */
    INODE_REF dir = NULL;
    int r = inode_get(w->fs, ino, &dir);
    return r < 0 ? r : tree_refresh(w->fs, dir, false);
}

static int walk_dir(struct walk *k, uint64_t ino, const char *path, unsigned depth)
{
    struct warm *w = k->w;
    if (warm_stopped(w))
        return -ECANCELED;
    int r = depth > MAX_DEPTH ? -ELOOP : warm_refresh_dir(w, ino);
    if (r < 0) {                                  /* said once, by the walk that feeds */
        bool removed = r == -ENOENT && depth > 0; /* since its parent was read */
        if (k->feed && !removed && !warm_stopped(w))
            warm_push_error(w, path, r);
        return 0;
    }
    uint64_t after = 0;
    for (bool more = true; more && r == 0;) {
        g_autoptr(GPtrArray) page = g_ptr_array_new_with_free_func(page_name_free);
        r = meta_dentry_each(w->fs->meta, ino, after, take_name, page);
        more = r > 0;
        if (r < 0)
            return r;
        if (page->len > 0)
            after = ((struct page_name *)page->pdata[page->len - 1])->id;
        if (!k->feed)
            hint_dirs(w, page);
        r = walk_page(k, page, path, depth);
    }
    return r;
}

void warm_walk_paths(struct warm *w, bool feed)
{
    struct walk *k = &(struct walk){w, feed};
    int r = 0;
    for (unsigned i = 0; w->paths[i] && r != -ECANCELED; i++) {
        INODE_REF in = NULL;
        g_autofree char *path = NULL;
        r = tree_follow(w->fs, w->paths[i], NULL, &path, &in);
        if (r == 0 && inode_is_dir(in))
            r = walk_dir(k, in->ino, path, 0);
        else if (r == 0)
            r = S_ISREG(in->rec.mode) ? visit_file(k, in->ino, path) : 0;
        if (r < 0 && r != -ECANCELED && k->feed)
            warm_push_error(w, w->paths[i], r);
    }
}
