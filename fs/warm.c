/*
 * Warm-up: the queue, the threads, the results.
 *
 * Threads of one warm-up: "warm-count" walks ahead and counts, so that the totals are known early; "warm-walk" walks and feeds the queue;
 * the workers take files from it. While counting, the directories of a page are listed by the workers in parallel: a tree of many small
 * directories costs listings, not transfers. All are detached and hold a reference; the last one to end settles the result and tells fs->jobs.
 */
#include "warm_internal.h"
#include "warm_job.h"

#include <assert.h>

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
    g_free(e->warning);
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
    warm_list_free(w->list);
    g_ptr_array_unref(w->problems);
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

void warm_cancel(struct warm *w)
{
    mutex_lock(&w->mu);
    bool running = w->state == WARM_RUNNING;
    w->cancelled = true;
    mutex_unlock(&w->mu);
    int r = w->keep && running ? warm_job_save(w, WARM_STOPPED, false) : 0;
    if (r < 0)
        log_warn("warm", "that a job was stopped is not recorded id=%" G_GUINT64_FORMAT " r=%s", w->id, err_name(r));
    warm_stop(w);
}

/* Past its time: stops. */
static void look_at_clock_locked(struct warm *w) REQUIRES(w->mu)
{
    if (w->stop || !w->until_mono_ns || clock_mono_ns() < w->until_mono_ns)
        return;
    w->stop = w->timed_out = true;
    cond_broadcast(&w->changed);
}

bool warm_stopped(struct warm *w)
{
    mutex_lock(&w->mu);
    look_at_clock_locked(w);
    bool stop = w->stop;
    mutex_unlock(&w->mu);
    return stop || atomic_load(&w->fs->stopping);
}

/* Waits for a change, not beyond the job's time nor `until` (0: none). */
static void wait_locked(struct warm *w, uint64_t until) REQUIRES(w->mu)
{
    uint64_t end = w->until_mono_ns;
    if (until && (!end || until < end))
        end = until;
    if (end)
        (void)cond_wait_until(&w->changed, &w->mu, end);
    else
        cond_wait(&w->changed, &w->mu);
    look_at_clock_locked(w);
}

bool warm_may_fetch(struct warm *w)
{
    mutex_lock(&w->mu);
    look_at_clock_locked(w);
    while (!w->stop && w->limit_bps && clock_mono_ns() < w->paid_until_ns)
        wait_locked(w, w->paid_until_ns);
    bool may = !w->stop;
    mutex_unlock(&w->mu);
    return may && !atomic_load(&w->fs->stopping);
}

void warm_pay(struct warm *w, uint64_t bytes)
{
    if (!w->limit_bps || !bytes)
        return;
    mutex_lock(&w->mu);
    w->paid_until_ns =
        MAX(w->paid_until_ns, clock_mono_ns()) + (uint64_t)((double)bytes / (double)w->limit_bps * (double)NS_PER_S);
    mutex_unlock(&w->mu);
}

uint64_t warm_id(const struct warm *w)
{
    return w->id;
}

bool warm_is_kept(const struct warm *w)
{
    return w->keep;
}

const char *warm_state_name(enum warm_state state)
{
    static const char *const names[] = {"running", "done", "failed", "stopped", "timeout"};
    return names[state];
}

unsigned warm_resumed(const struct warm *w)
{
    return w->resumed;
}

GPtrArray *warm_problems(struct warm *w)
{
    GPtrArray *copy = g_ptr_array_new_with_free_func(g_free);
    mutex_lock(&w->mu);
    for (unsigned i = 0; i < w->problems->len; i++)
        g_ptr_array_add(copy, g_strdup(w->problems->pdata[i]));
    mutex_unlock(&w->mu);
    return copy;
}

