/*
 * Warm-up.
 *
 * Threads of one warm-up: "warm-count" walks ahead and counts, so that the totals are known early; "warm-walk" walks and feeds the queue;
 * the workers take files from it. While counting, the directories of a page are listed by the workers in parallel: a tree of many small
 * directories costs listings, not transfers. All are detached and hold a reference; the last one to end settles the result and tells fs->jobs.
 *
 * w->mu is held for the queue and the counts only. Bytes arrive from within the cache, which may hold locks of its own, so those
 * counters are atomic.
 */
#include "warm.h"

#include "content.h"
#include "jobs.h"
#include "tree.h"

#include <stdatomic.h>

#define PAGE_NAMES    256
#define MAX_DEPTH     512
#define MAX_EVENTS    1024
#define KEEP_FINISHED 32
#define MAX_HINTS     (4 * PAGE_NAMES)

struct warm {
    /* immutable after warm_start */
    struct fs *fs;
    uint64_t id;
    enum warm_mode mode;
    bool background;
    char **paths; /* owned */

    struct mutex mu; /* CTL */
    struct cond changed;
    /* guarded by mu */
    unsigned threads;
    GQueue items;  /* struct item: files to do */
    GQueue hints;  /* uint64_t *: directories to list */
    GQueue events; /* struct warm_event */
    bool counted, fed, stop;
    uint64_t counted_files, counted_bytes, fed_files;
    uint64_t files_done, seen_bytes, errors;

    /* atomic */
    atomic_uint refs;
    atomic_int state; /* enum warm_state; set under mu */
    _Atomic uint64_t bytes_done;
};

struct item {
    uint64_t ino;
    char *path; /* owned */
    struct warm *w;
    _Atomic uint64_t arrived; /* bytes counted for this file so far */
};

static void item_free(struct item *it)
{
    g_free(it->path);
    g_free(it);
}

static void event_free(struct warm_event *e)
{
    g_free(e->path);
    g_free(e);
}

/* ---- references and results ---- */

struct warm *warm_ref(struct warm *w)
{
    atomic_fetch_add(&w->refs, 1);
    return w;
}

void warm_unref(struct warm *w)
{
    if (!w || atomic_fetch_sub(&w->refs, 1) > 1)
        return;
    g_queue_clear_full(&w->items, (GDestroyNotify)item_free);
    g_queue_clear_full(&w->hints, g_free);
    g_queue_clear_full(&w->events, (GDestroyNotify)event_free);
    g_strfreev(w->paths);
    cond_fini(&w->changed);
    mutex_fini(&w->mu);
    g_free(w);
}

void warm_stop(struct warm *w)
{
    mutex_lock(&w->mu);
    w->stop = true;
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
}

static bool stopped(struct warm *w)
{
    mutex_lock(&w->mu);
    bool stop = w->stop;
    mutex_unlock(&w->mu);
    return stop || atomic_load(&w->fs->stopping);
}

uint64_t warm_id(const struct warm *w)
{
    return w->id;
}

bool warm_is_background(const struct warm *w)
{
    return w->background;
}

const char *warm_state_name(enum warm_state state)
{
    static const char *const names[] = {"running", "done", "failed", "stopped"};
    return names[state];
}

enum warm_state warm_progress_get(struct warm *w, struct warm_progress *ret)
{
    mutex_lock(&w->mu);
    *ret = (struct warm_progress){
        .files_done = w->files_done,
        .files_total = MAX(w->counted_files, w->fed_files),
        .bytes_done = atomic_load(&w->bytes_done),
        .bytes_total = MAX(w->counted_bytes, w->seen_bytes),
        .errors = w->errors,
        .counting = w->state == WARM_RUNNING && !w->counted,
    };
    if (w->state == WARM_DONE || w->state == WARM_FAILED) { /* each file was seen: the walk's own sums are exact */
        ret->files_total = w->fed_files;
        ret->bytes_total = w->seen_bytes;
    }
    enum warm_state state = w->state;
    mutex_unlock(&w->mu);
    return state;
}

bool warm_wait(struct warm *w, uint64_t deadline_ns)
{
    mutex_lock(&w->mu);
    while (w->state == WARM_RUNNING && g_queue_is_empty(&w->events))
        if (!cond_wait_until(&w->changed, &w->mu, deadline_ns))
            break;
    bool ended = w->state != WARM_RUNNING;
    mutex_unlock(&w->mu);
    return ended;
}

