/*
 * What is refused again and again: the key, or all that a store is sent?
 *
 * Only a refusal with something between it and the one before that the same store took is one of the key; that the store of the mount takes what it is sent says nothing of a link's, whose keys
 * or certificate may be wrong. Somebody may be mending it: until the key has been refused for some minutes it is tried again, as ever where nothing else is sent.
 */
#include "links.h"
#include "publish_internal.h"

#define KEY_REFUSALS   8 /* until it is said that the store does not want that key */
#define KEY_REFUSED_NS (600 * NS_PER_S)

/* The number of versions that the store of the op's key took. */
static size_t taken_locked(const struct op *o) /* under the publisher's mu */
{
    g_autofree char *dir = g_strndup(o->key, o->link_len);
    return GPOINTER_TO_SIZE(g_hash_table_lookup(o->p->taken, dir));
}

void pubop_note_taken(struct op *o)
{
    mutex_lock(&o->p->mu);
    size_t n = taken_locked(o) + 1;
    g_hash_table_replace(o->p->taken, g_strndup(o->key, o->link_len), GSIZE_TO_POINTER(n));
    mutex_unlock(&o->p->mu);
}

static void count_locked(struct op *o) /* under the publisher's mu */
{
    size_t taken = taken_locked(o);
    if (o->n_refusals == 0)
        o->refused_since_ns = clock_mono_ns();
    if (o->n_refusals == 0 || taken != o->n_taken)
        o->n_refusals++;
    o->n_taken = taken;
}

bool pubop_is_unwanted(struct op *o, int r)
{
    bool refusal = o->rec.kind == OP_SYNC && (r == -EACCES || r == -EREMOTEIO);
    if (!links_probed(o->p->fs, o->key)) /* not the key was refused */
        return false;
    mutex_lock(&o->p->mu);
    if (refusal)
        count_locked(o);
    else
        o->n_refusals = 0;
    bool unwanted = o->n_refusals >= KEY_REFUSALS && clock_mono_ns() - o->refused_since_ns >= KEY_REFUSED_NS;
    mutex_unlock(&o->p->mu);
    return unwanted;
}
