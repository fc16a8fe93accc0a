/*
 * Recording what an op achieved. Between the op's start and now the name may have been renamed, removed or written again, so the name is looked up by its id;
 * what the store holds under the op's key is accounted for in every case: by the name, by a name that took its place, or by a delete.
 */
#include "base/crash.h"
#include "cache_sums.h"
#include "local.h"
#include "ns_undo.h"
#include "pin.h"
#include "publish_late.h"
#include "states.h"

struct find_name {
    uint64_t id, vid, gen;
    struct meta_dentry found; /* id != 0 when found */
    bool others_unpublished;
};

static int on_link(void *ctx, const struct meta_dentry *d)
{
    struct find_name *f = ctx;
    if (d->id == f->id)
        meta_dentry_copy(&f->found, d);
    else if (d->pub_vid != f->vid || d->pub_gen != f->gen)
        f->others_unpublished = true;
    return 0;
}

/* The name whose object has this key, under ns: a directory's for a key that ends in '/', else another's. */
static int name_at_key(struct fs *fs, const char *key, struct meta_dentry *ret)
{
    bool dir_key = g_str_has_suffix(key, "/");
    g_auto(GStrv) parts = g_strsplit(key, "/", -1);
    uint64_t dir = META_ROOT_INO;
    for (unsigned i = 0; parts[i] && *parts[i]; i++) {
        struct meta_dentry d = {0};
        int r = meta_dentry_get(fs->meta, dir, parts[i], &d);
        if (r < 0)
            return r;
        if (!parts[i + 1] || !*parts[i + 1]) {
            r = S_ISDIR(d.type) == dir_key ? 0 : -ENOENT;
            if (r == 0)
                *ret = d;
            else
                meta_dentry_clear(&d);
            return r;
        }
        dir = d.ino;
        meta_dentry_clear(&d);
    }
    return -ENOENT;
}

/* Will the name's own publishing replace what stands at its key? A fifo or socket, and what a rule keeps here, leave it alone. */
static bool goes_upstream(struct fs *fs, const struct meta_dentry *d, const char *key)
{
    return (S_ISREG(d->type) || S_ISDIR(d->type) || S_ISLNK(d->type)) && !local_is(fs, key);
}

/* Tells the name that has taken the place of not_id at key, if there is one, what stands there. */
static bool tell_successor(struct fs *fs, struct meta_batch *b, const char *key, const struct etag *etag,
                           uint64_t not_id)
{
    struct meta_dentry d = {0};
    bool there = name_at_key(fs, key, &d) == 0 && d.id != not_id && goes_upstream(fs, &d, key);
    if (there && !((d.flags & DENTRY_UPSTREAM) && !d.ukey)) {
        d.flags |= DENTRY_DEST_KNOWN;
        d.dest_etag = *etag;
        meta_dentry_put(b, &d);
    }
    meta_dentry_clear(&d);
    return there;
}

void publish_disown(struct fs *fs, struct meta_batch *b, const char *key, const struct etag *etag, uint64_t not_id,
                    uint64_t keep_ino)
{
    if (tell_successor(fs, b, key, etag, not_id))
        return;
    struct etag old;
    (void)publish_inherit(fs, b, key, &old); /* a queued delete of what was there before is replaced by ours */
    publish_delete(fs, b, key, etag, keep_ino);
}

/* A directory whose marker was put, and those above a published name, exist upstream from now on: they are listed like others. */
static void parents_upstream(struct fs *fs, struct meta_batch *b, uint64_t dir) REQUIRES(fs->ns)
{
    while (dir != META_ROOT_INO) {
        INODE_REF in = NULL;
        if (inode_get(fs, dir, &in) < 0)
            return;
        mutex_lock(&in->mu);
        bool local = in->rec.flags & INODE_DIR_LOCAL;
        if (local && !in->gone) {
            ns_undo_note_locked(in);
            in->rec.flags &= ~INODE_DIR_LOCAL;
            in->rec.listed_ns = clock_wall_ns();
            meta_inode_put(b, &in->rec);
        }
        dir = in->rec.parent;
        mutex_unlock(&in->mu);
        if (!local)
            return;
    }
}

