/*
 * A worker is killed while files are open; the next one goes on. Without FUSE: each worker but the last is a child that opens a struct fs on the session's
 * memory, does what operations do, and kills itself. The kernel's backing ids are made up here.
 */
#include "fs/attach.h"
#include "fs/content.h"
#include "fs/handle.h"
#include "fs/io_mode.h"
#include "fs/op.h"
#include "fs/publish.h"
#include "fs/request.h"
#include "fs/tree.h"
#include "fs_fixture.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fs_fixture fx;
static int memfd;

/* Of the test and its workers. */
static struct shared {
    uint64_t fh, ino, vid, gen;
    int last_id; /* given by the kernel, 1 is the first */
    bool closed[16];
    bool release; /* for the next worker */
} * shared;

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

static void setup(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    memfd = memfd_create("session", MFD_CLOEXEC);
    ck_assert_int_ge(memfd, 0);
    struct session *s = NULL;
    ck_assert_int_eq(session_map(memfd, true, &s), 0);
    session_unmap(s);
    fs_fixture_init(&fx);
    fx.cfg.cache_size.bytes = 4ull << 30; /* room for writers whom nobody holds back */
}

/* passes: the kernel can read and write by itself. */
static void open_worker(bool passes)
{
    char *argv[] = {(char[]){"test"}, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(1, argv);
    ck_assert_int_eq(session_map(memfd, false, &fx.session), 0);
    fs_fixture_open(&fx);
    session_started(fx.session);
    fx.fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fx.fs);
    ck_assert_ptr_nonnull(fx.fs->se);
    if (passes)
        io_mode_connected(fx.fs, true);
}

static void close_worker(void)
{
    struct fuse_session *se = fx.fs ? fx.fs->se : NULL;
    fs_fixture_close(&fx);
    if (se)
        fuse_session_destroy(se);
    session_unmap(fx.session);
    fx.session = NULL;
}

static void teardown(void)
{
    close_worker();
    fs_fixture_fini(&fx);
    close(memfd);
    munmap(shared, sizeof(*shared));
}

/* A worker that does something and is killed. */
static void run_worker(void (*work)(void), bool passes)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        open_worker(passes);
        work();
        (void)raise(SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void work_nothing(void)
{
}

/* ---- what operations do ---- */

static struct inode *make(const char *name)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    return in;
}

/* The file is counted as open already. Takes the caller's reference. */
static struct handle *new_handle(struct inode *in, bool writes, struct fuse_file_info *fi)
{
    struct handle *h = NULL;
    const struct sess_handle what = {.ino = in->ino, .tid = 1, .writable = writes};
    ck_assert_int_eq(handle_new(fx.fs, in, &what, &h), 0);
    ck_assert_int_eq(io_mode_enter(in, writes, false, fi), 0);
    h->news = io_mode_news(in);
    shared->fh = h->fh;
    shared->ino = in->ino;
    shared->vid = in->rec.vid;
    inode_put(in);
    return h;
}

static struct handle *open_again(const char *name, bool writes)
{
    struct fuse_file_info fi = {.flags = writes ? O_RDWR : O_RDONLY};
    struct inode *in = fs_fixture_inode(&fx, name);
    ck_assert_int_eq(content_open(in, writes, false), 0);
    struct handle *h = new_handle(in, writes, &fi);
    handle_opened(fx.fs, h->fh);
    return h;
}

static struct handle *create(const char *name)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct handle *h = new_handle(make(name), true, &fi);
    handle_opened(fx.fs, h->fh);
    return h;
}

static void do_write(struct handle *h, const char *text, uint64_t off)
{
    ck_assert_int_eq(content_begin_change(h->in), 0);
    fs_fixture_pwrite(h->in, text, strlen(text), off);
    atomic_store(&h->slot->wrote, 1);
}

static void do_flush(struct handle *h)
{
    if (io_mode_news(h->in) != h->news)
        atomic_store(&h->slot->wrote, 1);
    if (atomic_load(&h->slot->wrote))
        ck_assert_int_eq(content_flush(h->in, false), 0);
}

static void do_release(struct handle *h)
{
    handle_releasing(fx.fs, h->fh);
    io_mode_leave(h->in, h->slot->writable);
    content_release(h->in, h->slot->writable);
    handle_free(fx.fs, h->fh);
}

