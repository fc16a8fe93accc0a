/* See replaced.h. Of files that replaced each other the one that has the name counts: once it is on the disk all before it may go. */
#include "replaced.h"

#include "base/crash.h"
#include "content.h"
#include "durable.h"
#include "intent.h"
#include "local.h"
#include "meta_orphan.h"
#include "reap.h"
#include "recover.h"
#include "tree.h"

#include <stdlib.h>

#define RETRY_NS (5 * NS_PER_S)

/* Could a power loss take it? Of a file that is still open an older sync says nothing. */
static bool is_unsafe(const struct meta_inode *rec)
{
    bool closed = rec->content == CONTENT_CLOSING || rec->content == CONTENT_SEALED;
    return rec->content == CONTENT_OPEN || (closed && !(rec->flags & INODE_DATA_SYNCED));
}

bool replaced_note(struct fs *fs, struct meta_batch *b, const struct meta_dentry *was, uint64_t op_seq,
                   struct inode *over, struct inode *in)
{
    mutex_assert_held(&fs->ns);
    if (!over || !S_ISREG(over->rec.mode) || !S_ISREG(in->rec.mode))
        return false;
    mutex_lock(&over->mu);
    bool unnamed = over->rec.nlink == 0 && !over->gone;
    mutex_unlock(&over->mu);
    mutex_lock(&in->mu);
    bool unsafe = is_unsafe(&in->rec);
    mutex_unlock(&in->mu);
    if (!unnamed || !unsafe)
        return false;
    struct meta_replaced rep = {.by = in->ino};
    meta_dentry_copy(&rep.was, was);
    rep.was.op_seq = op_seq;
    if ((was->flags & DENTRY_UPSTREAM) && !was->ukey)
        rep.was.ukey = tree_key(fs, was->parent, was->name, false);
    meta_orphan_put(b, over->ino, &rep);
    meta_replaced_clear(&rep);
    return true;
}

/* ---- bringing to the disk ---- */

struct link {
    uint64_t ino, by;
};

/* Whoever replaced the file, was replaced himself and so on; each of them is added to chain. *ret_last: the one that was not, 0: he was removed, or is safe. */
static int follow(struct fs *fs, uint64_t ino, GArray *chain, uint64_t *ret_last)
{
    struct meta_replaced rep;
    int r;
    *ret_last = 0;
    while ((r = meta_orphan_get(fs->meta, ino, &rep)) == 0) {
        uint64_t by = rep.by;
        meta_replaced_clear(&rep);
        if (by == 0) {
            *ret_last = 0;
            return 0;
        }
        struct link link = {ino, by};
        g_array_append_val(chain, link);
        ino = *ret_last = by;
    }
    return r == -ENOENT ? 0 : r;
}

static int sync_file(struct fs *fs, uint64_t ino)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    mutex_lock(&in->mu);
    bool unsafe = is_unsafe(&in->rec) && in->rec.nlink > 0 && !in->gone;
    mutex_unlock(&in->mu);
    return unsafe ? durable_sync(in) : 0;
}

/* Brings the end of a file's chain to the disk. One that was replaced or removed meanwhile, and perhaps went, is not the end any more. */
static int sync_last(struct fs *fs, uint64_t ino, GArray *chain)
{
    uint64_t last = 0, before;
    int r, failed = 0;
    do {
        before = last;
        g_array_set_size(chain, 0);
        r = follow(fs, ino, chain, &last);
        if (r < 0 || (failed < 0 && last == before))
            return r < 0 ? r : failed;
        failed = last ? sync_file(fs, last) : 0;
    } while (failed < 0);
    return 0;
}

/* From here on nothing needs them. */
static int let_go(struct fs *fs, const GArray *chain)
{
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < chain->len; i++) {
        const struct link *l = &g_array_index(chain, struct link, i);
        struct meta_replaced rep = {0};
        r = meta_orphan_get(fs->meta, l->ino, &rep);
        if (r == 0 && rep.by == l->by) /* else it got a name, which may be another's by now */
            meta_orphan_put(b, l->ino, NULL);
        meta_replaced_clear(&rep);
        r = r == -ENOENT ? 0 : r;
    }
    if (r == 0)
        r = meta_commit(b, false);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

struct settle {
    struct fs *fs;
    uint64_t ino;
};

/* For good. */
static int end_all(struct fs *fs, const GArray *chain)
{
    int r = chain->len > 0 ? let_go(fs, chain) : 0;
    for (unsigned i = 0; r == 0 && i < chain->len; i++)
        reap_settled(fs, g_array_index(chain, struct link, i).ino);
    return r;
}

/* Some failed, and one did not: the disk may have room again, or what could not be synced was replaced by what can. */
static void try_again(struct fs *fs)
{
    uint64_t due_ns = atomic_load(&fs->resettle_ns);
    if (due_ns && clock_mono_ns() >= due_ns && atomic_compare_exchange_strong(&fs->resettle_ns, &due_ns, 0))
        replaced_resume(fs);
}

