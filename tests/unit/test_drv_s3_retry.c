/* Attempts after the first, and failures that may hide a success: the S3 driver against scripted replies. */
#include "drv_s3_fixture.h"

START_TEST(range_behind_the_end_of_another_version_is_estale)
{
    g_autoptr(GString) out = g_string_new(NULL);
    struct etag v1 = {"v1"};
    struct obj_info info = {0};
    http_stub_reply(stub, 416, "ETag: \"v2\"\r\nContent-Range: bytes */3\r\n", ERROR_XML("InvalidRange"));
    ck_assert_int_eq(objstore_get(st, "k", 5, 5, &v1, to_string, out, NULL), -ESTALE);
    http_stub_reply(stub, 416, "", ERROR_XML("InvalidRange")); /* it does not say of which version */
    http_stub_reply(stub, 200, "ETag: \"v2\"\r\nContent-Length: 3\r\n", "");
    ck_assert_int_eq(objstore_get(st, "k", 5, 5, &v1, to_string, out, NULL), -ESTALE);
    http_stub_reply(stub, 416, "", ERROR_XML("InvalidRange"));
    http_stub_reply(stub, 200, "ETag: \"v1\"\r\nContent-Length: 3\r\n", "");
    ck_assert_int_eq(objstore_get(st, "k", 5, 5, &v1, to_string, out, &info), 0);
    ck_assert_uint_eq(info.size, 3);
    obj_info_clear(&info);
    ck_assert_uint_eq(http_stub_n_requests(stub), 5);
    ck_assert_uint_eq(out->len, 0);
}
END_TEST

/* As when another request ends in the very moment in which the waiting one's time is up. */
START_TEST(slot_that_gets_free_at_the_deadline_is_not_lost)
{
    objstore_close(st);
    open_with_timeout(NS_PER_S);
    struct drv_s3 *d = s3_of(st);
    mutex_lock(&d->mu);
    while (s3_window_enter(&d->window))
        ;
    mutex_unlock(&d->mu);
    GThread *t = g_thread_new("head", head_in_thread, NULL);
    g_usleep(500000); /* it waits now */
    mutex_lock(&d->mu);
    g_usleep(1000000); /* it wants the lock back to tell that its time is up */
    while (d->window.in_flight)
        s3_window_leave(&d->window, false, false, 0, 0);
    mutex_unlock(&d->mu);
    (void)g_thread_join(t);
    mutex_lock(&d->mu);
    ck_assert_uint_eq(d->window.in_flight, 0);
    mutex_unlock(&d->mu);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_s3_retry");
    TCase *t = add_case(s, "reads");
    tcase_add_test(t, range_behind_the_end_of_another_version_is_estale);
    tcase_add_test(t, slot_that_gets_free_at_the_deadline_is_not_lost);
    return run_suite(s);
}
