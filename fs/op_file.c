/* Operations on open files. */
#include "attach.h"
#include "base/crash.h"
#include "content.h"
#include "copy.h"
#include "io_mode.h"
#include "kept_open.h"
#include "links.h"
#include "mapped.h"
#include "no_open.h"
#include "op.h"
#include "orphan.h"
#include "prefetch.h"
#include "publish.h"
#include "request.h"
#include "rules.h"
#include "shadow.h"
#include "tree.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <sys/stat.h>

#define COPY_STEP (1u << 20)
#define COPY_MAX  (64u << 20)

static bool opens_for_write(int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY;
}

/* The process behind a thread id, as far as /proc tells. */
static int tgid_of(int tid)
{
    char path[64], line[128];
    g_snprintf(path, sizeof(path), "/proc/%d/status", tid);
    FILE *f = fopen(path, "re");
    int tgid = 0;
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "Tgid: %d", &tgid) == 1)
            break;
    if (f)
        fclose(f);
    return tgid;
}

/* Makes the handle and chooses the mode, in this order: what the kernel may write has a handle, or is being closed. */
static int new_handle(fuse_req_t req, struct inode *in, struct fuse_file_info *fi, bool fresh)
{
    struct fs *fs = in->fs;
    struct handle *h;
    bool writes = opens_for_write(fi->flags);
    int tid = fuse_req_ctx(req)->pid;
    const struct sess_handle what = {.ino = in->ino, .tid = tid, .writable = writes, .fresh = fresh};
    int r = handle_new(fs, in, &what, &h);
    if (r < 0)
        return r;
    fi->fh = h->fh;
    r = io_mode_enter(in, writes, writes && fresh && copy_is_likely(fs, tid), fi);
    if (r < 0) {
        handle_free(fs, fi->fh);
        return r;
    }
    h->slot->direct = fi->direct_io;
    if (!writes) {
        copy_note_open(in, tid);
        read_mode_opened(h, fi->direct_io);
    }
    h->news = io_mode_news(in);
    attach_replaces(fs, request_unique());
    return 0;
}

/* What op_open and op_create did, undone: the reply found nobody, so no RELEASE will come. */
static void undo_open(struct fs *fs, struct inode *in, const struct fuse_file_info *fi, bool writes)
{
    io_mode_leave(in, writes, fi->direct_io);
    handle_free(fs, fi->fh);
    content_release(in, writes);
}

/* Counts the opener first, so that no reader begins to read past us any more, and cuts only what can be opened as asked. */
static int open_content(struct inode *in, int flags, bool cut)
{
    bool writes = opens_for_write(flags), appends = writes && !cut && (flags & O_APPEND) && !(flags & O_RDWR);
    int r = appends ? content_open_to_append(in) : content_open(in, writes, false);
    if (r < 0 || !writes || !cut)
        return r;
    r = io_mode_refuses(in, flags) ? -ETXTBSY : content_truncate(in, 0);
    if (r < 0)
        content_release(in, writes);
    return r;
}

static void open_virtual(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h;
    const struct sess_handle what = {.ino = ino, .virt = 1};
    int r = opens_for_write(fi->flags) ? -EACCES : handle_new(fs, NULL, &what, &h);
    if (r < 0) {
        reply_err(req, OP_ID_open, r);
        return;
    }
    fi->fh = h->fh;
    h->text = virt_text(fs, ino);
    attach_replaces(fs, request_unique());
    fi->direct_io = 1;
    if (fuse_reply_open(req, fi) == -ENOENT)
        handle_free(fs, fi->fh);
    else
        handle_opened(fs, fi->fh);
}

static void reply_opened(fuse_req_t req, struct inode *in, struct fuse_file_info *fi, bool writes)
{
    CRASH_POINT(reply_open);
    metric_inc(M_fuse_requests);
    if (fuse_reply_open(req, fi) != -ENOENT) {
        handle_opened(in->fs, fi->fh);
        return;
    }
    request_waits();
    undo_open(in->fs, in, fi, writes);
}

/* By a worker before, for this request. Others may have written since: the kernel does not lock a file that it opens. */
static bool was_cut(struct fs *fs)
{
    return request_is_resent() && attach_was_opening(fs, request_unique());
}

