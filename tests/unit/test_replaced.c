/* A file renamed over another, before it is on the disk (replaced.h): when the other one goes, and what a start after a power loss gives back. Without FUSE. */
#include "cache_scan.h"
#include "fs/content.h"
#include "fs/local.h"
#include "fs/publish.h"
#include "fs/replaced.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "meta_orphan.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct fs_fixture fx;
static atomic_bool data_waits;  /* syncs of data files, until that is false again */
static atomic_llong fails_size; /* syncs of files of that size, 0: of none */
static atomic_uint n_data_syncs, n_data_waits;

static bool is_data(int fd)
{
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd), *path = g_file_read_link(link, NULL);
    return path && strstr(path, "/data/");
}

/* Takes the place of the C library's for the whole program. */
int fdatasync(int fd)
{
    bool data = is_data(fd);
    atomic_fetch_add(&n_data_waits, data && atomic_load(&data_waits));
    while (data && atomic_load(&data_waits))
        g_usleep(1000);
    atomic_fetch_add(&n_data_syncs, data);
    struct stat st;
    if (data && fstat(fd, &st) == 0 && st.st_size && st.st_size == atomic_load(&fails_size)) {
        errno = EDQUOT;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, fd);
}

static void setup(void)
{
    atomic_store(&data_waits, false);
    atomic_store(&fails_size, 0);
    atomic_store(&n_data_syncs, 0);
    atomic_store(&n_data_waits, 0);
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    atomic_store(&data_waits, false);
    fs_fixture_fini(&fx);
}

static void restart(void)
{
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
}

static void publish_all(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

/* Nothing is brought to the disk for a rename from here on, as if the power went before. */
static void settle_nothing(void)
{
    workq_stop(fx.fs->settle_q);
}

static struct inode *begin(const char *path, const char *text)
{
    INODE_REF dir = NULL;
    g_autofree char *above = g_path_get_dirname(path), *name = g_path_get_basename(path);
    ck_assert_int_eq(tree_resolve(fx.fs, above[0] == '.' ? "" : above, &dir), 0);
    struct node_spec spec = {.parent = dir->ino, .name = name, .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, text, strlen(text), 0);
    return in;
}

/* What is recorded of it from here on was of a boot that is over with the next start. */
static void mark_lost(struct inode *in)
{
    mutex_lock(&fx.fs->ns);
    mutex_lock(&in->mu);
    g_strlcpy(in->rec.boot_id, "another boot", sizeof(in->rec.boot_id));
    mutex_unlock(&in->mu);
    mutex_unlock(&fx.fs->ns);
}

/* Closed before the machine goes down, with the last restart(). Its inode. */
static uint64_t write_file(const char *path, const char *text, bool synced)
{
    INODE_REF in = begin(path, text);
    mark_lost(in);
    if (synced)
        ck_assert_int_eq(content_sync(in), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    return in->ino;
}

/* Written in its place, and lost. */
static void change_later(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    mark_lost(in);
    fs_fixture_pwrite(in, "later", 5, 0);
    if (fx.fs->pub)
        publish_interrupt(fx.fs->pub);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

static void move(const char *from, const char *to)
{
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, from, META_ROOT_INO, to, 0), 0);
}

static uint32_t content_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->rec.content;
}

static bool is_there(uint64_t ino)
{
    struct meta_inode rec = {0};
    bool there = meta_inode_get(fx.fs->meta, ino, &rec) == 0;
    meta_inode_clear(&rec);
    return there;
}

static uint64_t replaced_by(uint64_t ino)
{
    struct meta_replaced rep = {0};
    uint64_t by = meta_orphan_get(fx.fs->meta, ino, &rep) == 0 ? rep.by : 0;
    meta_replaced_clear(&rep);
    return by;
}

static void await_end(uint64_t ino)
{
    for (unsigned i = 0; is_there(ino) && i < 2000; i++)
        g_usleep(10000);
    ck_assert(!is_there(ino));
}

