/*
 * Recovery at start, bounded by the number of unfinished files, not by the size of the lake:
 *  - "open/INO" values: files whose writer had not closed them, or whose close was journalled but not sealed. A CLOSING file is sealed as it is. An OPEN one
 *    keeps its bytes here and stays unpublished until somebody closes it again: its writer never said that it is whole. So does one of another boot whose writer
 *    had synced it.
 *  - "orphan/INO" values: removed while open; nobody can have them open now. One that another was renamed over gets its name back if that one was lost with
 *    the power, and goes once it is on the disk (replaced.h).
 *  - cache files marked dirty: closed content of another boot that was not on the disk when the machine went down is quarantined, never published, whether or not
 *    a journal record waits for it; that of a published file loses its mark, which the end of the daemon had left; that of a file which is no more goes.
 */
#include "recover.h"

#include "base/crash.h"
#include "content.h"
#include "durable.h"
#include "local.h"
#include "meta_orphan.h"
#include "replaced.h"
#include "states.h"
#include "tree.h"

#include <stdlib.h>

#define CLOSE_SLACK_NS (20 * (int64_t)NS_PER_MS) /* between a write's time on disk and in the record */

struct inos {
    GArray *list; /* uint64_t */
};

static int collect_ino(void *ctx, const char *name, const void *value, size_t len)
{
    const char *hex = strchr(name, '/');
    uint64_t ino = hex ? strtoull(hex + 1, NULL, 16) : 0;
    g_array_append_val(((struct inos *)ctx)->list, ino);
    return 0;
}

/* What was replaced goes once what came is on the disk (replaced.h). */
static int collect_orphan(void *ctx, uint64_t ino, const struct meta_replaced *rep)
{
    if (!rep->by)
        g_array_append_val((GArray *)ctx, ino);
    return 0;
}

static int drop_orphans(struct fs *fs)
{
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    int r = meta_orphan_each(fs->meta, collect_orphan, list);
    struct meta_batch *b = meta_batch_new(fs->meta);
    for (unsigned i = 0; r == 0 && i < list->len; i++) {
        uint64_t ino = g_array_index(list, uint64_t, i);
        struct meta_inode rec = {0};
        char name[32];
        if (meta_inode_get(fs->meta, ino, &rec) == 0 && rec.nlink == 0) {
            if (rec.vid)
                cache_forget(fs->cache, rec.vid);
            meta_inode_del(b, ino);
        }
        meta_inode_clear(&rec);
        meta_orphan_del(b, ino);
        g_snprintf(name, sizeof(name), "open/%016" G_GINT64_MODIFIER "x", ino);
        meta_value_del(b, name);
    }
    if (r == 0)
        r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

/* Size and mtime of a file that was open are those of its cache file. */
static int take_size(struct fs *fs, struct meta_inode *rec)
{
    struct cfile *cf = NULL;
    struct cache_source src = {.key = rec->base_key, .etag = rec->base_etag, .limit = rec->base_limit};
    if (!rec->vid)
        return 0;
    int r = cache_file_open(fs->cache, rec->vid, rec->ino, rec->size, &src, &cf);
    if (r < 0)
        return r;
    struct stat st;
    uint64_t size = cache_file_size(cf);
    int64_t mtime_ns = fstat(cache_file_fd(cf), &st) == 0 && !(rec->flags & INODE_MTIME_SET)
                           ? (int64_t)st.st_mtim.tv_sec * (int64_t)NS_PER_S + st.st_mtim.tv_nsec
                           : rec->mtime_ns;
    /* Written past us after a close, through another descriptor that was still open, or still can be: nobody said that this is whole. */
    bool news = size != rec->size || mtime_ns > rec->mtime_ns + CLOSE_SLACK_NS;
    if (rec->content == CONTENT_CLOSING && (news || cache_file_has_writers(cf)))
        r = content_move(rec, CONTENT_OPEN);
    rec->size = size;
    rec->base_limit = cache_file_limit(cf);
    rec->mtime_ns = mtime_ns;
    cache_file_unref(cf);
    return r;
}

static int collect_name(void *ctx, const struct meta_dentry *d)
{
    if (d->parent != META_ASIDE_INO)
        meta_dentry_collect(ctx, d);
    return 0;
}

/* What the publisher does with a file that is closed (publish_note_closed()): what was closed later waits for it, also when it is opened again. */
static int note_closed(struct fs *fs, struct meta_batch *b, uint64_t op_seq, int err)
{
    struct meta_op op = {0};
    int r = meta_op_get(fs->meta, op_seq, &op);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    bool park = err && op.state != OPS_CONFLICT && op_move(&op, OPS_PARKED) == 0;
    if (op.place == 0 || op.unclosed || park) {
        op.place = op.place ? op.place : op.seq;
        op.unclosed = false;
        op.err = park ? err : op.err;
        meta_op_put(b, &op);
    }
    meta_op_clear(&op);
    return 0;
}

int recover_journal_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, int err)
{
    if (d->op_seq)
        return note_closed(fs, b, d->op_seq, err);
    struct meta_op op = {
        .seq = meta_next_seq(fs->meta),
        .kind = OP_SYNC,
        .state = err ? OPS_PARKED : OPS_QUEUED,
        .err = err,
        .parent = d->parent,
        .name = d->name,
        .created_ns = clock_wall_ns(),
    };
    op.place = op.seq;
    meta_op_put(b, &op);
    d->op_seq = d->stamp = op.seq;
    meta_dentry_put(b, d);
    return 0;
}

