/*
 * Warm-up: the queue, the threads, the results.
 *
 * Threads of one warm-up: "warm-count" walks ahead and counts, so that the totals are known early; "warm-walk" walks and feeds the queue;
 * the workers take files from it. While counting, the directories of a page are listed by the workers in parallel: a tree of many small
 * directories costs listings, not transfers. All are detached and hold a reference; the last one to end settles the result and tells fs->jobs.
 */
#include "warm_internal.h"

#define MAX_EVENTS    1024
#define KEEP_FINISHED 32

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

bool warm_stopped(struct warm *w)
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

void warm_push_event(struct warm *w, struct warm_event *e)
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

void warm_push_error(struct warm *w, const char *path, int err)
{
    if (w->background)
        log_notice("warm", "not warmed path='%s' r=%s", path, err_name(err));
    struct warm_event *e = g_new0(struct warm_event, 1);
    *e = (struct warm_event){.path = g_strdup(path), .err = err};
    warm_push_event(w, e);
}

/* ---- queue and threads ---- */

int warm_feed(struct warm *w, uint64_t ino, const char *path)
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
    warm_walk_paths(w, false);
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
    warm_walk_paths(w, true);
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
            warm_do_item(w, it);
            item_free(it);
            continue;
        }
        int r = warm_refresh_dir(w, dir);
        if (r < 0) /* the walk meets the same failure and says it */
            log_debug("warm", "directory not listed ahead ino=%" G_GUINT64_FORMAT " r=%s", dir, err_name(r));
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
    unsigned parallel = req->parallel ? req->parallel : 8;
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
