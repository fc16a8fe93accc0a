/* fsck over a cache of two disks, and over a disk that cannot be read. */
#include "base/cleanup.h"
#include "cache/cache_internal.h"
#include "cache_sums.h"
#include "fs/content.h"
#include "fs/fsck.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND 1u /* what records call the second disk */

static struct fs_fixture fx;
static char *second; /* its folder */
static char *report; /* of the last fsck */
static struct fsck_result result;

/* A file that the disk does not give: how many looks at it, reads of it, and of a folder lists, are still to fail, with that errno. */
static struct {
    char *path;
    int err, looks, reads, lists;
} sick;

static bool fails(const char *path, int *left)
{
    if (*left <= 0 || strcmp(path, sick.path) != 0)
        return false;
    --*left;
    errno = sick.err;
    return true;
}

/* These take the place of the library's for the whole program. */
int lstat(const char *path, struct stat *ret)
{
    return fails(path, &sick.looks) ? -1 : fstatat(AT_FDCWD, path, ret, AT_SYMLINK_NOFOLLOW);
}

ssize_t pread(int fd, void *buf, size_t len, off_t off)
{
    ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
    g_autofree char *link = sick.reads > 0 ? g_strdup_printf("/proc/self/fd/%d", fd) : NULL;
    g_autofree char *path = link ? g_file_read_link(link, NULL) : NULL;
    return path && fails(path, &sick.reads) ? -1 : real(fd, buf, len, off);
}

struct dirent *readdir(DIR *d)
{
    struct dirent *(*real)(DIR *) = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");
    g_autofree char *link = sick.lists > 0 ? g_strdup_printf("/proc/self/fd/%d", dirfd(d)) : NULL;
    g_autofree char *path = link ? g_file_read_link(link, NULL) : NULL;
    return path && fails(path, &sick.lists) ? NULL : real(d);
}

static void setup(void)
{
    fs_fixture_init(&fx);
    second = g_build_filename(fx.dir, "second", NULL);
    g_free(fx.cfg.cache_dir);
    fx.cfg.cache_dir = g_strconcat(fx.cache_dir, ":", second, NULL);
}

static void teardown(void)
{
    sick.looks = sick.reads = sick.lists = 0;
    g_clear_pointer(&sick.path, g_free);
    g_clear_pointer(&report, g_free);
    g_clear_pointer(&second, g_free);
    fs_fixture_fini(&fx);
}

static int try_fsck(bool repair, char **ret_msg)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct fsck_options o = {.cache_dir = fx.cache_dir, .repair = repair, .out = out};
    int r = fs_fsck(&o, &result, ret_msg);
    fclose(out);
    g_free(report);
    report = g_strdup(text);
    free(text);
    return r;
}

static int fsck(bool repair)
{
    char *msg = NULL;
    int r = try_fsck(repair, &msg);
    ck_assert_msg(r >= 0, "%s: %s", err_name(r), msg ? msg : "no message");
    return (int)result.left;
}

static bool says(const char *what)
{
    return strstr(report, what) != NULL;
}

static char *data_path(const char *dir, uint64_t vid)
{
    return g_strdup_printf("%s/data/%02x/%016" PRIx64, dir, (unsigned)(vid & 0xff), vid);
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

/* The cache record: changed so that it names that disk, or removed. */
static void set_record(uint64_t vid, bool there, uint32_t tier)
{
    struct meta_cached c;
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    ck_assert_int_eq(meta_cached_get(m, vid, &c), 0);
    c.tier = tier;
    if (there)
        meta_cached_put(b, &c);
    else
        meta_cached_del(b, vid);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
}

/* The disk of the record; -1: there is none. */
static int recorded_disk(uint64_t vid)
{
    struct meta_cached c;
    struct meta *m = open_meta();
    int r = meta_cached_get(m, vid, &c);
    meta_close(m);
    ck_assert(r == 0 || r == -ENOENT);
    return r == 0 ? (int)c.tier : -1;
}

static void run(const char *cmd, const char *from, const char *to)
{
    g_autofree char *line = g_strdup_printf("%s '%s' '%s'", cmd, from, to);
    ck_assert_int_eq(system(line), 0);
}

static bool go_on(void *ctx)
{
    return true;
}

/* The file "x", unpublished, in a closed folder; sums: of its bytes are in the database. Its vid. */
static uint64_t leave_dirty(bool sums)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "x", "hello", 5);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    uint64_t vid = in->rec.vid;
    if (sums) {
        struct cfile *cf = NULL;
        g_autoptr(GBytes) made = NULL;
        struct meta_batch *b = meta_batch_new(fx.fs->meta);
        ck_assert_int_eq(content_use(in, &cf), 0);
        ck_assert_int_eq(cache_sums_read(cf, in->rec.gen, go_on, NULL, &made), 0);
        cache_sums_put(b, vid, made);
        ck_assert_int_eq(meta_commit(b, true), 0);
        meta_batch_free(b);
        content_unuse(in, cf);
    }
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    return vid;
}

