/*
 * Content that is copied inside the store: a file grows by bytes of its source object, which become parts of its upload and never come here.
 *
 * The file gets its new size and limit first, because a part may be copied only where the source gives it; then the parts are queued for the pool
 * and waited for. Where one fails the file is cut back to what is stored, so that every byte the caller is told of is held by the store, whatever
 * becomes of the source. Part numbers and records are those of any upload: publishing completes it, a later run resumes it.
 *
 * On the caller's thread; writers of the file are kept out by the caller, others see a change in progress (cf->changing).
 */
#include "base/patience.h"
#include "cache_file.h"
#include "upload.h"

/* What an earlier upload copied came from another source, and must not be taken for parts of this one. */
static int start_over(struct upload *u, const char *key, const struct obj_meta *meta)
{
    mutex_lock(&u->mu);
    if (!upload_begin_drop_locked(u)) {
        mutex_unlock(&u->mu);
        return -EBUSY;
    }
    upload_quiesce_locked(u);
    mutex_unlock(&u->mu);
    upload_drop(u);
    int r = upload_clear_record(u->cf->c, u->cf->vid);
    mutex_lock(&u->mu);
    if (r == 0) {
        g_free(u->key);
        u->key = g_strdup(key);
        u->posix = meta->posix;
        g_strlcpy(u->token, meta->token ? meta->token : "", sizeof u->token);
        u->abort_wanted = false;
    }
    upload_let_in_locked(u);
    mutex_unlock(&u->mu);
    return r;
}

int cache_copy_begin(struct cfile *cf, const struct cache_source *src, const char *key, const struct obj_meta *meta)
{
    mutex_assert_none_held();
    struct upload *u = upload_ensure(cf);
    int r = start_over(u, key, meta);
    return r < 0 ? r : cfile_begin_source(cf, src);
}

/* The parts from `first` to the one that ends at or before `end`; cut off at `end` itself where that is the end of the source. */
static int plan(struct upload *u, uint64_t off, uint64_t len, bool last, uint32_t *ret_first, uint64_t *ret_end)
{
    uint32_t first = upload_part_of(&u->layout, off), n_parts;
    uint64_t end = off + len;
    if (first >= u->layout.parts_max || upload_part_offset(&u->layout, first) != off || off % META_CHUNK_BYTES)
        return -EOPNOTSUPP;
    if (!last)
        end = upload_part_offset(&u->layout, upload_part_of(&u->layout, end));
    if (end <= off)
        return -EOPNOTSUPP;
    int r = upload_n_parts(&u->layout, end, &n_parts);
    if (r == 0) {
        *ret_first = first;
        *ret_end = end;
    }
    return r;
}

static bool stored_locked(struct upload *u, uint32_t i, uint64_t end) REQUIRES(u->mu)
{
    const struct upload_part *p = upload_part_locked(u, i);
    return p->state == PART_STORED && p->size == upload_part_len(&u->layout, i, end);
}

/* Has the parts copied; where what is stored ends. Nothing is while others have the upload: they would take its size and parts for theirs. */
static uint64_t copy_parts(struct upload *u, uint32_t first, uint64_t end)
{
    uint32_t last = upload_part_of(&u->layout, end - 1), i;
    mutex_lock(&u->mu);
    if (u->publishing || u->dropping || !u->key) {
        mutex_unlock(&u->mu);
        return upload_part_offset(&u->layout, first);
    }
    u->copying = true;
    u->size = end;
    u->err = 0;
    for (i = first; i <= last; i++) {
        int state = upload_part_locked(u, i)->state;
        if (state != PART_QUEUED && state != PART_SENDING)
            upload_queue_part_locked(u, i);
    }
    uint64_t seen = u->stored_bytes;
    int r = 0;
    while (r == 0 && u->n_active > 0 && u->err == 0) {
        r = patience_wait(&u->changed, &u->mu, UINT64_MAX);
        if (u->stored_bytes != seen)
            patience_renew();
        r = u->stored_bytes != seen && r == -ETIMEDOUT ? 0 : r;
        seen = u->stored_bytes;
    }
    if (r < 0)
        upload_give_up_locked(u);
    else if (u->err < 0)
        upload_quiesce_locked(u);
    u->copying = false;
    u->err = 0;
    for (i = first; i <= last && stored_locked(u, i, end); i++)
        ;
    mutex_unlock(&u->mu);
    return i > last ? end : upload_part_offset(&u->layout, i);
}

static int64_t extend(struct cfile *cf, uint64_t off, uint64_t len, bool last)
{
    struct upload *u = upload_ensure(cf);
    uint32_t first = 0;
    uint64_t end = 0;
    int r = plan(u, off, len, last, &first, &end);
    if (r == 0)
        r = cfile_grow_source(cf, off, end);
    if (r < 0)
        return r;
    uint64_t done = copy_parts(u, first, end);
    if (done < end)
        r = cache_file_truncate(cf, done);
    return r < 0 ? r : (int64_t)(done - off);
}

int64_t cache_copy_extend(struct cfile *cf, uint64_t off, uint64_t len, bool last)
{
    mutex_assert_none_held();
    cfile_change_begin(cf);
    int64_t r = extend(cf, off, len, last);
    cfile_change_end(cf);
    return r;
}

int upload_read_error(struct cfile *cf, const char *key, int r)
{
    g_autofree char *src = NULL;
    struct etag etag;
    uint64_t limit;
    if (r == -ENOENT) /* which is kept for an upload that is gone */
        r = -ESTALE;
    bool elsewhere = r == -ESTALE && cfile_source(cf, &src, &etag, &limit) && !g_str_equal(src, key);
    return elsewhere ? -ENODATA : r;
}
