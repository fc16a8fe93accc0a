/*
 * Pins and pin rules.
 *
 * Marks are set page by page: one batch under ns for the records, then, with nothing locked, the cache is told. Rules are applied by the one
 * thread of jobs->pin_q, which takes all paths noted meanwhile at once, so that a directory of a million new names costs one look, not a million.
 */
#include "pin.h"

#include "ckpt.h"
#include "jobs.h"
#include "ns_undo.h"
#include "rules.h"
#include "tree.h"

#include <fnmatch.h>
#include <stdlib.h>

#define PAGE_NAMES 256
#define MAX_DEPTH  512
#define MAX_PATHS  4096

/* ---- marks ---- */

struct marks {
    struct fs *fs;
    enum cache_pin pin;
    const struct pin_tick *tick; /* may be NULL */
    bool by_rule;                /* leaves alone what was pinned by name */
    bool top_last;               /* one that is ended before leaves the top as it was */
    GHashTable *
        keep; /* see struct look: what is to be kept more strongly than this is left alone with everything below; may be NULL */
};

static enum cache_pin wanted_pin(GHashTable *keep, uint64_t ino)
{
    return keep ? (enum cache_pin)GPOINTER_TO_UINT(g_hash_table_lookup(keep, &ino)) : PIN_NONE;
}

static uint32_t flags_of(const struct marks *m)
{
    return m->pin == PIN_NONE ? 0
                              : INODE_PINNED | (m->pin == PIN_MEMORY ? (uint32_t)INODE_PIN_MEMORY : 0) |
                                    (m->by_rule ? (uint32_t)INODE_PIN_RULE : 0);
}

/* Changes the records of some inodes as one batch; ret_vids gets the cache files concerned. */
static int mark_records(struct marks *m, const GArray *inos, GArray *ret_vids)
{
    struct fs *fs = m->fs;
    uint32_t want = flags_of(m);
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    for (unsigned i = 0; i < inos->len; i++) {
        INODE_REF in = NULL;
        if (inode_get(fs, g_array_index(inos, uint64_t, i), &in) < 0)
            continue; /* removed meanwhile */
        mutex_lock(&in->mu);
        uint32_t have = in->rec.flags & INODE_PIN_FLAGS;
        bool by_name = (have & INODE_PINNED) && !(have & INODE_PIN_RULE);
        bool ours = !m->by_rule || !by_name;
        if (ours && have != want && !in->gone) {
            ns_undo_note_locked(in);
            in->rec.flags = (in->rec.flags & ~INODE_PIN_FLAGS) | want;
            meta_inode_put(b, &in->rec);
        }
        if (ours && in->rec.vid)
            g_array_append_val(ret_vids, in->rec.vid);
        mutex_unlock(&in->mu);
    }
    int r = meta_commit(b, false);
    ns_undo_end(fs, r == 0);
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
    const struct marks *m;
    uint64_t after;
    GArray *inos, *dirs;
};

static int take_name(void *ctx, const struct meta_dentry *d)
{
    struct page *p = ctx;
    p->after = d->id;
    if (wanted_pin(p->m->keep, d->ino) > p->m->pin)
        return 0;
    g_array_append_val(p->inos, d->ino);
    if (S_ISDIR(d->type))
        g_array_append_val(p->dirs, d->ino);
    return p->inos->len >= PAGE_NAMES;
}

/* Names with an id above *after, which is moved on. */
static int mark_below(struct marks *m, uint64_t dir, uint64_t *after, unsigned depth)
{
    int r = depth > MAX_DEPTH ? -ELOOP : 1;
    while (r > 0) {
        g_autoptr(GArray) inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
        g_autoptr(GArray) dirs = g_array_new(FALSE, FALSE, sizeof(uint64_t));
        struct page page = {m, *after, inos, dirs};
        r = meta_dentry_each(m->fs->meta, dir, *after, take_name, &page);
        if (r < 0)
            return r;
        *after = page.after;
        int marked = m->tick ? m->tick->fn(m->tick->ctx, inos->len) : 0;
        if (marked == 0)
            marked = mark_inodes(m, inos);
        for (unsigned i = 0; marked == 0 && i < dirs->len; i++) {
            uint64_t all = 0;
            marked = mark_below(m, g_array_index(dirs, uint64_t, i), &all, depth + 1);
        }
        if (marked < 0)
            return marked;
    }
    return r;
}

