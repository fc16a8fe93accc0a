/*
 * Carrying out one op: reads name and inode under ns, then works with no lock held; what the store then holds is recorded by pubop_record().
 *
 * Everything is convergent: an op looks at what its name needs now (content, place, metadata, marker), so that doing it twice, or after a crash, is harmless.
 */
#include "base/crash.h"
#include "base/patience.h"
#include "cache_sums.h"
#include "conflict.h"
#include "delta.h"
#include "io_mode.h"
#include "ns_undo.h"
#include "publish_here.h"
#include "publish_late.h"
#include "states.h"

#define GATE_SLICE_NS (250 * NS_PER_MS)

struct job {
    struct op *o;
    struct meta_dentry d;
    struct inode *in; /* owned reference */
    bool snapshot;
    uint64_t deadline_ns;
    int64_t ctime_ns;  /* of the inode, as of d, or of what is uploaded */
    uint64_t vid, gen; /* content that is uploaded */
    /* of content_sync(), which goes on while parts are sent */
    pthread_t sync_thread;
    bool syncing;     /* to be joined */
    struct cfile *cf; /* of that, borrowed from upload_content() */
    int hurry;        /* atomic: all else is done, the sync is waited for */
    int sync_r;
    bool unlogged; /* the bytes are on the disk, the journal does not say so for good yet */
};

/* ---- order ---- */

static int gate(void *ctx)
{
    struct job *j = ctx;
    struct publisher *p = j->o->p;
    int r = -EINPROGRESS;
    if (j->deadline_ns) /* the time limit is on waiting for others, not on our own upload, which makes progress */
        j->deadline_ns = MAX(j->deadline_ns, clock_mono_ns() + p->fs->cfg->op_timeout_ns);
    mutex_lock(&p->mu);
    for (;;) {
        if (j->o->dropped) {
            r = -EAGAIN; /* renamed, removed or closed again: another op has taken over */
            break;
        }
        if (!j->snapshot && j->o->content != CONTENT_SEALED && j->o->content != CONTENT_CLEAN) {
            r = -EAGAIN; /* a writer came, and may have begun before the upload looked at the file */
            break;
        }
        if (p->stopping) {
            r = -ECANCELED;
            break;
        }
        if (j->o->untangle) {
            r = -EAGAIN; /* it waits for what waits for it, or for itself: its content is to be brought here first */
            break;
        }
        const struct op *b = queue_blocker_locked(p, j->o);
        uint64_t now = clock_mono_ns(), until = late_until_locked(p, b ? b : j->o);
        if (until <= now && !b) {
            r = 0;
            break;
        }
        if (until > now && j->deadline_ns) { /* it ends for certain: who waits for it is not to give up */
            j->deadline_ns = MAX(j->deadline_ns, until + p->fs->cfg->op_timeout_ns);
            patience_progress();
        }
        if (j->deadline_ns == 0 || j->o->given_up || now >= j->deadline_ns) {
            r = j->deadline_ns && !j->o->given_up ? -ETIMEDOUT : -EINPROGRESS;
            break;
        }
        if (!j->o->at_gate) {
            j->o->at_gate = true;
            queue_wake_locked(p); /* what it waits for may have to be untangled */
        }
        (void)cond_wait_until(&p->done, &p->mu, MIN(j->deadline_ns, now + GATE_SLICE_NS));
    }
    j->o->at_gate = false;
    mutex_unlock(&p->mu);
    return r;
}

static void *sync_main(void *arg)
{
    struct job *j = arg;
    cache_file_write_out(j->cf, &j->hurry);
    j->sync_r = content_sync(j->in);
    return NULL;
}

/* Power loss after the sync cannot make the journal promise what the disk does not hold. It is begun at once, whatever the store does, and the
 * upload of several parts does not wait for it; but that of a snapshot does, as a store through a mapping shows by the next look at the file's times only where pages were written out before they are read. */
