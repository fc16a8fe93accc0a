/*
 * Preload library: logs every change that a process makes below POWER_CACHE and POWER_LAKE (absolute paths without symbolic links) to the log POWER_LOG
 * (power_log.h). power_replay.py makes from it what a power cut at any point leaves.
 *
 * It stands between the program and libc's wrappers, so it sees neither stdio's own writes (RocksDB's LOG files are left out for that) nor what the kernel writes
 * for others by passthrough: for those power_snapshot() is called by the program that wrote. Kinds of change that nobody uses today are logged as STRANGE,
 * which fails the test. Whether all was seen is checked: the log's last state must be the folder's.
 *
 * POWER_BOOT_ID is what the program reads as the machine's boot id. A lake that is made again file by file has other inode numbers, which are part of the file
 * store's etags: files below POWER_LAKE all have inode number 1 (the time of the last change, in ns, still tells versions apart).
 */
#include "power_log.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define BOOT_FILE "/proc/sys/kernel/random/boot_id"

/* ---- opening ---- */

static long really_open(int dirfd, const char *name, int flags, mode_t mode, const struct open_how *how)
{
    return how ? syscall(SYS_openat2, dirfd, name, how, sizeof(*how)) : syscall(SYS_openat, dirfd, name, flags, mode);
}

/* how: of openat2, NULL: it is not. */
static int do_open(int dirfd, const char *name, int flags, mode_t mode, const struct open_how *how)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    bool changes = flags & (O_CREAT | O_TRUNC) || (flags & O_ACCMODE) != O_RDONLY;
    if (!changes || !power.head || !power_path_ours(dirfd, name, path))
        return (int)really_open(dirfd, name, flags, mode, how);
    power_lock();
    bool there = syscall(SYS_newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    int fd = (int)really_open(dirfd, name, flags, mode, how);
    int kept = errno;
    bool named = fd >= 0 && syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0;
    if (named && (flags & (O_DSYNC | O_DIRECT | __O_TMPFILE) & ~O_DIRECTORY))
        power_strange(path);
    if (named && !there)
        power_append(&(struct power_entry){.kind = POWER_CREATE, .a = path, .ino = st.st_ino});
    else if (named && (flags & O_TRUNC))
        power_append(&(struct power_entry){.kind = POWER_TRUNCATE, .ino = st.st_ino});
    errno = kept;
    power_unlock();
    return fd;
}

#define OPEN_MODE(flags, last)                                                                                         \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list ap;                                                                                                    \
        va_start(ap, last);                                                                                            \
        mode = va_arg(ap, mode_t);                                                                                     \
        va_end(ap);                                                                                                    \
    }

int open(const char *name, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return do_open(AT_FDCWD, name, flags, mode, NULL);
}

int open64(const char *name, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return do_open(AT_FDCWD, name, flags | O_LARGEFILE, mode, NULL);
}

int openat(int dirfd, const char *name, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return do_open(dirfd, name, flags, mode, NULL);
}

int openat64(int dirfd, const char *name, int flags, ...)
{
    OPEN_MODE(flags, flags)
    return do_open(dirfd, name, flags | O_LARGEFILE, mode, NULL);
}

/* openat2 has no wrapper. Our own calls come by here too. */
long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list ap;
    va_start(ap, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    static __thread bool inside;
    if (number != SYS_openat2 || inside)
        return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    const struct open_how *how = (const struct open_how *)a[2];
    inside = true;
    int fd = do_open((int)a[0], (const char *)a[1], (int)how->flags, (mode_t)how->mode, how);
    inside = false;
    return fd;
}

static FILE *do_fopen(const char *name, const char *how, const char *real_name)
{
    char path[POWER_PATH_BYTES];
    FILE *(*real)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, real_name);
    if (power.boot && strcmp(name, BOOT_FILE) == 0)
        return fmemopen((void *)power.boot, strlen(power.boot), "r");
    if (how[0] != 'r' && power.head && power_path_ours(AT_FDCWD, name, path)) {
        power_lock();
        power_strange(path);
        power_unlock();
    }
    return real(name, how);
}

