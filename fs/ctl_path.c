/* Where the control socket of a mount is; shared by daemon and command so that both always agree. Pure but for XDG_RUNTIME_DIR. */
#include "fs/ctl_proto.h"

#include <glib.h>
#include <unistd.h>

static char *path_of(const char *mountpoint, uid_t uid, const char *suffix)
{
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, mountpoint, -1);
    g_autofree char *dir = uid == 0           ? g_strdup("/run")
                           : uid == geteuid() ? g_strdup(g_get_user_runtime_dir())
                                              : g_strdup_printf("/run/user/%u", (unsigned)uid);
    return g_strdup_printf("%s/sluice/%.16s%s", dir, sum, suffix);
}

char *ctl_socket_path(const char *mountpoint)
{
    return path_of(mountpoint, geteuid(), ".sock");
}

char *ctl_socket_path_of(const char *mountpoint, uid_t uid)
{
    return path_of(mountpoint, uid, ".sock");
}

char *ctl_failed_path_of(const char *mountpoint, uid_t uid)
{
    return path_of(mountpoint, uid, ".failed");
}
