/*
 * fsck: what the database says of the bucket against the bucket. Reads only, but for the abort of uploads that this cache has a record of and no file needs.
 *
 * A store that cannot be opened or gives an error is named and not asked further; those of the others, the root's and of each link, are.
 *
 * Objects that were changed or removed elsewhere are no damage: said, not counted. The names of one directory are compared with one listing.
 */
#include "base/clock.h"
#include "fsck_internal.h"
#include "links.h"
#include "objstore_links.h"
#include "store_options.h"

#include <string.h>
#include <sys/stat.h>

#define TIMEOUT_NS (20 * NS_PER_S)

/* One of the stores that st sends keys to. */
struct place {
    char *dir;    /* "a/b/", "" of the root; owned */
    bool unasked; /* it cannot be opened, or gave an error: nothing more is asked of it */
};

struct bucket {
    struct fsck *f;
    struct objstore *st;
    GPtrArray *links; /* struct place */
    struct place root;
    bool unlisted; /* not all uploads in progress are known */
};

/* ---- what does not answer ---- */

static void place_free(void *p)
{
    g_free(((struct place *)p)->dir);
    g_free(p);
}

static struct place *place_of(struct bucket *b, const char *key)
{
    for (guint i = 0; i < b->links->len; i++)
        if (g_str_has_prefix(key, ((struct place *)b->links->pdata[i])->dir))
            return b->links->pdata[i];
    return &b->root;
}

static void give_up(struct bucket *b, struct place *p, const char *how, const char *why)
{
    g_autofree char *dir = *p->dir ? g_strndup(p->dir, strlen(p->dir) - 1) : g_strdup("bucket");
    fsck_remark(b->f, dir, "%s%s: %s", p == &b->root ? "" : "the bucket of this link is ", how, why);
    p->unasked = true;
}

/* What a call for key gave: an error ends the questions to that store only. True: it gave none. */
static bool answered(struct bucket *b, const char *key, int r)
{
    struct place *p = place_of(b, key);
    if (r < 0 && !p->unasked)
        give_up(b, p, "not asked to the end", objstore_err_text(r));
    return r >= 0;
}

static bool all_asked(const struct bucket *b)
{
    bool all = !b->root.unasked && !b->unlisted;
    for (guint i = 0; i < b->links->len; i++)
        all &= !((const struct place *)b->links->pdata[i])->unasked;
    return all;
}

/* ---- uploads ---- */

static int collect_upload(void *ctx, const struct meta_upload *u)
{
    struct meta_upload *own = g_new(struct meta_upload, 1);
    *own = *u;
    own->key = g_strdup(u->key);
    own->upload_id = g_strdup(u->upload_id);
    g_ptr_array_add(ctx, own);
    return 0;
}

static void upload_free(void *u)
{
    meta_upload_clear(u);
    g_free(u);
}

/* Was it completed, and only the reply lost? */
static int was_completed(struct bucket *b, const struct meta_upload *u)
{
    char token[TOKEN_MAX + 1];
    struct obj_info info = {0};
    int r = cache_scan_upload_token(b->f->m, u->vid, token);
    if (r == 0 && *token)
        r = objstore_head(b->st, u->key, &info);
    bool done = r == 0 && *token && g_str_equal(info.token, token);
    obj_info_clear(&info);
    return r == -ENOENT ? 0 : r < 0 ? r : done;
}

static int check_upload(struct bucket *b, const struct meta_upload *u)
{
    struct fsck *f = b->f;
    struct obj_part *parts = NULL;
    size_t n = 0;
    bool needed = g_hash_table_contains(f->dirty, &u->vid);
    int r = objstore_mpu_parts(b->st, u->key, u->upload_id, &parts, &n);
    g_free(parts);
    if (r != -ENOENT && !answered(b, u->key, r))
        return 0;
    bool there = r == 0;
    if (there && needed)
        return 0;
    if (!there && needed) {
        r = was_completed(b, u);
        if (r > 0)
            fsck_remark(f, u->key, "uploaded whole, which is not recorded yet: the next mount does that");
        if (r > 0 || !answered(b, u->key, r))
            return 0;
    }
    fsck_finding(f, u->key, there ? "abort it in the bucket" : "forget it; what it held is sent again", "%s upload %s",
                 there ? "no file needs its" : "the bucket does not know its", u->upload_id);
    if (!f->o->repair)
        return 0;
    r = there ? objstore_mpu_abort(b->st, u->key, u->upload_id) : 0;
    if (r != -ENOENT && !answered(b, u->key, r))
        return 0;
    cache_scan_forget_upload(f->b, u->vid);
    return 0;
}

struct unknown {
    const GPtrArray *known;
    unsigned n;
};

static int count_unknown(void *ctx, const char *key, const char *upload_id)
{
    struct unknown *u = ctx;
    for (unsigned i = 0; i < u->known->len; i++)
        if (g_str_equal(((struct meta_upload *)u->known->pdata[i])->upload_id, upload_id))
            return 0;
    u->n++;
    return 0;
}

