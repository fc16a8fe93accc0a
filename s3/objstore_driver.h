/*
 * What a driver of the object store provides; private to s3/. A driver embeds struct objstore as its first member and
 * fills it in open. Every op is as objstore.h describes it; arguments have been checked by objstore.c.
 */
#pragma once
#include "objstore.h"

struct objstore_driver {
    const char *scheme; /* "s3"; NULL for drivers that wrap */
    int (*open)(const struct objstore_config *cfg, struct objstore **ret_store, char **ret_msg);
    void (*close)(struct objstore *st);
    void (*shutdown)(struct objstore *st);
    char *(*resume)(const struct objstore *st); /* NULL: nothing to tell */
    int (*check)(struct objstore *st, char **ret_msg);
    int (*probe)(struct objstore *st, const char *key_prefix, uint32_t *ret_caps);
    void (*set_caps)(struct objstore *st, uint32_t caps); /* NULL: nothing to do beyond st->caps */
    int64_t (*offline_since_ns)(const struct objstore *st);
    /* Drivers that send keys to several stores; NULL: one store is behind all keys. */
    void (*at)(struct objstore *st, const char *key, struct objstore_at *ret);
    void (*set_caps_at)(struct objstore *st, const char *key, uint32_t caps);
    void (*sum_note_at)(struct objstore *st, const char *key,
                        bool fits); /* the two: of those that stand before others */
    bool (*sums_count_at)(struct objstore *st, const char *key);
    struct objstore *(*root)(struct objstore *st); /* the store of keys that are in no other; NULL: none */
    int (*head)(struct objstore *st, const char *key, struct obj_info *ret_info);
    int (*get)(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
               obj_sink_fn *sink, void *ctx, struct obj_info *ret_info);
    int (*put)(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
               const struct obj_cond *cond, struct etag *ret_etag);
    int (*delete)(struct objstore *st, const char *key, const struct obj_cond *cond);
    int (*copy)(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag);
    int (*list)(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated);
    int (*mpu_create)(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id);
    int (*mpu_part)(struct objstore *st, const char *key, const char *upload_id, const void *buf,
                    struct obj_part *part);
    int (*mpu_part_copy)(struct objstore *st, const char *key, const char *upload_id, const char *src,
                         const struct etag *src_etag, uint64_t off, struct obj_part *part);
    int (*mpu_complete)(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                        size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag);
    int (*mpu_abort)(struct objstore *st, const char *key, const char *upload_id);
    int (*mpu_parts)(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                     size_t *ret_n);
    int (*mpu_list)(struct objstore *st, const char *prefix,
                    int (*fn)(void *ctx, const char *key, const char *upload_id), void *ctx);
};

struct objstore {
    /* immutable after open */
    const struct objstore_driver *drv;
    char *source;   /* owned */
    char *identity; /* owned */
    struct objstore_limits limits;
    uint32_t caps;               /* atomic */
    uint32_t sums_fit, sums_odd; /* atomic; objstore_sum_note() */
};

extern const struct objstore_driver drv_s3;
extern const struct objstore_driver drv_file;

/* Keys are paths as key_names.h makes them of those of inner, which is taken over. */
struct objstore *objstore_names_wrap(struct objstore *inner);
/* What objstore_behind() said, as of now. */
bool objstore_is_behind(void);
/* For objstore_late(). */
void objstore_late_note(void);
/* Frees what the embedded part owns. */
void objstore_base_clear(struct objstore *st);
/* What a condition says of a key: exists with etag, or does not (etag NULL). 0 or -ESTALE. */
int objstore_cond_check(const struct obj_cond *cond, const struct etag *have);
