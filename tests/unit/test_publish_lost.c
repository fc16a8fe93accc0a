/* What was done in the store without our knowing or recording it, over a lake in a folder, without FUSE. */
#include "base/metric.h"
#include "fs/conflict.h"
#include "fs/content.h"
#include "fs/op.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PART (64u << 10)
#define SIZE (40u * PART)

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.part_size = PART;
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void open_and_start(void)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

/* The store's capabilities are asked for with the first change. */
static void first_change(void)
{
    fs_fixture_write(&fx, "first", "1", 1);
    all_published();
}

static char *bytes(void)
{
    char *b = g_malloc(SIZE);
    for (unsigned i = 0; i < SIZE; i++)
        b[i] = (char)((i * 2654435761u) >> 13);
    return b;
}

static void write_in(struct inode *in, char *model, unsigned off, const char *text)
{
    size_t len = strlen(text);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, text, len, off);
    memcpy(model + off, text, len);
}

static void assert_object(const char *key, const char *want, size_t len)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    gsize n = 0;
    ck_assert(g_file_get_contents(path, &data, &n, NULL));
    ck_assert_uint_eq(n, len);
    ck_assert_int_eq(memcmp(data, want, len), 0);
}

START_TEST(absent_bytes_of_a_published_snapshot_can_still_be_read)
{
    g_autofree char *model = bytes(), *got = g_malloc(SIZE);
    fs_fixture_object(&fx, "big", model, SIZE);
    open_and_start();
    INODE_REF in = fs_fixture_inode(&fx, "big");
    ck_assert_int_eq(content_open(in, true, false), 0);
    write_in(in, model, 5 * PART, "first");
    ck_assert_int_eq(content_flush(in, true), 0);
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), 0);
    assert_object("big", model, SIZE);
    ck_assert_uint_lt(cache_file_present_bytes(in->cf), SIZE / 2);
    ck_assert_int_eq(cache_file_read(in->cf, got, PART, 30 * PART), PART);
    ck_assert_int_eq(memcmp(got, model + 30 * PART, PART), 0);
    write_in(in, model, 20 * PART + 7, "second");
    content_release(in, true);
    all_published();
    assert_object("big", model, SIZE);
}
END_TEST

START_TEST(absent_bytes_of_a_file_removed_while_it_is_published_can_still_be_read)
{
    g_autofree char *model = bytes(), *got = g_malloc(SIZE);
    fs_fixture_object(&fx, "big", model, SIZE);
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "big");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_open(in, false, false), 0);
    write_in(in, model, 5 * PART, "first");
    fault("op=complete,action=delay:300ms;op=get,action=error:-EIO");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    while (!publish_has_note(fx.fs, "big"))
        g_usleep(1000);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "big"), 0); /* what it begins to fetch fails */
    while (publish_has_note(fx.fs, "big"))
        g_usleep(1000);
    g_usleep(100000);
    fault("");
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "big"));
    ck_assert_int_eq(cache_file_read(in->cf, got, SIZE, 0), SIZE);
    ck_assert_int_eq(memcmp(got, model, SIZE), 0);
    content_release(in, false);
}
END_TEST

START_TEST(bytes_written_behind_a_snapshot_are_another_version)
{
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "first");
    struct obj_info info = {0};
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), 0);
    ck_assert_int_eq(objstore_head(fx.fs->store, "first", &info), 0);
    g_autofree char *token = g_strdup(info.token);
    obj_info_clear(&info);
    fs_fixture_pwrite(in, "2", 1, 0); /* a slow write: it had asked to change the file before */
    content_release(in, true);
    all_published();
    assert_object("first", "2", 1);
    ck_assert_int_eq(objstore_head(fx.fs->store, "first", &info), 0);
    ck_assert_str_ne(info.token, token);
    obj_info_clear(&info);
}
END_TEST

