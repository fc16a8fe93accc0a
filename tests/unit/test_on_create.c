/* --on-create, without FUSE: what is fetched by itself of what events and listings say. */
#include "fs/event_apply.h"
#include "fs/jobs.h"
#include "fs/pin.h"
#include "fs/publish.h"
#include "fs/tree_list.h"
#include "fs/warm.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>

#define N_SHARDS 200

static struct fs_fixture fx;
static const struct etag no_tag;

/* Nothing is seen by listings once a directory was listed. */
static void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
}

static void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
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

static gpointer list_again(gpointer dir)
{
    return GINT_TO_POINTER(tree_refresh(fx.fs, dir, true));
}

static void start(const char *globs)
{
    fx.cfg.on_create = g_strdup(globs);
    fs_fixture_open(&fx);
}

static bool is_cached(const char *path)
{
    return fs_fixture_cached(&fx, path) > 0;
}

static bool is_absent(const char *path)
{
    struct meta_inode rec;
    ck_assert_int_eq(meta_inode_get(fx.fs->meta, fs_fixture_ino(&fx, path), &rec), 0);
    bool absent = pin_is_absent(fx.fs, &rec);
    meta_inode_clear(&rec);
    return absent;
}

static guint n_fetches(void)
{
    g_autoptr(GPtrArray) jobs = warm_list_jobs(fx.fs);
    return jobs->len;
}

START_TEST(what_is_made_where_nobody_has_looked_is_warmed)
{
    fs_fixture_object(&fx, "models/llama/new", "1", 1);
    fs_fixture_object(&fx, "models/llama/told", "1", 1);
    fs_fixture_object(&fx, "models/gone/old", "1", 1);
    fs_fixture_object(&fx, "models/marked/old", "1", 1);
    fs_fixture_object(&fx, "other/new", "1", 1);
    start("models/**=warm");
    ck_assert_int_eq(look("models/gone/old", false), EVENT_NOTHING);
    ck_assert_int_eq(look("models/marked/", true), EVENT_UNSEEN);
    ck_assert_int_eq(look("models/llama//told", true), EVENT_UNSEEN); /* no path */
    ck_assert_int_eq(look("other/new", true), EVENT_UNSEEN);
    ck_assert_int_eq(look("models/llama/new", true), EVENT_UNSEEN); /* from now on somebody looks */
    EVENTUALLY(is_cached("models/llama/new"));
    ck_assert(!is_cached("models/llama/told"));
    ck_assert(!is_cached("models/gone/old"));
    ck_assert(!is_cached("models/marked/old"));
    ck_assert(!is_cached("other/new"));
}
END_TEST

START_TEST(what_is_made_while_its_directory_is_first_listed_is_warmed)
{
    fs_fixture_object(&fx, "models/old", "1", 1);
    start("models/**=warm");
    INODE_REF dir = fs_fixture_inode(&fx, "models");
    fault("op=list,action=delay:3600s");
    GThread *lister = g_thread_new("list", list_again, dir);
    EVENTUALLY(tree_list_running(fx.fs, dir->ino));
    fs_fixture_object(&fx, "models/new", "1", 1);
    ck_assert_int_eq(look("models/new", true), EVENT_APPLIED);
    fault("op=get,nth=1000000,action=error:-EIO");
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(lister)), 0);
    EVENTUALLY(is_cached("models/new"));
    ck_assert(!is_cached("models/old"));
}
END_TEST

/* As several files come at once: the fetch of one lists the others before their events are looked at. */
START_TEST(what_a_first_listing_showed_before_its_event_is_warmed)
{
    fs_fixture_object(&fx, "models/a", "1", 1);
    fs_fixture_object(&fx, "models/b", "1", 1);
    fs_fixture_object(&fx, "models/old", "1", 1);
    start("models/**=warm");
    struct etag tag = etag_of("models/a");
    ck_assert(!is_cached("models/a"));
    ck_assert_int_eq(event_look(fx.fs, "models/a", &tag, true), EVENT_KNOWN);
    ck_assert_int_eq(look("models/b", true), EVENT_NOTHING);
    ck_assert_int_eq(look("models/old", false), EVENT_NOTHING);
    EVENTUALLY(is_cached("models/a") && is_cached("models/b"));
    ck_assert(!is_cached("models/old"));
    EVENTUALLY(!is_absent("models/a"));
    EVENTUALLY(workq_load(fx.fs->jobs->pin_q) == 0);
    guint n = n_fetches();
    ck_assert_int_eq(event_look(fx.fs, "models/a", &tag, true), EVENT_KNOWN); /* the same event again */
    EVENTUALLY(workq_load(fx.fs->jobs->pin_q) == 0);
    ck_assert_uint_eq(n_fetches(), n);
}
END_TEST

