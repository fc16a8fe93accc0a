/*
 * See conflict.h. Every step that changes names is one batch under ns, which reads again what was found without it; the store and the disk are asked before.
 */
#include "conflict.h"

#include "base/crash.h"
#include "links.h"
#include "ns_undo.h"
#include "op.h"
#include "publish_internal.h"
#include "tree_apply.h"

#include <stdlib.h>

#define LAST_ID_VALUE "conflict-last"

/* ---- records ---- */

void conflict_clear(struct conflict *c)
{
    g_clear_pointer(&c->path, g_free);
}

static void value_name(uint64_t id, char buf[32])
{
    g_snprintf(buf, 32, CONFLICT_VALUE_PREFIX "%016" G_GINT64_MODIFIER "x", id);
}

static void name_of(uint64_t id, char buf[32])
{
    g_snprintf(buf, 32, "%" G_GUINT64_FORMAT, id);
}

static int parse(const char *value_name, const void *value, size_t len, struct conflict *ret)
{
    g_autofree char *text = g_strndup(value, len);
    g_auto(GStrv) lines = g_strsplit(text, "\n", 4);
    if (g_strv_length(lines) != 4)
        return -EBADMSG;
    *ret = (struct conflict){.id = strtoull(value_name + strlen(CONFLICT_VALUE_PREFIX), NULL, 16),
                             .lost_ns = g_ascii_strtoll(lines[0], NULL, 10),
                             .path = g_strdup(lines[3])};
    g_strlcpy(ret->base.s, lines[1], sizeof(ret->base.s));
    g_strlcpy(ret->winner.s, lines[2], sizeof(ret->winner.s));
    return 0;
}

int conflict_get(struct meta *m, uint64_t id, struct conflict *ret)
{
    char name[32];
    value_name(id, name);
    GBytes *value = NULL;
    int r = meta_value_get(m, name, &value);
    if (r < 0)
        return r;
    gsize len;
    const void *data = g_bytes_get_data(value, &len);
    r = parse(name, data, len, ret);
    g_bytes_unref(value);
    return r;
}

void conflict_del(struct meta_batch *b, uint64_t id)
{
    char name[32];
    value_name(id, name);
    meta_value_del(b, name);
}

struct each {
    int (*fn)(void *ctx, const struct conflict *c);
    void *ctx;
};

static int on_value(void *ctx, const char *name, const void *value, size_t len)
{
    const struct each *e = ctx;
    struct conflict c;
    int r = parse(name, value, len, &c);
    if (r < 0)
        return r;
    r = e->fn(e->ctx, &c);
    conflict_clear(&c);
    return r;
}

int conflict_each(struct meta *m, int (*fn)(void *ctx, const struct conflict *c), void *ctx)
{
    struct each e = {fn, ctx};
    return meta_value_each(m, CONFLICT_VALUE_PREFIX, on_value, &e);
}

struct search {
    const char *path;
    uint64_t n_at, n_below, id;
};

static int on_searched(void *ctx, const struct conflict *c)
{
    struct search *s = ctx;
    s->n_below += tree_path_below(c->path, s->path);
    if (g_str_equal(c->path, s->path)) {
        s->n_at++;
        s->id = c->id;
    }
    return 0;
}

int conflict_find(struct meta *m, const char *path, uint64_t *ret_id)
{
    struct search s = {.path = path};
    int r = conflict_each(m, on_searched, &s);
    if (r < 0 || s.n_at != 1)
        return r < 0 ? r : s.n_at ? -ENOTUNIQ : -ENOENT;
    *ret_id = s.id;
    return 0;
}

uint64_t conflict_count(struct meta *m, const char *path)
{
    struct search s = {.path = path};
    if (conflict_each(m, on_searched, &s) < 0)
        log_debug("conflict", "conflicts could not be counted");
    return s.n_below;
}

int conflict_name(struct meta *m, uint64_t id, struct meta_dentry *ret)
{
    char name[32];
    name_of(id, name);
    return meta_dentry_get(m, META_ASIDE_INO, name, ret);
}

