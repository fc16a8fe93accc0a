/* Pins and pin rules over a lake in a folder, without FUSE. */
#include "fs/rules.h"
#include "pin_fixture.h"

START_TEST(pinned_directory_pins_everything_below)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_object(&fx, "d/e/b", "2", 1);
    fs_fixture_object(&fx, "f", "3", 1);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(tree_refresh_all(fx.fs, dir, false, NULL, NULL), 0);
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    ck_assert(fs_fixture_pinned(&fx, "d"));
    ck_assert(fs_fixture_pinned(&fx, "d/a"));
    ck_assert(fs_fixture_pinned(&fx, "d/e/b"));
    ck_assert(!fs_fixture_pinned(&fx, "f"));
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_NONE), 0);
    ck_assert(!fs_fixture_pinned(&fx, "d/e/b"));
}
END_TEST

START_TEST(pin_survives_a_restart)
{
    fs_fixture_object(&fx, "a", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "a");
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_DISK), 0);
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert(fs_fixture_pinned(&fx, "a"));
}
END_TEST

START_TEST(fetched_file_of_a_pinned_inode_counts_as_pinned_bytes)
{
    fs_fixture_object(&fx, "a", "12345", 5);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "a");
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_DISK), 0);
    pin_fetch(fx.fs, (const char *const[]){"a", NULL});
    settle();
    struct cache_usage u = {0};
    for (unsigned i = 0; i < 2000 && u.pinned_bytes == 0; i++) { /* charged after the reader was woken */
        g_usleep(1000);
        cache_usage(fx.fs->cache, &u);
    }
    ck_assert_uint_gt(u.pinned_bytes, 0);
    ck_assert_int_eq(cache_evict(fx.fs->cache, in->rec.vid), -EBUSY);
}
END_TEST

START_TEST(rule_takes_directories_by_the_times_of_their_files)
{
    put_aged("ckpt/step_2/x", 300);
    put_aged("ckpt/step_9/x", 200);
    put_aged("ckpt/step_10/deep/x", 100);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "ckpt");
    ck_assert_int_eq(tree_refresh_all(fx.fs, dir, false, NULL, NULL), 0);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK, NULL), 0);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_10/deep/x"));
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step_9") && !fs_fixture_pinned(&fx, "ckpt/step_2"));
}
END_TEST

START_TEST(rule_pins_the_newest_and_unpins_the_others)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 2, PIN_DISK, NULL), 0);
    for (unsigned i = 1; i <= 4; i++) {
        write_step(i);
        settle_published();
        g_autofree char *path = g_strdup_printf("ckpt/step%u.pt", i);
        ck_assert_msg(fs_fixture_pinned(&fx, path), "%s", path);
    }
    fs_fixture_write(&fx, "ckpt/latest", "x", 1);
    settle_published();
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step3.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step4.pt"));
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/latest"));
}
END_TEST

START_TEST(rule_applies_to_a_file_renamed_into_place)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, NULL), 0);
    fs_fixture_write(&fx, "ckpt/step1.pt.tmp", "x", 1);
    INODE_REF dir = fs_fixture_inode(&fx, "ckpt");
    ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "step1.pt.tmp", dir->ino, "step1.pt", 0), 0);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
}
END_TEST

START_TEST(rule_fetches_what_is_absent)
{
    fs_fixture_object(&fx, "ckpt/step1.pt", "1", 1);
    g_usleep(2000);
    fs_fixture_object(&fx, "ckpt/step2.pt", "22", 2);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "ckpt");
    ck_assert_int_eq(tree_refresh(fx.fs, dir, false), 0);
    g_autoptr(GPtrArray) pinned = g_ptr_array_new_with_free_func(g_free);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, pinned), 0);
    settle();
    ck_assert_uint_eq(pinned->len, 1);
    ck_assert_str_eq(pinned->pdata[0], "ckpt/step2.pt");
    ck_assert_uint_eq(fs_fixture_cached(&fx, "ckpt/step2.pt"), 2);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "ckpt/step1.pt"), 0);
}
END_TEST

START_TEST(rule_over_directories_pins_what_is_in_them)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK, NULL), 0);
    fs_fixture_write(&fx, "ckpt/step_1/rank0", "a", 1);
    settle_published();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_1/rank0"));
    g_usleep(2000);
    fs_fixture_write(&fx, "ckpt/step_2/rank0", "b", 1);
    settle_published();
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step_1/rank0"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_2/rank0"));
}
END_TEST

