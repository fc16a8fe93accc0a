/* See request.h. */
#include "request.h"

#include <stddef.h>

#define RESENT (1ull << 63) /* FUSE_UNIQUE_RESEND, which older kernel headers do not have */

static _Thread_local uint64_t current;
static _Thread_local unsigned current_place;
static _Thread_local void (*wait_fn)(void *ctx);
static _Thread_local void *wait_ctx;

void request_begin(uint64_t unique, unsigned place)
{
    current = unique;
    current_place = place;
}

void request_end(void)
{
    current = 0;
    wait_fn = NULL;
}

void request_on_wait(void (*fn)(void *ctx), void *ctx)
{
    wait_fn = fn;
    wait_ctx = ctx;
}

void request_waits(void)
{
    if (wait_fn)
        wait_fn(wait_ctx);
}

uint64_t request_unique(void)
{
    return current & ~RESENT;
}

unsigned request_place(void)
{
    return current_place;
}

bool request_is_resent(void)
{
    return request_resent(current);
}

bool request_resent(uint64_t unique)
{
    return unique & RESENT;
}
