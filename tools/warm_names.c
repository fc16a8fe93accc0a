/* Names on their way from command line and manifests to a daemon. */
#include "tools/warm_names.h"

#include "fs/ctl_proto.h"
#include "tools/cmd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BYTES (CTL_MAX_LINE / 16) /* paths that a request holds by itself, also when each byte is escaped */

bool warm_names_init(struct warm_names *wn, const char *base)
{
    *wn = (struct warm_names){.base_given = base != NULL, .code = EXIT_DONE};
    wn->spool = tmpfile();
    if (!wn->spool) {
        complain("no temporary file for the list of paths can be made in /tmp: %s", g_strerror(errno));
        return false;
    }
    g_autofree char *cwd = base ? NULL : g_get_current_dir();
    wn->base = path_canonical(base ? base : cwd);
    return true;
}

void warm_names_clear(struct warm_names *wn)
{
    if (wn->spool)
        (void)fclose(wn->spool); /* it has no name and goes with this */
    warm_sources_clear(&wn->sources);
    mount_point_clear(&wn->mount);
    g_free(wn->base);
    g_free(wn->json_base);
}

/* ---- which path of which mount ---- */

static void wrong(struct warm_names *wn, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void wrong(struct warm_names *wn, int code, const char *fmt, ...)
{
    wn->code = exit_worse(wn->code, code);
    if (wn->n_bad++ >= WARM_NAMED)
        return;
    va_list ap;
    va_start(ap, fmt);
    g_autofree char *text = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    complain("%s", text);
}

static bool has_dots(const char *path)
{
    return strstr(path, "/./") || strstr(path, "/../") || g_str_has_suffix(path, "/.") || g_str_has_suffix(path, "/..");
}

/* The part of path below the mount of the names before, NULL: look in the mount table. */
static const char *below_mount(const struct warm_names *wn, const char *path)
{
    size_t len = wn->mount.path ? strlen(wn->mount.path) : 0;
    bool below = len > 1 && strncmp(path, wn->mount.path, len) == 0 && path[len] == '/' && !has_dots(path);
    return below ? path + len + 1 : NULL;
}

static void spool(struct warm_names *wn, const char *shown, const char *relative)
{
    if (!g_utf8_validate(relative, -1, NULL)) {
        wrong(wn, EXIT_FAILED, "%s: not valid UTF-8, cannot be asked for by name", shown);
        return;
    }
    size_t len = strlen(relative) + 1;
    if (fwrite(relative, 1, len, wn->spool) != len)
        wrong(wn, EXIT_FAILED, "'%s' does not fit into the temporary list of paths in /tmp", shown);
    wn->n++;
    wn->bytes += len;
}

static void add_path(struct warm_names *wn, const char *shown, const char *path)
{
    const char *relative = below_mount(wn, path);
    struct mount_point mp;
    if (relative) {
        spool(wn, shown, relative);
        return;
    }
    if (!mount_holds(path, &mp)) {
        wrong(wn, EXIT_FAILED, "'%s' is not in a sluice mount", shown);
        return;
    }
    if (wn->mount.path && strcmp(wn->mount.path, mp.path) != 0)
        wrong(wn, EXIT_USAGE, "'%s' lies in %s, other paths in %s: one mount at a time", shown, mp.path,
              wn->mount.path);
    else
        spool(wn, shown, mp.relative);
    if (wn->mount.path)
        mount_point_clear(&mp);
    else
        wn->mount = mp;
}

static void wrong_url(struct warm_names *wn, const char *shown)
{
    const char *silent = wn->sources.silent;
    g_autofree char *hint =
        silent ? g_strdup_printf("; the links of %s are not known: its daemon was not reached", silent) : NULL;
    if (wn->mount.path)
        wrong(wn, EXIT_FAILED, "'%s' lies neither in the source of %s nor in those of its links%s", shown,
              wn->mount.path, hint ? hint : "");
    else
        wrong(wn, EXIT_FAILED, "'%s' lies in the source of no sluice mount, and of none of their links%s", shown,
              hint ? hint : "");
}

static void add_url(struct warm_names *wn, const char *shown, const char *url)
{
    g_autofree char *path = warm_sources_find(&wn->sources, url, wn->mount.path ? &wn->mount : NULL);
    if (path)
        add_path(wn, shown, path);
    else
        wrong_url(wn, shown);
}

/* The URL in "pipe:aws s3 cp s3://... -", NULL: none. */
static char *url_of_pipe(const char *text)
{
    const char *at = strstr(text, "s3://");
    at = at ? at : strstr(text, "file://");
    return at ? g_strndup(at, strcspn(at, " \t'\"|;&")) : NULL;
}

static bool add_name(void *ctx, const char *name, bool in_json)
{
    struct warm_names *wn = ctx;
    while (strncmp(name, "./", 2) == 0)
        name += 2;
    if (strncmp(name, "pipe:", 5) == 0) {
        g_autofree char *url = url_of_pipe(name);
        if (url)
            add_url(wn, name, url);
        else
            wrong(wn, EXIT_FAILED, "'%s': this command names no s3:// object", name);
    } else if (strstr(name, "://")) {
        add_url(wn, name, name);
    } else if (*name == '/') {
        add_path(wn, name, name);
    } else {
        g_autofree char *path = g_strconcat(in_json && wn->json_base ? wn->json_base : wn->base, "/", name, NULL);
        add_path(wn, name, path);
    }
    return true;
}

void warm_names_add(struct warm_names *wn, const char *name)
{
    g_autofree char *cwd = g_get_current_dir();
    g_autofree char *path = *name == '/' ? g_strdup(name) : g_strconcat(cwd, "/", name, NULL);
    if (strstr(name, "://") && !g_file_test(name, G_FILE_TEST_EXISTS))
        (void)add_name(wn, name, false);
    else
        add_path(wn, name, path);
}

bool warm_names_read(struct warm_names *wn, const char *path, enum manifest_kind kind)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *in = standard ? stdin : fopen(path, "re");
    if (!in) {
        complain("--files-from %s: %s", path, g_strerror(errno));
        return false;
    }
    g_clear_pointer(&wn->json_base, g_free);
    if (!standard && !wn->base_given) {
        g_autofree char *full = path_canonical(path);
        wn->json_base = g_path_get_dirname(full);
    }
    g_autofree char *error = NULL;
    bool ok = manifest_read(in, kind, add_name, wn, &error);
    if (!ok)
        complain("--files-from %s: %s", path, error ? error : "not read");
    if (!standard)
        (void)fclose(in); /* only read */
    return ok;
}

