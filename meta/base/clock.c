/*
 * Clocks with an offset that tests may advance. Any thread.
 *
 * In a build for tests (-Dtest_points=true) the environment's SLUICE_CLOCK_SCALE=N makes the monotonic clock, and with it every time limit, delay and back-off,
 * run N times as fast from the process's first look at it. The wall clock stays: signatures, times of files, ages kept over a restart and the expiry of
 * credentials are measured against the world's. So do the network's own time limits and the short pauses of polling loops.
 */
#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic uint64_t fake_offset_ns;

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

#ifdef SLUICE_TEST_POINTS
static struct {
    pthread_once_t once;
    uint64_t factor, origin_ns;
} speed = {.once = PTHREAD_ONCE_INIT};

static void read_speed(void)
{
    const char *text = getenv("SLUICE_CLOCK_SCALE");
    unsigned long n = text ? strtoul(text, NULL, 10) : 0;
    speed.factor = n >= 1 && n <= 100000 ? n : 1;
    speed.origin_ns = read_clock(CLOCK_MONOTONIC);
}

static uint64_t speed_up(uint64_t real_ns)
{
    pthread_once(&speed.once, read_speed);
    return real_ns > speed.origin_ns ? speed.origin_ns + (real_ns - speed.origin_ns) * speed.factor : real_ns;
}

static uint64_t slow_down(uint64_t ns)
{
    pthread_once(&speed.once, read_speed);
    uint64_t past = ns > speed.origin_ns ? ns - speed.origin_ns : 0;
    return past ? speed.origin_ns + past / speed.factor + (past % speed.factor != 0) : ns;
}
#else
static uint64_t speed_up(uint64_t real_ns)
{
    return real_ns;
}

static uint64_t slow_down(uint64_t ns)
{
    return ns;
}
#endif

uint64_t clock_mono_ns(void)
{
    return speed_up(read_clock(CLOCK_MONOTONIC)) + clock_fake_offset_ns();
}

uint64_t clock_mono_to_real_ns(uint64_t mono_ns)
{
    uint64_t offset = clock_fake_offset_ns();
    return mono_ns > offset ? slow_down(mono_ns - offset) : 0;
}

int64_t clock_wall_of(int64_t unix_s, int64_t ns)
{
    const int64_t most = INT64_MAX / (int64_t)NS_PER_S - 1;
    if (unix_s < -most || unix_s > most)
        return unix_s < 0 ? INT64_MIN : INT64_MAX;
    return unix_s * (int64_t)NS_PER_S + ns;
}

int64_t clock_wall_ns(void)
{
    return (int64_t)(read_clock(CLOCK_REALTIME) + clock_fake_offset_ns());
}

int64_t clock_wall_ahead_ns(void)
{
    return (int64_t)(read_clock(CLOCK_REALTIME) - read_clock(CLOCK_BOOTTIME));
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
