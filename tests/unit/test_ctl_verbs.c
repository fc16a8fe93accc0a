/* The daemon's verbs over the real control socket, on a lake in a folder, without FUSE. */
#include "fs/content.h"
#include "fs/ctl.h"
#include "fs/ctl_proto.h"
#include "fs/ctl_verbs.h"
#include "fs/jobs.h"
#include "fs/pin.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs/tree_apply.h"
#include "fs/warm_job.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

#define NO_FAULT_YET "op=get,nth=1000000,action=error:-EIO"

static void serve(void)
{
    int listen_fd = -1;
    fs_fixture_open(&fx);
    ck_assert_int_eq(ctl_listen(fx.cfg.mountpoint, &listen_fd), 0);
    warm_jobs_resume(fx.fs);
    ck_assert_int_eq(ctl_start(fx.fs, listen_fd, ctl_verbs, &ctl), 0);
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
static json_t *ask(const char *request)
{
    int fd = dial(request);
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

START_TEST(stop_brings_closed_files_to_the_disk)
{
    serve();
    fs_fixture_write(&fx, "f", "text", 4);
    (void)signal(SIGTERM, SIG_IGN); /* as which the process tells itself */
    json_decref(ask("{\"verb\":\"stop\"}"));
    INODE_REF in = fs_fixture_inode(&fx, "f");
    mutex_lock(&in->mu);
    ck_assert(in->rec.flags & INODE_DATA_SYNCED);
    mutex_unlock(&in->mu);
}
END_TEST

START_TEST(status_has_every_field)
{
    static const char *const numbers[] = {"pid",
                                          "supervisor_pid",
                                          "cache_bytes",
                                          "cache_limit_bytes",
                                          "pinned_bytes",
                                          "dirty_files",
                                          "dirty_bytes",
                                          "oldest_dirty_seconds",
                                          "overdue_seconds",
                                          "uploading",
                                          "held",
                                          "parked",
                                          "conflicts",
                                          "quarantined",
                                          "hidden_keys",
                                          "hit_bytes",
                                          "miss_bytes",
                                          "uploaded_bytes",
                                          "sent_bytes",
                                          "downloaded_bytes",
                                          "copied_bytes",
                                          "retries",
                                          "names_late_seconds",
                                          "offline_since",
                                          "credentials_expire_at",
                                          "started"};
    serve();
    json_t *lines = ask("{\"verb\":\"status\"}");
    const json_t *o = event(lines, "status");
    ck_assert_int_eq(exit_of(lines), 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(numbers); i++)
        (void)number(o, numbers[i]);
    ck_assert_str_eq(text(o, "mountpoint"), fx.cfg.mountpoint);
    ck_assert_str_eq(text(o, "version"), SLUICE_VERSION);
    ck_assert_ptr_nonnull(strstr(text(o, "source"), fx.lake));
    ck_assert(json_is_array(json_object_get(o, "kernel_features")));
    ck_assert(json_is_array(json_object_get(o, "capabilities")));
    ck_assert(json_is_array(json_object_get(o, "conditions_by_head")));
    ck_assert(json_is_false(json_object_get(o, "passthrough")));
    ck_assert(json_is_integer(json_object_get(json_object_get(o, "requests"), "get")));
    ck_assert_int_eq(number(o, "pid"), getpid());
    ck_assert_int_gt(number(o, "cache_limit_bytes"), 0);
    json_decref(lines);
}
END_TEST

START_TEST(status_counts_unpublished_files)
{
    serve();
    fs_fixture_write(&fx, "d/x", "hello", 5);
    json_t *lines = ask("{\"verb\":\"status\"}");
    const json_t *o = event(lines, "status");
    ck_assert_int_eq(number(o, "dirty_files"), 1);
    ck_assert_int_gt(number(o, "dirty_bytes"), 0);
    ck_assert_int_eq(metric_get(M_dirty_files), 1);
    json_decref(lines);
}
END_TEST

START_TEST(status_answers_while_the_store_does_not)
{
    fs_fixture_object(&fx, "a", "1", 1);
    fx.cfg.fault = g_strdup("op=list,nth=2,count=9,action=delay:60s");
    serve();
    int fd = dial("{\"verb\":\"info\",\"paths\":[\"a\"]}");
    g_usleep(100 * 1000);
    uint64_t before = clock_mono_ns();
    json_t *lines = ask("{\"verb\":\"status\"}");
    ck_assert_uint_lt(clock_mono_ns() - before, 20 * NS_PER_S);
    json_decref(lines);
    close(fd);
}
END_TEST

START_TEST(info_of_a_file_in_the_lake)
{
    fs_fixture_object(&fx, "d/a b", "12345", 5);
    serve();
    json_t *lines = ask("{\"verb\":\"info\",\"paths\":[\"/d//a b/\"]}");
    const json_t *o = event(lines, "info");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_str_eq(text(o, "path"), "d/a b");
    ck_assert_str_eq(text(o, "key"), "d/a b");
    ck_assert_str_eq(text(o, "state"), "clean");
    ck_assert_str_ne(text(o, "etag"), "");
    ck_assert_int_eq(number(o, "size"), 5);
    ck_assert_int_eq(number(o, "cached_bytes"), 0);
    ck_assert_int_eq(number(o, "dirty_bytes"), 0);
    ck_assert(json_is_false(json_object_get(o, "pinned")));
    json_decref(lines);
}
END_TEST

static void listed(const char *name, const struct etag *etag, bool archived)
{
    struct list_row row = {.name = g_strdup(name), .size = 5, .etag = *etag, .archived = archived};
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&fx.fs->ns);
    ck_assert_int_eq(tree_apply_row(fx.fs, b, META_ROOT_INO, &row, UINT64_MAX), 0);
    ck_assert_int_eq(meta_commit(b, false), 0);
    publish_apply(fx.fs, true);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
    g_free(row.name);
}

static bool is_archived(const char *request)
{
    json_t *lines = ask(request);
    bool yes = json_is_true(json_object_get(event(lines, "info"), "archived"));
    json_decref(lines);
    return yes;
}

START_TEST(info_says_what_a_listing_told_of_the_archive)
{
    const char *request = "{\"verb\":\"info\",\"paths\":[\"old\"]}";
    fs_fixture_object(&fx, "old", "12345", 5);
    serve();
    struct etag etag = {0};
    json_t *lines = ask(request); /* lists the directory: from now on it is known for a while */
    g_strlcpy(etag.s, text(event(lines, "info"), "etag"), sizeof etag.s);
    json_decref(lines);
    ck_assert(!is_archived(request));
    listed("old", &etag, true);
    ck_assert(is_archived(request));
    listed("old", &etag, false);
    ck_assert(!is_archived(request));
    listed("old", &(struct etag){"another"}, true);
    ck_assert(is_archived(request));
}
END_TEST

START_TEST(info_of_an_unpublished_file)
{
    serve();
    fs_fixture_write(&fx, "x", "hello", 5);
    json_t *lines = ask("{\"verb\":\"info\",\"paths\":[\"x\",\"\"]}");
    const json_t *o = event(lines, "info");
    ck_assert_str_eq(text(o, "state"), "sealed");
    ck_assert_int_eq(number(o, "cached_bytes"), 5);
    ck_assert_int_eq(number(o, "dirty_bytes"), 5);
    ck_assert_uint_eq(json_array_size(lines), 3);
    ck_assert_int_eq(number(json_array_get(lines, 1), "dirty_files"), 1);
    json_decref(lines);
}
END_TEST

START_TEST(info_names_the_paths_that_are_not_there)
{
    fs_fixture_object(&fx, "a", "1", 1);
    serve();
    json_t *lines = ask("{\"verb\":\"info\",\"paths\":[\"nowhere\",\"a\"]}");
    ck_assert_int_eq(exit_of(lines), 1);
    ck_assert_str_eq(text(event(lines, "error"), "path"), "nowhere");
    ck_assert_ptr_nonnull(event(lines, "info"));
    json_decref(lines);
}
END_TEST

START_TEST(requests_without_sense_are_refused)
{
    static const char *const bad[] = {
        "{\"verb\":\"info\"}",
        "{\"verb\":\"info\",\"paths\":[]}",
        "{\"verb\":\"info\",\"paths\":[3]}",
        "{\"verb\":\"info\",\"paths\":[\"a/../b\"]}",
        "{\"verb\":\"warmup\",\"paths\":\"a\"}",
        "{\"verb\":\"wait\"}",
        "{\"verb\":\"publish\",\"action\":\"burn\",\"paths\":[\"\"]}",
        "{\"verb\":\"publish\",\"action\":\"retry\",\"paths\":[\"a\"]}",
        "{\"verb\":\"warmup-stop\",\"id\":77}",
        "{\"verb\":\"wait\",\"paths\":[\"nowhere\"]}",
    };
    serve();
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        json_t *lines = ask(bad[i]);
        ck_assert_msg(exit_of(lines) == 1, "%s", bad[i]);
        json_decref(lines);
    }
}
END_TEST

