/*
 * The publisher's public side: what the tree tells it (under ns), what others ask of it, its threads.
 *
 * Changes asked for while a batch is being built are kept in `pending` and reach the queue only when the batch is committed.
 */
#include "links.h"
#include "local.h"
#include "ns_undo.h"
#include "publish_late.h"
#include "publish_moved.h"
#include "publish_sums.h"
#include "rules.h"
#include "states.h"

#include <fnmatch.h>

#define LAZY_DELAY_NS    (5 * NS_PER_S)
#define SUMS_DELAY_NS    (5 * NS_PER_S)
#define SMALL_KEEP_BYTES (32u << 20)
#define HELD_DIRS_MAX    4096u

struct change {
    struct op *add;    /* owned until applied */
    uint64_t remove;   /* seq, 0 none */
    uint64_t base_ino; /* file whose base is another now, 0 none */
    char *base;        /* owned */
};

static void change_free(void *arg)
{
    struct change *c = arg;
    if (c->add)
        pubop_free(c->add);
    g_free(c->base);
    g_free(c);
}

static void pend(struct publisher *p, struct op *add, uint64_t remove)
{
    struct change *c = g_new0(struct change, 1);
    *c = (struct change){.add = add, .remove = remove};
    g_ptr_array_add(p->pending, c);
    if (add && add->rec.kind == OP_DELETE && !g_hash_table_contains(p->pending_dels, add->key))
        g_hash_table_insert(p->pending_dels, add->key, c);
}

static void pending_clear(struct publisher *p)
{
    g_hash_table_remove_all(p->pending_dels); /* its keys are the ops' */
    g_ptr_array_set_size(p->pending, 0);
}

/* ---- held names ---- */

static bool glob_matches(const char *glob, const char *path)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    size_t len = strlen(glob);
    if (len > 3 && g_str_equal(glob + len - 3, "/**")) { /* a directory's name: any component */
        g_autofree char *dir = g_strndup(glob, len - 3);
        g_auto(GStrv) parts = g_strsplit(path, "/", -1);
        for (unsigned i = 0; parts[i] && parts[i + 1]; i++)
            if (fnmatch(dir, parts[i], 0) == 0)
                return true;
        return false;
    }
    return fnmatch(glob, strchr(glob, '/') ? path : base, 0) == 0;
}

bool publish_is_held_name(struct fs *fs, const char *path)
{
    enum rule_hold hold = rules_for(fs, path)->hold;
    if (hold != RULE_HOLD_BY_NAME)
        return hold == RULE_HOLD_YES;
    for (unsigned i = 0; i < fs->hold_globs->len; i++)
        if (glob_matches(fs->hold_globs->pdata[i], path))
            return true;
    return false;
}

/* ---- under ns ---- */

enum conflict_mode pubop_conflict(const struct op *o)
{
    struct link_policy policy;
    links_policy(o->p->fs, o->key, &policy);
    return policy.conflict;
}

/* A file that is closed but mapped blocks nobody (content.c): its record does not say so. */
static void keep_open(const struct op *old, struct op *next)
{
    if (old->content == CONTENT_OPEN && next->content == CONTENT_CLOSING)
        next->content = CONTENT_OPEN;
}

/* Does the present op of the name do for this reason too, or is `next`, with a new seq, needed? Then that succeeds it; again: it is closed again, not moved. */
static bool pubop_suffices(struct publisher *p, const struct meta_dentry *d, struct op *next, bool again)
{
    uint64_t seq = d->op_seq;
    enum publish_why why = next->why;
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->by_seq, &seq);
    bool ok = o && !o->running && o->rec.state != OPS_PARKED && o->rec.state != OPS_CONFLICT &&
              (why == PUBLISH_META || why == PUBLISH_MARKER ||
               (why == PUBLISH_CONTENT && o->why == PUBLISH_CONTENT && o->bytes > SMALL_KEEP_BYTES &&
                queue_is_last_locked(p, o) && o->based == next->based && g_strcmp0(o->base, next->base) == 0));
    if (o && !ok && why == PUBLISH_META) /* what o was to bring is to be brought still */
        next->why = o->why;
    if (o && !again)
        keep_open(o, next);
    if (o && !ok && again)
        queue_succeed_locked(p, o, next);
    else if (o && !ok)
        queue_keep_place_locked(p, o, next, moved_came_locked(p, o, d, next->key));
    mutex_unlock(&p->mu);
    return ok;
}

