/* Percent coding, sources, endpoints, and the CRC beside them. */
#include "../../s3/s3_uri.h"
#include "base/crc32c.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(every_byte_survives_coding)
{
    char in[256];
    for (int i = 0; i < 256; i++)
        in[i] = (char)i;
    for (int keep = 0; keep < 2; keep++) {
        g_autoptr(GString) enc = g_string_new(NULL);
        g_autoptr(GString) dec = g_string_new(NULL);
        s3_uri_encode(enc, in, sizeof in, keep);
        for (size_t i = 0; i < enc->len; i++)
            ck_assert(g_ascii_isalnum(enc->str[i]) || strchr(keep ? "-_.~%/" : "-_.~%", enc->str[i]));
        ck_assert_int_eq(s3_uri_decode(dec, enc->str, enc->len, false), 0);
        ck_assert_uint_eq(dec->len, sizeof in);
        ck_assert_int_eq(memcmp(dec->str, in, sizeof in), 0);
    }
}
END_TEST

START_TEST(broken_escapes_are_refused_and_leave_the_output)
{
    const char *bad[] = {"%", "a%1", "%zz", "abc%4"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GString) out = g_string_new("kept");
        ck_assert_int_eq(s3_uri_decode(out, bad[i], strlen(bad[i]), false), -EBADMSG);
        ck_assert_str_eq(out->str, "kept");
    }
}
END_TEST