/* 0: nothing happens behind the snapshot; 1: a store into a page that was written before; 2: a write. */
START_TEST(file_that_the_kernel_writes_is_sent_again_only_if_it_changed)
{
    char model[4096] = "12";
    open_and_start();
    first_change();
    struct node_spec spec = {
        .parent = META_ROOT_INO, .name = "m", .mode = S_IFREG | 0644, .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(cache_file_set_passthrough(in->cf, CACHE_PASS_WRITE), 0);
    mutex_lock(&in->mu); /* as io_mode.c does where the kernel has passthrough */
    in->io.kernel_writes = true;
    mutex_unlock(&in->mu);
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", cache_file_fd(in->cf));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, model, sizeof(model), 0), sizeof(model));
    char *map = mmap(NULL, sizeof(model), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    map[0] = model[0] = '3';
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), 0);
    assert_object("m", model, sizeof(model));
    bool told = in->snap_mark.mtime_ns != 0; /* not on every file system */
    int64_t sent = metric_get(M_uploaded_bytes);
    if (_i == 1)
        map[1] = model[1] = '4';
    if (_i == 2)
        ck_assert_int_eq(pwrite(fd, model + 2, 1, 2), 1);
    ck_assert_int_eq(munmap(map, sizeof(model)), 0);
    ck_assert_int_eq(close(fd), 0);
    content_release(in, true);
    all_published();
    assert_object("m", model, sizeof(model));
    ck_assert(!content_is_dirty(in));
    ck_assert((metric_get(M_uploaded_bytes) != sent) == (_i > 0 || !told));
}
END_TEST

/* A snapshot became visible, but that was not seen; the kernel wrote on until the close, through a mapping, without our knowing. */
START_TEST(bytes_written_behind_a_snapshot_that_was_not_recorded_go_upstream)
{
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "first");
    ck_assert_int_eq(content_open(in, true, false), 0);
    char model[] = "1";
    write_in(in, model, 0, "2");
    ck_assert_int_eq(content_flush(in, false), 0);
    fault("op=head,nth=1,action=error:-EIO");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -EIO);
    assert_object("first", "2", 1);
    ck_assert_int_eq(cache_file_write(in->cf, "3", 1, 0), 1);
    mutex_lock(&in->mu); /* as the end of the kernel's writing does */
    in->changed = true;
    mutex_unlock(&in->mu);
    content_release(in, true);
    all_published();
    assert_object("first", "3", 1);
    ck_assert(!content_is_dirty(in));
}
END_TEST

START_TEST(bytes_written_behind_a_lost_snapshot_of_an_open_file_go_upstream)
{
    char model[] = "1";
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "first");
    ck_assert_int_eq(content_open(in, true, false), 0);
    write_in(in, model, 0, "2");
    ck_assert_int_eq(content_flush(in, false), 0);
    write_in(in, model, 0, "3"); /* another writer: the snapshot is made of an open file */
    fault("op=head,nth=1,action=error:-EIO");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -EIO);
    assert_object("first", "3", 1);
    write_in(in, model, 0, "4");
    ck_assert_int_eq(content_flush(in, false), 0);
    fault("op=put,nth=1,action=error:-EIO");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -EIO);
    fault("");
    content_release(in, true);
    all_published();
    assert_object("first", "4", 1);
    ck_assert(!content_is_dirty(in));
}
END_TEST

/* Else they could not be read until the journal record's next try, a minute later at worst. */
START_TEST(absent_bytes_can_be_read_before_the_version_that_holds_them_is_recorded)
{
    g_autofree char *model = bytes();
    char have[100] = "";
    fs_fixture_object(&fx, "big", model, SIZE);
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "big");
    ck_assert_int_eq(content_open(in, true, false), 0);
    write_in(in, model, 5 * PART, "first");
    fault("op=complete,action=lost:-EIO");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    int64_t failures = metric_get(M_publish_failures);
    for (unsigned i = 0; i < 1000 && metric_get(M_publish_failures) == failures; i++)
        g_usleep(10000);
    ck_assert_int_eq(content_open(in, false, false), 0);
    ck_assert(!cache_file_complete(in->cf));
    ck_assert_int_eq(cache_file_read(in->cf, have, sizeof(have), 30 * PART), sizeof(have));
    ck_assert_int_eq(memcmp(have, model + 30 * PART, sizeof(have)), 0);
    content_release(in, false);
    fault("");
    all_published();
    assert_object("big", model, SIZE);
}
END_TEST

