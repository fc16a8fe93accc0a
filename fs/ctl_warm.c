/*
 * Verbs of warm-ups: warmup with its background jobs, evict.
 *
 * A warm-up works in its own threads; the client's thread passes its events and progress on, and stops it when the client leaves. Background ones are kept
 * (warm_job.h).
 */
#include "ctl_proto.h"
#include "ctl_verbs.h"
#include "warm_job.h"
#include "warm_list.h"

#define PROGRESS_NS (250 * NS_PER_MS)

/* ---- lines ---- */

static json_t *progress_line(const char *event, struct warm *w)
{
    struct warm_progress p;
    enum warm_state state = warm_progress_get(w, &p);
    json_t *o =
        json_pack("{s:s, s:s, s:b}", "event", event, "state", warm_state_name(state), "counting", (int)p.counting);
    warm_counts_put(o, &p);
    return o;
}

static json_t *job_line(struct warm *w, bool problems)
{
    json_t *o = progress_line("job", w);
    json_object_set_new(o, "id", json_integer((json_int_t)warm_id(w)));
    json_object_set_new(o, "resumed", json_integer((json_int_t)warm_resumed(w)));
    if (!problems)
        return o;
    g_autoptr(GPtrArray) list = warm_problems(w);
    json_t *a = json_array();
    for (unsigned i = 0; i < list->len; i++)
        json_array_append_new(a, verb_string(list->pdata[i]));
    json_object_set_new(o, "problems", a);
    return o;
}

static int emit_event(struct ctl_client *client, struct warm_event *e)
{
    if (e->err)
        return verb_error(client, e->path, e->err);
    if (e->warning)
        return ctl_emit(client, json_pack("{s:s, s:s}", "event", "warning", "message", e->warning));
    json_t *o = json_pack("{s:s, s:I, s:I}", "event", "check", "cached_bytes", (json_int_t)e->cached_bytes, "size",
                          (json_int_t)e->size);
    json_object_set_new(o, "path", verb_string(e->path));
    return ctl_emit(client, o);
}

static int emit_events(struct ctl_client *client, struct warm *w)
{
    struct warm_event e;
    int r = 0;
    while (r == 0 && warm_event_pop(w, &e)) {
        r = emit_event(client, &e);
        g_free(e.path);
        g_free(e.warning);
    }
    return r;
}

/* ---- watching ---- */

/* Passes on what the warm-up says until it has ended: 0, -ETIMEDOUT, or -ECANCELED when the client left. */
static int watch(struct ctl_client *client, struct warm *w, uint64_t deadline_ns)
{
    uint64_t next_ns = 0;
    for (;;) {
        uint64_t now = clock_mono_ns();
        bool timed_out = deadline_ns && now >= deadline_ns;
        uint64_t until = timed_out ? now : MAX(next_ns, now + NS_PER_MS);
        bool ended = warm_wait(w, deadline_ns ? MIN(until, MAX(deadline_ns, now)) : until);
        if (emit_events(client, w) < 0 || ctl_gone(client))
            return -ECANCELED;
        if (ended)
            return 0;
        if (timed_out)
            return -ETIMEDOUT;
        now = clock_mono_ns();
        if (now >= next_ns && ctl_emit(client, progress_line("progress", w)) < 0)
            return -ECANCELED;
        if (now >= next_ns)
            next_ns = now + PROGRESS_NS;
    }
}

static uint64_t timeout_ns(const json_t *req)
{
    return MIN(verb_number(req, "timeout_s"), 1000000000u) * NS_PER_S;
}

/* The exit code of one that ended, and why it is not 0. */
static int result_of(struct ctl_client *client, enum warm_mode mode, enum warm_state state,
                     const struct warm_progress *p)
{
    uint64_t absent = p->files_total - p->files_cached;
    if (state == WARM_STOPPED) {
        ctl_fail(client, "stopped");
    } else if (p->errors > 0) {
        g_autofree char *names =
            p->missing ? g_strdup_printf(", %" G_GUINT64_FORMAT " of them not found", p->missing) : g_strdup("");
        ctl_fail(client, "%" G_GUINT64_FORMAT " failed%s", p->errors, names);
    } else if (p->files_dropped > 0) {
        ctl_fail(client,
                 "%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
                 " files are not in the cache any more: it has no room for all",
                 p->files_dropped, p->files_total);
    } else if (mode == WARM_CHECK && absent > 0) {
        ctl_fail(client, "%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT " files are not in the cache", absent,
                 p->files_total);
        return 1;
    }
    return state == WARM_DONE ? 0 : 1;
}