START_TEST(sources_are_parsed_and_normalised)
{
    struct {
        const char *in, *bucket, *prefix, *out;
    } rows[] = {
        {"s3://bucket", "bucket", "", "s3://bucket"},
        {"s3://bucket/", "bucket", "", "s3://bucket"},
        {"s3://bucket/a/b/", "bucket", "a/b/", "s3://bucket/a/b"},
        {"s3://b.c-d/a b+c", "b.c-d", "a b+c/", "s3://b.c-d/a b+c"},
        {"file:///tmp/x//", "", "/tmp/x", "file:///tmp/x"},
        {"file:///", "", "/", "file:///"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct s3_source src = {0};
        g_autofree char *msg = NULL;
        ck_assert_int_eq(s3_source_parse(rows[i].in, &src, &msg), 0);
        ck_assert_str_eq(src.bucket, rows[i].bucket);
        ck_assert_str_eq(src.prefix, rows[i].prefix);
        g_autofree char *out = s3_source_format(&src);
        ck_assert_str_eq(out, rows[i].out);
        s3_source_clear(&src);
    }
}
END_TEST

START_TEST(bad_sources_are_refused_with_a_line)
{
    const char *bad[] = {"",           "bucket",   "s3://",     "s3://ab", "s3://b/../x", "s3://buc/a//b",
                         "file://rel", "http://x", "s3://b ad/"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct s3_source src = {0};
        g_autofree char *msg = NULL;
        ck_assert_int_eq(s3_source_parse(bad[i], &src, &msg), -EINVAL);
        ck_assert_ptr_nonnull(msg);
    }
}
END_TEST

START_TEST(endpoints_place_the_bucket_where_the_store_wants_it)
{
    struct {
        const char *url, *region, *bucket;
        bool force;
        const char *host, *path;
    } rows[] = {
        {NULL, "eu-west-1", "bkt", false, "bkt.s3.eu-west-1.amazonaws.com", "/k%20y"},
        {NULL, "cn-north-1", "bkt", false, "bkt.s3.cn-north-1.amazonaws.com.cn", "/k%20y"},
        {NULL, "eu-west-1", "bkt", true, "s3.eu-west-1.amazonaws.com", "/bkt/k%20y"},
        {NULL, "eu-west-1", "b.kt", false, "s3.eu-west-1.amazonaws.com", "/b.kt/k%20y"},
        {"http://127.0.0.1:8000", "r", "bkt", false, "127.0.0.1:8000", "/bkt/k%20y"},
        {"https://minio.corp:443/", "r", "bkt", false, "minio.corp", "/bkt/k%20y"},
        {"https://bkt.bj.example.com", "r", "bkt", false, "bkt.bj.example.com", "/k%20y"},
        {"http://[::1]:9000/p", "r", "bkt", false, "[::1]:9000", "/p/bkt/k%20y"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct s3_endpoint ep = {0};
        g_autofree char *msg = NULL;
        ck_assert_int_eq(s3_endpoint_parse(rows[i].url, rows[i].region, rows[i].bucket, rows[i].force, &ep, &msg), 0);
        g_autofree char *path = s3_endpoint_path(&ep, rows[i].bucket, "k y");
        ck_assert_str_eq(ep.host, rows[i].host);
        ck_assert_str_eq(path, rows[i].path);
        s3_endpoint_clear(&ep);
    }
}
END_TEST

START_TEST(only_loopback_counts_as_loopback)
{
    struct {
        const char *url;
        bool want;
    } rows[] = {{"http://localhost:1", true},       {"http://127.3.2.1", true},          {"http://[::1]", true},
                {"http://127.evil.example", false}, {"http://localhost.example", false}, {"http://10.0.0.1", false}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct s3_endpoint ep = {0};
        g_autofree char *msg = NULL;
        ck_assert_int_eq(s3_endpoint_parse(rows[i].url, "r", "bkt", false, &ep, &msg), 0);
        ck_assert_msg(ep.loopback == rows[i].want, "%s", rows[i].url);
        s3_endpoint_clear(&ep);
    }
}
END_TEST

START_TEST(bad_endpoints_are_refused_with_a_line)
{
    const char *bad[] = {"ftp://x",    "minio:9000",     "http://",        "http://u:p@h",
                         "http://h:0", "http://h:99999", "https://h/?x=1", "http://a b"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct s3_endpoint ep = {0};
        g_autofree char *msg = NULL;
        ck_assert_msg(s3_endpoint_parse(bad[i], "r", "bkt", false, &ep, &msg) == -EINVAL, "%s", bad[i]);
        ck_assert_ptr_nonnull(msg);
    }
}
END_TEST

START_TEST(crc32c_gives_the_published_value_on_both_ways)
{
    enum { SIZE = 10000 };
    g_autofree char *buf = g_malloc(SIZE);
    for (int i = 0; i < SIZE; i++)
        buf[i] = (char)(i * 7);
    ck_assert_uint_eq(crc32c(0, "123456789", 9), 0xe3069283u);
    ck_assert_uint_eq(crc32c_portable(0, "123456789", 9), 0xe3069283u);
    for (size_t off = 0; off < 3; off++) { /* around the lanes that are summed side by side */
        for (size_t len = 0; off + len <= SIZE; len += 41) {
            uint32_t before = (uint32_t)len * 2654435761u;
            ck_assert_uint_eq(crc32c(before, buf + off, len), crc32c_portable(before, buf + off, len));
        }
    }
    ck_assert_uint_eq(crc32c(crc32c(0, buf, 1001), buf + 1001, 3098), crc32c(0, buf, 4099));
    ck_assert_uint_eq(crc32c(0, buf, 0), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("s3_uri");
    TCase *t = tcase_create("uri");
    tcase_add_test(t, every_byte_survives_coding);
    tcase_add_test(t, broken_escapes_are_refused_and_leave_the_output);
    tcase_add_test(t, sources_are_parsed_and_normalised);
    tcase_add_test(t, bad_sources_are_refused_with_a_line);
    tcase_add_test(t, endpoints_place_the_bucket_where_the_store_wants_it);
    tcase_add_test(t, only_loopback_counts_as_loopback);
    tcase_add_test(t, bad_endpoints_are_refused_with_a_line);
    tcase_add_test(t, crc32c_gives_the_published_value_on_both_ways);
    suite_add_tcase(s, t);
    return run_suite(s);
}
