/*
 * The inode table: which inodes are in memory, and why (references of ours, lookups of the kernel). Of those that only the kernel knows it keeps the IDLE_MAX lately
 * used; of the others a number.
 *
 * An inode enters the table before its record is read, with its own lock held, so that two threads never load two copies: whoever
 * finds it waits on that lock. It leaves when nobody refers to it; the record in the database is then the newest.
 */
#include "base/crash.h"
#include "conflict.h"
#include "io_mode.h"

#include <assert.h>

#define IDLE_MAX 65536u

/* A number in fs->lookups. */
#define KEPT_PASSED 1u /* io.was_passed */
#define KEPT_LOOKUP 2u /* one lookup */

static gpointer ino_key(uint64_t ino)
{
    return GSIZE_TO_POINTER(ino);
}

void inode_table_init(struct fs *fs)
{
    mutex_init(&fs->table_mu, LOCK_INODE_TABLE);
    fs->inodes = g_hash_table_new(g_int64_hash, g_int64_equal);
    fs->unforgotten = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    fs->lookups = g_hash_table_new(NULL, NULL);
    g_queue_init(&fs->idle);
}

struct reap {
    struct fs *fs;
    uint64_t ino;
};

/* Without a name, and without users. The caller holds fs->ns and clears rec. */
static bool is_left_over(struct fs *fs, uint64_t ino, struct meta_inode *rec)
{
    mutex_lock(&fs->table_mu);
    bool used = g_hash_table_contains(fs->inodes, &ino);
    mutex_unlock(&fs->table_mu);
    return !used && meta_inode_get(fs->meta, ino, rec) == 0 && rec->nlink == 0;
}

/*
 * Content, record and unfinished marks of a file or directory that is left over go. The content first: a kill in between leaves a record that the next start
 * reaps. Content whose record is gone would hold its room for ever.
 */
static void reap_run(void *arg)
{
    struct reap *job = arg;
    struct fs *fs = job->fs;
    struct meta_inode rec = {0}, again = {0};
    char orphan[32], open[32];
    g_snprintf(orphan, sizeof(orphan), "orphan/%016" G_GINT64_MODIFIER "x", job->ino);
    g_snprintf(open, sizeof(open), "open/%016" G_GINT64_MODIFIER "x", job->ino);
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    bool reap = is_left_over(fs, job->ino, &rec);
    mutex_unlock(&fs->ns);
    if (reap && rec.vid)
        cache_forget(fs->cache, rec.vid); /* an upload begun for it is aborted behind */
    CRASH_POINT(reap_content);
    mutex_lock(&fs->ns);
    if (reap && is_left_over(fs, job->ino, &again)) {
        meta_inode_del(b, job->ino);
        meta_value_del(b, orphan);
        meta_value_del(b, open);
        if (meta_commit(b, false) < 0)
            log_debug("fs", "the record of a removed file stays for the next start ino=%" G_GUINT64_FORMAT, job->ino);
    }
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    meta_inode_clear(&rec);
    meta_inode_clear(&again);
    g_free(job);
}

static void inode_reap(struct fs *fs, uint64_t ino)
{
    struct reap *job = g_new(struct reap, 1);
    *job = (struct reap){fs, ino};
    if (!fs->notify_q || !workq_push(fs->notify_q, true, reap_run, job))
        g_free(job); /* stopping: the next start does it */
}

static void inode_free(struct inode *in)
{
    assert(in->n_open == 0 && in->cf == NULL);
    io_mode_forget(in);
    meta_inode_clear(&in->rec);
    g_free(in->name);
    cond_fini(&in->changed_cond);
    mutex_fini(&in->mu);
    g_free(in);
}

static bool is_orphan(const struct inode *in)
{
    return !in->gone && in->loaded && in->rec.nlink == 0;
}

/* Out of the table: freed, and its record reaped if it has no name and the kernel does not know it. */
static void inode_dismiss(struct fs *fs, struct inode *in)
{
    uint64_t ino = in->ino;
    bool reap = is_orphan(in) && !in->known_before;
    inode_free(in);
    if (reap)
        inode_reap(fs, ino);
}

void inode_table_fini(struct fs *fs)
{
    if (!fs->inodes)
        return;
    GHashTableIter it;
    struct inode *in;
    g_hash_table_iter_init(&it, fs->inodes);
    while (g_hash_table_iter_next(&it, NULL, (void **)&in)) {
        g_hash_table_iter_remove(&it);
        if (in->cf) { /* handles that the kernel never released: the connection is gone */
            cache_file_unref(in->cf);
            in->cf = NULL;
        }
        in->n_open = 0;
        in->io.kernel_writes = false;
        inode_free(in);
    }
    g_hash_table_unref(fs->inodes);
    g_hash_table_unref(fs->unforgotten);
    g_hash_table_unref(fs->lookups);
    fs->inodes = NULL;
    mutex_fini(&fs->table_mu);
}

