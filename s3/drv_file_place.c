/*
 * How what the file driver has finished under .sluice-tmp gets its name.
 *
 * Directories that its key needs and that are missing are made aside, with it in them, and the topmost gets its name last. So whoever is killed leaves the object or
 * nothing: an empty directory would be a marker that nobody put. Under the lock of all commits; on the disk when it returns.
 *
 * They are as if they had been made at their place: with the group of a parent that passes its own on (setgid), and with the ACL that it gives what is made in it.
 */
#include "base/cleanup.h"
#include "base/crash.h"
#include "drv_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#define TRIES       8 /* others make directories without our lock */
#define ACL_DEFAULT "system.posix_acl_default"
#define ACL_ACCESS  FILE_ACL

char *file_tmp_path(struct drv_file *f, const char *what)
{
    uint64_t n = __atomic_add_fetch(&f->n_tmp, 1, __ATOMIC_RELAXED); /* a counter */
    return g_strdup_printf(FILE_TMP_DIR "/%s-%s-%" G_GUINT64_FORMAT, what, f->id, n);
}

/* Failures are of no account in both: who owns it decides, or the file system has no modes. */
void file_mode_set(struct drv_file *f, int fd, const struct posix_attr *own, mode_t all)
{
    struct stat st;
    mode_t take = own && (own->fields & POSIX_MODE) ? own->mode | S_IRWXU : all;
    if (f->dir_mode && fgetxattr(fd, ACL_ACCESS, NULL, 0) < 0 && fstat(fd, &st) == 0)
        (void)!fchmod(fd, (f->dir_mode & all & take) | (st.st_mode & S_ISGID));
}

void file_share(struct drv_file *f, int fd)
{
    struct stat root, st;
    char acl[4096];
    if (fstat(f->root_fd, &root) < 0 || fstat(fd, &st) < 0)
        return;
    mode_t mode = (root.st_mode | S_IRWXU) & (S_ISDIR(st.st_mode) ? 03777 : 0666);
    if (st.st_gid != root.st_gid && fchown(fd, (uid_t)-1, root.st_gid) < 0)
        mode &= ~(mode_t)S_IRWXG; /* another group than the one that is meant */
    ssize_t n = fgetxattr(f->root_fd, ACL_ACCESS, acl, sizeof(acl));
    if (n < 0 || fsetxattr(fd, ACL_ACCESS, acl, (size_t)n, 0) < 0)
        (void)!fchmod(fd, mode);
}

int file_dir_sync(struct drv_file *f, const char *key)
{
    g_autofree char *path = g_strdup(key);
    for (;;) {
        char *slash = strrchr(path, '/');
        if (slash)
            *slash = '\0';
        CLEANUP_FD int fd = file_at(f, slash ? path : ".", O_RDONLY | O_DIRECTORY, 0);
        int r = fd < 0 ? fd : RET_ERRNO(fsync(fd));
        if (fd >= 0 || !slash || file_read_error(fd) != -ENOENT)
            return r;
    }
}

/* The next '/' of the key behind which there is more, from p on; NULL: none. A marker's last one belongs to its name. */
static const char *next_dir_end(const char *p)
{
    const char *slash = strchr(p, '/');
    return slash && slash[1] ? slash : NULL;
}

/* Length of the topmost directory of key that is not there; 0: all are. */
static int missing_dir(struct drv_file *f, const char *key, size_t *ret_len)
{
    struct stat st;
    *ret_len = 0;
    for (const char *p = next_dir_end(key); p; p = next_dir_end(p + 1)) {
        g_autofree char *dir = g_strndup(key, (gsize)(p - key));
        int r = file_stat(f, dir, &st);
        if (r == -ENOENT) {
            *ret_len = (size_t)(p - key);
            return 0;
        }
        if (r < 0 || !S_ISDIR(st.st_mode))
            return r < 0 ? r : -ENOTDIR;
    }
    return 0;
}

/* Of a directory that was made elsewhere: true if that changed it. What cannot be given is no reason to refuse the object. */
static bool take_group(int fd, const struct stat *at, const struct stat *parent)
{
    bool pass = parent->st_mode & S_ISGID;
    gid_t gid = pass ? parent->st_gid : getegid();
    mode_t mode = (at->st_mode & 07777 & ~(mode_t)S_ISGID) | (pass ? S_ISGID : 0);
    if (mode == (at->st_mode & 07777) && (!pass || gid == at->st_gid))
        return false;
    (void)!fchown(fd, (uid_t)-1, gid); /* as said */
    (void)!fchmod(fd, mode);           /* as said */
    return true;
}

static bool take_acl(int fd, int parent)
{
    char acl[4096];
    ssize_t n = fgetxattr(parent, ACL_DEFAULT, acl, sizeof acl);
    if (n < 0 && fgetxattr(fd, ACL_DEFAULT, acl, sizeof acl) < 0)
        return false;
    if (n < 0) /* it has that of where it was made */
        return fremovexattr(fd, ACL_DEFAULT) == 0 && fremovexattr(fd, ACL_ACCESS) == 0;
    (void)fsetxattr(fd, ACL_DEFAULT, acl, (size_t)n, 0); /* as said */
    (void)fsetxattr(fd, ACL_ACCESS, acl, (size_t)n, 0);  /* as said */
    return true;
}

