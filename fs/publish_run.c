/*
 * Carrying out one op: reads name and inode under ns, then works with no lock held; what the store then holds is recorded by pubop_record().
 *
 * Everything is convergent: an op looks at what its name needs now (content, place, metadata, marker), so that doing it twice, or after a crash, is harmless.
 */
#include "publish_internal.h"

#define BACKOFF_MIN_NS (250 * NS_PER_MS)
#define BACKOFF_MAX_NS (60 * NS_PER_S)
#define GATE_SLICE_NS  (250 * NS_PER_MS)
#define BAD_BYTES_MAX  5

struct job {
    struct op *o;
    struct meta_dentry d;
    struct inode *in; /* owned reference */
    bool snapshot;
    uint64_t deadline_ns;
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
        if (p->stopping) {
            r = -ECANCELED;
            break;
        }
        if (queue_eligible_locked(p, j->o)) {
            r = 0;
            break;
        }
        uint64_t now = clock_mono_ns();
        if (j->deadline_ns == 0 || now >= j->deadline_ns) {
            r = j->deadline_ns ? -ETIMEDOUT : -EINPROGRESS;
            break;
        }
        (void)cond_wait_until(&p->work, &p->mu, MIN(j->deadline_ns, now + GATE_SLICE_NS));
    }
    mutex_unlock(&p->mu);
    return r;
}

static void on_progress(void *ctx, uint64_t bytes)
{
    __atomic_store_n(&((struct job *)ctx)->o->progress_bytes, bytes, __ATOMIC_RELAXED);
}

