/*
 * HTTP over libcurl's easy interface.
 *
 * Each request borrows an easy handle from the pool: last used first, so that few connections stay warm. The others are looked at, and
 * dropped when too old, only when a request needs them; handles live as long as the pool. A handle
 * keeps its own connection, TLS session and DNS cache; nothing is shared between handles but the pool's counters, so
 * libcurl needs no locking of ours. The pool's lock covers the idle stack, the count of requests running and the two bandwidth buckets;
 * it is never held while libcurl runs.
 *
 * Names are looked up by a thread of libcurl's, which a resolver that gets no answer holds for half a minute. A request that ends meanwhile (its time
 * is over, nobody waits for it, shutdown) leaves that thread behind (QUICK_EXIT): it owns what it works on and frees it in the end, or ends with the
 * process. So many are left behind as requests can time out in that half minute.
 *
 * There is no limit on the whole transfer time unless asked for: a 5 GiB part over a slow link is fine, silence is not (LOW_SPEED).
 */
#include "http.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/sync.h"

#include <curl/curl.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define BODY_CAP_DEFAULT  (64u << 10)
#define HEADERS_CAP       (128u << 10)
#define LIMIT_FREE_BYTES  (16u << 10) /* bodies up to this size do not wait for the bandwidth bucket */
#define CONN_MAX_IDLE_S   4L          /* stores close idle connections after about 5 s */
#define KEEPALIVE_IDLE_S  30L
#define KEEPALIVE_EVERY_S 10L /* of which the kernel sends 9 */
#define LOW_SPEED_BYTES_S 512L
#define RECEIVE_BYTES     (32L << 10) /* it is copied on from here: should fit into the core's cache */

struct bucket { /* bandwidth: tokens are bytes, may go below zero */
    uint64_t rate_bps;
    double tokens;
    uint64_t at_ns;
};

struct http_pool {
    /* immutable after _new */
    char *ca_bundle;
    uint32_t max_running;
    /* atomic */
    int stopping;

    struct mutex mu;
    struct cond cv; /* a handle came back, or stopping */
    /* guarded by mu */
    GPtrArray *idle; /* CURL *, top of stack last */
    uint32_t n_running;
    struct bucket up, down;
};

struct transfer { /* one request; lives on the caller's stack */
    struct http_pool *pool;
    const struct http_request *req;
    struct http_response *resp;
    size_t sent_off;
    size_t header_bytes;
    bool head_done;
    bool too_big;
    bool begun;      /* the request was handed to a connection */
    bool sent_twice; /* it was about to be handed to a second one */
    int cb_error;
};

static const struct {
    CURLcode code;
    enum http_fail fail;
} fail_rows[] = {
    {CURLE_URL_MALFORMAT, HTTP_FAIL_URL},
    {CURLE_UNSUPPORTED_PROTOCOL, HTTP_FAIL_URL},
    {CURLE_BAD_FUNCTION_ARGUMENT, HTTP_FAIL_URL},
    {CURLE_COULDNT_RESOLVE_HOST, HTTP_FAIL_RESOLVE},
    {CURLE_COULDNT_RESOLVE_PROXY, HTTP_FAIL_RESOLVE},
    {CURLE_COULDNT_CONNECT, HTTP_FAIL_CONNECT},
    {CURLE_SSL_CONNECT_ERROR, HTTP_FAIL_TLS},
    {CURLE_SSL_CIPHER, HTTP_FAIL_TLS},
    {CURLE_PEER_FAILED_VERIFICATION, HTTP_FAIL_TLS_CERT},
    {CURLE_SSL_CACERT_BADFILE, HTTP_FAIL_TLS_CERT},
    {CURLE_SSL_ISSUER_ERROR, HTTP_FAIL_TLS_CERT},
    {CURLE_OPERATION_TIMEDOUT, HTTP_FAIL_TIMEOUT},
    {CURLE_PARTIAL_FILE, HTTP_FAIL_BROKEN},
    {CURLE_GOT_NOTHING, HTTP_FAIL_BROKEN},
    {CURLE_SEND_ERROR, HTTP_FAIL_BROKEN},
    {CURLE_RECV_ERROR, HTTP_FAIL_BROKEN},
    {CURLE_SEND_FAIL_REWIND, HTTP_FAIL_BROKEN},
    {CURLE_WEIRD_SERVER_REPLY, HTTP_FAIL_PROTOCOL},
    {CURLE_BAD_CONTENT_ENCODING, HTTP_FAIL_PROTOCOL},
    {CURLE_FILESIZE_EXCEEDED, HTTP_FAIL_TOO_BIG},
    {CURLE_ABORTED_BY_CALLBACK, HTTP_FAIL_CANCELED},
};

