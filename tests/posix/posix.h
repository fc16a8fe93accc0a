/*
 * What the cases of the POSIX suite use: a case runs in its own process with a fresh, empty directory as working directory
 * (mode 0777, umask 022, root). Assertions count themselves, name file and line, expected and got, and let the case go on.
 */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

struct posix_case {
    const char *name;
    void (*run)(void);
};
/* Each theme's table, ended by a row without name; main.c lists the themes. */
#define CASE(name) static void name(void)
#define ROW(name)                                                                                                      \
    {                                                                                                                  \
#name, name                                                                                                    \
    }
#define CASES_END                                                                                                      \
    {                                                                                                                  \
        NULL, NULL                                                                                                     \
    }
extern const struct posix_case cases_open[], cases_io[], cases_size[], cases_mmap[], cases_rename[], cases_link[],
    cases_perm[], cases_xattr[], cases_dir[], cases_process[], cases_name[], cases_misc[], cases_time[];

/* The expression must not be negative; its value comes back. */
#define OK(e) check_ok((long)(e), #e, __FILE__, __LINE__)
/* The expression must be -1 with this errno. */
#define FAILS(err, e) (errno = 0, check_fails((err), (long)(e), #err, #e, __FILE__, __LINE__))
#define EQ(want, e)   check_eq((long long)(want), (long long)(e), #e, __FILE__, __LINE__)
#define TRUE(e)       check_true((e) ? true : false, #e, __FILE__, __LINE__)
/* len bytes at got are those at want. */
#define SAME(want, got, len) check_same((want), (got), (len), #got, __FILE__, __LINE__)
/* Ends the case here, counted as skipped. */
#define SKIP(...) skip_case(__VA_ARGS__)

long check_ok(long r, const char *what, const char *file, int line);
void check_fails(int err, long r, const char *err_name, const char *what, const char *file, int line);
void check_eq(long long want, long long got, const char *what, const char *file, int line);
void check_true(bool ok, const char *what, const char *file, int line);
void check_same(const void *want, const void *got, size_t len, const char *what, const char *file, int line);
_Noreturn void skip_case(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* AS_USER(uid) { ... }: the block runs in a child as that user (and group), the parent waits for it. */
#define AS_USER(uid) for (bool in_child_ = child_begin((uid), true); in_child_; in_child_ = child_end())
#define IN_CHILD     AS_USER(0)
/* The block runs beside the parent until wait_children(). */
#define BESIDE for (bool in_child_ = child_begin(0, false); in_child_; in_child_ = child_end())
bool child_begin(unsigned uid, bool wait);
bool child_end(void); /* ends the child */
void wait_children(void);

/* Any user that is not root. */
#define USER       12345u
#define OTHER_USER 23456u

/* Small helpers, all of them assert that they worked. */
void make_file(const char *path, const void *data, size_t len, mode_t mode);
void make_text(const char *path, const char *text);
bool file_has(const char *path, const char *text);
size_t slurp(const char *path, void *buf, size_t size); /* bytes read */
void fill(void *buf, size_t len, unsigned seed);
struct stat stat_of(const char *path); /* lstat */
struct stat stat_fd(int fd);
bool exists(const char *path); /* lstat finds it */
