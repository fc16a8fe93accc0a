/* What no real server does on order: the S3 driver against scripted replies. */
#include "../../s3/http.h"
#include "base/metric.h"
#include "drv_s3_fixture.h"

START_TEST(error_inside_a_200_of_complete_is_tried_again)
{
    struct obj_part p = one_part();
    struct etag etag = {0};
    http_stub_reply(stub, 200, "", "   \n  " ERROR_XML("InternalError"));
    http_stub_reply(stub, NOT_THERE);                                              /* HEAD: no such key */
    http_stub_reply(stub, 200, "", "<ListPartsResult>" LAST "</ListPartsResult>"); /* the upload still stands */
    http_stub_reply(stub, 200, "", "<?xml version=\"1.0\"?>\n   " COMPLETE_XML);
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "done-1");
    ck_assert(asked(0, "POST /bucket/pre/k?uploadId=U") && asked(3, "POST /bucket/pre/k?uploadId=U"));
}
END_TEST

START_TEST(final_error_inside_a_200_of_complete_is_an_error)
{
    struct obj_part p = one_part();
    struct etag etag = {"untouched"};
    http_stub_reply(stub, 200, "", ERROR_XML("InvalidPart"));
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag), -EBADMSG);
    ck_assert_str_eq(etag.s, "untouched");
}
END_TEST

START_TEST(lost_reply_of_complete_is_settled_by_the_token)
{
    struct obj_part p = one_part();
    struct etag etag = {0};
    http_stub_drop(stub);
    http_stub_reply(stub, 200, "ETag: \"mine-1\"\r\nx-amz-meta-sluice-token: tok\r\nContent-Length: 9\r\n", "");
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "mine-1");
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
}
END_TEST

START_TEST(no_such_upload_after_a_lost_reply_is_settled_by_the_token)
{
    struct obj_part p = one_part();
    struct etag etag = {0};
    http_stub_drop(stub);
    http_stub_reply(stub, NOT_THERE);
    http_stub_reply(stub, 404, "", ERROR_XML("NoSuchUpload"));
    http_stub_reply(stub, 200, "ETag: \"mine-1\"\r\nx-amz-meta-sluice-token: tok\r\nContent-Length: 9\r\n", "");
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "mine-1");
}
END_TEST

START_TEST(complete_without_an_etag_in_its_reply_reads_it)
{
    struct obj_part p = one_part();
    struct etag etag = {0};
    const char *xml = "<CompleteMultipartUploadResult><ETag></ETag></CompleteMultipartUploadResult>";
    http_stub_reply(stub, 200, "", xml);
    http_stub_reply(stub, 200, "ETag: \"mine-1\"\r\nx-amz-meta-sluice-token: tok\r\nContent-Length: 9\r\n", "");
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "mine-1");
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
    http_stub_reply(stub, 200, "", xml);
    http_stub_reply(stub, 200, "ETag: \"theirs\"\r\nContent-Length: 9\r\n", "");
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag), -ESTALE);
}
END_TEST

