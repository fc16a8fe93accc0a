/*
 * Arithmetic of part boundaries. Pure: no state, any thread.
 *
 * Part i is as long as part_bytes doubled i / 1000 times, cut at the store's limit; so offset and index convert into each other in at
 * most ten steps and no table is needed.
 */
#include "upload_layout.h"

#include <glib.h>

void upload_layout_init(struct upload_layout *l, uint64_t part_bytes, const struct objstore_limits *limits)
{
    g_assert(limits->part_max_bytes > 0 && limits->parts_max > 0);
    l->part_bytes = CLAMP(part_bytes, MAX(limits->part_min_bytes, 1), limits->part_max_bytes);
    l->part_max_bytes = limits->part_max_bytes;
    l->object_max_bytes = limits->object_max_bytes;
    l->parts_max = MIN(limits->parts_max, UPLOAD_PARTS_MAX);
}

static uint64_t step_bytes(const struct upload_layout *l, uint32_t step)
{
    uint64_t n = l->part_bytes;
    while (step-- > 0 && n < l->part_max_bytes)
        n = n > l->part_max_bytes / 2 ? l->part_max_bytes : n * 2;
    return n;
}

uint64_t upload_part_bytes(const struct upload_layout *l, uint32_t i)
{
    return step_bytes(l, i / UPLOAD_PARTS_PER_SIZE);
}

uint64_t upload_part_offset(const struct upload_layout *l, uint32_t i)
{
    uint64_t off = 0;
    uint32_t step = 0;
    for (; i >= UPLOAD_PARTS_PER_SIZE; i -= UPLOAD_PARTS_PER_SIZE)
        off += step_bytes(l, step++) * UPLOAD_PARTS_PER_SIZE;
    return off + step_bytes(l, step) * i;
}

uint32_t upload_part_of(const struct upload_layout *l, uint64_t off)
{
    for (uint32_t first = 0; first < l->parts_max; first += UPLOAD_PARTS_PER_SIZE) {
        uint64_t bytes = upload_part_bytes(l, first);
        if (off < bytes * UPLOAD_PARTS_PER_SIZE)
            return (uint32_t)MIN(first + off / bytes, l->parts_max);
        off -= bytes * UPLOAD_PARTS_PER_SIZE;
    }
    return l->parts_max;
}

uint64_t upload_part_len(const struct upload_layout *l, uint32_t i, uint64_t size)
{
    uint64_t off = upload_part_offset(l, i);
    return off >= size ? 0 : MIN(upload_part_bytes(l, i), size - off);
}

int upload_n_parts(const struct upload_layout *l, uint64_t size, uint32_t *ret_n)
{
    if (size == 0) {
        *ret_n = 1;
        return 0;
    }
    uint32_t last = upload_part_of(l, size - 1);
    if (last >= l->parts_max || size > l->object_max_bytes)
        return -EFBIG;
    *ret_n = last + 1;
    return 0;
}
