/*
 * Listing a directory from the store: one listing however many callers wait, run by the list queue, applied page by page. A large directory comes by several threads of the store's, its
 * pages in any order: none of them may take for granted that a name that comes later is behind it.
 *
 * How long what it showed counts, and how long callers wait for the next one: tree_fresh.c. Objects whose
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
#include "shadow.h"
#include "sync.h"
#include "tree_drop.h"
#include "tree_near.h"

#define ROWS_PER_BATCH 500
#define HIDDEN_NAMED   20u /* keys of a directory */
#define HEADS_AT_ONCE  32
#define LISTED_BEHIND  4 /* at a time: the other directories come along, or when one of these is done */
#define SETTLED_NS     (10 * (int64_t)NS_PER_S) /* stores list whole seconds, and clocks differ */

struct listing {
    struct fs *fs;
    uint64_t began_ns;
    uint64_t ino;
    /* guarded by list_mu */
    unsigned refs;
    bool done;
    int result;
    uint64_t progress; /* rows and HEADs that came */
    uint64_t heard_ns; /* when the last of them did */
    uint64_t point;    /* the directory its store begins with; 0: not begun */
    uint64_t pages;    /* times that rows became names */
    uint64_t first_id; /* ids of names from this one on were given since it began; 0: not begun */
    int64_t as_of_ns;  /* wall clock: when that was */
    unsigned heads_left;
    int head_err;
    /* immutable once it is in fs.listings */
    struct tree_tally *tally; /* of tree_list_now(), borrowed until done; NULL: nobody's */
    /* owned by the worker that runs it */
    const struct tree_given *given; /* borrowed until done; NULL: the store is asked */
    char *prefix;
    uint64_t stamp;
    int64_t began_wall_ns;
    struct nameset *seen; /* see struct tree_shown; only when the directory had names, or for shadow.h */
    GHashTable *waiting;  /* the same; owned, and owns the rows */
    bool had_names;
    GPtrArray *rows; /* struct list_row */
    bool marker, hidden;
    bool hidden_news;       /* it had none at the listing before */
    GPtrArray *hidden_keys; /* some of those, owned strings */
    bool is_point;          /* the directory that a store begins with: the mount's, or that of a link */
    struct etag marker_etag;
    bool changed; /* names appeared, changed or went */
    bool deep;    /* there are keys further down, whether or not they are shown */
    uint64_t n_dirs, n_keys;
};

static void listing_unref_locked(struct listing *l) /* under list_mu */
{
    if (--l->refs > 0)
        return;
    nameset_free(l->seen);
    g_hash_table_unref(l->waiting);
    g_ptr_array_unref(l->rows);
    g_ptr_array_unref(l->hidden_keys);
    g_free(l->prefix);
    g_free(l);
}

/* ---- HEADs ---- */

struct head_job {
    struct listing *l;
    struct list_row *row;
};

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
    l->heard_ns = r == 0 ? clock_mono_ns() : l->heard_ns;
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

/* -ENOENT: the directory was removed, though somebody may be in it still; what stands at its path is another's. -EAGAIN: it was renamed, what was listed is another place. */
static int check_place(const struct listing *l, const struct inode *dir) NO_TSA /* under ns */
{
    if (dir->gone || dir->rec.nlink == 0)
        return -ENOENT;
    g_autofree char *now = tree_dir_prefix(l->fs, l->ino);
    return g_str_equal(now, l->prefix) ? 0 : -EAGAIN;
}

/* A directory may come behind the object of its name, which is a file by then. */
static void keep_replaced(struct listing *l, const struct list_row *row) NO_TSA /* under ns */
{
    struct list_row *old = shadow_replaced(l->fs, l->ino, row, l->seen);
    if (old)
        g_hash_table_replace(l->waiting, g_strdup(old->name), old);
}

