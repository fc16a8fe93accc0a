/*
 * The inode table: which inodes are in memory, and why (references of ours, lookups of the kernel). Of those that only the kernel knows it keeps the IDLE_MAX lately
 * used; of the others a number.
 *
 * An inode enters the table before its record is read, with its own lock held, so that two threads never load two copies: whoever
 * finds it waits on that lock. It leaves when nobody refers to it; the record in the database is then the newest, because who changes it for a batch
 * notes it for ns_undo.h, which holds it until that is committed.
 */
#include "conflict.h"
#include "io_mode.h"
#include "lookups.h"
#include "reap.h"

#include <assert.h>

#define IDLE_MAX 65536u

/* A number in fs->lookups. */
#define KEPT_PASSED 1u /* io.was_passed */
#define KEPT_LOOKUP 2u /* one lookup */

void inode_table_init(struct fs *fs)
{
    mutex_init(&fs->table_mu, LOCK_INODE_TABLE);
    fs->inodes = g_hash_table_new(g_int64_hash, g_int64_equal);
    fs->unforgotten = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    fs->lookups = lookups_new();
    g_queue_init(&fs->idle);
}

static void inode_free(struct inode *in)
{
    assert(in->n_open == 0 && in->cf == NULL);
    io_mode_forget(in);
    meta_inode_clear(&in->rec);
    g_free(in->name);
    g_strfreev(in->list.hidden);
    cond_fini(&in->changed_cond);
    mutex_fini(&in->mu);
    g_free(in);
}

static bool is_orphan(const struct inode *in)
{
    return !in->gone && in->loaded && in->rec.nlink == 0;
}

/* The kernel may have looked it up before this worker. */
static bool known_before(const struct fs *fs, uint64_t ino)
{
    return ino < fs->session->head->ino_limit;
}

/* What left the table. */
struct leaver {
    struct inode *in; /* NULL: nothing */
    bool ask;         /* only the kernel can tell whether it may go */
};

/* Freed, and its record reaped if it has no name and nobody knows it. */
static void inode_dismiss(struct fs *fs, const struct leaver *l)
{
    if (!l->in)
        return;
    uint64_t ino = l->in->ino;
    bool reap = is_orphan(l->in) && !known_before(fs, ino);
    inode_free(l->in);
    if (reap)
        reap_inode(fs, ino);
    else if (l->ask)
        reap_if_forgotten(fs, ino);
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
        inode_free(in);
    }
    g_hash_table_unref(fs->inodes);
    g_hash_table_unref(fs->unforgotten);
    g_clear_pointer(&fs->lookups, lookups_free);
    assert(!fs->undo || fs->undo->len == 0);
    g_clear_pointer(&fs->undo, g_array_unref);
    fs->inodes = NULL;
    mutex_fini(&fs->table_mu);
}

/* Owner and permissions that are not known are those of this mount, whatever they were when the record was made. */
static void apply_defaults(const struct fs *fs, struct meta_inode *rec)
{
    bool mode_known = rec->flags & INODE_MODE_KNOWN;
    if (!mode_known || (rec->flags & INODE_OWNER_UNKNOWN)) {
        rec->uid = fs->uid;
        rec->gid = fs->gid;
    }
    if (!mode_known && !S_ISLNK(rec->mode))
        rec->mode = (rec->mode & S_IFMT) | (S_ISDIR(rec->mode) ? fs->cfg->dir_mode : fs->cfg->file_mode);
}

