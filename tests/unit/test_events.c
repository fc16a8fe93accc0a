/* Events over a lake in a folder, without FUSE: what becomes of names, what is asked of the store, what is left to the next listing. */
#include "fs/content.h"
#include "fs/event_apply.h"
#include "fs/event_place.h"
#include "fs/events.h"
#include "fs/links.h"
#include "fs/publish.h"
#include "fs/tree_apply.h"
#include "fs/tree_list.h"
#include "fs_fixture.h"
#include "http_stub.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct fs_fixture fx;
static struct events *ev;
static const struct etag no_tag;

/* Nothing is seen by listings once a directory was listed. */
static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
}

static void start(void)
{
    g_autofree char *path = g_build_filename(fx.dir, "secret", NULL);
    char *msg = NULL;
    fs_fixture_open(&fx);
    ck_assert(g_file_set_contents(path, "0123456789abcdef\n", -1, NULL));
    ck_assert_int_eq(g_chmod(path, 0600), 0);
    ck_assert_msg(events_open(fx.fs, path, &ev, &msg) == 0, "%s", msg);
}

static void teardown(void)
{
    events_close(ev);
    ev = NULL;
    fs_fixture_fini(&fx);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static void remove_at(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

static struct etag etag_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->rec.base_etag;
}

static int look(const char *key, bool created)
{
    return event_look(fx.fs, key, &no_tag, created);
}

static unsigned send_event(const char *bucket, const char *key, bool created)
{
    g_autofree char *text = g_strdup_printf(
        "{\"Records\":[{\"eventSource\":\"ceph:s3\",\"eventName\":\"%s\",\"s3\":{\"bucket\":{\"name\":\"%s\"},"
        "\"object\":{\"key\":\"%s\"}}}]}",
        created ? "ObjectCreated:Put" : "ObjectRemoved:Delete", bucket, key);
    return events_take(ev, text, strlen(text));
}

static void settle(void)
{
    ck_assert(events_settle(ev, 60 * NS_PER_S));
}

static bool is_doubted(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    mutex_lock(&in->mu);
    bool doubted = in->rec.listed_ns == 0;
    mutex_unlock(&in->mu);
    return doubted;
}

START_TEST(new_object_becomes_a_name)
{
    fs_fixture_object(&fx, "d/old", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/old"), 0);
    fs_fixture_object(&fx, "d/new", "12", 2);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/new"), 0);
    ck_assert_uint_eq(send_event("lake", "d/new", true), HTTP_OK);
    settle();
    INODE_REF in = fs_fixture_inode(&fx, "d/new");
    ck_assert_uint_eq(in->rec.size, 2);
    ck_assert_int_eq(look("d/new", true), EVENT_NOTHING);
}
END_TEST

START_TEST(changed_object_gets_a_new_inode_and_the_same_one_keeps_its_own)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    uint64_t ino = fs_fixture_ino(&fx, "d/f");
    struct etag tag = etag_of("d/f");
    fault("op=head,action=error:-EIO");
    ck_assert_int_eq(event_look(fx.fs, "d/f", &tag, true), EVENT_KNOWN);
    fault("op=get,nth=1000000,action=error:-EIO");
    ck_assert_int_eq(look("d/f", true), EVENT_NOTHING);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/f"), ino);
    fs_fixture_object(&fx, "d/f", "22", 2);
    ck_assert_int_eq(event_look(fx.fs, "d/f", &tag, true), EVENT_KNOWN); /* a repeated one of before */
    ck_assert_int_eq(look("d/f", false), EVENT_APPLIED);                 /* whatever it was, the store says what is */
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), ino);
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    ck_assert_uint_eq(in->rec.size, 2);
}
END_TEST

START_TEST(removed_object_goes_and_so_do_directories_it_leaves_empty)
{
    fs_fixture_object(&fx, "a/b/x", "1", 1);
    fs_fixture_object(&fx, "keep", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "a/b/x"), 0);
    ck_assert_int_eq(look("a/b/x", false), EVENT_NOTHING);
    remove_at("a/b/x");
    remove_at("a/b");
    remove_at("a");
    ck_assert_int_eq(look("a/b/x", false), EVENT_APPLIED);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "a/b/x"), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "a"), 0);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "keep"), 0);
}
END_TEST

