/*
 * `sluice status` and the gauges behind /metrics: what the mount holds, owes and does, from memory and database. Nothing here waits for the store, so that it
 * answers during an outage, which is when it is asked.
 */
#include "conflict.h"
#include "ctl_verbs.h"
#include "daemon.h"
#include "io_mode.h"
#include "links.h"
#include "local.h"
#include "mapped.h"
#include "overdue.h"
#include "publish.h"
#include "rules.h"
#include "tree.h"

#include <unistd.h>

#define LOST_NAMES_MAX 1000u

struct status_counts {
    struct cache_usage cache;
    struct publish_counts pub;
    struct local_counts local;
    struct overdue overdue; /* owned */
    uint64_t quarantined, conflicts;
    int64_t oldest_dirty_s;
    int64_t names_late_s; /* rounded up */
};

/* ---- quarantined files: they keep their journal record, so only those names are looked at; those that are kept here have none (local.h) ---- */

struct op_name {
    uint64_t parent;
    char *name;
};

static void op_name_clear(void *p)
{
    g_free(((struct op_name *)p)->name);
}

static void take_op(void *ctx, const struct meta_op *op, const char *path, int err)
{
    if (op->kind == OP_SYNC && op->state != OPS_QUEUED) {
        struct op_name n = {op->parent, g_strdup(op->name)};
        g_array_append_val((GArray *)ctx, n);
    }
}

static bool is_quarantined(struct fs *fs, const struct op_name *n)
{
    struct meta_dentry d = {0};
    struct meta_inode rec;
    if (meta_dentry_get(fs->meta, n->parent, n->name, &d) < 0)
        return false;
    bool found = meta_inode_get(fs->meta, d.ino, &rec) == 0;
    bool bad = found && rec.content == CONTENT_QUARANTINED;
    if (found)
        meta_inode_clear(&rec);
    meta_dentry_clear(&d);
    return bad;
}

static uint64_t count_quarantined(struct fs *fs)
{
    g_autoptr(GArray) names = g_array_new(FALSE, FALSE, sizeof(struct op_name));
    g_array_set_clear_func(names, op_name_clear);
    publish_each(fs->pub, take_op, names);
    uint64_t n = 0;
    for (unsigned i = 0; i < names->len; i++)
        n += is_quarantined(fs, &g_array_index(names, struct op_name, i));
    return n;
}

static void count_all(struct fs *fs, struct status_counts *ret)
{
    *ret = (struct status_counts){0};
    cache_usage(fs->cache, &ret->cache);
    publish_count(fs->pub, "", &ret->pub);
    local_count(fs, &ret->local);
    overdue_find(fs, &ret->overdue);
    ret->cache.dirty_bytes -= MIN(ret->local.disk_bytes, ret->cache.dirty_bytes);
    ret->quarantined = count_quarantined(fs) + ret->local.quarantined;
    ret->names_late_s = (int64_t)((tree_names_late_ns(fs) + NS_PER_S - 1) / NS_PER_S);
    ret->conflicts = ret->pub.unsettled + conflict_count(fs->meta, "");
    if (ret->pub.oldest_ns > 0)
        ret->oldest_dirty_s = MAX((clock_wall_ns() - ret->pub.oldest_ns) / (int64_t)NS_PER_S, 0);
}

static void set_gauges(struct fs *fs, const struct status_counts *c)
{
    metric_set(M_cache_bytes, (int64_t)c->cache.used_bytes);
    metric_set(M_cache_limit_bytes, (int64_t)c->cache.limit_bytes);
    metric_set(M_pinned_bytes, (int64_t)c->cache.pinned_bytes);
    metric_set(M_dirty_bytes, (int64_t)c->cache.dirty_bytes);
    metric_set(M_dirty_files, (int64_t)c->pub.files);
    metric_set(M_local_only_files, (int64_t)c->local.files);
    metric_set(M_local_only_bytes, (int64_t)c->local.bytes);
    metric_set(M_oldest_dirty_seconds, c->oldest_dirty_s);
    metric_set(M_overdue_seconds, c->overdue.age_s);
    metric_set(M_uploading, (int64_t)c->pub.uploading);
    metric_set(M_conflicts, (int64_t)c->conflicts);
    metric_set(M_parked, (int64_t)c->pub.parked);
    metric_set(M_names_late_seconds, c->names_late_s);
    metric_set(M_offline_since, objstore_offline_since_ns(fs->store) / (int64_t)NS_PER_S);
}

