/*
 * The ops in memory and their order.
 *
 * For every directory that has pending work at it or below there is a node with two sequences by place: publishes and deletes. An op is a member of the node
 * of its directory and of all above. So "everything earlier in my directory or below is done" is "no other of my directory's node has a place before my seq".
 * An op whose file was never closed since its writer's last flush, a metadata-only op and a marker are members of none: they block nobody.
 *
 * Place and seq are one but for a file that was closed and then changed before it was published: its new op waits for all that was closed before the last close
 * (seq), and is waited for by all that was closed after the first (place). Where two such waits meet, the later closed one gives up its old place.
 */
#include "publish_internal.h"

#include <assert.h>

#define SCAN_LIMIT    1000
#define RECENT_MAX_NS (600 * NS_PER_S)
#define CIRCLE_MAX    64 /* ops that wait for each other in a circle, at most looked for */

static gint by_seq_cmp(gconstpointer a, gconstpointer b, gpointer unused)
{
    const struct op *x = a, *y = b;
    return x->rec.seq < y->rec.seq ? -1 : x->rec.seq > y->rec.seq;
}

static gint by_place_cmp(gconstpointer a, gconstpointer b, gpointer unused)
{
    const struct op *x = a, *y = b;
    return x->place < y->place ? -1 : x->place > y->place;
}

static void dirnode_free(void *arg)
{
    struct dirnode *n = arg;
    g_sequence_free(n->pubs);
    g_sequence_free(n->dels);
    g_free(n->prefix);
    g_free(n);
}

struct op *pubop_new(struct publisher *p)
{
    struct op *o = g_new0(struct op, 1);
    o->p = p;
    o->links = g_array_new(FALSE, FALSE, sizeof(struct order_link));
    return o;
}

void pubop_free(struct op *o)
{
    meta_op_clear(&o->rec);
    g_array_unref(o->links);
    g_free(o->key);
    g_free(o->source);
    g_free(o->base);
    g_free(o);
}

void queue_init(struct publisher *p)
{
    mutex_init(&p->mu, LOCK_PUBLISH);
    cond_init(&p->work);
    cond_init(&p->done);
    cond_init(&p->sums_work);
    g_queue_init(&p->sums_due);
    p->all = g_sequence_new(NULL);
    p->by_seq = g_hash_table_new(g_int64_hash, g_int64_equal);
    p->by_ino = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, (GDestroyNotify)g_ptr_array_unref);
    p->tombs = g_hash_table_new(g_str_hash, g_str_equal);
    p->sources = g_hash_table_new(g_str_hash, g_str_equal);
    p->bases = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_ptr_array_unref);
    p->running_keys = g_hash_table_new(g_str_hash, g_str_equal);
    p->running_inos = g_hash_table_new(g_int64_hash, g_int64_equal);
    p->dirs = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, dirnode_free);
    p->recent = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
}

void queue_fini(struct publisher *p)
{
    GHashTableIter it;
    struct op *o;
    g_hash_table_iter_init(&it, p->by_seq);
    while (g_hash_table_iter_next(&it, NULL, (void **)&o))
        pubop_free(o);
    g_sequence_free(p->all);
    g_hash_table_unref(p->by_seq);
    g_hash_table_unref(p->by_ino);
    g_hash_table_unref(p->tombs);
    g_hash_table_unref(p->sources);
    g_hash_table_unref(p->bases);
    g_hash_table_unref(p->running_keys);
    g_hash_table_unref(p->running_inos);
    g_hash_table_unref(p->dirs);
    g_hash_table_unref(p->recent);
    cond_fini(&p->work);
    cond_fini(&p->done);
    cond_fini(&p->sums_work);
    g_queue_clear_full(&p->sums_due, g_free);
    mutex_fini(&p->mu);
}

void queue_wake_locked(struct publisher *p)
{
    cond_signal(&p->work); /* one looks; if it finds an op it wakes the next */
    cond_broadcast(&p->done);
}

/* ---- directory nodes ---- */

static struct dirnode *node_get(struct publisher *p, const char *key, size_t len)
{
    g_autofree char *prefix = g_strndup(key, len);
    struct dirnode *n = g_hash_table_lookup(p->dirs, prefix);
    if (!n) {
        n = g_new0(struct dirnode, 1);
        n->prefix = g_steal_pointer(&prefix);
        n->pubs = g_sequence_new(NULL);
        n->dels = g_sequence_new(NULL);
        g_hash_table_insert(p->dirs, n->prefix, n);
    }
    return n;
}

