/* Which objects are taken for earlier versions of a file, and what is kept of them. */
#include "fs/content.h"
#include "fs/delta.h"
#include "fs/delta_base.h"
#include "fs/links.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- names ---- */

static const struct {
    const char *key, *other;
    int n_differ; /* -1: not related */
    unsigned first;
    bool in_name;
} kin[] = {
    {"a/model.pt", "a/model.pt", 0, 0, false},
    {"step_200/model.pt", "step_100/model.pt", 1, 0, false},
    {"step_1000/model.pt", "step_999/model.pt", 1, 0, false},
    {"ckpt_200.pt", "ckpt_100.pt", 1, 0, true},
    {"run7/ckpt_200.pt", "run7/ckpt_100.pt", 1, 1, true},
    {"epoch=3-step=400.ckpt", "epoch=2-step=300.ckpt", 2, 0, true},
    {"step_200/rank_5.pt", "step_100/rank_4.pt", 2, 0, true},
    {"checkpoint-500/model-00001-of-00003.safetensors", "checkpoint-400/model-00001-of-00003.safetensors", 1, 0, false},
    {"ckpt_007.pt", "ckpt_7.pt", 1, 0, true},
    {"7", "8", 1, 0, true},
    {"a/model.pt", "b/model.pt", -1, 0, false},
    {"model.pt", "model1.pt", -1, 0, false},
    {"model1.pt", "model.pt", -1, 0, false},
    {"step_100/model.pt", "step_100/optim.pt", -1, 0, false},
    {"step_1/model.pt", "step_1/model.pt.bak", -1, 0, false},
    {"step_1", "step_1/model.pt", -1, 0, false},
    {"a1b", "a1c", -1, 0, false},
    {"", "", 0, 0, false},
    {"", "1", -1, 0, false},
};

START_TEST(kin_by_name)
{
    struct delta_kin k = {.n_differ = 99};
    ck_assert_msg(delta_kin(kin[_i].key, kin[_i].other, &k) == (kin[_i].n_differ >= 0), "%s %s", kin[_i].key,
                  kin[_i].other);
    if (kin[_i].n_differ < 0) {
        ck_assert_uint_eq(k.n_differ, 99);
        return;
    }
    ck_assert_uint_eq(k.n_differ, (unsigned)kin[_i].n_differ);
    ck_assert_uint_eq(k.first, kin[_i].first);
    ck_assert_int_eq(k.in_name, kin[_i].in_name);
}
END_TEST

/* The keys chosen for `key` of names, the oldest first, up to NULL; "a b c". */
static char *chosen(const char *key, const char *const *names, unsigned max)
{
    struct delta_name d[64];
    unsigned n = 0, ret[64];
    for (; names[n]; n++)
        d[n] = (struct delta_name){names[n], n + 1};
    n = delta_choose(key, d, n, ret, max);
    ck_assert_uint_le(n, max);
    GString *s = g_string_new(NULL);
    for (unsigned i = 0; i < n; i++)
        g_string_append_printf(s, "%s%s", i ? " " : "", d[ret[i]].key);
    return g_string_free(s, FALSE);
}

static void assert_chosen(const char *key, const char *const *names, const char *want)
{
    g_autofree char *got = chosen(key, names, 6);
    ck_assert_str_eq(got, want);
}

START_TEST(newest_sibling_comes_first)
{
    const char *const names[] = {"s_100/m.pt", "s_200/m.pt", "s_300/m.pt", "s_300/o.pt", "other", NULL};
    assert_chosen("s_400/m.pt", names, "s_300/m.pt s_200/m.pt");
    assert_chosen("s_200/m.pt", names, "s_200/m.pt s_300/m.pt s_100/m.pt");
    assert_chosen("t_200/m.pt", names, "");
}
END_TEST

START_TEST(same_rank_of_the_step_before)
{
    const char *const names[] = {"s_1/r_0", "s_1/r_1", "s_1/r_2", "s_1/r_3", "s_2/r_0", "s_2/r_1", "s_2/r_2", NULL};
    g_autofree char *got = chosen("s_2/r_3", names, 1);
    ck_assert_str_eq(got, "s_1/r_3");
    assert_chosen("s_2/r_3", names, "s_1/r_3 s_2/r_2 s_2/r_1 s_1/r_2 s_1/r_1");
}
END_TEST

START_TEST(step_and_rank_in_one_name)
{
    const char *const names[] = {"s1_r0", "s1_r1", "s1_r2", "s1_r3", "s2_r0", "s2_r1", "s2_r2", NULL};
    g_autofree char *got = chosen("s2_r3", names, 6);
    ck_assert_ptr_nonnull(
        strstr(got, "s1_r3")); /* the newest that has another step, behind two that have another rank */
}
END_TEST

