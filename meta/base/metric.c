/* Metrics: atomics in one array, described by metrics.def. */
#include "base/metric.h"

#include <stdatomic.h>

static _Atomic int64_t values[N_METRICS];

static const struct {
    const char *name, *help;
    int counter;
} rows[N_METRICS] = {
#define COUNTER(n, unit, text) {#n, text " (" unit ")", 1},
#define GAUGE(n, unit, text)   {#n, text " (" unit ")", 0},
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
};

void metric_add(enum metric m, int64_t n)
{
    atomic_fetch_add_explicit(&values[m], n, memory_order_relaxed);
}

void metric_set(enum metric m, int64_t value)
{
    atomic_store_explicit(&values[m], value, memory_order_relaxed);
}

int64_t metric_get(enum metric m)
{
    return atomic_load_explicit(&values[m], memory_order_relaxed);
}

const char *metric_name(enum metric m)
{
    return rows[m].name;
}

void metric_expose(GString *out)
{
    for (unsigned i = 0; i < N_METRICS; i++) {
        const char *suffix = rows[i].counter && !g_str_has_suffix(rows[i].name, "_total") ? "_total" : "";
        g_string_append_printf(out, "# HELP sluice_%s%s %s\n# TYPE sluice_%s%s %s\nsluice_%s%s %" G_GINT64_FORMAT "\n",
                               rows[i].name, suffix, rows[i].help, rows[i].name, suffix,
                               rows[i].counter ? "counter" : "gauge", rows[i].name, suffix, metric_get((enum metric)i));
    }
}
