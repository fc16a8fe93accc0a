/*
 * Syncs: the stack of directories to list, the threads, the results. When they begin is sync_queue.c.
 *
 * A sync has a stack of work: a directory to list, or the names of one to look through for directories, a page of which goes on the stack. What was pushed last is done first, so
 * that the stack holds a page for each level and thread, however many directories there are. Threads are detached and hold a reference each; the last one to end settles the result.
 *
 * Lists while it holds nothing: a job's `mu` guards its stack and counts only.
 */
#include "links.h"
#include "sync_internal.h"
#include "tree.h"

#include <stdlib.h>

#define FEW_DIRS    32 /* that go on the stack one by one */
#define PAGE_DIRS   256
#define SMALL_NAMES 100 /* a page of a listing tells of ten such directories and more */
#define GROUP_LEAST 4
#define SMALL_FROM  16 /* as many of them in a row: so are the next ones */
#define CANCEL_NS   (10 * NS_PER_S)
#define NO_STORE    32 /* failures in a row while the store does not answer */

struct work {
    uint64_t ino;
    uint64_t after; /* id of a name: those behind it are looked through */
    bool look;      /* through the names; else list */
    GArray *group;  /* owned, of struct sync_member: list these, which are in ino, together */
};

struct worker {
    struct sync_job *job;
    struct tree_tally tally; /* its names of all listings */
};

/* ---- references and results ---- */

struct sync_job *sync_job_ref(struct sync_job *job)
{
    atomic_fetch_add(&job->refs, 1);
    return job;
}

void sync_job_unref(struct sync_job *job)
{
    if (!job || atomic_fetch_sub(&job->refs, 1) > 1)
        return;
    for (guint i = 0; i < job->stack->len; i++)
        g_clear_pointer(&g_array_index(job->stack, struct work, i).group, g_array_unref);
    g_array_unref(job->stack);
    g_array_unref(job->visited);
    g_clear_pointer(&job->run.visited, g_array_unref);
    g_free(job->workers);
    g_free(job->path);
    cond_fini(&job->changed);
    mutex_fini(&job->mu);
    g_free(job);
}

void sync_leave(struct sync_job *job)
{
    mutex_lock(&job->mu);
    job->watchers--;
    job->stop |= job->watchers == 0 && !job->background;
    cond_broadcast(&job->changed);
    mutex_unlock(&job->mu);
}

bool sync_wait(struct sync_job *job, uint64_t deadline_ns)
{
    mutex_lock(&job->mu);
    while (job->state == SYNC_RUNNING && cond_wait_until(&job->changed, &job->mu, deadline_ns))
        ;
    bool ended = job->state != SYNC_RUNNING;
    mutex_unlock(&job->mu);
    return ended;
}

const char *sync_state_name(enum sync_state state)
{
    static const char *const names[] = {"running", "done", "failed", "stopped"};
    return names[state];
}

enum sync_state sync_progress_get(struct sync_job *job, struct sync_progress *ret)
{
    mutex_lock(&job->mu);
    uint64_t until = job->state == SYNC_RUNNING ? clock_mono_ns() : job->ended_ns;
    *ret = (struct sync_progress){
        .dirs = job->dirs,
        .changed = job->changed_dirs,
        .skipped = job->skipped,
        .errors = job->errors,
        .elapsed_ns = until - job->began_mono_ns,
        .began_ns = job->run.began_ns,
        .incremental = job->run.incremental,
        .waits = job->state == SYNC_RUNNING && !job->begun,
        .err = job->err,
    };
    enum sync_state state = job->state;
    mutex_unlock(&job->mu);
    for (unsigned i = 0; i < job->run.parallel; i++)
        ret->names += atomic_load(&job->workers[i].tally.names);
    return state;
}

uint64_t sync_id(const struct sync_job *job)
{
    return job->id;
}

const char *sync_path(const struct sync_job *job)
{
    return job->path;
}

uint64_t sync_root(const struct sync_job *job)
{
    return job->run.ino;
}

/* ---- work ---- */

static void push(struct sync_job *job, const struct work *work, guint n)
{
    mutex_lock(&job->mu);
    g_array_append_vals(job->stack, work, n);
    cond_broadcast(&job->changed);
    mutex_unlock(&job->mu);
}

static void give_up(struct sync_job *job, int err)
{
    mutex_lock(&job->mu);
    if (!job->err)
        job->err = err;
    job->stop = true;
    cond_broadcast(&job->changed);
    mutex_unlock(&job->mu);
}

