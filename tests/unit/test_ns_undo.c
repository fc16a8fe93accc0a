/* A database that refuses a batch leaves the records in memory as they were. */
#include "fs/content.h"
#include "fs/ns_undo.h"
#include "fs/pin.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "objstore_driver.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fs_fixture fx;

static const char *const paths[] = {"",  "d",   "d/f", "d/g",    "d/two",   "d/empty", "d/empty/sub",
                                    "e", "e/x", "new", "new/in", "new/in/f"};

static void setup(void)
{
    fs_fixture_init(&fx);
    (void)log_open("/dev/null", LOG_LEVEL_ERR);
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
    fs_fixture_object(&fx, "d/g", "data", 4);
    fs_fixture_object(&fx, "e/x", "data", 4);
    fs_fixture_open(&fx);
    fs_fixture_write(&fx, "d/f", "text", 4);
    fs_fixture_write(&fx, "d/empty/sub/gone", "text", 4);
    INODE_REF d = fs_fixture_inode(&fx, "d");
    INODE_REF sub = fs_fixture_inode(&fx, "d/empty/sub");
    INODE_REF f = fs_fixture_inode(&fx, "d/f");
    INODE_REF two = NULL;
    ck_assert_int_eq(tree_unlink(fx.fs, sub->ino, "gone"), 0);
    ck_assert_int_eq(tree_link(fx.fs, f->ino, d->ino, "two", &two), 0);
    fs_fixture_write(&fx, "new/in/f", "text", 4);
}

static void teardown(void)
{
    fs_fixture_fini(&fx);
    log_close();
}

/* What a record says, as text. */
static char *text_of(struct inode *in)
{
    const struct meta_inode *r = &in->rec;
    mutex_lock(&in->mu);
    char *text =
        g_strdup_printf("mode=%o nlink=%u flags=%x parent=%lu name=%s size=%lu mtime=%ld ctime=%ld listed=%ld "
                        "content=%u gen=%lu vid=%lu base=%s@%s",
                        r->mode, r->nlink, r->flags, (unsigned long)r->parent, in->name ? in->name : "",
                        (unsigned long)r->size, (long)r->mtime_ns, (long)r->ctime_ns, (long)r->listed_ns, r->content,
                        (unsigned long)r->gen, (unsigned long)r->vid, r->base_key ? r->base_key : "", r->base_etag.s);
    mutex_unlock(&in->mu);
    return text;
}

/* ---- changes ---- */

static uint64_t ino_of(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    return in->ino;
}

static int create(void)
{
    struct node_spec spec = {.parent = ino_of("d"), .name = "h", .mode = S_IFREG | 0644};
    INODE_REF in = NULL;
    return tree_create(fx.fs, &spec, true, &in);
}

static int make_dir(void)
{
    struct node_spec spec = {.parent = ino_of("d"), .name = "h", .mode = S_IFDIR | 0755};
    INODE_REF in = NULL;
    return tree_create(fx.fs, &spec, false, &in);
}

static int link_name(void)
{
    INODE_REF in = NULL;
    return tree_link(fx.fs, ino_of("d/f"), ino_of("e"), "h", &in);
}

static int unlink_name(void)
{
    return tree_unlink(fx.fs, ino_of("d"), "f");
}

static int unlink_last(void)
{
    return tree_unlink(fx.fs, ino_of("e"), "x");
}

static int remove_dir(void)
{
    return tree_rmdir(fx.fs, ino_of("d/empty"), "sub");
}

static int move(void)
{
    return tree_rename(fx.fs, ino_of("d"), "f", ino_of("e"), "h", 0);
}

static int move_over(void)
{
    return tree_rename(fx.fs, ino_of("d"), "f", ino_of("e"), "x", 0);
}

static int move_dir(void)
{
    return tree_rename(fx.fs, ino_of("d"), "empty", ino_of("e"), "h", 0);
}

static int exchange(void)
{
    return tree_rename(fx.fs, ino_of("d/empty"), "sub", ino_of(""), "e", RENAME_EXCHANGE);
}

static int list(void)
{
    INODE_REF d = fs_fixture_inode(&fx, "d");
    fs_fixture_object(&fx, "d/more", "data", 4);
    g_autofree char *g = g_build_filename(fx.lake, "d/g", NULL);
    ck_assert_int_eq(g_remove(g), 0);
    return tree_refresh(fx.fs, d, true);
}

static int pin(void)
{
    return pin_tree(fx.fs, ino_of("d"), PIN_DISK);
}

