/* See content_record.h. */
#include "content_record.h"

#include "base/crash.h"
#include "content.h"
#include "publish.h"
#include "states.h"
#include "tree.h"

#include <stdlib.h>

static void open_name(uint64_t ino, char buf[32])
{
    g_snprintf(buf, 32, "open/%016" G_GINT64_MODIFIER "x", ino);
}

static void open_del(struct meta_batch *b, uint64_t ino)
{
    char name[32];
    open_name(ino, name);
    meta_value_del(b, name);
}

static void open_put(struct meta_batch *b, uint64_t ino, const struct io_kept *kept)
{
    char name[32];
    open_name(ino, name);
    g_autofree char *text =
        kept ? g_strdup_printf("%" G_GUINT64_FORMAT "\n%" G_GUINT64_FORMAT "\n%" G_GINT64_FORMAT "\n%s\n%s",
                               kept->limit, kept->gen, kept->ctime_ns, kept->etag.s, kept->key)
             : g_strdup("");
    meta_value_put(b, name, text, strlen(text));
}

static struct io_kept *parse_kept(const char *text)
{
    enum { LIMIT, GEN, CTIME, ETAG, KEY, N_LINES };
    g_auto(GStrv) lines = g_strsplit(text, "\n", N_LINES); /* the key may hold newlines */
    if (g_strv_length(lines) != N_LINES || strlen(lines[ETAG]) >= sizeof(((struct etag *)0)->s))
        return NULL;
    struct io_kept *kept = g_new0(struct io_kept, 1);
    kept->key = g_strdup(lines[KEY]);
    kept->limit = strtoull(lines[LIMIT], NULL, 10);
    kept->gen = strtoull(lines[GEN], NULL, 10);
    kept->ctime_ns = strtoll(lines[CTIME], NULL, 10);
    g_strlcpy(kept->etag.s, lines[ETAG], sizeof(kept->etag.s));
    return kept;
}

struct io_kept *content_kept(struct inode *in)
{
    char name[32];
    GBytes *value = NULL;
    gsize len;
    open_name(in->ino, name);
    if (meta_value_get(in->fs->meta, name, &value) < 0)
        return NULL;
    const char *data = g_bytes_get_data(value, &len);
    g_autofree char *text = g_strndup(data, len);
    g_bytes_unref(value);
    return parse_kept(text);
}

/* Journal records for every name of the inode; missing_only: it is sealed now, and only those that have none, or one of attributes, need one. Under ns. */
static int journal_names(struct fs *fs, struct meta_batch *b, uint64_t ino, bool missing_only) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_link_list(fs->meta, ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        if (missing_only && d->op_seq && !publish_is_of_attributes(fs, d->op_seq)) {
            publish_note_closed(fs, b, d);
            continue;
        }
        publish_name(fs, b, d, PUBLISH_CONTENT);
        d->stamp = meta_next_seq(fs->meta);
        meta_dentry_put(b, d);
    }
    return r;
}

/* The same of content that was closed before, and is the same; shown: as it is upstream. */
static int journal_again(struct fs *fs, struct meta_batch *b, uint64_t ino, bool shown) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_link_list(fs->meta, ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        bool none = d->op_seq == 0;
        publish_renew(fs, b, d);
        if (shown && none)
            publish_first(fs, b, d);
        d->stamp = meta_next_seq(fs->meta);
        meta_dentry_put(b, d);
    }
    return r;
}

/* ---- all or nothing ---- */

/* What these functions set in memory, as it was before. */
struct before {
    struct meta_inode rec; /* owned */
    bool changed;
    uint64_t flushed_changes;
};

static void save_locked(struct inode *in, struct before *ret) REQUIRES(in->mu)
{
    meta_inode_copy(&ret->rec, &in->rec);
    ret->changed = in->changed;
    ret->flushed_changes = in->flushed_changes;
}

