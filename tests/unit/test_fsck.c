/* fsck over cache folders that a file system left behind, then damaged by hand. */
#include "base/cleanup.h"
#include "cache/cache_internal.h"
#include "fs/content.h"
#include "fs/fsck.h"
#include "fs/publish.h"
#include "fs/rebuild.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define INTENT "user.sluice.intent"

static struct fs_fixture fx;
static char *report; /* of the last fsck */
static struct fsck_result result;

static void setup(void)
{
    fs_fixture_init(&fx);
}

static void teardown(void)
{
    g_free(report);
    report = NULL;
    fs_fixture_fini(&fx);
}

static int fsck(bool repair)
{
    char *text = NULL, *msg = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct fsck_options o = {.cache_dir = fx.cache_dir, .repair = repair, .out = out};
    int r = fs_fsck(&o, &result, &msg);
    fclose(out);
    g_free(report);
    report = g_strdup(text);
    free(text);
    ck_assert_msg(r >= 0, "%s: %s", err_name(r), msg ? msg : "no message");
    return (int)result.left;
}

static char *data_path(uint64_t vid)
{
    return g_strdup_printf("%s/data/%02x/%016" PRIx64, fx.cache_dir, (unsigned)(vid & 0xff), vid);
}

/* One unpublished file of 5 bytes in a closed folder; returns its vid. */
static uint64_t leave_dirty(const char *path)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, path, "hello", 5);
    struct inode *in = fs_fixture_inode(&fx, path);
    uint64_t vid = in->rec.vid;
    inode_put(in);
    fs_fixture_close(&fx);
    return vid;
}

static uint64_t leave_dirty_file(void)
{
    return leave_dirty("d/x");
}

static void lose_database(void)
{
    g_autofree char *from = g_build_filename(fx.cache_dir, "meta", NULL);
    g_autofree char *to = g_build_filename(fx.dir, "meta-away", NULL);
    ck_assert_int_eq(rename(from, to), 0);
}

/* The database of the closed folder. */
static struct meta *open_meta(void)
{
    g_autofree char *path = g_build_filename(fx.cache_dir, "link", NULL);
    g_autofree char *text = NULL;
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    text[strcspn(text, "\n")] = '\0';
    struct meta *m = NULL;
    bool fresh;
    char *msg = NULL;
    ck_assert_int_eq(meta_open(fx.cache_dir, text, &m, &fresh, &msg), 0);
    return m;
}

static char *read_file(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    char *buf = g_malloc0(64);
    ck_assert_int_ge(cache_file_read(cf, buf, 63, 0), 0);
    content_unuse(in, cf);
    return buf;
}

START_TEST(folder_left_by_a_clean_stop_has_no_findings)
{
    (void)leave_dirty_file();
    ck_assert_int_eq(fsck(false), 0);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

START_TEST(what_is_not_in_the_store_yet_is_named)
{
    fs_fixture_object(&fx, "old", "1", 1);
    (void)leave_dirty_file();
    ck_assert_int_eq(fsck(false), 0);
    ck_assert_str_eq(report, "d: not yet published\nd/x: not yet published\n");
    fs_fixture_open(&fx);
    INODE_REF old = fs_fixture_inode(&fx, "old");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "old"), 0);
    inode_put(g_steal_pointer(&old));
    fs_fixture_close(&fx);
    ck_assert_int_eq(fsck(false), 0);
    ck_assert_ptr_nonnull(strstr(report, "old: not yet removed from the store\n"));
}
END_TEST

START_TEST(folder_in_use_is_refused)
{
    fs_fixture_open(&fx);
    char *msg = NULL;
    struct fsck_options o = {.cache_dir = fx.cache_dir, .out = stderr};
    ck_assert_int_eq(fs_fsck(&o, &result, &msg), -EBUSY);
    ck_assert_ptr_nonnull(msg);
    g_free(msg);
}
END_TEST