/* Owner and permissions that are not known are those of this mount, whatever they were when the record was made. */
static void apply_defaults(struct inode *in)
{
    const struct config *cfg = in->fs->cfg;
    struct meta_inode *rec = &in->rec;
    bool mode_known = rec->flags & INODE_MODE_KNOWN;
    if (!mode_known || (rec->flags & INODE_OWNER_UNKNOWN)) {
        rec->uid = in->fs->uid;
        rec->gid = in->fs->gid;
    }
    if (!mode_known && !S_ISLNK(rec->mode))
        rec->mode = (rec->mode & S_IFMT) | (S_ISDIR(rec->mode) ? cfg->dir_mode : cfg->file_mode);
}

static int load_locked(struct inode *in) REQUIRES(in->mu)
{
    mutex_assert_held(&in->mu);
    int r = meta_inode_get(in->fs->meta, in->ino, &in->rec);
    if (r == 0 && S_ISDIR(in->rec.mode) && in->ino != META_ROOT_INO) {
        struct meta_dentry d = {0};
        r = meta_link_first(in->fs->meta, in->ino, &d);
        r = r == -ENOENT ? 0 : r; /* removed while in use */
        in->name = g_strdup(d.name);
        meta_dentry_clear(&d);
    }
    if (r == 0)
        apply_defaults(in);
    in->loaded = true;
    in->gone = r < 0;
    if (r < 0)
        meta_inode_clear(&in->rec);
    return r;
}

static void idle_remove_locked(struct fs *fs, struct inode *in) REQUIRES(fs->table_mu)
{
    if (in->idle.data)
        g_queue_unlink(&fs->idle, &in->idle);
    in->idle.data = NULL;
}

/* With one more reference, or NULL. */
static struct inode *table_find_locked(struct fs *fs, uint64_t ino) REQUIRES(fs->table_mu)
{
    struct inode *in = g_hash_table_lookup(fs->inodes, &ino);
    if (in && in->refs++ == 0)
        idle_remove_locked(fs, in);
    return in;
}

/* Returns the inode found in the table, or the fresh one, which is then in the table. */
static struct inode *table_insert(struct fs *fs, struct inode *fresh) EXCLUDES(fs->table_mu)
{
    mutex_lock(&fs->table_mu);
    struct inode *in = table_find_locked(fs, fresh->ino);
    if (!in) {
        in = fresh;
        gsize kept = GPOINTER_TO_SIZE(g_hash_table_lookup(fs->lookups, ino_key(fresh->ino)));
        (void)g_hash_table_remove(fs->lookups, ino_key(fresh->ino));
        fresh->nlookup = kept / KEPT_LOOKUP;
        fresh->io.was_passed |= kept & KEPT_PASSED;
        fresh->refs = 1;
        g_hash_table_insert(fs->inodes, &fresh->ino, fresh);
    }
    mutex_unlock(&fs->table_mu);
    return in;
}

static int inode_load(struct fs *fs, uint64_t ino, struct inode **ret)
{
    struct inode *fresh = g_new0(struct inode, 1);
    fresh->fs = fs;
    fresh->ino = ino;
    fresh->known_before = fresh->io.was_passed = ino < fs->session->head->ino_limit;
    mutex_init(&fresh->mu, LOCK_INODE);
    cond_init(&fresh->changed_cond);
    mutex_lock(&fresh->mu);
    struct inode *in = table_insert(fs, fresh);
    int r = in == fresh ? load_locked(fresh) : 0;
    mutex_unlock(&fresh->mu);
    if (in != fresh) {
        inode_free(fresh);
        mutex_lock(&in->mu); /* its loader has it until it is loaded */
        r = in->gone ? -ENOENT : 0;
        mutex_unlock(&in->mu);
    }
    if (r < 0) {
        inode_put(in);
        return r;
    }
    *ret = in;
    return 0;
}

struct inode *inode_find(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu);
    struct inode *in = table_find_locked(fs, ino);
    mutex_unlock(&fs->table_mu);
    return in;
}

int inode_get(struct fs *fs, uint64_t ino, struct inode **ret)
{
    struct inode *in = inode_find(fs, ino);
    if (!in)
        return inode_load(fs, ino, ret);
    mutex_lock(&in->mu);
    bool gone = in->gone && in->n_open == 0;
    mutex_unlock(&in->mu);
    if (gone) {
        inode_put(in);
        return -ENOENT;
    }
    *ret = in;
    return 0;
}

struct inode *inode_ref(struct inode *in)
{
    mutex_lock(&in->fs->table_mu);
    in->refs++;
    mutex_unlock(&in->fs->table_mu);
    return in;
}

static void await_forget_locked(struct fs *fs, uint64_t ino) REQUIRES(fs->table_mu)
{
    uint64_t *key = g_new(uint64_t, 1);
    *key = ino;
    g_hash_table_add(fs->unforgotten, key);
}

void inode_await_forget(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu);
    await_forget_locked(fs, ino);
    mutex_unlock(&fs->table_mu);
}

static struct inode *table_remove_locked(struct fs *fs, struct inode *in) REQUIRES(fs->table_mu)
{
    idle_remove_locked(fs, in);
    g_hash_table_remove(fs->inodes, &in->ino);
    if (in->known_before && is_orphan(in))
        await_forget_locked(fs, in->ino);
    return in;
}

