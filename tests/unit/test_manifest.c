/* Manifests: lists of paths, indexes of safetensors, shards of webdataset; and what is wrong with them. */
#include "tests/support/checks.h"
#include "tools/manifest.h"

#include <check.h>
#include <glib.h>
#include <stdlib.h>
#include <string.h>

struct taken {
    GString *names; /* each with a ' ' behind, those of JSON with '*' before */
    unsigned n, most;
};

static bool take(void *ctx, const char *name, bool in_json)
{
    struct taken *t = ctx;
    if (t->n < 100)
        g_string_append_printf(t->names, "%s%s ", in_json ? "*" : "", name);
    return ++t->n < t->most;
}

/* The names, or "!" and the error. */
static char *names_of(const char *text, enum manifest_kind kind)
{
    struct taken t = {.names = g_string_new(NULL), .most = UINT_MAX};
    g_autofree char *error = NULL, *bytes = g_strdup(text);
    FILE *in = *text ? fmemopen(bytes, strlen(text), "r") : fopen("/dev/null", "r");
    ck_assert_ptr_nonnull(in);
    bool ok = manifest_read(in, kind, take, &t, &error);
    fclose(in);
    ck_assert(ok == (error == NULL));
    if (error)
        g_string_printf(t.names, "!%s", error);
    return g_string_free(t.names, FALSE);
}

static void check(const char *text, enum manifest_kind kind, const char *want)
{
    g_autofree char *got = names_of(text, kind);
    ck_assert_msg(g_str_has_prefix(want, "!") ? strstr(got, want + 1) && got[0] == '!' : g_str_equal(got, want),
                  "'%s': '%s', not '%s'", text, got, want);
}

START_TEST(patterns_stand_for_names)
{
    static const struct {
        const char *pattern, *want;
    } rows[] = {
        {"a", "a "},
        {"s-{000..003}.tar", "s-000.tar s-001.tar s-002.tar s-003.tar "},
        {"{8..11}", "8 9 10 11 "},
        {"{08..11}", "08 09 10 11 "},
        {"{3..1}", "3 2 1 "},
        {"{0..9..4}", "0 4 8 "},
        {"{9..0..4}", "9 5 1 "},
        {"{-1..1}", "-1 0 1 "},
        {"{a..c}x", "ax bx cx "},
        {"{train,val}-{0..1}", "train-0 train-1 val-0 val-1 "},
        {"x{a,b{1..2}}y", "xay xb1y xb2y "},
        {"{a,}b", "ab b "},
        {"{}", "{} "},
        {"{a}", "{a} "},
        {"{a", "{a "},
        {"a}", "a} "},
        {"{{0..1}", "{0 {1 "},
        {"{1..}", "{1..} "},
        {"{1..2..0}", "{1..2..0} "},
        {"{5..5}", "5 "},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct taken t = {.names = g_string_new(NULL), .most = UINT_MAX};
        char *error = NULL;
        ck_assert(manifest_expand(rows[i].pattern, take, &t, &error));
        ck_assert_msg(g_str_equal(t.names->str, rows[i].want), "%s: '%s'", rows[i].pattern, t.names->str);
        g_string_free(t.names, TRUE);
    }
}
END_TEST

START_TEST(patterns_without_end_are_refused)
{
    static const char *const bad[] = {"{0..99999999999}", "{0..9999}{0..9999}",
                                      "{-999999999999999999..999999999999999999}"};
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct taken t = {.names = g_string_new(NULL), .most = UINT_MAX};
        g_autofree char *error = NULL;
        ck_assert(!manifest_expand(bad[i], take, &t, &error));
        ck_assert_ptr_nonnull(strstr(error, "more than"));
        g_string_free(t.names, TRUE);
    }
    g_autofree char *deep = g_strnfill(5000, '{');
    struct taken t = {.names = g_string_new(NULL), .most = UINT_MAX};
    g_autofree char *error = NULL;
    ck_assert(!manifest_expand(deep, take, &t, &error));
    g_string_free(t.names, TRUE);
}
END_TEST