static void node_put(struct publisher *p, struct dirnode *n)
{
    if (g_sequence_is_empty(n->pubs) && g_sequence_is_empty(n->dels) && n->n_sources == 0)
        g_hash_table_remove(p->dirs, n->prefix);
}

/* Length of the directory part of key[0, from): up to its last '/' and with it, 0 for the root. */
static size_t parent_len(const char *key, size_t from)
{
    while (from > 0 && key[from - 1] != '/')
        from--;
    return from;
}

/* Calls fn for each directory prefix above key, innermost first, the root last. */
static void each_ancestor(struct publisher *p, const char *key,
                          void (*fn)(struct publisher *p, struct dirnode *n, struct op *o), struct op *o)
{
    size_t len = strlen(key);
    if (len > 0 && key[len - 1] == '/')
        len--;
    do {
        len = parent_len(key, len);
        fn(p, node_get(p, key, len), o);
        if (len > 0)
            len--;
        else
            break;
    } while (true);
}

static void source_add(struct publisher *p, struct dirnode *n, struct op *o)
{
    n->n_sources++;
}

static void source_del(struct publisher *p, struct dirnode *n, struct op *o)
{
    n->n_sources--;
    node_put(p, n);
}

static void link_one(struct publisher *p, struct dirnode *n, struct op *o)
{
    GSequence *seq = o->rec.kind == OP_DELETE ? n->dels : n->pubs;
    struct order_link l = {n, g_sequence_insert_sorted(seq, o, by_place_cmp, NULL)};
    g_array_append_val(o->links, l);
}

static void unlink_all(struct publisher *p, struct op *o)
{
    for (unsigned i = 0; i < o->links->len; i++) {
        struct order_link *l = &g_array_index(o->links, struct order_link, i);
        g_sequence_remove(l->iter);
        node_put(p, l->node);
    }
    g_array_set_size(o->links, 0);
}

/* Does the op take part in the order? */
static bool pubop_blocks(const struct op *o)
{
    if (o->rec.kind == OP_DELETE || pubop_aside(o))
        return true;
    return o->why != PUBLISH_META && o->why != PUBLISH_MARKER && (o->closed || o->content != CONTENT_OPEN);
}

void queue_relink_locked(struct publisher *p, struct op *o)
{
    mutex_assert_held(&p->mu);
    o->closed |= o->content == CONTENT_SEALED || o->content == CONTENT_CLEAN;
    bool linked = o->links->len > 0, want = pubop_blocks(o) && !o->dropped;
    if (linked && !want)
        unlink_all(p, o);
    else if (!linked && want)
        each_ancestor(p, o->key, link_one, o);
}

void queue_succeed_locked(struct publisher *p, const struct op *old, struct op *next)
{
    mutex_assert_held(&p->mu);
    if (!old->closed || old->links->len == 0)
        return;
    next->closed = true;
    next->place = old->place;
}

/* ---- insert, remove ---- */

static GPtrArray *ops_of_ino(struct publisher *p, uint64_t ino, bool make)
{
    GPtrArray *a = g_hash_table_lookup(p->by_ino, &ino);
    if (!a && make) {
        a = g_ptr_array_new();
        uint64_t *key = g_new(uint64_t, 1);
        *key = ino;
        g_hash_table_insert(p->by_ino, key, a);
    }
    return a;
}

static void base_add(struct publisher *p, struct op *o)
{
    GPtrArray *a = g_hash_table_lookup(p->bases, o->base);
    if (!a)
        g_hash_table_insert(p->bases, g_strdup(o->base), a = g_ptr_array_new());
    g_ptr_array_add(a, o);
}

static void base_del(struct publisher *p, struct op *o)
{
    GPtrArray *a = g_hash_table_lookup(p->bases, o->base);
    g_ptr_array_remove(a, o);
    if (a->len == 0)
        g_hash_table_remove(p->bases, o->base);
}

