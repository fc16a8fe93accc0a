#include "event_apply.h"

#include "links.h"
#include "ns_undo.h"
#include "pin.h"
#include "publish.h"
#include "rules.h"
#include "tree_drop.h"
#include "tree_list.h"

#define DEPTH_MAX 512u

/* How far a key's path is known: the last directory of it that is, and the first name in it that is not one, or the last name. */
struct spot {
    uint64_t dir;
    char *name;           /* owned; NULL: the key can be no path */
    char *key;            /* owned: of that name, with '/' when is_dir */
    bool last;            /* it is what the key names, else something below it */
    bool is_dir;          /* what the key says it is */
    uint64_t made_here;   /* the first directory on the way that is believed to hold only what was made here, 0 none */
    struct meta_dentry d; /* id 0: there is no such name */
};

static void spot_clear(struct spot *s)
{
    g_free(s->name);
    g_free(s->key);
    meta_dentry_clear(&s->d);
}

static bool dir_has(struct fs *fs, uint64_t ino, uint32_t flags)
{
    INODE_REF in = NULL;
    if (inode_get(fs, ino, &in) < 0)
        return false;
    mutex_lock(&in->mu);
    bool has = in->rec.flags & flags;
    mutex_unlock(&in->mu);
    return has;
}

/* One name further. 1: here it ends. */
static int step(struct fs *fs, struct spot *s, const char *key, const char *end)
{
    s->last = *end == '\0' || end[1] == '\0';
    s->is_dir = *end == '/';
    g_free(s->name);
    s->name = g_strndup(key, (size_t)(end - key));
    meta_dentry_clear(&s->d);
    s->d = (struct meta_dentry){0};
    int r = meta_dentry_get(fs->meta, s->dir, s->name, &s->d);
    if (r < 0)
        return r == -ENOENT ? 1 : r;
    return s->last || !S_ISDIR(s->d.type);
}

/* Of the store that the key is in: what is made there while its capabilities are found out. */
static bool is_probe(const char *at, size_t len)
{
    return len == strlen(PROBE_DIR) && g_str_has_prefix(at, PROBE_DIR);
}

/* The name is where the key ends, or as far as it is known. None where a link leaves it out. */
static void end_spot(struct fs *fs, struct spot *s, const char *key, const char *end)
{
    g_autofree char *path = g_strndup(key, (size_t)(end - key));
    if (links_shows(fs, path, s->is_dir))
        s->key = g_strconcat(path, s->is_dir ? "/" : NULL, NULL);
    else
        g_clear_pointer(&s->name, g_free);
}

static int find_spot(struct fs *fs, const char *key, struct spot *s)
{
    *s = (struct spot){.dir = META_ROOT_INO};
    const char *at = key, *inside = key + links_prefix_len(fs, key);
    for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
        const char *end = at + strcspn(at, "/");
        if ((at == inside && is_probe(at, (size_t)(end - at))) || !tree_name_ok(at, (size_t)(end - at)))
            break;
        int r = step(fs, s, at, end);
        if (r > 0)
            end_spot(fs, s, key, end);
        if (r != 0)
            return MIN(r, 0);
        s->dir = s->d.ino;
        if (!s->made_here && dir_has(fs, s->dir, INODE_DIR_LOCAL))
            s->made_here = s->dir;
        at = end + 1;
    }
    g_clear_pointer(&s->name, g_free);
    return 0;
}

/* ---- the store's word ---- */

static int stop_at_first(void *ctx, const struct obj_entry *e)
{
    *(bool *)ctx = true;
    return 1;
}

static int anything_at(struct fs *fs, const char *prefix, bool *ret_found)
{
    struct obj_list_req req = {.prefix = prefix, .max_keys = 1};
    *ret_found = false;
    int r = objstore_list(fs->store, &req, stop_at_first, ret_found, NULL);
    return MIN(r, 0);
}

