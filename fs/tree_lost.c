/* Names that the kernel knows and that go without its having asked for that: tree_lose_name() in tree.h. */
#include "ns_undo.h"
#include "tree.h"

#include <stdlib.h>
#include <string.h>

/* From here on nobody opens it for writing by that name: the kernel, which did not ask for this, finds it by it until it is told. False: somebody does already. */
static bool close_to_writers(struct fs *fs, uint64_t ino) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    if (inode_get(fs, ino, &in) < 0)
        return true;
    mutex_lock(&in->mu);
    bool may = in->n_writers == 0, last = in->rec.nlink <= 1;
    in->passed_over |= !may;
    if (may && last) {
        ns_undo_note_locked(in);
        in->rec.flags |= INODE_REPLACED; /* stored with the count of names */
    }
    mutex_unlock(&in->mu);
    return may;
}

void tree_note_lost(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    char name[32];
    if (inode_get(fs, d->ino, &in) < 0)
        return;
    mutex_lock(&in->mu);
    bool last = in->rec.nlink == 0;
    mutex_unlock(&in->mu);
    g_autofree char *place = g_strdup_printf("%016" G_GINT64_MODIFIER "x/%s", d->parent, d->name);
    tree_orphan_name(d->ino, name);
    if (last)
        meta_value_put(b, name, place, strlen(place));
}

struct lost_each {
    struct fs *fs;
    void (*fn)(struct fs *fs, uint64_t parent, const char *name);
};

static int each_lost(void *ctx, const char *value_name, const void *value, size_t len)
{
    const struct lost_each *e = ctx;
    struct meta_dentry d = {0};
    g_autofree char *place = g_strndup(value, len);
    const char *name = strchr(place, '/');
    uint64_t parent = strtoull(place, NULL, 16);
    int r = name ? meta_dentry_get(e->fs->meta, parent, name + 1, &d) : 0;
    meta_dentry_clear(&d);
    if (r == -ENOENT)
        e->fn(e->fs, parent, name + 1);
    return r == -ENOENT ? 0 : r;
}

int tree_lost_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t parent, const char *name))
{
    struct lost_each e = {fs, fn};
    return meta_value_each(fs->meta, "orphan/", each_lost, &e);
}

int tree_lose_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d)
{
    if (S_ISREG(d->type) && !close_to_writers(fs, d->ino))
        return 1;
    int r = tree_drop_name(fs, b, d, true);
    if (r == 0)
        tree_note_lost(fs, b, d);
    return r;
}