/* Does the name still have attributes that its object lacks? Those of content that was changed since go with the next version. */
static void mark_meta(struct meta_dentry *d, struct inode *in, const struct outcome *out, bool moved)
{
    mutex_lock(&in->mu);
    bool current = in->rec.ctime_ns == out->ctime_ns;
    bool same = out->ctime_ns && in->rec.gen == out->gen && in->rec.vid == out->vid && !in->changed;
    mutex_unlock(&in->mu);
    if (same && (!current || !out->meta))
        d->flags |= DENTRY_META_DIRTY;
    else if (!moved && current && out->meta)
        d->flags &= ~(uint32_t)DENTRY_META_DIRTY;
}

/* The name went, while it was published, to where a rule keeps it here: its object goes, its content, brought here by the rename, stays. */
static void leave_store(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, const struct outcome *out)
    REQUIRES(fs->ns)
{
    d->flags &= ~(uint32_t)DENTRY_UPSTREAM;
    d->uetag = (struct etag){0};
    d->pub_vid = d->pub_gen = 0;
    g_clear_pointer(&d->ukey, g_free);
    publish_drop_name(fs, b, d);
    publish_disown(fs, b, out->key, &out->etag, d->id, 0);
    d->stamp = meta_next_seq(fs->meta);
    meta_dentry_put(b, d);
}

/* unsent: the content was closed, but is not what the object holds. */
static void update_name(struct op *o, struct meta_batch *b, struct meta_dentry *d, struct inode *in,
                        const struct outcome *out, bool unsent) NO_TSA /* under ns */
{
    struct fs *fs = o->p->fs;
    g_autofree char *path = tree_key(fs, d->parent, d->name, S_ISDIR(d->type));
    if (local_is(fs, path) && !g_str_equal(path, out->key)) {
        leave_store(fs, b, d, out);
        return;
    }
    g_autofree char *old_ukey = g_steal_pointer(&d->ukey);
    struct etag old_etag = d->uetag;
    bool moved = !g_str_equal(path, out->key), had = d->flags & DENTRY_UPSTREAM;
    d->flags |= DENTRY_UPSTREAM;
    d->flags &= ~(uint32_t)DENTRY_IMPLICIT;
    d->uetag = out->etag;
    d->usize = out->size;
    d->pub_vid = out->vid;
    d->pub_gen = out->gen;
    g_strlcpy(d->token, out->token, sizeof(d->token));
    if (moved) { /* renamed while it was published: a later op moves it */
        struct etag dropped;
        (void)publish_inherit(fs, b, out->key, &dropped);
        (void)tell_successor(fs, b, out->key, &out->etag, d->id);
        d->ukey = g_strdup(out->key);
        if (had && !old_ukey) { /* back at the place where its older object still stands */
            d->flags |= DENTRY_DEST_KNOWN;
            d->dest_etag = old_etag;
        }
    } else {
        d->flags &= ~(uint32_t)DENTRY_DEST_KNOWN;
        d->dest_etag = (struct etag){0};
    }
    mark_meta(d, in, out, moved);
    if (had && old_ukey && !g_str_equal(old_ukey, out->key))
        publish_disown(fs, b, old_ukey, &old_etag, d->id, 0);
    if (d->op_seq == o->rec.seq && unsent && !moved)
        publish_renew(fs, b, d); /* no close comes any more that would do it; what was closed keeps its place */
    else if (d->op_seq == o->rec.seq)
        publish_drop_name(fs, b, d);
    if (moved) { /* its op, if it has one, was made when the object was elsewhere */
        publish_name(fs, b, d, PUBLISH_PLACE);
    } else if (unsent && !d->op_seq) {
        publish_name(fs, b, d, PUBLISH_CONTENT);
    } else if ((d->flags & DENTRY_META_DIRTY) && !d->op_seq) {
        publish_name(fs, b, d, PUBLISH_META);
    }
    d->stamp = meta_next_seq(fs->meta);
    meta_dentry_put(b, d);
    if (S_ISDIR(d->type))
        parents_upstream(fs, b, d->ino);
    parents_upstream(fs, b, d->parent); /* that one may have come from where it was known */
}

/* Where the bytes of a file are from now on. */
struct place {
    char *key; /* owned; NULL: where they were */
    struct etag etag;
};

