/*
 * Uploads that an earlier run left: taken over by the next publish of their file, or aborted.
 *
 * Only what meta names is ever touched: other uploads under the same key may be somebody else's. A recorded part is used if the
 * store still lists it with the recorded etag and size and, later, the local bytes have the recorded checksum (copied parts: the range
 * is still as in the source). An upload that is gone may have been completed with the reply lost: the object then carries its
 * token, and is taken for published if every byte compares.
 *
 * Runs on the publishing thread; no lock over calls.
 */
#include "base/crc32c.h"
#include "base/log.h"
#include "upload.h"

#include <string.h>

static int load_token(struct cache *c, uint64_t vid, char *ret_token)
{
    g_autofree char *name = upload_token_name(vid);
    GBytes *value = NULL;
    int r = meta_value_get(c->meta, name, &value);
    if (r < 0)
        return r;
    gsize len = 0;
    const char *p = g_bytes_get_data(value, &len);
    len = MIN(len, TOKEN_MAX);
    if (len > 0)
        memcpy(ret_token, p, len);
    ret_token[len] = '\0';
    g_bytes_unref(value);
    return 0;
}

static int on_part(void *ctx, const struct meta_part *p)
{
    GArray *out = ctx;
    g_array_append_val(out, *p);
    return 0;
}

/* Whether local bytes are those of the record. 1, 0 or -errno. */
static int part_matches(struct upload *u, const struct meta_part *rec, uint64_t size)
{
    uint32_t i = rec->number - 1;
    uint64_t len = upload_part_len(&u->layout, i, size), off = upload_part_offset(&u->layout, i);
    if (len == 0 || len != rec->size)
        return 0;
    if (rec->crc32c == 0)
        return cfile_range_dirty(u->cf, off, len) == 0;
    void *buf = upload_buf_get(u->pool, len);
    if (!buf)
        return -ENOMEM;
    ssize_t n = cfile_read_local(u->cf, buf, len, off);
    int r = n < 0 ? (int)n : (uint64_t)n == len && crc32c(0, buf, len) == rec->crc32c;
    upload_buf_put(u->pool, buf, len);
    return r;
}

/* 1: the object at key is what the records describe, and so is the file. */
static int completed_already(struct upload *u, const char *key, uint64_t size, const GArray *recs,
                             struct obj_info *ret_info)
{
    struct cache *c = u->cf->c;
    char token[TOKEN_MAX + 1] = "";
    struct obj_info info = {0};
    uint32_t n_parts = 0;
    bool completing, spoilt = false;
    int r = upload_n_parts(&u->layout, size, &n_parts);
    if (r == 0)
        r = upload_doubt_get(c, u->cf->vid, &completing, &spoilt);
    if (spoilt)
        return 0;
    if (r == 0)
        r = load_token(c, u->cf->vid, token);
    if (r == 0)
        r = objstore_head(c->store, key, &info);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = token[0] != '\0' && strcmp(token, info.token) == 0 && info.size == size;
    uint32_t n_seen = 0;
    for (guint k = 0; k < recs->len && r > 0; k++) {
        const struct meta_part *rec = &g_array_index(recs, struct meta_part, k);
        if (rec->number == 0 || rec->number > n_parts)
            continue;
        n_seen++;
        r = part_matches(u, rec, size);
    }
    if (r > 0 && n_seen == n_parts)
        *ret_info = info;
    else
        obj_info_clear(&info);
    return r > 0 ? n_seen == n_parts : r;
}

