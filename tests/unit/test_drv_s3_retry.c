/* Attempts after the first, and failures that may hide a success: the S3 driver against scripted replies. */
#include "drv_s3_fixture.h"

#include <glib/gstdio.h>

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

#define N_BEHIND 7u

static unsigned window_room(struct drv_s3 *d)
{
    mutex_lock(&d->mu);
    unsigned n = 0;
    while (s3_window_enter(&d->window))
        n++;
    for (unsigned i = 0; i < n; i++)
        s3_window_leave(&d->window, false, false, 0, 0);
    mutex_unlock(&d->mu);
    return n;
}

START_TEST(store_that_asks_to_slow_down_gets_fewer_requests_at_once)
{
    struct obj_info info = {0};
    struct drv_s3 *d = s3_of(st);
    ck_assert_uint_eq(window_room(d), 8);
    http_stub_reply(stub, 503, "x-amz-retry-after: 1\r\n", ERROR_XML("SlowDown"));
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert_uint_eq(window_room(d), 4);
    obj_info_clear(&info);
    for (unsigned i = 0; i < 40; i++)
        http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    for (unsigned i = 0; i < 40; i++) {
        ck_assert_int_eq(objstore_head(st, "k", &info), 0);
        obj_info_clear(&info);
    }
    ck_assert_uint_eq(window_room(d), 8);
}
END_TEST

static int nobody_waits = 1;

static gpointer head_behind(gpointer arg)
{
    struct obj_info info = {0};
    objstore_behind(&nobody_waits);
    int r = objstore_head(st, "behind", &info);
    obj_info_clear(&info);
    return GINT_TO_POINTER(r);
}

START_TEST(who_is_waited_for_gets_the_next_slot)
{
    struct drv_s3 *d = s3_of(st);
    GThread *behind[N_BEHIND];
    for (unsigned i = 0; i < N_BEHIND + 1; i++)
        http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    mutex_lock(&d->mu);
    while (s3_window_enter(&d->window))
        ;
    mutex_unlock(&d->mu);
    for (unsigned i = 0; i < N_BEHIND; i++)
        behind[i] = g_thread_new("behind", head_behind, NULL);
    g_usleep(300000); /* they wait now */
    GThread *first = g_thread_new("first", head_in_thread, NULL);
    g_usleep(300000);
    mutex_lock(&d->mu);
    s3_window_leave(&d->window, false, false, 0, 0); /* one at a time from here on */
    cond_broadcast(&d->cv);
    mutex_unlock(&d->mu);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(first)), 0);
    ck_assert(asked(0, "/pre/k "));
    for (unsigned i = 0; i < N_BEHIND; i++)
        ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(behind[i])), 0);
    mutex_lock(&d->mu);
    ck_assert_uint_eq(d->n_first, 0);
    ck_assert_uint_eq(d->window.in_flight, 7);
    while (d->window.in_flight)
        s3_window_leave(&d->window, false, false, 0, 0);
    mutex_unlock(&d->mu);
}
END_TEST

/* However long others went first, whoever waits for it in the end waits for all of its time. */
START_TEST(letting_others_go_first_takes_none_of_its_time)
{
    objstore_close(st);
    open_with_timeout(NS_PER_S);
    struct drv_s3 *d = s3_of(st);
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 5\r\n", "");
    mutex_lock(&d->mu);
    while (s3_window_enter(&d->window))
        ;
    mutex_unlock(&d->mu);
    GThread *behind = g_thread_new("behind", head_behind, NULL);
    g_usleep(2500000); /* more than all of it */
    mutex_lock(&d->mu);
    while (d->window.in_flight)
        s3_window_leave(&d->window, false, false, 0, 0);
    cond_broadcast(&d->cv);
    mutex_unlock(&d->mu);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(behind)), 0);
}
END_TEST

struct expiring {
    char *folder, *config, *keys;
    const char *left; /* in the file of keys when they have expired; NULL: no file */
};

