/* Cleanup of what GLib's g_autoptr does not cover: file descriptors and malloc'd memory. Never used for locks. */
#pragma once
#include <errno.h>
#include <glib.h>
#include <stdio.h>
#include <unistd.h>

static inline void cleanup_fd_(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        (void)close(*fd); /* a descriptor that goes out of scope on an error path has nobody to tell */
        errno = saved;
    }
}
#define CLEANUP_FD __attribute__((cleanup(cleanup_fd_)))

/* Takes the descriptor out of its cleanup variable: `return steal_fd(&fd);` */
static inline int steal_fd(int *fd)
{
    int r = *fd;
    *fd = -1;
    return r;
}
