/* What a start makes of files that were open, closing or half published when the daemon ended. Without FUSE; a close of the fixture drops open files as a kill would. */
#include "fs/content.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

static struct fs_fixture fx;
static int n_reads; /* atomic: single reads of the database, each of them slow */

/* These take the place of the library's for the whole program. */
void *rocksdb_get_pinned(void *db, const void *options, const char *key, size_t len, char **err);
void rocksdb_iter_seek(void *it, const char *key, size_t len);

void *rocksdb_get_pinned(void *db, const void *options, const char *key, size_t len, char **err)
{
    void *(*real)(void *, const void *, const char *, size_t, char **) = dlsym(RTLD_NEXT, "rocksdb_get_pinned");
    g_atomic_int_inc(&n_reads);
    return real(db, options, key, len, err);
}

void rocksdb_iter_seek(void *it, const char *key, size_t len)
{
    void (*real)(void *, const char *, size_t) = dlsym(RTLD_NEXT, "rocksdb_iter_seek");
    g_atomic_int_inc(&n_reads);
    real(it, key, len);
}

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void restart(void)
{
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
}

static void wait_published(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
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

static uint32_t content_of(const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, name);
    return in->rec.content;
}

static char *object(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    char *text = NULL;
    return g_file_get_contents(path, &text, NULL, NULL) ? text : NULL;
}

START_TEST(closing_file_is_sealed_and_published)
{
    struct inode *in = begin("f", "text");
    ck_assert_int_eq(content_flush(in, false), 0);
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
    wait_published();
    ck_assert_uint_eq(content_of("f"), CONTENT_CLEAN);
    g_autofree char *text = object("f");
    ck_assert_pstr_eq(text, "text");
}
END_TEST

#define N_DIRS  8
#define PER_DIR 100

START_TEST(unpublished_files_are_read_as_in_a_scan)
{
    for (unsigned d = 0; d < N_DIRS; d++)
        for (unsigned i = 0; i < PER_DIR; i++) {
            g_autofree char *path = g_strdup_printf("run/d%u/f%03u", d, i);
            fs_fixture_write(&fx, path, "text", 4);
        }
    fs_fixture_close(&fx);
    g_atomic_int_set(&n_reads, 0);
    fs_fixture_open(&fx);
    ck_assert_int_lt(g_atomic_int_get(&n_reads), N_DIRS * PER_DIR / 4);
    struct publish_counts n;
    publish_count(fx.fs->pub, "run", &n);
    ck_assert_uint_eq(n.files, N_DIRS * PER_DIR);
    ck_assert_uint_eq(n.bytes, 4 * N_DIRS * PER_DIR);
    publish_count(fx.fs->pub, "run/d7/f099", &n);
    ck_assert_uint_eq(n.files, 1);
}
END_TEST

START_TEST(bringing_a_file_here_does_not_close_it)
{
    (void)begin("f", "text");
    restart();
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_detach(in, false), 0);
    content_end_detach(in);
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
    ck_assert_int_eq(content_open(in, true, false), 0); /* its next writer does */
    content_release(in, true);
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
}
END_TEST

START_TEST(file_never_closed_stays_here_unpublished)
{
    (void)begin("f", "text");
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "g", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0); /* being written */
    content_release(in, true);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(fs_fixture_object_exists(&fx, "f"));
}
END_TEST

/* Closed once and journalled, then written on: its record is there and runs for nobody. */
START_TEST(file_written_on_and_never_closed_again_needs_a_decision)
{
    struct inode *in = begin("f", "text");
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    restart();
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "f", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
}
END_TEST

/* Closed once it keeps its place, so what was closed after it waits for a close that nobody makes. */
START_TEST(what_waits_for_a_file_never_closed_again_needs_a_decision)
{
    fs_fixture_write(&fx, "f", "text", 4);
    struct inode *open = fs_fixture_inode(&fx, "f"); /* never let go: see begin() */
    ck_assert_int_eq(content_open(open, true, false), 0);
    ck_assert_int_eq(content_begin_change(open), 0);
    fs_fixture_pwrite(open, "more", 4, 4);
    fs_fixture_write(&fx, "g", "text", 4);
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "g", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert(!fs_fixture_object_exists(&fx, "g"));
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    content_release(in, true);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(fs_fixture_object_exists(&fx, "g"));
}
END_TEST