static void progress_locked(struct warm *w, struct warm_progress *ret) REQUIRES(w->mu)
{
    *ret = w->sum;
    ret->bytes_done = atomic_load(&w->bytes_done);
    ret->bytes_fetched = atomic_load(&w->bytes_fetched);
    ret->counting = w->state == WARM_RUNNING && !w->counted;
    if (w->state == WARM_DONE || w->state == WARM_FAILED) { /* each file was seen: the walk's own sums are exact */
        ret->files_total = w->fed_files;
    } else {
        ret->files_total = MAX(w->counted_files, w->fed_files);
        ret->bytes_total = MAX(w->counted_bytes, w->sum.bytes_total);
    }
}

enum warm_state warm_progress_get(struct warm *w, struct warm_progress *ret)
{
    mutex_lock(&w->mu);
    progress_locked(w, ret);
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
    w->sum.errors += e->err != 0;
    w->sum.missing += e->err == -ENOENT;
    while (!w->background && !w->stop && g_queue_get_length(&w->events) >= MAX_EVENTS)
        wait_locked(w, 0);
    if (w->background || w->stop) {
        event_free(e);
    } else {
        g_queue_push_tail(&w->events, e);
        cond_broadcast(&w->changed);
    }
    mutex_unlock(&w->mu);
}

/* What nobody watches is told later, as far as there is room. Takes over text. */
static void note_problem(struct warm *w, char *text)
{
    mutex_lock(&w->mu);
    bool room = w->problems->len < WARM_PROBLEMS;
    if (room)
        g_ptr_array_add(w->problems, text);
    mutex_unlock(&w->mu);
    if (!room)
        g_free(text);
}

void warm_push_warning(struct warm *w, char *text)
{
    log_warn("warm", "%s id=%" G_GUINT64_FORMAT, text, w->id);
    if (w->background)
        note_problem(w, g_strdup(text));
    struct warm_event *e = g_new0(struct warm_event, 1);
    *e = (struct warm_event){.warning = text};
    warm_push_event(w, e);
}

void warm_push_error(struct warm *w, const char *path, int err)
{
    if (w->background) {
        note_problem(w, g_strdup_printf("%s: %s", path, objstore_err_text(err)));
        log_notice("warm", "not warmed path='%s' r=%s", path, err_name(err));
    }
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
    look_at_clock_locked(w);
    while (!w->stop && g_queue_get_length(&w->items) >= WARM_QUEUE)
        wait_locked(w, 0);
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

/* What the counts promise once all files were looked at (warm.h). */
static void check_sums(const struct warm *w, const struct warm_progress *p)
{
    if (w->mode != WARM_FETCH)
        return;
    assert(p->files_total == p->files_cached + p->files_fetched + p->files_failed);
    assert(p->files_done == p->files_cached + p->files_fetched);
    assert(p->bytes_total == p->bytes_cached + p->bytes_fetched + p->bytes_failed);
    assert(p->bytes_done == p->bytes_cached + p->bytes_fetched);
}

static enum warm_state result_locked(struct warm *w) REQUIRES(w->mu)
{
    if (w->timed_out && !w->cancelled)
        return WARM_TIMEOUT;
    if (w->stop || w->cancelled || atomic_load(&w->fs->stopping))
        return WARM_STOPPED;
    return w->sum.errors || w->sum.files_dropped ? WARM_FAILED : WARM_DONE;
}

/* In the database, unless it was the daemon's end: then the next worker goes on. */
static void record_end(struct warm *w, enum warm_state state)
{
    mutex_lock(&w->mu);
    bool interrupted = state == WARM_STOPPED && !w->cancelled;
    mutex_unlock(&w->mu);
    if (!w->keep || interrupted)
        return;
    int r = warm_job_save(w, state, false);
    if (r < 0)
        log_warn("warm", "the end of a job is not recorded id=%" G_GUINT64_FORMAT " r=%s", w->id, err_name(r));
    else
        warm_list_remove(w->fs->cache_dir, w->id);
}

static void settle(struct warm *w)
{
    struct warm_progress p;
    if (w->mode == WARM_FETCH)
        warm_count_dropped(w);
    mutex_lock(&w->mu);
    enum warm_state state = result_locked(w);
    w->state = state;
    progress_locked(w, &p);
    if (state == WARM_DONE || state == WARM_FAILED)
        check_sums(w, &p);
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
    record_end(w, state);
    if (w->ended)
        w->ended(w->ended_ctx, w);
}

/* The last thread to end settles the result. */
static void thread_ended(struct warm *w)
{
    struct fs *fs = w->fs;
    mutex_lock(&w->mu);
    bool last = --w->threads == 0;
    mutex_unlock(&w->mu);
    if (last)
        settle(w);
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
    if (w->mode == WARM_FETCH)
        warm_warn_of_room(w);
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
    look_at_clock_locked(w);
    while (!w->stop && g_queue_is_empty(&w->hints) && g_queue_is_empty(&w->items) && !(w->fed && w->counted))
        wait_locked(w, 0);
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
        int r = warm_list_ahead(w, dir);
        if (r < 0) /* the walk meets the same failure and says it */
            log_debug("warm", "directory not listed ahead ino=%" G_GUINT64_FORMAT " r=%s", dir, err_name(r));
    }
    thread_ended(w);
    return NULL;
}

