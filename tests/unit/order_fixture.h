/* What programs do to files whose order of publishing is looked at, over a lake in a folder, without FUSE; nothing is published before the test starts it. */
#pragma once
#include "fs/content.h"
#include "fs/publish_internal.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdio.h>

static struct fs_fixture fx;

static inline void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fs_fixture_open(&fx);                                            /* nothing is published before the start */
}

static inline void teardown(void)
{
    fs_fixture_fini(&fx);
}

static inline void open_again(void)
{
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
}

static inline void set_order(enum order_mode order)
{
    fs_fixture_close(&fx);
    fx.cfg.order = order;
    fs_fixture_open(&fx);
}

static inline void close_file(const char *path)
{
    fs_fixture_write(&fx, path, "1", 1);
}

static inline struct inode *begin_write(const char *path)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(cache_file_write(in->cf, "2", 1, 0), 1);
    return in;
}

static inline void end_write(struct inode *in)
{
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    inode_put(in);
}

static inline void close_again(const char *path)
{
    end_write(begin_write(path));
}

static inline uint64_t dir_of(const char *path, const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    g_autofree char *dir = slash ? g_strndup(path, (gsize)(slash - path)) : g_strdup("");
    INODE_REF in = fs_fixture_inode(&fx, dir);
    *ret_name = slash ? slash + 1 : path;
    return in->ino;
}

static inline void rename_with(const char *from, const char *to, unsigned flags)
{
    const char *n1, *n2;
    uint64_t p1 = dir_of(from, &n1), p2 = dir_of(to, &n2);
    ck_assert_int_eq(tree_rename(fx.fs, p1, n1, p2, n2, flags), 0);
}

static inline void move(const char *from, const char *to)
{
    rename_with(from, to, 0);
}

static inline void exchange(const char *a, const char *b)
{
    rename_with(a, b, RENAME_EXCHANGE);
}

static inline void drop(const char *path)
{
    const char *name;
    uint64_t dir = dir_of(path, &name);
    INODE_REF in = fs_fixture_inode(&fx, path);
    ck_assert_ptr_nonnull(in); /* referenced while its name goes */
    ck_assert_int_eq(tree_unlink(fx.fs, dir, name), 0);
}

/* The keys in the order in which the publisher does what it has to do now, until nothing of it may be done. */
static inline void assert_order(const char *want)
{
    struct publisher *p = fx.fs->pub;
    uint64_t wake = 0;
    g_autoptr(GString) order = g_string_new(NULL);
    mutex_lock(&p->mu);
    for (struct op *o; (o = queue_pick_locked(p, &wake)); queue_remove_locked(p, o)) {
        g_string_append_printf(order, "%s%s%s", order->len ? " " : "", o->rec.kind == OP_DELETE ? "-" : "", o->key);
        queue_untake_locked(p, o);
    }
    mutex_unlock(&p->mu);
    ck_assert_str_eq(order->str, want);
}

/* Of a delete that is queued, if there is one at that key, else of a name. */
static inline void assert_waits(const char *key, const char *want)
{
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->tombs, key);
    o = o ? o : g_hash_table_lookup(p->by_key, key);
    ck_assert_msg(o != NULL, "%s", key);
    struct op *b = queue_blocker_locked(p, o);
    g_autofree char *got = g_strdup(b ? b->key : "(nothing)");
    mutex_unlock(&p->mu);
    ck_assert_str_eq(got, want);
}

static inline void publish_all(void)
{
    fs_fixture_start(&fx);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}

static inline struct inode *create_open(const char *path)
{
    const char *name;
    struct inode *in = NULL;
    struct node_spec spec = {.mode = S_IFREG | 0644, .who = {fx.fs->uid, fx.fs->gid}};
    spec.parent = dir_of(path, &name);
    spec.name = name;
    ck_assert_int_eq(tree_create(fx.fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    return in;
}

static inline struct inode *flush_new(const char *path)
{
    struct inode *in = create_open(path);
    ck_assert_int_eq(content_flush(in, false), 0);
    return in;
}

static inline bool has_op(const char *key)
{
    mutex_lock(&fx.fs->pub->mu);
    bool has = g_hash_table_contains(fx.fs->pub->by_key, key);
    mutex_unlock(&fx.fs->pub->mu);
    return has;
}

static inline void link_to(const char *path, const char *to)
{
    const char *name;
    struct inode *linked = NULL;
    INODE_REF in = fs_fixture_inode(&fx, path);
    uint64_t dir = dir_of(to, &name);
    ck_assert_int_eq(tree_link(fx.fs, in->ino, dir, name, &linked), 0);
    inode_put(linked);
}
