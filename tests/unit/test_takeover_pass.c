/* A worker is killed while the kernel reads and writes cache files by itself. Its backing ids are made up here. */
#include "backing_stub.h"
#include "cache/cache_chunks.h"
#include "cache/cache_scan.h"
#include "fs/content.h"
#include "fs/io_mode.h"
#include "fs/mapped.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

static bool in_memory; /* the cache folder, as far as anybody can tell */

/* Takes the place of the C library's. */
int fstatfs(int fd, struct statfs *st)
{
    memset(st, 0, sizeof *st);
    st->f_type = in_memory ? TMPFS_MAGIC : EXT4_SUPER_MAGIC;
    return 0;
}

static char *cache_path(void)
{
    return g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir, (unsigned)(shared->vid & 0xff),
                           shared->vid);
}

/* As a program has a file that the kernel writes by itself: it outlives the worker. */
static int open_passed(void)
{
    struct cache_scanned file;
    ck_assert_int_eq(cache_scan_file(fx.cache_dir, shared->vid, &file), 0);
    g_autofree char *path = cache_path();
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
    ck_assert(!backing_is_closed(1));
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

static void assert_intent(const char *state, const char *path)
{
    char text[4096] = "";
    g_autofree char *file = cache_path(), *want_state = g_strdup_printf("\"state\":\"%s\"", state),
                    *want_path = g_strdup_printf("\"path\":\"%s\"", path);
    ck_assert_int_gt(getxattr(file, "user.sluice.intent", text, sizeof(text) - 1), 0);
    ck_assert_msg(strstr(text, want_state) && strstr(text, want_path), "%s", text);
}

/* Closed by one of several descriptors, moved, opened by somebody else and written on: as an open file's, by its first name. */
static void work_pass_and_close_one(void)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    work_pass();
    takeover_flush(takeover_handle(shared->fh));
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLOSING);
    assert_intent("open", "f");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "f", META_ROOT_INO, "g", 0), 0);
    assert_intent("open", "f");
    uint64_t fh = shared->fh;
    struct handle *h = takeover_open_file("g", &fi);
    ck_assert_uint_eq(takeover_content("g"), CONTENT_OPEN);
    takeover_flush(h);
    takeover_release(h);
    assert_intent("open", "f");
    shared->fh = fh;
}

/* Who is in a write() past us has the lock of the cache file, and may wait for us. */
START_TEST(intent_waits_for_the_end_of_writing_past_us)
{
    if (_i == 0) {
        takeover_open(true);
        work_pass_and_close_one();
    } else {
        takeover_run(work_pass_and_close_one, true);
        takeover_open(true);
        assert_intent("open", "f");
    }
    takeover_release(takeover_handle(shared->fh));
    ck_assert_uint_eq(takeover_content("g"), CONTENT_SEALED);
    assert_intent("closing", "g");
}
END_TEST

START_TEST(mapping_that_outlives_the_worker_may_change_what_was_closed_beside_an_appender)
{
    takeover_run(work_pass_and_map, true);
    int fd = open_passed();
    takeover_open(true);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open_to_append(in), 0);
    mutex_lock(&in->mu);
    in->mapped = false; /* as the look finds that it has a writer */
    mutex_unlock(&in->mu);
    ck_assert(!content_keeps_closed(in));
    content_abandon(in, true);
    close(fd);
}
END_TEST

/* Closed, but a mapping is left: fd. */
static struct inode *map_new(const char *name, int *ret_fd)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct handle *h = takeover_new_handle(takeover_make(name), true, &fi);
    struct inode *in = inode_ref(h->in);
    handle_opened(fx.fs, h->fh);
    *ret_fd = open_passed();
    put_text(*ret_fd, "text", 0);
    takeover_flush(h);
    takeover_release(h);
    return in;
}

static uint64_t n_uploading(void)
{
    struct publish_counts n;
    publish_count(fx.fs->pub, "", &n);
    return n.uploading;
}

START_TEST(snapshot_that_waits_for_the_store_keeps_no_other_file_unsealed)
{
    int fd_a, fd_b;
    fx.cfg.fault = g_strdup("op=put,key=a,action=delay:36000s");
    takeover_open(true);
    fs_fixture_start(&fx);
    struct inode *a = map_new("a", &fd_a), *b = map_new("b", &fd_b);
    clock_fake_advance(301 * NS_PER_S);
    while (n_uploading() == 0)
        g_usleep(10000);
    close(fd_b);
    for (unsigned i = 0; i < 2000 && mapped_count(fx.fs) == 2; i++)
        g_usleep(10000);
    ck_assert_uint_eq(mapped_count(fx.fs), 1);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
    close(fd_a);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    takeover_assert_object("a", "text");
    takeover_assert_object("b", "text");
    inode_put(a);
    inode_put(b);
}
END_TEST

