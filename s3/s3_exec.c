/*
 * One call to the store with everything around it: window, credentials, signature, verdict, clock repair, retries.
 *
 * An operation goes on until its deadline, which moves with each body byte that arrives for good. After a failure that may hide a success
 * (a lost reply, a 500) the call's settle hook looks at the store before anything is sent again, so a request is not carried out twice
 * and its own success is not taken for somebody else's change. A condition that the store does not know is looked at before every
 * attempt, since others may have changed the object while this one waited to be sent again. The lock covers window, budget and signing key and is never held over I/O.
 *
 * A body that the store is to check carries one digest, because each costs as much as sending it: the SHA-256 in the signature, which plain http needs
 * anyway, where the store has been seen to compare it; else Content-MD5. Over https it is the faster of the two.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/patience.h"
#include "drv_s3.h"

#include <string.h>

#define PROBLEM_TRIES    3
#define UPLOAD_MIN_BYTES (1u << 20)      /* bodies of this size may take long: a failed attempt renews the deadline, */
#define UPLOAD_RENEWALS  4u              /* at most so often */
#define LAST_TRY_NS      (2 * NS_PER_S)  /* before the deadline, or an eighth of the time limit */
#define KEYS_WAIT_NS     (10 * NS_PER_S) /* with none; those that the store refused serve again by then */

void s3_call_init(struct drv_s3 *d, struct s3_call *c, const char *method, const char *key, enum metric metric)
{
    memset(c, 0, sizeof *c);
    s3_req_init(&c->req, method, key ? g_strconcat(d->prefix, key, NULL) : NULL);
    c->metric = metric;
}

void s3_call_fini(struct s3_call *c)
{
    s3_req_fini(&c->req);
    http_response_clear(&c->resp);
}

struct progress { /* of one call over its attempts */
    uint64_t timeout_ns, deadline_ns, n_given;
    unsigned attempt, problems, renewals;
    unsigned n_sent, n_lost; /* attempts; those that got no reply */
    bool clock_fixed, creds_fixed, keys_good, ambiguous, fresh;
};

static bool stopping(struct drv_s3 *d)
{
    return __atomic_load_n(&d->stopping, __ATOMIC_RELAXED) != 0; /* a flag */
}

/* Whoever nobody waits for comes after all that wait. */
static bool enter_locked(struct drv_s3 *d, bool *counted) REQUIRES(d->mu)
{
    bool behind = objstore_is_behind();
    if ((!behind || d->n_first == 0) && s3_window_enter(&d->window))
        return true;
    d->n_first += !behind && !*counted;
    *counted |= !behind;
    return false;
}

static int window_enter(struct drv_s3 *d, struct progress *p)
{
    int r = 0;
    bool counted = false;
    mutex_lock(&d->mu);
    while (!stopping(d) && r == 0 && !enter_locked(d, &counted)) {
        bool behind = objstore_is_behind();
        r = patience_wait(&d->cv, &d->mu, p->deadline_ns);
        if (!behind)
            continue;
        p->deadline_ns = clock_mono_ns() + p->timeout_ns; /* to let others go first takes none of its time */
        r = r == -ETIMEDOUT ? 0 : r;
    }
    d->n_first -= counted;
    if (counted && d->n_first == 0)
        cond_broadcast(&d->cv);
    if (stopping(d) && r == 0)
        r = -ECANCELED; /* the slot is not given back: nobody asks any more */
    mutex_unlock(&d->mu);
    return r;
}

static void window_leave(struct drv_s3 *d, bool throttled, bool ok, uint64_t started_ns)
{
    mutex_lock(&d->mu);
    s3_window_leave(&d->window, throttled, ok, started_ns, clock_mono_ns());
    if (ok)
        s3_budget_refund(&d->budget);
    cond_broadcast(&d->cv);
    mutex_unlock(&d->mu);
}

