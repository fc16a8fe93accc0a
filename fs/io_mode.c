/* See io_mode.h. Modes change under the content gate of the inode, so that opens, releases and seals of one file come one after another. */
#include "io_mode.h"

#include "backing.h"
#include "cache_sums.h"
#include "content.h"
#include "content_record.h"
#include "no_open.h"
#include "read_mode.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>

#define SETTLE_TRIES   20u /* the kernel lets go of a released file a little later */
#define SETTLE_WAIT_US 500u
#define CLOCK_STEP_NS  (20 * (int64_t)NS_PER_MS) /* times of files on older kernels are this coarse at worst */
#define EXPECT_BYTES   (256u << 20)              /* a writer is expected to bring this much at least */

/* ---- whether ---- */

void io_mode_init(struct fs *fs)
{
    backing_init(fs);
    atomic_store(&fs->io_refused, "not mounted yet");
}

void io_mode_fini(struct fs *fs)
{
    backing_fini(fs);
}

void io_mode_connected(struct fs *fs, bool offered)
{
    atomic_store(&fs->io_refused, no_open_files(fs)                    ? "files of an immutable mount are not opened"
                                  : fs->cfg->passthrough == SWITCH_OFF ? "switched off by --passthrough"
                                  : !offered ? "the kernel has no FUSE passthrough (6.9 or later has)"
                                             : NULL);
}

bool io_mode_works(struct fs *fs, const char **ret_why)
{
    const char *why = atomic_load(&fs->io_refused);
    *ret_why = why;
    return !why;
}

/* ---- what the kernel wrote ---- */

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

static bool stat_local(struct inode *in, struct cfile *cf, uint64_t *ret_size, int64_t *ret_mtime_ns)
{
    struct stat st;
    if (fstat(cache_file_fd(cf), &st) < 0) {
        log_warn("io", "cannot look at a cache file ino=%" G_GUINT64_FORMAT, in->ino);
        return false;
    }
    *ret_size = (uint64_t)st.st_size;
    *ret_mtime_ns = (int64_t)st.st_mtim.tv_sec * (int64_t)NS_PER_S + st.st_mtim.tv_nsec;
    return true;
}

void io_mode_dropped(void *fs, uint64_t ino)
{
    backing_drop(fs, ino);
}

void io_mode_forget(struct inode *in)
{
    backing_forget(in);
    io_kept_free(in->io.kept);
}

void io_kept_free(struct io_kept *kept)
{
    if (kept)
        g_free(kept->key);
    g_free(kept);
}

/* Where its time was set, the slot tells of the news only once the record does. */
static bool take_news_locked(struct inode *in, uint64_t size, int64_t mtime_ns) REQUIRES(in->mu)
{
    bool was_set = in->rec.flags & INODE_MTIME_SET;
    bool news = in->io.kernel_writes && (size != in->io.seen_size || mtime_ns != in->io.seen_mtime_ns);
    if (news) {
        in->io.seen_size = in->rec.size = size;
        in->io.seen_mtime_ns = in->rec.mtime_ns = in->rec.ctime_ns = mtime_ns;
        in->rec.flags &= ~(uint32_t)INODE_MTIME_SET;
        in->changed = true;
        in->n_changes++;
        in->io.n_news++;
        g_clear_pointer(&in->io.kept, io_kept_free);
        if (!was_set)
            backing_save_locked(in);
    }
    return news;
}

bool io_mode_look(struct inode *in)
{
    uint64_t size = 0;
    int64_t mtime_ns = 0;
    mutex_lock(&in->mu);
    struct cfile *cf = in->io.kernel_writes && in->cf ? cache_file_ref(in->cf) : NULL;
    mutex_unlock(&in->mu);
    if (!cf)
        return false;
    bool known = stat_local(in, cf, &size, &mtime_ns);
    mutex_lock(&in->mu);
    bool was_set = in->rec.flags & INODE_MTIME_SET, news = known && take_news_locked(in, size, mtime_ns);
    mutex_unlock(&in->mu);
    if (news && was_set) {
        record_time_unset(in);
        mutex_lock(&in->mu);
        backing_save_locked(in);
        mutex_unlock(&in->mu);
    }
    cache_file_unref(cf);
    return news;
}

/* Whether a store through a mapping, the first after a sync, sets the file's time: file systems that write nothing back need not notice it. */
static bool stores_show(struct cfile *cf)
{
    struct statfs st;
    if (fstatfs(cache_file_fd(cf), &st) < 0)
        return false;
    return st.f_type == EXT4_SUPER_MAGIC || st.f_type == XFS_SUPER_MAGIC || st.f_type == BTRFS_SUPER_MAGIC;
}