/* ---- start and list ---- */

/* The oldest that has ended and is kept or not; NULL: none. */
static struct warm *take_finished_locked(struct jobs *j, bool kept) REQUIRES(j->mu)
{
    for (unsigned i = 0; i < j->warms->len; i++) {
        struct warm *w = j->warms->pdata[i];
        if (w->keep == kept && atomic_load(&w->state) != WARM_RUNNING)
            return g_ptr_array_steal_index(j->warms, i);
    }
    return NULL;
}

/* Forgets finished ones beyond KEEP_FINISHED, those that are kept last; they are freed by the caller, without the lock. */
static void forget_finished_locked(struct jobs *j, GPtrArray *dropped) REQUIRES(j->mu)
{
    while (j->warms->len >= KEEP_FINISHED) {
        struct warm *w = take_finished_locked(j, false);
        if (!w)
            w = take_finished_locked(j, true);
        if (!w)
            return;
        g_ptr_array_add(dropped, w);
    }
}

/* Gives it an id unless it has one. */
static int register_job(struct fs *fs, struct warm *w)
{
    struct jobs *j = fs->jobs;
    g_autoptr(GPtrArray) dropped = g_ptr_array_new_with_free_func((GDestroyNotify)warm_unref);
    mutex_lock(&j->mu);
    bool closing = j->closing;
    if (!closing) {
        forget_finished_locked(j, dropped);
        if (!w->id)
            w->id = ++j->last_id;
        j->last_id = MAX(j->last_id, w->id);
        j->live += w->state == WARM_RUNNING;
        g_ptr_array_add(j->warms, warm_ref(w));
    }
    mutex_unlock(&j->mu);
    for (unsigned i = 0; i < dropped->len; i++) {
        const struct warm *old = dropped->pdata[i];
        if (old->keep)
            warm_job_forget(fs, old->id);
    }
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
    w->sum.errors++;
    mutex_unlock(&w->mu);
    thread_ended(w);
}

/* Takes over req->list. */
static struct warm *warm_new(struct fs *fs, const struct warm_req *req)
{
    struct warm *w = g_new0(struct warm, 1);
    w->fs = fs;
    w->mode = req->mode;
    w->background = req->background;
    w->keep = req->keep;
    w->for_pins = req->for_pins;
    w->parallel = req->parallel ? req->parallel : 8;
    w->node = req->node;
    w->n_nodes = req->n_nodes;
    w->limit_bps = req->limit_bps;
    w->list = req->list;
    w->ended = req->ended;
    w->ended_ctx = req->ended_ctx;
    w->until_ns = req->until_ns;
    w->begun_ns = clock_wall_ns();
    w->evicted_bytes = metric_get(M_evicted_bytes);
    if (w->until_ns)
        w->until_mono_ns = clock_mono_ns() + (uint64_t)MAX(w->until_ns - clock_wall_ns(), 1);
    g_autoptr(GStrvBuilder) paths = g_strv_builder_new();
    for (unsigned i = 0; req->paths && req->paths[i]; i++)
        g_strv_builder_add(paths, req->paths[i]);
    w->paths = g_strv_builder_end(paths);
    w->problems = g_ptr_array_new_with_free_func(g_free);
    atomic_init(&w->refs, 1);
    mutex_init(&w->mu, LOCK_CTL);
    cond_init(&w->changed);
    return w;
}