void fs_refresh_gauges(struct fs *fs)
{
    struct status_counts c;
    count_all(fs, &c);
    set_gauges(fs, &c);
    overdue_clear(&c.overdue);
}

/* ---- the reply ---- */

static json_t *kernel_features(struct fs *fs)
{
    static const struct {
        uint64_t bit;
        const char *name;
    } names[] = {
        {FUSE_CAP_ASYNC_READ, "async-read"},
        {FUSE_CAP_ATOMIC_O_TRUNC, "atomic-o-trunc"},
        {FUSE_CAP_AUTO_INVAL_DATA, "auto-inval-data"},
        {FUSE_CAP_EXPLICIT_INVAL_DATA, "explicit-inval-data"},
        {FUSE_CAP_READDIRPLUS, "readdirplus"},
        {FUSE_CAP_READDIRPLUS_AUTO, "readdirplus-auto"},
        {FUSE_CAP_PARALLEL_DIROPS, "parallel-dirops"},
        {FUSE_CAP_SPLICE_READ, "splice-read"},
        {FUSE_CAP_SPLICE_WRITE, "splice-write"},
        {FUSE_CAP_SPLICE_MOVE, "splice-move"},
        {FUSE_CAP_WRITEBACK_CACHE, "writeback-cache"},
        {FUSE_CAP_NO_OPEN_SUPPORT, "no-open"},
        {FUSE_CAP_NO_OPENDIR_SUPPORT, "no-opendir"},
        {FUSE_CAP_CACHE_SYMLINKS, "cache-symlinks"},
        {FUSE_CAP_HANDLE_KILLPRIV, "handle-killpriv"},
        {FUSE_CAP_EXPIRE_ONLY, "expire-only"},
        {FUSE_CAP_PASSTHROUGH, "passthrough"},
        {FUSE_CAP_NO_EXPORT_SUPPORT, "no-export"},
        {FUSE_CAP_HANDLE_KILLPRIV_V2, "handle-killpriv-v2"},
        {FUSE_CAP_DIRECT_IO_ALLOW_MMAP, "direct-io-allow-mmap"},
    };
    uint64_t caps = atomic_load(&fs->fuse_caps);
    json_t *list = json_array();
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        if (caps & names[i].bit)
            json_array_append_new(list, json_string(names[i].name));
    return list;
}

/* What the store can do, and which conditions are replaced by a HEAD directly before the request. */
static void add_capabilities(struct fs *fs, json_t *o)
{
    static const uint32_t conditions[] = {CAP_PUT_IF_NONE_MATCH, CAP_PUT_IF_MATCH,  CAP_COMPLETE_CONDITIONS,
                                          CAP_DELETE_IF_MATCH,   CAP_COPY_IF_MATCH, CAP_PART_COPY_IF_MATCH,
                                          CAP_COPY_TARGET};
    uint32_t caps = objstore_caps_of(fs->store, "");
    json_t *has = json_array(), *by_head = json_array();
    for (unsigned bit = 0; objstore_cap_name(bit); bit++)
        if (caps & (1u << bit))
            json_array_append_new(has, json_string(objstore_cap_name(bit)));
    bool probed = caps != 0 || atomic_load(&fs->probed);
    for (unsigned i = 0; probed && i < G_N_ELEMENTS(conditions); i++)
        if (!(caps & conditions[i]))
            json_array_append_new(by_head, json_string(objstore_cap_name(__builtin_ctz(conditions[i]))));
    json_object_set_new(o, "capabilities", has);
    json_object_set_new(o, "conditions_by_head", by_head);
    json_object_set_new(o, "probed", json_boolean(probed));
}

static json_t *requests(void)
{
    static const struct {
        const char *name;
        enum metric m;
    } verbs[] = {{"get", M_requests_get},
                 {"head", M_requests_head},
                 {"put", M_requests_put},
                 {"delete", M_requests_delete},
                 {"copy", M_requests_copy},
                 {"list", M_requests_list},
                 {"multipart", M_requests_multipart}};
    json_t *o = json_object();
    for (unsigned i = 0; i < G_N_ELEMENTS(verbs); i++)
        json_object_set_new(o, verbs[i].name, json_integer(metric_get(verbs[i].m)));
    return o;
}

