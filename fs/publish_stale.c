/*
 * What stands at a key when a fetch finds another object than was recorded there, or none.
 *
 * It may be a newer version of ours whose record is still to come: then the fetch goes on with that. Else somebody replaced or removed it, and whoever opens the file
 * again is to find what is there now, though its directory was listed a moment ago: the name is looked at as if an event had told of it, by one HEAD, before the reader is told. The
 * inode goes on as it was for those who have it open; a name of another object gets another one (tree_apply.h). Runs in a thread of the cache, with nothing locked.
 *
 * Names of files that are open for writing are left as they are meanwhile: they are looked at the same way when the last writer is gone.
 */
#include "content.h"
#include "event_apply.h"
#include "links.h"
#include "publish_internal.h"
#include "tree.h"

/* Where the file of that content is to be looked at again: its path; NULL: it has no name any more, or other content, or nothing is looked at again there. Owned. */
static char *shown_at(struct fs *fs, uint64_t vid, uint64_t ino, bool *ret_shadow)
{
    INODE_REF in = NULL;
    struct link_policy policy;
    char *path = NULL;
    if (inode_get(fs, ino, &in) < 0)
        return NULL;
    mutex_lock(&in->mu);
    bool has_it = !in->gone && in->rec.vid == vid;
    *ret_shadow = in->rec.flags & INODE_SHADOW;
    mutex_unlock(&in->mu);
    links_policy_of(fs, in, &policy);
    return has_it && !policy.immutable && tree_path_of(fs, ino, &path) == 0 ? path : NULL;
}

/* By which name an object beside a directory is shown only a listing tells (shadow.h). */
static int look(struct fs *fs, uint64_t vid, uint64_t ino, const char *key)
{
    const struct etag unknown = {0};
    bool shadow = false;
    g_autofree char *path = shown_at(fs, vid, ino, &shadow);
    if (path && g_str_equal(path, key))
        return event_look(fs, key, &unknown, true);
    if (path && shadow)
        (void)event_doubt_dir(fs, path); /* being listed: who comes again finds out */
    return EVENT_NOTHING;
}

/* False: the daemon ends, and does not wait for it. */
static bool look_begin(struct fs *fs)
{
    mutex_lock(&fs->list_mu);
    bool may = !atomic_load(&fs->stopping); /* which is set before list_mu is taken */
    fs->n_stale_looks += may;
    mutex_unlock(&fs->list_mu);
    return may;
}

static void look_end(struct fs *fs)
{
    mutex_lock(&fs->list_mu);
    fs->n_stale_looks--;
    cond_broadcast(&fs->list_done);
    mutex_unlock(&fs->list_mu);
}

int publish_stale(void *ctx, uint64_t vid, uint64_t ino, const char *key, struct etag *ret_etag)
{
    struct fs *fs = ctx;
    int r = note_newer(fs, vid, ino, key, ret_etag);
    if (r != -ENOENT || !look_begin(fs))
        return r;
    int seen = look(fs, vid, ino, key);
    if (seen < 0)
        log_debug("publish", "a replaced object could not be looked at key='%s' r=%s", key, err_name(seen));
    look_end(fs);
    return r;
}

/* Each name of the file, unless it was written, when publishing finds out. */
static void look_at_names(struct inode *in)
{
    struct fs *fs = in->fs;
    const struct etag unknown = {0};
    g_autoptr(GPtrArray) names = NULL;
    int r = content_is_dirty(in) ? 0 : meta_link_list(fs->meta, in->ino, &names);
    for (unsigned i = 0; r == 0 && names && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        mutex_lock(&fs->ns);
        g_autofree char *key = tree_key(fs, d->parent, d->name, false);
        mutex_unlock(&fs->ns);
        bool aside = d->parent == META_ASIDE_INO;
        if (!aside && event_look(fs, key, &unknown, true) < 0 && !event_doubt_dir(fs, key))
            log_debug("publish", "a name is looked at when its time has ended key='%s'", key);
    }
}

static void look_again(void *arg)
{
    INODE_REF in = arg;
    if (!look_begin(in->fs))
        return;
    look_at_names(in);
    look_end(in->fs);
}

void publish_look_again(struct inode *in)
{
    mutex_lock(&in->mu);
    bool look = in->passed_over && in->n_writers == 0;
    in->passed_over &= !look;
    mutex_unlock(&in->mu);
    if (look && !atomic_load(&in->fs->stopping) && !workq_push(in->fs->head_q, false, look_again, inode_ref(in)))
        inode_put(in);
}

void publish_stale_wait(struct fs *fs)
{
    mutex_lock(&fs->list_mu);
    while (fs->n_stale_looks > 0)
        cond_wait(&fs->list_done, &fs->list_mu);
    mutex_unlock(&fs->list_mu);
}
