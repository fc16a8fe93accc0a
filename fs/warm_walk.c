/*
 * The walk of a warm-up: once to count, once to feed the queue, where the cache is short of room once more to look. Depth first, a page of names at a time, so that a directory of a million names
 * or a tree of a million directories costs a page of memory for each level.
 */
#include "rules.h"
#include "tree.h"
#include "warm_internal.h"

#define PAGE_NAMES 256
#define MAX_DEPTH  512
#define MAX_HINTS  (4 * PAGE_NAMES)

struct walk {
    struct warm *w;
    bool feed;
    bool pinned_only;       /* at the path that it is on */
    bool created_only;      /* the same: of a directory that --on-create does not mean, only what it means below */
    uint64_t offline_ns;    /* for tree_refresh_sure() */
    struct warm_look *look; /* NULL: counts or feeds */
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

unsigned warm_share(const char *path, unsigned n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, then mixed so that the upper bits depend on all of them */
    for (const unsigned char *p = (const unsigned char *)path; *p; p++)
        h = (h ^ *p) * 0x100000001b3u;
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    return (unsigned)((unsigned __int128)h * n >> 64);
}

static int visit_file(struct walk *k, uint64_t ino, const char *path)
{
    struct warm *w = k->w;
    struct meta_inode rec;
    if (w->n_nodes && warm_share(path, w->n_nodes) != w->node)
        return 0;
    if (k->created_only && !rules_warms(w->fs->rules, path))
        return 0;
    if (k->feed && !k->pinned_only)
        return warm_feed(w, ino, path);
    if (meta_inode_get(w->fs->meta, ino, &rec) < 0)
        return 0; /* gone meanwhile */
    uint64_t size = rec.size;
    bool wanted = !k->pinned_only || (rec.flags & INODE_PINNED);
    meta_inode_clear(&rec);
    if (wanted && k->feed)
        return warm_feed(w, ino, path);
    if (k->look) {
        if (wanted)
            warm_look_at(w, ino, k->look);
        return 0;
    }
    mutex_lock(&w->mu);
    w->counted_files += wanted;
    w->counted_bytes += wanted ? size : 0;
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

/* Is something below what the walk is for? */
static bool may_hold(const struct walk *k, const char *path)
{
    if (!k->created_only)
        return true;
    g_autofree char *dir = g_strconcat(path, "/", NULL);
    return rules_warms_below(k->w->fs->rules, dir);
}

static int walk_page(struct walk *k, GPtrArray *page, const char *path, unsigned depth)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < page->len; i++) {
        const struct page_name *n = page->pdata[i];
        g_autofree char *below = *path ? g_strconcat(path, "/", n->name, NULL) : g_strdup(n->name);
        if (S_ISDIR(n->type))
            r = may_hold(k, below) ? walk_dir(k, n->ino, below, depth + 1) : 0;
        else if (S_ISREG(n->type))
            r = visit_file(k, n->ino, below);
    }
    return r;
}

int warm_list_ahead(struct warm *w, uint64_t ino)
{
    INODE_REF dir = NULL;
    uint64_t pages = 0;
    int r = inode_get(w->fs, ino, &dir);
    if (r < 0)
        return r;
    if (tree_is_listed(dir)) /* begun here; the walk waits for it */
        return tree_refresh(w->fs, dir, false);
    r = tree_list_follow(w->fs, dir, &pages);
    return MIN(r, 0);
}

/* All names that are known with an id above *after, which is moved on. */
static int walk_names(struct walk *k, uint64_t ino, const char *path, unsigned depth, uint64_t *after)
{
    int r = 0;
    for (bool more = true; more && r == 0;) {
        g_autoptr(GPtrArray) page = g_ptr_array_new_with_free_func(page_name_free);
        r = meta_dentry_each(k->w->fs->meta, ino, *after, take_name, page);
        more = r > 0;
        if (r < 0)
            return r;
        if (page->len > 0)
            *after = ((struct page_name *)page->pdata[page->len - 1])->id;
        if (!k->feed && !k->look && !k->created_only)
            hint_dirs(k->w, page);
        r = walk_page(k, page, path, depth);
    }
    return r;
}

