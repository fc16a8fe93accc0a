/*
 * Finds out what a store really does with conditions and checksums. Stores ignore headers they do not know, so each capability is shown
 * by a request that must be refused and, where a refusal could have other reasons, by its twin that must succeed.
 *
 * A few requests on two keys below the given prefix; both are removed at the end, whatever happened. No retries (call.once), no state.
 */
#include "base/crc32c.h"
#include "drv_s3.h"

#include <string.h>

static const char body[] = "sluice capability probe";
#define BODY_LEN       (sizeof body - 1)
#define BODY_CRC64NVME "yG+fb2ReKjE="

struct probe {
    struct drv_s3 *d;
    char *a;          /* owned; key that exists after the first step */
    char *b;          /* owned; target of copies */
    struct etag etag; /* of a */
    char md5[33];
    uint32_t caps;
    int r; /* first failure that says nothing about capabilities */
};

enum answer { ANSWER_OK, ANSWER_REFUSED, ANSWER_BAD, ANSWER_UNKNOWN };

/* Sends once. REFUSED: the condition or digest did its work; BAD: the store does not take such a request. */
static enum answer ask(struct probe *p, struct s3_call *c)
{
    c->once = true;
    int r = s3_exec(p->d, c);
    if (r == 0)
        return ANSWER_OK;
    if (r == -ESTALE || strstr(c->error.code, "Digest") || strstr(c->error.code, "Checksum"))
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
    if (name)
        s3_req_header(&c.req, name, value);
    if (name && g_str_has_prefix(name, "x-amz-checksum-crc32c"))
        s3_req_header(&c.req, "x-amz-sdk-checksum-algorithm", "CRC32C");
    if (name && g_str_has_prefix(name, "x-amz-checksum-crc64nvme"))
        s3_req_header(&c.req, "x-amz-sdk-checksum-algorithm", "CRC64NVME");
    if (!name)
        s3_md5_header(&c.req, body, BODY_LEN, p->md5);
    enum answer a = ask(p, &c);
    const char *etag = http_header(&c.resp, "etag");
    if (a == ANSWER_OK && strcmp(key, p->a) == 0)
        s3_etag_parse(etag ? etag : "", &p->etag);
    s3_call_fini(&c);
    return a;
}

/* The capability shows when the wrong value is refused and the right one is taken. */
static void put_pair(struct probe *p, uint32_t cap, const char *name, const char *wrong, const char *right)
{
    if (put(p, p->a, name, wrong) == ANSWER_REFUSED && put(p, p->a, name, right) == ANSWER_OK)
        p->caps |= cap;
}

static void probe_put(struct probe *p)
{
    if (put(p, p->a, NULL, NULL) != ANSWER_OK) {
        p->r = p->r ? p->r : -EACCES;
        return;
    }
    if (strcmp(p->etag.s, p->md5) == 0)
        p->caps |= CAP_ETAG_IS_MD5;
    if (put(p, p->a, "If-None-Match", "*") == ANSWER_REFUSED && put(p, p->b, "If-None-Match", "*") == ANSWER_OK)
        p->caps |= CAP_PUT_IF_NONE_MATCH;
    g_autofree char *quoted = g_strdup_printf("\"%s\"", p->etag.s);
    g_autofree char *bare = g_strdup(p->etag.s);
    put_pair(p, CAP_PUT_IF_MATCH, "If-Match", "\"00000000000000000000000000000000\"", quoted);
    if (!(p->caps & CAP_PUT_IF_MATCH) && p->r == 0)
        put_pair(p, CAP_PUT_IF_MATCH | CAP_IF_MATCH_UNQUOTED, "If-Match", "00000000000000000000000000000000", bare);
}

static void probe_checksums(struct probe *p)
{
    uint32_t crc = crc32c(0, body, BODY_LEN);
    const guchar be[4] = {(guchar)(crc >> 24), (guchar)(crc >> 16), (guchar)(crc >> 8), (guchar)crc};
    g_autofree char *right = g_base64_encode(be, sizeof be);
    if (put(p, p->a, "Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==") == ANSWER_REFUSED)
        p->caps |= CAP_CONTENT_MD5;
    put_pair(p, CAP_CHECKSUM_CRC32C, "x-amz-checksum-crc32c", "AAAAAA==", right);
    put_pair(p, CAP_CHECKSUM_CRC64NVME, "x-amz-checksum-crc64nvme", "AAAAAAAAAAA=", BODY_CRC64NVME);
}

