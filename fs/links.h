/*
 * Bucket links: other buckets at directories of the mount, added and removed while it serves.
 *
 * A link is a record `link/DIR` of the database, a name of the tree with DENTRY_LINK, and a route in the store (objstore_links.h). Keys stay what they are, the
 * path in the mount. Links never lie in one another. Inode, name and journal never lead from one link to another: rename and link give EXDEV.
 *
 * A link whose store cannot be opened, or does not answer, is degraded: its known names are there, what is cached is read, what was changed waits; other links do
 * not notice. The first is tried again behind, by the thread `links`. One whose record cannot be read has no store either, and is read-only, until links_set() or links_remove().
 *
 * Locks: `mu` (LINKS) guards the set and is asked for under any lock of fs/. One at a time adds, changes or removes, without a lock while it waits for stores.
 */
#pragma once
#include "fs.h"
#include "link_options.h"

struct links;

#define LINKS_ONLY "links" /* source and identity of a mount that has no bucket but those of its links */

/* ---- policies ---- */

/* What holds for one key: of the link that it is in, else of the mount. */
struct link_policy {
    bool in_link;
    bool read_only, immutable;
    enum conflict_mode conflict;
    uint64_t metadata_ttl_ns;
};
/* key or path, "" = root. The directory of a link is in it. Any thread, under any lock of fs/ but the cache's. */
void links_policy(struct fs *fs, const char *key, struct link_policy *ret);
/* The same by inode, of directories and files; from the parents in memory, or the database. Not under mu of an inode. */
void links_policy_of(struct fs *fs, struct inode *in, struct link_policy *ret);
/* 0, or -EROFS where nothing may be changed in or below this inode. */
int links_may_change(struct fs *fs, uint64_t ino) MUST_CHECK;
/* Is this path one that a link of its key does not show? -EACCES then: it could not be seen after it was made. -EBUSY while that link is being removed. */
int links_may_name(struct fs *fs, const char *path, bool is_dir) MUST_CHECK;
bool links_shows(struct fs *fs, const char *path, bool is_dir);

/* Inode of the directory of the link that ino is in, META_ROOT_INO: in none. */
uint64_t links_point_of(struct fs *fs, uint64_t ino);
bool links_is_point(struct fs *fs, uint64_t ino);
/* Length of the directory of the link that key is in, with its '/'; 0: in none. */
size_t links_prefix_len(struct fs *fs, const char *key);
/* What tells the store of key from all others (objstore_identity()), NULL: it has none, or never had. Owned by the caller. */
char *links_identity(struct fs *fs, const char *key);
/* -EBUSY: at or below path is the directory of a link, which cannot be moved or removed. */
int links_check_fixed(struct fs *fs, const char *path) MUST_CHECK;
/* Is there a link below this path, not at it? "" = root. */
bool links_below(struct fs *fs, const char *path);
/* The directory of a link that is being removed: nobody is to trust that it is there. */
bool links_is_going(struct fs *fs, uint64_t ino);
/* Does the store of key answer, as far as its last calls tell? */
bool links_answers(struct fs *fs, const char *key);
/* objstore_offline_since_ns() of the store of key. */
int64_t links_offline_since_ns(struct fs *fs, const char *key);
/* Were its capabilities found out? */
bool links_probed(struct fs *fs, const char *key);
void links_set_probed(struct fs *fs, const char *key, uint32_t caps);

/* Calls fn with directory ("a/b") and source of each link, under the set's lock: fn takes none. Any thread. */
void links_each_source(struct fs *fs, void (*fn)(void *ctx, const char *dir, const char *source), void *ctx);

/* ---- life ---- */

/* Reads the records, and the file of --links, and opens the stores, none of which is asked. Before the cache is opened; the tree is not looked at yet. */
int links_open(struct fs *fs, char **ret_msg) MUST_CHECK;
/* A database that was lost gets the records of DIR/links back; before names below them are. */
int links_restore_copy(struct meta *m, const char *cache_dir) MUST_CHECK;
/* For tools without a mount: the stores of the links of a database, each with the options in like that are not the link's. tell (ctx, dir, error) of each; error says why it cannot be
 * opened, NULL: it was. */
