/*
 * The paths of a warm-up, any number of them: a file DIR/jobs/NAME in the cache folder, each path with a NUL behind it. Not thread-safe while it is written; read by any
 * number of threads, each with a cursor of its own.
 *
 * A new list is removed with its last use; warm_list_keep() gives it the name of its job, which lasts until warm_list_remove().
 */
#pragma once
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct warm_list;
struct warm_cursor;

int warm_list_new(const char *cache_dir, struct warm_list **ret) MUST_CHECK;
/* The kept list of a job, which had so many bytes (0: not known). -ENOENT: there is none; -EBADMSG: a power loss took some of it. */
int warm_list_load(const char *cache_dir, uint64_t id, uint64_t bytes, struct warm_list **ret) MUST_CHECK;
int warm_list_add(struct warm_list *l, const char *path) MUST_CHECK;
/* All was added: it may be read from now on. -ENOSPC and the like. */
int warm_list_close(struct warm_list *l) MUST_CHECK;
uint64_t warm_list_count(const struct warm_list *l); /* of what was added; 0 of a loaded one */
uint64_t warm_list_bytes(const struct warm_list *l);
/* After warm_list_close(). It is on the disk then. */
int warm_list_keep(struct warm_list *l, uint64_t id) MUST_CHECK;
void warm_list_free(struct warm_list *l); /* NULL allowed */
/* The kept list of a job, if there is one. */
void warm_list_remove(const char *cache_dir, uint64_t id);
/* What workers that were killed left: lists that were not kept, and of jobs above last_id, which were not recorded. Before any is made. */
void warm_list_tidy(const char *cache_dir, uint64_t last_id);

int warm_cursor_open(const struct warm_list *l, struct warm_cursor **ret) MUST_CHECK;
/* 1 and the next path, which is the cursor's until the next call; 0 at the end; -errno. */
int warm_cursor_next(struct warm_cursor *c, const char **ret) MUST_CHECK;
void warm_cursor_free(struct warm_cursor *c); /* NULL allowed */