static int begin_sync(struct job *j, struct cfile *cf)
{
    j->cf = cf;
    j->hurry = 0;
    if (!j->snapshot && cache_file_size(cf) > j->o->p->fs->cfg->part_size)
        j->syncing = thread_start(&j->sync_thread, "sync", sync_main, j) == 0;
    if (!j->syncing)
        j->sync_r = content_sync_bytes(j->in);
    j->unlogged = !j->syncing && j->sync_r == 0;
    return j->syncing ? 0 : j->sync_r;
}

static int end_sync(struct job *j)
{
    __atomic_store_n(&j->hurry, 1, __ATOMIC_RELAXED); /* a flag */
    if (j->syncing)
        (void)pthread_join(j->sync_thread, NULL); /* joinable and ours */
    j->syncing = false;
    return j->sync_r;
}

/* Where no note was synced, which takes along what was committed before it: whatever the store or others do, the bytes survive a power loss. */
static int log_sync(struct job *j)
{
    int r = j->unlogged ? meta_sync(j->o->p->fs->meta) : 0;
    j->unlogged = j->unlogged && r < 0;
    return r;
}

/* From here on the snapshot's token may stand upstream, whether or not we get to know: what is written later is another generation. */
static void begin_visible(struct job *j)
{
    struct inode *in = j->in;
    mutex_lock(&in->mu);
    if (j->snapshot && in->rec.vid == j->vid && in->rec.gen == j->gen) {
        in->snap_gen = j->gen;
        in->snap_mark = (struct io_mark){0};
    }
    mutex_unlock(&in->mu);
}

/* What must stand at the name's key for us to replace it. */
static struct obj_cond condition(const struct job *j)
{
    struct obj_cond c = {.kind = OBJ_COND_ABSENT};
    if (pubop_conflict(j->o) == CONFLICT_OVERWRITE) {
        c.kind = OBJ_COND_NONE;
    } else if (tree_object_at_path(&j->d, &c.etag)) {
        c.kind = OBJ_COND_ETAG;
    }
    return c;
}

#define WHAT_MAX 64

/* Of what is sent for late_put(). */
static void say_what(uint64_t vid, uint64_t gen, int64_t ctime_ns, char *ret)
{
    g_snprintf(ret, WHAT_MAX, "%" G_GINT64_MODIFIER "x.%" G_GINT64_MODIFIER "x.%" G_GINT64_MODIFIER "x", vid, gen,
               (uint64_t)ctime_ns);
}

/* Is all that was closed still what is published? Who writes it anew may have begun and not be done. */
static bool keeps_closed(struct job *j)
{
    struct inode *in = j->in;
    if (!j->o->whole)
        return true;
    bool keeps = content_keeps_closed(in);
    mutex_lock(&in->mu);
    keeps = keeps && !(in->rewriters && in->changed);
    mutex_unlock(&in->mu);
    return keeps;
}

/* The bytes of a small file were read: no writer came between the gate and that. */
static int last_look(void *ctx)
{
    return keeps_closed(ctx) ? 0 : -ECANCELED;
}

/* The gate of uploads, which make something visible right after it. */
static int upload_gate(void *ctx)
{
    struct job *j = ctx;
    int r = end_sync(j);
    if (r == 0) /* may take long: before the last look at who came meanwhile */
        r = place_spare_readers(j->o, &j->d);
    if (r == 0)
        r = gate(j);
    if (r == 0 && !keeps_closed(j))
        r = -ECANCELED; /* somebody came who writes it anew */
    mutex_lock(&j->in->mu);
    r = r < 0 ? r : states_publish_gate(j->in->rec.content, j->snapshot);
    mutex_unlock(&j->in->mu);
    if (r < 0)
        return r;
    begin_visible(j);
    char what[WHAT_MAX];
    struct obj_cond cond = condition(j);
    bool version = cond.kind == OBJ_COND_ETAG && etag_is_bare(&cond.etag) && j->d.usize > 0;
    struct late_request req = {.caps = version ? CAP_PUT_IF_MATCH | CAP_COMPLETE_CONDITIONS : 0, .what = what};
    say_what(j->vid, j->gen, j->ctime_ns, what);
    r = note_upload(j->o, &(struct upload_note){j->vid, j->gen, j->d.token}, &req);
    j->unlogged = j->unlogged && r < 0;
    return r;
}

