/* See store_options.h. One JSON object; unknown members are left alone, missing ones are not set. */
#include "store_options.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME "store"
#define ESCAPED   " escape=percent"

struct store_options {
    json_t *o;
};

static char *encode(const struct objstore_config *c)
{
    json_t *o =
        json_pack("{s:s*, s:s*, s:s*, s:s*, s:s*, s:b, s:b, s:b}", "source", c->source, "endpoint_url", c->endpoint_url,
                  "region", c->region, "profile", c->profile, "ca_bundle", c->ca_bundle, "no_sign_request",
                  c->no_sign_request, "force_path_style", c->force_path_style, "allow_plain_http", c->allow_plain_http);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(o);
    return text; /* NULL: one of them is not UTF-8 */
}

int store_options_save(const char *cache_dir, const struct objstore_config *c)
{
    g_autofree char *path = g_build_filename(cache_dir, FILE_NAME, NULL), *old = NULL;
    g_autoptr(GError) err = NULL;
    char *text = encode(c);
    bool same = !text || (g_file_get_contents(path, &old, NULL, NULL) && g_str_equal(old, text));
    bool ok = same || g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT, 0600, &err);
    free(text);
    return ok ? 0 : -EIO;
}

static const char *text_of(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

int store_options_load(const char *cache_dir, struct objstore_config *ret, struct store_options **ret_owner)
{
    g_autofree char *path = g_build_filename(cache_dir, FILE_NAME, NULL), *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return -ENOENT;
    json_t *o = json_loads(text, 0, NULL);
    if (!json_is_object(o) || !text_of(o, "source")) {
        json_decref(o);
        return -EBADMSG;
    }
    ret->source = text_of(o, "source");
    ret->endpoint_url = text_of(o, "endpoint_url");
    ret->region = text_of(o, "region");
    ret->profile = text_of(o, "profile");
    ret->ca_bundle = text_of(o, "ca_bundle");
    ret->no_sign_request = json_is_true(json_object_get(o, "no_sign_request"));
    ret->force_path_style = json_is_true(json_object_get(o, "force_path_style"));
    ret->allow_plain_http = json_is_true(json_object_get(o, "allow_plain_http"));
    *ret_owner = g_new0(struct store_options, 1);
    (*ret_owner)->o = o;
    return 0;
}

void store_options_free(struct store_options *o)
{
    if (!o)
        return;
    json_decref(o->o);
    g_free(o);
}

char *store_binding(const char *identity, bool escape)
{
    return g_strconcat(identity, escape ? ESCAPED : NULL, NULL);
}

char *store_binding_identity(const char *binding, bool *ret_escape)
{
    *ret_escape = g_str_has_suffix(binding, ESCAPED);
    return g_strndup(binding, strlen(binding) - (*ret_escape ? strlen(ESCAPED) : 0));
}
