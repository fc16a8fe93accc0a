/* The sign of life of a worker, and when it makes place for another because of its database, over a lake in a folder, without FUSE. */
#include "base/clock.h"
#include "fs/beat.h"
#include "fs/publish_internal.h"
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

/* Whether the thread that says so waits for the lock: the kernel tells of a system call where what it waits for is. */
static bool beat_waits_for(const struct mutex *mu)
{
    const char *name;
    bool waits = false;
    g_autoptr(GDir) tasks = g_dir_open("/proc/self/task", 0, NULL);
    while ((name = g_dir_read_name(tasks)) != NULL) {
        g_autofree char *comm = g_strdup_printf("/proc/self/task/%s/comm", name);
        g_autofree char *call = g_strdup_printf("/proc/self/task/%s/syscall", name);
        g_autofree char *who = NULL, *what = NULL;
        unsigned long nr = 0, at = 0;
        if (g_file_get_contents(comm, &who, NULL, NULL) && strcmp(g_strchomp(who), "beat") == 0 &&
            g_file_get_contents(call, &what, NULL, NULL) && sscanf(what, "%lu 0x%lx", &nr, &at) == 2)
            waits = nr == SYS_futex && at >= (uintptr_t)mu && at < (uintptr_t)(mu + 1);
    }
    return waits;
}

struct hung {
    struct mutex *mu;
    int holds, goes_on; /* atomic */
};

static void *hang(void *arg)
{
    struct hung *h = arg;
    mutex_lock(h->mu);
    g_atomic_int_set(&h->holds, 1);
    while (!g_atomic_int_get(&h->goes_on))
        g_usleep(1000);
    mutex_unlock(h->mu);
    return NULL;
}

/* One thread alone, while all others go on. */
START_TEST(thread_that_hangs_with_a_lock_that_all_need_stops_the_beat)
{
    struct beat *beat = NULL;
    pthread_t thread;
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
    struct fs *fs = fx.fs;
    struct mutex *const locks[] = {&fs->ns, &fs->table_mu, &fs->handle_mu, &fs->io_mu, &fs->list_mu, &fs->pub->mu};
    struct hung h = {.mu = locks[_i]};
    ck_assert_int_eq(beat_start(fs, &beat), 0);
    await_beat();
    ck_assert_int_eq(pthread_create(&thread, NULL, hang, &h), 0);
    EVENTUALLY(g_atomic_int_get(&h.holds));
    uint64_t before = atomic_load(&fs->session->head->beat_ns);
    clock_fake_advance(NS_PER_S);
    EVENTUALLY(beat_waits_for(h.mu));
    clock_fake_advance(60 * NS_PER_S);
    ck_assert_uint_eq(atomic_load(&fs->session->head->beat_ns), before);
    g_atomic_int_set(&h.goes_on, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    EVENTUALLY(atomic_load(&fs->session->head->beat_ns) != before);
    beat_stop(beat);
    fs_fixture_fini(&fx);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("beat");
    TCase *tc = tcase_create("beat");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, worker_whose_database_could_not_be_read_does_not_end_again_and_again);
    tcase_add_loop_test(tc, thread_that_hangs_with_a_lock_that_all_need_stops_the_beat, 0, 6);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
