/* Prints what `sluice bench` found, row by row as it is found: a table, or a line of JSON each. */
#include "base/clock.h"
#include "tools/bench.h"
#include "tools/ctl_client.h"

#include <stdio.h>

void bench_report_start(const struct bench_options *o, const struct bench_place *place)
{
    if (o->json) {
        json_t *line =
            json_pack("{s:s, s:s, s:s?, s:s?, s:I, s:I, s:I}", "event", "start", "dir", place->dir, "mount",
                      place->mount, "source", place->source, "size_bytes", (json_int_t)o->size_bytes, "small_files",
                      (json_int_t)o->small_files, "small_bytes", (json_int_t)BENCH_SMALL_BYTES);
        if (line)
            print_json(line);
        json_decref(line);
        return;
    }
    g_autofree char *size = human_bytes(o->size_bytes);
    g_autofree char *small = human_bytes(BENCH_SMALL_BYTES);
    printf("directory    %s\n", place->dir);
    if (place->mount)
        printf("sluice mount %s of %s\n", place->mount, place->source);
    printf("files        one of %s; %u of %s per thread\n\n", size, o->small_files, small);
    printf("%-16s %7s %10s %-10s %10s %10s  %-8s %s\n", "item", "threads", "value", "unit", "ms each", "p99 ms",
           "pages", place->mount ? "io" : "");
    fflush(stdout);
}

static double value_of(const struct bench_result *r)
{
    return g_str_equal(r->unit, "MB/s") ? bench_mb_per_s(&r->row) : bench_ops_per_s(&r->row);
}

/* A thread's time per call. */
static double ms_each(const struct bench_row *row)
{
    return bench_ms(row->elapsed_ns) * row->threads / (double)row->n_ops;
}

void bench_report_row(const struct bench_options *o, const struct bench_result *r)
{
    const struct bench_row *row = &r->row;
    if (o->json) {
        json_t *line = json_pack(
            "{s:s, s:s, s:I, s:f, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:s?, s:s?}", "event", "result", "item", row->op,
            "threads", (json_int_t)row->threads, "value", value_of(r), "unit", r->unit, "calls", (json_int_t)row->n_ops,
            "bytes", (json_int_t)row->bytes, "seconds", bench_seconds(row->elapsed_ns), "ms_each", ms_each(row),
            "p50_ms", bench_ms(row->p50_ns), "p99_ms", bench_ms(row->p99_ns), "pages", r->pages, "io", r->io);
        print_json(line);
        json_decref(line);
        return;
    }
    printf("%-16s %7u %10.1f %-10s %10.3f %10.3f  %-8s %s\n", row->op, row->threads, value_of(r), r->unit, ms_each(row),
           bench_ms(row->p99_ns), r->pages ? r->pages : "-", r->io ? r->io : "");
    fflush(stdout);
}