START_TEST(lost_reply_of_put_is_not_sent_twice_when_the_token_is_there)
{
    struct obj_meta meta = {.token = "tok"};
    struct etag etag = {0};
    http_stub_drop(stub);
    http_stub_reply(stub, 200, "ETag: \"mine\"\r\nx-amz-meta-sluice-token: tok\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_put(st, "k", "body", 4, &meta, NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "mine");
    ck_assert(asked(0, "PUT /bucket/pre/k ") && asked(0, "Content-MD5: ") && asked(1, "HEAD "));
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
}
END_TEST

START_TEST(own_success_seen_as_conflict_is_success)
{
    struct obj_meta meta = {.token = "tok"};
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    struct etag etag = {0};
    objstore_set_caps(st, CAP_PUT_IF_NONE_MATCH);
    http_stub_drop(stub);
    http_stub_reply(stub, 503, "", "");                              /* HEAD: cannot tell yet */
    http_stub_reply(stub, NOT_THERE);                                /* HEAD again: not there */
    http_stub_reply(stub, 412, "", ERROR_XML("PreconditionFailed")); /* the second PUT meets the first */
    http_stub_reply(stub, 200, "ETag: \"mine\"\r\nx-amz-meta-sluice-token: tok\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_put(st, "k", "body", 4, &meta, &absent, &etag), 0);
    ck_assert_str_eq(etag.s, "mine");
    ck_assert(asked(0, "If-None-Match: *"));
}
END_TEST

#define EMPTY(token) "ETag: \"same\"\r\nx-amz-meta-sluice-token: " token "\r\nContent-Length: 0\r\n"

START_TEST(empty_objects_are_told_apart_by_their_tokens)
{
    struct obj_meta meta = {.token = "t1"};
    struct etag put = {0};
    struct obj_info info = {0};
    http_stub_reply(stub, 200, "ETag: \"same\"\r\n", "");
    ck_assert_int_eq(objstore_put(st, "k", "", 0, &meta, NULL, &put), 0);
    http_stub_reply(stub, 200, EMPTY("t1"), "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert(etag_equal(&info.etag, &put));
    http_stub_reply(stub, 200, EMPTY("t2"), "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert(!etag_equal(&info.etag, &put));
    struct etag bare = {"same"};
    ck_assert(etag_fits(&bare, &put) && etag_fits(&bare, &info.etag));
    ck_assert(etag_fits(&put, &put) && !etag_fits(&put, &info.etag) && !etag_fits(&put, &bare));
    http_stub_reply(stub, 200, EMPTY("t1"), "");
    ck_assert_int_eq(objstore_head(st, "marker/", &info), 0);
    ck_assert_str_eq(info.etag.s, "same");
}
END_TEST

/* Others removed it, and it stays so: the store would make it anew. */
START_TEST(store_that_makes_what_should_be_there_is_asked_before)
{
    struct obj_cond cond = {.kind = OBJ_COND_ETAG, .etag = {"v1"}};
    struct obj_meta meta = {.token = "t"};
    struct obj_part part = {.number = 1, .size = 1, .etag = {"e1"}};
    struct etag etag = {0};
    objstore_set_caps(st, CAP_PUT_IF_MATCH | CAP_COMPLETE_CONDITIONS | CAP_IF_MATCH_ABSENT);
    http_stub_reply(stub, NOT_THERE);
    ck_assert_int_eq(objstore_put(st, "k", "x", 1, &meta, &cond, NULL), -ESTALE);
    http_stub_reply(stub, NOT_THERE);
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &part, 1, "t", &cond, &etag), -ESTALE);
    ck_assert(asked(0, "HEAD ") && asked(1, "HEAD "));
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
    http_stub_reply(stub, 200, "ETag: \"v1\"\r\nContent-Length: 1\r\n", "");
    http_stub_reply(stub, 200, "ETag: \"v2\"\r\n", "");
    ck_assert_int_eq(objstore_put(st, "k", "x", 1, &meta, &cond, NULL), 0);
    ck_assert(asked(3, "PUT ") && asked(3, "If-Match: \"v1\""));
}
END_TEST

START_TEST(condition_on_an_empty_object_is_on_its_token_too)
{
    uint32_t caps = CAP_PUT_IF_MATCH | CAP_PUT_IF_NONE_MATCH | CAP_DELETE_IF_MATCH;
    struct obj_cond cond = {.kind = OBJ_COND_ETAG, .etag = {"same t1"}};
    struct obj_meta meta = {.token = "t3"};
    for (unsigned i = 0; i < 2; i++) {
        unsigned n = http_stub_n_requests(stub);
        objstore_set_caps(st, i ? caps : 0);
        http_stub_reply(stub, 200, EMPTY("t2"), "");
        ck_assert_int_eq(objstore_delete(st, "k", &cond), -ESTALE);
        http_stub_reply(stub, 200, EMPTY("t2"), "");
        ck_assert_int_eq(objstore_put(st, "k", "", 0, &meta, &cond, NULL), -ESTALE);
        http_stub_reply(stub, 200, EMPTY("t2"), "");
        ck_assert_int_eq(objstore_copy(st, "k", &cond.etag, "other", NULL, NULL, NULL), -ESTALE);
        ck_assert_uint_eq(http_stub_n_requests(stub), n + 3);
        http_stub_reply(stub, 200, EMPTY("t1"), "");
        http_stub_reply(stub, 204, "", "");
        ck_assert_int_eq(objstore_delete(st, "k", &cond), 0);
        ck_assert(asked(n + 4, "DELETE ") && asked(n + 4, "If-Match: \"same\"") == (i == 1));
        http_stub_reply(stub, 200, EMPTY("t1"), "");
        http_stub_reply(stub, 200, "ETag: \"same\"\r\n", "");
        ck_assert_int_eq(objstore_put(st, "k", "", 0, &meta, &cond, NULL), 0);
        ck_assert(asked(n + 6, "PUT ") && asked(n + 6, "If-Match: \"same\"") == (i == 1));
    }
}
END_TEST

START_TEST(put_whose_etag_contradicts_the_body_fails)
{
    objstore_set_caps(st, CAP_ETAG_IS_MD5);
    for (int i = 0; i < 9; i++)
        http_stub_reply(stub, 200, "ETag: \"00000000000000000000000000000000\"\r\n", "");
    ck_assert_int_eq(objstore_put(st, "k", "body", 4, NULL, NULL, NULL), -EBADMSG);
    ck_assert_uint_ge(http_stub_n_requests(stub), 3);
}
END_TEST

START_TEST(body_carries_the_one_digest_that_the_store_compares)
{
    static const uint32_t caps[] = {CAP_CONTENT_MD5 | CAP_ETAG_IS_MD5,
                                    CAP_CONTENT_MD5 | CAP_ETAG_IS_MD5 | CAP_PAYLOAD_SHA256};
    static const char md5_of_body[] = "ETag: \"841a2d689ad86bd1611447453c22c6fc\"\r\n";
    g_autofree char *signed_sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, "body", 4);
    for (unsigned i = 0; i < 2; i++) {
        struct obj_part part = {.number = 1, .size = 4};
        objstore_set_caps(st, caps[i]);
        for (int n = 0; n < 2; n++)
            http_stub_reply(stub, 200, md5_of_body, "");
        ck_assert_int_eq(objstore_put(st, "k", "body", 4, NULL, NULL, NULL), 0);
        ck_assert_int_eq(objstore_mpu_part(st, "k", "U", "body", &part), 0);
        for (unsigned n = 2 * i; n < 2 * i + 2; n++) {
            ck_assert(asked(n, signed_sum));
            ck_assert(asked(n, "Content-MD5: hBotaJrYa9FhFEdFPCLG/A==") == (i == 0));
        }
    }
}
END_TEST

START_TEST(anonymous_body_carries_its_md5)
{
    g_autofree char *msg = NULL;
    struct objstore *anonymous = NULL;
    struct objstore_config cfg = {.source = "s3://bucket/pre",
                                  .endpoint_url = http_stub_url(stub),
                                  .region = "us-east-1",
                                  .no_sign_request = true};
    ck_assert_int_eq(objstore_open(&cfg, &anonymous, &msg), 0);
    objstore_set_caps(anonymous, CAP_PAYLOAD_SHA256); /* as a signed mount before found */
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "");
    ck_assert_int_eq(objstore_put(anonymous, "k", "body", 4, NULL, NULL, NULL), 0);
    ck_assert(asked(0, "Content-MD5: hBotaJrYa9FhFEdFPCLG/A=="));
    objstore_close(anonymous);
}
END_TEST

