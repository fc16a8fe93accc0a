/* See local.h. */
#include "local.h"

#include "cache.h"
#include "ns_undo.h"
#include "publish.h"
#include "rules.h"
#include "tree.h"

#include <stdlib.h>

#define LOOKS_PER_TTL 10u
#define LOOK_MIN_NS   NS_PER_S
#define LOOK_MAX_NS   (60 * NS_PER_S)
#define BATCH_FILES   256u
#define CLOCK_VALUE   "local-clock"
#define CLOCK_STEP_NS (60 * (int64_t)NS_PER_S) /* what the clock is set forward by at once is no time that passed */

bool local_is(struct fs *fs, const char *key)
{
    return fs->rules->local_only && rules_for(fs, key)->local_only;
}

static void value_name(uint64_t ino, char buf[32])
{
    g_snprintf(buf, 32, LOCAL_VALUE_PREFIX "%016" G_GINT64_MODIFIER "x", ino);
}

void local_note(struct fs *fs, struct meta_batch *b, uint64_t ino)
{
    char name[32], text[32];
    value_name(ino, name);
    g_snprintf(text, sizeof(text), "%" G_GINT64_FORMAT, clock_wall_ns());
    meta_value_put(b, name, text, strlen(text));
}

void local_note_again(struct fs *fs, struct meta_batch *b, uint64_t ino)
{
    char name[32];
    g_autoptr(GBytes) value = NULL;
    value_name(ino, name);
    if (meta_value_get(fs->meta, name, &value) == 0)
        local_note(fs, b, ino);
}

void local_forget(struct fs *fs, struct meta_batch *b, uint64_t ino)
{
    char name[32];
    value_name(ino, name);
    if (fs->rules->local_only) /* else there is none, or the next start removes it */
        meta_value_del(b, name);
}

void local_closed(struct inode *in)
{
    struct fs *fs = in->fs;
    if (!fs->rules->ttls || rules_of(in)->ttl_ns == 0)
        return;
    mutex_lock(&in->mu);
    bool kept = in->rec.content != CONTENT_CLEAN && in->rec.nlink > 0 && !in->gone;
    mutex_unlock(&in->mu);
    if (!kept)
        return;
    struct meta_batch *b = meta_batch_new(fs->meta);
    local_note(fs, b, in->ino);
    if (meta_commit(b, false) < 0)
        log_debug("local", "the time of a close is not stored ino=%" G_GUINT64_FORMAT, in->ino);
    meta_batch_free(b);
}

/* ---- the list ---- */

struct kept {
    uint64_t ino;
    int64_t closed_ns;
};

static int take_kept(void *ctx, const char *name, const void *value, size_t len)
{
    g_autofree char *text = g_strndup(value, len);
    struct kept k = {strtoull(name + strlen(LOCAL_VALUE_PREFIX), NULL, 16), strtoll(text, NULL, 10)};
    g_array_append_val((GArray *)ctx, k);
    return 0;
}

static GArray *list_kept(struct fs *fs)
{
    GArray *list = g_array_new(FALSE, FALSE, sizeof(struct kept));
    if (meta_value_each(fs->meta, LOCAL_VALUE_PREFIX, take_kept, list) < 0)
        log_warn("local", "files that are kept here cannot be listed");
    return list;
}

static bool name_is_local(struct fs *fs, const struct meta_dentry *d)
{
    mutex_lock(&fs->ns);
    g_autofree char *key = tree_key(fs, d->parent, d->name, S_ISDIR(d->type));
    mutex_unlock(&fs->ns);
    return d->parent != META_ASIDE_INO && local_is(fs, key);
}

void local_count(struct fs *fs, struct local_counts *ret)
{
    *ret = (struct local_counts){0};
    if (!fs->rules->local_only)
        return;
    g_autoptr(GArray) list = list_kept(fs);
    for (unsigned i = 0; i < list->len; i++) {
        struct meta_inode rec = {0};
        struct meta_dentry d = {0};
        uint64_t ino = g_array_index(list, struct kept, i).ino;
        if (meta_inode_get(fs->meta, ino, &rec) == 0 && rec.content != CONTENT_CLEAN &&
            meta_link_first(fs->meta, ino, &d) == 0 && name_is_local(fs, &d)) {
            ret->files++;
            ret->bytes += rec.size;
            ret->quarantined += rec.content == CONTENT_QUARANTINED && d.op_seq == 0;
            ret->disk_bytes += cache_dirty_bytes_of(fs->cache, rec.vid);
        }
        meta_dentry_clear(&d);
        meta_inode_clear(&rec);
    }
}

