/*
 * A local directory as an object store: key a/b is the file ROOT/a/b. For tests, benchmarks and shared file systems.
 *
 * A PUT writes a temporary file under ROOT/.sluice-tmp (never listed) and renames it over the name, so readers see whole objects only. What a killed process
 * left there goes when the store is opened next (drv_file_sweep.c).
 * Condition check and rename happen under an exclusive flock of ROOT/.sluice-tmp/lock: conditions are exact between
 * threads and processes that use this driver. User metadata stands in user.x-amz-meta-* attributes.
 *
 * What a call has finished survives power loss, as it does in a real store: an object is synced before it gets its name, the directory
 * afterwards, a new directory's parent when it is made. Uploads in progress are not synced: a part that is lost does not have its etag.
 *
 * The etag is inode, mtime and size; the driver sets mtime to the nanosecond at each PUT, so a rewrite changes it although inode numbers
 * come back. It is no MD5 (CAP_ETAG_IS_MD5 is not claimed). A marker object "a/" is the directory itself: it exists when
 * made by PUT (user.sluice.marker) or when the directory is empty. Directories that a DELETE leaves empty and that are no markers go too.
 *
 * What a directory cannot hold: components over 255 bytes, empty, "." or ".." (-EINVAL); object `a` beside `a/x`, markers with a body
 * (-ENOTSUP). Objects and directories have the permissions that the store was opened with, less what an object's own mode lacks; what stands under .sluice-tmp while they are made
 * is only its maker's, but the directory is as open as the root, so that daemons of several users work on one store. Symbolic links and special files are not objects: no key leads through one
 * (drv_file_path.c), and none is replaced by an object (-ENOTSUP).
 */
#include "drv_file.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/metric.h"
#include "s3_meta.h"
#include "s3_uri.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include <unistd.h>

#define READ_CHUNK (256u << 10)

