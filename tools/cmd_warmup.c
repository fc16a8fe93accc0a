/* `sluice warmup PATH...` (alias prefetch): fetches into the cache, tells what is there, or lists and stops background jobs. */
#include "fs/ctl_proto.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/progress.h"
#include "tools/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define QUIET_S 120

struct warmup {
    struct progress progress;
    bool json;
    unsigned n_errors;
    uint64_t files_done, bytes_done;
};

static void print_check(const json_t *line)
{
    uint64_t size = (uint64_t)json_integer_value(json_object_get(line, "size"));
    uint64_t cached = (uint64_t)json_integer_value(json_object_get(line, "cached_bytes"));
    g_autofree char *have = human_bytes(cached), *all = human_bytes(size);
    const char *path = json_string_value(json_object_get(line, "path"));
    printf("%3.0f%%  %s of %s  %s\n", size ? 100.0 * (double)cached / (double)size : 100.0, have, all,
           path ? path : "");
}

static void on_line(void *ctx, const json_t *line)
{
    struct warmup *w = ctx;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (g_strcmp0(event, "progress") == 0) {
        w->files_done = (uint64_t)json_integer_value(json_object_get(line, "files_done"));
        w->bytes_done = (uint64_t)json_integer_value(json_object_get(line, "bytes_done"));
        progress_line(&w->progress, line);
        return;
    }
    w->n_errors += g_strcmp0(event, "error") == 0;
    progress_break(&w->progress);
    if (w->json || w->progress.mode == PROGRESS_JSON)
        print_json(line);
    else if (g_strcmp0(event, "check") == 0)
        print_check(line);
    else if (g_strcmp0(event, "job") == 0)
        printf("job %" JSON_INTEGER_FORMAT "\n", json_integer_value(json_object_get(line, "id")));
    else if (!print_if_error(line))
        report_block(line, "");
}

/* Adds the lines of a list file to the words. */
static bool read_list(const char *name, GPtrArray *words)
{
    char *text = NULL;
    g_autoptr(GError) err = NULL;
    const char *path = strcmp(name, "-") == 0 ? "/dev/stdin" : name;
    if (!g_file_get_contents(path, &text, NULL, &err)) {
        complain("--files-from: %s", err->message);
        return false;
    }
    g_ptr_array_set_size(words, (int)words->len - 1); /* the NULL at the end */
    char *rest = text;                                /* lives as long as the words do: to the end of the process */
    for (char *line; (line = strsep(&rest, "\n"));) {
        g_strchomp(line);
        if (*line)
            g_ptr_array_add(words, line);
    }
    g_ptr_array_add(words, NULL);
    return true;
}

/* --status and --stop ask the daemon of the mount that holds the first path. */
static int jobs(const struct args *a)
{
    struct mount_point mp;
    uint64_t id = 0;
    if (a->n_words != 1) {
        complain("warmup --status and --stop take one PATH in the mount");
        return EXIT_USAGE;
    }
    if (!args_number(a, "stop", 1, INT64_MAX, &id))
        return EXIT_USAGE;
    if (!mount_find(a->words->pdata[0], &mp))
        return EXIT_FAILED;
    json_t *req = id ? json_pack("{s:s,s:I}", "verb", "warmup-stop", "id", (json_int_t)id)
                     : json_pack("{s:s}", "verb", "warmup-status");
    struct report rep = {.json = args_has(a, "json")};
    int code = ctl_request(&mp, req, 30, report_on_line, &rep);
    mount_point_clear(&mp);
    return code;
}

static int fetch(const struct args *a)
{
    struct warmup w = {.json = args_has(a, "json")};
    uint64_t parallel = 8, timeout_s = 0;
    if (!args_number(a, "parallel", 1, CTL_PARALLEL_MAX, &parallel) || !args_seconds(a, "timeout", &timeout_s) ||
        !progress_init(&w.progress, a, "warmup"))
        return EXIT_USAGE;
    if (args_has(a, "files-from") && !read_list(args_get(a, "files-from"), a->words))
        return EXIT_FAILED;
    if (a->words->len < 2) {
        complain("warmup: no paths");
        return EXIT_USAGE;
    }
    json_t *req = json_pack("{s:s,s:I,s:b,s:b,s:b,s:I}", "verb", "warmup", "parallel", (json_int_t)parallel, "check",
                            args_has(a, "check"), "evict", args_has(a, "evict"), "background",
                            args_has(a, "background"), "timeout_s", (json_int_t)timeout_s);
    int code = ctl_request_paths((char **)a->words->pdata, req, QUIET_S, on_line, &w);
    progress_break(&w.progress);
    if (code == EXIT_DONE && w.n_errors)
        code = EXIT_FAILED;
    bool quiet = w.json || w.progress.mode == PROGRESS_JSON || args_has(a, "check") || args_has(a, "background");
    if (code == EXIT_DONE && !quiet) {
        g_autofree char *bytes = human_bytes(w.bytes_done);
        printf("%s %" PRIu64 " files, %s\n", args_has(a, "evict") ? "evicted" : "in the cache:", w.files_done, bytes);
    }
    return code;
}

int cmd_warmup(int argc, char **argv)
{
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 0, UINT_MAX, &code))
        return code;
    code = args_has(&a, "status") || args_has(&a, "stop") ? jobs(&a) : fetch(&a);
    args_clear(&a);
    return code;
}

int cmd_prefetch(int argc, char **argv)
{
    return cmd_warmup(argc, argv);
}
