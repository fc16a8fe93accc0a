/* See cache_place.h. */
#include "cache_place.h"

#include "base/cleanup.h"
#include "base/crash.h"
#include "base/log.h"
#include "cache_fetch.h"
#include "cache_file.h"
#include "cache_space.h"

#include <assert.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define COPY_BYTES (1u << 20)
static_assert(TIER_LARGE_PAGE % COPY_BYTES == 0, "a copy meets each beginning of a large page");

uint32_t place_pin_flags(enum cache_pin pin)
{
    return (pin != PIN_NONE ? CACHED_PINNED : 0) | (pin == PIN_MEMORY ? CACHED_MEMORY : 0);
}

/* ---- opening ---- */

/* A sparse file of its size; what a crash or an earlier stay on this tier left under the name goes. */
static int make_file(struct cache_tier *t, uint64_t vid, uint64_t size)
{
    int r = tier_data_unlink(t, vid); /* never cut short: somebody may have it mapped */
    CLEANUP_FD int fd = r == 0 ? tier_data_open(t, vid, O_RDWR | O_CREAT | O_EXCL) : r;
    r = fd < 0 ? fd : RET_ERRNO(ftruncate(fd, (off_t)size));
    if (r == 0)
        r = t->kind == TIER_NOWHERE ? steal_fd(&fd) : tier_data_open(t, vid, O_RDONLY);
    tier_note_io(t, r);
    return r;
}

/* A sparse file with nothing present: the record is made (or reset) first, so that bits of earlier content never meet this file. */
static int make_absent(struct cache *c, uint64_t vid, uint64_t ino, uint64_t size, enum cache_pin pin, int *fd,
                       struct cache_entry **e)
{
    uint32_t flags = CACHED_SEGMENTS | place_pin_flags(pin), kept = CACHED_PINNED | CACHED_MEMORY | CACHED_HOT;
    uint32_t before = *e ? space_entry_flags(c, *e, flags, ~(flags | kept)) : CACHED_SEGMENTS;
    flags |= before & kept;
    struct cache_tier *t = tier_choose(c, size, flags & CACHED_MEMORY ? TIER_WANT_MEMORY : TIER_WANT_ANY);
    struct cache_tier *old = *e ? entry_tier(*e) : NULL;
    if (!*e)
        *e = space_entry_add(t, vid, ino, flags, MIN(size, t->whole_bytes));
    if (old && old != t)
        space_entry_move(c, *e, t, 0);
    int r = index_reset(c, *e, cached_unchecked(before));
    CRASH_POINT(absent_recorded);
    if (c->cfg.dropped)
        c->cfg.dropped(c->cfg.dropped_ctx, ino);
    if (*fd >= 0)
        (void)close(steal_fd(fd));
    if (r == 0 && old && old != t)
        r = tier_data_unlink(old, vid);
    if (r == 0)
        r = *fd = make_file(t, vid, size);
    return r < 0 ? r : 0;
}

int place_open(struct cache *c, uint64_t vid, uint64_t ino, uint64_t size, const struct cache_source *src, int *fd,
               struct cache_entry **e)
{
    struct stat st;
    bool has_source = src && src->key;
    enum cache_pin pin = src ? src->pin : PIN_NONE;
    *e = space_entry_find(c, vid);
    bool dirty = *e && (space_entry_flags(c, *e, 0, 0) & CACHED_DIRTY);
    struct cache_tier *t = *e ? entry_tier(*e) : tier_by_number(c, TIER_NUMBER_FIRST);
    if (has_source && (!*e || (!dirty && tier_state(t) != TIER_OK)))
        return make_absent(c, vid, ino, size, pin, fd, e);
    int r = tier_data_open(t, vid, O_RDONLY);
    if (r == -ENOENT)
        return has_source && !dirty ? make_absent(c, vid, ino, size, pin, fd, e) : -ENODATA;
    tier_note_io(t, r);
    if (r < 0)
        return r;
    *fd = r;
    r = RET_ERRNO(fstat(*fd, &st));
    if (r < 0)
        return r;
    if (!*e)
        *e = space_entry_add(t, vid, ino, CACHED_DIRTY | CACHED_COMPLETE, (uint64_t)st.st_size);
    else if (has_source && !dirty && (uint64_t)st.st_size != size)
        return make_absent(c, vid, ino, size, pin, fd, e);
    return 0;
}

