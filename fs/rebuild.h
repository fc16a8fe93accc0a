/*
 * Brings unpublished files back into a database that does not know them, from the intents that stand beside their data (xattr
 * user.sluice.intent, written by content_write_intent()).
 */
#pragma once
#include "meta.h"

#include <stdio.h>

/* For every data file with an intent whose vid no inode has: the directories above it, an inode, a name and a journal record, in the order in which the files were closed.
 * A name that is taken, or an intent that cannot be read, gives the file another name: nothing is dropped. Files whose bytes are not all here are quarantined: visible, never published.
 * Nobody else may use the database. One line for each file to out (may be NULL). *ret_n: files brought back. */
int fs_rebuild(struct meta *m, const char *cache_dir, FILE *out, unsigned *ret_n) MUST_CHECK;
