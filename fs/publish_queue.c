/*
 * The ops in memory and their order.
 *
 * For every directory that has pending work at it or below there is a node with sequences of publishes and of deletes. An op is a member of the node of its directory and of all above.
 * So "everything earlier in my directory is done" is "no other of its node has a turn before mine", the same of what is below it "none there has a place before my seq".
 * An op whose file was never closed since its writer's last flush, a metadata-only op and a marker are members of none: they block nobody. Nor does a delete that is refused, by
 * the store for want of a permission, or because the file is still open and does not fit in here: what is not to be seen is seen longer, which breaks no promise. It stands in a third sequence.
 *
 * Place, turn and seq are one but for a file that was closed and then closed again, renamed or replaced before it was published. Its new op
 *   - is waited for by what was closed above it, or is deleted, since the first close (place);
 *   - waits for all that came below its directory before its last close or rename (seq);
 *   - stands among those of its directory by its last close there, or by when it came there: from somewhere else, or from a name that is held (turn).
 * What is renamed along with a directory stays in the order in which it was closed. So files of one directory never wait for each other in a circle, nor for what is above them. Where an op
 * waits for itself, by way of a delete, a copy, or under --order mount, it gives up its old place (enum late).
 * Copies that a directory's rename asks for share one turn, their wave: they do not wait for each other, nor for what was renamed along with them and comes after them.
 */
#include "links.h"
#include "publish_late.h"

#include <assert.h>

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

static gint by_turn_cmp(gconstpointer a, gconstpointer b, gpointer unused)
{
    const struct op *x = a, *y = b;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* What is loaded or made comes last nearly always. */
static GSequenceIter *insert_sorted(GSequence *seq, struct op *o, GCompareDataFunc cmp)
{
    GSequenceIter *end = g_sequence_get_end_iter(seq);
    bool last = g_sequence_is_empty(seq) || cmp(g_sequence_get(g_sequence_iter_prev(end)), o, NULL) <= 0;
    return last ? g_sequence_append(seq, o) : g_sequence_insert_sorted(seq, o, cmp, NULL);
}

static void dirnode_free(void *arg)
{
    struct dirnode *n = arg;
    g_sequence_free(n->here);
    g_sequence_free(n->again);
    g_sequence_free(n->below);
    g_sequence_free(n->dels);
    g_sequence_free(n->refused);
    g_sequence_free(n->sources);
    g_free(n->prefix);
    g_free(n);
}

struct op *pubop_new(struct publisher *p)
{
    struct op *o = g_new0(struct op, 1);
    o->p = p;
    o->links = g_array_new(FALSE, FALSE, sizeof(struct order_link));
    o->source_links = g_array_new(FALSE, FALSE, sizeof(struct order_link));
    return o;
}

void pubop_free(struct op *o)
{
    meta_op_clear(&o->rec);
    g_array_unref(o->links);
    g_array_unref(o->source_links);
    g_free(o->key);
    g_free(o->source);
    g_free(o->base);
    g_free(o->late_src);
    g_free(o->late_what);
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
    p->by_key = g_hash_table_new(g_str_hash, g_str_equal);
    p->tombs = g_hash_table_new(g_str_hash, g_str_equal);
    p->sources = g_hash_table_new(g_str_hash, g_str_equal);
    p->bases = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_ptr_array_unref);
    p->running_keys = g_hash_table_new(g_str_hash, g_str_equal);
    p->probing = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    p->link_runs = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    p->taken = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    p->running_inos = g_hash_table_new(g_int64_hash, g_int64_equal);
    p->dirs = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, dirnode_free);
    p->recent = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    p->late = late_new();
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
    g_hash_table_unref(p->by_key);
    g_hash_table_unref(p->tombs);
    g_hash_table_unref(p->sources);
    g_hash_table_unref(p->bases);
    g_hash_table_unref(p->running_keys);
    g_hash_table_unref(p->probing);
    g_hash_table_unref(p->link_runs);
    g_hash_table_unref(p->taken);
    g_hash_table_unref(p->running_inos);
    g_hash_table_unref(p->dirs);
    g_hash_table_unref(p->recent);
    late_free(p->late);
    cond_fini(&p->work);
    cond_fini(&p->done);
    cond_fini(&p->sums_work);
    g_queue_clear_full(&p->sums_due, g_free);
    mutex_fini(&p->mu);
}