/* What is written in the tick that ends at mtime_ns gets the same time. False: the clock was set back. */
static bool await_next_tick(int64_t mtime_ns)
{
    int64_t age = clock_wall_ns() - mtime_ns;
    if (age >= 0 && age <= CLOCK_STEP_NS) {
        g_usleep((gulong)((CLOCK_STEP_NS - age) / 1000 + 1));
        age = clock_wall_ns() - mtime_ns;
    }
    return age > CLOCK_STEP_NS;
}

void io_mode_mark(struct inode *in, struct cfile *cf, struct io_mark *ret)
{
    struct io_mark now = {0};
    mutex_lock(&in->mu);
    bool kernel_writes = in->io.kernel_writes;
    now.beside_writers = in->n_writers > 0;
    mutex_unlock(&in->mu);
    *ret = (struct io_mark){0};
    if (!kernel_writes || !stores_show(cf) || !stat_local(in, cf, &now.size, &now.mtime_ns))
        return;
    if (await_next_tick(now.mtime_ns))
        *ret = now;
}

static bool may_tell_locked(const struct inode *in, const struct io_mark *mark) REQUIRES(in->mu)
{
    return in->io.kernel_writes && in->snap_gen == in->rec.gen && in->snap_mark.mtime_ns == mark->mtime_ns &&
           in->snap_mark.size == mark->size && in->snap_mark.sum == mark->sum;
}

/* The file's bytes, whose times are those of the mark, have that sum or not. */
static void take_sum(struct inode *in, const struct io_mark *mark, bool same)
{
    mutex_lock(&in->mu);
    if (may_tell_locked(in, mark) && same) {
        in->snap_mark.beside_writers = in->n_writers > 0;
    } else if (may_tell_locked(in, mark)) {
        in->snap_mark = (struct io_mark){0};
        in->changed = true;
        in->n_changes++;
    }
    mutex_unlock(&in->mu);
}

void io_mode_sum(struct inode *in)
{
    uint64_t size = 0;
    int64_t mtime_ns = 0;
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    struct io_mark mark = in->snap_mark;
    bool asks = mark.mtime_ns && mark.beside_writers && !in->changed && in->cf && may_tell_locked(in, &mark);
    struct cfile *cf = asks ? cache_file_ref(in->cf) : NULL;
    mutex_unlock(&in->mu);
    if (cf && stat_local(in, cf, &size, &mtime_ns) && size == mark.size && mtime_ns == mark.mtime_ns)
        take_sum(in, &mark, cache_published_sum(cf) == mark.sum);
    cache_file_unref(cf);
}

unsigned io_mode_news(struct inode *in)
{
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    unsigned n = in->io.n_news;
    mutex_unlock(&in->mu);
    return n;
}

/* ---- modes ---- */

static void count_missed(void *ctx, uint64_t bytes)
{
    metric_add(M_miss_bytes, (int64_t)bytes);
}

/*
 * Where little is absent it is fetched before the first open for reading is answered; if that fails, reads say so. Whatever is absent of a file that the kernel reads already, as the worker
 * before saw it: no other mode goes beside that one.
 */
static void complete_small(struct inode *in, bool writes)
{
    const char *why;
    mutex_lock(&in->mu);
    bool first = in->io.n_handles == 0, passed = in->io.mode == IO_PASSTHROUGH;
    mutex_unlock(&in->mu);
    uint64_t size = cache_file_size(in->cf), present = MIN(cache_file_present_bytes(in->cf), size);
    bool complete = cache_file_complete(in->cf);
    bool little = !writes && first && size - present <= in->fs->cfg->open_fill;
    if (!io_mode_works(in->fs, &why) || (!complete && !passed && !little))
        return;
    metric_add(M_hit_bytes,
               (int64_t)present); /* what the kernel reads by itself is not told to us: it counts whole at each open */
    int r = complete ? 0 : cache_file_fill(in->cf, true, true, count_missed, NULL);
    if (r < 0)
        log_debug("io", "a small file is not complete after open ino=%" G_GUINT64_FORMAT " r=%s", in->ino, err_name(r));
}

/* In memory, but not by a user's wish: given to the kernel it could not be changed as long as anybody has it open. */
static bool may_need_changing(struct inode *in)
{
    mutex_lock(&in->mu);
    bool wished = in->rec.flags & INODE_PIN_MEMORY;
    mutex_unlock(&in->mu);
    return !wished && !in->fs->cfg->read_only && cache_file_in_memory(in->cf);
}