int file_key_check(const char *key)
{
    const char *p = key;
    if (*p == '\0' || strlen(key) > 1024)
        return -EINVAL;
    while (*p) {
        size_t n = strcspn(p, "/");
        if (n == 0 || n > 255 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return -EINVAL;
        if (p == key && n == strlen(FILE_TMP_DIR) && memcmp(p, FILE_TMP_DIR, n) == 0)
            return -EINVAL;
        p += n;
        if (*p == '/')
            p++;
    }
    return 0;
}

int file_read_error(int r)
{
    bool none = r == -ENXIO; /* a socket */
    return none || r == -ENOTDIR || r == -ELOOP || r == -EISDIR || r == -ENAMETOOLONG || r == -EINVAL ? -ENOENT : r;
}

int file_write_error(int r)
{
    if (r == -ENOTDIR || r == -EISDIR || r == -ENOTEMPTY || r == -EEXIST || r == -ELOOP)
        return -ENOTSUP;
    if (r == -ENAMETOOLONG)
        return -EINVAL;
    return r == -EPERM || r == -EROFS ? -EACCES : r;
}

static bool is_marker_key(const char *key)
{
    return g_str_has_suffix(key, "/");
}

int file_lock(struct drv_file *f)
{
    CLEANUP_FD int fd = file_at(f, FILE_TMP_DIR "/lock", O_RDWR, 0);
    if (fd ==
        -ENOENT) /* not at once: with fs.protected_regular nobody opens so what another made in a sticky directory */
        fd = file_at(f, FILE_TMP_DIR "/lock", O_RDWR | O_CREAT, 0666);
    if (fd < 0)
        return fd;
    int r = RET_ERRNO(TEMP_FAILURE_RETRY(flock(fd, LOCK_EX)));
    return r < 0 ? r : steal_fd(&fd);
}

int file_tmp_open(struct drv_file *f, const char *what, char **ret_path)
{
    g_autofree char *path = file_tmp_path(f, what);
    int fd = file_at(f, path, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (fd >= 0)
        *ret_path = g_steal_pointer(&path);
    return fd;
}

int file_write_all(int fd, const void *buf, size_t len)
{
    const char *p = buf;
    while (len) {
        ssize_t n = RET_ERRNO(TEMP_FAILURE_RETRY(write(fd, p, len)));
        if (n < 0)
            return (int)n;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int file_copy_range(struct drv_file *f, int in, uint64_t off, int out, uint64_t out_off, uint64_t len)
{
    loff_t from = (loff_t)off;
    loff_t to = (loff_t)out_off;
    while (len) {
        if (__atomic_load_n(&f->stopping, __ATOMIC_RELAXED))
            return -ECANCELED;
        ssize_t n = RET_ERRNO(copy_file_range(in, &from, out, &to, MIN(len, 64ull << 20), 0));
        if (n < 0)
            return (int)n;
        if (n == 0)
            return -EBADMSG;
        len -= (uint64_t)n;
    }
    return 0;
}

struct xattr_set {
    int fd;
    int r;
};

static void set_xattr(void *ctx, const char *name, const char *value)
{
    struct xattr_set *s = ctx;
    g_autofree char *full = g_strconcat(FILE_XATTR, name, NULL);
    int r = RET_ERRNO(fsetxattr(s->fd, full, value, strlen(value), 0));
    if (r < 0)
        s->r = r;
}

int file_meta_set(int fd, const struct obj_meta *meta)
{
    struct xattr_set s = {.fd = fd};
    s3_meta_each(meta, set_xattr, &s);
    return s.r;
}

static void meta_get(int fd, struct obj_info *info)
{
    char names[4096];
    ssize_t n = flistxattr(fd, names, sizeof names);
    for (char *p = names; n > 0 && p < names + n; p += strlen(p) + 1) {
        char value[4097];
        if (!g_str_has_prefix(p, FILE_XATTR))
            continue;
        ssize_t len = fgetxattr(fd, p, value, sizeof value - 1);
        if (len < 0)
            continue;
        value[len] = '\0';
        s3_meta_take(info, p + strlen(FILE_XATTR), value);
    }
}

int file_meta_clone(int from, int to)
{
    char names[4096];
    ssize_t n = flistxattr(from, names, sizeof names);
    for (char *p = names; n > 0 && p < names + n; p += strlen(p) + 1) {
        char value[4096];
        if (!g_str_has_prefix(p, FILE_XATTR))
            continue;
        ssize_t len = fgetxattr(from, p, value, sizeof value);
        int r = len < 0 ? -errno : RET_ERRNO(fsetxattr(to, p, value, (size_t)len, 0));
        if (r < 0)
            return r;
    }
    struct stat st;
    if (fstat(from, &st) == 0 && fgetxattr(to, FILE_ACL, NULL, 0) < 0)
        (void)!fchmod(to, (st.st_mode & 0777) | 0600); /* where there are modes */
    return 0;
}

static int64_t stat_mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * (int64_t)NS_PER_S + st->st_mtim.tv_nsec;
}

void file_etag(const struct stat *st, struct etag *ret)
{
    if (S_ISDIR(st->st_mode)) /* the directory's mtime moves with its entries */
        g_snprintf(ret->s, sizeof ret->s, "d%llx", (unsigned long long)st->st_ino);
    else
        g_snprintf(ret->s, sizeof ret->s, "%llx-%llx-%llx", (unsigned long long)st->st_ino,
                   (unsigned long long)stat_mtime_ns(st), (unsigned long long)st->st_size);
}

int file_is_marker(struct drv_file *f, const char *path)
{
    char c;
    CLEANUP_FD int fd = file_at(f, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return file_read_error(fd) == -ENOENT ? 0 : fd;
    ssize_t n = RET_ERRNO(fgetxattr(fd, FILE_XATTR_DIR, &c, 1));
    if (n >= 0)
        return 1;
    if (n != -ENODATA && n != -EOPNOTSUPP)
        return (int)n;
    DIR *dir = fdopendir(fd);
    if (!dir)
        return -errno;
    fd = -1;
    struct dirent *e;
    int r = file_dir_next(dir, &e);
    (void)closedir(dir); /* was only read */
    return r < 0 ? r : r == 0;
}

int file_dir_next(DIR *dir, struct dirent **ret_entry)
{
    for (;;) {
        errno = 0; /* all that tells the end from a failure */
        struct dirent *e = readdir(dir);
        if (!e)
            return -errno;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        *ret_entry = e;
        return 1;
    }
}

int file_open_object(struct drv_file *f, const char *key, const struct etag *want, int *ret_fd, struct stat *ret_stat)
{
    struct etag have;
    struct stat st;
    if (file_key_check(key) < 0)
        return -ENOENT;
    CLEANUP_FD int fd = file_at(f, key, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return file_read_error(fd);
    int r = RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return r;
    r = !is_marker_key(key) ? S_ISREG(st.st_mode) : S_ISDIR(st.st_mode) ? file_is_marker(f, key) : 0;
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    file_etag(&st, &have);
    if (want && etag_is_set(want) && !etag_equal(want, &have))
        return -ESTALE;
    if (S_ISDIR(st.st_mode))
        st.st_size = 0;
    *ret_fd = steal_fd(&fd);
    *ret_stat = st;
    return 0;
}

/* -ESTALE: written in place by somebody else meanwhile. */
static int is_as_it_was(int fd, const struct stat *was)
{
    struct etag before, now;
    struct stat st;
    int r = RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return r;
    file_etag(was, &before);
    file_etag(&st, &now);
    return etag_equal(&before, &now) ? 0 : -ESTALE;
}

int file_copy_object(struct drv_file *f, int in, const struct stat *was, uint64_t off, int out, uint64_t len)
{
    int r = file_copy_range(f, in, off, out, 0, len);
    int now = r == 0 || r == -EBADMSG ? is_as_it_was(in, was) : 0; /* also when it was cut off */
    return now < 0 ? now : r;
}

static void info_fill(int fd, const struct stat *st, struct obj_info *ret)
{
    ret->size = (uint64_t)st->st_size;
    ret->mtime_ns = stat_mtime_ns(st);
    file_etag(st, &ret->etag);
    meta_get(fd, ret);
}

static int file_head(struct objstore *st, const char *key, struct obj_info *ret_info)
{
    CLEANUP_FD int fd = -1;
    struct stat sb;
    metric_inc(M_requests_head);
    int r = file_open_object(file_of(st), key, NULL, &fd, &sb);
    if (r == 0)
        info_fill(fd, &sb, ret_info);
    return r;
}

static int get_range(struct drv_file *f, int fd, uint64_t off, uint64_t end, obj_sink_fn *sink, void *ctx)
{
    g_autofree char *buf = g_malloc(READ_CHUNK);
    while (off < end) {
        if (__atomic_load_n(&f->stopping, __ATOMIC_RELAXED))
            return -ECANCELED;
        ssize_t n = RET_ERRNO(TEMP_FAILURE_RETRY(pread(fd, buf, MIN(READ_CHUNK, end - off), (off_t)off)));
        if (n < 0)
            return (int)n;
        if (n == 0)
            return -ESTALE; /* cut off while it was read */
        int r = sink(ctx, off, buf, (size_t)n);
        if (r)
            return r;
        metric_add(M_downloaded_bytes, n);
        off += (uint64_t)n;
    }
    return 0;
}

static int file_get(struct objstore *st, const char *key, uint64_t off, uint64_t len, const struct etag *if_match,
                    obj_sink_fn *sink, void *ctx, struct obj_info *ret_info)
{
    CLEANUP_FD int fd = -1;
    struct stat sb;
    metric_inc(M_requests_get);
    int r = file_open_object(file_of(st), key, if_match, &fd, &sb);
    if (r < 0)
        return r;
    info_fill(fd, &sb, ret_info);
    uint64_t size = ret_info->size;
    uint64_t end = len == 0 || len > size || off > size - len ? size : off + len;
    if (off < end)
        r = get_range(file_of(st), fd, off, end, sink, ctx);
    if (r || S_ISDIR(sb.st_mode))
        return r;
    return is_as_it_was(fd, &sb);
}

/* Removes directories above key that are empty and no markers. Those that are gone already are no reason to stop: whoever removed them was perhaps cut off. */
static void parents_prune(struct drv_file *f, const char *key)
{
    g_autofree char *path = g_strdup(key);
    for (;;) {
        char *slash = strrchr(path, '/');
        char c;
        if (!slash)
            return;
        *slash = '\0';
        CLEANUP_FD int fd = file_at(f, path, O_RDONLY | O_DIRECTORY, 0);
        if (fd == -ENOENT)
            continue;
        if (fd < 0 || fgetxattr(fd, FILE_XATTR_DIR, &c, 1) >= 0 || file_remove(f, path, AT_REMOVEDIR) < 0)
            return;
    }
}

static int cond_check(struct drv_file *f, const char *key, const struct obj_cond *cond)
{
    CLEANUP_FD int fd = -1;
    struct stat st;
    struct etag have;
    if (!cond || cond->kind == OBJ_COND_NONE)
        return 0;
    int r = file_open_object(f, key, NULL, &fd, &st);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0)
        file_etag(&st, &have);
    return objstore_cond_check(cond, r == 0 ? &have : NULL);
}

/* The object as it will be, with the time that its etag is made of, is on the disk. */
static int seal(int fd)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}};
    (void)clock_gettime(CLOCK_REALTIME, &times[1]); /* the clock exists */
    int r = RET_ERRNO(futimens(fd, times));
    return r < 0 ? r : RET_ERRNO(fsync(fd));
}

static int commit_locked(struct drv_file *f, int fd, const char *tmp, const char *key, const struct obj_cond *cond)
{
    int r = cond_check(f, key, cond);
    if (r < 0)
        return r;
    return file_write_error(file_place(f, tmp, key));
}

int file_commit(struct drv_file *f, int fd, const char *tmp, const char *key, const struct obj_cond *cond,
                struct etag *ret_etag)
{
    struct stat st;
    int r = seal(fd); /* takes long: before the lock */
    CRASH_POINT(store_written);
    CLEANUP_FD int lock = r < 0 ? -1 : file_lock(f);
    if (r == 0)
        r = lock < 0 ? lock : commit_locked(f, fd, tmp, key, cond);
    if (r < 0) {
        (void)file_remove(f, tmp, 0); /* a leftover is only waste */
        return r;
    }
    (void)close(steal_fd(&lock)); /* the name is given */
    CRASH_POINT(store_renamed);
    r = file_dir_sync(f, key);
    if (r == 0)
        r = RET_ERRNO(fstat(fd, &st));
    if (r == 0)
        file_etag(&st, ret_etag);
    return r;
}

/* Metadata first: what has the mark is a marker with all that belongs to it. */
static int mark_dir(int fd, const struct obj_meta *meta, struct etag *ret_etag)
{
    struct stat st;
    int r = file_meta_set(fd, meta);
    if (r == 0)
        r = RET_ERRNO(fsetxattr(fd, FILE_XATTR_DIR, "1", 1, 0));
    if (r == 0)
        r = RET_ERRNO(fsync(fd));
    if (r == 0)
        r = RET_ERRNO(fstat(fd, &st));
    if (r == 0)
        file_etag(&st, ret_etag);
    return r;
}

static int new_marker_locked(struct drv_file *f, const char *key, const struct obj_meta *meta, struct etag *ret_etag)
{
    g_autofree char *tmp = file_tmp_path(f, "marker");
    int r = file_mkdir(f, tmp);
    if (r < 0)
        return file_write_error(r);
    CLEANUP_FD int fd = file_at(f, tmp, O_RDONLY | O_DIRECTORY, 0);
    struct etag etag;
    if (fd >= 0)
        file_mode_set(f, fd, meta ? &meta->posix : NULL, 0777);
    r = fd < 0 ? fd : mark_dir(fd, meta, &etag);
    if (r == 0)
        r = file_place(f, tmp, key);
    if (r < 0) {
        (void)file_remove(f, tmp, AT_REMOVEDIR); /* a leftover is only waste */
        return file_write_error(r);
    }
    *ret_etag = etag;
    g_autofree char *dir = g_strndup(key, strlen(key) - 1);
    return file_dir_sync(f, dir);
}

static int put_marker(struct drv_file *f, const char *key, size_t len, const struct obj_meta *meta,
                      const struct obj_cond *cond, struct etag *ret_etag)
{
    if (len)
        return -ENOTSUP;
    CLEANUP_FD int lock = file_lock(f);
    if (lock < 0)
        return lock;
    int r = cond_check(f, key, cond);
    if (r < 0)
        return r;
    CLEANUP_FD int fd = file_at(f, key, O_RDONLY | O_DIRECTORY, 0);
    if (fd == -ENOENT)
        return new_marker_locked(f, key, meta, ret_etag);
    return fd < 0 ? file_write_error(fd) : mark_dir(fd, meta, ret_etag);
}

static int file_put(struct objstore *st, const char *key, const void *buf, size_t len, const struct obj_meta *meta,
                    const struct obj_cond *cond, struct etag *ret_etag)
{
    struct drv_file *f = file_of(st);
    g_autofree char *tmp = NULL;
    metric_inc(M_requests_put);
    int r = file_key_check(key);
    if (r < 0)
        return r;
    if (is_marker_key(key))
        return put_marker(f, key, len, meta, cond, ret_etag);
    CLEANUP_FD int fd = file_tmp_open(f, "put", &tmp);
    if (fd < 0)
        return fd;
    r = file_write_all(fd, buf, len);
    if (r == 0)
        r = file_meta_set(fd, meta);
    if (r == 0)
        file_mode_set(f, fd, meta ? &meta->posix : NULL, 0666);
    if (r == 0)
        r = file_commit(f, fd, tmp, key, cond, ret_etag);
    else
        (void)file_remove(f, tmp, 0); /* a leftover is only waste */
    if (r == 0)
        metric_add(M_uploaded_bytes, (int64_t)len);
    return r;
}

static int delete_marker_locked(struct drv_file *f, const char *key)
{
    CLEANUP_FD int fd = file_at(f, key, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return file_read_error(fd) == -ENOENT ? 0 : fd;
    (void)fremovexattr(fd, FILE_XATTR_DIR); /* absent is as good */
    int r = RET_ERRNO(fsync(fd));
    if (r == 0 && file_remove(f, key, AT_REMOVEDIR) == 0) {
        g_autofree char *dir = g_strndup(key, strlen(key) - 1);
        parents_prune(f, dir);
        r = file_dir_sync(f, dir);
    }
    return r;
}

/* 1 if what stands at key is an object: a directory that is no marker is none, whatever it was before. */
static int is_object(struct drv_file *f, const char *key, const struct stat *sb)
{
    if (!is_marker_key(key))
        return S_ISREG(sb->st_mode);
    return S_ISDIR(sb->st_mode) ? file_is_marker(f, key) : 0;
}

static int file_delete(struct objstore *st, const char *key, const struct obj_cond *cond)
{
    struct drv_file *f = file_of(st);
    struct stat sb;
    metric_inc(M_requests_delete);
    if (file_key_check(key) < 0)
        return 0;
    CLEANUP_FD int lock = file_lock(f);
    if (lock < 0)
        return lock;
    int r = file_stat(f, key, &sb);
    if (r < 0) {
        if (file_read_error(r) != -ENOENT)
            return r;
        parents_prune(f, key); /* a delete of it that was cut off may have left them */
        return 0;
    }
    r = is_object(f, key, &sb);
    if (r <= 0) /* it is gone, which no condition minds */
        return r;
    r = cond_check(f, key, cond);
    if (r < 0)
        return r;
    if (is_marker_key(key))
        return delete_marker_locked(f, key);
    r = file_remove(f, key, 0);
    if (r < 0)
        return file_write_error(r);
    parents_prune(f, key);
    return file_dir_sync(f, key);
}

static int copy_marker(struct drv_file *f, int src, const char *dst, const struct obj_meta *meta,
                       const struct obj_cond *cond, struct etag *ret_etag)
{
    struct obj_info info = {0};
    meta_get(src, &info);
    struct obj_meta kept = {.posix = info.posix, .symlink = info.symlink, .token = info.token};
    int r = put_marker(f, dst, 0, meta ? meta : &kept, cond, ret_etag);
    obj_info_clear(&info);
    return r;
}

static int file_copy(struct objstore *st, const struct obj_copy *copy, struct etag *ret_etag)
{
    struct drv_file *f = file_of(st);
    const char *dst = copy->dst;
    const struct obj_meta *meta = copy->meta;
    const struct obj_cond *cond = copy->dst_cond;
    struct obj_cond as_read = {.kind = OBJ_COND_ETAG};
    CLEANUP_FD int in = -1;
    struct stat sb;
    g_autofree char *tmp = NULL;
    metric_inc(M_requests_copy);
    int r = file_key_check(dst);
    if (r == 0)
        r = file_open_object(f, copy->src, copy->src_etag, &in, &sb);
    if (r == 0 && strcmp(copy->src, dst) == 0) { /* other metadata of the version that was read, not of the next one */
        file_etag(&sb, &as_read.etag);
        r = objstore_cond_check(cond, &as_read.etag);
        cond = &as_read;
    }
    if (r < 0)
        return r;
    if (is_marker_key(dst))
        return sb.st_size ? -ENOTSUP : copy_marker(f, in, dst, meta, cond, ret_etag);
    CLEANUP_FD int fd = file_tmp_open(f, "copy", &tmp);
    if (fd < 0)
        return fd;
    r = file_copy_object(f, in, &sb, 0, fd, (uint64_t)sb.st_size);
    if (r == 0)
        r = meta ? file_meta_set(fd, meta) : file_meta_clone(in, fd);
    if (r == 0 && meta)
        file_mode_set(f, fd, &meta->posix, 0666);
    if (r < 0) {
        (void)file_remove(f, tmp, 0); /* a leftover is only waste */
        return r;
    }
    return file_commit(f, fd, tmp, dst, cond, ret_etag);
}

static void drv_file_close(struct objstore *st)
{
    file_leave(file_of(st));
    if (file_of(st)->root_fd >= 0)
        (void)close(file_of(st)->root_fd); /* a directory: nothing is buffered */
    objstore_base_clear(st);
    g_free(st);
}

static void drv_file_shutdown(struct objstore *st)
{
    __atomic_store_n(&file_of(st)->stopping, 1, __ATOMIC_RELAXED);
}

static int drv_file_check(struct objstore *st, char **ret_msg)
{
    struct drv_file *f = file_of(st);
    CLEANUP_FD int fd = file_at(f, f->read_only ? "" : FILE_TMP_DIR, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) {
        *ret_msg = g_strdup_printf("%s: %s", st->source, err_text(fd));
        return fd;
    }
    if (f->read_only || f->live_fd < 0 ||
        RET_ERRNO(fsetxattr(f->live_fd, FILE_XATTR "probe", "1", 1, 0)) != -EOPNOTSUPP)
        return 0;
    *ret_msg = g_strdup_printf("%s keeps no extended attributes (user.*), which objects need: mount it --read-only",
                               st->source);
    return -EOPNOTSUPP;
}

static int drv_file_probe(struct objstore *st, const char *key_prefix, uint32_t *ret_caps)
{
    *ret_caps = CAP_PUT_IF_NONE_MATCH | CAP_PUT_IF_MATCH | CAP_COMPLETE_CONDITIONS | CAP_DELETE_IF_MATCH |
                CAP_COPY_IF_MATCH | CAP_PART_COPY | CAP_PART_COPY_IF_MATCH | CAP_RANGE_IF_MATCH | CAP_COPY_TARGET;
    return 0;
}

static int64_t drv_file_offline(const struct objstore *st)
{
    return 0;
}

static bool root_is_empty(struct drv_file *f)
{
    struct dirent *e;
    int fd = file_at(f, "", O_RDONLY | O_DIRECTORY, 0);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    bool empty = dir && file_dir_next(dir, &e) == 0;
    if (dir)
        (void)closedir(dir); /* was only read */
    else if (fd >= 0)
        (void)close(fd); /* was only opened */
    return empty;
}

/* Its own directory is the mark of a store that was used. Where it could never be made, that there is something has to do. */
static int settle_in(struct drv_file *f, const struct objstore_config *cfg)
{
    CLEANUP_FD int fd = file_at(f, FILE_TMP_DIR, O_PATH | O_DIRECTORY, 0);
    if (fd != -ENOENT)
        return fd < 0 ? fd : 0;
    if (cfg->known && cfg->known(cfg->known_ctx, f->base.identity))
        return cfg->read_only && !root_is_empty(f) ? 0 : -ENODEV;
    int r = file_mkdir(f, FILE_TMP_DIR);
    if (r == -EEXIST || (cfg->read_only && (r == -EROFS || r == -EACCES || r == -EPERM)))
        return 0;
    return r;
}

static char *open_message(const char *dir, int r)
{
    if (r == -ENODEV)
        return g_strdup_printf("'%s' was never used as a store: is it mounted? If it is, and nothing is missing in it: "
                               "mkdir '%s/" FILE_TMP_DIR "'",
                               dir, dir);
    return g_strdup_printf("cannot use directory '%s' as a store: %s", dir, err_text(r));
}

static int drv_file_open(const struct objstore_config *cfg, struct objstore **ret_store, char **ret_msg)
{
    struct s3_source src = {0};
    int r = s3_source_parse(cfg->source, &src, ret_msg);
    if (r < 0)
        return r;
    struct drv_file *f = g_new0(struct drv_file, 1);
    f->base.drv = &drv_file;
    f->live_fd = -1;
    f->dir_mode = cfg->dir_mode;
    f->root_fd = RET_ERRNO(open(src.prefix, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    f->read_only = cfg->read_only;
    f->base.source = s3_source_format(&src);
    f->base.identity = g_strdup(f->base.source);
    r = f->root_fd < 0 ? f->root_fd : settle_in(f, cfg);
    if (r < 0) {
        *ret_msg = open_message(src.prefix, r);
        s3_source_clear(&src);
        drv_file_close(&f->base);
        return r;
    }
    f->base.limits = (struct objstore_limits){
        .part_min_bytes = FILE_PART_MIN,
        .part_max_bytes = 5ull << 30,
        .put_max_bytes = 5ull << 30,
        .copy_max_bytes = UINT64_MAX,
        .object_max_bytes = INT64_MAX,
        .parts_max = 10000,
        .key_max_bytes = 1024,
        .one_name = true,
        .plain_names = true,
    };
    (void)drv_file_probe(&f->base, "", &f->base.caps); /* cannot fail */
    file_join(f);
    s3_source_clear(&src);
    *ret_store = &f->base;
    return 0;
}

const struct objstore_driver drv_file = {
    .scheme = "file",
    .open = drv_file_open,
    .close = drv_file_close,
    .shutdown = drv_file_shutdown,
    .check = drv_file_check,
    .probe = drv_file_probe,
    .offline_since_ns = drv_file_offline,
    .head = file_head,
    .get = file_get,
    .put = file_put,
    .delete = file_delete,
    .copy = file_copy,
    .list = file_list,
    .mpu_create = file_mpu_create,
    .mpu_part = file_mpu_part,
    .mpu_part_copy = file_mpu_part_copy,
    .mpu_complete = file_mpu_complete,
    .mpu_abort = file_mpu_abort,
    .mpu_parts = file_mpu_parts,
    .mpu_list = file_mpu_list,
};