static const struct {
    const char *name;
    int err;
} fail_info[N_HTTP_FAILS] = {
    [HTTP_FAIL_NONE] = {"none", 0},
    [HTTP_FAIL_URL] = {"url", -EINVAL},
    [HTTP_FAIL_RESOLVE] = {"resolve", -EIO},
    [HTTP_FAIL_CONNECT] = {"connect", -EIO},
    [HTTP_FAIL_TLS] = {"tls", -EIO},
    [HTTP_FAIL_TLS_CERT] = {"tls certificate", -EACCES},
    [HTTP_FAIL_TIMEOUT] = {"timeout", -ETIMEDOUT},
    [HTTP_FAIL_BROKEN] = {"broken connection", -EIO},
    [HTTP_FAIL_PROTOCOL] = {"protocol", -EBADMSG},
    [HTTP_FAIL_TOO_BIG] = {"reply too big", -EBADMSG},
    [HTTP_FAIL_CALLBACK] = {"stopped", -EIO},
    [HTTP_FAIL_CANCELED] = {"canceled", -ECANCELED},
};

const char *http_fail_name(enum http_fail fail)
{
    return fail < N_HTTP_FAILS ? fail_info[fail].name : "?";
}

static bool pool_stopping(struct http_pool *pool)
{
    return __atomic_load_n(&pool->stopping, __ATOMIC_RELAXED) != 0; /* a flag: no data hangs on it */
}

/* Takes n bytes; returns how long the caller has to wait before it moves them. */
static uint64_t bucket_take(struct bucket *b, size_t n, uint64_t now_ns)
{
    double rate = (double)b->rate_bps;
    double burst = rate / 4; /* a quarter of a second */
    b->tokens += (double)(now_ns - b->at_ns) * rate / (double)NS_PER_S;
    if (b->tokens > burst)
        b->tokens = burst;
    b->at_ns = now_ns;
    b->tokens -= (double)n;
    return b->tokens >= 0 ? 0 : (uint64_t)(-b->tokens / rate * (double)NS_PER_S);
}

static void throttle(struct http_pool *pool, struct bucket *b, size_t n)
{
    if (b->rate_bps == 0)
        return;
    mutex_lock(&pool->mu);
    uint64_t now = clock_mono_ns();
    uint64_t until = now + bucket_take(b, n, now);
    while (now < until && !pool_stopping(pool) && patience_wait(&pool->cv, &pool->mu, until) == 0)
        now = clock_mono_ns();
    mutex_unlock(&pool->mu);
}

static size_t on_read(char *buf, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    size_t left = t->req->body_len - t->sent_off;
    size_t len = MIN(size * n, left);
    if (pool_stopping(t->pool))
        return CURL_READFUNC_ABORT;
    if (t->req->body_len > LIMIT_FREE_BYTES && t->pool->up.rate_bps) {
        len = MIN(len, 64u << 10);
        throttle(t->pool, &t->pool->up, len);
    }
    if (len)
        memcpy(buf, (const char *)t->req->body + t->sent_off, len);
    t->sent_off += len;
    metric_add(M_sent_bytes, (int64_t)len);
    if (len)
        patience_progress();
    return len;
}

static int on_seek(void *ctx, curl_off_t off, int origin)
{
    struct transfer *t = ctx;
    if (origin != SEEK_SET || off < 0 || (uint64_t)off > t->req->body_len)
        return CURL_SEEKFUNC_FAIL;
    t->sent_off = (size_t)off;
    return CURL_SEEKFUNC_OK;
}

static void response_restart(struct transfer *t)
{
    g_hash_table_remove_all(t->resp->headers);
    g_string_truncate(t->resp->body, 0);
    t->resp->date_ns = 0;
}

int64_t http_date_parse(const char *text)
{
    time_t when = curl_getdate(text, NULL);
    return when > 0 ? clock_wall_of((int64_t)when, 0) : 0;
}