static void check_object(const char *key, const char *text)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *found = NULL;
    ck_assert(g_file_get_contents(path, &found, NULL, NULL));
    ck_assert_str_eq(found, text);
}

static void check_has_name(uint64_t ino, const char *path)
{
    ck_assert_uint_eq(fs_fixture_ino(&fx, path), ino);
}

/* ---- who may go ---- */

START_TEST(file_stays_until_what_replaced_it_is_on_the_disk)
{
    uint64_t old = write_file("f", "old", true);
    if (_i)
        publish_all();
    atomic_store(&data_waits, true);
    uint64_t new = write_file("new", "new", false);
    move("new", "f");
    g_usleep(300000);
    ck_assert(is_there(old));
    ck_assert_uint_eq(replaced_by(old), new);
    unsigned n = atomic_load(&n_data_syncs);
    atomic_store(&data_waits, false);
    await_end(old);
    ck_assert_uint_gt(atomic_load(&n_data_syncs), n);
    restart();
    check_has_name(new, "f");
    ck_assert_uint_eq(content_of("f"), _i ? content_of("f") : CONTENT_SEALED);
}
END_TEST

START_TEST(file_goes_at_once_if_what_replaced_it_is_safe)
{
    uint64_t old = write_file("f", "old", true);
    (void)write_file("new", "new", _i == 0);
    if (_i == 1)
        publish_all();
    settle_nothing();
    move("new", "f");
    await_end(old);
}
END_TEST

/* A chain of them goes when the last one is safe, for which that one is synced alone. */
START_TEST(files_that_replaced_each_other_go_together)
{
    uint64_t old = write_file("f", "old", true), next[3];
    atomic_store(&data_waits, true);
    for (unsigned i = 0; i < 3; i++) {
        next[i] = write_file("new", "new", false);
        move("new", "f");
    }
    atomic_store(&data_waits, false);
    await_end(old);
    await_end(next[0]);
    await_end(next[1]);
    restart();
    check_has_name(next[2], "f");
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
}
END_TEST

/* What came was removed before it was on the disk: that needs no sync of it. */
START_TEST(file_goes_when_what_replaced_it_is_removed)
{
    uint64_t old = write_file("f", "old", true);
    (void)write_file("new", "new", false);
    settle_nothing();
    move("new", "f");
    INODE_REF reader = fs_fixture_inode(&fx, "f"); /* so that it stays */
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    struct workq *q = NULL;
    ck_assert_int_eq(workq_new("settle", 1, &q), 0);
    workq_free(fx.fs->settle_q);
    fx.fs->settle_q = q;
    unsigned n = atomic_load(&n_data_syncs);
    replaced_resume(fx.fs);
    await_end(old);
    ck_assert(is_there(reader->ino));
    ck_assert_uint_eq(atomic_load(&n_data_syncs), n);
}
END_TEST

START_TEST(start_after_a_kill_goes_on)
{
    uint64_t old = write_file("f", "old", true);
    fs_fixture_write(&fx, "new", "new", 3); /* of this boot */
    uint64_t new = fs_fixture_ino(&fx, "new");
    settle_nothing();
    move("new", "f");
    restart();
    ck_assert(is_there(old));
    check_has_name(new, "f");
    fs_fixture_start(&fx);
    await_end(old);
    check_has_name(new, "f");
}
END_TEST

/* All threads that bring files to the disk wait. */
static void keep_all_busy(void)
{
    enum { THREADS = 4 };
    unsigned n = atomic_load(&n_data_waits);
    atomic_store(&data_waits, true);
    for (unsigned i = 0; i < THREADS; i++) {
        g_autofree char *name = g_strdup_printf("busy%u", i);
        (void)write_file(name, "old", false);
        (void)write_file("busy", "new", false);
        move("busy", name);
    }
    for (unsigned i = 0; atomic_load(&n_data_waits) < n + THREADS && i < 2000; i++)
        g_usleep(10000);
}