START_TEST(pin_with_latest_pins_the_newest_and_unpin_ends_the_rule)
{
    serve();
    fs_fixture_write(&fx, "ckpt/1.pt", "a", 1);
    g_usleep(2000);
    fs_fixture_write(&fx, "ckpt/2.pt", "b", 1);
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    json_t *lines = ask("{\"verb\":\"pin\",\"paths\":[\"ckpt/*.pt\"],\"latest\":1}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_str_eq(text(event(lines, "pinned"), "path"), "ckpt/2.pt");
    ck_assert_uint_eq(json_array_size(lines), 2);
    json_decref(lines);
    ck_assert(fs_fixture_pinned(&fx, "ckpt/2.pt"));
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/1.pt"));
    lines = ask("{\"verb\":\"unpin\",\"paths\":[\"ckpt/*.pt\"]}");
    ck_assert_int_eq(exit_of(lines), 0);
    json_decref(lines);
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/2.pt"));
    lines = ask("{\"verb\":\"pin\",\"paths\":[\"c*/x\"],\"latest\":1}");
    ck_assert_int_eq(exit_of(lines), 1);
    json_decref(lines);
}
END_TEST

START_TEST(pin_with_latest_lists_the_directories_that_it_chooses_from)
{
    static const char *const keys[] = {"ckpt/step_2/x", "ckpt/step_9/x", "ckpt/step_10/x"};
    for (unsigned i = 0; i < G_N_ELEMENTS(keys); i++) {
        g_autofree char *path = g_build_filename(fx.lake, keys[i], NULL);
        struct timespec t = {.tv_sec = clock_wall_ns() / (int64_t)NS_PER_S - 300 + 100 * i};
        fs_fixture_object(&fx, keys[i], "data", 4);
        ck_assert_int_eq(utimensat(AT_FDCWD, path, (struct timespec[2]){t, t}, 0), 0);
    }
    serve();
    json_t *lines = ask("{\"verb\":\"pin\",\"paths\":[\"ckpt/step_*\"],\"latest\":1}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_str_eq(text(event(lines, "pinned"), "path"), "ckpt/step_10");
    ck_assert_ptr_eq(event(lines, "pinned"), json_array_get(lines, json_array_size(lines) - 2)); /* the only one */
    json_decref(lines);
}
END_TEST

START_TEST(unpin_takes_the_rule_of_a_plain_name_away)
{
    fs_fixture_object(&fx, "ckpt/final", "1", 1);
    serve();
    json_decref(ask("{\"verb\":\"pin\",\"paths\":[\"ckpt/final\"],\"latest\":2}"));
    ck_assert(fs_fixture_pinned(&fx, "ckpt/final"));
    json_t *lines = ask("{\"verb\":\"unpin\",\"paths\":[\"ckpt/final\"],\"latest\":3}");
    ck_assert_int_eq(exit_of(lines), 1);
    json_decref(lines);
    ck_assert(fs_fixture_pinned(&fx, "ckpt/final"));
    lines = ask("{\"verb\":\"unpin\",\"paths\":[\"ckpt/final\"],\"latest\":3,\"again\":true}");
    ck_assert_int_eq(exit_of(lines), 0); /* the daemon before this one may have done it */
    json_decref(lines);
    lines = ask("{\"verb\":\"unpin\",\"paths\":[\"ckpt/final\"]}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_str_eq(text(event(lines, "unpinned"), "path"), "ckpt/final");
    json_decref(lines);
    ck_assert(!fs_fixture_pinned(&fx, "ckpt/final"));
    ck_assert_int_eq(pin_rule_remove(fx.fs, "ckpt/final", 0), -ENOENT);
}
END_TEST

START_TEST(pin_of_a_path_fetches_it)
{
    fs_fixture_object(&fx, "d/a", "12345", 5);
    serve();
    json_t *lines = ask("{\"verb\":\"pin\",\"paths\":[\"d\",\"nowhere\"]}");
    ck_assert_int_eq(exit_of(lines), 1);
    ck_assert_str_eq(text(event(lines, "pinned"), "path"), "d");
    ck_assert_str_eq(text(event(lines, "error"), "path"), "nowhere");
    json_decref(lines);
    ck_assert(fs_fixture_pinned(&fx, "d/a"));
    for (unsigned i = 0; i < 2000 && fs_fixture_cached(&fx, "d/a") < 5; i++)
        g_usleep(1000);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 5);
}
END_TEST

START_TEST(wait_returns_when_the_file_is_published)
{
    serve();
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "d/x", "hello", 5);
    json_t *lines = ask("{\"verb\":\"wait\",\"paths\":[\"d\"],\"timeout_s\":20}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert(fs_fixture_object_exists(&fx, "d/x"));
    json_decref(lines);
}
END_TEST

START_TEST(wait_and_drain_run_out_of_time_with_work_left)
{
    serve(); /* nobody publishes */
    fs_fixture_write(&fx, "x", "hello", 5);
    json_t *lines = ask("{\"verb\":\"wait\",\"paths\":[\"x\"],\"timeout_s\":1}");
    ck_assert_int_eq(exit_of(lines), 3);
    ck_assert_int_eq(number(event(lines, "progress"), "files_left"), 1);
    ck_assert_int_eq(number(event(lines, "progress"), "bytes_left"), 5);
    json_decref(lines);
    lines = ask("{\"verb\":\"drain\",\"timeout_s\":1}");
    ck_assert_int_eq(exit_of(lines), 3);
    json_decref(lines);
}
END_TEST

static void link_at(const char *dir, const char *name, const char *target)
{
    INODE_REF in = NULL;
    INODE_REF parent = fs_fixture_inode(&fx, dir);
    struct node_spec spec = {.parent = parent->ino, .name = name, .mode = S_IFLNK | 0777, .target = target};
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
}

/* '@' at the start stands for the mount point. */
static char *in_mount(const char *target)
{
    return *target == '@' ? g_strconcat(fx.cfg.mountpoint, target + 1, NULL) : g_strdup(target);
}

static const char *const bad_links[] = {"/etc", "../x", "d/../../x", "@-other/d"};
static const char *const good_links[] = {"step_1", "./step_1/", "../ckpt/step_1", "again", "@/ckpt/step_1"};

START_TEST(wait_looks_behind_a_link)
{
    fx.cfg.fault = g_strdup(NO_FAULT_YET);
    serve();
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "ckpt/step_1/a", "1", 1);
    g_autofree char *target = in_mount(good_links[_i]);
    link_at("ckpt", "latest", target);
    link_at("ckpt", "again", "step_1");
    json_t *lines = ask("{\"verb\":\"wait\",\"paths\":[\"ckpt/latest\"],\"timeout_s\":20}");
    ck_assert_int_eq(exit_of(lines), 0);
    json_decref(lines);
    lines = ask("{\"verb\":\"drain\",\"timeout_s\":20}");
    ck_assert_int_eq(exit_of(lines), 0);
    json_decref(lines);
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=put,action=error:-EIO"), 0);
    fs_fixture_write(&fx, "ckpt/step_1/b", "2", 1);
    lines = ask("{\"verb\":\"wait\",\"paths\":[\"ckpt/latest\"],\"timeout_s\":1}");
    ck_assert_int_eq(exit_of(lines), 3);
    json_decref(lines);
    lines = ask("{\"verb\":\"wait\",\"paths\":[\"ckpt/latest/b\"],\"timeout_s\":1}");
    ck_assert_int_eq(exit_of(lines), 3);
    json_decref(lines);
}
END_TEST

START_TEST(wait_for_a_link_waits_for_the_link_too)
{
    serve(); /* nobody publishes */
    fs_fixture_object(&fx, "d/a", "1", 1);
    link_at("", "l", "d");
    json_t *lines = ask("{\"verb\":\"wait\",\"paths\":[\"l\"],\"timeout_s\":1}");
    ck_assert_int_eq(exit_of(lines), 3);
    json_decref(lines);
}
END_TEST

START_TEST(links_out_of_the_mount_are_refused)
{
    static const char *const verbs[] = {"wait", "warmup", "evict", "pin", "unpin"};
    fs_fixture_object(&fx, "d/a", "1", 1);
    serve();
    g_autofree char *target = in_mount(bad_links[_i]);
    link_at("", "l", target);
    link_at("", "loop", "loop");
    for (unsigned i = 0; i < G_N_ELEMENTS(verbs); i++) {
        g_autofree char *request = g_strdup_printf("{\"verb\":\"%s\",\"paths\":[\"l\"]}", verbs[i]);
        json_t *lines = ask(request);
        const json_t *said = event(lines, "error");
        said = said ? json_object_get(said, "error")
                    : json_object_get(json_array_get(lines, json_array_size(lines) - 1), "message");
        ck_assert_int_eq(exit_of(lines), 1);
        ck_assert_msg(strstr(json_string_value(said), "leads out"), "%s: %s", verbs[i], json_string_value(said));
        json_decref(lines);
    }
    json_t *lines = ask("{\"verb\":\"wait\",\"paths\":[\"loop\"]}");
    ck_assert_int_eq(exit_of(lines), 1);
    json_decref(lines);
}
END_TEST

START_TEST(warmup_pin_and_evict_look_behind_a_link)
{
    fs_fixture_object(&fx, "d/a", "12345", 5);
    serve();
    link_at("", "l", "d");
    json_t *lines = ask("{\"verb\":\"warmup\",\"paths\":[\"l\"]}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_int_eq(number(event(lines, "progress"), "errors"), 0);
    json_decref(lines);
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 5);
    json_decref(ask("{\"verb\":\"evict\",\"paths\":[\"l/a\"]}"));
    ck_assert_uint_eq(fs_fixture_cached(&fx, "d/a"), 0);
    json_decref(ask("{\"verb\":\"pin\",\"paths\":[\"l\"]}"));
    ck_assert(fs_fixture_pinned(&fx, "d/a"));
    json_decref(ask("{\"verb\":\"unpin\",\"paths\":[\"l\"]}"));
    ck_assert(!fs_fixture_pinned(&fx, "d/a"));
}
END_TEST

START_TEST(wait_fails_behind_a_parked_file)
{
    fx.cfg.fault = g_strdup(NO_FAULT_YET);
    serve();
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "first", "1", 1); /* by now the store has been probed */
    json_decref(ask("{\"verb\":\"drain\",\"timeout_s\":20}"));
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=put,nth=1,action=error:-EINVAL"), 0);
    fs_fixture_write(&fx, "ckpt/shard", "1", 1);
    fs_fixture_write(&fx, "ckpt/latest", "1", 1);
    static const char *const requests[] = {"{\"verb\":\"wait\",\"paths\":[\"ckpt/latest\"],\"timeout_s\":20}",
                                           "{\"verb\":\"drain\",\"timeout_s\":20}"};
    for (unsigned i = 0; i < G_N_ELEMENTS(requests); i++) {
        json_t *lines = ask(requests[i]);
        ck_assert_int_eq(exit_of(lines), 1);
        ck_assert_ptr_nonnull(
            strstr(text(json_array_get(lines, json_array_size(lines) - 1), "message"), "needs a decision"));
        json_decref(lines);
    }
    json_decref(ask("{\"verb\":\"publish\",\"action\":\"retry\",\"paths\":[\"ckpt\"]}"));
    json_t *lines = ask("{\"verb\":\"drain\",\"timeout_s\":20}");
    ck_assert_int_eq(exit_of(lines), 0);
    json_decref(lines);
}
END_TEST