/* Is the object of the key, or something below a directory's, there? A file's row is filled. */
static int ask(struct fs *fs, const char *key, struct list_row *row, bool *ret_there)
{
    if (g_str_has_suffix(key, "/"))
        return anything_at(fs, key, ret_there);
    int r = tree_head_row(fs, key, row);
    *ret_there = r == 0 && !row->vanished && row->has_info;
    if (r == 0 && !row->vanished && !row->has_info)
        return -EACCES;
    row->mtime_ns = row->info.mtime_ns;
    row->archived = row->info.archived;
    return r;
}

/* As a listing would show it, where metadata is not asked for. */
static void forget_metadata(struct fs *fs, struct list_row *row)
{
    if (fs->cfg->posix_meta != POSIX_META_OFF || !row->has_info)
        return;
    row->etag.s[etag_bare_len(&row->etag)] = '\0';
    obj_info_clear(&row->info);
    row->has_info = false;
}

/* ---- changes ---- */

struct change {
    uint64_t dir;
    const char *name;
    const struct list_row *row; /* NULL: it is gone */
    uint64_t stamp, first_id;   /* of before the store was asked */
    bool changed;
};

/* 1: there is more to drop. */
static int change_locked(struct fs *fs, struct meta_batch *b, struct change *c,
                         struct tree_drop *drop) NO_TSA /* under ns */
{
    uint64_t changes = fs->ns_changes;
    int r = c->row ? MIN(tree_apply_row(fs, b, c->dir, c->row, c->stamp), 0)
                   : tree_drop_gone(fs, b, drop, c->dir, c->name, &c->changed);
    c->changed |= fs->ns_changes != changes;
    return r;
}