static struct handle *handle_of(uint64_t fh)
{
    struct handle *h = handle_get(fx.fs, fh);
    ck_assert_ptr_nonnull(h);
    return h;
}

static uint32_t slot_state(uint64_t fh)
{
    return atomic_load(&fx.session->handles[(uint32_t)fh].state);
}

static uint32_t content_of(const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, name);
    return in->rec.content;
}

static void wait_published(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void assert_object(const char *key, const char *text)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    g_autofree char *got = NULL;
    ck_assert(g_file_get_contents(path, &got, NULL, NULL));
    ck_assert_str_eq(got, text);
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

/* ---- handles ---- */

static void work_write(void)
{
    struct handle *h = create("f");
    do_write(h, "text", 0);
    shared->gen = h->in->rec.gen;
}

START_TEST(writer_goes_on)
{
    run_worker(work_write, false);
    open_worker(false);
    struct handle *h = handle_of(shared->fh);
    ck_assert_uint_eq(h->in->ino, shared->ino);
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
    ck_assert_uint_eq(h->in->rec.size, 4);
    ck_assert_uint_gt(h->in->rec.gen, shared->gen); /* a snapshot may have been published under that one */
    do_write(h, "more", 4);
    do_flush(h);
    do_release(h);
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
    wait_published();
    assert_object("f", "textmore");
}
END_TEST

START_TEST(writer_goes_on_after_two_deaths)
{
    run_worker(work_write, false);
    run_worker(work_nothing, false);
    open_worker(false);
    ck_assert_uint_eq(fx.session->head->generation, 3);
    struct handle *h = handle_of(shared->fh);
    do_flush(h);
    ck_assert_uint_eq(content_of("f"), CONTENT_CLOSING);
    do_release(h);
    ck_assert_uint_eq(slot_state(shared->fh), SLOT_FREE);
    wait_published();
    assert_object("f", "text");
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
    run_worker(work_dir_and_virtual, false);
    open_worker(false);
    struct handle *dir = handle_of(shared->fh), *virt = handle_of(shared->ino);
    ck_assert_uint_eq(dir->in->ino, META_ROOT_INO);
    ck_assert_uint_eq(dir->slot->id_limit, 77);
    ck_assert_ptr_null(virt->in);
    ck_assert_ptr_nonnull(virt->text);
    struct handle *h = create("f"); /* another slot */
    ck_assert_ptr_eq(handle_of(shared->fh), h);
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
    run_worker(work_read, false);
    open_worker(false);
    struct handle *h = handle_of(shared->fh);
    char buf[8];
    ck_assert_int_eq(cache_file_read(h->in->cf, buf, sizeof(buf), 0), 4);
    ck_assert_mem_eq(buf, "text", 4);
    ck_assert_uint_eq(h->in->rec.content, CONTENT_CLEAN);
    ck_assert_int_eq(cache_evict(fx.fs->cache, h->in->rec.vid), -EBUSY);
}
END_TEST

/* ---- closing ---- */

static void work_begin_release(void)
{
    struct handle *h = create("f");
    do_write(h, "text", 0);
    handle_releasing(fx.fs, h->fh);
}

static void work_release_half(void)
{
    struct handle *h = create("f");
    do_write(h, "text", 0);
    handle_releasing(fx.fs, h->fh);
    io_mode_leave(h->in, true);
    content_release(h->in, true);
}

START_TEST(release_that_was_begun_is_ended)
{
    run_worker(_i ? work_release_half : work_begin_release, false);
    open_worker(false);
    ck_assert_uint_eq(slot_state(shared->fh), SLOT_FREE);
    ck_assert_ptr_null(handle_get(fx.fs, shared->fh));
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
    wait_published();
    assert_object("f", "text");
}
END_TEST

static void work_close_dup(void)
{
    struct handle *h = create("f");
    do_write(h, "text", 0);
    do_flush(h);
}

START_TEST(file_closed_by_one_of_its_descriptors_is_not_sealed)
{
    run_worker(work_close_dup, false);
    open_worker(false);
    ck_assert_uint_eq(content_of("f"), CONTENT_CLOSING);
    struct handle *h = handle_of(shared->fh);
    do_write(h, "more", 4);
    do_flush(h);
    do_release(h);
    wait_published();
    assert_object("f", "textmore");
}
END_TEST

static void work_open_and_closing(void)
{
    struct inode *in = make("closing");
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    in = make("open");
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
}

START_TEST(without_handle_closing_is_closed_and_open_is_not)
{
    run_worker(work_open_and_closing, false);
    open_worker(false);
    ck_assert_uint_eq(content_of("closing"), CONTENT_SEALED);
    ck_assert_uint_eq(content_of("open"), CONTENT_OPEN);
    INODE_REF in = fs_fixture_inode(&fx, "open");
    ck_assert_uint_eq(in->rec.size, 4);
}
END_TEST

/* ---- opening ---- */

static void work_open_unanswered(void)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct inode *in = make("f");
    request_begin(99);
    struct handle *h = new_handle(in, true, &fi);
    request_end();
    do_write(h, "text", 0);
}