static bool is_snapping(struct inode *in)
{
    mutex_lock(&in->mu);
    bool yes = in->snapping;
    mutex_unlock(&in->mu);
    return yes;
}

static bool is_sent(struct inode *in)
{
    mutex_lock(&fx.fs->pub->mu);
    const GPtrArray *a = g_hash_table_lookup(fx.fs->pub->by_ino, &in->ino);
    bool yes = a && ((struct op *)a->pdata[0])->running;
    mutex_unlock(&fx.fs->pub->mu);
    return yes;
}

/* Its snapshot waits behind those that the store keeps waiting, until a program has written half of what is new. */
START_TEST(snapshot_is_left_out_when_the_file_was_opened_again_for_writing)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    struct inode *in[5];
    int fds[5];
    fx.cfg.fault = g_strdup("op=put,action=delay:36000s");
    takeover_open(true);
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 5; i++)
        in[i] = map_new(names[i], &fds[i]);
    clock_fake_advance(301 * NS_PER_S);
    EVENTUALLY(n_uploading() == 4 && is_snapping(in[4]));
    unsigned last = 4; /* that waits */
    while (is_sent(in[last]))
        last--;
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct handle *h = takeover_open_file(names[last], &fi);
    put_text(fds[last], "HALF", 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    EVENTUALLY(!is_snapping(in[last]));
    ck_assert(!fs_fixture_object_exists(&fx, names[last]));
    put_text(fds[last], "whole", 0);
    takeover_flush(h);
    takeover_release(h);
    for (unsigned i = 0; i < 5; i++) {
        close(fds[i]);
        inode_put(in[i]);
    }
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    takeover_assert_object(names[last], "whole");
}
END_TEST

/* Writes without that the file's time tells. */
static void put_unseen(int fd, const char *text)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    put_text(fd, text, 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    ck_assert_int_eq(futimens(fd, times), 0);
}

/* Killed between the end of the kernel's writing and the record of it. */
static void work_end_behind_a_snapshot(void)
{
    bool same;
    work_pass();
    struct handle *h = takeover_handle(shared->fh);
    fs_fixture_start(&fx);
    takeover_flush(h);
    ck_assert_int_eq(publish_now(fx.fs, h->in, clock_mono_ns() + 20 * NS_PER_S), 0);
    int fd = open_passed();
    put_unseen(fd, "TEXT");
    close(fd);
    handle_releasing(fx.fs, h->fh);
    io_mode_leave(h->in, true, h->slot->direct);
    content_gate_enter(h->in);
    ck_assert(io_mode_end_writing(h->in, &same));
}

START_TEST(store_behind_a_published_snapshot_is_published)
{
    takeover_run(work_end_behind_a_snapshot, true);
    takeover_assert_object("f", "text");
    takeover_open(true);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_SEALED);
    takeover_wait();
    takeover_assert_object("f", "TEXT");
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLEAN);
}
END_TEST

/* Through another descriptor. It was seen, but not recorded. */
static void work_close_and_write_on(void)
{
    work_pass();
    takeover_flush(takeover_handle(shared->fh));
    int fd = open_passed();
    put_text(fd, "more", 4);
    close(fd);
    ck_assert(io_mode_look(takeover_handle(shared->fh)->in));
}

START_TEST(closed_file_that_was_written_on_is_published_whole)
{
    takeover_run(work_close_and_write_on, true);
    takeover_open(true);
    struct handle *h = takeover_handle(shared->fh);
    ck_assert_uint_eq(h->in->rec.size, 8);
    takeover_flush(h);
    takeover_release(h);
    takeover_wait();
    takeover_assert_object("f", "textmore");
}
END_TEST

/* A worker whose start fails behind what it took over. */
static void work_fail(void)
{
    fs_fixture_close(&fx);
}

START_TEST(start_that_fails_leaves_a_writer_as_it_was)
{
    takeover_run(work_pass, true);
    takeover_run(work_fail, true);
    int fd = open_passed();
    put_text(fd, "more", 4);
    takeover_open(true);
    start_swept();
    struct handle *h = takeover_handle(shared->fh);
    struct fuse_file_info fi = {.flags = O_RDONLY};
    takeover_release(takeover_open_file("f", &fi));
    ck_assert_int_eq(fi.backing_id, 1); /* the kernel takes no other for it */
    ck_assert(!backing_is_closed(1));
    struct stat st;
    inode_stat(h->in, &st);
    ck_assert_int_eq(st.st_size, 8);
    put_text(fd, "last", 8);
    close(fd);
    takeover_flush(h);
    takeover_release(h);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    takeover_assert_object("f", "textmorelast");
}
END_TEST

/* It could not even open the file. */
static void work_fail_blindly(void)
{
    ck_assert_ptr_null(takeover_handle(shared->fh)->in);
    fs_fixture_close(&fx);
}

