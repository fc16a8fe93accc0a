/* --accept-loss: a cache disk that is empty while the database knows of unpublished files on it. */
#include "fs/content.h"
#include "fs/local.h"
#include "fs/lost_cache.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "tests/support/checks.h"
#include "tests/support/takeover.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *msg; /* of the last refusal */

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    g_clear_pointer(&msg, g_free);
}

static void lose_data(const char *dir)
{
    g_autofree char *cmd = g_strdup_printf("rm -f '%s'/data/*/*", dir);
    ck_assert_int_eq(system(cmd), 0);
}

static void expect_refusal(void)
{
    const struct fs_setup how = {.cfg = &fx.cfg};
    g_clear_pointer(&msg, g_free);
    ck_assert_int_eq(fs_open(&how, &fx.fs, &msg), -ENODATA);
    fx.fs = NULL;
    ck_assert_ptr_nonnull(msg);
    ck_assert_msg(strstr(msg, "--accept-loss") && !strchr(msg, '\n'), "%s", msg);
}

static uint32_t content_of(const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, name);
    return in->rec.content;
}

static int open_file(const char *name)
{
    INODE_REF in = fs_fixture_inode(&fx, name);
    int r = content_open(in, false, false);
    if (r == 0)
        content_release(in, false);
    return r;
}

static int wait_published(void)
{
    fs_fixture_start(&fx);
    return publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL);
}

static struct inode *begin(const char *name)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .name = name, .mode = S_IFREG | 0644};
    struct inode *in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "text", 4, 0);
    return in; /* never let go: it belongs to the table */
}

/* ---- refused ---- */

START_TEST(emptied_disk_is_refused_and_its_files_are_named)
{
    for (unsigned i = 0; i < 12; i++) {
        g_autofree char *name = g_strdup_printf("d/f%02u", i);
        fs_fixture_write(&fx, name, "hello", 5);
    }
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    for (unsigned k = 0; k < 2; k++) { /* the refusal changes nothing */
        expect_refusal();
        ck_assert_msg(strstr(msg, fx.cache_dir) && strstr(msg, " 12 unpublished files were on it"), "%s", msg);
        ck_assert_msg(strstr(msg, "'d/f00', 'd/f01', "), "%s", msg);
        ck_assert_msg(strstr(msg, "'d/f09' and 2 more") && !strstr(msg, "d/f10"), "%s", msg);
    }
}
END_TEST

START_TEST(however_many_are_lost_the_log_names_each)
{
    for (unsigned i = 0; i < 40; i++) {
        g_autofree char *name = g_strdup_printf("d/f%02u", i);
        fs_fixture_write(&fx, name, "hello", 5);
    }
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    g_autofree char *file = g_build_filename(fx.dir, "log", NULL), *text = NULL;
    ck_assert_int_eq(log_open(file, LOG_LEVEL_NOTICE), 0);
    expect_refusal();
    ck_assert(g_file_get_contents(file, &text, NULL, NULL));
    for (unsigned i = 0; i < 40; i++) {
        g_autofree char *name = g_strdup_printf("path='d/f%02u'", i);
        ck_assert_msg(strstr(text, name) != NULL, "%s", name);
    }
}
END_TEST

START_TEST(disk_that_comes_back_is_served_as_before)
{
    fs_fixture_write(&fx, "x", "hello", 5);
    fs_fixture_close(&fx);
    g_autofree char *data = g_build_filename(fx.cache_dir, "data", NULL), *away = g_strconcat(data, ".away", NULL),
                    *rm = g_strdup_printf("rm -r '%s'", data);
    ck_assert_int_eq(rename(data, away), 0);
    expect_refusal();
    ck_assert_int_eq(system(rm), 0);
    ck_assert_int_eq(rename(away, data), 0);
    fs_fixture_open(&fx);
    ck_assert_int_eq(wait_published(), 0);
    ck_assert(fs_fixture_object_exists(&fx, "x"));
}
END_TEST

