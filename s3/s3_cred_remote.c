/*
 * Keys from services: STS (web identity, assume role), container credentials (ECS, EKS Pod Identity), instance metadata (IMDSv2).
 *
 * Each function makes its requests once, blocking, without a lock; s3_cred.c decides when to try again. Replies are JSON, only STS
 * answers XML: GLib's markup parser reads its four flat elements. Requests to the link-local services and to loopback ignore proxies:
 * a proxy would see the keys.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "http.h"
#include "s3_cred_int.h"
#include "s3_sign.h"
#include "s3_uri.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>

#define IMDS_TIMEOUT_MS    1000
#define SERVICE_TIMEOUT_MS 10000
#define CONTAINER_HOST     "http://169.254.170.2"
#define TOKEN_CAP_BYTES    (64u << 10)

/* ---- shared ---- */

static void response_wipe(struct http_response *resp)
{
    if (resp->body != NULL)
        explicit_bzero(resp->body->str, resp->body->len);
    http_response_clear(resp);
}

static void headers_wipe_free(GPtrArray *headers)
{
    g_ptr_array_free(headers, TRUE);
}

static GPtrArray *headers_new(void)
{
    return g_ptr_array_new_with_free_func((GDestroyNotify)cred_wipe_free);
}

/* Takes everything up to white space at the end; a token with other control characters is refused. */
static int read_token(const char *path, char **ret_token, GString *why)
{
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (fd < 0) {
        g_string_append_printf(why, "token file %s cannot be read: %s. ", path, err_text(fd));
        return cred_io_error(fd);
    }
    char *buf = g_malloc0(TOKEN_CAP_BYTES);
    size_t len = 0;
    ssize_t n;
    do {
        n = RET_ERRNO(read(fd, buf + len, TOKEN_CAP_BYTES - 1 - len));
        len += n > 0 ? (size_t)n : 0;
    } while (n > 0 || n == -EINTR);
    while (len > 0 && g_ascii_isspace(buf[len - 1]))
        buf[--len] = '\0';
    bool good = n == 0 && len > 0 && len < TOKEN_CAP_BYTES - 1;
    for (size_t i = 0; i < len; i++)
        good = good && (unsigned char)buf[i] >= 0x20 && buf[i] != 0x7f;
    if (good) {
        *ret_token = g_strdup(buf);
    } else {
        g_string_append_printf(why, "token file %s holds no token. ", path);
    }
    explicit_bzero(buf, len);
    g_free(buf);
    return good ? 0 : n < 0 ? cred_io_error((int)n) : -EACCES;
}

/* Is the host (without brackets) a loopback one; with link_local also the container services' addresses. */
static bool host_is_near(const char *host, bool link_local)
{
    if (g_ascii_strcasecmp(host, "localhost") == 0)
        return true;
    struct in_addr a4;
    if (inet_pton(AF_INET, host, &a4) == 1) {
        if ((ntohl(a4.s_addr) >> 24) == 127)
            return true;
        return link_local && (strcmp(host, "169.254.170.2") == 0 || strcmp(host, "169.254.170.23") == 0);
    }
    struct in6_addr a6, pod;
    if (inet_pton(AF_INET6, host, &a6) != 1)
        return false;
    if (IN6_IS_ADDR_LOOPBACK(&a6))
        return true;
    return link_local && inet_pton(AF_INET6, "fd00:ec2::23", &pod) == 1 && memcmp(&a6, &pod, sizeof(a6)) == 0;
}

int cred_url_allowed(const char *url, bool link_local, bool any)
{
    g_autofree char *scheme = NULL;
    g_autofree char *host = NULL;
    /* What two parsers might read differently is out before either sees it. */
    if (strpbrk(url, "@\\ \t\r\n") != NULL)
        return -EACCES;
    if (!g_uri_split(url, G_URI_FLAGS_NONE, &scheme, NULL, &host, NULL, NULL, NULL, NULL, NULL) || host == NULL ||
        host[0] == '\0')
        return -EACCES;
    if (strcmp(scheme, "https") == 0)
        return 0;
    return strcmp(scheme, "http") == 0 && (any || host_is_near(host, link_local)) ? 0 : -EACCES;
}

