/* Private to the file driver (drv_file*.c): the store's struct and the helpers its parts share. */
#pragma once
#include "objstore_driver.h"

#include <dirent.h>
#include <sys/stat.h>

#define FILE_TMP_DIR    ".sluice-tmp"
#define FILE_XATTR      "user.x-amz-meta-"
#define FILE_XATTR_DIR  "user.sluice.marker"
#define FILE_ACL        "system.posix_acl_access"
#define FILE_MPU_PREFIX "mpu-"
#define FILE_PART_MIN   (64ull << 10)

struct drv_file {
    struct objstore base;
    /* immutable after open */
    int root_fd;
    bool read_only;
    mode_t dir_mode; /* of what it makes, 0: as the umask has it */
    char id[17];     /* in the names of its temporary files */
    int live_fd;     /* tells others that it is at work, negative: it cannot write there */
    /* atomic */
    int stopping;
    uint64_t n_tmp;
};

static inline struct drv_file *file_of(struct objstore *st)
{
    return (struct drv_file *)st;
}

/* By paths relative to the root, which lead along no symbolic link (-ELOOP). "" is the root; a '/' at the end is ignored by all but file_at(), for which it stands for a directory. */
int file_at(struct drv_file *f, const char *path, int flags, mode_t mode) MUST_CHECK; /* openat() */
int file_stat(struct drv_file *f, const char *path, struct stat *ret) MUST_CHECK;     /* lstat() */
int file_mkdir(struct drv_file *f, const char *path) MUST_CHECK;
int file_remove(struct drv_file *f, const char *path, int flags); /* unlinkat() */
int file_rename(struct drv_file *f, const char *from, const char *to);
/* -EINVAL for keys that a directory cannot hold. */
int file_key_check(const char *key) MUST_CHECK;
/* Where a key that cannot be held is asked for, or what is there is no object, it does not exist. */
int file_read_error(int r);
int file_write_error(int r);
/* Exclusive lock over all commits of the store, also between processes. The descriptor, to be closed, or -errno. */
int file_lock(struct drv_file *f) MUST_CHECK;
/* Before anything else is done: removes what processes left under FILE_TMP_DIR that were killed, and tells others that this one is at work. Nothing where it cannot write. */
void file_join(struct drv_file *f);
void file_leave(struct drv_file *f);
/* A new path under FILE_TMP_DIR. */
char *file_tmp_path(struct drv_file *f, const char *what);
/* A new file under FILE_TMP_DIR; its path relative to the root in *ret_path. */
int file_tmp_open(struct drv_file *f, const char *what, char **ret_path) MUST_CHECK;
int file_write_all(int fd, const void *buf, size_t len) MUST_CHECK;
/* Appends [off, off+len) of in to out at out_off. -EBADMSG when in ends before. */
int file_copy_range(struct drv_file *f, int in, uint64_t off, int out, uint64_t out_off, uint64_t len) MUST_CHECK;
/* The same of an object that was as told when it was opened, to the start of out. -ESTALE when it is not any more: some of the bytes may be another version's. */
int file_copy_object(struct drv_file *f, int in, const struct stat *was, uint64_t off, int out, uint64_t len)
    MUST_CHECK;
int file_meta_set(int fd, const struct obj_meta *meta) MUST_CHECK;
void file_etag(const struct stat *st, struct etag *ret);
/* Gives what was just made, before it gets its name, the permissions that others are to find, of which own, where it has a mode, may take some away (never from the owner). all: 0666 or
 * 0777. What has an ACL from where it was made keeps it. */
void file_mode_set(struct drv_file *f, int fd, const struct posix_attr *own, mode_t all);
/* Makes something under FILE_TMP_DIR as open to others as the root is: all who may write there are to. */
void file_share(struct drv_file *f, int fd);
/* Gives the metadata and permissions of one object to another. */
int file_meta_clone(int from, int to) MUST_CHECK;
/* 1 if the directory is an object, 0 if not. */
int file_is_marker(struct drv_file *f, const char *path_with_slash) MUST_CHECK;
/* The next entry but "." and "..": 1, 0 at the end. */
int file_dir_next(DIR *dir, struct dirent **ret_entry) MUST_CHECK;
/* Gives the finished temporary file the key's name if cond holds; removes it otherwise. On the disk when it returns. */
int file_commit(struct drv_file *f, int fd, const char *tmp, const char *key, const struct obj_cond *cond,
                struct etag *ret_etag) MUST_CHECK;
/* Gives tmp the key's name, with all directories that it needs in one step. -ENOTSUP: what has the name is neither file nor directory. Under the lock. */
int file_place(struct drv_file *f, const char *tmp, const char *key) MUST_CHECK;
/* Syncs the directory that key stands in or stood in, the nearest that is still there. */
int file_dir_sync(struct drv_file *f, const char *key) MUST_CHECK;
/* Opens an object for reading and checks that it is the wanted version. */
int file_open_object(struct drv_file *f, const char *key, const struct etag *want, int *ret_fd, struct stat *ret_stat)
    MUST_CHECK;

int file_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated);
int file_mpu_create(struct objstore *st, const char *key, const struct obj_meta *meta, char **ret_upload_id);
int file_mpu_part(struct objstore *st, const char *key, const char *upload_id, const void *buf, struct obj_part *part);
int file_mpu_part_copy(struct objstore *st, const char *key, const char *upload_id, const char *src,
                       const struct etag *src_etag, uint64_t off, struct obj_part *part);
int file_mpu_complete(struct objstore *st, const char *key, const char *upload_id, const struct obj_part *parts,
                      size_t n_parts, const char *token, const struct obj_cond *cond, struct etag *ret_etag);
int file_mpu_abort(struct objstore *st, const char *key, const char *upload_id);
int file_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                   size_t *ret_n);
int file_mpu_list(struct objstore *st, const char *prefix, int (*fn)(void *ctx, const char *key, const char *upload_id),
                  void *ctx);
