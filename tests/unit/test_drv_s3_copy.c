/* Copies inside the store: what they keep of their source, and what they leave when they do not come to their end. */
#include "drv_s3_fixture.h"

START_TEST(copy_above_the_limit_goes_by_parts_and_keeps_headers)
{
    struct etag etag = {0};
    const char *head =
        "ETag: \"src\"\r\nContent-Length: 6442450944\r\nContent-Type: text/x\r\nx-amz-meta-foreign: f\r\n"
        "x-amz-meta-uid: 5\r\n";
    http_stub_reply(stub, 200, head, "");
    http_stub_reply(stub, 200, "", "<R><UploadId>U</UploadId></R>");
    objstore_set_caps(st, CAP_COPY_IF_MATCH | CAP_PART_COPY_IF_MATCH);
    for (int i = 0; i < 6; i++)
        http_stub_reply(stub, 200, "", "<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>");
    http_stub_reply(stub, 200, "", COMPLETE_XML);
    ck_assert_int_eq(objstore_copy(st, "a b", NULL, "dst", NULL, NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "done-1");
    ck_assert(asked(1, "POST /bucket/pre/dst?uploads=") && asked(1, "content-type: text/x"));
    ck_assert(asked(1, "x-amz-meta-foreign: f") && asked(1, "x-amz-meta-uid: 5"));
    ck_assert(asked(2, "x-amz-copy-source: bucket/pre/a%20b") &&
              asked(2, "x-amz-copy-source-range: bytes=0-1073741823"));
    ck_assert(asked(7, "bytes=5368709120-6442450943") && asked(7, "x-amz-copy-source-if-match: \"src\""));
}
END_TEST

static int on_begun(void *ctx, const char *upload_id)
{
    ck_assert_str_eq(upload_id, "U");
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
    return *(int *)ctx;
}

/* And is ended at once when it could not be noted. */
START_TEST(upload_of_a_large_copy_is_told_before_it_holds_anything)
{
    int told = -EIO;
    struct obj_copy copy = {.src = "a", .dst = "b", .begun = on_begun, .ctx = &told};
    http_stub_reply(stub, 200, "ETag: \"src\"\r\nContent-Length: 6442450944\r\n", "");
    http_stub_reply(stub, 200, "", "<R><UploadId>U</UploadId></R>");
    http_stub_reply(stub, 204, "", "");
    ck_assert_int_eq(objstore_copy_with(st, &copy, NULL), -EIO);
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
    ck_assert(asked(2, "DELETE /bucket/pre/b?uploadId=U"));
}
END_TEST

static void on_completing(void *ctx)
{
    *(unsigned *)ctx = http_stub_n_requests(stub);
}

/* Some stores lose an object that they are still making when they get an abort. */
START_TEST(upload_that_may_become_the_object_is_not_aborted)
{
    static const struct {
        int status;
        const char *body;
        int err;
        bool aborted;
    } rows[] = {{400, ERROR_XML("InvalidPart"), -EBADMSG, false},
                {412, ERROR_XML("PreconditionFailed"), -ESTALE, true}};
    unsigned n = 0, told = 0;
    struct obj_copy copy = {.src = "a", .dst = "b", .completing = on_completing, .ctx = &told};
    objstore_set_caps(st, CAP_COPY_IF_MATCH | CAP_PART_COPY_IF_MATCH);
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        http_stub_reply(stub, 200, "ETag: \"src\"\r\nContent-Length: 6442450944\r\n", "");
        http_stub_reply(stub, 200, "", "<R><UploadId>U</UploadId></R>");
        for (int p = 0; p < 6; p++)
            http_stub_reply(stub, 200, "", "<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>");
        http_stub_reply(stub, rows[i].status, "", rows[i].body);
        if (rows[i].aborted)
            http_stub_reply(stub, 204, "", "");
        ck_assert_int_eq(objstore_copy_with(st, &copy, NULL), rows[i].err);
        ck_assert_uint_eq(told, n + 8);
        n += 9 + rows[i].aborted;
        ck_assert_uint_eq(http_stub_n_requests(stub), n);
    }
}
END_TEST

