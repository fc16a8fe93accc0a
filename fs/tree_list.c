/*
 * Listing a directory from the store: one listing however many callers wait, run by the list queue, applied page by page.
 *
 * Callers wait for it with a limit: a directory that was listed before is served as it is when the store does not answer within 2 s. Objects whose
 * type a listing cannot tell (zero bytes: it may be a symbolic link) are asked by HEAD, many at a time; so are those of which a listing cannot tell whether they
 * are still the same, their tags being all alike, by a Last-Modified that is new or too young to tell one version from the next.
 */
#include "tree_list.h"

#include "base/crash.h"
#include "base/patience.h"
#include "pin.h"
#include "publish.h"
#include "tree_apply.h"

#define SLOW_LISTING     2u /* a listing that takes more than this share of the TTL */
#define STALE_WAIT_NS    (2 * NS_PER_S)
#define WORN_NS          NS_PER_S
#define OFFLINE_RETRY_NS (5 * NS_PER_S)
#define ROWS_PER_BATCH   500
#define HEADS_AT_ONCE    32
#define SETTLED_NS       (10 * (int64_t)NS_PER_S) /* stores list whole seconds, and clocks differ */

struct listing {
    struct fs *fs;
    uint64_t began_ns;
    uint64_t ino;
    /* guarded by list_mu */
    unsigned refs;
    bool done;
    int result;
    uint64_t progress; /* rows and HEADs that came */
    uint64_t pages;    /* times that rows became names */
    uint64_t first_id; /* ids of names from this one on were given since it began; 0: not begun */
    unsigned heads_left;
    int head_err;
    /* owned by the worker that runs it */
    char *prefix;
    uint64_t stamp;
    int64_t began_wall_ns;
    GHashTable *seen; /* see tree_drop_unseen(); owns the rows; names only when the directory had some */
    bool had_names;
    GPtrArray *rows; /* struct list_row */
    bool marker, hidden;
    bool changed; /* names appeared, changed or went */
};

static void listing_unref_locked(struct listing *l) /* under list_mu */
{
    if (--l->refs > 0)
        return;
    g_hash_table_unref(l->seen);
    g_ptr_array_unref(l->rows);
    g_free(l->prefix);
    g_free(l);
}

/* ---- HEADs ---- */

struct head_job {
    struct listing *l;
    struct list_row *row;
};

static int keep_target(void *ctx, uint64_t off, const void *buf, size_t len)
{
    g_string_append_len(ctx, buf, (gssize)len);
    return 0;
}

/* s3fs keeps a symbolic link's target in the object's body. */
static int read_s3fs_link(struct fs *fs, const char *key, struct obj_info *info)
{
    bool link = fs->cfg->posix_meta == POSIX_META_ON && (info->posix.fields & POSIX_MODE) && S_ISLNK(info->posix.mode);
    if (!link || info->symlink || info->size == 0 || info->size > OBJ_SYMLINK_MAX)
        return 0;
    g_autoptr(GString) target = g_string_new(NULL);
    int r = objstore_get(fs->store, key, 0, 0, &info->etag, keep_target, target, NULL);
    if (r == 0 && strlen(target->str) == target->len)
        info->symlink = g_strdup(g_strchomp(target->str));
    return r == -EACCES || r == -ENOMEDIUM ? 0 : r;
}

/* -errno: the row's type stays unknown. What may be listed but not asked for or read is shown as a plain file. */
static int head_row(struct listing *l, struct list_row *row)
{
    g_autofree char *key = g_strconcat(l->prefix, row->name, NULL);
    struct obj_info info = {0};
    int r = objstore_head(l->fs->store, key, &info);
    if (r == 0)
        r = read_s3fs_link(l->fs, key, &info);
    row->vanished = r == -ENOENT;
    if (r < 0) {
        obj_info_clear(&info);
        return r == -ENOENT || r == -EACCES ? 0 : r;
    }
    row->etag = info.etag;
    row->size = info.size;
    row->info = info; /* takes over its strings */
    row->has_info = true;
    return 0;
}

static void head_run(void *arg)
{
    struct head_job *job = arg;
    struct listing *l = job->l;
    int r = head_row(l, job->row);
    mutex_lock(&l->fs->list_mu);
    if (r < 0)
        l->head_err = r;
    l->heads_left--;
    l->progress += r == 0;
    cond_broadcast(&l->fs->list_done);
    mutex_unlock(&l->fs->list_mu);
    g_free(job);
}