/* ---- records ---- */

#define PART (64u << 10)
#define SIZE (10u * PART)

static struct fs_fixture fx;

static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.part_size = PART;
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

/* All of it is `fill`, but each part begins with its number. */
static void save(const char *path, char fill)
{
    g_autofree char *data = g_malloc(SIZE);
    memset(data, fill, SIZE);
    for (unsigned i = 0; i < SIZE / PART; i++)
        memcpy(data + i * PART, &i, sizeof(i));
    memcpy(data + 3 * PART, path, strlen(path));
    fs_fixture_write(&fx, path, data, SIZE);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static char *in_folder(const char *folder, const char *key)
{
    return g_build_filename(fx.dir, folder, key, NULL);
}

static void link_to(const char *folder)
{
    json_t *o = json_object();
    g_autofree char *path = in_folder(folder, ""), *msg = NULL;
    g_autofree char *source = g_strdup_printf("file://%s/%s", fx.dir, folder);
    ck_assert_int_eq(g_mkdir_with_parents(path, 0700), 0);
    ck_assert_msg(links_add(fx.fs, source, "la", o, &msg) == 0, "%s", msg);
    json_decref(o);
}

/* Other bytes under the same ETag, which the file store makes of inode, time and size. */
static void swap_bytes(const char *path)
{
    struct stat st;
    g_autofree char *other = g_malloc(SIZE);
    memset(other, 'z', SIZE);
    ck_assert_int_eq(stat(path, &st), 0);
    FILE *f = fopen(path, "r+e");
    ck_assert(f && fwrite(other, 1, SIZE, f) == SIZE && fclose(f) == 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static uint64_t saved_of(const char *key)
{
    struct meta_dentry d = {0};
    INODE_REF in = fs_fixture_inode(&fx, key);
    ck_assert_int_eq(meta_link_first(fx.fs->meta, in->ino, &d), 0);
    uint64_t n = delta_saved_bytes(fx.fs, d.ukey ? d.ukey : key, &d.uetag);
    meta_dentry_clear(&d);
    return n;
}

static int count_value(void *ctx, const char *name, const void *value, size_t len)
{
    (void)name;
    (void)value;
    (void)len;
    (*(unsigned *)ctx)++;
    return 0;
}

static unsigned n_values(const char *prefix)
{
    unsigned n = 0;
    ck_assert_int_eq(meta_value_each(fx.fs->meta, prefix, count_value, &n), 0);
    return n;
}

START_TEST(next_step_saves_what_did_not_change_also_after_a_restart)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    save("step_1", 'x');
    ck_assert_uint_eq(saved_of("step_1"), 0);
    save("step_2", 'x');
    ck_assert_uint_eq(saved_of("step_2"), SIZE - PART);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    save("step_3", 'x');
    ck_assert_uint_eq(saved_of("step_3"), SIZE - PART);
    save("step_4", 'y');
    ck_assert_uint_eq(saved_of("step_4"), 0);
    save("other_4", 'y');
    ck_assert_uint_eq(saved_of("other_4"), 0);
}
END_TEST

START_TEST(nothing_is_kept_or_saved_with_delta_off)
{
    fx.cfg.delta = SWITCH_OFF;
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    save("step_1", 'x');
    int64_t saved = metric_get(M_saved_bytes);
    save("step_2", 'x');
    ck_assert_int_eq(metric_get(M_saved_bytes), saved);
    ck_assert_uint_eq(n_values("delta"), 0);
}
END_TEST

START_TEST(renamed_object_is_still_a_base)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    save("a_1", 'x');
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a_1", META_ROOT_INO, "b_1", 0), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    save("b_2", 'x');
    ck_assert_uint_eq(saved_of("b_2"), SIZE - PART);
    ck_assert_uint_eq(n_values("delta/"), 2);
    ck_assert_uint_eq(n_values("delta-parts/"), 2);
}
END_TEST

START_TEST(record_of_an_object_that_is_gone_goes)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    save("step_1", 'x');
    ck_assert_int_eq(objstore_delete(fx.fs->store, "step_1", NULL), 0);
    save("step_2", 'x');
    ck_assert_uint_eq(saved_of("step_2"), 0);
    ck_assert_uint_eq(n_values("delta/"), 1);
    save("step_3", 'x');
    ck_assert_uint_eq(saved_of("step_3"), SIZE - PART);
}
END_TEST

