/* --journal-dir: where the database is, and every start that is refused because it is not where it should be. */
#include "cache/cache_file.h"
#include "fs/content.h"
#include "fs/fsck.h"
#include "fs/journal_dir.h"
#include "fs/publish.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fs_fixture fx;
static char *journal; /* the folder that --journal-dir names */
static char *msg;     /* of the last refusal */

static void setup(void)
{
    fs_fixture_init(&fx);
    journal = g_build_filename(fx.dir, "other disk", NULL);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    g_clear_pointer(&journal, g_free);
    g_clear_pointer(&msg, g_free);
}

static void use_journal(const char *dir)
{
    g_free(fx.cfg.journal_dir);
    fx.cfg.journal_dir = g_strdup(dir);
}

static void use_cache(const char *dirs)
{
    g_free(fx.cfg.cache_dir);
    fx.cfg.cache_dir = g_strdup(dirs);
}

static char *in_cache(const char *name)
{
    return g_build_filename(fx.cache_dir, name, NULL);
}

static void sh(const char *command)
{
    ck_assert_msg(system(command) == 0, "%s", command);
}

/* Where the database is. */
static char *target(void)
{
    g_autofree char *link = in_cache("meta");
    char *to = g_file_read_link(link, NULL);
    ck_assert_ptr_nonnull(to);
    return to;
}

static bool has_database(const char *dir)
{
    g_autofree char *current = g_build_filename(dir, "CURRENT", NULL);
    return access(current, F_OK) == 0;
}

/* One unpublished file in a folder that is closed. */
static void leave_file(const char *journal_dir)
{
    use_journal(journal_dir);
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "d/x", "hello", 5);
    fs_fixture_close(&fx);
}

static void expect_file(void)
{
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/x");
    struct cfile *cf = NULL;
    char buf[8] = "";
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_read(cf, buf, 5, 0), 5);
    content_unuse(in, cf);
    ck_assert_str_eq(buf, "hello");
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
}

/* The start is refused, and the message has all these words. */

static void refused(int want, const char *first, ...)
{
    const struct fs_setup how = {.cfg = &fx.cfg, .session = fx.session};
    g_clear_pointer(&msg, g_free);
    ck_assert_int_eq(fs_open(&how, &fx.fs, &msg), want);
    fx.fs = NULL;
    ck_assert_ptr_nonnull(msg);
    va_list more;
    va_start(more, first);
    for (const char *part = first; part; part = va_arg(more, const char *))
        ck_assert_msg(strstr(msg, part) && !strchr(msg, '\n'), "'%s' is not in: %s", part, msg);
    va_end(more);
}

/* What stands between backquotes in the message. */
static void do_as_told(void)
{
    g_auto(GStrv) parts = g_strsplit(msg, "`", 3);
    ck_assert_uint_eq(g_strv_length(parts), 3);
    sh(parts[1]);
}

/* ---- where it is ---- */