char *conflict_path(struct meta *m, const char *name)
{
    struct conflict c;
    if (conflict_get(m, strtoull(name, NULL, 10), &c) < 0)
        return g_strconcat("?/", name, NULL);
    return c.path;
}

static int count_aside(void *ctx, const struct meta_dentry *d)
{
    *(unsigned *)ctx += d->parent == META_ASIDE_INO;
    return 0;
}

unsigned conflict_links(struct meta *m, uint64_t ino)
{
    unsigned n = 0;
    if (meta_link_each(m, ino, count_aside, &n) < 0)
        log_debug("conflict", "names could not be counted ino=%" G_GUINT64_FORMAT, ino);
    return n;
}

/* ---- setting aside ---- */

/* The next id, under ns: remembered, so that who types an old one never means a new conflict. */
static uint64_t take_id(struct fs *fs, struct meta_batch *b)
{
    GBytes *value = NULL;
    uint64_t id = 1;
    if (meta_value_get(fs->meta, LAST_ID_VALUE, &value) == 0) {
        gsize len;
        const char *data = g_bytes_get_data(value, &len);
        g_autofree char *text = g_strndup(data, len);
        id = strtoull(text, NULL, 10) + 1;
        g_bytes_unref(value);
    }
    char text[32];
    name_of(id, text);
    meta_value_put(b, LAST_ID_VALUE, text, strlen(text));
    return id;
}

static void put_record(struct meta_batch *b, const struct conflict *c)
{
    char name[32];
    value_name(c->id, name);
    g_autofree char *text =
        g_strdup_printf("%" G_GINT64_FORMAT "\n%s\n%s\n%s", c->lost_ns, c->base.s, c->winner.s, c->path);
    meta_value_put(b, name, text, strlen(text));
}

/* The name goes from its directory to META_ASIDE_INO, its journal record follows. */
static void move_aside(struct op *o, struct meta_batch *b, struct meta_dentry *d,
                       const struct etag *winner) NO_TSA /* under ns */
{
    struct fs *fs = o->p->fs;
    struct conflict c = {.id = take_id(fs, b), .lost_ns = clock_wall_ns(), .winner = *winner, .path = o->key};
    (void)tree_object_at_path(d, &c.base);
    put_record(b, &c);
    meta_dentry_del(b, d);
    char name[32];
    name_of(c.id, name);
    d->parent = META_ASIDE_INO;
    g_free(d->name);
    d->name = g_strdup(name);
    meta_dentry_put(b, d);
    struct meta_op rec = o->rec; /* shares the strings during this call */
    rec.parent = META_ASIDE_INO;
    rec.name = d->name;
    meta_op_put(b, &rec);
    fs->ns_changes++;
}

/* 0: the inode may go, and is marked; -EBUSY: writers have it. *ret_attributes: no bytes of ours, only attributes. */
static int check_loser(struct inode *in, struct meta_batch *b, const struct meta_dentry *d, bool *ret_attributes)
{
    mutex_lock(&in->mu);
    struct meta_inode *rec = &in->rec;
    bool clean = S_ISREG(rec->mode) && rec->content == CONTENT_CLEAN;
    int r = in->n_writers > 0 || (rec->content != CONTENT_CLEAN && rec->content != CONTENT_SEALED) ? -EBUSY : 0;
    *ret_attributes = clean && (d->flags & DENTRY_UPSTREAM) && !d->ukey;
    if (r == 0 && !*ret_attributes) {
        ns_undo_note_locked(in);
        rec->flags |= INODE_SET_ASIDE;
        meta_inode_put(b, rec);
    }
    mutex_unlock(&in->mu);
    return r;
}

struct loss {
    struct op *o;
    struct list_row winner; /* has_info: there is one */
    struct meta_dentry d;   /* owned */
    struct inode *in;       /* owned reference */
    bool attributes;
};

