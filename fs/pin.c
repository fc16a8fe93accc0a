/*
 * Pins and pin rules.
 *
 * Marks are set page by page: one batch under ns for the records, then, with nothing locked, the cache is told. Rules are applied by the one
 * thread of jobs->pin_q, which takes all paths noted meanwhile at once, so that a directory of a million new names costs one look, not a million.
 */
#include "pin.h"

#include "jobs.h"
#include "tree.h"
#include "warm.h"

#include <fnmatch.h>
#include <stdlib.h>

#define PAGE_NAMES 256
#define MAX_DEPTH  512
#define MAX_PATHS  4096

/* ---- marks ---- */

struct marks {
    struct fs *fs;
    enum cache_pin pin;
};

/* Changes the records of some inodes as one batch; ret_vids gets the cache files concerned. */
static int mark_records(struct marks *m, const GArray *inos, GArray *ret_vids)
{
    struct fs *fs = m->fs;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    for (unsigned i = 0; i < inos->len; i++) {
        INODE_REF in = NULL;
        if (inode_get(fs, g_array_index(inos, uint64_t, i), &in) < 0)
            continue; /* removed meanwhile */
        mutex_lock(&in->mu);
        if (pin_of(&in->rec) != m->pin && !in->gone) {
            in->rec.flags &= ~(uint32_t)(INODE_PINNED | INODE_PIN_MEMORY);
            in->rec.flags |= (m->pin != PIN_NONE ? INODE_PINNED : 0) | (m->pin == PIN_MEMORY ? INODE_PIN_MEMORY : 0);
            meta_inode_put(b, &in->rec);
        }
        if (in->rec.vid)
            g_array_append_val(ret_vids, in->rec.vid);
        mutex_unlock(&in->mu);
    }
    int r = meta_commit(b, false);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r;
}

static int mark_inodes(struct marks *m, const GArray *inos)
{
    g_autoptr(GArray) vids = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    int r = mark_records(m, inos, vids);
    for (unsigned i = 0; r == 0 && i < vids->len; i++) {
        r = cache_pin(m->fs->cache, g_array_index(vids, uint64_t, i), m->pin);
        r = r == -ENOENT ? 0 : r; /* evicted: marked when it is fetched again */
    }
    return r;
}

struct page {
    uint64_t after;
    GArray *inos, *dirs;
};

static int take_name(void *ctx, const struct meta_dentry *d)
{
    struct page *p = ctx;
    p->after = d->id;
    g_array_append_val(p->inos, d->ino);
    if (S_ISDIR(d->type))
        g_array_append_val(p->dirs, d->ino);
    return p->inos->len >= PAGE_NAMES;
}

static int mark_below(struct marks *m, uint64_t dir, unsigned depth)
{
    int r = depth > MAX_DEPTH ? -ELOOP : 1;
    uint64_t after = 0;
    while (r > 0) {
        g_autoptr(GArray) inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
        g_autoptr(GArray) dirs = g_array_new(FALSE, FALSE, sizeof(uint64_t));
        struct page page = {after, inos, dirs};
        r = meta_dentry_each(m->fs->meta, dir, after, take_name, &page);
        if (r < 0)
            return r;
        after = page.after;
        int marked = mark_inodes(m, inos);
        for (unsigned i = 0; marked == 0 && i < dirs->len; i++)
            marked = mark_below(m, g_array_index(dirs, uint64_t, i), depth + 1);
        if (marked < 0)
            return marked;
    }
    return r;
}

int pin_tree(struct fs *fs, uint64_t ino, enum cache_pin pin)
{
    struct marks m = {fs, pin};
    INODE_REF in = NULL;
    int r = inode_get(fs, ino, &in);
    if (r < 0)
        return r;
    g_autoptr(GArray) one = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(one, ino);
    r = mark_inodes(&m, one);
    return r == 0 && inode_is_dir(in) ? mark_below(&m, ino, 0) : r;
}

void pin_fetch(struct fs *fs, const char *const *paths)
{
    struct warm *w = NULL;
    struct warm_req req = {.paths = paths, .mode = WARM_FETCH, .parallel = 4, .background = true};
    if (!paths[0] || warm_start(fs, &req, &w) < 0)
        return; /* the daemon stops; the next look at the rules fetches */
    warm_unref(w);
}

/* ---- rules ---- */

bool pin_is_glob(const char *path)
{
    const char *last = strrchr(path, '/');
    return strpbrk(last ? last + 1 : path, "*?[") != NULL;
}

static void split_glob(const char *glob, char **ret_dir, const char **ret_base)
{
    const char *slash = strrchr(glob, '/');
    *ret_dir = slash ? g_strndup(glob, slash - glob) : g_strdup("");
    *ret_base = slash ? slash + 1 : glob;
}

