/* Multipart uploads under way and the parts the store acknowledged: thin layer over meta_db, see meta.h. Any thread. */
#include "meta_db.h"

int meta_upload_get(struct meta *m, uint64_t vid, struct meta_upload *ret)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key1(TAG_UPLOAD, vid, NULL), &v);
    if (r < 0)
        return r;
    r = meta_dec_upload(vid, v.data, v.len, ret);
    return r < 0 ? meta_db_bad(meta_key1(TAG_UPLOAD, vid, NULL), r) : 0;
}

void meta_upload_put(struct meta_batch *b, const struct meta_upload *u)
{
    meta_db_put(b, meta_key1(TAG_UPLOAD, u->vid, NULL), meta_enc_upload(u));
}

void meta_upload_del(struct meta_batch *b, uint64_t vid)
{
    meta_db_del(b, meta_key1(TAG_UPLOAD, vid, NULL));
    meta_db_del_prefix(b, meta_key1(TAG_PART, vid, NULL));
}

struct upload_each {
    int (*fn)(void *ctx, const struct meta_upload *u);
    void *ctx;
};

static int on_upload(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct upload_each *e = ctx;
    struct meta_upload u;
    int r = meta_dec_upload(key->n[0], val, len, &u);
    if (r < 0)
        return r;
    r = e->fn(e->ctx, &u);
    meta_upload_clear(&u);
    return r;
}

int meta_upload_each(struct meta *m, int (*fn)(void *ctx, const struct meta_upload *u), void *ctx)
{
    struct upload_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key0(TAG_UPLOAD, NULL), NULL, on_upload, &e);
}

void meta_part_put(struct meta_batch *b, const struct meta_part *p)
{
    meta_db_put(b, meta_key2(TAG_PART, p->vid, p->number), meta_enc_part(p));
}

void meta_part_del(struct meta_batch *b, uint64_t vid, uint32_t number)
{
    meta_db_del(b, meta_key2(TAG_PART, vid, number));
}

struct part_each {
    int (*fn)(void *ctx, const struct meta_part *p);
    void *ctx;
};

static int on_part(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct part_each *e = ctx;
    struct meta_part p;
    if (key->n[1] > UINT32_MAX)
        return -EBADMSG;
    int r = meta_dec_part(key->n[0], (uint32_t)key->n[1], val, len, &p);
    return r < 0 ? r : e->fn(e->ctx, &p);
}

int meta_part_each(struct meta *m, uint64_t vid, int (*fn)(void *ctx, const struct meta_part *p), void *ctx)
{
    struct part_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key1(TAG_PART, vid, NULL), NULL, on_part, &e);
}
