/*
 * Changes of the tree but for rename: each is one batch under ns, then publish_apply() makes its journal records effective.
 */
#include "base/crash.h"
#include "content.h"
#include "links.h"
#include "local.h"
#include "meta_orphan.h"
#include "ns_undo.h"
#include "pin.h"
#include "publish.h"
#include "replay.h"
#include "rules.h"
#include "shadow.h"
#include "tree.h"
#include "tree_list.h"

#define SHOWN_LOOK 256u

bool tree_object_at_path(const struct meta_dentry *d, struct etag *ret_etag)
{
    if ((d->flags & DENTRY_UPSTREAM) && !d->ukey) {
        *ret_etag = d->uetag;
        return true;
    }
    if ((d->flags & DENTRY_DEST_KNOWN) && etag_is_set(&d->dest_etag)) {
        *ret_etag = d->dest_etag;
        return true;
    }
    return false;
}

bool tree_may_leave_object(struct fs *fs, const struct meta_dentry *d, const char *key, struct etag *ret_etag)
{
    if (tree_object_at_path(d, ret_etag))
        return true;
    if (!publish_has_note(fs, key))
        return false;
    *ret_etag = (struct etag){0};
    return true;
}

/* ---- what shows a directory upstream ---- */

struct shown {
    struct fs *fs;
    const char *prefix;
    uint64_t not_id;
    unsigned left;
};

static int shows(void *ctx, const struct meta_dentry *d)
{
    struct shown *s = ctx;
    if (d->id == s->not_id)
        return 0;
    if (s->left-- == 0)
        return 2;
    if (!(S_ISREG(d->type) || S_ISDIR(d->type) || S_ISLNK(d->type)) || (d->flags & DENTRY_LINK))
        return 0;
    if ((d->flags & DENTRY_UPSTREAM) || !s->fs->rules->local_only)
        return 1;
    g_autofree char *key = g_strconcat(s->prefix, d->name, S_ISDIR(d->type) ? "/" : NULL, NULL);
    return !local_is(s->fs, key);
}

int tree_is_shown(struct fs *fs, uint64_t dir, const char *key, uint64_t not_id, unsigned most)
{
    struct shown s = {fs, key, not_id, most};
    int r = meta_dentry_each(fs->meta, dir, 0, shows, &s);
    return r == 2 ? 0 : r;
}

/* Where many names were in vain the others are looked at behind, before the marker is put. */
int tree_keep_shown(struct fs *fs, struct meta_batch *b, uint64_t dir, uint64_t lost_id)
{
    mutex_assert_held(&fs->ns);
    struct meta_dentry d = {0};
    if (dir == META_ROOT_INO)
        return 0;
    int r = meta_link_first(fs->meta, dir, &d);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if ((d.flags & DENTRY_IMPLICIT) && !(d.flags & DENTRY_LINK)) {
        g_autofree char *key = tree_key(fs, d.parent, d.name, true);
        r = tree_is_shown(fs, dir, key, lost_id, lost_id ? SHOWN_LOOK : 0);
        if (r == 0) {
            publish_name(fs, b, &d, PUBLISH_MARKER);
            d.stamp = meta_next_seq(fs->meta);
            meta_dentry_put(b, &d);
        }
    }
    meta_dentry_clear(&d);
    return MIN(r, 0);
}

void tree_touch_dir(struct fs *fs, struct meta_batch *b, uint64_t dir)
{
    mutex_assert_held(&fs->ns);
    INODE_REF in = NULL;
    if (inode_get(fs, dir, &in) < 0)
        return;
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    in->rec.mtime_ns = in->rec.ctime_ns = clock_wall_ns();
    if (!in->gone)
        meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
}

/* The file is open and has no name: a rebuild from intents must not bring it back. */
static void take_intent_away(void *arg)
{
    struct inode *in = arg;
    content_write_intent(in);
    inode_put(in);
}

