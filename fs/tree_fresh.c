/*
 * How long what was listed of a directory counts, and what a look into one that is out of date waits for.
 *
 * A directory that was listed before is served as it is when the store does not answer within 2 s, and at once while the store lists too slowly for all that are in use (list_load.h); one of which
 * nothing is known is waited for. A store of which nothing came while it was waited for is silent: what is known serves at once, and a few directories that are looked into are
 * listed behind, until something comes of a listing of it.
 */
#include "base/patience.h"
#include "links.h"
#include "rules.h"
#include "sync.h"
#include "tree_list.h"

#define SLOW_LISTING  2u /* a listing that takes more than this share of the TTL */
#define STALE_WAIT_NS (2 * NS_PER_S)
#define WORN_NS       NS_PER_S

int tree_list_worn(struct inode *dir)
{
    mutex_lock(&dir->mu);
    bool worn = dir->list_worn_ns && clock_mono_ns() - dir->list_worn_ns < WORN_NS;
    mutex_unlock(&dir->mu);
    return worn ? -ETIMEDOUT : 0;
}

void tree_list_note_worn(struct inode *dir)
{
    if (!patience_worn())
        return;
    mutex_lock(&dir->mu);
    dir->list_worn_ns = clock_mono_ns();
    mutex_unlock(&dir->mu);
}

/* Of listings that are not believed any more: as old as one can be. A doubt from before the clock was set back is as of now, or no listing would be believed until the clock is there again. */
static int64_t listing_age(struct fs *fs, int64_t listed_ns, int64_t now)
{
    int64_t doubt_ns = atomic_load(&fs->doubt_ns);
    int64_t later = doubt_ns > now ? clock_wall_ns() : now; /* or the doubt is of just now */
    if (doubt_ns > later && atomic_compare_exchange_strong(&fs->doubt_ns, &doubt_ns, later))
        doubt_ns = later;
    return listed_ns < doubt_ns ? INT64_MAX : now - listed_ns;
}

/* How long what is listed of a directory counts: as a rule says, else its link, else the mount. (A rule that says what the mount says anyway gives way to the link.) */
static uint64_t listing_ttl(struct fs *fs, struct inode *dir)
{
    uint64_t by_rule = rules_of(dir)->metadata_ttl_ns;
    struct link_policy policy;
    links_policy_of(fs, dir, &policy);
    return by_rule != fs->rules->base.metadata_ttl_ns ? by_rule : policy.metadata_ttl_ns;
}

bool tree_is_offline(struct fs *fs, struct inode *dir)
{
    struct objstore_at at;
    mutex_lock(&fs->ns);
    g_autofree char *prefix = tree_dir_prefix(fs, dir->ino);
    mutex_unlock(&fs->ns);
    objstore_at(fs->store, prefix, &at);
    return at.offline_since_ns != 0;
}

static bool is_silent(struct fs *fs, uint64_t point)
{
    mutex_lock(&fs->list_mu);
    uint64_t since_ns = GPOINTER_TO_SIZE(g_hash_table_lookup(fs->silent, GSIZE_TO_POINTER(point)));
    bool silent = since_ns && !tree_list_heard_locked(fs, point, since_ns);
    if (since_ns && !silent)
        (void)g_hash_table_remove(fs->silent, GSIZE_TO_POINTER(point));
    mutex_unlock(&fs->list_mu);
    return silent;
}

/* The listing of ino was waited for since then, in vain. It may be the only one that does not end, of a huge directory say, or still wait for its turn. */
static void note_in_vain(struct fs *fs, uint64_t point, uint64_t ino, uint64_t since_ns)
{
    mutex_lock(&fs->list_mu);
    fs->list_load.n_in_vain++;
    if (tree_list_asks_locked(fs, ino) && !tree_list_heard_locked(fs, point, since_ns))
        g_hash_table_insert(fs->silent, GSIZE_TO_POINTER(point), GSIZE_TO_POINTER(clock_mono_ns()));
    mutex_unlock(&fs->list_mu);
}

/* What is known of a directory now. */
struct state {
    bool listed, local; /* local: made here, the store has nothing of it that is not known; or removed */
    bool asked;         /* before this look */
    int64_t age;
    uint64_t ttl, cost;
};

/* asks: for somebody who wants its names. */
static void look_at(struct fs *fs, struct inode *dir, bool asks, struct state *ret)
{
    int64_t now = clock_wall_ns(), age = listing_age(fs, sync_listed_ns(fs, dir), now);
    uint64_t mounted_ns = (uint64_t)MAX(now - fs->started_ns, 0);
    mutex_lock(&dir->mu);
    *ret = (struct state){
        .listed = dir->rec.flags & INODE_DIR_LISTED,
        .local = (dir->rec.flags & INODE_DIR_LOCAL) || dir->gone || dir->rec.nlink == 0,
        .age = age,
        .cost = dir->list.cost_ns,
        .asked = dir->list.asked,
    };
    dir->list.asked |= asks;
    mutex_unlock(&dir->mu);
    ret->ttl = fs->cfg->immutable ? mounted_ns : listing_ttl(fs, dir);
}

