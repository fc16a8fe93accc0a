/* Opens and releases that are answered from memory, and all that ends what they rest on. Backing ids are made up here. */
#include "backing_stub.h"
#include "cache/cache.h"
#include "cache/cache_scan.h"
#include "fs/content.h"
#include "fs/io_mode.h"
#include "fs/kept_open.h"
#include "fs/tree.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct inode *in;
static atomic_uint n_data_syncs; /* of data files */

/* Takes the place of the C library's for the whole program. */
int fdatasync(int fd)
{
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd), *path = g_file_read_link(link, NULL);
    if (path && strstr(path, "/data/"))
        atomic_fetch_add(&n_data_syncs, 1);
    return (int)syscall(SYS_fdatasync, fd);
}

static void read_once(const char *name)
{
    struct fuse_file_info fi = {.flags = O_RDONLY};
    takeover_release(takeover_open_file(name, &fi));
    ck_assert_int_gt(fi.backing_id, 0);
}

/* The evictor looks at open files now and then, and has a reference meanwhile. */
static bool closes(struct inode *node)
{
    bool yes = kept_release(node);
    for (unsigned tries = 0; !yes && tries < 100; tries++) {
        g_usleep(10000);
        yes = kept_release(node);
    }
    return yes;
}

static bool rests(struct inode *node)
{
    struct fuse_file_info fi = {.flags = O_RDONLY};
    bool yes = kept_open(node, &fi);
    ck_assert(!yes || closes(node));
    return yes;
}

/* A file that was read and closed. */
static void setup(void)
{
    takeover_setup();
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_open(true);
    in = fs_fixture_inode(&fx, "f"); /* as the kernel's lookup keeps it */
    read_once("f");
    EVENTUALLY(rests(in));
}

static void teardown(void)
{
    inode_put(in);
    takeover_teardown();
}

static uint64_t vid(void)
{
    mutex_lock(&in->mu);
    uint64_t id = in->rec.vid;
    mutex_unlock(&in->mu);
    return id;
}

static bool opens(void)
{
    struct fuse_file_info fi = {.flags = O_RDONLY, .keep_cache = 1, .direct_io = 1};
    bool yes = kept_open(in, &fi);
    ck_assert(!yes || (fi.backing_id == 1 && fi.noflush && !fi.keep_cache && !fi.direct_io));
    return yes;
}

static void remove_data_file(void)
{
    g_autofree char *path =
        g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir, (unsigned)(vid() & 0xff), vid());
    ck_assert_int_eq(unlink(path), 0);
}

START_TEST(file_that_was_read_is_opened_and_released_from_memory)
{
    int64_t hits = metric_get(M_hit_bytes);
    remove_data_file(); /* it is not looked at */
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(opens());
        ck_assert_str_eq(io_mode_name(in), "passthrough");
        ck_assert(closes(in));
        ck_assert_str_eq(io_mode_name(in), "closed");
    }
    ck_assert_int_eq(metric_get(M_hit_bytes) - hits, 12);
    ck_assert_int_eq(shared->last_id, 1);
    ck_assert(!backing_is_closed(1));
}
END_TEST

START_TEST(open_file_is_not_evicted_and_a_closed_one_is_with_its_id)
{
    ck_assert(opens());
    ck_assert(opens());
    ck_assert_int_eq(cache_evict(fx.fs->cache, vid()), -EBUSY);
    ck_assert(closes(in));
    ck_assert_int_eq(cache_evict(fx.fs->cache, vid()), -EBUSY);
    ck_assert(!backing_is_closed(1));
    ck_assert(closes(in));
    ck_assert_int_eq(cache_evict(fx.fs->cache, vid()), 0);
    ck_assert(backing_is_closed(1));
    ck_assert(!opens());
    read_once("f");
    ck_assert_int_eq(shared->last_id, 2);
}
END_TEST

