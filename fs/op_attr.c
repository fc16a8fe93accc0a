/* Attributes: getattr, setattr. */
#include "base/crash.h"
#include "content.h"
#include "io_mode.h"
#include "links.h"
#include "mapped.h"
#include "op.h"
#include "publish.h"
#include "rules.h"
#include "shadow.h"
#include "tree.h"

#define FITS_ALL_BYTES (5ull << 40) /* an object of S3; no store takes less */

static void reply_attr(fuse_req_t req, struct inode *in)
{
    struct stat st;
    inode_stat(in, &st);
    metric_inc(M_fuse_requests);
    (void)fuse_reply_attr(req, &st,
                          (double)rules_of(in)->metadata_ttl_ns /
                              (double)NS_PER_S); /* an interrupted request has nobody to tell */
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    if (virt_is(ino)) {
        struct stat st;
        virt_stat(fs, ino, &st);
        (void)fuse_reply_attr(req, &st, 0); /* as above */
        return;
    }
    struct handle *h = fi ? handle_get(fs, fi->fh) : NULL;
    INODE_REF in = NULL;
    int r = h && h->in && h->in->ino == ino ? 0 : inode_get(fs, ino, &in);
    if (r == 0 && !in)
        in = inode_ref(h->in);
    if (r < 0)
        reply_err(req, OP_ID_getattr, r == -ENOENT ? -ESTALE : r);
    else
        reply_attr(req, in);
}

/* Times are kept as 64-bit nanoseconds: the years 1678 to 2262; others become the nearest of these. */
static int64_t from_timespec(const struct timespec *t)
{
    if (t->tv_sec >= INT64_MAX / (int64_t)NS_PER_S)
        return INT64_MAX;
    if (t->tv_sec <= INT64_MIN / (int64_t)NS_PER_S)
        return INT64_MIN + 1;
    return (int64_t)t->tv_sec * (int64_t)NS_PER_S + t->tv_nsec;
}

static void apply_attr(struct meta_inode *rec, const struct stat *st, int set)
{
    int64_t now = clock_wall_ns();
    if (set & FUSE_SET_ATTR_MODE)
        rec->mode = (rec->mode & S_IFMT) | (st->st_mode & 07777);
    if (set & FUSE_SET_ATTR_UID)
        rec->uid = st->st_uid;
    if (set & FUSE_SET_ATTR_GID)
        rec->gid = st->st_gid;
    bool chowned = (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) && S_ISREG(rec->mode) && !(set & FUSE_SET_ATTR_MODE);
    if (chowned || (set & FUSE_SET_ATTR_KILL_SUID))
        rec->mode &= ~(uint32_t)(S_ISUID | ((rec->mode & S_IXGRP) ? S_ISGID : 0));
    if (set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        rec->flags |= INODE_MODE_KNOWN;
    if (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        rec->flags &= ~(uint32_t)INODE_OWNER_UNKNOWN;
    if (set & FUSE_SET_ATTR_MTIME_NOW)
        rec->mtime_ns = now;
    else if (set & FUSE_SET_ATTR_MTIME)
        rec->mtime_ns = from_timespec(&st->st_mtim);
    if (set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW))
        rec->flags |= INODE_MTIME_KNOWN | INODE_MTIME_SET;
    rec->ctime_ns = now;
}

/* Will the name's next publish send its attributes anyway, or is the lack of them marked? No if a snapshot of this very content is there already. */
static bool attr_goes_along(const struct meta_dentry *d, const struct meta_inode *rec)
{
    bool snapshot = (d->flags & DENTRY_UPSTREAM) && d->pub_gen && d->pub_vid == rec->vid && d->pub_gen == rec->gen;
    return (d->flags & DENTRY_META_DIRTY) || (d->op_seq == 0 && !snapshot);
}

/*
 * Names whose objects carry the old metadata get a journal record. Content that is still to be published takes the metadata along, if its upload has not
 * read it yet: whoever records the upload sees by the mark that there may be more to do. So does a name whose object is still to be copied from that of another one: only what is marked is
 * given metadata of its own.
 */
static int journal_meta(struct fs *fs, struct meta_batch *b, struct inode *in) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    int r = meta_link_list(fs->meta, in->ino, &names);
    bool clean = in->rec.content == CONTENT_CLEAN; /* changes under ns only */
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        bool upstream = d->flags & DENTRY_UPSTREAM;
        if (!clean && attr_goes_along(d, &in->rec))
            continue;
        d->flags |= DENTRY_META_DIRTY;
        if (clean && upstream)
            publish_name(fs, b, d, PUBLISH_META);
        d->stamp = meta_next_seq(fs->meta);
        meta_dentry_put(b, d);
    }
    return r;
}

