/*
 * The helpers below everything: locks abort on misuse (in a forked child), the log mutes what repeats, queues keep their order and
 * drain at stop, state machines abort on forbidden moves, metrics come out in the text format, waits follow the fake clock.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/sm.h"
#include "base/sync.h"
#include "base/workq.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* True when fn aborts. */
static bool aborts(void (*fn)(void))
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        fn();
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* ---- locks ---- */

static struct mutex upper, upper_two, lower;

static void init_locks(void)
{
    mutex_init(&upper, LOCK_INODE);
    mutex_init(&upper_two, LOCK_INODE);
    mutex_init(&lower, LOCK_META);
}

NO_TSA static void lock_in_order(void)
{
    mutex_lock(&upper);
    mutex_lock(&lower);
    mutex_assert_held(&upper);
    mutex_unlock(&upper);
    mutex_unlock(&lower);
    mutex_assert_none_held();
}

NO_TSA static void lock_out_of_order(void)
{
    mutex_lock(&lower);
    mutex_lock(&upper);
}

NO_TSA static void lock_two_of_a_class(void)
{
    mutex_lock(&upper);
    mutex_lock(&upper_two);
}

NO_TSA static void lock_twice(void)
{
    mutex_lock(&upper);
    mutex_lock(&upper);
}

NO_TSA static void unlock_unheld(void)
{
    mutex_unlock(&upper);
}

NO_TSA static void assert_other_of_the_class(void)
{
    mutex_lock(&upper);
    mutex_assert_held(&upper_two);
}

NO_TSA static void wait_with_a_lock(void)
{
    mutex_lock(&upper);
    mutex_assert_none_held();
}

NO_TSA static void *lock_and_leave(void *arg)
{
    mutex_lock(arg);
    return NULL;
}

NO_TSA static void unlock_what_another_thread_holds(void)
{
    pthread_t t;
    if (thread_start(&t, "locker", lock_and_leave, &upper) < 0)
        return;
    pthread_join(t, NULL);
    mutex_unlock(&upper);
}

START_TEST(locks_in_order_are_fine)
{
    init_locks();
    ck_assert(!aborts(lock_in_order));
}
END_TEST

START_TEST(lock_misuse_aborts)
{
    static void (*const misuses[])(void) = {lock_out_of_order,
                                            lock_two_of_a_class,
                                            lock_twice,
                                            unlock_unheld,
                                            assert_other_of_the_class,
                                            wait_with_a_lock,
                                            unlock_what_another_thread_holds};
    init_locks();
    for (unsigned i = 0; i < G_N_ELEMENTS(misuses); i++)
        ck_assert_msg(aborts(misuses[i]), "misuse %u went through", i);
}
END_TEST

struct waiter {
    struct mutex mu;
    struct cond c;
    bool go, done;
};

static void *set_go(void *arg)
{
    struct waiter *w = arg;
    mutex_lock(&w->mu);
    w->go = true;
    cond_signal(&w->c);
    while (!w->done)
        cond_wait(&w->c, &w->mu);
    mutex_unlock(&w->mu);
    return NULL;
}

START_TEST(wait_ends_by_signal_or_deadline)
{
    struct waiter w = {0};
    mutex_init(&w.mu, LOCK_META);
    cond_init(&w.c);
    mutex_lock(&w.mu);
    uint64_t start = clock_mono_ns();
    bool in_time = true;
    while (in_time)
        in_time = cond_wait_until(&w.c, &w.mu, start + 20 * NS_PER_MS);
    ck_assert_uint_ge(clock_mono_ns(), start + 20 * NS_PER_MS);
    pthread_t t;
    ck_assert_int_eq(thread_start(&t, "waiter", set_go, &w), 0);
    while (!w.go)
        ck_assert(cond_wait_until(&w.c, &w.mu, start + 30 * NS_PER_S));
    w.done = true;
    cond_broadcast(&w.c);
    mutex_unlock(&w.mu);
    pthread_join(t, NULL);
    cond_fini(&w.c);
    mutex_fini(&w.mu);
}
END_TEST

static void *advance_an_hour(void *arg)
{
    g_usleep(20000);
    clock_fake_advance(3600 * NS_PER_S);
    return NULL;
}

