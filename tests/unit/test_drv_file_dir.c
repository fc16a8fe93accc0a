/* The directory that a store is in, which others use too: links in it, permissions, what it lacks. */
#include "../../s3/objstore.h"
#include "tests/support/checks.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static struct objstore *st;
static struct objstore_config cfg;
static char *base, *dir, *source; /* base/lake; beside it is what is none of the store's business */

static int reopen(char **ret_msg)
{
    objstore_close(g_steal_pointer(&st));
    return objstore_open(&cfg, &st, ret_msg);
}

static void setup(void)
{
    g_autofree char *msg = NULL;
    base = g_dir_make_tmp("sluice-drv-file-dir-XXXXXX", NULL);
    dir = g_build_filename(base, "lake", NULL);
    source = g_strconcat("file://", dir, NULL);
    cfg = (struct objstore_config){.source = source};
    ck_assert_int_eq(g_mkdir(dir, 0755), 0);
    ck_assert_int_eq(reopen(&msg), 0);
}

static void teardown(void)
{
    g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", base);
    objstore_close(g_steal_pointer(&st));
    ck_assert_int_eq(system(cmd), 0);
    g_free(source);
    g_free(dir);
    g_free(base);
}

static int put(const char *key)
{
    return objstore_put(st, key, "ours", g_str_has_suffix(key, "/") ? 0 : 4, NULL, NULL, NULL);
}

static int count_row(void *ctx, const struct obj_entry *e)
{
    ++*(unsigned *)ctx;
    return 0;
}

static unsigned rows_below(const char *prefix)
{
    struct obj_list_req req = {.prefix = prefix};
    unsigned n = 0;
    ck_assert_int_eq(objstore_list(st, &req, count_row, &n, NULL), 0);
    return n;
}

static void link_to(const char *target, const char *name)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    ck_assert_int_eq(symlink(target, path), 0);
}

static int upload(const char *key)
{
    g_autofree char *id = NULL;
    struct obj_part part = {.number = 1, .size = 1};
    int r = objstore_mpu_create(st, key, NULL, &id);
    if (r == 0)
        r = objstore_mpu_part(st, key, id, "x", &part);
    if (r == 0)
        r = objstore_mpu_complete(st, key, id, &part, 1, NULL, NULL, NULL);
    return r;
}

/* 0: a link to a directory elsewhere, 1: relative, 2: further down. */
START_TEST(no_key_leads_along_a_symbolic_link)
{
    g_autofree char *other = g_build_filename(base, "other", NULL), *secret = g_build_filename(other, "secret", NULL);
    g_autofree char *made = g_build_filename(other, "d", NULL);
    struct obj_info info = {0};
    ck_assert_int_eq(g_mkdir(other, 0755), 0);
    ck_assert_int_eq(g_mkdir(made, 0755), 0);
    ck_assert(g_file_set_contents(secret, "secret", 6, NULL));
    ck_assert_int_eq(put("sub/ours"), 0);
    const char *name = _i == 2 ? "sub/x" : "x";
    link_to(_i == 1 ? "../other" : other, name);
    g_autofree char *key = g_strconcat(name, "/secret", NULL), *new = g_strconcat(name, "/new", NULL);
    g_autofree char *below = g_strconcat(name, "/", NULL), *marker = g_strconcat(name, "/d/", NULL);
    ck_assert_int_eq(objstore_head(st, key, &info), -ENOENT);
    ck_assert_int_eq(objstore_head(st, below, &info), -ENOENT);
    ck_assert_int_eq(objstore_head(st, marker, &info), -ENOENT);
    ck_assert_uint_eq(rows_below(below) + rows_below(marker), 0);
    ck_assert_uint_eq(rows_below(""), 1);
    ck_assert_int_eq(put(new), -ENOTSUP);
    ck_assert_int_eq(put(below), -ENOTSUP);
    ck_assert_int_eq(put(marker), -ENOTSUP);
    ck_assert_int_eq(upload(new), -ENOTSUP);
    ck_assert_int_eq(objstore_copy(st, key, NULL, "copy", NULL, NULL, NULL), -ENOENT);
    ck_assert_int_eq(objstore_copy(st, "sub/ours", NULL, new, NULL, NULL, NULL), -ENOTSUP);
    ck_assert_int_eq(objstore_delete(st, key, NULL), 0);
    ck_assert_int_eq(objstore_delete(st, marker, NULL), 0);
    ck_assert_int_eq(objstore_delete(st, below, NULL), 0);
    ck_assert(g_file_test(secret, G_FILE_TEST_EXISTS) && g_file_test(made, G_FILE_TEST_IS_DIR));
    g_autofree char *there = g_build_filename(other, "new", NULL), *link = g_build_filename(dir, name, NULL);
    ck_assert(!g_file_test(there, G_FILE_TEST_EXISTS) && g_file_test(link, G_FILE_TEST_IS_SYMLINK));
}
END_TEST

