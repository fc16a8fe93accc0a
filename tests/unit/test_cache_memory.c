/* The memory tier in front of the disks: what comes there, and how it leaves again. */
#include "cache/cache_place.h"
#include "cache/cache_space.h"
#include "tiers_fixture.h"

static void setup_memory(void)
{
    begin(no_dirs, MEMORY);
    second = NULL;
    fixture_start(&fx);
}

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

static void *move_for_writing(void *arg)
{
    ck_assert_int_eq(place_for_writing(arg), 0);
    return NULL;
}

static void count_moves(void *ctx, uint64_t ino)
{
    (void)__atomic_add_fetch((unsigned *)ctx, 1, __ATOMIC_ACQ_REL);
}

START_TEST(two_writers_move_a_file_once)
{
    struct cache_source srcs[1];
    struct cfile_io io;
    pthread_t threads[2];
    unsigned n = 0;
    fixture_stop(&fx);
    fx.cfg.dropped_ctx = &n;
    fx.cfg.dropped = count_moves;
    fixture_start(&fx);
    fill(1, srcs);
    __atomic_store_n(&n, 0, __ATOMIC_RELEASE); /* it was made */
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    ck_assert(cache_file_in_memory(cf));
    mutex_lock(&cf->mu);
    cfile_io_begin_locked(cf, &io, 1, 2);
    mutex_unlock(&cf->mu);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, move_for_writing, cf), 0);
    g_usleep(50000); /* one waits for the reader, the other one for the move */
    mutex_lock(&cf->mu);
    cfile_io_end_locked(cf, &io);
    mutex_unlock(&cf->mu);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert(!cache_file_in_memory(cf));
    ck_assert(has_file(fx.dir, 100));
    ck_assert_uint_eq(__atomic_load_n(&n, __ATOMIC_ACQUIRE), 1);
    assert_reads(cf, 0, SIZE, 0);
    cache_file_unref(cf);
    fx.cfg.dropped = NULL; /* n goes */
    fixture_restart(&fx);
}
END_TEST

/* A disk full of bytes that are being published: a file of the memory tier needs room there to be changed. */
START_TEST(a_write_that_moves_its_file_waits_for_room_as_any_other)
{
    struct cache_source srcs[1], src = put_object(&fx, "p", 63 * MIB, 5);
    struct cfile *published;
    pthread_t thread;
    g_autofree uint8_t *buf = g_malloc(63 * MIB);
    pattern(buf, 63 * MIB, 0, 5);
    ck_assert_int_eq(cache_file_new(fx.cache, 9, &published), 0);
    ck_assert_int_eq(cache_file_write(published, buf, 63 * MIB, 0), 63 * (ssize_t)MIB);
    ck_assert_int_eq(cache_file_set_source(published, &src), 0);
    fill(1, srcs);
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    ck_assert(cache_file_in_memory(cf));
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), -ETXTBSY); /* for which there is nothing to wait for */
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, clean_later, published), 0);
    ck_assert_int_eq(cache_file_write(cf, buf, 1, 0), 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(!cache_file_in_memory(cf));
    assert_reads(cf, 1, SIZE - 1, 0);
    cache_file_unref(cf);
}
END_TEST

START_TEST(a_tier_holds_open_no_file_of_another)
{
    struct cache_source srcs[1], big = put_object(&fx, "big", 20 * MIB, 3);
    fill(1, srcs);
    struct cfile *memory = open_object(&fx, 100, &srcs[0], SIZE), *disk = open_object(&fx, 300, &big, 20 * MIB);
    ck_assert(cache_file_in_memory(memory) && !cache_file_in_memory(disk));
    g_autoptr(GPtrArray) of_memory = cache_open_files(tier_by_number(fx.cache, TIER_NUMBER_MEMORY));
    g_autoptr(GPtrArray) of_disk = cache_open_files(tier_by_number(fx.cache, TIER_NUMBER_FIRST));
    ck_assert_uint_eq(of_memory->len, 1);
    ck_assert_ptr_eq(of_memory->pdata[0], memory);
    ck_assert_uint_eq(of_disk->len, 1);
    ck_assert_ptr_eq(of_disk->pdata[0], disk);
    cache_file_unref(memory);
    cache_file_unref(disk);
}
END_TEST