START_TEST(rule_that_is_removed_unpins_its_files)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 3, PIN_DISK, NULL), 0);
    write_step(1);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/*.pt", 0), 0);
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
}
END_TEST

START_TEST(rule_with_wildcards_in_the_folder_is_refused)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "run*/x.pt", 1, PIN_DISK, NULL), -EINVAL);
    ck_assert_int_eq(pin_rule_set(fx.fs, "run/", 1, PIN_DISK, NULL), -EINVAL);
}
END_TEST

START_TEST(file_that_appears_in_a_pinned_directory_is_pinned)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    fs_fixture_write(&fx, "d/new", "2", 1);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "d/new"));
}
END_TEST

START_TEST(directory_made_in_a_pinned_one_is_pinned_with_what_appears_in_it)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    fs_fixture_write(&fx, "d/e/f/new", "2", 1);
    ck_assert(fs_fixture_pinned(&fx, "d/e"));
    ck_assert(fs_fixture_pinned(&fx, "d/e/f"));
    ck_assert(fs_fixture_pinned(&fx, "d/e/f/new"));
    settle();
    ck_assert(fs_fixture_pinned(&fx, "d/e/f/new"));
}
END_TEST

/* Until looks at rules and what they fetch have brought the file. */
static void expect_cached(const char *path, uint64_t size)
{
    uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
    while (fs_fixture_cached(&fx, path) != size) {
        ck_assert_msg(clock_mono_ns() < deadline, "%s was not fetched", path);
        g_usleep(1000);
    }
}

START_TEST(what_a_listing_finds_in_a_pinned_directory_is_pinned_and_fetched)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_open(&fx);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    fs_fixture_object(&fx, "d/new", "22", 2);
    fs_fixture_object(&fx, "d/e/deep", "333", 3);
    list_again("d");
    ck_assert(fs_fixture_pinned(&fx, "d/new"));
    expect_cached("d/new", 2);
    ck_assert(fs_fixture_pinned(&fx, "d/e"));
    ck_assert(fs_fixture_pinned(&fx, "d/e/deep"));
    expect_cached("d/e/deep", 3);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 1);
}
END_TEST

START_TEST(rule_counts_what_a_listing_finds)
{
    fs_fixture_object(&fx, "ckpt/step1.pt", "1", 1);
    fs_fixture_open(&fx);
    list_again("ckpt");
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, NULL), 0);
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    g_usleep(2000);
    fs_fixture_object(&fx, "ckpt/step2.pt", "22", 2);
    list_again("ckpt");
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    expect_cached("ckpt/step2.pt", 2);
}
END_TEST

static void pin_known(const char *path, enum cache_pin pin)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, pin), 0);
}

static enum cache_pin pin_at(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    mutex_lock(&in->mu);
    enum cache_pin pin = pin_of(&in->rec);
    mutex_unlock(&in->mu);
    return pin;
}

static bool is_marked(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    struct meta_cached c;
    ck_assert_int_eq(meta_cached_get(fx.fs->meta, in->rec.vid, &c), 0);
    return c.flags & CACHED_PINNED;
}

static void rename_in_root(const char *from, const char *to)
{
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, from, META_ROOT_INO, to, 0), 0);
}

START_TEST(name_stays_pinned_when_another_is_renamed_over_it)
{
    fs_fixture_object(&fx, "model.pt", "1", 1);
    fs_fixture_open(&fx);
    pin_known("model.pt", PIN_MEMORY);
    fs_fixture_write(&fx, "model.pt.tmp", "2", 1);
    ck_assert(!fs_fixture_pinned(&fx, "model.pt.tmp"));
    rename_in_root("model.pt.tmp", "model.pt");
    ck_assert_int_eq(pin_at("model.pt"), PIN_MEMORY);
    ck_assert(is_marked("model.pt"));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_at("model.pt"), PIN_MEMORY);
}
END_TEST

START_TEST(absent_file_renamed_over_a_pinned_name_is_fetched)
{
    fs_fixture_object(&fx, "model.pt", "1", 1);
    fs_fixture_object(&fx, "next.pt", "22", 2);
    fs_fixture_open(&fx);
    pin_known("model.pt", PIN_DISK);
    rename_in_root("next.pt", "model.pt");
    ck_assert_int_eq(pin_at("model.pt"), PIN_DISK);
    expect_cached("model.pt", 2);
}
END_TEST

