/* Requests and their signatures: any key and any query make one URL line and headers without line breaks; the same request signs the same. */
#include "../../s3/s3_cred.h"
#include "../../s3/s3_req.h"
#include "fuzz.h"

static void check_built(const char *url, const GPtrArray *headers)
{
    PROMISE(!strpbrk(url, " \r\n\t#"));
    for (guint i = 0; i < headers->len; i++)
        PROMISE(!strpbrk(headers->pdata[i], "\r\n"));
}

static void build(char **part, const struct s3_req_site *site)
{
    g_autofree char *url = NULL, *again = NULL;
    g_autoptr(GPtrArray) headers = NULL;
    g_autoptr(GPtrArray) headers_again = NULL;
    struct s3_req req;
    s3_req_init(&req, "GET", g_strdup(part[0]));
    s3_req_query(&req, part[1], part[2]);
    s3_req_query(&req, part[2], part[1]);
    if (!strchr(part[3], '\r'))
        s3_req_header(&req, "x-amz-meta-sluice-token", part[3]);
    s3_req_build(&req, site, &url, &headers);
    s3_req_build(&req, site, &again, &headers_again);
    check_built(url, headers);
    PROMISE(strcmp(url, again) == 0 && headers->len == headers_again->len);
    PROMISE(strcmp(headers->pdata[headers->len - 1], headers_again->pdata[headers->len - 1]) == 0);
    s3_req_fini(&req);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_auto(GStrv) part = fuzz_lines(data, size, 5);
    struct s3_endpoint ep = {.host = (char *)(uintptr_t) "host", .base_path = (char *)(uintptr_t) ""};
    struct s3_keys keys = {.access_key = "AKID", .secret_key = "secret"};
    struct s3_sign_key key;
    s3_sign_key_derive(part[3], "20130524", "us-east-1", "s3", &key);
    struct s3_req_site site = {.ep = &ep,
                               .bucket = "bucket",
                               .region = "us-east-1",
                               .keys = &keys,
                               .sign_key = &key,
                               .amz_date = "20130524T000000Z",
                               .payload_hash = S3_HASH_EMPTY};
    build(part, &site);
    g_autoptr(GPtrArray) headers = g_ptr_array_new_with_free_func(g_free);
    g_auto(GStrv) lines = g_strsplit(part[4], "\n", -1);
    for (char **p = lines; *p; p++)
        g_ptr_array_add(headers, g_strdup(*p));
    struct s3_sign_in in = {.method = "PUT",
                            .path = part[0],
                            .query = part[1],
                            .headers = headers,
                            .payload_hash = S3_HASH_UNSIGNED,
                            .amz_date = "20130524T000000Z",
                            .region = "us-east-1",
                            .service = "s3",
                            .access_key = "AKID"};
    g_autofree char *canonical = s3_sign_canonical(&in);
    g_autofree char *auth = s3_sign_request(&in, &key);
    PROMISE(g_str_has_suffix(canonical, S3_HASH_UNSIGNED) && strstr(auth, "Signature="));
    return 0;
}
