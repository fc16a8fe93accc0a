/*
 * Metrics: one row per metric in metrics.def; the rest (storage, text exposition, names) follows from the table.
 * Counters only grow; gauges are set or adjusted. All atomic, any thread.
 */
#pragma once
#include <glib.h>
#include <stdint.h>

enum metric {
#define COUNTER(name, unit, help) M_##name,
#define GAUGE(name, unit, help)   M_##name,
#include "base/metrics.def"
#undef COUNTER
#undef GAUGE
    N_METRICS
};

void metric_add(enum metric m, int64_t n);
static inline void metric_inc(enum metric m)
{
    metric_add(m, 1);
}
void metric_set(enum metric m, int64_t value);
int64_t metric_get(enum metric m);
/* "cache_hit_bytes"; static storage. */
const char *metric_name(enum metric m);
/* Appends all in Prometheus text format 0.0.4, each as sluice_<name>[_total]. */
void metric_expose(GString *out);
