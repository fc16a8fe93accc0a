/*
 * Credentials whose files, programs and services are silent or fail for a while. A path whose stat() hangs stands for a home directory on a file server that went away, a FIFO
 * without a writer for a file there that is being opened,
 * a stack that is too large for a machine where no thread can be started.
 */
#include "base/patience.h"
#include "s3_cred_int.h"
#include "tests/support/checks.h"
#include "tests/support/cred_fixture.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET CRED_SECRET
#define MINUTE (60 * NS_PER_S)

/* ---- a home directory that hangs ---- */

static int hangs;              /* atomic: stat() of the credential files does */
static int n_in_stat;          /* atomic: threads that are in one */
static _Atomic pthread_t test; /* serves requests, as it were */
static int n_of_test;          /* atomic: its calls */

int stat(const char *path, struct stat *ret)
{
    if (strstr(path, "sluice-cred-") != NULL) {
        if (pthread_equal(pthread_self(), test))
            (void)__atomic_add_fetch(&n_of_test, 1, __ATOMIC_RELAXED);
        (void)__atomic_add_fetch(&n_in_stat, 1, __ATOMIC_RELAXED);
        while (__atomic_load_n(&hangs, __ATOMIC_RELAXED))
            (void)usleep(1000);
        (void)__atomic_sub_fetch(&n_in_stat, 1, __ATOMIC_RELAXED);
    }
    return fstatat(AT_FDCWD, path, ret, 0);
}

static void set_hangs(int on)
{
    __atomic_store_n(&hangs, on, __ATOMIC_RELAXED);
}

static int in_stat(void)
{
    return __atomic_load_n(&n_in_stat, __ATOMIC_RELAXED);
}

static void put_keys(const char *access_key)
{
    g_autofree char *text =
        g_strdup_printf("[default]\naws_access_key_id = %s\naws_secret_access_key = " SECRET "\n", access_key);
    cred_put("credentials", 0600, text);
}

START_TEST(files_that_hang_keep_nobody_who_has_keys)
{
    put_keys("AK1");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AK1", NULL);
    cred_await_idle();
    test = pthread_self();
    __atomic_store_n(&n_of_test, 0, __ATOMIC_RELAXED);
    set_hangs(1);
    for (int i = 0; i < 5; i++) {
        clock_fake_advance(2 * NS_PER_S);
        cred_expect_keys(c, "AK1", NULL);
        CRED_AWAIT(in_stat() > 0);
    }
    ck_assert_int_eq(in_stat(), 1);
    ck_assert_int_eq(__atomic_load_n(&n_of_test, __ATOMIC_RELAXED), 0);
    clock_fake_advance(MINUTE);
    cred_expect_keys(c, "AK1", NULL);
    g_autofree char *text = cred_log_text();
    ck_assert_ptr_nonnull(strstr(text, "what gives the credentials does not answer origin='profile default'"));
    s3_cred_invalidate(c); /* as for one object that the store refuses with a word that is meant otherwise */
    struct s3_keys k = {0};
    ck_assert_int_eq(s3_cred_get(c, UINT64_MAX, &k), 0);
    s3_keys_clear(&k);
    put_keys("AK2");
    set_hangs(0);
    cred_await_keys(c, "AK2", NULL);
    s3_cred_close(c);
}
END_TEST

/* Nobody asks for them where keys come from elsewhere. */
START_TEST(files_that_hang_are_nothing_to_other_sources)
{
    struct fake_service sv;
    fake_service_start(&sv, fake_reply_json);
    fake_service_env(&sv, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "/");
    struct s3_cred *c = cred_open_ok();
    set_hangs(1);
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    set_hangs(0);
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

/* ---- no thread to be had ---- */

static int held;     /* atomic: whoever is about to start a thread stays there */
static int n_starts; /* atomic: calls of the function below, two for each start */

int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    (void)__atomic_add_fetch(&n_starts, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&held, __ATOMIC_RELAXED))
        (void)usleep(1000);
    return sigprocmask(how, set, old) < 0 ? errno : 0; /* a thread's own on Linux */
}

