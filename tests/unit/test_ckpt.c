/* Checkpoints by shape and by rule, and rules of the mount that pin them, over a lake in a folder. */
#include "fs/ckpt.h"
#include "fs/jobs.h"
#include "fs/pin.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void rule(const char *text)
{
    g_free(fx.cfg.rule);
    fx.cfg.rule = g_strdup(text);
}

static void write_file(const char *path)
{
    fs_fixture_write(&fx, path, path, strlen(path));
    g_usleep(2000); /* a later mtime than the one before */
}

static void settle(void)
{
    uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
    while (workq_load(fx.fs->jobs->pin_q) > 0) {
        ck_assert_uint_lt(clock_mono_ns(), deadline);
        g_usleep(1000);
    }
}

static void publish_all(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 30 * NS_PER_S, NULL, NULL), 0);
    settle();
}

/* Now or soon: what was published is looked at behind. */
static void expect_pinned(const char *path, bool pinned)
{
    uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
    while (fs_fixture_pinned(&fx, path) != pinned && clock_mono_ns() < deadline)
        g_usleep(1000);
    ck_assert_msg(fs_fixture_pinned(&fx, path) == pinned, "%s", path);
}

static const struct {
    const char *name;
    bool dir, is;
} shapes[] = {
    {"model.pt", false, true},      {"step_1.ckpt", false, true},
    {"a.safetensors", false, true}, {"pytorch_model.bin", false, true},
    {"latest", false, false},       {".model.pt", false, false},
    {"model.pt.tmp", false, false}, {"step_100", false, false},
    {"step_100", true, true},       {"step-100", true, true},
    {"checkpoint-200", true, true}, {"global_step300", true, true},
    {"epoch=3-step=7", true, true}, {"iter_0000010", true, true},
    {"Epoch_1", true, true},        {"step", true, false},
    {"stepper_1", true, false},     {"data", true, false},
    {"last.ckpt", true, true},
};

START_TEST(names_have_the_shape_of_a_checkpoint)
{
    ck_assert_msg(ckpt_has_shape(shapes[_i].name, shapes[_i].dir) == shapes[_i].is, "%s", shapes[_i].name);
}
END_TEST

static int collect(void *ctx, const struct ckpt *c)
{
    g_string_append_printf(ctx, "%s%s ", c->path, c->dir ? "/" : "");
    return 0;
}

static void expect_matches(const char *match, const char *want)
{
    g_autoptr(GString) found = g_string_new(NULL);
    ck_assert_int_eq(ckpt_each(fx.fs, match, NULL, collect, found), 0);
    ck_assert_msg(g_str_equal(found->str, want), "%s: %s", match, found->str);
}

START_TEST(glob_means_checkpoints_or_what_it_matches)
{
    fs_fixture_open(&fx);
    write_file("ckpt/step_1/rank0.pt");
    write_file("ckpt/run/step_2/rank0.pt");
    write_file("ckpt/final.pt");
    write_file("ckpt/latest");
    write_file("other/x.pt");
    expect_matches("ckpt/**", "ckpt/step_1/ ckpt/run/step_2/ ckpt/final.pt ");
    expect_matches("**", "ckpt/step_1/ ckpt/run/step_2/ ckpt/final.pt other/x.pt ");
    expect_matches("ckpt/*", "ckpt/step_1/ ckpt/run/ ckpt/final.pt ckpt/latest ");
    expect_matches("ckpt/*/*.pt", "ckpt/step_1/rank0.pt ");
    expect_matches("ckpt/run/**/*.pt", "ckpt/run/step_2/rank0.pt ");
    expect_matches("none/**", "");
}
END_TEST

START_TEST(older_one_is_let_go_when_the_newer_is_published)
{
    rule("ckpt/**=pin=1");
    fs_fixture_open(&fx);
    write_file("ckpt/step_1.pt");
    write_file("ckpt/step_2.pt");
    settle();
    expect_pinned("ckpt/step_1.pt", true); /* neither is safe in the store */
    expect_pinned("ckpt/step_2.pt", true);
    publish_all();
    expect_pinned("ckpt/step_1.pt", false);
    expect_pinned("ckpt/step_2.pt", true);
    write_file("ckpt/latest");
    settle();
    expect_pinned("ckpt/latest", false);
}
END_TEST

START_TEST(one_that_is_renamed_to_what_the_glob_does_not_mean_is_let_go)
{
    rule("ckpt/step_*=pin=2");
    fs_fixture_open(&fx);
    write_file("ckpt/step_1/a");
    write_file("ckpt/step_2/a");
    write_file("ckpt/old/x");
    settle();
    expect_pinned("ckpt/step_1/a", true);
    INODE_REF dir = fs_fixture_inode(&fx, "ckpt");
    INODE_REF old = fs_fixture_inode(&fx, "ckpt/old");
    ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "step_1", dir->ino, "best", 0), 0);
    ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "step_2", old->ino, "step_2", 0), 0);
    settle();
    expect_pinned("ckpt/best/a", false);
    expect_pinned("ckpt/old/step_2/a", false);
    ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "best", dir->ino, "step_3", 0), 0);
    settle();
    expect_pinned("ckpt/step_3/a", true);
}
END_TEST

START_TEST(directory_counts_once_all_of_it_is_published)
{
    rule("ckpt/**=pin=1");
    fs_fixture_open(&fx);
    write_file("ckpt/step_1/a");
    write_file("ckpt/step_2/a");
    write_file("ckpt/step_2/b");
    settle();
    expect_pinned("ckpt/step_1/a", true);
    expect_pinned("ckpt/step_2/b", true);
    publish_all();
    expect_pinned("ckpt/step_1/a", false);
    expect_pinned("ckpt/step_1", false);
    expect_pinned("ckpt/step_2/a", true);
}
END_TEST