int tree_unref_inode(struct fs *fs, struct meta_batch *b, uint64_t ino)
{
    mutex_assert_held(&fs->ns);
    INODE_REF in = NULL;
    int r = inode_get(fs, ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    uint64_t point = inode_is_dir(in) ? 0 : links_point_of(fs, ino);
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    if (in->rec.nlink > 0)
        in->rec.nlink--;
    in->rec.ctime_ns = clock_wall_ns();
    if (in->rec.nlink == 0) { /* goes for good when the last reference does (inode.c) */
        in->rec.flags |= INODE_ORPHAN;
        in->rec.parent = point ? point : in->rec.parent;
        if (in->n_open > 0)
            atomic_store(&fs->removed_open, true);
        meta_orphan_put(b, ino, NULL);
        if (S_ISREG(in->rec.mode) || S_ISLNK(in->rec.mode))
            local_forget(fs, b, ino);
    }
    meta_inode_put(b, &in->rec);
    bool unnamed = in->rec.nlink == 0 && in->cf;
    mutex_unlock(&in->mu);
    if (unnamed && workq_push(fs->reap_q, true, take_intent_away, in))
        in = NULL; /* its reference went along */
    return 0;
}

/* Where the bytes of d's version are, if in the store under that name. Owned. */
static char *object_of(struct fs *fs, const struct meta_dentry *d) REQUIRES(fs->ns)
{
    if (!(d->flags & DENTRY_UPSTREAM))
        return NULL;
    return d->ukey ? g_strdup(d->ukey) : tree_key(fs, d->parent, d->name, false);
}

/* Another name's object that holds the version that d's does; owned, NULL: none. */
static char *other_object(struct fs *fs, const struct meta_dentry *d, bool unchanged, struct etag *ret_etag)
    REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    if (meta_link_list(fs->meta, d->ino, &names) < 0)
        return NULL;
    for (unsigned i = 0; i < names->len; i++) {
        const struct meta_dentry *other = names->pdata[i];
        bool same = other->pub_vid == d->pub_vid && other->pub_gen == d->pub_gen;
        bool lost = other->parent == META_ASIDE_INO && !other->ukey; /* at its path stands what won */
        bool fits = other->id != d->id && !lost && (same || (unchanged && other->pub_gen <= 1));
        char *key = fits ? object_of(fs, other) : NULL;
        if (!key)
            continue;
        *ret_etag = other->uetag;
        return key;
    }
    return NULL;
}

void tree_leave_object(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d)
{
    g_autofree char *key = object_of(fs, d);
    INODE_REF in = NULL;
    if (!key || !S_ISREG(d->type) || inode_get(fs, d->ino, &in) < 0)
        return;
    mutex_lock(&in->mu);
    struct meta_inode *rec = &in->rec;
    bool leave = rec->nlink > 0 && g_strcmp0(rec->base_key, key) == 0 && etag_equal(&rec->base_etag, &d->uetag);
    bool unchanged = rec->content == CONTENT_CLEAN && rec->gen == 1; /* since it was listed */
    mutex_unlock(&in->mu);
    struct etag etag;
    char *other = leave ? other_object(fs, d, unchanged, &etag) : NULL;
    if (!other)
        return;
    publish_rebased(fs, d->ino, other);
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    g_free(rec->base_key);
    rec->base_key = other;
    rec->base_etag = etag;
    if (in->cf)
        cache_file_rebase(in->cf, rec->base_key, &rec->base_etag);
    if (!in->gone)
        meta_inode_put(b, rec);
    mutex_unlock(&in->mu);
}

/*
 * Closed content whose names but this one were published waited for it to be safe under all: an op of another name, which has nothing to send, says that it is. Where a
 * name is left that was not published, its own op does, or a rule keeps the content here. It goes by what is committed: a batch drops one name of closed content at most.
 */
static int tell_rest(struct fs *fs, struct meta_batch *b, const struct meta_dentry *gone) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    g_autoptr(GPtrArray) names = NULL;
    int r = inode_get(fs, gone->ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    mutex_lock(&in->mu);
    bool waits = in->rec.nlink > 0 && in->rec.content == CONTENT_SEALED && !in->changed && !in->gone;
    uint64_t vid = in->rec.vid, gen = in->rec.gen;
    mutex_unlock(&in->mu);
    r = waits ? meta_link_list(fs->meta, gone->ino, &names) : 0;
    struct meta_dentry *rest = NULL;
    for (unsigned i = 0; r == 0 && waits && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        if (d->id == gone->id)
            continue;
        waits = d->op_seq == 0 && (d->flags & DENTRY_UPSTREAM) && d->pub_vid == vid && d->pub_gen == gen;
        rest = d;
    }
    if (r == 0 && waits && rest) {
        publish_name(fs, b, rest, PUBLISH_CONTENT);
        meta_dentry_put(b, rest);
    }
    return r;
}

