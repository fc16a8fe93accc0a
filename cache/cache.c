/*
 * Life cycle of the cache: the folder, its lock, start and stop of the threads in order.
 *
 * DIR is ours alone (0700): DIR/lock is held by flock for the life of the daemon, DIR/data/00..ff hold the data files, DIR/meta belongs to meta: a folder,
 * or a symlink to one on another disk (fs/journal_dir.h).
 */
#include "cache.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "cache_fetch.h"
#include "cache_file.h"
#include "cache_folder.h"
#include "cache_internal.h"
#include "cache_space.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_TRIES   40u
#define LOCK_WAIT_US 50000u

static int fail_msg(int r, char **ret_msg, char *msg)
{
    *ret_msg = msg;
    return r;
}

int cache_make_folders(int dir_fd)
{
    int r = RET_ERRNO(mkdirat(dir_fd, "data", 0700));
    if (r < 0 && r != -EEXIST)
        return r;
    for (unsigned i = 0; i < 256; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "data/%02x", i);
        r = RET_ERRNO(mkdirat(dir_fd, name, 0700));
        if (r < 0 && r != -EEXIST)
            return r;
    }
    return 0;
}

/* A daemon that was killed lets go of its lock only when the kernel is done with it. */
static int lock_patiently(int fd)
{
    int r = RET_ERRNO(flock(fd, LOCK_EX | LOCK_NB));
    for (unsigned i = 0; r == -EWOULDBLOCK && i < LOCK_TRIES; i++) {
        g_usleep(LOCK_WAIT_US);
        r = RET_ERRNO(flock(fd, LOCK_EX | LOCK_NB));
    }
    return r;
}

int cache_dir_prepare(const char *dir, int *ret_lock_fd, char **ret_msg)
{
    CLEANUP_FD int dir_fd = -1;
    int r = cache_folder_make(dir, &cache_folder_words, &dir_fd, ret_msg);
    if (r < 0)
        return r;
    CLEANUP_FD int lock_fd = openat(dir_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock_fd < 0) {
        r = -errno;
        return fail_msg(r, ret_msg, g_strdup_printf("cannot open '%s/lock': %s", dir, err_text(r)));
    }
    r = lock_patiently(lock_fd);
    if (r == -EWOULDBLOCK)
        return fail_msg(-EBUSY, ret_msg, g_strdup_printf("cache folder '%s' is in use by another sluice", dir));
    if (r == 0)
        r = cache_make_folders(dir_fd);
    if (r < 0)
        return fail_msg(r, ret_msg, g_strdup_printf("cannot prepare cache folder '%s': %s", dir, err_text(r)));
    *ret_lock_fd = steal_fd(&lock_fd);
    return 0;
}

static void init_tables(struct cache *c)
{
    mutex_init(&c->upload_records, LOCK_UPLOAD_POOL);
    mutex_init(&c->table.mu, LOCK_CACHE_TABLE);
    cond_init(&c->table.changed);
    c->table.files = g_hash_table_new(g_int64_hash, g_int64_equal);
    c->table.busy = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    rest_init(c);
    mutex_init(&c->fetch.mu, LOCK_CACHE_FETCH);
    cond_init(&c->fetch.work);
    mutex_init(&c->health.mu, LOCK_CACHE_HEALTH);
    cond_init(&c->health.kick);
}

int cache_open(const struct cache_config *cfg, struct meta *m, struct objstore *st, struct cache **ret_cache,
               char **ret_msg)
{
    struct cache *c = g_new0(struct cache, 1);
    c->cfg = *cfg;
    c->tiers = tiers_new();
    c->meta = m;
    c->store = st;
    init_tables(c);
    space_init(c);
    removed_init(c);
    int r = tiers_open(c, ret_msg);
    if (r >= 0)
        r = recover_index(c);
    if (r >= 0)
        recover_memory(c);
    if (r >= 0)
        r = follow_start(c);
    if (r >= 0)
        r = fetch_pool_start(c);
    if (r >= 0)
        r = space_start(c);
    if (r >= 0)
        r = removed_start(c);
    if (r >= 0)
        r = upload_pool_start(c);
    if (r >= 0)
        r = health_start(c);
    if (r < 0) {
        if (!*ret_msg)
            *ret_msg = g_strdup_printf("cannot open the cache in %s: %s", cfg->dir, err_text(r));
        c->broken = true;
        cache_close(c);
        return r;
    }
    c->cfg.dir = NULL; /* the tiers know their folders */
    c->cfg.more_dirs = NULL;
    *ret_cache = c;
    return 0;
}

void cache_quiet(struct cache *c)
{
    if (!c)
        return;
    health_stop(c);
    space_stop(c);
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    cache_quiet(c);
    upload_pool_stop(c);
    fetch_pool_stop(c);
    follow_stop(c);
    upload_pool_free(c);
    removed_stop(c);
    rest_fini(c);
    int r = c->broken ? 0 : space_save_index(c);
    if (r < 0)
        log_warn("cache", "cannot write the index r=%s", err_name(r));
    g_ptr_array_unref(c->tiers);
    removed_fini(c);
    space_fini(c);
    g_hash_table_unref(c->table.files);
    g_hash_table_unref(c->table.busy);
    cond_fini(&c->health.kick);
    mutex_fini(&c->health.mu);
    cond_fini(&c->fetch.work);
    mutex_fini(&c->fetch.mu);
    cond_fini(&c->table.changed);
    mutex_fini(&c->table.mu);
    mutex_fini(&c->upload_records);
    g_free(c);
}
