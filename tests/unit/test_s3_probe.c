/* The probe of what a store can do, request by request. */
#include "drv_s3_fixture.h"

#define REFUSED    412, "", ERROR_XML("PreconditionFailed")
#define BAD_DIGEST 400, "", ERROR_XML("BadDigest")
#define BAD_SHA256 400, "", ERROR_XML("XAmzContentSHA256Mismatch")
#define WRITTEN    200, "ETag: \"5ef5\"\r\n", ""
#define ALL_CAPS                                                                                                       \
    (CAP_PUT_IF_NONE_MATCH | CAP_PUT_IF_MATCH | CAP_CONTENT_MD5 | CAP_CHECKSUM_CRC32C | CAP_CHECKSUM_CRC64NVME |       \
     CAP_RANGE_IF_MATCH | CAP_COPY_IF_MATCH | CAP_PART_COPY | CAP_COMPLETE_CONDITIONS | CAP_DELETE_IF_MATCH |          \
     CAP_PAYLOAD_SHA256 | CAP_PART_COPY_IF_MATCH | CAP_COPY_TARGET)
#define PART_COPIED 200, "", "<CopyPartResult><ETag>p</ETag></CopyPartResult>"

struct scripted {
    int status;
    const char *headers, *body;
};
#define COPIED 200, "", "<CopyObjectResult><ETag>e</ETag></CopyObjectResult>"
enum {
    PROBE_ABSENT = 5,
    PROBE_SHA256 = 7,
    PROBE_RANGE = 14,
    PROBE_COPY = 16,
    PROBE_CREATE = 17,
    PROBE_PART_IF_MATCH = 18,
    PROBE_PART = 20,
    PROBE_COMPLETE = 23,
    PROBE_COMPLETE_ABSENT = 24,
    PROBE_TARGET = 28,
    PROBE_DELETE = 35
};
static const struct scripted probe_script[] = {
    {WRITTEN},    /* PUT a */
    {REFUSED},    /* a must be absent */
    {WRITTEN},    /* b must be absent */
    {REFUSED},    /* a must have another etag */
    {WRITTEN},    /* a must have this etag */
    {REFUSED},    /* c must have it, which is not there */
    {BAD_DIGEST}, /* MD5 */
    {BAD_SHA256},
    {WRITTEN}, /* SHA-256 of the signature */
    {BAD_DIGEST},
    {WRITTEN}, /* CRC32C */
    {BAD_DIGEST},
    {WRITTEN}, /* CRC64NVME */
    {REFUSED},
    {206, "", "slui"}, /* GET */
    {REFUSED},
    {COPIED},
    {200, "", "<R><UploadId>U</UploadId></R>"},
    {REFUSED},
    {PART_COPIED}, /* of a with this etag */
    {PART_COPIED},
    {REFUSED},
    {REFUSED},
    {200, "", COMPLETE_XML},
    {200, "", "<R><UploadId>V</UploadId></R>"}, /* of c */
    {WRITTEN},
    {404, "", ERROR_XML("NoSuchKey")},
    {204, "", ""}, /* aborted */
    {REFUSED},     /* a copied to c, which must have an etag and is not there */
    {COPIED},      /* must be absent */
    {REFUSED},
    {REFUSED}, /* must have another etag */
    {COPIED},
    {WRITTEN},
    {REFUSED},
    {204, "", ""}, /* DELETE b */
};

static void script_rows(size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        http_stub_reply(stub, probe_script[i].status, probe_script[i].headers, probe_script[i].body);
}

/* Of a, b and, where it was made, c. */
static void script_cleanup(int status, int n)
{
    for (int i = 0; i < n; i++)
        http_stub_reply(stub, status, "", status == 403 ? ERROR_XML("AccessDenied") : "");
}

