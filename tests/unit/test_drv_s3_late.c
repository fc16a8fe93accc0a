/* Changes whose reply did not come, by a server that gives scripted replies. */
#include "drv_s3_fixture.h"

#define TOKEN "x-amz-meta-sluice-token: tok\r\nx-amz-meta-mode: 0100644\r\n"

enum lost { LOST_DELETE, LOST_COPY, LOST_PUT };

/* Its first try gets that status, 0: none; then it is made. found: a look sees that the first try made it. */
static bool may_come_later(enum lost what, uint32_t caps, int status, bool found)
{
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT}, known = {.kind = OBJ_COND_ETAG, .etag.s = "theirs"};
    struct obj_meta meta = {.token = "tok"};
    struct etag etag = {0};
    objstore_set_caps(st, caps);
    objstore_late_forget();
    if (what == LOST_COPY)
        head_is("src", TOKEN);
    for (int i = 0; i < 2; i++) {
        if (what == LOST_DELETE && !(caps & CAP_DELETE_IF_MATCH))
            head_is("theirs", "");
        else if (what == LOST_COPY || (what == LOST_PUT && !(caps & CAP_PUT_IF_NONE_MATCH)))
            head_finds_nothing();
        if (i == 0 && status)
            http_stub_reply(stub, status, "", "");
        else if (i == 0)
            http_stub_drop(stub);
        if (i == 0 && found)
            head_is("mine", TOKEN);
        else if (i == 0 && what != LOST_DELETE)
            head_finds_nothing();
    }
    http_stub_reply(stub, 200, "ETag: \"mine\"\r\n", "<CopyObjectResult><ETag>\"mine\"</ETag></CopyObjectResult>");
    int r = what == LOST_DELETE ? objstore_delete(st, "k", &known)
            : what == LOST_COPY ? objstore_copy(st, "src", NULL, "k", NULL, &absent, &etag)
                                : objstore_put(st, "k", "", 0, &meta, &absent, &etag);
    ck_assert_int_eq(r, 0);
    http_stub_skip(stub);
    return objstore_late();
}

START_TEST(change_without_reply_may_come_later_unless_the_store_compares_first)
{
    static const int statuses[] = {0, 502, 504};
    int status = statuses[_i];
    ck_assert(may_come_later(LOST_DELETE, 0, status, false));
    ck_assert(!may_come_later(LOST_DELETE, CAP_DELETE_IF_MATCH, status, false));
    ck_assert(may_come_later(LOST_COPY, CAP_COPY_IF_MATCH, status, false));
    ck_assert(!may_come_later(LOST_COPY, CAP_COPY_IF_MATCH, status, true));
    ck_assert(may_come_later(LOST_PUT, CAP_PUT_IF_MATCH, status, false));
    ck_assert(!may_come_later(LOST_PUT, CAP_PUT_IF_NONE_MATCH, status, false));
    ck_assert(!may_come_later(LOST_DELETE, 0, 500, false));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drv_s3_late");
    TCase *t = add_case(s, "late");
    tcase_add_loop_test(t, change_without_reply_may_come_later_unless_the_store_compares_first, 0, 3);
    return run_suite(s);
}
