/*
 * One multipart upload of one cfile: its parts and their states, creation, records in meta, abort.
 *
 * Made on first use (upload_ensure), found by upload_of; freed with the cfile. u->mu is ranked above the file's lock, so the
 * pointer is read under cf->mu first and the session locked afterwards; it does not go away while the caller has the cfile.
 * Every active part has a reference of the cfile: who lets go of a file never waits for the store, and opening it again finds it.
 *
 * Records: meta_upload + meta_part per stored part, the token in the value upload_token_name(vid), because a resumed upload carries the token
 * it was created with, and in upload_doubt_name(vid) whether a Complete may be at work. The record is synced when the upload is created: what is not recorded can never be aborted by us.
 */
#include "base/clock.h"
#include "base/crash.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/sm.h"
#include "cache_file.h"
#include "upload.h"

#include <string.h>

static const struct sm_row part_rows[] = {
    [PART_NONE] = {"none", SM_TO(PART_QUEUED)},
    [PART_QUEUED] = {"queued", SM_TO(PART_SENDING) | SM_TO(PART_NONE) | SM_TO(PART_STALE)},
    [PART_SENDING] = {"sending", SM_TO(PART_STORED) | SM_TO(PART_STALE) | SM_TO(PART_NONE)},
    [PART_STORED] = {"stored", SM_TO(PART_STALE) | SM_TO(PART_NONE)},
    [PART_STALE] = {"stale", SM_TO(PART_QUEUED) | SM_TO(PART_NONE)},
};
static const struct sm part_sm = {"part", part_rows, G_N_ELEMENTS(part_rows)};

void upload_part_move(struct upload_part *p, enum upload_part_state to)
{
    sm_move(&part_sm, &p->state, (int)to);
}

struct upload *upload_of(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    struct upload *u = cf->upload;
    mutex_unlock(&cf->mu);
    return u;
}

static struct upload *session_new(struct cfile *cf)
{
    struct upload *u = g_new0(struct upload, 1);
    u->cf = cf;
    u->pool = cf->c->uploads;
    upload_layout_init(&u->layout, cf->c->cfg.part_bytes, objstore_limits(cf->c->store));
    mutex_init(&u->mu, LOCK_UPLOAD);
    cond_init(&u->changed);
    u->parts = g_array_new(FALSE, TRUE, sizeof(struct upload_part));
    g_queue_init(&u->todo);
    return u;
}

static void session_free(struct upload *u)
{
    if (!u)
        return;
    g_assert(u->n_active == 0 && !u->publishing);
    g_array_unref(u->parts);
    g_clear_pointer(&u->bases, g_ptr_array_unref);
    g_free(u->key);
    g_free(u->upload_id);
    cond_fini(&u->changed);
    mutex_fini(&u->mu);
    g_free(u);
}

struct upload *upload_ensure(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    if (u)
        return u;
    struct upload *fresh = session_new(cf);
    mutex_lock(&cf->mu);
    if (!cf->upload)
        cf->upload = g_steal_pointer(&fresh);
    u = cf->upload;
    mutex_unlock(&cf->mu);
    session_free(fresh);
    return u;
}

struct upload_part *upload_part_locked(struct upload *u, uint32_t i)
{
    mutex_assert_held(&u->mu);
    if (i >= u->parts->len)
        g_array_set_size(u->parts, i + 1);
    return &g_array_index(u->parts, struct upload_part, i);
}

void upload_mark_written_locked(struct upload *u, uint64_t off, uint64_t end)
{
    mutex_assert_held(&u->mu);
    for (uint32_t i = upload_part_of(&u->layout, off); i < u->parts->len; i++) {
        struct upload_part *p = upload_part_locked(u, i);
        if (upload_part_offset(&u->layout, i) >= end)
            return;
        p->writes++;
        if (p->state == PART_STORED) {
            u->stored_bytes -= p->size;
            upload_part_move(p, PART_STALE);
        }
    }
}

void upload_queue_part_locked(struct upload *u, uint32_t i)
{
    struct upload_part *p = upload_part_locked(u, i);
    if (p->state == PART_STORED) { /* of another length */
        u->stored_bytes -= p->size;
        upload_part_move(p, PART_STALE);
    }
    upload_part_move(p, PART_QUEUED);
    u->n_active++;
    (void)cfile_own_ref(u->cf); /* the part's, until it ended */
    upload_pool_push(u, i);
}

void upload_cancel_locked(struct upload *u)
{
    mutex_assert_held(&u->mu);
    g_autoptr(GArray) back = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    upload_pool_take_back(u, back);
    for (guint k = 0; k < back->len; k++) {
        struct upload_part *p = upload_part_locked(u, g_array_index(back, uint32_t, k));
        upload_part_move(p, etag_is_set(&p->etag) ? PART_STALE : PART_NONE);
        cfile_own_unref(u->cf); /* never the last: the caller has one */
    }
    u->n_active -= back->len;
    u->next_part = 0;
    cond_broadcast(&u->changed);
}