START_TEST(rule_that_is_given_no_more_lets_go)
{
    rule("ckpt/**=pin=2");
    fs_fixture_open(&fx);
    write_file("ckpt/step_1.pt");
    publish_all();
    expect_pinned("ckpt/step_1.pt", true);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    settle();
    expect_pinned("ckpt/step_1.pt", true);
    fs_fixture_close(&fx);
    rule(NULL);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    settle();
    expect_pinned("ckpt/step_1.pt", false);
}
END_TEST

START_TEST(more_specific_rule_takes_its_paths_out)
{
    rule("ckpt/**=pin=1\nckpt/final/**=close=local");
    fs_fixture_open(&fx);
    write_file("ckpt/step_1.pt");
    write_file("ckpt/final/best.pt");
    publish_all();
    expect_pinned("ckpt/step_1.pt", true);
    expect_pinned("ckpt/final/best.pt", false);
}
END_TEST

START_TEST(leftover_of_a_killed_writer_takes_no_other_s_place)
{
    rule("ckpt/**=pin=1");
    fx.cfg.hold_delay_ns = 0;
    fs_fixture_open(&fx);
    write_file("ckpt/step_1/a");
    publish_all();
    write_file("ckpt/step_2.orbax-checkpoint-tmp-7/a");
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 30 * NS_PER_S, NULL, NULL), 0);
    settle();
    ck_assert(fs_fixture_object_exists(&fx, "ckpt/step_2.orbax-checkpoint-tmp-7/a"));
    pin_rules_apply(fx.fs, NULL);
    settle();
    expect_pinned("ckpt/step_1/a", true);
    write_file("ckpt/step_3/a");
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 30 * NS_PER_S, NULL, NULL), 0);
    expect_pinned("ckpt/step_1/a", false);
    expect_pinned("ckpt/step_2.orbax-checkpoint-tmp-7/a", false);
    expect_pinned("ckpt/step_3/a", true);
}
END_TEST

START_TEST(file_that_is_kept_here_does_not_keep_older_ones)
{
    rule("ckpt/**=pin=1\nckpt/**/*.log=local-only");
    fs_fixture_open(&fx);
    write_file("ckpt/step_1/a");
    write_file("ckpt/step_2/a");
    write_file("ckpt/step_2/run.log");
    publish_all();
    expect_pinned("ckpt/step_1/a", false);
    expect_pinned("ckpt/step_2/a", true);
    write_file("ckpt/step_3/run.log"); /* nothing of it is in the store yet */
    settle();
    expect_pinned("ckpt/step_2/a", true);
    write_file("ckpt/step_3/a");
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 30 * NS_PER_S, NULL, NULL), 0);
    expect_pinned("ckpt/step_2/a", false);
}
END_TEST

START_TEST(sum_tells_what_is_owed)
{
    fs_fixture_open(&fx);
    write_file("ckpt/step_1/a");
    write_file("ckpt/step_1/deep/b");
    INODE_REF in = fs_fixture_inode(&fx, "ckpt/step_1");
    struct ckpt c = {.path = "ckpt/step_1", .ino = in->ino, .dir = true};
    struct ckpt_sum s;
    ck_assert_int_eq(ckpt_sum_up(fx.fs, &c, &s), 0);
    ck_assert_uint_eq(s.files, 2);
    ck_assert_uint_eq(s.bytes, strlen("ckpt/step_1/a") + strlen("ckpt/step_1/deep/b"));
    ck_assert_uint_eq(s.cached_bytes, s.bytes);
    ck_assert(s.owed && !s.open && !ckpt_is_safe(&s) && !s.pinned);
    publish_all();
    ck_assert_int_eq(ckpt_sum_up(fx.fs, &c, &s), 0);
    ck_assert(ckpt_is_safe(&s));
}
END_TEST

START_TEST(empty_one_is_pinned_where_its_directory_is)
{
    fs_fixture_open(&fx);
    write_file("ckpt/step_1/a");
    INODE_REF in = fs_fixture_inode(&fx, "ckpt/step_1");
    ck_assert_int_eq(tree_unlink(fx.fs, in->ino, "a"), 0);
    struct ckpt c = {.path = "ckpt/step_1", .ino = in->ino, .dir = true};
    struct ckpt_sum s;
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_DISK), 0);
    ck_assert_int_eq(ckpt_sum_up(fx.fs, &c, &s), 0);
    ck_assert(s.files == 0 && s.pinned && !s.in_memory);
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_MEMORY), 0);
    ck_assert_int_eq(ckpt_sum_up(fx.fs, &c, &s), 0);
    ck_assert(s.pinned && s.in_memory);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ckpt");
    TCase *tc = tcase_create("ckpt");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, names_have_the_shape_of_a_checkpoint, 0, (int)G_N_ELEMENTS(shapes));
    tcase_add_test(tc, glob_means_checkpoints_or_what_it_matches);
    tcase_add_test(tc, older_one_is_let_go_when_the_newer_is_published);
    tcase_add_test(tc, one_that_is_renamed_to_what_the_glob_does_not_mean_is_let_go);
    tcase_add_test(tc, directory_counts_once_all_of_it_is_published);
    tcase_add_test(tc, rule_that_is_given_no_more_lets_go);
    tcase_add_test(tc, more_specific_rule_takes_its_paths_out);
    tcase_add_test(tc, leftover_of_a_killed_writer_takes_no_other_s_place);
    tcase_add_test(tc, file_that_is_kept_here_does_not_keep_older_ones);
    tcase_add_test(tc, sum_tells_what_is_owed);
    tcase_add_test(tc, empty_one_is_pinned_where_its_directory_is);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
