/* Verbs of warm-ups over the real control socket, on a lake in a folder, without FUSE. */
#include "fs/ctl.h"
#include "fs/ctl_proto.h"
#include "fs/ctl_verbs.h"
#include "fs/jobs.h"
#include "fs/pin.h"
#include "fs/tree.h"
#include "fs/tree_apply.h"
#include "fs/warm_job.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct fs_fixture fx;
static struct ctl *ctl;

static void setup(void)
{
    fs_fixture_init(&fx);
    if (geteuid() != 0)
        g_setenv("XDG_RUNTIME_DIR", fx.dir, TRUE);
}

/* Before jobs of the worker before are known. */
static void serve_early(void)
{
    int listen_fd = -1;
    fs_fixture_open(&fx);
    ck_assert_int_eq(ctl_listen(fx.cfg.mountpoint, &listen_fd), 0);
    ck_assert_int_eq(ctl_start(fx.fs, listen_fd, ctl_verbs, &ctl), 0);
}

static void serve(void)
{
    serve_early();
    warm_jobs_resume(fx.fs);
}

static void stop_serving(void)
{
    ctl_unlisten(fx.cfg.mountpoint);
    ctl_stop(ctl);
    ctl = NULL;
}

static void teardown(void)
{
    stop_serving();
    fs_fixture_fini(&fx);
}

static int dial(const char *request)
{
    g_autofree char *path = ctl_socket_path(fx.cfg.mountpoint);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    g_autofree char *line = g_strconcat(request, "\n", NULL);
    ck_assert_int_eq(send(fd, line, strlen(line), MSG_NOSIGNAL), strlen(line));
    return fd;
}

/* All lines of the reply as a JSON array; the last one is "done". */
static json_t *answer(int fd)
{
    g_autoptr(GString) text = g_string_new(NULL);
    char buf[4096];
    for (ssize_t n; (n = recv(fd, buf, sizeof(buf), 0)) > 0;)
        g_string_append_len(text, buf, n);
    close(fd);
    json_t *lines = json_array();
    g_auto(GStrv) parts = g_strsplit(text->str, "\n", -1);
    for (unsigned i = 0; parts[i] && *parts[i]; i++) {
        json_t *o = json_loads(parts[i], 0, NULL);
        ck_assert_msg(o != NULL, "not JSON: %s", parts[i]);
        json_array_append_new(lines, o);
    }
    ck_assert_uint_gt(json_array_size(lines), 0);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(lines, json_array_size(lines) - 1), "event")),
                     "done");
    return lines;
}

static json_t *ask(const char *request)
{
    return answer(dial(request));
}

static int exit_of(const json_t *lines)
{
    return (int)json_integer_value(json_object_get(json_array_get(lines, json_array_size(lines) - 1), "exit"));
}

/* The first line with this event; NULL when there is none. */
static const json_t *event(const json_t *lines, const char *name)
{
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *o = json_array_get(lines, i);
        if (g_strcmp0(json_string_value(json_object_get(o, "event")), name) == 0)
            return o;
    }
    return NULL;
}

static json_int_t number(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    ck_assert_msg(json_is_integer(v), "%s is not a number", name);
    return json_integer_value(v);
}

static const char *text(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    ck_assert_msg(s != NULL, "%s is not a string", name);
    return s;
}

START_TEST(warmup_reports_exact_totals)
{
    fs_fixture_object(&fx, "d/a", "12345", 5);
    fs_fixture_object(&fx, "d/b", "123", 3);
    serve();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"d\"]}");
    const json_t *last = json_array_get(lines, json_array_size(lines) - 2);
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_str_eq(text(last, "event"), "progress");
    ck_assert_int_eq(number(last, "files_done"), 2);
    ck_assert_int_eq(number(last, "files_total"), 2);
    ck_assert_int_eq(number(last, "bytes_done"), 8);
    ck_assert_int_eq(number(last, "bytes_total"), 8);
    ck_assert_int_eq(number(last, "errors"), 0);
    json_decref(lines);
}
END_TEST

