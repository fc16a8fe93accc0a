/* Waiting for a program: until it dies, is told to stop, or nothing got on for too long; nobody to wait for changes nothing. */
#include "base/clock.h"
#include "base/err.h"
#include "base/patience.h"
#include "tests/support/checks.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIT(sig) (1ull << ((sig)-1))

static struct mutex mu;
static struct cond cv;
static struct patience patience;

static void setup(void)
{
    mutex_init(&mu, LOCK_WORKQ);
    cond_init(&cv);
}

static void teardown(void)
{
    patience_end();
    cond_fini(&cv);
    mutex_fini(&mu);
}

static int wait_out(uint64_t deadline_ns)
{
    int r = 0;
    mutex_lock(&mu);
    while (r == 0)
        r = patience_wait(&cv, &mu, deadline_ns);
    mutex_unlock(&mu);
    return r;
}

START_TEST(signals_that_end_a_wait)
{
    ck_assert_int_eq(patience_signal_of(0, 0, 0, 0), PATIENCE_NONE);
    ck_assert_int_eq(patience_signal_of(BIT(SIGKILL), ~0ull, 0, 0), PATIENCE_DIES);
    ck_assert_int_eq(patience_signal_of(BIT(SIGTERM), 0, 0, 0), PATIENCE_DIES);
    ck_assert_int_eq(patience_signal_of(BIT(SIGABRT), 0, 0, 0), PATIENCE_DIES);
    ck_assert_int_eq(patience_signal_of(BIT(SIGINT), 0, 0, BIT(SIGINT)), PATIENCE_STOPS);
    ck_assert_int_eq(patience_signal_of(BIT(SIGINT), BIT(SIGINT), 0, BIT(SIGINT)), PATIENCE_NONE);
    ck_assert_int_eq(patience_signal_of(BIT(SIGHUP), 0, BIT(SIGHUP), 0), PATIENCE_NONE);
    ck_assert_int_eq(patience_signal_of(BIT(SIGALRM), 0, 0, BIT(SIGALRM)), PATIENCE_NONE);
    ck_assert_int_eq(patience_signal_of(BIT(SIGTSTP) | BIT(SIGCHLD), 0, 0, 0), PATIENCE_NONE);
}
END_TEST

START_TEST(without_a_program_only_the_deadline_counts)
{
    ck_assert_int_eq(patience_over(), 0);
    ck_assert(!patience_worn());
    ck_assert_int_eq(wait_out(clock_mono_ns() + NS_PER_MS), -ETIMEDOUT);
    ck_assert_int_eq(patience_over(), 0);
}
END_TEST

START_TEST(what_does_not_get_on_ends)
{
    patience_begin(&patience, getpid(), clock_mono_ns(), 150 * NS_PER_MS);
    ck_assert_int_eq(wait_out(UINT64_MAX), -ETIMEDOUT);
    ck_assert(patience_worn());
    ck_assert_int_eq(patience_over(), -ETIMEDOUT);
    patience_renew();
    ck_assert_int_eq(patience_over(), 0);
}
END_TEST

START_TEST(the_time_counts_from_when_the_program_asked)
{
    patience_begin(&patience, getpid(), clock_mono_ns() - 10 * NS_PER_S, 5 * NS_PER_S);
    ck_assert_int_eq(patience_over(), -ETIMEDOUT);
    patience_end();
    ck_assert_int_eq(patience_over(), 0);
}
END_TEST

/* Or the call that the request belongs to, if it waits once more, ends later than was promised: that is 3 s beyond the limit. */
START_TEST(a_wait_is_long_however_long_the_limit_is)
{
    patience_begin(&patience, getpid(), clock_mono_ns() - 3 * NS_PER_S, 62 * NS_PER_S);
    ck_assert(patience_worn());
    patience_end();
    patience_begin(&patience, getpid(), clock_mono_ns(), 62 * NS_PER_S);
    ck_assert(!patience_worn());
    patience_end();
}
END_TEST

