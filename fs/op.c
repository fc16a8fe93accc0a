/* The operation table, and the replies all operations share. */
#include "op.h"

#include "attach.h"
#include "replay.h"
#include "request.h"

const struct fuse_lowlevel_ops fs_ops = {
#define OP(name) .name = op_##name,
#include "ops.def"
};

static const char *const op_names[] = {
#define OP(name) #name,
#include "ops.def"
};

static bool is_common(int r)
{
    return r == -ENOENT || r == -ENODATA || r == -EEXIST || r == -ENOTEMPTY || r == -ENOTSUP || r == -ENOSYS ||
           r == -ERANGE || r == -EINVAL || r == -ENAMETOOLONG || r == -ENOTDIR || r == -EISDIR || r == -ENXIO ||
           r == -EPERM || r == -EINTR || r == 0;
}

/* Errors of the layers below that mean nothing to a program. */
static int to_posix(int r)
{
    switch (r) {
    case -ENODEV:
    case -EBADMSG:
    case -EKEYEXPIRED:
    case -ECANCELED:
    case -EUCLEAN:
    case -ENOMEDIUM:
    case -EREMOTEIO:
        return -EIO;
    default:
        return r;
    }
}

void reply_err(fuse_req_t req, enum op_id op, int r)
{
    metric_inc(M_fuse_requests);
    if (!is_common(r)) {
        metric_inc(M_fuse_errors);
        log_warn("fuse", "operation failed op=%s r=%s", op_names[op], err_name(r));
    }
    if (request_is_resent())
        attach_replaces(fuse_req_userdata(req), request_unique());
    (void)fuse_reply_err(req, -to_posix(r)); /* the kernel may have dropped the request: nobody to tell */
}

int made_before(fuse_req_t req, struct inode **ret)
{
    struct fs *fs = fuse_req_userdata(req);
    uint64_t ino = 0;
    if (!replay_find(fs, &ino) || ino == 0) /* made, and taken away again because the rest failed */
        return 0;
    int r = inode_get(fs, ino, ret);
    return r == 0 ? 1 : r == -ENOENT ? -ESTALE : r;
}

bool done_before(fuse_req_t req)
{
    uint64_t ino;
    return replay_find(fuse_req_userdata(req), &ino);
}

void fill_entry(struct inode *in, double ttl, struct fuse_entry_param *e)
{
    *e = (struct fuse_entry_param){.ino = in->ino, .generation = 1, .attr_timeout = ttl, .entry_timeout = ttl};
    inode_stat(in, &e->attr);
}

void reply_entry(fuse_req_t req, enum op_id op, struct inode *in, double ttl)
{
    struct fuse_entry_param e;
    fill_entry(in, ttl, &e);
    inode_kernel_ref(in);
    metric_inc(M_fuse_requests);
    if (fuse_reply_entry(req, &e) == -ENOENT)
        inode_kernel_forget(in->fs, in->ino, 1); /* interrupted: the kernel never saw the entry */
    inode_put(in);
}
