/*
 * Verbs that pin and unpin files.
 */
#include "ctl_proto.h"
#include "ctl_verbs.h"
#include "pin.h"
#include "tree.h"

#include <fnmatch.h>

static bool flag(const json_t *req, const char *name)
{
    return json_is_true(json_object_get(req, name));
}

static int emit_pinned(struct ctl_client *client, bool pinned, const char *path)
{
    json_t *o = json_pack("{s:s}", "event", pinned ? "pinned" : "unpinned");
    json_object_set_new(o, "path", verb_string(path));
    return ctl_emit(client, o);
}

#define MARKING_NS (250 * NS_PER_MS)

struct marking {
    struct ctl_client *client;
    uint64_t n, next_ns;
};

/* A lake of millions takes minutes: the command hears that it goes on, and what nobody waits for ends. */
static int marking_tick(void *ctx, unsigned n)
{
    struct marking *m = ctx;
    uint64_t now = clock_mono_ns();
    m->n += n;
    if (ctl_gone(m->client))
        return -ECANCELED;
    if (now < m->next_ns)
        return 0;
    m->next_ns = now + MARKING_NS;
    int r = ctl_emit(m->client, json_pack("{s:s, s:I}", "event", "progress", "names_marked", (json_int_t)m->n));
    return r < 0 ? -ECANCELED : 0;
}

/* Of a directory that cannot be listed what is known is pinned, and what appears in it later; that there may be more is said. */
static int pin_path(struct fs *fs, struct ctl_client *client, const char *path, enum cache_pin pin)
{
    INODE_REF in = NULL;
    g_autofree char *real = NULL;
    bool pinned = pin != PIN_NONE;
    struct verb_listing listing = {.client = client};
    struct marking marking = {.client = client, .next_ns = clock_mono_ns() + MARKING_NS};
    const struct pin_tick tick = {marking_tick, &marking};
    uint64_t offline_ns = TREE_OFFLINE_NS;
    int listed = 0, r = tree_follow(fs, path, NULL, &real, &in);
    if (r == 0 && pinned && inode_is_dir(in))
        listed = tree_refresh_all_sure(fs, in, &offline_ns, verb_listing_tick, &listing);
    if (r == 0)
        r = listed == -ECANCELED ? listed : pin_by_name(fs, in->ino, real, pin, &tick);
    if (r < 0)
        return r;
    if (pinned)
        pin_fetch(fs, (const char *const[]){real, NULL});
    (void)emit_pinned(client, pinned, path); /* the pin stays whether or not somebody reads this */
    return listed;
}

struct matched {
    const char *base;
    GArray *inos; /* of directories */
};

static int take_dir(void *ctx, const struct meta_dentry *d)
{
    struct matched *m = ctx;
    if (S_ISDIR(d->type) && fnmatch(m->base, d->name, FNM_PERIOD) == 0)
        g_array_append_val(m->inos, d->ino);
    return 0;
}

/* Which directory is the newest its files tell. Where one cannot be listed the rule is looked at again once it was. */
static void list_matched(struct fs *fs, struct ctl_client *client, uint64_t dir, const char *base)
{
    g_autoptr(GArray) inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct matched m = {base, inos};
    struct verb_listing listing = {.client = client};
    int r = meta_dentry_each(fs->meta, dir, 0, take_dir, &m);
    for (guint i = 0; r == 0 && i < inos->len && !ctl_gone(client); i++) {
        INODE_REF in = NULL;
        r = inode_get(fs, g_array_index(inos, uint64_t, i), &in);
        r = r == 0 ? tree_refresh_all(fs, in, false, verb_listing_tick, &listing) : r == -ENOENT ? 0 : r;
    }
    if (r < 0)
        log_debug("pin", "directories not listed base='%s' r=%s", base, err_name(r));
}

static int pin_rule(struct fs *fs, struct ctl_client *client, const char *glob, unsigned latest, enum cache_pin pin)
{
    g_autofree char *dir_path = g_path_get_dirname(glob);
    INODE_REF dir = NULL;
    int r = tree_resolve(fs, strchr(glob, '/') ? dir_path : "", &dir);
    if (r == 0 && inode_is_dir(dir))
        r = tree_refresh(fs, dir, false);
    if (r == 0 && inode_is_dir(dir))
        list_matched(fs, client, dir->ino, strchr(glob, '/') ? strrchr(glob, '/') + 1 : glob);
    if (r < 0 && r != -ENOENT) /* a folder that does not exist yet the rule waits for */
        return r;
    g_autoptr(GPtrArray) pinned = g_ptr_array_new_with_free_func(g_free);
    r = pin_rule_set(fs, glob, latest, pin, pinned);
    if (r == -EINVAL)
        ctl_fail(client, "'%s': only the last component of a rule may have wildcards", glob);
    for (unsigned i = 0; i < pinned->len; i++)
        (void)emit_pinned(client, true, pinned->pdata[i]);
    return r;
}

/* Takes the rule of that name away, and without `latest` the pin of the path as well. again: that may be done already. */
static int unpin(struct fs *fs, struct ctl_client *client, const char *path, unsigned latest, bool again)
{
    int r = pin_rule_remove(fs, path, latest);
    bool had_rule = r == 0;
    if (r == -ENOENT && latest && !again)
        ctl_fail(client, "'%s': there is no rule that keeps %u names", path, latest);
    if (!latest && (had_rule || r == -ENOENT))
        r = pin_path(fs, client, path, PIN_NONE);
    if ((had_rule && latest) || ((had_rule || again) && r == -ENOENT)) {
        r = 0;
        (void)emit_pinned(client, false, path);
    }
    return r;
}

static int pin_or_unpin(struct fs *fs, struct ctl_client *client, const json_t *req, enum cache_pin pin)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    if (!paths)
        return 1;
    unsigned latest = (unsigned)MIN(verb_number(req, "latest"), 1000000);
    int code = 0;
    for (unsigned i = 0; paths[i]; i++) {
        if (ctl_gone(client))
            return 1;
        int r = pin == PIN_NONE ? unpin(fs, client, paths[i], latest, flag(req, "again"))
                : latest        ? pin_rule(fs, client, paths[i], latest, pin)
                                : pin_path(fs, client, paths[i], pin);
        if (r < 0) {
            code = 1;
            (void)verb_error(client, paths[i], r);
        }
    }
    return code;
}

int verb_pin(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    bool memory = flag(req, "memory");
    if (memory && fs->cfg->memory_cache == 0) {
        ctl_fail(client, "this mount has no memory cache: give --memory-cache to mount");
        return 1;
    }
    return pin_or_unpin(fs, client, req, memory ? PIN_MEMORY : PIN_DISK);
}

int verb_unpin(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    return pin_or_unpin(fs, client, req, PIN_NONE);
}
