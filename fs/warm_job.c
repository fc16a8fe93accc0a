/* Records of background warm-ups: JSON text in the named value "warmup/ID". What cannot be read is named in the log and dropped: it is an order, no data. */
#include "warm_job.h"

#include "jobs.h"
#include "warm_internal.h"

#define RECORD_PREFIX "warmup/"
#define LAST_ID       "warmup-last"
#define WARM_HASTY_NS (60 * (int64_t)NS_PER_S)
#define MAX_HASTY     3 /* a mount is given up after five deaths in a row: a job is to have no part in that */

/* ---- counts ---- */

static const struct {
    const char *name;
    size_t at;
} counts[] = {
#define COUNT(field)                                                                                                   \
    {                                                                                                                  \
#field, offsetof(struct warm_progress, field)                                                                  \
    }
    COUNT(files_done),    COUNT(files_total),  COUNT(bytes_done),    COUNT(bytes_total),   COUNT(errors),
    COUNT(missing),       COUNT(files_cached), COUNT(files_fetched), COUNT(files_failed),  COUNT(bytes_cached),
    COUNT(bytes_fetched), COUNT(bytes_failed), COUNT(files_dropped), COUNT(bytes_dropped),
#undef COUNT
};

void warm_counts_put(json_t *o, const struct warm_progress *p)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++) {
        uint64_t v = *(const uint64_t *)((const char *)p + counts[i].at);
        json_object_set_new(o, counts[i].name, json_integer((json_int_t)v));
    }
}

static uint64_t number(const json_t *o, const char *name)
{
    json_int_t v = json_integer_value(json_object_get(o, name));
    return v > 0 ? (uint64_t)v : 0;
}

static void counts_get(const json_t *o, struct warm_progress *ret)
{
    *ret = (struct warm_progress){0};
    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++)
        *(uint64_t *)((char *)ret + counts[i].at) = number(o, counts[i].name);
}

/* ---- writing ---- */

static const char *const mode_names[] = {"fetch", "check", "evict"};

static char *record_name(uint64_t id)
{
    return g_strdup_printf(RECORD_PREFIX "%016" G_GINT64_MODIFIER "x", id);
}

static json_t *problems_json(struct warm *w)
{
    g_autoptr(GPtrArray) list = warm_problems(w);
    json_t *a = json_array();
    for (unsigned i = 0; i < list->len; i++) {
        g_autofree char *valid = g_utf8_make_valid(list->pdata[i], -1);
        json_array_append_new(a, json_string(valid));
    }
    return a;
}

static char *record_text(struct warm *w, enum warm_state state)
{
    struct warm_progress p;
    (void)warm_progress_get(w, &p);
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "mode", mode_names[w->mode], "state",
                          warm_state_name(state), "parallel", (json_int_t)w->parallel, "node", (json_int_t)w->node,
                          "nodes", (json_int_t)w->n_nodes, "limit", (json_int_t)w->limit_bps, "until_ns",
                          (json_int_t)w->until_ns, "resumed", (json_int_t)w->resumed, "problems", problems_json(w));
    json_object_set_new(o, "begun_ns", json_integer((json_int_t)w->begun_ns));
    json_object_set_new(o, "hasty", json_integer((json_int_t)w->hasty));
    json_object_set_new(o, "list_bytes", json_integer(w->list ? (json_int_t)warm_list_bytes(w->list) : 0));
    warm_counts_put(o, &p);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

int warm_job_save(struct warm *w, enum warm_state state, bool first)
{
    g_autofree char *name = record_name(w->id);
    char *text = record_text(w, state);
    if (!text)
        return -ENOMEM;
    struct meta_batch *b = meta_batch_new(w->fs->meta);
    meta_value_put(b, name, text, strlen(text));
    if (first)
        meta_value_put_u64(b, LAST_ID, w->id);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    free(text);
    return r;
}

void warm_job_forget(struct fs *fs, uint64_t id)
{
    g_autofree char *name = record_name(id);
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_del(b, name);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    if (r < 0)
        log_debug("warm", "an old job is still recorded id=%" G_GUINT64_FORMAT " r=%s", id, err_name(r));
    else
        warm_list_remove(fs->cache_dir, id);
}

static uint64_t id_of(const char *name)
{
    return g_ascii_strtoull(name + strlen(RECORD_PREFIX), NULL, 16);
}

static int take_highest(void *ctx, const char *name, const void *value, size_t len)
{
    uint64_t *id = ctx;
    *id = MAX(*id, id_of(name));
    return 0;
}

uint64_t warm_job_last_id(struct fs *fs)
{
    uint64_t id = 0;
    if (meta_value_get_u64(fs->meta, LAST_ID, &id) < 0)
        id = 0;
    /* Of two that began at once the one with the lower number may have been stored last. */
    if (meta_value_each(fs->meta, RECORD_PREFIX, take_highest, &id) < 0)
        log_warn("warm", "background warm-ups of before are not known");
    return id;
}

/* ---- going on ---- */

struct record {
    uint64_t id;
    json_t *o; /* owned; NULL: not JSON */
};

static void record_free(void *p)
{
    struct record *rec = p;
    json_decref(rec->o);
    g_free(rec);
}

static int take_record(void *ctx, const char *name, const void *value, size_t len)
{
    struct record *rec = g_new0(struct record, 1);
    rec->id = id_of(name);
    rec->o = json_loadb(value, len, 0, NULL);
    g_ptr_array_add((GPtrArray *)ctx, rec);
    return 0;
}

