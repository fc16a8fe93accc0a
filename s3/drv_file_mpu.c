/*
 * Multipart uploads of the file driver: a directory ROOT/.sluice-tmp/mpu-ID with the key in the file "key" (it carries the metadata as
 * attributes) and one file per part. Complete joins the parts into a temporary file by copy_file_range (a reflink where the file system can) and
 * commits it like a PUT. Concurrent parts touch different files; no lock but the commit's.
 */
#include "base/cleanup.h"
#include "base/crash.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/metric.h"
#include "drv_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#define REMOVE_TRIES 1000

static bool id_valid(const char *id)
{
    for (const char *p = id; *p; p++) {
        if (!g_ascii_isalnum(*p) && *p != '-')
            return false;
    }
    return *id != '\0' && strlen(id) < 64;
}

static char *mpu_path(const char *id, const char *name)
{
    return g_strconcat(FILE_TMP_DIR "/" FILE_MPU_PREFIX, id, "/", name, NULL);
}

static char *part_path(const char *id, uint32_t number)
{
    char name[16];
    g_snprintf(name, sizeof name, "p%05u", number);
    return mpu_path(id, name);
}

static int remove_once(struct drv_file *f, const char *path)
{
    CLEANUP_FD int fd = file_at(f, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (!dir)
        return -errno;
    fd = -1;
    (void)unlinkat(dirfd(dir), "key", 0); /* first: from here on the upload does not exist */
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), e->d_name, 0); /* the rmdir below tells */
    }
    (void)closedir(dir); /* was only read */
    return file_remove(f, path, AT_REMOVEDIR);
}

/* A part that looked for the upload before may come after its directory was read: each does so once. */
static int mpu_remove(struct drv_file *f, const char *id)
{
    g_autofree char *path = g_strconcat(FILE_TMP_DIR "/" FILE_MPU_PREFIX, id, NULL);
    int r = remove_once(f, path);
    for (unsigned i = 0; r == -ENOTEMPTY && i < REMOVE_TRIES; i++)
        r = remove_once(f, path);
    return r;
}

/* Opens the "key" file of an upload and checks that it is this key's. */
static int mpu_open(struct drv_file *f, const char *key, const char *id)
{
    char have[1025];
    if (!id_valid(id))
        return -ENOENT;
    g_autofree char *path = mpu_path(id, "key");
    CLEANUP_FD int fd = file_at(f, path, O_RDONLY, 0);
    if (fd == -ENOENT)
        (void)mpu_remove(f, id); /* whoever was to remove it was perhaps cut off; there may be nothing */
    if (fd < 0)
        return fd;
    ssize_t n = RET_ERRNO(pread(fd, have, sizeof have - 1, 0));
    if (n < 0)
        return (int)n;
    have[n] = '\0';
    if (key && strcmp(have, key) != 0) {
        log_warn("file", "an upload is of another key id='%s' key='%s' asked='%s'", id, have, key);
        return -ENOENT;
    }
    return steal_fd(&fd);
}

/* Removes an upload whose "key" file is open, which is closed before: NFS keeps what is open, and with it the directory. */
static int drop(struct drv_file *f, int fd, const char *id)
{
    if (fd >= 0)
        (void)close(fd); /* nothing that counts was written */
    return mpu_remove(f, id);
}

int file_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id)
{
    struct drv_file *f = file_of(st);
    g_autofree char *id = g_uuid_string_random();
    metric_inc(M_requests_multipart);
    int r = file_key_check(key);
    if (r < 0)
        return r;
    if (g_str_has_suffix(key, "/"))
        return -ENOTSUP;
    g_autofree char *dir = g_strconcat(FILE_TMP_DIR "/" FILE_MPU_PREFIX, id, NULL);
    g_autofree char *path = mpu_path(id, "key");
    r = file_mkdir(f, dir);
    if (r < 0)
        return r;
    CLEANUP_FD int fd = file_at(f, path, O_RDWR | O_CREAT | O_EXCL, 0666);
    r = fd < 0 ? fd : file_write_all(fd, key, strlen(key));
    if (r == 0)
        r = file_meta_set(fd, meta);
    if (r == 0)
        file_mode_set(f, fd, meta ? &meta->posix : NULL, 0666);
    if (r == 0)
        *ret_upload_id = g_steal_pointer(&id);
    else
        (void)drop(f, fd < 0 ? -1 : steal_fd(&fd), id); /* nobody knows it */
    return r;
}

