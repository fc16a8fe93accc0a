/* What must be on the disk before something that a power loss does not take back: the first byte of a change, an object that appears or goes. */
#include "../../s3/objstore_driver.h"
#include "cache/cache_internal.h"
#include "fs/content.h"
#include "fs/durable.h"
#include "fs/links.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fs_fixture fx;

/* ---- how much of the database's log is on the disk; what happens to the lake ---- */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* TSan does not see GLib's */
static gsize synced;                                   /* bytes of the log */
static unsigned n_visible;                             /* objects that appeared or went */
static bool behind; /* one did by a thread that had not synced the log since it wrote there, or since its last one */
static gsize synced_at_removal; /* of a data file */
static _Atomic bool sync_fails; /* of the log */
static _Atomic bool data_sync_fails;
static atomic_uint n_data_syncs;
static atomic_uint n_beside;    /* of them by a thread of their own */
static _Atomic bool sync_waits; /* until that is false again */

/* Of a thread, as others write records meanwhile that have nothing to do with its step. */
static _Thread_local gsize own_end;   /* of its last record in the log */
static _Thread_local bool has_synced; /* the log, after that record */

static gsize log_size(void)
{
    g_autofree char *dir = g_build_filename(fx.cache_dir, "meta", NULL);
    g_autoptr(GDir) d = g_dir_open(dir, 0, NULL);
    struct stat st = {0};
    for (const char *name; d && (name = g_dir_read_name(d));) {
        g_autofree char *path = g_build_filename(dir, name, NULL);
        if (g_str_has_suffix(name, ".log") && stat(path, &st) == 0 && st.st_size > 0)
            return (gsize)st.st_size;
    }
    return 0;
}

static gsize size_synced(void)
{
    pthread_mutex_lock(&mu);
    gsize size = synced;
    pthread_mutex_unlock(&mu);
    return size;
}

static bool log_is_synced(void)
{
    return size_synced() >= own_end;
}

static bool is_data(int fd)
{
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd), *path = g_file_read_link(link, NULL);
    return path && strstr(path, "/data/");
}

static bool is_log(int fd, gsize *ret_size)
{
    struct stat st;
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd), *path = g_file_read_link(link, NULL);
    if (!path || !g_str_has_suffix(path, ".log") || fstat(fd, &st) < 0)
        return false;
    *ret_size = (gsize)st.st_size;
    return true;
}

/* These take the place of the C library's for the whole program. */
ssize_t write(int fd, const void *buf, size_t n)
{
    gsize size;
    ssize_t done = syscall(SYS_write, fd, buf, n);
    int err = errno;
    if (done > 0 && is_log(fd, &size)) {
        own_end = size;
        has_synced = false;
    }
    errno = err;
    return done;
}

int fdatasync(int fd)
{
    gsize size;
    if (is_log(fd, &size)) {
        if (atomic_load(&sync_fails)) {
            errno = EIO;
            return -1;
        }
        while (atomic_load(&sync_waits))
            g_usleep(1000);
        pthread_mutex_lock(&mu);
        synced = size;
        pthread_mutex_unlock(&mu);
        has_synced = true;
    } else if (is_data(fd) && atomic_load(&data_sync_fails)) {
        errno = EIO;
        return -1;
    } else if (is_data(fd)) {
        char name[16] = "";
        (void)pthread_getname_np(pthread_self(), name, sizeof(name)); /* it has one */
        atomic_fetch_add(&n_data_syncs, 1);
        atomic_fetch_add(&n_beside, strcmp(name, "sync") == 0);
    }
    return (int)syscall(SYS_fdatasync, fd);
}

