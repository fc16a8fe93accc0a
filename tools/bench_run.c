/* Threads, latencies and their percentiles for benchmarks. Shared between threads: the job (constant) and the atomics of struct run. */
#include "tools/bench_run.h"

#include "base/clock.h"
#include "base/sync.h"

#include <glib.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

struct run {
    const struct bench_job *job;
    uint64_t *latency_ns; /* one slot per call, written by who makes the call */
    /* atomic */
    _Atomic uint64_t next;
    _Atomic uint64_t done;
    _Atomic uint64_t end_ns; /* when the last thread was through */
    atomic_uint started;
    atomic_uint running;
    atomic_int error; /* the first */
    atomic_bool stop;
};

static void *worker(void *arg)
{
    struct run *run = arg;
    unsigned thread = atomic_fetch_add(&run->started, 1);
    while (!atomic_load(&run->stop)) {
        uint64_t i = atomic_fetch_add(&run->next, 1);
        if (i >= run->job->n_calls)
            break;
        uint64_t start_ns = clock_mono_ns();
        int r = run->job->call(run->job->ctx, thread, i);
        run->latency_ns[i] = clock_mono_ns() - start_ns;
        if (r < 0) {
            int none = 0;
            (void)atomic_compare_exchange_strong(&run->error, &none, r); /* the first one counts */
            atomic_store(&run->stop, true);
            break;
        }
        atomic_fetch_add(&run->done, 1);
    }
    atomic_store(&run->end_ns, clock_mono_ns());
    atomic_fetch_sub(&run->running, 1);
    return NULL;
}

/* Runs and joins the threads. */
static int run_threads(struct run *run)
{
    pthread_t threads[BENCH_MAX_THREADS];
    unsigned n = 0, wanted = run->job->threads;
    bool interrupted = false;
    int r = 0;
    atomic_store(&run->running, wanted);
    for (; n < wanted && r == 0; n++)
        r = thread_start(&threads[n], "bench", worker, run);
    if (r < 0) { /* the last one does not exist, nor those after it */
        n--;
        atomic_store(&run->stop, true);
        atomic_fetch_sub(&run->running, wanted - n);
    }
    while (atomic_load(&run->running) > 0) {
        if (!run->job->watch(run->job->ctx, atomic_load(&run->done)))
            continue;
        interrupted = true;
        atomic_store(&run->stop, true);
    }
    for (unsigned i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    if (r == 0)
        r = atomic_load(&run->error);
    return r == 0 && interrupted ? -EINTR : r;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t cpu_ns(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* cannot fail: the process is its own */
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

int bench_run(const struct bench_job *job, struct bench_row *ret_row)
{
    g_autofree uint64_t *latency_ns = g_new0(uint64_t, job->n_calls);
    struct run run = {.job = job, .latency_ns = latency_ns};
    uint64_t cpu_before_ns = cpu_ns(), start_ns = clock_mono_ns();
    int r = run_threads(&run);
    uint64_t cpu_after_ns = cpu_ns();
    if (r < 0)
        return r;
    qsort(latency_ns, job->n_calls, sizeof(uint64_t), by_value);
    *ret_row = (struct bench_row){.op = job->name,
                                  .threads = job->threads,
                                  .n_ops = job->n_calls,
                                  .elapsed_ns = atomic_load(&run.end_ns) - start_ns,
                                  .p50_ns = latency_ns[job->n_calls / 2],
                                  .p99_ns = latency_ns[job->n_calls * 99 / 100],
                                  .cpu_ns = cpu_after_ns - cpu_before_ns};
    return 0;
}

double bench_seconds(uint64_t ns)
{
    return (double)(ns == 0 ? 1 : ns) / (double)NS_PER_S;
}

double bench_ms(uint64_t ns)
{
    return (double)ns / (double)NS_PER_MS;
}

double bench_mb_per_s(const struct bench_row *row)
{
    return (double)row->bytes / 1e6 / bench_seconds(row->elapsed_ns);
}

double bench_ops_per_s(const struct bench_row *row)
{
    return (double)row->n_ops / bench_seconds(row->elapsed_ns);
}
