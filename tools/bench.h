/*
 * Measures the directory it is given, whatever filesystem that is in.
 *
 * bench_measure() works in a directory of its own, which its caller makes and removes: it runs in a process that may be ended at any
 * moment (Ctrl-C, a bus error of a failing mapping, a filesystem that hangs) and cleans up nothing. Every byte it reads back is
 * told to be the one that was written by a stamp in each page of 4 KiB.
 */
#pragma once
#include "tools/bench_run.h"
#include "tools/progress.h"

#include <stddef.h>

#define BENCH_SMALL_BYTES (100u << 10)

struct bench_options {
    const char *dir;         /* where to measure, as it was typed */
    uint64_t size_bytes;     /* of the big file */
    unsigned small_files;    /* per thread; 0: none */
    const unsigned *threads; /* for the small files: one set of rows for each number */
    size_t n_threads;
    bool json;
    struct progress progress;
};

/* Bytes that all files together take. */
uint64_t bench_bytes(const struct bench_options *o);
/* Measures in the empty directory work_dir and prints to standard output; complains of what fails. The exit code. */
int bench_measure(struct bench_options *o, const char *work_dir);

/* ---- bench_data.c: the bytes ---- */

#define BENCH_PAGE  4096u
#define BENCH_BLOCK (1u << 20)

/* A block of bytes that do not compress, which every file repeats, each page with a stamp of file and place in its first word. */
struct bench_data {
    uint8_t *block; /* owned; BENCH_BLOCK bytes, constant */
    uint64_t seed;
};
int bench_data_init(struct bench_data *d) MUST_CHECK;
/* A number that looks random, the same for the same x. */
uint64_t bench_mix(uint64_t x);
/* A copy of the block to be stamped and written; NULL: no memory. Owned by the caller. */
uint8_t *bench_data_copy(const struct bench_data *d);
/* Makes len bytes of such a copy those of file number `file` at off, a multiple of BENCH_PAGE. They start at copy + off % BENCH_BLOCK and
 * do not go over its end. */
void bench_data_stamp(const struct bench_data *d, uint8_t *copy, uint64_t file, uint64_t off, uint64_t len);
/* Are these the bytes of the file at off, a multiple of BENCH_PAGE? By the stamps, or by all bytes. 0 or -EBADMSG. */
int bench_data_check(const struct bench_data *d, const uint8_t *buf, uint64_t file, uint64_t off, uint64_t len,
                     bool all) MUST_CHECK;

/* ---- bench_pages.c: the page cache ---- */

/* Drops the pages of an open file, without privileges. Returns whether they went (a filesystem in memory keeps them). */
bool bench_pages_drop(int fd, uint64_t size);

/* ---- bench_report.c ---- */

/* What one row measured, besides its figures. */
struct bench_result {
    struct bench_row row;
    const char *unit; /* "MB/s", or what calls are counted as: "files/s" */
    const char *
        pages; /* of the page cache before: "warm", "dropped", "kept" (they could not be dropped); NULL: says nothing */
    const char *io; /* how a sluice mount reached the file: "passthrough", "cached"; NULL: not asked */
};
struct bench_place {
    const char *dir, *mount, *source; /* mount and source: of the sluice mount, or NULL */
};
void bench_report_start(const struct bench_options *o, const struct bench_place *place);
void bench_report_row(const struct bench_options *o, const struct bench_result *result);