/* Somebody else publishes it, which takes longer than the time limit, but gets on. */
START_TEST(publishing_that_gets_on_is_waited_for)
{
    g_autofree char *model = bytes();
    fx.cfg.max_uploads = 2;
    open_and_start();
    first_change();
    fault("op=part,action=delay:600ms");
    fs_fixture_write(&fx, "big", model, 20 * PART);
    INODE_REF in = fs_fixture_inode(&fx, "big");
    g_usleep(300000); /* a thread has it */
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 5 * NS_PER_S), 0);
    assert_object("big", model, 20 * PART);
}
END_TEST

START_TEST(version_made_by_a_run_that_was_killed_is_replaced)
{
    g_autofree char *model = bytes();
    fs_fixture_object(&fx, "big", model, SIZE);
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "big");
    ck_assert_int_eq(content_open(in, true, false), 0);
    write_in(in, model, 5 * PART, "first");
    g_autofree char *older = g_memdup2(model, SIZE);
    write_in(in, model, 20 * PART + 7, "second");
    g_autofree char *token = g_strdup_printf("%s.%lx.1", meta_uuid(fx.fs->meta), (unsigned long)in->rec.vid);
    struct obj_meta meta = {.token = token};
    struct obj_cond none = {.kind = OBJ_COND_NONE};
    ck_assert_int_eq(objstore_put(fx.fs->store, "big", older, SIZE, &meta, &none, NULL), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    all_published();
    assert_object("big", model, SIZE);
}
END_TEST

static void write_first(const char *text)
{
    INODE_REF in = fs_fixture_inode(&fx, "first");
    char model[] = "1";
    ck_assert_int_eq(content_open(in, true, false), 0);
    write_in(in, model, 0, text);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

static void one_conflict(void)
{
    struct publish_counts left = {.ops = 1};
    for (unsigned i = 0; i < 1000 && left.ops && conflict_count(fx.fs->meta, "") == 0; i++) {
        g_usleep(10000);
        publish_count(fx.fs->pub, "", &left);
    }
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 1);
}

/* 1: the first try leaves a note of what it would have made. */
START_TEST(older_version_of_ours_that_somebody_put_back_is_not_overwritten)
{
    open_and_start();
    first_change();
    struct obj_info info = {0};
    struct obj_cond none = {.kind = OBJ_COND_NONE};
    ck_assert_int_eq(objstore_head(fx.fs->store, "first", &info), 0);
    g_autofree char *token = g_strdup(info.token);
    struct obj_meta meta = {.token = token};
    obj_info_clear(&info);
    write_first("2");
    all_published();
    ck_assert_int_eq(objstore_put(fx.fs->store, "first", "1", 1, &meta, &none, NULL), 0);
    if (_i == 1)
        fault("op=put,nth=1,action=error:-EIO");
    write_first("3");
    one_conflict();
    assert_object("first", "1", 1);
}
END_TEST

START_TEST(link_whose_reply_was_lost_is_no_conflict)
{
    open_and_start();
    first_change();
    fault("op=put,nth=1,action=lost:-EIO");
    struct node_spec spec = {.parent = META_ROOT_INO,
                             .name = "l",
                             .mode = S_IFLNK | 0777,
                             .target = "first",
                             .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    all_published();
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(fx.fs->store, "l", &info), 0);
    ck_assert_str_eq(info.symlink, "first");
    obj_info_clear(&info);
}
END_TEST

