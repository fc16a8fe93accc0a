/* Listings by several chains, over a made-up store: each name comes once whatever the names are, and most pages are worth their request. */
#include "base/clock.h"
#include "objstore_driver.h"
#include "tests/support/checks.h"
#include "wide_split.h"

#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 1000u

static GPtrArray *keys; /* owned strings, ascending */
static atomic_uint n_pages, n_chains, most,
    seed;                    /* pages that were asked for; chains under way, and most of them at once */
static unsigned fail_at;     /* that page fails; 0: none */
static useconds_t pause_us;  /* before a page, at most */
static useconds_t taking_us; /* what the caller does with one */

/* ---- the store ---- */

static void page_begins(unsigned *ret_number)
{
    *ret_number = atomic_fetch_add(&n_pages, 1) + 1;
    if (pause_us)
        g_usleep((atomic_fetch_add(&seed, 7919) * 2654435761u >> 8) % pause_us);
}

static guint first_behind(const char *after)
{
    guint from = 0, to = keys->len;
    while (after && from < to) {
        guint mid = (from + to) / 2;
        if (strcmp(keys->pdata[mid], after) <= 0)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

/* The row for key; false: it came already, or lies before what was asked for. */
static bool row_of(const char *key, const struct obj_list_req *req, GString *last, struct obj_entry *ret)
{
    const char *name = key + strlen(req->prefix), *slash = strchr(name, '/');
    size_t len = slash ? (size_t)(slash + 1 - name) : strlen(name);
    *ret = (struct obj_entry){.name = name, .name_len = len, .is_prefix = slash != NULL};
    if (last->len == strlen(req->prefix) + len && memcmp(last->str, key, last->len) == 0)
        return false;
    g_string_truncate(last, 0);
    g_string_append_len(last, key, (gssize)(strlen(req->prefix) + len));
    return !req->start_after || strcmp(last->str, req->start_after) > 0;
}

static int list_keys(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx,
                     bool *ret_truncated)
{
    (void)st;
    g_autoptr(GString) last = g_string_new(NULL);
    unsigned n = 0, number = 0;
    int r = 0;
    page_begins(&number);
    if (number == fail_at)
        return -EACCES;
    for (guint i = first_behind(req->start_after);
         r == 0 && i < keys->len && g_str_has_prefix(keys->pdata[i], req->prefix); i++) {
        struct obj_entry e;
        if (!row_of(keys->pdata[i], req, last, &e))
            continue;
        if (n > 0 && n % PAGE == 0)
            page_begins(&number);
        n++;
        r = number == fail_at ? -EACCES : fn(ctx, &e);
    }
    *ret_truncated = false;
    return r;
}

static int list_counted(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx,
                        bool *ret_truncated)
{
    unsigned now = atomic_fetch_add(&n_chains, 1) + 1, before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now))
        ;
    int r = list_keys(st, req, fn, ctx, ret_truncated);
    atomic_fetch_sub(&n_chains, 1);
    return r;
}

static int64_t never(const struct objstore *st)
{
    (void)st;
    return 0;
}

static const struct objstore_driver driver = {.list = list_counted, .offline_since_ns = never};
static struct objstore store = {.drv = &driver};

#define CHAINS 8u

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void setup(void)
{
    keys = g_ptr_array_new_with_free_func(g_free);
    atomic_store(&n_pages, 0);
    atomic_store(&most, 0);
    fail_at = 0;
    pause_us = 3000;
    taking_us = 0;
    store.limits.list_chains = CHAINS;
}

static void teardown(void)
{
    ck_assert_uint_eq(atomic_load(&n_chains), 0);
    g_ptr_array_unref(keys);
}

/* ---- the caller ---- */

struct got {
    GHashTable *names; /* owned strings */
    unsigned n, pages, stop_at;
    atomic_int inside;
};

static int on_row(void *ctx, const struct obj_entry *e)
{
    struct got *g = ctx;
    char *name = g_strndup(e->name, e->name_len);
    ck_assert_int_eq(atomic_fetch_add(&g->inside, 1), 0);
    ck_assert(e->is_prefix == g_str_has_suffix(name, "/"));
    ck_assert_msg(g_hash_table_add(g->names, name), "given twice: %s", name);
    g->n++;
    atomic_fetch_sub(&g->inside, 1);
    return g->n == g->stop_at ? -ECANCELED : 0;
}