START_TEST(body_that_arrived_changed_is_sent_again)
{
    struct obj_part part = {.number = 1, .size = 4};
    int64_t sent = metric_get(M_sent_bytes), stored = metric_get(M_uploaded_bytes);
    objstore_set_caps(st, CAP_PAYLOAD_SHA256);
    http_stub_reply(stub, 400, "", ERROR_XML("XAmzContentSHA256Mismatch"));
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "");
    ck_assert_int_eq(objstore_mpu_part(st, "k", "U", "body", &part), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
    ck_assert_int_eq(metric_get(M_sent_bytes) - sent, 8);
    ck_assert_int_eq(metric_get(M_uploaded_bytes) - stored, 4);
}
END_TEST

START_TEST(broken_body_goes_on_where_it_stopped)
{
    struct obj_info info = {0};
    g_autoptr(GString) out = g_string_new(NULL);
    http_stub_reply_cut(stub, 200, "ETag: \"v1\"\r\nx-amz-meta-mode: 0100600\r\n", "0123456789", 4);
    http_stub_drop(stub);
    http_stub_reply_cut(stub, 206, "ETag: \"v1\"\r\nContent-Range: bytes 4-9/10\r\n", "456789", 1);
    http_stub_reply(stub, 206, "ETag: \"v1\"\r\nContent-Range: bytes 5-9/10\r\n", "56789");
    ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, to_string, out, &info), 0);
    ck_assert_str_eq(out->str, "0123456789");
    ck_assert_uint_eq(info.size, 10);
    ck_assert_uint_eq(info.posix.mode, 0100600);
    ck_assert(!asked(0, "Range:"));
    ck_assert(asked(1, "Range: bytes=4-9") && asked(1, "If-Match: \"v1\""));
    ck_assert(asked(3, "Range: bytes=5-9"));
    obj_info_clear(&info);
}
END_TEST

