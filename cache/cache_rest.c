/*
 * Cache files that rest: the last reference of a whole, clean file is gone, and what is known of it stays in memory, without a descriptor. Who opens it for the kernel, which has the
 * local file already (its backing id), needs neither disk nor database: cache_file_reopen(). Anybody else who wants the vid (to open it otherwise, to drop, pin, move or sweep it)
 * claims it, and that ends the rest: table_claim().
 *
 * A resting file is what cfile_free() would have freed, no more: its entry is not open, so it may be dropped at any time; nothing of it is unsaved, and the next open of it finds in the
 * database what is in memory. cfile_rests_locked() says which files those are, and is asserted when one is woken.
 *
 * At most RESTING_MAX rest, those that were closed first go first. Without descriptors, because there may be more of them than a process may have.
 */
#include "cache_file.h"
#include "cache_space.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define RESTING_MAX 65536u
#define WORDS_MAX   16u /* of presence: larger files cost little to open beside what is read of them */

void rest_init(struct cache *c)
{
    c->table.resting = g_hash_table_new(g_int64_hash, g_int64_equal);
    g_queue_init(&c->table.rest_order);
}

void rest_fini(struct cache *c)
{
    struct cache_table *t = &c->table;
    while (t->rest_order.head)
        cfile_free(rest_take_locked(c, ((struct cfile *)t->rest_order.head->data)->vid));
    g_hash_table_unref(t->resting);
}

struct cfile *rest_take_locked(struct cache *c, uint64_t vid)
{
    struct cfile *cf = g_hash_table_lookup(c->table.resting, &vid);
    if (!cf)
        return NULL;
    g_hash_table_remove(c->table.resting, &vid);
    g_queue_unlink(&c->table.rest_order, &cf->rest);
    return cf;
}

/* Of a file without references. */
static bool cfile_rests_locked(const struct cfile *cf)
{
    return cf->src_key && !cf->in_doubt && cfile_complete_locked(cf) && !cf->dirty && !cf->dirty_unknown &&
           !cf->dirty_chunks.n_set && !cf->busy.n_set && cf->present.n_words <= WORDS_MAX &&
           cf->pass == CACHE_PASS_OFF && cf->wfd < 0 && !cf->ios && !cf->fetches.head && !cf->upload && !cf->resizing &&
           !cf->saving && !cf->unsaved.n_set && !cf->unsaved_crcs->len && !cf->limit_unsaved && !cf->record_unsaved;
}

bool rest_again_locked(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    bool rests =
        cf->as_closed && cf->fd < 0 && !cf->forgotten && cfile_rests_locked(cf) && space_entry_rest(cf->c, cf->entry);
    mutex_unlock(&cf->mu);
    return rests;
}

bool rest_prepare(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    int fd = cf->fd, wfd = cf->wfd;
    cf->wfd = -1;
    cf->as_closed = cfile_rests_locked(cf) && space_entry_rest(cf->c, cf->entry);
    bool rests = cf->as_closed;
    if (rests)
        __atomic_store_n(&cf->fd, -1, __ATOMIC_RELEASE);
    mutex_unlock(&cf->mu);
    if (rests && fd >= 0)
        (void)close(fd);
    if (wfd >= 0)
        (void)close(wfd);
    return rests;
}

struct cfile *rest_enter_locked(struct cfile *cf)
{
    struct cache_table *t = &cf->c->table;
    struct cfile *oldest = t->rest_order.length < RESTING_MAX ? NULL : t->rest_order.head->data;
    if (oldest)
        (void)rest_take_locked(cf->c, oldest->vid);
    cf->rest.data = cf;
    g_hash_table_insert(t->resting, &cf->vid, cf);
    g_queue_push_tail_link(&t->rest_order, &cf->rest);
    return oldest;
}

/* ---- files that the kernel keeps ---- */

/* If it is what a caller that knows this of its file would open. */
static bool wake(struct cfile *cf, uint64_t size, const struct cache_source *src)
{
    mutex_lock(&cf->mu);
    assert(cfile_rests_locked(cf) && cf->fd < 0 && cf->refs == 0);
    bool same = cf->size == size && cf->limit == MIN(src->limit, size) && etag_equal(&cf->src_etag, &src->etag) &&
                strcmp(cf->src_key, src->key) == 0;
    bool wakes = same && space_entry_wake(cf->c, cf->entry);
    if (wakes)
        cf->pass = CACHE_PASS_READ;
    mutex_unlock(&cf->mu);
    return wakes;
}

struct cfile *cache_file_reopen(struct cache *c, uint64_t vid, uint64_t size, const struct cache_source *src)
{
    struct cache_table *t = &c->table;
    mutex_lock(&t->mu);
    struct cfile *cf = g_hash_table_lookup(t->resting, &vid);
    if (cf && !wake(cf, size, src))
        cf = NULL;
    if (cf) {
        (void)rest_take_locked(c, vid);
        cf->refs = 1;
        g_hash_table_insert(t->files, &cf->vid, cf);
    }
    mutex_unlock(&t->mu);
    return cf;
}

static bool take_back_locked(struct cfile *cf)
{
    mutex_lock(&cf->mu);
    bool given = cf->pass == CACHE_PASS_READ;
    if (given)
        cf->pass = CACHE_PASS_OFF;
    mutex_unlock(&cf->mu);
    bool rests = given && rest_again_locked(cf);
    if (given && !rests) {
        mutex_lock(&cf->mu);
        cf->pass = CACHE_PASS_READ;
        mutex_unlock(&cf->mu);
    }
    return rests;
}

bool cache_file_rest(struct cfile *cf)
{
    struct cache_table *t = &cf->c->table;
    struct cfile *old = NULL;
    mutex_lock(&t->mu);
    bool rests = __atomic_load_n(&cf->refs, __ATOMIC_ACQUIRE) == 1 && take_back_locked(cf);
    if (rests) {
        cf->refs = 0;
        g_hash_table_remove(t->files, &cf->vid);
        old = rest_enter_locked(cf);
    }
    mutex_unlock(&t->mu);
    cfile_free(old);
    return rests;
}

/* ---- descriptors ---- */

static int open_fd(struct cfile *cf)
{
    struct cache_tier *t = cfile_tier(cf);
    int fd = tier_data_open(t, cf->vid, O_RDONLY);
    if (fd < 0)
        return fd;
    mutex_lock(&cf->mu);
    bool moved = cfile_tier(cf) != t, late = cf->fd >= 0; /* somebody was quicker */
    if (!moved && !late)
        __atomic_store_n(&cf->fd, fd, __ATOMIC_RELEASE);
    mutex_unlock(&cf->mu);
    if (moved || late)
        (void)close(fd);
    return moved ? -EAGAIN : 0;
}

int cfile_fd(struct cfile *cf)
{
    int fd, r = 0;
    while (r >= 0 && (fd = __atomic_load_n(&cf->fd, __ATOMIC_ACQUIRE)) < 0) {
        r = open_fd(cf);
        r = r == -EAGAIN ? 0 : r;
    }
    return r < 0 ? r : fd;
}
