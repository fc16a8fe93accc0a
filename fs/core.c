/* Building and taking down struct fs: bottom-up, and in reverse. */
#include "core.h"

#include "adopt.h"
#include "attach.h"
#include "backing.h"
#include "delta.h"
#include "durable.h"
#include "handle.h"
#include "io_mode.h"
#include "jobs.h"
#include "journal_dir.h"
#include "links.h"
#include "local.h"
#include "lost_cache.h"
#include "mapped.h"
#include "no_open.h"
#include "objstore_links.h"
#include "pin.h"
#include "prefetch.h"
#include "publish.h"
#include "reap.h"
#include "rebuild.h"
#include "recover.h"
#include "replaced.h"
#include "replay.h"
#include "rules.h"
#include "states.h"
#include "store_options.h"
#include "sync.h"
#include "tree.h"
#include "warm_job.h"

#include <sys/stat.h>

#define LIST_THREADS     8
#define HEAD_THREADS     16
#define SETTLE_THREADS   4 /* the file system writes its own journal once for several syncs */
#define CHECK_WAIT_NS    (3 * NS_PER_S)
#define RESERVE_OF_CACHE 8u /* the database keeps back at most this part of a --cache-size */

/* ---- store ---- */

static struct objstore_config store_config(const struct config *cfg)
{
    return (struct objstore_config){
        .source = cfg->source,
        .endpoint_url = cfg->endpoint_url,
        .region = cfg->region,
        .profile = cfg->profile,
        .no_sign_request = cfg->no_sign_request,
        .force_path_style = cfg->force_path_style,
        .allow_plain_http = cfg->allow_plain_http,
        .ca_bundle = cfg->ca_bundle,
        .op_timeout_ns = cfg->op_timeout_ns,
        .max_connections = cfg->max_uploads + cfg->max_downloads + 8,
        .upload_limit_bps = cfg->upload_limit,
        .download_limit_bps = cfg->download_limit,
        .dir_mode = 0777 & ~cfg->umask,
        .read_only = cfg->read_only || cfg->immutable,
        .escape = cfg->escape == ESCAPE_PERCENT,
    };
}

static int make_faulty(struct fs *fs, char **ret_msg)
{
    struct objstore *faulty = NULL;
    int r = objstore_fault_wrap(fs->store, fs->cfg->fault, &faulty);
    if (r < 0)
        *ret_msg = g_strdup_printf("the fault rules '%s' cannot be read", fs->cfg->fault);
    else
        fs->store = faulty;
    return r;
}

static char *default_cache_dir(const char *of)
{
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, of, -1);
    return g_strdup_printf(CACHE_DIR_DEFAULT "/%.16s", sum);
}

/* DIR/link tells what the folder belongs to, also tools that have only the folder. NULL: it is bound to nothing. */
static char *read_link(const char *cache_dir)
{
    g_autofree char *path = g_build_filename(cache_dir, "link", NULL);
    char *text = NULL;
    if (g_file_get_contents(path, &text, NULL, NULL) && *text)
        return text;
    g_free(text); /* an empty one was cut short by a kill */
    return NULL;
}

/* By what DIR/link says, whether or not its names are escaped. */
static bool is_bound_to(const char *text, const char *identity)
{
    bool escaped;
    g_autofree char *line = g_strndup(text, strcspn(text, "\n"));
    g_autofree char *bound = store_binding_identity(line, &escaped);
    return g_str_equal(bound, identity);
}

static bool folder_knows(const void *ctx, const char *identity)
{
    const struct config *cfg = ctx;
    g_autofree char *own = cfg->cache_dir ? NULL : default_cache_dir(identity);
    g_auto(GStrv) dirs = g_strsplit(own ? own : cfg->cache_dir, ":", -1);
    bool knows = false;
    for (unsigned i = 0; dirs[i] && !knows; i++) {
        g_autofree char *text = read_link(dirs[i]);
        knows = text && is_bound_to(text, identity);
    }
    return knows;
}

/* Bucket links are other stores beside the mount's own, which need not be. */
static int open_store(struct fs *fs, const char *resume, char **ret_msg)
{
    const struct config *cfg = fs->cfg;
    struct objstore_config sc = store_config(cfg);
    sc.resume = session_is_takeover(fs->session) ? resume : NULL; /* what is mounted stays what it is */
    sc.known = folder_knows;
    sc.known_ctx = cfg;
    int r = cfg->source ? objstore_open(&sc, &fs->store, ret_msg) : 0;
    if (r == 0 && cfg->source && cfg->fault)
        r = make_faulty(fs, ret_msg);
    if (r == 0)
        fs->store = objstore_links_wrap(fs->store, LINKS_ONLY, LINKS_ONLY);
    return r;
}

