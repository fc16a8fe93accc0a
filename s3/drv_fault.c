/*
 * A store with faults on demand, around any other store. For tests.
 *
 * Rules are separated by ';', fields of a rule by ',':
 *   op=NAME      get head put delete copy list create part part-copy complete abort parts uploads any (default any)
 *   key=KEY      calls for this key only: of a copy the one it makes (default any; listings have none)
 *   nth=N        the first call it hits, counted from 1 over the calls of that op and key (default 1)
 *   count=N      how many calls from there (default: 1 if nth is given, else all)
 *   prob=P       0..1, chance for each of those calls (default 1; the sequence is the same in every run)
 *   action=A|B.. error:-EIO (not carried out)  lost:-EIO (carried out, then the error)  delay:50ms (ms, s)
 *                late:-EIO (the error now; for all the caller knows it may be carried out later)  late:0 (so a try before this one)
 *                short:N (get: N bytes, then -EIO)  corrupt:N (get, put, part: byte N of this call's data is flipped)
 *
 * A delay ends when the rules are replaced.
 *
 * The lock covers rules and counters only and is never held over a call of the inner store.
 */
#include "base/clock.h"
#include "base/patience.h"
#include "base/sync.h"
#include "objstore_driver.h"

#include <string.h>

enum fault_op {
    FOP_GET,
    FOP_HEAD,
    FOP_PUT,
    FOP_DELETE,
    FOP_COPY,
    FOP_LIST,
    FOP_CREATE,
    FOP_PART,
    FOP_PART_COPY,
    FOP_COMPLETE,
    FOP_ABORT,
    FOP_PARTS,
    FOP_UPLOADS,
    FOP_ANY
};
static const char *const op_names[] = {"get",  "head",      "put",      "delete", "copy",  "list",    "create",
                                       "part", "part-copy", "complete", "abort",  "parts", "uploads", "any"};

struct effect { /* what a call meets */
    int error;
    int lost;
    bool late;
    uint64_t delay_ns;
    bool is_short, corrupt;
    uint64_t short_len, corrupt_at;
};

struct rule {
    enum fault_op op;
    char *key; /* owned, NULL: any */
    uint64_t nth, count;
    double prob;
    struct effect effect;
    uint64_t n_calls;
};

struct drv_fault {
    struct objstore base;
    /* immutable after wrap */
    struct objstore *inner; /* owned */

    struct mutex mu;
    struct cond cv; /* stopping, other rules */
    /* guarded by mu */
    GArray *rules;    /* struct rule */
    uint64_t version; /* of them */
    uint64_t seed;
    bool stopping;
};

static struct drv_fault *fault_of(struct objstore *st)
{
    return (struct drv_fault *)st;
}