int tree_drop_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, bool keep_path_object)
{
    mutex_assert_held(&fs->ns);
    struct etag etag;
    bool slash = S_ISDIR(d->type);
    g_autofree char *key = tree_key(fs, d->parent, d->name, slash);
    uint64_t keep_ino = S_ISREG(d->type) ? d->ino : 0;
    if (!keep_path_object && tree_may_leave_object(fs, d, key, &etag))
        publish_delete(fs, b, key, &etag, keep_ino);
    if (d->ukey && (d->flags & DENTRY_UPSTREAM))
        publish_disown(fs, b, d->ukey, &d->uetag, d->id, keep_ino);
    publish_drop_name(fs, b, d);
    meta_dentry_del(b, d);
    fs->ns_changes++;
    int r = tree_unref_inode(fs, b, d->ino);
    if (r == 0)
        tree_leave_object(fs, b, d);
    return r == 0 && S_ISREG(d->type) ? tell_rest(fs, b, d) : r;
}

/* ---- create ---- */

static int check_name(const char *name)
{
    size_t len = strlen(name);
    if (len > FS_NAME_MAX)
        return -ENAMETOOLONG;
    return len == 0 || strchr(name, '/') || g_str_equal(name, ".") || g_str_equal(name, "..") ? -EINVAL : 0;
}

/* The key must fit the store, or the failure would come when nobody listens. */
static int check_key(struct fs *fs, const char *key)
{
    return strlen(key) > objstore_limits_of(fs->store, key).key_max_bytes ? -ENAMETOOLONG : 0;
}

/* What the link does not show could not be seen after it was made. A directory's key ends in '/'. */
static int check_shown(struct fs *fs, const char *key, bool is_dir)
{
    g_autofree char *path = g_strndup(key, strlen(key) - is_dir);
    int r = tree_check_escaped(fs, path, is_dir);
    return r < 0 ? r : links_may_name(fs, path, is_dir);
}

/* Parent is a live directory; setgid directories pass their group on. */
static int check_parent(struct fs *fs, uint64_t parent, unsigned *gid, uint32_t *mode)
{
    INODE_REF dir = NULL;
    int r = inode_get(fs, parent, &dir);
    if (r < 0)
        return r;
    mutex_lock(&dir->mu);
    r = dir->gone || dir->rec.nlink == 0 ? -ENOENT : !S_ISDIR(dir->rec.mode) ? -ENOTDIR : 0;
    if (r == 0 && (dir->rec.mode & S_ISGID) && gid) {
        *gid = dir->rec.gid;
        if (S_ISDIR(*mode))
            *mode |= S_ISGID;
    }
    mutex_unlock(&dir->mu);
    return r;
}

static void new_record(struct fs *fs, const struct node_spec *spec, bool open, struct meta_inode *rec)
{
    int64_t now = clock_wall_ns();
    *rec = (struct meta_inode){
        .ino = meta_next_ino(fs->meta),
        .mode = spec->mode,
        .uid = spec->who.uid,
        .gid = spec->who.gid,
        .nlink = 1,
        .rdev = spec->rdev,
        .flags = INODE_MODE_KNOWN | INODE_HEADED,
        .mtime_ns = now,
        .ctime_ns = now,
        .gen = 1,
    };
    if (S_ISREG(spec->mode)) {
        rec->content = open ? CONTENT_OPEN : CONTENT_SEALED;
        rec->dirty_since_ns = now;
        g_strlcpy(rec->boot_id, clock_boot_id(), sizeof(rec->boot_id));
    } else if (S_ISDIR(spec->mode)) {
        rec->parent = spec->parent;
        rec->flags |= INODE_DIR_LOCAL | INODE_DIR_LISTED;
        rec->listed_ns = now;
    } else if (S_ISLNK(spec->mode)) {
        rec->target = g_strdup(spec->target);
    } else {
        rec->flags |= INODE_LOCAL_ONLY;
    }
}

