/*
 * When syncs begin by themselves: what --sync says of the mount, and of each link.
 *
 * One thread begins all of them, so that whoever mounts or makes a link does not wait for a look-up. It is there from the first one on.
 */
#include "links.h"
#include "sync_internal.h"
#include "tree.h"

/* The sync of a directory that is to begin. */
struct due {
    char *path;        /* owned; "" of the mount */
    uint64_t every_ns; /* 0: once */
    uint64_t next_ns;  /* monotonic */
};

static void due_free(void *arg)
{
    struct due *d = arg;
    g_free(d->path);
    g_free(d);
}

/* any: a sync that runs will do. */
static void begin(struct fs *fs, const char *path, bool any)
{
    struct sync_job *job = NULL;
    int r = sync_start(fs, &(struct sync_req){.path = path, .background = true, .any = any}, &job);
    if (r < 0)
        log_warn("sync", "cannot begin path='%s' r=%s", path, err_name(r));
    sync_job_unref(job);
}

static struct due *next_locked(struct sync *s)
{
    struct due *next = NULL;
    for (guint i = 0; i < s->due->len; i++) {
        struct due *d = s->due->pdata[i];
        next = next && next->next_ns <= d->next_ns ? next : d;
    }
    return next;
}

static void *clock_main(void *arg)
{
    struct fs *fs = arg;
    struct sync *s = fs->sync;
    mutex_lock(&s->mu);
    while (!s->closing) {
        struct due *d = next_locked(s);
        if (!d) {
            cond_wait(&s->idle, &s->mu);
            continue;
        }
        if (d->next_ns > clock_mono_ns()) {
            (void)cond_wait_until(&s->idle, &s->mu, d->next_ns); /* it may be gone then, or another one come first */
            continue;
        }
        g_autofree char *path = g_strdup(d->path);
        bool any = d->every_ns > 0; /* else it was asked for, now */
        d->next_ns = clock_mono_ns() + d->every_ns;
        if (d->every_ns == 0)
            g_ptr_array_remove(s->due, d);
        mutex_unlock(&s->mu);
        begin(fs, path, any);
        mutex_lock(&s->mu);
    }
    mutex_unlock(&s->mu);
    return NULL;
}

static void run_clock_locked(struct sync *s)
{
    if (s->clock_runs || s->closing)
        return;
    int r = thread_start(&s->clock, "sync-clock", clock_main, s->fs);
    s->clock_runs = r == 0;
    if (r < 0)
        log_err("sync", "no thread: nothing is synced by itself r=%s", err_name(r));
}

/* d, owned, takes the place of what was to begin at that path; NULL: nothing is to. */
static void put(struct sync *s, const char *path, struct due *d)
{
    mutex_lock(&s->mu);
    for (guint i = 0; i < s->due->len; i++)
        if (g_str_equal(((const struct due *)s->due->pdata[i])->path, path))
            g_ptr_array_remove_index_fast(s->due, i--);
    if (d) {
        g_ptr_array_add(s->due, d);
        run_clock_locked(s);
    }
    cond_broadcast(&s->idle);
    mutex_unlock(&s->mu);
}

void sync_clock_set(struct sync *s, const char *path, uint64_t ino, uint64_t every_ns)
{
    int64_t due_ns = every_ns ? sync_done_ns(s->fs, ino) + (int64_t)every_ns - clock_wall_ns() : 0;
    struct due *d = g_new0(struct due, 1);
    d->path = g_strdup(path);
    d->every_ns = every_ns;
    d->next_ns = clock_mono_ns() + (uint64_t)CLAMP(due_ns, 0, (int64_t)every_ns);
    put(s, path, d);
}

/* A worker that takes over does not list again what the one before it has listed, or goes on with. */
static void on_link(struct fs *fs, const char *dir, enum link_sync sync, uint64_t every_ns, enum links_sync_when when)
{
    struct sync *s = fs->sync;
    uint64_t ino = 0;
    if (when == LINKS_SYNC_GOES) {
        put(s, dir, NULL);
        sync_cancel(fs, dir);
    } else if (sync == LINK_SYNC_LAZY) {
        put(s, dir, NULL);
    } else if (sync == LINK_SYNC_FULL) {
        if (when != LINKS_SYNC_AT_START || !session_is_takeover(fs->session))
            sync_clock_set(s, dir, 0, 0);
    } else if (links_tree_find(fs, dir, &ino) == 0) {
        sync_clock_set(s, dir, ino, every_ns);
    } else {
        log_warn("sync", "the directory of a link is not there: it is not synced dir='%s'", dir);
    }
}

void sync_clock_begin(struct sync *s)
{
    struct fs *fs = s->fs;
    bool full = false;
    uint64_t every_ns = 0;
    if (config_sync(fs->cfg, &full, &every_ns) < 0)
        return; /* was checked at mount */
    if (every_ns)
        sync_clock_set(s, "", META_ROOT_INO, every_ns);
    else if (full && !session_is_takeover(fs->session))
        begin(fs, "", true);
    links_on_sync(fs, on_link);
}

void sync_clock_init(struct sync *s)
{
    s->due = g_ptr_array_new_with_free_func(due_free);
}

void sync_clock_join(struct sync *s)
{
    mutex_lock(&s->mu);
    bool runs = s->clock_runs;
    s->clock_runs = false;
    mutex_unlock(&s->mu);
    if (runs)
        pthread_join(s->clock, NULL);
}

void sync_clock_fini(struct sync *s)
{
    g_ptr_array_unref(s->due);
}
