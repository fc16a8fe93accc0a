/* `sluice link`: bucket links of a mount. */
#include "ctl_verbs.h"
#include "links.h"
#include "tree.h"

struct drain {
    struct fs *fs;
    struct ctl_client *client;
    uint64_t deadline_ns;
    int code; /* exit code of a wait that failed, which has told why */
};

static int wait_drained(void *ctx, const char *dir)
{
    struct drain *d = ctx;
    d->code = verb_wait_below(d->fs, d->client, dir, d->deadline_ns);
    return d->code ? -ETIMEDOUT : 0;
}

static int tell(struct fs *fs, struct ctl_client *client, const char *event, const char *dir, bool show)
{
    json_t *list = links_describe(fs, dir, show), *o;
    size_t i;
    int r = 0;
    json_array_foreach(list, i, o)
    {
        json_object_set_new(o, "event", json_string(event));
        if (r == 0)
            r = ctl_emit(client, json_incref(o));
    }
    size_t n = json_array_size(list);
    json_decref(list);
    if (n == 0 && dir)
        ctl_fail(client, "'%s' is no link; `sluice link list` shows them", dir);
    return r < 0 || (n == 0 && dir) ? 1 : 0;
}

static int do_list(struct fs *fs, struct ctl_client *client, const json_t *req, const char *dir)
{
    return tell(fs, client, "link", *dir ? dir : NULL, false);
}

static int do_show(struct fs *fs, struct ctl_client *client, const json_t *req, const char *dir)
{
    return tell(fs, client, "link", dir, true);
}

static int refuse(struct ctl_client *client, const char *msg)
{
    ctl_fail(client, "%s", msg ? msg : "it failed");
    return 1;
}

static const json_t *options_of(const json_t *req, json_t *none)
{
    const json_t *o = json_object_get(req, "options");
    return json_is_object(o) ? o : none;
}

static int do_add(struct fs *fs, struct ctl_client *client, const json_t *req, const char *dir)
{
    g_autofree char *msg = NULL;
    const char *source = json_string_value(json_object_get(req, "source"));
    json_t *none = json_object();
    int r = source ? links_add(fs, source, dir, options_of(req, none), &msg) : -EINVAL;
    json_decref(none);
    notify_settle(fs);
    if (r < 0)
        return refuse(client, msg);
    if (msg) {
        json_t *o = json_pack("{s:s}", "event", "warning");
        json_object_set_new(o, "message", verb_string(msg));
        (void)ctl_emit(client, o); /* it is done whether or not somebody reads this */
    }
    return tell(fs, client, "linked", dir, false);
}

static int do_set(struct fs *fs, struct ctl_client *client, const json_t *req, const char *dir)
{
    g_autofree char *msg = NULL;
    json_t *none = json_object();
    int r = links_set(fs, dir, options_of(req, none), &msg);
    json_decref(none);
    return r < 0 ? refuse(client, msg) : tell(fs, client, "linked", dir, true);
}

static int do_rm(struct fs *fs, struct ctl_client *client, const json_t *req, const char *dir)
{
    g_autofree char *msg = NULL;
    uint64_t s = verb_number(req, "timeout_s");
    struct drain d = {fs, client, s ? clock_mono_ns() + MIN(s, 1000000000u) * NS_PER_S : 0, 0};
    bool drain = json_is_true(json_object_get(req, "drain"));
    int r = links_remove(fs, dir, drain ? wait_drained : NULL, &d, &msg);
    if (d.code)
        return d.code;
    notify_settle(fs);
    if (r < 0)
        return refuse(client, msg);
    json_t *o = json_pack("{s:s}", "event", "unlinked");
    json_object_set_new(o, "path", verb_string(dir));
    return ctl_emit(client, o) < 0 ? 1 : 0;
}

static int do_sync(struct fs *fs, struct ctl_client *client, const json_t *req, const char *dir)
{
    return verb_sync(fs, client, req);
}

int verb_link(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    static const struct {
        const char *name;
        int (*fn)(struct fs *fs, struct ctl_client *client, const json_t *req, const char *dir);
    } actions[] = {{"list", do_list}, {"show", do_show}, {"add", do_add},
                   {"set", do_set},   {"rm", do_rm},     {"sync", do_sync}};
    const char *action = json_string_value(json_object_get(req, "action"));
    bool all = g_strcmp0(action, "list") == 0 && json_array_size(json_object_get(req, "paths")) == 0;
    g_auto(GStrv) paths = all ? g_strsplit("", "/", -1) : verb_paths(client, req);
    if (!paths)
        return 1;
    for (unsigned i = 0; i < G_N_ELEMENTS(actions); i++)
        if (g_strcmp0(action, actions[i].name) == 0)
            return actions[i].fn(fs, client, req, paths[0] ? paths[0] : "");
    ctl_fail(client, "the action is list, show, add, set, rm or sync");
    return 1;
}
