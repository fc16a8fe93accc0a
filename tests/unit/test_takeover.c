/* A worker is killed while programs have files open; the next one goes on. What the kernel does by itself: test_takeover_pass.c. */
#include "cache/cache_file.h"
#include "fs/attach.h"
#include "fs/content.h"
#include "fs/io_mode.h"
#include "fs/op.h"
#include "fs/orphan.h"
#include "fs/publish.h"
#include "fs/request.h"
#include "fs/tree.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- handles ---- */

static uint32_t slot_state(uint64_t fh)
{
    return atomic_load(&fx.session->handles[(uint32_t)fh].state);
}

static struct handle *open_again(const char *name, bool writes)
{
    struct fuse_file_info fi = {.flags = writes ? O_RDWR : O_RDONLY};
    return takeover_open_file(name, &fi);
}

static uint64_t ino_of(const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, name);
    return in->ino;
}

static void work_write(void)
{
    struct handle *h = takeover_create("f");
    takeover_write(h, "text", 0);
    shared->gen = h->in->rec.gen;
}

START_TEST(writer_goes_on)
{
    takeover_run(work_write, false);
    takeover_open(false);
    struct handle *h = takeover_handle(shared->fh);
    ck_assert_uint_eq(h->in->ino, shared->ino);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_OPEN);
    ck_assert_uint_eq(h->in->rec.size, 4);
    ck_assert_uint_gt(h->in->rec.gen, shared->gen); /* a snapshot may have been published under that one */
    takeover_write(h, "more", 4);
    takeover_flush(h);
    takeover_release(h);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_SEALED);
    takeover_wait();
    takeover_assert_object("f", "textmore");
}
END_TEST

START_TEST(writer_goes_on_after_two_deaths)
{
    takeover_run(work_write, false);
    takeover_run(takeover_nothing, false);
    takeover_open(false);
    ck_assert_uint_eq(fx.session->head->generation, 3);
    struct handle *h = takeover_handle(shared->fh);
    takeover_flush(h);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLOSING);
    takeover_release(h);
    ck_assert_uint_eq(slot_state(shared->fh), SLOT_FREE);
    takeover_wait();
    takeover_assert_object("f", "text");
}
END_TEST

static void work_dir_and_virtual(void)
{
    const struct sess_handle dir = {.ino = META_ROOT_INO, .dir = 1, .id_limit = 77};
    const struct sess_handle virt = {.ino = VIRT_CONFIG, .virt = 1};
    struct handle *h = NULL;
    INODE_REF root = fs_fixture_inode(&fx, "");
    ck_assert_int_eq(handle_new(fx.fs, root, &dir, &h), 0);
    handle_opened(fx.fs, h->fh);
    shared->fh = h->fh;
    ck_assert_int_eq(handle_new(fx.fs, NULL, &virt, &h), 0);
    handle_opened(fx.fs, h->fh);
    shared->ino = h->fh;
}

START_TEST(directories_and_virtual_files_stay_open)
{
    takeover_run(work_dir_and_virtual, false);
    takeover_open(false);
    struct handle *dir = takeover_handle(shared->fh), *virt = takeover_handle(shared->ino);
    ck_assert_uint_eq(dir->in->ino, META_ROOT_INO);
    ck_assert_uint_eq(dir->slot->id_limit, 77);
    ck_assert_ptr_null(virt->in);
    ck_assert_ptr_nonnull(virt->text);
    struct handle *h = takeover_create("f"); /* another slot */
    ck_assert_ptr_eq(takeover_handle(shared->fh), h);
    ck_assert_uint_ge((uint32_t)h->fh, 2);
}
END_TEST

static void work_read(void)
{
    (void)open_again("f", false);
}

START_TEST(reader_goes_on)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_read, false);
    takeover_open(false);
    struct handle *h = takeover_handle(shared->fh);
    char buf[8];
    ck_assert_int_eq(cache_file_read(h->in->cf, buf, sizeof(buf), 0), 4);
    ck_assert_mem_eq(buf, "text", 4);
    ck_assert_uint_eq(h->in->rec.content, CONTENT_CLEAN);
    ck_assert_int_eq(cache_evict(fx.fs->cache, h->in->rec.vid), -EBUSY);
}
END_TEST