START_TEST(change_between_two_ranges_is_estale)
{
    g_autoptr(GString) out = g_string_new(NULL);
    http_stub_reply_cut(stub, 200, "ETag: \"v1\"\r\n", "0123456789", 4);
    http_stub_reply(stub, 412, "", ERROR_XML("PreconditionFailed"));
    ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL), -ESTALE);
    g_string_truncate(out, 0);
    http_stub_reply_cut(stub, 200, "ETag: \"v1\"\r\n", "0123456789", 4);
    http_stub_reply(stub, 206, "ETag: \"v2\"\r\nContent-Range: bytes 4-9/10\r\n",
                    "xxxxxx"); /* a store that ignores If-Match */
    ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL), -ESTALE);
    ck_assert_str_eq(out->str, "0123");
}
END_TEST

START_TEST(replies_for_another_range_give_no_byte)
{
    const char *bad[] = {"Content-Range: bytes 0-3/10\r\n", "Content-Range: bytes 2-4/10\r\n",
                         "Content-Range: 2-5/10\r\n", "", "Content-Range: bytes 2-5/5\r\n"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GString) out = g_string_new(NULL);
        g_autofree char *headers = g_strconcat("ETag: \"v1\"\r\n", bad[i], NULL);
        for (int n = 0; n < 3; n++)
            http_stub_reply(stub, 206, headers, "2345");
        ck_assert_int_eq(objstore_get(st, "k", 2, 4, NULL, to_string, out, NULL), -EBADMSG);
        ck_assert_uint_eq(out->len, 0);
    }
    g_autoptr(GString) out = g_string_new(NULL);
    for (int n = 0; n < 3; n++)
        http_stub_reply(stub, 200, "ETag: \"v1\"\r\n", "0123456789"); /* the range was ignored */
    ck_assert_int_eq(objstore_get(st, "k", 2, 4, NULL, to_string, out, NULL), -EBADMSG);
    ck_assert_uint_eq(out->len, 0);
}
END_TEST

START_TEST(end_of_another_version_is_not_the_end)
{
    static const struct {
        const char *head;
        int want;
    } rows[] = {
        {"ETag: \"v1\"\r\nContent-Length: 10\r\n", 0},
        {"ETag: \"v2\"\r\nContent-Length: 10\r\n", -ESTALE},
        {"ETag: \"v1\"\r\nContent-Length: 11\r\n", -ESTALE},
    };
    const struct etag v1 = {"v1"};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct obj_info info = {0};
        g_autoptr(GString) out = g_string_new(NULL);
        http_stub_reply(stub, 416, "Content-Range: bytes */10\r\n", ERROR_XML("InvalidRange"));
        http_stub_reply(stub, 200, rows[i].head, "");
        ck_assert_int_eq(objstore_get(st, "k", 10, 5, &v1, to_string, out, &info), rows[i].want);
        ck_assert_uint_eq(out->len, 0);
        obj_info_clear(&info);
    }
}
END_TEST

START_TEST(slow_down_waits_as_long_as_the_store_asks)
{
    struct obj_info info = {0};
    int64_t slow = metric_get(M_store_slowdowns);
    uint64_t from = clock_mono_ns();
    http_stub_reply(stub, 503, "Retry-After: 1\r\n", ERROR_XML("SlowDown"));
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert_uint_ge(clock_mono_ns() - from, NS_PER_S);
    ck_assert_int_eq(metric_get(M_store_slowdowns), slow + 1);
    ck_assert_uint_eq(info.size, 5);
}
END_TEST

START_TEST(skewed_clock_is_repaired_from_the_date)
{
    g_autoptr(GString) out = g_string_new(NULL);
    http_stub_reply(stub, 403, "Date: Wed, 01 Jan 2031 10:00:00 GMT\r\n", ERROR_XML("RequestTimeTooSkewed"));
    http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "x");
    ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL), 0);
    ck_assert(!asked(0, "x-amz-date: 20310101T10"));
    ck_assert(asked(1, "x-amz-date: 20310101T10000"));
    struct obj_info info = {0};
    http_stub_reply(stub, 403, "Date: Thu, 01 Jan 2032 10:00:00 GMT\r\n", ""); /* a HEAD has no code to tell */
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert(asked(3, "x-amz-date: 20320101T10000"));
}
END_TEST

