/*
 * Finds out what a store really does with conditions and checksums. Stores ignore headers they do not know, so each capability is shown
 * by a request that must be refused and, where a refusal could have other reasons, by its twin that must succeed. A request that got no
 * answer shows nothing, nor does sending it again, since it may have been carried out: its whole step is taken again from a known state, a few times; then
 * the probe fails and is made again later. Only what the store was too busy to look at is sent again (call.once).
 *
 * A few requests on three keys below the given prefix; they are removed at the end, whatever happened. No state.
 */
#include "base/crc32c.h"
#include "base/log.h"
#include "drv_s3.h"

#include <string.h>

static const char body[] = "sluice capability probe";
#define BODY_LEN       (sizeof body - 1)
#define BODY_CRC64NVME "yG+fb2ReKjE="
#define WRONG_ETAG     "00000000000000000000000000000000"
#define SIGNED_SUM     "x-amz-content-sha256" /* set by the signature */
#define STEP_TRIES     4

struct probe {
    struct drv_s3 *d;
    char *a;            /* owned; key that exists after the first step */
    char *b;            /* owned; target of copies */
    char *c;            /* owned; nothing is there unless a store does what it should not, or a copy was to be made */
    bool c_made;        /* perhaps */
    struct etag etag;   /* of a */
    struct etag etag_b; /* of b, when it was put */
    char md5[33];
    uint32_t caps;
    int r;    /* first failure that says nothing about capabilities */
    int last; /* what the last request gave */
};

enum answer { ANSWER_OK, ANSWER_REFUSED, ANSWER_BAD, ANSWER_UNKNOWN };

/* Sends it. REFUSED: the condition or digest did its work; BAD: the store does not take such a request. */
static enum answer ask(struct probe *p, struct s3_call *c)
{
    c->once = true;
    int r = s3_exec(p->d, c);
    p->last = r;
    if (r == 0)
        return ANSWER_OK;
    if (r == -EDQUOT) { /* whatever was asked */
        p->r = p->r ? p->r : r;
        return ANSWER_UNKNOWN;
    }
    if (r == -ESTALE || strstr(c->error.code, "Digest") || strstr(c->error.code, "Checksum") ||
        strstr(c->error.code, "SHA256Mismatch"))
        return ANSWER_REFUSED;
    if (c->resp.status / 100 == 4 || c->resp.status == 501)
        return ANSWER_BAD;
    p->r = p->r ? p->r : r;
    return ANSWER_UNKNOWN;
}

static enum answer put(struct probe *p, const char *key, const char *name, const char *value)
{
    struct s3_call c;
    s3_call_init(p->d, &c, "PUT", key, M_requests_put);
    c.body = body;
    c.body_len = BODY_LEN;
    if (name && g_str_has_prefix(name, "x-amz-checksum-crc32c"))
        s3_req_header(&c.req, "x-amz-sdk-checksum-algorithm", "CRC32C");
    if (name && g_str_has_prefix(name, "x-amz-checksum-crc64nvme"))
        s3_req_header(&c.req, "x-amz-sdk-checksum-algorithm", "CRC64NVME");
    if (name && strcmp(name, SIGNED_SUM) == 0)
        c.claim = value;
    else if (name)
        s3_req_header(&c.req, name, value);
    if (!name)
        s3_md5_header(&c.req, body, BODY_LEN, p->md5);
    enum answer a = ask(p, &c);
    const char *etag = http_header(&c.resp, "etag");
    if (a == ANSWER_OK && key != p->c)
        s3_etag_parse(etag ? etag : "", key == p->a ? &p->etag : &p->etag_b);
    s3_call_fini(&c);
    return a;
}

/* With the quotes that this store wants around it. */
static char *if_match(const struct probe *p, const char *etag)
{
    return p->caps & CAP_IF_MATCH_UNQUOTED ? g_strdup(etag) : g_strdup_printf("\"%s\"", etag);
}

/* What the store said to a request at c that names a version: was it refused, as nothing stands there? */
static bool refused_at_c(struct probe *p, enum answer a)
{
    p->c_made = p->c_made || a == ANSWER_OK || a == ANSWER_UNKNOWN;
    return a == ANSWER_REFUSED || (a == ANSWER_BAD && p->last == -ENOENT);
}

/* The capability shows when the wrong value is refused and the right one is taken. */
static void put_pair(struct probe *p, uint32_t cap, const char *name, const char *wrong, const char *right)
{
    if (put(p, p->a, name, wrong) == ANSWER_REFUSED && put(p, p->a, name, right) == ANSWER_OK)
        p->caps |= cap;
}

