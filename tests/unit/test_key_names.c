/* Keys as paths, for --escape percent: the table, that each key has a path of its own, and a store seen through it. */
#include "../../s3/key_names.h"
#include "../../s3/objstore_driver.h"
#include "objstore.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key, *path;
} rows[] = {
    {"", ""},
    {"a", "a"},
    {"a/b/", "a/b/"},
    {"x//f", "x/%2F/f"},
    {"tr//", "tr/%2F/"},
    {"/", "%2F/"},
    {"//", "%2F/%2F/"},
    {"/lead", "%2F/lead"},
    {".", "%2E"},
    {"./f", "%2E/f"},
    {"..", "%2E%2E"},
    {"a/../b", "a/%2E%2E/b"},
    {"../../etc/evil", "%2E%2E/%2E%2E/etc/evil"},
    {"%2F", "%252F"},
    {"%2E", "%252E"},
    {"%2E%2E", "%252E%2E"},
    {"%252F", "%25252F"},
    {"%2525252E%2E/", "%252525252E%2E/"},
    {"d/%2F/f", "d/%252F/f"},
    /* and what stays as it is */
    {"%2f", "%2f"},
    {"%41", "%41"},
    {"%", "%"},
    {"%25", "%25"},
    {"%2F ", "%2F "},
    {"%2E%2E%2E", "%2E%2E%2E"},
    {"x%2F", "x%2F"},
    {"...", "..."},
    {"\x01\xff\n", "\x01\xff\n"},
};

START_TEST(key_has_its_path_and_the_path_its_key)
{
    g_autoptr(GString) path = g_string_new(NULL);
    key_to_path(rows[_i].key, strlen(rows[_i].key), path);
    ck_assert_str_eq(path->str, rows[_i].path);
    g_autofree char *key = key_of_path(rows[_i].path);
    ck_assert_str_eq(key, rows[_i].key);
}
END_TEST

START_TEST(path_of_no_key_is_told)
{
    static const char *const paths[] = {"%2F", "a/%2F", "a//b", "/a", ".", "a/..", "./b"};
    for (unsigned i = 0; i < G_N_ELEMENTS(paths); i++)
        ck_assert_ptr_null(key_of_path(paths[i]));
    ck_assert(key_name_is_odd("%2F") && key_name_is_odd("%2E") && key_name_is_odd("%2E%2E"));
    ck_assert(!key_name_is_odd("%252F") && !key_name_is_odd("%2f") && key_name_is_escaped("%252F", 5));
}
END_TEST

/* Of all short keys of the bytes that mean something. */
START_TEST(no_two_keys_have_one_path)
{
    static const char bytes[] = "%25F.E/";
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    unsigned n = 0;
    for (unsigned len = 0; len <= 6; len++) {
        unsigned all = 1;
        for (unsigned i = 0; i < len; i++)
            all *= (unsigned)strlen(bytes);
        for (unsigned k = 0; k < all; k++, n++) {
            char key[8] = "";
            for (unsigned i = 0, rest = k; i < len; i++, rest /= (unsigned)strlen(bytes))
                key[i] = bytes[rest % strlen(bytes)];
            g_autoptr(GString) path = g_string_new(NULL);
            key_to_path(key, len, path);
            g_autofree char *back = key_of_path(path->str);
            ck_assert_str_eq(back, key);
            ck_assert(path->str[0] != '/' && !strstr(path->str, "//") && !strstr(path->str, "/./"));
            g_hash_table_add(seen, g_strdup(path->str));
        }
    }
    ck_assert_uint_eq(g_hash_table_size(seen), n);
}
END_TEST

/* ---- a store ---- */

static char *dir;
static struct objstore *st;

static void setup(void)
{
    g_autofree char *msg = NULL;
    dir = g_dir_make_tmp("sluice-key-names-XXXXXX", NULL);
    g_autofree char *source = g_strconcat("file://", dir, NULL);
    struct objstore_config cfg = {.source = source, .escape = true};
    ck_assert_msg(objstore_open(&cfg, &st, &msg) == 0, "%s", msg);
}

static void teardown(void)
{
    objstore_close(st);
    g_autofree char *rm = g_strdup_printf("rm -rf '%s'", dir);
    ck_assert_int_eq(system(rm), 0);
    g_free(dir);
}

static int put(const char *path, const char *text)
{
    const struct obj_cond any = {.kind = OBJ_COND_NONE};
    return objstore_put(st, path, text, strlen(text), NULL, &any, NULL);
}

static bool has_file(const char *name)
{
    g_autofree char *path = g_build_filename(dir, name, NULL);
    return g_file_test(path, G_FILE_TEST_EXISTS);
}

static int collect(void *ctx, const struct obj_entry *e)
{
    g_string_append_printf(ctx, "%.*s%s ", (int)e->name_len, e->name, e->odd ? "!" : "");
    return 0;
}

static char *list(const char *prefix, bool delimiter)
{
    GString *names = g_string_new(NULL);
    const struct obj_list_req req = {.prefix = prefix, .delimiter = delimiter};
    ck_assert_int_eq(objstore_list(st, &req, collect, names, NULL), 0);
    return g_string_free(names, FALSE);
}

static int keep(void *ctx, uint64_t off, const void *buf, size_t len)
{
    g_string_append_len(ctx, buf, (gssize)len);
    return 0;
}

