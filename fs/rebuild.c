/*
 * Rebuilding from intents. All intents are read first (they are as many as there were unpublished files), sorted by the order in which the files
 * were closed, and placed one batch each; so a crash in between leaves files of which the next run does the rest. The root's record is not made here: the mount
 * makes it afterwards, so a mount that finds none knows that there may be a rest.
 *
 * What an intent says is checked like any input: path, size against the file, numbers in range.
 */
#include "rebuild.h"

#include "base/clock.h"
#include "base/log.h"
#include "cache.h"
#include "cache_scan.h"
#include "links.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_LIMIT   255
#define NUMBER_LIMIT (1ull << 62)

struct intent {
    uint32_t tier; /* number of the disk */
    uint64_t vid, local_size, disk_bytes;
    bool readable; /* the text made sense */
    char *path;    /* owned; decoded, NULL unless readable */
    uint32_t mode, uid, gid;
    int64_t mtime_ns;
    uint64_t size, gen, seq, ino;
    bool open, partial, synced, twin;
    struct etag base_etag;
    char boot[40];
};

struct rebuild {
    struct meta *m;
    const char *first; /* cache folder */
    uint32_t tier;     /* number of the disk being looked through */
    const char *dir;
    FILE *out;
    GHashTable *known; /* vids that inodes have */
    GPtrArray *intents;
    unsigned n;
};

static void intent_free(void *p)
{
    struct intent *in = p;
    g_free(in->path);
    g_free(in);
}

static void say(struct rebuild *rb, const char *what, const char *path, const char *detail)
{
    if (rb->out)
        (void)fprintf(rb->out, "%s: %s (%s)\n", what, path, detail);
    else
        log_notice("rebuild", "%s path='%s' %s", what, path, detail);
}

/* ---- reading intents ---- */

static bool path_ok(const char *path)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    if (!*path)
        return false;
    for (unsigned i = 0; parts[i]; i++)
        if (!*parts[i] || strlen(parts[i]) > 4096 || g_str_equal(parts[i], ".") || g_str_equal(parts[i], ".."))
            return false;
    return true;
}

static const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

static uint64_t number_of(const json_t *o, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(o, name));
    return n > 0 && (uint64_t)n < NUMBER_LIMIT ? (uint64_t)n : 0;
}

/* Fills in from the text; false when it makes no sense. */
static bool intent_parse(struct intent *in, const char *text)
{
    json_t *o = json_loads(text, 0, NULL);
    g_autofree char *path = g_uri_unescape_string(text_of(o, "path"), NULL);
    const char *state = text_of(o, "state");
    bool ok = o && path && path_ok(path) && *state && strlen(text_of(o, "base_etag")) <= ETAG_MAX;
    if (ok) {
        in->path = g_steal_pointer(&path);
        in->mode = (uint32_t)number_of(o, "mode") & 07777;
        in->uid = (uint32_t)number_of(o, "uid");
        in->gid = (uint32_t)number_of(o, "gid");
        in->mtime_ns = json_integer_value(json_object_get(o, "mtime_ns"));
        in->size = number_of(o, "size");
        in->gen = number_of(o, "gen");
        in->seq = number_of(o, "seq");
        in->ino = number_of(o, "ino");
        in->open = g_str_equal(state, "open");
        in->partial = json_is_true(json_object_get(o, "partial")) || g_str_equal(state, "quarantined");
        in->synced = json_is_true(json_object_get(o, "synced"));
        g_strlcpy(in->base_etag.s, text_of(o, "base_etag"), sizeof(in->base_etag.s));
        g_strlcpy(in->boot, text_of(o, "boot"), sizeof(in->boot));
    }
    json_decref(o);
    return ok;
}

/* A power loss brought back what was removed. */
static bool is_dying(struct rebuild *rb, uint64_t vid)
{
    struct meta_cached rec;
    return meta_cached_get(rb->m, vid, &rec) == 0 && cache_scan_is_dying(&rec);
}