static void sign_key_get(struct drv_s3 *d, const struct s3_keys *keys, const char *amz_date, struct s3_sign_key *ret)
{
    char sum[65];
    char date[9];
    s3_sha256_hex(keys->secret_key, strlen(keys->secret_key), sum);
    g_strlcpy(date, amz_date, sizeof date);
    mutex_lock(&d->mu);
    bool fits = strcmp(d->sign_for, sum) == 0 && strcmp(d->sign_key.date, date) == 0;
    if (fits)
        *ret = d->sign_key;
    mutex_unlock(&d->mu);
    if (fits)
        return;
    s3_sign_key_derive(keys->secret_key, date, d->region, "s3", ret);
    mutex_lock(&d->mu);
    d->sign_key = *ret;
    memcpy(d->sign_for, sum, sizeof sum);
    mutex_unlock(&d->mu);
}

static int64_t server_now_ns(struct drv_s3 *d)
{
    return clock_wall_ns() + __atomic_load_n(&d->skew_ns, __ATOMIC_RELAXED);
}

/* Whether the store compares the SHA-256 that a request is signed with. */
static bool signed_sum_counts(struct drv_s3 *d)
{
    return (objstore_caps(&d->base) & CAP_PAYLOAD_SHA256) != 0;
}

static void payload_hash_of(struct drv_s3 *d, const struct s3_call *c, char ret[65])
{
    bool cheap = c->sha256 || s3_sha256_is_fast();
    bool unsigned_ok = d->ep.tls && !(c->check_body && signed_sum_counts(d) && cheap);
    if (c->claim)
        g_strlcpy(ret, c->claim, 65);
    else if (c->body_len && unsigned_ok)
        g_strlcpy(ret, S3_HASH_UNSIGNED, 65);
    else if (c->body_len && c->sha256)
        s3_digest_hex(c->sha256, ret);
    else if (c->body_len)
        s3_sha256_hex(c->body, c->body_len, ret);
}

/* The first failure counts. */
static void note_offline(struct drv_s3 *d)
{
    int64_t zero = 0;
    (void)__atomic_compare_exchange_n(&d->offline_since_ns, &zero, clock_wall_ns(), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED);
}

/* Keys that are waited for for so long that others need not try: without them the store is as far away as without a network. The next reply ends that. */
static int get_keys(struct drv_s3 *d, uint64_t deadline_ns, struct s3_keys *ret)
{
    uint64_t soon_ns = MIN(clock_mono_ns() + KEYS_WAIT_NS, deadline_ns);
    int r = s3_cred_get(d->cred, soon_ns, ret);
    if (r != -ETIMEDOUT || patience_over() < 0)
        return r;
    note_offline(d);
    return soon_ns < deadline_ns ? s3_cred_get(d->cred, deadline_ns, ret) : r;
}

/* Signs and sends once. */
static int send_once(struct drv_s3 *d, struct s3_call *c, const char *payload_hash, const struct progress *p)
{
    struct s3_keys keys = {0};
    struct s3_sign_key sign_key;
    char amz_date[17];
    g_autofree char *url = NULL;
    g_autoptr(GPtrArray) headers = NULL;
    http_response_clear(&c->resp); /* the last attempt's reply must not be taken for this one's */
    memset(&c->error, 0, sizeof c->error);
    int r = get_keys(d, p->deadline_ns, &keys);
    if (r < 0)
        return r;
    s3_amz_date(server_now_ns(d) / (int64_t)NS_PER_S, amz_date);
    if (c->check_body && !c->md5[0] &&
        (keys.anonymous || !signed_sum_counts(d) || strcmp(payload_hash, S3_HASH_UNSIGNED) == 0))
        s3_md5_header(&c->req, c->body, c->body_len, c->md5);
    if (!keys.anonymous)
        sign_key_get(d, &keys, amz_date, &sign_key);
    struct s3_req_site site = {.ep = &d->ep,
                               .bucket = d->bucket,
                               .region = d->region,
                               .keys = &keys,
                               .sign_key = keys.anonymous ? NULL : &sign_key,
                               .amz_date = amz_date,
                               .payload_hash = payload_hash};
    s3_req_build(&c->req, &site, &url, &headers);
    s3_keys_clear(&keys);
    uint64_t timeout_ns = c->timeout_ns ? c->timeout_ns : d->op_timeout_ns;
    struct http_request hr = {.method = c->req.method,
                              .url = url,
                              .headers = headers,
                              .body = c->body,
                              .body_len = c->body_len,
                              .on_head = c->on_head,
                              .sink = c->sink,
                              .ctx = c->ctx,
                              .body_cap = c->reply_cap,
                              .connect_timeout_ms = (uint32_t)CLAMP(timeout_ns / NS_PER_S * 500, 500, 5000),
                              .low_speed_s = s3_retry_silence_s(timeout_ns, c->slow, c->copied_bytes),
                              .no_proxy = d->ep.loopback, /* this host's is meant, and no proxy is to see it */
                              .fresh = p->fresh};
    metric_inc(c->metric);
    return http_perform(d->pool, &hr, &c->resp);
}