START_TEST(wait_fails_for_a_file_that_nobody_will_close)
{
    static const char *const requests[] = {"{\"verb\":\"wait\",\"paths\":[\"d/x\"],\"timeout_s\":20}",
                                           "{\"verb\":\"wait\",\"paths\":[\"d\"],\"timeout_s\":20}",
                                           "{\"verb\":\"drain\",\"timeout_s\":20}"};
    serve();
    fs_fixture_object(&fx, "d/a", "1", 1);
    struct inode *dir = fs_fixture_inode(&fx, "d"), *in = NULL;
    struct node_spec spec = {.parent = dir->ino, .name = "x", .mode = S_IFREG | 0644};
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    stop_serving();
    fs_fixture_close(&fx); /* as a kill */
    serve();
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < G_N_ELEMENTS(requests); i++) {
        json_t *lines = ask(requests[i]);
        ck_assert_int_eq(exit_of(lines), 1);
        ck_assert_ptr_nonnull(strstr(text(json_array_get(lines, json_array_size(lines) - 1), "message"), "'d/x'"));
        json_decref(lines);
    }
}
END_TEST

static void write_to(const char *path, const char *data)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, true), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, data, strlen(data), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

/* Losers that were set aside. */
static unsigned n_losers(void)
{
    json_t *lines = ask("{\"verb\":\"conflicts\"}"), *line;
    unsigned n = 0;
    size_t i;
    json_array_foreach(lines, i, line) n += json_object_get(line, "id") != NULL;
    json_decref(lines);
    return n;
}

