/* See ckpt.h. Walks what the database knows. */
#include "ckpt.h"

#include "content.h"
#include "local.h"
#include "pin.h"
#include "publish.h"
#include "rules.h"

#include <string.h>

#define MAX_DEPTH  256u
#define PAGE_NAMES 1024u /* that matter, of a directory, in memory at a time */

/* ---- shape ---- */

/* "step_100", "checkpoint-200", "global_step300", "epoch=3-step=7", "iter_0000010" */
static bool dir_has_shape(const char *name)
{
    static const char *const words[] = {"global_step", "checkpoint", "ckpt", "step", "epoch", "iteration", "iter"};
    for (unsigned i = 0; i < G_N_ELEMENTS(words); i++) {
        if (g_ascii_strncasecmp(name, words[i], strlen(words[i])) != 0)
            continue;
        const char *number = name + strlen(words[i]);
        number += *number && strchr("_-=.", *number);
        if (g_ascii_isdigit(*number))
            return true;
    }
    return false;
}

bool ckpt_has_shape(const char *name, bool dir)
{
    static const char *const ends[] = {".pt", ".pth", ".ckpt", ".safetensors", ".bin"};
    if (dir)
        return dir_has_shape(name) || g_str_has_suffix(name, ".ckpt"); /* some frameworks make it a directory */
    for (unsigned i = 0; i < G_N_ELEMENTS(ends); i++)
        if (g_str_has_suffix(name, ends[i]) && name[0] != '.')
            return true;
    return false;
}

/* ---- walking ---- */

struct walk {
    struct fs *fs;
    const char *match; /* NULL: whatever has the shape */
    const char *rule;  /* see ckpt_each() */
    bool by_shape;
    unsigned depth; /* of the directories that may hold a match */
    bool (*list)(void *ctx, uint64_t ino, const char *path);
    ckpt_fn *fn;
    void *ctx;
};

/* One directory's names that matter. */
struct names {
    const struct walk *w;
    const char *path;
    GArray *found; /* struct found */
    uint64_t last; /* id of the last name looked at */
};

struct found {
    char *path;
    uint64_t ino, id;
    bool dir, is_one;
};

static void found_clear(void *f)
{
    g_free(((struct found *)f)->path);
}

static bool is_one(const struct walk *w, const char *name, const char *path, bool dir)
{
    if (w->by_shape && !ckpt_has_shape(name, dir))
        return false;
    g_autofree char *at = g_strconcat(path, w->by_shape && dir ? "/" : NULL, NULL);
    if (w->match && !rule_glob_matches(w->match, at))
        return false;
    return !w->rule || rules_for(w->fs, at)->rule == w->rule;
}

static int take_name(void *ctx, const struct meta_dentry *d)
{
    struct names *n = ctx;
    bool dir = S_ISDIR(d->type);
    n->last = d->id;
    if (!dir && !S_ISREG(d->type))
        return 0;
    struct found f = {.path = *n->path ? g_strconcat(n->path, "/", d->name, NULL) : g_strdup(d->name),
                      .ino = d->ino,
                      .id = d->id,
                      .dir = dir};
    f.is_one = is_one(n->w, d->name, f.path, dir);
    if (f.is_one || dir)
        g_array_append_val(n->found, f);
    else
        g_free(f.path);
    return n->found->len >= PAGE_NAMES;
}

static int walk_dir(const struct walk *w, uint64_t ino, const char *path, unsigned depth);

static int walk_page(const struct walk *w, const GArray *found, unsigned depth)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < found->len; i++) {
        const struct found *f = &g_array_index(found, struct found, i);
        struct ckpt c = {f->path, f->ino, f->id, f->dir};
        if (f->is_one)
            r = w->fn(w->ctx, &c);
        else if (depth < w->depth)
            r = walk_dir(w, f->ino, f->path, depth + 1);
    }
    return r;
}

static int walk_dir(const struct walk *w, uint64_t ino, const char *path, unsigned depth)
{
    if (atomic_load(&w->fs->stopping))
        return -ECANCELED;
    if (w->list && w->list(w->ctx, ino, path))
        return 0;
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(struct found));
    g_array_set_clear_func(found, found_clear);
    struct names n = {w, path, found, 0};
    int r, more;
    do {
        more = meta_dentry_each(w->fs->meta, ino, n.last, take_name, &n);
        r = more < 0 ? more : walk_page(w, found, depth);
        g_array_set_size(found, 0);
    } while (r == 0 && more > 0 && !atomic_load(&w->fs->stopping));
    return r == 0 && more > 0 ? -ECANCELED : r;
}

