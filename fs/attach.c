/* See attach.h. One thread until the settling is done. */
#include "attach.h"

#include "backing.h"
#include "base/crash.h"
#include "content.h"
#include "handle.h"
#include "io_mode.h"
#include "mapped.h"
#include "op.h"
#include "publish.h"
#include "reap.h"
#include "recover.h"

#define UNSURE_NS (10 * NS_PER_S)

/* ---- handles ---- */

static int attach_inode(struct fs *fs, struct handle *h, struct inode **ret)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, h->slot->ino, &in);
    if (r == 0 && inode_is_dir(in) != h->slot->dir)
        r = -ESTALE;
    if (r == 0 && !h->slot->dir)
        r = content_adopt(in, h->slot->writable);
    if (r < 0)
        return r;
    *ret = g_steal_pointer(&in);
    return 0;
}

/* Cached, unless the file's slot says otherwise: then the mode was not chosen yet. */
static void attach_handle(struct fs *fs, struct handle *h)
{
    struct sess_handle *s = h->slot;
    if (s->virt) {
        h->text = virt_text(fs, s->ino);
        return;
    }
    struct inode *in = NULL;
    int r = attach_inode(fs, h, &in);
    if (r < 0) {
        log_err("attach", "an open file could not be taken over ino=%" G_GUINT64_FORMAT " r=%s", s->ino, err_name(r));
        return;
    }
    h->in = in;
    if (s->dir)
        return;
    mutex_lock(&in->mu);
    bool first = in->io.n_handles == 0;
    in->io.mode = IO_CACHED;
    in->io.direct = first && s->direct && !s->writable;
    in->io.n_handles++;
    in->io.n_writers += s->writable;
    in->io.n_direct += s->direct;
    in->io.n_past += s->direct && s->writable;
    in->passed_over |= s->writable; /* who died may have passed over news of it */
    in->orphan |= atomic_load(&s->left) == s->gen;
    mutex_unlock(&in->mu);
    if (first)
        g_ptr_array_add(fs->attached, inode_ref(in));
}

/* ---- files ---- */

/* Nobody has it open: a mapping may still write it. */
static struct inode *attach_mapped(struct fs *fs, uint64_t ino)
{
    struct inode *in = NULL;
    int r = inode_get(fs, ino, &in);
    if (r == 0)
        r = content_adopt(in, false);
    if (r < 0) {
        log_err("attach", "a mapped file could not be taken over ino=%" G_GUINT64_FORMAT " r=%s", ino, err_name(r));
        inode_put(in);
        return NULL;
    }
    g_ptr_array_add(fs->attached, inode_ref(in));
    return in;
}

/* The file is where the kernel has it, and stays there. */
static int pass_again(struct inode *in)
{
    struct cache_source none = {0};
    mutex_lock(&in->mu);
    enum io_mode mode = in->io.mode;
    bool kernel_writes = in->io.kernel_writes;
    mutex_unlock(&in->mu);
    int r = kernel_writes && cache_file_has_source(in->cf) ? cache_file_set_source(in->cf, &none) : 0;
    if (r == 0 && (kernel_writes || mode == IO_PASSTHROUGH))
        r = cache_file_set_passthrough(in->cf, kernel_writes ? CACHE_PASS_WRITE : CACHE_PASS_READ);
    return r;
}

/* What was sealed last is still there, if who opened the file since only added to it: else nobody knows, and a mapping may change it as a handle may. */
static void take_rewriters_locked(struct inode *in, struct sess_file *slot) REQUIRES(in->mu)
{
    uint32_t generation = in->fs->session->head->generation;
    bool appended = slot->appended == generation - 1;
    in->rewriters = !appended && (in->rewriters || slot->kernel_writes);
    if (in->rewriters)
        in->sealed_changes = UINT64_MAX;
    if (appended) /* now we say so */
        slot->appended = generation;
}

