/* Finding out what the store can do, once, before the first change. */
#include "base/patience.h"
#include "links.h"
#include "publish_internal.h"

static int keep_key(void *ctx, const struct obj_entry *e)
{
    if (!e->odd)
        g_ptr_array_add(ctx, g_strndup(e->name, e->name_len));
    return 0;
}

static int remove_probes(struct fs *fs, const char *prefix)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    struct obj_list_req req = {.prefix = prefix};
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    int r = objstore_list(fs->store, &req, keep_key, names, NULL);
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        g_autofree char *key = g_strconcat(prefix, names->pdata[i], NULL);
        r = objstore_delete(fs->store, key, &any);
        r = r == -ENOENT ? 0 : r;
    }
    return r == -EACCES ? 0 : r;
}

/* The store's conditions are probed before the first change, so that publishing can rely on them. dir: of the link, with its '/', or "". */
static int probe(struct fs *fs, const char *dir)
{
    uint32_t caps = 0;
    g_autofree char *prefix = g_strdup_printf("%s" PROBE_DIR "/%s/", dir, meta_uuid(fs->meta));
    int r = remove_probes(fs, prefix); /* of a run that was killed in the middle of it */
    if (r == 0)
        r = objstore_probe(fs->store, prefix, &caps);
    if (r < 0 && r != -EACCES)
        return r;
    links_set_probed(fs, prefix, caps);
    return 0;
}

int publish_probe(struct fs *fs, const char *key)
{
    struct publisher *p = fs->pub;
    if (links_probed(fs, key))
        return 0;
    g_autofree char *dir = g_strndup(key, links_prefix_len(fs, key));
    mutex_lock(&p->mu);
    int r = 0;
    while (r == 0 && g_hash_table_contains(p->probing, dir))
        r = patience_wait(&p->done, &p->mu, UINT64_MAX);
    bool known = links_probed(fs, key);
    if (r == 0 && !known)
        g_hash_table_add(p->probing, g_strdup(dir));
    mutex_unlock(&p->mu);
    if (known || r < 0)
        return known ? 0 : r;
    r = probe(fs, dir);
    mutex_lock(&p->mu);
    g_hash_table_remove(p->probing, dir);
    cond_broadcast(&p->done);
    mutex_unlock(&p->mu);
    return r;
}
