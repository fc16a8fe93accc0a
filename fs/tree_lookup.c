/*
 * Finding a name. A directory never listed is listed; when that takes long (a huge directory), the one name is asked for by itself meanwhile, so
 * that opening one file does not wait for a million others.
 */
#include "links.h"
#include "ns_undo.h"
#include "publish.h"
#include "shadow.h"
#include "tree_apply.h"
#include "tree_list.h"

#define FIRST_LIST_WAIT_NS (300 * NS_PER_MS)
#define POSIX_ASK_AGAIN_NS (60 * (int64_t)NS_PER_S)

static int get_child(struct fs *fs, uint64_t parent, const char *name, struct inode **ret, bool *ret_local,
                     uint64_t *ret_id)
{
    struct meta_dentry d = {0};
    int r = meta_dentry_get(fs->meta, parent, name, &d);
    if (r < 0)
        return r;
    *ret_local = d.op_seq != 0 || (d.flags & DENTRY_LINK);
    *ret_id = d.id;
    r = inode_get(fs, d.ino, ret);
    if (r == 0)
        inode_set_place(*ret, &d);
    meta_dentry_clear(&d);
    return r;
}

static int stop_at_first(void *ctx, const struct obj_entry *e)
{
    *(bool *)ctx = true;
    return 1;
}

/* Asks the store for one name: an object, or anything below "name/". */
static int probe_name(struct fs *fs, struct inode *dir, const char *name)
{
    mutex_lock(&fs->ns);
    g_autofree char *key = tree_key(fs, dir->ino, name, false);
    uint64_t stamp = meta_last_seq(fs->meta);
    mutex_unlock(&fs->ns);
    g_autofree char *row_name = g_strdup(name);
    struct list_row row = {.name = row_name};
    g_autofree char *below = g_strconcat(key, "/", NULL);
    bool is_dir = false;
    struct obj_list_req req = {.prefix = below, .max_keys = 1};
    int r = objstore_list(fs->store, &req, stop_at_first, &is_dir, NULL);
    if (r < 0)
        return r;
    if (is_dir) {
        row.is_dir = true;
    } else {
        r = objstore_head(fs->store, key, &row.info);
        if (r < 0)
            return r;
        row.has_info = true;
        row.archived = row.info.archived;
        row.size = row.info.size;
        row.mtime_ns = row.info.mtime_ns;
        row.etag = row.info.etag;
    }
    if (!links_shows(fs, key, row.is_dir)) {
        obj_info_clear(&row.info);
        return -ENOENT;
    }
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    g_autofree char *key_now = tree_key(fs, dir->ino, name, false);
    r = g_str_equal(key, key_now) ? tree_apply_row(fs, b, dir->ino, &row, stamp) : 0;
    if (r >= 0)
        r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    obj_info_clear(&row.info);
    return r;
}

/* Sees that the answer for `name` can be taken from the database, which has it by that id (0: has not). late: it may be older than the TTL, as tree_serve(). */
static int refresh_for(struct fs *fs, struct inode *dir, const char *name, uint64_t id, bool late)
{
    mutex_lock(&dir->mu);
    bool listed = dir->rec.flags & (INODE_DIR_LISTED | INODE_DIR_LOCAL);
    mutex_unlock(&dir->mu);
    if (listed)
        return late ? tree_serve(fs, dir) : tree_refresh(fs, dir, false);
    if (id && id >= tree_list_shows_from(fs, dir, NULL))
        return 0;
    int r = tree_refresh_within(fs, dir, false, FIRST_LIST_WAIT_NS);
    if (r != -EINPROGRESS)
        return r == -ENOENT || r == -ENODEV ? -EIO : r;
    if (tree_is_offline(fs, dir) || shadow_is_name(fs, name)) /* only a listing knows whose name it is */
        return tree_refresh(fs, dir, false);
    r = probe_name(fs, dir, name);
    if (r < 0 && r != -ENOENT && r != -EINTR)
        tree_list_note_worn(dir);
    return r;
}

