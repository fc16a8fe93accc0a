/* The S3 driver against a server that gives scripted replies. */
#pragma once
#include "../../s3/drv_s3.h"
#include "../support/http_stub.h"
#include "base/clock.h"
#include "base/log.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERROR_XML(code) "<?xml version=\"1.0\"?><Error><Code>" code "</Code></Error>"
#define LAST            "<IsTruncated>false</IsTruncated>"
#define NOT_THERE       404, "x-amz-request-id: 1\r\n", "" /* to a HEAD */
#define COMPLETE_XML    "<CompleteMultipartUploadResult><ETag>&quot;done-1&quot;</ETag></CompleteMultipartUploadResult>"

static struct http_stub *stub;
static struct objstore *st;

static inline void open_with_timeout(uint64_t op_timeout_ns)
{
    g_autofree char *msg = NULL;
    struct objstore_config cfg = {.source = "s3://bucket/pre",
                                  .endpoint_url = http_stub_url(stub),
                                  .region = "us-east-1",
                                  .op_timeout_ns = op_timeout_ns,
                                  .max_connections = 8};
    int r = objstore_open(&cfg, &st, &msg);
    ck_assert_msg(r == 0, "%s", msg ? msg : "?");
}

static inline void setup(void)
{
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("HOME", "/nonexistent", 1);
    unsetenv("AWS_PROFILE");
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("http_proxy");
    stub = http_stub_new();
    open_with_timeout(5 * NS_PER_S);
}

static inline void teardown(void)
{
    objstore_close(st);
    http_stub_free(stub);
}

static inline int to_string(void *ctx, uint64_t off, const void *buf, size_t len)
{
    GString *out = ctx;
    ck_assert_uint_eq(off, out->len);
    g_string_append_len(out, buf, (gssize)len);
    return 0;
}

static inline bool asked(unsigned i, const char *text)
{
    const char *request = http_stub_request(stub, i);
    return request && strstr(request, text) != NULL;
}

static inline struct obj_part one_part(void)
{
    return (struct obj_part){.number = 1, .size = 1, .etag = {"e1"}};
}

static inline gpointer head_in_thread(gpointer arg)
{
    struct obj_info info = {0};
    return GINT_TO_POINTER(objstore_head(st, "k", &info));
}

static inline TCase *add_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 30);
    suite_add_tcase(s, t);
    return t;
}

static inline char *log_of_warnings(void)
{
    g_autofree char *path = g_strdup_printf("%s/sluice-log-%d", g_get_tmp_dir(), (int)getpid());
    char *text = NULL;
    log_close();
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    (void)unlink(path);
    return text;
}

static inline void log_warnings(void)
{
    g_autofree char *path = g_strdup_printf("%s/sluice-log-%d", g_get_tmp_dir(), (int)getpid());
    ck_assert_int_eq(log_open(path, LOG_LEVEL_WARN), 0);
}

static inline void head_is(const char *etag, const char *more)
{
    g_autofree char *headers = g_strdup_printf("ETag: \"%s\"\r\nContent-Length: 4\r\n%s", etag, more);
    http_stub_reply(stub, 200, headers, "");
}

static inline void head_finds_nothing(void)
{
    http_stub_reply(stub, 404, "x-amz-request-id: r\r\n", "");
}
