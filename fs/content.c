/* See content.h. The gate is a flag and a condition under the inode's lock, so it may be held while the disk works. */
#include "content.h"

#include "backing.h"
#include "base/crash.h"
#include "cache_scan.h"
#include "content_record.h"
#include "durable.h"
#include "io_mode.h"
#include "local.h"
#include "mapped.h"
#include "orphan.h"
#include "pin.h"
#include "publish.h"
#include "publish_note.h"
#include "tree.h"

#include <assert.h>
#include <sys/stat.h>

#define LET_GO_NS                                                                                                      \
    (2 *                                                                                                               \
     NS_PER_S) /* the kernel may let go of a closed file this late: until then it is not said to be mapped, and later ones wait for it */

void content_gate_enter(struct inode *in)
{
    mutex_lock(&in->mu);
    while (in->gate_held)
        cond_wait(&in->changed_cond, &in->mu);
    in->gate_held = true;
    in->gate_owner = pthread_self();
    mutex_unlock(&in->mu);
}

void content_gate_leave(struct inode *in)
{
    mutex_lock(&in->mu);
    assert(in->gate_held);
    in->gate_held = false;
    cond_broadcast(&in->changed_cond);
    mutex_unlock(&in->mu);
}

/* Its bytes are gone, or others than were written. With the gate held. */
static int quarantine_gated(struct inode *in)
{
    mutex_lock(&in->mu);
    bool done = in->rec.content == CONTENT_QUARANTINED;
    mutex_unlock(&in->mu);
    int r = done ? 0 : record_quarantined(in);
    if (r < 0 || done)
        return r;
    metric_inc(M_quarantined_files);
    publish_content_state(in->fs, in->ino, CONTENT_QUARANTINED);
    content_write_intent(in);
    return 0;
}

/* ---- the cache file ---- */

/* The inode has it now. Who changed the record's base while it was opened, or while others used it, could not tell it; see tree_leave_object(). */
static void give_cfile(struct inode *in, struct cfile *cf)
{
    mutex_lock(&in->mu);
    in->cf = cf;
    if (in->rec.base_key)
        cache_file_rebase(cf, in->rec.base_key, &in->rec.base_etag);
    mutex_unlock(&in->mu);
}

/* Opens the cache file of an inode that has none in memory. With the gate held. */
static int open_cfile(struct inode *in)
{
    struct fs *fs = in->fs;
    mutex_lock(&in->mu);
    bool have = in->cf != NULL, dirty = in->rec.content != CONTENT_CLEAN;
    uint64_t vid = in->rec.vid, size = in->rec.size;
    g_autofree char *key = g_strdup(in->rec.base_key);
    struct cache_source src = {
        .key = key, .etag = in->rec.base_etag, .limit = in->rec.base_limit, .pin = pin_of(&in->rec)};
    mutex_unlock(&in->mu);
    if (have)
        return 0;
    struct cfile *cf = NULL;
    int r = !vid && !key ? cache_file_new(fs->cache, in->ino, &cf)
                         : cache_file_open(fs->cache, vid, in->ino, size, &src, &cf);
    if (r == -ENODATA) {
        log_err("content", "cache file of an unpublished file is gone, it is quarantined ino=%" G_GUINT64_FORMAT,
                in->ino);
        r = dirty ? quarantine_gated(in) : 0;
        return r < 0 ? r : -EIO;
    }
    if (r == 0 && cache_file_vid(cf) != vid)
        r = record_vid(in, cache_file_vid(cf));
    if (r == 0 && !dirty && key && cache_file_is_dirty(cf)) /* published, and it was not told yet */
        r = cache_file_set_source(cf, &src);
    if (r == 0)
        r = cache_file_set_dirty(cf, dirty);
    if (r < 0) {
        cache_file_unref(cf);
        return r;
    }
    give_cfile(in, cf);
    if (src.pin != PIN_NONE && cache_file_vid(cf) != vid && cache_pin(fs->cache, cache_file_vid(cf), src.pin) < 0)
        log_warn("content", "a pinned file's new cache file could not be pinned ino=%" G_GUINT64_FORMAT, in->ino);
    return 0;
}

