/* Names of one file, each an object of its own: from which of them the file's bytes come. Over a lake in a folder, without FUSE. */
#include "cache.h"
#include "fs/content.h"
#include "fs/op.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>

static struct fs_fixture fx;

static void open_with(const char *fault)
{
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup(fault);
    fs_fixture_open(&fx);
}

static void setup(void)
{
    open_with("op=copy,nth=1,action=delay:300ms");
}

static void setup_slow_put(void)
{
    open_with("op=put,action=delay:300ms");
}

static void setup_slow_head(void)
{
    open_with("op=head,action=delay:300ms");
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void publish_all(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static void make_link(const char *path, const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    INODE_REF linked = NULL;
    ck_assert_int_eq(tree_link(fx.fs, in->ino, META_ROOT_INO, name, &linked), 0);
}

static void write_file(const char *path, char with)
{
    g_autofree char *data = g_strnfill(300000, with);
    fs_fixture_write(&fx, path, data, 300000);
}

static void evict(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    uint64_t vid = in->rec.vid;
    if (vid)
        ck_assert_int_eq(cache_evict(fx.fs->cache, vid), 0);
}

static void assert_reads(const char *path, char want)
{
    struct cfile *cf = NULL;
    char buf[1000];
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_read(cf, buf, sizeof(buf), 200000), (ssize_t)sizeof(buf));
    ck_assert_int_eq(buf[0], want);
    ck_assert_int_eq(buf[999], want);
    content_unuse(in, cf);
}

static void pause_until_next_try(unsigned *tries)
{
    ck_assert_uint_lt(++*tries, 2000);
    g_usleep(10000);
}

/* As after a takeover, when the kernel's lookups are not known: nothing keeps the inode in memory. */
static void await_out_of_memory(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    uint64_t ino = in->ino;
    inode_put(g_steal_pointer(&in));
    for (unsigned tries = 0; (in = inode_find(fx.fs, ino)); pause_until_next_try(&tries))
        inode_put(g_steal_pointer(&in));
}

/* Its absent bytes are in the object of the name that was published last. */
static char *base_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return g_strdup(in->rec.base_key);
}

static void check_other_name_after(bool renamed_over)
{
    write_file("a", 'x');
    make_link("a", "b");
    fs_fixture_start(&fx);
    publish_all();
    g_autofree char *gone = base_of("a");
    const char *left = strcmp(gone, "a") == 0 ? "b" : "a";
    await_out_of_memory(left);
    if (renamed_over) {
        write_file("other", 'y');
        ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "other", META_ROOT_INO, gone, 0), 0);
    } else {
        ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, gone), 0);
    }
    publish_all();
    evict(left);
    assert_reads(left, 'x');
    make_link(left, "c");
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "c"));
}

START_TEST(other_name_is_read_from_its_own_object_when_the_first_is_removed)
{
    check_other_name_after(false);
}
END_TEST

START_TEST(other_name_is_read_from_its_own_object_when_the_first_is_renamed_over)
{
    check_other_name_after(true);
}
END_TEST

START_TEST(name_removed_while_it_is_published_is_not_read_from)
{
    write_file("a", 'x');
    make_link("a", "b");
    fs_fixture_start(&fx);
    for (unsigned tries = 0; !publish_has_note(fx.fs, "b"); pause_until_next_try(&tries))
        ;
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "b"), 0);
    publish_all();
    ck_assert(!fs_fixture_object_exists(&fx, "b"));
    await_out_of_memory("a");
    evict("a");
    assert_reads("a", 'x');
}
END_TEST

/* Somebody below has the cache file, the inode has not: it cannot tell it that the name goes. */
START_TEST(cache_file_in_use_follows_the_file_to_another_name)
{
    write_file("a", 'x');
    make_link("a", "b");
    fs_fixture_start(&fx);
    publish_all();
    g_autofree char *gone = base_of("a");
    const char *left = strcmp(gone, "a") == 0 ? "b" : "a";
    await_out_of_memory(left);
    evict(left);
    INODE_REF in = fs_fixture_inode(&fx, left);
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    struct cfile *user = cache_file_ref(cf);
    content_unuse(in, cf);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, gone), 0);
    publish_all();
    assert_reads(left, 'x');
    cache_file_unref(user);
}
END_TEST

