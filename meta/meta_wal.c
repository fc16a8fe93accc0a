/*
 * The end of the database's log after a power loss.
 *
 * Bytes that were appended and not synced reach the disk in any order, while the file has its new length: what is missing are sectors of zeros, in front of bytes
 * that are there. RocksDB takes zeros for a gap that it may pass over, and either goes on behind it (a batch without those before it) or refuses the
 * whole log as damaged. So before it opens the last log is cut off at the first record that a gap has damaged. A record that is wrong in any other way is left for
 * RocksDB, which refuses it: that is no end that was lost, but something that was there and is not any more.
 *
 * RocksDB's format: blocks of 32 KiB; in them records with crc (masked CRC32C of type and bytes), length, type (whole, or first, middle, last piece of one that
 * spans blocks), bytes; less than a header at the end of a block is zeros. Logs are neither reused nor compressed (meta_db.c).
 */
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "meta_db.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES  32768u
#define HEADER_BYTES 7u
#define SECTOR_BYTES 512u
#define CRC_DELTA    0xa282ead8u

enum piece { PIECE_WHOLE = 1, PIECE_FIRST, PIECE_MIDDLE, PIECE_LAST };

struct wal {
    const uint8_t *bytes;
    size_t size;
};

static bool is_zero(const struct wal *w, size_t from, size_t to)
{
    for (size_t i = from; i < to && i < w->size; i++)
        if (w->bytes[i])
            return false;
    return true;
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static size_t piece_bytes(const uint8_t *header)
{
    return HEADER_BYTES + ((size_t)header[4] | (size_t)header[5] << 8);
}

static bool piece_fits(const uint8_t *p, bool inside)
{
    uint32_t crc = crc32c(0, p + 6, piece_bytes(p) - 6);
    bool goes_on = p[6] == PIECE_MIDDLE || p[6] == PIECE_LAST;
    return p[6] >= PIECE_WHOLE && p[6] <= PIECE_LAST && goes_on == inside &&
           get32(p) == ((crc >> 15 | crc << 17) + CRC_DELTA);
}

/* Zeros from at to the end of its sector, or in a whole sector up to end. */
static bool has_gap(const struct wal *w, size_t at, size_t end)
{
    size_t next = at - at % SECTOR_BYTES + SECTOR_BYTES;
    if (is_zero(w, at, next))
        return true;
    for (; next < MIN(end, w->size); next += SECTOR_BYTES)
        if (is_zero(w, next, next + SECTOR_BYTES))
            return true;
    return false;
}

/* Where the log ends because of a gap; its size if there is none. */
static size_t find_gap(const struct wal *w)
{
    size_t at = 0, start = 0; /* of the record that the piece at `at` belongs to */
    bool inside = false;
    while (at < w->size) {
        size_t block_end = at - at % BLOCK_BYTES + BLOCK_BYTES;
        if (block_end - at < HEADER_BYTES) {
            at = block_end;
            continue;
        }
        start = inside ? start : at;
        bool header = at + HEADER_BYTES <= w->size;
        size_t end = header ? at + piece_bytes(w->bytes + at) : w->size;
        if (header && end <= MIN(block_end, w->size) && piece_fits(w->bytes + at, inside)) {
            inside = w->bytes[at + 6] == PIECE_FIRST || w->bytes[at + 6] == PIECE_MIDDLE;
            at = end;
            continue;
        }
        return has_gap(w, at, MIN(MAX(end, at + HEADER_BYTES), block_end)) ? start : w->size;
    }
    return w->size;
}

static int mend(const char *path)
{
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_RDWR | O_CLOEXEC));
    struct stat st;
    int r = fd < 0 ? fd : RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return r;
    g_autofree uint8_t *bytes = g_try_malloc((gsize)st.st_size + 1);
    ssize_t n = bytes ? RET_ERRNO(pread(fd, bytes, (size_t)st.st_size, 0)) : -ENOMEM;
    if (n < 0)
        return (int)n;
    const struct wal w = {bytes, (size_t)n};
    size_t end = find_gap(&w);
    if (end == w.size)
        return 0;
    log_warn(
        "meta",
        "the end of the database's log was not on the disk when the machine went down, it is cut off path='%s' size=%zu end=%zu",
        path, w.size, end);
    r = RET_ERRNO(ftruncate(fd, (off_t)end));
    return r < 0 ? r : RET_ERRNO(fsync(fd));
}

/* Taken while the log is looked at. RocksDB in another process (or this one) has the file locked as long as the database is open. */
static int lock_database(const char *dir)
{
    g_autofree char *path = g_build_filename(dir, "LOCK", NULL);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    int r = fd < 0 ? fd : RET_ERRNO(fcntl(fd, F_OFD_SETLK, &all));
    return r < 0 ? r : steal_fd(&fd);
}

static char *last_log(const char *dir)
{
    g_autoptr(GDir) d = g_dir_open(dir, 0, NULL);
    uint64_t best = 0;
    char *found = NULL;
    for (const char *name; d && (name = g_dir_read_name(d));) {
        char *end;
        uint64_t number = strtoull(name, &end, 10);
        if (end == name || strcmp(end, ".log") != 0 || number < best)
            continue;
        best = number;
        g_free(found);
        found = g_build_filename(dir, name, NULL);
    }
    return found;
}

void meta_wal_mend(const char *dir)
{
    g_autofree char *path = last_log(dir);
    if (!path)
        return;
    CLEANUP_FD int lock = lock_database(dir);
    int r = lock < 0 ? lock : mend(path);
    if (r < 0) /* opening it tells what is wrong */
        log_debug("meta", "the end of the database's log was not looked at path='%s' r=%s", path, err_name(r));
}
