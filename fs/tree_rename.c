/*
 * Rename: at once here, by journalled copy, verify, delete in the store.
 *
 * A name takes its object along as `ukey`; what stands at the new path is remembered as the condition under which it may be overwritten. A directory's rename
 * rewrites the records of all names below in the same batch, so that after a crash either all of them are here or none.
 */
#include "base/crash.h"
#include "beat.h"
#include "content.h"
#include "links.h"
#include "local.h"
#include "ns_undo.h"
#include "pin.h"
#include "publish.h"
#include "replaced.h"
#include "replay.h"
#include "rules.h"
#include "tree.h"
#include "tree_sides.h"

#include <stdio.h>

struct move {
    struct fs *fs;
    struct meta_batch *b;
    struct meta_dentry src, dst; /* dst.id == 0: no such name */
    uint64_t p2;
    const char *n2;
    struct inode *in;       /* of src, borrowed */
    struct inode *over;     /* of dst, borrowed, may be NULL */
    GArray *dirty;          /* inos whose intents name the old path */
    bool detached;          /* content of src was brought here: it may go to where a rule keeps it */
    bool unseen;            /* others saw it, or what it replaced, and do not any more */
    bool pinned, unsettled; /* src took over how dst is pinned; replaced.h */
    uint64_t wave;    /* of what is moved along and need not wait for each other; exchange: before all that goes */
    GPtrArray *later; /* struct later, what is moved along and still to be sent */
};

/* Comes after all that is upstream, and in the order in which it was closed. */
struct later {
    struct meta_dentry d;
    char *old_key, *new_key;
    uint64_t turn;
};

static void later_free(void *arg)
{
    struct later *l = arg;
    meta_dentry_clear(&l->d);
    g_free(l->old_key);
    g_free(l->new_key);
    g_free(l);
}

