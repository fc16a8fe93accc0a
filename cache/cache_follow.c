/*
 * Follows the growth of files that the kernel writes, so that their parts are uploaded while the program goes on.
 *
 * One thread. A quiet file costs nothing: a one-shot inotify watch on its data file says when the next write came. From then on the file is looked at
 * for as long as it grows, soon at first, since memory takes a GiB within a tenth of a second, then less and less often; when it stopped growing
 * the watch is set again. What lies behind the size may still be rewritten: publishing compares all parts again. A size that runs ahead of what is
 * allocated (a seek, a truncate, a preallocation) says nothing of what was written: such a file is left to publishing.
 */
#include "base/clock.h"
#include "base/log.h"
#include "cache_file.h"
#include "cache_space.h"

#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAUSE_MIN_NS (4 * NS_PER_MS) /* between two looks at a file: doubles from this ... */
#define PAUSE_MAX_NS (32 * NS_PER_MS)
#define SLACK        (1u << 20)        /* allocation may lag behind the size by this much */
#define RATE_NS      (500 * NS_PER_MS) /* the rate is smoothed over this */

struct followed {
    int wd;          /* of the armed watch, -1 none */
    bool active;     /* written lately: look again at due_ns */
    uint64_t due_ns; /* pause_ns after the last look */
    uint64_t pause_ns;
};

static void arm_locked(struct cache_follow *fo, struct cfile *cf, struct followed *f)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", __atomic_load_n(&cf->fd, __ATOMIC_ACQUIRE));
    f->wd = inotify_add_watch(fo->inotify_fd, path, IN_MODIFY | IN_ONESHOT);
    f->active = f->wd < 0; /* no watch to be had: it is looked at all the time */
}

static void begin_looking(struct followed *f)
{
    f->active = true;
    f->due_ns = f->pause_ns = 0;
}

void follow_add(struct cfile *cf)
{
    struct cache_follow *fo = &cf->c->follow;
    struct followed *f = g_new0(struct followed, 1);
    uint64_t one = 1;
    mutex_lock(&fo->mu);
    arm_locked(fo, cf, f);
    begin_looking(f); /* a write may have come before the watch */
    g_hash_table_insert(fo->files, cache_file_ref(cf), f);
    mutex_unlock(&fo->mu);
    if (write(fo->wake_fd, &one, sizeof one) < 0)
        log_debug("cache", "the follower could not be woken");
}

void follow_remove(struct cfile *cf)
{
    struct cache_follow *fo = &cf->c->follow;
    mutex_lock(&fo->mu);
    struct followed *f = g_hash_table_lookup(fo->files, cf);
    bool known = f != NULL;
    if (known && f->wd >= 0)
        (void)inotify_rm_watch(fo->inotify_fd, f->wd); /* gone already when it fired */
    if (known)
        g_hash_table_remove(fo->files, cf);
    mutex_unlock(&fo->mu);
    if (known)
        cache_file_unref(cf);
}

/* Tells uploads of what was appended. Bytes grown. */
static uint64_t look(struct cfile *cf)
{
    struct stat st;
    if (fstat(__atomic_load_n(&cf->fd, __ATOMIC_ACQUIRE), &st) < 0)
        return 0;
    uint64_t size = (uint64_t)st.st_size, from = 0, grown = 0;
    mutex_lock(&cf->mu);
    bool tells = cf->pass == CACHE_PASS_WRITE && !cf->preallocated && (uint64_t)st.st_blocks * 512 + SLACK >= size;
    if (tells && size > cf->followed) {
        from = cf->followed;
        grown = size - from;
        cf->followed = size;
    }
    mutex_unlock(&cf->mu);
    if (grown) {
        upload_note_write(cf, from, grown);
        space_entry_account(cf->c, cf->entry, (uint64_t)st.st_blocks * 512, size);
    }
    return grown;
}

/* Marks what wrote as active. */
static void read_events(struct cache_follow *fo)
{
    char buf[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t n = read(fo->inotify_fd, buf, sizeof buf);
    mutex_lock(&fo->mu);
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *e = (const struct inotify_event *)(const void *)(buf + at);
        GHashTableIter it;
        struct followed *f;
        g_hash_table_iter_init(&it, fo->files);
        while (g_hash_table_iter_next(&it, NULL, (void **)&f)) {
            if (f->wd != e->wd && !(e->mask & IN_Q_OVERFLOW))
                continue;
            f->wd = -1;
            begin_looking(f);
        }
        at += (ssize_t)sizeof *e + e->len;
    }
    mutex_unlock(&fo->mu);
}

/* The files that are to be looked at by now, each with a reference. */
static GPtrArray *due_files(struct cache_follow *fo, uint64_t now)
{
    GPtrArray *list = g_ptr_array_new_with_free_func((GDestroyNotify)cache_file_unref);
    GHashTableIter it;
    struct cfile *cf;
    struct followed *f;
    mutex_lock(&fo->mu);
    g_hash_table_iter_init(&it, fo->files);
    while (g_hash_table_iter_next(&it, (void **)&cf, (void **)&f)) {
        if (f->active && f->due_ns <= now)
            g_ptr_array_add(list, cache_file_ref(cf));
    }
    mutex_unlock(&fo->mu);
    return list;
}

