/* Several disks and the memory tier: where files go, and how they leave a tier that fails or may not hold what they become. */
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

static void begin(const char *const *more, uint64_t memory_bytes)
{
    char *root = g_dir_make_tmp("sluice-tiers-XXXXXX", NULL);
    g_autofree char *objects = g_build_filename(root, "objects", NULL);
    ck_assert_int_eq(g_mkdir(objects, 0700), 0);
    fixture_attach(&fx, root, 64 * MIB);
    fx.cfg.more_dirs = more;
    fx.cfg.memory_bytes = memory_bytes;
    fx.cfg.probe_ns = 10 * NS_PER_MS;
    fx.cfg.slow_ns = 100 * NS_PER_MS;
    fx.cfg.probation_ns = 50 * NS_PER_MS;
    fx.cfg.disk_faults = true;
}

static void setup_disks(void)
{
    static const char *dirs[2];
    begin(dirs, 0);
    dirs[0] = second = g_build_filename(fx.root, "second", NULL);
    fixture_start(&fx);
}

static void setup_memory(void)
{
    begin(no_dirs, MEMORY);
    second = NULL;
    fixture_start(&fx);
}

static void teardown(void)
{
    fixture_fini(&fx);
    g_clear_pointer(&second, g_free);
}

struct seen {
    const char *path;
    struct cache_tier_info info;
    bool found;
};

static void on_tier(void *ctx, const struct cache_tier_info *t)
{
    struct seen *s = ctx;
    if (strcmp(t->path, s->path) != 0)
        return;
    s->info = *t;
    s->found = true;
}

static struct cache_tier_info tier(const char *path)
{
    struct seen s = {.path = path};
    cache_tiers_each(fx.cache, on_tier, &s);
    ck_assert(s.found);
    return s.info;
}

static bool state_is(const char *path, const char *state)
{
    return strcmp(tier(path).state, state) == 0;
}

static void disk_fault(const char *dir, const char *what)
{
    g_autofree char *path = g_build_filename(dir, "fault", NULL);
    if (what)
        ck_assert(g_file_set_contents(path, what, -1, NULL));
    else
        ck_assert_int_eq(unlink(path), 0);
}

static bool has_file(const char *dir, uint64_t vid)
{
    struct cache_scanned f;
    return cache_scan_file(dir, vid, &f) == 0;
}

static void assert_reads(struct cfile *cf, uint64_t off, uint64_t len, uint32_t seed)
{
    g_autofree uint8_t *buf = g_malloc(len);
    ck_assert_int_eq(cache_file_read(cf, buf, len, off), (ssize_t)len);
    assert_pattern(buf, len, off, seed);
}

/* Opens objects 100..100+n and reads them whole. */
static void fill(unsigned n, struct cache_source *srcs)
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

static void check(unsigned n, const struct cache_source *srcs)
{
    for (unsigned i = 0; i < n; i++) {
        struct cfile *cf = open_object(&fx, 100 + i, &srcs[i], SIZE);
        assert_reads(cf, 0, SIZE, i);
        cache_file_unref(cf);
    }
}

START_TEST(new_files_go_where_most_is_free)
{
    struct cache_source srcs[8];
    fill(8, srcs);
    unsigned n = 0;
    for (unsigned i = 0; i < 8; i++) {
        ck_assert(has_file(fx.dir, 100 + i) != has_file(second, 100 + i));
        n += has_file(second, 100 + i);
    }
    ck_assert_uint_eq(n, 4);
}
END_TEST

START_TEST(restart_finds_files_on_both_disks)
{
    struct cache_source srcs[6];
    fill(6, srcs);
    fixture_restart(&fx);
    int64_t gets = metric_get(M_requests_get);
    check(6, srcs);
    ck_assert_int_eq(metric_get(M_requests_get), gets);
}
END_TEST

