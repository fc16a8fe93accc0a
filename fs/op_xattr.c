/* Extended attributes: user.* kept in the database; user.sluice.* made on the fly and not listed, so that copying tools do not carry them on. */
#include "base/crash.h"
#include "content.h"
#include "links.h"
#include "op.h"
#include "replay.h"
#include "shadow.h"
#include "states.h"
#include "tree.h"

#include <sys/xattr.h>

#define VIRTUAL_PREFIX "user.sluice."
#define VALUE_MAX      65536
#define NAME_MAX_XATTR 255

static int check_name(const char *name)
{
    if (!g_str_has_prefix(name, "user."))
        return -EOPNOTSUPP;
    return strlen(name) > NAME_MAX_XATTR || !name[5] ? -ERANGE : 0;
}

static bool is_virtual(const char *name)
{
    return g_str_has_prefix(name, VIRTUAL_PREFIX);
}

static char *virtual_value(struct inode *in, const char *name)
{
    const char *what = name + strlen(VIRTUAL_PREFIX);
    mutex_lock(&in->mu);
    const struct meta_inode *rec = &in->rec;
    bool dirty = rec->content != CONTENT_CLEAN, pinned = rec->flags & INODE_PINNED;
    g_autofree char *etag = g_strdup(rec->base_etag.s);
    uint32_t content = rec->content;
    mutex_unlock(&in->mu);
    if (g_str_equal(what, "state"))
        return g_strdup(S_ISREG(in->rec.mode) ? content_state_name(content) : "local");
    if (g_str_equal(what, "etag"))
        return dirty ? g_strdup("") : g_steal_pointer(&etag);
    if (g_str_equal(what, "pinned"))
        return g_strdup(pinned ? "1" : "0");
    if (!g_str_equal(what, "cached") || !S_ISREG(in->rec.mode))
        return NULL;
    if (!content_is_here(in))
        return g_strdup("0");
    struct cfile *cf = NULL;
    if (content_use(in, &cf) < 0)
        return NULL;
    char *text = g_strdup_printf("%" G_GUINT64_FORMAT, cache_file_present_bytes(cf));
    content_unuse(in, cf);
    return text;
}

static int keep_bytes(void *ctx, uint64_t off, const void *buf, size_t len)
{
    g_string_append_len(ctx, buf, (gssize)len);
    return 0;
}

/* Bytes that another tool put into a directory's marker, which no file shows: asked of the store each time. */
static int marker_bytes(struct inode *dir, GString *ret)
{
    struct fs *fs = dir->fs;
    struct obj_info info = {0};
    mutex_lock(&fs->ns);
    g_autofree char *key = tree_dir_prefix(fs, dir->ino);
    mutex_unlock(&fs->ns);
    int r = key && *key ? objstore_head(fs->store, key, &info) : -ENODATA;
    if (r == 0 && info.size > VALUE_MAX)
        r = -E2BIG;
    if (r == 0 && info.size > 0)
        r = objstore_get(fs->store, key, 0, 0, &info.etag, keep_bytes, ret, NULL);
    obj_info_clear(&info);
    return r == -ENOENT || r == -ESTALE ? -ENODATA : r;
}

static void reply_value(fuse_req_t req, enum op_id op, const void *value, size_t len, size_t size)
{
    if (size == 0)
        (void)fuse_reply_xattr(req, len); /* an interrupted request has nobody to tell */
    else if (len > size)
        reply_err(req, op, -ERANGE);
    else
        (void)fuse_reply_buf(req, value, len); /* as above */
}

/* A name that no file can have: -EOPNOTSUPP. `ls -l` asks for a label and an ACL, of no further file once it was told so. */
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct fs *fs = fuse_req_userdata(req);
    INODE_REF in = NULL;
    int r = check_name(name);
    if (r == -ERANGE || (r == 0 && virt_is(ino)))
        r = -ENODATA;
    else if (r == 0)
        r = inode_get(fs, ino, &in);
    if (r < 0) {
        reply_err(req, OP_ID_getxattr, r);
        return;
    }
    if (inode_is_dir(in) && g_str_equal(name, VIRTUAL_PREFIX "marker")) {
        g_autoptr(GString) bytes = g_string_new(NULL);
        r = marker_bytes(in, bytes);
        if (r < 0)
            reply_err(req, OP_ID_getxattr, r);
        else
            reply_value(req, OP_ID_getxattr, bytes->str, bytes->len, size);
        return;
    }
    if (is_virtual(name)) {
        g_autofree char *text = virtual_value(in, name);
        if (text)
            reply_value(req, OP_ID_getxattr, text, strlen(text), size);
        else
            reply_err(req, OP_ID_getxattr, -ENODATA);
        return;
    }
    GBytes *value = NULL;
    r = meta_xattr_get(fs->meta, ino, name, &value);
    if (r < 0) {
        reply_err(req, OP_ID_getxattr, r == -ENOENT ? -ENODATA : r);
        return;
    }
    size_t len;
    const void *data = g_bytes_get_data(value, &len);
    reply_value(req, OP_ID_getxattr, data ? data : "", len, size);
    g_bytes_unref(value);
}

static int touch_ctime(struct inode *in, struct meta_batch *b)
{
    mutex_lock(&in->mu);
    in->rec.ctime_ns = clock_wall_ns();
    int r = in->gone ? -ENOENT : 0;
    if (r == 0)
        meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    return r;
}

static int change_xattr(struct fs *fs, uint64_t ino, const char *name, const char *value, size_t size, int flags,
                        bool remove)
{
    int r = check_name(name);
    if (r < 0 || is_virtual(name))
        return r < 0 ? r : -EPERM;
    r = links_may_change(fs, ino);
    if (r < 0 || size > VALUE_MAX)
        return r < 0 ? r : -E2BIG;
    INODE_REF in = NULL;
    r = inode_get(fs, ino, &in);
    if (r == 0)
        r = shadow_check_change(in);
    if (r < 0)
        return r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    GBytes *old = NULL;
    bool there = meta_xattr_get(fs->meta, ino, name, &old) == 0;
    if (there)
        g_bytes_unref(old);
    if ((flags & XATTR_CREATE) && there)
        r = -EEXIST;
    else if ((remove || (flags & XATTR_REPLACE)) && !there)
        r = -ENODATA;
    if (r == 0 && remove)
        meta_xattr_del(b, ino, name);
    else if (r == 0)
        meta_xattr_put(b, ino, name, value, size);
    if (r == 0)
        r = touch_ctime(in, b);
    if (r == 0) {
        replay_note(fs, b, 0);
        r = meta_commit(b, false);
    }
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
    struct fs *fs = fuse_req_userdata(req);
    int r = done_before(req) ? 0 : change_xattr(fs, ino, name, value, size, flags, false);
    CRASH_POINT(reply_setxattr);
    reply_err(req, OP_ID_setxattr, r);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct fs *fs = fuse_req_userdata(req);
    int r = done_before(req) ? 0 : change_xattr(fs, ino, name, NULL, 0, 0, true);
    CRASH_POINT(reply_removexattr);
    reply_err(req, OP_ID_removexattr, r);
}

static int add_name(void *ctx, const char *name, size_t value_len)
{
    g_string_append_len(ctx, name, (gssize)strlen(name) + 1);
    return 0;
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct fs *fs = fuse_req_userdata(req);
    g_autoptr(GString) names = g_string_new(NULL);
    int r = virt_is(ino) ? 0 : meta_xattr_each(fs->meta, ino, add_name, names);
    if (r < 0)
        reply_err(req, OP_ID_listxattr, r);
    else
        reply_value(req, OP_ID_listxattr, names->str, names->len, size);
}