static int parse_errno(const char *s, int *ret)
{
    if (*s == '-')
        s++;
    for (int e = 1; e < 134; e++) {
        if (strcmp(err_name(e), s) == 0) {
            *ret = -e;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_u64(const char *s, uint64_t *ret)
{
    guint64 v = 0;
    if (!g_ascii_string_to_unsigned(s, 10, 0, G_MAXUINT64, &v, NULL))
        return -EINVAL;
    *ret = v;
    return 0;
}

static int parse_delay(const char *s, uint64_t *ret_ns)
{
    char *end = NULL;
    guint64 v = g_ascii_strtoull(s, &end, 10);
    if (end == s)
        return -EINVAL;
    if (strcmp(end, "ms") == 0)
        *ret_ns = v * NS_PER_MS;
    else if (strcmp(end, "s") == 0)
        *ret_ns = v * NS_PER_S;
    else
        return -EINVAL;
    return 0;
}

static int parse_action(const char *s, struct effect *e)
{
    g_auto(GStrv) kv = g_strsplit(s, ":", 2);
    if (!kv[0] || !kv[1])
        return -EINVAL;
    if (strcmp(kv[0], "error") == 0)
        return parse_errno(kv[1], &e->error);
    if (strcmp(kv[0], "lost") == 0)
        return parse_errno(kv[1], &e->lost);
    if (strcmp(kv[0], "late") == 0) {
        e->late = true;
        return strcmp(kv[1], "0") == 0 ? 0 : parse_errno(kv[1], &e->error);
    }
    if (strcmp(kv[0], "delay") == 0)
        return parse_delay(kv[1], &e->delay_ns);
    if (strcmp(kv[0], "short") == 0) {
        e->is_short = true;
        return parse_u64(kv[1], &e->short_len);
    }
    if (strcmp(kv[0], "corrupt") == 0) {
        e->corrupt = true;
        return parse_u64(kv[1], &e->corrupt_at);
    }
    return -EINVAL;
}

static int parse_field(const char *key, const char *value, struct rule *rule)
{
    if (strcmp(key, "op") == 0) {
        for (size_t i = 0; i < G_N_ELEMENTS(op_names); i++) {
            if (strcmp(op_names[i], value) == 0) {
                rule->op = (enum fault_op)i;
                return 0;
            }
        }
        return -EINVAL;
    }
    if (strcmp(key, "key") == 0) {
        g_free(rule->key);
        rule->key = g_strdup(value);
        return 0;
    }
    if (strcmp(key, "nth") == 0)
        return parse_u64(value, &rule->nth);
    if (strcmp(key, "count") == 0)
        return parse_u64(value, &rule->count);
    if (strcmp(key, "prob") == 0) {
        char *end = NULL;
        rule->prob = g_ascii_strtod(value, &end);
        return end == value || *end || !(rule->prob >= 0 && rule->prob <= 1) ? -EINVAL : 0;
    }
    if (strcmp(key, "action") == 0) {
        g_auto(GStrv) actions = g_strsplit(value, "|", -1);
        int r = 0;
        for (char **a = actions; *a && r == 0; a++)
            r = parse_action(*a, &rule->effect);
        return r;
    }
    return -EINVAL;
}

static void rule_clear(void *p)
{
    struct rule *rule = p;
    g_free(rule->key);
}

/* rule: cleared by the caller, also after a failure. */
static int parse_rule(const char *text, struct rule *rule)
{
    g_auto(GStrv) fields = g_strsplit(text, ",", -1);
    *rule = (struct rule){.op = FOP_ANY, .prob = 1};
    for (char **f = fields; *f; f++) {
        g_auto(GStrv) kv = g_strsplit(g_strstrip(*f), "=", 2);
        int r = kv[0] && kv[1] ? parse_field(kv[0], kv[1], rule) : -EINVAL;
        if (r < 0)
            return r;
    }
    if (rule->count == 0)
        rule->count = rule->nth ? 1 : UINT64_MAX;
    if (rule->nth == 0)
        rule->nth = 1;
    return 0;
}

static int parse_rules(const char *text, GArray **ret)
{
    g_autoptr(GArray) out = g_array_new(FALSE, FALSE, sizeof(struct rule));
    g_array_set_clear_func(out, rule_clear);
    g_auto(GStrv) rules = g_strsplit(text ? text : "", ";", -1);
    for (char **p = rules; *p; p++) {
        if (*g_strstrip(*p) == '\0')
            continue;
        g_array_set_size(out, out->len + 1);
        int r = parse_rule(*p, &g_array_index(out, struct rule, out->len - 1));
        if (r < 0)
            return r;
    }
    *ret = g_steal_pointer(&out);
    return 0;
}

/* A fixed xorshift sequence: a failing test fails again. */
static double chance_locked(struct drv_fault *f)
{
    mutex_assert_held(&f->mu);
    f->seed ^= f->seed << 13;
    f->seed ^= f->seed >> 7;
    f->seed ^= f->seed << 17;
    return (double)(f->seed >> 11) / 9007199254740992.0;
}

static void effect_merge(struct effect *into, const struct effect *e)
{
    into->error = e->error ? e->error : into->error;
    into->lost = e->lost ? e->lost : into->lost;
    into->late |= e->late;
    into->delay_ns += e->delay_ns;
    if (e->is_short) {
        into->is_short = true;
        into->short_len = e->short_len;
    }
    if (e->corrupt) {
        into->corrupt = true;
        into->corrupt_at = e->corrupt_at;
    }
}

/* Counts the call (key: NULL for listings) and sits out its delay. The rule's error or 0. */
static int meet(struct drv_fault *f, enum fault_op op, const char *key, struct effect *ret)
{
    *ret = (struct effect){0};
    mutex_lock(&f->mu);
    for (guint i = 0; i < f->rules->len; i++) {
        struct rule *rule = &g_array_index(f->rules, struct rule, i);
        if ((rule->op != FOP_ANY && rule->op != op) || (rule->key && g_strcmp0(rule->key, key) != 0))
            continue;
        uint64_t n = ++rule->n_calls;
        if (n < rule->nth || n - rule->nth >= rule->count)
            continue;
        if (rule->prob >= 1 || chance_locked(f) < rule->prob)
            effect_merge(ret, &rule->effect);
    }
    uint64_t version = f->version;
    uint64_t until = clock_mono_ns() + ret->delay_ns;
    int over = 0;
    while (ret->delay_ns && over == 0 && !f->stopping && f->version == version && clock_mono_ns() < until)
        over = patience_wait(&f->cv, &f->mu, until);
    over = clock_mono_ns() < until ? over : 0;
    int r = f->stopping ? -ECANCELED : over < 0 ? over : ret->error;
    mutex_unlock(&f->mu);
    if (ret->late)
        objstore_late_note();
    return r;
}

static int after(const struct effect *e, int r)
{
    return r == 0 && e->lost ? e->lost : r;
}

struct fault_sink {
    const struct effect *effect;
    obj_sink_fn *fn;
    void *ctx;
    uint64_t n_given;
    bool cut;
};

static int sink_corrupt(struct fault_sink *s, uint64_t off, const void *buf, size_t len)
{
    const struct effect *e = s->effect;
    if (!e->corrupt || e->corrupt_at < s->n_given || e->corrupt_at - s->n_given >= len)
        return s->fn(s->ctx, off, buf, len);
    g_autofree char *copy = g_memdup2(buf, len);
    copy[e->corrupt_at - s->n_given] ^= 1;
    return s->fn(s->ctx, off, copy, len);
}

static int on_data(void *ctx, uint64_t off, const void *buf, size_t len)
{
    struct fault_sink *s = ctx;
    if (s->effect->is_short && s->n_given + len > s->effect->short_len) {
        len = (size_t)(s->effect->short_len - s->n_given);
        s->cut = true;
    }
    int r = len ? sink_corrupt(s, off, buf, len) : 0;
    s->n_given += len;
    return r ? r : s->cut ? -EIO : 0;
}

static int fault_head(struct objstore *st, const char *key, struct obj_info *ret_info)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_HEAD, key, &e);
    return r < 0 ? r : after(&e, objstore_head(f->inner, key, ret_info));
}

static int fault_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                     obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    struct fault_sink s = {.effect = &e, .fn = sink, .ctx = ctx};
    int r = meet(f, FOP_GET, key, &e);
    return r < 0 ? r : after(&e, objstore_get(f->inner, key, off, len, if_match, on_data, &s, ret_info));
}

