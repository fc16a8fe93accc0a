/* Directories that the file driver makes aside: what becomes of those of a process that is killed, and whom they take after. */
#include "../../s3/drv_file.h"
#include "base/clock.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define GROUP  12345
#define DAY_NS (24 * 3600 * NS_PER_S)

static char *dir;

static void setup(void)
{
    dir = g_dir_make_tmp("sluice-drv-place-XXXXXX", NULL);
}

static void teardown(void)
{
    g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
    g_free(dir);
}

static struct objstore *open_store(void)
{
    struct objstore *st = NULL;
    g_autofree char *msg = NULL, *source = g_strconcat("file://", dir, NULL);
    struct objstore_config cfg = {.source = source};
    ck_assert_int_eq(objstore_open(&cfg, &st, &msg), 0);
    return st;
}

static char *at(const char *name)
{
    return g_build_filename(dir, name, NULL);
}

/* A file, an empty directory and one with a file below it, as if it were in the middle of something. */
static void leave_behind(struct objstore *st)
{
    struct drv_file *f = file_of(st);
    char *file = NULL;
    int fd = file_tmp_open(f, "put", &file);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    g_free(file);
    g_autofree char *marker = file_tmp_path(f, "marker"), *tree = file_tmp_path(f, "tree");
    g_autofree char *empty = at(marker), *made = at(tree);
    g_autofree char *inner = g_build_filename(made, "b", "c", NULL), *object = g_build_filename(inner, "k", NULL);
    ck_assert_int_eq(g_mkdir(empty, 0700), 0);
    ck_assert_int_eq(g_mkdir_with_parents(inner, 0700), 0);
    ck_assert(g_file_set_contents(object, "1", 1, NULL));
}

/* Entries of .sluice-tmp whose names begin so. */
static unsigned count(const char *prefix)
{
    unsigned n = 0;
    g_autofree char *tmp = at(FILE_TMP_DIR);
    g_autoptr(GDir) d = g_dir_open(tmp, 0, NULL);
    ck_assert_ptr_nonnull(d);
    for (const char *name; (name = g_dir_read_name(d));)
        n += g_str_has_prefix(name, prefix);
    return n;
}

static unsigned count_temporary(void)
{
    return count("put-") + count("marker-") + count("tree-");
}