static int count(void *ctx, const struct obj_entry *e)
{
    ++*(int *)ctx;
    return 0;
}

static int list_all(int *n)
{
    struct obj_list_req req = {.prefix = ""};
    *n = 0;
    return objstore_list(st, &req, count, n, NULL);
}

#define PAGE(rest) "<ListBucketResult>" rest "</ListBucketResult>"
#define MORE(next) "<IsTruncated>true</IsTruncated><NextContinuationToken>" next "</NextContinuationToken>"
#define ROW(key)   "<Contents><Key>pre/" key "</Key><Size>1</Size><ETag>e</ETag></Contents>"

START_TEST(listing_that_does_not_come_to_an_end_is_refused)
{
    int n = 0;
    const char *more = "<IsTruncated>true</IsTruncated><NextContinuationToken>T</NextContinuationToken>";
    g_autofree char *first = g_strdup_printf(PAGE("%s" ROW("a")), more);
    g_autofree char *again = g_strdup_printf(PAGE("%s" ROW("b")), more);
    http_stub_reply(stub, 200, "", first);
    http_stub_reply(stub, 200, "", again);
    ck_assert_int_eq(list_all(&n), -EBADMSG);
    ck_assert_int_eq(n, 2);
    http_stub_reply(stub, 200, "", PAGE("<IsTruncated>true</IsTruncated>" ROW("a")));
    ck_assert_int_eq(list_all(&n), -EBADMSG);
    http_stub_reply(stub, 200, "", first);
    http_stub_reply(stub, 200, "",
                    PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken>U</NextContinuationToken>" ROW("A")));
    ck_assert_int_eq(list_all(&n), -EBADMSG); /* keys go backwards */
}
END_TEST

/* Two pages that name each other as the next. */
static void script_circle(const char *even, const char *odd)
{
    for (unsigned i = 0; i < 1100; i++)
        http_stub_reply(stub, 200, "", i % 2 ? odd : even);
}

START_TEST(listing_that_goes_in_circles_is_refused)
{
    int n = 0;
    script_circle(PAGE(MORE("A") ROW("a")), PAGE(MORE("B") ROW("a")));
    ck_assert_int_eq(list_all(&n), -EBADMSG);
    ck_assert_int_eq(n, 1);
}
END_TEST

static int count_upload(void *ctx, const char *key, const char *upload_id)
{
    ++*(int *)ctx;
    return 0;
}

#define UPLOADS(next, id)                                                                                              \
    "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>pre/k</NextKeyMarker>"                  \
    "<NextUploadIdMarker>" next "</NextUploadIdMarker><Upload><Key>pre/k</Key><UploadId>" id "</UploadId></Upload>"    \
    "</ListMultipartUploadsResult>"

START_TEST(list_of_uploads_that_goes_in_circles_is_refused)
{
    int n = 0;
    script_circle(UPLOADS("A", "1"), UPLOADS("B", "2"));
    ck_assert_int_eq(objstore_mpu_list(st, "", count_upload, &n), -EBADMSG);
    ck_assert_int_eq(n, 2);
}
END_TEST

START_TEST(empty_page_in_the_middle_is_no_end)
{
    int n = 0;
    http_stub_reply(stub, 200, "",
                    PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken>T</NextContinuationToken>"));
    http_stub_reply(stub, 200, "", PAGE(LAST ROW("a")));
    ck_assert_int_eq(list_all(&n), 0);
    ck_assert_int_eq(n, 1);
    ck_assert(asked(1, "continuation-token=T"));
}
END_TEST

START_TEST(list_page_cut_in_the_middle_is_asked_again)
{
    int n = 0;
    http_stub_reply(stub, 200, "", "<ListBucketResult>" LAST ROW("a"));
    http_stub_reply(stub, 200, "", PAGE(LAST ROW("a")));
    ck_assert_int_eq(list_all(&n), 0);
    ck_assert_int_eq(n, 1);
}
END_TEST

START_TEST(redirect_is_not_followed_and_names_the_region)
{
    g_autofree char *msg = NULL;
    g_autofree char *headers =
        g_strdup_printf("Location: %s/elsewhere\r\nx-amz-bucket-region: eu-west-3\r\n", http_stub_url(stub));
    http_stub_reply(stub, 301, headers, ERROR_XML("PermanentRedirect"));
    ck_assert_int_eq(objstore_check(st, &msg), -EACCES);
    ck_assert_ptr_nonnull(strstr(msg, "eu-west-3"));
    ck_assert_uint_eq(http_stub_n_requests(stub), 1);
    http_stub_reply(stub, 307, headers, ERROR_XML("TemporaryRedirect"));
    http_stub_reply(stub, 200, "", PAGE(LAST));
    ck_assert_int_eq(objstore_check(st, &msg), 0);
    ck_assert(asked(2, "GET /bucket?"));
}
END_TEST

START_TEST(silent_store_ends_at_the_deadline)
{
    struct obj_info info = {0};
    objstore_close(st);
    open_with_timeout(2 * NS_PER_S);
    for (int i = 0; i < 20; i++)
        http_stub_hang(stub);
    uint64_t from = clock_mono_ns();
    ck_assert_int_eq(objstore_head(st, "k", &info), -ETIMEDOUT);
    ck_assert_uint_le(clock_mono_ns() - from, 7 * NS_PER_S);
    ck_assert_int_ne(objstore_offline_since_ns(st), 0);
}
END_TEST

START_TEST(shutdown_ends_a_call_that_waits_for_the_store)
{
    http_stub_hang(stub);
    GThread *t = g_thread_new("head", head_in_thread, NULL);
    while (http_stub_n_requests(stub) == 0)
        g_usleep(1000);
    uint64_t from = clock_mono_ns();
    objstore_shutdown(st);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(t)), -ECANCELED);
    ck_assert_uint_le(clock_mono_ns() - from, 3 * NS_PER_S);
}
END_TEST

