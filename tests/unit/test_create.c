/* Files that are made and then cannot be opened, as the kernel asks for them: by bytes over a connection. */
#include "fs/tree.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int kernel; /* its end of the connection */

/* The error that the answer tells. */
static int ask(uint32_t opcode, const void *arg, size_t len, const char *name)
{
    static uint64_t unique;
    struct {
        struct fuse_in_header head;
        char rest[512];
    } msg = {.head = {.opcode = opcode, .unique = ++unique, .nodeid = META_ROOT_INO, .pid = (uint32_t)getpid()}};
    char answer[4096];
    struct fuse_out_header out;
    memcpy(msg.rest, arg, len);
    g_strlcpy(msg.rest + len, name, sizeof(msg.rest) - len);
    msg.head.len = (uint32_t)(sizeof(msg.head) + len + strlen(name) + 1);
    fuse_session_process_buf(fx.fs->se, &(struct fuse_buf){.mem = &msg, .size = msg.head.len});
    ck_assert_int_ge(recv(kernel, answer, sizeof(answer), MSG_DONTWAIT), (ssize_t)sizeof(out));
    memcpy(&out, answer, sizeof(out));
    ck_assert_uint_eq(out.unique, unique);
    return out.error;
}

static void setup(void)
{
    int ends[2];
    char path[32];
    const struct fuse_init_in init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .flags = FUSE_BIG_WRITES};
    takeover_setup();
    takeover_open(false);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    kernel = ends[0];
    g_snprintf(path, sizeof(path), "/dev/fd/%d", ends[1]); /* the session closes it */
    ck_assert_int_eq(fuse_session_mount(fx.fs->se, path), 0);
    ck_assert_int_eq(ask(FUSE_INIT, &init, sizeof(init), ""), 0);
}

static void teardown(void)
{
    takeover_teardown();
    close(kernel);
}

static int create(const char *name, int flags)
{
    const struct fuse_create_in in = {.flags = (uint32_t)(flags | O_CREAT), .mode = S_IFREG | 0644};
    return ask(FUSE_CREATE, &in, sizeof(in), name);
}

static void set_handles(unsigned n)
{
    mutex_lock(&fx.fs->handle_mu);
    g_ptr_array_set_size(fx.fs->handles, (int)n);
    mutex_unlock(&fx.fs->handle_mu);
}

START_TEST(file_that_finds_no_handle_leaves_no_name)
{
    const int flags[] = {O_RDWR | O_EXCL, O_RDONLY};
    set_handles(SESSION_HANDLES);
    ck_assert_int_eq(create("f", flags[_i]), -ENFILE);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "f"), 0);
    set_handles(0);
    takeover_wait();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert_int_eq(create("f", flags[_i]), 0); /* as if it had never been there */
    ck_assert_uint_ne(fs_fixture_ino(&fx, "f"), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("create");
    TCase *tc = tcase_create("create");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, file_that_finds_no_handle_leaves_no_name, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