/* What must stand at the name's key for us to replace it. */
static struct obj_cond condition(const struct job *j)
{
    struct obj_cond c = {.kind = OBJ_COND_ABSENT};
    if (j->o->force || j->o->p->fs->cfg->conflict == CONFLICT_OVERWRITE) {
        c.kind = OBJ_COND_NONE;
    } else if (tree_object_at_path(&j->d, &c.etag)) {
        c.kind = OBJ_COND_ETAG;
    }
    return c;
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

static int run_delete(struct op *o)
{
    struct fs *fs = o->p->fs;
    INODE_REF in = NULL;
    if (o->keep_ino &&
        inode_get(fs, o->keep_ino, &in) == 0) { /* open and removed: its bytes must be here before the object goes */
        struct cfile *cf = NULL;
        mutex_lock(&in->mu);
        if (in->n_open > 0 && in->cf)
            cf = cache_file_ref(in->cf);
        mutex_unlock(&in->mu);
        int r = cf && !cache_file_complete(cf) ? cache_file_fill(cf, true, true, NULL, NULL) : 0;
        cache_file_unref(cf);
        if (r < 0 && r != -ESTALE && r != -ENOENT)
            return r;
    }
    struct obj_cond cond = {.kind = etag_is_set(&o->rec.etag) ? OBJ_COND_ETAG : OBJ_COND_NONE, .etag = o->rec.etag};
    int r = objstore_delete(fs->store, o->key, &cond);
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

static int run_marker(struct job *j)
{
    struct fs *fs = j->o->p->fs;
    int r = meta_dir_has_entries(fs->meta, j->d.ino);
    if (r < 0)
        return r;
    if (r > 0 && !j->d.ukey)
        return pubop_forget(j->o); /* its files show it */
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    struct obj_cond none = {.kind = OBJ_COND_NONE};
    struct obj_meta meta = {0};
    r = objstore_put(fs->store, j->o->key, "", 0, &meta, &none, &out.etag);
    return r < 0 ? r : pubop_record(j->o, &j->d, j->in, &out);
}

/* Token of an object made by this op without sending content: of no other op, or a lost reply would be taken for a success of the one before. */
static char *op_token(struct job *j, uint64_t id)
{
    return g_strdup_printf("%s.%" G_GINT64_MODIFIER "x.op%" G_GINT64_MODIFIER "x", meta_uuid(j->o->p->fs->meta), id,
                           j->o->rec.seq);
}

/* The condition failed: is what stands there a version of this file, made by us and not recorded (killed in between, reply lost)? Or the copied bytes? */
static bool own_version(struct fs *fs, const char *key, uint64_t id, const struct etag *copied, struct etag *ret_etag)
{
    struct obj_info info = {0};
    g_autofree char *prefix = g_strdup_printf("%s.%" G_GINT64_MODIFIER "x.", meta_uuid(fs->meta), id);
    bool own =
        objstore_head(fs->store, key, &info) == 0 &&
        (g_str_has_prefix(info.token, prefix) || (copied && etag_is_set(copied) && etag_equal(copied, &info.etag)));
    if (own)
        *ret_etag = info.etag;
    obj_info_clear(&info);
    return own;
}

static int run_symlink(struct job *j)
{
    struct fs *fs = j->o->p->fs;
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    struct obj_cond cond = condition(j);
    struct obj_meta meta = {0};
    mutex_lock(&j->in->mu);
    posix_of(&j->in->rec, &meta.posix);
    g_autofree char *target = g_strdup(j->in->rec.target);
    mutex_unlock(&j->in->mu);
    meta.symlink = target;
    g_autofree char *token = op_token(j, j->in->ino);
    meta.token = token;
    g_strlcpy(out.token, token, sizeof(out.token));
    int r = objstore_put(fs->store, j->o->key, "", 0, &meta, &cond, &out.etag);
    if (r == -ESTALE && own_version(fs, j->o->key, j->in->ino, NULL, &cond.etag)) {
        cond.kind = OBJ_COND_ETAG;
        r = objstore_put(fs->store, j->o->key, "", 0, &meta, &cond, &out.etag);
    }
    return r < 0 ? r : pubop_record(j->o, &j->d, j->in, &out);
}

static int verify_copy(struct job *j, struct outcome *out)
{
    struct obj_info info = {0};
    int r = objstore_head(j->o->p->fs->store, j->o->key, &info);
    if (r == 0 && info.size != out->size)
        r = -EBADMSG;
    if (r == 0) {
        out->etag = info.etag;
        g_strlcpy(out->token, info.token, sizeof(out->token));
    }
    obj_info_clear(&info);
    return r;
}

/* The content is in the store under src: copied there, or its metadata replaced when src is the name's own key. */
static int run_copy(struct job *j, const char *src, const struct etag *src_etag)
{
    struct fs *fs = j->o->p->fs;
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    struct obj_meta meta = {0};
    mutex_lock(&j->in->mu);
    posix_of(&j->in->rec, &meta.posix);
    out.size = j->in->rec.size;
    out.vid = j->in->rec.vid;
    out.gen = j->in->rec.gen;
    out.ctime_ns = j->in->rec.ctime_ns;
    mutex_unlock(&j->in->mu);
    uint64_t id = out.vid ? out.vid : j->in->ino;
    g_autofree char *token = op_token(j, id);
    meta.token = token;
    bool in_place = g_str_equal(src, j->o->key), new_meta = in_place || (j->d.flags & DENTRY_META_DIRTY);
    struct obj_cond cond = condition(j);
    if (in_place)
        cond = (struct obj_cond){.kind = OBJ_COND_NONE}; /* the source's condition says it */
    int r = objstore_copy(fs->store, src, src_etag, j->o->key, new_meta ? &meta : NULL, &cond, &out.etag);
    struct etag now;
    if (r == -ESTALE && own_version(fs, j->o->key, id, in_place ? NULL : src_etag, &now)) {
        if (!in_place)
            cond = (struct obj_cond){.kind = OBJ_COND_ETAG, .etag = now};
        r = objstore_copy(fs->store, src, in_place ? &now : src_etag, j->o->key, new_meta ? &meta : NULL, &cond,
                          &out.etag);
    }
    if (r == 0)
        r = verify_copy(j, &out);
    if (r < 0)
        return r;
    if (!in_place)
        metric_inc(M_published_renames);
    return pubop_record(j->o, &j->d, j->in, &out);
}

/* Power loss after this cannot make the journal promise what the disk does not hold. */
static int make_durable(struct fs *fs, struct inode *in, struct cfile *cf)
{
    int r = cache_file_sync(cf);
    if (r < 0)
        return r;
    struct meta_batch *b = meta_batch_new(fs->meta);
    mutex_lock(&fs->ns);
    mutex_lock(&in->mu);
    if (!in->gone) {
        in->rec.flags |= INODE_DATA_SYNCED;
        meta_inode_put(b, &in->rec);
    }
    mutex_unlock(&in->mu);
    r = meta_commit(b, false);
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    return r < 0 ? r : meta_sync(fs->meta);
}

/* Whether the object carries the attributes it should: a streamed upload has those of its start, and no mtime unless it had been set by then. */
static bool carries(const struct posix_attr *have, const struct posix_attr *want, bool mtime_set)
{
    if (!(have->fields & POSIX_MODE))
        return true; /* the store keeps none: sending them again would not help */
    if (mtime_set && !((have->fields & POSIX_MTIME) && have->mtime_ns == want->mtime_ns))
        return false;
    return ((have->mode ^ want->mode) & 07777) == 0 && have->uid == want->uid && have->gid == want->gid;
}

static int upload_content(struct job *j, struct cfile *cf)
{
    struct fs *fs = j->o->p->fs;
    struct inode *in = j->in;
    struct outcome out = {.key = j->o->key, .content = true, .meta = true};
    struct publish_req req = {.key = j->o->key,
                              .cond = condition(j),
                              .snapshot = j->snapshot,
                              .gate = gate,
                              .progress = on_progress,
                              .ctx = j};
    int r = make_durable(fs, in, cf);
    if (r < 0)
        return r;
    mutex_lock(&in->mu);
    bool sealed = in->rec.content == CONTENT_SEALED;
    in->changed = false;
    posix_of(&in->rec, &req.meta.posix);
    out.vid = in->rec.vid;
    out.gen = in->rec.gen;
    out.ctime_ns = in->rec.ctime_ns;
    bool mtime_set = in->rec.flags & INODE_MTIME_SET;
    req.copy_unchanged = in->rec.base_key && g_str_equal(in->rec.base_key, j->o->key);
    mutex_unlock(&in->mu);
    if (!sealed && !j->snapshot)
        return -EAGAIN;
    g_autofree char *token =
        g_strdup_printf("%s.%" G_GINT64_MODIFIER "x.%" G_GINT64_MODIFIER "x", meta_uuid(fs->meta), out.vid, out.gen);
    req.meta.token = token;
    struct publish_result res = {0};
    r = cache_publish(cf, &req, &res);
    if (r == -ESTALE && own_version(fs, j->o->key, out.vid, NULL, &req.cond.etag)) {
        req.cond.kind = OBJ_COND_ETAG;
        cache_file_rebase(cf, j->o->key, &req.cond.etag); /* the recorded source may be what it replaced */
        r = cache_publish(cf, &req, &res);
    }
    if (r < 0)
        return r;
    out.etag = res.etag;
    out.size = res.size;
    out.meta = carries(&res.posix, &req.meta.posix, mtime_set);
    g_strlcpy(out.token, res.token, sizeof(out.token));
    return pubop_record(j->o, &j->d, in, &out);
}

static int run_upload(struct job *j)
{
    struct cfile *cf = NULL;
    int r = content_use(j->in, &cf);
    if (r < 0)
        return r;
    r = upload_content(j, cf);
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
    return run_copy(j, src, etag);
}

static int read_job(struct job *j)
{
    struct op *o = j->o;
    struct fs *fs = o->p->fs;
    mutex_lock(&fs->ns);
    int r = meta_dentry_get(fs->meta, o->rec.parent, o->rec.name, &j->d);
    if (r == 0 && j->d.op_seq != o->rec.seq)
        r = -ENOENT;
    if (r == 0)
        r = inode_get(fs, j->d.ino, &j->in);
    mutex_unlock(&fs->ns);
    return r;
}

static int run_sync(struct op *o, bool snapshot, uint64_t deadline_ns)
{
    struct job j = {.o = o, .snapshot = snapshot, .deadline_ns = deadline_ns};
    int r = read_job(&j);
    if (r == -ENOENT)
        r = pubop_forget(o); /* the name went another way */
    else if (r == 0 && S_ISDIR(o->type))
        r = run_marker(&j);
    else if (r == 0 && S_ISLNK(o->type))
        r = run_symlink(&j);
    else if (r == 0)
        r = run_file(&j);
    meta_dentry_clear(&j.d);
    inode_put(j.in);
    return r;
}

static int keep_key(void *ctx, const struct obj_entry *e)
{
    if (!e->odd)
        g_ptr_array_add(ctx, g_strndup(e->name, e->name_len));
    return 0;
}

static int remove_probes(struct fs *fs, const char *prefix)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    struct obj_list_req req = {.prefix = prefix};
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    int r = objstore_list(fs->store, &req, keep_key, names, NULL);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        g_autofree char *key = g_strconcat(prefix, names->pdata[i], NULL);
        r = objstore_delete(fs->store, key, &any);
        r = r == -ENOENT ? 0 : r;
    }
    return r == -EACCES ? 0 : r;
}