static int load_locked(struct inode *in, struct meta_near *rd) REQUIRES(in->mu)
{
    mutex_assert_held(&in->mu);
    int r = rd ? meta_near_inode(rd, in->ino, &in->rec) : meta_inode_get(in->fs->meta, in->ino, &in->rec);
    if (r == 0 && S_ISDIR(in->rec.mode) && in->ino != META_ROOT_INO) {
        struct meta_dentry d = {0};
        r = meta_link_first(in->fs->meta, in->ino, &d);
        r = r == -ENOENT ? 0 : r; /* removed while in use */
        in->name = g_strdup(d.name);
        meta_dentry_clear(&d);
    }
    if (r == 0)
        apply_defaults(in->fs, &in->rec);
    in->gone = r < 0;
    __atomic_store_n(&in->loaded, true, __ATOMIC_RELEASE);
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
        uint64_t kept = lookups_get(fs->lookups, fresh->ino);
        lookups_set(fs->lookups, fresh->ino, 0);
        fresh->nlookup = kept / KEPT_LOOKUP;
        fresh->io.was_passed |= kept & KEPT_PASSED;
        fresh->refs = 1;
        g_hash_table_insert(fs->inodes, &fresh->ino, fresh);
    }
    mutex_unlock(&fs->table_mu);
    return in;
}

static int inode_load(struct fs *fs, struct meta_near *rd, uint64_t ino, struct inode **ret)
{
    struct inode *fresh = g_new0(struct inode, 1);
    fresh->fs = fs;
    fresh->ino = ino;
    fresh->io.was_passed = known_before(fs, ino);
    mutex_init(&fresh->mu, LOCK_INODE);
    cond_init(&fresh->changed_cond);
    mutex_lock(&fresh->mu);
    struct inode *in = table_insert(fs, fresh);
    int r = in == fresh ? load_locked(fresh, rd) : 0;
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
    return inode_get_by(fs, NULL, ino, ret);
}

int inode_get_by(struct fs *fs, struct meta_near *rd, uint64_t ino, struct inode **ret)
{
    struct inode *in = inode_find(fs, ino);
    if (!in)
        return inode_load(fs, rd, ino, ret);
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

/* False: it was awaited already. */
static bool await_forget_locked(struct fs *fs, uint64_t ino) REQUIRES(fs->table_mu)
{
    return g_hash_table_add(fs->unforgotten, g_memdup2(&ino, sizeof(ino)));
}

void inode_await_forget(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu);
    if (!g_hash_table_contains(fs->inodes, &ino)) /* else when it leaves memory */
        (void)await_forget_locked(fs, ino);
    mutex_unlock(&fs->table_mu);
}

bool inode_is_awaited(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu);
    if (g_hash_table_contains(fs->inodes, &ino)) /* asked for anew when it leaves memory */
        (void)g_hash_table_remove(fs->unforgotten, &ino);
    bool awaited = g_hash_table_contains(fs->unforgotten, &ino);
    mutex_unlock(&fs->table_mu);
    return awaited;
}

bool inode_end_await(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu);
    bool used = g_hash_table_contains(fs->inodes, &ino);
    bool awaited = g_hash_table_remove(fs->unforgotten, &ino);
    mutex_unlock(&fs->table_mu);
    return awaited && !used;
}

GArray *inode_list_awaited(struct fs *fs)
{
    GArray *list = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    GHashTableIter it;
    uint64_t *ino;
    mutex_lock(&fs->table_mu);
    g_hash_table_iter_init(&it, fs->unforgotten);
    while (g_hash_table_iter_next(&it, (void **)&ino, NULL))
        g_array_append_val(list, *ino);
    mutex_unlock(&fs->table_mu);
    return list;
}

static struct leaver table_remove_locked(struct fs *fs, struct inode *in) REQUIRES(fs->table_mu)
{
    idle_remove_locked(fs, in);
    g_hash_table_remove(fs->inodes, &in->ino);
    bool ask = is_orphan(in) && known_before(fs, in->ino) && await_forget_locked(fs, in->ino);
    return (struct leaver){in, ask};
}

/* What else of it is only in memory is no loss. Without a name its record depends on the last FORGET. */
static bool number_is_enough(const struct inode *in)
{
    bool written = in->rec.content == CONTENT_OPEN || in->rec.content == CONTENT_CLOSING;
    return !is_orphan(in) && !inode_is_dir(in) && !written;
}