START_TEST(answer_of_the_store_ends_being_offline)
{
    struct obj_info info = {0};
    http_stub_drop(stub);
    http_stub_reply(stub, NOT_THERE);
    ck_assert_int_eq(objstore_head(st, "k", &info), -ENOENT);
    ck_assert_int_eq(objstore_offline_since_ns(st), 0);
}
END_TEST

START_TEST(not_found_that_the_store_did_not_say_is_no_answer)
{
    struct obj_info info = {0};
    struct obj_part *parts = NULL;
    size_t n = 0;
    http_stub_reply(stub, 404, "Content-Length: 9\r\n", ""); /* HEAD: of a proxy, say */
    http_stub_reply(stub, 404, "", "not found");             /* and so to a GET */
    http_stub_reply(stub, 404, "Content-Length: 9\r\n", "");
    http_stub_reply(stub, 206, "", "b"); /* now it is the store */
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    obj_info_clear(&info);
    http_stub_reply(stub, 404, "", "<html>not found</html>");
    http_stub_reply(stub, 204, "", "");
    ck_assert_int_eq(objstore_delete(st, "k", NULL), 0);
    ck_assert(asked(5, "DELETE ") && asked(6, "DELETE "));
    http_stub_reply(stub, 404, "x-amz-request-id: 1\r\n", "");
    http_stub_reply(stub, 404, "", ERROR_XML("NoSuchUpload"));
    ck_assert_int_eq(objstore_mpu_parts(st, "k", "U", &parts, &n), -ENOENT);
    ck_assert_uint_eq(http_stub_n_requests(stub), 9);
}
END_TEST

/* Google and R2: only a code tells that it is they who say so, and a HEAD has none. */
START_TEST(store_that_does_not_number_its_replies_is_asked_by_a_get)
{
    static const struct {
        const char *body;
        int err;
    } rows[] = {{ERROR_XML("NoSuchKey"), -ENOENT}, {ERROR_XML("NoSuchBucket"), -ENODEV}};
    struct obj_info info = {0};
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        http_stub_reply(stub, 404, "X-GUploader-UploadID: 1\r\n", "");
        http_stub_reply(stub, 404, "X-GUploader-UploadID: 2\r\n", rows[i].body);
        ck_assert_int_eq(objstore_head(st, "a b", &info), rows[i].err);
        ck_assert(asked(2 * i, "HEAD /bucket/pre/a%20b ") && asked(2 * i + 1, "GET /bucket/pre/a%20b "));
        ck_assert(asked(2 * i + 1, "Range: bytes=0-0"));
        ck_assert_uint_eq(http_stub_n_requests(stub), 2 * i + 2);
    }
}
END_TEST

