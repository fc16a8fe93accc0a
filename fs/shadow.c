/* See shadow.h. */
#include "shadow.h"

#include "links.h"
#include "op.h"
#include "pin.h"
#include "publish.h"

#define ROWS_PER_BATCH 500

bool shadow_is_name(struct fs *fs, const char *name)
{
    const char *suffix = fs->cfg->shadow;
    return suffix && strlen(name) > strlen(suffix) && g_str_has_suffix(name, suffix);
}

int shadow_check_change(struct inode *in)
{
    mutex_lock(&in->mu);
    bool shadow = in->rec.flags & INODE_SHADOW;
    mutex_unlock(&in->mu);
    return shadow ? -EPERM : 0;
}

struct list_row *shadow_replaced(struct fs *fs, uint64_t dir, const struct list_row *row, const struct nameset *seen)
{
    struct meta_dentry d = {0};
    INODE_REF in = NULL;
    struct list_row *old = NULL;
    if (!row->is_dir || !nameset_has(seen, row->name, strlen(row->name), false) ||
        meta_dentry_get(fs->meta, dir, row->name, &d) < 0)
        return NULL;
    if (!S_ISDIR(d.type) && (d.flags & DENTRY_UPSTREAM) && !d.ukey && inode_get(fs, d.ino, &in) == 0) {
        old = g_new0(struct list_row, 1);
        old->name = g_strdup(d.name);
        old->etag = d.uetag;
        old->size = d.usize;
        mutex_lock(&in->mu);
        old->mtime_ns = in->rec.mtime_ns;
        old->archived = in->rec.flags & INODE_ARCHIVED;
        mutex_unlock(&in->mu);
    }
    meta_dentry_clear(&d);
    return old;
}

/* NULL: it would be too long. */
static char *name_of(struct fs *fs, const struct list_row *row)
{
    char *name = g_strconcat(row->name, fs->cfg->shadow, NULL);
    if (strlen(name) <= FS_NAME_MAX)
        return name;
    g_free(name);
    return NULL;
}

/* As other rows are, before they are applied: an empty object may be a link. */
static int head_row(struct fs *fs, const struct shadow_listing *l, struct list_row *row)
{
    g_autofree char *name = row->has_info ? NULL : name_of(fs, row);
    if (!name)
        return 0;
    struct list_row shown = *row; /* shares what it points to */
    shown.name = name;
    shown.object = row->name;
    if (!tree_row_wants_head(fs, l->dir, &shown))
        return 0;
    g_autofree char *key = g_strconcat(l->prefix, row->name, NULL);
    return tree_head_row(fs, key, row);
}

/* Can the object be shown by that name? Not where an object, or what was made here, has it. */
static bool is_free(struct fs *fs, const struct shadow_listing *l, const char *name, const struct meta_dentry *d)
{
    g_autofree char *path = g_strconcat(l->prefix, name, NULL);
    size_t len = strlen(name);
    return (!d->id || (d->flags & DENTRY_SHADOW)) && !nameset_has(l->seen, name, len, false) &&
           !nameset_has(l->seen, name, len, true) && !virt_lookup(l->dir, name) && links_shows(fs, path, false);
}

/* Counted once, as long as it stays hidden. */
static void note_hidden(struct meta_batch *b, struct meta_dentry *dir, bool hidden)
{
    if (!(dir->flags & DENTRY_HIDDEN_OBJ) == !hidden)
        return;
    dir->flags ^= DENTRY_HIDDEN_OBJ;
    meta_dentry_put(b, dir);
    if (hidden)
        metric_inc(M_hidden_keys);
}

/* The name is, or becomes, that of the row's object. */
static int put_name(struct fs *fs, struct meta_batch *b, const struct shadow_listing *l, struct meta_dentry *d,
                    struct list_row *row, char *name) REQUIRES(fs->ns)
{
    bool same = d->id && (row->has_info ? etag_equal(&d->uetag, &row->etag) : etag_fits(&row->etag, &d->uetag));
    uint32_t pins = pin_inherited(fs, l->dir);
    INODE_REF old = NULL;
    int r = d->id && !same ? inode_get(fs, d->ino, &old) : 0;
    if (same || r < 0) {
        g_free(name);
        return r == -ENOENT ? 0 : r;
    }
    if (old) {
        mutex_lock(&old->mu);
        pins |= old->rec.flags & INODE_PIN_FLAGS;
        mutex_unlock(&old->mu);
        r = tree_drop_name(fs, b, d, true);
        metric_inc(M_remote_changes);
        notify_entry(fs, l->dir, name);
    }
    row->object = row->name;
    row->name = name;
    return r < 0 ? r : tree_insert_row(fs, b, l->dir, row, pins, row->stamp);
}

static int show_row(struct fs *fs, struct meta_batch *b, const struct shadow_listing *l, struct list_row *row)
    REQUIRES(fs->ns)
{
    struct meta_dentry dir = {0}, d = {0};
    char *name = name_of(fs, row);
    int r = meta_dentry_get(fs->meta, l->dir, row->name, &dir);
    bool beside = r == 0 && S_ISDIR(dir.type) && !row->vanished;
    if (beside && name)
        r = meta_dentry_get(fs->meta, l->dir, name, &d);
    r = r == -ENOENT ? 0 : r;
    bool shown = r == 0 && beside && name && is_free(fs, l, name, &d);
    if (r == 0 && beside)
        note_hidden(b, &dir, !shown);
    if (shown) {
        nameset_add(l->seen, name, strlen(name), false);
        r = put_name(fs, b, l, &d, row, g_steal_pointer(&name));
    }
    g_free(name);
    meta_dentry_clear(&dir);
    meta_dentry_clear(&d);
    return r;
}

static int show_some(struct fs *fs, const struct shadow_listing *l, GPtrArray *rows, bool *ret_changed)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < rows->len; i++)
        r = head_row(fs, l, rows->pdata[i]);
    if (r < 0)
        return r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    uint64_t changes = fs->ns_changes;
    g_autofree char *now = tree_dir_prefix(fs, l->dir);
    r = g_str_equal(now, l->prefix) ? 0 : -EAGAIN;
    for (unsigned i = 0; r == 0 && i < rows->len; i++)
        r = show_row(fs, b, l, rows->pdata[i]);
    if (r == 0)
        r = meta_commit(b, false);
    *ret_changed |= fs->ns_changes != changes;
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    g_ptr_array_set_size(rows, 0);
    return r;
}

int shadow_show(struct fs *fs, const struct shadow_listing *l, bool *ret_changed)
{
    g_autoptr(GPtrArray) rows = g_ptr_array_new();
    GHashTableIter it;
    struct list_row *row;
    int r = 0;
    g_hash_table_iter_init(&it, l->objects);
    while (r == 0 && g_hash_table_iter_next(&it, NULL, (void **)&row)) {
        if (!nameset_has(l->seen, row->name, strlen(row->name), true)) /* its directory is about to go */
            continue;
        g_ptr_array_add(rows, row);
        if (rows->len >= ROWS_PER_BATCH)
            r = show_some(fs, l, rows, ret_changed);
    }
    return r == 0 && rows->len > 0 ? show_some(fs, l, rows, ret_changed) : r;
}