void queue_wake_locked(struct publisher *p)
{
    p->rest_until_ns = 0;
    p->look_again = true;
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
        n->here = g_sequence_new(NULL);
        n->again = g_sequence_new(NULL);
        n->below = g_sequence_new(NULL);
        n->dels = g_sequence_new(NULL);
        n->refused = g_sequence_new(NULL);
        n->sources = g_sequence_new(NULL);
        g_hash_table_insert(p->dirs, n->prefix, n);
    }
    return n;
}

static void node_put(struct publisher *p, struct dirnode *n)
{
    if (g_sequence_is_empty(n->here) && g_sequence_is_empty(n->again) && g_sequence_is_empty(n->below) &&
        g_sequence_is_empty(n->dels) && g_sequence_is_empty(n->refused) && g_sequence_is_empty(n->sources))
        g_hash_table_remove(p->dirs, n->prefix);
}

/* Length of the directory part of key[0, from): up to its last '/' and with it, 0 for the root. */
static size_t parent_len(const char *key, size_t from)
{
    while (from > 0 && key[from - 1] != '/')
        from--;
    return from;
}

size_t queue_dir_len(const char *key)
{
    size_t len = strlen(key);
    return parent_len(key, len > 0 && key[len - 1] == '/' ? len - 1 : len);
}

/* Calls fn for each directory prefix above key, innermost first, that of its link, or of the mount, last. */
static void each_ancestor(struct publisher *p, const char *key,
                          void (*fn)(struct publisher *p, struct dirnode *n, struct op *o), struct op *o)
{
    size_t len = strlen(key);
    if (len > 0 && key[len - 1] == '/')
        len--;
    do {
        len = parent_len(key, len);
        fn(p, node_get(p, key, len), o);
        if (len > o->link_len)
            len--;
        else
            break;
    } while (true);
}

/* The node of all that is in the same link, or in none. */
static struct dirnode *link_root(struct publisher *p, const struct op *o)
{
    g_autofree char *prefix = g_strndup(o->key, o->link_len);
    return g_hash_table_lookup(p->dirs, prefix);
}

static void link_source(struct publisher *p, struct dirnode *n, struct op *o)
{
    struct order_link l = {n, insert_sorted(n->sources, o, by_seq_cmp)};
    g_array_append_val(o->source_links, l);
}

static void link_to(struct dirnode *n, GSequence *seq, struct op *o, GCompareDataFunc cmp)
{
    struct order_link l = {n, insert_sorted(seq, o, cmp)};
    g_array_append_val(o->links, l);
}

static void link_one(struct publisher *p, struct dirnode *n, struct op *o)
{
    bool own = o->links->len == 0; /* the innermost one comes first */
    if (o->rec.kind == OP_DELETE) {
        link_to(n, o->refused ? n->refused : n->dels, o, by_place_cmp);
    } else if (!own) {
        link_to(n, n->below, o, by_place_cmp);
    } else {
        link_to(n, n->here, o, by_turn_cmp);
        if (o->place < o->turn)
            link_to(n, n->again, o, by_place_cmp);
    }
}

static void unlink_all(struct publisher *p, GArray *links)
{
    for (unsigned i = 0; i < links->len; i++)
        g_sequence_remove(g_array_index(links, struct order_link, i).iter);
    for (unsigned i = 0; i < links->len; i++) {
        struct dirnode *n = g_array_index(links, struct order_link, i).node;
        if (i + 1 == links->len || g_array_index(links, struct order_link, i + 1).node != n)
            node_put(p, n);
    }
    g_array_set_size(links, 0);
}

/* Does the op take part in the order? */
static bool pubop_blocks(const struct op *o)
{
    if (o->rec.kind == OP_DELETE || pubop_aside(o))
        return true;
    return o->why != PUBLISH_META && o->why != PUBLISH_MARKER && (o->closed || o->content != CONTENT_OPEN);
}