static void add_int(json_t *o, const char *name, int64_t value)
{
    json_object_set_new(o, name, json_integer(value));
}

static void add_counts(json_t *o, const struct status_counts *c)
{
    add_int(o, "cache_bytes", (int64_t)c->cache.used_bytes);
    add_int(o, "cache_limit_bytes", (int64_t)c->cache.limit_bytes);
    add_int(o, "cache_free_bytes", (int64_t)c->cache.free_bytes);
    add_int(o, "cache_files", (int64_t)c->cache.files);
    add_int(o, "pinned_bytes", (int64_t)c->cache.pinned_bytes);
    add_int(o, "dirty_files", (int64_t)c->pub.files);
    add_int(o, "dirty_bytes", (int64_t)c->cache.dirty_bytes);
    add_int(o, "local_only_files", (int64_t)c->local.files);
    add_int(o, "local_only_bytes", (int64_t)c->local.bytes);
    add_int(o, "oldest_dirty_seconds", c->oldest_dirty_s);
    add_int(o, "pending_operations", (int64_t)c->pub.ops);
    add_int(o, "uploading", (int64_t)c->pub.uploading);
    add_int(o, "held", (int64_t)c->pub.held);
    add_int(o, "parked", (int64_t)c->pub.parked);
    add_int(o, "conflicts", (int64_t)c->conflicts);
    add_int(o, "quarantined", (int64_t)c->quarantined);
}

static void add_overdue(json_t *o, const struct overdue *late)
{
    add_int(o, "overdue_seconds", late->age_s);
    if (late->age_s > 0)
        json_object_set_new(o, "overdue_path", verb_string(late->path));
}

static void add_metrics(json_t *o)
{
    add_int(o, "hidden_keys", metric_get(M_hidden_keys));
    add_int(o, "hit_bytes", metric_get(M_hit_bytes));
    add_int(o, "miss_bytes", metric_get(M_miss_bytes));
    add_int(o, "uploaded_bytes", metric_get(M_uploaded_bytes));
    add_int(o, "sent_bytes", metric_get(M_sent_bytes));
    add_int(o, "downloaded_bytes", metric_get(M_downloaded_bytes));
    add_int(o, "copied_bytes", metric_get(M_copied_bytes));
    add_int(o, "saved_bytes", metric_get(M_saved_bytes));
    json_object_set_new(o, "requests", requests());
    add_int(o, "prefetched_files", metric_get(M_prefetched_files));
    add_int(o, "prefetch_used_files", metric_get(M_prefetch_used_files));
    add_int(o, "prefetch_wasted_files", metric_get(M_prefetch_wasted_files));
    add_int(o, "fuse_requests", metric_get(M_fuse_requests));
    add_int(o, "events_received", metric_get(M_events_received));
    add_int(o, "events_applied", metric_get(M_events_applied));
    add_int(o, "events_ignored", metric_get(M_events_ignored));
    add_int(o, "events_outside", metric_get(M_events_outside));
    add_int(o, "events_dropped", metric_get(M_events_dropped));
    add_int(o, "events_refused", metric_get(M_events_refused));
    add_int(o, "retries", metric_get(M_store_retries));
    add_int(o, "credentials_expire_at", metric_get(M_credentials_expire_at));
}

static void add_tier(void *ctx, const struct cache_tier_info *t)
{
    json_t *o = json_object();
    json_object_set_new(o, "path", verb_string(t->path));
    json_object_set_new(o, "kind", json_string(t->in_memory ? "memory" : "disk"));
    json_object_set_new(o, "state", json_string(t->state));
    add_int(o, "used_bytes", (int64_t)t->used_bytes);
    add_int(o, "limit_bytes", (int64_t)t->limit_bytes);
    add_int(o, "dirty_bytes", (int64_t)t->dirty_bytes);
    json_array_append_new(ctx, o);
}

static void note_unleased(void *ctx, const struct cache_tier_info *t)
{
    if (!t->in_memory && !t->leases && !g_str_equal(t->state, "missing"))
        json_array_append_new(ctx, verb_string(t->path));
}