/* What the op needs to know of the file. */
static void look_at_content(struct op *o, const struct meta_dentry *d, const struct meta_inode *rec)
{
    o->content = rec->content;
    o->bytes = rec->size;
    o->based = o->content != CONTENT_CLEAN || !(d->flags & DENTRY_UPSTREAM);
    pubop_set_base(o, rec->base_key);
}

/* All but what it has to know of the file. */
static struct op *name_op(struct fs *fs, const struct meta_dentry *d, enum publish_why why) REQUIRES(fs->ns)
{
    struct op *o = pubop_new(fs->pub);
    o->ino = d->ino;
    o->type = d->type;
    o->why = why;
    o->key = tree_key(fs, d->parent, d->name, S_ISDIR(d->type));
    o->order = rules_for(fs, o->key)->order;
    if (d->ukey && (d->flags & DENTRY_UPSTREAM)) {
        o->source = g_strdup(d->ukey);
        o->source_etag = d->uetag;
    }
    o->content = CONTENT_SEALED;
    return o;
}

static struct op *sync_op(struct fs *fs, const struct meta_dentry *d, enum publish_why why) REQUIRES(fs->ns)
{
    struct op *o = name_op(fs, d, why);
    INODE_REF in = NULL;
    if (S_ISREG(d->type) && inode_get(fs, d->ino, &in) == 0) {
        mutex_lock(&in->mu);
        look_at_content(o, d, &in->rec);
        o->copying = in->copying;
        mutex_unlock(&in->mu);
    }
    return o;
}

static void set_delay(struct fs *fs, struct op *o)
{
    if (o->why == PUBLISH_META || o->why == PUBLISH_MARKER) {
        o->not_before_ns = clock_mono_ns() + LAZY_DELAY_NS;
        o->lazy = true;
    } else if (o->rec.kind == OP_SYNC && publish_is_held_name(fs, o->key) && op_move(&o->rec, OPS_HELD) == 0) {
        o->not_before_ns = clock_mono_ns() + fs->cfg->hold_delay_ns;
    }
}

static void add_sync_op(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, struct op *o, uint64_t seq)
    REQUIRES(fs->ns)
{
    o->rec = (struct meta_op){
        .seq = seq,
        .kind = OP_SYNC,
        .state = OPS_QUEUED,
        .parent = d->parent,
        .name = g_strdup(d->name),
        .created_ns = clock_wall_ns(),
    };
    moved_note_place(o);
    set_delay(fs, o);
    meta_op_put(b, &o->rec);
    d->op_seq = seq;
    pend(fs->pub, o, 0);
}

static void name_it(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, enum publish_why why, bool again)
    REQUIRES(fs->ns)
{
    if (d->parent == META_ASIDE_INO || (d->flags & DENTRY_LINK)) /* the directory of a link is no object */
        return;
    struct op *o = sync_op(fs, d, why);
    bool needs = o->source || o->base; /* an object that only a journal record keeps: promised before the rule */
    if (!needs && local_is(fs, o->key)) {
        if (!S_ISDIR(d->type) && why != PUBLISH_META)
            local_note(fs, b, d->ino);
        publish_drop_name(fs, b, d);
        pubop_free(o);
        return;
    }
    if (d->op_seq && pubop_suffices(fs->pub, d, o, again)) {
        pubop_free(o);
        return;
    }
    publish_drop_name(fs, b, d);
    add_sync_op(fs, b, d, o, meta_next_seq(fs->meta));
}

void publish_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, enum publish_why why)
{
    mutex_assert_held(&fs->ns);
    name_it(fs, b, d, why, why == PUBLISH_CONTENT);
}