/* The same, with its data file on that disk, and no copy on the other one. */
static uint64_t leave_dirty_at(uint32_t disk, bool sums)
{
    uint64_t vid = leave_dirty(sums);
    int at = recorded_disk(vid);
    ck_assert(at == 0 || at == (int)SECOND);
    g_autofree char *from = data_path(at ? second : fx.cache_dir, vid);
    g_autofree char *to = data_path(disk ? second : fx.cache_dir, vid);
    if (at != (int)disk)
        run("mv", from, to);
    set_record(vid, true, disk);
    return vid;
}

static void assert_content(enum content_state expected)
{
    fs_fixture_open(&fx);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_uint_eq(in->rec.content, expected);
    struct cfile *cf = NULL;
    char buf[6] = "";
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_read(cf, buf, 5, 0), 5);
    content_unuse(in, cf);
    ck_assert_str_eq(buf, "hello");
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
}

/* ---- bytes that the cache has no record of ---- */

START_TEST(bytes_without_a_record_are_found_on_any_disk)
{
    uint64_t vid = leave_dirty_at((uint32_t)_i, false);
    set_record(vid, false, 0);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_msg(says("x: the cache has no record of its bytes") && !says("gone"), "%s", report);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_msg(!says("quarantine"), "%s", report);
    ck_assert_int_eq(recorded_disk(vid), _i);
    ck_assert_int_eq(fsck(false), 0);
    assert_content(CONTENT_SEALED);
}
END_TEST

/* 1: the disk changes them meanwhile, which their checksums tell. */
START_TEST(bytes_that_may_be_on_a_disk_that_is_not_there_are_not_given_up)
{
    g_autofree char *away = g_build_filename(fx.dir, "away", NULL);
    uint64_t vid = leave_dirty_at(SECOND, true);
    g_autofree char *path = data_path(second, vid);
    set_record(vid, false, 0);
    ck_assert_int_eq(rename(second, away), 0);
    ck_assert_int_eq(fsck(true), 1);
    ck_assert_msg(says("x: unpublished") && says(second) && says("bring it back") && !says("quarantine"), "%s", report);
    ck_assert_int_eq(rename(away, second), 0);
    if (_i == 1)
        ck_assert(g_file_set_contents(path, "jello", 5, NULL));
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(recorded_disk(vid), SECOND);
    ck_assert_msg(says("wrong checksum") == (_i == 1), "%s", report);
    if (_i == 0)
        assert_content(CONTENT_SEALED);
}
END_TEST

