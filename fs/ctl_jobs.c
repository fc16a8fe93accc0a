/*
 * Verbs that walk the tree: warmup (with its background jobs), evict, pin, unpin.
 *
 * A warm-up works in its own threads; the client's thread passes its events and progress on, and stops it when the client leaves.
 */
#include "ctl_proto.h"
#include "ctl_verbs.h"
#include "pin.h"
#include "tree.h"
#include "warm.h"

#define PROGRESS_NS (250 * NS_PER_MS)

/* ---- lines ---- */

static json_t *progress_line(const char *event, struct warm *w)
{
    struct warm_progress p;
    enum warm_state state = warm_progress_get(w, &p);
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b}", "event", event, "state", warm_state_name(state),
                     "files_done", (json_int_t)p.files_done, "files_total", (json_int_t)p.files_total, "bytes_done",
                     (json_int_t)p.bytes_done, "bytes_total", (json_int_t)p.bytes_total, "errors", (json_int_t)p.errors,
                     "counting", p.counting);
}

static json_t *job_line(struct warm *w)
{
    json_t *o = progress_line("job", w);
    json_object_set_new(o, "id", json_integer((json_int_t)warm_id(w)));
    return o;
}

static int emit_event(struct ctl_client *client, struct warm_event *e)
{
    if (e->err)
        return verb_error(client, e->path, e->err);
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
    }
    return r;
}

/* ---- watching ---- */

/* Passes on what the warm-up says until it has ended: 0, -ETIMEDOUT, or -ECANCELED when the client left. */
static int watch(struct ctl_client *client, struct warm *w, uint64_t deadline_ns, bool progress)
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
        if (progress && now >= next_ns && ctl_emit(client, progress_line("progress", w)) < 0)
            return -ECANCELED;
        if (now >= next_ns)
            next_ns = now + PROGRESS_NS;
    }
}

static uint64_t deadline_of(const json_t *req)
{
    uint64_t s = verb_number(req, "timeout_s");
    return s ? clock_mono_ns() + MIN(s, 1000000000u) * NS_PER_S : 0;
}

/* Runs a warm-up to its end in the foreground. Returns the exit code; *ret_w has it for its totals. */
static int run_watched(struct fs *fs, struct ctl_client *client, const json_t *req, const struct warm_req *wr,
                       struct warm **ret_w)
{
    struct warm *w = NULL;
    int r = warm_start(fs, wr, &w);
    if (r < 0) {
        ctl_fail(client, "the mount is going away");
        return 1;
    }
    r = watch(client, w, deadline_of(req), wr->mode != WARM_EVICT);
    if (r < 0)
        warm_stop(w);
    if (r == 0)
        (void)emit_events(client, w); /* what came between the last look and the end; a client that left wants none */
    if (wr->mode != WARM_EVICT)
        (void)ctl_emit(client, progress_line("progress", w));
    struct warm_progress p;
    enum warm_state state = warm_progress_get(w, &p);
    *ret_w = w;
    if (r == -ETIMEDOUT)
        return 3;
    if (r == 0 && state == WARM_STOPPED)
        ctl_fail(client, "stopped");
    else if (r == 0 && p.errors > 0)
        ctl_fail(client, "%" G_GUINT64_FORMAT " failed", p.errors);
    return r == 0 && state == WARM_DONE ? 0 : 1;
}

static bool flag(const json_t *req, const char *name)
{
    return json_is_true(json_object_get(req, name));
}

int verb_warmup(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    if (!paths)
        return 1;
    if (flag(req, "evict"))
        return verb_evict(fs, client, req);
    struct warm_req wr = {
        .paths = (const char *const *)paths,
        .mode = flag(req, "check") ? WARM_CHECK : WARM_FETCH,
        .parallel = (unsigned)MIN(verb_number(req, "parallel"), CTL_PARALLEL_MAX),
        .background = flag(req, "background"),
    };
    struct warm *w = NULL;
    int code = 0;
    if (!wr.background)
        code = run_watched(fs, client, req, &wr, &w);
    else if (warm_start(fs, &wr, &w) < 0)
        code = 1;
    else
        code = ctl_emit(client, job_line(w)) < 0 ? 1 : 0;
    warm_unref(w);
    return code;
}

int verb_warmup_status(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    uint64_t id = verb_number(req, "id");
    g_autoptr(GPtrArray) list = warm_list(fs);
    bool found = id == 0;
    for (unsigned i = 0; i < list->len; i++) {
        struct warm *w = list->pdata[i];
        if (id ? warm_id(w) != id : !warm_is_background(w))
            continue;
        found = true;
        if (ctl_emit(client, job_line(w)) < 0)
            return 1;
    }
    if (!found)
        ctl_fail(client, "no warm-up has the id %" G_GUINT64_FORMAT, id);
    return found ? 0 : 1;
}

