/*
 * Where a path of the file driver leads: below the root, and along no symbolic link. Others may write to the directory, and the daemon may read and change more than they: a link of theirs,
 * also one that comes while a path is followed, must neither show nor change what is elsewhere. The kernel sees to that (openat2, Linux 5.6). What is not opened is reached by its directory's
 * descriptor and its last name, which none of the calls below follows. A '/' at the end of a path tells nothing here.
 */
#include "base/cleanup.h"
#include "drv_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int file_at(struct drv_file *f, const char *path, int flags, mode_t mode)
{
    struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC | O_NOFOLLOW,
                           .mode = mode,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    return RET_ERRNO((int)syscall(SYS_openat2, f->root_fd, *path ? path : ".", &how, sizeof(how)));
}

/* The directory that path stands in, and its name there, owned. */
static int parent_of(struct drv_file *f, const char *path, char **ret_name)
{
    g_autofree char *bare = g_strndup(path, strlen(path) - g_str_has_suffix(path, "/"));
    char *slash = strrchr(bare, '/');
    if (slash)
        *slash = '\0';
    int fd = file_at(f, slash ? bare : ".", O_PATH | O_DIRECTORY, 0);
    if (fd >= 0)
        *ret_name = g_strdup(slash ? slash + 1 : bare);
    return fd;
}

int file_stat(struct drv_file *f, const char *path, struct stat *ret)
{
    g_autofree char *name = NULL;
    CLEANUP_FD int at = parent_of(f, path, &name);
    return at < 0 ? at : RET_ERRNO(fstatat(at, name, ret, AT_SYMLINK_NOFOLLOW));
}

int file_mkdir(struct drv_file *f, const char *path)
{
    g_autofree char *name = NULL;
    CLEANUP_FD int at = parent_of(f, path, &name);
    return at < 0 ? at : RET_ERRNO(mkdirat(at, name, 0777));
}

int file_remove(struct drv_file *f, const char *path, int flags)
{
    g_autofree char *name = NULL;
    CLEANUP_FD int at = parent_of(f, path, &name);
    return at < 0 ? at : RET_ERRNO(unlinkat(at, name, flags));
}

int file_rename(struct drv_file *f, const char *from, const char *to)
{
    g_autofree char *name = NULL, *new_name = NULL;
    CLEANUP_FD int at = parent_of(f, from, &name);
    if (at < 0)
        return at;
    CLEANUP_FD int new_at = parent_of(f, to, &new_name);
    return new_at < 0 ? new_at : RET_ERRNO(renameat(at, name, new_at, new_name));
}