START_TEST(each_disk_is_looked_at)
{
    fs_fixture_close(&fx);
    g_autofree char *second = g_build_filename(fx.dir, "second", NULL);
    g_free(fx.cfg.cache_dir);
    fx.cfg.cache_dir = g_strconcat(fx.cache_dir, ":", second, NULL);
    fs_fixture_open(&fx);
    for (unsigned i = 0; i < 8; i++) {
        g_autofree char *name = g_strdup_printf("f%u", i);
        fs_fixture_write(&fx, name, "hello", 5);
    }
    fs_fixture_close(&fx);
    lose_data(_i ? second : fx.cache_dir);
    expect_refusal();
    ck_assert_msg(strstr(msg, _i ? second : fx.cache_dir), "%s", msg);
}
END_TEST

START_TEST(file_that_was_never_closed_counts)
{
    (void)begin("open");
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    expect_refusal();
    ck_assert_msg(strstr(msg, "1 unpublished file was on it: 'open'"), "%s", msg);
}
END_TEST

/* ---- not refused ---- */

START_TEST(one_file_that_is_missing_among_others_is_not_the_loss_of_a_disk)
{
    fs_fixture_write(&fx, "here", "hello", 5);
    fs_fixture_write(&fx, "gone", "hello", 5);
    INODE_REF in = fs_fixture_inode(&fx, "gone");
    uint64_t vid = in->rec.vid;
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    g_autofree char *file =
        g_strdup_printf("%s/data/%02x/%016" G_GINT64_MODIFIER "x", fx.cache_dir, (unsigned)(vid & 0xff), vid);
    ck_assert_int_eq(unlink(file), 0);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(content_of("gone"), CONTENT_SEALED); /* until somebody looks */
    ck_assert_int_eq(wait_published(), -EIO);
    ck_assert(fs_fixture_object_exists(&fx, "here"));
    ck_assert_uint_eq(content_of("gone"), CONTENT_QUARANTINED);
}
END_TEST

/* As a kill leaves it between the batch that records what was published and the word to the cache. */
static void mark_dirty(uint64_t vid)
{
    g_autofree char *path = g_build_filename(fx.cache_dir, "link", NULL), *text = NULL;
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    text[strcspn(text, "\n")] = '\0';
    struct meta *m = NULL;
    struct meta_cached c;
    bool fresh;
    ck_assert_int_eq(meta_open(fx.cache_dir, text, &m, &fresh, &msg), 0);
    ck_assert_int_eq(meta_cached_get(m, vid, &c), 0);
    c.flags |= CACHED_DIRTY;
    struct meta_batch *b = meta_batch_new(m);
    meta_cached_put(b, &c);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
}

START_TEST(published_files_may_be_lost)
{
    fs_fixture_write(&fx, "x", "hello", 5);
    ck_assert_int_eq(wait_published(), 0);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    uint64_t vid = in->rec.vid;
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    if (_i)
        mark_dirty(vid);
    fs_fixture_open(&fx);
    ck_assert_int_eq(open_file("x"), 0);
}
END_TEST

START_TEST(what_a_power_loss_took_is_quarantined_as_ever)
{
    fs_fixture_write(&fx, "x", "hello", 5);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    struct meta_inode rec = in->rec;
    g_strlcpy(rec.boot_id, "another", sizeof(rec.boot_id));
    rec.flags &= ~(uint32_t)INODE_DATA_SYNCED;
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_inode_put(b, &rec);
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    fs_fixture_open(&fx);
    ck_assert_uint_eq(content_of("x"), CONTENT_QUARANTINED);
}
END_TEST

static void write_two(void)
{
    struct handle *h = takeover_create("closed");
    takeover_write(h, "text", 0);
    takeover_flush(h);
    takeover_release(h);
    h = takeover_create("open");
    takeover_write(h, "text", 0);
}

START_TEST(takeover_is_never_refused)
{
    takeover_run(write_two, false);
    lose_data(fx.cache_dir);
    takeover_open(false);
    ck_assert_uint_eq(takeover_content("closed"), CONTENT_SEALED);
}
END_TEST

/* ---- accepted ---- */