START_TEST(a_disk_that_works_again_is_cleared_of_what_moved)
{
    struct cache_source srcs[6];
    fill(6, srcs);
    uint64_t moved = 0;
    for (unsigned i = 0; i < 6 && !moved; i++)
        moved = has_file(second, 100 + i) ? 100 + i : 0;
    ck_assert_uint_ne(moved, 0);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    check(6, srcs);
    ck_assert(has_file(fx.dir, moved));
    ck_assert(has_file(second, moved));
    disk_fault(second, NULL);
    EVENTUALLY(state_is(second, "ok"));
    EVENTUALLY(!has_file(second, moved));
    check(6, srcs);
}
END_TEST

static bool noted_away(unsigned number)
{
    g_autoptr(GBytes) value = NULL;
    g_autofree char *name = g_strdup_printf("cache/away/%u", number);
    return meta_value_get(fx.meta, name, &value) == 0;
}

static void on_lost(void *ctx, uint64_t ino, const char *path)
{
    (void)__atomic_add_fetch((unsigned *)ctx, noted_away(1) ? 1 : 1000, __ATOMIC_ACQ_REL);
}

START_TEST(a_bypassed_disk_is_noted_before_anything_is_done_without_it)
{
    struct cfile *cf[2];
    unsigned n = 0;
    fixture_stop(&fx);
    fx.cfg.lost = on_lost;
    fx.cfg.lost_ctx = &n;
    fixture_start(&fx);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_eq(cache_file_new(fx.cache, 10 + i, &cf[i]), 0);
        ck_assert_int_eq(cache_file_write(cf[i], "precious", 8, 0), 8);
    }
    disk_fault(second, "eio");
    EVENTUALLY(__atomic_load_n(&n, __ATOMIC_ACQUIRE) > 0);
    ck_assert_uint_eq(n, 1);
    for (unsigned i = 0; i < 2; i++)
        cache_file_unref(cf[i]);
    disk_fault(second, NULL);
    fx.cfg.lost = NULL; /* n goes */
    fixture_restart(&fx);
}
END_TEST

START_TEST(a_disk_that_fails_while_it_is_looked_through_stays_noted)
{
    struct cache_source srcs[6];
    fill(6, srcs);
    uint64_t moved = has_file(second, 100) ? 100 : 101;
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    check(6, srcs);
    for (struct cfile *open; (open = table_claim(fx.cache, moved)); g_usleep(1000)) /* the look stops there */
        cache_file_unref(open);
    disk_fault(second, NULL);
    EVENTUALLY(state_is(second, "ok"));
    g_usleep(100000);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    table_release(fx.cache, moved);
    g_usleep(100000);
    EVENTUALLY(noted_away(1));
    disk_fault(second, NULL);
}
END_TEST

START_TEST(a_restart_clears_a_disk_that_was_bypassed)
{
    struct cache_source srcs[6];
    fill(6, srcs);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    check(6, srcs);
    fixture_stop(&fx);
    disk_fault(second, NULL);
    fixture_start(&fx);
    for (unsigned i = 0; i < 6; i++)
        EVENTUALLY(has_file(fx.dir, 100 + i) && !has_file(second, 100 + i));
    check(6, srcs);
}
END_TEST

START_TEST(a_hanging_disk_is_bypassed_and_an_open_file_leaves_it)
{
    struct cache_source srcs[4];
    fill(4, srcs);
    struct cfile *open[4];
    for (unsigned i = 0; i < 4; i++)
        open[i] = open_object(&fx, 100 + i, &srcs[i], SIZE);
    disk_fault(second, "hang");
    EVENTUALLY(state_is(second, "bypassed"));
    for (unsigned i = 0; i < 4; i++)
        EVENTUALLY(has_file(fx.dir, 100 + i));
    for (unsigned i = 0; i < 4; i++) {
        assert_reads(open[i], 0, SIZE, i);
        cache_file_unref(open[i]);
    }
    disk_fault(second, NULL);
}
END_TEST

