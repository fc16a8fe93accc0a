/* See link_options.h: one table of options. */
#include "fs/link_options.h"

#include <fnmatch.h>
#include <stddef.h>
#include <string.h>

enum kind { KIND_TEXT, KIND_FLAG, KIND_DURATION, KIND_SIZE, KIND_CONFLICT, KIND_SYNC, KIND_GLOBS };

struct row {
    const char *name, *arg;
    enum kind kind;
    size_t offset;
    bool of_store;
};

#define AT(field) offsetof(struct link_options, field)

static const struct row rows[] = {
    {"endpoint-url", "URL", KIND_TEXT, AT(endpoint_url), true},
    {"region", "NAME", KIND_TEXT, AT(region), true},
    {"profile", "NAME", KIND_TEXT, AT(profile), true},
    {"no-sign-request", NULL, KIND_FLAG, AT(no_sign_request), true},
    {"force-path-style", NULL, KIND_FLAG, AT(force_path_style), true},
    {"allow-plain-http", NULL, KIND_FLAG, AT(allow_plain_http), true},
    {"ca-bundle", "FILE", KIND_TEXT, AT(ca_bundle), true},
    {"upload-limit", "SIZE", KIND_SIZE, AT(upload_limit), true},
    {"download-limit", "SIZE", KIND_SIZE, AT(download_limit), true},
    {"metadata-ttl", "DURATION", KIND_DURATION, AT(metadata_ttl_ns), false},
    {"read-only", NULL, KIND_FLAG, AT(read_only), false},
    {"immutable", NULL, KIND_FLAG, AT(immutable), false},
    {"conflict", "keep|overwrite", KIND_CONFLICT, AT(conflict), false},
    {"sync", "lazy|full|schedule=DURATION", KIND_SYNC, 0, false},
    {"include", "GLOBS", KIND_GLOBS, AT(include), false},
    {"exclude", "GLOBS", KIND_GLOBS, AT(exclude), false},
};

bool link_option_at(unsigned index, const char **ret_name, const char **ret_arg)
{
    if (index >= G_N_ELEMENTS(rows))
        return false;
    *ret_name = rows[index].name;
    *ret_arg = rows[index].arg;
    return true;
}

static const struct row *row_of(const char *name)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

bool link_option_is_of_store(const char *name)
{
    const struct row *row = row_of(name);
    return row && row->of_store;
}

static int read_flag(const char *text, bool *ret)
{
    bool yes = strcmp(text, "true") == 0;
    if (!yes && strcmp(text, "false") != 0)
        return -EINVAL;
    *ret = yes;
    return 0;
}

static int read_conflict(const char *text, int *ret)
{
    *ret = strcmp(text, "keep") == 0 ? CONFLICT_KEEP : strcmp(text, "overwrite") == 0 ? CONFLICT_OVERWRITE : -1;
    return *ret < 0 ? -EINVAL : 0;
}

static int read_sync(const char *text, struct link_options *ret)
{
    static const char schedule[] = "schedule=";
    uint64_t every = 0;
    if (strcmp(text, "lazy") == 0) {
        ret->sync = LINK_SYNC_LAZY;
    } else if (strcmp(text, "full") == 0) {
        ret->sync = LINK_SYNC_FULL;
    } else if (g_str_has_prefix(text, schedule)) {
        int r = parse_duration(text + strlen(schedule), &every);
        if (r < 0 || every < 1000000000)
            return -EINVAL;
        ret->sync = LINK_SYNC_SCHEDULE;
    } else {
        return -EINVAL;
    }
    ret->sync_every_ns = every;
    return 0;
}

static int read_globs(const char *text, char ***ret)
{
    char **globs = g_strsplit(text, ",", -1);
    for (char **p = globs; *p; p++)
        if (!*g_strstrip(*p)) {
            g_strfreev(globs);
            return -EINVAL;
        }
    g_strfreev(*ret);
    *ret = globs;
    return 0;
}

static int read_text(const char *text, char **ret)
{
    if (!*text)
        return -EINVAL;
    g_free(*ret);
    *ret = g_strdup(text);
    return 0;
}

static int read_value(const struct row *row, const char *text, struct link_options *ret)
{
    void *field = (char *)ret + row->offset;
    switch (row->kind) {
    case KIND_TEXT:
        return read_text(text, field);
    case KIND_FLAG:
        return read_flag(text, field);
    case KIND_DURATION:
        return parse_duration(text, field);
    case KIND_SIZE:
        return parse_size(text, field);
    case KIND_CONFLICT:
        return read_conflict(text, field);
    case KIND_SYNC:
        return read_sync(text, ret);
    case KIND_GLOBS:
        return read_globs(text, field);
    }
    return -EINVAL;
}