START_TEST(directory_renamed_over_a_pinned_one_is_pinned_with_what_is_in_it)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "best/a", "1", 1);
    INODE_REF dir = fs_fixture_inode(&fx, "best");
    ck_assert_int_eq(pin_tree(fx.fs, dir->ino, PIN_DISK), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "a"), 0);
    fs_fixture_write(&fx, "step_2/a", "2", 1);
    rename_in_root("step_2", "best");
    ck_assert_int_eq(pin_at("best"), PIN_DISK);
    ck_assert_int_eq(pin_at("best/a"), PIN_DISK);
}
END_TEST

START_TEST(name_that_is_removed_is_not_pinned_any_more)
{
    fs_fixture_object(&fx, "model.pt", "1", 1);
    fs_fixture_open(&fx);
    pin_known("model.pt", PIN_DISK);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "model.pt"), 0);
    fs_fixture_write(&fx, "model.pt", "2", 1);
    ck_assert_int_eq(pin_at("model.pt"), PIN_NONE);
}
END_TEST

/* Whichever rule is looked at last. */
START_TEST(memory_wins_where_rules_want_both)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 2, PIN_MEMORY, NULL), 0);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step*", 3, PIN_DISK, NULL), 0);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/a*", 1, PIN_DISK, NULL), 0);
    for (unsigned i = 1; i <= 3; i++)
        write_step(i);
    settle_published();
    EVENTUALLY(pin_at("ckpt/step1.pt") == PIN_DISK);
    ck_assert_int_eq(pin_at("ckpt/step2.pt"), PIN_MEMORY);
    ck_assert_int_eq(pin_at("ckpt/step3.pt"), PIN_MEMORY);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step*", 2, PIN_DISK, NULL), 0);
    ck_assert_int_eq(pin_at("ckpt/step1.pt"), PIN_NONE);
    ck_assert_int_eq(pin_at("ckpt/step3.pt"), PIN_MEMORY);
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/*.pt", 0), 0);
    ck_assert_int_eq(pin_at("ckpt/step3.pt"), PIN_DISK);
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/step*", 0), 0);
    ck_assert_int_eq(pin_at("ckpt/step3.pt"), PIN_NONE);
}
END_TEST

START_TEST(memory_wins_within_a_directory_wanted_on_disk)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_1/a*", 1, PIN_MEMORY, NULL), 0);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK, NULL), 0);
    fs_fixture_write(&fx, "ckpt/step_1/a", "a", 1);
    fs_fixture_write(&fx, "ckpt/step_1/b", "b", 1);
    settle();
    ck_assert_int_eq(pin_at("ckpt/step_1"), PIN_DISK);
    ck_assert_int_eq(pin_at("ckpt/step_1/a"), PIN_MEMORY);
    ck_assert_int_eq(pin_at("ckpt/step_1/b"), PIN_DISK);
}
END_TEST

START_TEST(rule_leaves_what_was_pinned_by_name)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, NULL), 0);
    write_step(1);
    settle();
    pin_known("ckpt/step1.pt", PIN_DISK);
    write_step(2);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/*.pt", 0), 0);
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/step2.pt"));
}
END_TEST

START_TEST(rule_over_directories_leaves_what_was_pinned_by_name_in_them)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK, NULL), 0);
    fs_fixture_write(&fx, "ckpt/step_1/rank0", "a", 1);
    fs_fixture_write(&fx, "ckpt/step_1/config", "c", 1);
    settle_published();
    pin_known("ckpt/step_1/config", PIN_DISK);
    g_usleep(2000);
    fs_fixture_write(&fx, "ckpt/step_2/rank0", "b", 1);
    settle_published();
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step_1/rank0"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_1/config"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_2/rank0"));
}
END_TEST

START_TEST(rule_leaves_what_another_rule_wants)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/*.pt", 1, PIN_DISK, NULL), 0);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step*", 2, PIN_DISK, NULL), 0);
    for (unsigned i = 1; i <= 3; i++)
        write_step(i);
    settle_published();
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step3.pt"));
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/step*", 0), 0);
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step3.pt"));
}
END_TEST

START_TEST(rule_within_a_wanted_directory_unpins_nothing_of_it)
{
    open_publishing();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_*", 1, PIN_DISK, NULL), 0);
    fs_fixture_write(&fx, "ckpt/step_1/a", "a", 1);
    g_usleep(2000);
    fs_fixture_write(&fx, "ckpt/step_1/b", "b", 1);
    settle_published();
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step_1/*", 1, PIN_DISK, NULL), 0);
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_1/a"));
    g_usleep(2000);
    fs_fixture_write(&fx, "ckpt/step_2/c", "c", 1); /* now only the inner rule wants something there */
    settle_published();
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step_1/a"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step_1/b"));
}
END_TEST

