/*
 * See adopt.h. A database that was made when a lost disk was not there has given numbers that data files of the disk have as well, from the database before. Such a file with unpublished bytes gets
 * another number first: as it is, it would be taken for an old copy of what has its number now.
 */
#include "adopt.h"

#include "base/log.h"
#include "cache_disks.h"
#include "cache_scan.h"

/* ---- numbers that both databases gave ---- */

struct apart {
    struct adopt *a;
    const char *dir;
    uint32_t number;
    uint64_t max; /* of all data files */
    GArray *vids; /* uint64_t: to get other ones */
};

static int on_file(void *ctx, const struct cache_scanned *file)
{
    struct apart *p = ctx;
    p->max = MAX(p->max, file->vid);
    return 0;
}

/* Whether a data file of another disk has the number, and other bytes. */
static int is_taken(const struct apart *p, uint64_t vid)
{
    struct meta_cached c;
    g_autofree char *dir = NULL;
    int r = meta_cached_get(p->a->m, vid, &c);
    if (r < 0 || c.tier == p->number)
        return r == -ENOENT ? 0 : r;
    r = cache_scan_tier(p->a->m, p->a->first, c.tier, &dir);
    if (r == 0)
        r = cache_scan_same(p->dir, dir, vid);
    return r == -ENOENT || r == -ENODEV ? 1 : r < 0 ? r : !r;
}

static int on_intent(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text)
{
    struct apart *p = ctx;
    int r = is_taken(p, vid);
    if (r > 0)
        g_array_append_val(p->vids, vid);
    return MIN(r, 0);
}

static int renumber(const struct apart *p)
{
    int r = 0;
    if (p->vids->len > 0)
        meta_reserve(p->a->m, p->max, 0);
    for (guint i = 0; r == 0 && i < p->vids->len; i++) {
        uint64_t vid = g_array_index(p->vids, uint64_t, i), to = meta_next_ino(p->a->m);
        r = cache_scan_renumber(p->dir, vid, to);
        if (r == 0)
            log_info("adopt", "a data file whose number was given again has another one dir='%s' vid=%lx to=%lx",
                     p->dir, (unsigned long)vid, (unsigned long)to);
    }
    return r;
}

static int set_apart(struct adopt *a, const char *dir, uint32_t number)
{
    g_autoptr(GArray) vids = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    struct apart p = {.a = a, .dir = dir, .number = number, .vids = vids};
    int r = cache_scan_files(dir, on_file, &p);
    if (r == 0)
        r = cache_scan_intents(dir, on_intent, &p);
    return r < 0 ? r : renumber(&p);
}

/* ---- disks ---- */

static bool is_given(const struct adopt *a, const char *dir)
{
    for (unsigned i = 0; a->given && a->given[i]; i++)
        if (g_str_equal(a->given[i], dir))
            return true;
    return false;
}

static void tell_absent(const struct adopt *a, const struct cache_disk *d)
{
    g_autofree char *file = g_build_filename(a->first, "disks", NULL);
    g_autofree char *why = g_strdup_printf(
        "this cache disk is not there, and only a database that was lost knew which unpublished files are on it: bring it back, "
        "then mount (with --cache-dir, if it has another path now) or run `sluice fsck --repair %s`, which bring them "
        "back; if it is lost for good, remove its line, \"%s %u ...\", from %s",
        a->first, (const char *)d->uuids->pdata[0], d->number, file);
    a->tell(a->ctx, d->path, why);
}

static int take(struct adopt *a, const struct cache_disk *d, const char *dir, char **ret_msg)
{
    g_autofree char *msg = NULL;
    int r = a->dry ? 0 : cache_disk_adopt(a->m, a->first, d, dir, &msg);
    if (r == 0 && !a->dry)
        r = set_apart(a, dir, d->number);
    if (r == 0) {
        if (!a->dry)
            g_array_append_val(a->taken, d->number);
        a->tell(a->ctx, dir, NULL);
        return 0;
    }
    g_autofree char *why = g_strdup_printf(
        "this cache disk is one that a lost database knew, and cannot be taken over: %s", msg ? msg : err_text(r));
    if (is_given(a, dir) || r == -EBADMSG) {
        *ret_msg = g_strdup_printf("'%s': %s", dir, why);
        return r;
    }
    a->tell(a->ctx, dir, why);
    return 0;
}

int adopt_disks(struct adopt *a, char **ret_msg)
{
    g_autoptr(GPtrArray) lost = NULL;
    int r = cache_disks_lost(a->m, a->first, &lost);
    if (r < 0)
        *ret_msg = g_strdup_printf("'%s/disks' cannot be read: %s", a->first, err_text(r));
    for (guint i = 0; r == 0 && i < lost->len; i++) {
        const struct cache_disk *d = lost->pdata[i];
        g_autofree char *dir = cache_disk_find(d, a->given);
        if (dir)
            r = take(a, d, dir, ret_msg);
        else
            tell_absent(a, d);
    }
    return r;
}

int adopt_end(const struct adopt *a)
{
    int r = 0;
    for (guint i = 0; r == 0 && i < a->taken->len; i++)
        r = cache_disk_adopted(a->m, a->first, g_array_index(a->taken, uint32_t, i));
    return r;
}

void adopt_init(struct adopt *a)
{
    a->taken = g_array_new(FALSE, FALSE, sizeof(uint32_t));
}

void adopt_fini(struct adopt *a)
{
    g_array_unref(a->taken);
}
