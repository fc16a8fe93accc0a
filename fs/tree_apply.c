/*
 * What a listing says, applied to the names of one directory.
 *
 * The store is believed only where nothing local is newer: a name with a journal record, with unpublished content, or changed here after the
 * listing began keeps what it has (publishing will find out about a conflict by its condition). So does the name of a file that is open for writing: what is written to it would go with
 * its last name else; when nothing was, it is looked at again after the close (publish_look_again()). A name whose object has another etag gets a
 * new inode; the old one keeps serving its open handles, and is not changed any more by who finds it by that name (tree_lose_name()).
 */
#include "tree_apply.h"

#include "ns_undo.h"
#include "pin.h"
#include "publish.h"
#include "rules.h"

void list_row_free(struct list_row *row)
{
    if (!row)
        return;
    obj_info_clear(&row->info);
    g_free(row->name);
    g_free(row->object);
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
    bool known = !(d.flags & DENTRY_SHADOW) == !row->object && etag_fits(&row->etag, &d.uetag);
    if (row->size == 0) /* whose tag may be the same after a link was given another target */
        known = known && row->settled_ns && d.umtime_ns == row->settled_ns;
    meta_dentry_clear(&d);
    return !known;
}

bool tree_name_is_local(const struct meta_dentry *d, struct inode *in, bool differs)
{
    mutex_lock(&in->mu); /* a writer changes one of the flags under it alone */
    uint32_t flags = in->rec.flags, content = in->rec.content;
    bool written = S_ISREG(d->type) && in->n_writers > 0;
    in->passed_over |= written && differs;
    mutex_unlock(&in->mu);
    if (d->flags & DENTRY_SHADOW)
        return false;
    if (d->op_seq || (flags & INODE_LOCAL_ONLY))
        return true;
    if (S_ISDIR(d->type))
        return (flags & INODE_DIR_LOCAL) || (d->flags & DENTRY_LINK);
    return written || content != CONTENT_CLEAN || !(d->flags & DENTRY_UPSTREAM);
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

/* What the kernel kept of the directory lacks a name; what it kept of others is right. */
static void note_listed(struct fs *fs, uint64_t ino)
{
    fs->ns_changes++;
    fs->ns_listed++;
    INODE_REF dir = inode_find(fs, ino);
    if (!dir)
        return;
    mutex_lock(&dir->mu);
    dir->dir_seen = 0;
    mutex_unlock(&dir->mu);
}

/* An object beside a directory of its name; with --shadow the end of the listing knows whether it is shown. */
static void count_hidden(struct fs *fs)
{
    if (!fs->cfg->shadow)
        metric_inc(M_hidden_keys);
}

static int insert_at(struct fs *fs, struct meta_batch *b, const struct tree_place *at, const struct list_row *row)
{
    struct meta_inode rec = {
        .ino = meta_next_ino(fs->meta),
        .uid = fs->uid,
        .gid = fs->gid,
        .nlink = 1,
        .flags = at->pins | (row->archived ? INODE_ARCHIVED : 0),
        .ctime_ns = row->mtime_ns,
        .mtime_ns = row->mtime_ns,
    };
    struct meta_dentry d = {.parent = at->dir, .name = row->name, .ino = rec.ino, .stamp = at->stamp};
    if (row->is_dir) {
        rec.mode = S_IFDIR | fs->cfg->dir_mode;
        rec.parent = at->dir;
        rec.mtime_ns = rec.ctime_ns = clock_wall_ns();
        d.flags = DENTRY_IMPLICIT | (row->shadows && !fs->cfg->shadow ? (uint32_t)DENTRY_HIDDEN_OBJ : 0);
        if (row->shadows)
            count_hidden(fs);
    } else {
        rec.mode = S_IFREG | fs->cfg->file_mode;
        rec.size = rec.base_limit = row->size;
        rec.gen = 1;
        rec.base_etag = row->etag;
        rec.base_key = g_strconcat(at->prefix, row->object ? row->object : row->name, NULL);
        rec.flags |= row->object ? (uint32_t)INODE_SHADOW : 0;
        d.flags = (row->object ? DENTRY_SHADOW : DENTRY_UPSTREAM) | (row->archived ? (uint32_t)DENTRY_ARCHIVED : 0);
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
    note_listed(fs, at->dir);
    return 0;
}

int tree_insert_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint32_t keep_flags,
                    uint64_t stamp)
{
    g_autofree char *prefix = tree_dir_prefix(fs, dir);
    return insert_at(fs, b, &(struct tree_place){dir, prefix, keep_flags, stamp}, row);
}

/* The directory beside which an object of the same name stands: remembered, counted once. */
static void note_shadowed(struct fs *fs, struct meta_batch *b, struct meta_dentry *d)
{
    if ((d->flags & DENTRY_HIDDEN_OBJ) || fs->cfg->shadow)
        return;
    d->flags |= DENTRY_HIDDEN_OBJ;
    meta_dentry_put(b, d);
    count_hidden(fs);
}

/* For --on-create: something of a directory that was listed before is new, or an event says so. What a first listing shows was there. */
static void note_created(struct fs *fs, uint64_t dir, const struct list_row *row) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    if (fs->rules->on_create->len == 0 || inode_get(fs, dir, &in) < 0)
        return;
    mutex_lock(&in->mu);
    bool listed = in->rec.flags & INODE_DIR_LISTED;
    mutex_unlock(&in->mu);
    g_autofree char *key = listed ? tree_key(fs, dir, row->name, row->is_dir) : NULL;
    if (!(key && rules_on_create(fs, key)) && row->told)
        (void)rules_on_create(fs, row->told); /* wanted or not */
}