struct op *publish_added(struct fs *fs, const struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    const GPtrArray *pending = fs->pub->pending;
    const struct change *last = pending->len > 0 ? pending->pdata[pending->len - 1] : NULL;
    return last && last->add && d->op_seq && last->add->rec.seq == d->op_seq ? last->add : NULL;
}

void publish_linked(struct fs *fs, struct meta_batch *b, struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    name_it(fs, b, d, PUBLISH_PLACE, false);
    struct op *o = publish_added(fs, d), *first = NULL;
    if (!o)
        return;
    mutex_lock(&p->mu);
    const GPtrArray *a = g_hash_table_lookup(p->by_ino, &d->ino);
    for (unsigned i = 0; a && i < a->len; i++) {
        struct op *c = a->pdata[i];
        keep_open(c, o);
        if (c->links->len > 0 && !pubop_aside(c) && (!first || c->place < first->place))
            first = c;
    }
    if (first)
        queue_keep_place_locked(p, first, o, moved_came_locked(p, first, d, o->key));
    mutex_unlock(&p->mu);
    moved_note_place(o);
    meta_op_put(b, &o->rec);
}

void publish_again(struct fs *fs, struct meta_batch *b, struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    struct op *o = sync_op(fs, d, PUBLISH_CONTENT);
    uint64_t seq = d->op_seq;
    mutex_lock(&p->mu);
    const struct op *old = g_hash_table_lookup(p->by_seq, &seq);
    if (old) /* what waited for a version before it goes on waiting */
        queue_keep_place_locked(p, old, o, false);
    mutex_unlock(&p->mu);
    publish_drop_name(fs, b, d);
    add_sync_op(fs, b, d, o, seq ? seq : meta_next_seq(fs->meta));
}

void publish_renew(struct fs *fs, struct meta_batch *b, struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    g_autofree char *key = tree_key(fs, d->parent, d->name, false);
    mutex_lock(&p->mu);
    const struct op *run = g_hash_table_lookup(p->running_inos, &d->ino);
    bool leaving = run && run->leaving;
    mutex_unlock(&p->mu);
    if (leaving && d->op_seq && d->parent != META_ASIDE_INO && !local_is(fs, key))
        publish_again(fs, b, d);
    else
        name_it(fs, b, d, PUBLISH_CONTENT, false);
}

void publish_drop_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    if (!d->op_seq)
        return;
    meta_op_del(b, d->op_seq);
    pend(fs->pub, NULL, d->op_seq);
    d->op_seq = 0;
}

/* What a delete of the key that was queued before, and may be running, knows of the object. "": nothing, or there is none. */
static struct etag deleted_etag(struct publisher *p, const char *key)
{
    mutex_lock(&p->mu);
    const struct op *o = g_hash_table_lookup(p->tombs, key);
    struct etag etag = o ? o->rec.etag : (struct etag){0};
    mutex_unlock(&p->mu);
    return etag;
}

void publish_delete(struct fs *fs, struct meta_batch *b, const char *key, const struct etag *etag, uint64_t keep_ino)
{
    mutex_assert_held(&fs->ns);
    struct etag known = etag_is_set(etag) ? *etag : deleted_etag(fs->pub, key); /* this one replaces that */
    struct op *o = pubop_new(fs->pub);
    o->key = g_strdup(key);
    o->order = rules_for(fs, key)->order;
    o->keep_ino = keep_ino;
    o->rec = (struct meta_op){
        .seq = meta_next_seq(fs->meta),
        .kind = OP_DELETE,
        .parent = keep_ino,
        .key = g_strdup(key),
        .etag = known,
        .created_ns = clock_wall_ns(),
    };
    meta_op_put(b, &o->rec);
    pend(fs->pub, o, 0);
}

void publish_rebased(struct fs *fs, uint64_t ino, const char *base)
{
    mutex_assert_held(&fs->ns);
    if (!fs->pub)
        return; /* a file is taken over: publish_open() will read what it is */
    struct change *c = g_new0(struct change, 1);
    *c = (struct change){.base_ino = ino, .base = g_strdup(base)};
    g_ptr_array_add(fs->pub->pending, c);
}

