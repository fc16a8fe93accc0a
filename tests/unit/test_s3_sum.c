/* Checksums of a host whose OpenSSL has no MD5. What ETags tell: test_cache_check.c. */
#include "../../s3/drv_s3.h"
#include "tests/support/checks.h"

#include <check.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define MD5_OF_BODY  "841a2d689ad86bd1611447453c22c6fc"   /* "body" */
#define MD5_OF_PARTS "980d35430001d8835cd38d70e5845a9f-1" /* of its one part */

static int read_body(void *ctx, uint64_t off, void *buf, size_t len)
{
    memcpy(buf, &"body"[off], len);
    return 0;
}

static void forbid_md5(void)
{
    unsigned char md[16];
    ck_assert_int_eq(EVP_set_default_properties(NULL, "fips=yes"), 1);
    ck_assert_int_ne(EVP_Digest("", 0, md, NULL, EVP_md5(), NULL), 1);
}

static void allow_md5(void)
{
    ck_assert_int_eq(EVP_set_default_properties(NULL, ""), 1);
}

START_TEST(md5_is_there_where_openssl_has_none)
{
    const struct etag plain = {MD5_OF_BODY}, parts = {MD5_OF_PARTS}, wrong = {"941a2d689ad86bd1611447453c22c6fc"};
    unsigned char md[16];
    char hex[33], sum[33];
    if (_i == 1)
        forbid_md5();
    s3_md5_hex("body", 4, md, hex);
    ck_assert_str_eq(hex, MD5_OF_BODY);
    s3_md5_hex("", 0, md, hex);
    ck_assert_str_eq(hex, "d41d8cd98f00b204e9800998ecf8427e");
    ck_assert_int_eq(objstore_sum(&plain, 4, read_body, NULL, sum), OBJ_SUM_FITS);
    ck_assert_int_eq(objstore_sum(&wrong, 4, read_body, NULL, sum), OBJ_SUM_DIFFERS);
    ck_assert_int_eq(objstore_sum(&parts, 4, read_body, NULL, sum), OBJ_SUM_FITS);
    if (_i == 1)
        allow_md5();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("s3_sum");
    TCase *tc = tcase_create("s3_sum");
    tcase_add_loop_test(tc, md5_is_there_where_openssl_has_none, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