/* A local change of the path, which loses against another one. */
static void lose_race(const char *path)
{
    g_autofree char *local = g_build_filename(fx.lake, path, NULL);
    unsigned n_before = n_losers();
    inode_put(fs_fixture_inode(&fx, path));
    ck_assert(g_file_set_contents(local, "theirs", -1, NULL));
    write_to(path, "ours");
    while (n_losers() == n_before)
        g_usleep(5000);
}

START_TEST(retry_goes_on_behind_a_conflict_that_stays)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_object(&fx, "e/b", "1", 1);
    serve();
    fs_fixture_start(&fx);
    lose_race("d/a");
    write_to("d/a", "mine too"); /* and waits for the loser */
    lose_race("e/b");
    json_t *lines = ask("{\"verb\":\"publish\",\"action\":\"retry\",\"paths\":[\"\"]}");
    ck_assert_int_eq(exit_of(lines), 1);
    json_decref(lines);
    lines = ask("{\"verb\":\"wait\",\"paths\":[\"e/b\"],\"timeout_s\":20}");
    ck_assert_int_eq(exit_of(lines), 0);
    json_decref(lines);
    g_autofree char *local = g_build_filename(fx.lake, "e/b", NULL), *data = NULL;
    ck_assert(g_file_get_contents(local, &data, NULL, NULL));
    ck_assert_str_eq(data, "ours");
}
END_TEST