/*
 * The object of an op whose name is gone goes as well, or a name that has come to its key replaces it. What a file, which others wait to be copied from, rests on is then the object of
 * another of its names, or what it rested on before, which their ops keep.
 */
static int choose_base(struct fs *fs, struct inode *in, const struct outcome *out, bool gone, struct place *ret)
    REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    mutex_lock(&in->mu);
    bool stays = !gone || in->rec.nlink == 0 || g_strcmp0(in->rec.base_key, out->key) == 0;
    bool none = in->rec.base_key == NULL;
    mutex_unlock(&in->mu);
    int r = stays ? 0 : meta_link_list(fs->meta, in->ino, &names);
    for (unsigned i = 0; r == 0 && !stays && !ret->key && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        if (!(d->flags & DENTRY_UPSTREAM) || d->pub_vid != out->vid || d->pub_gen != out->gen ||
            d->parent == META_ASIDE_INO)
            continue;
        ret->key = d->ukey ? g_strdup(d->ukey) : tree_key(fs, d->parent, d->name, false);
        ret->etag = d->uetag;
    }
    if (stays || (r == 0 && none && !ret->key))
        *ret = (struct place){g_strdup(out->key), out->etag};
    return r;
}

/*
 * Under ns and the content gate. True when the content is now safe upstream under all its names. When it was changed meanwhile, what is not here
 * is still the same in the new object, and only there: the old one was replaced, or will be removed.
 */
static bool update_inode(struct inode *in, struct meta_batch *b, const struct outcome *out, const struct place *base,
                         bool others_unpublished, bool *ret_unsent)
{
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    struct meta_inode *rec = &in->rec;
    bool same = rec->vid == out->vid && rec->gen == out->gen && !in->gone;
    if (same && in->changed) { /* a snapshot: what was written since is the next version */
        rec->gen++;
    } else if (same && rec->content != CONTENT_SEALED && rec->content != CONTENT_CLEAN) {
        in->snap_gen = rec->gen;
        in->snap_mark = out->mark;
    }
    bool clean = same && !in->changed && rec->content == CONTENT_SEALED && !others_unpublished &&
                 content_move(rec, CONTENT_CLEAN) == 0;
    if (clean) {
        rec->flags &= ~(uint32_t)INODE_ARCHIVED;
        rec->dirty_since_ns = 0;
        rec->boot_id[0] = '\0';
    }
    bool whole = clean || (same && rec->content == CONTENT_CLEAN);
    if (base->key && (whole || (rec->base_key && (out->vid == 0 || rec->vid == out->vid)))) {
        g_free(rec->base_key);
        rec->base_key = g_strdup(base->key);
        rec->base_etag = base->etag;
        rec->base_limit = whole ? out->size : rec->base_limit;
    }
    if (!in->gone)
        meta_inode_put(b, rec);
    bool safe = same && rec->content == CONTENT_CLEAN;
    *ret_unsent = !clean && rec->content == CONTENT_SEALED && (rec->gen != out->gen || rec->vid != out->vid);
    mutex_unlock(&in->mu);
    return safe;
}

/* Where the bytes are may be news for names that are to be copied from there. */
static void tell_names(struct fs *fs, struct inode *in) REQUIRES(fs->ns)
{
    mutex_lock(&in->mu);
    g_autofree char *base = g_strdup(in->rec.base_key);
    mutex_unlock(&in->mu);
    if (base)
        publish_rebased(fs, in->ino, base);
}

/* The cache file may be evicted from now on, and fetched again from where it was published. */
static void mark_clean(struct inode *in, const struct outcome *out, bool was_dirty)
{
    struct cfile *cf = NULL;
    mutex_lock(&in->mu);
    bool idle = !in->cf && !was_dirty, may = states_drop_gate(&in->rec);
    mutex_unlock(&in->mu);
    if (idle || !may || content_use(in, &cf) < 0) /* the next open takes the source from the record */
        return;
    struct cache_source src = {.key = out->key, .etag = out->etag, .limit = out->size};
    int r = cache_file_set_published(cf, &src);
    if (r < 0) /* stays marked dirty until the next start: kept longer than needed, never lost */
        log_debug("publish", "cache file could not be marked clean key='%s' r=%s", out->key, err_name(r));
    content_unuse(in, cf);
}

