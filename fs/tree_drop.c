/*
 * A walk over what vanished that can be left and taken up again. Where it is, it knows by the ids of the names on the way. What was made or changed in between stays by its stamp or
 * its id, wherever it is met; what was moved here has the id that it had, and may not be met.
 *
 * The database shows what a batch changes only when that is committed. So a directory goes in the batch in which all its names were seen to go, or in one that finds it
 * empty.
 */
#include "tree_drop.h"

#include "ns_undo.h"
#include "pin.h"

#include <unistd.h>

#define ALL_LOOKED  2
#define MORE        1
#define DROP_NAMES  256  /* that go in one batch */
#define DROP_LOOKED 4096 /* that are looked at for them, while others wait for the namespace */
#define DEPTH_MAX   512u /* a key of 1024 bytes leads no deeper; what is below stays */
#define PAUSE_US    200

/* A directory on the way. */
struct level {
    uint64_t dir, after; /* names up to this id are done */
    bool whole;          /* all that in the batch that is being built */
    bool fresh;          /* some of its names go with that batch */
    bool kept;           /* a name stays */
};

void tree_drop_init(struct tree_drop *t, uint64_t stamp, uint64_t first_id)
{
    *t = (struct tree_drop){.stamp = stamp, .first_id = first_id};
    t->levels = g_array_new(FALSE, FALSE, sizeof(struct level));
}

void tree_drop_fini(struct tree_drop *t)
{
    g_array_unref(t->levels);
}

void tree_drop_pause(void)
{
    usleep(PAUSE_US);
}

static struct level *level_at(struct tree_drop *t, unsigned depth)
{
    return &g_array_index(t->levels, struct level, depth);
}

static void begin_batch(struct tree_drop *t)
{
    t->names_left = DROP_NAMES;
    t->looks_left = DROP_LOOKED;
    for (unsigned i = 0; i < t->levels->len; i++)
        level_at(t, i)->whole = level_at(t, i)->fresh = false;
}

/* Takes dir up where it was left, if it was. */
static void enter(struct tree_drop *t, uint64_t dir, unsigned depth)
{
    if (t->levels->len > depth && level_at(t, depth)->dir == dir)
        return;
    struct level l = {.dir = dir, .whole = true};
    g_array_set_size(t->levels, depth);
    g_array_append_val(t->levels, l);
}

/* It lacks names that it was listed with: it is to be listed again. */
static int note_partial(struct fs *fs, struct meta_batch *b, uint64_t dir) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, dir, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    mutex_lock(&in->mu);
    if (in->rec.listed_ns != 0 && !in->gone) {
        ns_undo_note_locked(in);
        in->rec.listed_ns = 0;
        meta_inode_put(b, &in->rec);
    }
    mutex_unlock(&in->mu);
    return 0;
}

static int drop_below(struct fs *fs, struct meta_batch *b, struct tree_drop *t, uint64_t dir, unsigned depth,
                      bool *ret_empty) REQUIRES(fs->ns);

/* One name that the store no longer has, and what is below it. */
static int drop_vanished(struct fs *fs, struct meta_batch *b, struct tree_drop *t, struct meta_dentry *d,
                         unsigned depth, bool *ret_dropped) REQUIRES(fs->ns)
{
    INODE_REF in = NULL;
    bool empty = true;
    if (t->names_left == 0 || t->looks_left == 0)
        return MORE;
    t->looks_left--;
    int r = inode_get(fs, d->ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (d->stamp > t->stamp || d->id >= t->first_id || tree_name_is_local(d, in, true))
        return 0;
    if (S_ISDIR(d->type) && depth >= DEPTH_MAX)
        return 0;
    if (S_ISDIR(d->type))
        r = drop_below(fs, b, t, d->ino, depth, &empty);
    if (r != 0 || !empty)
        return r;
    r = tree_lose_name(fs, b, d);
    if (r != 0)
        return MIN(r, 0);
    t->names_left -= t->names_left > 0;
    metric_inc(M_remote_changes);
    notify_entry(fs, d->parent, d->name);
    *ret_dropped = true;
    return 0;
}

static int collect_some(void *ctx, const struct meta_dentry *d)
{
    meta_dentry_collect(ctx, d);
    return ((GPtrArray *)ctx)->len >= DROP_NAMES;
}

/* A page of the names of the level's directory. ALL_LOOKED: there are no more. */
static int drop_page(struct fs *fs, struct meta_batch *b, struct tree_drop *t, unsigned depth) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = meta_dentry_array();
    int r = meta_dentry_each(fs->meta, level_at(t, depth)->dir, level_at(t, depth)->after, collect_some, names);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        bool dropped = false;
        int one = drop_vanished(fs, b, t, d, depth + 1, &dropped);
        if (one != 0)
            return one;
        struct level *l = level_at(t, depth);
        l->after = d->id;
        l->fresh |= dropped;
        l->kept |= !dropped;
    }
    return r ? 0 : ALL_LOOKED;
}