START_TEST(delete_without_the_capability_looks_first)
{
    struct obj_cond cond = {.kind = OBJ_COND_ETAG, .etag = {"mine"}};
    http_stub_reply(stub, 200, "ETag: \"theirs\"\r\nContent-Length: 1\r\n", "");
    ck_assert_int_eq(objstore_delete(st, "k", &cond), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), 1);
    objstore_set_caps(st, CAP_DELETE_IF_MATCH);
    http_stub_reply(stub, 204, "", "");
    ck_assert_int_eq(objstore_delete(st, "k", &cond), 0);
    ck_assert(asked(1, "DELETE /bucket/pre/k ") && asked(1, "If-Match: \"mine\""));
}
END_TEST

/* Not tried again, and a line says which object and what to do. */
START_TEST(archived_object_is_refused_once_and_named_in_the_log)
{
    g_autoptr(GString) body = g_string_new(NULL);
    log_warnings();
    http_stub_reply(stub, 403, "", ERROR_XML("InvalidObjectState"));
    ck_assert_int_eq(objstore_get(st, "old/model", 0, 0, NULL, to_string, body, NULL), -ENOMEDIUM);
    ck_assert_uint_eq(http_stub_n_requests(stub), 1);
    g_autofree char *log = log_of_warnings();
    ck_assert_ptr_nonnull(strstr(log, "archived: restore it in the store first key='pre/old/model'"));
}
END_TEST

START_TEST(head_tells_what_has_to_be_restored)
{
    const struct {
        const char *headers;
        bool archived;
    } rows[] = {
        {"x-amz-storage-class: GLACIER\r\n", true},
        {"x-amz-storage-class: DEEP_ARCHIVE\r\nx-amz-restore: ongoing-request=\"true\"\r\n", true},
        {"x-amz-storage-class: GLACIER\r\nx-amz-restore: ongoing-request=\"false\", expiry-date=\"x\"\r\n", false},
        {"x-amz-storage-class: GLACIER_IR\r\n", false},
        {"", false},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct obj_info info = {0};
        g_autofree char *headers = g_strconcat("ETag: \"e\"\r\nContent-Length: 5\r\n", rows[i].headers, NULL);
        http_stub_reply(stub, 200, headers, "");
        ck_assert_int_eq(objstore_head(st, "k", &info), 0);
        ck_assert_msg(info.archived == rows[i].archived, "%s", rows[i].headers);
        obj_info_clear(&info);
    }
}
END_TEST

START_TEST(loopback_is_reached_without_a_proxy)
{
    static const char *const exempt[] = {"no_proxy", "NO_PROXY"};
    struct http_stub *proxy = http_stub_new();
    struct obj_info info = {0};
    for (size_t i = 0; i < G_N_ELEMENTS(exempt); i++)
        unsetenv(exempt[i]);
    setenv("http_proxy", http_stub_url(proxy), 1);
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert_uint_eq(http_stub_n_requests(proxy), 0);
    obj_info_clear(&info);
    unsetenv("http_proxy");
    http_stub_free(proxy);
}
END_TEST

START_TEST(plain_http_beyond_loopback_is_refused)
{
    struct objstore *other = NULL;
    g_autofree char *msg = NULL;
    struct objstore_config cfg = {.source = "s3://bucket", .endpoint_url = "http://192.0.2.1", .region = "r"};
    ck_assert_int_eq(objstore_open(&cfg, &other, &msg), -EACCES);
    ck_assert_ptr_nonnull(strstr(msg, "unencrypted"));
    cfg.allow_plain_http = true;
    ck_assert_int_eq(objstore_open(&cfg, &other, &msg), 0);
    objstore_close(other);
}
END_TEST

static int swallow(void *ctx, const void *buf, size_t len)
{
    *(size_t *)ctx += len;
    return 0;
}

START_TEST(download_limit_holds_the_rate)
{
    struct http_pool *pool = NULL;
    struct http_pool_config cfg = {.download_limit_bps = 200000};
    struct http_response resp = {0};
    size_t n = 0;
    g_autofree char *body = g_strnfill(150000, 'x');
    struct http_request req = {.method = "GET", .url = http_stub_url(stub), .sink = swallow, .ctx = &n};
    ck_assert_int_eq(http_pool_new(&cfg, &pool), 0);
    http_stub_reply(stub, 200, "", body);
    uint64_t from = clock_mono_ns();
    ck_assert_int_eq(http_perform(pool, &req, &resp), 0);
    ck_assert_uint_eq(n, 150000);
    ck_assert_uint_ge(clock_mono_ns() - from, 400 * NS_PER_MS);
    http_response_clear(&resp);
    http_pool_free(pool);
}
END_TEST

