/* See kept_open.h. */
#include "kept_open.h"

#include "backing.h"
#include "io_mode.h"
#include "request.h"

#include <assert.h>
#include <sys/stat.h>

/* Who loads it has its lock while the database works. */
static bool is_loading(const struct inode *in)
{
    return !__atomic_load_n(&in->loaded, __ATOMIC_ACQUIRE);
}

/* Closed by all who wrote it, with a name, and nobody is changing that. */
static bool is_quiet_locked(const struct inode *in) REQUIRES(in->mu)
{
    const struct io_state *io = &in->io;
    return !in->gone && S_ISREG(in->rec.mode) && in->rec.nlink > 0 && in->rec.content == CONTENT_CLEAN &&
           !in->gate_held && !in->expiring && !io->kernel_writes && io->n_writers == 0 && in->n_writers == 0;
}

/* Its first reader since all had closed it: the id, or 0. *ret_left: a reference to be let go of without the lock. */
static int wake_locked(struct inode *in, struct cfile **ret_left) REQUIRES(in->mu)
{
    const struct cache_source src = {.key = in->rec.base_key, .etag = in->rec.base_etag, .limit = in->rec.base_limit};
    uint64_t vid = in->rec.vid;
    if (in->cf || in->n_open > 0 || !src.key || !backing_is_kept(in, vid))
        return 0;
    struct cfile *cf = cache_file_reopen(in->fs->cache, vid, in->rec.size, &src);
    if (!cf)
        return 0;
    in->io.mode = IO_PASSTHROUGH;
    int id = backing_take_kept_locked(in, vid);
    if (id) {
        in->cf = cf;
    } else { /* others took its place among the ids meanwhile */
        in->io.mode = IO_NONE;
        *ret_left = cf;
    }
    return id;
}

static int id_locked(struct inode *in, struct cfile **ret_left) REQUIRES(in->mu)
{
    if (!is_quiet_locked(in))
        return 0;
    if (in->io.mode == IO_NONE)
        return wake_locked(in, ret_left);
    return in->io.mode == IO_PASSTHROUGH && in->cf ? backing_in_use_locked(in, cache_file_vid(in->cf)) : 0;
}

bool kept_open(struct inode *in, struct fuse_file_info *fi)
{
    const char *why;
    struct cfile *left = NULL;
    if (!io_mode_works(in->fs, &why) || is_loading(in))
        return false;
    mutex_lock(&in->mu);
    int id = id_locked(in, &left);
    if (id > 0) {
        in->n_open++;
        in->io.n_handles++;
        in->io.was_passed = true;
        metric_add(M_hit_bytes, (int64_t)in->rec.size);
    }
    mutex_unlock(&in->mu);
    if (left)
        request_waits();
    cache_file_unref(left);
    if (id <= 0)
        return false;
    fi->backing_id = id;
    fi->keep_cache = fi->direct_io = 0;
    fi->parallel_direct_writes = fi->noflush = 1;
    return true;
}

/* Its last reader is gone. The id first: a file that moves takes it with it. */
static bool rest_locked(struct inode *in) REQUIRES(in->mu)
{
    if (in->n_open > 1 || in->n_cf_users > 0)
        return false;
    in->io.mode = IO_NONE;
    backing_keep_locked(in);
    if (cache_file_rest(in->cf)) {
        in->cf = NULL;
        return true;
    }
    in->io.mode = IO_PASSTHROUGH; /* the handle has the id still */
    if (!backing_take_kept_locked(in, cache_file_vid(in->cf)))
        log_debug("io", "an id went with its last reader ino=%" G_GUINT64_FORMAT, in->ino);
    return false;
}

bool kept_release(struct inode *in)
{
    struct io_state *io = &in->io;
    mutex_lock(&in->mu);
    bool leaves = is_quiet_locked(in) && io->mode == IO_PASSTHROUGH && in->cf;
    assert(!leaves || (io->n_handles > 0 && in->n_open > 0));
    leaves = leaves && (io->n_handles > 1 ? in->n_open > 1 : rest_locked(in));
    if (leaves) {
        io->n_handles--;
        in->n_open--;
    }
    mutex_unlock(&in->mu);
    return leaves;
}