static void on_progress(void *ctx, uint64_t bytes)
{
    __atomic_store_n(&((struct job *)ctx)->o->progress_bytes, bytes, __ATOMIC_RELAXED);
    patience_progress();
}

static void posix_of(const struct meta_inode *rec, struct posix_attr *p)
{
    *p = (struct posix_attr){
        .fields = POSIX_MODE | POSIX_UID | POSIX_GID | POSIX_MTIME,
        .mode = rec->mode & ~(uint32_t)(S_ISUID | S_ISGID),
        .uid = rec->uid,
        .gid = rec->gid,
        .mtime_ns = rec->mtime_ns,
    };
}

/* ---- kinds ---- */

static int find_key(void *ctx, const struct obj_entry *e)
{
    *(bool *)ctx = !e->is_prefix && e->name_len == 0; /* the key that was asked for comes first */
    return 1;
}

/* A store that does not take the name refuses to look it up or delete it as well, and then nothing is there: a listing says so. */
static bool is_absent(struct fs *fs, const char *key)
{
    struct obj_list_req req = {.prefix = key, .max_keys = 1};
    bool found = false;
    return objstore_list(fs->store, &req, find_key, &found, NULL) == 0 && !found;
}

/* Deletes what may be deleted: the object with the etag known, one of ours that was noted but not recorded, or a marker without bytes. -ENOENT: none of them is there. */
static int delete_as_known(struct op *o)
{
    struct fs *fs = o->p->fs;
    struct obj_cond cond = {.kind = OBJ_COND_ETAG, .etag = o->rec.etag};
    bool known = etag_is_set(&o->rec.etag);
    int r = known ? objstore_delete(fs->store, o->key, &cond) : -ESTALE;
    if (r != -ESTALE)
        return r;
    struct obj_info info = {0};
    r = note_find(fs, o->key, &info);
    if (r == 0) {
        cond.etag = info.etag;
        r = objstore_delete(fs->store, o->key, &cond);
    } else if (r == -ENOENT && known) {
        r = -ESTALE;
    }
    obj_info_clear(&info);
    return r;
}

static int delete_object(struct op *o)
{
    int r = delete_as_known(o);
    bool refused = r == -EACCES || r == -EINVAL || r == -EREMOTEIO || r == -EKEYEXPIRED; /* a HEAD does not say why */
    return refused && is_absent(o->p->fs, o->key) ? -ENOENT : r;
}

static int run_delete(struct op *o)
{
    struct fs *fs = o->p->fs;
    mutex_lock(&o->p->mu);
    bool replaced = queue_delete_replaced_locked(o->p, o);
    mutex_unlock(&o->p->mu);
    if (replaced)
        return pubop_forget(o);
    int r = place_keep_readers(o);
    mutex_lock(&o->p->mu);
    o->kept_out = r == -EBUSY || r == -ENOSPC;
    mutex_unlock(&o->p->mu);
    if (r == 0) /* or a power loss brings a record back that counts on the object: of a copy to be made, say */
        r = late_note_delete(o);
    if (r == 0)
        r = meta_sync(fs->meta);
    if (r == 0)
        r = delete_object(o);
    CRASH_POINT(delete_sent);
    if (r == -ESTALE) {
        log_warn("publish", "object was changed elsewhere, it is kept key='%s'", o->key);
        metric_inc(M_conflicts_total);
        return pubop_forget(o);
    }
    if (r < 0 && r != -ENOENT)
        return r;
    metric_inc(M_published_deletes);
    mutex_lock(&o->p->mu);
    queue_note_deleted_locked(o->p, o->key);
    mutex_unlock(&o->p->mu);
    return pubop_forget(o);
}

