/* The request that this thread serves: libfuse does not tell its operations the number that the kernel knows it by. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Around the processing of each request, by who reads it from the kernel; unique as it came, place: of the thread, no two that serve at the same time have
 * the same. A thread that is not told serves number 0, which none has. */
void request_begin(uint64_t unique, unsigned place);
void request_end(void);
/* After request_begin(): who reads requests has fn called, by request_waits(). */
void request_on_wait(void (*fn)(void *ctx), void *ctx);
/* The request is not answered from memory: from here on disk, database, store or another request may be waited for. To be called before that by operations that
 * fuse_loop.c calls prompt; the others need not. */
void request_waits(void);
/* Stays the same when the kernel sends the request again because who had it died. */
uint64_t request_unique(void);
unsigned request_place(void);
/* Whether it was sent before: it may have been carried out. */
bool request_is_resent(void);
/* The same of a number as it comes from the kernel. */
bool request_resent(uint64_t unique);
