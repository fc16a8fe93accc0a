/* See replay.h. The table is made before the first request and not changed after. */
#include "replay.h"

#include "reap.h"
#include "request.h"

void replay_init(struct fs *fs)
{
    fs->replay.done = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    fs->replay.made = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
}

void replay_fini(struct fs *fs)
{
    g_hash_table_unref(fs->replay.done);
    g_hash_table_unref(fs->replay.made);
}

static uint64_t generation_of(const struct fs *fs)
{
    return fs->session->head->generation;
}

struct collect {
    struct fs *fs;
    struct meta_batch *b; /* NULL: they are to be known, else to be removed */
    uint64_t from;        /* generation that stays, and those after it */
    unsigned n;
};

static int on_reply(void *ctx, const struct meta_reply *reply)
{
    struct collect *c = ctx;
    if (reply->generation >= c->from)
        return 0;
    struct replay *known = &c->fs->replay;
    c->n++;
    if (c->b) {
        meta_reply_del(c->b, reply->generation, reply->place);
        return 0;
    }
    g_hash_table_replace(known->done, g_memdup2(&reply->unique, sizeof(reply->unique)),
                         g_memdup2(&reply->ino, sizeof(reply->ino)));
    if (reply->ino)
        g_hash_table_add(known->made, g_memdup2(&reply->ino, sizeof(reply->ino)));
    return 0;
}

static int forget(struct fs *fs, uint64_t from)
{
    struct collect c = {fs, meta_batch_new(fs->meta), from, 0};
    int r = meta_reply_each(fs->meta, on_reply, &c);
    if (r == 0 && c.n > 0)
        r = meta_commit(c.b, false);
    meta_batch_free(c.b);
    return r;
}

int fs_replay_open(struct fs *fs)
{
    if (!session_is_takeover(fs->session)) {
        atomic_store(&fs->replay.forgotten, true);
        return forget(fs, UINT64_MAX); /* the kernel numbers the requests of each mount anew */
    }
    struct collect c = {.fs = fs, .from = UINT64_MAX};
    return meta_reply_each(fs->meta, on_reply, &c);
}

void replay_note(struct fs *fs, struct meta_batch *b, uint64_t ino)
{
    struct meta_reply reply = {generation_of(fs), request_place(), request_unique(), ino};
    if (reply.unique)
        meta_reply_put(b, &reply);
}

bool replay_find(struct fs *fs, uint64_t *ret_ino)
{
    uint64_t unique = request_unique();
    const uint64_t *ino = request_is_resent() ? g_hash_table_lookup(fs->replay.done, &unique) : NULL;
    if (ino)
        *ret_ino = *ino;
    return ino;
}

bool replay_made(struct fs *fs, uint64_t ino)
{
    return !atomic_load(&fs->replay.forgotten) && g_hash_table_contains(fs->replay.made, &ino);
}

void replay_expire(struct fs *fs)
{
    if (atomic_load(&fs->replay.forgotten) || !atomic_load(&fs->replay.caught_up))
        return;
    int r = forget(fs, generation_of(fs));
    log_debug("replay", "all that was sent again is answered records=%u r=%s", g_hash_table_size(fs->replay.done),
              err_name(r)); /* what could not be removed stays until the next start */
    atomic_store(&fs->replay.forgotten, true);
    reap_awaited(fs);
}
