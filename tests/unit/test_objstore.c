/*
 * What every driver has to do, run over each of them: the file driver, the fault driver around it, and a real S3 store when
 * SLUICE_TEST_S3_SOURCE (s3://bucket/prefix), SLUICE_TEST_S3_ENDPOINT and AWS_* are set.
 */
#include "base/crc32c.h"
#include "base/metric.h"
#include "objstore_fixture.h"
#include "tests/support/checks.h"

#define CASE(name)                                                                                                     \
    static void body_##name(void);                                                                                     \
    START_TEST(name)                                                                                                   \
    {                                                                                                                  \
        setup(_i);                                                                                                     \
        body_##name();                                                                                                 \
        teardown();                                                                                                    \
    }                                                                                                                  \
    END_TEST                                                                                                           \
    static void body_##name(void)

CASE(put_then_head_and_get_give_it_back)
{
    struct obj_info info = {0};
    struct etag etag = put("dir/a", "hello");
    ck_assert_int_eq(objstore_head(st, "dir/a", &info), 0);
    ck_assert_uint_eq(info.size, 5);
    ck_assert_str_eq(info.etag.s, etag.s);
    ck_assert(llabs(info.mtime_ns - clock_wall_ns()) < (int64_t)(600 * NS_PER_S));
    ck_assert_uint_eq(info.posix.fields, 0);
    obj_info_clear(&info);
    assert_content("dir/a", "hello");
}

CASE(absent_key_is_enoent)
{
    struct obj_info info = {0};
    GString *out = g_string_new(NULL);
    ck_assert_int_eq(objstore_head(st, "none", &info), -ENOENT);
    ck_assert_int_eq(objstore_head(st, "none/below", &info), -ENOENT);
    ck_assert_int_eq(objstore_get(st, "none", 0, 0, NULL, to_string, out, NULL), -ENOENT);
    ck_assert_int_eq(objstore_delete(st, "none", NULL), 0);
    g_string_free(out, TRUE);
}

CASE(ranges_are_clipped_to_the_end)
{
    struct {
        uint64_t off, len;
        const char *want;
    } rows[] = {{0, 3, "012"}, {2, 5, "23456"},  {7, 100, "789"},      {9, 1, "9"},         {10, 1, ""},
                {50, 10, ""},  {4, 0, "456789"}, {0, 0, "0123456789"}, {9, UINT64_MAX, "9"}};
    put("r", "0123456789");
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *have = get_range("r", rows[i].off, rows[i].len);
        ck_assert_str_eq(have, rows[i].want);
    }
}

CASE(empty_object_reads_as_nothing)
{
    struct obj_info info = {0};
    put("e", "");
    assert_content("e", "");
    g_autofree char *have = get_range("e", 0, 10);
    ck_assert_str_eq(have, "");
    ck_assert_int_eq(objstore_head(st, "e", &info), 0);
    ck_assert_uint_eq(info.size, 0);
    obj_info_clear(&info);
}

static int refuse(void *ctx, uint64_t off, const void *buf, size_t len)
{
    (*(int *)ctx)++;
    return -ENOSPC;
}

CASE(error_of_the_sink_ends_the_read_with_it)
{
    int n = 0;
    put("s", "data");
    ck_assert_int_eq(objstore_get(st, "s", 0, 0, NULL, refuse, &n, NULL), -ENOSPC);
    ck_assert_int_eq(n, 1);
}

CASE(metadata_comes_back)
{
    struct obj_info info = {0};
    struct obj_meta meta = {.posix = {.fields = POSIX_MODE | POSIX_UID | POSIX_GID | POSIX_MTIME,
                                      .mode = 0100640,
                                      .uid = 1000,
                                      .gid = 0,
                                      .mtime_ns = 1700000000123456789},
                            .symlink = "../t \xc3\xa4rget%",
                            .token = "tok-1"};
    ck_assert_int_eq(objstore_put(st, "m", "", 0, &meta, NULL, NULL), 0);
    ck_assert_int_eq(objstore_head(st, "m", &info), 0);
    ck_assert_uint_eq(info.posix.fields, meta.posix.fields);
    ck_assert_uint_eq(info.posix.mode, 0100640);
    ck_assert_uint_eq(info.posix.uid, 1000);
    ck_assert_uint_eq(info.posix.gid, 0);
    ck_assert_int_eq(info.posix.mtime_ns, 1700000000123456789);
    ck_assert_str_eq(info.symlink, meta.symlink);
    ck_assert_str_eq(info.token, "tok-1");
    obj_info_clear(&info);
    put("m", "now plain");
    ck_assert_int_eq(objstore_head(st, "m", &info), 0);
    ck_assert_uint_eq(info.posix.fields, 0);
    ck_assert_str_eq(info.token, "");
    obj_info_clear(&info);
}