/* Neither disk has it, and both are there. */
START_TEST(bytes_that_no_disk_has_are_gone)
{
    uint64_t vid = leave_dirty_at(SECOND, false);
    g_autofree char *path = data_path(second, vid);
    set_record(vid, false, 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(fsck(false), 1);
    ck_assert_msg(says("x: unpublished, but its bytes are gone; repair will: quarantine it"), "%s", report);
}
END_TEST

/* ---- disks that only a lost database knew ---- */

static char *disks_file(void)
{
    g_autofree char *path = g_build_filename(fx.cache_dir, "disks", NULL);
    char *text = NULL;
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    return text;
}

static void G_GNUC_PRINTF(1, 2) write_disks(const char *fmt, ...)
{
    g_autofree char *path = g_build_filename(fx.cache_dir, "disks", NULL);
    va_list ap;
    va_start(ap, fmt);
    g_autofree char *text = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
}

static void write_id(const char *uuid)
{
    g_autofree char *path = g_build_filename(second, "tier", NULL), *text = g_strdup_printf("%s %u\n", uuid, SECOND);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
}

static char *uuid_now(void)
{
    struct meta *m = open_meta();
    char *uuid = g_strdup(meta_uuid(m));
    meta_close(m);
    return uuid;
}

static void lose_database(void)
{
    g_autofree char *meta = g_build_filename(fx.cache_dir, "meta", NULL);
    run("rm -rf", meta, meta);
}

static void assert_line(const char *uuid)
{
    g_autofree char *text = disks_file(), *line = g_strdup_printf("%s %u %s\n", uuid, SECOND, second);
    ck_assert_str_eq(text, line);
}

START_TEST(further_disk_is_written_down_beside_the_database)
{
    g_autofree char *file = g_build_filename(fx.cache_dir, "disks", NULL), *uuid = NULL;
    fs_fixture_open(&fx);
    fs_fixture_close(&fx);
    uuid = uuid_now();
    assert_line(uuid);
    ck_assert_int_eq(unlink(file), 0); /* as an older version leaves it */
    fs_fixture_open(&fx);
    fs_fixture_close(&fx);
    assert_line(uuid);
    write_disks("# by hand\n");
    fs_fixture_open(&fx);
    fs_fixture_close(&fx);
    g_autofree char *text = disks_file(), *expected = g_strdup_printf("# by hand\n%s %u %s\n", uuid, SECOND, second);
    ck_assert_str_eq(text, expected);
}
END_TEST

/* A line that was added by hand, of a disk whose number another one has. */
START_TEST(disk_with_the_number_of_another_one_is_left_alone)
{
    leave_dirty_at(SECOND, false);
    g_autofree char *uuid = uuid_now(), *text = NULL;
    g_autofree char *other = g_build_filename(fx.dir, "other", NULL), *copy = g_build_filename(other, "tier", NULL);
    ck_assert_int_eq(mkdir(other, 0700), 0);
    ck_assert(g_file_set_contents(copy, "theirs 1\n", -1, NULL));
    write_disks("%s 1 %s\ntheirs 1 %s\n", uuid, second, other);
    ck_assert_int_eq(fsck(true), 1);
    ck_assert_msg(says("number 1 is that of the disk") && says(second) && says(other), "%s", report);
    ck_assert(g_file_get_contents(copy, &text, NULL, NULL));
    ck_assert_str_eq(text, "theirs 1\n");
    assert_content(CONTENT_SEALED);
}
END_TEST

/* And is looked through by a mount as by fsck. */
START_TEST(database_that_is_lost_takes_no_disk_along)
{
    leave_dirty_at(SECOND, false);
    g_autofree char *old = uuid_now();
    lose_database();
    if (_i) {
        ck_assert_int_gt(fsck(false), 0);
        ck_assert_msg(says(second) && says("take it over"), "%s", report);
        ck_assert_int_eq(fsck(true), 0);
        ck_assert_msg(says("brought back: x"), "%s", report);
        ck_assert_int_eq(fsck(false), 0);
    }
    assert_content(CONTENT_SEALED);
    g_autofree char *uuid = uuid_now();
    ck_assert_str_ne(uuid, old);
    assert_line(uuid);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

/* What a kill leaves behind each step: nothing done; the line has both; the id is the new one. Then the database may be lost once more. */
START_TEST(disk_is_taken_over_from_every_step_that_was_reached)
{
    int step = _i % 3;
    bool again = _i >= 3;
    leave_dirty_at(SECOND, false);
    g_autofree char *old = uuid_now(), *fresh = NULL;
    lose_database();
    fresh = uuid_now();
    ck_assert_str_ne(fresh, old);
    if (step >= 1)
        write_disks("%s,%s %u %s\n", old, fresh, SECOND, second);
    if (step >= 2)
        write_id(fresh);
    if (again)
        lose_database();
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    assert_content(CONTENT_SEALED);
    g_autofree char *uuid = uuid_now();
    assert_line(uuid);
}
END_TEST

START_TEST(lost_disk_that_is_not_there_stays_a_finding)
{
    g_autofree char *away = g_build_filename(fx.dir, "away", NULL);
    leave_dirty_at(SECOND, false);
    lose_database();
    ck_assert_int_eq(rename(second, away), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_gt(fsck(i > 0), 0);
        ck_assert_msg(says(second) && says("is not there") && says("bring it back"), "%s", report);
    }
    ck_assert_int_eq(rename(away, second), 0);
    ck_assert_int_eq(fsck(true), 0);
    assert_content(CONTENT_SEALED);
}
END_TEST

static void assert_text(const char *name, const char *text)
{
    char buf[16] = "";
    struct cfile *cf = NULL;
    INODE_REF in = fs_fixture_inode(&fx, name);
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof(buf) - 1, 0), (ssize_t)strlen(text));
    content_unuse(in, cf);
    ck_assert_str_eq(buf, text);
}