START_TEST(beside_another_reader_it_is_released_in_any_order)
{
    struct fuse_file_info fi = {.flags = O_RDONLY};
    struct handle *h = takeover_open_file("f", &fi);
    ck_assert(opens());
    if (_i == 0) {
        ck_assert(closes(in));
        takeover_release(h);
    } else {
        takeover_release(h);
        ck_assert(!kept_release(in)); /* opened the long way, it has a descriptor to be closed */
        ck_assert(opens());           /* which comes before that is done */
        ck_assert(closes(in));
        io_mode_leave(in, false, false);
        content_release(in, false);
    }
    EVENTUALLY(rests(in));
}
END_TEST

START_TEST(file_of_a_writer_is_not_for_it)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    struct handle *h = takeover_open_file("f", &fi);
    ck_assert(!opens());
    ck_assert(!kept_release(in));
    takeover_write(h, "news", 0);
    takeover_flush(h);
    takeover_release(h);
    ck_assert(!opens()); /* not published yet */
}
END_TEST

START_TEST(writer_beside_a_reader_of_it)
{
    struct fuse_file_info fi = {.flags = O_RDWR};
    ck_assert(opens());
    struct handle *h = takeover_open_file("f", &fi);
    ck_assert_int_eq(fi.backing_id, 1);
    ck_assert(!kept_release(in));
    io_mode_leave(in, false, false);
    content_release(in, false);
    takeover_release(h);
}
END_TEST

/* It counts as on the disk since an fsync, which what was fetched after that is not; from here on it needs no object. */
START_TEST(bytes_are_on_the_disk_before_a_writer_beside_a_reader_lets_go_of_their_source)
{
    struct fuse_file_info changes = {.flags = O_RDWR}, reads = {.flags = O_RDONLY}, writes = {.flags = O_RDWR};
    struct handle *h = takeover_open_file("f", &changes);
    takeover_write(h, "n", 0);
    takeover_flush(h);
    ck_assert_int_eq(content_sync(h->in), 0);
    takeover_release(h);
    struct handle *reader = takeover_open_file("f", &reads);
    ck_assert_int_gt(reads.backing_id, 0);
    ck_assert(cache_file_has_source(in->cf));
    ck_assert(in->rec.flags & INODE_DATA_SYNCED);
    atomic_store(&n_data_syncs, 0);
    h = takeover_open_file("f", &writes);
    ck_assert_int_gt(writes.backing_id, 0);
    ck_assert_uint_gt(atomic_load(&n_data_syncs), 0);
    ck_assert(!cache_file_has_source(in->cf));
    takeover_release(h);
    takeover_release(reader);
}
END_TEST

START_TEST(truncated_file_is_not_the_one_that_rested)
{
    ck_assert_int_eq(content_open(in, true, true), 0);
    content_release(in, true);
    ck_assert(!opens());
}
END_TEST

START_TEST(removed_file_leaves_nothing)
{
    uint64_t id = vid();
    struct cache_scanned file;
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    ck_assert(!opens());
    inode_put(in);
    in = NULL;
    EVENTUALLY(backing_is_closed(1));
    EVENTUALLY(cache_scan_file(fx.cache_dir, id, &file) == -ENOENT);
}
END_TEST

START_TEST(removed_while_it_is_open)
{
    ck_assert(opens());
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    ck_assert(!kept_release(in));
    io_mode_leave(in, false, false);
    content_release(in, false);
    inode_put(in);
    in = NULL;
    EVENTUALLY(backing_is_closed(1));
}
END_TEST

START_TEST(held_gate_is_not_waited_for)
{
    content_gate_enter(in);
    ck_assert(!opens());
    content_gate_leave(in);
    ck_assert(opens());
    content_gate_enter(in);
    ck_assert(!kept_release(in));
    content_gate_leave(in);
    ck_assert(closes(in));
}
END_TEST

static void *open_here(void *ret)
{
    *(bool *)ret = opens();
    return NULL;
}