START_TEST(class_that_is_told_but_not_taken_is_left_out)
{
    objstore_set_caps(st, CAP_COPY_IF_MATCH | CAP_PART_COPY_IF_MATCH);
    http_stub_reply(stub, 200, "ETag: \"src\"\r\nContent-Length: 5\r\nx-amz-storage-class: WARM-TIER\r\n", "");
    http_stub_reply(stub, 400, "", ERROR_XML("InvalidStorageClass"));
    http_stub_reply(stub, 200, "", "<CopyObjectResult><ETag>\"c\"</ETag></CopyObjectResult>");
    ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", NULL, NULL, NULL), 0);
    ck_assert(asked(1, "x-amz-storage-class: WARM-TIER") && !asked(2, "x-amz-storage-class"));
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
}
END_TEST

#define TARGET_CAPS (CAP_COPY_IF_MATCH | CAP_COPY_TARGET)
#define COPIED      200, "", "<CopyObjectResult><ETag>\"c\"</ETag></CopyObjectResult>"

START_TEST(target_is_compared_by_the_store_that_can)
{
    static const struct obj_cond absent = {.kind = OBJ_COND_ABSENT}, known = {.kind = OBJ_COND_ETAG, .etag = {"old"}};
    objstore_set_caps(st, TARGET_CAPS);
    head_is("src", "");
    http_stub_reply(stub, COPIED);
    ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", NULL, &absent, NULL), 0);
    ck_assert(asked(1, "PUT /bucket/pre/b") && asked(1, "\r\nIf-None-Match: *"));
    head_is("src", "");
    http_stub_reply(stub, COPIED);
    ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", NULL, &known, NULL), 0);
    ck_assert(asked(3, "PUT /bucket/pre/b") && asked(3, "\r\nIf-Match: \"old\""));
    head_is("src", "");
    http_stub_reply(stub, 412, "", ERROR_XML("PreconditionFailed"));
    ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", NULL, &absent, NULL), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), 6);
}
END_TEST

/* 0: of the source; 1: of what was to be replaced. */
START_TEST(copy_tells_what_of_the_two_is_gone)
{
    static const struct obj_cond known = {.kind = OBJ_COND_ETAG, .etag = {"old"}};
    objstore_set_caps(st, TARGET_CAPS);
    head_is("src", "");
    http_stub_reply(stub, 404, "", ERROR_XML("NoSuchKey"));
    if (_i == 0)
        head_is("old", "");
    else
        head_finds_nothing();
    ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", NULL, &known, NULL), _i == 0 ? -ENOENT : -ESTALE);
    ck_assert(asked(2, "HEAD /bucket/pre/b"));
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
}
END_TEST

/* A store that ignores them, or of which nothing is known, gets none. */
START_TEST(target_is_looked_at_where_the_store_does_not_compare_it)
{
    static const struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    objstore_set_caps(st, _i ? CAP_COPY_IF_MATCH : 0);
    head_is("src", "");
    head_finds_nothing();
    http_stub_reply(stub, COPIED);
    head_is("src", ""); /* which a store of which nothing is known need not have compared */
    ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", NULL, &absent, NULL), 0);
    ck_assert(asked(1, "HEAD /bucket/pre/b") && asked(2, "PUT ") && !asked(2, "If-None-Match"));
    http_stub_skip(stub);
    head_is("src", "");
    head_is("theirs", "");
    ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", NULL, &absent, NULL), -ESTALE);
}
END_TEST

/* Many stores move the bytes first. */
START_TEST(silent_copy_is_waited_for_as_long_as_its_bytes_may_take)
{
    struct etag v1 = {"v1"};
    struct obj_part part = {.number = 1, .size = 1u << 30};
    objstore_close(st);
    open_with_timeout(3 * NS_PER_S); /* six seconds of silence, were it for that alone */
    objstore_set_caps(st, CAP_COPY_IF_MATCH | CAP_PART_COPY_IF_MATCH);
    if (_i == 0) {
        http_stub_reply(stub, 200, "ETag: \"v1\"\r\nContent-Length: 1073741824\r\n", "");
        http_stub_reply_late(stub, 8, 200, "", "<CopyObjectResult><ETag>\"c\"</ETag></CopyObjectResult>");
        ck_assert_int_eq(objstore_copy(st, "a", &v1, "b", NULL, NULL, NULL), 0);
        ck_assert_uint_eq(http_stub_n_requests(stub), 2);
    } else {
        http_stub_reply_late(stub, 8, 200, "", "<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>");
        ck_assert_int_eq(objstore_mpu_part_copy(st, "b", "U", "a", &v1, 0, &part), 0);
        ck_assert_uint_eq(http_stub_n_requests(stub), 1);
    }
}
END_TEST