/* Disks on which the kernel does not write files by itself. */
static void add_unleased(struct fs *fs, json_t *o)
{
    json_t *disks = json_array();
    cache_tiers_each(fs->cache, note_unleased, disks);
    if (json_array_size(disks)) {
        json_object_set_new(o, "passthrough_reads_only", disks);
        json_object_set_new(o, "passthrough_reads_only_because", json_string("no leases on these disks (F_SETLEASE)"));
    } else {
        json_decref(disks);
    }
}

struct lost_names {
    struct fs *fs;
    json_t *list;
};

static void add_lost(void *ctx, uint64_t ino, const char *disk)
{
    struct lost_names *l = ctx;
    g_autofree char *path = NULL;
    if (tree_path_of(l->fs, ino, &path) == 0)
        json_array_append_new(l->list, verb_string(path));
}

/* The places of local files, and unpublished files whose place cannot be used. */
static void add_tiers(struct fs *fs, json_t *o)
{
    json_t *tiers = json_array();
    struct lost_names lost = {fs, json_array()};
    cache_tiers_each(fs->cache, add_tier, tiers);
    cache_lost_each(fs->cache, LOST_NAMES_MAX, add_lost, &lost);
    json_object_set_new(o, "tiers", tiers);
    json_object_set_new(o, "unreachable", lost.list);
}

static void add_names_late(json_t *o, int64_t late_s)
{
    add_int(o, "names_late_seconds", late_s);
    if (late_s > 0)
        json_object_set_new(o, "names_late_because", json_string("the store lists too slowly for --metadata-ttl"));
}

/* Certificates that were renewed, and cannot be used. */
static void add_http(struct fs *fs, json_t *o)
{
    g_autofree char *trouble = daemon_http_trouble(fs);
    if (trouble)
        json_object_set_new(o, "http_trouble", verb_string(trouble));
}

static json_t *status_line(struct fs *fs, const struct status_counts *c)
{
    json_t *o = json_object();
    json_object_set_new(o, "event", json_string("status"));
    json_object_set_new(o, "version", json_string(SLUICE_VERSION));
    json_object_set_new(o, "mountpoint", verb_string(fs->mountpoint));
    json_object_set_new(o, "source", verb_string(objstore_source(fs->store)));
    json_object_set_new(o, "endpoint", verb_string(objstore_identity(fs->store)));
    json_object_set_new(o, "cache_dir", verb_string(fs->cache_dir));
    g_autofree char *program =
        g_file_read_link("/proc/self/exe", NULL); /* "... (deleted)" when the file was replaced */
    json_object_set_new(o, "program", verb_string(program));
    add_int(o, "pid", getpid());
    add_int(o, "supervisor_pid", atomic_load(&fs->supervisor_pid));
    add_int(o, "started", fs->started_ns / (int64_t)NS_PER_S);
    json_object_set_new(o, "read_only", json_boolean(fs->cfg->read_only));
    json_object_set_new(o, "immutable", json_boolean(fs->cfg->immutable));
    json_object_set_new(o, "rules", rules_list_json(fs));
    json_object_set_new(o, "kernel_features", kernel_features(fs));
    const char *why = NULL;
    json_object_set_new(o, "mapped_files", json_integer(mapped_count(fs)));
    json_object_set_new(o, "passthrough", json_boolean(io_mode_works(fs, &why)));
    if (why)
        json_object_set_new(o, "passthrough_off_because", json_string(why));
    else
        add_unleased(fs, o);
    add_counts(o, c);
    add_overdue(o, &c->overdue);
    add_tiers(fs, o);
    json_object_set_new(o, "links", links_describe(fs, NULL, false));
    add_metrics(o);
    add_names_late(o, c->names_late_s);
    add_http(fs, o);
    add_int(o, "offline_since", objstore_offline_since_ns(fs->store) / (int64_t)NS_PER_S);
    json_object_set_new(o, "database_failed", json_boolean(meta_failed(fs->meta)));
    add_capabilities(fs, o);
    sync_add_status(fs, o);
    return o;
}

int verb_status(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    struct status_counts c;
    count_all(fs, &c);
    set_gauges(fs, &c);
    json_t *line = status_line(fs, &c);
    overdue_clear(&c.overdue);
    return ctl_emit(client, line) < 0 ? 1 : 0;
}
