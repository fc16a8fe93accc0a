/*
 * fsck: the bytes of unpublished files.
 *
 * Several disks may have a data file of one version, of which at most one is right: a copy that was cut off is as long as a whole one. What was closed has
 * checksums if it waited for more than a few seconds (cache_sums.h): they tell. Where nothing does, the file is quarantined, as any choice could publish the wrong one.
 */
#include "cache_sums.h"
#include "fsck_internal.h"

#include <string.h>

/* A disk that has a data file of the version. */
struct holder {
    char *dir; /* owned */
    uint32_t number;
    struct cache_scanned file;
};

static void holder_clear(void *h)
{
    g_free(((struct holder *)h)->dir);
}

struct search {
    uint64_t vid;
    GArray *holders;
};

static int on_disk(void *ctx, const char *dir, uint32_t number)
{
    struct search *s = ctx;
    struct holder h = {.number = number};
    int r = cache_scan_file(dir, s->vid, &h.file);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    h.dir = g_strdup(dir);
    g_array_append_val(s->holders, h);
    return 0;
}

static GArray *holders_new(void)
{
    GArray *a = g_array_new(FALSE, FALSE, sizeof(struct holder));
    g_array_set_clear_func(a, holder_clear);
    return a;
}

static int find_holders(struct fsck *f, uint64_t vid, GArray *holders)
{
    struct search s = {vid, holders};
    return cache_scan_tiers(f->m, f->dir, on_disk, &s);
}

/* ---- which one is right ---- */

enum verdict { WRONG, MAYBE, RIGHT };

static int judge(struct fsck *f, const struct meta_inode *in, const struct holder *h, enum verdict *ret)
{
    uint64_t at;
    *ret = MAYBE;
    if (in->content != CONTENT_SEALED)
        return 0;
    *ret = WRONG;
    if (h->file.size != in->size)
        return 0;
    int r = cache_sums_check_file(f->m, h->dir, in->vid, in->gen, &at);
    if (r >= 0)
        *ret = r ? RIGHT : MAYBE;
    return r == -EBADMSG ? 0 : MIN(r, 0);
}

/* The first one that is right; else the first of which that is not known; else the first. 1: there are several such, with different bytes. */
static int choose(struct fsck *f, const struct meta_inode *in, const GArray *holders, const struct holder **ret)
{
    const struct holder *maybe = NULL;
    bool differ = false;
    for (guint i = 0; i < holders->len; i++) {
        const struct holder *h = &g_array_index(holders, struct holder, i);
        enum verdict v;
        int r = judge(f, in, h, &v);
        if (r == 0 && v == MAYBE && maybe) {
            r = h->file.size == maybe->file.size ? cache_scan_same(maybe->dir, h->dir, in->vid) : 0;
            differ |= r == 0;
        }
        if (r < 0)
            return r;
        if (v == RIGHT) {
            *ret = h;
            return 0;
        }
        if (v == MAYBE && !maybe)
            maybe = h;
    }
    *ret = maybe ? maybe : &g_array_index(holders, struct holder, 0);
    return differ;
}

/* Another disk than the record's that has what was closed. 1: one has; 0: none is known to. */
static int right_elsewhere(struct fsck *f, const struct meta_inode *in, uint32_t disk, char **ret_dir,
                           uint32_t *ret_disk)
{
    g_autoptr(GArray) holders = holders_new();
    int r = in->content == CONTENT_SEALED ? find_holders(f, in->vid, holders) : 0;
    for (guint i = 0; r == 0 && i < holders->len; i++) {
        const struct holder *h = &g_array_index(holders, struct holder, i);
        enum verdict v = WRONG;
        r = h->number == disk ? 0 : judge(f, in, h, &v);
        if (r < 0 || v != RIGHT)
            continue;
        g_free(*ret_dir);
        *ret_dir = g_strdup(h->dir);
        *ret_disk = h->number;
        return 1;
    }
    return r;
}

int fsck_bytes_disk(struct fsck *f, uint64_t ino, uint32_t *ret)
{
    g_autoptr(GArray) holders = holders_new();
    const struct holder *h = NULL;
    struct meta_inode in;
    int r = meta_inode_get(f->m, ino, &in);
    if (r < 0)
        return r;
    r = find_holders(f, in.vid, holders);
    if (r == 0 && holders->len > 0)
        r = choose(f, &in, holders, &h);
    if (h)
        *ret = h->number;
    meta_inode_clear(&in);
    return MIN(r, 0);
}

/* ---- what is wrong ---- */

struct place {
    struct cache_scanned file;
    uint32_t disk;
    bool anywhere; /* the cache has no record of it: on any disk */
    bool differ;   /* several have it, and nobody can tell which is right */
};

