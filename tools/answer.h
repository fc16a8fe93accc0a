/* What most verbs show of the daemon's lines: progress as progress.h does, warnings, and the rest as report.h does. */
#pragma once
#include "tools/progress.h"
#include "tools/report.h"

struct answer {
    struct report rep;
    struct progress bar;
};
/* rep.json from --json, the bar from --progress. False after complaining of a bad word. */
bool answer_init(struct answer *an, const struct args *args, const char *label);
/* A ctl_line_fn; ctx is the struct answer. */
void answer_on_line(void *ctx, const json_t *line);
/* The exit code: a path that failed makes it a failure. Ends the bar. */
int answer_end(struct answer *an, int code);
