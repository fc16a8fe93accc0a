/*
 * See cache_disks.h. Adopting a lost disk, and what a kill in between leaves:
 *
 *   the new uuid is added to its line                     a lost disk
 *   the disk's id gets the new uuid                       a lost disk: its line has the old one as well
 *   the database gets the value cache/tier/N, synced      the same
 *   its unpublished files are brought back (the caller)   the same; what is there already is not brought back again
 *   the old uuids go from its line
 */
#include "cache_disks.h"

#include "base/cleanup.h"
#include "base/crash.h"
#include "cache.h"
#include "cache_tier.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DISKS_FILE "disks"
#define PLAIN      "/+,=@"

static int fail_msg(int r, char **ret_msg, char *msg)
{
    *ret_msg = msg;
    return r;
}

/* ---- the file ---- */

static void disk_free(void *p)
{
    struct cache_disk *d = p;
    g_ptr_array_unref(d->uuids);
    g_free(d->path);
    g_free(d);
}

/* path is taken over. */
static struct cache_disk *disk_new(const char *uuids, uint32_t number, char *path)
{
    struct cache_disk *d = g_new0(struct cache_disk, 1);
    d->uuids = g_ptr_array_new_with_free_func(g_free);
    g_auto(GStrv) list = g_strsplit(uuids, ",", -1);
    for (unsigned i = 0; list[i]; i++)
        if (*list[i])
            g_ptr_array_add(d->uuids, g_strdup(list[i]));
    d->number = number;
    d->path = path;
    return d;
}

static struct cache_disk *disk_parse(const char *line)
{
    g_auto(GStrv) words = g_strsplit(line, " ", 3);
    uint64_t number = g_strv_length(words) == 3 ? g_ascii_strtoull(words[1], NULL, 10) : 0;
    if (number == 0 || number >= TIER_NUMBER_MEMORY || !*words[0] || !*words[2])
        return disk_new("", 0, g_strdup(line));
    char *path = g_uri_unescape_string(words[2], NULL);
    struct cache_disk *d = disk_new(words[0], (uint32_t)number, path ? path : g_strdup(words[2]));
    if (d->uuids->len > 0)
        return d;
    disk_free(d);
    return disk_new("", 0, g_strdup(line));
}

static char *file_path(const char *first)
{
    return g_build_filename(first, DISKS_FILE, NULL);
}

static int io_error(const GError *err)
{
    return err->code == G_FILE_ERROR_NOSPC ? -ENOSPC : -EIO;
}

int cache_disks_load(const char *first, GPtrArray **ret)
{
    g_autofree char *path = file_path(first), *text = NULL;
    g_autoptr(GError) err = NULL;
    bool none = !g_file_get_contents(path, &text, NULL, &err);
    if (none && !g_error_matches(err, G_FILE_ERROR, G_FILE_ERROR_NOENT))
        return io_error(err);
    GPtrArray *disks = g_ptr_array_new_with_free_func(disk_free);
    g_auto(GStrv) lines = g_strsplit(none ? "" : text, "\n", -1);
    for (unsigned i = 0; lines[i]; i++)
        if (*lines[i])
            g_ptr_array_add(disks, disk_parse(lines[i]));
    *ret = disks;
    return none;
}

static char *disks_text(const GPtrArray *disks)
{
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < disks->len; i++) {
        const struct cache_disk *d = disks->pdata[i];
        g_autofree char *path = d->number ? g_uri_escape_string(d->path, PLAIN, FALSE) : NULL;
        if (!path) {
            g_string_append_printf(text, "%s\n", d->path);
            continue;
        }
        for (guint k = 0; k < d->uuids->len; k++)
            g_string_append_printf(text, "%s%s", k ? "," : "", (const char *)d->uuids->pdata[k]);
        g_string_append_printf(text, " %u %s\n", d->number, path);
    }
    return g_string_free(text, FALSE);
}

static int put_file(const char *path, const char *text)
{
    g_autoptr(GError) err = NULL;
    int flags = G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE;
    return g_file_set_contents_full(path, text, -1, flags, 0600, &err) ? 0 : io_error(err);
}

static int disks_store(const char *first, const GPtrArray *disks)
{
    g_autofree char *path = file_path(first), *text = disks_text(disks), *old = NULL;
    if (g_file_get_contents(path, &old, NULL, NULL) && g_str_equal(old, text))
        return 0;
    return put_file(path, text);
}

static bool names(const struct cache_disk *d, const char *uuid)
{
    for (guint i = 0; i < d->uuids->len; i++)
        if (g_str_equal(d->uuids->pdata[i], uuid))
            return true;
    return false;
}