#define KMS "x-amz-server-side-encryption: aws:kms\r\nx-amz-server-side-encryption-aws-kms-key-id: arn:k\r\n"
#define SSE "x-amz-server-side-encryption"

/* Of a copy with its metadata, one with new metadata, one by parts. */
START_TEST(copy_is_stored_as_its_source_is)
{
    const struct {
        const char *headers, *cls, *key;
    } rows[] = {
        {KMS "x-amz-storage-class: STANDARD_IA\r\n", "STANDARD_IA", "arn:k"},
        {KMS "x-amz-storage-class: GLACIER\r\nx-amz-restore: ongoing-request=\"false\"\r\n", NULL, "arn:k"},
        {"x-amz-storage-class: STANDARD\r\nx-amz-server-side-encryption: AES256\r\n", NULL, NULL},
        {"x-amz-storage-class: INTELLIGENT_TIERING\r\n", "INTELLIGENT_TIERING", NULL},
    };
    struct obj_meta meta = {.token = "tok"};
    objstore_set_caps(st, CAP_COPY_IF_MATCH | CAP_PART_COPY_IF_MATCH);
    unsigned n = 0;
    for (size_t i = 0; i < 3 * G_N_ELEMENTS(rows); i++) {
        const char *size = i % 3 == 2 ? "6442450944" : "5", *cls = rows[i / 3].cls, *key = rows[i / 3].key;
        g_autofree char *head = g_strdup_printf("ETag: \"src\"\r\nContent-Length: %s\r\n%s", size, rows[i / 3].headers);
        http_stub_reply(stub, 200, head, "");
        if (i % 3 == 2)
            http_stub_reply(stub, 200, "", "<R><UploadId>U</UploadId></R>");
        for (int p = 0; i % 3 == 2 && p < 6; p++)
            http_stub_reply(stub, 200, "", "<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>");
        http_stub_reply(stub, 200, "",
                        i % 3 == 2 ? COMPLETE_XML : "<CopyObjectResult><ETag>\"c\"</ETag></CopyObjectResult>");
        ck_assert_int_eq(objstore_copy(st, "a", NULL, "b", i % 3 == 1 ? &meta : NULL, NULL, NULL), 0);
        g_autofree char *line = g_strdup_printf("x-amz-storage-class: %s", cls ? cls : "");
        g_autofree char *key_line = g_strdup_printf(SSE "-aws-kms-key-id: %s", key ? key : "");
        ck_assert_msg(asked(n + 1, line) == (cls != NULL), "%zu: %s", i, http_stub_request(stub, n + 1));
        ck_assert_msg(asked(n + 1, key_line) == (key != NULL) && asked(n + 1, SSE ": aws:kms") == (key != NULL), "%zu",
                      i);
        ck_assert(!asked(n + 1, "GLACIER") && !asked(n + 1, "AES256") && !asked(n + 1, ": STANDARD\r"));
        n += i % 3 == 2 ? 9 : 2;
    }
    ck_assert_uint_eq(http_stub_n_requests(stub), n);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_s3_copy");
    TCase *t = add_case(s, "copies");
    tcase_add_test(t, copy_above_the_limit_goes_by_parts_and_keeps_headers);
    tcase_add_test(t, copy_is_stored_as_its_source_is);
    tcase_add_test(t, class_that_is_told_but_not_taken_is_left_out);
    tcase_add_test(t, upload_that_may_become_the_object_is_not_aborted);
    tcase_add_test(t, target_is_compared_by_the_store_that_can);
    tcase_add_loop_test(t, copy_tells_what_of_the_two_is_gone, 0, 2);
    tcase_add_loop_test(t, target_is_looked_at_where_the_store_does_not_compare_it, 0, 2);
    tcase_add_loop_test(t, silent_copy_is_waited_for_as_long_as_its_bytes_may_take, 0, 2);
    tcase_add_test(t, upload_of_a_large_copy_is_told_before_it_holds_anything);
    return run_suite(s);
}