START_TEST(wait_notices_an_advance_of_the_fake_clock)
{
    struct waiter w = {0};
    mutex_init(&w.mu, LOCK_META);
    cond_init(&w.c);
    clock_fake_advance(1);
    int64_t wall = clock_wall_ns();
    uint64_t deadline = clock_mono_ns() + 3000 * NS_PER_S;
    gint64 real_start = g_get_monotonic_time();
    pthread_t t;
    ck_assert_int_eq(thread_start(&t, "clock", advance_an_hour, NULL), 0);
    mutex_lock(&w.mu);
    while (cond_wait_until(&w.c, &w.mu, deadline))
        ;
    mutex_unlock(&w.mu);
    pthread_join(t, NULL);
    ck_assert_int_lt(g_get_monotonic_time() - real_start, 10 * G_USEC_PER_SEC);
    ck_assert_int_ge(clock_wall_ns() - wall, (int64_t)(3600 * NS_PER_S));
}
END_TEST

static void *report_name_and_signals(void *arg)
{
    char *name = arg;
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    bool blocked = sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR1) && sigismember(&set, SIGCHLD);
    pthread_getname_np(pthread_self(), name, 16); /* from its first step: it may detach itself and be gone at once */
    return GINT_TO_POINTER(blocked);
}

START_TEST(threads_have_names_and_no_signals)
{
    char name[16] = "";
    pthread_t t;
    void *blocked;
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(thread_start(&t, "worker-7", report_name_and_signals, name), 0);
        pthread_join(t, &blocked);
        ck_assert_str_eq(name, "worker-7");
        name[0] = '\0';
    }
    ck_assert(GPOINTER_TO_INT(blocked));
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    ck_assert(!sigismember(&set, SIGTERM));
}
END_TEST

/* ---- log ---- */

static char *log_path;

static void log_setup(void)
{
    g_autoptr(GError) e = NULL;
    int fd = g_file_open_tmp("sluice-log-XXXXXX", &log_path, &e);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_int_eq(log_open(log_path, LOG_LEVEL_INFO), 0);
}

static void log_teardown(void)
{
    log_close();
    g_unlink(log_path);
    g_free(log_path);
}

static char *log_text(void)
{
    char *text = NULL;
    ck_assert(g_file_get_contents(log_path, &text, NULL, NULL));
    return text;
}

static unsigned count_of(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, part)); p++)
        n++;
    return n;
}

static void repeat(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        log_warn("test", "again and again n=%u", i);
}

START_TEST(repeated_lines_are_muted_and_counted)
{
    repeat(25);
    g_autofree char *first = log_text();
    ck_assert_uint_eq(count_of(first, "again and again"), 10);
    ck_assert_uint_eq(count_of(first, "suppressed"), 0);
    log_warn("test", "another site");
    clock_fake_advance(11 * NS_PER_S);
    repeat(1);
    g_autofree char *later = log_text();
    ck_assert_uint_eq(count_of(later, "another site"), 1);
    ck_assert_uint_eq(count_of(later, "again and again n=0"), 2);
    ck_assert_uint_eq(count_of(later, "suppressed 15"), 1);
    clock_fake_advance(11 * NS_PER_S);
    repeat(1);
    g_autofree char *last = log_text();
    ck_assert_uint_eq(count_of(last, "suppressed"), 1);
}
END_TEST

START_TEST(a_line_stays_one_line_and_carries_level_and_subsystem)
{
    log_notice("part", "name='%s'", "a\nerr forged: b\x1b");
    g_autofree char *text = log_text();
    ck_assert_uint_eq(count_of(text, "\n"), 1);
    ck_assert_ptr_nonnull(strstr(text, "Z notice part"));
    ck_assert_ptr_null(strchr(text, 0x1b));
}
END_TEST

START_TEST(lines_below_the_level_are_dropped)
{
    log_debug("part", "quiet");
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("part", "loud");
    g_autofree char *text = log_text();
    ck_assert_uint_eq(count_of(text, "quiet"), 0);
    ck_assert_uint_eq(count_of(text, "loud"), 1);
}
END_TEST

START_TEST(level_names_parse)
{
    enum log_level level = LOG_LEVEL_INFO;
    ck_assert_int_eq(log_level_parse("warn", &level), 0);
    ck_assert_int_eq(level, LOG_LEVEL_WARN);
    ck_assert_int_eq(log_level_parse("warning", &level), -EINVAL);
    ck_assert_int_eq(log_level_parse("", &level), -EINVAL);
    ck_assert_int_eq(level, LOG_LEVEL_WARN);
    ck_assert_int_lt(log_open("/nonexistent/log", LOG_LEVEL_INFO), 0);
}
END_TEST

