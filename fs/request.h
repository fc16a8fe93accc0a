/* The request that this thread serves: libfuse does not tell its operations the number that the kernel knows it by. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Around the processing of each request, by who reads it from the kernel; unique as it came. A thread that is not told serves number 0, which none has. */
void request_begin(uint64_t unique);
void request_end(void);
/* Stays the same when the kernel sends the request again because who had it died. */
uint64_t request_unique(void);
/* Whether it was sent before: it may have been carried out. */
bool request_is_resent(void);