/* A directory that was never listed: its names are walked as they come, so that a huge one is fetched while it is listed. *ret_list: what became of the listing. */
static int walk_while_listed(struct walk *k, struct inode *dir, const char *path, unsigned depth, int *ret_list)
{
    uint64_t pages = TREE_NO_PAGES, after = 0;
    int r = 0, more;
    do {
        more = tree_list_follow(k->w->fs, dir, &pages);
        if (more >= 0)
            r = walk_names(k, dir->ino, path, depth, &after);
    } while (r == 0 && more > 0 && !warm_stopped(k->w));
    *ret_list = MIN(more, 0);
    return r;
}

/* What a listing that failed means: said once, by the walk that feeds. */
static void say_unlisted(struct walk *k, const char *path, unsigned depth, int err)
{
    bool removed = err == -ENOENT && depth > 0; /* since its parent was read */
    if (k->feed && !removed && !warm_stopped(k->w))
        warm_push_error(k->w, path, err);
}

static int walk_dir(struct walk *k, uint64_t ino, const char *path, unsigned depth)
{
    struct warm *w = k->w;
    uint64_t after = 0;
    INODE_REF dir = NULL;
    if (warm_stopped(w))
        return -ECANCELED;
    int list_r = depth > MAX_DEPTH ? -ELOOP : inode_get(w->fs, ino, &dir), r = 0;
    bool as_known = w->mode == WARM_EVICT || k->look; /* what was never listed is not here either */
    bool known = list_r == 0 && (as_known || tree_is_listed(dir));
    if (list_r == 0 && !known)
        r = walk_while_listed(k, dir, path, depth, &list_r);
    else if (list_r == 0 && !as_known)
        list_r = tree_refresh_sure(w->fs, dir, &k->offline_ns);
    if (list_r < 0)
        say_unlisted(k, path, depth, list_r);
    if (known)
        r = walk_names(k, ino, path, depth, &after);
    return r;
}

static bool is_pinned(struct inode *in)
{
    mutex_lock(&in->mu);
    bool pinned = in->rec.flags & INODE_PINNED;
    mutex_unlock(&in->mu);
    return pinned;
}

/* Is it a directory, not what a link that --on-create means leads to, that appeared for the sake of what may be below? */
static bool is_for_created(struct walk *k, const char *asked, const char *path)
{
    const struct rules *rules = k->w->fs->rules;
    g_autofree char *dir = g_strconcat(path, "/", NULL);
    return k->w->for_pins && !k->pinned_only && g_str_equal(asked, path) && !rules_warms(rules, dir) &&
           rules_warms_below(rules, dir);
}

/* One of the paths that were asked for. -ECANCELED: no further one. */
static int walk_path(struct walk *k, const char *asked)
{
    INODE_REF in = NULL;
    g_autofree char *path = NULL;
    int r = warm_stopped(k->w) ? -ECANCELED : tree_follow(k->w->fs, asked, NULL, &path, &in);
    k->pinned_only = r == 0 && k->w->for_pins && is_pinned(in);
    k->created_only = r == 0 && inode_is_dir(in) && is_for_created(k, asked, path);
    if (r == 0 && inode_is_dir(in))
        r = walk_dir(k, in->ino, path, 0);
    else if (r == 0)
        r = S_ISREG(in->rec.mode) ? visit_file(k, in->ino, path) : 0;
    if (r < 0 && r != -ECANCELED && k->feed)
        warm_push_error(k->w, asked, r);
    return r == -ECANCELED ? r : 0;
}

static int walk_list(struct walk *k)
{
    struct warm_cursor *c = NULL;
    int r = warm_cursor_open(k->w->list, &c);
    const char *path = NULL;
    for (int more = 1; r == 0 && more > 0;) {
        r = more = warm_cursor_next(c, &path);
        if (more > 0)
            r = walk_path(k, path);
    }
    warm_cursor_free(c);
    return r;
}

static void walk_all(struct walk *k)
{
    struct warm *w = k->w;
    int r = 0;
    for (unsigned i = 0; r == 0 && w->paths[i]; i++)
        r = walk_path(k, w->paths[i]);
    if (r == 0 && w->list)
        r = walk_list(k);
    if (r < 0 && r != -ECANCELED && k->feed)
        warm_push_error(w, "(the list of paths)", r);
}

void warm_walk_paths(struct warm *w, bool feed)
{
    walk_all(&(struct walk){.w = w, .feed = feed, .offline_ns = TREE_OFFLINE_NS});
}

void warm_walk_look(struct warm *w, struct warm_look *ret)
{
    *ret = (struct warm_look){0};
    walk_all(&(struct walk){.w = w, .look = ret});
}
