/* What flushes and seals of open files store, beside writes in flight and when the database fails. Without FUSE: the tests do what the operations do. */
#include "cache/cache_file.h"
#include "fs/content.h"
#include "fs/content_record.h"
#include "fs/mapped.h"
#include "fs/op.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

/* Never let go: the inode belongs to the table, which is taken down with it. */
static struct inode *begin(const char *name, const char *text)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, text, strlen(text), 0);
    return in;
}

static struct meta_inode stored(struct inode *in)
{
    struct meta_inode rec = {0};
    ck_assert_int_eq(meta_inode_get(fx.fs->meta, in->ino, &rec), 0);
    meta_inode_clear(&rec); /* its numbers stay */
    return rec;
}

static void *flush(void *in)
{
    ck_assert_int_eq(content_flush(in, false), 0);
    mapped_flushed(in);
    return NULL;
}

static void *sync_file(void *in)
{
    ck_assert_int_eq(content_sync(in), 0);
    return NULL;
}

static bool synced_once(struct inode *in)
{
    mutex_lock(&in->mu);
    bool synced = in->synced_changes > 0;
    mutex_unlock(&in->mu);
    return synced;
}

struct holder {
    atomic_int stage; /* 1: held, 2: to be let go */
};

static void *hold_ns(void *arg)
{
    struct holder *h = arg;
    mutex_lock(&fx.fs->ns);
    atomic_store(&h->stage, 1);
    while (atomic_load(&h->stage) != 2)
        g_usleep(1000);
    mutex_unlock(&fx.fs->ns);
    return NULL;
}

START_TEST(size_of_a_write_beside_a_flush_is_kept)
{
    struct inode *in = begin("f", "0123");
    struct holder h = {0};
    pthread_t holder, flusher;
    ck_assert_int_eq(pthread_create(&holder, NULL, hold_ns, &h), 0);
    while (atomic_load(&h.stage) != 1)
        g_usleep(1000);
    ck_assert_int_eq(pthread_create(&flusher, NULL, flush, in), 0);
    g_usleep(50000); /* the flush has looked at the file and waits for its turn to store */
    fs_fixture_pwrite(in, "4567", 4, 4);
    atomic_store(&h.stage, 2);
    (void)pthread_join(holder, NULL);
    (void)pthread_join(flusher, NULL);
    ck_assert_uint_eq(in->rec.size, 8);
    ck_assert_uint_eq(stored(in).size, 8);
}
END_TEST

/* An open with O_TRUNC holds up no writer: the bytes went in before it, and are noted after it. */
START_TEST(size_of_a_file_that_is_cut_beside_a_write_is_what_is_there)
{
    struct inode *in = begin("f", "0123");
    ck_assert_int_eq(cache_file_write(in->cf, "4567", 4, 4), 4);
    ck_assert_int_eq(content_truncate(in, 0), 0);
    content_note_write(in);
    ck_assert_uint_eq(in->rec.size, 0);
    ck_assert_int_eq(cache_file_write(in->cf, "89", 2, 4), 2);
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(content_truncate(in, 5), 0);
    ck_assert_uint_eq(in->rec.size, cache_file_size(in->cf));
}
END_TEST

START_TEST(write_that_ends_after_another_close_is_flushed_by_its_own)
{
    struct inode *in = begin("f", "0123");
    ck_assert_int_eq(content_flush(in, false), 0);
    fs_fixture_pwrite(in, "4567", 4, 4); /* begun before that close */
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_uint_eq(stored(in).size, 8);
    fs_fixture_close(&fx); /* as a kill would */
    fs_fixture_open(&fx);
    INODE_REF again = fs_fixture_inode(&fx, "f");
    ck_assert_uint_eq(again->rec.content, CONTENT_SEALED);
}
END_TEST

START_TEST(sync_beside_a_writer_keeps_an_open_file)
{
    struct inode *in = begin("f", "0123");
    struct holder h = {0};
    pthread_t holder, syncer;
    ck_assert_int_eq(pthread_create(&holder, NULL, hold_ns, &h), 0);
    while (atomic_load(&h.stage) != 1)
        g_usleep(1000);
    ck_assert_int_eq(pthread_create(&syncer, NULL, sync_file, in), 0);
    while (!synced_once(in))
        g_usleep(1000);
    fs_fixture_pwrite(in, "4567", 4, 4);
    atomic_store(&h.stage, 2);
    (void)pthread_join(holder, NULL);
    (void)pthread_join(syncer, NULL);
    ck_assert(stored(in).flags & INODE_DATA_SYNCED); /* nobody has closed it: what was synced is to survive */
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert(!(stored(in).flags & INODE_DATA_SYNCED)); /* now that would say all of it was */
}
END_TEST

