/*
 * One part on its way: compared with what the store holds of it, else read and copied inside the store or sent, recorded.
 *
 * Runs on pool threads, several parts of a session at once, each part on one thread only. The state is set under u->mu before and
 * after; between, no lock is held. A write during the read shows in part->writes: the part ends stale instead of stored, whatever was
 * read. The checksum that the driver computed over what went out must be that of the buffer, else the part counts as not stored.
 */
#include "base/clock.h"
#include "base/crash.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/patience.h"
#include "cache_file.h"
#include "cache_sums.h"
#include "upload.h"

#include <string.h>

#define STREAM_RETRY_NS (5 * NS_PER_S)
#define SLICE_BYTES     (256u << 10) /* read and summed at once: stays in the core's cache */

struct job { /* one run of a part: what was true when it began, then what came of it */
    uint32_t i;
    uint64_t off, len, writes;
    uint64_t sending_ns;         /* when it was begun to be sent */
    const char *key, *upload_id; /* borrowed: the session keeps them while a part is active */
    GBytes *sums;                /* the same, NULL: none */
    bool may_copy, only_copy, streaming;
    struct upload_part old;
    /* result */
    bool stored, sent, copied;
    bool same;  /* copied from an earlier object just now */
    bool saved; /* that, or then */
    struct obj_part part;
    uint8_t sha256[OBJ_DIGEST_BYTES]; /* zeros: not known */
};