/* The name was removed meanwhile: its object is not what the cache file rests on. */
static void follow_base(struct inode *in, const struct outcome *out)
{
    mutex_lock(&in->mu);
    if (in->cf && in->rec.base_key && !g_str_equal(in->rec.base_key, out->key))
        cache_file_rebase(in->cf, in->rec.base_key, &in->rec.base_etag);
    mutex_unlock(&in->mu);
}

/* The cache file's absent bytes are in the object just made, whether or not others were written since: see update_inode(). */
static void rebase(struct inode *in, const struct outcome *out)
{
    mutex_lock(&in->mu);
    bool same = out->vid == 0 || in->rec.vid == out->vid;
    struct cfile *cf = same && in->cf ? cache_file_ref(in->cf) : NULL;
    mutex_unlock(&in->mu);
    if (cf)
        cache_file_rebase(cf, out->key, &out->etag);
    cache_file_unref(cf);
}

/* Content that no close will journal any more goes upstream under its other names too. */
static int journal_others(struct fs *fs, struct meta_batch *b, uint64_t ino, uint64_t not_id) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_link_list(fs->meta, ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        if (d->id == not_id || d->op_seq)
            continue;
        publish_name(fs, b, d, PUBLISH_CONTENT);
        d->stamp = meta_next_seq(fs->meta);
        meta_dentry_put(b, d);
    }
    return r;
}

/* The name was removed while it was published: its object is about to go. */
static void leave_object(struct fs *fs, struct meta_batch *b, const struct meta_dentry *before,
                         const struct outcome *out) REQUIRES(fs->ns)
{
    struct meta_dentry gone = *before; /* shares its strings */
    g_autofree char *key = g_strdup(out->key);
    gone.flags |= DENTRY_UPSTREAM;
    gone.ukey = key;
    gone.uetag = out->etag;
    gone.pub_vid = out->vid;
    gone.pub_gen = out->gen;
    tree_leave_object(fs, b, &gone);
}

static int record_locked(struct op *o, const struct meta_dentry *before, struct inode *in, const struct outcome *out,
                         struct meta_batch *b, bool *ret_clean) NO_TSA /* under ns */
{
    struct fs *fs = o->p->fs;
    struct find_name f = {.id = before->id, .vid = out->vid, .gen = out->gen};
    int r = meta_link_each(fs->meta, before->ino, on_link, &f);
    struct place base = {0};
    if (r == 0 && S_ISREG(o->type))
        r = choose_base(fs, in, out, f.found.id == 0, &base);
    if (r < 0) {
        meta_dentry_clear(&f.found);
        return r;
    }
    bool unsent = false;
    if (f.found.id) { /* kept here by a rule now: its object goes */
        g_autofree char *at = tree_key(fs, f.found.parent, f.found.name, S_ISDIR(f.found.type));
        f.others_unpublished |= local_is(fs, at) && !g_str_equal(at, out->key);
    }
    mutex_lock(&in->mu);
    uint64_t snap_gen = in->snap_gen;
    mutex_unlock(&in->mu);
    note_clear(fs, b, out->key);
    late_settle(b, o);
    if (S_ISREG(o->type))
        *ret_clean = update_inode(in, b, out, &base, f.others_unpublished, &unsent);
    tell_names(fs, in);
    g_free(base.key);
    if (*ret_clean)
        cache_sums_del(b, out->vid);
    if (f.found.id) {
        update_name(o, b, &f.found, in, out, unsent);
        meta_dentry_clear(&f.found);
    } else {
        publish_disown(fs, b, out->key, &out->etag, 0, S_ISREG(o->type) ? before->ino : 0);
        leave_object(fs, b, before, out);
    }
    if (unsent)
        r = journal_others(fs, b, before->ino, before->id);
    if (r == 0)
        r = meta_commit(b, false);
    mutex_lock(&in->mu);
    in->snap_gen = r < 0 ? snap_gen : in->snap_gen;
    mutex_unlock(&in->mu);
    return r;
}