static int on_intent(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text)
{
    struct rebuild *rb = ctx;
    if (vid == 0 || vid >= NUMBER_LIMIT || g_hash_table_contains(rb->known, &vid) || is_dying(rb, vid))
        return 0;
    struct intent *in = g_new0(struct intent, 1);
    in->vid = vid;
    in->local_size = size;
    struct cache_scanned file;
    in->tier = rb->tier;
    if (cache_scan_file(rb->dir, vid, &file) == 0)
        in->disk_bytes = file.disk_bytes;
    in->readable = intent_parse(in, text);
    g_ptr_array_add(rb->intents, in);
    return 0;
}

static int on_inode(void *ctx, const struct meta_inode *in)
{
    if (in->vid)
        g_hash_table_add(ctx, g_memdup2(&in->vid, sizeof(in->vid)));
    return 0;
}

/* Order of closing; those without a journal record (open, unreadable) last. */
static int by_seq(const void *a, const void *b)
{
    const struct intent *x = *(struct intent *const *)a, *y = *(struct intent *const *)b;
    if (x->seq != y->seq)
        return x->seq == 0 ? 1 : y->seq == 0 ? -1 : x->seq < y->seq ? -1 : 1;
    return x->vid < y->vid ? -1 : x->vid > y->vid;
}

/* ---- two data files of one number ---- */

static int by_vid(const void *a, const void *b)
{
    const struct intent *x = *(struct intent *const *)a, *y = *(struct intent *const *)b;
    return x->vid != y->vid ? (x->vid < y->vid ? -1 : 1) : x->tier < y->tier ? -1 : x->tier > y->tier;
}

/* Which one is right, nobody knows: both are kept, and neither is published. 1: they are the same, so the second one is of no use. */
static int part_twins(struct rebuild *rb, struct intent *first, struct intent *second)
{
    g_autofree char *here = NULL, *there = NULL;
    int r = cache_scan_tier(rb->m, rb->first, first->tier, &here);
    if (r == 0)
        r = cache_scan_tier(rb->m, rb->first, second->tier, &there);
    if (r == 0)
        r = cache_scan_same(here, there, second->vid);
    if (r != 0)
        return r;
    uint64_t vid;
    do {
        vid = meta_next_ino(rb->m);
        r = cache_scan_renumber(there, second->vid, vid);
    } while (r == -EEXIST);
    if (r < 0)
        return r;
    second->vid = vid;
    first->twin = second->twin = true;
    return 0;
}

static int settle_twins(struct rebuild *rb)
{
    GPtrArray *list = rb->intents;
    g_ptr_array_sort(list, by_vid);
    for (guint i = 1; i < list->len;) {
        struct intent *a = list->pdata[i - 1], *b = list->pdata[i];
        int r = a->vid == b->vid ? part_twins(rb, a, b) : 0;
        if (r < 0)
            return r;
        if (r == 0)
            i++;
        else
            g_ptr_array_remove_index(list, i);
    }
    return 0;
}

static void reserve_numbers(struct rebuild *rb)
{
    uint64_t ino = META_ROOT_INO, seq = 0;
    for (unsigned i = 0; i < rb->intents->len; i++) {
        const struct intent *in = rb->intents->pdata[i];
        ino = MAX(ino, MAX(in->vid, in->ino));
        seq = MAX(seq, in->seq);
    }
    meta_reserve(rb->m, ino, seq);
}

/* ---- directories ---- */

/* A name in parent that is free: the wanted one, else with the vid behind it. Owned. */
static int free_name(struct rebuild *rb, uint64_t parent, const char *want, uint64_t vid, char **ret)
{
    struct meta_dentry d = {0};
    int r = meta_dentry_get(rb->m, parent, want, &d);
    if (r == -ENOENT) {
        *ret = g_strdup(want);
        return 0;
    }
    if (r < 0)
        return r;
    meta_dentry_clear(&d);
    *ret = g_strdup_printf("%.*s.recovered-%" G_GINT64_MODIFIER "x", NAME_LIMIT - 32, want, vid);
    return 0;
}