/* What came was replaced itself, by a file that is safe, and somebody reads it still: it is nobody's end, whether or not it can be synced. */
START_TEST(file_goes_if_what_came_went)
{
    uint64_t old = write_file("f", "old", true), safe = write_file("safe", "safe", true);
    (void)write_file("new", "new", false);
    INODE_REF reader = fs_fixture_inode(&fx, "new");
    ck_assert_int_eq(content_open(reader, false, false), 0);
    keep_all_busy();
    move("new", "f");
    if (_i)
        move("safe", "f");
    else
        ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    atomic_store(&fails_size, 3);
    atomic_store(&data_waits, false);
    await_end(old);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "f"), _i ? safe : 0);
    content_release(reader, false);
}
END_TEST

/* It is replaced while it is synced, which fails. */
START_TEST(file_goes_if_what_came_is_replaced_meanwhile)
{
    uint64_t old = write_file("f", "old", true), safe = write_file("safe", "safe", true);
    (void)write_file("new", "new", false);
    atomic_store(&data_waits, true);
    move("new", "f");
    for (unsigned i = 0; atomic_load(&n_data_waits) == 0 && i < 2000; i++)
        g_usleep(10000);
    move("safe", "f");
    atomic_store(&fails_size, 3);
    atomic_store(&data_waits, false);
    await_end(old);
    check_has_name(safe, "f");
}
END_TEST

/* A file that cannot be synced is written once more, by another name, and that can. */
START_TEST(file_that_could_not_go_goes_with_a_later_one)
{
    uint64_t old = write_file("f", "old", true), first = write_file("new", "new", false);
    atomic_store(&fails_size, 3);
    move("new", "f");
    for (unsigned i = 0; atomic_load(&n_data_syncs) == 0 && i < 2000; i++)
        g_usleep(10000);
    g_usleep(300000);
    ck_assert(is_there(old));
    atomic_store(&fails_size, 0);
    for (unsigned i = 0; is_there(old) && i < 100; i++) {
        (void)write_file("new", "next", false);
        move("new", "f");
        g_usleep(200000);
    }
    ck_assert(!is_there(old));
    await_end(first);
}
END_TEST

/* It got a name meanwhile, and was replaced there. */
START_TEST(file_that_got_a_name_stays_until_what_came_there_is_on_the_disk)
{
    uint64_t old = write_file("f", "old", true), other;
    INODE_REF reader = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(reader, false, false), 0);
    (void)write_file("new", "new file", false);
    atomic_store(&data_waits, true);
    move("new", "f");
    for (unsigned i = 0; atomic_load(&n_data_waits) == 0 && i < 2000; i++)
        g_usleep(10000);
    struct inode *in = NULL;
    ck_assert_int_eq(tree_link(fx.fs, old, META_ROOT_INO, "again", &in), 0);
    inode_put(in);
    other = write_file("other", "abc", false);
    move("other", "again");
    ck_assert_uint_eq(replaced_by(old), other);
    atomic_store(&fails_size, 3);
    atomic_store(&data_waits, false);
    for (unsigned i = 0; atomic_load(&n_data_syncs) < 2 && i < 2000; i++)
        g_usleep(10000);
    g_usleep(300000);
    ck_assert_uint_eq(replaced_by(old), other);
    content_release(reader, false);
}
END_TEST

/* The cache has no room for a third version while the second one is on its way to the disk, which takes longer than a writer may wait. */
START_TEST(replaced_file_gives_way_to_a_writer)
{
    static char bytes[24 << 20];
    fs_fixture_close(&fx);
    fx.cfg.rule = g_strdup("*.loc=local-only");
    fx.cfg.op_timeout_ns = 8 * NS_PER_S;
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "f.loc", bytes, sizeof(bytes));
    uint64_t old = fs_fixture_ino(&fx, "f.loc");
    fs_fixture_write(&fx, "new.loc", bytes, sizeof(bytes));
    atomic_store(&data_waits, true);
    move("new.loc", "f.loc");
    ck_assert(replaced_by(old));
    fs_fixture_write(&fx, "new.loc", bytes, sizeof(bytes));
    await_end(old);
    atomic_store(&data_waits, false);
}
END_TEST