static int mark_tree(struct marks *m, uint64_t ino)
{
    INODE_REF in = NULL;
    int r = inode_get(m->fs, ino, &in);
    if (r < 0)
        return r;
    g_autoptr(GArray) one = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(one, ino);
    uint64_t after = 0;
    if (m->top_last && inode_is_dir(in))
        r = mark_below(m, ino, &after, 0);
    if (r == 0)
        r = mark_inodes(m, one);
    return r == 0 && inode_is_dir(in) ? mark_below(m, ino, &after, 0) : r; /* or what came meanwhile */
}

int pin_tree_told(struct fs *fs, uint64_t ino, enum cache_pin pin, const struct pin_tick *tick)
{
    struct marks m = {.fs = fs, .pin = pin, .tick = tick, .top_last = pin == PIN_NONE};
    return mark_tree(&m, ino);
}

uint32_t pin_inherited(struct fs *fs, uint64_t dir)
{
    mutex_assert_held(&fs->ns);
    INODE_REF in = NULL;
    if (inode_get(fs, dir, &in) < 0)
        return 0;
    mutex_lock(&in->mu);
    uint32_t flags = in->rec.flags & INODE_PIN_FLAGS;
    mutex_unlock(&in->mu);
    return flags;
}

/* ---- rules ---- */

struct match {
    uint64_t id, ino;
    int64_t mtime_ns;
    bool by_rule; /* pinned by one */
    enum cache_pin pin;
    char *path;
    bool dir;
    bool safe; /* of an option's rule: published and verified */
};

struct pin_rule {
    bool of_option;   /* --rule, not `sluice pin`: glob is a struct rule.match of rules.h */
    const char *text; /* of an option: the rule, NULL: it was one of an earlier mount */
    char *glob, *dir; /* owned; dir: the folder part, "" the root */
    const char *base; /* in glob: the last component */
    unsigned latest;
    enum cache_pin pin;
    bool due;
    unsigned n_wanted; /* so many of found are to be pinned */
    GArray *above;     /* inodes of dir and of what is above it */
    GArray *found;     /* struct match, the newest first; NULL: not looked at, or dir is not known */
};

/* One look at rules; there is one at a time. */
struct look {
    struct fs *fs;
    GArray *rules;     /* struct pin_rule */
    GHashTable *keep;  /* &ino -> enum cache_pin: inodes that some rule wants, and how: memory goes before disk */
    GPtrArray *absent; /* paths to fetch, owned */
    GPtrArray *moved;  /* paths that no pin is handed on to, owned */
};

static void match_clear(void *m)
{
    g_free(((struct match *)m)->path);
}

static void pin_rule_clear(void *r)
{
    struct pin_rule *rule = r;
    g_free(rule->glob);
    g_free(rule->dir);
    g_array_unref(rule->above);
    if (rule->found)
        g_array_unref(rule->found);
}

static struct pin_rule *add_rule(GArray *rules, const char *glob, unsigned latest, enum cache_pin pin)
{
    const char *slash = strrchr(glob, '/');
    struct pin_rule r = {.glob = g_strdup(glob),
                         .dir = slash ? g_strndup(glob, (gsize)(slash - glob)) : g_strdup(""),
                         .latest = latest,
                         .pin = pin,
                         .above = g_array_new(FALSE, FALSE, sizeof(uint64_t))};
    r.base = slash ? r.glob + (slash + 1 - glob) : r.glob;
    g_array_append_val(rules, r);
    return &g_array_index(rules, struct pin_rule, rules->len - 1);
}

static struct pin_rule *rule_of_option(GArray *rules, const char *glob)
{
    for (unsigned i = 0; i < rules->len; i++) {
        struct pin_rule *rule = &g_array_index(rules, struct pin_rule, i);
        if (rule->of_option && g_str_equal(rule->glob, glob))
            return rule;
    }
    return NULL;
}

