/* The command's side of the control socket, against a daemon that says what the test has written down: workers that end before they have answered. */
#include "base/clock.h"
#include "fs/ctl.h"
#include "fs/ctl_proto.h"
#include "tests/support/checks.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"

#include <check.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNT     "/some/where/else"
#define DONE      "{\"event\":\"done\",\"exit\":0}\n"
#define CUT_OFF   "{\"event\":\"done\",\"exit\":1,\"message\":\"the daemon ends\",\"again\":true}\n"
#define PROGRESS  "{\"event\":\"progress\",\"files_left\":1}\n"
#define INFO(p)   "{\"event\":\"info\",\"path\":\"" p "\"}\n"
#define MAX_TIMES 16

/* One connection: what is said before it is closed. */
struct answer {
    const char *text;
    unsigned later_s; /* passes before that */
};

static struct mount_point mp = {.path = (char[]){MOUNT}, .relative = (char[]){""}};
static char *dir;
static GString *complaints, *lines;
static const struct answer *script;
static const char *replacement; /* socket that takes the name's place after the first answer */
static json_t *requests[MAX_TIMES];
static unsigned n_requests;
static int listen_fd;
static int server_ended; /* atomic */

void complain(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_string_append_vprintf(complaints, fmt, ap);
    va_end(ap);
    g_string_append_c(complaints, '\n');
}

static json_t *read_request(int fd)
{
    g_autoptr(GString) text = g_string_new(NULL);
    char byte;
    while (recv(fd, &byte, 1, 0) == 1 && byte != '\n')
        g_string_append_c(text, byte);
    return json_loads(text->str, 0, NULL);
}

/* Detached: a child that looks at the mount is forked meanwhile, and ends without it. */
static void *server_main(void *unused)
{
    (void)pthread_detach(pthread_self());
    for (const struct answer *a = script; a->text; a++) {
        int fd = accept(listen_fd, NULL, NULL);
        ck_assert_int_ge(fd, 0);
        ck_assert_uint_lt(n_requests, MAX_TIMES);
        requests[n_requests++] = read_request(fd);
        clock_fake_advance(a->later_s * NS_PER_S);
        g_autofree char *path = ctl_socket_path(MOUNT);
        if (replacement)
            ck_assert_int_eq(rename(replacement, path), 0);
        else if (!a[1].text)
            ctl_unlisten(MOUNT); /* nobody is there any more, before the client knows */
        ck_assert_int_eq(send(fd, a->text, strlen(a->text), MSG_NOSIGNAL), strlen(a->text));
        close(fd);
    }
    g_atomic_int_set(&server_ended, 1);
    return NULL;
}

static void start_server(const struct answer *answers)
{
    pthread_t thread;
    script = answers;
    g_atomic_int_set(&server_ended, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, server_main, NULL), 0);
}

static void await_server(void)
{
    while (!g_atomic_int_get(&server_ended))
        g_usleep(1000);
}

static void setup(void)
{
    dir = g_dir_make_tmp("sluice-ctl-XXXXXX", NULL);
    mp.uid = geteuid();
    if (geteuid() != 0)
        g_setenv("XDG_RUNTIME_DIR", dir, TRUE);
    complaints = g_string_new(NULL);
    lines = g_string_new(NULL);
    n_requests = 0;
    replacement = NULL;
    ck_assert_int_eq(ctl_listen(MOUNT, &listen_fd), 0);
}

static void teardown(void)
{
    ctl_unlisten(MOUNT);
    close(listen_fd);
    while (n_requests > 0)
        json_decref(requests[--n_requests]);
    g_string_free(complaints, TRUE);
    g_string_free(lines, TRUE);
    rmdir(dir);
    g_free(dir);
}

/* "info a, again, info b, " */
static void on_line(void *ctx, const json_t *line)
{
    const char *path = json_string_value(json_object_get(line, "path"));
    g_string_append_printf(lines, "%s%s%s, ", json_string_value(json_object_get(line, "event")), path ? " " : "",
                           path ? path : "");
}