/* Who loads an inode has its lock for as long as the database takes. */
START_TEST(inode_that_is_being_loaded_is_not_waited_for)
{
    pthread_t reader;
    bool yes = true;
    mutex_lock(&in->mu);
    __atomic_store_n(&in->loaded, false, __ATOMIC_RELEASE);
    ck_assert_int_eq(thread_start(&reader, "reader", open_here, &yes), 0);
    (void)pthread_join(reader, NULL);
    __atomic_store_n(&in->loaded, true, __ATOMIC_RELEASE);
    mutex_unlock(&in->mu);
    ck_assert(!yes);
    ck_assert(opens());
    ck_assert(closes(in));
}
END_TEST

START_TEST(file_in_use_by_others_is_released_the_long_way)
{
    struct cfile *cf = NULL;
    ck_assert(opens());
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert(!kept_release(in));
    content_unuse(in, cf);
    ck_assert(closes(in));
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert(!opens());
    content_unuse(in, cf);
}
END_TEST

/* ---- a worker dies ---- */

static void work_open(void)
{
    struct inode *node = fs_fixture_inode(&fx, "f");
    read_once("f");
    EVENTUALLY(rests(node));
    struct fuse_file_info fi = {.flags = O_RDONLY};
    const struct sess_handle what = {.ino = node->ino, .tid = 1};
    struct handle *h = NULL;
    ck_assert_int_eq(handle_new(fx.fs, node, &what, &h), 0);
    ck_assert(kept_open(node, &fi));
    handle_opened(fx.fs, h->fh);
    shared->fh = h->fh;
    if (!shared->release)
        return;
    handle_releasing(fx.fs, h->fh);
    ck_assert(closes(node));
    handle_free(fx.fs, h->fh);
}

static void start_swept(void)
{
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 1000 && atomic_load(&fx.session->head->id_low) < shared->last_id; i++)
        g_usleep(10000);
}

/* _i: 1 after its release. */
START_TEST(next_worker_knows_what_is_open)
{
    shared->release = _i;
    fs_fixture_object(&fx, "f", "text", 4);
    takeover_run(work_open, true);
    takeover_open(true);
    start_swept();
    ck_assert(backing_is_closed(1) == (_i == 1));
    if (_i == 0) {
        struct handle *h = takeover_handle(shared->fh);
        ck_assert_int_eq(cache_evict(fx.fs->cache, h->in->rec.vid), -EBUSY);
        takeover_release(h);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kept_open");
    TCase *tc = tcase_create("open");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, file_that_was_read_is_opened_and_released_from_memory);
    tcase_add_test(tc, open_file_is_not_evicted_and_a_closed_one_is_with_its_id);
    tcase_add_loop_test(tc, beside_another_reader_it_is_released_in_any_order, 0, 2);
    tcase_add_test(tc, file_of_a_writer_is_not_for_it);
    tcase_add_test(tc, writer_beside_a_reader_of_it);
    tcase_add_test(tc, bytes_are_on_the_disk_before_a_writer_beside_a_reader_lets_go_of_their_source);
    tcase_add_test(tc, truncated_file_is_not_the_one_that_rested);
    tcase_add_test(tc, removed_file_leaves_nothing);
    tcase_add_test(tc, removed_while_it_is_open);
    tcase_add_test(tc, held_gate_is_not_waited_for);
    tcase_add_test(tc, inode_that_is_being_loaded_is_not_waited_for);
    tcase_add_test(tc, file_in_use_by_others_is_released_the_long_way);
    suite_add_tcase(suite, tc);
    TCase *kill = tcase_create("kill");
    tcase_set_timeout(kill, 60);
    tcase_add_checked_fixture(kill, takeover_setup, takeover_teardown);
    tcase_add_loop_test(kill, next_worker_knows_what_is_open, 0, 2);
    suite_add_tcase(suite, kill);
    return run_suite(suite);
}
