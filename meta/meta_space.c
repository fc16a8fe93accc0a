/*
 * Disk space kept back for the database: a write that the disk refuses for lack of room would be its last (meta_db.c).
 *
 * DIR/reserve, or a file beside the database where that is on another disk, is allocated and holds nothing. Before a commit, at most once in LOOK_NS, the free space is looked at: when the disk is nearly full the file is
 * cut short by as much as is missing, so that commits go on while nothing else can be written; a program that goes on writing into what was freed gets only that
 * much. When there is room again the file is made whole. It is removed when the database is closed; what a kill leaves is cut short at the next start like
 * any other.
 *
 * Concurrency: one thread looks at a time, others go on without. No lock is held.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "meta_db.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define RESERVE_PERCENT 2u
#define RESERVE_MIN     (256ull << 20)
#define RESERVE_MAX     (1024ull << 20)
#define RESERVE_SHARE   8u          /* never more than this part of the file system */
#define KEPT_FREE       (32u << 20) /* as much as the database writes in one go */
#define LOOK_NS         (2 * NS_PER_MS)
#define TRY_BYTES       65536u

/* Free for us: the superuser may use what a file system keeps for him. */
static uint64_t free_bytes(const struct statvfs *v)
{
    return (uint64_t)(geteuid() == 0 ? v->f_bfree : v->f_bavail) * v->f_frsize;
}

static void cut(struct meta_space *s, uint64_t size, uint64_t missing)
{
    if (RET_ERRNO(ftruncate(s->fd, (off_t)(size - MIN(size, missing)))) < 0)
        return;
    if (!s->low)
        log_warn("meta", "the disk of the database is full: it goes on in its reserve bytes=%" PRIu64, size);
    s->low = true;
}

static void make_whole(struct meta_space *s)
{
    int r = RET_ERRNO(fallocate(s->fd, 0, 0, (off_t)s->want_bytes));
    if (r < 0) {
        log_debug("meta", "no disk space can be kept back for the database r=%s", err_name(r));
        s->want_bytes = r == -ENOSPC ? s->want_bytes : 0;
        return;
    }
    if (s->low)
        log_notice("meta", "the disk of the database has room again");
    s->low = false;
}

static void look(struct meta_space *s)
{
    struct statvfs v;
    struct stat st;
    if (fstatvfs(s->fd, &v) < 0 || fstat(s->fd, &st) < 0)
        return; /* a broken disk shows in the writes */
    uint64_t size = (uint64_t)st.st_size, room = free_bytes(&v);
    uint64_t kept = s->want_bytes ? MIN(KEPT_FREE, s->want_bytes / 4) : KEPT_FREE;
    if (room < kept && size > 0)
        cut(s, size, kept - room);
    else if (size < s->want_bytes && room >= 2 * s->want_bytes)
        make_whole(s);
}

void meta_space_look(struct meta_space *s)
{
    if (s->fd < 0 || clock_mono_ns() < atomic_load_explicit(&s->next_ns, memory_order_relaxed) ||
        atomic_exchange_explicit(&s->busy, true, memory_order_acquire))
        return;
    look(s);
    atomic_store_explicit(&s->next_ns, clock_mono_ns() + LOOK_NS, memory_order_relaxed);
    atomic_store_explicit(&s->busy, false, memory_order_release);
}

void meta_space_open(struct meta_space *s, const char *file)
{
    s->path = g_strdup(file);
    s->fd = open(s->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    meta_space_look(s);
}

void meta_space_keep(struct meta_space *s, uint64_t most)
{
    struct statvfs v;
    if (s->fd < 0)
        s->fd = open(s->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    s->kept = s->fd >= 0;
    if (!s->kept || fstatvfs(s->fd, &v) < 0)
        return;
    uint64_t total = (uint64_t)v.f_blocks * v.f_frsize;
    uint64_t want = MIN(MAX(total / 100 * RESERVE_PERCENT, RESERVE_MIN), RESERVE_MAX);
    s->want_bytes = MIN(MIN(want, most), total / RESERVE_SHARE);
    meta_space_look(s);
}

int meta_space_try(const struct meta_space *s, uint64_t need)
{
    static const char block[TRY_BYTES];
    struct statvfs v;
    g_autofree char *path = g_strconcat(s->path, ".try", NULL);
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd < 0)
        return fd;
    int r = RET_ERRNO(fstatvfs(fd, &v));
    if (r == 0 && free_bytes(&v) < need)
        r = -ENOSPC;
    ssize_t n = r < 0 ? r : RET_ERRNO(write(fd, block, sizeof(block)));
    r = n < 0 ? (int)n : n < (ssize_t)sizeof(block) ? -ENOSPC : RET_ERRNO(fdatasync(fd));
    (void)unlink(path); /* else the next try overwrites it */
    return r;
}

void meta_space_close(struct meta_space *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    if (s->kept && unlink(s->path) < 0)
        log_debug("meta", "the reserve stays path='%s'", s->path);
    g_free(s->path);
}
