/*
 * SigV4 on OpenSSL's one-shot digests; see s3_sign.h. No state but what the CPU can do, no locks, any thread.
 *
 * libcurl can sign as well, but in the versions of current distributions it gets keys with '=' and value-less query parameters wrong.
 */
#include "s3_sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static void hex(const uint8_t *bin, size_t n, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        ret[2 * i] = digits[bin[i] >> 4];
        ret[2 * i + 1] = digits[bin[i] & 15];
    }
    ret[2 * n] = '\0';
}

static bool look_for_sha256(void)
{
#if defined(__x86_64__)
    unsigned a, b = 0, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & HWCAP_SHA2) != 0;
#else
    return false;
#endif
}

bool s3_sha256_is_fast(void)
{
    enum { NOT_LOOKED, NO, YES };
    static _Atomic int known; /* a hypervisor takes over at CPUID, which is too much for each request */
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (k == NOT_LOOKED) {
        k = look_for_sha256() ? YES : NO;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k == YES;
}

static void hmac(const void *key, size_t key_len, const char *text, uint8_t ret[32])
{
    unsigned n = 0;
    const uint8_t *p = HMAC(EVP_sha256(), key, (int)key_len, (const uint8_t *)text, strlen(text), ret, &n);
    g_assert(p && n == 32);
}

void s3_digest_hex(const uint8_t md[32], char ret[65])
{
    hex(md, 32, ret);
}

void s3_sha256_hex(const void *buf, size_t len, char ret[65])
{
    uint8_t md[32];
    int ok = EVP_Digest(buf, len, md, NULL, EVP_sha256(), NULL);
    g_assert(ok == 1);
    hex(md, sizeof md, ret);
}

void s3_amz_date(int64_t unix_s, char ret[17])
{
    time_t t = (time_t)unix_s;
    struct tm tm;
    gmtime_r(&t, &tm);
    size_t n = strftime(ret, 17, "%Y%m%dT%H%M%SZ", &tm);
    g_assert(n == 16);
}

void s3_sign_key_derive(const char *secret, const char *date, const char *region, const char *service,
                        struct s3_sign_key *ret)
{
    g_autofree char *seed = g_strconcat("AWS4", secret, NULL);
    uint8_t a[32];
    uint8_t b[32];
    hmac(seed, strlen(seed), date, a);
    hmac(a, sizeof a, region, b);
    hmac(b, sizeof b, service, a);
    hmac(a, sizeof a, "aws4_request", ret->key);
    g_strlcpy(ret->date, date, sizeof ret->date);
    explicit_bzero(seed, strlen(seed));
    explicit_bzero(a, sizeof a);
    explicit_bzero(b, sizeof b);
}

struct header {
    char *name;
    char *value;
};

static void header_free(void *p)
{
    struct header *h = p;
    g_free(h->name);
    g_free(h->value);
    g_free(h);
}

/* Trims, and makes one space of each run of them. */
static char *value_canonical(const char *s)
{
    GString *out = g_string_new(NULL);
    bool space = false;
    for (; *s; s++) {
        if (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r') {
            space = out->len > 0;
            continue;
        }
        if (space)
            g_string_append_c(out, ' ');
        space = false;
        g_string_append_c(out, *s);
    }
    return g_string_free(out, FALSE);
}

static int header_cmp(const void *a, const void *b)
{
    const struct header *x = *(struct header *const *)a;
    const struct header *y = *(struct header *const *)b;
    return strcmp(x->name, y->name);
}

static GPtrArray *headers_canonical(const GPtrArray *in)
{
    GPtrArray *out = g_ptr_array_new_with_free_func(header_free);
    for (guint i = 0; i < in->len; i++) {
        const char *line = in->pdata[i];
        const char *colon = strpbrk(line, ":;");
        if (!colon)
            continue;
        struct header *h = g_new0(struct header, 1);
        h->name = g_ascii_strdown(line, colon - line);
        h->value = value_canonical(colon + 1);
        g_ptr_array_add(out, h);
    }
    g_ptr_array_sort(out, header_cmp); /* stable: values of one name keep their order */
    return out;
}

static void signed_names(const GPtrArray *headers, GString *out)
{
    const char *last = "";
    for (guint i = 0; i < headers->len; i++) {
        const struct header *h = headers->pdata[i];
        if (strcmp(h->name, last) == 0)
            continue;
        if (i)
            g_string_append_c(out, ';');
        g_string_append(out, h->name);
        last = h->name;
    }
}

char *s3_sign_canonical(const struct s3_sign_in *in)
{
    g_autoptr(GPtrArray) headers = headers_canonical(in->headers);
    GString *out = g_string_new(NULL);
    g_string_append_printf(out, "%s\n%s\n%s\n", in->method, in->path, in->query);
    for (guint i = 0; i < headers->len; i++) {
        const struct header *h = headers->pdata[i];
        const struct header *prev = i ? headers->pdata[i - 1] : NULL;
        if (prev && strcmp(prev->name, h->name) == 0) {
            g_string_truncate(out, out->len - 1);
            g_string_append_printf(out, ",%s\n", h->value);
        } else {
            g_string_append_printf(out, "%s:%s\n", h->name, h->value);
        }
    }
    g_string_append_c(out, '\n');
    signed_names(headers, out);
    g_string_append_printf(out, "\n%s", in->payload_hash);
    return g_string_free(out, FALSE);
}

static char *scope(const struct s3_sign_in *in)
{
    return g_strdup_printf("%.8s/%s/%s/aws4_request", in->amz_date, in->region, in->service);
}

char *s3_sign_string(const struct s3_sign_in *in, const char *canonical)
{
    char sum[65];
    s3_sha256_hex(canonical, strlen(canonical), sum);
    g_autofree char *where = scope(in);
    return g_strdup_printf("AWS4-HMAC-SHA256\n%s\n%s\n%s", in->amz_date, where, sum);
}

char *s3_sign_request(const struct s3_sign_in *in, const struct s3_sign_key *key)
{
    g_assert(strncmp(key->date, in->amz_date, 8) == 0);
    g_autofree char *canonical = s3_sign_canonical(in);
    g_autofree char *to_sign = s3_sign_string(in, canonical);
    g_autofree char *where = scope(in);
    g_autoptr(GPtrArray) headers = headers_canonical(in->headers);
    g_autoptr(GString) names = g_string_new(NULL);
    signed_names(headers, names);
    uint8_t mac[32];
    char sig[65];
    hmac(key->key, sizeof key->key, to_sign, mac);
    hex(mac, sizeof mac, sig);
    return g_strdup_printf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s", in->access_key, where,
                           names->str, sig);
}
