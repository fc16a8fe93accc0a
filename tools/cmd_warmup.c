/*
 * `sluice warmup PATH...` (alias prefetch): fetches into the cache, tells what is missing there, drops it, or asks about background jobs.
 *
 * What is asked for goes through warm_names.h to the daemon in one request, so that totals, time and shares hold for all of it.
 */
#include "fs/ctl_proto.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/warm_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define QUIET_S   120
#define MAX_NODES 65536

struct warmup {
    struct progress progress;
    bool json, check, evict;
    uint64_t n_errors, n_missing;
    uint64_t files_done, bytes_done, files_cached, bytes_cached, files_fetched, bytes_fetched, files_total, bytes_total;
    uint64_t files_dropped, bytes_dropped;
};

static uint64_t field(const json_t *line, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(line, name));
    return v > 0 ? (uint64_t)v : 0;
}

static void print_check(const json_t *line)
{
    uint64_t size = field(line, "size"), cached = field(line, "cached_bytes");
    g_autofree char *have = human_bytes(cached), *all = human_bytes(size);
    const char *path = json_string_value(json_object_get(line, "path"));
    printf("%3.0f%%  %s of %s  %s\n", size ? 100.0 * (double)cached / (double)size : 100.0, have, all,
           path ? path : "");
}

static void note_counts(struct warmup *w, const json_t *line)
{
    w->files_done = field(line, "files_done");
    w->bytes_done = field(line, "bytes_done");
    w->files_cached = field(line, "files_cached");
    w->bytes_cached = field(line, "bytes_cached");
    w->files_fetched = field(line, "files_fetched");
    w->bytes_fetched = field(line, "bytes_fetched");
    w->files_total = field(line, "files_total");
    w->bytes_total = field(line, "bytes_total");
    w->files_dropped = field(line, "files_dropped");
    w->bytes_dropped = field(line, "bytes_dropped");
}

/* Of names that are not there only the first are shown: a list may hold nothing else. */
static bool is_shown(struct warmup *w, const json_t *line)
{
    bool missing = g_strcmp0(json_string_value(json_object_get(line, "errno")), "ENOENT") == 0;
    w->n_errors++;
    w->n_missing += missing;
    return !missing || w->n_missing <= WARM_NAMED;
}

static void on_line(void *ctx, const json_t *line)
{
    struct warmup *w = ctx;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (g_strcmp0(event, "progress") == 0) {
        note_counts(w, line);
        progress_line(&w->progress, line);
        return;
    }
    if (g_strcmp0(event, "again") == 0) {
        w->n_errors = w->n_missing = 0;
        return;
    }
    if (g_strcmp0(event, "error") == 0 && !is_shown(w, line))
        return;
    if (g_strcmp0(event, "evicted") == 0) {
        w->files_done = field(line, "files");
        w->bytes_done = field(line, "bytes");
    }
    progress_break(&w->progress);
    if (w->json || w->progress.mode == PROGRESS_JSON)
        print_json(line);
    else if (g_strcmp0(event, "warning") == 0)
        complain("warning: %s", json_string_value(json_object_get(line, "message")));
    else if (g_strcmp0(event, "check") == 0)
        print_check(line);
    else if (g_strcmp0(event, "job") == 0)
        printf("job %" JSON_INTEGER_FORMAT "\n", json_integer_value(json_object_get(line, "id")));
    else if (g_strcmp0(event, "evicted") != 0 && !print_if_error(line))
        report_block(line, "");
}

/* ---- jobs ---- */

/* The number of the job and the path of its mount: "--stop ID PATH", "--status=ID PATH", "--status ID PATH", "--status PATH". */
static bool read_job(const struct args *a, uint64_t *ret_id, const char **ret_path)
{
    bool stop = args_has(a, "stop"), given = stop || *args_get(a, "status");
    const char *first = a->n_words > 0 ? a->words->pdata[0] : NULL;
    guint64 id = 0;
    bool number_first = !given && a->n_words == 2 && g_ascii_string_to_unsigned(first, 10, 1, INT64_MAX, &id, NULL);
    *ret_id = id;
    if (a->n_words != 1 && !number_first) {
        complain("warmup --status [ID] and --stop ID take one PATH in the mount");
        return false;
    }
    *ret_path = a->words->pdata[number_first];
    return !given || args_number(a, stop ? "stop" : "status", 1, INT64_MAX, ret_id);
}

/* --status and --stop ask the daemon of the mount that holds the path. */
static int jobs(const struct args *a)
{
    struct mount_point mp;
    uint64_t id = 0;
    const char *path = NULL;
    if (!read_job(a, &id, &path))
        return EXIT_USAGE;
    if (!mount_find(path, &mp))
        return EXIT_FAILED;
    json_t *req = json_pack("{s:s}", "verb", args_has(a, "stop") ? "warmup-stop" : "warmup-status");
    if (id)
        json_object_set_new(req, "id", json_integer((json_int_t)id));
    struct report rep = {.json = args_has(a, "json")};
    int code = ctl_request(&mp, req, 30, report_on_line, &rep);
    mount_point_clear(&mp);
    return code;
}

/* ---- fetch, check, evict ---- */