/* Where a directory stands in its way the row waits for the end of the listing. */
static int apply_rows_locked(struct listing *l, struct meta_batch *b, struct inode *dir) NO_TSA /* under ns */
{
    int r = check_place(l, dir);
    if (r < 0)
        return r;
    const struct tree_place at = {l->ino, l->prefix, pin_inherited(l->fs, l->ino), l->stamp};
    r = tree_match_rows(l->fs, l->ino, l->rows);
    for (unsigned i = 0; r == 0 && i < l->rows->len; i++) {
        struct list_row *row = l->rows->pdata[i];
        if (row->has_info && row->info.posix.fields)
            mark_dir_posix(l, b, dir);
        if (l->fs->cfg->shadow)
            keep_replaced(l, row);
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
    l->heard_ns = clock_mono_ns();
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

static void note_hidden(struct listing *l, const struct obj_entry *e)
{
    l->hidden = true;
    metric_inc(M_hidden_keys);
    if (l->hidden_keys->len >= HIDDEN_NAMED)
        return;
    g_autofree char *path = g_strdup_printf("%s%.*s", l->prefix, (int)e->name_len, e->name);
    g_ptr_array_add(l->hidden_keys, tree_store_key(l->fs, path));
}

static int on_entry(void *ctx, const struct obj_entry *e)
{
    struct listing *l = ctx;
    size_t len = e->name_len;
    if (atomic_load(&l->fs->stopping))
        return -ECANCELED;
    l->n_keys++;
    l->deep |= e->is_prefix;
    /* the directory's own marker; with bytes in it, it is somebody's object that cannot be shown */
    if (len == 0 && !e->is_prefix) {
        l->marker = e->size == 0;
        l->marker_etag = e->etag;
        if (e->size > 0)
            note_hidden(l, e);
        return 0;
    }
    if (e->is_prefix && len > 0 && e->name[len - 1] == '/')
        len--;
    if (l->is_point && len == strlen(PROBE_DIR) && strncmp(e->name, PROBE_DIR, len) == 0)
        return 0;
    if (is_filtered(l, e, len))
        return 0;
    if (e->odd || !tree_name_ok(e->name, len)) {
        note_hidden(l, e);
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
    if (l->had_names || l->fs->cfg->shadow)
        nameset_add(l->seen, row->name, len, row->is_dir);
    g_ptr_array_add(l->rows, row);
    return l->rows->len >= ROWS_PER_BATCH ? flush_page(l) : 0;
}

/* Rows of different pages may come in any order: what shadow() looks for is not in one batch with others. */
static int on_page(void *ctx)
{
    struct listing *l = ctx;
    return l->rows->len > 0 ? flush_page(l) : 0;
}

static int note_marker(struct listing *l, struct meta_batch *b);

/* Kept for `sluice info`. */
static void keep_hidden(struct listing *l, struct inode *dir) REQUIRES(dir->mu)
{
    l->hidden_news = l->hidden && !(dir->rec.flags & INODE_DIR_HIDDEN);
    g_strfreev(g_steal_pointer(&dir->list.hidden));
    if (!l->hidden)
        return;
    g_ptr_array_add(l->hidden_keys, NULL);
    dir->list.hidden = g_strdupv((char **)l->hidden_keys->pdata);
    g_ptr_array_set_size(l->hidden_keys, (int)l->hidden_keys->len - 1);
}

/* The time is not worth a write of its own where somebody else keeps it for many directories (sync.h). */
static void note_listed(struct listing *l, struct meta_batch *b, struct inode *dir) REQUIRES(dir->mu)
{
    uint32_t flags = dir->rec.flags | INODE_DIR_LISTED;
    keep_hidden(l, dir);
    flags = l->hidden ? flags | INODE_DIR_HIDDEN : flags & ~(uint32_t)INODE_DIR_HIDDEN;
    dir->list.cost_ns = clock_mono_ns() - l->began_ns;
    dir->list.keys = (unsigned)MIN(l->n_keys, UINT_MAX);
    dir->list.flat = !l->deep;
    dir->list.asked = false;
    bool doubted = l->began_wall_ns < atomic_load(&l->fs->doubt_ns);
    bool early = l->given && !l->tally; /* its neighbours were taken out of the same page first, which may take long */
    dir->seen_ns = doubted || early ? l->began_wall_ns : clock_wall_ns();
    if (l->tally && !l->changed && flags == dir->rec.flags && dir->rec.listed_ns)
        return;
    ns_undo_note_locked(dir);
    dir->rec.flags = flags;
    dir->rec.listed_ns = dir->seen_ns;
    meta_inode_put(b, &dir->rec);
    if (l->tally)
        l->tally->wrote = true;
}

/* A batch of the names that were not shown; 1: there are more. Then what is known of the directory. */
static int finish_locked(struct listing *l, struct meta_batch *b, struct inode *dir,
                         struct tree_drop *drop) NO_TSA /* under ns */
{
    int r = check_place(l, dir);
    if (r < 0)
        return r;
    const struct tree_shown shown = {l->seen, l->waiting};
    uint64_t changes = l->fs->ns_changes;
    r = tree_drop_unseen(l->fs, b, drop, l->ino, &shown);
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

char *tree_given_begin(struct fs *fs, uint64_t parent, bool claimed, struct tree_given *ret)
{
    atomic_fetch_add(&fs->n_given, !claimed);
    ret->began_wall_ns = clock_wall_ns();
    mutex_lock(&fs->ns);
    char *prefix = tree_dir_prefix(fs, parent);
    ret->stamp = meta_last_seq(fs->meta);
    ret->first_id = meta_next_ino(fs->meta);
    mutex_unlock(&fs->ns);
    return prefix;
}

void tree_given_end(struct fs *fs, bool claimed)
{
    atomic_fetch_sub(&fs->n_given, !claimed);
}

static int listing_begin(struct listing *l)
{
    struct fs *fs = l->fs;
    const struct tree_given *given = l->given;
    l->began_ns = clock_mono_ns();
    l->began_wall_ns = given ? given->began_wall_ns : clock_wall_ns();
    if (given && !l->tally) /* was asked for on account of it, or of a neighbour: the next one would take as long */
        l->began_ns -= (uint64_t)CLAMP(clock_wall_ns() - given->began_wall_ns, 0, (int64_t)l->began_ns);
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
    uint64_t point = links_point_of(fs, l->ino);
    mutex_lock(&fs->list_mu);
    l->point = point;
    l->first_id = first_id;
    l->as_of_ns = l->began_wall_ns;
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
    struct tree_drop drop;
    tree_drop_init(&drop, l->stamp, l->first_id);
    do {
        mutex_lock(&fs->ns);
        r = finish_locked(l, b, dir, &drop);
        int committed = r >= 0 ? meta_commit(b, false) : r;
        publish_apply(fs, committed == 0);
        mutex_unlock(&fs->ns);
        r = committed < 0 ? committed : r > 0 && atomic_load(&fs->stopping) ? -ECANCELED : r;
        if (r > 0)
            tree_drop_pause();
    } while (r > 0);
    tree_drop_fini(&drop);
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
    const struct obj_wide_list req = {.prefix = l->prefix, .row = on_entry, .page = on_page, .ctx = l};
    if (r == 0 && l->given)
        r = take_given(l);
    else if (r == 0)
        r = objstore_list_wide(fs->store, &req);
    if (r == 0)
        r = flush_rows(l);
    const struct shadow_listing shadows = {l->ino, l->prefix, l->stamp, l->waiting, l->seen};
    if (r == 0 && fs->cfg->shadow)
        r = shadow_show(fs, &shadows, &l->changed);
    if (r < 0)
        return r;
    r = finish(l);
    CRASH_POINT(list_finished);
    return r;
}

static void listing_end(struct listing *l, int r)
{
    struct fs *fs = l->fs;
    uint64_t point = r == 0 ? links_point_of(fs, l->ino) : 0;
    mutex_lock(&fs->list_mu);
    if (r == 0)
        g_hash_table_insert(fs->heard, GSIZE_TO_POINTER(point), GSIZE_TO_POINTER(clock_mono_ns()));
    l->done = true;
    l->result = r;
    g_hash_table_remove(fs->listings, &l->ino);
    fs->list_load.n_ended++;
    cond_broadcast(&fs->list_done);
    listing_unref_locked(l);
    mutex_unlock(&fs->list_mu);
}

static void listing_run(void *arg)
{
    struct listing *l = arg;
    struct fs *fs = l->fs;
    metric_inc(M_list_refreshes);
    int r = listing_do(l);
    for (unsigned again = 0; r == -EAGAIN && again < 3; again++) { /* the directory moved while it was listed */
        l->given = NULL;
        l->marker = l->hidden = l->deep = false;
        l->n_dirs = l->n_keys = 0;
        g_ptr_array_set_size(l->hidden_keys, 0);
        nameset_clear(l->seen);
        g_hash_table_remove_all(l->waiting);
        g_ptr_array_set_size(l->rows, 0);
        r = listing_do(l);
    }
    if (r < 0)
        log_debug("list", "listing failed prefix='%s' r=%s", l->prefix, err_name(r));
    else
        sync_forgive(fs, l->ino);
    if (r == 0 && l->hidden_news)
        log_notice("list",
                   "a directory holds keys that cannot be shown as names, `sluice info` tells them dir='%s' key='%s'",
                   l->prefix, (const char *)l->hidden_keys->pdata[0]);
    if (l->changed)
        pin_rules_apply(fs, *l->prefix ? l->prefix : "/");
    if (l->tally) {
        l->tally->dirs = l->n_dirs;
        l->tally->changed = l->changed;
    }
    listing_end(l, r);
}

/* As the list queue runs it, with a reference of its own. */
static void listing_first(void *arg)
{
    struct listing *l = arg;
    struct fs *fs = l->fs;
    INODE_REF dir = NULL;
    int r = inode_get(fs, l->ino, &dir);
    uint64_t ttl_ns = r == 0 ? tree_late_ttl(fs, dir) : 0;
    mutex_lock(&fs->list_mu);
    uint64_t began_ns = clock_mono_ns();
    fs->list_load.n_running++;
    mutex_unlock(&fs->list_mu);
    if (r < 0 || !tree_near_list(fs, dir, l))
        listing_run(l);
    mutex_lock(&fs->list_mu);
    uint64_t now_ns = clock_mono_ns();
    if (l->result == 0) /* failures are another matter, and are begun again at once */
        list_load_add(&fs->list_load, now_ns, (now_ns - began_ns) / fs->list_load.n_running, ttl_ns);
    fs->list_load.n_running--;
    fs->list_load.n_jobs--;
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
    l->hidden_keys = g_ptr_array_new_with_free_func(g_free);
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

/* NULL: no more are begun. */
static struct listing *begin_behind_locked(struct fs *fs, uint64_t ino) /* under list_mu */
{
    struct listing *l = listing_new(fs, ino);
    g_hash_table_insert(fs->listings, &l->ino, l);
    l->refs++; /* listing_first()'s */
    fs->list_load.n_jobs++;
    if (workq_push(fs->list_q, true, listing_first, l))
        return l;
    fs->list_load.n_jobs--;
    g_hash_table_remove(fs->listings, &l->ino);
    listing_unref_locked(l);
    listing_unref_locked(l);
    return NULL;
}

uint64_t tree_list_ended(struct fs *fs)
{
    mutex_lock(&fs->list_mu);
    uint64_t n = fs->list_load.n_ended;
    mutex_unlock(&fs->list_mu);
    return n;
}

int tree_list_join(struct fs *fs, uint64_t ino, const uint64_t *ended, uint64_t wait_ns, uint64_t *pages)
{
    mutex_lock(&fs->list_mu);
    struct listing *l = g_hash_table_lookup(fs->listings, &ino);
    bool stale = !l && ended && *ended != fs->list_load.n_ended;
    if (!l && !stale)
        l = begin_behind_locked(fs, ino);
    int r = stale ? -EALREADY : -ECANCELED;
    if (l) {
        l->refs++;
        r = listing_wait(fs, l, wait_ns, pages);
        listing_unref_locked(l);
    }
    mutex_unlock(&fs->list_mu);
    return r;
}

void tree_list_behind(struct fs *fs, uint64_t ino, uint64_t ended)
{
    mutex_lock(&fs->list_mu);
    if (fs->list_load.n_jobs < LISTED_BEHIND && fs->list_load.n_ended == ended &&
        !g_hash_table_contains(fs->listings, &ino))
        (void)begin_behind_locked(fs, ino);
    mutex_unlock(&fs->list_mu);
}

bool tree_list_heard_locked(struct fs *fs, uint64_t point, uint64_t since_ns)
{
    GHashTableIter it;
    struct listing *l;
    bool heard = GPOINTER_TO_SIZE(g_hash_table_lookup(fs->heard, GSIZE_TO_POINTER(point))) >= since_ns;
    g_hash_table_iter_init(&it, fs->listings);
    while (!heard && g_hash_table_iter_next(&it, NULL, (void **)&l))
        heard = l->point == point && l->heard_ns >= since_ns;
    return heard;
}

bool tree_list_asks_locked(struct fs *fs, uint64_t ino)
{
    const struct listing *l = g_hash_table_lookup(fs->listings, &ino);
    return l && l->point;
}

void tree_list_seek(struct fs *fs, uint64_t ino, uint64_t point)
{
    GHashTableIter it;
    struct listing *l;
    unsigned n = 0;
    mutex_lock(&fs->list_mu);
    g_hash_table_iter_init(&it, fs->listings);
    while (g_hash_table_iter_next(&it, NULL, (void **)&l))
        n += l->point == point;
    l = n < LISTED_BEHIND && !g_hash_table_contains(fs->listings, &ino) ? begin_behind_locked(fs, ino) : NULL;
    if (l)
        l->point = point;
    mutex_unlock(&fs->list_mu);
}

struct listing *tree_list_claim(struct fs *fs, uint64_t ino)
{
    struct listing *l = NULL;
    mutex_lock(&fs->list_mu);
    if (!g_hash_table_contains(fs->listings, &ino)) {
        l = listing_new(fs, ino);
        g_hash_table_insert(fs->listings, &l->ino, l);
    }
    mutex_unlock(&fs->list_mu);
    return l;
}

void tree_list_run(struct listing *l, const struct tree_given *given)
{
    l->given = given;
    listing_run(l);
}

void tree_list_leave(struct listing *l)
{
    struct fs *fs = l->fs;
    mutex_lock(&fs->list_mu);
    bool awaited = l->refs > 1;
    if (!awaited) {
        g_hash_table_remove(fs->listings, &l->ino);
        listing_unref_locked(l);
    }
    mutex_unlock(&fs->list_mu);
    if (awaited && !workq_push(fs->list_q, true, listing_run, l))
        listing_end(l, -ECANCELED);
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

uint64_t tree_list_shows_from(struct fs *fs, struct inode *dir, int64_t *ret_as_of_ns)
{
    mutex_lock(&fs->list_mu);
    const struct listing *l = g_hash_table_lookup(fs->listings, &dir->ino);
    uint64_t from = l && l->first_id ? l->first_id : UINT64_MAX;
    if (l && ret_as_of_ns)
        *ret_as_of_ns = l->as_of_ns;
    mutex_unlock(&fs->list_mu);
    return from;
}

bool tree_list_running(struct fs *fs, uint64_t dir)
{
    mutex_lock(&fs->list_mu);
    bool running = g_hash_table_contains(fs->listings, &dir) || atomic_load(&fs->n_given) > 0;
    mutex_unlock(&fs->list_mu);
    return running;
}