/* Of a directory all of whose names were looked at. MORE: not before the batch is committed. */
static int is_emptied(struct fs *fs, const struct level *l, bool *ret_empty)
{
    if (l->kept || l->whole) {
        *ret_empty = !l->kept;
        return 0;
    }
    int r = l->fresh ? 0 : meta_dir_has_entries(fs->meta, l->dir);
    *ret_empty = r == 0;
    return l->fresh ? MORE : MIN(r, 0);
}

/* Drops what a vanished directory held; *ret_empty tells whether nothing is left in it. */
static int drop_below(struct fs *fs, struct meta_batch *b, struct tree_drop *t, uint64_t dir, unsigned depth,
                      bool *ret_empty)
{
    enter(t, dir, depth);
    int r;
    do
        r = drop_page(fs, b, t, depth);
    while (r == 0);
    if (r == ALL_LOOKED)
        r = is_emptied(fs, level_at(t, depth), ret_empty);
    if (r == 0)
        g_array_set_size(t->levels, depth);
    if (r != MORE)
        return r;
    r = note_partial(fs, b, dir);
    return r < 0 ? r : MORE;
}

int tree_drop_gone(struct fs *fs, struct meta_batch *b, struct tree_drop *t, uint64_t dir, const char *name,
                   bool *ret_dropped)
{
    mutex_assert_held(&fs->ns);
    struct meta_dentry d = {0};
    begin_batch(t);
    int r = meta_dentry_get(fs->meta, dir, name, &d);
    if (r == 0)
        r = drop_vanished(fs, b, t, &d, 0, ret_dropped);
    meta_dentry_clear(&d);
    return r == -ENOENT ? 0 : r;
}

struct unseen {
    const struct tree_shown *shown;
    uint64_t first_id;
    GPtrArray *names;
    unsigned looked;
    uint64_t last;
};

static int collect_unseen(void *ctx, const struct meta_dentry *d)
{
    struct unseen *u = ctx;
    if (d->id >= u->first_id)
        return ALL_LOOKED;
    u->last = d->id;
    if (!nameset_has(u->shown->seen, d->name, strlen(d->name), S_ISDIR(d->type)))
        meta_dentry_collect(u->names, d);
    return ++u->looked >= DROP_LOOKED || u->names->len >= DROP_NAMES;
}

/* What was shown in place of a directory that went is the name now. */
static int drop_unseen(struct fs *fs, struct meta_batch *b, struct tree_drop *t, struct meta_dentry *d,
                       const struct tree_shown *shown) REQUIRES(fs->ns)
{
    bool dropped = false;
    const struct list_row *instead = g_hash_table_lookup(shown->waiting, d->name);
    int r = drop_vanished(fs, b, t, d, 0, &dropped);
    if (r != 0 || !dropped || !instead)
        return r;
    g_autofree char *prefix = tree_dir_prefix(fs, d->parent);
    return tree_insert_new(fs, b, &(struct tree_place){d->parent, prefix, pin_inherited(fs, d->parent), t->stamp},
                           instead);
}

int tree_drop_unseen(struct fs *fs, struct meta_batch *b, struct tree_drop *t, uint64_t dir,
                     const struct tree_shown *shown)
{
    mutex_assert_held(&fs->ns);
    g_autoptr(GPtrArray) names = meta_dentry_array();
    struct unseen u = {shown, t->first_id, names, 0, t->after};
    begin_batch(t);
    int more = meta_dentry_each(fs->meta, dir, t->after, collect_unseen, &u);
    int r = MIN(more, 0);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        r = drop_unseen(fs, b, t, d, shown);
        t->after = r == 0 ? d->id : t->after;
    }
    if (r == 0)
        t->after = u.last;
    return r == 0 ? more == MORE : r;
}
