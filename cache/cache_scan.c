/*
 * The data folder read without the database, for fsck: every data file is data/<low byte of vid>/<vid>, both in hex. Needs no open cache; whoever calls
 * holds the folder's instance lock, so nothing changes meanwhile. Files with other names are not ours and are left alone.
 */
#include "cache_scan.h"

#include "base/cleanup.h"
#include "cache_file.h"
#include "upload.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define INTENT_MAX 65536
#define PIECE      (1u << 20)

/* Some file systems say -EBADMSG when their own checksums do not match: the disk is sick, not the database. */
static int of_disk(int r)
{
    return r == -EBADMSG ? -EIO : r;
}

void cache_data_path(uint64_t vid, char ret[32])
{
    (void)snprintf(ret, 32, "data/%02x/%016" PRIx64, (unsigned)(vid & 0xff), vid);
}

static char *full_path(const char *dir, uint64_t vid)
{
    char rel[32];
    cache_data_path(vid, rel);
    return g_build_filename(dir, rel, NULL);
}

/* True for exactly `digits` lower-case hex digits. */
static bool is_hex(const char *name, size_t digits)
{
    return strlen(name) == digits && strspn(name, "0123456789abcdef") == digits;
}

int cache_scan_file(const char *dir, uint64_t vid, struct cache_scanned *ret)
{
    g_autofree char *path = full_path(dir, vid);
    struct stat st;
    int r = of_disk(RET_ERRNO(lstat(path, &st)));
    if (r < 0)
        return r;
    if (!S_ISREG(st.st_mode))
        return -ENOENT;
    *ret = (struct cache_scanned){.vid = vid, .size = (uint64_t)st.st_size, .disk_bytes = (uint64_t)st.st_blocks * 512};
    return 0;
}

int cache_scan_remove(const char *dir, uint64_t vid)
{
    g_autofree char *path = full_path(dir, vid);
    return of_disk(RET_ERRNO(unlink(path)));
}

int cache_scan_tier(struct meta *m, const char *first, uint32_t number, char **ret_dir)
{
    g_autoptr(GBytes) value = NULL;
    g_autofree char *name = g_strdup_printf(TIER_VALUE_PATH "%u", number);
    if (number == TIER_NUMBER_MEMORY || number == TIER_NUMBER_NOWHERE)
        return -ENOENT;
    if (number == TIER_NUMBER_FIRST) {
        *ret_dir = g_strdup(first);
        return 0;
    }
    int r = meta_value_get(m, name, &value);
    if (r < 0 && r != -ENOENT)
        return r;
    uint32_t there = 0;
    *ret_dir = r == 0 ? g_strndup(g_bytes_get_data(value, NULL), g_bytes_get_size(value)) : g_strdup("unknown");
    return tier_read_id(*ret_dir, meta_uuid(m), &there) == 0 && there == number ? 0 : -ENODEV;
}

static int on_tier(void *ctx, const char *name, const void *value, size_t len)
{
    uint32_t number = (uint32_t)strtoul(name + strlen(TIER_VALUE_PATH), NULL, 10);
    g_array_append_val((GArray *)ctx, number);
    return 0;
}

/* The numbers of all disks that the database knows, the first one's first. */
static int all_tiers(struct meta *m, GArray *numbers)
{
    uint32_t zero = TIER_NUMBER_FIRST;
    g_array_append_val(numbers, zero);
    return meta_value_each(m, TIER_VALUE_PATH, on_tier, numbers);
}

int cache_scan_tiers(struct meta *m, const char *first, int (*fn)(void *ctx, const char *dir, uint32_t number),
                     void *ctx)
{
    g_autoptr(GArray) numbers = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    int r = all_tiers(m, numbers);
    for (guint i = 0; r == 0 && i < numbers->len; i++) {
        g_autofree char *dir = NULL;
        uint32_t number = g_array_index(numbers, uint32_t, i);
        r = cache_scan_tier(m, first, number, &dir);
        r = r == 0 ? fn(ctx, dir, number) : r == -ENODEV ? 0 : r;
    }
    return r;
}