static int known_dir(struct fs *fs, const char *path, uint64_t *ret_ino)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    uint64_t ino = META_ROOT_INO;
    for (unsigned i = 0; parts[i]; i++) {
        struct meta_dentry d = {0};
        int r = *parts[i] ? meta_dentry_get(fs->meta, ino, parts[i], &d) : 0;
        bool dir = !*parts[i] || S_ISDIR(d.type);
        ino = r == 0 && *parts[i] ? d.ino : ino;
        meta_dentry_clear(&d);
        if (r < 0 || !dir)
            return r < 0 ? r : -ENOENT;
    }
    *ret_ino = ino;
    return 0;
}

char *ckpt_folder(const char *match)
{
    g_autofree char *literal = g_strndup(match, strcspn(match, "*?[\\"));
    char *slash = strrchr(literal, '/');
    *(slash ? slash : literal) = '\0';
    return g_steal_pointer(&literal);
}

static unsigned count_slashes(const char *text)
{
    unsigned n = 0;
    for (; (text = strchr(text, '/')); text++)
        n++;
    return n;
}

int ckpt_each(struct fs *fs, const char *match, const char *rule, ckpt_fn *fn, void *ctx)
{
    g_autofree char *folder = ckpt_folder(match);
    uint64_t ino;
    bool deep = strstr(match, "**"), all = g_str_equal(match, "**") || g_str_has_suffix(match, "/**");
    unsigned above = *folder ? count_slashes(folder) + 1 : 0;
    struct walk w = {.fs = fs,
                     .match = match,
                     .rule = rule,
                     .by_shape = all,
                     .depth = deep ? MAX_DEPTH : count_slashes(match) - above,
                     .fn = fn,
                     .ctx = ctx};
    int r = known_dir(fs, folder, &ino);
    return r < 0 ? (r == -ENOENT ? 0 : r) : walk_dir(&w, ino, folder, 0);
}

int ckpt_each_below(struct fs *fs, const char *dir, bool (*list)(void *ctx, uint64_t ino, const char *path),
                    ckpt_fn *fn, void *ctx)
{
    uint64_t ino;
    struct walk w = {.fs = fs, .by_shape = true, .depth = MAX_DEPTH, .list = list, .fn = fn, .ctx = ctx};
    int r = known_dir(fs, dir, &ino);
    return r < 0 ? r : walk_dir(&w, ino, dir, 0);
}

/* ---- summing up ---- */

struct adding {
    struct fs *fs;
    struct ckpt_sum *sum;
    const char *path; /* of the directory */
    unsigned depth;
    uint64_t *n_kept; /* files that a rule keeps here: the store is owed nothing of them */
};

static uint64_t cached_bytes(struct fs *fs, const struct meta_inode *rec)
{
    struct meta_cached c;
    struct cfile *cf = NULL;
    INODE_REF in = NULL;
    if (rec->content != CONTENT_CLEAN && !rec->base_key)
        return rec->size;
    if (!rec->vid || meta_cached_get(fs->meta, rec->vid, &c) < 0)
        return 0;
    if (c.flags & CACHED_COMPLETE)
        return rec->size;
    if (inode_get(fs, rec->ino, &in) < 0 || content_use(in, &cf) < 0)
        return 0;
    uint64_t n = cache_file_present_bytes(cf);
    content_unuse(in, cf);
    return MIN(n, rec->size);
}

static void add_file(struct adding *a, const char *path, const struct meta_inode *rec, const struct meta_dentry *d)
{
    struct ckpt_sum *s = a->sum;
    bool upstream = rec->content == CONTENT_CLEAN && (d->flags & (DENTRY_UPSTREAM | DENTRY_SHADOW));
    bool kept = !upstream && local_is(a->fs, path);
    s->files++;
    s->bytes += rec->size;
    s->cached_bytes += cached_bytes(a->fs, rec);
    s->mtime_ns = MAX(s->mtime_ns, rec->mtime_ns);
    s->open |= rec->content == CONTENT_OPEN;
    s->owed |= !upstream && !kept;
    *a->n_kept += kept;
    s->pending |= d->op_seq != 0;
    s->pinned &= pin_of(rec) != PIN_NONE;
    s->in_memory &= pin_of(rec) == PIN_MEMORY;
}