/* ---- after a power loss ---- */

/* 0: unpublished, 1: published. */
START_TEST(file_has_its_name_again)
{
    uint64_t old = write_file("f", "old", true);
    if (_i)
        publish_all();
    restart();
    uint64_t new = write_file("new", "what came", false);
    settle_nothing();
    move("new", "f");
    restart();
    check_has_name(old, "f");
    ck_assert_uint_eq(content_of("f"), _i ? CONTENT_CLEAN : CONTENT_SEALED);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "new"), 0);
    ck_assert(!is_there(new));
    struct publish_counts c;
    publish_count(fx.fs->pub, "", &c);
    ck_assert_uint_eq(c.ops, _i == 0);
    publish_all();
    check_object("f", "old");
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_uint_eq(in->rec.nlink, 1);
    ck_assert(!(in->rec.flags & INODE_ORPHAN));
    ck_assert_int_eq(content_open(in, true, true), 0); /* and it is one like any other */
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "next", 4, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    check_object("f", "next");
}
END_TEST

/* Of several that came after each other, none of which was on the disk. 1: the first one was. */
START_TEST(last_whole_file_has_the_name_again)
{
    uint64_t old = write_file("f", "old", true);
    settle_nothing();
    uint64_t first = write_file("new", "first", _i);
    move("new", "f");
    uint64_t second = write_file("new", "second", false);
    move("new", "f");
    uint64_t third = write_file("new", "third", false);
    move("new", "f");
    restart();
    check_has_name(_i ? first : old, "f");
    publish_all();
    await_end(second);
    await_end(third);
    check_object("f", _i ? "first" : "old");
}
END_TEST

/* None was on the disk: what came is quarantined, as ever. */
START_TEST(file_that_was_lost_as_well_is_not_given_back)
{
    (void)write_file("f", "old", false);
    settle_nothing();
    uint64_t new = write_file("new", "new", false);
    move("new", "f");
    restart();
    check_has_name(new, "f");
    ck_assert_uint_eq(content_of("f"), CONTENT_QUARANTINED);
}
END_TEST

/* 0: the name is another's, 1: what came has another one, 2: it was removed. */
START_TEST(names_that_were_changed_since_stay)
{
    uint64_t old = write_file("f", "old", true);
    settle_nothing();
    (void)write_file("new", "new", false);
    move("new", "f");
    uint64_t other = _i == 0 ? write_file("other", "other", true) : 0;
    if (_i == 0)
        move("other", "f");
    else if (_i == 1)
        move("f", "g");
    else
        ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    restart();
    ck_assert_uint_eq(fs_fixture_ino(&fx, "f"), other);
    if (_i == 1)
        ck_assert_uint_eq(content_of("g"), CONTENT_QUARANTINED);
    fs_fixture_start(&fx);
    await_end(old);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "f"), other);
}
END_TEST

/* What was safe once and is changed in its place is a version of its own. The replaced one is open all the time. */
START_TEST(file_is_not_given_back_for_a_later_change)
{
    uint64_t old = write_file("f", "old", true), new = write_file("new", "new", false);
    INODE_REF reader = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(reader, false, false), 0);
    move("new", "f");
    for (unsigned i = 0; replaced_by(old) && i < 2000; i++)
        g_usleep(10000);
    ck_assert_uint_eq(replaced_by(old), 0);
    settle_nothing();
    change_later("f");
    content_release(reader, false);
    inode_put(g_steal_pointer(&reader));
    restart();
    check_has_name(new, "f");
    ck_assert_uint_eq(content_of("f"), CONTENT_QUARANTINED);
}
END_TEST