START_TEST(folder_that_is_none_of_ours_is_refused_and_not_written_to)
{
    char *msg = NULL;
    g_autofree char *nowhere = g_build_filename(fx.dir, "nowhere", NULL);
    struct fsck_options o = {.cache_dir = nowhere, .repair = true, .out = stderr};
    ck_assert_int_lt(fs_fsck(&o, &result, &msg), 0);
    ck_assert_ptr_nonnull(msg);
    ck_assert_int_ne(access(nowhere, F_OK), 0);
    g_clear_pointer(&msg, g_free);
    g_autofree char *theirs = g_build_filename(nowhere, "theirs", NULL);
    ck_assert_int_eq(mkdir(nowhere, 0700), 0);
    ck_assert(g_file_set_contents(theirs, "1", 1, NULL));
    ck_assert_int_lt(fs_fsck(&o, &result, &msg), 0);
    ck_assert_ptr_nonnull(strstr(msg, "not a cache folder"));
    ck_assert_int_eq(remove(theirs), 0);
    ck_assert_int_eq(rmdir(nowhere), 0); /* nothing was added to it */
    g_free(msg);
}
END_TEST

START_TEST(lost_database_is_found_and_unpublished_files_come_back)
{
    (void)leave_dirty_file();
    g_autofree char *from = g_build_filename(fx.cache_dir, "meta", NULL);
    g_autofree char *to = g_build_filename(fx.dir, "meta-away", NULL);
    ck_assert_int_eq(rename(from, to), 0);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_ne(access(from, F_OK), 0);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_msg(strstr(report, "brought back: d/x"), "%s", report);
    ck_assert(result.bucket_asked); /* where it is stands beside the database */
    ck_assert_int_eq(fsck(false), 0);
    fs_fixture_open(&fx);
    g_autofree char *text = read_file("d/x");
    ck_assert_str_eq(text, "hello");
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 2000 && !fs_fixture_object_exists(&fx, "d/x"); i++)
        g_usleep(5000);
    ck_assert(fs_fixture_object_exists(&fx, "d/x"));
}
END_TEST

START_TEST(mount_with_a_lost_database_brings_unpublished_files_back)
{
    (void)leave_dirty_file();
    lose_database();
    fs_fixture_open(&fx);
    g_autofree char *text = read_file("d/x");
    ck_assert_str_eq(text, "hello");
}
END_TEST

/* The database is new, but no file that was found got into it, or some did. */
START_TEST(mount_ends_a_rebuild_that_was_cut_off)
{
    (void)leave_dirty_file();
    g_autofree char *path = data_path(leave_dirty("d/e"));
    lose_database();
    unsigned n = 0;
    char text[4096] = "";
    ssize_t len = getxattr(path, INTENT, text, sizeof(text));
    ck_assert_int_gt(len, 0);
    ck_assert_int_eq(removexattr(path, INTENT), 0);
    struct meta *m = open_meta();
    if (_i)
        ck_assert_int_eq(fs_rebuild(m, fx.cache_dir, NULL, &n), 0);
    ck_assert_uint_eq(n, _i ? 1 : 0);
    meta_close(m);
    ck_assert_int_eq(setxattr(path, INTENT, text, (size_t)len, 0), 0);
    fs_fixture_open(&fx);
    g_autofree char *first = read_file("d/x"), *second = read_file("d/e");
    ck_assert_str_eq(first, "hello");
    ck_assert_str_eq(second, "hello");
}
END_TEST

/* A file closed and left open by its last handle, so that its intent is the one of the close. */
static uint64_t leave_closing_file(bool synced)
{
    fs_fixture_open(&fx);
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "x", .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "hello", 5, 0);
    ck_assert_int_eq(content_flush(in, synced), 0);
    uint64_t vid = in->rec.vid;
    fs_fixture_close(&fx);
    return vid;
}

/* The intent says that it was written in another boot. */
static void age_intent(uint64_t vid)
{
    g_autofree char *path = data_path(vid);
    char text[4096] = "";
    ck_assert_int_gt(getxattr(path, INTENT, text, sizeof(text) - 1), 0);
    char *boot = strstr(text, "\"boot\":\"");
    ck_assert_ptr_nonnull(boot);
    boot[strlen("\"boot\":\"")] = 'X';
    ck_assert_int_eq(setxattr(path, INTENT, text, strlen(text), 0), 0);
}