/* The exit code of a request to a daemon that answers so. */
static int ask(json_t *req, const struct answer *answers)
{
    start_server(answers);
    int code = ctl_request(&mp, req, 30, on_line, NULL);
    await_server();
    return code;
}

static json_t *verb(const char *name)
{
    return json_pack("{s:s}", "verb", name);
}

static json_int_t number(unsigned i, const char *name)
{
    return json_integer_value(json_object_get(requests[i], name));
}

START_TEST(wait_is_asked_of_the_next_worker)
{
    static const struct answer answers[] = {{PROGRESS, 2}, {CUT_OFF, 1}, {PROGRESS DONE}, {0}};
    ck_assert_int_eq(ask(json_pack("{s:s,s:i}", "verb", "wait", "timeout_s", 50), answers), EXIT_DONE);
    ck_assert_uint_eq(n_requests, 3);
    ck_assert_ptr_null(json_object_get(requests[0], "again"));
    ck_assert(json_is_true(json_object_get(requests[1], "again")));
    ck_assert_int_eq(number(0, "timeout_s"), 50);
    ck_assert_int_le(number(1, "timeout_s"), 48);
    ck_assert_int_le(number(2, "timeout_s"), 47);
    ck_assert_int_ge(number(2, "timeout_s"), 20);
    ck_assert_str_eq(lines->str, "progress, again, again, progress, ");
    ck_assert_str_eq(complaints->str, "");
}
END_TEST

START_TEST(wait_goes_on_however_often_workers_end)
{
    static const struct answer answers[] = {{""},      {""}, {CUT_OFF}, {""}, {PROGRESS}, {""},
                                            {CUT_OFF}, {""}, {""},      {""}, {DONE},     {0}};
    ck_assert_int_eq(ask(verb("wait"), answers), EXIT_DONE);
    ck_assert_uint_eq(n_requests, 11);
    ck_assert_ptr_null(json_object_get(requests[10], "timeout_s"));
}
END_TEST

START_TEST(wait_ends_when_its_time_is_up)
{
    static const struct answer answers[] = {{PROGRESS, 6}, {0}};
    ck_assert_int_eq(ask(json_pack("{s:s,s:i}", "verb", "wait", "timeout_s", 5), answers), EXIT_TIME);
    ck_assert_ptr_nonnull(strstr(complaints->str, "time ran out"));
}
END_TEST

START_TEST(decision_is_not_made_twice)
{
    static const struct answer killed[] = {{"", 0}, {0}}, cut_off[] = {{CUT_OFF, 0}, {0}};
    ck_assert_int_eq(ask(json_pack("{s:s,s:s}", "verb", "publish", "action", "skip"), killed), EXIT_FAILED);
    ck_assert_ptr_nonnull(strstr(complaints->str, "`sluice info` tells"));
    ck_assert_uint_eq(n_requests, 1);
    close(listen_fd);
    ck_assert_int_eq(ctl_listen(MOUNT, &listen_fd), 0);
    ck_assert_int_eq(ask(json_pack("{s:s,s:s,s:i}", "verb", "conflicts", "action", "keep-theirs", "id", 3), cut_off),
                     EXIT_FAILED);
    ck_assert_ptr_nonnull(strstr(complaints->str, "the daemon ends"));
    ck_assert_uint_eq(n_requests, 2);
}
END_TEST

/* One that makes workers die must not end the mount. */
START_TEST(what_is_not_a_wait_is_asked_a_few_times)
{
    static const struct answer answers[] = {{""}, {CUT_OFF}, {""}, {""}, {0}};
    ck_assert_int_eq(ask(json_pack("{s:s,s:s}", "verb", "conflicts", "action", "list"), answers), EXIT_FAILED);
    ck_assert_uint_eq(n_requests, 4);
    ck_assert_str_eq(complaints->str, MOUNT " was unmounted before this was done\n"); /* the mount is asked for then */
}
END_TEST

