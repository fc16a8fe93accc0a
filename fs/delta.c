/*
 * See delta.h. Two values for each object (meta/FORMAT.md): "delta/KEY" is small and read of all objects when one is looked for, "delta-parts/KEY" is read of those that are
 * chosen. A stamp in both tells that they belong together. Which store they are of is in the first: the directory of a link may lead to another one later, and ETags may be alike there.
 *
 * No state in memory and no lock: any thread. Two that prune at once remove the same.
 */
#include "delta.h"

#include "cache_delta.h"
#include "delta_base.h"
#include "links.h"

#include <string.h>

#define BASES_MAX 6u

/* What "delta/KEY" says. */
struct record {
    char *key; /* owned */
    uint64_t stamp, size, part_bytes, saved_bytes;
    uint64_t store; /* see store_of() */
    struct etag etag;
};
#define HEAD_NUMBERS 5u
#define HEAD_BYTES   (HEAD_NUMBERS * sizeof(uint64_t))

/* Tells the store that the key is in from others, 0: there is none. */
static uint64_t store_of(struct fs *fs, const char *key)
{
    uint8_t sum[OBJ_DIGEST_BYTES];
    uint64_t n;
    g_autofree char *identity = links_identity(fs, key);
    if (!identity)
        return 0;
    objstore_digest(identity, strlen(identity), sum);
    memcpy(&n, sum, sizeof(n));
    return GUINT64_FROM_LE(n);
}

static char *record_name(const char *key)
{
    return g_strconcat("delta/", key, NULL);
}

static char *parts_name(const char *key)
{
    return g_strconcat("delta-parts/", key, NULL);
}

/* False: not ours to read. The key is left alone. */
static bool decode(const void *value, size_t len, struct record *ret)
{
    uint64_t n[HEAD_NUMBERS];
    if (len < HEAD_BYTES || len - HEAD_BYTES > ETAG_MAX)
        return false;
    memcpy(n, value, sizeof(n));
    ret->stamp = GUINT64_FROM_LE(n[0]);
    ret->size = GUINT64_FROM_LE(n[1]);
    ret->part_bytes = GUINT64_FROM_LE(n[2]);
    ret->saved_bytes = GUINT64_FROM_LE(n[3]);
    ret->store = GUINT64_FROM_LE(n[4]);
    memcpy(ret->etag.s, (const char *)value + HEAD_BYTES, len - HEAD_BYTES);
    ret->etag.s[len - HEAD_BYTES] = '\0';
    return true;
}

static GByteArray *encode(const struct record *rec)
{
    const uint64_t n[HEAD_NUMBERS] = {GUINT64_TO_LE(rec->stamp), GUINT64_TO_LE(rec->size),
                                      GUINT64_TO_LE(rec->part_bytes), GUINT64_TO_LE(rec->saved_bytes),
                                      GUINT64_TO_LE(rec->store)};
    GByteArray *out = g_byte_array_new();
    g_byte_array_append(out, (const guint8 *)n, sizeof(n));
    g_byte_array_append(out, (const guint8 *)rec->etag.s, (guint)strlen(rec->etag.s));
    return out;
}

/* ---- reading ---- */

static void record_clear(void *p)
{
    g_free(((struct record *)p)->key);
}

static int on_record(void *ctx, const char *name, const void *value, size_t len)
{
    struct record rec = {0};
    if (decode(value, len, &rec)) {
        rec.key = g_strdup(name + strlen("delta/"));
        g_array_append_val((GArray *)ctx, rec);
    }
    return 0;
}

static GArray *all_records(struct fs *fs)
{
    GArray *all = g_array_new(FALSE, FALSE, sizeof(struct record));
    g_array_set_clear_func(all, record_clear);
    int r = meta_value_each(fs->meta, "delta/", on_record, all);
    if (r < 0)
        log_debug("delta", "earlier objects cannot be listed r=%s", err_name(r));
    return all;
}

/* rec.key is not set. -ENOENT also of one that is of another store than the key is in now. */
static int get_record(struct fs *fs, const char *key, struct record *ret)
{
    g_autofree char *name = record_name(key);
    g_autoptr(GBytes) value = NULL;
    int r = meta_value_get(fs->meta, name, &value);
    if (r < 0)
        return r;
    gsize len = 0;
    const void *data = g_bytes_get_data(value, &len);
    if (!decode(data, len, ret))
        return -EBADMSG;
    return ret->store != 0 && ret->store == store_of(fs, key) ? 0 : -ENOENT;
}

/* The parts that belong to the record; NULL: they do not. */
static GBytes *get_parts(struct fs *fs, const char *key, uint64_t stamp)
{
    g_autofree char *name = parts_name(key);
    g_autoptr(GBytes) value = NULL;
    uint64_t head = 0;
    gsize len = 0;
    if (meta_value_get(fs->meta, name, &value) < 0)
        return NULL;
    const void *data = g_bytes_get_data(value, &len);
    if (len < sizeof(head) || (len - sizeof(head)) % sizeof(struct cache_delta_part) != 0)
        return NULL;
    memcpy(&head, data, sizeof(head));
    return GUINT64_FROM_LE(head) == stamp ? g_bytes_new_from_bytes(value, sizeof(head), len - sizeof(head)) : NULL;
}

/* ---- writing ---- */

