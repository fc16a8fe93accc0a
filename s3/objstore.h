/*
 * The object store: one interface, several drivers (s3, file, fault around any).
 *
 * All calls block and may be made from any thread; none may be made with a ranked lock held. Each call has a deadline (config op_timeout_ns, counted without progress) and
 * retries inside as s3_err.c and s3_retry.c say. Keys are NUL-terminated bytes without the link's prefix: the driver adds the prefix. A key has no empty component, "." or "..":
 * objstore_config.escape makes others of those.
 *
 * Errors everywhere: -ENOENT no such key (a definite 404), -ENODEV no such bucket, -EACCES, -ESTALE a condition did not hold or the object
 * changed, -EFBIG beyond the store's limits, -EOPNOTSUPP not offered, -EBADMSG the reply or a checksum makes no sense,
 * -EDQUOT the store's quota is used up, -EREMOTEIO refused for a reason that is not known here and may pass,
 * -ENOTDIR an object stands where the store would keep the key's directory,
 * -ENOMEDIUM the object is archived and can be read only after it was restored in the store, -ETIMEDOUT deadline, -ECANCELED by objstore_shutdown(), -EKEYEXPIRED credentials expired and cannot be renewed, -EXDEV a copy
 * from one store to another, -EROFS there is no store behind the key (objstore_links.h), else -EIO.
 */
#pragma once
#include "base/err.h"
#include "types.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct objstore;

/* What a probe of the bucket found (objstore_probe) or a driver knows of itself. */
enum objstore_cap {
    CAP_PUT_IF_NONE_MATCH = 1 << 0,   /* PUT If-None-Match: * refuses when the key exists */
    CAP_PUT_IF_MATCH = 1 << 1,        /* PUT If-Match: "etag" */
    CAP_IF_MATCH_UNQUOTED = 1 << 2,   /* ... but only without quotes (Ceph before 20) */
    CAP_COMPLETE_CONDITIONS = 1 << 3, /* CompleteMultipartUpload honours both */
    CAP_DELETE_IF_MATCH = 1 << 4,
    CAP_COPY_IF_MATCH = 1 << 5, /* x-amz-copy-source-if-match of CopyObject */
    CAP_PART_COPY = 1 << 6,
    CAP_CONTENT_MD5 = 1 << 7,     /* a wrong Content-MD5 is refused */
    CAP_CHECKSUM_CRC32C = 1 << 8, /* a wrong x-amz-checksum-crc32c is refused */
    CAP_CHECKSUM_CRC64NVME = 1 << 9,
    CAP_ETAG_IS_MD5 = 1 << 10,    /* the etag of a plain PUT is the MD5 of the body */
    CAP_RANGE_IF_MATCH = 1 << 11, /* GET with Range honours If-Match */
    CAP_PAYLOAD_SHA256 = 1 << 12, /* a body that has not the SHA-256 it was signed with is refused */
    /* x-amz-copy-source-if-match of UploadPartCopy: another handler in most stores, and some (R2, Ceph) have it in that of CopyObject alone; Ceph 16.2 in neither. */
    CAP_PART_COPY_IF_MATCH = 1 << 13,
    CAP_IF_MATCH_ABSENT = 1 << 14, /* no good one: If-Match of PUT or Complete makes what is not there */
    CAP_COPY_TARGET = 1 << 15,     /* If-None-Match: * and If-Match of CopyObject, on what it is to replace (AWS) */
};
/* "put-if-none-match", ... for status and objbench; NULL past the last. */
const char *objstore_cap_name(unsigned bit);

struct objstore_limits {
    uint64_t part_min_bytes, part_max_bytes; /* the last one may be smaller */
    uint64_t put_max_bytes;
    uint64_t copy_max_bytes; /* beyond: part copy */
    uint64_t object_max_bytes;
    /* A GET of a whole object up to this size gives no byte that contradicts the store's sum; of parts, and of larger ones, nobody knows. */
    uint64_t checked_bytes;
    /* Up to this size what came of a whole object is to be compared with its ETag; 0: nothing is gained by it, the way is safe. */
    uint64_t summed_bytes;
    uint32_t parts_max;
    uint32_t key_max_bytes; /* prefix included */
    uint32_t list_chains;   /* of pages, by which a large prefix is listed faster; 0: it does not come in pages */
    bool one_name;          /* there is no object "a" beside one "a/b" */
    bool plain_names;       /* no key has an empty component, "." or ".." */
    bool late;              /* a request that got no reply may be carried out later */
};

#define OBJ_SYMLINK_MAX 4095 /* what readlink() can give */