int pin_rule_set(struct fs *fs, const char *glob, unsigned latest, enum cache_pin pin)
{
    g_autofree char *dir = NULL;
    const char *base;
    split_glob(glob, &dir, &base);
    if (!*base || strpbrk(dir, "*?["))
        return -EINVAL;
    g_autofree char *name = g_strconcat(PIN_VALUE_PREFIX, glob, NULL);
    g_autofree char *text = g_strdup_printf("%u%s", latest, pin == PIN_MEMORY ? " memory" : "");
    g_autoptr(GBytes) old = NULL;
    int r = meta_value_get(fs->meta, name, &old);
    if (latest == 0 && r < 0)
        return r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    if (latest > 0)
        meta_value_put(b, name, text, strlen(text));
    else
        meta_value_del(b, name);
    r = meta_commit(b, true);
    meta_batch_free(b);
    return r;
}

struct match {
    uint64_t id, ino;
    int64_t mtime_ns;
    bool pinned;
    char *name;
};

struct matching {
    struct fs *fs;
    const char *base;
    GArray *found; /* struct match */
};

static void match_clear(void *m)
{
    g_free(((struct match *)m)->name);
}

static int take_match(void *ctx, const struct meta_dentry *d)
{
    struct matching *m = ctx;
    if ((!S_ISREG(d->type) && !S_ISDIR(d->type)) || fnmatch(m->base, d->name, FNM_PERIOD) != 0)
        return 0;
    struct meta_inode rec;
    if (meta_inode_get(m->fs->meta, d->ino, &rec) < 0)
        return 0;
    if (rec.content != CONTENT_OPEN) { /* being written: no checkpoint yet */
        struct match f = {d->id, d->ino, rec.mtime_ns, rec.flags & INODE_PINNED, g_strdup(d->name)};
        g_array_append_val(m->found, f);
    }
    meta_inode_clear(&rec);
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct match *x = a, *y = b;
    if (x->mtime_ns != y->mtime_ns)
        return x->mtime_ns > y->mtime_ns ? -1 : 1;
    return x->id > y->id ? -1 : x->id < y->id;
}

/* The inode of a path as far as it is known here. */
static int resolve_known(struct fs *fs, const char *path, uint64_t *ret_ino)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    uint64_t ino = META_ROOT_INO;
    for (unsigned i = 0; parts[i]; i++) {
        if (!*parts[i])
            continue;
        struct meta_dentry d = {0};
        int r = meta_dentry_get(fs->meta, ino, parts[i], &d);
        if (r < 0)
            return r;
        ino = d.ino;
        meta_dentry_clear(&d);
    }
    *ret_ino = ino;
    return 0;
}

/* Something may be missing here: a directory, or a clean file that is not complete. */
static bool may_be_absent(struct fs *fs, uint64_t ino)
{
    struct meta_inode rec;
    if (meta_inode_get(fs->meta, ino, &rec) < 0)
        return false;
    struct meta_cached c;
    bool dir = S_ISDIR(rec.mode);
    bool here = rec.content != CONTENT_CLEAN ||
                (rec.vid && meta_cached_get(fs->meta, rec.vid, &c) == 0 && (c.flags & CACHED_COMPLETE));
    meta_inode_clear(&rec);
    return dir || !here;
}

/* What one application of a rule comes to: paths, owned by the arrays. */
struct settled {
    unsigned latest;
    enum cache_pin pin;
    GPtrArray *pinned, *absent;
};

/* Pins the first `latest` of the sorted matches and unpins the rest. */
static int settle(struct fs *fs, const char *dir, const GArray *found, struct settled *ret)
{
    for (unsigned i = 0; i < found->len; i++) {
        const struct match *m = &g_array_index(found, struct match, i);
        bool want = i < ret->latest;
        g_autofree char *path = *dir ? g_strconcat(dir, "/", m->name, NULL) : g_strdup(m->name);
        if (want && may_be_absent(fs, m->ino))
            g_ptr_array_add(ret->absent, g_strdup(path));
        if (want)
            g_ptr_array_add(ret->pinned, g_steal_pointer(&path));
        if (!want && !m->pinned)
            continue;
        int r = pin_tree(fs, m->ino, want ? ret->pin : PIN_NONE);
        if (r < 0 && r != -ENOENT)
            return r;
    }
    return 0;
}

int pin_rule_apply(struct fs *fs, const char *glob, unsigned latest, enum cache_pin pin, GPtrArray *ret_pinned)
{
    g_autofree char *dir = NULL;
    const char *base;
    split_glob(glob, &dir, &base);
    uint64_t dir_ino;
    int r = resolve_known(fs, dir, &dir_ino);
    if (r < 0)
        return r;
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(struct match));
    g_array_set_clear_func(found, match_clear);
    struct matching m = {fs, base, found};
    r = meta_dentry_each(fs->meta, dir_ino, 0, take_match, &m);
    if (r < 0)
        return r;
    g_array_sort(found, newest_first);
    g_autoptr(GPtrArray) pinned = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) absent = g_ptr_array_new_with_free_func(g_free);
    struct settled s = {latest, pin, pinned, absent};
    r = settle(fs, dir, found, &s);
    if (r < 0)
        return r;
    g_ptr_array_add(absent, NULL);
    pin_fetch(fs, (const char *const *)absent->pdata);
    if (ret_pinned)
        g_ptr_array_extend_and_steal(ret_pinned, g_steal_pointer(&pinned));
    return 0;
}