/* The name once the directory's listing is not out of date any more. id, late: as refresh_for(). */
static int lookup_refreshed(struct fs *fs, struct inode *dir, const char *name, uint64_t id, bool late,
                            struct inode **ret)
{
    bool local;
    int r = strlen(name) > 1024 ? -ENAMETOOLONG : refresh_for(fs, dir, name, id, late);
    return r < 0 ? r : get_child(fs, dir->ino, name, ret, &local, &id);
}

static int lookup(struct fs *fs, struct inode *dir, const char *name, bool late, struct inode **ret)
{
    if (!inode_is_dir(dir))
        return -ENOTDIR;
    bool fresh = tree_is_fresh(fs, dir),
         local = false; /* before the name is looked at, which is then as of the listing or newer */
    uint64_t id = 0;
    struct inode *in = NULL;
    int r = get_child(fs, dir->ino, name, &in, &local, &id);
    if (r == 0 && (local || fresh)) {
        *ret = in;
        return 0;
    }
    if (r < 0 && r != -ENOENT)
        return r;
    inode_put(in);
    if (!fresh)
        r = lookup_refreshed(fs, dir, name, id, late, ret);
    return r == -ENOENT && strlen(name) > FS_NAME_MAX ? -ENAMETOOLONG : r;
}

int tree_lookup_in(struct fs *fs, struct inode *dir, const char *name, struct inode **ret)
{
    return lookup(fs, dir, name, true, ret);
}

int tree_lookup(struct fs *fs, uint64_t parent, const char *name, struct inode **ret)
{
    INODE_REF dir = NULL;
    int r = inode_get(fs, parent, &dir);
    return r < 0 ? r : lookup(fs, dir, name, false, ret);
}

static bool wants_posix(struct fs *fs, struct inode *in, struct inode *dir)
{
    if (fs->cfg->posix_meta == POSIX_META_OFF || !S_ISREG(in->rec.mode))
        return false;
    mutex_lock(&dir->mu);
    bool asked_dir = fs->cfg->posix_meta == POSIX_META_ON || (dir->rec.flags & INODE_DIR_POSIX);
    mutex_unlock(&dir->mu);
    mutex_lock(&in->mu);
    int64_t now = (int64_t)clock_mono_ns();
    bool want = asked_dir && in->rec.content == CONTENT_CLEAN && in->rec.base_key &&
                !(in->rec.flags & (INODE_HEADED | INODE_MODE_KNOWN)) &&
                (in->posix_asked_ns == 0 || now - in->posix_asked_ns > POSIX_ASK_AGAIN_NS);
    if (want)
        in->posix_asked_ns = now;
    mutex_unlock(&in->mu);
    return want;
}

/* What the store said of the version in info; whatever was set here meanwhile is newer. */
static int store_posix(struct fs *fs, struct inode *in, const struct obj_info *info)
{
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    struct meta_inode *rec = &in->rec;
    if (!in->gone && rec->content == CONTENT_CLEAN && etag_equal(&rec->base_etag, &info->etag)) {
        ns_undo_note_locked(in);
        tree_fill_posix(fs, rec, info);
        meta_inode_put(b, rec);
    }
    mutex_unlock(&in->mu);
    int r = meta_commit(b, false);
    ns_undo_end(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

void tree_want_posix(struct fs *fs, struct inode *in, struct inode *dir)
{
    if (!wants_posix(fs, in, dir))
        return;
    mutex_lock(&in->mu);
    g_autofree char *key = g_strdup(in->rec.base_key);
    struct etag etag = in->rec.base_etag;
    mutex_unlock(&in->mu);
    struct obj_info info = {0};
    if (objstore_head(fs->store, key, &info) < 0 || !etag_equal(&info.etag, &etag)) {
        obj_info_clear(&info);
        return;
    }
    if (store_posix(fs, in, &info) < 0)
        log_debug("lookup", "metadata of '%s' could not be stored", key);
    obj_info_clear(&info);
}