START_TEST(closing_file_whose_snapshot_is_published_becomes_clean)
{
    struct inode *in = begin("f", "text");
    fs_fixture_start(&fx);
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S), 0);
    ck_assert(fs_fixture_object_exists(&fx, "f"));
    restart();
    wait_published();
    ck_assert_uint_eq(content_of("f"), CONTENT_CLEAN);
}
END_TEST

/* Through a mapping, say. */
START_TEST(store_that_does_not_show_behind_a_published_snapshot_is_published)
{
    struct stat st;
    struct inode *in = begin("f", "text");
    fs_fixture_start(&fx);
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S), 0);
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", cache_file_fd(in->cf)); /* that one only reads */
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(fstat(fd, &st), 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    ck_assert_int_eq(pwrite(fd, "TEXT", 4, 0), 4);
    ck_assert_int_eq(futimens(fd, times), 0);
    close(fd);
    restart();
    wait_published();
    g_autofree char *text = object("f");
    ck_assert_pstr_eq(text, "TEXT");
    ck_assert_uint_eq(content_of("f"), CONTENT_CLEAN);
}
END_TEST

START_TEST(file_written_on_after_a_published_snapshot_is_published_again)
{
    struct inode *in = begin("f", "text");
    fs_fixture_start(&fx);
    ck_assert_int_eq(content_flush(in, false), 0);
    ck_assert_int_eq(content_begin_change(in),
                     0); /* another writer: open again while the first one's close is published */
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S), 0);
    restart();
    INODE_REF again = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(again, true, false), 0);
    ck_assert_int_eq(content_begin_change(again), 0);
    fs_fixture_pwrite(again, "TEXT", 4, 0);
    ck_assert_int_eq(content_flush(again, false), 0);
    content_release(again, true);
    inode_put(g_steal_pointer(&again));
    restart(); /* before it is published: what only memory knew is gone */
    wait_published();
    g_autofree char *text = object("f");
    ck_assert_pstr_eq(text, "TEXT");
}
END_TEST

/* As if all that happens from here on had happened before the machine went down. */
static void before_power_loss(struct inode *in)
{
    mutex_lock(&fx.fs->ns);
    mutex_lock(&in->mu);
    g_strlcpy(in->rec.boot_id, "another boot", sizeof(in->rec.boot_id));
    mutex_unlock(&in->mu);
    mutex_unlock(&fx.fs->ns);
}

START_TEST(synced_and_closed_file_survives_power_loss)
{
    struct inode *in = begin("f", "text");
    before_power_loss(in);
    ck_assert_int_eq(content_sync(in), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    if (_i)
        content_release(in, true);
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
    wait_published();
    g_autofree char *text = object("f");
    ck_assert_pstr_eq(text, "text");
}
END_TEST

/* As an exchange does. 0: unsynced, 1: synced, 2: published. */
START_TEST(file_made_independent_of_the_store_survives_power_loss_as_before)
{
    struct inode *in = begin("f", "text");
    if (_i == 1)
        ck_assert_int_eq(content_sync(in), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    if (_i == 2)
        wait_published();
    restart();
    in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_detach(in, false), 0);
    before_power_loss(in);
    content_end_detach(in);
    inode_put(in);
    restart();
    ck_assert_uint_eq(content_of("f"), _i == 0 ? CONTENT_QUARANTINED : CONTENT_SEALED);
}
END_TEST

START_TEST(file_written_after_its_sync_does_not)
{
    struct inode *in = begin("f", "text");
    before_power_loss(in);
    if (_i)
        ck_assert_int_eq(content_sync(in), 0);
    fs_fixture_pwrite(in, "more", 4, 4);
    ck_assert_int_eq(content_flush(in, false), 0);
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_QUARANTINED);
}
END_TEST

START_TEST(synced_file_never_closed_stays_here_after_power_loss)
{
    struct inode *in = begin("f", "text");
    before_power_loss(in);
    ck_assert_int_eq(content_sync(in), 0);
    fs_fixture_pwrite(in, "more", 4, 4);
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
    INODE_REF again = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(again, true, false), 0); /* written on in this boot, which ends without power loss */
    ck_assert_int_eq(content_begin_change(again), 0);
    fs_fixture_pwrite(again, "!", 1, 8);
    ck_assert_int_eq(content_flush(again, false), 0);
    content_release(again, true);
    inode_put(g_steal_pointer(&again));
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
}
END_TEST