static gint later_cmp(gconstpointer a, gconstpointer b)
{
    const struct later *x = *(struct later *const *)a, *y = *(struct later *const *)b;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* Is there content of its to be published now? Changed files are added to dirty. */
static bool content_closed(struct fs *fs, const struct meta_dentry *d, GArray *dirty)
{
    INODE_REF in = NULL;
    if (!S_ISREG(d->type))
        return S_ISLNK(d->type);
    if (inode_get(fs, d->ino, &in) < 0)
        return false;
    mutex_lock(&in->mu);
    uint32_t content = in->rec.content;
    mutex_unlock(&in->mu);
    if (content != CONTENT_CLEAN)
        g_array_append_val(dirty, d->ino);
    return content == CONTENT_CLOSING || content == CONTENT_SEALED ||
           (content == CONTENT_CLEAN && !(d->flags & DENTRY_UPSTREAM));
}

/* Has a writer it open, and are bytes of it in an object that is not at its own key, which only a journal record keeps there? */
static bool content_rests(struct fs *fs, const struct meta_dentry *d, const char *key)
{
    INODE_REF in = NULL;
    if (!S_ISREG(d->type) || inode_get(fs, d->ino, &in) < 0)
        return false;
    mutex_lock(&in->mu);
    const struct meta_inode *rec = &in->rec;
    bool rests = rec->content == CONTENT_OPEN && rec->base_key && !g_str_equal(rec->base_key, key);
    mutex_unlock(&in->mu);
    return rests;
}

/* A fifo or socket is a name here only, and leaves alone what is upstream. */
static bool goes_upstream(const struct meta_dentry *d)
{
    return S_ISREG(d->type) || S_ISDIR(d->type) || S_ISLNK(d->type);
}

/* The name has nothing in the store any more, once what is queued here is done. */
static void leave_key(struct move *m, struct meta_dentry *d, const char *old_key) NO_TSA /* under ns */
{
    struct etag etag;
    if (tree_may_leave_object(m->fs, d, old_key, &etag))
        publish_delete(m->fs, m->b, old_key, &etag, 0);
    if (d->ukey && (d->flags & DENTRY_UPSTREAM))
        publish_disown(m->fs, m->b, d->ukey, &d->uetag, d->id, 0);
    g_clear_pointer(&d->ukey, g_free);
    d->flags &= ~(uint32_t)(DENTRY_UPSTREAM | DENTRY_DEST_KNOWN);
    d->dest_etag = d->uetag = (struct etag){0};
    d->pub_vid = d->pub_gen = 0;
    d->stamp = meta_next_seq(m->fs->meta);
}

/* Keys that cannot be shown as names are not moved: their directory stays where it was as well, and what is made of it at the new place is not shown by them. */
static bool leaves_hidden(struct move *m, const struct meta_dentry *d, const char *old_key)
{
    INODE_REF in = NULL;
    if (!S_ISDIR(d->type) || inode_get(m->fs, d->ino, &in) < 0)
        return false;
    mutex_lock(&in->mu);
    bool hidden = in->rec.flags & INODE_DIR_HIDDEN;
    g_strfreev(g_steal_pointer(&in->list.hidden)); /* the next listing tells those of the new place */
    mutex_unlock(&in->mu);
    if (hidden)
        log_notice("rename", "keys that cannot be shown as names stay where they are dir='%s'", old_key);
    return hidden;
}

/* The name's object, dest and journal record after its path changed from old_key to new_key; the caller puts the record. */
static void relocate(struct move *m, struct meta_dentry *d, const char *old_key, const char *new_key, bool have_dest,
                     const struct etag *dest, bool in_wave) NO_TSA /* under ns */
{
    struct fs *fs = m->fs;
    struct etag left;
    if (local_is(fs, new_key)) /* of a file its bytes are here: see tree_check_sides() */
        leave_key(m, d, old_key);
    else if ((d->flags & DENTRY_UPSTREAM) && !d->ukey)
        d->ukey = g_strdup(old_key);
    else if (tree_may_leave_object(fs, d, old_key, &left))
        publish_delete(fs, m->b, old_key, &left, 0);
    d->flags &= ~(uint32_t)DENTRY_DEST_KNOWN;
    d->dest_etag = (struct etag){0};
    if (d->ukey && g_str_equal(d->ukey, new_key)) {
        g_clear_pointer(&d->ukey, g_free); /* back where its object still is */
    } else {
        d->flags |= DENTRY_DEST_KNOWN;
        if (have_dest)
            d->dest_etag = *dest;
    }
    d->stamp = meta_next_seq(fs->meta);
    bool had_op = d->op_seq != 0, waited_for = publish_turn(fs, d->op_seq) != 0;
    if (S_ISDIR(d->type))
        publish_drop_name(fs, m->b, d); /* it was made for the old key */
    unsigned n_dirty = m->dirty->len;
    bool closed = content_closed(fs, d, m->dirty) || waited_for;
    bool new_dir = S_ISDIR(d->type) && (had_op || (local_is(fs, old_key) && !local_is(fs, new_key)));
    new_dir = leaves_hidden(m, d, old_key) || new_dir;
    if (in_wave && d->ukey && S_ISREG(d->type) && m->dirty->len == n_dirty)
        publish_moved(fs, m->b, d, m->wave);
    else if (d->ukey || closed || (d->flags & DENTRY_META_DIRTY) || new_dir || content_rests(fs, d, new_key))
        publish_name(fs, m->b, d, S_ISDIR(d->type) ? PUBLISH_MARKER : PUBLISH_PLACE);
    else
        publish_drop_name(fs, m->b, d);
}

/* What may still stand at the key upstream is taken over by a name that will be published there. */
static bool inherit(struct move *m, const struct meta_dentry *d, const char *key,
                    struct etag *ret_etag) NO_TSA /* under ns */
{
    return goes_upstream(d) && !local_is(m->fs, key) && publish_inherit(m->fs, m->b, key, ret_etag);
}

/* Would all keys below a directory whose own has the given length fit the store? Asked before anything is changed. */
static int check_below(struct move *m, uint64_t dir, size_t prefix_len, size_t key_max, unsigned depth)
{
    if (depth > 512)
        return -ELOOP;
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_dentry_list(m->fs->meta, dir, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        size_t len = prefix_len + strlen(d->name) + S_ISDIR(d->type);
        if (len > key_max)
            r = -ENAMETOOLONG;
        else if (S_ISDIR(d->type))
            r = check_below(m, d->ino, len, key_max, depth + 1);
    }
    return r;
}

static int relocate_below(struct move *m, uint64_t dir, const char *old_prefix, const char *new_prefix);

/* One name below a directory, with its keys. */
static void relocate_name(struct move *m, struct meta_dentry *d, const char *old_key, const char *new_key,
                          bool in_wave) NO_TSA /* under ns */
{
    struct etag dest;
    uint64_t delete_seq = publish_delete_of(m->fs, new_key);
    bool have = inherit(m, d, new_key, &dest);
    relocate(m, d, old_key, new_key, have, &dest, in_wave);
    if (have && delete_seq)
        publish_succeed(m->fs, m->b, d, delete_seq);
    meta_dentry_put(m->b, d);
}

static int relocate_one(struct move *m, struct meta_dentry *d, const char *old_prefix, const char *new_prefix,
                        bool in_wave) NO_TSA /* under ns */
{
    beat_works(m->fs);
    if (d->flags & DENTRY_SHADOW) { /* its object stays where it is */
        notify_entry(m->fs, d->parent, d->name);
        return tree_drop_name(m->fs, m->b, d, true);
    }
    const char *slash = S_ISDIR(d->type) ? "/" : "";
    g_autofree char *old_key = g_strconcat(old_prefix, d->name, slash, NULL);
    g_autofree char *new_key = g_strconcat(new_prefix, d->name, slash, NULL);
    uint64_t turn = S_ISDIR(d->type) ? 0 : publish_turn(m->fs, d->op_seq);
    if (turn) {
        struct later *l = g_new0(struct later, 1);
        meta_dentry_copy(&l->d, d);
        l->old_key = g_steal_pointer(&old_key);
        l->new_key = g_steal_pointer(&new_key);
        l->turn = turn;
        g_ptr_array_add(m->later, l);
        return 0;
    }
    relocate_name(m, d, old_key, new_key, in_wave);
    return S_ISDIR(d->type) ? relocate_below(m, d->ino, old_key, new_key) : 0;
}

/* The file that was written last: what tells that the others are whole, if anything does. -1: there is none. */
static int newest_of(struct fs *fs, const GPtrArray *names)
{
    int newest = -1;
    int64_t newest_ns = 0;
    for (unsigned i = 0; i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        INODE_REF in = NULL;
        if (!S_ISREG(d->type) || (d->flags & DENTRY_SHADOW) || inode_get(fs, d->ino, &in) < 0)
            continue;
        mutex_lock(&in->mu);
        int64_t ns = in->rec.mtime_ns;
        mutex_unlock(&in->mu);
        if (newest < 0 || ns >= newest_ns) {
            newest = (int)i;
            newest_ns = ns;
        }
    }
    return newest;
}

/*
 * Everything below a directory whose path changed. What is upstream is copied in any order, but for the newest file of each directory, which comes after everything in that directory or
 * below. What is still to be sent comes after that, in the order in which it was closed.
 */
static int relocate_below(struct move *m, uint64_t dir, const char *old_prefix,
                          const char *new_prefix) NO_TSA /* under ns */
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_dentry_list(m->fs->meta, dir, &names);
    if (r < 0)
        return r;
    int newest = newest_of(m->fs, names);
    for (unsigned i = 0; r == 0 && i < names->len; i++)
        if ((int)i != newest)
            r = relocate_one(m, names->pdata[i], old_prefix, new_prefix, true);
    return r == 0 && newest >= 0 ? relocate_one(m, names->pdata[newest], old_prefix, new_prefix, false) : r;
}

