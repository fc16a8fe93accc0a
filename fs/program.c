/* See program.h. */
#include "program.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "meta.h"
#include "session.h"

#include <fcntl.h>
#include <glib.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_NS (5 * NS_PER_S)

char *program_formats(void)
{
    return g_strdup_printf("session=%u database=%u", SESSION_FORMAT, META_FORMAT);
}

void program_exec(int fd, char *const argv[])
{
    (void)syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH);
}

/* The child: never returns. */
static void become_asked(int fd, int answer)
{
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)dup2(answer, STDOUT_FILENO);
    program_exec(fd, (char *[]){(char[]){"sluice"}, (char[]){"--worker-formats"}, NULL});
    _exit(1);
}

/* Reads until the end, at most what fits into text, at most ANSWER_NS. */
static void read_answer(int fd, char *text, size_t size)
{
    uint64_t until = clock_mono_ns() + ANSWER_NS, now;
    size_t len = 0;
    while (len + 1 < size && (now = clock_mono_ns()) < until) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&p, 1, (int)((until - now) / NS_PER_MS) + 1) == 1 ? read(fd, text + len, size - len - 1) : -1;
        if (n == 0)
            break;
        len += n > 0 ? (size_t)n : 0;
    }
    text[len] = '\0';
}

static int ask(int fd, char *text, size_t size)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        become_asked(fd, ends[1]);
    (void)close(ends[1]);
    if (pid > 0)
        read_answer(ends[0], text, size);
    (void)close(ends[0]);
    if (pid < 0)
        return -EAGAIN;
    (void)kill(pid, SIGKILL); /* what it has not said by now */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return 0;
}

int program_open(const char *path, int *ret_fd, char **ret_msg)
{
    char text[128] = "";
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_PATH | O_CLOEXEC));
    int r = fd < 0 ? fd : ask(fd, text, sizeof(text));
    if (r < 0) {
        *ret_msg = g_strdup_printf("%s: %s", path, err_text(r));
        return -EINVAL;
    }
    g_autofree char *ours = program_formats();
    if (strcmp(g_strchomp(text), ours) != 0) {
        *ret_msg = g_strdup_printf("%s cannot take over (it says '%s', this daemon '%s'): unmount, then mount with it",
                                   path, text, ours);
        return -EINVAL;
    }
    *ret_fd = steal_fd(&fd);
    return 0;
}
