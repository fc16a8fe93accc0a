/* Clocks. Tests may shift both (clock_fake_advance) so that minutes pass at once; a build for tests can let the monotonic one run faster. */
#pragma once
#include <stdint.h>

#define NS_PER_S  1000000000ull
#define NS_PER_MS 1000000ull

uint64_t clock_mono_ns(void);
int64_t clock_wall_ns(void);
/* How far the wall clock is ahead of the time since the machine's start: it changes when somebody sets the clock. Tests shift neither. */
int64_t clock_wall_ahead_ns(void);
/* Seconds since 1970 and ns (0 to 999999999) behind them as such a time: 1678 to 2262, what lies beyond is its end. */
int64_t clock_wall_of(int64_t unix_s, int64_t ns);
/* Adds ns to what both clocks return from now on (tests). */
void clock_fake_advance(uint64_t ns);
/* The sum of those advances. */
uint64_t clock_fake_offset_ns(void);
/* What CLOCK_MONOTONIC reads when clock_mono_ns() reaches mono_ns: for a wait on the real clock. */
uint64_t clock_mono_to_real_ns(uint64_t mono_ns);
/* The machine's boot id ("xxxxxxxx-..."), "" if unknown. Static storage. */
const char *clock_boot_id(void);
