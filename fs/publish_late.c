/* See publish_late.h. In memory only keys that rest are known. */
#include "publish_late.h"

#include "base/clock.h"
#include "base/log.h"

#define PREFIX  "late/"
#define KEPT_NS ((int64_t)(24 * 3600 * NS_PER_S)) /* so much later no clock that was set makes a record count */
#define NOBODY  0                                 /* no op has this seq */
#define WRITE   "write"
#define DELETE  "delete"
/* After a round in which not all keys were answered for: doubled from one to the next. */
#define PAUSE_NS     (100 * NS_PER_MS)
#define PAUSE_MAX_NS (10 * NS_PER_S)

struct rest {
    uint64_t until_ns; /* monotonic clock */
    int64_t until_wall_ns;
    bool
        heard; /* the store answered since, from which on it counts: what hangs may carry out old and new requests in any order when it goes on */
    bool del;  /* deletes may go, else the op of that seq may */
    uint64_t seq; /* with that */
    char *what;   /* owned */
};

/* Guarded by the publisher's mu. */
struct late_keys {
    GHashTable *keys; /* those that rest -> struct rest */
    GHashTable *srcs; /* those that are copied from now -> by how many ops */
    struct cond work; /* a key came that nothing was heard of, or the publisher stops */
    pthread_t thread; /* asks for those, all of them: else each would rest only from when its turn came */
    bool running;
};

static void rest_free(void *p)
{
    struct rest *rest = p;
    g_free(rest->what);
    g_free(rest);
}

struct late_keys *late_new(void)
{
    struct late_keys *l = g_new0(struct late_keys, 1);
    l->keys = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, rest_free);
    l->srcs = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    cond_init(&l->work);
    return l;
}

void late_free(struct late_keys *l)
{
    g_hash_table_unref(l->keys);
    g_hash_table_unref(l->srcs);
    cond_fini(&l->work);
    g_free(l);
}

static bool is_write(const struct op *o)
{
    return o->rec.kind != OP_DELETE;
}

static bool matters(const struct op *o)
{
    return objstore_limits_of(o->p->fs->store, o->key).late && o->p->fs->cfg->late_requests_ns > 0;
}

/* ---- records ---- */

static char *record_name(const char *key)
{
    return g_strconcat(PREFIX, key, NULL);
}

static void put_record(struct meta_batch *b, const char *key, bool del, uint64_t seq, const char *what, int64_t until)
{
    g_autofree char *name = record_name(key);
    g_autofree char *text =
        g_strdup_printf("%s\n%" G_GUINT64_FORMAT "\n%s\n%" G_GINT64_FORMAT, del ? DELETE : WRITE, seq, what, until);
    meta_value_put(b, name, text, strlen(text));
}

/* ---- keys that rest ---- */

static struct rest *resting(struct publisher *p, const char *key) REQUIRES(p->mu)
{
    mutex_assert_held(&p->mu);
    struct rest *rest = g_hash_table_size(p->late->keys) > 0 ? g_hash_table_lookup(p->late->keys, key) : NULL;
    return rest && (!rest->heard || rest->until_ns > clock_mono_ns()) ? rest : NULL;
}

static gboolean is_over(void *key, void *value, void *now)
{
    const struct rest *rest = value;
    return rest->heard && rest->until_ns <= *(uint64_t *)now;
}

static void set_until(struct publisher *p, struct rest *rest)
{
    uint64_t for_ns = p->fs->cfg->late_requests_ns;
    rest->until_ns = clock_mono_ns() + for_ns;
    rest->until_wall_ns = clock_wall_ns() + (int64_t)for_ns;
}