static size_t on_header(char *buf, size_t size, size_t n, void *ctx)
{
    struct transfer *t = ctx;
    size_t len = size * n;
    t->header_bytes += len;
    if (t->header_bytes > HEADERS_CAP) {
        t->too_big = true;
        return 0;
    }
    if (len >= 5 && memcmp(buf, "HTTP/", 5) == 0) { /* a new head: drop a 100-continue's */
        response_restart(t);
        return len;
    }
    const char *colon = memchr(buf, ':', len);
    if (!colon || memchr(buf, '\0', len))
        return len;
    g_autofree char *name = g_ascii_strdown(buf, colon - buf);
    char *value = g_strndup(colon + 1, len - (size_t)(colon + 1 - buf));
    g_strstrip(value);
    if (strcmp(name, "date") == 0)
        t->resp->date_ns = http_date_parse(value);
    g_hash_table_replace(t->resp->headers, g_steal_pointer(&name), value);
    return len;
}

static int head_done(struct transfer *t, CURL *curl)
{
    if (t->head_done)
        return 0;
    t->head_done = true;
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &t->resp->status); /* fails on unknown infos only */
    return t->req->on_head ? t->req->on_head(t->req->ctx, t->resp) : 0;
}

struct write_ctx {
    struct transfer *t;
    CURL *curl;
};

static size_t on_write(char *buf, size_t size, size_t n, void *ctx)
{
    struct write_ctx *w = ctx;
    struct transfer *t = w->t;
    size_t len = size * n;
    t->cb_error = head_done(t, w->curl);
    if (t->cb_error)
        return CURL_WRITEFUNC_ERROR;
    if (t->req->sink && t->resp->status / 100 == 2) {
        throttle(t->pool, &t->pool->down, len);
        t->cb_error = t->req->sink(t->req->ctx, buf, len);
        if (t->cb_error)
            return CURL_WRITEFUNC_ERROR;
        t->resp->n_sunk += len;
        patience_progress();
        return len;
    }
    size_t cap = t->req->body_cap ? t->req->body_cap : BODY_CAP_DEFAULT;
    if (t->resp->body->len + len > cap) {
        t->too_big = true;
        return CURL_WRITEFUNC_ERROR;
    }
    g_string_append_len(t->resp->body, buf, (gssize)len);
    return len;
}

/*
 * libcurl hands a request to a second connection by itself when a kept one ends without a byte of reply. The peer may have carried out
 * the first, so only what changes nothing goes that way; anything else counts as a broken connection, for the caller to settle.
 */
static int on_send(void *ctx, char *peer, char *own, int peer_port, int own_port)
{
    struct transfer *t = ctx;
    bool changes_nothing = strcmp(t->req->method, "GET") == 0 || strcmp(t->req->method, "HEAD") == 0;
    t->sent_twice = t->begun && !changes_nothing;
    t->begun = true;
    return t->sent_twice ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static int on_progress(void *ctx, curl_off_t dl_total, curl_off_t dl_now, curl_off_t ul_total, curl_off_t ul_now)
{
    return pool_stopping(ctx) || patience_over() < 0 ? 1 : 0;
}

int http_pool_new(const struct http_pool_config *cfg, struct http_pool **ret_pool)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return -ENOMEM;
    struct http_pool *pool = g_new0(struct http_pool, 1);
    pool->ca_bundle = g_strdup(cfg->ca_bundle);
    pool->max_running = cfg->max_connections ? cfg->max_connections : 64;
    mutex_init(&pool->mu, LOCK_HTTP_POOL);
    cond_init(&pool->cv);
    pool->idle = g_ptr_array_new();
    pool->up.rate_bps = cfg->upload_limit_bps;
    pool->down.rate_bps = cfg->download_limit_bps;
    pool->up.at_ns = pool->down.at_ns = clock_mono_ns();
    *ret_pool = pool;
    return 0;
}

void http_pool_free(struct http_pool *pool)
{
    if (!pool)
        return;
    g_assert(pool->n_running == 0);
    for (guint i = 0; i < pool->idle->len; i++)
        curl_easy_cleanup(pool->idle->pdata[i]);
    g_ptr_array_free(pool->idle, TRUE);
    cond_fini(&pool->cv);
    mutex_fini(&pool->mu);
    g_free(pool->ca_bundle);
    g_free(pool);
    curl_global_cleanup();
}

