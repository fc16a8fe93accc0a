/* Memory that outlives a worker. */
#include "fs/session.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int new_memfd(void)
{
    int fd = memfd_create("session", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static struct session *map(int memfd, bool create)
{
    struct session *s = NULL;
    ck_assert_int_eq(session_map(memfd, create, &s), 0);
    return s;
}

START_TEST(private_memory_begins_empty)
{
    struct session *s = map(-1, false);
    ck_assert_uint_eq(s->head->generation, 1);
    ck_assert(!session_is_takeover(s));
    ck_assert_uint_eq(atomic_load(&s->handles[SESSION_HANDLES - 1].state), SLOT_FREE);
    ck_assert_uint_eq(atomic_load(&s->files[SESSION_FILES - 1].state), FILE_FREE);
    session_started(s);
    ck_assert(!session_is_takeover(s));
    session_unmap(s);
}
END_TEST

static void die_as_worker(int memfd, bool started)
{
    struct session *s = map(memfd, false);
    s->handles[7].ino = 42;
    atomic_store(&s->handles[7].state, SLOT_OPEN);
    if (started)
        session_started(s);
    (void)raise(SIGKILL);
}

static void run_worker(int memfd, bool started)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        die_as_worker(memfd, started);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

START_TEST(what_a_killed_worker_wrote_is_there)
{
    int memfd = new_memfd();
    session_unmap(map(memfd, true));
    run_worker(memfd, true);
    struct session *s = map(memfd, false);
    ck_assert(session_is_takeover(s));
    ck_assert_uint_eq(s->head->generation, 2);
    ck_assert_uint_eq(atomic_load(&s->handles[7].state), SLOT_OPEN);
    ck_assert_uint_eq(s->handles[7].ino, 42);
    session_unmap(s);
    s = map(memfd, true); /* a new session */
    ck_assert(!session_is_takeover(s));
    ck_assert_uint_eq(s->head->generation, 0);
    ck_assert_uint_eq(s->handles[7].ino, 0);
    session_unmap(s);
    close(memfd);
}
END_TEST

START_TEST(a_worker_that_did_not_come_up_leaves_nothing_to_take_over)
{
    int memfd = new_memfd();
    session_unmap(map(memfd, true));
    run_worker(memfd, false);
    struct session *s = map(memfd, false);
    ck_assert(!session_is_takeover(s));
    ck_assert_uint_eq(s->head->generation, 2);
    session_unmap(s);
    close(memfd);
}
END_TEST

START_TEST(another_format_is_refused)
{
    int memfd = new_memfd();
    struct session *s = map(memfd, true), *t = NULL;
    s->head->format++;
    ck_assert_int_eq(session_map(memfd, false, &t), -EPROTO);
    s->head->format--;
    session_unmap(s);
    ck_assert_int_eq(ftruncate(memfd, 4096), 0);
    ck_assert_int_eq(session_map(memfd, false, &t), -EPROTO);
    close(memfd);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("session");
    TCase *tc = tcase_create("session");
    tcase_add_test(tc, private_memory_begins_empty);
    tcase_add_test(tc, what_a_killed_worker_wrote_is_there);
    tcase_add_test(tc, a_worker_that_did_not_come_up_leaves_nothing_to_take_over);
    tcase_add_test(tc, another_format_is_refused);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
