/* The intent: what stands beside unpublished bytes (xattr of the data file), so that they are found and named without the database; read by rebuild.c. */
#pragma once
#include "meta.h"

/* d: the name under path; partial: bytes of it are in the store only. To be freed with free(); NULL: out of memory. */
char *intent_text(const struct meta_inode *rec, const char *path, const struct meta_dentry *d, bool partial);
