/* States of versions: what may follow what, and the two gates that ask for them. */
#include "base/metric.h"
#include "base/sm.h"
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/states.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fs_fixture fx;

/* Row: from, column: to. Written out apart from the code's table on purpose. */
static const char *const content_moves[] = {
    /*                C O L S Q */
    [CONTENT_CLEAN] = "-x---",  [CONTENT_OPEN] = "xxx-x",        [CONTENT_CLOSING] = "xxxxx",
    [CONTENT_SEALED] = "xx--x", [CONTENT_QUARANTINED] = "-x--x",
};
static const char *const op_moves[] = {
    /*             Q H P C */
    [OPS_QUEUED] = "xxxx",
    [OPS_HELD] = "xxxx",
    [OPS_PARKED] = "x-xx",
    [OPS_CONFLICT] = "x-xx",
};

static void check_moves(const char *const *rows, unsigned n, int (*move)(uint32_t *state, unsigned to))
{
    for (unsigned from = 0; from <= n; from++) { /* the last one is no state */
        for (unsigned to = 0; to <= n; to++) {
            bool want = from < n && to < n && rows[from][to] == 'x';
            int64_t refused = metric_get(M_refused_moves);
            uint32_t state = from;
            int r = move(&state, to);
            ck_assert_msg(r == (want ? 0 : -EPROTO), "%u -> %u: %s", from, to, err_name(r));
            ck_assert_uint_eq(state, want ? to : from);
            ck_assert_int_eq(metric_get(M_refused_moves) - refused, want ? 0 : 1);
        }
    }
}

static int move_content(uint32_t *state, unsigned to)
{
    struct meta_inode rec = {.content = *state};
    int r = content_move(&rec, to);
    *state = rec.content;
    return r;
}

static int move_op(uint32_t *state, unsigned to)
{
    struct meta_op op = {.state = *state};
    int r = op_move(&op, to);
    *state = op.state;
    return r;
}

START_TEST(every_move_is_allowed_or_refused_as_written_here)
{
    sm_strict(false);
    (void)log_open("/dev/null", LOG_LEVEL_ERR);
    check_moves(content_moves, G_N_ELEMENTS(content_moves), move_content);
    check_moves(op_moves, G_N_ELEMENTS(op_moves), move_op);
    log_close();
}
END_TEST

START_TEST(refused_move_ends_a_strict_process)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        sm_strict(true);
        uint32_t state = CONTENT_CLEAN;
        _exit(move_content(&state, CONTENT_SEALED) == 0);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
END_TEST

START_TEST(quarantine_takes_all_but_what_the_store_has)
{
    for (uint32_t s = CONTENT_CLEAN; s <= CONTENT_QUARANTINED; s++) {
        struct meta_inode rec = {.content = s};
        ck_assert(content_quarantine(&rec) == (s != CONTENT_CLEAN));
        ck_assert_uint_eq(rec.content, s == CONTENT_CLEAN ? CONTENT_CLEAN : CONTENT_QUARANTINED);
    }
}
END_TEST

START_TEST(only_sealed_content_may_be_published_and_snapshots_of_what_is_written)
{
    static const int whole[] = {-EAGAIN, -EAGAIN, -EAGAIN, 0, -EUCLEAN}, snapshot[] = {0, 0, 0, 0, -EUCLEAN};
    for (uint32_t s = CONTENT_CLEAN; s <= CONTENT_QUARANTINED; s++) {
        ck_assert_int_eq(states_publish_gate(s, false), whole[s]);
        ck_assert_int_eq(states_publish_gate(s, true), snapshot[s]);
    }
}
END_TEST

/* ---- the gates at work ---- */

static void setup(void)
{
    fs_fixture_init(&fx);
    sm_strict(false);
    (void)log_open("/dev/null", LOG_LEVEL_ERR);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    log_close();
}

static void set_content(struct inode *in, uint32_t content)
{
    mutex_lock(&in->mu);
    in->rec.content = content;
    mutex_unlock(&in->mu);
}

/* The cache's own mark is wrong: the record is asked. */
START_TEST(unpublished_file_is_not_dropped_though_the_cache_takes_it_for_clean)
{
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "x", "hello", 5);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, false), 0);
    content_unuse(in, cf);
    int64_t refused = metric_get(M_refused_moves);
    ck_assert_int_eq(cache_evict(fx.fs->cache, in->rec.vid), -EBUSY);
    ck_assert_int_eq(metric_get(M_refused_moves), refused + 1);
    ck_assert_int_eq(cache_evict(fx.fs->cache, in->rec.vid), -EBUSY);
    ck_assert_int_eq(metric_get(M_refused_moves), refused + 1); /* kept by the mark again */
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    int r = -EBUSY;
    for (unsigned i = 0; i < 4000 && r == -EBUSY; i++) { /* the cache is told after the record */
        r = cache_evict(fx.fs->cache, in->rec.vid);
        g_usleep(5000);
    }
    ck_assert_int_eq(r, 0);
}
END_TEST

static void *publish_x(void *arg)
{
    return GINT_TO_POINTER(publish_now(fx.fs, arg, clock_mono_ns() + 20 * NS_PER_S));
}

/* It turns out to be bad while its upload waits for its turn. */
START_TEST(quarantined_content_does_not_pass_the_gate_before_the_visible_step)
{
    pthread_t thread;
    void *ret;
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "first.tmp", "1", 1); /* held: what comes later waits */
    fs_fixture_write(&fx, "x", "hello", 5);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_int_eq(pthread_create(&thread, NULL, publish_x, in), 0);
    for (unsigned i = 0; i < 4000 && metric_get(M_uploading) == 0; i++)
        g_usleep(5000);
    ck_assert_int_eq(metric_get(M_uploading), 1);
    set_content(in, CONTENT_QUARANTINED);
    ck_assert_int_eq(publish_retry(fx.fs->pub, "first.tmp"), 1);
    fs_fixture_start(&fx); /* the held one goes, and opens the gate */
    ck_assert_int_eq(pthread_join(thread, &ret), 0);
    ck_assert_int_eq(GPOINTER_TO_INT(ret), -EUCLEAN);
    ck_assert(fs_fixture_object_exists(&fx, "first.tmp"));
    ck_assert(!fs_fixture_object_exists(&fx, "x"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("states");
    TCase *t = tcase_create("tables");
    tcase_add_test(t, every_move_is_allowed_or_refused_as_written_here);
    tcase_add_test(t, refused_move_ends_a_strict_process);
    tcase_add_test(t, quarantine_takes_all_but_what_the_store_has);
    tcase_add_test(t, only_sealed_content_may_be_published_and_snapshots_of_what_is_written);
    suite_add_tcase(s, t);
    t = tcase_create("gates");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, unpublished_file_is_not_dropped_though_the_cache_takes_it_for_clean);
    tcase_add_test(t, quarantined_content_does_not_pass_the_gate_before_the_visible_step);
    suite_add_tcase(s, t);
    return run_suite(s);
}