START_TEST(directories_above_a_deep_new_key_appear)
{
    fs_fixture_object(&fx, "top", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "top"), 0);
    fs_fixture_object(&fx, "m/v2/shard-0", "data", 4);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "m"), 0);
    ck_assert_int_eq(look("m/v2/shard-0", true), EVENT_APPLIED);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "m/v2/shard-0"), 0);
    ck_assert_int_eq(look("never/there", true), EVENT_NOTHING);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "never"), 0);
}
END_TEST

START_TEST(file_that_became_a_directory_is_one)
{
    fs_fixture_object(&fx, "a", "file", 4);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "a"), 0);
    remove_at("a");
    fs_fixture_object(&fx, "a/x", "1", 1);
    ck_assert_int_eq(look("a/x", true), EVENT_APPLIED);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "a/x"), 0);
}
END_TEST

START_TEST(what_is_local_stays)
{
    fs_fixture_object(&fx, "d/f", "theirs", 6);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), 0);
    fs_fixture_write(&fx, "d/mine", "mine", 4);
    fs_fixture_object(&fx, "d/mine", "theirs too", 10);
    uint64_t ino = fs_fixture_ino(&fx, "d/mine");
    ck_assert_int_eq(look("d/mine", true), EVENT_KNOWN);
    remove_at("d/mine");
    ck_assert_int_eq(look("d/mine", false), EVENT_KNOWN);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/mine"), ino);
    INODE_REF in = fs_fixture_inode(&fx, "d/mine");
    ck_assert_uint_eq(in->rec.size, 4);
}
END_TEST

START_TEST(own_publish_costs_no_request)
{
    start();
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "d/f", "mine", 4);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    struct etag tag = etag_of("d/f");
    fault("op=head,action=error:-EIO;op=list,action=error:-EIO");
    ck_assert_int_eq(event_look(fx.fs, "d/f", &tag, true), EVENT_KNOWN);
    uint64_t ino = fs_fixture_ino(&fx, "d/f");
    fault("op=get,nth=1000000,action=error:-EIO");
    int r;
    while ((r = look("d/f", true)) == EVENT_BUSY) /* the publisher is about to let go of it */
        g_usleep(1000);
    ck_assert_int_eq(r, EVENT_NOTHING);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/f"), ino);
}
END_TEST

START_TEST(directory_made_here_is_listed_once_others_put_something_into_it)
{
    start();
    INODE_REF root = fs_fixture_inode(&fx, "");
    struct node_spec spec = {.parent = root->ino, .name = "d", .mode = S_IFDIR | 0755, .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF made = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &made), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/x"), 0);
    fs_fixture_object(&fx, "d/w", "1", 1); /* its event was lost */
    fs_fixture_object(&fx, "d/x", "1", 1);
    ck_assert_int_eq(look("d/x", true), EVENT_APPLIED);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/x"), 0);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/w"), 0);
}
END_TEST

START_TEST(directory_nobody_looked_into_is_not_asked_for)
{
    fs_fixture_object(&fx, "d/e/f", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d"), 0);
    fault("op=head,action=error:-EIO;op=list,action=error:-EIO");
    ck_assert_int_eq(look("d/e/new", true), EVENT_UNSEEN);
    ck_assert_int_eq(look("d/e/new", false), EVENT_NOTHING);
}
END_TEST

START_TEST(link_is_known_by_the_store_s_word)
{
    struct obj_cond any = {.kind = OBJ_COND_NONE};
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), 0);
    ck_assert_int_eq(objstore_put(fx.fs->store, "d/l", "", 0, &(struct obj_meta){.symlink = "target"}, &any, NULL), 0);
    ck_assert_int_eq(look("d/l", true), EVENT_APPLIED);
    INODE_REF in = fs_fixture_inode(&fx, "d/l");
    ck_assert(S_ISLNK(in->rec.mode));
    struct etag bare = in->rec.base_etag;
    bare.s[etag_bare_len(&bare)] = '\0';
    ck_assert_int_eq(objstore_put(fx.fs->store, "d/l", "", 0, &(struct obj_meta){.symlink = "another"}, &any, NULL), 0);
    ck_assert_int_eq(event_look(fx.fs, "d/l", &bare, true), EVENT_APPLIED);
    INODE_REF now = fs_fixture_inode(&fx, "d/l");
    ck_assert_str_eq(now->rec.target, "another");
}
END_TEST

