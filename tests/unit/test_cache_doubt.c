/* A disk that lost what was not written to it, in the same boot: it failed, and works again or is there again at a start. */
#include "tiers_fixture.h"

#include <errno.h>
#include <stdatomic.h>

static atomic_bool losing; /* the file system tells of a write that failed */
static atomic_bool vouched;

/* Takes the place of the C library's for the whole program. */
int syncfs(int fd)
{
    if (!atomic_load(&losing))
        return (int)syscall(SYS_syncfs, fd);
    errno = EIO;
    return -1;
}

static bool is_synced(void *ctx, uint64_t ino, uint64_t vid)
{
    return atomic_load(&vouched);
}

static void setup(void)
{
    static const char *dirs[2];
    atomic_store(&losing, false);
    atomic_store(&vouched, false);
    begin(dirs, 0);
    dirs[0] = second = g_build_filename(fx.root, "second", NULL);
    fx.cfg.synced = is_synced;
    fixture_start(&fx);
}

static void lose_bytes(uint64_t vid)
{
    g_autofree char *path = g_strdup_printf("%s/data/%02x/%016x", second, (unsigned)vid & 0xff, (unsigned)vid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, CHUNK, MIB), 0);
    ck_assert_int_eq(close(fd), 0);
}

static void fails(const char *how)
{
    disk_fault(second, how);
    EVENTUALLY(state_is(second, "bypassed"));
}

static void works_again(void)
{
    disk_fault(second, NULL);
    EVENTUALLY(state_is(second, "ok"));
}

static bool noted_as(const char *text)
{
    g_autoptr(GBytes) value = NULL;
    if (meta_value_get(fx.meta, "cache/away/1", &value) < 0)
        return !text;
    return text && g_bytes_get_size(value) == strlen(text) &&
           memcmp(g_bytes_get_data(value, NULL), text, strlen(text)) == 0;
}

static uint32_t recorded_flags(uint64_t vid)
{
    struct meta_cached rec;
    ck_assert_int_eq(meta_cached_get(fx.meta, vid, &rec), 0);
    return rec.flags;
}

/* ---- fetched ---- */

/* The one that is on the second disk of the two, fetched whole. */
static unsigned fetch_one(struct cache_source *srcs)
{
    fill(2, srcs);
    ck_assert(has_file(second, 100) != has_file(second, 101));
    return has_file(second, 100) ? 0 : 1;
}

START_TEST(what_a_failed_disk_lost_is_fetched_again)
{
    struct cache_source srcs[2];
    unsigned i = fetch_one(srcs);
    fails("eio");
    lose_bytes(100 + i);
    works_again();
    ck_assert(has_file(second, 100 + i));
    check(2, srcs);
}
END_TEST

/* 0: with the note that it failed; 1: that it was away; 2: the marks were saved before that went. */
START_TEST(what_it_lost_is_fetched_again_after_a_restart)
{
    struct cache_source srcs[2];
    unsigned i = fetch_one(srcs);
    if (_i != 1)
        fails("eio");
    if (_i == 2) {
        works_again();
        EVENTUALLY(noted_as(NULL));
        ck_assert(recorded_flags(100 + i) & CACHED_SUSPECT);
    }
    if (_i == 1)
        ck_assert_int_eq(tier_note_away(fx.cache, 1, false), 0);
    fixture_stop(&fx);
    lose_bytes(100 + i);
    if (_i == 0)
        disk_fault(second, NULL);
    fixture_start(&fx);
    check(2, srcs);
}
END_TEST

/* 0: it rests before it is read again; 1: somebody else has it open; 2: it was closed. */
START_TEST(what_the_kernel_had_is_compared_when_it_is_given_back)
{
    struct cache_source srcs[2];
    unsigned i = fetch_one(srcs);
    struct cfile *cf = open_object(&fx, 100 + i, &srcs[i], SIZE);
    ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_READ), 0);
    fails("eio");
    lose_bytes(100 + i);
    works_again();
    EVENTUALLY(noted_as(NULL));
    if (_i == 0) {
        ck_assert(!cache_file_rest(cf));
    } else if (_i == 1) {
        ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
        ck_assert(!cache_file_complete(cf));
        assert_reads(cf, 0, SIZE, i);
    }
    if (_i != 1)
        ck_assert_int_eq(cache_file_set_passthrough(cf, CACHE_PASS_OFF), 0);
    cache_file_unref(cf);
    ck_assert(_i == 1 || !cache_file_reopen(fx.cache, 100 + i, SIZE, &srcs[i]));
    check(2, srcs);
}
END_TEST

