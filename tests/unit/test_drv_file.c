/* What the file driver asks of the disk and what it makes of the disk's errors: some system calls go through this file. */
#include "../../s3/objstore.h"
#include "tests/support/checks.h"

#include <check.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static struct objstore *st;
static char *dir;
static GString *calls;            /* "sync INODE", "rename", one a line */
static const char *fail_call;     /* this one fails with EIO, once */
static unsigned fail_later;       /* but not the first so many times */
static char *late_file;           /* appears when a directory was read to its end; owned */
static void (*before_lock)(void); /* is called before the next commit has the lock: what another node did meanwhile */
static const char
    *overwrite; /* is written to the source in place when the first byte of it was copied; "" cuts it off there */

static bool fails(const char *call)
{
    if (!fail_call || strcmp(fail_call, call) != 0)
        return false;
    if (fail_later > 0) {
        fail_later--;
        return false;
    }
    fail_call = NULL;
    errno = EIO;
    return true;
}

int fsync(int fd)
{
    struct stat sb;
    if (calls && fstat(fd, &sb) == 0)
        g_string_append_printf(calls, "sync %llu\n", (unsigned long long)sb.st_ino);
    return (int)syscall(SYS_fsync, fd);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    if (calls)
        g_string_append(calls, "rename\n");
    return fails("renameat") ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int flock(int fd, int operation)
{
    void (*other)(void) = before_lock;
    before_lock = NULL;
    if (other)
        other();
    return (int)syscall(SYS_flock, fd, operation);
}

ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t len, unsigned flags)
{
    const char *text = g_steal_pointer(&overwrite);
    ssize_t n = syscall(SYS_copy_file_range, in, from, out, to, text ? 1 : len, flags);
    if (!text)
        return n;
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}}; /* another time than it had, however fast this is */
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", in);
    int fd = open(path, O_WRONLY | (*text ? 0 : O_TRUNC));
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert(futimens(fd, times) == 0 && close(fd) == 0);
    return n;
}

struct dirent *readdir(DIR *d)
{
    struct dirent *(*real)(DIR *) = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");
    struct dirent *e = fails("readdir") ? NULL : real(d);
    g_autofree char *late = e ? NULL : g_steal_pointer(&late_file);
    if (late)
        ck_assert(g_file_set_contents(late, "late", 4, NULL));
    return e;
}

int fstatat(int fd, const char *path, struct stat *ret, int flags)
{
    int (*real)(int, const char *, struct stat *, int) =
        (int (*)(int, const char *, struct stat *, int))dlsym(RTLD_NEXT, "fstatat64");
    return fails("fstatat") ? -1 : real(fd, path, ret, flags);
}

ssize_t fgetxattr(int fd, const char *name, void *value, size_t size)
{
    ssize_t (*real)(int, const char *, void *, size_t) =
        (ssize_t(*)(int, const char *, void *, size_t))dlsym(RTLD_NEXT, "fgetxattr");
    return fails("fgetxattr") ? -1 : real(fd, name, value, size);
}

static void setup(void)
{
    g_autofree char *msg = NULL;
    dir = g_dir_make_tmp("sluice-drv-file-XXXXXX", NULL);
    g_autofree char *source = g_strconcat("file://", dir, NULL);
    struct objstore_config cfg = {.source = source};
    ck_assert_int_eq(objstore_open(&cfg, &st, &msg), 0);
    calls = g_string_new(NULL);
}

static void teardown(void)
{
    g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", dir);
    objstore_close(st);
    ck_assert_int_eq(system(cmd), 0);
    g_string_free(calls, TRUE);
    calls = NULL;
    g_free(dir);
}

static void put(const char *key, const char *text)
{
    ck_assert_int_eq(objstore_put(st, key, text, strlen(text), NULL, NULL, NULL), 0);
}

static int count_row(void *ctx, const struct obj_entry *e)
{
    ++*(unsigned *)ctx;
    return 0;
}

static int list(unsigned *n)
{
    struct obj_list_req req = {.prefix = ""};
    *n = 0;
    return objstore_list(st, &req, count_row, n, NULL);
}

/* Where in the calls this file or directory was synced last; NULL: never. */
static const char *synced(const char *name)
{
    struct stat sb;
    g_autofree char *path = g_build_filename(dir, name, NULL);
    ck_assert_int_eq(stat(path, &sb), 0);
    g_autofree char *line = g_strdup_printf("sync %llu\n", (unsigned long long)sb.st_ino);
    return g_strrstr(calls->str, line);
}

