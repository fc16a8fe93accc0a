/* See cache_folder.h. */
#include "cache_folder.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <fcntl.h>
#include <glib.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

const struct folder_words cache_folder_words = {"cache folder", "--cache-dir"};

static int fail_msg(int r, char **ret_msg, char *msg)
{
    *ret_msg = msg;
    return r;
}

static int check_folder(const char *dir, const struct folder_words *w, int fd, char **ret_msg)
{
    struct stat st;
    int r = RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return fail_msg(r, ret_msg, g_strdup_printf("cannot look at %s '%s': %s", w->what, dir, err_text(r)));
    if (st.st_uid != geteuid())
        return fail_msg(-EACCES, ret_msg,
                        g_strdup_printf("%s '%s' belongs to uid %u, not to us (%u): use another %s "
                                        "or change its owner",
                                        w->what, dir, (unsigned)st.st_uid, (unsigned)geteuid(), w->option));
    if (st.st_mode & 077)
        return fail_msg(-EACCES, ret_msg,
                        g_strdup_printf("%s '%s' can be entered by others (mode %03o): chmod 700 it first", w->what,
                                        dir, (unsigned)st.st_mode & 0777));
    struct statfs fs;
    if (fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
        log_warn("cache", "%s is in memory: a power loss takes what is not in the store yet path='%s'", w->what, dir);
    return 0;
}

int cache_folder_make(const char *dir, const struct folder_words *w, int *ret_fd, char **ret_msg)
{
    if (g_mkdir_with_parents(dir, 0700) < 0) {
        int r = -errno;
        return fail_msg(r, ret_msg, g_strdup_printf("cannot make %s '%s': %s", w->what, dir, err_text(r)));
    }
    CLEANUP_FD int fd = RET_ERRNO(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return fail_msg(fd, ret_msg, g_strdup_printf("cannot open %s '%s': %s", w->what, dir, err_text(fd)));
    int r = check_folder(dir, w, fd, ret_msg);
    if (r == 0)
        *ret_fd = steal_fd(&fd);
    return r;
}