/* ---- sending ---- */

/* All names as "paths" of the request: few enough for it, and a daemon of another version understands them. */
static void put_paths(struct warm_names *wn, json_t *req)
{
    json_t *paths = json_array();
    char *name = NULL;
    size_t room = 0;
    rewind(wn->spool);
    while (getdelim(&name, &room, '\0', wn->spool) >= 0)
        json_array_append_new(paths, json_string(name));
    free(name);
    json_object_set_new(req, "paths", paths);
}

int warm_names_send(struct warm_names *wn, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx)
{
    if (wn->n_bad > WARM_NAMED)
        complain("... and %" PRIu64 " more that cannot be asked for, %" PRIu64 " in all", wn->n_bad - WARM_NAMED,
                 wn->n_bad);
    if (fflush(wn->spool) != 0) {
        complain("the temporary list of paths in /tmp cannot be written: %s", g_strerror(errno));
        wn->n = 0;
        wn->code = exit_worse(wn->code, EXIT_FAILED);
    }
    if (wn->n == 0) {
        json_decref(req);
        return wn->code;
    }
    bool small = wn->bytes <= SMALL_BYTES;
    if (small)
        put_paths(wn, req);
    else
        json_object_set_new(req, "list", json_true());
    wn->code = exit_worse(wn->code, ctl_request_list(&wn->mount, req, small ? NULL : wn->spool, quiet_s, fn, ctx));
    return wn->code;
}
