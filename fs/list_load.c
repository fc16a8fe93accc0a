#include "list_load.h"

#include "base/clock.h"

#include <glib.h>

#define FALL   2u       /* the level falls by one of so many ns that pass */
#define OF_TTL 4u       /* a listing counts for one of so many parts of the TTL */
#define ONE_NS NS_PER_S /* and for that */
#define KEEPS_NS                                                                                                       \
    (2 * NS_PER_S) /* the level up to which the store keeps up: 4 s of nothing but listings are waited for */
#define STEEP                                                                                                          \
    10u /* names may be so many times later than the level is above that: all of a minute after 6 s, gone 12 s after the last listing */

static uint64_t level_at(const struct list_load *load, uint64_t now_ns)
{
    uint64_t fell = now_ns > load->as_of_ns ? (now_ns - load->as_of_ns) / FALL : 0;
    return load->level_ns > fell ? load->level_ns - fell : 0;
}

void list_load_add(struct list_load *load, uint64_t now_ns, uint64_t took_ns, uint64_t ttl_ns)
{
    uint64_t counts = MIN(MIN(took_ns, ttl_ns / OF_TTL), ONE_NS);
    load->level_ns = MIN(level_at(load, now_ns) + counts, KEEPS_NS + LIST_LOAD_AGE_MAX_NS / STEEP);
    load->as_of_ns = now_ns;
}

uint64_t list_load_late_ns(const struct list_load *load, uint64_t now_ns)
{
    uint64_t level = level_at(load, now_ns);
    return level > KEEPS_NS ? (level - KEEPS_NS) * STEEP : 0;
}