static gpointer tell_deep(gpointer unused)
{
    return GINT_TO_POINTER(look("models/llama/new", true));
}

START_TEST(what_a_first_listing_shows_while_the_store_is_asked_is_warmed)
{
    fs_fixture_object(&fx, "models/llama/new", "1", 1);
    fs_fixture_object(&fx, "models/llama/old", "1", 1);
    start("models/**=warm");
    INODE_REF dir = fs_fixture_inode(&fx, "models");
    fault("op=list,action=delay:500ms;op=head,action=delay:1500ms");
    GThread *lister = g_thread_new("list", list_again, dir);
    EVENTUALLY(tree_list_running(fx.fs, dir->ino));
    GThread *teller = g_thread_new("tell", tell_deep, NULL);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(lister)), 0);
    ck_assert_int_eq(GPOINTER_TO_INT(g_thread_join(teller)), EVENT_NOTHING);
    fault("op=get,nth=1000000,action=error:-EIO");
    EVENTUALLY(is_cached("models/llama/new"));
    ck_assert(!is_cached("models/llama/old"));
}
END_TEST

START_TEST(own_file_that_was_evicted_is_not_fetched_by_its_event)
{
    start("models/**=warm");
    fs_fixture_start(&fx);
    fs_fixture_write(&fx, "models/f", "mine", 4);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    struct warm *w = NULL;
    ck_assert_int_eq(
        warm_start(fx.fs, &(struct warm_req){.paths = (const char *const[]){"models", NULL}, .mode = WARM_EVICT}, &w),
        0);
    ck_assert(warm_wait(w, clock_mono_ns() + 60 * NS_PER_S));
    warm_unref(w);
    ck_assert(!is_cached("models/f"));
    guint n = n_fetches();
    struct etag tag = etag_of("models/f");
    ck_assert_int_eq(event_look(fx.fs, "models/f", &tag, true), EVENT_KNOWN);
    EVENTUALLY(workq_load(fx.fs->jobs->pin_q) == 0);
    ck_assert_uint_eq(n_fetches(), n);
}
END_TEST

START_TEST(what_others_make_in_a_directory_made_here_is_warmed)
{
    start("models/**=warm");
    INODE_REF root = fs_fixture_inode(&fx, "");
    struct node_spec spec = {
        .parent = root->ino, .name = "models", .mode = S_IFDIR | 0755, .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF made = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &made), 0);
    fs_fixture_object(&fx, "models/new", "1", 1);
    ck_assert_int_eq(look("models/new", true), EVENT_APPLIED);
    EVENTUALLY(is_cached("models/new"));
}
END_TEST

/* The directory that appears with it is not what the rule means. */
START_TEST(file_that_a_rule_means_is_warmed_with_its_new_directory)
{
    fs_fixture_object(&fx, "top", "1", 1);
    start("*.idx=warm");
    ck_assert_uint_ne(fs_fixture_ino(&fx, "top"), 0);
    fs_fixture_object(&fx, "new/a.idx", "1", 1);
    fs_fixture_object(&fx, "new/a.bin", "1", 1);
    ck_assert_int_eq(look("new/a.idx", true), EVENT_APPLIED);
    EVENTUALLY(is_cached("new/a.idx"));
    ck_assert(!is_cached("new/a.bin"));
}
END_TEST

START_TEST(what_is_new_is_fetched_once_however_many_events_tell_of_it)
{
    fs_fixture_object(&fx, "models/old", "1", 1);
    start("models/**=warm");
    ck_assert_uint_ne(fs_fixture_ino(&fx, "models/old"), 0);
    fs_fixture_object(&fx, "models/new", "1", 1);
    ck_assert_int_eq(look("models/new", true), EVENT_APPLIED);
    EVENTUALLY(is_cached("models/new"));
    for (unsigned i = 0; i < 10; i++)
        ck_assert_int_eq(look("models/new", true), EVENT_NOTHING);
    EVENTUALLY(workq_load(fx.fs->jobs->pin_q) == 0);
    ck_assert_uint_eq(n_fetches(), 1);
}
END_TEST

static void list_now(const char *path)
{
    INODE_REF dir = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
}

static bool is_listed(const char *path)
{
    INODE_REF dir = fs_fixture_inode(&fx, path);
    return tree_is_listed(dir);
}