bool publish_inherit(struct fs *fs, struct meta_batch *b, const char *key, struct etag *ret_etag)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    bool found = false;
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->tombs, key);
    uint64_t seq = 0;
    if (o && !o->running) {
        *ret_etag = o->rec.etag;
        seq = o->rec.seq;
        found = true;
    } else if ((o = g_hash_table_lookup(p->sources, key))) {
        *ret_etag = o->source_etag;
        found = true;
    }
    mutex_unlock(&p->mu);
    if (seq) {
        meta_op_del(b, seq);
        pend(p, NULL, seq);
        return true;
    }
    struct change *c = g_hash_table_lookup(p->pending_dels, key); /* a delete queued by this very batch */
    if (!c)
        return found;
    *ret_etag = c->add->rec.etag;
    meta_op_del(b, c->add->rec.seq);
    g_hash_table_remove(p->pending_dels, key);
    g_clear_pointer(&c->add, pubop_free);
    return true;
}

void publish_apply(struct fs *fs, bool committed)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    ns_undo_end(fs, committed);
    if (!p || p->pending->len == 0)
        return;
    if (committed) {
        g_hash_table_remove_all(p->pending_dels);
        mutex_lock(&p->mu);
        for (unsigned i = 0; i < p->pending->len; i++) {
            struct change *c = p->pending->pdata[i];
            struct op *o = c->remove ? g_hash_table_lookup(p->by_seq, &c->remove) : NULL;
            if (o)
                queue_remove_locked(p, o);
            if (c->add && c->add->content == CONTENT_SEALED && S_ISREG(c->add->type))
                sums_note_locked(p, c->add->ino); /* of an earlier run, or a name made meanwhile */
            if (c->add)
                queue_insert_locked(p, g_steal_pointer(&c->add));
            if (c->base_ino)
                queue_rebase_locked(p, c->base_ino, c->base);
        }
        mutex_unlock(&p->mu);
    }
    pending_clear(p);
}

/* ---- any time ---- */

void publish_content_state(struct fs *fs, uint64_t ino, uint32_t state)
{
    struct publisher *p = fs->pub;
    if (!p)
        return; /* a file is taken over: publish_open() will read what it is */
    mutex_lock(&p->mu);
    GPtrArray *a = g_hash_table_lookup(p->by_ino, &ino);
    for (unsigned i = 0; a && i < a->len; i++)
        queue_set_content_locked(p, a->pdata[i], state);
    if (state == CONTENT_SEALED)
        sums_note_locked(p, ino);
    cond_broadcast(&p->done);
    mutex_unlock(&p->mu);
}

bool publish_key_busy(struct publisher *p, const char *key)
{
    mutex_lock(&p->mu);
    bool busy = queue_key_busy_locked(p, key);
    mutex_unlock(&p->mu);
    return busy;
}

void publish_writers_gone(struct fs *fs, uint64_t ino)
{
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    GPtrArray *a = g_hash_table_lookup(p->by_ino, &ino);
    for (unsigned i = 0; a && i < a->len; i++) {
        struct op *o = a->pdata[i];
        if (o->rec.state == OPS_CONFLICT && !pubop_aside(o) && pubop_conflict(o) == CONFLICT_KEEP) {
            o->settle = true;
            queue_wake_locked(p);
        }
    }
    mutex_unlock(&p->mu);
}

bool publish_key_deleted(struct publisher *p, const char *key, uint64_t stamp)
{
    if (!p)
        return false;
    size_t len = strlen(key);
    mutex_lock(&p->mu);
    const struct recent *recent = g_hash_table_lookup(p->recent, key);
    bool gone = (recent && recent->stamp > stamp) || g_hash_table_contains(p->tombs, key) ||
                g_hash_table_contains(p->sources, key) || g_hash_table_contains(p->running_keys, key) ||
                (len > 0 && key[len - 1] == '/' && queue_prefix_leaving_locked(p, key));
    mutex_unlock(&p->mu);
    return gone;
}

void publish_note_gone(struct publisher *p, const char *key)
{
    mutex_lock(&p->mu);
    queue_note_deleted_locked(p, key);
    mutex_unlock(&p->mu);
}