static int on_page(void *ctx)
{
    struct got *g = ctx;
    ck_assert_int_eq(atomic_fetch_add(&g->inside, 1), 0);
    g->pages++;
    if (taking_us)
        g_usleep(taking_us);
    atomic_fetch_sub(&g->inside, 1);
    return 0;
}

static int list(const char *prefix, struct got *g)
{
    const struct obj_wide_list req = {.prefix = prefix, .row = on_row, .page = on_page, .ctx = g};
    g_ptr_array_sort(keys, compare);
    g->names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    return objstore_list_wide(&store, &req);
}

/* All names come once; n of them. */
static void assert_all(const char *prefix, unsigned n)
{
    struct got g = {.n = 0};
    ck_assert_int_eq(list(prefix, &g), 0);
    ck_assert_uint_eq(g.n, n);
    for (guint i = 0; i < keys->len; i++) {
        const char *key = keys->pdata[i];
        if (!g_str_has_prefix(key, prefix))
            continue;
        const char *name = key + strlen(prefix), *slash = strchr(name, '/');
        g_autofree char *shown = slash ? g_strndup(name, (gsize)(slash + 1 - name)) : g_strdup(name);
        ck_assert_msg(g_hash_table_contains(g.names, shown), "not given: %s", shown);
    }
    g_hash_table_unref(g.names);
}

static void assert_wide_and_cheap(unsigned n)
{
    unsigned pages = atomic_load(&n_pages), least = n / PAGE + 1;
    ck_assert_uint_ge(atomic_load(&most), 4);
    ck_assert_msg(pages <= 2 * least + 30, "%u pages of %u", pages, least);
}

/* ---- all names come ---- */

#define MANY 60000u

static void add_counted(const char *format, unsigned n) G_GNUC_PRINTF(1, 0);
static void add_counted(const char *format, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        g_autoptr(GString) key = g_string_new(NULL);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        g_string_printf(key, format, i);
#pragma GCC diagnostic pop
        g_ptr_array_add(keys, g_strdup(key->str));
    }
}

START_TEST(numbered_names)
{
    add_counted("d/file-%06u.jpg", MANY);
    assert_all("d/", MANY);
    assert_wide_and_cheap(MANY);
}
END_TEST

START_TEST(numbers_without_zeros)
{
    add_counted("d/%u", MANY);
    assert_all("d/", MANY);
    assert_wide_and_cheap(MANY);
}
END_TEST

START_TEST(hashes)
{
    for (unsigned i = 0; i < MANY; i++) {
        g_autofree char *sum = g_compute_checksum_for_data(G_CHECKSUM_MD5, (const guchar *)&i, sizeof i);
        g_ptr_array_add(keys, g_strdup_printf("%s.tar", sum));
    }
    assert_all("", MANY);
    assert_wide_and_cheap(MANY);
}
END_TEST

START_TEST(names_with_much_in_common)
{
    add_counted("d/a-dataset-with-a-very-long-name-that-all-of-them-have/shard-%06u.tar", MANY);
    add_counted("d/a-dataset-with-a-very-long-name-that-all-of-them-have-%06u.tar", MANY);
    assert_all("d/", MANY + 1);
    assert_wide_and_cheap(MANY);
}
END_TEST

/* Of what has come nothing is left, however long it waits for its turn. */
START_TEST(slow_caller_costs_no_requests)
{
    add_counted("d/a-dataset-with-a-very-long-name-that-all-of-them-have/shard-%06u.tar", 10);
    add_counted("d/a-dataset-with-a-very-long-name-that-all-of-them-have-%06u.tar", MANY / 2);
    taking_us = 20000;
    assert_all("d/", MANY / 2 + 1);
    assert_wide_and_cheap(MANY / 2);
}
END_TEST

/* A directory's marker, and files that come before the others, have nothing in common with them. */
START_TEST(names_with_much_in_common_but_the_first)
{
    add_counted("d/a-dataset-with-a-very-long-name-that-all-of-them-have-%06u.tar", MANY);
    g_ptr_array_add(keys, g_strdup("d/"));
    g_ptr_array_add(keys, g_strdup("d/.keep"));
    assert_all("d/", MANY + 2);
    assert_wide_and_cheap(MANY);
}
END_TEST