/* What a writer may bring before anybody looks: twice the largest file that was closed beside it. */
static uint64_t expected_bytes(struct inode *in)
{
    struct meta_dentry d = {0};
    INODE_REF dir = NULL;
    uint64_t largest = cache_file_size(in->cf);
    if (meta_link_first(in->fs->meta, in->ino, &d) == 0 && inode_get(in->fs, d.parent, &dir) == 0) {
        mutex_lock(&dir->mu);
        largest = MAX(largest, dir->largest_closed);
        mutex_unlock(&dir->mu);
    }
    meta_dentry_clear(&d);
    return MAX(EXPECT_BYTES, 2 * largest);
}

static enum io_mode choose_for_reader(struct inode *in)
{
    mutex_lock(&in->mu);
    bool writer =
        in->n_writers > 0 &&
        !in->io.kernel_writes; /* who comes only now, and may have cut the file: it is not to stand in his way */
    mutex_unlock(&in->mu);
    if ((writer && !cache_file_shows_writers(in->cf)) || may_need_changing(in))
        return IO_CACHED;
    return IO_PASSTHROUGH;
}

static enum io_mode choose(struct inode *in, bool writes)
{
    const char *why;
    if (!io_mode_works(in->fs, &why) || !cache_file_complete(in->cf))
        return IO_CACHED;
    if (!writes)
        return choose_for_reader(in);
    mutex_lock(&in->mu);
    bool suid = mode_has_suid(in->rec.mode), already = in->io.kernel_writes;
    mutex_unlock(&in->mu);
    if (already)
        return IO_PASSTHROUGH;
    bool suits = cache_file_shows_writers(in->cf) && !cache_file_has_source(in->cf);
    if (!suits || suid) /* only who sees a write can take setuid away at the first */
        return IO_CACHED;
    return cache_file_has_room(in->cf, expected_bytes(in)) ? IO_PASSTHROUGH : IO_CACHED;
}

/* Readers already read past us, so a writer has to write past us too: nothing of the file may come from the store any more. */
static int put_source_away(struct inode *in)
{
    struct cache_source none = {0};
    struct io_kept *kept = g_new0(struct io_kept, 1);
    uint64_t size;
    int64_t mtime_ns;
    mutex_lock(&in->mu);
    bool clean = in->rec.content == CONTENT_CLEAN;
    *kept = (struct io_kept){g_strdup(in->rec.base_key), in->rec.base_etag, in->rec.base_limit, in->rec.gen,
                             in->rec.ctime_ns};
    mutex_unlock(&in->mu);
    int r = content_begin_change_gated(in);
    if (r == 0 && !clean) /* it may count as on the disk, which what was fetched since is not */
        r = content_sync_bytes(in);
    if (r == 0)
        r = cache_file_set_source(in->cf, &none);
    bool old = r == 0 && stat_local(in, in->cf, &size, &mtime_ns) && await_next_tick(mtime_ns);
    if (!old || !clean || !kept->key || !stores_show(in->cf)) /* nothing would tell whether anything was written */
        g_clear_pointer(&kept, io_kept_free);
    if (r == 0)
        r = content_put_away(in, kept);
    mutex_lock(&in->mu);
    if (r == 0)
        in->io.kept = g_steal_pointer(&kept);
    mutex_unlock(&in->mu);
    io_kept_free(kept);
    return r;
}

static int begin_writing(struct inode *in)
{
    int r = cache_file_has_source(in->cf) ? put_source_away(in) : content_begin_change_gated(in);
    uint64_t size = 0;
    int64_t mtime_ns = 0;
    if (r == 0 && !stat_local(in, in->cf, &size, &mtime_ns))
        r = -EIO;
    if (r == 0)
        r = cache_file_set_passthrough(in->cf, CACHE_PASS_WRITE);
    mutex_lock(&in->mu);
    if (r < 0 && !in->io.kernel_writes)
        g_clear_pointer(&in->io.kept, io_kept_free);
    if (r < 0) {
        mutex_unlock(&in->mu);
        return r;
    }
    if (!in->io.kernel_writes) {
        in->io.seen_size = size;
        in->io.seen_mtime_ns = mtime_ns;
    }
    in->io.kernel_writes = true;
    backing_save_locked(in);
    mutex_unlock(&in->mu);
    return 0;
}