static void take_option(void *rules, const char *match, const char *text, unsigned latest, enum cache_pin pin)
{
    struct pin_rule *rule = add_rule(rules, match, latest, pin);
    g_free(rule->dir);
    rule->dir = ckpt_folder(match);
    rule->of_option = true;
    rule->text = text;
}

/* One that pinned something in this mount or an earlier one: where it is no option any more it keeps none. */
static int take_earlier_option(void *ctx, const char *name, const void *value, size_t len)
{
    const char *match = name + strlen(PIN_OPTION_PREFIX);
    if (!rule_of_option(ctx, match))
        take_option(ctx, match, NULL, 0, PIN_NONE);
    return 0;
}

static int take_rule(void *ctx, const char *name, const void *value, size_t len)
{
    g_autofree char *text = g_strndup(value, len);
    (void)add_rule(ctx, name + strlen(PIN_VALUE_PREFIX), (unsigned)strtoul(text, NULL, 10),
                   g_str_has_suffix(text, " memory") ? PIN_MEMORY : PIN_DISK);
    return 0;
}

static int commit_rule(struct fs *fs, const char *glob, const char *text)
{
    g_autofree char *name = g_strconcat(PIN_VALUE_PREFIX, glob, NULL);
    struct meta_batch *b = meta_batch_new(fs->meta);
    if (text)
        meta_value_put(b, name, text, strlen(text));
    else
        meta_value_del(b, name);
    int r = meta_commit(b, true);
    meta_batch_free(b);
    return r;
}

static int look_begin(struct fs *fs, struct look *ret)
{
    struct jobs *j = fs->jobs;
    mutex_lock(&j->mu);
    while (j->pin_looking)
        cond_wait(&j->idle, &j->mu);
    j->pin_looking = true;
    mutex_unlock(&j->mu);
    *ret = (struct look){.fs = fs,
                         .rules = g_array_new(FALSE, FALSE, sizeof(struct pin_rule)),
                         .keep = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL),
                         .absent = g_ptr_array_new_with_free_func(g_free),
                         .moved = g_ptr_array_new_with_free_func(g_free)};
    g_array_set_clear_func(ret->rules, pin_rule_clear);
    ckpt_rules_each(fs, take_option, ret->rules);
    int r = meta_value_each(fs->meta, PIN_OPTION_PREFIX, take_earlier_option, ret->rules);
    unsigned n_options = ret->rules->len;
    r = r < 0 ? r : meta_value_each(fs->meta, PIN_VALUE_PREFIX, take_rule, ret->rules);
    atomic_store(&j->pin_named, ret->rules->len > n_options);
    return r;
}

static void look_end(struct look *l)
{
    struct jobs *j = l->fs->jobs;
    g_ptr_array_add(l->absent, NULL);
    pin_fetch(l->fs, (const char *const *)l->absent->pdata);
    g_array_unref(l->rules);
    g_hash_table_unref(l->keep);
    g_ptr_array_unref(l->absent);
    g_ptr_array_unref(l->moved);
    mutex_lock(&j->mu);
    j->pin_looking = false;
    cond_broadcast(&j->idle);
    mutex_unlock(&j->mu);
}

static struct pin_rule *nth_rule(const struct look *l, unsigned i)
{
    return &g_array_index(l->rules, struct pin_rule, i);
}

static struct pin_rule *rule_of(const struct look *l, const char *glob)
{
    for (unsigned i = 0; i < l->rules->len; i++)
        if (!nth_rule(l, i)->of_option && g_str_equal(nth_rule(l, i)->glob, glob))
            return nth_rule(l, i);
    return NULL;
}

int pin_resolve_known(struct fs *fs, const char *path, GArray *ret_above, uint64_t *ret_ino)
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
        if (ret_above)
            g_array_append_val(ret_above, ino);
    }
    *ret_ino = ino;
    return 0;
}

/* ---- what rules match ---- */

struct matching {
    struct fs *fs;
    const char *dir, *base;
    GArray *found; /* struct match */
};