void queue_insert_locked(struct publisher *p, struct op *o)
{
    mutex_assert_held(&p->mu);
    if (!o->place)
        o->place = o->rec.seq;
    o->all_iter = g_sequence_insert_sorted(p->all, o, by_seq_cmp, NULL);
    g_hash_table_insert(p->by_seq, &o->rec.seq, o);
    if (o->rec.kind == OP_DELETE)
        g_hash_table_replace(p->tombs, o->key, o); /* one that runs may be there: the key must outlive it */
    else
        g_ptr_array_add(ops_of_ino(p, o->ino, true), o);
    if (o->source) {
        g_hash_table_replace(p->sources, o->source, o);
        each_ancestor(p, o->source, source_add, o);
    }
    if (o->base)
        base_add(p, o);
    queue_relink_locked(p, o);
    queue_wake_locked(p);
}

void queue_remove_locked(struct publisher *p, struct op *o)
{
    mutex_assert_held(&p->mu);
    assert(!o->dropped);
    o->dropped = true;
    unlink_all(p, o);
    g_sequence_remove(o->all_iter);
    g_hash_table_remove(p->by_seq, &o->rec.seq);
    if (o->rec.kind == OP_DELETE && g_hash_table_lookup(p->tombs, o->key) == o)
        g_hash_table_remove(p->tombs, o->key);
    if (o->rec.kind == OP_SYNC) {
        GPtrArray *a = ops_of_ino(p, o->ino, false);
        g_ptr_array_remove(a, o);
        if (a->len == 0)
            g_hash_table_remove(p->by_ino, &o->ino);
    }
    if (o->source) {
        if (g_hash_table_lookup(p->sources, o->source) == o)
            g_hash_table_remove(p->sources, o->source);
        each_ancestor(p, o->source, source_del, o);
    }
    if (o->base)
        base_del(p, o);
    queue_wake_locked(p);
    if (!o->running)
        pubop_free(o);
}

/* ---- order ---- */

static struct op *first_of(GSequence *seq)
{
    return g_sequence_is_empty(seq) ? NULL : g_sequence_get(g_sequence_get_begin_iter(seq));
}

/* The first other op of the sequence whose place is before this one, or NULL. Deletes see no op as late. */
static struct op *older(GSequence *seq, const struct op *o, uint64_t place)
{
    GSequenceIter *it = g_sequence_get_begin_iter(seq);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        struct op *c = g_sequence_get(it);
        if (c->place >= place)
            return NULL;
        if (c != o && !(c->late && o->rec.kind == OP_SYNC && c->rec.seq >= place))
            return c;
    }
    return NULL;
}

static struct op *order_blocker(struct publisher *p, const struct op *o)
{
    if (p->fs->cfg->order == ORDER_NONE || o->hasty || o->why == PUBLISH_META || o->why == PUBLISH_MARKER)
        return NULL;
    struct dirnode *root = g_hash_table_lookup(p->dirs, "");
    struct op *b = NULL;
    if (o->rec.kind == OP_DELETE)
        return root ? older(root->pubs, o, o->rec.seq) : NULL;
    struct dirnode *n = root;
    if (p->fs->cfg->order == ORDER_ANCESTOR) {
        size_t len = strlen(o->key);
        g_autofree char *prefix =
            g_strndup(o->key, parent_len(o->key, len > 0 && o->key[len - 1] == '/' ? len - 1 : len));
        n = g_hash_table_lookup(p->dirs, prefix);
    }
    if (n)
        b = older(n->pubs, o, o->rec.seq);
    /* A delete that waits for what this one succeeds waits for this one. */
    return b ? b : n && !o->past_deletes ? older(n->dels, o, o->place) : NULL;
}

/* Another op that copies from what this one would overwrite or delete; names of one file do not keep each other. */
static struct op *copier_of(struct publisher *p, const struct op *o)
{
    struct op *src = g_hash_table_lookup(p->sources, o->key);
    if (src && src != o)
        return src;
    GPtrArray *a = g_hash_table_lookup(p->bases, o->key);
    for (unsigned i = 0; a && i < a->len; i++) {
        struct op *c = a->pdata[i];
        if (c->ino != o->ino)
            return c;
    }
    return NULL;
}

struct op *queue_blocker_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    struct op *b = order_blocker(p, o);
    if (b)
        return b;
    struct op *src = copier_of(p, o);
    if (src)
        return src;
    struct op *run = g_hash_table_lookup(p->running_keys, o->key);
    return run && run != o ? run : NULL;
}

bool queue_waits_for_copy_locked(struct publisher *p, const struct op *o, const struct op *src)
{
    mutex_assert_held(&p->mu);
    return !order_blocker(p, o) && copier_of(p, o) == src;
}

