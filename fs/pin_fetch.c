/*
 * What pins, their rules and --on-create want to have here, see pin_fetch().
 *
 * Rules are looked at with every file that is closed or published, and each look asks for all that is pinned and may be absent. While the store is slow that is asked for again and
 * again: it waits as a set of paths, not as warm-ups with their threads.
 *
 * What failed waits longer with each time (j->failed), for one thread that fetches it again once it is due and ends when nothing waits any more.
 */
#include "jobs.h"
#include "pin.h"
#include "rules.h"
#include "warm.h"

#define FETCHES_MAX 4u
#define WAITING_MAX 65536u         /* paths; also of one warm-up */
#define LISTED_MAX  16             /* absent names of one directory that are fetched by name */
#define PAUSE_NS    (2 * NS_PER_S) /* before the second try, then twice as long each time */

struct pin_retry {
    unsigned tries;  /* that failed */
    uint64_t due_ns; /* monotonic; 0: it is being fetched */
};

struct batch {
    struct fs *fs;
    GPtrArray *paths; /* owned; NULL-terminated */
};

static void batch_free(struct batch *b)
{
    g_ptr_array_unref(b->paths);
    g_free(b);
}

/* Its paths may be fetched by others. */
static void leave(struct batch *b)
{
    struct jobs *j = b->fs->jobs;
    mutex_lock(&j->mu);
    for (unsigned i = 0; b->paths->pdata[i]; i++)
        (void)g_hash_table_remove(j->fetching, b->paths->pdata[i]); /* it is there */
    j->n_fetches--;
    mutex_unlock(&j->mu);
}

/* ---- what is absent ---- */

bool pin_is_absent(struct fs *fs, const struct meta_inode *rec)
{
    struct meta_cached c;
    if (S_ISDIR(rec->mode))
        return !(rec->flags & (INODE_DIR_LISTED | INODE_DIR_LOCAL));
    return S_ISREG(rec->mode) && rec->content == CONTENT_CLEAN &&
           !(rec->vid && meta_cached_get(fs->meta, rec->vid, &c) == 0 && (c.flags & CACHED_COMPLETE));
}

struct listed {
    struct fs *fs;
    const char *dir;
    GPtrArray *absent; /* borrowed; paths, owned */
    guint n_before;
};

static int take_absent(void *ctx, const struct meta_dentry *d)
{
    struct listed *at = ctx;
    struct meta_inode rec;
    if (meta_inode_get(at->fs->meta, d->ino, &rec) < 0)
        return 0;
    if ((rec.flags & INODE_PINNED) && pin_is_absent(at->fs, &rec))
        g_ptr_array_add(at->absent, *at->dir ? g_strconcat(at->dir, "/", d->name, NULL) : g_strdup(d->name));
    meta_inode_clear(&rec);
    return at->absent->len - at->n_before > LISTED_MAX;
}

void pin_absent_in(struct fs *fs, const char *dir, GPtrArray *ret_paths)
{
    uint64_t ino;
    struct meta_inode rec;
    if (pin_resolve_known(fs, dir, NULL, &ino) < 0 || meta_inode_get(fs->meta, ino, &rec) < 0)
        return;
    bool pinned = rec.flags & INODE_PINNED;
    meta_inode_clear(&rec);
    struct listed at = {fs, dir, ret_paths, ret_paths->len};
    int r = pinned ? meta_dentry_each(fs->meta, ino, 0, take_absent, &at) : 0;
    if (r < 0)
        log_debug("pin", "not fetched dir='%s'", dir);
    if (r <= 0)
        return;
    g_ptr_array_set_size(ret_paths, (gint)at.n_before);
    g_ptr_array_add(ret_paths, g_strdup(dir));
}

/* ---- what failed ---- */

/* Paths whose pause is over; NULL: none waits any more. */
static GPtrArray *wait_due(struct jobs *j)
{
    g_autoptr(GPtrArray) due = g_ptr_array_new_with_free_func(g_free);
    uint64_t next_ns = 1;
    mutex_lock(&j->mu);
    while (due->len == 0 && next_ns && !j->closing) {
        GHashTableIter it;
        void *path, *value;
        uint64_t now = clock_mono_ns();
        next_ns = 0;
        g_hash_table_iter_init(&it, j->failed);
        while (g_hash_table_iter_next(&it, &path, &value)) {
            struct pin_retry *again = value;
            if (again->due_ns && again->due_ns <= now) {
                again->due_ns = 0;
                g_ptr_array_add(due, g_strdup(path));
            } else if (again->due_ns && (!next_ns || again->due_ns < next_ns)) {
                next_ns = again->due_ns;
            }
        }
        if (due->len == 0 && next_ns)
            (void)cond_wait_until(&j->idle, &j->mu, next_ns);
    }
    bool none = due->len == 0 || j->closing;
    if (none)
        j->waits_to_retry = false;
    mutex_unlock(&j->mu);
    if (none)
        return NULL;
    g_ptr_array_add(due, NULL);
    return g_steal_pointer(&due);
}

static void retry_ended(struct jobs *j)
{
    mutex_lock(&j->mu);
    j->live--;
    cond_broadcast(&j->idle);
    mutex_unlock(&j->mu);
}

/* Still: it may have been unpinned since it failed, to make room perhaps. */
static bool is_wanted(struct fs *fs, const char *path)
{
    struct meta_inode rec;
    uint64_t ino;
    g_autofree char *dir = g_strconcat(path, "/", NULL);
    if (rules_warms(fs->rules, path) || rules_warms_below(fs->rules, dir))
        return true;
    if (pin_resolve_known(fs, path, NULL, &ino) < 0 || meta_inode_get(fs->meta, ino, &rec) < 0)
        return false;
    bool pinned = rec.flags & INODE_PINNED;
    meta_inode_clear(&rec);
    return pinned;
}

