/* Records of requests that were carried out: a worker finds those of the workers before it, and nobody those of another mount. */
#include "fs/op.h"
#include "fs/replay.h"
#include "fs/request.h"
#include "fs/tree.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#define AGAIN (1ull << 63)

static uint64_t make(const char *name)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = S_IFDIR | 0755};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    return in->ino;
}

static bool find(uint64_t unique, uint64_t *ret_ino)
{
    *ret_ino = 12345;
    request_begin(unique, 0);
    bool found = replay_find(fx.fs, ret_ino);
    request_end();
    return found;
}

static int count_one(void *ctx, const struct meta_reply *reply)
{
    ++*(unsigned *)ctx;
    return 0;
}

static unsigned count_records(void)
{
    unsigned n = 0;
    ck_assert_int_eq(meta_reply_each(fx.fs->meta, count_one, &n), 0);
    return n;
}

static void work_make(void)
{
    request_begin(70, 3);
    shared->ino = make("made");
    request_end();
}

START_TEST(request_that_was_carried_out_is_known_to_the_next)
{
    uint64_t ino;
    takeover_run(work_make, false);
    takeover_open(false);
    ck_assert(find(70 | AGAIN, &ino));
    ck_assert_uint_eq(ino, shared->ino);
    ck_assert(!find(72 | AGAIN, &ino));
    ck_assert(!find(70, &ino)); /* not said to have been sent before */
}
END_TEST

static void work_make_again(void)
{
    request_begin(72, 3); /* another one, on the same place as the first worker's */
    (void)make("other");
    request_end();
}

START_TEST(records_of_two_workers_are_known)
{
    uint64_t ino;
    takeover_run(work_make, false);
    takeover_run(work_make_again, false);
    takeover_open(false);
    ck_assert(find(70 | AGAIN, &ino));
    ck_assert_uint_eq(ino, shared->ino);
    ck_assert(find(72 | AGAIN, &ino));
    ck_assert_uint_ne(ino, shared->ino);
}
END_TEST

static void work_all(void)
{
    uint64_t d = make("d");
    (void)make("other");
    INODE_REF in = NULL;
    INODE_REF linked = NULL;
    INODE_REF unnamed = NULL;
    struct node_spec spec = {.parent = d, .name = "f", .mode = S_IFREG | 0644};
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    request_begin(10, 0);
    ck_assert_int_eq(tree_link(fx.fs, in->ino, d, "g", &linked), 0);
    request_begin(12, 1);
    ck_assert_int_eq(tree_rename(fx.fs, d, "f", d, "h", 0), 0);
    request_begin(14, 2);
    ck_assert_int_eq(tree_rename(fx.fs, d, "g", META_ROOT_INO, "other", RENAME_EXCHANGE), 0);
    request_begin(16, 3);
    ck_assert_int_eq(tree_rmdir(fx.fs, d, "g"), 0);
    request_begin(18, 4);
    ck_assert_int_eq(tree_unlink(fx.fs, d, "h"), 0);
    request_begin(20, 5);
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "d"), 0);
    request_begin(22, 6);
    spec.parent = META_ROOT_INO;
    ck_assert_int_eq(tree_tmpfile(fx.fs, &spec, &unnamed), 0);
    request_begin(24, 7);
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "d"), -ENOENT); /* changes nothing */
    request_end();
}

START_TEST(each_change_of_names_leaves_a_record)
{
    uint64_t ino;
    takeover_run(work_all, false);
    takeover_open(false);
    for (uint64_t unique = 10; unique <= 22; unique += 2) {
        ck_assert_msg(find(unique | AGAIN, &ino), "%u", (unsigned)unique);
        ck_assert_int_eq(ino != 0, unique == 10 || unique == 22);
    }
    ck_assert(!find(24 | AGAIN, &ino));
    ck_assert_uint_eq(count_records(), 7);
}
END_TEST

START_TEST(next_request_of_a_thread_takes_the_place)
{
    takeover_open(false);
    for (unsigned i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof(name), "d%u", i);
        request_begin(70 + 2 * i, i % 2);
        (void)make(name);
        request_end();
    }
    ck_assert_uint_eq(count_records(), 2);
    (void)make("by nobody");
    ck_assert_uint_eq(count_records(), 2);
}
END_TEST

START_TEST(records_go_when_all_is_answered)
{
    takeover_run(work_make, false);
    takeover_open(false);
    request_begin(72, 3);
    (void)make("own");
    request_end();
    replay_expire(fx.fs);
    ck_assert_uint_eq(count_records(), 2);
    atomic_store(&fx.fs->replay.caught_up, true);
    replay_expire(fx.fs);
    ck_assert_uint_eq(count_records(), 1); /* its own are for who comes after it */
}
END_TEST

START_TEST(records_of_another_mount_are_not_there)
{
    uint64_t ino;
    takeover_run(work_make, false);
    fs_fixture_open(&fx); /* without the session */
    ck_assert_uint_eq(count_records(), 0);
    ck_assert(!find(70 | AGAIN, &ino));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("replay");
    TCase *tc = tcase_create("replay");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, takeover_setup, takeover_teardown);
    tcase_add_test(tc, request_that_was_carried_out_is_known_to_the_next);
    tcase_add_test(tc, records_of_two_workers_are_known);
    tcase_add_test(tc, each_change_of_names_leaves_a_record);
    tcase_add_test(tc, next_request_of_a_thread_takes_the_place);
    tcase_add_test(tc, records_go_when_all_is_answered);
    tcase_add_test(tc, records_of_another_mount_are_not_there);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