START_TEST(probe_finds_what_the_store_does)
{
    uint32_t caps = 0;
    script_rows(0, G_N_ELEMENTS(probe_script));
    script_cleanup(204, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, ALL_CAPS);
    ck_assert(asked(PROBE_COPY, "x-amz-copy-source-if-match: \"5ef5\"") && asked(PROBE_COMPLETE, "If-Match: \"5ef5\""));
    ck_assert(asked(PROBE_PART_IF_MATCH, "partNumber=1&uploadId=U") &&
              asked(PROBE_PART_IF_MATCH, "x-amz-copy-source-if-match: \"0000000"));
    ck_assert(asked(PROBE_PART_IF_MATCH + 1, "x-amz-copy-source-if-match: \"5ef5\"") &&
              asked(PROBE_PART_IF_MATCH + 1, "x-amz-copy-source-range: bytes=0-22"));
    ck_assert(asked(PROBE_ABSENT, "-c HTTP") && asked(PROBE_ABSENT, "If-Match: \"5ef5\""));
    ck_assert(asked(PROBE_COMPLETE_ABSENT + 2, "-c?uploadId=V") &&
              asked(PROBE_COMPLETE_ABSENT + 2, "If-Match: \"5ef5\""));
    ck_assert(asked(PROBE_TARGET, "-c HTTP") && asked(PROBE_TARGET, "If-Match: \"5ef5\""));
    ck_assert(asked(PROBE_TARGET + 1, "If-None-Match: *") && asked(PROBE_TARGET + 2, "If-None-Match: *"));
    ck_assert(asked(PROBE_TARGET + 3, "If-Match: \"0000000") && asked(PROBE_TARGET + 4, "If-Match: \"e\""));
    ck_assert(asked(PROBE_DELETE, "DELETE /bucket/pre/.p/probe-") && asked(PROBE_DELETE, "If-Match: \"5ef5\""));
}
END_TEST

START_TEST(store_that_refuses_every_condition_has_none)
{
    static const struct {
        size_t row;
        uint32_t cap;
    } rows[] = {{PROBE_RANGE, CAP_RANGE_IF_MATCH},
                {PROBE_COPY, CAP_COPY_IF_MATCH},
                {PROBE_PART_IF_MATCH + 1, CAP_PART_COPY_IF_MATCH},
                {PROBE_COMPLETE, CAP_COMPLETE_CONDITIONS},
                {PROBE_DELETE, CAP_DELETE_IF_MATCH}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        uint32_t caps = 0;
        script_rows(0, rows[i].row);
        http_stub_reply(stub, REFUSED);
        if (rows[i].row == PROBE_COMPLETE)
            http_stub_reply(stub, 204, "", ""); /* the upload is aborted */
        script_rows(rows[i].row == PROBE_COMPLETE ? PROBE_TARGET : rows[i].row + 1, G_N_ELEMENTS(probe_script));
        script_cleanup(204, 3);
        ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
        ck_assert_uint_eq(caps, ALL_CAPS & ~rows[i].cap);
    }
}
END_TEST

/* Ceph and others look at it in a CopyObject only: what they made of a part is believed when its source is still the one meant. */
START_TEST(store_may_ignore_the_condition_on_the_source_of_a_part)
{
    uint32_t caps = 0;
    struct obj_part part = {.number = 1, .size = 5};
    struct etag v1 = {"v1"};
    script_rows(0, PROBE_PART_IF_MATCH);
    http_stub_reply(stub, PART_COPIED); /* the wrong one: the right one is not sent then */
    script_rows(PROBE_PART_IF_MATCH + 2, G_N_ELEMENTS(probe_script));
    script_cleanup(204, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, ALL_CAPS & ~CAP_PART_COPY_IF_MATCH);
    unsigned n = http_stub_n_requests(stub);
    http_stub_reply(stub, 200, "ETag: \"v1\"\r\nContent-Length: 5\r\n", "");
    http_stub_reply(stub, PART_COPIED);
    http_stub_reply(stub, 200, "ETag: \"v2\"\r\nContent-Length: 5\r\n", "");
    ck_assert_int_eq(objstore_mpu_part_copy(st, "d", "U", "s", &v1, 0, &part), -ESTALE);
    ck_assert(asked(n, "HEAD ") && asked(n + 1, "PUT ") && asked(n + 2, "HEAD "));
    http_stub_reply(stub, 200, "ETag: \"v2\"\r\nContent-Length: 5\r\n", "");
    ck_assert_int_eq(objstore_mpu_part_copy(st, "d", "U", "s", &v1, 0, &part), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), n + 4);
}
END_TEST

