/*
 * Publishing: the object becomes what the file is at one instant, or nothing becomes visible.
 *
 * Small files (one part) are read whole, the file's stamp compared before and after, and PUT. Larger ones go part by part through the
 * session (upload.h): each round queues what is not stored as it is now, and waits. Then, holding the session's and the file's lock
 * together, one look decides: no change in progress, size as assumed, every part stored and none written since it was read. All parts' bytes
 * were then in the file together at that instant; the list for Complete is taken in the same look, so what writers do
 * later cannot get into it. Not a snapshot: the stamp must also be the one of the beginning (-EAGAIN), before and after the gate.
 * A snapshot goes round again for what changed; writers that never pause for SNAPSHOT_ROUNDS rounds give -EAGAIN. A closed file of which the disk has
 * less than its length gives -EUCLEAN: no round brings the rest back. While the kernel writes past
 * us (passthrough) there are no notes of writes: all parts are compared again until a round finds nothing new.
 *
 * Failures keep session and records: the next try sends what is missing. An upload the store does not know is settled by HEAD and
 * token (the reply to a Complete was lost), else begun anew once. Buffers are not held over the gate: what it waits for may need them.
 *
 * One publish of a cfile at a time (a second one gets -EAGAIN); all calls on the caller's thread but the parts, which the pool carries.
 */
#include "base/clock.h"
#include "base/crash.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/metric.h"
#include "cache_sums.h"
#include "upload.h"

#include <string.h>
#include <sys/stat.h>

#define SNAPSHOT_ROUNDS 200
#define PAUSE_NS        (2 * NS_PER_MS)
#define SUM_BYTES       (256u << 10) /* read and summed at once */

struct publish {
    struct upload *u;
    struct cfile *cf;
    struct cache *c;
    const struct publish_req *req;
    uint64_t stamp; /* of the file when we began */
    uint64_t size;
    uint32_t n_parts;
    unsigned rounds;
    bool anew;
};

/* ---- state of the file ---- */

/* No change in progress; *ret_stamp as of now. */
static bool quiet_locked(struct cfile *cf, uint64_t *ret_stamp) REQUIRES(cf->mu)
{
    *ret_stamp = cf->stamp;
    return cf->changing == 0;
}

static bool quiet(struct cfile *cf, uint64_t *ret_stamp)
{
    mutex_lock(&cf->mu);
    bool q = quiet_locked(cf, ret_stamp);
    mutex_unlock(&cf->mu);
    return q;
}

static int check_unchanged(struct publish *p)
{
    uint64_t stamp;
    if (p->req->snapshot)
        return 0;
    return quiet(p->cf, &stamp) && stamp == p->stamp ? 0 : -EAGAIN;
}

/* Somebody cut the file on the disk behind our back: nobody of ours changes it, nor does the kernel. */
static bool is_cut_off(struct cfile *cf)
{
    struct stat st;
    mutex_lock(&cf->mu);
    bool still = cf->changing == 0 && !cf->resizing && cf->pass != CACHE_PASS_WRITE;
    bool cut = still && cf->fd >= 0 && fstat(cf->fd, &st) == 0 && (uint64_t)st.st_size < cf->size;
    mutex_unlock(&cf->mu);
    return cut;
}

/* Before another round of a closed file. */
static int check_rounds(struct publish *p, int exhausted)
{
    if (is_cut_off(p->cf))
        return -EUCLEAN;
    return ++p->rounds >= SNAPSHOT_ROUNDS ? exhausted : 0;
}

/* Before another round of a snapshot. */
static int pause_for_writers(struct publish *p)
{
    if (!p->req->snapshot || ++p->rounds >= SNAPSHOT_ROUNDS)
        return -EAGAIN;
    mutex_lock(&p->u->mu);
    (void)cond_wait_until(&p->u->changed, &p->u->mu, clock_mono_ns() + PAUSE_NS);
    mutex_unlock(&p->u->mu);
    return 0;
}

/* In each round: it may have taken long, and what is to become visible now was not there when it was asked before. */
static int pass_gate(struct publish *p)
{
    int r = check_unchanged(p);
    if (r == 0 && p->req->gate)
        r = p->req->gate(p->req->ctx);
    return r == 0 ? check_unchanged(p) : r;
}

/* ---- verification ---- */