FILE *fopen(const char *name, const char *how)
{
    return do_fopen(name, how, "fopen");
}

FILE *fopen64(const char *name, const char *how)
{
    return do_fopen(name, how, "fopen64");
}

/* ---- bytes ---- */

/* What lies at off of fd, just written by a call that does not show its bytes. */
static void append_from_file(int fd, const struct stat *st, uint64_t off, size_t len)
{
    char *data = malloc(len ? len : 1);
    char link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* which may be open for writing only */
    int in = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (data && in >= 0 && syscall(SYS_pread64, in, data, len, off) == (long)len)
        power_append(
            &(struct power_entry){.kind = POWER_WRITE, .data = data, .data_len = len, .ino = st->st_ino, .off = off});
    else
        power_strange("written, but cannot be read");
    if (in >= 0)
        (void)syscall(SYS_close, in);
    free(data);
}

/* off < 0: at the descriptor's own offset. */
static ssize_t do_writev(int fd, const struct iovec *v, int n, off_t off)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    bool mine = power_fd_ours(fd, &st, path) && S_ISREG(st.st_mode);
    if (mine)
        power_lock();
    long done = off < 0 ? syscall(SYS_writev, fd, v, n) : syscall(SYS_pwritev, fd, v, n, off, 0);
    int kept = errno;
    if (mine && done > 0)
        append_from_file(fd, &st, (uint64_t)(off < 0 ? syscall(SYS_lseek, fd, 0, SEEK_CUR) - done : off), (size_t)done);
    errno = kept;
    if (mine)
        power_unlock();
    return done;
}

ssize_t write(int fd, const void *buf, size_t len)
{
    struct iovec v = {(void *)buf, len};
    return do_writev(fd, &v, 1, -1);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    return do_writev(fd, v, n, -1);
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off64_t off)
{
    struct iovec v = {(void *)buf, len};
    return do_writev(fd, &v, 1, off);
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
    return pwrite64(fd, buf, len, off);
}

ssize_t copy_file_range(int in, off64_t *in_off, int out, off64_t *out_off, size_t len, unsigned flags)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    bool mine = power_fd_ours(out, &st, path);
    if (mine)
        power_lock();
    long done = syscall(SYS_copy_file_range, in, in_off, out, out_off, len, flags);
    int kept = errno;
    if (mine && done > 0)
        append_from_file(out, &st, (uint64_t)((out_off ? *out_off : syscall(SYS_lseek, out, 0, SEEK_CUR)) - done),
                         (size_t)done);
    errno = kept;
    if (mine)
        power_unlock();
    return done;
}

static int resized(long r, const struct stat *st, uint64_t size)
{
    int kept = errno;
    if (r == 0)
        power_append(&(struct power_entry){.kind = POWER_TRUNCATE, .ino = st->st_ino, .off = size});
    errno = kept;
    return (int)r;
}

int ftruncate64(int fd, off64_t size)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (!power_fd_ours(fd, &st, path))
        return (int)syscall(SYS_ftruncate, fd, size);
    power_lock();
    int r = resized(syscall(SYS_ftruncate, fd, size), &st, (uint64_t)size);
    power_unlock();
    return r;
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

int fallocate64(int fd, int mode, off64_t off, off64_t len)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (!power_fd_ours(fd, &st, path))
        return (int)syscall(SYS_fallocate, fd, mode, off, len);
    power_lock();
    int r = (int)syscall(SYS_fallocate, fd, mode, off, len);
    int kept = errno;
    if (r == 0 &&
        (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) || mode == (FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE)))
        power_append(
            &(struct power_entry){.kind = POWER_PUNCH, .ino = st.st_ino, .off = (uint64_t)off, .len = (uint64_t)len});
    else if (r == 0 && mode == 0 && off + len > st.st_size)
        power_append(&(struct power_entry){.kind = POWER_TRUNCATE, .ino = st.st_ino, .off = (uint64_t)(off + len)});
    else if (r == 0 && mode != 0 && mode != FALLOC_FL_KEEP_SIZE)
        power_strange("fallocate");
    errno = kept;
    power_unlock();
    return r;
}