START_TEST(start_that_fails_leaves_a_file_that_it_could_not_open)
{
    takeover_run(work_pass, true);
    g_autofree char *path = cache_path();
    g_autofree char *away = g_strconcat(path, ".away", NULL);
    ck_assert_int_eq(rename(path, away), 0);
    ck_assert_int_eq(symlink(path, path), 0);
    takeover_run(work_fail_blindly, true);
    ck_assert_int_eq(rename(away, path), 0);
    takeover_open(true);
    struct handle *h = takeover_handle(shared->fh);
    ck_assert_uint_eq(h->in->io.mode, IO_PASSTHROUGH);
    ck_assert(h->in->io.kernel_writes);
    start_swept();
    ck_assert(!backing_is_closed(1));
}
END_TEST

START_TEST(start_that_fails_leaves_a_mapping_as_it_was)
{
    takeover_run(work_pass_and_map, true);
    int fd = open_passed();
    takeover_run(work_fail, true);
    takeover_open(true);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_CLOSING);
    put_text(fd, "TEXT", 0);
    close(fd);
    takeover_wait();
    takeover_assert_object("f", "TEXT");
}
END_TEST

/* Without another worker. Is the record sure of the bytes once the last writer has closed the file? */
static bool closes_synced(bool written_again)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    takeover_open(true);
    struct handle *h = takeover_new_handle(takeover_make("f"), true, &fi);
    INODE_REF in = inode_ref(h->in);
    handle_opened(fx.fs, h->fh);
    int fd = open_passed();
    put_text(fd, "text", 0);
    ck_assert_int_eq(content_sync(in), 0);
    if (written_again)
        put_text(fd, "more", 4);
    close(fd);
    takeover_flush(h);
    takeover_release(h);
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
    return in->rec.flags & INODE_DATA_SYNCED;
}

START_TEST(what_was_synced_stays_so_when_the_kernels_writing_ends)
{
    ck_assert(closes_synced(false));
}
END_TEST

START_TEST(what_was_written_after_a_sync_is_not)
{
    ck_assert(!closes_synced(true));
}
END_TEST

/* Its writes are the daemon's, which can make them last; the others' stay the kernel's. */
START_TEST(who_writes_with_o_dsync_sends_us_its_writes)
{
    static const int syncing[] = {O_WRONLY | O_DSYNC, O_RDWR | O_DSYNC, O_RDWR | O_SYNC};
    struct fuse_file_info first = {.flags = O_RDWR}, reader = {.flags = O_RDONLY};
    takeover_open(true);
    struct handle *h = takeover_new_handle(takeover_make("f"), true, &first);
    handle_opened(fx.fs, h->fh);
    ck_assert_int_eq(first.backing_id, 1);
    ck_assert(!first.direct_io);
    for (unsigned i = 0; i < G_N_ELEMENTS(syncing); i++) {
        struct fuse_file_info fi = {.flags = syncing[i]};
        takeover_release(takeover_open_file("f", &fi));
        ck_assert_int_eq(fi.backing_id, 1); /* the kernel takes no other mode beside it */
        ck_assert(fi.direct_io);
    }
    takeover_release(takeover_open_file("f", &reader));
    ck_assert(!reader.direct_io);
    takeover_release(h);
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
    ck_assert(!backing_is_closed(1));
    ck_assert_int_eq(cache_evict(fx.fs->cache, h->in->rec.vid), -EBUSY);
}
END_TEST