START_TEST(reply_beyond_its_cap_is_refused)
{
    struct http_pool *pool = NULL;
    struct http_pool_config cfg = {0};
    struct http_response resp = {0};
    g_autofree char *body = g_strnfill(2000, 'x');
    struct http_request req = {.method = "GET", .url = http_stub_url(stub), .body_cap = 1000};
    ck_assert_int_eq(http_pool_new(&cfg, &pool), 0);
    http_stub_reply(stub, 200, "", body);
    ck_assert_int_eq(http_perform(pool, &req, &resp), -EBADMSG);
    ck_assert_int_eq(resp.fail, HTTP_FAIL_TOO_BIG);
    http_response_clear(&resp);
    http_pool_free(pool);
}
END_TEST

START_TEST(secrets_never_go_out_in_the_clear)
{
    struct obj_info info = {0};
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert(asked(0, "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"));
    ck_assert(!strstr(http_stub_request(stub, 0), "secret"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_s3");
    TCase *t = add_case(s, "scripted replies");
    tcase_add_test(t, error_inside_a_200_of_complete_is_tried_again);
    tcase_add_test(t, final_error_inside_a_200_of_complete_is_an_error);
    tcase_add_test(t, lost_reply_of_complete_is_settled_by_the_token);
    tcase_add_test(t, no_such_upload_after_a_lost_reply_is_settled_by_the_token);
    tcase_add_test(t, complete_without_an_etag_in_its_reply_reads_it);
    tcase_add_test(t, lost_reply_of_put_is_not_sent_twice_when_the_token_is_there);
    tcase_add_test(t, own_success_seen_as_conflict_is_success);
    tcase_add_test(t, empty_objects_are_told_apart_by_their_tokens);
    tcase_add_test(t, store_that_makes_what_should_be_there_is_asked_before);
    tcase_add_test(t, condition_on_an_empty_object_is_on_its_token_too);
    tcase_add_test(t, put_whose_etag_contradicts_the_body_fails);
    tcase_add_test(t, body_carries_the_one_digest_that_the_store_compares);
    tcase_add_test(t, anonymous_body_carries_its_md5);
    tcase_add_test(t, body_that_arrived_changed_is_sent_again);
    tcase_add_test(t, broken_body_goes_on_where_it_stopped);
    tcase_add_test(t, change_between_two_ranges_is_estale);
    tcase_add_test(t, replies_for_another_range_give_no_byte);
    tcase_add_test(t, end_of_another_version_is_not_the_end);
    tcase_add_test(t, slow_down_waits_as_long_as_the_store_asks);
    tcase_add_test(t, skewed_clock_is_repaired_from_the_date);
    tcase_add_test(t, listing_that_does_not_come_to_an_end_is_refused);
    tcase_add_test(t, listing_that_goes_in_circles_is_refused);
    tcase_add_test(t, list_of_uploads_that_goes_in_circles_is_refused);
    tcase_add_test(t, empty_page_in_the_middle_is_no_end);
    tcase_add_test(t, list_page_cut_in_the_middle_is_asked_again);
    tcase_add_test(t, redirect_is_not_followed_and_names_the_region);
    tcase_add_test(t, silent_store_ends_at_the_deadline);
    tcase_add_test(t, shutdown_ends_a_call_that_waits_for_the_store);
    tcase_add_test(t, answer_of_the_store_ends_being_offline);
    tcase_add_test(t, not_found_that_the_store_did_not_say_is_no_answer);
    tcase_add_test(t, store_that_does_not_number_its_replies_is_asked_by_a_get);
    tcase_add_test(t, delete_without_the_capability_looks_first);
    tcase_add_test(t, loopback_is_reached_without_a_proxy);
    tcase_add_test(t, plain_http_beyond_loopback_is_refused);
    tcase_add_test(t, archived_object_is_refused_once_and_named_in_the_log);
    tcase_add_test(t, head_tells_what_has_to_be_restored);
    tcase_add_test(t, download_limit_holds_the_rate);
    tcase_add_test(t, reply_beyond_its_cap_is_refused);
    tcase_add_test(t, secrets_never_go_out_in_the_clear);
    return run_suite(s);
}
