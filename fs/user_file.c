/* Reads small files of a user's and says why one is not to be believed. No state of its own. */
#include "user_file.h"

#include "base/cleanup.h"

#include <fcntl.h>
#include <string.h>

int user_file_refuse(const struct user_file *file, const char *why, char **ret_msg)
{
    *ret_msg = g_strdup_printf("%s '%s': %s", file->option, file->path, why);
    return -EINVAL;
}

static int unreadable(const struct user_file *file, int r, char **ret_msg)
{
    g_autofree char *why = g_strconcat(err_text(r), file->wanted ? "; give " : NULL, file->wanted, NULL);
    return user_file_refuse(file, why, ret_msg);
}

static int check_owner(const struct user_file *file, const struct stat *st, char **ret_msg)
{
    bool ours = st->st_uid == geteuid() || st->st_uid == 0;
    bool group_chosen = st->st_uid == 0 || st->st_gid == 0; /* as Kubernetes mounts secrets: root's, 0440 */
    if (!S_ISREG(st->st_mode))
        return user_file_refuse(file, "not a regular file", ret_msg);
    bool group_writes = (st->st_mode & S_IWGRP) && st->st_gid != 0;
    if (file->judges && (!ours || group_writes))
        return user_file_refuse(file, "others can change it: chmod go-w, and make it yours or root's", ret_msg);
    if (!file->secret && (st->st_mode & S_IWOTH))
        return user_file_refuse(file, "others can change it: chmod o-w", ret_msg);
    if (!file->secret)
        return 0;
    if (!ours || (st->st_mode & (S_IRWXO | S_IWGRP)) || ((st->st_mode & S_IRGRP) && !group_chosen))
        return user_file_refuse(file, "others can read or change it: chmod 600, and make it yours or root's", ret_msg);
    return 0;
}

static ssize_t read_all(int fd, char *text, size_t max)
{
    size_t len = 0;
    ssize_t n = 1;
    while (n > 0 && len < max) {
        n = RET_ERRNO(read(fd, text + len, max - len));
        len += n > 0 ? (size_t)n : 0;
    }
    return n < 0 ? n : (ssize_t)len;
}

int user_file_read(const struct user_file *file, char **ret_text, size_t *ret_len, char **ret_msg)
{
    struct stat st;
    CLEANUP_FD int fd = RET_ERRNO(open(file->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (fd < 0 || fstat(fd, &st) < 0)
        return unreadable(file, fd < 0 ? fd : -errno, ret_msg);
    int r = check_owner(file, &st, ret_msg);
    if (r < 0)
        return r;
    size_t room = file->bytes_max + 1;
    char *text = g_malloc0(room + 1);
    ssize_t n = read_all(fd, text, room);
    if (n < 0 || (size_t)n > file->bytes_max) {
        user_file_free(text, room);
        return n < 0 ? unreadable(file, (int)n, ret_msg) : user_file_refuse(file, "too long", ret_msg);
    }
    *ret_text = text;
    *ret_len = (size_t)n;
    return 0;
}

void user_file_free(char *text, size_t len)
{
    if (text)
        explicit_bzero(text, len);
    g_free(text);
}

void user_file_stamp(const char *path, struct stat *ret)
{
    struct stat st;
    *ret = stat(path, &st) == 0 ? st : (struct stat){0};
}

bool user_file_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec &&
           a->st_mode == b->st_mode && a->st_uid == b->st_uid && a->st_gid == b->st_gid;
}
