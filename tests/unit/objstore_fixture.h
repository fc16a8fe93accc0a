/* One store of each driver, for tests of what drivers do: the file driver, the fault driver around it, a real S3 store. */
#pragma once
#include "../../s3/objstore.h"
#include "base/clock.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVER_FILE, DRIVER_FAULT, DRIVER_S3, N_DRIVERS };

static struct objstore *st;
static char *dir;

static inline struct objstore *open_file(void)
{
    struct objstore *s = NULL;
    g_autofree char *msg = NULL;
    dir = g_dir_make_tmp("sluice-objstore-XXXXXX", NULL);
    ck_assert_ptr_nonnull(dir);
    g_autofree char *source = g_strconcat("file://", dir, NULL);
    struct objstore_config cfg = {.source = source};
    ck_assert_int_eq(objstore_open(&cfg, &s, &msg), 0);
    return s;
}

static inline struct objstore *open_s3(void)
{
    struct objstore *s = NULL;
    g_autofree char *msg = NULL;
    uint32_t caps = 0;
    g_autofree char *source =
        g_strdup_printf("%s/%08x%08x", getenv("SLUICE_TEST_S3_SOURCE"), g_random_int(), g_random_int());
    struct objstore_config cfg = {.source = source,
                                  .endpoint_url = getenv("SLUICE_TEST_S3_ENDPOINT"),
                                  .max_connections = 8,
                                  .op_timeout_ns = 20 * NS_PER_S};
    int r = objstore_open(&cfg, &s, &msg);
    ck_assert_msg(r == 0, "open: %s", msg ? msg : "?");
    r = objstore_check(s, &msg);
    ck_assert_msg(r == 0, "check: %s", msg ? msg : "?");
    ck_assert_int_eq(objstore_probe(s, "", &caps), 0);
    return s;
}

static inline void setup(int driver)
{
    dir = NULL;
    if (driver == DRIVER_S3) {
        st = open_s3();
        return;
    }
    st = open_file();
    if (driver == DRIVER_FAULT) {
        struct objstore *inner = st;
        ck_assert_int_eq(objstore_fault_wrap(inner, "", &st), 0);
    }
}

static inline int collect(void *ctx, const struct obj_entry *e)
{
    g_ptr_array_add(ctx, g_strdup_printf("%s%.*s", e->is_prefix ? "P:" : "", (int)e->name_len, e->name));
    return 0;
}

static inline char *list(const char *prefix, bool delimiter, const char *after, uint32_t max, bool *ret_truncated)
{
    g_autoptr(GPtrArray) rows = g_ptr_array_new_with_free_func(g_free);
    struct obj_list_req req = {.prefix = prefix, .delimiter = delimiter, .start_after = after, .max_keys = max};
    ck_assert_int_eq(objstore_list(st, &req, collect, rows, ret_truncated), 0);
    g_ptr_array_add(rows, NULL);
    return g_strjoinv("|", (char **)rows->pdata);
}

static inline void teardown(void)
{
    g_autoptr(GPtrArray) rows = g_ptr_array_new_with_free_func(g_free);
    struct obj_list_req req = {.prefix = ""};
    if (dir) {
        g_autofree char *cmd = g_strdup_printf("rm -rf '%s'", dir);
        objstore_close(st);
        ck_assert_int_eq(system(cmd), 0);
        g_free(dir);
        return;
    }
    ck_assert_int_eq(objstore_list(st, &req, collect, rows, NULL), 0);
    for (guint i = 0; i < rows->len; i++)
        ck_assert_int_eq(objstore_delete(st, rows->pdata[i], NULL), 0);
    objstore_close(st);
}

static inline struct etag put(const char *key, const char *text)
{
    struct etag etag = {0};
    ck_assert_int_eq(objstore_put(st, key, text, strlen(text), NULL, NULL, &etag), 0);
    ck_assert(etag_is_set(&etag));
    return etag;
}

static inline int to_string(void *ctx, uint64_t off, const void *buf, size_t len)
{
    g_string_append_len(ctx, buf, (gssize)len);
    return 0;
}

static inline char *get_range(const char *key, uint64_t off, uint64_t len)
{
    GString *out = g_string_new(NULL);
    ck_assert_int_eq(objstore_get(st, key, off, len, NULL, to_string, out, NULL), 0);
    return g_string_free(out, FALSE);
}

static inline void assert_content(const char *key, const char *want)
{
    g_autofree char *have = get_range(key, 0, 0);
    ck_assert_str_eq(have, want);
}