/* From now on, also because of what it rests for already. heard: the store answered later than the request was lost. */
static const struct rest *begin_rest(struct publisher *p, const char *key, bool del, uint64_t seq, const char *what,
                                     bool heard) REQUIRES(p->mu)
{
    const struct rest *old = resting(p, key);
    bool same = !old || (old->del == del && (del || (old->seq == seq && g_str_equal(old->what, what))));
    struct rest *rest = g_new0(struct rest, 1);
    rest->del = same && del;
    rest->seq = same ? seq : NOBODY;
    rest->what = g_strdup(what);
    rest->heard = heard;
    set_until(p, rest);
    g_hash_table_replace(p->late->keys, g_strdup(key), rest);
    if (!heard)
        cond_signal(&p->late->work);
    return rest;
}

static bool may_go(const struct rest *rest, const struct op *o)
{
    return rest->del ? !is_write(o) : rest->seq == o->rec.seq;
}

/* How many ops copy from the key now. */
static unsigned copiers(struct publisher *p, const char *key) REQUIRES(p->mu)
{
    return GPOINTER_TO_UINT(g_hash_table_lookup(p->late->srcs, key));
}

static void count_copiers(struct publisher *p, const char *key, int by) REQUIRES(p->mu)
{
    unsigned n = (unsigned)((int)copiers(p, key) + by);
    if (n > 0)
        g_hash_table_replace(p->late->srcs, g_strdup(key), GUINT_TO_POINTER(n));
    else
        (void)g_hash_table_remove(p->late->srcs, key);
}

uint64_t late_until_locked(struct publisher *p, const struct op *o)
{
    const struct rest *rest = resting(p, o->key);
    uint64_t until = rest && rest->heard && !may_go(rest, o) ? rest->until_ns : 0;
    bool copied = is_write(o) && copiers(p, o->key) > 0; /* its end is not known, but wakes who waits */
    return copied ? MAX(until, clock_mono_ns() + NS_PER_S) : until;
}

/* ---- an op ---- */

/* An op that was given other content or attributes since is as good as another one. */
static int check_what(struct publisher *p, struct op *o, const char *what) REQUIRES(p->mu)
{
    struct rest *rest = resting(p, o->key);
    bool other = rest && may_go(rest, o) && is_write(o) && !g_str_equal(rest->what, what);
    if (other)
        rest->seq = NOBODY;
    return (rest && !may_go(rest, o)) || late_until_locked(p, o) > clock_mono_ns() ? -EAGAIN : 0;
}

/* Did the store say that? */
static bool is_answer(int r)
{
    return r == 0 || r == -ENOENT || r == -ESTALE || r == -EACCES || r == -EINVAL;
}

/* Nothing was heard of the key since it began to rest, then. Asks for it. */
static int ask(struct publisher *p, const char *key, uint64_t until)
{
    struct obj_info info = {0};
    int r = objstore_head(p->fs->store, key, &info);
    obj_info_clear(&info);
    if (!is_answer(r))
        return r;
    mutex_lock(&p->mu);
    struct rest *same = resting(p, key);
    if (same && !same->heard && same->until_ns == until) {
        same->heard = true;
        set_until(p, same);
    }
    mutex_unlock(&p->mu);
    return 0;
}

int late_hear(struct op *o)
{
    struct publisher *p = o->p;
    mutex_lock(&p->mu);
    const struct rest *rest = resting(p, o->key);
    bool unknown = rest && !rest->heard && !may_go(rest, o);
    uint64_t until = rest ? rest->until_ns : 0; /* tells one rest from the next */
    mutex_unlock(&p->mu);
    return unknown ? ask(p, o->key, until) : 0;
}

/* ---- the thread that asks ---- */

struct unheard {
    char *key; /* owned */
    uint64_t until_ns;
};

static void unheard_free(void *p)
{
    struct unheard *u = p;
    g_free(u->key);
    g_free(u);
}

static GQueue *find_unheard(struct publisher *p) REQUIRES(p->mu)
{
    GQueue *all = g_queue_new();
    GHashTableIter it;
    void *key, *value;
    g_hash_table_iter_init(&it, p->late->keys);
    while (g_hash_table_iter_next(&it, &key, &value)) {
        const struct rest *rest = value;
        if (!rest->heard) {
            struct unheard *u = g_new(struct unheard, 1);
            *u = (struct unheard){g_strdup(key), rest->until_ns};
            g_queue_push_tail(all, u);
        }
    }
    return all;
}

