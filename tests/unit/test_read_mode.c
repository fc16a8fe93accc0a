/* Which large files that are not here are read by direct I/O, and what is learned from those who read them. */
#include "fs/content.h"
#include "fs/io_mode.h"
#include "fs/read_mode.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MIB (1ull << 20)

/* ---- verdicts ---- */

START_TEST(sizes_tell_blocks_from_pieces)
{
    ck_assert_int_eq(read_habit_of_sizes(1024 * MIB, 1024), READ_BLOCKS);
    ck_assert_int_eq(read_habit_of_sizes(1024 * MIB, 16384), READ_BLOCKS);
    ck_assert_int_eq(read_habit_of_sizes(1024 * MIB, 16385), READ_PIECES);
    ck_assert_int_eq(read_habit_of_sizes(4096 * 16, 16), READ_PIECES);
    ck_assert_int_eq(read_habit_of_sizes(15 * MIB, 15), READ_UNKNOWN);
    ck_assert_int_eq(read_habit_of_sizes(0, 0), READ_UNKNOWN);
}
END_TEST

static enum read_habit task_habit(uint64_t read, uint64_t calls, uint64_t given, bool ended)
{
    const struct read_task then = {7, 1000, 100}, now = {7, 1000 + read, 100 + calls};
    return read_habit_of_task(&then, &now, given, ended);
}

START_TEST(a_thread_tells_blocks_from_pieces)
{
    ck_assert_int_eq(task_habit(16 * MIB, 16, 16 * MIB, false), READ_BLOCKS);
    ck_assert_int_eq(task_habit(16 * MIB, 4096, 16 * MIB, false), READ_PIECES);
    ck_assert_int_eq(task_habit(16 * MIB, 4096, 16 * MIB, true), READ_PIECES);
    ck_assert_int_eq(task_habit(15 * MIB, 4096, 15 * MIB, true), READ_UNKNOWN);
    const struct read_task then = {7, 0, 0}, other = {8, 16 * MIB, 16}, none = {0};
    ck_assert_int_eq(read_habit_of_task(&then, &other, 16 * MIB, true), READ_UNKNOWN);
    ck_assert_int_eq(read_habit_of_task(&none, &none, 16 * MIB, true), READ_UNKNOWN);
}
END_TEST

/* One read(2) may take the whole file: only when it is over is it known that nothing was read. */
START_TEST(a_mapping_is_told_from_a_read_that_goes_on)
{
    ck_assert_int_eq(task_habit(0, 0, 512 * MIB, false), READ_UNKNOWN);
    ck_assert_int_eq(task_habit(4096, 1, 512 * MIB, false), READ_UNKNOWN);
    ck_assert_int_eq(task_habit(1024 * MIB, 1, 512 * MIB, true), READ_BLOCKS);
    ck_assert_int_eq(task_habit(0, 0, 512 * MIB, true), READ_PIECES);
    ck_assert_int_eq(task_habit(4096, 1, 512 * MIB, true), READ_PIECES);
}
END_TEST

START_TEST(proc_tells_of_a_thread)
{
    struct read_task before, after;
    char buf[4096];
    if (!read_task_look((int)gettid(), &before)) /* a kernel without CONFIG_TASK_IO_ACCOUNTING */
        return;
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    for (unsigned i = 0; i < 10; i++)
        ck_assert_int_eq(read(fd, buf, sizeof(buf)), sizeof(buf));
    close(fd);
    ck_assert(read_task_look((int)gettid(), &after));
    ck_assert_int_eq(after.tid, (int)gettid());
    ck_assert_uint_ge(after.bytes - before.bytes, 10 * sizeof(buf));
    ck_assert_uint_ge(after.calls - before.calls, 10);
    ck_assert(!read_task_look(0, &after));
    ck_assert_int_eq(after.tid, 0);
}
END_TEST

/* ---- opens ---- */

static struct inode *dirs[2];

static void sparse_object(const char *key, uint64_t size)
{
    fs_fixture_object(&fx, key, "", 0);
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(truncate(path, (off_t)size), 0);
}

static void start(void)
{
    fx.cfg.open_fill = MIB;
    for (unsigned i = 0; i < 3; i++) {
        g_autofree char *key = g_strdup_printf("d/%u.bin", i);
        sparse_object(key, 40 * MIB);
    }
    sparse_object("d/w.safetensors", 40 * MIB);
    sparse_object("d/guess", READ_GUESS_BYTES);
    sparse_object("d/more", READ_GUESS_BYTES + 1);
    sparse_object("e/0.bin", 40 * MIB);
    takeover_open(true);
    atomic_fetch_or(&fx.fs->fuse_caps, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
    dirs[0] = fs_fixture_inode(&fx, "d"); /* as the kernel's lookups keep them */
    dirs[1] = fs_fixture_inode(&fx, "e");
}

static void end(void)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(dirs); i++)
        inode_put(g_steal_pointer(&dirs[i]));
    takeover_teardown();
}