START_TEST(warmup_that_runs_out_of_time_exits_with_3)
{
    fs_fixture_object(&fx, "a", "12345", 5);
    fx.cfg.fault = g_strdup("op=get,action=delay:60s");
    serve();
    uint64_t before = clock_mono_ns();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"a\"],\"timeout_s\":1}");
    ck_assert_int_eq(exit_of(lines), 3);
    ck_assert_uint_lt(clock_mono_ns() - before, 20 * NS_PER_S);
    json_decref(lines);
}
END_TEST

START_TEST(background_warmup_is_found_by_its_id_and_stopped)
{
    fx.cfg.fault = g_strdup("op=get,action=delay:200ms");
    for (unsigned i = 0; i < 40; i++) {
        g_autofree char *key = g_strdup_printf("d/%u", i);
        fs_fixture_object(&fx, key, "1", 1);
    }
    serve();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"d\"],\"background\":true,\"parallel\":1}");
    json_int_t id = number(event(lines, "job"), "id");
    json_decref(lines);
    lines = ask("{\"verb\":\"warmup-status\"}");
    ck_assert_int_eq(number(event(lines, "job"), "id"), id);
    ck_assert_str_eq(text(event(lines, "job"), "state"), "running");
    json_decref(lines);
    g_autofree char *stop = g_strdup_printf("{\"verb\":\"warmup-stop\",\"id\":%d}", (int)id);
    lines = ask(stop);
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_str_eq(text(event(lines, "job"), "state"), "stopped");
    json_decref(lines);
    g_autofree char *status = g_strdup_printf("{\"verb\":\"warmup-status\",\"id\":%d}", (int)id);
    lines = ask(status);
    ck_assert_int_eq(exit_of(lines), 3); /* work is left */
    ck_assert_int_eq(json_array_size(json_object_get(event(lines, "job"), "problems")), 0);
    json_decref(lines);
}
END_TEST

START_TEST(job_of_the_worker_before_is_found_by_who_asks_early)
{
    fs_fixture_object(&fx, "a", "12345", 5);
    fx.cfg.fault = g_strdup("op=get,action=delay:60s");
    serve();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"a\"],\"background\":true}");
    ck_assert_int_eq(exit_of(lines), 0);
    g_autofree char *request = g_strdup_printf("{\"verb\":\"warmup-status\",\"id\":%" JSON_INTEGER_FORMAT "}",
                                               number(event(lines, "job"), "id"));
    json_decref(lines);
    stop_serving();
    fs_fixture_close(&fx);
    serve_early();
    int fd = dial(request);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 300), 0); /* nothing is said before it is known */
    warm_jobs_resume(fx.fs);
    lines = answer(fd);
    ck_assert_int_eq(exit_of(lines), 3);
    ck_assert_str_eq(text(event(lines, "job"), "state"), "running");
    json_decref(lines);
}
END_TEST

START_TEST(only_jobs_that_were_ordered_are_listed)
{
    fs_fixture_object(&fx, "a", "12345", 5);
    fx.cfg.fault = g_strdup("op=get,action=delay:60s");
    serve();
    json_decref(ask("{\"verb\":\"pin\",\"paths\":[\"a\"]}"));
    json_t *lines = ask("{\"verb\":\"warmup-status\"}");
    ck_assert_ptr_null(event(lines, "job"));
    ck_assert_int_eq(exit_of(lines), 0);
    json_decref(lines);
    json_decref(ask("{\"verb\":\"warmup\",\"paths\":[\"a\"],\"background\":true}"));
    lines = ask("{\"verb\":\"warmup-status\"}");
    ck_assert_uint_eq(json_array_size(lines), 2);
    ck_assert_ptr_nonnull(event(lines, "job"));
    json_decref(lines);
}
END_TEST

START_TEST(paths_of_a_warmup_may_come_behind_it)
{
    static const struct {
        const char *lines;
        int exit, files;
    } rows[] = {
        {"\"d/0\"\n\"d/1\"\n", 0, 2}, {"\"/d/./2\"\n", 0, 1}, {"\"d\"\n", 0, 3},    {"", 1, 0}, {"3\n", 1, 0},
        {"\"d/../e\"\n", 1, 0},       {"\"d\n", 1, 0},        {"\"none\"\n", 1, 0},
    };
    for (unsigned i = 0; i < 3; i++) {
        g_autofree char *key = g_strdup_printf("d/%u", i);
        fs_fixture_object(&fx, key, "12345", 5);
    }
    serve();
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *request = g_strconcat("{\"verb\":\"warmup\",\"list\":true}\n", rows[i].lines, NULL);
        json_t *lines = ask(request);
        ck_assert_msg(exit_of(lines) == rows[i].exit, "%s", rows[i].lines);
        if (rows[i].files)
            ck_assert_int_eq(number(json_array_get(lines, json_array_size(lines) - 2), "files_done"), rows[i].files);
        json_decref(lines);
    }
}
END_TEST