/* 1: with other attributes since, which the object is to have. */
START_TEST(link_whose_reply_was_lost_is_made_once)
{
    open_and_start();
    first_change();
    int64_t puts = metric_get(M_requests_put);
    fault("op=put,key=l,nth=1,action=lost:-EIO");
    struct node_spec spec = {.parent = META_ROOT_INO,
                             .name = "l",
                             .mode = S_IFLNK | 0777,
                             .target = "first",
                             .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    EVENTUALLY(fs_fixture_object_exists(&fx, "l"));
    if (_i == 1) {
        mutex_lock(&in->mu);
        in->rec.mtime_ns++;
        mutex_unlock(&in->mu);
    }
    clock_fake_advance(10 * NS_PER_S); /* it is tried again */
    fs_fixture_write(&fx, "waker", "x", 1);
    all_published();
    ck_assert_int_eq(metric_get(M_requests_put) - puts, 2 + _i);
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
}
END_TEST

START_TEST(rename_whose_reply_was_lost_is_no_conflict)
{
    open_and_start();
    first_change();
    fault("op=copy,nth=1,action=lost:-EIO");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "first", META_ROOT_INO, "second", 0), 0);
    all_published();
    assert_object("second", "1", 1);
    ck_assert(!fs_fixture_object_exists(&fx, "first"));
}
END_TEST

static uint64_t object_mark(const char *key)
{
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(fx.fs->store, key, &info), 0);
    uint64_t mark = g_str_hash(info.etag.s);
    obj_info_clear(&info);
    return mark;
}

/* Only the other name's object was made anew, with other attributes. */
START_TEST(name_of_a_file_whose_new_attributes_were_sent_and_not_recorded_is_no_conflict)
{
    struct stat st = {.st_mode = 0600};
    INODE_REF in = NULL;
    INODE_REF same = NULL;
    open_and_start();
    first_change();
    in = fs_fixture_inode(&fx, "first");
    uint64_t before = object_mark("first");
    fault("op=copy,nth=1,action=lost:-EIO;op=copy,nth=2,count=3,action=error:-EIO");
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), 0);
    for (unsigned i = 0; i < 1000 && object_mark("first") == before; i++)
        ck_assert_int_lt(publish_wait(fx.fs->pub, "", clock_mono_ns() + 10 * NS_PER_MS, NULL, NULL), 0);
    ck_assert_int_eq(tree_link(fx.fs, in->ino, META_ROOT_INO, "second", &same), 0);
    fault("");
    all_published();
    assert_object("second", "1", 1);
    ck_assert_uint_eq(conflict_count(fx.fs->meta, ""), 0);
}
END_TEST

/* Known from a listing, which tells no tokens. 0: the source has one of somebody else's; 1: it has none. */
START_TEST(move_of_a_file_of_others_whose_reply_was_lost_is_no_conflict)
{
    struct obj_meta meta = {.token = _i == 0 ? "somebody.1.1" : NULL};
    struct obj_cond none = {.kind = OBJ_COND_NONE};
    open_and_start();
    first_change();
    ck_assert_int_eq(objstore_put(fx.fs->store, "a", "theirs", 6, &meta, &none, NULL), 0);
    INODE_REF root = fs_fixture_inode(&fx, "");
    ck_assert_int_eq(tree_refresh(fx.fs, root, true), 0);
    fault("op=copy,nth=1,action=lost:-EIO");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a", META_ROOT_INO, "b", 0), 0);
    all_published();
    assert_object("b", "theirs", 6);
    ck_assert(!fs_fixture_object_exists(&fx, "a"));
}
END_TEST