/* ---- cache folder ---- */

static char *binding_of(struct fs *fs)
{
    return store_binding(objstore_identity(fs->store), fs->cfg->escape == ESCAPE_PERCENT);
}

static char *link_text(struct fs *fs)
{
    g_autofree char *binding = binding_of(fs);
    return g_strdup_printf("%s\n%s\n", binding, objstore_source(fs->store));
}

static int check_link(struct fs *fs, bool *ret_bound, char **ret_msg)
{
    g_autofree char *text = link_text(fs);
    g_autofree char *old = read_link(fs->cache_dir);
    *ret_bound = old != NULL;
    if (!*ret_bound || g_str_equal(old, text))
        return 0;
    if (is_bound_to(old, objstore_identity(fs->store))) {
        bool percent = fs->cfg->escape == ESCAPE_PERCENT;
        *ret_msg = g_strdup_printf(
            "cache folder %s was used with --escape %s, without which its names may mean other objects: mount with that, "
            "or give another --cache-dir, or remove the folder if nothing in it is unpublished (`sluice fsck %s` tells)",
            fs->cache_dir, percent ? "none" : "percent", fs->cache_dir);
        return -EEXIST;
    }
    g_auto(GStrv) lines = g_strsplit(old, "\n", 3);
    *ret_msg = g_strdup_printf(
        "cache folder %s belongs to %s; give another --cache-dir, or remove the folder if nothing in it is unpublished "
        "(`sluice fsck %s` tells)",
        fs->cache_dir, lines[0], fs->cache_dir);
    return -EEXIST;
}

static int write_link(struct fs *fs, char **ret_msg)
{
    g_autofree char *path = g_build_filename(fs->cache_dir, "link", NULL);
    g_autofree char *text = link_text(fs);
    g_autoptr(GError) err = NULL;
    if (g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600,
                                 &err))
        return 0;
    *ret_msg = g_strdup_printf("cannot write the cache folder's link: %s", err->message);
    return err->code == G_FILE_ERROR_NOSPC ? -ENOSPC : -EIO;
}

/* Nothing but the check against the bucket needs them. */
static void save_store_options(struct fs *fs)
{
    struct objstore_config sc = store_config(fs->cfg);
    if (store_options_save(fs->cache_dir, &sc) < 0)
        log_debug("mount", "%s/store could not be written", fs->cache_dir);
}

static int settle_journal(struct fs *fs, char **ret_msg)
{
    g_autoptr(GPtrArray) dirs = g_ptr_array_new();
    g_ptr_array_add(dirs, fs->cache_dir);
    for (unsigned i = 0; fs->more_dirs && fs->more_dirs[i]; i++)
        g_ptr_array_add(dirs, fs->more_dirs[i]);
    g_ptr_array_add(dirs, NULL);
    return journal_dir_settle((const char *const *)dirs->pdata, fs->cfg->journal_dir, ret_msg);
}

static int open_folder(struct fs *fs, bool *ret_bound, char **ret_msg)
{
    if (fs->cfg->cache_dir) {
        fs->more_dirs = g_strsplit(fs->cfg->cache_dir, ":", -1);
        journal_dir_first(fs->more_dirs, fs->cfg->journal_dir);
        int sorted = cache_dirs_sort(fs->more_dirs, ret_msg);
        if (sorted < 0)
            return sorted;
        fs->cache_dir = fs->more_dirs[0];
        memmove(fs->more_dirs, fs->more_dirs + 1, g_strv_length(fs->more_dirs) * sizeof(char *));
    } else {
        fs->cache_dir = default_cache_dir(fs->cfg->source ? objstore_identity(fs->store) : fs->mountpoint);
    }
    if (!fs->cfg->cache_dir && g_mkdir_with_parents(CACHE_DIR_DEFAULT, 0755) < 0) {
        *ret_msg = g_strdup_printf("cannot make " CACHE_DIR_DEFAULT ": %s; give --cache-dir", err_text(errno));
        return -errno;
    }
    int r = cache_dir_prepare(fs->cache_dir, &fs->lock_fd, ret_msg);
    if (r == 0)
        r = check_link(fs, ret_bound, ret_msg);
    return r < 0 || session_is_takeover(fs->session) ? r : settle_journal(fs, ret_msg);
}