/* ---- a start ---- */

struct pending {
    uint64_t parent, seq;
    char *name;
};

static void pending_clear(void *p)
{
    g_free(((struct pending *)p)->name);
}

struct find {
    struct fs *fs;
    GArray *found; /* struct pending */
};

static void take_op(void *ctx, const struct meta_op *op, const char *path, int err)
{
    struct find *f = ctx;
    if (op->kind != OP_SYNC || op->parent == META_ASIDE_INO || !local_is(f->fs, path))
        return;
    struct pending p = {op->parent, op->seq, g_strdup(op->name)};
    g_array_append_val(f->found, p);
}

/* Are bytes of it in the object of another name, which only its journal record keeps from going with that? */
static bool rests_elsewhere(struct fs *fs, const struct meta_dentry *d, const struct meta_inode *rec) REQUIRES(fs->ns)
{
    g_autofree char *key = tree_key(fs, d->parent, d->name, false);
    return S_ISREG(d->type) && rec->base_key && !g_str_equal(rec->base_key, key);
}

/* The name's journal record goes. What is in the store already, and only to be moved or given other attributes there, was promised before the rule. */
static void drop_op(struct fs *fs, struct meta_batch *b, const struct pending *p) REQUIRES(fs->ns)
{
    struct meta_dentry d = {0};
    struct meta_inode rec = {0};
    if (meta_dentry_get(fs->meta, p->parent, p->name, &d) < 0)
        return;
    bool known = meta_inode_get(fs->meta, d.ino, &rec) == 0;
    bool moved = d.ukey && (d.flags & DENTRY_UPSTREAM);
    bool sent = S_ISREG(d.type) ? rec.content == CONTENT_CLEAN : (d.flags & DENTRY_UPSTREAM) != 0;
    if (known && d.op_seq == p->seq && !moved && !sent && !rests_elsewhere(fs, &d, &rec)) {
        publish_drop_name(fs, b, &d);
        meta_dentry_put(b, &d);
        if (!S_ISDIR(d.type))
            local_note(fs, b, d.ino);
    }
    meta_inode_clear(&rec);
    meta_dentry_clear(&d);
}

/* The directories in which they were may have been shown by them only. */
static int keep_dirs(struct fs *fs, const GArray *dropped)
{
    g_autoptr(GHashTable) done = g_hash_table_new(g_int64_hash, g_int64_equal);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < dropped->len; i++) {
        struct pending *p = &g_array_index(dropped, struct pending, i);
        if (!g_hash_table_add(done, &p->parent))
            continue;
        struct meta_batch *b = meta_batch_new(fs->meta);
        mutex_lock(&fs->ns);
        r = tree_keep_shown(fs, b, p->parent, 0);
        if (r == 0)
            r = meta_commit(b, false);
        publish_apply(fs, r == 0);
        mutex_unlock(&fs->ns);
        meta_batch_free(b);
    }
    return r;
}

static int drop_ops(struct fs *fs)
{
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(struct pending));
    g_array_set_clear_func(found, pending_clear);
    struct find f = {fs, found};
    if (fs->rules->local_only)
        publish_each(fs->pub, take_op, &f);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < found->len;) {
        struct meta_batch *b = meta_batch_new(fs->meta);
        mutex_lock(&fs->ns);
        for (unsigned n = 0; n < BATCH_FILES && i < found->len; n++)
            drop_op(fs, b, &g_array_index(found, struct pending, i++));
        r = meta_commit(b, false);
        publish_apply(fs, r == 0);
        mutex_unlock(&fs->ns);
        meta_batch_free(b);
    }
    return r == 0 ? keep_dirs(fs, found) : r;
}

