/*
 * Names. The whole record is stored twice, by name for a lookup and by id for a listing, so that both are one access and never
 * a join; a third key without content leads from an inode to its names. One batch writes all three, so they cannot differ after
 * a crash. A link whose record meanwhile names another inode is skipped: a put that changes ino leaves the old one behind.
 *
 * Any thread; callers serialise changes of one name.
 */
#include "meta_db.h"

#include <assert.h>
#include <string.h>

/* A record found by name, whose own name differs, or by id likewise, is damage. */
static int decode_checked(const struct meta_key *key, const void *val, size_t len, struct meta_dentry *ret)
{
    struct meta_dentry d;
    int r = meta_dec_dentry(key->n[0], val, len, &d);
    if (r < 0)
        return r;
    bool same = key->tag == TAG_DENTRY
                    ? d.id == key->n[1]
                    : strlen(d.name) == key->name_len && memcmp(d.name, key->name, key->name_len) == 0;
    if (!same) {
        meta_dentry_clear(&d);
        return -EBADMSG;
    }
    *ret = d;
    return 0;
}

int meta_dentry_decode(uint64_t parent, const char *name, const struct meta_val *v, struct meta_dentry *ret)
{
    struct meta_key key = {.tag = TAG_NAME, .n = {parent}, .name = name, .name_len = strlen(name)};
    int r = decode_checked(&key, v->data, v->len, ret);
    return r < 0 ? meta_db_bad(meta_key1(TAG_NAME, parent, name), r) : 0;
}

int meta_dentry_get(struct meta *m, uint64_t parent, const char *name, struct meta_dentry *ret)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key1(TAG_NAME, parent, name), &v);
    return r < 0 ? r : meta_dentry_decode(parent, name, &v, ret);
}

void meta_dentry_put(struct meta_batch *b, struct meta_dentry *d)
{
    assert(d->name && d->name[0]);
    if (d->id == 0)
        d->id = meta_next_ino(meta_db_batch_owner(b));
    meta_db_put(b, meta_key1(TAG_NAME, d->parent, d->name), meta_enc_dentry(d));
    meta_db_put(b, meta_key2(TAG_DENTRY, d->parent, d->id), meta_enc_dentry(d));
    meta_db_put(b, meta_key3(TAG_LINK, d->ino, d->parent, d->id), meta_enc_link());
}

void meta_dentry_del(struct meta_batch *b, const struct meta_dentry *d)
{
    meta_db_del(b, meta_key1(TAG_NAME, d->parent, d->name));
    meta_db_del(b, meta_key2(TAG_DENTRY, d->parent, d->id));
    meta_db_del(b, meta_key3(TAG_LINK, d->ino, d->parent, d->id));
}

struct dentry_each {
    struct meta *m;
    int (*fn)(void *ctx, const struct meta_dentry *d);
    void *ctx;
};

static int on_dentry(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct dentry_each *e = ctx;
    struct meta_dentry d;
    int r = decode_checked(key, val, len, &d);
    if (r < 0)
        return r;
    r = e->fn(e->ctx, &d);
    meta_dentry_clear(&d);
    return r;
}

int meta_dentry_each(struct meta *m, uint64_t parent, uint64_t after, int (*fn)(void *ctx, const struct meta_dentry *d),
                     void *ctx)
{
    if (after == UINT64_MAX)
        return 0;
    struct dentry_each e = {m, fn, ctx};
    return meta_db_scan(m->db, meta_key1(TAG_DENTRY, parent, NULL), meta_key2(TAG_DENTRY, parent, after + 1), on_dentry,
                        &e);
}

int meta_name_each(struct meta *m, uint64_t parent, const char *from, int (*fn)(void *ctx, const struct meta_dentry *d),
                   void *ctx)
{
    struct dentry_each e = {m, fn, ctx};
    return meta_db_scan(m->db, meta_key1(TAG_NAME, parent, NULL), meta_key1(TAG_NAME, parent, from), on_dentry, &e);
}

static int on_link(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct dentry_each *e = ctx;
    uint64_t ino = key->n[0];
    struct meta_key record = {.tag = TAG_DENTRY, .n = {key->n[1], key->n[2]}};
    META_VAL v = {0};
    int r = meta_db_get(e->m->db, meta_key2(TAG_DENTRY, record.n[0], record.n[1]), &v);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    struct meta_dentry d;
    r = decode_checked(&record, v.data, v.len, &d);
    if (r < 0)
        return r;
    r = d.ino == ino ? e->fn(e->ctx, &d) : 0;
    meta_dentry_clear(&d);
    return r;
}

int meta_link_each(struct meta *m, uint64_t ino, int (*fn)(void *ctx, const struct meta_dentry *d), void *ctx)
{
    struct dentry_each e = {m, fn, ctx};
    return meta_db_scan(m->db, meta_key1(TAG_LINK, ino, NULL), NULL, on_link, &e);
}

int meta_dir_has_entries(struct meta *m, uint64_t parent)
{
    return meta_db_any(m->db, meta_key1(TAG_DENTRY, parent, NULL));
}

/* ---- copies ---- */

static void free_copy(void *arg)
{
    meta_dentry_clear(arg);
    g_free(arg);
}

GPtrArray *meta_dentry_array(void)
{
    return g_ptr_array_new_with_free_func(free_copy);
}

void meta_dentry_collect(GPtrArray *a, const struct meta_dentry *d)
{
    struct meta_dentry *copy = g_new0(struct meta_dentry, 1);
    meta_dentry_copy(copy, d);
    g_ptr_array_add(a, copy);
}

static int collect(void *ctx, const struct meta_dentry *d)
{
    meta_dentry_collect(ctx, d);
    return 0;
}

int meta_dentry_list(struct meta *m, uint64_t parent, GPtrArray **ret)
{
    g_autoptr(GPtrArray) a = meta_dentry_array();
    int r = meta_dentry_each(m, parent, 0, collect, a);
    if (r == 0)
        *ret = g_steal_pointer(&a);
    return r;
}

int meta_link_list(struct meta *m, uint64_t ino, GPtrArray **ret)
{
    g_autoptr(GPtrArray) a = meta_dentry_array();
    int r = meta_link_each(m, ino, collect, a);
    if (r == 0)
        *ret = g_steal_pointer(&a);
    return r;
}

static int take_first(void *ctx, const struct meta_dentry *d)
{
    meta_dentry_copy(ctx, d);
    return 1;
}

int meta_link_first(struct meta *m, uint64_t ino, struct meta_dentry *ret)
{
    int r = meta_link_each(m, ino, take_first, ret);
    return r > 0 ? 0 : r < 0 ? r : -ENOENT;
}