/* The backing id for one more handle. */
static int enter_passthrough(struct inode *in, bool writes)
{
    mutex_lock(&in->mu);
    bool idle = in->io.n_handles == 0, kernel_writes = in->io.kernel_writes;
    mutex_unlock(&in->mu);
    bool reads = !writes && !kernel_writes;
    int r = reads ? cache_file_set_passthrough(in->cf, CACHE_PASS_READ)
                  : 0; /* first: from here on the file stays where it is */
    int id = r < 0 ? r : backing_use(in);
    r = id < 0 ? id : 0;
    if (r == 0 && writes)
        r = begin_writing(in);
    if (r < 0 && idle && !kernel_writes) {
        backing_unuse(in);
        if (reads && cache_file_set_passthrough(in->cf, CACHE_PASS_OFF) < 0)
            log_warn("io", "passthrough could not be ended ino=%" G_GUINT64_FORMAT, in->ino);
    }
    return r < 0 ? r : id;
}

/* Past the page cache, in CACHED mode: who only writes while nobody uses it, and who joins such a writer. It has to be possible to map the file all the same. */
static bool goes_past_locked(const struct inode *in, int flags) REQUIRES(in->mu)
{
    if (!(atomic_load(&in->fs->fuse_caps) & FUSE_CAP_DIRECT_IO_ALLOW_MMAP))
        return false;
    return (flags & O_ACCMODE) == O_WRONLY ? in->io.n_direct == in->io.n_handles : in->io.n_past > 0;
}

/* One more handle. One inode is one lineage, a change made elsewhere has another: so the kernel may keep its pages, but for what was changed past them. */
static void count_in_locked(struct inode *in, bool writes, struct fuse_file_info *fi) REQUIRES(in->mu)
{
    struct io_state *io = &in->io;
    bool passes = io->mode == IO_PASSTHROUGH, known = !io->was_passed;
    io->n_handles++;
    io->n_writers += writes;
    io->n_direct += fi->direct_io;
    io->n_past += writes && fi->direct_io;
    fi->keep_cache = !passes && known && io->n_past == 0;
    io->was_passed = passes || io->n_past > 0;
}

/* A mode in which the kernel reads past us, and would not tell us of a writer. */
static bool writes_unseen(struct inode *in, enum io_mode mode, bool kernel_writes)
{
    return mode == IO_PASSTHROUGH && !kernel_writes && !cache_file_shows_writers(in->cf);
}

/* By a writer's handle, past us whatever is said. */
static bool can_be_mapped(int flags)
{
    return (flags & O_ACCMODE) != O_WRONLY;
}

bool io_mode_refuses(struct inode *in, int flags)
{
    mutex_lock(&in->mu);
    enum io_mode mode = in->io.mode;
    bool kernel_writes = in->io.kernel_writes;
    mutex_unlock(&in->mu);
    return can_be_mapped(flags) && writes_unseen(in, mode, kernel_writes);
}

static int enter_gated(struct inode *in, bool writes, bool avoid, struct fuse_file_info *fi)
{
    mutex_lock(&in->mu);
    enum io_mode mode = in->io.mode;
    bool kernel_writes = in->io.kernel_writes;
    mutex_unlock(&in->mu);
    bool first = mode == IO_NONE;
    if (first)
        mode = avoid ? IO_CACHED : choose(in, writes);
    bool unseen = writes && writes_unseen(in, mode, kernel_writes);
    if (unseen && can_be_mapped(fi->flags))
        return -ETXTBSY;
    int id = mode == IO_PASSTHROUGH ? enter_passthrough(in, writes && !unseen) : 0;
    if (id < 0 && !first)
        return id;
    if (id < 0)
        mode = IO_CACHED;
    bool direct = first && !writes && mode == IO_CACHED && read_mode_wants_direct(in);
    mutex_lock(&in->mu);
    in->io.mode = mode;
    in->io.direct = direct;
    bool ours = unseen || (writes && (fi->flags & O_DSYNC)); /* passed through it would not send us its writes */
    fi->direct_io = direct || (mode == IO_PASSTHROUGH ? ours : goes_past_locked(in, fi->flags));
    count_in_locked(in, writes, fi);
    backing_save_locked(in);
    mutex_unlock(&in->mu);
    fi->backing_id = mode == IO_PASSTHROUGH ? id : 0;
    fi->parallel_direct_writes = 1;
    fi->noflush = !writes;
    return 0;
}

int io_mode_enter(struct inode *in, bool writes, bool avoid, struct fuse_file_info *fi)
{
    complete_small(in, writes);
    content_gate_enter(in);
    int r = enter_gated(in, writes, avoid, fi);
    content_gate_leave(in);
    return r;
}