static bool is_fresh(const struct state *s)
{
    return s->local || (s->listed && s->age >= 0 && (uint64_t)s->age < s->ttl);
}

bool tree_is_fresh(struct fs *fs, struct inode *dir)
{
    struct state s;
    look_at(fs, dir, true, &s);
    return is_fresh(&s);
}

/* May it serve although it is out of date, where the store lists too slowly? Not what is doubted, which is as old as can be. */
static bool may_be_late(const struct state *s)
{
    return s->listed && !is_fresh(s) && s->age >= 0 && (uint64_t)s->age < LIST_LOAD_AGE_MAX_NS;
}

uint64_t tree_late_ttl(struct fs *fs, struct inode *dir)
{
    struct state s;
    look_at(fs, dir, false, &s);
    return may_be_late(&s) ? s.ttl : 0;
}

bool tree_is_due(struct fs *fs, struct inode *dir)
{
    struct state s;
    look_at(fs, dir, false, &s);
    return s.listed && !s.local && s.asked && (s.age < 0 || (uint64_t)s.age >= s.ttl / 2);
}

/* Whoever waited for each listing of a huge directory would do little else: what is known serves until the next one is there. */
static bool is_slow(const struct state *s)
{
    return s->ttl && s->cost > s->ttl / SLOW_LISTING && s->age >= 0 && (uint64_t)s->age < 2 * (s->ttl + s->cost);
}

enum need {
    NEED_NAMES, /* old ones serve */
    NEED_FRESH,
    NEED_LISTING, /* whatever the TTL */
};

/* ended: as tree_list_join(). */
static int refresh(struct fs *fs, struct inode *dir, enum need need, const uint64_t *ended, uint64_t wait_ns)
{
    struct state s;
    look_at(fs, dir, true, &s);
    if (s.local || (need != NEED_LISTING && is_fresh(&s)))
        return 0;
    bool serves = s.listed && need == NEED_NAMES;
    uint64_t point = serves ? links_point_of(fs, dir->ino) : 0, since_ns = clock_mono_ns();
    if (serves && s.ttl && is_silent(fs, point)) {
        tree_list_seek(fs, dir->ino, point);
        return 0;
    }
    if (serves && is_slow(&s))
        wait_ns = 0;
    else if (s.listed && need != NEED_FRESH && tree_is_offline(fs, dir))
        wait_ns = 0; /* the listing that finds the store again runs behind */
    else if (serves)
        wait_ns = MIN(wait_ns, STALE_WAIT_NS);
    int r = s.listed ? 0 : tree_list_worn(dir);
    if (r == 0)
        r = tree_list_join(fs, dir->ino, ended, wait_ns, NULL);
    if (serves && wait_ns == STALE_WAIT_NS && r == -EINPROGRESS)
        note_in_vain(fs, point, dir->ino, since_ns);
    return r < 0 && r != -EALREADY && serves ? 0 : r;
}

int tree_refresh_within(struct fs *fs, struct inode *dir, bool force, uint64_t wait_ns)
{
    uint64_t ended = tree_list_ended(fs);
    enum need need = force ? NEED_LISTING : NEED_NAMES;
    int r = refresh(fs, dir, need, force ? NULL : &ended, wait_ns);
    return r == -EALREADY ? refresh(fs, dir, need, NULL, wait_ns) : r;
}

/* What a program that waited is told. */
static int wait_result(struct inode *dir, int r)
{
    if (r < 0 && r != -EINTR)
        tree_list_note_worn(dir);
    if (r == -EINPROGRESS || r == -EAGAIN)
        return -ETIMEDOUT;
    if (r == -ENOENT || r == -ENODEV)
        return -EIO; /* never "not there" because the store did not answer */
    return r;
}

int tree_refresh(struct fs *fs, struct inode *dir, bool force)
{
    return wait_result(dir, tree_refresh_within(fs, dir, force, UINT64_MAX));
}

bool tree_is_removed(struct inode *dir)
{
    mutex_lock(&dir->mu);
    bool gone = dir->gone || dir->rec.nlink == 0;
    mutex_unlock(&dir->mu);
    return gone;
}

int tree_refresh_sure(struct fs *fs, struct inode *dir, uint64_t *offline_ns)
{
    uint64_t ended = tree_list_ended(fs), began_ns = clock_mono_ns();
    bool offline = tree_is_listed(dir) && tree_is_offline(fs, dir);
    uint64_t wait_ns = offline ? *offline_ns : UINT64_MAX;
    int r = refresh(fs, dir, NEED_FRESH, &ended, wait_ns);
    if (r == -EALREADY)
        r = refresh(fs, dir, NEED_FRESH, NULL, wait_ns);
    if (offline)
        *offline_ns -= MIN(*offline_ns, clock_mono_ns() - began_ns);
    return tree_is_removed(dir) ? -ENOENT : wait_result(dir, r);
}

uint64_t tree_names_late_ns(struct fs *fs)
{
    mutex_lock(&fs->list_mu);
    uint64_t late_ns = list_load_late_ns(&fs->list_load, clock_mono_ns());
    mutex_unlock(&fs->list_mu);
    return fs->cfg->immutable ? 0 : late_ns;
}