START_TEST(lost_database_after_a_reboot_keeps_what_was_synced_at_close)
{
    bool synced = _i == 1;
    age_intent(leave_closing_file(synced));
    lose_database();
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_uint_eq(in->rec.content, synced ? CONTENT_SEALED : CONTENT_QUARANTINED);
}
END_TEST

START_TEST(file_removed_while_open_does_not_come_back_without_the_database)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "x", "hello", 5);
    struct inode *in = fs_fixture_inode(&fx, "x"); /* never let go */
    ck_assert_int_eq(content_open(in, true, false), 0);
    g_autofree char *path = data_path(in->rec.vid);
    ck_assert_int_gt(getxattr(path, INTENT, NULL, 0), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "x"), 0);
    fs_fixture_close(&fx);
    ck_assert_int_eq(access(path, F_OK), 0);
    lose_database();
    fs_fixture_open(&fx);
    struct inode *none = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, "x", &none), -ENOENT);
}
END_TEST

START_TEST(unpublished_file_without_its_bytes_is_quarantined)
{
    g_autofree char *path = data_path(leave_dirty_file());
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_ge(fsck(false), 1);
    ck_assert_msg(strstr(report, "d/x: unpublished, but its bytes are gone"), "%s", report);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    ck_assert_msg(strstr(report, "d/x: quarantined"), "%s", report);
}
END_TEST

START_TEST(truncated_unpublished_file_is_quarantined_and_never_published)
{
    g_autofree char *path = data_path(leave_dirty_file());
    ck_assert_int_eq(truncate(path, 2), 0);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_eq(fsck(true), 0);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "d/x");
    ck_assert_uint_eq(in->rec.content, CONTENT_QUARANTINED);
    struct publish_counts left;
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    publish_count(fx.fs->pub, "d/x", &left);
    ck_assert_uint_eq(left.parked, 1);
    ck_assert(!fs_fixture_object_exists(&fx, "d/x"));
}
END_TEST

/* Written on through another descriptor: the next start makes it OPEN, with the bytes that are there. */
START_TEST(closing_file_that_grew_is_left_to_the_start)
{
    g_autofree char *path = data_path(leave_closing_file(true));
    ck_assert_int_eq(truncate(path, 9), 0);
    ck_assert_int_eq(fsck(true), 0);
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_uint_eq(in->rec.content, CONTENT_OPEN);
    ck_assert_uint_eq(in->rec.size, 9);
}
END_TEST

START_TEST(data_file_of_nobody_is_removed_by_repair_only)
{
    (void)leave_dirty_file();
    g_autofree char *path = data_path(0xabcdef);
    ck_assert(g_file_set_contents(path, "x", 1, NULL));
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    fs_fixture_open(&fx);
    g_autofree char *text = read_file("d/x");
    ck_assert_str_eq(text, "hello");
}
END_TEST

START_TEST(unpublished_data_without_a_cache_record_is_linked_again)
{
    uint64_t vid = leave_dirty_file();
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    meta_cached_del(b, vid);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    fs_fixture_open(&fx);
    g_autofree char *text = read_file("d/x");
    ck_assert_str_eq(text, "hello");
}
END_TEST

static void leave_dying(uint64_t vid)
{
    struct meta_cached rec = {.vid = vid, .flags = CACHED_DYING};
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    meta_cached_put(b, &rec);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
}

static void copy_data(const char *path, uint64_t vid)
{
    g_autofree char *to = data_path(vid), *cmd = g_strdup_printf("cp -a '%s' '%s'", path, to);
    ck_assert_int_eq(system(cmd), 0);
}

/* Removed, and brought back by a power loss, beside one that the database lost. */
START_TEST(removed_data_is_not_brought_back)
{
    g_autofree char *path = data_path(leave_dirty_file()), *removed = data_path(0xabcdef);
    leave_dying(0xabcdee);
    ck_assert_int_eq(fsck(false), 0);
    leave_dying(0xabcdef);
    copy_data(path, 0xabcdef);
    ck_assert_int_eq(fsck(false), 0);
    copy_data(path, 0xabcdf0);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_eq(fsck(true), 0);
    fs_fixture_open(&fx);
    g_autofree char *text = read_file("d/x.recovered-abcdf0");
    ck_assert_str_eq(text, "hello");
    struct inode *none = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, "d/x.recovered-abcdef", &none), -ENOENT);
    ck_assert_int_ne(access(removed, F_OK), 0);
}
END_TEST