/* Puts the marker where no object with bytes has that key. 1: one has, and stays; it shows the directory as well. -EBUSY: what stands there changed meanwhile. */
static int put_marker(struct objstore *st, const char *key, const struct obj_meta *meta, struct etag *ret_etag)
{
    struct obj_cond cond = {.kind = OBJ_COND_ABSENT};
    struct obj_info info = {0};
    int r = objstore_put(st, key, "", 0, meta, &cond, ret_etag);
    if (r != -ESTALE)
        return r;
    r = objstore_head(st, key, &info);
    bool theirs = r == 0 && info.size > 0;
    if (r == 0)
        cond = (struct obj_cond){.kind = OBJ_COND_ETAG, .etag = info.etag};
    obj_info_clear(&info);
    if (theirs || (r < 0 && r != -ENOENT))
        return theirs ? 1 : r;
    r = objstore_put(st, key, "", 0, meta, &cond, ret_etag);
    return r == -ESTALE ? -EBUSY : r;
}

static int run_marker(struct job *j)
{
    struct fs *fs = j->o->p->fs;
    int r = tree_is_shown(fs, j->d.ino, j->o->key, 0, UINT_MAX);
    if (r < 0)
        return r;
    if (r > 0 && !j->d.ukey)
        return pubop_forget(j->o); /* its files show it */
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    struct obj_meta meta = {.token = out.token};
    token_write(fs, j->d.ino, j->o->rec.seq, out.token);
    r = note_upload(j->o, &(struct upload_note){j->d.ino, j->o->rec.seq, ""}, &(struct late_request){.what = ""});
    if (r == 0)
        r = put_marker(fs->store, j->o->key, &meta, &out.etag);
    CRASH_POINT(marker_put);
    if (r == 1)
        return pubop_forget(j->o);
    return r < 0 ? r : pubop_record(j->o, &j->d, j->in, &out);
}

static int run_symlink(struct job *j)
{
    struct fs *fs = j->o->p->fs;
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    struct obj_cond cond = condition(j);
    struct obj_meta meta = {0};
    char what[WHAT_MAX];
    mutex_lock(&j->in->mu);
    posix_of(&j->in->rec, &meta.posix);
    g_autofree char *target = g_strdup(j->in->rec.target);
    say_what(0, 0, j->in->rec.ctime_ns, what);
    mutex_unlock(&j->in->mu);
    meta.symlink = target;
    meta.token = out.token;
    token_write(fs, j->d.ino, j->o->rec.seq, out.token);
    int r = place_spare_readers(j->o, &j->d);
    if (r == 0)
        r = note_upload(j->o, &(struct upload_note){j->d.ino, j->o->rec.seq, j->d.token},
                        &(struct late_request){.what = what});
    if (r == 0)
        r = objstore_put(fs->store, j->o->key, "", 0, &meta, &cond, &out.etag);
    CRASH_POINT(symlink_put);
    return r < 0 ? r : pubop_record(j->o, &j->d, j->in, &out);
}

/* -ESTALE: somebody was quicker with the next version, as neither ETag nor token is the copy's. */
static int verify_copy(struct job *j, const char *token, struct outcome *out)
{
    struct obj_info info = {0};
    int r = objstore_head(j->o->p->fs->store, j->o->key, &info);
    bool same_etag = !etag_is_set(&out->etag) || etag_fits(&out->etag, &info.etag);
    if (r == 0 && !same_etag && strcmp(info.token, token) != 0)
        r = -ESTALE;
    else if (r == 0 && info.size != out->size)
        r = -EBADMSG;
    if (r == 0) {
        out->etag = info.etag;
        g_strlcpy(out->token, info.token, sizeof(out->token));
    }
    obj_info_clear(&info);
    return r;
}

/* By what token the copy will be known as ours: the source's, or one of its own where that has none. The name's is of an older version where no object is its own. */
static int copy_token(struct job *j, const char *src, struct obj_meta *meta, bool *new_meta, char *ret)
{
    struct fs *fs = j->o->p->fs;
    struct obj_info info = {0};
    g_strlcpy(ret, j->d.flags & DENTRY_UPSTREAM ? j->d.token : "", TOKEN_MAX + 1);
    if (*ret)
        return 0;
    int r = objstore_head(fs->store, src, &info); /* listings do not tell tokens */
    if (r == 0 && info.token[0]) {
        g_strlcpy(ret, info.token, TOKEN_MAX + 1);
    } else if (r == 0) {
        token_write(fs, j->d.ino, j->o->rec.seq, ret);
        if (!*new_meta)
            meta->posix = info.posix;
        *new_meta = true;
    }
    obj_info_clear(&info);
    return r;
}