bool warm_event_pop(struct warm *w, struct warm_event *ret)
{
    mutex_lock(&w->mu);
    struct warm_event *e = g_queue_pop_head(&w->events);
    cond_broadcast(&w->changed); /* somebody may wait for room */
    mutex_unlock(&w->mu);
    if (!e)
        return false;
    *ret = *e;
    g_free(e);
    return true;
}

/* Takes over e. Waits while the watcher is behind; in the background nobody watches. */
static void push_event(struct warm *w, struct warm_event *e)
{
    mutex_lock(&w->mu);
    if (e->err)
        w->errors++;
    while (!w->background && !w->stop && g_queue_get_length(&w->events) >= MAX_EVENTS)
        cond_wait(&w->changed, &w->mu);
    if (w->background || w->stop) {
        event_free(e);
    } else {
        g_queue_push_tail(&w->events, e);
        cond_broadcast(&w->changed);
    }
    mutex_unlock(&w->mu);
}

static void push_error(struct warm *w, const char *path, int err)
{
    if (w->background)
        log_notice("warm", "not warmed path='%s' r=%s", path, err_name(err));
    struct warm_event *e = g_new0(struct warm_event, 1);
    *e = (struct warm_event){.path = g_strdup(path), .err = err};
    push_event(w, e);
}

/* ---- one file ---- */

static void on_bytes(void *ctx, uint64_t bytes)
{
    struct item *it = ctx;
    atomic_fetch_add(&it->arrived, bytes);
    atomic_fetch_add(&it->w->bytes_done, bytes);
}

struct file_facts {
    uint64_t vid, size;
    bool pinned;
};

static struct file_facts facts_of(struct inode *in)
{
    mutex_lock(&in->mu);
    struct file_facts f = {in->rec.vid, in->rec.size, in->rec.flags & INODE_PINNED};
    mutex_unlock(&in->mu);
    return f;
}

/* Known to be here without opening it. */
static bool is_complete(struct fs *fs, uint64_t vid)
{
    struct meta_cached c;
    return vid && meta_cached_get(fs->meta, vid, &c) == 0 && (c.flags & CACHED_COMPLETE);
}

static int fetch_inode(struct item *it, struct inode *in)
{
    struct fs *fs = it->w->fs;
    struct file_facts f = facts_of(in);
    if (is_complete(fs, f.vid))
        return 0;
    struct cfile *cf = NULL;
    int r = content_use(in, &cf);
    if (r < 0)
        return r;
    if (f.pinned)
        r = cache_pin(fs->cache, cache_file_vid(cf), true);
    if (r == 0 && !cache_file_complete(cf))
        r = cache_file_fill(cf, false, true, on_bytes, it);
    content_unuse(in, cf);
    return r;
}

/* The object changed since its directory was listed: looks again, so that the new version is fetched. */
static int relist_path(struct fs *fs, const char *path, struct inode **in)
{
    g_autofree char *dir_path = g_path_get_dirname(path);
    INODE_REF dir = NULL;
    int r = tree_resolve(fs, dir_path, &dir);
    if (r == 0)
        r = tree_refresh(fs, dir, true);
    struct inode *again = NULL;
    if (r == 0)
        r = tree_resolve(fs, path, &again);
    if (r < 0)
        return r;
    inode_put(*in);
    *in = again;
    return 0;
}

static int fetch_file(struct item *it, struct inode **in)
{
    int r = fetch_inode(it, *in);
    if (r == -ESTALE) {
        r = relist_path(it->w->fs, it->path, in);
        if (r == 0)
            r = inode_is_dir(*in) ? -EISDIR : fetch_inode(it, *in);
    }
    if (r < 0)
        return r;
    /* what was here before counts as done */
    atomic_fetch_add(&it->w->bytes_done, facts_of(*in).size - atomic_load(&it->arrived));
    return 0;
}

static uint64_t present_bytes(struct inode *in, const struct file_facts *f)
{
    struct meta_cached c;
    if (!f->vid || meta_cached_get(in->fs->meta, f->vid, &c) < 0)
        return 0;
    if (c.flags & CACHED_COMPLETE)
        return f->size;
    struct cfile *cf = NULL;
    if (content_use(in, &cf) < 0)
        return 0;
    uint64_t n = cache_file_present_bytes(cf);
    content_unuse(in, cf);
    return MIN(n, f->size);
}