/* Is there something of the name that is not in the store, and that no journal record tells of? What is open gets one when it is closed. */
static bool is_owed(const struct meta_inode *rec, const struct meta_dentry *d)
{
    if (d->op_seq || d->parent == META_ASIDE_INO)
        return false;
    if (S_ISREG(d->type) && rec->content != CONTENT_CLEAN)
        return rec->content != CONTENT_OPEN && (d->pub_vid != rec->vid || d->pub_gen != rec->gen);
    return !(d->flags & DENTRY_UPSTREAM);
}

/* One of the list: published where no rule keeps it any more, and off the list then. */
static int release_one(struct fs *fs, struct meta_batch *b, uint64_t ino) REQUIRES(fs->ns)
{
    g_autoptr(GPtrArray) names = NULL;
    struct meta_inode rec = {0};
    char value[32];
    bool stays = false;
    value_name(ino, value);
    int r = meta_inode_get(fs->meta, ino, &rec);
    if (r == 0)
        r = meta_link_list(fs->meta, ino, &names);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        struct meta_dentry *d = names->pdata[i];
        g_autofree char *key = tree_key(fs, d->parent, d->name, false);
        if (local_is(fs, key)) {
            stays = true;
        } else if (is_owed(&rec, d)) {
            log_info("local", "no rule keeps it here any more, it is published path='%s'", key);
            publish_name(fs, b, d, PUBLISH_CONTENT);
            d->stamp = meta_next_seq(fs->meta);
            meta_dentry_put(b, d);
        }
    }
    if (!stays)
        meta_value_del(b, value);
    meta_inode_clear(&rec);
    return r == -ENOENT ? 0 : r;
}

int local_settle(struct fs *fs)
{
    int r = drop_ops(fs);
    g_autoptr(GArray) list = list_kept(fs);
    for (unsigned i = 0; r == 0 && i < list->len && !fs->cfg->read_only;) {
        struct meta_batch *b = meta_batch_new(fs->meta);
        mutex_lock(&fs->ns);
        for (unsigned n = 0; r == 0 && n < BATCH_FILES && i < list->len; n++)
            r = release_one(fs, b, g_array_index(list, struct kept, i++).ino);
        if (r == 0)
            r = meta_commit(b, false);
        publish_apply(fs, r == 0);
        mutex_unlock(&fs->ns);
        meta_batch_free(b);
    }
    return r;
}

/* ---- ttl ---- */

static uint64_t shortest_ttl(struct fs *fs)
{
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < fs->rules->all->len; i++) {
        const struct rule_set *set = &g_array_index(fs->rules->all, struct rule, i).set;
        if (set->ttl_ns)
            least = MIN(least, set->ttl_ns);
    }
    return least;
}

/* From here on no open succeeds, and it gets no other name, unless it is unclaimed. False: it has several, somebody has it, or may write it by a mapping. */
static bool claim(struct inode *in)
{
    mutex_lock(&in->mu);
    bool idle = in->n_open == 0 && in->n_cf_users == 0 && !in->gate_held && !in->mapped && !in->gone &&
                in->rec.nlink == 1 && S_ISREG(in->rec.mode) && in->rec.content != CONTENT_CLEAN &&
                in->rec.content != CONTENT_CLOSING;
    in->expiring |= idle;
    mutex_unlock(&in->mu);
    return idle;
}

/* As of now: it may have been used since the list was read. */
static int64_t age_of(struct fs *fs, uint64_t ino)
{
    char name[32];
    GBytes *value = NULL;
    gsize len;
    value_name(ino, name);
    if (meta_value_get(fs->meta, name, &value) < 0)
        return -1;
    const char *data = g_bytes_get_data(value, &len);
    g_autofree char *text = g_strndup(data, len);
    g_bytes_unref(value);
    return clock_wall_ns() - strtoll(text, NULL, 10);
}

static void unclaim(struct inode *in)
{
    mutex_lock(&in->mu);
    in->expiring = false;
    mutex_unlock(&in->mu);
}

static bool is_due(const struct rule_set *set, int64_t age)
{
    return set->ttl_ns && age >= 0 && (uint64_t)age >= set->ttl_ns;
}