void http_pool_shutdown(struct http_pool *pool)
{
    mutex_lock(&pool->mu);
    __atomic_store_n(&pool->stopping, 1, __ATOMIC_RELAXED);
    cond_broadcast(&pool->cv);
    mutex_unlock(&pool->mu);
}

static int handle_get(struct http_pool *pool, CURL **ret_curl)
{
    CURL *curl = NULL;
    int r = 0;
    mutex_lock(&pool->mu);
    while (r == 0 && pool->n_running >= pool->max_running && !pool_stopping(pool))
        r = patience_wait(&pool->cv, &pool->mu, UINT64_MAX);
    if (r < 0 || pool_stopping(pool)) {
        mutex_unlock(&pool->mu);
        return -ECANCELED;
    }
    pool->n_running++;
    if (pool->idle->len)
        curl = g_ptr_array_remove_index(pool->idle, pool->idle->len - 1);
    mutex_unlock(&pool->mu);
    if (!curl)
        curl = curl_easy_init();
    if (!curl) {
        mutex_lock(&pool->mu);
        pool->n_running--;
        cond_broadcast(&pool->cv);
        mutex_unlock(&pool->mu);
        return -ENOMEM;
    }
    *ret_curl = curl;
    return 0;
}

/* A handle that failed is not used again: libcurl 7.88 refuses CURLOPT_BUFFERSIZE for good on one whose name did not resolve. */
static void handle_put(struct http_pool *pool, CURL *curl, bool failed)
{
    if (failed)
        curl_easy_cleanup(curl);
    else
        curl_easy_reset(curl); /* keeps connections, TLS sessions and DNS cache */
    mutex_lock(&pool->mu);
    pool->n_running--;
    if (!failed)
        g_ptr_array_add(pool->idle, curl);
    cond_broadcast(&pool->cv);
    mutex_unlock(&pool->mu);
}

#define SET(opt, value) ok = ok && curl_easy_setopt(curl, opt, value) == CURLE_OK

static bool set_transport(CURL *curl, const struct http_pool *pool, const struct http_request *req)
{
    bool ok = true;
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L); /* whatever silence is allowed: two minutes of a host that is no more */
    SET(CURLOPT_TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    SET(CURLOPT_TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    SET(CURLOPT_BUFFERSIZE, RECEIVE_BYTES);
    SET(CURLOPT_UPLOAD_BUFFERSIZE, req->body_len > (256u << 10) ? 1L << 20 : 64L << 10);
    SET(CURLOPT_MAXAGE_CONN, CONN_MAX_IDLE_S);
    SET(CURLOPT_DNS_CACHE_TIMEOUT, req->fresh ? 0L : 60L);
    SET(CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (pool->ca_bundle)
        SET(CURLOPT_CAINFO, pool->ca_bundle);
    if (req->no_proxy)
        SET(CURLOPT_NOPROXY, "*");
    if (req->fresh)
        SET(CURLOPT_FRESH_CONNECT, 1L);
    bool limited = pool->up.rate_bps || pool->down.rate_bps;
    SET(CURLOPT_CONNECTTIMEOUT_MS, req->connect_timeout_ms ? (long)req->connect_timeout_ms : 5000L);
    SET(CURLOPT_LOW_SPEED_LIMIT, limited ? 1L : LOW_SPEED_BYTES_S);
    SET(CURLOPT_LOW_SPEED_TIME, req->low_speed_s ? (long)req->low_speed_s : 30L);
    SET(CURLOPT_TIMEOUT_MS, (long)req->total_timeout_ms);
#if LIBCURL_VERSION_NUM >= 0x075700
    (void)curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L); /* a library older than its header has it not */
#endif
    return ok;
}

static bool set_request(CURL *curl, struct transfer *t, struct write_ctx *w, struct curl_slist *headers)
{
    const struct http_request *req = t->req;
    bool ok = true;
    SET(CURLOPT_URL, req->url);
    SET(CURLOPT_HTTPHEADER, headers);
    SET(CURLOPT_ERRORBUFFER, t->resp->error);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, t);
    SET(CURLOPT_WRITEFUNCTION, on_write);
    SET(CURLOPT_WRITEDATA, w);
    SET(CURLOPT_PREREQFUNCTION, on_send);
    SET(CURLOPT_PREREQDATA, t);
    SET(CURLOPT_XFERINFOFUNCTION, on_progress);
    SET(CURLOPT_XFERINFODATA, t->pool);
    SET(CURLOPT_NOPROGRESS, 0L);
    if (strcmp(req->method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
    } else if (req->body_len || strcmp(req->method, "PUT") == 0 || strcmp(req->method, "POST") == 0) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_READFUNCTION, on_read);
        SET(CURLOPT_READDATA, t);
        SET(CURLOPT_SEEKFUNCTION, on_seek);
        SET(CURLOPT_SEEKDATA, t);
        SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)req->body_len);
    }
    if (strcmp(req->method, "GET") != 0 && strcmp(req->method, "HEAD") != 0)
        SET(CURLOPT_CUSTOMREQUEST, req->method);
    return ok;
}

