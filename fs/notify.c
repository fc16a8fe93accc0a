/*
 * Kernel invalidation. Always from the one notify thread: the kernel may hold a directory's lock while it waits for a handler of ours,
 * so a handler that notified would wait for itself.
 */
#include "fs.h"

struct note {
    struct fs *fs;
    uint64_t ino;
    char *name; /* owned; NULL: the inode itself */
};

static void notify_run(void *arg)
{
    struct note *n = arg;
    if (n->fs->se && !atomic_load(&n->fs->stopping)) {
        int r = n->name ? fuse_lowlevel_notify_inval_entry(n->fs->se, n->ino, n->name, strlen(n->name))
                        : fuse_lowlevel_notify_inval_inode(n->fs->se, n->ino, 0, 0);
        if (r < 0 && r != -ENOENT)
            log_debug("notify", "kernel refused an invalidation ino=%" G_GUINT64_FORMAT " r=%s", n->ino, err_name(r));
    }
    g_free(n->name);
    g_free(n);
}

static void notify_push(struct fs *fs, uint64_t ino, const char *name)
{
    struct note *n = g_new0(struct note, 1);
    *n = (struct note){.fs = fs, .ino = ino, .name = g_strdup(name)};
    if (!fs->notify_q || !workq_push(fs->notify_q, false, notify_run, n)) {
        g_free(n->name);
        g_free(n);
    }
}

void notify_entry(struct fs *fs, uint64_t parent, const char *name)
{
    notify_push(fs, parent, name);
}

void notify_inode(struct fs *fs, uint64_t ino)
{
    notify_push(fs, ino, NULL);
}