/* 0: by PUT; 1: by Complete. */
START_TEST(store_that_makes_what_should_be_there_is_found_out)
{
    uint32_t caps = 0;
    size_t row = _i ? PROBE_COMPLETE_ABSENT + 2 : PROBE_ABSENT;
    script_rows(0, row);
    if (_i == 0) {
        http_stub_reply(stub, WRITTEN);
        script_rows(row + 1, PROBE_COMPLETE_ABSENT);
    } else {
        http_stub_reply(stub, 200, "", COMPLETE_XML);
    }
    script_rows(PROBE_DELETE - 2, G_N_ELEMENTS(probe_script)); /* c is not absent any more */
    script_cleanup(204, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, (ALL_CAPS & ~CAP_COPY_TARGET) | CAP_IF_MATCH_ABSENT);
}
END_TEST

/* Conditions that are ignored, or taken to be on the source, or those of which only one is known. */
START_TEST(copy_that_does_not_compare_its_target_is_found_out)
{
    static const struct scripted other[] = {{COPIED}, {REFUSED}, {COPIED}, {COPIED}, {REFUSED}};
    uint32_t caps = 0;
    script_rows(0, PROBE_TARGET + (size_t)_i);
    http_stub_reply(stub, other[_i].status, other[_i].headers, other[_i].body);
    script_rows(PROBE_DELETE - 2, G_N_ELEMENTS(probe_script));
    script_cleanup(204, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, ALL_CAPS & ~CAP_COPY_TARGET);
}
END_TEST

START_TEST(store_that_takes_any_signed_sum_does_not_compare_it)
{
    uint32_t caps = 0;
    script_rows(0, PROBE_SHA256);
    http_stub_reply(stub, WRITTEN); /* the wrong one: the right one is not sent then */
    script_rows(PROBE_SHA256 + 2, G_N_ELEMENTS(probe_script));
    script_cleanup(204, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, ALL_CAPS & ~CAP_PAYLOAD_SHA256);
    ck_assert(asked(PROBE_SHA256, "x-amz-content-sha256: 0000000000000000"));
}
END_TEST

START_TEST(probe_without_an_answer_about_uploads_is_made_again)
{
    static const size_t rows[] = {PROBE_CREATE, PROBE_PART};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        uint32_t caps = 77;
        script_rows(0, rows[i]);
        for (int n = 0; n < 3; n++)
            http_stub_reply(stub, 200, "", "<R>cut");
        if (rows[i] == PROBE_PART)
            http_stub_reply(stub, 204, "", ""); /* the upload is aborted */
        script_cleanup(204, 2);
        ck_assert_int_eq(objstore_probe(st, ".p/", &caps), -EBADMSG);
        ck_assert_uint_eq(caps, 77);
    }
}
END_TEST

#define BUSY    503, "", ERROR_XML("SlowDown")
#define FAILING 500, "", ERROR_XML("InternalError")

START_TEST(busy_store_is_probed_with_patience)
{
    uint32_t caps = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(probe_script); i++) {
        if (i % 8 == 1)
            http_stub_reply(stub, BUSY);
        script_rows(i, i + 1);
    }
    script_cleanup(204, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, ALL_CAPS);
    ck_assert_uint_eq(http_stub_n_requests(stub), G_N_ELEMENTS(probe_script) + 5 + 3);
}
END_TEST

/* A lost reply may be that of a success: the twin sent again would be refused for it. */
START_TEST(step_without_an_answer_is_taken_again_from_where_it_began)
{
    static const size_t rows[] = {2, PROBE_SHA256 + 1, PROBE_RANGE, PROBE_COPY, PROBE_DELETE};
    static const size_t starts[] = {0, PROBE_ABSENT + 1, PROBE_RANGE - 1, PROBE_COPY - 1, PROBE_DELETE - 2};
    static const size_t ends[] = {PROBE_ABSENT, PROBE_RANGE - 1, 0, 0, 0};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        uint32_t caps = 0;
        script_rows(0, rows[i]);
        http_stub_reply(stub, FAILING);
        script_rows(rows[i] + 1, ends[i]);  /* the rest of its step does not depend on that */
        http_stub_reply(stub, 204, "", ""); /* DELETE b */
        if (rows[i] == PROBE_DELETE)
            http_stub_reply(stub, 204, "", ""); /* and c */
        script_rows(0, 1);                      /* PUT a */
        script_rows(starts[i], G_N_ELEMENTS(probe_script));
        script_cleanup(204, rows[i] == PROBE_DELETE ? 2 : 3);
        ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
        ck_assert_uint_eq(caps, ALL_CAPS);
    }
}
END_TEST