/* As the publisher does with content that an older upload would replace. */
START_TEST(bringing_a_quarantined_file_here_does_not_close_it)
{
    struct inode *in = begin("f", "text");
    before_power_loss(in);
    ck_assert_int_eq(content_flush(in, false), 0);
    restart();
    INODE_REF again = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_detach(again, false), 0);
    content_end_detach(again);
    ck_assert_uint_eq(content_of("f"), CONTENT_QUARANTINED);
}
END_TEST

/* With or without a journal record: a skipped file is one rename away from being published. */
START_TEST(sealed_file_lost_with_the_power_is_quarantined)
{
    fs_fixture_close(&fx);
    fx.cfg.fault = g_strdup("op=list,nth=1000000,action=error:-EINVAL"); /* none yet */
    fs_fixture_open(&fx);
    struct inode *in = begin("f", "text");
    before_power_loss(in);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    if (_i) { /* not even the store's probe succeeds, which comes before the sync of an upload */
        ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=error:-EINVAL"), 0);
        fs_fixture_start(&fx);
        ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
        ck_assert_int_eq(publish_skip(fx.fs->pub, "f"), 1);
        ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    }
    ck_assert_uint_eq(content_of("f"), CONTENT_SEALED);
    restart();
    ck_assert_uint_eq(content_of("f"), CONTENT_QUARANTINED);
}
END_TEST

START_TEST(store_is_probed_again_when_more_is_probed)
{
    uint64_t value = 0;
    fs_fixture_write(&fx, "f", "1", 1);
    wait_published();
    uint32_t caps = objstore_caps(fx.fs->store);
    restart();
    ck_assert(atomic_load(&fx.fs->probed));
    ck_assert_uint_eq(objstore_caps(fx.fs->store), caps);
    ck_assert_int_eq(meta_value_get_u64(fx.fs->meta, STORE_CAPS_VALUE, &value), 0);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put_u64(b, STORE_CAPS_VALUE, (uint32_t)value); /* of an earlier version */
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    restart();
    ck_assert(!atomic_load(&fx.fs->probed));
    fs_fixture_write(&fx, "g", "2", 1);
    wait_published();
    restart();
    ck_assert(atomic_load(&fx.fs->probed));
}
END_TEST

/* As of a store that is full: deletes go on, which make room, and the rest waits until it can be probed. */
START_TEST(store_that_cannot_be_probed_as_it_is_full_can_be_emptied)
{
    fs_fixture_write(&fx, "f", "1", 1);
    wait_published();
    fs_fixture_close(&fx);
    fx.cfg.fault = g_strdup("op=list,nth=1000000,action=error:-EINVAL"); /* none yet */
    fs_fixture_open(&fx);
    atomic_store(&fx.fs->probed, false); /* as after an update */
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=error:-EDQUOT"), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    fs_fixture_write(&fx, "g", "2", 1);
    int64_t deletes = metric_get(M_published_deletes), failures = metric_get(M_publish_failures);
    fs_fixture_start(&fx);
    EVENTUALLY(metric_get(M_published_deletes) > deletes);
    EVENTUALLY(metric_get(M_publish_failures) > failures);
    ck_assert(!atomic_load(&fx.fs->probed));
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, ""), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(atomic_load(&fx.fs->probed));
}
END_TEST

START_TEST(store_is_probed_while_the_first_file_is_written)
{
    fs_fixture_start(&fx);
    (void)begin("f", "text");
    EVENTUALLY(atomic_load(&fx.fs->probed));
    ck_assert_uint_eq(content_of("f"), CONTENT_OPEN);
}
END_TEST

static char *data_path(uint64_t vid)
{
    return g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir, (unsigned)(vid & 0xff), vid);
}

/* As a kill leaves it between the batch that removes its record and the removal of its bytes. */
START_TEST(bytes_of_a_file_that_is_no_more_are_removed)
{
    struct cfile *cf = NULL;
    ck_assert_int_eq(cache_file_new(fx.fs->cache, 4711, &cf), 0);
    ck_assert_int_eq(cache_file_write(cf, "text", 4, 0), 4);
    g_autofree char *path = data_path(cache_file_vid(cf));
    cache_file_unref(cf);
    ck_assert_int_eq(access(path, F_OK), 0);
    restart();
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

/* As a kill leaves it between the batch that says so and the marks of the cache. */
START_TEST(published_file_whose_marks_were_left_may_be_evicted)
{
    struct inode *in = begin("f", "text");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    wait_published();
    struct cfile *cf = NULL;
    content_gate_enter(in); /* which the publisher holds until the marks are gone */
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    ck_assert_int_eq(cache_file_set_intent(cf, "{}"), 0);
    uint64_t vid = cache_file_vid(cf);
    content_unuse(in, cf);
    content_gate_leave(in);
    restart();
    g_autofree char *path =
        g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir, (unsigned)(vid & 0xff), vid);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(getxattr(path, "user.sluice.intent", NULL, 0), -1);
    ck_assert_int_eq(cache_evict(fx.fs->cache, vid), 0);
}
END_TEST

