/* See publish_late.h. In memory only keys that rest are known. */
#include "publish_late.h"

#include "base/clock.h"
#include "base/log.h"

#define PREFIX "late/"

struct rest {
    uint64_t until_ns; /* monotonic clock */
    int64_t until_wall_ns;
    uint64_t seq; /* of the op */
    bool del;     /* it was a delete */
};

GHashTable *late_table_new(void)
{
    return g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
}

/* ---- records ---- */

static char *record_name(const char *key)
{
    return g_strconcat(PREFIX, key, NULL);
}

static void put_record(struct meta_batch *b, const char *key, uint64_t seq, bool del, int64_t until_wall_ns)
{
    g_autofree char *name = record_name(key);
    g_autofree char *text =
        g_strdup_printf("%" G_GUINT64_FORMAT "\n%s\n%" G_GINT64_FORMAT, seq, del ? "delete" : "write", until_wall_ns);
    meta_value_put(b, name, text, strlen(text));
}

static bool matters(const struct op *o)
{
    return objstore_limits_of(o->p->fs->store, o->key).late && o->p->fs->cfg->late_requests_ns > 0;
}

void late_put(struct meta_batch *b, struct op *o, uint32_t caps)
{
    bool compared = caps && (objstore_caps_of(o->p->fs->store, o->key) & caps) == caps;
    if (matters(o) && !compared)
        put_record(b, o->key, o->rec.seq, o->rec.kind == OP_DELETE, 0);
}

int late_note_delete(struct op *o)
{
    if (!matters(o))
        return 0;
    struct meta_batch *b = meta_batch_new(o->p->fs->meta);
    late_put(b, o, CAP_DELETE_IF_MATCH);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

/* ---- keys that rest ---- */

static gboolean is_over(void *key, void *value, void *now)
{
    return ((const struct rest *)value)->until_ns <= *(uint64_t *)now;
}

static struct rest rest_of(const struct op *o)
{
    uint64_t for_ns = o->p->fs->cfg->late_requests_ns;
    return (struct rest){.until_ns = clock_mono_ns() + for_ns,
                         .until_wall_ns = clock_wall_ns() + (int64_t)for_ns,
                         .seq = o->rec.seq,
                         .del = o->rec.kind == OP_DELETE};
}

void late_begin(void)
{
    objstore_late_forget();
}

void late_end(struct op *o)
{
    struct publisher *p = o->p;
    if (!objstore_late() || !matters(o))
        return;
    struct rest rest = rest_of(o);
    uint64_t now = clock_mono_ns();
    mutex_lock(&p->mu);
    (void)g_hash_table_foreach_remove(p->late, is_over, &now);
    g_hash_table_replace(p->late, g_strdup(o->key), g_memdup2(&rest, sizeof(rest)));
    mutex_unlock(&p->mu);
    log_info("publish",
             "no reply to a %s, which may be carried out later: nothing newer is published there for %us key='%s'",
             rest.del ? "delete" : "write", (unsigned)(p->fs->cfg->late_requests_ns / NS_PER_S), o->key);
}

/* Does the key rest, also by what was sent in this run? */
static bool rests(const struct op *o, struct rest *ret)
{
    struct publisher *p = o->p;
    if (objstore_late() && matters(o)) {
        *ret = rest_of(o);
        return true;
    }
    mutex_lock(&p->mu);
    const struct rest *l = g_hash_table_lookup(p->late, o->key);
    bool found = l && l->until_ns > clock_mono_ns();
    if (found)
        *ret = *l;
    mutex_unlock(&p->mu);
    return found;
}

void late_settle(struct meta_batch *b, const struct op *o)
{
    struct rest rest;
    GBytes *value = NULL;
    g_autofree char *name = record_name(o->key);
    if (rests(o, &rest)) {
        put_record(b, o->key, rest.seq, rest.del, rest.until_wall_ns);
    } else if (meta_value_get(o->p->fs->meta, name, &value) == 0) {
        g_bytes_unref(value);
        meta_value_del(b, name);
    }
}

uint64_t late_until_locked(const struct op *o)
{
    const struct rest *l = g_hash_table_size(o->p->late) > 0 ? g_hash_table_lookup(o->p->late, o->key) : NULL;
    bool same = l && (l->del ? o->rec.kind == OP_DELETE : o->rec.seq == l->seq);
    return l && !same ? l->until_ns : 0;
}

/* ---- start ---- */

struct load {
    struct publisher *p;
    struct meta_batch *b;
};

/* Of a request whose outcome is not known the time begins now: the process that sent it may have lived until just now. */
static int load_record(void *ctx, const char *name, const void *value, size_t len)
{
    struct load *l = ctx;
    struct publisher *p = l->p;
    g_autofree char *text = g_strndup(value, len);
    g_auto(GStrv) lines = g_strsplit(text, "\n", 3);
    const char *key = name + strlen(PREFIX);
    if (g_strv_length(lines) != 3)
        return 0;
    int64_t for_ns = (int64_t)p->fs->cfg->late_requests_ns, now = clock_wall_ns();
    int64_t until = g_ascii_strtoll(lines[2], NULL, 10);
    struct rest rest = {.seq = g_ascii_strtoull(lines[0], NULL, 10), .del = g_str_equal(lines[1], "delete")};
    rest.until_wall_ns = until ? MIN(until, now + for_ns) : now + for_ns;
    if (rest.until_wall_ns <= now) {
        meta_value_del(l->b, name);
        return 0;
    }
    rest.until_ns = clock_mono_ns() + (uint64_t)(rest.until_wall_ns - now);
    put_record(l->b, key, rest.seq, rest.del, rest.until_wall_ns);
    mutex_lock(&p->mu);
    g_hash_table_replace(p->late, g_strdup(key), g_memdup2(&rest, sizeof(rest)));
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