START_TEST(one_chain_where_the_store_has_no_use_for_more)
{
    add_counted("d/%06u", MANY);
    store.limits.list_chains = _i ? 1 : 0;
    assert_all("d/", MANY);
    ck_assert_uint_eq(atomic_load(&most), 1);
    ck_assert_uint_eq(atomic_load(&n_pages), MANY / PAGE);
}
END_TEST

START_TEST(directories)
{
    for (unsigned i = 0; i < MANY; i++) {
        g_ptr_array_add(keys, g_strdup_printf("d/n%05u/x", i));
        g_ptr_array_add(keys, g_strdup_printf("d/n%05u/y", i));
        if (i % 3 == 0)
            g_ptr_array_add(keys, g_strdup_printf("d/n%05u", i)); /* an object of the same name */
        if (i % 5 == 0)
            g_ptr_array_add(keys, g_strdup_printf("d/n%05u-b", i));
    }
    assert_all("d/", MANY + MANY / 3 + MANY / 5);
}
END_TEST

/* Few of the guesses are any good. */
START_TEST(names_of_all_bytes)
{
    g_autoptr(GRand) rng = g_rand_new_with_seed((guint32)_i);
    g_autoptr(GHashTable) once = g_hash_table_new(g_str_hash, g_str_equal);
    unsigned top = _i % 2 ? 256 : 128;
    pause_us = 500;
    for (unsigned i = 0; i < 40000; i++) {
        GString *key = g_string_new("d/");
        unsigned len = (unsigned)g_rand_int_range(rng, 1, 9);
        for (unsigned k = 0; k < len; k++) {
            char c = (char)g_rand_int_range(rng, 1, (gint32)top);
            g_string_append_c(key, c == '/' ? '0' : c);
        }
        char *text = g_string_free(key, FALSE);
        if (g_hash_table_contains(once, text)) {
            g_free(text);
        } else {
            g_hash_table_add(once, text);
            g_ptr_array_add(keys, text);
        }
    }
    assert_all("d/", keys->len);
}
END_TEST

/* One thick cluster among few. */
START_TEST(uneven_names)
{
    add_counted("d/m/%u", MANY); /* not shown but as one name */
    for (unsigned i = 0; i < 6000; i++)
        g_ptr_array_add(keys, g_strdup_printf("d/a%u", i));
    for (unsigned i = 0; i < 40000; i++)
        g_ptr_array_add(keys, g_strdup_printf("d/kkkk%07u", i * 3));
    for (unsigned i = 0; i < 10; i++)
        g_ptr_array_add(keys, g_strdup_printf("d/z%u", i));
    assert_all("d/", 46011);
}
END_TEST

START_TEST(few_names_come_in_order_from_the_callers_thread)
{
    for (unsigned i = 0; i < 9999; i++)
        g_ptr_array_add(keys, g_strdup_printf("d/%05u", i));
    assert_all("d/", 9999);
    ck_assert_uint_eq(atomic_load(&most), 1);
    ck_assert_uint_eq(atomic_load(&n_pages), 10);
}
END_TEST

START_TEST(no_names)
{
    assert_all("d/", 0);
}
END_TEST

/* ---- ends ---- */

#define FEW 25000u

START_TEST(page_that_fails_ends_all_of_it)
{
    add_counted("d/%06u", FEW);
    fail_at = (unsigned)_i;
    struct got g = {.n = 0};
    ck_assert_int_eq(list("d/", &g), -EACCES);
    ck_assert_uint_lt(g.n, FEW);
    g_hash_table_unref(g.names);
}
END_TEST

START_TEST(caller_ends_it)
{
    add_counted("d/%06u", FEW);
    struct got g = {.stop_at = (unsigned)_i * 1200 + 1};
    ck_assert_int_eq(list("d/", &g), -ECANCELED);
    ck_assert_uint_eq(g.n, g.stop_at);
    g_hash_table_unref(g.names);
}
END_TEST

static void *list_again(void *arg)
{
    struct got *g = arg;
    const struct obj_wide_list req = {.prefix = "d/", .row = on_row, .page = on_page, .ctx = g};
    g->names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    ck_assert_int_eq(objstore_list_wide(&store, &req), 0);
    return NULL;
}