/* ---- STS ---- */

struct sts_reply {
    char *element; /* owned; the one being read */
    char *access_key, *secret_key, *token, *expiration;
    char *code; /* of an error; its message is not kept, it may quote what was sent */
};

static void sts_start(GMarkupParseContext *ctx, const char *name, const char **attr, const char **values, gpointer data,
                      GError **err)
{
    struct sts_reply *rep = data;
    g_free(rep->element);
    rep->element = g_strdup(name);
}

static void sts_end(GMarkupParseContext *ctx, const char *name, gpointer data, GError **err)
{
    struct sts_reply *rep = data;
    g_clear_pointer(&rep->element, g_free);
}

static void sts_text(GMarkupParseContext *ctx, const char *text, gsize len, gpointer data, GError **err)
{
    struct sts_reply *rep = data;
    if (rep->element == NULL)
        return;
    const struct {
        const char *name;
        char **to;
    } fields[] = {
        {"AccessKeyId", &rep->access_key},
        {"SecretAccessKey", &rep->secret_key},
        {"SessionToken", &rep->token},
        {"Expiration", &rep->expiration},
        {"Code", &rep->code},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(fields); i++) {
        if (strcmp(rep->element, fields[i].name) == 0) {
            cred_wipe_free(*fields[i].to);
            *fields[i].to = g_strstrip(g_strndup(text, len));
        }
    }
}

static void sts_reply_clear(struct sts_reply *rep)
{
    g_free(rep->element);
    cred_wipe_free(rep->access_key);
    cred_wipe_free(rep->secret_key);
    cred_wipe_free(rep->token);
    g_free(rep->expiration);
    g_free(rep->code);
}

static bool sts_parse(const GString *body, struct sts_reply *rep)
{
    static const GMarkupParser parser = {.start_element = sts_start, .end_element = sts_end, .text = sts_text};
    GMarkupParseContext *ctx = g_markup_parse_context_new(&parser, G_MARKUP_TREAT_CDATA_AS_TEXT, rep, NULL);
    bool good = body != NULL && g_markup_parse_context_parse(ctx, body->str, (gssize)body->len, NULL) &&
                g_markup_parse_context_end_parse(ctx, NULL);
    g_markup_parse_context_free(ctx);
    return good;
}

/* Of a reply that is no success. */
static bool sts_may_pass(long status, const char *code)
{
    return status >= 500 || status == 429 || g_strcmp0(code, "Throttling") == 0 ||
           g_strcmp0(code, "IDPCommunicationError") == 0; /* STS could not reach who gave the token */
}

static int sts_result(const struct http_response *resp, const char *action, struct s3_keys *ret_keys, GString *why)
{
    struct sts_reply rep = {0};
    bool parsed = sts_parse(resp->body, &rep);
    int64_t expires_ns = 0;
    int r;
    if (resp->status != 200) {
        g_string_append_printf(why, "STS %s answered %ld %s. ", action, resp->status, rep.code != NULL ? rep.code : "");
        r = sts_may_pass(resp->status, rep.code) ? -EIO : -EACCES;
    } else if (!parsed || rep.expiration == NULL || cred_parse_time(rep.expiration, &expires_ns) < 0) {
        g_string_append_printf(why, "STS %s answered something that is no AWS reply. ", action);
        r = -EACCES;
    } else {
        r = cred_keys_set(ret_keys, rep.access_key, rep.secret_key, rep.token, expires_ns, why);
    }
    sts_reply_clear(&rep);
    return r;
}

static void form_add(GString *form, const char *name, const char *value)
{
    if (value == NULL)
        return;
    g_string_append_printf(form, "&%s=", name);
    s3_uri_encode(form, value, strlen(value), false);
}

struct sts_request {
    const char *action;
    const GString *form;        /* the body */
    const struct s3_keys *keys; /* the source's; NULL: unsigned */
    const char *url, *host, *path;
};