static int one_upload(void *ctx, const char *key, const char *upload_id)
{
    g_string_append_printf(ctx, "%s ", key);
    return 0;
}

START_TEST(calls_go_by_paths)
{
    struct obj_info info = {0};
    g_autoptr(GString) bytes = g_string_new(NULL);
    ck_assert_int_eq(put("d/%252F", "percent"), 0);
    ck_assert_int_eq(put("d/%252E%2E/f", "dots"), 0);
    ck_assert_int_eq(put("d/plain", "plain"), 0);
    ck_assert(has_file("d/%2F") && has_file("d/%2E%2E/f"));
    ck_assert_int_eq(objstore_get(st, "d/%252F", 0, 0, NULL, keep, bytes, NULL), 0);
    ck_assert_str_eq(bytes->str, "percent");
    g_autofree char *shallow = list("d/", true), *deep = list("", false), *below = list("d/%252E%2E/", true);
    ck_assert_str_eq(shallow, "%252E%2E/ %252F plain ");
    ck_assert_str_eq(deep, "d/%252E%2E/f d/%252F d/plain ");
    ck_assert_str_eq(below, "f ");
    g_autofree char *whole = list("d/%252F", false);
    ck_assert_str_eq(whole, " ");
    ck_assert_int_eq(objstore_head(st, "d/%252F", &info), 0);
    ck_assert_int_eq(objstore_copy(st, "d/%252F", &info.etag, "e/%252E", NULL, NULL, NULL), 0);
    obj_info_clear(&info);
    ck_assert(has_file("e/%2E"));
    ck_assert_int_eq(objstore_delete(st, "d/%252F", NULL), 0);
    ck_assert(!has_file("d/%2F"));
}
END_TEST

START_TEST(path_of_no_key_is_nowhere)
{
    struct obj_info info = {0};
    g_autoptr(GString) bytes = g_string_new(NULL);
    ck_assert_int_eq(put("d/f", "x"), 0);
    ck_assert_int_eq(put("d/%2F", "not the marker"), -EINVAL);
    ck_assert_int_eq(objstore_head(st, "d/%2F", &info), -ENOENT);
    ck_assert_int_eq(objstore_get(st, "d/%2F", 0, 0, NULL, keep, bytes, NULL), -ENOENT);
    ck_assert_int_eq(objstore_delete(st, "d/%2F", NULL), 0);
    ck_assert_int_eq(put("d/%2F/x", "not in a folder"), -EINVAL);
    ck_assert_int_eq(put("%2E%2E/evil", "not in a folder"), -EINVAL);
    ck_assert(objstore_limits(st)->plain_names);
    g_autofree char *all = list("", false);
    ck_assert_str_eq(all, "d/f ");
}
END_TEST

START_TEST(uploads_go_by_paths)
{
    g_autofree char *id = NULL;
    g_autofree struct obj_part *parts = NULL;
    g_autoptr(GString) uploads = g_string_new(NULL);
    size_t n = 0;
    struct obj_part part = {.number = 1, .size = 4};
    ck_assert_int_eq(objstore_mpu_create(st, "d/%252F", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part(st, "d/%252F", id, "part", &part), 0);
    ck_assert_int_eq(objstore_mpu_list(st, "d/", one_upload, uploads), 0);
    ck_assert_str_eq(uploads->str, "d/%252F ");
    ck_assert_int_eq(objstore_mpu_parts(st, "d/%252F", id, &parts, &n), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(objstore_mpu_complete(st, "d/%252F", id, &part, 1, NULL, NULL, NULL), 0);
    ck_assert(has_file("d/%2F"));
}
END_TEST

/* Whether tags are sums is learned where whole objects are read, below, and where files are compared, above: it is one store. */
START_TEST(what_is_learned_of_tags_counts_above_and_below)
{
    g_autofree char *msg = NULL, *source = g_strconcat("file://", dir, NULL);
    struct objstore_config cfg = {.source = source};
    struct objstore *inner = NULL;
    ck_assert_msg(objstore_open(&cfg, &inner, &msg) == 0, "%s", msg);
    struct objstore *names = objstore_names_wrap(inner);
    objstore_set_caps(names, 0); /* as before a probe */
    ck_assert(objstore_sums_count(names, "d/f"));
    objstore_sum_note(names, "d/f", false);
    ck_assert(!objstore_sums_count(inner, "") && !objstore_sums_count(names, "d/f"));
    for (unsigned i = 0; i < 8; i++)
        objstore_sum_note(inner, "", true);
    ck_assert(objstore_sums_count(names, "d/f") && objstore_sums_count(inner, ""));
    objstore_close(names);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("key_names");
    TCase *t = tcase_create("paths"), *u = tcase_create("store");
    tcase_add_loop_test(t, key_has_its_path_and_the_path_its_key, 0, G_N_ELEMENTS(rows));
    tcase_add_test(t, path_of_no_key_is_told);
    tcase_add_test(t, no_two_keys_have_one_path);
    tcase_add_checked_fixture(u, setup, teardown);
    tcase_add_test(u, calls_go_by_paths);
    tcase_add_test(u, path_of_no_key_is_nowhere);
    tcase_add_test(u, uploads_go_by_paths);
    tcase_add_test(u, what_is_learned_of_tags_counts_above_and_below);
    suite_add_tcase(s, t);
    suite_add_tcase(s, u);
    return run_suite(s);
}