static void note_visible(const char *key)
{
    if (!fx.cache_dir)
        return;
    pthread_mutex_lock(&mu);
    n_visible++;
    behind |= !has_synced;
    pthread_mutex_unlock(&mu);
    has_synced = false;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    if (g_str_has_prefix(to, "object"))
        note_visible(to);
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int unlinkat(int fd, const char *name, int flags)
{
    if (g_str_has_prefix(name, "object"))
        note_visible(name);
    pthread_mutex_lock(&mu);
    if (strchr(name, '/') && name[0] != '.' && !(flags & AT_REMOVEDIR))
        synced_at_removal = synced;
    pthread_mutex_unlock(&mu);
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

static void setup(void)
{
    synced = own_end = 0; /* of another test, when all run in one process */
    atomic_store(&sync_fails, false);
    atomic_store(&data_sync_fails, false);
    atomic_store(&sync_waits, false);
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    n_visible = 0;
    behind = false;
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void publish_all(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void close_changed(struct inode *in)
{
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

/* Else the old record would call the new bytes, or some of them, the object's. */
START_TEST(change_of_a_published_file_is_known_on_the_disk_first)
{
    fs_fixture_write(&fx, "object", "text", 4);
    publish_all();
    INODE_REF in = fs_fixture_inode(&fx, "object");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert(log_is_synced());
    close_changed(in);
}
END_TEST

/* Else the old record would have them published. */
START_TEST(change_of_a_synced_file_is_known_on_the_disk_first)
{
    fs_fixture_close(&fx); /* its publisher */
    fs_fixture_open(&fx);
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "object", .mode = S_IFREG | 0644};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    ck_assert_int_eq(content_sync(in), 0);
    close_changed(in);
    ck_assert(!log_is_synced());
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert(log_is_synced());
    close_changed(in);
}
END_TEST

static atomic_int stage; /* 1: fs.ns is held, 2: it may be let go */

/* As a sync that has brought the bytes to the disk, and waits for its turn to say so. */
static void *say_synced(void *arg)
{
    struct inode *in = arg;
    mutex_lock(&fx.fs->ns);
    atomic_store(&stage, 1);
    while (atomic_load(&stage) != 2)
        g_usleep(1000);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&in->mu);
    in->rec.flags |= INODE_DATA_SYNCED;
    meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    ck_assert_int_eq(meta_commit(b, false), 0);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
    return NULL;
}

static void *change(void *in)
{
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert(log_is_synced());
    return NULL;
}

START_TEST(so_is_one_of_a_file_whose_sync_ends_meanwhile)
{
    pthread_t syncer, changer;
    fs_fixture_close(&fx); /* its publisher */
    fs_fixture_open(&fx);
    atomic_store(&stage, 0);
    fs_fixture_write(&fx, "object", "text", 4);
    INODE_REF in = fs_fixture_inode(&fx, "object");
    ck_assert(!(in->rec.flags & INODE_DATA_SYNCED));
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(pthread_create(&syncer, NULL, say_synced, in), 0);
    while (atomic_load(&stage) != 1)
        g_usleep(1000);
    ck_assert_int_eq(pthread_create(&changer, NULL, change, in), 0);
    g_usleep(100000); /* it has looked at the record, and waits as well */
    atomic_store(&stage, 2);
    (void)pthread_join(syncer, NULL);
    (void)pthread_join(changer, NULL);
    close_changed(in);
}
END_TEST

START_TEST(new_file_waits_for_no_disk)
{
    gsize before = size_synced();
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "object.tmp", .mode = S_IFREG | 0644};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    close_changed(in);
    ck_assert_int_eq(content_open(in, true, true), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    close_changed(in);
    ck_assert_uint_gt(own_end, 0);
    ck_assert_uint_eq(size_synced(), before);
}
END_TEST

START_TEST(journal_is_on_the_disk_before_objects_appear_or_go)
{
    fs_fixture_write(&fx, "object", "text", 4);
    publish_all();
    ck_assert_uint_eq(n_visible, 1);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "object", META_ROOT_INO, "object2", 0), 0); /* copied, deleted */
    publish_all();
    ck_assert_uint_eq(n_visible, 3);
    struct node_spec spec = {.parent = META_ROOT_INO, .name = "object3", .mode = S_IFLNK | 0777, .target = "object"};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    publish_all();
    ck_assert_uint_eq(n_visible, 4);
    INODE_REF used = NULL; /* or the log is synced for the end of its content as well */
    ck_assert_int_eq(tree_resolve(fx.fs, "object2", &used), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "object2"), 0);
    publish_all();
    ck_assert_uint_eq(n_visible, 5);
    ck_assert(!behind);
}
END_TEST