static int take_checkpoint(void *ctx, const struct ckpt *c)
{
    struct matching *m = ctx;
    struct ckpt_sum sum;
    struct meta_inode rec;
    int r = ckpt_sum_up(m->fs, c, &sum);
    if (r == 0)
        r = meta_inode_get(m->fs->meta, c->ino, &rec);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (sum.files > 0 && !sum.open) {
        struct match f = {.id = c->id,
                          .ino = c->ino,
                          .mtime_ns = sum.mtime_ns,
                          .by_rule = rec.flags & INODE_PIN_RULE,
                          .pin = pin_of(&rec),
                          .path = g_strdup(c->path),
                          .dir = c->dir,
                          .safe = ckpt_is_safe(&sum)};
        g_array_append_val(m->found, f);
    }
    meta_inode_clear(&rec);
    return 0;
}

/* A directory's own time is that of its first listing here, which says nothing of what is in it. One of which no file is known counts as that new. */
static int64_t newest_ns(struct fs *fs, const struct ckpt *c, const struct meta_inode *rec)
{
    struct ckpt_sum sum;
    return c->dir && ckpt_sum_up(fs, c, &sum) == 0 ? sum.mtime_ns : rec->mtime_ns;
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
        char *path = *m->dir ? g_strconcat(m->dir, "/", d->name, NULL) : g_strdup(d->name);
        const struct ckpt c = {.path = path, .ino = d->ino, .id = d->id, .dir = S_ISDIR(d->type)};
        struct match f = {.id = d->id,
                          .ino = d->ino,
                          .mtime_ns = newest_ns(m->fs, &c, &rec),
                          .by_rule = rec.flags & INODE_PIN_RULE,
                          .pin = pin_of(&rec),
                          .path = path,
                          .dir = c.dir};
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

static void note_wanted(struct look *l, uint64_t ino, enum cache_pin pin)
{
    if (pin > wanted_pin(l->keep, ino))
        g_hash_table_replace(l->keep, g_memdup2(&ino, sizeof(ino)), GUINT_TO_POINTER(pin));
}

/* How many of what was found, the newest first, are to be pinned: the newest that are safe in the store, and all that are newer than these. So an older one is let go only for one
 * that is. */
static unsigned count_wanted(struct fs *fs, const struct pin_rule *rule, const GArray *found)
{
    unsigned n = 0, safe = 0;
    for (; n < found->len && safe < rule->latest; n++) {
        const struct match *m = &g_array_index(found, struct match, n);
        const struct ckpt c = {.path = m->path, .ino = m->ino, .id = m->id, .dir = m->dir};
        safe += rule->of_option ? m->safe : ckpt_may_replace(fs, &c);
    }
    return n;
}

static int find_matches(struct look *l, struct pin_rule *rule)
{
    uint64_t dir;
    int r = pin_resolve_known(l->fs, rule->dir, rule->above, &dir);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(struct match));
    g_array_set_clear_func(found, match_clear);
    struct matching m = {l->fs, rule->dir, rule->base, found};
    r = rule->of_option ? ckpt_each(l->fs, rule->glob, rule->text, take_checkpoint, &m)
                        : meta_dentry_each(l->fs->meta, dir, 0, take_match, &m);
    if (r < 0)
        return r;
    g_array_sort(found, newest_first);
    rule->n_wanted = count_wanted(l->fs, rule, found);
    for (unsigned i = 0; i < rule->n_wanted; i++)
        note_wanted(l, g_array_index(found, struct match, i).ino, rule->pin);
    rule->found = g_steal_pointer(&found);
    return 0;
}

/* Is there a due rule in, above or below the folder of this one? What one of the two unpins the other may want. */
static bool is_needed(const struct look *l, const struct pin_rule *rule)
{
    for (unsigned i = 0; i < l->rules->len; i++) {
        const struct pin_rule *other = nth_rule(l, i);
        if (other->due && (tree_path_below(rule->dir, other->dir) || tree_path_below(other->dir, rule->dir)))
            return true;
    }
    return false;
}

