/* Clocks with an offset that tests may advance. Any thread. */
#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static _Atomic uint64_t fake_offset_ns;

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec + atomic_load_explicit(&fake_offset_ns, memory_order_relaxed);
}

uint64_t clock_mono_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_wall_ns(void)
{
    return (int64_t)read_clock(CLOCK_REALTIME);
}

void clock_fake_advance(uint64_t ns)
{
    atomic_fetch_add_explicit(&fake_offset_ns, ns, memory_order_relaxed);
}

uint64_t clock_fake_offset_ns(void)
{
    return atomic_load_explicit(&fake_offset_ns, memory_order_relaxed);
}

static char boot_id[40];

static void read_boot_id(void)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f)
        return;
    if (!fgets(boot_id, sizeof(boot_id), f))
        boot_id[0] = '\0';
    boot_id[strcspn(boot_id, "\n")] = '\0';
    fclose(f);
}

const char *clock_boot_id(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_boot_id);
    return boot_id;
}