/* The same of one that was published here in between: the name has that version upstream. */
START_TEST(file_is_not_given_back_once_what_came_was_published)
{
    uint64_t old = write_file("f", "old", true), new = write_file("new", "new", false);
    INODE_REF reader = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(reader, false, false), 0);
    settle_nothing();
    move("new", "f");
    publish_all();
    ck_assert_uint_eq(replaced_by(old), new);
    change_later("f");
    content_release(reader, false);
    inode_put(g_steal_pointer(&reader));
    restart();
    check_has_name(new, "f");
    ck_assert_uint_eq(content_of("f"), CONTENT_QUARANTINED);
}
END_TEST

/* What came was not even closed, so the name has no journal record that could be taken over. */
START_TEST(file_is_published_in_the_place_of_one_that_was_never_closed)
{
    uint64_t old = write_file("f", "old", true);
    struct inode *in = begin("new", "new"); /* never let go */
    mark_lost(in);
    ck_assert_int_eq(content_store(in), 0);
    settle_nothing();
    move("new", "f");
    restart();
    check_has_name(old, "f");
    publish_all();
    check_object("f", "old");
}
END_TEST

/* Without the database only that tells whose bytes these are; what has no name has none. */
START_TEST(intent_comes_back_with_the_name)
{
    uint64_t old = write_file("f", "old", true);
    INODE_REF reader = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(reader, false, false), 0);
    uint64_t vid = reader->rec.vid;
    (void)write_file("new", "new", false);
    settle_nothing();
    ck_assert_int_eq(cache_scan_has_intent(fx.cache_dir, vid), 1);
    move("new", "f");
    for (unsigned i = 0; cache_scan_has_intent(fx.cache_dir, vid) == 1 && i < 2000; i++)
        g_usleep(10000);
    ck_assert_int_eq(cache_scan_has_intent(fx.cache_dir, vid), 0);
    content_release(reader, false);
    inode_put(g_steal_pointer(&reader));
    restart();
    check_has_name(old, "f");
    ck_assert_int_eq(cache_scan_has_intent(fx.cache_dir, vid), 1);
}
END_TEST

START_TEST(file_that_a_rule_keeps_here_is_one_of_them_again)
{
    fs_fixture_close(&fx);
    fx.cfg.rule = g_strdup("*.loc=local-only");
    fs_fixture_open(&fx);
    uint64_t old = write_file("f.loc", "old", true), new = write_file("new.loc", "new", false);
    settle_nothing();
    move("new.loc", "f.loc");
    restart();
    check_has_name(old, "f.loc");
    ck_assert_uint_eq(content_of("f.loc"), CONTENT_SEALED);
    ck_assert(!is_there(new));
    struct local_counts c = {0};
    local_count(fx.fs, &c);
    ck_assert_uint_eq(c.files, 1);
    publish_all();
    ck_assert(!fs_fixture_object_exists(&fx, "f.loc"));
}
END_TEST

/* Its directory was moved: where its object is nobody can tell any more. 1: it needs none. */
START_TEST(object_of_another_place_is_not_taken_for_its_own)
{
    fs_fixture_write(&fx, "d/f", "old", 3);
    uint64_t old = fs_fixture_ino(&fx, "d/f");
    publish_all();
    restart();
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    if (_i) {
        ck_assert_int_eq(content_open(in, true, true), 0);
        ck_assert_int_eq(content_begin_change(in), 0);
        fs_fixture_pwrite(in, "here", 4, 0);
        ck_assert_int_eq(content_sync(in), 0);
        ck_assert_int_eq(content_flush(in, false), 0);
        content_release(in, true);
    }
    uint64_t new = write_file("new", "new", false);
    settle_nothing();
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "new", dir->ino, "f", 0), 0);
    move("d", "e");
    inode_put(g_steal_pointer(&in));
    inode_put(g_steal_pointer(&dir));
    restart();
    check_has_name(_i ? old : new, "e/f");
    ck_assert_uint_eq(content_of("e/f"), _i ? CONTENT_SEALED : CONTENT_QUARANTINED);
    if (_i == 0)
        return;
    publish_all();
    check_object("e/f", "here");
}
END_TEST

