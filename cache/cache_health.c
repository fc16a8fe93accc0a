/*
 * Whether the disks can be used.
 *
 * A prober thread of each disk writes, syncs and reads back a small file every second, which takes as long as the disk takes; nobody waits for it. The
 * watcher, which never touches a disk that is in question, looks at when the probes began and at what operations on data files came to, and draws the
 * conclusions: a disk with an I/O error is bypassed, one that does not answer only if there is another to take its place (a slow disk is better than none). One
 * bad file is no reason to do without the last disk: that one is bypassed when a probe fails as well. Then
 * new files go elsewhere, clean ones are taken for absent and fetched again, open ones leave it as soon as nobody has them through the kernel, unpublished ones
 * are named. Probes go on: after an unbroken time of good ones the disk is used again, but what it holds is not trusted: it may have lost what was not written yet (cache_doubt.c).
 * Whether it did is what its prober asks the file system before.
 * A disk that is the only one is not probed while no operation fails.
 *
 * The database is on the first disk. While that one hangs, so does whoever commits, the watcher included once it has said that the disk is bypassed. What
 * other disks and memory hold can be read, and no more.
 */
#include "base/clock.h"
#include "base/log.h"
#include "cache_doubt.h"
#include "cache_file.h"
#include "cache_place.h"
#include "cache_space.h"
#include "cache_tier.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define PROBE_FILE  "probe"
#define PROBE_BYTES 4096u
#define FAULT_FILE  "fault"
#define SLOW_NS     (5 * NS_PER_S)
#define PROBATION   (60 * NS_PER_S)
#define PROBE_NS    NS_PER_S
#define GOOD_PROBES 5u /* at least, before a disk is used again */
#define HANG_US     10000u

static uint64_t or_default(uint64_t value, uint64_t def)
{
    return value ? value : def;
}

static bool stopping(struct cache *c)
{
    mutex_lock(&c->health.mu);
    bool stop = c->health.stop;
    mutex_unlock(&c->health.mu);
    return stop;
}

/* ---- faults for tests ---- */

bool tier_fault_is(const struct cache_tier *t, const char *what)
{
    if (!t->c->cfg.disk_faults || t->kind != TIER_DISK)
        return false;
    g_autofree char *path = g_build_filename(t->dir, FAULT_FILE, NULL);
    g_autofree char *text = NULL;
    return g_file_get_contents(path, &text, NULL, NULL) && g_str_has_prefix(text, what);
}

int tier_fault(struct cache_tier *t)
{
    while (tier_fault_is(t, "hang") && !stopping(t->c))
        g_usleep(HANG_US);
    return tier_fault_is(t, "eio") ? -EIO : 0;
}

/* ---- what operations came to ---- */

void tier_note_io(struct cache_tier *t, ssize_t r)
{
    struct cache_health *h = &t->c->health;
    if ((r != -EIO && r != -EROFS && r != -ENXIO) || t->kind != TIER_DISK)
        return;
    __atomic_store_n(&t->bad, (int)r, __ATOMIC_RELEASE);
    mutex_lock(&h->mu);
    h->news = true;
    cond_broadcast(&h->kick);
    mutex_unlock(&h->mu);
}

/* ---- probes ---- */

static bool probe_needed(struct cache_tier *t)
{
    unsigned n = 0;
    for (guint i = 0; i < t->c->tiers->len; i++)
        n += ((struct cache_tier *)t->c->tiers->pdata[i])->kind == TIER_DISK;
    return n > 1 || tier_state(t) != TIER_OK || __atomic_load_n(&t->doubted, __ATOMIC_ACQUIRE);
}

