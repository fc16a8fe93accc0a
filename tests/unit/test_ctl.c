/* Control socket over real sockets with made-up verbs: limits, malformed requests, clients that leave, stopping. */
#include "base/clock.h"
#include "base/log.h"
#include "fs/ctl.h"
#include "fs/ctl_proto.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib.h>
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNT "/some/where"

static struct ctl *ctl;
static char *dir;
static atomic_int n_running, n_saw_gone;

static int verb_echo(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    return ctl_emit(client, json_pack("{s:s,s:O}", "event", "echo", "text", json_object_get(req, "text"))) < 0;
}

static int verb_fail(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    ctl_fail(client, "no %s today", "luck");
    return 1;
}

static int verb_linger(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    n_running++;
    while (!ctl_gone(client))
        g_usleep(10000); /* there may be hundreds of these */
    n_saw_gone++;
    n_running--;
    return 3;
}

/* As a verb that was cut off says, or one that failed. */
static int verb_give_up(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    (void)verb_linger(fs, client, req);
    return 1;
}

static int verb_flood(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    int r = 0;
    n_running++;
    while (r == 0)
        r = ctl_emit(client, json_pack("{s:s}", "event", "flood"));
    ck_assert_int_eq(r, -EPIPE);
    ck_assert(ctl_gone(client));
    n_saw_gone++;
    n_running--;
    return 1;
}

static const struct ctl_verb verbs[] = {{"echo", verb_echo},
                                        {"fail", verb_fail},
                                        {"linger", verb_linger},
                                        {"wait", verb_linger, .waits = true},
                                        {"flood", verb_flood},
                                        {"give-up", verb_give_up},
                                        {NULL, NULL}};

static int start(struct ctl **ret)
{
    int fd = -1;
    int r = ctl_listen(MOUNT, &fd);
    return r < 0 ? r : ctl_start(NULL, fd, verbs, ret);
}

static void stop(void)
{
    ctl_unlisten(MOUNT);
    ctl_stop(ctl);
    ctl = NULL;
}

static void setup(void)
{
    dir = g_dir_make_tmp("sluice-ctl-XXXXXX", NULL);
    if (geteuid() != 0)
        g_setenv("XDG_RUNTIME_DIR", dir, TRUE);
    n_running = n_saw_gone = 0;
    ck_assert_int_eq(start(&ctl), 0);
}

static void teardown(void)
{
    stop();
    rmdir(dir);
    g_free(dir);
}

