/*
 * The driver that sends each key to the store it is in, see objstore_links.h.
 *
 * A route is one store with its directory; the root's has "". Links never lie in one another, so at most one of them fits a key. `mu` covers the
 * set and the counts, never a call; a call holds a reference to its route, whose store is closed with the last one, outside of mu.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/sync.h"
#include "objstore_driver.h"
#include "objstore_links.h"

#include <string.h>

struct route {
    /* immutable */
    char *dir; /* "a/b/", "" of the root; owned */
    size_t len;
    struct objstore *store; /* owned; NULL: none */
    /* guarded by mu of the driver */
    unsigned refs;
    int err;
    int64_t since_ns;
};

struct drv_links {
    struct objstore base;
    struct route *root; /* immutable, a reference */
    struct mutex mu;    /* OBJ_LINKS */
    /* guarded by mu */
    GPtrArray *routes;  /* struct route, a reference each, by directory */
    GPtrArray *leaving; /* struct route that was replaced while calls were under way, borrowed from the last of them */
    bool stopping;
};

static struct drv_links *links_of(struct objstore *st)
{
    return (struct drv_links *)st;
}

static struct route *route_new(const char *dir, struct objstore *store)
{
    struct route *r = g_new0(struct route, 1);
    r->dir = *dir ? g_strconcat(dir, "/", NULL) : g_strdup("");
    r->len = strlen(r->dir);
    r->store = store;
    r->refs = 1;
    r->err = store ? 0 : -EIO;
    r->since_ns = store ? 0 : clock_wall_ns();
    return r;
}

static void route_put(struct drv_links *l, struct route *r)
{
    mutex_lock(&l->mu);
    bool last = --r->refs == 0;
    if (last)
        (void)g_ptr_array_remove_fast(l->leaving, r); /* it may not be there */
    mutex_unlock(&l->mu);
    if (!last)
        return;
    objstore_close(r->store);
    g_free(r->dir);
    g_free(r);
}

static struct route *find_locked(struct drv_links *l, const char *key)
{
    for (guint i = 0; i < l->routes->len; i++) {
        struct route *r = l->routes->pdata[i];
        if (strncmp(key, r->dir, r->len) == 0)
            return r;
    }
    return l->root;
}

/* The route that key is in, with a reference, and the key in its store. */
static struct route *route_get(struct drv_links *l, const char *key, const char **ret_key)
{
    mutex_lock(&l->mu);
    struct route *r = find_locked(l, key);
    r->refs++;
    mutex_unlock(&l->mu);
    *ret_key = key + r->len;
    return r;
}

/* Does the result tell that the store does not do its work, or that it does? 0: neither. */
static int verdict(int r)
{
    switch (r) {
    case -EIO:
    case -ENODEV:
    case -EACCES:
    case -EKEYEXPIRED:
    case -ETIMEDOUT:
    case -EBADMSG:
        return -1;
    case -ECANCELED:
    case -EINTR:
        return 0;
    default:
        return 1;
    }
}

/* Ends a call: notes what it told of the store, and lets the route go. */
static int leave(struct drv_links *l, struct route *r, int result)
{
    int v = verdict(result);
    mutex_lock(&l->mu);
    bool news = r->len > 0 && r->store && ((v > 0 && r->err) || (v < 0 && !r->err));
    if (r->store && v != 0) {
        r->since_ns = v > 0 ? 0 : r->since_ns ? r->since_ns : clock_wall_ns();
        r->err = v > 0 ? 0 : result;
    }
    mutex_unlock(&l->mu);
    if (news && v < 0)
        log_warn("links", "a link does not work dir='%s' source='%s' r=%s", r->dir, r->store->source, err_name(result));
    else if (news)
        log_notice("links", "a link works again dir='%s' source='%s'", r->dir, r->store->source);
    route_put(l, r);
    return result;
}

/* What a call that would change a key gives without a store, or for the directory of a link. */
static int refuse_write(const struct route *r, const char *key)
{
    if (!r->store)
        return r->len ? -EIO : -EROFS;
    return r->len && !*key ? -EINVAL : 0;
}

