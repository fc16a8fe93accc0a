/*
 * Blocking HTTP requests over a pool of kept-alive connections; http.c is the only user of libcurl.
 *
 * One call, one request: no retries and no redirects here (redirect replies come back as they are). A reply of any status is success
 * (0); a transport failure is -errno and its kind stands in resp->fail. Calls block and may come from any thread, never with a
 * ranked lock held.
 *
 *   g_autoptr(GPtrArray) h = g_ptr_array_new_with_free_func(g_free);
 *   g_ptr_array_add(h, g_strdup("Accept: application/json"));
 *   struct http_request req = {.method = "GET", .url = url, .headers = h, .total_timeout_ms = 1000};
 *   struct http_response resp = {0};
 *   int r = http_perform(pool, &req, &resp);
 *   if (r == 0 && resp.status == 200)
 *       use(resp.body->str, resp.body->len);
 *   http_response_clear(&resp);
 */
#pragma once
#include "base/err.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct http_pool;

struct http_pool_config {
    const char *ca_bundle;     /* NULL: the system's */
    uint32_t max_connections;  /* requests at one time, more wait; 0: 64 */
    uint64_t upload_limit_bps; /* bytes a second over all requests with a body larger than 16 KiB; 0 none */
    uint64_t download_limit_bps;
};

/* Why no whole reply came. */
enum http_fail {
    HTTP_FAIL_NONE,
    HTTP_FAIL_URL,      /* malformed URL or other mistake of the caller */
    HTTP_FAIL_RESOLVE,  /* name not found: nothing was sent */
    HTTP_FAIL_CONNECT,  /* refused or unreachable: nothing was sent */
    HTTP_FAIL_TLS,      /* handshake: nothing was sent */
    HTTP_FAIL_TLS_CERT, /* the certificate is not to be trusted: nothing was sent */
    HTTP_FAIL_TIMEOUT,  /* connected, then silence or too slow */
    HTTP_FAIL_BROKEN,   /* reset or closed in the middle, short body */
    HTTP_FAIL_PROTOCOL, /* the peer does not speak HTTP */
    HTTP_FAIL_TOO_BIG,  /* reply or headers beyond their cap */
    HTTP_FAIL_CALLBACK, /* on_head or sink gave an error: it is the result */
    HTTP_FAIL_CANCELED, /* http_pool_shutdown() */
    N_HTTP_FAILS
};

struct http_response {
    long status; /* 0 when no reply came */
    enum http_fail fail;
    bool sent;           /* a connection took the request: the peer may have acted on it */
    char error[256];     /* text of a transport failure, free of secrets */
    GHashTable *headers; /* owned; lower-case name -> last value */
    GString *body;       /* owned; what did not go to the sink */
    uint64_t n_sunk;     /* bytes given to the sink */
    int64_t date_ns;     /* the Date header as wall time, 0 if none */
};

/* Status and headers are there, no byte of the body yet. Non-zero stops the request and is its result. */
typedef int http_head_fn(void *ctx, const struct http_response *resp);
/* Part of a 2xx body, in order. Non-zero stops the request and is its result. */
typedef int http_sink_fn(void *ctx, const void *buf, size_t len);

struct http_request {
    const char *method;
    const char *url;
    const GPtrArray *headers; /* "Name: value"; may be NULL; borrowed */
    const void *body;         /* borrowed for the call */
    size_t body_len;
    http_head_fn *on_head;       /* may be NULL */
    http_sink_fn *sink;          /* NULL: the body goes to resp->body; error replies (not 2xx) always do */
    void *ctx;                   /* for on_head and sink */
    size_t body_cap;             /* most bytes in resp->body; 0: 64 KiB */
    uint32_t connect_timeout_ms; /* 0: 5000 */
    uint32_t low_speed_s;        /* this long below 512 B/s: TIMEOUT; 0: 30 */
    uint32_t total_timeout_ms;   /* 0: none */
    bool no_proxy;               /* ignore proxy variables (metadata services, loopback) */
    bool fresh;                  /* not over a connection used before, and with the name looked up anew */
};

int http_pool_new(const struct http_pool_config *cfg, struct http_pool **ret_pool) MUST_CHECK;
/* NULL allowed. No request may be running. */
void http_pool_free(struct http_pool *pool);
/* Ends requests in flight within a second, and all to come, with -ECANCELED. */
void http_pool_shutdown(struct http_pool *pool);

/* resp must be zeroed or cleared; it is filled also on failure. http_response_clear() it in any case. */
int http_perform(struct http_pool *pool, const struct http_request *req, struct http_response *resp) MUST_CHECK;
void http_response_clear(struct http_response *resp);
/* Value of a header, name in lower case; NULL if absent. */
const char *http_header(const struct http_response *resp, const char *name);

/* An HTTP date as wall time, 0 if it is none. */
int64_t http_date_parse(const char *text);
/* "connect", "timeout"... static storage. */
const char *http_fail_name(enum http_fail fail);