static void result_from(const struct obj_info *info, struct publish_result *ret)
{
    *ret = (struct publish_result){.etag = info->etag, .size = info->size, .posix = info->posix};
    g_strlcpy(ret->token, info->token, sizeof ret->token);
}

/* The object must be the one just made: size, etag, token. */
static int verify(struct publish *p, const struct etag *etag, const char *token, struct publish_result *ret)
{
    struct obj_info info = {0};
    int r = objstore_head(p->c->store, p->req->key, &info);
    if (r < 0)
        return r == -ENOENT ? -ESTALE : r; /* somebody removed it */
    bool same_etag = !etag_is_set(etag) || etag_equal(etag, &info.etag);
    bool same_token = strcmp(token ? token : "", info.token) == 0;
    if (!same_etag && !same_token)
        r = -ESTALE; /* somebody was quicker with the next version */
    else if (!same_etag || !same_token || info.size != p->size)
        r = -EBADMSG;
    else
        result_from(&info, ret);
    if (r == -EBADMSG)
        log_debug("upload", "object differs after upload key='%s' size=%" G_GUINT64_FORMAT "/%" G_GUINT64_FORMAT,
                  p->req->key, info.size, p->size);
    obj_info_clear(&info);
    return r;
}

/* ---- sums ---- */

/* The sum of the parts so far and one more. */
static uint32_t add_sum(uint32_t sum, uint32_t part_crc)
{
    return crc32c(sum, &part_crc, sizeof(part_crc));
}

static uint32_t sum_of(const GArray *parts)
{
    uint32_t sum = 0;
    for (guint i = 0; i < parts->len; i++) {
        const struct obj_part *part = &g_array_index(parts, struct obj_part, i);
        if (part->crc32c == 0) /* made by the store */
            return 0;
        sum = add_sum(sum, part->crc32c);
    }
    return sum;
}

static bool crc_here(struct cfile *cf, void *buf, uint64_t off, uint64_t len, uint32_t *ret)
{
    uint32_t crc = 0;
    for (uint64_t at = 0; at < len; at += SUM_BYTES) {
        size_t n = MIN(SUM_BYTES, len - at);
        if (cfile_read_local(cf, buf, n, off + at) != (ssize_t)n)
            return false;
        crc = crc32c(crc, buf, n);
    }
    *ret = crc;
    return true;
}

uint32_t cache_published_sum(struct cfile *cf)
{
    const struct upload_layout *l = &upload_ensure(cf)->layout;
    uint64_t size = cache_file_size(cf);
    uint32_t sum = 0, n_parts, crc;
    g_autofree void *buf = g_try_malloc(SUM_BYTES);
    if (!buf || !cache_file_complete(cf) || upload_n_parts(l, size, &n_parts) < 0)
        return 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        if (!crc_here(cf, buf, upload_part_offset(l, i), upload_part_len(l, i, size), &crc))
            return 0;
        sum = add_sum(sum, crc);
    }
    return sum;
}

/* ---- one PUT ---- */

/* Reads all of the file. 1: it changed meanwhile. */
static int read_stable(struct publish *p, void *buf, uint32_t *ret_crc)
{
    uint64_t before, after;
    mutex_lock(&p->cf->mu);
    bool still = quiet_locked(p->cf, &before), passthrough = p->cf->pass == CACHE_PASS_WRITE;
    mutex_unlock(&p->cf->mu);
    if (!still || (!p->req->snapshot && before != p->stamp))
        return 1;
    uint32_t crc = 0;
    for (int pass = 0; pass < (passthrough ? 2 : 1) && p->size > 0; pass++) {
        ssize_t n = cfile_read_local(p->cf, buf, p->size, 0);
        if (n < 0)
            return upload_read_error(p->cf, p->req->key, (int)n);
        uint32_t now = crc32c(0, buf, (size_t)n);
        if ((uint64_t)n != p->size || (pass > 0 && now != crc))
            return 1;
        crc = now;
    }
    *ret_crc = crc;
    return quiet(p->cf, &after) && after == before && cache_file_size(p->cf) == p->size ? 0 : 1;
}

struct compare {
    const uint8_t *want;
    uint64_t size;
    uint64_t n_same;
};

static int on_compare(void *ctx, uint64_t off, const void *buf, size_t len)
{
    struct compare *c = ctx;
    if (off != c->n_same || len > c->size - off || memcmp(c->want + off, buf, len) != 0)
        return -EILSEQ;
    c->n_same += len;
    return 0;
}