static void be_killed(void)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        leave_behind(open_store());
        (void)raise(SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

START_TEST(what_a_killed_process_left_goes_and_nothing_else)
{
    struct objstore *at_work = open_store();
    char *id = NULL;
    struct obj_part part = {.number = 1, .size = 4};
    ck_assert_int_eq(objstore_mpu_create(at_work, "k", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part(at_work, "k", id, "text", &part), 0);
    leave_behind(at_work);
    be_killed();
    be_killed(); /* removes the first one's */
    g_autofree char *young = at(FILE_TMP_DIR "/put-4711-1-0000abcd"), *other = at(FILE_TMP_DIR "/notes-of-somebody");
    ck_assert(g_file_set_contents(young, "1", 1, NULL) && g_file_set_contents(other, "1", 1, NULL));
    ck_assert_uint_eq(count_temporary(), 2 * 3 + 1);
    ck_assert_uint_eq(count("live-"), 2);
    struct objstore *next = open_store();
    ck_assert_uint_eq(count_temporary(), 3 + 1);
    ck_assert_uint_eq(count("live-"), 2);
    ck_assert_int_eq(access(young, F_OK), 0);
    ck_assert_int_eq(access(other, F_OK), 0);
    ck_assert_int_eq(objstore_mpu_complete(at_work, "k", id, &part, 1, NULL, NULL, NULL), 0);
    objstore_close(next);
    objstore_close(at_work); /* in the middle of what it did: that goes with the next one */
    ck_assert_uint_eq(count("live-"), 0);
    objstore_close(open_store());
    ck_assert_uint_eq(count_temporary(), 1);
    g_free(id);
}
END_TEST

/* Nodes do not always come back. */
START_TEST(upload_to_which_nothing_comes_for_a_week_goes)
{
    struct objstore *at_work = open_store();
    g_autofree char *id = NULL;
    struct obj_part part = {.number = 1, .size = 4};
    ck_assert_int_eq(objstore_mpu_create(at_work, "k", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part(at_work, "k", id, "text", &part), 0);
    clock_fake_advance(6 * DAY_NS);
    objstore_close(open_store());
    ck_assert_uint_eq(count("mpu-"), 1);
    clock_fake_advance(2 * DAY_NS);
    objstore_close(open_store());
    ck_assert_uint_eq(count("mpu-"), 0);
    ck_assert_int_eq(objstore_mpu_part(at_work, "k", id, "text", &part), -ENOENT);
    objstore_close(at_work);
}
END_TEST

struct acl_entry {
    uint16_t tag, perm;
    uint32_t id;
};

/* What a directory gives to those made in it: rwxrwx--x, and rwx to a user. False: the file system has no ACLs. */
static bool give_acl(const char *path)
{
    struct {
        uint32_t version;
        struct acl_entry e[5];
    } acl = {2, {{1, 7, UINT32_MAX}, {2, 7, 4321}, {4, 7, UINT32_MAX}, {16, 7, UINT32_MAX}, {32, 1, UINT32_MAX}}};
    return setxattr(path, "system.posix_acl_default", &acl, sizeof acl, 0) == 0;
}

static void put(struct objstore *st, const char *key)
{
    ck_assert_int_eq(objstore_put(st, key, "", 0, &(struct obj_meta){0}, NULL, &(struct etag){0}), 0);
}

static void assert_like(const char *name, const char *like, bool acl)
{
    struct stat a, b;
    char have[256], want[256];
    g_autofree char *path = at(name), *other = at(like);
    ck_assert_int_eq(stat(path, &a), 0);
    ck_assert_int_eq(stat(other, &b), 0);
    ck_assert_msg(((a.st_mode ^ b.st_mode) & S_ISGID) == 0, "%s", name);
    ck_assert_msg(a.st_gid == b.st_gid, "%s", name);
    ssize_t n = getxattr(path, "system.posix_acl_default", have, sizeof have);
    if (!acl) {
        ck_assert_msg(n < 0, "%s", name);
        return;
    }
    ck_assert_int_eq(n, getxattr(other, "system.posix_acl_default", want, sizeof want));
    ck_assert_int_eq(memcmp(have, want, (size_t)n), 0);
    ck_assert_msg(getxattr(path, "system.posix_acl_access", have, sizeof have) == n, "%s", name);
}

/* 0: the parent passes its group and an ACL on; 1: the place where they are made does, the parent does not. */
START_TEST(directories_take_after_the_parent_of_their_place)
{
    static const char *const made[] = {"p/a", "p/a/b", "p/m", "p/n", "p/n/m"};
    struct objstore *st = open_store();
    g_autofree char *p = at("p"), *tmp = at(FILE_TMP_DIR);
    const char *gives = _i == 0 ? p : tmp;
    ck_assert_int_eq(g_mkdir(p, 0755), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(chown(gives, 0, GROUP), 0);
    ck_assert_int_eq(g_chmod(gives, 02775), 0);
    bool acl = give_acl(gives);
    put(st, "p/a/b/k");
    put(st, "p/m/");
    put(st, "p/n/m/");
    for (unsigned i = 0; i < G_N_ELEMENTS(made); i++)
        assert_like(made[i], "p", acl && _i == 0);
    objstore_close(st);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_file_place");
    TCase *t = tcase_create("place");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, what_a_killed_process_left_goes_and_nothing_else);
    tcase_add_loop_test(t, directories_take_after_the_parent_of_their_place, 0, 2);
    tcase_add_test(t, upload_to_which_nothing_comes_for_a_week_goes); /* last: it moves the clock */
    suite_add_tcase(s, t);
    return run_suite(s);
}