static int make_dir(struct rebuild *rb, uint64_t parent, const char *name, const struct intent *in, uint64_t *ret_ino)
{
    int64_t now = clock_wall_ns();
    struct meta_inode dir = {.ino = meta_next_ino(rb->m),
                             .mode = S_IFDIR | 0755,
                             .uid = in->uid,
                             .gid = in->gid,
                             .nlink = 1,
                             .parent = parent,
                             .mtime_ns = now,
                             .ctime_ns = now};
    g_autofree char *own = g_strdup(name);
    struct meta_dentry d = {.parent = parent, .name = own, .ino = dir.ino, .type = S_IFDIR, .flags = DENTRY_IMPLICIT};
    struct meta_batch *b = meta_batch_new(rb->m);
    meta_inode_put(b, &dir);
    meta_dentry_put(b, &d);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    if (r == 0)
        *ret_ino = dir.ino;
    return r;
}

/* The directory of one path component, made if it is not there; a file in its place makes it another name. */
static int enter_dir(struct rebuild *rb, uint64_t *dir, const char *name, const struct intent *in)
{
    struct meta_dentry d = {0};
    int r = meta_dentry_get(rb->m, *dir, name, &d);
    bool is_dir = r == 0 && S_ISDIR(d.type);
    uint64_t ino = d.ino;
    if (r == 0)
        meta_dentry_clear(&d);
    if (is_dir) {
        *dir = ino;
        return 0;
    }
    if (r < 0 && r != -ENOENT)
        return r;
    g_autofree char *own = NULL;
    r = free_name(rb, *dir, name, in->vid, &own);
    return r < 0 ? r : make_dir(rb, *dir, own, in, dir);
}

/* ---- files ---- */

/* Why the bytes cannot be trusted; NULL when they can. */
static const char *doubt(const struct intent *in)
{
    if (!in->readable)
        return "its intent cannot be read";
    if (in->twin)
        return "another cache disk has other bytes of it";
    if (in->partial)
        return "parts of it were still in the store only";
    if (!in->open && in->size != in->local_size)
        return "its size is not what it was when it was closed";
    return NULL;
}

static uint64_t choose_ino(struct rebuild *rb, const struct intent *in)
{
    struct meta_inode taken;
    int r = in->ino > META_ROOT_INO ? meta_inode_get(rb->m, in->ino, &taken) : -EINVAL;
    if (r == -ENOENT)
        return in->ino;
    if (r == 0)
        meta_inode_clear(&taken);
    return meta_next_ino(rb->m);
}

static struct meta_inode file_record(struct rebuild *rb, const struct intent *in, bool doubted)
{
    int64_t now = clock_wall_ns();
    struct meta_inode rec = {
        .ino = choose_ino(rb, in),
        .mode = S_IFREG | (in->readable ? in->mode : 0600),
        .uid = in->readable ? in->uid : geteuid(),
        .gid = in->readable ? in->gid : getegid(),
        .nlink = 1,
        .flags = INODE_MODE_KNOWN | INODE_MTIME_KNOWN | INODE_HEADED | (in->synced ? (uint32_t)INODE_DATA_SYNCED : 0),
        .size = in->local_size,
        .mtime_ns = in->mtime_ns ? in->mtime_ns : now,
        .ctime_ns = now,
        .vid = in->vid,
        .gen = MAX(in->gen, 1),
        .content = doubted    ? CONTENT_QUARANTINED
                   : in->open ? CONTENT_OPEN
                              : CONTENT_SEALED,
        .dirty_since_ns = now,
    };
    g_strlcpy(rec.boot_id, in->boot, sizeof(rec.boot_id));
    return rec;
}

static void put_journal(struct rebuild *rb, struct meta_batch *b, struct meta_dentry *d, bool doubted)
{
    struct meta_op op = {
        .seq = meta_next_seq(rb->m),
        .kind = OP_SYNC,
        .state = doubted ? OPS_PARKED : OPS_QUEUED,
        .err = doubted ? EUCLEAN : 0,
        .parent = d->parent,
        .name = d->name,
        .created_ns = clock_wall_ns(),
    };
    meta_op_put(b, &op);
    d->op_seq = op.seq;
}

