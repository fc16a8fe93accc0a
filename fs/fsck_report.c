/* What fsck says: lines for people or JSON, and the paths in them. */
#include "conflict.h"
#include "ctl_verbs.h"
#include "fsck_internal.h"

#include <jansson.h>
#include <stdarg.h>

#define STEPS_EACH 256

static void say_json(FILE *out, const char *event, const char *path, const char *what, const char *action,
                     bool repaired)
{
    json_t *o = json_pack("{s:s}", "event", event);
    json_object_set_new(o, "path", verb_string(path));
    json_object_set_new(o, "what", verb_string(what));
    if (action)
        json_object_set_new(o, "repair", verb_string(action));
    if (g_str_equal(event, "finding"))
        json_object_set_new(o, "repaired", json_boolean(repaired));
    char *text = json_dumps(o, JSON_COMPACT);
    if (text)
        (void)fprintf(out, "%s\n", text);
    free(text);
    json_decref(o);
}

void fsck_finding(struct fsck *f, const char *path, const char *action, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_autofree char *what = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    bool repaired = f->o->repair && action;
    f->res->findings++;
    f->res->left += !repaired;
    if (f->o->json)
        say_json(f->o->out, "finding", path, what, action, repaired);
    else if (action)
        (void)fprintf(f->o->out, "%s: %s; %s: %s\n", path, what, repaired ? "repaired" : "repair will", action);
    else
        (void)fprintf(f->o->out, "%s: %s\n", path, what);
}

void fsck_remark(struct fsck *f, const char *path, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_autofree char *what = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    if (f->o->json)
        say_json(f->o->out, "remark", path, what, NULL, false);
    else
        (void)fprintf(f->o->out, "%s: %s\n", path, what);
}

void fsck_step(struct fsck *f)
{
    if (++f->done % STEPS_EACH == 0 && f->o->progress)
        f->o->progress(f->o->ctx, f->done, f->total);
}

/* ---- paths ---- */

struct found_name {
    uint64_t parent;
    char *name;
};

static int take_first(void *ctx, const struct meta_dentry *d)
{
    struct found_name *n = ctx;
    n->parent = d->parent;
    n->name = g_strdup(d->name);
    return 1;
}

char *fsck_path(struct fsck *f, uint64_t ino)
{
    g_autoptr(GString) path = g_string_new(NULL);
    uint64_t at = ino;
    for (unsigned depth = 0; at != META_ROOT_INO && depth < 4096; depth++) {
        struct found_name n = {0};
        if (meta_link_each(f->m, at, take_first, &n) <= 0)
            return g_strdup_printf("inode %" G_GUINT64_FORMAT, ino);
        if (n.parent == META_ASIDE_INO) {
            char *lost = conflict_path(f->m, n.name);
            g_free(n.name);
            return lost;
        }
        if (path->len > 0)
            g_string_prepend_c(path, '/');
        g_string_prepend(path, n.name);
        g_free(n.name);
        at = n.parent;
    }
    return path->len > 0 ? g_strdup(path->str) : g_strdup("/");
}

char *fsck_path_of_name(struct fsck *f, uint64_t parent, const char *name)
{
    if (parent == META_ASIDE_INO)
        return conflict_path(f->m, name);
    g_autofree char *dir = fsck_path(f, parent);
    return g_str_equal(dir, "/") ? g_strdup(name) : g_strconcat(dir, "/", name, NULL);
}
