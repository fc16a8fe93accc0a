/* See backing.h. All under fs->io_mu, which nothing holds over the system calls: an id that is taken out of its inode belongs to who took it, with its slot. */
#include "backing.h"

#include "base/crash.h"
#include "io_mode.h"

#include <assert.h>
#include <errno.h>
#include <linux/fuse.h>
#include <sys/ioctl.h>

#ifndef FUSE_DEV_IOC_BACKING_OPEN /* kernel headers before 6.9 */
struct fuse_backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define FUSE_DEV_IOC_BACKING_OPEN  _IOW(229, 1, struct fuse_backing_map)
#define FUSE_DEV_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)
#endif

/* An id that nobody uses, and its slot (NULL: none), on their way out. */
struct leaving {
    int id;
    struct sess_file *slot;
};

void backing_init(struct fs *fs)
{
    mutex_init(&fs->io_mu, LOCK_IO_MODE);
    g_queue_init(&fs->io_idle);
    fs->free_files = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    fs->left_files = g_ptr_array_new();
}

void backing_fini(struct fs *fs)
{
    g_array_unref(fs->free_files);
    g_ptr_array_unref(fs->left_files);
    mutex_fini(&fs->io_mu);
}

/* ---- slots ---- */

static struct sess_file *take_slot_locked(struct fs *fs) REQUIRES(fs->io_mu)
{
    struct session *s = fs->session;
    uint32_t n = atomic_load(&s->head->n_files);
    if (fs->free_files->len > 0) {
        uint32_t index = g_array_index(fs->free_files, uint32_t, fs->free_files->len - 1);
        g_array_set_size(fs->free_files, fs->free_files->len - 1);
        return &s->files[index];
    }
    if (n == SESSION_FILES) {
        log_warn("io", "more files are in use than a takeover can know of");
        return NULL;
    }
    atomic_store(&s->head->n_files, n + 1);
    return &s->files[n];
}

static void free_slot_locked(struct fs *fs, struct sess_file *slot) REQUIRES(fs->io_mu)
{
    uint32_t index = (uint32_t)(slot - fs->session->files);
    atomic_store(&slot->state, FILE_FREE);
    g_array_append_val(fs->free_files, index);
}

/* A kill in between must not leave an origin to go back to beside marks of later writes. */
static void fill_slot(struct sess_file *slot, const struct inode *in)
{
    const struct io_state *io = &in->io;
    slot->ino = in->ino;
    slot->kept = slot->kept && io->kept;
    slot->appended = in->rewriters ? 0 : in->fs->session->head->generation;
    atomic_signal_fence(memory_order_seq_cst);
    slot->seen_size = io->seen_size;
    slot->seen_mtime_ns = io->seen_mtime_ns;
    slot->backing_id = io->backing_id;
    slot->backing_vid = io->backing_vid;
    slot->mode = (uint8_t)io->mode;
    slot->kernel_writes = io->kernel_writes;
    atomic_signal_fence(memory_order_seq_cst);
    slot->kept = io->kept != NULL;
    atomic_store(&slot->state, FILE_USED);
}

static void save_locked(struct fs *fs, struct inode *in) REQUIRES(in->mu) REQUIRES(fs->io_mu)
{
    struct io_state *io = &in->io;
    bool known = io->mode != IO_NONE || io->kernel_writes || io->backing_id;
    if (known && !io->slot) {
        io->slot = take_slot_locked(fs);
        if (io->slot)
            io->slot->kept = 0;
    }
    if (known && io->slot)
        fill_slot(io->slot, in);
    if (!known && io->slot)
        free_slot_locked(fs, g_steal_pointer(&io->slot));
}

void backing_save_locked(struct inode *in)
{
    struct fs *fs = in->fs;
    mutex_assert_held(&in->mu);
    mutex_lock(&fs->io_mu);
    save_locked(fs, in);
    mutex_unlock(&fs->io_mu);
}

