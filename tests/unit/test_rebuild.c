/* Intents beside the data become records again. The cache folder is made by hand: data files with user.sluice.intent. */
#include "base/log.h"
#include "cache.h"
#include "fs/rebuild.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static char *dir;
static int lock_fd = -1;
static struct meta *m;
static FILE *out;

static void setup(void)
{
    char *msg = NULL;
    bool fresh = false;
    (void)log_open(NULL, LOG_LEVEL_ERR);
    dir = g_dir_make_tmp("sluice-unit-XXXXXX", NULL);
    ck_assert_ptr_nonnull(dir);
    ck_assert_int_eq(cache_dir_prepare(dir, &lock_fd, &msg), 0);
    ck_assert_int_eq(meta_open(dir, "identity", &m, &fresh, &msg), 0);
    ck_assert(fresh);
    out = fopen("/dev/null", "w");
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static void teardown(void)
{
    meta_close(m);
    close(lock_fd);
    fclose(out);
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS); /* what is left in /tmp hurts no other test */
    g_free(dir);
}

/* A data file of `size` bytes with an intent (NULL: none). */
static void put_file(uint64_t vid, size_t size, const char *intent)
{
    g_autofree char *path = g_strdup_printf("%s/data/%02x/%016" PRIx64, dir, (unsigned)(vid & 0xff), vid);
    g_autofree char *data = g_malloc0(size + 1);
    memset(data, 'd', size);
    ck_assert(g_file_set_contents(path, data, (gssize)size, NULL));
    if (intent)
        ck_assert_int_eq(setxattr(path, "user.sluice.intent", intent, strlen(intent), 0), 0);
}

static char *intent(const char *path, unsigned size, const char *state, unsigned seq, const char *more)
{
    return g_strdup_printf(
        "{\"path\":\"%s\",\"mode\":33184,\"uid\":7,\"gid\":8,\"mtime_ns\":123456789,\"size\":%u,\"gen\":3,"
        "\"state\":\"%s\",\"seq\":%u,\"base_etag\":\"\",\"ino\":%u%s}",
        path, size, state, seq, 1000 + seq, more);
}

static void put_intent(uint64_t vid, const char *path, const char *state, unsigned seq, const char *more)
{
    g_autofree char *text = intent(path, 10, state, seq, more);
    put_file(vid, 10, text);
}

static unsigned rebuild(void)
{
    unsigned n = 12345;
    ck_assert_int_eq(fs_rebuild(m, dir, out, &n), 0);
    return n;
}

/* The name at a path; fails the test when it is not there. */
static struct meta_dentry name_at(const char *path)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    struct meta_dentry d = {0};
    uint64_t at = META_ROOT_INO;
    for (unsigned i = 0; parts[i]; i++) {
        meta_dentry_clear(&d);
        int r = meta_dentry_get(m, at, parts[i], &d);
        ck_assert_msg(r == 0, "%s of %s: %s", parts[i], path, err_name(r));
        at = d.ino;
    }
    return d;
}

static struct meta_inode inode_at(const char *path)
{
    struct meta_dentry d = name_at(path);
    struct meta_inode in;
    ck_assert_int_eq(meta_inode_get(m, d.ino, &in), 0);
    meta_dentry_clear(&d);
    return in;
}

struct ops {
    unsigned n;
    char names[256];
    uint32_t state;
};

static int on_op(void *ctx, const struct meta_op *op)
{
    struct ops *o = ctx;
    o->n++;
    o->state = op->state;
    g_strlcat(o->names, op->name, sizeof(o->names));
    g_strlcat(o->names, " ", sizeof(o->names));
    return 0;
}

static struct ops journal(void)
{
    struct ops o = {0};
    ck_assert_int_eq(meta_op_each(m, on_op, &o), 0);
    return o;
}