/* A TTL of 0 asks for every look to wait. */
static bool is_spared(struct fs *fs, const struct state *s)
{
    return s->ttl && may_be_late(s) && (uint64_t)s->age - s->ttl < tree_names_late_ns(fs);
}

int tree_serve(struct fs *fs, struct inode *dir)
{
    struct state s;
    uint64_t ended = tree_list_ended(fs);
    look_at(fs, dir, true, &s);
    if (is_fresh(&s))
        return 0;
    if (!is_spared(fs, &s))
        return tree_refresh(fs, dir, false);
    tree_list_behind(fs, dir->ino, ended);
    return 0;
}

bool tree_is_listed(struct inode *dir)
{
    mutex_lock(&dir->fs->ns); /* the last names of a listing are there with the flag */
    mutex_lock(&dir->mu);
    bool listed = dir->gone || dir->rec.nlink == 0 || (dir->rec.flags & (INODE_DIR_LISTED | INODE_DIR_LOCAL));
    mutex_unlock(&dir->mu);
    mutex_unlock(&dir->fs->ns);
    return listed;
}

int tree_list_follow(struct fs *fs, struct inode *dir, uint64_t *pages)
{
    int r = -EALREADY;
    while (r == -EALREADY) { /* a listing ended since the look: that may have been the one */
        uint64_t ended = tree_list_ended(fs);
        if (tree_is_listed(dir))
            return 0;
        r = tree_list_worn(dir);
        r = r < 0 ? r : tree_list_join(fs, dir->ino, &ended, UINT64_MAX, pages);
    }
    return wait_result(dir, r);
}

/* Of what was listed then, in seconds. */
static double ttl_left(struct fs *fs, struct inode *dir, int64_t listed_ns, bool local)
{
    int64_t age = listing_age(fs, listed_ns, clock_wall_ns());
    int64_t ttl = (int64_t)listing_ttl(fs, dir);
    int64_t left = local || age < 0 ? ttl : ttl - age;
    return (double)CLAMP(left, 0, ttl) / (double)NS_PER_S;
}

double tree_ttl(struct fs *fs, struct inode *dir)
{
    mutex_lock(&dir->mu);
    bool local = dir->rec.flags & INODE_DIR_LOCAL;
    mutex_unlock(&dir->mu);
    return ttl_left(fs, dir, sync_listed_ns(fs, dir), local);
}

void tree_trust_of(struct fs *fs, struct inode *dir, struct tree_trust *ret)
{
    int64_t as_of_ns = 0;
    *ret = (struct tree_trust){.ttl = tree_ttl(fs, dir), .shown_from = UINT64_MAX};
    if (ret->ttl > 0)
        return;
    ret->shown_from = tree_list_shows_from(fs, dir, &as_of_ns);
    ret->shown_ttl = ttl_left(fs, dir, as_of_ns, false);
}

static int collect_dir(void *ctx, const struct meta_dentry *d)
{
    if (S_ISDIR(d->type))
        g_array_append_val((GArray *)ctx, d->ino);
    return 0;
}

static int push_dirs_below(struct fs *fs, uint64_t ino, GArray *todo)
{
    int r = meta_dentry_each(fs->meta, ino, 0, collect_dir, todo);
    return MIN(r, 0);
}

/* One directory off todo; those in it go there. offline_ns: NULL: not sure. */
static int refresh_next(struct fs *fs, GArray *todo, bool force, uint64_t *offline_ns)
{
    uint64_t ino = g_array_index(todo, uint64_t, todo->len - 1);
    g_array_set_size(todo, todo->len - 1);
    INODE_REF in = NULL;
    int r = inode_get(fs, ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = offline_ns ? tree_refresh_sure(fs, in, offline_ns) : tree_refresh(fs, in, force);
    if (r < 0 && !offline_ns)
        return r;
    int below = push_dirs_below(fs, ino, todo);
    return below < 0 ? below : offline_ns && r == -ENOENT ? 0 : r;
}

int tree_refresh_all(struct fs *fs, struct inode *dir, bool force, tree_tick_fn *tick, void *ctx)
{
    g_autoptr(GArray) todo = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(todo, dir->ino);
    int r = 0;
    while (r == 0 && todo->len > 0) {
        r = refresh_next(fs, todo, force, NULL);
        if (r == 0 && tick)
            r = tick(ctx);
    }
    return r;
}

int tree_refresh_all_sure(struct fs *fs, struct inode *dir, uint64_t *offline_ns, tree_tick_fn *tick, void *ctx)
{
    g_autoptr(GArray) todo = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(todo, dir->ino);
    int first = 0, stop = 0;
    while (stop == 0 && todo->len > 0 && !atomic_load(&fs->stopping)) {
        int r = refresh_next(fs, todo, false, offline_ns);
        first = first ? first : r;
        stop = tick ? tick(ctx) : 0;
    }
    return stop < 0 ? stop : first < 0 ? first : todo->len > 0 ? -ECANCELED : 0;
}
