/* A cache over several disks and a memory tier, for tests of tiers. */
#pragma once
#include "cache/cache_file.h"
#include "cache/cache_scan.h"
#include "cache_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define SIZE   (2 * MIB + 12345)
#define MEMORY (64 * MIB)

static struct fixture fx;
static char *second; /* folder of the second disk */

static const char *const no_dirs[] = {NULL};

static inline void begin(const char *const *more, uint64_t memory_bytes)
{
    char *root = g_dir_make_tmp("sluice-tiers-XXXXXX", NULL);
    g_autofree char *objects = g_build_filename(root, "objects", NULL);
    ck_assert_int_eq(g_mkdir(objects, 0700), 0);
    fixture_attach(&fx, root, 64 * MIB);
    fx.cfg.more_dirs = more;
    fx.cfg.memory_bytes = memory_bytes;
    fx.cfg.probe_ns = 10 * NS_PER_MS;
    fx.cfg.slow_ns = 60 * NS_PER_S; /* the machine's other programs may keep the disk busy */
    fx.cfg.probation_ns = 50 * NS_PER_MS;
    fx.cfg.disk_faults = true;
}

static inline void teardown(void)
{
    fixture_fini(&fx);
    g_clear_pointer(&second, g_free);
}

struct seen {
    const char *path;
    struct cache_tier_info info;
    bool found;
};

static inline void on_tier(void *ctx, const struct cache_tier_info *t)
{
    struct seen *s = ctx;
    if (strcmp(t->path, s->path) != 0)
        return;
    s->info = *t;
    s->found = true;
}

static inline struct cache_tier_info tier(const char *path)
{
    struct seen s = {.path = path};
    cache_tiers_each(fx.cache, on_tier, &s);
    ck_assert(s.found);
    return s.info;
}

static inline bool state_is(const char *path, const char *state)
{
    return strcmp(tier(path).state, state) == 0;
}

static inline void disk_fault(const char *dir, const char *what)
{
    g_autofree char *path = g_build_filename(dir, "fault", NULL);
    if (what)
        ck_assert(g_file_set_contents(path, what, -1, NULL));
    else
        ck_assert_int_eq(unlink(path), 0);
}

static inline bool has_file(const char *dir, uint64_t vid)
{
    struct cache_scanned f;
    return cache_scan_file(dir, vid, &f) == 0;
}

/* Opens objects 100..100+n and reads them whole. */
static inline void fill(unsigned n, struct cache_source *srcs)
{
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *key = g_strdup_printf("o%u", i);
        srcs[i] = put_object(&fx, key, SIZE, i);
        srcs[i].key = g_intern_string(key);
        struct cfile *cf = open_object(&fx, 100 + i, &srcs[i], SIZE);
        assert_reads(cf, 0, SIZE, i);
        cache_file_unref(cf);
    }
}

static inline void check(unsigned n, const struct cache_source *srcs)
{
    for (unsigned i = 0; i < n; i++) {
        struct cfile *cf = open_object(&fx, 100 + i, &srcs[i], SIZE);
        assert_reads(cf, 0, SIZE, i);
        cache_file_unref(cf);
    }
}

struct reading {
    struct cfile *cf;
    uint32_t seed;
    bool stop;
};

static inline void *read_at_random(void *arg)
{
    struct reading *rd = arg;
    g_autofree uint8_t *buf = g_malloc(100 * KIB);
    g_autoptr(GRand) rnd = g_rand_new_with_seed(rd->seed);
    while (!__atomic_load_n(&rd->stop, __ATOMIC_ACQUIRE)) {
        uint64_t off = (uint64_t)g_rand_int_range(rnd, 0, SIZE - 100 * KIB);
        ck_assert_int_eq(cache_file_read(rd->cf, buf, 100 * KIB, off), 100 * (ssize_t)KIB);
        assert_pattern(buf, 100 * KIB, off, rd->seed);
    }
    return NULL;
}
