/* `sluice sync [PATH...]`: lists everything below directories of a mount; shows the syncs of one. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/progress.h"
#include "tools/report.h"

#include <inttypes.h>
#include <stdio.h>

#define QUIET_S         120
#define PARALLEL_MAX    64
#define LINE_EVERY_LONG 40 /* lines of the daemon, of which 4 come a second */

struct sync_shown {
    struct progress progress;
    bool json, background;
    unsigned n_lines;
};

static uint64_t field(const json_t *line, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(line, name));
    return v > 0 ? (uint64_t)v : 0;
}

/* "1234567 names in 890 directories, 45678/s, 3 failed" */
static char *describe(const json_t *line)
{
    g_autoptr(GString) s = g_string_new(NULL);
    uint64_t left_out = field(line, "left_out"), errors = field(line, "errors");
    g_string_append_printf(s, "%" PRIu64 " names in %" PRIu64 " directories, %" PRIu64 "/s", field(line, "names"),
                           field(line, "directories"), field(line, "names_per_second"));
    if (left_out)
        g_string_append_printf(s, ", %" PRIu64 " directories were listed lately", left_out);
    if (errors)
        g_string_append_printf(s, ", %" PRIu64 " failed", errors);
    return g_string_free(g_steal_pointer(&s), FALSE);
}

static void show_running(struct sync_shown *w, const json_t *line)
{
    struct progress *p = &w->progress;
    w->n_lines++;
    if (p->mode == PROGRESS_JSON)
        print_json(line);
    bool due = p->mode == PROGRESS_BAR || (p->mode == PROGRESS_LINES && w->n_lines % LINE_EVERY_LONG == 0);
    if (!due)
        return;
    g_autofree char *text = describe(line);
    if (p->mode == PROGRESS_BAR)
        fprintf(stderr, "\rsync: %s\033[K", text);
    else
        fprintf(stderr, "sync: %s\n", text);
    p->on_line = p->mode == PROGRESS_BAR;
    fflush(stderr);
}

static void show_end(struct sync_shown *w, const json_t *line)
{
    progress_break(&w->progress);
    if (w->json || w->progress.mode == PROGRESS_JSON) {
        print_json(line);
        return;
    }
    const char *path = json_string_value(json_object_get(line, "path"));
    g_autofree char *text = describe(line);
    printf("/%s: %s, %" PRIu64 " changed\n", path ? path : "", text, field(line, "changed"));
}

static void on_line(void *ctx, const json_t *line)
{
    struct sync_shown *w = ctx;
    const char *event = json_string_value(json_object_get(line, "event"));
    const char *state = json_string_value(json_object_get(line, "state"));
    if (g_strcmp0(event, "sync") != 0) {
        progress_break(&w->progress);
        if (w->json || w->progress.mode == PROGRESS_JSON)
            print_json(line);
        else
            (void)print_if_error(line);
    } else if (w->background) {
        if (w->json)
            print_json(line);
        else
            printf("sync %" PRIu64 " of /%s is under way\n", field(line, "id"),
                   json_string_value(json_object_get(line, "path")));
    } else if (g_strcmp0(state, "running") == 0) {
        show_running(w, line);
    } else {
        show_end(w, line);
    }
}

static int show_status(const struct args *a, char *path)
{
    struct mount_point mp;
    if (a->n_words > 1) {
        complain("sync --status takes one PATH in the mount");
        return EXIT_USAGE;
    }
    if (!mount_find(path, &mp))
        return EXIT_FAILED;
    struct report rep = {.json = args_has(a, "json")};
    int code = ctl_request(&mp, json_pack("{s:s}", "verb", "sync-status"), 30, report_on_line, &rep);
    if (code == EXIT_DONE && rep.n_lines == 0 && !rep.json)
        printf("no sync runs or ended lately\n");
    mount_point_clear(&mp);
    return code;
}

static int run(const struct args *a, char **paths)
{
    struct sync_shown w = {.json = args_has(a, "json"), .background = args_has(a, "background")};
    uint64_t parallel = 0;
    if (args_has(a, "full") && args_has(a, "incremental")) {
        complain("sync: --full and --incremental conflict");
        return EXIT_USAGE;
    }
    if (!args_number(a, "parallel", 1, PARALLEL_MAX, &parallel) || !progress_init(&w.progress, a, "sync"))
        return EXIT_USAGE;
    json_t *req = json_pack("{s:s,s:b,s:b,s:I}", "verb", "sync", "incremental", args_has(a, "incremental"),
                            "background", args_has(a, "background"), "parallel", (json_int_t)parallel);
    int code = ctl_request_paths(paths, req, QUIET_S, on_line, &w);
    progress_break(&w.progress);
    return code;
}

int cmd_sync(int argc, char **argv)
{
    struct args a;
    int code;
    static char here[] = ".";
    char *only_here[] = {here, NULL};
    if (!args_parse(&a, argc, argv, 0, UINT_MAX, &code))
        return code;
    char **paths = a.n_words ? (char **)a.words->pdata : only_here;
    code = args_has(&a, "status") ? show_status(&a, paths[0]) : run(&a, paths);
    args_clear(&a);
    return code;
}