/* If the path still leads there. */
static int commit_batch(struct fs *fs, const char *key, struct change *c, struct tree_drop *drop)
{
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    g_autofree char *now = tree_key(fs, c->dir, c->name, g_str_has_suffix(key, "/"));
    int r = g_str_equal(now, key) ? change_locked(fs, b, c, drop) : 0;
    int committed = r >= 0 ? meta_commit(b, false) : r;
    publish_apply(fs, committed == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return committed < 0 ? committed : r;
}

/* The kernel is told once the database says so: what it asks then is answered by that. */
static int commit_change(struct fs *fs, const char *key, struct change *c)
{
    struct tree_drop drop;
    tree_drop_init(&drop, c->stamp, c->first_id);
    int r;
    while ((r = commit_batch(fs, key, c, &drop)) > 0 && !atomic_load(&fs->stopping))
        tree_drop_pause();
    r = r > 0 ? -ECANCELED : r;
    tree_drop_fini(&drop);
    if (r == 0 && c->changed)
        notify_entry(fs, c->dir, c->name);
    return r;
}

/* A directory that was made here holds something of somebody else's: from now on it is listed as others are. */
static int open_made_here(struct fs *fs, uint64_t ino)
{
    INODE_REF in = NULL;
    int r = inode_get(fs, ino, &in);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    if (in->rec.flags & INODE_DIR_LOCAL && !in->gone) {
        ns_undo_note_locked(in);
        in->rec.flags &= ~(uint32_t)(INODE_DIR_LOCAL | INODE_DIR_LISTED);
        in->rec.listed_ns = 0;
        meta_inode_put(b, &in->rec);
    }
    mutex_unlock(&in->mu);
    fs->ns_changes++;
    r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

/* Directories that lost their last name and are not in the store any more go as well, the innermost first. */
static int drop_empty_dirs(struct fs *fs, uint64_t dir)
{
    int r = 0;
    while (r == 0 && dir != META_ROOT_INO && meta_dir_has_entries(fs->meta, dir) == 0) {
        struct meta_dentry d = {0};
        if (!dir_has(fs, dir, INODE_DIR_LISTED) || dir_has(fs, dir, INODE_DIR_LOCAL))
            return 0;
        mutex_lock(&fs->ns);
        uint64_t stamp = meta_last_seq(fs->meta), first_id = meta_next_ino(fs->meta);
        r = meta_link_first(fs->meta, dir, &d);
        g_autofree char *key = r == 0 ? tree_key(fs, d.parent, d.name, true) : NULL;
        mutex_unlock(&fs->ns);
        bool there = true;
        if (r == 0)
            r = anything_at(fs, key, &there);
        struct change c = {.dir = d.parent, .name = d.name, .stamp = stamp, .first_id = first_id};
        if (r == 0 && !there)
            r = commit_change(fs, key, &c);
        dir = c.changed ? d.parent : META_ROOT_INO;
        meta_dentry_clear(&d);
    }
    return r == -ENOENT ? 0 : r;
}

/* ---- one event ---- */

/* Is the name of the very object that the event tells of? Nothing is known of empty ones by their etags. */
static bool is_known(const struct spot *s, const struct etag *etag, bool created)
{
    return created && s->last && s->d.id && etag_is_set(etag) && s->d.usize > 0 && (s->d.flags & DENTRY_UPSTREAM) &&
           !s->d.ukey && etag_fits(etag, &s->d.uetag);
}

static bool is_local(struct fs *fs, const struct spot *s)
{
    INODE_REF in = NULL;
    return inode_get(fs, s->d.ino, &in) == 0 && tree_name_is_local(&s->d, in, true);
}

/* What can be said without the store: EVENT_APPLIED stands for "ask it". */
static enum event_result look_here(struct fs *fs, const char *key, const struct spot *s, const struct etag *etag,
                                   bool created)
{
    if (!s->name)
        return EVENT_NOTHING;
    if (is_known(s, etag, created))
        return EVENT_KNOWN;
    bool busy = publish_key_busy(fs->pub, key);
    if (s->d.id && s->last && S_ISDIR(s->d.type) == s->is_dir) {
        if (is_local(fs, s))
            return busy ? EVENT_BUSY : EVENT_KNOWN; /* publishing finds out by its condition */
        bool full = s->is_dir && (created || meta_dir_has_entries(fs->meta, s->d.ino) != 0);
        return busy ? EVENT_BUSY : full ? EVENT_KNOWN : EVENT_APPLIED;
    }
    if (!created) /* a listing may be about to show what is gone */
        return !s->d.id && s->last && tree_list_running(fs, s->dir) ? EVENT_APPLIED : EVENT_NOTHING;
    if (busy)
        return EVENT_BUSY;
    bool looked = s->made_here || dir_has(fs, s->dir, INODE_DIR_LISTED | INODE_DIR_LOCAL);
    return s->d.id || looked || tree_list_running(fs, s->dir) ? EVENT_APPLIED : EVENT_UNSEEN;
}

/* The store has the object: it, or the directory on the way to it, becomes a name. */
static int appear(struct fs *fs, const struct spot *s, struct list_row *row, struct change *c)
{
    if (s->made_here && !s->d.id) {
        c->changed = true;
        int r = open_made_here(fs, s->made_here);
        notify_entry(fs, s->dir, s->name);
        if (r == 0 && row->told)
            (void)rules_on_create(fs, row->told); /* wanted or not */
        return r;
    }
    struct list_row dir = {.is_dir = true, .told = row->told};
    dir.name = row->name = s->name;
    row->settled_ns = 0;
    dir.stamp = row->stamp = meta_next_seq(fs->meta);
    forget_metadata(fs, row);
    c->row = s->is_dir ? &dir : row;
    return commit_change(fs, s->key, c);
}

static int vanish(struct fs *fs, const struct spot *s, struct change *c)
{
    if (s->last && tree_list_running(fs, s->dir))
        publish_note_gone(fs->pub, s->key);
    bool shadow = s->d.flags & DENTRY_SHADOW; /* of the object of another key */
    if (!s->d.id || !s->last || S_ISDIR(s->d.type) != s->is_dir || shadow)
        return 0;
    int r = commit_change(fs, s->key, c);
    return r == 0 && c->changed ? drop_empty_dirs(fs, s->dir) : r;
}

static int look_there(struct fs *fs, const char *key, const struct spot *s, const char *told)
{
    struct list_row row = {.told = told};
    bool there = false;
    struct change c = {.dir = s->dir, .name = s->name, .stamp = meta_last_seq(fs->meta)};
    c.first_id = meta_next_ino(fs->meta);
    int r = ask(fs, key, &row, &there);
    if (r == 0)
        r = there ? appear(fs, s, &row, &c) : vanish(fs, s, &c);
    row.name = NULL; /* the spot's */
    obj_info_clear(&row.info);
    if (r < 0)
        return r;
    if (told && there && !c.changed && !(s->d.id && s->last))
        (void)rules_on_create(fs, told); /* a listing was faster */
    if (c.changed) {
        const char *slash = strrchr(key, '/');
        g_autofree char *dir = slash ? g_strndup(key, (size_t)(slash + 1 - key)) : g_strdup("/");
        pin_rules_apply(fs, dir);
    }
    return c.changed ? EVENT_APPLIED : EVENT_NOTHING;
}

/* ---- --on-create ---- */

/* Is the key that of an object, not of a directory's marker? What lies below that has events of its own. */
static bool is_file(const char *key)
{
    bool ok = true;
    for (const char *at = key, *end; ok && at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, "/");
        ok = tree_name_ok(at, (size_t)(end - at));
    }
    return ok;
}

/* The name is as a listing showed it, maybe the first one, which tells of nothing new; and its content is not here. */
static bool is_only_listed(struct fs *fs, const struct meta_dentry *d)
{
    struct meta_inode rec;
    if (d->stamp != 0 || d->op_seq != 0 || !S_ISREG(d->type) || meta_inode_get(fs->meta, d->ino, &rec) < 0)
        return false;
    bool absent = pin_is_absent(fs, &rec);
    meta_inode_clear(&rec);
    return absent;
}

/* What was made, and is no news to the names: nobody has looked there, or a listing was faster than the event. */
static void warm_made(struct fs *fs, const char *key, const struct spot *s, int r)
{
    bool same = (r == EVENT_KNOWN || r == EVENT_NOTHING) && s->d.id && s->last;
    if (r == EVENT_UNSEEN || (same && is_only_listed(fs, &s->d)))
        (void)rules_on_create(fs, key); /* the store is asked when it is fetched */
}

int event_look(struct fs *fs, const char *key, const struct etag *etag, bool created)
{
    struct spot s;
    int r = find_spot(fs, key, &s);
    const char *told = created && fs->rules->on_create->len > 0 && is_file(key) ? key : NULL;
    if (r == 0)
        r = (int)look_here(fs, key, &s, etag, created);
    if (r == EVENT_APPLIED)
        r = look_there(fs, key, &s, told);
    if (told)
        warm_made(fs, told, &s, r);
    spot_clear(&s);
    return r;
}

/* False: it is being listed, which may have begun too early. */
static bool doubt_one(struct fs *fs, uint64_t dir)
{
    INODE_REF in = NULL;
    if (inode_get(fs, dir, &in) < 0)
        return true;
    bool done = !tree_list_running(fs, dir);
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    if (done && !in->gone && in->rec.listed_ns != 0 && !(in->rec.flags & INODE_DIR_LOCAL)) {
        ns_undo_note_locked(in);
        in->rec.listed_ns = 0;
        meta_inode_put(b, &in->rec);
    }
    mutex_unlock(&in->mu);
    int r = meta_commit(b, false);
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (r == 0 && done)
        notify_names(fs, in);
    if (r < 0)
        log_debug("events", "a directory keeps its age ino=%" G_GUINT64_FORMAT " r=%s", dir, err_name(r));
    return done;
}

bool event_doubt_dir(struct fs *fs, const char *key)
{
    struct spot s;
    bool done = true;
    if (find_spot(fs, key, &s) == 0) {
        done = doubt_one(fs, s.dir);
        if (s.d.id && s.last && S_ISDIR(s.d.type))
            done = doubt_one(fs, s.d.ino) && done;
    }
    spot_clear(&s);
    return done;
}
