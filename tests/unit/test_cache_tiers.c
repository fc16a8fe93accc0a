/* Several disks: where files go, and how they leave one that fails or may not hold what they become. */
#include "cache/cache_place.h"
#include "tiers_fixture.h"

static void setup_disks(void)
{
    static const char *dirs[2];
    begin(dirs, 0);
    dirs[0] = second = g_build_filename(fx.root, "second", NULL);
    fixture_start(&fx);
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

static void expect_a_quick_disk(void)
{
    fx.cfg.slow_ns = 100 * NS_PER_MS;
    fixture_restart(&fx);
}

START_TEST(a_hanging_disk_is_bypassed_and_an_open_file_leaves_it)
{
    struct cache_source srcs[4];
    expect_a_quick_disk();
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
    expect_a_quick_disk();
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

static unsigned good_probes(void)
{
    const struct cache_tier *t = fx.cache->tiers->pdata[1];
    return __atomic_load_n(&t->n_good, __ATOMIC_ACQUIRE);
}

START_TEST(a_disk_is_used_again_only_after_its_probation)
{
    fx.cfg.probation_ns = 3600 * NS_PER_S;
    fixture_restart(&fx);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    disk_fault(second, NULL);
    EVENTUALLY(good_probes() > 20);
    ck_assert(state_is(second, "bypassed"));
    disk_fault(second, "eio");
    EVENTUALLY(good_probes() == 0); /* begins anew */
}
END_TEST

START_TEST(one_good_probe_is_no_probation)
{
    fx.cfg.probation_ns = 1;
    fx.cfg.probe_ns = 50 * NS_PER_MS;
    fixture_restart(&fx);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    disk_fault(second, NULL);
    EVENTUALLY(state_is(second, "ok"));
    ck_assert_uint_ge(good_probes(), 5);
}
END_TEST

/* As a bad sector does: probes go well. */
START_TEST(an_error_in_a_file_bypasses_a_disk_that_is_not_the_only_one)
{
    struct cache_source srcs[2];
    fx.cfg.probation_ns = 3600 * NS_PER_S;
    fixture_restart(&fx);
    fill(2, srcs);
    struct cache_tier *t = fx.cache->tiers->pdata[has_file(second, 100)];
    struct cfile *cf = open_object(&fx, 100, &srcs[0], SIZE);
    mutex_lock(&cf->mu);
    int fd = cf->fd, bad = open("/proc/self/mem", O_RDONLY | O_CLOEXEC); /* gives EIO where nothing is mapped */
    ck_assert_int_ge(bad, 0);
    cf->fd = bad;
    mutex_unlock(&cf->mu);
    assert_reads(cf, 0, SIZE, 0);
    EVENTUALLY(tier_state(t) == TIER_BYPASSED);
    assert_reads(cf, 0, SIZE, 0);
    cache_file_unref(cf);
    close(fd);
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

/* Nothing of the chunk in which the old object ended was here when the new one was made, so the limit stayed. */
START_TEST(what_was_added_to_an_open_file_is_there_on_another_disk)
{
    struct cache_source src = put_object(&fx, "o", 100000, 1);
    struct cfile *cf = open_object(&fx, 100, &src, 100000);
    char got[9] = "", *buf = g_malloc0(300000);
    ck_assert_int_eq(cache_file_truncate(cf, 300000), 0);
    ck_assert_int_eq(cache_file_write(cf, "precious", 8, 250000), 8);
    pattern((uint8_t *)buf, 100000, 0, 1);
    memcpy(buf + 250000, "precious", 8);
    struct obj_cond none = {.kind = OBJ_COND_NONE};
    src.limit = 300000;
    ck_assert_int_eq(objstore_put(fx.store, "o", buf, src.limit, &(struct obj_meta){0}, &none, &src.etag), 0);
    cache_file_rebase(cf, "o", &src.etag);
    ck_assert_int_eq(cache_file_set_published(cf, &src), 0);
    const char *home = has_file(second, 100) ? second : fx.dir;
    disk_fault(home, "eio");
    EVENTUALLY(state_is(home, "bypassed"));
    EVENTUALLY(has_file(home == second ? fx.dir : second, 100));
    ck_assert_int_eq(cache_file_read(cf, got, 8, 250000), 8);
    ck_assert_str_eq(got, "precious");
    cache_file_unref(cf);
    disk_fault(home, NULL);
    g_free(buf);
}
END_TEST

START_TEST(a_file_without_a_source_stays_on_a_bypassed_disk)
{
    struct cache_source srcs[6], none = {0};
    fill(6, srcs);
    unsigned i = has_file(second, 100) ? 0 : 1;
    struct cfile *cf = open_object(&fx, 100 + i, &srcs[i], SIZE);
    struct cache_tier *home = cfile_tier(cf);
    ck_assert_int_eq(cache_file_set_source(cf, &none), 0);
    disk_fault(second, "eio");
    EVENTUALLY(state_is(second, "bypassed"));
    place_abandon(cf);
    ck_assert_ptr_eq(cfile_tier(cf), home);
    disk_fault(second, NULL);
    EVENTUALLY(state_is(second, "ok"));
    assert_reads(cf, 0, SIZE, i);
    cache_file_unref(cf);
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
    tcase_add_test(disks, a_disk_is_used_again_only_after_its_probation);
    tcase_add_test(disks, one_good_probe_is_no_probation);
    tcase_add_test(disks, an_error_in_a_file_bypasses_a_disk_that_is_not_the_only_one);
    tcase_add_test(disks, a_file_that_is_not_here_is_opened_without_a_look_at_a_bypassed_disk);
    tcase_add_test(disks, what_was_added_to_an_open_file_is_there_on_another_disk);
    tcase_add_test(disks, a_file_without_a_source_stays_on_a_bypassed_disk);
    tcase_add_test(disks, unpublished_files_stay_on_a_bypassed_disk);
    tcase_add_test(disks, an_unpublished_file_removed_while_its_disk_is_bypassed_is_gone);
    tcase_add_test(disks, readers_see_right_bytes_while_disks_come_and_go);
    suite_add_tcase(s, disks);
    return run_suite(s);
}