static int dial_path(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    g_strlcpy(addr.sun_path, path, sizeof addr.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

static int dial(void)
{
    g_autofree char *path = ctl_socket_path(MOUNT);
    return dial_path(path);
}

/* All that comes until the server closes. */
static char *drain(int fd)
{
    GString *s = g_string_new(NULL);
    char buf[4096];
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        g_string_append_len(s, buf, n);
    close(fd);
    return g_string_free(s, FALSE);
}

static char *ask(const char *text)
{
    int fd = dial();
    ck_assert_int_eq(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return drain(fd);
}

static void wait_for(atomic_int *what, int value)
{
    for (int i = 0; i < 60000 && *what != value; i++)
        g_usleep(1000);
    ck_assert_int_eq(*what, value);
}

START_TEST(verb_answers_and_done_comes_last)
{
    g_autofree char *a = ask("{\"verb\":\"echo\",\"text\":\"h\\u00e9\"}\n");
    ck_assert_str_eq(a, "{\"event\":\"echo\",\"text\":\"h\xc3\xa9\"}\n{\"event\":\"done\",\"exit\":0}\n");
}
END_TEST

START_TEST(failure_carries_its_message)
{
    g_autofree char *a = ask("{\"verb\":\"fail\"}\n");
    ck_assert_str_eq(a, "{\"event\":\"done\",\"exit\":1,\"message\":\"no luck today\"}\n");
}
END_TEST

START_TEST(malformed_requests_are_refused)
{
    static const char *const bad[] = {"\n",
                                      "nonsense\n",
                                      "[]\n",
                                      "{\"verb\":3}\n",
                                      "{}\n",
                                      "{\"verb\":\"\"}\n",
                                      "{\"verb\":\"dance\"}\n",
                                      "{\"verb\":\"echo\",\"verb\":\"fail\"}\n",
                                      "{\"verb\":\"echo\"\n",
                                      "\xff\xfe\n"};
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autofree char *a = ask(bad[i]);
        json_t *line = json_loads(a, 0, NULL);
        ck_assert_msg(line != NULL, "%u: %s", i, a);
        ck_assert_int_eq(json_integer_value(json_object_get(line, "exit")), 1);
        ck_assert_ptr_nonnull(json_string_value(json_object_get(line, "message")));
        json_decref(line);
    }
}
END_TEST

START_TEST(oversized_request_is_refused)
{
    g_autofree char *big = g_malloc(CTL_MAX_LINE + 65536);
    memset(big, ' ', CTL_MAX_LINE + 65536);
    int fd = dial();
    (void)!send(fd, big, CTL_MAX_LINE + 65536, MSG_NOSIGNAL); /* the server may close before it has all */
    g_autofree char *a = drain(fd);
    ck_assert(a[0] == '\0' || strstr(a, "longer than"));
    g_autofree char *b = ask("{\"verb\":\"fail\"}\n");
    ck_assert_ptr_nonnull(strstr(b, "luck"));
}
END_TEST

START_TEST(request_at_the_limit_is_served)
{
    const char *head = "{\"verb\":\"fail\"}";
    g_autofree char *big = g_malloc(CTL_MAX_LINE + 1);
    memset(big, ' ', CTL_MAX_LINE);
    memcpy(big, head, strlen(head));
    big[CTL_MAX_LINE] = '\n';
    int fd = dial();
    for (size_t done = 0; done < CTL_MAX_LINE + 1;) {
        ssize_t n = send(fd, big + done, CTL_MAX_LINE + 1 - done, MSG_NOSIGNAL);
        ck_assert_int_gt(n, 0);
        done += (size_t)n;
    }
    g_autofree char *a = drain(fd);
    ck_assert_ptr_nonnull(strstr(a, "luck"));
}
END_TEST

START_TEST(client_that_hangs_up_without_newline_is_forgotten)
{
    int fd = dial();
    (void)!send(fd, "{\"ver", 6, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    g_autofree char *a = drain(fd);
    ck_assert_ptr_nonnull(strstr(a, "did not arrive"));
}
END_TEST

START_TEST(verb_learns_that_its_client_left)
{
    int fd = dial();
    (void)!send(fd, "{\"verb\":\"linger\"}\n", 18, MSG_NOSIGNAL);
    wait_for(&n_running, 1);
    close(fd);
    wait_for(&n_saw_gone, 1);
    fd = dial();
    (void)!send(fd, "{\"verb\":\"flood\"}\n", 17, MSG_NOSIGNAL);
    wait_for(&n_running, 1);
    close(fd);
    wait_for(&n_saw_gone, 2);
}
END_TEST

START_TEST(client_beyond_the_limit_is_turned_away)
{
    int fds[CTL_MAX_CLIENTS];
    for (int i = 0; i < CTL_MAX_CLIENTS; i++) {
        fds[i] = dial();
        (void)!send(fds[i], "{\"verb\":\"linger\"}\n", 18, MSG_NOSIGNAL);
    }
    wait_for(&n_running, CTL_MAX_CLIENTS);
    g_autofree char *a = drain(dial());
    ck_assert_ptr_nonnull(strstr(a, "too many"));
    close(fds[0]);
    wait_for(&n_running, CTL_MAX_CLIENTS - 1);
    g_usleep(20000);
    g_autofree char *b = ask("{\"verb\":\"fail\"}\n");
    ck_assert_ptr_nonnull(strstr(b, "luck"));
    for (int i = 1; i < CTL_MAX_CLIENTS; i++)
        close(fds[i]);
}
END_TEST

START_TEST(commands_that_wait_leave_room_for_others)
{
    int fds[CTL_MAX_WAITING];
    for (int i = 0; i < CTL_MAX_WAITING; i++) {
        fds[i] = dial();
        (void)!send(fds[i], "{\"verb\":\"wait\"}\n", 16, MSG_NOSIGNAL);
    }
    wait_for(&n_running, CTL_MAX_WAITING);
    g_autofree char *one_more = ask("{\"verb\":\"wait\"}\n");
    ck_assert_ptr_nonnull(strstr(one_more, "too many commands wait at once"));
    g_autofree char *other = ask("{\"verb\":\"fail\"}\n");
    ck_assert_ptr_nonnull(strstr(other, "luck"));
    close(fds[0]);
    wait_for(&n_running, CTL_MAX_WAITING - 1);
    fds[0] = -1;
    for (int i = 0; i < 500 && n_running != CTL_MAX_WAITING;
         i++) { /* its place is free a moment after the verb's end */
        if (fds[0] >= 0)
            close(fds[0]);
        fds[0] = dial();
        (void)!send(fds[0], "{\"verb\":\"wait\"}\n", 16, MSG_NOSIGNAL);
        for (int k = 0; k < 100 && n_running != CTL_MAX_WAITING; k++)
            g_usleep(1000);
    }
    wait_for(&n_running, CTL_MAX_WAITING);
    for (int i = 0; i < CTL_MAX_WAITING; i++)
        close(fds[i]);
}
END_TEST

START_TEST(stop_ends_running_verbs_which_still_answer)
{
    int fd = dial();
    (void)!send(fd, "{\"verb\":\"linger\"}\n", 18, MSG_NOSIGNAL);
    wait_for(&n_running, 1);
    stop();
    ck_assert_int_eq(n_saw_gone, 1);
    g_autofree char *a = drain(fd);
    ck_assert_ptr_nonnull(strstr(a, "\"exit\":3"));
    g_autofree char *path = ctl_socket_path(MOUNT);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

START_TEST(verb_that_stop_cuts_off_may_be_asked_again)
{
    int fd = dial();
    (void)!send(fd, "{\"verb\":\"give-up\"}\n", 19, MSG_NOSIGNAL);
    wait_for(&n_running, 1);
    stop();
    g_autofree char *a = drain(fd);
    ck_assert_ptr_nonnull(strstr(a, "\"again\":true"));
    ck_assert_ptr_nonnull(strstr(a, "ended before"));
}
END_TEST

START_TEST(second_daemon_on_a_mount_is_refused_but_a_stale_socket_is_not)
{
    struct ctl *other;
    ck_assert_int_eq(start(&other), -EBUSY);
    stop();
    g_autofree char *path = ctl_socket_path(MOUNT);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    g_strlcpy(addr.sun_path, path, sizeof addr.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    close(fd);
    ck_assert_int_eq(start(&ctl), 0);
}
END_TEST

static void *start_next(void *arg)
{
    struct ctl **next = arg;
    while (start(next) == -EBUSY)
        ;
    return NULL;
}

/* One daemon ends while the next tries to start: whoever listens last is found. */
START_TEST(stopping_leaves_the_socket_of_the_next_daemon)
{
    g_autofree char *path = ctl_socket_path(MOUNT);
    for (unsigned i = 0; i < 2000; i++) {
        struct ctl *next = NULL;
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, start_next, &next), 0);
        stop();
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ctl = next;
        ck_assert_ptr_nonnull(ctl);
        ck_assert_msg(access(path, F_OK) == 0, "the socket went away in round %u", i);
    }
}
END_TEST

/* Who asks while the one who served is gone and the next is not there yet waits. */
START_TEST(socket_outlives_who_serves_it)
{
    int listen_fd = -1;
    stop();
    ck_assert_int_eq(ctl_listen(MOUNT, &listen_fd), 0);
    ck_assert_int_eq(ctl_start(NULL, dup(listen_fd), verbs, &ctl), 0);
    ctl_stop(ctl);
    ctl = NULL;
    int fd = dial();
    ck_assert_int_eq(send(fd, "{\"verb\":\"fail\"}\n", 16, MSG_NOSIGNAL), 16);
    ck_assert_int_eq(ctl_start(NULL, listen_fd, verbs, &ctl), 0);
    g_autofree char *a = drain(fd);
    ck_assert_ptr_nonnull(strstr(a, "no luck today"));
}
END_TEST

START_TEST(socket_is_for_its_owner_only)
{
    g_autofree char *path = ctl_socket_path(MOUNT);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
}
END_TEST

START_TEST(other_user_is_refused)
{
    if (geteuid() != 0)
        return; /* only root can become somebody else */
    g_autofree char *path = ctl_socket_path(MOUNT);
    ck_assert_int_eq(chmod(path, 0666), 0); /* so that the check of the peer is what refuses */
    g_autofree char *rundir = g_path_get_dirname(path);
    ck_assert_int_eq(chmod(rundir, 0755), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (setgid(65534) < 0 || setuid(65534) < 0)
            _exit(9);
        int fd = dial_path(path);
        (void)!send(fd, "{\"verb\":\"fail\"}\n", 16, MSG_NOSIGNAL);
        g_autofree char *a = drain(fd);
        _exit(strstr(a, "only root") && !strstr(a, "luck") ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(chmod(rundir, 0700), 0);
    ck_assert_int_eq(status, 0);
}
END_TEST

int main(void)
{
    (void)log_open(NULL, LOG_LEVEL_ERR);
    Suite *s = suite_create("ctl");
    TCase *tc = tcase_create("ctl");
    tcase_set_timeout(tc, 30);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, verb_answers_and_done_comes_last);
    tcase_add_test(tc, failure_carries_its_message);
    tcase_add_test(tc, malformed_requests_are_refused);
    tcase_add_test(tc, oversized_request_is_refused);
    tcase_add_test(tc, request_at_the_limit_is_served);
    tcase_add_test(tc, client_that_hangs_up_without_newline_is_forgotten);
    tcase_add_test(tc, verb_learns_that_its_client_left);
    tcase_add_test(tc, client_beyond_the_limit_is_turned_away);
    tcase_add_test(tc, commands_that_wait_leave_room_for_others);
    tcase_add_test(tc, stop_ends_running_verbs_which_still_answer);
    tcase_add_test(tc, verb_that_stop_cuts_off_may_be_asked_again);
    tcase_add_test(tc, second_daemon_on_a_mount_is_refused_but_a_stale_socket_is_not);
    tcase_add_test(tc, stopping_leaves_the_socket_of_the_next_daemon);
    tcase_add_test(tc, socket_outlives_who_serves_it);
    tcase_add_test(tc, socket_is_for_its_owner_only);
    tcase_add_test(tc, other_user_is_refused);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