static struct inode *begin_large(const char *name)
{
    g_autofree char *data = g_strnfill(1 << 20, 'x');
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    for (uint64_t off = 0; off <= fx.cfg.part_size; off += 1 << 20)
        fs_fixture_pwrite(in, data, 1 << 20, off);
    return in;
}

/* Or whoever goes on with the upload takes an object that was made of its parts as they were then for one of what they are now. */
START_TEST(that_parts_are_joined_is_on_the_disk_before_they_are)
{
    INODE_REF in = begin_large("object");
    close_changed(in);
    publish_all();
    ck_assert_uint_eq(n_visible, 1);
    ck_assert(!behind);
}
END_TEST

static const struct objstore_driver *plain;
static struct objstore_driver by_parts; /* as plain, but for copies, which are as those of large objects */

static int copy_by_parts(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag)
{
    ck_assert_int_eq(copy->begun(copy->ctx, "an upload"), 0);
    ck_assert(has_synced);
    copy->completing(copy->ctx);
    return plain->copy(st, copy, ret_etag);
}

/* Before it holds anything: nobody else would abort it. When it may become the object: the next start must not abort it. */
START_TEST(upload_of_a_copy_is_known_and_forgotten_on_the_disk)
{
    fs_fixture_write(&fx, "object", "text", 4);
    publish_all();
    plain = fx.fs->store->drv;
    by_parts = *plain;
    by_parts.copy = copy_by_parts;
    fx.fs->store->drv = &by_parts;
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "object", META_ROOT_INO, "object2", 0), 0);
    publish_all();
    fx.fs->store->drv = plain;
    ck_assert_uint_eq(n_visible, 3);
    ck_assert(!behind);
}
END_TEST

static bool data_is_removed(void)
{
    pthread_mutex_lock(&mu);
    bool yes = synced_at_removal > 0;
    pthread_mutex_unlock(&mu);
    return yes;
}

/* Else a power loss in between brings a name back whose bytes are nowhere any more: rename over a file would lose both. */
START_TEST(bytes_that_are_only_here_go_after_their_name_is_off_the_disk)
{
    fs_fixture_write(&fx, "latest.tmp", "old", 3); /* a held name */
    fs_fixture_write(&fx, "new.tmp", "new", 3);
    synced_at_removal = 0;
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "new.tmp", META_ROOT_INO, "latest.tmp", 0), 0);
    for (unsigned i = 0; !data_is_removed() && i < 2000; i++)
        g_usleep(10000);
    ck_assert(data_is_removed());
    ck_assert_uint_gt(own_end, 0);
    ck_assert_uint_ge(synced_at_removal, own_end);
}
END_TEST

/* That it is published was not on the disk either, so a power loss would bring back a file that is only here, without its bytes. */
START_TEST(bytes_of_a_published_file_go_after_their_name_is_off_the_disk)
{
    fs_fixture_write(&fx, "object", "old", 3);
    publish_all();
    fs_fixture_write(&fx, "new.tmp", "new", 3);
    synced_at_removal = 0;
    atomic_store(&sync_waits, true);
    if (_i == 0)
        ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "object"), 0);
    else
        ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "new.tmp", META_ROOT_INO, "object", 0), 0);
    for (unsigned i = 0; !data_is_removed() && i < 30; i++)
        g_usleep(10000);
    ck_assert(!data_is_removed());
    atomic_store(&sync_waits, false);
    for (unsigned i = 0; !data_is_removed() && i < 2000; i++)
        g_usleep(10000);
    ck_assert(data_is_removed());
    ck_assert_uint_ge(synced_at_removal, own_end);
}
END_TEST