static bool is_version(const struct publish_req *req, const char *token)
{
    const char *want = req->meta.token;
    size_t n = req->version_len;
    if (n == 0)
        return want && *want && strcmp(token, want) == 0;
    return strncmp(token, want, n) == 0 && (token[n] == '\0' || token[n] == '.');
}

/* The condition did not hold: is that so because this very version is there already, its PUT's reply lost, or that of a try which was killed? 0 with its etag and token, else -ESTALE. */
static int put_before(struct publish *p, const void *buf, struct etag *ret_etag, char *ret_token)
{
    const struct publish_req *req = p->req;
    struct compare c = {.want = buf, .size = p->size};
    struct obj_info info = {0};
    int r = objstore_head(p->c->store, req->key, &info);
    bool ours = r == 0 && is_version(req, info.token) && info.size == p->size;
    if (ours && p->size > 0)
        r = objstore_get(p->c->store, req->key, 0, 0, &info.etag, on_compare, &c, NULL);
    ours = ours && r == 0 && c.n_same == p->size;
    if (ours) {
        *ret_etag = info.etag;
        g_strlcpy(ret_token, info.token, TOKEN_MAX + 1);
    }
    obj_info_clear(&info);
    return ours ? 0 : -ESTALE;
}

/* 1: the file changed while it was read. */
static int read_and_put(struct publish *p, struct publish_result *ret)
{
    const struct publish_req *req = p->req;
    struct etag etag = {{0}};
    char token[TOKEN_MAX + 1] = "";
    if (req->meta.token)
        g_strlcpy(token, req->meta.token, sizeof(token));
    p->size = cache_file_size(p->cf);
    if (p->size > p->u->layout.part_bytes)
        return 1;
    void *buf = upload_buf_get(p->u->pool, p->size);
    if (!buf)
        return -ENOMEM;
    uint32_t crc = 0;
    int r = read_stable(p, buf, &crc);
    if (r == 0)
        r = upload_check_sums(req->sums, req->key, buf, 0, p->size);
    if (r == 0 && req->last_look)
        r = req->last_look(req->ctx);
    if (r == 0)
        r = objstore_put(p->c->store, req->key, buf, p->size, &req->meta, &req->cond, &etag);
    CRASH_POINT(put_visible);
    if (r == -ESTALE)
        r = put_before(p, buf, &etag, token);
    upload_buf_put(p->u->pool, buf, p->size);
    if (r == 0 && req->progress)
        req->progress(req->ctx, p->size);
    if (r == 0)
        r = verify(p, &etag, token, ret);
    if (r == 0)
        ret->sum = add_sum(0, crc);
    return r;
}

static int drop_any_upload(struct publish *p)
{
    struct meta_upload rec;
    mutex_lock(&p->u->mu);
    upload_quiesce_locked(p->u);
    mutex_unlock(&p->u->mu);
    upload_drop(p->u);
    int r = meta_upload_get(p->c->meta, p->cf->vid, &rec);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = upload_abort_recorded(p->c, &rec);
    if (r < 0)
        log_debug("upload", "abort left for later key='%s' r=%s", rec.key, err_name(r));
    meta_upload_clear(&rec);
    return 0;
}

/* 1: go round again. */
static int publish_small(struct publish *p, struct publish_result *ret)
{
    int r = drop_any_upload(p);
    if (r == 0)
        r = pass_gate(p);
    return r == 0 ? read_and_put(p, ret) : r;
}

/* ---- multipart ---- */

/* Key, token and upload of the session for this request. *ret_done: an earlier run had finished it. */
static int adopt_session(struct publish *p, bool *ret_done, struct publish_result *ret)
{
    struct upload *u = p->u;
    struct obj_info info = {0};
    bool done = false;
    mutex_lock(&u->mu);
    bool wrong = u->key && strcmp(u->key, p->req->key) != 0;
    if (wrong || !u->upload_id)
        upload_quiesce_locked(u); /* the stream is off: afterwards only we create and queue */
    bool have = u->upload_id != NULL;
    mutex_unlock(&u->mu);
    if (wrong && have) {
        metric_inc(M_wrong_key_predictions);
        upload_drop(u);
        have = false;
    }
    if (!have) {
        mutex_lock(&u->mu);
        g_free(u->key);
        u->key = g_strdup(p->req->key);
        u->posix = p->req->meta.posix;
        g_strlcpy(u->token, p->req->meta.token ? p->req->meta.token : "", sizeof u->token);
        mutex_unlock(&u->mu);
    }
    int r = have ? 0 : upload_resume(u, p->req->key, p->size, &done, &info);
    if (r == 0 && done)
        result_from(&info, ret);
    obj_info_clear(&info);
    if (r == 0)
        *ret_done = done;
    return r;
}