static int refuse_read(const struct route *r, const char *key)
{
    if (!r->store)
        return r->len ? -EIO : -ENOENT;
    return r->len && !*key ? -ENOENT : 0;
}

/* ---- objects ---- */

static int links_head(struct objstore *st, const char *key, struct obj_info *ret_info)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_read(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_head(r->store, key, ret_info));
}

static int links_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                     obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_read(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_get(r->store, key, off, len, if_match, sink, ctx, ret_info));
}

static int links_put(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
                     const struct obj_cond *cond, struct etag *ret_etag)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_write(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_put(r->store, key, buf, len, meta, cond, ret_etag));
}

static int links_delete(struct objstore *st, const char *key, const struct obj_cond *cond)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_write(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_delete(r->store, key, cond));
}

/* The store of both keys. -EXDEV: they are in two. Found at once, or one whose store was replaced in between would count as two. */
static int route_pair(struct drv_links *l, const char **src, const char **dst, struct route **ret)
{
    mutex_lock(&l->mu);
    struct route *from = find_locked(l, *src), *to = find_locked(l, *dst);
    from->refs++;
    to->refs++;
    mutex_unlock(&l->mu);
    *src += from->len;
    *dst += to->len;
    int rc = refuse_write(to, *dst);
    if (rc == 0)
        rc = from != to ? -EXDEV : refuse_read(from, *src);
    route_put(l, from);
    *ret = to;
    return rc;
}

static int links_copy(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag)
{
    struct drv_links *l = links_of(st);
    struct obj_copy inner = *copy;
    struct route *r;
    int rc = route_pair(l, &inner.src, &inner.dst, &r);
    return leave(l, r, rc < 0 ? rc : objstore_copy_with(r->store, &inner, ret_etag));
}

/* ---- multipart ---- */

static int links_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_write(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_mpu_create(r->store, key, meta, ret_upload_id));
}

static int links_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf,
                          struct obj_part *part)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_write(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_mpu_part(r->store, key, upload_id, buf, part));
}

static int links_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                               const struct etag *src_etag, uint64_t off, struct obj_part *part)
{
    struct drv_links *l = links_of(st);
    struct route *r;
    int rc = route_pair(l, &src, &key, &r);
    return leave(l, r, rc < 0 ? rc : objstore_mpu_part_copy(r->store, key, upload_id, src, src_etag, off, part));
}

static int links_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                              size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_write(r, key);
    if (rc == 0)
        rc = objstore_mpu_complete(r->store, key, upload_id, parts, n_parts, token, cond, ret_etag);
    return leave(l, r, rc);
}

static int links_mpu_abort(struct objstore *st, const char *key, const char *upload_id)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_write(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_mpu_abort(r->store, key, upload_id));
}

static int links_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                           size_t *ret_n)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    int rc = refuse_write(r, key);
    return leave(l, r, rc < 0 ? rc : objstore_mpu_parts(r->store, key, upload_id, ret_parts, ret_n));
}

struct uploads {
    struct drv_links *l;
    const struct route *route;
    int (*fn)(void *ctx, const char *key, const char *upload_id);
    void *ctx;
    bool stopped; /* by fn */
};

static int on_upload(void *ctx, const char *key, const char *upload_id)
{
    struct uploads *u = ctx;
    mutex_lock(&u->l->mu);
    bool hidden = u->route->len == 0 && find_locked(u->l, key) != u->route;
    mutex_unlock(&u->l->mu);
    g_autofree char *full = g_strconcat(u->route->dir, key, NULL);
    int rc = hidden ? 0 : u->fn(u->ctx, full, upload_id);
    u->stopped |= rc != 0;
    return rc;
}

/* Below prefix in the route's store; nothing where it has none. */
static int list_uploads(struct uploads *u, const char *prefix)
{
    return u->route->store ? objstore_mpu_list(u->route->store, prefix, on_upload, u) : 0;
}