static void store_is(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static void work_open_and_remove(void)
{
    store_is("op=get,action=error:-EIO");
    (void)open_again("f", false);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
}

START_TEST(removed_file_is_read_on_though_nothing_of_it_was_here)
{
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_open_and_remove, false);
    takeover_open(false);
    struct handle *h = takeover_handle(shared->fh);
    char buf[8];
    takeover_wait();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    ck_assert_int_eq(cache_file_read(h->in->cf, buf, sizeof(buf), 0), 4);
    ck_assert_mem_eq(buf, "text", 4);
}
END_TEST

/* ---- closing ---- */

static void work_remove_wholly(void)
{
    (void)open_again("f", false);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    takeover_wait();
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
}

START_TEST(what_was_kept_for_a_reader_is_kept_by_the_next_worker)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_remove_wholly, false);
    takeover_open(false);
    struct handle *h = takeover_handle(shared->fh);
    char buf[8];
    ck_assert_uint_eq(cfile_punch(h->in->cf, META_CHUNK_BYTES), 0);
    ck_assert_int_eq(cache_file_read(h->in->cf, buf, sizeof(buf), 0), 4);
    ck_assert_mem_eq(buf, "text", 4);
}
END_TEST

static void work_begin_release(void)
{
    struct handle *h = takeover_create("f");
    takeover_write(h, "text", 0);
    handle_releasing(fx.fs, h->fh);
}

static void work_release_half(void)
{
    struct handle *h = takeover_create("f");
    takeover_write(h, "text", 0);
    handle_releasing(fx.fs, h->fh);
    io_mode_leave(h->in, true, h->slot->direct);
    content_release(h->in, true);
}

START_TEST(release_that_was_begun_is_ended)
{
    takeover_run(_i ? work_release_half : work_begin_release, false);
    takeover_open(false);
    ck_assert_uint_eq(slot_state(shared->fh), SLOT_FREE);
    ck_assert_ptr_null(handle_get(fx.fs, shared->fh));
    ck_assert_uint_eq(takeover_content("f"), CONTENT_SEALED);
    takeover_wait();
    takeover_assert_object("f", "text");
}
END_TEST

/* The kernel closes what a program that was killed had open; the worker dies between the two parts of that. */
static void work_close_of_a_killed_program(void)
{
    struct handle *h = takeover_create("f");
    takeover_write(h, "half", 0);
    pid_t pid = fork();
    if (pid == 0)
        (void)raise(SIGKILL);
    siginfo_t info;
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    ck_assert(orphan_note_close(h, pid));
    if (shared->release)
        handle_releasing(fx.fs, h->fh);
    if (shared->gen)
        ck_assert(!orphan_note_close(h, getpid()));
}

static void close_of_a_killed_program(bool releasing, bool closed_after)
{
    fx.cfg.orphan = ORPHAN_HOLD;
    shared->release = releasing;
    shared->gen = closed_after;
    takeover_run(work_close_of_a_killed_program, false);
    takeover_open(false);
    if (!releasing)
        takeover_release(takeover_handle(shared->fh));
}

START_TEST(what_a_killed_program_had_open_is_held_by_the_next_worker)
{
    close_of_a_killed_program(_i, false);
    ck_assert_uint_eq(slot_state(shared->fh), SLOT_FREE);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_OPEN);
}
END_TEST

START_TEST(what_was_closed_in_order_after_that_is_not)
{
    close_of_a_killed_program(_i, true);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_SEALED);
}
END_TEST

static void work_close_dup(void)
{
    struct handle *h = takeover_create("f");
    takeover_write(h, "text", 0);
    takeover_flush(h);
}