/* A listing that began earlier saw the version of before. */
START_TEST(listing_begun_before_does_not_bring_the_old_version_back)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    uint64_t ino = fs_fixture_ino(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    g_autofree char *name = g_strdup("f");
    struct list_row old = {.name = name, .size = 1, .etag = etag_of("d/f")};
    uint64_t stamp = meta_last_seq(fx.fs->meta);
    fs_fixture_object(&fx, "d/f", "22", 2);
    ck_assert_int_eq(look("d/f", true), EVENT_APPLIED);
    uint64_t changed = fs_fixture_ino(&fx, "d/f");
    ck_assert_uint_ne(changed, ino);
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&fx.fs->ns);
    int r = tree_apply_row(fx.fs, b, dir->ino, &old, stamp);
    r = r == 0 ? meta_commit(b, false) : r;
    publish_apply(fx.fs, r == 0);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
    ck_assert_int_eq(r, 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/f"), changed);
}
END_TEST

START_TEST(events_for_others_and_keys_that_are_no_names_are_counted)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), 0);
    int64_t outside = metric_get(M_events_outside), refused = metric_get(M_events_refused);
    ck_assert_uint_eq(send_event("other", "d/new", true), HTTP_OK);
    ck_assert_int_eq(metric_get(M_events_outside), outside + 1);
    ck_assert_uint_eq(events_take(ev, "{", 1), HTTP_BAD_REQUEST);
    ck_assert_int_eq(metric_get(M_events_refused), refused + 1);
    static const char *const odd[] = {"/x", "a//b", "../etc/passwd", "d/..", ".", "d//", ".sluice-probe/x"};
    for (unsigned i = 0; i < G_N_ELEMENTS(odd); i++)
        ck_assert_msg(look(odd[i], true) == EVENT_NOTHING, "'%s'", odd[i]);
}
END_TEST

START_TEST(more_than_may_wait_leaves_the_directory_to_its_next_listing)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), 0);
    ck_assert(!is_doubted("d"));
    fs_fixture_object(&fx, "d/late", "1", 1);
    events_limit(ev, 0);
    int64_t dropped = metric_get(M_events_dropped);
    ck_assert_uint_eq(send_event("lake", "d/late", true), HTTP_OK);
    settle();
    ck_assert_int_eq(metric_get(M_events_dropped), dropped + 1);
    ck_assert(is_doubted("d"));
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/late"), 0);
}
END_TEST

static gpointer list_again(gpointer dir)
{
    return GINT_TO_POINTER(tree_refresh(fx.fs, dir, true));
}

#define N_LISTED 12

START_TEST(directory_to_be_listed_again_does_not_wait_for_those_that_are_being_listed)
{
    GThread *threads[N_LISTED];
    struct inode *dirs[N_LISTED];
    fs_fixture_object(&fx, "free/f", "1", 1);
    for (unsigned i = 0; i < N_LISTED; i++) {
        g_autofree char *key = g_strdup_printf("d%u/f", i);
        fs_fixture_object(&fx, key, "1", 1);
    }
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "free/f"), 0);
    events_limit(ev, 0);
    fault("op=list,action=delay:3600s");
    for (unsigned i = 0; i < N_LISTED; i++) {
        g_autofree char *name = g_strdup_printf("d%u", i), *key = g_strconcat(name, "/late", NULL);
        dirs[i] = fs_fixture_inode(&fx, name);
        threads[i] = g_thread_new("list", list_again, dirs[i]);
        EVENTUALLY(tree_list_running(fx.fs, dirs[i]->ino));
        ck_assert_uint_eq(send_event("lake", key, true), HTTP_OK);
    }
    g_usleep(NS_PER_S / 2 / 1000); /* each of them was looked at */
    ck_assert_uint_eq(send_event("lake", "free/late", true), HTTP_OK);
    EVENTUALLY(is_doubted("free"));
    fault("op=get,nth=1000000,action=error:-EIO");
    for (unsigned i = 0; i < N_LISTED; i++) {
        ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(threads[i])), 0);
        inode_put(dirs[i]);
    }
    settle();
    ck_assert(is_doubted("d0"));
}
END_TEST

