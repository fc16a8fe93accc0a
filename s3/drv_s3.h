/* Private to the S3 driver: its struct, one call with its retries (s3_exec.c), and the ops by file. */
#pragma once
#include "base/metric.h"
#include "base/sync.h"
#include "http.h"
#include "objstore_driver.h"
#include "s3_cred.h"
#include "s3_req.h"
#include "s3_retry.h"
#include "s3_xml.h"

struct drv_s3 {
    struct objstore base;
    /* immutable after open */
    char *bucket;
    char *prefix; /* "" or "a/" */
    char *region;
    struct s3_endpoint ep;
    struct http_pool *pool;
    struct s3_cred *cred;
    uint64_t op_timeout_ns;
    /* atomic */
    int stopping;
    int worked; /* the keys did, once */
    int64_t offline_since_ns;
    int64_t skew_ns; /* server's clock minus ours */

    struct mutex mu;
    struct cond cv; /* a slot of the window is free, or stopping */
    /* guarded by mu */
    struct s3_budget budget;
    struct s3_window window;
    unsigned n_first; /* calls that wait for a slot of it, and that somebody waits for */
    struct s3_sign_key sign_key;
    char sign_for[65]; /* SHA-256 of the secret that sign_key stems from */
};

static inline struct drv_s3 *s3_of(struct objstore *st)
{
    return (struct drv_s3 *)st;
}

/* For objstore_late(). */
enum s3_late {
    S3_LATE_NOT,         /* nothing: it names a version that cannot stand there again */
    S3_LATE_UNLESS_DONE, /* nothing once another one of them was carried out */
    S3_LATE
};

/* One call: the request, hooks around each attempt, and what came of it. */
struct s3_call {
    struct s3_req req;
    enum metric metric;
    const void *body;
    size_t body_len;
    size_t reply_cap;                               /* most bytes of a reply kept; 0: 64 KiB */
    bool check_body;                                /* it carries a digest that the store compares, see s3_exec() */
    const uint8_t *sha256;                          /* of the body, NULL: not taken yet */
    const char *claim;                              /* SHA-256 to sign instead of the body's own (probe) */
    bool slow;                                      /* the store may work long before it answers: Complete, Copy */
    uint64_t copied_bytes;                          /* that it has to copy meanwhile */
    enum s3_late late;                              /* what it does if it is carried out late */
    bool once;                                      /* the failure itself is of interest: again only if too busy */
    bool body_may_err;                              /* a 200 may carry <Error> */
    uint64_t timeout_ns;                            /* 0: the store's */
    const struct obj_cond *guard;                   /* on the key, by HEAD before each attempt; NULL: none */
    void *ctx;                                      /* for all hooks */
    void (*prepare)(void *ctx, struct s3_req *req); /* before each attempt; headers are empty then */
    http_head_fn *on_head;
    http_sink_fn *sink;
    int (*on_done)(void *ctx, const struct http_response *resp); /* 2xx complete. -EIO, -EBADMSG: try again */
    bool (*stopped)(void *ctx);                                  /* the failure is the caller's own wish: no retry */
    int (*settle)(void *ctx); /* after an ambiguous failure: 1 it was carried out, 0 not, -errno give up */
    uint64_t n_given; /* counted by the sink: bytes that no later attempt asks for again. Each renews the deadline. */
    /* out */
    char md5[33];              /* of the body, if it was sent with its MD5 */
    struct http_response resp; /* of the last attempt */
    struct s3_xml_error error;
    bool settled;      /* success was found by settle, resp tells nothing */
    bool guard_absent; /* the guard failed because nothing stands there */
};
/* key without the prefix; NULL: the bucket. */
void s3_call_init(struct drv_s3 *d, struct s3_call *c, const char *method, const char *key, enum metric metric);
void s3_call_fini(struct s3_call *c);
/* Performs with retries. 0 or -errno. */
int s3_exec(struct drv_s3 *d, struct s3_call *c) MUST_CHECK;
/* A line for the user about the last attempt. */
char *s3_call_message(const struct drv_s3 *d, const struct s3_call *c, int r);

