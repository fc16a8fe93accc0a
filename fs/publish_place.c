/*
 * What stands at the key that a name is to be published to, where its record does not know it.
 *
 * A delete of that key may have been asked for before the name came. Whether it was carried out nobody may know: it was sent and we were killed, or its answer was
 * lost. So a name and a delete of its key are never both to come: the name takes the delete over, when it is made or, where the delete was just being sent, when it
 * is published. Then what the delete was for is what the name may replace, and may be gone as well.
 *
 * Programs may still have a file open that had the name before and lost it. Bytes of it that are not here yet are in that object only, so they are brought here before it
 * is deleted or replaced, and the file needs no source from then on: what could be fetched again may be taken away at any time. A delete waits for them as long as it takes, a
 * new version for some tries.
 */
#include "publish_internal.h"

#include <stdlib.h>

#define SPARE_TRIES 5

/* Is what stands there, as far as the record knows, an older version of the name itself? */
static bool is_own(const struct meta_dentry *d)
{
    return (d->flags & DENTRY_UPSTREAM) && !d->ukey;
}

/* ---- readers of what goes ---- */

/* In memory, with a reference, if somebody has it open. One that is not in memory is not open, and is not to be loaded: who reaps it would take it for used. */
static struct inode *find_open(struct fs *fs, uint64_t ino)
{
    struct inode *in = ino ? inode_find(fs, ino) : NULL;
    if (!in)
        return NULL;
    mutex_lock(&in->mu);
    bool open = in->n_open > 0 && in->cf;
    mutex_unlock(&in->mu);
    if (open)
        return in;
    inode_put(in);
    return NULL;
}

/* Would a reader miss the object? */
static bool is_missed(struct fs *fs, uint64_t ino)
{
    INODE_REF in = find_open(fs, ino);
    if (!in)
        return false;
    mutex_lock(&in->mu);
    bool missed = in->cf && (in->rec.nlink == 0 ? cache_file_has_source(in->cf) : !cache_file_complete(in->cf));
    mutex_unlock(&in->mu);
    return missed;
}

/* All of it is here. -EBUSY: some of it was taken away a moment ago. */
static int keep_here(struct inode *in, struct cfile *cf)
{
    struct cache_source none = {0};
    content_gate_enter(in);
    mutex_lock(&in->mu);
    bool unnamed = in->rec.nlink == 0;
    mutex_unlock(&in->mu);
    bool keep = unnamed && cache_file_has_source(cf);
    int r = keep ? cache_file_set_source(cf, &none) : 0;
    if (r == 0 && keep)
        r = content_store(in); /* for the next worker, who opens it by its record */
    content_gate_leave(in);
    return r == -EINVAL ? -EBUSY : r;
}

/* That inode, or 0 where it has another name left whose object its absent bytes come from (tree_leave_object()): nobody misses the one at key then. */
static uint64_t reader_of(struct fs *fs, uint64_t ino, const char *key)
{
    INODE_REF in = find_open(fs, ino);
    if (!in)
        return 0;
    mutex_lock(&in->mu);
    bool elsewhere = in->rec.nlink > 0 && in->rec.base_key && !g_str_equal(in->rec.base_key, key);
    mutex_unlock(&in->mu);
    return elsewhere ? 0 : ino;
}

int place_bring_here(struct fs *fs, uint64_t ino)
{
    INODE_REF in = find_open(fs, ino);
    if (!in)
        return 0;
    struct cfile *cf = content_use_open(in);
    if (!cf)
        return 0;
    int r = cache_file_complete(cf) ? 0 : cache_file_fill(cf, true, true, NULL, NULL);
    if (r == 0)
        r = keep_here(in, cf);
    content_unuse(in, cf);
    if (r == -ESTALE || r == -ENOENT) /* it is gone already */
        return 0;
    return r == -EFBIG ? -EBUSY : r;
}

static int collect_ino(void *ctx, const char *name, const void *value, size_t len)
{
    uint64_t ino = strtoull(strchr(name, '/') + 1, NULL, 16);
    g_array_append_val((GArray *)ctx, ino);
    return 0;
}

/* Does the file, which has no name, take its absent bytes from key? */
static bool rests_on(struct fs *fs, uint64_t ino, const char *key)
{
    INODE_REF in = find_open(fs, ino);
    if (!in)
        return false;
    mutex_lock(&in->mu);
    bool rests = in->rec.nlink == 0 && g_strcmp0(in->rec.base_key, key) == 0;
    mutex_unlock(&in->mu);
    return rests;
}

/* May it be better when it is tried again? Publishing does not wait for ever for a file that nobody will see again when it is closed. */
static bool may_pass(const struct op *o)
{
    return o->failures < SPARE_TRIES;
}

/* 0: brought here, or lost to its readers, who are told so. */
static int spare(struct op *o, uint64_t ino)
{
    int r = place_bring_here(o->p->fs, ino);
    if (r == 0 || r == -ECANCELED)
        return r;
    if (may_pass(o))
        return -EBUSY; /* it is the other file's failure, and never a reason to park this one */
    log_info("publish", "bytes of a removed file that is still open go with its object key='%s' r=%s", o->key,
             err_name(r));
    return 0;
}