void backing_rewrite_locked(struct inode *in)
{
    struct fs *fs = in->fs;
    mutex_assert_held(&in->mu);
    in->rewriters = true;
    mutex_lock(&fs->io_mu);
    if (in->io.slot)
        in->io.slot->appended = 0;
    mutex_unlock(&fs->io_mu);
}

/* ---- ids ---- */

static int register_id(struct fs *fs, int file_fd)
{
    struct fuse_backing_map map = {.fd = file_fd};
    int id = ioctl(fuse_session_fd(fs->se), FUSE_DEV_IOC_BACKING_OPEN, &map);
    if (id > 0)
        return id;
    int r = id < 0 ? -errno : -EIO;
    if (r == -EPERM || r == -ELOOP || r == -EOPNOTSUPP) {
        const char *why = r == -EPERM   ? "no CAP_SYS_ADMIN"
                          : r == -ELOOP ? "the cache folder lies on a stacked file system (a container's layer?)"
                                        : "the cache folder's file system does not support it";
        log_notice("io", "files are not passed through to the cache disk: %s", why);
        atomic_store(&fs->io_refused, why);
    }
    return r;
}

static void idle_remove_locked(struct fs *fs, struct io_state *io) REQUIRES(fs->io_mu)
{
    if (io->idle.data)
        g_queue_unlink(&fs->io_idle, &io->idle);
    io->idle.data = NULL;
}

/* Takes the id out of its inode; the caller lets it go. */
static struct leaving steal_locked(struct fs *fs, struct io_state *io) REQUIRES(fs->io_mu)
{
    struct leaving l = {io->backing_id, NULL};
    idle_remove_locked(fs, io);
    fs->n_backing_ids -= l.id > 0;
    if (l.id > 0)
        l.slot = g_steal_pointer(&io->slot);
    io->backing_id = 0;
    if (l.slot)
        atomic_store(&l.slot->state, FILE_CLOSING);
    return l;
}

static int unregister_id(struct fs *fs, int id)
{
    uint32_t arg = (uint32_t)id;
    return RET_ERRNO(ioctl(fuse_session_fd(fs->se), FUSE_DEV_IOC_BACKING_CLOSE, &arg));
}

static void let_go(struct fs *fs, const struct leaving *l)
{
    bool told = l->id > 0 && fs->se && !atomic_load(&fs->stopping);
    int r = told ? unregister_id(fs, l->id) : 0;
    if (told && r == 0)
        metric_inc(M_backing_ids_closed);
    if (r < 0)
        log_debug("io", "backing id %d could not be closed: %s", l->id, err_name(r));
    if (!l->slot)
        return;
    mutex_lock(&fs->io_mu);
    free_slot_locked(fs, l->slot);
    mutex_unlock(&fs->io_mu);
}

/* The kernel is told nothing any more. Where a start failed, the next worker finds what programs have open, and what nobody uses. */
static void leave_slot_locked(struct fs *fs, struct io_state *io) REQUIRES(fs->io_mu)
{
    bool used = io->mode != IO_NONE || io->kernel_writes;
    idle_remove_locked(fs, io);
    if (io->slot && !used)
        atomic_store(&io->slot->state, FILE_CLOSING);
}

void backing_forget(struct inode *in)
{
    struct fs *fs = in->fs;
    struct leaving l = {0};
    mutex_lock(&fs->io_mu);
    if (atomic_load(&fs->stopping)) {
        leave_slot_locked(fs, &in->io);
    } else {
        l = steal_locked(fs, &in->io);
        if (in->io.slot)
            free_slot_locked(fs, g_steal_pointer(&in->io.slot));
    }
    mutex_unlock(&fs->io_mu);
    let_go(fs, &l);
}