struct page {
    struct fs *fs;
    GArray *works;
    GArray *group; /* NULL: none is wanted */
    uint64_t last;
};

static int take_dir(void *ctx, const struct meta_dentry *d)
{
    struct page *page = ctx;
    page->last = d->id;
    if (!S_ISDIR(d->type))
        return 0;
    struct work w = {.ino = d->ino};
    struct sync_member m = {d->ino, NULL};
    if (!page->group || !sync_group_takes(page->fs, d->name)) {
        g_array_append_val(page->works, w);
        return page->works->len > FEW_DIRS;
    }
    m.name = g_strdup(d->name);
    g_array_append_val(page->group, m);
    return page->group->len >= PAGE_DIRS;
}

/* Its directories are listed one by one. */
static void dissolve(struct page *page)
{
    for (guint i = 0; page->group && i < page->group->len; i++) {
        struct work w = {.ino = g_array_index(page->group, struct sync_member, i).ino};
        g_array_append_val(page->works, w);
    }
    g_clear_pointer(&page->group, g_array_unref);
}

static bool directories_are_small(struct sync_job *job)
{
    mutex_lock(&job->mu);
    bool small = job->small_in_row >= SMALL_FROM;
    mutex_unlock(&job->mu);
    return small;
}

/* The next directories among the names; the rest is looked through when these are done. */
static int look_through(struct sync_job *job, const struct work *look)
{
    g_autoptr(GArray) works = g_array_new(FALSE, FALSE, sizeof(struct work));
    bool together = directories_are_small(job) && sync_group_fits(job->fs, look->ino);
    struct page page = {job->fs, works, together ? sync_group_new() : NULL, look->after};
    struct work rest = *look;
    g_array_append_val(works, rest);
    int r = meta_dentry_each(job->fs->meta, look->ino, look->after, take_dir, &page);
    if (r < 0 || (page.group && page.group->len < GROUP_LEAST))
        dissolve(&page);
    if (r < 0)
        return r;
    if (page.group) {
        struct work w = {.ino = look->ino, .group = page.group};
        g_array_append_val(works, w);
    }
    g_array_index(works, struct work, 0).after = page.last;
    if (r == 0)
        g_array_remove_index(works, 0);
    if (works->len > 0)
        push(job, &g_array_index(works, struct work, 0), works->len);
    return 0;
}

