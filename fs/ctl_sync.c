/* The verbs sync and sync-status, and what `status` says of syncs. */
#include "ctl_proto.h"
#include "ctl_verbs.h"
#include "sync.h"

#define PROGRESS_NS  (250 * NS_PER_MS)
#define NAMED_FAILED 100u

static json_t *sync_line(struct sync_job *job)
{
    struct sync_progress p;
    enum sync_state state = sync_progress_get(job, &p);
    double seconds = (double)p.elapsed_ns / (double)NS_PER_S;
    json_t *o = json_pack(
        "{s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "event", "sync", "id", (json_int_t)sync_id(job),
        "state", sync_state_name(state), "mode", p.incremental ? "incremental" : "full", "names", (json_int_t)p.names,
        "directories", (json_int_t)p.dirs, "changed", (json_int_t)p.changed, "left_out", (json_int_t)p.skipped,
        "errors", (json_int_t)p.errors, "names_per_second", (json_int_t)((double)p.names / MAX(seconds, 0.001)),
        "elapsed_ms", (json_int_t)(p.elapsed_ns / NS_PER_MS));
    json_object_set_new(o, "path", verb_string(sync_path(job)));
    if (p.waits)
        json_object_set_new(o, "waits", json_true());
    if (p.err)
        json_object_set_new(o, "error", json_string(verb_err_text(p.err)));
    return o;
}

/* 0: it has ended, -ECANCELED: the client left. */
static int watch(struct ctl_client *client, struct sync_job *job)
{
    for (;;) {
        bool ended = sync_wait(job, clock_mono_ns() + PROGRESS_NS);
        if (ended)
            return 0;
        if (ctl_emit(client, sync_line(job)) < 0 || ctl_gone(client))
            return -ECANCELED;
    }
}

static void emit_failed(void *ctx, const char *path, int err)
{
    (void)verb_error(ctx, path, err); /* a client that left wants none */
}

static int report(struct fs *fs, struct ctl_client *client, struct sync_job *job)
{
    struct sync_progress p;
    enum sync_state state = sync_progress_get(job, &p);
    if (p.errors > 0)
        sync_failed_each(fs, sync_root(job), emit_failed, client);
    if (ctl_emit(client, sync_line(job)) < 0)
        return 1;
    const char *path = *sync_path(job) ? sync_path(job) : "/";
    if (p.err)
        ctl_fail(client, "'%s': %s", path, verb_err_text(p.err));
    else if (p.errors > 0)
        ctl_fail(client, "'%s': %" G_GUINT64_FORMAT " directories could not be listed", path, p.errors);
    else if (state == SYNC_STOPPED)
        ctl_fail(client, "'%s': stopped", path);
    return state == SYNC_DONE ? 0 : 1;
}

static int sync_path_of_request(struct fs *fs, struct ctl_client *client, const struct sync_req *req)
{
    struct sync_job *job = NULL;
    int r = sync_start(fs, req, &job);
    if (r < 0) {
        (void)verb_error(client, req->path, r);
        ctl_fail(client, "'%s' was not synced", *req->path ? req->path : "/");
        return 1;
    }
    int code = 0;
    if (req->background) {
        code = ctl_emit(client, sync_line(job)) < 0 ? 1 : 0;
    } else if (watch(client, job) < 0) {
        sync_leave(job);
        code = 1;
    } else {
        code = report(fs, client, job);
    }
    sync_job_unref(job);
    return code;
}

int verb_sync(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    int code = paths ? 0 : 1;
    for (unsigned i = 0; paths && paths[i]; i++) {
        if (ctl_gone(client))
            return 1; /* the rest is not listed */
        struct sync_req sr = {
            .path = paths[i],
            .incremental = json_is_true(json_object_get(req, "incremental")),
            .background = json_is_true(json_object_get(req, "background")),
            .asked_ns = (int64_t)verb_number(req, "first_asked_ns"), /* of one that the worker before did not answer */
            .parallel = (unsigned)MIN(verb_number(req, "parallel"), SYNC_PARALLEL_MAX),
        };
        if (sync_path_of_request(fs, client, &sr))
            code = 1;
    }
    notify_settle(fs);
    return code;
}

int verb_sync_status(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_autoptr(GPtrArray) jobs = sync_list(fs);
    for (guint i = 0; i < jobs->len; i++)
        if (ctl_emit(client, sync_line(jobs->pdata[i])) < 0)
            return 1;
    return 0;
}

/* ---- status ---- */

struct failed_names {
    json_t *list;
    uint64_t n;
};

static void add_failed(void *ctx, const char *path, int err)
{
    struct failed_names *f = ctx;
    if (f->n++ >= NAMED_FAILED)
        return;
    json_t *o = json_pack("{s:s}", "error", verb_err_text(err));
    json_object_set_new(o, "path", verb_string(path));
    json_array_append_new(f->list, o);
}

void sync_add_status(struct fs *fs, json_t *o)
{
    g_autoptr(GPtrArray) jobs = sync_list(fs);
    json_t *running = json_array();
    struct failed_names failed = {json_array(), 0};
    for (guint i = 0; i < jobs->len; i++) {
        struct sync_progress p;
        if (sync_progress_get(jobs->pdata[i], &p) != SYNC_RUNNING)
            continue;
        json_t *line = sync_line(jobs->pdata[i]);
        json_object_del(line, "event");
        json_array_append_new(running, line);
    }
    sync_failed_each(fs, 0, add_failed, &failed);
    json_object_set_new(o, "syncs", running);
    json_object_set_new(o, "synced_at", json_integer(sync_done_ns(fs, META_ROOT_INO) / (int64_t)NS_PER_S));
    json_object_set_new(o, "unlisted_directories", json_integer((json_int_t)failed.n));
    json_object_set_new(o, "unlisted", failed.list);
}