static int check_file(struct item *it, struct inode *in)
{
    struct file_facts f = facts_of(in);
    struct warm_event *e = g_new0(struct warm_event, 1);
    *e = (struct warm_event){.path = g_strdup(it->path), .cached_bytes = present_bytes(in, &f), .size = f.size};
    atomic_fetch_add(&it->w->bytes_done, e->cached_bytes);
    push_event(it->w, e);
    return 0;
}

/* 1: dropped, 0: nothing was here. */
static int evict_file(struct item *it, struct inode *in)
{
    struct fs *fs = it->w->fs;
    struct file_facts f = facts_of(in);
    struct meta_cached c;
    if (!f.vid || meta_cached_get(fs->meta, f.vid, &c) < 0)
        return 0;
    int r = cache_evict(fs->cache, f.vid);
    if (r < 0)
        return r;
    atomic_fetch_add(&it->w->bytes_done, c.bytes);
    return 1;
}

static void do_item(struct warm *w, struct item *it)
{
    struct inode *in = NULL;
    int r = inode_get(w->fs, it->ino, &in);
    if (r == -ENOENT) { /* removed since the walk saw it */
        mutex_lock(&w->mu);
        w->fed_files--;
        mutex_unlock(&w->mu);
        return;
    }
    bool counts = true;
    if (r == 0 && w->mode == WARM_FETCH) {
        r = fetch_file(it, &in);
    } else if (r == 0 && w->mode == WARM_CHECK) {
        r = check_file(it, in);
    } else if (r == 0) {
        r = evict_file(it, in);
        counts = r == 1;
    }
    uint64_t size = in ? facts_of(in).size : 0;
    inode_put(in);
    if (r < 0 && !(r == -ECANCELED && stopped(w)))
        push_error(w, it->path, r);
    mutex_lock(&w->mu);
    w->seen_bytes += size;
    w->files_done += r >= 0 && counts;
    mutex_unlock(&w->mu);
}

/* ---- the walk: once to count, once to feed the queue ---- */

struct walk {
    struct warm *w;
    bool feed;
};

struct page_name {
    uint64_t id, ino;
    uint32_t type;
    char *name;
};

static void page_name_free(void *p)
{
    struct page_name *n = p;
    g_free(n->name);
    g_free(n);
}

static int take_name(void *ctx, const struct meta_dentry *d)
{
    GPtrArray *page = ctx;
    struct page_name *n = g_new(struct page_name, 1);
    *n = (struct page_name){d->id, d->ino, d->type, g_strdup(d->name)};
    g_ptr_array_add(page, n);
    return page->len >= PAGE_NAMES;
}

static int feed_file(struct warm *w, uint64_t ino, const char *path)
{
    struct item *it = g_new0(struct item, 1);
    it->ino = ino;
    it->path = g_strdup(path);
    it->w = w;
    mutex_lock(&w->mu);
    while (!w->stop && g_queue_get_length(&w->items) >= WARM_QUEUE)
        cond_wait(&w->changed, &w->mu);
    bool stop = w->stop;
    if (!stop) {
        g_queue_push_tail(&w->items, it);
        w->fed_files++;
        cond_broadcast(&w->changed);
    }
    mutex_unlock(&w->mu);
    if (stop)
        item_free(it);
    return stop ? -ECANCELED : 0;
}

static int visit_file(struct walk *k, uint64_t ino, const char *path)
{
    struct warm *w = k->w;
    if (k->feed)
        return feed_file(w, ino, path);
    struct meta_inode rec;
    if (meta_inode_get(w->fs->meta, ino, &rec) < 0)
        return 0; /* gone meanwhile */
    uint64_t size = rec.size;
    meta_inode_clear(&rec);
    mutex_lock(&w->mu);
    w->counted_files++;
    w->counted_bytes += size;
    mutex_unlock(&w->mu);
    return 0;
}

/* Lets the workers list the directories of a page, before the walk comes to them one by one. */
static void hint_dirs(struct warm *w, GPtrArray *page)
{
    if (w->mode == WARM_EVICT || w->fs->cfg->metadata_ttl_ns == 0)
        return;
    mutex_lock(&w->mu);
    for (unsigned i = 0; i < page->len && g_queue_get_length(&w->hints) < MAX_HINTS; i++) {
        const struct page_name *n = page->pdata[i];
        if (S_ISDIR(n->type))
            g_queue_push_tail(&w->hints, g_memdup2(&n->ino, sizeof(n->ino)));
    }
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
}

