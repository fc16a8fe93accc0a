/* See request.h. */
#include "request.h"

#define RESENT (1ull << 63) /* FUSE_UNIQUE_RESEND, which older kernel headers do not have */

static _Thread_local uint64_t current;
static _Thread_local unsigned current_place;

void request_begin(uint64_t unique, unsigned place)
{
    current = unique;
    current_place = place;
}

void request_end(void)
{
    current = 0;
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