static ino_t object_ino(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_ino;
}

/* An object gets another etag when it is copied over itself to have other attributes. */
static void check_read_during_attribute_copy(const char *name)
{
    g_autofree char *data = g_strnfill(300000, 'x');
    fs_fixture_object(&fx, "a", data, 300000);
    make_link("a", "b");
    fs_fixture_start(&fx);
    publish_all();
    INODE_REF in = fs_fixture_inode(&fx, "a");
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    content_unuse(in, cf);
    evict("a");
    g_autofree char *base = base_of("a");
    ino_t before = object_ino(base);
    ck_assert_int_eq(attr_store(in, &(struct stat){.st_mode = 0600}, FUSE_SET_ATTR_MODE), 0);
    ck_assert_int_gt(publish_retry(fx.fs->pub, ""), 0); /* at once */
    for (unsigned tries = 0; object_ino(base) == before; pause_until_next_try(&tries))
        ;
    assert_reads(name, 'x');
    publish_all();
    assert_reads(name, 'x');
}

START_TEST(file_is_read_while_its_attributes_go_upstream)
{
    check_read_during_attribute_copy("a");
}
END_TEST

START_TEST(file_is_read_by_another_name_while_its_attributes_go_upstream)
{
    check_read_during_attribute_copy("b");
}
END_TEST

/* What is to be copied must not be overwritten, in whatever directory the two names are. */
START_TEST(object_of_a_linked_file_stays_until_the_link_is_published)
{
    g_autofree char *data = g_strnfill(300000, 'x');
    fs_fixture_object(&fx, "dir/a", data, 300000);
    make_link("dir/a", "b");
    INODE_REF dir = fs_fixture_inode(&fx, "dir");
    write_file("dir/new", 'y');
    ck_assert_int_eq(tree_rename(fx.fs, dir->ino, "new", dir->ino, "a", 0), 0);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "dir/a", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    publish_all();
    struct publish_counts n;
    publish_count(fx.fs->pub, "", &n);
    ck_assert_uint_eq(n.conflicts, 0);
    evict("b");
    assert_reads("b", 'x');
    assert_reads("dir/a", 'y');
}
END_TEST

/* 0: it is removed; 1: it is renamed over. Another name waits to be copied meanwhile. */
START_TEST(name_removed_while_it_is_copied_takes_no_other_along)
{
    fx.cfg.hold_delay_ns = 2 * NS_PER_S;
    fs_fixture_object(&fx, "d/there", "1", 1); /* names in another directory do not wait */
    write_file("a", 'x');
    fs_fixture_start(&fx);
    publish_all();
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=head,action=delay:300ms"), 0);
    INODE_REF d = fs_fixture_inode(&fx, "d");
    INODE_REF a = fs_fixture_inode(&fx, "a");
    INODE_REF linked = NULL;
    ck_assert_int_eq(tree_link(fx.fs, a->ino, d->ino, "b", &linked), 0);
    make_link("a", "late.tmp");
    for (unsigned i = 0; i < 5000 && !fs_fixture_object_exists(&fx, "d/b"); i++)
        g_usleep(1000);
    if (_i == 0)
        ck_assert_int_eq(tree_unlink(fx.fs, d->ino, "b"), 0);
    write_file(_i == 0 ? "d/b" : "d/c", 'y');
    if (_i == 1)
        ck_assert_int_eq(tree_rename(fx.fs, d->ino, "c", d->ino, "b", 0), 0);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "d", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    evict("a");
    assert_reads("a", 'x');
    publish_all();
    struct publish_counts n;
    publish_count(fx.fs->pub, "", &n);
    ck_assert_uint_eq(n.conflicts, 0);
    ck_assert(fs_fixture_object_exists(&fx, "late.tmp"));
    assert_reads("late.tmp", 'x');
    assert_reads("d/b", 'y');
}
END_TEST