/* The upload is gone or of no use: another one, with this request's token. Once per publish. */
static int begin_anew(struct publish *p)
{
    struct upload *u = p->u;
    if (p->anew)
        return -EIO;
    p->anew = true;
    upload_drop(u);
    mutex_lock(&u->mu);
    u->posix = p->req->meta.posix;
    g_strlcpy(u->token, p->req->meta.token ? p->req->meta.token : "", sizeof u->token);
    mutex_unlock(&u->mu);
    return 0;
}

static bool part_current_locked(const struct publish *p, uint32_t i) NO_TSA
{
    const struct upload_part *part = upload_part_locked(p->u, i);
    return part->state == PART_STORED && part->size == upload_part_len(&p->u->layout, i, p->size);
}

/* The first part from i on that is neither stored as it is now nor on its way; known: only those of which the store holds something, else the others. */
static uint32_t next_missing_locked(const struct publish *p, uint32_t i, bool known) NO_TSA
{
    for (; i < p->n_parts; i++) {
        const struct upload_part *part = upload_part_locked(p->u, i);
        if (part->state != PART_QUEUED && part->state != PART_SENDING && !part_current_locked(p, i) &&
            etag_is_set(&part->etag) == known)
            break;
    }
    return i;
}

/* Queues what is not stored as it is now. What has to be sent and what most likely only has to be compared take turns, so that the comparing goes on
 * while the network is busy. */
static void queue_missing_locked(struct publish *p) NO_TSA
{
    struct upload *u = p->u;
    u->size = p->size;
    u->copy_unchanged = p->req->copy_unchanged;
    uint32_t send = next_missing_locked(p, 0, false), compare = next_missing_locked(p, 0, true);
    while (send < p->n_parts || compare < p->n_parts) {
        if (send < p->n_parts) {
            upload_queue_part_locked(u, send);
            send = next_missing_locked(p, send + 1, false);
        }
        if (compare < p->n_parts) {
            upload_queue_part_locked(u, compare);
            compare = next_missing_locked(p, compare + 1, true);
        }
    }
}

static int run_round(struct publish *p)
{
    struct upload *u = p->u;
    uint64_t told = 0;
    mutex_lock(&u->mu);
    u->err = 0;
    queue_missing_locked(p);
    while (u->n_active > 0 && u->err == 0 && !u->abort_wanted) {
        cond_wait(&u->changed, &u->mu);
        uint64_t done = u->stored_bytes;
        if (!p->req->progress || done == told)
            continue;
        told = done;
        mutex_unlock(&u->mu);
        p->req->progress(p->req->ctx, done);
        mutex_lock(&u->mu);
    }
    int r = u->abort_wanted ? -ECANCELED : u->err;
    if (r < 0)
        upload_quiesce_locked(u);
    uint64_t done = u->stored_bytes;
    mutex_unlock(&u->mu);
    if (r == 0 && p->req->progress && done != told) /* the last part may have ended between two looks */
        p->req->progress(p->req->ctx, done);
    return r;
}

/* The one look: all stored, nothing changing. Fills parts. False: another round is needed. */
static bool settle(struct publish *p, GArray *parts)
{
    struct upload *u = p->u;
    uint64_t stamp, size = cache_file_size(p->cf);
    g_array_set_size(parts, 0);
    mutex_lock(&u->mu);
    mutex_lock(&p->cf->mu);
    bool ok = quiet_locked(p->cf, &stamp) && size == p->size && p->cf->size == p->size;
    mutex_unlock(&p->cf->mu);
    /* A change that began after this look is noted after its bytes: it needs u->mu for that, so what the parts say is of the look's instant. */
    for (uint32_t i = 0; i < p->n_parts && ok; i++) {
        ok = part_current_locked(p, i);
        const struct upload_part *part = upload_part_locked(u, i);
        struct obj_part op = {.number = i + 1, .size = part->size, .etag = part->etag, .crc32c = part->crc32c};
        g_array_append_val(parts, op);
    }
    mutex_unlock(&u->mu);
    return ok;
}