START_TEST(object_of_others_is_not_taken_for_a_copy_that_failed)
{
    fs_fixture_object(&fx, "a", "ours 1", 6);
    open_and_start();
    first_change();
    inode_put(fs_fixture_inode(&fx, "a")); /* it is known here */
    fault("op=copy,nth=1,action=error:-EIO");
    fs_fixture_object(&fx, "b", "theirs", 6);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a", META_ROOT_INO, "b", 0), 0);
    one_conflict();
    assert_object("b", "theirs", 6);
}
END_TEST

START_TEST(attributes_changed_after_a_stream_began_go_upstream_too)
{
    g_autofree char *data = bytes();
    open_and_start();
    struct node_spec spec = {
        .parent = META_ROOT_INO, .name = "s", .mode = S_IFREG | 0644, .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    for (unsigned off = 0; off < SIZE; off += PART)
        fs_fixture_pwrite(in, data + off, PART, off);
    while (cache_uploaded_bytes(in->cf) == 0)
        g_usleep(1000);
    mutex_lock(&in->mu); /* as chmod and utimensat do */
    in->rec.mode = S_IFREG | 0600;
    in->rec.mtime_ns = 1234567890 * (int64_t)NS_PER_S;
    in->rec.flags |= INODE_MTIME_KNOWN | INODE_MTIME_SET;
    in->rec.ctime_ns = clock_wall_ns();
    mutex_unlock(&in->mu);
    content_release(in, true);
    all_published();
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(fx.fs->store, "s", &info), 0);
    ck_assert_uint_eq(info.posix.mode & 07777, 0600);
    ck_assert_int_eq(info.posix.mtime_ns, 1234567890 * (int64_t)NS_PER_S);
    ck_assert(!content_is_dirty(in));
    obj_info_clear(&info);
    assert_object("s", data, SIZE);
}
END_TEST

/* 0: closed as it is; 1: written again before; 2: renamed before. */
START_TEST(attributes_changed_between_a_snapshot_and_the_close_go_upstream_too)
{
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "first");
    ck_assert_int_eq(content_open(in, true, false), 0);
    char model[] = "1";
    write_in(in, model, 0, "2");
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), 0);
    struct stat st = {.st_mode = 0600, .st_uid = 4321, .st_gid = 1234, .st_mtim = {.tv_sec = 1234567890}};
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_MODE), 0);
    ck_assert_int_eq(attr_store(in, &st, FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID | FUSE_SET_ATTR_MTIME), 0);
    if (_i == 1)
        write_in(in, model, 0, "3");
    if (_i == 2)
        ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "first", META_ROOT_INO, "second", 0), 0);
    content_release(in, true);
    all_published();
    const char *key = _i == 2 ? "second" : "first";
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(fx.fs->store, key, &info), 0);
    ck_assert_uint_eq(info.posix.mode & 07777, 0600);
    ck_assert_uint_eq(info.posix.uid, 4321);
    ck_assert_uint_eq(info.posix.gid, 1234);
    if (_i != 1) /* a write has a time of its own */
        ck_assert_int_eq(info.posix.mtime_ns, 1234567890 * (int64_t)NS_PER_S);
    obj_info_clear(&info);
    assert_object(key, model, 1);
    ck_assert(!content_is_dirty(in));
}
END_TEST

START_TEST(a_closed_file_that_lost_bytes_is_not_published)
{
    g_autofree char *data = bytes();
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "f", data, SIZE);
    struct inode *in = fs_fixture_inode(&fx, "f");
    uint64_t vid = in->rec.vid;
    inode_put(in);
    fs_fixture_close(&fx);
    g_autofree char *path =
        g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir, (unsigned)(vid & 0xff), vid);
    ck_assert_int_eq(truncate(path, SIZE / 2), 0);
    int64_t before = metric_get(M_quarantined_files);
    open_and_start();
    for (unsigned i = 0; i < 5000 && metric_get(M_quarantined_files) == before; i++)
        g_usleep(1000);
    ck_assert_int_eq(metric_get(M_quarantined_files), before + 1);
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
}
END_TEST