static void probe_put(struct probe *p)
{
    if (put(p, p->a, NULL, NULL) !=
        ANSWER_OK) { /* what is refused with a code that is not known may pass, and be a lock of the bucket, say */
        int r = p->last == -EREMOTEIO ? -EREMOTEIO : -EACCES;
        p->r = p->r ? p->r : r;
        return;
    }
    if (strcmp(p->etag.s, p->md5) == 0)
        p->caps |= CAP_ETAG_IS_MD5;
    if (put(p, p->a, "If-None-Match", "*") == ANSWER_REFUSED && put(p, p->b, "If-None-Match", "*") == ANSWER_OK)
        p->caps |= CAP_PUT_IF_NONE_MATCH;
    g_autofree char *quoted = g_strdup_printf("\"%s\"", p->etag.s);
    g_autofree char *bare = g_strdup(p->etag.s);
    put_pair(p, CAP_PUT_IF_MATCH, "If-Match", "\"" WRONG_ETAG "\"", quoted);
    if (!(p->caps & CAP_PUT_IF_MATCH) && p->r == 0)
        put_pair(p, CAP_PUT_IF_MATCH | CAP_IF_MATCH_UNQUOTED, "If-Match", WRONG_ETAG, bare);
    g_autofree char *value = if_match(p, p->etag.s);
    if ((p->caps & CAP_PUT_IF_MATCH) && p->r == 0 && !refused_at_c(p, put(p, p->c, "If-Match", value)))
        p->caps |= CAP_IF_MATCH_ABSENT;
}

static void probe_checksums(struct probe *p)
{
    uint32_t crc = crc32c(0, body, BODY_LEN);
    const guchar be[4] = {(guchar)(crc >> 24), (guchar)(crc >> 16), (guchar)(crc >> 8), (guchar)crc};
    g_autofree char *right = g_base64_encode(be, sizeof be);
    if (put(p, p->a, "Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==") == ANSWER_REFUSED)
        p->caps |= CAP_CONTENT_MD5;
    char sum[65];
    s3_sha256_hex(body, BODY_LEN, sum);
    put_pair(p, CAP_PAYLOAD_SHA256, SIGNED_SUM, WRONG_ETAG WRONG_ETAG, sum);
    put_pair(p, CAP_CHECKSUM_CRC32C, "x-amz-checksum-crc32c", "AAAAAA==", right);
    put_pair(p, CAP_CHECKSUM_CRC64NVME, "x-amz-checksum-crc64nvme", "AAAAAAAAAAA=", BODY_CRC64NVME);
}

static enum answer get_range(struct probe *p, const char *etag)
{
    struct s3_call c;
    s3_call_init(p->d, &c, "GET", p->a, M_requests_get);
    s3_req_header(&c.req, "Range", "bytes=0-3");
    s3_req_headerf(&c.req, "If-Match", "\"%s\"", etag);
    enum answer a = ask(p, &c);
    s3_call_fini(&c);
    return a;
}

static void probe_range(struct probe *p)
{
    if (get_range(p, WRONG_ETAG) == ANSWER_REFUSED && get_range(p, p->etag.s) == ANSWER_OK)
        p->caps |= CAP_RANGE_IF_MATCH;
}

/* Of a, with that condition. ret_etag may be NULL. */
static enum answer copy(struct probe *p, const char *key, const char *name, const char *value, struct etag *ret_etag)
{
    struct s3_call c;
    g_autofree char *source = s3_copy_source(p->d, p->a), *etag = NULL;
    s3_call_init(p->d, &c, "PUT", key, M_requests_copy);
    s3_req_header(&c.req, "x-amz-copy-source", source);
    s3_req_header(&c.req, name, value);
    c.body_may_err = true;
    enum answer a = ask(p, &c);
    if (a == ANSWER_OK && ret_etag)
        s3_etag_parse(s3_xml_text(c.resp.body->str, c.resp.body->len, "ETag", &etag) == 0 ? etag : "", ret_etag);
    s3_call_fini(&c);
    return a;
}

static void probe_copy(struct probe *p)
{
    static const char name[] = "x-amz-copy-source-if-match";
    g_autofree char *right = g_strdup_printf("\"%s\"", p->etag.s);
    if (copy(p, p->b, name, "\"" WRONG_ETAG "\"", NULL) == ANSWER_REFUSED &&
        copy(p, p->b, name, right, NULL) == ANSWER_OK)
        p->caps |= CAP_COPY_IF_MATCH;
}

