/*
 * Where a link to a directory of this machine may not lead: into the mount, to a directory that the mount lies in, or to the cache; see links_internal.h.
 *
 * Nothing in the mount is looked at: who serves it would wait for itself, and a process that does cannot be ended. So symlinks are followed one by one, as far as they stay outside of
 * it. Where the mount is shown at further places, by bind mounts, the table of mounts tells.
 */
#include "links_internal.h"

#define SYMLINKS_MAX 40 /* as the kernel */

static bool lies_in(const char *path, const char *dir)
{
    size_t len = g_str_equal(dir, "/") ? 0 : strlen(dir);
    return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* ---- places ---- */

struct row {
    char *path, *device;
};

static void row_clear(void *arg)
{
    struct row *row = arg;
    g_free(row->path);
    g_free(row->device);
}

/* "36 35 0:98 / /mnt/a\040b rw shared:1 - fuse.sluice s3://b rw,user_id=0": struct row of each mount of this kind. */
static GArray *read_table(void)
{
    GArray *rows = g_array_new(FALSE, FALSE, sizeof(struct row));
    g_autofree char *text = NULL;
    g_array_set_clear_func(rows, row_clear);
    if (!g_file_get_contents("/proc/self/mountinfo", &text, NULL, NULL))
        return rows;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line; line++) {
        g_auto(GStrv) words = g_strsplit(*line, " ", 6);
        if (g_strv_length(words) < 6 || !strstr(words[5], " - fuse.sluice ")) /* also without any optional field */
            continue;
        struct row row = {g_strcompress(words[4]), g_strdup(words[2])};
        g_array_append_val(rows, row);
    }
    return rows;
}

/* The mount point, and where else the same is shown. */
static GPtrArray *own_places(const struct fs *fs)
{
    GPtrArray *places = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GArray) rows = read_table();
    const char *device = NULL;
    g_ptr_array_add(places, g_strdup(fs->mountpoint));
    for (guint i = 0; i < rows->len; i++) { /* of several on one directory the last is on top */
        const struct row *row = &g_array_index(rows, struct row, i);
        if (g_str_equal(row->path, fs->mountpoint))
            device = row->device;
    }
    for (guint i = 0; device && i < rows->len; i++) {
        const struct row *row = &g_array_index(rows, struct row, i);
        if (g_str_equal(row->device, device) && !g_str_equal(row->path, fs->mountpoint))
            g_ptr_array_add(places, g_strdup(row->path));
    }
    return places;
}

static const char *place_of(const GPtrArray *places, const char *path)
{
    for (guint i = 0; i < places->len; i++)
        if (lies_in(path, places->pdata[i]))
            return places->pdata[i];
    return NULL;
}

static const char *place_below(const GPtrArray *places, const char *dir)
{
    for (guint i = 0; i < places->len; i++)
        if (lies_in(places->pdata[i], dir))
            return places->pdata[i];
    return NULL;
}

/* ---- paths ---- */

static void go_up(GString *path)
{
    const char *slash = strrchr(path->str, '/');
    g_string_truncate(path, slash ? (gsize)(slash - path->str) : 0);
}

/* Adds a name that leads on. The symlink that is there, unless that is in one of the places: owned by the caller, and path is what it leads on from. */
static char *go_down(GString *path, const char *name, const GPtrArray *places)
{
    gsize len = path->len;
    g_string_append_printf(path, "/%s", name);
    char *target = place_of(places, path->str) ? NULL : g_file_read_link(path->str, NULL);
    if (target)
        g_string_truncate(path, *target == '/' ? 0 : len);
    return target;
}

/* Without symlinks, up to the first directory that is in one of the places. Owned by the caller. */
static char *resolve(const char *path, const GPtrArray *places)
{
    GString *out = g_string_new("");
    g_autofree char *rest = g_strdup(path);
    for (unsigned n_links = 0; *rest && n_links < SYMLINKS_MAX && (out->len == 0 || !place_of(places, out->str));) {
        const char *name = rest + strspn(rest, "/");
        size_t len = strcspn(name, "/");
        g_autofree char *part = g_strndup(name, len), *target = NULL;
        if (g_str_equal(part, ".."))
            go_up(out);
        else if (*part && !g_str_equal(part, "."))
            target = go_down(out, part, places);
        n_links += target != NULL;
        char *more = target ? g_strconcat(target, "/", name + len, NULL) : g_strdup(name + len);
        g_free(rest);
        rest = more;
    }
    if (out->len == 0)
        g_string_append_c(out, '/');
    return g_string_free(out, FALSE);
}

static int refuse(char **ret_msg, char *msg)
{
    g_free(*ret_msg);
    *ret_msg = msg;
    return -EINVAL;
}

static int check_cache(const char *cache_dir, const char *source, const char *dir, const GPtrArray *places,
                       char **ret_msg)
{
    g_autofree char *real = cache_dir ? resolve(cache_dir, places) : NULL;
    if (real && lies_in(real, dir))
        return refuse(ret_msg, g_strdup_printf("the cache folder %s lies in %s", cache_dir, source));
    if (real && lies_in(dir, real))
        return refuse(ret_msg, g_strdup_printf("%s lies in the cache folder %s", source, cache_dir));
    return 0;
}

int links_check_apart(const struct fs *fs, const char *source, char **ret_msg)
{
    if (!g_str_has_prefix(source, "file:///") || !fs->mountpoint)
        return 0;
    g_autoptr(GPtrArray) places = own_places(fs);
    g_autofree char *dir = resolve(source + strlen("file://"), places);
    const char *above = place_of(places, dir), *below = place_below(places, dir);
    if (above)
        return refuse(ret_msg, g_strdup_printf("%s lies in the mount %s", source, above));
    if (below)
        return refuse(ret_msg, g_strdup_printf("the mount %s lies in %s", below, source));
    int r = check_cache(fs->cache_dir, source, dir, places, ret_msg);
    for (char **more = fs->more_dirs; r == 0 && more && *more; more++)
        r = check_cache(*more, source, dir, places, ret_msg);
    return r;
}