/* ---- work queues ---- */

struct gate {
    struct mutex mu;
    struct cond c;
    bool open;
    GString *order;
};
static struct gate gate;

static void wait_at_gate(void *arg)
{
    mutex_lock(&gate.mu);
    while (!gate.open)
        cond_wait(&gate.c, &gate.mu);
    mutex_unlock(&gate.mu);
}

static void open_gate(void)
{
    mutex_lock(&gate.mu);
    gate.open = true;
    cond_broadcast(&gate.c);
    mutex_unlock(&gate.mu);
}

static void note(void *arg)
{
    mutex_lock(&gate.mu);
    g_string_append(gate.order, arg);
    mutex_unlock(&gate.mu);
}

static void gate_setup(void)
{
    mutex_init(&gate.mu, LOCK_META);
    cond_init(&gate.c);
    gate.open = false;
    gate.order = g_string_new(NULL);
}

static void gate_teardown(void)
{
    g_string_free(gate.order, TRUE);
    cond_fini(&gate.c);
    mutex_fini(&gate.mu);
}

START_TEST(urgent_work_runs_first_and_each_class_in_order)
{
    static char letters[][2] = {"a", "b", "X", "Y"};
    struct workq *q = NULL;
    ck_assert_int_eq(workq_new("test", 1, &q), 0);
    ck_assert(workq_push(q, true, wait_at_gate, NULL));
    ck_assert(workq_push(q, false, note, letters[0]));
    ck_assert(workq_push(q, true, note, letters[2]));
    ck_assert(workq_push(q, false, note, letters[1]));
    ck_assert(workq_push(q, true, note, letters[3]));
    ck_assert_uint_eq(workq_load(q), 5);
    open_gate();
    workq_stop(q);
    ck_assert_str_eq(gate.order->str, "XYab");
    ck_assert_uint_eq(workq_load(q), 0);
    workq_free(q);
}
END_TEST

START_TEST(stop_drains_then_refuses)
{
    static char letter[] = "z";
    struct workq *q = NULL;
    ck_assert_int_eq(workq_new("test", 4, &q), 0);
    for (int i = 0; i < 1000; i++)
        ck_assert(workq_push(q, i % 2, note, letter));
    workq_stop(q);
    ck_assert_uint_eq(gate.order->len, 1000);
    ck_assert(!workq_push(q, true, note, letter));
    workq_stop(q);
    workq_free(q);
    workq_free(NULL);
    ck_assert_uint_eq(gate.order->len, 1000);
}
END_TEST

/* ---- state machines ---- */

enum { IDLE, BUSY, GONE };
static const struct sm_row rows[] = {
    [IDLE] = {"idle", SM_TO(BUSY)}, [BUSY] = {"busy", SM_TO(IDLE) | SM_TO(GONE)}, [GONE] = {"gone", 0}};
static const struct sm machine = {"file", rows, G_N_ELEMENTS(rows)};

static void forbidden_move(void)
{
    int state = IDLE;
    sm_move(&machine, &state, GONE);
}

static void move_of_a_bad_state(void)
{
    int state = 7;
    sm_move(&machine, &state, IDLE);
}

START_TEST(state_machine_moves_as_its_table_says)
{
    int state = IDLE;
    sm_move(&machine, &state, BUSY);
    sm_move(&machine, &state, GONE);
    ck_assert_int_eq(state, GONE);
    ck_assert(!sm_may_move(&machine, GONE, IDLE));
    ck_assert(!sm_may_move(&machine, -1, IDLE));
    ck_assert(!sm_may_move(&machine, IDLE, 3));
    ck_assert_str_eq(sm_name(&machine, BUSY), "busy");
    ck_assert_str_eq(sm_name(&machine, 3), "?");
    ck_assert_str_eq(sm_name(&machine, -1), "?");
}
END_TEST

START_TEST(forbidden_moves_abort)
{
    ck_assert(aborts(forbidden_move));
    ck_assert(aborts(move_of_a_bad_state));
}
END_TEST

/* ---- metrics, errors, clock ---- */