bool content_is_here(struct inode *in)
{
    struct meta_cached c;
    mutex_lock(&in->mu);
    bool here = in->cf != NULL; /* perhaps too new for a record */
    uint64_t vid = in->rec.vid;
    mutex_unlock(&in->mu);
    return here || (vid && meta_cached_get(in->fs->meta, vid, &c) == 0 && !cache_scan_is_dying(&c));
}

int content_use(struct inode *in, struct cfile **ret)
{
    mutex_lock(&in->mu);
    bool have = in->cf != NULL, inside = in->gate_held && pthread_equal(in->gate_owner, pthread_self());
    in->n_cf_users++;
    mutex_unlock(&in->mu);
    if (!have && !inside)
        content_gate_enter(in);
    int r = have ? 0 : open_cfile(in);
    if (!have && !inside)
        content_gate_leave(in);
    if (r < 0) {
        content_unuse(in, NULL);
        return r;
    }
    *ret = cache_file_ref(in->cf);
    return 0;
}

struct cfile *content_use_open(struct inode *in)
{
    mutex_lock(&in->mu);
    struct cfile *cf = in->cf ? cache_file_ref(in->cf) : NULL;
    in->n_cf_users += cf != NULL;
    mutex_unlock(&in->mu);
    return cf;
}

/* The cache file is let go when nobody has the inode open and nobody works on it. */
static struct cfile *drop_unused_locked(struct inode *in) REQUIRES(in->mu)
{
    if (in->n_open > 0 || in->n_cf_users > 0)
        return NULL;
    return g_steal_pointer(&in->cf);
}

void content_unuse(struct inode *in, struct cfile *cf)
{
    cache_file_unref(cf);
    mutex_lock(&in->mu);
    in->n_cf_users--;
    struct cfile *last = drop_unused_locked(in);
    mutex_unlock(&in->mu);
    cache_file_unref(last);
}

/* ---- streaming ---- */

/* The key a file will be published under: its path, without a held pattern's suffix; NULL where no guess is possible. */
static char *predict_key(struct fs *fs, const char *path)
{
    if (!publish_is_held_name(fs, path))
        return g_strdup(path);
    for (unsigned i = 0; i < fs->hold_globs->len; i++) {
        const char *glob = fs->hold_globs->pdata[i];
        if (glob[0] == '*' && !strpbrk(glob + 1, "*?[/") && g_str_has_suffix(path, glob + 1))
            return g_strndup(path, strlen(path) - strlen(glob + 1));
    }
    return NULL;
}

bool content_plan_upload(struct inode *in, struct upload_plan *ret)
{
    struct fs *fs = in->fs;
    g_autofree char *path = NULL;
    if (fs->cfg->read_only || tree_path_of(fs, in->ino, &path) < 0)
        return false;
    g_autofree char *key = local_is(fs, path) ? NULL : predict_key(fs, path);
    if (!key || !*key)
        return false;
    mutex_lock(&in->mu);
    ret->meta = (struct obj_meta){.posix = {.fields = POSIX_MODE | POSIX_UID | POSIX_GID,
                                            .mode = in->rec.mode & ~(uint32_t)(S_ISUID | S_ISGID),
                                            .uid = in->rec.uid,
                                            .gid = in->rec.gid},
                                  .token = ret->token};
    token_write(fs, in->rec.vid, in->rec.gen, ret->token);
    mutex_unlock(&in->mu);
    ret->key = g_steal_pointer(&key);
    return true;
}

void content_begin_stream(struct inode *in)
{
    struct upload_plan plan = {0};
    if (!content_plan_upload(in, &plan))
        return;
    mutex_lock(&in->mu);
    struct cfile *cf = in->cf ? cache_file_ref(in->cf) : NULL;
    mutex_unlock(&in->mu);
    publish_probe_soon(in->fs, plan.key);
    if (cf)
        cache_stream_begin(cf, plan.key, &plan.meta);
    cache_file_unref(cf);
    g_free(plan.key);
}

/* ---- open ---- */