/* What became of those that came. */
static int64_t n_done(void)
{
    return metric_get(M_events_applied) + metric_get(M_events_ignored) + metric_get(M_events_outside) +
           metric_get(M_events_dropped);
}

START_TEST(events_that_came_for_one_name_are_one)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), 0);
    fs_fixture_object(&fx, "d/new", "1", 1);
    fault("op=head,action=delay:300ms");
    int64_t heads = metric_get(M_requests_head), received = metric_get(M_events_received), done = n_done();
    for (unsigned i = 0; i < 100; i++)
        ck_assert_uint_eq(send_event("lake", "d/new", i % 2), HTTP_OK);
    settle();
    ck_assert_int_eq(n_done() - done, metric_get(M_events_received) - received);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/new"), 0);
    ck_assert_int_le(metric_get(M_requests_head) - heads, 20);
}
END_TEST

START_TEST(store_that_does_not_answer_leaves_it_to_the_next_listing)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), 0);
    fs_fixture_object(&fx, "d/new", "1", 1);
    fault("op=head,action=error:-EACCES");
    ck_assert_int_eq(look("d/new", true), -EACCES);
    ck_assert(event_doubt_dir(fx.fs, "d/new"));
    fault("op=get,nth=1000000,action=error:-EIO");
    ck_assert_uint_ne(fs_fixture_ino(&fx, "d/new"), 0);
}
END_TEST

static char *in_bucket(const char *bucket, const char *key)
{
    return g_build_filename(fx.dir, bucket, key, NULL);
}

static void put_in(const char *bucket, const char *key)
{
    g_autofree char *path = in_bucket(bucket, key), *dir = g_path_get_dirname(path);
    ck_assert_int_eq(g_mkdir_with_parents(dir, 0700), 0);
    ck_assert(g_file_set_contents(path, key, -1, NULL));
}

/* A link at dir to a folder beside the lake. */
static void add_link(const char *bucket, const char *dir, const char *include)
{
    g_autofree char *source = g_strdup_printf("file://%s/%s", fx.dir, bucket), *path = in_bucket(bucket, ""),
                    *msg = NULL;
    json_t *o = json_object();
    if (include)
        json_object_set_new(o, "include", json_string(include));
    ck_assert_int_eq(g_mkdir_with_parents(path, 0700), 0);
    ck_assert_msg(links_add(fx.fs, source, dir, o, &msg) == 0, "%s", msg);
    json_decref(o);
}

START_TEST(event_of_a_link_s_bucket_is_applied_below_each_link_to_it)
{
    put_in("other", "d/old");
    start();
    add_link("other", "la", NULL);
    add_link("other", "x/lb", NULL);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/old"), 0);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "x/lb/d/old"), 0);
    put_in("other", "d/new");
    ck_assert_uint_eq(fs_fixture_ino(&fx, "la/d/new"), 0);
    int64_t outside = metric_get(M_events_outside);
    ck_assert_uint_eq(send_event("other", "d/new", true), HTTP_OK);
    settle();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/new"), 0);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "x/lb/d/new"), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d"), 0);
    ck_assert_uint_eq(send_event("third", "d/new", true), HTTP_OK);
    ck_assert_int_eq(metric_get(M_events_outside), outside + 1);
}
END_TEST

START_TEST(directory_of_a_link_stays_when_its_bucket_becomes_empty)
{
    put_in("other", "d/f");
    start();
    add_link("other", "la", NULL);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/f"), 0);
    g_autofree char *file = in_bucket("other", "d/f"), *dir = in_bucket("other", "d");
    ck_assert_int_eq(remove(file) + remove(dir), 0);
    ck_assert_uint_eq(send_event("other", "d/f", false), HTTP_OK);
    settle();
    ck_assert_uint_eq(fs_fixture_ino(&fx, "la/d"), 0);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la"), 0);
}
END_TEST

/* The mount's own answers. */
START_TEST(link_that_does_not_answer_leaves_it_to_the_next_listing_at_once)
{
    put_in("other", "d/old");
    start();
    add_link("other", "la", NULL);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/old"), 0);
    fs_fixture_silence_link(&fx, "la", 2 * NS_PER_S);
    int64_t dropped = metric_get(M_events_dropped);
    ck_assert_uint_eq(send_event("other", "d/new", true), HTTP_OK);
    EVENTUALLY(metric_get(M_events_dropped) > dropped);
    settle();
    ck_assert(is_doubted("la/d"));
}
END_TEST

