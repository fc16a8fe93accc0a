/*
 * The S3 driver: open and close, and the ops on single objects. Reads, lists, multipart, copies and the probe have files of their own; what
 * happens around each request is in s3_exec.c. No lock here; the struct's is used by s3_exec.c only.
 */
#include "drv_s3.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "s3_meta.h"
#include "s3_sum.h"

#include <stdio.h>
#include <string.h>

#define MD5_OF_NOTHING    "d41d8cd98f00b204e9800998ecf8427e" /* one empty object is as good as another */
#define LIST_CHAINS       8u /* more of them at once are of no use: rows are taken in one by one */
#define SETTLE_TIMEOUT_NS (10 * NS_PER_S)
#define S3_SSE            "x-amz-server-side-encryption"

int s3_key_check(const struct drv_s3 *d, const char *key)
{
    return strlen(d->prefix) + strlen(key) > d->base.limits.key_max_bytes ? -EFBIG : 0;
}

char *s3_copy_source(const struct drv_s3 *d, const char *key)
{
    GString *out = g_string_new(NULL);
    s3_uri_encode(out, d->bucket, strlen(d->bucket), false);
    g_string_append_c(out, '/');
    s3_uri_encode(out, d->prefix, strlen(d->prefix), true);
    s3_uri_encode(out, key, strlen(key), true);
    return g_string_free(out, FALSE);
}

static bool is_archived(const struct http_response *resp)
{
    const char *cls = http_header(resp, "x-amz-storage-class");
    const char *restore = http_header(resp, "x-amz-restore");
    bool readable = restore && strstr(restore, "ongoing-request=\"false\""); /* a copy of it is there for a while */
    return cls && s3_meta_is_archive(cls) && !readable;
}

/* Everything but the size. */
void s3_info_fill(const struct http_response *resp, struct obj_info *info)
{
    GHashTableIter it;
    gpointer name;
    gpointer value;
    obj_info_clear(info);
    const char *etag = http_header(resp, "etag");
    const char *mtime = http_header(resp, "last-modified");
    s3_etag_parse(etag ? etag : "", &info->etag);
    info->mtime_ns = mtime ? http_date_parse(mtime) : 0;
    info->archived = is_archived(resp);
    info->encrypted = s3_is_encrypted(resp);
    g_hash_table_iter_init(&it, resp->headers);
    while (g_hash_table_iter_next(&it, &name, &value)) {
        if (g_str_has_prefix(name, "x-amz-meta-"))
            s3_meta_take(info, (const char *)name + strlen("x-amz-meta-"), value);
    }
}

void s3_etag_of_empty(const char *key, const char *token, struct etag *etag)
{
    if (!etag_is_set(etag) || g_str_has_suffix(key, "/"))
        return;
    etag->s[etag_bare_len(etag)] = '\0';
    g_strlcat(etag->s, " ", sizeof etag->s);
    g_strlcat(etag->s, token ? token : "", sizeof etag->s);
}

void s3_etag_header(struct s3_req *req, const char *name, const struct etag *etag, bool quoted)
{
    s3_req_headerf(req, name, quoted ? "\"%.*s\"" : "%.*s", (int)etag_bare_len(etag), etag->s);
}

static bool ours(const char *meta_name)
{
    static const char *const names[] = {"mode", "uid", "gid", "mtime", "sluice-symlink", "sluice-token"};
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        if (strcmp(names[i], meta_name) == 0)
            return true;
    }
    return false;
}

/* How the object is stored, which the target of any copy forgets that does not say it. An archive's class would take what was restored out of reach again. */
static void keep_place(const struct http_response *resp, GPtrArray *keep)
{
    static const char *const names[] = {S3_SSE, S3_SSE "-aws-kms-key-id", S3_SSE "-bucket-key-enabled"};
    const char *cls = http_header(resp, "x-amz-storage-class");
    if (cls && *cls && strcmp(cls, "STANDARD") != 0 && !s3_meta_is_archive(cls))
        g_ptr_array_add(keep, g_strconcat("x-amz-storage-class: ", cls, NULL));
    for (size_t i = 0; s3_is_encrypted(resp) && i < G_N_ELEMENTS(names); i++) {
        const char *v = http_header(resp, names[i]);
        if (v && *v)
            g_ptr_array_add(keep, g_strconcat(names[i], ": ", v, NULL));
    }
}

