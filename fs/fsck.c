/*
 * `sluice fsck`: database against cache folder, with no daemon using either, and against the bucket.
 *
 * What is checked, and what repair does about it:
 *
 *   an unpublished file without its bytes, not as long as sealed, or
 *   with other checksums than when it was sealed                    quarantined: stays visible, is never published
 *   one whose record names another disk than the one with its
 *   bytes, which their checksums tell                               the record names that one
 *   one without a record, of which several disks have different
 *   bytes, and nothing tells which are right                        quarantined
 *   an unpublished file whose bytes cannot be read, or are or may
 *   be on a disk that is not there                                  said
 *   an unpublished file without its intent                          the intent is written again
 *   an inode whose link count is not the number of its names        the count is set
 *   a name without an inode                                         removed
 *   a name waiting for a journal record that is not there           the record is written again
 *   a conflict without its loser                                    removed
 *   a journal record whose name is gone or waits for another one    removed
 *   a cache record without its data file                            removed
 *   a data file without a record: of an unpublished inode           the record is written again
 *                                 with an intent                    brought back (rebuild.c)
 *                                 neither                           put into DIR/rescued/, removed when it is empty
 *   a data file that its record knows on another disk               removed if it is there (when unpublished: with the
 *                                                                   same bytes), else put into DIR/rescued/
 *   a value of a cache file that is no more                         removed
 *   an upload that no file needs; that the bucket does not know     aborted; forgotten
 *   an unpublished file, part of which was in an object only
 *   that was changed elsewhere                                      said
 *   a database that is missing or damaged                           set aside, made anew, unpublished files brought back
 *   a further disk that only a lost database knew                   taken over if it is there (adopt.c), else said
 *   a symlink to a database whose disk is not there                 refused
 *
 * No byte that may be nowhere else is removed. Each finding is one line: what, path, and what repair does or did. What the store has not got yet, what is quarantined or in
 * conflict, and what was changed elsewhere are no findings, but named as well. One pass over each kind of record; what has to be changed is collected first and written as one batch
 * behind each pass, so no pass sees its own changes.
 */
#include "adopt.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "cache.h"
#include "cache_disks.h"
#include "fsck_internal.h"
#include "journal_dir.h"
#include "store_options.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the passes ---- */

int fsck_end_pass(struct fsck *f, int r)
{
    if (r >= 0)
        r = f->o->repair ? meta_commit(f->b, false) : 0;
    return r;
}

static int check_all(struct fsck *f)
{
    int r = fsck_end_pass(f, meta_op_each(f->m, fsck_op, f));
    if (r == 0)
        r = fsck_end_pass(f, meta_inode_each(f->m, fsck_inode, f));
    if (r == 0)
        r = fsck_end_pass(f, meta_dentry_each(f->m, META_ASIDE_INO, 0, fsck_name, f));
    if (r == 0)
        r = fsck_end_pass(f, fsck_conflicts(f));
    if (r == 0)
        r = fsck_end_pass(f, meta_cached_each(f->m, fsck_cached, f));
    if (r == 0)
        r = fsck_data(f);
    if (r == 0)
        r = fsck_end_pass(f, fsck_values(f));
    if (r == 0 && !f->o->offline)
        r = fsck_store(f);
    return r == 0 && f->o->repair ? meta_sync(f->m) : r;
}

static int run_checks(struct fsck *f)
{
    f->b = meta_batch_new(f->m);
    f->op_seqs = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    f->intents = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    f->dirty = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    f->right = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    f->values = g_ptr_array_new_with_free_func(g_free);
    f->stray = g_array_new(FALSE, FALSE, sizeof(struct stray));
    int r = check_all(f);
    g_array_unref(f->stray);
    g_ptr_array_unref(f->values);
    g_hash_table_unref(f->right);
    g_hash_table_unref(f->dirty);
    g_hash_table_unref(f->intents);
    g_hash_table_unref(f->op_seqs);
    meta_batch_free(f->b);
    return r;
}

/* ---- the folder ---- */

/* First line of DIR/link: what the folder is bound to. Owned; NULL with a message. */
static char *read_binding(const char *dir, char **ret_msg)
{
    g_autofree char *path = g_build_filename(dir, "link", NULL);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL) || !*text) {
        *ret_msg = g_strdup_printf("'%s' is not a cache folder of a mount: there is no %s", dir, path);
        return NULL;
    }
    return g_strndup(text, strcspn(text, "\n"));
}

/* An empty folder takes its place in one step, so that a symlink to it never leads nowhere. Not every file system can do that. */
static int trade_for_empty(const char *from, const char *to)
{
    int r = RET_ERRNO(mkdir(to, 0700));
    if (r < 0)
        return r;
    r = RET_ERRNO(renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE));
    if (r == -EINVAL || r == -ENOSYS) {
        r = RET_ERRNO(rename(from, to)); /* over the empty one */
        r = r < 0 ? r : RET_ERRNO(mkdir(from, 0700));
    }
    if (r < 0)
        (void)rmdir(to);
    return r;
}