START_TEST(what_a_link_hides_or_leaves_out_gets_no_name)
{
    put_in("other", "d/old.pt");
    start();
    add_link("other", "la", "*.pt");
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/old.pt"), 0);
    int64_t outside = metric_get(M_events_outside);
    put_in("other", "d/new.pt");
    put_in("other", "d/new.log");
    put_in("other", ".sluice-probe/x.pt");
    ck_assert_uint_eq(send_event("other", "d/new.pt", true), HTTP_OK);
    ck_assert_uint_eq(send_event("other", "d/new.log", true), HTTP_OK);
    ck_assert_uint_eq(send_event("other", ".sluice-probe/x.pt", true), HTTP_OK);
    settle();
    ck_assert_int_eq(metric_get(M_events_outside), outside);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/new.pt"), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "la/d/new.log"), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "la/.sluice-probe"), 0);
    ck_assert_uint_eq(send_event("lake", "la/d/hidden.pt", true), HTTP_OK);
    ck_assert_int_eq(metric_get(M_events_outside), outside + 1);
}
END_TEST

START_TEST(key_that_json_cannot_carry_leaves_its_directory_to_the_next_listing)
{
    fs_fixture_object(&fx, "f", "1", 1);
    put_in("other", "f");
    start();
    add_link("other", "la", NULL);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "f"), 0);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/f"), 0);
    fs_fixture_object(&fx, "\xff", "1", 1);
    put_in("other", "\xff");
    ck_assert_uint_eq(send_event("lake", "\xff", true), HTTP_OK);
    settle();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "\xff"), 0);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "la/\xff"), 0);
    ck_assert_uint_eq(send_event("other", "\xff", true), HTTP_OK);
    settle();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/\xff"), 0);
}
END_TEST

START_TEST(mount_of_links_only_takes_events)
{
    put_in("other", "d/old");
    g_clear_pointer(&fx.cfg.source, g_free);
    start();
    add_link("other", "la", NULL);
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/old"), 0);
    put_in("other", "d/new");
    ck_assert_uint_eq(send_event("other", "d/new", true), HTTP_OK);
    settle();
    ck_assert_uint_ne(fs_fixture_ino(&fx, "la/d/new"), 0);
}
END_TEST

/* What is written to it by then would go with its last name. _i: by a listing or by an event, replaced or removed. */
START_TEST(name_stays_while_its_file_is_open_for_writing)
{
    bool removed = _i & 1, listed = _i & 2;
    fs_fixture_object(&fx, "d/f", "1", 1);
    fs_fixture_object(&fx, "d/other", "1", 1);
    start();
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(content_open(in, true, false), 0);
    if (removed)
        remove_at("d/f");
    else
        fs_fixture_object(&fx, "d/f", "22", 2);
    if (listed)
        ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    else
        ck_assert_int_eq(look("d/f", !removed), EVENT_KNOWN);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/f"), in->ino);
    content_release(in, true);
    EVENTUALLY(fs_fixture_ino(&fx, "d/f") != in->ino);
    ck_assert_int_eq(fs_fixture_ino(&fx, "d/f") == 0, removed);
    ck_assert_uint_eq(in->rec.nlink, 0);
}
END_TEST

/* The kernel opens it by a name of which it does not know yet that another file has it. */
START_TEST(file_that_lost_its_name_is_not_opened_for_writing)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    fs_fixture_object(&fx, "d/f", "22", 2);
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    ck_assert_int_eq(content_open(in, true, false), -ESTALE);
    ck_assert_uint_eq(in->n_open, 0);
    ck_assert_uint_eq(in->n_writers, 0);
    INODE_REF now = fs_fixture_inode(&fx, "d/f");
    ck_assert_int_eq(content_open(now, true, false), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "f"), 0);
    ck_assert_int_eq(content_open(now, true, false), 0); /* again, by its descriptor */
    content_release(now, true);
    content_release(now, true);
}
END_TEST

