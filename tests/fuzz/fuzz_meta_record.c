/* Values of the database, a tag in front: what decodes is encoded again to something that decodes to the same bytes. */
#include "fuzz.h"
#include "meta_key.h"

static GString *inode(const void *v, size_t n)
{
    struct meta_inode rec;
    if (meta_dec_inode(7, v, n, &rec) < 0)
        return NULL;
    GString *out = meta_enc_inode(&rec);
    meta_inode_clear(&rec);
    return out;
}

static GString *dentry(const void *v, size_t n)
{
    struct meta_dentry rec;
    if (meta_dec_dentry(7, v, n, &rec) < 0)
        return NULL;
    GString *out = meta_enc_dentry(&rec);
    meta_dentry_clear(&rec);
    return out;
}

static GString *op(const void *v, size_t n)
{
    struct meta_op rec;
    if (meta_dec_op(7, v, n, &rec) < 0)
        return NULL;
    GString *out = meta_enc_op(&rec);
    meta_op_clear(&rec);
    return out;
}

static GString *upload(const void *v, size_t n)
{
    struct meta_upload rec;
    if (meta_dec_upload(7, v, n, &rec) < 0)
        return NULL;
    GString *out = meta_enc_upload(&rec);
    meta_upload_clear(&rec);
    return out;
}

static GString *part(const void *v, size_t n)
{
    struct meta_part rec;
    return meta_dec_part(7, 1, v, n, &rec) < 0 ? NULL : meta_enc_part(&rec);
}

static GString *cached(const void *v, size_t n)
{
    struct meta_cached rec;
    return meta_dec_cached(7, v, n, &rec) < 0 ? NULL : meta_enc_cached(&rec);
}

static GString *segment(const void *v, size_t n)
{
    struct meta_segment rec;
    return meta_dec_segment(v, n, &rec) < 0 ? NULL : meta_enc_segment(&rec);
}

static GString *header(const void *v, size_t n)
{
    struct meta_header rec = {0};
    if (meta_dec_header(v, n, &rec) < 0 || rec.format != META_FORMAT)
        return NULL;
    GString *out = meta_enc_header(&rec);
    g_free(rec.identity);
    return out;
}

static GString *counter(const void *v, size_t n)
{
    struct meta_counter rec;
    return meta_dec_counter(v, n, &rec) < 0 ? NULL : meta_enc_counter(&rec);
}

static GString *crc(const void *v, size_t n)
{
    uint32_t rec;
    return meta_dec_crc(v, n, &rec) < 0 ? NULL : meta_enc_crc(rec);
}

static GString *reply(const void *v, size_t n)
{
    struct meta_reply rec;
    return meta_dec_reply(v, n, &rec) < 0 ? NULL : meta_enc_reply(&rec);
}

static GString *number(const void *v, size_t n)
{
    uint64_t rec;
    return meta_dec_number(v, n, &rec) < 0 ? NULL : meta_enc_number(rec);
}

static GString *blob(const void *v, size_t n)
{
    const void *rec;
    size_t len;
    return meta_dec_blob(v, n, &rec, &len) < 0 ? NULL : meta_enc_blob(rec, len);
}

typedef GString *again_fn(const void *v, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static again_fn *const rows[] = {inode,  dentry,  op,  upload, part, cached, segment,
                                     header, counter, crc, number, blob, reply};
    if (size == 0)
        return 0;
    again_fn *again = rows[data[0] % G_N_ELEMENTS(rows)];
    GString *once = again(data + 1, size - 1);
    if (!once)
        return 0;
    GString *twice = again(once->str, once->len);
    PROMISE(twice && g_string_equal(once, twice));
    g_string_free(once, TRUE);
    g_string_free(twice, TRUE);
    return 0;
}
