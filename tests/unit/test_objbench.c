/*
 * The object store benchmark on a directory store: what it reports, and that it leaves nothing behind.
 */
#include "base/clock.h"
#include "tests/support/checks.h"
#include "tools/objbench.h"

#include <check.h>
#include <glib/gstdio.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
    char *dir;
    char *source;
    char *text; /* of the report */
    size_t text_len;
    char *msg;
    struct objbench_options o;
};
static const unsigned two_rows[] = {1, 3};

static void fixture_init(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->dir = g_dir_make_tmp("sluice-objbench-XXXXXX", NULL);
    ck_assert_ptr_nonnull(f->dir);
    f->source = g_strconcat("file://", f->dir, NULL);
    f->o = (struct objbench_options){.store = {.source = f->source, .op_timeout_ns = 10 * NS_PER_S},
                                     .size_bytes = 5 << 20,
                                     .object_bytes = (2 << 20) + 777,
                                     .n_small = 20,
                                     .concurrency = two_rows,
                                     .n_concurrency = 2,
                                     .signal_fd = -1};
}

static int run(struct fixture *f)
{
    FILE *out = open_memstream(&f->text, &f->text_len);
    int r = objbench_run(&f->o, out, &f->msg);
    fclose(out);
    return r;
}

/* Counts what is left of objbench's keys, below any name that starts like them. */
static unsigned n_left(const char *dir)
{
    unsigned n = 0;
    GDir *d = g_dir_open(dir, 0, NULL);
    for (const char *name; d != NULL && (name = g_dir_read_name(d)) != NULL;)
        n += g_str_has_prefix(name, ".sluice-objbench");
    if (d != NULL)
        g_dir_close(d);
    return n;
}

static int count_upload(void *ctx, const char *key, const char *upload_id)
{
    (*(unsigned *)ctx)++;
    return 0;
}

static unsigned n_uploads(const struct fixture *f)
{
    struct objstore *st = NULL;
    char *msg = NULL;
    unsigned n = 0;
    ck_assert_int_eq(objstore_open(&f->o.store, &st, &msg), 0);
    ck_assert_int_eq(objstore_mpu_list(st, "", count_upload, &n), 0);
    objstore_close(st);
    return n;
}

static void remove_tree(const char *path)
{
    GDir *d = g_dir_open(path, 0, NULL);
    for (const char *name; d != NULL && (name = g_dir_read_name(d)) != NULL;) {
        g_autofree char *child = g_build_filename(path, name, NULL);
        remove_tree(child);
    }
    if (d != NULL)
        g_dir_close(d);
    (void)g_remove(path);
}

static void fixture_fini(struct fixture *f)
{
    remove_tree(f->dir);
    g_free(f->dir);
    g_free(f->source);
    free(f->text);
    g_free(f->msg);
}

START_TEST(json_report_holds_each_operation_by_concurrency)
{
    struct fixture f;
    fixture_init(&f);
    f.o.json = true;
    ck_assert_int_eq(run(&f), 0);
    json_t *o = json_loads(f.text, 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(o, "source")), f.source);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(o, "capabilities"), "put-if-none-match")),
                     "yes");
    json_t *rows = json_object_get(o, "results");
    ck_assert_uint_eq(json_array_size(rows), 2 * 8 + 2); /* eight operations twice, two kinds of delete */
    json_t *range = json_array_get(rows, 3);
    ck_assert_str_eq(json_string_value(json_object_get(range, "op")), "get-range");
    ck_assert_int_eq(json_integer_value(json_object_get(range, "calls")), 6); /* two objects of three ranges */
    ck_assert_int_eq(json_integer_value(json_object_get(range, "bytes")), 2 * ((2 << 20) + 777));
    json_t *part = json_array_get(rows, 1);
    ck_assert_str_eq(json_string_value(json_object_get(part, "op")), "put-part");
    ck_assert_int_eq(json_integer_value(json_object_get(part, "bytes")), 2 * ((2 << 20) + 777));
    json_t *put = json_array_get(rows, 8);
    ck_assert_str_eq(json_string_value(json_object_get(put, "op")), "put");
    ck_assert_int_eq(json_integer_value(json_object_get(put, "concurrency")), 3);
    ck_assert_int_eq(json_integer_value(json_object_get(put, "calls")), 3); /* one a thread at least */
    ck_assert(json_number_value(json_object_get(put, "mb_per_s")) > 0);
    ck_assert(json_number_value(json_object_get(put, "cpu_seconds")) > 1e-6); /* 6 MiB were written */
    json_decref(o);
    fixture_fini(&f);
}
END_TEST