static int starts(void)
{
    return __atomic_load_n(&n_starts, __ATOMIC_RELAXED) / 2;
}

/* By a stack for which there is no room; 0: the usual one. */
static void set_stack(size_t size, pthread_attr_t *usual)
{
    pthread_attr_t attr;
    if (size != 0)
        ck_assert_int_eq(pthread_getattr_default_np(usual), 0);
    ck_assert_int_eq(pthread_getattr_default_np(&attr), 0);
    if (size != 0)
        ck_assert_int_eq(pthread_attr_setstacksize(&attr, size), 0);
    ck_assert_int_eq(pthread_setattr_default_np(size != 0 ? &attr : usual), 0);
    (void)pthread_attr_destroy(&attr);
}

#define HUGE_STACK ((size_t)1 << 47)

START_TEST(looks_that_no_thread_can_be_had_for_are_no_failures)
{
    pthread_attr_t usual;
    put_keys("AK1");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AK1", NULL);
    cred_await_idle();
    set_stack(HUGE_STACK, &usual);
    clock_fake_advance(2 * NS_PER_S);
    int n = starts();
    CRED_AWAIT((cred_expect_keys(c, "AK1", NULL), starts() > n)); /* once the first look has ended */
    n = starts();
    uint64_t from_ns = clock_mono_ns();
    for (int i = 0; i < 50; i++)
        cred_expect_keys(c, "AK1", NULL);
    ck_assert_uint_le(starts() - n, 1 + (clock_mono_ns() - from_ns) / NS_PER_S); /* not for each request */
    g_autofree char *why = s3_cred_error(c);
    ck_assert_ptr_null(why);
    set_stack(0, &usual);
    put_keys("AK2");
    clock_fake_advance(2 * NS_PER_S);
    cred_await_keys(c, "AK2", NULL);
    s3_cred_close(c);
}
END_TEST

struct waiter {
    struct s3_cred *cred;
    uint64_t deadline_ns;
    int tid; /* atomic */
    int r;   /* atomic, 1: not yet */
};

static void *waiter_main(void *arg)
{
    struct waiter *w = arg;
    struct s3_keys k = {0};
    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELAXED);
    int r = s3_cred_get(w->cred, w->deadline_ns, &k);
    s3_keys_clear(&k);
    __atomic_store_n(&w->r, r, __ATOMIC_RELAXED);
    return NULL;
}

static int result_of(const struct waiter *w)
{
    return __atomic_load_n(&w->r, __ATOMIC_RELAXED);
}

static bool sleeps(const struct waiter *w)
{
    int tid = __atomic_load_n(&w->tid, __ATOMIC_RELAXED);
    g_autofree char *path = g_strdup_printf("/proc/self/task/%d/stat", tid);
    g_autofree char *text = NULL;
    return tid != 0 && g_file_get_contents(path, &text, NULL, NULL) && strstr(text, ") S ") != NULL;
}

START_TEST(whoever_waits_for_a_thread_that_could_not_be_started_goes_on)
{
    pthread_attr_t usual;
    pthread_t threads[2];
    put_keys("AK1");
    struct s3_cred *c = cred_open_ok();
    struct waiter starts_it = {.cred = c, .deadline_ns = clock_mono_ns(), .r = 1};
    struct waiter waits = {.cred = c, .deadline_ns = UINT64_MAX, .r = 1};
    int n = __atomic_load_n(&n_starts, __ATOMIC_RELAXED);
    __atomic_store_n(&held, 1, __ATOMIC_RELAXED);
    ck_assert_int_eq(pthread_create(&threads[0], NULL, waiter_main, &starts_it), 0);
    CRED_AWAIT(__atomic_load_n(&n_starts, __ATOMIC_RELAXED) > n);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, waiter_main, &waits), 0);
    CRED_AWAIT(sleeps(&waits));
    set_stack(HUGE_STACK, &usual);
    __atomic_store_n(&held, 0, __ATOMIC_RELAXED);
    CRED_AWAIT(result_of(&starts_it) == -ETIMEDOUT);
    set_stack(0, &usual);
    CRED_AWAIT(result_of(&waits) == 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    s3_cred_close(c);
}
END_TEST

