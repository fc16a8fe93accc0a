/* The error table, retry arithmetic with made-up time and chance, and metadata text. */
#include "../../s3/s3_err.h"
#include "../../s3/s3_meta.h"
#include "../../s3/s3_retry.h"
#include "base/clock.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(table_gives_errno_and_class)
{
    struct {
        long status;
        const char *code;
        int err;
        enum s3_retry_class retry;
        bool ambiguous;
    } rows[] = {
        {200, "", 0, S3_RETRY_NO, false},
        {204, "", 0, S3_RETRY_NO, false},
        {404, "NoSuchKey", -ENOENT, S3_RETRY_NO, false},
        {404, "NoSuchBucket", -ENODEV, S3_RETRY_NO, false},
        {404, "NoSuchUpload", -ENOENT, S3_RETRY_NO, false},
        {404, "", -EIO, S3_RETRY_TRANSIENT, false},
        {404, "Other", -EIO, S3_RETRY_TRANSIENT, false},
        {403, "AccessDenied", -EACCES, S3_RETRY_NO, false},
        {403, "InvalidObjectState", -ENOMEDIUM, S3_RETRY_NO, false},
        {403, "RequestTimeTooSkewed", -EACCES, S3_RETRY_CLOCK, false},
        {400, "ExpiredToken", -EKEYEXPIRED, S3_RETRY_CREDENTIALS, false},
        {400, "RequestTimeout", -EIO, S3_RETRY_TRANSIENT, false},
        {412, "PreconditionFailed", -ESTALE, S3_RETRY_NO, false},
        {412, "", -ESTALE, S3_RETRY_NO, false},
        {409, "ConditionalRequestConflict", -ESTALE, S3_RETRY_TRANSIENT, false},
        {416, "InvalidRange", -ERANGE, S3_RETRY_NO, false},
        {429, "", -EIO, S3_RETRY_THROTTLE, false},
        {503, "SlowDown", -EIO, S3_RETRY_THROTTLE, false},
        {503, "", -EIO, S3_RETRY_THROTTLE, false},
        {500, "InternalError", -EIO, S3_RETRY_TRANSIENT, true},
        {200, "InternalError", -EIO, S3_RETRY_TRANSIENT, true},
        {502, "", -EIO, S3_RETRY_TRANSIENT, true},
        {599, "", -EIO, S3_RETRY_TRANSIENT, true},
        {501, "NotImplemented", -EOPNOTSUPP, S3_RETRY_NO, false},
        {301, "PermanentRedirect", -EACCES, S3_RETRY_NO, false},
        {400, "InvalidArgument", -EINVAL, S3_RETRY_NO, false},
        {400, "InvalidStorageClass", -EINVAL, S3_RETRY_NO, false},
        {400, "InvalidObjectName", -EINVAL, S3_RETRY_NO, false},
        {403, "QuotaExceeded", -EDQUOT, S3_RETRY_NO, false},
        {400, "XMinioAdminBucketQuotaExceeded", -EDQUOT, S3_RETRY_NO, false},
        {400, "SomethingOfTheirOwn", -EREMOTEIO, S3_RETRY_NO, false},
        {400, "XMinioParentIsObject", -ENOTDIR, S3_RETRY_NO, false},
        {411, "", -EINVAL, S3_RETRY_NO, false},
        {414, "", -EINVAL, S3_RETRY_NO, false},
        {431, "", -EINVAL, S3_RETRY_NO, false},
        {423, "", -EREMOTEIO, S3_RETRY_NO, false},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct s3_verdict v = s3_err_classify(HTTP_FAIL_NONE, true, rows[i].status, rows[i].code);
        ck_assert_msg(v.err == rows[i].err && v.retry == rows[i].retry, "%ld %s", rows[i].status, rows[i].code);
        if (rows[i].status >= 500 || rows[i].status == 200)
            ck_assert_msg(v.ambiguous == rows[i].ambiguous, "%ld %s", rows[i].status, rows[i].code);
    }
}
END_TEST