static void batch_put(struct meta_batch *b, const char *key, const struct record *rec, GBytes *parts)
{
    g_autofree char *name = record_name(key), *name2 = parts_name(key);
    g_autoptr(GByteArray) head = encode(rec), all = g_byte_array_new();
    uint64_t stamp = GUINT64_TO_LE(rec->stamp);
    gsize len = 0;
    const void *data = g_bytes_get_data(parts, &len);
    g_byte_array_append(all, (const guint8 *)&stamp, sizeof(stamp));
    g_byte_array_append(all, data, (guint)len);
    meta_value_put(b, name, head->data, head->len);
    meta_value_put(b, name2, all->data, all->len);
}

static void batch_del(struct meta_batch *b, const char *key)
{
    g_autofree char *name = record_name(key), *name2 = parts_name(key);
    meta_value_del(b, name);
    meta_value_del(b, name2);
}

static gint newest_first(gconstpointer a, gconstpointer b)
{
    const struct record *x = a, *y = b;
    return x->stamp > y->stamp ? -1 : x->stamp < y->stamp;
}

/* About what the record of its parts takes. */
static uint64_t bytes_of(const struct record *rec)
{
    return (rec->size / MAX(rec->part_bytes, 1) + 1) * sizeof(struct cache_delta_part);
}

/* Makes room for one more object, that of `key`. */
static void prune(struct fs *fs, struct meta_batch *b, const char *key, uint64_t bytes)
{
    g_autoptr(GArray) all = all_records(fs);
    unsigned n = 1;
    g_array_sort(all, newest_first);
    for (guint i = 0; i < all->len; i++) {
        const struct record *rec = &g_array_index(all, struct record, i);
        if (g_str_equal(rec->key, key))
            continue;
        bytes += bytes_of(rec);
        if (++n > DELTA_OBJECTS_MAX || bytes > DELTA_BYTES_MAX)
            batch_del(b, rec->key);
    }
}

static void commit(struct meta_batch *b, const char *key)
{
    int r = meta_commit(b, false);
    if (r < 0)
        log_debug("delta", "what an object shares with the next is not known key='%s' r=%s", key, err_name(r));
    meta_batch_free(b);
}

/* ---- for the cache ---- */

static void bases(void *ctx, const char *key, uint64_t part_bytes, GPtrArray *out)
{
    struct fs *fs = ctx;
    g_autoptr(GArray) all = all_records(fs);
    g_autofree struct delta_name *names = g_new0(struct delta_name, all->len + 1);
    unsigned chosen[BASES_MAX], n = 0;
    uint64_t store = store_of(fs, key);
    for (guint i = 0; i < all->len; i++) {
        const struct record *rec = &g_array_index(all, struct record, i);
        if (rec->part_bytes == part_bytes && rec->store == store)
            names[n++] = (struct delta_name){rec->key, rec->stamp};
    }
    n = delta_choose(key, names, n, chosen, BASES_MAX);
    for (unsigned i = 0; i < n; i++) {
        const struct delta_name *d = &names[chosen[i]];
        struct record rec = {0};
        GBytes *parts = get_record(fs, d->key, &rec) == 0 ? get_parts(fs, d->key, rec.stamp) : NULL;
        if (parts)
            g_ptr_array_add(out, cache_delta_base_new(d->key, &rec.etag, rec.size, rec.part_bytes, parts));
    }
    if (n > 0)
        log_debug("delta", "parts may be shared key='%s' objects=%u first='%s'", key, n, names[chosen[0]].key);
}

static void gone(void *ctx, const struct cache_delta_base *base)
{
    struct fs *fs = ctx;
    struct record rec = {0};
    if (get_record(fs, base->key, &rec) < 0 || !etag_equal(&rec.etag, &base->etag))
        return;
    struct meta_batch *b = meta_batch_new(fs->meta);
    batch_del(b, base->key);
    commit(b, base->key);
}

static void made(void *ctx, const struct cache_delta_base *object, uint64_t saved_bytes)
{
    struct fs *fs = ctx;
    struct record rec = {.stamp = meta_next_seq(fs->meta),
                         .size = object->size,
                         .part_bytes = object->part_bytes,
                         .saved_bytes = saved_bytes,
                         .store = store_of(fs, object->key),
                         .etag = object->etag};
    struct meta_batch *b = meta_batch_new(fs->meta);
    prune(fs, b, object->key, bytes_of(&rec));
    batch_put(b, object->key, &rec, object->parts);
    commit(b, object->key);
}

static const struct cache_delta_ops ops = {bases, gone, made};

void delta_start(struct fs *fs)
{
    if (fs->cfg->delta == SWITCH_ON && !fs->cfg->read_only)
        cache_set_delta(fs->cache, &ops, fs);
}

void delta_moved(struct fs *fs, const char *src, const struct etag *src_etag, const char *dst,
                 const struct etag *dst_etag)
{
    struct record rec = {0};
    if (get_record(fs, src, &rec) < 0 || !etag_equal(&rec.etag, src_etag))
        return;
    g_autoptr(GBytes) parts = get_parts(fs, src, rec.stamp);
    if (!parts)
        return;
    struct meta_batch *b = meta_batch_new(fs->meta);
    rec.stamp = meta_next_seq(fs->meta);
    rec.etag = *dst_etag;
    batch_del(b, src);
    batch_put(b, dst, &rec, parts);
    commit(b, dst);
}

uint64_t delta_saved_bytes(struct fs *fs, const char *key, const struct etag *etag)
{
    struct record rec = {0};
    return get_record(fs, key, &rec) == 0 && etag_equal(&rec.etag, etag) ? rec.saved_bytes : 0;
}