START_TEST(open_that_is_sent_again_replaces_the_first)
{
    run_worker(work_open_unanswered, false);
    open_worker(false);
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
    do_release(h);
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
}
END_TEST

START_TEST(open_that_nobody_asks_for_any_more_is_closed)
{
    run_worker(work_open_unanswered, false);
    open_worker(false);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    attach_expire(fx.fs);
    ck_assert_uint_eq(in->n_writers, 1);
    fx.fs->unsure_until_ns = 0;
    attach_expire(fx.fs);
    ck_assert_uint_eq(in->n_writers, 0);
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
    struct handle *h = handle_of(shared->fh); /* it has it, after all */
    ck_assert_uint_eq(in->n_writers, 1);
    do_write(h, "TEXT", 0);
    do_flush(h);
    do_release(h);
    ck_assert_uint_eq(in->n_writers, 0);
    wait_published();
    assert_object("f", "TEXT");
}
END_TEST

START_TEST(handle_that_was_used_is_known_to_be_open)
{
    run_worker(work_open_unanswered, false);
    open_worker(false);
    struct handle *h = handle_of(shared->fh);
    fx.fs->unsure_until_ns = 0;
    attach_expire(fx.fs);
    ck_assert_uint_eq(h->in->n_writers, 1);
    ck_assert_uint_eq(slot_state(shared->fh), SLOT_OPEN);
}
END_TEST

/* ---- the kernel reads and writes by itself ---- */

/* Starts; the ids that nobody knows of are closed. */
static void start_swept(void)
{
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 1000 && atomic_load(&fx.session->head->id_low) < shared->last_id; i++)
        g_usleep(10000);
    ck_assert_int_eq(atomic_load(&fx.session->head->id_low), shared->last_id);
}

/* An open as the kernel would do it. */
static struct handle *open_to_pass(const char *name, struct fuse_file_info *fi)
{
    struct inode *in = fs_fixture_inode(&fx, name);
    bool writes = fi->flags != O_RDONLY;
    ck_assert_int_eq(content_open(in, writes, false), 0);
    struct handle *h = new_handle(in, writes, fi);
    handle_opened(fx.fs, h->fh);
    return h;
}

static void put_text(int fd, const char *text, off_t at)
{
    ck_assert_int_eq(pwrite(fd, text, strlen(text), at), (ssize_t)strlen(text));
}

static void work_pass(void)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    handle_opened(fx.fs, new_handle(make("f"), true, &fi)->fh);
    ck_assert_int_eq(fi.backing_id, 1);
    int fd = open_passed();
    put_text(fd, "text", 0);
    close(fd);
}

START_TEST(what_the_kernel_wrote_is_known_and_its_id_is_kept)
{
    run_worker(work_pass, true);
    open_worker(true);
    struct handle *h = handle_of(shared->fh);
    ck_assert_uint_eq(h->in->io.mode, IO_PASSTHROUGH);
    int fd = open_passed();
    put_text(fd, "more", 4);
    struct fuse_file_info fi = {.flags = O_RDONLY};
    do_release(open_to_pass("f", &fi));
    ck_assert_int_eq(fi.backing_id, 1);
    ck_assert_int_eq(shared->last_id, 1);
    struct stat st;
    inode_stat(h->in, &st);
    ck_assert_int_eq(st.st_size, 8);
    close(fd);
    ck_assert(!shared->closed[1]);
    do_flush(h);
    ck_assert(atomic_load(&h->slot->wrote));
    do_release(h);
    wait_published();
    assert_object("f", "textmore");
}
END_TEST