/* Size, times and attributes are not ours: they may have changed meanwhile. */
static void put_back_locked(struct inode *in, struct before *before) REQUIRES(in->mu)
{
    struct meta_inode *rec = &in->rec, *old = &before->rec;
    rec->content = old->content;
    rec->gen = old->gen;
    rec->vid = old->vid;
    rec->dirty_since_ns = old->dirty_since_ns;
    g_strlcpy(rec->boot_id, old->boot_id, sizeof(rec->boot_id));
    rec->flags = (rec->flags & ~(uint32_t)INODE_DATA_SYNCED) | (old->flags & INODE_DATA_SYNCED);
    g_free(rec->base_key);
    rec->base_key = g_steal_pointer(&old->base_key);
    rec->base_etag = old->base_etag;
    rec->base_limit = old->base_limit;
    in->changed |= before->changed;
    in->flushed_changes = before->flushed_changes;
}

/* Commits the batch if r is 0 so far. What cannot be stored is not so in memory either: nothing may rest on it. */
static int commit(struct fs *fs, struct inode *in, struct meta_batch *b, int r, struct before *before) REQUIRES(fs->ns)
{
    if (r == 0)
        r = meta_commit(b, false);
    if (r < 0) {
        mutex_lock(&in->mu);
        put_back_locked(in, before);
        mutex_unlock(&in->mu);
    }
    publish_apply(fs, r == 0);
    meta_inode_clear(&before->rec);
    return r;
}

int record_vid(struct inode *in, uint64_t vid)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    in->rec.vid = vid;
    if (!in->gone)
        meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    int r = commit(fs, in, b, 0, &before);
    mutex_unlock(&fs->ns);
    CRASH_POINT(vid_recorded);
    meta_batch_free(b);
    return r;
}

int content_set_base(struct inode *in, const struct cache_source *src)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    struct meta_inode *rec = &in->rec;
    int r = in->gone || rec->nlink == 0 ? -ENOENT : 0;
    if (r == 0) {
        g_free(rec->base_key);
        rec->base_key = g_strdup(src->key);
        rec->base_etag = src->etag;
        rec->base_limit = src->limit;
        in->copying = src->key != NULL;
        meta_inode_put(b, rec);
    }
    mutex_unlock(&in->mu);
    if (r == 0)
        r = journal_names(fs, b, in->ino, false);
    r = commit(fs, in, b, r, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

/* ---- states ---- */

/* What its writer closed is upstream, as a snapshot, though the journal does not say so yet: nobody has to wait for who opened it again. */
static int let_go_shown(struct fs *fs, struct meta_batch *b, const struct meta_inode *closed) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_link_list(fs->meta, closed->ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        if ((d->flags & DENTRY_UPSTREAM) && !d->ukey && d->pub_vid == closed->vid && d->pub_gen == closed->gen)
            publish_note_shown(fs, b, d);
    }
    return r;
}