START_TEST(no_limit_is_none)
{
    patience_begin(&patience, getpid(), 1, 0);
    ck_assert_int_eq(patience_over(), 0);
    ck_assert(!patience_worn());
}
END_TEST

START_TEST(work_for_all_is_not_ended_by_one)
{
    patience_begin(&patience, getpid(), clock_mono_ns() - 10 * NS_PER_S, NS_PER_S);
    struct patience *p = patience_set(NULL);
    ck_assert_int_eq(patience_over(), 0);
    ck_assert_ptr_null(patience_set(p));
    ck_assert_int_eq(patience_over(), -ETIMEDOUT);
}
END_TEST

/* A child that has `sig` pending for as long as it is stopped. It is stopped only after its fork() returned: until then the
 * C library may have all signals blocked, and a signal blocked for good ends no wait. */
static pid_t stopped_child(int sig)
{
    int status, up[2];
    char byte = 0;
    ck_assert_int_eq(pipe(up), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (write(up[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    ck_assert_int_eq(read(up[0], &byte, 1), 1);
    (void)close(up[0]);
    (void)close(up[1]);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    if (sig)
        ck_assert_int_eq(kill(pid, sig), 0);
    return pid;
}

static void end_child(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

START_TEST(a_program_with_a_fatal_signal_is_not_waited_for)
{
    pid_t pid = stopped_child(SIGQUIT);
    patience_begin(&patience, pid, clock_mono_ns(), 3600 * NS_PER_S);
    patience_ask(&patience);
    ck_assert_int_eq(wait_out(UINT64_MAX), -EINTR);
    patience_begin(&patience, pid, clock_mono_ns(), 3600 * NS_PER_S); /* the kernel does not tell of all */
    ck_assert_int_eq(wait_out(UINT64_MAX), -EINTR);
    ck_assert(patience_of_task_is_over(pid));
    end_child(pid);
}
END_TEST

START_TEST(a_program_with_another_signal_is_waited_for)
{
    pid_t pid = stopped_child(SIGWINCH);
    patience_begin(&patience, pid, clock_mono_ns(), 3600 * NS_PER_S);
    patience_ask(&patience);
    ck_assert_int_eq(wait_out(clock_mono_ns() + 500 * NS_PER_MS), -ETIMEDOUT);
    ck_assert_int_eq(patience_over(), 0);
    ck_assert(!patience_of_task_is_over(pid));
    end_child(pid);
}
END_TEST

START_TEST(a_program_that_cannot_be_seen_ends_with_any_signal)
{
    patience_begin(&patience, 0, clock_mono_ns(), 3600 * NS_PER_S);
    ck_assert_int_eq(wait_out(clock_mono_ns() + 250 * NS_PER_MS), -ETIMEDOUT);
    patience_ask(&patience);
    ck_assert_int_eq(wait_out(UINT64_MAX), -EINTR);
    ck_assert(patience_of_task_is_over(0));
}
END_TEST

int main(void)
{
    (void)signal(SIGINT, SIG_DFL); /* what a shell starts in the background has them ignored */
    (void)signal(SIGQUIT, SIG_DFL);
    Suite *s = suite_create("patience");
    TCase *t = tcase_create("patience");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, signals_that_end_a_wait);
    tcase_add_test(t, without_a_program_only_the_deadline_counts);
    tcase_add_test(t, what_does_not_get_on_ends);
    tcase_add_test(t, the_time_counts_from_when_the_program_asked);
    tcase_add_test(t, a_wait_is_long_however_long_the_limit_is);
    tcase_add_test(t, no_limit_is_none);
    tcase_add_test(t, work_for_all_is_not_ended_by_one);
    tcase_add_test(t, a_program_with_a_fatal_signal_is_not_waited_for);
    tcase_add_test(t, a_program_with_another_signal_is_waited_for);
    tcase_add_test(t, a_program_that_cannot_be_seen_ends_with_any_signal);
    suite_add_tcase(s, t);
    return run_suite(s);
}
