/* A cache on a temporary folder with a directory store behind the fault driver, for tests of publishing. Parts are 64 KiB, the smallest it takes. */
#pragma once
#include "base/clock.h"
#include "base/metric.h"
#include "cache.h"
#include "tests/support/checks.h"
#include "upload.h"

#include <check.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART (64ull << 10)
#define INO  77

static struct {
    char *root, *dir, *objects;
    int lock_fd;
    struct objstore *st;
    struct meta *m;
    struct cache *c;
    unsigned max_uploads;
} rig;

static inline void start(void)
{
    char *msg = NULL;
    bool fresh;
    struct cache_config cfg = {
        .dir = rig.dir,
        .size_bytes = 4ull << 30,
        .free_bytes = 1,
        .max_downloads = 2,
        .max_uploads = rig.max_uploads,
        .part_bytes = PART,
        .get_bytes = 1 << 20,
        .readahead_bytes = 1 << 20,
        .op_timeout_ns = 5 * NS_PER_S,
    };
    ck_assert_int_eq(cache_dir_prepare(rig.dir, &rig.lock_fd, &msg), 0);
    ck_assert_int_eq(meta_open(rig.dir, "test", &rig.m, &fresh, &msg), 0);
    ck_assert_int_eq(cache_open(&cfg, rig.m, rig.st, &rig.c, &msg), 0);
}

static inline void stop(void)
{
    cache_close(rig.c);
    meta_close(rig.m);
    close(rig.lock_fd);
}

static inline void setup(void)
{
    char *msg = NULL;
    struct objstore *inner = NULL;
    rig.max_uploads = 4;
    rig.root = g_dir_make_tmp("sluice-publish-XXXXXX", NULL);
    rig.dir = g_build_filename(rig.root, "cache", NULL);
    rig.objects = g_build_filename(rig.root, "objects", NULL);
    ck_assert_int_eq(g_mkdir(rig.objects, 0700), 0);
    g_autofree char *source = g_strconcat("file://", rig.objects, NULL);
    struct objstore_config sc = {.source = source, .op_timeout_ns = 2 * NS_PER_S, .max_connections = 16};
    ck_assert_int_eq(objstore_open(&sc, &inner, &msg), 0);
    ck_assert_int_eq(objstore_fault_wrap(inner, "", &rig.st), 0);
    start();
}

static inline void teardown(void)
{
    stop();
    objstore_close(rig.st);
    g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", rig.root);
    ck_assert_int_eq(system(cmd), 0);
    g_free(rig.objects);
    g_free(rig.dir);
    g_free(rig.root);
}

static inline void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(rig.st, rules), 0);
}

static inline void fill(uint8_t *buf, uint64_t len, uint64_t off, uint32_t seed)
{
    for (uint64_t i = 0; i < len; i++)
        buf[i] = (uint8_t)(((off + i) * 2654435761u + seed * 1000003u) >> 13);
}

static inline void write_at(struct cfile *cf, uint64_t off, uint64_t len, uint32_t seed)
{
    g_autofree uint8_t *buf = g_malloc(len + 1);
    fill(buf, len, off, seed);
    if (len)
        ck_assert_int_eq(cache_file_write(cf, buf, len, off), (ssize_t)len);
}

/* In steps of a part, as a writer does. */
static inline void write_through(struct cfile *cf, uint64_t len, uint32_t seed)
{
    for (uint64_t off = 0; off < len; off += PART)
        write_at(cf, off, MIN(PART, len - off), seed);
}

static inline struct cfile *new_file(uint64_t len, uint32_t seed)
{
    struct cfile *cf = NULL;
    ck_assert_int_eq(cache_file_new(rig.c, INO, &cf), 0);
    write_at(cf, 0, len, seed);
    return cf;
}

static inline int collect(void *ctx, uint64_t off, const void *buf, size_t len)
{
    (void)off;
    g_byte_array_append(ctx, buf, (guint)len);
    return 0;
}

static inline GByteArray *object(const char *key)
{
    GByteArray *out = g_byte_array_new();
    int r = objstore_get(rig.st, key, 0, 0, NULL, collect, out, NULL);
    if (r == 0)
        return out;
    ck_assert_int_eq(r, -ENOENT);
    g_byte_array_unref(out);
    return NULL;
}

static inline bool visible(const char *key)
{
    GByteArray *o = object(key);
    if (o)
        g_byte_array_unref(o);
    return o != NULL;
}

/* The object is what the file is. */
static inline void assert_published(struct cfile *cf, const char *key)
{
    GByteArray *o = object(key);
    uint64_t size = cache_file_size(cf);
    ck_assert_ptr_nonnull(o);
    ck_assert_uint_eq(o->len, size);
    g_autofree uint8_t *want = g_malloc(size + 1);
    if (size)
        ck_assert_int_eq(cache_file_read(cf, want, size, 0), (ssize_t)size);
    ck_assert_int_eq(memcmp(want, o->data ? o->data : want, size), 0);
    g_byte_array_unref(o);
}

static inline struct publish_req request(const char *key)
{
    return (struct publish_req){.key = key, .meta = {.token = "token-1"}, .cond = {.kind = OBJ_COND_ABSENT}};
}

static inline int publish(struct cfile *cf, const char *key)
{
    struct publish_req req = request(key);
    struct publish_result res = {0};
    int r = cache_publish(cf, &req, &res);
    if (r == 0) {
        ck_assert_uint_eq(res.size, cache_file_size(cf));
        ck_assert(etag_is_set(&res.etag));
        ck_assert_str_eq(res.token, "token-1");
    }
    return r;
}

static inline int count_upload(void *ctx, const char *key, const char *upload_id)
{
    (void)key;
    (void)upload_id;
    (*(unsigned *)ctx)++;
    return 0;
}

static inline unsigned n_uploads(void)
{
    unsigned n = 0;
    ck_assert_int_eq(objstore_mpu_list(rig.st, "", count_upload, &n), 0);
    return n;
}

static inline bool has_record(uint64_t vid)
{
    struct meta_upload rec;
    if (meta_upload_get(rig.m, vid, &rec) < 0)
        return false;
    meta_upload_clear(&rec);
    return true;
}

static inline int refuse(void *ctx)
{
    (*(unsigned *)ctx)++;
    return -EINPROGRESS;
}

static inline TCase *add_case(Suite *s, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    return tc;
}