START_TEST(accepted_loss_is_visible_and_never_published)
{
    fs_fixture_object(&fx, "edited", "of the store", 12);
    INODE_REF in = fs_fixture_inode(&fx, "edited");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "OF", 2, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(g_steal_pointer(&in));
    fs_fixture_write(&fx, "closed", "hello", 5);
    (void)begin("open");
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    expect_refusal();
    fx.cfg.accept_loss = true;
    fs_fixture_open(&fx);
    static const char *const names[] = {"edited", "closed", "open"};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) { /* before anybody looked */
        ck_assert_uint_eq(content_of(names[i]), CONTENT_QUARANTINED);
        ck_assert_int_eq(open_file(names[i]), -EIO);
    }
    struct cache_usage usage;
    cache_usage(fx.fs->cache, &usage);
    ck_assert_uint_eq(usage.dirty_bytes, 0);
    struct publish_counts counts;
    publish_count(fx.fs->pub, "", &counts);
    ck_assert_uint_eq(counts.parked, 3); /* what `status` and `wait` tell of */
    ck_assert_int_eq(wait_published(), -EIO);
    ck_assert(!fs_fixture_object_exists(&fx, "closed") && !fs_fixture_object_exists(&fx, "open"));
    g_autofree char *path = g_build_filename(fx.lake, "edited", NULL), *text = NULL;
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    ck_assert_str_eq(text, "of the store");
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, names[i]), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "closed"), 0);
}
END_TEST

START_TEST(lost_file_that_a_rule_keeps_here_is_counted_as_such)
{
    fs_fixture_close(&fx);
    fx.cfg.rule = g_strdup("tmp/**=local-only");
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "tmp/x", "hello", 5);
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    expect_refusal();
    fx.cfg.accept_loss = true;
    fs_fixture_open(&fx);
    struct local_counts local;
    struct publish_counts counts;
    local_count(fx.fs, &local);
    ck_assert_uint_eq(local.quarantined, 1);
    publish_count(fx.fs->pub, "", &counts);
    ck_assert_uint_eq(counts.parked, 0);
}
END_TEST

START_TEST(what_was_accepted_is_not_asked_for_again)
{
    fs_fixture_write(&fx, "x", "hello", 5);
    fs_fixture_close(&fx);
    lose_data(fx.cache_dir);
    fx.cfg.accept_loss = true;
    fs_fixture_open(&fx);
    fs_fixture_close(&fx);
    fx.cfg.accept_loss = false;
    fs_fixture_open(&fx);
    ck_assert_uint_eq(content_of("x"), CONTENT_QUARANTINED);
}
END_TEST

START_TEST(option_changes_nothing_where_nothing_is_lost)
{
    fs_fixture_write(&fx, "x", "hello", 5);
    fs_fixture_close(&fx);
    fx.cfg.accept_loss = true;
    fs_fixture_open(&fx);
    ck_assert_int_eq(wait_published(), 0);
    ck_assert(fs_fixture_object_exists(&fx, "x"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("lost_cache");
    TCase *tc = tcase_create("lost"), *over = tcase_create("takeover");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, emptied_disk_is_refused_and_its_files_are_named);
    tcase_add_test(tc, however_many_are_lost_the_log_names_each);
    tcase_add_test(tc, disk_that_comes_back_is_served_as_before);
    tcase_add_loop_test(tc, each_disk_is_looked_at, 0, 2);
    tcase_add_test(tc, file_that_was_never_closed_counts);
    tcase_add_test(tc, one_file_that_is_missing_among_others_is_not_the_loss_of_a_disk);
    tcase_add_loop_test(tc, published_files_may_be_lost, 0, 2);
    tcase_add_test(tc, what_a_power_loss_took_is_quarantined_as_ever);
    tcase_add_test(tc, accepted_loss_is_visible_and_never_published);
    tcase_add_test(tc, lost_file_that_a_rule_keeps_here_is_counted_as_such);
    tcase_add_test(tc, what_was_accepted_is_not_asked_for_again);
    tcase_add_test(tc, option_changes_nothing_where_nothing_is_lost);
    suite_add_tcase(s, tc);
    tcase_add_checked_fixture(over, takeover_setup, takeover_teardown);
    tcase_add_test(over, takeover_is_never_refused);
    suite_add_tcase(s, over);
    return run_suite(s);
}