bool s3_keep_is_place(const char *header)
{
    return g_str_has_prefix(header, "x-amz-") && !g_str_has_prefix(header, "x-amz-meta-");
}

/* Headers that a copy by parts, or one with new metadata, has to give again. */
static void keep_fill(const struct http_response *resp, GPtrArray *keep)
{
    static const char *const names[] = {"content-type",     "cache-control",    "content-disposition",
                                        "content-encoding", "content-language", "expires"};
    GHashTableIter it;
    gpointer name;
    gpointer value;
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        const char *v = http_header(resp, names[i]);
        if (v && *v)
            g_ptr_array_add(keep, g_strconcat(names[i], ": ", v, NULL));
    }
    keep_place(resp, keep);
    g_hash_table_iter_init(&it, resp->headers);
    while (g_hash_table_iter_next(&it, &name, &value)) {
        if (g_str_has_prefix(name, "x-amz-meta-") && !ours((const char *)name + strlen("x-amz-meta-")) &&
            *(char *)value)
            g_ptr_array_add(keep, g_strconcat(name, ": ", value, NULL));
    }
}

bool s3_size_of(const struct http_response *resp, uint64_t *ret)
{
    guint64 v = 0;
    const char *text = http_header(resp, "content-length");
    if (!text || !g_ascii_string_to_unsigned(text, 10, 0, INT64_MAX, &v, NULL))
        return false;
    *ret = v;
    return true;
}

int s3_head_full(struct drv_s3 *d, const char *key, uint64_t timeout_ns, struct obj_info *ret, GPtrArray *keep)
{
    struct s3_call c;
    uint64_t size = 0;
    s3_call_init(d, &c, "HEAD", key, M_requests_head);
    c.timeout_ns = timeout_ns;
    int r = s3_exec(d, &c);
    if (r == 0 && !s3_size_of(&c.resp, &size))
        r = -EBADMSG;
    if (r == 0) {
        struct obj_info info = {0};
        s3_info_fill(&c.resp, &info);
        info.size = size;
        if (size == 0)
            s3_etag_of_empty(key, info.token, &info.etag);
        if (keep)
            keep_fill(&c.resp, keep);
        *ret = info;
    }
    s3_call_fini(&c);
    return r;
}

static int s3_head(struct objstore *st, const char *key, struct obj_info *ret_info)
{
    struct drv_s3 *d = s3_of(st);
    if (s3_key_check(d, key) < 0)
        return -ENOENT;
    return s3_head_full(d, key, 0, ret_info, NULL);
}

/* ---- PUT, DELETE ---- */

static void meta_header(void *ctx, const char *name, const char *value)
{
    g_autofree char *full = g_strconcat("x-amz-meta-", name, NULL);
    s3_req_header(ctx, full, value);
}

void s3_meta_headers(struct s3_req *req, const struct obj_meta *meta)
{
    s3_meta_each(meta, meta_header, req);
}

int s3_cond_look(struct drv_s3 *d, const char *key, const struct obj_cond *cond, uint64_t timeout_ns, bool *ret_absent)
{
    struct obj_info info = {0};
    if (!cond || cond->kind == OBJ_COND_NONE)
        return 0;
    int r = s3_head_full(d, key, timeout_ns, &info, NULL);
    if (r < 0 && r != -ENOENT)
        return r;
    *ret_absent = r == -ENOENT;
    r = objstore_cond_check(cond, *ret_absent ? NULL : &info.etag);
    obj_info_clear(&info);
    return r;
}