static bool keys_worked(struct drv_s3 *d)
{
    return __atomic_load_n(&d->worked, __ATOMIC_RELAXED) != 0; /* a flag */
}

static void note_reachability(struct drv_s3 *d, const struct http_response *resp)
{
    if (resp->status / 100 == 2 && !keys_worked(d))
        __atomic_store_n(&d->worked, 1, __ATOMIC_RELAXED);
    if (resp->status && resp->status / 100 != 5) {
        if (__atomic_load_n(&d->offline_since_ns, __ATOMIC_RELAXED))
            __atomic_store_n(&d->offline_since_ns, 0, __ATOMIC_RELAXED);
    } else if (!resp->status && resp->fail != HTTP_FAIL_CANCELED && resp->fail != HTTP_FAIL_NONE) {
        note_offline(d);
    }
}

/* Most stores number their replies under a name of their own (x-amz-request-id, x-bce-request-id), which what stands before them does not. */
static bool is_of_store(const struct http_response *resp)
{
    GHashTableIter it;
    gpointer name;
    if (!resp->headers)
        return false;
    g_hash_table_iter_init(&it, resp->headers);
    while (g_hash_table_iter_next(&it, &name, NULL)) {
        if (g_str_has_prefix(name, "x-") && g_str_has_suffix(name, "-request-id"))
            return true;
    }
    return false;
}

/* A HEAD's refusal has no body: guesses from status and headers what a code would say. */
static void verdict_of_bare(struct drv_s3 *d, const struct s3_call *c, struct s3_verdict *v)
{
    const struct http_response *resp = &c->resp;
    if (resp->fail != HTTP_FAIL_NONE || c->error.code[0])
        return;
    bool is_head = strcmp(c->req.method, "HEAD") == 0;
    if (resp->status == 404 && is_head && is_of_store(resp)) /* the store itself says so */
        *v = (struct s3_verdict){.err = -ENOENT, .retry = S3_RETRY_NO};
    if (resp->status != 400 && resp->status != 403)
        return;
    int64_t ahead = resp->date_ns ? resp->date_ns - server_now_ns(d) : 0;
    if (ahead > S3_SKEW_MAX_NS || ahead < -S3_SKEW_MAX_NS)
        v->retry = S3_RETRY_CLOCK;
    else if (resp->status == 400)
        v->retry = S3_RETRY_CREDENTIALS;
    if (resp->status == 400) /* what else could be wrong with a HEAD, where HEADs worked? */
        v->err = is_head && keys_worked(d) ? -EKEYEXPIRED : -EACCES;
}

static struct s3_verdict judge(struct drv_s3 *d, struct s3_call *c, int r)
{
    struct http_response *resp = &c->resp;
    bool wrong = resp->status / 100 != 2;
    if (resp->fail == HTTP_FAIL_NONE && resp->body && resp->body->len && (wrong || c->body_may_err)) {
        int e = s3_xml_error_parse(resp->body->str, resp->body->len, &c->error);
        if (e == -EBADMSG && !wrong) /* a reply cut off in the middle */
            return (struct s3_verdict){.err = -EBADMSG, .retry = S3_RETRY_PROBLEM, .ambiguous = true};
    }
    struct s3_verdict v = s3_err_classify(resp->fail, resp->sent, resp->status, c->error.code);
    verdict_of_bare(d, c, &v);
    if (resp->fail == HTTP_FAIL_CALLBACK) {
        bool wish = c->stopped && c->stopped(c->ctx);
        v = (struct s3_verdict){.err = r, .retry = !wish && r == -EBADMSG ? S3_RETRY_PROBLEM : S3_RETRY_NO};
    }
    if (v.err == 0 && c->on_done) {
        int e = c->on_done(c->ctx, resp);
        bool wish = e && c->stopped && c->stopped(c->ctx);
        if (e)
            v = (struct s3_verdict){.err = e,
                                    .retry = wish            ? S3_RETRY_NO
                                             : e == -EIO     ? S3_RETRY_TRANSIENT
                                             : e == -EBADMSG ? S3_RETRY_PROBLEM
                                                             : S3_RETRY_NO,
                                    .ambiguous = true};
    }
    return v;
}