START_TEST(metrics_are_exposed_as_text)
{
    metric_add(M_hit_bytes, 40);
    metric_add(M_hit_bytes, 2);
    metric_inc(M_conflicts_total);
    metric_set(M_cache_bytes, 7);
    metric_add(M_cache_bytes, -3);
    ck_assert_int_eq(metric_get(M_hit_bytes), 42);
    ck_assert_str_eq(metric_name(M_hit_bytes), "hit_bytes");
    g_autoptr(GString) out = g_string_new(NULL);
    metric_expose(out);
    ck_assert_ptr_nonnull(strstr(out->str, "# TYPE sluice_hit_bytes_total counter\nsluice_hit_bytes_total 42\n"));
    ck_assert_ptr_nonnull(strstr(out->str, "# TYPE sluice_cache_bytes gauge\nsluice_cache_bytes 4\n"));
    ck_assert_ptr_nonnull(strstr(out->str, "\nsluice_conflicts_total 1\n"));
    ck_assert_ptr_null(strstr(out->str, "_total_total"));
    ck_assert_uint_eq(count_of(out->str, "# HELP "), N_METRICS);
    ck_assert_uint_eq(count_of(out->str, "\n"), 3 * N_METRICS);
}
END_TEST

START_TEST(errors_have_names_of_either_sign)
{
    ck_assert_str_eq(err_name(ENOENT), "ENOENT");
    ck_assert_str_eq(err_name(-ENOENT), "ENOENT");
    ck_assert_str_eq(err_name(-4095), "E4095");
    ck_assert_str_eq(err_text(-ENOENT), "No such file or directory");
    ck_assert_ptr_nonnull(strstr(err_text(-4095), "4095"));
    ck_assert_int_eq(RET_ERRNO(close(-1)), -EBADF);
}
END_TEST

START_TEST(cleanup_closes_and_steal_keeps)
{
    int raw[2];
    ck_assert_int_eq(pipe(raw), 0);
    int kept;
    {
        CLEANUP_FD int first = raw[0];
        CLEANUP_FD int second = raw[1];
        kept = steal_fd(&second);
        (void)first;
    }
    ck_assert_int_eq(kept, raw[1]);
    ck_assert_int_eq(RET_ERRNO(close(raw[0])), -EBADF);
    ck_assert_int_eq(close(kept), 0);
}
END_TEST

START_TEST(boot_id_is_stable)
{
    g_autofree char *once = g_strdup(clock_boot_id());
    ck_assert_str_eq(once, clock_boot_id());
    ck_assert_ptr_null(strchr(once, '\n'));
}
END_TEST

static TCase *add_case(Suite *s, const char *name, SFun setup, SFun teardown)
{
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 30);
    tcase_add_checked_fixture(t, setup, teardown);
    suite_add_tcase(s, t);
    return t;
}

int main(void)
{
    Suite *s = suite_create("base");
    TCase *t = add_case(s, "sync", NULL, NULL);
    tcase_add_test(t, locks_in_order_are_fine);
    tcase_add_test(t, lock_misuse_aborts);
    tcase_add_test(t, wait_ends_by_signal_or_deadline);
    tcase_add_test(t, wait_notices_an_advance_of_the_fake_clock);
    tcase_add_test(t, threads_have_names_and_no_signals);
    t = add_case(s, "log", log_setup, log_teardown);
    tcase_add_test(t, repeated_lines_are_muted_and_counted);
    tcase_add_test(t, a_line_stays_one_line_and_carries_level_and_subsystem);
    tcase_add_test(t, lines_below_the_level_are_dropped);
    tcase_add_test(t, level_names_parse);
    t = add_case(s, "workq", gate_setup, gate_teardown);
    tcase_add_test(t, urgent_work_runs_first_and_each_class_in_order);
    tcase_add_test(t, stop_drains_then_refuses);
    t = add_case(s, "rest", NULL, NULL);
    tcase_add_test(t, state_machine_moves_as_its_table_says);
    tcase_add_test(t, forbidden_moves_abort);
    tcase_add_test(t, metrics_are_exposed_as_text);
    tcase_add_test(t, errors_have_names_of_either_sign);
    tcase_add_test(t, cleanup_closes_and_steal_keeps);
    tcase_add_test(t, boot_id_is_stable);
    return run_suite(s);
}