/* What else of it is only in memory is no loss. Without a name its record depends on the last FORGET. */
static bool number_is_enough(const struct inode *in)
{
    bool written = in->rec.content == CONTENT_OPEN || in->rec.content == CONTENT_CLOSING;
    return !is_orphan(in) && !inode_is_dir(in) && !written;
}

/* The one that the kernel asked for least lately, if there are too many. */
static struct inode *table_shrink_locked(struct fs *fs) REQUIRES(fs->table_mu)
{
    struct inode *in = fs->idle.length > IDLE_MAX ? fs->idle.head->data : NULL;
    if (!in)
        return NULL;
    gsize kept = in->nlookup * KEPT_LOOKUP | (in->io.was_passed ? KEPT_PASSED : 0);
    g_hash_table_insert(fs->lookups, ino_key(in->ino), GSIZE_TO_POINTER(kept));
    return table_remove_locked(fs, in);
}

/* A reference or lookups of in went: returns the inode that leaves memory for it, to be dismissed, or NULL. */
static struct inode *table_settle_locked(struct fs *fs, struct inode *in) REQUIRES(fs->table_mu)
{
    if (in->refs > 0)
        return NULL;
    if (in->nlookup == 0)
        return table_remove_locked(fs, in);
    if (!in->idle.data && number_is_enough(in)) {
        in->idle.data = in;
        g_queue_push_tail_link(&fs->idle, &in->idle);
    }
    return table_shrink_locked(fs);
}

void inode_put(struct inode *in)
{
    if (!in)
        return;
    struct fs *fs = in->fs;
    mutex_lock(&fs->table_mu);
    assert(in->refs > 0);
    in->refs--;
    struct inode *leaves = table_settle_locked(fs, in);
    mutex_unlock(&fs->table_mu);
    if (leaves)
        inode_dismiss(fs, leaves);
}

void inode_set_place(struct inode *in, const struct meta_dentry *d)
{
    mutex_lock(&in->mu);
    in->place_dir = d->parent;
    in->place_id = d->id;
    mutex_unlock(&in->mu);
}

void inode_kernel_ref(struct inode *in)
{
    mutex_lock(&in->fs->table_mu);
    in->nlookup++;
    mutex_unlock(&in->fs->table_mu);
}

/* Of an inode that is not in memory. */
static void forget_kept_locked(struct fs *fs, uint64_t ino, uint64_t n) REQUIRES(fs->table_mu)
{
    gsize kept = GPOINTER_TO_SIZE(g_hash_table_lookup(fs->lookups, ino_key(ino)));
    if (kept / KEPT_LOOKUP > n)
        g_hash_table_insert(fs->lookups, ino_key(ino), GSIZE_TO_POINTER(kept - n * KEPT_LOOKUP));
    else
        (void)g_hash_table_remove(fs->lookups, ino_key(ino));
}

void inode_kernel_forget(struct fs *fs, uint64_t ino, uint64_t n)
{
    struct inode *leaves = NULL;
    bool left_over = false;
    mutex_lock(&fs->table_mu);
    struct inode *in = g_hash_table_lookup(fs->inodes, &ino);
    if (in) {
        in->known_before &= n < in->nlookup;
        in->nlookup -= MIN(n, in->nlookup);
        leaves = table_settle_locked(fs, in);
    } else {
        forget_kept_locked(fs, ino, n);
        left_over = g_hash_table_remove(fs->unforgotten, &ino);
    }
    mutex_unlock(&fs->table_mu);
    if (leaves)
        inode_dismiss(fs, leaves);
    if (left_over)
        inode_reap(fs, ino);
}

static struct timespec to_timespec(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / (int64_t)NS_PER_S, .tv_nsec = ns % (int64_t)NS_PER_S};
    if (t.tv_nsec < 0) {
        t.tv_sec--;
        t.tv_nsec += NS_PER_S;
    }
    return t;
}

void inode_stat(struct inode *in, struct stat *ret)
{
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    const struct meta_inode *rec = &in->rec;
    unsigned aside = rec->flags & INODE_SET_ASIDE ? conflict_links(in->fs->meta, in->ino) : 0;
    *ret = (struct stat){
        .st_ino = in->ino,
        .st_mode = rec->mode,
        .st_nlink = S_ISDIR(rec->mode) ? 1 : rec->nlink - MIN(aside, rec->nlink),
        .st_uid = rec->uid,
        .st_gid = rec->gid,
        .st_rdev = rec->rdev,
        .st_size = S_ISLNK(rec->mode) && rec->target ? strlen(rec->target) : rec->size,
        .st_blksize = 1 << 20,
        .st_blocks = S_ISREG(rec->mode) ? (rec->size + 511) / 512 : 0,
        .st_mtim = to_timespec(rec->mtime_ns),
        .st_atim = to_timespec(rec->mtime_ns),
        .st_ctim = to_timespec(rec->ctime_ns),
    };
    mutex_unlock(&in->mu);
}