static void count_locked(struct inode *in, bool for_write) REQUIRES(in->mu)
{
    in->n_open++;
    in->n_writers += for_write;
    if (in->rec.nlink == 0)
        atomic_store(&in->fs->removed_open, true);
}

/* by_name: not one that was made without a name, nor for ourselves. */
static int open_counted(struct inode *in, bool for_write, bool by_name, bool appends)
{
    content_gate_enter(in);
    mutex_lock(&in->mu); /* counted first: from here on nobody lets the cache file go */
    bool lost = by_name && for_write && ((in->rec.flags & INODE_NAME_LOST) || (in->rec.nlink == 0 && in->n_open == 0));
    bool stale = in->expiring || lost;
    if (!stale)
        count_locked(in, for_write);
    in->rewriters |= !stale && for_write && !appends;
    mutex_unlock(&in->mu);
    if (stale) { /* the kernel looks the name up again, and finds another file or none */
        content_gate_leave(in);
        return -ESTALE;
    }
    int r = open_cfile(in);
    if (r == 0)
        cache_file_touch(in->cf);
    content_gate_leave(in);
    if (r < 0)
        content_release(in, for_write); /* seals what another writer left, if its release found us counted */
    return r;
}

int content_open(struct inode *in, bool for_write, bool trunc)
{
    int r = open_counted(in, for_write, true, false);
    if (r == 0 && trunc && for_write) {
        r = content_truncate(in, 0);
        if (r < 0)
            content_release(in, for_write);
    }
    return r;
}

int content_open_to_append(struct inode *in)
{
    return open_counted(in, true, true, true);
}

int content_adopt(struct inode *in, bool for_write)
{
    content_gate_enter(in);
    mutex_lock(&in->mu);
    count_locked(in, for_write);
    if (for_write) { /* what was written before nobody knows, but for what the file's slot tells (attach.c) */
        in->rewriters = true;
        in->sealed_changes = UINT64_MAX;
    }
    mutex_unlock(&in->mu);
    int r = open_cfile(in);
    content_gate_leave(in);
    if (r < 0)
        content_abandon(in, for_write);
    return r;
}

int content_take_over(struct inode *in)
{
    struct stat st;
    int r = RET_ERRNO(fstat(cache_file_fd(in->cf), &st));
    if (r < 0)
        return r;
    content_gate_enter(in);
    mutex_lock(&in->mu);
    uint32_t state = in->rec.content;
    mutex_unlock(&in->mu);
    if (state == CONTENT_OPEN || state == CONTENT_CLOSING)
        r = record_taken_over(in, cache_file_size(in->cf),
                              (int64_t)st.st_mtim.tv_sec * (int64_t)NS_PER_S + st.st_mtim.tv_nsec);
    content_gate_leave(in);
    return r;
}

int content_open_new(struct inode *in)
{
    int r = open_counted(in, true, false, false);
    if (r == 0) {
        content_write_intent(in);
        content_begin_stream(in);
    }
    return r;
}

int content_open_again(struct inode *in, bool for_write)
{
    int r = open_counted(in, for_write, false, false);
    mutex_lock(&in->mu);
    bool open = in->rec.content == CONTENT_OPEN;
    mutex_unlock(&in->mu);
    if (r == 0 && for_write && open)
        content_write_intent(in);
    return r;
}

/* ---- changes ---- */

/* Does the record on the disk say that the bytes there are whole? They carry no checksum that would tell otherwise. content: as it was before it is open. */
static bool is_vouched_for(struct inode *in, uint32_t content)
{
    mutex_lock(&in->mu);
    bool yes = (content == CONTENT_CLEAN && in->rec.vid) || (in->rec.flags & INODE_DATA_SYNCED);
    mutex_unlock(&in->mu);
    return yes && content != CONTENT_OPEN;
}