static int links_mpu_list(struct objstore *st, const char *prefix,
                          int (*fn)(void *ctx, const char *key, const char *upload_id), void *ctx)
{
    struct drv_links *l = links_of(st);
    const char *rest;
    struct route *r = route_get(l, prefix, &rest);
    struct uploads u = {l, r, fn, ctx, false};
    int rc = leave(l, r, r->len && !r->store ? -EIO : list_uploads(&u, rest));
    g_autoptr(GPtrArray) below = g_ptr_array_new();
    mutex_lock(&l->mu);
    for (guint i = 0; i < l->routes->len; i++) {
        struct route *link = l->routes->pdata[i];
        if (link->len > strlen(prefix) && g_str_has_prefix(link->dir, prefix)) {
            link->refs++;
            g_ptr_array_add(below, link);
        }
    }
    mutex_unlock(&l->mu);
    for (guint i = 0; i < below->len; i++) {
        u.route = below->pdata[i];
        int one = u.stopped ? -ECANCELED : list_uploads(&u, ""); /* one store that fails leaves the others alone */
        one = leave(l, below->pdata[i], one);
        rc = rc == 0 ? one : rc;
    }
    return rc;
}

/* ---- listing ---- */

#define ENOUGH 1 /* own result: max_keys were given out */

struct merge {
    struct drv_links *l;
    const struct obj_list_req *req;
    GPtrArray *dirs; /* names relative to the prefix that are to be shown, sorted; owned */
    guint next;
    obj_list_fn *fn;
    void *ctx;
    uint32_t n;
    bool truncated;
    int stopped; /* what fn returned */
};

static int give(struct merge *m, const struct obj_entry *e)
{
    if (m->req->max_keys && m->n == m->req->max_keys) {
        m->truncated = true;
        return ENOUGH;
    }
    m->n++;
    m->stopped = m->fn(m->ctx, e);
    return m->stopped ? ENOUGH : 0;
}

/* A link's directory, or one above it. */
static int give_dir(struct merge *m, const char *name)
{
    struct obj_entry e = {.name = name, .name_len = strlen(name), .is_prefix = m->req->delimiter};
    return give(m, &e);
}

static int compare_names(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int c = memcmp(a, b, MIN(a_len, b_len));
    return c ? c : (a_len > b_len) - (a_len < b_len);
}

/* Is the row of something that a link hides, or that is shown as a directory anyway? */
static bool is_hidden(struct merge *m, const struct obj_entry *e)
{
    g_autofree char *name = g_strndup(e->name, e->name_len);
    g_autofree char *key = g_strconcat(m->req->prefix, name, NULL);
    for (guint i = 0; i < m->dirs->len; i++)
        if (g_str_equal(m->dirs->pdata[i], name))
            return true;
    mutex_lock(&m->l->mu);
    bool hidden = find_locked(m->l, key) != m->l->root;
    mutex_unlock(&m->l->mu);
    return hidden;
}

static int on_row(void *ctx, const struct obj_entry *e)
{
    struct merge *m = ctx;
    for (; m->next < m->dirs->len; m->next++) {
        const char *dir = m->dirs->pdata[m->next];
        if (compare_names(dir, strlen(dir), e->name, e->name_len) > 0)
            break;
        int r = give_dir(m, dir);
        if (r)
            return r;
    }
    return is_hidden(m, e) ? 0 : give(m, e);
}

