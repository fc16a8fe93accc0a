/*
 * User metadata of an object: names and text forms, shared by the drivers. Pure.
 *
 * Written: mode (octal with a leading 0), uid, gid, mtime (seconds.nanoseconds), sluice-symlink (percent-encoded), sluice-token.
 * Read as well: what rclone and s3fs write (mode decimal, mtime without or with fewer digits after the point).
 */
#pragma once
#include "objstore.h"

typedef void s3_meta_fn(void *ctx, const char *name, const char *value);

/* Calls fn for each piece of metadata; name without "x-amz-meta-". meta may be NULL. */
void s3_meta_each(const struct obj_meta *meta, s3_meta_fn *fn, void *ctx);
/* Takes one piece over into info; unknown names and unreadable values are left out. */
void s3_meta_take(struct obj_info *info, const char *name, const char *value);
/* Whether an object carries just these attributes. */
bool s3_meta_posix_same(const struct posix_attr *have, const struct posix_attr *want);
/* Is this a storage class whose objects have to be restored before a GET? */
bool s3_meta_is_archive(const char *storage_class);
/* -EINVAL unless all text is fit for a header, -ENAMETOOLONG when the symlink's target makes it more than a store takes. */
int s3_meta_check(const struct obj_meta *meta) MUST_CHECK;