void pin_follow(struct fs *fs, uint64_t ino, const char *path)
{
    struct meta_inode rec;
    if (meta_inode_get(fs->meta, ino, &rec) < 0)
        return;
    struct marks m = {.fs = fs, .pin = pin_of(&rec)};
    bool absent = pin_is_absent(fs, &rec);
    meta_inode_clear(&rec);
    int r = mark_tree(&m, ino);
    if (r < 0)
        log_notice("pin", "what took the place of a pinned name is not kept path='%s' r=%s", path, err_name(r));
    if (absent)
        pin_fetch(fs, (const char *const[]){path, NULL});
}

/* Has it fetched unless it is known to be here; what is missing below a directory its walk finds. */
static void fetch_absent(struct look *l, uint64_t ino, const char *path)
{
    struct meta_inode rec;
    if (meta_inode_get(l->fs->meta, ino, &rec) < 0)
        return;
    if (S_ISDIR(rec.mode) || pin_is_absent(l->fs, &rec))
        g_ptr_array_add(l->absent, g_strdup(path));
    meta_inode_clear(&rec);
}

/* Pins the newest of a rule's names and unpins the others that no rule wants; those that several want as the strongest of them says. ret_pinned (may be NULL) gets the paths
 * pinned, owned. */
static int settle(struct look *l, const struct pin_rule *rule, GPtrArray *ret_pinned)
{
    enum cache_pin above = PIN_NONE;
    for (unsigned i = 0; i < rule->above->len; i++)
        above = MAX(above, wanted_pin(l->keep, g_array_index(rule->above, uint64_t, i)));
    int r = 0;
    for (unsigned i = 0; r == 0 && rule->found && i < rule->found->len; i++) {
        const struct match *m = &g_array_index(rule->found, struct match, i);
        bool newest = i < rule->n_wanted;
        enum cache_pin pin = MAX(above, wanted_pin(l->keep, m->ino));
        if (!newest && (!m->by_rule || m->pin == pin))
            continue;
        struct marks marks = {.fs = l->fs, .pin = pin, .by_rule = true, .keep = l->keep};
        if (newest)
            fetch_absent(l, m->ino, m->path);
        r = mark_tree(&marks, m->ino);
        r = r == -ENOENT ? 0 : r;
        if (newest && ret_pinned)
            g_ptr_array_add(ret_pinned, g_strdup(m->path));
    }
    return r;
}

/* Settles the rules that are due. */
static int settle_due(struct look *l, GPtrArray *ret_pinned)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < l->rules->len; i++)
        if (is_needed(l, nth_rule(l, i)))
            r = find_matches(l, nth_rule(l, i));
    for (unsigned i = 0; r == 0 && i < l->rules->len; i++)
        if (nth_rule(l, i)->due)
            r = atomic_load(&l->fs->stopping) ? -ECANCELED : settle(l, nth_rule(l, i), ret_pinned);
    return r;
}

int pin_rule_set(struct fs *fs, const char *glob, unsigned latest, enum cache_pin pin, GPtrArray *ret_pinned)
{
    const char *slash = strrchr(glob, '/'), *wild = strpbrk(glob, "*?[");
    if (!*(slash ? slash + 1 : glob) || (wild && slash && wild < slash))
        return -EINVAL;
    g_autofree char *text = g_strdup_printf("%u%s", latest, pin == PIN_MEMORY ? " memory" : "");
    struct look l;
    int r = look_begin(fs, &l);
    if (r == 0)
        r = commit_rule(fs, glob, text);
    if (r == 0) {
        struct pin_rule *rule = rule_of(&l, glob);
        rule = rule ? rule : add_rule(l.rules, glob, latest, pin);
        rule->latest = latest;
        rule->pin = pin;
        rule->due = true;
        atomic_store(&fs->jobs->pin_named, true); /* first: what is published while this looks is looked at again */
        r = settle_due(&l, ret_pinned);
    }
    look_end(&l);
    return r;
}

