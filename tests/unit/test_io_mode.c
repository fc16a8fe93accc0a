/* Who uses the kernel's page cache while files are written through the daemon. */
#include "fs/io_mode.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>

static struct inode *known; /* as the kernel's lookups keep it */

static void serve(void)
{
    takeover_open(false);
    atomic_fetch_or(&fx.fs->fuse_caps, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
    known = fs_fixture_inode(&fx, "f");
}

static void start(void)
{
    fs_fixture_object(&fx, "f", "text", 4);
    serve();
}

static void end(void)
{
    inode_put(g_steal_pointer(&known));
    takeover_teardown();
}

struct opened {
    struct handle *h;
    bool direct, keep;
};

static struct opened open_file(int flags)
{
    struct fuse_file_info fi = {.flags = flags};
    struct handle *h = takeover_open_file("f", &fi);
    ck_assert_int_eq(fi.backing_id, 0);
    return (struct opened){h, fi.direct_io, fi.keep_cache};
}

static void assert_opens(int flags, bool direct, bool keep)
{
    struct opened o = open_file(flags);
    takeover_release(o.h);
    ck_assert_int_eq(o.direct, direct);
    ck_assert_int_eq(o.keep, keep);
}

START_TEST(writers_go_past_the_page_cache_together)
{
    struct opened o[16];
    start();
    for (unsigned i = 0; i < G_N_ELEMENTS(o); i++) {
        o[i] = open_file(O_WRONLY);
        ck_assert(o[i].direct);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(o); i++)
        takeover_release(o[i].h);
}
END_TEST

START_TEST(kernel_that_keeps_old_pages_has_none_go_past_it)
{
    start();
    atomic_fetch_and(&fx.fs->fuse_caps, ~(uint64_t)FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
    assert_opens(O_RDONLY, false, true);
    struct opened w = open_file(O_WRONLY);
    ck_assert(!w.direct && w.keep);
    assert_opens(O_RDONLY, false, true);
    takeover_release(w.h);
    assert_opens(O_RDONLY, false, true);
}
END_TEST

START_TEST(next_open_after_such_a_writer_drops_what_the_kernel_has)
{
    start();
    assert_opens(O_RDONLY, false, true);
    assert_opens(O_WRONLY, true, false);
    assert_opens(O_RDONLY, false, false);
    assert_opens(O_RDONLY, false, true);
}
END_TEST

START_TEST(who_joins_such_a_writer_goes_past_it_too)
{
    start();
    struct opened w = open_file(O_WRONLY), r = open_file(O_RDONLY);
    ck_assert(r.direct && !r.keep);
    assert_opens(O_RDWR, true, false);
    takeover_release(w.h);
    assert_opens(O_RDONLY, false, false); /* whatever was written since the open before */
    assert_opens(O_RDONLY, false, true);
    assert_opens(O_WRONLY, true, false); /* the reader that is left uses no pages */
    takeover_release(r.h);
}
END_TEST

START_TEST(who_joins_a_reader_uses_its_pages)
{
    start();
    struct opened r = open_file(O_RDONLY), w = open_file(O_WRONLY);
    ck_assert(!r.direct && r.keep && !w.direct && w.keep);
    assert_opens(O_RDONLY, false, true);
    takeover_release(r.h);
    assert_opens(O_WRONLY, false, true); /* the writer is left */
    takeover_release(w.h);
    assert_opens(O_WRONLY, true, false);
}
END_TEST

static void work_write(void)
{
    atomic_fetch_or(&fx.fs->fuse_caps, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
    ck_assert(open_file(O_WRONLY).direct);
}

START_TEST(the_next_worker_knows_such_a_writer)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_write, false);
    serve();
    struct handle *h = takeover_handle(shared->fh);
    ck_assert_str_eq(io_mode_name(h->in), "cached");
    assert_opens(O_RDONLY, true, false);
    assert_opens(O_WRONLY, true, false);
    takeover_release(h);
    assert_opens(O_RDONLY, false, false);
    assert_opens(O_RDONLY, false, true);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("io_mode");
    TCase *tc = tcase_create("pages");
    tcase_add_checked_fixture(tc, takeover_setup, end);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, writers_go_past_the_page_cache_together);
    tcase_add_test(tc, kernel_that_keeps_old_pages_has_none_go_past_it);
    tcase_add_test(tc, next_open_after_such_a_writer_drops_what_the_kernel_has);
    tcase_add_test(tc, who_joins_such_a_writer_goes_past_it_too);
    tcase_add_test(tc, who_joins_a_reader_uses_its_pages);
    tcase_add_test(tc, the_next_worker_knows_such_a_writer);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