START_TEST(who_watches_the_disks_does_not_wait_for_a_file_on_a_hanging_one)
{
    struct cache_source srcs[2];
    fill(2, srcs);
    struct cfile *cf = open_object(&fx, has_file(second, 100) ? 100 : 101, &srcs[has_file(second, 100) ? 0 : 1], SIZE);
    mutex_lock(&cf->mu);
    cf->resizing = true; /* a truncate that the disk does not end */
    mutex_unlock(&cf->mu);
    disk_fault(second, "hang");
    EVENTUALLY(state_is(second, "bypassed"));
    disk_fault(second, NULL);
    EVENTUALLY(state_is(second, "ok"));
    mutex_lock(&cf->mu);
    cf->resizing = false;
    cond_broadcast(&cf->changed);
    mutex_unlock(&cf->mu);
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_file_that_is_not_here_is_opened_without_a_look_at_a_bypassed_disk)
{
    struct cache_source src = put_object(&fx, "o", SIZE, 1);
    g_autofree char *trap = g_strdup_printf("%s/data/%02x/%016x", fx.dir, 100, 100);
    disk_fault(fx.dir, "eio");
    EVENTUALLY(state_is(fx.dir, "bypassed"));
    ck_assert_int_eq(mkfifo(trap, 0600), 0); /* an open of it never ends, as on a disk that hangs */
    struct cfile *cf = open_object(&fx, 100, &src, SIZE);
    assert_reads(cf, 0, SIZE, 1);
    cache_file_unref(cf);
    ck_assert(has_file(second, 100));
    disk_fault(fx.dir, NULL);
}
END_TEST

START_TEST(unpublished_files_stay_on_a_bypassed_disk)
{
    struct cfile *cf[6];
    for (unsigned i = 0; i < 6; i++) {
        ck_assert_int_eq(cache_file_new(fx.cache, 10 + i, &cf[i]), 0);
        ck_assert_int_eq(cache_file_write(cf[i], "precious", 8, 0), 8);
    }
    ck_assert_int_eq(tier(second).dirty_bytes > 0 && tier(fx.dir).dirty_bytes > 0, 1);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    for (unsigned i = 0; i < 6; i++) {
        uint64_t vid = cache_file_vid(cf[i]);
        cache_file_unref(cf[i]);
        ck_assert(has_file(fx.dir, vid) != has_file(second, vid));
    }
    disk_fault(second, NULL);
    EVENTUALLY(state_is(second, "ok"));
    ck_assert_int_gt(tier(second).dirty_bytes, 0);
}
END_TEST

START_TEST(an_unpublished_file_removed_while_its_disk_is_bypassed_is_gone)
{
    struct cfile *cf[6];
    uint64_t vid[6];
    for (unsigned i = 0; i < 6; i++) {
        ck_assert_int_eq(cache_file_new(fx.cache, 10 + i, &cf[i]), 0);
        ck_assert_int_eq(cache_file_write(cf[i], "precious", 8, 0), 8);
        ck_assert_int_eq(cache_file_set_intent(cf[i], "{}"), 0);
        vid[i] = cache_file_vid(cf[i]);
        cache_file_unref(cf[i]);
    }
    ck_assert_int_gt(tier(second).dirty_bytes, 0);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    for (unsigned i = 0; i < 6; i++)
        cache_forget(fx.cache, vid[i]);
    disk_fault(second, NULL);
    for (unsigned i = 0; i < 6; i++)
        EVENTUALLY(!has_file(second, vid[i]) && !has_file(fx.dir, vid[i]));
}
END_TEST

struct reading {
    struct cfile *cf;
    uint32_t seed;
    bool stop;
};

static void *read_at_random(void *arg)
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

START_TEST(readers_see_right_bytes_while_disks_come_and_go)
{
    struct cache_source srcs[6];
    struct reading rd[6];
    pthread_t threads[6];
    fill(6, srcs);
    for (unsigned i = 0; i < 6; i++) {
        rd[i] = (struct reading){.cf = open_object(&fx, 100 + i, &srcs[i], SIZE), .seed = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_at_random, &rd[i]), 0);
    }
    for (unsigned round = 0; round < 6; round++) {
        const char *dir = round % 2 ? fx.dir : second;
        disk_fault(dir, "eio");
        EVENTUALLY(state_is(dir, "bypassed"));
        g_usleep(30000);
        disk_fault(dir, NULL);
        EVENTUALLY(state_is(dir, "ok"));
    }
    for (unsigned i = 0; i < 6; i++) {
        __atomic_store_n(&rd[i].stop, true, __ATOMIC_RELEASE);
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        cache_file_unref(rd[i].cf);
    }
    fixture_restart(&fx);
    check(6, srcs);
}
END_TEST

