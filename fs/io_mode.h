/*
 * How the kernel does I/O on a file: through us (CACHED), or on the cache file itself (PASSTHROUGH).
 *
 * The mode is chosen when the first handle opens and kept until the last is released; the kernel refuses mixtures. Passthrough needs a file that is complete
 * here; to be written it must also have no source in the store (what changes is not told to us, so nothing can be copied from there), and there must be room
 * for twice the largest file that was closed in the directory, because nobody can hold such a writer back. A handle with O_DSYNC writes through us in either mode, so that its
 * writes are made to last. Where leases do not tell that the last writable mapping of a file is gone (cache_file_shows_writers()), nothing is written past us: a writer is CACHED,
 * or, beside readers who are passed through, writes through us by a handle for writing only, which cannot be mapped; one for both is refused (ETXTBSY). Without CAP_SYS_ADMIN, on kernels before 6.9, or with --passthrough off every file is CACHED.
 *
 * A write-only handle of a CACHED file does direct I/O: whole writes instead of pages. Only kernels since 6.6 take the pages that such a write makes old out of
 * their page cache, before it, and only newer ones once more after it, so a reader may bring an old page back in between. Therefore it is alone with its like: beside
 * handles that use the page cache it uses it too, who joins it does direct I/O as well, and the next open drops what pages there are.
 *
 * The ids by which the kernel knows cache files are in backing.h.
 */
#pragma once
#include "fs.h"

void io_mode_init(struct fs *fs); /* before the first request */
void io_mode_fini(struct fs *fs);
/* At INIT: offered is what the kernel can do. */
void io_mode_connected(struct fs *fs, bool offered);
/* Whether files are passed through; if not, *ret_why (static) says why. */
bool io_mode_works(struct fs *fs, const char **ret_why);

/* One more handle: completes small files that are read, chooses or joins the mode, sets the flags of fi. content_open() came before. avoid: no passthrough if there is a choice. */
int io_mode_enter(struct inode *in, bool writes, bool avoid, struct fuse_file_info *fi) MUST_CHECK;
/* Would io_mode_enter() of who is counted as a writer say -ETXTBSY? For who is about to cut the file. */
bool io_mode_refuses(struct inode *in, int flags);
/* One handle less, opened with fi->direct_io or not; content_release() comes after. */
void io_mode_leave(struct inode *in, bool writes, bool direct);

/* Takes size and mtime of a file that the kernel writes; true when it was written since the last look. Cheap for others. */
bool io_mode_look(struct inode *in);
/* A number that changes when it was written, as far as only the kernel knows: each handle compares it with that of its open. */
unsigned io_mode_news(struct inode *in);
/* With the content gate held and no writer left: the kernel's writing ends. False: a mapping can still write. *ret_same: nothing was
 * written, and the source that was put away at open is back. */
bool io_mode_end_writing(struct inode *in, bool *ret_same);

/* Before a sync and a snapshot of the file: a mark that differs from any later one if the kernel wrote to the file after that sync; beside writers, together with the sum of what the snapshot
 * sent, which the caller adds. May wait for a tick of the file system's clock. */
void io_mode_mark(struct inode *in, struct cfile *cf, struct io_mark *ret);
/* Before publishing or a seal counts on what the last snapshot was made of: where it was made beside writers and nothing shows a change the bytes are read and compared. Other bytes are a change; the same ones
 * are settled for good once no writer is left. Without the content gate, which others need meanwhile. */
void io_mode_sum(struct inode *in);

/* No writer is left, and no name either: the kernel's writing ends for the cache, whoever still maps the file. */
void io_mode_unnamed(struct inode *in);

/* "closed", "cached", "direct" (as long as its first handle is the only one) or "passthrough": static. */
const char *io_mode_name(struct inode *in);

/* The cache file of ino is being dropped (cache.h). */
void io_mode_dropped(void *fs, uint64_t ino);
/* The inode leaves memory. */
void io_mode_forget(struct inode *in);

/* Whether a change by someone without CAP_FSETID takes setuid or setgid away. */
static inline bool mode_has_suid(uint32_t mode)
{
    return (mode & S_ISUID) || (mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP);
}