/* NULL: the database of uuid has none of this number. */
static struct cache_disk *disk_of(const GPtrArray *disks, const char *uuid, uint32_t number)
{
    for (guint i = 0; i < disks->len; i++) {
        struct cache_disk *d = disks->pdata[i];
        if (d->number == number && names(d, uuid))
            return d;
    }
    return NULL;
}

static void note(GPtrArray *disks, const char *uuid, uint32_t number, const char *path)
{
    struct cache_disk *d = disk_of(disks, uuid, number);
    if (!d) {
        g_ptr_array_add(disks, disk_new(uuid, number, g_strdup(path)));
    } else if (!g_str_equal(d->path, path)) {
        g_free(d->path);
        d->path = g_strdup(path);
    }
}

int cache_disks_note(const char *first, const char *uuid, uint32_t number, const char *path)
{
    g_autoptr(GPtrArray) disks = NULL;
    int r = cache_disks_load(first, &disks);
    if (r < 0)
        return r;
    note(disks, uuid, number, path);
    return disks_store(first, disks);
}

/* ---- what the database knows ---- */

struct saving {
    struct meta *m;
    GPtrArray *disks;
};

static int on_value(void *ctx, const char *name, const void *value, size_t len)
{
    struct saving *s = ctx;
    g_autofree char *path = g_strndup(value, len);
    note(s->disks, meta_uuid(s->m), (uint32_t)strtoul(name + strlen(TIER_VALUE_PATH), NULL, 10), path);
    return 0;
}

int cache_disks_save(struct meta *m, const char *first)
{
    g_autoptr(GPtrArray) disks = NULL;
    int r = cache_disks_load(first, &disks);
    struct saving s = {m, disks};
    if (r >= 0)
        r = meta_value_each(m, TIER_VALUE_PATH, on_value, &s);
    return r < 0 ? r : disks_store(first, disks);
}

/* Path under which the database knows the number: 0, -ENOENT, or another error. Owned. */
static int known_path(struct meta *m, uint32_t number, char **ret)
{
    g_autoptr(GBytes) value = NULL;
    g_autofree char *name = g_strdup_printf(TIER_VALUE_PATH "%u", number);
    int r = meta_value_get(m, name, &value);
    if (r == 0)
        *ret = g_strndup(g_bytes_get_data(value, NULL), g_bytes_get_size(value));
    return r;
}

static bool is_known(struct meta *m, uint32_t number)
{
    g_autofree char *path = NULL;
    return known_path(m, number, &path) != -ENOENT;
}

static int on_number(void *ctx, const char *name, const void *value, size_t len)
{
    uint32_t *max = ctx;
    *max = MAX(*max, (uint32_t)strtoul(name + strlen(TIER_VALUE_PATH), NULL, 10));
    return 0;
}

int cache_disks_number(struct meta *m, const char *first, const char *path, uint32_t *ret)
{
    uint32_t max = TIER_NUMBER_FIRST;
    g_autoptr(GPtrArray) disks = NULL;
    int r = cache_disks_load(first, &disks);
    if (r >= 0)
        r = meta_value_each(m, TIER_VALUE_PATH, on_number, &max);
    if (r < 0)
        return r;
    for (guint i = 0; i < disks->len; i++) {
        const struct cache_disk *d = disks->pdata[i];
        bool begun = d->uuids->len == 1 && names(d, meta_uuid(m)) && !is_known(m, d->number);
        if (begun && g_str_equal(d->path, path)) {
            *ret = d->number;
            return 0;
        }
        max = MAX(max, d->number);
    }
    *ret = max + 1;
    return 0;
}

/* ---- lost disks ---- */

static bool carries(const char *dir, const struct cache_disk *d)
{
    g_autofree char *uuid = NULL;
    uint32_t number = 0;
    return tier_read(dir, &uuid, &number) == 0 && number == d->number && names(d, uuid);
}

char *cache_disk_find(const struct cache_disk *d, const char *const *given)
{
    for (unsigned i = 0; given && given[i]; i++)
        if (carries(given[i], d))
            return g_strdup(given[i]);
    return carries(d->path, d) ? g_strdup(d->path) : NULL;
}

/* One that the database is to know already, but does not, was never used: unless it is there, from where that database was put back. */
static bool is_lost(struct meta *m, const struct cache_disk *d)
{
    if (d->number == 0)
        return false;
    if (!m || d->uuids->len > 1 || !names(d, meta_uuid(m)))
        return true;
    return !is_known(m, d->number) && carries(d->path, d);
}

