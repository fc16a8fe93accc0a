/*
 * The data folder read without the database, for fsck: every data file is data/<low byte of vid>/<vid>, both in hex. Needs no open cache; whoever calls
 * holds the folder's instance lock, so nothing changes meanwhile. Files with other names are not ours and are left alone.
 */
#include "base/cleanup.h"
#include "cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char *data_path(uint64_t vid)
{
    return g_strdup_printf("data/%02x/%016" PRIx64, (unsigned)(vid & 0xff), vid);
}

/* True for exactly `digits` lower-case hex digits. */
static bool is_hex(const char *name, size_t digits)
{
    return strlen(name) == digits && strspn(name, "0123456789abcdef") == digits;
}

int cache_scan_file(const char *dir, uint64_t vid, struct cache_scanned *ret)
{
    g_autofree char *rel = data_path(vid);
    g_autofree char *path = g_build_filename(dir, rel, NULL);
    struct stat st;
    int r = RET_ERRNO(lstat(path, &st));
    if (r < 0)
        return r;
    if (!S_ISREG(st.st_mode))
        return -ENOENT;
    *ret = (struct cache_scanned){.vid = vid, .size = (uint64_t)st.st_size, .disk_bytes = (uint64_t)st.st_blocks * 512};
    return 0;
}

int cache_scan_remove(const char *dir, uint64_t vid)
{
    g_autofree char *rel = data_path(vid);
    g_autofree char *path = g_build_filename(dir, rel, NULL);
    return RET_ERRNO(unlink(path));
}

static int scan_entry(const char *dir, const char *sub, const char *name,
                      int (*fn)(void *ctx, const struct cache_scanned *file), void *ctx)
{
    if (!is_hex(name, 16))
        return 0;
    struct cache_scanned file;
    uint64_t vid = strtoull(name, NULL, 16);
    g_autofree char *rel = data_path(vid);
    g_autofree char *found = g_strdup_printf("data/%s/%s", sub, name);
    if (!g_str_equal(rel, found))
        return 0; /* in another folder than ours would be */
    int r = cache_scan_file(dir, vid, &file);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    file.path = rel;
    return fn(ctx, &file);
}

static int scan_sub(const char *dir, const char *sub, int (*fn)(void *ctx, const struct cache_scanned *file), void *ctx)
{
    g_autofree char *path = g_build_filename(dir, "data", sub, NULL);
    DIR *d = opendir(path);
    if (!d)
        return -errno;
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));)
        r = scan_entry(dir, sub, e->d_name, fn, ctx);
    closedir(d);
    return r;
}

int cache_scan_files(const char *dir, int (*fn)(void *ctx, const struct cache_scanned *file), void *ctx)
{
    g_autofree char *path = g_build_filename(dir, "data", NULL);
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? 0 : -errno;
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(d));)
        if (is_hex(e->d_name, 2))
            r = scan_sub(dir, e->d_name, fn, ctx);
    closedir(d);
    return r;
}
