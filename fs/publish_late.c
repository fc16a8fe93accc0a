/* See publish_late.h. In memory only keys that rest are known. */
#include "publish_late.h"

#include "base/clock.h"
#include "base/log.h"

#define PREFIX  "late/"
#define KEPT_NS ((int64_t)(24 * 3600 * NS_PER_S)) /* so much later no clock that was set makes a record count */
#define NOBODY  0                                 /* no op has this seq */
#define WRITE   "write"
#define DELETE  "delete"

struct rest {
    uint64_t until_ns; /* monotonic clock */
    int64_t until_wall_ns;
    bool del;     /* deletes may go, else the op of that seq may */
    uint64_t seq; /* with that */
    char *what;   /* owned */
};

static void rest_free(void *p)
{
    struct rest *rest = p;
    g_free(rest->what);
    g_free(rest);
}

GHashTable *late_table_new(void)
{
    return g_hash_table_new_full(g_str_hash, g_str_equal, g_free, rest_free);
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

static void del_record(struct fs *fs, struct meta_batch *b, const char *key)
{
    GBytes *value = NULL;
    g_autofree char *name = record_name(key);
    if (meta_value_get(fs->meta, name, &value) < 0)
        return;
    g_bytes_unref(value);
    meta_value_del(b, name);
}

/* ---- keys that rest ---- */

static struct rest *resting(struct publisher *p, const char *key) REQUIRES(p->mu)
{
    mutex_assert_held(&p->mu);
    struct rest *rest = g_hash_table_size(p->late) > 0 ? g_hash_table_lookup(p->late, key) : NULL;
    return rest && rest->until_ns > clock_mono_ns() ? rest : NULL;
}

static gboolean is_over(void *key, void *value, void *now)
{
    return ((const struct rest *)value)->until_ns <= *(uint64_t *)now;
}

static void set_until(struct publisher *p, struct rest *rest)
{
    uint64_t for_ns = p->fs->cfg->late_requests_ns;
    rest->until_ns = clock_mono_ns() + for_ns;
    rest->until_wall_ns = clock_wall_ns() + (int64_t)for_ns;
}

/* From now on, also because of what it rests for already. */
static void begin_rest(struct publisher *p, const char *key, bool del, uint64_t seq, const char *what) REQUIRES(p->mu)
{
    const struct rest *old = resting(p, key);
    bool same = !old || (old->del == del && (del || (old->seq == seq && g_str_equal(old->what, what))));
    struct rest *rest = g_new0(struct rest, 1);
    rest->del = same && del;
    rest->seq = same ? seq : NOBODY;
    rest->what = g_strdup(what);
    set_until(p, rest);
    g_hash_table_replace(p->late, g_strdup(key), rest);
}

static bool may_go(const struct rest *rest, const struct op *o)
{
    return rest->del ? !is_write(o) : rest->seq == o->rec.seq;
}

uint64_t late_until_locked(const struct op *o)
{
    const struct rest *rest = resting(o->p, o->key);
    return rest && !may_go(rest, o) ? rest->until_ns : 0;
}

/* ---- an op ---- */

/* An op that was given other content or attributes since is as good as another one. */
static int check_what(struct op *o, const char *what)
{
    struct publisher *p = o->p;
    mutex_lock(&p->mu);
    struct rest *rest = resting(p, o->key);
    bool other = rest && is_write(o) && !rest->del && !g_str_equal(rest->what, what);
    if (other)
        rest->seq = NOBODY;
    mutex_unlock(&p->mu);
    return other ? -EAGAIN : 0;
}

int late_put(struct meta_batch *b, struct op *o, const struct late_request *req)
{
    if (!matters(o))
        return 0;
    uint32_t caps = objstore_caps_of(o->p->fs->store, o->key);
    int r = check_what(o, req->what);
    g_free(o->late_what);
    o->late_what = g_strdup(req->what);
    g_free(o->late_src);
    o->late_src = caps & CAP_COPY_IF_MATCH ? NULL : g_strdup(req->src);
    if (r < 0 || (req->caps && (caps & req->caps) == req->caps))
        return r;
    put_record(b, o->key, !is_write(o), o->rec.seq, req->what, 0);
    if (o->late_src)
        put_record(b, o->late_src, true, o->rec.seq, "", 0);
    return 0;
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

void late_end(struct op *o)
{
    struct publisher *p = o->p;
    const char *what = o->late_what ? o->late_what : "";
    bool lost = objstore_late() && matters(o);
    uint64_t now = clock_mono_ns();
    mutex_lock(&p->mu);
    struct rest *rest = resting(p, o->key);
    if (!lost && rest && may_go(rest, o)) /* the reply may be an earlier request's, and this one be carried out later */
        set_until(p, rest);
    if (lost) {
        (void)g_hash_table_foreach_remove(p->late, is_over, &now);
        begin_rest(p, o->key, !is_write(o), o->rec.seq, what);
        if (o->late_src)
            begin_rest(p, o->late_src, true, o->rec.seq, "");
    }
    mutex_unlock(&p->mu);
    if (lost)
        log_info("publish",
                 "a %s got no reply and may be carried out later: nothing newer is published there for %us key='%s'",
                 is_write(o) ? WRITE : DELETE, (unsigned)(p->fs->cfg->late_requests_ns / NS_PER_S), o->key);
}

/* lost: a request of this run got no reply, late_end() is still to come. */
static void settle_key(struct meta_batch *b, const struct op *o, const char *key, bool del, bool lost)
{
    struct publisher *p = o->p;
    mutex_lock(&p->mu);
    const struct rest *rest = resting(p, key);
    bool rests = rest || lost, other = rest && !(rest->del == del && (del || rest->seq == o->rec.seq));
    if (rest && !lost)
        put_record(b, key, rest->del, rest->seq, rest->what, rest->until_wall_ns);
    mutex_unlock(&p->mu);
    if (lost)
        put_record(b, key, del && !other, other ? NOBODY : o->rec.seq, del || !o->late_what ? "" : o->late_what, 0);
    if (!rests)
        del_record(p->fs, b, key);
}

void late_settle(struct meta_batch *b, const struct op *o)
{
    bool lost = objstore_late() && matters(o);
    settle_key(b, o, o->key, !is_write(o), lost);
    if (o->late_src)
        settle_key(b, o, o->late_src, true, lost);
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
    begin_rest(p, key, g_str_equal(lines[KIND], DELETE), g_ascii_strtoull(lines[SEQ], NULL, 10), lines[WHAT]);
    const struct rest *rest = resting(p, key);
    put_record(l->b, key, rest->del, rest->seq, rest->what, rest->until_wall_ns);
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
