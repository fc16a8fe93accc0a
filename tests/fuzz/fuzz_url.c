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

static void check_source(const char *text)
{
    struct s3_source src = {0}, again = {0};
    g_autofree char *msg = NULL;
    if (s3_source_parse(text, &src, &msg) < 0) {
        PROMISE(msg != NULL);
        return;
    }
    g_autofree char *formatted = s3_source_format(&src);
    PROMISE(s3_source_parse(formatted, &again, &msg) == 0);
    PROMISE(strcmp(src.bucket, again.bucket) == 0 && strcmp(src.prefix, again.prefix) == 0);
    s3_source_clear(&again);
    s3_source_clear(&src);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_auto(GStrv) part = fuzz_lines(data, size, 3);
    check_coding((const char *)data, size, false);
    check_coding((const char *)data, size, true);
    g_autoptr(GString) out = g_string_new("x");
    if (s3_uri_decode(out, (const char *)data, size, true) < 0)
        PROMISE(out->len == 1);
    check_source(part[0]);
    struct s3_endpoint ep = {0};
    g_autofree char *msg = NULL;
    if (s3_endpoint_parse(part[1], "us-east-1", part[2], false, &ep, &msg) < 0) {
        PROMISE(msg != NULL);
        return 0;
    }
    g_autofree char *path = s3_endpoint_path(&ep, part[2], part[0]);
    PROMISE(path[0] == '/' && !strpbrk(path, "?# \r\n") && !strpbrk(ep.host, "/?#@ \r\n"));
    s3_endpoint_clear(&ep);
    return 0;
}