static int refuse(char **ret_msg, char *msg)
{
    *ret_msg = msg;
    return -EINVAL;
}

/* Keys do not belong into a URL, which is shown. */
static int check_url(const char *url, char **ret_msg)
{
    const char *host = g_str_has_prefix(url, "https://") ? url + 8 : g_str_has_prefix(url, "http://") ? url + 7 : NULL;
    if (host && memchr(host, '@', strcspn(host, "/")))
        return refuse(ret_msg, g_strdup("endpoint-url: keys do not go into the URL; name a profile with --profile"));
    if (!host || !*host || *host == '/')
        return refuse(ret_msg, g_strdup_printf("endpoint-url '%s': http://HOST[:PORT] or https://HOST[:PORT]", url));
    return 0;
}

static int check(const struct link_options *o, char **ret_msg)
{
    if (o->no_sign_request && o->profile)
        return refuse(ret_msg, g_strdup("no-sign-request and profile conflict: unsigned requests use no credentials"));
    if (o->immutable && o->metadata_ttl_ns != UINT64_MAX)
        return refuse(ret_msg, g_strdup("immutable and metadata-ttl conflict: nothing is looked at again"));
    if (o->immutable && o->conflict >= 0)
        return refuse(ret_msg, g_strdup("immutable and conflict conflict: nothing is written"));
    if (o->ca_bundle && !g_path_is_absolute(o->ca_bundle))
        return refuse(ret_msg, g_strdup_printf("ca-bundle '%s': the path is to be absolute", o->ca_bundle));
    return o->endpoint_url ? check_url(o->endpoint_url, ret_msg) : 0;
}

int link_options_parse(const json_t *o, struct link_options *ret, char **ret_msg)
{
    struct link_options out = {.metadata_ttl_ns = UINT64_MAX, .conflict = -1};
    const char *name;
    json_t *v;
    int r = 0;
    json_object_foreach((json_t *)(uintptr_t)o, name, v)
    {
        const struct row *row = row_of(name);
        const char *text = json_string_value(v);
        if (!row) {
            r = refuse(ret_msg, g_strdup_printf("a link has no option '%s'; `sluice link --help` lists all", name));
            break;
        }
        if (!text || read_value(row, text, &out) < 0) {
            r = refuse(ret_msg, g_strdup_printf("%s '%s': %s", name, text ? text : "?",
                                                row->arg ? row->arg : "a flag, true or false"));
            break;
        }
    }
    if (r == 0)
        r = check(&out, ret_msg);
    if (r < 0) {
        link_options_clear(&out);
        return r;
    }
    out.read_only |= out.immutable;
    *ret = out;
    return 0;
}

void link_options_clear(struct link_options *o)
{
    g_free(o->endpoint_url);
    g_free(o->region);
    g_free(o->profile);
    g_free(o->ca_bundle);
    g_strfreev(o->include);
    g_strfreev(o->exclude);
    *o = (struct link_options){.metadata_ttl_ns = UINT64_MAX, .conflict = -1};
}

/* ---- globs ---- */

static bool matches(const char *glob, const char *path)
{
    size_t len = strlen(glob);
    if (!strchr(glob, '/')) {
        const char *base = strrchr(path, '/');
        return fnmatch(glob, base ? base + 1 : path, 0) == 0;
    }
    if (len > 3 && strcmp(glob + len - 3, "/**") == 0) { /* the directory itself */
        g_autofree char *dir = g_strndup(glob, len - 3);
        if (fnmatch(dir, path, 0) == 0)
            return true;
    }
    return fnmatch(glob, path, 0) == 0;
}

static bool any_matches(char **globs, const char *path)
{
    for (char **p = globs; p && *p; p++)
        if (matches(*p, path))
            return true;
    return false;
}

/* The path, or a directory that it is in. */
static bool is_excluded(char **globs, const char *path)
{
    if (!globs)
        return false;
    g_autofree char *at = g_strdup(path);
    for (;;) {
        if (any_matches(globs, at))
            return true;
        char *slash = strrchr(at, '/');
        if (!slash)
            return false;
        *slash = '\0';
    }
}

bool link_options_show(const struct link_options *o, const char *path, bool is_dir)
{
    if (is_excluded(o->exclude, path))
        return false;
    return is_dir || !o->include || any_matches(o->include, path);
}
