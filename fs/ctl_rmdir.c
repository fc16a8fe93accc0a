/* `sluice rmdir`: what rmdir() does, and by --force also where bytes of the directory's own marker are in the way. */
#include "ctl_verbs.h"
#include "links.h"
#include "tree.h"

static const char *why(int r, bool force)
{
    switch (r) {
    case -ENOTEMPTY:
        return force ? "it is not empty, or the store has keys below that cannot be shown as names (`sluice info` "
                       "tells them)"
                     : "it is not empty, or the store has keys below that cannot be shown as names (`sluice info` "
                       "tells them); where that is nothing but its own marker, --force deletes it with its bytes";
    case -EBUSY:
        return "it is the root of the mount or of a link, or it was renamed and is on its way: `sluice wait` first";
    case -EROFS:
        return "nothing may be removed there: the mount, or the link that it is in, is read-only";
    default:
        return verb_err_text(r);
    }
}

static int remove_dir(struct fs *fs, const char *path, bool force)
{
    INODE_REF dir = NULL;
    const char *name = NULL;
    int r = *path ? tree_resolve_parent(fs, path, &dir, &name) : -EBUSY;
    if (r == 0)
        r = links_may_change(fs, dir->ino);
    if (r == 0)
        r = force ? tree_rmdir_force(fs, dir->ino, name) : tree_rmdir(fs, dir->ino, name);
    if (r == 0)
        notify_entry(fs, dir->ino, name);
    return r;
}

int verb_rmdir(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    bool force = json_is_true(json_object_get(req, "force"));
    int code = paths ? 0 : 1;
    for (unsigned i = 0; paths && paths[i] && !ctl_gone(client); i++) {
        int r = remove_dir(fs, paths[i], force);
        json_t *o = r == 0
                        ? json_pack("{s:s}", "event", "removed")
                        : json_pack("{s:s, s:s, s:s}", "event", "error", "error", why(r, force), "errno", err_name(r));
        json_object_set_new(o, "path", verb_string(paths[i]));
        (void)ctl_emit(client, o); /* done whether or not somebody reads this */
        code = r < 0 ? 1 : code;
    }
    notify_settle(fs);
    if (code && paths)
        ctl_fail(client, "not everything could be removed");
    return code;
}