/* Whether objects that carry the one carry the other; they carry no setuid. */
static bool same_upstream(const struct meta_inode *a, const struct meta_inode *b)
{
    return ((a->mode ^ b->mode) & ~(uint32_t)(S_ISUID | S_ISGID)) == 0 && a->uid == b->uid && a->gid == b->gid &&
           a->mtime_ns == b->mtime_ns && (a->flags & INODE_MTIME_SET) == (b->flags & INODE_MTIME_SET);
}

#define ATTR_FLAGS (uint32_t)(INODE_MODE_KNOWN | INODE_MTIME_KNOWN | INODE_MTIME_SET)

/* What cannot be stored is not so in memory either. */
static void put_back(struct inode *in, const struct meta_inode *old)
{
    mutex_lock(&in->mu);
    struct meta_inode *rec = &in->rec;
    rec->mode = old->mode;
    rec->uid = old->uid;
    rec->gid = old->gid;
    rec->mtime_ns = old->mtime_ns;
    rec->ctime_ns = old->ctime_ns;
    rec->flags = (rec->flags & ~ATTR_FLAGS) | (old->flags & ATTR_FLAGS);
    mutex_unlock(&in->mu);
}

int attr_store(struct inode *in, const struct stat *st, int set)
{
    struct fs *fs = in->fs;
    (void)io_mode_look(in); /* what the kernel wrote until now is older than a time set now */
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    const struct meta_inode old = in->rec; /* its numbers: the strings are the record's */
    int r = !(set & FUSE_SET_ATTR_KILL_SUID) && (in->rec.flags & INODE_NAME_LOST) ? -ESTALE : 0;
    if (r == 0)
        apply_attr(&in->rec, st, set);
    bool differs = S_ISREG(in->rec.mode) && !same_upstream(&old, &in->rec);
    if (r == 0 && !in->gone)
        meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    if (differs)
        r = journal_meta(fs, b, in);
    if (r == 0)
        r = meta_commit(b, false);
    if (r < 0)
        put_back(in, &old);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

int attr_kill_suid(struct inode *in, const struct fuse_ctx *ctx)
{
    mutex_lock(&in->mu);
    bool has = mode_has_suid(in->rec.mode);
    mutex_unlock(&in->mu);
    return ctx->uid != 0 && has ? attr_store(in, &(struct stat){0}, FUSE_SET_ATTR_KILL_SUID) : 0;
}

/* Where the file is or goes; of one without a name the directory of its link. "" else. Owned. */
static char *key_of(struct inode *in)
{
    char *path = NULL;
    if (tree_path_of(in->fs, in->ino, &path) == 0)
        return path;
    uint64_t point = links_point_of(in->fs, in->ino);
    g_autofree char *dir = tree_path_of(in->fs, point, &path) == 0 ? path : g_strdup("");
    return g_strconcat(dir, *dir ? "/" : NULL, NULL);
}

int attr_check_size(struct inode *in, uint64_t end)
{
    if (end <= FITS_ALL_BYTES) /* most of the time: the path is not looked up for each write */
        return 0;
    g_autofree char *key = key_of(in);
    return end > objstore_limits_of(in->fs->store, key).object_max_bytes ? -EFBIG : 0;
}

int attr_set_size(struct inode *in, struct handle *h, const struct fuse_ctx *ctx, uint64_t size)
{
    int r = attr_check_size(in, size);
    if (r < 0)
        return r;
    if (h && h->in && h->slot->writable) {
        r = content_truncate(in, size);
        if (r == 0)
            atomic_store(&h->slot->wrote, true);
    } else {
        r = content_open(in, true, false);
        if (r < 0)
            return r;
        r = content_truncate(in, size);
        if (r == 0)
            r = content_flush(in, rules_of(in)->close == CLOSE_LOCAL);
        mapped_flushed(in);
        content_release(in, true);
    }
    if (r == 0)
        r = attr_kill_suid(in, ctx);
    return r;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    int r = virt_is(ino) ? -EPERM : links_may_change(fs, ino);
    if (r < 0) {
        reply_err(req, OP_ID_setattr, r);
        return;
    }
    INODE_REF in = NULL;
    r = inode_get(fs, ino, &in);
    if (r == 0)
        r = shadow_check_change(in);
    if (r == 0 && (to_set & FUSE_SET_ATTR_SIZE))
        r = S_ISREG(in->rec.mode)
                ? attr_set_size(in, fi ? handle_get(fs, fi->fh) : NULL, fuse_req_ctx(req), (uint64_t)attr->st_size)
                : -EISDIR;
    int rest = to_set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID | FUSE_SET_ATTR_MTIME |
                         FUSE_SET_ATTR_MTIME_NOW); /* no atime: it is not kept */
    if (r == 0 && rest)
        r = attr_store(in, attr, rest);
    CRASH_POINT(reply_setattr);
    if (r < 0)
        reply_err(req, OP_ID_setattr, r == -ENOENT ? -ESTALE : r);
    else
        reply_attr(req, in);
}