/* False: not from memory. What was sent again may take the place of a handle. */
static bool open_kept(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h;
    bool changes = opens_for_write(fi->flags) || (fi->flags & O_TRUNC);
    INODE_REF in = changes || virt_is(ino) || request_is_resent() ? NULL : inode_find(fs, ino);
    const struct sess_handle what = {.ino = ino, .tid = fuse_req_ctx(req)->pid};
    if (!in || handle_new(fs, in, &what, &h) < 0)
        return false;
    if (!kept_open(in, fi)) {
        handle_free(fs, h->fh);
        return false;
    }
    fi->fh = h->fh;
    prefetch_note(in, in->cf);
    copy_note_open(in, what.tid);
    reply_opened(req, in, fi, false);
    return true;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    if (no_open_files(fs)) { /* the kernel asks no more */
        reply_err(req, OP_ID_open, -ENOSYS);
        return;
    }
    if (open_kept(req, ino, fi))
        return;
    request_waits();
    if (virt_is(ino)) {
        open_virtual(req, ino, fi);
        return;
    }
    INODE_REF in = NULL;
    bool writes = opens_for_write(fi->flags), trunc = writes && (fi->flags & O_TRUNC);
    bool cut = (fi->flags & O_TRUNC) && !was_cut(fs);
    int r = inode_get(fs, ino, &in);
    if (r == 0 && (writes || cut))
        r = links_may_change(fs, ino);
    if (r == 0 && (writes || cut))
        r = shadow_check_change(in);
    if (r == 0 && cut && !writes) /* Linux empties it, and takes it for empty after the reply */
        r = attr_set_size(in, NULL, fuse_req_ctx(req), 0);
    if (r == 0)
        r = open_content(in, fi->flags, cut);
    if (r == 0 && !writes)
        prefetch_note(in, in->cf);
    if (r == 0) {
        r = new_handle(req, in, fi, trunc);
        if (r < 0)
            content_release(in, writes);
    }
    if (r == 0 && writes && (trunc || fi->backing_id)) { /* we do not see what is written past us: at once, then */
        r = attr_kill_suid(in, fuse_req_ctx(req));
        if (r < 0)
            undo_open(fs, in, fi, writes);
    }
    if (r < 0) {
        reply_err(req, OP_ID_open,
                  r == -ENOENT ? -ESTALE : r); /* replaced elsewhere: ESTALE makes the kernel look the name up again */
        return;
    }
    reply_opened(req, in, fi, writes);
}

/* What a file that was just made becomes; one that a worker before made may be closed by now. */
static int open_created(struct inode *in, bool writes, bool again)
{
    int r = again ? content_open_again(in, writes) : content_open_new(in);
    if (r < 0 || writes)
        return r;
    if (!again) { /* O_CREAT|O_RDONLY: counted as writer only until here */
        mutex_lock(&in->mu);
        in->n_writers--;
        mutex_unlock(&in->mu);
    }
    if (content_seal(in) < 0)
        log_warn("fuse", "new empty file could not be sealed ino=%" G_GUINT64_FORMAT, in->ino);
    return 0;
}

/* name: NULL for a file without one. again: a worker before made it. */
static void reply_created(fuse_req_t req, enum op_id op, struct inode *in, uint64_t parent, const char *name,
                          struct fuse_file_info *fi, bool again)
{
    struct fs *fs = in->fs;
    bool writes = opens_for_write(fi->flags);
    CRASH_POINT(create_unopened);
    int r = open_created(in, writes, again);
    bool opened = r == 0;
    if (opened)
        r = new_handle(req, in, fi, true);
    if (r < 0) { /* the name first: without one it is not published */
        if (name && tree_unlink(fs, parent, name) < 0)
            log_warn("fuse", "a file that could not be made leaves its name ino=%" G_GUINT64_FORMAT, in->ino);
        if (opened)
            content_release(in, writes);
        inode_put(in);
        reply_err(req, op, r);
        return;
    }
    INODE_REF dir = NULL;
    struct fuse_entry_param e;
    fill_entry(in, inode_get(fs, parent, &dir) == 0 ? tree_ttl(fs, dir) : 0, &e);
    inode_kernel_ref(in);
    CRASH_POINT(reply_create);
    metric_inc(M_fuse_requests);
    if (fuse_reply_create(req, &e, fi) == -ENOENT) {
        undo_open(fs, in, fi, writes);
        inode_kernel_forget(fs, in->ino, 1);
    } else {
        handle_opened(fs, fi->fh);
    }
    inode_put(in);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    struct node_spec spec = {
        .parent = parent, .name = name, .mode = S_IFREG | (mode & 07777), .who = {ctx->uid, ctx->gid}};
    struct inode *in = NULL;
    int again = made_before(req, &in), r = again;
    if (r == 0)
        r = links_may_change(fs, parent);
    if (r == 0 && !again)
        r = virt_lookup(parent, name) ? -EPERM : tree_create(fs, &spec, true, &in);
    if (r == -EEXIST && !(fi->flags & O_EXCL))
        r = -ESTALE; /* it came since the kernel was told that there is none: it looks again, and opens what is there */
    if (r < 0)
        reply_err(req, OP_ID_create, r);
    else
        reply_created(req, OP_ID_create, in, parent, name, fi, again);
}