/* ---- memory ---- */

START_TEST(memory_takes_small_clean_files_and_forgets_them)
{
    struct cache_source srcs[4];
    fill(4, srcs);
    EVENTUALLY(tier("memory").used_bytes >= 4 * SIZE);
    ck_assert(!has_file(fx.dir, 100));
    struct cache_source big = put_object(&fx, "big", 9 * MIB, 50);
    struct cfile *cf = open_object(&fx, 200, &big, 9 * MIB);
    assert_reads(cf, 0, 9 * MIB, 50);
    cache_file_unref(cf);
    ck_assert(has_file(fx.dir, 200));
    fixture_restart(&fx);
    ck_assert_uint_eq(tier("memory").used_bytes, 0);
    check(4, srcs);
}
END_TEST

START_TEST(a_write_moves_the_file_to_the_disk_with_all_its_bytes)
{
    struct cache_source srcs[1];
    fill(1, srcs);
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    struct reading rd = {.cf = cf, .seed = 0};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, read_at_random, &rd), 0);
    g_autofree uint8_t *buf = g_malloc(CHUNK);
    pattern(buf, CHUNK, CHUNK, 0);
    int64_t gets = metric_get(M_requests_get);
    ck_assert_int_eq(cache_file_write(cf, buf, CHUNK, CHUNK), CHUNK);
    __atomic_store_n(&rd.stop, true, __ATOMIC_RELEASE);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    assert_reads(cf, 0, SIZE, 0);
    ck_assert_int_eq(metric_get(M_requests_get), gets);
    ck_assert(has_file(fx.dir, 100));
    ck_assert_uint_eq(tier("memory").used_bytes, 0);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 100, &srcs[0], SIZE);
    assert_reads(cf, 0, SIZE, 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(room_for_a_file_that_leaves_memory_is_asked_of_the_disk)
{
    struct cache_source srcs[1], big = put_object(&fx, "big", 40 * MIB, 3);
    big.pin = PIN_MEMORY;
    struct cfile *pinned = open_object(&fx, 300, &big, 40 * MIB);
    assert_reads(pinned, 0, 40 * MIB, 3);
    fill(1, srcs);
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    ck_assert(cache_file_in_memory(pinned) && cache_file_in_memory(cf));
    ck_assert_int_eq(cache_file_fallocate(cf, 0, 0, 40 * MIB), 0); /* more than memory has left */
    ck_assert(!cache_file_in_memory(cf));
    assert_reads(cf, 0, SIZE, 0);
    cache_file_unref(cf);
    cache_file_unref(pinned);
}
END_TEST

static void *write_one(void *arg)
{
    ck_assert_int_eq(cache_file_write(arg, "x", 1, 0), 1);
    return NULL;
}

START_TEST(a_punch_that_is_saved_does_not_hold_up_a_move)
{
    struct cache_source srcs[1];
    struct cfile_io io;
    pthread_t thread;
    fill(1, srcs);
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    ck_assert(cache_file_in_memory(cf));
    mutex_lock(&cf->mu);
    cfile_io_begin_locked(cf, &io, 1, 2);
    mutex_unlock(&cf->mu);
    ck_assert_int_eq(pthread_create(&thread, NULL, write_one, cf), 0);
    mutex_lock(&cf->mu);
    while (!cf->moving) {
        mutex_unlock(&cf->mu);
        g_usleep(1000);
        mutex_lock(&cf->mu);
    }
    mutex_unlock(&cf->mu);
    ck_assert_int_eq(cfile_save(cf), 0);
    mutex_lock(&cf->mu);
    cfile_io_end_locked(cf, &io);
    mutex_unlock(&cf->mu);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(!cache_file_in_memory(cf));
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_file_the_kernel_has_in_memory_is_not_changed)
{
    struct cache_source srcs[1];
    fill(1, srcs);
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    ck_assert(cache_file_in_memory(cf));
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), -ETXTBSY); /* it would be on no disk */
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    ck_assert(!cache_file_in_memory(cf));
    ck_assert(has_file(fx.dir, 100));
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 100, &srcs[0], SIZE);
    assert_reads(cf, 0, SIZE, 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(pinned_in_memory_moves_there_and_back)
{
    struct cache_source big = put_object(&fx, "big", 20 * MIB, 3);
    struct cfile *cf = open_object(&fx, 300, &big, 20 * MIB);
    assert_reads(cf, 0, 20 * MIB, 3);
    ck_assert(has_file(fx.dir, 300));
    ck_assert_int_eq(cache_pin(fx.cache, 300, PIN_MEMORY), 0);
    cache_file_unref(cf); /* it is moved when it is closed */
    ck_assert(!has_file(fx.dir, 300));
    EVENTUALLY(tier("memory").used_bytes >= 20 * MIB);
    int64_t gets = metric_get(M_requests_get);
    cf = open_object(&fx, 300, &big, 20 * MIB);
    assert_reads(cf, 0, 20 * MIB, 3);
    ck_assert_int_eq(metric_get(M_requests_get), gets);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_evict(fx.cache, 300), -EBUSY);
    ck_assert_int_eq(cache_pin(fx.cache, 300, PIN_NONE), 0);
    ck_assert_int_eq(cache_evict(fx.cache, 300), 0);
    ck_assert_uint_eq(tier("memory").used_bytes, 0);
}
END_TEST