bool queue_key_busy_locked(struct publisher *p, const char *key)
{
    mutex_assert_held(&p->mu);
    return g_hash_table_contains(p->running_keys, key) || g_hash_table_contains(p->sources, key) ||
           g_hash_table_contains(p->tombs, key);
}

bool queue_eligible_locked(struct publisher *p, const struct op *o)
{
    return queue_blocker_locked(p, o) == NULL;
}

/* Is its content settled? Of one that is quarantined, the run makes it parked. */
static bool pubop_sealed(const struct op *o)
{
    return o->rec.kind == OP_DELETE || !S_ISREG(o->type) || o->content == CONTENT_SEALED ||
           o->content == CONTENT_CLEAN || o->content == CONTENT_QUARANTINED;
}

/* Could run but for the order; notes when a timed one may. */
static bool pubop_wants_run(const struct op *o, uint64_t now, uint64_t *wake)
{
    if (o->running || !pubop_sealed(o) || o->rec.state == OPS_PARKED || (o->rec.state == OPS_CONFLICT && !o->settle))
        return false;
    if (o->not_before_ns > now) {
        if (*wake == 0 || o->not_before_ns < *wake)
            *wake = o->not_before_ns;
        return false;
    }
    return true;
}

static bool pubop_large(const struct op *o)
{
    return o->rec.kind == OP_SYNC && S_ISREG(o->type) && o->bytes > o->p->fs->cfg->part_size &&
           o->content == CONTENT_SEALED;
}

bool queue_busy_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    return o->running || g_hash_table_contains(p->running_keys, o->key) ||
           (o->rec.kind == OP_SYNC && g_hash_table_contains(p->running_inos, &o->ino));
}

void queue_take_locked(struct publisher *p, struct op *o)
{
    assert(!queue_busy_locked(p, o));
    o->running = true;
    g_hash_table_insert(p->running_keys, o->key, o);
    if (o->rec.kind == OP_SYNC)
        g_hash_table_insert(p->running_inos, &o->ino, o);
}

void queue_untake_locked(struct publisher *p, struct op *o)
{
    mutex_assert_held(&p->mu);
    g_hash_table_remove(p->running_keys, o->key);
    if (o->rec.kind == OP_SYNC)
        g_hash_table_remove(p->running_inos, &o->ino);
    o->running = false;
    queue_wake_locked(p);
}

/* Will the op, which another waits for, not run for long, or not before that other? */
static bool stands_in_the_way(struct publisher *p, const struct op *src, const struct op *o, uint64_t now)
    REQUIRES(p->mu)
{
    if (src->content == CONTENT_OPEN || (src->rec.state == OPS_HELD && src->not_before_ns > now))
        return true;
    return src->rec.seq > o->rec.seq && !queue_eligible_locked(p, src);
}

/* The op that copies from what o, whose turn it is, would overwrite, if it has to do without that object. A copy that is being made is waited for. */
static struct op *find_tangle(struct publisher *p, const struct op *o, uint64_t now, uint64_t *wake) REQUIRES(p->mu)
{
    struct op *src = copier_of(p, o);
    if (!src || (src->base && src->content == CONTENT_OPEN) || src->hasty || src->rec.state == OPS_PARKED ||
        src->rec.state == OPS_CONFLICT || queue_busy_locked(p, src) || order_blocker(p, o) ||
        !stands_in_the_way(p, src, o, now))
        return NULL;
    if (src->failures > 0 && src->not_before_ns > now) {
        *wake = *wake == 0 ? src->not_before_ns : MIN(*wake, src->not_before_ns);
        return NULL;
    }
    src->untangle = true;
    return src;
}

/* Heads of directories whose turn it may be though they lie behind a long blocked stretch of the journal. */
static struct op *pick_from_dirs(struct publisher *p, uint64_t now, uint64_t *wake) REQUIRES(p->mu)
{
    GHashTableIter it;
    struct dirnode *n;
    g_hash_table_iter_init(&it, p->dirs);
    while (g_hash_table_iter_next(&it, NULL, (void **)&n)) {
        struct op *o = first_of(n->pubs);
        if (o && !queue_busy_locked(p, o) && pubop_wants_run(o, now, wake) && queue_eligible_locked(p, o))
            return o;
    }
    return NULL;
}

