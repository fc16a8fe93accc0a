/*
 * What a listing says, applied to the names of one directory.
 *
 * The store is believed only where nothing local is newer: a name with a journal record, with unpublished content, or changed here after the
 * listing began keeps what it has (publishing will find out about a conflict by its condition). A name whose object has another etag gets a
 * new inode; the old one keeps serving its open handles.
 */
#include "tree_apply.h"

#include "pin.h"
#include "publish.h"

void list_row_free(struct list_row *row)
{
    if (!row)
        return;
    obj_info_clear(&row->info);
    g_free(row->name);
    g_free(row);
}

bool tree_name_ok(const char *name, size_t len)
{
    return len > 0 && len < 4096 && !memchr(name, '/', len) && !memchr(name, '\0', len) &&
           !(len == 1 && name[0] == '.') && !(len == 2 && name[0] == '.' && name[1] == '.');
}

bool tree_row_wants_head(struct fs *fs, uint64_t dir, const struct list_row *row)
{
    if (row->is_dir || fs->cfg->posix_meta == POSIX_META_OFF)
        return false;
    if (fs->cfg->posix_meta == POSIX_META_AUTO && row->size != 0)
        return false;
    struct meta_dentry d = {0};
    if (meta_dentry_get(fs->meta, dir, row->name, &d) < 0)
        return true;
    bool known = etag_fits(&row->etag, &d.uetag);
    if (row->size == 0) /* whose tag may be the same after a link was given another target */
        known = known && row->settled_ns && d.umtime_ns == row->settled_ns;
    meta_dentry_clear(&d);
    return !known;
}

/* Local content, a journal record or a local-only node: the name is not the store's to change. */
static bool name_is_local(const struct meta_dentry *d, const struct inode *in)
{
    if (d->op_seq || (in->rec.flags & INODE_LOCAL_ONLY))
        return true;
    if (S_ISDIR(d->type))
        return in->rec.flags & INODE_DIR_LOCAL;
    return in->rec.content != CONTENT_CLEAN || !(d->flags & DENTRY_UPSTREAM);
}

void tree_fill_posix(struct fs *fs, struct meta_inode *rec, const struct obj_info *info)
{
    const struct posix_attr *p = &info->posix;
    uint32_t owner = fs->cfg->posix_meta == POSIX_META_ON ? p->fields & (POSIX_UID | POSIX_GID) : 0;
    rec->flags |= INODE_HEADED;
    if (!(rec->flags & INODE_MODE_KNOWN) && ((p->fields & POSIX_MODE) || owner)) {
        rec->flags |= INODE_MODE_KNOWN | (owner ? 0 : INODE_OWNER_UNKNOWN);
        rec->mode = p->fields & POSIX_MODE ? (rec->mode & S_IFMT) | (p->mode & 0777) : rec->mode;
        rec->uid = owner & POSIX_UID ? p->uid : rec->uid;
        rec->gid = owner & POSIX_GID ? p->gid : rec->gid;
    }
    if (!(rec->flags & INODE_MTIME_KNOWN) && (p->fields & POSIX_MTIME)) {
        rec->mtime_ns = p->mtime_ns;
        rec->flags |= INODE_MTIME_KNOWN;
    }
}