static void assert_named_after_sync(const char *name, const char *parent)
{
    const char *rename = strstr(calls->str, "rename\n");
    ck_assert_msg(rename && synced(name) && synced(name) < rename, "%s", calls->str);
    ck_assert_msg(synced(parent) > rename, "%s", calls->str);
}

START_TEST(object_is_on_the_disk_before_it_has_its_name)
{
    put("d/e/k", "text");
    assert_named_after_sync("d/e/k", "d/e");
    const char *rename = g_strrstr(calls->str, "rename\n"); /* of d, with e and the object in it */
    ck_assert_msg(synced("d") && synced("d") < rename, "e was made in it: %s", calls->str);
    ck_assert_msg(synced("") > rename, "d was made in it: %s", calls->str);
    g_string_truncate(calls, 0);
    ck_assert_int_eq(objstore_copy(st, "d/e/k", NULL, "copy", NULL, NULL, NULL), 0);
    assert_named_after_sync("copy", "");
}
END_TEST

/* 0: it cannot come to the directories that it needs; 1: these cannot have their name. */
START_TEST(object_that_cannot_have_its_name_leaves_no_directories)
{
    put("d/file", "text");
    struct etag etag;
    ck_assert_int_eq(objstore_put(st, "d/file/e/k", "text", 4, NULL, NULL, &etag), -ENOTSUP);
    fail_call = "renameat";
    fail_later = (unsigned)_i;
    ck_assert_int_eq(objstore_put(st, "a/b/k", "text", 4, NULL, NULL, &etag), -EIO);
    ck_assert_ptr_null(fail_call);
    fail_call = "renameat";
    fail_later = (unsigned)_i;
    ck_assert_int_eq(objstore_put(st, "a/m/", "", 0, NULL, NULL, &etag), -EIO);
    ck_assert_ptr_null(fail_call);
    unsigned n;
    ck_assert_int_eq(list(&n), 0);
    ck_assert_uint_eq(n, 1);
    g_autofree char *above = g_build_filename(dir, "a", NULL), *tmp = g_build_filename(dir, ".sluice-tmp", NULL);
    ck_assert_int_ne(access(above, F_OK), 0);
    g_autoptr(GDir) d = g_dir_open(tmp, 0, NULL);
    for (const char *name; (name = g_dir_read_name(d));)
        ck_assert_msg(strcmp(name, "lock") == 0 || g_str_has_prefix(name, "live-"), "%s", name);
}
END_TEST

