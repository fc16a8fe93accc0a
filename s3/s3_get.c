/*
 * GET. A body that breaks off goes on where it stopped, with If-Match on the version it began with, so the sink sees one version, each
 * byte once. No lock.
 */
#include "base/log.h"
#include "drv_s3.h"
#include "s3_sum.h"

#include <stdio.h>
#include <string.h>

/*
 * A whole object of at most limits.checked_bytes is held back until it was compared with the checksum that the store tells, or over plain http with
 * an ETag that is the MD5: nothing else would notice a byte flipped on the way. Parts of objects have no sum of their own: of larger ones the cache compares the whole (cache_check.c).
 */
struct get {
    struct drv_s3 *d;
    struct s3_call *call;
    const char *key;
    uint64_t off, len; /* as asked */
    uint64_t pos;      /* next byte for the sink */
    uint64_t end;      /* behind the last; once known */
    bool known;        /* a first reply told size and version */
    struct etag want;  /* "" until known, if none was given */
    obj_sink_fn *sink;
    void *ctx;
    struct obj_info *info;
    bool user_stop;
    GString *held; /* what came of an object that is to be checked, NULL: none is */
    char bad[33];  /* MD5 of a body that did not fit the ETag */
};

static void get_prepare(void *ctx, struct s3_req *req)
{
    struct get *g = ctx;
    if (g->known)
        s3_req_headerf(req, "Range", "bytes=%" G_GUINT64_FORMAT "-%" G_GUINT64_FORMAT, g->pos, g->end - 1);
    else if (g->len)
        s3_req_headerf(req, "Range", "bytes=%" G_GUINT64_FORMAT "-%" G_GUINT64_FORMAT, g->off, g->off + g->len - 1);
    else if (g->off)
        s3_req_headerf(req, "Range", "bytes=%" G_GUINT64_FORMAT "-", g->off);
    if (etag_is_set(&g->want))
        s3_etag_header(req, "If-Match", &g->want, true);
    if (objstore_caps(&g->d->base) & CAP_CHECKSUM_CRC32C)
        s3_req_header(req, "x-amz-checksum-mode", "ENABLED");
}

/* What part of the object this reply carries: [first, end) of total. */
static int get_extent(const struct http_response *resp, uint64_t *ret_first, uint64_t *ret_end, uint64_t *ret_total)
{
    unsigned long long a = 0;
    unsigned long long b = 0;
    unsigned long long total = 0;
    uint64_t len = 0;
    bool has_len = s3_size_of(resp, &len);
    if (resp->status == 200) {
        if (!has_len)
            return -EBADMSG;
        *ret_first = 0;
        *ret_end = *ret_total = len;
        return 0;
    }
    const char *range = http_header(resp, "content-range");
    if (resp->status != 206 || !range || sscanf(range, "bytes %llu-%llu/%llu", &a, &b, &total) != 3)
        return -EBADMSG;
    if (b < a || b >= total || (has_len && len != b - a + 1))
        return -EBADMSG;
    *ret_first = a;
    *ret_end = b + 1;
    *ret_total = total;
    return 0;
}

/* Whether the ETag is to be compared. Before a probe nobody knows whether it is an MD5: then experience tells. */
static bool etag_counts(const struct get *g, const struct http_response *resp)
{
    bool md5 = (objstore_caps(&g->d->base) & CAP_ETAG_IS_MD5) || objstore_sums_count(&g->d->base, "");
    return md5 && !g->d->ep.tls && s3_etag_is_md5(g->want.s) && !s3_is_encrypted(resp);
}

static void hold_back(struct get *g, const struct http_response *resp, uint64_t total)
{
    bool whole = g->pos == 0 && g->end == total && total > 0 && total <= g->d->base.limits.checked_bytes;
    if (g->held)
        g_string_truncate(g->held, 0);
    else if (whole && (etag_counts(g, resp) || http_header(resp, "x-amz-checksum-crc32c")))
        g->held = g_string_sized_new(total);
}

static int get_head(void *ctx, const struct http_response *resp)
{
    struct get *g = ctx;
    uint64_t first = 0;
    uint64_t end = 0;
    uint64_t total = 0;
    struct etag etag;
    if (resp->status / 100 != 2)
        return 0;
    const char *text = http_header(resp, "etag");
    s3_etag_parse(text ? text : "", &etag);
    if (etag_is_set(&g->want) && etag_is_set(&etag) && !etag_equal(&etag, &g->want)) {
        g->user_stop = true;
        return -ESTALE;
    }
    int r = get_extent(resp, &first, &end, &total);
    if (r < 0)
        return r;
    uint64_t want_end = g->len == 0 || g->off > total || g->len > total - g->off ? total : g->off + g->len;
    if (!etag_is_set(&etag) || first != g->pos || end != want_end || (g->known && end != g->end))
        return -EBADMSG;
    if (!g->known) {
        s3_info_fill(resp, g->info);
        g->info->size = total;
        g->end = end;
        g->want = etag;
        g->known = true;
    }
    hold_back(g, resp, total);
    return 0;
}