enum { LINK_TO_FILE, LINK_TO_DIR, LINK_TO_NOTHING, FIFO, SOCKET, N_KINDS };

static void make_special(const char *path, int kind)
{
    static const char *const to[] = {"file", "d", "nothing"};
    if (kind <= LINK_TO_NOTHING)
        ck_assert_int_eq(symlink(to[kind], path), 0);
    else
        ck_assert_int_eq(mknod(path, (kind == FIFO ? S_IFIFO : S_IFSOCK) | 0600, 0), 0);
}

static void assert_same(const char *path, const struct stat *was)
{
    struct stat now;
    ck_assert_int_eq(lstat(path, &now), 0);
    ck_assert(now.st_ino == was->st_ino && now.st_mode == was->st_mode);
}

/* Somebody else's: no object, so nothing that takes its place tells what it was. */
START_TEST(what_is_no_object_is_not_replaced_by_one)
{
    g_autofree char *path = g_build_filename(dir, "k", NULL), *d = g_build_filename(dir, "d", NULL);
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT}, some = {.kind = OBJ_COND_ETAG, .etag = {"1-2-3"}};
    struct obj_info info = {0};
    struct stat was;
    ck_assert_int_eq(g_mkdir(d, 0755), 0);
    ck_assert_int_eq(put("file"), 0);
    make_special(path, _i);
    ck_assert_int_eq(lstat(path, &was), 0);
    ck_assert_int_eq(put("k"), -ENOTSUP);
    assert_same(path, &was);
    ck_assert_int_eq(objstore_put(st, "k", "", 0, NULL, &absent, NULL), -ENOTSUP);
    ck_assert_int_eq(objstore_put(st, "k", "", 0, NULL, &some, NULL), -ESTALE);
    ck_assert_int_eq(upload("k"), -ENOTSUP);
    assert_same(path, &was);
    ck_assert_int_eq(objstore_copy(st, "file", NULL, "k", NULL, NULL, NULL), -ENOTSUP);
    ck_assert_int_eq(put("k/"), -ENOTSUP);
    ck_assert_int_eq(put("k/below"), -ENOTSUP);
    assert_same(path, &was);
    ck_assert_int_eq(objstore_head(st, "k", &info), -ENOENT);
    ck_assert_int_eq(objstore_head(st, "k/", &info), -ENOENT);
    ck_assert_int_eq(objstore_copy(st, "k", NULL, "k", NULL, NULL, NULL), -ENOENT);
    ck_assert_int_eq(objstore_delete(st, "k", NULL), 0);
    assert_same(path, &was);
    ck_assert_uint_eq(rows_below("k"), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(put("k"), 0);
}
END_TEST

START_TEST(its_own_directory_is_no_symbolic_link)
{
    g_autofree char *msg = NULL, *tmp = g_build_filename(dir, ".sluice-tmp", NULL);
    g_autofree char *aside = g_build_filename(base, "aside", NULL);
    ck_assert_int_eq(rename(tmp, aside), 0);
    link_to(aside, ".sluice-tmp");
    ck_assert_int_lt(put("k"), 0);
    ck_assert_int_lt(reopen(&msg), 0);
    ck_assert_msg(strstr(msg, dir) != NULL, "%s", msg);
}
END_TEST

static unsigned mode_of(const char *name)
{
    struct stat sb;
    g_autofree char *path = g_build_filename(dir, name, NULL);
    ck_assert_msg(stat(path, &sb) == 0, "%s", path);
    return sb.st_mode & 07777;
}

static struct obj_meta with_mode(unsigned mode)
{
    return (struct obj_meta){.posix = {.fields = POSIX_MODE, .mode = S_IFREG | mode}};
}

