/* fsck: bytes at rest, what it keeps, and the database against the bucket (a folder). */
#include "cache/cache_scan.h"
#include "fs/content.h"
#include "fs/fsck.h"
#include "fs/links.h"
#include "fs/publish_internal.h"
#include "fs/publish_sums.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define INTENT "user.sluice.intent"

static struct fs_fixture fx;
static char *report;
static struct fsck_result result;
static bool offline, json;

static void setup(void)
{
    fs_fixture_init(&fx);
    fs_fixture_open(&fx);
    (void)log_open("/dev/null", LOG_LEVEL_ERR);
    offline = json = false;
}

static void teardown(void)
{
    g_clear_pointer(&report, g_free);
    fs_fixture_fini(&fx);
    log_close();
}

static int fsck(bool repair)
{
    char *text = NULL, *msg = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct fsck_options o = {.cache_dir = fx.cache_dir, .repair = repair, .offline = offline, .json = json, .out = out};
    int r = fs_fsck(&o, &result, &msg);
    fclose(out);
    g_free(report);
    report = g_strdup(text);
    free(text);
    ck_assert_msg(r == 0, "%s: %s", err_name(r), msg ? msg : "no message");
    return (int)result.left;
}

static void assert_says(const char *what)
{
    ck_assert_msg(strstr(report, what) != NULL, "'%s' is not in: %s", what, report);
}

static char *data_path(uint64_t vid)
{
    return g_strdup_printf("%s/data/%02x/%016" PRIx64, fx.cache_dir, (unsigned)(vid & 0xff), vid);
}

static char *rescued_path(uint64_t vid)
{
    return g_strdup_printf("%s/rescued/%016" PRIx64, fx.cache_dir, vid);
}

static uint64_t vid_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->rec.vid;
}

static void assert_file(const char *path, const char *want)
{
    g_autofree char *data = NULL;
    ck_assert_msg(g_file_get_contents(path, &data, NULL, NULL), "%s", path);
    ck_assert_str_eq(data, want);
}

static uint64_t leave(const char *path)
{
    fs_fixture_write(&fx, path, "hello", 5);
    uint64_t vid = vid_of(path);
    fs_fixture_close(&fx);
    return vid;
}

static void publish_and_close(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    fs_fixture_close(&fx);
}

static uint64_t leave_published(const char *path)
{
    fs_fixture_write(&fx, path, "hello", 5);
    uint64_t vid = vid_of(path);
    fs_fixture_start(&fx);
    publish_and_close();
    return vid;
}

/* ---- the database of the closed folder, changed by hand ---- */

static struct meta *open_meta(void)
{
    g_autofree char *path = g_build_filename(fx.cache_dir, "link", NULL), *text = NULL, *msg = NULL;
    struct meta *m = NULL;
    bool fresh;
    ck_assert(g_file_get_contents(path, &text, NULL, NULL));
    text[strcspn(text, "\n")] = '\0';
    ck_assert_int_eq(meta_open(fx.cache_dir, text, &m, &fresh, &msg), 0);
    return m;
}

static void end_change(struct meta *m, struct meta_batch *b)
{
    ck_assert_int_eq(meta_commit(b, true), 0);
    meta_batch_free(b);
    meta_close(m);
}

/* ---- bytes ---- */

START_TEST(byte_changed_after_the_close_is_found_and_quarantined)
{
    fs_fixture_write(&fx, "x", "hello", 5);
    uint64_t vid = vid_of("x");
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_int_eq(sums_make(fx.fs->pub, in->ino), 0);
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    ck_assert_int_eq(fsck(false), 0);
    g_autofree char *path = data_path(vid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, "j", 1, 0), 1);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(fsck(false), 1);
    assert_says("x: unpublished, and the disk changed it after it was closed: wrong checksum at offset 0");
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    assert_says("x: quarantined");
    assert_file(path, "jello");
}
END_TEST

START_TEST(lost_intent_is_written_again_and_brings_the_file_back)
{
    g_autofree char *path = data_path(leave("d/x y"));
    ck_assert_int_eq(removexattr(path, INTENT), 0);
    ck_assert_int_eq(fsck(false), 1);
    assert_says("d/x y: the intent beside its data is missing");
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    g_autofree char *cmd = g_strdup_printf("rm -r '%s/meta'", fx.cache_dir);
    ck_assert_int_eq(system(cmd), 0);
    ck_assert_int_eq(fsck(true), 0);
    assert_says("brought back: d/x y");
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(fs_fixture_object_exists(&fx, "d/x y"));
}
END_TEST

