/*
 * The tree of names: lookup, listing from the store, and every change of it. No FUSE types; all return 0 or -errno.
 *
 * Keys: the object of a name is its path ("a/b"); directories' markers end in '/'. A name whose rename was not yet carried out upstream
 * has its object at ukey. What a name left behind upstream is removed by journalled deletes; what stands at its own
 * path key until it is overwritten is remembered in dest_etag, so that publishing can insist on it.
 */
#pragma once
#include "fs.h"

struct cred {
    unsigned uid, gid;
};

/* ---- tree_path.c: all under ns ---- */

/* Key of a name: path of dir + name, with a trailing '/' for directories when slash; of a loser the one it had. */
char *tree_key(struct fs *fs, uint64_t parent, const char *name, bool slash) REQUIRES(fs->ns);
/* Is path `above` or below it ("" = root)? */
bool tree_path_below(const char *path, const char *above);
/* "" for the root, "a/b/" else. */
char *tree_dir_prefix(struct fs *fs, uint64_t dir) REQUIRES(fs->ns);
/* Path relative to the mount of any inode (first name found), without ns held. -ENOENT when it has none. */
int tree_path_of(struct fs *fs, uint64_t ino, char **ret) MUST_CHECK;
/* Resolves a path relative to the root ("" = root), listing what is not known. */
int tree_resolve(struct fs *fs, const char *path, struct inode **ret) MUST_CHECK;
/* The same through symlinks, the last component's too. ret_path: where it is. links (may be NULL) gets the paths of the links on the way, owned, as far as it came.
 * -EXDEV: one leads out of the mount. */
int tree_follow(struct fs *fs, const char *path, GPtrArray *links, char **ret_path, struct inode **ret) MUST_CHECK;
/* The directory that a path is in, and the name it has there, which points into path. -ENOTDIR: what is above is none. */
int tree_resolve_parent(struct fs *fs, const char *path, struct inode **ret_dir, const char **ret_name) MUST_CHECK;

/* With --escape: -EINVAL where the last component stands for something that only a directory, or nothing at all in that store, can be called. path without a '/' behind it. */
int tree_check_escaped(struct fs *fs, const char *path, bool is_dir) MUST_CHECK;
/* The key that the store has for a path, to be told. Owned by the caller. */
char *tree_store_key(struct fs *fs, const char *path);

/* ---- tree_list.c, tree_fresh.c ---- */

/* Sees that dir's names are known and not older than the metadata TTL: one listing however many callers. A directory listed before is served as it is when the
 * store does not answer within 2 s. -errno only when nothing is known. force: list now whatever the TTL. */
int tree_refresh(struct fs *fs, struct inode *dir, bool force) MUST_CHECK;
/* The same for commands, which are not to take old names for all there are: 0 only once no name is older than the TTL. It waits as long as the listing gets on, for a store that does not answer
 * *offline_ns in all, which is lowered; -errno says what became of the listing, and what was known before is known still. -ENOENT: dir is gone. */
int tree_refresh_sure(struct fs *fs, struct inode *dir, uint64_t *offline_ns) MUST_CHECK;
#define TREE_OFFLINE_NS (2 * NS_PER_S) /* for all that one command looks at */
/* The same without force for a program that looks into dir: while the listings that such looks ask for take more time than there is, names that are tree_names_late_ns() older than the
 * TTL at most serve, and are listed again behind. */
