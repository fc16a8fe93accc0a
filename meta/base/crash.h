/*
 * Points at which a test has the process killed, to see what the next one makes of what is left. Nothing of it is in a build without -Dtest_points=true.
 *
 * The environment's SLUICE_CRASH=name[:nth] kills at the nth passage of that point, in every process that has the variable. With SLUICE_CRASH_FILE=PATH the
 * point that is armed, and what was passed, are in that file (struct crash_file), which processes share and a test may change at any time: a point fires once, and `again` times more.
 * Any thread, no lock.
 */
#pragma once
#include <stdint.h>

enum crash_point {
#define CRASH(name) CRASH_##name,
#include "crash_points.def"
    CRASH_N
};

struct crash_file { /* host order, zeros at first */
    uint32_t armed; /* 1 + point, 0 none */
    uint32_t nth;   /* passages until it fires */
    uint32_t flags;
    uint32_t fired;           /* 1 + the point that fired last */
    uint32_t passed[CRASH_N]; /* how often each was */
    uint32_t again; /* how often the point that fired is armed anew, for its next passage in another process */
};
#define CRASH_PARENT 1u /* flag: the supervisor dies first */

#ifdef SLUICE_TEST_POINTS
void crash_pass(enum crash_point point);
#define CRASH_POINT(name) crash_pass(CRASH_##name)
#else
#define CRASH_POINT(name) ((void)0)
#endif