/* What a kill at this moment would leave: the record must know of the file. */
static void on_dropped(void *ctx, uint64_t ino)
{
    struct meta_cached rec;
    if (!has_file(fx.dir, 300))
        return; /* it is being made */
    ck_assert_int_eq(meta_cached_get(fx.meta, 300, &rec), 0);
    ck_assert_uint_eq(rec.tier, TIER_NUMBER_FIRST);
    (void)__atomic_add_fetch((unsigned *)ctx, 1, __ATOMIC_ACQ_REL);
}

START_TEST(memory_that_is_handed_on_keeps_its_files)
{
    struct cache_source src = put_object(&fx, "a", SIZE, 3);
    struct cfile *cf = open_object(&fx, 300, &src, SIZE);
    assert_reads(cf, 0, SIZE, 3);
    ck_assert(cache_file_in_memory(cf));
    cache_file_unref(cf);
    fx.cfg.memory_fd = fcntl(cache_memory_fd(fx.cache), F_DUPFD_CLOEXEC, 3);
    fixture_restart(&fx);
    int64_t gets = metric_get(M_requests_get);
    cf = open_object(&fx, 300, &src, SIZE);
    ck_assert(cache_file_in_memory(cf));
    assert_reads(cf, 0, SIZE, 3);
    ck_assert_int_eq(metric_get(M_requests_get), gets);
    cache_file_unref(cf);
    ck_assert_uint_ge(tier("memory").used_bytes, SIZE);
    (void)close(fx.cfg.memory_fd);
}
END_TEST

START_TEST(no_moment_of_a_move_to_memory_leaves_a_file_nobody_knows)
{
    unsigned n = 0;
    fixture_stop(&fx);
    fx.cfg.dropped_ctx = &n;
    fx.cfg.dropped = on_dropped;
    fixture_start(&fx);
    struct cache_source big = put_object(&fx, "big", 20 * MIB, 3);
    struct cfile *cf = open_object(&fx, 300, &big, 20 * MIB);
    assert_reads(cf, 0, MIB, 3);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_pin(fx.cache, 300, PIN_MEMORY), 0);
    EVENTUALLY(!has_file(fx.dir, 300));
    ck_assert_uint_eq(__atomic_load_n(&n, __ATOMIC_ACQUIRE), 1);
    fx.cfg.dropped = NULL; /* n goes */
    fixture_restart(&fx);
}
END_TEST