static int add_name(void *ctx, const struct meta_dentry *d)
{
    struct adding *a = ctx;
    struct meta_inode rec = {0};
    g_autofree char *path = g_strconcat(a->path, "/", d->name, NULL);
    if (S_ISDIR(d->type) && a->depth < MAX_DEPTH) {
        struct adding below = {a->fs, a->sum, path, a->depth + 1, a->n_kept};
        return meta_dentry_each(a->fs->meta, d->ino, 0, add_name, &below);
    }
    if (S_ISREG(d->type) && meta_inode_get(a->fs->meta, d->ino, &rec) == 0)
        add_file(a, path, &rec, d);
    meta_inode_clear(&rec);
    return 0;
}

/* The name of a file, for what it has in the store. */
static int find_name(void *ctx, const struct meta_dentry *d)
{
    struct meta_dentry *want = ctx;
    if (d->id != want->id)
        return 0;
    meta_dentry_copy(want, d);
    return 1;
}

/* What is left of a writer that was killed is published in the end, and still is no checkpoint. */
static bool has_held_name(struct fs *fs, const struct ckpt *c)
{
    g_autofree char *path = g_strconcat(c->path, c->dir ? "/" : NULL, NULL);
    bool by_name = rules_for(fs, path)->hold == RULE_HOLD_BY_NAME;
    return by_name && (publish_is_held_name(fs, path) || publish_is_held_name(fs, c->path));
}

int ckpt_sum_up(struct fs *fs, const struct ckpt *c, struct ckpt_sum *ret)
{
    *ret = (struct ckpt_sum){.pinned = true, .in_memory = true, .unfinished = has_held_name(fs, c)};
    uint64_t n_kept = 0;
    struct adding a = {fs, ret, c->path, 0, &n_kept};
    struct meta_inode rec = {0};
    int r = meta_inode_get(fs->meta, c->ino, &rec);
    if (r == 0 && c->dir) {
        r = meta_dentry_each(fs->meta, c->ino, 0, add_name, &a);
        ret->mtime_ns = ret->files ? ret->mtime_ns : rec.mtime_ns;
    } else if (r == 0) {
        struct meta_dentry d = {.id = c->id};
        r = meta_link_each(fs->meta, c->ino, find_name, &d);
        if (r == 1)
            add_file(&a, c->path, &rec, &d);
        r = r == 1 ? 0 : r == 0 ? -ENOENT : r;
        if (r == 0)
            meta_dentry_clear(&d);
    }
    ret->owed |= n_kept > 0 && n_kept == ret->files; /* nothing of it is in the store */
    if (ret->files == 0) {
        ret->pinned = pin_of(&rec) != PIN_NONE;
        ret->in_memory = pin_of(&rec) == PIN_MEMORY;
    }
    meta_inode_clear(&rec);
    return r;
}

struct unlisted {
    struct fs *fs;
    unsigned depth;
};

/* Is it, or one below it, a directory whose names are not known? */
static int find_unlisted(void *ctx, const struct meta_dentry *d)
{
    const struct unlisted *at = ctx;
    struct unlisted below = {at->fs, at->depth + 1};
    struct meta_inode rec = {0};
    if (!S_ISDIR(d->type) || at->depth > MAX_DEPTH || meta_inode_get(at->fs->meta, d->ino, &rec) < 0)
        return 0;
    bool unlisted = pin_is_absent(at->fs, &rec);
    meta_inode_clear(&rec);
    return unlisted ? 1 : meta_dentry_each(at->fs->meta, d->ino, 0, find_unlisted, &below);
}

bool ckpt_may_replace(struct fs *fs, const struct ckpt *c)
{
    const struct meta_dentry d = {.ino = c->ino, .type = c->dir ? S_IFDIR : S_IFREG};
    struct unlisted top = {fs, 0};
    struct ckpt_sum sum;
    if (ckpt_sum_up(fs, c, &sum) < 0)
        return false;
    return sum.files > 0 ? ckpt_is_safe(&sum) : find_unlisted(&top, &d) > 0;
}

/* ---- rules ---- */

void ckpt_rules_each(struct fs *fs,
                     void (*fn)(void *ctx, const char *match, const char *rule, unsigned latest, enum cache_pin pin),
                     void *ctx)
{
    for (unsigned i = 0; i < fs->rules->all->len; i++) {
        const struct rule *rule = &g_array_index(fs->rules->all, struct rule, i);
        if (rule->set.pin)
            fn(ctx, rule->match, rule->set.rule, rule->set.pin,
               rule->set.tier == RULE_TIER_MEMORY ? PIN_MEMORY : PIN_DISK);
    }
}
