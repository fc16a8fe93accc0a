/* Which inodes memory holds, and that lookups of the kernel are counted also for those that it does not. */
#include "fs_fixture.h"

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

int main(void)
{
    Suite *s = suite_create("inode");
    TCase *tc = tcase_create("inode");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, of_many_known_to_the_kernel_the_lately_used_are_held);
    tcase_add_test(tc, lookups_of_one_that_left_memory_are_counted_on);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