int pin_rule_remove(struct fs *fs, const char *glob, unsigned latest)
{
    struct look l;
    int r = look_begin(fs, &l);
    struct pin_rule *rule = r == 0 ? rule_of(&l, glob) : NULL;
    if (rule && (!latest || rule->latest == latest)) {
        rule->latest = 0;
        rule->due = true;
        r = settle_due(&l, NULL);
        if (r == 0) /* last: whoever is killed before it has the rule still */
            r = commit_rule(fs, glob, NULL);
    } else if (r == 0) {
        r = -ENOENT;
    }
    look_end(&l);
    return r;
}

/* ---- looking at rules behind ---- */

/* Is path, or a directory above it, a name that the rule matches? */
static bool rule_covers(const struct pin_rule *rule, const char *path)
{
    size_t len = strlen(rule->dir);
    if (!tree_path_below(path, rule->dir) || strlen(path) <= len)
        return false;
    if (rule->of_option)
        return true;
    path += len + (len > 0);
    g_autofree char *name = g_strndup(path, strcspn(path, "/"));
    return fnmatch(rule->base, name, FNM_PERIOD) == 0;
}

/* What was sealed in a pinned directory or moved to it is pinned too. */
static void inherit_pin(struct look *l, const char *path)
{
    g_autofree char *dir = g_path_get_dirname(path);
    uint64_t ino;
    struct meta_inode rec;
    if (pin_resolve_known(l->fs, strchr(path, '/') ? dir : "", NULL, &ino) < 0 ||
        meta_inode_get(l->fs->meta, ino, &rec) < 0)
        return;
    struct marks m = {.fs = l->fs, .pin = pin_of(&rec), .by_rule = rec.flags & INODE_PIN_RULE};
    meta_inode_clear(&rec);
    if (m.pin == PIN_NONE)
        g_ptr_array_add(l->moved, g_strdup(path));
    if (m.pin == PIN_NONE || pin_resolve_known(l->fs, path, NULL, &ino) < 0)
        return;
    int r = mark_tree(&m, ino);
    if (r < 0)
        log_debug("pin", "not pinned path='%s' r=%s", path, err_name(r));
    fetch_absent(l, ino, path);
}

struct ruled {
    struct look *l;
    GArray *pinned, *dirs; /* inodes that a rule pinned; directories that none did */
};

static int take_ruled(void *ctx, const struct meta_dentry *d)
{
    struct ruled *at = ctx;
    struct meta_inode rec;
    if (wanted_pin(at->l->keep, d->ino) != PIN_NONE || meta_inode_get(at->l->fs->meta, d->ino, &rec) < 0)
        return 0;
    if (rec.flags & INODE_PIN_RULE)
        g_array_append_val(at->pinned, d->ino);
    else if (S_ISDIR(d->type))
        g_array_append_val(at->dirs, d->ino);
    meta_inode_clear(&rec);
    return 0;
}

/* Of a tree what rules pinned, and none wants now. */
static int let_go_of(struct look *l, uint64_t ino, uint32_t type)
{
    g_autoptr(GArray) pinned = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_autoptr(GArray) dirs = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct ruled at = {l, pinned, dirs};
    struct marks m = {.fs = l->fs, .pin = PIN_NONE, .by_rule = true, .keep = l->keep};
    int r = take_ruled(&at, &(struct meta_dentry){.ino = ino, .type = type});
    for (;;) {
        for (unsigned i = 0; r == 0 && i < pinned->len; i++) {
            r = mark_tree(&m, g_array_index(pinned, uint64_t, i));
            r = r == -ENOENT ? 0 : r;
        }
        g_array_set_size(pinned, 0);
        if (r < 0 || dirs->len == 0 || atomic_load(&l->fs->stopping))
            return r;
        ino = g_array_index(dirs, uint64_t, dirs->len - 1);
        g_array_set_size(dirs, dirs->len - 1);
        r = meta_dentry_each(l->fs->meta, ino, 0, take_ruled, &at);
    }
}