START_TEST(rule_is_removed_by_its_name_and_number)
{
    fs_fixture_open(&fx);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/final", 2, PIN_DISK, NULL), 0);
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/final", 3), -ENOENT);
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/final", 2), 0);
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/final", 0), -ENOENT);
}
END_TEST

START_TEST(rule_that_was_not_applied_before_a_kill_is_at_the_next_start)
{
    fs_fixture_open(&fx);
    write_step(1);
    write_step(2);
    settle();
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, PIN_VALUE_PREFIX "ckpt/*.pt", "1", 1);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    fs_fixture_close(&fx);
    open_publishing();
    settle_published();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step2.pt"));
    EVENTUALLY(!fs_fixture_pinned(&fx, "ckpt/step1.pt"));
}
END_TEST

START_TEST(many_that_appear_at_once_do_not_warm_what_is_beside_them)
{
    fx.cfg.on_create = g_strdup("*.idx=warm");
    fs_fixture_object(&fx, "1.idx", "1", 1);
    fs_fixture_object(&fx, "data.bin", "1", 1);
    fs_fixture_open(&fx);
    mutex_lock(&fx.fs->ns); /* as a listing has it while names appear */
    for (unsigned i = 0; i < 10000; i++) {
        g_autofree char *key = g_strdup_printf("%u.idx", i);
        rules_on_create(fx.fs, key);
    }
    mutex_unlock(&fx.fs->ns);
    settle();
    ck_assert_uint_eq(fs_fixture_cached(&fx, "1.idx"), 1);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "data.bin"), 0);
}
END_TEST

static unsigned n_running(void)
{
    unsigned n = 0;
    struct warm_progress p;
    g_autoptr(GPtrArray) list = warm_list_jobs(fx.fs);
    for (unsigned i = 0; i < list->len; i++)
        n += warm_progress_get(list->pdata[i], &p) == WARM_RUNNING;
    return n;
}

START_TEST(looks_at_rules_while_the_store_is_slow_start_few_warm_ups)
{
    fx.cfg.fault = g_strdup("op=get,action=delay:3s");
    fs_fixture_object(&fx, "ckpt/s1/a", "1", 1);
    fs_fixture_object(&fx, "ckpt/s2/a", "2", 1);
    fs_fixture_open(&fx);
    INODE_REF s1 = fs_fixture_inode(&fx, "ckpt/s1");
    INODE_REF s2 = fs_fixture_inode(&fx, "ckpt/s2");
    ck_assert_int_eq(tree_refresh_all(fx.fs, s1, false, NULL, NULL) + tree_refresh_all(fx.fs, s2, false, NULL, NULL),
                     0);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/s*", 1, PIN_DISK, NULL), 0);
    for (unsigned i = 0; i < 40; i++) {
        const char *paths[] = {i % 2 ? "ckpt/s1" : "ckpt/s2", NULL};
        pin_fetch(fx.fs, paths);
        pin_rules_apply(fx.fs, "ckpt/");
        uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
        while (workq_load(fx.fs->jobs->pin_q) > 0 && clock_mono_ns() < deadline)
            g_usleep(1000);
    }
    ck_assert_uint_le(n_running(), 4);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
    while (n_running() > 0)
        g_usleep(1000);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "ckpt/s1/a"), 1);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "ckpt/s2/a"), 1);
}
END_TEST

static void pin_dir(const char *path, enum cache_pin pin)
{
    INODE_REF dir = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(tree_refresh_all(fx.fs, dir, false, NULL, NULL), 0);
    ck_assert_int_eq(pin_by_name(fx.fs, dir->ino, path, pin, NULL), 0);
}

static int end_third(void *ctx, unsigned n)
{
    unsigned *pages = ctx;
    ck_assert_uint_le(n, 256);
    return ++*pages == 3 ? -ECANCELED : 0;
}

static int count_page(void *ctx, unsigned n)
{
    *(unsigned *)ctx += n;
    return 0;
}

static int count_value(void *ctx, const char *name, const void *value, size_t len)
{
    ++*(unsigned *)ctx;
    return 0;
}

static unsigned n_named(void)
{
    unsigned n = 0;
    ck_assert_int_eq(meta_value_each(fx.fs->meta, PIN_NAME_PREFIX, count_value, &n), 0);
    return n;
}

