/*
 * A struct fs without FUSE for unit tests: a temporary folder holds a lake (file:// store) and a cache folder. Failures of set-up end the test.
 *
 *   struct fs_fixture fx;
 *   fs_fixture_init(&fx);
 *   fs_fixture_object(&fx, "a/b", "text", 4);
 *   fs_fixture_open(&fx);      ... fx.fs ...
 *   fs_fixture_fini(&fx);
 */
#pragma once
#include "fs/core.h"
#include "fs/fs.h"

struct fs_fixture {
    char *dir, *lake, *cache_dir; /* owned */
    struct config cfg;            /* may be changed between init and open */
    struct session *session;      /* the same; NULL: private memory */
    struct fs *fs;                /* NULL while closed */
};

void fs_fixture_init(struct fs_fixture *fx);
void fs_fixture_open(struct fs_fixture *fx);
/* Without what follows the start: links are as the last daemon left them. links_serve() goes on. */
void fs_fixture_open_unserved(struct fs_fixture *fx);
/* Also lets the publisher run. */
void fs_fixture_start(struct fs_fixture *fx);
void fs_fixture_close(struct fs_fixture *fx);
/* No write reaches the disk any more, so the database fails, and then for good. */
void fs_fixture_break_database(struct fs_fixture *fx);
/* Closes and removes the folder. */
void fs_fixture_fini(struct fs_fixture *fx);

/* Nothing answers any more where the store of the link at dir was: calls fail after the timeout. */
void fs_fixture_silence_link(struct fs_fixture *fx, const char *dir, uint64_t timeout_ns);

/* Puts an object into the lake behind the back of the file system. */
void fs_fixture_object(struct fs_fixture *fx, const char *key, const char *data, size_t len);
bool fs_fixture_object_exists(struct fs_fixture *fx, const char *key);
/* What a WRITE does to a file that is open for writing and was made ready for it by content_begin_change(). */
void fs_fixture_pwrite(struct inode *in, const char *data, size_t len, uint64_t off);
/* Writes a file as an application would: create, write, close. Directories are made. */
void fs_fixture_write(struct fs_fixture *fx, const char *path, const char *data, size_t len);
/* The inode of a path with a reference. */
struct inode *fs_fixture_inode(struct fs_fixture *fx, const char *path);
/* Its number; 0: no such name. */
uint64_t fs_fixture_ino(struct fs_fixture *fx, const char *path);
/* The first name of the inode gets changed attributes, as by chmod. */
void fs_fixture_change_attributes(struct fs_fixture *fx, uint64_t ino);
/* Bytes of the file that are in the cache. */
uint64_t fs_fixture_cached(struct fs_fixture *fx, const char *path);
bool fs_fixture_pinned(struct fs_fixture *fx, const char *path);