/* The content is in the store under src: copied there, or its metadata replaced when src is the name's own key. */
static int run_copy(struct job *j, const char *src, const struct etag *src_etag)
{
    struct fs *fs = j->o->p->fs;
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    char token[TOKEN_MAX + 1];
    struct obj_meta meta = {.token = token};
    mutex_lock(&j->in->mu);
    posix_of(&j->in->rec, &meta.posix);
    out.size = j->in->rec.size;
    out.vid = j->in->rec.vid;
    out.gen = j->in->rec.gen;
    bool in_place = g_str_equal(src, j->o->key), new_meta = in_place || (j->d.flags & DENTRY_META_DIRTY);
    out.ctime_ns = new_meta ? j->in->rec.ctime_ns : j->ctime_ns; /* what was set since d was read is not sent */
    mutex_unlock(&j->in->mu);
    struct obj_cond cond = condition(j);
    if (in_place)
        cond = (struct obj_cond){.kind = OBJ_COND_NONE}; /* the source's condition says it */
    char what[WHAT_MAX];
    struct late_request req = {.src = in_place ? NULL : src, .empty = out.size == 0, .what = what};
    say_what(out.vid, out.gen, out.ctime_ns, what);
    int r = place_spare_readers(j->o, &j->d);
    if (r == 0)
        r = copy_token(j, src, &meta, &new_meta, token);
    if (r == 0)
        r = note_copy(
            j->o, &(struct copy_note){token, out.size, in_place ? j->d.ino : 0, new_meta ? &meta.posix : NULL}, &req);
    CRASH_POINT(copy_noted);
    struct obj_copy copy = {
        .src = src, .dst = j->o->key, .src_etag = src_etag, .meta = new_meta ? &meta : NULL, .dst_cond = &cond};
    if (r == 0)
        r = note_and_copy(j->o, &copy, &out.etag);
    struct etag again;
    copy.src_etag = &again;
    if (r == -ESTALE && !in_place && note_content(fs, src, j->d.ino, &out, &again) == 0)
        r = note_and_copy(j->o, &copy, &out.etag);
    CRASH_POINT(copy_visible);
    if (r == -ESTALE)
        log_info("publish", "no copy: key='%s' from='%s' etag=%s, there is to be %s", j->o->key, src, src_etag->s,
                 cond.kind == OBJ_COND_ABSENT ? "nothing" : cond.etag.s);
    if (r == 0)
        r = verify_copy(j, token, &out);
    CRASH_POINT(copy_verified);
    if (r < 0)
        return r;
    if (!in_place)
        metric_inc(M_published_renames);
    delta_moved(fs, src, src_etag, j->o->key, &out.etag);
    return pubop_record(j->o, &j->d, j->in, &out);
}

/* The condition failed: is what stands there a version of this file, published by us and not recorded (killed in between)? One that is not later than the
 * recorded ones was put back by somebody else. The token may be that of the start of an upload, and is known of a loser that came back as well. */
static bool own_version(struct job *j, uint64_t vid, struct etag *ret_etag)
{
    struct fs *fs = j->o->p->fs;
    struct obj_info info = {0};
    char recorded[TOKEN_MAX + 1];
    g_autofree char *prefix = g_strdup_printf("%s.%" G_GINT64_MODIFIER "x.", meta_uuid(fs->meta), vid);
    token_write(fs, j->d.pub_vid, j->d.pub_gen, recorded);
    bool own = objstore_head(fs->store, j->o->key, &info) == 0 && token_is_later(info.token, prefix, recorded) &&
               token_is_later(info.token, prefix, j->d.token) && note_is_own(fs, j->o->key, &info);
    if (own)
        *ret_etag = info.etag;
    obj_info_clear(&info);
    return own;
}

