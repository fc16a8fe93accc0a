/*
 * Progress of something that takes long, on standard error: a bar on a terminal, else a plain line every 10 s; or every progress line
 * as JSON on standard output. Nothing is drawn in the first half second, so that quick work stays
 * quiet, unless the bar was asked for. Single-threaded.
 */
#pragma once
#include "tools/cmd.h"

#include <jansson.h>
#include <stdbool.h>

enum progress_mode { PROGRESS_NONE, PROGRESS_BAR, PROGRESS_LINES, PROGRESS_JSON };

struct progress {
    enum progress_mode mode;
    const char *label; /* borrowed: "warmup" */
    uint64_t start_ns, drawn_ns;
    bool asked;                      /* --progress was given */
    bool on_line;                    /* the cursor stands behind an unfinished bar */
    uint64_t most_files, most_bytes; /* totals, for counts that only tell what is left */
    uint64_t first_bytes;
    bool seen;
    bool complete; /* the line drawn last told that all is done */
};

/* mode from --progress, else by what standard error is. False after complaining of a bad word. */
bool progress_init(struct progress *p, const struct args *args, const char *label);
/* Shows a "progress" line of the daemon: files_done/files_total/bytes_done/bytes_total, files_left/bytes_left or directories_listed. */
void progress_line(struct progress *p, const json_t *line);
/* The next of several pieces of work: counts and time begin again. */
void progress_restart(struct progress *p, const char *label);
/* Takes the bar away. */
void progress_erase(struct progress *p);
/* Ends the bar's line so that other text can follow. */
void progress_break(struct progress *p);
/* A ctl_line_fn for verbs that have only progress and errors to show; ctx is the struct progress. */
void progress_on_line(void *ctx, const json_t *line);