int fallocate(int fd, int mode, off_t off, off_t len)
{
    return fallocate64(fd, mode, off, len);
}

int posix_fallocate(int fd, off_t off, off_t len)
{
    return fallocate64(fd, 0, off, len) < 0 ? errno : 0;
}

/* ---- reaching the disk ---- */

static int do_sync(int fd, long call, enum power_kind kind)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (!power_fd_ours(fd, &st, path))
        return (int)syscall(call, fd);
    power_lock();
    if (power.passed && S_ISREG(st.st_mode) && power_below(path, power.roots[0]))
        power_append_snapshot(fd, &st);
    int r = (int)syscall(call, fd);
    int kept = errno;
    if (r == 0)
        power_append(&(struct power_entry){.kind = S_ISDIR(st.st_mode) ? POWER_FSYNC : kind,
                                           .a = S_ISDIR(st.st_mode) ? path : NULL,
                                           .ino = st.st_ino});
    errno = kept;
    power_unlock();
    return r;
}

int fsync(int fd)
{
    return do_sync(fd, SYS_fsync, POWER_FSYNC);
}

int fdatasync(int fd)
{
    return do_sync(fd, SYS_fdatasync, POWER_FDATASYNC);
}

/* ---- what nobody uses below these folders: seen if that changes ---- */

int ioctl(int fd, unsigned long request, ...)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    va_list ap;
    va_start(ap, request);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if ((request == FICLONE || request == FICLONERANGE) && power_fd_ours(fd, &st, path)) {
        power_lock();
        power_strange("FICLONE");
        power_unlock();
    }
    return (int)syscall(SYS_ioctl, fd, request, arg);
}

void *mmap64(void *at, size_t len, int prot, int flags, int fd, off64_t off)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if ((flags & MAP_SHARED) && (prot & PROT_WRITE) && power_fd_ours(fd, &st, path)) {
        power_lock();
        power_strange("writable mapping");
        power_unlock();
    }
    return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, off);
}

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
    return mmap64(at, len, prot, flags, fd, off);
}

ssize_t splice(int in, off64_t *in_off, int out, off64_t *out_off, size_t len, unsigned flags)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (power_fd_ours(out, &st, path)) {
        power_lock();
        power_strange("splice");
        power_unlock();
    }
    return syscall(SYS_splice, in, in_off, out, out_off, len, flags);
}

int truncate64(const char *name, off64_t size)
{
    char path[POWER_PATH_BYTES];
    if (power_path_ours(AT_FDCWD, name, path)) {
        power_lock();
        power_strange("truncate");
        power_unlock();
    }
    return (int)syscall(SYS_truncate, name, size);
}

int truncate(const char *name, off_t size)
{
    return truncate64(name, size);
}

static ssize_t seen(const char *what, int fd)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (power_fd_ours(fd, &st, path)) {
        power_lock();
        power_strange(what);
        power_unlock();
    }
    return 0;
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t off)
{
    return do_writev(fd, v, n, off);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t off)
{
    return do_writev(fd, v, n, off);
}

ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off64_t off, int flags)
{
    (void)seen("pwritev2", fd);
    return syscall(SYS_pwritev2, fd, v, n, off, 0, flags);
}

ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t off, int flags)
{
    return pwritev64v2(fd, v, n, off, flags);
}

int syncfs(int fd)
{
    (void)seen("syncfs", fd);
    return (int)syscall(SYS_syncfs, fd);
}