/* ---- database ---- */

static int make_root(struct fs *fs, char **ret_msg)
{
    int64_t now = clock_wall_ns();
    struct meta_inode rec = {
        .ino = META_ROOT_INO,
        .mode = S_IFDIR | fs->cfg->dir_mode,
        .uid = fs->uid,
        .gid = fs->gid,
        .nlink = 1,
        .mtime_ns = now,
        .ctime_ns = now,
        .parent = META_ROOT_INO,
    };
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_inode_put(b, &rec);
    int r = meta_commit(b, true);
    meta_batch_free(b);
    if (r < 0)
        *ret_msg = g_strdup_printf("cannot write the database in %s: %s", fs->cache_dir, err_text(r));
    return r;
}

static int rebuild_lost(struct fs *fs, char **ret_msg)
{
    unsigned n = 0;
    int r = fs_rebuild(fs->meta, fs->cache_dir, NULL, &n);
    if (r < 0)
        *ret_msg = g_strdup_printf("the database of %s is new, but its data folder is not, and reading it failed: %s",
                                   fs->cache_dir, err_text(r));
    else if (n > 0)
        log_warn("mount", "the database was gone; unpublished files found beside their data files=%u", n);
    return r;
}

static void tell_disk(void *ctx, const char *path, const char *why)
{
    if (why)
        log_err("mount", "%s path='%s'", why, path);
    else
        log_notice("mount", "a cache disk that a lost database knew is used again path='%s'", path);
}

/* What the database does not know, though this cache has it. */
static int bring_back(struct fs *fs, bool lost, char **ret_msg)
{
    struct adopt a = {.m = fs->meta, .first = fs->cache_dir, .given = (const char *const *)fs->more_dirs};
    a.tell = tell_disk;
    adopt_init(&a);
    int r = adopt_disks(&a, ret_msg);
    if (r == 0 && (lost || a.taken->len > 0))
        r = rebuild_lost(fs, ret_msg);
    if (r == 0)
        r = adopt_end(&a);
    adopt_fini(&a);
    return r;
}

static void restore_caps(struct fs *fs)
{
    uint64_t caps = 0;
    if (meta_value_get_u64(fs->meta, STORE_CAPS_VALUE, &caps) < 0 || caps >> 32 != PROBE_REVISION)
        return; /* probed when it matters */
    objstore_set_caps_of(fs->store, "", (uint32_t)caps);
    atomic_store(&fs->probed, true);
}

/* A damaged database is never gone on with: what to do about it. */
static int tell_damage(struct fs *fs, int r, char **ret_msg)
{
    if (r != -EBADMSG)
        return r;
    g_autofree char *what = *ret_msg ? *ret_msg : g_strdup_printf("the database in %s/meta is damaged", fs->cache_dir);
    *ret_msg = g_strdup_printf("%s; `sluice fsck --repair %s` sets it aside and brings unpublished files back", what,
                               fs->cache_dir);
    return r;
}

static int open_meta(struct fs *fs, bool *ret_fresh, char **ret_msg)
{
    g_autofree char *binding = binding_of(fs);
    int r = meta_open(fs->cache_dir, binding, &fs->meta, ret_fresh, ret_msg);
    if (r < 0)
        return tell_damage(fs, r, ret_msg);
    uint64_t size = fs->cfg->cache_size.bytes;
    meta_keep_space(fs->meta, size ? size / RESERVE_OF_CACHE : UINT64_MAX);
    struct meta_inode root = {0};
    r = meta_inode_get(fs->meta, META_ROOT_INO, &root);
    meta_inode_clear(&root);
    bool lost = r == -ENOENT; /* new, or a rebuild was cut off: the root comes last */
    if (r == 0 || lost)
        r = bring_back(fs, lost, ret_msg);
    if (r == 0 && lost)
        r = make_root(fs, ret_msg);
    restore_caps(fs);
    return tell_damage(fs, r, ret_msg);
}

/* ---- first contact ---- */

struct check {
    struct fs *fs;
    struct mutex mu;
    /* guarded by mu */
    struct cond done_cond;
    bool done, abandoned;
    int result;
    char *msg;
};

static void check_free(struct check *c)
{
    g_free(c->msg);
    cond_fini(&c->done_cond);
    mutex_fini(&c->mu);
    g_free(c);
}

