/* `sluice checkpoints`: what is below a directory by pin rules and by shape, the newest first, and how safe it is. */
#include "ckpt.h"
#include "ctl_verbs.h"
#include "pin.h"
#include "publish.h"
#include "tree.h"

#include <string.h>

#define LISTED_MAX 10000u /* checkpoints of one answer: any lake has as many files with such a name */

struct one {
    char *path; /* owned */
    bool dir;
    struct ckpt_sum sum;
};

struct finding {
    struct fs *fs;
    struct ctl_client *client;
    const char *below;   /* the directory asked for */
    GHashTable *seen;    /* paths, of found */
    GPtrArray *found;    /* struct one; twice LISTED_MAX at most */
    int64_t oldest_ns;   /* older ones are left out, but for pinned ones */
    bool list;           /* from the store */
    uint64_t offline_ns; /* for tree_refresh_sure() */
    bool failed, cut_short;
};

static void one_free(void *p)
{
    struct one *o = p;
    g_free(o->path);
    g_free(o);
}

/* Names are read from the store as of the TTL; a directory that cannot be listed is told, and what is known of it shown. True: it is left out. */
static bool list_dir(void *ctx, uint64_t ino, const char *path)
{
    struct finding *f = ctx;
    INODE_REF in = NULL;
    int r = f->list ? inode_get(f->fs, ino, &in) : 0;
    if (r == 0 && in)
        r = tree_refresh_sure(f->fs, in, &f->offline_ns);
    if (r < 0 && r != -ENOENT) {
        f->failed = true;
        (void)verb_error(f->client, path, r);
    }
    return (r < 0 && !(in && tree_is_listed(in))) || ctl_gone(f->client);
}

/* All of a checkpoint has to be known before it is summed up. */
static void list_below(struct finding *f, uint64_t ino)
{
    INODE_REF in = NULL;
    struct verb_listing listing = {.client = f->client};
    if (f->list && inode_get(f->fs, ino, &in) == 0 &&
        tree_refresh_all_sure(f->fs, in, &f->offline_ns, verb_listing_tick, &listing) < 0)
        f->failed = true;
}

static int newest_first(const void *a, const void *b)
{
    const struct one *x = *(const struct one *const *)a, *y = *(const struct one *const *)b;
    if (x->sum.mtime_ns != y->sum.mtime_ns)
        return x->sum.mtime_ns > y->sum.mtime_ns ? -1 : 1;
    return -strcmp(x->path, y->path);
}

/* What is pinned is never cut for what is newer. */
static int pinned_first(const void *a, const void *b)
{
    const struct one *x = *(const struct one *const *)a, *y = *(const struct one *const *)b;
    return x->sum.pinned != y->sum.pinned ? (x->sum.pinned ? -1 : 1) : newest_first(a, b);
}

/* Leaves the oldest out if there are too many. */
static void cut_found(struct finding *f)
{
    if (f->found->len <= LISTED_MAX)
        return;
    g_ptr_array_sort(f->found, pinned_first);
    for (guint i = LISTED_MAX; i < f->found->len; i++)
        g_hash_table_remove(f->seen, ((struct one *)f->found->pdata[i])->path);
    g_ptr_array_set_size(f->found, LISTED_MAX);
    f->oldest_ns = ((struct one *)f->found->pdata[LISTED_MAX - 1])->sum.mtime_ns;
    f->cut_short = true;
}

/* A file's own record tells, before the rest of it is looked at. */
static bool is_too_old(const struct finding *f, const struct ckpt *c)
{
    struct meta_inode rec = {0};
    if (!f->cut_short || c->dir || meta_inode_get(f->fs->meta, c->ino, &rec) < 0)
        return false;
    bool old = rec.mtime_ns < f->oldest_ns && pin_of(&rec) == PIN_NONE;
    meta_inode_clear(&rec);
    return old;
}

static void keep(struct finding *f, struct one *o)
{
    g_ptr_array_add(f->found, o);
    g_hash_table_add(f->seen, o->path);
    if (f->found->len >= 2 * LISTED_MAX)
        cut_found(f);
}