static int record_part(struct upload *u, const struct job *j)
{
    struct cache *c = u->cf->c;
    mutex_lock(&u->mu);
    bool spoils = u->maybe_completed;
    mutex_unlock(&u->mu);
    struct meta_part rec = {
        .vid = u->cf->vid,
        .number = j->i + 1,
        .size = j->part.size,
        .crc32c = j->copied ? 0 : j->part.crc32c,
        .etag = j->part.etag,
    };
    memcpy(rec.sha256, j->sha256, sizeof(rec.sha256));
    struct meta_batch *b = meta_batch_new(c->meta);
    if (j->copied || j->part.crc32c != 0) /* 0 says copied: the rare other one is not resumed */
        meta_part_put(b, &rec);
    else
        meta_part_del(b, rec.vid, rec.number);
    if (spoils)
        upload_doubt_put(b, rec.vid, true);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

int upload_check_sums(GBytes *sums, const char *key, const void *buf, uint64_t off, uint64_t len)
{
    uint64_t bad = 0;
    if (!sums || cache_sums_check(sums, buf, off, len, &bad) == 0)
        return 0;
    log_debug("upload", "the disk holds other bytes than when the file was closed key='%s' offset=%" G_GUINT64_FORMAT,
              key, bad);
    return -EUCLEAN;
}

/* -EOPNOTSUPP: the source cannot give this part. */
static int copy_part(struct upload *u, struct job *j)
{
    struct cfile *cf = u->cf;
    g_autofree char *src = NULL;
    struct etag etag;
    uint64_t limit = 0;
    if (!j->may_copy || (objstore_caps_of(cf->c->store, j->key) & CAP_PART_COPY) == 0)
        return -EOPNOTSUPP;
    if (!cfile_source(cf, &src, &etag, &limit) || !src || j->off + j->len > limit || !etag_is_set(&etag) ||
        cfile_range_dirty(cf, j->off, j->len) != 0)
        return -EOPNOTSUPP;
    j->part = (struct obj_part){.number = j->i + 1, .size = j->len};
    int r = objstore_mpu_part_copy(cf->c->store, j->key, j->upload_id, src, &etag, j->off, &j->part);
    if (r == 0) {
        j->copied = true;
        upload_delta_inherit(u, src, &etag, j->i, j->len, j->sha256);
        metric_inc(M_parts_copied);
    }
    return r;
}

/* Is there an earlier object with these bytes? Then the store makes the part of that. */
static bool copy_same(struct upload *u, struct job *j, const void *buf, uint32_t crc)
{
    const struct upload_delta_job d = {j->key, j->upload_id, j->off, buf, j->sha256};
    j->part = (struct obj_part){.number = j->i + 1, .size = j->len};
    j->same = j->saved = upload_delta_copy(u, &d, &j->part);
    if (j->same)
        j->part.crc32c = crc; /* as if it had been sent: it is compared with the file in the same way */
    return j->same;
}

/* sha256 NULL: not known. */
static int send_bytes(struct upload *u, struct job *j, const void *buf, uint32_t crc, const uint8_t *sha256)
{
    for (int attempt = 0;; attempt++) {
        j->part = (struct obj_part){.number = j->i + 1, .size = j->len, .sha256 = sha256};
        int r = objstore_mpu_part(u->cf->c->store, j->key, j->upload_id, buf, &j->part);
        if (r < 0)
            return r;
        if (j->part.crc32c == crc)
            break;
        log_debug("upload", "part arrived changed key='%s' part=%u", j->key, j->i + 1);
        if (attempt > 0)
            return -EBADMSG;
    }
    return 0;
}

static int send_in_turn(struct upload *u, struct job *j, const void *buf, uint32_t crc, const uint8_t *sha256)
{
    if (j->streaming)
        upload_stream_enter(u);
    j->sending_ns = clock_mono_ns();
    int r = patience_over(); /* it may have waited long */
    if (r == 0)
        r = send_bytes(u, j, buf, crc, sha256);
    if (j->streaming)
        upload_stream_leave(u);
    return r;
}

static int send_part(struct upload *u, struct job *j, const void *buf, uint32_t crc)
{
    const uint8_t *sha256 = NULL;
    if (upload_delta_wanted(u)) {
        objstore_digest(buf, j->len, j->sha256);
        sha256 = j->sha256;
        if (copy_same(u, j, buf, crc))
            return 0;
    }
    int r = send_in_turn(u, j, buf, crc, sha256);
    if (r < 0)
        return r;
    j->sent = true;
    if (etag_is_set(&j->old.etag))
        metric_inc(M_parts_resent);
    else if (j->streaming)
        metric_inc(M_parts_streamed);
    return 0;
}

/* Sums the part's bytes, slice by slice; all of them are in buf then if keep, else each slice took the place of the one before. 1: the file is
 * shorter by now. */
static int read_part(struct upload *u, const struct job *j, uint8_t *buf, bool keep, uint32_t *ret_crc)
{
    uint32_t crc = 0;
    for (uint64_t at = 0; at < j->len; at += SLICE_BYTES) {
        size_t len = MIN(SLICE_BYTES, j->len - at);
        uint8_t *to = keep ? buf + at : buf;
        ssize_t n = cfile_read_local(u->cf, to, len, j->off + at);
        if (n < 0)
            return upload_read_error(u->cf, j->key, (int)n);
        if ((size_t)n != len)
            return 1;
        crc = crc32c(crc, to, len);
    }
    *ret_crc = crc;
    return 0;
}

static bool same_as_sent(const struct job *j, uint32_t crc)
{
    return etag_is_set(&j->old.etag) && !j->old.copied && j->old.size == j->len && j->old.crc32c == crc;
}

static void keep_sent(struct job *j)
{
    j->part = (struct obj_part){.size = j->len, .crc32c = j->old.crc32c, .etag = j->old.etag};
    memcpy(j->sha256, j->old.sha256, sizeof(j->sha256));
    j->saved = j->old.saved;
}

/* What the store holds of the part is most often what the file has: that is found out without room for a whole part. Checksums of the seal are of runs
 * longer than a slice: where there are any the whole part is read. 1: cut off meanwhile. */
static int compare(struct upload *u, struct job *j)
{
    uint32_t crc = 0;
    if (j->sums || !same_as_sent(j, j->old.crc32c))
        return 0;
    size_t n = MIN(SLICE_BYTES, j->len);
    void *buf = upload_buf_get(u->pool, n);
    if (!buf)
        return -ENOMEM;
    int r = read_part(u, j, buf, false, &crc);
    upload_buf_put(u->pool, buf, n);
    j->stored = r == 0 && same_as_sent(j, crc);
    if (j->stored)
        keep_sent(j);
    return r;
}

static int read_and_send(struct upload *u, struct job *j)
{
    uint32_t crc = 0;
    int r = compare(u, j);
    if (r != 0 || j->stored)
        return MIN(r, 0);
    void *buf = upload_buf_get(u->pool, j->len);
    if (!buf)
        return -ENOMEM;
    r = read_part(u, j, buf, true, &crc);
    if (r == 0)
        r = upload_check_sums(j->sums, j->key, buf, j->off, j->len);
    j->stored = r == 0; /* 1: cut off meanwhile, not stored */
    if (r == 0 && same_as_sent(j, crc))
        keep_sent(j);
    else if (r == 0)
        r = send_part(u, j, buf, crc);
    upload_buf_put(u->pool, buf, j->len);
    return MIN(r, 0);
}

static bool copy_still_good(struct upload *u, const struct job *j)
{
    uint64_t limit = 0;
    struct etag etag;
    g_autofree char *src = NULL;
    return j->old.copied && etag_is_set(&j->old.etag) && j->old.size == j->len && j->may_copy &&
           cfile_source(u->cf, &src, &etag, &limit) && j->off + j->len <= limit &&
           cfile_range_dirty(u->cf, j->off, j->len) == 0;
}

/* The store does not make this part of the source: then it is sent. */
static bool is_no_copy(int r)
{
    return r == -EOPNOTSUPP || r == -ESTALE || r == -ENOENT || r == -EINVAL || r == -EREMOTEIO || r == -EBADMSG;
}

static int run(struct upload *u, struct job *j)
{
    if (copy_still_good(u, j)) {
        j->part = (struct obj_part){.size = j->len, .etag = j->old.etag};
        memcpy(j->sha256, j->old.sha256, sizeof(j->sha256));
        j->copied = j->stored = true;
        return 0;
    }
    int r = etag_is_set(&j->old.etag) && !j->old.copied ? -EOPNOTSUPP : copy_part(u, j);
    if (r == 0)
        j->stored = true;
    else if (!j->only_copy && is_no_copy(r))
        r = read_and_send(u, j);
    CRASH_POINT(part_sent);
    if (r == 0 && (j->sent || j->copied || j->same))
        r = record_part(u, j);
    CRASH_POINT(part_recorded);
    return r;
}

/* Takes the part from queued to sending. False: nothing to do any more. */
static bool begin(struct upload *u, struct job *j)
{
    mutex_lock(&u->mu);
    struct upload_part *p = upload_part_locked(u, j->i);
    upload_part_move(p, PART_SENDING);
    j->key = u->key;
    j->upload_id = u->upload_id;
    j->sums = u->publishing ? u->sums : NULL;
    j->writes = p->writes;
    j->old = *p;
    j->off = upload_part_offset(&u->layout, j->i);
    bool sized = u->publishing || u->copying;
    j->len = sized ? upload_part_len(&u->layout, j->i, u->size) : upload_part_bytes(&u->layout, j->i);
    j->streaming = !sized;
    j->only_copy = u->copying && !u->publishing;
    j->may_copy = j->only_copy || (u->publishing && u->copy_unchanged);
    mutex_unlock(&u->mu);
    return j->len > 0;
}

static void end(struct upload *u, struct job *j, int r)
{
    uint64_t took_ns = clock_mono_ns() - j->sending_ns;
    mutex_lock(&u->mu);
    struct upload_part *p = upload_part_locked(u, j->i);
    if (r == 0 && j->stored) {
        p->size = j->part.size;
        p->crc32c = j->part.crc32c;
        p->etag = j->part.etag;
        p->copied = j->copied;
        p->saved = j->saved;
        memcpy(p->sha256, j->sha256, sizeof(p->sha256));
    } else if (r < 0 && j->part.number != 0) { /* the store may hold anything under this number */
        p->etag = (struct etag){{0}};
    }
    if (j->part.number != 0) /* not found to be there: sent or copied, or it was tried */
        u->token_spoilt |= u->maybe_completed;
    if (r == 0 && j->stored && p->writes == j->writes) {
        upload_part_move(p, PART_STORED);
        u->stored_bytes += p->size;
    } else {
        upload_part_move(p, etag_is_set(&p->etag) ? PART_STALE : PART_NONE);
    }
    if (r < 0 && u->err == 0)
        u->err = r;
    if (r < 0 && u->streaming) {
        u->retry_at_ns = clock_mono_ns() + STREAM_RETRY_NS;
        u->next_part = 0;
    }
    u->n_active--;
    if (r == 0 && j->streaming && (j->sent || j->same))
        upload_stream_widen_locked(u, j->sent ? took_ns : MIN(u->fastest_ns, UINT64_MAX / 2)); /* it took no link */
    if (u->streaming && !u->publishing)
        upload_stream_advance_locked(u);
    cond_broadcast(&u->changed);
    mutex_unlock(&u->mu);
}

void upload_part_run(struct upload *u, uint32_t i)
{
    struct job j = {.i = i};
    struct patience p;
    patience_begin(&p, 0, clock_mono_ns(), 0);
    int r =
        upload_create(u); /* never given up: of an upload whose id does not arrive nobody could say that it is ours */
    p.stop = &u->give_up;
    bool go = begin(u, &j);
    if (r == 0 && go)
        r = run(u, &j);
    if (r < 0)
        log_debug("upload", "part failed key='%s' part=%u r=%s", j.key, i + 1, err_name(r));
    struct cfile *cf = u->cf;
    patience_end(); /* u may be gone soon */
    end(u, &j, r);
    cfile_own_unref(cf); /* perhaps the last: u is gone then */
}