static int put_file(struct rebuild *rb, const struct intent *in, uint64_t parent, char *name)
{
    bool doubted = doubt(in) != NULL;
    struct meta_inode rec = file_record(rb, in, doubted);
    struct meta_dentry d = {.parent = parent, .name = name, .ino = rec.ino, .type = S_IFREG};
    d.flags = etag_is_set(&in->base_etag) ? DENTRY_UPSTREAM : DENTRY_DEST_KNOWN;
    d.uetag = in->base_etag;
    struct meta_batch *b = meta_batch_new(rb->m);
    d.stamp = meta_next_seq(rb->m);
    if (rec.content == CONTENT_OPEN) { /* the start keeps it here until its next close, as after any crash */
        char open_name[32];
        g_snprintf(open_name, sizeof(open_name), "open/%016" G_GINT64_MODIFIER "x", rec.ino);
        meta_value_put(b, open_name, "", 0);
    } else {
        put_journal(rb, b, &d, doubted);
    }
    meta_inode_put(b, &rec);
    meta_dentry_put(b, &d);
    struct meta_cached c = {.vid = in->vid,
                            .ino = rec.ino,
                            .bytes = in->disk_bytes,
                            .flags = CACHED_DIRTY | CACHED_COMPLETE,
                            .tier = in->tier};
    meta_cached_put(b, &c);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

static int place(struct rebuild *rb, struct intent *in)
{
    if (!in->path)
        in->path = g_strdup_printf("recovered-%" G_GINT64_MODIFIER "x", in->vid);
    g_auto(GStrv) parts = g_strsplit(in->path, "/", -1);
    uint64_t dir = META_ROOT_INO;
    int r = 0;
    unsigned last = g_strv_length(parts) - 1;
    for (unsigned i = 0; r == 0 && i < last; i++)
        r = enter_dir(rb, &dir, parts[i], in);
    g_autofree char *name = NULL;
    if (r == 0)
        r = free_name(rb, dir, parts[last], in->vid, &name);
    if (r == 0)
        r = put_file(rb, in, dir, name);
    if (r < 0)
        return r;
    const char *why = doubt(in);
    g_autofree char *bytes = g_strdup_printf("%" G_GUINT64_FORMAT " bytes%s%s", in->local_size,
                                             g_str_equal(name, parts[last]) ? "" : ", its name was taken: now ",
                                             g_str_equal(name, parts[last]) ? "" : name);
    say(rb, why ? "quarantined" : "brought back", in->path, why ? why : bytes);
    rb->n++;
    return 0;
}

static int look_through(void *ctx, const char *dir, uint32_t tier)
{
    struct rebuild *rb = ctx;
    rb->dir = dir;
    rb->tier = tier;
    return cache_scan_intents(dir, on_intent, rb);
}

int fs_rebuild(struct meta *m, const char *cache_dir, FILE *out, unsigned *ret_n)
{
    g_autoptr(GHashTable) known = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
    g_autoptr(GPtrArray) intents = g_ptr_array_new_with_free_func(intent_free);
    struct rebuild rb = {.m = m, .first = cache_dir, .out = out, .known = known, .intents = intents};
    int r = links_restore_copy(m, cache_dir);
    if (r == 0)
        r = meta_inode_each(m, on_inode, known);
    if (r == 0)
        r = cache_scan_tiers(m, cache_dir, look_through, &rb);
    if (r < 0)
        return r;
    reserve_numbers(&rb);
    r = settle_twins(&rb);
    g_ptr_array_sort(intents, by_seq);
    for (unsigned i = 0; r == 0 && i < intents->len; i++)
        r = place(&rb, intents->pdata[i]);
    if (r == 0 && rb.n > 0)
        r = meta_sync(m);
    if (r < 0)
        return r;
    *ret_n = rb.n;
    return 0;
}
