/* What the tree makes of a bucket link, see links.h: the directory's name comes with the record, and goes with it after all names below. */
#include "base/crash.h"
#include "conflict.h"
#include "links_internal.h"
#include "ns_undo.h"
#include "publish.h"
#include "tree.h"
#include "tree_apply.h"
#include "tree_list.h"

#include <inttypes.h>

#define NAMES_PER_BATCH 500u
#define REMOVE_TRIES    16u /* who lists all of it meanwhile fills each directory once */

static char *going_name(const char *dir)
{
    return g_strconcat("link-going/", dir, NULL);
}

/* ---- the directory ---- */

int links_tree_find(struct fs *fs, const char *dir, uint64_t *ret_ino)
{
    g_auto(GStrv) parts = g_strsplit(dir, "/", -1);
    uint64_t ino = META_ROOT_INO;
    bool marked = false;
    for (unsigned i = 0; parts[i]; i++) {
        struct meta_dentry d = {0};
        int r = meta_dentry_get(fs->meta, ino, parts[i], &d);
        if (r < 0)
            return r;
        bool is_dir = S_ISDIR(d.type);
        ino = d.ino;
        marked = d.flags & DENTRY_LINK;
        meta_dentry_clear(&d);
        if (!is_dir)
            return -ENOTDIR;
    }
    if (!marked)
        return -ENOENT;
    *ret_ino = ino;
    return 0;
}

/* The name in dir as the database has it; where it has none and the directory was never listed or is old, the store is asked, unless that is not wanted. */
static int look_up(struct fs *fs, uint64_t dir, const char *name, bool ask, struct inode **ret)
{
    struct meta_dentry d = {0};
    int r = ask ? tree_lookup(fs, dir, name, ret) : -ETIMEDOUT;
    if (r == 0 || r == -ENOENT)
        return r;
    int here = meta_dentry_get(fs->meta, dir, name, &d);
    if (here < 0)
        return ask ? r : here;
    r = inode_get(fs, d.ino, ret);
    meta_dentry_clear(&d);
    return r;
}

/* A directory as a listing shows one. */
static int make_dir(struct fs *fs, uint64_t parent, const char *name)
{
    g_autofree char *own = g_strdup(name);
    const struct list_row row = {.name = own, .is_dir = true};
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    struct meta_dentry d = {0};
    int r = meta_dentry_get(fs->meta, parent, name, &d);
    if (r == 0) /* it came meanwhile */
        meta_dentry_clear(&d);
    else if (r == -ENOENT)
        r = tree_insert_row(fs, b, parent, &row, 0, 0);
    if (r == 0)
        r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (r == 0)
        notify_entry(fs, parent, name);
    return r;
}

/* The inode of the path's last component, all of them made where they are not there. */
static int enter(struct fs *fs, const char *dir, bool ask, struct inode **ret, bool *ret_made)
{
    g_auto(GStrv) parts = g_strsplit(dir, "/", -1);
    INODE_REF in = NULL;
    int r = inode_get(fs, META_ROOT_INO, &in);
    for (unsigned i = 0; r == 0 && parts[i]; i++) {
        struct inode *next = NULL;
        r = look_up(fs, in->ino, parts[i], ask, &next);
        *ret_made = r == -ENOENT;
        if (r == -ENOENT)
            r = make_dir(fs, in->ino, parts[i]);
        if (r == 0 && !next)
            r = look_up(fs, in->ino, parts[i], ask, &next);
        if (r == 0 && !inode_is_dir(next))
            r = -ENOTDIR;
        inode_put(in);
        in = next;
    }
    if (r < 0)
        return r;
    *ret = g_steal_pointer(&in);
    return 0;
}

/* Nothing may stand in it that the link would hide: neither here nor, as far as it is known, in the store below. */
static int check_empty(struct fs *fs, struct inode *in, const char *dir)
{
    struct publish_counts n = {0};
    g_autofree char *marker = g_strconcat(dir, "/", NULL);
    int r = meta_dir_has_entries(fs->meta, in->ino);
    if (r != 0)
        return r < 0 ? r : -ENOTEMPTY;
    mutex_lock(&in->mu);
    bool hidden = in->rec.flags & INODE_DIR_HIDDEN;
    mutex_unlock(&in->mu);
    if (hidden)
        return -ENOTEMPTY;
    if (publish_key_busy(fs->pub, marker)) /* the directory's own marker is on its way */
        return -EBUSY;
    publish_count(fs->pub, dir, &n);
    struct meta_dentry d = {0};
    bool own = meta_link_first(fs->meta, in->ino, &d) == 0 && d.op_seq; /* of the directory's marker: mark() ends it */
    meta_dentry_clear(&d);
    /* deletes and moves too: they are of the store below, as is what lost a race there */
    return n.ops > own || publish_needs_below(fs->pub, dir) || conflict_count(fs->meta, dir) > 0 ? -EBUSY : 0;
}

