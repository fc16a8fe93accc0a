/* Requests as the kernel sends them: those that a worker did not answer come to the next one, marked as sent again. */
#include "cache/cache_file.h"
#include "fs/attach.h"
#include "fs/content.h"
#include "fs/op.h"
#include "fs/request.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define AGAIN  (1ull << 63)
#define UNIQUE 99

static int kernel; /* the other end of the worker's connection */

static void send_request(uint32_t opcode, uint64_t unique, uint64_t ino, const void *arg, size_t len)
{
    char buf[512];
    const struct fuse_in_header in = {
        .len = (uint32_t)(sizeof(in) + len), .opcode = opcode, .unique = unique, .nodeid = ino, .pid = 1};
    memcpy(buf, &in, sizeof(in));
    memcpy(buf + sizeof(in), arg, len);
    request_begin(unique, 0);
    fuse_session_process_buf(fx.fs->se, &(struct fuse_buf){.mem = buf, .size = in.len});
    request_end();
}

/* 0 or -errno; what comes with it goes to ret. */
static int reply(uint64_t unique, void *ret, size_t len)
{
    char buf[512];
    ssize_t n = recv(kernel, buf, sizeof(buf), MSG_DONTWAIT);
    const struct fuse_out_header *out = (const void *)buf;
    ck_assert_int_ge(n, (int)sizeof(*out));
    ck_assert_uint_eq(out->unique, unique);
    if (out->error == 0 && len > 0) {
        ck_assert_int_ge(n, (int)(sizeof(*out) + len));
        memcpy(ret, buf + sizeof(*out), len);
    }
    return out->error;
}

/* The next worker, with a connection. */
static void open_connected(void)
{
    const struct fuse_init_in init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION};
    char path[32];
    int ends[2];
    takeover_open(false);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    kernel = ends[0];
    snprintf(path, sizeof(path), "/dev/fd/%d", ends[1]);
    ck_assert_int_eq(fuse_session_mount(fx.fs->se, path), 0);
    send_request(FUSE_INIT, 2, 0, &init, sizeof(init));
    ck_assert_int_eq(reply(2, NULL, 0), 0);
}

static int open_again(uint64_t unique, uint64_t ino, int flags, uint64_t *ret_fh)
{
    struct fuse_open_out out = {0};
    const struct fuse_open_in in = {.flags = (uint32_t)flags};
    send_request(FUSE_OPEN, unique | AGAIN, ino, &in, sizeof(in));
    int r = reply(unique | AGAIN, &out, sizeof(out));
    *ret_fh = out.fh;
    return r;
}

static void setup(void)
{
    takeover_setup();
    kernel = -1;
}

static void teardown(void)
{
    takeover_teardown();
    if (kernel >= 0)
        close(kernel);
}

/* ---- OPEN ---- */

/* All but the reply. _i of the tests: the opener writes, or reads. */
static void work_open(bool writes)
{
    struct fuse_file_info fi = {.flags = writes ? O_RDWR : O_RDONLY};
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, writes, false), 0);
    request_begin(UNIQUE, 0);
    (void)takeover_new_handle(inode_ref(in), writes, &fi);
    request_end();
}

static void work_read(void)
{
    work_open(false);
}

static void work_write(void)
{
    work_open(true);
}

static void take_over_opener(bool writes)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(writes ? work_write : work_read, false);
    open_connected();
}

START_TEST(open_that_fails_when_it_comes_again_leaves_no_handle)
{
    uint64_t fh;
    take_over_opener(_i);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_uint_eq(in->n_open, 1);
    mutex_lock(&in->mu);
    in->expiring = true;
    mutex_unlock(&in->mu);
    ck_assert_int_eq(open_again(UNIQUE, in->ino, _i ? O_RDWR : O_RDONLY, &fh), -ESTALE);
    ck_assert_ptr_null(handle_find(fx.fs, shared->fh));
    ck_assert_uint_eq(in->n_open, 0);
    ck_assert_uint_eq(in->n_writers, 0);
}
END_TEST

START_TEST(open_that_comes_again_late_leaves_one_handle)
{
    uint64_t fh;
    take_over_opener(_i);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    fx.fs->unsure_until_ns = 0;
    attach_expire(fx.fs);
    ck_assert_uint_eq(in->n_writers, 0);
    ck_assert_uint_eq(in->n_open, 1);
    ck_assert_int_eq(open_again(UNIQUE, in->ino, _i ? O_RDWR : O_RDONLY, &fh), 0);
    ck_assert_ptr_null(handle_find(fx.fs, shared->fh));
    ck_assert_uint_eq(in->n_open, 1);
    ck_assert_uint_eq(in->n_writers, _i);
    ck_assert_uint_eq(in->io.n_handles, 1);
    takeover_release(takeover_handle(fh));
    ck_assert_uint_eq(in->n_open, 0);
}
END_TEST

static bool is_in_memory(uint64_t ino)
{
    INODE_REF in = inode_find(fx.fs, ino);
    return in;
}

START_TEST(opener_that_was_given_up_and_comes_never_holds_no_inode)
{
    take_over_opener(true);
    fx.fs->unsure_until_ns = 0;
    attach_expire(fx.fs);
    takeover_release(takeover_handle(shared->fh));
    EVENTUALLY(!is_in_memory(shared->ino));
}
END_TEST

static void work_cut(bool writes)
{
    struct fuse_file_info fi = {.flags = O_TRUNC | (writes ? O_WRONLY : O_RDONLY)};
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, true), 0);
    if (!writes) {
        content_release(in, true);
        ck_assert_int_eq(content_open(in, false, false), 0);
    }
    request_begin(UNIQUE, 0);
    (void)takeover_new_handle(inode_ref(in), writes, &fi);
    request_end();
}

static void work_cut_and_read(void)
{
    work_cut(false);
}

static void work_cut_and_write(void)
{
    work_cut(true);
}

START_TEST(file_is_cut_once_by_who_opens_it)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    int flags = O_TRUNC | (_i ? O_WRONLY : O_RDONLY);
    uint64_t fh;
    fs_fixture_object(&fx, "f", "before", 6);
    takeover_run(_i ? work_cut_and_write : work_cut_and_read, false);
    open_connected();
    struct handle *h = takeover_open_file("f", &fi);
    ck_assert_uint_eq(cache_file_size(h->in->cf), 0);
    takeover_write(h, "text", 0);
    ck_assert_int_eq(open_again(UNIQUE, h->in->ino, flags, &fh), 0);
    ck_assert_uint_eq(cache_file_size(h->in->cf), 4);
    takeover_release(takeover_handle(fh));
    ck_assert_int_eq(open_again(UNIQUE, h->in->ino, flags, &fh), 0); /* nobody had come to cut it for this one */
    ck_assert_uint_eq(cache_file_size(h->in->cf), 0);
    takeover_release(takeover_handle(fh));
    takeover_release(h);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("again");
    TCase *tc = tcase_create("again");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, open_that_fails_when_it_comes_again_leaves_no_handle, 0, 2);
    tcase_add_loop_test(tc, open_that_comes_again_late_leaves_one_handle, 0, 2);
    tcase_add_test(tc, opener_that_was_given_up_and_comes_never_holds_no_inode);
    tcase_add_loop_test(tc, file_is_cut_once_by_who_opens_it, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
