/* Sources, endpoints, and percent coding: what was coded decodes to itself, and coded text holds nothing that a URL gives a meaning to. */
#include "../../s3/s3_uri.h"
#include "fuzz.h"

static void check_coding(const char *s, size_t len, bool keep_slash)
{
    g_autoptr(GString) coded = g_string_new(NULL);
    g_autoptr(GString) back = g_string_new(NULL);
    s3_uri_encode(coded, s, len, keep_slash);
    PROMISE(strspn(coded->str, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~%/") == coded->len);
    PROMISE(s3_uri_decode(back, coded->str, coded->len, !keep_slash) == 0);
    PROMISE(back->len == len && (len == 0 || memcmp(back->str, s, len) == 0));
}

/* The bucket named, "" if it is no source. */
static char *check_source(const char *text)
{
    struct s3_source src = {0}, again = {0};
    g_autofree char *msg = NULL;
    if (s3_source_parse(text, &src, &msg) < 0) {
        PROMISE(msg != NULL);
        return g_strdup("");
    }
    g_autofree char *formatted = s3_source_format(&src);
    PROMISE(s3_source_parse(formatted, &again, &msg) == 0);
    PROMISE(strcmp(src.bucket, again.bucket) == 0 && strcmp(src.prefix, again.prefix) == 0);
    s3_source_clear(&again);
    char *bucket = g_steal_pointer(&src.bucket);
    s3_source_clear(&src);
    return bucket;
}

static void check_endpoint(const char *url, const char *bucket, const char *key)
{
    struct s3_endpoint ep = {0};
    g_autofree char *msg = NULL;
    if (s3_endpoint_parse(url, "us-east-1", bucket, false, &ep, &msg) < 0) {
        PROMISE(msg != NULL);
        return;
    }
    g_autofree char *path = s3_endpoint_path(&ep, bucket, key);
    PROMISE(path[0] == '/' && !strpbrk(path, "?# \r\n") && !strpbrk(ep.host, "/?#@ \r\n"));
    s3_endpoint_clear(&ep);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_auto(GStrv) part = fuzz_lines(data, size, 3);
    check_coding((const char *)data, size, false);
    check_coding((const char *)data, size, true);
    g_autoptr(GString) out = g_string_new("x");
    if (s3_uri_decode(out, (const char *)data, size, true) < 0)
        PROMISE(out->len == 1);
    g_autofree char *bucket = check_source(part[0]);
    check_endpoint(part[1], bucket, part[2]);
    return 0;
}