void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    struct node_spec spec = {.parent = parent, .mode = S_IFREG | (mode & 07777), .who = {ctx->uid, ctx->gid}};
    struct inode *in = NULL;
    int again = made_before(req, &in), r = again;
    if (r == 0)
        r = links_may_change(fs, parent);
    if (r == 0 && !again)
        r = tree_tmpfile(fs, &spec, &in);
    if (r < 0)
        reply_err(req, OP_ID_tmpfile, r);
    else
        reply_created(req, OP_ID_tmpfile, in, parent, NULL, fi, again);
}

/* One read buffer a thread, freed with it. */
static void *read_buffer(size_t size)
{
    static GPrivate key = G_PRIVATE_INIT(g_free);
    static _Thread_local size_t have;
    void *buf = g_private_get(&key);
    if (!buf || have < size) {
        have = MAX(size, 1u << 20);
        g_private_replace(&key, buf = g_malloc(have));
    }
    return buf;
}

static ssize_t read_text(const char *text, char *buf, size_t size, uint64_t off)
{
    size_t len = strlen(text), from = MIN((size_t)off, len), n = MIN(size, len - from);
    memcpy(buf, text + from, n);
    return (ssize_t)n;
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    bool no_open = no_open_files(fs);
    struct handle *h = no_open ? NULL : handle_get(fs, fi->fh);
    void *buf = read_buffer(size);
    ssize_t n = no_open        ? no_open_read(fs, ino, buf, size, (uint64_t)off)
                : h && h->text ? read_text(h->text, buf, size, (uint64_t)off)
                : h && h->in   ? cache_file_read(h->in->cf, buf, size, (uint64_t)off)
                               : -EBADF;
    metric_inc(M_fuse_requests);
    if (h && h->in && n > 0) /* before the reply: the handle is the kernel's then, and may be freed meanwhile */
        read_mode_note(h, fuse_req_ctx(req)->pid, (size_t)n);
    if (n < 0)
        reply_err(req, OP_ID_read, (int)n);
    else
        (void)fuse_reply_buf(req, buf, (size_t)n); /* an interrupted request has nobody to tell */
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h = handle_get(fs, fi->fh);
    if (!h || !h->in) {
        reply_err(req, OP_ID_write, -EBADF);
        return;
    }
    int r = attr_check_size(h->in, (uint64_t)off + size);
    if (r == 0)
        r = content_begin_change(h->in);
    if (r == 0)
        r = attr_kill_suid(h->in, fuse_req_ctx(req));
    ssize_t n = r < 0           ? r
                : fi->writepage ? cache_file_write_mapped(h->in->cf, buf, size, (uint64_t)off)
                                : cache_file_write(h->in->cf, buf, size, (uint64_t)off);
    if (r == 0 && (n >= 0 || n == -EIO || fi->writepage)) /* such an error may come after bytes were changed */
        content_note_write(h->in);
    if (n >= 0)
        atomic_store_explicit(&h->slot->wrote, true, memory_order_relaxed);
    r = n > 0 && fi->flags & O_DSYNC ? content_sync(h->in) : 0; /* RWF_DSYNC and O_SYNC set it as well */
    if (r < 0)
        n = r;
    CRASH_POINT(reply_write);
    metric_inc(M_fuse_requests);
    if (n < 0)
        reply_err(req, OP_ID_write, (int)n);
    else
        (void)fuse_reply_write(req, (size_t)n); /* an interrupted request has nobody to tell */
}

