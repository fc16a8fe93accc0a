/* The alarm over closed files that do not get into the store. Without FUSE; the publisher rests, as if the store were away. */
#include "base/clock.h"
#include "fs/content.h"
#include "fs/overdue.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <string.h>

#define HOUR_NS (3600 * NS_PER_S)

static struct fs_fixture fx;
static char *log_path;

static void setup(void)
{
    fs_fixture_init(&fx);
    log_path = g_build_filename(fx.dir, "log", NULL);
    fx.cfg.overdue_ns = HOUR_NS;
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    log_close();
    g_free(log_path);
    fs_fixture_fini(&fx);
}

static struct inode *open_and_write(const char *path)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "2", 1, 0);
    return in;
}

static void close_written(struct inode *in)
{
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

static void write_again(const char *path)
{
    INODE_REF in = open_and_write(path);
    close_written(in);
}

/* The path of what is overdue, and its age; NULL: nothing is. */
static char *find(int64_t *ret_age_s)
{
    struct overdue o;
    overdue_find(fx.fs, &o);
    ck_assert_int_eq(o.path != NULL, o.age_s > 0);
    *ret_age_s = o.age_s;
    return o.path;
}

static void expect(const char *path, int64_t age_s)
{
    int64_t age = 0;
    g_autofree char *found = find(&age);
    ck_assert_pstr_eq(found, path);
    ck_assert_int_ge(age, age_s);
    ck_assert_int_lt(age, age_s + 60);
}

START_TEST(oldest_closed_file_counts_once_it_has_waited_so_long)
{
    fs_fixture_write(&fx, "d/first", "1", 1);
    clock_fake_advance(HOUR_NS / 2);
    fs_fixture_write(&fx, "d/second", "1", 1);
    clock_fake_advance(HOUR_NS / 2 - 60 * NS_PER_S);
    expect(NULL, 0);
    clock_fake_advance(60 * NS_PER_S);
    expect("d/first", 3600);
    write_again("d/first");
    expect(NULL, 0);
    clock_fake_advance(HOUR_NS / 2);
    expect("d/second", 3600);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    expect("d/second", 3600);
}
END_TEST

START_TEST(what_is_open_or_has_its_bytes_in_the_store_does_not_count)
{
    fs_fixture_object(&fx, "there", "1", 1);
    fs_fixture_change_attributes(&fx, fs_fixture_ino(&fx, "there"));
    INODE_REF dir = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &(struct node_spec){META_ROOT_INO, "dir", S_IFDIR | 0755}, false, &dir), 0);
    fs_fixture_write(&fx, "written", "1", 1);
    INODE_REF in = open_and_write("written");
    clock_fake_advance(2 * HOUR_NS);
    expect(NULL, 0);
    close_written(in);
    clock_fake_advance(2 * HOUR_NS);
    expect("written", 2 * 3600);
}
END_TEST

/* How often the log has said it, after the thread looked each minute for so long. */
static unsigned said_after(unsigned minutes)
{
    g_autofree char *text = NULL;
    for (unsigned i = 0; i < minutes; i++) {
        clock_fake_advance(60 * NS_PER_S);
        overdue_watch(fx.fs);
        overdue_watch(fx.fs);
    }
    ck_assert(g_file_get_contents(log_path, &text, NULL, NULL));
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, "not in the store")); at++) {
        ck_assert_ptr_nonnull(strstr(at, "path='d/a'"));
        n++;
    }
    return n;
}

START_TEST(log_says_it_once_an_hour_and_as_soon_as_it_is_so_again)
{
    ck_assert_int_eq(log_open(log_path, LOG_LEVEL_WARN), 0);
    fs_fixture_write(&fx, "d/a", "1", 1);
    ck_assert_uint_eq(said_after(59), 0);
    ck_assert_uint_eq(said_after(3), 1);
    ck_assert_uint_eq(said_after(50), 1);
    ck_assert_uint_eq(said_after(12), 2);
    write_again("d/a");
    ck_assert_uint_eq(said_after(30), 2);
    ck_assert_uint_eq(said_after(31), 3);
}
END_TEST

START_TEST(zero_asks_for_no_alarm)
{
    fx.cfg.overdue_ns = 0;
    ck_assert_int_eq(log_open(log_path, LOG_LEVEL_WARN), 0);
    fs_fixture_write(&fx, "d/a", "1", 1);
    ck_assert_uint_eq(said_after(120), 0);
    expect(NULL, 0);
    fx.cfg.overdue_ns = HOUR_NS;
    ck_assert_uint_eq(said_after(1), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("overdue");
    TCase *tc = tcase_create("overdue");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, oldest_closed_file_counts_once_it_has_waited_so_long);
    tcase_add_test(tc, what_is_open_or_has_its_bytes_in_the_store_does_not_count);
    tcase_add_test(tc, log_says_it_once_an_hour_and_as_soon_as_it_is_so_again);
    tcase_add_test(tc, zero_asks_for_no_alarm);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
