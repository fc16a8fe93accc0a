/* Kernel invalidation, through the notifier. Always from the one notify thread: that process may be held up as long as a handler of ours is at work. */
#include "fs.h"
#include "notifier.h"

struct note {
    struct fs *fs;
    uint64_t ino;
    char *name; /* owned; NULL: the inode itself */
};

static void notify_run(void *arg)
{
    struct note *n = arg;
    mutex_lock(&n->fs->ns); /* who says so under it has committed then: what the kernel asks is answered by that */
    mutex_unlock(&n->fs->ns);
    if (n->fs->se && !atomic_load(&n->fs->stopping)) {
        int r = notifier_send(n->fs->notify_fd, n->ino, n->name);
        if (r < 0)
            log_debug("notify", "the kernel is not told ino=%" G_GUINT64_FORMAT " r=%s", n->ino, err_name(r));
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