void s3_cond_apply(struct drv_s3 *d, struct s3_call *c, const struct obj_cond *cond, uint32_t cap_absent,
                   uint32_t cap_etag)
{
    uint32_t caps = objstore_caps(&d->base);
    c->late = S3_LATE;
    if (!cond || cond->kind == OBJ_COND_NONE)
        return;
    bool absent = cond->kind == OBJ_COND_ABSENT;
    bool offered = (caps & (absent ? cap_absent : cap_etag)) != 0;
    bool makes = !absent && (cap_etag & (CAP_PUT_IF_MATCH | CAP_COMPLETE_CONDITIONS)) && (caps & CAP_IF_MATCH_ABSENT);
    if (!offered || makes || !etag_is_bare(&cond->etag))
        c->guard = cond;
    else if (!absent && strcmp(cond->etag.s, MD5_OF_NOTHING) != 0)
        c->late = S3_LATE_NOT;
    if (absent && (offered || (caps == 0 && cap_absent)))
        s3_req_header(&c->req, "If-None-Match", "*");
    else if (!absent && offered)
        s3_etag_header(&c->req, "If-Match", &cond->etag, !(caps & CAP_IF_MATCH_UNQUOTED));
}

void s3_md5_hex(const void *buf, size_t len, unsigned char ret[16], char ret_hex[33])
{
    s3_md5(buf, len, ret);
    for (int i = 0; i < 16; i++)
        g_snprintf(ret_hex + 2 * (size_t)i, 3, "%02x", ret[i]);
}

void s3_md5_header(struct s3_req *req, const void *buf, size_t len, char ret_hex[33])
{
    unsigned char md[16];
    s3_md5_hex(buf, len, md, ret_hex);
    g_autofree char *base64 = g_base64_encode(md, sizeof md);
    s3_req_header(req, "Content-MD5", base64);
}

bool s3_is_encrypted(const struct http_response *resp)
{
    const char *sse = http_header(resp, S3_SSE);
    return (sse && strcmp(sse, "AES256") != 0) || http_header(resp, S3_SSE "-customer-algorithm") != NULL;
}

bool s3_etag_wrong(const struct drv_s3 *d, const struct http_response *resp, const char *md5_hex)
{
    struct etag etag;
    const char *text = http_header(resp, "etag");
    if (!(objstore_caps(&d->base) & CAP_ETAG_IS_MD5) || !md5_hex[0] || s3_is_encrypted(resp))
        return false;
    s3_etag_parse(text ? text : "", &etag);
    return strcmp(etag.s, md5_hex) != 0;
}

int s3_settle_token(struct drv_s3 *d, const char *key, const char *token, const struct posix_attr *posix,
                    struct etag *ret_etag)
{
    struct obj_info info = {0};
    if (!token || !*token)
        return 0;
    int r = s3_head_full(d, key, MIN(d->op_timeout_ns, SETTLE_TIMEOUT_NS), &info, NULL);
    if (r < 0)
        return 0;
    bool same = strcmp(info.token, token) == 0 && (!posix || s3_meta_posix_same(&info.posix, posix));
    if (same)
        *ret_etag = info.etag;
    obj_info_clear(&info);
    return same ? 1 : 0;
}

struct put {
    struct drv_s3 *d;
    const char *key;
    const char *token;
    const struct s3_call *call;
    struct etag etag;
};

static int put_done(void *ctx, const struct http_response *resp)
{
    struct put *p = ctx;
    const char *etag = http_header(resp, "etag");
    s3_etag_parse(etag ? etag : "", &p->etag);
    return !etag_is_set(&p->etag) || s3_etag_wrong(p->d, resp, p->call->md5) ? -EBADMSG : 0;
}

static int put_settle(void *ctx)
{
    struct put *p = ctx;
    return s3_settle_token(p->d, p->key, p->token, NULL, &p->etag);
}

char *s3_crc_base64(const void *buf, size_t len)
{
    uint32_t crc = crc32c(0, buf, len);
    const guchar be[4] = {(guchar)(crc >> 24), (guchar)(crc >> 16), (guchar)(crc >> 8), (guchar)crc};
    return g_base64_encode(be, sizeof be);
}

static void crc_header(struct s3_req *req, const void *buf, size_t len)
{
    g_autofree char *base64 = s3_crc_base64(buf, len);
    s3_req_header(req, "x-amz-checksum-crc32c", base64);
    s3_req_header(req, "x-amz-sdk-checksum-algorithm", "CRC32C");
}