static void note_open(struct meta_batch *b, uint64_t ino)
{
    char name[32];
    g_snprintf(name, sizeof(name), "open/%016" G_GINT64_MODIFIER "x", ino);
    meta_value_put(b, name, "", 0);
}

/* A new name takes what may still stand at its key upstream. The delete of that which it withdraws, for publish_succeed(), or 0. */
static uint64_t inherit_key(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, const char *key)
    REQUIRES(fs->ns)
{
    struct etag etag;
    uint64_t delete_seq = publish_delete_of(fs, key);
    d->flags |= DENTRY_DEST_KNOWN;
    if (publish_inherit(fs, b, key, &etag))
        d->dest_etag = etag;
    return delete_seq;
}

static int create_locked(struct fs *fs, struct meta_batch *b, const struct node_spec *spec, bool open,
                         uint64_t *ret_ino) REQUIRES(fs->ns)
{
    struct node_spec s = *spec;
    int r = check_parent(fs, s.parent, &s.who.gid, &s.mode);
    if (r < 0)
        return r;
    struct meta_dentry d = {0};
    r = meta_dentry_get(fs->meta, s.parent, s.name, &d);
    if (r != -ENOENT) {
        meta_dentry_clear(&d);
        return r < 0 ? r : -EEXIST;
    }
    g_autofree char *key = tree_key(fs, s.parent, s.name, S_ISDIR(s.mode));
    r = check_key(fs, key);
    if (r == 0)
        r = check_shown(fs, key, S_ISDIR(s.mode));
    if (r < 0)
        return r;
    struct meta_inode rec;
    new_record(fs, &s, open, &rec);
    rec.flags |= pin_inherited(fs, s.parent);
    meta_inode_put(b, &rec);
    char name[FS_NAME_MAX + 1];
    g_strlcpy(name, s.name, sizeof(name));
    d = (struct meta_dentry){.parent = s.parent, .name = name, .ino = rec.ino, .type = s.mode & S_IFMT};
    d.stamp = meta_next_seq(fs->meta);
    if (S_ISDIR(s.mode))
        d.flags |= DENTRY_IMPLICIT;
    bool kept = local_is(fs, key);
    uint64_t delete_seq = !(rec.flags & INODE_LOCAL_ONLY) && !kept ? inherit_key(fs, b, &d, key) : 0;
    if (kept && open)
        local_note(fs, b, rec.ino);
    if (S_ISDIR(s.mode))
        publish_name(fs, b, &d, PUBLISH_MARKER);
    else if (S_ISLNK(s.mode) || (S_ISREG(s.mode) && !open))
        publish_name(fs, b, &d, PUBLISH_CONTENT);
    if (delete_seq && !S_ISDIR(s.mode))
        publish_succeed(fs, b, &d, delete_seq);
    meta_dentry_put(b, &d);
    if (open)
        note_open(b, rec.ino);
    tree_touch_dir(fs, b, s.parent);
    fs->ns_changes++;
    *ret_ino = rec.ino;
    meta_inode_clear(&rec);
    return 0;
}

int tree_create(struct fs *fs, const struct node_spec *spec, bool open, struct inode **ret)
{
    int r = check_name(spec->name);
    if (r < 0)
        return r;
    uint64_t ino = 0;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    r = create_locked(fs, b, spec, open, &ino);
    if (r == 0) {
        replay_note(fs, b, ino);
        r = meta_commit(b, false);
    }
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    CRASH_POINT(create_named);
    meta_batch_free(b);
    return r < 0 ? r : inode_get(fs, ino, ret);
}

int tree_tmpfile(struct fs *fs, const struct node_spec *spec, struct inode **ret)
{
    struct meta_inode rec;
    new_record(fs, spec, true, &rec);
    rec.nlink = 0;
    rec.flags |= INODE_ORPHAN;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = check_parent(fs, spec->parent, &rec.gid, &rec.mode);
    if (r == 0) {
        rec.parent = links_point_of(fs, spec->parent);
        meta_inode_put(b, &rec);
        meta_orphan_put(b, rec.ino, NULL);
        replay_note(fs, b, rec.ino);
        r = meta_commit(b, false);
    }
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    uint64_t ino = rec.ino;
    meta_inode_clear(&rec);
    return r < 0 ? r : inode_get(fs, ino, ret);
}