int content_begin_change_gated(struct inode *in)
{
    int r = open_cfile(in);
    mutex_lock(&in->mu);
    uint32_t content = in->rec.content;
    mutex_unlock(&in->mu);
    if (r == 0)
        r = cache_file_set_dirty(in->cf, true);
    CRASH_POINT(change_marked);
    if (r == 0)
        r = record_open(in);
    CRASH_POINT(change_recorded);
    /* Taken back for good before the first byte changes. Asked only now: a sync may have ended meanwhile. */
    if (r == 0 && is_vouched_for(in, content))
        r = meta_sync(in->fs->meta);
    if (r == 0) {
        content_write_intent(in);
        publish_content_state(in->fs, in->ino, CONTENT_OPEN);
    }
    if (r == 0 && content == CONTENT_SEALED)
        mapped_flushed(in);
    return r;
}

int content_begin_change(struct inode *in)
{
    mutex_lock(&in->mu);
    bool ready = in->rec.content == CONTENT_OPEN && in->snap_gen != in->rec.gen && !in->gate_held;
    if (ready)
        in->changed = true;
    mutex_unlock(&in->mu);
    if (ready)
        return 0;
    int r;
    do {
        content_gate_enter(in);
        r = content_begin_change_gated(in);
        content_gate_leave(in);
        if (r != -EAGAIN)
            return r;
        r = cache_file_fill(in->cf, true, true, NULL, NULL);
    } while (r == 0);
    return r;
}

int content_truncate(struct inode *in, uint64_t size)
{
    mutex_lock(&in->mu);
    backing_rewrite_locked(in);
    mutex_unlock(&in->mu);
    if (size == 0)
        cache_file_cut_begin(in->cf);
    int r = content_begin_change(in);
    if (r == 0)
        r = cache_file_truncate(in->cf, size);
    if (size == 0)
        cache_file_cut_end(in->cf, r == 0);
    if (r == 0 && size == 0) {
        struct cache_source none = {0};
        r = cache_file_set_source(in->cf, &none);
    }
    if (r < 0)
        return r;
    content_note_write(in);
    if (size == 0)
        content_begin_stream(in);
    return 0;
}

/* A hole may be made anywhere, also by a handle that appends. */
int content_fallocate(struct inode *in, int mode, uint64_t off, uint64_t len)
{
    mutex_lock(&in->mu);
    backing_rewrite_locked(in);
    mutex_unlock(&in->mu);
    int r = content_begin_change(in);
    if (r == 0)
        r = cache_file_fallocate(in->cf, mode, off, len);
    if (r == 0)
        content_note_write(in);
    return r;
}

void content_note_write(struct inode *in)
{
    mutex_lock(&in->mu);
    in->rec.size = cache_file_size(in->cf); /* of whoever comes last, all have been carried out */
    bool was_set = in->rec.flags & INODE_MTIME_SET;
    in->rec.mtime_ns = in->rec.ctime_ns = clock_wall_ns();
    in->rec.flags &= ~(uint32_t)INODE_MTIME_SET;
    in->changed = true;
    in->n_changes++;
    mutex_unlock(&in->mu);
    if (was_set)
        record_time_unset(in);
}

/* ---- flush, seal ---- */

/* fdatasync of the cache file; n_changes says later whether anything came after it. */
static int sync_bytes(struct inode *in)
{
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    uint64_t as_of = in->n_changes;
    mutex_unlock(&in->mu);
    int r = cache_file_sync(in->cf);
    mutex_lock(&in->mu);
    in->synced_changes = r == 0 ? MAX(in->synced_changes, as_of + 1) : 0; /* of two at once the later one counts */
    mutex_unlock(&in->mu);
    return r;
}

static uint64_t synced_changes(struct inode *in)
{
    mutex_lock(&in->mu);
    uint64_t n = in->synced_changes;
    mutex_unlock(&in->mu);
    return n;
}

/* What was synced by its writer (synced_changes() then) and not written since is synced once more, which costs little: the times of a file that the kernel
 * writes are too coarse to show every write. */
static int sync_again(struct inode *in, uint64_t synced)
{
    mutex_lock(&in->mu);
    bool same = synced == in->n_changes + 1;
    mutex_unlock(&in->mu);
    return same ? sync_bytes(in) : 0;
}