/* Runs a warm-up to its end in the foreground. Returns the exit code; *ret_w has it for its totals. */
static int run_watched(struct fs *fs, struct ctl_client *client, const json_t *req, const struct warm_req *wr,
                       struct warm **ret_w)
{
    struct warm *w = NULL;
    uint64_t limit_ns = timeout_ns(req);
    int r = warm_start(fs, wr, &w);
    if (r < 0) {
        ctl_fail(client, "the mount is going away");
        return 1;
    }
    r = watch(client, w, limit_ns ? clock_mono_ns() + limit_ns : 0);
    if (r < 0)
        warm_stop(w);
    if (r == 0)
        (void)emit_events(client, w); /* what came between the last look and the end; a client that left wants none */
    (void)ctl_emit(client, progress_line("progress", w));
    struct warm_progress p;
    enum warm_state state = warm_progress_get(w, &p);
    *ret_w = w;
    if (r == -ETIMEDOUT)
        return 3;
    if ((r < 0 && ctl_is_stopping(client)) || (state == WARM_STOPPED && atomic_load(&fs->stopping)))
        return CTL_AGAIN;
    return r == 0 ? result_of(client, wr->mode, state, &p) : 1;
}

/* ---- requests ---- */

static bool flag(const json_t *req, const char *name)
{
    return json_is_true(json_object_get(req, name));
}

/* "" ends the list. -EBADMSG: no path. */
static int add_line(struct warm_list *list, const GString *line)
{
    json_t *o = json_loadb(line->str, line->len, JSON_DECODE_ANY, NULL);
    const char *text = json_string_value(o);
    g_autofree char *path = text ? verb_clean_path(text) : NULL;
    int r = path ? warm_list_add(list, path) : -EBADMSG;
    json_decref(o);
    return r;
}

/* The lines behind the request. */
static int read_lines(struct ctl_client *client, struct warm_list *list)
{
    g_autoptr(GString) line = g_string_new(NULL);
    int r;
    while ((r = ctl_read(client, line)) == 0 && line->len > 0) {
        r = add_line(list, line);
        if (r == -EBADMSG)
            ctl_fail(client, "a path of the list makes no sense: %.100s", line->str);
        if (r < 0)
            return r;
    }
    return r;
}

/* What was asked for, as a list. */
static int read_list(struct ctl_client *client, const json_t *req, char **paths, struct warm_list *list)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && paths && paths[i]; i++)
        r = warm_list_add(list, paths[i]);
    if (r == 0 && flag(req, "list"))
        r = read_lines(client, list);
    int closed = warm_list_close(list);
    return r < 0 ? r : closed;
}

static int make_list(struct fs *fs, struct ctl_client *client, const json_t *req, char **paths, struct warm_list **ret)
{
    struct warm_list *list = NULL;
    int r = warm_list_new(fs->cache_dir, &list);
    if (r == 0)
        r = read_list(client, req, paths, list);
    if (r < 0 && r != -EBADMSG)
        ctl_fail(client, "the list of paths cannot be kept in %s/jobs: %s", fs->cache_dir, err_text(r));
    if (r == 0 && warm_list_count(list) == 0) {
        ctl_fail(client, "the request has no paths");
        r = -EINVAL;
    }
    if (r < 0)
        warm_list_free(list);
    else
        *ret = list;
    return r;
}