static int detach_locked(struct loss *l, struct meta_batch *b) NO_TSA /* under ns */
{
    struct op *o = l->o;
    struct fs *fs = o->p->fs;
    struct meta_dentry *d = &l->d;
    int r = meta_dentry_get(fs->meta, o->rec.parent, o->rec.name, d);
    if (r == 0 && d->op_seq != o->rec.seq)
        r = -ENOENT;
    if (r == 0)
        r = inode_get(fs, d->ino, &l->in);
    if (r == 0)
        r = check_loser(l->in, b, d, &l->attributes);
    if (r < 0)
        return r;
    uint64_t dir = d->parent;
    l->winner.name = g_strdup(d->name);
    if (l->attributes)
        r = tree_lose_name(fs, b, d);
    else
        move_aside(o, b, d, &l->winner.etag);
    r = r > 0 ? -EBUSY : r;
    if (r == 0 && l->winner.has_info)
        r = tree_insert_row(fs, b, dir, &l->winner, l->in->rec.flags & INODE_PIN_FLAGS, meta_next_seq(fs->meta));
    note_clear(fs, b, o->key); /* from now on what stands there is theirs, whatever token it carries */
    if (r == 0)
        r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    if (r < 0)
        return r;
    notify_entry(fs, dir, l->winner.name);
    mutex_lock(&o->p->mu);
    if (!l->winner.has_info) /* a listing that began before must not bring it back */
        queue_note_deleted_locked(o->p, o->key);
    if (!o->dropped) {
        o->rec.parent = META_ASIDE_INO;
        g_free(o->rec.name);
        o->rec.name = g_strdup(d->name);
    }
    o->settle = false; /* the last writer's release may have asked for it meanwhile */
    mutex_unlock(&o->p->mu);
    return 0;
}

/* A renamed file that nobody changed: what is here of it stays, for the store may have lost it. */
static void keep_cached(struct fs *fs, struct inode *in, bool keep)
{
    mutex_lock(&in->mu);
    bool pin = S_ISREG(in->rec.mode) && in->rec.vid && !(in->rec.flags & INODE_PINNED) &&
               (!keep || in->rec.content == CONTENT_CLEAN);
    uint64_t vid = in->rec.vid;
    mutex_unlock(&in->mu);
    if (pin && cache_pin(fs->cache, vid, keep) < 0)
        log_debug("conflict", "cache file could not be marked vid=%" G_GUINT64_FORMAT, vid);
}

static int set_aside(struct op *o)
{
    struct fs *fs = o->p->fs;
    struct loss l = {.o = o};
    struct obj_info *info = &l.winner.info;
    int r = objstore_head(fs->store, o->key, info);
    if (r < 0 && r != -ENOENT) /* the path goes on showing ours until it is known what else it should show */
        return r;
    l.winner.has_info = r == 0;
    l.winner.size = info->size;
    l.winner.mtime_ns = info->mtime_ns;
    l.winner.etag = info->etag;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    r = detach_locked(&l, b);
    mutex_unlock(&fs->ns);
    CRASH_POINT(conflict_aside);
    meta_batch_free(b);
    if (r == 0 && l.attributes) {
        log_warn("conflict", "attributes were changed here, the object elsewhere: the path shows that key='%s'",
                 o->key);
    } else if (r == 0) {
        keep_cached(fs, l.in, true);
        log_warn("conflict", "the path shows what is upstream, ours is conflict %s key='%s'", l.d.name, o->key);
    }
    obj_info_clear(info);
    g_free(l.winner.name);
    meta_dentry_clear(&l.d);
    inode_put(l.in);
    return r == -ENOENT ? 0 : r; /* the name went another way */
}

int conflict_settle(struct op *o)
{
    mutex_lock(&o->p->mu);
    o->settle = false; /* before the look at the writers: the last one's release sets it again */
    mutex_unlock(&o->p->mu);
    int r = set_aside(o);
    if (r == -EBUSY)
        return 0;
    if (r < 0) {
        mutex_lock(&o->p->mu);
        o->settle = true;
        mutex_unlock(&o->p->mu);
    }
    return r;
}

/* ---- resolving ---- */

/* A loser that is being resolved. */
struct loser {
    struct conflict c;    /* owned */
    struct meta_dentry d; /* owned */
    struct inode *in;     /* owned reference */
    bool held;            /* content_detach() was done: released at the end */
};

static void loser_put(struct fs *fs, struct loser *l)
{
    if (l->held)
        content_release(l->in, true);
    inode_put(l->in);
    meta_dentry_clear(&l->d);
    conflict_clear(&l->c);
}

