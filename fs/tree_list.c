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
#include "links.h"
#include "ns_undo.h"
#include "pin.h"
#include "publish.h"
#include "rules.h"
#include "sync.h"
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
    /* immutable once it is in fs.listings */
    struct tree_tally *tally;       /* of tree_list_now(), borrowed until done; NULL: nobody's */
    const struct tree_given *given; /* the same */
    /* owned by the worker that runs it */
    char *prefix;
    uint64_t stamp;
    int64_t began_wall_ns;
    struct nameset *seen; /* see struct tree_shown; only when the directory had names */
    GHashTable *waiting;  /* the same; owned, and owns the rows */
    bool had_names;
    GPtrArray *rows; /* struct list_row */
    bool marker, hidden;
    bool is_point; /* the directory that a store begins with: the mount's, or that of a link */
    struct etag marker_etag;
    bool changed; /* names appeared, changed or went */
    uint64_t n_dirs;
};

static void listing_unref_locked(struct listing *l) /* under list_mu */
{
    if (--l->refs > 0)
        return;
    nameset_free(l->seen);
    g_hash_table_unref(l->waiting);
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
int tree_head_row(struct fs *fs, const char *key, struct list_row *row)
{
    struct obj_info info = {0};
    int r = objstore_head(fs->store, key, &info);
    if (r == 0)
        r = read_s3fs_link(fs, key, &info);
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

static int head_row(struct listing *l, struct list_row *row)
{
    g_autofree char *key = g_strconcat(l->prefix, row->name, NULL);
    return tree_head_row(l->fs, key, row);
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
        ns_undo_note_locked(dir);
        dir->rec.flags |= INODE_DIR_POSIX;
        meta_inode_put(b, &dir->rec);
    }
    mutex_unlock(&dir->mu);
}

/* Where a directory stands in its way the row waits for the end of the listing. */
static int apply_rows_locked(struct listing *l, struct meta_batch *b, struct inode *dir) NO_TSA /* under ns */
{
    g_autofree char *now = tree_dir_prefix(l->fs, l->ino);
    if (!g_str_equal(now, l->prefix) || dir->gone)
        return -EAGAIN; /* renamed or removed meanwhile: what was listed is another place */
    const struct tree_place at = {l->ino, l->prefix, pin_inherited(l->fs, l->ino), l->stamp};
    int r = tree_match_rows(l->fs, l->ino, l->rows);
    for (unsigned i = 0; r == 0 && i < l->rows->len; i++) {
        struct list_row *row = l->rows->pdata[i];
        if (row->has_info && row->info.posix.fields)
            mark_dir_posix(l, b, dir);
        r = row->vanished ? 0 : tree_apply_row_at(l->fs, b, &at, row);
        if (r > 0) {
            g_hash_table_replace(l->waiting, g_strdup(row->name), row);
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
    if (l->tally)
        atomic_fetch_add(&l->tally->names, l->rows->len);
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
    if (l->had_names && !nameset_has(l->seen, dir->name, strlen(dir->name), false))
        return;
    for (unsigned i = l->rows->len; i-- > 0;) {
        struct list_row *row = l->rows->pdata[i];
        if (row->is_dir || !g_str_equal(row->name, dir->name))
            continue;
        dir->shadows = true;
        g_hash_table_replace(l->waiting, g_strdup(row->name), g_ptr_array_steal_index(l->rows, i));
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

/* Does the link's --include or --exclude leave it out? */
static bool is_filtered(const struct listing *l, const struct obj_entry *e, size_t len)
{
    g_autofree char *name = g_strndup(e->name, len);
    g_autofree char *path = g_strconcat(l->prefix, name, NULL);
    return !links_shows(l->fs, path, e->is_prefix);
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
        l->marker_etag = e->etag;
        l->hidden |= e->size > 0;
        if (e->size > 0)
            metric_inc(M_hidden_keys);
        return 0;
    }
    if (e->is_prefix && len > 0 && e->name[len - 1] == '/')
        len--;
    if (l->is_point && len == strlen(PROBE_DIR) && strncmp(e->name, PROBE_DIR, len) == 0)
        return 0;
    if (is_filtered(l, e, len))
        return 0;
    if (e->odd || !tree_name_ok(e->name, len)) {
        l->hidden = true;
        metric_inc(M_hidden_keys);
        return 0;
    }
    struct list_row *row = g_new0(struct list_row, 1);
    row->name = g_strndup(e->name, len);
    row->is_dir = e->is_prefix;
    l->n_dirs += e->is_prefix;
    row->archived = e->archived;
    row->size = e->size;
    row->mtime_ns = e->mtime_ns;
    row->settled_ns = e->mtime_ns < l->began_wall_ns - SETTLED_NS ? e->mtime_ns : 0;
    row->etag = e->etag;
    if (row->is_dir)
        shadow(l, row);
    if (l->had_names)
        nameset_add(l->seen, row->name, len, row->is_dir);
    g_ptr_array_add(l->rows, row);
    return l->rows->len >= ROWS_PER_BATCH ? flush_page(l) : 0;
}

static int note_marker(struct listing *l, struct meta_batch *b);

/* The time is not worth a write of its own where somebody else keeps it for many directories (sync.h). */
static void note_listed(struct listing *l, struct meta_batch *b, struct inode *dir) REQUIRES(dir->mu)
{
    uint32_t flags = dir->rec.flags | INODE_DIR_LISTED;
    flags = l->hidden ? flags | INODE_DIR_HIDDEN : flags & ~(uint32_t)INODE_DIR_HIDDEN;
    dir->list_cost_ns = clock_mono_ns() - l->began_ns;
    bool doubted = l->began_wall_ns < atomic_load(&l->fs->doubt_ns);
    dir->seen_ns = doubted ? l->began_wall_ns : clock_wall_ns();
    if (l->tally && !l->changed && flags == dir->rec.flags && dir->rec.listed_ns)
        return;
    ns_undo_note_locked(dir);
    dir->rec.flags = flags;
    dir->rec.listed_ns = dir->seen_ns;
    meta_inode_put(b, &dir->rec);
    if (l->tally)
        l->tally->wrote = true;
}

/* A page of the names that were not shown; 1: there are more, above *after. Then what is known of the directory. */
static int finish_locked(struct listing *l, struct meta_batch *b, struct inode *dir,
                         uint64_t *after) NO_TSA /* under ns */
{
    g_autofree char *now = tree_dir_prefix(l->fs, l->ino);
    if (!g_str_equal(now, l->prefix) || dir->gone)
        return -EAGAIN;
    const struct tree_shown shown = {l->seen, l->waiting, l->stamp, l->first_id};
    uint64_t changes = l->fs->ns_changes;
    int r = tree_drop_unseen(l->fs, b, l->ino, &shown, after);
    l->changed |= l->fs->ns_changes != changes;
    if (r > 0)
        return r;
    if (r == 0 && !l->is_point)
        r = note_marker(l, b);
    if (r < 0)
        return r;
    mutex_lock(&dir->mu);
    note_listed(l, b, dir);
    mutex_unlock(&dir->mu);
    return 0;
}

/* The directory's own name knows whether it has a marker object, and which: whoever takes the name's place has to replace or delete it. */
static int note_marker(struct listing *l, struct meta_batch *b)
{
    struct meta_dentry d = {0};
    int r = meta_link_first(l->fs->meta, l->ino, &d);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    uint32_t want = l->marker ? d.flags & ~DENTRY_IMPLICIT : d.flags | DENTRY_IMPLICIT;
    bool news = want != d.flags || (l->marker && !etag_is_set(&d.uetag));
    if (news && d.op_seq == 0 && d.stamp <= l->stamp && !d.ukey) {
        d.flags = l->marker ? want | DENTRY_UPSTREAM : want & ~DENTRY_UPSTREAM;
        d.uetag = l->marker ? l->marker_etag : (struct etag){0};
        meta_dentry_put(b, &d);
    }
    meta_dentry_clear(&d);
    return 0;
}

char *tree_given_begin(struct fs *fs, uint64_t parent, struct tree_given *ret)
{
    atomic_fetch_add(&fs->n_given, 1);
    ret->began_wall_ns = clock_wall_ns();
    mutex_lock(&fs->ns);
    char *prefix = tree_dir_prefix(fs, parent);
    ret->stamp = meta_last_seq(fs->meta);
    ret->first_id = meta_next_ino(fs->meta);
    mutex_unlock(&fs->ns);
    return prefix;
}

void tree_given_end(struct fs *fs)
{
    atomic_fetch_sub(&fs->n_given, 1);
}

static int listing_begin(struct listing *l)
{
    struct fs *fs = l->fs;
    const struct tree_given *given = l->given;
    l->began_ns = clock_mono_ns();
    l->began_wall_ns = given ? given->began_wall_ns : clock_wall_ns();
    mutex_lock(&fs->ns);
    g_free(l->prefix);
    l->prefix = tree_dir_prefix(fs, l->ino);
    if (given && (!g_str_equal(l->prefix, given->prefix) || links_is_point(fs, l->ino)))
        given = l->given = NULL; /* moved or made a link since: it is listed by itself */
    l->stamp = given ? given->stamp : meta_last_seq(fs->meta);
    uint64_t first_id = given ? given->first_id : meta_next_ino(fs->meta);
    int r = meta_dir_has_entries(fs->meta, l->ino);
    mutex_unlock(&fs->ns);
    l->had_names = r != 0;
    l->is_point = l->ino == META_ROOT_INO || links_is_point(fs, l->ino);
    mutex_lock(&fs->list_mu);
    l->first_id = first_id;
    mutex_unlock(&fs->list_mu);
    return r < 0 ? r : 0;
}

static int finish(struct listing *l)
{
    struct fs *fs = l->fs;
    INODE_REF dir = NULL;
    int r = inode_get(fs, l->ino, &dir);
    if (r < 0)
        return r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    uint64_t after = 0;
    do {
        mutex_lock(&fs->ns);
        r = finish_locked(l, b, dir, &after);
        int committed = r >= 0 ? meta_commit(b, false) : r;
        publish_apply(fs, committed == 0);
        mutex_unlock(&fs->ns);
        r = committed < 0 ? committed : r;
    } while (r > 0);
    meta_batch_free(b);
    return r;
}

static int take_given(struct listing *l)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < l->given->n_rows; i++)
        r = on_entry(l, &l->given->rows[i]);
    return r;
}

static int listing_do(struct listing *l)
{
    struct fs *fs = l->fs;
    int r = listing_begin(l);
    struct obj_list_req req = {.prefix = l->prefix, .delimiter = true};
    if (r == 0 && l->given)
        r = take_given(l);
    else if (r == 0)
        r = objstore_list(fs->store, &req, on_entry, l, NULL);
    if (r == 0)
        r = flush_rows(l);
    if (r < 0)
        return r;
    r = finish(l);
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
        l->given = NULL;
        l->marker = l->hidden = false;
        nameset_clear(l->seen);
        g_hash_table_remove_all(l->waiting);
        g_ptr_array_set_size(l->rows, 0);
        r = listing_do(l);
    }
    if (r < 0)
        log_debug("list", "listing failed prefix='%s' r=%s", l->prefix, err_name(r));
    else
        sync_forgive(fs, l->ino);
    if (l->changed)
        pin_rules_apply(fs, *l->prefix ? l->prefix : "/");
    if (l->tally) {
        l->tally->dirs = l->n_dirs;
        l->tally->changed = l->changed;
    }
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
    l->seen = nameset_new();
    l->waiting = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)list_row_free);
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