START_TEST(shares_that_are_none_are_refused)
{
    serve();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"\"],\"node\":3,\"nodes\":3}");
    ck_assert_int_eq(exit_of(lines), 1);
    json_decref(lines);
    lines = ask("{\"verb\":\"warmup\",\"paths\":[\"\"],\"node\":0,\"nodes\":3000000000}");
    ck_assert_int_eq(exit_of(lines), 1);
    json_decref(lines);
}
END_TEST

START_TEST(warmup_ends_when_its_client_leaves)
{
    fx.cfg.fault = g_strdup("op=get,action=delay:100ms");
    for (unsigned i = 0; i < 100; i++) {
        g_autofree char *key = g_strdup_printf("d/%u", i);
        fs_fixture_object(&fx, key, "1", 1);
    }
    serve();
    int fd = dial("{\"verb\":\"warmup\",\"paths\":[\"d\"],\"parallel\":2}");
    g_usleep(300 * 1000);
    close(fd);
    unsigned live = 1;
    for (unsigned i = 0; i < 2000 && live > 0; i++) {
        g_usleep(1000);
        mutex_lock(&fx.fs->jobs->mu);
        live = fx.fs->jobs->live;
        mutex_unlock(&fx.fs->jobs->mu);
    }
    ck_assert_uint_eq(live, 0);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/99"), 0);
}
END_TEST

START_TEST(check_names_what_is_missing_and_evict_tells_what_it_freed)
{
    fs_fixture_object(&fx, "a", "12345", 5);
    serve();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"\"],\"check\":true}");
    const json_t *o = event(lines, "check");
    ck_assert_int_eq(exit_of(lines), 1);
    ck_assert_str_eq(text(o, "path"), "a");
    ck_assert_int_eq(number(o, "cached_bytes"), 0);
    ck_assert_int_eq(number(o, "size"), 5);
    json_decref(lines);
    json_decref(ask("{\"verb\":\"warmup\",\"paths\":[\"\"]}"));
    lines = ask("{\"verb\":\"warmup\",\"paths\":[\"\"],\"check\":true}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_ptr_null(event(lines, "check"));
    json_decref(lines);
    lines = ask("{\"verb\":\"evict\",\"paths\":[\"\"]}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_int_eq(number(event(lines, "evicted"), "files"), 1);
    ck_assert_int_gt(number(event(lines, "evicted"), "bytes"), 0);
    json_decref(lines);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "a"), 0);
}
END_TEST

START_TEST(warmup_of_more_than_the_cache_holds_says_so_and_what_is_left)
{
    g_autofree char *data = g_malloc0(4 << 20);
    for (unsigned i = 0; i < 12; i++) {
        g_autofree char *key = g_strdup_printf("d/%02u", i);
        fs_fixture_object(&fx, key, data, 4 << 20);
    }
    fx.cfg.cache_size.bytes = 32 << 20;
    serve();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"d\"],\"parallel\":1}");
    const json_t *last = json_array_get(lines, json_array_size(lines) - 2);
    ck_assert_int_eq(exit_of(lines), 1);
    ck_assert_ptr_nonnull(strstr(text(event(lines, "warning"), "message"), "48.0 MiB are to be kept"));
    ck_assert_str_eq(text(last, "state"), "failed");
    ck_assert_int_eq(number(last, "files_done"), 12);
    ck_assert_int_ge(number(last, "files_dropped"), 4);
    ck_assert_int_le(number(last, "files_dropped"), 11);
    ck_assert_int_eq(number(last, "bytes_dropped"), number(last, "files_dropped") * (4 << 20));
    json_decref(lines);
}
END_TEST