static int flush_gated(struct inode *in)
{
    mutex_lock(&in->mu);
    bool open = in->rec.content == CONTENT_OPEN, late = in->intent_late;
    mutex_unlock(&in->mu);
    int r = open ? record_closing(in) : 0;
    CRASH_POINT(flush_closing);
    if (r == 0 && (open || late))
        content_write_intent(in);
    CRASH_POINT(flush_intent);
    if (r == 0 && open)
        publish_content_state(in->fs, in->ino, CONTENT_CLOSING);
    return r;
}

int content_flush_gated(struct inode *in, bool want_sync)
{
    int r = open_cfile(in);
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    bool missed = in->rec.content != CONTENT_OPEN && in->n_changes != in->flushed_changes; /* by another's flush */
    mutex_unlock(&in->mu);
    if (r == 0 && missed)
        r = content_begin_change_gated(in);
    if (r == 0)
        r = want_sync ? sync_bytes(in) : sync_again(in, synced_changes(in));
    CRASH_POINT(flush_synced);
    return r == 0 ? flush_gated(in) : r;
}

int content_flush(struct inode *in, bool want_sync)
{
    content_gate_enter(in);
    int r = content_flush_gated(in, want_sync);
    if (r == 0)
        mapped_closed(in);
    content_gate_leave(in);
    if (r == 0 && want_sync)
        r = meta_sync(in->fs->meta);
    return r;
}

int content_flush_to_publish(struct inode *in, bool want_sync)
{
    io_mode_sum(in);
    return content_flush(in, want_sync);
}

int content_restore(struct inode *in, const struct io_kept *kept)
{
    struct cache_source src = {kept->key, kept->etag, kept->limit};
    int r = record_restored(in, kept);
    if (r != 0)
        return r;
    r = cache_file_sync(in->cf); /* it has no checksums any more */
    if (r == 0)
        r = cache_file_set_published(in->cf, &src);
    if (r < 0) /* stays marked dirty until the next start: kept longer than needed */
        log_warn("content", "cache file could not be marked clean ino=%" G_GUINT64_FORMAT " r=%s", in->ino,
                 err_name(r));
    publish_content_state(in->fs, in->ino, CONTENT_CLEAN);
    return 0;
}

/* OPEN or CLOSING, nobody has it open for writing. *ret_sealed: it may be published. */
static int seal_gated(struct inode *in, bool *ret_sealed)
{
    bool same = false;
    int r = open_cfile(in);
    if (r < 0)
        return r;
    uint64_t synced = synced_changes(in); /* not what the end of the kernel's writing leaves of it */
    if (!io_mode_end_writing(in, &same)) {
        mutex_lock(&in->mu);
        bool mapped = in->mapped && clock_mono_ns() - in->mapped_at_ns > LET_GO_NS;
        mutex_unlock(&in->mu);
        r = flush_gated(in);
        if (r == 0 && mapped)
            publish_content_state(in->fs, in->ino, CONTENT_OPEN); /* blocks nothing */
        return r == 0 ? mapped_add(in) : r;
    }
    if (same || orphan_stays_open(in))
        return same ? 0 : content_store(in);
    if (sync_again(in, synced) < 0)
        log_warn("content", "a closed file could not be synced ino=%" G_GUINT64_FORMAT,
                 in->ino); /* so its record does not say it is */
    r = flush_gated(in);
    CRASH_POINT(seal_begun);
    if (r == 0)
        r = record_sealed(in);
    CRASH_POINT(seal_recorded);
    if (r == 0)
        publish_content_state(in->fs, in->ino, CONTENT_SEALED);
    *ret_sealed = r == 0;
    return r;
}

/* A guess at what the next writers in its directories will bring (io_mode.c). */
static void note_closed_size(struct inode *in)
{
    struct meta_dentry d = {0};
    INODE_REF dir = NULL;
    mutex_lock(&in->mu);
    uint64_t size = in->rec.size;
    mutex_unlock(&in->mu);
    if (meta_link_first(in->fs->meta, in->ino, &d) == 0 && inode_get(in->fs, d.parent, &dir) == 0) {
        mutex_lock(&dir->mu);
        dir->largest_closed = MAX(dir->largest_closed, size);
        mutex_unlock(&dir->mu);
    }
    meta_dentry_clear(&d);
}