/* Nothing is at c. A store that takes these conditions to be on the source shows it there. */
static void probe_copy_target(struct probe *p)
{
    struct etag etag = {{0}};
    g_autofree char *wrong = if_match(p, WRONG_ETAG), *other = if_match(p, p->etag.s);
    if (p->c_made || !refused_at_c(p, copy(p, p->c, "If-Match", other, NULL)))
        return;
    p->c_made = true;
    if (copy(p, p->c, "If-None-Match", "*", &etag) != ANSWER_OK ||
        copy(p, p->c, "If-None-Match", "*", NULL) != ANSWER_REFUSED ||
        copy(p, p->c, "If-Match", wrong, NULL) != ANSWER_REFUSED)
        return;
    g_autofree char *right = if_match(p, etag.s);
    if (copy(p, p->c, "If-Match", right, NULL) == ANSWER_OK)
        p->caps |= CAP_COPY_TARGET;
}

static enum answer complete(struct probe *p, const char *key, const char *id, const struct obj_part *part,
                            const char *name, const char *value)
{
    struct s3_call c;
    g_autofree char *xml =
        g_strdup_printf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"%s\"</ETag>"
                        "</Part></CompleteMultipartUpload>",
                        part->etag.s);
    s3_call_init(p->d, &c, "POST", key, M_requests_multipart);
    s3_req_query(&c.req, "uploadId", id);
    s3_req_header(&c.req, name, value);
    c.body = xml;
    c.body_len = strlen(xml);
    c.body_may_err = true;
    enum answer a = ask(p, &c);
    s3_call_fini(&c);
    return a;
}

/* Whether the upload was used up. */
static bool probe_complete(struct probe *p, const char *id, const struct obj_part *part)
{
    g_autofree char *wrong = if_match(p, WRONG_ETAG);
    g_autofree char *right = if_match(p, p->etag.s);
    enum answer a = complete(p, p->a, id, part, "If-None-Match", "*");
    if (a != ANSWER_REFUSED)
        return a == ANSWER_OK;
    a = complete(p, p->a, id, part, "If-Match", wrong);
    if (a != ANSWER_REFUSED)
        return a == ANSWER_OK;
    a = complete(p, p->a, id, part, "If-Match", right);
    if (a == ANSWER_OK)
        p->caps |= CAP_COMPLETE_CONDITIONS;
    return a == ANSWER_OK;
}

/* A failure of a call with retries: did the store say that it does not do this, or did it not answer? */
static bool is_answer(int r)
{
    return r != -EIO && r != -ETIMEDOUT && r != -EBADMSG && r != -ECANCELED && r != -EINTR && r != -EKEYEXPIRED &&
           r != -EDQUOT;
}

/* Part 1 of the upload, from a as it was at etag. */
static enum answer part_copy(struct probe *p, const char *id, const char *etag)
{
    struct s3_call c;
    g_autofree char *source = s3_copy_source(p->d, p->a);
    s3_call_init(p->d, &c, "PUT", p->a, M_requests_multipart);
    s3_req_query(&c.req, "partNumber", "1");
    s3_req_query(&c.req, "uploadId", id);
    s3_req_header(&c.req, "x-amz-copy-source", source);
    s3_req_headerf(&c.req, "x-amz-copy-source-range", "bytes=0-%zu", BODY_LEN - 1);
    s3_req_headerf(&c.req, "x-amz-copy-source-if-match", "\"%s\"", etag);
    c.body_may_err = true;
    enum answer a = ask(p, &c);
    s3_call_fini(&c);
    return a;
}

static int probe_part_copy(struct probe *p, const char *id)
{
    if (part_copy(p, id, WRONG_ETAG) == ANSWER_REFUSED && part_copy(p, id, p->etag.s) == ANSWER_OK)
        p->caps |= CAP_PART_COPY_IF_MATCH;
    return p->r;
}

static void probe_multipart(struct probe *p)
{
    struct objstore *st = &p->d->base;
    g_autofree char *id = NULL;
    struct obj_part part = {.number = 1, .size = BODY_LEN};
    int r = s3_mpu_create(st, p->a, NULL, &id);
    if (r < 0) { /* a store without multipart uploads has none of these */
        p->r = is_answer(r) ? 0 : r;
        return;
    }
    r = probe_part_copy(p, id);
    if (r == 0)
        r = s3_mpu_part_copy(st, p->a, id, p->a, NULL, 0, &part); /* the last that is made counts */
    if (r == 0)
        p->caps |= CAP_PART_COPY;
    else if (is_answer(r))
        r = s3_mpu_part(st, p->a, id, body, &part);
    if (r < 0 && !is_answer(r))
        p->r = r;
    if (r < 0 || !probe_complete(p, id, &part))
        (void)s3_mpu_abort(st, p->a, id); /* shows in mpu_list if it stays */
}