int pubop_record(struct op *o, const struct meta_dentry *before, struct inode *in, const struct outcome *out)
{
    struct fs *fs = o->p->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    bool clean = false, regular = S_ISREG(o->type);
    if (regular)
        content_gate_enter(in);
    bool was_dirty = content_is_dirty(in);
    if (regular) /* first: a delete queued below fetches what is absent of an open, removed file */
        rebase(in, out);
    mutex_lock(&fs->ns);
    int r = record_locked(o, before, in, out, b, &clean);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    CRASH_POINT(publish_recorded);
    if (r == 0 && clean)
        mark_clean(in, out, was_dirty);
    if (r == 0 && regular)
        follow_base(in, out);
    CRASH_POINT(publish_clean);
    if (regular)
        content_gate_leave(in);
    if (r == 0 && regular)
        metric_inc(M_published_objects);
    if (r == 0)
        pubop_note_taken(o);
    if (r == 0)
        pin_rules_note_published(fs, o->key);
    return r;
}

static int let_go_locked(struct fs *fs, struct meta_batch *b, const struct meta_dentry *before) REQUIRES(fs->ns)
{
    struct meta_dentry d = {0};
    int r = meta_dentry_get(fs->meta, before->parent, before->name, &d);
    if (r == 0 && d.id == before->id && d.ukey && (d.flags & DENTRY_UPSTREAM)) {
        g_autofree char *old = g_steal_pointer(&d.ukey);
        struct etag etag = d.uetag;
        d.flags &= ~(uint32_t)DENTRY_UPSTREAM;
        d.uetag = (struct etag){0};
        d.pub_vid = d.pub_gen = 0;
        d.stamp = meta_next_seq(fs->meta);
        publish_disown(fs, b, old, &etag, d.id, 0);
        if (S_ISDIR(d.type)) {
            publish_drop_name(fs, b, &d);
            publish_name(fs, b, &d, PUBLISH_MARKER);
        } else {
            publish_renew(fs, b, &d);
        }
        meta_dentry_put(b, &d);
        r = meta_commit(b, false);
    }
    meta_dentry_clear(&d);
    return r == -ENOENT ? 0 : r;
}

int pubop_let_go(struct op *o, const struct meta_dentry *before)
{
    struct fs *fs = o->p->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = let_go_locked(fs, b, before);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

static int forget_locked(struct op *o, struct meta_batch *b) NO_TSA /* under ns */
{
    struct fs *fs = o->p->fs;
    struct meta_dentry d = {0};
    meta_op_del(b, o->rec.seq);
    mutex_lock(&o->p->mu);
    bool last = o->rec.kind == OP_DELETE && !queue_delete_replaced_locked(o->p, o);
    mutex_unlock(&o->p->mu);
    if (last) /* else what replaced it goes by the note */
        note_clear(fs, b, o->key);
    late_settle(b, o);
    if (o->rec.kind == OP_SYNC && meta_dentry_get(fs->meta, o->rec.parent, o->rec.name, &d) == 0 &&
        d.op_seq == o->rec.seq) {
        d.op_seq = 0;
        d.stamp = meta_next_seq(fs->meta);
        meta_dentry_put(b, &d);
    }
    int r = meta_commit(b, false);
    if (r == 0) {
        mutex_lock(&o->p->mu);
        queue_remove_locked(o->p, o);
        mutex_unlock(&o->p->mu);
    }
    meta_dentry_clear(&d);
    return r;
}

int pubop_forget(struct op *o)
{
    struct fs *fs = o->p->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&o->p->mu);
    bool dropped = o->dropped; /* changes only under ns: its record is gone, or another op's now */
    mutex_unlock(&o->p->mu);
    int r = dropped ? 0 : forget_locked(o, b);
    mutex_unlock(&fs->ns);
    CRASH_POINT(op_forgotten);
    meta_batch_free(b);
    return r;
}

void pubop_park(struct op *o, enum op_state state, int err)
{
    struct fs *fs = o->p->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&o->p->mu);
    bool dropped = o->dropped || op_move(&o->rec, state) < 0;
    if (!dropped) {
        o->rec.err = -err;
        meta_op_put(b, &o->rec);
    }
    mutex_unlock(&o->p->mu);
    if (!dropped && meta_commit(b, false) < 0)
        log_err("publish", "the journal could not be written key='%s'", o->key);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
}