static gint by_name(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What is to be shown of the links below the prefix: the next component of their directories, or all of them. */
static GPtrArray *dirs_below(struct drv_links *l, const struct obj_list_req *req)
{
    GPtrArray *dirs = g_ptr_array_new_with_free_func(g_free);
    size_t skip = strlen(req->prefix);
    mutex_lock(&l->mu);
    for (guint i = 0; i < l->routes->len; i++) {
        const struct route *r = l->routes->pdata[i];
        if (!g_str_has_prefix(r->dir, req->prefix))
            continue;
        const char *name = r->dir + skip;
        char *shown = req->delimiter ? g_strndup(name, strcspn(name, "/") + 1) : g_strdup(name);
        g_autofree char *key = g_strconcat(req->prefix, shown, NULL);
        bool skipped = (req->start_after && strcmp(key, req->start_after) <= 0) ||
                       g_ptr_array_find_with_equal_func(dirs, shown, g_str_equal, NULL);
        if (skipped)
            g_free(shown);
        else
            g_ptr_array_add(dirs, shown);
    }
    mutex_unlock(&l->mu);
    g_ptr_array_sort(dirs, by_name);
    return dirs;
}

/* A listing of the root's, with the directories of links in it. */
static int list_merged(struct drv_links *l, const struct obj_list_req *req, GPtrArray *dirs, obj_list_fn *fn, void *ctx,
                       bool *ret_truncated)
{
    struct merge m = {.l = l, .req = req, .dirs = dirs, .fn = fn, .ctx = ctx};
    struct obj_list_req all = *req;
    all.max_keys = 0; /* rows may be left out */
    int r = l->root->store ? objstore_list(l->root->store, &all, on_row, &m, NULL) : 0;
    for (; r == 0 && m.next < dirs->len; m.next++)
        r = give_dir(&m, dirs->pdata[m.next]);
    if (r == ENOUGH)
        r = m.stopped;
    *ret_truncated = m.truncated;
    return r;
}

/* A listing inside of a link. */
static int list_link(struct route *r, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated)
{
    struct obj_list_req inner = *req;
    inner.prefix = req->prefix + r->len;
    if (!r->store)
        return -EIO;
    if (req->start_after && g_str_has_prefix(req->start_after, r->dir))
        inner.start_after = req->start_after + r->len;
    else if (req->start_after && strcmp(req->start_after, r->dir) > 0)
        return 0;
    else
        inner.start_after = NULL;
    return objstore_list(r->store, &inner, fn, ctx, ret_truncated);
}

static int links_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx,
                      bool *ret_truncated)
{
    struct drv_links *l = links_of(st);
    const char *rest;
    struct route *r = route_get(l, req->prefix, &rest);
    if (r->len)
        return leave(l, r, list_link(r, req, fn, ctx, ret_truncated));
    mutex_lock(&l->mu);
    bool plain = l->routes->len == 0 && r->store;
    mutex_unlock(&l->mu);
    if (plain)
        return leave(l, r, objstore_list(r->store, req, fn, ctx, ret_truncated));
    g_autoptr(GPtrArray) dirs = dirs_below(l, req);
    return leave(l, r, list_merged(l, req, dirs, fn, ctx, ret_truncated));
}

/* ---- the store as a whole ---- */

static void links_close(struct objstore *st)
{
    struct drv_links *l = links_of(st);
    for (guint i = 0; i < l->routes->len; i++)
        route_put(l, l->routes->pdata[i]);
    g_ptr_array_unref(l->routes);
    route_put(l, l->root);
    g_ptr_array_unref(l->leaving);
    mutex_fini(&l->mu);
    objstore_base_clear(st);
    g_free(l);
}

/* The root's: links that cannot be opened are tried again anyway. */
static char *links_resume(const struct objstore *st)
{
    const struct objstore *root = ((const struct drv_links *)st)->root->store;
    return root ? objstore_resume(root) : NULL;
}

static void take_locked(GPtrArray *all, struct route *r)
{
    r->refs++;
    g_ptr_array_add(all, r);
}

static void links_shutdown(struct objstore *st)
{
    struct drv_links *l = links_of(st);
    g_autoptr(GPtrArray) all = g_ptr_array_new();
    mutex_lock(&l->mu);
    l->stopping = true;
    take_locked(all, l->root);
    for (guint i = 0; i < l->routes->len; i++)
        take_locked(all, l->routes->pdata[i]);
    for (guint i = 0; i < l->leaving->len; i++)
        take_locked(all, l->leaving->pdata[i]);
    mutex_unlock(&l->mu);
    for (guint i = 0; i < all->len; i++) {
        struct route *r = all->pdata[i];
        if (r->store)
            objstore_shutdown(r->store);
        route_put(l, r);
    }
}

