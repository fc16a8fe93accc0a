/* A cache on a temporary folder with a file store behind the fault driver, for tests of the cache. */
#pragma once
#include "base/clock.h"
#include "base/metric.h"
#include "cache.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB   1024ull
#define MIB   (1024ull * KIB)
#define CHUNK ((uint64_t)META_CHUNK_BYTES)

struct fixture {
    char *root, *dir;
    int lock_fd;
    struct objstore *store;
    struct meta *meta;
    struct cache *cache;
    struct cache_config cfg;
};

static inline void fixture_start_meta(struct fixture *f)
{
    char *msg = NULL;
    bool fresh;
    ck_assert_int_eq(cache_dir_prepare(f->dir, &f->lock_fd, &msg), 0);
    ck_assert_int_eq(meta_open(f->dir, "test", &f->meta, &fresh, &msg), 0);
}

static inline void fixture_start_cache(struct fixture *f)
{
    char *msg = NULL;
    ck_assert_int_eq(cache_open(&f->cfg, f->meta, f->store, &f->cache, &msg), 0);
}

static inline void fixture_start(struct fixture *f)
{
    fixture_start_meta(f);
    fixture_start_cache(f);
}

/* As after the machine went down. */
static inline void fixture_start_in_another_boot(struct fixture *f)
{
    fixture_start_meta(f);
    struct meta_batch *b = meta_batch_new(f->meta);
    meta_value_put(b, "cache/boot", "another", 7);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    fixture_start_cache(f);
}

static inline void fixture_stop(struct fixture *f)
{
    cache_close(f->cache);
    meta_close(f->meta);
    close(f->lock_fd);
    f->cache = NULL;
}

/* Store and configuration on an existing folder; takes ownership of root. The cache is not started. */
static inline void fixture_attach(struct fixture *f, char *root, uint64_t size_bytes)
{
    char *msg = NULL;
    struct objstore *inner;
    memset(f, 0, sizeof *f);
    f->root = root;
    f->dir = g_build_filename(f->root, "cache", NULL);
    g_autofree char *source = g_strconcat("file://", f->root, "/objects", NULL);
    struct objstore_config sc = {.source = source, .op_timeout_ns = 2 * NS_PER_S, .max_connections = 16};
    ck_assert_int_eq(objstore_open(&sc, &inner, &msg), 0);
    ck_assert_int_eq(objstore_fault_wrap(inner, "", &f->store), 0);
    f->cfg = (struct cache_config){.dir = f->dir,
                                   .size_bytes = size_bytes,
                                   .free_bytes = 1,
                                   .max_downloads = 4,
                                   .max_uploads = 2,
                                   .part_bytes = MIB,
                                   .get_bytes = MIB,
                                   .readahead_bytes = 4 * MIB,
                                   .op_timeout_ns = 2 * NS_PER_S};
}

static inline void fixture_init(struct fixture *f, uint64_t size_bytes)
{
    char *root = g_dir_make_tmp("sluice-cache-XXXXXX", NULL);
    g_autofree char *objects = g_build_filename(root, "objects", NULL);
    ck_assert_int_eq(g_mkdir(objects, 0700), 0);
    fixture_attach(f, root, size_bytes);
    fixture_start(f);
}

static inline void fixture_fini(struct fixture *f)
{
    fixture_stop(f);
    objstore_close(f->store);
    g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", f->root);
    ck_assert_int_eq(system(cmd), 0);
    g_free(f->dir);
    g_free(f->root);
}

static inline void fixture_restart(struct fixture *f)
{
    fixture_stop(f);
    fixture_start(f);
}

static inline void fault(struct fixture *f, const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(f->store, rules), 0);
}

/* Bytes that tell their place; no two seeds have one in common. */
static inline void pattern(uint8_t *buf, uint64_t len, uint64_t off, uint32_t seed)
{
    for (uint64_t i = 0; i < len; i++)
        buf[i] = (uint8_t)((((off + i) * 2654435761u) >> 13) + seed);
}

static inline void assert_pattern(const uint8_t *buf, uint64_t len, uint64_t off, uint32_t seed)
{
    g_autofree uint8_t *want = g_malloc(len + 1);
    pattern(want, len, off, seed);
    ck_assert_int_eq(memcmp(buf, want, len), 0);
}

static inline struct cache_source put_object(struct fixture *f, const char *key, uint64_t size, uint32_t seed)
{
    struct cache_source src = {.key = key, .limit = size};
    struct obj_cond none = {.kind = OBJ_COND_NONE};
    struct obj_meta meta = {0};
    g_autofree uint8_t *buf = g_malloc(size + 1);
    pattern(buf, size, 0, seed);
    ck_assert_int_eq(objstore_put(f->store, key, buf, size, &meta, &none, &src.etag), 0);
    return src;
}

static inline struct cfile *open_object(struct fixture *f, uint64_t vid, const struct cache_source *src, uint64_t size)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_open(f->cache, vid, 7, size, src, &cf), 0);
    return cf;
}

static inline void assert_reads(struct cfile *cf, uint64_t off, uint64_t len, uint32_t seed)
{
    g_autofree uint8_t *buf = g_malloc(len);
    ck_assert_int_eq(cache_file_read(cf, buf, len, off), (ssize_t)len);
    assert_pattern(buf, len, off, seed);
}

static inline void write_pattern(struct cfile *cf, uint64_t off, uint64_t len, uint32_t seed)
{
    g_autofree uint8_t *buf = g_malloc(len);
    pattern(buf, len, off, seed);
    ck_assert_int_eq(cache_file_write(cf, buf, len, off), (ssize_t)len);
}

static inline void assert_zeros(struct cfile *cf, uint64_t off, uint64_t len)
{
    g_autofree uint8_t *buf = g_malloc(len);
    g_autofree uint8_t *want = g_malloc0(len);
    memset(buf, 1, len);
    ck_assert_int_eq(cache_file_read(cf, buf, len, off), (ssize_t)len);
    ck_assert_int_eq(memcmp(buf, want, len), 0);
}

/* A thread: what arg is (struct cfile, its reference is taken) becomes clean after a while. */
static inline void *clean_later(void *arg)
{
    g_usleep(300000);
    ck_assert_int_eq(cache_file_set_dirty(arg, false), 0);
    cache_file_unref(arg);
    return NULL;
}