static int s3_put(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
                  const struct obj_cond *cond, struct etag *ret_etag)
{
    struct drv_s3 *d = s3_of(st);
    struct s3_call c;
    struct put p = {.d = d, .call = &c, .key = key, .token = meta ? meta->token : NULL};
    int r = s3_key_check(d, key);
    if (r < 0)
        return r;
    s3_call_init(d, &c, "PUT", key, M_requests_put);
    s3_cond_apply(d, &c, cond, CAP_PUT_IF_NONE_MATCH, CAP_PUT_IF_MATCH);
    s3_req_header(&c.req, "Content-Type", "application/octet-stream");
    s3_meta_headers(&c.req, meta);
    if (objstore_caps(st) & CAP_CHECKSUM_CRC32C)
        crc_header(&c.req, buf, len);
    else
        c.check_body = true;
    c.body = buf;
    c.body_len = len;
    c.ctx = &p;
    c.on_done = put_done;
    c.settle = put_settle;
    r = s3_exec(d, &c);
    if (r == -ENOENT && cond && cond->kind == OBJ_COND_ETAG)
        r = -ESTALE; /* If-Match on what is gone */
    if (r == 0) {
        if (len == 0)
            s3_etag_of_empty(key, p.token, &p.etag);
        *ret_etag = p.etag;
        metric_add(M_uploaded_bytes, (int64_t)len);
    }
    s3_call_fini(&c);
    return r;
}

static int s3_delete(struct objstore *st, const char *key, const struct obj_cond *cond)
{
    struct drv_s3 *d = s3_of(st);
    struct s3_call c;
    if (s3_key_check(d, key) < 0)
        return 0;
    s3_call_init(d, &c, "DELETE", key, M_requests_delete);
    s3_cond_apply(d, &c, cond, 0, CAP_DELETE_IF_MATCH);
    c.late = S3_LATE; /* the same bytes may be put there again */
    int r = s3_exec(d, &c);
    s3_call_fini(&c);
    return r == -ENOENT || (r == -ESTALE && c.guard_absent) ? 0 : r;
}

/* ---- life cycle ---- */

void s3_call_list_one(struct drv_s3 *d, struct s3_call *c)
{
    s3_call_init(d, c, "GET", NULL, M_requests_list);
    s3_req_query(&c->req, "list-type", "2");
    s3_req_query(&c->req, "max-keys", "1");
    s3_req_query(&c->req, "prefix", d->prefix);
}

static int s3_check(struct objstore *st, char **ret_msg)
{
    struct drv_s3 *d = s3_of(st);
    struct s3_call c;
    struct s3_list_page page = {0};
    s3_call_list_one(d, &c);
    int r = s3_exec(d, &c);
    if (r < 0) {
        *ret_msg = s3_call_message(d, &c, r);
    } else {
        r = s3_xml_list_parse(c.resp.body->str, c.resp.body->len, S3_ROOT_OBJECTS, &page);
        if (r < 0)
            *ret_msg = g_strdup_printf("what answers at %s is no S3 store", d->ep.host);
    }
    s3_list_page_clear(&page);
    s3_call_fini(&c);
    return r == -ENOENT ? -ENODEV : r;
}

static void s3_shutdown(struct objstore *st)
{
    struct drv_s3 *d = s3_of(st);
    __atomic_store_n(&d->stopping, 1, __ATOMIC_RELAXED);
    s3_cred_shutdown(d->cred);
    http_pool_shutdown(d->pool);
    mutex_lock(&d->mu);
    cond_broadcast(&d->cv);
    mutex_unlock(&d->mu);
}

static char *s3_resume(const struct objstore *st)
{
    return s3_cred_choice(((const struct drv_s3 *)st)->cred);
}

static int64_t s3_offline_since(const struct objstore *st)
{
    const struct drv_s3 *d = (const struct drv_s3 *)st;
    return __atomic_load_n(&d->offline_since_ns, __ATOMIC_RELAXED);
}

static void s3_close(struct objstore *st)
{
    struct drv_s3 *d = s3_of(st);
    s3_cred_close(d->cred);
    http_pool_free(d->pool);
    s3_endpoint_clear(&d->ep);
    explicit_bzero(&d->sign_key, sizeof d->sign_key);
    if (d->pool)
        cond_fini(&d->cv);
    if (d->pool)
        mutex_fini(&d->mu);
    objstore_base_clear(st);
    g_free(d->bucket);
    g_free(d->prefix);
    g_free(d->region);
    g_free(d);
}