static void kernel_writes(struct inode *in, const char *text)
{
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", cache_file_fd(in->cf));
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(close(fd), 0);
}

static uint32_t state_of(struct inode *in)
{
    mutex_lock(&in->mu);
    uint32_t state = in->rec.content;
    mutex_unlock(&in->mu);
    return state;
}

START_TEST(watched_file_is_opened_again_by_what_no_flush_stored)
{
    struct inode *in = begin("f", "0123");
    pthread_t flusher;
    ck_assert_int_eq(cache_file_set_passthrough(in->cf, CACHE_PASS_WRITE), 0);
    mutex_lock(&in->mu);
    in->io.kernel_writes = true;
    in->io.n_writers = in->io.n_handles = 1;
    mutex_unlock(&in->mu);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_gate_enter(in);
    kernel_writes(in, "4567");
    ck_assert_int_eq(pthread_create(&flusher, NULL, flush, in), 0); /* in the queue before the watcher */
    g_usleep(50000);
    fs_fixture_start(&fx);
    mapped_flushed(in);
    g_usleep(1500000); /* the watcher has seen the write, or waits for the gate */
    content_gate_leave(in);
    (void)pthread_join(flusher, NULL);
    g_usleep(100000);
    ck_assert_uint_eq(stored(in).size, 8);
    ck_assert_uint_eq(state_of(in), CONTENT_CLOSING);
    kernel_writes(in, "89");
    while (state_of(in) != CONTENT_OPEN)
        g_usleep(10000);
    mutex_lock(&in->mu);
    in->io.n_writers = in->io.n_handles = 0;
    mutex_unlock(&in->mu);
    content_release(in, true);
}
END_TEST

START_TEST(truncated_file_has_the_time_of_its_truncation)
{
    struct inode *in = begin("f", "text");
    struct stat st = {.st_mtim = {.tv_sec = 1234567890}};
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MTIME), 0);
    ck_assert(in->rec.flags & INODE_MTIME_SET);
    ck_assert_int_eq(content_truncate(in, 2), 0);
    ck_assert(!(in->rec.flags & INODE_MTIME_SET));
}
END_TEST

START_TEST(write_fails_with_the_database)
{
    struct inode *in = begin("f", "text");
    ck_assert_int_eq(content_flush(in, false), 0);
    fs_fixture_break_database(&fx);
    ck_assert_int_lt(content_begin_change(in), 0);
    ck_assert_int_lt(content_begin_change(in), 0); /* also the next one */
    ck_assert_uint_eq(in->rec.content, CONTENT_CLOSING);
}
END_TEST

START_TEST(close_fails_with_the_database)
{
    struct inode *in = begin("f", "text");
    fs_fixture_break_database(&fx);
    ck_assert_int_lt(content_flush(in, false), 0);
    ck_assert_int_lt(content_flush(in, false), 0); /* also the next one */
    ck_assert_uint_eq(in->rec.content, CONTENT_OPEN);
    content_release(in, true);
    ck_assert_uint_eq(in->rec.content, CONTENT_OPEN);
}
END_TEST

START_TEST(attributes_stay_when_the_database_fails)
{
    struct inode *in = begin("f", "text");
    struct stat st = {.st_mode = 0600, .st_uid = 7};
    fs_fixture_break_database(&fx);
    ck_assert_int_lt(attr_store(in, &st, FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID), 0);
    ck_assert_uint_eq(in->rec.mode, S_IFREG | 0644);
    ck_assert_uint_ne(in->rec.uid, 7);
}
END_TEST

static unsigned n_queued(void)
{
    struct publish_counts c;
    publish_count(fx.fs->pub, "", &c);
    return (unsigned)c.ops;
}

START_TEST(attributes_that_are_the_same_go_nowhere)
{
    fs_fixture_object(&fx, "f", "text", 4);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    struct stat st = {.st_mode = in->rec.mode, .st_uid = in->rec.uid, .st_gid = in->rec.gid};
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID), 0);
    ck_assert_uint_eq(n_queued(), 0);
    st.st_mode = 0600;
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), 0);
    ck_assert_uint_eq(n_queued(), 1);
}
END_TEST

