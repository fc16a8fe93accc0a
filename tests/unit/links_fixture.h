/* A mount with bucket links to directories beside its lake, without a kernel. */
#pragma once
#include "fs/links.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fs_fixture fx;

static inline void setup(void)
{
    fs_fixture_init(&fx);
}

static inline void teardown(void)
{
    fs_fixture_fini(&fx);
}

static inline char *other(const char *name, const char *key)
{
    return g_build_filename(fx.dir, name, key, NULL);
}

static inline void object(const char *name, const char *key, const char *text)
{
    g_autofree char *path = other(name, key);
    g_autofree char *dir = g_path_get_dirname(path);
    ck_assert_int_eq(g_mkdir_with_parents(dir, 0700), 0);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
}

static inline bool holds(const char *name, const char *key, const char *text)
{
    g_autofree char *path = other(name, key), *have = NULL;
    return g_file_get_contents(path, &have, NULL, NULL) && g_str_equal(have, text);
}

static char *last_msg;

/* options: "name=value,..." */
static inline json_t *options_of(const char *text)
{
    json_t *o = json_object();
    g_auto(GStrv) list = g_strsplit(text, ";", -1);
    for (unsigned i = 0; list[i]; i++) {
        g_auto(GStrv) pair = g_strsplit(list[i], "=", 2);
        if (*list[i])
            json_object_set_new(o, pair[0], pair[1] ? json_string(pair[1]) : json_null());
    }
    return o;
}

static inline int add(const char *name, const char *dir, const char *options)
{
    g_autofree char *path = other(name, ""), *source = g_strdup_printf("file://%s/%s", fx.dir, name);
    (void)g_mkdir_with_parents(path, 0700); /* may be there */
    json_t *o = options_of(options);
    g_clear_pointer(&last_msg, g_free);
    int r = links_add(fx.fs, source, dir, o, &last_msg);
    json_decref(o);
    return r;
}

static inline int set(const char *dir, const char *options)
{
    json_t *o = options_of(options);
    g_clear_pointer(&last_msg, g_free);
    int r = links_set(fx.fs, dir, o, &last_msg);
    json_decref(o);
    return r;
}

static inline int rm(const char *dir)
{
    g_clear_pointer(&last_msg, g_free);
    return links_remove(fx.fs, dir, NULL, NULL, &last_msg);
}

static inline int lookup(const char *path)
{
    INODE_REF in = NULL;
    return tree_resolve(fx.fs, path, &in);
}

static inline uint64_t ino_of(const char *path)
{
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_resolve(fx.fs, path, &in), 0);
    return in->ino;
}

static inline void publish_all(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
}

static inline int rename_path(const char *from_dir, const char *from, const char *to_dir, const char *to)
{
    return tree_rename(fx.fs, ino_of(from_dir), from, ino_of(to_dir), to, 0);
}

static inline void start(void)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

static inline void restart(void)
{
    fs_fixture_close(&fx);
    start();
}
