/*
 * credential_process: runs the command of a profile and reads its JSON.
 *
 * The command is split like a shell would (quotes, backslashes) but not run by one. It gets its own process group, no stdin, stderr
 * to nowhere (what it prints there may hold secrets), the environment with the secrets that we took out of ours, and no descriptor of ours; after 60 s or at shutdown the group is killed.
 * Blocking, any thread, no lock. posix_spawn instead of fork: the daemon has many threads and a large heap.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "s3_cred_int.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESS_TIMEOUT_NS (60 * NS_PER_S)
#define OUTPUT_CAP_BYTES   (64u << 10)
#define POLL_SLICE_MS      100

static int spawn(char **argv, int out_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addopen(&fa, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&fa, out_fd, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&fa, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&fa, STDERR_FILENO + 1);
    posix_spawnattr_init(&at);
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&at, 0);
    posix_spawnattr_setsigmask(&at, &none);
    posix_spawnattr_setsigdefault(&at, &all);
    char **env = cred_child_env_new();
    int r = -posix_spawnp(ret_pid, argv[0], &fa, &at, argv, env);
    cred_child_env_free(env);
    posix_spawnattr_destroy(&at);
    posix_spawn_file_actions_destroy(&fa);
    return r;
}

static int check_time(const struct cred_run *run, uint64_t deadline_ns)
{
    if (atomic_load_explicit(run->stop, memory_order_relaxed))
        return -ECANCELED;
    return clock_mono_ns() >= deadline_ns ? -ETIMEDOUT : 0;
}

/* Reads until end of file. out has room for OUTPUT_CAP_BYTES. */
static int read_output(const struct cred_run *run, int fd, uint64_t deadline_ns, char *out, size_t *ret_len)
{
    size_t len = 0;
    for (;;) {
        int r = check_time(run, deadline_ns);
        if (r < 0)
            return r;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        r = RET_ERRNO(poll(&p, 1, POLL_SLICE_MS));
        if (r == 0 || r == -EINTR)
            continue;
        if (r < 0)
            return r;
        ssize_t n = RET_ERRNO(read(fd, out + len, OUTPUT_CAP_BYTES - len));
        if (n == -EINTR)
            continue;
        if (n < 0)
            return (int)n;
        len += (size_t)n;
        *ret_len = len;
        if (n == 0)
            return 0;
        if (len == OUTPUT_CAP_BYTES)
            return -EMSGSIZE;
    }
}

/* Waits for the end; gives the wait status, 0 where somebody else reaped it. */
static int reap(const struct cred_run *run, pid_t pid, uint64_t deadline_ns, int *ret_status)
{
    for (;;) {
        int status;
        pid_t w = RET_ERRNO(waitpid(pid, &status, WNOHANG));
        if (w == pid || w == -ECHILD) {
            *ret_status = w == pid ? status : 0;
            return 0;
        }
        int r = check_time(run, deadline_ns);
        if (r < 0)
            return r;
        (void)poll(NULL, 0, 5); /* a short sleep */
    }
}

static void kill_group(pid_t pid)
{
    (void)kill(-pid, SIGKILL); /* it may have ended by itself */
    (void)waitpid(pid, NULL, 0);
}

static int run_command(const struct cred_run *run, char **argv, char *out, size_t *ret_len, int *ret_status)
{
    int fds[2];
    int r = RET_ERRNO(pipe2(fds, O_CLOEXEC));
    if (r < 0)
        return r;
    CLEANUP_FD int in = fds[0];
    pid_t pid;
    r = spawn(argv, fds[1], &pid);
    (void)close(fds[1]); /* the child has its own */
    if (r < 0)
        return r;
    uint64_t deadline_ns = clock_mono_ns() + PROCESS_TIMEOUT_NS;
    r = read_output(run, in, deadline_ns, out, ret_len);
    if (r == 0)
        r = reap(run, pid, deadline_ns, ret_status);
    if (r < 0)
        kill_group(pid);
    return r;
}

int cred_process_fetch(const struct cred_run *run, const char *command, struct s3_keys *ret_keys)
{
    g_auto(GStrv) argv = NULL;
    if (!g_shell_parse_argv(command, NULL, &argv, NULL)) {
        g_string_append(run->why, "credential_process: unbalanced quotes in the command. ");
        return -EACCES;
    }
    char *out = g_malloc0(OUTPUT_CAP_BYTES);
    size_t len = 0;
    int status = 0;
    int r = run_command(run, argv, out, &len, &status);
    if (r == -ETIMEDOUT) {
        g_string_append_printf(run->why, "credential_process %s did not end within 60 s. ", argv[0]);
    } else if (r < 0) {
        g_string_append_printf(run->why, "credential_process %s: %s. ", argv[0], err_text(r));
        r = r == -ECANCELED ? r : cred_io_error(r);
    } else if (status != 0) {
        g_string_append_printf(run->why, "credential_process %s %s %d: run it by hand to see why. ", argv[0],
                               WIFEXITED(status) ? "exited with" : "ended by signal",
                               WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        r = -ECHILD;
    } else {
        g_autoptr(GString) why = g_string_new(NULL);
        r = cred_keys_from_json(out, len, "SessionToken", true, ret_keys, why);
        if (r < 0)
            g_string_append_printf(run->why, "credential_process %s: %s", argv[0], why->str);
    }
    explicit_bzero(out, len);
    g_free(out);
    return r;
}