START_TEST(bytes_that_belong_to_nothing_are_kept_aside)
{
    fs_fixture_close(&fx);
    g_autofree char *path = data_path(0xabcdef), *to = rescued_path(0xabcdef), *empty = data_path(0xabcdee);
    g_autofree char *again = g_strconcat(to, ".1", NULL);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert(g_file_set_contents(path, i ? "second" : "first", -1, NULL));
        ck_assert(g_file_set_contents(empty, "", 0, NULL));
        ck_assert_int_eq(fsck(false), 2);
        ck_assert_int_eq(access(path, F_OK), 0);
        ck_assert_int_eq(fsck(true), 0);
        assert_says("1 files were put into rescued/ here");
        ck_assert_int_ne(access(path, F_OK), 0);
        ck_assert_int_ne(access(empty, F_OK), 0);
    }
    assert_file(to, "first");
    assert_file(again, "second");
}
END_TEST

START_TEST(file_that_moved_to_a_disk_that_has_it_not_is_kept_aside)
{
    uint64_t vid = leave_published("x");
    struct meta *m = open_meta();
    struct meta_cached c;
    ck_assert_int_eq(meta_cached_get(m, vid, &c), 0);
    c.tier = 5;
    struct meta_batch *b = meta_batch_new(m);
    meta_cached_put(b, &c);
    end_change(m, b);
    ck_assert_int_eq(fsck(false), 1);
    assert_says("was moved to another disk, but is not there");
    ck_assert_int_eq(fsck(true), 0);
    g_autofree char *to = rescued_path(vid);
    assert_file(to, "hello");
}
END_TEST

START_TEST(values_of_files_that_are_no_more_are_removed)
{
    fs_fixture_close(&fx);
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    meta_value_put(b, "seal/00000000000abcde", "12345678", 8);
    meta_value_put(b, "upload-token/00000000000abcde", "t", 1);
    end_change(m, b);
    ck_assert_int_eq(fsck(false), 2);
    assert_says("seal/00000000000abcde: belongs to a cache file that is no more");
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
}
END_TEST

START_TEST(wrong_space_in_the_records_is_said_and_corrected)
{
    uint64_t vid = leave("x");
    struct meta *m = open_meta();
    struct meta_cached c;
    ck_assert_int_eq(meta_cached_get(m, vid, &c), 0);
    c.bytes += 10 << 20;
    struct meta_batch *b = meta_batch_new(m);
    meta_cached_put(b, &c);
    end_change(m, b);
    ck_assert_int_eq(fsck(false), 0);
    assert_says("space: the records say");
    ck_assert_int_eq(fsck(true), 0);
    ck_assert_int_eq(fsck(false), 0);
    ck_assert_ptr_null(strstr(report, "space:"));
}
END_TEST

/* ---- the bucket ---- */

static void put_upload(struct meta_batch *b, uint64_t vid, char *key, char *id, const char *token)
{
    struct meta_upload u = {.vid = vid, .key = key, .upload_id = id, .part_bytes = 8 << 20, .gen = 1};
    g_autofree char *name = g_strdup_printf("upload-token/%016" PRIx64, vid);
    meta_upload_put(b, &u);
    meta_value_put(b, name, token, strlen(token));
}

static bool upload_recorded(uint64_t vid)
{
    struct meta_upload u;
    struct meta *m = open_meta();
    int r = meta_upload_get(m, vid, &u);
    if (r == 0)
        meta_upload_clear(&u);
    meta_close(m);
    ck_assert(r == 0 || r == -ENOENT);
    return r == 0;
}

START_TEST(upload_that_the_bucket_does_not_know_is_forgotten)
{
    char key[] = "x", id[] = "nosuchupload";
    uint64_t vid = leave("x");
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    put_upload(b, vid, key, id, "token");
    end_change(m, b);
    offline = true;
    ck_assert_int_eq(fsck(false), 0);
    ck_assert(!result.bucket_asked);
    offline = false;
    ck_assert_int_eq(fsck(false), 1);
    ck_assert(result.bucket_asked);
    assert_says("x: the bucket does not know its upload nosuchupload");
    ck_assert(upload_recorded(vid));
    ck_assert_int_eq(fsck(true), 0);
    ck_assert(!upload_recorded(vid));
    ck_assert_int_eq(fsck(false), 0);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(fs_fixture_object_exists(&fx, "x"));
}
END_TEST

START_TEST(upload_whose_object_is_there_is_left_to_the_mount)
{
    char key[] = "x", id[] = "nosuchupload";
    struct obj_meta meta = {.token = "our-token"};
    struct obj_cond cond = {.kind = OBJ_COND_NONE};
    ck_assert_int_eq(objstore_put(fx.fs->store, "x", "hello", 5, &meta, &cond, NULL), 0);
    uint64_t vid = leave("x");
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    put_upload(b, vid, key, id, "our-token");
    end_change(m, b);
    ck_assert_int_eq(fsck(true), 0);
    assert_says("x: uploaded whole, which is not recorded yet");
    ck_assert(upload_recorded(vid));
}
END_TEST

