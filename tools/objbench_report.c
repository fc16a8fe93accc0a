/*
 * Prints what objbench found, as a table or as one JSON object. MB are 10^6 bytes; latencies are those of whole calls, retries included.
 */
#include "tools/objbench.h"

#include <inttypes.h>
#include <jansson.h>

#define CONDITIONS                                                                                                     \
    (CAP_PUT_IF_NONE_MATCH | CAP_PUT_IF_MATCH | CAP_COMPLETE_CONDITIONS | CAP_DELETE_IF_MATCH | CAP_COPY_IF_MATCH |    \
     CAP_PART_COPY_IF_MATCH | CAP_COPY_TARGET)

const char *objbench_cap_text(uint32_t caps, unsigned bit)
{
    if (caps & (1u << bit))
        return "yes";
    return (CONDITIONS & (1u << bit)) ? "by HEAD" : "no";
}

void objbench_report_text(const struct objbench_report *r, FILE *out)
{
    fprintf(out, "source    %s\nstore     %s\n\n", r->source, r->identity);
    for (unsigned bit = 0; objstore_cap_name(bit) != NULL; bit++)
        fprintf(out, "%-26s %s\n", objstore_cap_name(bit), objbench_cap_text(r->caps, bit));
    fprintf(out, "\n%-12s %7s %8s %10s %10s %10s %10s\n", "operation", "threads", "calls", "MB/s", "calls/s", "p50 ms",
            "p99 ms");
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct bench_row *row = &r->rows[i];
        fprintf(out, "%-12s %7u %8" PRIu64, row->op, row->threads, row->n_ops);
        if (row->bytes > 0)
            fprintf(out, " %10.1f", bench_mb_per_s(row));
        else
            fprintf(out, " %10s", "-");
        fprintf(out, " %10.1f %10.2f %10.2f\n", bench_ops_per_s(row), bench_ms(row->p50_ns), bench_ms(row->p99_ns));
    }
}

void objbench_report_json(const struct objbench_report *r, FILE *out)
{
    json_t *caps = json_object();
    for (unsigned bit = 0; objstore_cap_name(bit) != NULL; bit++)
        json_object_set_new(caps, objstore_cap_name(bit), json_string(objbench_cap_text(r->caps, bit)));
    json_t *rows = json_array();
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct bench_row *row = &r->rows[i];
        json_array_append_new(rows, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "op", row->op,
                                              "concurrency", (json_int_t)row->threads, "calls", (json_int_t)row->n_ops,
                                              "bytes", (json_int_t)row->bytes, "seconds",
                                              bench_seconds(row->elapsed_ns), "cpu_seconds", bench_seconds(row->cpu_ns),
                                              "mb_per_s", bench_mb_per_s(row), "calls_per_s", bench_ops_per_s(row),
                                              "p50_ms", bench_ms(row->p50_ns), "p99_ms", bench_ms(row->p99_ns)));
    }
    json_t *o = json_object();
    json_object_set_new(o, "source", json_string(r->source));
    json_object_set_new(o, "store", json_string(r->identity));
    json_object_set_new(o, "object_bytes", json_integer((json_int_t)r->options->object_bytes));
    json_object_set_new(o, "capabilities", caps);
    json_object_set_new(o, "results", rows);
    json_dumpf(o, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    fputc('\n', out);
    json_decref(o);
}