void backing_drop(struct fs *fs, uint64_t ino)
{
    struct leaving l = {0};
    if (atomic_load(&fs->stopping))
        return; /* the connection and all its ids go */
    mutex_lock(&fs->table_mu);
    struct inode *in = g_hash_table_lookup(fs->inodes, &ino);
    if (in) {
        mutex_lock(&fs->io_mu);
        if (in->io.idle.data) {
            l = steal_locked(fs, &in->io);
        } else if (in->io
                       .backing_id) { /* a new file may get the same number: keep_id() must not take this one for it */
            log_debug("io", "backing id %d outlives its cache file ino=%" G_GUINT64_FORMAT, in->io.backing_id, ino);
            in->io.backing_vid = 0;
            if (in->io.slot)
                in->io.slot->backing_vid = 0;
        }
        mutex_unlock(&fs->io_mu);
    }
    mutex_unlock(&fs->table_mu);
    let_go(fs, &l);
}

/* The file's id, unless it stands for another cache file, which it then leaves. */
static int keep_id(struct inode *in, uint64_t vid)
{
    struct fs *fs = in->fs;
    struct leaving old = {0};
    mutex_lock(&fs->io_mu);
    idle_remove_locked(fs, &in->io);
    int id = in->io.backing_vid == vid ? in->io.backing_id : 0;
    if (!id)
        old = steal_locked(fs, &in->io);
    mutex_unlock(&fs->io_mu);
    let_go(fs, &old);
    return id;
}

bool backing_is_kept(struct inode *in, uint64_t vid)
{
    mutex_lock(&in->fs->io_mu);
    bool kept = in->io.idle.data && in->io.backing_vid == vid;
    mutex_unlock(&in->fs->io_mu);
    return kept;
}

int backing_in_use_locked(struct inode *in, uint64_t vid)
{
    struct fs *fs = in->fs;
    mutex_assert_held(&in->mu);
    mutex_lock(&fs->io_mu);
    int id = in->io.backing_vid == vid ? in->io.backing_id : 0;
    assert(!id || !in->io.idle.data); /* a handle has it */
    mutex_unlock(&fs->io_mu);
    return id;
}

int backing_take_kept_locked(struct inode *in, uint64_t vid)
{
    struct fs *fs = in->fs;
    mutex_assert_held(&in->mu);
    mutex_lock(&fs->io_mu);
    bool kept = in->io.idle.data && in->io.backing_vid == vid;
    int id = kept ? in->io.backing_id : 0;
    assert(!kept || id > 0);
    if (kept) {
        idle_remove_locked(fs, &in->io);
        save_locked(fs, in);
    }
    mutex_unlock(&fs->io_mu);
    return id;
}

static void idle_add_locked(struct fs *fs, struct io_state *io) REQUIRES(fs->io_mu)
{
    if (!io->backing_id || io->idle.data)
        return;
    io->idle.data = io;
    g_queue_push_tail_link(&fs->io_idle, &io->idle);
}

void backing_keep_locked(struct inode *in)
{
    struct fs *fs = in->fs;
    mutex_assert_held(&in->mu);
    mutex_lock(&fs->io_mu);
    idle_add_locked(fs, &in->io);
    save_locked(fs, in);
    mutex_unlock(&fs->io_mu);
}

int backing_use(struct inode *in)
{
    struct fs *fs = in->fs;
    struct leaving oldest = {0};
    uint64_t vid = cache_file_vid(in->cf);
    int id = keep_id(in, vid);
    if (id)
        return id;
    id = register_id(fs, cache_file_fd(in->cf));
    if (id < 0)
        return id;
    CRASH_POINT(backing_given);
    metric_inc(M_backing_ids_made);
    mutex_lock(&in->mu);
    mutex_lock(&fs->io_mu);
    in->io.backing_id = id;
    in->io.backing_vid = vid;
    save_locked(fs, in);
    if (++fs->n_backing_ids > fs->cfg->backing_ids && fs->io_idle.head)
        oldest = steal_locked(fs, fs->io_idle.head->data);
    mutex_unlock(&fs->io_mu);
    mutex_unlock(&in->mu);
    let_go(fs, &oldest);
    return id;
}

