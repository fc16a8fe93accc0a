/* Changes whose reply did not come, by a server that gives scripted replies. */
#include "drv_s3_fixture.h"

#define TOKEN "x-amz-meta-sluice-token: tok\r\nx-amz-meta-mode: 0100644\r\n"

enum lost { LOST_DELETE, LOST_COPY, LOST_PUT, LOST_REPLACE };

static bool looks_first(enum lost what, uint32_t caps)
{
    switch (what) {
    case LOST_DELETE:
        return !(caps & CAP_DELETE_IF_MATCH);
    case LOST_COPY:
        return true;
    case LOST_PUT:
        return !(caps & CAP_PUT_IF_NONE_MATCH);
    case LOST_REPLACE:
    default:
        return (caps & (CAP_PUT_IF_MATCH | CAP_IF_MATCH_ABSENT)) != CAP_PUT_IF_MATCH;
    }
}

static int change(enum lost what)
{
    static const struct obj_cond absent = {.kind = OBJ_COND_ABSENT},
                                 known = {.kind = OBJ_COND_ETAG, .etag.s = "theirs"};
    struct obj_meta meta = {.token = "tok"};
    struct etag etag = {0};
    switch (what) {
    case LOST_DELETE:
        return objstore_delete(st, "k", &known);
    case LOST_COPY:
        return objstore_copy(st, "src", NULL, "k", NULL, &absent, &etag);
    case LOST_PUT:
    case LOST_REPLACE:
    default:
        return objstore_put(st, "k", "x", 1, &meta, what == LOST_PUT ? &absent : &known, &etag);
    }
}

/* Its first try gets that reply, status 0: none; then it is made. found: a look sees that the first try made it. */
static bool may_come_later(enum lost what, uint32_t caps, int status, const char *body, bool found)
{
    objstore_set_caps(st, caps);
    objstore_late_forget();
    if (what == LOST_COPY)
        head_is("src", TOKEN);
    for (int i = 0; i < 2; i++) {
        if (looks_first(what, caps) && (what == LOST_DELETE || what == LOST_REPLACE))
            head_is("theirs", "");
        else if (looks_first(what, caps))
            head_finds_nothing();
        if (i == 0 && status)
            http_stub_reply(stub, status, "", body);
        else if (i == 0)
            http_stub_drop(stub);
        if (i == 0 && found)
            head_is("mine", TOKEN);
        else if (i == 0 && what == LOST_REPLACE)
            head_is("theirs", "");
        else if (i == 0 && what != LOST_DELETE)
            head_finds_nothing();
    }
    http_stub_reply(stub, 200, "ETag: \"mine\"\r\n", "<CopyObjectResult><ETag>\"mine\"</ETag></CopyObjectResult>");
    ck_assert_int_eq(change(what), 0);
    http_stub_skip(stub);
    return objstore_late();
}

START_TEST(change_without_reply_may_come_later_unless_it_names_a_version)
{
    static const int statuses[] = {0, 502, 504};
    int status = statuses[_i];
    ck_assert(may_come_later(LOST_DELETE, 0, status, "", false));
    ck_assert(may_come_later(LOST_DELETE, CAP_DELETE_IF_MATCH, status, "", false));
    ck_assert(may_come_later(LOST_COPY, CAP_COPY_IF_MATCH, status, "", false));
    ck_assert(!may_come_later(LOST_COPY, CAP_COPY_IF_MATCH, status, "", true));
    ck_assert(may_come_later(LOST_PUT, CAP_PUT_IF_NONE_MATCH, status, "", false));
    ck_assert(may_come_later(LOST_REPLACE, 0, status, "", false));
    ck_assert(!may_come_later(LOST_REPLACE, CAP_PUT_IF_MATCH, status, "", false));
    ck_assert(may_come_later(LOST_REPLACE, CAP_PUT_IF_MATCH | CAP_IF_MATCH_ABSENT, status, "", false));
}
END_TEST

START_TEST(change_that_the_store_refuses_is_over)
{
    ck_assert(!may_come_later(LOST_DELETE, 0, 503, ERROR_XML("SlowDown"), false));
    ck_assert(may_come_later(LOST_DELETE, 0, 500, ERROR_XML("InternalError"), false));
    ck_assert(may_come_later(LOST_DELETE, 0, 503, "", false));
    ck_assert(may_come_later(LOST_DELETE, 0, 504, "", false));
}
END_TEST

/* Of an upload: once another Complete of it was carried out, nothing is left that could be. */
START_TEST(complete_without_reply_may_come_later_unless_another_one_came)
{
    struct obj_part p = one_part();
    struct etag etag = {0};
    objstore_late_forget();
    http_stub_drop(stub);
    head_finds_nothing();
    http_stub_reply(stub, 200, "", "<ListPartsResult>" LAST "</ListPartsResult>");
    http_stub_reply(stub, _i ? 403 : 200, "", _i ? ERROR_XML("AccessDenied") : COMPLETE_XML);
    int r = objstore_mpu_complete(st, "k", "U", &p, 1, "tok", NULL, &etag);
    ck_assert(_i ? r < 0 : r == 0);
    ck_assert(objstore_late() == (_i == 1));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_s3_late");
    TCase *t = add_case(s, "late");
    tcase_add_loop_test(t, change_without_reply_may_come_later_unless_it_names_a_version, 0, 3);
    tcase_add_test(t, change_that_the_store_refuses_is_over);
    tcase_add_loop_test(t, complete_without_reply_may_come_later_unless_another_one_came, 0, 2);
    return run_suite(s);
}