/* Signs the POST with the source's keys. */
static void sts_sign(const struct cred_run *run, const struct sts_request *sts, int64_t now_ns, GPtrArray *headers)
{
    const struct s3_keys *keys = sts->keys;
    char hash[65], amz_date[17], date[9];
    s3_sha256_hex(sts->form->str, sts->form->len, hash);
    s3_amz_date(now_ns / (int64_t)NS_PER_S, amz_date);
    g_strlcpy(date, amz_date, sizeof(date));
    g_ptr_array_add(headers, g_strconcat("Host: ", sts->host, NULL));
    g_ptr_array_add(headers, g_strconcat("X-Amz-Date: ", amz_date, NULL));
    if (keys->session_token != NULL)
        g_ptr_array_add(headers, g_strconcat("X-Amz-Security-Token: ", keys->session_token, NULL));
    struct s3_sign_key key;
    s3_sign_key_derive(keys->secret_key, date, run->region, "sts", &key);
    struct s3_sign_in in = {.method = "POST",
                            .path = sts->path,
                            .query = "",
                            .headers = headers,
                            .payload_hash = hash,
                            .amz_date = amz_date,
                            .region = run->region,
                            .service = "sts",
                            .access_key = keys->access_key};
    g_autofree char *auth = s3_sign_request(&in, &key);
    g_ptr_array_add(headers, g_strconcat("Authorization: ", auth, NULL));
    explicit_bzero(&key, sizeof(key));
}

static char *sts_url(const struct cred_run *run)
{
    if (run->sts_endpoint != NULL) {
        size_t len = strlen(run->sts_endpoint);
        while (len > 0 && run->sts_endpoint[len - 1] == '/')
            len--;
        return g_strdup_printf("%.*s/", (int)len, run->sts_endpoint);
    }
    return g_strdup_printf("https://sts.%s.amazonaws.com%s/", run->region,
                           g_str_has_prefix(run->region, "cn-") ? ".cn" : "");
}

/* Sends it as of now_ns by the clock of STS. */
static int sts_send(const struct cred_run *run, const struct sts_request *sts, int64_t now_ns,
                    struct http_response *resp)
{
    GPtrArray *headers = headers_new();
    g_ptr_array_add(headers, g_strdup("Content-Type: application/x-www-form-urlencoded; charset=utf-8"));
    if (sts->keys != NULL)
        sts_sign(run, sts, now_ns, headers);
    struct http_request req = {.method = "POST",
                               .url = sts->url,
                               .headers = headers,
                               .body = sts->form->str,
                               .body_len = sts->form->len,
                               .total_timeout_ms = SERVICE_TIMEOUT_MS,
                               .no_proxy = strncmp(sts->url, "http://", strlen("http://")) == 0};
    int r = http_perform(run->http, &req, resp);
    headers_wipe_free(headers);
    return r;
}

/* The service's clock minus ours, 0 when that is no reason to refuse a signature. */
static int64_t sts_skew_ns(const struct http_response *resp)
{
    int64_t ahead = resp->date_ns != 0 ? resp->date_ns - clock_wall_ns() : 0;
    return ahead > S3_SKEW_MAX_NS || ahead < -S3_SKEW_MAX_NS ? ahead : 0;
}

/* Where our clock is wrong a signed request is sent again by that of STS, and its keys expire by ours. */
static int sts_exchange(const struct cred_run *run, const struct sts_request *sts, struct s3_keys *ret_keys)
{
    struct http_response resp = {0};
    int r = sts_send(run, sts, clock_wall_ns(), &resp);
    int64_t skew_ns = r == 0 && resp.status != 200 && sts->keys != NULL ? sts_skew_ns(&resp) : 0;
    if (skew_ns != 0) {
        response_wipe(&resp);
        r = sts_send(run, sts, clock_wall_ns() + skew_ns, &resp);
    }
    if (r == 0)
        r = sts_result(&resp, sts->action, ret_keys, run->why);
    else
        g_string_append_printf(run->why, "STS %s at %s: %s. ", sts->action, sts->host, resp.error);
    if (r == 0)
        ret_keys->expires_ns -= skew_ns;
    else if (skew_ns != 0)
        g_string_append_printf(run->why, "(Its clock and ours differ by %" G_GINT64_FORMAT " s: set ours.) ",
                               skew_ns / (int64_t)NS_PER_S);
    response_wipe(&resp);
    return r;
}