/* All that is below a directory whose path changed. */
static int relocate_all(struct move *m, const char *old_prefix, const char *new_prefix) NO_TSA /* under ns */
{
    g_autoptr(GPtrArray) later = g_ptr_array_new_with_free_func(later_free);
    m->later = later;
    m->wave = meta_next_seq(m->fs->meta);
    int r = relocate_below(m, m->src.ino, old_prefix, new_prefix);
    g_ptr_array_sort(later, later_cmp);
    for (unsigned i = 0; r == 0 && i < later->len; i++) {
        struct later *l = later->pdata[i];
        beat_works(m->fs);
        relocate_name(m, &l->d, l->old_key, l->new_key, false);
    }
    m->later = NULL;
    return r;
}

static bool is_below(struct fs *fs, uint64_t dir, uint64_t maybe_above)
{
    for (unsigned depth = 0; dir != META_ROOT_INO && depth < 4096; depth++) {
        if (dir == maybe_above)
            return true;
        INODE_REF in = NULL;
        if (inode_get(fs, dir, &in) < 0)
            return false;
        dir = in->rec.parent;
    }
    return dir == maybe_above;
}

/* The kernel may still hold a directory that was removed elsewhere: a name put there would be out of reach. */
static int check_live_dir(struct fs *fs, uint64_t dir)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, dir, &in);
    if (r < 0)
        return r;
    mutex_lock(&in->mu);
    r = in->gone || in->rec.nlink == 0 ? -ENOENT : 0;
    mutex_unlock(&in->mu);
    return r;
}

