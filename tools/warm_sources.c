/* See warm_sources.h. */
#include "tools/warm_sources.h"

#include "s3/key_names.h"

#include <string.h>

#define QUIET_S 10

struct warm_source {
    char *mount, *url, *dir; /* owned; url is shown at dir, "" the top of the mount */
    bool escaped;            /* its paths are not its keys (s3/key_names.h) */
};

static void source_free(void *p)
{
    struct warm_source *s = p;
    g_free(s->mount);
    g_free(s->url);
    g_free(s->dir);
    g_free(s);
}

void warm_sources_clear(struct warm_sources *ws)
{
    g_clear_pointer(&ws->all, g_ptr_array_unref);
    g_clear_pointer(&ws->silent, g_free);
}

static void add_source(struct warm_sources *ws, const char *mount, const char *url, const char *dir)
{
    struct warm_source *s = g_new0(struct warm_source, 1);
    *s = (struct warm_source){.mount = g_strdup(mount), .url = g_strdup(url), .dir = g_strdup(dir)};
    g_ptr_array_add(ws->all, s);
}

struct asking {
    struct warm_sources *ws;
    const struct mount_point *mount;
};

static void on_link(void *ctx, const json_t *line)
{
    const struct asking *a = ctx;
    const char *source = json_string_value(json_object_get(line, "source"));
    const char *dir = json_string_value(json_object_get(line, "path"));
    if (source && dir)
        add_source(a->ws, a->mount->path, source, dir);
}

static void on_config(void *ctx, const json_t *line)
{
    const char *text = json_string_value(json_object_get(line, "text"));
    if (text && strstr(text, "\nescape = percent"))
        *(bool *)ctx = true;
}

/* The mount's own source, and those of its links as far as its daemon tells them. */
static void add_mount(struct warm_sources *ws, const struct mount_point *mount)
{
    struct asking a = {ws, mount};
    guint from = ws->all->len;
    bool escaped = false;
    add_source(ws, mount->path, mount->source, "");
    bool told =
        ctl_daemon_pid(mount) >= 0 &&
        ctl_request(mount, json_pack("{s:s,s:s}", "verb", "link", "action", "list"), QUIET_S, on_link, &a) == 0 &&
        ctl_request(mount, json_pack("{s:s}", "verb", "config"), QUIET_S, on_config, &escaped) == 0;
    for (; from < ws->all->len; from++)
        ((struct warm_source *)ws->all->pdata[from])->escaped = escaped;
    if (!told && !ws->silent)
        ws->silent = g_strdup(mount->path);
}

static void ask(struct warm_sources *ws, const struct mount_point *mount)
{
    g_autoptr(GPtrArray) mounts = mount ? NULL : mount_list();
    ws->all = g_ptr_array_new_with_free_func(source_free);
    if (mount)
        add_mount(ws, mount);
    for (unsigned i = 0; mounts && i < mounts->len; i++)
        add_mount(ws, mounts->pdata[i]);
}

/* What is left of url below a source ("s3://bucket/prefix"), NULL: it is not below it. exact: of several '/' each but the first means something. */
static const char *below_source(const char *url, const char *source, bool exact)
{
    size_t len = strlen(source);
    while (len > 0 && source[len - 1] == '/')
        len--;
    bool below = strncmp(url, source, len) == 0 && (url[len] == '/' || url[len] == '\0');
    size_t slashes = strspn(url + len, "/");
    return below ? url + len + (exact ? MIN(slashes, 1u) : slashes) : NULL;
}

/* Of a mount's own objects, not those that have a link's directory in front of them. */
static bool is_hidden(const struct warm_sources *ws, const struct warm_source *own, const char *below)
{
    for (unsigned i = 0; !*own->dir && i < ws->all->len; i++) {
        const struct warm_source *s = ws->all->pdata[i];
        if (*s->dir && strcmp(s->mount, own->mount) == 0 && below_source(below, s->dir, false))
            return true;
    }
    return false;
}

char *warm_sources_find(struct warm_sources *ws, const char *url, const struct mount_point *mount)
{
    const struct warm_source *best = NULL;
    const char *rest = NULL;
    if (!ws->all)
        ask(ws, mount);
    for (unsigned i = 0; i < ws->all->len; i++) {
        const struct warm_source *s = ws->all->pdata[i];
        const char *below = mount && strcmp(mount->path, s->mount) != 0 ? NULL : below_source(url, s->url, s->escaped);
        if (!below || (rest && strlen(below) >= strlen(rest)) || is_hidden(ws, s, below))
            continue;
        best = s;
        rest = below;
    }
    if (!best)
        return NULL;
    g_autoptr(GString) path = g_string_new(best->escaped ? NULL : rest);
    if (best->escaped)
        key_to_path(rest, strlen(rest), path);
    return g_build_filename(best->mount, best->dir, path->str, NULL);
}
