/* See unmount.h. */
#include "unmount.h"

#include "base/log.h"

#include <glib.h>
#include <string.h>
#include <sys/mount.h>

/* Without the right to unmount: asks libfuse's helper, which made the mount. -EBUSY, or -EPERM when it could not or would not. */
static int unmount_by_helper(char *mountpoint, bool lazy)
{
    char *argv[] = {(char[]){"fusermount3"}, lazy ? (char[]){"-uz"} : (char[]){"-u"}, (char[]){"--"}, mountpoint, NULL};
    g_autofree char *text = NULL;
    g_autoptr(GError) err = NULL;
    int status = 1;
    bool ran = g_spawn_sync("/", argv, NULL, G_SPAWN_SEARCH_PATH | G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL, &text,
                            &status, &err);
    if (ran && status == 0)
        return 0;
    log_warn("mount", "fusermount3 did not unmount: %s", ran ? g_strchomp(text) : err->message);
    return ran && strstr(text, err_text(EBUSY)) ? -EBUSY : -EPERM; /* it speaks no language but C's */
}

int fs_unmount(char *mountpoint, bool lazy)
{
    int r = RET_ERRNO(umount2(mountpoint, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)));
    if (r == -EPERM)
        r = unmount_by_helper(mountpoint, lazy);
    return r == -EBUSY || r == -EPERM ? r : 0;
}