void upload_quiesce_locked(struct upload *u)
{
    upload_cancel_locked(u);
    while (u->n_active > 0 || u->creating)
        cond_wait(&u->changed, &u->mu);
}

void upload_give_up_locked(struct upload *u)
{
    __atomic_store_n(&u->give_up, 1, __ATOMIC_RELAXED); /* a flag */
    upload_quiesce_locked(u);
    __atomic_store_n(&u->give_up, 0, __ATOMIC_RELAXED);
}

void upload_reset_locked(struct upload *u)
{
    mutex_assert_held(&u->mu);
    g_assert(u->n_active == 0);
    for (guint i = 0; i < u->parts->len; i++) {
        struct upload_part *p = upload_part_locked(u, i);
        *p = (struct upload_part){.state = PART_NONE, .writes = p->writes};
    }
    g_clear_pointer(&u->upload_id, g_free);
    u->maybe_completed = u->token_spoilt = false;
    upload_delta_reset_locked(u);
    u->stored_bytes = 0;
    u->next_part = 0;
}

char *upload_token_name(uint64_t vid)
{
    return g_strdup_printf("upload-token/%016" G_GINT64_MODIFIER "x", vid);
}

char *upload_doubt_name(uint64_t vid)
{
    return g_strdup_printf("upload-doubt/%016" G_GINT64_MODIFIER "x", vid);
}

void upload_doubt_put(struct meta_batch *b, uint64_t vid, bool spoilt)
{
    g_autofree char *name = upload_doubt_name(vid);
    meta_value_put(b, name, spoilt ? "spoilt" : "completing", spoilt ? strlen("spoilt") : strlen("completing"));
}

int upload_doubt_get(struct cache *c, uint64_t vid, bool *ret_completing, bool *ret_spoilt)
{
    g_autofree char *name = upload_doubt_name(vid);
    GBytes *value = NULL;
    int r = meta_value_get(c->meta, name, &value);
    *ret_completing = *ret_spoilt = false;
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    *ret_completing = true;
    *ret_spoilt = g_bytes_get_size(value) == strlen("spoilt");
    g_bytes_unref(value);
    return 0;
}