static void relink(struct publisher *p, struct op *o)
{
    o->closed |= o->content == CONTENT_SEALED || o->content == CONTENT_CLEAN;
    bool linked = o->links->len > 0, want = pubop_blocks(o) && !o->dropped;
    if (linked && !want)
        unlink_all(p, o->links);
    else if (!linked && want)
        each_ancestor(p, o->key, link_one, o);
}

void queue_set_refused_locked(struct publisher *p, struct op *o, bool refused)
{
    mutex_assert_held(&p->mu);
    if (o->refused == refused || o->dropped)
        return;
    assert(o->rec.kind == OP_DELETE);
    unlink_all(p, o->links);
    o->refused = refused;
    relink(p, o);
    queue_wake_locked(p);
}

bool queue_delete_replaced_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    return g_hash_table_lookup(p->tombs, o->key) != o;
}

void queue_succeed_locked(struct publisher *p, const struct op *old, struct op *next)
{
    mutex_assert_held(&p->mu);
    bool waited_for = old->rec.kind == OP_DELETE || old->closed;
    if (!waited_for || old->links->len == 0)
        return;
    next->closed |= old->closed;
    next->place = next->place ? MIN(next->place, old->place) : old->place;
}

void queue_keep_place_locked(struct publisher *p, const struct op *old, struct op *next, bool came)
{
    mutex_assert_held(&p->mu);
    if (old->links->len == 0)
        return;
    next->closed |= old->closed;
    next->place = old->place;
    next->turn = came ? 0 : old->turn;
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

void pubop_set_base(struct op *o, const char *key)
{
    bool other = o->based && key && !g_str_equal(key, o->key) && g_strcmp0(key, o->source) != 0;
    g_free(o->base);
    o->base = other ? g_strdup(key) : NULL;
}

void queue_rebase_locked(struct publisher *p, uint64_t ino, const char *base)
{
    mutex_assert_held(&p->mu);
    const GPtrArray *a = ops_of_ino(p, ino, false);
    for (unsigned i = 0; a && i < a->len; i++) {
        struct op *o = a->pdata[i];
        if (o->base)
            base_del(p, o);
        pubop_set_base(o, base);
        if (o->base)
            base_add(p, o);
    }
    queue_wake_locked(p);
}

/* Is its content settled? Of one that is quarantined, the run makes it parked. */
static bool pubop_sealed(const struct op *o)
{
    return o->rec.kind == OP_DELETE || !S_ISREG(o->type) || o->content == CONTENT_SEALED ||
           o->content == CONTENT_CLEAN || o->content == CONTENT_QUARANTINED;
}

bool pubop_wants_run(const struct op *o, uint64_t now, uint64_t *wake)
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

/* The op came, or its content is another: that lets nobody run but it, or (a place in the order that is earlier, a circle) who can wait for the next look. */
static void wake_for(struct publisher *p, const struct op *o) REQUIRES(p->mu)
{
    uint64_t wake = 0;
    bool wants = !queue_busy_locked(p, o) && pubop_wants_run(o, clock_mono_ns(), &wake);
    if (p->rest_until_ns && wants && late_until_locked(p, o) == 0 && queue_eligible_locked(p, o))
        p->rest_until_ns = 0;
    p->look_again |= wants || wake || p->rest_until_ns == 0;
    cond_signal(&p->work);
    cond_broadcast(&p->done);
}

void queue_set_content_locked(struct publisher *p, struct op *o, uint32_t content)
{
    mutex_assert_held(&p->mu);
    bool linked = o->links->len > 0;
    o->content = content;
    relink(p, o);
    if (linked && o->links->len == 0)
        queue_wake_locked(p);
    else
        wake_for(p, o);
}

void queue_insert_locked(struct publisher *p, struct op *o)
{
    mutex_assert_held(&p->mu);
    if (!o->place)
        o->place = o->rec.seq;
    if (!o->turn)
        o->turn = o->rec.wave ? o->rec.wave : o->rec.seq;
    o->link_len = links_prefix_len(p->fs, o->key);
    o->all_iter = insert_sorted(p->all, o, by_seq_cmp);
    g_hash_table_insert(p->by_seq, &o->rec.seq, o);
    if (o->rec.kind == OP_DELETE)
        g_hash_table_replace(p->tombs, o->key, o); /* one that runs may be there: the key must outlive it */
    else
        g_ptr_array_add(ops_of_ino(p, o->ino, true), o);
    if (o->rec.kind == OP_SYNC)
        g_hash_table_replace(p->by_key, o->key, o);
    if (o->source) {
        g_hash_table_replace(p->sources, o->source, o);
        each_ancestor(p, o->source, link_source, o);
    }
    if (o->base)
        base_add(p, o);
    relink(p, o);
    wake_for(p, o);
}

void queue_remove_locked(struct publisher *p, struct op *o)
{
    mutex_assert_held(&p->mu);
    assert(!o->dropped);
    o->dropped = true;
    bool in_the_way = o->links->len > 0 || o->source || o->base || o->running || o->rec.kind == OP_DELETE;
    unlink_all(p, o->links);
    g_sequence_remove(o->all_iter);
    g_hash_table_remove(p->by_seq, &o->rec.seq);
    if (o->rec.kind == OP_DELETE && g_hash_table_lookup(p->tombs, o->key) == o)
        g_hash_table_remove(p->tombs, o->key);
    if (o->rec.kind == OP_SYNC) {
        GPtrArray *a = ops_of_ino(p, o->ino, false);
        g_ptr_array_remove(a, o);
        if (a->len == 0)
            g_hash_table_remove(p->by_ino, &o->ino);
        if (g_hash_table_lookup(p->by_key, o->key) == o)
            g_hash_table_remove(p->by_key, o->key);
    }
    if (o->source) {
        if (g_hash_table_lookup(p->sources, o->source) == o)
            g_hash_table_remove(p->sources, o->source);
        unlink_all(p, o->source_links);
    }
    if (o->base)
        base_del(p, o);
    if (in_the_way)
        queue_wake_locked(p);
    else
        cond_broadcast(&p->done);
    if (!o->running)
        pubop_free(o);
}

/* ---- order ---- */

struct op *queue_first(GSequence *seq)
{
    return g_sequence_is_empty(seq) ? NULL : g_sequence_get(g_sequence_get_begin_iter(seq));
}

/* What is below its directory o waits for if its place is before this. All that is below copies of a directory's rename was renamed along. */
static uint64_t below_limit(const struct op *o)
{
    if (o->order == ORDER_MOUNT)
        return o->turn;
    return o->rec.wave ? 0 : o->rec.seq;
}

/* Does c wait for o, of which it is not, because of the order alone? */
static bool waits_itself(const struct op *c, const struct op *o)
{
    if (c->order == ORDER_MOUNT)
        return o->place < c->turn;
    size_t len = queue_dir_len(c->key);
    if (c->order == ORDER_NONE || strncmp(c->key, o->key, len) != 0)
        return false;
    return queue_dir_len(o->key) == len ? o->turn < c->turn : o->place < below_limit(c);
}

/* The place of the first publish of the node. */
static uint64_t first_place(const struct dirnode *n)
{
    GSequence *const all[] = {n->again, n->here, n->below};
    uint64_t first = UINT64_MAX;
    for (unsigned i = 0; i < G_N_ELEMENTS(all); i++) {
        const struct op *o = queue_first(all[i]);
        first = o ? MIN(first, o->place) : first;
    }
    return first;
}

/* Calls fn for each name above key, "a" and "a/b" of "a/b/c", the first one first, until it returns an op. */
static struct op *each_name_above(struct publisher *p, const char *key,
                                  struct op *(*fn)(struct publisher *p, const char *name))
{
    g_autofree char *name = g_strdup(key);
    struct op *found = NULL;
    for (char *slash = strchr(name, '/'); slash && !found; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        found = fn(p, name);
        *slash = '/';
    }
    return found;
}

static struct dirnode *node_below(struct publisher *p, const char *key)
{
    g_autofree char *prefix = g_strconcat(key, "/", NULL);
    return g_hash_table_lookup(p->dirs, prefix);
}

static struct op *ordered_at(struct publisher *p, const char *key)
{
    struct op *o = g_hash_table_lookup(p->by_key, key);
    return o && o->links->len > 0 ? o : NULL;
}

/* Does a name beside it, above or below, wait for the delete? */
static bool keeps_a_name(struct publisher *p, const struct op *o)
{
    const struct dirnode *n = node_below(p, o->key);
    return each_name_above(p, o->key, ordered_at) || (n && first_place(n) != UINT64_MAX);
}

/* Has o, which waits for what comes before limit, not to wait for c though that does? Deletes do not let go what comes before themselves but for a name that they are in the way of. */
static bool is_let_go(const struct op *c, const struct op *o, uint64_t limit)
{
    if (c->late == LATE_NOT || c->rec.seq < limit)
        return false;
    if (o->rec.kind == OP_DELETE)
        return c->late == LATE_ALL && keeps_a_name(o->p, o);
    return c->late == LATE_ALL || waits_itself(c, o);
}

static uint64_t place_of(const struct op *o)
{
    return o->place;
}

static uint64_t turn_of(const struct op *o)
{
    return o->turn;
}

/* The first other op of the sequence, which is in the order of what `at` gives, that is before the limit, or NULL. */
static struct op *older(GSequence *seq, uint64_t (*at)(const struct op *o), const struct op *o, uint64_t limit)
{
    GSequenceIter *it = g_sequence_get_begin_iter(seq);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        struct op *c = g_sequence_get(it);
        if (at(c) >= limit)
            return NULL;
        if (c != o && !is_let_go(c, o, limit))
            return c;
    }
    return NULL;
}