/* 0: open, and vouched for by an fsync; 1: closed a moment ago. The object may be replaced or deleted then, and what was fetched of it is nowhere else. */
START_TEST(bytes_are_on_the_disk_before_their_source_is_let_go_of)
{
    g_autofree char *data = g_strnfill(300000, 'x');
    fs_fixture_object(&fx, "object", data, 300000);
    INODE_REF in = fs_fixture_inode(&fx, "object");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    if (_i == 0)
        ck_assert_int_eq(content_sync(in), 0);
    else
        ck_assert_int_eq(content_flush(in, false), 0);
    atomic_store(&n_data_syncs, 0);
    ck_assert_int_eq(content_detach(in, _i == 0), 0);
    ck_assert_uint_gt(atomic_load(&n_data_syncs), 0);
    ck_assert(!cache_file_has_source(in->cf));
    ck_assert(in->rec.flags & INODE_DATA_SYNCED);
    content_end_detach(in);
    content_release(in, true);
}
END_TEST

/* 0: a snapshot; else its last stores through a mapping may be in no look at its times, and not in what was read. 1: of what is closed nobody waits for the disk. */
START_TEST(large_snapshot_is_on_the_disk_before_it_is_read)
{
    INODE_REF in = begin_large("object");
    atomic_store(&n_data_syncs, 0);
    atomic_store(&n_beside, 0);
    if (_i == 0)
        ck_assert_int_eq(content_flush(in, false), 0);
    if (_i == 0)
        ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 30 * NS_PER_S), 0);
    ck_assert_uint_eq(atomic_load(&n_beside), 0);
    ck_assert_uint_eq(atomic_load(&n_data_syncs) > 0, _i == 0);
    close_changed(in);
    publish_all();
    ck_assert(_i == 0 || atomic_load(&n_beside) > 0);
}
END_TEST

START_TEST(what_was_synced_is_not_synced_again)
{
    fs_fixture_write(&fx, "some.tmp", "text", 4);
    uint64_t written = meta_written(fx.fs->meta);
    gsize end = log_size();
    ck_assert_int_eq(meta_sync_from(fx.fs->meta, written), 0);
    gsize before = size_synced();
    ck_assert_uint_ge(before, end);
    fs_fixture_write(&fx, "more.tmp", "text", 4);
    ck_assert_int_eq(meta_sync_from(fx.fs->meta, written), 0); /* done before */
    ck_assert_uint_eq(size_synced(), before);
}
END_TEST

/* The name and the record went before it was tried. */
/* The folder is closed. */
static void lose_note(uint64_t vid)
{
    g_autofree char *path = g_build_filename(fx.cache_dir, "link", NULL), *text = NULL, *msg = NULL;
    struct meta *m = NULL;
    struct meta_cached rec;
    bool fresh;
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    text[strcspn(text, "\n")] = '\0';
    ck_assert_int_eq(meta_open(fx.cache_dir, text, &m, &fresh, &msg), 0);
    ck_assert_int_eq(meta_cached_get(m, vid, &rec), 0);
    ck_assert(rec.flags & CACHED_FAILED);
    rec.flags &= ~CACHED_FAILED;
    struct meta_batch *b = meta_batch_new(m);
    meta_cached_put(b, &rec);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
}