START_TEST(conflicts_and_config_answer)
{
    serve();
    json_t *lines = ask("{\"verb\":\"conflicts\"}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_uint_eq(json_array_size(lines), 1);
    json_decref(lines);
    static const char *const bad[] = {
        "{\"verb\":\"conflicts\",\"action\":\"win\"}",
        "{\"verb\":\"conflicts\",\"action\":\"show\"}",
        "{\"verb\":\"conflicts\",\"action\":\"show\",\"id\":7}",
        "{\"verb\":\"conflicts\",\"action\":\"keep-theirs\",\"paths\":[\"nothing\"]}",
        "{\"verb\":\"conflicts\",\"action\":\"list\",\"paths\":[\"../..\"]}",
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        lines = ask(bad[i]);
        ck_assert_int_eq(exit_of(lines), 1);
        json_decref(lines);
    }
    lines = ask("{\"verb\":\"config\"}");
    ck_assert_ptr_nonnull(strstr(text(event(lines, "config"), "text"), "metadata-ttl"));
    json_decref(lines);
}
END_TEST

#define MANY_CKPTS  25100u /* files, found page by page */
#define SHOWN_CKPTS 10000u

/* A name that a listing showed. Returns its inode's number. */
static uint64_t put_known(struct meta_batch *b, uint64_t parent, const char *name, uint32_t type, int64_t mtime_ns)
{
    const struct meta_inode in = {.ino = meta_next_ino(fx.fs->meta),
                                  .mode = type | 0755,
                                  .nlink = 1,
                                  .size = 1,
                                  .mtime_ns = mtime_ns,
                                  .parent = S_ISDIR(type) ? parent : 0};
    struct meta_dentry d = {
        .parent = parent, .name = (char *)(uintptr_t)name, .ino = in.ino, .type = type, .flags = DENTRY_UPSTREAM};
    meta_inode_put(b, &in);
    meta_dentry_put(b, &d);
    return in.ino;
}

/* Times from 1 ns on, each once, in no order. The newest of all is a directory. */
static void put_checkpoints(unsigned n)
{
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    uint64_t dir = put_known(b, META_ROOT_INO, "many", S_IFDIR, 1);
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *name = g_strdup_printf("%u.pt", i * 7919 % n + 1);
        (void)put_known(b, dir, name, S_IFREG, i * 7919 % n + 1);
    }
    (void)put_known(b, put_known(b, dir, "step_9", S_IFDIR, 1), "weights", S_IFREG, n + 1);
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

START_TEST(of_very_many_checkpoints_the_newest_are_told)
{
    serve();
    put_checkpoints(MANY_CKPTS);
    json_t *lines = ask("{\"verb\":\"checkpoints\",\"paths\":[\"\"]}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_uint_eq(json_array_size(lines), SHOWN_CKPTS + 2);
    ck_assert_str_eq(text(json_array_get(lines, 0), "path"), "many/step_9");
    for (unsigned i = 1; i < SHOWN_CKPTS; i++) {
        g_autofree char *path = g_strdup_printf("many/%u.pt", MANY_CKPTS + 1 - i);
        ck_assert_str_eq(text(json_array_get(lines, i), "path"), path);
    }
    ck_assert(strstr(text(event(lines, "warning"), "message"), "10000"));
    json_decref(lines);
}
END_TEST

START_TEST(of_fewer_checkpoints_none_is_left_out)
{
    serve();
    put_checkpoints(SHOWN_CKPTS - 1);
    json_t *lines = ask("{\"verb\":\"checkpoints\",\"paths\":[\"\"]}");
    ck_assert_int_eq(exit_of(lines), 0);
    ck_assert_uint_eq(json_array_size(lines), SHOWN_CKPTS + 1);
    ck_assert_ptr_null(event(lines, "warning"));
    json_decref(lines);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_verbs");
    TCase *tc = tcase_create("ctl_verbs");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, status_has_every_field);
    tcase_add_test(tc, stop_brings_closed_files_to_the_disk);
    tcase_add_test(tc, status_counts_unpublished_files);
    tcase_add_test(tc, status_answers_while_the_store_does_not);
    tcase_add_test(tc, info_of_a_file_in_the_lake);
    tcase_add_test(tc, info_says_what_a_listing_told_of_the_archive);
    tcase_add_test(tc, info_of_an_unpublished_file);
    tcase_add_test(tc, info_names_the_paths_that_are_not_there);
    tcase_add_test(tc, requests_without_sense_are_refused);
    tcase_add_test(tc, pin_with_latest_pins_the_newest_and_unpin_ends_the_rule);
    tcase_add_test(tc, pin_with_latest_lists_the_directories_that_it_chooses_from);
    tcase_add_test(tc, unpin_takes_the_rule_of_a_plain_name_away);
    tcase_add_test(tc, of_very_many_checkpoints_the_newest_are_told);
    tcase_add_test(tc, of_fewer_checkpoints_none_is_left_out);
    tcase_add_test(tc, pin_of_a_path_fetches_it);
    tcase_add_test(tc, wait_returns_when_the_file_is_published);
    tcase_add_test(tc, wait_and_drain_run_out_of_time_with_work_left);
    tcase_add_loop_test(tc, wait_looks_behind_a_link, 0, G_N_ELEMENTS(good_links));
    tcase_add_test(tc, wait_for_a_link_waits_for_the_link_too);
    tcase_add_loop_test(tc, links_out_of_the_mount_are_refused, 0, G_N_ELEMENTS(bad_links));
    tcase_add_test(tc, warmup_pin_and_evict_look_behind_a_link);
    tcase_add_test(tc, wait_fails_behind_a_parked_file);
    tcase_add_test(tc, wait_fails_for_a_file_that_nobody_will_close);
    tcase_add_test(tc, retry_goes_on_behind_a_conflict_that_stays);
    tcase_add_test(tc, conflicts_and_config_answer);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