/* Its record says that half of it is here: an earlier version took that for whole. */
static void work_pass_half_a_file(void)
{
    struct chunkset present = {0}, dirty = {0};
    struct meta_segment seg;
    work_pass_a_reader();
    g_autofree char *limit = g_strdup_printf("cache/limit/%016" G_GINT64_MODIFIER "x", shared->vid);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    chunkset_set(&present, 0, 1);
    chunks_encode_segment(&present, &dirty, 0, &seg);
    chunkset_clear(&present);
    meta_segment_put(b, shared->vid, 0, &seg);
    meta_value_put_u64(b, limit, META_CHUNK_BYTES);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

/* _i: who opens it beside the reader writes. */
START_TEST(what_a_reader_has_is_made_whole_for_who_opens_it_too)
{
    struct fuse_file_info fi = {.flags = _i ? O_RDWR : O_RDONLY};
    g_autofree char *text = g_strnfill(2 * META_CHUNK_BYTES, 'x'), *got = g_malloc0(2 * META_CHUNK_BYTES);
    fs_fixture_object(&fx, "f", text, 2 * META_CHUNK_BYTES);
    takeover_run(work_pass_half_a_file, true);
    int fd = open_passed();
    ck_assert_int_eq(pwrite(fd, got, META_CHUNK_BYTES, META_CHUNK_BYTES), META_CHUNK_BYTES);
    takeover_open(true);
    takeover_release(takeover_open_file("f", &fi));
    ck_assert_int_eq(fi.backing_id, 1);
    ck_assert_int_eq(pread(fd, got, 2 * META_CHUNK_BYTES, 0), 2 * META_CHUNK_BYTES);
    ck_assert_int_eq(memcmp(got, text, 2 * META_CHUNK_BYTES), 0);
    close(fd);
}
END_TEST

START_TEST(id_that_no_handle_uses_is_closed)
{
    fs_fixture_object(&fx, "f", "text", 4);
    shared->release = true;
    takeover_run(work_pass_a_reader, true);
    ck_assert(!backing_is_closed(1));
    takeover_open(true);
    start_swept();
    ck_assert(backing_is_closed(1));
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
    ck_assert(!backing_is_closed(1));
    ck_assert(backing_is_closed(2));
    ck_assert_int_eq(shared->last_id, 3);
    ck_assert(backing_is_closed(3));
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

/* A store through a mapping leaves the time of a file in memory as it is. */
START_TEST(file_in_memory_is_never_said_to_be_left_alone)
{
    struct fuse_file_info read = {.flags = O_RDONLY}, fi = {.flags = O_RDWR};
    struct stat st;
    in_memory = true;
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_open(true);
    struct handle *r = takeover_open_file("f", &read);
    g_usleep(50000);
    struct handle *w = takeover_open_file("f", &fi);
    ck_assert_int_eq(fi.backing_id, 1);
    int fd = open_passed();
    ck_assert_int_eq(fstat(fd, &st), 0);
    put_text(fd, "TEXT", 0);
    ck_assert_int_eq(futimens(fd, (struct timespec[]){st.st_atim, st.st_mtim}), 0);
    close(fd);
    takeover_flush(w);
    takeover_release(w);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_SEALED);
    takeover_release(r);
    takeover_wait();
    takeover_assert_object("f", "TEXT");
}
END_TEST

/* Whatever the worker before thought. */
START_TEST(nor_where_the_worker_before_would_say_so)
{
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_open_clean, true);
    int fd = open_passed();
    put_unseen(fd, "TEXT");
    close(fd);
    in_memory = true;
    takeover_open(true);
    struct handle *h = takeover_handle(shared->fh);
    takeover_flush(h);
    takeover_release(h);
    ck_assert_uint_eq(takeover_content("f"), CONTENT_SEALED);
    takeover_wait();
    takeover_assert_object("f", "TEXT");
}
END_TEST

static void setup(void)
{
    in_memory = false;
    takeover_setup();
}

int main(void)
{
    Suite *s = suite_create("takeover_pass");
    TCase *tc = tcase_create("takeover_pass");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, takeover_teardown);
    tcase_add_test(tc, what_the_kernel_wrote_is_known_and_its_id_is_kept);
    tcase_add_test(tc, file_that_the_kernel_still_writes_is_not_sealed);
    tcase_add_test(tc, what_was_synced_stays_so_when_the_kernels_writing_ends);
    tcase_add_test(tc, what_was_written_after_a_sync_is_not);
    tcase_add_test(tc, who_writes_with_o_dsync_sends_us_its_writes);
    tcase_add_test(tc, mapping_that_outlives_its_handle_and_the_worker_is_waited_for);
    tcase_add_loop_test(tc, intent_waits_for_the_end_of_writing_past_us, 0, 2);
    tcase_add_test(tc, mapping_that_outlives_the_worker_may_change_what_was_closed_beside_an_appender);
    tcase_add_test(tc, snapshot_that_waits_for_the_store_keeps_no_other_file_unsealed);
    tcase_add_test(tc, snapshot_is_left_out_when_the_file_was_opened_again_for_writing);
    tcase_add_test(tc, store_behind_a_published_snapshot_is_published);
    tcase_add_test(tc, closed_file_that_was_written_on_is_published_whole);
    tcase_add_test(tc, start_that_fails_leaves_a_writer_as_it_was);
    tcase_add_test(tc, start_that_fails_leaves_a_file_that_it_could_not_open);
    tcase_add_test(tc, start_that_fails_leaves_a_mapping_as_it_was);
    tcase_add_test(tc, reader_keeps_its_id);
    tcase_add_loop_test(tc, what_a_reader_has_is_made_whole_for_who_opens_it_too, 0, 2);
    tcase_add_test(tc, id_that_no_handle_uses_is_closed);
    tcase_add_test(tc, id_that_nobody_knows_of_is_closed);
    tcase_add_test(tc, clean_file_left_alone_is_clean_again);
    tcase_add_test(tc, file_in_memory_is_never_said_to_be_left_alone);
    tcase_add_test(tc, nor_where_the_worker_before_would_say_so);
    tcase_add_loop_test(tc, clean_file_written_since_is_published, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
