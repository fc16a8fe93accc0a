/* See intent.h. */
#include "intent.h"

#include "states.h"
#include "tree.h"

#include <jansson.h>

char *intent_text(const struct meta_inode *rec, const char *path, const struct meta_dentry *d, bool partial)
{
    g_autofree char *quoted = g_uri_escape_string(path, "/", FALSE);
    struct etag etag = {0};
    (void)tree_object_at_path(d, &etag);
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:s, s:I, s:s, s:I, s:s, s:b, s:b}", "path", quoted, "mode",
                  (int)rec->mode, "uid", (int)rec->uid, "gid", (int)rec->gid, "mtime_ns", (json_int_t)rec->mtime_ns,
                  "size", (json_int_t)rec->size, "gen", (json_int_t)rec->gen, "state", content_state_name(rec->content),
                  "seq", (json_int_t)d->op_seq, "base_etag", etag.s, "ino", (json_int_t)rec->ino, "boot", rec->boot_id,
                  "partial", partial, "synced", (rec->flags & INODE_DATA_SYNCED) != 0);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}