/* Does Complete, which has the conditions, see that nothing stands at c? */
static void probe_complete_absent(struct probe *p)
{
    struct objstore *st = &p->d->base;
    g_autofree char *id = NULL;
    g_autofree char *value = if_match(p, p->etag.s);
    struct obj_part part = {.number = 1, .size = BODY_LEN};
    if (!(p->caps & CAP_COMPLETE_CONDITIONS) || (p->caps & CAP_IF_MATCH_ABSENT))
        return;
    int r = s3_mpu_create(st, p->c, NULL, &id);
    if (r == 0)
        r = s3_mpu_part(st, p->c, id, body, &part);
    enum answer a = r == 0 ? complete(p, p->c, id, &part, "If-Match", value) : ANSWER_BAD;
    if (r < 0 && !is_answer(r))
        p->r = r;
    else if (r < 0 || !refused_at_c(p, a))
        p->caps |= CAP_IF_MATCH_ABSENT;
    if (id && a != ANSWER_OK)
        (void)s3_mpu_abort(st, p->c, id); /* shows in mpu_list if it stays */
}

static enum answer delete_b(struct probe *p, const char *etag)
{
    struct s3_call c;
    g_autofree char *value = if_match(p, etag);
    s3_call_init(p->d, &c, "DELETE", p->b, M_requests_delete);
    s3_req_header(&c.req, "If-Match", value);
    enum answer a = ask(p, &c);
    s3_call_fini(&c);
    return a;
}

static void probe_delete(struct probe *p)
{
    if (put(p, p->b, NULL, NULL) == ANSWER_OK && delete_b(p, WRONG_ETAG) == ANSWER_REFUSED &&
        delete_b(p, p->etag_b.s) == ANSWER_OK)
        p->caps |= CAP_DELETE_IF_MATCH;
}

/* Credentials that must not delete are no reason to know nothing. */
static int clean_up(struct probe *p)
{
    struct objstore *st = &p->d->base;
    const char *keys[] = {p->a, p->b, p->c};
    int r = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(keys) - !p->c_made; i++) {
        int e = st->drv->delete (st, keys[i], NULL);
        if (e == -EACCES)
            log_warn("s3", "an object of the probe stays: the credentials lack the permission to delete key='%s%s'",
                     p->d->prefix, keys[i]);
        else if (r == 0)
            r = e;
    }
    return r;
}

/* a stands there with a known etag, b and c do not: as before the first step that needs them so. */
static void start_again(struct probe *p)
{
    struct objstore *st = &p->d->base;
    int r = st->drv->delete (st, p->b, NULL);
    if (r == 0 && p->c_made)
        r = st->drv->delete (st, p->c, NULL);
    p->c_made = p->c_made && r < 0;
    p->r = r == -EACCES ? 0 : r;
    if (p->r == 0)
        (void)put(p, p->a, NULL, NULL);
}

/* Without an answer it is taken again, if the store is there at all. What it found is kept: only good answers are noted. */
static void take(struct probe *p, void (*step)(struct probe *p))
{
    step(p);
    for (int i = 1; i < STEP_TRIES && p->r == -EIO && objstore_offline_since_ns(&p->d->base) == 0; i++) {
        start_again(p);
        if (p->r == 0)
            step(p);
    }
}

int s3_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps)
{
    struct probe p = {.d = s3_of(st)};
    p.a = g_strdup_printf("%sprobe-%08x%08x-a", key_prefix, g_random_int(), g_random_int());
    p.b = g_strdup_printf("%s-b", p.a);
    p.c = g_strdup_printf("%s-c", p.a);
    static void (*const steps[])(struct probe *) = {
        probe_put,       probe_checksums,       probe_range,       probe_copy,
        probe_multipart, probe_complete_absent, probe_copy_target, probe_delete,
    };
    for (size_t i = 0; i < G_N_ELEMENTS(steps) && p.r == 0; i++)
        take(&p, steps[i]);
    int r = clean_up(&p);
    r = p.r ? p.r : r;
    if (r == 0)
        *ret_caps = p.caps;
    g_free(p.a);
    g_free(p.b);
    g_free(p.c);
    return r;
}