START_TEST(file_that_could_not_be_published_at_its_close_is_not_tried_without_pause)
{
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "first");
    char model[] = "1";
    ck_assert_int_eq(content_open(in, true, false), 0);
    write_in(in, model, 0, "2");
    ck_assert_int_eq(content_flush(in, false), 0);
    fault("op=put,action=error:-EIO");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -EIO);
    int64_t failed = metric_get(M_publish_failures);
    content_release(in, true);
    g_usleep(300000);
    ck_assert_int_le(metric_get(M_publish_failures) - failed, 3);
    fault("");
    all_published();
    assert_object("first", "2", 1);
}
END_TEST

/* 0: larger than what the cache brings here of a file; 1: there is no room. */
START_TEST(object_of_an_open_file_that_cannot_be_kept_is_deleted_after_its_close)
{
    g_autofree char *path = g_build_filename(fx.lake, "huge", NULL), *named = NULL;
    struct publish_counts left = {0};
    int err = 0;
    fs_fixture_object(&fx, "huge", "1", 1);
    ck_assert_int_eq(truncate(path, _i == 0 ? 40 << 20 : 4 << 20), 0);
    open_and_start();
    first_change();
    INODE_REF in = fs_fixture_inode(&fx, "huge");
    ck_assert_int_eq(content_open(in, false, false), 0);
    if (_i == 1)
        fault("op=get,action=error:-ENOSPC");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "huge"), 0);
    fs_fixture_write(&fx, "later", "1", 1); /* does not wait until somebody closes that */
    ck_assert_int_eq(publish_wait(fx.fs->pub, "later", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    named = publish_find_refused(fx.fs->pub, "", &err);
    ck_assert_str_eq(named, "huge");
    ck_assert_int_eq(err, _i == 0 ? -EBUSY : -ENOSPC);
    publish_count(fx.fs->pub, "", &left);
    ck_assert_uint_eq(left.ops, 1);
    ck_assert_uint_eq(left.parked, 0);
    ck_assert(fs_fixture_object_exists(&fx, "huge"));
    content_release(in, false);
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "huge"));
}
END_TEST

/* Nobody has it open: what comes later in its directory does wait. */
START_TEST(delete_that_fails_because_the_store_is_full_or_busy_is_no_refused_one)
{
    int err = 0;
    fs_fixture_object(&fx, "old", "1", 1);
    open_and_start();
    first_change();
    struct inode *in = fs_fixture_inode(&fx, "old"); /* referenced while its name goes */
    fault(_i == 0 ? "op=delete,action=error:-ENOSPC" : "op=delete,action=error:-EBUSY");
    int64_t failures = metric_get(M_publish_failures);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "old"), 0);
    inode_put(in);
    fs_fixture_write(&fx, "later", "1", 1);
    EVENTUALLY(metric_get(M_publish_failures) >= failures + 4);
    ck_assert_ptr_null(publish_find_refused(fx.fs->pub, "", &err));
    ck_assert(!fs_fixture_object_exists(&fx, "later"));
    fault("");
    all_published();
    ck_assert(!fs_fixture_object_exists(&fx, "old"));
}
END_TEST