/* The body to store: a copy with a byte flipped where the rule says so. */
static const void *body_of(const struct effect *e, const void *buf, size_t len, void **ret_copy)
{
    if (!e->corrupt || e->corrupt_at >= len)
        return buf;
    char *copy = g_memdup2(buf, len);
    copy[e->corrupt_at] ^= 1;
    *ret_copy = copy;
    return copy;
}

static int fault_put(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
                     const struct obj_cond *cond, struct etag *ret_etag)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    g_autofree void *copy = NULL;
    int r = meet(f, FOP_PUT, key, &e);
    return r < 0 ? r : after(&e, objstore_put(f->inner, key, body_of(&e, buf, len, &copy), len, meta, cond, ret_etag));
}

static int fault_delete(struct objstore *st, const char *key, const struct obj_cond *cond)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_DELETE, key, &e);
    return r < 0 ? r : after(&e, objstore_delete(f->inner, key, cond));
}

static int fault_copy(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_COPY, copy->dst, &e);
    return r < 0 ? r : after(&e, objstore_copy_with(f->inner, copy, ret_etag));
}

static int fault_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx,
                      bool *ret_truncated)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_LIST, NULL, &e);
    return r < 0 ? r : after(&e, objstore_list(f->inner, req, fn, ctx, ret_truncated));
}

static int fault_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    g_autofree char *id = NULL;
    int r = meet(f, FOP_CREATE, key, &e);
    if (r == 0)
        r = after(&e, objstore_mpu_create(f->inner, key, meta, &id));
    if (r == 0)
        *ret_upload_id = g_steal_pointer(&id);
    return r;
}

static int fault_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf,
                          struct obj_part *part)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    g_autofree void *copy = NULL;
    int r = meet(f, FOP_PART, key, &e);
    return r < 0 ? r
                 : after(&e, objstore_mpu_part(f->inner, key, upload_id, body_of(&e, buf, part->size, &copy), part));
}

static int fault_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                               const struct etag *src_etag, uint64_t off, struct obj_part *part)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_PART_COPY, key, &e);
    return r < 0 ? r : after(&e, objstore_mpu_part_copy(f->inner, key, upload_id, src, src_etag, off, part));
}

