/*
 * Copies of inode records as they were before the batch that is being built, see ns_undo.h. Guarded by ns, under which alone records change, but for what writing changes under
 * inode.mu: size and times. Those stay as they are where something was written in between.
 */
#include "ns_undo.h"

struct undo {
    struct inode *in;      /* owned reference */
    struct meta_inode rec; /* owned */
    uint64_t n_changes;
};

static void keep_written(struct meta_inode *rec, const struct meta_inode *now)
{
    rec->size = now->size;
    rec->mtime_ns = now->mtime_ns;
    rec->ctime_ns = now->ctime_ns;
    rec->flags = (rec->flags & ~(uint32_t)INODE_MTIME_SET) | (now->flags & INODE_MTIME_SET);
}

static void undo_clear(void *arg)
{
    struct undo *u = arg;
    meta_inode_clear(&u->rec);
    u->in->undo_noted = false;
    inode_put(u->in);
}

void ns_undo_note_locked(struct inode *in)
{
    struct fs *fs = in->fs;
    mutex_assert_held(&fs->ns);
    mutex_assert_held(&in->mu);
    if (!fs->undo) {
        fs->undo = g_array_new(FALSE, FALSE, sizeof(struct undo));
        g_array_set_clear_func(fs->undo, undo_clear);
    }
    if (in->undo_noted)
        return;
    in->undo_noted = true;
    struct undo u = {.in = inode_ref(in), .n_changes = in->n_changes};
    meta_inode_copy(&u.rec, &in->rec);
    g_array_append_val(fs->undo, u);
}

void ns_undo_end(struct fs *fs, bool committed)
{
    mutex_assert_held(&fs->ns);
    for (guint i = 0; fs->undo && !committed && i < fs->undo->len; i++) {
        struct undo *u = &g_array_index(fs->undo, struct undo, i);
        mutex_lock(&u->in->mu);
        struct meta_inode refused = u->in->rec;
        if (u->in->n_changes != u->n_changes)
            keep_written(&u->rec, &refused);
        u->in->rec = u->rec;
        u->rec = refused;
        if (u->in->cf && u->in->rec.base_key)
            cache_file_rebase(u->in->cf, u->in->rec.base_key, &u->in->rec.base_etag);
        mutex_unlock(&u->in->mu);
    }
    if (fs->undo)
        g_array_set_size(fs->undo, 0);
}
