/* Small named values: thin layer over meta_db, see meta.h. Any thread. */
#include "meta_db.h"

int meta_value_get(struct meta *m, const char *name, GBytes **ret_value)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key0(TAG_VALUE, name), &v);
    if (r < 0)
        return r;
    const void *data;
    size_t len;
    r = meta_dec_blob(v.data, v.len, &data, &len);
    if (r < 0)
        return meta_db_bad(meta_key0(TAG_VALUE, name), r);
    *ret_value = g_bytes_new(data, len);
    return 0;
}

void meta_value_put(struct meta_batch *b, const char *name, const void *value, size_t len)
{
    meta_db_put(b, meta_key0(TAG_VALUE, name), meta_enc_blob(value, len));
}

int meta_value_get_u64(struct meta *m, const char *name, uint64_t *ret_value)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key0(TAG_VALUE, name), &v);
    if (r < 0)
        return r;
    r = meta_dec_number(v.data, v.len, ret_value);
    return r < 0 ? meta_db_bad(meta_key0(TAG_VALUE, name), r) : 0;
}

void meta_value_put_u64(struct meta_batch *b, const char *name, uint64_t value)
{
    meta_db_put(b, meta_key0(TAG_VALUE, name), meta_enc_number(value));
}

void meta_value_del(struct meta_batch *b, const char *name)
{
    meta_db_del(b, meta_key0(TAG_VALUE, name));
}

struct value_each {
    int (*fn)(void *ctx, const char *name, const void *value, size_t len);
    void *ctx;
};

static int on_value(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct value_each *e = ctx;
    const void *data;
    size_t data_len;
    int r = meta_dec_blob(val, len, &data, &data_len);
    if (r < 0)
        return r;
    g_autofree char *name = g_strndup(key->name, key->name_len);
    return e->fn(e->ctx, name, data, data_len);
}

int meta_value_each(struct meta *m, const char *name_prefix,
                    int (*fn)(void *ctx, const char *name, const void *value, size_t len), void *ctx)
{
    struct value_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key0(TAG_VALUE, name_prefix), NULL, on_value, &e);
}