static int count_upload(void *ctx, const char *key, const char *upload_id)
{
    ++*(unsigned *)ctx;
    return 0;
}

/* One recorded, one of somebody else's. */
START_TEST(only_recorded_uploads_that_no_file_needs_are_aborted)
{
    char key[] = "gone", *id = NULL, *other = NULL;
    struct obj_meta meta = {.token = "t"};
    unsigned n = 0;
    ck_assert_int_eq(objstore_mpu_create(fx.fs->store, key, &meta, &id), 0);
    ck_assert_int_eq(objstore_mpu_create(fx.fs->store, "other", &meta, &other), 0);
    fs_fixture_close(&fx);
    struct meta *m = open_meta();
    struct meta_batch *b = meta_batch_new(m);
    put_upload(b, 4711, key, id, "t");
    end_change(m, b);
    ck_assert_int_ge(fsck(false), 1);
    assert_says("gone: no file needs its upload");
    assert_says("bucket: 1 uploads in progress are not of this cache");
    ck_assert_int_eq(fsck(true), 0);
    ck_assert(!upload_recorded(4711));
    ck_assert_int_eq(fsck(false), 0);
    fs_fixture_open(&fx);
    ck_assert_int_eq(objstore_mpu_list(fx.fs->store, "", count_upload, &n), 0);
    ck_assert_uint_eq(n, 1);
    g_free(id);
    g_free(other);
}
END_TEST

START_TEST(objects_changed_or_removed_elsewhere_are_said)
{
    uint64_t vid = leave_published("d/x");
    ck_assert_int_eq(fsck(false), 0);
    ck_assert(result.bucket_asked);
    ck_assert_ptr_null(strstr(report, "elsewhere"));
    fs_fixture_object(&fx, "d/x", "of others", 9);
    ck_assert_int_eq(fsck(false), 0);
    assert_says("d/x: was published, but its object was changed elsewhere since");
    g_autofree char *object = g_build_filename(fx.lake, "d", "x", NULL), *copy = data_path(vid);
    ck_assert_int_eq(unlink(object), 0);
    ck_assert_int_eq(fsck(true), 0);
    assert_says("d/x: was published, but its object was removed elsewhere; a copy is still in ");
    assert_says(copy);
    ck_assert_int_eq(access(copy, F_OK), 0);
}
END_TEST

/* 200 KiB of an object, of which a few bytes were changed here; what is not here is in the object only. */
START_TEST(unpublished_file_whose_object_is_gone_is_a_finding_that_stays)
{
    g_autofree char *data = g_strnfill(200 << 10, 'a');
    fs_fixture_object(&fx, "x", data, 200 << 10);
    INODE_REF in = fs_fixture_inode(&fx, "x");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "ZZZ", 3, 100 << 10);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(g_steal_pointer(&in));
    fs_fixture_close(&fx);
    ck_assert_int_eq(fsck(false), 0);
    g_autofree char *object = g_build_filename(fx.lake, "x", NULL);
    ck_assert_int_eq(unlink(object), 0);
    ck_assert_int_eq(fsck(false), 1);
    assert_says("x: what was not changed of it is only in the object 'x', which was removed elsewhere");
    ck_assert_int_eq(fsck(true), 1);
    fs_fixture_object(&fx, "x", "other", 5);
    ck_assert_int_eq(fsck(false), 1);
    assert_says("which was changed elsewhere");
}
END_TEST

START_TEST(bucket_that_does_not_answer_is_said_and_the_rest_checked)
{
    (void)leave("x");
    g_autofree char *away = g_strconcat(fx.lake, ".away", NULL);
    ck_assert_int_eq(rename(fx.lake, away), 0);
    ck_assert_int_eq(fsck(false), 0);
    ck_assert(!result.bucket_asked);
    assert_says("bucket: not asked: ");
    assert_says("x: not yet published");
    ck_assert_int_eq(rename(away, fx.lake), 0);
}
END_TEST

static void add_link(const char *dir)
{
    g_autofree char *lake = g_build_filename(fx.dir, dir, NULL), *source = g_strdup_printf("file://%s", lake),
                    *msg = NULL;
    json_t *none = json_object();
    ck_assert_int_eq(g_mkdir(lake, 0700), 0);
    ck_assert_msg(links_add(fx.fs, source, dir, none, &msg) == 0, "%s", msg);
    json_decref(none);
}

static void take_lake_away(const char *dir, bool away)
{
    g_autofree char *lake = g_build_filename(fx.dir, dir, NULL), *aside = g_strconcat(lake, ".away", NULL);
    ck_assert_int_eq(rename(away ? lake : aside, away ? aside : lake), 0);
}