static int replace_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, const struct inode *old,
                        const struct list_row *row) REQUIRES(fs->ns)
{
    bool shadowed = row->is_dir && !S_ISDIR(d->type) && !(d->flags & DENTRY_SHADOW);
    uint32_t keep = old->rec.flags & INODE_PIN_FLAGS;
    int r = tree_lose_name(fs, b, d);
    if (r != 0)
        return MIN(r, 0);
    metric_inc(M_remote_changes);
    notify_entry(fs, d->parent, d->name);
    if (shadowed && !row->shadows)
        count_hidden(fs);
    note_created(fs, d->parent, row);
    return tree_insert_row(fs, b, d->parent, row, keep, row->stamp);
}

/* A rule of the bucket may have moved the object into an archive, which leaves its etag alone. */
static void note_archived(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, struct inode *in, bool archived)
    REQUIRES(fs->ns)
{
    if (!(d->flags & DENTRY_ARCHIVED) == archived) {
        d->flags ^= DENTRY_ARCHIVED;
        meta_dentry_put(b, d);
    }
    mutex_lock(&in->mu);
    if (!(in->rec.flags & INODE_ARCHIVED) == archived) {
        ns_undo_note_locked(in);
        in->rec.flags ^= INODE_ARCHIVED;
        meta_inode_put(b, &in->rec);
    }
    mutex_unlock(&in->mu);
}

/* Is what the name has what the row shows? An object that could not be asked for before may turn out to be a link. */
static bool is_same(const struct meta_dentry *d, const struct list_row *row)
{
    if (row->is_dir || (d->flags & DENTRY_SHADOW) || (row->has_info && row->info.symlink && !S_ISLNK(d->type)))
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

/* Is the row of something that we are about to delete, or deleted after the listing began? */
static bool row_is_leaving(struct fs *fs, const struct tree_place *at, const struct list_row *row) REQUIRES(fs->ns)
{
    g_autofree char *key = g_strconcat(at->prefix, row->name, row->is_dir ? "/" : NULL, NULL);
    return publish_key_deleted(fs->pub, key, at->stamp);
}

static int apply_known(struct fs *fs, struct meta_batch *b, const struct tree_place *at, struct meta_dentry *d,
                       const struct list_row *row) REQUIRES(fs->ns)
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
            ns_undo_note_locked(in);
            in->rec.flags &= ~(INODE_DIR_LOCAL | INODE_DIR_LISTED);
            in->rec.listed_ns = 0;
            meta_inode_put(b, &in->rec);
        }
        mutex_unlock(&in->mu);
        return 0;
    }
    bool same = is_same(d, row);
    if (tree_name_is_local(d, in, !same))
        return 0;
    if (same) {
        note_checked(b, d, row);
        note_archived(fs, b, d, in, row->archived);
        return 0;
    }
    if (row->is_dir && row_is_leaving(fs, at, row))
        return 0; /* left of a directory whose place the name took */
    return replace_name(fs, b, d, in, row);
}