static int head_rows(struct listing *l)
{
    struct fs *fs = l->fs;
    l->head_err = 0; /* nobody else is at it yet */
    for (unsigned i = 0; i < l->rows->len; i++) {
        struct list_row *row = l->rows->pdata[i];
        if (!tree_row_wants_head(fs, l->ino, row))
            continue;
        mutex_lock(&fs->list_mu);
        while (l->heads_left >= HEADS_AT_ONCE)
            cond_wait(&fs->list_done, &fs->list_mu);
        bool failed = l->head_err < 0;
        l->heads_left += !failed;
        mutex_unlock(&fs->list_mu);
        if (failed)
            break;
        struct head_job *job = g_new(struct head_job, 1);
        *job = (struct head_job){l, row};
        if (!workq_push(fs->head_q, false, head_run, job))
            head_run(job);
    }
    mutex_lock(&fs->list_mu);
    while (l->heads_left > 0)
        cond_wait(&fs->list_done, &fs->list_mu);
    int r = l->head_err;
    mutex_unlock(&fs->list_mu);
    return r;
}

/* ---- pages ---- */

static void mark_dir_posix(struct listing *l, struct meta_batch *b, struct inode *dir)
{
    mutex_lock(&dir->mu);
    if (!(dir->rec.flags & INODE_DIR_POSIX)) {
        dir->rec.flags |= INODE_DIR_POSIX;
        meta_inode_put(b, &dir->rec);
    }
    mutex_unlock(&dir->mu);
}

/* Where a directory stands in its way the row waits in `seen` for the end of the listing. */
static int apply_rows_locked(struct listing *l, struct meta_batch *b, struct inode *dir) NO_TSA /* under ns */
{
    g_autofree char *now = tree_dir_prefix(l->fs, l->ino);
    if (!g_str_equal(now, l->prefix) || dir->gone)
        return -EAGAIN; /* renamed or removed meanwhile: what was listed is another place */
    int r = 0;
    for (unsigned i = 0; r == 0 && i < l->rows->len; i++) {
        struct list_row *row = l->rows->pdata[i];
        if (row->has_info && row->info.posix.fields)
            mark_dir_posix(l, b, dir);
        r = row->vanished ? 0 : tree_apply_row(l->fs, b, l->ino, row, l->stamp);
        if (r > 0) {
            g_hash_table_replace(l->seen, g_strdup(row->name), row);
            l->rows->pdata[i] = NULL;
            r = 0;
        }
    }
    return r;
}

/* Applies the rows collected so far in one batch. */
static int flush_rows(struct listing *l)
{
    if (l->rows->len == 0)
        return 0;
    struct fs *fs = l->fs;
    INODE_REF dir = NULL;
    int r = head_rows(l);
    if (r == 0)
        r = inode_get(fs, l->ino, &dir);
    if (r < 0)
        return r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    uint64_t changes = fs->ns_changes;
    r = apply_rows_locked(l, b, dir);
    if (r == 0)
        r = meta_commit(b, false);
    l->changed |= fs->ns_changes != changes;
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    CRASH_POINT(list_rows);
    g_ptr_array_set_size(l->rows, 0);
    return r;
}

/* Takes the object of the directory's name out of the rows to come: the database does not show yet what one batch puts, so both would become names. */
static void shadow(struct listing *l, struct list_row *dir)
{
    if (l->had_names && !g_hash_table_contains(l->seen, dir->name))
        return;
    for (unsigned i = l->rows->len; i-- > 0;) {
        struct list_row *row = l->rows->pdata[i];
        if (row->is_dir || !g_str_equal(row->name, dir->name))
            continue;
        dir->shadows = true;
        g_hash_table_replace(l->seen, g_strdup(row->name), g_ptr_array_steal_index(l->rows, i));
        return;
    }
}

/* Who waits for the listing sees that it gets on. */
static int flush_page(struct listing *l)
{
    int r = flush_rows(l);
    mutex_lock(&l->fs->list_mu);
    l->progress++;
    l->pages += r == 0;
    cond_broadcast(&l->fs->list_done);
    mutex_unlock(&l->fs->list_mu);
    return r;
}