/* The store of the keys below is asked as it was before the link: its listing is of the link already. */
static int list_before(struct fs *fs, struct inode *in, bool made)
{
    mutex_lock(&in->mu);
    bool listed = in->rec.flags & (INODE_DIR_LISTED | INODE_DIR_LOCAL);
    mutex_unlock(&in->mu);
    return made || (listed && meta_dir_has_entries(fs->meta, in->ino) != 0) ? 0 : tree_refresh(fs, in, true);
}

/* Under ns: the name and the inode become those of a link. */
static int mark(struct fs *fs, struct meta_batch *b, struct inode *in) REQUIRES(fs->ns)
{
    struct meta_dentry d = {0};
    int r = meta_link_first(fs->meta, in->ino, &d);
    if (r < 0)
        return r;
    publish_drop_name(fs, b, &d);
    d.flags = DENTRY_LINK;
    g_clear_pointer(&d.ukey, g_free);
    d.uetag = d.dest_etag = (struct etag){0};
    d.token[0] = '\0';
    d.stamp = meta_next_seq(fs->meta);
    meta_dentry_put(b, &d);
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    in->rec.flags &= ~(uint32_t)(INODE_DIR_LOCAL | INODE_DIR_LISTED | INODE_DIR_HIDDEN | INODE_DIR_POSIX);
    in->rec.listed_ns = 0;
    meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    fs->ns_changes++;
    notify_entry(fs, d.parent, d.name);
    meta_dentry_clear(&d);
    return 0;
}

int links_tree_prepare(struct fs *fs, const char *dir, bool ask, struct inode **ret)
{
    INODE_REF in = NULL;
    bool made = false;
    int r = enter(fs, dir, ask, &in, &made);
    if (r == 0 && ask)
        r = list_before(fs, in, made);
    if (r == 0)
        r = check_empty(fs, in, dir);
    if (r < 0)
        return r;
    *ret = g_steal_pointer(&in);
    return 0;
}

int links_tree_commit(struct fs *fs, const char *dir, const char *record, struct inode *in, bool force)
{
    g_autoptr(GString) name = g_string_new(NULL);
    g_autofree char *going = going_name(dir);
    links_record_name(dir, name);
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = force ? 0 : check_empty(fs, in, dir); /* once more: nothing comes in now */
    if (r == 0)
        r = mark(fs, b, in);
    if (r == 0 && record) {
        meta_value_put(b, name->str, record, strlen(record));
        meta_value_del(b, going);
    }
    if (r == 0)
        r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (r == 0 && meta_sync(fs->meta) < 0) /* it is a link all the same; a power loss may take it */
        log_warn("links", "the database could not be synced dir='%s'", dir);
    if (r == 0)
        notify_inode(fs, in->ino);
    return r;
}

int links_tree_restore(struct fs *fs, const char *dir, uint64_t *ret_ino)
{
    INODE_REF in = NULL;
    bool made = false;
    int r = enter(fs, dir, true, &in, &made);
    if (r == 0)
        r = links_tree_commit(fs, dir, NULL, in, true);
    if (r == 0)
        *ret_ino = in->ino;
    return r;
}

/* ---- what was listed counts no more ---- */

static void expire_dir(struct fs *fs, struct meta_batch *b, struct inode *in) REQUIRES(fs->ns)
{
    mutex_lock(&in->mu);
    if (in->rec.listed_ns) {
        ns_undo_note_locked(in);
        in->rec.listed_ns = 0;
        meta_inode_put(b, &in->rec);
    }
    mutex_unlock(&in->mu);
}

static int collect_dir(void *ctx, const struct meta_dentry *d)
{
    if (S_ISDIR(d->type))
        g_array_append_val((GArray *)ctx, d->ino);
    return 0;
}

static int expire_one(struct fs *fs, uint64_t ino)
{
    INODE_REF in = NULL;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = inode_get(fs, ino, &in);
    if (r == 0) {
        expire_dir(fs, b, in);
        r = meta_commit(b, false);
    }
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r == -ENOENT ? 0 : r;
}