/* form is the body; keys NULL: unsigned. */
static int sts_call(const struct cred_run *run, const char *action, const GString *form, const struct s3_keys *keys,
                    struct s3_keys *ret_keys)
{
    g_autofree char *url = sts_url(run);
    if (cred_url_allowed(url, false, run->env->allow_plain_http) < 0) {
        g_string_append_printf(run->why, "STS endpoint %s is not https: tokens would go in the clear. ", url);
        return -EACCES;
    }
    const char *host = strstr(url, "://") + 3;
    const char *path = strchr(host, '/');
    g_autofree char *host_only = g_strndup(host, (size_t)(path - host));
    const struct sts_request sts = {
        .action = action, .form = form, .keys = keys, .url = url, .host = host_only, .path = path};
    return sts_exchange(run, &sts, ret_keys);
}

static GString *sts_form(const struct cred_run *run, const char *action, const struct cred_role *role)
{
    GString *form = g_string_sized_new(4096);
    g_string_append_printf(form, "Action=%s&Version=2011-06-15", action);
    form_add(form, "RoleArn", role->arn);
    form_add(form, "RoleSessionName", role->session_name != NULL ? role->session_name : run->env->session_name);
    form_add(form, "ExternalId", role->external_id);
    form_add(form, "DurationSeconds", role->duration_s);
    return form;
}

int cred_sts_web_identity(const struct cred_run *run, const struct cred_role *role, struct s3_keys *ret_keys)
{
    char *token = NULL;
    int r = read_token(role->token_file, &token, run->why);
    if (r < 0)
        return r;
    GString *form = sts_form(run, "AssumeRoleWithWebIdentity", role);
    form_add(form, "WebIdentityToken", token);
    r = sts_call(run, "AssumeRoleWithWebIdentity", form, NULL, ret_keys);
    cred_wipe_gstring(form);
    cred_wipe_free(token);
    return r;
}

int cred_sts_assume_role(const struct cred_run *run, const struct cred_role *role, const struct s3_keys *source,
                         struct s3_keys *ret_keys)
{
    GString *form = sts_form(run, "AssumeRole", role);
    int r = sts_call(run, "AssumeRole", form, source, ret_keys);
    cred_wipe_gstring(form);
    return r;
}

/* ---- containers ---- */

static int container_token(const struct cred_env *env, char **ret_token, GString *why)
{
    if (env->container_token_file != NULL)
        return read_token(env->container_token_file, ret_token, why);
    const char *t = env->container_token;
    if (t == NULL)
        return 0;
    for (const char *p = t; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            g_string_append(why, "AWS_CONTAINER_AUTHORIZATION_TOKEN holds a control character. ");
            return -EACCES;
        }
    }
    *ret_token = g_strdup(t);
    return 0;
}