static int walk_dir(struct walk *k, uint64_t ino, const char *path, unsigned depth);

static int walk_page(struct walk *k, GPtrArray *page, const char *path, unsigned depth)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < page->len; i++) {
        const struct page_name *n = page->pdata[i];
        g_autofree char *below = *path ? g_strconcat(path, "/", n->name, NULL) : g_strdup(n->name);
        if (S_ISDIR(n->type))
            r = walk_dir(k, n->ino, below, depth + 1);
        else if (S_ISREG(n->type))
            r = visit_file(k, n->ino, below);
    }
    return r;
}

/* Sees that the directory's names are known. What cannot be listed is said once, by the walk that feeds. */
static int refresh_dir(struct walk *k, uint64_t ino)
{
    if (k->w->mode == WARM_EVICT)
        return 0; /* what was never listed is not here either */
    INODE_REF dir = NULL;
    int r = inode_get(k->w->fs, ino, &dir);
    return r < 0 ? r : tree_refresh(k->w->fs, dir, false);
}

static int walk_dir(struct walk *k, uint64_t ino, const char *path, unsigned depth)
{
    struct warm *w = k->w;
    if (stopped(w))
        return -ECANCELED;
    int r = depth > MAX_DEPTH ? -ELOOP : refresh_dir(k, ino);
    if (r < 0) {
        bool removed = r == -ENOENT && depth > 0; /* since its parent was read */
        if (k->feed && !removed && !stopped(w))
            push_error(w, path, r);
        return 0;
    }
    uint64_t after = 0;
    for (bool more = true; more && r == 0;) {
        g_autoptr(GPtrArray) page = g_ptr_array_new_with_free_func(page_name_free);
        r = meta_dentry_each(w->fs->meta, ino, after, take_name, page);
        more = r > 0;
        if (r < 0)
            return r;
        if (page->len > 0)
            after = ((struct page_name *)page->pdata[page->len - 1])->id;
        if (!k->feed)
            hint_dirs(w, page);
        r = walk_page(k, page, path, depth);
    }
    return r;
}

static void walk_paths(struct walk *k)
{
    struct warm *w = k->w;
    int r = 0;
    for (unsigned i = 0; w->paths[i] && r != -ECANCELED; i++) {
        INODE_REF in = NULL;
        r = tree_resolve(w->fs, w->paths[i], &in);
        if (r == 0 && inode_is_dir(in))
            r = walk_dir(k, in->ino, w->paths[i], 0);
        else if (r == 0)
            r = S_ISREG(in->rec.mode) ? visit_file(k, in->ino, w->paths[i]) : 0;
        if (r < 0 && r != -ECANCELED && k->feed)
            push_error(w, w->paths[i], r);
    }
}

/* ---- threads ---- */

static void job_ended(struct fs *fs)
{
    mutex_lock(&fs->jobs->mu);
    fs->jobs->live--;
    cond_broadcast(&fs->jobs->idle);
    mutex_unlock(&fs->jobs->mu);
}

/* The last thread to end settles the result. */
static void thread_ended(struct warm *w)
{
    struct fs *fs = w->fs;
    mutex_lock(&w->mu);
    bool last = --w->threads == 0;
    if (last)
        w->state = w->stop || atomic_load(&fs->stopping) ? WARM_STOPPED : w->errors ? WARM_FAILED : WARM_DONE;
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
    warm_unref(w);
    if (last)
        job_ended(fs);
}

static void *count_main(void *arg)
{
    struct warm *w = arg;
    (void)pthread_detach(pthread_self()); /* jobs_close() waits for the count of warm-ups, not for threads */
    walk_paths(&(struct walk){w, false});
    mutex_lock(&w->mu);
    w->counted = true;
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
    thread_ended(w);
    return NULL;
}

static void *feed_main(void *arg)
{
    struct warm *w = arg;
    (void)pthread_detach(pthread_self());
    walk_paths(&(struct walk){w, true});
    mutex_lock(&w->mu);
    w->fed = true;
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
    thread_ended(w);
    return NULL;
}