int links_tree_expire(struct fs *fs, uint64_t ino)
{
    g_autoptr(GArray) todo = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(todo, ino);
    int r = 0;
    while (r == 0 && todo->len > 0) {
        uint64_t at = g_array_index(todo, uint64_t, todo->len - 1);
        g_array_set_size(todo, todo->len - 1);
        r = expire_one(fs, at);
        if (r == 0)
            r = meta_dentry_each(fs->meta, at, 0, collect_dir, todo);
    }
    return r;
}

/* All from dir up: each may have shown the next only because of the link. */
static int expire_up(struct fs *fs, struct meta_batch *b, uint64_t dir) REQUIRES(fs->ns)
{
    int r = 0;
    for (uint64_t above = 0; r == 0 && dir != above;) {
        INODE_REF in = NULL;
        above = dir;
        r = inode_get(fs, dir, &in);
        if (r < 0)
            break;
        expire_dir(fs, b, in);
        mutex_lock(&in->mu);
        dir = dir == META_ROOT_INO ? dir : in->rec.parent;
        mutex_unlock(&in->mu);
    }
    return r;
}

/* ---- removing ---- */

/* 0: nothing of it is only here, and nobody writes. */
static int check_name(struct fs *fs, const struct meta_dentry *d)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, d->ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    mutex_lock(&in->mu);
    bool busy = S_ISREG(d->type) && (in->n_writers > 0 || in->rec.content != CONTENT_CLEAN);
    busy |= (in->rec.flags & INODE_LOCAL_ONLY) || d->op_seq != 0;
    mutex_unlock(&in->mu);
    return busy ? -EBUSY : 0;
}

static int collect_some(void *ctx, const struct meta_dentry *d)
{
    GPtrArray *names = ctx;
    meta_dentry_collect(names, d);
    return names->len >= NAMES_PER_BATCH;
}

/* The names of a directory, a page at a time: a huge one is not held in memory. Directories go to todo. */
static int check_dir(struct fs *fs, uint64_t dir, GArray *todo, char **ret_path)
{
    uint64_t after = 0;
    int more = 1, r = 0;
    while (r == 0 && more > 0) {
        g_autoptr(GPtrArray) names = meta_dentry_array();
        r = more = meta_dentry_each(fs->meta, dir, after, collect_some, names);
        r = MIN(r, 0);
        for (unsigned i = 0; r == 0 && i < names->len; i++) {
            const struct meta_dentry *d = names->pdata[i];
            r = check_name(fs, d);
            if (r == -EBUSY && tree_path_of(fs, d->ino, ret_path) < 0)
                *ret_path = g_strdup(d->name);
            if (S_ISDIR(d->type))
                g_array_append_val(todo, d->ino);
            after = d->id;
        }
    }
    return r;
}

int links_tree_clean(struct fs *fs, uint64_t ino, char **ret_path)
{
    g_autoptr(GArray) todo = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(todo, ino);
    int r = 0;
    while (r == 0 && todo->len > 0) {
        uint64_t at = g_array_index(todo, uint64_t, todo->len - 1);
        g_array_set_size(todo, todo->len - 1);
        r = check_dir(fs, at, todo, ret_path);
    }
    return r;
}

/* -EAGAIN: a listing that was under way has filled it again. */
static int check_emptied(struct fs *fs, const struct meta_dentry *d)
{
    int r = S_ISDIR(d->type) ? meta_dir_has_entries(fs->meta, d->ino) : 0;
    return r > 0 ? -EAGAIN : r;
}

/* Names without anything below them, in one batch. A kill leaves a directory that is listed anew. */
static int drop_names(struct fs *fs, struct inode *dir, GPtrArray *names)
{
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = 0;
    mutex_lock(&dir->mu);
    ns_undo_note_locked(dir);
    dir->rec.flags &= ~(uint32_t)INODE_DIR_LISTED;
    dir->rec.listed_ns = 0;
    meta_inode_put(b, &dir->rec);
    mutex_unlock(&dir->mu);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        r = check_emptied(fs, d);
        if (r == 0)
            r = check_name(fs, d);
        if (r == 0)
            g_clear_pointer(&d->ukey, g_free); /* what it left elsewhere stays */
        if (r == 0)
            r = tree_lose_name(fs, b, d);
        r = r > 0 ? -EBUSY : r;
    }
    if (r == 0)
        r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    for (unsigned i = 0; r == 0 && i < names->len; i++)
        notify_entry(fs, dir->ino, ((struct meta_dentry *)names->pdata[i])->name);
    return r;
}