/* Index of a name; false: none of them. */
static bool find_name(const char *text, const char *const *names, unsigned n, unsigned *ret)
{
    for (unsigned i = 0; text && i < n; i++)
        if (g_str_equal(text, names[i])) {
            *ret = i;
            return true;
        }
    return false;
}

static bool state_of(const json_t *o, unsigned *ret)
{
    const char *text = json_string_value(json_object_get(o, "state"));
    for (unsigned i = 0; text && i <= WARM_TIMEOUT; i++)
        if (g_str_equal(text, warm_state_name(i))) {
            *ret = i;
            return true;
        }
    return false;
}

/* A record that is to say "stopped" from now on. */
static int record_stopped(struct fs *fs, const struct record *rec)
{
    json_object_set_new(rec->o, "state", json_string(warm_state_name(WARM_STOPPED)));
    g_autofree char *name = record_name(rec->id);
    char *text = json_dumps(rec->o, JSON_COMPACT);
    if (!text)
        return -ENOMEM;
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_put(b, name, text, strlen(text));
    int r = meta_commit(b, false);
    meta_batch_free(b);
    free(text);
    return r;
}

static void restore_ended(struct fs *fs, const struct record *rec, enum warm_state state)
{
    struct warm_progress sum;
    g_autoptr(GPtrArray) problems = g_ptr_array_new_with_free_func(g_free);
    const json_t *list = json_object_get(rec->o, "problems");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        g_ptr_array_add(problems, g_strdup(text ? text : ""));
    }
    counts_get(rec->o, &sum);
    warm_list_remove(fs->cache_dir, rec->id); /* a kill came between the record and this */
    warm_restore(fs, rec->id, state, &sum, problems);
}

static int go_on(struct fs *fs, const struct record *rec, enum warm_mode mode)
{
    struct warm_req req = {
        .mode = mode,
        .parallel = (unsigned)MIN(number(rec->o, "parallel"), 1024),
        .node = (unsigned)MIN(number(rec->o, "node"), WARM_NODES_MAX),
        .n_nodes = (unsigned)MIN(number(rec->o, "nodes"), WARM_NODES_MAX),
        .limit_bps = number(rec->o, "limit"),
        .until_ns = (int64_t)number(rec->o, "until_ns"),
        .background = true,
        .keep = true,
    };
    if (req.n_nodes && req.node >= req.n_nodes)
        return -EBADMSG;
    unsigned resumed = (unsigned)number(rec->o, "resumed") + 1;
    bool soon = clock_wall_ns() - (int64_t)number(rec->o, "begun_ns") < WARM_HASTY_NS;
    unsigned hasty = soon ? (unsigned)number(rec->o, "hasty") + 1 : 0;
    if (hasty > MAX_HASTY) {
        log_warn("warm", "a job is stopped: worker after worker ended soon after it began id=%" G_GUINT64_FORMAT,
                 rec->id);
        int r = record_stopped(fs, rec);
        if (r == 0)
            restore_ended(fs, rec, WARM_STOPPED);
        return r;
    }
    int r = warm_list_load(fs->cache_dir, rec->id, number(rec->o, "list_bytes"), &req.list);
    if (r == 0) {
        log_notice("warm", "goes on with a job of the worker before id=%" G_GUINT64_FORMAT, rec->id);
        r = warm_restart(fs, &req, rec->id, resumed, hasty);
    }
    return r;
}

static void resume(struct fs *fs, const struct record *rec)
{
    unsigned state = 0, mode = 0;
    const char *mode_text = json_string_value(json_object_get(rec->o, "mode"));
    bool readable =
        rec->id && state_of(rec->o, &state) && find_name(mode_text, mode_names, G_N_ELEMENTS(mode_names), &mode);
    int r = 0;
    if (readable && state != WARM_RUNNING)
        restore_ended(fs, rec, state);
    else
        r = readable ? go_on(fs, rec, mode) : -EBADMSG;
    if (r == 0 || r == -ECANCELED)
        return;
    log_warn("warm", "a background warm-up cannot go on, give it anew id=%" G_GUINT64_FORMAT " r=%s", rec->id,
             err_name(r));
    warm_job_forget(fs, rec->id);
}

static void resume_all(struct fs *fs)
{
    g_autoptr(GPtrArray) records = g_ptr_array_new_with_free_func(record_free);
    int r = meta_value_each(fs->meta, RECORD_PREFIX, take_record, records);
    if (r < 0) {
        log_warn("warm", "background warm-ups of before are not known r=%s", err_name(r));
        return;
    }
    for (unsigned i = 0; i < records->len; i++) {
        const struct record *rec = records->pdata[i];
        if (rec->id <= fs->jobs->left_id) /* younger ones are of this worker */
            resume(fs, rec);
    }
}

void warm_jobs_resume(struct fs *fs)
{
    struct jobs *j = fs->jobs;
    resume_all(fs);
    mutex_lock(&j->mu);
    j->resumed = true;
    cond_broadcast(&j->idle);
    mutex_unlock(&j->mu);
}

bool warm_jobs_known(struct fs *fs, uint64_t deadline_ns)
{
    struct jobs *j = fs->jobs;
    mutex_lock(&j->mu);
    while (!j->resumed && !j->closing)
        if (!cond_wait_until(&j->idle, &j->mu, deadline_ns))
            break;
    bool known = j->resumed || j->closing;
    mutex_unlock(&j->mu);
    return known;
}
