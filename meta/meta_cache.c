/* The cache index, presence maps and chunk checksums of cache files: thin layer over meta_db, see meta.h. Any thread. */
#include "meta_db.h"

int meta_segment_get(struct meta *m, uint64_t vid, uint32_t segment, struct meta_segment *ret)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key2(TAG_SEGMENT, vid, segment), &v);
    if (r < 0)
        return r;
    r = meta_dec_segment(v.data, v.len, ret);
    return r < 0 ? meta_db_bad(meta_key2(TAG_SEGMENT, vid, segment), r) : 0;
}

void meta_segment_put(struct meta_batch *b, uint64_t vid, uint32_t segment, const struct meta_segment *s)
{
    meta_db_put(b, meta_key2(TAG_SEGMENT, vid, segment), meta_enc_segment(s));
}

int meta_chunk_crc_get(struct meta *m, uint64_t vid, uint64_t chunk, uint32_t *ret_crc)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key2(TAG_CRC, vid, chunk), &v);
    if (r < 0)
        return r;
    r = meta_dec_crc(v.data, v.len, ret_crc);
    return r < 0 ? meta_db_bad(meta_key2(TAG_CRC, vid, chunk), r) : 0;
}

void meta_chunk_crc_put(struct meta_batch *b, uint64_t vid, uint64_t chunk, uint32_t crc)
{
    meta_db_put(b, meta_key2(TAG_CRC, vid, chunk), meta_enc_crc(crc));
}

void meta_chunk_crc_del(struct meta_batch *b, uint64_t vid, uint64_t chunk)
{
    meta_db_del(b, meta_key2(TAG_CRC, vid, chunk));
}

void meta_cached_put(struct meta_batch *b, const struct meta_cached *c)
{
    meta_db_put(b, meta_key1(TAG_CACHED, c->vid, NULL), meta_enc_cached(c));
}

void meta_cached_del(struct meta_batch *b, uint64_t vid)
{
    meta_db_del(b, meta_key1(TAG_CACHED, vid, NULL));
    meta_db_del_prefix(b, meta_key1(TAG_SEGMENT, vid, NULL));
    meta_db_del_prefix(b, meta_key1(TAG_CRC, vid, NULL));
}

int meta_cached_get(struct meta *m, uint64_t vid, struct meta_cached *ret)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key1(TAG_CACHED, vid, NULL), &v);
    if (r < 0)
        return r;
    r = meta_dec_cached(vid, v.data, v.len, ret);
    return r < 0 ? meta_db_bad(meta_key1(TAG_CACHED, vid, NULL), r) : 0;
}

struct cached_each {
    int (*fn)(void *ctx, const struct meta_cached *c);
    void *ctx;
};

static int on_cached(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct cached_each *e = ctx;
    struct meta_cached c;
    int r = meta_dec_cached(key->n[0], val, len, &c);
    return r < 0 ? r : e->fn(e->ctx, &c);
}

int meta_cached_each(struct meta *m, int (*fn)(void *ctx, const struct meta_cached *c), void *ctx)
{
    struct cached_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key0(TAG_CACHED, NULL), NULL, on_cached, &e);
}