void backing_unuse(struct inode *in)
{
    struct fs *fs = in->fs;
    mutex_lock(&fs->io_mu);
    idle_add_locked(fs, &in->io);
    mutex_unlock(&fs->io_mu);
}

/* ---- takeover ---- */

void backing_adopt(struct inode *in, struct sess_file *slot)
{
    struct fs *fs = in->fs;
    mutex_lock(&fs->io_mu);
    in->io.slot = slot;
    in->io.backing_id = slot->backing_id;
    in->io.backing_vid = slot->backing_vid;
    fs->n_backing_ids += slot->backing_id > 0;
    mutex_unlock(&fs->io_mu);
}

void backing_leave(struct fs *fs, struct sess_file *slot)
{
    bool known = atomic_load(&slot->state) != FILE_FREE && slot->backing_id > 0;
    mutex_lock(&fs->io_mu);
    if (known)
        g_ptr_array_add(fs->left_files, slot);
    else
        free_slot_locked(fs, slot);
    mutex_unlock(&fs->io_mu);
}

/*
 * Ids that the kernel gave and no slot tells of: the worker was killed between the two. Each would keep the bytes of a dropped file on the disk. The kernel counts ids
 * up and gives none a second time, so what lies below the next one and is in no slot is nobody's; to close what is closed does nothing.
 */
struct sweep {
    struct fs *fs;
    GHashTable *used; /* owned: ids in slots */
    int from, to;
};

static void sweep_run(void *arg)
{
    struct sweep *s = arg;
    struct fs *fs = s->fs;
    unsigned n = 0;
    int id = s->from;
    for (; id < s->to && !atomic_load(&fs->stopping); id++)
        n += !g_hash_table_contains(s->used, GINT_TO_POINTER(id)) && unregister_id(fs, id) == 0;
    if (id == s->to)
        atomic_store(&fs->session->head->id_low, s->to);
    if (n > 0)
        log_info("io", "backing ids that nobody knew of were closed n=%u", n);
    g_hash_table_unref(s->used);
    g_free(s);
}

static GHashTable *ids_in_slots(struct fs *fs)
{
    GHashTable *used = g_hash_table_new(NULL, NULL);
    uint32_t n = atomic_load(&fs->session->head->n_files);
    for (uint32_t i = 0; i < n; i++) {
        const struct sess_file *slot = &fs->session->files[i];
        if (atomic_load(&slot->state) != FILE_FREE && slot->backing_id > 0)
            g_hash_table_add(used, GINT_TO_POINTER(slot->backing_id));
    }
    return used;
}

/* The id that the kernel would give next; 0 or -errno: none, and io_mode_works() knows that from now on. */
static int next_id(struct fs *fs)
{
    const char *why;
    int id = io_mode_works(fs, &why) ? register_id(fs, fs->lock_fd) : 0;
    if (id > 0)
        (void)unregister_id(fs, id); /* it stands for no cache file */
    return id;
}

static void sweep_ids(struct fs *fs, int next)
{
    struct sweep *s = g_new(struct sweep, 1);
    *s = (struct sweep){fs, ids_in_slots(fs), atomic_load(&fs->session->head->id_low) + 1, next};
    if (!workq_push(fs->list_q, false, sweep_run, s))
        sweep_run(s); /* stopping: it does nothing */
}

void backing_start(struct fs *fs)
{
    int next = fs->se ? next_id(fs) : 0;
    if (!session_is_takeover(fs->session) || !fs->se)
        return;
    if (next > 0)
        sweep_ids(fs, next);
    mutex_lock(&fs->io_mu);
    GPtrArray *list = fs->left_files;
    fs->left_files = g_ptr_array_new();
    mutex_unlock(&fs->io_mu);
    for (unsigned i = 0; i < list->len; i++) {
        struct sess_file *slot = list->pdata[i];
        struct leaving l = {slot->backing_id, slot};
        atomic_store(&slot->state, FILE_CLOSING);
        let_go(fs, &l);
    }
    g_ptr_array_unref(list);
}