/* The same of all publishes of the node, by place. */
static struct op *older_pub(const struct dirnode *n, const struct op *o, uint64_t limit)
{
    struct op *b = older(n->again, place_of, o, limit);
    b = b ? b : older(n->here, turn_of, o, limit);
    return b ? b : older(n->below, place_of, o, limit);
}

/* What a delete waits for has a place before this: before itself, and before what waits for it because of its name. See leaver_in_the_way(). */
static uint64_t delete_limit(struct publisher *p, const struct op *o)
{
    uint64_t limit = o->rec.seq;
    const struct op *above = each_name_above(p, o->key, ordered_at);
    const struct dirnode *n = node_below(p, o->key);
    limit = above ? MIN(limit, above->place) : limit;
    return n ? MIN(limit, first_place(n)) : limit;
}

/* Of what it may wait for; NULL: there is nothing. */
static struct dirnode *order_node(struct publisher *p, const struct op *o)
{
    if (o->rec.kind == OP_DELETE || o->order != ORDER_ANCESTOR)
        return link_root(p, o);
    g_autofree char *prefix = g_strndup(o->key, queue_dir_len(o->key));
    return g_hash_table_lookup(p->dirs, prefix);
}

struct op *queue_order_blocker_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    if (o->order == ORDER_NONE || o->hasty || o->why == PUBLISH_META || o->why == PUBLISH_MARKER)
        return NULL;
    struct dirnode *n = order_node(p, o);
    if (o->rec.kind == OP_DELETE)
        return n && first_place(n) != UINT64_MAX ? older_pub(n, o, delete_limit(p, o)) : NULL;
    if (!n)
        return NULL;
    struct op *here = older(n->here, turn_of, o, o->turn);
    struct op *below = older(n->below, place_of, o, below_limit(o));
    struct op *b = here && (!below || here->place < below->place) ? here : below;
    /* A delete that waits for what this one succeeds waits for this one. */
    return b || o->past_deletes ? b : older(n->dels, place_of, o, o->place);
}