static int fault_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                              size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_COMPLETE, key, &e);
    return r < 0 ? r
                 : after(&e, objstore_mpu_complete(f->inner, key, upload_id, parts, n_parts, token, cond, ret_etag));
}

static int fault_mpu_abort(struct objstore *st, const char *key, const char *upload_id)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_ABORT, key, &e);
    return r < 0 ? r : after(&e, objstore_mpu_abort(f->inner, key, upload_id));
}

static int fault_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                           size_t *ret_n)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_PARTS, key, &e);
    return r < 0 ? r : objstore_mpu_parts(f->inner, key, upload_id, ret_parts, ret_n);
}

static int fault_mpu_list(struct objstore *st, const char *prefix,
                          int (*fn)(void *ctx, const char *key, const char *upload_id), void *ctx)
{
    struct drv_fault *f = fault_of(st);
    struct effect e;
    int r = meet(f, FOP_UPLOADS, NULL, &e);
    return r < 0 ? r : after(&e, objstore_mpu_list(f->inner, prefix, fn, ctx));
}

static void fault_close(struct objstore *st)
{
    struct drv_fault *f = fault_of(st);
    objstore_close(f->inner);
    g_array_unref(f->rules);
    cond_fini(&f->cv);
    mutex_fini(&f->mu);
    objstore_base_clear(st);
    g_free(f);
}

static char *fault_resume(const struct objstore *st)
{
    return objstore_resume(((const struct drv_fault *)st)->inner);
}

static void fault_shutdown(struct objstore *st)
{
    struct drv_fault *f = fault_of(st);
    mutex_lock(&f->mu);
    f->stopping = true;
    cond_broadcast(&f->cv);
    mutex_unlock(&f->mu);
    objstore_shutdown(f->inner);
}

static int fault_check(struct objstore *st, char **ret_msg)
{
    return objstore_check(fault_of(st)->inner, ret_msg);
}

static int fault_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps)
{
    return objstore_probe(fault_of(st)->inner, key_prefix, ret_caps);
}

static void fault_set_caps(struct objstore *st, uint32_t caps)
{
    objstore_set_caps(fault_of(st)->inner, caps);
}

static int64_t fault_offline(const struct objstore *st)
{
    return objstore_offline_since_ns(((const struct drv_fault *)st)->inner);
}

static const struct objstore_driver drv_fault = {
    .close = fault_close,
    .shutdown = fault_shutdown,
    .resume = fault_resume,
    .check = fault_check,
    .probe = fault_probe,
    .set_caps = fault_set_caps,
    .offline_since_ns = fault_offline,
    .head = fault_head,
    .get = fault_get,
    .put = fault_put,
    .delete = fault_delete,
    .copy = fault_copy,
    .list = fault_list,
    .mpu_create = fault_mpu_create,
    .mpu_part = fault_mpu_part,
    .mpu_part_copy = fault_mpu_part_copy,
    .mpu_complete = fault_mpu_complete,
    .mpu_abort = fault_mpu_abort,
    .mpu_parts = fault_mpu_parts,
    .mpu_list = fault_mpu_list,
};

int objstore_fault_wrap(struct objstore *inner, const char *rules, struct objstore **ret_store)
{
    GArray *parsed = NULL;
    int r = parse_rules(rules, &parsed);
    if (r < 0)
        return r;
    struct drv_fault *f = g_new0(struct drv_fault, 1);
    f->base.drv = &drv_fault;
    f->base.source = g_strdup(inner->source);
    f->base.identity = g_strdup(inner->identity);
    f->base.limits = inner->limits;
    f->base.limits.late = true;
    f->base.caps = objstore_caps(inner);
    f->inner = inner;
    f->rules = parsed;
    f->seed = 0x9e3779b97f4a7c15ull;
    mutex_init(&f->mu, LOCK_FAULT);
    cond_init(&f->cv);
    *ret_store = &f->base;
    return 0;
}

int objstore_fault_set(struct objstore *st, const char *rules)
{
    if (st->drv->root)
        st = st->drv->root(st);
    struct drv_fault *f = fault_of(st);
    GArray *parsed = NULL;
    g_assert(st->drv == &drv_fault);
    int r = parse_rules(rules, &parsed);
    if (r < 0)
        return r;
    mutex_lock(&f->mu);
    GArray *old = f->rules;
    f->rules = parsed;
    f->version++;
    cond_broadcast(&f->cv);
    mutex_unlock(&f->mu);
    g_array_unref(old);
    return 0;
}