static int loser_get(struct fs *fs, uint64_t id, struct loser *l)
{
    int r = conflict_get(fs->meta, id, &l->c);
    if (r == 0)
        r = conflict_name(fs->meta, id, &l->d);
    return r == 0 ? inode_get(fs, l->d.ino, &l->in) : r;
}

/* Its bytes need nothing from the store any more, which may hold other ones where they came from. */
static int bring_here(struct loser *l)
{
    mutex_lock(&l->in->mu);
    const struct meta_inode *rec = &l->in->rec;
    int r = rec->content == CONTENT_QUARANTINED ? -EUCLEAN : 0;
    bool needs = S_ISREG(rec->mode) && rec->base_key;
    mutex_unlock(&l->in->mu);
    if (r == 0 && needs) {
        r = content_detach(l->in, false);
        l->held = r == 0;
    }
    return r;
}

/* The record goes; the inode is no loser any more unless by another name. */
static void end_record(struct fs *fs, struct meta_batch *b, const struct loser *l) REQUIRES(fs->ns)
{
    conflict_del(b, l->c.id);
    unsigned n = conflict_links(fs->meta, l->in->ino);
    mutex_lock(&l->in->mu);
    ns_undo_note_locked(l->in);
    if (n <= 1)
        l->in->rec.flags &= ~(uint32_t)INODE_SET_ASIDE;
    if (!l->in->gone)
        meta_inode_put(b, &l->in->rec);
    mutex_unlock(&l->in->mu);
}

/* What stands at the path makes room if it is only a view of the store. */
static int clear_place(struct fs *fs, struct meta_batch *b, uint64_t dir, const char *name) REQUIRES(fs->ns)
{
    struct meta_dentry d = {0};
    int r = meta_dentry_get(fs->meta, dir, name, &d);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    INODE_REF in = NULL;
    r = S_ISDIR(d.type) ? -EISDIR : inode_get(fs, d.ino, &in);
    if (r == 0) {
        mutex_lock(&in->mu);
        bool local = d.op_seq || !(d.flags & DENTRY_UPSTREAM) || in->rec.content != CONTENT_CLEAN;
        r = in->n_writers > 0 ? -EBUSY : local ? -EEXIST : 0;
        mutex_unlock(&in->mu);
    }
    if (r == 0)
        r = tree_lose_name(fs, b, &d);
    meta_dentry_clear(&d);
    return r > 0 ? -EBUSY : r;
}

static bool dir_is_live(struct inode *dir)
{
    mutex_lock(&dir->mu);
    bool live = !dir->gone && dir->rec.nlink > 0;
    mutex_unlock(&dir->mu);
    return live;
}

/* The name goes back to (dir, name), where upstream has the object `winner` ("" none), and is published under its old number. */
static int restore_locked(struct fs *fs, struct meta_batch *b, struct loser *l, struct inode *dir, const char *name,
                          const struct etag *winner) REQUIRES(fs->ns)
{
    struct meta_dentry *d = &l->d;
    meta_dentry_clear(d);
    int r = conflict_name(fs->meta, l->c.id, d);
    if (r == 0 && !dir_is_live(dir))
        r = -ENOENT;
    if (r == 0)
        r = clear_place(fs, b, dir->ino, name);
    if (r < 0)
        return r;
    struct etag ignored;
    (void)publish_inherit(fs, b, l->c.path, &ignored); /* ours takes the place of what was to be deleted there */
    meta_dentry_del(b, d);
    if (d->ukey && (d->flags & DENTRY_UPSTREAM))
        publish_disown(fs, b, d->ukey, &d->uetag, d->id, 0);
    g_clear_pointer(&d->ukey, g_free);
    d->parent = dir->ino;
    g_free(d->name);
    d->name = g_strdup(name);
    d->flags = (d->flags & ~(uint32_t)DENTRY_UPSTREAM) | DENTRY_DEST_KNOWN;
    d->dest_etag = *winner;
    d->uetag = (struct etag){0};
    d->pub_vid = d->pub_gen =
        0; /* the token stays: what is put there and is no later version of ours is somebody else's */
    d->stamp = meta_next_seq(fs->meta);
    publish_again(fs, b, d);
    meta_dentry_put(b, d);
    end_record(fs, b, l);
    fs->ns_changes++;
    return meta_commit(b, false);
}