struct obj_info { /* metadata of an object */
    uint64_t size;
    int64_t mtime_ns; /* Last-Modified, wall clock */
    struct etag etag;
    struct posix_attr posix;   /* fields = 0 where the reply carried none (LIST never does) */
    char *symlink;             /* owned; target from x-amz-meta-sluice-symlink, 1 to OBJ_SYMLINK_MAX bytes, else NULL */
    char token[TOKEN_MAX + 1]; /* x-amz-meta-sluice-token, "" if none */
    bool archived;             /* GET fails until it is restored */
    bool encrypted;            /* with a key that makes the ETag no MD5; LIST never tells */
};
void obj_info_clear(struct obj_info *info);

/* User metadata to write with an object. Names as rclone and s3fs use them: mode (octal with leading 0), uid, gid, mtime (seconds.nanoseconds). */
struct obj_meta {
    struct posix_attr posix;
    const char *symlink; /* NULL, or the target: x-amz-meta-sluice-symlink, percent-encoded */
    const char *token;   /* NULL or "" for none */
};

/* -ENAMETOOLONG when the target does not fit into the 2 KB of user metadata beside the rest: 1,814 bytes fit, of which all but ASCII letters,
 * digits and -._~/ count three. Writing an object with such metadata gives the same. */
int objstore_symlink_check(const char *target) MUST_CHECK;

/* What must hold at the key for the call to take effect. Where the store lacks the verb's condition, the driver HEADs directly before
 * each attempt and compares. */
enum obj_cond_kind { OBJ_COND_NONE, OBJ_COND_ABSENT, OBJ_COND_ETAG };
struct obj_cond {
    enum obj_cond_kind kind;
    struct etag etag; /* OBJ_COND_ETAG */
};

/* Receives a GET's body in order. Returns 0 to go on, -errno to stop. off is the offset inside the object. */
typedef int obj_sink_fn(void *ctx, uint64_t off, const void *buf, size_t len);

struct obj_entry { /* one row of a listing: an object or, with delimiter, a common prefix */
    const char *
        name; /* key (or common prefix, ending in '/') with the asked-for prefix removed; borrowed. May hold any byte but NUL */
    size_t name_len;
    bool is_prefix;
    bool odd;      /* the full key held a NUL byte or is otherwise not representable: count, do not show */
    bool archived; /* its storage class wants a restore before a GET; a listing does not tell whether that was done */
    uint64_t size;
    int64_t mtime_ns;
    struct etag etag;
};
typedef int obj_list_fn(void *ctx, const struct obj_entry *entry); /* non-zero stops; returned by objstore_list */

struct obj_list_req {
    const char *prefix;      /* "" or "a/b/" */
    bool delimiter;          /* group at '/' */
    const char *start_after; /* NULL or key after which to begin (full key, prefix included) */
    uint32_t max_keys;       /* 0: all pages; else stop after this many rows */
};

struct obj_part {    /* one part of a multipart upload */
    uint32_t number; /* 1.. */
    uint64_t size;
    struct etag etag;
    uint32_t crc32c;
    const uint8_t *sha256; /* borrowed; of what is to be sent, where the caller has it: it is not taken again. NULL */
};

/* ---- life cycle ---- */

struct objstore_config {
    const char *source;       /* "s3://bucket/prefix" or "file:///dir" */
    const char *endpoint_url; /* NULL: AWS of the region */
    const char *region;       /* NULL: environment, profile, else us-east-1 */
    const char *profile;
    bool no_sign_request, force_path_style; /* the latter: automatic for endpoints that are not AWS */
    bool allow_plain_http;                  /* http:// to anything but loopback */
    const char *ca_bundle;
    uint64_t op_timeout_ns;
    uint32_t max_connections;
    uint64_t upload_limit_bps, download_limit_bps; /* bytes a second, 0 none */
    /* objstore_resume() of a process that had the same options: source of the credentials, endpoint, region and CA are what they were there, whatever
     * files and services say now, and keys that cannot be had now are no reason to fail. NULL, or what is no such text: none. */
    const char *resume;
    /* Of a store in a directory: the mode of directories that are made in it, and without x that of files; 0: what the process's umask leaves. A mode in obj_meta takes from it. */
    unsigned dir_mode;
    bool read_only; /* nothing will be written: a directory need not be able to take it */
    bool escape;    /* keys are paths as key_names.h makes them, so that each can be shown */
    /* Whether what the caller has of a store is of this one. A directory that never was a store then is refused with -ENODEV, not made one: what is mounted there is not, yet. NULL: nothing is. */
    bool (*known)(const void *ctx, const char *identity);
    const void *known_ctx;
};

/* For known: it is the one whose identity is ctx. */
bool objstore_known_is(const void *ctx, const char *identity);

