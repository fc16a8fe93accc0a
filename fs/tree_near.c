/*
 * Small directories that were listed before and are out of date together: the next page of the store's keys, begun at the one that is asked for and without a delimiter, shows those behind it too.
 *
 * An epoch over a thousand directories of a hundred files asks for each of them within each TTL. A listing of one is a request, and a request brings up to a thousand keys: ten such directories. So this
 * costs what the listing of the one directory would have cost: one page is asked for, and only directories that somebody looked into since they were listed come along, as many as should fit. What
 * the page did not show to its end, because something grew, is listed by itself when somebody waits for it.
 *
 * In random order, pages that each begin at the directory which is asked for would overlap: of 200 directories, nine to a page, 55 would be asked for. So it begins where the page began that brought the
 * directory last, if that one is out of date too and the page still reaches as far: pages move together in time until they hardly overlap.
 */
#include "tree_near.h"

#include "links.h"
#include "sync_internal.h"
#include "tree_list.h"

#define PAGE_KEYS 1000 /* of one request */
#define ROOM_KEYS 100  /* of them for what came since */
#define LOOKED    4096 /* names looked at for neighbours */

struct near {
    struct fs *fs;
    struct inode *asked;
    struct listing *asked_listing;
    const char *begin; /* name of the first directory, borrowed */
    uint64_t begin_ino, parent;
    GArray *members;      /* struct sync_member */
    GHashTable *listings; /* ino -> struct listing of those that were not run yet */
    unsigned passed;      /* keys from the first directory's to where the look has come */
    unsigned keys;        /* the same to the end of the last member */
    unsigned looked;
};

static gpointer ino_key(uint64_t ino)
{
    return GSIZE_TO_POINTER(ino);
}

/* Can it come along, and how many keys will it have? Such directories only hold files, so that a key of theirs is a name. */
static bool can_join(struct inode *dir, unsigned *ret_keys)
{
    mutex_lock(&dir->mu);
    bool can =
        !dir->gone && dir->list.flat && (dir->rec.flags & INODE_DIR_LISTED) && !(dir->rec.flags & INODE_DIR_LOCAL);
    *ret_keys = dir->list.keys;
    mutex_unlock(&dir->mu);
    return can;
}

static void add(struct near *n, struct inode *dir, struct listing *l, const char *name)
{
    struct sync_member m = {dir->ino, g_strdup(name)};
    mutex_lock(&dir->mu);
    dir->list.begin = n->begin_ino;
    mutex_unlock(&dir->mu);
    g_array_append_val(n->members, m);
    g_hash_table_insert(n->listings, ino_key(dir->ino), l);
    n->keys = n->passed;
}

/* In the order of keys, which are those of "name/". */
static bool is_behind(const char *first, const char *name)
{
    g_autofree char *a = g_strconcat(first, "/", NULL), *b = g_strconcat(name, "/", NULL);
    return strcmp(a, b) < 0;
}

/* 1: no more. */
static int take_neighbour(void *ctx, const struct meta_dentry *d)
{
    struct near *n = ctx;
    unsigned keys = 0;
    if (++n->looked > LOOKED)
        return 1;
    if (!sync_group_takes(n->fs, d->name))
        return 0;
    if (S_ISDIR(d->type) && d->ino != n->begin_ino && !is_behind(n->begin, d->name))
        return 0;
    INODE_REF dir = S_ISDIR(d->type) ? inode_find(n->fs, d->ino) : NULL;
    if (!dir || !can_join(dir, &keys) || n->passed + keys > PAGE_KEYS - ROOM_KEYS)
        return 1;
    n->passed += keys;
    struct listing *l = n->asked_listing;
    if (dir != n->asked)
        l = tree_is_due(n->fs, dir) ? tree_list_claim(n->fs, d->ino) : NULL;
    if (l) /* else its keys are passed over: it is fresh, or being listed */
        add(n, dir, l, d->name);
    return n->begin_ino == d->ino && !l; /* the first one was wanted, to begin with */
}

static int apply(void *ctx, uint64_t ino, const struct tree_given *given)
{
    struct near *n = ctx;
    struct listing *l = g_hash_table_lookup(n->listings, ino_key(ino));
    (void)g_hash_table_remove(n->listings, ino_key(ino));
    tree_list_run(l, given);
    return 0;
}

/* What was not told of, but for the asked directory, which its own worker sees to. */
static void leave(struct near *n)
{
    GHashTableIter it;
    void *l;
    (void)g_hash_table_remove(n->listings, ino_key(n->asked->ino));
    g_hash_table_iter_init(&it, n->listings);
    while (g_hash_table_iter_next(&it, NULL, &l))
        tree_list_leave(l);
    g_hash_table_remove_all(n->listings);
    g_array_set_size(n->members, 0);
    n->passed = n->keys = n->looked = 0;
}

/* The directories from that one on, the asked one among them. False: it is not, or alone. */
static bool gather_from(struct near *n, struct inode *begin)
{
    mutex_lock(&begin->mu);
    g_autofree char *name = begin->rec.parent == n->parent ? g_strdup(begin->name) : NULL;
    mutex_unlock(&begin->mu);
    if (!name || !sync_group_takes(n->fs, name))
        return false;
    n->begin = name;
    n->begin_ino = begin->ino;
    int r = meta_name_each(n->fs->meta, n->parent, name, take_neighbour, n);
    return r >= 0 && n->members->len > 1 && g_hash_table_contains(n->listings, ino_key(n->asked->ino));
}

static bool gather(struct near *n)
{
    unsigned keys = 0;
    if (n->asked->ino == META_ROOT_INO || !can_join(n->asked, &keys) || keys > PAGE_KEYS / 2)
        return false;
    mutex_lock(&n->asked->mu);
    uint64_t begin_ino = n->asked->list.begin;
    n->parent = n->asked->rec.parent;
    mutex_unlock(&n->asked->mu);
    if (!sync_group_fits(n->fs, n->parent))
        return false;
    INODE_REF begin = begin_ino && begin_ino != n->asked->ino ? inode_find(n->fs, begin_ino) : NULL;
    if (begin && gather_from(n, begin))
        return true;
    leave(n);
    return gather_from(n, n->asked);
}

/* The next page leaves it out: it has grown, and what is behind it would never be reached. */
static void note_grown(struct fs *fs, const struct sync_member *m)
{
    INODE_REF dir = inode_find(fs, m->ino);
    if (!dir)
        return;
    mutex_lock(&dir->mu);
    dir->list.flat = false;
    mutex_unlock(&dir->mu);
}

bool tree_near_list(struct fs *fs, struct inode *dir, struct listing *l)
{
    g_autoptr(GArray) members = sync_group_new();
    g_autoptr(GHashTable) listings = g_hash_table_new(NULL, NULL);
    struct near n = {.fs = fs, .asked = dir, .asked_listing = l, .members = members, .listings = listings};
    bool ran = false;
    if (gather(&n)) {
        const struct sync_group g = {n.parent, apply, &n, MIN(n.keys + ROOM_KEYS, PAGE_KEYS), .claimed = true};
        guint done = 0;
        int r = sync_group_list(fs, &g, members, &done);
        if (r < 0)
            log_debug("list", "listed one by one r=%s", err_name(r));
        else if (done < members->len)
            note_grown(fs, &g_array_index(members, struct sync_member, done));
        ran = !g_hash_table_contains(listings, ino_key(dir->ino));
    }
    leave(&n);
    return ran;
}
