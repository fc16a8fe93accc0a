/* The handle table: an array with a list of free places, under its own lock. */
#include "handle.h"

#include "content.h"

void handle_table_init(struct fs *fs)
{
    mutex_init(&fs->handle_mu, LOCK_HANDLE);
    fs->handles = g_ptr_array_new();
    fs->free_handles = g_array_new(FALSE, FALSE, sizeof(uint64_t));
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
            content_abandon(h->in, h->writable); /* the connection ended before the file was closed */
        if (h)
            free_one(h);
    }
    g_ptr_array_unref(fs->handles);
    g_array_unref(fs->free_handles);
    mutex_fini(&fs->handle_mu);
}

uint64_t handle_new(struct fs *fs, struct inode *in, struct handle **ret)
{
    struct handle *h = g_new0(struct handle, 1);
    h->in = in;
    uint64_t fh;
    mutex_lock(&fs->handle_mu);
    if (fs->free_handles->len > 0) {
        fh = g_array_index(fs->free_handles, uint64_t, fs->free_handles->len - 1);
        g_array_set_size(fs->free_handles, fs->free_handles->len - 1);
        fs->handles->pdata[fh] = h;
    } else {
        fh = fs->handles->len;
        g_ptr_array_add(fs->handles, h);
    }
    mutex_unlock(&fs->handle_mu);
    *ret = h;
    return fh;
}

struct handle *handle_get(struct fs *fs, uint64_t fh)
{
    mutex_lock(&fs->handle_mu);
    struct handle *h = fh < fs->handles->len ? fs->handles->pdata[fh] : NULL;
    mutex_unlock(&fs->handle_mu);
    return h;
}

void handle_free(struct fs *fs, uint64_t fh)
{
    mutex_lock(&fs->handle_mu);
    struct handle *h = fh < fs->handles->len ? fs->handles->pdata[fh] : NULL;
    if (h) {
        fs->handles->pdata[fh] = NULL;
        g_array_append_val(fs->free_handles, fh);
    }
    mutex_unlock(&fs->handle_mu);
    if (h)
        free_one(h);
}