/* As a power loss left it where the file had gone before it was on the disk that it was published. */
START_TEST(published_file_whose_bytes_are_gone_is_fetched)
{
    struct inode *in = begin("f", "text");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    wait_published();
    struct cfile *cf = NULL;
    content_gate_enter(in);
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_eq(cache_file_set_dirty(cf, true), 0);
    g_autofree char *path = data_path(cache_file_vid(cf));
    content_unuse(in, cf);
    content_gate_leave(in);
    inode_put(in);
    fs_fixture_close(&fx);
    ck_assert_int_eq(unlink(path), 0);
    fs_fixture_open(&fx);
    INODE_REF again = fs_fixture_inode(&fx, "f");
    char text[4];
    ck_assert_int_eq(content_open(again, false, false), 0);
    ck_assert_int_eq(cache_file_read(again->cf, text, 4, 0), 4);
    ck_assert_mem_eq(text, "text", 4);
    content_release(again, false);
}
END_TEST

/* A rename that comes with the end of the upload, say, has nothing to leave beside the data. */
START_TEST(published_file_gets_no_intent)
{
    struct inode *in = begin("f", "text");
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    wait_published();
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    content_gate_enter(in);
    content_write_intent(in);
    content_gate_leave(in);
    ck_assert_int_eq(fgetxattr(cache_file_fd(cf), "user.sluice.intent", NULL, 0), -1);
    content_unuse(in, cf);
}
END_TEST

START_TEST(start_after_a_kill_while_the_folder_was_bound)
{
    g_autofree char *path = g_build_filename(fx.cache_dir, "link", NULL), *text = NULL;
    fs_fixture_close(&fx);
    ck_assert(g_file_set_contents(path, "", 0, NULL));
    fs_fixture_open(&fx);
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    ck_assert_ptr_nonnull(strstr(text, fx.lake));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("recover");
    TCase *t = tcase_create("start");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, closing_file_is_sealed_and_published);
    tcase_add_test(t, unpublished_files_are_read_as_in_a_scan);
    tcase_add_test(t, file_never_closed_stays_here_unpublished);
    tcase_add_test(t, file_written_on_and_never_closed_again_needs_a_decision);
    tcase_add_test(t, what_waits_for_a_file_never_closed_again_needs_a_decision);
    tcase_add_test(t, bringing_a_file_here_does_not_close_it);
    tcase_add_test(t, closing_file_whose_snapshot_is_published_becomes_clean);
    tcase_add_test(t, store_that_does_not_show_behind_a_published_snapshot_is_published);
    tcase_add_test(t, file_written_on_after_a_published_snapshot_is_published_again);
    tcase_add_loop_test(t, synced_and_closed_file_survives_power_loss, 0, 2);
    tcase_add_loop_test(t, file_made_independent_of_the_store_survives_power_loss_as_before, 0, 3);
    tcase_add_loop_test(t, file_written_after_its_sync_does_not, 0, 2);
    tcase_add_test(t, synced_file_never_closed_stays_here_after_power_loss);
    tcase_add_loop_test(t, sealed_file_lost_with_the_power_is_quarantined, 0, 2);
    tcase_add_test(t, bringing_a_quarantined_file_here_does_not_close_it);
    tcase_add_test(t, store_is_probed_while_the_first_file_is_written);
    tcase_add_test(t, store_that_cannot_be_probed_as_it_is_full_can_be_emptied);
    tcase_add_test(t, store_is_probed_again_when_more_is_probed);
    tcase_add_test(t, published_file_whose_marks_were_left_may_be_evicted);
    tcase_add_test(t, published_file_whose_bytes_are_gone_is_fetched);
    tcase_add_test(t, bytes_of_a_file_that_is_no_more_are_removed);
    tcase_add_test(t, published_file_gets_no_intent);
    tcase_add_test(t, start_after_a_kill_while_the_folder_was_bound);
    suite_add_tcase(s, t);
    return run_suite(s);
}
