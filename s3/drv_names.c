/*
 * A store around another one whose keys are paths as key_names.h makes them: all keys go down as what they are, and come up from listings as paths.
 *
 * Rows come in the order of the store's keys, in which a path that was made longer may come behind those that its bytes are less than; so a directory is listed by one chain of pages,
 * as several are cut by that order. Keys with a NUL byte stay odd; so do components that are made longer than a name can be.
 *
 * No state of its own.
 */
#include "key_names.h"
#include "objstore_driver.h"

#include <string.h>

#define NAME_BYTES 255u

struct drv_names {
    struct objstore base;
    struct objstore *inner; /* owned; immutable */
};

static struct objstore *inner_of(const struct objstore *st)
{
    return ((const struct drv_names *)st)->inner;
}

static int names_head(struct objstore *st, const char *path, struct obj_info *ret_info)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->head(in, key, ret_info) : -ENOENT;
}

static int names_get(struct objstore *st, const char *path, uint64_t off, uint64_t len, const struct etag *if_match,
                     obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->get(in, key, off, len, if_match, sink, ctx, ret_info) : -ENOENT;
}

static int names_put(struct objstore *st, const char *path, const void *buf, size_t len, const struct obj_meta *meta,
                     const struct obj_cond *cond, struct etag *ret_etag)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->put(in, key, buf, len, meta, cond, ret_etag) : -EINVAL;
}

static int names_delete(struct objstore *st, const char *path, const struct obj_cond *cond)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->delete (in, key, cond) : 0;
}

static int names_copy(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag)
{
    struct objstore *in = inner_of(st);
    g_autofree char *src = key_of_path(copy->src), *dst = key_of_path(copy->dst);
    struct obj_copy by_key = *copy;
    by_key.src = src;
    by_key.dst = dst;
    return !src ? -ENOENT : !dst ? -EINVAL : in->drv->copy(in, &by_key, ret_etag);
}

/* ---- listings ---- */

struct naming {
    const struct obj_list_req *req;
    const char *key_prefix;
    obj_list_fn *fn;
    void *ctx;
};

/* Has a component that was made longer become too long? */
static bool is_too_long(const char *path)
{
    for (size_t n; *path; path += n + (path[n] == '/')) {
        n = strcspn(path, "/");
        if (n > NAME_BYTES && key_name_is_escaped(path, n))
            return true;
    }
    return false;
}

/* The row's name behind the asked-for prefix; false: its path does not begin with that. */
static bool name_row(const struct naming *n, const struct obj_entry *e, GString *ret)
{
    size_t len = strlen(n->key_prefix);
    if (len == 0 || n->key_prefix[len - 1] == '/') {
        key_to_path(e->name, e->name_len, ret);
        return true;
    }
    g_autoptr(GString) key = g_string_new_len(n->key_prefix, (gssize)len);
    g_string_append_len(key, e->name, (gssize)e->name_len);
    key_to_path(key->str, key->len, ret);
    if (!g_str_has_prefix(ret->str, n->req->prefix))
        return false;
    g_string_erase(ret, 0, (gssize)strlen(n->req->prefix));
    return true;
}

static int on_row(void *ctx, const struct obj_entry *e)
{
    const struct naming *n = ctx;
    if (e->odd)
        return n->fn(n->ctx, e);
    g_autoptr(GString) name = g_string_new(NULL);
    struct obj_entry shown = *e;
    if (!name_row(n, e, name))
        return 0;
    shown.name = name->str;
    shown.name_len = name->len;
    shown.odd = is_too_long(name->str);
    return n->fn(n->ctx, &shown);
}

static int names_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx,
                      bool *ret_truncated)
{
    struct objstore *in = inner_of(st);
    g_autofree char *prefix = key_of_path(req->prefix);
    g_autofree char *after = req->start_after ? key_of_path(req->start_after) : NULL;
    if (!prefix)
        return 0;
    struct naming n = {req, prefix, fn, ctx};
    struct obj_list_req by_key = *req;
    by_key.prefix = prefix;
    by_key.start_after = after;
    return in->drv->list(in, &by_key, on_row, &n, ret_truncated);
}

/* ---- multipart ---- */

static int names_mpu_create(struct objstore *st, const char *path, const struct obj_meta *meta, char **ret_upload_id)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->mpu_create(in, key, meta, ret_upload_id) : -EINVAL;
}

static int names_mpu_part(struct objstore *st, const char *path, const char *upload_id, const void *buf,
                          struct obj_part *part)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->mpu_part(in, key, upload_id, buf, part) : -ENOENT;
}