static struct op *last_of(GSequence *seq)
{
    return g_sequence_is_empty(seq) ? NULL : g_sequence_get(g_sequence_iter_prev(g_sequence_get_end_iter(seq)));
}

bool queue_is_last_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    const struct dirnode *n = o->order == ORDER_NONE ? NULL : order_node(p, o);
    const struct op *here = n ? last_of(n->here) : NULL, *below = n ? last_of(n->below) : NULL;
    return !(here && here->turn > o->turn) && !(below && below->place > below_limit(o));
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

static bool one_name(const struct publisher *p, const char *key)
{
    return objstore_limits_of(p->fs->store, key).one_name;
}

/* What takes away the object at key: a delete, or a move. A delete that is refused counts only where nothing can come before it. */
static struct op *leaver_of(struct publisher *p, const char *key)
{
    struct op *o = g_hash_table_lookup(p->tombs, key);
    return o && (!o->refused || one_name(p, key)) ? o : g_hash_table_lookup(p->sources, key);
}

/* The same of anything below the directory. */
static struct op *leaver_below(struct publisher *p, const struct dirnode *n)
{
    struct op *o = queue_first(n->dels);
    o = o ? o : queue_first(n->sources);
    return o || !one_name(p, n->prefix) ? o : queue_first(n->refused);
}

