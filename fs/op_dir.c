/*
 * Reading directories. Offsets are ids of names (+2, for "." and ".."): stable while names come and go.
 *
 * Who opens a directory that was never listed, and has more than a page of names, reads it while it is listed: new names have greater ids than all before. Such a handle has the id limit NAMES_COME,
 * and so has each READDIR where directories are not opened (--immutable): nothing is made there that would have to be kept from who reads already.
 */
#include "attach.h"
#include "links.h"
#include "no_open.h"
#include "op.h"
#include "request.h"
#include "tree.h"

#define DOT_ENTRIES 2
#define NAMES_COME  UINT64_MAX

/*
 * What the kernel keeps of a directory is what handles read of it one after another since it was told to forget (an open without keep_cache), and is taken for all once one of them
 * got nothing more. Names come with greater ids only, so before that end it can lack none that was read past. Hence, as of names_version(), which any other change moves on:
 *  - dir_fresh: it was told to forget, and nobody got to an end since: it has the first names;
 *  - dir_seen: it has all names: the one end that may have made it so was at the last name there was, and none was listed since (that sets it to 0).
 */

/* Changes of names anywhere, but for those that listings added, which concern their directory only. Never 0. */
static uint64_t names_version(const struct fs *fs) REQUIRES(fs->ns)
{
    return fs->ns_changes - fs->ns_listed + 1;
}

/* Whether what the kernel keeps is right; else the open tells it to forget. more: names come while it is read. */
static bool note_open(struct inode *in, bool more)
{
    struct fs *fs = in->fs;
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    uint64_t now = names_version(fs);
    bool keep = in->dir_fresh == now || (in->dir_seen == now && !more);
    if (!keep)
        in->dir_fresh = now;
    mutex_unlock(&in->mu);
    mutex_unlock(&fs->ns);
    return keep;
}

static int stop_at_first(void *ctx, const struct meta_dentry *d)
{
    (void)ctx;
    (void)d;
    return 1;
}

/* A handle that read up to that offset is told that there are no more. Asked of the database under ns: a name may have been committed since it was read for the reply. */
static void note_end(struct inode *in, uint64_t at)
{
    struct fs *fs = in->fs;
    mutex_lock(&fs->ns);
    bool all = meta_dentry_each(fs->meta, in->ino, at > DOT_ENTRIES ? at - DOT_ENTRIES : 0, stop_at_first, NULL) == 0;
    mutex_lock(&in->mu);
    uint64_t now = names_version(fs);
    if (!all)
        in->dir_seen = 0;
    else if (in->dir_fresh == now)
        in->dir_seen = now;
    in->dir_fresh = 0;
    mutex_unlock(&in->mu);
    mutex_unlock(&fs->ns);
}

static int list_first_page(struct fs *fs, struct inode *dir)
{
    uint64_t pages = 0;
    return tree_is_listed(dir) ? tree_serve(fs, dir) : tree_list_follow(fs, dir, &pages);
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
    fi->cache_readdir = 1;
    fi->keep_cache = note_open(in, more);
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
    struct meta_near *inodes; /* if plus */
    uint64_t id_limit;
    char *buf;
    size_t size, used;
    bool plus;
    struct tree_trust trust;
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

/* With a lookup of the kernel counted. False: there is no such inode. */
static bool find_entry(struct fill *f, const struct meta_dentry *d, struct fuse_entry_param *e)
{
    double ttl = S_ISDIR(d->type) && links_is_going(f->fs, d->ino) ? 0 : tree_trust_in(&f->trust, d->id);
    *e = (struct fuse_entry_param){.ino = d->ino, .generation = 1, .attr_timeout = ttl, .entry_timeout = ttl};
    if (S_ISREG(d->type) && inode_kernel_ref_unloaded(f->fs, f->inodes, d->ino, &e->attr))
        return true;
    INODE_REF in = NULL;
    if (inode_get_by(f->fs, f->inodes, d->ino, &in) < 0)
        return false;
    fill_entry(in, ttl, e);
    inode_set_place(in, d);
    inode_kernel_ref(in);
    return true;
}

static bool add_plus(struct fill *f, const struct meta_dentry *d)
{
    struct fuse_entry_param e;
    bool have = find_entry(f, d, &e);
    if (!have)
        e = (struct fuse_entry_param){.attr = {.st_ino = d->ino, .st_mode = d->type}}; /* the name only */
    size_t n =
        fuse_add_direntry_plus(f->req, f->buf + f->used, f->size - f->used, d->name, &e, (off_t)(d->id + DOT_ENTRIES));
    if (n > f->size - f->used) {
        if (have)
            inode_kernel_forget(f->fs, d->ino, 1);
        return false;
    }
    f->used += n;
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
    tree_trust_of(f->fs, f->dir, &f->trust); /* before the names: what comes later is newer */
    f->inodes = f->plus ? meta_near_new(f->fs->meta) : NULL;
    int r = meta_dentry_each(f->fs->meta, f->dir->ino, after, fill_one, f);
    g_clear_pointer(&f->inodes, meta_near_free);
    return MIN(r, 0);
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
    uint64_t at = (uint64_t)off;
    if (h && at == 0 && h->slot->id_limit != NAMES_COME)
        h->slot->id_limit = meta_next_ino(fs->meta); /* rewound: what was made since is shown */
    if (h)
        f.id_limit = h->slot->id_limit;
    if (fill_dots(&f, &at))
        r = fill_coming(&f, at, h ? h->slot : &unopened);
    metric_inc(M_fuse_requests);
    if (h && r >= 0 && f.used == 0)
        note_end(f.dir, at);
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