START_TEST(failure_before_sending_is_not_ambiguous)
{
    struct s3_verdict v = s3_err_classify(HTTP_FAIL_CONNECT, false, 0, "");
    ck_assert(v.err == -EIO && v.retry == S3_RETRY_TRANSIENT && !v.ambiguous);
    v = s3_err_classify(HTTP_FAIL_BROKEN, true, 0, "");
    ck_assert(v.retry == S3_RETRY_TRANSIENT && v.ambiguous);
    v = s3_err_classify(HTTP_FAIL_TLS_CERT, false, 0, "");
    ck_assert(v.err == -EACCES && v.retry == S3_RETRY_NO);
    v = s3_err_classify(HTTP_FAIL_CANCELED, true, 0, "");
    ck_assert(v.err == -ECANCELED && v.retry == S3_RETRY_NO);
}
END_TEST

START_TEST(waits_double_up_to_the_cap_with_full_jitter)
{
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_TRANSIENT, 1, 0.0, 0, true), 0);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_TRANSIENT, 1, 0.5, 0, true), 25 * NS_PER_MS);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_TRANSIENT, 3, 0.5, 0, true), 100 * NS_PER_MS);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_TRANSIENT, 1000, 0.5, 0, true), 10 * NS_PER_S);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_THROTTLE, 1, 0.5, 0, true), NS_PER_S / 2);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_TRANSIENT, 1, 0.5, 0, false), 10 * NS_PER_S);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_CLOCK, 1, 0.9, 0, true), 0);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_CREDENTIALS, 1, 0.9, 0, true), 0);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_CREDENTIALS, 3, 0.5, 0, true), 100 * NS_PER_MS);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_THROTTLE, 1, 0.0, 3 * NS_PER_S, true), 3 * NS_PER_S);
    ck_assert_uint_eq(s3_retry_delay_ns(S3_RETRY_THROTTLE, 1, 0.0, 3600 * NS_PER_S, true), 60 * NS_PER_S);
}
END_TEST

START_TEST(silence_is_borne_as_long_as_a_copy_may_take)
{
    const uint64_t minute = 60 * NS_PER_S;
    ck_assert_uint_eq(s3_retry_silence_s(minute, false, 0), 30);
    ck_assert_uint_eq(s3_retry_silence_s(NS_PER_S, false, 0), 1);
    ck_assert_uint_eq(s3_retry_silence_s(minute, true, 0), 120);
    ck_assert_uint_eq(s3_retry_silence_s(1440 * minute, true, 0), 600);
    ck_assert_uint_eq(s3_retry_silence_s(minute, true, 64 << 20), 120);
    ck_assert_uint_eq(s3_retry_silence_s(minute, true, 1 << 30), 256);
    ck_assert_uint_eq(s3_retry_silence_s(minute, true, 5ull << 30), 1280);
}
END_TEST

START_TEST(server_wishes_are_read_strictly)
{
    ck_assert_uint_eq(s3_retry_server_ns("2", NULL), 2 * NS_PER_S);
    ck_assert_uint_eq(s3_retry_server_ns("2", "150"), 150 * NS_PER_MS);
    ck_assert_uint_eq(s3_retry_server_ns("soon", "x"), 0);
    ck_assert_uint_eq(s3_retry_server_ns(NULL, NULL), 0);
    ck_assert_uint_eq(s3_retry_server_ns("-1", NULL), 0);
}
END_TEST

START_TEST(budget_runs_dry_and_comes_back)
{
    struct s3_budget b;
    int n = 0;
    s3_budget_init(&b);
    while (s3_budget_take(&b, S3_RETRY_TRANSIENT))
        n++;
    ck_assert_int_eq(n, 500 / 14);
    s3_budget_refund(&b);
    ck_assert(s3_budget_take(&b, S3_RETRY_TRANSIENT));
    for (int i = 0; i < 1000; i++)
        s3_budget_refund(&b);
    ck_assert_int_eq(b.tokens, 500);
}
END_TEST