static void put_process_keys(const struct expiring *x)
{
    g_autoptr(GDateTime) now = g_date_time_new_from_unix_utc(clock_wall_ns() / (int64_t)NS_PER_S + 3600);
    g_autofree char *expires = g_date_time_format(now, "%Y-%m-%dT%H:%M:%SZ");
    g_autofree char *keys = g_strdup_printf(
        "{\"Version\":1,\"AccessKeyId\":\"AK\",\"SecretAccessKey\":\"secret\",\"Expiration\":\"%s\"}", expires);
    ck_assert(g_file_set_contents(x->keys, keys, -1, NULL));
}

static void open_with_process(struct expiring *x)
{
    struct objstore *other = NULL;
    g_autofree char *msg = NULL;
    x->folder = g_dir_make_tmp("sluice-cred-XXXXXX", NULL);
    x->config = g_build_filename(x->folder, "config", NULL);
    x->keys = g_build_filename(x->folder, "keys", NULL);
    g_autofree char *config = g_strdup_printf("[profile p]\ncredential_process = cat %s\n", x->keys);
    ck_assert(g_file_set_contents(x->config, config, -1, NULL));
    put_process_keys(x);
    setenv("AWS_CONFIG_FILE", x->config, 1);
    struct objstore_config cfg = {.source = "s3://bucket/pre",
                                  .endpoint_url = http_stub_url(stub),
                                  .profile = "p",
                                  .region = "us-east-1",
                                  .op_timeout_ns = 20 * NS_PER_S};
    int r = objstore_open(&cfg, &other, &msg);
    ck_assert_msg(r == 0, "%s", msg ? msg : "?");
    objstore_close(st);
    st = other;
}

static int hours_pass(void *ctx, uint64_t off, const void *buf, size_t len)
{
    struct expiring *x = ctx;
    ck_assert(x->left ? g_file_set_contents(x->keys, x->left, -1, NULL) : g_unlink(x->keys) == 0);
    clock_fake_advance(2 * 3600 * NS_PER_S);
    return 0;
}

static void close_process(struct expiring *x)
{
    (void)g_unlink(x->config);
    (void)g_unlink(x->keys);
    (void)g_rmdir(x->folder);
    g_free(x->folder);
    g_free(x->config);
    g_free(x->keys);
}

START_TEST(credentials_that_end_within_a_body_end_the_call)
{
    struct expiring x = {.left = "{}"};
    open_with_process(&x);
    http_stub_reply_cut(stub, 200, "ETag: \"v1\"\r\n", "0123456789", 4);
    ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, hours_pass, &x, NULL), -EKEYEXPIRED);
    ck_assert_uint_eq(http_stub_n_requests(stub), 1);
    close_process(&x);
}
END_TEST

static int hours_pass_once(void *ctx, uint64_t off, const void *buf, size_t len)
{
    return off == 0 ? hours_pass(ctx, off, buf, len) : 0;
}

static gpointer get_over_hours(gpointer x)
{
    return GINT_TO_POINTER(objstore_get(st, "k", 0, 0, NULL, hours_pass_once, x, NULL));
}

/* Their program fails over the end of the keys, as one does whose server is away. */
START_TEST(credentials_that_cannot_be_had_within_a_body_are_waited_for)
{
    struct expiring x = {0};
    open_with_process(&x);
    int64_t n = metric_get(M_credential_refreshes);
    http_stub_reply_cut(stub, 200, "ETag: \"v1\"\r\n", "0123456789", 4);
    http_stub_reply(stub, 206, "ETag: \"v1\"\r\nContent-Range: bytes 4-9/10\r\n", "456789");
    GThread *t = g_thread_new("get", get_over_hours, &x);
    for (int i = 0; i < 2000 && metric_get(M_credential_refreshes) < n + 2; i++)
        g_usleep(10000);
    ck_assert_int_ge(metric_get(M_credential_refreshes), n + 2); /* one that failed */
    put_process_keys(&x);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(t)), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 2);
    close_process(&x);
}
END_TEST

