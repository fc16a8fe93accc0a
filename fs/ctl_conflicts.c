/* `sluice publish` and `sluice conflicts`: decisions about files whose upload cannot go on by itself. */
#include "conflict.h"
#include "content.h"
#include "ctl_verbs.h"
#include "publish.h"
#include "states.h"
#include "tree.h"

static void add_int(json_t *o, const char *name, uint64_t value)
{
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

static const char *why(int r)
{
    switch (r) {
    case -EEXIST:
        return "there is another file, which must not be lost: move it away, or use save-as";
    case -EBUSY:
        return "it is still open for writing";
    case -ESTALE:
        return "part of its bytes is not here and was replaced in the store";
    case -EROFS:
        return "nothing may be written there: the mount, or the link that it is in, is read-only";
    case -EPERM:
        return "the mount shows something of its own by that name";
    case -EUCLEAN:
        return "its bytes cannot be trusted";
    case -ENOTUNIQ:
        return "there are several conflicts at this path: give the number of one";
    case -ENOENT:
        return "no such conflict, or its folder or part of its bytes is gone";
    default:
        return err_text(r);
    }
}

static int fail(struct ctl_client *client, const char *path, int r)
{
    json_t *o = json_pack("{s:s, s:s, s:s}", "event", "error", "error", why(r), "errno", err_name(r));
    json_object_set_new(o, "path", verb_string(path));
    (void)ctl_emit(client, o); /* the exit code tells who no longer listens */
    ctl_fail(client, "not everything could be done");
    return 1;
}

/* ---- publish ---- */

struct ids {
    const char *below;
    GArray *list; /* uint64_t */
};

static int take_id(void *ctx, const struct conflict *c)
{
    struct ids *ids = ctx;
    if (tree_path_below(c->path, ids->below))
        g_array_append_val(ids->list, c->id);
    return 0;
}

/* All conflicts below path that can be are resolved for us; the number, or the first failure. */
static int keep_mine_below(struct fs *fs, const char *path)
{
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct ids ids = {path, list};
    int r = conflict_each(fs->meta, take_id, &ids);
    for (unsigned i = 0; i < list->len; i++) {
        int one = conflict_keep_mine(fs, g_array_index(list, uint64_t, i));
        r = r < 0 ? r : one;
    }
    return r < 0 ? r : (int)list->len;
}

static int retry(struct fs *fs, const char *path)
{
    int mine = keep_mine_below(fs, path);
    int n = publish_retry(fs->pub, path);
    notify_settle(fs);
    return mine < 0 ? mine : n < 0 ? n : n + mine;
}

static bool has_unsettled(struct fs *fs, const char *path)
{
    struct publish_counts n;
    publish_count(fs->pub, path, &n);
    return n.unsettled > 0;
}

int verb_publish(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    const char *action = json_string_value(json_object_get(req, "action"));
    bool again = g_strcmp0(action, "retry") == 0;
    if (!again && g_strcmp0(action, "skip") != 0) {
        ctl_fail(client, "the action is 'retry' or 'skip'");
        return 1;
    }
    g_auto(GStrv) paths = verb_paths(client, req);
    int code = paths ? 0 : 1;
    for (unsigned i = 0; paths && paths[i]; i++) {
        int n = again ? retry(fs, paths[i]) : publish_skip(fs->pub, paths[i]);
        if (n == 0 && has_unsettled(fs, paths[i]))
            n = -EBUSY;
        if (n > 0) {
            json_t *o = json_pack("{s:s, s:s, s:i}", "event", "published", "action", action, "operations", n);
            json_object_set_new(o, "path", verb_string(paths[i]));
            (void)ctl_emit(client, o); /* done whether or not somebody reads this */
            continue;
        }
        code = n < 0 ? fail(client, paths[i], n) : 1;
        if (n == 0) {
            (void)verb_error(client, paths[i], -ENOENT);
            ctl_fail(client, "'%s': nothing to %s", paths[i], action);
        }
    }
    return code;
}

/* ---- conflicts: what there is ---- */

struct lines {
    struct fs *fs;
    const char *below;
    json_t *list;
};

static void add_loser(struct fs *fs, json_t *o, const struct conflict *c)
{
    struct meta_dentry d = {0};
    INODE_REF in = NULL;
    if (conflict_name(fs->meta, c->id, &d) == 0 && inode_get(fs, d.ino, &in) == 0) {
        struct stat st;
        inode_stat(in, &st);
        add_int(o, "size", (uint64_t)st.st_size);
        add_int(o, "mtime", (uint64_t)st.st_mtim.tv_sec);
        json_object_set_new(o, "holds_back_others", json_boolean(d.op_seq != 0));
    }
    meta_dentry_clear(&d);
}

static json_t *describe(struct fs *fs, const struct conflict *c)
{
    json_t *o = json_pack("{s:s, s:I}", "event", "conflict", "id", (json_int_t)c->id);
    json_object_set_new(o, "path", verb_string(c->path));
    json_object_set_new(o, "mountpoint", verb_string(fs->mountpoint));
    json_object_set_new(o, "state", json_string("conflict"));
    add_loser(fs, o, c);
    add_int(o, "lost_at", (uint64_t)(c->lost_ns / (int64_t)NS_PER_S));
    json_object_set_new(o, "base_etag", verb_string(c->base.s));
    json_object_set_new(o, "winner_etag", verb_string(c->winner.s));
    return o;
}

static int take_conflict(void *ctx, const struct conflict *c)
{
    struct lines *l = ctx;
    if (tree_path_below(c->path, l->below))
        json_array_append_new(l->list, describe(l->fs, c));
    return 0;
}

/* Conflicts whose writers are still there, and what failed for good. */
static void take_op(void *ctx, const struct meta_op *op, const char *path, int err)
{
    struct lines *l = ctx;
    bool open = op->state == OPS_CONFLICT && op->parent != META_ASIDE_INO;
    if ((!open && op->state != OPS_PARKED) || !tree_path_below(path, l->below))
        return;
    json_t *o = json_pack("{s:s, s:s, s:s}", "event", "conflict", "state", open ? "open" : "parked", "kind",
                          op->kind == OP_DELETE ? "delete" : "publish");
    json_object_set_new(o, "path", verb_string(path));
    if (op->err || err)
        json_object_set_new(o, "error", json_string(objstore_err_text(op->err ? op->err : err)));
    json_array_append_new(l->list, o);
}

static int list(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = json_object_get(req, "paths") ? verb_paths(client, req) : g_strsplit("", "/", -1);
    if (!paths)
        return 1;
    struct lines l = {fs, paths[0] ? paths[0] : "", json_array()};
    int r = conflict_each(fs->meta, take_conflict, &l);
    publish_each(fs->pub, take_op, &l); /* lines are sent after it: it holds a lock */
    int code = r < 0 ? fail(client, l.below, r) : 0;
    for (size_t i = 0; code == 0 && i < json_array_size(l.list); i++)
        code = ctl_emit(client, json_incref(json_array_get(l.list, i))) < 0 ? 1 : 0;
    json_decref(l.list);
    return code;
}

/* How much of a loser is here. */
static void add_local(struct fs *fs, json_t *o, uint64_t id)
{
    struct meta_dentry d = {0};
    INODE_REF in = NULL;
    struct cfile *cf = NULL;
    if (conflict_name(fs->meta, id, &d) == 0 && inode_get(fs, d.ino, &in) == 0) {
        add_int(o, "inode", in->ino);
        mutex_lock(&in->mu);
        uint32_t content = in->rec.content;
        mutex_unlock(&in->mu);
        json_object_set_new(o, "content", json_string(content_state_name(content)));
        if (S_ISREG(d.type) && content_use(in, &cf) == 0) {
            add_int(o, "local_bytes", MIN(cache_file_present_bytes(cf), cache_file_size(cf)));
            json_object_set_new(o, "complete", json_boolean(cache_file_complete(cf)));
            content_unuse(in, cf);
        }
    }
    meta_dentry_clear(&d);
}

static int show(struct fs *fs, struct ctl_client *client, const struct conflict *c)
{
    json_t *o = describe(fs, c);
    add_local(fs, o, c->id);
    return ctl_emit(client, o) < 0 ? 1 : 0;
}

/* ---- conflicts: what is done about them ---- */

static int keep_mine(struct fs *fs, uint64_t id, const json_t *req)
{
    return conflict_keep_mine(fs, id);
}

static int keep_theirs(struct fs *fs, uint64_t id, const json_t *req)
{
    return conflict_keep_theirs(fs, id);
}

static int save_as(struct fs *fs, uint64_t id, const json_t *req)
{
    const char *to = json_string_value(json_object_get(req, "to"));
    g_autofree char *path = to ? verb_clean_path(to) : NULL;
    return path && *path ? conflict_save_as(fs, id, path) : -EINVAL;
}

/* An action on one conflict; its line says what it was. */
static int resolve(struct fs *fs, struct ctl_client *client, const struct conflict *c, const char *action,
                   int (*fn)(struct fs *fs, uint64_t id, const json_t *req), const json_t *req)
{
    json_t *o = json_pack("{s:s, s:s, s:I}", "event", "resolved", "action", action, "id", (json_int_t)c->id);
    json_object_set_new(o, "path", verb_string(c->path));
    add_loser(fs, o, c); /* before it is gone */
    int r = fn(fs, c->id, req);
    notify_settle(fs);
    if (r < 0) {
        json_decref(o);
        return fail(client, c->path, r);
    }
    log_notice("conflict", "resolved by %s id=%" G_GUINT64_FORMAT " path='%s'", action, c->id, c->path);
    (void)ctl_emit(client, o); /* done whether or not somebody reads this */
    return 0;
}

/* The conflict meant by "id", or by the one of "paths". */
static int find(struct fs *fs, struct ctl_client *client, const json_t *req, struct conflict *ret)
{
    uint64_t id = verb_number(req, "id");
    g_auto(GStrv) paths = id ? NULL : verb_paths(client, req);
    if (!id && !paths)
        return 1;
    int r = id ? 0 : conflict_find(fs->meta, paths[0], &id);
    if (r == 0)
        r = conflict_get(fs->meta, id, ret);
    if (r == 0)
        return 0;
    if (r == -ENOENT && paths && has_unsettled(fs, paths[0]))
        r = -EBUSY;
    g_autofree char *text = paths ? g_strdup(paths[0]) : g_strdup_printf("%" G_GUINT64_FORMAT, id);
    return fail(client, text, r);
}

int verb_conflicts(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    static const struct {
        const char *name;
        int (*fn)(struct fs *fs, uint64_t id, const json_t *req);
    } actions[] = {{"show", NULL}, {"keep-mine", keep_mine}, {"keep-theirs", keep_theirs}, {"save-as", save_as}};
    const char *action = json_string_value(json_object_get(req, "action"));
    if (!action || g_str_equal(action, "list"))
        return list(fs, client, req);
    for (unsigned i = 0; i < G_N_ELEMENTS(actions); i++) {
        if (!g_str_equal(action, actions[i].name))
            continue;
        struct conflict c;
        int code = find(fs, client, req, &c);
        if (code == 0) {
            code = actions[i].fn ? resolve(fs, client, &c, action, actions[i].fn, req) : show(fs, client, &c);
            conflict_clear(&c);
        }
        return code;
    }
    ctl_fail(client, "conflicts has no action '%s'", action);
    return 1;
}