/* _i: by a listing, or by the event of one of its files. */
START_TEST(new_directory_is_looked_through_for_what_the_rule_means)
{
    fs_fixture_object(&fx, "models/old/c.st", "1", 1);
    start("models/**/*.st=warm");
    ck_assert_uint_ne(fs_fixture_ino(&fx, "models/old/c.st"), 0);
    fs_fixture_object(&fx, "models/new/a.st", "1", 1);
    fs_fixture_object(&fx, "models/new/a.bin", "1", 1);
    fs_fixture_object(&fx, "models/new/deep/er/b.st", "1", 1);
    int64_t had = metric_get(M_downloaded_bytes);
    if (_i)
        ck_assert_int_eq(look("models/new/a.bin", true), EVENT_APPLIED);
    else
        list_now("models");
    EVENTUALLY(metric_get(M_downloaded_bytes) >= had + 2); /* and nobody looks */
    EVENTUALLY(is_cached("models/new/a.st") && is_cached("models/new/deep/er/b.st"));
    ck_assert(!is_cached("models/new/a.bin"));
    ck_assert(!is_cached("models/old/c.st"));
}
END_TEST

START_TEST(new_directory_is_listed_only_as_far_as_a_rule_reaches)
{
    fs_fixture_object(&fx, "models/old", "1", 1);
    start("models/*/w/*.st=warm\n*.idx=warm");
    ck_assert_uint_ne(fs_fixture_ino(&fx, "models/old"), 0);
    fs_fixture_object(&fx, "models/new/w/a.st", "1", 1);
    fs_fixture_object(&fx, "models/new/w/far/a.st", "1", 1);
    fs_fixture_object(&fx, "models/new/huge/a.st", "1", 1);
    fs_fixture_object(&fx, "other/a.idx", "1", 1);
    list_now("models");
    list_now("");
    EVENTUALLY(is_cached("models/new/w/a.st"));
    ck_assert(!is_listed("models/new/huge"));
    ck_assert(!is_listed("models/new/w/far"));
    ck_assert(!is_listed("other"));
}
END_TEST

static bool has_failed(void)
{
    struct warm_progress p;
    g_autoptr(GPtrArray) jobs = warm_list_jobs(fx.fs);
    return jobs->len > 0 && warm_progress_get(jobs->pdata[0], &p) == WARM_FAILED;
}

START_TEST(new_directory_is_looked_through_again_after_the_store_failed)
{
    fs_fixture_object(&fx, "models/old", "1", 1);
    start("models/**/*.st=warm");
    ck_assert_uint_ne(fs_fixture_ino(&fx, "models/old"), 0);
    fs_fixture_object(&fx, "models/new/a.st", "1", 1);
    fault("op=get,action=error:-EACCES");
    list_now("models");
    EVENTUALLY(has_failed());
    fault("op=get,nth=1000000,action=error:-EIO");
    EVENTUALLY(is_cached("models/new/a.st"));
}
END_TEST

/* Each of what comes at once is fetched, in whatever order its event, its listing and the fetches of the others are. */
START_TEST(all_of_a_model_that_is_told_of_at_once_is_warmed)
{
    for (unsigned i = 0; i < N_SHARDS; i++) {
        g_autofree char *key = g_strdup_printf("models/llama/%u", i);
        fs_fixture_object(&fx, key, "1", 1);
    }
    start("models/**=warm");
    for (unsigned i = 0; i < N_SHARDS; i++) {
        g_autofree char *key = g_strdup_printf("models/llama/%u", i);
        ck_assert_int_ge(look(key, true), 0);
        g_usleep(2000); /* the directories are listed meanwhile */
    }
    for (unsigned i = 0; i < N_SHARDS; i++) {
        g_autofree char *key = g_strdup_printf("models/llama/%u", i);
        EVENTUALLY(is_cached(key));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("on_create");
    TCase *tc = tcase_create("on_create");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, what_is_made_where_nobody_has_looked_is_warmed);
    tcase_add_test(tc, what_is_made_while_its_directory_is_first_listed_is_warmed);
    tcase_add_test(tc, what_a_first_listing_showed_before_its_event_is_warmed);
    tcase_add_test(tc, what_a_first_listing_shows_while_the_store_is_asked_is_warmed);
    tcase_add_test(tc, own_file_that_was_evicted_is_not_fetched_by_its_event);
    tcase_add_test(tc, what_others_make_in_a_directory_made_here_is_warmed);
    tcase_add_test(tc, file_that_a_rule_means_is_warmed_with_its_new_directory);
    tcase_add_test(tc, what_is_new_is_fetched_once_however_many_events_tell_of_it);
    tcase_add_loop_test(tc, new_directory_is_looked_through_for_what_the_rule_means, 0, 2);
    tcase_add_test(tc, new_directory_is_listed_only_as_far_as_a_rule_reaches);
    tcase_add_test(tc, new_directory_is_looked_through_again_after_the_store_failed);
    tcase_add_test(tc, all_of_a_model_that_is_told_of_at_once_is_warmed);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