static int check_target(struct move *m, unsigned flags)
{
    if ((m->src.flags | m->dst.flags) & DENTRY_SHADOW)
        return -EPERM;
    bool there = m->dst.id != 0, src_dir = S_ISDIR(m->src.type), dst_dir = S_ISDIR(m->dst.type);
    if (flags & RENAME_EXCHANGE)
        return there ? 0 : -ENOENT;
    if (there && (flags & RENAME_NOREPLACE))
        return -EEXIST;
    if (there && src_dir && !dst_dir)
        return -ENOTDIR;
    if (there && !src_dir && dst_dir)
        return -EISDIR;
    if (there && dst_dir) {
        int r = meta_dir_has_entries(m->fs->meta, m->dst.ino);
        return r > 0 ? -ENOTEMPTY : r;
    }
    return 0;
}

/* Name and parent of a directory's inode follow its name record. */
static void set_dir_place(struct move *m, struct inode *in, uint64_t parent, const char *name)
{
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    g_free(in->name);
    in->name = g_strdup(name);
    in->rec.parent = parent;
    mutex_unlock(&in->mu);
}

static void touch_ctime(struct move *m, struct inode *in)
{
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    in->rec.ctime_ns = clock_wall_ns();
    if (!in->gone)
        meta_inode_put(m->b, &in->rec);
    mutex_unlock(&in->mu);
}

/* What a program renames over a pinned name is to be kept as that was. */
static void take_over_pin(struct move *m)
{
    mutex_lock(&m->over->mu);
    struct meta_inode from = {.flags = m->over->rec.flags};
    mutex_unlock(&m->over->mu);
    mutex_lock(&m->in->mu);
    ns_undo_note_locked(m->in);
    uint32_t have = m->in->rec.flags & INODE_PIN_FLAGS, pin = pin_handed_on(&from, &m->in->rec);
    m->pinned = pin != have;
    m->in->rec.flags = (m->in->rec.flags & ~INODE_PIN_FLAGS) | pin;
    mutex_unlock(&m->in->mu);
}

static int move_name(struct move *m) NO_TSA /* under ns */
{
    struct fs *fs = m->fs;
    bool dir = S_ISDIR(m->src.type);
    g_autofree char *old_key = tree_key(fs, m->src.parent, m->src.name, dir);
    g_autofree char *new_key = tree_key(fs, m->p2, m->n2, dir);
    if (strlen(new_key) > objstore_limits_of(fs->store, new_key).key_max_bytes)
        return -ENAMETOOLONG;
    struct etag dest = {0};
    bool have_dest;
    uint64_t replaced_seq = m->dst.id ? m->dst.op_seq : 0;
    bool enters = !dir && tree_leaves_store(fs, &m->src, old_key, new_key);
    int r =
        dir ? check_below(m, m->src.ino, strlen(new_key), objstore_limits_of(m->fs->store, new_key).key_max_bytes, 0)
            : 0;
    if (r == 0)
        r = tree_check_sides(fs, &m->src, m->p2, m->n2, NULL);
    if (r == 0 && enters && S_ISREG(m->src.type) && !m->detached)
        r = -EAGAIN; /* the directory was renamed meanwhile */
    if (r < 0)
        return r;
    if (m->dst.id) {
        bool takes_over = goes_upstream(&m->src) && !local_is(fs, new_key);
        have_dest = takes_over && tree_object_at_path(&m->dst, &dest);
        r = tree_drop_name(fs, m->b, &m->dst, takes_over);
        m->unsettled = r == 0 && replaced_note(fs, m->b, &m->dst, replaced_seq, m->over, m->in);
    } else {
        uint64_t delete_seq = publish_delete_of(fs, new_key);
        have_dest = inherit(m, &m->src, new_key, &dest);
        replaced_seq = have_dest ? delete_seq : 0;
    }
    if (r < 0)
        return r;
    meta_dentry_del(m->b, &m->src);
    m->src.parent = m->p2;
    g_free(m->src.name);
    m->src.name = g_strdup(m->n2);
    if (dir)
        set_dir_place(m, m->in, m->p2, m->n2);
    m->unseen = enters || (m->dst.id && (!goes_upstream(&m->src) || local_is(fs, new_key)));
    relocate(m, &m->src, old_key, new_key, have_dest, &dest, false);
    bool waited_for = m->dst.id && S_ISREG(m->src.type) && publish_is_waited_for(fs, replaced_seq);
    if (waited_for &&
        !m->src.op_seq) /* of a file that was never closed, which is waited for now as one that is open again */
        publish_name(fs, m->b, &m->src, PUBLISH_PLACE);
    if (replaced_seq)
        publish_succeed(fs, m->b, &m->src, replaced_seq);
    meta_dentry_put(m->b, &m->src);
    if (m->over)
        take_over_pin(m);
    touch_ctime(m, m->in);
    return dir ? relocate_all(m, old_key, new_key) : 0;
}

