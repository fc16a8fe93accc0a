/*
 * Reading directories. Offsets are ids of names (+2, for "." and ".."): stable while names come and go.
 *
 * Who opens a directory that was never listed, and has more than a page of names, reads it while it is listed: new names have greater ids than all before. Such a handle has the id limit NAMES_COME,
 * and so has each READDIR where directories are not opened (--immutable): nothing is made there that would have to be kept from who reads already.
 */
#include "attach.h"
#include "no_open.h"
#include "op.h"
#include "request.h"
#include "tree.h"

#define DOT_ENTRIES 2
#define NAMES_COME  UINT64_MAX

/* No name changed anywhere since this directory was opened last: what the kernel kept of it is right. */
static bool seen_unchanged(struct inode *in)
{
    struct fs *fs = in->fs;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    uint64_t now = fs->ns_changes + 1;
    bool same = in->dir_seen == now;
    in->dir_seen = now;
    mutex_unlock(&in->mu);
    mutex_unlock(&fs->ns);
    return same;
}

static int list_first_page(struct fs *fs, struct inode *dir)
{
    uint64_t pages = 0;
    return tree_is_listed(dir) ? tree_refresh(fs, dir, false) : tree_list_follow(fs, dir, &pages);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    if (no_open_dirs(fs)) {
        reply_err(req, OP_ID_opendir, -ENOSYS);
        return;
    }
    INODE_REF in = NULL;
    struct handle *h = NULL;
    int r = inode_get(fs, ino, &in);
    if (r == 0 && !inode_is_dir(in))
        r = -ENOTDIR;
    if (r == 0 && in->rec.nlink > 0)
        r = list_first_page(fs, in);
    bool more = r > 0;
    if (r >= 0) {
        const struct sess_handle what = {.ino = ino, .dir = 1, .id_limit = more ? NAMES_COME : meta_next_ino(fs->meta)};
        r = handle_new(fs, in, &what, &h);
    }
    if (r < 0) {
        reply_err(req, OP_ID_opendir, r == -ENOENT ? -ESTALE : r);
        return;
    }
    fi->fh = h->fh;
    attach_replaces(fs, request_unique());
    fi->cache_readdir = !more;
    fi->keep_cache = !more && seen_unchanged(in);
    metric_inc(M_fuse_requests);
    if (fuse_reply_open(req, fi) == -ENOENT)
        handle_free(fs, fi->fh);
    else
        handle_opened(fs, fi->fh);
}

struct fill {
    fuse_req_t req;
    struct fs *fs;
    struct inode *dir;
    uint64_t id_limit;
    char *buf;
    size_t size, used;
    bool plus;
    double ttl;
};

static bool add_plain(struct fill *f, const char *name, uint64_t ino, uint32_t type, uint64_t next)
{
    struct stat st = {.st_ino = ino, .st_mode = type};
    size_t n = fuse_add_direntry(f->req, f->buf + f->used, f->size - f->used, name, &st, (off_t)next);
    if (n > f->size - f->used)
        return false;
    f->used += n;
    return true;
}

static bool add_plus(struct fill *f, const struct meta_dentry *d)
{
    INODE_REF in = NULL;
    struct fuse_entry_param e = {.attr = {.st_ino = d->ino, .st_mode = d->type}};
    bool have = inode_get(f->fs, d->ino, &in) == 0;
    if (have) {
        fill_entry(in, f->ttl, &e);
        inode_set_place(in, d);
    }
    size_t n =
        fuse_add_direntry_plus(f->req, f->buf + f->used, f->size - f->used, d->name, &e, (off_t)(d->id + DOT_ENTRIES));
    if (n > f->size - f->used)
        return false;
    f->used += n;
    if (have)
        inode_kernel_ref(in);
    return true;
}

static int fill_one(void *ctx, const struct meta_dentry *d)
{
    struct fill *f = ctx;
    if (d->id >= f->id_limit)
        return 1;
    bool ok = f->plus ? add_plus(f, d) : add_plain(f, d->name, d->ino, d->type, d->id + DOT_ENTRIES);
    return ok ? 0 : 1;
}

