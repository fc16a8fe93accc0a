/*
 * What uploads share with earlier objects: see cache_delta.h.
 *
 * A session asks for its bases before the first part of each multipart upload, and again when an object was made since: its predecessor may have been on its way still. A base that turns out to be gone is told of and tried no more by this upload;
 * when copying fails in any other way the upload goes on without bases: what the store cannot do now it need not be asked for each part.
 *
 * u->bases is replaced as a whole or shrinks, under u->mu; who copies from one has a reference.
 */
#include "base/log.h"
#include "base/metric.h"
#include "cache_delta.h"
#include "upload.h"

#include <string.h>

static const uint8_t unknown[OBJ_DIGEST_BYTES];

static bool is_known(const uint8_t sum[OBJ_DIGEST_BYTES])
{
    return memcmp(sum, unknown, sizeof(unknown)) != 0;
}

/* ---- bases ---- */

struct cache_delta_base *cache_delta_base_new(const char *key, const struct etag *etag, uint64_t size,
                                              uint64_t part_bytes, GBytes *parts)
{
    struct cache_delta_base *b = g_atomic_rc_box_new0(struct cache_delta_base);
    b->key = g_strdup(key);
    b->etag = *etag;
    b->size = size;
    b->part_bytes = part_bytes;
    b->parts = parts;
    return b;
}

struct cache_delta_base *cache_delta_base_ref(struct cache_delta_base *b)
{
    return g_atomic_rc_box_acquire(b);
}

static void base_clear(void *p)
{
    struct cache_delta_base *b = p;
    g_free(b->key);
    g_bytes_unref(b->parts);
}

void cache_delta_base_unref(struct cache_delta_base *b)
{
    if (b)
        g_atomic_rc_box_release_full(b, base_clear);
}

size_t cache_delta_n_parts(const struct cache_delta_base *b)
{
    return g_bytes_get_size(b->parts) / sizeof(struct cache_delta_part);
}

static void unref_base(void *p)
{
    cache_delta_base_unref(p);
}

void cache_set_delta(struct cache *c, const struct cache_delta_ops *ops, void *ctx)
{
    c->delta = ops;
    c->delta_ctx = ctx;
}

bool upload_delta_wanted(const struct upload *u)
{
    return u->cf->c->delta != NULL;
}

void upload_delta_ask(struct upload *u)
{
    struct cache *c = u->cf->c;
    if (!c->delta)
        return;
    mutex_lock(&u->mu);
    g_autofree char *key = g_strdup(u->key);
    unsigned n_drops = u->n_drops;
    mutex_unlock(&u->mu);
    g_autoptr(GPtrArray) bases = g_ptr_array_new_with_free_func(unref_base);
    unsigned as_of = __atomic_load_n(&c->delta_made, __ATOMIC_ACQUIRE); /* before they are read */
    c->delta->bases(c->delta_ctx, key, u->layout.part_bytes, bases);
    mutex_lock(&u->mu);
    bool newer = !u->bases || (int)(as_of - u->bases_as_of) >= 0; /* than what another part was told meanwhile */
    if (newer && n_drops == u->n_drops) {
        GPtrArray *old = u->bases;
        u->bases = g_steal_pointer(&bases);
        bases = old;
    }
    if (newer)
        u->bases_as_of = as_of; /* with them: until then, other parts ask for themselves */
    mutex_unlock(&u->mu);
}

static void ask_again(struct upload *u)
{
    mutex_lock(&u->mu);
    bool old = u->bases_as_of != __atomic_load_n(&u->cf->c->delta_made, __ATOMIC_ACQUIRE);
    mutex_unlock(&u->mu);
    if (old)
        upload_delta_ask(u);
}

void upload_delta_reset_locked(struct upload *u)
{
    mutex_assert_held(&u->mu);
    g_clear_pointer(&u->bases, g_ptr_array_unref);
}

/* What b has at part i, if that is as long as asked for and known. */
static bool part_of(const struct upload *u, const struct cache_delta_base *b, uint32_t i, uint64_t len,
                    struct cache_delta_part *ret)
{
    if (i >= cache_delta_n_parts(b) || b->part_bytes != u->layout.part_bytes ||
        upload_part_len(&u->layout, i, b->size) != len)
        return false;
    const uint8_t *data = g_bytes_get_data(b->parts, NULL);
    memcpy(ret, data + i * sizeof(*ret), sizeof(*ret));
    return is_known(ret->sha256);
}

/* A base with that sum at part i, with a reference; NULL: none. */
static struct cache_delta_base *find(struct upload *u, uint32_t i, uint64_t len, const uint8_t *sum,
                                     struct cache_delta_part *ret)
{
    struct cache_delta_base *found = NULL;
    mutex_lock(&u->mu);
    for (guint k = 0; u->bases && k < u->bases->len && !found; k++) {
        struct cache_delta_base *b = g_ptr_array_index(u->bases, k);
        if (part_of(u, b, i, len, ret) && memcmp(ret->sha256, sum, OBJ_DIGEST_BYTES) == 0)
            found = cache_delta_base_ref(b);
    }
    mutex_unlock(&u->mu);
    return found;
}

void upload_delta_resumed(struct upload *u)
{
    struct cache_delta_part part;
    upload_delta_ask(u);
    mutex_lock(&u->mu);
    guint n_bases = u->bases ? u->bases->len : 0;
    for (guint i = 0; i < u->parts->len; i++) {
        struct upload_part *p = upload_part_locked(u, i);
        for (guint k = 0; k < n_bases && !p->saved && is_known(p->sha256); k++)
            p->saved = part_of(u, g_ptr_array_index(u->bases, k), i, p->size, &part) &&
                       memcmp(part.sha256, p->sha256, OBJ_DIGEST_BYTES) == 0;
    }
    mutex_unlock(&u->mu);
}