/* The database of meanwhile gave the number of the disk's file to another one. 0: for a mount, 1: for fsck. */
START_TEST(number_that_was_given_again_takes_no_bytes_away)
{
    g_autofree char *away = g_build_filename(fx.dir, "away", NULL), *both = g_strdup(fx.cfg.cache_dir);
    uint64_t vid = leave_dirty_at(SECOND, false), given = 0;
    lose_database();
    ck_assert_int_eq(rename(second, away), 0);
    g_free(fx.cfg.cache_dir);
    fx.cfg.cache_dir = g_strdup(fx.cache_dir);
    fs_fixture_open(&fx);
    for (unsigned i = 0; given < vid; i++) {
        g_autofree char *name = g_strdup_printf("later%u", i);
        fs_fixture_write(&fx, name, name, strlen(name));
        INODE_REF in = fs_fixture_inode(&fx, name);
        given = in->rec.vid;
    }
    fs_fixture_close(&fx);
    ck_assert_int_eq(rename(away, second), 0);
    g_free(fx.cfg.cache_dir);
    fx.cfg.cache_dir = g_steal_pointer(&both);
    if (_i)
        ck_assert_int_eq(fsck(true), 0);
    assert_content(CONTENT_SEALED);
    fs_fixture_open(&fx);
    assert_text("later0", "later0");
    fs_fixture_close(&fx);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

/* Without the database nothing tells which of them is right. */
START_TEST(two_files_of_one_number_and_no_database_are_both_kept)
{
    bool same = _i == 0;
    uint64_t vid = leave_dirty_at(0, false);
    g_autofree char *here = data_path(fx.cache_dir, vid), *there = data_path(second, vid);
    run("cp -a", here, there);
    if (!same)
        ck_assert(truncate(there, 0) == 0 && truncate(there, 5) == 0);
    lose_database();
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_msg(says("quarantined") == !same, "%s", report);
    fs_fixture_open(&fx);
    assert_text("x", "hello");
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_uint_eq(in->rec.content, same ? CONTENT_SEALED : CONTENT_QUARANTINED);
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

/* It is a cache of its own meanwhile. */
START_TEST(lost_disk_that_has_a_database_is_left_alone)
{
    leave_dirty_at(SECOND, false);
    lose_database();
    g_autofree char *meta = g_build_filename(second, "meta", NULL), *before = NULL, *after = NULL;
    g_autofree char *id = g_build_filename(second, "tier", NULL);
    ck_assert_int_eq(mkdir(meta, 0700), 0);
    ck_assert(g_file_get_contents(id, &before, NULL, NULL));
    ck_assert_int_eq(fsck(true), 1);
    ck_assert_msg(says("a cache of its own"), "%s", report);
    ck_assert(g_file_get_contents(id, &after, NULL, NULL));
    ck_assert_str_eq(before, after);
    ck_assert_int_eq(rmdir(meta), 0);
    ck_assert_int_eq(fsck(true), 0);
    assert_content(CONTENT_SEALED);
}
END_TEST

/* The database knows it, and that it has unpublished bytes. */
START_TEST(disk_that_is_not_there_leaves_a_finding_for_each_unpublished_file)
{
    g_autofree char *away = g_build_filename(fx.dir, "away", NULL);
    leave_dirty_at(SECOND, false);
    ck_assert_int_eq(rename(second, away), 0);
    ck_assert_int_eq(fsck(true), 1);
    ck_assert_msg(says("x: unpublished") && says(second) && says("bring it back") && !says("quarantine"), "%s", report);
    ck_assert_int_eq(rename(away, second), 0);
    ck_assert_int_eq(fsck(false), 0);
    assert_content(CONTENT_SEALED);
}
END_TEST

/* ---- two data files of one version ---- */

enum other { SAME_BYTES, OTHER_BYTES, OTHER_LENGTH };

START_TEST(second_copy_of_unpublished_bytes_goes_only_if_it_is_one)
{
    static const char *const bytes[] = {"hello", "he\0\0\0", "he"};
    uint64_t vid = leave_dirty_at(0, false);
    g_autofree char *here = data_path(fx.cache_dir, vid), *there = data_path(second, vid);
    g_autofree char *rescued = g_strdup_printf("%s/rescued/%016" PRIx64, fx.cache_dir, vid), *kept = NULL;
    set_record(vid, true, SECOND);
    ck_assert(g_file_set_contents(there, bytes[_i], _i == OTHER_LENGTH ? 2 : 5, NULL));
    (void)fsck(true);
    ck_assert_int_ne(access(here, F_OK), 0);
    ck_assert_int_eq(access(rescued, F_OK) == 0, _i != SAME_BYTES);
    ck_assert_msg(says("has other bytes there") == (_i != SAME_BYTES), "%s", report);
    if (_i != SAME_BYTES) {
        ck_assert(g_file_get_contents(rescued, &kept, NULL, NULL));
        ck_assert_str_eq(kept, "hello");
    }
}
END_TEST

/* The checksums tell which it is, wherever it is and whatever the record says. */
START_TEST(data_file_with_the_right_bytes_is_taken)
{
    enum { NO_RECORD, RECORD_NAMES_WRONG, RECORD_NAMES_NONE } record = _i % 3;
    uint32_t right = _i < 3;
    uint64_t vid = leave_dirty(true);
    int at = recorded_disk(vid);
    g_autofree char *from = data_path(at ? second : fx.cache_dir, vid);
    g_autofree char *here = data_path(fx.cache_dir, vid), *there = data_path(second, vid);
    if (at != (int)right)
        run("mv", from, right ? there : here);
    set_record(vid, record != NO_RECORD, !right);
    if (record != RECORD_NAMES_NONE)
        ck_assert(g_file_set_contents(right ? here : there, "he\0\0\0", 5, NULL));
    ck_assert_int_gt(fsck(false), 0);
    ck_assert_msg(!says("quarantine"), "%s", report);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_msg(!says("quarantine"), "%s", report);
    ck_assert_int_eq(recorded_disk(vid), right);
    ck_assert_int_eq(fsck(false), 0);
    g_autofree char *rescued = g_strdup_printf("%s/rescued/%016" PRIx64, right ? fx.cache_dir : second, vid);
    ck_assert_int_eq(access(rescued, F_OK) == 0, record != RECORD_NAMES_NONE);
    assert_content(CONTENT_SEALED);
}
END_TEST

START_TEST(different_bytes_that_nothing_tells_apart_are_not_published)
{
    uint64_t vid = leave_dirty_at(0, false);
    g_autofree char *there = data_path(second, vid);
    g_autofree char *rescued = g_strdup_printf("%s/rescued/%016" PRIx64, second, vid), *kept = NULL;
    ck_assert(g_file_set_contents(there, "jello", 5, NULL));
    set_record(vid, false, 0);
    ck_assert_int_gt(fsck(false), 0);
    ck_assert_msg(says("nothing tells which are right; repair will: quarantine it"), "%s", report);
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    ck_assert(g_file_get_contents(rescued, &kept, NULL, NULL));
    ck_assert_str_eq(kept, "jello");
    assert_content(CONTENT_QUARANTINED);
}
END_TEST

/* ---- a disk that cannot be read ---- */

static void make_sick(uint64_t vid, int err)
{
    sick.path = data_path(recorded_disk(vid) ? second : fx.cache_dir, vid);
    sick.err = err;
}

/* 0: the file cannot be looked at, 1: not read, 2: the same, and the file system blames its own checksums. */
START_TEST(bytes_that_cannot_be_read_now_are_not_given_up)
{
    uint64_t vid = leave_dirty(true);
    ck_assert_int_eq(fsck(false), 0);
    make_sick(vid, _i == 2 ? EBADMSG : EIO);
    *(_i ? &sick.reads : &sick.looks) = 1;
    ck_assert_int_eq(fsck(true), 1);
    ck_assert_msg(says("x: unpublished, but its bytes cannot be ") && says("run fsck again") && !says("quarantine"),
                  "%s", report);
    ck_assert_int_eq(fsck(true), 0);
    assert_content(CONTENT_SEALED);
}
END_TEST

/* Its file system says what a damaged database says. */
START_TEST(sick_disk_is_no_damaged_database)
{
    make_sick(leave_dirty(false), EBADMSG);
    sick.looks = INT_MAX;
    g_autofree char *msg = NULL;
    ck_assert_int_eq(try_fsck(true, &msg), -EIO);
    ck_assert_msg(!says("database"), "%s", report);
    ck_assert_ptr_nonnull(strstr(msg, "was broken off"));
    sick.looks = 0;
    ck_assert_int_eq(fsck(true), 0);
    assert_content(CONTENT_SEALED);
}
END_TEST

/* 0: the folder of all data files, 1: the one in which it is. Without the database, so that nothing else knows the file. */
START_TEST(folder_that_cannot_be_listed_to_its_end_is_not_taken_for_empty)
{
    g_autofree char *msg = NULL, *file = data_path(second, leave_dirty_at(SECOND, false)),
                    *dir = g_path_get_dirname(file);
    lose_database();
    sick.path = _i ? g_steal_pointer(&dir) : g_build_filename(second, "data", NULL);
    sick.err = _i ? EIO : EBADMSG;
    sick.lists = INT_MAX;
    ck_assert_int_eq(try_fsck(true, &msg), -EIO);
    sick.lists = 0;
    ck_assert_int_eq(fsck(true), 0);
    assert_content(CONTENT_SEALED);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fsck_disks");
    TCase *tc = tcase_create("fsck_disks");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, bytes_without_a_record_are_found_on_any_disk, 0, 2);
    tcase_add_loop_test(tc, bytes_that_may_be_on_a_disk_that_is_not_there_are_not_given_up, 0, 2);
    tcase_add_test(tc, bytes_that_no_disk_has_are_gone);
    tcase_add_test(tc, further_disk_is_written_down_beside_the_database);
    tcase_add_loop_test(tc, database_that_is_lost_takes_no_disk_along, 0, 2);
    tcase_add_loop_test(tc, disk_is_taken_over_from_every_step_that_was_reached, 0, 6);
    tcase_add_test(tc, disk_with_the_number_of_another_one_is_left_alone);
    tcase_add_test(tc, lost_disk_that_is_not_there_stays_a_finding);
    tcase_add_loop_test(tc, number_that_was_given_again_takes_no_bytes_away, 0, 2);
    tcase_add_loop_test(tc, two_files_of_one_number_and_no_database_are_both_kept, 0, 2);
    tcase_add_test(tc, lost_disk_that_has_a_database_is_left_alone);
    tcase_add_test(tc, disk_that_is_not_there_leaves_a_finding_for_each_unpublished_file);
    tcase_add_loop_test(tc, second_copy_of_unpublished_bytes_goes_only_if_it_is_one, SAME_BYTES, OTHER_LENGTH + 1);
    tcase_add_loop_test(tc, data_file_with_the_right_bytes_is_taken, 0, 6);
    tcase_add_test(tc, different_bytes_that_nothing_tells_apart_are_not_published);
    tcase_add_loop_test(tc, bytes_that_cannot_be_read_now_are_not_given_up, 0, 3);
    tcase_add_test(tc, sick_disk_is_no_damaged_database);
    tcase_add_loop_test(tc, folder_that_cannot_be_listed_to_its_end_is_not_taken_for_empty, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