START_TEST(workers_that_lived_long_do_not_count)
{
    static const struct answer answers[] = {{"", 70}, {"", 70}, {"", 70}, {"", 70}, {"", 70}, {"", 70}, {DONE, 0}, {0}};
    start_server(answers);
    ck_assert_int_eq(ctl_request(&mp, verb("warmup"), 7200, on_line, NULL), EXIT_DONE);
    await_server();
    ck_assert_uint_eq(n_requests, 7);
}
END_TEST

START_TEST(lines_are_told_once)
{
    static const struct answer answers[] = {
        {INFO("a") "{\"event\":\"error\",\"path\":\"x\"}\n", 0},
        {INFO("a") INFO("b") INFO("b"), 0},
        {INFO("a") INFO("b") INFO("c") "{\"event\":\"error\",\"path\":\"x\"}\n" DONE, 0},
        {0}};
    ck_assert_int_eq(ask(verb("info"), answers), EXIT_DONE);
    ck_assert_str_eq(lines->str, "info a, error x, again, info b, info b, again, info c, error x, ");
}
END_TEST

START_TEST(unmounted_meanwhile)
{
    static const struct answer answers[] = {{CUT_OFF, 0}, {0}};
    ck_assert_int_eq(ask(verb("wait"), answers), EXIT_FAILED);
    ck_assert_str_eq(complaints->str, MOUNT " was unmounted before this was done\n");
}
END_TEST

START_TEST(stop_of_what_is_gone_is_done)
{
    static const struct answer answers[] = {{"", 0}, {0}};
    ck_assert_int_eq(ask(verb("stop"), answers), EXIT_DONE);
    ck_assert_str_eq(complaints->str, "");
}
END_TEST

/* A process that listens at path, and nothing else. */
static pid_t start_listener(const char *path)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    g_autofree char *ours = ctl_socket_path(MOUNT), *kept = g_strconcat(ours, ".kept", NULL);
    ck_assert_int_eq(rename(ours, kept), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = -1;
        (void)!write(ends[1], ctl_listen(MOUNT, &fd) == 0 ? "y" : "n", 1);
        for (;;)
            pause();
    }
    char said = 'n';
    ck_assert_int_eq(read(ends[0], &said, 1), 1);
    ck_assert_int_eq(said, 'y');
    close(ends[0]);
    close(ends[1]);
    ck_assert_int_eq(rename(ours, path), 0);
    ck_assert_int_eq(rename(kept, ours), 0);
    return pid;
}

START_TEST(next_mount_of_that_name_is_not_asked)
{
    static const struct answer answers[] = {{"", 0}, {0}};
    g_autofree char *ours = ctl_socket_path(MOUNT), *theirs = g_strconcat(ours, ".theirs", NULL);
    pid_t pid = start_listener(theirs);
    replacement = theirs;
    int code = ask(verb("stop"), answers);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(code, EXIT_DONE);
    ck_assert_str_eq(complaints->str, "");
}
END_TEST

START_TEST(nobody_there_at_first_is_told_as_before)
{
    ctl_unlisten(MOUNT);
    ck_assert_int_eq(ctl_request(&mp, verb("wait"), 30, NULL, NULL), EXIT_FAILED);
    ck_assert_ptr_nonnull(strstr(complaints->str, "does not listen here"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_client");
    TCase *tc = tcase_create("ctl_client");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, wait_is_asked_of_the_next_worker);
    tcase_add_test(tc, wait_goes_on_however_often_workers_end);
    tcase_add_test(tc, wait_ends_when_its_time_is_up);
    tcase_add_test(tc, decision_is_not_made_twice);
    tcase_add_test(tc, what_is_not_a_wait_is_asked_a_few_times);
    tcase_add_test(tc, workers_that_lived_long_do_not_count);
    tcase_add_test(tc, lines_are_told_once);
    tcase_add_test(tc, unmounted_meanwhile);
    tcase_add_test(tc, stop_of_what_is_gone_is_done);
    tcase_add_test(tc, next_mount_of_that_name_is_not_asked);
    tcase_add_test(tc, nobody_there_at_first_is_told_as_before);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
