/*
 * Measures an object store through the same driver a mount uses, and finds out what it can do.
 *
 * objbench_run() writes under one new prefix of the source, verifies every byte it reads back, and removes its keys again, also after an
 * error or a signal. Nothing else in the source is touched.
 */
#pragma once
#include "base/err.h"
#include "objstore.h"
#include "tools/bench_run.h"

#include <stdio.h>

struct objbench_options {
    struct objstore_config store;
    uint64_t size_bytes;   /* of large objects per row, at least one object per thread */
    uint64_t object_bytes; /* 1 .. 1 GiB */
    unsigned n_small;      /* small objects; 0: none */
    const unsigned *concurrency;
    size_t n_concurrency;
    bool json;
    bool progress; /* a line on stderr */
    int signal_fd; /* readable: stop, remove the keys, return -EINTR; -1 none */
};

/* The report goes to out. On failure *ret_msg says what failed and what to do next (owned by caller). */
int objbench_run(const struct objbench_options *o, FILE *out, char **ret_msg) MUST_CHECK;

/* ---- objbench_report.c ---- */

struct objbench_report { /* borrowed */
    const char *source, *identity;
    uint32_t caps;
    const struct objbench_options *options;
    const struct bench_row *rows;
    size_t n_rows;
};
/* "yes", "no", or "by HEAD" for a condition that the driver then checks itself, with a gap between check and write. */
const char *objbench_cap_text(uint32_t caps, unsigned bit);
void objbench_report_text(const struct objbench_report *r, FILE *out);
void objbench_report_json(const struct objbench_report *r, FILE *out);
