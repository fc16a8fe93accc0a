/*
 * See sync.h: which sync a request gets. Of one directory one sync runs at a time. Who asks meanwhile wants what is in the store now, so a sync joins one that runs only if that began
 * since then, and says as much; else it waits for it to end, and whoever else asks until then shares it.
 */
#include "sync_internal.h"
#include "tree.h"

#include <stdlib.h>

#define KEEP_FINISHED 16
#define RESUMED_MAX   3

/* What somebody asks for. */
struct want {
    int64_t since_ns; /* all is to be listed then or later; INT64_MIN: any sync will do */
    bool incremental, background;
};

static void forget_finished_locked(struct sync *s, GPtrArray *dropped) REQUIRES(s->mu)
{
    for (guint i = 0; i < s->jobs->len && s->jobs->len >= KEEP_FINISHED;) {
        struct sync_job *job = sync_job_ref(s->jobs->pdata[i]);
        mutex_unlock(&s->mu);
        struct sync_progress p;
        bool runs = sync_progress_get(job, &p) == SYNC_RUNNING;
        mutex_lock(&s->mu);
        if (!runs && i < s->jobs->len && s->jobs->pdata[i] == job)
            g_ptr_array_add(dropped, g_ptr_array_steal_index(s->jobs, i));
        else
            i++;
        g_ptr_array_add(dropped, job); /* ours; freed without the lock */
    }
}

/* False: it does not do. */
static bool join(struct sync_job *job, const struct want *w)
{
    int64_t ttl_ns = (int64_t)job->fs->cfg->metadata_ttl_ns;
    mutex_lock(&job->mu);
    const struct sync_run *run = &job->run;
    int64_t lists_since_ns = run->began_ns - (run->incremental ? ttl_ns : 0);
    bool anew = !job->begun && run->began_ns == 0; /* one that is gone on with began in an earlier worker */
    bool can = job->state == SYNC_RUNNING && (anew || (!job->stop && lists_since_ns >= w->since_ns));
    if (can && anew) {
        job->stop = false; /* all who wanted it had left */
        job->run.incremental &= w->incremental;
    }
    if (can && (w->background || job->adopted)) {
        job->background = w->background;
        job->adopted = false;
    }
    job->watchers += can && !w->background;
    mutex_unlock(&job->mu);
    return can;
}

/* A sync of that directory that does, with a reference, or NULL; *ret_last: of those after that number it is not known. */
static struct sync_job *join_one(struct fs *fs, uint64_t ino, const struct want *w, uint64_t *ret_last)
{
    mutex_lock(&fs->sync->mu);
    *ret_last = fs->sync->last_id;
    mutex_unlock(&fs->sync->mu);
    g_autoptr(GPtrArray) jobs = sync_list(fs);
    for (guint i = 0; i < jobs->len; i++) {
        struct sync_job *job = jobs->pdata[i];
        if (job->run.ino == ino && join(job, w))
            return sync_job_ref(job);
    }
    return NULL;
}

static bool is_taken_locked(struct sync *s, uint64_t ino) REQUIRES(s->mu)
{
    for (guint i = 0; i < s->jobs->len; i++) {
        const struct sync_job *job = s->jobs->pdata[i];
        if (job->run.ino == ino && !job->over)
            return true;
    }
    return false;
}

/* What was listed before it begins does not count. */
static void begin_anew(struct sync_job *job)
{
    job->run.began_ns = 0;
    job->run.n_values = job->n_values = 0;
    g_array_set_size(job->run.visited, 0);
}

/* It begins, or does when the one that runs has ended. -EAGAIN: another one came meanwhile. */
static int put(struct sync *s, struct sync_job *job, uint64_t last)
{
    g_autoptr(GPtrArray) dropped = g_ptr_array_new_with_free_func((GDestroyNotify)sync_job_unref);
    mutex_lock(&s->mu);
    forget_finished_locked(s, dropped);
    int r = s->closing ? -ECANCELED : s->last_id > last ? -EAGAIN : 0;
    if (r == 0) {
        job->queued = is_taken_locked(s, job->run.ino);
        if (job->queued)
            begin_anew(job); /* nobody else knows it yet */
        job->id = ++s->last_id;
        s->live++;
        g_ptr_array_add(s->jobs, sync_job_ref(job));
    }
    bool queued = job->queued;
    mutex_unlock(&s->mu);
    if (r == 0 && !queued)
        sync_job_launch(job);
    return r;
}

