/* Snapshots of files that the kernel writes, beside a write() that is under way meanwhile: its bytes arrive after its time was set, as long after as the pages that it copies from take to
 * come. Without FUSE: the tests do what the operations do. */
#include "base/metric.h"
#include "fs/content.h"
#include "fs/io_mode.h"
#include "fs/mapped.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART (64u << 10)

static struct fs_fixture fx;
static char model[3 * PART + 100];

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.part_size = PART;
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < sizeof(model); i++)
        model[i] = (char)(i * 7 + i / 251);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void assert_object(size_t size)
{
    g_autofree char *path = g_build_filename(fx.lake, "m", NULL), *have = NULL;
    gsize len;
    ck_assert(g_file_get_contents(path, &have, &len, NULL));
    ck_assert_uint_eq(len, size);
    ck_assert_int_eq(memcmp(have, model, size), 0);
}

/* As io_mode.c does where the kernel has passthrough. */
static struct inode *begin(int *ret_fd)
{
    struct node_spec spec = {
        .parent = META_ROOT_INO, .name = "m", .mode = S_IFREG | 0644, .who = {fx.fs->uid, fx.fs->gid}};
    struct inode *in = NULL;
    fs_fixture_write(&fx, "first", "1", 1); /* the store is asked for what it can with the first change */
    all_published();
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(cache_file_set_passthrough(in->cf, CACHE_PASS_WRITE), 0);
    mutex_lock(&in->mu);
    in->io.kernel_writes = true;
    mutex_unlock(&in->mu);
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", cache_file_fd(in->cf));
    *ret_fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(*ret_fd, 0);
    return in;
}

/* By a close or an fsync that waits for the store. */
static void publish(struct inode *in)
{
    ck_assert_int_eq(content_flush_to_publish(in, false), 0);
    mapped_flushed(in);
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), 0);
}

/* What is left of a write that set the time before a snapshot of the file was begun, and whose bytes came after it. */
static void end_slow_write(int fd, size_t off)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    model[off] ^= 1;
    ck_assert_int_eq(pwrite(fd, model + off, 1, (off_t)off), 1);
    ck_assert_int_eq(futimens(fd, (struct timespec[]){st.st_mtim, st.st_mtim}), 0);
}

static bool is_told(struct inode *in)
{
    mutex_lock(&in->mu);
    bool told = in->snap_mark.mtime_ns != 0; /* not on every file system */
    mutex_unlock(&in->mu);
    return told;
}

static const size_t sizes[] = {4096, 2 * PART, sizeof(model)};

START_TEST(what_a_slow_write_brought_behind_a_snapshot_is_published_by_the_close)
{
    size_t size = sizes[_i];
    int fd;
    INODE_REF in = begin(&fd);
    ck_assert_int_eq(pwrite(fd, model, size, 0), (ssize_t)size);
    publish(in);
    assert_object(size);
    end_slow_write(fd, size - 1);
    ck_assert_int_eq(close(fd), 0);
    content_release(in, true);
    all_published();
    assert_object(size);
    ck_assert(!content_is_dirty(in));
}
END_TEST

START_TEST(what_a_slow_write_brought_behind_a_snapshot_is_published_by_the_next)
{
    size_t size = sizes[_i];
    int fd;
    INODE_REF in = begin(&fd);
    ck_assert_int_eq(pwrite(fd, model, size, 0), (ssize_t)size);
    publish(in);
    for (unsigned i = 0; i < 2; i++) {
        end_slow_write(fd, i);
        publish(in);
        assert_object(size);
    }
    int64_t sent = metric_get(M_uploaded_bytes);
    publish(in);
    ck_assert(metric_get(M_uploaded_bytes) == sent);
    end_slow_write(fd, 2); /* that found nothing, which says nothing of what is under way still */
    ck_assert_int_eq(close(fd), 0);
    content_release(in, true);
    all_published();
    assert_object(size);
    ck_assert(!content_is_dirty(in));
}
END_TEST

START_TEST(what_a_snapshot_holds_is_sent_once)
{
    size_t size = sizes[_i];
    int fd;
    INODE_REF in = begin(&fd);
    ck_assert_int_eq(pwrite(fd, model, size, 0), (ssize_t)size);
    publish(in);
    bool told = is_told(in);
    int64_t sent = metric_get(M_uploaded_bytes);
    ck_assert_int_eq(close(fd), 0);
    content_release(in, true);
    all_published();
    assert_object(size);
    ck_assert(!content_is_dirty(in));
    ck_assert((metric_get(M_uploaded_bytes) == sent) == told);
}
END_TEST

/* A writer came and went between the look at the bytes and the seal. */
START_TEST(bytes_that_nobody_compared_are_sent_again)
{
    bool same = true;
    int fd;
    INODE_REF in = begin(&fd);
    ck_assert_int_eq(pwrite(fd, model, 4096, 0), 4096);
    publish(in);
    end_slow_write(fd, 1);
    ck_assert_int_eq(close(fd), 0);
    content_gate_enter(in);
    ck_assert(io_mode_end_writing(in, &same));
    content_gate_leave(in);
    ck_assert(!same);
    content_release(in, true);
    all_published();
    assert_object(4096);
    ck_assert(!content_is_dirty(in));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("snapshots");
    TCase *tc = tcase_create("snapshots");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, what_a_slow_write_brought_behind_a_snapshot_is_published_by_the_close, 0, 3);
    tcase_add_loop_test(tc, what_a_slow_write_brought_behind_a_snapshot_is_published_by_the_next, 0, 3);
    tcase_add_loop_test(tc, what_a_snapshot_holds_is_sent_once, 0, 3);
    tcase_add_test(tc, bytes_that_nobody_compared_are_sent_again);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
