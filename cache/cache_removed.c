/*
 * Data files whose removal may not be on the disk yet.
 *
 * A power loss brings such a file back where the file system has no part in the database's syncs (another disk, btrfs), and with it its intent: to fsck it is then
 * unpublished bytes that the database lost. So the record of a file that may have one stays, DYING, until the folders are synced, and the start ends what it finds of them.
 * That is done for all that were removed within SETTLE_NS together, by a thread of its own: a removal waits for no disk.
 *
 * Lists and marks under space.mu; records under the claim of their vid, which may have been opened again since.
 */
#include "base/cleanup.h"
#include "base/crash.h"
#include "base/log.h"
#include "cache_file.h"
#include "cache_space.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SETTLE_NS (2 * NS_PER_S) /* a folder each, 256 at most: not for every few files */

struct removed {
    uint64_t vid;
    uint32_t tier;
};

struct cache_removed {
    struct cond kick;
    /* guarded by space.mu */
    GArray *files; /* struct removed */
    bool stop;
    /* owned by who starts and stops */
    pthread_t thread;
    bool running;
};

/* What is to be synced of one tier, and whether it was. */
struct folders {
    uint8_t marks[TIER_FOLDERS];
    bool synced;
};

void removed_mark(struct cache_tier *t, uint64_t vid)
{
    mutex_lock(&t->c->space.mu);
    t->unsynced[vid % TIER_FOLDERS] = 1;
    mutex_unlock(&t->c->space.mu);
}

void removed_add(struct cache_tier *t, uint64_t vid)
{
    struct cache_removed *rm = t->c->removed;
    struct removed file = {vid, t->number};
    mutex_lock(&t->c->space.mu);
    t->unsynced[vid % TIER_FOLDERS] = 1; /* also where it was gone: a process before this one may have removed it */
    g_array_append_val(rm->files, file);
    if (rm->files->len == 1)
        cond_signal(&rm->kick);
    mutex_unlock(&t->c->space.mu);
}

static bool sync_folders(struct cache_tier *t, const uint8_t *marks)
{
    int r = 0;
    if (tier_state(t) != TIER_OK)
        return false;
    for (unsigned i = 0; r == 0 && i < TIER_FOLDERS; i++) {
        char name[16];
        if (!marks[i])
            continue;
        (void)snprintf(name, sizeof name, "data/%02x", i);
        CLEANUP_FD int fd = openat(t->dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = fd < 0 ? -errno : RET_ERRNO(fsync(fd));
    }
    tier_note_io(t, r);
    return r == 0;
}

static int forget(struct cache *c, uint64_t vid)
{
    int r = 0;
    if (!index_is_dying(c, vid) || !table_claim_unused(c, vid))
        return 0; /* it was made anew */
    if (index_is_dying(c, vid)) {
        struct meta_batch *b = meta_batch_new(c->meta);
        meta_cached_del(b, vid);
        r = meta_commit(b, false);
        meta_batch_free(b);
    }
    table_release(c, vid);
    return r;
}

static bool is_synced(const struct cache *c, const struct folders *of, uint32_t number)
{
    for (guint i = 0; i < c->tiers->len; i++)
        if (((const struct cache_tier *)c->tiers->pdata[i])->number == number)
            return of[i].synced;
    return false;
}

/* Files on a tier that cannot be synced keep their records: the look through it when it is back, or the next start, removes them again. */
static void settle(struct cache *c, const GArray *files, struct folders *of)
{
    int r = 0;
    for (guint i = 0; i < c->tiers->len; i++)
        of[i].synced = sync_folders(c->tiers->pdata[i], of[i].marks);
    CRASH_POINT(removal_synced);
    for (guint n = 0; r == 0 && n < files->len; n++) {
        const struct removed *file = &g_array_index(files, struct removed, n);
        if (is_synced(c, of, file->tier))
            r = forget(c, file->vid);
    }
    if (r < 0)
        log_warn("cache", "records of removed cache files stay for the next start r=%s", err_name(r));
}

static GArray *take_locked(struct cache *c, struct folders *ret) REQUIRES(c->space.mu)
{
    GArray *files = c->removed->files;
    c->removed->files = g_array_new(FALSE, FALSE, sizeof(struct removed));
    for (guint i = 0; i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        memcpy(ret[i].marks, t->unsynced, sizeof t->unsynced);
        memset(t->unsynced, 0, sizeof t->unsynced);
    }
    return files;
}

static void *removed_main(void *arg)
{
    struct cache *c = arg;
    struct cache_removed *rm = c->removed;
    mutex_lock(&c->space.mu);
    for (;;) {
        while (!rm->stop && rm->files->len == 0)
            cond_wait(&rm->kick, &c->space.mu);
        uint64_t until = clock_mono_ns() + SETTLE_NS;
        while (!rm->stop && clock_mono_ns() < until)
            (void)cond_wait_until(&rm->kick, &c->space.mu, until);
        if (rm->files->len == 0)
            break;
        g_autofree struct folders *of = g_new0(struct folders, c->tiers->len);
        g_autoptr(GArray) files = take_locked(c, of);
        mutex_unlock(&c->space.mu);
        settle(c, files, of);
        mutex_lock(&c->space.mu);
    }
    mutex_unlock(&c->space.mu);
    return NULL;
}

void removed_init(struct cache *c)
{
    c->removed = g_new0(struct cache_removed, 1);
    cond_init(&c->removed->kick);
    c->removed->files = g_array_new(FALSE, FALSE, sizeof(struct removed));
}

void removed_fini(struct cache *c)
{
    g_array_unref(c->removed->files);
    cond_fini(&c->removed->kick);
    g_free(c->removed);
}

int removed_start(struct cache *c)
{
    int r = thread_start(&c->removed->thread, "removed", removed_main, c);
    c->removed->running = r == 0;
    return r;
}

void removed_stop(struct cache *c)
{
    mutex_lock(&c->space.mu);
    c->removed->stop = true;
    cond_signal(&c->removed->kick);
    mutex_unlock(&c->space.mu);
    if (c->removed->running)
        (void)pthread_join(c->removed->thread, NULL);
    c->removed->running = false;
}