/* An unrecorded version of ours took the place of the object that absent bytes came from: they are the same in it. */
static int take_as_base(struct job *j, const struct etag *etag)
{
    struct fs *fs = j->o->p->fs;
    struct inode *in = j->in;
    struct cfile *cf = NULL;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    if (in->rec.base_key && g_str_equal(in->rec.base_key, j->o->key) && !in->gone) {
        ns_undo_note_locked(in);
        in->rec.base_etag = *etag;
        meta_inode_put(b, &in->rec);
        cf = in->cf ? cache_file_ref(in->cf) : NULL;
    }
    mutex_unlock(&in->mu);
    int r = meta_commit(b, false);
    ns_undo_end(fs, r == 0);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    if (cf && r == 0)
        cache_file_rebase(cf, j->o->key, etag);
    cache_file_unref(cf);
    return r;
}

/* A closed file that is not as long as it was then has lost bytes. */
static int check_size(const struct job *j, uint64_t size, uint64_t closed_size)
{
    if (j->snapshot || size == closed_size)
        return 0;
    log_err("publish",
            "content of a closed file has another size key='%s' size=%" G_GUINT64_FORMAT "/%" G_GUINT64_FORMAT,
            j->o->key, size, closed_size);
    return -EUCLEAN;
}

static int upload_content(struct job *j, struct cfile *cf)
{
    struct fs *fs = j->o->p->fs;
    struct inode *in = j->in;
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    struct publish_req req = {.key = j->o->key,
                              .cond = condition(j),
                              .snapshot = j->snapshot,
                              .gate = upload_gate,
                              .last_look = last_look,
                              .progress = on_progress,
                              .ctx = j};
    if (j->snapshot)
        io_mode_mark(in, cf, &out.mark);
    (void)io_mode_look(in); /* what was written up to now is no later change */
    mutex_lock(&in->mu);
    int r = states_publish_gate(in->rec.content, j->snapshot);
    in->changed = r < 0 && in->changed;
    posix_of(&in->rec, &req.meta.posix);
    j->vid = out.vid = in->rec.vid;
    j->gen = out.gen = in->rec.gen;
    j->ctime_ns = out.ctime_ns = in->rec.ctime_ns;
    bool mtime_set = in->rec.flags & INODE_MTIME_SET;
    uint64_t closed_size = in->rec.size;
    req.copy_unchanged = in->rec.base_key != NULL;
    mutex_unlock(&in->mu);
    if (r == 0)
        r = check_size(j, cache_file_size(cf), closed_size);
    if (r == 0)
        r = begin_sync(j, cf);
    if (r < 0)
        return r;
    char token[TOKEN_MAX + 1];
    token_write(fs, out.vid, out.gen, token);
    req.meta.token = token;
    req.version_len = token_version_len(token);
    g_autoptr(GBytes) sums = j->snapshot ? NULL : cache_sums_load(fs->meta, out.vid, out.gen);
    req.sums = sums;
    struct publish_result res = {0};
    r = cache_publish(cf, &req, &res);
    int synced = end_sync(j); /* asked at the gate, but an upload that an earlier run completed has none */
    synced = synced < 0 ? synced : log_sync(j);
    r = r == 0 ? synced : r;
    if (r == -ESTALE && own_version(j, out.vid, &req.cond.etag)) {
        req.cond.kind = OBJ_COND_ETAG;
        r = take_as_base(j, &req.cond.etag);
        if (r == 0)
            r = cache_publish(cf, &req, &res);
    }
    CRASH_POINT(upload_verified);
    if (r == 0)
        r = check_size(j, res.size, closed_size);
    if (r < 0)
        return r;
    out.mark.sum = res.sum;
    if (out.mark.beside_writers && !res.sum)
        out.mark = (struct io_mark){0};
    out.etag = res.etag;
    out.size = res.size;
    /* a streamed upload has those of its start, and no mtime unless it had been set by then */
    out.meta = note_carries(&res.posix, &req.meta.posix, mtime_set);
    g_strlcpy(out.token, res.token, sizeof(out.token));
    return pubop_record(j->o, &j->d, in, &out);
}

