/* See event_place.h. */
#include "event_place.h"

#include "key_names.h"
#include "links.h"
#include "s3_uri.h"

#include <string.h>

struct place {
    char *dir; /* owned; "a/b/" of a link, "" the mount's own */
    struct s3_source source;
};

struct event_places {
    struct fs *fs;
    GArray *all; /* struct place */
};

static void place_clear(void *arg)
{
    struct place *p = arg;
    g_free(p->dir);
    s3_source_clear(&p->source);
}

/* A directory as store has no bucket: the name of the directory stands for one. */
static void name_bucket(struct s3_source *src)
{
    if (strcmp(src->scheme, "file") != 0)
        return;
    g_free(src->bucket);
    src->bucket = g_path_get_basename(src->prefix);
    g_free(src->prefix);
    src->prefix = g_strdup("");
}

static void add(void *places, const char *dir, const char *source)
{
    struct event_places *p = places;
    struct place one = {0};
    g_autofree char *msg = NULL;
    if (s3_source_parse(source, &one.source, &msg) < 0) {
        log_debug("events", "no events are taken for '%s': %s", source, msg);
        return;
    }
    name_bucket(&one.source);
    one.dir = *dir ? g_strconcat(dir, "/", NULL) : g_strdup("");
    g_array_append_val(p->all, one);
}

struct event_places *event_places_new(struct fs *fs)
{
    struct event_places *p = g_new0(struct event_places, 1);
    p->fs = fs;
    p->all = g_array_new(FALSE, FALSE, sizeof(struct place));
    g_array_set_clear_func(p->all, place_clear);
    if (fs->cfg->source)
        add(p, "", objstore_source(fs->store));
    links_each_source(fs, add, p);
    return p;
}

void event_places_free(struct event_places *p)
{
    if (!p)
        return;
    g_array_unref(p->all);
    g_free(p);
}

/* The rest of the key in this place, NULL: it is not there. Borrowed. */
static const char *rest_of(const struct place *at, const char *bucket, const char *key, bool vague)
{
    if (strcmp(bucket, at->source.bucket) != 0)
        return NULL;
    if (!g_str_has_prefix(key, at->source.prefix))
        return vague && g_str_has_prefix(at->source.prefix, key) ? "" : NULL;
    key += strlen(at->source.prefix);
    return *key || vague ? key : NULL;
}

bool event_places_each(const struct event_places *p, const char *bucket, const char *key, bool vague,
                       event_place_fn *fn, void *ctx)
{
    bool any = false;
    for (guint i = 0; i < p->all->len; i++) {
        const struct place *at = &g_array_index(p->all, struct place, i);
        const char *rest = rest_of(at, bucket, key, vague);
        if (!rest)
            continue;
        g_autoptr(GString) path = g_string_new(at->dir);
        if (p->fs->cfg->escape == ESCAPE_PERCENT)
            key_to_path(rest, strlen(rest), path);
        else
            g_string_append(path, rest);
        if (!*at->dir && links_prefix_len(p->fs, path->str) > 0)
            continue;
        fn(ctx, path->str);
        any = true;
    }
    return any;
}