static bool waits_for_itself(struct publisher *p, const struct op *o) REQUIRES(p->mu)
{
    const struct op *b = queue_blocker_locked(p, o);
    for (unsigned n = 0; b && b != o && n < CIRCLE_MAX; n++)
        b = queue_blocker_locked(p, b);
    return b == o;
}

/* One that stands at an earlier place than its seq stands there for deletes only from now on. */
static bool make_late(struct publisher *p, struct op *o) REQUIRES(p->mu)
{
    bool can = o->place != o->rec.seq && !o->late && o->links->len > 0;
    o->late |= can && waits_for_itself(p, o);
    return can && o->late;
}

/* A file appears before something older is deleted. */
static bool let_past_deletes(struct publisher *p, struct op *o) REQUIRES(p->mu)
{
    const struct op *b = o->rec.kind == OP_SYNC && !o->past_deletes ? order_blocker(p, o) : NULL;
    bool can = b && b->rec.kind == OP_DELETE;
    o->past_deletes |= can && waits_for_itself(p, o);
    return can && o->past_deletes;
}

/*
 * True if ops waited for each other, as none do whose place is their seq, and now do no more. What a delete waits for stays: an object that may still be
 * named by a marker is the last thing to go.
 */
static bool break_circle(struct publisher *p) REQUIRES(p->mu)
{
    static bool (*const ways[])(struct publisher * p, struct op * o) = {make_late, let_past_deletes};
    for (unsigned i = 0; i < G_N_ELEMENTS(ways); i++) {
        unsigned n = 0;
        GSequenceIter *it = g_sequence_get_begin_iter(p->all);
        for (; !g_sequence_iter_is_end(it) && n < SCAN_LIMIT; it = g_sequence_iter_next(it), n++)
            if (ways[i](p, g_sequence_get(it)))
                return true;
    }
    return false;
}

struct op *queue_pick_locked(struct publisher *p, uint64_t *ret_wake_ns)
{
    mutex_assert_held(&p->mu);
    uint64_t now = clock_mono_ns(), wake = 0;
    struct op *stage = NULL;
    unsigned n = 0;
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !g_sequence_iter_is_end(it) && n < SCAN_LIMIT; it = g_sequence_iter_next(it)) {
        struct op *o = g_sequence_get(it);
        if (queue_busy_locked(p, o) || !pubop_wants_run(o, now, &wake))
            continue;
        n++; /* only of those that wait for others: what follows costs something */
        if (queue_eligible_locked(p, o)) {
            queue_take_locked(p, o);
            return o;
        }
        struct op *tangle = find_tangle(p, o, now, &wake);
        if (tangle) {
            queue_take_locked(p, tangle);
            return tangle;
        }
        if (!stage && !o->staged && pubop_large(o))
            stage = o;
    }
    struct op *o = n == SCAN_LIMIT ? pick_from_dirs(p, now, &wake) : NULL;
    o = o ? o : stage;
    if (!o && break_circle(p))
        return queue_pick_locked(p, ret_wake_ns);
    if (o)
        queue_take_locked(p, o);
    else
        *ret_wake_ns = wake;
    return o;
}

/* ---- what is on its way out ---- */

static void note_recent(struct publisher *p, char *key, const struct recent *note)
{
    g_hash_table_replace(p->recent, key, g_memdup2(note, sizeof(*note)));
}

/* No listing runs that long; a later one sees the store as it is. */
static gboolean is_old(void *key, void *value, void *now)
{
    return *(uint64_t *)now - ((struct recent *)value)->at_ns > RECENT_MAX_NS;
}

void queue_note_deleted_locked(struct publisher *p, const char *key)
{
    mutex_assert_held(&p->mu);
    uint64_t now = clock_mono_ns();
    struct recent note = {.stamp = meta_next_seq(p->fs->meta), .at_ns = now};
    if (now - p->recent_pruned_ns > RECENT_MAX_NS) {
        (void)g_hash_table_foreach_remove(p->recent, is_old, &now);
        p->recent_pruned_ns = now;
    }
    note_recent(p, g_strdup(key), &note);
    for (size_t len = strlen(key); len > 0;) {
        len = parent_len(key, len - 1);
        if (len > 0)
            note_recent(p, g_strndup(key, len), &note);
    }
}

bool queue_prefix_leaving_locked(struct publisher *p, const char *prefix)
{
    struct dirnode *n = g_hash_table_lookup(p->dirs, prefix);
    return n && (n->n_sources > 0 || !g_sequence_is_empty(n->dels));
}
