/* See sync_shown.h. */
#include "tools/sync_shown.h"

#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

#include <inttypes.h>
#include <stdio.h>

#define LINE_EVERY_LONG 40 /* lines of the daemon, of which 4 come a second */

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
    if (json_is_true(json_object_get(line, "waits")))
        return g_strdup("waits for the end of one that began before");
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

void sync_on_line(void *ctx, const json_t *line)
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
            printf("sync %" PRIu64 " of /%s %s\n", field(line, "id"), json_string_value(json_object_get(line, "path")),
                   json_is_true(json_object_get(line, "waits")) ? "begins when the one that runs has ended"
                                                                : "is under way");
    } else if (g_strcmp0(state, "running") == 0) {
        show_running(w, line);
    } else {
        show_end(w, line);
    }
}