int verb_warmup_stop(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    uint64_t id = verb_number(req, "id");
    g_autoptr(GPtrArray) list = warm_list(fs);
    for (unsigned i = 0; i < list->len; i++) {
        struct warm *w = list->pdata[i];
        if (warm_id(w) != id)
            continue;
        warm_stop(w);
        uint64_t deadline = clock_mono_ns() + NS_PER_S; /* long enough for the line to say "stopped" most of the time */
        while (!warm_wait(w, deadline) && clock_mono_ns() < deadline)
            ;
        return ctl_emit(client, job_line(w)) < 0 ? 1 : 0;
    }
    ctl_fail(client, "no warm-up has the id %" G_GUINT64_FORMAT, id);
    return 1;
}

int verb_evict(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    if (!paths)
        return 1;
    struct warm_req wr = {.paths = (const char *const *)paths, .mode = WARM_EVICT, .parallel = 2};
    struct warm *w = NULL;
    int code = run_watched(fs, client, req, &wr, &w);
    if (w) {
        struct warm_progress p;
        (void)warm_progress_get(w, &p);
        if (ctl_emit(client, json_pack("{s:s, s:I, s:I}", "event", "evicted", "bytes", (json_int_t)p.bytes_done,
                                       "files", (json_int_t)p.files_done)) < 0)
            code = 1;
    }
    warm_unref(w);
    return code;
}

/* ---- pins ---- */

static int emit_pinned(struct ctl_client *client, bool pinned, const char *path)
{
    json_t *o = json_pack("{s:s}", "event", pinned ? "pinned" : "unpinned");
    json_object_set_new(o, "path", verb_string(path));
    return ctl_emit(client, o);
}

static int pin_path(struct fs *fs, struct ctl_client *client, const char *path, enum cache_pin pin)
{
    INODE_REF in = NULL;
    g_autofree char *real = NULL;
    bool pinned = pin != PIN_NONE;
    int r = tree_follow(fs, path, NULL, &real, &in);
    if (r == 0 && pinned && inode_is_dir(in))
        r = tree_refresh_all(fs, in, false);
    if (r == 0)
        r = pin_tree(fs, in->ino, pin);
    if (r == 0 && pinned)
        pin_fetch(fs, (const char *const[]){real, NULL});
    if (r < 0)
        return r;
    (void)emit_pinned(client, pinned, path); /* the pin stays whether or not somebody reads this */
    return 0;
}

static int pin_rule(struct fs *fs, struct ctl_client *client, const char *glob, unsigned latest, enum cache_pin pin)
{
    g_autofree char *dir_path = g_path_get_dirname(glob);
    INODE_REF dir = NULL;
    int r = tree_resolve(fs, strchr(glob, '/') ? dir_path : "", &dir);
    if (r == 0 && inode_is_dir(dir))
        r = tree_refresh(fs, dir, false);
    if (r < 0 && r != -ENOENT) /* a folder that does not exist yet the rule waits for */
        return r;
    g_autoptr(GPtrArray) pinned = g_ptr_array_new_with_free_func(g_free);
    r = pin_rule_set(fs, glob, latest, pin, pinned);
    if (r == -EINVAL)
        ctl_fail(client, "'%s': only the last component of a rule may have wildcards", glob);
    for (unsigned i = 0; i < pinned->len; i++)
        (void)emit_pinned(client, true, pinned->pdata[i]);
    return r;
}

/* Takes the rule of that name away, and without `latest` the pin of the path as well. */
static int unpin(struct fs *fs, struct ctl_client *client, const char *path, unsigned latest)
{
    int r = pin_rule_remove(fs, path, latest);
    bool had_rule = r == 0;
    if (r == -ENOENT && latest)
        ctl_fail(client, "'%s': there is no rule that keeps %u names", path, latest);
    if (!latest && (had_rule || r == -ENOENT))
        r = pin_path(fs, client, path, PIN_NONE);
    if (had_rule && (latest || r == -ENOENT)) {
        r = 0;
        (void)emit_pinned(client, false, path);
    }
    return r;
}

static int pin_or_unpin(struct fs *fs, struct ctl_client *client, const json_t *req, enum cache_pin pin)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    if (!paths)
        return 1;
    unsigned latest = (unsigned)MIN(verb_number(req, "latest"), 1000000);
    int code = 0;
    for (unsigned i = 0; paths[i] && !ctl_gone(client); i++) {
        int r = pin == PIN_NONE ? unpin(fs, client, paths[i], latest)
                : latest        ? pin_rule(fs, client, paths[i], latest, pin)
                                : pin_path(fs, client, paths[i], pin);
        if (r < 0) {
            code = 1;
            (void)verb_error(client, paths[i], r);
        }
    }
    return code;
}

int verb_pin(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    bool memory = flag(req, "memory");
    if (memory && fs->cfg->memory_cache == 0) {
        ctl_fail(client, "this mount has no memory cache: give --memory-cache to mount");
        return 1;
    }
    return pin_or_unpin(fs, client, req, memory ? PIN_MEMORY : PIN_DISK);
}

int verb_unpin(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    return pin_or_unpin(fs, client, req, PIN_NONE);
}