START_TEST(window_halves_once_per_round_and_grows_back)
{
    struct s3_window w;
    s3_window_init(&w, 16);
    for (int i = 0; i < 16; i++)
        ck_assert(s3_window_enter(&w));
    ck_assert(!s3_window_enter(&w));
    for (int i = 0; i < 16; i++)
        s3_window_leave(&w, true, false, 100, 200);
    ck_assert_double_eq_tol(w.limit, 8, 0.001);
    for (int i = 0; i < 10; i++) {
        ck_assert(s3_window_enter(&w));
        s3_window_leave(&w, true, false, 1000 + (uint64_t)i * 10, 1005 + (uint64_t)i * 10);
    }
    ck_assert_double_eq_tol(w.limit, 1, 0.001);
    for (int i = 0; i < 1000; i++) {
        ck_assert(s3_window_enter(&w));
        s3_window_leave(&w, false, true, 0, 0);
    }
    ck_assert_double_eq_tol(w.limit, 16, 0.001);
    ck_assert_uint_eq(w.in_flight, 0);
}
END_TEST

START_TEST(metadata_of_other_tools_is_read)
{
    struct {
        const char *name, *value;
        uint32_t field;
        int64_t want;
    } rows[] = {
        {"mode", "0100644", POSIX_MODE, 0100644},
        {"mode", "33188", POSIX_MODE, 0100644},
        {"mode", "0", POSIX_MODE, 0},
        {"mode", "rwx", 0, 0},
        {"uid", "1000", POSIX_UID, 1000},
        {"uid", "-1", 0, 0},
        {"gid", "99999999999", 0, 0},
        {"mtime", "1700000000", POSIX_MTIME, 1700000000000000000},
        {"mtime", "1700000000.5", POSIX_MTIME, 1700000000500000000},
        {"mtime", "1700000000.123456789", POSIX_MTIME, 1700000000123456789},
        {"mtime", "yesterday", 0, 0},
        {"mode", "037777777777", 0, 0},
        {"mtime", "1.5e3", 0, 0},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct obj_info info = {0};
        s3_meta_take(&info, rows[i].name, rows[i].value);
        ck_assert_msg(info.posix.fields == rows[i].field, "%s %s", rows[i].name, rows[i].value);
        int64_t have = rows[i].field == POSIX_MODE  ? info.posix.mode
                       : rows[i].field == POSIX_UID ? info.posix.uid
                                                    : info.posix.mtime_ns;
        ck_assert_int_eq(have, rows[i].want);
    }
}
END_TEST

START_TEST(targets_are_no_longer_than_readlink_can_give)
{
    g_autofree char *target = g_strnfill(OBJ_SYMLINK_MAX + 1, 'x');
    struct obj_info info = {0};
    s3_meta_take(&info, "sluice-symlink", target);
    ck_assert_ptr_null(info.symlink);
    target[OBJ_SYMLINK_MAX] = '\0';
    s3_meta_take(&info, "sluice-symlink", target);
    ck_assert_str_eq(info.symlink, target);
    s3_meta_take(&info, "sluice-symlink", "a%00b");
    ck_assert_str_eq(info.symlink, target);
    obj_info_clear(&info);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("s3_err");
    TCase *t = tcase_create("err");
    tcase_add_test(t, table_gives_errno_and_class);
    tcase_add_test(t, failure_before_sending_is_not_ambiguous);
    tcase_add_test(t, waits_double_up_to_the_cap_with_full_jitter);
    tcase_add_test(t, silence_is_borne_as_long_as_a_copy_may_take);
    tcase_add_test(t, server_wishes_are_read_strictly);
    tcase_add_test(t, budget_runs_dry_and_comes_back);
    tcase_add_test(t, window_halves_once_per_round_and_grows_back);
    tcase_add_test(t, metadata_of_other_tools_is_read);
    tcase_add_test(t, targets_are_no_longer_than_readlink_can_give);
    suite_add_tcase(s, t);
    return run_suite(s);
}