/* Were all answered for? Releases mu meanwhile. */
static bool ask_for_all(struct publisher *p, const GQueue *all) REQUIRES(p->mu)
{
    bool ok = true;
    for (const GList *i = all->head; i && !p->stopping; i = i->next) {
        const struct unheard *u = i->data;
        mutex_unlock(&p->mu);
        ok &= ask(p, u->key, u->until_ns) == 0;
        mutex_lock(&p->mu);
    }
    return ok;
}

static void *late_thread(void *arg)
{
    struct publisher *p = arg;
    uint64_t pause = PAUSE_NS;
    mutex_lock(&p->mu);
    while (!p->stopping) {
        GQueue *all = find_unheard(p);
        bool none = g_queue_is_empty(all), ok = ask_for_all(p, all);
        g_queue_free_full(all, unheard_free);
        pause = ok ? PAUSE_NS : MIN(2 * pause, PAUSE_MAX_NS);
        for (uint64_t until = clock_mono_ns() + pause; !ok && !p->stopping && clock_mono_ns() < until;)
            (void)cond_wait_until(&p->late->work, &p->mu, until);
        if (none && !p->stopping)
            cond_wait(&p->late->work, &p->mu);
    }
    mutex_unlock(&p->mu);
    return NULL;
}

int late_start(struct publisher *p)
{
    int r = thread_start(&p->late->thread, "late", late_thread, p);
    p->late->running = r == 0;
    return r;
}

void late_interrupt_locked(struct publisher *p)
{
    cond_signal(&p->late->work);
}

void late_stop(struct publisher *p)
{
    if (p->late->running)
        pthread_join(p->late->thread, NULL);
    p->late->running = false;
}

/* ---- requests ---- */

static void forget_request(struct publisher *p, struct op *o) REQUIRES(p->mu)
{
    if (o->late_src) {
        count_copiers(p, o->late_src, -1);
        queue_wake_locked(p);
    }
    g_clear_pointer(&o->late_src, g_free);
    g_clear_pointer(&o->late_what, g_free);
}

int late_put(struct meta_batch *b, struct op *o, const struct late_request *req)
{
    struct publisher *p = o->p;
    if (!matters(o))
        return 0;
    uint32_t caps = objstore_caps_of(p->fs->store, o->key);
    bool compared = req->caps && (caps & (req->caps | CAP_IF_MATCH_ABSENT)) == req->caps;
    bool fixed = (caps & CAP_COPY_IF_MATCH) && !req->empty;
    mutex_lock(&p->mu);
    forget_request(p, o);
    int r = check_what(p, o, req->what);
    if (r == 0) {
        o->late_what = g_strdup(req->what);
        o->late_src = fixed ? NULL : g_strdup(req->src);
    }
    if (o->late_src) {
        const struct rest *rest = resting(p, o->late_src);
        bool del = !rest || rest->del;
        count_copiers(p, o->late_src, 1);
        put_record(b, o->late_src, del, del ? o->rec.seq : NOBODY, "", 0);
    }
    mutex_unlock(&p->mu);
    if (r == 0 && !compared)
        put_record(b, o->key, !is_write(o), o->rec.seq, req->what, 0);
    return r;
}