/* While the kernel writes past us: everything is compared again. True when that found no new bytes. */
static int recheck_passthrough(struct publish *p, GArray *parts, bool *ret_same)
{
    struct upload *u = p->u;
    mutex_lock(&p->cf->mu);
    bool passthrough = p->cf->pass == CACHE_PASS_WRITE;
    mutex_unlock(&p->cf->mu);
    *ret_same = true;
    if (!passthrough)
        return 0;
    mutex_lock(&u->mu);
    upload_mark_written_locked(u, 0, UINT64_MAX);
    mutex_unlock(&u->mu);
    int r = run_round(p);
    if (r < 0)
        return r;
    g_autoptr(GArray) again = g_array_new(FALSE, TRUE, sizeof(struct obj_part));
    *ret_same = settle(p, again) && again->len == parts->len;
    for (guint i = 0; i < parts->len && *ret_same; i++)
        *ret_same =
            etag_equal(&g_array_index(parts, struct obj_part, i).etag, &g_array_index(again, struct obj_part, i).etag);
    return 0;
}

/* Rounds until all is stored; parts is what Complete gets. 1: size class or size changed, begin again. */
static int store_parts(struct publish *p, GArray *parts)
{
    for (;;) {
        int r = upload_create(p->u);
        if (r == 0)
            r = run_round(p);
        if (r == -ENOENT) {
            r = begin_anew(p);
            if (r < 0)
                return r;
            continue;
        }
        if (r < 0)
            return r;
        bool same = false;
        bool ok = settle(p, parts);
        r = check_unchanged(p);
        if (r == 0 && ok)
            r = recheck_passthrough(p, parts, &same);
        if (r < 0 || (ok && same))
            return r;
        if (!p->req->snapshot && cache_file_size(p->cf) != p->size)
            return -EAGAIN;
        r = p->req->snapshot ? pause_for_writers(p) : check_rounds(p, -EIO);
        if (r < 0)
            return r;
        if (cache_file_size(p->cf) != p->size)
            return 1;
    }
}

/* After -ENOENT of Complete: 0 the object is there, made by this upload; 1 it is not. Not asked where parts were stored after a Complete of unknown outcome: that one
 * may have made it, of the parts before. */
static int was_completed(struct publish *p, const char *token, struct etag *ret_etag)
{
    struct obj_info info = {0};
    int r = objstore_head(p->c->store, p->req->key, &info);
    if (r < 0)
        return r == -ENOENT ? 1 : r;
    r = token[0] != '\0' && strcmp(info.token, token) == 0 && info.size == p->size ? 0 : 1;
    if (r == 0)
        *ret_etag = info.etag;
    obj_info_clear(&info);
    return r;
}

/* The store may end a Complete, whatever we hear of it, when the file has changed and the parts with it: from here on parts that are stored spoil the token. On the disk: the machine
 * may go down meanwhile and the upload be gone on with. */
static int note_completing(struct upload *u)
{
    mutex_lock(&u->mu);
    bool noted = u->maybe_completed;
    u->maybe_completed = true;
    mutex_unlock(&u->mu);
    if (noted)
        return 0;
    struct meta_batch *b = meta_batch_new(u->cf->c->meta);
    upload_doubt_put(b, u->cf->vid, false);
    int r = meta_commit(b, true);
    meta_batch_free(b);
    if (r < 0) {
        mutex_lock(&u->mu);
        u->maybe_completed = false;
        mutex_unlock(&u->mu);
    }
    return r;
}