static int run_upload(struct job *j)
{
    struct cfile *cf = NULL;
    mutex_lock(&j->in->mu);
    uint64_t gen = j->in->rec.gen;
    mutex_unlock(&j->in->mu);
    int r = content_use(j->in, &cf);
    if (r < 0)
        return r;
    r = upload_content(j, cf);
    if (r == -EUCLEAN)
        r = content_give_up(j->in, gen);
    content_unuse(j->in, cf);
    return r;
}

/* A snapshot published this very content before the file was closed: only the record is missing. */
static int record_snapshot(struct job *j)
{
    struct outcome out = {.key = j->o->key,
                          .etag = j->d.uetag,
                          .size = j->d.usize,
                          .vid = j->d.pub_vid,
                          .gen = j->d.pub_gen,
                          .content = true};
    g_strlcpy(out.token, j->d.token, sizeof(out.token));
    return pubop_record(j->o, &j->d, j->in, &out);
}

static int run_file(struct job *j)
{
    struct inode *in = j->in;
    mutex_lock(&in->mu);
    uint32_t content = in->rec.content;
    g_autofree char *base = g_strdup(in->rec.base_key);
    struct etag base_etag = in->rec.base_etag;
    bool published = j->d.pub_gen && j->d.pub_vid == in->rec.vid && j->d.pub_gen == in->rec.gen && !in->changed;
    mutex_unlock(&in->mu);
    if (content == CONTENT_QUARANTINED)
        return -EUCLEAN;
    if (content != CONTENT_CLEAN && !(published && (j->d.flags & DENTRY_UPSTREAM)))
        return run_upload(j);
    bool upstream = j->d.flags & DENTRY_UPSTREAM;
    const char *src = upstream ? (j->d.ukey ? j->d.ukey : j->o->key) : base;
    const struct etag *etag = upstream ? &j->d.uetag : &base_etag;
    if (!src)
        return run_upload(j);
    if (g_str_equal(src, j->o->key) && content == CONTENT_SEALED)
        return record_snapshot(j);
    if (g_str_equal(src, j->o->key) && !(j->d.flags & DENTRY_META_DIRTY))
        return pubop_forget(j->o);
    int r = gate(j);
    if (r < 0)
        return r;
    r = run_copy(j, src, etag);
    bool cannot = (r == -ENOENT || r == -ENOMEDIUM) && !g_str_equal(src, j->o->key);
    return cannot ? here_copy_failed(j->o, &j->d, in, src, r) : r;
}

static int read_job(struct job *j)
{
    struct op *o = j->o;
    struct fs *fs = o->p->fs;
    int r = place_ready(o);
    if (r < 0)
        return r;
    mutex_lock(&fs->ns);
    r = meta_dentry_get(fs->meta, o->rec.parent, o->rec.name, &j->d);
    if (r == 0 && j->d.op_seq != o->rec.seq)
        r = -ENOENT;
    if (r == 0)
        r = inode_get(fs, j->d.ino, &j->in);
    if (r == 0) {
        mutex_lock(&j->in->mu);
        j->ctime_ns = j->in->rec.ctime_ns;
        mutex_unlock(&j->in->mu);
        r = place_take_delete(o, &j->d);
    }
    mutex_unlock(&fs->ns);
    return r;
}

/* Under the same token: with the target and the attributes that the link has now? */
static bool is_this_link(struct job *j, const struct obj_info *info)
{
    struct posix_attr posix;
    if (!S_ISLNK(j->o->type) || !token_is_version(j->o->p->fs, info->token, j->d.ino, j->o->rec.seq))
        return false;
    mutex_lock(&j->in->mu);
    posix_of(&j->in->rec, &posix);
    bool same = g_strcmp0(info->symlink, j->in->rec.target) == 0;
    mutex_unlock(&j->in->mu);
    return same && note_carries(&info->posix, &posix, true);
}

