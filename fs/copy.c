/*
 * See copy.h. The bytes become parts of the destination's upload at once, bound to the source's etag, so that after the call nothing done to
 * the source by anybody loses them. Until it is published the destination reads its absent bytes from the source: the journal keeps our own deletes and
 * overwrites of that object back for so long (publish.h).
 *
 * Whatever does not work is no error: what was copied so far stays, the rest goes through the cache.
 */
#include "copy.h"

#include "content.h"
#include "links.h"
#include "publish.h"

#define STEP_BYTES (1ull << 30) /* most that one call waits for */
#define GUESS_NS   (200 * NS_PER_MS)
#define WARM_BYTES (32ull << 20) /* up to this a file that is here is copied here */

/* The object that is all of the file's content; *ret borrows the key returned, which is the caller's. NULL: there is none. */
static char *whole_object(struct inode *in, struct cache_source *ret)
{
    char *key = NULL;
    mutex_lock(&in->mu);
    const struct meta_inode *rec = &in->rec;
    bool whole = rec->content == CONTENT_CLEAN && !in->gone && rec->nlink > 0 && rec->base_key &&
                 etag_is_set(&rec->base_etag) && rec->base_limit == rec->size;
    if (whole) {
        key = g_strdup(rec->base_key);
        *ret = (struct cache_source){key, rec->base_etag, rec->size};
    }
    mutex_unlock(&in->mu);
    return key;
}

static bool worth_it(struct inode *from, uint64_t size)
{
    const struct fs *fs = from->fs;
    return size > 2 * fs->cfg->part_size && !(size <= WARM_BYTES && cache_file_complete(from->cf));
}

/* Nothing was copied yet: the file is an ordinary empty one again. */
static void give_up(struct inode *to)
{
    struct cache_source none = {0};
    int r = cache_file_set_source(to->cf, &none);
    if (r == 0)
        r = content_set_base(to, &none);
    if (r < 0) /* it has no absent bytes, and loses the base with its close */
        log_debug("copy", "a copy could not be taken back ino=%" G_GUINT64_FORMAT " r=%s", to->ino, err_name(r));
    content_write_intent(to);
    content_begin_stream(to);
}

/* The empty file gets the source; our own changes of that object wait from here on. */
static int begin(struct inode *from, struct inode *to, const struct cache_source *src)
{
    struct fs *fs = to->fs;
    struct upload_plan plan = {0};
    if (!content_plan_upload(to, &plan))
        return -EOPNOTSUPP;
    int r = content_set_base(to, src);
    if (r == 0) {
        struct cache_source now = {0};
        g_autofree char *key = whole_object(from, &now);
        bool same = key && g_str_equal(key, src->key) && etag_equal(&now.etag, &src->etag);
        r = !same || publish_key_busy(fs->pub, src->key) ? -EBUSY : cache_copy_begin(to->cf, src, plan.key, &plan.meta);
        if (r < 0)
            give_up(to);
        else
            content_write_intent(to); /* before it grows by bytes that are not here */
    }
    g_free(plan.key);
    return r;
}

static int64_t copy(struct inode *from, struct inode *to, const struct cache_source *src, uint64_t off, uint64_t len)
{
    struct fs *fs = to->fs;
    len = MIN(len, MIN(STEP_BYTES, src->limit - off));
    int64_t r = publish_probe(fs, src->key);
    if (r < 0 || !(objstore_caps_of(fs->store, src->key) & CAP_PART_COPY))
        return 0;
    bool first = off == 0;
    if (first)
        r = begin(from, to, src);
    if (r == 0)
        r = cache_copy_extend(to->cf, off, len, off + len == src->limit);
    else
        first = false;
    if (r <= 0 && first) {
        cache_stream_abort(to->cf);
        give_up(to);
    }
    return MAX(r, 0);
}

int64_t copy_in_store(struct inode *from, struct inode *to, uint64_t off, uint64_t len)
{
    struct cache_source src = {0};
    g_autofree char *key = from == to || len == 0 ? NULL : whole_object(from, &src);
    if (!key)
        return 0;
    mutex_lock(&to->mu);
    bool passed = to->io.mode == IO_PASSTHROUGH || to->io.kernel_writes;
    mutex_unlock(&to->mu);
    bool same = links_point_of(from->fs, from->ino) == links_point_of(from->fs, to->ino);
    bool possible = same && !passed && off < src.limit && worth_it(from, src.limit) &&
                    (off == 0 ? cache_file_size(to->cf) == 0 : cache_copy_continues(to->cf, &src, off));
    return possible ? copy(from, to, &src, off, len) : 0;
}

void copy_note_open(struct inode *from, int tid)
{
    struct fs *fs = from->fs;
    struct cache_source src = {0};
    g_autofree char *key = whole_object(from, &src);
    uint64_t now = key && worth_it(from, src.limit) ? clock_mono_ns() : 0;
    mutex_lock(&fs->handle_mu);
    fs->lately_opened[(unsigned)tid % COPY_GUESSES] = (struct lately_opened){tid, now};
    mutex_unlock(&fs->handle_mu);
}

bool copy_is_likely(struct fs *fs, int tid)
{
    mutex_lock(&fs->handle_mu);
    struct lately_opened l = fs->lately_opened[(unsigned)tid % COPY_GUESSES];
    mutex_unlock(&fs->handle_mu);
    return l.at_ns && l.tid == tid && clock_mono_ns() - l.at_ns < GUESS_NS;
}