static void expire_one(struct fs *fs, uint64_t ino)
{
    INODE_REF in = NULL;
    g_autoptr(GPtrArray) names = NULL;
    if (inode_get(fs, ino, &in) < 0 || !is_due(rules_of(in), age_of(fs, ino)) ||
        meta_link_list(fs->meta, ino, &names) < 0 || names->len != 1)
        return;
    struct meta_dentry *d = names->pdata[0];
    if ((d->flags & DENTRY_UPSTREAM) || !claim(in)) /* what is in the store is never removed by age */
        return;
    g_autofree char *path = NULL;
    int r = tree_path_of(fs, ino, &path);
    if (r == 0)
        r = is_due(rules_for(fs, path), age_of(fs, ino)) ? tree_expire(fs, d) : -EBUSY; /* a close before the claim */
    if (r < 0) {
        unclaim(in);
        log_debug("local", "not removed though its ttl has ended ino=%" G_GUINT64_FORMAT " r=%s", ino, err_name(r));
        return;
    }
    notify_entry(fs, d->parent, d->name);
    metric_inc(M_expired_files);
    log_info("local", "removed, its ttl has ended path='%s'", path);
}

/* How far the wall clock was ahead as of the last look in this run of the machine, whichever daemon's. */
static bool read_ahead(struct fs *fs, int64_t *ret)
{
    GBytes *value = NULL;
    gsize len;
    if (meta_value_get(fs->meta, CLOCK_VALUE, &value) < 0)
        return false;
    const char *data = g_bytes_get_data(value, &len);
    g_autofree char *text = g_strndup(data, len);
    g_bytes_unref(value);
    g_auto(GStrv) lines = g_strsplit(text, "\n", 2);
    bool same_boot = lines[0] && lines[1] && *lines[1] && g_str_equal(lines[1], clock_boot_id());
    if (same_boot)
        *ret = strtoll(lines[0], NULL, 10);
    return same_boot;
}

static int store_ahead(struct fs *fs, int64_t ahead)
{
    g_autofree char *text = g_strdup_printf("%" G_GINT64_FORMAT "\n%s", ahead, clock_boot_id());
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_put(b, CLOCK_VALUE, text, strlen(text));
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

/* As if all had been closed just now. */
static int note_all_again(struct fs *fs)
{
    g_autoptr(GArray) list = list_kept(fs);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < list->len;) {
        struct meta_batch *b = meta_batch_new(fs->meta);
        for (unsigned n = 0; n < BATCH_FILES && i < list->len; n++)
            local_note_again(fs, b, g_array_index(list, struct kept, i++).ino);
        r = meta_commit(b, false);
        meta_batch_free(b);
    }
    return r;
}

/* 0: ages are time that passed. A machine without a clock of its own starts in the past, and would have all removed that it wrote until it was told the time. */
static int check_clock(struct fs *fs, int64_t ahead)
{
    int64_t before = 0;
    bool known = read_ahead(fs, &before);
    int64_t moved = known ? ahead - before : 0;
    if (known && ABS(moved) < (int64_t)NS_PER_S)
        return 0;
    int r = moved > CLOCK_STEP_NS ? note_all_again(fs) : 0;
    if (moved > CLOCK_STEP_NS)
        log_warn("local", "the clock was set forward by %" G_GINT64_FORMAT " s: all ttls count from now",
                 moved / (int64_t)NS_PER_S);
    if (r == 0)
        r = store_ahead(fs, ahead);
    return r == 0 && moved > CLOCK_STEP_NS ? -EAGAIN : r;
}

void local_expire(struct fs *fs)
{
    uint64_t now = clock_mono_ns();
    if (!fs->rules->ttls || fs->cfg->read_only || now < fs->mapped.local_look_ns)
        return;
    uint64_t least = shortest_ttl(fs);
    fs->mapped.local_look_ns = now + CLAMP(least / LOOKS_PER_TTL, LOOK_MIN_NS, LOOK_MAX_NS);
    int64_t ahead = clock_wall_ahead_ns();
    if (check_clock(fs, ahead) < 0)
        return;
    g_autoptr(GArray) list = list_kept(fs);
    for (unsigned i = 0; i < list->len && !atomic_load(&fs->stopping); i++) {
        if (clock_wall_ahead_ns() - ahead > CLOCK_STEP_NS)
            return;
        const struct kept *k = &g_array_index(list, struct kept, i);
        int64_t age = clock_wall_ns() - k->closed_ns;
        if (age >= 0 && (uint64_t)age >= least)
            expire_one(fs, k->ino);
    }
}
