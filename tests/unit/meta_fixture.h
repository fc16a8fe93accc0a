/* A database in a folder of its own, opened before and removed after each test; a body that runs in a process killed at its end. */
#pragma once
#include "base/log.h"
#include "meta.h"
#include "meta_db.h"

#include <check.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char *dir;
static struct meta *m;

static inline struct meta *open_as(const char *identity, int want, char **ret_msg)
{
    struct meta *got = NULL;
    bool fresh;
    g_autofree char *msg = NULL;
    int r = meta_open(dir, identity, &got, &fresh, &msg);
    ck_assert_msg(r == want, "meta_open: %s (%s)", err_name(r), msg ? msg : "");
    ck_assert((r == 0) == (msg == NULL));
    if (ret_msg)
        *ret_msg = g_steal_pointer(&msg);
    return got;
}

static inline void reopen(void)
{
    meta_close(m);
    m = open_as("link", 0, NULL);
}

static inline void setup(void)
{
    dir = g_dir_make_tmp("sluice-meta-XXXXXX", NULL);
    ck_assert_ptr_nonnull(dir);
    log_open("/dev/null", LOG_LEVEL_ERR);
    m = open_as("link", 0, NULL);
}

static inline void remove_folder(const char *path)
{
    g_autoptr(GDir) d = g_dir_open(path, 0, NULL);
    const char *name;
    while (d && (name = g_dir_read_name(d))) {
        g_autofree char *child = g_build_filename(path, name, NULL);
        if (g_file_test(child, G_FILE_TEST_IS_DIR))
            remove_folder(child);
        else
            g_unlink(child);
    }
    g_rmdir(path);
}

static inline void teardown(void)
{
    meta_close(m);
    remove_folder(dir);
    g_free(dir);
}

static inline void commit(struct meta_batch *b)
{
    ck_assert_int_eq(meta_commit(b, false), 0);
    meta_batch_free(b);
}

/* Runs body in a child that is killed afterwards; m is closed meanwhile and opened again. */
static inline void crash_after(void (*body)(void))
{
    meta_close(m);
    m = NULL;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        m = open_as("link", 0, NULL);
        body();
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static inline char *meta_file(const char *suffix)
{
    g_autofree char *path = g_build_filename(dir, "meta", NULL);
    g_autoptr(GDir) d = g_dir_open(path, 0, NULL);
    g_autofree char *best = NULL;
    const char *name;
    while ((name = g_dir_read_name(d)))
        if (g_str_has_suffix(name, suffix) && g_strcmp0(name, best) > 0) {
            g_free(best);
            best = g_strdup(name);
        }
    return best ? g_build_filename(path, best, NULL) : NULL;
}

/* ---- open ---- */