START_TEST(file_that_the_kernel_still_writes_is_not_sealed)
{
    run_worker(work_pass, true);
    int fd = open_passed();
    open_worker(true);
    do_flush(handle_of(shared->fh));
    do_release(handle_of(shared->fh)); /* a mapping is left */
    ck_assert_uint_eq(content_of("f"), CONTENT_CLOSING);
    close(fd);
}
END_TEST

static void work_pass_and_map(void)
{
    work_pass();
    int fd = open_passed();
    do_flush(handle_of(shared->fh));
    do_release(handle_of(shared->fh));
    close(fd);
}

START_TEST(mapping_that_outlives_its_handle_and_the_worker_is_waited_for)
{
    run_worker(work_pass_and_map, true);
    int fd = open_passed();
    open_worker(true);
    ck_assert_uint_eq(content_of("f"), CONTENT_CLOSING);
    put_text(fd, "TEXT", 0);
    fs_fixture_start(&fx);
    close(fd);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    assert_object("f", "TEXT");
}
END_TEST

static void work_pass_a_reader(void)
{
    struct fuse_file_info fi = {.flags = O_RDONLY};
    struct handle *h = open_to_pass("f", &fi);
    ck_assert_int_eq(fi.backing_id, 1);
    if (shared->release) {
        inode_kernel_ref(h->in);
        do_release(h);
    }
}

START_TEST(reader_keeps_its_id)
{
    fs_fixture_object(&fx, "f", "text", 4);
    run_worker(work_pass_a_reader, true);
    open_worker(true);
    struct handle *h = handle_of(shared->fh);
    start_swept();
    struct fuse_file_info fi = {.flags = O_RDONLY};
    do_release(open_to_pass("f", &fi));
    ck_assert_int_eq(fi.backing_id, 1);
    ck_assert(!shared->closed[1]);
    ck_assert_int_eq(cache_evict(fx.fs->cache, h->in->rec.vid), -EBUSY);
}
END_TEST

START_TEST(id_that_no_handle_uses_is_closed)
{
    fs_fixture_object(&fx, "f", "text", 4);
    shared->release = true;
    run_worker(work_pass_a_reader, true);
    ck_assert(!shared->closed[1]);
    open_worker(true);
    start_swept();
    ck_assert(shared->closed[1]);
    struct fuse_file_info fi = {.flags = O_RDONLY};
    do_release(open_to_pass("f", &fi));
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
    run_worker(work_leak_an_id, true);
    open_worker(true);
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
    struct handle *h = open_to_pass("f", &read); /* fetches it, so that the writer's mode is the same */
    g_usleep(50000);                             /* its time must be old enough to show a write */
    (void)open_to_pass("f", &fi);
    ck_assert_ptr_nonnull(h->in->io.kept);
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
}

static void work_open_clean_and_write(void)
{
    work_open_clean();
    int fd = open_passed();
    put_text(fd, "TEXT", 0);
    close(fd);
    ck_assert(io_mode_look(handle_of(shared->fh)->in)); /* seen: no later look finds it */
}

START_TEST(clean_file_left_alone_is_clean_again)
{
    fs_fixture_object(&fx, "f", "text", 4);
    run_worker(work_open_clean, true);
    open_worker(true);
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
    struct handle *h = handle_of(shared->fh);
    do_flush(h);
    ck_assert(!atomic_load(&h->slot->wrote));
    do_release(h);
    ck_assert_uint_eq(content_of("f"), CONTENT_CLEAN);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_pstr_eq(in->rec.base_key, "f");
    ck_assert_uint_eq(in->rec.base_limit, 4);
}
END_TEST

/* _i: 0 it was seen before the worker died, 1 after. */
START_TEST(clean_file_written_since_is_published)
{
    fs_fixture_object(&fx, "f", "text", 4);
    run_worker(_i ? work_open_clean : work_open_clean_and_write, true);
    open_worker(true);
    if (_i) {
        int fd = open_passed();
        put_text(fd, "TEXT", 0);
        close(fd);
    }
    struct handle *h = handle_of(shared->fh);
    do_flush(h);
    ck_assert(atomic_load(&h->slot->wrote));
    do_release(h);
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
    wait_published();
    assert_object("f", "TEXT");
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
    run_worker(work_unlink_open, false);
    open_worker(false);
    struct handle *h = handle_of(shared->fh);
    char buf[8];
    ck_assert_int_eq(cache_file_read(h->in->cf, buf, sizeof(buf), 0), 4);
    do_release(h);
    ck_assert(record_is_there(shared->ino)); /* its FORGET is still to come */
    inode_kernel_forget(fx.fs, shared->ino, 3);
    wait_reaped();
}
END_TEST

