/*
 * What is kept of syncs: when each top directory was synced last, which directories could not be listed, and how far a sync under way has come. In the database (meta/FORMAT.md, named values
 * "sync/..."), the first two also in memory.
 */
#include "sync_internal.h"
#include "tree.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DONE_PATH    "sync/done/"
#define RUN_PATH     "sync/run/"
#define VISITED_PATH "sync/visited/"
#define FAILED_PATH  "sync/failed/"
#define MAX_PARENTS  4096

static char *name_of(const char *path, uint64_t ino)
{
    return g_strdup_printf("%s%016" PRIx64, path, ino);
}

static char *visited_name(uint64_t root, unsigned number)
{
    return g_strdup_printf(VISITED_PATH "%016" PRIx64 "/%u", root, number);
}

static void failure_free(void *p)
{
    struct sync_failure *f = p;
    g_free(f->path);
    g_free(f);
}

static void run_clear(void *p)
{
    struct sync_run *run = p;
    g_clear_pointer(&run->visited, g_array_unref);
}

void sync_kept_init(struct sync *s)
{
    mutex_init(&s->kept_mu, LOCK_LISTING);
    s->done = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    s->failed = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, failure_free);
    s->cut_off = g_array_new(FALSE, TRUE, sizeof(struct sync_run));
    g_array_set_clear_func(s->cut_off, run_clear);
}

void sync_kept_fini(struct sync *s)
{
    g_hash_table_unref(s->done);
    g_hash_table_unref(s->failed);
    g_array_unref(s->cut_off);
    mutex_fini(&s->kept_mu);
}

/* ---- loading ---- */

/* A value of ours, its inode's number, its text. */
struct kept_value {
    uint64_t ino;
    unsigned number; /* VISITED_PATH */
    GBytes *bytes;   /* owned */
};

static void kept_value_free(void *p)
{
    struct kept_value *v = p;
    g_bytes_unref(v->bytes);
    g_free(v);
}

static int take_value(void *ctx, const char *name, const void *value, size_t len)
{
    char *end = strrchr(name, '/');
    bool visited = g_str_has_prefix(name, VISITED_PATH);
    struct kept_value *v = g_new0(struct kept_value, 1);
    v->ino = visited ? strtoull(name + strlen(VISITED_PATH), NULL, 16) : strtoull(end + 1, NULL, 16);
    v->number = visited ? (unsigned)strtoul(end + 1, NULL, 10) : 0;
    v->bytes = g_bytes_new(value, len);
    g_ptr_array_add(ctx, v);
    return 0;
}

static char *text_of(const struct kept_value *v)
{
    gsize len;
    const char *text = g_bytes_get_data(v->bytes, &len);
    return g_strndup(text ? text : "", len);
}

static void load_done(struct sync *s, const struct kept_value *v)
{
    g_autofree char *text = text_of(v);
    int64_t at = g_ascii_strtoll(text, NULL, 10);
    if (at <= 0)
        return;
    mutex_lock(&s->kept_mu);
    g_hash_table_replace(s->done, g_memdup2(&v->ino, sizeof(v->ino)), g_memdup2(&at, sizeof(at)));
    mutex_unlock(&s->kept_mu);
    atomic_store(&s->version, 1);
}

/* "ERRNO ROOT\npath" */
static void load_failed(struct sync *s, const struct kept_value *v)
{
    g_autofree char *text = text_of(v);
    char *path = strchr(text, '\n');
    struct sync_failure *f = g_new0(struct sync_failure, 1);
    f->ino = v->ino;
    if (!path || sscanf(text, "%d %" SCNx64, &f->err, &f->root) != 2) {
        g_free(f);
        return;
    }
    f->path = g_strdup(path + 1);
    mutex_lock(&s->kept_mu);
    g_hash_table_replace(s->failed, &f->ino, f);
    atomic_store(&s->n_failed, g_hash_table_size(s->failed));
    mutex_unlock(&s->kept_mu);
}

