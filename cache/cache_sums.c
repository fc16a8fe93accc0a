/*
 * Value "seal/VID": le64 version, then for each run of at most 16 chunks, ascending: le32 first chunk, le32 bytes, le32 CRC32C. 12 bytes for 1 MiB.
 *
 * Of a file with a source only the chunks that were changed here have sums: the others come and go, and have those of their fetch.
 */
#include "cache_sums.h"

#include "base/cleanup.h"
#include "base/crc32c.h"
#include "cache_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RUN_CHUNKS 16u
#define RUN_BYTES  (RUN_CHUNKS * META_CHUNK_BYTES)

struct sum {
    uint32_t chunk, len, crc; /* little endian where stored */
};

static void sums_name(uint64_t vid, char ret[32])
{
    (void)snprintf(ret, 32, "seal/%016" PRIx64, vid);
}

/* ---- made ---- */

/* The next run of chunks of ours from `from` on, within one block: its end; *ret_first == end: none any more. */
static uint64_t next_run(struct cfile *cf, uint64_t from, uint64_t *ret_first)
{
    mutex_lock(&cf->mu);
    uint64_t end = chunks_for(cf->size), first = from;
    bool all = !cf->src_key || cf->dirty_unknown;
    if (!all)
        first = chunkset_next_set(&cf->dirty_chunks, MIN(from, end), end);
    uint64_t stop = MIN((first / RUN_CHUNKS + 1) * RUN_CHUNKS, end);
    if (!all && first < stop)
        stop = chunkset_next_unset(&cf->dirty_chunks, first, stop);
    mutex_unlock(&cf->mu);
    *ret_first = MIN(first, end);
    return MAX(stop, *ret_first);
}

static uint64_t stamp_of(struct cfile *cf, bool *ret_quiet)
{
    mutex_lock(&cf->mu);
    uint64_t stamp = cf->stamp;
    *ret_quiet = cf->changing == 0 && cf->pass != CACHE_PASS_WRITE;
    mutex_unlock(&cf->mu);
    return stamp;
}

static int add_runs(struct cfile *cf, GByteArray *out, void *buf, bool (*go)(void *ctx), void *ctx)
{
    uint64_t first, end = 0;
    for (;;) {
        end = next_run(cf, end, &first);
        if (first == end)
            return 0;
        if (!go(ctx))
            return -ECANCELED;
        ssize_t n = cfile_read_local(cf, buf, (end - first) * META_CHUNK_BYTES, first * META_CHUNK_BYTES);
        if (n < 0)
            return (int)n;
        struct sum s = {GUINT32_TO_LE((uint32_t)first), GUINT32_TO_LE((uint32_t)n),
                        GUINT32_TO_LE(crc32c(0, buf, (size_t)n))};
        g_byte_array_append(out, (const guint8 *)&s, sizeof(s));
    }
}

int cache_sums_read(struct cfile *cf, uint64_t version, bool (*go)(void *ctx), void *ctx, GBytes **ret)
{
    bool quiet, still;
    uint64_t stamp = stamp_of(cf, &quiet), head = GUINT64_TO_LE(version);
    GByteArray *out = g_byte_array_new();
    g_autofree void *buf = g_malloc(RUN_BYTES);
    g_byte_array_append(out, (const guint8 *)&head, sizeof(head));
    int r = quiet ? add_runs(cf, out, buf, go, ctx) : -EAGAIN;
    if (r == 0 && (stamp_of(cf, &still) != stamp || !still))
        r = -EAGAIN;
    GBytes *sums = g_byte_array_free_to_bytes(out);
    if (r == 0)
        *ret = g_steal_pointer(&sums);
    g_clear_pointer(&sums, g_bytes_unref);
    return r;
}

void cache_sums_put(struct meta_batch *b, uint64_t vid, GBytes *sums)
{
    char name[32];
    gsize len;
    const void *data = g_bytes_get_data(sums, &len);
    sums_name(vid, name);
    meta_value_put(b, name, data, len);
}

void cache_sums_del(struct meta_batch *b, uint64_t vid)
{
    char name[32];
    sums_name(vid, name);
    meta_value_del(b, name);
}

/* ---- compared ---- */

GBytes *cache_sums_load(struct meta *m, uint64_t vid, uint64_t version)
{
    char name[32];
    GBytes *value = NULL;
    uint64_t head;
    gsize len;
    sums_name(vid, name);
    if (meta_value_get(m, name, &value) < 0)
        return NULL;
    const void *data = g_bytes_get_data(value, &len);
    bool fits = len >= sizeof(head) && (len - sizeof(head)) % sizeof(struct sum) == 0;
    if (fits)
        memcpy(&head, data, sizeof(head));
    if (fits && GUINT64_FROM_LE(head) == version)
        return value;
    g_bytes_unref(value);
    return NULL;
}

static size_t n_sums(GBytes *sums)
{
    return (g_bytes_get_size(sums) - sizeof(uint64_t)) / sizeof(struct sum);
}

static struct sum sum_at(GBytes *sums, size_t i)
{
    struct sum s;
    const uint8_t *data = g_bytes_get_data(sums, NULL);
    memcpy(&s, data + sizeof(uint64_t) + i * sizeof(s), sizeof(s));
    return (struct sum){GUINT32_FROM_LE(s.chunk), GUINT32_FROM_LE(s.len), GUINT32_FROM_LE(s.crc)};
}

/* The first one at or behind off. */
static size_t first_from(GBytes *sums, uint64_t off)
{
    size_t lo = 0, hi = n_sums(sums);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((uint64_t)sum_at(sums, mid).chunk * META_CHUNK_BYTES < off)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int cache_sums_check(GBytes *sums, const void *buf, uint64_t off, uint64_t len, uint64_t *ret_off)
{
    for (size_t i = first_from(sums, off); i < n_sums(sums); i++) {
        struct sum s = sum_at(sums, i);
        uint64_t at = (uint64_t)s.chunk * META_CHUNK_BYTES - off;
        if (at >= len)
            break;
        if (s.len > len - at) /* goes on in the next part: a boundary that is no multiple of a run */
            continue;
        if (crc32c(0, (const uint8_t *)buf + at, s.len) != s.crc) {
            *ret_off = off + at;
            return -EBADMSG;
        }
    }
    return 0;
}

int cache_sums_check_file(struct meta *m, const char *dir, uint64_t vid, uint64_t version, uint64_t *ret_off)
{
    char data[32];
    g_autoptr(GBytes) sums = cache_sums_load(m, vid, version);
    if (!sums)
        return 0;
    cache_data_path(vid, data);
    g_autofree char *path = g_build_filename(dir, data, NULL);
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    g_autofree void *buf = g_malloc(RUN_BYTES);
    if (fd < 0)
        return fd == -EBADMSG ? -EIO : fd; /* the file system's own */
    for (size_t i = 0; i < n_sums(sums); i++) {
        struct sum s = sum_at(sums, i);
        uint64_t off = (uint64_t)s.chunk * META_CHUNK_BYTES;
        ssize_t n = RET_ERRNO(pread(fd, buf, MIN(s.len, RUN_BYTES), (off_t)off));
        if (n < 0)
            return n == -EBADMSG ? -EIO : (int)n;
        if ((uint64_t)n != s.len || crc32c(0, buf, s.len) != s.crc) {
            *ret_off = off;
            return -EBADMSG;
        }
    }
    return 1;
}
