/*
 * `sluice objbench`: options to struct objbench_options, signals to a descriptor, result to an exit code (0 done, 1 failed, 2 usage).
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "tools/objbench.h"

#include <errno.h>
#include <glib.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MAX_ROWS         16
#define MAX_OBJECT_BYTES (1ull << 30)
#define MAX_SIZE_BYTES   (1ull << 40)
#define MAX_SMALL        1000000

int cmd_objbench(int argc, char **argv);

struct args { /* as given; strings owned */
    gboolean json, no_sign_request, force_path_style, allow_plain_http;
    char *size, *object_size, *concurrency;
    int small_objects;
    char *endpoint_url, *region, *profile, *ca_bundle;
};

static void args_clear(struct args *a)
{
    g_free(a->size);
    g_free(a->object_size);
    g_free(a->concurrency);
    g_free(a->endpoint_url);
    g_free(a->region);
    g_free(a->profile);
    g_free(a->ca_bundle);
}

/* "64M": K, M, G, T are powers of 1024. */
static int parse_size(const char *text, uint64_t max, uint64_t *ret)
{
    char *end;
    errno = 0;
    uint64_t v = g_ascii_strtoull(text, &end, 10);
    if (end == text || errno != 0 || !g_ascii_isdigit(text[0]))
        return -EINVAL;
    static const char units[] = "KMGT";
    unsigned shift = 0;
    if (*end != '\0') {
        const char *u = strchr(units, g_ascii_toupper(*end));
        if (u == NULL || end[1] != '\0')
            return -EINVAL;
        shift = 10 * (unsigned)(u - units + 1);
    }
    if (v == 0 || v > max >> shift)
        return -ERANGE;
    *ret = v << shift;
    return 0;
}

static int parse_concurrency(const char *text, unsigned rows[MAX_ROWS], size_t *ret_n)
{
    g_auto(GStrv) parts = g_strsplit(text, ",", -1);
    size_t n = 0;
    for (; parts[n] != NULL; n++) {
        guint64 v;
        if (n == MAX_ROWS || !g_ascii_string_to_unsigned(parts[n], 10, 1, OBJBENCH_MAX_CONCURRENCY, &v, NULL))
            return -EINVAL;
        rows[n] = (unsigned)v;
    }
    *ret_n = n;
    return n == 0 ? -EINVAL : 0;
}

static int usage(const char *problem, const char *what)
{
    g_printerr("sluice objbench: %s%s\n", problem, what);
    return 2;
}

static bool parse_argv(int *argc, char ***argv, struct args *a, GError **err)
{
    const GOptionEntry entries[] = {
        {"json", 0, 0, G_OPTION_ARG_NONE, &a->json, "Print the result as JSON", NULL},
        {"size", 0, 0, G_OPTION_ARG_STRING, &a->size, "Bytes of large objects for each row (64M)", "SIZE"},
        {"object-size", 0, 0, G_OPTION_ARG_STRING, &a->object_size, "Size of a large object, up to 1G (8M)", "SIZE"},
        {"concurrency", 0, 0, G_OPTION_ARG_STRING, &a->concurrency, "Threads, one set of rows for each (1,8,16)",
         "N,N..."},
        {"small-objects", 0, 0, G_OPTION_ARG_INT, &a->small_objects, "Number of objects of 4 KiB, 0 for none (500)",
         "N"},
        {"endpoint-url", 0, 0, G_OPTION_ARG_STRING, &a->endpoint_url, "The store's address, where it is not AWS",
         "URL"},
        {"region", 0, 0, G_OPTION_ARG_STRING, &a->region, "Region", "NAME"},
        {"profile", 0, 0, G_OPTION_ARG_STRING, &a->profile, "Profile of the AWS credential files", "NAME"},
        {"no-sign-request", 0, 0, G_OPTION_ARG_NONE, &a->no_sign_request, "Without credentials", NULL},
        {"force-path-style", 0, 0, G_OPTION_ARG_NONE, &a->force_path_style, "Bucket in the path, not in the host name",
         NULL},
        {"allow-plain-http", 0, 0, G_OPTION_ARG_NONE, &a->allow_plain_http, "http:// also to other hosts", NULL},
        {"ca-bundle", 0, 0, G_OPTION_ARG_FILENAME, &a->ca_bundle, "Certificates to trust", "FILE"},
        {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL},
    };
    GOptionContext *ctx = g_option_context_new("SOURCE");
    g_option_context_set_summary(
        ctx, "Finds out what the object store can do and how fast it is. SOURCE is s3://bucket[/prefix] or\n"
             "file:///dir. Works under one new prefix there and removes it again.");
    g_option_context_add_main_entries(ctx, entries, NULL);
    bool good = g_option_context_parse(ctx, argc, argv, err);
    g_option_context_free(ctx);
    return good;
}

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
        g_printerr("sluice objbench: %s\n", msg);
        return r == -EINVAL ? 2 : 1; /* what was typed is wrong */
    }
    if (fflush(stdout) != 0) {
        g_printerr("sluice objbench: cannot write the result: %s\n", err_text(errno));
        return 1;
    }
    return 0;
}

static int check_and_run(const struct args *a, const char *source)
{
    unsigned rows[MAX_ROWS];
    struct objbench_options o = {.concurrency = rows, .json = a->json, .progress = isatty(STDERR_FILENO)};
    if (parse_size(a->size != NULL ? a->size : "64M", MAX_SIZE_BYTES, &o.size_bytes) < 0)
        return usage("--size must be like 64M: ", a->size);
    if (parse_size(a->object_size != NULL ? a->object_size : "8M", MAX_OBJECT_BYTES, &o.object_bytes) < 0)
        return usage("--object-size must be like 8M, at most 1G: ", a->object_size);
    if (parse_concurrency(a->concurrency != NULL ? a->concurrency : "1,8,16", rows, &o.n_concurrency) < 0)
        return usage("--concurrency must be numbers from 1 to 256 with commas between: ", a->concurrency);
    if (a->small_objects < 0 || a->small_objects > MAX_SMALL)
        return usage("--small-objects must be from 0 to 1000000", "");
    o.n_small = (unsigned)a->small_objects;
    o.store = (struct objstore_config){.source = source,
                                       .endpoint_url = a->endpoint_url,
                                       .region = a->region,
                                       .profile = a->profile,
                                       .no_sign_request = a->no_sign_request,
                                       .force_path_style = a->force_path_style,
                                       .allow_plain_http = a->allow_plain_http,
                                       .ca_bundle = a->ca_bundle,
                                       .op_timeout_ns = 60 * NS_PER_S,
                                       .max_connections = OBJBENCH_MAX_CONCURRENCY};
    sigset_t old;
    CLEANUP_FD int fd = signals_open(&old);
    o.signal_fd = fd;
    int code = run(&o);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return code;
}

int cmd_objbench(int argc, char **argv)
{
    struct args a = {.small_objects = 500};
    g_autoptr(GError) err = NULL;
    int code;
    if (!parse_argv(&argc, &argv, &a, &err))
        code = usage("", err->message);
    else if (argc != 2)
        code = usage("one SOURCE is needed: s3://bucket[/prefix] or file:///dir; see sluice objbench --help", "");
    else
        code = check_and_run(&a, argv[1]);
    args_clear(&a);
    return code;
}