START_TEST(database_and_reserve_are_in_the_journal_folder)
{
    use_journal(journal);
    fs_fixture_open(&fx);
    g_autofree char *to = target(), *reserve = g_strconcat(to, ".reserve", NULL), *here = in_cache("reserve"),
                    *in = g_path_get_dirname(to);
    ck_assert(has_database(to));
    ck_assert_str_eq(in, journal);
    ck_assert_int_eq(access(reserve, F_OK), 0);
    ck_assert_int_ne(access(here, F_OK), 0);
    struct stat st;
    ck_assert_int_eq(stat(journal, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    ck_assert_int_eq(meta_try_disk(fx.fs->meta), 0);
}
END_TEST

START_TEST(symlink_is_followed_with_and_without_the_option)
{
    leave_file(journal);
    use_journal(NULL);
    expect_file();
    use_journal(journal);
    expect_file();
}
END_TEST

START_TEST(cache_disk_may_go_away_under_an_open_database)
{
    leave_file(journal);
    fs_fixture_open(&fx);
    g_autofree char *link = in_cache("meta");
    ck_assert_int_eq(unlink(link), 0);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    for (unsigned i = 0; i < 40; i++) { /* more than a log takes: files are made */
        g_autofree char *big = g_strnfill(1 << 20, 'x'), *name = g_strdup_printf("big%u", i);
        meta_value_put(b, name, big, 1 << 20);
        ck_assert_int_eq(meta_commit(b, true), 0);
    }
    meta_batch_free(b);
    ck_assert(!meta_failed(fx.fs->meta));
}
END_TEST

START_TEST(one_journal_folder_serves_several_caches)
{
    leave_file(journal);
    g_autofree char *first = target(), *other = g_build_filename(fx.dir, "second", NULL);
    use_cache(other);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/x"), 0);
    g_autofree char *link = g_build_filename(other, "meta", NULL), *second = g_file_read_link(link, NULL);
    ck_assert_str_ne(first, second);
    fs_fixture_close(&fx);
    use_cache(fx.cache_dir);
    expect_file();
}
END_TEST

START_TEST(reserve_of_a_killed_daemon_goes_with_the_database)
{
    leave_file(journal);
    g_autofree char *old = in_cache("reserve");
    ck_assert(g_file_set_contents(old, "full", 4, NULL));
    expect_file();
    ck_assert_int_ne(access(old, F_OK), 0);
}
END_TEST

START_TEST(folder_with_the_symlink_is_the_first_of_several)
{
    g_autofree char *a = g_build_filename(fx.dir, "a", NULL), *b = g_build_filename(fx.dir, "b", NULL),
                    *link = g_build_filename(b, "meta", NULL), *to = g_build_filename(fx.dir, "to", NULL);
    ck_assert_int_eq(mkdir(a, 0700) + mkdir(b, 0700), 0);
    if (_i == 0)
        ck_assert_int_eq(mkdir(to, 0700), 0);
    ck_assert_int_eq(symlink(to, link), 0);
    char *dirs[] = {a, b, NULL};
    ck_assert_int_eq(cache_dirs_sort(dirs, &msg), 0);
    ck_assert_ptr_eq(dirs[0], b);
    ck_assert_ptr_eq(dirs[1], a);
}
END_TEST

START_TEST(replaced_first_disk_is_found_in_any_order)
{
    g_autofree char *second = g_build_filename(fx.dir, "second", NULL),
                    *dirs = g_strconcat(fx.cache_dir, ":", second, NULL),
                    *turned = g_strconcat(second, ":", fx.cache_dir, NULL), *link = in_cache("meta");
    use_cache(dirs);
    leave_file(journal);
    ck_assert_int_eq(unlink(link), 0); /* its data stays: this is about the database */
    use_cache(turned);
    expect_file();
    g_autofree char *to = target();
    ck_assert(has_database(to));
}
END_TEST

START_TEST(cache_folder_that_moved_keeps_its_database)
{
    leave_file(journal);
    g_autofree char *to = g_build_filename(fx.dir, "moved", NULL);
    ck_assert_int_eq(rename(fx.cache_dir, to), 0);
    use_cache(to);
    expect_file();
}
END_TEST

/* ---- what is refused ---- */

START_TEST(journal_in_the_cache_is_refused)
{
    g_autofree char *inside = in_cache("data/journal"), *alias = g_build_filename(fx.dir, "alias", NULL),
                    *by_alias = g_build_filename(alias, "not", "there", NULL),
                    *second = g_build_filename(fx.dir, "second", NULL),
                    *dirs = g_strconcat(fx.cache_dir, ":", second, NULL);
    const char *const where[] = {fx.cache_dir, inside, by_alias, second};
    ck_assert_int_eq(symlink(fx.cache_dir, alias), 0);
    use_cache(dirs);
    use_journal(where[_i]);
    refused(-EINVAL, where[_i], "lies in the cache folder", _i == 3 ? second : fx.cache_dir, NULL);
    g_autofree char *link = in_cache("meta");
    struct stat st;
    ck_assert_int_lt(lstat(link, &st), 0);
    ck_assert(_i == 0 || access(where[_i], F_OK) != 0);
}
END_TEST

START_TEST(journal_folder_that_others_may_enter_is_refused)
{
    if (_i == 1) /* also when the database is there already */
        leave_file(journal);
    else
        ck_assert_int_eq(mkdir(journal, 0700), 0);
    ck_assert_int_eq(chmod(journal, 0755), 0);
    use_journal(journal);
    refused(-EACCES, "journal folder", journal, "chmod 700", NULL);
}
END_TEST

START_TEST(database_on_the_cache_disk_is_moved_by_hand_as_told)
{
    g_autofree char *odd = g_build_filename(fx.dir, "it's a cache", NULL);
    use_cache(odd);
    g_free(fx.cache_dir);
    fx.cache_dir = g_strdup(odd);
    leave_file(NULL);
    use_journal(journal);
    g_autofree char *meta = in_cache("meta");
    refused(-EEXIST, meta, journal, "mv -T", "ln -s", NULL);
    ck_assert(g_file_test(meta, G_FILE_TEST_IS_DIR) && !g_file_test(meta, G_FILE_TEST_IS_SYMLINK));
    do_as_told();
    expect_file();
    g_autofree char *to = target();
    ck_assert(has_database(to));
}
END_TEST

START_TEST(symlink_to_elsewhere_than_the_option_says_is_refused)
{
    leave_file(journal);
    g_autofree char *other = g_build_filename(fx.dir, "third disk", NULL);
    use_journal(other);
    refused(-EEXIST, journal, other, NULL);
    ck_assert_int_ne(access(other, F_OK), 0);
    use_journal(NULL);
    expect_file();
}
END_TEST

START_TEST(journal_disk_that_is_not_mounted_is_never_started_anew)
{
    leave_file(journal);
    g_autofree char *away = g_build_filename(fx.dir, "unmounted", NULL), *to = target();
    ck_assert_int_eq(rename(journal, away), 0);
    ck_assert_int_eq(mkdir(journal, 0700), 0); /* the mount point stays */
    use_journal(_i ? journal : NULL);
    refused(-ENOLINK, fx.cache_dir, to, "mount the disk", NULL);
    ck_assert_int_ne(access(to, F_OK), 0);
    for (unsigned repair = 0; repair < 2; repair++) {
        struct fsck_result result;
        struct fsck_options o = {.cache_dir = fx.cache_dir, .repair = repair > 0, .offline = true, .out = stderr};
        g_clear_pointer(&msg, g_free);
        ck_assert_int_eq(fs_fsck(&o, &result, &msg), -ENOLINK);
        ck_assert_ptr_nonnull(strstr(msg, "mount the disk"));
        ck_assert_int_ne(access(to, F_OK), 0);
    }
    ck_assert_int_eq(rmdir(journal), 0);
    ck_assert_int_eq(rename(away, journal), 0);
    expect_file();
}
END_TEST

START_TEST(journal_that_is_lost_for_good_is_made_anew_as_told)
{
    leave_file(journal);
    g_autofree char *rm = g_strdup_printf("rm -r '%s'", journal);
    sh(rm);
    use_journal(_i ? journal : NULL);
    refused(-ENOLINK, "rm ", NULL);
    do_as_told();
    expect_file();
}
END_TEST

/* ---- fsck ---- */

START_TEST(damaged_database_is_set_aside_where_it_is)
{
    leave_file(journal);
    g_autofree char *to = target(), *current = g_build_filename(to, "CURRENT", NULL);
    ck_assert(g_file_set_contents(current, "nothing\n", -1, NULL));
    refused(-EBADMSG, "fsck --repair", NULL);
    g_clear_pointer(&msg, g_free);
    struct fsck_result result;
    struct fsck_options o = {.cache_dir = fx.cache_dir, .repair = true, .offline = true, .out = stderr};
    ck_assert_int_eq(fs_fsck(&o, &result, &msg), 0);
    ck_assert_uint_eq(result.left, 0);
    g_autofree char *still = target();
    ck_assert_str_eq(still, to);
    ck_assert(has_database(to));
    g_autofree char *aside = g_strdup_printf("ls -d '%s'.damaged-*/CURRENT >/dev/null", to);
    sh(aside);
    expect_file();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("journal_dir");
    TCase *tc = tcase_create("where");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, database_and_reserve_are_in_the_journal_folder);
    tcase_add_test(tc, symlink_is_followed_with_and_without_the_option);
    tcase_add_test(tc, cache_disk_may_go_away_under_an_open_database);
    tcase_add_test(tc, one_journal_folder_serves_several_caches);
    tcase_add_test(tc, reserve_of_a_killed_daemon_goes_with_the_database);
    tcase_add_loop_test(tc, folder_with_the_symlink_is_the_first_of_several, 0, 2);
    tcase_add_test(tc, replaced_first_disk_is_found_in_any_order);
    tcase_add_test(tc, cache_folder_that_moved_keeps_its_database);
    tcase_add_loop_test(tc, journal_in_the_cache_is_refused, 0, 4);
    tcase_add_loop_test(tc, journal_folder_that_others_may_enter_is_refused, 0, 2);
    tcase_add_test(tc, database_on_the_cache_disk_is_moved_by_hand_as_told);
    tcase_add_test(tc, symlink_to_elsewhere_than_the_option_says_is_refused);
    tcase_add_loop_test(tc, journal_disk_that_is_not_mounted_is_never_started_anew, 0, 2);
    tcase_add_loop_test(tc, journal_that_is_lost_for_good_is_made_anew_as_told, 0, 2);
    tcase_add_test(tc, damaged_database_is_set_aside_where_it_is);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