static struct s3_verdict attempt(struct drv_s3 *d, struct s3_call *c, struct progress *p, const char *payload_hash)
{
    int r = window_enter(d, p);
    if (r < 0)
        return (struct s3_verdict){.err = r, .retry = S3_RETRY_NO};
    if (c->prepare) {
        g_ptr_array_set_size(c->req.headers, 0);
        c->prepare(c->ctx, &c->req);
    }
    uint64_t started = clock_mono_ns();
    r = send_once(d, c, payload_hash, p);
    struct s3_verdict v = {.err = r, .retry = S3_RETRY_NO};
    if (c->resp.headers) { /* else it failed before http_perform(): no usable credentials, which were waited for */
        v = judge(d, c, r);
        note_reachability(d, &c->resp);
    }
    if (c->resp.fail == HTTP_FAIL_CANCELED && !stopping(d)) /* who asked waits no longer */
        v.err = patience_over() < 0 ? patience_over() : v.err;
    if (v.retry == S3_RETRY_THROTTLE)
        metric_inc(M_store_slowdowns);
    window_leave(d, v.retry == S3_RETRY_THROTTLE, v.err == 0, started);
    if (c->resp.n_sunk)
        metric_add(M_downloaded_bytes, (int64_t)c->resp.n_sunk);
    if (c->n_given > p->n_given) {
        p->n_given = c->n_given;
        p->deadline_ns = clock_mono_ns() + p->timeout_ns;
        p->attempt = 0;
    }
    if (v.err && c->body_len >= UPLOAD_MIN_BYTES && c->resp.sent && p->renewals < UPLOAD_RENEWALS) {
        p->renewals++;
        p->deadline_ns = clock_mono_ns() + p->timeout_ns;
    }
    return v;
}

/* Why a HEAD is refused without a word, by keys that worked and were looked for anew: a LIST of one key is told. -EACCES: they are good, so it is the object (encrypted by a
 * key of its owner's, say); -EKEYEXPIRED: they are not; else the store does not say now. */
static int ask_why(struct drv_s3 *d, const struct progress *p)
{
    struct s3_call c;
    uint64_t now = clock_mono_ns();
    s3_call_list_one(d, &c);
    c.once = true;
    c.timeout_ns = MAX(p->deadline_ns > now ? p->deadline_ns - now : 0, NS_PER_S);
    int r = s3_exec(d, &c);
    s3_call_fini(&c);
    return r == -EKEYEXPIRED || r == -EIO || r == -ETIMEDOUT || r == -ECANCELED || r == -EINTR ? r : -EACCES;
}

static bool is_without_a_word(const struct s3_call *c)
{
    return c->resp.status == 400 && !c->error.code[0];
}

/* Nothing says whether the store, of which not all number their replies (Google, R2), or what stands before it has no such object. */
static bool is_bare_absence(const struct s3_call *c)
{
    return c->resp.fail == HTTP_FAIL_NONE && c->resp.status == 404 && !c->error.code[0] && c->req.key &&
           strcmp(c->req.method, "HEAD") == 0 && !is_of_store(&c->resp);
}

/* A GET of one byte is told with a code, if it is the store that says so: -ENOENT, -ENODEV. Else what to do about the HEAD is as open as before. */
static int ask_absence(struct drv_s3 *d, const struct s3_call *head, const struct progress *p)
{
    struct s3_call c;
    uint64_t now = clock_mono_ns();
    s3_call_init(d, &c, "GET", head->req.key + strlen(d->prefix), M_requests_get);
    s3_req_header(&c.req, "Range", "bytes=0-0");
    c.once = true;
    c.timeout_ns = MAX(p->deadline_ns > now ? p->deadline_ns - now : 0, NS_PER_S);
    int r = s3_exec(d, &c);
    s3_call_fini(&c);
    return r == -ENOENT || r == -ENODEV ? r : 0;
}

