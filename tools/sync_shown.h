/* What is shown of a sync that somebody waits for. */
#pragma once
#include "tools/progress.h"

struct sync_shown {
    struct progress progress;
    bool json, background;
    unsigned n_lines;
};
/* A ctl_line_fn; ctx is the struct sync_shown. */
void sync_on_line(void *ctx, const json_t *line);