static void probe_range(struct probe *p)
{
    struct s3_call c;
    s3_call_init(p->d, &c, "GET", p->a, M_requests_get);
    s3_req_header(&c.req, "Range", "bytes=0-3");
    s3_req_header(&c.req, "If-Match", "\"00000000000000000000000000000000\"");
    if (ask(p, &c) == ANSWER_REFUSED)
        p->caps |= CAP_RANGE_IF_MATCH;
    s3_call_fini(&c);
}

static void probe_copy(struct probe *p)
{
    struct s3_call c;
    g_autofree char *source = s3_copy_source(p->d, p->a);
    s3_call_init(p->d, &c, "PUT", p->b, M_requests_copy);
    s3_req_header(&c.req, "x-amz-copy-source", source);
    s3_req_header(&c.req, "x-amz-copy-source-if-match", "\"00000000000000000000000000000000\"");
    if (ask(p, &c) == ANSWER_REFUSED)
        p->caps |= CAP_COPY_IF_MATCH;
    s3_call_fini(&c);
}

static enum answer complete(struct probe *p, const char *id, const struct obj_part *part, const char *name,
                            const char *value)
{
    struct s3_call c;
    g_autofree char *xml =
        g_strdup_printf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"%s\"</ETag>"
                        "</Part></CompleteMultipartUpload>",
                        part->etag.s);
    s3_call_init(p->d, &c, "POST", p->a, M_requests_multipart);
    s3_req_query(&c.req, "uploadId", id);
    s3_req_header(&c.req, name, value);
    c.body = xml;
    c.body_len = strlen(xml);
    c.body_may_err = true;
    enum answer a = ask(p, &c);
    s3_call_fini(&c);
    return a;
}

static void probe_multipart(struct probe *p)
{
    struct objstore *st = &p->d->base;
    g_autofree char *id = NULL;
    struct obj_part part = {.number = 1, .size = BODY_LEN};
    int r = s3_mpu_create(st, p->a, NULL, &id);
    if (r < 0)
        return; /* a store without multipart uploads has none of these */
    r = s3_mpu_part_copy(st, p->a, id, p->a, NULL, 0, &part);
    if (r == 0)
        p->caps |= CAP_PART_COPY;
    else
        r = s3_mpu_part(st, p->a, id, body, &part);
    bool done = false;
    if (r == 0) {
        enum answer none = complete(p, id, &part, "If-None-Match", "*");
        enum answer match = none == ANSWER_REFUSED
                                ? complete(p, id, &part, "If-Match", "\"00000000000000000000000000000000\"")
                                : ANSWER_BAD;
        done = none == ANSWER_OK || match == ANSWER_OK;
        if (none == ANSWER_REFUSED && match == ANSWER_REFUSED)
            p->caps |= CAP_COMPLETE_CONDITIONS;
    }
    if (!done)
        (void)s3_mpu_abort(st, p->a, id); /* shows in mpu_list if it stays */
}

static void probe_delete(struct probe *p)
{
    struct s3_call c;
    s3_call_init(p->d, &c, "DELETE", p->b, M_requests_delete);
    s3_req_header(&c.req, "If-Match", "\"00000000000000000000000000000000\"");
    if (ask(p, &c) == ANSWER_REFUSED)
        p->caps |= CAP_DELETE_IF_MATCH;
    s3_call_fini(&c);
}

int s3_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps)
{
    struct probe p = {.d = s3_of(st)};
    p.a = g_strdup_printf("%sprobe-%08x%08x-a", key_prefix, g_random_int(), g_random_int());
    p.b = g_strdup_printf("%s-b", p.a);
    static void (*const steps[])(struct probe *) = {probe_put,  probe_checksums, probe_range,
                                                    probe_copy, probe_multipart, probe_delete};
    for (size_t i = 0; i < G_N_ELEMENTS(steps) && p.r == 0; i++)
        steps[i](&p);
    int ra = st->drv->delete (st, p.a, NULL);
    int rb = st->drv->delete (st, p.b, NULL);
    int r = p.r ? p.r : ra ? ra : rb;
    if (r == 0)
        *ret_caps = p.caps;
    g_free(p.a);
    g_free(p.b);
    return r;
}