static const char *state_name(const struct op *o)
{
    if (o->running)
        return "uploading";
    return o->failures > 0 && o->rec.state == OPS_QUEUED ? "retrying" : op_state_name(o->rec.state);
}

void publish_describe(struct publisher *p, uint64_t op_seq, json_t *obj)
{
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->by_seq, &op_seq);
    if (o) {
        json_object_set_new(obj, "upload_state", json_string(state_name(o)));
        if (o->last_err)
            json_object_set_new(obj, "error", json_string(objstore_err_text(o->last_err)));
        struct op *blocker = o->running ? NULL : queue_blocker_locked(p, o);
        uint64_t now = clock_mono_ns(), until = late_until_locked(p, blocker ? blocker : o);
        if (until > now)
            json_object_set_new(obj, "rests_s", json_integer((json_int_t)((until - now + NS_PER_S - 1) / NS_PER_S)));
        if (blocker)
            json_object_set_new(obj, "blocked_by",
                                json_string(blocker->key) ?: json_string("(a name that is not UTF-8)"));
        if (blocker && blocker->last_err) /* of a delete, which has no name any more, nothing else tells it */
            json_object_set_new(obj, "blocked_by_error", json_string(objstore_err_text(blocker->last_err)));
    }
    mutex_unlock(&p->mu);
}

void publish_each(struct publisher *p, void (*fn)(void *ctx, const struct meta_op *op, const char *path, int err),
                  void *ctx)
{
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        const struct op *o = g_sequence_get(it);
        fn(ctx, &o->rec, o->key, o->last_err);
    }
    mutex_unlock(&p->mu);
}

/* A conflict that is an error like others: nobody sets it aside. */
static bool plain_conflict(const struct op *o)
{
    return o->rec.state == OPS_CONFLICT && pubop_conflict(o) == CONFLICT_OVERWRITE && !pubop_aside(o);
}

int publish_retry(struct publisher *p, const char *path)
{
    struct fs *fs = p->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    int n = 0;
    mutex_lock(&fs->ns); /* until the records are stored: an op that ends at once removes its own after that */
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        struct op *o = g_sequence_get(it);
        if (!tree_path_below(o->key, path) || (o->rec.state == OPS_CONFLICT && !plain_conflict(o)))
            continue;
        bool stored = o->rec.state == OPS_PARKED || o->rec.state == OPS_CONFLICT;
        if (op_move(&o->rec, OPS_QUEUED) < 0)
            continue;
        if (stored) { /* one that is held is so again after a start */
            o->rec.err = 0;
            meta_op_put(b, &o->rec);
        }
        o->not_before_ns = 0;
        o->failures = o->n_refusals = 0;
        queue_set_refused_locked(p, o, false);
        n++;
    }
    queue_wake_locked(p);
    mutex_unlock(&p->mu);
    int r = meta_commit(b, false);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r < 0 ? r : n;
}

/* The first parked, conflicting or refused op under path that came after that one, marked running. */
static struct op *take_stuck(struct publisher *p, const char *path, uint64_t after_seq)
{
    struct op *found = NULL;
    mutex_lock(&p->mu);
    GSequenceIter *it = queue_after_locked(p, after_seq);
    for (; !found && !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        struct op *o = g_sequence_get(it);
        bool again = o->closed && o->content == CONTENT_OPEN && !o->source && !o->base && o->rec.state == OPS_QUEUED;
        bool stuck = again || o->rec.state == OPS_PARKED || pubop_aside(o) || plain_conflict(o) || o->refused;
        if (!queue_busy_locked(p, o) && stuck && tree_path_below(o->key, path))
            found = o;
    }
    if (found)
        queue_take_locked(p, found);
    mutex_unlock(&p->mu);
    return found;
}

int publish_skip(struct publisher *p, const char *path)
{
    int n = 0, r = 0;
    uint64_t seq = 0;
    for (struct op *o; r == 0 && (o = take_stuck(p, path, seq)); n++) {
        seq = o->rec.seq;
        late_begin();
        r = pubop_forget(o);
        pubop_finish(o, r);
    }
    return r < 0 ? r : n;
}