START_TEST(marking_a_large_tree_is_told_of_and_can_be_ended)
{
    unsigned n = 0, pages = 0;
    const struct pin_tick count = {count_page, &n}, end = {end_third, &pages};
    for (unsigned i = 0; i < 600; i++) {
        g_autofree char *name = g_strdup_printf("d/%03u", i);
        fs_fixture_object(&fx, name, "1", 1);
    }
    fs_fixture_open(&fx);
    pin_dir("d", PIN_DISK);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_by_name(fx.fs, dir->ino, "d", PIN_NONE, &end), -ECANCELED);
    ck_assert_uint_eq(pages, 3);
    ck_assert(fs_fixture_pinned(&fx, "d/599") && !fs_fixture_pinned(&fx, "d/000"));
    inode_put(g_steal_pointer(&dir));
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    settle();
    ck_assert_uint_eq(n_named(), 1); /* it says that it is pinned, and so it is */
    ck_assert(fs_fixture_pinned(&fx, "d"));
    dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_by_name(fx.fs, dir->ino, "d", PIN_NONE, &count), 0);
    ck_assert_uint_eq(n, 600);
    ck_assert(!fs_fixture_pinned(&fx, "d/599") && !fs_fixture_pinned(&fx, "d"));
}
END_TEST

START_TEST(what_is_pinned_by_name_and_absent_is_fetched_at_the_next_start)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_object(&fx, "d/not/b", "2", 1);
    fs_fixture_object(&fx, "f", "3", 1);
    fs_fixture_open(&fx);
    pin_dir("d", PIN_DISK);
    pin_dir("d/not", PIN_NONE);
    fs_fixture_close(&fx); /* before anything was fetched */
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    settle();
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 1);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/not/b"), 0);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "f"), 0);
    ck_assert_uint_eq(n_named(), 1);
}
END_TEST

START_TEST(pin_by_name_is_remembered_as_long_as_it_lasts)
{
    fs_fixture_object(&fx, "d/e/a", "1", 1);
    fs_fixture_open(&fx);
    pin_dir("d", PIN_DISK);
    pin_dir("d/e", PIN_DISK);
    ck_assert_uint_eq(n_named(), 2);
    pin_dir("d", PIN_NONE);
    ck_assert_uint_eq(n_named(), 1);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    settle();
    ck_assert_uint_eq(n_named(), 0);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/e/a"), 0);
}
END_TEST

/* A lake whose reads are refused. */
static void open_refused(void)
{
    fx.cfg.fault = g_strdup("op=get,action=error:-EACCES");
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_object(&fx, "e/b", "1", 1);
    fs_fixture_open(&fx);
}

static void allow_again(void)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
}

static void pin_in_vain(const char *dir)
{
    pin_dir(dir, PIN_DISK);
    pin_fetch(fx.fs, (const char *const[]){dir, NULL});
    settle();
}

START_TEST(what_could_not_be_fetched_is_tried_again)
{
    open_refused();
    pin_in_vain("d");
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 0);
    allow_again();
    uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
    while (fs_fixture_cached(&fx, "d/a") == 0 && clock_mono_ns() < deadline)
        g_usleep(10 * 1000);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 1);
}
END_TEST

START_TEST(what_was_unpinned_since_it_failed_is_not_fetched)
{
    open_refused();
    pin_in_vain("d");
    pin_in_vain("e"); /* it is due later, so that d has had its turn */
    pin_dir("d", PIN_NONE);
    allow_again();
    EVENTUALLY(fs_fixture_cached(&fx, "e/b") == 1);
    settle();
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 0);
}
END_TEST

START_TEST(closing_does_not_wait_for_what_is_to_be_tried_again)
{
    open_refused();
    pin_in_vain("d");
    fs_fixture_close(&fx);
}
END_TEST

static void move(const char *from_dir, const char *from, const char *to_dir, const char *to)
{
    INODE_REF a = fs_fixture_inode(&fx, from_dir);
    INODE_REF b = fs_fixture_inode(&fx, to_dir);
    ck_assert_int_eq(tree_rename(fx.fs, a->ino, from, b->ino, to, 0), 0);
}