/* The store's conditions are probed before the first change, so that publishing can rely on them. */
static int probe_once(struct fs *fs)
{
    if (atomic_load(&fs->probed))
        return 0;
    uint32_t caps = 0;
    g_autofree char *prefix = g_strdup_printf(PROBE_DIR "/%s/", meta_uuid(fs->meta));
    int r = remove_probes(fs, prefix); /* of a run that was killed in the middle of it */
    if (r == 0)
        r = objstore_probe(fs->store, prefix, &caps);
    if (r < 0 && r != -EACCES)
        return r;
    if (!atomic_exchange(&fs->probed, true) && r == 0) {
        struct meta_batch *b = meta_batch_new(fs->meta);
        meta_value_put(b, "store-caps", &caps, sizeof(caps));
        if (meta_commit(b, false) < 0)
            log_debug("publish", "capabilities could not be stored");
        meta_batch_free(b);
    }
    return 0;
}

int pubop_run(struct op *o, bool snapshot, uint64_t deadline_ns)
{
    int r = probe_once(o->p->fs);
    if (r < 0)
        return r;
    return o->rec.kind == OP_DELETE ? run_delete(o) : run_sync(o, snapshot, deadline_ns);
}

/* ---- failures ---- */

static bool hopeless(const struct op *o, int r)
{
    return r == -EFBIG || r == -ENAMETOOLONG || r == -EINVAL || r == -EOPNOTSUPP || r == -EUCLEAN || r == -ENODATA ||
           r == -ENOTDIR || r == -EISDIR || (r == -EBADMSG && o->failures >= BAD_BYTES_MAX);
}