START_TEST(other_name_of_what_came_stays)
{
    uint64_t old = write_file("f", "old", true), new = write_file("new", "new", false);
    struct inode *in = NULL;
    ck_assert_int_eq(tree_link(fx.fs, new, META_ROOT_INO, "also", &in), 0);
    inode_put(in);
    settle_nothing();
    move("new", "f");
    restart();
    check_has_name(old, "f");
    check_has_name(new, "also");
    ck_assert_uint_eq(content_of("also"), CONTENT_QUARANTINED);
    INODE_REF left = fs_fixture_inode(&fx, "also");
    ck_assert_uint_eq(left->rec.nlink, 1);
}
END_TEST

/* A writer has what came open: it is not whole, whatever was synced before. */
START_TEST(file_that_is_still_written_is_synced_once_more)
{
    uint64_t old = write_file("f", "old", true);
    struct inode *in = begin("new", "new"); /* never let go */
    ck_assert_int_eq(content_sync(in), 0);
    fs_fixture_pwrite(in, "more", 4, 3);
    unsigned n = atomic_load(&n_data_syncs);
    move("new", "f");
    await_end(old);
    ck_assert_uint_gt(atomic_load(&n_data_syncs), n);
}
END_TEST

static uint64_t remove_open(const char *name)
{
    const struct inode *in = begin(name, "text");
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, name), 0);
    return in->ino;
}

START_TEST(what_cannot_be_decoded_of_a_removed_file_keeps_it_and_stops_no_start)
{
    uint64_t bad = remove_open("bad"), good = remove_open("good");
    g_autofree char *name = g_strdup_printf("orphan/%016" G_GINT64_MODIFIER "x", bad);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, name, "?", 1);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    restart();
    ck_assert(!is_there(good));
    ck_assert(is_there(bad));
    uint64_t old = write_file("f", "old", true);
    fs_fixture_write(&fx, "new", "new", 3);
    move("new", "f");
    fs_fixture_start(&fx);
    await_end(old); /* as ever */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("replaced");
    TCase *t = tcase_create("who_goes");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, file_stays_until_what_replaced_it_is_on_the_disk, 0, 2);
    tcase_add_loop_test(t, file_goes_at_once_if_what_replaced_it_is_safe, 0, 2);
    tcase_add_test(t, files_that_replaced_each_other_go_together);
    tcase_add_test(t, file_goes_when_what_replaced_it_is_removed);
    tcase_add_loop_test(t, file_goes_if_what_came_went, 0, 2);
    tcase_add_test(t, file_goes_if_what_came_is_replaced_meanwhile);
    tcase_add_test(t, file_that_could_not_go_goes_with_a_later_one);
    tcase_add_test(t, file_that_got_a_name_stays_until_what_came_there_is_on_the_disk);
    tcase_add_test(t, replaced_file_gives_way_to_a_writer);
    tcase_add_test(t, start_after_a_kill_goes_on);
    tcase_add_test(t, file_that_is_still_written_is_synced_once_more);
    tcase_add_test(t, what_cannot_be_decoded_of_a_removed_file_keeps_it_and_stops_no_start);
    suite_add_tcase(s, t);
    t = tcase_create("power_loss");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, file_has_its_name_again, 0, 2);
    tcase_add_loop_test(t, last_whole_file_has_the_name_again, 0, 2);
    tcase_add_test(t, file_that_was_lost_as_well_is_not_given_back);
    tcase_add_loop_test(t, names_that_were_changed_since_stay, 0, 3);
    tcase_add_test(t, file_is_not_given_back_for_a_later_change);
    tcase_add_test(t, file_is_not_given_back_once_what_came_was_published);
    tcase_add_test(t, file_is_published_in_the_place_of_one_that_was_never_closed);
    tcase_add_test(t, intent_comes_back_with_the_name);
    tcase_add_test(t, file_that_a_rule_keeps_here_is_one_of_them_again);
    tcase_add_loop_test(t, object_of_another_place_is_not_taken_for_its_own, 0, 2);
    tcase_add_test(t, other_name_of_what_came_stays);
    suite_add_tcase(s, t);
    return run_suite(s);
}