START_TEST(file_closed_by_one_of_its_descriptors_is_not_sealed)
{
    takeover_run(work_close_dup, false);
    takeover_open(false);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLOSING);
    struct handle *h = takeover_handle(shared->fh);
    takeover_write(h, "more", 4);
    takeover_flush(h);
    takeover_release(h);
    takeover_wait();
    takeover_assert_object("f", "textmore");
}
END_TEST

static void work_close_and_append(void)
{
    struct fuse_file_info fi = {.flags = O_WRONLY | O_APPEND};
    struct handle *h = takeover_create("log");
    takeover_write(h, "1", 0);
    takeover_flush(h);
    takeover_release(h);
    struct inode *in = fs_fixture_inode(&fx, "log");
    ck_assert_int_eq(content_open_to_append(in), 0);
    h = takeover_new_handle(in, true, &fi);
    handle_opened(fx.fs, h->fh);
    takeover_write(h, "2", 1);
}

static void work_append_beside_an_overwriter(void)
{
    work_close_and_append();
    uint64_t fh = shared->fh;
    takeover_write(open_again("log", true), "3", 0);
    shared->fh = fh;
}

static void work_append_and_cut(void)
{
    work_close_and_append();
    ck_assert_int_eq(content_truncate(takeover_handle(shared->fh)->in, 0), 0);
}

static void work_append_and_punch(void)
{
    work_close_and_append();
    struct inode *in = takeover_handle(shared->fh)->in;
    ck_assert_int_eq(content_fallocate(in, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1), 0);
}

START_TEST(what_was_closed_is_published_though_the_next_worker_found_it_open_to_append)
{
    takeover_run(work_close_and_append, false);
    takeover_run(takeover_nothing, false);
    takeover_open(false);
    struct inode *in = takeover_handle(shared->fh)->in;
    ck_assert(content_keeps_closed(in));
    ck_assert_int_eq(publish_closed_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S), 0);
    takeover_assert_object("log", "12");
    takeover_write(takeover_handle(shared->fh), "3", 2);
    ck_assert(content_keeps_closed(in));
    (void)open_again("log", true);
    ck_assert(!content_keeps_closed(in));
}
END_TEST

/* Nor what a worker says of its file that another came after, which may not have known of it. */
START_TEST(what_was_overwritten_is_known_to_be_by_the_next_worker)
{
    void (*const works[])(void) = {work_append_beside_an_overwriter, work_append_and_cut, work_append_and_punch,
                                   work_close_and_append};
    takeover_run(works[_i], false);
    if (_i == 3) {
        struct session *s = NULL;
        ck_assert_int_eq(takeover_map(&s), 0);
        session_unmap(s);
    }
    takeover_open(false);
    ck_assert(!content_keeps_closed(takeover_handle(shared->fh)->in));
}
END_TEST

static void work_open_and_closing(void)
{
    struct inode *in = takeover_make("closing");
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    in = takeover_make("open");
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
}

START_TEST(without_handle_closing_is_closed_and_open_is_not)
{
    takeover_run(work_open_and_closing, false);
    takeover_open(false);
    ck_assert_uint_eq(takeover_content("closing"), CONTENT_SEALED);
    ck_assert_uint_eq(takeover_content("open"), CONTENT_OPEN);
    INODE_REF in = fs_fixture_inode(&fx, "open");
    ck_assert_uint_eq(in->rec.size, 4);
}
END_TEST

/* ---- opening ---- */

static void work_open_unanswered(void)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct inode *in = takeover_make("f");
    request_begin(99, 0);
    struct handle *h = takeover_new_handle(in, true, &fi);
    request_end();
    takeover_write(h, "text", 0);
}

START_TEST(open_that_is_sent_again_replaces_the_first)
{
    takeover_run(work_open_unanswered, false);
    takeover_open(false);
    uint64_t first = shared->fh;
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_uint_eq(in->n_writers, 1);
    struct handle *h = open_again("f", true);
    attach_replaces(fx.fs, 98); /* another one's */
    ck_assert_uint_eq(in->n_writers, 2);
    attach_replaces(fx.fs, 99);
    ck_assert_uint_eq(in->n_writers, 1);
    ck_assert_ptr_null(handle_get(fx.fs, first));
    ck_assert_uint_eq(in->rec.content, CONTENT_OPEN);
    takeover_release(h);
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
}
END_TEST