int cache_scan_find(struct meta *m, const char *first, uint64_t vid, struct cache_scanned *ret, char **ret_dir)
{
    g_autoptr(GArray) numbers = g_array_new(FALSE, FALSE, sizeof(uint32_t));
    g_autofree char *missing = NULL;
    int r = all_tiers(m, numbers);
    if (r < 0)
        return r;
    for (guint i = 0; i < numbers->len; i++) {
        g_autofree char *dir = NULL;
        r = cache_scan_tier(m, first, g_array_index(numbers, uint32_t, i), &dir);
        if (r == 0)
            r = cache_scan_file(dir, vid, ret);
        else if (r == -ENODEV && !missing)
            missing = g_strdup(dir);
        if (r != -ENOENT && r != -ENODEV) {
            *ret_dir = g_steal_pointer(&dir);
            return r;
        }
    }
    *ret_dir = g_steal_pointer(&missing);
    return *ret_dir ? -ENODEV : -ENOENT;
}

/* As pread(), but less than len only at the end of the file. */
static ssize_t read_piece(int fd, char *buf, size_t len, uint64_t off)
{
    size_t done = 0;
    for (ssize_t n = 1; n > 0 && done < len; done += (size_t)n) {
        n = RET_ERRNO(pread(fd, buf + done, len - done, (off_t)(off + done)));
        if (n < 0)
            return of_disk((int)n);
    }
    return (ssize_t)done;
}

