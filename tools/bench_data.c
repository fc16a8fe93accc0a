/* The bytes that `sluice bench` writes and expects back. Page p of a file is page p of the block, with a stamp of file and p as its first word. */
#include "base/clock.h"
#include "tools/bench.h"

#include <glib.h>
#include <string.h>
#include <sys/random.h>

#define BLOCK_PAGES (BENCH_BLOCK / BENCH_PAGE)

uint64_t bench_mix(uint64_t x)
{ /* splitmix64 */
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t stamp_of(const struct bench_data *d, uint64_t file, uint64_t page)
{
    return bench_mix(bench_mix(d->seed + file) ^ page);
}

int bench_data_init(struct bench_data *d)
{
    d->block = g_try_malloc(BENCH_BLOCK);
    if (!d->block)
        return -ENOMEM;
    if (getrandom(&d->seed, sizeof d->seed, 0) != sizeof d->seed)
        d->seed = (uint64_t)clock_wall_ns();
    for (uint64_t at = 0; at < BENCH_BLOCK; at += sizeof(uint64_t)) {
        uint64_t word = bench_mix(d->seed ^ ~at);
        memcpy(d->block + at, &word, sizeof word);
    }
    return 0;
}

uint8_t *bench_data_copy(const struct bench_data *d)
{
    uint8_t *copy = g_try_malloc(BENCH_BLOCK);
    if (copy)
        memcpy(copy, d->block, BENCH_BLOCK);
    return copy;
}

void bench_data_stamp(const struct bench_data *d, uint8_t *copy, uint64_t file, uint64_t off, uint64_t len)
{
    for (uint64_t at = 0; at < len; at += BENCH_PAGE) {
        uint64_t page = (off + at) / BENCH_PAGE, word = stamp_of(d, file, page);
        memcpy(copy + page % BLOCK_PAGES * BENCH_PAGE, &word, MIN(sizeof word, len - at));
    }
}

/* One page or the start of one; only its stamp if not `all`. */
static bool page_is(const struct bench_data *d, const uint8_t *buf, uint64_t file, uint64_t page, uint64_t len,
                    bool all)
{
    uint64_t word = stamp_of(d, file, page), head = MIN(sizeof word, len);
    const uint8_t *want = d->block + page % BLOCK_PAGES * BENCH_PAGE;
    return memcmp(buf, &word, head) == 0 && (!all || memcmp(buf + head, want + head, len - head) == 0);
}

int bench_data_check(const struct bench_data *d, const uint8_t *buf, uint64_t file, uint64_t off, uint64_t len,
                     bool all)
{
    for (uint64_t at = 0; at < len; at += BENCH_PAGE)
        if (!page_is(d, buf + at, file, (off + at) / BENCH_PAGE, MIN(BENCH_PAGE, len - at), all))
            return -EBADMSG;
    return 0;
}
