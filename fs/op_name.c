/* Operations on names: lookup, create, link, unlink, rename and their kin. */
#include "base/crash.h"
#include "links.h"
#include "no_open.h"
#include "op.h"
#include "tree.h"

static struct cred caller(fuse_req_t req)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    return (struct cred){ctx->uid, ctx->gid};
}

static double ttl_of(struct fs *fs, uint64_t parent)
{
    INODE_REF dir = NULL;
    return inode_get(fs, parent, &dir) == 0 ? tree_ttl(fs, dir) : 0;
}

static void reply_virtual(fuse_req_t req, uint64_t ino)
{
    struct fuse_entry_param e = {.ino = ino, .generation = 1};
    virt_stat(fuse_req_userdata(req), ino, &e.attr);
    (void)fuse_reply_entry(req, &e); /* an interrupted request has nobody to tell */
}

/* The kernel may trust that there is no such name for a while. */
static void reply_no_name(fuse_req_t req, struct inode *dir)
{
    struct fs *fs = dir->fs;
    double ttl = (double)fs->cfg->negative_ttl_ns / (double)NS_PER_S;
    struct fuse_entry_param e = {.entry_timeout = MIN(ttl, tree_ttl(fs, dir))};
    metric_inc(M_fuse_requests);
    (void)fuse_reply_entry(req, &e); /* an interrupted request has nobody to tell */
}

/* Seconds for which the kernel may trust that in is found in dir. */
static double ttl_found(struct inode *dir, struct inode *in)
{
    struct tree_trust trust;
    tree_trust_of(dir->fs, dir, &trust);
    mutex_lock(&in->mu);
    uint64_t id = in->place_dir == dir->ino ? in->place_id : 0;
    mutex_unlock(&in->mu);
    return inode_is_dir(in) && links_is_going(dir->fs, in->ino) ? 0 : tree_trust_in(&trust, id);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fuse_req_userdata(req);
    uint64_t virt = no_open_files(fs) ? 0 : virt_lookup(parent, name); /* what differs at each read needs an OPEN */
    if (virt) {
        reply_virtual(req, virt);
        return;
    }
    INODE_REF dir = NULL;
    struct inode *in = NULL;
    int r = inode_get(fs, parent, &dir);
    if (r == 0)
        r = tree_lookup_in(fs, dir, name, &in);
    if (r == -ENOENT && dir) {
        reply_no_name(req, dir);
        return;
    }
    if (r < 0) {
        reply_err(req, OP_ID_lookup, r);
        return;
    }
    tree_want_posix(fs, in, dir);
    reply_entry(req, OP_ID_lookup, in, ttl_found(dir, in));
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
    inode_kernel_forget(fuse_req_userdata(req), ino, nlookup);
    fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        inode_kernel_forget(fuse_req_userdata(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* Names that a new object could not be told from ours, or that the virtual files use. */
static int writable_name(struct fs *fs, uint64_t parent, const char *name)
{
    int r = links_may_change(fs, parent);
    return r < 0 ? r : virt_lookup(parent, name) ? -EPERM : 0;
}

static void make_node(fuse_req_t req, enum op_id op, const struct node_spec *spec)
{
    struct fs *fs = fuse_req_userdata(req);
    struct inode *in = NULL;
    int r = made_before(req, &in);
    if (r == 0)
        r = writable_name(fs, spec->parent, spec->name);
    if (r == 0)
        r = tree_create(fs, spec, false, &in);
    CRASH_POINT(reply_node);
    if (r < 0)
        reply_err(req, op, r);
    else
        reply_entry(req, op, in, ttl_of(fs, spec->parent));
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    if (S_ISCHR(mode) || S_ISBLK(mode)) {
        reply_err(req, OP_ID_mknod, -EPERM);
        return;
    }
    if ((mode & S_IFMT) == 0)
        mode |= S_IFREG;
    struct node_spec spec = {.parent = parent, .name = name, .mode = mode, .rdev = (uint32_t)rdev, .who = caller(req)};
    make_node(req, OP_ID_mknod, &spec);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct node_spec spec = {.parent = parent, .name = name, .mode = S_IFDIR | (mode & 07777), .who = caller(req)};
    make_node(req, OP_ID_mkdir, &spec);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct node_spec spec = {
        .parent = parent, .name = name, .mode = S_IFLNK | 0777, .target = target, .who = caller(req)};
    int r = objstore_symlink_check(target);
    if (r < 0)
        reply_err(req, OP_ID_symlink, r);
    else
        make_node(req, OP_ID_symlink, &spec);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    INODE_REF in = NULL;
    int r = inode_get(fuse_req_userdata(req), ino, &in);
    if (r == 0 && !S_ISLNK(in->rec.mode))
        r = -EINVAL;
    if (r < 0)
        reply_err(req, OP_ID_readlink, r);
    else
        (void)fuse_reply_readlink(req,
                                  in->rec.target ? in->rec.target : ""); /* an interrupted request has nobody to tell */
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fuse_req_userdata(req);
    int r = writable_name(fs, parent, name);
    if (r == 0 && !done_before(req))
        r = tree_unlink(fs, parent, name);
    CRASH_POINT(reply_unlink);
    reply_err(req, OP_ID_unlink, r);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fuse_req_userdata(req);
    int r = links_may_change(fs, parent);
    if (r == 0 && !done_before(req))
        r = tree_rmdir(fs, parent, name);
    CRASH_POINT(reply_rmdir);
    reply_err(req, OP_ID_rmdir, r);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent, const char *newname,
               unsigned int flags)
{
    struct fs *fs = fuse_req_userdata(req);
    int r = writable_name(fs, parent, name);
    if (r == 0)
        r = writable_name(fs, newparent, newname);
    if (r == 0 && !done_before(req))
        r = tree_rename(fs, parent, name, newparent, newname, flags);
    CRASH_POINT(reply_rename);
    reply_err(req, OP_ID_rename, r);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
    struct fs *fs = fuse_req_userdata(req);
    struct inode *in = NULL;
    int r = made_before(req, &in);
    if (r == 0)
        r = writable_name(fs, newparent, newname);
    if (r == 0)
        r = tree_link(fs, ino, newparent, newname, &in);
    CRASH_POINT(reply_link);
    if (r < 0)
        reply_err(req, OP_ID_link, r);
    else
        reply_entry(req, OP_ID_link, in, ttl_of(fs, newparent));
}