START_TEST(what_a_pin_needs_is_taken_from_other_files_in_memory)
{
    struct cache_source srcs[20];
    fill(20, srcs);
    struct cache_source big = put_object(&fx, "big", 40 * MIB, 3);
    big.pin = PIN_MEMORY;
    struct cfile *cf = open_object(&fx, 300, &big, 40 * MIB);
    assert_reads(cf, 0, 40 * MIB, 3);
    ck_assert(cache_file_complete(cf));
    cache_file_unref(cf);
    ck_assert(!has_file(fx.dir, 300));
    ck_assert_uint_le(tier("memory").used_bytes, MEMORY);
    check(20, srcs);
}
END_TEST

START_TEST(no_disk_left_reads_go_past_the_cache_and_changes_fail)
{
    struct cache_source srcs[2];
    struct cfile *cf;
    fill(2, srcs);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    disk_fault(fx.dir, "eio");
    ck_assert_int_lt(cache_file_write(cf, "x", 1, 0), 0);
    EVENTUALLY(state_is(fx.dir, "bypassed"));
    cache_file_unref(cf);
    struct cache_source big = put_object(&fx, "big", 20 * MIB, 4);
    cf = open_object(&fx, 500, &big, 20 * MIB);
    assert_reads(cf, MIB, MIB, 4);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), -EIO);
    cache_file_unref(cf);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), -EIO);
    disk_fault(fx.dir, NULL);
    EVENTUALLY(state_is(fx.dir, "ok"));
    cf = open_object(&fx, 500, &big, 20 * MIB);
    assert_reads(cf, 0, 20 * MIB, 4);
    cache_file_unref(cf);
    ck_assert(has_file(fx.dir, 500));
}
END_TEST

static struct cfile *leaving; /* atomic; somebody begins to change it while it leaves its disk */
static pthread_t changer;
static int change_result;

static void *change_one(void *arg)
{
    change_result = cache_file_set_dirty(arg, true);
    return NULL;
}

/* Takes the place of the C library's: a file that goes nowhere is made. */
int memfd_create(const char *name, unsigned flags)
{
    struct cfile *cf = g_atomic_pointer_get(&leaving);
    if (cf) {
        ck_assert_int_eq(pthread_create(&changer, NULL, change_one, cf), 0);
        g_usleep(100000);
        g_atomic_pointer_set(&leaving, NULL);
    }
    return (int)syscall(SYS_memfd_create, name, flags);
}

START_TEST(a_change_that_waits_while_the_file_loses_its_disk_fails)
{
    struct cache_source big = put_object(&fx, "big", 20 * MIB, 4);
    struct cfile *cf = open_object(&fx, 500, &big, 20 * MIB);
    assert_reads(cf, MIB, MIB, 4);
    g_atomic_pointer_set(&leaving, cf);
    disk_fault(fx.dir, "eio");
    tier_note_io(fx.cache->tiers->pdata[0], -EIO);
    EVENTUALLY(!g_atomic_pointer_get(&leaving));
    ck_assert_int_eq(pthread_join(changer, NULL), 0);
    ck_assert_int_eq(change_result, -EIO);
    assert_reads(cf, 0, 20 * MIB, 4);
    cache_file_unref(cf);
    disk_fault(fx.dir, NULL);
    EVENTUALLY(state_is(fx.dir, "ok"));
}
END_TEST

START_TEST(a_file_opened_while_there_was_no_disk_goes_to_the_one_that_is_back)
{
    struct cache_source big = put_object(&fx, "big", 20 * MIB, 4);
    struct cfile *cf;
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &cf), 0);
    disk_fault(fx.dir, "eio");
    ck_assert_int_lt(cache_file_write(cf, "x", 1, 0), 0);
    cache_file_unref(cf);
    EVENTUALLY(state_is(fx.dir, "bypassed"));
    cf = open_object(&fx, 500, &big, 20 * MIB);
    assert_reads(cf, MIB, MIB, 4);
    ck_assert(!has_file(fx.dir, 500));
    disk_fault(fx.dir, NULL);
    EVENTUALLY(has_file(fx.dir, 500));
    assert_reads(cf, 0, 20 * MIB, 4);
    cache_file_unref(cf);
}
END_TEST

