/*
 * What a chain of credentials chose, as text: the next process that serves the same mount goes on with it (objstore_config.resume). Pure.
 */
#include "s3_cred_int.h"

#include <jansson.h>
#include <stdlib.h>

static const char *const source_names[N_CRED_SOURCES] = {
    [CRED_SOURCE_ANONYMOUS] = "anonymous", [CRED_SOURCE_ENV] = "environment",
    [CRED_SOURCE_WEB] = "web identity",    [CRED_SOURCE_PROFILE] = "profile",
    [CRED_SOURCE_CONTAINER] = "container", [CRED_SOURCE_IMDS] = "instance metadata",
};

const char *cred_source_name(enum cred_source source)
{
    return source_names[source];
}

char *cred_choice_format(const struct cred_choice *ch)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s*, s:s*, s:s*}", "source", source_names[ch->source], "region", ch->region,
                  "endpoint_url", ch->endpoint, "sts_endpoint_url", ch->sts_endpoint, "ca_bundle", ch->ca_bundle);
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    char *own = g_strdup(text);
    free(text);
    json_decref(o);
    return own;
}

static char *text_of(const json_t *o, const char *name)
{
    return g_strdup(json_string_value(json_object_get(o, name)));
}

int cred_choice_parse(const char *text, struct cred_choice *ret)
{
    json_t *o = json_loads(text, 0, NULL);
    const char *name = json_string_value(json_object_get(o, "source"));
    int source = 0;
    while (source < N_CRED_SOURCES && g_strcmp0(name, source_names[source]) != 0)
        source++;
    bool good = source < N_CRED_SOURCES && json_is_string(json_object_get(o, "region"));
    if (good)
        *ret = (struct cred_choice){.source = (enum cred_source)source,
                                    .region = text_of(o, "region"),
                                    .endpoint = text_of(o, "endpoint_url"),
                                    .sts_endpoint = text_of(o, "sts_endpoint_url"),
                                    .ca_bundle = text_of(o, "ca_bundle")};
    json_decref(o);
    return good ? 0 : -EBADMSG;
}

void cred_choice_clear(struct cred_choice *ch)
{
    g_free(ch->region);
    g_free(ch->endpoint);
    g_free(ch->sts_endpoint);
    g_free(ch->ca_bundle);
}