/* ---- link ---- */

/*
 * Content of which one name is sent and another is not would be owed to the store for ever. Nor may what is kept here rest on the object of another name, which nothing would keep from
 * going with that.
 */
static int check_same_side(struct fs *fs, struct inode *in, bool kept) REQUIRES(fs->ns)
{
    struct meta_dentry d = {0};
    int r = fs->rules->local_only ? meta_link_first(fs->meta, in->ino, &d) : -ENOENT;
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    g_autofree char *key = tree_key(fs, d.parent, d.name, false);
    meta_dentry_clear(&d);
    mutex_lock(&in->mu);
    bool rests = S_ISREG(in->rec.mode) && in->rec.base_key;
    mutex_unlock(&in->mu);
    return local_is(fs, key) != kept || (kept && rests) ? -EXDEV : 0;
}

/* A name elsewhere would be copied from one bucket to another, which nothing does. A loser is brought here before it gets another name. */
static int check_same_link(struct fs *fs, struct inode *in, uint64_t parent) REQUIRES(fs->ns)
{
    if (!links_below(fs, ""))
        return 0;
    g_autoptr(GPtrArray) names = NULL;
    uint64_t point = links_point_of(fs, parent);
    int r = meta_link_list(fs->meta, in->ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        r = d->parent == META_ASIDE_INO || links_point_of(fs, d->parent) == point ? 0 : -EXDEV;
    }
    return r == 0 && names->len == 0 && links_point_of(fs, in->ino) != point ? -EXDEV : r;
}

/* Is there an object without the attributes that the file has? */
static int note_lack(void *ctx, const struct meta_dentry *d)
{
    *(bool *)ctx |= (d->flags & DENTRY_META_DIRTY) != 0;
    return 0;
}

static int link_locked(struct fs *fs, struct meta_batch *b, struct inode *in, uint64_t parent, const char *name)
    REQUIRES(fs->ns)
{
    int r = check_parent(fs, parent, NULL, NULL);
    if (r == 0)
        r = shadow_check_change(in);
    if (r == 0)
        r = check_same_link(fs, in, parent);
    if (r < 0)
        return r;
    struct meta_dentry d = {0};
    r = meta_dentry_get(fs->meta, parent, name, &d);
    if (r != -ENOENT) {
        meta_dentry_clear(&d);
        return r < 0 ? r : -EEXIST;
    }
    g_autofree char *key = tree_key(fs, parent, name, false);
    r = check_key(fs, key);
    if (r == 0)
        r = check_shown(fs, key, false);
    if (r < 0)
        return r;
    char own[FS_NAME_MAX + 1];
    g_strlcpy(own, name, sizeof(own));
    bool kept = local_is(fs, key), lacks_meta = false;
    r = check_same_side(fs, in, kept);
    if (r == 0)
        r = meta_link_each(fs->meta, in->ino, note_lack, &lacks_meta);
    if (r < 0)
        return r;
    mutex_lock(&in->mu);
    bool expiring = in->expiring; /* a name made now would be one of a file that nobody can open */
    if (expiring || in->gone || (in->rec.nlink == 0 && !(in->rec.flags & INODE_ORPHAN))) {
        mutex_unlock(&in->mu);
        return expiring ? -ESTALE : -ENOENT;
    }
    ns_undo_note_locked(in);
    in->rec.nlink++;
    in->rec.parent = 0;
    in->rec.flags &= ~(uint32_t)(INODE_ORPHAN | INODE_NAME_LOST);
    in->rec.ctime_ns = clock_wall_ns();
    meta_orphan_del(b, in->ino);
    meta_inode_put(b, &in->rec);
    d = (struct meta_dentry){.parent = parent, .name = own, .ino = in->ino, .type = in->rec.mode & S_IFMT};
    bool upstream = !(in->rec.flags & INODE_LOCAL_ONLY) && !kept;
    if (kept)
        local_note(fs, b, in->ino);
    bool closed = S_ISLNK(in->rec.mode) || (in->rec.content != CONTENT_OPEN && in->rec.content != CONTENT_QUARANTINED);
    bool rests = in->rec.content == CONTENT_OPEN && in->rec.base_key; /* on an object that only the record keeps */
    if (in->rec.content == CONTENT_OPEN)
        note_open(b, in->ino);
    mutex_unlock(&in->mu);
    d.stamp = meta_next_seq(fs->meta);
    d.flags |= lacks_meta ? DENTRY_META_DIRTY : 0; /* its object will be a copy of one that does */
    uint64_t delete_seq = upstream ? inherit_key(fs, b, &d, key) : 0;
    if (upstream && (closed || rests))
        publish_linked(fs, b, &d);
    if (delete_seq)
        publish_succeed(fs, b, &d, delete_seq);
    meta_dentry_put(b, &d);
    tree_touch_dir(fs, b, parent);
    fs->ns_changes++;
    return 0;
}