int recover_journal_names(struct fs *fs, struct meta_batch *b, uint64_t ino, int err)
{
    g_autoptr(GPtrArray) names = meta_dentry_array();
    int r = meta_link_each(fs->meta, ino, collect_name, names);
    for (unsigned i = 0; r == 0 && i < names->len; i++)
        r = recover_journal_name(fs, b, names->pdata[i], err);
    return r;
}

bool recover_lost_with_power(const struct meta_inode *rec)
{
    return rec->boot_id[0] && strcmp(rec->boot_id, clock_boot_id()) != 0 && !(rec->flags & INODE_DATA_SYNCED);
}

static int settle_open(struct fs *fs, struct meta_batch *b, uint64_t ino)
{
    struct meta_inode rec = {0};
    char name[32];
    g_snprintf(name, sizeof(name), "open/%016" G_GINT64_MODIFIER "x", ino);
    int r = meta_inode_get(fs->meta, ino, &rec);
    if (r == -ENOENT) {
        meta_value_del(b, name);
        return 0;
    }
    if (r < 0)
        return r;
    bool lost = recover_lost_with_power(&rec);
    r = rec.content == CONTENT_OPEN || rec.content == CONTENT_CLOSING ? take_size(fs, &rec) : 0;
    if (r == -EIO && !lost) { /* its disk is not there: the start that has it settles this */
        meta_inode_clear(&rec);
        return 0;
    }
    lost |= r < 0;
    r = 0;
    if (lost) {
        log_err("recover", "unpublished content did not survive, it is quarantined ino=%" G_GUINT64_FORMAT, ino);
        (void)content_quarantine(&rec);
    } else if (rec.content == CONTENT_CLOSING) {
        rec.gen++; /* as below: what came after the snapshot need not show in size and time */
        r = content_move(&rec, CONTENT_SEALED);
        r = r < 0 ? r : recover_journal_names(fs, b, ino, 0);
    } else if (rec.content == CONTENT_OPEN) {
        rec.gen++; /* a snapshot of the present generation may be published: what is written from now on is another */
        g_strlcpy(rec.boot_id, clock_boot_id(), sizeof(rec.boot_id)); /* what its writer had synced is what is here */
    }
    if (rec.content == CONTENT_OPEN)
        log_warn(
            "recover",
            "a file was being written when the daemon ended; it is kept here and published after its next close ino=%" G_GUINT64_FORMAT,
            ino);
    else
        meta_value_del(b, name);
    local_note_again(fs, b, ino);
    meta_inode_put(b, &rec);
    meta_inode_clear(&rec);
    return r;
}

