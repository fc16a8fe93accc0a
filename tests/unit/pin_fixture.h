/* Pins over a lake in a folder, without FUSE. */
#pragma once
#include "fs/jobs.h"
#include "fs/pin.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "fs/warm.h"
#include "fs_fixture.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

static struct fs_fixture fx;

static inline void setup(void)
{
    fs_fixture_init(&fx);
}

static inline void teardown(void)
{
    fs_fixture_fini(&fx);
}

/* Lets rules noted so far be looked at and what they fetch arrive. */
static inline void settle(void)
{
    uint64_t deadline = clock_mono_ns() + 30 * NS_PER_S;
    while (workq_load(fx.fs->jobs->pin_q) > 0) {
        ck_assert_uint_lt(clock_mono_ns(), deadline);
        g_usleep(1000);
    }
    g_autoptr(GPtrArray) list = warm_list_jobs(fx.fs);
    for (unsigned i = 0; i < list->len; i++)
        while (!warm_wait(list->pdata[i], clock_mono_ns() + NS_PER_S))
            ck_assert_uint_lt(clock_mono_ns(), deadline);
}

static inline void open_publishing(void)
{
    fs_fixture_open(&fx);
    fs_fixture_start(&fx);
}

/* What was written is in the store: for that only rules let older names go. They are looked at soon afterwards. */
static inline void settle_published(void)
{
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 60 * NS_PER_S, NULL, NULL), 0);
    settle();
}

static inline void write_step(unsigned step)
{
    g_autofree char *path = g_strdup_printf("ckpt/step%u.pt", step);
    fs_fixture_write(&fx, path, path, strlen(path));
    g_usleep(2000); /* a later mtime than the one before */
}

static inline void list_again(const char *path)
{
    INODE_REF dir = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
}

/* Put elsewhere so long ago. */
static inline void put_aged(const char *key, unsigned seconds)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL);
    struct timespec t = {.tv_sec = clock_wall_ns() / (int64_t)NS_PER_S - seconds};
    fs_fixture_object(&fx, key, "data", 4);
    ck_assert_int_eq(utimensat(AT_FDCWD, path, (struct timespec[2]){t, t}, 0), 0);
}
