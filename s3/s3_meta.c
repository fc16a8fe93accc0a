/*
 * Metadata as text; see s3_meta.h. No state, no locks.
 *
 * A token with control characters or a foreign mtime must never make a header of its own, so values are checked on the way out and
 * parsed strictly on the way in.
 */
#include "s3_meta.h"

#include "base/clock.h"
#include "s3_uri.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define META_MAX_BYTES 2048 /* S3's limit on names and values; some stores count the prefix of the names */

void s3_meta_each(const struct obj_meta *meta, s3_meta_fn *fn, void *ctx)
{
    char text[64];
    if (!meta)
        return;
    const struct posix_attr *a = &meta->posix;
    if (a->fields & POSIX_MODE) {
        g_snprintf(text, sizeof text, "0%o", a->mode);
        fn(ctx, "mode", text);
    }
    if (a->fields & POSIX_UID) {
        g_snprintf(text, sizeof text, "%u", a->uid);
        fn(ctx, "uid", text);
    }
    if (a->fields & POSIX_GID) {
        g_snprintf(text, sizeof text, "%u", a->gid);
        fn(ctx, "gid", text);
    }
    if (a->fields & POSIX_MTIME) {
        int64_t s = a->mtime_ns / (int64_t)NS_PER_S;
        int64_t ns = a->mtime_ns % (int64_t)NS_PER_S;
        if (ns < 0) {
            s--;
            ns += (int64_t)NS_PER_S;
        }
        g_snprintf(text, sizeof text, "%" G_GINT64_FORMAT ".%09" G_GINT64_FORMAT, s, ns);
        fn(ctx, "mtime", text);
    }
    if (meta->symlink) {
        g_autoptr(GString) target = g_string_new(NULL);
        s3_uri_encode(target, meta->symlink, strlen(meta->symlink), true);
        fn(ctx, "sluice-symlink", target->str);
    }
    if (meta->token && *meta->token)
        fn(ctx, "sluice-token", meta->token);
}

bool s3_meta_posix_same(const struct posix_attr *have, const struct posix_attr *want)
{
    uint32_t f = want->fields;
    return have->fields == f && (!(f & POSIX_MODE) || have->mode == want->mode) &&
           (!(f & POSIX_UID) || have->uid == want->uid) && (!(f & POSIX_GID) || have->gid == want->gid) &&
           (!(f & POSIX_MTIME) || have->mtime_ns == want->mtime_ns);
}

bool s3_meta_is_archive(const char *storage_class)
{
    return strcmp(storage_class, "GLACIER") == 0 || strcmp(storage_class, "DEEP_ARCHIVE") == 0;
}

static void add_bytes(void *ctx, const char *name, const char *value)
{
    *(size_t *)ctx += strlen("x-amz-meta-") + strlen(name) + strlen(value);
}

int s3_meta_check(const struct obj_meta *meta)
{
    size_t bytes = 0;
    const char *token = meta && meta->token ? meta->token : "";
    if (strlen(token) > TOKEN_MAX)
        return -EINVAL;
    for (const char *p = token; *p; p++) {
        if (!g_ascii_isgraph(*p))
            return -EINVAL;
    }
    s3_meta_each(meta, add_bytes, &bytes);
    return bytes > META_MAX_BYTES ? -ENAMETOOLONG : 0;
}

int objstore_symlink_check(const char *target)
{
    char token[TOKEN_MAX + 1] = {0};
    memset(token, 'x', TOKEN_MAX);
    struct obj_meta most = {.posix = {.fields = POSIX_MODE | POSIX_UID | POSIX_GID | POSIX_MTIME,
                                      .mode = 0177777,
                                      .uid = UINT32_MAX,
                                      .gid = UINT32_MAX,
                                      .mtime_ns = INT64_MIN},
                            .symlink = target,
                            .token = token};
    return s3_meta_check(&most);
}

static bool parse_u32(const char *s, guint base, uint32_t *ret)
{
    guint64 v = 0;
    if (!g_ascii_string_to_unsigned(s, base, 0, UINT32_MAX, &v, NULL))
        return false;
    *ret = (uint32_t)v;
    return true;
}

static bool parse_mtime(const char *s, int64_t *ret_ns)
{
    g_auto(GStrv) parts = g_strsplit(s, ".", 2);
    gint64 sec = 0;
    int64_t ns = 0;
    if (!parts[0] || !g_ascii_string_to_signed(parts[0], 10, -9000000000ll, 9000000000ll, &sec, NULL))
        return false;
    int64_t unit = (int64_t)NS_PER_S / 10;
    for (const char *p = parts[1] ? parts[1] : ""; *p; p++) {
        if (!g_ascii_isdigit(*p))
            return false;
        ns += (*p - '0') * unit;
        unit /= 10;
    }
    *ret_ns = sec * (int64_t)NS_PER_S + ns;
    return true;
}

static void take_symlink(struct obj_info *info, const char *value)
{
    GString *target = g_string_new(NULL);
    if (s3_uri_decode(target, value, strlen(value), false) < 0 || target->len == 0 || target->len > OBJ_SYMLINK_MAX ||
        strlen(target->str) != target->len) {
        g_string_free(target, TRUE);
        return;
    }
    g_free(info->symlink);
    info->symlink = g_string_free(target, FALSE);
}

static bool is_mode(uint32_t mode)
{
    uint32_t type = mode & S_IFMT;
    return mode <= 0177777 && (type == S_IFREG || type == S_IFDIR || type == S_IFLNK || type == S_IFIFO ||
                               type == S_IFSOCK || type == S_IFCHR || type == S_IFBLK);
}

/* Octal with a leading 0 (ours), decimal (s3fs), octal without one (rclone): what gives a file type is meant. */
static bool parse_mode(const char *value, uint32_t *ret_mode)
{
    uint32_t mode;
    bool decimal = value[0] != '0' && parse_u32(value, 10, &mode) && is_mode(mode);
    if (!decimal && (!parse_u32(value, 8, &mode) || mode > 0177777))
        return false;
    *ret_mode = mode;
    return true;
}

void s3_meta_take(struct obj_info *info, const char *name, const char *value)
{
    struct posix_attr *a = &info->posix;
    if (strcmp(name, "mode") == 0) {
        if (parse_mode(value, &a->mode))
            a->fields |= POSIX_MODE;
    } else if (strcmp(name, "uid") == 0) {
        if (parse_u32(value, 10, &a->uid))
            a->fields |= POSIX_UID;
    } else if (strcmp(name, "gid") == 0) {
        if (parse_u32(value, 10, &a->gid))
            a->fields |= POSIX_GID;
    } else if (strcmp(name, "mtime") == 0) {
        if (parse_mtime(value, &a->mtime_ns))
            a->fields |= POSIX_MTIME;
    } else if (strcmp(name, "sluice-symlink") == 0) {
        take_symlink(info, value);
    } else if (strcmp(name, "sluice-token") == 0 && strlen(value) <= TOKEN_MAX) {
        g_strlcpy(info->token, value, sizeof info->token);
    }
}