CASE(token_that_would_break_a_header_is_refused)
{
    struct obj_meta meta = {.token = "a\r\nx-amz-acl: public-read"};
    ck_assert_int_eq(objstore_put(st, "m", "", 0, &meta, NULL, NULL), -EINVAL);
}

CASE(target_too_long_for_the_metadata_is_refused)
{
    const struct {
        const char *unit;
        unsigned n;
    } rows[] = {{"a", 1814}, {"\xc3\xa4", 302}, {" ", 604}};
    struct obj_meta meta = {.posix = {.fields = POSIX_MODE | POSIX_UID | POSIX_GID | POSIX_MTIME,
                                      .mode = 0120777,
                                      .uid = UINT32_MAX,
                                      .gid = UINT32_MAX,
                                      .mtime_ns = -1}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct obj_info info = {0};
        g_autoptr(GString) target = g_string_new(NULL);
        for (unsigned n = 0; n < rows[i].n; n++)
            g_string_append(target, rows[i].unit);
        meta.symlink = target->str;
        ck_assert_int_eq(objstore_symlink_check(target->str), 0);
        ck_assert_int_eq(objstore_put(st, "l", "", 0, &meta, NULL, NULL), 0);
        ck_assert_int_eq(objstore_head(st, "l", &info), 0);
        ck_assert_str_eq(info.symlink, target->str);
        obj_info_clear(&info);
        g_string_append(target, rows[i].unit);
        ck_assert_int_eq(objstore_symlink_check(target->str), -ENAMETOOLONG);
    }
    g_autofree char *longer = g_strnfill(4095, 'a');
    meta.symlink = longer;
    ck_assert_int_eq(objstore_put(st, "l", "", 0, &meta, NULL, NULL), -ENAMETOOLONG);
}

CASE(rewrite_changes_the_etag)
{
    struct etag a = put("k", "one");
    struct etag b = put("k", "two");
    ck_assert(!etag_equal(&a, &b));
    assert_content("k", "two");
}

CASE(put_if_absent_makes_it_once)
{
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    ck_assert_int_eq(objstore_put(st, "once", "1", 1, NULL, &absent, NULL), 0);
    ck_assert_int_eq(objstore_put(st, "once", "2", 1, NULL, &absent, NULL), -ESTALE);
    assert_content("once", "1");
}

CASE(put_if_etag_replaces_that_version_only)
{
    struct obj_cond cond = {.kind = OBJ_COND_ETAG, .etag = put("cas", "1")};
    struct etag second = {0};
    ck_assert_int_eq(objstore_put(st, "cas", "2", 1, NULL, &cond, &second), 0);
    ck_assert_int_eq(objstore_put(st, "cas", "3", 1, NULL, &cond, NULL), -ESTALE);
    assert_content("cas", "2");
    cond.etag = second;
    ck_assert_int_eq(objstore_delete(st, "cas", NULL), 0);
    ck_assert_int_eq(objstore_put(st, "cas", "4", 1, NULL, &cond, NULL), -ESTALE);
}

CASE(delete_if_etag_keeps_another_version)
{
    struct obj_cond cond = {.kind = OBJ_COND_ETAG, .etag = put("d", "1")};
    put("d", "22");
    ck_assert_int_eq(objstore_delete(st, "d", &cond), -ESTALE);
    assert_content("d", "22");
    cond.etag = put("d", "333");
    ck_assert_int_eq(objstore_delete(st, "d", &cond), 0);
    ck_assert_int_eq(objstore_delete(st, "d", &cond), 0);
}

