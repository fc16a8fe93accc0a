/* Printing the daemon's answers to verbs that report line by line: JSON as it comes, or "key: value" lines for people. */
#pragma once
#include <jansson.h>
#include <stdbool.h>

struct report {
    bool json;
    const char *sentence; /* "evicted": one short line per answer; NULL: a block of "key: value" lines */
    unsigned n_lines, n_errors;
};
/* A ctl_line_fn; ctx is the struct report. */
void report_on_line(void *ctx, const json_t *line);
/* A block of "key: value" lines; keys that tell bytes or seconds are shown in people's units. */
void report_block(const json_t *object, const char *indent);