/* Opens the driver of the source's scheme and checks what can be checked without a request (syntax, credentials present).
 * On failure *ret_msg gets a line for the user: what is wrong and what to do next (owned by caller). */
int objstore_open(const struct objstore_config *cfg, struct objstore **ret_store, char **ret_msg) MUST_CHECK;
/* Makes the keys in this process's environment, where /proc shows them, empty; stores that are open, or will be, have them all the same. */
void objstore_forget_env(void);
/* After a fork, for the program that this process becomes next: they are in its environment again. Safe after a fork. */
void objstore_recall_env(void);
/* After a fork: this process opens no store, nor does what it starts. */
void objstore_drop_env(void);
void objstore_close(struct objstore *st); /* NULL allowed */
/* For objstore_config.resume of a process that goes on with this store; no secrets. NULL: nothing is to be told. Owned by the caller. */
char *objstore_resume(const struct objstore *st);
/* Makes every call in flight and to come end with -ECANCELED soon. */
void objstore_shutdown(struct objstore *st);
/* One request that shows whether bucket and credentials work (LIST of one key). Message as above. */
int objstore_check(struct objstore *st, char **ret_msg) MUST_CHECK;

/* "s3://bucket/prefix" normalised, static for the store's life. */
const char *objstore_source(const struct objstore *st);
/* endpoint + bucket + prefix in one line: what a cache folder is bound to. */
const char *objstore_identity(const struct objstore *st);
const struct objstore_limits *objstore_limits(const struct objstore *st);
/* enum objstore_cap bits: probed, set by objstore_set_caps(), or the driver's own. 0 before a probe on s3. */
uint32_t objstore_caps(const struct objstore *st);
void objstore_set_caps(struct objstore *st, uint32_t caps);
/* Finds the capabilities out with a few requests on keys under `key_prefix` that it removes again; sets and returns them. -EACCES the store
 * takes no objects there; -EDQUOT, -EREMOTEIO not now. */
int objstore_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps) MUST_CHECK;
/* Wall-clock ns since when no request got through, or could be made for want of credentials that are waited for; 0 while the store answers. */
int64_t objstore_offline_since_ns(const struct objstore *st);

/* Where keys are in several stores (objstore_links.h) the same of the one that key is in; key_max_bytes is of whole keys. No lock is needed, none is in the way. */
struct objstore_at {
    struct objstore_limits limits;
    uint32_t caps;
    int64_t offline_since_ns;
};
void objstore_at(struct objstore *st, const char *key, struct objstore_at *ret);
struct objstore_limits objstore_limits_of(struct objstore *st, const char *key);
uint32_t objstore_caps_of(struct objstore *st, const char *key);
void objstore_set_caps_of(struct objstore *st, const char *key, uint32_t caps);

/* ---- turns ---- */

/* Where only so many requests may run at a time, because the store asked for less, those of this thread let others go first as long as *behind (atomic) is not 0: nobody
 * waits for them. NULL: no longer. */
void objstore_behind(const int *behind);
/* Did a change that this thread asked for, and before which the store compares nothing, get no reply since objstore_late_forget()? It may be made later, though another try succeeded. */
bool objstore_late(void);
void objstore_late_forget(void);

/* ---- objects ---- */

int objstore_head(struct objstore *st, const char *key, struct obj_info *ret_info) MUST_CHECK;
/* GET bytes [off, off+len) into sink; len 0 = to the end. if_match may be NULL. Returns 0 only when every byte asked for (clipped
 * to the object's end) was delivered exactly once and in order: retries inside resume where the body broke off. ret_info may be NULL. */
int objstore_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                 obj_sink_fn *sink, void *ctx, struct obj_info *ret_info) MUST_CHECK;
/* What the ETag says of a whole content, or cannot say: of a multipart upload only where its parts have a usual size. ret_md5 is one content's own, "" for
 * OBJ_SUM_NONE. -errno of read, which gives all it is asked for. */
enum obj_sum { OBJ_SUM_FITS, OBJ_SUM_DIFFERS, OBJ_SUM_NONE };
typedef int obj_read_fn(void *ctx, uint64_t off, void *buf, size_t len);
int objstore_sum(const struct etag *etag, uint64_t size, obj_read_fn *read, void *ctx, char ret_md5[33]) MUST_CHECK;
bool objstore_etag_is_sum(const struct etag *etag); /* has the form of one */
/* Not every ETag that looks like an MD5 is one. Whoever got the same other bytes twice tells that (fits false), or that the bytes fitted; whether a
 * sum that differs is worth a second GET is told from that. */