START_TEST(cache_record_without_data_is_removed)
{
    fs_fixture_object(&fx, "clean", "12345", 5);
    fs_fixture_open(&fx);
    g_autofree char *text = read_file("clean");
    ck_assert_str_eq(text, "12345");
    struct inode *in = fs_fixture_inode(&fx, "clean");
    g_autofree char *path = data_path(in->rec.vid);
    inode_put(in);
    fs_fixture_close(&fx);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

START_TEST(journal_record_of_no_name_is_removed)
{
    (void)leave_dirty_file();
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    char name[] = "ghost";
    struct meta_op op = {.seq = meta_next_seq(m), .kind = OP_SYNC, .parent = META_ROOT_INO, .name = name};
    meta_op_put(b, &op);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_msg(strstr(report, "ghost"), "%s", report);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

/* It is gone, or belongs to another name. */
START_TEST(lost_journal_record_is_written_again)
{
    (void)leave_dirty_file();
    char other[] = "ghost";
    struct meta *m = open_meta();
    struct meta_dentry d = {0}, x = {0};
    ck_assert_int_eq(meta_dentry_get(m, META_ROOT_INO, "d", &d), 0);
    ck_assert_int_eq(meta_dentry_get(m, d.ino, "x", &x), 0);
    struct meta_batch *b = meta_batch_new(m);
    struct meta_op op = {.seq = x.op_seq, .kind = OP_SYNC, .parent = META_ROOT_INO, .name = other};
    meta_op_del(b, x.op_seq);
    if (_i)
        meta_op_put(b, &op);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_dentry_clear(&d);
    meta_dentry_clear(&x);
    meta_close(m);
    ck_assert_int_eq(fsck(false), _i ? 2 : 1);
    ck_assert_int_eq(fsck(true), 0);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 2000 && !fs_fixture_object_exists(&fx, "d/x"); i++)
        g_usleep(5000);
    ck_assert(fs_fixture_object_exists(&fx, "d/x"));
}
END_TEST

START_TEST(wrong_link_counts_and_names_without_inode_are_repaired)
{
    (void)leave_dirty_file();
    struct meta *m = open_meta();
    struct meta_dentry d = {0}, x = {0};
    ck_assert_int_eq(meta_dentry_get(m, META_ROOT_INO, "d", &d), 0);
    ck_assert_int_eq(meta_dentry_get(m, d.ino, "x", &x), 0);
    struct meta_inode in;
    ck_assert_int_eq(meta_inode_get(m, x.ino, &in), 0);
    in.nlink = 5;
    char name[] = "void";
    struct meta_dentry none = {.parent = META_ROOT_INO, .name = name, .ino = 999999, .type = S_IFREG};
    struct meta_batch *b = meta_batch_new(m);
    meta_inode_put(b, &in);
    meta_dentry_put(b, &none);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_inode_clear(&in);
    meta_dentry_clear(&d);
    meta_dentry_clear(&x);
    meta_close(m);
    ck_assert_int_eq(fsck(false), 2);
    ck_assert_msg(strstr(report, "d/x: 1 names, but a link count of 5"), "%s", report);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

/* ---- a damaged database ---- */

enum damage { WAL_FLIPPED, SST_FLIPPED, MANIFEST_FLIPPED, CURRENT_GONE };

/* Flips a byte in the middle of each file of the database whose name begins or ends so; number of files. */
static unsigned flip_files(const char *prefix, const char *suffix)
{
    g_autofree char *meta = g_build_filename(fx.cache_dir, "meta", NULL);
    g_autoptr(GDir) d = g_dir_open(meta, 0, NULL);
    unsigned n = 0;
    for (const char *name; (name = g_dir_read_name(d));) {
        g_autofree char *path = g_build_filename(meta, name, NULL);
        struct stat st;
        char c;
        if (!g_str_has_prefix(name, prefix) || !g_str_has_suffix(name, suffix) || stat(path, &st) < 0 ||
            st.st_size < 40)
            continue;
        int fd = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_eq(pread(fd, &c, 1, st.st_size / 3), 1);
        c = (char)(c ^ 0x40);
        ck_assert_int_eq(pwrite(fd, &c, 1, st.st_size / 3), 1);
        ck_assert_int_eq(close(fd), 0);
        n++;
    }
    return n;
}

static void damage(enum damage what)
{
    g_autofree char *current = g_build_filename(fx.cache_dir, "meta", "CURRENT", NULL);
    if (what == SST_FLIPPED || what == MANIFEST_FLIPPED)
        meta_close(open_meta()); /* what the log held goes into a file */
    if (what == CURRENT_GONE)
        ck_assert_int_eq(unlink(current), 0);
    else
        ck_assert_uint_ge(flip_files(what == MANIFEST_FLIPPED ? "MANIFEST" : "", what == WAL_FLIPPED   ? ".log"
                                                                                 : what == SST_FLIPPED ? ".sst"
                                                                                                       : ""),
                          1);
}

static unsigned n_listed(const char *dir)
{
    g_autoptr(GPtrArray) names = NULL;
    INODE_REF in = fs_fixture_inode(&fx, dir);
    ck_assert_int_eq(meta_dentry_list(fx.fs->meta, in->ino, &names), 0);
    return names->len;
}

/* 0: another file has that name; 1: nobody has; 2: the same, and it is the only record of its file. */
START_TEST(name_listed_where_it_does_not_stand_is_put_right)
{
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    char gone[] = "gone";
    struct meta_dentry here = {0}, there = {0};
    fs_fixture_object(&fx, "a/x", "hello", 5);
    fs_fixture_object(&fx, "b/y", "there", 5);
    fs_fixture_open(&fx);
    inode_put(fs_fixture_inode(&fx, "a/x"));
    inode_put(fs_fixture_inode(&fx, "b/y"));
    fs_fixture_close(&fx);
    struct meta *m = open_meta();
    struct meta_dentry a = {0}, b = {0};
    ck_assert_int_eq(meta_dentry_get(m, META_ROOT_INO, "a", &a), 0);
    ck_assert_int_eq(meta_dentry_get(m, META_ROOT_INO, "b", &b), 0);
    ck_assert_int_eq(meta_dentry_get(m, a.ino, "x", &here), 0);
    ck_assert_int_eq(meta_dentry_get(m, b.ino, "y", &there), 0);
    struct meta_batch *batch = meta_batch_new(m);
    struct meta_dentry stray = _i == 2 ? here : there; /* these share their strings */
    stray.parent = a.ino;
    stray.name = _i == 0 ? here.name : gone;
    struct meta_dentry last = stray;
    last.id = 0;
    if (_i == 2)
        meta_dentry_del(batch, &here);
    meta_dentry_put(batch, &stray);
    meta_dentry_put(batch, _i == 0 ? &here : &last);
    if (_i > 0)
        meta_dentry_del(batch, &last);
    ck_assert_int_eq(meta_commit(batch, true), 0);
    meta_batch_free(batch);
    meta_close(m);
    meta_dentry_clear(&a);
    meta_dentry_clear(&b);
    meta_dentry_clear(&here);
    meta_dentry_clear(&there);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(n_listed("a"), 1);
    ck_assert_uint_eq(n_listed("b"), 1);
    inode_put(fs_fixture_inode(&fx, _i == 2 ? "a/gone" : "a/x"));
}
END_TEST

/* The only record of a file, at a name that another one has: who does what is said gets it back. */
START_TEST(name_that_another_file_took_is_given_back_once_it_is_free)
{
    struct meta_dentry x = {0}, y = {0};
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    fs_fixture_object(&fx, "x", "hello", 5);
    fs_fixture_object(&fx, "y", "there", 5);
    fs_fixture_open(&fx);
    inode_put(fs_fixture_inode(&fx, "x"));
    uint64_t ino = fs_fixture_ino(&fx, "y");
    fs_fixture_close(&fx);
    struct meta *m = open_meta();
    ck_assert_int_eq(meta_dentry_get(m, META_ROOT_INO, "x", &x), 0);
    ck_assert_int_eq(meta_dentry_get(m, META_ROOT_INO, "y", &y), 0);
    struct meta_batch *b = meta_batch_new(m);
    struct meta_dentry stray = y; /* shares the strings */
    stray.name = x.name;
    meta_dentry_del(b, &y);
    meta_dentry_put(b, &stray);
    meta_dentry_put(b, &x);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
    meta_dentry_clear(&x);
    meta_dentry_clear(&y);
    ck_assert_int_eq(fsck(true), 1);
    ck_assert_msg(strstr(report, "the name is another file's; rename that one in the mount, then repair"), "%s",
                  report);
    fs_fixture_open(&fx);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "x", META_ROOT_INO, "z", 0), 0);
    fs_fixture_close(&fx);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "x"), ino);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "z"), 0);
}
END_TEST