static const struct {
    const char *name;
    int (*fn)(void);
} changes[] = {
    {"create", create},     {"mkdir", make_dir},    {"link", link_name}, {"unlink", unlink_name},
    {"last", unlink_last},  {"rmdir", remove_dir},  {"rename", move},    {"replace", move_over},
    {"move dir", move_dir}, {"exchange", exchange}, {"list", list},      {"pin", pin},
};

START_TEST(refused_change_is_not_in_memory)
{
    struct inode *ins[G_N_ELEMENTS(paths)];
    char *before[G_N_ELEMENTS(paths)];
    for (size_t i = 0; i < G_N_ELEMENTS(paths); i++)
        ins[i] = fs_fixture_inode(&fx, paths[i]);
    for (size_t i = 0; i < G_N_ELEMENTS(paths); i++) /* looking them up listed directories */
        before[i] = text_of(ins[i]);
    fs_fixture_break_database(&fx);
    int r = changes[_i].fn();
    ck_assert_msg(r < 0, "%s was not refused", changes[_i].name);
    for (size_t i = 0; i < G_N_ELEMENTS(paths); i++) {
        g_autofree char *after = text_of(ins[i]);
        ck_assert_msg(strcmp(before[i], after) == 0, "%s left a trace in '%s':\n%s\n%s", changes[_i].name, paths[i],
                      before[i], after);
        g_free(before[i]);
        inode_put(ins[i]);
    }
}
END_TEST

/* A writer takes inode.mu only: it does not wait for the batch. */
START_TEST(what_is_written_meanwhile_stays)
{
    INODE_REF in = fs_fixture_inode(&fx, "d/f");
    mutex_lock(&fx.fs->ns);
    mutex_lock(&in->mu);
    ns_undo_note_locked(in);
    uint32_t links = in->rec.nlink++;
    mutex_unlock(&in->mu);
    mutex_lock(&in->mu);
    in->rec.size = 1000000;
    in->n_changes++;
    mutex_unlock(&in->mu);
    ns_undo_end(fx.fs, false);
    mutex_unlock(&fx.fs->ns);
    ck_assert_uint_eq(in->rec.nlink, links);
    ck_assert_uint_eq(in->rec.size, 1000000);
}
END_TEST

/* ---- what a publish achieved ---- */

static const struct objstore_driver *inner;
static struct objstore_driver breaking;
static bool broken; /* atomic */
static struct inode *published;
static char *before_record; /* of that */

static int put_and_break(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
                         const struct obj_cond *cond, struct etag *ret_etag)
{
    int r = inner->put(st, key, buf, len, meta, cond, ret_etag);
    if (strcmp(key, "new/in/f") == 0 && !__atomic_load_n(&broken, __ATOMIC_SEQ_CST)) {
        before_record = text_of(published);
        fs_fixture_break_database(&fx);
        __atomic_store_n(&broken, true, __ATOMIC_SEQ_CST);
    }
    return r;
}

START_TEST(publish_that_cannot_be_recorded_leaves_memory_as_it_was)
{
    INODE_REF new = fs_fixture_inode(&fx, "new");
    INODE_REF in = fs_fixture_inode(&fx, "new/in");
    INODE_REF f = fs_fixture_inode(&fx, "new/in/f");
    inner = fx.fs->store->drv;
    breaking = *inner;
    breaking.put = put_and_break;
    fx.fs->store->drv = &breaking;
    published = f;
    fs_fixture_start(&fx);
    for (unsigned i = 0; i < 1000 && !__atomic_load_n(&broken, __ATOMIC_SEQ_CST); i++)
        g_usleep(10000);
    ck_assert(__atomic_load_n(&broken, __ATOMIC_SEQ_CST));
    g_usleep(300000); /* for what comes after the PUT; whatever is not recorded by then is as it was, too */
    g_autofree char *f_after = text_of(f);
    ck_assert_str_eq(before_record, f_after);
    g_free(before_record);
    ck_assert(new->rec.flags &INODE_DIR_LOCAL);
    ck_assert(in->rec.flags & INODE_DIR_LOCAL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ns_undo");
    TCase *t = tcase_create("refused");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, refused_change_is_not_in_memory, 0, G_N_ELEMENTS(changes));
    tcase_add_test(t, publish_that_cannot_be_recorded_leaves_memory_as_it_was);
    tcase_add_test(t, what_is_written_meanwhile_stays);
    suite_add_tcase(s, t);
    return run_suite(s);
}