static int compare_inos(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* When it was listed lately enough not to be listed now, 0: it was not. */
static int64_t listed_lately(struct sync_job *job, struct inode *dir)
{
    const struct sync_run *run = &job->run;
    int64_t limit = run->began_ns - (run->incremental ? (int64_t)job->fs->cfg->metadata_ttl_ns : 0);
    int64_t at = sync_listed_ns(job->fs, dir);
    mutex_lock(&dir->mu);
    bool listed = dir->rec.flags & INODE_DIR_LISTED;
    mutex_unlock(&dir->mu);
    if (listed && at >= limit)
        return at;
    bool visited = run->visited->len > 0 &&
                   bsearch(&dir->ino, run->visited->data, run->visited->len, sizeof(uint64_t), compare_inos) != NULL;
    return visited ? run->began_ns : 0;
}

/* Another directory that nothing was written of: a page of them is kept, so that a sync cut off does not list them again. */
static int note_visited(struct sync_job *job, uint64_t ino)
{
    g_autoptr(GArray) full = NULL;
    unsigned number = 0;
    mutex_lock(&job->mu);
    g_array_append_val(job->visited, ino);
    if (job->visited->len >= SYNC_VISITED) {
        full = g_steal_pointer(&job->visited);
        job->visited = g_array_new(FALSE, FALSE, sizeof(uint64_t));
        number = job->n_values++;
    }
    mutex_unlock(&job->mu);
    return full ? sync_run_visited(job->fs->sync, job->run.ino, number, full) : 0;
}

static void note_listed(struct sync_job *job, const struct tree_tally *tally, uint64_t n_names)
{
    mutex_lock(&job->mu);
    job->small_in_row = n_names <= SMALL_NAMES ? job->small_in_row + 1 : 0;
    job->dirs++;
    job->changed_dirs += tally->changed;
    job->fails_in_row = 0;
    mutex_unlock(&job->mu);
}

static bool is_offline(struct fs *fs, uint64_t ino)
{
    g_autofree char *path = NULL;
    return tree_path_of(fs, ino, &path) == 0 && links_offline_since_ns(fs, path) != 0;
}

static void note_failure(struct sync_job *job, uint64_t ino, int err)
{
    struct fs *fs = job->fs;
    if (atomic_load(&fs->stopping))
        return;
    mutex_lock(&job->mu);
    job->errors++;
    bool many = ++job->fails_in_row >= NO_STORE;
    mutex_unlock(&job->mu);
    bool same_store = links_point_of(fs, ino) == links_point_of(fs, job->run.ino);
    bool no_store = many && same_store && is_offline(fs, ino); /* what another link says tells nothing of the rest */
    bool all_fail = same_store && (err == -ENODEV || err == -EKEYEXPIRED);
    if (!sync_fail(fs->sync, job->run.ino, ino, err) || no_store || all_fail)
        give_up(job, err);
}

static void note_skipped(struct sync_job *job, int64_t at_ns)
{
    mutex_lock(&job->mu);
    job->skipped++;
    job->oldest_ns = MIN(job->oldest_ns, at_ns);
    mutex_unlock(&job->mu);
}

/* Lists dir, or takes what is given of it. 1: there may be directories in it. */
static int list_dir(struct worker *w, struct inode *dir, const struct tree_given *given)
{
    struct sync_job *job = w->job;
    w->tally.dirs = 0;
    w->tally.changed = w->tally.wrote = false;
    uint64_t before = atomic_load(&w->tally.names);
    int r = tree_list_now(job->fs, dir, job->run.began_ns, given, &w->tally);
    if (r == -ENOENT && tree_is_removed(dir))
        return 0;
    if (r < 0) {
        note_failure(job, dir->ino, r);
        return 1; /* what is known of it is looked into all the same */
    }
    note_listed(job, &w->tally, atomic_load(&w->tally.names) - before);
    if (!w->tally.wrote)
        r = note_visited(job, dir->ino);
    return r < 0 ? r : w->tally.dirs > 0;
}

/* given: NULL, or what is known of it from a listing of its parent. */
static int do_dir(struct worker *w, uint64_t ino, const struct tree_given *given)
{
    struct sync_job *job = w->job;
    INODE_REF dir = NULL;
    int r = inode_get(job->fs, ino, &dir);
    if (r < 0)
        return r == -ENOENT ? 0 : r; /* removed since */
    mutex_lock(&dir->mu);
    bool local = dir->rec.flags & INODE_DIR_LOCAL;
    mutex_unlock(&dir->mu);
    int64_t lately = local ? 0 : listed_lately(job, dir);
    if (lately)
        note_skipped(job, lately);
    r = local || lately ? 1 : list_dir(w, dir, given);
    if (r <= 0)
        return r;
    push(job, &(struct work){.ino = ino, .look = true}, 1);
    return 0;
}

static int apply_given(void *ctx, uint64_t ino, const struct tree_given *given)
{
    struct worker *w = ctx;
    mutex_lock(&w->job->mu);
    bool stop = w->job->stop;
    mutex_unlock(&w->job->mu);
    return stop ? -ECANCELED : do_dir(w, ino, given);
}

/* Those of the group that are to be listed, together; what is left is done one by one. */
static int do_group(struct worker *w, const struct work *work)
{
    struct sync_job *job = w->job;
    const struct sync_group g = {work->ino, apply_given, w};
    guint done = 0;
    int r = sync_group_list(job->fs, &g, work->group, &done);
    mutex_lock(&job->mu);
    bool stop = job->stop;
    if (done < work->group->len)
        job->small_in_row = 0;
    mutex_unlock(&job->mu);
    for (guint i = done; !stop && i < work->group->len; i++) {
        struct work one = {.ino = g_array_index(work->group, struct sync_member, i).ino};
        push(job, &one, 1);
    }
    if (r < 0)
        log_debug("sync", "listed one by one r=%s", err_name(r));
    return r < 0 && meta_failed(job->fs->meta) ? r : 0;
}

static int do_work(struct worker *w, const struct work *work)
{
    return work->look ? look_through(w->job, work) : work->group ? do_group(w, work) : do_dir(w, work->ino, NULL);
}

/* False: nothing is left, or to be left. */
static bool take_work(struct sync_job *job, struct work *ret)
{
    mutex_lock(&job->mu);
    while (!job->stop && job->stack->len == 0 && job->active > 0)
        cond_wait(&job->changed, &job->mu);
    bool have = !job->stop && job->stack->len > 0;
    if (have) {
        *ret = g_array_index(job->stack, struct work, job->stack->len - 1);
        g_array_set_size(job->stack, job->stack->len - 1);
        job->active++;
    }
    mutex_unlock(&job->mu);
    return have;
}

static void work_done(struct sync_job *job)
{
    mutex_lock(&job->mu);
    job->active--;
    cond_broadcast(&job->changed);
    mutex_unlock(&job->mu);
}

/* ---- threads ---- */

/* What is kept of a sync that the daemon's end cuts off stays, as does what it came to last. */
static int leave(struct sync_job *job)
{
    return job->visited->len > 0 ? sync_run_visited(job->fs->sync, job->run.ino, job->n_values, job->visited) : 0;
}

static void settle(struct sync_job *job)
{
    struct fs *fs = job->fs;
    mutex_lock(&job->mu);
    bool begun = job->begun, stopped = job->stop && !job->err;
    bool failed = job->err || job->errors > 0;
    int64_t at_ns = job->stop ? 0 : MIN(job->run.began_ns, job->oldest_ns);
    struct sync_run run = job->run;
    run.n_values = job->n_values;
    mutex_unlock(&job->mu);
    bool cut_off = atomic_load(&fs->stopping);
    int r = !begun ? 0 : cut_off ? leave(job) : sync_run_end(fs->sync, &run, at_ns); /* no other thread is left */
    mutex_lock(&job->mu);
    job->err = r < 0 && !job->err ? r : job->err;
    job->state = stopped || cut_off ? SYNC_STOPPED : failed || r < 0 ? SYNC_FAILED : SYNC_DONE;
    job->ended_ns = clock_mono_ns();
    log_notice("sync",
               "%s path='%s' dirs=%" G_GUINT64_FORMAT " changed=%" G_GUINT64_FORMAT " left_out=%" G_GUINT64_FORMAT
               " failed=%" G_GUINT64_FORMAT " ms=%" G_GUINT64_FORMAT,
               sync_state_name(job->state), job->path, job->dirs, job->changed_dirs, job->skipped, job->errors,
               (uint64_t)((job->ended_ns - job->began_mono_ns) / NS_PER_MS));
    cond_broadcast(&job->changed);
    mutex_unlock(&job->mu);
}

/* The one of the same directory that waits for this one to end, with a reference, or NULL. */
static struct sync_job *take_next(struct sync_job *job)
{
    struct sync *s = job->fs->sync;
    struct sync_job *next = NULL;
    mutex_lock(&s->mu);
    job->over = true;
    for (guint i = 0; !next && i < s->jobs->len; i++) {
        struct sync_job *other = s->jobs->pdata[i];
        if (other->run.ino == job->run.ino && !other->over)
            next = other;
    }
    if (next && !next->queued)
        next = NULL;
    if (next) {
        next->queued = false;
        (void)sync_job_ref(next);
    }
    mutex_unlock(&s->mu);
    return next;
}

static void thread_ended(struct sync_job *job)
{
    struct sync *s = job->fs->sync;
    mutex_lock(&job->mu);
    bool last = --job->threads == 0;
    mutex_unlock(&job->mu);
    if (last)
        settle(job);
    struct sync_job *next = last ? take_next(job) : NULL;
    sync_job_unref(job);
    if (!last)
        return;
    if (next)
        sync_job_launch(next);
    sync_job_unref(next);
    mutex_lock(&s->mu);
    s->live--;
    cond_broadcast(&s->idle);
    mutex_unlock(&s->mu);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct sync_job *job = w->job;
    struct work work;
    (void)pthread_detach(pthread_self()); /* sync_close() waits for the count of syncs, not for threads */
    while (!atomic_load(&job->fs->stopping) && take_work(job, &work)) {
        int r = do_work(w, &work);
        if (r < 0 && !atomic_load(&job->fs->stopping))
            give_up(job, r);
        g_clear_pointer(&work.group, g_array_unref);
        work_done(job);
    }
    thread_ended(job);
    return NULL;
}

static void start_thread(struct sync_job *job, struct worker *w)
{
    pthread_t thread;
    mutex_lock(&job->mu);
    job->threads++;
    mutex_unlock(&job->mu);
    (void)sync_job_ref(job);
    int r = thread_start(&thread, "tree-sync", worker_main, w);
    if (r < 0) {
        log_warn("sync", "no thread r=%s", err_name(r));
        give_up(job, r);
        thread_ended(job);
    }
}

bool sync_job_begin(struct sync_job *job)
{
    mutex_lock(&job->mu);
    job->begun = !job->stop && !atomic_load(&job->fs->stopping);
    if (!job->begun) { /* at once, so that nobody joins what lists nothing */
        job->state = SYNC_STOPPED;
        job->ended_ns = clock_mono_ns();
    } else {
        job->began_mono_ns = clock_mono_ns();
        job->run.began_ns = job->run.began_ns ? job->run.began_ns : clock_wall_ns();
        job->run.watched = !job->background || job->adopted;
    }
    bool begun = job->begun;
    mutex_unlock(&job->mu);
    return begun;
}

void sync_job_launch(struct sync_job *job)
{
    (void)sync_job_ref(job);
    mutex_lock(&job->mu);
    job->threads++; /* ours: nobody settles the result before all are started */
    mutex_unlock(&job->mu);
    if (sync_job_begin(job)) {
        int r = sync_run_put(job->fs->sync, &job->run);
        if (r < 0)
            give_up(job, r);
        for (unsigned i = 0; i < job->run.parallel; i++) {
            job->workers[i].job = job;
            start_thread(job, &job->workers[i]);
        }
    }
    thread_ended(job);
}

struct sync_job *sync_job_new(struct fs *fs, const struct sync_run *run, const char *path)
{
    struct sync_job *job = g_new0(struct sync_job, 1);
    job->fs = fs;
    job->path = g_strdup(path);
    job->run = *run;
    job->began_mono_ns = clock_mono_ns();
    job->oldest_ns = INT64_MAX;
    job->n_values = run->n_values;
    job->workers = g_new0(struct worker, run->parallel);
    job->stack = g_array_new(FALSE, FALSE, sizeof(struct work));
    job->visited = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct work first = {.ino = run->ino};
    g_array_append_val(job->stack, first);
    atomic_init(&job->refs, 1);
    mutex_init(&job->mu, LOCK_CTL);
    cond_init(&job->changed);
    return job;
}

/* ---- all of them ---- */

GPtrArray *sync_list(struct fs *fs)
{
    struct sync *s = fs->sync;
    GPtrArray *list = g_ptr_array_new_with_free_func((GDestroyNotify)sync_job_unref);
    mutex_lock(&s->mu);
    for (guint i = 0; i < s->jobs->len; i++)
        g_ptr_array_add(list, sync_job_ref(s->jobs->pdata[i]));
    mutex_unlock(&s->mu);
    return list;
}

void sync_cancel(struct fs *fs, const char *path)
{
    g_autoptr(GPtrArray) jobs = sync_list(fs);
    for (guint i = 0; i < jobs->len; i++) {
        struct sync_job *job = jobs->pdata[i];
        if (!g_str_equal(job->path, path))
            continue;
        mutex_lock(&job->mu);
        job->stop = true;
        cond_broadcast(&job->changed);
        mutex_unlock(&job->mu);
        (void)sync_wait(job,
                        clock_mono_ns() + CANCEL_NS); /* a listing that takes longer finds that it was for nothing */
    }
}

/* ---- life ---- */

int sync_open(struct fs *fs)
{
    struct sync *s = g_new0(struct sync, 1);
    s->fs = fs;
    mutex_init(&s->mu, LOCK_CTL);
    cond_init(&s->idle);
    s->jobs = g_ptr_array_new_with_free_func((GDestroyNotify)sync_job_unref);
    sync_clock_init(s);
    sync_kept_init(s);
    fs->sync = s;
    return sync_kept_load(s);
}

void sync_close(struct fs *fs)
{
    struct sync *s = fs->sync;
    if (!s)
        return;
    mutex_lock(&s->mu);
    s->closing = true;
    cond_broadcast(&s->idle);
    mutex_unlock(&s->mu);
    sync_clock_join(s);
    g_autoptr(GPtrArray) jobs = sync_list(fs);
    for (guint i = 0; i < jobs->len; i++) { /* threads that wait for work look at fs.stopping when they wake */
        struct sync_job *job = jobs->pdata[i];
        mutex_lock(&job->mu);
        job->stop = true;
        cond_broadcast(&job->changed);
        mutex_unlock(&job->mu);
    }
    mutex_lock(&s->mu);
    while (s->live > 0)
        cond_wait(&s->idle, &s->mu);
    mutex_unlock(&s->mu);
}

void sync_fini(struct fs *fs)
{
    struct sync *s = fs->sync;
    if (!s)
        return;
    fs->sync = NULL;
    g_ptr_array_unref(s->jobs);
    sync_kept_fini(s);
    sync_clock_fini(s);
    cond_fini(&s->idle);
    mutex_fini(&s->mu);
    g_free(s);
}