/* Renames the finished part into place and tells its etag. */
static int part_commit(struct drv_file *f, int fd, const char *tmp, const char *id, struct obj_part *part)
{
    struct stat st;
    g_autofree char *path = part_path(id, part->number);
    int r = file_rename(f, tmp, path);
    if (r == 0)
        r = RET_ERRNO(fstat(fd, &st));
    if (r == 0)
        file_etag(&st, &part->etag);
    return r;
}

int file_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf, struct obj_part *part)
{
    struct drv_file *f = file_of(st);
    g_autofree char *tmp = NULL;
    metric_inc(M_requests_multipart);
    CLEANUP_FD int upload = mpu_open(f, key, upload_id);
    if (upload < 0)
        return upload;
    CLEANUP_FD int fd = file_tmp_open(f, "part", &tmp);
    if (fd < 0)
        return fd;
    int r = file_write_all(fd, buf, part->size);
    if (r == 0)
        r = part_commit(f, fd, tmp, upload_id, part);
    if (r < 0) {
        (void)file_remove(f, tmp, 0); /* a leftover is only waste */
        return r;
    }
    part->crc32c = crc32c(0, buf, part->size);
    metric_add(M_uploaded_bytes, (int64_t)part->size);
    return 0;
}

int file_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                       const struct etag *src_etag, uint64_t off, struct obj_part *part)
{
    struct drv_file *f = file_of(st);
    g_autofree char *tmp = NULL;
    CLEANUP_FD int in = -1;
    struct stat sb;
    metric_inc(M_requests_multipart);
    CLEANUP_FD int upload = mpu_open(f, key, upload_id);
    if (upload < 0)
        return upload;
    int r = file_open_object(f, src, src_etag, &in, &sb);
    if (r < 0)
        return r;
    if (off > (uint64_t)sb.st_size || part->size > (uint64_t)sb.st_size - off)
        return -EINVAL;
    CLEANUP_FD int fd = file_tmp_open(f, "part", &tmp);
    if (fd < 0)
        return fd;
    r = file_copy_object(f, in, &sb, off, fd, part->size);
    if (r == 0)
        r = part_commit(f, fd, tmp, upload_id, part);
    if (r < 0)
        (void)file_remove(f, tmp, 0); /* a leftover is only waste */
    part->crc32c = 0;
    return r;
}

static int join_part(struct drv_file *f, int out, uint64_t off, const char *id, const struct obj_part *part, bool last,
                     uint64_t *ret_size)
{
    struct stat st;
    struct etag have;
    g_autofree char *path = part_path(id, part->number);
    CLEANUP_FD int in = file_at(f, path, O_RDONLY, 0);
    if (in < 0)
        return in == -ENOENT ? -EBADMSG : in; /* InvalidPart */
    int r = RET_ERRNO(fstat(in, &st));
    if (r < 0)
        return r;
    file_etag(&st, &have);
    if (!etag_equal(&have, &part->etag))
        return -EBADMSG; /* InvalidPart */
    if (!last && (uint64_t)st.st_size < FILE_PART_MIN)
        return -EINVAL;
    *ret_size = (uint64_t)st.st_size;
    return file_copy_range(f, in, 0, out, off, (uint64_t)st.st_size);
}