/* b, or with NULL all. False: another thread was quicker. */
static bool drop(struct upload *u, struct cache_delta_base *b)
{
    mutex_lock(&u->mu);
    u->n_drops++;
    bool had = u->bases && (!b || g_ptr_array_remove(u->bases, b));
    if (!b)
        upload_delta_reset_locked(u);
    mutex_unlock(&u->mu);
    return had;
}

/* ---- copies ---- */

/* Is the etag of the recorded part the MD5 of its bytes? Whether etags of parts are sums is not told by that of a PUT: with a key of the user's, and in some stores ever, they only look like it. */
static bool is_sum(const struct cache_delta_part *want, const struct upload_delta_job *j, uint64_t len)
{
    uint8_t md5[sizeof(want->md5)];
    gsize n = sizeof(md5);
    g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_MD5);
    g_checksum_update(sum, j->buf, (gssize)len);
    g_checksum_get_digest(sum, md5, &n);
    return memcmp(want->md5, md5, sizeof(md5)) == 0;
}

static int check_source(struct upload *u, const struct cache_delta_base *b)
{
    struct obj_info info = {0};
    int r = objstore_head(u->cf->c->store, b->key, &info);
    if (r == 0 && !etag_equal(&info.etag, &b->etag))
        r = -ESTALE;
    obj_info_clear(&info);
    return r;
}

/* Does the store hold the bytes that the part is to have? Its etag tells; where that is no sum, the source must be the same object still. */
static int check_copy(struct upload *u, const struct cache_delta_base *b, const struct cache_delta_part *want,
                      const struct upload_delta_job *j, const struct obj_part *part)
{
    uint8_t md5[sizeof(want->md5)];
    bool looks_so =
        memcmp(want->md5, unknown, sizeof(md5)) != 0 && objstore_etag_md5(u->cf->c->store, b->key, &part->etag, md5);
    if (looks_so && memcmp(want->md5, md5, sizeof(md5)) == 0)
        return 0;
    return looks_so && is_sum(want, j, part->size) ? -EBADMSG : check_source(u, b);
}

static int copy_from(struct upload *u, const struct cache_delta_base *b, const struct cache_delta_part *want,
                     const struct upload_delta_job *j, struct obj_part *part)
{
    int r = objstore_mpu_part_copy(u->cf->c->store, j->key, j->upload_id, b->key, &b->etag, j->off, part);
    return r < 0 ? r : check_copy(u, b, want, j, part);
}

bool upload_delta_copy(struct upload *u, const struct upload_delta_job *j, struct obj_part *part)
{
    struct cache *c = u->cf->c;
    struct cache_delta_part want;
    struct cache_delta_base *b;
    if (!c->delta || !(objstore_caps_of(c->store, j->key) & CAP_PART_COPY))
        return false;
    ask_again(u);
    while ((b = find(u, part->number - 1, part->size, j->sha256, &want)) != NULL) {
        int r = copy_from(u, b, &want, j, part);
        if (r < 0)
            log_debug("upload", "a part is sent instead of copied key='%s' part=%u from='%s' r=%s", j->key,
                      part->number, b->key, err_name(r));
        bool gone = r == -ESTALE || r == -ENOENT; /* of the object, or of the upload: then sending fails as well */
        bool other_store = r == -EXDEV;
        if (r < 0 && drop(u, gone || other_store ? b : NULL) && gone)
            c->delta->gone(c->delta_ctx, b);
        cache_delta_base_unref(b);
        if (r == 0) {
            metric_inc(M_parts_saved);
            metric_add(M_saved_bytes, (int64_t)part->size);
            return true;
        }
        part->etag = (struct etag){{0}};
    }
    return false;
}

void upload_delta_inherit(struct upload *u, const char *src, const struct etag *etag, uint32_t i, uint64_t len,
                          uint8_t sum[OBJ_DIGEST_BYTES])
{
    struct cache_delta_part part;
    mutex_lock(&u->mu);
    for (guint k = 0; u->bases && k < u->bases->len; k++) {
        const struct cache_delta_base *b = g_ptr_array_index(u->bases, k);
        if (g_str_equal(b->key, src) && etag_equal(&b->etag, etag) && part_of(u, b, i, len, &part))
            memcpy(sum, part.sha256, OBJ_DIGEST_BYTES);
    }
    mutex_unlock(&u->mu);
}

/* ---- what was made ---- */

void upload_delta_made(struct upload *u, const char *key, const struct etag *etag, uint64_t size)
{
    struct cache *c = u->cf->c;
    uint32_t n = 0, n_known = 0;
    uint64_t saved = 0;
    if (!c->delta || upload_n_parts(&u->layout, size, &n) < 0 || n < DELTA_MIN_PARTS)
        return;
    struct cache_delta_part *parts = g_new0(struct cache_delta_part, n);
    mutex_lock(&u->mu);
    for (uint32_t i = 0; i < n; i++) {
        const struct upload_part *p = upload_part_locked(u, i);
        memcpy(parts[i].sha256, p->sha256, sizeof(parts[i].sha256));
        (void)objstore_etag_md5(c->store, key, &p->etag, parts[i].md5); /* none: zeros */
        n_known += is_known(p->sha256);
        saved += p->saved ? p->size : 0;
    }
    mutex_unlock(&u->mu);
    GBytes *bytes = g_bytes_new_take(parts, n * sizeof(*parts));
    struct cache_delta_base *b = cache_delta_base_new(key, etag, size, u->layout.part_bytes, bytes);
    if (n_known > 0)
        c->delta->made(c->delta_ctx, b, saved);
    (void)__atomic_add_fetch(&c->delta_made, 1, __ATOMIC_RELEASE);
    cache_delta_base_unref(b);
}