static void work_unlink_known(void)
{
    struct inode *in = make("f");
    shared->ino = in->ino;
    inode_kernel_ref(in);
    content_release(in, true);
    inode_put(in);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
}

/* Somebody's working directory, say. */
START_TEST(removed_file_stays_as_long_as_the_kernel_knows_it)
{
    run_worker(work_unlink_known, false);
    open_worker(false);
    INODE_REF in = NULL;
    ck_assert_int_eq(inode_get(fx.fs, shared->ino, &in), 0);
    inode_put(g_steal_pointer(&in));
    ck_assert(record_is_there(shared->ino));
    inode_kernel_forget(fx.fs, shared->ino, 1);
    wait_reaped();
}
END_TEST

static void work_make_known(void)
{
    struct inode *in = make("f");
    shared->ino = in->ino;
    inode_kernel_ref(in);
    content_release(in, true);
}

START_TEST(file_removed_after_the_takeover_goes_with_its_last_forget)
{
    run_worker(work_make_known, false);
    open_worker(false);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    inode_kernel_ref(in);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    inode_put(g_steal_pointer(&in));
    ck_assert(record_is_there(shared->ino));
    inode_kernel_forget(fx.fs, shared->ino, 2);
    wait_reaped();
}
END_TEST

START_TEST(next_real_start_removes_what_was_removed)
{
    run_worker(work_unlink_open, false);
    run_worker(work_nothing, false);
    fs_fixture_open(&fx); /* without the session */
    ck_assert(!record_is_there(shared->ino));
}
END_TEST

/* Pages that the kernel kept may be older than what was written past it. */
START_TEST(pages_of_before_are_dropped_once)
{
    fs_fixture_object(&fx, "f", "text", 4);
    run_worker(work_read, false);
    open_worker(false);
    do_release(handle_of(shared->fh));
    struct fuse_file_info fi = {.flags = O_RDONLY};
    struct handle *h = open_to_pass("f", &fi);
    ck_assert(!fi.keep_cache);
    fi = (struct fuse_file_info){.flags = O_RDONLY};
    struct handle *again = open_to_pass("f", &fi);
    ck_assert(fi.keep_cache);
    do_release(again);
    do_release(h);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("takeover");
    TCase *tc = tcase_create("takeover");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, writer_goes_on);
    tcase_add_test(tc, writer_goes_on_after_two_deaths);
    tcase_add_test(tc, directories_and_virtual_files_stay_open);
    tcase_add_test(tc, reader_goes_on);
    tcase_add_loop_test(tc, release_that_was_begun_is_ended, 0, 2);
    tcase_add_test(tc, file_closed_by_one_of_its_descriptors_is_not_sealed);
    tcase_add_test(tc, without_handle_closing_is_closed_and_open_is_not);
    tcase_add_test(tc, open_that_is_sent_again_replaces_the_first);
    tcase_add_test(tc, open_that_nobody_asks_for_any_more_is_closed);
    tcase_add_test(tc, handle_that_was_used_is_known_to_be_open);
    tcase_add_test(tc, what_the_kernel_wrote_is_known_and_its_id_is_kept);
    tcase_add_test(tc, file_that_the_kernel_still_writes_is_not_sealed);
    tcase_add_test(tc, mapping_that_outlives_its_handle_and_the_worker_is_waited_for);
    tcase_add_test(tc, reader_keeps_its_id);
    tcase_add_test(tc, id_that_no_handle_uses_is_closed);
    tcase_add_test(tc, id_that_nobody_knows_of_is_closed);
    tcase_add_test(tc, clean_file_left_alone_is_clean_again);
    tcase_add_loop_test(tc, clean_file_written_since_is_published, 0, 2);
    tcase_add_test(tc, removed_file_stays_as_long_as_it_is_open);
    tcase_add_test(tc, removed_file_stays_as_long_as_the_kernel_knows_it);
    tcase_add_test(tc, file_removed_after_the_takeover_goes_with_its_last_forget);
    tcase_add_test(tc, next_real_start_removes_what_was_removed);
    tcase_add_test(tc, pages_of_before_are_dropped_once);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