/*
 * `a` and `a/b` are never names at the same time, nor are they to be objects: a store of files cannot hold both, and a listing of any store would take the directory for
 * what came later. So what leaves a name above o's, or one below it, goes first. It may be o itself, moved to below or above its old name.
 */
static struct op *leaver_in_the_way(struct publisher *p, const struct op *o)
{
    bool none = g_hash_table_size(p->tombs) == 0 && g_hash_table_size(p->sources) == 0;
    if (none || o->hasty || o->rec.kind == OP_DELETE)
        return NULL;
    struct op *l = each_name_above(p, o->key, leaver_of);
    if (l || S_ISDIR(o->type))
        return l;
    g_autofree char *marker = g_strconcat(o->key, "/", NULL);
    const struct dirnode *n = g_hash_table_lookup(p->dirs, marker);
    l = leaver_of(p, marker);
    return l || !n ? l : leaver_below(p, n);
}

struct op *queue_keeper_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    struct op *src = copier_of(p, o);
    return src ? src : leaver_in_the_way(p, o);
}

struct op *queue_blocker_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    struct op *b = queue_order_blocker_locked(p, o);
    if (b)
        return b;
    struct op *src = queue_keeper_locked(p, o);
    if (src)
        return src;
    struct op *run = g_hash_table_lookup(p->running_keys, o->key);
    return run && run != o ? run : NULL;
}

bool queue_waits_for_copy_locked(struct publisher *p, const struct op *o, const struct op *src)
{
    mutex_assert_held(&p->mu);
    return !queue_order_blocker_locked(p, o) && queue_keeper_locked(p, o) == src;
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

bool queue_busy_locked(struct publisher *p, const struct op *o)
{
    mutex_assert_held(&p->mu);
    return o->running || g_hash_table_contains(p->running_keys, o->key) ||
           (o->rec.kind == OP_SYNC && g_hash_table_contains(p->running_inos, &o->ino));
}

/* Counts what runs in a link. */
static void count_run(struct publisher *p, const struct op *o, int by)
{
    if (!o->link_len)
        return;
    char *dir = g_strndup(o->key, o->link_len);
    int n = GPOINTER_TO_INT(g_hash_table_lookup(p->link_runs, dir)) + by;
    if (n > 0)
        g_hash_table_insert(p->link_runs, dir, GINT_TO_POINTER(n));
    else
        (void)g_hash_table_remove(p->link_runs, dir);
    if (n <= 0)
        g_free(dir);
}

GSequenceIter *queue_after_locked(struct publisher *p, uint64_t seq)
{
    mutex_assert_held(&p->mu);
    struct op key = {.rec.seq = seq};
    return g_sequence_search(p->all, &key, by_seq_cmp, NULL);
}

void queue_take_locked(struct publisher *p, struct op *o)
{
    assert(!queue_busy_locked(p, o));
    o->running = true;
    __atomic_store_n(&o->progress_bytes, 0, __ATOMIC_RELAXED); /* of a try before */
    o->given_up = o->whole = false;
    count_run(p, o, 1);
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
    count_run(p, o, -1);
    queue_wake_locked(p);
}

bool queue_prefix_leaving_locked(struct publisher *p, const char *prefix)
{
    struct dirnode *n = g_hash_table_lookup(p->dirs, prefix);
    return n && !(g_sequence_is_empty(n->sources) && g_sequence_is_empty(n->dels) && g_sequence_is_empty(n->refused));
}