/* Whether a process has the inode open for writing; where that cannot be seen: yes. What the kernel knows by itself is all that is asked for: our own mount
 * would have to answer the rest. */
static bool writes_to(struct fs *fs, int tgid, uint64_t ino)
{
    char dir[64];
    struct statx root, file;
    struct stat link;
    g_snprintf(dir, sizeof(dir), "/proc/%d/fd", tgid);
    g_autoptr(GDir) fds = g_dir_open(dir, 0, NULL);
    if (!fds || statx(AT_FDCWD, fs->mountpoint, AT_STATX_DONT_SYNC, STATX_INO, &root) < 0)
        return true;
    const char *fd;
    while ((fd = g_dir_read_name(fds))) {
        g_autofree char *path = g_build_filename(dir, fd, NULL);
        if (lstat(path, &link) == 0 && (link.st_mode & S_IWUSR) &&
            statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_INO, &file) == 0 && file.stx_ino == ino &&
            file.stx_dev_major == root.stx_dev_major && file.stx_dev_minor == root.stx_dev_minor)
            return true;
    }
    return false;
}

/* A close of an inherited descriptor while the process that opened the file has it open still. */
static bool closed_by_heir(const struct handle *h, int tid)
{
    if (tid == h->slot->tid)
        return false;
    int opener = tgid_of(h->slot->tid);
    return opener && opener != tgid_of(tid) && writes_to(h->in->fs, opener, h->in->ino);
}

/* A new file may be closed empty for good, as a marker is, or only by one of several descriptors, as `cmd > file` does before cmd runs. */
static bool closed_empty(const struct handle *h, int tid)
{
    int tgid = tgid_of(tid);
    return atomic_load(&h->slot->fresh) && tgid && !writes_to(h->in->fs, tgid, h->in->ino);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h = handle_get(fs, fi->fh);
    if (!h || !h->in || !h->slot->writable) {
        bool lost = h && !h->in && h->slot->writable; /* could not be taken over */
        reply_err(req, OP_ID_flush, no_open_files(fs) ? -ENOSYS : lost ? -EIO : 0);
        return;
    }
    if (io_mode_news(h->in) != h->news)
        atomic_store(&h->slot->wrote, true);
    bool wrote = atomic_load(&h->slot->wrote), fresh = atomic_load(&h->slot->fresh);
    if (closed_by_heir(
            h, fuse_req_ctx(req)->pid)) { /* who opened it may go on writing: that one's close, or the last, counts */
        reply_err(req, OP_ID_flush, 0);
        return;
    }
    if (orphan_note_close(h, (int)fuse_req_ctx(req)->pid)) {
        reply_err(req, OP_ID_flush, 0);
        return;
    }
    enum close_mode mode = rules_of(h->in)->close;
    int r = !wrote && !fresh       ? 0
            : mode == CLOSE_REMOTE ? content_flush_to_publish(h->in, false)
                                   : content_flush(h->in, mode == CLOSE_LOCAL);
    mapped_flushed(h->in);
    if (r == 0 && mode == CLOSE_REMOTE && (wrote || closed_empty(h, fuse_req_ctx(req)->pid)))
        r = publish_now(fs, h->in, clock_mono_ns() + fs->cfg->op_timeout_ns);
    reply_err(req, OP_ID_flush, r);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h = handle_get(fs, fi->fh);
    handle_releasing(fs, fi->fh);
    bool kept = h && h->in && !h->slot->writable && !h->watch.on && kept_release(h->in);
    if (!kept)
        request_waits();
    if (!kept && h && h->in) {
        read_mode_released(h);
        io_mode_leave(h->in, h->slot->writable, h->slot->direct);
        content_release(h->in, h->slot->writable);
    }
    reply_err(req, OP_ID_release, 0);
    handle_free(fs, fi->fh);
}

