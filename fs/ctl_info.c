/* `sluice info`: what is known of one path. Of a file: its object, its state, what of it is here; of a directory: what below it is still to be published. */
#include "conflict.h"
#include "content.h"
#include "ctl_verbs.h"
#include "delta.h"
#include "io_mode.h"
#include "local.h"
#include "publish.h"
#include "rules.h"
#include "states.h"
#include "sync.h"
#include "tree.h"
#include "tree_list.h"

#define HIDDEN_WAIT_NS (2 * NS_PER_S)

static void add_int(json_t *o, const char *name, uint64_t value)
{
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

/* Before publish_describe(), which knows better for names with a journal record. */
static const char *state_name(const struct meta_inode *rec, const struct meta_dentry *d, bool kept)
{
    bool closed = rec->content == CONTENT_CLEAN || rec->content == CONTENT_SEALED;
    if ((rec->flags & INODE_LOCAL_ONLY) ||
        (kept && closed && !(rec->content == CONTENT_CLEAN && (d->flags & DENTRY_UPSTREAM))))
        return "local";
    if (S_ISDIR(rec->mode))
        return d->op_seq ? "sealed" : "clean";
    if (S_ISREG(rec->mode) && rec->content != CONTENT_CLEAN)
        return content_state_name(rec->content);
    return d->op_seq ? "sealed" : "clean";
}

static const char *type_name(uint32_t mode)
{
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "symlink" : "special";
}

static void add_file(json_t *o, struct inode *in, const struct meta_inode *rec)
{
    uint64_t size = rec->size, cached = 0, uploaded = 0;
    struct cfile *cf = NULL;
    int r = content_is_here(in) ? content_use(in, &cf) : 0;
    if (cf) {
        size = rec->content == CONTENT_CLEAN ? rec->size : cache_file_size(cf);
        cached = MIN(cache_file_present_bytes(cf), size);
        uploaded = cache_uploaded_bytes(cf);
        content_unuse(in, cf);
    }
    bool dirty = rec->content != CONTENT_CLEAN;
    json_object_set_new(o, "io", json_string(io_mode_name(in)));
    add_int(o, "size", size);
    add_int(o, "cached_bytes", cached);
    add_int(o, "dirty_bytes", dirty ? size : 0);
    add_int(o, "uploaded_bytes", uploaded);
    if (r < 0)
        json_object_set_new(o, "error", json_string(err_text(r)));
}

static void add_below(struct fs *fs, json_t *o, const char *path)
{
    struct publish_counts c = {0};
    publish_count(fs->pub, path, &c);
    add_int(o, "dirty_files", c.files);
    add_int(o, "dirty_bytes", c.bytes);
    add_int(o, "pending_operations", c.ops);
    add_int(o, "parked", c.parked);
    add_int(o, "conflicts", c.unsettled + conflict_count(fs->meta, path));
    add_int(o, "held", c.held);
}

/* Ours, set aside when this path was changed elsewhere. */
static bool add_conflict(struct fs *fs, json_t *o, const char *path)
{
    uint64_t id = 0;
    int r = conflict_find(fs->meta, path, &id);
    if (r == 0)
        add_int(o, "conflict", id);
    else if (r == -ENOTUNIQ)
        json_object_set_new(o, "conflict", json_string("several"));
    return r == 0 || r == -ENOTUNIQ;
}

/* A path that shows nothing, because its object was removed elsewhere while it was changed here. */
static json_t *describe_loser(struct fs *fs, const char *path)
{
    json_t *o = json_pack("{s:s, s:s, s:s}", "event", "info", "type", "none", "state", "conflict");
    json_object_set_new(o, "path", verb_string(path));
    if (add_conflict(fs, o, path))
        return o;
    json_decref(o);
    return NULL;
}

static void add_rule(struct fs *fs, json_t *o, const char *path, bool dir)
{
    g_autofree char *at = g_strconcat(path, dir && *path ? "/" : NULL, NULL);
    const struct rule_set *set = rules_for(fs, at);
    json_object_set_new(o, "rule", set->rule ? json_string(set->rule) : json_null());
    json_object_set_new(o, "settings", rules_json(set));
}

/* Those that the last listing saw; of a directory that only a worker before listed, one is asked for. */
static void add_hidden(struct fs *fs, json_t *o, struct inode *in)
{
    mutex_lock(&in->mu);
    bool hidden = in->rec.flags & INODE_DIR_HIDDEN, known = in->list.hidden;
    mutex_unlock(&in->mu);
    if (!hidden)
        return;
    if (!known && tree_refresh_within(fs, in, true, HIDDEN_WAIT_NS) < 0)
        log_debug("info", "a directory could not be listed for its hidden keys ino=%" G_GUINT64_FORMAT, in->ino);
    json_t *keys = json_array();
    mutex_lock(&in->mu);
    for (char **k = in->list.hidden; k && *k; k++)
        json_array_append_new(keys, verb_string(*k));
    mutex_unlock(&in->mu);
    json_object_set_new(o, "hidden_keys", keys);
}

static json_t *describe(struct fs *fs, const char *path, struct inode *in, const struct meta_dentry *d)
{
    struct meta_inode rec;
    mutex_lock(&in->mu);
    meta_inode_copy(&rec, &in->rec);
    mutex_unlock(&in->mu);
    bool dir = S_ISDIR(rec.mode);
    json_t *o = json_object();
    json_object_set_new(o, "event", json_string("info"));
    json_object_set_new(o, "path", verb_string(path));
    json_object_set_new(o, "type", json_string(type_name(rec.mode)));
    add_int(o, "inode", in->ino);
    bool shadow = d->flags & DENTRY_SHADOW;
    g_autofree char *key = shadow         ? g_strdup(rec.base_key)
                           : d->ukey      ? g_strdup(d->ukey)
                           : dir && *path ? g_strconcat(path, "/", NULL)
                                          : g_strdup(path);
    g_autofree char *real_key = tree_store_key(fs, key);
    json_object_set_new(o, "key", verb_string(real_key));
    g_autofree char *etag =
        g_strndup(d->uetag.s, d->flags & (DENTRY_UPSTREAM | DENTRY_SHADOW) ? etag_bare_len(&d->uetag) : 0);
    json_object_set_new(o, "etag", verb_string(etag));
    json_object_set_new(o, "token", verb_string(d->flags & DENTRY_UPSTREAM ? d->token : ""));
    json_object_set_new(o, "state", json_string(state_name(&rec, d, local_is(fs, path))));
    json_object_set_new(o, "pinned", json_boolean(rec.flags & INODE_PINNED));
    add_rule(fs, o, path, dir);
    json_object_set_new(o, "mtime", json_real((double)rec.mtime_ns / (double)NS_PER_S));
    json_object_set_new(o, "archived", json_boolean(rec.flags & INODE_ARCHIVED));
    if (S_ISREG(rec.mode)) {
        add_file(o, in, &rec);
        add_int(o, "saved_bytes", d->flags & DENTRY_UPSTREAM ? delta_saved_bytes(fs, key, &d->uetag) : 0);
    } else if (dir) {
        add_below(fs, o, path);
        add_int(o, "listed", sync_listed_ns(fs, in) / (int64_t)NS_PER_S);
        add_hidden(fs, o, in);
    } else {
        json_object_set_new(o, "target", verb_string(rec.target ? rec.target : ""));
    }
    (void)add_conflict(fs, o, path);
    if (d->op_seq)
        publish_describe(fs->pub, d->op_seq, o);
    const json_t *up = json_object_get(o, "upload_state"); /* "queued" says less than what the content's state says */
    if (up && rec.content != CONTENT_QUARANTINED && g_strcmp0(json_string_value(up), "queued") != 0)
        json_object_set_new(o, "state", json_string(json_string_value(up)));
    meta_inode_clear(&rec);
    return o;
}

static int info_of(struct fs *fs, const char *path, json_t **ret)
{
    INODE_REF in = NULL;
    int r = tree_resolve(fs, path, &in);
    if (r < 0)
        return r;
    struct meta_dentry d = {0};
    if (*path) {
        g_autofree char *dir_path = g_path_get_dirname(path);
        const char *slash = strrchr(path, '/');
        INODE_REF dir = NULL;
        r = tree_resolve(fs, slash ? dir_path : "", &dir);
        if (r == 0)
            r = meta_dentry_get(fs->meta, dir->ino, slash ? slash + 1 : path, &d);
        if (r < 0)
            return r;
    }
    *ret = describe(fs, path, in, &d);
    meta_dentry_clear(&d);
    return 0;
}

int verb_info(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    int code = paths ? 0 : 1;
    for (unsigned i = 0; paths && paths[i]; i++) {
        if (ctl_gone(client))
            return 1;
        json_t *line = NULL;
        int r = info_of(fs, paths[i], &line);
        if (r == -ENOENT && (line = describe_loser(fs, paths[i])))
            r = 0;
        if (r < 0) {
            code = 1;
            r = verb_error(client, paths[i], r);
        } else {
            r = ctl_emit(client, line);
        }
        if (r < 0)
            return 1;
    }
    if (code && paths)
        ctl_fail(client, "not everything could be looked at");
    return code;
}