/* "I/N": share I, counted from 0, of N. */
static bool read_nodes(const struct args *a, uint64_t *ret_node, uint64_t *ret_nodes)
{
    const char *text = args_get(a, "nodes");
    if (!text)
        return true;
    g_auto(GStrv) parts = g_strsplit(text, "/", 3);
    guint64 node = 0, nodes = 0;
    bool ok = g_strv_length(parts) == 2 && g_ascii_string_to_unsigned(parts[0], 10, 0, MAX_NODES - 1, &node, NULL) &&
              g_ascii_string_to_unsigned(parts[1], 10, 1, MAX_NODES, &nodes, NULL);
    if (ok && node < nodes) {
        *ret_node = node;
        *ret_nodes = nodes;
        return true;
    }
    complain("--nodes '%s': not I/N, with I from 0 to N-1 and N up to %d", text, MAX_NODES);
    return false;
}

/* The request but for its paths; NULL after complaining. */
static json_t *make_request(const struct args *a)
{
    uint64_t parallel = 8, timeout_s = 0, limit = 0, node = 0, nodes = 0;
    if (args_has(a, "check") && (args_has(a, "evict") || args_has(a, "background"))) {
        complain("warmup --check goes neither with --evict nor with --background");
        return NULL;
    }
    if (!args_number(a, "parallel", 1, CTL_PARALLEL_MAX, &parallel) || !args_seconds(a, "timeout", &timeout_s) ||
        (args_has(a, "download-limit") && !args_size(a, "download-limit", "100M", INT64_MAX, &limit)) ||
        !read_nodes(a, &node, &nodes))
        return NULL;
    return json_pack("{s:s,s:I,s:b,s:b,s:b,s:I,s:I,s:I,s:I}", "verb", "warmup", "parallel", (json_int_t)parallel,
                     "check", (int)args_has(a, "check"), "evict", (int)args_has(a, "evict"), "background",
                     (int)args_has(a, "background"), "timeout_s", (json_int_t)timeout_s, "download_limit",
                     (json_int_t)limit, "node", (json_int_t)node, "nodes", (json_int_t)nodes);
}

static int collect(const struct args *a, struct warm_names *names)
{
    enum manifest_kind kind = MANIFEST_AUTO;
    const char *word = args_get(a, "manifest"), *list = args_get(a, "files-from"), *base = args_get(a, "base");
    if (word && !manifest_kind_of(word, &kind)) {
        complain("--manifest '%s': not one of auto, list, safetensors, webdataset", word);
        return EXIT_USAGE;
    }
    if ((word || base) && !list) {
        complain("warmup --%s needs --files-from", word ? "manifest" : "base");
        return EXIT_USAGE;
    }
    if (a->n_words == 0 && !list) {
        complain("warmup: no paths");
        return EXIT_USAGE;
    }
    if (!warm_names_init(names, base))
        return EXIT_FAILED;
    for (unsigned i = 0; i < a->n_words; i++)
        warm_names_add(names, a->words->pdata[i]);
    if (list && !warm_names_read(names, list, kind))
        return EXIT_FAILED;
    if (names->n == 0 && names->n_bad == 0)
        complain("warmup: %s names nothing", list);
    return names->n == 0 && names->n_bad == 0 ? EXIT_USAGE : EXIT_DONE;
}

static void print_result(const struct warmup *w)
{
    g_autofree char *bytes = human_bytes(w->bytes_done), *here = human_bytes(w->bytes_cached);
    g_autofree char *fetched = human_bytes(w->bytes_fetched);
    if (w->check)
        printf("in the cache: all %" PRIu64 " files, %s\n", w->files_done, bytes);
    else if (w->evict)
        printf("evicted %" PRIu64 " files, %s\n", w->files_done, bytes);
    else if (w->files_cached || w->bytes_cached)
        printf("in the cache: %" PRIu64 " files, %s (fetched %s, %s were there)\n", w->files_done, bytes, fetched,
               here);
    else
        printf("in the cache: %" PRIu64 " files, %s\n", w->files_done, bytes);
}

/* What was not done, for people. */
static void print_left(const struct warmup *w, int code)
{
    if (w->n_missing > WARM_NAMED)
        complain("... and %" PRIu64 " more names that are not there, %" PRIu64 " in all", w->n_missing - WARM_NAMED,
                 w->n_missing);
    if (code == EXIT_DONE || w->evict || w->files_total == 0)
        return;
    uint64_t files = w->check ? w->files_cached : w->files_done - MIN(w->files_dropped, w->files_done);
    uint64_t bytes = w->check ? w->bytes_cached : w->bytes_done - MIN(w->bytes_dropped, w->bytes_done);
    g_autofree char *done = human_bytes(bytes), *total = human_bytes(w->bytes_total);
    complain("in the cache: %" PRIu64 " of %" PRIu64 " files, %s of %s", files, w->files_total, done, total);
}

static int fetch(const struct args *a)
{
    struct warmup w = {.json = args_has(a, "json"), .check = args_has(a, "check"), .evict = args_has(a, "evict")};
    struct warm_names names = {0};
    json_t *req = progress_init(&w.progress, a, w.evict ? "evict" : "warmup") ? make_request(a) : NULL;
    int code = req ? collect(a, &names) : EXIT_USAGE;
    if (code == EXIT_DONE)
        code = warm_names_send(&names, json_incref(req), QUIET_S, on_line, &w);
    json_decref(req);
    warm_names_clear(&names);
    progress_break(&w.progress);
    if (code == EXIT_DONE && w.n_errors)
        code = EXIT_FAILED;
    if (w.json || w.progress.mode == PROGRESS_JSON || args_has(a, "background"))
        return code;
    print_left(&w, code);
    if (code == EXIT_DONE)
        print_result(&w);
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
