/*
 * What the two benchmarks (objbench: a store, bench: a directory) share: calls made by N threads that take call numbers from one counter,
 * and the row of figures that comes out.
 */
#pragma once
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define BENCH_MAX_THREADS 256

/* Call number i, made by thread number `thread`; one thread makes its calls in order. 0 or -errno, which ends the job. */
typedef int bench_call_fn(void *ctx, unsigned thread, uint64_t i);
/* Called by the starting thread again and again while the others work; it pauses the while. True ends the job with -EINTR. */
typedef bool bench_watch_fn(void *ctx, uint64_t n_done);

struct bench_job {
    const char *name; /* static; the row's op */
    bench_call_fn *call;
    bench_watch_fn *watch;
    void *ctx; /* of both */
    uint64_t n_calls;
    unsigned threads; /* 1 .. BENCH_MAX_THREADS */
};

struct bench_row {
    const char *op; /* static */
    unsigned threads;
    uint64_t n_ops, bytes, elapsed_ns, p50_ns, p99_ns;
    uint64_t cpu_ns; /* of this process, meanwhile */
};

/* Fills everything of the row but its bytes. -EINTR, or the error of the call that failed first; the row is untouched then. */
int bench_run(const struct bench_job *job, struct bench_row *ret_row) MUST_CHECK;

double bench_seconds(uint64_t ns); /* never 0 */
double bench_ms(uint64_t ns);
double bench_mb_per_s(const struct bench_row *row); /* MB are 10^6 bytes */
double bench_ops_per_s(const struct bench_row *row);