int late_note_delete(struct op *o)
{
    const struct late_request req = {.what = ""};
    struct meta_batch *b = meta_batch_new(o->p->fs->meta);
    int r = late_put(b, o, &req);
    if (r == 0)
        r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

void late_begin(void)
{
    objstore_late_forget();
}

void late_end(struct op *o, int r)
{
    struct publisher *p = o->p;
    bool lost = objstore_late() && o->late_what, heard = is_answer(r);
    uint64_t now = clock_mono_ns();
    mutex_lock(&p->mu);
    struct rest *rest = resting(p, o->key);
    if (!lost && o->late_what && rest && may_go(rest, o)) {
        /* the reply may be an earlier request's, this one be carried out later */
        rest->heard |= heard;
        set_until(p, rest);
    }
    if (lost) {
        (void)g_hash_table_foreach_remove(p->late->keys, is_over, &now);
        (void)begin_rest(p, o->key, !is_write(o), o->rec.seq, o->late_what, heard);
    }
    if (lost && o->late_src)
        (void)begin_rest(p, o->late_src, true, o->rec.seq, "", heard);
    forget_request(p, o);
    mutex_unlock(&p->mu);
    if (lost)
        log_info("publish",
                 "a %s got no reply and may be carried out later: nothing newer is published there for %us key='%s'",
                 is_write(o) ? WRITE : DELETE, (unsigned)(p->fs->cfg->late_requests_ns / NS_PER_S), o->key);
}

/* Before others can take the key: it rests already when they look. False: nothing is left to be said of it. */
static bool settle_key(struct publisher *p, struct meta_batch *b, const struct op *o, const char *key, bool del,
                       bool lost) REQUIRES(p->mu)
{
    bool src = key != o->key;
    const struct rest *rest =
        lost ? begin_rest(p, key, del, o->rec.seq, del ? "" : o->late_what, true) : resting(p, key);
    if (rest)
        put_record(b, key, rest->del, rest->seq, rest->what, rest->until_wall_ns);
    return rest || copiers(p, key) > (src ? 1u : 0u);
}

void late_settle(struct meta_batch *b, const struct op *o)
{
    struct publisher *p = o->p;
    bool lost = objstore_late() && o->late_what;
    g_autofree char *name = record_name(o->key), *src = o->late_src ? record_name(o->late_src) : NULL;
    mutex_lock(&p->mu);
    bool keep = settle_key(p, b, o, o->key, !is_write(o), lost);
    bool keep_src = !src || settle_key(p, b, o, o->late_src, true, lost);
    mutex_unlock(&p->mu);
    if (!keep) /* reads the database, so not under mu; writes put their records under ns, as this is */
        note_drop_value(p->fs, b, name);
    if (!keep_src)
        note_drop_value(p->fs, b, src);
}

/* ---- start ---- */

struct load {
    struct publisher *p;
    struct meta_batch *b;
};

static int load_record(void *ctx, const char *name, const void *value, size_t len)
{
    enum { KIND, SEQ, WHAT, UNTIL, N_LINES };
    struct load *l = ctx;
    struct publisher *p = l->p;
    g_autofree char *text = g_strndup(value, len);
    g_auto(GStrv) lines = g_strsplit(text, "\n", N_LINES);
    const char *key = name + strlen(PREFIX);
    bool whole = g_strv_length(lines) == N_LINES;
    int64_t until = whole ? g_ascii_strtoll(lines[UNTIL], NULL, 10) : 0;
    if (!whole || (until && until < clock_wall_ns() - KEPT_NS) || p->fs->cfg->late_requests_ns == 0) {
        meta_value_del(l->b, name);
        return 0;
    }
    mutex_lock(&p->mu);
    const struct rest *rest = begin_rest(p, key, g_str_equal(lines[KIND], DELETE),
                                         g_ascii_strtoull(lines[SEQ], NULL, 10), lines[WHAT], false);
    put_record(l->b, key, rest->del, rest->seq, rest->what, until ? until : rest->until_wall_ns);
    mutex_unlock(&p->mu);
    return 0;
}

int late_load(struct publisher *p)
{
    struct load l = {p, meta_batch_new(p->fs->meta)};
    int r = meta_value_each(p->fs->meta, PREFIX, load_record, &l);
    if (r == 0)
        r = meta_commit(l.b, false);
    meta_batch_free(l.b);
    return r;
}
