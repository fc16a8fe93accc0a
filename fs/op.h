/* FUSE operations: unpack, one call that returns 0 or -errno, one reply. Prototypes come from libfuse's own table through ops.def. */
#pragma once
#include "fs.h"
#include "handle.h"

#define OP(name) __typeof__(*((struct fuse_lowlevel_ops *)0)->name) op_##name;
#include "ops.def"

enum op_id {
#define OP(name) OP_ID_##name,
#include "ops.def"
    N_OP_IDS
};

extern const struct fuse_lowlevel_ops fs_ops;

/* Replies with -r; counts and logs what is unusual. */
void reply_err(fuse_req_t req, enum op_id op, int r);
/* Entry reply: takes over the caller's reference to in as the kernel's lookup. ttl in seconds. */
void reply_entry(fuse_req_t req, enum op_id op, struct inode *in, double ttl);
/* Fills an entry for readdirplus or create; the kernel's lookup is counted by inode_kernel_ref() of the caller. */
void fill_entry(struct inode *in, double ttl, struct fuse_entry_param *e);

/* For a request that makes something: if it was carried out by a worker before, 1 and what it made, or -errno; else 0. */
int made_before(fuse_req_t req, struct inode **ret) MUST_CHECK;
/* For one that makes nothing: whether it was carried out. */
bool done_before(fuse_req_t req);

/* Changes mode, owner or mtime, or takes setuid away (FUSE_SET_ATTR_* in set say which) and journals what has to go upstream: nothing if they are the same.
 * -ESTALE: they would be lost, as content_open() has it; setuid is taken away all the same. */
int attr_store(struct inode *in, const struct stat *st, int set) MUST_CHECK;
/* h: the handle that it is set by; NULL, or one for reading: as one who opens the file for writing and closes it again. */
int attr_set_size(struct inode *in, struct handle *h, const struct fuse_ctx *ctx, uint64_t size) MUST_CHECK;

/* -EFBIG: no object where the file goes can be as large; refused as it comes. What the kernel writes by itself is found out by publishing. */
int attr_check_size(struct inode *in, uint64_t end) MUST_CHECK;

/* Bytes are changed by whoever sent the request: without CAP_FSETID that takes setuid and setgid away (FUSE_HANDLE_KILLPRIV_V2 leaves it to us). */
int attr_kill_suid(struct inode *in, const struct fuse_ctx *ctx) MUST_CHECK;

/* Virtual files at the root of the mount: .stats and .config. */
#define VIRT_STATS  (1ull << 63)
#define VIRT_CONFIG ((1ull << 63) + 1)
static inline bool virt_is(uint64_t ino)
{
    return ino >> 63;
}
uint64_t virt_lookup(uint64_t parent, const char *name); /* 0: none */
void virt_stat(struct fs *fs, uint64_t ino, struct stat *ret);
char *virt_text(struct fs *fs, uint64_t ino); /* owned by the caller */