int cache_scan_same(const char *dir, const char *other, uint64_t vid)
{
    g_autofree char *path = full_path(dir, vid), *other_path = full_path(other, vid);
    CLEANUP_FD int a = RET_ERRNO(open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    CLEANUP_FD int b = a < 0 ? a : RET_ERRNO(open(other_path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (b < 0)
        return of_disk(b);
    g_autofree char *of_a = g_malloc(PIECE), *of_b = g_malloc(PIECE);
    for (uint64_t off = 0;; off += PIECE) {
        ssize_t n = read_piece(a, of_a, PIECE, off), m = n < 0 ? n : read_piece(b, of_b, PIECE, off);
        if (m < 0)
            return (int)m;
        if (n != m || memcmp(of_a, of_b, (size_t)n) != 0)
            return 0;
        if (n < (ssize_t)PIECE)
            return 1;
    }
}

static int scan_entry(const char *dir, const char *sub, const char *name,
                      int (*fn)(void *ctx, const struct cache_scanned *file), void *ctx)
{
    if (!is_hex(name, 16))
        return 0;
    struct cache_scanned file;
    uint64_t vid = strtoull(name, NULL, 16);
    char rel[32];
    g_autofree char *found = g_strdup_printf("data/%s/%s", sub, name);
    cache_data_path(vid, rel);
    if (!g_str_equal(rel, found))
        return 0; /* in another folder than ours would be */
    int r = cache_scan_file(dir, vid, &file);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    file.path = rel;
    return fn(ctx, &file);
}

/* 1: *ret is the next one; 0: there is none more. */
static int next_entry(DIR *d, struct dirent **ret)
{
    errno = 0;
    *ret = readdir(d);
    return *ret ? 1 : of_disk(-errno);
}

static int scan_sub(const char *dir, const char *sub, int (*fn)(void *ctx, const struct cache_scanned *file), void *ctx)
{
    g_autofree char *path = g_build_filename(dir, "data", sub, NULL);
    DIR *d = opendir(path);
    if (!d)
        return of_disk(-errno);
    int r = 0, more = 0;
    for (struct dirent *e; r == 0 && (more = next_entry(d, &e)) > 0;)
        r = scan_entry(dir, sub, e->d_name, fn, ctx);
    closedir(d);
    return r ? r : more;
}

int cache_scan_files(const char *dir, int (*fn)(void *ctx, const struct cache_scanned *file), void *ctx)
{
    g_autofree char *path = g_build_filename(dir, "data", NULL);
    DIR *d = opendir(path);
    if (!d)
        return errno == ENOENT ? 0 : of_disk(-errno);
    int r = 0, more = 0;
    for (struct dirent *e; r == 0 && (more = next_entry(d, &e)) > 0;)
        if (is_hex(e->d_name, 2))
            r = scan_sub(dir, e->d_name, fn, ctx);
    closedir(d);
    return r ? r : more;
}

int cache_scan_renumber(const char *dir, uint64_t vid, uint64_t to)
{
    g_autofree char *from = full_path(dir, vid), *path = full_path(dir, to), *folder = g_path_get_dirname(path);
    struct cache_scanned there;
    int r = cache_scan_file(dir, to, &there);
    if (r != -ENOENT)
        return r < 0 ? r : -EEXIST;
    r = of_disk(RET_ERRNO(rename(from, path))); /* nobody else makes one meanwhile */
    CLEANUP_FD int fd = r < 0 ? r : RET_ERRNO(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return of_disk(fd < 0 ? fd : RET_ERRNO(fsync(fd)));
}

bool cache_scan_is_dying(const struct meta_cached *rec)
{
    return rec->flags & CACHED_DYING;
}

/* ---- unpublished bytes ---- */

struct intents {
    const char *dir;
    int (*fn)(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text);
    void *ctx;
};

static int on_intent(void *ctx, const struct cache_scanned *file)
{
    struct intents *in = ctx;
    g_autofree char *path = full_path(in->dir, file->vid);
    g_autofree char *text = g_malloc(INTENT_MAX + 1);
    ssize_t n = RET_ERRNO(lgetxattr(path, INTENT_NAME, text, INTENT_MAX));
    if (n == -ENODATA || n == -EOPNOTSUPP || n == -ENOENT)
        return 0;
    if (n < 0)
        return of_disk((int)n);
    text[n] = '\0';
    return in->fn(in->ctx, file->path, file->vid, file->size, text);
}

int cache_scan_intents(const char *dir,
                       int (*fn)(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text), void *ctx)
{
    struct intents in = {dir, fn, ctx};
    return cache_scan_files(dir, on_intent, &in);
}

int cache_scan_has_intent(const char *dir, uint64_t vid)
{
    g_autofree char *path = full_path(dir, vid);
    ssize_t n = RET_ERRNO(lgetxattr(path, INTENT_NAME, NULL, 0));
    return n == -ENODATA ? 0 : n < 0 ? of_disk((int)n) : 1;
}

int cache_scan_set_intent(const char *dir, uint64_t vid, const char *text)
{
    g_autofree char *path = full_path(dir, vid);
    return of_disk(RET_ERRNO(lsetxattr(path, INTENT_NAME, text, strlen(text), 0)));
}

int cache_scan_rescue(const char *dir, uint64_t vid, char **ret_to)
{
    g_autofree char *from = full_path(dir, vid), *folder = g_build_filename(dir, "rescued", NULL);
    int r = of_disk(RET_ERRNO(mkdir(folder, 0700)));
    if (r < 0 && r != -EEXIST)
        return r;
    for (unsigned i = 0;; i++) {
        g_autofree char *to = i ? g_strdup_printf("%s/%016" PRIx64 ".%u", folder, vid, i)
                                : g_strdup_printf("%s/%016" PRIx64, folder, vid);
        r = of_disk(RET_ERRNO(renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE)));
        if (r == -EEXIST && i < 1000)
            continue;
        if (r == 0)
            *ret_to = g_steal_pointer(&to);
        return r;
    }
}

void cache_scan_forget_upload(struct meta_batch *b, uint64_t vid)
{
    g_autofree char *token = upload_token_name(vid), *doubt = upload_doubt_name(vid);
    meta_upload_del(b, vid);
    meta_value_del(b, token);
    meta_value_del(b, doubt);
}

int cache_scan_upload_token(struct meta *m, uint64_t vid, char *ret)
{
    g_autofree char *name = upload_token_name(vid);
    GBytes *value = NULL;
    *ret = '\0';
    int r = meta_value_get(m, name, &value);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    gsize len = MIN(g_bytes_get_size(value), TOKEN_MAX);
    if (len > 0)
        memcpy(ret, g_bytes_get_data(value, NULL), len);
    ret[len] = '\0';
    g_bytes_unref(value);
    return 0;
}
