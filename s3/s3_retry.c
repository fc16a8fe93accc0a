/* Retry arithmetic; see s3_retry.h. No state of its own, no locks. */
#include "s3_retry.h"

#include "base/clock.h"

#include <glib.h>

#define BUDGET_FULL    500
#define COST_TRANSIENT 14
#define COST_THROTTLE  5
#define REFUND         14
#define BASE_NS        (50 * NS_PER_MS)
#define BASE_SLOW_NS   NS_PER_S
#define CAP_NS         (20 * NS_PER_S)
#define SERVER_CAP_NS  (60 * NS_PER_S)
#define WINDOW_MIN     1.0
#define COPY_BYTES_S   (4ull << 20)

void s3_budget_init(struct s3_budget *b)
{
    b->tokens = BUDGET_FULL;
}

bool s3_budget_take(struct s3_budget *b, enum s3_retry_class cls)
{
    int32_t cost = cls == S3_RETRY_THROTTLE ? COST_THROTTLE : COST_TRANSIENT;
    if (b->tokens < cost)
        return false;
    b->tokens -= cost;
    return true;
}

void s3_budget_refund(struct s3_budget *b)
{
    b->tokens = MIN(b->tokens + REFUND, BUDGET_FULL);
}

uint64_t s3_retry_delay_ns(enum s3_retry_class cls, unsigned attempt, double rnd, uint64_t server_ns, bool budget_ok)
{
    if (cls == S3_RETRY_CLOCK || (cls == S3_RETRY_CREDENTIALS && attempt == 1))
        return 0;
    uint64_t span = cls == S3_RETRY_THROTTLE ? BASE_SLOW_NS : BASE_NS;
    for (unsigned i = 1; i < attempt && span < CAP_NS; i++)
        span *= 2;
    if (span > CAP_NS || !budget_ok)
        span = CAP_NS;
    uint64_t delay = (uint64_t)(rnd * (double)span);
    return MAX(delay, MIN(server_ns, SERVER_CAP_NS));
}

uint32_t s3_retry_silence_s(uint64_t timeout_ns, bool slow, uint64_t copied_bytes)
{
    uint64_t timeout_s = timeout_ns / NS_PER_S;
    if (!slow)
        return (uint32_t)CLAMP(timeout_s / 2, 1, 30);
    return (uint32_t)MAX(CLAMP(timeout_s * 2, 1, 600), copied_bytes / COPY_BYTES_S);
}

uint64_t s3_retry_server_ns(const char *retry_after, const char *amz_retry_after)
{
    guint64 v = 0;
    if (amz_retry_after && g_ascii_string_to_unsigned(amz_retry_after, 10, 0, 3600000, &v, NULL))
        return v * NS_PER_MS;
    if (retry_after && g_ascii_string_to_unsigned(retry_after, 10, 0, 3600, &v, NULL))
        return v * NS_PER_S;
    return 0;
}

void s3_window_init(struct s3_window *w, uint32_t max)
{
    *w = (struct s3_window){.limit = max, .max = max};
}

bool s3_window_enter(struct s3_window *w)
{
    if (w->in_flight + 1 > w->limit)
        return false;
    w->in_flight++;
    return true;
}

void s3_window_leave(struct s3_window *w, bool throttled, bool ok, uint64_t started_ns, uint64_t now_ns)
{
    g_assert(w->in_flight > 0);
    w->in_flight--;
    if (throttled && started_ns >= w->cut_ns) { /* requests sent before the last cut say nothing new */
        w->limit = MAX(w->limit / 2, WINDOW_MIN);
        w->cut_ns = now_ns;
    } else if (ok) {
        w->limit = MIN(w->limit + 1 / w->limit, w->max);
    }
}
