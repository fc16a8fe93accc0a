/* The wrappers of power_record.c for names and attributes, and the inode numbers that a lake has. */
#include "power_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* ---- names ---- */

static int do_rename(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    char a[POWER_PATH_BYTES], b[POWER_PATH_BYTES];
    bool mine = power_path_ours(from_fd, from, a), there = power_path_ours(to_fd, to, b);
    if (!mine && !there)
        return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    power_lock();
    int r = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    int kept = errno;
    if (r == 0 && mine && there && flags == 0)
        power_append(&(struct power_entry){.kind = POWER_RENAME, .a = a, .b = b});
    else if (r == 0)
        power_strange("rename");
    errno = kept;
    power_unlock();
    return r;
}

int rename(const char *from, const char *to)
{
    return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return do_rename(from_fd, from, to_fd, to, 0);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return do_rename(from_fd, from, to_fd, to, flags);
}

static int do_unlink(int dirfd, const char *name, int flags)
{
    char path[POWER_PATH_BYTES];
    if (!power_path_ours(dirfd, name, path))
        return (int)syscall(SYS_unlinkat, dirfd, name, flags);
    power_lock();
    int r = (int)syscall(SYS_unlinkat, dirfd, name, flags);
    int kept = errno;
    if (r == 0)
        power_append(&(struct power_entry){.kind = flags & AT_REMOVEDIR ? POWER_RMDIR : POWER_UNLINK, .a = path});
    errno = kept;
    power_unlock();
    return r;
}

int unlink(const char *name)
{
    return do_unlink(AT_FDCWD, name, 0);
}

int unlinkat(int dirfd, const char *name, int flags)
{
    return do_unlink(dirfd, name, flags);
}

int rmdir(const char *name)
{
    return do_unlink(AT_FDCWD, name, AT_REMOVEDIR);
}

int remove(const char *name)
{
    int r = do_unlink(AT_FDCWD, name, 0);
    return r < 0 && (errno == EISDIR || errno == EPERM) ? rmdir(name) : r;
}

int mkdirat(int dirfd, const char *name, mode_t mode)
{
    char path[POWER_PATH_BYTES];
    if (!power_path_ours(dirfd, name, path))
        return (int)syscall(SYS_mkdirat, dirfd, name, mode);
    power_lock();
    int r = (int)syscall(SYS_mkdirat, dirfd, name, mode);
    int kept = errno;
    if (r == 0)
        power_append(&(struct power_entry){.kind = POWER_MKDIR, .a = path});
    errno = kept;
    power_unlock();
    return r;
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    char a[POWER_PATH_BYTES], b[POWER_PATH_BYTES];
    if (!power_path_ours(to_fd, to, b))
        return (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    bool mine = power_path_ours(from_fd, from, a);
    power_lock();
    int r = (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    int kept = errno;
    if (r == 0 && mine)
        power_append(&(struct power_entry){.kind = POWER_LINK, .a = a, .b = b});
    else if (r == 0)
        power_strange("link");
    errno = kept;
    power_unlock();
    return r;
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* ---- attributes ---- */

int fsetxattr(int fd, const char *name, const void *value, size_t len, int flags)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (!power_fd_ours(fd, &st, path))
        return (int)syscall(SYS_fsetxattr, fd, name, value, len, flags);
    power_lock();
    int r = (int)syscall(SYS_fsetxattr, fd, name, value, len, flags);
    int kept = errno;
    if (r == 0)
        power_append(&(struct power_entry){.kind = POWER_SETXATTR,
                                           .a = name,
                                           .b = S_ISDIR(st.st_mode) ? path : NULL,
                                           .data = value,
                                           .data_len = len,
                                           .ino = st.st_ino});
    errno = kept;
    power_unlock();
    return r;
}

int fremovexattr(int fd, const char *name)
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (!power_fd_ours(fd, &st, path))
        return (int)syscall(SYS_fremovexattr, fd, name);
    power_lock();
    int r = (int)syscall(SYS_fremovexattr, fd, name);
    int kept = errno;
    if (r == 0)
        power_append(&(struct power_entry){
            .kind = POWER_DELXATTR, .a = name, .b = S_ISDIR(st.st_mode) ? path : NULL, .ino = st.st_ino});
    errno = kept;
    power_unlock();
    return r;
}

int futimens(int fd, const struct timespec times[2])
{
    char path[POWER_PATH_BYTES];
    struct stat st;
    if (!power_fd_ours(fd, &st, path))
        return (int)syscall(SYS_utimensat, fd, NULL, times, 0);
    power_lock();
    int r = (int)syscall(SYS_utimensat, fd, NULL, times, 0);
    int kept = errno;
    if (r == 0 && syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0)
        power_append(
            &(struct power_entry){.kind = POWER_UTIMES,
                                  .ino = st.st_ino,
                                  .off = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec});
    errno = kept;
    power_unlock();
    return r;
}

/* ---- the lake's inode numbers ---- */

static int lake_stat(int r, struct stat *st, const char *path)
{
    if (r == 0 && power_below(path, power.roots[1]))
        st->st_ino = 1;
    return r;
}

int fstat64(int fd, struct stat64 *st)
{
    char path[POWER_PATH_BYTES];
    int r = (int)syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);
    return r == 0 && power.roots[1] && power_fd_path(fd, path) ? lake_stat(r, (struct stat *)st, path) : r;
}

int fstat(int fd, struct stat *st)
{
    return fstat64(fd, (struct stat64 *)st);
}

int fstatat64(int dirfd, const char *name, struct stat64 *st, int flags)
{
    char path[POWER_PATH_BYTES];
    int r = (int)syscall(SYS_newfstatat, dirfd, name, st, flags);
    return r == 0 && power.roots[1] && power_path_at(dirfd, name, path) ? lake_stat(r, (struct stat *)st, path) : r;
}

int fstatat(int dirfd, const char *name, struct stat *st, int flags)
{
    return fstatat64(dirfd, name, (struct stat64 *)st, flags);
}