int tree_insert_new(struct fs *fs, struct meta_batch *b, const struct tree_place *at, const struct list_row *row)
{
    mutex_assert_held(&fs->ns);
    if (row_is_leaving(fs, at, row))
        return 0;
    note_created(fs, at->dir, row);
    struct tree_place as_listed = *at;
    as_listed.stamp = row->stamp; /* no change of ours */
    return insert_at(fs, b, &as_listed, row);
}

int tree_apply_row_at(struct fs *fs, struct meta_batch *b, const struct tree_place *at, const struct list_row *row)
{
    mutex_assert_held(&fs->ns);
    struct meta_dentry d = {0};
    if (row->match == ROW_SAME)
        return 0;
    int r = row->match == ROW_NEW ? -ENOENT : meta_dentry_get(fs->meta, at->dir, row->name, &d);
    if (r == 0) {
        r = d.stamp > at->stamp ? 0 : apply_known(fs, b, at, &d, row);
        meta_dentry_clear(&d);
        return r;
    }
    return r == -ENOENT ? tree_insert_new(fs, b, at, row) : r;
}

int tree_apply_row(struct fs *fs, struct meta_batch *b, uint64_t dir, const struct list_row *row, uint64_t stamp)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, dir, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (in->rec.nlink == 0) /* somebody may be in it still, but a name there would be out of reach */
        return 0;
    g_autofree char *prefix = tree_dir_prefix(fs, dir);
    return tree_apply_row_at(fs, b, &(struct tree_place){dir, prefix, pin_inherited(fs, dir), stamp}, row);
}

/* ---- many rows at once ---- */

struct match {
    const GPtrArray *rows;
    guint at; /* rows before it are done */
};

/* The next object among the rows from m->at on, or NULL: directories are not in the order of names. */
static struct list_row *next_object(struct match *m)
{
    for (; m->at < m->rows->len; m->at++) {
        struct list_row *row = m->rows->pdata[m->at];
        if (!row->is_dir)
            return row;
    }
    return NULL;
}

/* Is there nothing to be done for the row? An object without bytes may be a link that another one has replaced; of an archived one a flag may have to be set. */
static bool is_settled(const struct meta_dentry *d, const struct list_row *row)
{
    bool plain = row->size > 0 && !row->has_info && !row->vanished && !row->archived;
    return plain && !S_ISDIR(d->type) && !(d->flags & DENTRY_ARCHIVED) && is_same(d, row);
}

static int match_name(void *ctx, const struct meta_dentry *d)
{
    struct match *m = ctx;
    struct list_row *row;
    int order = 1;
    while ((row = next_object(m)) && (order = strcmp(row->name, d->name)) < 0) {
        row->match = ROW_NEW;
        m->at++;
    }
    if (row && order == 0) {
        row->match = is_settled(d, row) ? ROW_SAME : ROW_KNOWN;
        m->at++;
    }
    return row == NULL;
}

/* Rows that are not in order, which no store should give, are looked up one by one. */
static bool in_order(const GPtrArray *rows)
{
    struct match m = {rows, 0};
    const struct list_row *last = NULL;
    for (const struct list_row *row; (row = next_object(&m)); m.at++) {
        if (last && strcmp(last->name, row->name) >= 0)
            return false;
        last = row;
    }
    return last != NULL;
}

int tree_match_rows(struct fs *fs, uint64_t dir, const GPtrArray *rows)
{
    mutex_assert_held(&fs->ns);
    struct match m = {rows, 0};
    for (guint i = 0; i < rows->len; i++)
        ((struct list_row *)rows->pdata[i])->match = ROW_NOT_LOOKED;
    if (!in_order(rows))
        return 0;
    int r = meta_name_each(fs->meta, dir, next_object(&m)->name, match_name, &m);
    if (r < 0)
        return r;
    for (struct list_row *row; (row = next_object(&m)); m.at++)
        row->match = ROW_NEW;
    return 0;
}