static void list_root(void)
{
    INODE_REF root = fs_fixture_inode(&fx, "");
    ck_assert_int_eq(tree_refresh(fx.fs, root, true), 0);
}

static void work_pass_over_news(void)
{
    struct handle *h = open_again("f", true);
    fs_fixture_object(&fx, "f", "longer", 6);
    list_root();
    ck_assert(h->in->passed_over);
}

/* Nothing was written, and no listing comes any more. */
START_TEST(news_passed_over_for_a_writer_outlives_the_worker)
{
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_pass_over_news, false);
    takeover_open(false);
    takeover_release(takeover_handle(shared->fh));
    EVENTUALLY(ino_of("f") != shared->ino);
}
END_TEST

static void work_open_again_unanswered(void)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct inode *in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    request_begin(99 | 1ull << 63, 0);
    (void)takeover_new_handle(in, true, &fi);
    request_end();
}

START_TEST(open_that_two_workers_died_of_leaves_one_handle)
{
    takeover_run(work_open_unanswered, false);
    uint64_t first = shared->fh;
    takeover_run(work_open_again_unanswered, false);
    uint64_t second = shared->fh;
    takeover_open(false);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_uint_eq(in->n_writers, 2);
    struct handle *h = open_again("f", true);
    attach_replaces(fx.fs, 99);
    ck_assert_uint_eq(in->n_writers, 1);
    ck_assert_uint_eq(in->n_open, 1);
    ck_assert_ptr_null(handle_get(fx.fs, first));
    ck_assert_ptr_null(handle_get(fx.fs, second));
    takeover_release(h);
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
}
END_TEST

START_TEST(open_that_nobody_asks_for_any_more_is_closed)
{
    takeover_run(work_open_unanswered, false);
    takeover_open(false);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    attach_expire(fx.fs);
    ck_assert_uint_eq(in->n_writers, 1);
    fx.fs->unsure_until_ns = 0;
    attach_expire(fx.fs);
    ck_assert_uint_eq(in->n_writers, 0);
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
    struct handle *h = takeover_handle(shared->fh); /* it has it, after all */
    ck_assert_uint_eq(in->n_writers, 1);
    takeover_write(h, "TEXT", 0);
    takeover_flush(h);
    takeover_release(h);
    ck_assert_uint_eq(in->n_writers, 0);
    takeover_wait();
    takeover_assert_object("f", "TEXT");
}
END_TEST

START_TEST(handle_that_was_used_is_known_to_be_open)
{
    uint64_t ino = 0;
    int32_t tid = 0;
    takeover_run(work_open_unanswered, false);
    takeover_open(false);
    fx.fs->unsure_until_ns = UINT64_MAX / 2;
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_UNSURE);
    fx.fs->unsure_until_ns = 0;
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_NONE);
    struct handle *h = takeover_handle(shared->fh);
    ck_assert_int_eq(handle_held(fx.fs, &ino, &tid), HANDLES_OPEN);
    attach_expire(fx.fs);
    ck_assert_uint_eq(h->in->n_writers, 1);
    ck_assert_uint_eq(slot_state(shared->fh), SLOT_OPEN);
}
END_TEST

/* ---- what the kernel keeps ---- */

static void work_unlink_open(void)
{
    work_write();
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
}

static bool record_is_there(uint64_t ino)
{
    struct meta_inode rec = {0};
    bool there = meta_inode_get(fx.fs->meta, ino, &rec) == 0;
    meta_inode_clear(&rec);
    return there;
}

static void wait_reaped(void)
{
    for (unsigned i = 0; i < 1000 && record_is_there(shared->ino); i++)
        g_usleep(10000);
    ck_assert(!record_is_there(shared->ino));
}

