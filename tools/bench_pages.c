/*
 * The page cache under `sluice bench`. posix_fadvise drops a file's own pages; those of a file that the kernel passes through belong to the
 * file behind it, which only a mapping reaches: there MADV_PAGEOUT gives back the pages that are mapped.
 */
#include "tools/bench.h"

#include <fcntl.h>
#include <glib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define WINDOW (64u << 20) /* mapped at a time */

/* Pages of the mapping that are in memory. */
static uint64_t n_resident(void *map, uint64_t len)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n_pages = (len + page - 1) / page, n = 0;
    g_autofree unsigned char *in = g_malloc(n_pages);
    if (mincore(map, len, in) < 0)
        return n_pages;
    for (uint64_t i = 0; i < n_pages; i++)
        n += in[i] & 1;
    return n;
}

/* Pages of this part that stayed. */
static uint64_t drop_part(int fd, uint64_t off, uint64_t len)
{
    void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)off);
    if (map == MAP_FAILED)
        return len / BENCH_PAGE + 1;
    uint64_t n = n_resident(map, len);
    if (n > 0 && madvise(map, len, MADV_POPULATE_READ) == 0 && madvise(map, len, MADV_PAGEOUT) == 0)
        n = n_resident(map, len);
    (void)munmap(map, len); /* cannot fail on what was mapped */
    return n;
}

bool bench_pages_drop(int fd, uint64_t size)
{
    uint64_t n_left = 0;
    (void)fdatasync(fd); /* pages not yet written stay: n_left tells */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    for (uint64_t off = 0; off < size; off += WINDOW)
        n_left += drop_part(fd, off, MIN(WINDOW, size - off));
    return n_left <= size / BENCH_PAGE / 100;
}
