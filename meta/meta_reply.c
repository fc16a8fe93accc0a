/* What requests of the kernel made, for whoever is asked for it again: thin layer over meta_db, see meta.h. Any thread. */
#include "meta_db.h"

void meta_reply_put(struct meta_batch *b, const struct meta_reply *reply)
{
    meta_db_put(b, meta_key2(TAG_REPLY, reply->generation, reply->place), meta_enc_reply(reply));
}

void meta_reply_del(struct meta_batch *b, uint64_t generation, uint64_t place)
{
    meta_db_del(b, meta_key2(TAG_REPLY, generation, place));
}

struct reply_each {
    int (*fn)(void *ctx, const struct meta_reply *reply);
    void *ctx;
};

static int on_reply(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    const struct reply_each *e = ctx;
    struct meta_reply reply = {.generation = key->n[0], .place = key->n[1]};
    int r = meta_dec_reply(val, len, &reply);
    return r < 0 ? r : e->fn(e->ctx, &reply);
}

int meta_reply_each(struct meta *m, int (*fn)(void *ctx, const struct meta_reply *reply), void *ctx)
{
    struct reply_each e = {fn, ctx};
    return meta_db_scan(m->db, meta_key0(TAG_REPLY, NULL), NULL, on_reply, &e);
}