static void remove_object(const char *dir, const char *key)
{
    g_autofree char *path = g_build_filename(fx.dir, dir, key, NULL);
    ck_assert_int_eq(unlink(path), 0);
}

START_TEST(links_that_do_not_answer_are_named_and_the_others_checked)
{
    static const char *const links[] = {"la", "lm", "lz"};
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < G_N_ELEMENTS(links); i++) {
        g_autofree char *path = g_strconcat(links[i], "/x", NULL);
        add_link(links[i]);
        fs_fixture_write(&fx, path, "hello", 5);
    }
    fs_fixture_write(&fx, "y", "hello", 5);
    publish_and_close();
    g_autofree char *at_root = g_build_filename(fx.lake, "y", NULL);
    ck_assert_int_eq(unlink(at_root), 0);
    remove_object("lm", "x");
    ck_assert_int_eq(fsck(false), 0);
    ck_assert_msg(result.bucket_asked, "%s", report);
    take_lake_away("la", true);
    take_lake_away("lz", true);
    ck_assert_int_eq(fsck(false), 0);
    ck_assert_msg(!result.bucket_asked, "%s", report);
    assert_says("la: the bucket of this link is not asked: ");
    assert_says("lz: the bucket of this link is not asked: ");
    assert_says("lm/x: was published, but its object was removed elsewhere");
    assert_says("\ny: was published, but its object was removed elsewhere");
    ck_assert_msg(!strstr(report, "la/x: ") && !strstr(report, "lz/x: "), "%s", report);
    take_lake_away("la", false);
    take_lake_away("lz", false);
}
END_TEST

START_TEST(links_are_checked_when_the_bucket_of_the_mount_does_not_answer)
{
    fs_fixture_start(&fx);
    add_link("la");
    fs_fixture_write(&fx, "la/x", "hello", 5);
    fs_fixture_write(&fx, "y", "hello", 5);
    publish_and_close();
    remove_object("la", "x");
    g_autofree char *away = g_strconcat(fx.lake, ".away", NULL);
    ck_assert_int_eq(rename(fx.lake, away), 0);
    ck_assert_int_eq(fsck(false), 0);
    ck_assert(!result.bucket_asked);
    assert_says("bucket: not asked: ");
    assert_says("la/x: was published, but its object was removed elsewhere");
    ck_assert_msg(!strstr(report, "\ny: "), "%s", report);
    ck_assert_int_eq(rename(away, fx.lake), 0);
}
END_TEST

START_TEST(json_is_one_object_a_line)
{
    g_autofree char *path = data_path(leave("x"));
    ck_assert_int_eq(truncate(path, 2), 0);
    json = true;
    ck_assert_int_eq(fsck(false), 1);
    g_auto(GStrv) lines = g_strsplit(g_strchomp(report), "\n", -1);
    unsigned findings = 0;
    for (unsigned i = 0; lines[i]; i++) {
        json_t *o = json_loads(lines[i], 0, NULL);
        ck_assert_msg(json_is_object(o), "%s", lines[i]);
        ck_assert_str_eq(json_string_value(json_object_get(o, "path")), "x");
        bool finding = g_str_equal(json_string_value(json_object_get(o, "event")), "finding");
        findings += finding;
        ck_assert(finding == json_is_false(json_object_get(o, "repaired")));
        json_decref(o);
    }
    ck_assert_uint_eq(findings, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fsck_store");
    TCase *t = tcase_create("fsck_store");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, byte_changed_after_the_close_is_found_and_quarantined);
    tcase_add_test(t, lost_intent_is_written_again_and_brings_the_file_back);
    tcase_add_test(t, bytes_that_belong_to_nothing_are_kept_aside);
    tcase_add_test(t, file_that_moved_to_a_disk_that_has_it_not_is_kept_aside);
    tcase_add_test(t, values_of_files_that_are_no_more_are_removed);
    tcase_add_test(t, wrong_space_in_the_records_is_said_and_corrected);
    tcase_add_test(t, upload_that_the_bucket_does_not_know_is_forgotten);
    tcase_add_test(t, upload_whose_object_is_there_is_left_to_the_mount);
    tcase_add_test(t, only_recorded_uploads_that_no_file_needs_are_aborted);
    tcase_add_test(t, objects_changed_or_removed_elsewhere_are_said);
    tcase_add_test(t, unpublished_file_whose_object_is_gone_is_a_finding_that_stays);
    tcase_add_test(t, bucket_that_does_not_answer_is_said_and_the_rest_checked);
    tcase_add_test(t, links_that_do_not_answer_are_named_and_the_others_checked);
    tcase_add_test(t, links_are_checked_when_the_bucket_of_the_mount_does_not_answer);
    tcase_add_test(t, json_is_one_object_a_line);
    suite_add_tcase(s, t);
    return run_suite(s);
}
