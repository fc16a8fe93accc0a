/* Request building; see s3_req.h. No state, no locks. */
#include "s3_req.h"

#include "objstore.h"
#include "s3_cred.h"

#include <string.h>

struct pair {
    char *name; /* encoded */
    char *value;
};

static void pair_free(void *p)
{
    struct pair *pair = p;
    g_free(pair->name);
    g_free(pair->value);
    g_free(pair);
}

void s3_req_init(struct s3_req *req, const char *method, char *key_owned)
{
    req->method = method;
    req->key = key_owned;
    req->query = g_ptr_array_new_with_free_func(pair_free);
    req->headers = g_ptr_array_new_with_free_func(g_free);
}

void s3_req_fini(struct s3_req *req)
{
    g_free(req->key);
    if (req->query)
        g_ptr_array_unref(req->query);
    if (req->headers)
        g_ptr_array_unref(req->headers);
    memset(req, 0, sizeof *req);
}

static char *encode(const char *s)
{
    GString *out = g_string_new(NULL);
    s3_uri_encode(out, s, strlen(s), false);
    return g_string_free(out, FALSE);
}

void s3_req_query(struct s3_req *req, const char *name, const char *value)
{
    struct pair *p = g_new0(struct pair, 1);
    p->name = encode(name);
    p->value = encode(value);
    g_ptr_array_add(req->query, p);
}

void s3_req_header(struct s3_req *req, const char *name, const char *value)
{
    g_assert(!strpbrk(value, "\r\n"));
    /* libcurl takes "Name:" as an order to leave the header out and "Name;" as an empty value */
    g_ptr_array_add(req->headers, *value ? g_strconcat(name, ": ", value, NULL) : g_strconcat(name, ";", NULL));
}

void s3_req_headerf(struct s3_req *req, const char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_autofree char *value = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    s3_req_header(req, name, value);
}

static int pair_cmp(const void *a, const void *b)
{
    const struct pair *x = *(struct pair *const *)a;
    const struct pair *y = *(struct pair *const *)b;
    int c = strcmp(x->name, y->name);
    return c ? c : strcmp(x->value, y->value);
}

static char *query_canonical(const struct s3_req *req)
{
    GString *out = g_string_new(NULL);
    g_ptr_array_sort(req->query, pair_cmp);
    for (guint i = 0; i < req->query->len; i++) {
        const struct pair *p = req->query->pdata[i];
        g_string_append_printf(out, "%s%s=%s", i ? "&" : "", p->name, p->value);
    }
    return g_string_free(out, FALSE);
}

void s3_req_build(const struct s3_req *req, const struct s3_req_site *site, char **ret_url, GPtrArray **ret_headers)
{
    GPtrArray *headers = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *path = s3_endpoint_path(site->ep, site->bucket, req->key);
    g_autofree char *query = query_canonical(req);
    g_ptr_array_add(headers, g_strconcat("Host: ", site->ep->host, NULL));
    for (guint i = 0; i < req->headers->len; i++)
        g_ptr_array_add(headers, g_strdup(req->headers->pdata[i]));
    if (site->sign_key) {
        g_ptr_array_add(headers, g_strconcat("x-amz-content-sha256: ", site->payload_hash, NULL));
        g_ptr_array_add(headers, g_strconcat("x-amz-date: ", site->amz_date, NULL));
        if (site->keys->session_token)
            g_ptr_array_add(headers, g_strconcat("x-amz-security-token: ", site->keys->session_token, NULL));
        struct s3_sign_in in = {.method = req->method,
                                .path = path,
                                .query = query,
                                .headers = headers,
                                .payload_hash = site->payload_hash,
                                .amz_date = site->amz_date,
                                .region = site->region,
                                .service = "s3",
                                .access_key = site->keys->access_key};
        g_autofree char *auth = s3_sign_request(&in, site->sign_key);
        g_ptr_array_add(headers, g_strconcat("Authorization: ", auth, NULL));
    }
    *ret_url =
        g_strconcat(site->ep->tls ? "https://" : "http://", site->ep->host, path, *query ? "?" : "", query, NULL);
    *ret_headers = headers;
}