START_TEST(damaged_database_is_refused_by_the_mount_and_rescued)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "d/x", "hello", 5);
    for (unsigned i = 0; i < 50; i++) { /* so that the middle of a file is in the middle of records */
        g_autofree char *name = g_strdup_printf("d/f%u", i);
        fs_fixture_write(&fx, name, "1", 1);
    }
    fs_fixture_close(&fx);
    damage((enum damage)_i);
    char *msg = NULL;
    const struct fs_setup set = {.cfg = &fx.cfg, .session = fx.session};
    ck_assert_int_lt(fs_open(&set, &fx.fs, &msg), 0);
    fx.fs = NULL;
    ck_assert_ptr_nonnull(msg);
    ck_assert_msg(strstr(msg, fx.cache_dir) && strstr(msg, "`sluice fsck --repair "), "%s", msg);
    g_free(msg);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_msg(strstr(report, "the damaged database is now "), "%s", report);
    ck_assert_int_eq(fsck(false), 0);
    fs_fixture_open(&fx);
    g_autofree char *text = read_file("d/x");
    ck_assert_str_eq(text, "hello");
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(fs_fixture_object_exists(&fx, "d/x"));
    ck_assert(fs_fixture_object_exists(&fx, "d/f49"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fsck");
    TCase *tc = tcase_create("fsck");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, folder_left_by_a_clean_stop_has_no_findings);
    tcase_add_test(tc, what_is_not_in_the_store_yet_is_named);
    tcase_add_test(tc, folder_in_use_is_refused);
    tcase_add_test(tc, folder_that_is_none_of_ours_is_refused_and_not_written_to);
    tcase_add_test(tc, lost_database_is_found_and_unpublished_files_come_back);
    tcase_add_test(tc, mount_with_a_lost_database_brings_unpublished_files_back);
    tcase_add_loop_test(tc, mount_ends_a_rebuild_that_was_cut_off, 0, 2);
    tcase_add_loop_test(tc, lost_database_after_a_reboot_keeps_what_was_synced_at_close, 0, 2);
    tcase_add_test(tc, file_removed_while_open_does_not_come_back_without_the_database);
    tcase_add_test(tc, unpublished_file_without_its_bytes_is_quarantined);
    tcase_add_test(tc, truncated_unpublished_file_is_quarantined_and_never_published);
    tcase_add_test(tc, closing_file_that_grew_is_left_to_the_start);
    tcase_add_test(tc, data_file_of_nobody_is_removed_by_repair_only);
    tcase_add_test(tc, unpublished_data_without_a_cache_record_is_linked_again);
    tcase_add_test(tc, removed_data_is_not_brought_back);
    tcase_add_test(tc, cache_record_without_data_is_removed);
    tcase_add_test(tc, journal_record_of_no_name_is_removed);
    tcase_add_loop_test(tc, lost_journal_record_is_written_again, 0, 2);
    tcase_add_test(tc, wrong_link_counts_and_names_without_inode_are_repaired);
    tcase_add_loop_test(tc, name_listed_where_it_does_not_stand_is_put_right, 0, 3);
    tcase_add_test(tc, name_that_another_file_took_is_given_back_once_it_is_free);
    tcase_add_loop_test(tc, damaged_database_is_refused_by_the_mount_and_rescued, WAL_FLIPPED, CURRENT_GONE + 1);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