static void settle_run(void *arg)
{
    struct settle *s = arg;
    struct fs *fs = s->fs;
    g_autoptr(GArray) chain = g_array_new(FALSE, FALSE, sizeof(struct link));
    int r = atomic_load(&fs->stopping) ? -ECANCELED : sync_last(fs, s->ino, chain);
    CRASH_POINT(replaced_synced);
    if (r == 0)
        r = end_all(fs, chain);
    if (r == 0 && chain->len > 0)
        try_again(fs);
    if (r < 0) { /* what was replaced stays, for the next start or as try_again() says */
        log_debug("content", "a replaced file is kept ino=%" G_GUINT64_FORMAT " r=%s", s->ino, err_name(r));
        atomic_store(&fs->resettle_ns, clock_mono_ns() + RETRY_NS);
    }
    g_free(s);
}

void replaced_settle(struct fs *fs, uint64_t ino)
{
    struct settle *s = g_new(struct settle, 1);
    *s = (struct settle){fs, ino};
    if (!workq_push(fs->settle_q, false, settle_run, s))
        g_free(s); /* stopping: the next start does it */
}

static int resume(void *ctx, uint64_t ino, const struct meta_replaced *rep)
{
    if (rep->by)
        replaced_settle(ctx, ino);
    return 0;
}

void replaced_resume(struct fs *fs)
{
    if (meta_orphan_each(fs->meta, resume, fs) < 0)
        log_warn("content", "replaced files are left to the next start");
}

static int collect_link(void *ctx, uint64_t ino, const struct meta_replaced *rep)
{
    struct link link = {ino, rep->by};
    if (rep->by)
        g_array_append_val((GArray *)ctx, link);
    return 0;
}

void replaced_make_room(struct fs *fs)
{
    if (!cache_write_is_stuck(fs->cache))
        return;
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(struct link));
    int r = meta_orphan_each(fs->meta, collect_link, all);
    if (r == 0)
        r = end_all(fs, all);
    if (r == 0 && all->len > 0)
        log_warn("content",
                 "files were removed that others were renamed over, which are not on the disk yet: a write found no "
                 "room. Give the cache more room (--cache-size) files=%u",
                 all->len);
}

/* ---- after a power loss ---- */

struct rest {
    uint64_t ino;
    struct meta_replaced rep;
};

static void rest_free(void *arg)
{
    struct rest *rest = arg;
    meta_replaced_clear(&rest->rep);
    g_free(rest);
}

static int collect(void *ctx, uint64_t ino, const struct meta_replaced *rep)
{
    if (!rep->by)
        return 0;
    struct rest *rest = g_new0(struct rest, 1);
    *rest = (struct rest){ino, {.by = rep->by}};
    meta_dentry_copy(&rest->rep.was, &rep->was);
    g_ptr_array_add(ctx, rest);
    return 0;
}

/* The file that was replaced by this one, at this name. */
static const struct rest *before(const GPtrArray *all, uint64_t by, const struct meta_dentry *at)
{
    for (unsigned i = 0; i < all->len; i++) {
        const struct rest *rest = all->pdata[i];
        const struct meta_dentry *was = &rest->rep.was;
        if (rest->rep.by == by && was->parent == at->parent && g_str_equal(was->name, at->name))
            return rest;
    }
    return NULL;
}

static bool is_whole(const struct meta_inode *rec)
{
    if (rec->nlink > 0 || rec->content == CONTENT_QUARANTINED)
        return false;
    return rec->content == CONTENT_CLEAN || !recover_lost_with_power(rec);
}

/* The name as it is to be, if it can: an object that it had must still be its own. */
static bool name_again(const struct rest *rest, const struct meta_inode *rec, const struct meta_dentry *now,
                       const char *key, struct meta_dentry *ret)
{
    const struct meta_dentry *was = &rest->rep.was;
    bool object = was->flags & DENTRY_UPSTREAM, here = g_strcmp0(was->ukey, key) == 0;
    bool needs_object = rec->content == CONTENT_CLEAN || rec->base_key;
    if ((now->flags & DENTRY_UPSTREAM) && !now->ukey)
        return false; /* a version of what came was published there */
    if (object && !here && needs_object)
        return false;
    meta_dentry_copy(ret, was);
    g_clear_pointer(&ret->ukey, g_free);
    if (!object || !here) {
        ret->flags = (was->flags & ~(uint32_t)(DENTRY_UPSTREAM | DENTRY_DEST_KNOWN)) | (now->flags & DENTRY_DEST_KNOWN);
        ret->uetag = (struct etag){0};
        ret->dest_etag = now->dest_etag;
        ret->usize = ret->pub_vid = ret->pub_gen = 0;
        ret->token[0] = '\0';
    }
    return true;
}