/* Whoever asks: what anybody wrote is to be there. For what a daemon before left open nobody speaks, so nothing of it is published. */
static int sync_upstream(struct inode *in)
{
    mutex_lock(&in->mu);
    bool written = in->n_writers > 0, unclosed = !written && in->rec.nlink > 0 && in->rec.content == CONTENT_OPEN;
    mutex_unlock(&in->mu);
    int r = unclosed ? -EIO : written ? content_flush_to_publish(in, true) : 0;
    return r < 0 ? r : publish_now(in->fs, in, clock_mono_ns() + in->fs->cfg->op_timeout_ns);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h = handle_get(fs, fi->fh);
    if (!h || !h->in) {
        bool lost = h && !h->slot->virt; /* as above */
        reply_err(req, OP_ID_fsync, lost ? -EIO : h ? 0 : no_open_files(fs) ? -ENOSYS : -EBADF);
        return;
    }
    int r = content_sync(h->in);
    if (r == 0 && rules_of(h->in)->fsync == FSYNC_REMOTE)
        r = sync_upstream(h->in);
    reply_err(req, OP_ID_fsync, r);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
    struct handle *h = handle_get(fuse_req_userdata(req), fi->fh);
    int r =
        !h || !h->in ? -EBADF : attr_check_size(h->in, mode & FALLOC_FL_KEEP_SIZE ? 0 : (uint64_t)off + (uint64_t)len);
    if (r == 0)
        r = attr_kill_suid(h->in, fuse_req_ctx(req));
    if (r == 0)
        r = content_fallocate(h->in, mode, (uint64_t)off, (uint64_t)len);
    if (r == 0)
        atomic_store(&h->slot->wrote, true);
    CRASH_POINT(reply_fallocate);
    reply_err(req, OP_ID_fallocate, r);
}

/* What a mapping wrote may still be in the kernel's pages only, and the kernel asks without writing it back: no hole is sure then. */
static int64_t find_data(struct inode *in, uint64_t off, int whence)
{
    mutex_lock(&in->mu);
    bool unsure = in->io.mode == IO_CACHED && in->io.n_writers > 0;
    mutex_unlock(&in->mu);
    uint64_t size = cache_file_size(in->cf);
    if (!unsure || off >= size)
        return cache_file_seek(in->cf, off, whence);
    return whence == SEEK_DATA ? (int64_t)off : (int64_t)size;
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *h = handle_get(fs, fi->fh);
    int64_t r = no_open_files(fs) ? -ENOSYS : !h || !h->in ? -EBADF : find_data(h->in, (uint64_t)off, whence);
    if (r < 0)
        reply_err(req, OP_ID_lseek, (int)r);
    else
        (void)fuse_reply_lseek(req, r); /* an interrupted request has nobody to tell */
}

static ssize_t copy_range(struct inode *from, uint64_t off_in, struct inode *to, uint64_t off_out, size_t len)
{
    size_t done = 0;
    void *buf = read_buffer(COPY_STEP);
    while (done < len) {
        ssize_t n = cache_file_read(from->cf, buf, MIN(len - done, COPY_STEP), off_in + done);
        if (n > 0)
            n = cache_file_write(to->cf, buf, (size_t)n, off_out + done);
        if (n < 0)
            return done > 0 ? (ssize_t)done : n;
        if (n == 0)
            break;
        done += (size_t)n;
        content_note_write(to);
    }
    return (ssize_t)done;
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in, struct fuse_file_info *fi_in,
                        fuse_ino_t ino_out, off_t off_out, struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct fs *fs = fuse_req_userdata(req);
    struct handle *from = handle_get(fs, fi_in->fh), *to = handle_get(fs, fi_out->fh);
    if (!from || !to || !from->in || !to->in) {
        reply_err(req, OP_ID_copy_file_range, -EBADF);
        return;
    }
    ssize_t n = attr_check_size(to->in, (uint64_t)off_out + len);
    if (n == 0)
        n = content_begin_change(to->in);
    if (n == 0)
        n = attr_kill_suid(to->in, fuse_req_ctx(req));
    bool changes = n == 0;
    if (changes && off_in == off_out)
        n = copy_in_store(from->in, to->in, (uint64_t)off_out, len);
    if (n > 0)
        content_note_write(to->in);
    else if (changes)
        n = copy_range(from->in, (uint64_t)off_in, to->in, (uint64_t)off_out, MIN(len, COPY_MAX));
    atomic_store(&to->slot->wrote, true);
    CRASH_POINT(reply_copy);
    if (n < 0)
        reply_err(req, OP_ID_copy_file_range, (int)n);
    else
        (void)fuse_reply_write(req, (size_t)n); /* an interrupted request has nobody to tell */
}