START_TEST(many_at_once_share_the_threads)
{
    add_counted("d/%06u", FEW);
    g_ptr_array_sort(keys, compare);
    pthread_t threads[8];
    struct got got[G_N_ELEMENTS(threads)] = {0};
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, list_again, &got[i]), 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(threads); i++) {
        pthread_join(threads[i], NULL);
        ck_assert_uint_eq(got[i].n, FEW);
        g_hash_table_unref(got[i].names);
    }
    ck_assert_uint_le(atomic_load(&most), G_N_ELEMENTS(threads) + 2 * (CHAINS - 1));
}
END_TEST

/* ---- cuts ---- */

START_TEST(cut_lies_in_the_range)
{
    static const char bytes[] = "0123456789abc.-_ zZ\x7f\xc3\xa9/!~\x01";
    g_autoptr(GRand) rng = g_rand_new_with_seed(7);
    unsigned n = 0;
    for (unsigned i = 0; i < 200000; i++) {
        char text[3][8];
        struct wide_alphabet a = {0};
        for (unsigned k = 0; k < 3; k++) {
            unsigned len = (unsigned)g_rand_int_range(rng, 1, 7);
            for (unsigned at = 0; at < len; at++)
                text[k][at] = bytes[g_rand_int_range(rng, 0, sizeof bytes - 1)];
            text[k][len] = '\0';
            if (g_rand_boolean(rng))
                wide_alphabet_note(&a, text[k], len);
        }
        const char *sorted[] = {text[0], text[1], text[2]};
        qsort(sorted, 3, sizeof sorted[0], compare);
        const struct wide_range r = {sorted[0], sorted[1], g_rand_boolean(rng) ? sorted[2] : NULL};
        double pages = 0;
        g_autofree char *cut = wide_split(&a, &r, &pages);
        if (!cut)
            continue;
        n++;
        ck_assert_int_gt(strcmp(cut, r.last), 0);
        ck_assert(!r.until || strcmp(cut, r.until) < 0);
        ck_assert(g_str_is_ascii(cut) && !strchr(cut, '/') && !strchr(cut, '\x01'));
        ck_assert(pages >= 2);
    }
    ck_assert_uint_gt(n, 20000);
}
END_TEST

START_TEST(numbers_are_cut_in_the_middle)
{
    struct wide_alphabet a = {0};
    double pages = 0, of_end = 0;
    wide_alphabet_note(&a, "img", 3);
    wide_alphabet_note(&a, "0", 1);
    const struct wide_range r = {"img000000", "img000999", "img1"};
    g_autofree char *cut = wide_split(&a, &r, &pages);
    ck_assert_str_ge(cut, "img03");
    ck_assert_str_le(cut, "img08");
    const struct wide_range end = {"img098000", "img099000", "img1"};
    g_autofree char *late = wide_split(&a, &end, &of_end);
    ck_assert(!late || strcmp(late, end.last) > 0);
    ck_assert(of_end < pages / 4);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wide_list");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, numbered_names);
    tcase_add_test(tc, numbers_without_zeros);
    tcase_add_test(tc, hashes);
    tcase_add_test(tc, names_with_much_in_common);
    tcase_add_test(tc, slow_caller_costs_no_requests);
    tcase_add_test(tc, names_with_much_in_common_but_the_first);
    tcase_add_loop_test(tc, one_chain_where_the_store_has_no_use_for_more, 0, 2);
    tcase_add_test(tc, directories);
    tcase_add_loop_test(tc, names_of_all_bytes, 0, 8);
    tcase_add_test(tc, uneven_names);
    tcase_add_test(tc, few_names_come_in_order_from_the_callers_thread);
    tcase_add_test(tc, no_names);
    suite_add_tcase(s, tc);
    tc = tcase_create("ends");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, page_that_fails_ends_all_of_it, 1, 24);
    tcase_add_loop_test(tc, caller_ends_it, 0, 20);
    tcase_add_test(tc, many_at_once_share_the_threads);
    suite_add_tcase(s, tc);
    tc = tcase_create("cuts");
    tcase_add_test(tc, cut_lies_in_the_range);
    tcase_add_test(tc, numbers_are_cut_in_the_middle);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
