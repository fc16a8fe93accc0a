/*
 * Files that the kernel reads and writes itself (FUSE passthrough), and the descriptors we write with.
 *
 * A read lease on the local file is the one way to learn that nobody can write to it any more: the kernel grants it only while no descriptor
 * is open for writing and no shared writable mapping exists, also one that outlived its close. It counts our own descriptors too, so cf->fd is for
 * reading, and cf->wfd is closed after each use while the kernel writes.
 *
 * Not every file system has leases (NFS, 9p), or lends one that nobody stands against. A disk is tried when it is opened, and if that fails (it is full, say) when it is asked
 * about next; on one without them, or of which that is not known, no file is given for writing.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "cache_doubt.h"
#include "cache_file.h"
#include "cache_space.h"

#include <assert.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEASE_FILE  "lease" /* what leases are tried on */
#define LEASE_TRIES 20u

/* ---- writing ourselves ---- */

static int wfd_try(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    int fd = cf->wfd;
    cf->as_closed = false;
    if (fd >= 0)
        cf->n_wfd++;
    mutex_unlock(&cf->mu);
    if (fd >= 0)
        return fd;
    struct cache_tier *t = cfile_tier(cf);
    fd = tier_data_open(t, cf->vid, O_RDWR);
    if (fd < 0)
        return fd;
    mutex_lock(&cf->mu);
    if (cfile_tier(cf) != t) { /* moved meanwhile: the descriptor is of the file it had */
        mutex_unlock(&cf->mu);
        (void)close(fd);
        return -EAGAIN;
    }
    int extra = cf->wfd >= 0 ? fd : -1; /* somebody was quicker */
    if (cf->wfd < 0)
        cf->wfd = fd;
    fd = cf->wfd;
    cf->n_wfd++;
    mutex_unlock(&cf->mu);
    if (extra >= 0)
        (void)close(extra);
    return fd;
}

int cfile_wfd_get(struct cfile *cf)
{
    int fd;
    do {
        fd = wfd_try(cf);
    } while (fd == -EAGAIN);
    return fd;
}

static int take_idle_wfd_locked(struct cfile *cf)
{
    if (cf->n_wfd > 0 || cf->pass != CACHE_PASS_WRITE)
        return -1;
    int fd = cf->wfd;
    cf->wfd = -1;
    return fd;
}

void cfile_wfd_put(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    assert(cf->n_wfd > 0);
    cf->n_wfd--;
    int fd = take_idle_wfd_locked(cf);
    mutex_unlock(&cf->mu);
    if (fd >= 0)
        (void)close(fd);
}

/* ---- passthrough ---- */

/* Under the lock, though it asks the kernel: a size stored later would be one of before. */
static void refresh_size_locked(struct cfile *cf)
{
    struct stat st;
    if (cf->pass == CACHE_PASS_WRITE && !cf->resizing && fstat(cf->fd, &st) == 0)
        cf->size = (uint64_t)st.st_size;
}

void cfile_refresh_size(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    refresh_size_locked(cf);
    mutex_unlock(&cf->mu);
}

/*
 * In the database before the kernel gets the file: a mapping may outlive us. From the mark on nothing is punched, so only after it
 * "complete" stays true.
 */
static int mark_given(struct cfile *cf)
{
    bool before = space_entry_flags(cf->c, cf->entry, CACHED_GIVEN, 0) & CACHED_GIVEN;
    if (!cache_file_complete(cf)) {
        if (!before)
            (void)space_entry_flags(cf->c, cf->entry, 0, CACHED_GIVEN);
        return -EAGAIN;
    }
    if (before)
        return 0;
    mutex_lock(&cf->mu);
    cf->record_unsaved = true;
    mutex_unlock(&cf->mu);
    return cfile_save_if_needed(cf);
}

int cache_file_set_passthrough(struct cfile *cf, enum cache_pass pass)
{
    int fd = pass == CACHE_PASS_WRITE ? cfile_fd(cf) : 0; /* by which its size is asked from now on */
    int r = fd < 0 ? fd : pass != CACHE_PASS_OFF ? mark_given(cf) : 0;
    if (r < 0)
        return r;
    mutex_lock(&cf->mu);
    bool ends = cf->pass == CACHE_PASS_WRITE && pass != CACHE_PASS_WRITE;
    mutex_unlock(&cf->mu);
    if (ends) { /* while whoever publishes a snapshot still compares everything again */
        follow_remove(cf);
        upload_note_write(cf, 0, 0);
    }
    mutex_lock(&cf->mu);
    while (cf->resizing) /* or moving */
        cond_wait(&cf->changed, &cf->mu);
    if (pass != CACHE_PASS_OFF && !cfile_complete_locked(cf)) {
        mutex_unlock(&cf->mu);
        return -EAGAIN;
    }
    assert(pass != CACHE_PASS_WRITE || !cf->src_key);
    enum cache_pass before = cf->pass;
    refresh_size_locked(cf); /* for good when the writing ends */
    cf->pass = pass;
    if (pass == CACHE_PASS_OFF)
        doubt_given_back_locked(cf);
    cf->as_closed &= pass != CACHE_PASS_WRITE;
    if (before != pass && (before == CACHE_PASS_WRITE || pass == CACHE_PASS_WRITE))
        cf->stamp++; /* whatever is written meanwhile */
    if (before != CACHE_PASS_WRITE) {
        cf->followed = cf->size;
        cf->preallocated = false;
    }
    fd = take_idle_wfd_locked(cf);
    mutex_unlock(&cf->mu);
    if (fd >= 0)
        (void)close(fd);
    if (before != CACHE_PASS_WRITE && pass == CACHE_PASS_WRITE) {
        follow_add(cf);
    } else if (ends) {
        cfile_account(cf);
    }
    return 0;
}

