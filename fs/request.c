/* See request.h. */
#include "request.h"

#define RESENT (1ull << 63) /* FUSE_UNIQUE_RESEND, which older kernel headers do not have */

static _Thread_local uint64_t current;

void request_begin(uint64_t unique)
{
    current = unique;
}

void request_end(void)
{
    current = 0;
}

uint64_t request_unique(void)
{
    return current & ~RESENT;
}

bool request_is_resent(void)
{
    return current & RESENT;
}
