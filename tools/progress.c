/* Progress display. Percent, rate and time left come from bytes; where there are none, from files. */
#include "tools/progress.h"

#include "base/clock.h"
#include "tools/ctl_client.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define QUIET_NS (NS_PER_S / 2)
#define LINES_NS (10 * NS_PER_S)
#define BAR_MAX  40

struct counts {
    uint64_t files_done, files_total, bytes_done, bytes_total, errors;
};

bool progress_init(struct progress *p, const struct args *args, const char *label)
{
    const char *word = args_get(args, "progress");
    *p = (struct progress){
        .mode = isatty(STDERR_FILENO) ? PROGRESS_BAR : PROGRESS_LINES, .label = label, .start_ns = clock_mono_ns()};
    if (!word)
        return true;
    p->asked = true;
    if (strcmp(word, "json") == 0) {
        p->mode = PROGRESS_JSON;
    } else if (strcmp(word, "bar") == 0) {
        p->mode = PROGRESS_BAR;
    } else if (strcmp(word, "none") == 0) {
        p->mode = PROGRESS_NONE;
    } else {
        complain("--progress '%s': not one of bar, json, none", word);
        return false;
    }
    return true;
}

static uint64_t field(const json_t *line, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(line, name));
    return v > 0 ? (uint64_t)v : 0;
}

static struct counts read_counts(struct progress *p, const json_t *line)
{
    struct counts c = {.files_done = field(line, "files_done"),
                       .files_total = field(line, "files_total"),
                       .bytes_done = field(line, "bytes_done"),
                       .bytes_total = field(line, "bytes_total"),
                       .errors = field(line, "errors")};
    if (json_object_get(line, "files_left")) {
        uint64_t files = field(line, "files_left"), bytes = field(line, "bytes_left");
        p->most_files = MAX(p->most_files, files);
        p->most_bytes = MAX(p->most_bytes, bytes);
        c.files_total = p->most_files;
        c.files_done = p->most_files - files;
        c.bytes_total = p->most_bytes;
        c.bytes_done = p->most_bytes - bytes;
    }
    return c;
}

/* "37% 1.2 GiB of 3.4 GiB, 210 MiB/s, 12 s left, 3 of 9 files" */
static char *describe(const struct progress *p, const struct counts *c, double share, uint64_t now)
{
    g_autoptr(GString) s = g_string_new(NULL);
    double seconds = (double)(now - p->start_ns) / NS_PER_S;
    uint64_t moved = c->bytes_done > p->first_bytes ? c->bytes_done - p->first_bytes : 0;
    g_string_append_printf(s, "%3.0f%%", share * 100);
    if (c->bytes_total) {
        g_autofree char *done = human_bytes(c->bytes_done), *total = human_bytes(c->bytes_total);
        g_autofree char *rate = human_bytes((uint64_t)((double)moved / MAX(seconds, 0.001)));
        g_string_append_printf(s, " %s of %s, %s/s", done, total, rate);
        if (moved && c->bytes_done < c->bytes_total) {
            g_autofree char *left =
                human_seconds((uint64_t)((double)(c->bytes_total - c->bytes_done) * seconds / (double)moved) + 1);
            g_string_append_printf(s, ", %s left", left);
        }
    }
    g_string_append_printf(s, ", %" PRIu64 " of %" PRIu64 " files", c->files_done, c->files_total);
    if (c->errors)
        g_string_append_printf(s, ", %" PRIu64 " failed", c->errors);
    return g_string_free(g_steal_pointer(&s), FALSE);
}

/* Before it is known how much there is to do. */
static void draw_count(struct progress *p, uint64_t n, const char *of_what, uint64_t now)
{
    uint64_t every = p->mode == PROGRESS_BAR ? NS_PER_S / 10 : LINES_NS;
    bool due = now - MAX(p->drawn_ns, p->start_ns) >= (p->drawn_ns ? every : MAX(every, QUIET_NS));
    if (!due || (p->mode != PROGRESS_BAR && p->mode != PROGRESS_LINES))
        return;
    p->drawn_ns = now;
    p->on_line = p->mode == PROGRESS_BAR;
    fprintf(stderr, p->on_line ? "\r%s: %" PRIu64 " %s\033[K" : "%s: %" PRIu64 " %s\n", p->label, n, of_what);
    fflush(stderr);
}

static void draw_bar(struct progress *p, double share, const char *text)
{
    struct winsize ws = {0};
    size_t columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col ? ws.ws_col : 100;
    size_t taken = strlen(p->label) + strlen(text) + 5;
    size_t width = columns > taken + 8 ? MIN(columns - taken - 1, BAR_MAX) : 0;
    g_autofree char *bar = g_strnfill(width, '.');
    memset(bar, '#', (size_t)((double)width * share));
    fprintf(stderr, "\r%s [%s] %s\033[K", p->label, bar, text);
    fflush(stderr);
    p->on_line = true;
}

void progress_line(struct progress *p, const json_t *line)
{
    uint64_t now = clock_mono_ns();
    struct counts c = read_counts(p, line);
    if (p->mode == PROGRESS_JSON)
        print_json(line);
    if (json_object_get(line, "directories_listed")) {
        draw_count(p, field(line, "directories_listed"), "directories listed", now);
        return;
    }
    if (json_object_get(line, "names_marked")) {
        draw_count(p, field(line, "names_marked"), "names", now);
        return;
    }
    if (!p->seen) {
        p->seen = true;
        p->first_bytes = c.bytes_done;
    }
    bool complete = c.files_done >= c.files_total && c.bytes_done >= c.bytes_total;
    uint64_t every = p->mode == PROGRESS_BAR ? NS_PER_S / 10 : LINES_NS;
    bool due =
        (p->asked || now - p->start_ns >= QUIET_NS) &&
        (now - MAX(p->drawn_ns, p->mode == PROGRESS_LINES ? p->start_ns : 0) >= every || (complete && !p->complete));
    bool counted = c.files_total || c.bytes_total; /* at first a walk has found nothing yet */
    if (!due || !counted || (p->mode != PROGRESS_BAR && p->mode != PROGRESS_LINES))
        return;
    double share = c.bytes_total   ? (double)MIN(c.bytes_done, c.bytes_total) / (double)c.bytes_total
                   : c.files_total ? (double)MIN(c.files_done, c.files_total) / (double)c.files_total
                                   : 1;
    g_autofree char *text = describe(p, &c, share, now);
    p->drawn_ns = now;
    p->complete = complete;
    if (p->mode == PROGRESS_BAR)
        draw_bar(p, share, text);
    else
        fprintf(stderr, "%s: %s\n", p->label, text);
}

void progress_restart(struct progress *p, const char *label)
{
    progress_erase(p);
    *p = (struct progress){.mode = p->mode, .label = label, .start_ns = clock_mono_ns(), .asked = p->asked};
}

void progress_erase(struct progress *p)
{
    if (p->on_line)
        fputs("\r\033[K", stderr);
    p->on_line = false;
}

void progress_break(struct progress *p)
{
    if (p->on_line)
        fputc('\n', stderr);
    p->on_line = false;
}

void progress_on_line(void *ctx, const json_t *line)
{
    struct progress *p = ctx;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (g_strcmp0(event, "progress") == 0) {
        progress_line(p, line);
        return;
    }
    if (g_strcmp0(event, "again") == 0)
        return;
    progress_break(p);
    if (p->mode == PROGRESS_JSON)
        print_json(line);
    else
        (void)print_if_error(line); /* other events mean nothing to the caller */
}