/* What a daemon keeps to itself in its cache is not what it saves. */
START_TEST(others_find_the_permissions_that_the_store_was_opened_with)
{
    const struct {
        unsigned own, found;
    } rows[] = {{0644, 0644}, {0600, 0600}, {0666, 0644}, {0777, 0644}, {0440, 0640}};
    g_autofree char *msg = NULL, *theirs = g_build_filename(dir, "theirs", NULL);
    mode_t before = umask(077);
    cfg.dir_mode = 0755;
    ck_assert_int_eq(reopen(&msg), 0);
    ck_assert(g_file_set_contents(theirs, "x", 1, NULL));
    ck_assert_int_eq(chmod(theirs, 0664), 0);
    ck_assert_int_eq(put("a/b/f"), 0);
    ck_assert_int_eq(put("m/n/"), 0);
    ck_assert_int_eq(upload("u/p"), 0);
    ck_assert_int_eq(objstore_copy(st, "theirs", NULL, "kept", NULL, NULL, NULL), 0);
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        const struct obj_meta meta = with_mode(rows[i].own);
        g_autofree char *id = NULL;
        struct obj_part part = {.number = 1, .size = 1};
        ck_assert_int_eq(objstore_put(st, "put", "x", 1, &meta, NULL, NULL), 0);
        ck_assert_int_eq(objstore_copy(st, "theirs", NULL, "copy", &meta, NULL, NULL), 0);
        ck_assert_int_eq(objstore_mpu_create(st, "joined", &meta, &id), 0);
        ck_assert_int_eq(objstore_mpu_part(st, "joined", id, "x", &part), 0);
        ck_assert_int_eq(objstore_mpu_complete(st, "joined", id, &part, 1, NULL, NULL, NULL), 0);
        ck_assert_uint_eq(mode_of("put"), rows[i].found);
        ck_assert_uint_eq(mode_of("copy"), rows[i].found);
        ck_assert_uint_eq(mode_of("joined"), rows[i].found);
    }
    (void)umask(before);
    const char *dirs[] = {"a", "a/b", "m", "m/n", "u"};
    for (size_t i = 0; i < G_N_ELEMENTS(dirs); i++)
        ck_assert_msg(mode_of(dirs[i]) == 0755, "%s: %o", dirs[i], mode_of(dirs[i]));
    ck_assert_uint_eq(mode_of("a/b/f"), 0644);
    ck_assert_uint_eq(mode_of("u/p"), 0644);
    ck_assert_uint_eq(mode_of("kept"), 0664);
}
END_TEST

/* 0: a new one; 1: of before. */
START_TEST(who_may_write_to_the_root_may_work_in_it)
{
    g_autofree char *msg = NULL, *tmp = g_build_filename(dir, ".sluice-tmp", NULL);
    g_autofree char *lock = g_build_filename(tmp, "lock", NULL);
    mode_t before = umask(077);
    objstore_close(g_steal_pointer(&st));
    if (_i == 0)
        ck_assert(unlink(lock) == 0 && rmdir(tmp) == 0);
    else
        ck_assert(chmod(lock, 0600) == 0 && chmod(tmp, 0700) == 0);
    ck_assert_int_eq(chmod(dir, 01777), 0);
    ck_assert_int_eq(reopen(&msg), 0);
    (void)umask(before);
    ck_assert_uint_eq(mode_of(".sluice-tmp"), 01777);
    GDir *d = g_dir_open(tmp, 0, NULL);
    for (const char *name; (name = g_dir_read_name(d)) != NULL;) {
        g_autofree char *path = g_build_filename(".sluice-tmp", name, NULL);
        ck_assert_msg(mode_of(path) == 0666, "%s", name); /* lock, live-ID */
    }
    g_dir_close(d);
    ck_assert_int_eq(chmod(dir, 0750), 0);
    ck_assert_int_eq(reopen(&msg), 0);
    ck_assert_uint_eq(mode_of(".sluice-tmp"), 0750);
    ck_assert_uint_eq(mode_of(".sluice-tmp/lock"), 0640);
}
END_TEST

/* A directory on which something else is to be mounted, and is not yet. */
START_TEST(directory_that_was_never_used_is_not_the_store_that_is_known)
{
    g_autofree char *msg = NULL, *aside = g_build_filename(base, "aside", NULL);
    g_autofree char *tmp = g_build_filename(dir, ".sluice-tmp", NULL);
    cfg.known = objstore_known_is;
    cfg.known_ctx = source;
    cfg.read_only = _i == 1;
    ck_assert_int_eq(put("k"), 0);
    ck_assert_int_eq(reopen(&msg), 0);
    objstore_close(g_steal_pointer(&st));
    ck_assert_int_eq(rename(dir, aside), 0);
    ck_assert_int_eq(g_mkdir(dir, 0755), 0);
    for (int i = 0; i < 2; i++) {
        g_clear_pointer(&msg, g_free);
        ck_assert_int_eq(reopen(&msg), -ENODEV);
        ck_assert_msg(strstr(msg, dir) && strstr(msg, "is it mounted?"), "%s", msg);
        ck_assert(!g_file_test(tmp, G_FILE_TEST_EXISTS));
    }
    ck_assert(rmdir(dir) == 0 && rename(aside, dir) == 0);
    ck_assert_int_eq(reopen(&msg), 0);
    ck_assert_uint_eq(rows_below(""), 1);
    cfg.known_ctx = "file:///another";
    objstore_close(g_steal_pointer(&st));
    ck_assert_int_eq(rename(dir, aside), 0);
    ck_assert_int_eq(g_mkdir(dir, 0755), 0);
    ck_assert_int_eq(reopen(&msg), 0);
}
END_TEST