static void back_off_locked(struct op *o, int r) /* under the publisher\'s mu */
{
    uint64_t wait = BACKOFF_MIN_NS << MIN(o->failures, 8u);
    wait = MIN(wait, BACKOFF_MAX_NS);
    wait = wait / 2 + (uint64_t)g_random_int_range(0, 1000) * (wait / 2000);
    o->not_before_ns = clock_mono_ns() + wait;
    o->failures++;
    o->last_err = r;
}

static void note_failure(struct op *o, int r)
{
    if (r == -ESTALE) {
        log_warn("publish",
                 "conflict: the object was changed elsewhere, the local copy is kept key='%s'; see `sluice conflicts`",
                 o->key);
        metric_inc(M_conflicts_total);
        pubop_park(o, OPS_CONFLICT, r);
    } else if (hopeless(o, r)) {
        log_err("publish", "cannot be published, needs `sluice publish --retry` or --skip key='%s' r=%s", o->key,
                err_name(r));
        pubop_park(o, OPS_PARKED, r);
    } else {
        log_warn("publish", "not published yet, will be tried again key='%s' r=%s", o->key, err_name(r));
        metric_inc(M_publish_failures);
    }
}

void pubop_finish(struct op *o, int r)
{
    struct publisher *p = o->p;
    bool quiet = r == 0 || r == -EAGAIN || r == -EINPROGRESS || r == -ECANCELED;
    mutex_lock(&p->mu);
    bool dropped = o->dropped;
    mutex_unlock(&p->mu);
    if (!quiet && !dropped)
        note_failure(o, r);
    mutex_lock(&p->mu);
    queue_untake_locked(p, o);
    if (o->dropped) {
        pubop_free(o);
    } else if (r == -EINPROGRESS) {
        o->staged = true;
    } else if (r == -EAGAIN) {
        o->not_before_ns = clock_mono_ns() + 20 * NS_PER_MS;
    } else if (r < 0 && r != -ECANCELED) {
        back_off_locked(o, r);
    }
    mutex_unlock(&p->mu);
}