static int adopt(struct upload *u, const struct meta_upload *rec, const char *token, const GArray *recs,
                 GHashTable *listed)
{
    bool completing, spoilt;
    int r = upload_doubt_get(u->cf->c, rec->vid, &completing, &spoilt);
    if (r < 0)
        return r;
    mutex_lock(&u->mu);
    u->upload_id = g_strdup(rec->upload_id);
    u->maybe_completed = completing;
    u->token_spoilt = spoilt;
    g_strlcpy(u->token, token, sizeof u->token);
    for (guint k = 0; k < recs->len; k++) {
        const struct meta_part *m = &g_array_index(recs, struct meta_part, k);
        const struct obj_part *o = g_hash_table_lookup(listed, GUINT_TO_POINTER(m->number));
        if (!o || m->number > u->layout.parts_max || o->size != m->size || !etag_equal(&o->etag, &m->etag))
            continue;
        struct upload_part *p = upload_part_locked(u, m->number - 1);
        p->state = PART_STALE; /* where a part known from before begins */
        p->copied = m->crc32c == 0;
        p->size = m->size;
        p->crc32c = m->crc32c;
        p->etag = m->etag;
        memcpy(p->sha256, m->sha256, sizeof(p->sha256));
    }
    mutex_unlock(&u->mu);
    upload_delta_resumed(u);
    return 0;
}

static int resume_recorded(struct upload *u, const struct meta_upload *rec, uint64_t size, bool *ret_done,
                           struct obj_info *ret_info)
{
    struct cache *c = u->cf->c;
    g_autoptr(GArray) recs = g_array_new(FALSE, FALSE, sizeof(struct meta_part));
    g_autofree struct obj_part *parts = NULL;
    char token[TOKEN_MAX + 1] = "";
    size_t n = 0;
    int r = meta_part_each(c->meta, rec->vid, on_part, recs);
    if (r < 0)
        return r;
    r = load_token(c, rec->vid, token);
    if (r < 0 && r != -ENOENT)
        return r;
    r = objstore_mpu_parts(c->store, rec->key, rec->upload_id, &parts, &n);
    if (r == -ENOENT) {
        r = completed_already(u, rec->key, size, recs, ret_info);
        if (r < 0)
            return r;
        *ret_done = r > 0;
        r = upload_forget_record(c, rec);
        if (r < 0 && *ret_done)
            obj_info_clear(ret_info);
        return r;
    }
    if (r < 0)
        return r;
    g_autoptr(GHashTable) listed = g_hash_table_new(NULL, NULL);
    for (size_t k = 0; k < n; k++)
        g_hash_table_insert(listed, GUINT_TO_POINTER(parts[k].number), &parts[k]);
    return adopt(u, rec, token, recs, listed);
}

int upload_resume(struct upload *u, const char *key, uint64_t size, bool *ret_done, struct obj_info *ret_info)
{
    struct cache *c = u->cf->c;
    struct meta_upload rec;
    bool done = false;
    int r = meta_upload_get(c->meta, u->cf->vid, &rec);
    if (r == -ENOENT) {
        *ret_done = false;
        return 0;
    }
    if (r < 0)
        return r;
    if (strcmp(rec.key, key) != 0 || rec.part_bytes != u->layout.part_bytes)
        r = upload_abort_recorded(c, &rec);
    else
        r = resume_recorded(u, &rec, size, &done, ret_info);
    meta_upload_clear(&rec);
    if (r == 0)
        *ret_done = done;
    return r;
}

static int on_upload(void *ctx, const struct meta_upload *rec)
{
    GPtrArray *out = ctx;
    struct meta_upload *copy = g_new(struct meta_upload, 1);
    *copy = *rec;
    copy->key = g_strdup(rec->key);
    copy->upload_id = g_strdup(rec->upload_id);
    g_ptr_array_add(out, copy);
    return 0;
}

static void upload_rec_free(void *p)
{
    meta_upload_clear(p);
    g_free(p);
}

void cache_abort_stale_uploads(struct cache *c)
{
    g_autoptr(GPtrArray) recs = g_ptr_array_new_with_free_func(upload_rec_free);
    int r = meta_upload_each(c->meta, on_upload, recs);
    if (r < 0)
        log_debug("upload", "cannot list recorded uploads r=%s", err_name(r));
    for (guint i = 0; i < recs->len; i++) {
        struct meta_upload *rec = g_ptr_array_index(recs, i);
        if (!cache_vid_is_dirty(c, rec->vid))
            upload_pool_abort_later(c->uploads, rec);
    }
}