static void check_run(void *arg)
{
    struct check *c = arg;
    char *msg = NULL;
    int r = objstore_check(c->fs->store, &msg);
    mutex_lock(&c->mu);
    c->done = true;
    c->result = r;
    c->msg = msg;
    bool abandoned = c->abandoned;
    cond_broadcast(&c->done_cond);
    mutex_unlock(&c->mu);
    if (abandoned)
        check_free(c);
}

/* A folder that knows the lake serves though the store does not answer; a new one, or one whose keys are refused, fails with the reason. */
static int check_store(struct fs *fs, bool fresh, char **ret_msg)
{
    struct check *c = g_new0(struct check, 1);
    c->fs = fs;
    mutex_init(&c->mu, LOCK_CTL);
    cond_init(&c->done_cond);
    if (!workq_push(fs->list_q, true, check_run, c)) {
        check_free(c);
        return -ECANCELED;
    }
    uint64_t deadline = fresh ? UINT64_MAX / 2 : clock_mono_ns() + CHECK_WAIT_NS;
    mutex_lock(&c->mu);
    while (!c->done && cond_wait_until(&c->done_cond, &c->mu, deadline))
        ;
    int r = c->done ? c->result : -ETIMEDOUT;
    bool fatal = r < 0 && (fresh || r == -EACCES || r == -ENODEV || r == -EKEYEXPIRED);
    if (fatal)
        *ret_msg = g_steal_pointer(&c->msg);
    else if (r < 0)
        log_warn("mount", "the store does not answer; serving what is known: %s",
                 c->msg ? c->msg : "no reply within 3 s");
    c->abandoned = !c->done;
    bool mine = c->done;
    mutex_unlock(&c->mu);
    if (mine)
        check_free(c);
    return fatal ? r : 0;
}

/* ---- the whole ---- */

/* An unpublished file that cannot be reached until its disk is back. */
static void name_lost(void *ctx, uint64_t ino, const char *disk)
{
    g_autofree char *path = NULL;
    int r = tree_path_of(ctx, ino, &path);
    log_err("cache",
            "an unpublished file is on a disk that is not used; it is kept there path='%s' ino=%" G_GUINT64_FORMAT
            " disk='%s'",
            r == 0 ? path : "?", ino, disk);
}

/* What the records say, whatever the cache's own mark does. */
static bool may_drop(void *ctx, uint64_t ino, uint64_t vid)
{
    struct fs *fs = ctx;
    struct meta_inode rec = {0};
    int r = meta_inode_get(fs->meta, ino, &rec);
    bool may = r == 0 ? rec.vid != vid || states_drop_gate(&rec) : r == -ENOENT;
    meta_inode_clear(&rec);
    return may;
}

/* A version that is in the store needs nothing of the disk, nor does one that is no file's any more. */
static bool is_synced(void *ctx, uint64_t ino, uint64_t vid)
{
    struct fs *fs = ctx;
    struct meta_inode rec = {0};
    int r = meta_inode_get(fs->meta, ino, &rec);
    bool is = r == 0 ? rec.vid != vid || rec.content == CONTENT_CLEAN || (rec.flags & INODE_DATA_SYNCED) : r == -ENOENT;
    meta_inode_clear(&rec);
    return is;
}

/* The kernel keeps the pages that it read, also for who opens the file later. */
static void drop_pages(void *ctx, uint64_t ino)
{
    notify_inode(ctx, ino);
}

static int open_cache(struct fs *fs, int memory_fd, char **ret_msg)
{
    const struct config *cfg = fs->cfg;
    struct cache_config cc = {
        .dir = fs->cache_dir,
        .more_dirs = (const char *const *)fs->more_dirs,
        .memory_bytes = cfg->memory_cache,
        .memory_fd = memory_fd,
        .size_bytes = cfg->cache_size.bytes,
        .size_percent = cfg->cache_size.percent,
        .free_bytes = cfg->free_space.bytes,
        .free_percent = cfg->free_space.percent,
        .max_downloads = cfg->max_downloads,
        .max_uploads = cfg->max_uploads,
        .part_bytes = cfg->part_size,
        .get_bytes = 8u << 20,
        .readahead_bytes = cfg->readahead,
        .op_timeout_ns = cfg->op_timeout_ns,
        .may_drop = may_drop,
        .synced = is_synced,
        .dropped = io_mode_dropped,
        .wrong = drop_pages,
        .dropped_ctx = fs,
        .lost = name_lost,
        .lost_ctx = fs,
        .disk_faults = cfg->disk_faults,
        .hold = true,
    };
    int r = cache_open(&cc, fs->meta, fs->store, &fs->cache, ret_msg);
    if (r == 0) {
        delta_start(fs);
        cache_lost_each(fs->cache, UINT_MAX, name_lost, fs);
    }
    return r;
}