/* "." and ".." carry no attributes: the kernel has them. */
static bool fill_dots(struct fill *f, uint64_t *off)
{
    const uint64_t inos[] = {f->dir->ino, f->dir->ino == META_ROOT_INO ? META_ROOT_INO : f->dir->rec.parent};
    for (; *off < DOT_ENTRIES; (*off)++) {
        const char *name = *off == 0 ? "." : "..";
        struct fuse_entry_param e = {.attr = {.st_ino = inos[*off], .st_mode = S_IFDIR}};
        if (!f->plus && !add_plain(f, name, inos[*off], S_IFDIR, *off + 1))
            return false;
        if (f->plus) {
            size_t n = fuse_add_direntry_plus(f->req, f->buf + f->used, f->size - f->used, name, &e, (off_t)(*off + 1));
            if (n > f->size - f->used)
                return false;
            f->used += n;
        }
    }
    return true;
}

static int fill_names(struct fill *f, uint64_t at)
{
    uint64_t after = at > DOT_ENTRIES ? at - DOT_ENTRIES : 0;
    return MIN(meta_dentry_each(f->fs->meta, f->dir->ino, after, fill_one, f), 0);
}

/* The same for who may have the limit NAMES_COME: the names that are there, or the next ones that come. Nothing: all were read. */
static int fill_coming(struct fill *f, uint64_t at, struct sess_handle *slot)
{
    if (slot->id_limit != NAMES_COME)
        return fill_names(f, at);
    for (uint64_t pages = TREE_NO_PAGES;;) {
        int more = tree_list_follow(f->fs, f->dir, &pages);
        if (more < 0)
            return more;
        if (more == 0)
            f->id_limit = slot->id_limit = meta_next_ino(f->fs->meta);
        int r = fill_names(f, at);
        if (r < 0 || f->used > 0 || more == 0)
            return r;
    }
}

/* The directory of a READDIR that no OPENDIR came before; its first page is listed. */
static int find_unopened(struct fs *fs, uint64_t ino, off_t off, struct inode **ret)
{
    int r = inode_get(fs, ino, ret);
    if (r == 0 && !inode_is_dir(*ret))
        return -ENOTDIR;
    if (r == 0 && off == 0)
        r = MIN(list_first_page(fs, *ret), 0);
    return r == -ENOENT ? -ESTALE : r;
}

static void read_dir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi, bool plus)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h = no_open_dirs(fs) ? NULL : handle_get(fs, fi->fh);
    INODE_REF dir = NULL;
    int r = h && h->in ? 0 : no_open_dirs(fs) ? find_unopened(fs, ino, off, &dir) : -EBADF;
    if (r < 0) {
        reply_err(req, OP_ID_readdir, r);
        return;
    }
    g_autofree char *buf = g_malloc(size);
    struct fill f = {
        .req = req, .fs = fs, .dir = h ? h->in : dir, .id_limit = UINT64_MAX, .buf = buf, .size = size, .plus = plus};
    struct sess_handle unopened = {.id_limit = NAMES_COME};
    f.ttl = tree_ttl(fs, f.dir);
    uint64_t at = (uint64_t)off;
    if (h && at == 0 && h->slot->id_limit != NAMES_COME)
        h->slot->id_limit = meta_next_ino(fs->meta); /* rewound: what was made since is shown */
    if (h)
        f.id_limit = h->slot->id_limit;
    if (fill_dots(&f, &at))
        r = fill_coming(&f, at, h ? h->slot : &unopened);
    metric_inc(M_fuse_requests);
    if (r < 0 && f.used == 0)
        reply_err(req, OP_ID_readdir, r);
    else
        (void)fuse_reply_buf(req, buf, f.used); /* an interrupted request has nobody to tell */
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    read_dir(req, ino, size, off, fi, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    read_dir(req, ino, size, off, fi, true);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    handle_releasing(fs, fi->fh);
    reply_err(req, OP_ID_releasedir, 0);
    handle_free(fs, fi->fh);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    reply_err(req, OP_ID_fsyncdir, meta_sync(fs->meta));
}