int tree_serve(struct fs *fs, struct inode *dir) MUST_CHECK;
/* 0: names are not older than the TTL, as far as the store answers. */
uint64_t tree_names_late_ns(struct fs *fs);
/* What listings came to; all but names is valid once they are done. */
struct tree_tally {
    _Atomic uint64_t names; /* rows that the store gave, counted as they come */
    uint64_t dirs;          /* of them directories */
    bool changed;           /* names appeared, changed or went */
    bool wrote;             /* the time of the listing is in the directory's record: else sync.h is to keep it */
};
/* What a listing of something larger showed of one directory. */
struct tree_given {
    const char *prefix;           /* tree_dir_prefix() of it at that time; borrowed */
    const struct obj_entry *rows; /* names relative to it, in order; borrowed */
    size_t n_rows;
    /* as of before that listing: tree_given_begin() */
    uint64_t stamp, first_id;
    int64_t began_wall_ns;
};
/* Before a listing of parent that gives rows of its directories. Its prefix, owned. claimed: of none but those that a listing is under way of already, else any may be one of them. */
char *tree_given_begin(struct fs *fs, uint64_t parent, bool claimed, struct tree_given *ret);
/* Once all of it was given: what came meanwhile is not older any more (tree_list_running()). */
void tree_given_end(struct fs *fs, bool claimed);
/* Lists dir in this thread, or waits for a listing that was begun at since_ns (wall clock) or later. Where nothing changed nothing is written. given: may be NULL, else
 * the store need not be asked, unless dir was moved since. -ENOENT: dir was removed. */
int tree_list_now(struct fs *fs, struct inode *dir, int64_t since_ns, const struct tree_given *given,
                  struct tree_tally *tally) MUST_CHECK;
/* Removed, here or elsewhere, though somebody has it still: nothing of it is asked, what may stand at its path is another's. */
bool tree_is_removed(struct inode *dir);
/* Was it listed ever, or made here, or is it removed? Else its names are not all known, and readers follow its first listing: */
bool tree_is_listed(struct inode *dir);
/* Waits until that listing has shown other names than as of *pages (which begins as TREE_NO_PAGES: does not wait, or 0: waits for the first ones; noted there), each with a greater
 * id than those before it. 1: it has, and more may come; 0: all names are there; -errno as of tree_refresh(). */
int tree_list_follow(struct fs *fs, struct inode *dir, uint64_t *pages) MUST_CHECK;
#define TREE_NO_PAGES UINT64_MAX
/* Called after each directory; not 0, -errno: no more. */
typedef int tree_tick_fn(void *ctx);
/* The same for everything below. tick may be NULL. */
int tree_refresh_all(struct fs *fs, struct inode *dir, bool force, tree_tick_fn *tick, void *ctx) MUST_CHECK;
/* As tree_refresh_sure(); goes on behind a directory that could not be listed, the first failure is returned, or what tick said. */
int tree_refresh_all_sure(struct fs *fs, struct inode *dir, uint64_t *offline_ns, tree_tick_fn *tick, void *ctx)
    MUST_CHECK;
/* Seconds for which the kernel may trust entries of dir. */
double tree_ttl(struct fs *fs, struct inode *dir);
/* The same by name: while dir is listed, that long those with ids from shown_from on. */
struct tree_trust {
    double ttl, shown_ttl;
    uint64_t shown_from;
};
void tree_trust_of(struct fs *fs, struct inode *dir, struct tree_trust *ret);
static inline double tree_trust_in(const struct tree_trust *t, uint64_t id)
{
    return id >= t->shown_from ? t->shown_ttl : t->ttl;
}

/* ---- tree_lookup.c ---- */

/* A name that is not older than the metadata TTL, as far as the store answers. */
int tree_lookup(struct fs *fs, uint64_t parent, const char *name, struct inode **ret) MUST_CHECK;
/* The same in a directory at hand for a program that looks into it, as tree_serve(); -ENOTDIR: it is none. */
int tree_lookup_in(struct fs *fs, struct inode *dir, const char *name, struct inode **ret) MUST_CHECK;
/* Asks the store for user metadata of a file in dir when posix-meta says so and it was not seen yet. */
void tree_want_posix(struct fs *fs, struct inode *in, struct inode *dir);

/* ---- tree_edit.c, tree_rename.c ---- */