static int settle_open_files(struct fs *fs)
{
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct inos c = {list};
    int r = meta_value_each(fs->meta, "open/", collect_ino, &c);
    struct meta_batch *b = meta_batch_new(fs->meta);
    for (unsigned i = 0; r == 0 && i < list->len; i++)
        r = settle_open(fs, b, g_array_index(list, uint64_t, i));
    if (r == 0)
        r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

/* Published, but for what the cache is told of it. Where its file is gone, as an earlier version let it go before that was on the disk, the object has all of it. */
static void end_publish(struct fs *fs, const struct meta_inode *rec)
{
    struct cfile *cf = NULL;
    struct cache_source src = {.key = rec->base_key, .etag = rec->base_etag, .limit = rec->base_limit};
    int r = cache_file_open(fs->cache, rec->vid, rec->ino, rec->size, &src, &cf);
    if (r == 0)
        r = cache_file_set_published(cf, &src);
    if (r == -ENODATA)
        cache_forget(fs->cache, rec->vid);
    if (r < 0) /* its disk is not there, say: the next start tries again */
        log_debug("recover", "cache file could not be marked clean ino=%" G_GUINT64_FORMAT " r=%s", rec->ino,
                  err_name(r));
    cache_file_unref(cf);
}

struct check_dirty {
    struct fs *fs;
    struct meta_batch *b;
    struct meta_near *near;
};

static int check_dirty(void *ctx, uint64_t vid, uint64_t ino)
{
    struct check_dirty *c = ctx;
    struct meta_inode rec = {0};
    int r = meta_near_inode(c->near, ino, &rec);
    if (r == -ENOENT)
        cache_forget(c->fs->cache, vid);
    bool known = r == 0 && S_ISREG(rec.mode) && rec.vid == vid;
    if (r == 0 && !known) /* a kill came before its inode was stored with it: a later open makes another */
        cache_forget_empty(c->fs->cache, vid);
    if (known && rec.content == CONTENT_CLEAN && rec.base_key) {
        end_publish(c->fs, &rec);
    } else if (known && rec.content == CONTENT_SEALED && recover_lost_with_power(&rec)) {
        log_err(
            "recover",
            "unpublished content may not have reached the disk before the machine went down, it is quarantined ino=%" G_GUINT64_FORMAT,
            ino);
        (void)content_quarantine(&rec);
        meta_inode_put(c->b, &rec);
    } else if (known && rec.content == CONTENT_SEALED && !(rec.flags & INODE_DATA_SYNCED)) {
        durable_note(c->fs, ino);
    }
    meta_inode_clear(&rec);
    return r == -ENOENT ? 0 : r;
}

static int settle_dirty(struct fs *fs)
{
    struct check_dirty c = {fs, meta_batch_new(fs->meta), meta_near_new(fs->meta)};
    int r = cache_dirty_each(fs->cache, check_dirty, &c);
    if (r == 0)
        r = meta_commit(c.b, false);
    meta_batch_free(c.b);
    meta_near_free(c.near);
    return r;
}

int fs_recover(struct fs *fs)
{
    bool takeover = session_is_takeover(fs->session);
    int r = takeover ? 0 : replaced_recover(fs);
    if (r == 0 && !takeover)
        r = drop_orphans(fs);
    CRASH_POINT(recover_orphans);
    if (r == 0 && !takeover)
        r = settle_open_files(fs);
    CRASH_POINT(recover_open);
    if (r == 0)
        r = settle_dirty(fs);
    CRASH_POINT(recover_dirty);
    return r;
}

static int each(struct fs *fs, const char *prefix, void (*fn)(struct fs *fs, uint64_t ino))
{
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct inos c = {list};
    int r = meta_value_each(fs->meta, prefix, collect_ino, &c);
    for (unsigned i = 0; r == 0 && i < list->len; i++)
        fn(fs, g_array_index(list, uint64_t, i));
    return r;
}

int recover_open_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t ino))
{
    return each(fs, "open/", fn);
}

int recover_orphan_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t ino))
{
    return each(fs, "orphan/", fn);
}

bool recover_find_unclosed(struct fs *fs, const char *path, char **ret_path)
{
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct inos c = {list};
    int r = meta_value_each(fs->meta, "open/", collect_ino, &c);
    if (r < 0)
        log_warn("recover", "files left open are not known r=%s", err_name(r));
    for (unsigned i = 0; i < list->len; i++) {
        INODE_REF in = NULL;
        g_autofree char *at = NULL;
        if (inode_get(fs, g_array_index(list, uint64_t, i), &in) < 0 || !content_is_unclosed(in) ||
            tree_path_of(fs, in->ino, &at) < 0 || !tree_path_below(at, path) || local_is(fs, at))
            continue;
        if (ret_path)
            *ret_path = g_steal_pointer(&at);
        return true;
    }
    return false;
}