int content_seal(struct inode *in)
{
    io_mode_sum(in);
    content_gate_enter(in);
    mutex_lock(&in->mu);
    uint32_t state = in->rec.content;
    bool idle = in->n_writers == 0;
    mutex_unlock(&in->mu);
    bool sealed = false;
    int r = idle && (state == CONTENT_OPEN || state == CONTENT_CLOSING) ? seal_gated(in, &sealed) : 0;
    if (sealed)
        mapped_sealed(in);
    content_gate_leave(in);
    g_autofree char *path = NULL;
    if (sealed) {
        note_closed_size(in);
        durable_note(in->fs, in->ino);
    }
    if (r == 0 && sealed && tree_path_of(in->fs, in->ino, &path) == 0)
        pin_rules_apply(in->fs, path);
    return r;
}

void content_release(struct inode *in, bool for_write)
{
    mutex_lock(&in->mu);
    in->n_writers -= for_write;
    bool last_writer = for_write && in->n_writers == 0;
    bool seal = last_writer && in->rec.nlink > 0, stop_stream = last_writer && in->rec.nlink == 0;
    struct cfile *cf = stop_stream && in->cf ? cache_file_ref(in->cf) : NULL;
    mutex_unlock(&in->mu);
    if (cf) {
        io_mode_unnamed(in);
        cache_stream_abort(cf);
    }
    cache_file_unref(cf);
    int r = seal ? content_seal(in) : 0;
    if (r < 0)
        log_err("content", "a closed file could not be sealed, the next start does it ino=%" G_GUINT64_FORMAT " r=%s",
                in->ino, err_name(r));
    if (seal) {
        publish_writers_gone(in->fs, in->ino);
        publish_look_again(in);
    }
    mutex_lock(&in->mu);
    bool last_close = in->n_open == 1;
    mutex_unlock(&in->mu);
    if (last_close) /* before it counts as closed */
        local_closed(in);
    mutex_lock(&in->mu);
    in->n_open--;
    struct cfile *last = drop_unused_locked(in);
    mutex_unlock(&in->mu);
    cache_file_unref(last);
}

void content_abandon(struct inode *in, bool for_write)
{
    mutex_lock(&in->mu);
    in->n_writers -= for_write;
    in->n_open--;
    struct cfile *last = drop_unused_locked(in);
    mutex_unlock(&in->mu);
    cache_file_unref(last);
}

int content_sync_bytes(struct inode *in)
{
    int r = sync_bytes(in);
    CRASH_POINT(fsync_synced);
    return r < 0 ? r : record_synced(in);
}

int content_sync(struct inode *in)
{
    int r = content_sync_bytes(in);
    return r < 0 ? r : meta_sync(in->fs->meta);
}

/* Fetching its bytes gave the local file a time by which a start would think that somebody had written it since it was closed. */
static int keep_time(struct inode *in)
{
    mutex_lock(&in->mu);
    int64_t ns = in->rec.mtime_ns;
    mutex_unlock(&in->mu);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {.tv_sec = ns / (int64_t)NS_PER_S, .tv_nsec = ns % (int64_t)NS_PER_S}};
    return ns < 0 ? 0 : RET_ERRNO(futimens(cache_file_fd(in->cf), times));
}

/*
 * Content that its writers closed stays closed at every moment, or a kill would leave it unpublished until somebody closes it once more. What would survive a power loss survives it afterwards: bytes
 * may have been fetched a moment ago, from an object that may go as soon as nothing here needs it, and no checksum is looked at of what has no source.
 */