struct node_spec {
    uint64_t parent;
    const char *name;
    uint32_t mode, rdev;
    const char *target; /* symlink */
    struct cred who;
};
/* Regular file (content OPEN when open, else SEALED), directory, symlink, fifo, socket. -EEXIST if the name is there. */
int tree_create(struct fs *fs, const struct node_spec *spec, bool open, struct inode **ret) MUST_CHECK;
/* Nameless regular file (O_TMPFILE), given a name by tree_link. */
int tree_tmpfile(struct fs *fs, const struct node_spec *spec, struct inode **ret) MUST_CHECK;
/* -EXDEV: the file belongs to another bucket, or to the other side of a local-only rule. */
int tree_link(struct fs *fs, uint64_t ino, uint64_t parent, const char *name, struct inode **ret) MUST_CHECK;
int tree_unlink(struct fs *fs, uint64_t parent, const char *name) MUST_CHECK;
/* The same for this very name of a file; -ESTALE: it went, or it is another's. */
int tree_expire(struct fs *fs, const struct meta_dentry *d) MUST_CHECK;
/* -ENOTEMPTY also while the store has keys below that cannot be shown as names. */
int tree_rmdir(struct fs *fs, uint64_t parent, const char *name) MUST_CHECK;
/* The same, and where nothing but bytes of the directory's own marker is in the way these are deleted with it, as they are now: what comes there until the store is asked stays. */
int tree_rmdir_force(struct fs *fs, uint64_t parent, const char *name) MUST_CHECK;
/* flags: 0, RENAME_NOREPLACE, RENAME_EXCHANGE. */
int tree_rename(struct fs *fs, uint64_t p1, const char *n1, uint64_t p2, const char *n2, unsigned flags) MUST_CHECK;

/* The file of that name is about to lose its object: if somebody has it open and it is not wholly here, its bytes are fetched behind. */
void tree_save_open_content(struct fs *fs, uint64_t parent, const char *name);

/* Pieces shared by the files above, all under ns; they add to the batch. */
void tree_touch_dir(struct fs *fs, struct meta_batch *b, uint64_t dir) REQUIRES(fs->ns);
/* Removes a name record and its journal record; queues deletes for what it left upstream unless keep_path_object. Lowers nlink. */
int tree_drop_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, bool keep_path_object) REQUIRES(fs->ns);
/* The same of a name whose place another object, or none, has in the store: what it left upstream at its path stays. The kernel may find the file by it still, so who opens it for
 * writing, or changes it without having it open for that, is told ESTALE, and looks the name up anew. 1: somebody is writing to it, so the name stays. */
int tree_lose_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d) REQUIRES(fs->ns) MUST_CHECK;
/* The last name of an inode went, if it is that, and the kernel did not ask for it: who takes over before it was told finds the name by what is left of the inode. After all else that the batch
 * says of it. Part of tree_lose_name(). */
void tree_note_lost(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d) REQUIRES(fs->ns);
/* Each last name that the kernel did not remove itself, of what it knows still, and that nothing has now: fn under no lock. */
int tree_lost_each(struct fs *fs, void (*fn)(struct fs *fs, uint64_t parent, const char *name)) MUST_CHECK;
/* What stands at the name's own path key as far as known: true and its etag, or false. */
bool tree_object_at_path(const struct meta_dentry *d, struct etag *ret_etag);
/* Does one of the first `most` names in the directory with that key ("a/b/"), not_id aside, show it upstream, now or once it is published? Files that a rule keeps here, sockets
 * and links do not. 1, 0 or -errno; no lock needed. */
int tree_is_shown(struct fs *fs, uint64_t dir, const char *key, uint64_t not_id, unsigned most) MUST_CHECK;
/* A directory that was implicit and loses the name of the given id, which may have been the last one to show it, needs a marker, or other tools (and the next listing) see it
 * vanish. 0: of any id, what is left is looked at behind. Once for a directory in one batch. */
int tree_keep_shown(struct fs *fs, struct meta_batch *b, uint64_t dir, uint64_t lost_id) REQUIRES(fs->ns) MUST_CHECK;
/* The same for a name that leaves key, its own path: true also (with no etag) when a try to publish there was cut off, so that nobody knows. */
bool tree_may_leave_object(struct fs *fs, const struct meta_dentry *d, const char *key, struct etag *ret_etag);
/* The object of d, which was a name of the file, is given up: absent bytes that would come from there come from now on from the object of another name that holds the same
 * version. */
void tree_leave_object(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d) REQUIRES(fs->ns);
/* nlink - 1: removes the inode record or keeps it as orphan while open. */
int tree_unref_inode(struct fs *fs, struct meta_batch *b, uint64_t ino) REQUIRES(fs->ns);