/* The one that the kernel asked for least lately, if there are too many. */
static struct leaver table_shrink_locked(struct fs *fs) REQUIRES(fs->table_mu)
{
    struct inode *in = fs->idle.length > IDLE_MAX ? fs->idle.head->data : NULL;
    if (!in)
        return (struct leaver){0};
    lookups_set(fs->lookups, in->ino, in->nlookup * KEPT_LOOKUP | (in->io.was_passed ? KEPT_PASSED : 0));
    return table_remove_locked(fs, in);
}

/* A reference or lookups of in went: returns what leaves memory for it, to be dismissed. */
static struct leaver table_settle_locked(struct fs *fs, struct inode *in) REQUIRES(fs->table_mu)
{
    if (in->refs > 0)
        return (struct leaver){0};
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
    struct leaver leaves = table_settle_locked(fs, in);
    mutex_unlock(&fs->table_mu);
    inode_dismiss(fs, &leaves);
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
    uint64_t kept = lookups_get(fs->lookups, ino);
    lookups_set(fs->lookups, ino, kept / KEPT_LOOKUP > n ? kept - n * KEPT_LOOKUP : 0);
}

void inode_kernel_forget(struct fs *fs, uint64_t ino, uint64_t n)
{
    struct leaver leaves = {0};
    mutex_lock(&fs->table_mu);
    bool awaited = g_hash_table_remove(fs->unforgotten, &ino);
    struct inode *in = g_hash_table_lookup(fs->inodes, &ino);
    if (in) {
        in->nlookup -= MIN(n, in->nlookup);
        leaves = table_settle_locked(fs, in);
    } else {
        forget_kept_locked(fs, ino, n);
    }
    mutex_unlock(&fs->table_mu);
    inode_dismiss(fs, &leaves);
    if (awaited && !in)
        reap_inode(fs, ino);
}

bool inode_kernel_may_know(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu);
    const struct inode *in = g_hash_table_lookup(fs->inodes, &ino);
    uint64_t n = in ? in->nlookup : lookups_get(fs->lookups, ino) / KEPT_LOOKUP;
    mutex_unlock(&fs->table_mu);
    return n > 0 || known_before(fs, ino);
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

static void stat_of(const struct meta_inode *rec, unsigned links_aside, struct stat *ret)
{
    *ret = (struct stat){
        .st_ino = rec->ino,
        .st_mode = rec->mode,
        .st_nlink = S_ISDIR(rec->mode) ? 1 : rec->nlink - MIN(links_aside, rec->nlink),
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
}

void inode_stat(struct inode *in, struct stat *ret)
{
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    stat_of(&in->rec, in->rec.flags & INODE_SET_ASIDE ? conflict_links(in->fs->meta, in->ino) : 0, ret);
    mutex_unlock(&in->mu);
}

/* Counts a lookup of the kernel for an inode that is not in memory. */
static bool ref_kept(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu);
    bool kept = !g_hash_table_contains(fs->inodes, &ino);
    if (kept)
        lookups_set(fs->lookups, ino, lookups_get(fs->lookups, ino) + KEPT_LOOKUP);
    mutex_unlock(&fs->table_mu);
    return kept;
}

/* Does the record alone tell what a stat says of it, and what becomes of it at the last FORGET? */
static bool record_is_enough(const struct meta_inode *rec)
{
    return S_ISREG(rec->mode) && rec->nlink > 0 && rec->content == CONTENT_CLEAN && !(rec->flags & INODE_SET_ASIDE);
}

bool inode_kernel_ref_unloaded(struct fs *fs, struct meta_near *rd, uint64_t ino, struct stat *ret)
{
    if (!ref_kept(fs, ino)) /* before the record is read: from here on the record stays */
        return false;
    struct meta_inode rec = {0};
    bool enough = meta_near_inode(rd, ino, &rec) == 0 && record_is_enough(&rec);
    if (enough) {
        apply_defaults(fs, &rec);
        stat_of(&rec, 0, ret);
    } else {
        inode_kernel_forget(fs, ino, 1);
    }
    meta_inode_clear(&rec);
    return enough;
}