/* ---- written here ---- */

/* Unpublished, on the second disk. */
static uint64_t write_one(void)
{
    uint64_t vid = 0;
    for (unsigned i = 0; i < 2; i++) {
        struct cfile *cf;
        ck_assert_int_eq(cache_file_new(fx.cache, 10 + i, &cf), 0);
        write_pattern(cf, 0, SIZE, i);
        vid = has_file(second, cache_file_vid(cf)) ? cache_file_vid(cf) : vid;
        cache_file_unref(cf);
    }
    ck_assert_uint_ne(vid, 0);
    return vid;
}

static int sync_of(uint64_t vid)
{
    struct cfile *cf;
    ck_assert_int_eq(cache_file_open(fx.cache, vid, 10, SIZE, NULL, &cf), 0);
    int r = cache_file_sync(cf);
    cache_file_unref(cf);
    return r;
}

static const struct {
    const char *how;
    bool lost, synced;
    int result;
} cases[] = {
    {"eio", true, false, -EIO},
    {"eio", true, true, 0},
    {"eio", false, false, 0},
    {"hang", false, false, 0},
};

START_TEST(only_what_was_not_synced_before_a_disk_lost_writes_fails)
{
    fx.cfg.slow_ns = cases[_i].how[0] == 'h' ? 100 * NS_PER_MS : fx.cfg.slow_ns;
    fixture_restart(&fx);
    uint64_t vid = write_one();
    atomic_store(&losing, cases[_i].lost);
    atomic_store(&vouched, cases[_i].synced);
    fails(cases[_i].how);
    works_again();
    ck_assert_int_eq(sync_of(vid), cases[_i].result);
    EVENTUALLY(noted_as(NULL));
    ck_assert_int_eq((recorded_flags(vid) & CACHED_FAILED) != 0, cases[_i].result != 0);
    fixture_restart(&fx);
    ck_assert_int_eq(sync_of(vid), cases[_i].result);
}
END_TEST

/* The disk fails until the stop is over, so that nobody can ask it; or works again at the end, and says what it lost. */
START_TEST(nor_does_it_after_a_restart)
{
    bool ends = !cases[_i].lost;
    fx.cfg.slow_ns = cases[_i].how[0] == 'h' ? 100 * NS_PER_MS : fx.cfg.slow_ns;
    fx.cfg.probation_ns = 3600 * NS_PER_S;
    fixture_restart(&fx);
    uint64_t vid = write_one();
    atomic_store(&vouched, cases[_i].synced);
    fails(cases[_i].how);
    ck_assert(noted_as(cases[_i].how[0] == 'h' ? "" : "failed"));
    if (ends)
        disk_fault(second, NULL);
    fixture_stop(&fx);
    if (!ends)
        disk_fault(second, NULL);
    fixture_start(&fx);
    ck_assert_int_eq(sync_of(vid), cases[_i].result);
}
END_TEST

START_TEST(that_a_disk_failed_is_not_forgotten_when_it_is_missing_afterwards)
{
    fails("eio");
    ck_assert_int_eq(tier_note_away(fx.cache, 1, false), 0);
    ck_assert(noted_as("failed"));
    works_again();
    EVENTUALLY(noted_as(NULL));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache_doubt");
    TCase *t = tcase_create("doubt");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, what_a_failed_disk_lost_is_fetched_again);
    tcase_add_loop_test(t, what_it_lost_is_fetched_again_after_a_restart, 0, 3);
    tcase_add_loop_test(t, what_the_kernel_had_is_compared_when_it_is_given_back, 0, 3);
    tcase_add_loop_test(t, only_what_was_not_synced_before_a_disk_lost_writes_fails, 0, 4);
    tcase_add_loop_test(t, nor_does_it_after_a_restart, 0, 4);
    tcase_add_test(t, that_a_disk_failed_is_not_forgotten_when_it_is_missing_afterwards);
    suite_add_tcase(s, t);
    return run_suite(s);
}