/* Whether this failure is worth another attempt; repairs clock and credentials, and finds out what a HEAD could not tell. */
static bool may_retry(struct drv_s3 *d, struct s3_call *c, struct progress *p, struct s3_verdict *v)
{
    int absence = is_bare_absence(c) ? ask_absence(d, c, p) : 0;
    if (absence < 0) {
        v->err = absence;
        return false;
    }
    switch (v->retry) {
    case S3_RETRY_NO:
        return false;
    case S3_RETRY_TRANSIENT:
    case S3_RETRY_THROTTLE:
        return true;
    case S3_RETRY_PROBLEM:
        return ++p->problems < PROBLEM_TRIES;
    case S3_RETRY_CLOCK:
        if (p->clock_fixed || !c->resp.date_ns)
            return false;
        p->clock_fixed = true;
        __atomic_store_n(&d->skew_ns, c->resp.date_ns - clock_wall_ns(), __ATOMIC_RELAXED);
        return true;
    case S3_RETRY_CREDENTIALS:
        if (p->creds_fixed && !(keys_worked(d) && (v->err == -EKEYEXPIRED || c->error.code[0])))
            return false; /* keys that worked and expired are renewed by somebody, perhaps a little late; of new ones a store may hear late */
        if (p->creds_fixed && is_without_a_word(c)) {
            v->err = p->keys_good ? -EACCES : ask_why(d, p);
            if (v->err == -EACCES && !p->keys_good) /* with those of that LIST, which somebody may just have renewed */
                return p->keys_good = true;
            if (v->err == -EACCES)
                return false;
        }
        p->creds_fixed = true;
        s3_cred_invalidate(d->cred);
        return true;
    }
    return false;
}

/* Waits before the next attempt. -ETIMEDOUT when the deadline comes first. */
static int back_off(struct drv_s3 *d, struct s3_call *c, struct progress *p, const struct s3_verdict *v)
{
    uint64_t server_ns =
        s3_retry_server_ns(http_header(&c->resp, "retry-after"), http_header(&c->resp, "x-amz-retry-after"));
    mutex_lock(&d->mu);
    bool budget_ok = s3_budget_take(&d->budget, v->retry);
    uint64_t delay = s3_retry_delay_ns(v->retry, ++p->attempt, g_random_double(), server_ns, budget_ok);
    uint64_t now = clock_mono_ns();
    uint64_t last = p->deadline_ns - MIN(p->timeout_ns / 8, LAST_TRY_NS);
    int r = now >= last ? -ETIMEDOUT : 0;
    uint64_t until = r < 0 ? now : MIN(now + delay, last); /* the store may be there again before its next turn comes */
    int over = 0;
    while (now < until && over == 0 && !stopping(d)) {
        (void)patience_wait(&d->cv, &d->mu, until);
        over = patience_over();
        now = clock_mono_ns();
    }
    mutex_unlock(&d->mu);
    metric_inc(M_store_retries);
    return stopping(d) ? -ECANCELED : over < 0 ? over : r;
}

/* The condition that the store itself would not check. The call's time limit covers the look. */
static int guard(struct drv_s3 *d, struct s3_call *c, const struct progress *p)
{
    uint64_t now = clock_mono_ns();
    uint64_t left = p->deadline_ns > now ? p->deadline_ns - now : 0;
    return c->guard ? s3_cond_look(d, c->req.key + strlen(d->prefix), c->guard, MAX(left, NS_PER_S), &c->guard_absent)
                    : 0;
}

/* What the store says of an attempt that may have succeeded: 1 done (*r = 0), -1 final (*r = -errno), 0 not done. */
static int settle(struct s3_call *c, int *r)
{
    int s = c->settle(c->ctx);
    c->settled = s == 1;
    if (s != 0)
        *r = s == 1 ? 0 : s;
    return s < 0 ? -1 : s;
}

static int give_up(struct drv_s3 *d, struct s3_call *c, const struct progress *p, int r)
{
    if (p->ambiguous && c->settle && r != -ECANCELED && patience_over() == 0 && settle(c, &r) == 1)
        return 0;
    if (r == -ENOMEDIUM)
        log_warn("s3", "archived: restore it in the store first key='%s'", c->req.key ? c->req.key : "");
    if (r == -EREMOTEIO && !c->once)
        log_warn("s3", "refused by the store for a reason that is not known here status=%ld code=%s key='%s'",
                 c->resp.status, c->error.code, c->req.key ? c->req.key : "");
    log_debug("s3", "%s '%s' failed r=%s status=%ld code=%s request=%s net=%s", c->req.method,
              c->req.key ? c->req.key : "", err_name(r), c->resp.status, c->error.code, c->error.request_id,
              c->resp.error);
    return r;
}