START_TEST(joined_upload_is_on_the_disk_before_it_has_its_name)
{
    g_autofree char *id = NULL;
    struct obj_part part = {.number = 1, .size = 4};
    ck_assert_int_eq(objstore_mpu_create(st, "k", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part(st, "k", id, "text", &part), 0);
    g_string_truncate(calls, 0);
    ck_assert_int_eq(objstore_mpu_complete(st, "k", id, &part, 1, NULL, NULL, NULL), 0);
    assert_named_after_sync("k", "");
}
END_TEST

START_TEST(markers_and_deletes_are_on_the_disk)
{
    put("m/", "");
    ck_assert(synced("m") && synced(""));
    put("d/e/k", "text");
    g_string_truncate(calls, 0);
    ck_assert_int_eq(objstore_delete(st, "d/e/k", NULL), 0); /* takes d and d/e along */
    ck_assert(synced(""));
    g_string_truncate(calls, 0);
    ck_assert_int_eq(objstore_delete(st, "m/", NULL), 0);
    ck_assert(synced(""));
}
END_TEST

/* Whoever was to remove them was ended between the file and them. */
START_TEST(directories_that_a_delete_left_go_when_it_is_asked_again)
{
    g_autofree char *gone = g_build_filename(dir, "a", "gone", NULL), *above = g_build_filename(dir, "a", NULL);
    g_autofree char *inside = g_build_filename(dir, "m", NULL);
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    struct etag etag;
    ck_assert_int_eq(g_mkdir_with_parents(gone, 0700), 0);
    ck_assert_int_eq(objstore_put(st, "m/", "", 0, NULL, NULL, &etag), 0);
    ck_assert_int_eq(objstore_delete(st, "a/gone/x/y", &any), 0);
    ck_assert_int_eq(objstore_delete(st, "m/x", &any), 0);
    ck_assert_int_ne(access(above, F_OK), 0);
    ck_assert_int_eq(access(inside, F_OK), 0); /* a marker stays */
}
END_TEST

/* Whoever asked was ended before he had noted it, and asks again. */
START_TEST(delete_of_a_marker_whose_directory_stays_can_be_repeated)
{
    struct obj_cond this = {.kind = OBJ_COND_ETAG};
    unsigned n;
    ck_assert_int_eq(objstore_put(st, "m/", "", 0, NULL, NULL, &this.etag), 0);
    put("m/k", "text");
    ck_assert_int_eq(objstore_delete(st, "m/", &this), 0);
    ck_assert_int_eq(objstore_delete(st, "m/", &this), 0);
    ck_assert_int_eq(objstore_delete(st, "m", &this), 0); /* no object either */
    ck_assert_int_eq(list(&n), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(objstore_delete(st, "m/k", &this), -ESTALE);
}
END_TEST

START_TEST(upload_goes_with_a_part_that_comes_while_it_is_aborted)
{
    g_autofree char *id = NULL;
    struct obj_part part = {.number = 1, .size = 4};
    ck_assert_int_eq(objstore_mpu_create(st, "k", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part(st, "k", id, "text", &part), 0);
    g_autofree char *name = g_strconcat("mpu-", id, NULL);
    g_autofree char *path = g_build_filename(dir, ".sluice-tmp", name, NULL);
    late_file = g_build_filename(path, "p00002", NULL);
    ck_assert_int_eq(objstore_mpu_abort(st, "k", id), 0);
    ck_assert_ptr_null(late_file);
    ck_assert(access(path, F_OK) < 0);
}
END_TEST

START_TEST(upload_that_was_removed_in_part_goes_when_it_is_asked_for)
{
    char *id = NULL;
    struct obj_meta meta = {0};
    struct obj_part part = {.number = 1, .size = 4};
    ck_assert_int_eq(objstore_mpu_create(st, "k", &meta, &id), 0);
    ck_assert_int_eq(objstore_mpu_part(st, "k", id, "text", &part), 0);
    g_autofree char *name = g_strconcat("mpu-", id, NULL);
    g_autofree char *upload = g_build_filename(dir, ".sluice-tmp", name, NULL);
    g_autofree char *key = g_build_filename(upload, "key", NULL);
    ck_assert_int_eq(unlink(key), 0);
    ck_assert_int_eq(objstore_mpu_abort(st, "k", id), -ENOENT);
    ck_assert_int_ne(access(upload, F_OK), 0);
    g_free(id);
}
END_TEST

START_TEST(listing_with_a_disk_error_is_no_short_listing)
{
    static const char *const names[] = {"readdir", "fstatat", "fgetxattr"};
    unsigned n;
    put("a", "1");
    put("m/", "");
    put("z", "1");
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        fail_call = names[i];
        ck_assert_msg(list(&n) == -EIO, "%s", names[i]);
        ck_assert_ptr_null(fail_call);
    }
    ck_assert_int_eq(list(&n), 0);
    ck_assert_uint_eq(n, 3);
}
END_TEST

START_TEST(marker_that_cannot_be_looked_at_is_not_absent)
{
    struct obj_info info = {0};
    put("m/", "");
    fail_call = "fgetxattr";
    ck_assert_int_eq(objstore_head(st, "m/", &info), -EIO);
    ck_assert_int_eq(objstore_head(st, "m/", &info), 0);
    obj_info_clear(&info);
}
END_TEST

START_TEST(parts_of_an_upload_are_all_told_or_none)
{
    g_autofree char *id = NULL;
    g_autofree struct obj_part *parts = NULL;
    size_t n = 0;
    struct obj_part part = {.number = 1, .size = 4};
    ck_assert_int_eq(objstore_mpu_create(st, "k", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part(st, "k", id, "text", &part), 0);
    fail_call = "readdir";
    ck_assert_int_eq(objstore_mpu_parts(st, "k", id, &parts, &n), -EIO);
    fail_call = "fstatat";
    ck_assert_int_eq(objstore_mpu_parts(st, "k", id, &parts, &n), -EIO);
    ck_assert_int_eq(objstore_mpu_parts(st, "k", id, &parts, &n), 0);
    ck_assert_uint_eq(n, 1);
}
END_TEST

/* By somebody who writes it in place: neither version may be taken for what came of it. */
START_TEST(copy_of_an_object_that_changes_meanwhile_is_none)
{
    static const char *const others[] = {"TEXT", ""};
    g_autofree char *id = NULL;
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_mpu_create(st, "k", NULL, &id), 0);
    for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
        struct obj_part part = {.number = 1, .size = 4};
        put("src", "text");
        overwrite = others[i];
        ck_assert_int_eq(objstore_copy(st, "src", NULL, "dst", NULL, NULL, NULL), -ESTALE);
        ck_assert_ptr_null(overwrite);
        ck_assert_int_eq(objstore_head(st, "dst", &info), -ENOENT);
        put("src", "text");
        overwrite = others[i];
        ck_assert_int_eq(objstore_mpu_part_copy(st, "k", id, "src", NULL, 0, &part), -ESTALE);
        ck_assert_ptr_null(overwrite);
    }
    ck_assert_int_eq(objstore_mpu_abort(st, "k", id), 0);
}
END_TEST

static void put_next_version(void)
{
    put("k", "other");
}

static void delete_both(void)
{
    ck_assert_int_eq(objstore_delete(st, "k", NULL), 0);
    ck_assert_int_eq(objstore_delete(st, "m/", NULL), 0);
}

static int copy_over_itself(const char *key, enum obj_cond_kind kind, void (*meanwhile)(void))
{
    struct obj_meta meta = {.posix = {.fields = POSIX_MODE, .mode = S_IFREG | 0600}};
    struct obj_cond cond = {.kind = kind, .etag = {"1-2-3"}};
    before_lock = meanwhile;
    int r = objstore_copy(st, key, NULL, key, &meta, &cond, NULL);
    ck_assert(!before_lock);
    return r;
}

/* That changes its attributes, which are those of the version that was read. */
START_TEST(copy_of_an_object_over_itself_replaces_no_other_version)
{
    struct obj_info info = {0};
    put("k", "text");
    put("m/", "");
    ck_assert_int_eq(copy_over_itself("k", OBJ_COND_NONE, NULL), 0);
    ck_assert_int_eq(copy_over_itself("m/", OBJ_COND_NONE, NULL), 0);
    ck_assert_int_eq(copy_over_itself("k", OBJ_COND_ABSENT, NULL), -ESTALE);
    ck_assert_int_eq(copy_over_itself("k", OBJ_COND_ETAG, NULL), -ESTALE);
    ck_assert_int_eq(copy_over_itself("k", OBJ_COND_NONE, put_next_version), -ESTALE);
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert_uint_eq(info.size, strlen("other"));
    ck_assert_uint_eq(info.posix.fields & POSIX_MODE, 0);
    obj_info_clear(&info);
    ck_assert_int_eq(copy_over_itself("k", OBJ_COND_NONE, delete_both), -ESTALE);
    put("m/", "");
    ck_assert_int_eq(copy_over_itself("m/", OBJ_COND_NONE, delete_both), -ESTALE);
    unsigned n;
    ck_assert_int_eq(list(&n), 0);
    ck_assert_uint_eq(n, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_file");
    TCase *t = tcase_create("disk");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, object_is_on_the_disk_before_it_has_its_name);
    tcase_add_loop_test(t, object_that_cannot_have_its_name_leaves_no_directories, 0, 2);
    tcase_add_test(t, joined_upload_is_on_the_disk_before_it_has_its_name);
    tcase_add_test(t, markers_and_deletes_are_on_the_disk);
    tcase_add_test(t, copy_of_an_object_that_changes_meanwhile_is_none);
    tcase_add_test(t, copy_of_an_object_over_itself_replaces_no_other_version);
    tcase_add_test(t, delete_of_a_marker_whose_directory_stays_can_be_repeated);
    tcase_add_test(t, upload_goes_with_a_part_that_comes_while_it_is_aborted);
    tcase_add_test(t, upload_that_was_removed_in_part_goes_when_it_is_asked_for);
    tcase_add_test(t, directories_that_a_delete_left_go_when_it_is_asked_again);
    tcase_add_test(t, listing_with_a_disk_error_is_no_short_listing);
    tcase_add_test(t, marker_that_cannot_be_looked_at_is_not_absent);
    tcase_add_test(t, parts_of_an_upload_are_all_told_or_none);
    suite_add_tcase(s, t);
    return run_suite(s);
}