START_TEST(last_attempt_comes_before_the_deadline)
{
    struct obj_info info = {0};
    objstore_close(st);
    open_with_timeout(2 * NS_PER_S);
    http_stub_reply(stub, 503, "Retry-After: 30\r\n", "");
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 1\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    obj_info_clear(&info);
    http_stub_reply(stub, 503, "Retry-After: 30\r\n", "");
    http_stub_reply(stub, 503, "Retry-After: 30\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), -ETIMEDOUT);
    ck_assert_uint_eq(http_stub_n_requests(stub), 4);
}
END_TEST

static void keep_a_connection(void)
{
    struct obj_info info = {0};
    http_stub_reply(stub, 200, "ETag: \"before\"\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    obj_info_clear(&info);
}

/* Somebody renewed the keys between the HEAD and the LIST that shows them good. */
START_TEST(head_refused_without_a_word_is_sent_once_more_when_the_keys_work)
{
    struct obj_info info = {0};
    keep_a_connection();
    http_stub_reply(stub, 400, "", "");
    http_stub_reply(stub, 400, "", "");
    http_stub_reply(stub, 200, "", "<ListBucketResult>" LAST "</ListBucketResult>");
    http_stub_reply(stub, 200, "ETag: \"now\"\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    obj_info_clear(&info);
    ck_assert_uint_eq(http_stub_n_requests(stub), 5);
}
END_TEST

/* Of an object encrypted by its owner's key a HEAD says 400 and no more, as of expired keys. 0: the bucket may be listed, 1: not, 2: nobody can say just then. */
START_TEST(head_refused_without_a_word_is_of_the_object_where_the_keys_work)
{
    struct obj_info info = {0};
    objstore_close(st);
    open_with_timeout(2 * NS_PER_S);
    keep_a_connection();
    http_stub_reply(stub, 400, "", "");
    http_stub_reply(stub, 400, "", "");
    if (_i == 2) {
        http_stub_reply(stub, 500, "", "");
        http_stub_reply(stub, 400, "", "");
    }
    if (_i == 1)
        http_stub_reply(stub, 403, "", ERROR_XML("AccessDenied"));
    else
        http_stub_reply(stub, 200, "", "<ListBucketResult>" LAST "</ListBucketResult>");
    http_stub_always(stub, 400, "", "", 0);
    ck_assert_int_eq(objstore_head(st, "k", &info), -EACCES);
    ck_assert(asked(3, "GET ") && asked(3, "max-keys=1&prefix=pre%2F"));
    ck_assert_uint_eq(http_stub_n_requests(stub), _i == 2 ? 7 : 5);
}
END_TEST

#define MD5_OF_BODY "841a2d689ad86bd1611447453c22c6fc" /* "body" */
#define OURS        "x-amz-meta-sluice-token: tok\r\n"
#define N_PIECES    4

static int get_k(GString *out)
{
    g_string_truncate(out, 0);
    return objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL);
}

START_TEST(flipped_byte_of_a_small_object_is_noticed)
{
    g_autoptr(GString) out = g_string_new(NULL);
    objstore_set_caps(st, CAP_ETAG_IS_MD5);
    http_stub_reply(stub, 200, "ETag: \"" MD5_OF_BODY "\"\r\n" OURS, "bodx");
    http_stub_reply(stub, 206, "ETag: \"" MD5_OF_BODY "\"\r\n" OURS "Content-Range: bytes 0-3/4\r\n", "body");
    ck_assert_int_eq(get_k(out), 0);
    ck_assert_str_eq(out->str, "body");
    for (int i = 0; i < 3; i++)
        http_stub_reply(stub, i ? 206 : 200, "ETag: \"" MD5_OF_BODY "\"\r\n" OURS "Content-Range: bytes 0-3/4\r\n",
                        "bodx");
    ck_assert_int_eq(get_k(out), -EBADMSG);
    ck_assert_str_eq(out->str, "");
    ck_assert_uint_eq(http_stub_n_requests(stub), 5);
}
END_TEST

START_TEST(flipped_byte_is_noticed_by_the_checksum_the_store_tells)
{
    g_autoptr(GString) out = g_string_new(NULL);
    g_autofree char *crc = s3_crc_base64("body", 4);
    g_autofree char *headers =
        g_strdup_printf("ETag: \"e\"\r\nx-amz-checksum-crc32c: %s\r\nContent-Range: bytes 0-3/4\r\n", crc);
    objstore_set_caps(st, CAP_CHECKSUM_CRC32C);
    http_stub_reply(stub, 206, headers, "bodx");
    http_stub_reply(stub, 206, headers, "body");
    ck_assert_int_eq(objstore_get(st, "k", 0, 4, NULL, to_string, out, NULL), 0);
    ck_assert_str_eq(out->str, "body");
    ck_assert(asked(0, "x-amz-checksum-mode: ENABLED"));
}
END_TEST

START_TEST(etag_of_others_that_only_looks_like_a_sum_is_believed_in_the_end)
{
    g_autoptr(GString) out = g_string_new(NULL);
    objstore_set_caps(st, CAP_ETAG_IS_MD5);
    http_stub_reply(stub, 200, "ETag: \"" MD5_OF_BODY "\"\r\n", "other");
    http_stub_reply(stub, 206, "ETag: \"" MD5_OF_BODY "\"\r\nContent-Range: bytes 0-4/5\r\n", "other");
    ck_assert_int_eq(get_k(out), 0);
    ck_assert_str_eq(out->str, "other");
}
END_TEST

START_TEST(body_that_breaks_off_before_it_was_checked_is_asked_for_anew)
{
    g_autoptr(GString) out = g_string_new(NULL);
    objstore_set_caps(st, CAP_ETAG_IS_MD5);
    http_stub_reply_cut(stub, 200, "ETag: \"" MD5_OF_BODY "\"\r\n" OURS, "body", 2);
    http_stub_reply(stub, 206, "ETag: \"" MD5_OF_BODY "\"\r\n" OURS "Content-Range: bytes 0-3/4\r\n", "body");
    ck_assert_int_eq(get_k(out), 0);
    ck_assert_str_eq(out->str, "body");
    ck_assert(asked(1, "Range: bytes=0-3") && asked(1, "If-Match"));
}
END_TEST

/* Bytes that are held back for the check and then dropped are nothing that was got: else it would be asked for until the end of time. */
START_TEST(body_that_breaks_off_each_time_before_it_was_checked_fails_by_the_deadline)
{
    g_autoptr(GString) out = g_string_new(NULL);
    objstore_close(st);
    open_with_timeout(2 * NS_PER_S);
    objstore_set_caps(st, CAP_ETAG_IS_MD5);
    http_stub_reply_cut(stub, 200, "ETag: \"" MD5_OF_BODY "\"\r\n" OURS, "body", 2);
    http_stub_always(stub, 206, "ETag: \"" MD5_OF_BODY "\"\r\n" OURS "Content-Range: bytes 0-3/4\r\n", "body", 2);
    ck_assert_int_eq(get_k(out), -ETIMEDOUT);
    ck_assert_uint_eq(out->len, 0);
    ck_assert(asked(1, "Range: bytes=0-3")); /* it was tried again */
}
END_TEST

/* What the sink has is not asked for again, so each byte renews the time. */
START_TEST(body_that_comes_in_pieces_takes_longer_than_the_deadline)
{
    g_autoptr(GString) out = g_string_new(NULL);
    g_autofree char *body = g_strnfill(N_PIECES, 'x');
    objstore_close(st);
    open_with_timeout(2 * NS_PER_S);
    http_stub_reply_cut(stub, 200, "ETag: \"e\"\r\n", body, 1);
    for (int i = 1; i < N_PIECES; i++) {
        g_autofree char *headers =
            g_strdup_printf("ETag: \"e\"\r\nContent-Range: bytes %d-%d/%d\r\n", i, N_PIECES - 1, N_PIECES);
        http_stub_reply(stub, 503, "Retry-After: 1\r\n", "");
        http_stub_reply_cut(stub, 206, headers, body + i, 1);
    }
    ck_assert_int_eq(get_k(out), 0);
    ck_assert_str_eq(out->str, body);
}
END_TEST

/* ---- conditions that the store does not know ---- */

static void copied_as(const char *etag)
{
    g_autofree char *xml = g_strdup_printf("<CopyObjectResult><ETag>\"%s\"</ETag></CopyObjectResult>", etag);
    http_stub_reply(stub, 200, "", xml);
}

START_TEST(delete_sent_again_spares_what_came_meanwhile)
{
    struct obj_cond cond = {.kind = OBJ_COND_ETAG, .etag = {"mine"}};
    head_is("mine", "");
    http_stub_reply(stub, 500, "", "");
    head_is("theirs", "");
    ck_assert_int_eq(objstore_delete(st, "k", &cond), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
    head_is("mine", "");
    http_stub_reply(stub, 504, "", "");
    head_finds_nothing(); /* that was us */
    ck_assert_int_eq(objstore_delete(st, "k", &cond), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 6);
}
END_TEST

START_TEST(put_sent_again_spares_what_came_meanwhile)
{
    struct obj_meta meta = {.token = "tok"};
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    struct obj_cond mine = {.kind = OBJ_COND_ETAG, .etag = {"mine"}};
    objstore_set_caps(st, CAP_CONTENT_MD5);
    head_finds_nothing();
    http_stub_reply(stub, 500, "", "");
    head_finds_nothing(); /* did it get there? */
    head_is("theirs", "");
    head_is("theirs", "");
    ck_assert_int_eq(objstore_put(st, "k", "body", 4, &meta, &absent, NULL), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), 5);
    head_is("mine", "");
    http_stub_reply(stub, 500, "", "");
    head_finds_nothing();
    ck_assert_int_eq(objstore_put(st, "k", "body", 4, NULL, &mine, NULL), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), 8);
}
END_TEST

START_TEST(complete_sent_again_spares_what_came_meanwhile)
{
    struct obj_part p = one_part();
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    const char *parts = "<ListPartsResult></ListPartsResult>";
    head_finds_nothing();
    http_stub_reply(stub, 500, "", "");
    head_finds_nothing(); /* did it get there? */
    http_stub_reply(stub, 200, "", parts);
    for (int i = 0; i < 2; i++)
        head_is("theirs", "");
    http_stub_reply(stub, 200, "", parts);
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", &absent, NULL), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), 7);
}
END_TEST

START_TEST(copy_sent_again_spares_what_came_meanwhile)
{
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    head_is("src", "");
    head_finds_nothing();
    http_stub_reply(stub, 500, "", "");
    head_is("theirs", "");
    ck_assert_int_eq(objstore_copy(st, "src", NULL, "k", NULL, &absent, NULL), -ESTALE);
    ck_assert_uint_eq(http_stub_n_requests(stub), 4);
}
END_TEST

#define OLD "x-amz-meta-sluice-token: tok\r\nx-amz-meta-mode: 0100644\r\n"
#define NEW "x-amz-meta-sluice-token: tok\r\nx-amz-meta-mode: 0100600\r\n"

/* It keeps the source's metadata. 1: the look at what came of it fails, so that it is about to be sent again; 2: what stands there has the bytes only. */
START_TEST(copy_whose_reply_was_lost_is_known_by_the_metadata_of_its_source)
{
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    struct etag etag = {0};
    objstore_set_caps(st, CAP_COPY_IF_MATCH);
    head_is("src", OLD);
    head_finds_nothing();
    http_stub_reply(stub, 500, "", "");
    if (_i == 1)
        http_stub_reply(stub, 403, "", "");
    for (int i = 0; i < 3; i++)
        head_is("copy", _i == 2 ? NEW : OLD);
    ck_assert_int_eq(objstore_copy(st, "src", NULL, "k", NULL, &absent, &etag), _i == 2 ? -ESTALE : 0);
    ck_assert_str_eq(etag.s, _i == 2 ? "" : "copy");
    ck_assert(asked(2, "PUT "));
    ck_assert_uint_eq(http_stub_n_requests(stub), _i == 0 ? 4 : 6);
}
END_TEST

START_TEST(large_copy_whose_last_reply_was_lost_is_known_by_the_metadata_of_its_source)
{
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    struct etag etag = {0};
    objstore_set_caps(st, CAP_PART_COPY_IF_MATCH | CAP_COMPLETE_CONDITIONS);
    http_stub_reply(stub, 200, "ETag: \"e-2\"\r\nContent-Length: 6442450944\r\n" OLD, "");
    head_finds_nothing();
    http_stub_reply(stub, 200, "", "<R><UploadId>U</UploadId></R>");
    for (int i = 0; i < 6; i++)
        http_stub_reply(stub, 200, "", "<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>");
    http_stub_reply(stub, 504, "", "");
    http_stub_reply(stub, 404, "", ERROR_XML("NoSuchUpload"));
    head_is("done-1", OLD);
    ck_assert_int_eq(objstore_copy(st, "src", NULL, "k", NULL, &absent, &etag), 0);
    ck_assert_str_eq(etag.s, "done-1");
    ck_assert(asked(9, "POST ") && asked(11, "HEAD "));
    ck_assert_uint_eq(http_stub_n_requests(stub), 12);
}
END_TEST

START_TEST(copy_of_a_source_that_changed_meanwhile_is_estale)
{
    struct obj_meta meta = {.token = "tok"};
    struct etag v1 = {"v1"};
    objstore_set_caps(st, CAP_ETAG_IS_MD5);
    head_is("v1", "");
    copied_as("v2");
    head_is("v2", "");
    ck_assert_int_eq(objstore_copy(st, "src", &v1, "k", NULL, NULL, NULL), -ESTALE);
    for (int i = 0; i < 2; i++)
        head_is("v1", "");
    copied_as("v2");
    ck_assert_int_eq(objstore_copy(st, "k", &v1, "k", &meta, NULL, NULL), -ESTALE); /* onto itself */
    head_is("v1", "");
    head_is("v2", "");
    ck_assert_int_eq(objstore_copy(st, "k", &v1, "k", &meta, NULL, NULL), -ESTALE);
    for (int i = 0; i < 2; i++)
        head_is("v1-3", "");
    copied_as("other");
    struct etag etag = {0};
    ck_assert_int_eq(objstore_copy(st, "k", NULL, "k", &meta, NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "other");
    ck_assert_uint_eq(http_stub_n_requests(stub), 11);
}
END_TEST

/* ---- attributes of an object that carries the token already ---- */

static const struct obj_meta chmod_600 = {.posix = {.fields = POSIX_MODE, .mode = 0100600}, .token = "tok"};

START_TEST(attributes_that_did_not_get_there_are_sent_again)
{
    struct etag etag = {"e"};
    objstore_set_caps(st, CAP_COPY_IF_MATCH);
    head_is("e", OLD);
    http_stub_reply(stub, 500, "", "");
    head_is("e", OLD);
    copied_as("e");
    ck_assert_int_eq(objstore_copy(st, "k", &etag, "k", &chmod_600, NULL, &etag), 0);
    ck_assert_uint_eq(http_stub_n_requests(stub), 4);
    ck_assert(asked(3, "PUT ") && asked(3, "x-amz-meta-mode: 0100600"));
}
END_TEST

START_TEST(attributes_that_got_there_are_not_sent_again)
{
    struct etag etag = {"e-2"};
    objstore_set_caps(st, CAP_COPY_IF_MATCH);
    head_is("e-2", OLD);
    http_stub_reply(stub, 504, "", "");
    head_is("whole", NEW);
    ck_assert_int_eq(objstore_copy(st, "k", &etag, "k", &chmod_600, NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "whole");
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
}
END_TEST

/* The object was made of parts, so the copy has another etag: the second one meets it, by the store's condition or our own look. */
START_TEST(attributes_sent_twice_are_no_conflict)
{
    struct etag etag = {"e-2"};
    objstore_set_caps(st, _i ? CAP_COPY_IF_MATCH : CAP_CONTENT_MD5);
    head_is("e-2", OLD);
    if (!_i)
        head_is("e-2", OLD);
    http_stub_reply(stub, 504, "", "");
    http_stub_reply(stub, 403, "", ""); /* HEAD: cannot tell now */
    if (_i)
        http_stub_reply(stub, 412, "", ERROR_XML("PreconditionFailed"));
    else
        head_is("whole", NEW);
    head_is("whole", NEW);
    ck_assert_int_eq(objstore_copy(st, "k", &etag, "k", &chmod_600, NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "whole");
}
END_TEST

/* 0: Complete failed and is sent again; 1: its reply was lost. */
START_TEST(attributes_of_a_large_object_are_settled_by_its_upload)
{
    struct etag etag = {"e-2"};
    objstore_set_caps(st, CAP_PART_COPY_IF_MATCH | CAP_COMPLETE_CONDITIONS);
    http_stub_reply(stub, 200, "ETag: \"e-2\"\r\nContent-Length: 6442450944\r\n" OLD, "");
    http_stub_reply(stub, 200, "", "<R><UploadId>U</UploadId></R>");
    for (int i = 0; i < 6; i++)
        http_stub_reply(stub, 200, "", "<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>");
    if (_i == 0) {
        http_stub_reply(stub, 500, "", "");
        http_stub_reply(stub, 200, "", "<ListPartsResult></ListPartsResult>"); /* the upload still stands */
        http_stub_reply(stub, 200, "", COMPLETE_XML);
    } else {
        http_stub_reply(stub, 504, "", "");
        http_stub_reply(stub, 404, "", ERROR_XML("NoSuchUpload"));
        head_is("done-1", NEW);
    }
    ck_assert_int_eq(objstore_copy(st, "k", &etag, "k", &chmod_600, NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "done-1");
    ck_assert(asked(8, "POST ") && asked(8, "If-Match: \"e-2\""));
    ck_assert(asked(10, _i ? "HEAD " : "POST "));
    ck_assert_uint_eq(http_stub_n_requests(stub), 11);
}
END_TEST

START_TEST(put_lost_with_a_kept_connection_is_settled_too)
{
    struct obj_meta meta = {.token = "tok"};
    struct etag etag = {0};
    keep_a_connection();
    http_stub_drop(stub);
    http_stub_reply(stub, 200, "ETag: \"mine\"\r\nx-amz-meta-sluice-token: tok\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_put(st, "k", "body", 4, &meta, NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "mine");
    ck_assert(asked(1, "PUT ") && asked(2, "HEAD "));
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
}
END_TEST

START_TEST(complete_lost_with_a_kept_connection_is_settled_too)
{
    struct etag etag = {0};
    struct obj_part p = one_part();
    keep_a_connection();
    http_stub_drop(stub);
    http_stub_reply(stub, 200, "ETag: \"mine-1\"\r\nx-amz-meta-sluice-token: tok\r\nContent-Length: 1\r\n", "");
    ck_assert_int_eq(objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag), 0);
    ck_assert_str_eq(etag.s, "mine-1");
    ck_assert(asked(1, "POST ") && asked(2, "HEAD "));
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
}
END_TEST

START_TEST(name_that_does_not_resolve_is_looked_up_again_each_time)
{
    g_autofree char *label = g_strnfill(70, 'a'); /* too long for a question to any server */
    g_autofree char *url = g_strdup_printf("http://%s.invalid/", label);
    struct http_pool_config cfg = {.max_connections = 1};
    struct http_request req = {.method = "GET", .url = url, .no_proxy = true};
    struct http_pool *pool = NULL;
    ck_assert_int_eq(http_pool_new(&cfg, &pool), 0);
    for (int i = 0; i < 3; i++) {
        struct http_response resp = {0};
        ck_assert_int_eq(http_perform(pool, &req, &resp), -EIO);
        ck_assert_str_eq(http_fail_name(resp.fail), "resolve");
        ck_assert(!resp.sent);
        http_response_clear(&resp);
    }
    http_pool_free(pool);
}
END_TEST

START_TEST(read_lost_with_a_kept_connection_is_asked_again)
{
    struct obj_info info = {0};
    keep_a_connection();
    http_stub_drop(stub);
    http_stub_reply(stub, 200, "ETag: \"e\"\r\nContent-Length: 4\r\n", "");
    ck_assert_int_eq(objstore_head(st, "k", &info), 0);
    ck_assert_str_eq(info.etag.s, "e");
    ck_assert_uint_eq(http_stub_n_requests(stub), 3);
    obj_info_clear(&info);
}
END_TEST

/* A reply that nobody asked for, right behind one that ends where its head says. */
START_TEST(bytes_behind_a_reply_are_not_the_next_one)
{
    struct obj_info info = {0};
    g_autoptr(GString) out = g_string_new(NULL);
    g_autofree char *behind =
        g_strconcat(_i ? "bytes" : "", "HTTP/1.1 200 OK\r\nETag: \"forged\"\r\nContent-Length: 9\r\n\r\n", NULL);
    http_stub_reply(stub, _i ? 200 : 204, _i ? "ETag: \"e\"\r\nContent-Length: 5\r\n" : "", behind);
    http_stub_always(stub, 200, "ETag: \"true\"\r\nContent-Length: 7\r\n", "", 0);
    if (_i)
        ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL), 0);
    else
        ck_assert_int_eq(objstore_delete(st, "k", NULL), 0);
    ck_assert_str_eq(out->str, _i ? "bytes" : "");
    ck_assert_int_eq(objstore_head(st, "next", &info), 0);
    ck_assert_str_eq(info.etag.s, "true");
    ck_assert_uint_eq(info.size, 7);
    obj_info_clear(&info);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_s3_retry");
    TCase *t = add_case(s, "reads");
    tcase_add_test(t, range_behind_the_end_of_another_version_is_estale);
    tcase_add_test(t, slot_that_gets_free_at_the_deadline_is_not_lost);
    tcase_add_test(t, store_that_asks_to_slow_down_gets_fewer_requests_at_once);
    tcase_add_test(t, who_is_waited_for_gets_the_next_slot);
    tcase_add_test(t, letting_others_go_first_takes_none_of_its_time);
    tcase_add_test(t, credentials_that_end_within_a_body_end_the_call);
    tcase_add_test(t, credentials_that_cannot_be_had_within_a_body_are_waited_for);
    tcase_add_test(t, last_attempt_comes_before_the_deadline);
    tcase_add_test(t, head_refused_without_a_word_is_sent_once_more_when_the_keys_work);
    tcase_add_loop_test(t, head_refused_without_a_word_is_of_the_object_where_the_keys_work, 0, 3);
    t = add_case(s, "conditions");
    tcase_add_test(t, delete_sent_again_spares_what_came_meanwhile);
    tcase_add_test(t, put_sent_again_spares_what_came_meanwhile);
    tcase_add_test(t, complete_sent_again_spares_what_came_meanwhile);
    tcase_add_test(t, copy_sent_again_spares_what_came_meanwhile);
    tcase_add_loop_test(t, copy_whose_reply_was_lost_is_known_by_the_metadata_of_its_source, 0, 3);
    tcase_add_test(t, large_copy_whose_last_reply_was_lost_is_known_by_the_metadata_of_its_source);
    tcase_add_test(t, copy_of_a_source_that_changed_meanwhile_is_estale);
    t = add_case(s, "sums");
    tcase_add_test(t, flipped_byte_of_a_small_object_is_noticed);
    tcase_add_test(t, flipped_byte_is_noticed_by_the_checksum_the_store_tells);
    tcase_add_test(t, etag_of_others_that_only_looks_like_a_sum_is_believed_in_the_end);
    tcase_add_test(t, body_that_breaks_off_before_it_was_checked_is_asked_for_anew);
    tcase_add_test(t, body_that_breaks_off_each_time_before_it_was_checked_fails_by_the_deadline);
    tcase_add_test(t, body_that_comes_in_pieces_takes_longer_than_the_deadline);
    t = add_case(s, "kept connections");
    tcase_add_test(t, put_lost_with_a_kept_connection_is_settled_too);
    tcase_add_test(t, complete_lost_with_a_kept_connection_is_settled_too);
    tcase_add_test(t, read_lost_with_a_kept_connection_is_asked_again);
    tcase_add_loop_test(t, bytes_behind_a_reply_are_not_the_next_one, 0, 2);
    tcase_add_test(t, name_that_does_not_resolve_is_looked_up_again_each_time);
    t = add_case(s, "attributes");
    tcase_add_test(t, attributes_that_did_not_get_there_are_sent_again);
    tcase_add_test(t, attributes_that_got_there_are_not_sent_again);
    tcase_add_loop_test(t, attributes_sent_twice_are_no_conflict, 0, 2);
    tcase_add_loop_test(t, attributes_of_a_large_object_are_settled_by_its_upload, 0, 2);
    return run_suite(s);
}