/* What it would be to close a file there that is pinned in memory. */
static void ask_evictor_for_room(void *ctx, uint64_t ino)
{
    struct cache_tier *t = tier_by_number(fx.cache, TIER_NUMBER_MEMORY);
    if (gettid() == t->evictor_tid)
        __atomic_store_n((int *)ctx, space_reserve(t, MEMORY, SPACE_FETCH), __ATOMIC_RELEASE);
}

START_TEST(an_evictor_does_not_wait_for_itself)
{
    struct cache_source srcs[1], big = put_object(&fx, "big", MEMORY - MIB, 3);
    int r = 0;
    fixture_stop(&fx);
    fx.cfg.op_timeout_ns = 3600 * NS_PER_S;
    fx.cfg.dropped_ctx = &r;
    fx.cfg.dropped = ask_evictor_for_room;
    fixture_start(&fx);
    fill(1, srcs);
    big.pin = PIN_MEMORY;
    struct cfile *cf = open_object(&fx, 300, &big, MEMORY - MIB);
    ck_assert(cache_file_in_memory(cf));
    assert_reads(cf, 0, MEMORY - MIB, 3); /* for which the other one is dropped */
    EVENTUALLY(__atomic_load_n(&r, __ATOMIC_ACQUIRE) == -ENOSPC);
    cache_file_unref(cf);
    fx.cfg.dropped = NULL; /* r goes */
    fixture_restart(&fx);
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

/* All of it was brought here before its object went. */
START_TEST(a_file_without_a_source_leaves_memory_to_be_changed)
{
    struct cache_source srcs[1], none = {0};
    fill(1, srcs);
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    ck_assert(cache_file_in_memory(cf));
    ck_assert_int_eq(cache_file_set_source(cf, &none), 0);
    ck_assert_int_eq(cache_file_write(cf, "more", 4, SIZE), 4);
    ck_assert(!cache_file_in_memory(cf));
    assert_reads(cf, 0, SIZE, 0);
    cache_file_unref(cf);
    fixture_restart(&fx);
    cf = open_object(&fx, 100, NULL, SIZE + 4);
    assert_reads(cf, 0, SIZE, 0);
    cache_file_unref(cf);
}
END_TEST

/* -1: the system has no large pages for that. */
static int64_t bytes_in_large_pages(uint64_t vid, uint64_t len)
{
    g_autofree char *allowed = NULL;
    (void)g_file_get_contents("/sys/kernel/mm/transparent_hugepage/shmem_enabled", &allowed, NULL, NULL);
    if (!allowed || strstr(allowed, "[deny]"))
        return -1;
    int fd = tier_data_open(tier_by_number(fx.cache, TIER_NUMBER_MEMORY), vid, O_RDONLY);
    char *room = mmap(NULL, len + TIER_LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *p = room + TIER_LARGE_PAGE - (uintptr_t)room % TIER_LARGE_PAGE;
    ck_assert_ptr_eq(mmap(p, len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0), p);
    for (uint64_t off = 0; off < len; off += TIER_LARGE_PAGE)
        (void)*(volatile char *)(p + off);
    g_autofree char *smaps = NULL, *head = g_strdup_printf("%lx-", (unsigned long)p);
    ck_assert(g_file_get_contents("/proc/self/smaps", &smaps, NULL, NULL));
    const char *kib = strstr(strstr(smaps, head), "ShmemPmdMapped:") + strlen("ShmemPmdMapped:");
    (void)munmap(room, len + TIER_LARGE_PAGE);
    (void)close(fd);
    return (int64_t)g_ascii_strtoull(kib, NULL, 10) << 10;
}

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
    int64_t large = bytes_in_large_pages(300, 20 * MIB);
    ck_assert_int_ne(large, 0); /* not all of it where memory is in small pieces */
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

static bool memory_has(uint64_t vid)
{
    int fd = tier_data_open(tier_by_number(fx.cache, TIER_NUMBER_MEMORY), vid, O_RDONLY);
    if (fd >= 0)
        (void)close(fd);
    return fd >= 0;
}

/* As a kill in the middle of a copy leaves it. */
static void half_copy_in_memory(uint64_t vid, uint64_t bytes)
{
    int fd = tier_data_open(tier_by_number(fx.cache, TIER_NUMBER_MEMORY), vid, O_RDWR | O_CREAT | O_EXCL);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fallocate(fd, 0, 0, (off_t)bytes), 0);
    (void)close(fd);
}

START_TEST(memory_that_is_handed_on_keeps_no_copy_that_a_kill_cut_off)
{
    struct cache_source big = put_object(&fx, "big", 30 * MIB, 3), src = put_object(&fx, "a", SIZE, 4);
    struct cfile *known = open_object(&fx, 400, &src, SIZE), *cf = open_object(&fx, 300, &big, 30 * MIB);
    assert_reads(known, 0, SIZE, 4);
    assert_reads(cf, 0, 30 * MIB, 3);
    cache_file_unref(known);
    cache_file_unref(cf);
    ck_assert(memory_has(400) && has_file(fx.dir, 300));
    half_copy_in_memory(300, 40 * MIB);
    half_copy_in_memory(301, MIB);
    fx.cfg.memory_fd = fcntl(cache_memory_fd(fx.cache), F_DUPFD_CLOEXEC, 3);
    fixture_restart(&fx);
    ck_assert(memory_has(400) && !memory_has(300) && !memory_has(301));
    cf = open_object(&fx, 300, &big, 30 * MIB);
    ck_assert_int_eq(cache_pin(fx.cache, 300, PIN_MEMORY), 0);
    cache_file_unref(cf);
    EVENTUALLY(!has_file(fx.dir, 300)); /* it has room there */
    ck_assert(memory_has(300));
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
    Suite *s = suite_create("cache_memory");
    TCase *memory = tcase_create("memory");
    tcase_set_timeout(memory, 60);
    tcase_add_checked_fixture(memory, setup_memory, teardown);
    if (geteuid() == 0) { /* a memory file system needs CAP_SYS_ADMIN */
        tcase_add_test(memory, memory_takes_small_clean_files_and_forgets_them);
        tcase_add_test(memory, a_write_moves_the_file_to_the_disk_with_all_its_bytes);
        tcase_add_test(memory, room_for_a_file_that_leaves_memory_is_asked_of_the_disk);
        tcase_add_test(memory, a_punch_that_is_saved_does_not_hold_up_a_move);
        tcase_add_test(memory, two_writers_move_a_file_once);
        tcase_add_test(memory, a_write_that_moves_its_file_waits_for_room_as_any_other);
        tcase_add_test(memory, a_tier_holds_open_no_file_of_another);
        tcase_add_test(memory, an_evictor_does_not_wait_for_itself);
        tcase_add_test(memory, a_file_the_kernel_has_in_memory_is_not_changed);
        tcase_add_test(memory, a_file_without_a_source_leaves_memory_to_be_changed);
        tcase_add_test(memory, pinned_in_memory_moves_there_and_back);
        tcase_add_test(memory, memory_that_is_handed_on_keeps_its_files);
        tcase_add_test(memory, memory_that_is_handed_on_keeps_no_copy_that_a_kill_cut_off);
        tcase_add_test(memory, no_moment_of_a_move_to_memory_leaves_a_file_nobody_knows);
        tcase_add_test(memory, what_a_pin_needs_is_taken_from_other_files_in_memory);
        tcase_add_test(memory, no_disk_left_reads_go_past_the_cache_and_changes_fail);
        tcase_add_test(memory, a_change_that_waits_while_the_file_loses_its_disk_fails);
        tcase_add_test(memory, a_file_opened_while_there_was_no_disk_goes_to_the_one_that_is_back);
        tcase_add_test(memory, the_only_disk_is_not_bypassed_for_one_bad_file);
        tcase_add_test(memory, the_only_disk_is_not_bypassed_for_being_slow);
    }
    suite_add_tcase(s, memory);
    return run_suite(s);
}