/* ---- exchange ---- */

/* A name that changes places, and its keys before and after. */
struct swap {
    struct meta_dentry d;
    char *old_key, *new_key;
    uint64_t turn;              /* in the order of which content enters its new place */
    uint64_t at_place, at_turn; /* for publish_place_at() */
};

static void swap_free(void *arg)
{
    struct swap *s = arg;
    meta_dentry_clear(&s->d);
    g_free(s->old_key);
    g_free(s->new_key);
    g_free(s);
}

static gint swap_cmp(gconstpointer a, gconstpointer b)
{
    const struct swap *x = *(struct swap *const *)a, *y = *(struct swap *const *)b;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

static struct swap *swap_add(struct move *m, GPtrArray *all, const struct meta_dentry *d, char *old_key,
                             char *new_key) NO_TSA /* under ns */
{
    struct swap *s = g_new0(struct swap, 1);
    meta_dentry_copy(&s->d, d);
    s->old_key = old_key;
    s->new_key = new_key;
    s->turn = publish_turn(m->fs, d->op_seq);
    g_ptr_array_add(all, s);
    return s;
}

static int collect_below(struct move *m, GPtrArray *all, uint64_t dir, const char *old_prefix, const char *new_prefix,
                         unsigned depth)
{
    if (depth > 512)
        return -ELOOP;
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_dentry_list(m->fs->meta, dir, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        const char *slash = S_ISDIR(d->type) ? "/" : "";
        struct swap *s = swap_add(m, all, d, g_strconcat(old_prefix, d->name, slash, NULL),
                                  g_strconcat(new_prefix, d->name, slash, NULL));
        if (strlen(s->new_key) > objstore_limits_of(m->fs->store, s->new_key).key_max_bytes)
            r = -ENAMETOOLONG;
        else if (S_ISDIR(d->type))
            r = collect_below(m, all, d->ino, s->old_key, s->new_key, depth + 1);
    }
    return r;
}

/* Was what the name shows visible when the exchange began? */
static bool was_shown(struct move *m, const struct meta_dentry *d) NO_TSA /* under ns */
{
    return d->op_seq == 0 || publish_turn(m->fs, d->op_seq) == PUBLISH_FIRST;
}

/* A file that was visible is at its new place before what is not yet so replaces it. Where nothing does, it waits for what was closed in the directory that it comes to;
 * and that which changes places with a directory for what is below that: its object goes first, as it is one and those are many. */
static void set_order(struct move *m, struct swap *s, const struct meta_dentry *other) NO_TSA /* under ns */
{
    if (!S_ISREG(s->d.type) || !was_shown(m, &s->d))
        return;
    if (S_ISDIR(other->type))
        s->at_place = s->at_turn = PUBLISH_FIRST + 1;
    else if (was_shown(m, other))
        s->at_turn = m->wave;
}

/* What the name has upstream is to be deleted, unless somebody enters its place. */
static void leave_place(struct move *m, struct swap *s) NO_TSA /* under ns */
{
    leave_key(m, &s->d, s->old_key);
    s->d.flags |= DENTRY_DEST_KNOWN;
}

static void enter_place(struct move *m, struct swap *s) NO_TSA /* under ns */
{
    struct etag etag;
    struct meta_dentry *d = &s->d;
    if (inherit(m, d, s->new_key, &etag))
        d->dest_etag = etag;
    bool dir = S_ISDIR(d->type), waited_for = publish_turn(m->fs, d->op_seq) != 0;
    bool closed = content_closed(m->fs, d, m->dirty);
    if (dir || !(closed || waited_for))
        publish_drop_name(m->fs, m->b, d); /* it was made for the other place */
    if (dir || closed || waited_for)
        publish_name(m->fs, m->b, d, dir ? PUBLISH_MARKER : PUBLISH_PLACE);
    publish_before(m->fs, m->b, d, m->wave); /* it is there before what it leaves goes */
    publish_place_at(m->fs, m->b, d, s->at_place, s->at_turn);
    meta_dentry_put(m->b, d);
}

/*
 * Content is sent anew under the other name, so that neither side can destroy what the other still needs.
 *
 * The old records go after both have left: what leaves may tell the name at its object's key what stands there, and where that is the other one it stores that
 * name at its old place again.
 */
static int exchange_names(struct move *m, struct inode *other) NO_TSA /* under ns */
{
    struct fs *fs = m->fs;
    const struct meta_dentry *ends[] = {&m->src, &m->dst};
    struct inode *ins[] = {m->in, other};
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func(swap_free);
    int r = tree_check_sides(fs, &m->src, m->p2, m->n2, &m->dst);
    m->wave = meta_next_seq(fs->meta);
    for (unsigned i = 0; r == 0 && i < 2; i++) {
        const struct meta_dentry *d = ends[i], *to = ends[1 - i];
        bool dir = S_ISDIR(d->type);
        struct swap *s =
            swap_add(m, all, d, tree_key(fs, d->parent, d->name, dir), tree_key(fs, to->parent, to->name, dir));
        set_order(m, s, to);
        r = dir ? collect_below(m, all, d->ino, s->old_key, s->new_key, 0) : 0;
        s->d.parent = to->parent;
        g_free(s->d.name);
        s->d.name = g_strdup(to->name);
    }
    for (unsigned i = 0; r == 0 && i < all->len; i++)
        leave_place(m, all->pdata[i]);
    for (unsigned i = 0; r == 0 && i < 2; i++) {
        meta_dentry_del(m->b, ends[i]);
        if (S_ISDIR(ends[i]->type))
            set_dir_place(m, ins[i], ends[1 - i]->parent, ends[1 - i]->name);
        touch_ctime(m, ins[i]);
    }
    g_ptr_array_sort(all, swap_cmp);
    for (unsigned i = 0; r == 0 && i < all->len; i++)
        enter_place(m, all->pdata[i]);
    return r;
}

/* Content of files that change places is brought here and kept from being published until they have: see content_detach(). */
static int detach_all(struct fs *fs, struct inode *in, GPtrArray *held)
{
    if (S_ISREG(in->rec.mode)) {
        int r = content_detach(in, false);
        if (r == 0)
            g_ptr_array_add(held, inode_ref(in));
        return r;
    }
    if (!inode_is_dir(in))
        return 0;
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_dentry_list(fs->meta, in->ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        INODE_REF child = NULL;
        r = inode_get(fs, ((struct meta_dentry *)names->pdata[i])->ino, &child);
        if (r == 0)
            r = detach_all(fs, child, held);
    }
    return r;
}

static void attach(void *in)
{
    content_end_detach(in);
    inode_put(in);
}

/* ---- the whole ---- */

/* Nothing goes from one bucket to another by its name, and the directories of links stay where they are. */
static int check_links(struct move *m, bool exchange) NO_TSA /* under ns */
{
    struct fs *fs = m->fs;
    g_autofree char *from = tree_key(fs, m->src.parent, m->src.name, false);
    g_autofree char *to = tree_key(fs, m->p2, m->n2, false);
    int r = links_check_fixed(fs, from);
    r = r < 0 ? r : links_check_fixed(fs, to);
    if (r == 0 && links_point_of(fs, m->src.parent) != links_point_of(fs, m->p2))
        r = -EXDEV;
    r = r < 0 ? r : tree_check_escaped(fs, to, S_ISDIR(m->src.type));
    r = r < 0 || !exchange ? r : tree_check_escaped(fs, from, S_ISDIR(m->dst.type));
    return r < 0 ? r : links_may_name(fs, to, S_ISDIR(m->src.type));
}

static int rename_locked(struct move *m, struct inode *other, unsigned flags) NO_TSA /* under ns */
{
    struct fs *fs = m->fs;
    if (m->dst.id && m->dst.ino == m->src.ino)
        return 0; /* two names of one file: POSIX leaves both */
    int r = check_live_dir(fs, m->p2);
    if (r == 0)
        r = check_links(m, flags & RENAME_EXCHANGE);
    if (r == 0)
        r = check_target(m, flags);
    if (r < 0)
        return r;
    if (S_ISDIR(m->src.type) && is_below(fs, m->p2, m->src.ino))
        return -EINVAL;
    if ((flags & RENAME_EXCHANGE) && S_ISDIR(m->dst.type) && is_below(fs, m->src.parent, m->dst.ino))
        return -EINVAL;
    uint64_t p1 = m->src.parent, src_id = m->src.id;
    g_autofree char *n1 = g_strdup(m->src.name);
    r = flags & RENAME_EXCHANGE ? exchange_names(m, other) : move_name(m);
    if (r == 0 && m->p2 != p1 && !(flags & RENAME_EXCHANGE))
        r = tree_keep_shown(fs, m->b, p1, src_id);
    if (r == 0 && m->unseen)
        r = tree_keep_shown(fs, m->b, m->p2, 0);
    if (r == 0) {
        tree_touch_dir(fs, m->b, p1);
        if (m->p2 != p1)
            tree_touch_dir(fs, m->b, m->p2);
        replay_note(fs, m->b, 0);
        r = meta_commit(m->b, false);
    }
    if (r < 0 && S_ISDIR(m->src.type))
        set_dir_place(m, m->in, p1, n1);
    if (r < 0 && (flags & RENAME_EXCHANGE) && S_ISDIR(m->dst.type))
        set_dir_place(m, other, m->dst.parent, m->dst.name);
    fs->ns_changes++;
    return r;
}

/* Before anything is fetched for a rename that cannot be: as tree_check_sides(), of the names as they are now. */
static int check_early(struct move *m, uint64_t p1, const char *n1, unsigned flags)
{
    struct fs *fs = m->fs;
    struct meta_dentry src = {0}, dst = {0};
    if (!fs->rules->local_only)
        return 0;
    mutex_lock(&fs->ns);
    int r = meta_dentry_get(fs->meta, p1, n1, &src);
    if (r == 0 && (flags & RENAME_EXCHANGE))
        r = meta_dentry_get(fs->meta, m->p2, m->n2, &dst);
    if (r == 0)
        r = tree_check_sides(fs, &src, m->p2, m->n2, dst.id ? &dst : NULL);
    mutex_unlock(&fs->ns);
    meta_dentry_clear(&src);
    meta_dentry_clear(&dst);
    return r;
}

/* Brings a file here that a rule is to keep. */
static int prepare_entry(struct move *m, uint64_t p1, const char *n1, GPtrArray *held)
{
    struct fs *fs = m->fs;
    if (!fs->rules->local_only || !S_ISREG(m->in->rec.mode))
        return 0;
    struct meta_dentry d = {0};
    mutex_lock(&fs->ns);
    g_autofree char *old_key = tree_key(fs, p1, n1, false), *new_key = tree_key(fs, m->p2, m->n2, false);
    int r = meta_dentry_get(fs->meta, p1, n1, &d);
    mutex_unlock(&fs->ns);
    m->detached = r == 0 && tree_leaves_store(fs, &d, old_key, new_key);
    meta_dentry_clear(&d);
    return m->detached ? detach_all(fs, m->in, held) : r;
}

/* What must be known before ns is taken. */
static int prepare_lists(struct fs *fs, struct inode *src, struct inode *dst, unsigned flags)
{
    int r = 0;
    if (inode_is_dir(src))
        r = tree_refresh_all(fs, src, false, NULL, NULL);
    if (r == 0 && dst && inode_is_dir(dst) && !(flags & RENAME_EXCHANGE)) {
        if (meta_dir_has_entries(fs->meta, dst->ino) == 0)
            r = tree_refresh(fs, dst, true);
        if (r == 0 && (dst->rec.flags & INODE_DIR_HIDDEN))
            r = -ENOTEMPTY;
    }
    if (r == 0 && (flags & RENAME_EXCHANGE) && dst && inode_is_dir(dst))
        r = tree_refresh_all(fs, dst, false, NULL, NULL);
    return r;
}

/* ... and what must be here. */
static int prepare(struct move *m, uint64_t p1, const char *n1, unsigned flags, GPtrArray *held)
{
    struct fs *fs = m->fs;
    int r = prepare_lists(fs, m->in, m->over, flags);
    if (r == 0)
        r = check_early(m, p1, n1, flags);
    if (r < 0)
        return r;
    if (!(flags & RENAME_EXCHANGE))
        return prepare_entry(m, p1, n1, held);
    if (!m->over)
        return 0;
    r = detach_all(fs, m->in, held);
    return r == 0 && m->over != m->in ? detach_all(fs, m->over, held) : r;
}

/* Intents of dirty files name the path by which they would be found without the database. */
static void rewrite_intents(struct fs *fs, GArray *dirty)
{
    for (unsigned i = 0; i < dirty->len; i++) {
        INODE_REF in = NULL;
        struct cfile *cf = NULL;
        if (inode_get(fs, g_array_index(dirty, uint64_t, i), &in) < 0 || content_use(in, &cf) < 0)
            continue;
        content_gate_enter(in); /* else it may be published between the look at it and the intent, which would stay */
        content_write_intent(in);
        content_gate_leave(in);
        content_unuse(in, cf);
    }
}

static int read_names(struct move *m, uint64_t p1, const char *n1, uint64_t ino1, uint64_t ino2)
{
    int r = meta_dentry_get(m->fs->meta, p1, n1, &m->src);
    if (r < 0)
        return r;
    r = meta_dentry_get(m->fs->meta, m->p2, m->n2, &m->dst);
    if (r < 0 && r != -ENOENT)
        return r;
    return m->src.ino != ino1 || (m->dst.id ? m->dst.ino : 0) != ino2 ? -EAGAIN : 0;
}

/* *ret_pinned: the inode that took over a pin, 0: none did. */
static int rename_try(struct fs *fs, uint64_t p1, const char *n1, uint64_t p2, const char *n2, unsigned flags,
                      uint64_t *ret_pinned)
{
    INODE_REF src = NULL;
    INODE_REF dst = NULL;
    if (links_point_of(fs, p1) != links_point_of(fs, p2)) /* before much is listed, and fetched, for it */
        return -EXDEV;
    int r = tree_lookup(fs, p1, n1, &src);
    if (r < 0)
        return r;
    r = tree_lookup(fs, p2, n2, &dst);
    if (r < 0 && r != -ENOENT)
        return r;
    if (dst && dst->ino != src->ino && (flags & RENAME_NOREPLACE))
        return -EEXIST;
    if (dst && !(flags & RENAME_EXCHANGE))
        tree_save_open_content(fs, p2, n2);
    g_autoptr(GPtrArray) held = g_ptr_array_new_with_free_func(attach);
    g_autoptr(GArray) dirty = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct move m = {.fs = fs, .p2 = p2, .n2 = n2, .in = src, .over = dst, .dirty = dirty};
    r = prepare(&m, p1, n1, flags, held);
    if (r < 0)
        return r;
    m.b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    r = read_names(&m, p1, n1, src->ino, dst ? dst->ino : 0);
    if (r == 0)
        r = rename_locked(&m, dst, flags);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(m.b);
    meta_dentry_clear(&m.src);
    meta_dentry_clear(&m.dst);
    CRASH_POINT(rename_committed);
    if (r == 0 && m.unsettled)
        replaced_settle(fs, dst->ino);
    if (r == 0)
        rewrite_intents(fs, dirty);
    CRASH_POINT(rename_intents);
    *ret_pinned = r == 0 && m.pinned ? src->ino : 0;
    return r;
}

int tree_rename(struct fs *fs, uint64_t p1, const char *n1, uint64_t p2, const char *n2, unsigned flags)
{
    if (strlen(n2) > FS_NAME_MAX)
        return -ENAMETOOLONG;
    if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE))
        return -EINVAL;
    int r = -EAGAIN;
    uint64_t pinned = 0;
    for (unsigned i = 0; r == -EAGAIN && i < 8; i++) /* a name may change between looking it up and taking ns */
        r = rename_try(fs, p1, n1, p2, n2, flags, &pinned);
    if (r < 0)
        return r;
    rules_note_rename(fs);
    mutex_lock(&fs->ns);
    g_autofree char *path = tree_key(fs, p2, n2, false);
    mutex_unlock(&fs->ns);
    if (pinned)
        pin_follow(fs, pinned, path);
    pin_rules_apply(fs, path);
    return 0;
}
