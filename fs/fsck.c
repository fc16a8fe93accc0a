/*
 * `sluice fsck`: database against cache folder, with no daemon using either.
 *
 * What is checked, and what repair does about it:
 *
 *   an unpublished file without its bytes, or not as long as sealed  quarantined: stays visible, is never published
 *   an inode whose link count is not the number of its names        the count is set
 *   a name without an inode                                         removed
 *   a name waiting for a journal record that is not there           the record is written again
 *   a conflict without its loser                                    removed
 *   a journal record whose name is gone or waits for another one    removed
 *   a cache record without its data file                            removed
 *   a data file without a record: of an unpublished inode           the record is written again
 *                                 with an intent                    brought back (rebuild.c)
 *                                 neither                           removed: it holds nothing that the store has not
 *   a data file that its record knows on another disk               removed: it was moved
 *   a database that is missing or damaged                           set aside, made anew, unpublished files brought back
 *
 * Each finding is one line: what, path, and what repair does or did. What the store has not got yet is no finding, but named as well. One pass over each kind of record; what has to be changed is collected first and
 * written as one batch behind each pass, so no pass sees its own changes.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "cache.h"
#include "cache_scan.h"
#include "conflict.h"
#include "daemon.h"
#include "meta.h"
#include "rebuild.h"
#include "states.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fsck {
    struct meta *m;
    const char *dir;
    uint32_t at_tier; /* number of the disk being looked through */
    FILE *out;
    bool repair;
    unsigned left; /* findings not repaired */
    /* of the pass in progress */
    struct meta_batch *b;
    GHashTable *op_seqs;  /* journal records that a name waits for: seq -> itself */
    GHashTable *intents;  /* vids of data files with an intent */
    GHashTable *dirty;    /* vids of unpublished inodes: vid -> struct dirty_file */
    GArray *stray_vids;   /* data files to remove */
    unsigned lost_files;  /* with an intent, no record */
    unsigned quarantined; /* of earlier: no finding, but said */
};

/* An unpublished inode, by its cache file. */
struct dirty_file {
    uint64_t vid, ino;
    bool has_base; /* part of it may be in the store only: without the record nobody knows which */
};

/* ---- findings ---- */