static int links_check(struct objstore *st, char **ret_msg)
{
    struct drv_links *l = links_of(st);
    return l->root->store ? objstore_check(l->root->store, ret_msg) : 0;
}

/* A prefix ends in '/', and its probe is made inside of one store. */
static int links_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key_prefix, &key_prefix);
    int rc = !r->store ? (r->len ? -EIO : -EACCES) : 0;
    return leave(l, r, rc < 0 ? rc : objstore_probe(r->store, key_prefix, ret_caps));
}

static int64_t links_offline(const struct objstore *st)
{
    const struct drv_links *l = (const struct drv_links *)st;
    return l->root->store ? objstore_offline_since_ns(l->root->store) : 0;
}

static void links_at(struct objstore *st, const char *key, struct objstore_at *ret)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    if (r->store)
        objstore_at(r->store, key, ret);
    else /* a root without a store is all there is of it: nothing it could come back to */
        *ret = (struct objstore_at){.limits = l->base.limits, .offline_since_ns = r->len ? r->since_ns : 0};
    ret->limits.key_max_bytes += (uint32_t)r->len;
    route_put(l, r);
}

static void links_set_caps_at(struct objstore *st, const char *key, uint32_t caps)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    if (r->store)
        objstore_set_caps(r->store, caps);
    route_put(l, r);
}

static void links_sum_note_at(struct objstore *st, const char *key, bool fits)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    if (r->store)
        objstore_sum_note(r->store, key, fits);
    route_put(l, r);
}

static bool links_sums_count_at(struct objstore *st, const char *key)
{
    struct drv_links *l = links_of(st);
    struct route *r = route_get(l, key, &key);
    bool count = r->store && objstore_sums_count(r->store, key);
    route_put(l, r);
    return count;
}

static struct objstore *links_root(struct objstore *st)
{
    return links_of(st)->root->store;
}

static const struct objstore_driver drv_links = {
    .close = links_close,
    .shutdown = links_shutdown,
    .resume = links_resume,
    .check = links_check,
    .probe = links_probe,
    .offline_since_ns = links_offline,
    .at = links_at,
    .set_caps_at = links_set_caps_at,
    .sum_note_at = links_sum_note_at,
    .sums_count_at = links_sums_count_at,
    .root = links_root,
    .head = links_head,
    .get = links_get,
    .put = links_put,
    .delete = links_delete,
    .copy = links_copy,
    .list = links_list,
    .mpu_create = links_mpu_create,
    .mpu_part = links_mpu_part,
    .mpu_part_copy = links_mpu_part_copy,
    .mpu_complete = links_mpu_complete,
    .mpu_abort = links_mpu_abort,
    .mpu_parts = links_mpu_parts,
    .mpu_list = links_mpu_list,
};

/* What holds of every key as long as no store says less: keys may be longer by a link's directory. */
static const struct objstore_limits widest = {
    .part_min_bytes = 5ull << 20,
    .part_max_bytes = 5ull << 30,
    .put_max_bytes = 5ull << 30,
    .copy_max_bytes = 5ull << 30,
    .object_max_bytes = 5ull << 40,
    .checked_bytes = 1u << 20,
    .parts_max = 10000,
    .key_max_bytes = 1024,
};

struct objstore *objstore_links_wrap(struct objstore *root, const char *source, const char *identity)
{
    struct drv_links *l = g_new0(struct drv_links, 1);
    l->base.drv = &drv_links;
    l->base.source = g_strdup(root ? root->source : source);
    l->base.identity = g_strdup(root ? root->identity : identity);
    l->base.limits = root ? root->limits : widest;
    l->root = route_new("", root);
    l->routes = g_ptr_array_new();
    l->leaving = g_ptr_array_new();
    mutex_init(&l->mu, LOCK_OBJ_LINKS);
    return &l->base;
}