START_TEST(sealed_file_gets_directories_inode_name_and_journal_record)
{
    put_intent(0x1234, "run%201/ckpt/step.pt", "sealed", 5, "");
    ck_assert_uint_eq(rebuild(), 1);
    struct meta_inode in = inode_at("run 1/ckpt/step.pt");
    ck_assert_uint_eq(in.vid, 0x1234);
    ck_assert_uint_eq(in.ino, 1005);
    ck_assert_uint_eq(in.content, CONTENT_SEALED);
    ck_assert_uint_eq(in.mode, S_IFREG | 0640);
    ck_assert_uint_eq(in.uid, 7);
    ck_assert_uint_eq(in.gid, 8);
    ck_assert_uint_eq(in.size, 10);
    ck_assert_uint_eq(in.gen, 3);
    ck_assert_int_eq(in.mtime_ns, 123456789);
    meta_inode_clear(&in);
    in = inode_at("run 1/ckpt");
    ck_assert(S_ISDIR(in.mode));
    ck_assert_uint_eq(in.flags & (INODE_DIR_LOCAL | INODE_DIR_LISTED), 0);
    meta_inode_clear(&in);
    struct meta_cached c;
    ck_assert_int_eq(meta_cached_get(m, 0x1234, &c), 0);
    ck_assert_uint_eq(c.flags, CACHED_DIRTY | CACHED_COMPLETE);
    struct meta_dentry d = name_at("run 1/ckpt/step.pt");
    ck_assert_uint_ne(d.op_seq, 0);
    ck_assert_uint_eq(d.flags & DENTRY_UPSTREAM, 0);
    meta_dentry_clear(&d);
    struct ops o = journal();
    ck_assert_uint_eq(o.n, 1);
    ck_assert_uint_eq(o.state, OPS_QUEUED);
}
END_TEST

START_TEST(journal_has_the_order_of_closing)
{
    put_intent(30, "d/latest", "closing", 9, "");
    put_intent(31, "d/b", "sealed", 7, "");
    put_intent(32, "d/a", "sealed", 8, "");
    ck_assert_uint_eq(rebuild(), 3);
    struct ops o = journal();
    ck_assert_str_eq(o.names, "b a latest ");
}
END_TEST

START_TEST(object_at_the_path_is_remembered)
{
    put_file(
        40, 10,
        "{\"path\":\"x\",\"mode\":33188,\"size\":10,\"gen\":1,\"state\":\"sealed\",\"seq\":1,\"base_etag\":\"abc\",\"ino\":50}");
    ck_assert_uint_eq(rebuild(), 1);
    struct meta_dentry d = name_at("x");
    ck_assert(d.flags & DENTRY_UPSTREAM);
    ck_assert_str_eq(d.uetag.s, "abc");
    meta_dentry_clear(&d);
}
END_TEST

START_TEST(open_file_is_kept_but_not_journalled)
{
    put_intent(41, "x", "open", 0, "");
    ck_assert_uint_eq(rebuild(), 1);
    struct meta_inode in = inode_at("x");
    ck_assert_uint_eq(in.content, CONTENT_OPEN);
    struct ops o = journal();
    ck_assert_uint_eq(o.n, 0);
    g_autofree char *name = g_strdup_printf("open/%016" PRIx64, in.ino);
    GBytes *value = NULL;
    ck_assert_int_eq(meta_value_get(m, name, &value), 0);
    g_bytes_unref(value);
    meta_inode_clear(&in);
}
END_TEST

START_TEST(partial_file_is_quarantined_and_parked)
{
    put_intent(42, "x", "sealed", 3, ",\"partial\":true");
    ck_assert_uint_eq(rebuild(), 1);
    struct meta_inode in = inode_at("x");
    ck_assert_uint_eq(in.content, CONTENT_QUARANTINED);
    meta_inode_clear(&in);
    struct ops o = journal();
    ck_assert_uint_eq(o.n, 1);
    ck_assert_uint_eq(o.state, OPS_PARKED);
}
END_TEST

START_TEST(file_of_another_size_than_when_closed_is_quarantined)
{
    g_autofree char *text = intent("x", 11, "sealed", 3, "");
    put_file(43, 10, text);
    ck_assert_uint_eq(rebuild(), 1);
    struct meta_inode in = inode_at("x");
    ck_assert_uint_eq(in.content, CONTENT_QUARANTINED);
    ck_assert_uint_eq(in.size, 10);
    meta_inode_clear(&in);
}
END_TEST