static int no_mkdir; /* errno that making a directory gives */
static bool no_xattrs;

int mkdirat(int fd, const char *path, mode_t mode)
{
    errno = no_mkdir;
    return no_mkdir ? -1 : (int)syscall(SYS_mkdirat, fd, path, mode);
}

int fsetxattr(int fd, const char *name, const void *value, size_t len, int flags)
{
    errno = EOPNOTSUPP;
    return no_xattrs ? -1 : (int)syscall(SYS_fsetxattr, fd, name, value, len, flags);
}

/* Of a read-only export, or of somebody else. */
START_TEST(directory_that_takes_nothing_is_a_store_to_read_from)
{
    static const int why[] = {EROFS, EACCES};
    g_autofree char *msg = NULL, *file = g_build_filename(dir, "d", "f", NULL), *d = g_path_get_dirname(file);
    g_autofree char *tmp = g_build_filename(dir, ".sluice-tmp", NULL), *lock = g_build_filename(tmp, "lock", NULL);
    ck_assert(g_mkdir(d, 0755) == 0 && g_file_set_contents(file, "x", 1, NULL));
    objstore_close(g_steal_pointer(&st));
    ck_assert(unlink(lock) == 0 && rmdir(tmp) == 0);
    no_mkdir = why[_i];
    ck_assert_int_eq(reopen(&msg), -why[_i]);
    g_clear_pointer(&msg, g_free);
    cfg.read_only = true;
    cfg.known = objstore_known_is;
    for (int known = 0; known < 2; known++) {
        struct obj_info info = {0};
        cfg.known_ctx = known ? source : "";
        ck_assert_int_eq(reopen(&msg), 0);
        ck_assert_int_eq(objstore_check(st, &msg), 0);
        ck_assert_uint_eq(rows_below(""), 1);
        ck_assert_int_eq(objstore_head(st, "d/f", &info), 0);
        ck_assert_int_eq(objstore_mpu_list(st, "", NULL, NULL), 0);
    }
    no_mkdir = 0;
}
END_TEST

START_TEST(directory_without_attributes_is_refused_unless_it_is_only_read)
{
    g_autofree char *msg = NULL;
    ck_assert_int_eq(objstore_check(st, &msg), 0);
    no_xattrs = true;
    ck_assert_int_eq(objstore_check(st, &msg), -EOPNOTSUPP);
    ck_assert_msg(strstr(msg, "--read-only") && strstr(msg, dir), "%s", msg);
    g_clear_pointer(&msg, g_free);
    cfg.read_only = true;
    ck_assert_int_eq(reopen(&msg), 0);
    ck_assert_int_eq(objstore_check(st, &msg), 0);
    no_xattrs = false;
}
END_TEST

START_TEST(upload_that_cannot_be_made_leaves_nothing)
{
    const struct obj_meta meta = with_mode(0644);
    g_autofree char *id = NULL, *tmp = g_build_filename(dir, ".sluice-tmp", NULL);
    no_xattrs = true;
    ck_assert_int_eq(objstore_mpu_create(st, "k", &meta, &id), -EOPNOTSUPP);
    no_xattrs = false;
    GDir *d = g_dir_open(tmp, 0, NULL);
    for (const char *name; (name = g_dir_read_name(d)) != NULL;)
        ck_assert_msg(!g_str_has_prefix(name, "mpu-"), "%s", name);
    g_dir_close(d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_file_dir");
    TCase *t = tcase_create("dir");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, no_key_leads_along_a_symbolic_link, 0, 3);
    tcase_add_loop_test(t, what_is_no_object_is_not_replaced_by_one, 0, N_KINDS);
    tcase_add_test(t, its_own_directory_is_no_symbolic_link);
    tcase_add_test(t, others_find_the_permissions_that_the_store_was_opened_with);
    tcase_add_loop_test(t, who_may_write_to_the_root_may_work_in_it, 0, 2);
    tcase_add_loop_test(t, directory_that_was_never_used_is_not_the_store_that_is_known, 0, 2);
    tcase_add_loop_test(t, directory_that_takes_nothing_is_a_store_to_read_from, 0, 2);
    tcase_add_test(t, directory_without_attributes_is_refused_unless_it_is_only_read);
    tcase_add_test(t, upload_that_cannot_be_made_leaves_nothing);
    suite_add_tcase(s, t);
    return run_suite(s);
}