/* A file without a name is not sealed by its last close: what its first name finds closed is whole. */
static int seal_named(struct inode *in)
{
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r < 0)
        return r;
    r = content_seal(in);
    content_unuse(in, cf);
    return r;
}

int tree_link(struct fs *fs, uint64_t ino, uint64_t parent, const char *name, struct inode **ret)
{
    int r = check_name(name);
    if (r < 0)
        return r;
    INODE_REF in = NULL;
    r = inode_get(fs, ino, &in);
    if (r < 0)
        return r;
    if (inode_is_dir(in))
        return -EPERM;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    bool first = S_ISREG(in->rec.mode) && in->rec.nlink == 0;
    r = link_locked(fs, b, in, parent, name);
    if (r == 0) {
        replay_note(fs, b, ino);
        r = meta_commit(b, false);
    }
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    CRASH_POINT(link_named);
    meta_batch_free(b);
    if (r < 0)
        return r;
    if (first && seal_named(in) < 0)
        log_warn("link", "a closed file could not be sealed, the next start does it ino=%" G_GUINT64_FORMAT, in->ino);
    *ret = in;
    in = NULL;
    return 0;
}

/* ---- unlink, rmdir ---- */

struct drop {
    uint64_t parent;
    const char *name;
    uint64_t id; /* of this very name, or -ESTALE; 0: whichever it is */
    bool dir;
    const char *marker_key; /* an object with bytes, which goes along; NULL: none */
    struct etag marker;
};

/* A directory above may have been moved since somebody looked. */
static bool may_expire(struct fs *fs, const struct meta_dentry *d) REQUIRES(fs->ns)
{
    g_autofree char *key = tree_key(fs, d->parent, d->name, false);
    return local_is(fs, key) && rules_for(fs, key)->ttl_ns > 0;
}

/* The marker becomes the directory's own object, which leaves with the name. -EBUSY: the directory was moved since somebody looked, or is not there yet. */
static int take_marker(struct fs *fs, struct meta_dentry *d, const struct drop *what) REQUIRES(fs->ns)
{
    g_autofree char *key = tree_key(fs, d->parent, d->name, true);
    if (d->ukey || !g_str_equal(key, what->marker_key))
        return -EBUSY;
    d->flags |= DENTRY_UPSTREAM;
    d->uetag = what->marker;
    return 0;
}

/* Removes a name as one batch under ns. */
static int drop_child(struct fs *fs, const struct drop *what)
{
    struct meta_dentry d = {0};
    uint64_t parent = what->parent, id = what->id;
    bool dir = what->dir;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = meta_dentry_get(fs->meta, parent, what->name, &d);
    if (r == 0 && id && (d.id != id || !may_expire(fs, &d)))
        r = -ESTALE;
    if (r == 0 && dir && !S_ISDIR(d.type))
        r = -ENOTDIR;
    if (r == 0 && !dir && S_ISDIR(d.type))
        r = -EISDIR;
    if (r == 0 && (d.flags & DENTRY_LINK))
        r = -EBUSY;
    if (r == 0 && (d.flags & DENTRY_SHADOW))
        r = -EPERM;
    if (r == 0 && dir) {
        r = meta_dir_has_entries(fs->meta, d.ino);
        r = r > 0 ? -ENOTEMPTY : r;
    }
    if (r == 0 && what->marker_key)
        r = take_marker(fs, &d, what);
    if (r == 0)
        r = tree_drop_name(fs, b, &d, false);
    if (r == 0 && id)
        tree_note_lost(fs, b, &d);
    if (r == 0)
        r = tree_keep_shown(fs, b, parent, d.id);
    if (r == 0) {
        tree_touch_dir(fs, b, parent);
        replay_note(fs, b, 0);
        r = meta_commit(b, false);
    }
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    CRASH_POINT(unlink_committed);
    meta_batch_free(b);
    meta_dentry_clear(&d);
    return r;
}