/* Whether the last failure tells more than that the time is up. */
static bool says_why(const struct s3_verdict *v)
{
    bool keys = v->retry == S3_RETRY_CREDENTIALS && v->err == -EACCES;
    return v->err == -ESTALE || v->err == -EKEYEXPIRED || keys;
}

/* That says what came of it: what stands before the store may give up while that goes on, and so may the store's front. */
static bool got_no_reply(const struct s3_call *c, const struct s3_verdict *v)
{
    bool unsaid = c->resp.status / 100 == 5 && !c->error.code[0];
    return v->ambiguous || (unsaid && c->resp.fail == HTTP_FAIL_NONE);
}

static int perform(struct drv_s3 *d, struct s3_call *c, struct progress *p)
{
    char sum[65] = S3_HASH_EMPTY;
    payload_hash_of(d, c, sum);
    for (;;) {
        int r = guard(d, c, p);
        if (r < 0)
            return give_up(d, c, p, r);
        struct s3_verdict v = attempt(d, c, p, sum);
        p->n_sent++;
        if (v.err == 0)
            return 0;
        p->ambiguous = p->ambiguous || v.ambiguous;
        p->n_lost += got_no_reply(c, &v);
        log_debug("s3", "%s '%s' attempt failed r=%s status=%ld code=%s net=%s", c->req.method,
                  c->req.key ? c->req.key : "", err_name(v.err), c->resp.status, c->error.code, c->resp.error);
        p->fresh = c->resp.fail != HTTP_FAIL_NONE; /* the store may be elsewhere by now */
        if ((c->once && v.retry != S3_RETRY_THROTTLE) || !may_retry(d, c, p, &v))
            return give_up(d, c, p, v.err);
        if (v.ambiguous && c->settle && settle(c, &r) != 0)
            return r;
        r = back_off(d, c, p, &v);
        if (r < 0)
            return give_up(d, c, p, r == -ETIMEDOUT && says_why(&v) ? v.err : r);
    }
}

int s3_exec(struct drv_s3 *d, struct s3_call *c)
{
    struct progress p = {.timeout_ns = c->timeout_ns ? c->timeout_ns : d->op_timeout_ns};
    p.deadline_ns = clock_mono_ns() + p.timeout_ns;
    int r = perform(d, c, &p);
    bool known = c->settled && p.n_sent == 1;                               /* it was carried out */
    bool done = c->late == S3_LATE_UNLESS_DONE && (r == 0 || r == -ENOENT); /* there is no such upload any more */
    if (c->late && p.n_lost > 0 && !known && !done)
        objstore_late_note();
    return r;
}

char *s3_call_message(const struct drv_s3 *d, const struct s3_call *c, int r)
{
    const struct http_response *resp = &c->resp;
    const char *hint = s3_err_hint(resp->fail, resp->status, c->error.code);
    const char *region = c->error.region[0] ? c->error.region : http_header(resp, "x-amz-bucket-region");
    g_autofree char *why = s3_cred_error(d->cred);
    GString *out = g_string_new(NULL);
    g_string_append_printf(out, "%s at %s%s: ", d->base.source, d->ep.tls ? "https://" : "http://", d->ep.host);
    if (resp->fail != HTTP_FAIL_NONE)
        g_string_append_printf(out, "%s (%s)", http_fail_name(resp->fail), resp->error);
    else if (c->error.code[0])
        g_string_append_printf(out, "%s", c->error.code);
    else if (resp->status)
        g_string_append_printf(out, "HTTP status %ld", resp->status);
    else
        g_string_append(out, why ? why : err_text(r)); /* nothing was sent */
    if (hint)
        g_string_append_printf(out, "; %s", hint);
    if (region && *region && strcmp(region, d->region) != 0)
        g_string_append_printf(out, " (the store names region '%s', '%s' is in use)", region, d->region);
    return g_string_free(out, FALSE);
}