/* One that did not grow for the longest pause rests until its watch fires; true: the watch is new, look once more for what came before it. */
static bool after_look_locked(struct cache_follow *fo, struct cfile *cf, bool grew, uint64_t now) REQUIRES(fo->mu)
{
    struct followed *f = g_hash_table_lookup(fo->files, cf);
    if (!f)
        return false;
    bool rests = !grew && (f->wd >= 0 || f->pause_ns == PAUSE_MAX_NS), armed = rests && f->wd < 0;
    f->pause_ns = f->pause_ns ? MIN(2 * f->pause_ns, PAUSE_MAX_NS) : PAUSE_MIN_NS;
    f->due_ns = now + f->pause_ns;
    if (armed)
        arm_locked(fo, cf, f);
    else if (rests)
        f->active = false;
    return armed;
}

/* Bytes grown. */
static uint64_t look_and_plan(struct cache_follow *fo, struct cfile *cf, uint64_t now)
{
    uint64_t grown = look(cf);
    mutex_lock(&fo->mu);
    bool again = after_look_locked(fo, cf, grown > 0, now);
    mutex_unlock(&fo->mu);
    return again ? grown + look(cf) : grown;
}

/* When the next look is due; UINT64_MAX: nothing was written lately. */
static uint64_t next_due_locked(struct cache_follow *fo) REQUIRES(fo->mu)
{
    uint64_t due = UINT64_MAX;
    GHashTableIter it;
    struct followed *f;
    g_hash_table_iter_init(&it, fo->files);
    while (g_hash_table_iter_next(&it, NULL, (void **)&f)) {
        if (f->active)
            due = MIN(due, f->due_ns);
    }
    return due;
}

/* A look at all that is due. When the next one is. */
static uint64_t look_at_due(struct cache_follow *fo, uint64_t now, uint64_t elapsed_ns)
{
    g_autoptr(GPtrArray) list = due_files(fo, now);
    uint64_t grown = 0;
    for (guint i = 0; i < list->len; i++)
        grown += look_and_plan(fo, list->pdata[i], now);
    double kept = elapsed_ns < RATE_NS ? 1 - (double)elapsed_ns / (double)RATE_NS : 0;
    double new = (double)grown *(double)NS_PER_S / (double)MAX(elapsed_ns, RATE_NS);
    mutex_lock(&fo->mu);
    uint64_t due = next_due_locked(fo);
    fo->bytes_per_s = due == UINT64_MAX ? 0 : (uint64_t)((double)fo->bytes_per_s * kept + new);
    mutex_unlock(&fo->mu);
    return due;
}

/* -1: until there is something to do. */
static int ms_until(uint64_t due)
{
    uint64_t now = clock_mono_ns();
    return due == UINT64_MAX ? -1 : due <= now ? 0 : (int)((due - now) / NS_PER_MS + 1);
}

static void *follower_main(void *arg)
{
    struct cache *c = arg;
    struct cache_follow *fo = &c->follow;
    struct pollfd fds[2] = {{.fd = fo->inotify_fd, .events = POLLIN}, {.fd = fo->wake_fd, .events = POLLIN}};
    uint64_t last = clock_mono_ns(), due = UINT64_MAX, n;
    for (;;) {
        if (due != UINT64_MAX)
            g_usleep(PAUSE_MIN_NS / 1000); /* many files that begin: not a look for each */
        if (poll(fds, 2, ms_until(due)) < 0)
            continue; /* interrupted */
        if ((fds[1].revents & POLLIN) && read(fo->wake_fd, &n, sizeof n) < 0)
            log_debug("cache", "the follower's wake-up was lost");
        if (fds[0].revents & POLLIN)
            read_events(fo);
        mutex_lock(&fo->mu);
        bool stop = fo->stop;
        mutex_unlock(&fo->mu);
        if (stop)
            return NULL;
        uint64_t now = clock_mono_ns();
        due = look_at_due(fo, now, now - last);
        last = now;
    }
}

uint64_t follow_rate(struct cache *c)
{
    mutex_lock(&c->follow.mu);
    uint64_t rate = c->follow.bytes_per_s;
    mutex_unlock(&c->follow.mu);
    return rate;
}

int follow_start(struct cache *c)
{
    struct cache_follow *fo = &c->follow;
    mutex_init(&fo->mu, LOCK_CACHE_FOLLOW);
    fo->files = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    fo->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fo->inotify_fd < 0)
        log_info(
            "cache",
            "no inotify instance to be had (fs.inotify.max_user_instances): files being written are looked at all the time");
    fo->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = fo->wake_fd < 0 ? -errno : 0;
    if (r == 0)
        r = thread_start(&fo->thread, "follower", follower_main, c);
    fo->running = r == 0;
    return r;
}

void follow_stop(struct cache *c)
{
    struct cache_follow *fo = &c->follow;
    uint64_t one = 1;
    if (!fo->files)
        return;
    mutex_lock(&fo->mu);
    fo->stop = true;
    mutex_unlock(&fo->mu);
    if (fo->running && write(fo->wake_fd, &one, sizeof one) == sizeof one)
        (void)pthread_join(fo->thread, NULL);
    GHashTableIter it;
    struct cfile *cf;
    g_hash_table_iter_init(&it, fo->files);
    while (g_hash_table_iter_next(&it, (void **)&cf, NULL)) { /* still written by the kernel when we stop */
        g_hash_table_iter_remove(&it);
        cache_file_unref(cf);
    }
    if (fo->inotify_fd >= 0)
        (void)close(fo->inotify_fd);
    if (fo->wake_fd >= 0)
        (void)close(fo->wake_fd);
    g_hash_table_unref(fo->files);
    fo->files = NULL;
    mutex_fini(&fo->mu);
}