static int get_data(void *ctx, const void *buf, size_t len)
{
    struct get *g = ctx;
    if (!g->known || len > g->end - g->pos - (g->held ? g->held->len : 0))
        return -EBADMSG;
    if (g->held) {
        g_string_append_len(g->held, buf, (gssize)len);
        return 0;
    }
    int r = g->sink(g->ctx, g->pos, buf, len);
    if (r) {
        g->user_stop = true;
        return r;
    }
    g->pos += len;
    g->call->n_given += len;
    return 0;
}

/* Whether the bytes are those that the store has. Others' ETags may look like an MD5 and be none: then the same bytes come again. */
static bool fits(struct get *g, const struct http_response *resp)
{
    unsigned char md[16];
    char hex[33];
    const char *told = http_header(resp, "x-amz-checksum-crc32c");
    if (told && !strchr(told, '-')) { /* of the whole, not of parts */
        g_autofree char *crc = s3_crc_base64(g->held->str, g->held->len);
        return strcmp(crc, told) == 0;
    }
    if (!etag_counts(g, resp))
        return true;
    s3_md5_hex(g->held->str, g->held->len, md, hex);
    bool fit = strcmp(g->want.s, hex) == 0, odd = g->info->token[0] == '\0' && strcmp(g->bad, hex) == 0;
    if (fit || odd)
        objstore_sum_note(&g->d->base, "", fit);
    g_strlcpy(g->bad, hex, sizeof g->bad);
    return fit || odd;
}

static int get_done(void *ctx, const struct http_response *resp)
{
    struct get *g = ctx;
    if (g->held) {
        if (!g->known || g->held->len != g->end - g->pos)
            return -EIO;
        if (!fits(g, resp)) {
            log_warn("s3", "what came is not what the store has key='%s'", g->key);
            return -EBADMSG;
        }
        int r = g->sink(g->ctx, g->pos, g->held->str, g->held->len);
        g->user_stop = r != 0;
        if (r)
            return r;
        g->pos = g->end;
    }
    return g->known && g->pos == g->end ? 0 : -EIO;
}

static bool get_stopped(void *ctx)
{
    struct get *g = ctx;
    return g->user_stop;
}

/* 416: the range begins at or behind the end, perhaps of another version: not every store looks at If-Match first or names the etag. */
static int get_beyond(struct drv_s3 *d, const char *key, struct get *g, const struct http_response *resp)
{
    unsigned long long total = 0;
    const char *range = http_header(resp, "content-range");
    int r = 0;
    if (g->known)
        return -ESTALE; /* it was longer when this read began */
    s3_info_fill(resp, g->info);
    if (range && sscanf(range, "bytes */%llu", &total) == 1)
        g->info->size = total;
    if (!etag_is_set(&g->want))
        return 0;
    if (!etag_is_set(&g->info->etag)) {
        obj_info_clear(g->info);
        r = s3_head_full(d, key, 0, g->info, NULL);
    }
    bool is_end = etag_equal(&g->want, &g->info->etag) && g->info->size <= g->off;
    return r == 0 && !is_end ? -ESTALE : r;
}

int s3_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
           obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    struct drv_s3 *d = s3_of(st);
    struct s3_call c;
    struct get g = {
        .d = d, .call = &c, .key = key, .off = off, .len = len, .pos = off, .sink = sink, .ctx = ctx, .info = ret_info};
    if (s3_key_check(d, key) < 0)
        return -ENOENT;
    if (len > UINT64_MAX - off)
        g.len = 0;
    if (if_match)
        g_strlcpy(g.want.s, if_match->s, etag_bare_len(if_match) + 1);
    s3_call_init(d, &c, "GET", key, M_requests_get);
    c.ctx = &g;
    c.prepare = get_prepare;
    c.on_head = get_head;
    c.sink = get_data;
    c.on_done = get_done;
    c.stopped = get_stopped;
    int r = s3_exec(d, &c);
    if (r == -ERANGE && c.resp.status == 416)
        r = get_beyond(d, key, &g, &c.resp);
    else if (g.known && g.pos == g.end && !g.user_stop && r < 0)
        r = 0; /* the last byte came, the connection broke behind it */
    if (r == 0 && ret_info->size == 0)
        s3_etag_of_empty(key, ret_info->token, &ret_info->etag);
    if (g.held)
        g_string_free(g.held, TRUE);
    s3_call_fini(&c);
    return r;
}
