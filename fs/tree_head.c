/* What a HEAD tells of a row of a listing, or of an event. */
#include "tree_apply.h"

static int keep_target(void *ctx, uint64_t off, const void *buf, size_t len)
{
    g_string_append_len(ctx, buf, (gssize)len);
    return 0;
}

/* s3fs keeps a symbolic link's target in the object's body. */
static int read_s3fs_link(struct fs *fs, const char *key, struct obj_info *info)
{
    bool link = fs->cfg->posix_meta == POSIX_META_ON && (info->posix.fields & POSIX_MODE) && S_ISLNK(info->posix.mode);
    if (!link || info->symlink || info->size == 0 || info->size > OBJ_SYMLINK_MAX)
        return 0;
    g_autoptr(GString) target = g_string_new(NULL);
    int r = objstore_get(fs->store, key, 0, 0, &info->etag, keep_target, target, NULL);
    if (r == 0 && strlen(target->str) == target->len)
        info->symlink = g_strdup(g_strchomp(target->str));
    return r == -EACCES || r == -ENOMEDIUM ? 0 : r;
}

/* -errno: the row's type stays unknown. What may be listed but not asked for or read is shown as a plain file. */
int tree_head_row(struct fs *fs, const char *key, struct list_row *row)
{
    struct obj_info info = {0};
    int r = objstore_head(fs->store, key, &info);
    if (r == 0)
        r = read_s3fs_link(fs, key, &info);
    row->vanished = r == -ENOENT;
    if (r < 0) {
        obj_info_clear(&info);
        return r == -ENOENT || r == -EACCES ? 0 : r;
    }
    row->etag = info.etag;
    row->size = info.size;
    row->info = info; /* takes over its strings */
    row->has_info = true;
    return 0;
}