static int detach_closed(struct inode *in, bool *ret_closed)
{
    struct cache_source none = {0};
    content_gate_enter(in);
    mutex_lock(&in->mu);
    uint32_t state = in->rec.content;
    mutex_unlock(&in->mu);
    bool closed = state == CONTENT_CLEAN || state == CONTENT_SEALED || state == CONTENT_CLOSING;
    bool sync = closed && (is_vouched_for(in, state) || cache_file_has_source(in->cf));
    int r = closed ? cache_file_set_dirty(in->cf, true) : 0;
    /* Else the evictor was quicker than the mark: no record may say that it needs no source. */
    if (r == 0 && closed && !cache_file_complete(in->cf))
        r = -EAGAIN;
    if (r == 0 && closed)
        r = keep_time(in);
    if (r == 0 && sync)
        r = sync_bytes(in);
    if (r == 0 && closed)
        r = record_detached(in, sync);
    CRASH_POINT(detach_recorded);
    if (r == 0 && closed)
        r = cache_file_set_source(in->cf, &none);
    if (r == 0 && closed) {
        content_write_intent(in);
        publish_content_state(in->fs, in->ino, CONTENT_CLOSING);
    }
    content_gate_leave(in);
    *ret_closed = closed;
    return r;
}

/* unclosed: its writer never said that it is whole, and neither do we. */
static int detach_opened(struct inode *in, bool unclosed)
{
    struct cache_source none = {0};
    bool closed = false;
    mutex_lock(&in->mu);
    bool quarantined = in->rec.content == CONTENT_QUARANTINED, based = in->rec.base_key != NULL;
    mutex_unlock(&in->mu);
    if (quarantined) /* and stays it: what is here must not become what its writer closed */
        return based ? -EUCLEAN : 0;
    int r = cache_file_fill(in->cf, true, true, NULL, NULL);
    if (r == 0)
        r = detach_closed(in, &closed);
    if (r < 0 || closed)
        return r;
    r = content_begin_change(in);
    r = r == 0 && cache_file_has_source(in->cf) ? content_sync_bytes(in) : r;
    if (r == 0)
        r = cache_file_set_source(in->cf, &none);
    r = r == -EINVAL ? -EBUSY : r; /* not all of it is here any more: a copy in the store went on */
    if (r == 0)
        r = unclosed ? content_store(in) : content_flush(in, false);
    return r;
}

int content_detach(struct inode *in, bool open_stays)
{
    mutex_lock(&in->mu);
    bool unclosed = in->rec.content == CONTENT_OPEN && (in->n_writers == 0 || open_stays);
    mutex_unlock(&in->mu);
    int r = open_counted(in, true, false, false);
    if (r < 0)
        return r;
    r = detach_opened(in, unclosed);
    if (r < 0)
        content_end_detach(in);
    return r;
}

void content_end_detach(struct inode *in)
{
    mutex_lock(&in->mu);
    bool unclosed = in->rec.content == CONTENT_OPEN && in->n_writers == 1;
    mutex_unlock(&in->mu);
    if (unclosed)
        content_abandon(in, true);
    else
        content_release(in, true);
}

int content_give_up(struct inode *in, uint64_t gen)
{
    content_gate_enter(in);
    mutex_lock(&in->mu);
    bool same = in->rec.content == CONTENT_SEALED && in->rec.gen == gen;
    mutex_unlock(&in->mu);
    int r = same ? quarantine_gated(in) : -EAGAIN;
    content_gate_leave(in);
    if (r == 0)
        log_err(
            "content",
            "the cache disk holds other bytes of an unpublished file than were written: it is quarantined, its bytes "
            "are kept and never published ino=%" G_GUINT64_FORMAT "; see `sluice fsck`",
            in->ino);
    return r < 0 ? r : -EUCLEAN;
}

bool content_keeps_closed(struct inode *in)
{
    (void)io_mode_look(in);
    mutex_lock(&in->mu);
    bool keeps = !in->mapped && (!in->rewriters || in->n_changes == in->sealed_changes);
    mutex_unlock(&in->mu);
    return keeps;
}

bool content_is_dirty(struct inode *in)
{
    mutex_lock(&in->mu);
    bool dirty = S_ISREG(in->rec.mode) && in->rec.content != CONTENT_CLEAN;
    mutex_unlock(&in->mu);
    return dirty;
}

bool content_is_unclosed(struct inode *in)
{
    mutex_lock(&in->mu);
    bool unclosed = S_ISREG(in->rec.mode) && in->rec.content == CONTENT_OPEN && in->rec.nlink > 0 &&
                    in->n_writers == 0 && !in->gate_held;
    mutex_unlock(&in->mu);
    return unclosed;
}
