/* Which inodes memory holds, and that lookups of the kernel are counted also for those that it does not. */
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>

#define KEPT 65536u /* as many that only the kernel knows are held */
#define MORE 100u

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

/* n inodes of files. Returns the number of the first; the others follow it. */
static uint64_t make_records(unsigned n)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    const uint64_t first = 1000000;
    for (unsigned i = 0; i < n; i++) {
        const struct meta_inode rec = {.ino = first + i, .mode = S_IFREG | 0644, .nlink = 1};
        meta_inode_put(b, &rec);
    }
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    return first;
}

static struct inode *get(uint64_t ino)
{
    struct inode *in = NULL;
    ck_assert_int_eq(inode_get(fx.fs, ino, &in), 0);
    return in;
}

static bool in_memory(uint64_t ino)
{
    INODE_REF in = inode_find(fx.fs, ino);
    return in;
}

/* As the kernel does when it lists a directory. */
static void look_up(uint64_t ino, bool passed)
{
    INODE_REF in = get(ino);
    in->io.was_passed = passed;
    inode_kernel_ref(in);
}

START_TEST(of_many_known_to_the_kernel_the_lately_used_are_held)
{
    uint64_t first = make_records(KEPT + MORE);
    unsigned before = g_hash_table_size(fx.fs->inodes);
    for (unsigned i = 0; i < KEPT + MORE; i++) {
        look_up(first + i, false);
        if (i % 1000 == 0)
            inode_put(get(first)); /* is used all the time */
    }
    ck_assert_uint_le(g_hash_table_size(fx.fs->inodes), before + KEPT);
    ck_assert(in_memory(first));
    ck_assert(!in_memory(first + 1));
    ck_assert(in_memory(first + KEPT + MORE - 1));
}
END_TEST

START_TEST(lookups_of_one_that_left_memory_are_counted_on)
{
    uint64_t first = make_records(KEPT + MORE);
    look_up(first, true);
    look_up(first, true);
    look_up(first + 1, false);
    for (unsigned i = 2; i < KEPT + MORE; i++)
        look_up(first + i, false);
    ck_assert(!in_memory(first) && !in_memory(first + 1));
    inode_kernel_forget(fx.fs, first, 1);
    inode_kernel_forget(fx.fs, first + 1, 1);
    ck_assert(!in_memory(first));
    struct inode *in = get(first);
    ck_assert_uint_eq(in->nlookup, 1);
    ck_assert(in->io.was_passed);
    inode_put(in);
    ck_assert(in_memory(first));
    inode_kernel_forget(fx.fs, first, 1);
    ck_assert(!in_memory(first));
    in = get(first + 1);
    ck_assert_uint_eq(in->nlookup, 0);
    ck_assert(!in->io.was_passed);
    inode_put(in);
    ck_assert(!in_memory(first + 1));
}
END_TEST

static bool list(uint64_t ino, struct stat *ret)
{
    struct meta_near *near = meta_near_new(fx.fs->meta);
    bool told = inode_kernel_ref_unloaded(fx.fs, near, ino, ret);
    meta_near_free(near);
    return told;
}

static void put_record(const struct meta_inode *rec)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_inode_put(b, rec);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

static uint64_t lookups_of(uint64_t ino)
{
    INODE_REF in = get(ino);
    return in->nlookup;
}

START_TEST(what_is_listed_need_not_be_in_memory)
{
    const struct meta_inode rec = {
        .ino = 10001000, .mode = S_IFREG | 0640, .nlink = 2, .size = 513, .mtime_ns = 5, .flags = INODE_MODE_KNOWN};
    put_record(&rec);
    struct stat unloaded, loaded;
    ck_assert(list(10001000, &unloaded));
    ck_assert(list(10001000, &unloaded));
    ck_assert(!in_memory(10001000));
    INODE_REF in = get(10001000);
    inode_stat(in, &loaded);
    ck_assert_mem_eq(&loaded, &unloaded, sizeof(loaded));
    ck_assert_uint_eq(in->nlookup, 2);
    ck_assert(!list(10001000, &unloaded)); /* now it is */
    ck_assert_uint_eq(in->nlookup, 2);
}
END_TEST

START_TEST(what_the_record_does_not_tell_is_loaded)
{
    const struct meta_inode recs[] = {
        {.ino = 10001001, .mode = S_IFREG | 0644, .nlink = 1, .content = CONTENT_OPEN},
        {.ino = 10001002, .mode = S_IFREG | 0644, .nlink = 1, .content = CONTENT_SEALED},
        {.ino = 10001003, .mode = S_IFREG | 0644, .nlink = 2, .flags = INODE_SET_ASIDE},
        {.ino = 10001004, .mode = S_IFDIR | 0755, .nlink = 1},
        {.ino = 10001005, .mode = S_IFREG | 0644, .nlink = 0},
    };
    struct stat st;
    for (unsigned i = 0; i < G_N_ELEMENTS(recs); i++) {
        put_record(&recs[i]);
        ck_assert(!list(recs[i].ino, &st));
        ck_assert_uint_eq(lookups_of(recs[i].ino), 0);
    }
    ck_assert(!list(1000999, &st)); /* there is none */
}
END_TEST

START_TEST(what_was_listed_goes_when_it_is_forgotten_and_has_no_name)
{
    struct meta_inode rec = {.ino = 10001006, .mode = S_IFREG | 0644, .nlink = 1};
    put_record(&rec);
    struct stat st;
    ck_assert(list(10001006, &st));
    struct inode *in = get(10001006);
    in->rec.nlink = rec.nlink = 0;
    put_record(&rec);
    inode_put(in);
    ck_assert_int_eq(meta_inode_get(fx.fs->meta, 10001006, &rec), 0);
    inode_kernel_forget(fx.fs, 10001006, 1);
    for (unsigned i = 0; i < 1000 && meta_inode_get(fx.fs->meta, 10001006, &rec) == 0; i++)
        g_usleep(10000); /* it is done behind */
    ck_assert_int_eq(meta_inode_get(fx.fs->meta, 10001006, &rec), -ENOENT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("inode");
    TCase *tc = tcase_create("inode");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, of_many_known_to_the_kernel_the_lately_used_are_held);
    tcase_add_test(tc, what_is_listed_need_not_be_in_memory);
    tcase_add_test(tc, what_the_record_does_not_tell_is_loaded);
    tcase_add_test(tc, what_was_listed_goes_when_it_is_forgotten_and_has_no_name);
    tcase_add_test(tc, lookups_of_one_that_left_memory_are_counted_on);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
