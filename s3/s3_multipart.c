/*
 * Multipart uploads. Stateless: the store keeps the upload, the caller the list of parts.
 *
 * Parts carry no checksum but the digest of s3_exec.c: an algorithm would have to be named at Create and repeated for each part
 * at Complete, including those that were copied. Complete is the commit: its reply may come as 200 with <Error> inside, or not at all.
 */
#include "base/crc32c.h"
#include "drv_s3.h"

#include <string.h>

static int create_done(void *ctx, const struct http_response *resp)
{
    char **id = ctx;
    g_clear_pointer(id, g_free);
    int r = s3_xml_text(resp->body->str, resp->body->len, "UploadId", id);
    return r < 0 || !**id ? -EBADMSG : 0;
}

int s3_mpu_create_with(struct drv_s3 *d, const char *key, const struct obj_meta *meta, const GPtrArray *keep,
                       char **ret_upload_id)
{
    struct s3_call c;
    g_autofree char *id = NULL;
    int r = s3_key_check(d, key);
    if (r < 0)
        return r;
    s3_call_init(d, &c, "POST", key, M_requests_multipart);
    s3_req_query(&c.req, "uploads", "");
    if (!keep)
        s3_req_header(&c.req, "Content-Type", "application/octet-stream");
    for (guint i = 0; keep && i < keep->len; i++)
        g_ptr_array_add(c.req.headers, g_strdup(keep->pdata[i]));
    s3_meta_headers(&c.req, meta);
    c.ctx = &id;
    c.on_done = create_done;
    r = s3_exec(d, &c);
    s3_call_fini(&c);
    if (r == 0)
        *ret_upload_id = g_steal_pointer(&id);
    return r;
}

int s3_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id)
{
    return s3_mpu_create_with(s3_of(st), key, meta, NULL, ret_upload_id);
}

struct part_ctx {
    struct drv_s3 *d;
    const struct s3_call *call; /* of a part that is sent */
    struct etag etag;
};

static int part_done(void *ctx, const struct http_response *resp)
{
    struct part_ctx *p = ctx;
    const char *etag = http_header(resp, "etag");
    s3_etag_parse(etag ? etag : "", &p->etag);
    return !etag_is_set(&p->etag) || s3_etag_wrong(p->d, resp, p->call->md5) ? -EBADMSG : 0;
}

static void part_call(struct drv_s3 *d, struct s3_call *c, const char *key, const char *upload_id, uint32_t number)
{
    char text[16];
    g_snprintf(text, sizeof text, "%u", number);
    s3_call_init(d, c, "PUT", key, M_requests_multipart);
    s3_req_query(&c->req, "partNumber", text);
    s3_req_query(&c->req, "uploadId", upload_id);
}

int s3_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf, struct obj_part *part)
{
    struct drv_s3 *d = s3_of(st);
    struct s3_call c;
    struct part_ctx p = {.d = d, .call = &c};
    part_call(d, &c, key, upload_id, part->number);
    c.check_body = true;
    c.body = buf;
    c.body_len = part->size;
    c.sha256 = part->sha256;
    c.ctx = &p;
    c.on_done = part_done;
    int r = s3_exec(d, &c);
    s3_call_fini(&c);
    if (r < 0)
        return r;
    part->etag = p.etag;
    part->crc32c = crc32c(0, buf, part->size);
    metric_add(M_uploaded_bytes, (int64_t)part->size);
    return 0;
}

static int xml_etag_done(void *ctx, const struct http_response *resp)
{
    struct part_ctx *p = ctx;
    g_autofree char *text = NULL;
    int r = s3_xml_text(resp->body->str, resp->body->len, "ETag", &text);
    s3_etag_parse(r == 0 ? text : "", &p->etag);
    return etag_is_set(&p->etag) ? 0 : -EBADMSG;
}

int s3_source_check(struct drv_s3 *d, uint32_t cap, const char *src, const struct etag *etag)
{
    struct obj_info info = {0};
    if (!etag || !etag_is_set(etag) || (objstore_caps(&d->base) & cap))
        return 0;
    int r = s3_head_full(d, src, 0, &info, NULL);
    if (r == 0 && !etag_fits(etag, &info.etag))
        r = -ESTALE;
    obj_info_clear(&info);
    return r;
}

int s3_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                     const struct etag *src_etag, uint64_t off, struct obj_part *part)
{
    struct drv_s3 *d = s3_of(st);
    struct s3_call c;
    struct part_ctx p = {.d = d};
    g_autofree char *source = s3_copy_source(d, src);
    if (part->size == 0)
        return -EINVAL;
    int r = s3_source_check(d, CAP_PART_COPY_IF_MATCH, src, src_etag);
    if (r < 0)
        return r;
    part_call(d, &c, key, upload_id, part->number);
    s3_req_header(&c.req, "x-amz-copy-source", source);
    s3_req_headerf(&c.req, "x-amz-copy-source-range", "bytes=%" G_GUINT64_FORMAT "-%" G_GUINT64_FORMAT, off,
                   off + part->size - 1);
    if (src_etag && etag_is_set(src_etag))
        s3_etag_header(&c.req, "x-amz-copy-source-if-match", src_etag, true);
    c.slow = true;
    c.copied_bytes = part->size;
    c.body_may_err = true;
    c.ctx = &p;
    c.on_done = xml_etag_done;
    r = s3_exec(d, &c);
    s3_call_fini(&c);
    if (r < 0)
        return r;
    part->etag = p.etag;
    part->crc32c = 0;
    return s3_source_check(d, CAP_PART_COPY_IF_MATCH, src, src_etag); /* it may have changed in between */
}

