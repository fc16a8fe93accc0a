/*
 * The object store's front: picks the driver by scheme, checks arguments, counts.
 *
 * No state of its own but a thread's turn, and no lock; every call is refused (abort) when the thread holds a ranked lock, since all of them may wait for the
 * network. Requests and bytes on the wire are counted by the drivers; final failures here.
 */
#include "base/metric.h"
#include "base/sync.h"
#include "objstore_driver.h"
#include "s3_cred.h"
#include "s3_meta.h"
#include "s3_uri.h"

#include <string.h>

static _Thread_local const int *behind_flag; /* objstore_behind() */

void objstore_behind(const int *behind)
{
    behind_flag = behind;
}

bool objstore_is_behind(void)
{
    return behind_flag && __atomic_load_n(behind_flag, __ATOMIC_RELAXED) != 0; /* an early or late look costs a turn */
}

static _Thread_local bool late_flag; /* objstore_late() */

void objstore_late_note(void)
{
    late_flag = true;
}

bool objstore_late(void)
{
    return late_flag;
}

void objstore_late_forget(void)
{
    late_flag = false;
}

static const struct objstore_driver *const drivers[] = {&drv_s3, &drv_file};

static const char *const cap_names[] = {
    "put-if-none-match", "put-if-match",       "if-match-unquoted", "complete-conditions",
    "delete-if-match",   "copy-if-match",      "part-copy",         "content-md5",
    "checksum-crc32c",   "checksum-crc64nvme", "etag-is-md5",       "range-if-match",
    "payload-sha256",    "part-copy-if-match", "if-match-absent",   "copy-target",
};

const char *objstore_cap_name(unsigned bit)
{
    return bit < G_N_ELEMENTS(cap_names) ? cap_names[bit] : NULL;
}

const char *objstore_err_text(int err)
{
    switch (ABS(err)) {
    case ENOMEDIUM:
        return "archived (storage class GLACIER, DEEP_ARCHIVE or alike): restore it in the store first";
    case ENODEV:
        return "the bucket is not there: check its name and the endpoint";
    case EREMOTEIO:
        return "the store refuses it, with a code that the log tells";
    case EKEYEXPIRED:
        return "the credentials have expired: renew them";
    default:
        return err_text(err);
    }
}

void obj_info_clear(struct obj_info *info)
{
    g_free(info->symlink);
    memset(info, 0, sizeof *info);
}

void objstore_base_clear(struct objstore *st)
{
    g_free(st->source);
    g_free(st->identity);
}

int objstore_cond_check(const struct obj_cond *cond, const struct etag *have)
{
    if (!cond || cond->kind == OBJ_COND_NONE)
        return 0;
    if (cond->kind == OBJ_COND_ABSENT)
        return have ? -ESTALE : 0;
    return have && etag_fits(&cond->etag, have) ? 0 : -ESTALE;
}

/* Counts what failed for good; answers that tell of the object rather than of the store are no failures. Where keys are sent to several stores those count. */
static int done(const struct objstore *st, int r)
{
    if (r < 0 && !st->drv->at && r != -ENOENT && r != -ESTALE && r != -ECANCELED && r != -EINTR)
        metric_inc(M_store_errors);
    return r;
}

static void assert_call(const struct objstore *st, const char *key)
{
    g_assert(st && key && key[0] != '/');
    mutex_assert_none_held();
}

bool objstore_known_is(const void *ctx, const char *identity)
{
    return g_str_equal(ctx, identity);
}

int objstore_open(const struct objstore_config *cfg, struct objstore **ret_store, char **ret_msg)
{
    struct s3_source src = {0};
    int r = s3_source_parse(cfg->source ? cfg->source : "", &src, ret_msg);
    if (r < 0)
        return r;
    r = -EINVAL;
    for (size_t i = 0; i < G_N_ELEMENTS(drivers); i++) {
        if (strcmp(drivers[i]->scheme, src.scheme) == 0)
            r = drivers[i]->open(cfg, ret_store, ret_msg);
    }
    s3_source_clear(&src);
    if (r == 0 && cfg->escape)
        *ret_store = objstore_names_wrap(*ret_store);
    return r;
}

void objstore_forget_env(void)
{
    s3_cred_forget_env();
}

void objstore_recall_env(void)
{
    s3_cred_recall_env();
}

void objstore_drop_env(void)
{
    s3_cred_drop_env();
}

void objstore_close(struct objstore *st)
{
    if (st)
        st->drv->close(st);
}

char *objstore_resume(const struct objstore *st)
{
    return st->drv->resume ? st->drv->resume(st) : NULL;
}

void objstore_shutdown(struct objstore *st)
{
    st->drv->shutdown(st);
}

int objstore_check(struct objstore *st, char **ret_msg)
{
    mutex_assert_none_held();
    return done(st, st->drv->check(st, ret_msg));
}

const char *objstore_source(const struct objstore *st)
{
    return st->source;
}

const char *objstore_identity(const struct objstore *st)
{
    return st->identity;
}

const struct objstore_limits *objstore_limits(const struct objstore *st)
{
    return &st->limits;
}

uint32_t objstore_caps(const struct objstore *st)
{
    return __atomic_load_n(&st->caps, __ATOMIC_RELAXED);
}

void objstore_set_caps(struct objstore *st, uint32_t caps)
{
    if (st->drv->set_caps)
        st->drv->set_caps(st, caps);
    __atomic_store_n(&st->caps, caps, __ATOMIC_RELAXED);
}

void objstore_at(struct objstore *st, const char *key, struct objstore_at *ret)
{
    if (st->drv->at)
        st->drv->at(st, key, ret);
    else
        *ret = (struct objstore_at){st->limits, objstore_caps(st), objstore_offline_since_ns(st)};
}