static int forget_record_locked(struct cache *c, uint64_t vid) REQUIRES(c->upload_records)
{
    g_autofree char *token = upload_token_name(vid), *doubt = upload_doubt_name(vid);
    struct meta_batch *b = meta_batch_new(c->meta);
    meta_upload_del(b, vid);
    meta_value_del(b, token);
    meta_value_del(b, doubt);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

static int forget_same_locked(struct cache *c, const struct meta_upload *rec) REQUIRES(c->upload_records)
{
    struct meta_upload now;
    int r = meta_upload_get(c->meta, rec->vid, &now);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    bool same = strcmp(now.upload_id, rec->upload_id) == 0; /* else another upload of the file began meanwhile */
    meta_upload_clear(&now);
    return same ? forget_record_locked(c, rec->vid) : 0;
}

int upload_forget_record(struct cache *c, const struct meta_upload *rec)
{
    mutex_lock(&c->upload_records);
    int r = forget_same_locked(c, rec);
    mutex_unlock(&c->upload_records);
    return r;
}

int upload_abort_recorded(struct cache *c, const struct meta_upload *rec)
{
    int r = objstore_mpu_abort(c->store, rec->key, rec->upload_id);
    if (r < 0 && r != -ENOENT)
        return r;
    CRASH_POINT(mpu_aborted);
    return upload_forget_record(c, rec);
}

void upload_not_needed(struct cache *c, uint64_t vid)
{
    struct meta_upload rec;
    int r = meta_upload_get(c->meta, vid, &rec);
    if (r == 0) {
        upload_pool_abort_later(c->uploads, &rec);
        meta_upload_clear(&rec);
    } else if (r != -ENOENT) {
        log_debug("upload", "cannot read the upload of a file vid=%" G_GUINT64_FORMAT " r=%s", vid, err_name(r));
    }
}

static int record_create(struct upload *u, const char *key, const char *upload_id)
{
    struct cache *c = u->cf->c;
    g_autofree char *name = upload_token_name(u->cf->vid), *doubt = upload_doubt_name(u->cf->vid);
    struct meta_upload rec = {
        .vid = u->cf->vid,
        .key = g_strdup(key),
        .upload_id = g_strdup(upload_id),
        .part_bytes = u->layout.part_bytes,
        .gen = cfile_change_stamp(u->cf),
    };
    struct meta_batch *b = meta_batch_new(c->meta);
    meta_upload_del(b, rec.vid); /* parts of an earlier one */
    meta_upload_put(b, &rec);
    meta_value_put(b, name, u->token, strlen(u->token));
    meta_value_del(b, doubt);
    struct meta_upload other = {0};
    mutex_lock(&c->upload_records);
    int r = meta_upload_get(c->meta, rec.vid, &other);
    if (r == 0 || r == -ENOENT)
        r = meta_commit(b, false);
    mutex_unlock(&c->upload_records);
    meta_batch_free(b);
    if (r == 0)
        r = meta_sync(c->meta);
    if (r == 0 &&
        other.upload_id) { /* it began since create() looked, which nobody does: no record names it any more */
        log_warn("upload", "two uploads of one file key='%s' id='%s' and '%s'", key, upload_id, other.upload_id);
        upload_pool_abort_later(c->uploads, &other);
    }
    meta_upload_clear(&other);
    meta_upload_clear(&rec);
    return r;
}

/* What an earlier run left under this vid would be forgotten with the new record: it goes first. */
int upload_clear_record(struct cache *c, uint64_t vid)
{
    struct meta_upload rec;
    int r = meta_upload_get(c->meta, vid, &rec);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = upload_abort_recorded(c, &rec);
    meta_upload_clear(&rec);
    return r;
}

/* u->creating is ours: key, posix and token do not change meanwhile. */
static int create(struct upload *u, char **ret_id)
{
    struct cache *c = u->cf->c;
    struct obj_meta meta = {.posix = u->posix, .token = u->token};
    g_autofree char *id = NULL;
    int r = upload_clear_record(c, u->cf->vid);
    if (r == 0)
        r = objstore_mpu_create(c->store, u->key, &meta, &id);
    if (r < 0)
        return r;
    CRASH_POINT(mpu_created);
    r = record_create(u, u->key, id);
    CRASH_POINT(mpu_recorded);
    if (r < 0) {
        int e = objstore_mpu_abort(c->store, u->key, id); /* the database's failure is the one to report */
        if (e < 0)
            log_debug("upload", "upload left in the store key='%s' id='%s' r=%s", u->key, id, err_name(e));
        return r;
    }
    *ret_id = g_steal_pointer(&id);
    return 0;
}

int upload_create(struct upload *u)
{
    char *id = NULL;
    mutex_lock(&u->mu);
    while (u->creating)
        cond_wait(&u->changed, &u->mu);
    if (u->upload_id) {
        mutex_unlock(&u->mu);
        return 0;
    }
    g_assert(u->key);
    u->creating = true;
    mutex_unlock(&u->mu);
    int r = create(u, &id);
    if (r == 0)
        upload_delta_ask(u);
    mutex_lock(&u->mu);
    u->creating = false;
    if (r == 0)
        u->upload_id = id;
    cond_broadcast(&u->changed);
    mutex_unlock(&u->mu);
    return r;
}

void upload_drop(struct upload *u)
{
    mutex_lock(&u->mu);
    g_assert(u->n_active == 0 && !u->creating);
    struct meta_upload rec = {.vid = u->cf->vid, .key = g_strdup(u->key), .upload_id = g_strdup(u->upload_id)};
    upload_reset_locked(u);
    mutex_unlock(&u->mu);
    if (rec.upload_id) {
        int r = upload_abort_recorded(u->cf->c, &rec);
        if (r < 0)
            log_debug("upload", "abort left for later key='%s' r=%s", rec.key, err_name(r));
    }
    meta_upload_clear(&rec);
}

bool upload_begin_drop_locked(struct upload *u)
{
    mutex_assert_held(&u->mu);
    while (u->dropping)
        cond_wait(&u->changed, &u->mu);
    u->streaming = false;
    u->dropping = !u->publishing;
    cond_broadcast(&u->changed);
    return u->dropping;
}

void upload_let_in_locked(struct upload *u)
{
    mutex_assert_held(&u->mu);
    u->dropping = false;
    cond_broadcast(&u->changed);
}

void upload_end_drop(struct upload *u)
{
    upload_drop(u);
    mutex_lock(&u->mu);
    upload_let_in_locked(u);
    mutex_unlock(&u->mu);
}

uint64_t cache_uploaded_bytes(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    if (!u)
        return 0;
    mutex_lock(&u->mu);
    uint64_t n = u->stored_bytes;
    mutex_unlock(&u->mu);
    return n;
}

void upload_cfile_forgotten(struct cfile *cf)
{
    struct upload *u = upload_of(cf);
    if (!u)
        return;
    mutex_lock(&u->mu);
    if (!u->publishing) {
        u->streaming = false;
        upload_cancel_locked(u);
    }
    mutex_unlock(&u->mu);
}

void upload_cfile_free(struct cfile *cf)
{
    struct cache *c = cf->c;
    mutex_lock(&c->table.mu);
    bool forgotten = cf->forgotten;
    mutex_unlock(&c->table.mu);
    struct upload *u = upload_of(cf);
    if (u) { /* no part is active: each would have a reference */
        mutex_lock(&cf->mu);
        cf->upload = NULL;
        mutex_unlock(&cf->mu);
        session_free(u);
    }
    if (forgotten)
        upload_not_needed(c, cf->vid);
}
