/* Inode records and their extended attributes: thin layer over meta_db, see meta.h. Any thread; callers serialise read-modify-write. */
#include "meta_db.h"

int meta_inode_decode(uint64_t ino, const struct meta_val *v, struct meta_inode *ret)
{
    int r = meta_dec_inode(ino, v->data, v->len, ret);
    return r < 0 ? meta_db_bad(meta_key1(TAG_INODE, ino, NULL), r) : 0;
}

int meta_inode_get(struct meta *m, uint64_t ino, struct meta_inode *ret)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key1(TAG_INODE, ino, NULL), &v);
    return r < 0 ? r : meta_inode_decode(ino, &v, ret);
}

void meta_inode_put(struct meta_batch *b, const struct meta_inode *in)
{
    meta_db_put(b, meta_key1(TAG_INODE, in->ino, NULL), meta_enc_inode(in));
}

void meta_inode_del(struct meta_batch *b, uint64_t ino)
{
    meta_db_del(b, meta_key1(TAG_INODE, ino, NULL));
    meta_db_del_prefix(b, meta_key1(TAG_XATTR, ino, NULL));
}

struct inode_each {
    int (*fn)(void *ctx, const struct meta_inode *in);
    void *ctx;
};

static int on_inode(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct inode_each *e = ctx;
    struct meta_inode in;
    int r = meta_dec_inode(key->n[0], val, len, &in);
    if (r < 0)
        return r;
    r = e->fn(e->ctx, &in);
    meta_inode_clear(&in);
    return r;
}

int meta_inode_each(struct meta *m, int (*fn)(void *ctx, const struct meta_inode *in), void *ctx)
{
    struct inode_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key0(TAG_INODE, NULL), NULL, on_inode, &e);
}

int meta_xattr_get(struct meta *m, uint64_t ino, const char *name, GBytes **ret_value)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key1(TAG_XATTR, ino, name), &v);
    if (r < 0)
        return r;
    const void *data;
    size_t len;
    r = meta_dec_blob(v.data, v.len, &data, &len);
    if (r < 0)
        return meta_db_bad(meta_key1(TAG_XATTR, ino, name), r);
    *ret_value = g_bytes_new(data, len);
    return 0;
}

void meta_xattr_put(struct meta_batch *b, uint64_t ino, const char *name, const void *value, size_t len)
{
    meta_db_put(b, meta_key1(TAG_XATTR, ino, name), meta_enc_blob(value, len));
}

void meta_xattr_del(struct meta_batch *b, uint64_t ino, const char *name)
{
    meta_db_del(b, meta_key1(TAG_XATTR, ino, name));
}

struct xattr_each {
    int (*fn)(void *ctx, const char *name, size_t value_len);
    void *ctx;
};

static int on_xattr(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct xattr_each *e = ctx;
    const void *data;
    size_t data_len;
    int r = meta_dec_blob(val, len, &data, &data_len);
    if (r < 0)
        return r;
    g_autofree char *name = g_strndup(key->name, key->name_len);
    return e->fn(e->ctx, name, data_len);
}

int meta_xattr_each(struct meta *m, uint64_t ino, int (*fn)(void *ctx, const char *name, size_t value_len), void *ctx)
{
    struct xattr_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key1(TAG_XATTR, ino, NULL), NULL, on_xattr, &e);
}