int record_open(struct inode *in)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    struct meta_inode *rec = &in->rec;
    bool sealed = rec->content == CONTENT_SEALED;
    if (rec->content != CONTENT_OPEN || in->snap_gen == rec->gen)
        rec->gen++;
    if (rec->content == CONTENT_CLEAN || rec->content == CONTENT_QUARANTINED)
        rec->flags &= ~(uint32_t)INODE_DATA_SYNCED;
    int r = content_move(rec, CONTENT_OPEN);
    in->changed = true;
    if (!rec->dirty_since_ns)
        rec->dirty_since_ns = clock_wall_ns();
    g_strlcpy(rec->boot_id, clock_boot_id(), sizeof(rec->boot_id));
    if (!in->gone) {
        meta_inode_put(b, rec);
        open_put(b, in->ino, in->io.kept);
    }
    mutex_unlock(&in->mu);
    if (r == 0 && sealed)
        r = let_go_shown(fs, b, &before.rec);
    r = commit(fs, in, b, r, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

static void note_synced_locked(struct inode *in) REQUIRES(in->mu)
{
    bool synced = in->synced_changes == in->n_changes + 1;
    in->rec.flags = synced ? in->rec.flags | INODE_DATA_SYNCED : in->rec.flags & ~(uint32_t)INODE_DATA_SYNCED;
}

int record_closing(struct inode *in)
{
    struct fs *fs = in->fs;
    uint64_t limit = cache_file_limit(in->cf);
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    struct meta_inode *rec = &in->rec;
    if (in->changed && in->snap_gen == rec->gen)
        rec->gen++;
    rec->base_limit = limit;
    in->flushed_changes = in->n_changes;
    in->copying = false;
    if (limit == 0)
        g_clear_pointer(&rec->base_key, g_free);
    note_synced_locked(in);
    int r = content_move(rec, CONTENT_CLOSING);
    if (!in->gone)
        meta_inode_put(b, rec);
    mutex_unlock(&in->mu);
    if (r == 0)
        r = journal_names(fs, b, in->ino, false);
    r = commit(fs, in, b, r, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

int record_detached(struct inode *in, bool synced)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    struct meta_inode *rec = &in->rec;
    rec->gen++;
    bool shown = rec->content == CONTENT_CLEAN;
    int r = content_move(rec, CONTENT_OPEN);
    if (r == 0)
        r = content_move(rec, CONTENT_CLOSING);
    in->changed = true;
    synced = synced && in->synced_changes == in->n_changes + 1;
    in->flushed_changes = ++in->n_changes;
    in->synced_changes = synced ? in->n_changes + 1 : 0;
    note_synced_locked(in);
    if (!rec->dirty_since_ns)
        rec->dirty_since_ns = clock_wall_ns();
    g_strlcpy(rec->boot_id, clock_boot_id(), sizeof(rec->boot_id));
    g_clear_pointer(&rec->base_key, g_free);
    rec->base_limit = 0;
    if (!in->gone) {
        meta_inode_put(b, rec);
        open_put(b, in->ino, NULL);
    }
    mutex_unlock(&in->mu);
    if (r == 0)
        r = journal_again(fs, b, in->ino, shown);
    r = commit(fs, in, b, r, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

int record_sealed(struct inode *in)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    if (in->changed && in->snap_gen == in->rec.gen)
        in->rec.gen++; /* a write that began before a snapshot and ended after it: two contents never share a token */
    in->flushed_changes = in->n_changes;
    note_synced_locked(in);
    int r = content_move(&in->rec, CONTENT_SEALED);
    if (!in->gone)
        meta_inode_put(b, &in->rec);
    open_del(b, in->ino);
    mutex_unlock(&in->mu);
    if (r == 0)
        r = journal_names(fs, b, in->ino, true); /* a snapshot may have used up the record */
    r = commit(fs, in, b, r, &before);
    mutex_lock(&in->mu);
    if (r == 0) {
        in->rewriters = false;
        in->sealed_changes = in->n_changes;
    }
    mutex_unlock(&in->mu);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

int record_quarantined(struct inode *in)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    int r = content_move(&in->rec, CONTENT_QUARANTINED);
    if (!in->gone)
        meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    r = commit(fs, in, b, r, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

int record_synced(struct inode *in)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    if (in->rec.content == CONTENT_OPEN)
        in->rec.flags |= INODE_DATA_SYNCED;
    else
        note_synced_locked(in);
    if (!in->gone)
        meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    int r = commit(fs, in, b, 0, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

/* open: "open/INO" becomes kept. */
static int store(struct inode *in, bool open, const struct io_kept *kept)
{
    struct fs *fs = in->fs;
    uint64_t limit = cache_file_limit(in->cf);
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    save_locked(in, &before);
    in->rec.base_limit = limit;
    bool lets_go = in->rec.base_key && !cache_file_has_source(in->cf);
    if (lets_go)
        g_clear_pointer(&in->rec.base_key, g_free);
    if (!in->gone)
        meta_inode_put(b, &in->rec);
    if (!in->gone && open)
        open_put(b, in->ino, kept);
    mutex_unlock(&in->mu);
    if (lets_go)
        publish_rebased(fs, in->ino, NULL);
    int r = commit(fs, in, b, 0, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

int content_store(struct inode *in)
{
    return store(in, false, NULL);
}

int content_put_away(struct inode *in, const struct io_kept *kept)
{
    return store(in, true, kept);
}

/* Whether the origin that was put away still is what the names stand for: no flush, rename, copy or new attribute came in between. */
static bool kept_holds(struct fs *fs, struct inode *in, const struct io_kept *kept) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    mutex_lock(&in->mu);
    bool same = in->rec.content == CONTENT_OPEN && in->rec.gen == kept->gen + 1 && in->rec.ctime_ns == kept->ctime_ns;
    mutex_unlock(&in->mu);
    bool found = false;
    same = same && meta_link_list(fs->meta, in->ino, &names) == 0;
    for (unsigned i = 0; same && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        g_autofree char *key = tree_key(fs, d->parent, d->name, false);
        same = d->op_seq == 0 && (d->flags & DENTRY_UPSTREAM) && !d->ukey;
        found = found || (g_str_equal(key, kept->key) && etag_equal(&d->uetag, &kept->etag));
    }
    return same && found;
}

int record_restored(struct inode *in, const struct io_kept *kept)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    if (!kept_holds(fs, in, kept)) {
        mutex_unlock(&fs->ns);
        meta_batch_free(b);
        return 1;
    }
    mutex_lock(&in->mu);
    save_locked(in, &before);
    struct meta_inode *rec = &in->rec;
    int r = content_move(rec, CONTENT_CLEAN);
    g_free(rec->base_key);
    rec->base_key = g_strdup(kept->key);
    rec->base_etag = kept->etag;
    rec->base_limit = kept->limit;
    rec->gen = kept->gen;
    rec->dirty_since_ns = 0;
    rec->boot_id[0] = '\0';
    in->changed = false;
    if (!in->gone)
        meta_inode_put(b, rec);
    open_del(b, in->ino);
    mutex_unlock(&in->mu);
    r = commit(fs, in, b, r, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

void record_time_unset(struct inode *in)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    if (!in->gone)
        meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    int r = meta_commit(b, false);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (r < 0)
        log_warn("content", "a takeover would bring back a time that holds no more ino=%" G_GUINT64_FORMAT " r=%s",
                 in->ino, err_name(r));
}

int record_taken_over(struct inode *in, uint64_t size, int64_t mtime_ns)
{
    struct fs *fs = in->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    struct before before;
    mutex_lock(&fs->ns);
    bool holds = in->io.kept && kept_holds(fs, in, in->io.kept); /* then nothing was written, nor published */
    mutex_lock(&in->mu);
    save_locked(in, &before);
    struct meta_inode *rec = &in->rec;
    if (!holds)
        g_clear_pointer(&in->io.kept, io_kept_free);
    /* Perhaps it was seen before, by one who did not come to record it. */
    bool past_us = size > rec->size || (in->io.kernel_writes && mtime_ns > rec->mtime_ns);
    if (!holds && (rec->content == CONTENT_OPEN || past_us)) {
        rec->size = size;
        rec->mtime_ns = rec->flags & INODE_MTIME_SET ? rec->mtime_ns : mtime_ns;
        rec->ctime_ns = MAX(rec->ctime_ns, mtime_ns);
    }
    rec->gen += !holds;
    rec->base_limit = cache_file_limit(in->cf);
    in->changed = true;
    if (!in->gone) {
        meta_inode_put(b, rec);
        open_put(b, in->ino, in->io.kept);
    }
    mutex_unlock(&in->mu);
    int r = commit(fs, in, b, 0, &before);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}