/* As rule_covers(), but of an option only what its glob means: below its folder it looks at all. */
static bool rule_means(const struct pin_rule *rule, const char *path)
{
    if (!rule->of_option || g_str_equal(rule->glob, "**") || g_str_has_suffix(rule->glob, "/**"))
        return rule_covers(rule, path);
    g_autofree char *at = g_strdup(path);
    for (char *slash = at; slash; slash = strrchr(at, '/')) { /* it, or a directory above it */
        if (slash != at)
            *slash = '\0';
        if (rule_glob_matches(rule->glob, at))
            return true;
    }
    return false;
}

/* What was renamed to where no rule reaches, and nothing is pinned by name, leaves its rule's pin behind. */
static int let_go_moved(struct look *l)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < l->moved->len; i++) {
        const char *path = l->moved->pdata[i];
        uint64_t ino;
        struct meta_inode rec;
        bool covered = false;
        for (unsigned n = 0; n < l->rules->len; n++)
            covered |= rule_means(nth_rule(l, n), path); /* it was settled, but for what is being written */
        if (covered || pin_resolve_known(l->fs, path, NULL, &ino) < 0 || meta_inode_get(l->fs->meta, ino, &rec) < 0)
            continue;
        uint32_t type = rec.mode;
        meta_inode_clear(&rec);
        r = let_go_of(l, ino, type);
    }
    return r;
}

/* One note of pin_rules_apply(). */
static void look_at_path(struct look *l, const char *path)
{
    bool listing = g_str_has_suffix(path, "/");
    g_autofree char *at = g_strndup(path, strlen(path) - listing);
    for (unsigned i = 0; i < l->rules->len; i++) {
        struct pin_rule *rule = nth_rule(l, i);
        bool folder = listing ? g_str_equal(rule->dir, at) : tree_path_below(rule->dir, at); /* changed, or came */
        rule->due |= folder || rule_covers(rule, at);
    }
    if (listing)
        pin_absent_in(l->fs, at, l->absent);
    else
        inherit_pin(l, at);
}

/* Options that pin are noted before they do, and forgotten once what they kept was let go. */
static int note_options(struct look *l, bool before)
{
    struct meta_batch *b = meta_batch_new(l->fs->meta);
    for (unsigned i = 0; i < l->rules->len; i++) {
        const struct pin_rule *rule = nth_rule(l, i);
        g_autofree char *name = rule->of_option ? g_strconcat(PIN_OPTION_PREFIX, rule->glob, NULL) : NULL;
        if (name && before && rule->text)
            meta_value_put(b, name, "", 0);
        else if (name && !before && !rule->text)
            meta_value_del(b, name);
    }
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
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

    struct look l;
    int r = look_begin(fs, &l);
    GHashTableIter it;
    void *key;
    g_hash_table_iter_init(&it, paths);
    while (r == 0 && g_hash_table_iter_next(&it, &key, NULL) && !atomic_load(&fs->stopping))
        look_at_path(&l, key);
    for (unsigned i = 0; all && i < l.rules->len; i++)
        nth_rule(&l, i)->due = true;
    if (r == 0 && all)
        r = note_options(&l, true);
    if (r == 0)
        r = settle_due(&l, NULL);
    if (r == 0 && l.rules->len > 0)
        r = let_go_moved(&l);
    if (r == 0 && all)
        r = note_options(&l, false);
    if (all)
        pin_names_add(fs, l.absent);
    if (r < 0 && r != -ECANCELED)
        log_notice("pin", "rules not applied r=%s", err_name(r));
    look_end(&l);
}

void pin_rules_apply(struct fs *fs, const char *path)
{
    struct jobs *j = fs->jobs;
    if (!j)
        return;
    mutex_lock(&j->mu);
    if (path && g_hash_table_size(j->pin_paths) < MAX_PATHS)
        g_hash_table_add(j->pin_paths, g_strdup(path));
    else
        j->pin_all = true;
    bool push = !j->pin_queued && !j->closing;
    j->pin_queued |= push;
    mutex_unlock(&j->mu);
    if (push)
        (void)workq_push(j->pin_q, false, look_at_rules, fs); /* refused only while stopping */
}

void pin_rules_note_published(struct fs *fs, const char *path)
{
    if (fs->rules->pins || (fs->jobs && atomic_load(&fs->jobs->pin_named)))
        pin_rules_apply(fs, path);
}