static int on_entry(void *ctx, const struct obj_entry *e)
{
    struct listing *l = ctx;
    size_t len = e->name_len;
    if (atomic_load(&l->fs->stopping))
        return -ECANCELED;
    /* the directory's own marker; with bytes in it, it is somebody's object that cannot be shown */
    if (len == 0 && !e->is_prefix) {
        l->marker = e->size == 0;
        l->hidden |= e->size > 0;
        if (e->size > 0)
            metric_inc(M_hidden_keys);
        return 0;
    }
    if (e->is_prefix && len > 0 && e->name[len - 1] == '/')
        len--;
    if (l->ino == META_ROOT_INO && len == strlen(PROBE_DIR) && strncmp(e->name, PROBE_DIR, len) == 0)
        return 0;
    if (e->odd || !tree_name_ok(e->name, len)) {
        l->hidden = true;
        metric_inc(M_hidden_keys);
        return 0;
    }
    struct list_row *row = g_new0(struct list_row, 1);
    row->name = g_strndup(e->name, len);
    row->is_dir = e->is_prefix;
    row->archived = e->archived;
    row->size = e->size;
    row->mtime_ns = e->mtime_ns;
    row->settled_ns = e->mtime_ns < l->began_wall_ns - SETTLED_NS ? e->mtime_ns : 0;
    row->etag = e->etag;
    if (row->is_dir)
        shadow(l, row);
    if (l->had_names)
        g_hash_table_insert(l->seen, g_strconcat(row->name, row->is_dir ? "/" : NULL, NULL), NULL);
    g_ptr_array_add(l->rows, row);
    return l->rows->len >= ROWS_PER_BATCH ? flush_page(l) : 0;
}

static int note_marker(struct listing *l, struct meta_batch *b);

static int finish_locked(struct listing *l, struct meta_batch *b, struct inode *dir) NO_TSA /* under ns */
{
    g_autofree char *now = tree_dir_prefix(l->fs, l->ino);
    if (!g_str_equal(now, l->prefix) || dir->gone)
        return -EAGAIN;
    int r = tree_drop_unseen(l->fs, b, l->ino, l->seen, l->stamp, l->first_id);
    if (r == 0 && l->ino != META_ROOT_INO)
        r = note_marker(l, b);
    if (r < 0)
        return r;
    mutex_lock(&dir->mu);
    dir->rec.flags |= INODE_DIR_LISTED;
    dir->rec.flags = l->hidden ? dir->rec.flags | INODE_DIR_HIDDEN : dir->rec.flags & ~INODE_DIR_HIDDEN;
    dir->rec.listed_ns = clock_wall_ns();
    dir->list_cost_ns = clock_mono_ns() - l->began_ns;
    meta_inode_put(b, &dir->rec);
    mutex_unlock(&dir->mu);
    return 0;
}

/* The directory's own name knows whether it has a marker object. */
static int note_marker(struct listing *l, struct meta_batch *b)
{
    struct meta_dentry d = {0};
    int r = meta_link_first(l->fs->meta, l->ino, &d);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    uint32_t want = l->marker ? d.flags & ~DENTRY_IMPLICIT : d.flags | DENTRY_IMPLICIT;
    if (want != d.flags && d.op_seq == 0 && d.stamp <= l->stamp && !d.ukey) {
        d.flags = l->marker ? want | DENTRY_UPSTREAM : want & ~DENTRY_UPSTREAM;
        meta_dentry_put(b, &d);
    }
    meta_dentry_clear(&d);
    return 0;
}

static int listing_begin(struct listing *l)
{
    struct fs *fs = l->fs;
    l->began_ns = clock_mono_ns();
    l->began_wall_ns = clock_wall_ns();
    mutex_lock(&fs->ns);
    g_free(l->prefix);
    l->prefix = tree_dir_prefix(fs, l->ino);
    l->stamp = meta_last_seq(fs->meta);
    uint64_t first_id = meta_next_ino(fs->meta);
    int r = meta_dir_has_entries(fs->meta, l->ino);
    mutex_unlock(&fs->ns);
    l->had_names = r != 0;
    mutex_lock(&fs->list_mu);
    l->first_id = first_id;
    mutex_unlock(&fs->list_mu);
    return r < 0 ? r : 0;
}