/* Its directory led to another store then, which gave the ETag to other bytes. */
START_TEST(record_of_a_link_says_nothing_of_the_next_store_at_its_directory)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    link_to("one");
    save("la/step_1", 'x');
    save("la/step_2", 'x');
    ck_assert_uint_eq(saved_of("la/step_2"), SIZE - PART);
    g_autofree char *msg = NULL, *from = in_folder("one", "step_2"), *to = in_folder("two", "step_2");
    ck_assert_msg(links_remove(fx.fs, "la", NULL, NULL, &msg) == 0, "%s", msg);
    link_to("two");
    ck_assert_int_eq(g_rename(from, to), 0);
    swap_bytes(to);
    save("la/step_3", 'x');
    g_autofree char *made = in_folder("two", "step_3"), *bytes = NULL;
    ck_assert(g_file_get_contents(made, &bytes, NULL, NULL));
    ck_assert_int_eq(bytes[PART + 100], 'x');
    ck_assert_uint_eq(saved_of("la/step_3"), 0);
    save("la/step_4", 'x');
    ck_assert_uint_eq(saved_of("la/step_4"), SIZE - PART);
}
END_TEST

static void put_record(const char *key, uint64_t stamp, uint64_t size)
{
    const uint64_t head[5] = {GUINT64_TO_LE(stamp), GUINT64_TO_LE(size), GUINT64_TO_LE(PART)};
    g_autofree char *name = g_strconcat("delta/", key, NULL), *parts = g_strconcat("delta-parts/", key, NULL);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, name, head, sizeof(head));
    meta_value_put(b, parts, head, sizeof(head[0]));
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

static bool has_record(const char *key)
{
    g_autofree char *name = g_strconcat("delta/", key, NULL);
    return n_values(name) > 0;
}

START_TEST(oldest_records_make_room)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < DELTA_OBJECTS_MAX; i++) {
        g_autofree char *key = g_strdup_printf("x%u.", i);
        put_record(key, _i == 0 ? i + 1 : DELTA_OBJECTS_MAX - i, SIZE);
    }
    save("y", 'x');
    ck_assert_uint_eq(n_values("delta/"), DELTA_OBJECTS_MAX);
    ck_assert_uint_eq(n_values("delta-parts/"), DELTA_OBJECTS_MAX);
    ck_assert(has_record("y"));
    ck_assert(has_record("x0.") == (_i == 1));
    ck_assert(has_record("x511.") == (_i == 0));
}
END_TEST

START_TEST(records_of_huge_objects_make_room)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    put_record("small", 1, SIZE);
    put_record("huge", 2, (uint64_t)DELTA_BYTES_MAX / 48 * PART);
    save("y", 'x');
    ck_assert(has_record("y"));
    ck_assert(!has_record("huge") && !has_record("small"));
}
END_TEST

START_TEST(records_that_cannot_be_read_are_left_alone)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
    put_record("step_1", 1, SIZE); /* no parts */
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    meta_value_put(b, "delta/step_3", "short", 5);
    meta_value_put(b, "delta-parts/step_3", "", 0);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
    save("step_2", 'x');
    ck_assert_uint_eq(saved_of("step_2"), 0);
    ck_assert(fs_fixture_object_exists(&fx, "step_2"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("delta_base");
    TCase *tc = tcase_create("names"), *rec = tcase_create("records");
    tcase_add_loop_test(tc, kin_by_name, 0, G_N_ELEMENTS(kin));
    tcase_add_test(tc, newest_sibling_comes_first);
    tcase_add_test(tc, same_rank_of_the_step_before);
    tcase_add_test(tc, step_and_rank_in_one_name);
    suite_add_tcase(s, tc);
    tcase_add_checked_fixture(rec, setup, teardown);
    tcase_set_timeout(rec, 60);
    tcase_add_test(rec, next_step_saves_what_did_not_change_also_after_a_restart);
    tcase_add_test(rec, nothing_is_kept_or_saved_with_delta_off);
    tcase_add_test(rec, renamed_object_is_still_a_base);
    tcase_add_test(rec, record_of_an_object_that_is_gone_goes);
    tcase_add_test(rec, record_of_a_link_says_nothing_of_the_next_store_at_its_directory);
    tcase_add_loop_test(rec, oldest_records_make_room, 0, 2);
    tcase_add_test(rec, records_of_huge_objects_make_room);
    tcase_add_test(rec, records_that_cannot_be_read_are_left_alone);
    suite_add_tcase(s, rec);
    return run_suite(s);
}