static uint32_t connections(const struct objstore_config *cfg)
{
    return cfg->max_connections ? cfg->max_connections : 64;
}

static int open_parts(struct drv_s3 *d, const struct objstore_config *cfg, struct s3_source *src, char **ret_msg)
{
    d->base.source = s3_source_format(src);
    d->bucket = g_steal_pointer(&src->bucket);
    d->prefix = g_steal_pointer(&src->prefix);
    int r = s3_cred_open(cfg, &d->cred, ret_msg);
    if (r < 0)
        return r;
    d->region = g_strdup(s3_cred_region(d->cred));
    r = s3_endpoint_parse(s3_cred_endpoint(d->cred), d->region, d->bucket, cfg->force_path_style, &d->ep, ret_msg);
    if (r < 0)
        return r;
    if (!d->ep.tls && !d->ep.loopback && !cfg->allow_plain_http) {
        *ret_msg = g_strdup_printf("endpoint http://%s would send data unencrypted; use https:// or allow plain http",
                                   d->ep.host);
        return -EACCES;
    }
    d->base.identity = g_strdup_printf("%s%s%s %s/%s", d->ep.tls ? "https://" : "http://", d->ep.host, d->ep.base_path,
                                       d->bucket, d->prefix);
    uint32_t n = connections(cfg);
    struct http_pool_config pool = {.ca_bundle = s3_cred_ca_bundle(d->cred),
                                    .max_connections = n,
                                    .upload_limit_bps = cfg->upload_limit_bps,
                                    .download_limit_bps = cfg->download_limit_bps};
    r = http_pool_new(&pool, &d->pool);
    if (r < 0)
        return r;
    mutex_init(&d->mu, LOCK_S3_RETRY);
    cond_init(&d->cv);
    s3_budget_init(&d->budget);
    s3_window_init(&d->window, n);
    return 0;
}

static int s3_open(const struct objstore_config *cfg, struct objstore **ret_store, char **ret_msg)
{
    struct s3_source src = {0};
    int r = s3_source_parse(cfg->source, &src, ret_msg);
    if (r < 0)
        return r;
    s3_xml_init();
    struct drv_s3 *d = g_new0(struct drv_s3, 1);
    d->base.drv = &drv_s3;
    d->base.limits = (struct objstore_limits){
        .list_chains = CLAMP(connections(cfg) / 4, 1, LIST_CHAINS), /* readers want the others */
        .part_min_bytes = 5ull << 20,
        .part_max_bytes = 5ull << 30,
        .put_max_bytes = 5ull << 30,
        .copy_max_bytes = 5ull << 30,
        .object_max_bytes = 5ull << 40,
        .checked_bytes = 1u << 20,
        .summed_bytes = 32u << 20,
        .parts_max = 10000,
        .key_max_bytes = 1024,
        .late = true,
    };
    d->worked = cfg->resume != NULL; /* for the process before this one */
    d->op_timeout_ns = cfg->op_timeout_ns ? cfg->op_timeout_ns : 60 * NS_PER_S;
    r = open_parts(d, cfg, &src, ret_msg);
    if (d->ep.tls) /* which has its own checksums */
        d->base.limits.summed_bytes = 0;
    s3_source_clear(&src);
    if (r < 0) {
        s3_close(&d->base);
        return r;
    }
    *ret_store = &d->base;
    return 0;
}

const struct objstore_driver drv_s3 = {
    .scheme = "s3",
    .open = s3_open,
    .close = s3_close,
    .shutdown = s3_shutdown,
    .resume = s3_resume,
    .check = s3_check,
    .probe = s3_probe,
    .offline_since_ns = s3_offline_since,
    .head = s3_head,
    .get = s3_get,
    .put = s3_put,
    .delete = s3_delete,
    .copy = s3_copy,
    .list = s3_list,
    .mpu_create = s3_mpu_create,
    .mpu_part = s3_mpu_part,
    .mpu_part_copy = s3_mpu_part_copy,
    .mpu_complete = s3_mpu_complete,
    .mpu_abort = s3_mpu_abort,
    .mpu_parts = s3_mpu_parts,
    .mpu_list = s3_mpu_list,
};