void publish_probe_soon(struct fs *fs, const char *key)
{
    struct publisher *p = fs->pub;
    if (links_probed(fs, key))
        return;
    g_autofree char *dir = g_strndup(key, links_prefix_len(fs, key));
    mutex_lock(&p->mu);
    if (!g_hash_table_contains(p->probing, dir)) { /* else a thread more would only wait for that */
        g_free(p->probe_wanted);                   /* the other store's is made with its first change */
        p->probe_wanted = g_strdup(key);
        cond_signal(&p->work);
    }
    mutex_unlock(&p->mu);
}

/* ---- life ---- */

static enum publish_why derive_why(const struct meta_dentry *d, const struct meta_inode *rec)
{
    if (S_ISDIR(d->type))
        return PUBLISH_MARKER;
    bool content_there =
        (d->flags & DENTRY_UPSTREAM) && !d->ukey && (!S_ISREG(d->type) || rec->content == CONTENT_CLEAN);
    return content_there && (d->flags & DENTRY_META_DIRTY) ? PUBLISH_META : PUBLISH_CONTENT;
}

/* Reading the journal, which is long after an outage, while programs wait: with few reads for each op. */
struct load {
    struct fs *fs;
    struct meta_near *near; /* owned */
    GHashTable *
        dirs; /* &ino -> struct inode, owned references: directories of what was read last, whose names are asked for again and again */
};

static void hold_dirs(struct load *l, uint64_t dir)
{
    if (g_hash_table_size(l->dirs) >= HELD_DIRS_MAX)
        g_hash_table_remove_all(l->dirs);
    while (dir != META_ROOT_INO && !g_hash_table_contains(l->dirs, &dir)) {
        struct inode *in = NULL;
        if (inode_get(l->fs, dir, &in) < 0)
            return;
        g_hash_table_insert(l->dirs, &in->ino, in);
        dir = in->rec.parent;
    }
}

/* Of an inode that is in memory the record there counts. */
static int load_inode(struct load *l, uint64_t ino, struct meta_inode *ret)
{
    INODE_REF in = inode_find(l->fs, ino);
    if (!in)
        return meta_near_inode(l->near, ino, ret);
    mutex_lock(&in->mu);
    bool gone = in->gone;
    if (!gone)
        meta_inode_copy(ret, &in->rec);
    mutex_unlock(&in->mu);
    return gone ? -ENOENT : 0;
}

static struct op *load_delete(struct fs *fs, const struct meta_op *rec)
{
    struct op *o = pubop_new(fs->pub);
    o->key = g_strdup(rec->key);
    o->order = rules_for(fs, o->key)->order;
    o->keep_ino = rec->parent;
    return o;
}

/* NULL: it has no name. */
static struct op *load_sync(struct load *l, const struct meta_op *rec) NO_TSA /* under ns: publish_open */
{
    struct meta_dentry d = {0};
    struct meta_inode in = {0};
    struct op *o = NULL;
    int r = meta_near_dentry(l->near, rec->parent, rec->name, &d);
    if (r == 0)
        r = load_inode(l, d.ino, &in);
    if (r == 0) {
        hold_dirs(l, rec->parent);
        o = name_op(l->fs, &d, derive_why(&d, &in));
        if (S_ISREG(d.type))
            look_at_content(o, &d, &in);
    } else {
        log_warn("publish", "journal record without a name seq=%" G_GUINT64_FORMAT " name='%s' r=%s", rec->seq,
                 rec->name, err_name(r));
    }
    meta_inode_clear(&in);
    meta_dentry_clear(&d);
    return o;
}

static int load_op(void *ctx, const struct meta_op *rec)
{
    struct load *l = ctx;
    struct op *o = rec->kind == OP_DELETE ? load_delete(l->fs, rec) : load_sync(l, rec);
    if (!o)
        return 0; /* `sluice fsck` reports it */
    o->rec = *rec;
    o->rec.name = g_strdup(rec->name);
    o->rec.key = g_strdup(rec->key);
    o->last_err = rec->err;
    o->place = rec->place;
    o->turn = rec->turn;
    o->closed = rec->place != 0 && !rec->unclosed;
    o->settle = rec->state == OPS_CONFLICT && !pubop_aside(o) && pubop_conflict(o) == CONFLICT_KEEP;
    if (rec->state == OPS_QUEUED || rec->state == OPS_HELD)
        set_delay(l->fs, o);
    pend(l->fs->pub, o, 0);
    return 0;
}

