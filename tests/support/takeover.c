/* See takeover.h. */
#include "takeover.h"

#include "fs/content.h"
#include "fs/io_mode.h"
#include "fs/op.h"
#include "fs/publish.h"
#include "fs/tree.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct fs_fixture fx;
struct takeover_shared *shared;
static int memfd;

void takeover_setup(void)
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

void takeover_open(bool passes)
{
    char *argv[] = {(char[]){"test"}, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(1, argv);
    ck_assert_int_eq(takeover_map(&fx.session), 0);
    fs_fixture_open(&fx);
    session_started(fx.session);
    fx.fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fx.fs);
    fuse_opt_free_args(&args);
    ck_assert_ptr_nonnull(fx.fs->se);
    if (passes)
        io_mode_connected(fx.fs, true);
}

int takeover_map(struct session **ret)
{
    return session_map(memfd, false, ret);
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

void takeover_teardown(void)
{
    close_worker();
    fs_fixture_fini(&fx);
    close(memfd);
    munmap(shared, sizeof(*shared));
}

void takeover_run(void (*work)(void), bool passes)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        takeover_open(passes);
        work();
        (void)raise(SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

void takeover_nothing(void)
{
}

/* ---- what operations do ---- */

struct inode *takeover_make(const char *name)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    return in;
}

struct handle *takeover_new_handle(struct inode *in, bool writes, struct fuse_file_info *fi)
{
    struct handle *h = NULL;
    const struct sess_handle what = {.ino = in->ino, .tid = 1, .writable = writes};
    ck_assert_int_eq(handle_new(fx.fs, in, &what, &h), 0);
    ck_assert_int_eq(io_mode_enter(in, writes, false, fi), 0);
    h->slot->direct = fi->direct_io;
    if (!writes)
        read_mode_opened(h, fi->direct_io);
    h->news = io_mode_news(in);
    shared->fh = h->fh;
    shared->ino = in->ino;
    shared->vid = in->rec.vid;
    inode_put(in);
    return h;
}

struct handle *takeover_open_file(const char *name, struct fuse_file_info *fi)
{
    struct inode *in = fs_fixture_inode(&fx, name);
    bool writes = fi->flags != O_RDONLY;
    ck_assert_int_eq(content_open(in, writes, false), 0);
    struct handle *h = takeover_new_handle(in, writes, fi);
    handle_opened(fx.fs, h->fh);
    return h;
}

struct handle *takeover_create(const char *name)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct handle *h = takeover_new_handle(takeover_make(name), true, &fi);
    handle_opened(fx.fs, h->fh);
    return h;
}

void takeover_write(struct handle *h, const char *text, uint64_t off)
{
    ck_assert_int_eq(content_begin_change(h->in), 0);
    fs_fixture_pwrite(h->in, text, strlen(text), off);
    atomic_store(&h->slot->wrote, 1);
}

void takeover_flush(struct handle *h)
{
    if (io_mode_news(h->in) != h->news)
        atomic_store(&h->slot->wrote, 1);
    if (atomic_load(&h->slot->wrote))
        ck_assert_int_eq(content_flush(h->in, false), 0);
}

void takeover_release(struct handle *h)
{
    handle_releasing(fx.fs, h->fh);
    io_mode_leave(h->in, h->slot->writable, h->slot->direct);
    content_release(h->in, h->slot->writable);
    handle_free(fx.fs, h->fh);
}

struct handle *takeover_handle(uint64_t fh)
{
    struct handle *h = handle_get(fx.fs, fh);
    ck_assert_ptr_nonnull(h);
    return h;
}

uint32_t takeover_content(const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, name);
    return in->rec.content;
}

void takeover_wait(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

void takeover_assert_object(const char *key, const char *text)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    g_autofree char *got = NULL;
    ck_assert(g_file_get_contents(path, &got, NULL, NULL));
    ck_assert_str_eq(got, text);
}
