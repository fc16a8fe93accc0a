/* Paths and keys of names: walks up the parents that directory inodes carry. */
#include "conflict.h"
#include "tree.h"

#include <assert.h>

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