static int names_mpu_part_copy(struct objstore *st, const char *path, const char *upload_id, const char *src_path,
                               const struct etag *src_etag, uint64_t off, struct obj_part *part)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path), *src = key_of_path(src_path);
    return key && src ? in->drv->mpu_part_copy(in, key, upload_id, src, src_etag, off, part) : -ENOENT;
}

static int names_mpu_complete(struct objstore *st, const char *path, const char *upload_id,
                              const struct obj_part *parts, size_t n_parts, const char *token,
                              const struct obj_cond *cond, struct etag *ret_etag)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->mpu_complete(in, key, upload_id, parts, n_parts, token, cond, ret_etag) : -ENOENT;
}

static int names_mpu_abort(struct objstore *st, const char *path, const char *upload_id)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->mpu_abort(in, key, upload_id) : -ENOENT;
}

static int names_mpu_parts(struct objstore *st, const char *path, const char *upload_id, struct obj_part **ret_parts,
                           size_t *ret_n)
{
    struct objstore *in = inner_of(st);
    g_autofree char *key = key_of_path(path);
    return key ? in->drv->mpu_parts(in, key, upload_id, ret_parts, ret_n) : -ENOENT;
}

struct uploads {
    const char *prefix;
    int (*fn)(void *ctx, const char *key, const char *upload_id);
    void *ctx;
};

static int on_upload(void *ctx, const char *key, const char *upload_id)
{
    const struct uploads *u = ctx;
    g_autoptr(GString) path = g_string_new(NULL);
    key_to_path(key, strlen(key), path);
    return g_str_has_prefix(path->str, u->prefix) ? u->fn(u->ctx, path->str, upload_id) : 0;
}

static int names_mpu_list(struct objstore *st, const char *path,
                          int (*fn)(void *ctx, const char *key, const char *upload_id), void *ctx)
{
    struct objstore *in = inner_of(st);
    struct uploads u = {path, fn, ctx};
    g_autofree char *prefix = key_of_path(path);
    return prefix ? in->drv->mpu_list(in, prefix, on_upload, &u) : 0;
}

/* ---- the store as a whole ---- */

static void names_close(struct objstore *st)
{
    objstore_close(inner_of(st));
    objstore_base_clear(st);
    g_free(st);
}

static char *names_resume(const struct objstore *st)
{
    return objstore_resume(inner_of(st));
}

static void names_shutdown(struct objstore *st)
{
    objstore_shutdown(inner_of(st));
}

static int names_check(struct objstore *st, char **ret_msg)
{
    struct objstore *in = inner_of(st);
    return in->drv->check(in, ret_msg);
}

static int names_probe(struct objstore *st, const char *path, uint32_t *ret_caps)
{
    struct objstore *in = inner_of(st);
    g_autofree char *prefix = key_of_path(path);
    return prefix ? in->drv->probe(in, prefix, ret_caps) : -EINVAL;
}

static void names_set_caps(struct objstore *st, uint32_t caps)
{
    objstore_set_caps(inner_of(st), caps);
}

static void names_sum_note(struct objstore *st, const char *path, bool fits)
{
    objstore_sum_note(inner_of(st), "", fits);
}

static bool names_sums_count(struct objstore *st, const char *path)
{
    return objstore_sums_count(inner_of(st), "");
}

static int64_t names_offline(const struct objstore *st)
{
    return objstore_offline_since_ns(inner_of(st));
}

static const struct objstore_driver drv_names = {
    .close = names_close,
    .shutdown = names_shutdown,
    .resume = names_resume,
    .check = names_check,
    .probe = names_probe,
    .set_caps = names_set_caps,
    .offline_since_ns = names_offline,
    .sum_note_at = names_sum_note,
    .sums_count_at = names_sums_count,
    .head = names_head,
    .get = names_get,
    .put = names_put,
    .delete = names_delete,
    .copy = names_copy,
    .list = names_list,
    .mpu_create = names_mpu_create,
    .mpu_part = names_mpu_part,
    .mpu_part_copy = names_mpu_part_copy,
    .mpu_complete = names_mpu_complete,
    .mpu_abort = names_mpu_abort,
    .mpu_parts = names_mpu_parts,
    .mpu_list = names_mpu_list,
};

struct objstore *objstore_names_wrap(struct objstore *inner)
{
    struct drv_names *n = g_new0(struct drv_names, 1);
    n->base.drv = &drv_names;
    n->base.source = g_strdup(inner->source);
    n->base.identity = g_strdup(inner->identity);
    n->base.limits = inner->limits;
    n->base.limits.list_chains = MIN(inner->limits.list_chains, 1u);
    n->base.caps = objstore_caps(inner);
    n->inner = inner;
    return &n->base;
}