CASE(get_if_match_refuses_another_version)
{
    struct etag old = put("g", "old");
    GString *out = g_string_new(NULL);
    put("g", "newer");
    ck_assert_int_eq(objstore_get(st, "g", 0, 2, &old, to_string, out, NULL), -ESTALE);
    ck_assert_uint_eq(out->len, 0);
    g_string_free(out, TRUE);
}

CASE(copy_keeps_or_replaces_metadata)
{
    struct obj_info info = {0};
    struct obj_meta meta = {.posix = {.fields = POSIX_UID, .uid = 7}, .token = "src"};
    struct obj_meta other = {.posix = {.fields = POSIX_UID, .uid = 8}, .token = "dst"};
    struct etag etag = {0};
    ck_assert_int_eq(objstore_put(st, "c/src", "body", 4, &meta, NULL, &etag), 0);
    ck_assert_int_eq(objstore_copy(st, "c/src", &etag, "c/same", NULL, NULL, NULL), 0);
    ck_assert_int_eq(objstore_copy(st, "c/src", &etag, "c/other", &other, NULL, NULL), 0);
    ck_assert_int_eq(objstore_head(st, "c/same", &info), 0);
    ck_assert_uint_eq(info.posix.uid, 7);
    ck_assert_str_eq(info.token, "src");
    obj_info_clear(&info);
    ck_assert_int_eq(objstore_head(st, "c/other", &info), 0);
    ck_assert_uint_eq(info.posix.uid, 8);
    ck_assert_str_eq(info.token, "dst");
    obj_info_clear(&info);
    assert_content("c/other", "body");
    ck_assert_int_eq(objstore_copy(st, "c/src", &etag, "c/src", &other, NULL, &etag), 0);
    ck_assert_int_eq(objstore_head(st, "c/src", &info), 0);
    ck_assert_str_eq(info.token, "dst");
    ck_assert_str_eq(info.etag.s, etag.s);
    obj_info_clear(&info);
}

CASE(copy_checks_source_and_target)
{
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    struct etag old = put("c1", "1");
    struct etag now = put("c1", "22");
    put("c2", "x");
    ck_assert_int_eq(objstore_copy(st, "c1", &old, "c3", NULL, NULL, NULL), -ESTALE);
    ck_assert_int_eq(objstore_copy(st, "c1", &now, "c2", NULL, &absent, NULL), -ESTALE);
    ck_assert_int_eq(objstore_copy(st, "c1", &now, "c3", NULL, &absent, NULL), 0);
    ck_assert_int_eq(objstore_copy(st, "nix", &now, "c4", NULL, NULL, NULL), -ENOENT);
    assert_content("c2", "x");
}

CASE(list_is_in_byte_order)
{
    const char *keys[] = {"b/x", "a", "b-", "b0", "c/d/e", "b/y/z", "\xc3\xa4", "B"};
    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
        put(keys[i], "1");
    g_autofree char *all = list("", false, NULL, 0, NULL);
    ck_assert_str_eq(all, "B|a|b-|b/x|b/y/z|b0|c/d/e|\xc3\xa4");
    g_autofree char *top = list("", true, NULL, 0, NULL);
    ck_assert_str_eq(top, "B|a|b-|P:b/|b0|P:c/|\xc3\xa4");
    g_autofree char *sub = list("b/", true, NULL, 0, NULL);
    ck_assert_str_eq(sub, "x|P:y/");
    g_autofree char *part = list("b", true, NULL, 0, NULL);
    ck_assert_str_eq(part, "-|P:/|0");
    g_autofree char *none = list("nope/", true, NULL, 0, NULL);
    ck_assert_str_eq(none, "");
}

CASE(list_of_names_that_begin_alike_is_in_byte_order)
{
    const char *keys[] = {"n/shard-00000010.tar", "n/shard-00000009.tar", "n/shard-0000001", "n/shard-00000010.tar.idx",
                          "n/shard-0000001\xff",  "n/shard-00000010.taq", "n/shard-00",      "n/shard-00000011/x"};
    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
        put(keys[i], "1");
    g_autofree char *names = list("n/shard-", true, NULL, 0, NULL);
    ck_assert_str_eq(names,
                     "00|00000009.tar|0000001|00000010.taq|00000010.tar|00000010.tar.idx|P:00000011/|0000001\xff");
}