START_TEST(doubt_ends_with_a_listing_though_the_clock_was_set_back)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    INODE_REF d = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(tree_refresh(fx.fs, d, true), 0);
    ck_assert(tree_is_fresh(fx.fs, d));
    atomic_store(&fx.fs->doubt_ns, clock_wall_ns() + 3600 * (int64_t)NS_PER_S);
    ck_assert(!tree_is_fresh(fx.fs, d));
    ck_assert_int_eq(tree_refresh(fx.fs, d, false), 0);
    ck_assert(tree_is_fresh(fx.fs, d));
}
END_TEST

static void restart_without_secret(void)
{
    char *msg = NULL;
    events_close(ev);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    ck_assert_msg(events_open(fx.fs, NULL, &ev, &msg) == 0, "%s", msg);
}

/* Certificates of clients may be for the metrics. */
START_TEST(start_without_a_secret_doubts_only_after_events)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    restart_without_secret();
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_uint_ne(fs_fixture_ino(&fx, "d/f"), 0);
        INODE_REF d = fs_fixture_inode(&fx, "d");
        ck_assert(tree_is_fresh(fx.fs, d));
        inode_put(g_steal_pointer(&d));
        restart_without_secret();
    }
    INODE_REF d = fs_fixture_inode(&fx, "d");
    ck_assert(tree_is_fresh(fx.fs, d));
    ck_assert_uint_eq(send_event("another", "f", true), HTTP_OK);
    inode_put(g_steal_pointer(&d));
    restart_without_secret();
    d = fs_fixture_inode(&fx, "d");
    ck_assert(!tree_is_fresh(fx.fs, d));
}
END_TEST

START_TEST(same_object_is_not_looked_at_again_after_a_writer)
{
    fs_fixture_object(&fx, "d/f", "1", 1);
    start();
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    ck_assert(!in->passed_over);
    content_release(in, true);
    ck_assert_uint_eq(fs_fixture_ino(&fx, "d/f"), in->ino);
}
END_TEST

/* Of a mount of s3://bucket/p with a link to s3://other/a/b at "la"; "" in paths: nowhere. */
static const struct {
    const char *bucket, *key;
    bool vague;
    const char *paths;
} placed[] = {
    {"bucket", "p/x", false, "x "},   {"bucket", "p/d/x", false, "d/x "},  {"bucket", "p/p/x", false, "p/x "},
    {"bucket", "p/d/", false, "d/ "}, {"bucket", "px", false, ""},         {"bucket", "px/y", false, ""},
    {"bucket", "p", false, ""},       {"bucket", "p/", false, ""}, /* the marker of the root */
    {"bucket", "q/x", false, ""},     {"bucket", "x", false, ""},          {"bucket", "", false, ""},
    {"bucket", "q/p/x", false, ""},   {"bucket", "P/x", false, ""},        {"bucke", "p/x", false, ""},
    {"bucket2", "p/x", false, ""},    {"bucket", "p/la/x", false, ""}, /* hidden by the link */
    {"bucket", "a/b/x", false, ""},   {"other", "p/x", false, ""},         {"other", "a/b/x", false, "la/x "},
    {"other", "a/b/", false, ""},     {"other", "a/bx", false, ""},        {"other", "a/x", false, ""},
    {"bucket", "p/d/", true, "d/ "},  {"bucket", "p/", true, " "},         {"bucket", "", true, " "},
    {"bucket", "px/", true, ""},      {"bucket", "q/", true, ""},          {"other", "a/", true, "la/ "},
    {"other", "a/b/", true, "la/ "},  {"other", "a/b/d/", true, "la/d/ "}, {"other", "a/c/", true, ""},
    {"third", "", true, ""},
};

/* The same with --escape percent. */
static const struct {
    const char *bucket, *key, *path;
} escaped[] = {
    {"bucket", "p//lead", "%2F/lead "}, {"bucket", "p/x//f", "x/%2F/f "},
    {"bucket", "p/x/", "x/ "},          {"bucket", "p/a/../b", "a/%2E%2E/b "},
    {"bucket", "p/%2F", "%252F "},      {"other", "a/b//x", "la/%2F/x "},
    {"bucket", "p/la/x", ""},
};

static void take_place(void *paths, const char *path)
{
    g_string_append_printf(paths, "%s ", path);
}

