/* What options of a link do, and only to that link. Without a kernel; stores are folders, and an HTTP server inside the test where bytes per second count. */
#include "fs/conflict.h"
#include "fs/content.h"
#include "http_stub.h"
#include "links_fixture.h"

#define RATE       (64u << 10) /* bytes a second */
#define BURST      (RATE / 4)  /* what the limit lets pass at once */
#define BODY_BYTES (96u << 10)

/* Changed here while `theirs` comes in the other store. */
static void lose(const char *name, const char *dir, const char *theirs)
{
    g_autofree char *path = g_build_filename(dir, "f", NULL);
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, true), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "ours", 4, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    object(name, "f", theirs);
    content_release(in, true);
    inode_put(in);
}

/* 0: the link overwrites in a mount that keeps; 1: it is the other way round. */
START_TEST(conflict_is_that_of_the_link)
{
    fx.cfg.conflict = _i == 0 ? CONFLICT_KEEP : CONFLICT_OVERWRITE;
    object("one", "f", "base");
    object("two", "f", "base");
    start();
    ck_assert_int_eq(add("one", "a", _i == 0 ? "conflict=overwrite" : ""), 0);
    ck_assert_int_eq(add("two", "b", _i == 0 ? "" : "conflict=keep"), 0);
    lose("one", "a", "theirs");
    lose("two", "b", "theirs");
    EVENTUALLY(holds("one", "f", "ours"));
    EVENTUALLY(conflict_count(fx.fs->meta, "b") == 1);
    ck_assert(holds("two", "f", "theirs"));
    ck_assert_uint_eq(conflict_count(fx.fs->meta, "a"), 0);
}
END_TEST

/* ---- the download limit ---- */

static struct http_stub *stub;

/* s3://one at a, fast, b, at RATE, and c, at a byte a second; a GET of anything gets BODY_BYTES. */
static void setup_limits(void)
{
    setup();
    stub = http_stub_new();
    g_autofree char *body = g_strnfill(BODY_BYTES, 'x');
    http_stub_always(stub, 200, "ETag: \"v1\"\r\n", body, BODY_BYTES);
    g_autofree char *words = g_strdup_printf("read-only endpoint-url=%s no-sign-request", http_stub_url(stub));
    g_autofree char *text = g_strdup_printf("s3://one a %s\n"
                                            "s3://one b %s download-limit=%u\n"
                                            "s3://one c %s download-limit=1\n",
                                            words, words, RATE, words);
    fx.cfg.links = g_build_filename(fx.dir, "links.txt", NULL);
    ck_assert(g_file_set_contents(fx.cfg.links, text, -1, NULL));
    fs_fixture_object(&fx, "f", "root", 4);
    start();
}

static void teardown_limits(void)
{
    teardown();
    http_stub_free(stub);
}

static int count(void *ctx, uint64_t off, const void *buf, size_t len)
{
    __atomic_fetch_add((uint64_t *)ctx, len, __ATOMIC_SEQ_CST);
    return 0;
}

static int get(const char *key, uint64_t *ret_bytes)
{
    return objstore_get(fx.fs->store, key, 0, 0, NULL, count, ret_bytes, NULL);
}

START_TEST(limited_link_takes_its_time)
{
    uint64_t bytes = 0, began_ns = clock_mono_ns();
    ck_assert_int_eq(get("b/f", &bytes), 0);
    ck_assert_uint_eq(bytes, BODY_BYTES);
    ck_assert_uint_ge(clock_mono_ns() - began_ns, NS_PER_S * (BODY_BYTES - BURST) / RATE);
}
END_TEST

static gpointer get_slowly(gpointer bytes)
{
    return GINT_TO_POINTER(get("c/f", bytes));
}

START_TEST(limited_link_holds_up_no_other)
{
    uint64_t slow = 0, fast = 0, root = 0;
    unsigned n = http_stub_n_requests(stub);
    GThread *thread = g_thread_new("slow", get_slowly, &slow);
    EVENTUALLY(http_stub_n_requests(stub) > n);
    ck_assert_int_eq(get("a/f", &fast), 0);
    ck_assert_uint_eq(fast, BODY_BYTES);
    ck_assert_int_eq(get("f", &root), 0);
    ck_assert_uint_eq(root, 4);
    ck_assert_uint_lt(__atomic_load_n(&slow, __ATOMIC_SEQ_CST), BODY_BYTES);
    objstore_shutdown(fx.fs->store); /* ends the wait */
    (void)g_thread_join(thread);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("link_options");
    TCase *t = tcase_create("conflict"), *l = tcase_create("limits");
    tcase_set_timeout(t, 60);
    tcase_set_timeout(l, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_checked_fixture(l, setup_limits, teardown_limits);
    tcase_add_loop_test(t, conflict_is_that_of_the_link, 0, 2);
    tcase_add_test(l, limited_link_takes_its_time);
    tcase_add_test(l, limited_link_holds_up_no_other);
    suite_add_tcase(s, t);
    suite_add_tcase(s, l);
    int status = run_suite(s);
    g_free(last_msg);
    return status;
}