static int bring(struct op *o, uint64_t ino)
{
    return place_bring_here(o->p->fs, ino);
}

/* Calls fn for each file without a name that somebody has open and that rests on the op's key, until it fails. */
static int each_reader(struct op *o, int (*fn)(struct op *o, uint64_t ino))
{
    struct fs *fs = o->p->fs;
    if (!atomic_load(&fs->removed_open))
        return 0;
    g_autoptr(GArray) inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    int r = meta_value_each(fs->meta, "orphan/", collect_ino, inos);
    for (unsigned i = 0; r == 0 && i < inos->len; i++) {
        uint64_t ino = g_array_index(inos, uint64_t, i);
        r = rests_on(fs, ino, o->key) ? fn(o, ino) : 0;
    }
    return r;
}

int place_spare_readers(struct op *o, const struct meta_dentry *d)
{
    struct etag etag;
    return tree_object_at_path(d, &etag) ? each_reader(o, spare) : 0;
}

int place_keep_readers(struct op *o)
{
    int r = place_bring_here(o->p->fs, reader_of(o->p->fs, o->keep_ino, o->key));
    return r < 0 ? r : each_reader(o, bring);
}

/* ---- what the record does not know ---- */

/* keep_ino: the file whose bytes that delete would bring here first, or 0. */
static bool delete_waits(struct publisher *p, const char *key, uint64_t *ret_keep_ino)
{
    mutex_lock(&p->mu);
    const struct op *o = g_hash_table_lookup(p->tombs, key);
    bool waits = o && !o->running;
    *ret_keep_ino = waits ? o->keep_ino : 0;
    mutex_unlock(&p->mu);
    return waits;
}

int place_ready(struct op *o)
{
    uint64_t ino;
    return delete_waits(o->p, o->key, &ino) ? spare(o, reader_of(o->p->fs, ino, o->key)) : 0;
}

int place_take_delete(struct op *o, struct meta_dentry *d) NO_TSA /* under ns */
{
    struct fs *fs = o->p->fs;
    struct etag etag;
    uint64_t keep_ino;
    mutex_assert_held(&fs->ns);
    if (is_own(d) || !delete_waits(o->p, o->key, &keep_ino))
        return 0;
    if (is_missed(fs, reader_of(fs, keep_ino, o->key)) && may_pass(o))
        return -EBUSY;
    struct meta_batch *b = meta_batch_new(fs->meta);
    if (publish_inherit(fs, b, o->key, &etag)) {
        d->flags |= DENTRY_DEST_KNOWN;
        d->dest_etag = etag;
        meta_dentry_put(b, d);
    }
    int r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    meta_batch_free(b);
    return r;
}

int place_adopt(struct op *o, struct meta_dentry *d, const struct etag *etag)
{
    struct fs *fs = o->p->fs;
    struct meta_dentry now = {0};
    mutex_assert_held(&fs->ns);
    int r = meta_dentry_get(fs->meta, o->rec.parent, o->rec.name, &now);
    if (r == -ENOENT || (r == 0 && (now.op_seq != o->rec.seq || (is_own(&now) && !etag_is_set(etag)))))
        r = -EAGAIN;
    if (r < 0) {
        meta_dentry_clear(&now);
        return r;
    }
    if (is_own(&now)) {
        now.uetag = *etag;
        now.pub_vid = now.pub_gen =
            0; /* the token stays that of the last one recorded: what is older is nobody's news */
    } else {
        now.flags |= DENTRY_DEST_KNOWN;
        now.dest_etag = *etag;
    }
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_dentry_put(b, &now);
    r = meta_commit(b, false);
    meta_batch_free(b);
    meta_dentry_clear(d);
    *d = now;
    return r;
}

/* Does the name not know yet that this stands at its key? */
static bool is_news(const struct meta_dentry *d, const struct etag *etag)
{
    struct etag known;
    return !tree_object_at_path(d, &known) || !etag_equal(&known, etag);
}

int place_look_again(struct op *o, struct meta_dentry *d)
{
    struct fs *fs = o->p->fs;
    struct obj_info info = {0};
    struct etag etag;
    if (is_own(d))
        return -ESTALE;
    int r = note_find(fs, o->key, &info);
    if (r == 0)
        r = is_news(d, &info.etag) ? -EAGAIN : -ESTALE;
    obj_info_clear(&info);
    if (r != -ENOENT)
        return r;
    if (!tree_object_at_path(d, &etag))
        return -ESTALE;
    r = objstore_head(fs->store, o->key, &info);
    obj_info_clear(&info);
    if (r != -ENOENT)
        return r < 0 ? r : -ESTALE;
    mutex_lock(&fs->ns);
    r = place_adopt(o, d, &(struct etag){0});
    mutex_unlock(&fs->ns);
    return r < 0 ? r : -EAGAIN;
}
