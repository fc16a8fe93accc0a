/*
 * `sluice objbench`: options to struct objbench_options, signals to a descriptor, result to an exit code.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "tools/cmd.h"
#include "tools/objbench.h"

#include <errno.h>
#include <glib.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MAX_OBJECT_BYTES (1ull << 30)
#define MAX_SIZE_BYTES   (1ull << 40)
#define MAX_SMALL        1000000

/* SIGINT and SIGTERM as a descriptor, so that the keys are removed before the end. -1: could not, the signals then just end us. */
static int signals_open(sigset_t *ret_old)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    pthread_sigmask(SIG_BLOCK, fd >= 0 ? &set : NULL, ret_old);
    return fd;
}

static int run(const struct objbench_options *o)
{
    g_autofree char *msg = NULL;
    int r = objbench_run(o, stdout, &msg);
    if (r < 0) {
        complain("%s", msg);
        return r == -EINVAL ? EXIT_USAGE : EXIT_FAILED; /* EINVAL: what was typed is wrong */
    }
    if (fflush(stdout) != 0) {
        complain("cannot write the result: %s", err_text(errno));
        return EXIT_FAILED;
    }
    return EXIT_DONE;
}

static int check_and_run(const struct args *a)
{
    unsigned rows[ARGS_MAX_ROWS];
    uint64_t n_small = 500;
    struct objbench_options o = {.concurrency = rows, .json = args_has(a, "json"), .progress = isatty(STDERR_FILENO)};
    if (!args_size(a, "size", "64M", MAX_SIZE_BYTES, &o.size_bytes) ||
        !args_size(a, "object-size", "8M", MAX_OBJECT_BYTES, &o.object_bytes) ||
        !args_threads(a, "concurrency", "1,8,16", rows, &o.n_concurrency) ||
        !args_number(a, "small-objects", 0, MAX_SMALL, &n_small))
        return EXIT_USAGE;
    o.n_small = (unsigned)n_small;
    o.store = (struct objstore_config){.source = g_ptr_array_index(a->words, 0),
                                       .endpoint_url = args_get(a, "endpoint-url"),
                                       .region = args_get(a, "region"),
                                       .profile = args_get(a, "profile"),
                                       .no_sign_request = args_has(a, "no-sign-request"),
                                       .force_path_style = args_has(a, "force-path-style"),
                                       .allow_plain_http = args_has(a, "allow-plain-http"),
                                       .ca_bundle = args_get(a, "ca-bundle"),
                                       .op_timeout_ns = 60 * NS_PER_S,
                                       .max_connections = BENCH_MAX_THREADS};
    sigset_t old;
    CLEANUP_FD int fd = signals_open(&old);
    o.signal_fd = fd;
    int code = run(&o);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return code;
}

int cmd_objbench(int argc, char **argv)
{
    struct args args;
    int code;
    if (!args_parse(&args, argc, argv, 1, 1, &code))
        return code;
    code = check_and_run(&args);
    args_clear(&args);
    return code;
}
