/* Paths and keys of names: walks up the parents that directory inodes carry. */
#include "conflict.h"
#include "key_names.h"
#include "tree.h"

#include <assert.h>

#define LINKS_MAX 40 /* as the kernel */

char *tree_dir_prefix(struct fs *fs, uint64_t dir)
{
    mutex_assert_held(&fs->ns);
    GString *s = g_string_new(NULL);
    for (unsigned depth = 0; dir != META_ROOT_INO && depth < 4096; depth++) {
        INODE_REF in = NULL;
        if (inode_get(fs, dir, &in) < 0 || !in->name) {
            g_string_prepend(s, "?/"); /* a directory without a name: removed while in use */
            break;
        }
        g_string_prepend_c(s, '/');
        g_string_prepend(s, in->name);
        dir = in->rec.parent;
    }
    return g_string_free(s, FALSE);
}

bool tree_path_below(const char *path, const char *above)
{
    size_t len = strlen(above);
    return len == 0 || (strncmp(path, above, len) == 0 && (path[len] == '\0' || path[len] == '/'));
}

char *tree_key(struct fs *fs, uint64_t parent, const char *name, bool slash)
{
    if (parent == META_ASIDE_INO)
        return conflict_path(fs->meta, name);
    g_autofree char *prefix = tree_dir_prefix(fs, parent);
    return g_strconcat(prefix, name, slash ? "/" : NULL, NULL);
}

int tree_path_of(struct fs *fs, uint64_t ino, char **ret)
{
    if (ino == META_ROOT_INO) {
        *ret = g_strdup("");
        return 0;
    }
    struct meta_dentry d = {0};
    mutex_lock(&fs->ns);
    int r = meta_link_first(fs->meta, ino, &d);
    if (r == 0)
        *ret = tree_key(fs, d.parent, d.name, false);
    mutex_unlock(&fs->ns);
    meta_dentry_clear(&d);
    return r;
}

int tree_resolve(struct fs *fs, const char *path, struct inode **ret)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    INODE_REF in = NULL;
    int r = inode_get(fs, META_ROOT_INO, &in);
    for (unsigned i = 0; r == 0 && parts[i]; i++) {
        if (!*parts[i] || g_str_equal(parts[i], "."))
            continue;
        if (!inode_is_dir(in))
            return -ENOTDIR;
        struct inode *next = NULL;
        r = tree_lookup(fs, in->ino, parts[i], &next);
        if (r == 0) {
            inode_put(in);
            in = next;
        }
    }
    if (r < 0)
        return r;
    *ret = in;
    in = NULL;
    return 0;
}

/* What is left of a path behind a symlink in the directory at: *rest starts with the target, *at becomes "" where that is absolute. */
static int enter_link(struct inode *in, GString *at, char **rest)
{
    mutex_lock(&in->mu);
    g_autofree char *target = g_strdup(in->rec.target ? in->rec.target : "");
    mutex_unlock(&in->mu);
    const char *below = target, *mount = in->fs->mountpoint;
    if (*target == '/') {
        if (!tree_path_below(target, mount))
            return -EXDEV;
        below += strlen(mount);
        g_string_truncate(at, 0);
    }
    char *joined = g_strconcat(below, "/", *rest, NULL);
    g_free(*rest);
    *rest = joined;
    return 0;
}

static int leave_dir(GString *at)
{
    if (at->len == 0)
        return -EXDEV;
    const char *slash = strrchr(at->str, '/');
    g_string_truncate(at, slash ? (gsize)(slash - at->str) : 0);
    return 0;
}

/* Takes the first component off the rest. */
static char *take_name(char **rest)
{
    size_t len = strcspn(*rest, "/");
    char *name = g_strndup(*rest, len), *left = g_strdup(*rest + len + ((*rest)[len] == '/'));
    g_free(*rest);
    *rest = left;
    return name;
}

/* One component further. at never leads through a symlink. */
static int follow_name(struct fs *fs, GString *at, const char *name, char **rest, GPtrArray *links)
{
    if (!*name || g_str_equal(name, "."))
        return 0;
    if (g_str_equal(name, ".."))
        return leave_dir(at);
    gsize dir_len = at->len;
    g_string_append_printf(at, "%s%s", dir_len ? "/" : "", name);
    INODE_REF in = NULL;
    int r = tree_resolve(fs, at->str, &in);
    if (r < 0 || !S_ISLNK(in->rec.mode))
        return r;
    g_ptr_array_add(links, g_strdup(at->str));
    g_string_truncate(at, dir_len);
    return links->len > LINKS_MAX ? -ELOOP : enter_link(in, at, rest);
}

int tree_follow(struct fs *fs, const char *path, GPtrArray *links, char **ret_path, struct inode **ret)
{
    INODE_REF in = NULL;
    int r = tree_resolve(fs, path, &in);
    if (r < 0 && r != -ENOTDIR) /* the latter may be a link on the way */
        return r;
    g_autoptr(GPtrArray) own = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GString) at = g_string_new(r == 0 && !S_ISLNK(in->rec.mode) ? path : NULL);
    g_autofree char *rest = g_strdup(at->len ? "" : path);
    for (r = 0; r == 0 && *rest;) {
        g_autofree char *name = take_name(&rest);
        r = follow_name(fs, at, name, &rest, links ? links : own);
    }
    inode_put(g_steal_pointer(&in));
    if (r == 0)
        r = tree_resolve(fs, at->str, ret);
    if (r == 0)
        *ret_path = g_string_free(g_steal_pointer(&at), FALSE);
    return r;
}

int tree_resolve_parent(struct fs *fs, const char *path, struct inode **ret_dir, const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    g_autofree char *above = slash ? g_strndup(path, (gsize)(slash - path)) : g_strdup("");
    INODE_REF dir = NULL;
    int r = tree_resolve(fs, above, &dir);
    if (r == 0 && !inode_is_dir(dir))
        r = -ENOTDIR;
    if (r < 0)
        return r;
    *ret_name = slash ? slash + 1 : path;
    *ret_dir = dir;
    dir = NULL;
    return 0;
}

int tree_check_escaped(struct fs *fs, const char *path, bool is_dir)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (fs->cfg->escape == ESCAPE_NONE || !key_name_is_odd(name))
        return 0;
    bool marker = !is_dir && key_name_is_empty(name); /* its key would be that of the directory itself */
    return marker || objstore_limits_of(fs->store, path).plain_names ? -EINVAL : 0;
}

char *tree_store_key(struct fs *fs, const char *path)
{
    char *key = fs->cfg->escape == ESCAPE_PERCENT ? key_of_path(path) : NULL;
    return key ? key : g_strdup(path);
}