/* drv_s3.c */
/* A LIST of one key, to be sent: whether bucket and keys are good. */
void s3_call_list_one(struct drv_s3 *d, struct s3_call *c);
int s3_key_check(const struct drv_s3 *d, const char *key) MUST_CHECK;
/* HEAD. keep (may be NULL) gets "name: value" of what a copy has to carry over by itself. timeout_ns 0: the store's. */
int s3_head_full(struct drv_s3 *d, const char *key, uint64_t timeout_ns, struct obj_info *ret, GPtrArray *keep);
/* Of these: one that says how the object is stored (class, encryption); a copy that keeps its metadata has to give it too. */
bool s3_keep_is_place(const char *header);
void s3_meta_headers(struct s3_req *req, const struct obj_meta *meta);
/* The tag of an empty object gets its token (NULL: none); those of directory markers stay bare, one is as good as the other. */
void s3_etag_of_empty(const char *key, const char *token, struct etag *etag);
/* A condition on the bare tag. */
void s3_etag_header(struct s3_req *req, const char *name, const struct etag *etag, bool quoted);
/* Adds the condition's header or makes it the call's guard, as the capabilities say; does both where the header would not tell two empty
 * objects apart, or not whether there is one. cond must outlive the call. */
void s3_cond_apply(struct drv_s3 *d, struct s3_call *c, const struct obj_cond *cond, uint32_t cap_absent,
                   uint32_t cap_etag);
/* HEADs key: 0 the condition holds, -ESTALE it does not, and then whether nothing is there. timeout_ns 0: the store's.
 * cond may be NULL. */
int s3_cond_look(struct drv_s3 *d, const char *key, const struct obj_cond *cond, uint64_t timeout_ns, bool *ret_absent);
/* What a reply tells of its object: everything but the size. */
void s3_info_fill(const struct http_response *resp, struct obj_info *info);
bool s3_size_of(const struct http_response *resp, uint64_t *ret);
void s3_md5_hex(const void *buf, size_t len, unsigned char ret[16], char ret_hex[33]);
/* CRC32C as x-amz-checksum-crc32c has it. */
char *s3_crc_base64(const void *buf, size_t len);
/* Content-MD5 as a header; the digest in hex to ret_hex. */
void s3_md5_header(struct s3_req *req, const void *buf, size_t len, char ret_hex[33]);
/* By keys of its own, so that the ETag is no MD5 of the content. */
bool s3_is_encrypted(const struct http_response *resp);
/* Whether an ETag contradicts the MD5 of what was sent. */
bool s3_etag_wrong(const struct drv_s3 *d, const struct http_response *resp, const char *md5_hex);
/* HEADs key: 1 when it carries the token and, unless posix is NULL, these attributes, then with its etag; else 0. */
int s3_settle_token(struct drv_s3 *d, const char *key, const char *token, const struct posix_attr *posix,
                    struct etag *ret_etag);
/* "bucket/full%20key" for x-amz-copy-source: without a '/' before it, as the SDKs send it, which R2 takes for a bucket without a name. */
char *s3_copy_source(const struct drv_s3 *d, const char *key);

/* s3_get.c */
int s3_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
           obj_sink_fn *sink, void *ctx, struct obj_info *ret_info);

/* s3_list.c */
int s3_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated);
int s3_mpu_list(struct objstore *st, const char *prefix, int (*fn)(void *ctx, const char *key, const char *upload_id),
                void *ctx);
int s3_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                 size_t *ret_n);
/* s3_multipart.c */
int s3_mpu_create_with(struct drv_s3 *d, const char *key, const struct obj_meta *meta, const GPtrArray *keep,
                       char **ret_upload_id);
int s3_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id);
int s3_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf, struct obj_part *part);
int s3_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                     const struct etag *src_etag, uint64_t off, struct obj_part *part);
/* Where the store lacks cap, the condition on this kind of copy's source, a HEAD stands in: 0 or -ESTALE. */
int s3_source_check(struct drv_s3 *d, uint32_t cap, const char *src, const struct etag *etag);
int s3_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                    size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag);
/* posix: what was given at create, where the key may carry the token already; else NULL. */
int s3_mpu_complete_with(struct drv_s3 *d, const char *key, const char *upload_id, const struct obj_part *parts,
                         size_t n_parts, const char *token, const struct posix_attr *posix, const struct obj_cond *cond,
                         struct etag *ret_etag);
int s3_mpu_abort(struct objstore *st, const char *key, const char *upload_id);
/* s3_copy.c */
int s3_copy(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag);
/* s3_probe.c */
int s3_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps);
