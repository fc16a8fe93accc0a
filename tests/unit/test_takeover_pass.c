/* A worker is killed while the kernel reads and writes cache files by itself. Its backing ids are made up here. */
#include "cache/cache_scan.h"
#include "fs/content.h"
#include "fs/io_mode.h"
#include "fs/publish.h"
#include "takeover.h"

#include <check.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BACKING_OPEN  0x4010e501ul
#define BACKING_CLOSE 0x4004e502ul

/* Takes the place of the C library's: the kernel's side of backing ids. */
int ioctl(int fd, unsigned long request, ...)
{
    va_list ap;
    va_start(ap, request);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if (request == BACKING_OPEN) {
        shared->closed[++shared->last_id] = false;
        return shared->last_id;
    }
    if (request != BACKING_CLOSE)
        return (int)syscall(SYS_ioctl, fd, request, arg);
    int id = *(const int *)arg;
    if (id > shared->last_id || shared->closed[id]) {
        errno = ENOENT;
        return -1;
    }
    shared->closed[id] = true;
    return 0;
}

/* As a program has a file that the kernel writes by itself: it outlives the worker. */
static int open_passed(void)
{
    struct cache_scanned file;
    ck_assert_int_eq(cache_scan_file(fx.cache_dir, shared->vid, &file), 0);
    g_autofree char *path = g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir,
                                            (unsigned)(shared->vid & 0xff), shared->vid);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_msg(fd >= 0, "%s: %s", path, g_strerror(errno));
    return fd;
}

/* ---- the kernel reads and writes by itself ---- */

/* Starts; the ids that nobody knows of are closed. */
static void start_swept(void)
{
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 1000 && atomic_load(&fx.session->head->id_low) < shared->last_id; i++)
        g_usleep(10000);
    ck_assert_int_eq(atomic_load(&fx.session->head->id_low), shared->last_id);
}

static void put_text(int fd, const char *text, off_t at)
{
    ck_assert_int_eq(pwrite(fd, text, strlen(text), at), (ssize_t)strlen(text));
}

static void work_pass(void)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    handle_opened(fx.fs, takeover_new_handle(takeover_make("f"), true, &fi)->fh);
    ck_assert_int_eq(fi.backing_id, 1);
    int fd = open_passed();
    put_text(fd, "text", 0);
    close(fd);
}

START_TEST(what_the_kernel_wrote_is_known_and_its_id_is_kept)
{
    takeover_run(work_pass, true);
    takeover_open(true);
    struct handle *h = takeover_handle(shared->fh);
    ck_assert_uint_eq(h->in->io.mode, IO_PASSTHROUGH);
    int fd = open_passed();
    put_text(fd, "more", 4);
    ck_assert_uint_eq(cache_file_size(h->in->cf), 8); /* asked of the file, which is the kernel's to write */
    struct fuse_file_info fi = {.flags = O_RDONLY};
    takeover_release(takeover_open_file("f", &fi));
    ck_assert_int_eq(fi.backing_id, 1);
    ck_assert_int_eq(shared->last_id, 1);
    struct stat st;
    inode_stat(h->in, &st);
    ck_assert_int_eq(st.st_size, 8);
    close(fd);
    ck_assert(!shared->closed[1]);
    takeover_flush(h);
    ck_assert(atomic_load(&h->slot->wrote));
    takeover_release(h);
    takeover_wait();
    takeover_assert_object("f", "textmore");
}
END_TEST

START_TEST(file_that_the_kernel_still_writes_is_not_sealed)
{
    takeover_run(work_pass, true);
    int fd = open_passed();
    takeover_open(true);
    takeover_flush(takeover_handle(shared->fh));
    takeover_release(takeover_handle(shared->fh)); /* a mapping is left */
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLOSING);
    close(fd);
}
END_TEST

static void work_pass_and_map(void)
{
    work_pass();
    int fd = open_passed();
    takeover_flush(takeover_handle(shared->fh));
    takeover_release(takeover_handle(shared->fh));
    close(fd);
}

START_TEST(mapping_that_outlives_its_handle_and_the_worker_is_waited_for)
{
    takeover_run(work_pass_and_map, true);
    int fd = open_passed();
    takeover_open(true);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLOSING);
    put_text(fd, "TEXT", 0);
    fs_fixture_start(&fx);
    close(fd);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    takeover_assert_object("f", "TEXT");
}
END_TEST

