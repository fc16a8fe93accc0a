/* A named pool of threads with an unbounded FIFO queue of two priorities: who pushes sees to it that the work is limited. */
#pragma once
#include "base/err.h"

#include <stdbool.h>

struct workq;
typedef void workq_fn(void *arg);

/* Starts n_threads named "<name>-N". 0 or -errno. */
int workq_new(const char *name, unsigned n_threads, struct workq **ret_q) MUST_CHECK;
/* Queues fn(arg); urgent work runs before the rest. After workq_stop(): returns false and does nothing. */
bool workq_push(struct workq *q, bool urgent, workq_fn *fn, void *arg);
/* Queued and running items. */
unsigned workq_load(struct workq *q);
/* Runs what is queued, joins the threads. */
void workq_stop(struct workq *q);
/* NULL allowed; stops first. */
void workq_free(struct workq *q);