START_TEST(file_named_after_its_close_is_published)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .mode = S_IFREG | 0644};
    INODE_REF in = NULL;
    INODE_REF named = NULL;
    ck_assert_int_eq(tree_tmpfile(fx.fs, &spec, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    if (_i)
        ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    ck_assert_int_eq(tree_link(fx.fs, in->ino, META_ROOT_INO, "f", &named), 0);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert_uint_eq(in->rec.content, CONTENT_CLEAN);
    ck_assert(fs_fixture_object_exists(&fx, "f"));
}
END_TEST

/* Though its record stays until the disk knows that it is gone. */
START_TEST(published_file_that_was_evicted_is_not_here)
{
    struct meta_cached c;
    int r = -1;
    struct inode *in = begin("f", "text");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    ck_assert(content_is_here(in));
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    EVENTUALLY(r == 0 || (r = cache_evict(fx.fs->cache, in->rec.vid)) == 0);
    ck_assert_int_eq(meta_cached_get(fx.fs->meta, in->rec.vid, &c), 0);
    ck_assert(!content_is_here(in));
}
END_TEST

/* Nor can what is right be had. */
START_TEST(file_of_which_wrong_bytes_came_can_be_cut_to_nothing)
{
    fs_fixture_object(&fx, "f", "text", 4);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    mutex_lock(&in->cf->mu);
    in->cf->unchecked = true;
    in->cf->n_bad = 1;
    mutex_unlock(&in->cf->mu);
    g_autofree char *object = g_build_filename(fx.lake, "f", NULL);
    ck_assert_int_eq(unlink(object), 0);
    ck_assert_int_eq(content_truncate(in, 0), 0);
    fs_fixture_pwrite(in, "good", 4, 0);
    content_abandon(in, true);
}
END_TEST

/* As it is when two files change places. */
START_TEST(closed_file_that_lost_its_source_is_whole_after_a_kill)
{
    fs_fixture_object(&fx, "f", "text", 4);
    struct inode *in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    content_release(in, true);
    usleep(50000); /* of another time than the object */
    ck_assert_int_eq(content_detach(in, false), 0);
    ck_assert_ptr_null(in->rec.base_key);
    content_abandon(in, true);
    inode_put(in);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    in = fs_fixture_inode(&fx, "f");
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
    inode_put(in);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "f", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}
END_TEST

START_TEST(closed_file_is_never_open_while_it_loses_its_source)
{
    fs_fixture_object(&fx, "f", "text", 4);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    uint64_t gen = in->rec.gen;
    ck_assert_int_eq(content_detach(in, false), 0);
    ck_assert_uint_eq(in->rec.content, CONTENT_CLOSING);
    ck_assert_uint_eq(in->rec.gen, gen + 1);
    ck_assert_ptr_null(in->rec.base_key);
    content_end_detach(in);
    ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
}
END_TEST

struct watch {
    struct inode *in;
    atomic_bool stop;
    unsigned n_open, n_looks;
};

static void *watch_record(void *arg)
{
    struct watch *w = arg;
    do { /* once at least, however busy the machine is */
        w->n_open += stored(w->in).content == CONTENT_OPEN;
        w->n_looks++;
    } while (!atomic_load(&w->stop));
    return NULL;
}

/* As names that change places are. Nobody has it open, so nobody would close it again if we were killed. */
START_TEST(closed_file_stays_closed_while_it_is_made_independent_of_the_store)
{
    fs_fixture_write(&fx, "f", "text", 4);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    struct watch w = {.in = in};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, watch_record, &w), 0);
    uint64_t gen = in->rec.gen;
    for (unsigned i = 0; i < 300; i++) {
        ck_assert_int_eq(content_detach(in, false), 0);
        ck_assert_uint_eq(in->rec.content, CONTENT_CLOSING);
        content_end_detach(in);
        ck_assert_uint_eq(in->rec.content, CONTENT_SEALED);
    }
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(in->rec.gen, gen + 300);
    ck_assert_uint_gt(w.n_looks, 0);
    ck_assert_uint_eq(w.n_open, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("content");
    TCase *t = tcase_create("states");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, size_of_a_write_beside_a_flush_is_kept);
    tcase_add_test(t, size_of_a_file_that_is_cut_beside_a_write_is_what_is_there);
    tcase_add_test(t, write_that_ends_after_another_close_is_flushed_by_its_own);
    tcase_add_test(t, write_fails_with_the_database);
    tcase_add_test(t, close_fails_with_the_database);
    tcase_add_test(t, attributes_stay_when_the_database_fails);
    tcase_add_test(t, attributes_that_are_the_same_go_nowhere);
    tcase_add_test(t, published_file_that_was_evicted_is_not_here);
    tcase_add_loop_test(t, file_named_after_its_close_is_published, 0, 2);
    tcase_add_test(t, sync_beside_a_writer_keeps_an_open_file);
    tcase_add_test(t, watched_file_is_opened_again_by_what_no_flush_stored);
    tcase_add_test(t, truncated_file_has_the_time_of_its_truncation);
    tcase_add_test(t, file_of_which_wrong_bytes_came_can_be_cut_to_nothing);
    tcase_add_test(t, closed_file_that_lost_its_source_is_whole_after_a_kill);
    tcase_add_test(t, closed_file_is_never_open_while_it_loses_its_source);
    tcase_add_test(t, closed_file_stays_closed_while_it_is_made_independent_of_the_store);
    suite_add_tcase(s, t);
    return run_suite(s);
}
