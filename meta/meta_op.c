/* The journal of what upstream still needs, ordered by sequence number: thin layer over meta_db, see meta.h. Any thread. */
#include "meta_db.h"

int meta_op_get(struct meta *m, uint64_t seq, struct meta_op *ret)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key1(TAG_OP, seq, NULL), &v);
    if (r < 0)
        return r;
    r = meta_dec_op(seq, v.data, v.len, ret);
    return r < 0 ? meta_db_bad(meta_key1(TAG_OP, seq, NULL), r) : 0;
}

void meta_op_put(struct meta_batch *b, const struct meta_op *op)
{
    meta_db_put(b, meta_key1(TAG_OP, op->seq, NULL), meta_enc_op(op));
}

void meta_op_del(struct meta_batch *b, uint64_t seq)
{
    meta_db_del(b, meta_key1(TAG_OP, seq, NULL));
}

struct op_each {
    int (*fn)(void *ctx, const struct meta_op *op);
    void *ctx;
};

static int on_op(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct op_each *e = ctx;
    struct meta_op op;
    int r = meta_dec_op(key->n[0], val, len, &op);
    if (r < 0)
        return r;
    r = e->fn(e->ctx, &op);
    meta_op_clear(&op);
    return r;
}

int meta_op_each(struct meta *m, int (*fn)(void *ctx, const struct meta_op *op), void *ctx)
{
    struct op_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key0(TAG_OP, NULL), NULL, on_op, &e);
}
