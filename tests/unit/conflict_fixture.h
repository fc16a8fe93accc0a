/* Lost races over a lake in a folder, without FUSE: changes of ours and of others. */
#pragma once
#include "fs/conflict.h"
#include "fs/content.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fs_fixture fx;

static inline void setup(void)
{
    fs_fixture_init(&fx);
    fx.cfg.fault = g_strdup("op=get,nth=1000000,action=error:-EIO"); /* none yet */
    fx.cfg.metadata_ttl_ns = 3600 * NS_PER_S;
}

static inline void teardown(void)
{
    fs_fixture_fini(&fx);
}

static inline void fault(const char *rules)
{
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
}

static inline void start(void)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

/* New content of a file that is there, by a handle that stays open. */
static inline struct inode *begin_write(const char *path, const char *text)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open(in, true, true), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, text, strlen(text), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    return in;
}

static inline void end_write(struct inode *in)
{
    content_release(in, true);
    inode_put(in);
}

/* What a new open of the path reads; NULL when there is no such name. Owned. */
static inline char *text_at(const char *path)
{
    struct inode *in = NULL;
    if (tree_resolve(fx.fs, path, &in) < 0)
        return NULL;
    char *buf = g_malloc0(64);
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert_int_ge(cache_file_read(cf, buf, 63, 0), 0);
    content_unuse(in, cf);
    inode_put(in);
    return buf;
}

static inline void assert_path(const char *path, const char *want)
{
    g_autofree char *got = text_at(path);
    ck_assert_str_eq(got ? got : "(none)", want);
}

static inline void assert_object(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    ck_assert(g_file_get_contents(path, &data, NULL, NULL));
    ck_assert_str_eq(data, want);
}

static inline void theirs(const char *key, const char *text)
{
    fs_fixture_object(&fx, key, text, strlen(text));
}

static inline void remove_object(const char *key)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    ck_assert_int_eq(remove(path), 0);
}

static inline uint64_t n_conflicts(void)
{
    return conflict_count(fx.fs->meta, "");
}

static inline uint64_t id_at(const char *path)
{
    uint64_t id = 0;
    ck_assert_int_eq(conflict_find(fx.fs->meta, path, &id), 0);
    return id;
}

static inline void all_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
}
