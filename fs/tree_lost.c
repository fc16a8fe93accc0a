/* Names that the kernel knows and that go without its having asked for that: tree_lose_name() in tree.h. */
#include "meta_orphan.h"
#include "ns_undo.h"
#include "tree.h"

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
        in->rec.flags |= INODE_NAME_LOST; /* stored with the count of names */
    }
    mutex_unlock(&in->mu);
    return may;
}

void tree_note_lost(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    if (inode_get(fs, d->ino, &in) < 0)
        return;
    mutex_lock(&in->mu);
    bool last = in->rec.nlink == 0;
    mutex_unlock(&in->mu);
    if (last)
        meta_orphan_put_lost(b, d->ino, d->parent, d->name);
}

struct lost_each {
    struct fs *fs;
    void (*fn)(struct fs *fs, uint64_t parent, const char *name);
};

static int each_lost(void *ctx, uint64_t ino, const struct meta_replaced *rep)
{
    const struct lost_each *e = ctx;
    struct meta_dentry d = {0};
    if (rep->by || !rep->was.name)
        return 0;
    int r = meta_dentry_get(e->fs->meta, rep->was.parent, rep->was.name, &d);
    meta_dentry_clear(&d);
    if (r == -ENOENT)
        e->fn(e->fs, rep->was.parent, rep->was.name);
    return r == -ENOENT ? 0 : r;
}

int tree_lost_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t parent, const char *name))
{
    struct lost_each e = {fs, fn};
    return meta_orphan_each(fs->meta, each_lost, &e);
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