/* ---- the set ---- */

static struct route *route_of_dir_locked(struct drv_links *l, const char *dir, guint *ret_index)
{
    size_t len = strlen(dir);
    for (guint i = 0; i < l->routes->len; i++) {
        struct route *r = l->routes->pdata[i];
        if (r->len == len + 1 && strncmp(r->dir, dir, len) == 0) {
            *ret_index = i;
            return r;
        }
    }
    return NULL;
}

int objstore_links_add(struct objstore *st, const char *dir, struct objstore *store)
{
    g_assert(st->drv == &drv_links && *dir && dir[0] != '/' && !g_str_has_suffix(dir, "/"));
    struct drv_links *l = links_of(st);
    struct route *r = route_new(dir, store);
    mutex_lock(&l->mu);
    bool taken = false;
    for (guint i = 0; i < l->routes->len; i++) {
        const struct route *other = l->routes->pdata[i];
        taken |= strncmp(other->dir, r->dir, MIN(other->len, r->len)) == 0;
    }
    bool stopping = l->stopping;
    if (!taken)
        g_ptr_array_add(l->routes, r);
    mutex_unlock(&l->mu);
    if (stopping && store && !taken)
        objstore_shutdown(store);
    if (taken)
        route_put(l, r);
    return taken ? -EEXIST : 0;
}

int objstore_links_replace(struct objstore *st, const char *dir, struct objstore *store)
{
    g_assert(st->drv == &drv_links);
    struct drv_links *l = links_of(st);
    struct route *r = route_new(dir, store);
    guint i = 0;
    mutex_lock(&l->mu);
    struct route *old = route_of_dir_locked(l, dir, &i);
    bool stopping = l->stopping;
    if (old) {
        l->routes->pdata[i] = r;
        g_ptr_array_add(l->leaving, old); /* until route_put() below, if no call is under way */
    }
    mutex_unlock(&l->mu);
    if (old && stopping && store)
        objstore_shutdown(store);
    route_put(l, old ? old : r);
    return old ? 0 : -ENOENT;
}

int objstore_links_remove(struct objstore *st, const char *dir)
{
    g_assert(st->drv == &drv_links);
    struct drv_links *l = links_of(st);
    guint i = 0;
    mutex_lock(&l->mu);
    struct route *r = route_of_dir_locked(l, dir, &i);
    if (r)
        (void)g_ptr_array_remove_index(l->routes, i);
    mutex_unlock(&l->mu);
    if (r && r->store) /* what still runs there is not waited for */
        objstore_shutdown(r->store);
    if (r)
        route_put(l, r);
    return r ? 0 : -ENOENT;
}

int objstore_links_health(struct objstore *st, const char *dir, struct objstore_link_health *ret)
{
    g_assert(st->drv == &drv_links);
    struct drv_links *l = links_of(st);
    guint i = 0;
    mutex_lock(&l->mu);
    const struct route *r = route_of_dir_locked(l, dir, &i);
    if (r)
        *ret = (struct objstore_link_health){r->store != NULL, r->err, r->since_ns};
    int64_t offline_ns = r && r->store ? objstore_offline_since_ns(r->store) : 0;
    if (offline_ns && !ret->err) /* a call that waits for it has not ended yet */
        *ret = (struct objstore_link_health){true, -ETIMEDOUT, offline_ns};
    mutex_unlock(&l->mu);
    return r ? 0 : -ENOENT;
}

int objstore_links_check(struct objstore *st, const char *dir, char **ret_msg)
{
    g_assert(st->drv == &drv_links);
    struct drv_links *l = links_of(st);
    guint i = 0;
    mutex_lock(&l->mu);
    struct route *r = route_of_dir_locked(l, dir, &i);
    if (r)
        r->refs++;
    mutex_unlock(&l->mu);
    if (!r)
        return -ENOENT;
    return leave(l, r, r->store ? objstore_check(r->store, ret_msg) : -EIO);
}