/* due is NULL-terminated. */
static void drop_unwanted(struct fs *fs, GPtrArray *due)
{
    for (unsigned i = 0; due->pdata[i];) {
        if (is_wanted(fs, due->pdata[i])) {
            i++;
            continue;
        }
        mutex_lock(&fs->jobs->mu);
        (void)g_hash_table_remove(fs->jobs->failed, due->pdata[i]); /* it is there */
        mutex_unlock(&fs->jobs->mu);
        (void)g_ptr_array_remove_index(due, i);
    }
}

static void *retry_main(void *arg)
{
    struct fs *fs = arg;
    (void)pthread_detach(pthread_self()); /* jobs_close() waits for `live` */
    for (GPtrArray *due; (due = wait_due(fs->jobs));) {
        drop_unwanted(fs, due);
        pin_fetch(fs, (const char *const *)due->pdata);
        g_ptr_array_unref(due);
    }
    retry_ended(fs->jobs);
    return NULL;
}

/* Notes what a batch came to. True: a thread is to be started, which is counted already. */
static bool note_result(struct batch *b, bool failed)
{
    struct jobs *j = b->fs->jobs;
    const char *given_up = NULL;
    mutex_lock(&j->mu);
    for (unsigned i = 0; b->paths->pdata[i]; i++) {
        const char *path = b->paths->pdata[i];
        const struct pin_retry *had = g_hash_table_lookup(j->failed, path);
        unsigned tries = (had ? had->tries : 0) + 1;
        if (!failed || tries >= PIN_FETCH_TRIES || (!had && g_hash_table_size(j->failed) >= WAITING_MAX)) {
            (void)g_hash_table_remove(j->failed, path); /* it may not be there */
            given_up = failed ? path : given_up;
            continue;
        }
        struct pin_retry *again = g_new(struct pin_retry, 1);
        *again = (struct pin_retry){tries, clock_mono_ns() + (PAUSE_NS << (tries - 1))};
        g_hash_table_replace(j->failed, g_strdup(path), again);
    }
    bool start = !j->waits_to_retry && !j->closing && failed && g_hash_table_size(j->failed) > 0;
    j->waits_to_retry |= start;
    j->live += start;
    cond_broadcast(&j->idle); /* the thread that waits may have to look earlier */
    mutex_unlock(&j->mu);
    if (given_up)
        log_warn("pin", "not all could be fetched, what is pinned is tried again at the next start path='%s'",
                 given_up);
    return start;
}

static void settle(struct batch *b, struct warm *w)
{
    struct warm_progress p;
    enum warm_state state = warm_progress_get(w, &p);
    pthread_t thread;
    if (!note_result(b, state == WARM_FAILED && p.errors > p.missing))
        return;
    int r = thread_start(&thread, "pin-again", retry_main, b->fs);
    if (r == 0)
        return;
    log_warn("pin", "no thread, what failed is not fetched again r=%s", err_name(r));
    mutex_lock(&b->fs->jobs->mu);
    b->fs->jobs->waits_to_retry = false;
    mutex_unlock(&b->fs->jobs->mu);
    retry_ended(b->fs->jobs);
}

static void ended(void *arg, struct warm *w)
{
    struct batch *b = arg;
    struct fs *fs = b->fs;
    struct jobs *j = fs->jobs;
    settle(b, w);
    leave(b);
    batch_free(b);
    mutex_lock(&j->mu);
    g_autoptr(GHashTable) waiting = j->to_fetch;
    j->to_fetch = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    mutex_unlock(&j->mu);
    g_autofree gpointer *paths = g_hash_table_get_keys_as_array(waiting, NULL);
    pin_fetch(fs, (const char *const *)paths);
}

/* ---- fetching ---- */

/* Those of the paths that may be fetched now; the others wait. */
static struct batch *batch_new(struct fs *fs, const char *const *paths)
{
    struct jobs *j = fs->jobs;
    struct batch *b = g_new0(struct batch, 1);
    unsigned n_lost = 0;
    b->fs = fs;
    b->paths = g_ptr_array_new_with_free_func(g_free);
    mutex_lock(&j->mu);
    for (unsigned i = 0; paths[i]; i++) {
        bool room = j->n_fetches < FETCHES_MAX && b->paths->len < WAITING_MAX;
        bool now = room && !g_hash_table_contains(j->fetching, paths[i]);
        if (now) {
            g_hash_table_add(j->fetching, g_strdup(paths[i]));
            g_ptr_array_add(b->paths, g_strdup(paths[i]));
        } else if (g_hash_table_size(j->to_fetch) < WAITING_MAX) {
            (void)g_hash_table_add(j->to_fetch, g_strdup(paths[i])); /* or it waits already */
        } else {
            n_lost++;
        }
    }
    j->n_fetches += b->paths->len > 0;
    mutex_unlock(&j->mu);
    g_ptr_array_add(b->paths, NULL);
    if (n_lost > 0)
        log_notice("pin", "too much is to be fetched, some is left out paths=%u", n_lost);
    return b;
}

void pin_fetch(struct fs *fs, const char *const *paths)
{
    struct warm *w = NULL;
    struct batch *b = batch_new(fs, paths);
    struct warm_req req = {.paths = (const char *const *)b->paths->pdata,
                           .mode = WARM_FETCH,
                           .parallel = 4,
                           .background = true,
                           .for_pins = true,
                           .ended = ended,
                           .ended_ctx = b};
    if (!req.paths[0]) {
        batch_free(b);
    } else if (warm_start(fs, &req, &w) < 0) { /* the daemon stops; the next look at the rules fetches */
        leave(b);
        batch_free(b);
    }
    warm_unref(w);
}
