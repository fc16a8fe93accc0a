/* `sluice checkpoints [DIR]`: the checkpoints below a directory, or of all mounts as far as they are known, the newest first. */
#include "tools/answer.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"

#include <stdio.h>
#include <string.h>

struct table {
    struct answer an;
    unsigned n_rows;
    const char *mount;
};

static const char *word(const json_t *line, const char *name)
{
    const char *text = json_string_value(json_object_get(line, name));
    return text ? text : "";
}

static void print_row(struct table *t, const json_t *line)
{
    json_int_t at = (json_int_t)json_number_value(json_object_get(line, "mtime"));
    g_autoptr(GDateTime) time = g_date_time_new_from_unix_local(at);
    g_autofree char *when = time ? g_date_time_format(time, "%F %T") : g_strdup("-");
    g_autofree char *size = human_bytes((uint64_t)json_integer_value(json_object_get(line, "bytes")));
    g_autofree char *cached =
        g_strdup_printf("%" JSON_INTEGER_FORMAT "%%", json_integer_value(json_object_get(line, "cached_percent")));
    bool pinned = json_is_true(json_object_get(line, "pinned")), safe = json_is_true(json_object_get(line, "safe"));
    if (t->n_rows++ == 0)
        printf("%-19s  %10s  %-9s  %6s  %-6s  %-4s  %s\n", "TIME", "SIZE", "STATE", "CACHED", "PINNED", "SAFE", "NAME");
    printf("%-19s  %10s  %-9s  %6s  %-6s  %-4s  %s/%s%s\n", when, size, word(line, "state"), cached,
           pinned ? word(line, "pinned_in") : "no", safe ? "yes" : "no", t->mount, word(line, "path"),
           strcmp(word(line, "type"), "directory") == 0 ? "/" : "");
}

static void on_line(void *ctx, const json_t *line)
{
    struct table *t = ctx;
    if (t->an.rep.json || strcmp(word(line, "event"), "checkpoint") != 0) {
        answer_on_line(&t->an, line);
        return;
    }
    progress_break(&t->an.bar);
    print_row(t, line);
}

/* list: what is below is read from the store, else only what is known is told. */
static int ask(const struct mount_point *mp, bool list, struct table *t)
{
    t->mount = mp->path;
    json_t *req = json_pack("{s:s,s:b,s:[s]}", "verb", "checkpoints", "list", (int)list, "paths", mp->relative);
    return ctl_request(mp, req, 600, on_line, t); /* a large lake takes long to list */
}

static int ask_all(struct table *t)
{
    g_autoptr(GPtrArray) all = mount_list();
    int code = EXIT_DONE;
    for (unsigned i = 0; i < all->len; i++)
        if (ask(all->pdata[i], false, t) != EXIT_DONE)
            code = EXIT_FAILED;
    return code;
}

int cmd_checkpoints(int argc, char **argv)
{
    struct args a;
    struct mount_point mp;
    int code;
    if (!args_parse(&a, argc, argv, 0, 1, &code))
        return code;
    struct table t = {0};
    (void)answer_init(&t.an, &a, "checkpoints"); /* no word of progress to be wrong */
    if (a.n_words == 0) {
        code = ask_all(&t);
    } else if (mount_find(a.words->pdata[0], &mp)) {
        code = ask(&mp, true, &t);
        mount_point_clear(&mp);
    } else {
        code = EXIT_FAILED;
    }
    progress_break(&t.an.bar);
    if (code == EXIT_DONE && !t.an.rep.json && t.n_rows == 0)
        printf("no checkpoints\n");
    args_clear(&a);
    return code;
}