void objstore_sum_note(struct objstore *st, const char *key, bool fits);
bool objstore_sums_count(struct objstore *st, const char *key);
#define OBJ_DIGEST_BYTES 32
/* SHA-256. */
void objstore_digest(const void *buf, size_t len, uint8_t ret[OBJ_DIGEST_BYTES]);
/* The MD5 that an etag is, where the store of key makes them so; false: it is none. */
bool objstore_etag_md5(struct objstore *st, const char *key, const struct etag *etag, uint8_t ret[16]);
/* PUT of a body in memory. An ambiguous failure is settled by HEAD and meta->token. ret_etag may be NULL. */
int objstore_put(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
                 const struct obj_cond *cond, struct etag *ret_etag) MUST_CHECK;
/* Absent key: 0. Condition not met: -ESTALE. */
int objstore_delete(struct objstore *st, const char *key, const struct obj_cond *cond) MUST_CHECK;
/* Server-side copy inside the bucket, also above copy_max_bytes (by part copy). src_etag must still be what src has (-ESTALE).
 * meta NULL keeps the source's metadata, else replaces it; src == dst with meta is a metadata update of the version that
 * was read (-ESTALE if another came, where the store tells). An ambiguous failure is settled by HEAD: done where the target carries the token and the attributes that a copy has. */
int objstore_copy(struct objstore *st, const char *src, const struct etag *src_etag, const char *dst,
                  const struct obj_meta *meta, const struct obj_cond *dst_cond, struct etag *ret_etag) MUST_CHECK;
/* The same; begun is told, before it holds anything, of the multipart upload at dst that a large copy is made by: what interrupts the copy may leave it. Not 0: the copy ends with that. */
struct obj_copy {
    const char *src, *dst;
    const struct etag *src_etag; /* may be NULL, as the rest */
    const struct obj_meta *meta;
    const struct obj_cond *dst_cond;
    int (*begun)(void *ctx, const char *upload_id);
    void (*completing)(void *ctx); /* it may become the object from now on: nobody may abort it who does not know */
    void *ctx;
};
int objstore_copy_with(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag) MUST_CHECK;
/* Calls fn for each row in key order, page by page. *ret_truncated (may be NULL) tells whether max_keys stopped it. */
int objstore_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated)
    MUST_CHECK;

struct obj_wide_list {
    const char *prefix;     /* as in struct obj_list_req; with delimiter */
    obj_list_fn *row;       /* -errno ends the listing */
    int (*page)(void *ctx); /* what was given so far is not to wait for what comes; the same */
    void *ctx;
};
/*
 * The same for all of a prefix that may hold very many rows: by several chains of pages once it is known to (wide_list.c). Each row is given once; rows come in key order at first, then a
 * page from here and a page from there, with a call of `page` behind each. Both functions are called by one thread at a time, but not always by the caller's, with no lock held.
 * Ends when all threads have ended, with the first error of any.
 */
int objstore_list_wide(struct objstore *st, const struct obj_wide_list *req) MUST_CHECK;

/* ---- multipart ---- */

int objstore_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id)
    MUST_CHECK;
/* number, size and buf are in; etag and crc32c come back in part. */
int objstore_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf,
                      struct obj_part *part) MUST_CHECK;
/* Part from bytes [off, off+part->size) of src as it was at src_etag. */
int objstore_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                           const struct etag *src_etag, uint64_t off, struct obj_part *part) MUST_CHECK;
/* Parts ascending. A 200 with <Error> is an error; an ambiguous reply is settled by HEAD and token (the one given at create). -ENOENT: no such upload.
 * -EBADMSG: a part is not there or not the one meant. */
int objstore_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                          size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag)
    MUST_CHECK;
int objstore_mpu_abort(struct objstore *st, const char *key, const char *upload_id) MUST_CHECK;
/* Parts the store holds; *ret_parts is a g_malloc'd array the caller frees. */
int objstore_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                       size_t *ret_n) MUST_CHECK;
/* Uploads in progress under prefix: fn(ctx, key, upload_id). */
int objstore_mpu_list(struct objstore *st, const char *prefix,
                      int (*fn)(void *ctx, const char *key, const char *upload_id), void *ctx) MUST_CHECK;

/* What an error of the store means to a person. Static storage. */
const char *objstore_err_text(int err);

/* ---- fault driver (tests): wraps a store, takes ownership ---- */

/* rules: "op=get,nth=3,count=2,action=error:-EIO;op=put,prob=0.1,action=delay:50ms;op=get,action=short:100|corrupt:5". */
int objstore_fault_wrap(struct objstore *inner, const char *rules, struct objstore **ret_store) MUST_CHECK;
/* Replaces the rules at run time; also of the root of several stores. */
int objstore_fault_set(struct objstore *st, const char *rules) MUST_CHECK;