static struct fs *fs_alloc(const struct config *cfg, struct session *session, bool own_session)
{
    struct fs *fs = g_new0(struct fs, 1);
    fs->session = session;
    fs->own_session = own_session;
    fs->cfg = cfg;
    fs->lock_fd = -1;
    fs->notify_fd = -1;
    fs->started_ns = clock_wall_ns();
    fs->uid = cfg->uid;
    fs->gid = cfg->gid;
    fs->mountpoint = g_strdup(cfg->mountpoint);
    mutex_init(&fs->ns, LOCK_NAMESPACE);
    mutex_init(&fs->list_mu, LOCK_LISTING);
    cond_init(&fs->list_done);
    fs->listings = g_hash_table_new(g_int64_hash, g_int64_equal);
    fs->silent = g_hash_table_new(NULL, NULL);
    fs->heard = g_hash_table_new(NULL, NULL);
    fs->hold_globs = g_ptr_array_new_with_free_func(g_free);
    g_auto(GStrv) globs = g_strsplit(cfg->hold ? cfg->hold : "", ",", -1);
    for (unsigned i = 0; globs[i]; i++)
        if (*g_strstrip(globs[i]))
            g_ptr_array_add(fs->hold_globs, g_strdup(globs[i]));
    mutex_init(&fs->created_mu, LOCK_ON_CREATE);
    io_mode_init(fs);
    mapped_init(fs);
    durable_init(fs);
    no_open_init(fs);
    inode_table_init(fs);
    handle_table_init(fs);
    attach_init(fs);
    replay_init(fs);
    return fs;
}

static int open_parts(struct fs *fs, const struct fs_setup *setup, char **ret_msg)
{
    bool bound = false, fresh = false;
    int r = rules_new(fs->cfg, &fs->rules, ret_msg);
    if (r == 0)
        r = open_store(fs, setup->resume, ret_msg);
    if (r == 0)
        r = open_folder(fs, &bound, ret_msg);
    if (r == 0)
        r = workq_new("list", LIST_THREADS, &fs->list_q);
    if (r == 0)
        r = workq_new("head", HEAD_THREADS, &fs->head_q);
    if (r == 0)
        r = workq_new("notify", 1, &fs->notify_q);
    if (r == 0)
        r = workq_new("ask", 1, &fs->ask_q);
    if (r == 0)
        r = workq_new("reap", 1, &fs->reap_q);
    if (r == 0)
        r = workq_new("settle", SETTLE_THREADS, &fs->settle_q);
    bool takeover = session_is_takeover(fs->session); /* programs wait: the store is not asked */
    if (r == 0 && setup->say && !takeover)
        setup->say(setup->ctx, "asking the store");
    if (r == 0 && !bound) { /* a bucket that is not there binds no folder */
        r = takeover ? 0 : check_store(fs, true, ret_msg);
        if (r == 0)
            r = write_link(fs, ret_msg);
    }
    if (r == 0)
        save_store_options(fs);
    if (r == 0)
        r = open_meta(fs, &fresh, ret_msg);
    if (r == 0)
        r = fs_replay_open(fs);
    if (r == 0 && takeover)
        fs->session->head->ino_limit = meta_next_ino(fs->meta);
    if (r == 0 && bound && !takeover)
        r = check_store(fs, fresh, ret_msg);
    if (r == 0) /* before what was left of uploads to them is gone on with */
        r = links_open(fs, ret_msg);
    if (r == 0)
        r = open_cache(fs, setup->memory_fd, ret_msg);
    if (r == 0 && !takeover)
        r = lost_cache_settle(fs, ret_msg);
    if (r == 0)
        r = fs_attach(fs);
    if (r == 0)
        r = fs_recover(fs);
    if (r == 0)
        r = publish_open(fs, &fs->pub);
    if (r == 0)
        r = local_settle(fs);
    if (r == 0)
        r = fs_attach_settle(fs);
    if (r == 0) {
        cache_release_hold(fs->cache);
        r = prefetch_open(fs);
    }
    if (r == 0)
        r = sync_open(fs);
    return r == 0 ? jobs_open(fs) : r;
}