static int take(void *ctx, const struct ckpt *c)
{
    struct finding *f = ctx;
    if (ctl_gone(f->client))
        return -ECANCELED;
    if (!tree_path_below(c->path, f->below) || g_hash_table_contains(f->seen, c->path) || is_too_old(f, c))
        return 0;
    if (c->dir)
        list_below(f, c->ino);
    struct one *o = g_new0(struct one, 1);
    int r = ckpt_sum_up(f->fs, c, &o->sum);
    if (r < 0) {
        one_free(o);
        return r == -ENOENT ? 0 : r;
    }
    o->path = g_strdup(c->path);
    o->dir = c->dir;
    keep(f, o);
    return 0;
}

static void take_rule(void *ctx, const char *match, const char *rule, unsigned latest, enum cache_pin pin)
{
    struct finding *f = ctx;
    if (ckpt_each(f->fs, match, rule, take, f) < 0)
        f->failed = true;
}

/* Rules of `sluice pin --latest`. */
static int take_pin(void *ctx, const char *name, const void *value, size_t len)
{
    take_rule(ctx, name + strlen(PIN_VALUE_PREFIX), NULL, 0, PIN_NONE);
    return 0;
}

static const char *state_of(struct fs *fs, const struct one *o)
{
    struct publish_counts c = {0};
    publish_count(fs->pub, o->path, &c);
    if (c.uploading > 0 && o->sum.owed)
        return "uploading";
    if (o->sum.open || o->sum.owed)
        return "dirty";
    return o->sum.pending || c.ops > 0 ? "published" : "verified";
}

static json_t *line_of(struct fs *fs, const struct one *o)
{
    const struct ckpt_sum *s = &o->sum;
    const char *state = state_of(fs, o);
    uint64_t percent = s->bytes ? s->cached_bytes / MAX(s->bytes / 100, 1) : 100;
    json_t *line =
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:s, s:I, s:I, s:b, s:b}", "event", "checkpoint", "type",
                  o->dir ? "directory" : "file", "files", (json_int_t)s->files, "bytes", (json_int_t)s->bytes, "mtime",
                  (double)s->mtime_ns / (double)NS_PER_S, "state", state, "cached_bytes", (json_int_t)s->cached_bytes,
                  "cached_percent", (json_int_t)(s->cached_bytes >= s->bytes ? 100 : MIN(percent, 99)), "pinned",
                  (int)s->pinned, "safe", (int)(ckpt_is_safe(s) && g_str_equal(state, "verified")));
    json_object_set_new(line, "path", verb_string(o->path));
    if (s->pinned)
        json_object_set_new(line, "pinned_in", json_string(s->in_memory ? "memory" : "disk"));
    return line;
}

static json_t *cut_short_line(void)
{
    json_t *line = json_pack("{s:s}", "event", "warning");
    g_autofree char *text =
        g_strdup_printf("only %u are shown, what is pinned and the newest: name a folder", LISTED_MAX);
    json_object_set_new(line, "message", json_string(text));
    return line;
}

static int show(struct finding *f)
{
    cut_found(f);
    g_ptr_array_sort(f->found, newest_first);
    for (unsigned i = 0; i < f->found->len; i++)
        if (ctl_emit(f->client, line_of(f->fs, f->found->pdata[i])) < 0)
            return 1;
    if (f->cut_short && ctl_emit(f->client, cut_short_line()) < 0)
        return 1;
    if (f->failed)
        ctl_fail(f->client, "not everything could be looked at");
    return f->failed ? 1 : 0;
}

static int look_below(struct finding *f, const char *path)
{
    INODE_REF in = NULL;
    g_autofree char *real = NULL;
    int r = tree_follow(f->fs, path, NULL, &real, &in);
    if (r == 0 && !inode_is_dir(in))
        r = -ENOTDIR;
    if (r < 0)
        return r;
    f->below = real;
    r = ckpt_each_below(f->fs, real, list_dir, take, f);
    ckpt_rules_each(f->fs, take_rule, f);
    int pins = meta_value_each(f->fs->meta, PIN_VALUE_PREFIX, take_pin, f);
    return r < 0 ? r : pins;
}

int verb_checkpoints(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    if (!paths)
        return 1;
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func(one_free);
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
    struct finding f = {.fs = fs,
                        .client = client,
                        .seen = seen,
                        .found = found,
                        .list = json_is_true(json_object_get(req, "list")),
                        .offline_ns = TREE_OFFLINE_NS};
    for (unsigned i = 0; paths[i]; i++) {
        int r = look_below(&f, paths[i]);
        if (r < 0) {
            f.failed = true;
            (void)verb_error(client, paths[i], r);
        }
    }
    return show(&f);
}