static void finding(struct fsck *f, const char *path, const char *action, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void finding(struct fsck *f, const char *path, const char *action, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_autofree char *what = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    (void)fprintf(f->out, "%s: %s; %s: %s\n", path, what, f->repair ? "repaired" : "repair will", action);
    if (!f->repair)
        f->left++;
}

struct found_name {
    uint64_t parent;
    char *name;
};

static int take_first(void *ctx, const struct meta_dentry *d)
{
    struct found_name *n = ctx;
    n->parent = d->parent;
    n->name = g_strdup(d->name);
    return 1;
}

/* The first path of an inode, or "inode N". Owned. */
static char *path_of(struct fsck *f, uint64_t ino)
{
    g_autoptr(GString) path = g_string_new(NULL);
    uint64_t at = ino;
    for (unsigned depth = 0; at != META_ROOT_INO && depth < 4096; depth++) {
        struct found_name n = {0};
        if (meta_link_each(f->m, at, take_first, &n) <= 0)
            return g_strdup_printf("inode %" G_GUINT64_FORMAT, ino);
        if (n.parent == META_ASIDE_INO) {
            char *lost = conflict_path(f->m, n.name);
            g_free(n.name);
            return lost;
        }
        if (path->len > 0)
            g_string_prepend_c(path, '/');
        g_string_prepend(path, n.name);
        g_free(n.name);
        at = n.parent;
    }
    return path->len > 0 ? g_strdup(path->str) : g_strdup("/");
}

static char *path_of_name(struct fsck *f, uint64_t parent, const char *name)
{
    if (parent == META_ASIDE_INO)
        return conflict_path(f->m, name);
    g_autofree char *dir = path_of(f, parent);
    return g_str_equal(dir, "/") ? g_strdup(name) : g_strconcat(dir, "/", name, NULL);
}

/* Writes what the pass collected. */
static int end_pass(struct fsck *f, int r)
{
    if (r >= 0)
        r = f->repair ? meta_commit(f->b, false) : 0;
    return r;
}

/* ---- journal ---- */

static void tell_unpublished(struct fsck *f, uint64_t parent, const char *name)
{
    g_autofree char *path = path_of_name(f, parent, name);
    (void)fprintf(f->out, "%s: not yet published\n", path);
}

static int check_op(void *ctx, const struct meta_op *op)
{
    struct fsck *f = ctx;
    if (op->kind != OP_SYNC) {
        (void)fprintf(f->out, "%s: not yet removed from the store\n", op->key);
        return 0;
    }
    struct meta_dentry d = {0};
    int r = meta_dentry_get(f->m, op->parent, op->name, &d);
    bool stale = r == -ENOENT || (r == 0 && d.op_seq != op->seq);
    if (r == 0)
        meta_dentry_clear(&d);
    if (!stale) {
        g_hash_table_add(f->op_seqs, g_memdup2(&op->seq, sizeof(op->seq)));
        if (r == 0 && op->state != OPS_CONFLICT) /* those are told as conflicts */
            tell_unpublished(f, op->parent, op->name);
        return r;
    }
    g_autofree char *path = path_of_name(f, op->parent, op->name);
    finding(f, path, "remove the journal record", "journal record %" G_GUINT64_FORMAT " belongs to no name", op->seq);
    if (f->repair)
        meta_op_del(f->b, op->seq);
    return 0;
}

/* ---- inodes and names ---- */

static int count_link(void *ctx, const struct meta_dentry *d)
{
    ++*(unsigned *)ctx;
    return 0;
}

static int check_links(struct fsck *f, const struct meta_inode *in)
{
    unsigned n = 0;
    int r = meta_link_each(f->m, in->ino, count_link, &n);
    if (r < 0 || n == in->nlink)
        return r;
    g_autofree char *path = path_of(f, in->ino);
    finding(f, path, "set the count", "%u names, but a link count of %u", n, in->nlink);
    if (!f->repair)
        return 0;
    struct meta_inode fixed = *in; /* shares the strings during this call */
    fixed.nlink = n;
    meta_inode_put(f->b, &fixed);
    return 0;
}

/* The data file of vid on the disk that its record says. -ENODEV: the disk is not there. */
static int find_bytes(struct fsck *f, uint64_t vid, struct cache_scanned *ret)
{
    struct meta_cached c = {0};
    g_autofree char *dir = NULL;
    int r = meta_cached_get(f->m, vid, &c);
    if (r == 0 || r == -ENOENT)
        r = cache_scan_tier(f->m, f->dir, c.tier, &dir);
    if (r == -ENODEV)
        (void)fprintf(f->out, "%s: this cache disk is not there; what it holds is not checked\n", dir);
    return r < 0 ? r : cache_scan_file(dir, vid, ret);
}

/* What is wrong with the bytes of an unpublished file; NULL when nothing is. Owned. */
static char *bytes_fault(struct fsck *f, const struct meta_inode *in)
{
    struct cache_scanned file;
    if (in->vid == 0)
        return in->size > 0 && !in->base_key ? g_strdup("its bytes were never stored") : NULL;
    int r = find_bytes(f, in->vid, &file);
    if (r == -ENODEV)
        return NULL;
    if (r == -ENOENT)
        return g_strdup("unpublished, but its bytes are gone");
    if (r < 0)
        return g_strdup_printf("unpublished, but its bytes cannot be looked at: %s", err_text(r));
    bool settled = in->content == CONTENT_SEALED; /* until then it may grow, and the start takes its size */
    if (settled && file.size != in->size)
        return g_strdup_printf("unpublished, %" G_GUINT64_FORMAT " bytes when closed, now %" G_GUINT64_FORMAT, in->size,
                               file.size);
    return NULL;
}

static void check_bytes(struct fsck *f, const struct meta_inode *in)
{
    if (in->content != CONTENT_CLEAN && in->vid) {
        struct dirty_file df = {in->vid, in->ino, in->base_key != NULL};
        struct dirty_file *own = g_memdup2(&df, sizeof(df));
        g_hash_table_insert(f->dirty, &own->vid, own);
    }
    if (in->content == CONTENT_QUARANTINED) {
        g_autofree char *path = path_of(f, in->ino);
        (void)fprintf(f->out, "%s: quarantined; its bytes are kept and never published\n", path);
        f->quarantined++;
        return;
    }
    if (in->content == CONTENT_OPEN) { /* no journal record tells of it */
        g_autofree char *path = path_of(f, in->ino);
        (void)fprintf(f->out, "%s: not yet published, its writer never closed it\n", path);
    }
    g_autofree char *fault = in->content == CONTENT_CLEAN ? NULL : bytes_fault(f, in);
    if (!fault)
        return;
    g_autofree char *path = path_of(f, in->ino);
    finding(f, path, "quarantine it: visible, never published", "%s", fault);
    if (!f->repair)
        return;
    struct meta_inode fixed = *in;
    if (content_quarantine(&fixed))
        meta_inode_put(f->b, &fixed);
}

static int check_name(void *ctx, const struct meta_dentry *d)
{
    struct fsck *f = ctx;
    struct meta_inode in;
    int r = meta_inode_get(f->m, d->ino, &in);
    if (r == 0)
        meta_inode_clear(&in);
    if (r == -ENOENT) {
        g_autofree char *path = path_of_name(f, d->parent, d->name);
        finding(f, path, "remove the name", "there is no inode %" G_GUINT64_FORMAT, d->ino);
        if (f->repair)
            meta_dentry_del(f->b, d);
        return 0;
    }
    if (r < 0 || d->op_seq == 0 || g_hash_table_contains(f->op_seqs, &d->op_seq))
        return r;
    g_autofree char *path = path_of_name(f, d->parent, d->name);
    finding(f, path, "write it again", "waits for journal record %" G_GUINT64_FORMAT ", which is not there", d->op_seq);
    if (f->repair) {
        struct meta_op op = {
            .seq = d->op_seq, .kind = OP_SYNC, .parent = d->parent, .name = d->name, .created_ns = clock_wall_ns()};
        if (d->parent == META_ASIDE_INO)
            op.state = OPS_CONFLICT;
        meta_op_put(f->b, &op);
    }
    return 0;
}

static int check_inode(void *ctx, const struct meta_inode *in)
{
    struct fsck *f = ctx;
    if (S_ISDIR(in->mode))
        return meta_dentry_each(f->m, in->ino, 0, check_name, f);
    if (in->flags & INODE_ORPHAN)
        return 0; /* removed while open: the next start drops it */
    if (S_ISREG(in->mode))
        check_bytes(f, in);
    return check_links(f, in);
}

static int check_conflict(void *ctx, const struct conflict *c)
{
    struct fsck *f = ctx;
    struct meta_dentry d = {0};
    int r = conflict_name(f->m, c->id, &d);
    meta_dentry_clear(&d);
    if (r == 0)
        (void)fprintf(f->out, "%s: conflict %" G_GUINT64_FORMAT "; our copy is kept, see `sluice conflicts`\n", c->path,
                      c->id);
    if (r != -ENOENT)
        return r;
    finding(f, c->path, "remove the record", "conflict %" G_GUINT64_FORMAT " has no copy of ours", c->id);
    if (f->repair)
        conflict_del(f->b, c->id);
    return 0;
}

/* ---- cache records and data files ---- */

static int check_cached(void *ctx, const struct meta_cached *c)
{
    struct fsck *f = ctx;
    struct cache_scanned file;
    g_autofree char *dir = NULL;
    int r = cache_scan_tier(f->m, f->dir, c->tier, &dir);
    if (r == -ENODEV || (r == -ENOENT && !(c->flags & CACHED_DIRTY)))
        return 0; /* the next start settles it */
    if (r == 0)
        r = cache_scan_file(dir, c->vid, &file);
    if (r != -ENOENT)
        return r;
    g_autofree char *path = path_of(f, c->ino);
    finding(f, path, "remove the record", "the cache has a record of its bytes, but not the bytes");
    if (f->repair)
        meta_cached_del(f->b, c->vid);
    return 0;
}

static int note_intent(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text)
{
    struct fsck *f = ctx;
    g_hash_table_add(f->intents, g_memdup2(&vid, sizeof(vid)));
    return 0;
}

/* The data file of an unpublished inode, which the cache does not know. */
static void relink_file(struct fsck *f, const struct dirty_file *df, const struct cache_scanned *file)
{
    g_autofree char *path = path_of(f, df->ino);
    finding(f, path,
            df->has_base ? "write it again, and quarantine the file: what of it is here is not known"
                         : "write it again",
            "the cache has no record of its bytes");
    struct meta_inode in;
    if (!f->repair)
        return;
    struct meta_cached c = {.vid = df->vid,
                            .ino = df->ino,
                            .bytes = file->disk_bytes,
                            .flags = CACHED_DIRTY | CACHED_COMPLETE,
                            .tier = f->at_tier};
    meta_cached_put(f->b, &c);
    if (!df->has_base || meta_inode_get(f->m, df->ino, &in) < 0)
        return;
    if (content_quarantine(&in))
        meta_inode_put(f->b, &in);
    meta_inode_clear(&in);
}

static int check_file(void *ctx, const struct cache_scanned *file)
{
    struct fsck *f = ctx;
    struct meta_cached c;
    int r = meta_cached_get(f->m, file->vid, &c);
    if (r == 0 && c.tier != f->at_tier) {
        finding(f, file->path, "remove it", "was moved to another disk");
        g_array_append_val(f->stray_vids, file->vid);
    }
    if (r != -ENOENT)
        return r;
    const struct dirty_file *df = g_hash_table_lookup(f->dirty, &file->vid);
    if (df) {
        relink_file(f, df, file);
        return 0;
    }
    if (g_hash_table_contains(f->intents, &file->vid)) {
        finding(f, file->path, "bring it back",
                "an unpublished file that the database does not know (%" G_GUINT64_FORMAT " bytes)", file->size);
        f->lost_files++;
        return 0;
    }
    finding(f, file->path, "remove it", "belongs to nothing (%" G_GUINT64_FORMAT " bytes on disk)", file->disk_bytes);
    g_array_append_val(f->stray_vids, file->vid);
    return 0;
}

/* ---- the passes ---- */

static int check_folder(void *ctx, const char *dir, uint32_t number)
{
    struct fsck *f = ctx;
    f->at_tier = number;
    g_array_set_size(f->stray_vids, 0);
    int r = cache_scan_intents(dir, note_intent, f);
    if (r == 0)
        r = end_pass(f, cache_scan_files(dir, check_file, f));
    for (unsigned i = 0; r == 0 && f->repair && i < f->stray_vids->len; i++)
        r = cache_scan_remove(dir, g_array_index(f->stray_vids, uint64_t, i));
    return r;
}

static int check_data(struct fsck *f)
{
    int r = cache_scan_tiers(f->m, f->dir, check_folder, f);
    unsigned n = 0;
    if (r == 0 && f->repair && f->lost_files > 0)
        r = fs_rebuild(f->m, f->dir, f->out, &n);
    return r;
}

static int check_all(struct fsck *f)
{
    int r = end_pass(f, meta_op_each(f->m, check_op, f));
    if (r == 0)
        r = end_pass(f, meta_inode_each(f->m, check_inode, f));
    if (r == 0)
        r = end_pass(f, meta_dentry_each(f->m, META_ASIDE_INO, 0, check_name, f));
    if (r == 0)
        r = end_pass(f, conflict_each(f->m, check_conflict, f));
    if (r == 0)
        r = end_pass(f, meta_cached_each(f->m, check_cached, f));
    if (r == 0)
        r = check_data(f);
    return r == 0 && f->repair ? meta_sync(f->m) : r;
}

static int run_checks(struct fsck *f)
{
    f->b = meta_batch_new(f->m);
    f->op_seqs = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    f->intents = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    f->dirty = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, g_free);
    f->stray_vids = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    int r = check_all(f);
    g_array_unref(f->stray_vids);
    g_hash_table_unref(f->dirty);
    g_hash_table_unref(f->intents);
    g_hash_table_unref(f->op_seqs);
    meta_batch_free(f->b);
    return r;
}