int fs_open(const struct fs_setup *setup, struct fs **ret, char **ret_msg)
{
    struct session *session = setup->session;
    int r = session ? 0 : session_map(-1, true, &session);
    if (r < 0) {
        *ret_msg = g_strdup_printf("cannot start: %s", err_text(r));
        return r;
    }
    struct fs *fs = fs_alloc(setup->cfg, session, !setup->session);
    r = open_parts(fs, setup, ret_msg);
    if (r < 0) {
        if (!*ret_msg)
            *ret_msg = g_strdup_printf("cannot start: %s", err_text(r));
        fs_close(fs);
        return r;
    }
    *ret = fs;
    return 0;
}

int fs_start(struct fs *fs)
{
    cache_abort_stale_uploads(fs->cache);
    backing_start(fs);
    reap_awaited(fs);
    replaced_resume(fs);
    pin_rules_apply(fs, NULL); /* a kill may have come between a change and the look at it */
    int r = links_start(fs);
    if (r == 0)
        r = mapped_start(fs);
    if (r == 0)
        r = durable_start(fs);
    if (r == 0)
        r = publish_start(fs->pub);
    if (r < 0)
        return r;
    sync_begin(fs);
    warm_jobs_resume(fs);
    return 0;
}

void fs_interrupt(struct fs *fs)
{
    if (atomic_exchange(&fs->stopping, true))
        return;
    if (fs->store)
        objstore_shutdown(fs->store);
    if (fs->links)
        links_interrupt(fs);
    if (fs->pub)
        publish_interrupt(fs->pub);
    if (fs->cache)
        cache_interrupt(fs->cache);
    mutex_lock(&fs->list_mu);
    cond_broadcast(&fs->list_done);
    mutex_unlock(&fs->list_mu);
}

/* Inodes that leave memory from here on stay for the next start. */
static void stop_reaping(struct fs *fs)
{
    if (fs->ask_q)
        workq_stop(fs->ask_q);
    if (fs->settle_q)
        workq_stop(fs->settle_q);
    if (fs->reap_q)
        workq_stop(fs->reap_q);
    if (fs->notify_q)
        workq_stop(fs->notify_q);
}

void fs_close(struct fs *fs)
{
    if (!fs)
        return;
    fs_interrupt(fs);
    publish_stale_wait(fs);
    links_stop(fs);
    mapped_stop(fs); /* a seal asks jobs to look at pin rules */
    durable_stop(fs);
    sync_close(fs);
    jobs_close(fs);
    prefetch_close(fs);
    if (fs->pub)
        publish_stop(fs->pub);
    workq_free(fs->list_q);
    workq_free(fs->head_q);
    stop_reaping(fs);
    attach_fini(fs);
    replay_fini(fs);
    jobs_fini(fs);
    sync_fini(fs);
    handle_table_fini(fs);
    no_open_fini(fs);
    cache_quiet(fs->cache); /* it asks for inodes */
    inode_table_fini(fs);
    workq_free(fs->ask_q);
    workq_free(fs->settle_q);
    workq_free(fs->reap_q);
    workq_free(fs->notify_q);
    publish_close(fs->pub);
    cache_close(fs->cache);
    if (fs->meta && meta_sync(fs->meta) < 0)
        log_err("mount", "the journal could not be written to the disk");
    links_close(fs);
    meta_close(fs->meta);
    objstore_close(fs->store);
    g_hash_table_unref(fs->listings);
    g_hash_table_unref(fs->silent);
    g_hash_table_unref(fs->heard);
    g_ptr_array_unref(fs->hold_globs);
    rules_free(fs->rules);
    if (fs->created)
        g_hash_table_unref(fs->created);
    mutex_fini(&fs->created_mu);
    cond_fini(&fs->list_done);
    mutex_fini(&fs->list_mu);
    mapped_fini(fs);
    durable_fini(fs);
    io_mode_fini(fs);
    mutex_fini(&fs->ns);
    if (fs->lock_fd >= 0)
        close(fs->lock_fd);
    g_free(fs->cache_dir);
    g_strfreev(fs->more_dirs);
    g_free(fs->mountpoint);
    if (fs->own_session)
        session_unmap(fs->session);
    g_free(fs);
}