/* That a sync failed is noted, but the note may go with the power: what it was of counts as lost then, as all that was not synced. */
START_TEST(file_of_a_failed_sync_is_not_taken_for_whole_when_the_note_is_lost)
{
    fs_fixture_write(&fx, "one.tmp", "text", 4);
    struct inode *in = fs_fixture_inode(&fx, "one.tmp");
    atomic_store(&data_sync_fails, true);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_sync(in), -EIO);
    content_release(in, true);
    mutex_lock(&fx.fs->ns);
    mutex_lock(&in->mu);
    uint64_t vid = in->rec.vid;
    g_strlcpy(in->rec.boot_id, "another boot", sizeof(in->rec.boot_id));
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_inode_put(b, &in->rec);
    mutex_unlock(&in->mu);
    ck_assert_int_eq(meta_commit(b, false), 0);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
    inode_put(in);
    ck_assert_int_eq(durable_all(fx.fs, true, NULL, NULL), -EIO);
    fs_fixture_close(&fx);
    atomic_store(&data_sync_fails, false);
    lose_note(vid);
    fs_fixture_open(&fx);
    in = fs_fixture_inode(&fx, "one.tmp");
    ck_assert_uint_eq(in->rec.content, CONTENT_QUARANTINED);
    inode_put(in);
}
END_TEST

static void add_link(const char *at)
{
    g_autofree char *dir = g_build_filename(fx.dir, "one", NULL), *source = g_strconcat("file://", dir, NULL);
    g_autofree char *msg = NULL;
    json_t *none = json_object();
    ck_assert_int_eq(g_mkdir_with_parents(dir, 0700), 0);
    ck_assert_int_eq(links_add(fx.fs, source, at, none, &msg), 0);
    json_decref(none);
}

/* Or the next start goes on with the removal of which it was said that it was refused. */
START_TEST(a_link_that_is_not_removed_stays_after_a_power_loss)
{
    g_autofree char *msg = NULL;
    add_link("a");
    fs_fixture_write(&fx, "a/held.tmp", "text", 4);
    ck_assert_int_eq(links_remove(fx.fs, "a", NULL, NULL, &msg), -EBUSY);
    ck_assert_uint_gt(own_end, 0);
    ck_assert(log_is_synced());
}
END_TEST

START_TEST(a_link_goes_though_the_log_cannot_be_synced)
{
    g_autofree char *msg = NULL;
    add_link("a");
    atomic_store(&sync_fails, true);
    ck_assert_int_eq(links_remove(fx.fs, "a", NULL, NULL, &msg), 0);
    json_t *left = links_describe(fx.fs, NULL, false);
    ck_assert_uint_eq(json_array_size(left), 0);
    json_decref(left);
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, "a", &in), -ENOENT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("power");
    TCase *t = tcase_create("order");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, change_of_a_published_file_is_known_on_the_disk_first);
    tcase_add_test(t, change_of_a_synced_file_is_known_on_the_disk_first);
    tcase_add_test(t, so_is_one_of_a_file_whose_sync_ends_meanwhile);
    tcase_add_test(t, new_file_waits_for_no_disk);
    tcase_add_test(t, journal_is_on_the_disk_before_objects_appear_or_go);
    tcase_add_test(t, that_parts_are_joined_is_on_the_disk_before_they_are);
    tcase_add_test(t, upload_of_a_copy_is_known_and_forgotten_on_the_disk);
    tcase_add_test(t, bytes_that_are_only_here_go_after_their_name_is_off_the_disk);
    tcase_add_loop_test(t, bytes_of_a_published_file_go_after_their_name_is_off_the_disk, 0, 2);
    tcase_add_loop_test(t, bytes_are_on_the_disk_before_their_source_is_let_go_of, 0, 2);
    tcase_add_loop_test(t, large_snapshot_is_on_the_disk_before_it_is_read, 0, 2);
    tcase_add_test(t, what_was_synced_is_not_synced_again);
    tcase_add_test(t, file_of_a_failed_sync_is_not_taken_for_whole_when_the_note_is_lost);
    tcase_add_test(t, a_link_that_is_not_removed_stays_after_a_power_loss);
    tcase_add_test(t, a_link_goes_though_the_log_cannot_be_synced);
    suite_add_tcase(s, t);
    return run_suite(s);
}