CASE(list_begins_after_and_stops_at_max_keys)
{
    bool truncated = false;
    const char *keys[] = {"a", "b/1", "b/2", "c", "d"};
    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
        put(keys[i], "1");
    g_autofree char *after = list("", false, "b/1", 0, NULL);
    ck_assert_str_eq(after, "b/2|c|d");
    g_autofree char *two = list("", true, NULL, 2, &truncated);
    ck_assert_str_eq(two, "a|P:b/");
    ck_assert(truncated);
    g_autofree char *rest = list("", true, "b/", 5, &truncated);
    ck_assert_str_eq(rest, "c|d");
    ck_assert(!truncated);
    g_autofree char *inside = list("", true, "b/1", 0, NULL);
    ck_assert_str_eq(inside, "c|d");
}

static int copy_row(void *ctx, const struct obj_entry *e)
{
    *(struct obj_entry *)ctx = *e;
    return 0;
}

CASE(list_tells_size_and_etag)
{
    struct etag etag = put("l/k", "four");
    struct obj_list_req req = {.prefix = "l/"};
    struct obj_entry row = {0};
    ck_assert_int_eq(objstore_list(st, &req, copy_row, &row, NULL), 0);
    ck_assert_uint_eq(row.size, 4);
    ck_assert_str_eq(row.etag.s, etag.s);
    ck_assert(llabs(row.mtime_ns - clock_wall_ns()) < (int64_t)(600 * NS_PER_S));
    ck_assert(!row.odd && !row.is_prefix);
}

static int stop_at_second(void *ctx, const struct obj_entry *e)
{
    return ++*(int *)ctx == 2 ? 77 : 0;
}

CASE(list_stops_when_told)
{
    int n = 0;
    struct obj_list_req req = {.prefix = ""};
    put("1", "");
    put("2", "");
    put("3", "");
    ck_assert_int_eq(objstore_list(st, &req, stop_at_second, &n, NULL), 77);
    ck_assert_int_eq(n, 2);
}

CASE(list_goes_over_page_borders)
{
    g_autoptr(GPtrArray) rows = g_ptr_array_new_with_free_func(g_free);
    struct obj_list_req req = {.prefix = "p/"};
    for (int i = 0; i < 1203; i++) {
        g_autofree char *key = g_strdup_printf("p/%05d", i);
        put(key, "");
    }
    ck_assert_int_eq(objstore_list(st, &req, collect, rows, NULL), 0);
    ck_assert_uint_eq(rows->len, 1203);
    ck_assert_str_eq(rows->pdata[1202], "01202");
}

CASE(marker_is_an_object_that_ends_in_a_slash)
{
    struct obj_info info = {0};
    put("mk/", "");
    ck_assert_int_eq(objstore_head(st, "mk/", &info), 0);
    obj_info_clear(&info);
    ck_assert_int_eq(objstore_head(st, "mk", &info), -ENOENT);
    g_autofree char *top = list("", true, NULL, 0, NULL);
    ck_assert_str_eq(top, "P:mk/");
    g_autofree char *in = list("mk/", true, NULL, 0, NULL);
    ck_assert_str_eq(in, "");
    put("mk/a", "1");
    ck_assert_int_eq(objstore_delete(st, "mk/a", NULL), 0);
    ck_assert_int_eq(objstore_head(st, "mk/", &info), 0);
    obj_info_clear(&info);
    ck_assert_int_eq(objstore_delete(st, "mk/", NULL), 0);
    ck_assert_int_eq(objstore_head(st, "mk/", &info), -ENOENT);
    g_autofree char *gone = list("", true, NULL, 0, NULL);
    ck_assert_str_eq(gone, "");
}

CASE(directory_without_marker_goes_with_its_last_object)
{
    struct obj_info info = {0};
    put("x/y/z", "1");
    ck_assert_int_eq(objstore_head(st, "x/y/", &info), -ENOENT);
    ck_assert_int_eq(objstore_delete(st, "x/y/z", NULL), 0);
    g_autofree char *all = list("", true, NULL, 0, NULL);
    ck_assert_str_eq(all, "");
}