START_TEST(unreadable_intent_keeps_the_file_under_another_name)
{
    static const char *const texts[] = {"not json",
                                        "{}",
                                        "{\"path\":\"../x\",\"state\":\"sealed\"}",
                                        "{\"path\":\"a//b\",\"state\":\"sealed\"}",
                                        "{\"path\":\"/x\",\"state\":\"sealed\"}",
                                        "[1]"};
    for (unsigned i = 0; i < G_N_ELEMENTS(texts); i++)
        put_file(0xa0 + i, 10, texts[i]);
    ck_assert_uint_eq(rebuild(), G_N_ELEMENTS(texts));
    for (unsigned i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_autofree char *name = g_strdup_printf("recovered-%x", 0xa0 + i);
        struct meta_inode in = inode_at(name);
        ck_assert_uint_eq(in.content, CONTENT_QUARANTINED);
        meta_inode_clear(&in);
    }
}
END_TEST

START_TEST(two_files_of_one_name_are_both_kept)
{
    put_intent(0x51, "x", "sealed", 4, "");
    put_intent(0x50, "x", "sealed", 5, "");
    ck_assert_uint_eq(rebuild(), 2);
    struct meta_inode first = inode_at("x"), second = inode_at("x.recovered-50");
    ck_assert_uint_eq(first.vid, 0x51);
    ck_assert_uint_eq(second.vid, 0x50);
    meta_inode_clear(&first);
    meta_inode_clear(&second);
}
END_TEST

START_TEST(file_below_a_file_gets_another_directory)
{
    put_intent(0x52, "x", "sealed", 4, "");
    put_intent(0x53, "x/y", "sealed", 5, "");
    ck_assert_uint_eq(rebuild(), 2);
    struct meta_inode in = inode_at("x.recovered-53/y");
    ck_assert_uint_eq(in.vid, 0x53);
    meta_inode_clear(&in);
}
END_TEST

START_TEST(numbers_in_use_are_never_given_again)
{
    put_intent(900000, "x", "sealed", 70000, "");
    ck_assert_uint_eq(rebuild(), 1);
    ck_assert_uint_gt(meta_next_ino(m), 900000);
    ck_assert_uint_gt(meta_next_seq(m), 70000);
}
END_TEST

START_TEST(second_run_finds_nothing_to_do)
{
    put_intent(60, "d/x", "sealed", 1, "");
    put_intent(61, "d/y", "open", 0, "");
    ck_assert_uint_eq(rebuild(), 2);
    ck_assert_uint_eq(rebuild(), 0);
    struct ops o = journal();
    ck_assert_uint_eq(o.n, 1);
}
END_TEST

START_TEST(clean_files_are_left_alone)
{
    put_file(70, 10, NULL);
    ck_assert_uint_eq(rebuild(), 0);
    struct meta_cached c;
    ck_assert_int_eq(meta_cached_get(m, 70, &c), -ENOENT);
}
END_TEST

START_TEST(path_of_any_bytes_comes_back)
{
    put_intent(71, "%FF%01/%25a%22", "sealed", 1, "");
    ck_assert_uint_eq(rebuild(), 1);
    struct meta_inode in = inode_at("\xff\x01/%a\"");
    ck_assert_uint_eq(in.vid, 71);
    meta_inode_clear(&in);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rebuild");
    TCase *tc = tcase_create("rebuild");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, sealed_file_gets_directories_inode_name_and_journal_record);
    tcase_add_test(tc, journal_has_the_order_of_closing);
    tcase_add_test(tc, object_at_the_path_is_remembered);
    tcase_add_test(tc, open_file_is_kept_but_not_journalled);
    tcase_add_test(tc, partial_file_is_quarantined_and_parked);
    tcase_add_test(tc, file_of_another_size_than_when_closed_is_quarantined);
    tcase_add_test(tc, unreadable_intent_keeps_the_file_under_another_name);
    tcase_add_test(tc, two_files_of_one_name_are_both_kept);
    tcase_add_test(tc, file_below_a_file_gets_another_directory);
    tcase_add_test(tc, numbers_in_use_are_never_given_again);
    tcase_add_test(tc, second_run_finds_nothing_to_do);
    tcase_add_test(tc, clean_files_are_left_alone);
    tcase_add_test(tc, path_of_any_bytes_comes_back);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