int links_open_stores(struct meta *m, const struct objstore_config *like, struct objstore *st,
                      void (*tell)(void *ctx, const char *dir, const char *error), void *ctx) MUST_CHECK;
/* Knows the directories, adds what the file lists, and begins to try again what could not be opened. */
int links_start(struct fs *fs) MUST_CHECK;
/* The mount is served: until then nobody but the start itself adds, changes or removes links, as programs wait for its end. */
void links_serve(struct fs *fs);
void links_interrupt(struct fs *fs);
void links_stop(struct fs *fs);  /* ends the thread; NULL set allowed */
void links_close(struct fs *fs); /* before the store is closed */

/* ---- changes; options as link_options.h; each waits for links_serve() ---- */

/* ret_msg: why not, or on success a warning or NULL; owned by the caller. */
int links_add(struct fs *fs, const char *source, const char *dir, const json_t *options, char **ret_msg) MUST_CHECK;
/* Options given as null go back to their defaults. */
int links_set(struct fs *fs, const char *dir, const json_t *options, char **ret_msg) MUST_CHECK;
/* -EBUSY: there is something below that is not in the store yet, or open for writing. wait (may be NULL) waits for that first: 0, else what is returned. */
typedef int links_wait_fn(void *ctx, const char *dir);
int links_remove(struct fs *fs, const char *dir, links_wait_fn *wait, void *ctx, char **ret_msg) MUST_CHECK;
/* One object for each link at dir (NULL: all): what `link list` and `status` show; with options when `show`. */
json_t *links_describe(struct fs *fs, const char *dir, bool show);
/* Adds what a file lists at a start, a line each: SOURCE DIR [OPTION=VALUE]..., '#' begins a comment. A link that is there keeps its store, its other options become those of the file; one that was being
 * removed stays. No link's
 * store is asked, one that cannot be opened is tried again: else what is written before it answers would go to another bucket. A line that makes no sense, or whose directory is in use, is in the log. */
void links_add_file(struct fs *fs, const char *path, const char *text);
enum links_sync_when { LINKS_SYNC_AT_START, LINKS_SYNC_CHANGED, LINKS_SYNC_GOES };
/* Is told the sync policy of a link that was added or changed, or goes: what lists it by itself ends. No lock held; one call at a time. */
typedef void links_sync_fn(struct fs *fs, const char *dir, enum link_sync sync, uint64_t every_ns,
                           enum links_sync_when when);
/* ... and of all that there are and stay, at the start, before this returns: before links_serve(). */
void links_on_sync(struct fs *fs, links_sync_fn *fn);

/* ---- links_tree.c ---- */

/* The directory that a link is to have, made with those above it where it is not there, before the store of its keys is the link's. -ENOTEMPTY, -ENOTDIR, -EBUSY: names
 * below, or their work, are in the way. ask false: by what is known here alone, without that store. */
int links_tree_prepare(struct fs *fs, const char *dir, bool ask, struct inode **ret) MUST_CHECK;
/* Makes it that of the link, and stores the record, in one batch. force: whatever is below. */
int links_tree_commit(struct fs *fs, const char *dir, const char *record, struct inode *in, bool force) MUST_CHECK;
/* Makes the directory of a link that has a record only. */
int links_tree_restore(struct fs *fs, const char *dir, uint64_t *ret_ino) MUST_CHECK;
/* Is all below in the store, and nothing open for writing? -EBUSY with a path. */
int links_tree_clean(struct fs *fs, uint64_t ino, char **ret_path) MUST_CHECK;
/* Removes names and records, some hundreds at a time. What is open stays readable as far as it is here. -ECANCELED: the daemon stops. */
int links_tree_remove(struct fs *fs, const char *dir, uint64_t ino) MUST_CHECK;
/* What was listed of the directory, and below, counts no more. */
int links_tree_expire(struct fs *fs, uint64_t ino) MUST_CHECK;
/* Inode of the directory as the database knows it. */
int links_tree_find(struct fs *fs, const char *dir, uint64_t *ret_ino) MUST_CHECK;
void links_record_name(const char *dir, GString *ret);