/* A directory to list (0: none) or a file to do; false when there is nothing left. */
static bool next_work(struct warm *w, uint64_t *ret_dir, struct item **ret_item)
{
    *ret_dir = 0;
    *ret_item = NULL;
    mutex_lock(&w->mu);
    while (!w->stop && g_queue_is_empty(&w->hints) && g_queue_is_empty(&w->items) && !(w->fed && w->counted))
        cond_wait(&w->changed, &w->mu);
    if (!w->stop) {
        g_autofree uint64_t *dir = g_queue_pop_head(&w->hints);
        if (dir)
            *ret_dir = *dir;
        else
            *ret_item = g_queue_pop_head(&w->items);
        cond_broadcast(&w->changed);
    }
    mutex_unlock(&w->mu);
    return *ret_dir || *ret_item;
}

static void *worker_main(void *arg)
{
    struct warm *w = arg;
    (void)pthread_detach(pthread_self());
    uint64_t dir;
    struct item *it;
    while (!atomic_load(&w->fs->stopping) && next_work(w, &dir, &it)) {
        if (it) {
            do_item(w, it);
            item_free(it);
            continue;
        }
        (void)refresh_dir(&(struct walk){w, false}, dir); /* the walk meets the same failure and says it */
    }
    thread_ended(w);
    return NULL;
}

/* ---- start and list ---- */

/* Forgets the oldest finished ones beyond KEEP_FINISHED; they are freed by the caller, without the lock. */
static void forget_finished_locked(struct jobs *j, GPtrArray *dropped) REQUIRES(j->mu)
{
    unsigned n = j->warms->len;
    for (unsigned i = 0; i < n && j->warms->len >= KEEP_FINISHED;) {
        struct warm *w = j->warms->pdata[i];
        if (atomic_load(&w->state) == WARM_RUNNING) {
            i++;
            continue;
        }
        g_ptr_array_add(dropped, g_ptr_array_steal_index(j->warms, i));
        n--;
    }
}

static int register_job(struct fs *fs, struct warm *w)
{
    struct jobs *j = fs->jobs;
    g_autoptr(GPtrArray) dropped = g_ptr_array_new_with_free_func((GDestroyNotify)warm_unref);
    mutex_lock(&j->mu);
    bool closing = j->closing;
    if (!closing) {
        forget_finished_locked(j, dropped);
        w->id = ++j->last_id;
        j->live++;
        g_ptr_array_add(j->warms, warm_ref(w));
    }
    mutex_unlock(&j->mu);
    return closing ? -ECANCELED : 0;
}

static void start_thread(struct warm *w, const char *name, void *(*fn)(void *))
{
    mutex_lock(&w->mu);
    w->threads++;
    mutex_unlock(&w->mu);
    pthread_t thread;
    int r = thread_start(&thread, name, fn, warm_ref(w));
    if (r == 0)
        return;
    log_warn("warm", "no thread r=%s", err_name(r));
    mutex_lock(&w->mu);
    w->stop = true;
    w->errors++;
    mutex_unlock(&w->mu);
    thread_ended(w);
}

int warm_start(struct fs *fs, const struct warm_req *req, struct warm **ret)
{
    struct warm *w = g_new0(struct warm, 1);
    w->fs = fs;
    w->mode = req->mode;
    w->background = req->background;
    g_autoptr(GStrvBuilder) paths = g_strv_builder_new();
    for (unsigned i = 0; req->paths[i]; i++)
        g_strv_builder_add(paths, req->paths[i]);
    w->paths = g_strv_builder_end(paths);
    atomic_init(&w->refs, 1);
    mutex_init(&w->mu, LOCK_CTL);
    cond_init(&w->changed);
    int r = register_job(fs, w);
    if (r < 0) {
        warm_unref(w);
        return r;
    }
    unsigned parallel = req->parallel ? MIN(req->parallel, WARM_PARALLEL_MAX) : 8;
    mutex_lock(&w->mu);
    w->threads++; /* ours: nobody settles the result before all are started */
    mutex_unlock(&w->mu);
    (void)warm_ref(w);
    start_thread(w, "warm-count", count_main);
    start_thread(w, "warm-walk", feed_main);
    for (unsigned i = 0; i < parallel; i++)
        start_thread(w, "warm", worker_main);
    thread_ended(w);
    *ret = w;
    return 0;
}

GPtrArray *warm_list(struct fs *fs)
{
    struct jobs *j = fs->jobs;
    GPtrArray *list = g_ptr_array_new_with_free_func((GDestroyNotify)warm_unref);
    mutex_lock(&j->mu);
    for (unsigned i = 0; i < j->warms->len; i++)
        g_ptr_array_add(list, warm_ref(j->warms->pdata[i]));
    mutex_unlock(&j->mu);
    return list;
}