uint32_t objstore_caps_of(struct objstore *st, const char *key)
{
    struct objstore_at at;
    objstore_at(st, key, &at);
    return at.caps;
}

struct objstore_limits objstore_limits_of(struct objstore *st, const char *key)
{
    struct objstore_at at;
    objstore_at(st, key, &at);
    return at.limits;
}

void objstore_set_caps_of(struct objstore *st, const char *key, uint32_t caps)
{
    if (st->drv->set_caps_at)
        st->drv->set_caps_at(st, key, caps);
    else
        objstore_set_caps(st, caps);
}

int objstore_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps)
{
    assert_call(st, key_prefix);
    uint32_t caps = 0;
    int r = st->drv->probe(st, key_prefix, &caps);
    if (r < 0)
        return done(st, r);
    objstore_set_caps_of(st, key_prefix, caps);
    *ret_caps = caps;
    return 0;
}

int64_t objstore_offline_since_ns(const struct objstore *st)
{
    return st->drv->offline_since_ns(st);
}

int objstore_head(struct objstore *st, const char *key, struct obj_info *ret_info)
{
    assert_call(st, key);
    struct obj_info info = {0};
    int r = st->drv->head(st, key, &info);
    if (r < 0)
        return done(st, r);
    *ret_info = info;
    return 0;
}

int objstore_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                 obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    assert_call(st, key);
    g_assert(sink);
    struct obj_info info = {0};
    int r = st->drv->get(st, key, off, len, if_match, sink, ctx, &info);
    if (r == 0 && ret_info)
        *ret_info = info;
    else
        obj_info_clear(&info);
    return done(st, r);
}

int objstore_put(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
                 const struct obj_cond *cond, struct etag *ret_etag)
{
    assert_call(st, key);
    struct etag etag = {0};
    int r = s3_meta_check(meta);
    if (r == 0 && len > st->limits.put_max_bytes)
        r = -EFBIG;
    if (r == 0)
        r = st->drv->put(st, key, buf, len, meta, cond, &etag);
    if (r == 0 && ret_etag)
        *ret_etag = etag;
    return done(st, r);
}

int objstore_delete(struct objstore *st, const char *key, const struct obj_cond *cond)
{
    assert_call(st, key);
    g_assert(!cond || cond->kind != OBJ_COND_ABSENT);
    return done(st, st->drv->delete (st, key, cond));
}

int objstore_copy_with(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag)
{
    assert_call(st, copy->src);
    assert_call(st, copy->dst);
    struct etag etag = {0};
    int r = s3_meta_check(copy->meta);
    if (r == 0)
        r = st->drv->copy(st, copy, &etag);
    if (r == 0 && ret_etag)
        *ret_etag = etag;
    return done(st, r);
}

int objstore_copy(struct objstore *st, const char *src, const struct etag *src_etag, const char *dst,
                  const struct obj_meta *meta, const struct obj_cond *dst_cond, struct etag *ret_etag)
{
    const struct obj_copy copy = {.src = src, .dst = dst, .src_etag = src_etag, .meta = meta, .dst_cond = dst_cond};
    return objstore_copy_with(st, &copy, ret_etag);
}

int objstore_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated)
{
    assert_call(st, req->prefix);
    bool truncated = false;
    int r = st->drv->list(st, req, fn, ctx, &truncated);
    if (r == 0 && ret_truncated)
        *ret_truncated = truncated;
    return r > 0 ? r : done(st, r);
}

int objstore_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id)
{
    assert_call(st, key);
    int r = s3_meta_check(meta);
    return done(st, r < 0 ? r : st->drv->mpu_create(st, key, meta, ret_upload_id));
}

int objstore_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf,
                      struct obj_part *part)
{
    assert_call(st, key);
    if (part->number < 1 || part->number > st->limits.parts_max || part->size > st->limits.part_max_bytes)
        return done(st, -EFBIG);
    return done(st, st->drv->mpu_part(st, key, upload_id, buf, part));
}

int objstore_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                           const struct etag *src_etag, uint64_t off, struct obj_part *part)
{
    assert_call(st, key);
    assert_call(st, src);
    if (part->number < 1 || part->number > st->limits.parts_max || part->size > st->limits.part_max_bytes)
        return done(st, -EFBIG);
    int r = st->drv->mpu_part_copy(st, key, upload_id, src, src_etag, off, part);
    if (r == 0)
        metric_add(M_copied_bytes, (int64_t)part->size);
    return done(st, r);
}

int objstore_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                          size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag)
{
    assert_call(st, key);
    for (size_t i = 1; i < n_parts; i++)
        g_assert(parts[i].number > parts[i - 1].number);
    struct etag etag = {0};
    int r = st->drv->mpu_complete(st, key, upload_id, parts, n_parts, token, cond, &etag);
    if (r == 0 && ret_etag)
        *ret_etag = etag;
    return done(st, r);
}

int objstore_mpu_abort(struct objstore *st, const char *key, const char *upload_id)
{
    assert_call(st, key);
    return done(st, st->drv->mpu_abort(st, key, upload_id));
}

int objstore_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                       size_t *ret_n)
{
    assert_call(st, key);
    return done(st, st->drv->mpu_parts(st, key, upload_id, ret_parts, ret_n));
}

int objstore_mpu_list(struct objstore *st, const char *prefix,
                      int (*fn)(void *ctx, const char *key, const char *upload_id), void *ctx)
{
    assert_call(st, prefix);
    int r = st->drv->mpu_list(st, prefix, fn, ctx);
    return r > 0 ? r : done(st, r);
}