/* ---- the folder ---- */

/* First line of DIR/link: what the folder is bound to. Owned; NULL with a message. */
static char *read_identity(const char *dir, char **ret_msg)
{
    g_autofree char *path = g_build_filename(dir, "link", NULL);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL) || !*text) {
        *ret_msg = g_strdup_printf("'%s' is not a cache folder of a mount: there is no %s", dir, path);
        return NULL;
    }
    return g_strndup(text, strcspn(text, "\n"));
}

/* A database that cannot be read is set aside, never removed. */
static int set_aside(const char *dir, FILE *out, char **ret_msg)
{
    g_autofree char *from = g_build_filename(dir, "meta", NULL);
    g_autofree char *to = g_strdup_printf("%s.damaged-%" G_GINT64_FORMAT, from, clock_wall_ns() / (int64_t)NS_PER_S);
    int r = RET_ERRNO(rename(from, to));
    if (r < 0 && r != -ENOENT)
        *ret_msg = g_strdup_printf("%s could not be set aside: %s", from, err_text(r));
    else if (r == 0)
        (void)fprintf(out, "meta: the damaged database is now %s\n", to);
    return r == -ENOENT ? 0 : r;
}

static bool database_there(const char *dir)
{
    g_autofree char *path = g_build_filename(dir, "meta", "CURRENT", NULL);
    return access(path, F_OK) == 0;
}

