/*
 * `sluice bench DIR`: options, the directory to work in, and its end.
 *
 * The measuring runs in a child. So the directory is removed however that ends: done, failed, by a signal to either of them, or by a
 * bus error of a mapping; and a filesystem that hangs is given up by killing the child.
 */
#include "tools/bench.h"
#include "tools/cmd.h"

#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_SIZE_BYTES  (1ull << 40)
#define MAX_SMALL       100000
#define AT_ONCE_US      200000
#define REMOVE_ATTEMPTS 3 /* a listing may miss names while others are removed */
#define NFTW_FDS        16

static bool dir_is_good(const struct bench_options *o)
{
    struct stat st;
    struct statvfs fs;
    if (stat(o->dir, &st) < 0 || statvfs(o->dir, &fs) < 0) {
        complain("'%s': %s", o->dir, err_text(errno));
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        complain("'%s' is not a directory", o->dir);
        return false;
    }
    uint64_t need = bench_bytes(o);
    if (fs.f_blocks == 0 || need / fs.f_frsize < fs.f_bavail) /* no blocks: the filesystem does not tell */
        return true;
    g_autofree char *has = human_bytes((uint64_t)fs.f_bavail * fs.f_frsize), *wants = human_bytes(need);
    complain("'%s' has %s free, %s are needed; choose a smaller --size", o->dir, has, wants);
    return false;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)remove(path); /* what stays is seen at the end */
    return 0;
}

static bool remove_tree(const char *path)
{
    for (unsigned i = 0; i < REMOVE_ATTEMPTS && access(path, F_OK) == 0; i++)
        (void)nftw(path, remove_entry, NFTW_FDS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    return access(path, F_OK) < 0 && errno == ENOENT;
}

/* The second Ctrl-C ends this process too: the filesystem may hang. What comes at once is still the first: timeout(1) sends it to the
 * process and to its group. */
static void allow_second_interrupt(void)
{
    const struct timespec no_time = {0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    (void)usleep(AT_ONCE_US); /* only a pause */
    while (sigtimedwait(&set, NULL, &no_time) > 0)
        ;
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Waits for the end of the child; true when a signal to this process ended it. */
static bool wait_for(pid_t child, const sigset_t *set, int *ret_status)
{
    bool interrupted = false;
    for (;;) {
        int sig = sigwaitinfo(set, NULL);
        if (sig > 0 && sig != SIGCHLD && !interrupted) {
            interrupted = true;
            (void)kill(child, SIGKILL); /* not waited for yet, so it is still the child */
            allow_second_interrupt();
        }
        if (waitpid(child, ret_status, WNOHANG) == child)
            return interrupted;
    }
}

static int exit_code_of(const struct bench_options *o, bool interrupted, int status)
{
    if (o->progress.mode == PROGRESS_BAR && (interrupted || WIFSIGNALED(status)))
        fputc('\n', stderr); /* after the bar that the child may have left */
    if (interrupted)
        complain("interrupted");
    else if (WIFSIGNALED(status))
        complain("the measuring was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return !interrupted && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED;
}

/* Measures in a child while this process waits for its end or a signal. The signals of set are blocked; old is the mask before. */
static int run_child(struct bench_options *o, const char *work, const sigset_t *set, const sigset_t *old)
{
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0) {
        complain("no process to measure in: %s", err_text(errno));
        return EXIT_FAILED;
    }
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* cannot fail with a signal's number */
        (void)sigprocmask(SIG_SETMASK, old, NULL);
        exit(getppid() == parent ? bench_measure(o, work) : EXIT_FAILED);
    }
    int status = 0;
    bool interrupted = wait_for(child, set, &status);
    return exit_code_of(o, interrupted, status);
}

static int run(struct bench_options *o)
{
    static const int signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigset_t set, old;
    sigemptyset(&set);
    for (unsigned i = 0; i < G_N_ELEMENTS(signals); i++)
        sigaddset(&set, signals[i]);
    (void)signal(SIGCHLD, SIG_DFL); /* who ignores it never hears of its children */
    (void)sigprocmask(SIG_BLOCK, &set, &old);
    g_autofree char *work = g_build_filename(o->dir, ".sluice-bench-XXXXXX", NULL);
    int code = EXIT_FAILED;
    if (!g_mkdtemp(work)) {
        complain("cannot write in '%s': %s", o->dir, err_text(errno));
    } else {
        code = run_child(o, work, &set, &old);
        if (!remove_tree(work)) {
            complain("'%s' could not be removed", work);
            code = EXIT_FAILED;
        }
    }
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    return code;
}

static int check_and_run(const struct args *a)
{
    unsigned threads[ARGS_MAX_ROWS];
    uint64_t n_small = 100;
    struct bench_options o = {.dir = a->words->pdata[0], .threads = threads};
    if (!args_size(a, "size", args_has(a, "quick") ? "128M" : "1G", MAX_SIZE_BYTES, &o.size_bytes) ||
        !args_threads(a, "threads", "1,4", threads, &o.n_threads) ||
        !args_number(a, "small-files", 0, MAX_SMALL, &n_small) || !progress_init(&o.progress, a, "bench"))
        return EXIT_USAGE;
    o.small_files = (unsigned)n_small;
    o.json = args_has(a, "json") || o.progress.mode == PROGRESS_JSON;
    return dir_is_good(&o) ? run(&o) : EXIT_FAILED;
}

int cmd_bench(int argc, char **argv)
{
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 1, 1, &code))
        return code;
    code = check_and_run(&a);
    args_clear(&a);
    return code;
}
