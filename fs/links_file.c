/* A copy of the link records beside the database, DIR/links: without it, files of a link that are brought back when the database is lost would go to another bucket. */
#include "links_internal.h"

#include <stdlib.h>

#define FILE_NAME "links"

void links_save_copy(struct fs *fs)
{
    json_t *all = json_object();
    mutex_lock(&fs->links->mu);
    for (guint i = 0; i < fs->links->all->len; i++) {
        const struct link *l = fs->links->all->pdata[i];
        if (l->going) /* who is killed once it is gone can't take it out */
            continue;
        json_object_set_new(
            all, l->dir,
            json_pack("{s:s, s:s*, s:O*}", "source", l->source, "identity", l->identity, "options", l->options));
    }
    mutex_unlock(&fs->links->mu);
    char *text = json_dumps(all, JSON_INDENT(1) | JSON_SORT_KEYS);
    g_autofree char *path = g_build_filename(fs->cache_dir, FILE_NAME, NULL), *old = NULL;
    g_autoptr(GError) err = NULL;
    bool same = text && g_file_get_contents(path, &old, NULL, NULL) && g_str_equal(text, old);
    if (!same &&
        (!text || !g_file_set_contents_full(path, text, -1,
                                            G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600, &err)))
        log_warn("links", "the copy of the links could not be written: %s", err ? err->message : "a name is not UTF-8");
    free(text);
    json_decref(all);
}

int links_restore_copy(struct meta *m, const char *cache_dir)
{
    g_autofree char *path = g_build_filename(cache_dir, FILE_NAME, NULL), *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return 0;
    json_t *all = json_loads(text, 0, NULL), *o;
    const char *dir;
    struct meta_batch *b = meta_batch_new(m);
    json_object_foreach(all, dir, o)
    {
        g_autoptr(GString) name = g_string_new(NULL);
        char *record = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
        links_record_name(dir, name);
        if (record && *dir)
            meta_value_put(b, name->str, record, strlen(record));
        free(record);
    }
    int r = meta_commit(b, true);
    meta_batch_free(b);
    if (!all)
        log_err("links", "%s cannot be read: links have to be added again", path);
    json_decref(all);
    return r;
}