static char *complete_body(const struct obj_part *parts, size_t n_parts)
{
    GString *out = g_string_new("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (size_t i = 0; i < n_parts; i++) {
        g_autofree char *etag = g_markup_escape_text(parts[i].etag.s, -1);
        g_string_append_printf(out, "<Part><PartNumber>%u</PartNumber><ETag>&quot;%s&quot;</ETag></Part>",
                               parts[i].number, etag);
    }
    g_string_append(out, "</CompleteMultipartUpload>");
    return g_string_free(out, FALSE);
}

struct complete {
    struct part_ctx part;
    const char *key;
    const char *upload_id;
    const char *token;
    const struct posix_attr *posix;
};

/* Ceph 16 answers 500 "already in progress" for an upload that does not exist: ask for the upload itself. */
static bool upload_is_gone(const struct complete *m)
{
    struct s3_call c;
    s3_call_init(m->part.d, &c, "GET", m->key, M_requests_multipart);
    s3_req_query(&c.req, "uploadId", m->upload_id);
    s3_req_query(&c.req, "max-parts", "1");
    c.once = true;
    int r = s3_exec(m->part.d, &c);
    s3_call_fini(&c);
    return r == -ENOENT;
}

static bool is_completed(struct complete *m)
{
    return s3_settle_token(m->part.d, m->key, m->token, m->posix, &m->part.etag) == 1;
}

static int complete_settle(void *ctx)
{
    struct complete *m = ctx;
    if (!m->posix && is_completed(m))
        return 1;
    if (!upload_is_gone(m))
        return 0;
    return is_completed(m) ? 1 : -ENOENT; /* it may have been completed between the two looks */
}

/* Ceph 16 leaves the ETag of the reply empty. */
static int complete_done(void *ctx, const struct http_response *resp)
{
    struct complete *m = ctx;
    g_autofree char *text = NULL;
    int r = s3_xml_text(resp->body->str, resp->body->len, "ETag", &text);
    s3_etag_parse(r == 0 ? text : "", &m->part.etag);
    return r == 0 || r == -ENOMSG ? 0 : r;
}

/* Reads the etag of what was just completed; -ESTALE when something else stands there already. */
static int complete_etag(struct complete *m)
{
    struct obj_info info = {0};
    int r = s3_head_full(m->part.d, m->key, 0, &info, NULL);
    if (r == 0 && m->token && *m->token && strcmp(m->token, info.token) != 0)
        r = -ESTALE;
    if (r == 0)
        m->part.etag = info.etag;
    obj_info_clear(&info);
    return r == -ENOENT ? -ESTALE : r;
}

static bool is_empty(const struct obj_part *parts, size_t n_parts)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n_parts; i++)
        bytes += parts[i].size;
    return bytes == 0;
}

int s3_mpu_complete_with(struct drv_s3 *d, const char *key, const char *upload_id, const struct obj_part *parts,
                         size_t n_parts, const char *token, const struct posix_attr *posix, const struct obj_cond *cond,
                         struct etag *ret_etag)
{
    struct s3_call c;
    struct complete m = {.part.d = d, .key = key, .upload_id = upload_id, .token = token, .posix = posix};
    g_autofree char *body = complete_body(parts, n_parts);
    if (n_parts == 0)
        return -EINVAL;
    s3_call_init(d, &c, "POST", key, M_requests_multipart);
    s3_req_query(&c.req, "uploadId", upload_id);
    s3_cond_apply(d, &c, cond, CAP_COMPLETE_CONDITIONS, CAP_COMPLETE_CONDITIONS);
    if (c.late)
        c.late = S3_LATE_UNLESS_DONE; /* then the upload is gone */
    s3_req_header(&c.req, "Content-Type", "application/xml");
    c.body = body;
    c.body_len = strlen(body);
    c.slow = true;
    c.body_may_err = true;
    c.ctx = &m;
    c.on_done = complete_done;
    c.settle = complete_settle;
    int r = s3_exec(d, &c);
    bool no_key = r == -ENOENT && strcmp(c.error.code, "NoSuchKey") == 0;
    s3_call_fini(&c);
    if (no_key && cond && cond->kind == OBJ_COND_ETAG)
        r = -ESTALE;
    if (r == 0 && !etag_is_set(&m.part.etag))
        r = complete_etag(&m);
    if (r == 0 && is_empty(parts, n_parts))
        s3_etag_of_empty(key, token, &m.part.etag);
    if (r == 0)
        *ret_etag = m.part.etag;
    return r;
}

int s3_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                    size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag)
{
    return s3_mpu_complete_with(s3_of(st), key, upload_id, parts, n_parts, token, NULL, cond, ret_etag);
}

int s3_mpu_abort(struct objstore *st, const char *key, const char *upload_id)
{
    struct drv_s3 *d = s3_of(st);
    struct s3_call c;
    s3_call_init(d, &c, "DELETE", key, M_requests_multipart);
    s3_req_query(&c.req, "uploadId", upload_id);
    int r = s3_exec(d, &c);
    s3_call_fini(&c);
    return r;
}
