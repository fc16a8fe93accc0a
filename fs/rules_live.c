/*
 * Rules of a running mount: what applies to a path or an inode, and what is warmed when it appears.
 *
 * What applies to an inode is remembered in it as of fs->renames, which grows with every rename: so each is looked up once between two of them.
 */
#include "fs.h"
#include "jobs.h"
#include "pin.h"
#include "rules.h"
#include "tree.h"

#define CREATED_MAX 65536u /* that wait: whoever notes them may hold up for long who warms them */

/*
 * The one place where layers meet: options of the mount, then (struct rules.base, made with rule_set_apply()) whatever stands between, then the rule. A link's own
 * defaults would be another base: one struct rules for each link, chosen here by path.
 */
static const struct rules *layers_of(struct fs *fs, const char *path)
{
    return fs->rules;
}

const struct rule_set *rules_for(struct fs *fs, const char *path)
{
    return rules_match(layers_of(fs, path), path);
}

const struct rule_set *rules_of(struct inode *in)
{
    struct fs *fs = in->fs;
    const struct rules *all = fs->rules;
    if (all->all->len == 0)
        return &all->base;
    uint64_t now = atomic_load(&fs->renames) + 1;
    mutex_lock(&in->mu);
    const struct rule_set *set = in->rules_as_of == now ? in->rules : NULL;
    bool dir = S_ISDIR(in->rec.mode);
    mutex_unlock(&in->mu);
    if (set)
        return set;
    g_autofree char *path = NULL;
    if (tree_path_of(fs, in->ino, &path) < 0)
        return &all->base; /* without a name */
    g_autofree char *at = g_strconcat(path, dir && *path ? "/" : NULL, NULL);
    set = rules_for(fs, at);
    mutex_lock(&in->mu);
    in->rules = set;
    in->rules_as_of = now;
    mutex_unlock(&in->mu);
    return set;
}

void rules_note_rename(struct fs *fs)
{
    atomic_fetch_add(&fs->renames, 1);
}

json_t *rules_json(const struct rule_set *set)
{
    json_t *o = json_object();
    const char *name;
    char *text;
    for (unsigned i = 0; rule_set_at(set, i, &name, &text); i++) {
        g_autofree char *key = g_strdelimit(g_strdup(name), "-", '_');
        json_object_set_new(o, key, json_string(text));
        g_free(text);
    }
    return o;
}

static int by_number(const void *a, const void *b)
{
    const struct rule *x = *(const struct rule *const *)a, *y = *(const struct rule *const *)b;
    return x->number < y->number ? -1 : x->number > y->number;
}

json_t *rules_list_json(struct fs *fs)
{
    json_t *list = json_array();
    g_autoptr(GPtrArray) rules = g_ptr_array_new();
    for (unsigned i = 0; i < fs->rules->all->len; i++)
        g_ptr_array_add(rules, &g_array_index(fs->rules->all, struct rule, i));
    g_ptr_array_sort(rules, by_number);
    for (unsigned i = 0; i < rules->len; i++)
        json_array_append_new(list, json_string(((const struct rule *)rules->pdata[i])->text));
    return list;
}

/* ---- what appears ---- */

static void warm_created(void *arg)
{
    struct fs *fs = arg;
    mutex_lock(&fs->created_mu);
    g_autoptr(GHashTable) keys = fs->created;
    fs->created = NULL;
    mutex_unlock(&fs->created_mu);
    mutex_lock(&fs->ns); /* who noted them had it until they were committed */
    mutex_unlock(&fs->ns);
    g_autofree gpointer *paths = keys ? g_hash_table_get_keys_as_array(keys, NULL) : NULL;
    if (!paths || atomic_load(&fs->stopping))
        return;
    log_info("rules", "objects that appeared are warmed by --on-create paths=%u", g_hash_table_size(keys));
    pin_fetch(fs, (const char *const *)paths);
}

bool rules_on_create(struct fs *fs, const char *key)
{
    bool dir = g_str_has_suffix(key, "/");
    if (fs->rules->on_create->len == 0 || !fs->jobs)
        return false;
    if (!rules_warms(fs->rules, key) && !(dir && rules_warms_below(fs->rules, key)))
        return false;
    char *path = g_strndup(key, strlen(key) - dir);
    mutex_lock(&fs->created_mu);
    bool push = !fs->created;
    if (push)
        fs->created = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    bool room = g_hash_table_size(fs->created) < CREATED_MAX; /* their directory may hold what nobody asked for */
    if (room)
        (void)g_hash_table_add(fs->created, g_steal_pointer(&path));
    mutex_unlock(&fs->created_mu);
    if (!room)
        log_notice("rules", "too much appeared at once, --on-create does not warm path='%s'", path);
    g_free(path);
    if (push)
        (void)workq_push(fs->jobs->pin_q, false, warm_created, fs); /* refused only while stopping */
    return true;
}