/* ---- copies ---- */

static int copy_range(int from, const struct cache_tier *t, int to, void *buf, off_t at, off_t end)
{
    while (at < end) {
        if (at % TIER_LARGE_PAGE == 0 && end - at >= TIER_LARGE_PAGE)
            tier_large_page(t, to, at);
        ssize_t n = RET_ERRNO(pread(from, buf, (size_t)MIN(end - at, COPY_BYTES - at % COPY_BYTES), at));
        if (n == 0)
            return 0;
        for (ssize_t done = 0; n > 0 && done < n;) {
            ssize_t w = RET_ERRNO(pwrite(to, (char *)buf + done, (size_t)(n - done), at + done));
            if (w <= 0)
                return w < 0 ? (int)w : -EIO;
            done += w;
        }
        if (n < 0)
            return (int)n;
        at += n;
    }
    return 0;
}

/* Data only: holes stay. sync: checksums are missing to find a loss of power by. */
static int copy_file(int from, struct cache_tier *t, uint64_t vid, uint64_t size, bool sync)
{
    CLEANUP_FD int to = tier_data_open(t, vid, O_RDWR);
    g_autofree void *buf = g_try_malloc(COPY_BYTES);
    int r = to < 0 ? to : buf ? 0 : -ENOMEM;
    for (off_t at = 0; r == 0 && at < (off_t)size;) {
        off_t data = RET_ERRNO(lseek(from, at, SEEK_DATA));
        if (data == -ENXIO)
            break; /* no more data */
        off_t hole = data < 0 ? data : RET_ERRNO(lseek(from, data, SEEK_HOLE));
        r = hole < 0 ? (int)hole : copy_range(from, t, to, buf, data, hole);
        at = hole;
    }
    return r == 0 && sync ? RET_ERRNO(fdatasync(to)) : r;
}