static void run(struct warm *w)
{
    mutex_lock(&w->mu);
    w->threads++; /* ours: nobody settles the result before all are started */
    mutex_unlock(&w->mu);
    (void)warm_ref(w);
    start_thread(w, "warm-count", count_main);
    start_thread(w, "warm-walk", feed_main);
    for (unsigned i = 0; i < w->parallel; i++)
        start_thread(w, "warm", worker_main);
    thread_ended(w);
}

/* It never ran: nobody finds it any more. */
static void unregister_job(struct fs *fs, struct warm *w)
{
    mutex_lock(&fs->jobs->mu);
    bool was = g_ptr_array_remove(fs->jobs->warms, w); /* not the last reference: the caller has one */
    mutex_unlock(&fs->jobs->mu);
    assert(was);
    job_ended(fs);
}

/* The list before the record, see warm_job.h. */
static int keep_job(struct warm *w)
{
    int r = warm_list_keep(w->list, w->id);
    if (r == 0)
        r = warm_job_save(w, WARM_RUNNING, true);
    if (r < 0)
        warm_list_remove(w->fs->cache_dir, w->id);
    return r;
}

int warm_start(struct fs *fs, const struct warm_req *req, struct warm **ret)
{
    assert(!req->keep || (req->list && !req->paths));
    struct warm *w = warm_new(fs, req);
    int r = register_job(fs, w);
    if (r == 0 && w->keep) {
        r = keep_job(w);
        if (r < 0)
            unregister_job(fs, w);
    }
    if (r < 0) {
        warm_unref(w);
        return r;
    }
    run(w);
    *ret = w;
    return 0;
}

int warm_restart(struct fs *fs, const struct warm_req *req, uint64_t id, unsigned resumed, unsigned hasty)
{
    struct warm *w = warm_new(fs, req);
    w->id = id;
    w->resumed = resumed;
    w->hasty = hasty;
    int r = register_job(fs, w);
    if (r == 0) {
        int saved = warm_job_save(w, WARM_RUNNING, false);
        if (saved < 0)
            log_warn("warm", "that a job goes on is not recorded id=%" G_GUINT64_FORMAT " r=%s", id, err_name(saved));
        run(w);
    }
    warm_unref(w);
    return r;
}

void warm_restore(struct fs *fs, uint64_t id, enum warm_state state, const struct warm_progress *sum,
                  GPtrArray *problems)
{
    struct warm *w = warm_new(fs, &(struct warm_req){.background = true, .keep = true});
    w->id = id;
    mutex_lock(&w->mu);
    w->state = state;
    w->sum = *sum;
    w->fed_files = w->counted_files = sum->files_total;
    w->counted_bytes = sum->bytes_total;
    for (unsigned i = 0; i < problems->len; i++)
        g_ptr_array_add(w->problems, g_strdup(problems->pdata[i]));
    mutex_unlock(&w->mu);
    atomic_store(&w->bytes_done, sum->bytes_done);
    atomic_store(&w->bytes_fetched, sum->bytes_fetched);
    if (register_job(fs, w) < 0)
        log_debug("warm", "a job that ended is not shown id=%" G_GUINT64_FORMAT, id); /* the daemon stops */
    warm_unref(w);
}

GPtrArray *warm_list_jobs(struct fs *fs)
{
    struct jobs *j = fs->jobs;
    GPtrArray *list = g_ptr_array_new_with_free_func((GDestroyNotify)warm_unref);
    mutex_lock(&j->mu);
    for (unsigned i = 0; i < j->warms->len; i++)
        g_ptr_array_add(list, warm_ref(j->warms->pdata[i]));
    mutex_unlock(&j->mu);
    return list;
}