static int write_and_read(struct cache_tier *t)
{
    uint8_t out[PROBE_BYTES], in[PROBE_BYTES];
    uint64_t now = clock_mono_ns();
    int r = tier_fault(t);
    if (r < 0)
        return r;
    if (t->probe_fd < 0) {
        r = RET_ERRNO(openat(t->dir_fd, PROBE_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (r < 0)
            return r;
        t->probe_fd = r;
    }
    memset(out, 0, sizeof out);
    memcpy(out, &now, sizeof now);
    ssize_t n = RET_ERRNO(pwrite(t->probe_fd, out, sizeof out, 0));
    if (n >= 0 && n < (ssize_t)sizeof out)
        return -ENOSPC;
    if (n >= 0)
        n = RET_ERRNO(fdatasync(t->probe_fd)); /* the block is there after the first time: no journal to wait for */
    if (n < 0)
        return (int)n;
    (void)posix_fadvise(t->probe_fd, 0, 0, POSIX_FADV_DONTNEED); /* from the disk if it can be had */
    n = RET_ERRNO(pread(t->probe_fd, in, sizeof in, 0));
    return n < 0 ? (int)n : n != (ssize_t)sizeof in || memcmp(in, out, sizeof in) != 0 ? -EIO : 0;
}

/* 0, or why the disk cannot be used. A full one can; some file systems say that it is only when they write back. */
static int probe(struct cache_tier *t)
{
    int r = write_and_read(t);
    return r == -ENOSPC || r == -EDQUOT ? 0 : r;
}

static void note_probe(struct cache_tier *t, int r)
{
    __atomic_store_n(&t->probe_since_ns, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&t->probe_bad, r, __ATOMIC_RELEASE);
    __atomic_store_n(&t->doubted, false, __ATOMIC_RELEASE);
    if (r < 0) {
        __atomic_store_n(&t->good_since_ns, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&t->n_good, 0, __ATOMIC_RELEASE);
        if (t->probe_fd >= 0)
            (void)close(t->probe_fd);
        t->probe_fd = -1;
        tier_note_io(t, -EIO);
        return;
    }
    if (__atomic_fetch_add(&t->n_good, 1, __ATOMIC_ACQ_REL) == 0)
        __atomic_store_n(&t->good_since_ns, clock_mono_ns(), __ATOMIC_RELEASE);
}

/* Of all that was written there since the start, by whomever: a write that failed is told of once by a sync of its file, and never to who opens that later. */
static void ask_for_losses(struct cache_tier *t)
{
    int r = tier_fault(t);
    r = r < 0 ? r : RET_ERRNO(syncfs(t->dir_fd));
    if (r < 0)
        __atomic_store_n(&t->lost, true, __ATOMIC_RELEASE);
    __atomic_store_n(&t->asked, true, __ATOMIC_RELEASE);
}

static bool is_to_be_asked(struct cache_tier *t)
{
    return tier_state(t) == TIER_BYPASSED && !__atomic_load_n(&t->asked, __ATOMIC_ACQUIRE) &&
           __atomic_load_n(&t->n_good, __ATOMIC_ACQUIRE) + 1 >= GOOD_PROBES;
}

/* The next start cannot ask for what we were told. */
static void settle_losses(struct cache_tier *t)
{
    mutex_lock(&t->c->space.mu);
    bool failed = t->failed;
    mutex_unlock(&t->c->space.mu);
    if (!failed || tier_state(t) != TIER_BYPASSED || tier_fault_is(t, "hang"))
        return;
    ask_for_losses(t);
    int r = __atomic_load_n(&t->lost, __ATOMIC_ACQUIRE) ? 0 : tier_note_whole(t);
    if (r < 0)
        log_warn("cache", "that a disk lost nothing could not be noted path='%s' r=%s", t->dir, err_name(r));
}

static void *prober_main(void *arg)
{
    struct cache_tier *t = arg;
    struct cache_health *h = &t->c->health;
    uint64_t period = or_default(t->c->cfg.probe_ns, PROBE_NS);
    while (!stopping(t->c)) {
        if (probe_needed(t)) {
            __atomic_store_n(&t->probe_since_ns, clock_mono_ns(), __ATOMIC_RELEASE);
            int r = probe(t);
            if (r == 0 && is_to_be_asked(t))
                ask_for_losses(t);
            note_probe(t, r);
        }
        uint64_t until = clock_mono_ns() + period;
        mutex_lock(&h->mu);
        while (!h->stop && cond_wait_until(&h->kick, &h->mu, until))
            ;
        mutex_unlock(&h->mu);
    }
    settle_losses(t);
    return NULL;
}

/* ---- conclusions ---- */

static bool has_other(struct cache_tier *t)
{
    for (guint i = 0; i < t->c->tiers->len; i++) {
        struct cache_tier *o = t->c->tiers->pdata[i];
        if (o != t && o->kind == TIER_DISK && tier_state(o) == TIER_OK)
            return true;
    }
    return false;
}

struct lost {
    uint64_t ino;
    const struct cache_tier *t;
};

/* Unpublished files of one tier, or (NULL) of all that are not used. */
static GArray *list_lost(struct cache *c, const struct cache_tier *only)
{
    GArray *list = g_array_new(FALSE, FALSE, sizeof(struct lost));
    GHashTableIter it;
    struct cache_entry *e;
    mutex_lock(&c->space.mu);
    g_hash_table_iter_init(&it, c->space.entries);
    while (g_hash_table_iter_next(&it, NULL, (void **)&e)) {
        bool away = only ? e->tier == only : tier_state(e->tier) != TIER_OK;
        if (!away || !(e->flags & CACHED_DIRTY))
            continue;
        struct lost l = {e->ino, e->tier};
        g_array_append_val(list, l);
    }
    mutex_unlock(&c->space.mu);
    return list;
}

static void abandon_open_files(struct cache_tier *t)
{
    g_autoptr(GPtrArray) files = cache_open_files(t);
    for (guint i = 0; i < files->len; i++)
        place_abandon(files->pdata[i]);
}

static void note_away(struct cache_tier *t, bool failed)
{
    mutex_lock(&t->c->space.mu);
    t->failed |= failed;
    (void)__atomic_add_fetch(&t->n_away, 1, __ATOMIC_ACQ_REL);
    mutex_unlock(&t->c->space.mu);
    int r = tier_note_away(t->c, t->number, failed);
    if (r < 0)
        log_warn("cache", "a bypassed disk could not be noted path='%s' r=%s", t->dir, err_name(r));
}

/* Noted before anything can go elsewhere, but for the first disk: the note is on it, and would be waited for. */
static void bypass(struct cache_tier *t, const char *why, bool failed)
{
    struct cache *c = t->c;
    __atomic_store_n(&t->asked, false, __ATOMIC_RELEASE);
    if (t->number != TIER_NUMBER_FIRST)
        note_away(t, failed);
    __atomic_store_n(&t->state, TIER_BYPASSED, __ATOMIC_RELEASE);
    mutex_lock(&c->space.mu);
    cond_broadcast(&c->space.changed); /* nobody waits for room on it */
    mutex_unlock(&c->space.mu);
    g_autoptr(GArray) list = list_lost(c, t);
    log_err("cache", "cache disk is bypassed path='%s' because='%s' unpublished_files=%u", t->dir, why, list->len);
    for (guint i = 0; c->cfg.lost && i < list->len; i++)
        c->cfg.lost(c->cfg.lost_ctx, g_array_index(list, struct lost, i).ino, t->dir);
    if (t->number == TIER_NUMBER_FIRST)
        note_away(t, failed);
}

static void use_again(struct cache_tier *t)
{
    bool lost = __atomic_exchange_n(&t->lost, false, __ATOMIC_ACQ_REL);
    log_notice("cache", "cache disk is used again path='%s' lost_writes=%u", t->dir, lost);
    doubt_tier(t, lost);
    int r = lost ? tier_note_away(t->c, t->number, true) : tier_note_whole(t); /* until the marks are saved */
    if (r < 0)
        log_warn("cache", "what a disk lost could not be noted path='%s' r=%s", t->dir, err_name(r));
    mutex_lock(&t->c->space.mu);
    t->sweep = true;
    __atomic_store_n(&t->state, TIER_OK, __ATOMIC_RELEASE);
    cond_signal(&t->kick);
    mutex_unlock(&t->c->space.mu);
    abandon_open_files(tier_by_number(t->c, TIER_NUMBER_NOWHERE));
}

static void look_at(struct cache_tier *t)
{
    const struct cache_config *cfg = &t->c->cfg;
    uint64_t now = clock_mono_ns();
    uint64_t since = __atomic_load_n(&t->probe_since_ns, __ATOMIC_ACQUIRE);
    uint64_t good = __atomic_load_n(&t->good_since_ns, __ATOMIC_ACQUIRE);
    int bad = __atomic_exchange_n(&t->bad, 0, __ATOMIC_ACQ_REL);
    bool slow = since && now > since + or_default(cfg->slow_ns, SLOW_NS);
    if (bad || slow) {
        __atomic_store_n(&t->n_good, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&t->asked, false, __ATOMIC_RELEASE);
        good = 0;
    }
    bool alone = !has_other(t);
    if (tier_state(t) == TIER_OK && bad && alone && !__atomic_load_n(&t->probe_bad, __ATOMIC_ACQUIRE))
        __atomic_store_n(&t->doubted, true, __ATOMIC_RELEASE);
    else if (tier_state(t) == TIER_OK && bad)
        bypass(t, err_text(bad), true);
    else if (tier_state(t) == TIER_OK && slow && !alone)
        bypass(t, "it does not answer", false);
    if (tier_state(t) != TIER_BYPASSED)
        return;
    abandon_open_files(t);
    if (good && now > good + or_default(cfg->probation_ns, PROBATION) &&
        __atomic_load_n(&t->n_good, __ATOMIC_ACQUIRE) >= GOOD_PROBES && __atomic_load_n(&t->asked, __ATOMIC_ACQUIRE))
        use_again(t);
}

static void *watch_main(void *arg)
{
    struct cache *c = arg;
    struct cache_health *h = &c->health;
    mutex_lock(&h->mu);
    while (!h->stop) {
        h->news = false;
        mutex_unlock(&h->mu);
        for (guint i = 0; i < c->tiers->len; i++)
            if (((struct cache_tier *)c->tiers->pdata[i])->prober_running)
                look_at(c->tiers->pdata[i]);
        uint64_t until = clock_mono_ns() + or_default(c->cfg.probe_ns, PROBE_NS);
        mutex_lock(&h->mu);
        while (!h->stop && !h->news && cond_wait_until(&h->kick, &h->mu, until))
            ;
    }
    mutex_unlock(&h->mu);
    return NULL;
}

int health_start(struct cache *c)
{
    int r = 0;
    for (guint i = 0; r == 0 && i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        if (t->kind != TIER_DISK || t->dir_fd < 0)
            continue;
        r = thread_start(&t->prober, "probe", prober_main, t);
        t->prober_running = r == 0;
    }
    if (r == 0) {
        r = thread_start(&c->health.watch, "disks", watch_main, c);
        c->health.running = r == 0;
    }
    return r;
}

void health_stop(struct cache *c)
{
    struct cache_health *h = &c->health;
    mutex_lock(&h->mu);
    h->stop = true;
    cond_broadcast(&h->kick);
    mutex_unlock(&h->mu);
    if (h->running)
        (void)pthread_join(h->watch, NULL);
    h->running = false;
    for (guint i = 0; i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        if (t->prober_running)
            (void)pthread_join(t->prober, NULL);
        t->prober_running = false;
    }
}

/* ---- what is shown ---- */

void cache_tiers_each(struct cache *c, void (*fn)(void *ctx, const struct cache_tier_info *info), void *ctx)
{
    static const char *const states[] = {"ok", "bypassed", "missing"};
    for (guint i = 0; i < c->tiers->len; i++) {
        const struct cache_tier *t = c->tiers->pdata[i];
        if (t->kind == TIER_NOWHERE)
            continue;
        mutex_lock(&c->space.mu);
        struct cache_tier_info info = {.path = t->dir,
                                       .state = states[tier_state(t)],
                                       .limit_bytes = t->limit_bytes,
                                       .used_bytes = t->used_bytes,
                                       .dirty_bytes = t->dirty_bytes,
                                       .in_memory = t->kind == TIER_MEMORY,
                                       .leases = __atomic_load_n(&t->leases, __ATOMIC_RELAXED) != LEASES_NONE};
        mutex_unlock(&c->space.mu);
        fn(ctx, &info);
    }
}

void cache_lost_each(struct cache *c, unsigned max, void (*fn)(void *ctx, uint64_t ino, const char *path), void *ctx)
{
    g_autoptr(GArray) list = list_lost(c, NULL);
    for (guint i = 0; i < list->len && i < max; i++) {
        const struct lost *l = &g_array_index(list, struct lost, i);
        fn(ctx, l->ino, l->t->dir);
    }
}