static unsigned object_mode(const char *key)
{
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(fx.fs->store, key, &info), 0);
    unsigned mode = info.posix.fields & POSIX_MODE ? info.posix.mode & 07777 : 0;
    obj_info_clear(&info);
    return mode;
}

static void set_mode(const char *path, unsigned mode)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(attr_store(in, &(struct stat){.st_mode = mode}, FUSE_SET_ATTR_MODE), 0);
}

/* 0: they are set before the name is made; 1: while it waits to be copied; 2: while it is copied. */
START_TEST(another_name_carries_attributes_that_are_still_to_go_upstream)
{
    write_file("a", 'x');
    fs_fixture_start(&fx);
    publish_all();
    if (_i == 0)
        set_mode("a", 0640);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, _i == 2 ? "op=copy,nth=1,action=delay:300ms"
                                                              : "op=copy,nth=1,action=error:-EIO"),
                     0);
    make_link("a", "b");
    for (unsigned tries = 0; _i == 2 && !publish_has_note(fx.fs, "b"); pause_until_next_try(&tries))
        ;
    if (_i > 0)
        set_mode("a", 0640);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "b", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL),
                     0); /* before "a" has them */
    publish_all();
    ck_assert_uint_eq(object_mode("a"), 0640);
    ck_assert_uint_eq(object_mode("b"), 0640);
}
END_TEST

static void *publish_b(void *arg)
{
    INODE_REF in = fs_fixture_inode(&fx, "b");
    return GINT_TO_POINTER(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S));
}

static bool waits_for_its_turn(const char *key)
{
    mutex_lock(&fx.fs->pub->mu);
    const struct op *o = g_hash_table_lookup(fx.fs->pub->by_key, key);
    bool waits = o && o->at_gate;
    mutex_unlock(&fx.fs->pub->mu);
    return waits;
}

START_TEST(attributes_set_while_a_copy_waits_for_its_turn_go_upstream)
{
    pthread_t t;
    void *r;
    write_file("a", 'x');
    fs_fixture_start(&fx);
    publish_all();
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=put,key=c,action=error:-EIO"), 0);
    fs_fixture_write(&fx, "c", "1", 1);
    make_link("a", "b");
    ck_assert_int_eq(pthread_create(&t, NULL, publish_b, NULL), 0);
    EVENTUALLY(waits_for_its_turn("b"));
    set_mode("a", 0640);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
    ck_assert_int_eq(pthread_join(t, &r), 0);
    ck_assert_int_eq(GPOINTER_TO_INT(r), 0);
    publish_all();
    ck_assert_uint_eq(object_mode("a"), 0640);
    ck_assert_uint_eq(object_mode("b"), 0640);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("links");
    TCase *tc = tcase_create("links");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, other_name_is_read_from_its_own_object_when_the_first_is_removed);
    tcase_add_test(tc, other_name_is_read_from_its_own_object_when_the_first_is_renamed_over);
    tcase_add_test(tc, object_of_a_linked_file_stays_until_the_link_is_published);
    tcase_add_loop_test(tc, name_removed_while_it_is_copied_takes_no_other_along, 0, 2);
    tcase_add_test(tc, attributes_set_while_a_copy_waits_for_its_turn_go_upstream);
    tcase_add_loop_test(tc, another_name_carries_attributes_that_are_still_to_go_upstream, 0, 3);
    tcase_add_test(tc, cache_file_in_use_follows_the_file_to_another_name);
    suite_add_tcase(s, tc);
    tc = tcase_create("slow put");
    tcase_add_checked_fixture(tc, setup_slow_put, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, name_removed_while_it_is_published_is_not_read_from);
    suite_add_tcase(s, tc);
    tc = tcase_create("slow head");
    tcase_add_checked_fixture(tc, setup_slow_head, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, file_is_read_while_its_attributes_go_upstream);
    tcase_add_test(tc, file_is_read_by_another_name_while_its_attributes_go_upstream);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