/* What is pinned is not pushed out, so it needs no room beside itself. */
START_TEST(warmup_of_what_is_mostly_pinned_fits)
{
    g_autofree char *data = g_malloc0(4 << 20);
    for (unsigned i = 0; i < 6; i++) {
        g_autofree char *key = g_strdup_printf("d/%02u", i);
        fs_fixture_object(&fx, key, data, 4 << 20);
    }
    fx.cfg.cache_size.bytes = 32 << 20;
    serve();
    json_decref(ask("{\"verb\":\"warmup\",\"paths\":[\"d\"]}"));
    INODE_REF in = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(pin_tree(fx.fs, in->ino, PIN_DISK), 0);
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"d\"]}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_ptr_null(event(lines, "warning"));
    json_decref(lines);
}
END_TEST

START_TEST(warmup_says_that_a_file_is_archived)
{
    fs_fixture_object(&fx, "d/a", "12345", 5);
    fx.cfg.fault = g_strdup("op=get,action=error:-ENOMEDIUM");
    serve();
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"d\"]}");
    ck_assert_int_eq(exit_of(lines), 1);
    ck_assert_str_eq(text(event(lines, "error"), "path"), "d/a");
    ck_assert_ptr_nonnull(strstr(text(event(lines, "error"), "error"), "restore it in the store first"));
    json_decref(lines);
}
END_TEST

static void refuse_listings(void)
{
    atomic_store(&fx.fs->doubt_ns, clock_wall_ns());
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=list,action=error:-EACCES"), 0);
}

START_TEST(pin_behind_a_refused_listing_pins_what_is_known_and_fails)
{
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO");
    fs_fixture_object(&fx, "d/e/a", "1", 1);
    serve();
    inode_put(fs_fixture_inode(&fx, "d/e/a"));
    refuse_listings();
    json_t *lines = ask("{\"verb\":\"pin\",\"paths\":[\"d\"]}");
    ck_assert_int_eq(exit_of(lines), 1);
    ck_assert_str_eq(text(event(lines, "error"), "path"), "d");
    ck_assert_str_eq(text(event(lines, "pinned"), "path"), "d");
    ck_assert(fs_fixture_pinned(&fx, "d/e/a"));
    json_decref(lines);
}
END_TEST

START_TEST(checkpoints_behind_a_refused_listing_are_told_and_it_fails)
{
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO");
    fs_fixture_object(&fx, "d/step_1.pt", "1", 1);
    serve();
    inode_put(fs_fixture_inode(&fx, "d/step_1.pt"));
    refuse_listings();
    json_t *lines = ask("{\"verb\":\"checkpoints\",\"paths\":[\"d\"],\"list\":true}");
    ck_assert_int_eq(exit_of(lines), 1);
    ck_assert_str_eq(text(event(lines, "error"), "path"), "d");
    ck_assert_str_eq(text(event(lines, "checkpoint"), "path"), "d/step_1.pt");
    json_decref(lines);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_warm");
    TCase *tc = tcase_create("ctl_warm");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, warmup_reports_exact_totals);
    tcase_add_test(tc, warmup_that_runs_out_of_time_exits_with_3);
    tcase_add_test(tc, background_warmup_is_found_by_its_id_and_stopped);
    tcase_add_test(tc, job_of_the_worker_before_is_found_by_who_asks_early);
    tcase_add_test(tc, only_jobs_that_were_ordered_are_listed);
    tcase_add_test(tc, paths_of_a_warmup_may_come_behind_it);
    tcase_add_test(tc, shares_that_are_none_are_refused);
    tcase_add_test(tc, warmup_ends_when_its_client_leaves);
    tcase_add_test(tc, check_names_what_is_missing_and_evict_tells_what_it_freed);
    tcase_add_test(tc, warmup_of_more_than_the_cache_holds_says_so_and_what_is_left);
    tcase_add_test(tc, warmup_of_what_is_mostly_pinned_fits);
    tcase_add_test(tc, warmup_says_that_a_file_is_archived);
    tcase_add_test(tc, pin_behind_a_refused_listing_pins_what_is_known_and_fails);
    tcase_add_test(tc, checkpoints_behind_a_refused_listing_are_told_and_it_fails);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