/* Nothing can be written any more. */
static void disk_full(bool full)
{
    struct rlimit limit;
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = full ? 0 : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(file_whose_publishing_could_not_be_recorded_stays_unpublished)
{
    open_and_start();
    first_change();
    fault("op=head,action=delay:500ms");
    fs_fixture_write(&fx, "f", "1", 1);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    while (!fs_fixture_object_exists(&fx, "f"))
        g_usleep(1000);
    ck_assert(content_is_dirty(in));
    disk_full(true);
    while (!meta_failed(fx.fs->meta))
        g_usleep(1000);
    struct publish_counts left = {.uploading = 1};
    while (left.uploading) {
        g_usleep(1000);
        publish_count(fx.fs->pub, "f", &left);
    }
    disk_full(false);
    ck_assert(content_is_dirty(in));
    ck_assert_uint_gt(in->rec.dirty_since_ns, 0);
    ck_assert_uint_eq(left.ops, 1);
}
END_TEST

/* The copy to the first new name is decided, and not noted yet, when the second comes. */
START_TEST(name_that_goes_on_before_its_note_leaves_nothing_behind)
{
    fs_fixture_object(&fx, "a", "theirs", 6);
    open_and_start();
    first_change();
    inode_put(fs_fixture_inode(&fx, "a"));
    int64_t moved = metric_get(M_published_renames);
    fault("op=head,action=delay:300ms"); /* by what token will the copy be known? */
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a", META_ROOT_INO, "b", 0), 0);
    struct publish_counts now = {0};
    while (!now.uploading) {
        g_usleep(1000);
        publish_count(fx.fs->pub, "b", &now);
    }
    g_usleep(50000);
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "b", META_ROOT_INO, "c", 0), 0);
    ck_assert(!publish_has_note(fx.fs, "b"));
    all_published();
    assert_object("c", "theirs", 6);
    ck_assert(!fs_fixture_object_exists(&fx, "a") && !fs_fixture_object_exists(&fx, "b"));
    ck_assert_int_eq(metric_get(M_published_renames) - moved, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_lost");
    TCase *tc = tcase_create("lost");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, absent_bytes_of_a_published_snapshot_can_still_be_read);
    tcase_add_test(tc, absent_bytes_of_a_file_removed_while_it_is_published_can_still_be_read);
    tcase_add_test(tc, bytes_written_behind_a_snapshot_are_another_version);
    tcase_add_loop_test(tc, file_that_the_kernel_writes_is_sent_again_only_if_it_changed, 0, 3);
    tcase_add_test(tc, bytes_written_behind_a_snapshot_that_was_not_recorded_go_upstream);
    tcase_add_test(tc, bytes_written_behind_a_lost_snapshot_of_an_open_file_go_upstream);
    tcase_add_test(tc, version_made_by_a_run_that_was_killed_is_replaced);
    tcase_add_test(tc, publishing_that_gets_on_is_waited_for);
    tcase_add_test(tc, absent_bytes_can_be_read_before_the_version_that_holds_them_is_recorded);
    tcase_add_loop_test(tc, older_version_of_ours_that_somebody_put_back_is_not_overwritten, 0, 2);
    tcase_add_test(tc, link_whose_reply_was_lost_is_no_conflict);
    tcase_add_loop_test(tc, link_whose_reply_was_lost_is_made_once, 0, 2);
    tcase_add_test(tc, rename_whose_reply_was_lost_is_no_conflict);
    tcase_add_test(tc, name_of_a_file_whose_new_attributes_were_sent_and_not_recorded_is_no_conflict);
    tcase_add_loop_test(tc, move_of_a_file_of_others_whose_reply_was_lost_is_no_conflict, 0, 2);
    tcase_add_test(tc, object_of_others_is_not_taken_for_a_copy_that_failed);
    tcase_add_test(tc, name_that_goes_on_before_its_note_leaves_nothing_behind);
    tcase_add_test(tc, attributes_changed_after_a_stream_began_go_upstream_too);
    tcase_add_loop_test(tc, attributes_changed_between_a_snapshot_and_the_close_go_upstream_too, 0, 3);
    tcase_add_test(tc, a_closed_file_that_lost_bytes_is_not_published);
    tcase_add_test(tc, file_that_could_not_be_published_at_its_close_is_not_tried_without_pause);
    tcase_add_loop_test(tc, object_of_an_open_file_that_cannot_be_kept_is_deleted_after_its_close, 0, 2);
    tcase_add_loop_test(tc, delete_that_fails_because_the_store_is_full_or_busy_is_no_refused_one, 0, 2);
    tcase_add_test(tc, file_whose_publishing_could_not_be_recorded_stays_unpublished);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
