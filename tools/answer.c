/* See answer.h. */
#include "tools/answer.h"

#include "tools/cmd.h"

#include <string.h>

bool answer_init(struct answer *an, const struct args *args, const char *label)
{
    *an = (struct answer){.rep = {.json = args_has(args, "json")}};
    return progress_init(&an->bar, args, label);
}

void answer_on_line(void *ctx, const json_t *line)
{
    struct answer *an = ctx;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (g_strcmp0(event, "progress") == 0) {
        progress_line(&an->bar, line);
        return;
    }
    progress_break(&an->bar);
    if (g_strcmp0(event, "warning") == 0 && !an->rep.json)
        complain("warning: %s", json_string_value(json_object_get(line, "message")));
    else
        report_on_line(&an->rep, line);
}

int answer_end(struct answer *an, int code)
{
    progress_break(&an->bar);
    return code == EXIT_DONE && an->rep.n_errors ? EXIT_FAILED : code;
}