static int listing_do(struct listing *l)
{
    struct fs *fs = l->fs;
    int r = listing_begin(l);
    struct obj_list_req req = {.prefix = l->prefix, .delimiter = true};
    if (r == 0)
        r = objstore_list(fs->store, &req, on_entry, l, NULL);
    if (r == 0)
        r = flush_rows(l);
    if (r < 0)
        return r;
    INODE_REF dir = NULL;
    r = inode_get(fs, l->ino, &dir);
    if (r < 0)
        return r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    uint64_t changes = fs->ns_changes;
    r = finish_locked(l, b, dir);
    if (r == 0)
        r = meta_commit(b, false);
    l->changed |= fs->ns_changes != changes;
    publish_apply(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    CRASH_POINT(list_finished);
    return r;
}

static void listing_run(void *arg)
{
    struct listing *l = arg;
    struct fs *fs = l->fs;
    metric_inc(M_list_refreshes);
    int r = listing_do(l);
    for (unsigned again = 0; r == -EAGAIN && again < 3; again++) { /* the directory moved while it was listed */
        g_hash_table_remove_all(l->seen);
        g_ptr_array_set_size(l->rows, 0);
        r = listing_do(l);
    }
    if (r < 0)
        log_debug("list", "listing failed prefix='%s' r=%s", l->prefix, err_name(r));
    if (l->changed)
        pin_rules_apply(fs, *l->prefix ? l->prefix : "/");
    mutex_lock(&fs->list_mu);
    l->done = true;
    l->result = r;
    g_hash_table_remove(fs->listings, &l->ino);
    cond_broadcast(&fs->list_done);
    listing_unref_locked(l);
    mutex_unlock(&fs->list_mu);
}

/* ---- callers ---- */

static struct listing *listing_new(struct fs *fs, uint64_t ino)
{
    struct listing *l = g_new0(struct listing, 1);
    l->fs = fs;
    l->ino = ino;
    l->refs = 1;
    l->seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)list_row_free);
    l->rows = g_ptr_array_new_with_free_func((GDestroyNotify)list_row_free);
    return l;
}

/*
 * With list_mu: until the listing is done, or for wait_ns (UINT64_MAX: as long as it gets on), or until it has other than *pages (NULL: whatever it has), which is noted there.
 * Its result, 1: other pages, -EINPROGRESS or -EINTR.
 */
static int listing_wait(struct fs *fs, struct listing *l, uint64_t wait_ns, uint64_t *pages) NO_TSA
{
    uint64_t limit = fs->cfg->op_timeout_ns + 5 * NS_PER_S, seen = l->progress;
    uint64_t deadline = clock_mono_ns() + (wait_ns == UINT64_MAX ? limit : wait_ns);
    int r = 0;
    while (r == 0 && !l->done && !atomic_load(&fs->stopping) && (!pages || l->pages == *pages)) {
        r = patience_wait(&fs->list_done, &fs->list_mu, deadline);
        if (wait_ns != UINT64_MAX || l->progress == seen)
            continue;
        seen = l->progress;
        deadline = clock_mono_ns() + limit;
        patience_renew();
        r = r == -ETIMEDOUT ? 0 : r;
    }
    if (l->done)
        return l->result;
    if (!pages || l->pages == *pages)
        return r == -EINTR ? r : -EINPROGRESS;
    *pages = l->pages;
    return 1;
}

/* Joins or starts the listing of a directory and waits for it, see listing_wait(). */
static int listing_join(struct fs *fs, uint64_t ino, uint64_t wait_ns, uint64_t *pages)
{
    mutex_lock(&fs->list_mu);
    struct listing *l = g_hash_table_lookup(fs->listings, &ino);
    if (!l) {
        l = listing_new(fs, ino);
        g_hash_table_insert(fs->listings, &l->ino, l);
        if (!workq_push(fs->list_q, true, listing_run, l)) {
            g_hash_table_remove(fs->listings, &l->ino);
            listing_unref_locked(l);
            mutex_unlock(&fs->list_mu);
            return -ECANCELED;
        }
    }
    l->refs++;
    int r = listing_wait(fs, l, wait_ns, pages);
    listing_unref_locked(l);
    mutex_unlock(&fs->list_mu);
    return r;
}

int tree_list_worn(struct inode *dir)
{
    mutex_lock(&dir->mu);
    bool worn = dir->list_worn_ns && clock_mono_ns() - dir->list_worn_ns < WORN_NS;
    mutex_unlock(&dir->mu);
    return worn ? -ETIMEDOUT : 0;
}

void tree_list_note_worn(struct inode *dir)
{
    if (!patience_worn())
        return;
    mutex_lock(&dir->mu);
    dir->list_worn_ns = clock_mono_ns();
    mutex_unlock(&dir->mu);
}