/* A database that cannot be read is set aside, never removed: where it is, which may be on another disk (journal_dir.h). */
static int set_aside(struct fsck *f, char **ret_msg)
{
    g_autofree char *from = NULL;
    int r = journal_dir_find(f->dir, &from, ret_msg);
    if (r < 0)
        return r;
    g_autofree char *to = g_strdup_printf("%s.damaged-%" G_GINT64_FORMAT, from, clock_wall_ns() / (int64_t)NS_PER_S);
    r = trade_for_empty(from, to);
    if (r < 0 && r != -ENOENT)
        *ret_msg = g_strdup_printf("%s could not be set aside: %s", from, err_text(r));
    else if (r == 0)
        fsck_remark(f, "meta", "the damaged database is now %s", to);
    return r == -ENOENT ? 0 : r;
}

static bool database_there(const char *dir)
{
    g_autofree char *path = g_build_filename(dir, "meta", "CURRENT", NULL);
    return access(path, F_OK) == 0;
}

/* It is of no use any more: with repair a new one takes its place. 1: there is none to check. */
static int replace_database(struct fsck *f, const char *why, char **ret_msg)
{
    bool fresh = false;
    fsck_finding(f, "meta",
                 "set it aside and bring unpublished files back; inode numbers change, clean files are fetched again",
                 "%s", why);
    if (!f->o->repair)
        return 1;
    g_autoptr(GPtrArray) disks = NULL;
    if (cache_disks_load(f->dir, &disks) == 1)
        fsck_remark(f, "disks",
                    "a mount that wrote down which further disks there are was never made: if --cache-dir had several "
                    "folders, mount with all of them, and do what that says");
    int r = set_aside(f, ret_msg);
    return r < 0 ? r : meta_open(f->dir, f->binding, &f->m, &fresh, ret_msg);
}

/* 1: there is none to check (a finding was printed). */
static int open_database(struct fsck *f, char **ret_msg)
{
    bool fresh = false;
    g_autofree char *msg = NULL;
    int r = database_there(f->dir) ? meta_open(f->dir, f->binding, &f->m, &fresh, &msg) : -ENOENT;
    if (r == 0 || r == -EBUSY || r == -EEXIST) {
        *ret_msg = r < 0 ? g_steal_pointer(&msg) : NULL;
        return r;
    }
    g_autofree char *why = r == -ENOENT ? g_strdup("the database is missing")
                                        : g_strdup_printf("the database cannot be read (%s)", msg ? msg : err_text(r));
    return replace_database(f, why, ret_msg);
}

static void tell_disk(void *ctx, const char *path, const char *why)
{
    if (why)
        fsck_finding(ctx, path, NULL, "%s", why);
    else
        fsck_finding(ctx, path, "take it over, and bring back what is unpublished on it",
                     "a cache disk of this cache that the database does not know: one that was lost knew it");
}

/* A disk that only a lost database knew is looked at like others before it counts as known. */
static int check_with_disks(struct fsck *f, char **ret_msg)
{
    struct adopt a = {.m = f->m, .first = f->dir, .dry = !f->o->repair, .tell = tell_disk, .ctx = f};
    adopt_init(&a);
    int r = adopt_disks(&a, ret_msg);
    if (r == 0 && f->m)
        r = run_checks(f);
    if (r == 0)
        r = adopt_end(&a);
    adopt_fini(&a);
    return r;
}

static int check_database(struct fsck *f, char **ret_msg)
{
    if (f->o->repair && cache_disks_save(f->m, f->dir) < 0)
        fsck_remark(f, "disks", "which cache disks there are could not be written beside the database");
    int r = check_with_disks(f, ret_msg);
    meta_close(f->m);
    f->m = NULL;
    return r;
}

static int fsck_locked(struct fsck *f, char **ret_msg)
{
    int r = open_database(f, ret_msg);
    if (r == 0)
        r = check_database(f, ret_msg);
    if (r == -EBADMSG) { /* it could be opened, but not read to its end */
        g_clear_pointer(ret_msg, g_free);
        r = replace_database(f, "the database is damaged: some of its records cannot be read", ret_msg);
        if (r == 0)
            r = check_database(f, ret_msg);
    }
    if (r > 0)
        r = check_with_disks(f, ret_msg);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("the check of '%s' was broken off: %s", f->dir, err_text(r));
    return MIN(r, 0);
}

int fs_fsck(const struct fsck_options *o, struct fsck_result *ret, char **ret_msg)
{
    struct stat st;
    *ret = (struct fsck_result){0};
    if (stat(o->cache_dir, &st) < 0 || !S_ISDIR(st.st_mode)) {
        *ret_msg = g_strdup_printf("'%s' is not a folder", o->cache_dir);
        return -ENOTDIR;
    }
    *ret_msg = NULL;
    g_autofree char *binding = read_binding(o->cache_dir, ret_msg);
    if (!binding) /* nothing is written into a folder of somebody else */
        return -EINVAL;
    CLEANUP_FD int lock = -1;
    int r = cache_dir_prepare(o->cache_dir, &lock, ret_msg);
    if (r < 0)
        return r;
    g_autofree char *database = NULL;
    r = journal_dir_find(o->cache_dir, &database, ret_msg);
    if (r < 0)
        return r;
    struct fsck f = {.o = o, .res = ret, .dir = o->cache_dir, .binding = binding};
    g_autofree char *identity = store_binding_identity(binding, &f.escape);
    f.identity = identity;
    r = fsck_locked(&f, ret_msg);
    if (r == 0 && fflush(o->out) != 0)
        r = -errno;
    return r;
}