CASE(any_byte_may_stand_in_a_key)
{
    g_autoptr(GString) key = g_string_new("k");
    for (int c = 1; c < 128; c++) {
        if (c != '/' && c != '.')
            g_string_append_c(key, (char)c);
    }
    g_string_append(key, "/d t=1+2&x?#\xe2\x82\xac%2F");
    put(key->str, "odd");
    assert_content(key->str, "odd");
    g_autofree char *names = list("", false, NULL, 0, NULL);
    ck_assert_str_eq(names, key->str);
    ck_assert_int_eq(objstore_delete(st, key->str, NULL), 0);
}

static struct obj_part part(const char *key, const char *id, uint32_t number, const char *buf, size_t len)
{
    struct obj_part p = {.number = number, .size = len};
    ck_assert_int_eq(objstore_mpu_part(st, key, id, buf, &p), 0);
    ck_assert_uint_eq(p.crc32c, crc32c(0, buf, len));
    return p;
}

CASE(multipart_joins_parts_and_carries_metadata)
{
    size_t big = objstore_limits(st)->part_min_bytes;
    g_autofree char *buf = g_malloc(big);
    g_autofree char *id = NULL;
    g_autofree struct obj_part *listed = NULL;
    size_t n = 0;
    struct obj_info info = {0};
    struct obj_meta meta = {.posix = {.fields = POSIX_MODE, .mode = 0100600}, .token = "mp"};
    struct etag etag = {0};
    memset(buf, 'x', big);
    struct etag src = put("src", "0123456789");
    ck_assert_int_eq(objstore_mpu_create(st, "mp/o", &meta, &id), 0);
    struct obj_part parts[2];
    parts[1] = (struct obj_part){.number = 7, .size = 4};
    ck_assert_int_eq(objstore_mpu_part_copy(st, "mp/o", id, "src", &src, 3, &parts[1]), 0);
    parts[0] = part("mp/o", id, 2, buf, big);
    ck_assert_int_eq(objstore_mpu_parts(st, "mp/o", id, &listed, &n), 0);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(listed[0].number, 2);
    ck_assert_uint_eq(listed[0].size, big);
    ck_assert_str_eq(listed[1].etag.s, parts[1].etag.s);
    ck_assert_int_eq(objstore_head(st, "mp/o", &info), -ENOENT);
    ck_assert_int_eq(objstore_mpu_complete(st, "mp/o", id, parts, 2, "mp", NULL, &etag), 0);
    ck_assert_int_eq(objstore_head(st, "mp/o", &info), 0);
    ck_assert_uint_eq(info.size, big + 4);
    ck_assert_str_eq(info.etag.s, etag.s);
    ck_assert_str_eq(info.token, "mp");
    ck_assert_uint_eq(info.posix.mode, 0100600);
    obj_info_clear(&info);
    g_autofree char *tail = get_range("mp/o", big - 1, 5);
    ck_assert_str_eq(tail, "x3456");
    g_autofree char *all = list("", false, NULL, 0, NULL);
    ck_assert_str_eq(all, "mp/o|src");
}

CASE(multipart_without_token_completes_and_tells_its_etag)
{
    g_autofree char *id = NULL;
    struct obj_info info = {0};
    struct etag etag = {0};
    ck_assert_int_eq(objstore_mpu_create(st, "nt", NULL, &id), 0);
    struct obj_part p = part("nt", id, 1, "abc", 3);
    ck_assert_int_eq(objstore_mpu_complete(st, "nt", id, &p, 1, NULL, NULL, &etag), 0);
    ck_assert_int_eq(objstore_head(st, "nt", &info), 0);
    ck_assert_str_eq(info.etag.s, etag.s);
    assert_content("nt", "abc");
    obj_info_clear(&info);
}

static int count_upload(void *ctx, const char *key, const char *upload_id)
{
    g_ptr_array_add(ctx, g_strdup(key));
    return 0;
}