static int find_anywhere(struct fsck *f, const struct meta_inode *in, struct place *p, char **ret_dir)
{
    g_autoptr(GArray) holders = holders_new();
    const struct holder *h = NULL;
    int r = find_holders(f, in->vid, holders);
    if (r < 0 || holders->len == 0)
        return r < 0 ? r : cache_scan_find(f->m, f->dir, in->vid, &p->file, ret_dir);
    r = choose(f, in, holders, &h);
    if (r < 0) {
        *ret_dir = g_strdup(f->dir);
        return r;
    }
    p->differ = r > 0;
    p->file = h->file;
    p->disk = h->number;
    *ret_dir = g_strdup(h->dir);
    return 0;
}

/* The data file on the disk that its record says. -ENODEV: the disk is not there. Without a record: on any disk; -ENODEV: one that may have it is not there. */
static int find_bytes(struct fsck *f, const struct meta_inode *in, struct place *p, char **ret_dir)
{
    struct meta_cached c;
    int r = meta_cached_get(f->m, in->vid, &c);
    p->anywhere = r == -ENOENT;
    if (p->anywhere)
        return find_anywhere(f, in, p, ret_dir);
    p->disk = c.tier;
    if (r == 0)
        r = cache_scan_tier(f->m, f->dir, c.tier, ret_dir);
    return r < 0 ? r : cache_scan_file(*ret_dir, in->vid, &p->file);
}

/* It may be read another time. */
static char *cannot_be(const char *what, int r)
{
    return g_strdup_printf(
        "unpublished, but its bytes cannot be %s: %s; it is left as it is: look after the disk, then "
        "run fsck again",
        what, err_text(r));
}

static char *not_there(const struct place *p, const char *dir)
{
    if (p->anywhere)
        return g_strdup_printf(
            "unpublished, and the cache has no record of its bytes; they may be on the cache disk %s, "
            "which is not there: bring it back, then run fsck again",
            dir);
    return g_strdup_printf(
        "unpublished, and its bytes are on the cache disk %s, which is not there: bring it back, then run fsck "
        "again (mount with it first, if it has another path now)",
        dir);
}

/* Of the file at p. NULL: it is as it was closed, or it is open: then it may grow, and the start takes its size. */
static char *content_fault(struct fsck *f, const struct meta_inode *in, const struct place *p, const char *dir,
                           enum bytes_state *ret)
{
    uint64_t at = 0;
    *ret = BYTES_LOST;
    if (p->differ)
        return g_strdup("unpublished, and several cache disks have a data file of it, with different bytes: nothing "
                        "tells which are right");
    if (in->content != CONTENT_SEALED)
        return NULL;
    if (p->file.size != in->size)
        return g_strdup_printf("unpublished, %" G_GUINT64_FORMAT " bytes when closed, now %" G_GUINT64_FORMAT, in->size,
                               p->file.size);
    int r = cache_sums_check_file(f->m, dir, in->vid, in->gen, &at);
    if (r == -EBADMSG)
        return g_strdup_printf(
            "unpublished, and the disk changed it after it was closed: wrong checksum at offset %" G_GUINT64_FORMAT,
            at);
    *ret = BYTES_UNKNOWN;
    return r < 0 ? cannot_be("read", r) : NULL;
}

static char *recorded_fault(struct fsck *f, const struct meta_inode *in, struct place *p, char **ret_dir,
                            enum bytes_state *ret)
{
    int r = find_bytes(f, in, p, ret_dir);
    *ret = BYTES_UNKNOWN;
    if (r == -ENODEV)
        return not_there(p, *ret_dir);
    if (r < 0 && r != -ENOENT)
        return cannot_be("looked at", r);
    if (r == 0)
        return content_fault(f, in, p, *ret_dir, ret);
    *ret = BYTES_LOST;
    return g_strdup("unpublished, but its bytes are gone");
}

char *fsck_bytes_fault(struct fsck *f, const struct meta_inode *in, char **ret_dir, uint32_t *ret_disk,
                       enum bytes_state *ret)
{
    struct place p = {0};
    *ret = BYTES_LOST;
    if (in->vid == 0)
        return in->size > 0 && !in->base_key ? g_strdup("its bytes were never stored") : NULL;
    char *fault = recorded_fault(f, in, &p, ret_dir, ret);
    *ret_disk = p.disk;
    if (!fault || *ret != BYTES_LOST || p.anywhere)
        return fault;
    int r = right_elsewhere(f, in, p.disk, ret_dir, ret_disk);
    if (r == 0)
        return fault;
    g_free(fault);
    *ret = r < 0 ? BYTES_UNKNOWN : BYTES_OTHER;
    return r < 0
               ? cannot_be("looked at", r)
               : g_strdup_printf("unpublished, and the cache disk %s has what was closed, not the one that its record "
                                 "names",
                                 *ret_dir);
}
