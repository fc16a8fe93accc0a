/* See tree_sides.h. */
#include "tree_sides.h"

#include "local.h"
#include "rules.h"
#include "tree.h"

/* Does a path become one that a rule keeps here? */
static bool enters_local(struct fs *fs, const char *old_key, const char *new_key)
{
    return local_is(fs, new_key) && !local_is(fs, old_key);
}

bool tree_leaves_store(struct fs *fs, const struct meta_dentry *d, const char *old_key, const char *new_key)
{
    return enters_local(fs, old_key, new_key) || ((d->flags & DENTRY_UPSTREAM) && local_is(fs, new_key));
}

/* Where one or two names go, and the files that come or go across what a rule keeps here. */
struct sides {
    struct fs *fs;
    GHashTable *crossing; /* &ino -> number of its names that do; the keys are owned */
};

static void note_crossing(struct sides *s, uint64_t ino)
{
    unsigned n = GPOINTER_TO_UINT(g_hash_table_lookup(s->crossing, &ino)) + 1;
    g_hash_table_insert(s->crossing, g_memdup2(&ino, sizeof(ino)), GUINT_TO_POINTER(n));
}

/* -EXDEV: a directory, or something below one, would have to leave the store, and might not all fit here. */
static int look_at_sides(struct sides *s, const struct meta_dentry *d, const char *old_key, const char *new_key,
                         unsigned depth)
{
    bool dir = S_ISDIR(d->type);
    bool leaves = dir ? enters_local(s->fs, old_key, new_key) : tree_leaves_store(s->fs, d, old_key, new_key);
    if (leaves && (dir || depth > 0))
        return -EXDEV;
    if (!dir && local_is(s->fs, old_key) != local_is(s->fs, new_key))
        note_crossing(s, d->ino);
    if (!dir)
        return 0;
    if (depth > 512)
        return -ELOOP;
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_dentry_list(s->fs->meta, d->ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        const struct meta_dentry *below = names->pdata[i];
        const char *slash = S_ISDIR(below->type) ? "/" : "";
        g_autofree char *from = g_strconcat(old_key, below->name, slash, NULL);
        g_autofree char *to = g_strconcat(new_key, below->name, slash, NULL);
        r = look_at_sides(s, below, from, to, depth + 1);
    }
    return r;
}

/* -EXDEV: another name of one of the files stays where it is, so that it would have names on both sides. */
static int check_whole(struct sides *s)
{
    GHashTableIter it;
    void *ino, *n;
    g_hash_table_iter_init(&it, s->crossing);
    while (g_hash_table_iter_next(&it, &ino, &n)) {
        INODE_REF in = NULL;
        int r = inode_get(s->fs, *(uint64_t *)ino, &in);
        if (r < 0)
            return r;
        mutex_lock(&in->mu);
        bool whole = in->rec.nlink <= GPOINTER_TO_UINT(n);
        mutex_unlock(&in->mu);
        if (!whole)
            return -EXDEV;
    }
    return 0;
}

int tree_check_sides(struct fs *fs, const struct meta_dentry *src, uint64_t p2, const char *n2,
                     const struct meta_dentry *exchanged)
{
    if (!fs->rules->local_only)
        return 0;
    g_autoptr(GHashTable) crossing = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    struct sides s = {fs, crossing};
    bool dir = S_ISDIR(src->type), other_dir = exchanged && S_ISDIR(exchanged->type);
    g_autofree char *from = tree_key(fs, src->parent, src->name, dir), *to = tree_key(fs, p2, n2, dir);
    int r = look_at_sides(&s, src, from, to, 0);
    if (r == 0 && exchanged) {
        g_autofree char *other_from = tree_key(fs, p2, n2, other_dir);
        g_autofree char *other_to = tree_key(fs, src->parent, src->name, other_dir);
        r = look_at_sides(&s, exchanged, other_from, other_to, 0);
    }
    return r == 0 ? check_whole(&s) : r;
}
