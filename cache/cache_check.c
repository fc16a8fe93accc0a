/*
 * Content that came by ranges, compared as a whole.
 *
 * Over plain http nothing protects the way, and stores tell no checksum of a range. So objects of limits.summed_bytes at most are compared with their ETag once all
 * of them is here: a file is complete, and given to the kernel, only after that. What does not fit is absent again and is fetched anew, and from then on nobody reads of it
 * before all of it was compared; until then those who read while it comes may have got wrong bytes, and the cache's user is told, who may keep them. Larger objects are not compared, it would take longer than
 * to fetch them. Nor is a file that was changed here: one of which wrong bytes came becomes dirty only after all of it was compared.
 *
 * An ETag that looks like an MD5 may be none: bytes that come twice are the store's own, unless the object was written by us.
 *
 * Concurrency: one thread at a time compares (cf->checking), with an io over all chunks, so that none of them is punched meanwhile.
 */
#include "base/log.h"
#include "base/metric.h"
#include "cache_file.h"

#include <string.h>
#include <unistd.h>

bool cfile_may_check_locked(const struct cfile *cf)
{
    bool may = cf->limit == cf->size && cf->src_key && !cf->all_present && !cf->dirty && !cf->dirty_chunks.n_set &&
               objstore_etag_is_sum(&cf->src_etag);
    if (!may)
        return false;
    struct objstore_limits l = objstore_limits_of(cf->c->store, cf->src_key);
    return cf->limit > l.checked_bytes && cf->limit <= l.summed_bytes;
}

unsigned cfile_doubts(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    unsigned n = cf->unchecked ? cf->n_bad : 0;
    mutex_unlock(&cf->mu);
    return n;
}

static int read_content(void *ctx, uint64_t off, void *buf, size_t len)
{
    int fd = cfile_fd(ctx);
    if (fd < 0)
        return fd;
    for (size_t got = 0; got < len;) {
        ssize_t n = RET_ERRNO(pread(fd, (uint8_t *)buf + got, len - got, (off_t)(off + got)));
        if (n == -EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? (int)n : -EIO;
        got += (size_t)n;
    }
    return 0;
}

/* Whether the store's MD5s are known to be some, and this object is one of ours: then its ETag is right. */
static bool is_ours(struct cache *c, const char *key, const struct etag *etag)
{
    struct obj_info info = {0};
    if (!(objstore_caps_of(c->store, key) & CAP_ETAG_IS_MD5) || strchr(etag->s, '-') ||
        objstore_head(c->store, key, &info) < 0)
        return false;
    bool ours = info.token[0] && !info.encrypted && etag_equal(&info.etag, etag);
    obj_info_clear(&info);
    return ours;
}

/* What to make of bytes that do not fit. */
static int judge(struct cfile *cf, const char *key, const struct etag *etag, const char *md5)
{
    struct objstore *st = cf->c->store;
    bool again = strcmp(cf->bad_md5, md5) == 0;
    g_strlcpy(cf->bad_md5, md5, sizeof cf->bad_md5);
    if (!objstore_sums_count(st, key))
        return OBJ_SUM_NONE;
    if (!again || is_ours(cf->c, key, etag)) {
        log_warn("cache", "what came is not what the store has, it is fetched again key='%s'", key);
        return OBJ_SUM_DIFFERS;
    }
    log_notice("cache", "the same bytes came twice, so the ETag is no checksum of theirs key='%s'", key);
    objstore_sum_note(st, key, false);
    return OBJ_SUM_NONE;
}

/* All chunks become absent, when nobody reads of them any more. False: it was changed here meanwhile. */
static bool drop_locked(struct cfile *cf, uint64_t n) REQUIRES(cf->mu)
{
    cf->n_bad++; /* who comes from now on waits for the end of the check */
    while (cfile_io_overlaps_locked(cf, 0, n))
        cond_wait(&cf->changed, &cf->mu);
    if (!cfile_may_check_locked(cf))
        return false;
    metric_add(M_corrupt_chunks, (int64_t)n);
    chunkset_unset(&cf->present, 0, n);
    cfile_touch_segments_locked(cf, 0, n);
    return true;
}

static int compare_locked(struct cfile *cf, bool *ret_dropped) REQUIRES(cf->mu)
{
    struct cfile_io io;
    char md5[33];
    uint64_t size = cf->limit, n = chunks_for(size), gen = cf->src_gen, moves = cf->move_gen;
    g_autofree char *key = g_strdup(cf->src_key);
    struct etag etag = cf->src_etag;
    cfile_io_begin_locked(cf, &io, 0, n);
    mutex_unlock(&cf->mu);
    int r = objstore_sum(&etag, size, read_content, cf, md5);
    if (r == OBJ_SUM_DIFFERS)
        r = judge(cf, key, &etag, md5);
    else if (r == OBJ_SUM_FITS)
        objstore_sum_note(cf->c->store, key, true);
    mutex_lock(&cf->mu);
    cfile_io_end_locked(cf, &io);
    if (r < 0)
        return r;
    if (gen != cf->src_gen || moves != cf->move_gen || !cfile_may_check_locked(cf))
        return -EAGAIN;
    if (r == OBJ_SUM_DIFFERS) {
        *ret_dropped = drop_locked(cf, n);
        return -EAGAIN;
    }
    cf->unchecked = false;
    cf->n_bad = 0;
    return 0;
}

static bool all_here_locked(const struct cfile *cf)
{
    uint64_t n = chunks_for(cf->limit);
    return cf->verify.n_set == 0 && chunkset_next_unset(&cf->present, 0, n) >= n;
}

int cfile_check(struct cfile *cf)
{
    struct cache *c = cf->c;
    bool dropped = false;
    int r = 0;
    mutex_lock(&cf->mu);
    while (cf->checking)
        cond_wait(&cf->changed, &cf->mu);
    if (cf->unchecked && !cfile_may_check_locked(cf))
        cf->unchecked = false; /* it was changed here */
    if (cf->unchecked && !all_here_locked(cf)) {
        r = -EAGAIN;
    } else if (cf->unchecked) {
        cf->checking = true;
        r = compare_locked(cf, &dropped);
        cf->checking = false;
        cond_broadcast(&cf->changed);
    }
    mutex_unlock(&cf->mu);
    if (dropped && c->cfg.wrong)
        c->cfg.wrong(c->cfg.dropped_ctx, cf->ino);
    return r;
}