/* Numbers of the request that make no sense are refused, not bent. */
static bool read_numbers(struct ctl_client *client, const json_t *req, struct warm_req *wr)
{
    uint64_t node = verb_number(req, "node"), nodes = verb_number(req, "nodes");
    if (nodes > WARM_NODES_MAX || (nodes && node >= nodes)) {
        ctl_fail(client, "there is no share %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT, node, nodes);
        return false;
    }
    wr->node = (unsigned)node;
    wr->n_nodes = (unsigned)nodes;
    wr->parallel = (unsigned)MIN(verb_number(req, "parallel"), CTL_PARALLEL_MAX);
    wr->limit_bps = verb_number(req, "download_limit");
    return true;
}

static int start_background(struct fs *fs, struct ctl_client *client, const json_t *req, struct warm_req *wr)
{
    struct warm *w = NULL;
    uint64_t limit_ns = timeout_ns(req);
    wr->keep = true;
    wr->until_ns = limit_ns ? clock_wall_ns() + (int64_t)limit_ns : 0;
    int r = warm_start(fs, wr, &w);
    if (r < 0)
        ctl_fail(client, "the job cannot be recorded: %s", err_text(r));
    else
        r = ctl_emit(client, job_line(w, false));
    warm_unref(w);
    return r < 0 ? 1 : 0;
}

/* What a worker that ends has dropped so far is no result: the next one tells of all. */
static int end_evict(struct ctl_client *client, struct warm *w, int code)
{
    if (!w || code == CTL_AGAIN)
        return code;
    struct warm_progress p;
    (void)warm_progress_get(w, &p);
    int r = ctl_emit(client, json_pack("{s:s, s:I, s:I}", "event", "evicted", "bytes", (json_int_t)p.bytes_done,
                                       "files", (json_int_t)p.files_done));
    return r < 0 ? 1 : code;
}

int verb_warmup(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    struct warm_req wr = {.mode = flag(req, "evict")   ? WARM_EVICT
                                  : flag(req, "check") ? WARM_CHECK
                                                       : WARM_FETCH,
                          .background = flag(req, "background")};
    bool listed = flag(req, "list");
    g_auto(GStrv) paths = listed && !json_object_get(req, "paths") ? NULL : verb_paths(client, req);
    if ((!paths && !listed) || !read_numbers(client, req, &wr))
        return 1;
    if (listed || wr.background) {
        if (make_list(fs, client, req, paths, &wr.list) < 0)
            return 1;
    } else {
        wr.paths = (const char *const *)paths;
    }
    if (wr.background)
        return start_background(fs, client, req, &wr);
    struct warm *w = NULL;
    int code = run_watched(fs, client, req, &wr, &w);
    if (wr.mode == WARM_EVICT)
        code = end_evict(client, w, code);
    warm_unref(w);
    return code;
}

/* ---- jobs ---- */

/* With those of the worker before, which a command that waited for this one may ask for. Owned by the caller. */
static GPtrArray *list_jobs(struct fs *fs, struct ctl_client *client)
{
    while (!ctl_gone(client) && !warm_jobs_known(fs, clock_mono_ns() + PROGRESS_NS))
        ;
    return warm_list_jobs(fs);
}

static struct warm *find_job(struct fs *fs, struct ctl_client *client, uint64_t id)
{
    g_autoptr(GPtrArray) list = list_jobs(fs, client);
    for (unsigned i = 0; i < list->len; i++) {
        struct warm *w = list->pdata[i];
        if (warm_id(w) == id)
            return warm_ref(w);
    }
    ctl_fail(client, "no warm-up has the id %" G_GUINT64_FORMAT, id);
    return NULL;
}

static int status_of_one(struct ctl_client *client, struct warm *w)
{
    static const int codes[] = {
        [WARM_RUNNING] = 3, [WARM_DONE] = 0, [WARM_FAILED] = 1, [WARM_STOPPED] = 3, [WARM_TIMEOUT] = 3};
    struct warm_progress p;
    enum warm_state state = warm_progress_get(w, &p);
    if (ctl_emit(client, job_line(w, true)) < 0)
        return 1;
    if (codes[state])
        ctl_fail(client, "job %" G_GUINT64_FORMAT ": %s", warm_id(w), warm_state_name(state));
    return codes[state];
}

int verb_warmup_status(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    uint64_t id = verb_number(req, "id");
    if (id) {
        struct warm *w = find_job(fs, client, id);
        int code = w ? status_of_one(client, w) : 1;
        warm_unref(w);
        return code;
    }
    g_autoptr(GPtrArray) list = list_jobs(fs, client);
    for (unsigned i = 0; i < list->len; i++) {
        struct warm *w = list->pdata[i];
        if (warm_is_kept(w) && ctl_emit(client, job_line(w, false)) < 0)
            return 1;
    }
    return 0;
}

int verb_warmup_stop(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    struct warm *w = find_job(fs, client, verb_number(req, "id"));
    if (!w)
        return 1;
    warm_cancel(w);
    uint64_t deadline = clock_mono_ns() + NS_PER_S; /* long enough for the line to say "stopped" most of the time */
    while (!warm_wait(w, deadline) && clock_mono_ns() < deadline)
        ;
    int r = ctl_emit(client, job_line(w, false));
    warm_unref(w);
    return r < 0 ? 1 : 0;
}

int verb_evict(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    if (!paths)
        return 1;
    struct warm_req wr = {.paths = (const char *const *)paths, .mode = WARM_EVICT, .parallel = 2};
    struct warm *w = NULL;
    int code = run_watched(fs, client, req, &wr, &w);
    code = end_evict(client, w, code);
    warm_unref(w);
    return code;
}