START_TEST(table_names_conditions_and_operations)
{
    struct fixture f;
    fixture_init(&f);
    ck_assert_int_eq(run(&f), 0);
    ck_assert_ptr_nonnull(strstr(f.text, "delete-if-match"));
    ck_assert_ptr_nonnull(strstr(f.text, "small-head"));
    ck_assert_ptr_nonnull(strstr(f.text, "p99 ms"));
    fixture_fini(&f);
}
END_TEST

START_TEST(missing_condition_is_shown_as_by_head_and_missing_checksum_as_no)
{
    const uint32_t caps = CAP_PUT_IF_NONE_MATCH;
    for (unsigned bit = 0; objstore_cap_name(bit) != NULL; bit++) {
        const char *want = "no";
        if (1u << bit == CAP_PUT_IF_NONE_MATCH)
            want = "yes";
        else if ((1u << bit) & (CAP_PUT_IF_MATCH | CAP_COMPLETE_CONDITIONS | CAP_DELETE_IF_MATCH | CAP_COPY_IF_MATCH |
                                CAP_PART_COPY_IF_MATCH | CAP_COPY_TARGET))
            want = "by HEAD";
        ck_assert_str_eq(objbench_cap_text(caps, bit), want);
    }
}
END_TEST

START_TEST(keys_are_removed_and_others_left_alone)
{
    struct fixture f;
    fixture_init(&f);
    g_autofree char *mine = g_build_filename(f.dir, "mine", NULL);
    ck_assert(g_file_set_contents(mine, "x", 1, NULL));
    ck_assert_int_eq(run(&f), 0);
    ck_assert_uint_eq(n_left(f.dir), 0);
    ck_assert_uint_eq(n_uploads(&f), 0);
    ck_assert(g_file_test(mine, G_FILE_TEST_IS_REGULAR));
    fixture_fini(&f);
}
END_TEST

START_TEST(signal_ends_it_early_and_the_keys_are_removed)
{
    struct fixture f;
    fixture_init(&f);
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    char one[128] = {0}; /* what one signal writes */
    ck_assert_int_eq(write(fds[1], one, sizeof(one)), sizeof(one));
    f.o.signal_fd = fds[0];
    f.o.size_bytes = 4ull << 30; /* would take long */
    ck_assert_int_eq(run(&f), -EINTR);
    ck_assert_ptr_nonnull(strstr(f.msg, "interrupted"));
    ck_assert_uint_eq(f.text_len, 0);
    ck_assert_uint_eq(n_left(f.dir), 0);
    close(fds[0]);
    close(fds[1]);
    fixture_fini(&f);
}
END_TEST

START_TEST(without_small_objects_only_large_rows_are_made)
{
    struct fixture f;
    fixture_init(&f);
    f.o.n_small = 0;
    ck_assert_int_eq(run(&f), 0);
    ck_assert_ptr_null(strstr(f.text, "small-"));
    ck_assert_ptr_nonnull(strstr(f.text, "get-range"));
    fixture_fini(&f);
}
END_TEST

START_TEST(bad_source_is_refused_with_a_message)
{
    struct fixture f;
    fixture_init(&f);
    f.o.store.source = "nonsense";
    ck_assert_int_eq(run(&f), -EINVAL);
    ck_assert_ptr_nonnull(f.msg);
    fixture_fini(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("objbench");
    TCase *tc = tcase_create("file");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, json_report_holds_each_operation_by_concurrency);
    tcase_add_test(tc, table_names_conditions_and_operations);
    tcase_add_test(tc, missing_condition_is_shown_as_by_head_and_missing_checksum_as_no);
    tcase_add_test(tc, keys_are_removed_and_others_left_alone);
    tcase_add_test(tc, signal_ends_it_early_and_the_keys_are_removed);
    tcase_add_test(tc, without_small_objects_only_large_rows_are_made);
    tcase_add_test(tc, bad_source_is_refused_with_a_message);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