static void attach_file(struct fs *fs, struct sess_file *slot)
{
    INODE_REF in = inode_find(fs, slot->ino);
    if (!in && slot->kernel_writes)
        in = attach_mapped(fs, slot->ino);
    bool used = in && !in->io.slot && (in->io.n_handles > 0 || slot->kernel_writes);
    if (!used) {
        backing_leave(fs, slot);
        return;
    }
    struct io_kept *kept = slot->kept ? content_kept(in) : NULL;
    backing_adopt(in, slot);
    mutex_lock(&in->mu);
    bool dirty = in->rec.content == CONTENT_OPEN || in->rec.content == CONTENT_CLOSING;
    in->io.kernel_writes = slot->kernel_writes && dirty; /* else it had just been ended */
    in->io.mode = in->io.n_handles == 0 ? IO_NONE : slot->mode != IO_NONE ? (enum io_mode)slot->mode : IO_CACHED;
    in->io.seen_size = slot->seen_size;
    in->io.seen_mtime_ns = slot->seen_mtime_ns;
    take_rewriters_locked(in, slot);
    in->io.n_news = in->io.kernel_writes && !kept; /* handles know of none: they were all written, then */
    if (in->io.kernel_writes)
        in->io.kept = g_steal_pointer(&kept);
    bool passed = in->io.mode == IO_PASSTHROUGH || in->io.kernel_writes;
    mutex_unlock(&in->mu);
    io_kept_free(kept);
    if (!passed)
        backing_unuse(in); /* left from an earlier open: it goes with its cache file */
    int r = pass_again(in);
    if (r < 0)
        log_err("attach", "a file that the kernel reads by itself may move ino=%" G_GUINT64_FORMAT " r=%s", in->ino,
                err_name(r));
}

int fs_attach(struct fs *fs)
{
    if (!session_is_takeover(fs->session))
        return 0;
    handle_table_adopt(fs);
    for (unsigned i = 0; i < fs->handles->len; i++)
        if (fs->handles->pdata[i])
            attach_handle(fs, fs->handles->pdata[i]);
    uint32_t n = atomic_load(&fs->session->head->n_files);
    for (uint32_t i = 0; i < n; i++) {
        struct sess_file *slot = &fs->session->files[i];
        if (atomic_load(&slot->state) == FILE_USED)
            attach_file(fs, slot);
        else
            backing_leave(fs, slot);
    }
    CRASH_POINT(takeover_attached);
    log_notice("attach", "taking over handles=%u files=%u", fs->handles->len - fs->free_handles->len,
               fs->attached->len);
    return recover_orphan_each(fs, inode_await_forget);
}

/* ---- settling ---- */

static int settle(struct inode *in)
{
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r < 0)
        return r;
    r = content_take_over(in);
    mutex_lock(&in->mu);
    uint32_t state = in->rec.content;
    bool written = in->n_writers > 0, mapped = in->io.kernel_writes, named = in->rec.nlink > 0;
    in->intent_late = true; /* perhaps: who died knew */
    mutex_unlock(&in->mu);
    bool closed = !written && (state == CONTENT_CLOSING || (state == CONTENT_OPEN && mapped));
    if (r == 0 && written && (state == CONTENT_CLOSING || state == CONTENT_OPEN))
        mapped_flushed(in);
    else if (r == 0 && closed && named)
        r = content_seal(in);
    else if (r == 0 && closed)
        io_mode_unnamed(in);
    content_unuse(in, cf);
    return r;
}

static void settle_or_say(struct inode *in)
{
    int r = S_ISREG(in->rec.mode) ? settle(in) : 0;
    if (r < 0)
        log_err("attach", "an open file's record could not be brought up to date ino=%" G_GUINT64_FORMAT " r=%s",
                in->ino, err_name(r));
}

static void settle_unfinished(struct fs *fs, uint64_t ino)
{
    INODE_REF in = inode_find(fs, ino);
    bool open = in && in->n_open > 0; /* done */
    if (!open && (in || inode_get(fs, ino, &in) == 0) && in->rec.nlink > 0)
        settle_or_say(in);
}

/* A handle of which nobody knows whether the kernel has it. */
struct unsure {
    uint64_t fh, unique;
    struct inode *in; /* owned reference; NULL: not a file that may be written, or given up */
};

static void add_unsure(struct fs *fs, const struct handle *h)
{
    bool writes = h->in && h->slot->writable;
    struct unsure u = {h->fh, h->slot->unique, writes ? inode_ref(h->in) : NULL};
    g_array_append_val(fs->unsure, u);
}

static void release(struct fs *fs, struct handle *h)
{
    if (h->in && !h->slot->dir) {
        io_mode_leave(h->in, h->slot->writable, h->slot->direct);
        content_release(h->in, h->slot->writable);
    }
    handle_free(fs, h->fh);
}

/* What was begun with handles is ended, or waited for. */
static void settle_handles(struct fs *fs)
{
    for (unsigned i = 0; i < fs->handles->len; i++) {
        struct handle *h = fs->handles->pdata[i];
        uint32_t state = h ? atomic_load(&h->slot->state) : SLOT_FREE;
        if (state == SLOT_RELEASING)
            release(fs, h);
        else if (state == SLOT_OPENING)
            add_unsure(fs, h);
    }
    fs->unsure_until_ns = clock_mono_ns() + UNSURE_NS;
}