CASE(aborted_upload_is_gone)
{
    g_autofree char *id = NULL;
    g_autoptr(GPtrArray) rows = g_ptr_array_new_with_free_func(g_free);
    struct obj_part p = {.number = 1, .size = 1};
    ck_assert_int_eq(objstore_mpu_create(st, "up/a b", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_list(st, "up/", count_upload, rows), 0);
    ck_assert_uint_eq(rows->len, 1);
    ck_assert_str_eq(rows->pdata[0], "up/a b");
    ck_assert_int_eq(objstore_mpu_abort(st, "up/a b", id), 0);
    g_ptr_array_set_size(rows, 0);
    ck_assert_int_eq(objstore_mpu_list(st, "up/", count_upload, rows), 0);
    ck_assert_uint_eq(rows->len, 0);
    ck_assert_int_eq(objstore_mpu_part(st, "up/a b", id, "x", &p), -ENOENT);
    ck_assert_int_eq(objstore_mpu_complete(st, "up/a b", id, &p, 1, NULL, NULL, NULL), -ENOENT);
}

CASE(complete_obeys_its_condition)
{
    g_autofree char *id = NULL;
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    ck_assert_int_eq(objstore_mpu_create(st, "cc", NULL, &id), 0);
    struct obj_part p = part("cc", id, 1, "multi", 5);
    put("cc", "mine");
    ck_assert_int_eq(objstore_mpu_complete(st, "cc", id, &p, 1, NULL, &absent, NULL), -ESTALE);
    assert_content("cc", "mine");
    int r = objstore_mpu_abort(st, "cc", id);
    ck_assert(r == 0 || r == -ENOENT);
}

CASE(part_copy_of_another_version_is_refused)
{
    g_autofree char *id = NULL;
    struct etag old = put("pc", "one");
    struct obj_part p = {.number = 1, .size = 2};
    put("pc", "three");
    ck_assert_int_eq(objstore_mpu_create(st, "pd", NULL, &id), 0);
    ck_assert_int_eq(objstore_mpu_part_copy(st, "pd", id, "pc", &old, 0, &p), -ESTALE);
    ck_assert_int_eq(objstore_mpu_abort(st, "pd", id), 0);
}

CASE(shutdown_ends_all_calls)
{
    GString *out = g_string_new(NULL);
    put("k", "v");
    if (dir) { /* a real store's leftovers could not be removed afterwards */
        objstore_shutdown(st);
        ck_assert_int_eq(objstore_get(st, "k", 0, 0, NULL, to_string, out, NULL), -ECANCELED);
    }
    g_string_free(out, TRUE);
}

/* ---- what the file driver alone does ---- */

START_TEST(file_refuses_keys_that_a_directory_cannot_hold)
{
    char name[300];
    memset(name, 'n', 256);
    name[256] = '\0';
    const char *bad[] = {"a//b", "./a", "a/../b", "a/.", name, ".sluice-tmp/x"};
    struct obj_info info = {0};
    setup(DRIVER_FILE);
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        ck_assert_int_eq(objstore_put(st, bad[i], "", 0, NULL, NULL, NULL), -EINVAL);
        ck_assert_int_eq(objstore_head(st, bad[i], &info), -ENOENT);
    }
    put("f", "1");
    put("d/x", "1");
    ck_assert_int_eq(objstore_put(st, "f/x", "", 0, NULL, NULL, NULL), -ENOTSUP);
    ck_assert_int_eq(objstore_put(st, "d", "", 0, NULL, NULL, NULL), -ENOTSUP);
    ck_assert_int_eq(objstore_put(st, "m/", "x", 1, NULL, NULL, NULL), -ENOTSUP);
    g_autofree char *all = list("", false, NULL, 0, NULL);
    ck_assert_str_eq(all, "d/x|f");
    teardown();
}
END_TEST

START_TEST(file_shows_what_others_put_into_the_directory)
{
    setup(DRIVER_FILE);
    g_autofree char *sub = g_build_filename(dir, "their", NULL);
    g_autofree char *file = g_build_filename(sub, "f", NULL);
    g_autofree char *empty = g_build_filename(dir, "void", NULL);
    ck_assert_int_eq(g_mkdir(sub, 0755), 0);
    ck_assert_int_eq(g_mkdir(empty, 0755), 0);
    ck_assert(g_file_set_contents(file, "x", 1, NULL));
    g_autofree char *all = list("", false, NULL, 0, NULL);
    ck_assert_str_eq(all, "their/f|void/");
    assert_content("their/f", "x");
    struct etag etag = {0};
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(st, "their/f", &info), 0);
    etag = info.etag;
    ck_assert(g_file_set_contents(file, "y", 1, NULL));
    ck_assert_int_eq(objstore_head(st, "their/f", &info), 0);
    ck_assert(!etag_equal(&etag, &info.etag));
    teardown();
}
END_TEST