void io_mode_leave(struct inode *in, bool writes, bool direct)
{
    (void)io_mode_look(in);
    content_gate_enter(in);
    mutex_lock(&in->mu);
    assert(in->io.n_handles > 0 && in->io.n_writers >= writes && in->io.n_direct >= direct);
    in->io.n_handles--;
    in->io.n_writers -= writes;
    in->io.n_direct -= direct;
    in->io.n_past -= writes && direct;
    bool last = in->io.n_handles == 0, passed = in->io.mode == IO_PASSTHROUGH, kernel_writes = in->io.kernel_writes;
    if (last)
        in->io.mode = IO_NONE;
    backing_save_locked(in);
    mutex_unlock(&in->mu);
    if (last && passed && !kernel_writes) {
        backing_unuse(in); /* first: a file that moves takes its id with it */
        if (cache_file_set_passthrough(in->cf, CACHE_PASS_OFF) < 0)
            log_warn("io", "passthrough could not be ended ino=%" G_GUINT64_FORMAT, in->ino);
    }
    content_gate_leave(in);
}

/* ---- the end of writing ---- */

static bool settled(struct cfile *cf)
{
    for (unsigned i = 0; i < SETTLE_TRIES; i++) {
        if (!cache_file_has_writers(cf))
            return true;
        g_usleep(SETTLE_WAIT_US);
    }
    return false;
}

/* Is the file what the last snapshot of it was made from? */
static bool snapshot_holds_locked(const struct inode *in, const struct io_mark *now) REQUIRES(in->mu)
{
    return in->snap_gen == in->rec.gen && in->snap_mark.mtime_ns && !in->snap_mark.beside_writers &&
           in->snap_mark.mtime_ns == now->mtime_ns && in->snap_mark.size == now->size;
}

bool io_mode_end_writing(struct inode *in, bool *ret_same)
{
    mutex_lock(&in->mu);
    bool kernel_writes = in->io.kernel_writes;
    mutex_unlock(&in->mu);
    *ret_same = false;
    if (!kernel_writes)
        return true;
    if (!settled(in->cf))
        return false;
    struct io_mark now;
    bool known = stat_local(in, in->cf, &now.size, &now.mtime_ns), shows = stores_show(in->cf);
    mutex_lock(&in->mu);
    if (known) /* the last look: one begun before it must not have the last word */
        (void)take_news_locked(in, now.size, now.mtime_ns);
    bool published = known && snapshot_holds_locked(in, &now);
    struct io_kept *kept = g_steal_pointer(&in->io.kept);
    if (!shows) /* a worker of an earlier version kept it */
        g_clear_pointer(&kept, io_kept_free);
    bool readers = in->io.n_handles > 0;
    in->io.kernel_writes = false;
    if (!kept && !published) { /* stores through a mapping need not show in the times */
        in->changed = true;
        in->synced_changes = 0;
    }
    mutex_unlock(&in->mu);
    if (!readers)
        backing_unuse(in);
    int r = cache_file_set_passthrough(in->cf, readers ? CACHE_PASS_READ : CACHE_PASS_OFF);
    if (r == 0 && kept)
        *ret_same = content_restore(in, kept) == 0;
    io_kept_free(kept);
    mutex_lock(&in->mu);
    backing_save_locked(in); /* who takes over before may still go back to what was kept */
    mutex_unlock(&in->mu);
    return true;
}

void io_mode_unnamed(struct inode *in)
{
    content_gate_enter(in);
    mutex_lock(&in->mu);
    bool ends = in->io.kernel_writes && in->n_writers == 0 && in->rec.nlink == 0 && in->cf;
    bool readers = in->io.n_handles > 0;
    if (ends) {
        in->io.kernel_writes = false;
        g_clear_pointer(&in->io.kept, io_kept_free);
        backing_save_locked(in);
    }
    mutex_unlock(&in->mu);
    if (ends && !readers)
        backing_unuse(in);
    if (ends && cache_file_set_passthrough(in->cf, readers ? CACHE_PASS_READ : CACHE_PASS_OFF) < 0)
        log_warn("io", "passthrough could not be ended ino=%" G_GUINT64_FORMAT, in->ino);
    content_gate_leave(in);
}

const char *io_mode_name(struct inode *in)
{
    static const char *const names[] = {[IO_NONE] = "closed", [IO_CACHED] = "cached", [IO_PASSTHROUGH] = "passthrough"};
    mutex_lock(&in->mu);
    const char *name = in->io.mode == IO_CACHED && in->io.direct ? "direct" : names[in->io.mode];
    mutex_unlock(&in->mu);
    return name;
}