int fs_attach_settle(struct fs *fs)
{
    if (!session_is_takeover(fs->session))
        return 0;
    for (unsigned i = 0; i < fs->attached->len; i++)
        settle_or_say(fs->attached->pdata[i]);
    CRASH_POINT(takeover_files);
    settle_handles(fs);
    for (unsigned i = 0; i < fs->attached->len; i++) {
        struct inode *in = fs->attached->pdata[i];
        if (in->io.n_handles == 0 && in->n_open > 0) /* attach_mapped() */
            content_abandon(in, false);
        inode_put(in);
    }
    g_ptr_array_set_size(fs->attached, 0);
    CRASH_POINT(takeover_handles);
    return recover_open_each(fs, settle_unfinished);
}

/* ---- handles that the kernel may not have ---- */

static bool take_unsure(struct fs *fs, uint64_t unique, struct unsure *ret)
{
    bool found = false;
    mutex_lock(&fs->handle_mu);
    for (unsigned i = 0; !found && i < fs->unsure->len; i++) {
        *ret = g_array_index(fs->unsure, struct unsure, i);
        found = ret->unique == unique;
        if (found)
            g_array_remove_index_fast(fs->unsure, i);
    }
    mutex_unlock(&fs->handle_mu);
    return found;
}

void attach_replaces(struct fs *fs, uint64_t unique)
{
    struct unsure u;
    while (unique && take_unsure(fs, unique, &u)) { /* several, if more than one worker died of it */
        struct handle *h = handle_get(fs, u.fh);
        if (h)
            release(fs, h);
        inode_put(u.in);
    }
}

void attach_confirm(struct fs *fs, struct handle *h)
{
    handle_opened(fs, h->fh);
    if (!h->in)
        return;
    mutex_lock(&h->in->mu);
    if (h->given_up) {
        h->given_up = false;
        h->in->n_writers++;
        h->in->io.n_writers++;
    }
    mutex_unlock(&h->in->mu);
}

/* It counts as no writer any more. Readers keep nothing from being published. */
static void give_up(struct fs *fs, const struct unsure *u)
{
    struct inode *in = u->in;
    mutex_lock(&in->mu);
    struct handle *h = handle_find(fs, u->fh);
    bool gone = h && atomic_load(&h->slot->state) == SLOT_OPENING;
    if (gone) {
        h->given_up = true;
        in->n_writers--;
        in->io.n_writers--;
    }
    bool named = in->rec.nlink > 0;
    mutex_unlock(&in->mu);
    if (!gone)
        return;
    log_info("attach", "who was opening a file is gone ino=%" G_GUINT64_FORMAT, in->ino);
    int r = named ? content_seal(in) : 0;
    if (r < 0)
        log_warn("attach", "a file that nobody has open could not be sealed ino=%" G_GUINT64_FORMAT " r=%s", in->ino,
                 err_name(r));
    publish_writers_gone(fs, in->ino);
    publish_look_again(in);
}

bool attach_was_opening(struct fs *fs, uint64_t unique)
{
    bool found = false;
    mutex_lock(&fs->handle_mu);
    for (unsigned i = 0; unique && !found && i < fs->unsure->len; i++)
        found = g_array_index(fs->unsure, struct unsure, i).unique == unique;
    mutex_unlock(&fs->handle_mu);
    return found;
}

/* The request may still come, when what it waits for does: the handle is known until then. */
void attach_expire(struct fs *fs)
{
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(struct unsure));
    mutex_lock(&fs->handle_mu);
    bool due = clock_mono_ns() >= fs->unsure_until_ns;
    for (unsigned i = 0; due && i < fs->unsure->len; i++) {
        struct unsure *u = &g_array_index(fs->unsure, struct unsure, i);
        if (u->in)
            g_array_append_val(list, *u);
        u->in = NULL;
    }
    mutex_unlock(&fs->handle_mu);
    for (unsigned i = 0; i < list->len; i++) {
        const struct unsure *u = &g_array_index(list, struct unsure, i);
        give_up(fs, u);
        inode_put(u->in);
    }
}

void attach_init(struct fs *fs)
{
    fs->attached = g_ptr_array_new();
    fs->unsure = g_array_new(FALSE, FALSE, sizeof(struct unsure));
}

void attach_fini(struct fs *fs)
{
    for (unsigned i = 0; i < fs->attached->len; i++)
        inode_put(fs->attached->pdata[i]);
    g_ptr_array_unref(fs->attached);
    for (unsigned i = 0; i < fs->unsure->len; i++)
        inode_put(g_array_index(fs->unsure, struct unsure, i).in);
    g_array_unref(fs->unsure);
}