static struct handle *open_file(const char *name, bool *ret_direct)
{
    struct fuse_file_info fi = {.flags = O_RDONLY};
    struct handle *h = takeover_open_file(name, &fi);
    *ret_direct = fi.direct_io;
    ck_assert_int_eq(fi.backing_id, 0);
    return h;
}

static bool opens_direct(const char *name)
{
    bool direct;
    takeover_release(open_file(name, &direct));
    return direct;
}

/* As op_read() and op_release() do. */
static void read_file(const char *name, size_t block, unsigned n)
{
    bool direct;
    struct handle *h = open_file(name, &direct);
    ck_assert(direct);
    for (unsigned i = 0; i < n; i++)
        read_mode_note(h, 0, block);
    read_mode_released(h);
    takeover_release(h);
}

START_TEST(first_reader_of_a_large_absent_file_gets_direct_io)
{
    bool direct;
    start();
    struct handle *first = open_file("d/0.bin", &direct);
    ck_assert(direct);
    ck_assert_str_eq(io_mode_name(first->in), "direct");
    struct handle *second = open_file("d/0.bin", &direct);
    ck_assert(!direct);
    ck_assert_str_eq(io_mode_name(first->in), "cached");
    takeover_release(first);
    takeover_release(second);
    ck_assert(opens_direct("d/guess"));
    ck_assert(!opens_direct("d/more"));
    ck_assert(!opens_direct("d/w.safetensors"));
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct handle *writer = takeover_open_file("d/1.bin", &fi);
    ck_assert(!fi.direct_io);
    takeover_release(writer);
}
END_TEST

START_TEST(a_kernel_that_cannot_map_such_files_gets_none)
{
    start();
    atomic_store(&fx.fs->fuse_caps, 0);
    ck_assert(!opens_direct("d/0.bin"));
}
END_TEST

/* The next open would be through the page cache too. */
START_TEST(without_passthrough_there_is_none)
{
    start();
    io_mode_connected(fx.fs, false);
    ck_assert(!opens_direct("d/0.bin"));
}
END_TEST

/* Nothing could be fetched ahead of a reader whom the kernel's page cache would give its own read-ahead. */
START_TEST(a_disk_without_room_leaves_it_to_the_page_cache)
{
    fx.cfg.free_space = (struct size_or_percent){.percent = 100}; /* also of a disk that is all but empty */
    start();
    ck_assert(!opens_direct("d/0.bin"));
}
END_TEST

START_TEST(readers_by_pieces_keep_their_directory_in_the_page_cache)
{
    start();
    read_file("d/0.bin", 4096, 100);
    ck_assert(!opens_direct("d/0.bin"));
    ck_assert(!opens_direct("d/1.bin"));
    ck_assert(opens_direct("e/0.bin"));
}
END_TEST

START_TEST(readers_by_blocks_get_it_for_files_of_any_size)
{
    start();
    read_file("d/0.bin", MIB, 100);
    ck_assert(opens_direct("d/1.bin"));
    ck_assert(opens_direct("d/more"));
    ck_assert(!opens_direct("d/w.safetensors"));
}
END_TEST

START_TEST(looking_into_a_file_teaches_nothing)
{
    start();
    read_file("d/0.bin", 4096, 10);
    ck_assert(opens_direct("d/1.bin"));
}
END_TEST

static void work_open(void)
{
    bool direct;
    atomic_fetch_or(&fx.fs->fuse_caps, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
    struct handle *h = open_file("d", &direct);
    ck_assert_str_eq(io_mode_name(h->in), "direct");
}

START_TEST(the_next_worker_knows_it)
{
    fx.cfg.open_fill = MIB;
    sparse_object("d", 40 * MIB);
    takeover_run(work_open, true);
    takeover_open(true);
    atomic_fetch_or(&fx.fs->fuse_caps, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
    struct handle *h = takeover_handle(shared->fh);
    ck_assert_str_eq(io_mode_name(h->in), "direct");
    ck_assert(!opens_direct("d")); /* not the first */
    takeover_release(h);
    ck_assert(opens_direct("d"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("read_mode");
    TCase *tc = tcase_create("habits");
    tcase_add_test(tc, sizes_tell_blocks_from_pieces);
    tcase_add_test(tc, a_thread_tells_blocks_from_pieces);
    tcase_add_test(tc, a_mapping_is_told_from_a_read_that_goes_on);
    tcase_add_test(tc, proc_tells_of_a_thread);
    suite_add_tcase(suite, tc);
    tc = tcase_create("opens");
    tcase_add_checked_fixture(tc, takeover_setup, end);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, first_reader_of_a_large_absent_file_gets_direct_io);
    tcase_add_test(tc, a_kernel_that_cannot_map_such_files_gets_none);
    tcase_add_test(tc, without_passthrough_there_is_none);
    tcase_add_test(tc, a_disk_without_room_leaves_it_to_the_page_cache);
    tcase_add_test(tc, readers_by_pieces_keep_their_directory_in_the_page_cache);
    tcase_add_test(tc, readers_by_blocks_get_it_for_files_of_any_size);
    tcase_add_test(tc, looking_into_a_file_teaches_nothing);
    tcase_add_test(tc, the_next_worker_knows_it);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
