/*
 * The place in the order of what was renamed, replaced or moved along with a directory. What it was before is in the op that the name had until now, which is removed when the batch is
 * committed.
 */
#include "publish_moved.h"

#include "publish_internal.h"

void moved_note_place(struct op *o)
{
    struct meta_op *rec = &o->rec;
    bool closed = o->closed || o->content == CONTENT_SEALED || o->content == CONTENT_CLEAN;
    bool waited_for = closed && o->why != PUBLISH_META; /* the next start could not tell it from what was closed */
    rec->place = o->place ? o->place : waited_for ? rec->seq : 0;
    rec->unclosed = rec->place && !closed;
    rec->turn = o->turn != rec->seq && o->turn != rec->wave ? o->turn : 0;
}

/* Does another file still need what stands at the key? */
static bool is_left(struct publisher *p, const struct op *old, const char *key) REQUIRES(p->mu)
{
    const struct op *src = g_hash_table_lookup(p->sources, key);
    const GPtrArray *a = g_hash_table_lookup(p->bases, key);
    bool other = src && src != old;
    for (unsigned i = 0; !other && a && i < a->len; i++)
        other = ((const struct op *)a->pdata[i])->ino != old->ino;
    return other;
}

bool moved_came_locked(struct publisher *p, const struct op *old, const struct meta_dentry *d, const char *key)
{
    mutex_assert_held(&p->mu);
    if (g_str_equal(old->key, key))
        return false;
    if (is_left(p, old, key))
        return true;
    bool along = old->rec.parent == d->parent && g_str_equal(old->rec.name, d->name);
    return along || publish_is_held_name(p->fs, old->key) || strncmp(old->key, key, queue_dir_len(key)) != 0;
}

void publish_moved(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, uint64_t wave)
{
    mutex_assert_held(&fs->ns);
    publish_name(fs, b, d, PUBLISH_PLACE);
    struct op *o = publish_added(fs, d);
    if (!o)
        return;
    o->place = o->place ? MIN(o->place, wave) : wave;
    o->turn = o->rec.wave = wave;
    moved_note_place(o);
    meta_op_put(b, &o->rec);
}

void publish_before(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d, uint64_t seq)
{
    mutex_assert_held(&fs->ns);
    struct op *o = publish_added(fs, d);
    if (!o)
        return;
    o->place = o->place ? MIN(o->place, seq) : seq;
    moved_note_place(o);
    meta_op_put(b, &o->rec);
}

void publish_first(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    struct op *o = publish_added(fs, d);
    if (!o)
        return;
    o->place = o->turn = PUBLISH_FIRST;
    moved_note_place(o);
    meta_op_put(b, &o->rec);
}

void publish_place_at(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d, uint64_t place, uint64_t turn)
{
    mutex_assert_held(&fs->ns);
    struct op *o = publish_added(fs, d);
    if (!o)
        return;
    o->place = place ? place : o->place;
    o->turn = turn ? turn : o->turn;
    moved_note_place(o);
    meta_op_put(b, &o->rec);
}

void publish_note_closed(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->by_seq, &d->op_seq);
    if (o && (o->rec.place == 0 || o->rec.unclosed)) {
        o->rec.place = o->place;
        o->rec.unclosed = false;
        meta_op_put(b, &o->rec);
    }
    mutex_unlock(&p->mu);
}

void publish_note_shown(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->by_seq, &d->op_seq);
    if (o) {
        o->closed = false; /* it leaves the order with the state of its content */
        o->rec.place = o->rec.turn = o->rec.wave = 0;
        o->rec.unclosed = false;
        meta_op_put(b, &o->rec);
    }
    mutex_unlock(&p->mu);
}

void publish_succeed(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d, uint64_t old_seq)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    struct op *o = publish_added(fs, d);
    if (!o)
        return;
    mutex_lock(&p->mu);
    const struct op *old = g_hash_table_lookup(p->by_seq, &old_seq);
    if (old)
        queue_succeed_locked(p, old, o);
    mutex_unlock(&p->mu);
    moved_note_place(o);
    meta_op_put(b, &o->rec);
}

uint64_t publish_delete_of(struct fs *fs, const char *key)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    const struct op *o = g_hash_table_lookup(p->tombs, key);
    uint64_t seq = o && !o->running ? o->rec.seq : 0;
    mutex_unlock(&p->mu);
    return seq;
}

/* Is it of closed content, which others may wait for? */
static bool is_in_order(const struct op *o)
{
    return o->links->len > 0 && (o->closed || o->content == CONTENT_CLOSING);
}

uint64_t publish_turn(struct fs *fs, uint64_t op_seq)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    const struct op *o = g_hash_table_lookup(p->by_seq, &op_seq);
    uint64_t turn = o && is_in_order(o) && !o->source ? o->turn : 0;
    mutex_unlock(&p->mu);
    return turn;
}

bool publish_is_of_attributes(struct fs *fs, uint64_t op_seq)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    const struct op *o = g_hash_table_lookup(p->by_seq, &op_seq);
    bool is = o && o->why == PUBLISH_META;
    mutex_unlock(&p->mu);
    return is;
}

bool publish_is_waited_for(struct fs *fs, uint64_t op_seq)
{
    mutex_assert_held(&fs->ns);
    struct publisher *p = fs->pub;
    mutex_lock(&p->mu);
    const struct op *o = g_hash_table_lookup(p->by_seq, &op_seq);
    bool waited_for = o && is_in_order(o);
    mutex_unlock(&p->mu);
    return waited_for;
}