static int take_after_parent(struct drv_file *f, const char *made, const char *place)
{
    struct stat at, above;
    g_autofree char *path = g_strndup(place, strlen(place) - g_str_has_suffix(place, "/"));
    g_autofree char *parent = g_path_get_dirname(path);
    CLEANUP_FD int from = file_at(f, parent, O_RDONLY | O_DIRECTORY, 0);
    if (from < 0)
        return from == -EACCES ? 0 : from; /* one that may be entered, not read */
    CLEANUP_FD int fd = file_at(f, made, O_RDONLY | O_DIRECTORY, 0);
    int r = fd < 0 ? fd : RET_ERRNO(fstat(from, &above));
    if (r >= 0)
        r = RET_ERRNO(fstat(fd, &at));
    if (r < 0)
        return r;
    bool changed = take_group(fd, &at, &above);
    changed |= take_acl(fd, from);
    return changed ? RET_ERRNO(fsync(fd)) : 0;
}

/* A symbolic link, a fifo, a socket or a device: somebody else's. A rename would put what gets the name in its place. */
static int refuse_special(struct drv_file *f, const char *path)
{
    struct stat st;
    int r = file_stat(f, path, &st);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    return S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) ? 0 : -ENOTSUP;
}

/* tmp gets the name `to`, of which all directories are there. */
static int put_in(struct drv_file *f, const char *tmp, const char *to)
{
    int r = refuse_special(f, to);
    if (r == 0 && g_str_has_suffix(to, "/"))
        r = take_after_parent(f, tmp, to);
    return r < 0 ? r : file_rename(f, tmp, to);
}

static int open_up(struct drv_file *f, const char *dir)
{
    CLEANUP_FD int fd = file_at(f, dir, O_RDONLY | O_DIRECTORY, 0);
    if (fd >= 0)
        file_mode_set(f, fd, NULL, 0777);
    return fd < 0 ? fd : 0;
}

/* Directory tree, which is to become top, and below it those that inner, a path in it, needs; there goes tmp. */
static int build_tree(struct drv_file *f, const char *tmp, const char *tree, const char *inner, const char *top)
{
    int r = file_mkdir(f, tree);
    if (r == 0)
        r = take_after_parent(f, tree, top);
    if (r == 0)
        r = open_up(f, tree);
    for (const char *p = next_dir_end(inner + strlen(tree) + 1); r == 0 && p; p = next_dir_end(p + 1)) {
        g_autofree char *dir = g_strndup(inner, (gsize)(p - inner));
        r = file_mkdir(f, dir);
        if (r == 0)
            r = open_up(f, dir);
    }
    if (r == 0)
        r = put_in(f, tmp, inner);
    g_autofree char *at = g_strndup(inner, strlen(inner) - g_str_has_suffix(inner, "/"));
    while (r == 0 && strlen(at) > strlen(tree)) {
        r = file_dir_sync(f, at);
        *strrchr(at, '/') = '\0';
    }
    return r;
}

/* tmp is where it was, what else was built is gone: leftovers are only waste. */
static void take_apart(struct drv_file *f, const char *tmp, const char *tree, const char *inner)
{
    (void)file_rename(f, inner, tmp);
    g_autofree char *at = g_strndup(inner, strlen(inner) - g_str_has_suffix(inner, "/"));
    while (strlen(at) > strlen(tree)) {
        *strrchr(at, '/') = '\0';
        (void)file_remove(f, at, AT_REMOVEDIR);
    }
}

/* top_len: of the directory of key that is the topmost to be made. */
static int place_in_tree(struct drv_file *f, const char *tmp, const char *key, size_t top_len)
{
    g_autofree char *tree = file_tmp_path(f, "tree"), *top = g_strndup(key, top_len);
    g_autofree char *inner = g_strconcat(tree, key + top_len, NULL);
    int r = build_tree(f, tmp, tree, inner, top);
    CRASH_POINT(store_built);
    if (r == 0)
        r = file_rename(f, tree, top);
    if (r < 0)
        take_apart(f, tmp, tree, inner);
    return r == 0 ? file_dir_sync(f, top) : r; /* before anybody else finds it there and relies on it */
}

int file_place(struct drv_file *f, const char *tmp, const char *key)
{
    int r = -EEXIST;
    for (unsigned i = 0; (r == -EEXIST || r == -ENOTEMPTY) && i < TRIES; i++) {
        size_t len = 0;
        r = missing_dir(f, key, &len);
        if (r == 0 && len)
            r = place_in_tree(f, tmp, key, len);
        else if (r == 0)
            return put_in(f, tmp, key);
    }
    return r;
}