int cred_container_fetch(const struct cred_run *run, struct s3_keys *ret_keys)
{
    const struct cred_env *env = run->env;
    g_autofree char *url = env->container_relative != NULL ? g_strconcat(CONTAINER_HOST, env->container_relative, NULL)
                                                           : g_strdup(env->container_full);
    if (url == NULL) {
        g_string_append(run->why, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI are not set. ");
        return -ENXIO;
    }
    if (cred_url_allowed(url, true, false) < 0 ||
        (env->container_relative != NULL && env->container_relative[0] != '/')) {
        g_string_append(
            run->why,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https, or http to loopback or the container service. ");
        return -EACCES;
    }
    char *token = NULL;
    int r = container_token(env, &token, run->why);
    if (r < 0)
        return r;
    GPtrArray *headers = headers_new();
    g_ptr_array_add(headers, g_strdup("Accept: application/json"));
    if (token != NULL)
        g_ptr_array_add(headers, g_strconcat("Authorization: ", token, NULL));
    cred_wipe_free(token);
    struct http_request req = {.method = "GET",
                               .url = url,
                               .headers = headers,
                               .connect_timeout_ms = 2000,
                               .total_timeout_ms = SERVICE_TIMEOUT_MS,
                               .no_proxy = true};
    struct http_response resp = {0};
    r = http_perform(run->http, &req, &resp);
    if (r < 0) {
        g_string_append_printf(run->why, "container credentials: %s. ", resp.error);
    } else if (resp.status != 200) {
        g_string_append_printf(run->why, "container credentials: the service answered %ld. ", resp.status);
        r = resp.status >= 500 || resp.status == 429 ? -EIO : -EACCES;
    } else {
        r = cred_keys_from_json(resp.body->str, resp.body->len, "Token", false, ret_keys, run->why);
    }
    response_wipe(&resp);
    headers_wipe_free(headers);
    return r;
}

/* ---- instance metadata ---- */

/* -ENXIO: nobody there or no role. */
static int imds_call(const struct cred_run *run, const char *method, const char *path, const char *header,
                     struct http_response *resp)
{
    g_autofree char *url = g_strconcat(run->env->imds_endpoint, path, NULL);
    GPtrArray *headers = headers_new();
    g_ptr_array_add(headers, g_strdup(header));
    struct http_request req = {.method = method,
                               .url = url,
                               .headers = headers,
                               .connect_timeout_ms = IMDS_TIMEOUT_MS,
                               .total_timeout_ms = IMDS_TIMEOUT_MS,
                               .no_proxy = true};
    int r = http_perform(run->http, &req, resp);
    if (r < 0)
        g_string_append_printf(run->why, "instance metadata at %s: %s. ", run->env->imds_endpoint, resp->error);
    else if (resp->status != 200)
        g_string_append_printf(run->why, "instance metadata at %s answered %ld. ", run->env->imds_endpoint,
                               resp->status);
    headers_wipe_free(headers);
    if (r < 0)
        return r == -ECANCELED ? r : -ENXIO;
    if (resp->status == 200)
        return 0;
    return resp->status >= 500 || resp->status == 429 ? -EIO : -ENXIO;
}

static int imds_keys(const struct cred_run *run, const char *token_header, const char *role, struct s3_keys *ret_keys)
{
    g_autoptr(GString) path = g_string_new("/latest/meta-data/iam/security-credentials/");
    s3_uri_encode(path, role, strlen(role), false);
    struct http_response resp = {0};
    int r = imds_call(run, "GET", path->str, token_header, &resp);
    if (r == 0)
        r = cred_keys_from_json(resp.body->str, resp.body->len, "Token", false, ret_keys, run->why);
    response_wipe(&resp);
    return r;
}

static int imds_role(const struct cred_run *run, const char *token_header, char **ret_role)
{
    struct http_response resp = {0};
    int r = imds_call(run, "GET", "/latest/meta-data/iam/security-credentials/", token_header, &resp);
    if (r == 0) {
        g_autofree char *role = g_strdup(resp.body->str);
        g_strstrip(g_strdelimit(role, "\n", '\0'));
        if (role[0] == '\0') {
            g_string_append(run->why, "the instance has no role. ");
            r = -ENXIO;
        } else {
            *ret_role = g_steal_pointer(&role);
        }
    }
    http_response_clear(&resp);
    return r;
}

int cred_imds_fetch(const struct cred_run *run, struct s3_keys *ret_keys)
{
    if (run->env->imds_disabled) {
        g_string_append(run->why, "AWS_EC2_METADATA_DISABLED is set. ");
        return -ENXIO;
    }
    struct http_response resp = {0};
    int r = imds_call(run, "PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600", &resp);
    char *header = NULL;
    if (r == 0 && resp.body->len > 0 && strpbrk(resp.body->str, "\r\n") == NULL)
        header = g_strconcat("X-aws-ec2-metadata-token: ", resp.body->str, NULL);
    else if (r == 0)
        r = -ENXIO;
    response_wipe(&resp);
    if (r < 0)
        return r;
    g_autofree char *role = NULL;
    r = imds_role(run, header, &role);
    if (r == 0)
        r = imds_keys(run, header, role, ret_keys);
    cred_wipe_free(header);
    return r;
}