/* Of all stores; some cannot tell, or may not. */
static void list_uploads(struct bucket *b, struct unknown *others)
{
    int r = objstore_mpu_list(b->st, "", count_unknown, others);
    b->unlisted = r < 0 && r != -EOPNOTSUPP && r != -EACCES;
    if (b->unlisted)
        fsck_remark(b->f, "bucket", "not all uploads in progress could be listed: %s", objstore_err_text(r));
}

static int check_uploads(struct bucket *b)
{
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func(upload_free);
    struct unknown others = {all, 0};
    int r = meta_upload_each(b->f->m, collect_upload, all);
    if (r == 0)
        list_uploads(b, &others);
    if (r == 0 && others.n > 0)
        fsck_remark(
            b->f, "bucket",
            "%u uploads in progress are not of this cache, or of a kill while they were begun; a lifecycle rule "
            "for incomplete uploads ends those that nobody does",
            others.n);
    for (unsigned i = 0; r == 0 && i < all->len; i++) {
        const struct meta_upload *u = all->pdata[i];
        if (!place_of(b, u->key)->unasked)
            r = check_upload(b, u);
    }
    return r;
}

/* ---- what unpublished files still need from the bucket ---- */

static int check_base(struct bucket *b, const struct dirty_file *df)
{
    struct fsck *f = b->f;
    struct meta_inode in;
    struct meta_cached c;
    struct obj_info info = {0};
    int r = meta_inode_get(f->m, df->ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    bool whole = meta_cached_get(f->m, df->vid, &c) == 0 && (c.flags & CACHED_COMPLETE);
    if (in.base_key && in.base_limit > 0 && !whole && in.content != CONTENT_QUARANTINED &&
        !place_of(b, in.base_key)->unasked) {
        r = objstore_head(b->st, in.base_key, &info);
        bool ours = r == 0 && g_str_has_prefix(info.token, meta_uuid(f->m)); /* a version of it, not recorded yet */
        bool differs = r == 0 && !etag_equal(&info.etag, &in.base_etag) && !ours;
        g_autofree char *path = fsck_path(f, in.ino);
        if (r == -ENOENT || differs)
            fsck_finding(
                f, path, NULL,
                "what was not changed of it is only in the object '%s', which was %s elsewhere; its changed bytes are "
                "kept: read them in a mount, or put the object back",
                in.base_key, differs ? "changed" : "removed");
        if (r != -ENOENT)
            (void)answered(b, in.base_key, r);
    }
    obj_info_clear(&info);
    meta_inode_clear(&in);
    return 0;
}

static int check_bases(struct bucket *b)
{
    GHashTableIter it;
    void *df;
    int r = 0;
    g_hash_table_iter_init(&it, b->f->dirty);
    while (r == 0 && g_hash_table_iter_next(&it, NULL, &df))
        if (((struct dirty_file *)df)->has_base)
            r = check_base(b, df);
    return r;
}

/* ---- what was published ---- */

struct found {
    uint64_t size;
    struct etag etag;
};

static int on_object(void *ctx, const struct obj_entry *e)
{
    if (e->is_prefix || e->odd)
        return 0;
    struct found *x = g_new(struct found, 1);
    *x = (struct found){e->size, e->etag};
    g_hash_table_insert(ctx, g_strndup(e->name, e->name_len), x);
    return 0;
}

/* The file that holds all its bytes here, if one does. Owned. */
static char *local_copy(struct fsck *f, uint64_t ino)
{
    struct meta_inode in;
    struct meta_cached c;
    g_autofree char *dir = NULL;
    if (meta_inode_get(f->m, ino, &in) < 0)
        return NULL;
    uint64_t vid = in.vid;
    meta_inode_clear(&in);
    if (!vid || meta_cached_get(f->m, vid, &c) < 0 || !(c.flags & CACHED_COMPLETE) ||
        cache_scan_tier(f->m, f->dir, c.tier, &dir) < 0)
        return NULL;
    return g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", dir, (unsigned)(vid & 0xff), vid);
}

static void compare(struct fsck *f, const struct meta_dentry *d, const struct found *x)
{
    g_autofree char *path = fsck_path_of_name(f, d->parent, d->name), *copy = x ? NULL : local_copy(f, d->ino);
    if (!x)
        fsck_remark(f, path, "was published, but its object was removed elsewhere%s%s",
                    copy ? "; a copy is still in " : "", copy ? copy : "");
    else if (!etag_equal(&x->etag, &d->uetag) || x->size != d->usize)
        fsck_remark(f, path, "was published, but its object was changed elsewhere since; a mount shows that version");
}

static void check_moved(struct bucket *b, const struct meta_dentry *d)
{
    struct obj_info info = {0};
    if (place_of(b, d->ukey)->unasked)
        return;
    int r = objstore_head(b->st, d->ukey, &info);
    struct found x = {info.size, info.etag};
    obj_info_clear(&info);
    if (r == -ENOENT || answered(b, d->ukey, r))
        compare(b->f, d, r == 0 ? &x : NULL);
}

static bool is_published(const struct meta_dentry *d)
{
    return S_ISREG(d->type) && (d->flags & DENTRY_UPSTREAM) && d->pub_gen;
}

static int collect_published(void *ctx, const struct meta_dentry *d)
{
    if (is_published(d))
        meta_dentry_collect(ctx, d);
    return 0;
}

static int check_dir(struct bucket *b, uint64_t ino)
{
    g_autoptr(GPtrArray) names = meta_dentry_array();
    int r = meta_dentry_each(b->f->m, ino, 0, collect_published, names);
    if (r < 0 || names->len == 0)
        return r;
    g_autofree char *dir = fsck_path(b->f, ino),
                    *prefix = g_str_equal(dir, "/") ? g_strdup("") : g_strconcat(dir, "/", NULL);
    g_autoptr(GHashTable) objects = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    struct obj_list_req req = {.prefix = prefix, .delimiter = true};
    if (place_of(b, prefix)->unasked || !answered(b, prefix, objstore_list(b->st, &req, on_object, objects, NULL)))
        return 0;
    for (unsigned i = 0; i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        fsck_step(b->f);
        if (d->ukey)
            check_moved(b, d);
        else
            compare(b->f, d, g_hash_table_lookup(objects, d->name));
    }
    return 0;
}

static int collect_dir(void *ctx, const struct meta_inode *in)
{
    if (S_ISDIR(in->mode))
        g_array_append_val((GArray *)ctx, in->ino);
    return 0;
}

static int check_published(struct bucket *b)
{
    g_autoptr(GArray) dirs = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    int r = meta_inode_each(b->f->m, collect_dir, dirs);
    for (unsigned i = 0; r == 0 && i < dirs->len; i++)
        r = check_dir(b, g_array_index(dirs, uint64_t, i));
    return r;
}

/* ---- the bucket ---- */

static struct objstore_config like_fsck(const struct fsck *f)
{
    return (struct objstore_config){
        .op_timeout_ns = TIMEOUT_NS, .max_connections = 4, .read_only = true, .escape = f->escape};
}

/* The mount's own; -ENXIO: it has none but links. */
static int open_root(struct fsck *f, struct objstore **ret, char **ret_msg)
{
    struct objstore_config c = like_fsck(f);
    struct store_options *owner = NULL;
    struct objstore *st = NULL;
    if (g_str_equal(f->identity, LINKS_ONLY))
        return -ENXIO;
    c.known = objstore_known_is;
    c.known_ctx = f->identity;
    int r = store_options_load(f->dir, &c, &owner);
    if (r == 0)
        r = objstore_open(&c, &st, ret_msg);
    if (r == 0 && !g_str_equal(objstore_identity(st), f->identity)) {
        r = -EXDEV;
        *ret_msg = g_strdup_printf("%s is not %s", objstore_identity(st), f->identity);
    }
    if (r == 0)
        r = objstore_check(st, ret_msg);
    store_options_free(owner);
    if (r < 0)
        objstore_close(st);
    else
        *ret = st;
    return r;
}

static void on_link(void *ctx, const char *dir, const char *error)
{
    struct bucket *b = ctx;
    struct place *p = g_new0(struct place, 1);
    p->dir = g_strconcat(dir, "/", NULL);
    g_ptr_array_add(b->links, p);
    if (error)
        give_up(b, p, "not asked", error);
}

/* Without a store its keys give errors at once. */
static int check_link(struct bucket *b, struct place *p)
{
    g_autofree char *dir = g_strndup(p->dir, strlen(p->dir) - 1), *msg = NULL;
    int r = p->unasked ? 0 : objstore_links_check(b->st, dir, &msg);
    if (r == 0)
        return 0;
    give_up(b, p, "not asked", msg ? msg : objstore_err_text(r));
    return objstore_links_replace(b->st, dir, NULL);
}

static int open_bucket(struct bucket *b)
{
    struct fsck *f = b->f;
    struct objstore *st = NULL;
    g_autofree char *msg = NULL;
    int r = open_root(f, &st, &msg);
    if (r < 0 && r != -ENXIO)
        give_up(b, &b->root, "not asked",
                msg            ? msg
                : r == -ENOENT ? "no mount has stored where it is yet"
                               : objstore_err_text(r));
    b->st = objstore_links_wrap(st, LINKS_ONLY, LINKS_ONLY);
    const struct objstore_config c = like_fsck(f);
    r = links_open_stores(f->m, &c, b->st, on_link, b);
    for (guint i = 0; r == 0 && i < b->links->len; i++)
        r = check_link(b, b->links->pdata[i]);
    return r;
}

int fsck_store(struct fsck *f)
{
    struct bucket b = {.f = f, .links = g_ptr_array_new_with_free_func(place_free), .root = {.dir = g_strdup("")}};
    int r = open_bucket(&b);
    if (r == 0)
        r = fsck_end_pass(f, check_uploads(&b));
    if (r == 0)
        r = check_bases(&b);
    if (r == 0)
        r = check_published(&b);
    objstore_close(b.st);
    f->res->bucket_asked = r == 0 && all_asked(&b);
    if (r < 0)
        fsck_remark(f, "bucket", "could not be asked to the end: %s", err_text(r));
    g_ptr_array_unref(b.links);
    g_free(b.root.dir);
    return 0;
}