static int load_journal(struct fs *fs)
{
    struct load l = {fs, meta_near_new(fs->meta),
                     g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, (GDestroyNotify)inode_put)};
    mutex_lock(&fs->ns);
    int r = meta_op_each(fs->meta, load_op, &l);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    g_hash_table_unref(l.dirs);
    meta_near_free(l.near);
    return r;
}

int publish_open(struct fs *fs, struct publisher **ret)
{
    struct publisher *p = g_new0(struct publisher, 1);
    p->fs = fs;
    p->sums_delay_ns = SUMS_DELAY_NS;
    p->pending = g_ptr_array_new_with_free_func(change_free);
    p->pending_dels = g_hash_table_new(g_str_hash, g_str_equal);
    queue_init(p);
    fs->pub = p;
    int r = load_journal(fs);
    if (r == 0)
        r = late_load(p);
    if (r < 0) {
        publish_close(p);
        fs->pub = NULL;
        return r;
    }
    cache_on_stale(fs->cache, publish_stale, fs);
    *ret = p;
    return 0;
}

static void *publish_thread(void *arg)
{
    struct publisher *p = arg;
    mutex_lock(&p->mu);
    while (!p->stopping) {
        uint64_t wake = 0;
        if (p->probe_wanted) {
            g_autofree char *key = g_steal_pointer(&p->probe_wanted);
            cond_signal(&p->work); /* another one waits for what is timed meanwhile */
            mutex_unlock(&p->mu);
            int r = publish_probe(p->fs, key);
            mutex_lock(&p->mu);
            if (r < 0)
                log_debug("publish", "the store could not be probed yet r=%s", err_name(r));
            continue;
        }
        struct op *o = queue_pick_locked(p, &wake);
        if (!o) {
            if (wake)
                (void)cond_wait_until(&p->work, &p->mu, wake);
            else
                cond_wait(&p->work, &p->mu);
            continue;
        }
        cond_signal(&p->work); /* what made this one runnable may have made others so */
        mutex_unlock(&p->mu);
        pubop_finish(o, pubop_run(o, false, 0));
        mutex_lock(&p->mu);
    }
    mutex_unlock(&p->mu);
    return NULL;
}

int publish_start(struct publisher *p)
{
    unsigned n = p->fs->cfg->max_uploads + 2;
    p->threads = g_new0(pthread_t, n);
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *name = g_strdup_printf("publish-%u", i);
        int r = thread_start(&p->threads[i], name, publish_thread, p);
        if (r < 0)
            return r;
        p->n_threads++;
    }
    int r = thread_start(&p->sums, "sums", sums_thread, p);
    p->sums_running = r == 0;
    return r < 0 ? r : late_start(p);
}

void publish_interrupt(struct publisher *p)
{
    mutex_lock(&p->mu);
    p->stopping = true;
    cond_broadcast(&p->work);
    cond_broadcast(&p->done);
    cond_broadcast(&p->sums_work);
    late_interrupt_locked(p);
    mutex_unlock(&p->mu);
}

void publish_stop(struct publisher *p)
{
    publish_interrupt(p);
    mutex_lock(&p->mu);
    while (p->n_now > 0)
        cond_wait(&p->done, &p->mu);
    mutex_unlock(&p->mu);
    for (unsigned i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    p->n_threads = 0;
    if (p->sums_running)
        pthread_join(p->sums, NULL);
    p->sums_running = false;
    late_stop(p);
}

void publish_close(struct publisher *p)
{
    if (!p)
        return;
    g_hash_table_unref(p->pending_dels);
    g_ptr_array_unref(p->pending);
    g_free(p->probe_wanted);
    queue_fini(p);
    g_free(p->threads);
    g_free(p);
}