#undef SET

static struct curl_slist *headers_build(const struct http_request *req)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    for (guint i = 0; list && req->headers && i < req->headers->len; i++) {
        struct curl_slist *more = curl_slist_append(list, req->headers->pdata[i]);
        if (!more) {
            curl_slist_free_all(list);
            return NULL;
        }
        list = more;
    }
    return list;
}

static int transfer_result(struct transfer *t, CURL *curl, CURLcode code)
{
    struct http_response *resp = t->resp;
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &resp->status); /* stays as it is */
    resp->sent = t->begun;
    if (code == CURLE_OK && !t->head_done) { /* a reply without a body */
        t->cb_error = head_done(t, curl);
        if (t->cb_error) {
            resp->fail = HTTP_FAIL_CALLBACK;
            return t->cb_error;
        }
    }
    if (code == CURLE_OK)
        return 0;
    resp->fail = HTTP_FAIL_BROKEN;
    if (t->cb_error) {
        resp->fail = HTTP_FAIL_CALLBACK;
        return t->cb_error;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(fail_rows); i++) {
        if (fail_rows[i].code == code) {
            resp->fail = fail_rows[i].fail;
            break;
        }
    }
    if (t->too_big)
        resp->fail = HTTP_FAIL_TOO_BIG;
    if (t->sent_twice) {
        resp->fail = HTTP_FAIL_BROKEN;
        g_strlcpy(resp->error, "the kept connection ended without a reply", sizeof resp->error);
    }
    if (resp->fail == HTTP_FAIL_TIMEOUT && !resp->sent)
        resp->fail = HTTP_FAIL_CONNECT;
    if (resp->error[0] == '\0')
        g_strlcpy(resp->error, curl_easy_strerror(code), sizeof resp->error);
    return fail_info[resp->fail].err;
}

int http_perform(struct http_pool *pool, const struct http_request *req, struct http_response *resp)
{
    mutex_assert_none_held();
    if (!resp->headers)
        resp->headers = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    if (!resp->body)
        resp->body = g_string_new(NULL);
    CURL *curl = NULL;
    int r = handle_get(pool, &curl);
    if (r < 0) {
        resp->fail = r == -ECANCELED ? HTTP_FAIL_CANCELED : HTTP_FAIL_URL;
        return r;
    }
    struct transfer t = {.pool = pool, .req = req, .resp = resp};
    struct write_ctx w = {.t = &t, .curl = curl};
    struct curl_slist *headers = headers_build(req);
    if (!headers || !set_transport(curl, pool, req) || !set_request(curl, &t, &w, headers)) {
        r = -ENOMEM;
        resp->fail = HTTP_FAIL_URL;
    } else {
        r = transfer_result(&t, curl, curl_easy_perform(curl));
    }
    handle_put(pool, curl, resp->fail != HTTP_FAIL_NONE);
    curl_slist_free_all(headers);
    return r;
}

void http_response_clear(struct http_response *resp)
{
    if (resp->headers)
        g_hash_table_unref(resp->headers);
    if (resp->body)
        g_string_free(resp->body, TRUE);
    memset(resp, 0, sizeof *resp);
}

const char *http_header(const struct http_response *resp, const char *name)
{
    return resp->headers ? g_hash_table_lookup(resp->headers, name) : NULL;
}
