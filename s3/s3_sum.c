/*
 * ETags as checksums: the MD5 of a plain upload, or of a multipart upload "MD5 of the parts' MD5s - number of parts".
 *
 * The sizes of the parts are not told: those that clients usually send are tried, all parts but the last being of one size. No state, no locks.
 */
#include "s3_sum.h"

#include "objstore_driver.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define MIB         (1ull << 20)
#define BLOCK_BYTES (256u << 10)

/* Of parts, the usual first: AWS tools, us and MinIO, rclone, s3cmd, others. */
static const unsigned part_mib[] = {8, 16, 5, 15, 10, 4, 6, 12, 20, 25, 32, 50, 64, 100, 128};

bool s3_etag_is_md5(const char *etag)
{
    return strlen(etag) == 32 && strspn(etag, "0123456789abcdef") == 32;
}

/* Parts of a multipart ETag, 0: it is another one. */
static unsigned long n_parts_of(const char *etag)
{
    char *end = NULL;
    if (strspn(etag, "0123456789abcdef") != 32 || etag[32] != '-' || !g_ascii_isdigit(etag[33]))
        return 0;
    unsigned long n = strtoul(etag + 33, &end, 10);
    return *end || n > 10000 ? 0 : n;
}

bool objstore_etag_is_sum(const struct etag *etag)
{
    return s3_etag_is_md5(etag->s) || n_parts_of(etag->s) > 0;
}

static void to_hex(const unsigned char md[S3_MD5_BYTES], char ret[33])
{
    for (size_t i = 0; i < S3_MD5_BYTES; i++)
        g_snprintf(ret + 2 * i, 3, "%02x", md[i]);
}

/* GLib's, which is as fast as OpenSSL's: that has none on hosts where MD5 is forbidden for security (FIPS), and this is a checksum only. */
static void md5_end(GChecksum *md5, unsigned char ret[S3_MD5_BYTES])
{
    gsize n = S3_MD5_BYTES;
    g_checksum_get_digest(md5, ret, &n);
    g_checksum_free(md5);
}

void s3_md5(const void *buf, size_t len, unsigned char ret[S3_MD5_BYTES])
{
    GChecksum *md5 = g_checksum_new(G_CHECKSUM_MD5);
    g_checksum_update(md5, buf, (gssize)len);
    md5_end(md5, ret);
}

static int md5_of(uint64_t off, uint64_t len, obj_read_fn *read, void *ctx, unsigned char ret[S3_MD5_BYTES])
{
    g_autofree void *buf = g_malloc(BLOCK_BYTES);
    GChecksum *md5 = g_checksum_new(G_CHECKSUM_MD5);
    int r = 0;
    for (uint64_t at = off; r == 0 && at < off + len;) {
        size_t n = (size_t)MIN(BLOCK_BYTES, off + len - at);
        r = read(ctx, at, buf, n);
        if (r == 0)
            g_checksum_update(md5, buf, (gssize)n);
        at += n;
    }
    md5_end(md5, ret);
    return r;
}

/* The ETag, without its number, of parts of this size. */
static int md5_of_parts(uint64_t size, uint64_t part, obj_read_fn *read, void *ctx, char ret[33])
{
    g_autoptr(GByteArray) all = g_byte_array_new();
    unsigned char md[S3_MD5_BYTES];
    int r = 0;
    for (uint64_t off = 0; r == 0 && off < size; off += part) {
        r = md5_of(off, MIN(part, size - off), read, ctx, md);
        g_byte_array_append(all, md, sizeof md);
    }
    if (r < 0)
        return r;
    s3_md5(all->data, all->len, md);
    to_hex(md, ret);
    return 0;
}

static int sum_of_parts(const struct etag *etag, uint64_t size, obj_read_fn *read, void *ctx, char ret_md5[33])
{
    unsigned long n = n_parts_of(etag->s);
    char first[33] = "", sum[33] = "";
    for (size_t i = 0; i < G_N_ELEMENTS(part_mib); i++) {
        uint64_t part = part_mib[i] * MIB;
        if ((size + part - 1) / part != n)
            continue;
        int r = md5_of_parts(size, part, read, ctx, sum);
        if (r < 0)
            return r;
        if (!first[0])
            memcpy(first, sum, sizeof first);
        if (strncmp(sum, etag->s, 32) == 0)
            break;
        sum[0] = '\0';
    }
    memcpy(ret_md5, first, sizeof first);
    return !first[0] ? OBJ_SUM_NONE : sum[0] ? OBJ_SUM_FITS : OBJ_SUM_DIFFERS;
}

int objstore_sum(const struct etag *etag, uint64_t size, obj_read_fn *read, void *ctx, char ret_md5[33])
{
    unsigned char md[S3_MD5_BYTES];
    ret_md5[0] = '\0';
    if (!s3_etag_is_md5(etag->s))
        return sum_of_parts(etag, size, read, ctx, ret_md5);
    int r = md5_of(0, size, read, ctx, md);
    if (r < 0)
        return r;
    to_hex(md, ret_md5);
    return strcmp(ret_md5, etag->s) == 0 ? OBJ_SUM_FITS : OBJ_SUM_DIFFERS;
}

void objstore_digest(const void *buf, size_t len, uint8_t ret[OBJ_DIGEST_BYTES])
{
    int ok = EVP_Digest(buf, len, ret, NULL, EVP_sha256(), NULL);
    g_assert(ok == 1);
}

bool objstore_etag_md5(struct objstore *st, const char *key, const struct etag *etag, uint8_t ret[S3_MD5_BYTES])
{
    if (!(objstore_caps_of(st, key) & CAP_ETAG_IS_MD5) || !s3_etag_is_md5(etag->s))
        return false;
    for (size_t i = 0; i < S3_MD5_BYTES; i++)
        ret[i] = (uint8_t)(g_ascii_xdigit_value(etag->s[2 * i]) << 4 | g_ascii_xdigit_value(etag->s[2 * i + 1]));
    return true;
}

bool objstore_sums_count(struct objstore *st, const char *key)
{
    if (st->drv->sums_count_at)
        return st->drv->sums_count_at(st, key);
    uint32_t caps = objstore_caps(st);
    if (caps && !(caps & CAP_ETAG_IS_MD5))
        return false;
    return __atomic_load_n(&st->sums_odd, __ATOMIC_RELAXED) <= __atomic_load_n(&st->sums_fit, __ATOMIC_RELAXED) / 8;
}

void objstore_sum_note(struct objstore *st, const char *key, bool fits)
{
    if (st->drv->sum_note_at)
        st->drv->sum_note_at(st, key, fits);
    else
        (void)__atomic_add_fetch(fits ? &st->sums_fit : &st->sums_odd, 1, __ATOMIC_RELAXED); /* counters */
}