int tree_insert_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint32_t keep_flags,
                    uint64_t stamp)
{
    struct meta_inode rec = {
        .ino = meta_next_ino(fs->meta),
        .uid = fs->uid,
        .gid = fs->gid,
        .nlink = 1,
        .flags = keep_flags | (row->archived ? INODE_ARCHIVED : 0),
        .ctime_ns = row->mtime_ns,
        .mtime_ns = row->mtime_ns,
    };
    struct meta_dentry d = {.parent = dir, .name = row->name, .ino = rec.ino, .stamp = stamp};
    if (row->is_dir) {
        rec.mode = S_IFDIR | fs->cfg->dir_mode;
        rec.parent = dir;
        rec.mtime_ns = rec.ctime_ns = clock_wall_ns();
        d.flags = DENTRY_IMPLICIT | (row->shadows ? (uint32_t)DENTRY_HIDDEN_OBJ : 0);
        if (row->shadows)
            metric_inc(M_hidden_keys);
    } else {
        rec.mode = S_IFREG | fs->cfg->file_mode;
        rec.size = rec.base_limit = row->size;
        rec.gen = 1;
        rec.base_etag = row->etag;
        rec.base_key = tree_key(fs, dir, row->name, false);
        d.flags = DENTRY_UPSTREAM;
        d.uetag = row->etag;
        d.usize = row->size;
        if (row->has_info) {
            d.umtime_ns = row->size == 0 ? row->settled_ns : 0;
            tree_fill_posix(fs, &rec, &row->info);
            if (row->info.symlink) {
                rec.mode = S_IFLNK | 0777;
                rec.target = g_strdup(row->info.symlink);
            }
            g_strlcpy(d.token, row->info.token, sizeof(d.token));
        }
    }
    d.type = rec.mode & S_IFMT;
    meta_inode_put(b, &rec);
    meta_dentry_put(b, &d);
    meta_inode_clear(&rec);
    fs->ns_changes++;
    return 0;
}

/* The directory beside which an object of the same name stands: remembered, counted once. */
static void note_shadowed(struct fs *fs, struct meta_batch *b, struct meta_dentry *d)
{
    if (d->flags & DENTRY_HIDDEN_OBJ)
        return;
    d->flags |= DENTRY_HIDDEN_OBJ;
    meta_dentry_put(b, d);
    metric_inc(M_hidden_keys);
}

static int replace_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, const struct inode *old,
                        const struct list_row *row) REQUIRES(fs->ns)
{
    bool shadowed = row->is_dir && !S_ISDIR(d->type);
    uint32_t keep = old->rec.flags & INODE_PIN_FLAGS;
    int r = tree_drop_name(fs, b, d, true);
    if (r < 0)
        return r;
    metric_inc(M_remote_changes);
    notify_entry(fs, d->parent, d->name);
    if (shadowed && !row->shadows)
        metric_inc(M_hidden_keys);
    return tree_insert_row(fs, b, d->parent, row, keep, 0);
}

/* A rule of the bucket may have moved the object into an archive, which leaves its etag alone. */
static void note_archived(struct meta_batch *b, struct inode *in, bool archived)
{
    mutex_lock(&in->mu);
    if (!(in->rec.flags & INODE_ARCHIVED) == archived) {
        in->rec.flags ^= INODE_ARCHIVED;
        meta_inode_put(b, &in->rec);
    }
    mutex_unlock(&in->mu);
}

/* Is what the name has what the row shows? An object that could not be asked for before may turn out to be a link. */
static bool is_same(const struct meta_dentry *d, const struct list_row *row)
{
    if (row->is_dir || (row->has_info && row->info.symlink && !S_ISLNK(d->type)))
        return false;
    return row->has_info ? etag_equal(&d->uetag, &row->etag) : etag_fits(&row->etag, &d->uetag);
}

/* The name's tag was compared with the whole one, if that was asked for. */
static void note_checked(struct meta_batch *b, struct meta_dentry *d, const struct list_row *row)
{
    if (row->size == 0 && row->has_info && d->umtime_ns != row->settled_ns) {
        d->umtime_ns = row->settled_ns;
        meta_dentry_put(b, d);
    }
}

static int apply_known(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, const struct list_row *row)
    REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, d->ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (S_ISDIR(d->type) && !row->is_dir) {
        note_shadowed(fs, b, d);
        return 1;
    }
    if (S_ISDIR(d->type)) {
        if (row->shadows)
            note_shadowed(fs, b, d);
        mutex_lock(&in->mu);
        if (in->rec.flags & INODE_DIR_LOCAL) { /* somebody put something below it: it has to be listed from now on */
            in->rec.flags &= ~(INODE_DIR_LOCAL | INODE_DIR_LISTED);
            in->rec.listed_ns = 0;
            meta_inode_put(b, &in->rec);
        }
        mutex_unlock(&in->mu);
        return 0;
    }
    if (name_is_local(d, in))
        return 0;
    if (is_same(d, row)) {
        note_checked(b, d, row);
        note_archived(b, in, row->archived);
        return 0;
    }
    return replace_name(fs, b, d, in, row);
}