bool cache_file_in_memory(struct cfile *cf)
{
    return cfile_tier(cf)->kind == TIER_MEMORY;
}

bool cache_file_shows_writers(struct cfile *cf)
{
    return tier_has_leases(cfile_tier(cf));
}

bool cache_file_has_writers(struct cfile *cf)
{
    if (__atomic_load_n(&cfile_tier(cf)->leases, __ATOMIC_RELAXED) == LEASES_NONE)
        return false; /* some such disks answer that there are, of any file */
    int fd = cfile_fd(cf), r = fd < 0 ? fd : RET_ERRNO(fcntl(fd, F_SETLEASE, F_RDLCK));
    if (r < 0 && r != -EAGAIN)
        log_debug("cache", "a lease could not be had: mappings that outlive their close are not seen vid=%lu r=%s",
                  (unsigned long)cf->vid, err_name(r));
    if (r < 0)
        return r == -EAGAIN;
    if (fcntl(fd, F_SETLEASE, F_UNLCK) < 0)
        log_warn("cache", "a lease could not be given back vid=%lu", (unsigned long)cf->vid);
    return false;
}

/* Another thread that tries may have the file open for a moment. */
static int lease_of(int fd)
{
    int r = -EAGAIN;
    for (unsigned i = 0; r == -EAGAIN && i < LEASE_TRIES; i++) {
        if (i > 0)
            g_usleep(1000);
        r = RET_ERRNO(fcntl(fd, F_SETLEASE, F_RDLCK));
    }
    return r == -EAGAIN ? -ENOLCK : r; /* network file systems that would have to ask their server first */
}

/* -EAGAIN: nothing can be said now. */
static int try_lease(struct cache_tier *t)
{
    CLEANUP_FD int made = RET_ERRNO(openat(t->dir_fd, LEASE_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (made < 0)
        return -EAGAIN;
    (void)close(steal_fd(&made));
    CLEANUP_FD int fd = RET_ERRNO(openat(t->dir_fd, LEASE_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    int r = fd < 0 ? -EAGAIN : tier_fault_is(t, "nolease") ? -EINVAL : lease_of(fd);
    (void)unlinkat(t->dir_fd, LEASE_FILE, 0); /* the next one may find it */
    return r;
}

bool tier_has_leases(struct cache_tier *t)
{
    int leases = __atomic_load_n(&t->leases, __ATOMIC_RELAXED);
    if (leases != LEASES_UNTRIED)
        return leases == LEASES_THERE;
    int r = try_lease(t);
    if (r == -EAGAIN) {
        log_debug("cache", "leases could not be tried path='%s'", t->dir);
        return false;
    }
    if (r < 0)
        log_notice("cache", "no leases on the cache disk, files open for writing are not passed through path='%s' r=%s",
                   t->dir, err_name(r));
    __atomic_store_n(&t->leases, r < 0 ? LEASES_NONE : LEASES_THERE, __ATOMIC_RELAXED);
    return r == 0;
}

bool cache_file_has_room(struct cfile *cf, uint64_t expect_bytes)
{
    struct cache *c = cf->c;
    uint64_t want = MAX(expect_bytes, 60 * follow_rate(c));
    struct cache_tier *t = cfile_tier(cf);
    mutex_lock(&c->space.mu);
    bool room =
        t->fs_free_bytes >= t->free_limit_bytes + want && t->dirty_bytes + t->pinned_bytes + want <= t->limit_bytes;
    mutex_unlock(&c->space.mu);
    return room && tier_state(t) == TIER_OK;
}

bool cache_file_can_come(struct cfile *cf, uint64_t bytes)
{
    struct cache_tier *t = cfile_tier(cf);
    mutex_lock(&cf->c->space.mu);
    uint64_t want = MIN(bytes, t->limit_bytes / 8); /* what was read may be dropped again */
    uint64_t kept = t->dirty_bytes + t->pinned_bytes;
    uint64_t droppable = t->used_bytes - MIN(kept, t->used_bytes);
    bool room = t->fs_free_bytes + droppable >= t->free_limit_bytes + want && kept + want <= t->limit_bytes;
    mutex_unlock(&cf->c->space.mu);
    return room && tier_state(t) == TIER_OK;
}
