/* The handle table: slots in the session's memory, an array of what this process has for each, and a list of free ones, under one lock. */
#include "handle.h"

#include "attach.h"
#include "content.h"
#include "request.h"

static struct sess_handle *slot_of(struct fs *fs, uint32_t index)
{
    return &fs->session->handles[index];
}

void handle_table_init(struct fs *fs)
{
    mutex_init(&fs->handle_mu, LOCK_HANDLE);
    fs->handles = g_ptr_array_new();
    fs->free_handles = g_array_new(FALSE, FALSE, sizeof(uint32_t));
}

static void free_one(struct handle *h)
{
    inode_put(h->in);
    g_free(h->text);
    g_free(h);
}

void handle_table_fini(struct fs *fs)
{
    if (!fs->handles)
        return;
    for (unsigned i = 0; i < fs->handles->len; i++) {
        struct handle *h = fs->handles->pdata[i];
        if (h && h->in && S_ISREG(h->in->rec.mode))
            content_abandon(h->in,
                            h->slot->writable && !h->given_up); /* the connection ended before the file was closed */
        if (h)
            free_one(h);
    }
    g_ptr_array_unref(fs->handles);
    g_array_unref(fs->free_handles);
    mutex_fini(&fs->handle_mu);
}

/* -ENFILE or the number of a slot. */
static int take_slot_locked(struct fs *fs, uint32_t *ret) REQUIRES(fs->handle_mu)
{
    if (fs->free_handles->len > 0) {
        *ret = g_array_index(fs->free_handles, uint32_t, fs->free_handles->len - 1);
        g_array_set_size(fs->free_handles, fs->free_handles->len - 1);
        return 0;
    }
    if (fs->handles->len == SESSION_HANDLES)
        return -ENFILE;
    *ret = fs->handles->len;
    g_ptr_array_add(fs->handles, NULL);
    atomic_store(&fs->session->head->n_handles, fs->handles->len);
    return 0;
}

static void fill_slot(struct sess_handle *s, const struct sess_handle *what)
{
    s->gen++;
    s->unique = request_unique();
    s->ino = what->ino;
    s->id_limit = what->id_limit;
    s->tid = what->tid;
    s->writable = what->writable;
    s->dir = what->dir;
    s->virt = what->virt;
    s->direct = 0;
    atomic_store(&s->wrote, 0);
    atomic_store(&s->fresh, atomic_load(&what->fresh));
    atomic_store(&s->state, SLOT_OPENING);
}

void handle_table_adopt(struct fs *fs)
{
    uint32_t n = MIN(atomic_load(&fs->session->head->n_handles), SESSION_HANDLES);
    mutex_lock(&fs->handle_mu);
    g_ptr_array_set_size(fs->handles, (int)n);
    for (uint32_t i = 0; i < n; i++) {
        struct sess_handle *s = slot_of(fs, i);
        if (atomic_load(&s->state) == SLOT_FREE) {
            g_array_append_val(fs->free_handles, i);
            continue;
        }
        struct handle *h = g_new(struct handle, 1);
        *h = (struct handle){.slot = s, .fh = (uint64_t)s->gen << 32 | i, .adopted = true};
        fs->handles->pdata[i] = h;
    }
    mutex_unlock(&fs->handle_mu);
}

int handle_new(struct fs *fs, struct inode *in, const struct sess_handle *what, struct handle **ret)
{
    uint32_t index = 0;
    mutex_lock(&fs->handle_mu);
    int r = take_slot_locked(fs, &index);
    if (r < 0) {
        mutex_unlock(&fs->handle_mu);
        return r;
    }
    struct sess_handle *s = slot_of(fs, index);
    fill_slot(s, what);
    struct handle *h = g_new(struct handle, 1);
    *h = (struct handle){.slot = s, .fh = (uint64_t)s->gen << 32 | index};
    fs->handles->pdata[index] = h;
    mutex_unlock(&fs->handle_mu);
    h->in = in ? inode_ref(in) : NULL;
    *ret = h;
    return 0;
}

static struct handle *find_locked(struct fs *fs, uint64_t fh) REQUIRES(fs->handle_mu)
{
    uint32_t index = (uint32_t)fh;
    struct handle *h = index < fs->handles->len ? fs->handles->pdata[index] : NULL;
    return h && h->fh == fh ? h : NULL;
}

struct handle *handle_find(struct fs *fs, uint64_t fh)
{
    mutex_lock(&fs->handle_mu);
    struct handle *h = find_locked(fs, fh);
    mutex_unlock(&fs->handle_mu);
    return h;
}

struct handle *handle_get(struct fs *fs, uint64_t fh)
{
    struct handle *h = handle_find(fs, fh);
    if (h && atomic_load(&h->slot->state) == SLOT_OPENING)
        attach_confirm(fs, h);
    return h;
}

void handle_opened(struct fs *fs, uint64_t fh)
{
    uint32_t opening = SLOT_OPENING;
    mutex_lock(&fs->handle_mu);
    struct handle *h = find_locked(fs, fh);
    if (h)
        (void)atomic_compare_exchange_strong(&h->slot->state, &opening, SLOT_OPEN); /* else it is being released */
    mutex_unlock(&fs->handle_mu);
}

void handle_releasing(struct fs *fs, uint64_t fh)
{
    mutex_lock(&fs->handle_mu);
    struct handle *h = find_locked(fs, fh);
    if (h)
        atomic_store(&h->slot->state, SLOT_RELEASING);
    mutex_unlock(&fs->handle_mu);
}

void handle_free(struct fs *fs, uint64_t fh)
{
    uint32_t index = (uint32_t)fh;
    mutex_lock(&fs->handle_mu);
    struct handle *h = find_locked(fs, fh);
    if (h) {
        atomic_store(&h->slot->state, SLOT_FREE);
        fs->handles->pdata[index] = NULL;
        g_array_append_val(fs->free_handles, index);
    }
    mutex_unlock(&fs->handle_mu);
    if (h)
        free_one(h);
}

static enum handles_held held_by_locked(struct fs *fs, const struct handle *h) REQUIRES(fs->handle_mu)
{
    uint32_t state = h ? atomic_load(&h->slot->state) : SLOT_FREE;
    if (state == SLOT_OPENING && h->adopted)
        return clock_mono_ns() < fs->unsure_until_ns ? HANDLES_UNSURE : HANDLES_NONE;
    return state == SLOT_OPENING || state == SLOT_OPEN ? HANDLES_OPEN : HANDLES_NONE;
}

enum handles_held handle_held(struct fs *fs, uint64_t *ret_ino, int32_t *ret_tid)
{
    enum handles_held most = HANDLES_NONE;
    mutex_lock(&fs->handle_mu);
    for (unsigned i = 0; i < fs->handles->len && most != HANDLES_OPEN; i++) {
        const struct handle *h = fs->handles->pdata[i];
        enum handles_held one = held_by_locked(fs, h);
        most = MAX(most, one);
        if (one == HANDLES_OPEN) {
            *ret_ino = h->slot->ino;
            *ret_tid = h->slot->tid;
        }
    }
    mutex_unlock(&fs->handle_mu);
    return most;
}
