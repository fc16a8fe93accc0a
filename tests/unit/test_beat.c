/* When a worker makes place for another because of its database, over a lake in a folder, without FUSE. */
#include "base/clock.h"
#include "fs/beat.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fs_fixture fx;
static bool scans_fail;
static int beating; /* atomic: not the process is to end, but its thread that says so */
static int n_ends;  /* atomic */

/* Takes the place of the library's for the whole program. */
void rocksdb_iter_get_error(const void *it, char **err);
void rocksdb_iter_get_error(const void *it, char **err)
{
    void (*real)(const void *, char **) = dlsym(RTLD_NEXT, "rocksdb_iter_get_error");
    real(it, err);
    if (scans_fail && !*err)
        *err = strdup("IO error: While pread: 000009.sst: Input/output error");
}

/* The same of the C library's. */
void _exit(int status)
{
    if (g_atomic_int_get(&beating) && gettid() != getpid()) {
        g_atomic_int_inc(&n_ends);
        pthread_exit(NULL);
    }
    for (;;)
        (void)syscall(SYS_exit_group, status);
}

/* A change needs a record that the disk does not let be read. */
static void fail_a_read(void)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    scans_fail = true;
    meta_inode_del(b, 77);
    scans_fail = false;
    ck_assert_int_eq(meta_commit(b, false), -EIO);
    meta_batch_free(b);
}

static void await_beat(void)
{
    struct sess_head *head = fx.fs->session->head;
    for (unsigned i = 0; i < 2; i++) {
        uint64_t before = atomic_load(&head->beat_ns);
        clock_fake_advance(NS_PER_S);
        EVENTUALLY(atomic_load(&head->beat_ns) != before);
    }
}

/* It would be so for each of them. */
START_TEST(worker_whose_database_could_not_be_read_does_not_end_again_and_again)
{
    static char daemon_of_nobody[4096]; /* its channel is none */
    struct beat *beat = NULL;
    memset(daemon_of_nobody, 0xff, sizeof(daemon_of_nobody));
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
    fail_a_read();
    ck_assert(meta_is_stuck_by_read(fx.fs->meta));
    struct daemon *daemon = fx.fs->daemon;
    fx.fs->daemon = (struct daemon *)daemon_of_nobody;
    atomic_store(&fx.fs->supervisor_pid, 1);
    g_atomic_int_set(&beating, 1);
    ck_assert_int_eq(beat_start(fx.fs, &beat), 0);
    clock_fake_advance(60 * NS_PER_S);
    await_beat();
    clock_fake_advance(500 * NS_PER_S);
    await_beat();
    ck_assert_int_eq(g_atomic_int_get(&n_ends), 0);
    clock_fake_advance(60 * NS_PER_S);
    EVENTUALLY(g_atomic_int_get(&n_ends) == 1);
    beat_stop(beat);
    g_atomic_int_set(&beating, 0);
    atomic_store(&fx.fs->supervisor_pid, 0);
    fx.fs->daemon = daemon;
    fs_fixture_fini(&fx);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("beat");
    TCase *tc = tcase_create("beat");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, worker_whose_database_could_not_be_read_does_not_end_again_and_again);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
