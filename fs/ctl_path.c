/* Where the control socket of a mount is; shared by daemon and command so that both always agree. Pure but for XDG_RUNTIME_DIR. */
#include "fs/ctl_proto.h"

#include <glib.h>
#include <unistd.h>

static char *path_in(const char *dir, const char *mountpoint)
{
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, mountpoint, -1);
    return g_strdup_printf("%s/sluice/%.16s.sock", dir, sum);
}

char *ctl_socket_path(const char *mountpoint)
{
    return path_in(geteuid() == 0 ? "/run" : g_get_user_runtime_dir(), mountpoint);
}

char *ctl_socket_path_of(const char *mountpoint, uid_t uid)
{
    if (uid == geteuid())
        return ctl_socket_path(mountpoint);
    g_autofree char *dir = uid == 0 ? g_strdup("/run") : g_strdup_printf("/run/user/%u", (unsigned)uid);
    return path_in(dir, mountpoint);
}