START_TEST(keys_are_placed_by_the_prefixes_of_sources)
{
    static const char empty[] = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
    struct http_stub *stub = http_stub_new();
    http_stub_always(stub, 200, "", empty, strlen(empty));
    g_free(fx.cfg.source);
    fx.cfg.source = g_strdup("s3://bucket/p");
    fx.cfg.endpoint_url = g_strdup(http_stub_url(stub));
    fx.cfg.no_sign_request = true;
    fx.cfg.op_timeout_ns = NS_PER_S;
    fs_fixture_open(&fx);
    links_add_file(fx.fs, "links", "s3://other/a/b la endpoint-url=http://127.0.0.1:1 no-sign-request\n");
    struct event_places *places = event_places_new(fx.fs);
    for (unsigned i = 0; i < G_N_ELEMENTS(placed); i++) {
        g_autoptr(GString) paths = g_string_new(NULL);
        bool any = event_places_each(places, placed[i].bucket, placed[i].key, placed[i].vague, take_place, paths);
        ck_assert_msg(g_str_equal(paths->str, placed[i].paths), "%s %s: '%s'", placed[i].bucket, placed[i].key,
                      paths->str);
        ck_assert_int_eq(any, *placed[i].paths != '\0');
    }
    fx.cfg.escape = ESCAPE_PERCENT;
    for (unsigned i = 0; i < G_N_ELEMENTS(escaped); i++) {
        g_autoptr(GString) paths = g_string_new(NULL);
        (void)event_places_each(places, escaped[i].bucket, escaped[i].key, false, take_place, paths);
        ck_assert_str_eq(paths->str, escaped[i].path);
    }
    event_places_free(places);
    fs_fixture_close(&fx);
    http_stub_free(stub);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("events");
    TCase *tc = tcase_create("events");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, new_object_becomes_a_name);
    tcase_add_test(tc, changed_object_gets_a_new_inode_and_the_same_one_keeps_its_own);
    tcase_add_test(tc, removed_object_goes_and_so_do_directories_it_leaves_empty);
    tcase_add_test(tc, directories_above_a_deep_new_key_appear);
    tcase_add_test(tc, file_that_became_a_directory_is_one);
    tcase_add_test(tc, what_is_local_stays);
    tcase_add_test(tc, own_publish_costs_no_request);
    tcase_add_test(tc, directory_made_here_is_listed_once_others_put_something_into_it);
    tcase_add_test(tc, directory_nobody_looked_into_is_not_asked_for);
    tcase_add_test(tc, link_is_known_by_the_store_s_word);
    tcase_add_test(tc, listing_begun_before_does_not_bring_the_old_version_back);
    tcase_add_test(tc, events_for_others_and_keys_that_are_no_names_are_counted);
    tcase_add_test(tc, more_than_may_wait_leaves_the_directory_to_its_next_listing);
    tcase_add_test(tc, directory_to_be_listed_again_does_not_wait_for_those_that_are_being_listed);
    tcase_add_test(tc, events_that_came_for_one_name_are_one);
    tcase_add_test(tc, store_that_does_not_answer_leaves_it_to_the_next_listing);
    tcase_add_test(tc, event_of_a_link_s_bucket_is_applied_below_each_link_to_it);
    tcase_add_test(tc, directory_of_a_link_stays_when_its_bucket_becomes_empty);
    tcase_add_test(tc, link_that_does_not_answer_leaves_it_to_the_next_listing_at_once);
    tcase_add_test(tc, what_a_link_hides_or_leaves_out_gets_no_name);
    tcase_add_test(tc, key_that_json_cannot_carry_leaves_its_directory_to_the_next_listing);
    tcase_add_test(tc, mount_of_links_only_takes_events);
    tcase_add_loop_test(tc, name_stays_while_its_file_is_open_for_writing, 0, 4);
    tcase_add_test(tc, file_that_lost_its_name_is_not_opened_for_writing);
    tcase_add_test(tc, doubt_ends_with_a_listing_though_the_clock_was_set_back);
    tcase_add_test(tc, start_without_a_secret_doubts_only_after_events);
    tcase_add_test(tc, same_object_is_not_looked_at_again_after_a_writer);
    tcase_add_test(tc, keys_are_placed_by_the_prefixes_of_sources);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