START_TEST(what_is_renamed_out_of_a_rules_reach_is_let_go)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "ckpt/step1/a", "1", 1);
    fs_fixture_write(&fx, "ckpt/run/step2.pt", "2", 1);
    fs_fixture_write(&fx, "named/x", "3", 1);
    fs_fixture_write(&fx, "archive/y", "4", 1);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/step*", 2, PIN_DISK, NULL), 0);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/run/*.pt", 2, PIN_DISK, NULL), 0);
    pin_dir("named", PIN_DISK);
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/step1/a") && fs_fixture_pinned(&fx, "ckpt/run/step2.pt"));
    move("ckpt", "step1", "archive", "step1");
    move("ckpt", "run", "archive", "run");
    move("", "named", "archive", "named");
    settle();
    ck_assert(!fs_fixture_pinned(&fx, "archive/step1") && !fs_fixture_pinned(&fx, "archive/step1/a"));
    ck_assert(!fs_fixture_pinned(&fx, "archive/run/step2.pt"));
    ck_assert(fs_fixture_pinned(&fx, "archive/named/x"));
}
END_TEST

START_TEST(folder_of_a_rule_that_is_renamed_into_place_is_looked_at)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "tmp/deep/step1", "1", 1);
    ck_assert_int_eq(pin_rule_set(fx.fs, "ckpt/deep/step*", 1, PIN_DISK, NULL), 0);
    move("", "tmp", "", "ckpt");
    settle();
    ck_assert(fs_fixture_pinned(&fx, "ckpt/deep/step1"));
    move("", "ckpt", "", "gone");
    settle();
    ck_assert(!fs_fixture_pinned(&fx, "gone/deep/step1"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pin");
    TCase *tc = tcase_create("pin");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, pinned_directory_pins_everything_below);
    tcase_add_test(tc, pin_survives_a_restart);
    tcase_add_test(tc, marking_a_large_tree_is_told_of_and_can_be_ended);
    tcase_add_test(tc, fetched_file_of_a_pinned_inode_counts_as_pinned_bytes);
    tcase_add_test(tc, rule_takes_directories_by_the_times_of_their_files);
    tcase_add_test(tc, rule_pins_the_newest_and_unpins_the_others);
    tcase_add_test(tc, rule_applies_to_a_file_renamed_into_place);
    tcase_add_test(tc, rule_fetches_what_is_absent);
    tcase_add_test(tc, rule_over_directories_pins_what_is_in_them);
    tcase_add_test(tc, rule_that_is_removed_unpins_its_files);
    tcase_add_test(tc, rule_with_wildcards_in_the_folder_is_refused);
    tcase_add_test(tc, file_that_appears_in_a_pinned_directory_is_pinned);
    tcase_add_test(tc, directory_made_in_a_pinned_one_is_pinned_with_what_appears_in_it);
    tcase_add_test(tc, what_a_listing_finds_in_a_pinned_directory_is_pinned_and_fetched);
    tcase_add_test(tc, rule_counts_what_a_listing_finds);
    tcase_add_test(tc, name_stays_pinned_when_another_is_renamed_over_it);
    tcase_add_test(tc, absent_file_renamed_over_a_pinned_name_is_fetched);
    tcase_add_test(tc, directory_renamed_over_a_pinned_one_is_pinned_with_what_is_in_it);
    tcase_add_test(tc, name_that_is_removed_is_not_pinned_any_more);
    tcase_add_test(tc, memory_wins_where_rules_want_both);
    tcase_add_test(tc, memory_wins_within_a_directory_wanted_on_disk);
    tcase_add_test(tc, rule_leaves_what_was_pinned_by_name);
    tcase_add_test(tc, rule_over_directories_leaves_what_was_pinned_by_name_in_them);
    tcase_add_test(tc, rule_leaves_what_another_rule_wants);
    tcase_add_test(tc, rule_within_a_wanted_directory_unpins_nothing_of_it);
    tcase_add_test(tc, rule_is_removed_by_its_name_and_number);
    tcase_add_test(tc, rule_that_was_not_applied_before_a_kill_is_at_the_next_start);
    tcase_add_test(tc, looks_at_rules_while_the_store_is_slow_start_few_warm_ups);
    tcase_add_test(tc, many_that_appear_at_once_do_not_warm_what_is_beside_them);
    tcase_add_test(tc, what_is_pinned_by_name_and_absent_is_fetched_at_the_next_start);
    tcase_add_test(tc, pin_by_name_is_remembered_as_long_as_it_lasts);
    tcase_add_test(tc, what_could_not_be_fetched_is_tried_again);
    tcase_add_test(tc, what_was_unpinned_since_it_failed_is_not_fetched);
    tcase_add_test(tc, closing_does_not_wait_for_what_is_to_be_tried_again);
    tcase_add_test(tc, what_is_renamed_out_of_a_rules_reach_is_let_go);
    tcase_add_test(tc, folder_of_a_rule_that_is_renamed_into_place_is_looked_at);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