/* The journal record of the one that came is that of the name again. */
static int journal_again(struct fs *fs, struct meta_batch *b, const struct meta_inode *rec, struct meta_dentry *d,
                         uint64_t now_seq)
{
    bool wants = d->op_seq != 0, closed = rec->content == CONTENT_SEALED || rec->content == CONTENT_CLEAN;
    d->op_seq = wants ? now_seq : 0;
    if (!wants && now_seq)
        meta_op_del(b, now_seq);
    return wants && closed ? recover_journal_name(fs, b, d, 0) : 0;
}

/* Without its name: what is left of it goes with what has none. */
static void drop_lost(struct fs *fs, struct meta_batch *b, struct meta_inode *lost)
{
    lost->nlink -= lost->nlink > 0;
    if (lost->nlink == 0) {
        lost->flags |= INODE_ORPHAN;
        local_forget(fs, b, lost->ino);
        meta_orphan_put(b, lost->ino, NULL);
    }
    meta_inode_put(b, lost);
}

/* That of a file that was open was taken away. */
static void write_intent(struct fs *fs, const struct meta_inode *rec, const struct meta_dentry *d, const char *path)
{
    struct cfile *cf = NULL;
    struct cache_source src = {.key = rec->base_key, .etag = rec->base_etag, .limit = rec->base_limit};
    if (rec->content == CONTENT_CLEAN || !rec->vid ||
        cache_file_open(fs->cache, rec->vid, rec->ino, rec->size, &src, &cf) < 0)
        return;
    char *text = intent_text(rec, path, d, !cache_file_complete(cf));
    if (!text || cache_file_set_intent(cf, text) < 0)
        log_warn("recover", "intent could not be written beside the data path='%s'", path);
    free(text);
    cache_file_unref(cf);
}

static int give_back(struct fs *fs, const struct rest *rest, struct meta_inode *rec, const struct meta_dentry *now,
                     struct meta_inode *lost)
{
    struct meta_dentry d = {0};
    mutex_lock(&fs->ns);
    g_autofree char *key = tree_key(fs, now->parent, now->name, false);
    mutex_unlock(&fs->ns);
    if (!name_again(rest, rec, now, key, &d))
        return 0;
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_dentry_del(b, now);
    int r = journal_again(fs, b, rec, &d, now->op_seq);
    d.stamp = meta_next_seq(fs->meta);
    meta_dentry_put(b, &d);
    rec->nlink = 1;
    rec->flags &= ~(uint32_t)INODE_ORPHAN;
    rec->parent = 0;
    rec->ctime_ns = clock_wall_ns();
    meta_inode_put(b, rec);
    meta_orphan_del(b, rec->ino);
    if (local_is(fs, key))
        local_note(fs, b, rec->ino);
    drop_lost(fs, b, lost);
    if (r == 0)
        r = meta_commit(b, false);
    meta_batch_free(b);
    if (r == 0) {
        log_err(
            "recover",
            "what was renamed over a file did not reach the disk before the machine went down, the file is back path='%s'",
            key);
        write_intent(fs, rec, &d, key);
    }
    meta_dentry_clear(&d);
    return r;
}

/* The last whole one of those that had the name of what the power loss took. */
static int give_back_before(struct fs *fs, const GPtrArray *all, const struct meta_dentry *now, struct meta_inode *lost)
{
    const struct rest *rest = before(all, now->ino, now);
    int r = 0;
    for (unsigned i = 0; r == 0 && rest && i < all->len; i++) {
        struct meta_inode rec = {0};
        r = meta_inode_get(fs->meta, rest->ino, &rec);
        bool whole = r == 0 && is_whole(&rec);
        if (whole)
            r = give_back(fs, rest, &rec, now, lost);
        meta_inode_clear(&rec);
        if (whole)
            return r;
        r = r == -ENOENT ? 0 : r;
        rest = before(all, rest->ino, now);
    }
    return r;
}

static int look(struct fs *fs, const GPtrArray *all, const struct rest *rest)
{
    struct meta_dentry now = {0};
    struct meta_inode rec = {0};
    int r = meta_dentry_get(fs->meta, rest->rep.was.parent, rest->rep.was.name, &now);
    if (r == 0)
        r = meta_inode_get(fs->meta, now.ino, &rec);
    bool changed = rec.content != CONTENT_CLEAN && rec.content != CONTENT_QUARANTINED;
    if (r == 0 && changed && recover_lost_with_power(&rec))
        r = give_back_before(fs, all, &now, &rec);
    meta_inode_clear(&rec);
    meta_dentry_clear(&now);
    return r == -ENOENT ? 0 : r;
}

int replaced_recover(struct fs *fs)
{
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func(rest_free);
    int r = meta_orphan_each(fs->meta, collect, all);
    for (unsigned i = 0; r == 0 && i < all->len; i++)
        r = look(fs, all, all->pdata[i]);
    return r;
}