int tree_refresh_within(struct fs *fs, struct inode *dir, bool force, uint64_t wait_ns)
{
    mutex_lock(&dir->mu);
    uint32_t flags = dir->rec.flags;
    int64_t now = clock_wall_ns(), age = now - dir->rec.listed_ns;
    uint64_t cost = dir->list_cost_ns;
    mutex_unlock(&dir->mu);
    uint64_t mounted_ns = (uint64_t)MAX(now - fs->started_ns, 0);
    bool known = flags & INODE_DIR_LISTED;
    if (flags & INODE_DIR_LOCAL)
        return 0;
    uint64_t ttl = fs->cfg->immutable ? mounted_ns : fs->cfg->metadata_ttl_ns;
    if (known && !force && age >= 0 && (uint64_t)age < ttl)
        return 0;
    bool slow = ttl && cost > ttl / SLOW_LISTING && age >= 0 && (uint64_t)age < 2 * (ttl + cost);
    if (known && !force && slow)
        wait_ns =
            0; /* whoever waited for each listing of a huge directory would do little else: what is known serves until the next one is there */
    else if (known && objstore_offline_since_ns(fs->store) != 0)
        wait_ns = 0; /* the listing that finds the store again runs behind */
    else if (known && !force)
        wait_ns = MIN(wait_ns, STALE_WAIT_NS);
    int r = known ? 0 : tree_list_worn(dir);
    if (r == 0)
        r = listing_join(fs, dir->ino, wait_ns, NULL);
    if (r < 0 && known && !force)
        return 0;
    return r;
}

/* What a program that waited is told. */
static int wait_result(struct inode *dir, int r)
{
    if (r < 0 && r != -EINTR)
        tree_list_note_worn(dir);
    if (r == -EINPROGRESS || r == -EAGAIN)
        return -ETIMEDOUT;
    if (r == -ENOENT || r == -ENODEV)
        return -EIO; /* never "not there" because the store did not answer */
    return r;
}

int tree_refresh(struct fs *fs, struct inode *dir, bool force)
{
    return wait_result(dir, tree_refresh_within(fs, dir, force, UINT64_MAX));
}

bool tree_is_listed(struct inode *dir)
{
    mutex_lock(&dir->fs->ns); /* the last names of a listing are there with the flag */
    mutex_lock(&dir->mu);
    bool listed = dir->gone || dir->rec.nlink == 0 || (dir->rec.flags & (INODE_DIR_LISTED | INODE_DIR_LOCAL));
    mutex_unlock(&dir->mu);
    mutex_unlock(&dir->fs->ns);
    return listed;
}

int tree_list_follow(struct fs *fs, struct inode *dir, uint64_t *pages)
{
    if (tree_is_listed(dir))
        return 0;
    int r = tree_list_worn(dir);
    return wait_result(dir, r < 0 ? r : listing_join(fs, dir->ino, UINT64_MAX, pages));
}

bool tree_list_shows(struct fs *fs, struct inode *dir, uint64_t id)
{
    mutex_lock(&fs->list_mu);
    const struct listing *l = g_hash_table_lookup(fs->listings, &dir->ino);
    bool shows = l && l->first_id && id >= l->first_id;
    mutex_unlock(&fs->list_mu);
    return shows;
}

double tree_ttl(struct fs *fs, struct inode *dir)
{
    mutex_lock(&dir->mu);
    bool local = dir->rec.flags & INODE_DIR_LOCAL;
    int64_t age = clock_wall_ns() - dir->rec.listed_ns;
    mutex_unlock(&dir->mu);
    int64_t ttl = (int64_t)fs->cfg->metadata_ttl_ns;
    int64_t left = local || age < 0 ? ttl : ttl - age;
    return (double)CLAMP(left, 0, ttl) / (double)NS_PER_S;
}

static int collect_dir(void *ctx, const struct meta_dentry *d)
{
    if (S_ISDIR(d->type))
        g_array_append_val((GArray *)ctx, d->ino);
    return 0;
}

int tree_refresh_all(struct fs *fs, struct inode *dir, bool force)
{
    g_autoptr(GArray) todo = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_array_append_val(todo, dir->ino);
    int r = 0;
    while (r == 0 && todo->len > 0) {
        uint64_t ino = g_array_index(todo, uint64_t, todo->len - 1);
        g_array_set_size(todo, todo->len - 1);
        INODE_REF in = NULL;
        r = inode_get(fs, ino, &in);
        if (r == -ENOENT) {
            r = 0;
            continue;
        }
        if (r == 0)
            r = tree_refresh(fs, in, force);
        if (r == 0)
            r = meta_dentry_each(fs->meta, ino, 0, collect_dir, todo);
    }
    return r;
}
