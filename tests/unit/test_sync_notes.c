/* What the kernel is told by a sync: what changed and nothing else. Over a lake in a folder; the test reads in place of the notifier. */
#include "fs/sync.h"
#include "fs/tree.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define N_DIRS  20u
#define N_FILES 5u

static int ends[2]; /* the worker's, the notifier's */

static void make_file(unsigned dir, unsigned file, const char *text)
{
    g_autofree char *key = g_strdup_printf("set/dir%u/file%u", dir, file);
    fs_fixture_object(&fx, key, text, strlen(text));
}

static void setup(void)
{
    takeover_setup();
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    for (unsigned d = 0; d < N_DIRS; d++)
        for (unsigned f = 0; f < N_FILES; f++)
            make_file(d, f, "x");
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    takeover_open(false);
    fx.fs->notify_fd = ends[0];
}

static void teardown(void)
{
    takeover_teardown();
    close(ends[0]);
    close(ends[1]);
}

static void sync_all(struct sync_progress *ret)
{
    struct sync_job *job = NULL;
    const struct sync_req req = {.path = "", .parallel = 2};
    ck_assert_int_eq(sync_start(fx.fs, &req, &job), 0);
    ck_assert(sync_wait(job, clock_mono_ns() + 60 * NS_PER_S));
    ck_assert_int_eq(sync_progress_get(job, ret), SYNC_DONE);
    ck_assert_uint_eq(ret->errors, 0);
    sync_job_unref(job);
}

/* How many notifications there were since the last call. */
static unsigned n_told(void)
{
    char note[4096];
    unsigned n = 0;
    EVENTUALLY(workq_load(fx.fs->notify_q) == 0);
    while (recv(ends[1], note, sizeof(note), MSG_DONTWAIT) > 0)
        n++;
    return n;
}

START_TEST(unchanged_directories_are_not_told_of)
{
    struct sync_progress p;
    sync_all(&p);
    (void)n_told();
    sync_all(&p);
    ck_assert_uint_eq(p.dirs, 2 + N_DIRS);
    ck_assert_uint_eq(p.changed, 0);
    ck_assert_uint_eq(n_told(), 0);
}
END_TEST

START_TEST(changed_names_alone_are_told_of)
{
    struct sync_progress p;
    g_autofree char *gone = g_build_filename(fx.lake, "set/dir7/file0", NULL);
    sync_all(&p);
    (void)n_told();
    make_file(3, 1, "longer");
    ck_assert_int_eq(remove(gone), 0);
    sync_all(&p);
    ck_assert_uint_eq(p.changed, 2);
    ck_assert_uint_eq(n_told(), 2);
    sync_all(&p);
    ck_assert_uint_eq(n_told(), 0);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("sync_notes");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, unchanged_directories_are_not_told_of);
    tcase_add_test(tc, changed_names_alone_are_told_of);
    Suite *s = suite_create("sync_notes");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
