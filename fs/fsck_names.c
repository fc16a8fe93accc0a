/* fsck: journal records, inodes, names and conflicts. */
#include "base/clock.h"
#include "conflict.h"
#include "fsck_internal.h"
#include "intent.h"
#include "local.h"
#include "states.h"

#include <stdlib.h>
#include <sys/stat.h>

/* ---- journal ---- */

static void tell_unpublished(struct fsck *f, uint64_t parent, const char *name)
{
    g_autofree char *path = fsck_path_of_name(f, parent, name);
    fsck_remark(f, path, "not yet published");
}

int fsck_op(void *ctx, const struct meta_op *op)
{
    struct fsck *f = ctx;
    if (op->kind != OP_SYNC) {
        fsck_remark(f, op->key, "not yet removed from the store");
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
    g_autofree char *path = fsck_path_of_name(f, op->parent, op->name);
    fsck_finding(f, path, "remove the journal record", "journal record %" G_GUINT64_FORMAT " belongs to no name",
                 op->seq);
    if (f->o->repair)
        meta_op_del(f->b, op->seq);
    return 0;
}

/* ---- inodes and names ---- */

/* Who asks for the name comes to d: 1; to another one or to nothing: 0, *ret_other is that one or has no id. */
static int leads_to(struct fsck *f, const struct meta_dentry *d, struct meta_dentry *ret_other)
{
    struct meta_dentry at = {0};
    int r = meta_dentry_get(f->m, d->parent, d->name, &at);
    if (r < 0 && r != -ENOENT)
        return r;
    bool same = r == 0 && at.id == d->id;
    if (ret_other && !same)
        *ret_other = at;
    else
        meta_dentry_clear(&at);
    return same;
}

struct links {
    struct fsck *f;
    unsigned n, n_found; /* all, and those that one comes to by their name */
};

static int count_link(void *ctx, const struct meta_dentry *d)
{
    struct links *l = ctx;
    int r = leads_to(l->f, d, NULL);
    l->n++;
    l->n_found += r > 0;
    return MIN(r, 0);
}

static int check_links(struct fsck *f, const struct meta_inode *in)
{
    struct links l = {.f = f};
    int r = meta_link_each(f->m, in->ino, count_link, &l);
    unsigned n = l.n_found ? l.n_found : l.n;
    if (r < 0 || n == in->nlink)
        return r;
    g_autofree char *path = fsck_path(f, in->ino);
    fsck_finding(f, path, "set the count", "%u names, but a link count of %u", n, in->nlink);
    if (!f->o->repair)
        return 0;
    struct meta_inode fixed = *in; /* shares the strings during this call */
    fixed.nlink = n;
    meta_inode_put(f->b, &fixed);
    return 0;
}

/* An unpublished file whose bytes are in order: its intent is what brings it back without the database. */
static int check_intent(struct fsck *f, const struct meta_inode *in, const char *dir)
{
    struct meta_dentry d = {0};
    struct meta_cached c;
    int has = in->vid && dir && !(in->flags & INODE_SET_ASIDE) ? cache_scan_has_intent(dir, in->vid) : 1;
    if (has != 0 || meta_link_first(f->m, in->ino, &d) < 0)
        return 0;
    g_autofree char *path = fsck_path_of_name(f, d.parent, d.name);
    fsck_finding(
        f, path, "write it again",
        "the intent beside its data is missing: without the database nobody would know whose bytes %s/data/%02x/%016" G_GINT64_MODIFIER
        "x holds",
        dir, (unsigned)(in->vid & 0xff), in->vid);
    bool partial = in->base_key && !(meta_cached_get(f->m, in->vid, &c) == 0 && (c.flags & CACHED_COMPLETE));
    char *text = intent_text(in, path, &d, partial);
    int r = f->o->repair && text ? cache_scan_set_intent(dir, in->vid, text) : 0;
    free(text);
    meta_dentry_clear(&d);
    return r;
}

static void note_dirty(struct fsck *f, const struct meta_inode *in)
{
    struct dirty_file df = {in->vid, in->ino, in->base_key != NULL};
    struct dirty_file *own = g_memdup2(&df, sizeof(df));
    g_hash_table_insert(f->dirty, &own->vid, own);
}

static bool is_kept_here(struct fsck *f, const struct meta_inode *in)
{
    char name[32];
    GBytes *value = NULL;
    g_snprintf(name, sizeof(name), LOCAL_VALUE_PREFIX "%016" G_GINT64_MODIFIER "x", in->ino);
    bool found = meta_value_get(f->m, name, &value) == 0;
    if (found)
        g_bytes_unref(value);
    return found;
}

/* The record names that disk from here on; what the other one has is put aside as what a move left (fsck_data.c). */
static int take_others(struct fsck *f, const struct meta_inode *in, const char *path, const char *fault, uint32_t disk)
{
    struct meta_cached c;
    fsck_finding(f, path, "take those", "%s", fault);
    g_hash_table_insert(f->right, g_memdup2(&in->vid, sizeof(in->vid)), GUINT_TO_POINTER(disk));
    int r = f->o->repair ? meta_cached_get(f->m, in->vid, &c) : -ENOENT;
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    c.tier = disk;
    meta_cached_put(f->b, &c);
    return 0;
}

static int check_bytes(struct fsck *f, const struct meta_inode *in)
{
    if (in->content == CONTENT_CLEAN)
        return 0;
    g_autofree char *path = fsck_path(f, in->ino), *dir = NULL;
    if (in->vid)
        note_dirty(f, in);
    if (in->content == CONTENT_QUARANTINED) {
        fsck_remark(f, path, "quarantined; its bytes are kept and never published");
        return 0;
    }
    if (in->content == CONTENT_OPEN) /* no journal record tells of it */
        fsck_remark(f, path, "not yet published, its writer never closed it");
    else if (is_kept_here(f, in))
        fsck_remark(f, path, "kept here only, as a local-only rule said");
    enum bytes_state state;
    uint32_t disk = 0;
    g_autofree char *fault = fsck_bytes_fault(f, in, &dir, &disk, &state);
    if (!fault)
        return check_intent(f, in, dir);
    if (state == BYTES_OTHER)
        return take_others(f, in, path, fault, disk);
    bool lost = state == BYTES_LOST;
    fsck_finding(f, path, lost ? "quarantine it: visible, never published" : NULL, "%s", fault);
    struct meta_inode fixed = *in; /* shares the strings during this call */
    if (f->o->repair && lost && content_quarantine(&fixed))
        meta_inode_put(f->b, &fixed);
    return 0;
}

/* A file's record at a place that its name does not stand for: a second one, which goes, or its only one. 1: it is so. */
static int check_place(struct fsck *f, const struct meta_dentry *d)
{
    struct meta_dentry other = {0};
    struct links l = {.f = f};
    int r = leads_to(f, d, &other);
    if (r != 0)
        return MIN(r, 0);
    r = meta_link_each(f->m, d->ino, count_link, &l);
    if (r < 0) {
        meta_dentry_clear(&other);
        return r;
    }
    bool second = l.n_found > 0, free = other.id == 0;
    g_autofree char *path = fsck_path_of_name(f, d->parent, d->name);
    fsck_finding(f, path,
                 second ? "remove it from the listing"
                 : free ? "write it again"
                        : NULL,
                 "listed for inode %" G_GUINT64_FORMAT ", but the name %s", d->ino,
                 free ? "leads to nothing"
                 : second
                     ? "is another file's"
                     : "is another file's; rename that one in the mount, then repair gives this one its name back");
    struct meta_dentry fixed = *d; /* shares the strings during this call */
    if (f->o->repair && second)
        meta_dentry_del(f->b, d);
    if (f->o->repair && second && !free)
        meta_dentry_put(f->b, &other); /* the one that is found there */
    else if (f->o->repair && !second && free)
        meta_dentry_put(f->b, &fixed);
    meta_dentry_clear(&other);
    return 1;
}

int fsck_name(void *ctx, const struct meta_dentry *d)
{
    struct fsck *f = ctx;
    struct meta_inode in;
    int r = check_place(f, d);
    if (r != 0)
        return MIN(r, 0);
    r = meta_inode_get(f->m, d->ino, &in);
    if (r == 0)
        meta_inode_clear(&in);
    if (r == -ENOENT) {
        g_autofree char *path = fsck_path_of_name(f, d->parent, d->name);
        fsck_finding(f, path, "remove the name", "there is no inode %" G_GUINT64_FORMAT, d->ino);
        if (f->o->repair)
            meta_dentry_del(f->b, d);
        return 0;
    }
    if (r < 0 || d->op_seq == 0 || g_hash_table_contains(f->op_seqs, &d->op_seq))
        return r;
    g_autofree char *path = fsck_path_of_name(f, d->parent, d->name);
    fsck_finding(f, path, "write it again", "waits for journal record %" G_GUINT64_FORMAT ", which is not there",
                 d->op_seq);
    if (f->o->repair) {
        struct meta_op op = {
            .seq = d->op_seq, .kind = OP_SYNC, .parent = d->parent, .name = d->name, .created_ns = clock_wall_ns()};
        if (d->parent == META_ASIDE_INO)
            op.state = OPS_CONFLICT;
        meta_op_put(f->b, &op);
    }
    return 0;
}

int fsck_inode(void *ctx, const struct meta_inode *in)
{
    struct fsck *f = ctx;
    fsck_step(f);
    if (S_ISDIR(in->mode))
        return meta_dentry_each(f->m, in->ino, 0, fsck_name, f);
    if (in->flags & INODE_ORPHAN)
        return 0; /* removed while open: the next start drops it */
    int r = S_ISREG(in->mode) ? check_bytes(f, in) : 0;
    return r < 0 ? r : check_links(f, in);
}

static int check_conflict(void *ctx, const struct conflict *c)
{
    struct fsck *f = ctx;
    struct meta_dentry d = {0};
    int r = conflict_name(f->m, c->id, &d);
    meta_dentry_clear(&d);
    if (r == 0)
        fsck_remark(f, c->path, "conflict %" G_GUINT64_FORMAT "; our copy is kept, see `sluice conflicts`", c->id);
    if (r != -ENOENT)
        return r;
    fsck_finding(f, c->path, "remove the record", "conflict %" G_GUINT64_FORMAT " has no copy of ours", c->id);
    if (f->o->repair)
        conflict_del(f->b, c->id);
    return 0;
}

int fsck_conflicts(struct fsck *f)
{
    return conflict_each(f->m, check_conflict, f);
}