void tree_save_open_content(struct fs *fs, uint64_t parent, const char *name)
{
    struct meta_dentry d = {0};
    if (meta_dentry_get(fs->meta, parent, name, &d) < 0)
        return;
    INODE_REF in = NULL;
    if (S_ISREG(d.type) && inode_get(fs, d.ino, &in) == 0) {
        mutex_lock(&in->mu);
        struct cfile *cf = in->n_open > 0 && in->rec.nlink == 1 && in->cf ? cache_file_ref(in->cf) : NULL;
        mutex_unlock(&in->mu);
        if (cf && !cache_file_complete(cf) && cache_file_fill(cf, true, false, NULL, NULL) < 0)
            log_debug("unlink", "an open file's bytes will be asked for again before its object goes name='%s'", name);
        cache_file_unref(cf);
    }
    meta_dentry_clear(&d);
}

int tree_unlink(struct fs *fs, uint64_t parent, const char *name)
{
    tree_save_open_content(fs, parent, name);
    return drop_child(fs, &(struct drop){.parent = parent, .name = name});
}

int tree_expire(struct fs *fs, const struct meta_dentry *d)
{
    return drop_child(fs, &(struct drop){.parent = d->parent, .name = d->name, .id = d->id});
}

/* The directory that is to go, of which nothing is shown as far as the store knows now. */
static int rmdir_look(struct fs *fs, uint64_t parent, const char *name, struct inode **ret)
{
    INODE_REF in = NULL;
    int r = tree_lookup(fs, parent, name, &in);
    if (r < 0)
        return r;
    if (!inode_is_dir(in))
        return -ENOTDIR;
    if (links_is_point(fs, in->ino))
        return -EBUSY;
    if (meta_dir_has_entries(fs->meta, in->ino) == 0) {
        r = tree_refresh(fs, in, true);
        if (r < 0)
            return r;
    }
    *ret = in;
    in = NULL;
    return 0;
}

/* Does the store have keys below that no name shows? One that is `but` does not count (NULL: each does). */
static bool hides_keys(struct inode *dir, const char *but)
{
    mutex_lock(&dir->mu);
    char **keys = dir->list.hidden;
    bool only = but && keys && g_strcmp0(keys[0], but) == 0 && !keys[1];
    bool hides = (dir->rec.flags & INODE_DIR_HIDDEN) && !only;
    mutex_unlock(&dir->mu);
    return hides;
}

int tree_rmdir(struct fs *fs, uint64_t parent, const char *name)
{
    INODE_REF in = NULL;
    int r = rmdir_look(fs, parent, name, &in);
    if (r == 0 && hides_keys(in, NULL))
        r = -ENOTEMPTY;
    return r < 0 ? r : drop_child(fs, &(struct drop){.parent = parent, .name = name, .dir = true});
}

int tree_rmdir_force(struct fs *fs, uint64_t parent, const char *name)
{
    INODE_REF in = NULL;
    struct obj_info info = {0};
    struct drop what = {.parent = parent, .name = name, .dir = true};
    int r = rmdir_look(fs, parent, name, &in);
    if (r < 0)
        return r;
    mutex_lock(&fs->ns);
    g_autofree char *key = tree_dir_prefix(fs, in->ino);
    mutex_unlock(&fs->ns);
    g_autofree char *own = tree_store_key(fs, key);
    if (hides_keys(in, own))
        return -ENOTEMPTY;
    r = objstore_head(fs->store, key, &info);
    if (r == 0 && info.size > 0) {
        what.marker_key = key;
        what.marker = info.etag;
    }
    obj_info_clear(&info);
    return r == 0 || r == -ENOENT ? drop_child(fs, &what) : r;
}
