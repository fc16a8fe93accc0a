/*
 * Credentials: options and environment, read once into struct cred_env, and the secrets among them, which are taken out of where /proc shows them.
 *
 * The environment is the process's, and so is the copy that is kept of its secrets: written once, before threads ask for it.
 */
#include "base/clock.h"
#include "objstore.h"
#include "s3_cred_int.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IMDS_URL      "http://169.254.169.254"
#define IMDS_URL_IPV6 "http://[fd00:ec2::254]"

static const char *const secret_names[] = {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                                           "AWS_CONTAINER_AUTHORIZATION_TOKEN"};

/* What was in the environment, as secret_names: stores that are opened later (bucket links) look there. It is the environment's place, so there is one in a process. */
struct kept_env {
    char values[G_N_ELEMENTS(secret_names)][CRED_TOKEN_MAX_BYTES];
};
static _Atomic(struct kept_env *) kept_env;

void s3_cred_forget_env(void)
{
    struct kept_env *kept = atomic_load(&kept_env);
    if (kept == NULL)
        kept = cred_secret_pages(sizeof(*kept));
    for (size_t i = 0; i < G_N_ELEMENTS(secret_names); i++) {
        char *v = getenv(secret_names[i]);
        if (v == NULL || v[0] == '\0')
            continue;
        if (kept != NULL)
            g_strlcpy(kept->values[i], v, CRED_TOKEN_MAX_BYTES);
        explicit_bzero(v, strlen(v)); /* in place, empty: the array itself may be in use by other threads */
    }
    atomic_store(&kept_env, kept);
}

static const char *env_get(const char *name)
{
    const char *v = g_getenv(name);
    if (v != NULL && v[0] != '\0')
        return v;
    const struct kept_env *kept =
        v != NULL ? atomic_load(&kept_env) : NULL; /* one that was taken away is not looked for */
    for (size_t i = 0; kept != NULL && i < G_N_ELEMENTS(secret_names); i++)
        if (strcmp(name, secret_names[i]) == 0 && kept->values[i][0] != '\0')
            return kept->values[i];
    return NULL;
}

/* Of an entry "NAME=value": NAME if it is of a secret, else NULL. */
static const char *secret_name_of(const char *entry)
{
    for (size_t i = 0; i < G_N_ELEMENTS(secret_names); i++) {
        size_t len = strlen(secret_names[i]);
        if (strncmp(entry, secret_names[i], len) == 0 && entry[len] == '=')
            return secret_names[i];
    }
    return NULL;
}

char **cred_child_env_new(void)
{
    guint n = environ != NULL ? g_strv_length(environ) : 0;
    char **env = g_new0(char *, n + 1);
    for (guint i = 0; i < n; i++) {
        const char *name = secret_name_of(environ[i]);
        const char *value = name != NULL ? env_get(name) : NULL;
        env[i] = value != NULL ? g_strconcat(name, "=", value, NULL) : g_strdup(environ[i]);
    }
    return env;
}

void cred_child_env_free(char **env)
{
    for (size_t i = 0; env[i] != NULL; i++)
        cred_wipe_free(env[i]);
    g_free(env);
}

static const char *env_first(const char *option, const char *name_a, const char *name_b)
{
    if (option != NULL && option[0] != '\0')
        return option;
    const char *v = env_get(name_a);
    return v == NULL && name_b != NULL ? env_get(name_b) : v;
}

static bool env_true(const char *name)
{
    const char *v = env_get(name);
    return v != NULL && g_ascii_strcasecmp(v, "true") == 0;
}

static char *env_path(const char *name, const char *home_file)
{
    const char *v = env_get(name);
    if (v != NULL && v[0] == '~' && v[1] == '/')
        return g_build_filename(g_get_home_dir(), v + 2, NULL);
    return v != NULL ? g_strdup(v) : g_build_filename(g_get_home_dir(), ".aws", home_file, NULL);
}

