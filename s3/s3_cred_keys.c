/*
 * Keys as values: checking, parsing, wiping, and memory for them. Pure but for that: no I/O, no clock.
 *
 * Everything secret passes through here on its way in, so this is where it is checked to be fit for an HTTP header and where the
 * intermediate copies (JSON tree, strings) are wiped.
 */
#include "base/clock.h"
#include "s3_cred_int.h"

#include <jansson.h>
#include <string.h>
#include <sys/mman.h>

void *cred_secret_pages(size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    (void)madvise(p, len, MADV_DONTDUMP); /* best effort, as is keeping it out of swap */
    (void)mlock(p, len);
    return p;
}

char *cred_secret_dup(const char *secret)
{
    size_t len = secret != NULL ? strlen(secret) : 0;
    char *p = secret != NULL ? cred_secret_pages(len + 1) : NULL;
    return p != NULL ? memcpy(p, secret, len) : NULL;
}

void cred_secret_free(char *secret)
{
    size_t len = secret != NULL ? strlen(secret) : 0;
    if (secret == NULL)
        return;
    explicit_bzero(secret, len);
    (void)munmap(secret, len + 1);
}

void cred_wipe_free(char *secret)
{
    if (secret == NULL)
        return;
    explicit_bzero(secret, strlen(secret));
    g_free(secret);
}

void cred_wipe_gstring(GString *s)
{
    if (s == NULL)
        return;
    explicit_bzero(s->str, s->len);
    g_string_free(s, TRUE);
}

void s3_keys_clear(struct s3_keys *keys)
{
    if (keys == NULL)
        return;
    cred_wipe_free(keys->session_token);
    explicit_bzero(keys, sizeof(*keys));
}

static bool printable(const char *s)
{
    for (; *s != '\0'; s++) {
        if ((unsigned char)*s <= 0x20 || (unsigned char)*s >= 0x7f)
            return false;
    }
    return true;
}

int cred_keys_set(struct s3_keys *ret_keys, const char *access_key, const char *secret_key, const char *token,
                  int64_t expires_ns, GString *why)
{
    const char *wrong = NULL;
    if (access_key == NULL || access_key[0] == '\0' || secret_key == NULL || secret_key[0] == '\0')
        wrong = "access key or secret key is missing";
    else if (strlen(access_key) >= sizeof(ret_keys->access_key) || strlen(secret_key) >= sizeof(ret_keys->secret_key))
        wrong = "a key is longer than 255 bytes";
    else if (!printable(access_key) || !printable(secret_key) || (token != NULL && !printable(token)))
        wrong = "a key holds a blank or a control character";
    if (wrong != NULL) {
        g_string_append_printf(why, "%s. ", wrong);
        return -EACCES;
    }
    memset(ret_keys, 0, sizeof(*ret_keys));
    g_strlcpy(ret_keys->access_key, access_key, sizeof(ret_keys->access_key));
    g_strlcpy(ret_keys->secret_key, secret_key, sizeof(ret_keys->secret_key));
    ret_keys->session_token = token != NULL && token[0] != '\0' ? g_strdup(token) : NULL;
    ret_keys->expires_ns = expires_ns;
    return 0;
}

int cred_parse_time(const char *text, int64_t *ret_ns)
{
    g_autoptr(GTimeZone) utc = g_time_zone_new_utc();
    g_autoptr(GDateTime) t = g_date_time_new_from_iso8601(text, utc);
    if (t == NULL)
        return -EBADMSG;
    int64_t unix_s = g_date_time_to_unix(t);
    if (unix_s < 0)
        return -EBADMSG;
    /* Some tools write the year 9999 for "never": beyond what ns in 63 bits can say. */
    *ret_ns = clock_wall_of(unix_s, 0);
    return 0;
}

static void wipe_json(json_t *object)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (json_is_string(value)) /* jansson gives its own buffer out as const */
            explicit_bzero((void *)(uintptr_t)json_string_value(value), json_string_length(value));
    }
}

static int keys_from_object(json_t *o, const char *token_name, bool versioned, struct s3_keys *ret_keys, GString *why)
{
    if (versioned && json_integer_value(json_object_get(o, "Version")) != 1) {
        g_string_append(why, "its output is not of \"Version\": 1. ");
        return -EACCES;
    }
    const char *code = json_string_value(json_object_get(o, "Code")); /* instance metadata only */
    if (code != NULL && strcmp(code, "Success") != 0) {
        g_string_append(why, "the service reports failure instead of keys. ");
        return -EACCES;
    }
    int64_t expires_ns = 0;
    const char *expiration = json_string_value(json_object_get(o, "Expiration"));
    if (expiration != NULL && cred_parse_time(expiration, &expires_ns) < 0) {
        g_string_append(why, "Expiration is no ISO 8601 time. ");
        return -EACCES;
    }
    return cred_keys_set(ret_keys, json_string_value(json_object_get(o, "AccessKeyId")),
                         json_string_value(json_object_get(o, "SecretAccessKey")),
                         json_string_value(json_object_get(o, token_name)), expires_ns, why);
}

int cred_keys_from_json(const char *buf, size_t len, const char *token_name, bool versioned, struct s3_keys *ret_keys,
                        GString *why)
{
    json_t *o = json_loadb(buf, len, 0, NULL);
    if (!json_is_object(o)) {
        g_string_append(why, "its output is not a JSON object. ");
        json_decref(o);
        return -EACCES;
    }
    int r = keys_from_object(o, token_name, versioned, ret_keys, why);
    wipe_json(o);
    json_decref(o);
    return r;
}