/* ---- looking at rules behind ---- */

struct rule {
    char *glob; /* owned */
    unsigned latest;
    enum cache_pin pin;
    bool due;
};

static void rule_clear(void *r)
{
    g_free(((struct rule *)r)->glob);
}

static int take_rule(void *ctx, const char *name, const void *value, size_t len)
{
    g_autofree char *text = g_strndup(value, len);
    struct rule r = {g_strdup(name + strlen(PIN_VALUE_PREFIX)), (unsigned)strtoul(text, NULL, 10),
                     g_str_has_suffix(text, " memory") ? PIN_MEMORY : PIN_DISK, false};
    g_array_append_val((GArray *)ctx, r);
    return 0;
}

/* Is path, or a directory above it, a name that the glob matches? */
static bool rule_covers(const char *glob, const char *path)
{
    g_autofree char *dir = NULL;
    const char *base;
    split_glob(glob, &dir, &base);
    size_t len = strlen(dir);
    if (len > 0) {
        if (strncmp(path, dir, len) != 0 || path[len] != '/')
            return false;
        path += len + 1;
    }
    g_autofree char *name = g_strndup(path, strcspn(path, "/"));
    return fnmatch(base, name, FNM_PERIOD) == 0;
}

/* What appeared in a pinned directory is pinned too. */
static void inherit_pin(struct fs *fs, const char *path)
{
    g_autofree char *dir = g_path_get_dirname(path);
    uint64_t ino = META_ROOT_INO;
    if (strchr(path, '/') && resolve_known(fs, dir, &ino) < 0)
        return;
    struct meta_inode rec;
    if (meta_inode_get(fs->meta, ino, &rec) < 0)
        return;
    enum cache_pin pin = pin_of(&rec);
    meta_inode_clear(&rec);
    if (pin == PIN_NONE || resolve_known(fs, path, &ino) < 0)
        return;
    int r = pin_tree(fs, ino, pin);
    if (r < 0)
        log_debug("pin", "not pinned path='%s' r=%s", path, err_name(r));
    if (may_be_absent(fs, ino))
        pin_fetch(fs, (const char *const[]){path, NULL});
}

static void apply_due(struct fs *fs, const GArray *rules)
{
    for (unsigned i = 0; i < rules->len && !atomic_load(&fs->stopping); i++) {
        const struct rule *rule = &g_array_index(rules, struct rule, i);
        int r = rule->due ? pin_rule_apply(fs, rule->glob, rule->latest, rule->pin, NULL) : 0;
        if (r < 0 && r != -ENOENT)
            log_notice("pin", "rule not applied glob='%s' r=%s", rule->glob, err_name(r));
    }
}

static void look_at_rules(void *arg)
{
    struct fs *fs = arg;
    struct jobs *j = fs->jobs;
    mutex_lock(&j->mu);
    g_autoptr(GHashTable) paths = j->pin_paths;
    j->pin_paths = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    bool all = j->pin_all;
    j->pin_all = j->pin_queued = false;
    mutex_unlock(&j->mu);

    g_autoptr(GArray) rules = g_array_new(FALSE, FALSE, sizeof(struct rule));
    g_array_set_clear_func(rules, rule_clear);
    if (meta_value_each(fs->meta, PIN_VALUE_PREFIX, take_rule, rules) < 0)
        return;
    GHashTableIter it;
    void *key;
    g_hash_table_iter_init(&it, paths);
    while (g_hash_table_iter_next(&it, &key, NULL) && !atomic_load(&fs->stopping)) {
        const char *path = key;
        bool covered = false;
        for (unsigned i = 0; i < rules->len; i++) {
            struct rule *rule = &g_array_index(rules, struct rule, i);
            bool covers = rule_covers(rule->glob, path);
            rule->due |= covers;
            covered |= covers;
        }
        if (!covered)
            inherit_pin(fs, path);
    }
    for (unsigned i = 0; all && i < rules->len; i++)
        g_array_index(rules, struct rule, i).due = true;
    apply_due(fs, rules);
}

void pin_rules_apply(struct fs *fs, const char *path)
{
    struct jobs *j = fs->jobs;
    if (!j)
        return;
    mutex_lock(&j->mu);
    if (g_hash_table_size(j->pin_paths) < MAX_PATHS)
        g_hash_table_add(j->pin_paths, g_strdup(path));
    else
        j->pin_all = true;
    bool push = !j->pin_queued && !j->closing;
    j->pin_queued |= push;
    mutex_unlock(&j->mu);
    if (push)
        (void)workq_push(j->pin_q, false, look_at_rules, fs); /* refused only while stopping */
}