static char *imds_endpoint(void)
{
    const char *v = env_get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    const char *mode = env_get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    if (v == NULL)
        v = mode != NULL && g_ascii_strcasecmp(mode, "IPv6") == 0 ? IMDS_URL_IPV6 : IMDS_URL;
    char *url = g_strdup(v);
    for (size_t len = strlen(url); len > 0 && url[len - 1] == '/'; len--)
        url[len - 1] = '\0';
    return url;
}

void cred_env_fill(struct cred_env *e, const struct objstore_config *cfg)
{
    e->profile_given = cfg->profile != NULL && cfg->profile[0] != '\0';
    const char *profile = env_first(cfg->profile, "AWS_PROFILE", "AWS_DEFAULT_PROFILE");
    e->profile_named = profile != NULL;
    e->profile = g_strdup(profile != NULL ? profile : "default");
    e->credentials_file = env_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    e->config_file = env_path("AWS_CONFIG_FILE", "config");
    e->credentials_file_named = env_get("AWS_SHARED_CREDENTIALS_FILE") != NULL;
    e->config_file_named = env_get("AWS_CONFIG_FILE") != NULL;
    e->region = g_strdup(env_first(cfg->region, "AWS_REGION", "AWS_DEFAULT_REGION"));
    e->ignore_endpoints = env_true("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    bool use = !e->ignore_endpoints;
    const char *option = cfg->endpoint_url;
    e->endpoint = g_strdup(use ? env_first(option, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") : option);
    e->sts_endpoint = g_strdup(use ? env_first(NULL, "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL") : NULL);
    e->ca_bundle = g_strdup(env_first(cfg->ca_bundle, "AWS_CA_BUNDLE", NULL));
    e->role_arn = g_strdup(env_get("AWS_ROLE_ARN"));
    e->web_token_file = g_strdup(env_get("AWS_WEB_IDENTITY_TOKEN_FILE"));
    const char *name = env_get("AWS_ROLE_SESSION_NAME");
    e->session_name = name != NULL ? g_strdup(name)
                                   : g_strdup_printf("sluice-%" G_GINT64_FORMAT, clock_wall_ns() / (int64_t)NS_PER_S);
    e->container_relative = g_strdup(env_get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"));
    e->container_full = g_strdup(env_get("AWS_CONTAINER_CREDENTIALS_FULL_URI"));
    e->container_token_file = g_strdup(env_get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"));
    e->access_key = g_strdup(env_get("AWS_ACCESS_KEY_ID"));
    e->secret_key = cred_secret_dup(env_get(secret_names[0]));
    e->session_token = cred_secret_dup(env_get(secret_names[1]));
    e->container_token = cred_secret_dup(env_get(secret_names[2]));
    e->imds_endpoint = imds_endpoint();
    e->imds_disabled = env_true("AWS_EC2_METADATA_DISABLED");
    e->allow_plain_http = cfg->allow_plain_http;
}

void cred_env_clear(struct cred_env *e)
{
    char *const owned[] = {e->profile,
                           e->credentials_file,
                           e->config_file,
                           e->region,
                           e->endpoint,
                           e->sts_endpoint,
                           e->ca_bundle,
                           e->role_arn,
                           e->web_token_file,
                           e->session_name,
                           e->container_relative,
                           e->container_full,
                           e->container_token_file,
                           e->access_key,
                           e->imds_endpoint};
    char *const secret[] = {e->secret_key, e->session_token, e->container_token};
    for (size_t i = 0; i < G_N_ELEMENTS(owned); i++)
        g_free(owned[i]);
    for (size_t i = 0; i < G_N_ELEMENTS(secret); i++)
        cred_secret_free(secret[i]);
    memset(e, 0, sizeof(*e));
}

int cred_env_fetch(const struct cred_run *run, struct s3_keys *ret_keys)
{
    const char *access = run->env->access_key;
    const char *secret = run->env->secret_key;
    if (access == NULL || secret == NULL) {
        g_string_append_printf(run->why, "%s is not set. ",
                               access == NULL ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY");
        return access == NULL && secret == NULL ? -ENXIO : -EACCES;
    }
    int r = cred_keys_set(ret_keys, access, secret, run->env->session_token, 0, run->why);
    if (r < 0)
        g_string_append(run->why, "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. ");
    return r;
}