static uint64_t disk_bytes(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* A copy on t of the local file behind `from`; reserved: bytes the caller has there. The new file's descriptor. */
static int make_copy(struct cache_tier *t, uint64_t vid, int from, bool sync, uint64_t reserved)
{
    struct stat st;
    int r = RET_ERRNO(fstat(from, &st));
    if (r < 0)
        return r;
    uint64_t bytes = (uint64_t)st.st_blocks * 512;
    bytes -= MIN(reserved, bytes);
    r = space_reserve(t, bytes, SPACE_FETCH);
    if (r < 0)
        return r;
    CLEANUP_FD int fd = make_file(t, vid, (uint64_t)st.st_size);
    r = fd < 0 ? fd : copy_file(from, t, vid, (uint64_t)st.st_size, sync);
    if (r < 0 && tier_data_unlink(t, vid) < 0)
        log_debug("cache", "a half copied file stays vid=%lu", (unsigned long)vid);
    tier_note_io(t, r);
    space_release(t, bytes);
    return r < 0 ? r : steal_fd(&fd);
}

/* ---- closed files ---- */

/* The old file goes before the record says where the new one is: what a crash leaves of the two is a record without a file, made again when it is opened. */
static int move_closed(struct cache *c, struct cache_entry *e, struct cache_tier *to)
{
    struct cache_tier *from = entry_tier(e);
    uint32_t flags = space_entry_flags(c, e, 0, 0);
    CLEANUP_FD int fd = tier_data_open(from, e->vid, O_RDONLY);
    CLEANUP_FD int copy = fd < 0 ? fd : make_copy(to, e->vid, fd, cached_unchecked(flags), 0);
    if (copy < 0)
        return copy;
    if (c->cfg.dropped)
        c->cfg.dropped(c->cfg.dropped_ctx, e->ino);
    int r = cached_unchecked(flags) ? meta_sync(c->meta) : 0; /* a power loss must not take back that it is published */
    if (r == 0)
        r = tier_data_unlink(from, e->vid);
    if (r < 0)
        return tier_data_unlink(to, e->vid) < 0 ? -EIO : r;
    space_entry_move(c, e, to, disk_bytes(copy));
    (void)space_entry_flags(c, e, 0, CACHED_GIVEN);
    return index_save_entry(c, e);
}

void place_settle(struct cache *c, struct cache_entry *e)
{
    struct meta_cached rec;
    space_entry_record(c, e, &rec);
    struct cache_tier *from = entry_tier(e);
    bool wanted = rec.flags & CACHED_MEMORY;
    if (!wanted || from->kind != TIER_DISK || tier_state(from) != TIER_OK || (rec.flags & CACHED_DIRTY))
        return;
    struct cache_tier *to = tier_choose(c, rec.bytes, TIER_WANT_MEMORY);
    int r = to->kind == TIER_MEMORY ? move_closed(c, e, to) : 0;
    if (r < 0)
        log_warn("cache", "a pinned file could not be moved to memory vid=%lu r=%s", (unsigned long)e->vid,
                 err_name(r));
}

/* ---- open files ---- */

struct move {
    struct cache_tier *from, *to;
    uint64_t reserved; /* bytes that the caller has on `to` */
    bool absent;       /* nothing comes with it */
    bool wait;
};

/* Neither what was changed nor what the kernel has is moved, nor without its bytes what has them nowhere else; from: where it is, unless it was moved meanwhile. */
static bool may_move_locked(const struct cfile *cf, const struct cache_tier *from, bool absent)
{
    return cfile_tier(cf) == from && !cf->dirty && (cf->src_key || !absent) && cf->pass == CACHE_PASS_OFF;
}

/* Nobody saves, resizes, or (unless absent) reads and writes the file until move_end(). False: it may not be moved, or (unless `wait`) somebody does. */
static bool move_begin_locked(struct cfile *cf, const struct move *m) REQUIRES(cf->mu)
{
    if (!m->wait && (cf->resizing || cf->saving))
        return false;
    while (cf->resizing)
        cond_wait(&cf->changed, &cf->mu);
    if (!may_move_locked(cf, m->from, m->absent))
        return false;
    cf->resizing = cf->moving = true;
    while (cf->saving || (!m->absent && (cf->ios || fetch_writing_locked(cf))))
        cond_wait(&cf->changed, &cf->mu); /* who punches saves with its ios begun */
    cf->saving = true;
    return true;
}

static void move_end_locked(struct cfile *cf)
{
    cf->resizing = cf->saving = cf->moving = false;
    cond_broadcast(&cf->changed);
}

/* The new local file takes the place of the old one. */
static int switch_file_locked(struct cfile *cf, int fd, int wfd)
{
    int at = cf->fd;
    int r = RET_ERRNO(at < 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : dup3(fd, at, O_CLOEXEC));
    if (r >= 0 && at < 0)
        __atomic_store_n(&cf->fd, r, __ATOMIC_RELEASE);
    cf->as_closed = false;
    if (r >= 0 && cf->wfd >= 0)
        r = RET_ERRNO(dup3(wfd, cf->wfd, O_CLOEXEC));
    return r < 0 ? r : 0;
}

/* On its new tier nothing is present: a clean file's bytes are all in its object, those beyond a limit of before too. */
static void forget_presence_locked(struct cfile *cf)
{
    cf->move_gen++;
    cf->limit = cf->size;
    cf->all_present = cf->dirty_unknown = false;
    cf->segmented = true;
    cf->limit_unsaved = cf->record_unsaved = true;
    chunkset_clear(&cf->present);
    chunkset_clear(&cf->verify);
    chunkset_clear(&cf->unsaved);
    g_array_set_size(cf->unsaved_crcs, 0);
    g_queue_clear(&cf->arrived);
}

/* The vid's file on `to` is cf's from now on. */
static int take_place(struct cfile *cf, const struct move *m, int fd)
{
    struct cache_tier *to = m->to;
    CLEANUP_FD int wfd =
        to->kind == TIER_NOWHERE ? RET_ERRNO(fcntl(fd, F_DUPFD_CLOEXEC, 0)) : tier_data_open(to, cf->vid, O_RDWR);
    if (wfd < 0)
        return wfd;
    struct cache *c = cf->c;
    bool absent = m->absent;
    uint64_t bytes = absent ? 0 : disk_bytes(fd);
    mutex_lock(&cf->mu);
    int r = switch_file_locked(cf, fd, wfd);
    if (r == 0) {
        space_entry_move(c, cf->entry, to, bytes);
        uint32_t gone = CACHED_GIVEN | (absent ? CACHED_COMPLETE | CACHED_SUSPECT | CACHED_FAILED : 0);
        (void)space_entry_flags(c, cf->entry, absent ? CACHED_SEGMENTS : 0, gone);
        if (absent)
            forget_presence_locked(cf);
    }
    mutex_unlock(&cf->mu);
    if (r == 0)
        r = absent ? index_reset(c, cf->entry, false) : index_save_entry(c, cf->entry);
    if (c->cfg.dropped)
        c->cfg.dropped(c->cfg.dropped_ctx, cf->ino);
    return r < 0 ? r : tier_data_unlink(m->from, cf->vid);
}

static int move_open(struct cfile *cf, const struct move *m)
{
    struct cache_tier *to = m->to;
    mutex_lock(&cf->mu);
    bool begun = move_begin_locked(cf, m);
    uint64_t size = cf->size;
    bool sync = cached_unchecked(space_entry_flags(cf->c, cf->entry, 0, 0));
    mutex_unlock(&cf->mu);
    if (!begun)
        return 0;
    /* An older record may call the file that is replaced on `to` complete. */
    int r = sync && to->kind == TIER_DISK ? meta_sync(cf->c->meta) : 0;
    int from = r < 0 || m->absent ? r : cfile_fd(cf);
    CLEANUP_FD int fd = from < 0    ? from
                        : m->absent ? make_file(to, cf->vid, size)
                                    : make_copy(to, cf->vid, from, sync, m->reserved);
    r = fd < 0 ? fd : take_place(cf, m, fd);
    mutex_lock(&cf->mu);
    move_end_locked(cf);
    mutex_unlock(&cf->mu);
    int saved = cfile_save_if_needed(cf);
    return r < 0 ? r : saved;
}

/* From memory: room is asked for before the move, which readers wait for, and as a writer does, who is held back while dirty data fills the disk. */
static int copy_to_disk(struct cfile *cf, struct cache_tier *from, struct cache_tier *to)
{
    int fd = cfile_fd(cf);
    mutex_lock(&cf->mu);
    bool may = may_move_locked(cf, from, false);
    mutex_unlock(&cf->mu);
    if (fd < 0 || !may)
        return MIN(fd, 0);
    struct move m = {.from = from, .to = to, .wait = true, .reserved = disk_bytes(fd)};
    int r = space_reserve(to, m.reserved, SPACE_WRITE);
    if (r < 0)
        return r;
    r = move_open(cf, &m);
    space_release(to, m.reserved);
    return r;
}

int place_for_writing(struct cfile *cf)
{
    struct cache_tier *from = cfile_tier(cf);
    if (from->kind == TIER_DISK)
        return 0;
    struct cache_tier *to = tier_choose(cf->c, cache_file_size(cf), TIER_WANT_DISK);
    if (to->kind != TIER_DISK) {
        log_err("cache", "no cache disk can be used: a change of a file is refused vid=%lu", (unsigned long)cf->vid);
        return -EIO;
    }
    struct move begin_anew = {.from = from, .to = to, .absent = true, .wait = true};
    int r = from->kind == TIER_NOWHERE ? move_open(cf, &begin_anew) : copy_to_disk(cf, from, to);
    if (r == 0 && cfile_tier(cf)->kind == TIER_NOWHERE)
        return -EIO;
    if (r == 0 && cfile_tier(cf)->kind == TIER_MEMORY) {
        log_warn("cache",
                 "a file in memory that programs have open cannot be changed: nothing of it would be on a disk vid=%lu",
                 (unsigned long)cf->vid);
        return -ETXTBSY;
    }
    return r;
}

void place_abandon(struct cfile *cf)
{
    struct cache_tier *from = cfile_tier(cf);
    bool nowhere = from->kind == TIER_NOWHERE;
    if (!nowhere && tier_state(from) == TIER_OK)
        return;
    mutex_lock(&cf->mu);
    uint64_t size = cf->size;
    mutex_unlock(&cf->mu);
    struct cache_tier *to = tier_choose(cf->c, size, TIER_WANT_DISK);
    struct move m = {.from = from, .to = to, .absent = true, .wait = nowhere};
    int r = to != from ? move_open(cf, &m) : 0;
    if (r < 0)
        log_warn("cache", "an open file could not go to another disk vid=%lu r=%s", (unsigned long)cf->vid,
                 err_name(r));
}