static gpointer race_put(gpointer arg)
{
    struct obj_cond absent = {.kind = OBJ_COND_ABSENT};
    return GINT_TO_POINTER(objstore_put(arg, "race", "1", 1, NULL, &absent, NULL) == 0);
}

START_TEST(file_lets_one_of_many_creators_win)
{
    setup(DRIVER_FILE);
    for (int round = 0; round < 20; round++) {
        GThread *threads[8];
        int winners = 0;
        for (int i = 0; i < 8; i++)
            threads[i] = g_thread_new("put", race_put, st);
        for (int i = 0; i < 8; i++)
            winners += GPOINTER_TO_INT(g_thread_join(threads[i]));
        ck_assert_int_eq(winners, 1);
        ck_assert_int_eq(objstore_delete(st, "race", NULL), 0);
    }
    teardown();
}
END_TEST

START_TEST(file_open_of_a_missing_directory_says_so)
{
    struct objstore *s = NULL;
    g_autofree char *msg = NULL;
    struct objstore_config cfg = {.source = "file:///nonexistent/dir"};
    ck_assert_int_eq(objstore_open(&cfg, &s, &msg), -ENOENT);
    ck_assert_ptr_nonnull(strstr(msg, "/nonexistent/dir"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("objstore");
    TCase *all = tcase_create("every driver");
    TCase *own = tcase_create("own");
    bool s3 = getenv("SLUICE_TEST_S3_SOURCE") != NULL;
    int n = s3 ? N_DRIVERS : DRIVER_S3;
    tcase_set_timeout(all, 120);
#define EACH(name) tcase_add_loop_test(all, name, 0, n)
    EACH(put_then_head_and_get_give_it_back);
    EACH(absent_key_is_enoent);
    EACH(ranges_are_clipped_to_the_end);
    EACH(empty_object_reads_as_nothing);
    EACH(error_of_the_sink_ends_the_read_with_it);
    EACH(metadata_comes_back);
    EACH(token_that_would_break_a_header_is_refused);
    EACH(target_too_long_for_the_metadata_is_refused);
    EACH(rewrite_changes_the_etag);
    EACH(put_if_absent_makes_it_once);
    EACH(put_if_etag_replaces_that_version_only);
    EACH(delete_if_etag_keeps_another_version);
    EACH(get_if_match_refuses_another_version);
    EACH(copy_keeps_or_replaces_metadata);
    EACH(copy_checks_source_and_target);
    EACH(list_is_in_byte_order);
    EACH(list_of_names_that_begin_alike_is_in_byte_order);
    EACH(list_begins_after_and_stops_at_max_keys);
    EACH(list_tells_size_and_etag);
    EACH(list_stops_when_told);
    EACH(list_goes_over_page_borders);
    EACH(marker_is_an_object_that_ends_in_a_slash);
    EACH(directory_without_marker_goes_with_its_last_object);
    EACH(any_byte_may_stand_in_a_key);
    EACH(multipart_joins_parts_and_carries_metadata);
    EACH(multipart_without_token_completes_and_tells_its_etag);
    EACH(aborted_upload_is_gone);
    EACH(complete_obeys_its_condition);
    EACH(part_copy_of_another_version_is_refused);
    EACH(shutdown_ends_all_calls);
    tcase_add_test(own, file_refuses_keys_that_a_directory_cannot_hold);
    tcase_add_test(own, file_shows_what_others_put_into_the_directory);
    tcase_add_test(own, file_lets_one_of_many_creators_win);
    tcase_add_test(own, file_open_of_a_missing_directory_says_so);
    suite_add_tcase(s, all);
    suite_add_tcase(s, own);
    return run_suite(s);
}