static int empty_dir(struct fs *fs, uint64_t ino, unsigned depth)
{
    INODE_REF dir = NULL;
    uint64_t after = 0; /* what is gone up to it is not gone through again for each batch */
    int r = depth > 512 ? -ELOOP : inode_get(fs, ino, &dir);
    while (r == 0) {
        g_autoptr(GPtrArray) names = meta_dentry_array();
        r = MIN(meta_dentry_each(fs->meta, ino, after, collect_some, names), 0);
        if (r == 0 && names->len == 0)
            break;
        for (unsigned i = 0; r == 0 && i < names->len; i++) {
            const struct meta_dentry *d = names->pdata[i];
            r = S_ISDIR(d->type) ? empty_dir(fs, d->ino, depth + 1) : 0;
            after = d->id;
        }
        if (r == 0 && atomic_load(&fs->stopping))
            r = -ECANCELED;
        if (r == 0) {
            r = drop_names(fs, dir, names);
            CRASH_POINT(link_names_gone);
        }
        notify_pace(fs);
    }
    return r == -ENOENT ? 0 : r;
}

/* Another one may have been made there since, by a program that knows nothing of this. */
static char *going_value(const struct link *l)
{
    return g_strdup_printf("%" PRIx64 " %s", l->ino, l->identity ? l->identity : "");
}

int links_tree_set_going(struct fs *fs, const struct link *l, bool going)
{
    g_autofree char *name = going_name(l->dir), *value = going_value(l);
    struct meta_batch *b = meta_batch_new(fs->meta);
    if (going)
        meta_value_put(b, name, value, strlen(value));
    else
        meta_value_del(b, name);
    int r = meta_commit(b, !going); /* the next start would remove what was said to stay */
    meta_batch_free(b);
    return r;
}

bool links_tree_is_going(struct fs *fs, const struct link *l)
{
    g_autofree char *name = going_name(l->dir), *want = going_value(l);
    g_autoptr(GBytes) have = NULL;
    g_autoptr(GBytes) value = g_bytes_new(want, strlen(want));
    return meta_value_get(fs->meta, name, &have) == 0 && g_bytes_equal(have, value);
}

/* From here on nobody trusts that the name is there: a worker that is killed once it is gone can't say so. */
static void distrust_point(struct fs *fs, uint64_t ino)
{
    struct meta_dentry d = {0};
    if (meta_link_first(fs->meta, ino, &d) == 0) {
        notify_doubt(fs, d.parent, d.name);
        notify_settle(fs);
    }
    meta_dentry_clear(&d);
}

/* The name and the record go in one batch, with what is to be listed anew for that. */
static int remove_point(struct fs *fs, const char *dir, uint64_t ino)
{
    g_autoptr(GString) name = g_string_new(NULL);
    g_autofree char *caps = g_strconcat("link-caps/", dir, NULL), *going = going_name(dir);
    struct meta_dentry d = {0};
    links_record_name(dir, name);
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = meta_link_first(fs->meta, ino, &d);
    if (r == 0)
        r = meta_dir_has_entries(fs->meta, ino);
    r = r > 0 ? -EAGAIN : r == -ENOENT ? 0 : r; /* something came meanwhile; or a name that is gone already */
    struct publish_counts left;
    publish_count(fs->pub, dir, &left);
    if (r == 0 && left.ops > 0)
        r = -EBUSY;
    if (r == 0 && d.id)
        r = tree_drop_name(fs, b, &d, true);
    if (r == 0 && d.id)
        r = expire_up(fs, b, d.parent);
    meta_value_del(b, name->str);
    meta_value_del(b, caps);
    meta_value_del(b, going);
    if (r == 0)
        r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (r == 0)
        CRASH_POINT(link_gone);
    if (r == 0 && d.id)
        notify_entry(fs, d.parent, d.name);
    meta_dentry_clear(&d);
    if (r == 0 && meta_sync(fs->meta) < 0) /* it is gone all the same; a power loss may bring it back */
        log_warn("links", "the database could not be synced dir='%s'", dir);
    return r;
}

int links_tree_remove(struct fs *fs, const char *dir, uint64_t ino)
{
    int r = -EAGAIN;
    if (ino)
        distrust_point(fs, ino);
    for (unsigned i = 0; r == -EAGAIN && i < REMOVE_TRIES; i++) {
        r = ino ? empty_dir(fs, ino, 0) : 0;
        if (r == 0)
            r = remove_point(fs, dir, ino);
    }
    return r == -EAGAIN ? -EBUSY : r;
}
