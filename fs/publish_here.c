/*
 * See publish_here.h. It is needed because a copy may not wait for its turn (untangle), or because it cannot be made.
 *
 * A copy whose source was removed elsewhere is never made, however often it is tried, nor is one of an archived object before somebody restores that; and what was closed later waits for
 * it. If all of the file is here it becomes an upload, at the same place in the order. Else it is parked and named: it can be skipped, or tried again once the object can be read.
 */
#include "publish_here.h"

#include "event_apply.h"

static void set_leaving(struct op *o, bool leaving)
{
    mutex_lock(&o->p->mu);
    o->leaving = leaving;
    mutex_unlock(&o->p->mu);
}

int here_send(struct op *o, const struct meta_dentry *d, struct inode *in)
{
    bool file = S_ISREG(o->type);
    set_leaving(o, true);
    int r = file ? content_detach(in, true) : 0; /* who writes it may not close it for days */
    bool detached = file && r == 0;
    if (r == 0)
        r = pubop_let_go(o, d);
    if (detached)
        content_end_detach(in);
    set_leaving(o, false);
    return r;
}

/* -ENOENT: it is. A name that still shows the object goes as well, or what is here would be sent there, too. */
static int look_for(struct fs *fs, const char *src)
{
    struct etag none = {0};
    struct obj_info info = {0};
    int r = objstore_head(fs->store, src, &info);
    obj_info_clear(&info);
    if (r != -ENOENT)
        return r;
    r = event_look(fs, src, &none, false);
    return r < 0 ? r : -ENOENT;
}

int here_copy_failed(struct op *o, const struct meta_dentry *d, struct inode *in, const char *src, int err)
{
    bool gone = err == -ENOENT; /* the upload, maybe, that would have made a large one */
    int r = gone ? look_for(o->p->fs, src) : -ENOENT;
    if (r != -ENOENT)
        return r < 0 ? r : err;
    r = here_send(o, d, in);
    if (r == 0)
        log_info("publish", "cannot be copied in the store, it is sent from here key='%s' from='%s' r=%s", o->key, src,
                 err_name(err));
    if (r != -ENOENT && r != -ESTALE && r != -EFBIG)
        return r;
    if (gone)
        log_err("publish",
                "the object that it was to be copied from was removed, and not all of it is here key='%s' from='%s'",
                o->key, src);
    return gone ? -ENODATA : err;
}
