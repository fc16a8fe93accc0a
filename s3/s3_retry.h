/*
 * Retry arithmetic. Pure: the clock's reading and the random number are arguments; who shares a struct locks it.
 *
 * An operation goes on until its deadline, which moves with each byte of progress; the budget keeps a dead store from being
 * hammered: when it is empty, waits are at their cap.
 */
#pragma once
#include "s3_err.h"

#include <stdbool.h>
#include <stdint.h>

/* Tokens for retries, shared by all operations of a store: a retry takes some, a success gives some back. */
struct s3_budget {
    int32_t tokens;
};
void s3_budget_init(struct s3_budget *b);
/* False when it is empty. */
bool s3_budget_take(struct s3_budget *b, enum s3_retry_class cls);
void s3_budget_refund(struct s3_budget *b);

/* How long to wait before attempt number `attempt` (1 = first retry): full jitter over 50 ms (1 s when throttled) doubling up to 20 s, not less
 * than what the server asked for (at most 60 s); at once with another clock and, the first time, with other credentials. rnd in [0, 1). */
uint64_t s3_retry_delay_ns(enum s3_retry_class cls, unsigned attempt, double rnd, uint64_t server_ns, bool budget_ok);
/* How many seconds of silence end a request: half the time limit, at most 30; twice of it, at most 600, where the store works before it answers (slow), and there not less than it
 * needs at 4 MiB/s to copy so many bytes: it says nothing meanwhile, and what is given up is begun anew from nothing. */
uint32_t s3_retry_silence_s(uint64_t timeout_ns, bool slow, uint64_t copied_bytes);
/* Retry-After (seconds) and x-amz-retry-after (milliseconds), either may be NULL; 0 if neither can be read. */
uint64_t s3_retry_server_ns(const char *retry_after, const char *amz_retry_after);

/* Requests allowed at one time: additive increase, halved on throttling, at most once per round trip. */
struct s3_window {
    double limit;
    double max;
    uint32_t in_flight;
    uint64_t cut_ns; /* when last halved */
};
void s3_window_init(struct s3_window *w, uint32_t max);
bool s3_window_enter(struct s3_window *w); /* false: full */
void s3_window_leave(struct s3_window *w, bool throttled, bool ok, uint64_t started_ns, uint64_t now_ns);