START_TEST(the_only_disk_is_not_bypassed_for_one_bad_file)
{
    g_autofree char *probe = g_build_filename(fx.dir, "probe", NULL);
    ck_assert(!g_file_test(probe, G_FILE_TEST_EXISTS));
    tier_note_io(fx.cache->tiers->pdata[0], -EIO);
    EVENTUALLY(g_file_test(probe, G_FILE_TEST_EXISTS));
    ck_assert(state_is(fx.dir, "ok"));
}
END_TEST

START_TEST(the_only_disk_is_not_bypassed_for_being_slow)
{
    fx.cfg.slow_ns = NS_PER_MS;
    fixture_restart(&fx);
    disk_fault(fx.dir, "hang");
    g_usleep(50000);
    ck_assert(state_is(fx.dir, "ok"));
    disk_fault(fx.dir, NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache_tiers");
    TCase *disks = tcase_create("disks");
    tcase_set_timeout(disks, 60);
    tcase_add_checked_fixture(disks, setup_disks, teardown);
    tcase_add_test(disks, new_files_go_where_most_is_free);
    tcase_add_test(disks, restart_finds_files_on_both_disks);
    tcase_add_test(disks, a_disk_that_works_again_is_cleared_of_what_moved);
    tcase_add_test(disks, a_bypassed_disk_is_noted_before_anything_is_done_without_it);
    tcase_add_test(disks, a_disk_that_fails_while_it_is_looked_through_stays_noted);
    tcase_add_test(disks, a_restart_clears_a_disk_that_was_bypassed);
    tcase_add_test(disks, a_hanging_disk_is_bypassed_and_an_open_file_leaves_it);
    tcase_add_test(disks, who_watches_the_disks_does_not_wait_for_a_file_on_a_hanging_one);
    tcase_add_test(disks, a_file_that_is_not_here_is_opened_without_a_look_at_a_bypassed_disk);
    tcase_add_test(disks, unpublished_files_stay_on_a_bypassed_disk);
    tcase_add_test(disks, an_unpublished_file_removed_while_its_disk_is_bypassed_is_gone);
    tcase_add_test(disks, readers_see_right_bytes_while_disks_come_and_go);
    suite_add_tcase(s, disks);
    TCase *memory = tcase_create("memory");
    tcase_set_timeout(memory, 60);
    tcase_add_checked_fixture(memory, setup_memory, teardown);
    if (geteuid() == 0) { /* a memory file system needs CAP_SYS_ADMIN */
        tcase_add_test(memory, memory_takes_small_clean_files_and_forgets_them);
        tcase_add_test(memory, a_write_moves_the_file_to_the_disk_with_all_its_bytes);
        tcase_add_test(memory, room_for_a_file_that_leaves_memory_is_asked_of_the_disk);
        tcase_add_test(memory, a_punch_that_is_saved_does_not_hold_up_a_move);
        tcase_add_test(memory, a_file_the_kernel_has_in_memory_is_not_changed);
        tcase_add_test(memory, pinned_in_memory_moves_there_and_back);
        tcase_add_test(memory, memory_that_is_handed_on_keeps_its_files);
        tcase_add_test(memory, no_moment_of_a_move_to_memory_leaves_a_file_nobody_knows);
        tcase_add_test(memory, what_a_pin_needs_is_taken_from_other_files_in_memory);
        tcase_add_test(memory, no_disk_left_reads_go_past_the_cache_and_changes_fail);
        tcase_add_test(memory, a_change_that_waits_while_the_file_loses_its_disk_fails);
        tcase_add_test(memory, a_file_opened_while_there_was_no_disk_goes_to_the_one_that_is_back);
        tcase_add_test(memory, the_only_disk_is_not_bypassed_for_one_bad_file);
        tcase_add_test(memory, the_only_disk_is_not_bypassed_for_being_slow);
    }
    suite_add_tcase(s, memory);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