/* "BEGAN PARALLEL INCREMENTAL RESUMED WATCHED"; the last two are not in databases of before */
static void load_run(struct sync *s, const struct kept_value *v)
{
    g_autofree char *text = text_of(v);
    struct sync_run run = {.ino = v->ino, .visited = g_array_new(FALSE, FALSE, sizeof(uint64_t))};
    unsigned incremental = 0, watched = 0;
    if (sscanf(text, "%" SCNd64 " %u %u %u %u", &run.began_ns, &run.parallel, &incremental, &run.resumed, &watched) < 3)
        run.began_ns = 0; /* too old to go on with */
    run.incremental = incremental;
    run.watched = watched;
    g_array_append_val(s->cut_off, run);
}

static int compare_inos(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void load_visited(struct sync *s, const struct kept_value *v)
{
    for (guint i = 0; i < s->cut_off->len; i++) {
        struct sync_run *run = &g_array_index(s->cut_off, struct sync_run, i);
        if (run->ino != v->ino)
            continue;
        gsize len;
        const uint64_t *le = g_bytes_get_data(v->bytes, &len);
        for (gsize k = 0; k < len / sizeof(*le); k++) {
            uint64_t ino;
            memcpy(&ino, le + k, sizeof(ino));
            ino = GUINT64_FROM_LE(ino);
            g_array_append_val(run->visited, ino);
        }
        run->n_values = MAX(run->n_values, v->number + 1);
    }
}

static int load_path(struct sync *s, const char *path, void (*load)(struct sync *s, const struct kept_value *v))
{
    g_autoptr(GPtrArray) values = g_ptr_array_new_with_free_func(kept_value_free);
    int r = meta_value_each(s->fs->meta, path, take_value, values);
    for (guint i = 0; r == 0 && i < values->len; i++)
        load(s, values->pdata[i]);
    return r;
}

int sync_kept_load(struct sync *s)
{
    int r = load_path(s, DONE_PATH, load_done);
    if (r == 0)
        r = load_path(s, FAILED_PATH, load_failed);
    if (r == 0)
        r = load_path(s, RUN_PATH, load_run);
    if (r == 0)
        r = load_path(s, VISITED_PATH, load_visited);
    for (guint i = 0; i < s->cut_off->len; i++)
        g_array_sort(g_array_index(s->cut_off, struct sync_run, i).visited, compare_inos);
    return r;
}

/* ---- syncs under way ---- */

static int collect_name(void *ctx, const char *name, const void *value, size_t len)
{
    g_ptr_array_add(ctx, g_strdup(name));
    return 0;
}

/* What an earlier run listed, which was cut off and is not gone on with, the new one has not. */
static int drop_visited(struct sync *s, struct meta_batch *b, uint64_t root)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *path = g_strdup_printf(VISITED_PATH "%016" PRIx64 "/", root);
    int r = meta_value_each(s->fs->meta, path, collect_name, names);
    for (guint i = 0; r == 0 && i < names->len; i++)
        meta_value_del(b, names->pdata[i]);
    return r;
}