/* Opens the database; with repair, a missing or damaged one is made anew. 1: there is none to check (a finding was printed). */
static int open_database(struct fsck *f, const char *identity, char **ret_msg)
{
    bool fresh = false;
    g_autofree char *msg = NULL;
    int r = database_there(f->dir) ? meta_open(f->dir, identity, &f->m, &fresh, &msg) : -ENOENT;
    if (r == 0 || r == -EBUSY || r == -EEXIST) {
        *ret_msg = r < 0 ? g_steal_pointer(&msg) : NULL;
        return r;
    }
    finding(f, "meta",
            "set it aside and bring unpublished files back; inode numbers change, clean files are fetched again",
            r == -ENOENT ? "the database is missing" : "the database cannot be read (%s)", msg ? msg : err_text(r));
    if (!f->repair)
        return 1;
    r = set_aside(f->dir, f->out, ret_msg);
    return r < 0 ? r : meta_open(f->dir, identity, &f->m, &fresh, ret_msg);
}

static int fsck_locked(struct fsck *f, char **ret_msg)
{
    g_autofree char *identity = read_identity(f->dir, ret_msg);
    if (!identity)
        return -EINVAL;
    int r = open_database(f, identity, ret_msg);
    if (r != 0)
        return r < 0 ? r : (int)f->left;
    r = run_checks(f);
    meta_close(f->m);
    if (r < 0)
        *ret_msg = g_strdup_printf("the check of '%s' was broken off: %s", f->dir, err_text(r));
    return r < 0 ? r : (int)f->left;
}

int fs_fsck(const char *cache_dir, bool repair, FILE *out, char **ret_msg)
{
    struct stat st;
    if (stat(cache_dir, &st) < 0 || !S_ISDIR(st.st_mode)) {
        *ret_msg = g_strdup_printf("'%s' is not a folder", cache_dir);
        return -ENOTDIR;
    }
    CLEANUP_FD int lock = -1;
    int r = cache_dir_prepare(cache_dir, &lock, ret_msg);
    if (r < 0)
        return r;
    struct fsck f = {.dir = cache_dir, .out = out, .repair = repair};
    r = fsck_locked(&f, ret_msg);
    if (r >= 0 && fflush(out) != 0)
        r = -errno;
    return r;
}