START_TEST(removed_file_stays_as_long_as_it_is_open)
{
    takeover_run(work_unlink_open, false);
    takeover_open(false);
    struct handle *h = takeover_handle(shared->fh);
    char buf[8];
    ck_assert_int_eq(cache_file_read(h->in->cf, buf, sizeof(buf), 0), 4);
    takeover_release(h);
    ck_assert(record_is_there(shared->ino)); /* its FORGET is still to come */
    inode_kernel_forget(fx.fs, shared->ino, 3);
    wait_reaped();
}
END_TEST

static void work_unlink_known(void)
{
    struct inode *in = takeover_make("f");
    shared->ino = in->ino;
    inode_kernel_ref(in);
    content_release(in, true);
    inode_put(in);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
}

/* Somebody's working directory, say. */
START_TEST(removed_file_stays_as_long_as_the_kernel_knows_it)
{
    takeover_run(work_unlink_known, false);
    takeover_open(false);
    INODE_REF in = NULL;
    ck_assert_int_eq(inode_get(fx.fs, shared->ino, &in), 0);
    inode_put(g_steal_pointer(&in));
    ck_assert(record_is_there(shared->ino));
    inode_kernel_forget(fx.fs, shared->ino, 1);
    wait_reaped();
}
END_TEST

START_TEST(next_real_start_removes_what_was_removed)
{
    takeover_run(work_unlink_open, false);
    takeover_run(takeover_nothing, false);
    fs_fixture_open(&fx); /* without the session */
    ck_assert(!record_is_there(shared->ino));
}
END_TEST

/* Pages that the kernel kept may be older than what was written past it. */
START_TEST(pages_of_before_are_dropped_once)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_read, false);
    takeover_open(false);
    takeover_release(takeover_handle(shared->fh));
    struct fuse_file_info fi = {.flags = O_RDONLY};
    struct handle *h = takeover_open_file("f", &fi);
    ck_assert(!fi.keep_cache);
    fi = (struct fuse_file_info){.flags = O_RDONLY};
    struct handle *again = takeover_open_file("f", &fi);
    ck_assert(fi.keep_cache);
    takeover_release(again);
    takeover_release(h);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("takeover");
    TCase *tc = tcase_create("takeover");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, takeover_setup, takeover_teardown);
    tcase_add_test(tc, writer_goes_on);
    tcase_add_test(tc, writer_goes_on_after_two_deaths);
    tcase_add_test(tc, directories_and_virtual_files_stay_open);
    tcase_add_test(tc, reader_goes_on);
    tcase_add_test(tc, removed_file_is_read_on_though_nothing_of_it_was_here);
    tcase_add_test(tc, what_was_kept_for_a_reader_is_kept_by_the_next_worker);
    tcase_add_loop_test(tc, release_that_was_begun_is_ended, 0, 2);
    tcase_add_loop_test(tc, what_a_killed_program_had_open_is_held_by_the_next_worker, 0, 2);
    tcase_add_loop_test(tc, what_was_closed_in_order_after_that_is_not, 0, 2);
    tcase_add_test(tc, file_closed_by_one_of_its_descriptors_is_not_sealed);
    tcase_add_test(tc, what_was_closed_is_published_though_the_next_worker_found_it_open_to_append);
    tcase_add_loop_test(tc, what_was_overwritten_is_known_to_be_by_the_next_worker, 0, 4);
    tcase_add_test(tc, without_handle_closing_is_closed_and_open_is_not);
    tcase_add_test(tc, open_that_is_sent_again_replaces_the_first);
    tcase_add_test(tc, open_that_two_workers_died_of_leaves_one_handle);
    tcase_add_test(tc, news_passed_over_for_a_writer_outlives_the_worker);
    tcase_add_test(tc, open_that_nobody_asks_for_any_more_is_closed);
    tcase_add_test(tc, handle_that_was_used_is_known_to_be_open);
    tcase_add_test(tc, removed_file_stays_as_long_as_it_is_open);
    tcase_add_test(tc, removed_file_stays_as_long_as_the_kernel_knows_it);
    tcase_add_test(tc, next_real_start_removes_what_was_removed);
    tcase_add_test(tc, pages_of_before_are_dropped_once);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