/* Did a try that was cut off make an object visible? 1: it is the content we have, and recorded now. */
static int settle_note(struct job *j)
{
    struct fs *fs = j->o->p->fs;
    struct obj_info info = {0};
    struct etag known = {0};
    int r = note_find(fs, j->o->key, &info);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    struct outcome out = {.key = j->o->key, .etag = info.etag, .size = info.size, .content = true};
    mutex_lock(&j->in->mu);
    const struct meta_inode *rec = &j->in->rec;
    out.vid = rec->vid;
    out.gen = rec->gen;
    bool sealed = S_ISREG(rec->mode) && rec->content == CONTENT_SEALED && rec->size == info.size;
    mutex_unlock(&j->in->mu);
    g_strlcpy(out.token, info.token, sizeof(out.token));
    out.meta = is_this_link(j, &info);
    if (out.meta || (sealed && token_is_version(fs, info.token, out.vid, out.gen))) {
        r = pubop_record(j->o, &j->d, j->in, &out);
        r = r < 0 ? r : 1;
    } else if (!tree_object_at_path(&j->d, &known) || !etag_equal(&known, &info.etag)) {
        mutex_lock(&fs->ns);
        r = place_adopt(j->o, &j->d, &info.etag);
        mutex_unlock(&fs->ns);
        if (r == 0 && S_ISREG(j->o->type))
            r = take_as_base(j, &info.etag);
    }
    obj_info_clear(&info);
    return r;
}

static int run_sync(struct op *o, bool snapshot, uint64_t deadline_ns)
{
    struct job j = {.o = o, .snapshot = snapshot, .deadline_ns = deadline_ns};
    int r = read_job(&j);
    if (r == -ENOENT)
        r = pubop_forget(o); /* the name went another way */
    else if (r == 0)
        r = S_ISDIR(o->type) ? run_marker(&j) : settle_note(&j);
    if (r == 0 && j.in && !S_ISDIR(o->type))
        r = S_ISLNK(o->type) ? run_symlink(&j) : run_file(&j);
    if (r == -ESTALE)
        r = place_look_again(o, &j.d);
    r = MIN(r, 0);
    meta_dentry_clear(&j.d);
    inode_put(j.in);
    return r;
}

static bool is_quarantined(const struct job *j)
{
    mutex_lock(&j->in->mu);
    bool is = j->in->rec.content == CONTENT_QUARANTINED;
    mutex_unlock(&j->in->mu);
    return is;
}

/*
 * An older op would overwrite what this one still copies from, and must not wait for it, because this one waits for older ones (or for that very op, where names
 * changed places). So the content is brought here, and sent from here when its turn comes. What does not fit into the cache goes before its turn instead.
 */
static int run_untangle(struct op *o)
{
    struct job j = {.o = o};
    int r = read_job(&j);
    if (r == -ENOENT) {
        r = pubop_forget(o);
    } else if (r == 0) {
        r = here_send(o, &j.d, j.in);
        if (r < 0 && is_quarantined(&j)) /* its turn, at which that is found out, never comes */
            r = -EUCLEAN;
        mutex_lock(&o->p->mu);
        o->untangle = false;
        o->hasty = r == -EFBIG;
        mutex_unlock(&o->p->mu);
        r = r == -EFBIG ? -EAGAIN : r;
    }
    meta_dentry_clear(&j.d);
    inode_put(j.in);
    return r;
}

static int run(struct op *o, bool snapshot, uint64_t deadline_ns)
{
    mutex_lock(&o->p->mu);
    bool settle = o->settle;
    mutex_unlock(&o->p->mu);
    if (settle)
        return conflict_settle(o);
    int r = publish_probe(o->p->fs, o->key);
    late_begin(); /* what was probed with is nothing of it */
    bool full = r == -EDQUOT || r == -EREMOTEIO;
    if (r < 0 && !(full && o->rec.kind == OP_DELETE)) /* which makes room, and is safe without */
        return r;
    if (o->untangle)
        return run_untangle(o);
    r = late_hear(o);
    if (r < 0)
        return r;
    return o->rec.kind == OP_DELETE ? run_delete(o) : run_sync(o, snapshot, deadline_ns);
}

int pubop_run(struct op *o, bool snapshot, uint64_t deadline_ns)
{
    late_begin();
    int r = run(o, snapshot, deadline_ns);
    late_end(o, r);
    return r;
}