START_TEST(probe_ends_where_the_store_fails_again_and_again)
{
    uint32_t caps = 77;
    http_stub_reply(stub, FAILING);
    for (int i = 0; i < 3; i++) {
        http_stub_reply(stub, 204, "", ""); /* DELETE b */
        http_stub_reply(stub, FAILING);     /* PUT a */
    }
    script_cleanup(204, 2);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), -EIO);
    ck_assert_uint_eq(caps, 77);
}
END_TEST

START_TEST(store_without_uploads_is_probed_all_the_same)
{
    uint32_t caps = 0;
    script_rows(0, PROBE_CREATE);
    http_stub_reply(stub, 501, "", ERROR_XML("NotImplemented"));
    script_rows(PROBE_TARGET, G_N_ELEMENTS(probe_script));
    script_cleanup(204, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, ALL_CAPS & ~(CAP_PART_COPY | CAP_PART_COPY_IF_MATCH | CAP_COMPLETE_CONDITIONS));
}
END_TEST

#define FULL 400, "", ERROR_XML("XMinioAdminBucketQuotaExceeded")

/* The quota may be raised: nothing is known of the store then, rather than that it knows no conditions. */
START_TEST(full_store_is_no_store_without_conditions)
{
    static const size_t rows[] = {0, 4, PROBE_SHA256 + 1, PROBE_COPY, PROBE_CREATE, PROBE_PART};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        uint32_t caps = 77;
        script_rows(0, rows[i]);
        for (int n = 0; n < 8; n++) /* the rest of the step */
            http_stub_reply(stub, FULL);
        ck_assert_int_eq(objstore_probe(st, ".p/", &caps), -EDQUOT);
        ck_assert_uint_eq(caps, 77);
        teardown();
        setup();
    }
}
END_TEST

START_TEST(store_that_takes_nothing_for_now_is_probed_later)
{
    static const struct {
        struct scripted reply;
        int r;
    } rows[] = {{{423, "", ""}, -EREMOTEIO},
                {{400, "", ERROR_XML("SomethingOfTheirOwn")}, -EREMOTEIO},
                {{403, "", ERROR_XML("AccessDenied")}, -EACCES}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        uint32_t caps = 77;
        http_stub_reply(stub, rows[i].reply.status, "", rows[i].reply.body);
        script_cleanup(204, 2);
        ck_assert_int_eq(objstore_probe(st, ".p/", &caps), rows[i].r);
        ck_assert_uint_eq(caps, 77);
    }
}
END_TEST

START_TEST(probe_that_may_not_delete_keeps_what_it_found)
{
    uint32_t caps = 0;
    log_warnings();
    script_rows(0, PROBE_DELETE - 1);
    http_stub_reply(stub, 403, "", ERROR_XML("AccessDenied"));
    script_cleanup(403, 3);
    ck_assert_int_eq(objstore_probe(st, ".p/", &caps), 0);
    ck_assert_uint_eq(caps, ALL_CAPS & ~CAP_DELETE_IF_MATCH);
    g_autofree char *log = log_of_warnings();
    ck_assert_ptr_nonnull(strstr(log, "an object of the probe stays"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("s3_probe");
    TCase *t = tcase_create("scripted replies");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 30);
    tcase_add_test(t, probe_finds_what_the_store_does);
    tcase_add_test(t, store_that_refuses_every_condition_has_none);
    tcase_add_test(t, store_may_ignore_the_condition_on_the_source_of_a_part);
    tcase_add_loop_test(t, store_that_makes_what_should_be_there_is_found_out, 0, 2);
    tcase_add_loop_test(t, copy_that_does_not_compare_its_target_is_found_out, 0, 5);
    tcase_add_test(t, store_that_takes_any_signed_sum_does_not_compare_it);
    tcase_add_test(t, probe_without_an_answer_about_uploads_is_made_again);
    tcase_add_test(t, busy_store_is_probed_with_patience);
    tcase_add_test(t, step_without_an_answer_is_taken_again_from_where_it_began);
    tcase_add_test(t, probe_ends_where_the_store_fails_again_and_again);
    tcase_add_test(t, store_without_uploads_is_probed_all_the_same);
    tcase_add_test(t, full_store_is_no_store_without_conditions);
    tcase_add_test(t, store_that_takes_nothing_for_now_is_probed_later);
    tcase_add_test(t, probe_that_may_not_delete_keeps_what_it_found);
    suite_add_tcase(s, t);
    return run_suite(s);
}