int cache_disks_lost(struct meta *m, const char *first, GPtrArray **ret)
{
    g_autoptr(GPtrArray) disks = NULL;
    int r = cache_disks_load(first, &disks);
    if (r < 0)
        return r;
    GPtrArray *lost = g_ptr_array_new_with_free_func(disk_free);
    for (guint i = 0; i < disks->len;)
        if (is_lost(m, disks->pdata[i]))
            g_ptr_array_add(lost, g_ptr_array_steal_index(disks, i));
        else
            i++;
    *ret = lost;
    return 0;
}

/* What a file system says of its own checksums: no damaged database. */
static int of_disk(int r)
{
    return r == -EBADMSG ? -EIO : r;
}

/* Where it cannot be replaced for want of space, as on a disk full of the very files, the same bytes of the file are: they are as many. */
int tier_write(const char *dir, const char *uuid, uint32_t number)
{
    struct stat st;
    g_autofree char *path = g_build_filename(dir, TIER_ID_FILE, NULL);
    g_autofree char *text = g_strdup_printf("%s %u\n", uuid, number);
    size_t len = strlen(text);
    int r = put_file(path, text);
    if (r != -ENOSPC || stat(path, &st) < 0 || (size_t)st.st_size != len)
        return r;
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
    ssize_t n = fd < 0 ? fd : RET_ERRNO(pwrite(fd, text, len, 0));
    if (n >= 0)
        n = n != (ssize_t)len ? -EIO : RET_ERRNO(fsync(fd));
    return of_disk((int)n);
}

/* The line of d gets the uuid and the path. Another disk of this database may have its number, when the line was added by hand. */
static int extend_line(struct meta *m, const char *first, const struct cache_disk *d, const char *dir, char **ret_msg)
{
    g_autoptr(GPtrArray) disks = NULL;
    g_autofree char *known = NULL;
    const char *uuid = meta_uuid(m);
    int r = cache_disks_load(first, &disks);
    if (r < 0)
        return r;
    struct cache_disk *line = disk_of(disks, d->uuids->pdata[0], d->number);
    const struct cache_disk *other = disk_of(disks, uuid, d->number);
    if (!line)
        return -EIO; /* it was there a moment ago */
    r = known_path(m, d->number, &known);
    if (r < 0 && r != -ENOENT)
        return r;
    if ((other && other != line) || (r == 0 && !names(line, uuid)))
        return fail_msg(-EEXIST, ret_msg,
                        g_strdup_printf("number %u is that of the disk '%s': mount this one alone to bring back what "
                                        "is unpublished in it (--cache-dir '%s')",
                                        d->number, other ? other->path : known, dir));
    if (!names(line, uuid))
        g_ptr_array_add(line->uuids, g_strdup(uuid));
    note(disks, uuid, d->number, dir);
    return disks_store(first, disks);
}

int cache_disk_adopt(struct meta *m, const char *first, const struct cache_disk *d, const char *dir, char **ret_msg)
{
    CLEANUP_FD int lock_fd = -1;
    struct stat st;
    g_autofree char *own = g_build_filename(dir, "meta", NULL);
    if (lstat(own, &st) == 0)
        return fail_msg(-EEXIST, ret_msg,
                        g_strdup_printf("it has become a cache of its own, with a database: mount that (--cache-dir "
                                        "'%s') until all is published",
                                        dir));
    int r = of_disk(cache_dir_prepare(dir, &lock_fd, ret_msg));
    if (r == 0)
        r = extend_line(m, first, d, dir, ret_msg);
    if (r < 0)
        return r;
    CRASH_POINT(disk_noted);
    r = tier_write(dir, meta_uuid(m), d->number);
    if (r < 0)
        return r;
    CRASH_POINT(disk_marked);
    r = tier_note_path(m, d->number, dir);
    CRASH_POINT(disk_known);
    return r;
}

int cache_disk_adopted(struct meta *m, const char *first, uint32_t number)
{
    g_autoptr(GPtrArray) disks = NULL;
    const char *uuid = meta_uuid(m);
    int r = cache_disks_load(first, &disks);
    struct cache_disk *d = r < 0 ? NULL : disk_of(disks, uuid, number);
    if (!d)
        return MIN(r, 0);
    CRASH_POINT(disk_looked_through);
    g_ptr_array_set_size(d->uuids, 0);
    g_ptr_array_add(d->uuids, g_strdup(uuid));
    return disks_store(first, disks);
}
