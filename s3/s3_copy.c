/*
 * Server-side copies. Up to copy_max_bytes one CopyObject, beyond it part copies of 1 GiB under a multipart upload, with the source's
 * headers given again. New metadata replaces ours; what other tools wrote beside it and the content headers are kept, and so are, in every copy,
 * storage class and encryption with a key of the user's.
 *
 * Few stores have conditions on a copy's target (CAP_COPY_TARGET); else it is looked at before. A copy onto itself is a change
 * of metadata; its condition is the version that was read. The token that a copy gives is the content's, and what stands at the target
 * may carry it already: only with the attributes beside it, new ones or the source's, does it show that a copy was made. No state, no locks.
 */
#include "drv_s3.h"

#include <string.h>

#define PART_BYTES (1ull << 30)

struct copy {
    struct drv_s3 *d;
    const char *dst;
    bool in_place;
    const char *token;              /* that it will have; "" or NULL: none, so nobody can tell */
    const struct posix_attr *posix; /* with it */
    struct etag etag;
};

static int copy_done(void *ctx, const struct http_response *resp)
{
    struct copy *cp = ctx;
    g_autofree char *text = NULL;
    int r = s3_xml_text(resp->body->str, resp->body->len, "ETag", &text);
    s3_etag_parse(r == 0 ? text : "", &cp->etag);
    return etag_is_set(&cp->etag) ? 0 : -EBADMSG;
}

static int copy_settle(void *ctx)
{
    struct copy *cp = ctx;
    return s3_settle_token(cp->d, cp->dst, cp->token, cp->posix, &cp->etag);
}

/* Whether a store that ignores the condition on the source copied the version meant. */
static int copied_check(struct copy *cp, const char *src, const struct etag *src_etag)
{
    uint32_t caps = objstore_caps(&cp->d->base);
    if ((caps & CAP_COPY_IF_MATCH) || etag_fits(&cp->etag, src_etag))
        return 0;
    if (!cp->in_place)
        return s3_source_check(cp->d, CAP_COPY_IF_MATCH, src, src_etag);
    bool tells = (caps & CAP_ETAG_IS_MD5) && !strchr(src_etag->s, '-'); /* of parts: one PUT's etag is another one */
    return tells ? -ESTALE : 0;
}

/* Nothing is there, says a store that compares the target: was it the source, or what is to be replaced? */
static int which_is_gone(struct copy *cp, const struct obj_cond *cond)
{
    bool absent = false;
    return s3_cond_look(cp->d, cp->dst, cond, 0, &absent) == -ESTALE ? -ESTALE : -ENOENT;
}

static int copy_whole(struct copy *cp, const char *src, const struct obj_info *info, const struct obj_meta *meta,
                      const GPtrArray *keep, const struct obj_cond *cond)
{
    struct s3_call c;
    g_autofree char *source = s3_copy_source(cp->d, src);
    s3_call_init(cp->d, &c, "PUT", cp->dst, M_requests_copy);
    s3_req_header(&c.req, "x-amz-copy-source", source);
    s3_etag_header(&c.req, "x-amz-copy-source-if-match", &info->etag, true);
    for (guint i = 0; i < keep->len; i++)
        if (meta || s3_keep_is_place(keep->pdata[i]))
            g_ptr_array_add(c.req.headers, g_strdup(keep->pdata[i]));
    if (meta) {
        s3_req_header(&c.req, "x-amz-metadata-directive", "REPLACE");
        s3_meta_headers(&c.req, meta);
    }
    uint32_t compares = objstore_caps(&cp->d->base) & CAP_COPY_TARGET;
    if (!cp->in_place || !(objstore_caps(&cp->d->base) & CAP_COPY_IF_MATCH))
        s3_cond_apply(cp->d, &c, cond, compares, compares);
    c.late = S3_LATE; /* of an object over itself too: new metadata need not change its etag */
    c.slow = true;
    c.copied_bytes = info->size;
    c.body_may_err = true;
    c.ctx = cp;
    c.on_done = copy_done;
    c.settle = copy_settle;
    int r = s3_exec(cp->d, &c);
    s3_call_fini(&c);
    if (r == -ENOENT && compares && !cp->in_place && cond && cond->kind == OBJ_COND_ETAG)
        r = which_is_gone(cp, cond);
    return r < 0 ? r : copied_check(cp, src, &info->etag);
}

/* Whether the store may be making the object of an upload although its Complete failed for us: some that get an abort then lose what they made (Ceph before 17.2.8). */
static bool may_complete(int r)
{
    return r == -EIO || r == -ETIMEDOUT || r == -EBADMSG || r == -ECANCELED || r == -EINTR || r == -EKEYEXPIRED;
}