static void work_pass_a_reader(void)
{
    struct fuse_file_info fi = {.flags = O_RDONLY};
    struct handle *h = takeover_open_file("f", &fi);
    ck_assert_int_eq(fi.backing_id, 1);
    if (shared->release) {
        inode_kernel_ref(h->in);
        takeover_release(h);
    }
}

START_TEST(reader_keeps_its_id)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_pass_a_reader, true);
    takeover_open(true);
    struct handle *h = takeover_handle(shared->fh);
    start_swept();
    struct fuse_file_info fi = {.flags = O_RDONLY};
    takeover_release(takeover_open_file("f", &fi));
    ck_assert_int_eq(fi.backing_id, 1);
    ck_assert(!shared->closed[1]);
    ck_assert_int_eq(cache_evict(fx.fs->cache, h->in->rec.vid), -EBUSY);
}
END_TEST

START_TEST(id_that_no_handle_uses_is_closed)
{
    fs_fixture_object(&fx, "f", "text", 4);
    shared->release = true;
    takeover_run(work_pass_a_reader, true);
    ck_assert(!shared->closed[1]);
    takeover_open(true);
    start_swept();
    ck_assert(shared->closed[1]);
    struct fuse_file_info fi = {.flags = O_RDONLY};
    takeover_release(takeover_open_file("f", &fi));
    ck_assert_int_eq(fi.backing_id, shared->last_id);
}
END_TEST

/* Killed between the kernel's answer and the note of it. */
static void work_leak_an_id(void)
{
    work_pass_a_reader();
    ck_assert_int_eq(ioctl(-1, BACKING_OPEN, NULL), 2);
}

START_TEST(id_that_nobody_knows_of_is_closed)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_leak_an_id, true);
    takeover_open(true);
    start_swept();
    ck_assert(!shared->closed[1]);
    ck_assert(shared->closed[2]);
    ck_assert_int_eq(shared->last_id, 3);
    ck_assert(shared->closed[3]);
}
END_TEST

/* ---- a writer who writes nothing ---- */

static void work_open_clean(void)
{
    struct fuse_file_info read = {.flags = O_RDONLY}, fi = {.flags = O_RDWR};
    struct handle *h = takeover_open_file("f", &read); /* fetches it, so that the writer's mode is the same */
    g_usleep(50000);                                   /* its time must be old enough to show a write */
    (void)takeover_open_file("f", &fi);
    ck_assert_ptr_nonnull(h->in->io.kept);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_OPEN);
}

static void work_open_clean_and_write(void)
{
    work_open_clean();
    int fd = open_passed();
    put_text(fd, "TEXT", 0);
    close(fd);
    ck_assert(io_mode_look(takeover_handle(shared->fh)->in)); /* seen: no later look finds it */
}

START_TEST(clean_file_left_alone_is_clean_again)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_open_clean, true);
    takeover_open(true);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_OPEN);
    struct handle *h = takeover_handle(shared->fh);
    takeover_flush(h);
    ck_assert(!atomic_load(&h->slot->wrote));
    takeover_release(h);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLEAN);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_pstr_eq(in->rec.base_key, "f");
    ck_assert_uint_eq(in->rec.base_limit, 4);
}
END_TEST

/* _i: 0 it was seen before the worker died, 1 after. */
START_TEST(clean_file_written_since_is_published)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(_i ? work_open_clean : work_open_clean_and_write, true);
    takeover_open(true);
    if (_i) {
        int fd = open_passed();
        put_text(fd, "TEXT", 0);
        close(fd);
    }
    struct handle *h = takeover_handle(shared->fh);
    takeover_flush(h);
    ck_assert(atomic_load(&h->slot->wrote));
    takeover_release(h);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_SEALED);
    takeover_wait();
    takeover_assert_object("f", "TEXT");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("takeover_pass");
    TCase *tc = tcase_create("takeover_pass");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, takeover_setup, takeover_teardown);
    tcase_add_test(tc, what_the_kernel_wrote_is_known_and_its_id_is_kept);
    tcase_add_test(tc, file_that_the_kernel_still_writes_is_not_sealed);
    tcase_add_test(tc, mapping_that_outlives_its_handle_and_the_worker_is_waited_for);
    tcase_add_test(tc, reader_keeps_its_id);
    tcase_add_test(tc, id_that_no_handle_uses_is_closed);
    tcase_add_test(tc, id_that_nobody_knows_of_is_closed);
    tcase_add_test(tc, clean_file_left_alone_is_clean_again);
    tcase_add_loop_test(tc, clean_file_written_since_is_published, 0, 2);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