/* job, which is taken over, or one that does as well. */
static int put_or_join(struct fs *fs, struct sync_job *job, const struct want *w, struct sync_job **ret)
{
    int r = -EAGAIN;
    while (r == -EAGAIN) {
        uint64_t last = 0;
        struct sync_job *other = join_one(fs, job->run.ino, w, &last);
        if (other) {
            sync_job_unref(job);
            *ret = other;
            return 0;
        }
        r = put(fs->sync, job, last);
    }
    if (r < 0)
        sync_job_unref(job);
    else
        *ret = job;
    return r;
}

int sync_start(struct fs *fs, const struct sync_req *req, struct sync_job **ret)
{
    INODE_REF dir = NULL;
    g_autofree char *path = NULL;
    int64_t now = clock_wall_ns(), asked_ns = req->asked_ns ? MIN(req->asked_ns, now) : now;
    int r = tree_follow(fs, req->path, NULL, &path, &dir);
    if (r == 0 && !inode_is_dir(dir))
        r = -ENOTDIR;
    if (r < 0)
        return r;
    struct want w = {
        .since_ns = req->any ? INT64_MIN : asked_ns - (req->incremental ? (int64_t)fs->cfg->metadata_ttl_ns : 0),
        .incremental = req->incremental,
        .background = req->background,
    };
    struct sync_run run = {
        .ino = dir->ino,
        .parallel = CLAMP(req->parallel ? req->parallel : SYNC_PARALLEL, 1, SYNC_PARALLEL_MAX),
        .incremental = req->incremental,
        .visited = g_array_new(FALSE, FALSE, sizeof(uint64_t)),
    };
    struct sync_job *job = sync_job_new(fs, &run, path);
    job->background = req->background;
    job->watchers = !req->background;
    return put_or_join(fs, job, &w, ret);
}

/* ---- what was cut off ---- */

static bool is_too_old(struct sync_run *run)
{
    if (++run->resumed > RESUMED_MAX) {
        log_warn("sync", "not gone on with: it was cut off %u times, sync it anew ino=%" G_GUINT64_FORMAT, run->resumed,
                 run->ino);
        return true;
    }
    return run->began_ns < clock_wall_ns() - SYNC_RESUME_NS;
}

/* Who was cut off may have asked anew already. Takes over run->visited. */
static void go_on(struct fs *fs, struct sync_run *run)
{
    g_autofree char *path = NULL;
    uint64_t last = 0;
    const struct want any = {.since_ns = INT64_MIN, .incremental = run->incremental, .background = !run->watched};
    struct sync_job *job = join_one(fs, run->ino, &any, &last);
    if (job) {
        if (run->watched)
            sync_leave(job); /* those who watch have joined it by themselves */
        sync_job_unref(job);
        g_clear_pointer(&run->visited, g_array_unref);
        return;
    }
    if (is_too_old(run) || tree_path_of(fs, run->ino, &path) < 0) {
        if (sync_run_end(fs->sync, run, 0) < 0)
            log_debug("sync", "what is kept of an old sync stays");
        g_clear_pointer(&run->visited, g_array_unref);
        return;
    }
    run->parallel = CLAMP(run->parallel, 1, SYNC_PARALLEL_MAX);
    log_notice("sync", "going on path='%s' listed=%u", path, run->visited->len);
    struct sync_job *old = sync_job_new(fs, run, path);
    run->visited = NULL;
    old->background = true;
    old->adopted = run->watched;
    if (put_or_join(fs, sync_job_ref(old), &any, &job) < 0)
        log_debug("sync", "not gone on with: the daemon stops");
    else if (job != old && run->watched)
        sync_leave(job); /* as above: they came meanwhile */
    sync_job_unref(job);
    sync_job_unref(old);
}

void sync_begin(struct fs *fs)
{
    struct sync *s = fs->sync;
    for (guint i = 0; i < s->cut_off->len; i++)
        go_on(fs, &g_array_index(s->cut_off, struct sync_run, i));
    g_array_set_size(s->cut_off, 0);
    sync_clock_begin(s);
}