static int complete(struct publish *p, const GArray *parts, struct publish_result *ret)
{
    struct upload *u = p->u;
    struct etag etag = {{0}};
    mutex_lock(&u->mu);
    g_autofree char *id = g_strdup(u->upload_id);
    g_autofree char *token = g_strdup(u->token);
    bool cancelled = u->abort_wanted, settles = !u->token_spoilt;
    mutex_unlock(&u->mu);
    int r = cancelled ? -ECANCELED : note_completing(u);
    if (r < 0)
        return r;
    CRASH_POINT(mpu_completing);
    r = objstore_mpu_complete(p->c->store, p->req->key, id, (const struct obj_part *)(const void *)parts->data,
                              parts->len, settles ? token : NULL, &p->req->cond, &etag);
    CRASH_POINT(mpu_completed);
    if (r == -ENOENT)
        r = settles ? was_completed(p, token, &etag) : 1;
    if (r == 1 || r == -EBADMSG) { /* gone, or its parts are not what was sent */
        int e = begin_anew(p);
        return e < 0 ? (r == 1 ? e : r) : 1;
    }
    if (r < 0)
        return r;
    r = verify(p, &etag, token, ret);
    if (r == 0)
        ret->sum = sum_of(parts);
    if (r < 0 && r != -EBADMSG && r != -ESTALE)
        return r; /* not known: the next try finds out by the token */
    if (r == 0)
        upload_delta_made(u, p->req->key, &ret->etag, p->size);
    mutex_lock(&u->mu);
    upload_quiesce_locked(u);
    upload_reset_locked(u);
    g_clear_pointer(&u->key, g_free);
    mutex_unlock(&u->mu);
    CRASH_POINT(mpu_verified);
    int e = upload_forget_record(p->c, &(struct meta_upload){.vid = p->cf->vid, .upload_id = id});
    CRASH_POINT(mpu_forgotten);
    return r < 0 ? r : e;
}

/* 1: go round again. */
static int publish_large(struct publish *p, struct publish_result *ret)
{
    g_autoptr(GArray) parts = g_array_new(FALSE, TRUE, sizeof(struct obj_part));
    bool done = false;
    int r = adopt_session(p, &done, ret);
    if (r < 0 || done)
        return r;
    r = store_parts(p, parts);
    if (r == 0)
        r = pass_gate(p);
    return r == 0 ? complete(p, parts, ret) : r;
}

/* Before anything is sent. The layout does not know the store that the key is in, which may take less. */
static int check_limits(struct publish *p)
{
    if (p->size > objstore_limits_of(p->c->store, p->req->key).object_max_bytes)
        return -EFBIG;
    return upload_n_parts(&p->u->layout, p->size, &p->n_parts);
}

static int publish(struct publish *p, struct publish_result *ret)
{
    for (;;) {
        p->size = cache_file_size(p->cf);
        int r = check_limits(p);
        if (r < 0)
            return r;
        mutex_lock(&p->u->mu);
        p->u->size = p->size;
        mutex_unlock(&p->u->mu);
        r = p->size <= p->u->layout.part_bytes ? publish_small(p, ret) : publish_large(p, ret);
        if (r <= 0)
            return r;
        r = check_unchanged(p);
        if (r == 0)
            r = p->req->snapshot ? pause_for_writers(p) : check_rounds(p, -EAGAIN);
        if (r < 0)
            return r;
    }
}

static void tell_bytes_gone(struct cfile *cf, const char *key)
{
    g_autofree char *src = NULL;
    struct etag etag;
    uint64_t limit;
    if (cfile_source(cf, &src, &etag, &limit))
        log_err("upload",
                "bytes of a copy are gone: the object they were to come from was changed or removed key='%s' from='%s'",
                key, src);
}

int cache_publish(struct cfile *cf, const struct publish_req *req, struct publish_result *ret)
{
    struct upload *u = upload_ensure(cf);
    struct publish p = {.u = u, .cf = cf, .c = cf->c, .req = req};
    struct publish_result result = {0};
    mutex_assert_none_held();
    uint64_t size = cache_file_size(cf);
    bool still = quiet(cf, &p.stamp);
    mutex_lock(&u->mu);
    if (u->publishing || u->dropping) { /* waiting could be for ever: the other one may stand at its gate for us */
        mutex_unlock(&u->mu);
        return -EAGAIN;
    }
    u->publishing = true;
    u->sums = req->sums;
    u->streaming = false;
    u->size = size;
    cond_broadcast(&u->changed); /* what the stream held back goes on */
    mutex_unlock(&u->mu);
    metric_inc(M_uploading);
    int r = still || req->snapshot ? publish(&p, &result) : -EAGAIN;
    metric_add(M_uploading, -1);
    mutex_lock(&u->mu);
    upload_quiesce_locked(u);
    u->publishing = false;
    u->sums = NULL;
    bool drop = u->abort_wanted && r < 0;
    u->abort_wanted = false;
    u->dropping = drop;
    cond_broadcast(&u->changed);
    mutex_unlock(&u->mu);
    if (drop)
        upload_end_drop(u);
    if (r == -ENODATA)
        tell_bytes_gone(cf, req->key);
    if (r == 0)
        *ret = result;
    return r;
}
