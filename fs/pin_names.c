/* What `sluice pin` named: a value of the database for each, so that the next worker sees to what the one before did not get. */
#include "pin.h"
#include "tree.h"

#include <stdlib.h>

struct named {
    char *value, *path; /* owned; value: its name */
    uint64_t ino;
};

static void named_free(void *p)
{
    struct named *n = p;
    g_free(n->value);
    g_free(n->path);
    g_free(n);
}

static int take_named(void *ctx, const char *name, const void *value, size_t len)
{
    struct named *n = g_new(struct named, 1);
    *n = (struct named){.value = g_strdup(name),
                        .path = g_strndup(value, len),
                        .ino = g_ascii_strtoull(name + strlen(PIN_NAME_PREFIX), NULL, 16)};
    g_ptr_array_add((GPtrArray *)ctx, n);
    return 0;
}

/* NULL path: not any more. */
static int remember(struct fs *fs, const char *value, const char *path)
{
    struct meta_batch *b = meta_batch_new(fs->meta);
    if (path)
        meta_value_put(b, value, path, strlen(path));
    else
        meta_value_del(b, value);
    int r = meta_commit(b, path != NULL);
    meta_batch_free(b);
    return r;
}

int pin_tree(struct fs *fs, uint64_t ino, enum cache_pin pin)
{
    return pin_tree_told(fs, ino, pin, NULL);
}

int pin_by_name(struct fs *fs, uint64_t ino, const char *path, enum cache_pin pin, const struct pin_tick *tick)
{
    g_autofree char *value = g_strdup_printf(PIN_NAME_PREFIX "%016" G_GINT64_MODIFIER "x", ino);
    int r = pin != PIN_NONE ? remember(fs, value, path) : 0; /* before: nothing is pinned that a kill makes forgotten */
    if (r == 0)
        r = pin_tree_told(fs, ino, pin, tick);
    if (r == 0 && pin == PIN_NONE)
        r = remember(fs, value, NULL);
    return r;
}

uint32_t pin_handed_on(const struct meta_inode *from, const struct meta_inode *to)
{
    bool by_name = (from->flags & INODE_PINNED) && !(from->flags & INODE_PIN_RULE);
    return (by_name ? from->flags : to->flags) & INODE_PIN_FLAGS;
}

static bool is_pinned_by_name(struct fs *fs, uint64_t ino)
{
    struct meta_inode rec;
    if (meta_inode_get(fs->meta, ino, &rec) < 0)
        return false;
    bool by_name = (rec.flags & INODE_PINNED) && !(rec.flags & INODE_PIN_RULE);
    meta_inode_clear(&rec);
    return by_name;
}

/* Where it is now, or what took its place there and its pin. NULL: it is not pinned any more. */
static char *path_of(struct fs *fs, const struct named *n)
{
    char *path = NULL;
    uint64_t ino;
    if (is_pinned_by_name(fs, n->ino) && tree_path_of(fs, n->ino, &path) == 0)
        return path;
    return pin_resolve_known(fs, n->path, NULL, &ino) == 0 && is_pinned_by_name(fs, ino) ? g_strdup(n->path) : NULL;
}

void pin_names_add(struct fs *fs, GPtrArray *ret_paths)
{
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func(named_free);
    int r = meta_value_each(fs->meta, PIN_NAME_PREFIX, take_named, all);
    for (unsigned i = 0; r == 0 && i < all->len && !atomic_load(&fs->stopping); i++) {
        const struct named *n = all->pdata[i];
        char *path = path_of(fs, n);
        if (path)
            g_ptr_array_add(ret_paths, path);
        else
            r = remember(fs, n->value, NULL);
    }
    if (r < 0)
        log_notice("pin", "what was pinned by name is not looked at r=%s", err_name(r));
}