int file_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                      size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag)
{
    struct drv_file *f = file_of(st);
    g_autofree char *tmp = NULL;
    uint64_t off = 0;
    metric_inc(M_requests_multipart);
    CLEANUP_FD int upload = mpu_open(f, key, upload_id);
    if (upload < 0)
        return upload;
    if (n_parts == 0)
        return -EINVAL;
    CLEANUP_FD int fd = file_tmp_open(f, "join", &tmp);
    if (fd < 0)
        return fd;
    int r = file_meta_clone(upload, fd);
    for (size_t i = 0; i < n_parts && r == 0; i++) {
        uint64_t size = 0;
        r = join_part(f, fd, off, upload_id, &parts[i], i + 1 == n_parts, &size);
        off += size;
    }
    if (r < 0) {
        (void)file_remove(f, tmp, 0); /* a leftover is only waste */
        return r;
    }
    r = file_commit(f, fd, tmp, key, cond, ret_etag);
    CRASH_POINT(store_joined);
    int left = r == 0 ? drop(f, steal_fd(&upload), upload_id) : 0;
    if (left < 0) /* the object is made: leftovers are only waste, and listed by mpu_list */
        log_warn("file", "the parts of a completed upload stay key='%s' id='%s' r=%s", key, upload_id, err_name(left));
    return r;
}

int file_mpu_abort(struct objstore *st, const char *key, const char *upload_id)
{
    struct drv_file *f = file_of(st);
    metric_inc(M_requests_multipart);
    CLEANUP_FD int upload = mpu_open(f, key, upload_id);
    return upload < 0 ? upload : drop(f, steal_fd(&upload), upload_id);
}

static int part_cmp(const void *a, const void *b)
{
    const struct obj_part *x = a;
    const struct obj_part *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

int file_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                   size_t *ret_n)
{
    struct drv_file *f = file_of(st);
    metric_inc(M_requests_multipart);
    CLEANUP_FD int upload = mpu_open(f, key, upload_id);
    if (upload < 0)
        return upload;
    g_autofree char *path = g_strconcat(FILE_TMP_DIR "/" FILE_MPU_PREFIX, upload_id, NULL);
    CLEANUP_FD int fd = file_at(f, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (!dir)
        return -errno;
    fd = -1;
    g_autoptr(GArray) out = g_array_new(FALSE, TRUE, sizeof(struct obj_part));
    int r;
    for (struct dirent *e; (r = file_dir_next(dir, &e)) > 0;) {
        struct stat sb;
        struct obj_part part = {0};
        if (e->d_name[0] != 'p')
            continue;
        r = RET_ERRNO(fstatat(dirfd(dir), e->d_name, &sb, 0));
        if (r == -ENOENT)
            continue;
        if (r < 0)
            break;
        part.number = (uint32_t)g_ascii_strtoull(e->d_name + 1, NULL, 10);
        part.size = (uint64_t)sb.st_size;
        file_etag(&sb, &part.etag);
        g_array_append_val(out, part);
    }
    (void)closedir(dir); /* was only read */
    if (r < 0)
        return r;
    g_array_sort(out, part_cmp);
    *ret_n = out->len;
    *ret_parts = (struct obj_part *)(void *)g_array_free(g_steal_pointer(&out), FALSE);
    return 0;
}

int file_mpu_list(struct objstore *st, const char *prefix, int (*fn)(void *ctx, const char *key, const char *upload_id),
                  void *ctx)
{
    struct drv_file *f = file_of(st);
    metric_inc(M_requests_multipart);
    CLEANUP_FD int fd = file_at(f, FILE_TMP_DIR, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd; /* a store that is only read from */
    DIR *dir = fdopendir(fd);
    if (!dir)
        return -errno;
    fd = -1;
    int r = 0;
    for (struct dirent *e; r == 0 && (r = file_dir_next(dir, &e)) > 0;) {
        char key[1025];
        r = 0;
        if (!g_str_has_prefix(e->d_name, FILE_MPU_PREFIX))
            continue;
        const char *id = e->d_name + strlen(FILE_MPU_PREFIX);
        CLEANUP_FD int upload = mpu_open(f, NULL, id);
        ssize_t n = upload < 0 ? -1 : pread(upload, key, sizeof key - 1, 0);
        if (n <= 0)
            continue;
        key[n] = '\0';
        if (g_str_has_prefix(key, prefix))
            r = fn(ctx, key, id);
    }
    (void)closedir(dir); /* was only read */
    return r;
}
