/* See store_options.h. One JSON object; unknown members are left alone, missing ones are not set. */
#include "store_options.h"

#include <jansson.h>
#include <string.h>

#define VALUE_NAME "store-options"

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

void store_options_save(struct meta *m, struct meta_batch *b, const struct objstore_config *c)
{
    GBytes *old = NULL;
    char *text = encode(c);
    size_t len = text ? strlen(text) : 0;
    bool same = text && meta_value_get(m, VALUE_NAME, &old) == 0 && g_bytes_get_size(old) == len &&
                memcmp(g_bytes_get_data(old, NULL), text, len) == 0;
    g_clear_pointer(&old, g_bytes_unref);
    if (text && !same)
        meta_value_put(b, VALUE_NAME, text, len);
    free(text);
}

static const char *text_of(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

int store_options_load(struct meta *m, struct objstore_config *ret, struct store_options **ret_owner)
{
    GBytes *value = NULL;
    gsize len;
    int r = meta_value_get(m, VALUE_NAME, &value);
    if (r < 0)
        return r;
    const char *data = g_bytes_get_data(value, &len);
    json_t *o = json_loadb(data, len, 0, NULL);
    g_bytes_unref(value);
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