int sync_run_put(struct sync *s, const struct sync_run *run)
{
    g_autofree char *name = name_of(RUN_PATH, run->ino);
    g_autofree char *text = g_strdup_printf("%" PRId64 " %u %u %u %u", run->began_ns, run->parallel, run->incremental,
                                            run->resumed, run->watched);
    struct meta_batch *b = meta_batch_new(s->fs->meta);
    meta_value_put(b, name, text, strlen(text));
    int r = run->n_values == 0 ? drop_visited(s, b, run->ino) : 0;
    if (r == 0)
        r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

int sync_run_visited(struct sync *s, uint64_t root, unsigned number, const GArray *inos)
{
    g_autofree char *name = visited_name(root, number);
    g_autofree uint64_t *le = g_new(uint64_t, inos->len);
    for (guint i = 0; i < inos->len; i++)
        le[i] = GUINT64_TO_LE(g_array_index(inos, uint64_t, i));
    struct meta_batch *b = meta_batch_new(s->fs->meta);
    meta_value_put(b, name, le, inos->len * sizeof(*le));
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

static bool is_gone(struct fs *fs, uint64_t ino)
{
    struct meta_inode rec = {0};
    int r = meta_inode_get(fs->meta, ino, &rec);
    meta_inode_clear(&rec);
    return r == -ENOENT;
}

/* Numbers of directories that the table has something of though they are not there any more. */
static GArray *list_gone(struct sync *s, GHashTable *table)
{
    GArray *inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    GHashTableIter it;
    uint64_t *ino;
    mutex_lock(&s->kept_mu);
    g_hash_table_iter_init(&it, table);
    while (g_hash_table_iter_next(&it, (void **)&ino, NULL))
        g_array_append_val(inos, *ino);
    mutex_unlock(&s->kept_mu);
    for (guint i = inos->len; i-- > 0;)
        if (!is_gone(s->fs, g_array_index(inos, uint64_t, i)))
            g_array_remove_index_fast(inos, i);
    return inos;
}

static void forget_gone(struct sync *s, struct meta_batch *b, GHashTable *table, const char *path)
{
    g_autoptr(GArray) inos = list_gone(s, table);
    for (guint i = 0; i < inos->len; i++) {
        uint64_t one = g_array_index(inos, uint64_t, i);
        g_autofree char *name = name_of(path, one);
        meta_value_del(b, name);
        mutex_lock(&s->kept_mu);
        (void)g_hash_table_remove(table, &one);
        atomic_store(&s->n_failed, g_hash_table_size(s->failed));
        mutex_unlock(&s->kept_mu);
    }
}

int sync_run_end(struct sync *s, const struct sync_run *run, int64_t at_ns)
{
    struct meta_batch *b = meta_batch_new(s->fs->meta);
    g_autofree char *run_name = name_of(RUN_PATH, run->ino), *done_name = name_of(DONE_PATH, run->ino);
    g_autofree char *text = g_strdup_printf("%" PRId64, at_ns);
    meta_value_del(b, run_name);
    for (unsigned i = 0; i < run->n_values; i++) {
        g_autofree char *name = visited_name(run->ino, i);
        meta_value_del(b, name);
    }
    forget_gone(s, b, s->failed, FAILED_PATH);
    forget_gone(s, b, s->done, DONE_PATH);
    if (at_ns)
        meta_value_put(b, done_name, text, strlen(text));
    int r = meta_commit(b, false);
    meta_batch_free(b);
    if (r < 0 || !at_ns)
        return r;
    mutex_lock(&s->kept_mu);
    g_hash_table_replace(s->done, g_memdup2(&run->ino, sizeof(run->ino)), g_memdup2(&at_ns, sizeof(at_ns)));
    mutex_unlock(&s->kept_mu);
    atomic_fetch_add(&s->version, 1);
    return 0;
}

int64_t sync_done_ns(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->sync->kept_mu);
    const int64_t *at = g_hash_table_lookup(fs->sync->done, &ino);
    int64_t ns = at ? *at : 0;
    mutex_unlock(&fs->sync->kept_mu);
    return ns;
}

/* ---- when a directory was listed ---- */

/* The last sync of the directory or one above it; 0: none, or it could not list this one. */
static int64_t covered_ns(struct fs *fs, struct inode *dir)
{
    struct sync *s = fs->sync;
    int64_t best = 0;
    mutex_lock(&s->kept_mu);
    bool failed = g_hash_table_contains(s->failed, &dir->ino);
    mutex_unlock(&s->kept_mu);
    uint64_t ino = dir->ino;
    for (unsigned depth = 0; !failed && depth < MAX_PARENTS; depth++) {
        best = MAX(best, sync_done_ns(fs, ino));
        INODE_REF in = NULL;
        if (ino == META_ROOT_INO || inode_get(fs, ino, &in) < 0)
            break;
        mutex_lock(&in->mu);
        ino = in->rec.parent;
        mutex_unlock(&in->mu);
    }
    return best;
}

int64_t sync_listed_ns(struct fs *fs, struct inode *dir)
{
    uint64_t version = fs->sync ? atomic_load(&fs->sync->version) : 0;
    mutex_lock(&dir->mu);
    bool listed = dir->rec.flags & INODE_DIR_LISTED; /* else no sync has listed it */
    bool doubted = dir->rec.listed_ns == 0; /* it was said since that it counts no more: nor do syncs of before */
    int64_t at = listed && !doubted ? MAX(dir->rec.listed_ns, dir->seen_ns) : dir->rec.listed_ns;
    bool looked = !listed || doubted || dir->seen_version == version;
    mutex_unlock(&dir->mu);
    if (looked)
        return at;
    int64_t covered = covered_ns(fs, dir);
    mutex_lock(&dir->mu);
    dir->seen_ns = at = MAX(MAX(dir->rec.listed_ns, dir->seen_ns), covered);
    dir->seen_version = version;
    mutex_unlock(&dir->mu);
    return at;
}

/* ---- directories that could not be listed ---- */

bool sync_fail(struct sync *s, uint64_t root, uint64_t ino, int err)
{
    struct fs *fs = s->fs;
    g_autofree char *path = NULL;
    if (tree_path_of(fs, ino, &path) < 0)
        return true; /* removed since */
    struct sync_failure *f = g_new0(struct sync_failure, 1);
    *f = (struct sync_failure){.ino = ino, .root = root, .err = err, .path = g_steal_pointer(&path)};
    g_autofree char *name = name_of(FAILED_PATH, ino);
    g_autofree char *text = g_strdup_printf("%d %" PRIx64 "\n%s", err, root, f->path);
    log_warn("sync", "a directory could not be listed path='%s' r=%s", f->path, err_name(err));
    mutex_lock(&s->kept_mu);
    bool room = g_hash_table_contains(s->failed, &ino) || g_hash_table_size(s->failed) < SYNC_FAILED_MAX;
    if (room) {
        (void)g_hash_table_remove(s->failed, &ino); /* its key is part of its value */
        g_hash_table_insert(s->failed, &f->ino, f);
    }
    atomic_store(&s->n_failed, g_hash_table_size(s->failed));
    mutex_unlock(&s->kept_mu);
    if (!room) {
        failure_free(f);
        return false;
    }
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_put(b, name, text, strlen(text));
    if (meta_commit(b, false) < 0)
        log_debug("sync", "not kept: %s", name); /* the database failed, which has been said */
    meta_batch_free(b);
    return true;
}

void sync_forgive(struct fs *fs, uint64_t ino)
{
    struct sync *s = fs->sync;
    if (!s || atomic_load(&s->n_failed) == 0)
        return;
    mutex_lock(&s->kept_mu);
    bool had = g_hash_table_remove(s->failed, &ino);
    atomic_store(&s->n_failed, g_hash_table_size(s->failed));
    mutex_unlock(&s->kept_mu);
    if (!had)
        return;
    g_autofree char *name = name_of(FAILED_PATH, ino);
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_del(b, name);
    if (meta_commit(b, false) < 0)
        log_debug("sync", "not forgotten: %s", name);
    meta_batch_free(b);
}

void sync_failed_each(struct fs *fs, uint64_t root, void (*fn)(void *ctx, const char *path, int err), void *ctx)
{
    GHashTableIter it;
    const struct sync_failure *f;
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func(failure_free);
    mutex_lock(&fs->sync->kept_mu);
    g_hash_table_iter_init(&it, fs->sync->failed);
    for (void *value; g_hash_table_iter_next(&it, NULL, &value);) {
        f = value;
        if (root && f->root != root)
            continue;
        struct sync_failure *copy = g_memdup2(f, sizeof(*f));
        copy->path = g_strdup(f->path);
        g_ptr_array_add(found, copy);
    }
    mutex_unlock(&fs->sync->kept_mu);
    for (guint i = 0; i < found->len; i++) {
        f = found->pdata[i];
        fn(ctx, f->path, f->err);
    }
}