START_TEST(lists_are_paths_line_by_line)
{
    check("a\n\n  \nb c\r\nd", MANIFEST_LIST, "a b c d ");
    check("a{0..1}\ns3://x/y\n{\"a\"\n", MANIFEST_LIST, "a{0..1} s3://x/y {\"a\" ");
    check("", MANIFEST_LIST, "");
    check("\n", MANIFEST_AUTO, "");
    check("", MANIFEST_AUTO, "");
}
END_TEST

START_TEST(a_list_may_hold_patterns)
{
    check("a\nb-{0..1}.tar\nodd{name,}\n", MANIFEST_AUTO, "a b-0.tar b-1.tar odd{name,} ");
    check("{0..1}.tar\nx\n", MANIFEST_AUTO, "0.tar 1.tar x ");
    check("s3://b/{x,y}::s3://b/z\n", MANIFEST_AUTO, "s3://b/x s3://b/y s3://b/z ");
    check("pipe:aws s3 cp s3://b/{0..1}.tar -\n", MANIFEST_AUTO,
          "pipe:aws s3 cp s3://b/0.tar - pipe:aws s3 cp s3://b/1.tar - ");
    check("{x,y}.tar\n", MANIFEST_WEBDATASET, "x.tar y.tar ");
}
END_TEST

START_TEST(an_index_of_safetensors_names_each_file_once)
{
    const char *index = "{\"metadata\": {\"total_size\": 9},\n \"weight_map\": {\"a\": \"m-1.safetensors\", \"b\": "
                        "\"m-2.safetensors\", \"c\": \"m-1.safetensors\"}}\n";
    check(index, MANIFEST_AUTO, "*m-1.safetensors *m-2.safetensors ");
    check(index, MANIFEST_SAFETENSORS, "*m-1.safetensors *m-2.safetensors ");
    check(index, MANIFEST_WEBDATASET, "!no list of shards");
    check("{\"weight_map\": {\"a\": 3}}", MANIFEST_AUTO, "!names no file for 'a'");
    check("{\"weight_map\": []}", MANIFEST_AUTO, "!neither");
    check("{\"a\": 1}", MANIFEST_SAFETENSORS, "!no weight_map");
    check("m-1.safetensors\n", MANIFEST_SAFETENSORS, "!no JSON");
    check("{\"weight_map\": {\"a\": \"x", MANIFEST_AUTO, "!no JSON");
}
END_TEST

START_TEST(shard_lists_may_be_json)
{
    check("{\"shardlist\": [{\"url\": \"a-{0..1}.tar\", \"nsamples\": 3}, {\"url\": \"s3://b/c.tar\"}]}", MANIFEST_AUTO,
          "*a-0.tar *a-1.tar *s3://b/c.tar ");
    check("[\"a.tar\", {\"url\": \"b.tar\"}]", MANIFEST_WEBDATASET, "*a.tar *b.tar ");
    check("[\"a.tar\", 3]", MANIFEST_AUTO, "!shard 1");
    check("[\"a.tar\"]", MANIFEST_SAFETENSORS, "!no weight_map");
}
END_TEST

START_TEST(reading_ends_when_nobody_wants_more)
{
    char text[] = "a\nb\nc\n";
    struct taken t = {.names = g_string_new(NULL), .most = 2};
    char *error = NULL;
    FILE *in = fmemopen(text, strlen(text), "r");
    ck_assert(!manifest_read(in, MANIFEST_AUTO, take, &t, &error));
    fclose(in);
    ck_assert_uint_eq(t.n, 2);
    ck_assert_ptr_null(error);
    g_string_free(t.names, TRUE);
}
END_TEST

START_TEST(kinds_have_names)
{
    enum manifest_kind kind;
    ck_assert(manifest_kind_of("safetensors", &kind));
    ck_assert_int_eq(kind, MANIFEST_SAFETENSORS);
    ck_assert(!manifest_kind_of("tar", &kind));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("manifest");
    TCase *tc = tcase_create("manifest");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, patterns_stand_for_names);
    tcase_add_test(tc, patterns_without_end_are_refused);
    tcase_add_test(tc, lists_are_paths_line_by_line);
    tcase_add_test(tc, a_list_may_hold_patterns);
    tcase_add_test(tc, an_index_of_safetensors_names_each_file_once);
    tcase_add_test(tc, shard_lists_may_be_json);
    tcase_add_test(tc, reading_ends_when_nobody_wants_more);
    tcase_add_test(tc, kinds_have_names);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