/* ---- a token file that hangs ---- */

static struct s3_cred *open_web(struct fake_service *sv)
{
    fake_service_start(sv, fake_reply_sts);
    fake_service_env(sv, "AWS_ENDPOINT_URL_STS", "/");
    g_autofree char *token = cred_path("token");
    cred_put("token", 0600, "CANARY.one\n");
    setenv("AWS_ROLE_ARN", "arn", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token, 1);
    return cred_open_ok();
}

static void make_token_hang(void)
{
    g_autofree char *token = cred_path("token");
    cred_await_idle();
    ck_assert_int_eq(unlink(token), 0);
    ck_assert_int_eq(mkfifo(token, 0600), 0);
}

/* Once somebody hangs there: the writer's end. Without what give_token() writes it is the read that hangs. */
static int await_token_reader(void)
{
    g_autofree char *token = cred_path("token");
    int fd = -1;
    CRED_AWAIT((fd = open(token, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0); /* ENXIO until somebody is there */
    return fd;
}

/* Whoever hangs there goes on, with a token. */
static void give_token(int fd)
{
    ck_assert_int_eq(write(fd, "CANARY.two\n", 11), 11);
    close(fd);
}

START_TEST(renewal_that_hangs_keeps_only_those_without_keys)
{
    struct fake_service sv;
    struct s3_cred *c = open_web(&sv);
    cred_expect_keys(c, "AKSTS1", "CANARYsts");
    make_token_hang();
    clock_fake_advance(56 * MINUTE);
    for (int i = 0; i < 3; i++) {
        cred_expect_keys(c, "AKSTS1", "CANARYsts");
        CRED_AWAIT(cred_n_threads() == 1);
        clock_fake_advance(2 * NS_PER_S);
    }
    clock_fake_advance(5 * MINUTE);
    struct s3_keys k = {0};
    ck_assert_int_eq(s3_cred_get(c, clock_mono_ns() + 100 * NS_PER_MS, &k), -ETIMEDOUT);
    struct patience p;
    const int stop = 1; /* as good as a signal that kills the program */
    patience_begin(&p, 0, clock_mono_ns(), 0);
    p.stop = &stop;
    ck_assert_int_eq(s3_cred_get(c, UINT64_MAX, &k), -EINTR);
    patience_end();
    ck_assert_uint_eq(cred_n_threads(), 1);
    give_token(await_token_reader());
    cred_expect_keys(c, "AKSTS2", "CANARYsts");
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

START_TEST(thread_that_hangs_is_left_behind)
{
    struct fake_service sv;
    struct s3_cred *c = open_web(&sv);
    cred_expect_keys(c, "AKSTS1", "CANARYsts");
    make_token_hang();
    clock_fake_advance(2 * 60 * MINUTE);
    struct s3_keys k = {0};
    ck_assert_int_eq(s3_cred_get(c, clock_mono_ns(), &k), -ETIMEDOUT);
    int fd = await_token_reader(); /* a thread that is not there yet would not come any more, once closed */
    ck_assert_uint_eq(cred_n_threads(), 1);
    s3_cred_close(c);
    give_token(fd);
    cred_await_idle();
    ck_assert_uint_eq(fake_service_requests(&sv), 1); /* it asks for nothing any more */
    fake_service_stop(&sv);
}
END_TEST

/* ---- a source that fails for a while ---- */

static void end_of_wait(pthread_t thread)
{
    void *r;
    pthread_join(thread, &r);
    ck_assert_int_eq(GPOINTER_TO_INT(r), 0);
}

/* After many failures, so that the pause before the next try is long. */
START_TEST(keys_that_cannot_be_had_now_are_waited_for)
{
    struct fake_service sv;
    pthread_t waits;
    fake_service_start(&sv, fake_reply_json);
    fake_service_env(&sv, "AWS_CONTAINER_CREDENTIALS_FULL_URI", "/");
    struct s3_cred *c = cred_open_ok();
    cred_expect_keys(c, "AKJSON1", "CANARYtoken");
    fake_service_fail(&sv, 500);
    clock_fake_advance(55 * MINUTE + NS_PER_S);
    for (int i = 0; i < 5; i++) {
        int64_t n = metric_get(M_credential_refreshes);
        cred_await_renewals(c, n, 1);
        cred_expect_keys(c, "AKJSON1", "CANARYtoken");
        clock_fake_advance(50 * NS_PER_S); /* longer than the pause, even if there was a try more */
    }
    clock_fake_advance(5 * MINUTE); /* they have expired */
    int64_t n = metric_get(M_credential_refreshes);
    ck_assert_int_eq(pthread_create(&waits, NULL, cred_get_thread, c), 0);
    cred_await_renewals(c, n, 1);
    fake_service_fail(&sv, 0);
    clock_fake_advance(5 * NS_PER_S);
    end_of_wait(waits);
    cred_expect_keys(c, NULL, "CANARYtoken");
    s3_cred_close(c);
    fake_service_stop(&sv);
}
END_TEST

/* It fails until there is a file "token". */
static void put_program(void)
{
    g_autofree char *path = cred_path("script");
    g_autofree char *token = cred_path("token");
    g_autofree char *config = g_strdup_printf("[default]\ncredential_process = %s %s\n", path, token);
    cred_put(
        "script", 0700,
        "#!/bin/sh\n[ -e \"$1\" ] || exit 3\necho '{\"Version\":1,\"AccessKeyId\":\"AKPROC\",\"SecretAccessKey\":\"" SECRET
        "\",\"Expiration\":\"2999-01-01T00:00:00Z\"}'\n");
    cred_put("config", 0600, config);
}

/* The process before this one had keys of it, so what is wrong passes. */
START_TEST(program_that_fails_for_the_next_process_is_waited_for)
{
    pthread_t waits;
    put_program();
    struct s3_cred *c = cred_open_ok();
    g_autofree char *choice = s3_cred_choice(c);
    cred_expect_error(c, -EACCES, "exited with 3"); /* for who never had any it is wrong */
    s3_cred_close(c);
    cred_cfg.resume = choice;
    c = cred_open_ok();
    int64_t n = metric_get(M_credential_refreshes);
    ck_assert_int_eq(pthread_create(&waits, NULL, cred_get_thread, c), 0);
    cred_await_renewals(c, n, 2);
    cred_await_why(c, "exited with 3");
    cred_put("token", 0600, "");
    end_of_wait(waits);
    cred_expect_keys(c, "AKPROC", NULL);
    s3_cred_close(c);
}
END_TEST

START_TEST(errors_of_files_that_pass_are_told_from_refusals)
{
    ck_assert_int_eq(cred_io_error(-EIO), -EIO);
    ck_assert_int_eq(cred_io_error(-ESTALE), -EIO);
    ck_assert_int_eq(cred_io_error(-EMFILE), -EIO);
    ck_assert_int_eq(cred_io_error(-ENOENT), -EACCES);
    ck_assert_int_eq(cred_io_error(-EACCES), -EACCES);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        files_that_hang_keep_nobody_who_has_keys,
        files_that_hang_are_nothing_to_other_sources,
        renewal_that_hangs_keeps_only_those_without_keys,
        thread_that_hangs_is_left_behind,
        keys_that_cannot_be_had_now_are_waited_for,
        program_that_fails_for_the_next_process_is_waited_for,
        errors_of_files_that_pass_are_told_from_refusals,
        looks_that_no_thread_can_be_had_for_are_no_failures,
        whoever_waits_for_a_thread_that_could_not_be_started_goes_on,
    };
    Suite *s = suite_create("s3_cred_hang");
    TCase *tc = tcase_create("s3_cred_hang");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, cred_setup, cred_teardown);
    for (size_t i = 0; i < G_N_ELEMENTS(tests); i++)
        tcase_add_test(tc, tests[i]);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