int tree_list_now(struct fs *fs, struct inode *dir, int64_t since_ns, const struct tree_given *given,
                  struct tree_tally *tally)
{
    for (;;) {
        mutex_lock(&fs->list_mu);
        struct listing *l = g_hash_table_lookup(fs->listings, &dir->ino);
        bool mine = !l;
        if (mine) {
            l = listing_new(fs, dir->ino);
            l->tally = tally;
            l->given = given;
            g_hash_table_insert(fs->listings, &l->ino, l);
        }
        l->refs++;
        if (mine) {
            mutex_unlock(&fs->list_mu);
            listing_run(l);
            mutex_lock(&fs->list_mu);
        }
        int r = listing_wait(fs, l, UINT64_MAX, NULL);
        bool late = !mine && r == 0 && l->began_wall_ns < since_ns;
        if (!mine && r == 0) {
            tally->dirs = l->n_dirs;
            tally->changed |= l->changed;
            tally->wrote = true; /* with its time, unless it is another one of this kind: that does no harm */
        }
        listing_unref_locked(l);
        mutex_unlock(&fs->list_mu);
        if (!late)
            return r;
    }
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

/* Of listings that are not believed any more: as old as one can be. */
static int64_t listing_age(struct fs *fs, int64_t listed_ns, int64_t now)
{
    return listed_ns < atomic_load(&fs->doubt_ns) ? INT64_MAX : now - listed_ns;
}

/* How long what is listed of a directory counts: as a rule says, else its link, else the mount. (A rule that says what the mount says anyway gives way to the link.) */
static int64_t listing_ttl(struct fs *fs, struct inode *dir)
{
    uint64_t by_rule = rules_of(dir)->metadata_ttl_ns;
    struct link_policy policy;
    links_policy_of(fs, dir, &policy);
    return (int64_t)(by_rule != fs->rules->base.metadata_ttl_ns ? by_rule : policy.metadata_ttl_ns);
}

bool tree_is_offline(struct fs *fs, struct inode *dir)
{
    struct objstore_at at;
    mutex_lock(&fs->ns);
    g_autofree char *prefix = tree_dir_prefix(fs, dir->ino);
    mutex_unlock(&fs->ns);
    objstore_at(fs->store, prefix, &at);
    return at.offline_since_ns != 0;
}

int tree_refresh_within(struct fs *fs, struct inode *dir, bool force, uint64_t wait_ns)
{
    int64_t now = clock_wall_ns(), age = listing_age(fs, sync_listed_ns(fs, dir), now);
    mutex_lock(&dir->mu);
    uint32_t flags = dir->rec.flags;
    uint64_t cost = dir->list_cost_ns;
    mutex_unlock(&dir->mu);
    uint64_t mounted_ns = (uint64_t)MAX(now - fs->started_ns, 0);
    bool known = flags & INODE_DIR_LISTED;
    if (flags & INODE_DIR_LOCAL)
        return 0;
    uint64_t ttl = fs->cfg->immutable ? mounted_ns : (uint64_t)listing_ttl(fs, dir);
    if (known && !force && age >= 0 && (uint64_t)age < ttl)
        return 0;
    bool slow = ttl && cost > ttl / SLOW_LISTING && age >= 0 && (uint64_t)age < 2 * (ttl + cost);
    if (known && !force && slow)
        wait_ns =
            0; /* whoever waited for each listing of a huge directory would do little else: what is known serves until the next one is there */
    else if (known && tree_is_offline(fs, dir))
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

bool tree_list_running(struct fs *fs, uint64_t dir)
{
    mutex_lock(&fs->list_mu);
    bool running = g_hash_table_contains(fs->listings, &dir) || atomic_load(&fs->n_given) > 0;
    mutex_unlock(&fs->list_mu);
    return running;
}

double tree_ttl(struct fs *fs, struct inode *dir)
{
    int64_t age = listing_age(fs, sync_listed_ns(fs, dir), clock_wall_ns());
    mutex_lock(&dir->mu);
    bool local = dir->rec.flags & INODE_DIR_LOCAL;
    mutex_unlock(&dir->mu);
    int64_t ttl = listing_ttl(fs, dir);
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
