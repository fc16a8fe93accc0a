/* See content_write_intent() in content.h: what stands beside unpublished bytes says where they belong, for when the database is lost. */
#include "content.h"
#include "intent.h"
#include "tree.h"

#include <stdlib.h>
#include <sys/stat.h>

/* Are bytes of it in the store only, or about to be: an empty file that got a source for a copy? */
static bool is_partial(struct inode *in, struct cfile *cf)
{
    mutex_lock(&in->mu);
    bool based = in->rec.base_limit > 0;
    mutex_unlock(&in->mu);
    return !cache_file_complete(cf) || (based && cache_file_has_source(cf) && cache_file_size(cf) == 0);
}

/* The path that an intent names; NULL: no name any more, or all of it is upstream. */
static char *intent_path(struct inode *in, struct meta_dentry *ret)
{
    struct fs *fs = in->fs;
    char *path = NULL;
    if (!content_is_dirty(in))
        return NULL;
    mutex_lock(&fs->ns);
    if (meta_link_first(fs->meta, in->ino, ret) == 0)
        path = tree_key(fs, ret->parent, ret->name, false);
    mutex_unlock(&fs->ns);
    return path;
}

void content_write_intent(struct inode *in)
{
    struct meta_dentry d = {0};
    struct cfile *cf = NULL;
    mutex_lock(&in->mu);
    in->intent_late = in->io.kernel_writes && in->io.n_writers > 0 && in->rec.nlink > 0;
    if (in->cf && !in->intent_late)
        cf = cache_file_ref(in->cf);
    mutex_unlock(&in->mu);
    if (!cf)
        return;
    g_autofree char *path = intent_path(in, &d);
    bool partial = is_partial(in, cf);
    mutex_lock(&in->mu);
    char *text = path ? intent_text(&in->rec, path, &d, partial) : NULL;
    mutex_unlock(&in->mu);
    int r = path && !text ? -ENOMEM : cache_file_set_intent(cf, text);
    mutex_lock(&in->mu);
    bool removed = in->rec.nlink == 0;
    mutex_unlock(&in->mu);
    if (r == 0 && removed && text) /* between the two looks */
        r = cache_file_set_intent(cf, NULL);
    if (r < 0)
        log_warn(
            "content",
            "intent could not be written beside the data: what a lost database leaves of this file is wrong path='%s'",
            path ? path : "");
    free(text);
    meta_dentry_clear(&d);
    cache_file_unref(cf);
}