static int restore(struct fs *fs, struct loser *l, struct inode *dir, const char *name, const struct etag *winner)
{
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = restore_locked(fs, b, l, dir, name, winner);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (r == 0) {
        keep_cached(fs, l->in, false);
        notify_entry(fs, dir->ino, name);
    }
    return r;
}

int conflict_keep_mine(struct fs *fs, uint64_t id)
{
    struct loser l = {0};
    struct obj_info info = {0};
    INODE_REF dir = NULL;
    const char *name = NULL;
    int r = loser_get(fs, id, &l);
    if (r == 0)
        r = tree_resolve_parent(fs, l.c.path, &dir, &name);
    if (r == 0) /* else it would be tried for ever */
        r = links_may_change(fs, dir->ino);
    if (r == 0) {
        r = objstore_head(fs->store, l.c.path, &info);
        r = r == -ENOENT ? 0 : r;
    }
    if (r == 0)
        r = bring_here(&l);
    CRASH_POINT(conflict_brought);
    if (r == 0)
        r = restore(fs, &l, dir, name, &info.etag);
    obj_info_clear(&info);
    loser_put(fs, &l);
    return r;
}

/* Other names of the file were published, but its content stayed unpublished for this one's sake. */
static int settle_others(struct fs *fs, struct meta_batch *b, uint64_t ino) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_link_list(fs->meta, ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        if (d->parent == META_ASIDE_INO || d->op_seq)
            continue;
        publish_name(fs, b, d, PUBLISH_CONTENT);
        d->stamp = meta_next_seq(fs->meta);
        meta_dentry_put(b, d);
    }
    return r;
}

static int drop_locked(struct fs *fs, struct meta_batch *b, struct loser *l) REQUIRES(fs->ns)
{
    meta_dentry_clear(&l->d);
    int r = conflict_name(fs->meta, l->c.id, &l->d);
    if (r < 0)
        return r;
    end_record(fs, b, l);
    mutex_lock(&l->in->mu);
    bool sealed = S_ISREG(l->in->rec.mode) && l->in->rec.content == CONTENT_SEALED;
    mutex_unlock(&l->in->mu);
    r = sealed ? settle_others(fs, b, l->in->ino) : 0;
    if (r == 0)
        r = tree_drop_name(fs, b, &l->d, true);
    return r < 0 ? r : meta_commit(b, false);
}

static int drop(struct fs *fs, struct loser *l)
{
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = drop_locked(fs, b, l);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (r == 0)
        keep_cached(fs, l->in, false);
    return r;
}

int conflict_keep_theirs(struct fs *fs, uint64_t id)
{
    struct loser l = {0};
    int r = loser_get(fs, id, &l);
    if (r == 0)
        r = drop(fs, &l);
    loser_put(fs, &l);
    return r;
}

int conflict_save_as(struct fs *fs, uint64_t id, const char *new_path)
{
    struct loser l = {0};
    INODE_REF dir = NULL;
    INODE_REF there = NULL;
    INODE_REF linked = NULL;
    const char *name = NULL;
    int r = loser_get(fs, id, &l);
    if (r == 0)
        r = tree_resolve_parent(fs, new_path, &dir, &name);
    if (r == 0)
        r = links_may_change(fs, dir->ino);
    if (r == 0 && virt_lookup(dir->ino, name))
        r = -EPERM;
    if (r == 0) {
        r = tree_lookup(fs, dir->ino, name, &there);
        r = r == -ENOENT ? 0 : r == 0 ? -EEXIST : r;
    }
    if (r == 0)
        r = bring_here(&l);
    if (r == 0)
        r = tree_link(fs, l.in->ino, dir->ino, name, &linked);
    if (r == 0) {
        notify_entry(fs, dir->ino, name);
        r = drop(fs, &l);
    }
    loser_put(fs, &l);
    return r;
}
