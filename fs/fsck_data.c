/* fsck: records of the cache, data files, what belongs to them. */
#include "fsck_internal.h"
#include "rebuild.h"
#include "states.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESCUED "the folder rescued/"

/* ---- cache records and data files ---- */

int fsck_cached(void *ctx, const struct meta_cached *c)
{
    struct fsck *f = ctx;
    struct cache_scanned file;
    g_autofree char *dir = NULL;
    fsck_step(f);
    if (cache_scan_is_dying(c))
        return 0; /* the next start ends it */
    int r = cache_scan_tier(f->m, f->dir, c->tier, &dir);
    if (r == -ENODEV || (r == -ENOENT && !(c->flags & CACHED_DIRTY)))
        return 0; /* the next start settles it */
    if (r == 0)
        r = cache_scan_file(dir, c->vid, &file);
    if (r != -ENOENT)
        return r;
    g_autofree char *path = fsck_path(f, c->ino);
    fsck_finding(f, path, "remove the record", "the cache has a record of its bytes, but not the bytes");
    if (f->o->repair)
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
    g_autofree char *path = fsck_path(f, df->ino);
    fsck_finding(f, path,
                 df->has_base ? "write it again, and quarantine the file: what of it is here is not known"
                              : "write it again",
                 "the cache has no record of its bytes");
    struct meta_inode in;
    if (!f->o->repair)
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

/* What the disk of its record has of it. A copy that was cut off is as long as a whole one: for bytes that the store has not got, length is not enough. */
static bool is_there_too(struct fsck *f, const struct cache_scanned *file, const struct meta_cached *c,
                         const char **ret_why_not)
{
    struct cache_scanned other;
    g_autofree char *dir = NULL;
    bool unpublished = (c->flags & CACHED_DIRTY) || g_hash_table_contains(f->dirty, &file->vid);
    *ret_why_not = ", but is not there";
    if (cache_scan_tier(f->m, f->dir, c->tier, &dir) < 0 || cache_scan_file(dir, file->vid, &other) < 0)
        return false;
    *ret_why_not = ", but has other bytes there";
    return other.size == file->size && (!unpublished || cache_scan_same(f->at_dir, dir, file->vid) > 0);
}

/* Its record knows it on another disk. Only when it is there as well this one is of no use. */
static void check_moved(struct fsck *f, const struct cache_scanned *file, const struct meta_cached *c)
{
    const char *why_not = NULL;
    bool copy = is_there_too(f, file, c, &why_not);
    struct stray s = {file->vid, !copy};
    fsck_finding(f, file->path, copy ? "remove it" : "put it into " RESCUED, "was moved to another disk%s",
                 copy ? "" : why_not);
    g_array_append_val(f->stray, s);
}

/* Its inode was looked at, and this is the disk that its record is to name. */
static bool is_right_one(struct fsck *f, uint64_t vid)
{
    void *number = NULL;
    return g_hash_table_lookup_extended(f->right, &vid, NULL, &number) && GPOINTER_TO_UINT(number) == f->at_tier;
}

static int check_known(struct fsck *f, const struct cache_scanned *file, struct meta_cached *c)
{
    if (c->tier != f->at_tier) {
        if (!is_right_one(f, file->vid))
            check_moved(f, file, c);
        return 0;
    }
    f->disk_bytes += file->disk_bytes;
    f->noted_bytes += c->bytes;
    if (f->o->repair && c->bytes != file->disk_bytes) {
        c->bytes = file->disk_bytes;
        meta_cached_put(f->b, c);
    }
    return 0;
}

/* Of an unpublished inode that the cache has no record of. Two disks may have one. */
static int check_unrecorded(struct fsck *f, const struct dirty_file *df, const struct cache_scanned *file)
{
    uint32_t disk = f->at_tier;
    int r = fsck_bytes_disk(f, df->ino, &disk);
    if (r < 0)
        return r;
    if (disk == f->at_tier) {
        relink_file(f, df, file);
        return 0;
    }
    struct stray s = {file->vid, true};
    fsck_finding(f, file->path, "put it into " RESCUED, "another disk has the right bytes of that file");
    g_array_append_val(f->stray, s);
    return 0;
}

static int check_file(void *ctx, const struct cache_scanned *file)
{
    struct fsck *f = ctx;
    struct meta_cached c;
    fsck_step(f);
    int r = meta_cached_get(f->m, file->vid, &c);
    if (r == 0)
        return check_known(f, file, &c);
    if (r != -ENOENT)
        return r;
    const struct dirty_file *df = g_hash_table_lookup(f->dirty, &file->vid);
    if (df)
        return check_unrecorded(f, df, file);
    if (g_hash_table_contains(f->intents, &file->vid)) {
        fsck_finding(f, file->path, "bring it back",
                     "an unpublished file that the database does not know (%" G_GUINT64_FORMAT " bytes)", file->size);
        f->lost_files++;
        return 0;
    }
    struct stray s = {file->vid, file->disk_bytes > 0};
    fsck_finding(f, file->path, s.keep ? "put it into " RESCUED : "remove it",
                 "belongs to nothing (%" G_GUINT64_FORMAT " bytes on disk)", file->disk_bytes);
    g_array_append_val(f->stray, s);
    return 0;
}

static int put_aside(struct fsck *f, const char *dir, const struct stray *s)
{
    g_autofree char *to = NULL;
    if (!s->keep)
        return cache_scan_remove(dir, s->vid);
    f->n_rescued++;
    return cache_scan_rescue(dir, s->vid, &to);
}

static int check_folder(void *ctx, const char *dir, uint32_t number)
{
    struct fsck *f = ctx;
    f->at_tier = number;
    f->at_dir = dir;
    f->n_rescued = 0;
    g_array_set_size(f->stray, 0);
    int r = cache_scan_intents(dir, note_intent, f);
    if (r == 0)
        r = fsck_end_pass(f, cache_scan_files(dir, check_file, f));
    for (unsigned i = 0; r == 0 && f->o->repair && i < f->stray->len; i++)
        r = put_aside(f, dir, &g_array_index(f->stray, struct stray, i));
    if (f->n_rescued > 0)
        fsck_remark(f, dir, "%u files were put into rescued/ here; remove that folder when you miss nothing",
                    f->n_rescued);
    return r;
}

/* What fs_rebuild() says, as remarks. */
static int bring_back(struct fsck *f)
{
    char *text = NULL;
    size_t len = 0;
    unsigned n = 0;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return -errno;
    int r = fs_rebuild(f->m, f->dir, out, &n);
    if (fclose(out) != 0 && r == 0)
        r = -errno;
    g_auto(GStrv) lines = g_strsplit(text ? text : "", "\n", -1);
    for (unsigned i = 0; lines[i]; i++) {
        char *colon = strstr(lines[i], ": ");
        if (!colon)
            continue;
        *colon = '\0';
        fsck_remark(f, lines[i], "%s", colon + 2);
    }
    free(text);
    return r;
}

/* The sum decides when room is made. */
static void check_space(struct fsck *f)
{
    uint64_t a = f->disk_bytes, b = f->noted_bytes, differ = a > b ? a - b : b - a;
    if (differ > MAX(1u << 20, a / 100))
        fsck_remark(f, "space",
                    "the records say %" G_GUINT64_FORMAT " bytes, the data files take %" G_GUINT64_FORMAT "%s", b, a,
                    f->o->repair ? "; corrected" : "; opening them corrects it, or repair");
}

int fsck_data(struct fsck *f)
{
    f->disk_bytes = f->noted_bytes = 0;
    int r = cache_scan_tiers(f->m, f->dir, check_folder, f);
    if (r == 0)
        check_space(f);
    return r == 0 && f->o->repair && f->lost_files > 0 ? bring_back(f) : r;
}

/* ---- values ---- */

static int check_value(void *ctx, const char *name, const void *value, size_t len)
{
    struct fsck *f = ctx;
    struct meta_cached c;
    const char *id = strrchr(name, '/');
    uint64_t vid = strtoull(id + 1, NULL, 16);
    int r = meta_cached_get(f->m, vid, &c);
    bool awaited = r == -ENOENT && g_hash_table_contains(f->dirty, &vid); /* its disk may come back */
    if (r != -ENOENT || awaited)
        return awaited ? 0 : r;
    fsck_finding(f, name, "remove it", "belongs to a cache file that is no more");
    g_ptr_array_add(f->values, g_strdup(name));
    return 0;
}

int fsck_values(struct fsck *f)
{
    static const char *const of_files[] = {"seal/", "upload-token/", "upload-doubt/", "cache/limit/"};
    int r = 0;
    for (unsigned i = 0; r == 0 && i < G_N_ELEMENTS(of_files); i++)
        r = meta_value_each(f->m, of_files[i], check_value, f);
    for (unsigned i = 0; f->o->repair && i < f->values->len; i++)
        meta_value_del(f->b, f->values->pdata[i]);
    g_ptr_array_set_size(f->values, 0);
    return r;
}
