/* Sending from here what was to be copied in the store. Part of the publisher: see publish_internal.h. */
#pragma once
#include "publish_internal.h"

/* The op's file, by its name d, is brought here and will be sent from here, by an op that takes this one's place. -EFBIG: it does not fit. */
int here_send(struct op *o, const struct meta_dentry *d, struct inode *in) MUST_CHECK;
/* The copy from src, another key, failed with err: -ENOENT or -ENOMEDIUM. 0: it is sent from here; -ENODATA, -ENOMEDIUM: it cannot be had; else to be tried again. */
int here_copy_failed(struct op *o, const struct meta_dentry *d, struct inode *in, const char *src, int err) MUST_CHECK;