/* A row of which there is no name, unless it is one that we are about to delete. */
static int insert_new(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint64_t stamp)
    REQUIRES(fs->ns)
{
    g_autofree char *key = tree_key(fs, dir, row->name, row->is_dir);
    if (publish_key_deleted(fs->pub, key, stamp))
        return 0;
    return tree_insert_row(fs, b, dir, row, pin_inherited(fs, dir), 0);
}

int tree_apply_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint64_t stamp)
{
    mutex_assert_held(&fs->ns);
    struct meta_dentry d = {0};
    int r = meta_dentry_get(fs->meta, dir, row->name, &d);
    if (r == 0) {
        r = d.stamp > stamp ? 0 : apply_known(fs, b, &d, row);
        meta_dentry_clear(&d);
        return r;
    }
    return r == -ENOENT ? insert_new(fs, b, dir, row, stamp) : r;
}

/* Drops what a vanished directory held; *ret_empty tells whether nothing local is left in it. */
static int drop_below(struct fs *fs, struct meta_batch *b, uint64_t dir, uint64_t stamp, unsigned depth,
                      bool *ret_empty) REQUIRES(fs->ns);

/* One name that the store no longer has. */
static int drop_vanished(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, uint64_t stamp, unsigned depth,
                         bool *ret_dropped) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, d->ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (d->stamp > stamp || name_is_local(d, in))
        return 0;
    bool empty = true;
    if (S_ISDIR(d->type))
        r = depth < 256 ? drop_below(fs, b, d->ino, stamp, depth + 1, &empty) : -ELOOP;
    if (r < 0 || !empty)
        return r;
    r = tree_drop_name(fs, b, d, true);
    if (r < 0)
        return r;
    metric_inc(M_remote_changes);
    notify_entry(fs, d->parent, d->name);
    *ret_dropped = true;
    return 0;
}

static int drop_below(struct fs *fs, struct meta_batch *b, uint64_t dir, uint64_t stamp, unsigned depth,
                      bool *ret_empty) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_dentry_list(fs->meta, dir, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        bool dropped = false;
        r = drop_vanished(fs, b, names->pdata[i], stamp, depth, &dropped);
        if (!dropped)
            *ret_empty = false;
    }
    return r;
}

struct unseen {
    GHashTable *seen;
    GPtrArray *names;
    uint64_t first_id;
};

static int collect_unseen(void *ctx, const struct meta_dentry *d)
{
    struct unseen *u = ctx;
    if (d->id >= u->first_id)
        return 1;
    g_autofree char *shown = S_ISDIR(d->type) ? g_strconcat(d->name, "/", NULL) : g_strdup(d->name);
    if (!g_hash_table_contains(u->seen, shown))
        meta_dentry_collect(u->names, d);
    return 0;
}

int tree_drop_unseen(struct fs *fs, struct meta_batch *b, uint64_t dir, GHashTable *seen, uint64_t stamp,
                     uint64_t first_id)
{
    mutex_assert_held(&fs->ns);
    g_autoptr(GPtrArray) names = meta_dentry_array();
    struct unseen u = {seen, names, first_id};
    int r = meta_dentry_each(fs->meta, dir, 0, collect_unseen, &u);
    r = MIN(r, 0);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        bool dropped = false;
        const struct meta_dentry *d = names->pdata[i];
        const struct list_row *instead = g_hash_table_lookup(seen, d->name);
        r = drop_vanished(fs, b, names->pdata[i], stamp, 0, &dropped);
        if (r == 0 && dropped && instead)
            r = insert_new(fs, b, dir, instead, stamp);
    }
    return r;
}
