/* Handles and their slots in the session's memory. */
#include "fs/handle.h"
#include "fs/request.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    ck_assert_int_eq(session_map(-1, true, &fx.session), 0);
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    session_unmap(fx.session);
}

static struct handle *new_dir(uint64_t id_limit)
{
    struct inode *in = fs_fixture_inode(&fx, "");
    struct handle *h = NULL;
    const struct sess_handle what = {.ino = in->ino, .dir = 1, .id_limit = id_limit, .tid = 7};
    ck_assert_int_eq(handle_new(fx.fs, in, &what, &h), 0);
    inode_put(in);
    return h;
}

static uint32_t state_of(uint64_t fh)
{
    return atomic_load(&fx.session->handles[(uint32_t)fh].state);
}

START_TEST(slot_says_what_is_open)
{
    request_begin(99 | 1ull << 63, 0);
    struct handle *h = new_dir(5);
    request_end();
    const struct sess_handle *s = h->slot;
    ck_assert_ptr_eq(s, &fx.session->handles[(uint32_t)h->fh]);
    ck_assert_uint_eq(s->ino, META_ROOT_INO);
    ck_assert_uint_eq(s->id_limit, 5);
    ck_assert_uint_eq(s->unique, 99);
    ck_assert(s->dir && !s->writable && !s->virt);
    ck_assert_int_eq(s->tid, 7);
    ck_assert_uint_ge(atomic_load(&fx.session->head->n_handles), 1);
    uint64_t fh = h->fh;
    ck_assert_uint_eq(state_of(fh), SLOT_OPENING);
    handle_opened(fx.fs, fh);
    ck_assert_uint_eq(state_of(fh), SLOT_OPEN);
    handle_releasing(fx.fs, fh);
    ck_assert_uint_eq(state_of(fh), SLOT_RELEASING);
    handle_opened(fx.fs, fh); /* whose reply was overtaken by the release */
    ck_assert_uint_eq(state_of(fh), SLOT_RELEASING);
    handle_free(fx.fs, fh);
    ck_assert_uint_eq(state_of(fh), SLOT_FREE);
}
END_TEST

START_TEST(number_of_a_slot_used_again_is_another)
{
    uint64_t first = new_dir(0)->fh;
    ck_assert_ptr_nonnull(handle_get(fx.fs, first));
    handle_free(fx.fs, first);
    ck_assert_ptr_null(handle_get(fx.fs, first));
    uint64_t second = new_dir(0)->fh;
    ck_assert_uint_eq((uint32_t)first, (uint32_t)second);
    ck_assert_uint_ne(first, second);
    handle_opened(fx.fs, first); /* late for the first use */
    handle_releasing(fx.fs, first);
    handle_free(fx.fs, first);
    ck_assert_ptr_null(handle_get(fx.fs, first));
    ck_assert_ptr_nonnull(handle_get(fx.fs, second));
    ck_assert_uint_eq(state_of(second), SLOT_OPEN); /* handle_get() was a request for it */
    handle_free(fx.fs, second);
}
END_TEST

START_TEST(what_is_released_is_held_no_more)
{
    uint64_t ino = 0;
    int32_t tid = 0;
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_NONE);
    uint64_t gone = new_dir(0)->fh, fh = new_dir(0)->fh;
    handle_free(fx.fs, gone);
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_OPEN); /* its program may have it in a moment */
    ck_assert_uint_eq(ino, META_ROOT_INO);
    ck_assert_int_eq(tid, 7);
    handle_opened(fx.fs, fh);
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_OPEN);
    handle_releasing(fx.fs, fh);
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_NONE);
    handle_free(fx.fs, fh);
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_NONE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("handle");
    TCase *tc = tcase_create("handle");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, slot_says_what_is_open);
    tcase_add_test(tc, number_of_a_slot_used_again_is_another);
    tcase_add_test(tc, what_is_released_is_held_no_more);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
