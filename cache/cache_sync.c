/*
 * Bringing a cache file's bytes to the disk. A failed sync is never forgotten before the content is: the kernel tells of it once, and would take the next one for good.
 *
 * Of a large file that was just written much is dirty, and a sync of it alone keeps the disk busy for a second or more: who reads from it waits as long, and
 * so does a store that has its data there. Where nobody waits for the sync it is done in pieces with rests between.
 */
#include "base/clock.h"
#include "base/log.h"
#include "cache_file.h"
#include "cache_space.h"
#include "cache_tier.h"

#include <fcntl.h>
#include <unistd.h>

#define WRITE_OUT_BYTES (8 << 20)
#define REST_MAX_NS     (100 * NS_PER_MS) /* so long may who hurries wait for a rest to end */

/* The kernel tells of it only once, so the record keeps it for as long as the content. */
static void note_failed_sync(struct cfile *cf)
{
    (void)space_entry_flags(cf->c, cf->entry, CACHED_FAILED, 0);
    int r = cfile_save(cf);
    if (r < 0)
        log_warn("cache", "a failed sync could not be recorded vid=%lu r=%s", (unsigned long)cf->vid, err_name(r));
}

int cache_file_sync(struct cfile *cf)
{
    if (space_entry_flags(cf->c, cf->entry, 0, 0) & CACHED_FAILED)
        return -EIO;
    int fd = cfile_fd(cf);
    if (fd < 0)
        return fd;
    mutex_lock(&cf->mu);
    uint64_t n_came = cf->n_came;
    mutex_unlock(&cf->mu);
    int r = RET_ERRNO(fdatasync(fd));
    tier_note_io(cfile_tier(cf), r);
    if (r < 0)
        note_failed_sync(cf);
    mutex_lock(&cf->mu);
    cf->synced = cf->synced || cf->dirty;
    if (r == 0)
        cf->n_came_synced = MAX(cf->n_came_synced, n_came);
    mutex_unlock(&cf->mu);
    return r;
}

/* A power loss would leave zeros in place of what came, and nothing to tell by: what is dirty has no checksum. Without a sync all of the file counts as lost then. */
int cfile_sync_came(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    bool lacks = cf->synced && cf->n_came_synced < cf->n_came;
    mutex_unlock(&cf->mu);
    return lacks ? cache_file_sync(cf) : 0;
}

/* Returned as the descriptor's error by that call, and by no later one. */
static bool is_write_error(int r)
{
    return r == -EIO || r == -ENOSPC || r == -EDQUOT;
}

void cache_file_write_out(struct cfile *cf, const int *hurry)
{
    const unsigned how = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    int fd = cfile_fd(cf), r = fd < 0 ? fd : 0;
    uint64_t size = cache_file_size(cf);
    for (uint64_t at = 0; r == 0 && at < size; at += WRITE_OUT_BYTES) {
        uint64_t began = clock_mono_ns();
        if (__atomic_load_n(hurry, __ATOMIC_RELAXED)) /* a flag */
            return;
        r = RET_ERRNO(sync_file_range(fd, (off_t)at, WRITE_OUT_BYTES, how));
        if (!__atomic_load_n(hurry, __ATOMIC_RELAXED))
            g_usleep(MIN(clock_mono_ns() - began, REST_MAX_NS) / 1000);
    }
    if (!is_write_error(r)) /* else the file system does not do this: cache_file_sync() writes all of it */
        return;
    tier_note_io(cfile_tier(cf), r);
    note_failed_sync(cf);
}