/* completing: it may become the object from now on. */
static int copy_parts(struct copy *cp, const struct obj_copy *req, const struct obj_info *info, const char *upload_id,
                      const struct obj_cond *cond, bool *completing)
{
    struct objstore *st = &cp->d->base;
    uint64_t step = PART_BYTES;
    while (info->size / step >= st->limits.parts_max)
        step *= 2;
    size_t n = (size_t)((info->size + step - 1) / step);
    g_autofree struct obj_part *parts = g_new0(struct obj_part, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t off = i * step;
        parts[i].number = (uint32_t)i + 1;
        parts[i].size = MIN(step, info->size - off);
        int r = s3_mpu_part_copy(st, cp->dst, upload_id, req->src, &info->etag, off, &parts[i]);
        if (r < 0)
            return r;
        metric_add(M_copied_bytes, (int64_t)parts[i].size);
    }
    *completing = true;
    if (req->completing)
        req->completing(req->ctx);
    return s3_mpu_complete_with(cp->d, cp->dst, upload_id, parts, n, cp->token, cp->posix, cond, &cp->etag);
}

static int copy_large(struct copy *cp, const struct obj_copy *req, const struct obj_info *info, const GPtrArray *keep,
                      const struct obj_cond *cond)
{
    g_autofree char *id = NULL;
    bool absent = false, completing = false;
    const struct obj_meta *meta = req->meta;
    struct obj_meta same = {.posix = info->posix, .symlink = info->symlink, .token = info->token};
    int r = 0;
    if (!cp->in_place)
        r = s3_cond_look(cp->d, cp->dst, cond, 0, &absent); /* Complete will check it, but after all the work */
    if (r == 0)
        r = s3_mpu_create_with(cp->d, cp->dst, meta ? meta : &same, keep, &id);
    if (r < 0)
        return r;
    if (req->begun)
        r = req->begun(req->ctx, id);
    if (r == 0)
        r = copy_parts(cp, req, info, id, cond, &completing);
    if (r < 0 && !(completing && may_complete(r)))
        (void)s3_mpu_abort(&cp->d->base, cp->dst, id); /* what is left over shows in mpu_list */
    return r;
}

/* Some stores tell names of classes that they do not take (MinIO: those of tiers): then it gets the bucket's. */
static bool drop_class(GPtrArray *keep)
{
    for (guint i = 0; i < keep->len; i++)
        if (g_str_has_prefix(keep->pdata[i], "x-amz-storage-class:"))
            return g_ptr_array_remove_index(keep, i) != NULL;
    return false;
}

/* The copy itself, of one that is not a mere look at it. */
static int copy_object(struct copy *cp, const struct obj_copy *req, const struct obj_info *info, GPtrArray *keep,
                       const struct obj_cond *cond)
{
    int r;
    do
        r = info->size > cp->d->base.limits.copy_max_bytes ? copy_large(cp, req, info, keep, cond)
                                                           : copy_whole(cp, req->src, info, req->meta, keep, cond);
    while ((r == -EINVAL || r == -EREMOTEIO) && drop_class(keep));
    return r;
}

int s3_copy(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag)
{
    struct drv_s3 *d = s3_of(st);
    const char *src = copy->src, *dst = copy->dst;
    const struct etag *src_etag = copy->src_etag;
    const struct obj_meta *meta = copy->meta;
    const struct obj_cond *dst_cond = copy->dst_cond;
    struct obj_info info = {0};
    struct copy cp = {.d = d,
                      .dst = dst,
                      .in_place = strcmp(src, dst) == 0,
                      .token = meta ? meta->token : info.token,
                      .posix = meta ? &meta->posix : &info.posix};
    g_autoptr(GPtrArray) keep = g_ptr_array_new_with_free_func(g_free);
    int r = s3_key_check(d, dst);
    if (r == 0)
        r = s3_head_full(d, src, 0, &info, keep);
    if (r < 0)
        return r;
    if (src_etag && etag_is_set(src_etag) && !etag_fits(src_etag, &info.etag))
        r = -ESTALE;
    struct obj_cond as_read = {.kind = OBJ_COND_ETAG, .etag = info.etag};
    if (r == 0 && cp.in_place) {
        r = objstore_cond_check(dst_cond, &info.etag);
        dst_cond = &as_read;
    }
    if (r == 0 && cp.in_place && !meta)
        cp.etag = info.etag;
    else if (r == 0)
        r = copy_object(&cp, copy, &info, keep, dst_cond);
    if (r == 0 && info.size == 0)
        s3_etag_of_empty(dst, meta ? meta->token : info.token, &cp.etag);
    obj_info_clear(&info);
    if (r == 0)
        *ret_etag = cp.etag;
    return r;
}
